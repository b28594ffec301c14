/* 32 clients on one lock while nodes are killed and restarted without their data: the history of who
 * believed to hold it has no two at once, its tokens grow, and every client was served. */
#define _GNU_SOURCE
#include "suite.h"

#include "cluster.h"
#include "support/clock.h"
#include "support/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef STORM_SECONDS
#define STORM_SECONDS 15
#endif
#define CLIENTS 32
#define MOST    200000

typedef struct belief {
    uint64_t fence;
    int64_t start, end; /* microseconds */
} belief;

typedef struct storm {
    cluster c;
    atomic_bool over;
    belief history[MOST];
    atomic_size_t count;
} storm;

typedef struct client {
    storm *s;
    pthread_t thread;
    int served;
    char failed[256];
} client;

static int64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void note(storm *s, const dibs_grant *g, int64_t start)
{
    size_t i = atomic_fetch_add(&s->count, 1);
    int64_t end = now_us();

    if (i < MOST)
        s->history[i] = (belief){dibs_grant_fence(g), start, dibs_grant_held(g) ? end : start};
}

static void *run_client(void *arg)
{
    client *c = arg;
    dibs *d = NULL;
    dibs_error err = {0};

    if (dibs_open(cluster_url(&c->s->c, "?max_lease=1000"), NULL, &d, &err) != DIBS_OK)
        snprintf(c->failed, sizeof c->failed, "%.250s", err.message);
    while (d && (!atomic_load(&c->s->over) || c->served == 0)) {
        dibs_grant *g = NULL;
        dibs_status status = dibs_lock(
            d, "storm", &(dibs_lock_options){.lease_ms = 900, .wait_ms = 30000}, &g, &err);
        if (status != DIBS_OK) {
            snprintf(c->failed, sizeof c->failed, "%.250s", err.message);
            break;
        }
        int64_t start = now_us();
        c->served += dibs_grant_held(g);
        note(c->s, g, start);
        unlock(g);
    }
    dibs_close(d);
    return NULL;
}

/* One node at a time: down, up again with nothing in it, quiet until the longest lease has passed. */
static int disturb(storm *s, int64_t seconds)
{
    int64_t end = clock_ms() + seconds * 1000;
    int kills = 0;

    while (clock_ms() < end) {
        server *n = &s->c.node[kills++ % CLUSTER_MAX];
        server_end(n, SIGKILL);
        sleep_ms(100);
        assert_int_equal(server_restart(n), 0);
        sleep_ms(1400);
    }
    return kills;
}

static int by_start(const void *a, const void *b)
{
    const belief *x = a, *y = b;

    return x->start < y->start ? -1 : x->start > y->start;
}

static void check_history(belief *b, size_t n)
{
    qsort(b, n, sizeof *b, by_start);
    for (size_t i = 1; i < n; i++) {
        if (b[i].start < b[i - 1].end)
            fail_msg("%llu was held beside %llu", (unsigned long long)b[i].fence,
                     (unsigned long long)b[i - 1].fence);
        if (b[i].fence <= b[i - 1].fence)
            fail_msg("token %llu after %llu", (unsigned long long)b[i].fence,
                     (unsigned long long)b[i - 1].fence);
    }
}

void a_storm_of_clients_and_restarts(void **state)
{
    const char *more = getenv("DIBS_TEST_STORM_SECONDS");
    storm *s = calloc(1, sizeof *s);
    client c[CLIENTS] = {{0}};
    int kills, least = MOST, most = 0;

    (void)state;
    assert_non_null(s);
    cluster_need(&s->c, CLUSTER_MAX, NULL, true);
    for (int i = 0; i < CLIENTS; i++) {
        c[i].s = s;
        assert_int_equal(pthread_create(&c[i].thread, NULL, run_client, &c[i]), 0);
    }
    kills = disturb(s, more ? atoi(more) : STORM_SECONDS);
    atomic_store(&s->over, true);
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(c[i].thread, NULL);
        least = c[i].served < least ? c[i].served : least;
        most = c[i].served > most ? c[i].served : most;
    }
    print_message("# %zu grants, %d kills, most/least served %d/%d\n", atomic_load(&s->count),
                  kills, most, least);
    for (int i = 0; i < CLIENTS; i++)
        if (c[i].failed[0])
            fail_msg("client %d: %s", i, c[i].failed);
    assert_true(least > 0);
    assert_true(atomic_load(&s->count) <= MOST);
    check_history(s->history, atomic_load(&s->count));
    cluster_stop(&s->c);
    free(s);
}
