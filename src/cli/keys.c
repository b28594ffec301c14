/* `dibs once ls|show|forget|resolve`: keys of once, for operators.
 *
 * A run is always written with `--` before its COMMAND, and these are not. So a key may have any of these names:
 * `dibs once ls -- COMMAND` is a run of the key `ls`, and `dibs once show ls` shows it. Only a key that begins
 * with a dash comes after `--`: `dibs once show -- -key`. */
#include "keys.h"
#include "json.h"
#include "options.h"
#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 1000

static const char help[] =
    "usage: dibs once ls [--state STATE[,STATE...]] [--limit N] [OPTION...] [PREFIX]\n"
    "       dibs once show [OPTION...] KEY\n"
    "       dibs once forget [--running] [--version N] [--by WHO] [OPTION...] KEY\n"
    "       dibs once resolve [--result TEXT] [--code N] [--version N] [--by WHO]\n"
    "                         [OPTION...] KEY done|failed|free|crashed\n"
    "ls lists keys, show shows one with its steps. forget: the next call runs the\n"
    "command again. resolve decides the outcome of a crashed key, or (crashed)\n"
    "declares the runner of a key dead. These never run a command.\n\n"
    "  --scope S     namespace of KEY (default: none; ls: all)\n"
    "  --state LIST  running, crashed, done, failed, expired, free, damaged\n"
    "                (default: all but free)\n"
    "  --limit N     list at most N keys (default: all)\n"
    "  --running     forget also a run in progress, or a damaged record\n"
    "  --version N   only if the record has this version (see show)\n"
    "  --result TEXT, --code N  done, failed: output and exit code for duplicates\n"
    "  --by WHO      recorded with the key (default: user@host)\n"
    "  --json        {\"keys\": [...]}, or {\"scope\", \"key\", \"state\", ...}\n"
    "  --url URL     engine, or --url-file FILE (default: see dibs help)\n\n"
    "A key called ls, show, ...: with '--' it is run (dibs once ls -- COMMAND).\n"
    "Exit: 0, 1 no such key or changed (resolve: not crashed), 75 in progress.\n";

typedef enum verb { LS, SHOW, FORGET, RESOLVE } verb;

static const cli_verb verbs[] = {
    {"ls", "[PREFIX]"}, {"show", "KEY"}, {"forget", "KEY"}, {"resolve", "KEY OUTCOME"}, {0}};

typedef struct keys {
    const cli_command *self;
    const char *url, *scope, *state, *by, *result;
    int64_t limit, version, code;
    bool running, json;
    uint32_t states;
    dibs_once_state outcome;
    const char *word; /* PREFIX or KEY; NULL */
    dibs *d;
} keys;

/* ---- Arguments ------------------------------------------------------------------------------- */

static bool is_verb(const char *word)
{
    const cli_verb *v = verbs;

    while (v->name && strcmp(v->name, word) != 0)
        v++;
    return v->name != NULL;
}

bool cli_is_keys(int argc, char **argv)
{
    bool named = false;

    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) /* no COMMAND begins with a dash, but a key may */
            return named && i + 1 < argc && argv[i + 1][0] == '-';
        named = named || is_verb(argv[i]);
    }
    return named;
}

/* 0: there is no such state. */
static dibs_once_state state_named(const char *name, size_t size)
{
    for (unsigned bit = 1; bit <= DIBS_ONCE_DAMAGED; bit <<= 1) {
        const char *known = dibs_once_state_name((dibs_once_state)bit);
        if (strlen(known) == size && strncmp(known, name, size) == 0)
            return (dibs_once_state)bit;
    }
    return (dibs_once_state)0;
}

/* "running,crashed" */
static int read_states(keys *c)
{
    for (const char *at = c->state; *at; at += strcspn(at, ","), at += *at == ',') {
        dibs_once_state state = state_named(at, strcspn(at, ","));
        if (!state)
            return cli_misused(c->self,
                               "invalid --state '%s': use running, crashed, done, failed, expired, "
                               "free, damaged, or several with commas",
                               c->state);
        c->states |= state;
    }
    return -1;
}

static int read_outcome(keys *c, const char *word)
{
    c->outcome = state_named(word, strlen(word));
    if (c->outcome & (DIBS_ONCE_DONE | DIBS_ONCE_FAILED | DIBS_ONCE_FREE | DIBS_ONCE_CRASHED))
        return -1;
    return cli_misused(c->self, "invalid OUTCOME '%s': use done, failed, free or crashed", word);
}

