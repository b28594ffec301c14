/* `dibs counter`: numbers that never fall below zero, and requests that count once. */
#include "cli.h"
#include "json.h"
#include "options.h"

#include <inttypes.h>
#include <stdio.h>

static const char help[] =
    "usage: dibs counter set [OPTION...] NAME N\n"
    "       dibs counter add [OPTION...] NAME N\n"
    "       dibs counter take [OPTION...] NAME [N]\n"
    "       dibs counter get [--json] [--url URL] NAME\n"
    "A counter that many clients change at once, such as a stock or a quota. It is\n"
    "never below zero. Each command prints the new value.\n\n"
    "  set            sets the value to N\n"
    "  add            adds N, which may be negative; a missing counter is 0\n"
    "  take           takes N (default 1) if that many are left, else nothing\n"
    "  get            prints the value\n\n"
    "  --request ID   count a request once: a repeated ID gets the first answer\n"
    "  --keep D       remember ID for D (default 24h)\n"
    "  --json         {\"name\", \"value\", \"changed\", \"already\"}\n"
    "  --url URL      engine, or --url-file FILE (default: see dibs help)\n\n"
    "Exit: 0, or 1 if fewer are left than requested, or there is no such counter.\n";

typedef enum verb { SET, ADD, TAKE, GET } verb;

static const cli_verb verbs[] = {
    {"set", "NAME N"}, {"add", "NAME N"}, {"take", "NAME [N]"}, {"get", "NAME"}, {0}};

typedef struct counter {
    verb what;
    const char *name;
    int64_t n, value;
    dibs_counter_options options;
} counter;

/* A request that was counted before has set nothing now: then what is there is told. */
static dibs_status set(dibs *d, counter *c, dibs_error *err)
{
    dibs_status status = dibs_counter_set(d, c->name, c->n, &c->options, err);

    c->value = c->n;
    if (status != DIBS_ALREADY)
        return status;
    status = dibs_counter_get(d, c->name, &c->value, err);
    return status == DIBS_OK ? DIBS_ALREADY : status;
}

static dibs_status change(dibs *d, counter *c, dibs_error *err)
{
    switch (c->what) {
    case SET:
        return set(d, c, err);
    case ADD:
        return dibs_counter_add(d, c->name, c->n, &c->options, &c->value, err);
    case TAKE:
        return dibs_counter_take(d, c->name, c->n, &c->options, &c->value, err);
    default:
        return dibs_counter_get(d, c->name, &c->value, err);
    }
}

static int act(dibs *d, counter *c, bool json)
{
    dibs_error err = {0};
    json_t *o;
    int code = 0;

    err.status = change(d, c, &err);
    if (err.status != DIBS_OK && err.status != DIBS_ALREADY)
        code = cli_failed(&err);
    if (json && (code == 0 || err.status == DIBS_TOO_FEW || err.status == DIBS_NOT_FOUND)) {
        o = cli_json_new();
        cli_json_text(o, "name", c->name);
        cli_json_put(o, "value",
                     err.status == DIBS_NOT_FOUND ? json_null() : json_integer(c->value));
        cli_json_put(o, "changed", json_boolean(err.status == DIBS_OK && c->what != GET));
        cli_json_put(o, "already", json_boolean(err.status == DIBS_ALREADY));
        cli_json_print(o, 2);
    } else if (code == 0) {
        printf("%" PRId64 "\n", c->value);
    }
    return cli_finish(code);
}

static int take_operands(const cli_command *self, const cli_words *words, counter *c)
{
    int64_t low = c->what == ADD ? INT64_MIN : c->what == TAKE ? 1 : 0;

    c->name = words->word[1];
    c->n = 1;
    if (words->count < 3 || cli_parse_number(words->word[2], low, INT64_MAX, &c->n))
        return -1;
    return cli_misused(self, "%s: invalid number '%s': give a whole number%s", words->word[0],
                       words->word[2],
                       c->what == TAKE  ? " from 1 to 9223372036854775807"
                       : c->what == SET ? " from 0 to 9223372036854775807"
                                        : " of 64 bits");
}

static int start(const cli_command *self, int argc, char **argv)
{
    const unsigned changing = 1U << SET | 1U << ADD | 1U << TAKE;
    counter c = {0};
    const char *url = NULL;
    bool json = false;
    const cli_option options[] = {CLI_URL_OPTIONS(&url),
                                  {"request", CLI_TEXT, &c.options.request, 0, 0, 0},
                                  {"keep", CLI_SPAN, &c.options.keep_ms, 1, CLI_SPAN_MAX, 0},
                                  {"json", CLI_FLAG, &json, 0, 0, 0},
                                  {"-N", CLI_MINUS, NULL, 0, 0, 0},
                                  {0}};
    dibs *d = NULL;
    cli_words words;
    int what, code = cli_parse(self, options, argc, argv, &words);

    if (code >= 0)
        return code;
    what = cli_find_verb(self, verbs,
                         (cli_only[]){{"--request", c.options.request, changing},
                                      {"--keep", c.options.keep_ms != 0, changing},
                                      {0}},
                         &words);
    if (what < 0)
        return CLI_EXIT_USAGE;
    c.what = (verb)what;
    code = take_operands(self, &words, &c);
    if (code < 0 && c.options.keep_ms && !c.options.request)
        code = cli_misused(self, "--keep needs --request");
    if (code < 0)
        code = cli_open(url, NULL, &d);
    if (!d)
        return code;
    code = act(d, &c, json);
    dibs_close(d);
    return code;
}

const cli_command cli_counter = {"counter", "counters that are never below zero", help, start};
