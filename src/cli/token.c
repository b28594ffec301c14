/* `dibs token`: issued here, carried by somebody, redeemed once. */
#include "cli.h"
#include "json.h"
#include "options.h"

#include <stdio.h>

static const char help[] =
    "usage: dibs token issue [--scope S] [--ttl D] [--json] [--url URL]\n"
    "       dibs token redeem [--scope S] [--json] [--url URL] TOKEN\n"
    "       dibs token reissue [--scope S] [--ttl D] [--json] [--url URL] TOKEN\n"
    "An unguessable token that can be redeemed once: for a form that must be\n"
    "submitted only once, or a link that works once.\n\n"
    "  issue      prints a new token\n"
    "  redeem     exits with 0 for exactly one caller, who then does the work, and\n"
    "             with 77 for all others\n"
    "  reissue    if the work after a redemption failed: prints a replacement token,\n"
    "             the same one for every call\n\n"
    "  --scope S  what the token is for; the same for all three (default: none)\n"
    "  --ttl D    the token expires after D (default 10m)\n"
    "  --json     {\"scope\", \"token\", \"redeemed\"}\n"
    "  --url URL  engine, or --url-file FILE (default: see dibs help)\n\n"
    "Exit: 0, or 77: used, expired, never issued, or for another scope (reissue: not\n"
    "redeemed, or expired).\n";

typedef enum verb { ISSUE, REDEEM, REISSUE } verb;

static const cli_verb verbs[] = {{"issue", ""}, {"redeem", "TOKEN"}, {"reissue", "TOKEN"}, {0}};

/* `token` is the one that was given, and then the one that is told. */
static int act(dibs *d, verb what, const dibs_token_options *options, const char *token, bool json)
{
    char fresh[DIBS_TOKEN_SIZE] = "";
    dibs_error err = {0};
    json_t *o;
    int code = 0;

    if (what == ISSUE)
        err.status = dibs_token_issue(d, options, fresh, &err);
    else if (what == REDEEM)
        err.status = dibs_token_redeem(d, token, options, &err);
    else
        err.status = dibs_token_reissue(d, token, options, fresh, &err);
    if (err.status != DIBS_OK)
        code = cli_failed(&err);
    if (json && (err.status == DIBS_OK || err.status == DIBS_REFUSED)) {
        o = cli_json_new();
        cli_json_text(o, "scope", options->scope);
        cli_json_text(o, "token", fresh[0] ? fresh : token);
        if (what == REDEEM)
            cli_json_put(o, "redeemed", json_boolean(err.status == DIBS_OK));
        else
            cli_json_put(o, "issued", json_boolean(err.status == DIBS_OK));
        cli_json_print(o, 2);
    } else if (err.status == DIBS_OK && what != REDEEM) {
        puts(fresh);
    }
    return cli_finish(code);
}

static int start(const cli_command *self, int argc, char **argv)
{
    dibs_token_options token = {.scope = ""};
    const char *url = NULL;
    bool json = false;
    const cli_option options[] = {CLI_URL_OPTIONS(&url),
                                  {"scope", CLI_TEXT, &token.scope, 0, 0, 0},
                                  {"ttl", CLI_SPAN, &token.ttl_ms, 1, CLI_SPAN_MAX, 0},
                                  {"json", CLI_FLAG, &json, 0, 0, 0},
                                  {0}};
    dibs *d = NULL;
    cli_words words;
    int what, code = cli_parse(self, options, argc, argv, &words);

    if (code >= 0)
        return code;
    what = cli_find_verb(
        self, verbs, (cli_only[]){{"--ttl", token.ttl_ms != 0, 1U << ISSUE | 1U << REISSUE}, {0}},
        &words);
    if (what < 0)
        return CLI_EXIT_USAGE;
    code = cli_open(url, NULL, &d);
    if (!d)
        return code;
    code = act(d, (verb)what, &token, words.count > 1 ? words.word[1] : NULL, json);
    dibs_close(d);
    return code;
}

const cli_command cli_token = {"token", "issue tokens that can be redeemed once", help, start};
