/* A client's connection; see the header. */
#define _GNU_SOURCE
#include "http/connection.h"

#include "inner.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { LINGER_MS = 2000 };

/* ---- Time ------------------------------------------------------------------------------------ */

static void on_timer(http_timer *timer);

/* The timer is moved only when it would come too late. */
static void expect_within(http_connection *c, int64_t ms)
{
    c->until_ms = ms ? c->server->now_ms + ms : 0;
    if (ms && (!c->timer.place || c->timer.at_ms > c->until_ms))
        http_timer_set(c->server, &c->timer, ms, on_timer);
}

static void expect_more(http_connection *c)
{
    int64_t ms = c->speaker->patience(c);

    expect_within(c, ms > 0 ? ms : 1);
}

static void refuse(http_connection *c, int status, const char *why)
{
    if (c->stage == HTTP_IN_HEAD)
        c->stage = HTTP_IN_ANSWER;
    c->speaker->refuse(c, status, why);
}

/* A head that has begun to come is answered, an idle connection is closed. */
static bool answer_late(http_connection *c)
{
    if (c->stage == HTTP_IN_BODY)
        return c->speaker->late(c);
    if (c->stage != HTTP_IN_HEAD || http_buffer_size(&c->in) == 0 || http_buffer_size(&c->out) > 0)
        return false;
    refuse(c, 408, "the head did not come in time");
    return true;
}

static void on_too_slow(http_connection *c)
{
    if (answer_late(c)) {
        http_connection_go(c);
        return;
    }
    http_link_write(&c->link, &c->out);
    http_connection_close(c, http_buffer_size(&c->out) > 0);
}

static void on_timer(http_timer *timer)
{
    http_connection *c = (http_connection *)((char *)timer - offsetof(http_connection, timer));
    int64_t left = c->until_ms - c->server->now_ms;

    if (c->until_ms == 0)
        return;
    if (left > 0)
        http_timer_set(c->server, timer, left, on_timer);
    else
        on_too_slow(c);
}

/* ---- Coming and going ------------------------------------------------------------------------ */

static void on_ready(http_link *l)
{
    http_connection_go((http_connection *)((char *)l - offsetof(http_connection, link)));
}

static void on_released(http_link *l)
{
    http_connection *c = (http_connection *)((char *)l - offsetof(http_connection, link));

    http_buffer_free(&c->in);
    http_buffer_free(&c->out);
    free(c->body.trailer);
    c->speaker->freed(c);
}

/* Nothing is read yet: the loop speaks of connections in the order in which they were accepted, so that requests that came one
 * after the other on different ones are read in that order. */
void http_connection_open(http_connection *c, http_server *s, const http_speaker *speaker,
                          http_connection **all, int fd, struct ssl_st *tls)
{
    c->server = s;
    c->speaker = speaker;
    c->link.ready = on_ready;
    c->link.released = on_released;
    c->all = all;
    c->next = *all;
    if (c->next)
        c->next->previous = c;
    *all = c;
    c->began_ms = c->server->now_ms;
    expect_more(c);
    if (!http_link_open(&c->link, &s->loop, fd, tls))
        http_connection_close(c, true);
}

void http_connection_close(http_connection *c, bool abort)
{
    if (c->link.fd < 0)
        return;
    http_timer_stop(c->server, &c->timer);
    if (c->previous)
        c->previous->next = c->next;
    else
        *c->all = c->next;
    if (c->next)
        c->next->previous = c->previous;
    http_link_close(&c->link, abort);
    c->speaker->gone(c);
}

/* ---- Buffers --------------------------------------------------------------------------------- */

/* Most connections need their buffers only while they are served: then they have those of the server. */
static void borrow(http_buffer *b, http_buffer *spare)
{
    if (b->data || b->failed)
        return;
    *b = *spare;
    *spare = (http_buffer){0};
}

static void give_back(http_buffer *b, http_buffer *spare)
{
    if (http_buffer_size(b) > 0 || b->failed)
        return;
    if (spare->data || b->room > 4 * (size_t)HTTP_PIECE) {
        http_buffer_free(b);
        return;
    }
    http_buffer_clear(b);
    *spare = *b;
    *b = (http_buffer){0};
}

