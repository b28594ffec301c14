/* Cells: bytes with a version, which is their ETag. A write has a condition; what fails it is 412. */
#include "serve/serve.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEEP_MAX ((int64_t)366 * 24 * 3600 * 1000)

typedef struct call {
    http_exchange *x; /* NULL: the client has gone */
    serve *s;
    uint64_t unless; /* a GET answers 304 if the cell has this version */
} call;

static void on_gone(void *data)
{
    ((call *)data)->x = NULL;
}

static void set_etag(http_exchange *x, uint64_t version)
{
    char text[32];

    snprintf(text, sizeof text, "\"%" PRIu64 "\"", version);
    http_set_header(x, "ETag", text);
}

/* ---- Conditions ------------------------------------------------------------------------------ */

/* "17" with its quotes; weak tags are none of ours. What is too large for a version is read as the largest
 * number, which stands for every version. */
static bool read_etag(const char *text, uint64_t *out)
{
    char *end;

    if (text[0] != '"' || text[1] < '0' || text[1] > '9' || strlen(text) > 22)
        return false;
    *out = strtoull(text + 1, &end, 10);
    return strcmp(end, "\"") == 0 && *out != DIBS_ANY_VERSION;
}

static bool refuse(http_exchange *x, int status, const char *what)
{
    http_reply_problem(x, status, DIBS_INVALID, "%s", what);
    return false;
}

static bool read_condition(http_exchange *x, uint64_t *version)
{
    const char *match = http_header(x, "If-Match"), *none = http_header(x, "If-None-Match");

    if (!match == !none)
        return refuse(x, match ? 400 : 428,
                      "give one condition: If-Match with the ETag that was read, If-Match: * or "
                      "If-None-Match: *");
    *version = match ? DIBS_ANY_VERSION : 0;
    if (strcmp(match ? match : none, "*") == 0)
        return true;
    if (none || !read_etag(match, version) || *version == 0)
        return refuse(x, 400,
                      "If-Match takes an ETag that was returned, or *; If-None-Match takes *");
    return true;
}

/* Fences have 63 bits. */
static bool read_number(const char **at, uint64_t *out)
{
    size_t digits = strspn(*at, "0123456789");

    *out = strtoull(*at, NULL, 10);
    *at += digits;
    return digits > 0 && digits < 20 && *out > 0 && *out <= INT64_MAX;
}

/* FENCE or FENCE/FLOOR, as dibs_fence_text writes it. */
static bool read_fence(http_exchange *x, dibs_cell_options *o, bool required)
{
    const char *at = http_header(x, "Dibs-Fence");

    if (!at)
        return !required || refuse(x, 428, "give the fence of your grant in Dibs-Fence");
    if (!read_number(&at, &o->fence) ||
        (*at == '/' && (at++, !read_number(&at, &o->floor) || o->floor > o->fence)) || *at)
        return refuse(x, 400, "Dibs-Fence is the fence_text of a grant: FENCE or FENCE/FLOOR");
    return true;
}

/* ---- Answers --------------------------------------------------------------------------------- */

static void answer_bytes(http_exchange *x, const dibs_value *v, uint64_t unless)
{
    char left[24];

    set_etag(x, v->version);
    if (v->left_ms != DIBS_FOREVER) {
        snprintf(left, sizeof left, "%" PRId64, v->left_ms);
        http_set_header(x, "Dibs-Expires-Ms", left);
    }
    if (unless && v->version == unless)
        http_reply_empty(x, 304);
    else
        http_reply_bytes(x, 200, "application/octet-stream", v->data ? v->data : "", v->size);
}

/* What does not exist cannot match: for HTTP that is a condition that failed, too. */
static bool failed_condition(const dibs_outcome *o)
{
    return o->err.status == DIBS_CONFLICT ||
           (o->err.status == DIBS_NOT_FOUND && o->op != DIBS_OP_CELL_READ);
}

