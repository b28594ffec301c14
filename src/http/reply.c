/* Answers. Whatever is sent goes through http__reply, which writes it to the connection and wakes that. */
#define _GNU_SOURCE
#include "http/answer.h"
#include "http/json.h"
#include "inner.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The client sees the connection end. */
void http__give_up(http_exchange *x)
{
    x->dead = true;
    x->connection->c.link.failed = true;
    http_connection_wake(&x->connection->c);
}

void http_set_header(http_exchange *x, const char *name, const char *value)
{
    http__header *h = malloc(sizeof *h + strlen(name) + 1);

    if (!h || !(h->value = strdup(value))) {
        free(h);
        return;
    }
    strcpy(h->name, name);
    h->next = x->headers;
    x->headers = h;
}

static void write_header(http_buffer *out, const char *name, const char *value)
{
    http_buffer_text(out, name);
    http_buffer_add(out, ": ", 2);
    http_buffer_text(out, value);
    http_buffer_add(out, "\r\n", 2);
}

/* Nothing that is answered may be kept by somebody on the way, unless it says so. */
static void write_headers(const http_exchange *x, http_buffer *out, const char *type)
{
    bool caching = false;

    for (const http__header *h = x->headers; h; h = h->next) {
        write_header(out, h->name, h->value);
        caching |= strcmp(h->name, "Cache-Control") == 0;
    }
    if (!caching)
        http_buffer_text(out, "Cache-Control: no-store\r\n");
    http_buffer_text(out, "X-Content-Type-Options: nosniff\r\n");
    if (type)
        write_header(out, "Content-Type", type);
    if (x->server->o.cors) {
        write_header(out, "Access-Control-Allow-Origin", x->server->o.cors);
        http_buffer_text(out, "Access-Control-Expose-Headers: ETag, Retry-After\r\n"
                              "Vary: Origin\r\n");
    }
}

/* A request that is not read to its end is the connection's last. */
static void write_framing(http_exchange *x, http_buffer *out, size_t size)
{
    x->close |= !x->connection->c.body.done || x->server->draining || (x->stream && x->minor == 0);
    if (x->close)
        http_buffer_text(out, "Connection: close\r\n");
    else if (x->minor == 0)
        http_buffer_text(out, "Connection: keep-alive\r\n");
    if (x->stream && x->minor > 0)
        http_buffer_text(out, "Transfer-Encoding: chunked\r\n");
    else if (!x->stream && x->status != 204 && x->status != 304) {
        http_buffer_text(out, "Content-Length: ");
        http_buffer_number(out, size);
        http_buffer_add(out, "\r\n", 2);
    }
    http_buffer_add(out, "\r\n", 2);
}

void http__reply(http_exchange *x, int status, const char *type, const void *data, size_t size)
{
    http_buffer *out = &x->connection->c.out;

    if (x->answered)
        return;
    x->answered = true;
    x->status = status;
    if (!x->stream)
        x->gone = NULL;
    http_write_status(out, status);
    write_headers(x, out, type);
    write_framing(x, out, size);
    if (strcmp(x->method, "HEAD") != 0)
        http_buffer_add(out, data, size);
    if (out->failed)
        http__give_up(x);
    http_connection_wake(&x->connection->c);
}

void http_reply_bytes(http_exchange *x, int status, const char *type, const void *data, size_t size)
{
    http__reply(x, status, type, data, size);
}

void http_reply_static(http_exchange *x, int status, const char *type, const void *data,
                       size_t size)
{
    http__reply(x, status, type, data, size);
}

void http_reply_empty(http_exchange *x, int status)
{
    http__reply(x, status, NULL, NULL, 0);
}

static void reply_document(http_exchange *x, int status, const char *type, json_t *body)
{
    size_t size = 0;
    char *text = http_json_text(body, &size);

    json_decref(body);
    if (!text) {
        x->gone = NULL;
        http__give_up(x);
        return;
    }
    text[size] = '\n'; /* in place of the NUL */
    http__reply(x, status, type, text, size + 1);
    free(text);
}

void http_reply_json(http_exchange *x, int status, json_t *body)
{
    reply_document(x, status, "application/json", body);
}

/* ---- Problems -------------------------------------------------------------------------------- */

static void put_text(json_t *to, const char *key, const char *text)
{
    if (text[0] && http__is_utf8(text, strlen(text)))
        json_object_set_new(to, key, json_string(text));
}

static void put_holder(json_t *to, const dibs_error *err)
{
    if (err->fence)
        json_object_set_new(to, "fence", json_integer((json_int_t)err->fence));
    put_text(to, "owner", err->owner);
    put_text(to, "host", err->host);
    if (err->pid)
        json_object_set_new(to, "pid", json_integer(err->pid));
    put_text(to, "engine_code", err->engine_code);
}

/* LATER: when it may help to ask again. */
static void set_retry_after(http_exchange *x, const dibs_error *err)
{
    int64_t ms = err->retry_after_ms;
    char text[24];

    if (err->next != DIBS_NEXT_LATER)
        return;
    snprintf(text, sizeof text, "%lld", (long long)(ms > 0 ? (ms + 999) / 1000 : 1));
    http_set_header(x, "Retry-After", text);
}

json_t *http_problem(const dibs_error *err)
{
    json_t *body = json_object();
    char type[64];

    snprintf(type, sizeof type, "urn:dibs:status:%s", dibs_status_name(err->status));
    json_object_set_new(body, "type", json_string(type));
    json_object_set_new(body, "title", json_string(dibs_status_text(err->status)));
    json_object_set_new(body, "status", json_integer(dibs_status_http(err->status)));
    put_text(body, "detail", err->message);
    json_object_set_new(body, "code", json_string(dibs_status_name(err->status)));
    json_object_set_new(body, "next", json_string(dibs_next_name(err->next)));
    put_holder(body, err);
    if (err->retry_after_ms > 0)
        json_object_set_new(body, "retry_after_ms", json_integer(err->retry_after_ms));
    return body;
}

void http_reply_error_with(http_exchange *x, int http, const dibs_error *err, json_t *more)
{
    json_t *body = http_problem(err);

    json_object_set_new(body, "status", json_integer(http));
    set_retry_after(x, err);
    if (more)
        json_object_update(body, more);
    json_decref(more);
    reply_document(x, http, "application/problem+json", body);
}

void http_reply_error(http_exchange *x, const dibs_error *err)
{
    http_reply_error_with(x, dibs_status_http(err->status), err, NULL);
}

void http_reply_problem(http_exchange *x, int http, dibs_status status, const char *format, ...)
{
    dibs_error err = {.status = status};
    va_list args;

    va_start(args, format);
    vsnprintf(err.message, sizeof err.message, format, args);
    va_end(args);
    http_reply_error_with(
        x, http, &err, status == DIBS_DENIED ? json_pack("{s:s}", "title", "not allowed") : NULL);
}
