/* See the header. Nodes are never taken out of the list while the handle lives, so that they may be used without the
 * lock. */
#define _GNU_SOURCE
#include "engines/redis/cluster.h"

#include "core/error.h"
#include "core/thread.h"
#include "engines/redis/address.h"
#include "engines/redis/error.h"
#include "engines/redis/handshake.h"
#include "engines/redis/redis.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOTS    16384
#define DOUBT    (200 * DIBS__MS) /* between two looks at the map while a server does not answer */
#define ASK_SPAN (500 * DIBS__MS) /* one that is silent does not eat all of the time */

struct dibs__cluster {
    dibs__redis_address *seed[DIBS__HOSTS_MAX]; /* of the URL */
    size_t seeds;
    dibs__redis *r;
    pthread_mutex_t lock;    /* of the list of nodes and of `next` */
    pthread_mutex_t asking;  /* for the map */
    atomic_uint maps;        /* so many have come */
    _Atomic int64_t doubted; /* when it was last asked for because a server did not answer */
    unsigned next;           /* who is asked first: not always the same one */
    dibs__redis_node **node; /* owned; all that were ever seen */
    size_t nodes, room;
    _Atomic(dibs__redis_node *) owner[DIBS__BUCKETS];
    unsigned slot[DIBS__BUCKETS];
};

/* ---- Slots and buckets ----------------------------------------------------------------------- */

/* CRC-16/XMODEM, of which the lowest 14 bits are the slot. */
static unsigned checksum(const char *text)
{
    unsigned crc = 0;

    for (; *text; text++) {
        crc ^= (unsigned)(unsigned char)*text << 8;
        for (int i = 0; i < 8; i++)
            crc = (crc << 1 ^ (crc & 0x8000 ? 0x1021 : 0)) & 0xffff;
    }
    return crc;
}

unsigned dibs__cluster_bucket(const char *name)
{
    return checksum(name) & (DIBS__BUCKETS - 1);
}

unsigned dibs__cluster_slot(unsigned bucket)
{
    char tag[8];

    snprintf(tag, sizeof tag, "%03x", bucket & (DIBS__BUCKETS - 1));
    return checksum(tag) & (SLOTS - 1);
}

dibs__redis_node *dibs__cluster_owner(const dibs__cluster *c, unsigned bucket)
{
    return atomic_load(&c->owner[bucket]);
}

/* ---- The URL --------------------------------------------------------------------------------- */

static dibs_status add_seed(dibs__cluster *c, const dibs__redis_address *like,
                            const dibs__url_host *host, dibs_error *err)
{
    dibs__redis_address *a;

    if (!host->name[0])
        return dibs__fail(err, DIBS_INVALID, "redis+cluster: a host is missing in the list");
    a = calloc(1, sizeof *a);
    if (!a || !(a->host = strdup(host->name))) {
        free(a);
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    }
    c->seed[c->seeds++] = a;
    a->env = like->env;
    a->tls = like->tls;
    a->port = host->port ? host->port : DIBS__REDIS_PORT;
    snprintf(a->text, sizeof a->text, "redis at %.200s:%d", a->host, a->port);
    return dibs__address_login(a, like->user, like->password, err);
}

dibs_status dibs__cluster_read_url(dibs__url *url, dibs__redis_address *address, dibs_error *err)
{
    dibs__cluster *c = calloc(1, sizeof *c);
    bool tls = false;
    dibs_status status;

    if (!c)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    address->cluster = c;
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->asking, NULL);
    for (unsigned i = 0; i < DIBS__BUCKETS; i++)
        c->slot[i] = dibs__cluster_slot(i);
    snprintf(address->text, sizeof address->text, "redis cluster");
    if (url->path[0] && strcmp(url->path, "/") != 0 && strcmp(url->path, "/0") != 0)
        return dibs__fail(err, DIBS_INVALID, "a cluster has only database 0: leave it out");
    status = dibs__address_flag(url, "tls", &tls, err);
    if (status == DIBS_OK && tls)
        status = dibs__address_tls(url, &address->tls, err);
    for (size_t i = 0; i < url->host_count && status == DIBS_OK; i++)
        status = add_seed(c, address, &url->host[i], err);
    if (status == DIBS_OK && c->seeds == 0)
        status = dibs__fail(err, DIBS_INVALID,
                            "redis+cluster needs servers to begin with: redis+cluster://h1,h2");
    return status;
}

