#define _GNU_SOURCE
#include "watched.h"

#include "support/calls.h"
#include "support/clock.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUORUM  2
#define SPAN_MS 60000

/* ---- Asking ---------------------------------------------------------------------------------- */

/* Each command is a connection of its own; a password comes before it in the same write. */
static bool ask(server *s, const char *password, const char *command, char *reply, size_t size)
{
    char line[512], *at;

    if (!s->pid)
        return false;
    if (!password)
        return server_command(s, command, reply, size) == 0;
    snprintf(line, sizeof line, "AUTH %s\r\n%s", password, command);
    if (server_command(s, line, reply, size) < 0)
        return false;
    at = strstr(reply, "+OK\r\n");
    if (at)
        memmove(reply, at + 5, strlen(at + 5) + 1);
    return true;
}

static bool says(server *s, const char *password, const char *command, const char *what)
{
    char reply[4096] = "";

    return ask(s, password, command, reply, sizeof reply) && strstr(reply, what);
}

static bool is_ready(void *ctx)
{
    watched *w = ctx;

    for (int i = 0; i < WATCHED_SERVERS; i++)
        if (!says(&w->sentinel[i], w->sentinel_password, "INFO sentinel", "slaves=2,sentinels=3"))
            return false;
    return true;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static void start_node(watched *w, int i)
{
    const char *extra[40] = {"--repl-diskless-sync-delay", "0", "--repl-timeout", "5"};
    char port[16], own[16];
    server_tls_args tls;
    int n = 4;

    snprintf(port, sizeof port, "%d", w->node[0].port);
    if (i > 0) {
        extra[n++] = "--replicaof";
        extra[n++] = "127.0.0.1";
        extra[n++] = port;
    }
    if (w->password) {
        extra[n++] = "--requirepass";
        extra[n++] = w->password;
        extra[n++] = "--masterauth";
        extra[n++] = w->password;
    }
    snprintf(own, sizeof own, "%d", free_port());
    if (w->tls)
        server_add_tls(&tls, w->tls, own, extra, n);
    server_need(&w->node[i], extra);
    if (w->tls)
        w->node[i].port = atoi(own);
}

static void start_sentinel(watched *w, int i)
{
    char more[2048];
    int tls_port = free_port(),
        n = snprintf(more, sizeof more,
                     "sentinel down-after-milliseconds %s 1000\n"
                     "sentinel failover-timeout %s 5000\nsentinel parallel-syncs %s 2\n",
                     WATCHED_SERVICE, WATCHED_SERVICE, WATCHED_SERVICE);

    if (w->password)
        n += snprintf(more + n, sizeof more - (size_t)n, "sentinel auth-pass %s %s\n",
                      WATCHED_SERVICE, w->password);
    if (w->sentinel_password)
        n += snprintf(more + n, sizeof more - (size_t)n, "requirepass %s\n", w->sentinel_password);
    if (w->tls)
        snprintf(more + n, sizeof more - (size_t)n,
                 "port 0\ntls-port %d\ntls-cert-file %s/good.crt\ntls-key-file %s/good.key\n"
                 "tls-ca-cert-file %s/ca.crt\ntls-auth-clients no\ntls-replication yes\n",
                 tls_port, w->tls, w->tls, w->tls);
    assert_int_equal(
        sentinel_start(&w->sentinel[i], WATCHED_SERVICE, w->node[0].port, QUORUM, more), 0);
    if (w->tls)
        w->sentinel[i].port = tls_port;
}

static void start(watched *w)
{
    for (int i = 0; i < WATCHED_SERVERS; i++)
        start_node(w, i);
    for (int i = 0; i < WATCHED_SERVERS; i++)
        start_sentinel(w, i);
    assert_true(wait_until(is_ready, w, SPAN_MS));
    watched_await_replicas(w, 2);
}

void watched_start(watched *w, const char *password, const char *sentinel_password)
{
    *w = (watched){.password = password, .sentinel_password = sentinel_password};
    start(w);
}

void watched_start_tls(watched *w, const char *folder)
{
    *w = (watched){.tls = folder};
    start(w);
}

void watched_stop(watched *w)
{
    for (int i = 0; i < WATCHED_SERVERS; i++) {
        server_stop(&w->sentinel[i]);
        server_stop(&w->node[i]);
    }
}

const char *watched_url(const watched *w, const char *more)
{
    static _Thread_local char url[1024];

    snprintf(url, sizeof url,
             "redis+sentinel://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d/%s?max_lease=%d%s",
             w->sentinel[0].port, w->sentinel[1].port, w->sentinel[2].port, WATCHED_SERVICE,
             WATCHED_LEASE_MS, more);
    return url;
}

void watched_vouch(const watched *w, const char *more)
{
    char with[64];

    snprintf(with, sizeof with, "&guard=vouch%s", more);
    dibs_close(expect_open(watched_url(w, with), NULL));
}

/* ---- The master ------------------------------------------------------------------------------ */

int watched_master(watched *w)
{
    char reply[256], port[16];

    for (int s = WATCHED_SERVERS - 1; s >= 0; s--) {
        if (!ask(&w->sentinel[s], w->sentinel_password,
                 "SENTINEL GET-MASTER-ADDR-BY-NAME " WATCHED_SERVICE, reply, sizeof reply))
            continue;
        for (int i = 0; i < WATCHED_SERVERS; i++) {
            snprintf(port, sizeof port, "\n%d\r", w->node[i].port);
            if (strstr(reply, port))
                return i;
        }
    }
    fail_msg("no sentinel knows the master");
    return -1;
}

/* As soon as the sentinel knows of a replica that is good enough. */
static bool begins_failover(void *ctx)
{
    return says(ctx, NULL, "SENTINEL FAILOVER " WATCHED_SERVICE, "+OK");
}

bool watched_begin_failover(watched *w)
{
    return wait_until(begins_failover, &w->sentinel[1], SPAN_MS);
}

typedef struct expected {
    watched *w;
    int number;
} expected;

static bool is_over(void *ctx)
{
    expected *e = ctx;

    return watched_master(e->w) != e->number;
}

void watched_await_failover(watched *w, int old)
{
    assert_true(wait_until(is_over, &(expected){w, old}, SPAN_MS));
}

static bool has_replicas(void *ctx)
{
    expected *e = ctx;
    char reply[4096] = "", *at = reply;
    int online = 0;

    if (!ask(&e->w->node[watched_master(e->w)], e->w->password, "INFO replication", reply,
             sizeof reply))
        return false;
    for (; (at = strstr(at, "state=online")); at++)
        online++;
    return online >= e->number;
}

void watched_await_replicas(watched *w, int count)
{
    assert_true(wait_until(has_replicas, &(expected){w, count}, SPAN_MS));
}
