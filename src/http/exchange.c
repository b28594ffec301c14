/* The life of an exchange, between a connection and the handler of a route.
 *
 * A request is checked when its head is here; the handler runs when all of it is. Its answer is written to the
 * connection's buffer at once, and the exchange ends when that is sent. An exchange without an answer waits, and costs
 * nothing but its memory: what came with the request is freed when the handler has returned. */
#define _GNU_SOURCE
#include "inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const methods[] = {"GET",    "HEAD",    "POST",  "PUT",
                                      "DELETE", "OPTIONS", "PATCH", NULL};

static const char *known_method(wire_text method)
{
    for (size_t i = 0; methods[i]; i++)
        if (strlen(methods[i]) == method.size && memcmp(methods[i], method.at, method.size) == 0)
            return methods[i];
    return "";
}

static http__client_connection *own(const http_connection *c)
{
    return (http__client_connection *)((char *)(uintptr_t)c - offsetof(http__client_connection, c));
}

/* ---- Beginning and end ----------------------------------------------------------------------- */

static http_exchange *begin(http_connection *c)
{
    http_exchange *x = calloc(1, sizeof *x);

    if (!x) {
        http_connection_close(c, true);
        return NULL;
    }
    x->server = c->server;
    x->connection = own(c);
    x->connection->exchange = x;
    x->method = "";
    x->minor = 1;
    x->began_us = http__now_us();
    x->server->exchanges++;
    return x;
}

/* What came with the request. */
static void drop_input(http_exchange *x)
{
    for (size_t i = 0; i < x->given_count; i++)
        json_decref(x->given[i].value);
    free(x->given);
    x->given = NULL;
    x->given_count = x->given_room = 0;
    x->head = NULL;
    x->body = (wire_text){0};
    free(x->own_head);
    x->own_head = NULL;
    http_buffer_free(&x->kept);
}

static void free_headers(http_exchange *x)
{
    for (http__header *h = x->headers, *next; h; h = next) {
        next = h->next;
        free(h->value);
        free(h);
    }
}

static void end(http_exchange *x)
{
    void (*gone)(void *) = x->gone;
    int64_t us = http__now_us() - x->began_us;

    x->gone = NULL;
    if (gone)
        gone(x->gone_data);
    http__log(x, us);
    if (x->server->o.on_ended)
        x->server->o.on_ended(x->server->o.context, x->route, x->method, x->status, us);
    x->connection->exchange = NULL;
    x->server->exchanges--;
    http__stream_free(x->stream);
    drop_input(x);
    free_headers(x);
    free(x->own_client);
    http__tokens_free(x->tokens);
    free(x);
}

/* ---- The request ----------------------------------------------------------------------------- */

static char *ended(wire_text t)
{
    char *text = (char *)(uintptr_t)t.at;

    text[t.size] = '\0';
    return text;
}

/* Behind each text is a byte of the head that nobody needs any more. */
static char *end_texts(http_exchange *x, const wire_head *h)
{
    char *path = ended(h->target), *mark = strchr(path, '?');

    for (size_t i = 0; i < h->count; i++) {
        ended(h->field[i].name);
        ended(h->field[i].value);
    }
    if (mark)
        *mark = '\0';
    x->query = mark ? mark + 1 : path + strlen(path);
    return path;
}

static bool is_whole(const http_connection *c, const wire_head *h)
{
    return c->body.done ||
           (h->framing == WIRE_LENGTH && http_buffer_size(&c->in) >= (size_t)h->length);
}