/* One of these names stands somewhere: not in the first place, it is a KEY that lacks its COMMAND. */
static int find_verb(const keys *c, const cli_words *words)
{
    const unsigned decides = 1U << FORGET | 1U << RESOLVE;

    if (words->count > 0 && !is_verb(words->word[0])) {
        cli_misused(c->self, "no '--' between the KEY and COMMAND");
        return -1;
    }
    return cli_find_verb(c->self, verbs,
                         (cli_only[]){{"--state", c->state != NULL, 1U << LS},
                                      {"--limit", c->limit != 0, 1U << LS},
                                      {"--version", c->version != 0, decides},
                                      {"--running", c->running, 1U << FORGET},
                                      {"--by", c->by != NULL, decides},
                                      {"--result", c->result != NULL, 1U << RESOLVE},
                                      {"--code", c->code >= 0, 1U << RESOLVE},
                                      {0}},
                         words);
}

static int read_arguments(keys *c, int argc, char **argv, verb *what)
{
    const cli_option options[] = {
        CLI_URL_OPTIONS(&c->url),
        {"scope", CLI_TEXT, &c->scope, 0, 0, 0},
        {"state", CLI_TEXT, &c->state, 0, 0, 0},
        {"limit", CLI_NUMBER, &c->limit, 1, INT64_MAX, 0},
        {"version", CLI_NUMBER, &c->version, 1, INT64_MAX, 0},
        {"running", CLI_FLAG, &c->running, 0, 0, 0},
        {"by", CLI_TEXT, &c->by, 0, 0, 0},
        {"result", CLI_TEXT, &c->result, 0, 0, 0},
        {"code", CLI_NUMBER, &c->code, 0, 255, 0},
        {"json", CLI_FLAG, &c->json, 0, 0, 0},
        {0},
    };
    cli_words words;
    int found, code = cli_parse(c->self, options, argc, argv, &words);

    if (code >= 0)
        return code;
    found = find_verb(c, &words);
    if (found < 0)
        return CLI_EXIT_USAGE;
    *what = (verb)found;
    c->word = words.count > 1 ? words.word[1] : NULL;
    if (c->state)
        code = read_states(c);
    if (code < 0 && *what == RESOLVE)
        code = read_outcome(c, words.word[2]);
    if (code < 0 && (c->result || c->code >= 0) &&
        !(c->outcome & (DIBS_ONCE_DONE | DIBS_ONCE_FAILED)))
        code = cli_misused(c->self, "--result and --code are for done and failed");
    return code;
}

/* ---- ls -------------------------------------------------------------------------------------- */

/* "-": for ever, or nothing to tell. */
static const char *span_text(char out[24], int64_t ms)
{
    return ms == DIBS_FOREVER ? "-" : cli_format_span(out, ms);
}

static void print_row(const dibs_once_info *i)
{
    char scope[CLI_SHOWN_SIZE], key[CLI_SHOWN_SIZE], owner[CLI_SHOWN_SIZE] = "-";
    char host[CLI_SHOWN_SIZE] = "-", since[32] = "-", left[24];

    cli_escape(scope, sizeof scope, i->scope);
    cli_escape(key, sizeof key, i->key);
    if (i->runner) {
        cli_escape(owner, sizeof owner, i->runner->owner);
        cli_escape(host, sizeof host, i->runner->host);
        cli_format_time(since, i->runner->since_ms);
    }
    printf("%-8s %-19s %9s  %s%s%s  %s (host %s, pid %" PRId64 ")%s%s\n",
           dibs_once_state_name(i->state), since, span_text(left, i->left_ms), scope,
           scope[0] ? " / " : "", key, owner, host, i->runner ? i->runner->pid : 0,
           i->damage ? ": " : "", i->damage ? i->damage : "");
}

/* One page: printed, or added to `list`. */
static void put_page(const dibs_once_report *r, json_t *list)
{
    for (size_t i = 0; i < dibs_once_report_count(r); i++) {
        const dibs_once_info *info = dibs_once_report_at(r, i);
        if (list)
            json_array_append_new(list, cli_json_key(info, false));
        else
            print_row(info);
    }
}

/* All pages, or as many keys as are wanted. What was printed before a failure stays, and the exit code tells. */
static int put_pages(const keys *c, json_t *list)
{
    dibs_once_list_options options = {.scope = c->scope, .states = c->states};
    int64_t left = c->limit ? c->limit : INT64_MAX;
    char *after = NULL;
    int code = 0;

    do {
        dibs_once_report *r = NULL;
        dibs_error err = {0};
        options.limit = left < PAGE ? (size_t)left : PAGE;
        options.after = after;
        err.status = dibs_once_list(c->d, c->word, &options, &r, &err);
        free(after);
        after = NULL;
        if (err.status != DIBS_OK) {
            code = cli_failed(&err);
            break;
        }
        put_page(r, list);
        left -= (int64_t)dibs_once_report_count(r);
        if (dibs_once_report_next(r) && !(after = strdup(dibs_once_report_next(r)))) {
            cli_say("%s", dibs_status_text(DIBS_NO_MEMORY));
            code = dibs_status_exit_code(DIBS_NO_MEMORY);
        }
        dibs_once_report_free(r);
    } while (after && left > 0);
    free(after);
    return code;
}

