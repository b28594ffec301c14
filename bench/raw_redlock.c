/* The raw limit on several Redis servers: SET NX PX to all of them in one go, a majority counts, then
 * EVALSHA compare-and-delete on all. hiredis, a connection a worker and server, all requests written
 * before the first reply is read. While it is taken: given back everywhere, and again after a random
 * millisecond or two. No fence, no renewal, and every reply is waited for. */
#include "bench.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LEASE_MS  "30000"
#define GIVE_UP   20.0
#define NODES_MAX 16

static const char compare_and_delete[] =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

typedef struct client {
    redisContext *node[NODES_MAX];
    int count;
    unsigned seed;
    char sha[41], id[64];
} client;

static void close_client(void *arg)
{
    client *c = arg;

    for (int i = 0; c && i < c->count; i++)
        redisFree(c->node[i]);
    free(c);
}

static bool load(client *c, int i)
{
    redisReply *reply = redisCommand(c->node[i], "SCRIPT LOAD %s", compare_and_delete);
    bool loaded = reply && reply->type == REDIS_REPLY_STRING && reply->len == 40;

    if (loaded)
        memcpy(c->sha, reply->str, 41);
    freeReplyObject(reply);
    return loaded;
}

static void *open_client(void *shared, const bench_plan *plan, const char *key)
{
    client *c = calloc(1, sizeof *c);
    char *end = NULL;

    (void)shared;
    (void)key;
    if (!c || !plan->ports)
        return c;
    for (const char *at = plan->ports; *at && c->count < NODES_MAX; at = *end ? end + 1 : end) {
        redisContext *node = redisConnect("127.0.0.1", (int)strtol(at, &end, 10));
        if (!node || node->err || end == at) {
            fprintf(stderr, "bench: no redis on port %.6s\n", at);
            close_client(c);
            return NULL;
        }
        c->node[c->count++] = node;
        if (!load(c, c->count - 1)) {
            close_client(c);
            return NULL;
        }
    }
    c->seed = (unsigned)(uintptr_t)c;
    snprintf(c->id, sizeof c->id, "%d-%p", (int)getpid(), (void *)c);
    return c;
}

/* How many nodes said yes to the command that has been appended to all. */
static int collect(client *c)
{
    int yes = 0;

    for (int i = 0, done = 0; i < c->count; i++, done = 0)
        while (!done && redisBufferWrite(c->node[i], &done) == REDIS_OK)
            ;
    for (int i = 0; i < c->count; i++) {
        void *answer = NULL;
        redisReply *reply;
        if (redisGetReply(c->node[i], &answer) != REDIS_OK)
            return -1;
        reply = answer;
        yes += reply->type == REDIS_REPLY_STATUS ||
               (reply->type == REDIS_REPLY_INTEGER && reply->integer == 1);
        freeReplyObject(reply);
    }
    return yes;
}

static int give_back(client *c, const char *key)
{
    for (int i = 0; i < c->count; i++)
        redisAppendCommand(c->node[i], "EVALSHA %s 1 %s %s", c->sha, key, c->id);
    return collect(c);
}

static int acquire(void *arg, const char *key, uint64_t *fence)
{
    client *c = arg;
    double end = bench_now() + GIVE_UP;

    (void)fence;
    do {
        for (int i = 0; i < c->count; i++)
            redisAppendCommand(c->node[i], "SET %s %s NX PX " LEASE_MS, key, c->id);
        int yes = collect(c);
        if (yes > c->count / 2)
            return 0;
        if (yes < 0 || give_back(c, key) < 0)
            return -1;
        nanosleep(&(struct timespec){0, rand_r(&c->seed) % 2000000}, NULL);
    } while (bench_now() < end);
    return -1;
}

static int release(void *arg, const char *key)
{
    client *c = arg;

    return give_back(c, key) > c->count / 2 ? 0 : -1;
}

const bench_peer bench_redlock_set = {
    .id = "redlock-set",
    .title = "raw SET NX + EVALSHA on all, in parallel",
    .open = open_client,
    .acquire = acquire,
    .release = release,
    .close = close_client,
};
