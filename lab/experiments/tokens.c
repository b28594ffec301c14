/* F3a to F3d: one token in Redis, and many requests that carry it at the same moment. How many pass?
 *
 *   F3a  look whether it is there, do the work, delete it
 *   F3b  delete it first: who deleted it does the work
 *   F3c  count with INCR: issuing makes it 1, the request makes it 2, anything else is refused
 *   F3d  F3a with all of it under a lock inside the process: right in one process, not in two */
#include "lab/hazards/actor.h"
#include "lab/raw.h"
#include "rush.h"
#include "sessions.h"

#include <hiredis/hiredis.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WORK_US (5 * 1000)
#define OWN     5 /* requests of each who has a token of his own */

typedef struct rush_of_tokens {
    const lab_site *site;
    int (*redeem)(lab_buyer *buyer, redisContext *r);
} rush_of_tokens;

static int check_work_delete(lab_buyer *buyer, redisContext *r)
{
    if (lab_redis(buyer, r, "EXISTS lab:token") != 1)
        return 0;
    usleep(WORK_US);
    lab_redis(buyer, r, "DEL lab:token");
    return 1;
}

static int delete_work(lab_buyer *buyer, redisContext *r)
{
    if (lab_redis(buyer, r, "DEL lab:token") != 1)
        return 0;
    usleep(WORK_US);
    return 1;
}

static int count_work(lab_buyer *buyer, redisContext *r)
{
    if (lab_redis(buyer, r, "INCR lab:token") != 2)
        return 0;
    usleep(WORK_US);
    return 1;
}

static int under_a_mutex(lab_buyer *buyer, redisContext *r)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    int passed;

    pthread_mutex_lock(&mutex);
    passed = check_work_delete(buyer, r);
    pthread_mutex_unlock(&mutex);
    return passed;
}

static int request(void *ctx, int number)
{
    const rush_of_tokens *t = ctx;
    lab_buyer buyer = {.site = t->site};
    redisContext *r = lab_redis_open(&buyer, t->site->url[LAB_REDIS]);
    int passed;

    (void)number;
    if (!r)
        return 0;
    passed = t->redeem(&buyer, r);
    redisFree(r);
    return passed;
}

/* How many pass, on a fresh token. */
static int rush(const lab_site *site, int (*redeem)(lab_buyer *, redisContext *), int processes)
{
    rush_of_tokens t = {site, redeem};
    lab_buyer buyer = {.site = site};
    redisContext *r = lab_redis_open(&buyer, site->url[LAB_REDIS]);
    int passed;

    if (!r)
        return -1;
    lab_redis(&buyer, r, "SET lab:token 1");
    passed = lab_rush(processes, 16 / processes, request, &t);
    lab_redis(&buyer, r, "DEL lab:token");
    redisFree(r);
    return passed;
}

static void judge(lab_finding *out, const char *how, int passed)
{
    lab_found(out,
              passed == 1  ? LAB_SURVIVED
              : passed < 0 ? LAB_NOT_RUN
                           : LAB_BROKE,
              "%s: of 16 requests with one token at the same moment %d passed", how, passed);
}

static void f3a(const lab_site *site, lab_finding *out)
{
    judge(out, "checked, worked, then deleted", rush(site, check_work_delete, 1));
}

/* The worker dies between deleting the token and its work: may the caller send the request again? */
static int after_a_crash(const lab_site *site)
{
    lab_buyer buyer = {.site = site};
    redisContext *r = lab_redis_open(&buyer, site->url[LAB_REDIS]);
    int passed;

    if (!r)
        return -1;
    lab_redis(&buyer, r, "SET lab:token 1");
    lab_redis(&buyer, r, "DEL lab:token"); /* and no more: it died here */
    passed = delete_work(&buyer, r);
    redisFree(r);
    return passed;
}

static void f3b(const lab_site *site, lab_finding *out)
{
    int again = after_a_crash(site);
    size_t n;

    judge(out, "deleted first, then worked", rush(site, delete_work, 2));
    n = strlen(out->text);
    snprintf(out->text + n, sizeof out->text - n,
             "; after a crash in the work the token is %s: the caller must fetch a new one",
             again ? "still good" : "spent");
}

