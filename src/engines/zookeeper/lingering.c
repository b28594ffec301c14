/* Entries that linger: given back before their min_hold was over, they stay in their place under
 * another key, as nodes that no session holds, and store how long.
 *
 * Whoever meets one (its last owner, those behind it, those who list it) removes it when its time is
 * over. The time is the leader's: the entry's own, and the latest that we know of. */
#define _GNU_SOURCE
#include "engines/zookeeper/zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN DIBS__SECOND /* a removal that failed is tried again */

struct dibs__zk_lingering {
    dibs__zk_lingering *next;
    dibs__deadline at;
    char path[];
};

void dibs__zk_lingering_key(const char *key, char out[DIBS__ENTRIES_KEY_SIZE])
{
    snprintf(out, DIBS__ENTRIES_KEY_SIZE, "kept.%s", strlen(key) > 5 ? key + 5 : "");
}

/* Value: "1 PID SPAN_MS …". Before we have seen the leader's clock, ours has to do. */
int64_t dibs__zk_lingering_left(dibs__zk *z, const char *value, const struct Stat *stat)
{
    const dibs__env *env = z->backend.env;
    long long span = 0;
    int64_t now;

    if (!value || sscanf(value, "1 %*d %lld", &span) != 1)
        return 0;
    pthread_mutex_lock(&z->mutex);
    now = z->server_time_at ? z->server_time + (dibs__now(env) - z->server_time_at)
                            : env->wall(env->ctx);
    pthread_mutex_unlock(&z->mutex);
    return span * DIBS__MS - (now - stat->ctime * DIBS__MS);
}

void dibs__zk_lingering_end_after(dibs__zk *z, const char *path, int64_t span)
{
    dibs__zk_lingering *k = malloc(sizeof *k + strlen(path) + 1);

    if (!k)
        return;
    strcpy(k->path, path);
    k->at = dibs__after(z->backend.env, span);
    pthread_mutex_lock(&z->mutex);
    k->next = z->lingering;
    z->lingering = k;
    pthread_cond_signal(&z->cond);
    pthread_mutex_unlock(&z->mutex);
}

static void ask_removal(dibs__zk_op *op)
{
    dibs__zk_sent(op, zoo_adelete(op->z->zh, op->path, -1, dibs__zk_on_void, op), &op->rc);
}

static void removed(dibs__zk_op *op)
{
    if (op->rc != ZOK && op->rc != ZNONODE)
        dibs__zk_lingering_end_after(op->z, op->path, AGAIN);
    dibs__zk_op_free(op);
}

static void remove_answered(dibs__zk_op *op)
{
    dibs__zk_finish(op, op->rc);
}

static void remove_it(dibs__zk *z, const char *path)
{
    dibs__zk_op *op = dibs__zk_op_new(z, NULL, NULL);

    if (!op) {
        dibs__zk_lingering_end_after(z, path, AGAIN);
        return;
    }
    strcpy(op->path, path);
    op->done = removed;
    dibs__zk_follow(op, ask_removal, remove_answered);
}

dibs__deadline dibs__zk_lingering_serve(dibs__zk *z)
{
    dibs__deadline next = DIBS__NEVER, now = dibs__now(z->backend.env);
    dibs__zk_lingering *due = NULL;

    pthread_mutex_lock(&z->mutex);
    for (dibs__zk_lingering **at = &z->lingering; *at;) {
        dibs__zk_lingering *k = *at;
        if (k->at > now) {
            next = dibs__sooner(next, k->at);
            at = &k->next;
            continue;
        }
        *at = k->next;
        k->next = due;
        due = k;
    }
    pthread_mutex_unlock(&z->mutex);
    for (dibs__zk_lingering *k = due, *after; k; k = after) {
        after = k->next;
        remove_it(z, k->path);
        free(k);
    }
    return next;
}

void dibs__zk_lingering_free(dibs__zk *z)
{
    for (dibs__zk_lingering *k = z->lingering, *next; k; k = next) {
        next = k->next;
        free(k);
    }
    z->lingering = NULL;
}
