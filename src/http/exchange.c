/* The life of an exchange, as libmicrohttpd sees it.
 *
 * MHD calls on_request with the head, with pieces of the body, and once more when all of it is here. Then the
 * handler runs. If it has answered, the answer is queued; if not, the connection is suspended, and on_request
 * is called again after http__resume. A suspended connection is not read by MHD: after a moment (most answers
 * come sooner) its descriptor is watched for the client's end by the loop. */
#define _GNU_SOURCE
#include "inner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum { LOOK_AFTER_MS = 20 };

static const char *const methods[] = {"GET",    "HEAD",    "POST",  "PUT",
                                      "DELETE", "OPTIONS", "PATCH", NULL};

static const char *known_method(const char *method)
{
    for (size_t i = 0; methods[i]; i++)
        if (strcmp(methods[i], method) == 0)
            return methods[i];
    return "";
}

/* ---- Connections ----------------------------------------------------------------------------- */

/* Bytes that come one by one keep a connection alive for MHD, but not longer than this. */
static void on_too_slow(http_timer *timer)
{
    http__connection *c = (http__connection *)((char *)timer - offsetof(http__connection, timer));

    c->cut = true;
    shutdown(c->fd, SHUT_RDWR);
}

static void await_request(http__connection *c)
{
    http_timer_set(c->server, &c->timer, c->server->o.patience_ms, on_too_slow);
}

static void enlist(http_server *s, http__connection *c)
{
    c->next = s->all;
    if (c->next)
        c->next->previous = c;
    s->all = c;
    s->connections++;
}

static void delist(http_server *s, http__connection *c)
{
    if (c->next)
        c->next->previous = c->previous;
    if (c->previous)
        c->previous->next = c->next;
    else
        s->all = c->next;
    s->connections--;
}

void http__on_connection(void *data, struct MHD_Connection *mhd, void **socket_context,
                         enum MHD_ConnectionNotificationCode code)
{
    const http__listen *listen = data;
    http__connection *c = *socket_context;
    http_server *s;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *socket_context = c = calloc(1, sizeof *c);
        if (!c)
            return; /* its first request is refused */
        c->listen = listen;
        c->server = s = (http_server *)listen->server;
        c->mhd = mhd;
        c->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        enlist(s, c);
        await_request(c);
    } else if (c) {
        http_timer_stop(c->server, &c->timer);
        delist(c->server, c);
        c->server->resumed = true; /* there may be room for one that waits to be accepted */
        free(c);
        *socket_context = NULL;
    }
}

static void unwatch(http__connection *c)
{
    if (c->watched)
        epoll_ctl(c->server->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    c->watched = false;
}

static void watch(http__connection *c)
{
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLHUP | EPOLLERR, .data.ptr = c};

    c->watched = epoll_ctl(c->server->epoll, EPOLL_CTL_ADD, c->fd, &event) == 0;
}

static void on_still_waiting(http_timer *timer)
{
    watch((http__connection *)((char *)timer - offsetof(http__connection, timer)));
}

void http__watch_now(http_exchange *x)
{
    watch(x->connection);
}

void http__watch_suspended(http_exchange *x)
{
    http_timer_set(x->server, &x->connection->timer, LOOK_AFTER_MS, on_still_waiting);
}

static void report_gone(http_exchange *x)
{
    void (*gone)(void *) = x->gone;

    x->gone = NULL;
    x->dead = true;
    if (gone)
        gone(x->gone_data);
}

void http__connection_gone(http__connection *c)
{
    http_exchange *x = c->exchange;

    unwatch(c);
    if (!x)
        return;
    report_gone(x);
    http__resume(x);
}

void http__connections_end(http_server *s)
{
    for (http__connection *c = s->all; c; c = c->next)
        if (c->exchange && c->exchange->suspended)
            http__connection_gone(c);
}

/* ---- Exchanges ------------------------------------------------------------------------------- */

static http_exchange *begin(const http__listen *listen, struct MHD_Connection *mhd,
                            const char *method)
{
    http__connection *c =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    http_exchange *x = c ? calloc(1, sizeof *x) : NULL;

    (void)listen;
    if (!x)
        return NULL;
    x->server = c->server;
    x->connection = c;
    x->method = known_method(method);
    x->began_us = http__now_us();
    c->exchange = x;
    c->server->exchanges++;
    return x;
}

static void drop_input(http_exchange *x)
{
    for (size_t i = 0; i < x->given_count; i++)
        json_decref(x->given[i].value);
    free(x->given);
    x->given = NULL;
    x->given_count = x->given_room = 0;
    http_buffer_free(&x->body);
    x->received = 0;
}

