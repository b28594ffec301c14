/* The connections to the application: a pool with a limit, and a queue in front of it.
 *
 * A request is sent at most once, and whether a byte of it left is known: only then is it certain that the
 * application did nothing. A request that is safe to repeat (GET, HEAD, OPTIONS) and was sent over a connection that the
 * application closed meanwhile is sent again over a fresh one. A guarded one never is; it takes a connection only if that was used a moment ago. */
#define _GNU_SOURCE
#include "gateway/gate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { IDLE_MS = 4000, FRESH_MS = 1000, TIMEOUT_MS = 60000, CONNECT_MS = 5000 };

/* ---- Where it is ----------------------------------------------------------------------------- */

static bool wrong(dibs_error *err, const char *url, const char *what)
{
    *err = (dibs_error){.status = DIBS_INVALID};
    snprintf(err->message, sizeof err->message, "--upstream %s: %s", url, what);
    return false;
}

/* http://HOST[:PORT], also [IPv6]; nothing behind it, since paths are passed on as they are. */
static bool parse(gate_target *t, dibs_error *err)
{
    const char *at = t->url, *end, *close;
    size_t size;

    t->tls = strncasecmp(at, "https://", 8) == 0;
    if (!t->tls && strncasecmp(at, "http://", 7) != 0)
        return wrong(err, t->url, "must begin with http:// or https://");
    at += t->tls ? 8 : 7;
    end = at + strlen(at);
    end -= end > at && end[-1] == '/';
    if (memchr(at, '/', (size_t)(end - at)) || memchr(at, '@', (size_t)(end - at)) ||
        strchr(at, '?'))
        return wrong(err, t->url, "give scheme, host and port only");
    close = *at == '[' ? memchr(at, ']', (size_t)(end - at)) : NULL;
    at += close != NULL;
    size = close ? (size_t)(close - at) : strcspn(at, ":/");
    if (size == 0 || size >= sizeof t->host)
        return wrong(err, t->url, "has no valid host");
    memcpy(t->host, at, size);
    at += size + (close != NULL);
    snprintf(t->port, sizeof t->port, "%s", t->tls ? "443" : "80");
    if (*at == ':' && end - at > 1 && end - at <= 6 &&
        strspn(at + 1, "0123456789") == (size_t)(end - at - 1))
        snprintf(t->port, sizeof t->port, "%.*s", (int)(end - at - 1), at + 1);
    else if (at < end)
        return wrong(err, t->url, "has no valid port");
    return true;
}

static void drop_addresses(gate_addresses *a)
{
    if (!a || --a->users > 0)
        return;
    freeaddrinfo(a->list);
    free(a);
}

static bool use_addresses(gate_target *t, struct addrinfo *list)
{
    gate_addresses *fresh = malloc(sizeof *fresh);

    if (!fresh) {
        freeaddrinfo(list);
        return false;
    }
    *fresh = (gate_addresses){.users = 1, .list = list};
    drop_addresses(t->addresses);
    t->addresses = fresh;
    return true;
}

bool gate_target_resolve(gate_target *t, dibs_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_ADDRCONFIG | AI_NUMERICSERV};
    struct addrinfo *fresh;
    int failed = getaddrinfo(t->host, t->port, &hints, &fresh);

    if (failed == EAI_ADDRFAMILY || failed == EAI_NONAME)
        failed =
            getaddrinfo(t->host, t->port, &(struct addrinfo){.ai_socktype = SOCK_STREAM}, &fresh);
    if (failed)
        return wrong(err, t->url, gai_strerror(failed));
    return use_addresses(t, fresh) || wrong(err, t->url, "out of memory");
}

static bool open_tls(gate_target *t, dibs_error *err)
{
    dibs_error why;

    return http_tls_open(&(http_tls_files){.ca = t->ca}, &t->trust, &why) == DIBS_OK ||
           wrong(err, t->url, "no certificates to trust: give --upstream-ca");
}

bool gate_target_read(gate_target *t, dibs_error *err)
{
    return parse(t, err) && (!t->tls || open_tls(t, err)) && gate_target_resolve(t, err);
}

void gate_target_close(gate_target *t)
{
    drop_addresses(t->addresses);
    http_tls_close(t->trust);
}

/* ---- The pool -------------------------------------------------------------------------------- */

static void set_timer(gate_upstream *u, int64_t ms);

static int64_t timeout_of(const gate_exchange *x)
{
    return x->route ? x->route->timeout_ms : TIMEOUT_MS;
}

