/* Answers. Whatever is sent goes through http__reply, which wakes the connection. */
#define _GNU_SOURCE
#include "http/json.h"
#include "inner.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The last resort: what an answer is when there is no memory for it. */
static void give_up(http_exchange *x)
{
    x->dead = true;
    http__resume(x);
}

void http__reply(http_exchange *x, int status, const char *type, struct MHD_Response *response)
{
    x->gone = NULL;
    if (!response) {
        give_up(x);
        return;
    }
    if (x->response)
        MHD_destroy_response(x->response);
    x->response = response;
    x->status = status;
    x->type = type;
    http__resume(x);
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

/* Nothing that is answered may be kept by somebody on the way, unless it says so. */
void http__add_headers(http_exchange *x)
{
    struct MHD_Response *to = x->response;
    bool caching = false;

    for (const http__header *h = x->headers; h; h = h->next) {
        MHD_add_response_header(to, h->name, h->value);
        caching |= strcmp(h->name, "Cache-Control") == 0;
    }
    if (!caching)
        MHD_add_response_header(to, "Cache-Control", "no-store");
    MHD_add_response_header(to, "X-Content-Type-Options", "nosniff");
    if (x->type)
        MHD_add_response_header(to, "Content-Type", x->type);
    if (x->server->o.cors) {
        MHD_add_response_header(to, "Access-Control-Allow-Origin", x->server->o.cors);
        MHD_add_response_header(to, "Access-Control-Expose-Headers", "ETag, Retry-After");
        MHD_add_response_header(to, "Vary", "Origin");
    }
    if (x->server->draining)
        MHD_add_response_header(to, "Connection", "close");
}

void http_reply_bytes(http_exchange *x, int status, const char *type, const void *data, size_t size)
{
    http__reply(
        x, status, type,
        MHD_create_response_from_buffer(size, (void *)(uintptr_t)data, MHD_RESPMEM_MUST_COPY));
}

void http_reply_static(http_exchange *x, int status, const char *type, const void *data,
                       size_t size)
{
    http__reply(
        x, status, type,
        MHD_create_response_from_buffer(size, (void *)(uintptr_t)data, MHD_RESPMEM_PERSISTENT));
}

void http_reply_empty(http_exchange *x, int status)
{
    http__reply(x, status, NULL, MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT));
}

static void reply_document(http_exchange *x, int status, const char *type, json_t *body)
{
    size_t size;
    char *text = http_json_text(body, &size);
    struct MHD_Response *response = NULL;

    json_decref(body);
    if (text) {
        text[size] = '\n'; /* in place of the NUL */
        response = MHD_create_response_from_buffer(size + 1, text, MHD_RESPMEM_MUST_FREE);
        if (!response)
            free(text);
    }
    http__reply(x, status, type, response);
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
