/* R12a: our model of Redisson's published form of Redlock (RedissonRedLock, which later versions deprecate):
 * R10's lock on each node, one node after another, each with its share of the time to wait and with a
 * lease of twice that time. As many nodes may fail as a majority can bear; with one failure more it gives
 * back what it has and begins again. With a majority it sets the real lease on the nodes that it has. It
 * gives back on all nodes at once. A node that does not reply in time is unlocked too. */
#include "redisson.h"
#include "strategies.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define NODES_MAX     9
#define REPLY_S       3    /* Redisson's default timeout */
#define WAIT_EACH_MS  1500 /* of lock(), for each node, at least */
#define WAIT_LEAST_MS 2000

typedef struct cluster {
    char url[NODES_MAX][300];
    lab_redisson *node[NODES_MAX]; /* NULL: not reached */
    int count;
} cluster;

typedef struct redlock_buyer {
    lab_redisson_thread thread[NODES_MAX]; /* `redis` is NULL: not reached */
    bool has[NODES_MAX];
    int64_t lease_ms;
    unsigned seed;
} redlock_buyer;

/* ---- One after another ----------------------------------------------------------------------- */

static void give(lab_buyer *buyer, redlock_buyer *b, int count, bool all)
{
    bool asked[NODES_MAX];

    for (int i = 0; i < count; i++) {
        asked[i] = b->thread[i].redis && (all || b->has[i]);
        if (asked[i])
            lab_redisson_unlock_send(&b->thread[i], b->lease_ms);
    }
    for (int i = 0; i < count; i++) {
        if (asked[i])
            lab_redisson_unlock_hear(buyer, &b->thread[i]);
        b->has[i] = false;
    }
    buyer->note[0] = '\0';
}

static bool take_node(lab_buyer *buyer, redlock_buyer *b, int i, const lab_redisson_wish *wish)
{
    uint64_t tries = buyer->tries; /* rounds are counted, not nodes */
    int got = b->thread[i].redis ? lab_redisson_lock(buyer, &b->thread[i], wish) : 0;

    buyer->tries = tries;
    if (!b->thread[i].redis)
        usleep(1000); /* Redisson would try to connect, for longer */
    if (got < 0) {
        lab_redisson_unlock_send(&b->thread[i], b->lease_ms);
        lab_redisson_unlock_hear(buyer, &b->thread[i]);
    }
    buyer->note[0] = '\0';
    b->has[i] = got == 1;
    return b->has[i];
}

static void set_lease(redlock_buyer *b, int count, const char *resource)
{
    redisReply *reply;

    for (int i = 0; i < count; i++)
        if (b->has[i])
            redisAppendCommand(b->thread[i].redis, "PEXPIRE lock:%s %lld", resource,
                               (long long)b->lease_ms);
    for (int i = 0; i < count; i++)
        if (b->has[i] && redisGetReply(b->thread[i].redis, (void **)&reply) == REDIS_OK)
            freeReplyObject(reply);
}

/* Redisson's tryLock(wait, lease). */
static bool try_lock(lab_buyer *buyer, redlock_buyer *b, int count, int64_t wait_ms)
{
    const int bearable = count - (count / 2 + 1);
    int64_t until = lab_now_us() + wait_ms * 1000, share = wait_ms * 1000 / count, now;
    int may_fail = bearable, have = 0;
    lab_redisson_wish wish = {.lease_ms = wait_ms * 2};

    buyer->tries++;
    for (int i = 0; i < count; i++) {
        now = lab_now_us();
        wish.until_us = now + share < until ? now + share : until;
        if (take_node(buyer, b, i, &wish)) {
            have++;
        } else if (count - have == bearable) {
            break;
        } else if (may_fail-- == 0) {
            give(buyer, b, count, false);
            may_fail = bearable;
            have = 0;
            i = -1;
            buyer->tries++;
        }
        if (lab_now_us() >= until) {
            give(buyer, b, count, false);
            return false;
        }
    }
    set_lease(b, count, buyer->resource);
    return true;
}

