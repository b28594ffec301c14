/* The Redis engine: its table, its URL, its beginning and end.
 *
 *   redis://[[user]:password@]host[:port][/db]     rediss:// the same with TLS (ca=, cert=, key=)
 *   redis+unix://[[user]:password@]/path/to.sock[?db=N]
 *
 *   redis+sentinel://[[user]:password@]s1[:port],s2,.../SERVICE[/db]    see sentinel.h
 *   redis+cluster://[[user]:password@]h1[:port],h2,...                  see cluster.h
 *
 * and prefix= for the keys, which begin with "dibs" otherwise. */
#define _GNU_SOURCE
#include "engines/redis/redis.h"

#include "core/error.h"
#include "doctor/facts.h"
#include "engines/capabilities.h"
#include "engines/redis/examine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#define GUARD "guard, wait, wait_ms, max_lease"

extern const dibs__engine_class dibs__engine_redis;

/* ---- The URL --------------------------------------------------------------------------------- */

static dibs_status read_socket(dibs__url *url, dibs__redis_address *address, dibs_error *err)
{
    struct sockaddr_un socket_address;

    if (url->path[0] != '/' || (url->host_count > 0 && url->host[0].name[0]))
        return dibs__fail(err, DIBS_INVALID,
                          "redis+unix needs the path of a socket: redis+unix:///path/to.sock");
    if (strlen(url->path) >= sizeof socket_address.sun_path)
        return dibs__fail(err, DIBS_INVALID, "the socket's path is longer than %zu bytes",
                          sizeof socket_address.sun_path - 1);
    if (!(address->socket = strdup(url->path)))
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    snprintf(address->text, sizeof address->text, "redis at %.200s", url->path);
    return dibs__url_take_number(url, "db", 0, INT32_MAX, &address->db, err);
}

static dibs_status read_host(dibs__url *url, dibs__redis_address *address, dibs_error *err)
{
    const char *host;

    if (url->host_count != 1)
        return dibs__fail(err, DIBS_INVALID, "redis:// takes one host: write redis://host:port");
    host = url->host[0].name[0] ? url->host[0].name : "127.0.0.1";
    if (!(address->host = strdup(host)))
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    address->port = url->host[0].port ? url->host[0].port : DIBS__REDIS_PORT;
    snprintf(address->text, sizeof address->text, "redis at %.200s:%d", host, address->port);
    if (url->path[0] && strcmp(url->path, "/") != 0)
        return dibs__address_db(url->path + 1, &address->db, err);
    return DIBS_OK;
}

static dibs_status read_url(dibs__url *url, dibs__redis *r, dibs_error *err)
{
    bool socket = strcmp(url->scheme, "redis+unix") == 0;
    bool tls = strcmp(url->scheme, "rediss") == 0;
    bool sentinel = strcmp(url->scheme, "redis+sentinel") == 0;
    bool cluster = strcmp(url->scheme, "redis+cluster") == 0;
    dibs_status status = dibs__address_login(&r->address, url->user, url->password, err);

    if (status == DIBS_OK)
        status = sentinel  ? dibs__sentinels_read_url(url, &r->address, err)
                 : cluster ? dibs__cluster_read_url(url, &r->address, err)
                 : socket  ? read_socket(url, &r->address, err)
                           : read_host(url, &r->address, err);
    if (status == DIBS_OK)
        status = dibs__address_prefix(url, r->prefix, err);
    if (status == DIBS_OK && tls)
        status = dibs__address_tls(url, &r->address.tls, err);
    if (status == DIBS_OK)
        status = dibs__guard_read_url(&r->guard, url, sentinel || cluster, err);
    if (status == DIBS_OK && cluster && r->prefix[strlen(r->prefix) - 1] == ':')
        status = dibs__fail(err, DIBS_INVALID,
                            "prefix= in the URL of a cluster must not end with a colon");
    if (status == DIBS_OK)
        status = dibs__url_all_taken(
            url,
            sentinel  ? "prefix, tls, sentinel_tls, sentinel_user, sentinel_password, ca, cert, "
                        "key, sentinel_ca, sentinel_cert, sentinel_key, " GUARD
            : cluster ? "prefix, tls, ca, cert, key, " GUARD
            : socket  ? "prefix, db, " GUARD
            : tls     ? "prefix, ca, cert, key, " GUARD
                      : "prefix, " GUARD,
            err);
    return status;
}

/* ---- Beginning and end ----------------------------------------------------------------------- */

static void redis_close(dibs__engine *e)
{
    dibs__redis *r = (dibs__redis *)e;
    dibs__tls_context *tls;

    dibs__redis_node_free(r->node);
    dibs__events_free(r->events);
    dibs__scripts_fini(&r->scripts);
    tls = r->address.tls; /* of the cluster's servers, too */
    dibs__address_fini(&r->address);
    dibs__tls_context_free(tls);
    free(r);
}

static void redis_abandon(dibs__engine *e)
{
    dibs__redis *r = (dibs__redis *)e;

    if (r->node)
        dibs__pipeline_abandon(r->node->pipeline);
    dibs__cluster_abandon(r->address.cluster);
    dibs__sentinels_abandon(r->address.sentinels);
    dibs__events_abandon(r->events);
}