static void leave_idle(gate_upstream *u)
{
    gate *g = u->g;

    if (u->previous)
        u->previous->next = u->next;
    else
        g->idle = u->next;
    if (u->next)
        u->next->previous = u->previous;
    u->next = u->previous = NULL;
    g->idle_count--;
}

static void on_released(http_link *l)
{
    gate_upstream *u = (gate_upstream *)((char *)l - offsetof(gate_upstream, link));

    drop_addresses(u->addresses);
    http_buffer_free(&u->in);
    http_buffer_free(&u->out);
    free(u->body.trailer);
    free(u);
}

static void next_in_queue(gate *g);

/* An idle one is in the list; one with an exchange is not. */
static void close_upstream(gate_upstream *u, bool idle)
{
    gate *g = u->g;

    if (u->link.fd < 0)
        return;
    if (idle)
        leave_idle(u);
    http_timer_stop(g->http, &u->timer);
    g->upstreams--;
    http_link_close(&u->link, false);
}

static void put_idle(gate_upstream *u)
{
    gate *g = u->g;

    u->at_ms = http_now_ms();
    u->previous = NULL;
    u->next = g->idle;
    if (g->idle)
        g->idle->previous = u;
    g->idle = u;
    g->idle_count++;
    set_timer(u, IDLE_MS);
}

/* Its exchange is over: the connection waits for the next one if the application agrees. */
static void release(gate_upstream *u, bool reuse)
{
    gate *g = u->g;

    u->x->up = NULL;
    u->x = NULL;
    free(u->body.trailer);
    u->body = (wire_body){0};
    if (reuse && http_buffer_size(&u->in) == 0 && http_buffer_size(&u->out) == 0 &&
        !u->link.ended && !u->link.failed && !g->draining)
        put_idle(u);
    else
        close_upstream(u, false);
    next_in_queue(g);
}

void gate_upstream_close_idle(gate *g)
{
    while (g->idle)
        close_upstream(g->idle, true);
}

/* ---- Failing --------------------------------------------------------------------------------- */

static bool connect_next(gate_upstream *u);

/* Once more over a fresh connection: nothing came back, and the request may be sent twice. */
static bool send_again(gate_upstream *u)
{
    gate *g = u->g;
    gate_exchange *x = u->x;

    if (!u->reused || u->answering || !x->repeatable || http_buffer_size(&u->in) > 0)
        return false;
    x->up = NULL;
    u->x = NULL;
    close_upstream(u, false);
    gate_upstream_ask(x);
    next_in_queue(g); /* if that could not open another one */
    return true;
}

static void fail(gate_upstream *u, gate_failure why)
{
    gate_exchange *x = u->x;

    if (!x) {
        close_upstream(u, true);
        return;
    }
    if (why == GATE_CLOSED && send_again(u))
        return;
    if (!u->sent)
        why = GATE_UNREACHED;
    release(u, false);
    gate_exchange_failed(x, why);
}

static void on_timer(http_timer *timer)
{
    gate_upstream *u = (gate_upstream *)((char *)timer - offsetof(gate_upstream, timer));
    int64_t limit = !u->x ? IDLE_MS : u->connected ? timeout_of(u->x) : CONNECT_MS;
    int64_t left = u->at_ms + limit - http_now_ms();

    if (left > 0)
        set_timer(u, left);
    else if (u->x && u->connected && !gate_exchange_has_room(u->x))
        set_timer(u, limit); /* its client is the slow one */
    else
        fail(u, u->connected ? GATE_SILENT : GATE_UNREACHED);
}

static void set_timer(gate_upstream *u, int64_t ms)
{
    if (!u->timer.place || u->timer.at_ms > http_now_ms() + ms)
        http_timer_set(u->g->http, &u->timer, ms, on_timer);
}

/* ---- Connecting ------------------------------------------------------------------------------ */

static void on_ready(http_link *l)
{
    gate_upstream_go((gate_upstream *)((char *)l - offsetof(gate_upstream, link)));
}