/* What is left in the large buffer while it waits gets one of its own size. */
static void shrink(http_buffer *b, http_buffer *spare)
{
    http_buffer own = {0};

    if (http_buffer_size(b) == 0 || b->room < 2 * http_buffer_size(b) + 1024)
        return;
    http_buffer_add(&own, http_buffer_start(b), http_buffer_size(b));
    if (own.failed)
        return;
    http_buffer_clear(b);
    give_back(b, spare);
    *b = own;
}

/* ---- Requests -------------------------------------------------------------------------------- */

static bool read_body(http_connection *c)
{
    wire_text part = {0};
    ssize_t taken;

    if (c->body.done) {
        c->stage = HTTP_IN_ANSWER;
        expect_within(c, 0);
        c->speaker->whole(c);
        return true;
    }
    if (http_buffer_size(&c->in) == 0 || !c->speaker->wants(c))
        return false;
    taken = wire_body_take(&c->body, http_buffer_start(&c->in), http_buffer_size(&c->in), &part);
    if (taken < 0) {
        refuse(c, 400, "the chunked body is invalid");
        return false;
    }
    if (part.size > 0)
        c->speaker->part(c, part);
    if (c->link.fd >= 0)
        http_buffer_drop(&c->in, (size_t)taken);
    if (http_connection_has_request(c))
        expect_more(c);
    return taken > 0;
}

/* Between requests empty lines are allowed. */
static void skip_lines(http_connection *c)
{
    while (http_buffer_size(&c->in) >= 2 && memcmp(http_buffer_start(&c->in), "\r\n", 2) == 0) {
        http_buffer_drop(&c->in, 2);
        c->seen = 0;
    }
}

static bool read_head(http_connection *c)
{
    wire_head h;
    const char *why = "";
    ssize_t size;

    skip_lines(c);
    if (http_buffer_size(&c->in) == 0)
        return false;
    size = wire_request(http_buffer_start(&c->in), http_buffer_size(&c->in), &c->seen,
                        c->speaker->head_max(c), &h, &why);
    if (size < 0)
        refuse(c, (int)-size, why);
    if (size <= 0)
        return false;
    c->stage = HTTP_IN_BODY;
    free(c->body.trailer);
    wire_body_begin(&c->body, &h);
    http_buffer_drop(&c->in, (size_t)size);
    c->speaker->head(c, &h);
    if (c->link.fd >= 0 && c->stage == HTTP_IN_BODY && !c->body.done)
        expect_more(c);
    while (c->link.fd >= 0 && c->stage == HTTP_IN_BODY && read_body(c))
        continue;
    return c->link.fd >= 0;
}

void http_connection_answered(http_connection *c, bool close)
{
    c->closing |= close || !c->body.done;
    c->seen = 0;
    c->stage = c->closing ? HTTP_LINGERS : HTTP_IN_HEAD;
    c->began_ms = c->server->now_ms;
    expect_more(c);
    http_connection_go(c);
}

/* ---- Its loop -------------------------------------------------------------------------------- */

/* What still comes is thrown away for a moment: closing at once would take the answer from the client. */
static void linger(http_connection *c)
{
    if (http_buffer_size(&c->out) > 0)
        return;
    if (c->closing) {
        c->closing = false;
        if (c->link.tls) {
            http_connection_close(c, false);
            return;
        }
        shutdown(c->link.fd, SHUT_WR);
        expect_within(c, LINGER_MS);
    }
    http_buffer_drop(&c->in, http_buffer_size(&c->in));
}

static bool begins(const http_connection *c)
{
    return c->stage == HTTP_IN_HEAD && http_connection_has_room(c) && !c->speaker->draining(c);
}

/* One step; true: look again. */
static bool step(http_connection *c)
{
    if (begins(c) && read_head(c))
        return true;
    if (c->link.fd >= 0 && c->stage == HTTP_IN_BODY && read_body(c))
        return true;
    if (c->link.fd >= 0 && c->stage == HTTP_LINGERS)
        linger(c);
    return false;
}

