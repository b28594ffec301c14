/* The model; see the header. Two threads serve the process: one reads the subscription, one is the timer.
 * Waiters send SUBSCRIBE and UNSUBSCRIBE themselves, under the mutex; only the reader reads. */
#include "redisson.h"

#include <hiredis/hiredis.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define TICK_US (100 * 1000) /* of Redisson's timer */

/* Taken: nil, or minus the token. Else what is left of the holder's lease. */
static const char try_script[] =
    "if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then "
    "redis.call('HINCRBY', KEYS[1], ARGV[1], 1) "
    "redis.call('PEXPIRE', KEYS[1], ARGV[2]) return nil end "
    "return redis.call('PTTL', KEYS[1])";
static const char fenced_script[] =
    "if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then "
    "local token = redis.call('INCR', KEYS[2]) "
    "redis.call('HINCRBY', KEYS[1], ARGV[1], 1) "
    "redis.call('PEXPIRE', KEYS[1], ARGV[2]) return -token end "
    "return redis.call('PTTL', KEYS[1])";
static const char unlock_script[] =
    "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end "
    "local n = redis.call('HINCRBY', KEYS[1], ARGV[1], -1) "
    "if n > 0 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 0 end "
    "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', KEYS[2], '0') return 1";
static const char renew_script[] =
    "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end "
    "return redis.call('PEXPIRE', KEYS[1], ARGV[2])";

typedef enum link_state { OFF, SUBSCRIBING, ON, UNSUBSCRIBING, GONE } link_state;

struct lab_redisson {
    char resource[128];
    char try_sha[41], fenced_sha[41], unlock_sha[41], renew_sha[41];

    redisContext *channel;
    pthread_t reader;
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* the state */
    pthread_cond_t latch;   /* a permit */
    link_state state;
    int waiters, permits;

    redisContext *renewals;
    pthread_t timer;
    pthread_mutex_t guard;
    pthread_cond_t over;
    bool stop;
    lab_redisson_thread *watched;
};

/* False: it is later than `until_us`. */
static bool wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_us)
{
    struct timespec t = {.tv_sec = (time_t)(until_us / 1000000),
                         .tv_nsec = (long)(until_us % 1000000) * 1000};

    if (until_us == INT64_MAX)
        return pthread_cond_wait(cond, mutex) == 0;
    return pthread_cond_timedwait(cond, mutex, &t) == 0;
}

/* ---- The subscription ------------------------------------------------------------------------ */

/* By hand: hiredis would read the replies, too. */
static bool send_word(lab_redisson *r, const char *word)
{
    char *bytes = NULL;
    int size = redisFormatCommand(&bytes, "%s released:%s", word, r->resource);
    bool sent = size > 0 && send(r->channel->fd, bytes, (size_t)size, MSG_NOSIGNAL) == size;

    redisFreeCommand(bytes);
    return sent;
}

static void end_if_unused(lab_redisson *r)
{
    if (r->state == ON && r->waiters == 0)
        r->state = send_word(r, "UNSUBSCRIBE") ? UNSUBSCRIBING : GONE;
}

static void take_message(lab_redisson *r, const redisReply *reply)
{
    const char *kind = reply->elements > 0 && reply->element[0]->str ? reply->element[0]->str : "";

    pthread_mutex_lock(&r->mutex);
    if (strcmp(kind, "message") == 0) {
        r->permits++;
        pthread_cond_signal(&r->latch);
    } else {
        r->state = strcmp(kind, "subscribe") == 0 ? ON : OFF;
        end_if_unused(r);
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->mutex);
}

