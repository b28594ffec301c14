/* R12a: Redlock as Redisson has it: the nodes one after another, each with a limit of its own; as many
 * failures as a majority can bear; whoever has his majority resets the lease on every node at the end;
 * whoever has not gives back what he has. A node whose answer did not come in time is unlocked too. */
#include "lab/raw.h"
#include "strategies.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define NODES_MAX 9
#define LIMIT_MS  50

typedef struct nodes {
    redisContext *node[NODES_MAX];
    int count;
    char id[64];
    int64_t lease_ms;
    unsigned seed;
} nodes;

static const char acquire[] =
    "if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then "
    "redis.call('HINCRBY', KEYS[1], ARGV[1], 1) "
    "redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1 end return 0";
static const char release[] = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end "
                              "if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) == 0 then "
                              "redis.call('DEL', KEYS[1]) end return 1";

static void give_all(lab_seat *seat, nodes *n)
{
    for (int i = 0; i < n->count; i++)
        if (n->node[i])
            lab_redis(seat, n->node[i], "EVAL %s 1 lock:%s %s", release, seat->resource, n->id);
    seat->note[0] = '\0';
}

/* True: a majority within what is left of the lease. */
static bool try_all(lab_seat *seat, nodes *n)
{
    int64_t begin = lab_now_us();
    int failed = 0, most = n->count - (n->count / 2 + 1);

    seat->tries++;
    for (int i = 0; i < n->count && failed <= most; i++)
        failed += !n->node[i] || lab_redis(seat, n->node[i], "EVAL %s 1 lock:%s %s %lld", acquire,
                                           seat->resource, n->id, (long long)n->lease_ms) != 1;
    seat->note[0] = '\0';
    if (failed > most || lab_now_us() - begin >= n->lease_ms * 1000) {
        give_all(seat, n);
        return false;
    }
    for (int i = 0; i < n->count; i++)
        if (n->node[i])
            lab_redis(seat, n->node[i], "PEXPIRE lock:%s %lld", seat->resource,
                      (long long)n->lease_ms);
    return true;
}

static bool r12a_lock(lab_seat *seat)
{
    nodes *n = seat->own;

    for (int64_t until = lab_until(seat);;) {
        if (try_all(seat, n))
            return true;
        if (lab_now_us() >= until)
            return false;
        usleep((useconds_t)(rand_r(&n->seed) % 50000));
    }
}

static bool r12a_unlock(lab_seat *seat)
{
    give_all(seat, seat->own);
    return true;
}

static bool r12a_open(lab_seat *seat)
{
    nodes *n = calloc(1, sizeof *n);
    char list[512], *save = NULL;
    struct timeval limit = {.tv_usec = LIMIT_MS * 1000};

    if (!n)
        return lab_note(seat, "out of memory");
    snprintf(list, sizeof list, "%s", seat->site->url[LAB_REDIS_NODES] + strlen("redlock://"));
    for (char *host = strtok_r(list, ",/?", &save); host && n->count < NODES_MAX;
         host = strtok_r(NULL, ",/?", &save)) {
        char url[300];
        snprintf(url, sizeof url, "redis://%.280s", host);
        n->node[n->count] = lab_redis_open(seat, url);
        if (n->node[n->count])
            redisSetTimeout(n->node[n->count], limit);
        n->count++;
    }
    n->lease_ms = seat->pace.lease_ms > 0 ? seat->pace.lease_ms : 30000;
    n->seed = (unsigned)lab_now_us() + (unsigned)seat->thread;
    snprintf(n->id, sizeof n->id, "%d-%d-%lld", (int)getpid(), seat->thread,
             (long long)lab_now_us());
    seat->own = n;
    return true;
}

static void r12a_close(lab_seat *seat)
{
    nodes *n = seat->own;

    for (int i = 0; i < n->count; i++)
        if (n->node[i])
            redisFree(n->node[i]);
    free(n);
}

const lab_strategy lab_r12a = {
    .id = "R12a",
    .name = "redlock-in-turn",
    .title = "Redlock as Redisson has it: nodes one after another",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS_NODES),
    .open = r12a_open,
    .close = r12a_close,
    .lock = r12a_lock,
    .unlock = r12a_unlock,
};
