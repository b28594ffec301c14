/* Raw limits on ZooKeeper, a session for every worker.
 *
 *   zookeeper-node  an ephemeral node created and deleted
 *   zookeeper-line  the lock recipe of ZooKeeper's own documents and no more: a sequential node, a listing, a watch on
 *                   the node before it, a deletion; without a token */
#define THREADED
#include "bench.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zookeeper/zookeeper.h>

#define SESSION_MS 10000
#define PATH_SIZE  256

typedef struct client {
    zhandle_t *zk;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool connected, gone;  /* gone: what was watched has changed */
    char place[PATH_SIZE]; /* of the lock's nodes */
    char mine[PATH_SIZE];  /* the node that is held or waits */
} client;

/* ---- Sessions -------------------------------------------------------------------------------- */

static void notice(zhandle_t *zk, int type, int state, const char *path, void *context)
{
    client *c = context;

    (void)zk;
    (void)path;
    pthread_mutex_lock(&c->mutex);
    if (type == ZOO_SESSION_EVENT)
        c->connected = state == ZOO_CONNECTED_STATE;
    else
        c->gone = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->mutex);
}

static void wait_for(client *c, const bool *what)
{
    pthread_mutex_lock(&c->mutex);
    while (!*what)
        pthread_cond_wait(&c->changed, &c->mutex);
    pthread_mutex_unlock(&c->mutex);
}

static void close_client(void *arg)
{
    client *c = arg;

    if (c->zk)
        zookeeper_close(c->zk);
    free(c);
}

static bool make_node(client *c, const char *path)
{
    int code = zoo_create(c->zk, path, "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0);

    return code == ZOK || code == ZNODEEXISTS;
}

static void *open_client(void *shared, const bench_plan *plan, const char *key)
{
    client *c = calloc(1, sizeof *c);
    char where[64];

    (void)shared;
    if (!c)
        return NULL;
    zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->changed, NULL);
    snprintf(where, sizeof where, "127.0.0.1:%d", plan->node_port);
    snprintf(c->place, sizeof c->place, "/raw/%s", key);
    c->zk = zookeeper_init(where, notice, SESSION_MS, NULL, c, 0);
    if (c->zk) {
        /* By default the library resolves its servers' names anew with every request. */
        zoo_set_servers_resolution_delay(c->zk, 30000);
        wait_for(c, &c->connected);
        if (make_node(c, "/raw") && make_node(c, c->place))
            return c;
    }
    fprintf(stderr, "bench: no ZooKeeper at %s\n", where);
    close_client(c);
    return NULL;
}

/* ---- A node that is there or not ------------------------------------------------------------- */

static int create_node(void *arg, const char *key, uint64_t *fence)
{
    client *c = arg;

    (void)key;
    (void)fence;
    snprintf(c->mine, sizeof c->mine, "%.*s/only", PATH_SIZE - 8, c->place);
    return zoo_create(c->zk, c->mine, "x", 1, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL, NULL, 0);
}

static int delete_node(void *arg, const char *key)
{
    client *c = arg;

    (void)key;
    return zoo_delete(c->zk, c->mine, -1);
}

/* ---- The line -------------------------------------------------------------------------------- */

/* The name right before `mine`; false when there is none. Names differ in their numbers only. */
static bool find_before(const struct String_vector *names, const char *mine, char *out, size_t size)
{
    const char *best = NULL;

    for (int i = 0; i < names->count; i++)
        if (strcmp(names->data[i], mine) < 0 && (!best || strcmp(names->data[i], best) > 0))
            best = names->data[i];
    if (best)
        snprintf(out, size, "%s", best);
    return best;
}

static int join_queue(void *arg, const char *key, uint64_t *fence)
{
    client *c = arg;
    char path[PATH_SIZE + 8], name[PATH_SIZE], before[2 * PATH_SIZE];
    int code;

    (void)key;
    (void)fence;
    snprintf(path, sizeof path, "%s/n-", c->place);
    code = zoo_create(c->zk, path, "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL | ZOO_SEQUENCE,
                      c->mine, sizeof c->mine);
    while (code == ZOK) {
        struct String_vector names = {0};
        code = zoo_get_children(c->zk, c->place, 0, &names);
        bool first = !find_before(&names, strrchr(c->mine, '/') + 1, name, sizeof name);
        deallocate_String_vector(&names);
        if (code != ZOK || first)
            break;
        snprintf(before, sizeof before, "%s/%s", c->place, name);
        c->gone = false;
        code = zoo_wexists(c->zk, before, notice, c, NULL);
        if (code == ZOK)
            wait_for(c, &c->gone);
        code = code == ZNONODE ? ZOK : code;
    }
    return code;
}

const bench_peer bench_zookeeper_node = {
    .id = "zookeeper-node",
    .title = "raw create + delete",
    .open = open_client,
    .acquire = create_node,
    .release = delete_node,
    .close = close_client,
};

const bench_peer bench_zookeeper_queue = {
    .id = "zookeeper-line",
    .title = "raw recipe",
    .open = open_client,
    .acquire = join_queue,
    .release = delete_node,
    .close = close_client,
};
