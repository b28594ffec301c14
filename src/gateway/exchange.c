/* A request from its head to the end of its answer. What is not guarded goes through: the head is written anew, and
 * bodies are passed on as they come, with a window of 64 KiB in each direction. */
#define _GNU_SOURCE
#include "gateway/gate.h"

#include "http/answer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

int64_t gate_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* ---- Problems -------------------------------------------------------------------------------- */

static dibs_next next_of(dibs_status status)
{
#define NEXT(value, name, text, next, http, code) \
    case DIBS_##name:                             \
        return DIBS_NEXT_##next;
    switch (status) {
        DIBS_STATUSES(NEXT)
    }
#undef NEXT
    return DIBS_NEXT_NONE;
}

static void write_problem(gate_exchange *x, http_buffer *out, int http, dibs_status status,
                          int retry_s, const char *headers, const char *detail)
{
    dibs_error err = {.status = status, .retry_after_ms = retry_s * 1000, .next = next_of(status)};
    json_t *body;
    char *text;

    snprintf(err.message, sizeof err.message, "%s", detail);
    body = http_problem(&err);
    if (body)
        json_object_set_new(body, "status", json_integer(http));
    text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    x->status = http;
    http_write_status(out, http);
    http_buffer_text(out, "Content-Type: application/problem+json\r\nCache-Control: no-store\r\n");
    if (retry_s > 0)
        http_buffer_format(out, "Retry-After: %d\r\n", retry_s);
    http_buffer_text(out, headers);
    if (x->close)
        http_buffer_text(out, "Connection: close\r\n");
    http_buffer_format(out, "Content-Length: %zu\r\n\r\n", text ? strlen(text) + 1 : 0);
    if (text && !x->head) {
        http_buffer_text(out, text);
        http_buffer_text(out, "\n");
    }
    free(text);
}

void gate_problem(gate_exchange *x, http_buffer *out, int http, dibs_status status, int retry_s,
                  const char *headers, const char *format, ...)
{
    char detail[1000];
    va_list args;

    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    write_problem(x, out, http, status, retry_s, headers, detail);
}

void gate_refuse(gate_exchange *x, int http, dibs_status status, const char *format, ...)
{
    char detail[1000];
    va_list args;

    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    if (x->client && !x->answered) {
        x->close |= !x->client->c.body.done;
        write_problem(x, &x->client->c.out, http, status, 0, "", detail);
    }
    if (x->result == GATE_PASSED)
        x->result = http < 500 ? GATE_REFUSED : GATE_FAILED;
    gate_exchange_finish(x, x->answered);
}

int gate_failure_status(gate_failure why)
{
    return why == GATE_SILENT ? 504 : why == GATE_CROWDED ? 503 : 502;
}

const char *gate_failure_text(gate_failure why)
{
    static const char *const texts[] = {
        [GATE_UNREACHED] = "the application cannot be reached; the request was not sent",
        [GATE_CLOSED] = "the application closed the connection before its answer was complete",
        [GATE_SILENT] = "the application did not answer in time",
        [GATE_GARBLED] = "the application's answer is not valid HTTP",
        [GATE_CROWDED] = "too many requests wait for the application; the request was not sent"};

    return texts[why];
}

/* ---- Writing messages ------------------------------------------------------------------------ */

void gate_write_fields(http_buffer *out, const wire_head *h)
{
    for (size_t i = 0; i < h->count; i++) {
        const wire_field *f = &h->field[i];
        if (f->hop)
            continue;
        http_buffer_add(out, f->name.at, f->name.size);
        http_buffer_add(out, ": ", 2);
        http_buffer_add(out, f->value.at, f->value.size);
        http_buffer_add(out, "\r\n", 2);
    }
}

