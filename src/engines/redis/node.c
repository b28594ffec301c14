/* See the header. */
#define _GNU_SOURCE
#include "engines/redis/node.h"

#include "core/error.h"
#include "engines/redis/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned changes_of(const dibs__redis_node *n)
{
    return n->address.sentinels ? dibs__sentinels_changes(n->address.sentinels) : 0;
}

static void warn_of_eviction(dibs__redis_node *n)
{
    dibs__sink *sink = n->r->base.sink;

    if (!atomic_exchange(&n->r->warned, true))
        sink->log(sink, DIBS_LOG_WARNING,
                  "%s: its maxmemory-policy may evict locks that are held; set it to noeviction",
                  n->address.text);
}

/* The main connection: with the scripts, on a server of the right kind. */
static dibs_status connect_main(void *ctx, dibs__deadline until, dibs__conn **out, dibs_error *err)
{
    dibs__redis_node *n = ctx;
    dibs__server_kind kind = {0};
    dibs__conn *c = NULL;
    unsigned changes = changes_of(n);
    dibs_status status = dibs__redis_connect(&n->address, until, &c, err);

    if (status != DIBS_OK)
        return status;
    status = dibs__redis_prepare(&n->r->scripts, c, until, &kind, err);
    if (status == DIBS_OK && kind.cluster && !n->r->address.cluster)
        status = dibs__fail(err, DIBS_UNSUPPORTED,
                            "this is one node of a cluster: use redis+cluster://HOST,HOST");
    if (status == DIBS_OK) {
        atomic_store(&n->flags, kind.flags);
        status = dibs__guard_greet(n, c, kind.info ? kind.info->str : NULL, until, err);
    }
    if (status == DIBS_OK && changes_of(n) != changes)
        status = dibs__fail(err, DIBS_UNAVAILABLE, "there is another master meanwhile: try again");
    if (kind.info)
        freeReplyObject(kind.info);
    if (status != DIBS_OK) {
        dibs__wrap(err, "%s", n->address.text);
        dibs__conn_close(c);
        return status;
    }
    if (kind.may_evict)
        warn_of_eviction(n);
    *out = c;
    return DIBS_OK;
}

static bool set_host(dibs__redis_node *n, const char *host, int port)
{
    n->address.sentinels = NULL;
    n->address.cluster = NULL;
    n->address.host = strdup(host);
    n->address.port = port;
    snprintf(n->address.text, sizeof n->address.text, "redis at %.200s:%d", host, port);
    return n->address.host;
}

dibs__redis_node *dibs__redis_node_new(dibs__redis *r, const char *host, int port)
{
    dibs__redis_node *n = calloc(1, sizeof *n);

    if (!n)
        return NULL;
    n->r = r;
    n->address = r->address;
    pthread_mutex_init(&n->lock, NULL);
    dibs__abandoned_init(&n->abandoned, r->base.sink, n->address.text);
    n->pipeline = dibs__pipeline_new(r->base.env, r->request_span, &n->abandoned, connect_main, n);
    if ((host && !set_host(n, host, port)) || !n->pipeline) {
        dibs__redis_node_free(n);
        return NULL;
    }
    return n;
}

void dibs__redis_node_free(dibs__redis_node *n)
{
    if (!n)
        return;
    dibs__pipeline_free(n->pipeline);
    dibs__abandoned_fini(&n->abandoned);
    pthread_mutex_destroy(&n->lock);
    if (n->address.host != n->r->address.host)
        free(n->address.host);
    free(n);
}