static enum MHD_Result send_answer(http_exchange *x)
{
    enum MHD_Result queued;

    http__add_headers(x);
    queued = MHD_queue_response(x->connection->mhd, (unsigned)x->status, x->response);
    MHD_destroy_response(x->response);
    x->response = NULL;
    x->sent = true;
    return queued;
}

static bool has_body(http_exchange *x)
{
    const char *length = http_header(x, "Content-Length");

    return http_header(x, "Transfer-Encoding") || (length && strcmp(length, "0") != 0);
}

/* The head is here. A request that is refused by its head and has a body is not read to its end: MHD closes
 * the connection behind such an answer. */
static enum MHD_Result on_head(http_exchange *x, const char *url)
{
    x->first_done = true;
    if (http__route_find(x, url))
        http__request_check(x, url);
    return x->response && has_body(x) ? send_answer(x) : MHD_YES;
}

static enum MHD_Result on_upload(http_exchange *x, const char *upload, size_t *size)
{
    size_t most = x->route && x->route->body_max ? x->route->body_max : HTTP_BODY;

    x->received += *size;
    x->too_long |= x->received > most;
    if (!x->too_long)
        http_buffer_add(&x->body, upload, *size);
    *size = 0;
    return x->body.failed || x->received > (x->too_long ? HTTP_DISCARD : most) ? MHD_NO : MHD_YES;
}

static void handle(http_exchange *x)
{
    x->handled = true;
    http_timer_stop(x->server, &x->connection->timer);
    if (x->response)
        return;
    if (x->too_long)
        http_reply_problem(x, 413, DIBS_INVALID, "the body has more than %zu bytes",
                           x->route->body_max ? x->route->body_max : HTTP_BODY);
    else if (http__request_body(x))
        x->route->handle(x);
    if (!x->response && !x->dead && x->server->o.on_handled)
        x->server->o.on_handled(x->server->o.context);
}

static enum MHD_Result on_whole(http_exchange *x)
{
    if (!x->handled) {
        handle(x);
        drop_input(x);
    }
    if (x->dead)
        return MHD_NO;
    if (x->response)
        return send_answer(x);
    x->suspended = true;
    MHD_suspend_connection(x->connection->mhd);
    http__watch_suspended(x);
    return MHD_YES;
}

enum MHD_Result http__on_request(void *listen, struct MHD_Connection *mhd, const char *url,
                                 const char *method, const char *version, const char *upload,
                                 size_t *upload_size, void **exchange)
{
    http_exchange *x = *exchange;

    (void)version;
    if (!x && !(x = *exchange = begin(listen, mhd, method)))
        return MHD_NO;
    if (!x->first_done)
        return on_head(x, url);
    if (x->sent)
        return MHD_YES;
    if (*upload_size > 0)
        return on_upload(x, upload, upload_size);
    return on_whole(x);
}

void http__resume(http_exchange *x)
{
    if (!x->suspended)
        return;
    x->suspended = false;
    http_timer_stop(x->server, &x->connection->timer);
    unwatch(x->connection);
    MHD_resume_connection(x->connection->mhd);
    x->server->resumed = true;
}

static void free_headers(http_exchange *x)
{
    for (http__header *h = x->headers, *next; h; h = next) {
        next = h->next;
        free(h->value);
        free(h);
    }
}

void http__on_completed(void *listen, struct MHD_Connection *mhd, void **exchange,
                        enum MHD_RequestTerminationCode why)
{
    http_exchange *x = *exchange;
    int64_t us;

    (void)listen;
    (void)mhd;
    if (!x)
        return;
    if (x->gone)
        report_gone(x);
    if (!x->sent || x->dead || (why != MHD_REQUEST_TERMINATED_COMPLETED_OK && !x->stream))
        x->status = x->sent && !x->dead ? x->status : 0;
    us = http__now_us() - x->began_us;
    http__log(x, us);
    if (x->server->o.on_ended)
        x->server->o.on_ended(x->server->o.context, x->route, x->method, x->status, us);
    unwatch(x->connection);
    x->connection->exchange = NULL;
    x->server->exchanges--;
    await_request(x->connection);
    if (x->response)
        MHD_destroy_response(x->response);
    http__stream_free(x->stream);
    drop_input(x);
    free_headers(x);
    free(x->allow);
    free(x->own_client);
    http__tokens_free(x->tokens);
    free(x);
    *exchange = NULL;
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
    return MHD_lookup_connection_value(x->connection->mhd, MHD_HEADER_KIND, name);
}

const void *http_bytes(const http_exchange *x, size_t *size)
{
    *size = http_buffer_size(&x->body);
    return http_buffer_start(&x->body);
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
