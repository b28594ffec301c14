/* Raw limits on one Redis: hiredis and nothing but the calls that a lock cannot do without, a
 * connection for every worker.
 *
 *   redis-set         SET NX PX, then EVALSHA compare-and-delete: what most clients do. Retried at
 * once while taken, so it is measured only where nobody is in the way. redis-blpop       a token in
 * a list: BLPOP takes it, LPUSH gives it back. First come, first served, but no lease, no owner, no
 * fence: a dead holder keeps it for ever. redis-blpop-lua   the same, given back by a script: the
 * least that a hand-over with rules can cost. */
#include "bench.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEASE_MS   "30000"
#define GIVE_UP    20.0 /* seconds of trying before an acquire counts as failed */
#define SCRIPT_SHA 41

static const char compare_and_delete[] =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";
static const char push_token[] = "return redis.call('lpush', KEYS[1], ARGV[1])";

typedef struct client {
    redisContext *connection;
    char sha[SCRIPT_SHA];
    char id[64];
} client;

static redisContext *connect_to(int port)
{
    redisContext *connection = redisConnect("127.0.0.1", port);

    if (connection && !connection->err)
        return connection;
    fprintf(stderr, "bench: no redis on port %d\n", port);
    if (connection)
        redisFree(connection);
    return NULL;
}

static void close_client(void *arg)
{
    client *c = arg;

    if (c && c->connection)
        redisFree(c->connection);
    free(c);
}

static client *open_client(const bench_plan *plan, const char *script)
{
    client *c = calloc(1, sizeof *c);
    redisReply *reply;

    if (!c)
        return NULL;
    c->connection = connect_to(plan->port);
    if (!c->connection) {
        close_client(c);
        return NULL;
    }
    snprintf(c->id, sizeof c->id, "%d-%p", (int)getpid(), (void *)c);
    reply = redisCommand(c->connection, "SCRIPT LOAD %s", script);
    if (reply && reply->type == REDIS_REPLY_STRING && reply->len < SCRIPT_SHA)
        memcpy(c->sha, reply->str, reply->len);
    freeReplyObject(reply);
    return c;
}

/* The integer that the command answered, or -1. */
static long long number(redisReply *reply)
{
    long long value = reply && reply->type == REDIS_REPLY_INTEGER ? reply->integer : -1;

    freeReplyObject(reply);
    return value;
}

/* ---- SET NX + EVALSHA
 * ---------------------------------------------------------------------------- */

static void *set_open(void *shared, const bench_plan *plan, const char *key)
{
    (void)shared;
    (void)key;
    return open_client(plan, compare_and_delete);
}

static int set_acquire(void *arg, const char *key, uint64_t *fence)
{
    client *c = arg;
    double end = bench_now() + GIVE_UP;

    (void)fence;
    do {
        redisReply *reply = redisCommand(c->connection, "SET %s %s NX PX " LEASE_MS, key, c->id);
        int type = reply ? reply->type : REDIS_REPLY_ERROR;
        freeReplyObject(reply);
        if (type == REDIS_REPLY_STATUS)
            return 0;
        if (type != REDIS_REPLY_NIL)
            return -1;
    } while (bench_now() < end);
    return -1;
}

static int set_release(void *arg, const char *key)
{
    client *c = arg;

    return number(redisCommand(c->connection, "EVALSHA %s 1 %s %s", c->sha, key, c->id)) == 1 ? 0
                                                                                              : -1;
}

/* ---- A token in a list
 * ----------------------------------------------------------------------------- */

/* Whoever comes first puts the token there. */
static void *token_open(void *shared, const bench_plan *plan, const char *key)
{
    client *c = open_client(plan, push_token);

    (void)shared;
    if (c && number(redisCommand(c->connection, "SETNX made:%s 1", key)) == 1)
        number(redisCommand(c->connection, "LPUSH token:%s 1", key));
    return c;
}

static int token_acquire(void *arg, const char *key, uint64_t *fence)
{
    client *c = arg;
    redisReply *reply = redisCommand(c->connection, "BLPOP token:%s %d", key, (int)GIVE_UP);
    bool got = reply && reply->type == REDIS_REPLY_ARRAY;

    (void)fence;
    freeReplyObject(reply);
    return got ? 0 : -1;
}

static int token_release(void *arg, const char *key)
{
    client *c = arg;

    return number(redisCommand(c->connection, "LPUSH token:%s 1", key)) >= 0 ? 0 : -1;
}

static int token_release_lua(void *arg, const char *key)
{
    client *c = arg;

    return number(redisCommand(c->connection, "EVALSHA %s 1 token:%s 1", c->sha, key)) >= 0 ? 0
                                                                                            : -1;
}

const bench_peer bench_redis_set = {
    .id = "redis-set",
    .title = "raw SET NX + EVALSHA",
    .open = set_open,
    .acquire = set_acquire,
    .release = set_release,
    .close = close_client,
};

const bench_peer bench_redis_blpop = {
    .id = "redis-blpop",
    .title = "raw BLPOP token",
    .open = token_open,
    .acquire = token_acquire,
    .release = token_release,
    .close = close_client,
};

const bench_peer bench_redis_blpop_lua = {
    .id = "redis-blpop-lua",
    .title = "raw BLPOP + one Lua release",
    .open = token_open,
    .acquire = token_acquire,
    .release = token_release_lua,
    .close = close_client,
};