/* Opens a socket to u->address, or to one behind it. */
static bool connect_next(gate_upstream *u)
{
    gate *g = u->g;

    for (; u->address; u->address = u->address->ai_next) {
        int fd = socket(u->address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct ssl_st *tls = NULL;

        if (fd < 0)
            return false;
        if (connect(fd, u->address->ai_addr, u->address->ai_addrlen) == 0 || errno == EINPROGRESS) {
            tls = g->target.tls ? http_tls_session(g->target.trust, fd, g->target.host) : NULL;
            if ((tls || !g->target.tls) &&
                http_link_open(&u->link, http_server_loop(g->http), fd, tls))
                return true;
        }
        http_tls_drop(tls);
        close(fd);
        u->link.fd = -1;
    }
    return false;
}

/* A connection to `address`, or to one behind it. */
static gate_upstream *open_upstream(gate *g, gate_addresses *addresses,
                                    const struct addrinfo *address)
{
    gate_upstream *u = calloc(1, sizeof *u);

    if (!u)
        return NULL;
    *u = (gate_upstream){.g = g, .addresses = addresses, .address = address};
    u->link.fd = -1;
    u->link.ready = on_ready;
    u->link.released = on_released;
    addresses->users++;
    if (!connect_next(u)) {
        on_released(&u->link);
        return NULL;
    }
    g->upstreams++;
    return u;
}

/* Another address, in the place of one that refused. */
static void try_next_address(gate_upstream *u)
{
    gate_exchange *x = u->x;
    gate_upstream *other =
        u->address ? open_upstream(u->g, u->addresses, u->address->ai_next) : NULL;

    if (!other) {
        fail(u, GATE_UNREACHED);
        return;
    }
    other->out = u->out;
    u->out = (http_buffer){0};
    other->at_ms = http_now_ms();
    other->x = x;
    u->x = NULL;
    x->up = other;
    close_upstream(u, false);
    set_timer(other, CONNECT_MS);
}

/* True: it is connected. */
static bool check_connected(gate_upstream *u)
{
    int error = 0;
    socklen_t size = sizeof error;

    if (u->connected)
        return true;
    if (!u->link.can_write && !u->link.failed)
        return false;
    if (getsockopt(u->link.fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error ||
        u->link.failed) {
        try_next_address(u);
        return false;
    }
    u->connected = true;
    u->at_ms = http_now_ms();
    if (u->x)
        set_timer(u, timeout_of(u->x));
    return true;
}

/* ---- Asking ---------------------------------------------------------------------------------- */

static gate_upstream *take_idle(gate *g, const gate_exchange *x)
{
    while (g->idle) {
        gate_upstream *u = g->idle;
        bool fresh = http_now_ms() - u->at_ms < FRESH_MS;
        if (!http_link_stale(&u->link) && (fresh || x->repeatable || !x->guard)) {
            leave_idle(u);
            return u;
        }
        close_upstream(u, true);
    }
    return NULL;
}

static void give(gate_exchange *x, gate_upstream *u)
{
    u->reused = u->connected;
    u->x = x;
    x->up = u;
    u->sent = u->answering = u->closing = false;
    u->seen = 0;
    u->at_ms = http_now_ms();
    set_timer(u, u->connected ? timeout_of(x) : CONNECT_MS);
    http_buffer_add(&u->out, http_buffer_start(&x->request), http_buffer_size(&x->request));
    if (!x->repeatable)
        http_buffer_free(&x->request);
    gate_upstream_go(u);
}

static bool wait_for_one(gate *g, gate_exchange *x)
{
    if (g->waiting >= (size_t)g->config->limits.upstream)
        return false;
    x->next = NULL;
    x->waiting = true;
    if (g->last_waiting)
        g->last_waiting->next = x;
    else
        g->first_waiting = x;
    g->last_waiting = x;
    g->waiting++;
    return true;
}

static void leave_queue(gate_exchange *x)
{
    gate *g = x->g;
    gate_exchange **at = &g->first_waiting, *before = NULL;

    for (; *at && *at != x; at = &(*at)->next)
        before = *at;
    if (!*at)
        return;
    *at = x->next;
    if (g->last_waiting == x)
        g->last_waiting = before;
    x->waiting = false;
    g->waiting--;
}

static void ask(gate_exchange *x, bool queue)
{
    gate *g = x->g;
    gate_upstream *u = take_idle(g, x);
    bool room = g->upstreams < (size_t)g->config->limits.upstream;

    if (!u && room)
        u = open_upstream(g, g->target.addresses, g->target.addresses->list);
    if (u)
        give(x, u);
    else if (room)
        gate_exchange_failed(x, GATE_UNREACHED);
    else if (!queue || !wait_for_one(g, x))
        gate_exchange_failed(x, GATE_CROWDED);
}

void gate_upstream_ask(gate_exchange *x)
{
    x->asked_us = gate_now_us();
    ask(x, true);
}

static void send_first(gate *g)
{
    gate_exchange *x = g->first_waiting;
    gate_client *c = x->client;

    leave_queue(x);
    ask(x, false);
    if (c && c->x == x) /* the rest of its body may be sent now */
        http_connection_go(&c->c);
}

/* Nobody waits while there is a connection, or room for one. */
static void next_in_queue(gate *g)
{
    while (g->first_waiting && (g->idle || g->upstreams < (size_t)g->config->limits.upstream))
        send_first(g);
}

void gate_upstream_cancel(gate_exchange *x)
{
    if (x->waiting)
        leave_queue(x);
    if (x->up)
        release(x->up, false);
}

/* ---- Answers --------------------------------------------------------------------------------- */

/* The head of an answer, or of an interim one. True: there may be more in the buffer. */
static bool read_head(gate_upstream *u)
{
    gate_exchange *x = u->x;
    wire_head h;
    const char *why;
    ssize_t size = wire_answer(http_buffer_start(&u->in), http_buffer_size(&u->in), &u->seen,
                               (size_t)x->config->limits.head * 4, x->head, &h, &why);

    if (size < 0 || (size > 0 && h.status == 101)) {
        gate_say(u->g, "the application's answer is not valid HTTP: %s", size < 0 ? why : "101");
        fail(u, GATE_GARBLED);
        return false;
    }
    if (size == 0)
        return false;
    if (h.status >= 200) {
        u->answering = true;
        u->closing = h.close;
        wire_body_begin(&u->body, &h);
    }
    gate_exchange_head(x, &h);
    if (u->x)
        http_buffer_drop(&u->in, (size_t)size);
    return true;
}

static void end_answer(gate_upstream *u)
{
    gate_exchange *x = u->x;
    wire_body body = u->body;
    bool reuse = !u->closing && x->complete;

    u->body.trailer = NULL;
    release(u, reuse);
    gate_exchange_end(x, &body);
    free(body.trailer);
}

static bool read_body(gate_upstream *u)
{
    wire_text part;
    ssize_t taken =
        wire_body_take(&u->body, http_buffer_start(&u->in), http_buffer_size(&u->in), &part);

    if (taken < 0) {
        fail(u, GATE_GARBLED);
        return false;
    }
    if (part.size > 0)
        gate_exchange_part(u->x, part);
    if (!u->x)
        return false;
    http_buffer_drop(&u->in, (size_t)taken);
    return taken > 0;
}

/* One step; true: look again. */
static bool step(gate_upstream *u)
{
    if (u->answering && u->body.done) {
        end_answer(u);
        return false;
    }
    u->held = !gate_exchange_has_room(u->x);
    if (u->held)
        return false;
    if (http_buffer_size(&u->in) > 0 && (u->answering ? read_body(u) : read_head(u)))
        return true;
    if (!u->x || u->link.fd < 0)
        return false;
    if (http_link_read(&u->link, &u->in, HTTP_PIECE)) {
        u->at_ms = http_now_ms();
        return true;
    }
    if (u->link.ended && u->answering && u->body.framing == WIRE_CLOSE)
        u->body.done = true;
    else if (u->link.ended || u->link.failed)
        fail(u, GATE_CLOSED);
    else
        return false;
    return u->x != NULL;
}

static void send_out(gate_upstream *u)
{
    size_t before = http_buffer_size(&u->out);

    if (before == 0)
        return;
    http_link_write(&u->link, &u->out);
    if (http_buffer_size(&u->out) == before)
        return;
    u->sent = true;
    u->at_ms = http_now_ms();
    if (before >= HTTP_WINDOW && http_buffer_size(&u->out) < HTTP_WINDOW && u->x && u->x->client &&
        !u->x->complete)
        http_connection_go(&u->x->client->c);
}

/* Sends and reads until nothing goes any more. True: there may be more to do. */
static bool go_once(gate_upstream *u)
{
    send_out(u);
    while (u->x && step(u))
        ;
    if (u->x && u->x->client)
        http_connection_go(&u->x->client->c);
    return u->x && u->link.fd >= 0 && !u->link.failed &&
           ((u->held && gate_exchange_has_room(u->x)) ||
            (http_buffer_size(&u->out) > 0 && u->link.can_write));
}

void gate_upstream_go(gate_upstream *u)
{
    bool more = true;
    int rounds = 0;

    if (u->busy || u->link.fd < 0 || !check_connected(u))
        return;
    if (!u->x) {
        if (http_link_stale(&u->link))
            close_upstream(u, true);
        return;
    }
    u->busy = true;
    for (; more && rounds < HTTP_ROUNDS; rounds++)
        more = go_once(u);
    u->busy = false;
    if (more)
        http_link_again(&u->link);
}