void dibs__cluster_free(dibs__cluster *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->nodes; i++)
        dibs__redis_node_free(c->node[i]);
    free(c->node);
    for (size_t i = 0; i < c->seeds; i++) {
        dibs__address_fini(c->seed[i]);
        free(c->seed[i]);
    }
    pthread_mutex_destroy(&c->asking);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void dibs__cluster_abandon(dibs__cluster *c)
{
    for (size_t i = 0; c && i < c->nodes; i++)
        dibs__pipeline_abandon(c->node[i]->pipeline);
}

/* ---- The list of nodes ----------------------------------------------------------------------- */

static bool make_room(dibs__cluster *c)
{
    size_t room = c->room ? 2 * c->room : 16;
    dibs__redis_node **node = c->nodes < c->room ? c->node : realloc(c->node, room * sizeof *node);

    if (!node)
        return false;
    c->room = c->nodes < c->room ? c->room : room;
    c->node = node;
    return true;
}

/* With the lock. NULL: out of memory. */
static dibs__redis_node *find_node(dibs__cluster *c, const char *host, int port)
{
    for (size_t i = 0; i < c->nodes; i++)
        if (c->node[i]->address.port == port && strcmp(c->node[i]->address.host, host) == 0)
            return c->node[i];
    if (!make_room(c) || !(c->node[c->nodes] = dibs__redis_node_new(c->r, host, port)))
        return NULL;
    return c->node[c->nodes++];
}

size_t dibs__cluster_nodes(dibs__cluster *c, dibs__redis_node *out[DIBS__NODES_MAX])
{
    size_t count = 0;

    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < c->nodes; i++)
        if (c->node[i]->serves)
            out[count++] = c->node[i];
    pthread_mutex_unlock(&c->lock);
    return count;
}

/* ---- Asking somebody ------------------------------------------------------------------------- */

/* With the lock. */
static bool is_suspect(const dibs__cluster *c, const dibs__redis_address *at)
{
    for (size_t i = 0; i < c->nodes; i++)
        if (c->node[i]->address.port == at->port && strcmp(c->node[i]->address.host, at->host) == 0)
            return atomic_load(&c->node[i]->suspect);
    return false;
}