/* The body is still to come: the head has to outlive the connection's buffer. */
static void await_body(http_exchange *x, const wire_head *h)
{
    http_connection *c = &x->connection->c;

    x->head = x->own_head = wire_fields_copy(h);
    if (!x->own_head)
        http_reply_problem(x, 500, DIBS_NO_MEMORY, "%s", dibs_status_text(DIBS_NO_MEMORY));
    else if (h->expects && http_buffer_size(&c->in) == 0)
        http_buffer_text(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
}

static void on_head(http_connection *c, wire_head *h)
{
    http_exchange *x = begin(c);
    const char *path;

    if (!x)
        return;
    x->method = known_method(h->method);
    x->minor = h->minor;
    x->close = h->close;
    path = end_texts(x, h);
    x->head = h;
    if (http__route_find(x, path) && http__request_check(x, path) && !is_whole(c, h))
        await_body(x, h);
    if (x->answered)
        drop_input(x);
}

static bool wants_body(const http_connection *c)
{
    return !own(c)->exchange->answered;
}

static void on_part(http_connection *c, wire_text part)
{
    http_exchange *x = own(c)->exchange;

    if (c->body.done && c->body.framing == WIRE_LENGTH && http_buffer_size(&x->kept) == 0) {
        x->body = part;
        return;
    }
    http_buffer_add(&x->kept, part.at, part.size);
    x->body = (wire_text){http_buffer_start(&x->kept), http_buffer_size(&x->kept)};
    if (x->kept.failed)
        http_reply_problem(x, 500, DIBS_NO_MEMORY, "%s", dibs_status_text(DIBS_NO_MEMORY));
    else if (x->body.size > http__body_max(x))
        http_reply_problem(x, 413, DIBS_INVALID, "the body has more than %zu bytes",
                           http__body_max(x));
}

/* All of it is here. Most engines have answered when the handler returns. */
static void on_whole(http_connection *c)
{
    http_exchange *x = own(c)->exchange;

    if (!x->answered && http__request_body(x))
        x->route->handle(x);
    if (!x->answered && !x->dead && x->server->o.on_handled)
        x->server->o.on_handled(x->server->o.context);
    drop_input(x);
    if (x->dead)
        http_connection_close(c, true);
}

static void refuse(http_connection *c, int status, const char *why)
{
    http_exchange *x = own(c)->exchange ? own(c)->exchange : begin(c);

    if (!x)
        return;
    x->close = true;
    http_reply_problem(x, status, DIBS_INVALID, "%s", why);
}

static bool on_late(http_connection *c)
{
    if (own(c)->exchange->answered)
        return false;
    refuse(c, 408, "the request did not come in time");
    return true;
}

/* ---- The answer ------------------------------------------------------------------------------ */

static void on_room(http_connection *c)
{
    http_exchange *x = own(c)->exchange;
    bool close;

    if (!x || !x->answered || (x->stream && !http__stream_pump(x)) || http_buffer_size(&c->out) > 0)
        return;
    close = x->close;
    end(x);
    http_connection_answered(c, close);
}

/* An answer that was not sent whole has its status; a stream, or no answer, has none. */
static void on_gone(http_connection *c)
{
    http__client_connection *o = own(c);
    http_server *s = c->server;

    if (o->exchange) {
        if (!o->exchange->answered || o->exchange->stream)
            o->exchange->status = 0;
        o->exchange->dead = true;
        end(o->exchange);
    }
    s->connections--;
    for (size_t i = 0; i < s->listen_count; i++)
        http_listener_pause(&s->listeners[i], false);
}

static void on_freed(http_connection *c)
{
    free(own(c));
}

static bool must_stay(const http_connection *c)
{
    const http_exchange *x = own(c)->exchange;

    return c->stage == HTTP_IN_ANSWER && x && (!x->answered || (x->stream && x->gone));
}

/* ---- Its connection -------------------------------------------------------------------------- */

static size_t head_max(const http_connection *c)
{
    return c->server->o.header_max;
}

/* A whole request has so much time, however it comes. */
static int64_t patience(const http_connection *c)
{
    int64_t ms = c->server->o.patience_ms;

    return http_buffer_size(&c->out) > 0 ? ms : ms - (c->server->now_ms - c->began_ms);
}

/* Requests on connections that are open are answered 503. */
static bool is_draining(const http_connection *c)
{
    (void)c;
    return false;
}

static const http_speaker speaker = {.head_max = head_max,
                                     .patience = patience,
                                     .head = on_head,
                                     .wants = wants_body,
                                     .part = on_part,
                                     .whole = on_whole,
                                     .refuse = refuse,
                                     .late = on_late,
                                     .room = on_room,
                                     .gone = on_gone,
                                     .freed = on_freed,
                                     .draining = is_draining,
                                     .must_stay = must_stay};

/* At the limit the next one waits in the kernel's queue. */
void http__accept(http_listener *l, int fd, const struct sockaddr *from, socklen_t size)
{
    http_server *s = l->server;
    bool secure = s->tls && !l->socket.unix_socket;
    http__client_connection *o = calloc(1, sizeof *o);
    struct ssl_st *session = o && secure ? http_tls_session(s->tls, fd, NULL) : NULL;

    (void)from;
    (void)size;
    if (!o || (secure && !session)) {
        free(o);
        close(fd);
        return;
    }
    o->listener = l;
    s->connections++;
    for (size_t i = 0; i < s->listen_count && s->connections >= s->o.connections; i++)
        http_listener_pause(&s->listeners[i], true);
    http_connection_open(&o->c, s, &speaker, &s->all, fd, session);
}

/* ---- What handlers ask ----------------------------------------------------------------------- */

const char *http_text(const http_exchange *x, const char *name)
{
    return json_string_value(http__given_value(x, name));
}

int64_t http_integer(const http_exchange *x, const char *name, int64_t absent)
{
    const json_t *value = http__given_value(x, name);

    return json_is_integer(value) ? json_integer_value(value) : absent;
}

bool http_flag(const http_exchange *x, const char *name)
{
    return json_is_true(http__given_value(x, name));
}

const json_t *http_list(const http_exchange *x, const char *name)
{
    const json_t *value = http__given_value(x, name);

    return json_is_array(value) ? value : NULL;
}

bool http_given(const http_exchange *x, const char *name)
{
    return http__given_value(x, name) != NULL;
}

const char *http_header(const http_exchange *x, const char *name)
{
    const wire_field *f = x->head ? wire_find(x->head, name, 0) : NULL;

    return f ? f->value.at : NULL;
}

const void *http_bytes(const http_exchange *x, size_t *size)
{
    *size = x->body.size;
    return x->body.at;
}

const http_route *http_route_of(const http_exchange *x)
{
    return x->route;
}

void *http_context(const http_exchange *x)
{
    return x->server->o.context;
}

http_server *http_server_of(const http_exchange *x)
{
    return x->server;
}

void http_on_gone(http_exchange *x, void (*gone)(void *data), void *data)
{
    x->gone = gone;
    x->gone_data = data;
}