/* ---- Beginning ---------------------------------------------------------------------------------- */

/* What it is made of, before it talks to anybody. */
static bool make_parts(dibs__redis *r)
{
    r->events = dibs__events_new();
    if (!r->events || !dibs__scripts_init(&r->scripts, dibs__redis_lua, DIBS__REDIS_SCRIPTS, 2))
        return false;
    if (r->address.cluster)
        return true;
    r->node = dibs__redis_node_new(r, NULL, 0);
    return r->node && (!r->address.sentinels ||
                       dibs__events_watch(r->events, dibs__sentinels_fd(r->address.sentinels)));
}

static dibs_status redis_open(const dibs__open_request *request, dibs__engine **out,
                              dibs_error *err)
{
    dibs__redis *r = calloc(1, sizeof *r);
    dibs_status status;

    if (!r)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    r->base =
        (dibs__engine){.class = &dibs__engine_redis, .env = request->env, .sink = request->sink};
    r->address.env = request->env;
    r->request_span = request->request_span;
    status = read_url(request->url, r, err);
    if (status == DIBS_OK) {
        snprintf(r->id, sizeof r->id, "%s", request->handle_id);
        snprintf(r->channel, sizeof r->channel, "%s:wake:%s", r->prefix, request->handle_id);
        if (!make_parts(r))
            status = dibs__fail(err, DIBS_NO_MEMORY, "redis: out of memory or descriptors");
    }
    if (status == DIBS_OK)
        status = r->node ? dibs__pipeline_open(r->node->pipeline, request->until, err)
                         : dibs__cluster_open(r->address.cluster, r, request->until, err);
    if (status != DIBS_OK)
        redis_close(&r->base);
    else
        *out = &r->base;
    return status;
}

/* What the URL asks for, beside what the server says. */
static void add_guard(const dibs__redis *r, dibs__facts *f)
{
    dibs__fact_flag(f, "guarded_server", r->guard.on);
    dibs__fact_flag(f, "by_sentinel", r->address.sentinels != NULL);
    dibs__fact_flag(f, "by_cluster", r->address.cluster != NULL);
    dibs__fact_number(f, "wait", r->guard.replicas);
    dibs__fact_flag(f, "enough_replicas",
                    dibs__fact_value(f, "replicas", r->guard.replicas) >= r->guard.replicas);
    dibs__fact_flag(f, "loses_writes",
                    strcmp(dibs__fact_text(f, "appendonly", "yes"), "yes") != 0 ||
                        strcmp(dibs__fact_text(f, "appendfsync", "always"), "always") != 0);
}

/* Each master, as a server of its own. */
static dibs_status examine_masters(dibs__redis *r, dibs__deadline until, dibs__facts *out,
                                   dibs_error *err)
{
    dibs__redis_node *node[DIBS__NODES_MAX];
    dibs_status status = dibs__cluster_survey(r->address.cluster, r, until, err);
    size_t count = status == DIBS_OK ? dibs__cluster_nodes(r->address.cluster, node) : 0;

    for (size_t i = 0; i < count && status == DIBS_OK; i++) {
        dibs__facts *f = dibs__facts_part(out, "redis", "%s", node[i]->address.text);
        dibs__fact_number(f, "lease_ms", dibs__fact_value(out, "lease_ms", 0));
        status = dibs__redis_examine_server(&node[i]->address, r->prefix, until, f, err);
        if (f->latency.p99_us >= out->latency.p99_us)
            out->latency = f->latency;
        add_guard(r, f);
    }
    return status;
}

static dibs_status redis_examine(const dibs__open_request *request, dibs__facts *out,
                                 dibs_error *err)
{
    dibs__redis r = {.base = {.env = request->env, .sink = request->sink},
                     .address.env = request->env};
    dibs_status status = read_url(request->url, &r, err);

    if (status == DIBS_OK && r.address.cluster) {
        status = examine_masters(&r, request->until, out, err);
    } else if (status == DIBS_OK) {
        status = dibs__redis_examine_server(&r.address, r.prefix, request->until, out, err);
        add_guard(&r, out);
    }
    dibs__tls_context_free(r.address.tls);
    dibs__address_fini(&r.address);
    return status;
}

static const char *const schemes[] = {"redis",          "rediss",        "redis+unix",
                                      "redis+sentinel", "redis+cluster", NULL};

const dibs__engine_class dibs__engine_redis = {
    .scheme = "redis",
    .schemes = schemes,
    .can = DIBS__SERVER_CAN,
    .open = redis_open,
    .close = redis_close,
    .abandon = redis_abandon,
    .enter = dibs__redis_enter,
    .keep = dibs__redis_keep,
    .release = dibs__redis_release,
    .cancel = dibs__redis_cancel,
    .break_lock = dibs__redis_break,
    .inspect = dibs__redis_inspect,
    .list = dibs__redis_list,
    .cell = dibs__redis_cell,
    .watch = dibs__redis_watch,
    .cell_list = dibs__redis_cell_list,
    .event_fd = dibs__redis_event_fd,
    .events = dibs__redis_events,
    .examine = redis_examine,
};
