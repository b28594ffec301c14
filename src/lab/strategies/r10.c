/* R10: Redisson's lock as it is published: the hash of R7; a waiter subscribes to the lock's channel and
 * sleeps until a release is published there, or the lease it was told of ends; a watchdog renews at a
 * third of the lease. Every release wakes every waiter, in no order. A lease given by hand switches the
 * watchdog off. Release by a stranger is an error. */
#include "hash_lock.h"
#include "renewer.h"
#include "strategies.h"

#include <hiredis/hiredis.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

static const char try_script[] =
    "if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then "
    "redis.call('HINCRBY', KEYS[1], ARGV[1], 1) "
    "redis.call('PEXPIRE', KEYS[1], ARGV[2]) return nil end "
    "return redis.call('PTTL', KEYS[1])";
static const char unlock_script[] =
    "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end "
    "local n = redis.call('HINCRBY', KEYS[1], ARGV[1], -1) "
    "if n > 0 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 0 end "
    "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', KEYS[2], '0') return 1";

typedef struct redisson {
    redisContext *channel; /* subscribed while waiting */
    lab_renewer *watchdog; /* NULL: an explicit lease */
} redisson;

/* -1: ours. Else what is left of the other's lease. INT64_MIN: failed. */
static int64_t try_lock(lab_seat *seat)
{
    lab_holder *h = lab_holder_of(seat);

    seat->tries++;
    return lab_redis(seat, h->redis, "EVAL %s 1 lock:%s %s %lld", try_script, seat->resource, h->id,
                     (long long)h->lease_ms);
}

/* Until a message is there, or so long. */
static bool wait_for_release(lab_seat *seat, redisContext *channel, int64_t ms)
{
    struct pollfd p = {.fd = channel->fd, .events = POLLIN};
    redisReply *reply = NULL;

    if (poll(&p, 1, (int)ms) <= 0)
        return true;
    if (redisGetReply(channel, (void **)&reply) != REDIS_OK)
        return lab_note(seat, "redis: %s", channel->errstr);
    freeReplyObject(reply);
    return true;
}

static bool wait_in_line(lab_seat *seat, redisContext *channel)
{
    int64_t until = lab_until(seat), left, ttl;

    for (;;) {
        ttl = try_lock(seat);
        if (ttl == -1 || ttl == INT64_MIN)
            return ttl == -1;
        left = until == INT64_MAX ? ttl : (until - lab_now_us()) / 1000;
        if (left <= 0 && until != INT64_MAX)
            return false;
        if (!wait_for_release(seat, channel, ttl < left ? ttl : left))
            return false;
    }
}

static bool redisson_lock(lab_seat *seat)
{
    redisson *r = lab_holder_of(seat)->more;
    int64_t ttl = try_lock(seat);
    bool got = ttl == -1;

    if (ttl == INT64_MIN)
        return false;
    if (!got) {
        redisReply *reply =
            lab_redis_reply(seat, r->channel, "SUBSCRIBE released:%s", seat->resource);
        if (!reply)
            return false;
        freeReplyObject(reply);
        got = wait_in_line(seat, r->channel);
        /* What came meanwhile comes before the answer to this. */
        redisAppendCommand(r->channel, "UNSUBSCRIBE released:%s", seat->resource);
        for (bool over = false; !over;) {
            if (redisGetReply(r->channel, (void **)&reply) != REDIS_OK)
                return lab_note(seat, "redis: %s", r->channel->errstr);
            over = reply->elements > 0 && strcmp(reply->element[0]->str, "unsubscribe") == 0;
            freeReplyObject(reply);
        }
    }
    return got && (!r->watchdog || lab_renewer_start(r->watchdog, seat));
}

static bool redisson_unlock(lab_seat *seat)
{
    lab_holder *h = lab_holder_of(seat);
    redisson *r = h->more;

    if (r->watchdog)
        lab_renewer_stop(r->watchdog);
    if (lab_redis(seat, h->redis, "EVAL %s 2 lock:%s released:%s %s %lld", unlock_script,
                  seat->resource, seat->resource, h->id, (long long)h->lease_ms) >= 0)
        return true;
    return lab_note(seat, "attempt to unlock lock, not locked by this owner");
}

static bool open_with(lab_seat *seat, bool watchdog)
{
    redisson *r = calloc(1, sizeof *r);

    if (!r || !lab_holder_open(seat)) {
        free(r);
        return false;
    }
    lab_holder_of(seat)->more = r;
    r->channel = lab_redis_open(seat, seat->site->url[LAB_REDIS]);
    if (watchdog)
        r->watchdog = lab_renewer_new(seat, 3);
    return r->channel && (!watchdog || r->watchdog);
}

static bool redisson_open(lab_seat *seat)
{
    return open_with(seat, true);
}

static bool explicit_open(lab_seat *seat)
{
    return open_with(seat, false);
}

static void redisson_close(lab_seat *seat)
{
    redisson *r = lab_holder_of(seat)->more;

    lab_renewer_free(r->watchdog);
    redisFree(r->channel);
    free(r);
    lab_holder_close(seat);
}

const lab_strategy lab_r10 = {
    .id = "R10",
    .name = "redisson",
    .title = "hash lock, publish/subscribe, watchdog",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .open = redisson_open,
    .close = redisson_close,
    .lock = redisson_lock,
    .unlock = redisson_unlock,
};

const lab_strategy lab_r10_lease = {
    .id = "R10",
    .name = "redisson-lease",
    .title = "the same with an explicit lease: no watchdog",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .explicit_lease = true,
    .open = explicit_open,
    .close = redisson_close,
    .lock = redisson_lock,
    .unlock = redisson_unlock,
};
