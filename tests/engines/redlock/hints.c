/* The hints on the nodes: who is told of a release, and what it costs when they are wrong. Nothing here may
 * depend on them but time: storm.c and the model look after exclusion. */
#define _GNU_SOURCE
#include "suite.h"

#include "cluster.h"
#include "support/clock.h"
#include "support/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOON 5000 /* a bounded look and more, on the slowest machine */
#define LOOK 500  /* nobody who waits looks sooner by itself, once the nodes tell it */

static long number_from(cluster *c, int node, const char *command)
{
    char reply[64] = "";

    server_command(&c->node[node], command, reply, sizeof reply);
    return reply[0] == ':' ? atol(reply + 1) : -1;
}

/* ---- A client that waits, with a handle of its own ------------------------------------------- */

typedef struct client {
    cluster *c;
    dibs *d;
    pthread_t thread;
    int64_t wait_ms;
    atomic_bool *over; /* it goes on until then; NULL: once */
    atomic_ullong *last;
    int served, backwards;
    dibs_status status;
    int64_t at; /* when it was answered */
} client;

static void *run_client(void *arg)
{
    client *w = arg;

    do {
        dibs_grant *g = NULL;
        w->status = dibs_lock(w->d, "x", &(dibs_lock_options){.wait_ms = w->wait_ms}, &g, NULL);
        w->at = clock_ms();
        if (w->status != DIBS_OK)
            break;
        w->served++;
        if (w->last) {
            unsigned long long fence = dibs_grant_fence(g);
            w->backwards += atomic_exchange(w->last, fence) >= fence;
        }
        unlock(g);
    } while (w->over && !atomic_load(w->over));
    return NULL;
}

static void client_start(client *w, cluster *c, int64_t wait_ms)
{
    w->c = c;
    w->d = w->d ? w->d : cluster_open(c, NULL);
    w->wait_ms = wait_ms;
    assert_int_equal(pthread_create(&w->thread, NULL, run_client, w), 0);
}

static void client_join(client *w)
{
    pthread_join(w->thread, NULL);
}

/* Its connections for waiting are there, so that the nodes can tell it. */
static void client_warm(client *w, cluster *c)
{
    dibs *other = cluster_open(c, NULL);
    dibs_grant *g = cluster_take(other, "x", 30000, SOON);

    client_start(w, c, 30000);
    sleep_ms(50);
    unlock(g);
    client_join(w);
    assert_status(w->status, DIBS_OK);
    dibs_close(other);
}

static long hints_at(cluster *c, int node)
{
    return number_from(c, node, "ZCARD dibs:{x}:hints");
}

typedef struct expected {
    cluster *c;
    long count;
} expected;

/* On a majority. One node may not have the holder's vote: it gave its own, and has no hint. */
static bool hints_are(void *ctx)
{
    const expected *e = ctx;
    int same = 0;

    for (int i = 0; i < e->c->count; i++)
        same += hints_at(e->c, i) == e->count;
    return same >= e->c->count / 2 + 1;
}

static void expect_hints(cluster *c, long count)
{
    if (!wait_until(hints_are, &(expected){c, count}, SOON))
        fail_msg("%ld, %ld and %ld hints, not %ld", hints_at(c, 0), hints_at(c, 1), hints_at(c, 2),
                 count);
}

/* ---- One is told for each release ------------------------------------------------------------ */

static long scripts_run(cluster *c)
{
    return number_from(c, 0,
                       "EVAL \"return tonumber(string.match(redis.call('INFO','commandstats'),"
                       "'cmdstat_evalsha:calls=(%d+)'))\" 0");
}

/* Scripts on one node for each hand-over among so many. */
static double crowd_of(cluster *c, int count)
{
    client *w = calloc((size_t)count, sizeof *w);
    atomic_bool over = false;
    atomic_ullong last = 0;
    long before, served = 0, most = 0, least = 1 << 30;

    assert_non_null(w);
    for (int i = 0; i < count; i++)
        client_warm(&w[i], c);
    before = scripts_run(c);
    for (int i = 0; i < count; i++) {
        w[i].served = 0;
        w[i].over = &over;
        w[i].last = &last;
        client_start(&w[i], c, 30000);
    }
    sleep_ms(2000);
    atomic_store(&over, true);
    for (int i = 0; i < count; i++) {
        client_join(&w[i]);
        assert_status(w[i].status, DIBS_OK);
        assert_int_equal(w[i].backwards, 0);
        served += w[i].served;
        most = w[i].served > most ? w[i].served : most;
        least = w[i].served < least ? w[i].served : least;
    }
    before = scripts_run(c) - before;
    print_message("# %d handles: %ld changes in 2 s, most/least served %ld/%ld, %.1f scripts per "
                  "node and change\n",
                  count, served, most, least, (double)before / (double)served);
    assert_in_range(most, 1, 3 * least + 2);
    for (int i = 0; i < count; i++)
        dibs_close(w[i].d);
    free(w);
    return (double)before / (double)served;
}

/* A release, a vote and a refusal that leaves a hint: three, however many wait. */
void a_release_wakes_one_of_many(void **state)
{
    cluster c;

    (void)state;
    cluster_need(&c, 3, NULL, true);
    assert_true(crowd_of(&c, 4) < 6);
    assert_true(crowd_of(&c, 24) < 6);
    cluster_stop(&c);
}

/* ---- Hints of clients that do not come ------------------------------------------------------- */

enum { ROUNDS = 20 };

/* Somebody's hint is there and he is not: in half of the rounds it is the first. How often the one who waits had to look by
 * himself. */
