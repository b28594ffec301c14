/* dibs as the benchmark uses it: locks, and the operations of scenario f.
 *
 *   dibs          lock and unlock
 *   dibs-once     a new key each time, begun and finished; now and then begun again: the result is replayed
 *   dibs-counter  one taken from a counter that all workers share; at the end it must be exact
 *   dibs-token    a token issued and redeemed; now and then redeemed again: that must be refused
 *
 * All workers share one handle, or have one each; each is its own owner. */
#include "bench.h"

#include <dibs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AGAIN 16 /* every so many turns the same is asked again */
#define STOCK 100000000
#define SEATS "bench:seats"

typedef struct client {
    dibs *handle;
    dibs_grant *grant;
    dibs_once *once;
    char token[DIBS_TOKEN_SIZE];
    char key[64];
    bool own;
    long turns;
} client;

dibs *bench_open_dibs(const bench_plan *plan)
{
    dibs *d = NULL;
    dibs_error err = {0};

    if (dibs_open(plan->url, NULL, &d, &err) != DIBS_OK)
        fprintf(stderr, "bench: %s\n", err.message);
    return d;
}

static int say(dibs_status status, const dibs_error *err)
{
    if (status != DIBS_OK)
        fprintf(stderr, "bench: %s\n", err->message);
    return status == DIBS_OK ? 0 : -1;
}

/* ---- Handles --------------------------------------------------------------------------------- */

/* Processes must not inherit a handle; then what is shared is only the plan. */
static void *open_shared(const bench_plan *plan)
{
    return plan->each ? (void *)plan : bench_open_dibs(plan);
}

static void *open_client(void *shared, const bench_plan *plan, const char *key)
{
    client *c = calloc(1, sizeof *c);

    (void)key;
    if (!c)
        return NULL;
    c->own = plan->each;
    c->handle = plan->each ? bench_open_dibs(plan) : shared;
    if (c->handle)
        return c;
    free(c);
    return NULL;
}

static void close_client(void *arg)
{
    client *c = arg;

    if (c->own)
        dibs_close(c->handle);
    free(c);
}

static dibs *handle_of(void *shared, const bench_plan *plan)
{
    return plan->each ? bench_open_dibs(plan) : shared;
}

static int end(void *shared, const bench_plan *plan, long turns)
{
    (void)turns;
    if (!plan->each)
        dibs_close(shared);
    return 0;
}

/* ---- Locks ----------------------------------------------------------------------------------- */

static int acquire(void *arg, const char *key, uint64_t *fence)
{
    client *c = arg;
    dibs_error err = {0};

    if (say(dibs_lock(c->handle, key, NULL, &c->grant, &err), &err) != 0)
        return -1;
    *fence = dibs_grant_fence(c->grant);
    return 0;
}

static int release(void *arg, const char *key)
{
    client *c = arg;
    dibs_error err = {0};

    (void)key;
    return say(dibs_unlock(&c->grant, &err), &err);
}

/* ---- Once ------------------------------------------------------------------------------------ */

static int begin(void *arg, const char *key, uint64_t *fence)
{
    client *c = arg;
    dibs_error err = {0};

    snprintf(c->key, sizeof c->key, "%s:%d:%ld", key, (int)getpid(), c->turns++);
    if (say(dibs_once_begin(c->handle, c->key, NULL, &c->once, &err), &err) != 0)
        return -1;
    *fence = dibs_once_fence(c->once);
    return 0;
}

static int replays(client *c)
{
    dibs_error err = {0};
    dibs_once *again = NULL;
    size_t size = 0;
    dibs_status status = dibs_once_begin(c->handle, c->key, NULL, &again, &err);
    const char *result = status == DIBS_ALREADY ? dibs_once_result(again, &size) : NULL;
    bool same = result && size == strlen(c->key) && memcmp(result, c->key, size) == 0;

    dibs_once_free(again);
    if (!same)
        fprintf(stderr, "bench: %s is not replayed: %s\n", c->key, err.message);
    return same ? 0 : -1;
}

static int finish(void *arg, const char *key)
{
    client *c = arg;
    dibs_error err = {0};
    int failed = say(dibs_once_finish(c->once, c->key, strlen(c->key), 0, &err), &err);

    (void)key;
    dibs_once_free(c->once);
    c->once = NULL;
    return failed || c->turns % AGAIN ? failed : replays(c);
}

/* ---- Counters -------------------------------------------------------------------------------- */

static void *fill_counter(const bench_plan *plan)
{
    dibs *d = bench_open_dibs(plan);
    dibs_error err = {0};

    if (!d || say(dibs_counter_set(d, SEATS, STOCK, NULL, &err), &err) != 0)
        return NULL;
    if (!plan->each)
        return d;
    dibs_close(d);
    return (void *)plan;
}

static int take(void *arg, const char *key, uint64_t *fence)
{
    client *c = arg;
    dibs_error err = {0};

    (void)key;
    (void)fence;
    c->turns++;
    return say(dibs_counter_take(c->handle, SEATS, 1, NULL, NULL, &err), &err);
}

static int nothing(void *arg, const char *key)
{
    (void)arg;
    (void)key;
    return 0;
}

/* A worker's last take may have ended after the clock: up to one each is not among the turns. */
static int end_counter(void *shared, const bench_plan *plan, long turns)
{
    dibs *d = handle_of(shared, plan);
    dibs_error err = {0};
    int64_t left = 0;
    int failed = !d || say(dibs_counter_get(d, SEATS, &left, &err), &err) != 0;
    int64_t taken = STOCK - left;

    if (d)
        dibs_close(d);
    if (!failed && taken >= turns && taken <= turns + plan->workers)
        return 0;
    fprintf(stderr, "bench: %ld were taken, the counter says %lld\n", turns, (long long)taken);
    return -1;
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

static int issue(void *arg, const char *key, uint64_t *fence)
{
    client *c = arg;
    dibs_error err = {0};

    (void)key;
    (void)fence;
    c->turns++;
    return say(dibs_token_issue(c->handle, NULL, c->token, &err), &err);
}

static int redeem(void *arg, const char *key)
{
    client *c = arg;
    dibs_error err = {0};
    int failed = say(dibs_token_redeem(c->handle, c->token, NULL, &err), &err);

    (void)key;
    if (failed || c->turns % AGAIN)
        return failed;
    return dibs_token_redeem(c->handle, c->token, NULL, &err) == DIBS_REFUSED ? 0 : -1;
}

/* ---- The peers ------------------------------------------------------------------------------- */

const bench_peer bench_dibs = {
    .id = "dibs",
    .title = "dibs",
    .setup = open_shared,
    .end = end,
    .open = open_client,
    .acquire = acquire,
    .release = release,
    .close = close_client,
};

const bench_peer bench_dibs_once = {
    .id = "dibs-once",
    .title = "once: begin + finish",
    .setup = open_shared,
    .end = end,
    .open = open_client,
    .acquire = begin,
    .release = finish,
    .close = close_client,
};

const bench_peer bench_dibs_counter = {
    .id = "dibs-counter",
    .title = "counter take, one counter",
    .setup = fill_counter,
    .end = end_counter,
    .open = open_client,
    .acquire = take,
    .release = nothing,
    .close = close_client,
};

const bench_peer bench_dibs_token = {
    .id = "dibs-token",
    .title = "token: issue + redeem",
    .setup = open_shared,
    .end = end,
    .open = open_client,
    .acquire = issue,
    .release = redeem,
    .close = close_client,
};
