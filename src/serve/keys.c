/* Keys of once, for looking at and for operators: list, inspect, forget, resolve. */
#include "serve/serve.h"

#include "cli/json.h"

#include <stdlib.h>
#include <string.h>

enum { CODE_MAX = 255, RESULT_MAX = 2 * 1024 * 1024 + 4096 };

/* 0: there is no such state. */
static dibs_once_state state_named(const char *name)
{
    for (unsigned bit = 1; bit <= DIBS_ONCE_DAMAGED; bit <<= 1)
        if (strcmp(name, dibs_once_state_name((dibs_once_state)bit)) == 0)
            return (dibs_once_state)bit;
    return (dibs_once_state)0;
}

static json_t *write_keys(const dibs_outcome *o)
{
    json_t *list = json_array(), *body = json_object();
    const char *next = dibs_once_report_next(o->once_report);

    for (size_t i = 0; i < dibs_once_report_count(o->once_report); i++)
        json_array_append_new(list, cli_json_key(dibs_once_report_at(o->once_report, i), false));
    json_object_set_new(body, "keys", list);
    cli_json_text(body, "next", next);
    return body;
}

static void list(http_exchange *x)
{
    const char *state = http_text(x, "state");
    dibs_once_list_options options = {.scope = http_text(x, "scope"),
                                      .states = state ? state_named(state) : 0,
                                      .after = http_text(x, "after"),
                                      .limit = (size_t)http_integer(x, "limit", 1000)};
    dibs_request r = {
        .op = DIBS_OP_ONCE_LIST, .name = http_text(x, "prefix"), .options.once_list = &options};

    if (state && !options.states)
        http_reply_problem(x, 400, DIBS_INVALID,
                           "'state' is running, crashed, done, failed, expired, free or damaged");
    else
        serve_answer(x, &r, 200, write_keys);
}

static json_t *write_key(const dibs_outcome *o)
{
    return cli_json_key(dibs_once_report_at(o->once_report, 0), true);
}

static void inspect(http_exchange *x)
{
    const dibs_once_inspect_options options = {.scope = http_text(x, "scope")};
    dibs_request r = {
        .op = DIBS_OP_ONCE_INSPECT, .name = http_text(x, "key"), .options.once_inspect = &options};

    serve_answer(x, &r, 200, write_key);
}

static json_t *write_done(const dibs_outcome *o)
{
    (void)o;
    return json_pack("{s:b}", "done", true);
}

static const char *who(const http_exchange *x)
{
    const char *by = http_text(x, "by");

    return by ? by : http_client(x)[0] ? http_client(x) : "http";
}

static void forget(http_exchange *x)
{
    const dibs_once_forget_options options = {.scope = http_text(x, "scope"),
                                              .version = (uint64_t)http_integer(x, "version", 0),
                                              .running = http_flag(x, "running"),
                                              .by = who(x)};
    dibs_request r = {
        .op = DIBS_OP_ONCE_FORGET, .name = http_text(x, "key"), .options.once_forget = &options};

    serve_answer(x, &r, 200, write_done);
}

static void resolve(http_exchange *x)
{
    const unsigned outcomes =
        DIBS_ONCE_DONE | DIBS_ONCE_FAILED | DIBS_ONCE_FREE | DIBS_ONCE_CRASHED;
    dibs_once_resolve_options options = {.scope = http_text(x, "scope"),
                                         .version = (uint64_t)http_integer(x, "version", 0),
                                         .outcome = state_named(http_text(x, "outcome")),
                                         .code = (int)http_integer(x, "code", 0),
                                         .by = who(x)};
    dibs_request r = {
        .op = DIBS_OP_ONCE_RESOLVE, .name = http_text(x, "key"), .options.once_resolve = &options};
    void *bytes = NULL;

    if (!((unsigned)options.outcome & outcomes))
        http_reply_problem(x, 400, DIBS_INVALID, "'outcome' is done, failed, free or crashed");
    else if (serve_bytes(x, "result", "result_hex", &bytes, &options.size)) {
        options.result = bytes;
        serve_answer(x, &r, 200, write_done);
    }
    free(bytes);
}

#define SCOPE                                                                      \
    {                                                                              \
        "scope", HTTP_TEXT, 0, 512, "Namespace of the key (default: none).", false \
    }
#define BY                                                                    \
    {                                                                         \
        "by", HTTP_TEXT, 1, 128, "Who decides: recorded with the key.", false \
    }
#define VERSION                                                                              \
    {                                                                                        \
        "version", HTTP_INTEGER, 1, INT64_MAX, "Only if the record has this version.", false \
    }

static const http_field list_query[] = {
    {"prefix", HTTP_PREFIX, 0, DIBS_NAME_MAX, "Only keys that begin with this.", false},
    {"scope", HTTP_TEXT, 0, 512, "Only keys of this scope (default: of all).", false},
    {"state", HTTP_TEXT, 1, 16, "Only keys in this state (default: all but free).", false},
    {"after", HTTP_TEXT, 1, 4096, "`next` of the last page.", false},
    {"limit", HTTP_INTEGER, 1, 10000, "At most so many (default 1,000).", false},
    {0},
};
static const http_field inspect_query[] = {SCOPE, {0}};
static const http_field forget_fields[] = {
    SCOPE, VERSION, BY, {"running", HTTP_BOOLEAN, 0, 0, "Also a run in progress.", false}, {0}};
static const http_field resolve_fields[] = {
    SCOPE,
    VERSION,
    BY,
    {"outcome", HTTP_TEXT, 1, 16, "done, failed, free or crashed.", true},
    {"result", HTTP_TEXT, 0, RESULT_MAX, "What duplicates get.", false},
    {"result_hex", HTTP_TEXT, 0, RESULT_MAX, "The same, as bytes in hexadecimal.", false},
    {"code", HTTP_INTEGER, 0, CODE_MAX, "The code that duplicates get.", false},
    {0},
};
static const http_answer listed[] = {{200, "Keys"}, {0}};
static const http_answer inspected[] = {{200, "Key"}, {404, "Problem"}, {0}};
static const http_answer decided[] = {{200, "Done"}, {404, "Problem"}, {409, "Problem"}, {0}};

const http_route serve_key_routes[] = {
    {.method = "GET",
     .path = "/v1/once",
     .verb = HTTP_READ,
     .summary = "List keys of once, a page at a time",
     .query = list_query,
     .answers = listed,
     .handle = list},
    {.method = "GET",
     .path = "/v1/once/{key}",
     .verb = HTTP_READ,
     .summary = "Inspect a key: its state, steps and result",
     .query = inspect_query,
     .answers = inspected,
     .handle = inspect},
    {.method = "POST",
     .path = "/v1/once/{key}/forget",
     .verb = HTTP_ADMIN,
     .summary = "Forget a key: the next begin runs the work again",
     .body = forget_fields,
     .answers = decided,
     .handle = forget},
    {.method = "POST",
     .path = "/v1/once/{key}/resolve",
     .verb = HTTP_ADMIN,
     .summary = "Decide the outcome of a crashed key",
     .body = resolve_fields,
     .answers = decided,
     .handle = resolve,
     .body_max = RESULT_MAX},
    {0},
};