/* Redisson's lock(lease): tryLock again and again, with a time to wait made of the lease. */
static int64_t some_wait(redlock_buyer *b, int count)
{
    int64_t least = (int64_t)count * WAIT_EACH_MS, lease = b->lease_ms;
    int64_t from = lease <= least ? lease / 2 : least;

    if (lease <= WAIT_LEAST_MS)
        return WAIT_LEAST_MS;
    return from + rand_r(&b->seed) % (lease - from);
}

static bool r12a_lock(lab_buyer *buyer)
{
    const cluster *c = buyer->shared;

    if (buyer->pace.wait_ms != 0)
        return try_lock(buyer, buyer->own, c->count,
                        buyer->pace.wait_ms > 0 ? buyer->pace.wait_ms : 1);

    while (!try_lock(buyer, buyer->own, c->count, some_wait(buyer->own, c->count)))
        continue;
    return true;
}

static bool r12a_unlock(lab_buyer *buyer)
{
    const cluster *c = buyer->shared;

    give(buyer, buyer->own, c->count, true);
    return true;
}

/* ---- Processes and buyers --------------------------------------------------------------------- */

static bool open_cluster(lab_buyer *buyer)
{
    cluster *c = calloc(1, sizeof *c);
    char list[512], *save = NULL;

    if (!c)
        return lab_note(buyer, "out of memory");
    snprintf(list, sizeof list, "%s", buyer->site->url[LAB_REDIS_NODES] + strlen("redlock://"));
    for (char *host = strtok_r(list, ",/?", &save); host && c->count < NODES_MAX;
         host = strtok_r(NULL, ",/?", &save)) {
        snprintf(c->url[c->count], sizeof c->url[0], "redis://%.280s", host);
        c->node[c->count] = lab_redisson_new(buyer, c->url[c->count]);
        c->count++;
    }
    buyer->shared = c;
    for (int i = 0; i < c->count; i++)
        if (c->node[i]) {
            buyer->note[0] = '\0';
            return true;
        }
    free(c);
    return false; /* none: the note is the last one's */
}

static void close_cluster(lab_buyer *buyer)
{
    cluster *c = buyer->shared;

    for (int i = 0; i < c->count; i++)
        lab_redisson_free(c->node[i]);
    free(c);
}

static bool r12a_open(lab_buyer *buyer)
{
    const cluster *c = buyer->shared;
    const struct timeval limit = {.tv_sec = REPLY_S};
    redlock_buyer *b = calloc(1, sizeof *b);

    if (!b)
        return lab_note(buyer, "out of memory");
    b->lease_ms = buyer->pace.lease_ms > 0 ? buyer->pace.lease_ms : 30000;
    b->seed = (unsigned)lab_now_us() + (unsigned)buyer->thread;
    for (int i = 0; i < c->count; i++) {
        lab_redisson_thread *t = &b->thread[i];
        t->client = c->node[i];
        t->redis = t->client ? lab_redis_open(buyer, c->url[i]) : NULL;
        if (t->redis)
            redisSetTimeout(t->redis, limit);
        snprintf(t->id, sizeof t->id, "%d-%d-%lld", (int)getpid(), buyer->thread,
                 (long long)lab_now_us());
    }
    buyer->note[0] = '\0';
    buyer->own = b;
    return true;
}

static void r12a_close(lab_buyer *buyer)
{
    redlock_buyer *b = buyer->own;

    for (int i = 0; i < NODES_MAX; i++)
        redisFree(b->thread[i].redis);
    free(b);
}

const lab_strategy lab_r12a = {
    .id = "R12a",
    .name = "redlock-in-turn",
    .title = "our model of Redisson's published form of Redlock",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS_NODES),
    .open_process = open_cluster,
    .close_process = close_cluster,
    .open = r12a_open,
    .close = r12a_close,
    .lock = r12a_lock,
    .unlock = r12a_unlock,
};
