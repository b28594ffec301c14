/* Tokens and counters. */
#include "serve/serve.h"

enum { SCOPE_MAX = 512, DAYS_MAX = 366 };

#define KEEP_MAX ((int64_t)DAYS_MAX * 24 * 3600 * 1000)

/* ---- Tokens ---------------------------------------------------------------------------------- */

static json_t *write_token(const dibs_outcome *o)
{
    return json_pack("{s:s}", "token", o->token);
}

static json_t *write_redeemed(const dibs_outcome *o)
{
    (void)o;
    return json_pack("{s:b}", "redeemed", true);
}

static void ask_token(http_exchange *x, dibs_op op, int status, serve_write_fn write)
{
    const dibs_token_options options = {.scope = http_text(x, "scope"),
                                        .ttl_ms = http_integer(x, "ttl_ms", 0)};
    dibs_request r = {.op = op, .name = http_text(x, "token"), .options.token = &options};

    serve_answer(x, &r, status, write);
}

static void issue(http_exchange *x)
{
    ask_token(x, DIBS_OP_TOKEN_ISSUE, 201, write_token);
}

static void redeem(http_exchange *x)
{
    ask_token(x, DIBS_OP_TOKEN_REDEEM, 200, write_redeemed);
}

static void reissue(http_exchange *x)
{
    ask_token(x, DIBS_OP_TOKEN_REISSUE, 200, write_token);
}

#define SCOPE                                                               \
    {                                                                       \
        "scope", HTTP_PREFIX, 0, SCOPE_MAX, "What the token is for.", false \
    }
#define TTL                                                                                     \
    {                                                                                           \
        "ttl_ms", HTTP_INTEGER, 1000, KEEP_MAX, "It expires after this (default: 10 minutes).", \
            false                                                                               \
    }
#define TOKEN                                                          \
    {                                                                  \
        "token", HTTP_TEXT, 1, DIBS_TOKEN_SIZE - 1, "The token.", true \
    }

static const http_field issue_fields[] = {SCOPE, TTL, {0}};
static const http_field redeem_fields[] = {TOKEN, SCOPE, {0}};
static const http_field reissue_fields[] = {TOKEN, SCOPE, TTL, {0}};
static const http_answer issued[] = {{201, "Token"}, {0}};
static const http_answer redeemed[] = {{200, "Redeemed"}, {403, "Problem"}, {0}};
static const http_answer reissued[] = {{200, "Token"}, {403, "Problem"}, {0}};

const http_route serve_token_routes[] = {
    {.method = "POST",
     .path = "/v1/tokens",
     .verb = HTTP_LOCK,
     .summary = "Issue a token that can be redeemed once",
     .body = issue_fields,
     .answers = issued,
     .handle = issue},
    {.method = "POST",
     .path = "/v1/tokens/redeem",
     .verb = HTTP_LOCK,
     .summary = "Redeem a token: 200 for exactly one caller",
     .body = redeem_fields,
     .answers = redeemed,
     .handle = redeem},
    {.method = "POST",
     .path = "/v1/tokens/reissue",
     .verb = HTTP_LOCK,
     .summary = "Replace a redeemed token whose work failed",
     .body = reissue_fields,
     .answers = reissued,
     .handle = reissue},
    {0},
};

/* ---- Counters -------------------------------------------------------------------------------- */

static json_t *write_value(const dibs_outcome *o)
{
    return json_pack("{s:I, s:b}", "value", (json_int_t)o->number, "repeated",
                     o->err.status == DIBS_ALREADY);
}

static json_t *write_set(const dibs_outcome *o)
{
    return json_pack("{s:b}", "repeated", o->err.status == DIBS_ALREADY);
}

static void ask_counter(http_exchange *x, dibs_op op, const char *number, int64_t absent,
                        serve_write_fn write)
{
    const dibs_counter_options options = {.request = http_text(x, "request"),
                                          .keep_ms = http_integer(x, "keep_ms", 0)};
    dibs_request r = {.op = op,
                      .name = http_text(x, "name"),
                      .number = number ? http_integer(x, number, absent) : 0};

    if (op != DIBS_OP_COUNTER_GET)
        r.options.counter = &options;
    serve_answer(x, &r, 200, write);
}

static void get(http_exchange *x)
{
    ask_counter(x, DIBS_OP_COUNTER_GET, NULL, 0, write_value);
}

static void set(http_exchange *x)
{
    ask_counter(x, DIBS_OP_COUNTER_SET, "value", 0, write_set);
}

static void add(http_exchange *x)
{
    ask_counter(x, DIBS_OP_COUNTER_ADD, "n", 1, write_value);
}

static void take(http_exchange *x)
{
    ask_counter(x, DIBS_OP_COUNTER_TAKE, "n", 1, write_value);
}

#define REQUEST                                                                               \
    {"request", HTTP_TEXT, 1, 128, "An id for this request: a repeated one is counted once.", \
     false},                                                                                  \
    {                                                                                         \
        "keep_ms", HTTP_INTEGER, 1, KEEP_MAX,                                                 \
            "How long the id is remembered (default: 24 hours).", false                       \
    }

static const http_field set_fields[] = {
    {"value", HTTP_INTEGER, 0, INT64_MAX, "The new value.", true}, REQUEST, {0}};
static const http_field add_fields[] = {
    {"n", HTTP_INTEGER, -INT64_MAX, INT64_MAX, "How many (default 1); may be negative.", false},
    REQUEST,
    {0}};
static const http_field take_fields[] = {
    {"n", HTTP_INTEGER, 1, INT64_MAX, "How many (default 1).", false}, REQUEST, {0}};
static const http_answer got[] = {{200, "Counter"}, {404, "Problem"}, {0}};
static const http_answer was_set[] = {{200, "Repeated"}, {0}};
static const http_answer counted[] = {{200, "Counter"}, {404, "Problem"}, {409, "Problem"}, {0}};

const http_route serve_counter_routes[] = {
    {.method = "GET",
     .path = "/v1/counters/{name}",
     .verb = HTTP_READ,
     .summary = "Read a counter",
     .answers = got,
     .handle = get},
    {.method = "PUT",
     .path = "/v1/counters/{name}",
     .verb = HTTP_LOCK,
     .summary = "Set a counter",
     .body = set_fields,
     .answers = was_set,
     .handle = set},
    {.method = "POST",
     .path = "/v1/counters/{name}/add",
     .verb = HTTP_LOCK,
     .summary = "Add to a counter, which never falls below zero",
     .body = add_fields,
     .answers = counted,
     .handle = add},
    {.method = "POST",
     .path = "/v1/counters/{name}/take",
     .verb = HTTP_LOCK,
     .summary = "Take from a counter if so many are left",
     .body = take_fields,
     .answers = counted,
     .handle = take},
    {0},
};