/* Whom to ask, the best ones first: masters that serve, what the URL says, masters that did not serve the last time. */
static size_t list_all(dibs__cluster *c, const dibs__redis_node *first,
                       const dibs__redis_address *out[DIBS__NODES_MAX + DIBS__HOSTS_MAX + 1])
{
    size_t count = 0;

    pthread_mutex_lock(&c->lock);
    c->next++;
    if (first)
        out[count++] = &first->address;
    for (int suspects = 0; suspects < 2; suspects++) {
        for (size_t i = 0; i < c->nodes; i++) {
            const dibs__redis_node *n = c->node[(i + c->next) % c->nodes];
            if (n != first && n->serves && atomic_load(&n->suspect) == suspects)
                out[count++] = &n->address;
        }
        for (size_t i = 0; i < c->seeds; i++) {
            const dibs__redis_address *at = c->seed[(i + c->next) % c->seeds];
            if (is_suspect(c, at) == suspects)
                out[count++] = at;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return count;
}

/* What to do with a new connection: DIBS_OK ends the search. */
typedef dibs_status (*use_fn)(dibs__cluster *c, const dibs__redis_address *at, dibs__conn **conn,
                              dibs__deadline until, dibs_error *err);

static dibs_status try_all(dibs__cluster *c, const dibs__redis_node *first, use_fn use,
                           dibs__conn **out, dibs__deadline until, dibs_error *err)
{
    const dibs__redis_address *list[DIBS__NODES_MAX + DIBS__HOSTS_MAX + 1];
    size_t count = list_all(c, first, list);
    dibs_status status = DIBS_UNAVAILABLE;

    for (size_t i = 0; i < count && (i == 0 || dibs__now(c->seed[0]->env) < until); i++) {
        dibs__deadline soon = dibs__sooner(until, dibs__after(c->seed[0]->env, ASK_SPAN));
        status = dibs__redis_connect(list[i], soon, out, err);
        if (status == DIBS_OK)
            status = use(c, list[i], out, soon, err);
        if (status == DIBS_OK)
            return status;
    }
    return status;
}

static dibs_status take_it(dibs__cluster *c, const dibs__redis_address *at, dibs__conn **conn,
                           dibs__deadline until, dibs_error *err)
{
    (void)c;
    (void)at;
    (void)conn;
    (void)until;
    (void)err;
    return DIBS_OK;
}

dibs_status dibs__cluster_connect(dibs__cluster *c, dibs__deadline until, dibs__conn **out,
                                  dibs_error *err)
{
    return try_all(c, NULL, take_it, out, until, err);
}

/* ---- The map --------------------------------------------------------------------------------- */

static const redisReply *element(const redisReply *reply, size_t i, int type)
{
    return reply && reply->type == REDIS_REPLY_ARRAY && i < reply->elements &&
                   reply->element[i]->type == type
               ? reply->element[i]
               : NULL;
}

/* {first slot, last slot, {host, port, ...}, replicas}. Without a host it is the one that was asked. */
static bool take_range(dibs__cluster *c, const redisReply *range, const char *asked,
                       dibs__redis_node *owner[DIBS__BUCKETS])
{
    const redisReply *from = element(range, 0, REDIS_REPLY_INTEGER);
    const redisReply *to = element(range, 1, REDIS_REPLY_INTEGER);
    const redisReply *master = element(range, 2, REDIS_REPLY_ARRAY);
    const redisReply *host = element(master, 0, REDIS_REPLY_STRING);
    const redisReply *port = element(master, 1, REDIS_REPLY_INTEGER);
    dibs__redis_node *n;

    if (!from || !to || !port || port->integer < 1 || port->integer > 65535)
        return false;
    n = find_node(c, host && host->len > 0 ? host->str : asked, (int)port->integer);
    for (unsigned i = 0; i < DIBS__BUCKETS; i++)
        if (c->slot[i] >= from->integer && c->slot[i] <= to->integer)
            owner[i] = n;
    return n != NULL;
}

/* With the lock: which nodes have slots now. False: too many. */
static bool list_owners(const dibs__cluster *c, dibs__redis_node *const owner[DIBS__BUCKETS])
{
    size_t count = 0;

    for (size_t i = 0; i < c->nodes; i++)
        c->node[i]->listed = false;
    for (unsigned b = 0; b < DIBS__BUCKETS; b++)
        if (owner[b] && !owner[b]->listed) {
            owner[b]->listed = true;
            count++;
        }
    return count <= DIBS__NODES_MAX;
}

/* With the lock. Those that have lost their last slot keep nobody waiting: what is unanswered there ends as unknown.
 * `*gone`: there are such. True: something has changed. */
static bool take_over(dibs__cluster *c, dibs__redis_node *const owner[DIBS__BUCKETS], bool *gone)
{
    bool changed = false;

    for (unsigned b = 0; b < DIBS__BUCKETS; b++)
        changed |= atomic_exchange(&c->owner[b], owner[b]) != owner[b];
    for (size_t i = 0; i < c->nodes; i++) {
        if (c->node[i]->serves && !c->node[i]->listed) {
            dibs__pipeline_renew(c->node[i]->pipeline);
            *gone = true;
        }
        c->node[i]->serves = c->node[i]->listed;
    }
    return changed;
}

static dibs_status read_map(dibs__cluster *c, const redisReply *reply, const char *asked,
                            bool *changed, dibs_error *err)
{
    dibs__redis_node *owner[DIBS__BUCKETS] = {NULL};
    bool whole = true, gone = false;

    if (reply->type != REDIS_REPLY_ARRAY)
        return dibs__redis_refusal(reply, err);
    if (reply->elements == 0)
        return dibs__fail(err, DIBS_UNAVAILABLE,
                          "no slots are assigned in this cluster: see redis-cli --cluster create");
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < reply->elements; i++)
        whole &= take_range(c, reply->element[i], asked, owner);
    whole = whole && list_owners(c, owner);
    *changed = whole && take_over(c, owner, &gone);
    pthread_mutex_unlock(&c->lock);
    if (gone) /* the subscription may be at that server */
        dibs__events_renew(c->r->events);
    return whole ? DIBS_OK
                 : dibs__fail(err, DIBS_NO_MEMORY, "redis: out of memory, or too many servers");
}

/* `*conn` is closed. */
static dibs_status ask_for_map(dibs__cluster *c, const dibs__redis_address *at, dibs__conn **conn,
                               dibs__deadline until, dibs_error *err)
{
    dibs__bytes bytes = {0};
    redisReply *reply = NULL;
    dibs_status status;
    bool changed = false;

    dibs__resp_begin(&bytes, 2);
    dibs__resp_text(&bytes, "CLUSTER");
    dibs__resp_text(&bytes, "SLOTS");
    status = dibs__conn_ask(*conn, &bytes, &reply, 1, until, err);
    if (status == DIBS_OK)
        status = read_map(c, reply, at->host, &changed, err);
    if (status != DIBS_OK)
        dibs__wrap(err, "%s", at->text);
    if (changed)
        atomic_fetch_add(&c->maps, 1);
    if (reply)
        freeReplyObject(reply);
    dibs__bytes_fini(&bytes);
    dibs__conn_close(*conn);
    *conn = NULL;
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

bool dibs__cluster_refresh(dibs__cluster *c, dibs__redis_node *first, dibs__deadline until)
{
    unsigned before = atomic_load(&c->maps);
    int64_t left = until - dibs__now(c->seed[0]->env);
    dibs__conn *none = NULL;

    if (dibs__mutex_lock_within(&c->asking, left > 0 ? left : 0) != 0)
        return false;
    if (atomic_load(&c->maps) == before)
        try_all(c, first, ask_for_map, &none, until, NULL);
    pthread_mutex_unlock(&c->asking);
    return atomic_load(&c->maps) != before;
}

void dibs__cluster_doubt(dibs__cluster *c, dibs__deadline until)
{
    int64_t now = dibs__now(c->seed[0]->env), last = atomic_load(&c->doubted);

    if (now - last >= DOUBT && atomic_compare_exchange_strong(&c->doubted, &last, now))
        dibs__cluster_refresh(c, NULL, until);
}

dibs_status dibs__cluster_survey(dibs__cluster *c, dibs__redis *r, dibs__deadline until,
                                 dibs_error *err)
{
    dibs__conn *none = NULL;

    c->r = r;
    return try_all(c, NULL, ask_for_map, &none, until, err);
}

dibs_status dibs__cluster_open(dibs__cluster *c, dibs__redis *r, dibs__deadline until,
                               dibs_error *err)
{
    dibs__redis_node *nodes[DIBS__NODES_MAX];
    dibs_status status = dibs__cluster_survey(c, r, until, err);
    size_t count;

    count = status == DIBS_OK ? dibs__cluster_nodes(c, nodes) : 0;
    /* One is enough to see whether we may come in; all, to vouch for them. */
    for (size_t i = 0; i < count; i++) {
        status = dibs__pipeline_open(nodes[i]->pipeline, until, err);
        atomic_store(&nodes[i]->suspect, status != DIBS_OK);
        if (status == DIBS_OK ? !r->guard.vouched : r->guard.vouched || status != DIBS_UNAVAILABLE)
            break;
    }
    return status;
}