static bool wants_bytes(const http_connection *c)
{
    switch (c->stage) {
    case HTTP_IN_HEAD:
        return http_connection_has_room(c) && http_buffer_size(&c->in) <= c->speaker->head_max(c);
    case HTTP_IN_BODY:
        return c->speaker->wants(c) && http_buffer_size(&c->in) < HTTP_PIECE;
    case HTTP_IN_ANSWER:
        return http_buffer_size(&c->in) == 0; /* to see that it goes away */
    case HTTP_LINGERS:
        return http_buffer_size(&c->out) == 0;
    }
    return false;
}

/* As much as the client takes; its speaker adds what has waited for room. */
static void send_out(http_connection *c)
{
    size_t before, after = 0;

    do {
        c->speaker->room(c);
        before = http_buffer_size(&c->out);
        if (c->link.fd >= 0)
            http_link_write(&c->link, &c->out);
        after = http_buffer_size(&c->out);
    } while (before > 0 && after == 0 && c->link.fd >= 0);
    if (after == 0 && c->stage == HTTP_IN_ANSWER)
        expect_within(c, 0);
    else if (after > 0 && (after < before || c->until_ms == 0))
        expect_more(c);
}

/* Whoever waits for nothing is sent away when the server ends. */
static bool is_over(const http_connection *c)
{
    if (c->link.failed || (c->link.ended && c->stage == HTTP_IN_BODY))
        return true;
    if (c->link.hung_up && c->speaker->must_stay && c->speaker->must_stay(c))
        return true;
    if (http_buffer_size(&c->out) > 0 || http_connection_has_request(c))
        return false;
    return c->link.ended || (c->speaker->draining(c) && c->stage == HTTP_IN_HEAD);
}

/* What came up while it was sending: more to send, or the next request, which was there already. */
static bool has_more(const http_connection *c)
{
    if (c->link.fd < 0 || c->link.failed)
        return false;
    return (http_buffer_size(&c->out) > 0 && c->link.can_write) ||
           (http_buffer_size(&c->out) == 0 && c->stage == HTTP_LINGERS && c->closing) ||
           (begins(c) && http_buffer_size(&c->in) > c->seen);
}

static bool read_more(http_connection *c)
{
    size_t size = http_buffer_size(&c->in);

    if (c->link.fd < 0 || !wants_bytes(c) || !http_link_read(&c->link, &c->in, HTTP_PIECE))
        return false;
    if (c->stage == HTTP_IN_HEAD && size == 0) { /* a head begins */
        c->began_ms = c->server->now_ms;
        expect_more(c);
    }
    return true;
}

/* True: others come first, then there is more. */
static bool go_rounds(http_connection *c)
{
    bool more = true;

    for (int rounds = 0; more && c->link.fd >= 0 && rounds < HTTP_ROUNDS; rounds++) {
        while (c->link.fd >= 0 && step(c))
            continue;
        send_out(c);
        more = read_more(c);
        more |= has_more(c);
    }
    return more;
}

void http_connection_go(http_connection *c)
{
    http_server *s = c->server;
    bool more;

    if (c->busy || c->link.fd < 0)
        return;
    if (c->link.failed) { /* a reset: nobody waits for what was sent before it */
        http_connection_close(c, true);
        return;
    }
    c->busy = true;
    borrow(&c->in, &s->spare_in);
    borrow(&c->out, &s->spare_out);
    more = go_rounds(c);
    give_back(&c->in, &s->spare_in);
    give_back(&c->out, &s->spare_out);
    if (c->stage == HTTP_IN_HEAD || c->stage == HTTP_IN_ANSWER)
        shrink(&c->in, &s->spare_in);
    c->busy = false;
    if (c->link.fd < 0)
        return;
    if (is_over(c))
        http_connection_close(c, c->link.failed);
    else if (more)
        http_link_again(&c->link);
}

void http_connection_wake(http_connection *c)
{
    if (!c->busy)
        http_link_again(&c->link);
}
