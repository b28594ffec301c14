/* A client's connection, as the gateway speaks with it: its address and certificate, its limits, and what happens to its
 * requests (exchange.c). The connection itself is http/connection.c. */
#define _GNU_SOURCE
#include "gateway/gate.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static gate_client *own(const http_connection *c)
{
    return (gate_client *)((char *)(uintptr_t)c - offsetof(gate_client, c));
}

/* ---- Limits ---------------------------------------------------------------------------------- */

static size_t head_max(const http_connection *c)
{
    return (size_t)own(c)->g->config->limits.head;
}

/* For the next piece. A body that is collected has to be whole one day, too. */
static int64_t patience(const http_connection *c)
{
    const gate_client *k = own(c);
    const gate_limits *limits = &k->g->config->limits;
    int64_t left = k->whole_ms - http_now_ms();

    return c->stage == HTTP_IN_BODY && k->x && k->x->guard && left < limits->slow_ms
               ? left
               : limits->slow_ms;
}

static bool is_draining(const http_connection *c)
{
    return own(c)->g->draining;
}

/* ---- Requests -------------------------------------------------------------------------------- */

/* What cannot be understood is answered, and nothing more is read from the connection. */
static void refuse(http_connection *c, int status, const char *why)
{
    gate_client *k = own(c);
    gate_exchange x = {.g = k->g,
                       .client = k,
                       .minor = 1,
                       .close = true,
                       .began_us = gate_now_us(),
                       .result = GATE_REFUSED,
                       .status = status};

    if (k->x) {
        gate_refuse(k->x, status, DIBS_INVALID, "%s", why);
        return;
    }
    gate_problem(&x, &c->out, status, DIBS_INVALID, 0, "", "%s", why);
    gate_watch_end(&x);
    http_connection_answered(c, true);
}

/* What is passed on may have been answered in part. */
static bool on_late(http_connection *c)
{
    gate_exchange *x = own(c)->x;

    if (!x || !x->guard)
        return false;
    gate_refuse(x, 408, DIBS_INVALID, "the body did not come in time");
    return true;
}

static void learn_certificate(gate_client *k)
{
    if (k->g->by_certificate && !k->certificate[0])
        http_tls_peer(k->g->tls, k->c.link.tls, k->certificate, sizeof k->certificate);
}

static void on_head(http_connection *c, wire_head *h)
{
    gate_client *k = own(c);

    learn_certificate(k);
    k->whole_ms = http_now_ms() + k->g->config->limits.upload_ms;
    gate_exchange_begin(k, h);
}

static bool wants_body(const http_connection *c)
{
    return own(c)->x && gate_exchange_wants_body(own(c)->x);
}

static void on_part(http_connection *c, wire_text part)
{
    gate_exchange_body(own(c)->x, part);
}

static void on_whole(http_connection *c)
{
    gate_exchange_complete(own(c)->x);
}

/* The application's answer was held up by the client. */
static void on_room(http_connection *c)
{
    gate_exchange *x = own(c)->x;

    if (x && x->up && x->up->held && http_connection_has_room(c))
        gate_upstream_go(x->up);
}

void gate_client_answered(gate_client *k)
{
    bool close = k->x->close || k->g->draining;

    k->x = NULL;
    http_connection_answered(&k->c, close);
}

/* ---- Coming and going ------------------------------------------------------------------------ */

static void on_gone(http_connection *c)
{
    gate_client *k = own(c);
    gate_exchange *x = k->x;

    k->g->client_count--;
    k->x = NULL;
    if (x)
        gate_exchange_gone(x);
}

static void on_freed(http_connection *c)
{
    free(own(c));
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
                                     .draining = is_draining};

static void name_address(gate_client *k, const struct sockaddr *a, socklen_t size)
{
    if (a->sa_family == AF_UNIX || getnameinfo(a, size, k->address_text, sizeof k->address_text,
                                               NULL, 0, NI_NUMERICHOST) != 0) {
        strcpy(k->address_text, "unknown");
        return;
    }
    gate_address_parse(k->address_text, &k->address);
    if (strncmp(k->address_text, "::ffff:", 7) == 0)
        memmove(k->address_text, k->address_text + 7, strlen(k->address_text + 7) + 1);
}

void gate_client_accept(http_listener *l, int fd, const struct sockaddr *from, socklen_t size)
{
    gate *g = l->data;
    bool secure = g->tls && !l->socket.unix_socket;
    gate_client *k =
        g->client_count < (size_t)g->config->limits.connections ? calloc(1, sizeof *k) : NULL;
    struct ssl_st *session = k && secure ? http_tls_session(g->tls, fd, NULL) : NULL;

    if (!k || (secure && !session)) {
        free(k);
        close(fd);
        return;
    }
    k->g = g;
    name_address(k, from, size);
    g->client_count++;
    http_connection_open(&k->c, g->http, &speaker, &g->clients, fd, session);
}

void gate_client_starved(http_listener *l, const char *what)
{
    gate_say(l->data, "a client waits to be accepted: %s", what);
}