void gate_write_chunk(http_buffer *out, wire_text part)
{
    char size[24];

    http_buffer_add(out, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", part.size));
    http_buffer_add(out, part.at, part.size);
    http_buffer_add(out, "\r\n", 2);
}

void gate_write_trailers(http_buffer *out, const wire_body *body)
{
    wire_head trailers;

    http_buffer_text(out, "0\r\n");
    if (wire_trailers(body, &trailers))
        gate_write_fields(out, &trailers);
    http_buffer_text(out, "\r\n");
}

/* Chunks are for HTTP/1.1; an old client sees the end of such an answer by the end of the connection. */
static wire_framing client_framing(gate_exchange *x, const wire_head *h)
{
    if (h->framing == WIRE_EMPTY || h->framing == WIRE_LENGTH)
        return h->framing;
    x->close |= x->minor == 0;
    return x->minor == 0 ? WIRE_CLOSE : WIRE_CHUNKED;
}

void gate_write_head(gate_exchange *x, http_buffer *out, const wire_head *h)
{
    http_buffer_format(out, "HTTP/1.1 %d ", h->status);
    http_buffer_add(out, h->reason.at, h->reason.size);
    http_buffer_text(out, "\r\n");
    gate_write_fields(out, h);
    if (h->status >= 200) {
        x->answer_framing = client_framing(x, h);
        if (x->answer_framing == WIRE_CHUNKED)
            http_buffer_text(out, "Transfer-Encoding: chunked\r\n");
        if (x->close)
            http_buffer_text(out, "Connection: close\r\n");
        else if (x->minor == 0)
            http_buffer_text(out, "Connection: keep-alive\r\n");
    }
    http_buffer_text(out, "\r\n");
}

void gate_write_part(gate_exchange *x, http_buffer *out, wire_text part)
{
    if (x->answer_framing == WIRE_CHUNKED)
        gate_write_chunk(out, part);
    else
        http_buffer_add(out, part.at, part.size);
}

void gate_write_end(gate_exchange *x, http_buffer *out, const wire_body *body)
{
    if (x->answer_framing == WIRE_CHUNKED)
        gate_write_trailers(out, body);
}

/* ---- The request, written anew --------------------------------------------------------------- */

static void write_all(http_buffer *out, const wire_head *h, const char *name, const char *end)
{
    const wire_field *f;

    for (size_t i = 0; (f = wire_find(h, name, i)); i++) {
        http_buffer_add(out, f->value.at, f->value.size);
        http_buffer_text(out, end);
    }
}

/* What a client says of itself counts only if it is a proxy that we trust. */
static void write_forwarded(gate_exchange *x, const wire_head *h)
{
    const gate_client *c = x->client;
    bool trusted = gate_config_trusts(x->config, &c->address);
    const wire_field *proto = trusted ? wire_find(h, "X-Forwarded-Proto", 0) : NULL,
                     *host = trusted ? wire_find(h, "X-Forwarded-Host", 0) : NULL;
    http_buffer *out = &x->request;

    http_buffer_text(out, "X-Forwarded-For: ");
    if (trusted)
        write_all(out, h, "X-Forwarded-For", ", ");
    http_buffer_format(out, "%s\r\nX-Forwarded-Proto: ", c->address_text);
    if (proto)
        http_buffer_add(out, proto->value.at, proto->value.size);
    else
        http_buffer_text(out, c->c.link.tls ? "https" : "http");
    http_buffer_text(out, "\r\nX-Forwarded-Host: ");
    http_buffer_add(out, host ? host->value.at : h->host.at,
                    host ? host->value.size : h->host.size);
    http_buffer_format(out, "\r\nVia: 1.%d dibs\r\n", h->minor);
}

/* What the gateway says itself; and names that an application may take for those that the gateway reads. */
static bool is_ours(const gate_exchange *x, wire_text name)
{
    static const char *const ours[] = {"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host",
                                       "Dibs-Attempt", NULL};
    static const char *const read[] = {"Idempotency-Key", "Dibs-Token",        "Dibs-Fence",
                                       "Content-Length",  "Transfer-Encoding", NULL};

    for (size_t i = 0; ours[i]; i++)
        if (wire_is_alike(name, ours[i]))
            return true;
    for (size_t i = 0; read[i]; i++)
        if (wire_is_alike(name, read[i]) && !wire_is(name, read[i]))
            return true;
    return wire_is(name, "Forwarded") && !gate_config_trusts(x->config, &x->client->address);
}

/* Without the framing and the empty line, which gate_exchange_forward adds. */
static void write_request(gate_exchange *x, wire_head *h, const char *path, wire_text query)
{
    http_buffer *out = &x->request;

    for (size_t i = 0; i < h->count; i++) {
        wire_field *f = &h->field[i];
        f->hop |= is_ours(x, f->name) ||
                  (x->guard && (wire_is(f->name, "Expect") || wire_is(f->name, "Content-Length")));
    }
    http_buffer_add(out, h->method.at, h->method.size);
    http_buffer_text(out, " ");
    http_buffer_text(out, path);
    http_buffer_add(out, query.at, query.size);
    http_buffer_text(out, " HTTP/1.1\r\n");
    gate_write_fields(out, h);
    write_forwarded(x, h);
}

void gate_exchange_forward(gate_exchange *x)
{
    if (x->framing == WIRE_CHUNKED)
        http_buffer_text(&x->request, "Transfer-Encoding: chunked\r\n");
    http_buffer_text(&x->request, "\r\n");
    gate_upstream_ask(x);
}

/* ---- Beginning ------------------------------------------------------------------------------- */

/* Without regard to case: some applications take post for POST. */
static gate_method method_of(wire_text m)
{
    static const char *const names[] = {"POST", "PUT", "PATCH", "DELETE"};

    for (size_t i = 0; i < 4; i++)
        if (wire_is(m, names[i]))
            return (gate_method)(1 << i);
    return (gate_method)0;
}

static bool is_safe(wire_text m)
{
    return (m.size == 3 && memcmp(m.at, "GET", 3) == 0) ||
           (m.size == 4 && memcmp(m.at, "HEAD", 4) == 0) ||
           (m.size == 7 && memcmp(m.at, "OPTIONS", 7) == 0);
}

static gate_exchange *new_exchange(gate_client *c, const wire_head *h)
{
    gate_exchange *x = calloc(1, sizeof *x);

    if (!x)
        return NULL;
    x->g = c->g;
    x->client = c;
    x->config = gate_config_share(c->g->config);
    snprintf(x->method, sizeof x->method, "%.*s", (int)(h->method.size < 15 ? h->method.size : 15),
             h->method.at);
    x->head = strcmp(x->method, "HEAD") == 0;
    x->repeatable = is_safe(h->method) && h->framing == WIRE_EMPTY;
    x->minor = h->minor;
    x->close = h->close;
    x->framing = h->framing;
    x->began_us = gate_now_us();
    x->g->exchanges++;
    c->x = x;
    return x;
}

/* Splits and normalises the target; false: it was refused. */
static bool read_path(gate_exchange *x, const wire_head *h, char *path, wire_text *query)
{
    const char *mark = memchr(h->target.at, '?', h->target.size);
    size_t size = mark ? (size_t)(mark - h->target.at) : h->target.size;

    *query = (wire_text){mark ? mark : "", h->target.size - size};
    if (gate_path_normal(h->target.at, size, path))
        return true;
    gate_refuse(
        x, 400, DIBS_INVALID,
        "the path has an invalid escape, a control character, a backslash, or a dot segment "
        "with parameters");
    return false;
}

static void begin(gate_exchange *x, wire_head *h, char *path, char *plain)
{
    wire_text query;

    if (!h->host.at) { /* of HTTP/1.0; the application is asked in HTTP/1.1 */
        gate_refuse(x, 400, DIBS_INVALID, "a request has one Host");
        return;
    }
    if (!read_path(x, h, path, &query))
        return;
    strcpy(plain, path);
    gate_path_plain(plain);
    if (strncmp(plain, "/.dibs/", 7) == 0) {
        if (strcmp(plain, "/.dibs/token") == 0 && strcmp(x->method, "POST") == 0)
            gate_token_issue(x, h, query);
        else
            gate_refuse(x, 404, DIBS_NOT_FOUND, "the gateway has only POST /.dibs/token here");
        return;
    }
    x->route = gate_config_find(x->config, method_of(h->method), plain);
    if (x->route && !gate_guard_begin(x, h, path, plain, query))
        return;
    write_request(x, h, path, query);
    if (!x->guard)
        gate_exchange_forward(x);
}

void gate_exchange_begin(gate_client *c, wire_head *h)
{
    gate_exchange *x = new_exchange(c, h);
    size_t size = h->target.size + 2;
    char *path = x ? malloc(2 * size) : NULL;

    if (path)
        begin(x, h, path, path + size);
    else if (x)
        gate_refuse(x, 503, DIBS_NO_MEMORY, "out of memory");
    else
        http_connection_close(&c->c, true);
    free(path);
}

/* ---- The body -------------------------------------------------------------------------------- */

bool gate_exchange_wants_body(const gate_exchange *x)
{
    return x->guard || (x->up && http_buffer_size(&x->up->out) < HTTP_WINDOW);
}

void gate_exchange_body(gate_exchange *x, wire_text part)
{
    gate_upstream *u = x->up;

    if (x->guard) {
        gate_guard_body(x, part);
        return;
    }
    if (x->framing == WIRE_CHUNKED)
        gate_write_chunk(&u->out, part);
    else
        http_buffer_add(&u->out, part.at, part.size);
    gate_upstream_go(u);
}

void gate_exchange_complete(gate_exchange *x)
{
    x->complete = true;
    if (x->guard) {
        gate_guard_complete(x);
    } else if (x->framing == WIRE_CHUNKED && x->up) {
        gate_write_trailers(&x->up->out, &x->client->c.body);
        gate_upstream_go(x->up);
    }
}

/* ---- The answer ------------------------------------------------------------------------------ */

bool gate_exchange_has_room(const gate_exchange *x)
{
    return !x->client || http_connection_has_room(&x->client->c);
}

void gate_exchange_head(gate_exchange *x, const wire_head *h)
{
    if (h->status < 200) {
        if (x->client && x->minor > 0 && !(x->guard && h->status == 100))
            gate_write_head(x, &x->client->c.out, h);
        return;
    }
    x->status = h->status;
    if (x->guard) {
        gate_guard_head(x, h);
        return;
    }
    x->answered = true;
    x->close |= !x->complete; /* the rest of the request would be taken for the next one */
    gate_write_head(x, &x->client->c.out, h);
}

void gate_exchange_part(gate_exchange *x, wire_text part)
{
    if (x->guard)
        gate_guard_part(x, part);
    else
        gate_write_part(x, &x->client->c.out, part);
}

void gate_exchange_end(gate_exchange *x, const wire_body *body)
{
    x->upstream_us += gate_now_us() - x->asked_us;
    if (x->guard) {
        gate_guard_end(x, body);
        return;
    }
    gate_write_end(x, &x->client->c.out, body);
    gate_exchange_finish(x, false);
}

void gate_exchange_failed(gate_exchange *x, gate_failure why)
{
    x->upstream_us += gate_now_us() - x->asked_us;
    if (x->guard)
        gate_guard_failed(x, why);
    else
        gate_refuse(x, gate_failure_status(why), DIBS_UNAVAILABLE, "%s", gate_failure_text(why));
}

/* ---- Its end --------------------------------------------------------------------------------- */

void gate_exchange_gone(gate_exchange *x)
{
    x->client = NULL;
    if (x->guard)
        gate_guard_gone(x);
    else
        gate_exchange_finish(x, true);
}

void gate_exchange_finish(gate_exchange *x, bool broken)
{
    gate_client *c = x->client;

    gate_upstream_cancel(x);
    gate_watch_end(x);
    x->client = NULL;
    x->g->exchanges--;
    if (c && broken) {
        c->x = NULL;
        http_connection_close(&c->c, true);
    } else if (c) {
        gate_client_answered(c); /* still reads x->close */
    }
    gate_guard_free(x);
    http_buffer_free(&x->request);
    gate_config_drop(x->config);
    free(x);
}
