/* The Redlock engine: its table, its URL, its beginning and end.
 *
 *   redlock://[[user]:password@]host[:port],[[user]:password@]host[:port],…[/db]
 *
 * with prefix= as for Redis; node_ms= for how long one node may take; max_lease= in milliseconds;
 * guard=off to vouch for the nodes; tls=yes or tls=2,3 for nodes by number, with ca=, cert=, key=. */
#define _GNU_SOURCE
#include "engines/redlock/waiters.h"

#include "core/error.h"
#include "engines/capabilities.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODE_MS      50
#define MAX_LEASE_MS 60000

extern const dibs__engine_class dibs__engine_redlock;

/* ---- The URL --------------------------------------------------------------------------------- */

static dibs_status read_node(dibs__voters *v, const dibs__url_login *login, size_t count,
                             int64_t db, dibs_error *err)
{
    dibs__voter *n = &v->voter[v->count];

    if (!login->at.name[0])
        return dibs__fail(err, DIBS_INVALID, "redlock: a host is missing in the list of nodes");
    n->all = v;
    n->index = v->count++;
    n->address.env = v->env;
    n->address.db = db;
    n->address.port = login->at.port ? login->at.port : DIBS__REDIS_PORT;
    n->address.host = strdup(login->at.name);
    if (!n->address.host)
        return dibs__fail(err, DIBS_NO_MEMORY, "redlock: out of memory");
    snprintf(n->address.text, sizeof n->address.text, "node %zu of %zu (%.200s:%d)", v->count,
             count, n->address.host, n->address.port);
    for (size_t i = 0; i + 1 < v->count; i++)
        if (strcmp(v->voter[i].address.host, n->address.host) == 0 &&
            v->voter[i].address.port == n->address.port)
            return dibs__fail(err, DIBS_INVALID,
                              "redlock: %s is in the URL twice: its vote would be counted twice",
                              n->address.text);
    return dibs__address_login(&n->address, login->user, login->password, err);
}

static dibs_status read_nodes(const dibs__url *url, dibs__voters *v, dibs_error *err)
{
    dibs__url_login login[DIBS__HOSTS_MAX];
    char *room = NULL;
    size_t count = 0;
    int64_t db = 0;
    dibs_status status = dibs__url_logins(url, login, &count, &room, err);

    if (status == DIBS_OK && url->path[0] && strcmp(url->path, "/") != 0)
        status = dibs__address_db(url->path + 1, &db, err);
    if (status == DIBS_OK && count < 2)
        status = dibs__fail(err, DIBS_INVALID,
                            "redlock: give three or more nodes: redlock://h1:p1,h2:p2,h3:p3; for "
                            "one server use redis://");
    for (size_t i = 0; status == DIBS_OK && i < count; i++)
        status = read_node(v, &login[i], count, db, err);
    if (room)
        explicit_bzero(room, strlen(url->logins ? url->logins : ""));
    free(room);
    v->majority = v->count / 2 + 1;
    return status;
}

/* "yes", or numbers of nodes. */
static dibs_status read_tls_nodes(const char *text, dibs__voters *v, dibs_error *err)
{
    for (const char *at = text; *at;) {
        char *end;
        unsigned long n = strtoul(at, &end, 10);
        if (end == at || (*end && *end != ',') || n < 1 || n > v->count)
            return dibs__fail(err, DIBS_INVALID,
                              "tls=%.40s in the URL: give yes, or numbers of nodes from 1 to %zu "
                              "with commas between",
                              text, v->count);
        v->voter[n - 1].address.tls = v->tls;
        at = *end ? end + 1 : end;
    }
    return DIBS_OK;
}

static dibs_status read_tls(dibs__url *url, dibs__voters *v, dibs_error *err)
{
    const char *tls = dibs__url_take(url, "tls");
    dibs_status status;

    if (!tls)
        return DIBS_OK;
    status = dibs__address_tls(url, &v->tls, err);
    if (status != DIBS_OK)
        return status;
    if (strcmp(tls, "yes") != 0)
        return read_tls_nodes(tls, v, err);
    for (size_t i = 0; i < v->count; i++)
        v->voter[i].address.tls = v->tls;
    return DIBS_OK;
}

static dibs_status read_guard(dibs__url *url, dibs__voters *v, dibs_error *err)
{
    const char *guard = dibs__url_take(url, "guard");

    v->vouched = guard && strcmp(guard, "off") == 0;
    if (guard && !v->vouched && strcmp(guard, "on") != 0)
        return dibs__fail(err, DIBS_INVALID, "guard=%.40s in the URL: give on or off", guard);
    return DIBS_OK;
}

