/* Looking at locks: all with a prefix, or one of them. Breaking one. */
#include "serve/serve.h"

#include "cli/json.h"

enum { LIST_MAX = 100000, BREAK_WAIT_MAX = 25000 };

static json_t *write_list(const dibs_outcome *o)
{
    return cli_json_list(o->lock_report);
}

static void list(http_exchange *x)
{
    dibs_lock_list_options options = {.idle = http_flag(x, "idle"),
                                      .after = http_text(x, "after"),
                                      .limit = (size_t)http_integer(x, "limit", 1000)};
    dibs_request r = {
        .op = DIBS_OP_LOCK_LIST, .name = http_text(x, "prefix"), .options.lock_list = &options};

    serve_answer(x, &r, 200, write_list);
}

static json_t *write_lock(const dibs_outcome *o)
{
    return cli_json_lock(dibs_lock_report_at(o->lock_report, 0), true);
}

static void inspect(http_exchange *x)
{
    dibs_request r = {.op = DIBS_OP_LOCK_INSPECT, .name = http_text(x, "name")};

    serve_answer(x, &r, 200, write_lock);
}

static json_t *write_broken(const dibs_outcome *o)
{
    (void)o;
    return json_pack("{s:b}", "done", true);
}

static void break_lock(http_exchange *x)
{
    int64_t wait = http_integer(x, "wait_ms", 0);
    const char *by = http_text(x, "by");
    const dibs_lock_break_options options = {.by = by                  ? by
                                                   : http_client(x)[0] ? http_client(x)
                                                                       : "http",
                                             .now = http_flag(x, "now"),
                                             .wait_ms = wait ? wait : DIBS_NO_WAIT};
    dibs_request r = {
        .op = DIBS_OP_LOCK_BREAK, .name = http_text(x, "name"), .options.lock_break = &options};

    serve_answer(x, &r, 200, write_broken);
}

static const http_field break_fields[] = {
    {"by", HTTP_TEXT, 1, DIBS_OWNER_MAX, "Who breaks it: recorded with the lock.", false},
    {"now", HTTP_BOOLEAN, 0, 0,
     "Do not wait for the holders: only the fence protects the resource.", false},
    {"wait_ms", HTTP_INTEGER, 0, BREAK_WAIT_MAX, "How long to wait for the holders.", false},
    {0},
};
static const http_answer break_answers[] = {{200, "Done"}, {404, "Problem"}, {409, "Problem"}, {0}};
static const http_field list_query[] = {
    {"prefix", HTTP_PREFIX, 0, DIBS_NAME_MAX, "Only names that start with this.", false},
    {"after", HTTP_TEXT, 1, DIBS_NAME_MAX, "Only names that come after this one.", false},
    {"limit", HTTP_INTEGER, 1, LIST_MAX, "At most so many (default 1,000).", false},
    {"idle", HTTP_BOOLEAN, 0, 0, "Also locks that nobody holds or waits for.", false},
    {0},
};
static const http_answer list_answers[] = {{200, "Locks"}, {0}};
static const http_answer inspect_answers[] = {{200, "Lock"}, {404, "Problem"}, {0}};

const http_route serve_inspect_routes[] = {
    {.method = "GET",
     .path = "/v1/locks",
     .verb = HTTP_READ,
     .summary = "List the locks that are held or waited for",
     .query = list_query,
     .answers = list_answers,
     .handle = list},
    {.method = "GET",
     .path = "/v1/locks/{name}",
     .verb = HTTP_READ,
     .summary = "Inspect one lock: its holders and its queue",
     .answers = inspect_answers,
     .handle = inspect},
    {.method = "POST",
     .path = "/v1/locks/{name}/break",
     .verb = HTTP_BREAK,
     .summary = "Take a lock from its holders",
     .body = break_fields,
     .answers = break_answers,
     .handle = break_lock},
    {0},
};