static void *reader_main(void *data)
{
    lab_redisson *r = data;
    redisReply *reply = NULL;

    while (redisGetReply(r->channel, (void **)&reply) == REDIS_OK) {
        take_message(r, reply);
        freeReplyObject(reply);
    }
    pthread_mutex_lock(&r->mutex);
    r->state = GONE;
    pthread_cond_broadcast(&r->changed);
    pthread_cond_broadcast(&r->latch);
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

/* One waiter more; the first one subscribes. 1: subscribed, 0: not until then, -1: failed. */
static int join(lab_redisson *r, int64_t until_us)
{
    bool in_time = true;
    int got;

    pthread_mutex_lock(&r->mutex);
    while (r->state == UNSUBSCRIBING && in_time)
        in_time = wait_until(&r->changed, &r->mutex, until_us);
    if (r->state == OFF) {
        r->permits = 0;
        r->state = send_word(r, "SUBSCRIBE") ? SUBSCRIBING : GONE;
    }
    r->waiters++;
    while (r->state == SUBSCRIBING && in_time)
        in_time = wait_until(&r->changed, &r->mutex, until_us);
    got = r->state == GONE ? -1 : r->state == ON;
    if (got != 1)
        r->waiters--;
    pthread_mutex_unlock(&r->mutex);
    return got;
}

static void leave(lab_redisson *r)
{
    pthread_mutex_lock(&r->mutex);
    r->waiters--;
    end_if_unused(r);
    pthread_mutex_unlock(&r->mutex);
}

/* Until there is a permit, or so late. */
static void await_permit(lab_redisson *r, int64_t until_us)
{
    pthread_mutex_lock(&r->mutex);
    while (r->permits == 0 && r->state != GONE && wait_until(&r->latch, &r->mutex, until_us))
        continue;
    if (r->permits > 0)
        r->permits--;
    pthread_mutex_unlock(&r->mutex);
}

/* ---- The watchdog ---------------------------------------------------------------------------- */

static void watch(lab_redisson_thread *t, int64_t lease_ms)
{
    lab_redisson *r = t->client;

    pthread_mutex_lock(&r->guard);
    if (t->levels++ == 0) {
        t->lease_ms = lease_ms;
        t->due_us = lab_now_us() + lease_ms * 1000 / 3;
        t->next = r->watched;
        r->watched = t;
    }
    pthread_mutex_unlock(&r->guard);
}

static void unwatch(lab_redisson_thread *t)
{
    lab_redisson *r = t->client;

    pthread_mutex_lock(&r->guard);
    if (t->levels > 0 && --t->levels == 0)
        for (lab_redisson_thread **p = &r->watched; *p; p = &(*p)->next)
            if (*p == t) {
                *p = t->next;
                break;
            }
    pthread_mutex_unlock(&r->guard);
}

/* One that is due, with its next time set; false: none. */
static bool due(lab_redisson *r, char id[64], int64_t *lease_ms)
{
    int64_t now = lab_now_us();

    for (lab_redisson_thread *t = r->watched; t; t = t->next)
        if (t->due_us <= now) {
            memcpy(id, t->id, sizeof t->id);
            *lease_ms = t->lease_ms;
            t->due_us = now + t->lease_ms * 1000 / 3;
            return true;
        }
    return false;
}

/* A lock that is not ours any more is asked for again in vain until it is given back: harmless. */
static void *timer_main(void *data)
{
    lab_redisson *r = data;
    lab_buyer buyer = {.resource = r->resource};
    int64_t lease_ms, tick_us = TICK_US;
    char id[64];

    pthread_mutex_lock(&r->guard);
    while (!r->stop) {
        while (!r->stop && due(r, id, &lease_ms)) {
            pthread_mutex_unlock(&r->guard);
            lab_redis(&buyer, r->renewals, "EVALSHA %s 1 lock:%s %s %lld", r->renew_sha,
                      r->resource, id, (long long)lease_ms);
            pthread_mutex_lock(&r->guard);
        }
        /* Short leases, in the hazards, need a finer tick. */
        tick_us = r->watched && r->watched->lease_ms * 1000 / 30 < TICK_US
                      ? r->watched->lease_ms * 1000 / 30
                      : tick_us;
        if (!r->stop)
            wait_until(&r->over, &r->guard, lab_now_us() + tick_us);
    }
    pthread_mutex_unlock(&r->guard);
    return NULL;
}

/* ---- One for each process -------------------------------------------------------------------- */

static bool load(lab_buyer *buyer, redisContext *redis, const char *script, char sha[41])
{
    redisReply *reply = lab_redis_reply(buyer, redis, "SCRIPT LOAD %s", script);

    if (!reply)
        return false;
    snprintf(sha, 41, "%.40s", reply->str);
    freeReplyObject(reply);
    return true;
}

static void init_waiting(lab_redisson *r)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&r->mutex, NULL);
    pthread_mutex_init(&r->guard, NULL);
    pthread_cond_init(&r->changed, &monotonic);
    pthread_cond_init(&r->latch, &monotonic);
    pthread_cond_init(&r->over, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static void destroy(lab_redisson *r)
{
    redisFree(r->channel);
    redisFree(r->renewals);
    pthread_cond_destroy(&r->changed);
    pthread_cond_destroy(&r->latch);
    pthread_cond_destroy(&r->over);
    pthread_mutex_destroy(&r->mutex);
    pthread_mutex_destroy(&r->guard);
    free(r);
}

static void end_reader(lab_redisson *r)
{
    shutdown(r->channel->fd, SHUT_RDWR);
    pthread_join(r->reader, NULL);
}

lab_redisson *lab_redisson_new(lab_buyer *buyer, const char *url)
{
    lab_redisson *r = calloc(1, sizeof *r);

    if (!r) {
        lab_note(buyer, "out of memory");
        return NULL;
    }
    init_waiting(r);
    snprintf(r->resource, sizeof r->resource, "%s", buyer->resource);
    if ((r->channel = lab_redis_open(buyer, url)) && (r->renewals = lab_redis_open(buyer, url)) &&
        load(buyer, r->renewals, try_script, r->try_sha) &&
        load(buyer, r->renewals, fenced_script, r->fenced_sha) &&
        load(buyer, r->renewals, unlock_script, r->unlock_sha) &&
        load(buyer, r->renewals, renew_script, r->renew_sha) &&
        pthread_create(&r->reader, NULL, reader_main, r) == 0) {
        if (pthread_create(&r->timer, NULL, timer_main, r) == 0)
            return r;
        end_reader(r);
    }
    destroy(r);
    return NULL;
}

void lab_redisson_free(lab_redisson *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->guard);
    r->stop = true;
    pthread_cond_signal(&r->over);
    pthread_mutex_unlock(&r->guard);
    pthread_join(r->timer, NULL);
    end_reader(r);
    destroy(r);
}

