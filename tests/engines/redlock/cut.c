/* The connections to most nodes, or to all of them, are cut at the same moment, again and again: nothing crashes,
 * and the handle works again at once. */
#define _GNU_SOURCE
#include "suite.h"

#include "cluster.h"
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
    dibs *d;          /* through proxies */
    char direct[512]; /* a URL without them */
    atomic_bool over;
} scene;

static bool works(void *d)
{
    dibs_grant *g = NULL;

    if (dibs_lock(d, "works", &(dibs_lock_options){.wait_ms = 1000}, &g, NULL) != DIBS_OK)
        return false;
    return unlock(g) == DIBS_OK;
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
            unlock(g);
    }
    return (void *)(intptr_t)wait_until(works, s->d, SOON_MS);
}

/* So many nodes, another choice each time. */
static void cut(scene *s, int round, int nodes)
{
    for (int i = 0; i < nodes; i++)
        proxy_reset_all(s->c.proxy[(round + i) % s->c.count]);
}

static void start(scene *s, const char *more)
{
    cluster_need(&s->c, 5, NULL, true);
    snprintf(s->direct, sizeof s->direct, "%s", cluster_url(&s->c, "?guard=off"));
    for (int i = 0; i < s->c.count; i++)
        cluster_proxy(&s->c, i);
    s->d = cluster_open(&s->c, more);
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
    start(&s, "?guard=off");
    for (int round = 0; round < CUTS; round++) {
        dibs_grant *g = NULL;
        dibs_status status;
        assert_true(wait_until(works, s.d, SOON_MS));
        cut(&s, round, 3 + round % 3);
        status = dibs_lock(s.d, "x", &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT}, &g, NULL);
        assert_int_not_equal(status, DIBS_BUSY); /* nobody has it */
        if (status == DIBS_OK)
            unlock(g);
    }
    assert_true(wait_until(works, s.d, SOON_MS));
    stop(&s);
}

/* The servers close connections that nobody has used for a while: what is asked next finds that out before it
 * goes out, and all nodes answer it. */
static void start_idle(scene *s)
{
    start(s, "?guard=off&node_ms=2000");
    assert_true(wait_until(works, s->d, SOON_MS));
}

static void hang_up(scene *s, int nodes)
{
    sleep_ms(150); /* longer than IDLE in link.c */
    cut(s, 0, nodes);
}

void a_free_lock_is_free_after_idle_connections_ended(void **state)
{
    scene s = {.over = false};

    (void)state;
    start_idle(&s);
    for (int round = 0; round < 10; round++) {
        dibs_grant *g = NULL;
        hang_up(&s, 3 + round % 3);
        assert_status(dibs_lock(s.d, "x", &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT}, &g, NULL),
                      DIBS_OK);
        assert_status(unlock(g), DIBS_OK);
    }
    stop(&s);
}

/* What a break says is true: the holder has no majority any more. */
void a_break_breaks_after_idle_connections_ended(void **state)
{
    scene s = {.over = false};
    dibs *other;

    (void)state;
    start_idle(&s);
    other = expect_open(s.direct, NULL);
    for (int nodes = 1; nodes <= 5; nodes++) {
        dibs_grant *g = cluster_take(other, "x", 60000, SOON_MS);
        cluster_expect_votes(&s.c, "x", 5, SOON_MS);
        hang_up(&s, nodes);
        assert_status(dibs_lock_break(s.d, "x",
                                      &(dibs_lock_break_options){.by = "the test", .now = true},
                                      NULL),
                      DIBS_OK);
        assert_true(cluster_votes(&s.c, "x") < 3);
        unlock(g);
    }
    dibs_close(other);
    stop(&s);
}

void most_nodes_cut_under_many_threads(void **state)
{
    scene s = {.over = false};
    pthread_t thread[THREADS];

    (void)state;
    start(&s, "?guard=off");
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