static int list_keys(const keys *c)
{
    json_t *list = c->json ? json_array() : NULL, *document;
    int code;

    if (!list)
        printf("%-8s %-19s %9s  %s\n", "STATE", "SINCE", "KEPT", "KEY");
    code = put_pages(c, list);
    if (!list)
        return code;
    document = cli_json_new();
    cli_json_put(document, "keys", list);
    if (code == 0)
        return cli_json_print(document, 2);
    json_decref(document);
    return code;
}

/* ---- show ------------------------------------------------------------------------------------ */

static void print_key(const dibs_once_info *i)
{
    char text[CLI_SHOWN_SIZE], host[CLI_SHOWN_SIZE], time[32], span[24];

    cli_escape(text, sizeof text, i->key);
    printf("%s\n", text);
    cli_escape(text, sizeof text, i->scope);
    if (text[0])
        printf("scope:   %s\n", text);
    printf("state:   %s%s%s\n", dibs_once_state_name(i->state), i->damage ? ": " : "",
           i->damage ? i->damage : "");
    printf("version: %" PRIu64 "\n", i->version);
    if (i->decided_by) {
        cli_escape(text, sizeof text, i->decided_by);
        printf("decided: by %s\n", text);
    }
    if (i->runner) {
        cli_escape(text, sizeof text, i->runner->owner);
        cli_escape(host, sizeof host, i->runner->host);
        printf("runner:  %s (host %s, pid %" PRId64 ") since %s, run %" PRIu32 ", fence %" PRIu64
               "\n",
               text, host, i->runner->pid, cli_format_time(time, i->runner->since_ms), i->runs,
               i->runner->fence);
    }
    if (i->state == DIBS_ONCE_RUNNING)
        printf("lease:   %s left\n", cli_format_span(span, i->runner->left_ms));
    printf("kept:    %s\n",
           i->left_ms == DIBS_FOREVER ? "forever" : cli_format_span(span, i->left_ms));
    for (size_t k = 0; i->steps && k < i->step_count; k++) {
        cli_escape(text, sizeof text, i->steps[k]->name);
        printf("step:    %s (%zu bytes)\n", text, i->steps[k]->size);
    }
    if (i->state & (DIBS_ONCE_DONE | DIBS_ONCE_FAILED))
        printf("result:  %zu bytes, code %d\n", i->result_size, i->code);
}

static int show_key(const keys *c)
{
    dibs_once_report *r = NULL;
    dibs_error err = {0};
    int code = 0;

    err.status =
        dibs_once_inspect(c->d, c->word, &(dibs_once_inspect_options){.scope = c->scope}, &r, &err);
    if (err.status != DIBS_OK)
        return cli_failed(&err);
    if (c->json)
        code = cli_json_print(cli_json_key(dibs_once_report_at(r, 0), true), 2);
    else
        print_key(dibs_once_report_at(r, 0));
    dibs_once_report_free(r);
    return code;
}

/* ---- forget, resolve ------------------------------------------------------------------------- */

static int settle_key(const keys *c, verb what)
{
    char self[DIBS_OWNER_MAX + 1];
    const char *by = c->by ? c->by : cli_operator(self);
    dibs_error err = {0};
    json_t *o;

    if (what == FORGET)
        err.status = dibs_once_forget(c->d, c->word,
                                      &(dibs_once_forget_options){.scope = c->scope,
                                                                  .version = (uint64_t)c->version,
                                                                  .running = c->running,
                                                                  .by = by},
                                      &err);
    else
        err.status = dibs_once_resolve(
            c->d, c->word,
            &(dibs_once_resolve_options){.scope = c->scope,
                                         .version = (uint64_t)c->version,
                                         .outcome = c->outcome,
                                         .result = c->result,
                                         .size = c->result ? strlen(c->result) : 0,
                                         .code = c->code > 0 ? (int)c->code : 0,
                                         .by = by},
            &err);
    if (err.status != DIBS_OK)
        return cli_failed(&err);
    if (!c->json)
        return 0;
    o = cli_json_new();
    cli_json_text(o, "scope", c->scope ? c->scope : "");
    cli_json_text(o, "key", c->word);
    cli_json_text(o, "state", dibs_once_state_name(what == FORGET ? DIBS_ONCE_FREE : c->outcome));
    cli_json_text(o, "by", by);
    return cli_json_print(o, 2);
}

/* ---- The command ----------------------------------------------------------------------------- */

static int start(const cli_command *self, int argc, char **argv)
{
    keys c = {.self = self, .code = -1};
    verb what = LS;
    int code = read_arguments(&c, argc, argv, &what);

    if (code < 0)
        code = cli_open(c.url, NULL, &c.d);
    if (!c.d)
        return code;
    if (what == LS)
        code = list_keys(&c);
    else if (what == SHOW)
        code = show_key(&c);
    else
        code = settle_key(&c, what);
    dibs_close(c.d);
    return cli_finish(code);
}

const cli_command cli_keys = {"once", "keys of once, for operators", help, start};
