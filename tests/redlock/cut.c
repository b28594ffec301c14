/* The connections to most nodes, or to all of them, are cut at the same moment, again and again: nothing crashes,
 * and the handle works again at once. */
#define _GNU_SOURCE
#include "redlock/suite.h"

#include "redlock/cluster.h"
#include "support/clock.h"
#include "support/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#define THREADS 12
#define CUTS    60
#define SOON_MS 10000

typedef struct scene {
    cluster c;
    dibs *d;
    atomic_bool over;
} scene;

static bool works(void *d)
{
    dibs_grant *g = NULL;

    if (dibs_lock(d, "works", &(dibs_lock_options){.wait_ms = 1000}, &g, NULL) != DIBS_OK)
        return false;
    return dibs_unlock(g) == DIBS_OK;
}

static void *use(void *arg)
{
    scene *s = arg;
    char name[32];

    snprintf(name, sizeof name, "of %p", (void *)&name);
    for (int i = 0; !atomic_load(&s->over); i++) {
        dibs_grant *g = NULL;
        dibs_lock_options o = {.wait_ms = i % 3 ? 100 : DIBS_NO_WAIT};
        if (dibs_lock(s->d, i % 4 ? name : "shared", &o, &g, NULL) == DIBS_OK)
            dibs_unlock(g);
    }
    return (void *)(intptr_t)wait_until(works, s->d, SOON_MS);
}

/* So many nodes, another choice each time. */
static void cut(scene *s, int round, int nodes)
{
    for (int i = 0; i < nodes; i++)
        proxy_reset_all(s->c.proxy[(round + i) % s->c.count]);
}

static void start(scene *s)
{
    cluster_need(&s->c, 5, NULL, true);
    for (int i = 0; i < s->c.count; i++)
        cluster_proxy(&s->c, i);
    s->d = cluster_open(&s->c, "?guard=off");
}

static void stop(scene *s)
{
    dibs_close(s->d);
    cluster_stop(&s->c);
}

/* Nobody reads while the connections end: the next question finds it out when it is sent. */
void most_nodes_cut_while_nobody_reads(void **state)
{
    scene s = {.over = false};

    (void)state;
    start(&s);
    for (int round = 0; round < CUTS; round++) {
        dibs_grant *g = NULL;
        assert_true(wait_until(works, s.d, SOON_MS));
        cut(&s, round, 3 + round % 3);
        if (dibs_lock(s.d, "x", &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT}, &g, NULL) == DIBS_OK)
            dibs_unlock(g);
    }
    assert_true(wait_until(works, s.d, SOON_MS));
    stop(&s);
}

void most_nodes_cut_under_many_threads(void **state)
{
    scene s = {.over = false};
    pthread_t thread[THREADS];

    (void)state;
    start(&s);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, use, &s), 0);
    for (int round = 0; round < CUTS; round++) {
        cut(&s, round, 3 + round % 3);
        sleep_ms(10 + round % 7);
    }
    atomic_store(&s.over, true);
    for (int i = 0; i < THREADS; i++) {
        void *worked = NULL;
        pthread_join(thread[i], &worked);
        assert_non_null(worked);
    }
    assert_true(wait_until(works, s.d, SOON_MS));
    stop(&s);
}