static void answer(call *c, const dibs_outcome *o)
{
    bool reads = o->op == DIBS_OP_CELL_READ || o->op == DIBS_OP_CELL_PASS;

    if (failed_condition(o)) {
        if (o->value.version > 0)
            set_etag(c->x, o->value.version);
        http_reply_error_with(c->x, 412, &o->err, NULL);
    } else if (o->err.status != DIBS_OK) {
        http_reply_error(c->x, &o->err);
    } else if (reads && o->value.version > 0) {
        answer_bytes(c->x, &o->value, c->unless);
    } else {
        if (o->value.version > 0)
            set_etag(c->x, o->value.version);
        http_reply_empty(c->x, 204);
    }
}

static void on_outcome(void *data, dibs_outcome *o)
{
    call *c = data;

    if (c->x)
        answer(c, o);
    serve_drop(c->s, o);
    free(c);
}

static void ask(http_exchange *x, dibs_request *r, uint64_t unless)
{
    call *c = malloc(sizeof *c);
    dibs_error err = {.status = DIBS_NO_MEMORY};

    if (c) {
        *c = (call){.x = x, .s = http_context(x), .unless = unless};
        http_on_gone(x, on_gone, c);
        if (serve_ask(c->s, r, on_outcome, c, NULL, &err) == DIBS_OK)
            return;
    }
    free(c);
    http_reply_error(x, &err);
}

/* ---- Requests -------------------------------------------------------------------------------- */

static void get(http_exchange *x)
{
    dibs_request r = {.op = DIBS_OP_CELL_READ, .name = http_text(x, "name")};
    const char *none = http_header(x, "If-None-Match");
    uint64_t unless = 0;

    if (none && !read_etag(none, &unless)) {
        refuse(x, 400, "If-None-Match takes an ETag that was returned");
        return;
    }
    ask(x, &r, unless);
}

static void put(http_exchange *x)
{
    dibs_cell_options options = {.keep_ms = http_integer(x, "keep_ms", 0)};
    dibs_request r = {
        .op = DIBS_OP_CELL_SWAP, .name = http_text(x, "name"), .options.cell = &options};

    r.data = http_bytes(x, &r.size);
    if (read_condition(x, &r.version) && read_fence(x, &options, false))
        ask(x, &r, 0);
}

static void delete (http_exchange *x)
{
    dibs_cell_options options = {0};
    dibs_request r = {
        .op = DIBS_OP_CELL_DELETE, .name = http_text(x, "name"), .options.cell = &options};

    if (read_condition(x, &r.version) && read_fence(x, &options, false))
        ask(x, &r, 0);
}

static void pass(http_exchange *x)
{
    dibs_cell_options options = {0};
    dibs_request r = {
        .op = DIBS_OP_CELL_PASS, .name = http_text(x, "name"), .options.cell = &options};

    if (read_fence(x, &options, true))
        ask(x, &r, 0);
}

static const http_field put_query[] = {
    {"keep_ms", HTTP_INTEGER, 1, KEEP_MAX, "The cell expires after this (default: never).", false},
    {0},
};
static const http_answer got[] = {{200, "*"}, {304, NULL}, {404, "Problem"}, {0}};
static const http_answer written[] = {{204, NULL}, {412, "Problem"}, {428, "Problem"}, {0}};
static const http_answer passed[] = {
    {200, "*"}, {204, NULL}, {412, "Problem"}, {428, "Problem"}, {0}};

const http_route serve_cell_routes[] = {
    {.method = "GET",
     .path = "/v1/cells/{name}",
     .verb = HTTP_READ,
     .summary = "Read a cell",
     .answers = got,
     .handle = get},
    {.method = "PUT",
     .path = "/v1/cells/{name}",
     .verb = HTTP_LOCK,
     .summary = "Write a cell if its version is unchanged",
     .query = put_query,
     .answers = written,
     .handle = put,
     .body_max = DIBS_VALUE_MAX,
     .raw = true},
    {.method = "DELETE",
     .path = "/v1/cells/{name}",
     .verb = HTTP_LOCK,
     .summary = "Delete a cell if its version is unchanged",
     .answers = written,
     .handle = delete},
    {.method = "POST",
     .path = "/v1/cells/{name}/pass",
     .verb = HTTP_LOCK,
     .summary = "Present a fence before the first read",
     .answers = passed,
     .handle = pass},
    {0},
};