static void f3c(const lab_site *site, lab_finding *out)
{
    judge(out, "counted with INCR", rush(site, count_work, 2));
}

/* Sixteen requests, each with a token of its own: what the lock costs those who do not repeat. */
static int redeem_own(void *ctx, int number)
{
    const rush_of_tokens *t = ctx;
    lab_buyer buyer = {.site = t->site};
    redisContext *r = lab_redis_open(&buyer, t->site->url[LAB_REDIS]);

    (void)number;
    for (int i = 0; r && i < OWN; i++) {
        lab_redis(&buyer, r, "SET lab:token 1");
        t->redeem(&buyer, r);
    }
    if (r)
        redisFree(r);
    return r ? OWN : 0;
}

static double own_a_second(const lab_site *site, int (*redeem)(lab_buyer *, redisContext *))
{
    rush_of_tokens t = {site, redeem};
    int64_t begin = lab_now_us();
    int done = lab_rush(1, 16, redeem_own, &t);

    return done * 1e6 / (double)(lab_now_us() - begin);
}

static void f3d(const lab_site *site, lab_finding *out)
{
    int one = rush(site, under_a_mutex, 1), two = rush(site, under_a_mutex, 2);
    double free_of_it = own_a_second(site, check_work_delete);
    double locked = own_a_second(site, under_a_mutex);

    lab_found(out, one == 1 && two == 1 ? LAB_SURVIVED : LAB_BROKE,
              "under a lock inside the process: %d of 16 passed in one process, %d in two; it "
              "serves %.0f requests per second, without the lock %.0f",
              one, two, locked, free_of_it);
}

/* F3e: what the extra request for a token costs every caller, from memory and from Redis. */
static void f3e(const lab_site *site, lab_finding *out)
{
    enum { ROUNDS = 2000 };
    lab_buyer buyer = {.site = site};
    redisContext *r = lab_redis_open(&buyer, site->url[LAB_REDIS]);
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    int64_t begin, memory, redis;
    static volatile int64_t table[ROUNDS];

    if (!r) {
        lab_found(out, LAB_NOT_RUN, "%s", buyer.note);
        return;
    }
    begin = lab_now_us();
    for (int i = 0; i < ROUNDS; i++) {
        pthread_mutex_lock(&mutex);
        table[i] = begin + i;
        (void)table[i / 2]; /* one is redeemed */
        pthread_mutex_unlock(&mutex);
    }
    memory = (lab_now_us() - begin) * 1000 / ROUNDS;
    begin = lab_now_us();
    for (int i = 0; i < ROUNDS; i++)
        lab_redis(&buyer, r, "SET lab:token:%d 1 PX 10000", i);
    redis = (lab_now_us() - begin) * 1000 / ROUNDS;
    redisFree(r);
    lab_found(
        out, LAB_SHOWN,
        "issuing one: %lld ns in memory (gone with the process, unknown to the next), %lld ns in "
        "Redis, and one more request for every caller; if one request in 1000 is repeated, that is "
        "%lld "
        "µs in Redis for each repetition that is stopped",
        (long long)memory, (long long)redis, (long long)redis * 1000 / 1000);
}

const lab_experiment lab_f3a = {
    .id = "F3a",
    .name = "token-check-first",
    .title = "token checked, work, deleted",
    .needs = LAB_NEED(LAB_REDIS),
    .run = f3a,
};
const lab_experiment lab_f3b = {
    .id = "F3b",
    .name = "token-delete-first",
    .title = "token deleted, then work",
    .needs = LAB_NEED(LAB_REDIS),
    .run = f3b,
};
const lab_experiment lab_f3c = {
    .id = "F3c",
    .name = "token-incr",
    .title = "token counted with INCR",
    .needs = LAB_NEED(LAB_REDIS),
    .run = f3c,
};
const lab_experiment lab_f3d = {
    .id = "F3d",
    .name = "token-mutex",
    .title = "F3a under a lock inside the process",
    .needs = LAB_NEED(LAB_REDIS),
    .run = f3d,
};
const lab_experiment lab_f3e = {
    .id = "F3e",
    .name = "token-cost",
    .title = "what a token costs every caller",
    .needs = LAB_NEED(LAB_REDIS),
    .run = f3e,
};
