/* A client's connection. One request is answered at a time; what comes behind it waits in the buffer, and then in
 * the kernel's. Whoever is slow (with a head, a piece of a body, or reading an answer) is cut off. */
#define _GNU_SOURCE
#include "gateway/gate.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LINGER_MS = 2000, ACCEPTS = 64, STARVED_MS = 200 };

/* ---- Time ------------------------------------------------------------------------------------ */

static void on_timer(http_timer *timer)
{
    gate_client *c = (gate_client *)((char *)timer - offsetof(gate_client, timer));
    int64_t left = c->until_ms - http_now_ms();

    if (c->until_ms == 0)
        return;
    if (left > 0) {
        http_timer_set(c->g->http, timer, left, on_timer);
        return;
    }
    if (c->stage == GATE_BODY && c->x && c->x->guard) {
        gate_refuse(c->x, 408, DIBS_INVALID, "the body did not come in time");
        return;
    }
    /* A head that has begun to come is answered, an idle connection is closed. */
    if (c->stage == GATE_HEAD && http_buffer_size(&c->in) > 0 && http_buffer_size(&c->out) == 0)
        http_buffer_text(
            &c->out,
            "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    gate_link_write(&c->link, &c->out);
    gate_client_close(c, http_buffer_size(&c->out) > 0);
}

/* The timer is moved only when it would come too late. */
static void expect_within(gate_client *c, int64_t ms)
{
    c->until_ms = ms ? http_now_ms() + ms : 0;
    if (ms && (!c->timer.place || c->timer.at_ms > c->until_ms))
        http_timer_set(c->g->http, &c->timer, ms, on_timer);
}

static int64_t slow_ms(const gate_client *c)
{
    return c->g->config->limits.slow_ms;
}

/* The next piece of a body. What is collected has to be whole one day, too. */
static void expect_piece(gate_client *c)
{
    int64_t left = c->whole_ms - http_now_ms();

    if (c->x && c->x->guard && left < slow_ms(c))
        expect_within(c, left > 0 ? left : 1);
    else
        expect_within(c, slow_ms(c));
}

/* ---- Coming and going ------------------------------------------------------------------------ */

static void on_ready(gate_link *l)
{
    gate_client_go((gate_client *)((char *)l - offsetof(gate_client, link)));
}

static void on_released(gate_link *l)
{
    gate_client *c = (gate_client *)((char *)l - offsetof(gate_client, link));

    http_buffer_free(&c->in);
    http_buffer_free(&c->out);
    free(c->body.trailer);
    free(c);
}

void gate_client_close(gate_client *c, bool abort)
{
    gate *g = c->g;
    gate_exchange *x = c->x;

    if (c->link.fd < 0)
        return;
    c->x = NULL;
    http_timer_stop(g->http, &c->timer);
    if (c->previous)
        c->previous->next = c->next;
    else
        g->clients = c->next;
    if (c->next)
        c->next->previous = c->previous;
    g->client_count--;
    gate_link_close(&c->link, abort);
    if (x)
        gate_exchange_gone(x);
}

static void name_address(gate_client *c, const struct sockaddr *a, socklen_t size)
{
    if (a->sa_family == AF_UNIX || getnameinfo(a, size, c->address_text, sizeof c->address_text,
                                               NULL, 0, NI_NUMERICHOST) != 0) {
        strcpy(c->address_text, "unknown");
        return;
    }
    gate_address_parse(c->address_text, &c->address);
    if (strncmp(c->address_text, "::ffff:", 7) == 0)
        memmove(c->address_text, c->address_text + 7, strlen(c->address_text + 7) + 1);
}

static void open_client(gate *g, int fd, const struct sockaddr *a, socklen_t size, bool tls)
{
    gate_client *c =
        g->client_count < (size_t)g->config->limits.connections ? calloc(1, sizeof *c) : NULL;
    struct gnutls_session_int *session = c && tls ? http_tls_session(g->tls, fd) : NULL;

    if (!c || (tls && !session)) {
        free(c);
        close(fd);
        return;
    }
    c->g = g;
    c->link.ready = on_ready;
    c->link.released = on_released;
    name_address(c, a, size);
    c->next = g->clients;
    if (g->clients)
        g->clients->previous = c;
    g->clients = c;
    g->client_count++;
    expect_within(c, slow_ms(c));
    if (!gate_link_open(&c->link, &g->loop, fd, session))
        gate_client_close(c, true);
}

static void on_accept_again(http_timer *timer)
{
    gate *g = (gate *)((char *)timer - offsetof(gate, accept_again));

    for (size_t i = 0; i < g->listens; i++)
        gate_link_again(&g->listeners[i]);
}

/* Without a descriptor the client stays in the kernel's queue, where no edge speaks of it: it is looked for again. */
static void wait_for_descriptor(gate *g)
{
    if (!g->starved)
        gate_say(g, "a client waits to be accepted: %s", strerror(errno));
    g->starved = true;
    http_timer_set(g->http, &g->accept_again, STARVED_MS, on_accept_again);
}

void gate_client_accept(gate_link *l)
{
    gate *g = (gate *)((char *)l->loop - offsetof(gate, loop));
    bool local = g->sockets[l - g->listeners].unix_socket;

    for (int i = 0; i < ACCEPTS && l->can_read; i++) {
        struct sockaddr_storage a;
        socklen_t size = sizeof a;
        int fd = accept4(l->fd, (struct sockaddr *)&a, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            open_client(g, fd, (struct sockaddr *)&a, size, g->tls && !local);
        else if (errno != ECONNABORTED && errno != EINTR)
            l->can_read = false;
        if (fd >= 0)
            g->starved = false;
        else if (!l->can_read && errno != EAGAIN)
            wait_for_descriptor(g);
    }
    if (l->can_read)
        gate_link_again(l);
}

/* ---- Requests -------------------------------------------------------------------------------- */

/* What cannot be understood is answered, and nothing more is read from the connection. */
static void reject(gate_client *c, int status, const char *why)
{
    gate_exchange x = {.g = c->g,
                       .client = c,
                       .minor = 1,
                       .close = true,
                       .began_us = gate_now_us(),
                       .result = GATE_REFUSED,
                       .status = status};

    gate_problem(&x, &c->out, status, DIBS_INVALID, 0, "", "%s", why);
    x.status = status;
    gate_watch_end(&x);
    c->closing = true;
    c->stage = GATE_LINGER;
}

static void learn_certificate(gate_client *c)
{
    if (c->link.tls && c->g->by_certificate && !c->certificate[0])
        http_tls_peer(c->link.tls, c->certificate, sizeof c->certificate);
}

static bool read_head(gate_client *c)
{
    wire_head h;
    const char *why = "";
    ssize_t size;

    while (c->seen == 0 && http_buffer_size(&c->in) >= 2 &&
           memcmp(http_buffer_start(&c->in), "\r\n", 2) == 0 && !c->closing)
        http_buffer_drop(&c->in, 2); /* between requests empty lines are allowed */
    if (http_buffer_size(&c->in) == 0)
        return false;
    size = wire_request(http_buffer_start(&c->in), http_buffer_size(&c->in), &c->seen,
                        (size_t)c->g->config->limits.head, &h, &why);
    if (size < 0)
        reject(c, (int)-size, why);
    if (size <= 0)
        return false;
    learn_certificate(c);
    c->stage = GATE_BODY;
    free(c->body.trailer);
    wire_body_begin(&c->body, &h);
    gate_exchange_begin(c, &h);
    if (c->link.fd < 0)
        return false;
    http_buffer_drop(&c->in, (size_t)size);
    c->whole_ms = http_now_ms() + c->g->config->limits.upload_ms;
    if (c->stage == GATE_BODY)
        expect_piece(c);
    return true;
}

static bool read_body(gate_client *c)
{
    wire_text part = {0};
    ssize_t taken;

    if (c->body.done) {
        c->stage = GATE_ANSWER;
        expect_within(c, 0);
        gate_exchange_complete(c->x);
        return true;
    }
    if (http_buffer_size(&c->in) == 0 || !gate_exchange_wants_body(c->x))
        return false;
    taken = wire_body_take(&c->body, http_buffer_start(&c->in), http_buffer_size(&c->in), &part);
    if (taken < 0) {
        gate_refuse(c->x, 400, DIBS_INVALID, "the chunked body is invalid");
        return false;
    }
    if (part.size > 0)
        gate_exchange_body(c->x, part);
    if (c->link.fd >= 0)
        http_buffer_drop(&c->in, (size_t)taken);
    if (c->x)
        expect_piece(c);
    return taken > 0;
}

void gate_client_answered(gate_client *c)
{
    bool whole = c->body.done;

    c->closing |= c->x->close || !whole || c->g->draining;
    c->x = NULL;
    c->seen = 0;
    c->stage = c->closing ? GATE_LINGER : GATE_HEAD;
    expect_within(c, slow_ms(c));
    gate_client_go(c);
}

bool gate_client_has_room(const gate_client *c)
{
    return http_buffer_size(&c->out) < GATE_WINDOW;
}

/* ---- Its loop -------------------------------------------------------------------------------- */

/* What still comes is thrown away for a moment: closing at once would take the answer from the client. */
static bool linger(gate_client *c)
{
    if (http_buffer_size(&c->out) > 0)
        return false;
    if (c->closing) {
        c->closing = false;
        if (c->link.tls) {
            gate_client_close(c, false);
            return false;
        }
        shutdown(c->link.fd, SHUT_WR);
        expect_within(c, LINGER_MS);
    }
    http_buffer_drop(&c->in, http_buffer_size(&c->in));
    return false;
}

/* One step; true: look again. */
static bool step(gate_client *c)
{
    if (c->stage == GATE_HEAD && gate_client_has_room(c) && !c->g->draining && read_head(c))
        return true;
    if (c->link.fd >= 0 && c->stage == GATE_BODY && c->x && read_body(c))
        return true;
    if (c->link.fd >= 0 && c->stage == GATE_LINGER)
        linger(c);
    return false;
}

static bool wants_bytes(const gate_client *c)
{
    switch (c->stage) {
    case GATE_HEAD:
        return gate_client_has_room(c) &&
               http_buffer_size(&c->in) <= (size_t)c->g->config->limits.head;
    case GATE_BODY:
        return c->x && gate_exchange_wants_body(c->x) && http_buffer_size(&c->in) < GATE_PIECE;
    case GATE_ANSWER:
        return http_buffer_size(&c->in) == 0; /* to see that it goes away */
    case GATE_LINGER:
        return http_buffer_size(&c->out) == 0;
    }
    return false;
}

static void send_out(gate_client *c)
{
    size_t before = http_buffer_size(&c->out), after;

    if (before == 0)
        return;
    gate_link_write(&c->link, &c->out);
    after = http_buffer_size(&c->out);
    if (after == 0 && c->stage == GATE_ANSWER)
        expect_within(c, 0);
    else if (after > 0 && (after < before || c->until_ms == 0))
        expect_within(c, slow_ms(c));
    if (after < GATE_WINDOW && before >= GATE_WINDOW && c->x && c->x->up)
        gate_upstream_go(c->x->up);
}

/* Draining: whoever waits for nothing is sent away. */
static bool is_over(const gate_client *c)
{
    if (c->link.failed)
        return true;
    if (http_buffer_size(&c->out) > 0 || c->x)
        return false;
    return c->link.ended || (c->g->draining && c->stage == GATE_HEAD);
}

/* What came up while it was sending: more to send, or the next request, which was there already. */
static bool has_more(const gate_client *c)
{
    if (c->link.fd < 0 || c->link.failed)
        return false;
    return (http_buffer_size(&c->out) > 0 && c->link.can_write) ||
           (http_buffer_size(&c->out) == 0 && c->stage == GATE_LINGER && c->closing) ||
           (c->stage == GATE_HEAD && http_buffer_size(&c->in) > c->seen &&
            gate_client_has_room(c) && !c->g->draining);
}

void gate_client_go(gate_client *c)
{
    bool more = true;
    int rounds = 0;

    if (c->busy || c->link.fd < 0)
        return;
    c->busy = true;
    for (; more && c->link.fd >= 0 && rounds < GATE_ROUNDS; rounds++) {
        size_t size = http_buffer_size(&c->in);
        while (c->link.fd >= 0 && step(c))
            ;
        send_out(c);
        more = c->link.fd >= 0 && wants_bytes(c) && gate_link_read(&c->link, &c->in, GATE_PIECE);
        if (more && c->stage == GATE_HEAD && size == 0)
            expect_within(c, slow_ms(c)); /* a head begins */
        more |= has_more(c);
    }
    c->busy = false;
    if (more && c->link.fd >= 0)
        gate_link_again(&c->link);
    if (c->link.fd >= 0 && (is_over(c) || (c->link.ended && c->stage == GATE_BODY)))
        gate_client_close(c, c->link.failed);
}