static dibs_status read_url(dibs__url *url, const char *handle_id, dibs__voters *v, dibs_error *err)
{
    int64_t node_ms = NODE_MS, max_lease = MAX_LEASE_MS;
    dibs_status status = read_nodes(url, v, err);

    if (status == DIBS_OK)
        status = dibs__address_prefix(url, v->prefix, err);
    if (status == DIBS_OK)
        status = dibs__url_take_number(url, "node_ms", 1, 10000, &node_ms, err);
    if (status == DIBS_OK)
        status = dibs__url_take_number(url, "max_lease", 10, 24 * 3600 * 1000, &max_lease, err);
    if (status == DIBS_OK)
        status = read_guard(url, v, err);
    if (status == DIBS_OK)
        status = read_tls(url, v, err);
    snprintf(v->marker, sizeof v->marker, "%s:node", v->prefix);
    snprintf(v->handle, sizeof v->handle, "%.16s", handle_id);
    snprintf(v->gone, sizeof v->gone, "%s:gone:%s", v->prefix, v->handle);
    snprintf(v->wake, sizeof v->wake, "%s:wake:%s", v->prefix, v->handle);
    v->limit = node_ms * DIBS__MS;
    v->max_lease = max_lease * DIBS__MS;
    v->longest = v->max_lease + 2 * v->limit;
    return status != DIBS_OK
               ? status
               : dibs__url_all_taken(url,
                                     v->tls
                                         ? "prefix, node_ms, max_lease, guard, tls, ca, cert, key"
                                         : "prefix, node_ms, max_lease, guard, tls",
                                     err);
}

/* ---- Beginning and end ----------------------------------------------------------------------- */

static void redlock_close(dibs__engine *e)
{
    dibs__redlock *r = (dibs__redlock *)e;

    if (r->v)
        dibs__voters_drain(r->v, dibs__after(r->v->env, r->v->limit));
    dibs__voters_close(r->v);
    dibs__redlock_waiters_free(r->waiters);
    free(r);
}

static void redlock_abandon(dibs__engine *e)
{
    dibs__redlock *r = (dibs__redlock *)e;

    dibs__voters_abandon(r->v);
    dibs__redlock_waiters_abandon(r->waiters);
}

static void note_even(const dibs__redlock *r)
{
    size_t n = r->v->count;

    if (n % 2 == 0)
        r->base.sink->log(r->base.sink, DIBS_LOG_WARNING,
                          "redlock: %zu nodes need %zu votes, as %zu would: the even one adds no "
                          "failure that can be borne; use an odd number",
                          n, n / 2 + 1, n + 1);
}

static dibs_status redlock_open(const dibs__open_request *request, dibs__engine **out,
                                dibs_error *err)
{
    dibs__redlock *r = calloc(1, sizeof *r);
    dibs_status status = DIBS_OK;

    if (!r)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    r->base =
        (dibs__engine){.class = &dibs__engine_redlock, .env = request->env, .sink = request->sink};
    r->v = dibs__voters_new(request->env, request->sink);
    r->waiters = dibs__redlock_waiters_new();
    if (!r->v || !r->waiters || !dibs__redlock_waiters_watch(r->waiters, r->v->subscription_fd) ||
        !dibs__redlock_waiters_watch(r->waiters, r->v->tend_fd))
        status = dibs__fail(err, DIBS_NO_MEMORY, "redlock: out of memory or descriptors");
    if (status == DIBS_OK)
        status = read_url(request->url, request->handle_id, r->v, err);
    if (status == DIBS_OK) {
        note_even(r);
        status = dibs__voters_start(r->v, request->until, err);
    }
    if (status != DIBS_OK)
        redlock_close(&r->base);
    else
        *out = &r->base;
    return status;
}

static dibs_status redlock_examine(const dibs__open_request *request, dibs__facts *out,
                                   dibs_error *err)
{
    dibs__voters *v = dibs__voters_new(request->env, request->sink);
    dibs_status status;

    if (!v)
        return dibs__fail(err, DIBS_NO_MEMORY, "redlock: out of memory or descriptors");
    status = read_url(request->url, request->handle_id, v, err);
    if (status == DIBS_OK)
        status = dibs__redlock_examine_nodes(v, request->until, out, err);
    dibs__voters_close(v);
    return status;
}

static const char *const schemes[] = {"redlock", NULL};

const dibs__engine_class dibs__engine_redlock = {
    .scheme = "redlock",
    .schemes = schemes,
    .no_cells =
        "cells, counters, once and tokens on independent servers would need consensus among "
        "them: use redis, etcd, zookeeper or a database",
    .can = DIBS__REDLOCK_CAN,
    .open = redlock_open,
    .close = redlock_close,
    .abandon = redlock_abandon,
    .enter = dibs__redlock_enter,
    .keep = dibs__redlock_keep,
    .release = dibs__redlock_release,
    .cancel = dibs__redlock_cancel,
    .break_lock = dibs__redlock_break,
    .inspect = dibs__redlock_inspect,
    .list = dibs__redlock_list,
    .event_fd = dibs__redlock_event_fd,
    .events = dibs__redlock_events,
    .examine = redlock_examine,
};