/* ---- Lock and unlock ------------------------------------------------------------------------- */

/* Below 0: ours. Else what is left of the other's lease. INT64_MIN: failed. */
static int64_t try_once(lab_buyer *buyer, lab_redisson_thread *t, const lab_redisson_wish *wish)
{
    const lab_redisson *r = t->client;
    int64_t got;

    buyer->tries++;
    if (!wish->fenced)
        return lab_redis(buyer, t->redis, "EVALSHA %s 1 lock:%s %s %lld", r->try_sha, r->resource,
                         t->id, (long long)wish->lease_ms);
    got = lab_redis(buyer, t->redis, "EVALSHA %s 2 lock:%s token:%s %s %lld", r->fenced_sha,
                    r->resource, r->resource, t->id, (long long)wish->lease_ms);
    if (got < 0 && got != INT64_MIN)
        t->token = (uint64_t)-got;
    return got;
}

static int try_and_wait(lab_buyer *buyer, lab_redisson_thread *t, const lab_redisson_wish *wish)
{
    for (;;) {
        int64_t ttl = try_once(buyer, t, wish), now = lab_now_us();
        if (ttl < 0)
            return ttl == INT64_MIN ? -1 : 1;
        if (now >= wish->until_us)
            return 0;
        lab_point(buyer, "after a refusal");
        await_permit(t->client,
                     now + ttl * 1000 < wish->until_us ? now + ttl * 1000 : wish->until_us);
        if (lab_now_us() >= wish->until_us)
            return 0;
    }
}

static int subscribe_and_wait(lab_buyer *buyer, lab_redisson_thread *t,
                              const lab_redisson_wish *wish)
{
    int got = join(t->client, wish->until_us);

    if (got != 1) {
        if (got < 0)
            lab_note(buyer, "redis: the subscription is gone");
        return got;
    }
    got = try_and_wait(buyer, t, wish);
    leave(t->client);
    return got;
}

int lab_redisson_lock(lab_buyer *buyer, lab_redisson_thread *t, const lab_redisson_wish *wish)
{
    int64_t ttl = try_once(buyer, t, wish);
    int got = ttl == INT64_MIN ? -1 : ttl < 0;

    if (got == 0)
        got = lab_now_us() < wish->until_us ? subscribe_and_wait(buyer, t, wish) : 0;
    if (got == 1 && wish->watchdog)
        watch(t, wish->lease_ms);
    return got;
}

void lab_redisson_unlock_send(lab_redisson_thread *t, int64_t lease_ms)
{
    const lab_redisson *r = t->client;
    int all = 0;

    redisAppendCommand(t->redis, "EVALSHA %s 2 lock:%s released:%s %s %lld", r->unlock_sha,
                       r->resource, r->resource, t->id, (long long)lease_ms);
    while (!all && redisBufferWrite(t->redis, &all) == REDIS_OK)
        continue;
}

bool lab_redisson_unlock_hear(lab_buyer *buyer, lab_redisson_thread *t)
{
    redisReply *reply = NULL;
    bool heard = redisGetReply(t->redis, (void **)&reply) == REDIS_OK;
    bool ours = heard && reply->type == REDIS_REPLY_INTEGER;

    unwatch(t);
    if (heard)
        freeReplyObject(reply);
    else
        lab_note(buyer, "redis: %s", t->redis->errstr);
    return ours || !heard ? ours
                          : lab_note(buyer, "attempt to unlock lock, not locked by this owner");
}