static int late_rounds(cluster *c, bool closes)
{
    client w = {0};
    dibs *holder = cluster_open(c, NULL);
    int late = 0;

    client_warm(&w, c);
    for (int i = 0; i < ROUNDS; i++) {
        client gone = {0};
        dibs_grant *g;
        int64_t since;
        client_warm(&gone, c);
        g = cluster_take(holder, "x", 30000, SOON);
        client_start(&gone, c, 20);
        client_join(&gone);
        if (closes)
            dibs_close(gone.d);
        expect_hints(c, 1);
        since = clock_ms();
        client_start(&w, c, 30000);
        expect_hints(c, 2);
        unlock(g);
        client_join(&w);
        late += w.at - since >= LOOK;
        if (!closes)
            dibs_close(gone.d);
        expect_hints(c, 0); /* whoever was passed over is forgotten */
    }
    dibs_close(w.d);
    dibs_close(holder);
    return late;
}

void a_waiter_that_left_costs_no_look(void **state)
{
    cluster c;
    int gone, closed;

    (void)state;
    cluster_need(&c, 3, NULL, true);
    gone = late_rounds(&c, false);
    closed = late_rounds(&c, true);
    print_message("# late after one that left %d, that closed %d, of %d\n", gone, closed, ROUNDS);
    assert_in_range(gone, 0, ROUNDS / 5);
    assert_in_range(closed, 0, ROUNDS / 5);
    cluster_stop(&c);
}

/* It is told and hears nothing: the nodes keep their votes for a moment, and then whoever looks has the lock. */
void a_waiter_that_hangs_costs_a_look(void **state)
{
    cluster c;
    client w = {0}, hung = {0};
    dibs_grant *g;
    dibs *holder;
    int64_t since;

    (void)state;
    cluster_need(&c, 3, NULL, true);
    client_warm(&w, &c);
    holder = cluster_open(&c, NULL);
    for (int i = 0; i < c.count; i++)
        cluster_proxy(&c, i);
    client_warm(&hung, &c);
    g = cluster_take(holder, "x", 30000, SOON);
    client_start(&hung, &c, 30000);
    expect_hints(&c, 1);
    for (int i = 0; i < c.count; i++) {
        proxy_delay(c.proxy[i], PROXY_DOWN, 60000);
        proxy_delay(c.proxy[i], PROXY_UP, 60000);
        server_command(
            &c.node[i], /* it stays the first */
            "EVAL \"return redis.call('ZADD',KEYS[1],1,redis.call('ZRANGE',KEYS[1],0,0)[1])\" 1 "
            "dibs:{x}:hints",
            NULL, 0);
    }
    client_start(&w, &c, 30000);
    expect_hints(&c, 2);
    since = clock_ms();
    unlock(g);
    client_join(&w);
    assert_status(w.status, DIBS_OK);
    assert_in_range(w.at - since, 0, SOON); /* the lease is thirty seconds */
    for (int i = 0; i < c.count; i++)
        proxy_heal(c.proxy[i]);
    client_join(&hung);
    dibs_close(hung.d);
    dibs_close(w.d);
    dibs_close(holder);
    cluster_stop(&c);
}

/* ---- Hints that are wrong -------------------------------------------------------------------- */

/* The nodes do not agree on who is first: whoever most of them name has it, and the other after that one. */
void nodes_that_disagree_serve_both(void **state)
{
    cluster c;
    client w[2] = {{0}};
    dibs *holder;
    int late = 0;

    (void)state;
    cluster_need(&c, 3, NULL, true);
    client_warm(&w[0], &c);
    client_warm(&w[1], &c);
    holder = cluster_open(&c, NULL);
    for (int i = 0; i < ROUNDS; i++) {
        dibs_grant *g = cluster_take(holder, "x", 30000, SOON);
        int64_t since = clock_ms();
        client_start(&w[0], &c, 30000);
        client_start(&w[1], &c, 30000);
        expect_hints(&c, 2);
        server_command(&c.node[i % 3],
                       "EVAL \"local h=redis.call('ZRANGE',KEYS[1],0,1) "
                       "redis.call('ZADD',KEYS[1],1,h[2],2,h[1]) return 1\" 1 dibs:{x}:hints",
                       NULL, 0);
        unlock(g);
        for (int k = 0; k < 2; k++) {
            client_join(&w[k]);
            assert_status(w[k].status, DIBS_OK);
            late += w[k].at - since >= LOOK;
        }
    }
    print_message("# %d of %d had to look by themselves\n", late, 2 * ROUNDS);
    assert_in_range(late, 0, ROUNDS / 2);
    dibs_close(w[0].d);
    dibs_close(w[1].d);
    dibs_close(holder);
    cluster_stop(&c);
}

/* A thousand that nobody listens to: no release wades through them, they are no more with one more, and they end. */
void hints_are_bounded_and_end(void **state)
{
    enum { MOST = 1000 };
    cluster c;
    client w = {0};
    dibs *holder;
    dibs_grant *g;

    (void)state;
    cluster_need(&c, 3, NULL, true);
    client_warm(&w, &c);
    holder = cluster_open(&c, NULL);
    g = cluster_take(holder, "x", 30000, SOON);
    for (int i = 0; i < c.count; i++)
        server_command(
            &c.node[i],
            "EVAL \"for i=1,2000 do redis.call('ZADD',KEYS[1],i,'f'..i) end return 1\" 1 "
            "dibs:{x}:hints",
            NULL, 0);
    client_start(&w, &c, 30000);
    expect_hints(&c, MOST);
    assert_in_range(number_from(&c, 0, "PTTL dibs:{x}:hints"), 1, 3000);
    unlock(g);
    client_join(&w);
    assert_status(w.status, DIBS_OK);
    assert_in_range(hints_at(&c, 0), MOST / 2, MOST);
    expect_hints(&c, 0);
    dibs_close(w.d);
    dibs_close(holder);
    cluster_stop(&c);
}
