/* Rows that a stranger keeps locked, and requests that arrive late, on the SQL engines.
 *
 * usage: test_rows postgresql|mysql [CASE] */
#define _GNU_SOURCE
#include "rows/stranger.h"
#include "support/calls.h"
#include "support/clock.h"
#include "support/proxy.h"
#include "support/server.h"
#include "support/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define LEASE_MS 1500
#define KEPT_MS  (2 * LEASE_MS + 500) /* so long a stranger keeps rows */
#define STUCK    8
#define SOON_MS  20000
#define WAIT_MS  300  /* how long a call waits in the tests of late requests */
#define LATE_MS  1200 /* and how late its request is */

static const char *engine;

/* ---- Rows that a stranger keeps locked ------------------------------------------------------- */

static const char *const stuck[STUCK] = {"a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"};

/* A thread that does one thing again and again with a name until it is told to stop. */
typedef struct user {
    pthread_t thread;
    dibs *d;
    const char *name;
    atomic_bool stop;
    void (*act)(struct user *u);
    int done;
    int64_t longest; /* ms */
    dibs_status last;
} user;

static void lock_it(user *u)
{
    dibs_grant *g = NULL;

    u->last = dibs_lock(u->d, u->name, &(dibs_lock_options){.wait_ms = 200, .lease_ms = LEASE_MS},
                        &g, NULL);
    if (u->last == DIBS_OK)
        u->last = dibs_unlock(g);
}

static void count_it(user *u)
{
    u->last = dibs_counter_add(u->d, u->name, 1, NULL, NULL, NULL);
}

static void *user_main(void *arg)
{
    user *u = arg;

    while (!atomic_load(&u->stop)) {
        int64_t start = clock_ms(), took;
        u->act(u);
        took = clock_ms() - start;
        u->longest = took > u->longest ? took : u->longest;
        u->done += u->last == DIBS_OK;
        sleep_ms(2);
    }
    return NULL;
}

static void user_start(user *u, dibs *d, const char *name, void (*act)(user *))
{
    *u = (user){.d = d, .name = name, .act = act};
    assert_int_equal(pthread_create(&u->thread, NULL, user_main, u), 0);
}

static void user_end(user *u)
{
    atomic_store(&u->stop, true);
    pthread_join(u->thread, NULL);
}

/* Makes the rows of the locks that will be stuck. */
static void make_rows(dibs *d)
{
    for (int i = 0; i < STUCK; i++)
        assert_status(dibs_unlock(expect_lock(d, stuck[i], NULL)), DIBS_OK);
}

/* Is it held without a break for that long? Says how little was left of it. */
static bool stays_held(dibs_grant *g, int64_t ms)
{
    int64_t end = clock_ms() + ms, least = INT64_MAX;

    while (clock_ms() < end && dibs_held(g)) {
        int64_t left = dibs_remaining_ms(g);
        least = left < least ? left : least;
        sleep_ms(5);
    }
    print_message("# at least %lld ms of %d were left\n", (long long)least, LEASE_MS);
    return dibs_held(g);
}

static void others_are_renewed_while_one_waits(void **state)
{
    dibs_lock_options o = {.lease_ms = LEASE_MS};
    stranger *s;
    dibs *d;
    dibs_grant *h, *z;
    static user waits; /* its thread outlives a case that fails */

    (void)state;
    stranger_need();
    d = expect_open(stranger_url, NULL);
    make_rows(d);
    h = expect_lock(d, "h", &o);
    z = expect_lock(d, "z", &o);
    s = stranger_new();
    stranger_keep(s, "dibs_lock", stuck, 1);
    user_start(&waits, d, stuck[0], lock_it);
    assert_true(stays_held(h, KEPT_MS));
    assert_true(dibs_held(z));
    stranger_let_go(s);
    user_end(&waits);
    assert_status(dibs_unlock(h), DIBS_OK);
    assert_status(dibs_unlock(z), DIBS_OK);
    assert_status(dibs_unlock(expect_lock(d, stuck[0], NULL)), DIBS_OK);
    stranger_free(s);
    dibs_close(d);
}

/* Holders and waiters of this handle on the rows that are kept: they suffer, nobody else does. */
static void only_the_locked_rows_suffer(void **state)
{
    dibs_lock_options o = {.lease_ms = LEASE_MS};
    stranger *s;
    dibs *d, *other;
    dibs_grant *held[STUCK], *h;
    static user waits[STUCK], free_one, counts;

    (void)state;
    stranger_need();
    d = expect_open(stranger_url, NULL);
    other = expect_open(stranger_url, NULL);
    assert_status(dibs_counter_set(d, "n", 0, NULL, NULL), DIBS_OK);
    for (int i = 0; i < STUCK; i++)
        held[i] = expect_lock(i % 2 ? d : other, stuck[i], &o);
    h = expect_lock(d, "h", &o);
    s = stranger_new();
    stranger_keep(s, "dibs_lock", stuck, STUCK);
    for (int i = 0; i < STUCK; i++)
        user_start(&waits[i], d, stuck[i], lock_it);
    user_start(&free_one, d, "x", lock_it);
    user_start(&counts, d, "n", count_it);
    assert_true(stays_held(h, KEPT_MS));
    user_end(&free_one);
    user_end(&counts);
    print_message("# %d locks, at most %lld ms; %d counts, at most %lld ms\n", free_one.done,
                  (long long)free_one.longest, counts.done, (long long)counts.longest);
    assert_true(free_one.done > 20);
    assert_true(counts.done > 20);
    stranger_let_go(s);
    for (int i = 0; i < STUCK; i++)
        user_end(&waits[i]);
    for (int i = 0; i < STUCK; i++) {
        assert_false(dibs_held(held[i]));
        assert_status(dibs_unlock(held[i]), DIBS_LOST);
    }
    assert_status(dibs_unlock(h), DIBS_OK);
    for (int i = 0; i < STUCK; i++)
        assert_status(
            dibs_unlock(expect_lock(d, stuck[i], &(dibs_lock_options){.wait_ms = SOON_MS})),
            DIBS_OK);
    stranger_free(s);
    dibs_close(other);
    dibs_close(d);
}

/* Cells that are kept locked: their callers are told so in the end, others go on. */
static void only_the_locked_cells_suffer(void **state)
{
    static const char *const keys[] = {"n:m0", "n:m1", "n:m2", "n:m3"};
    dibs_lock_options o = {.lease_ms = LEASE_MS};
    dibs_options quick = {.request_ms = 400};
    stranger *s;
    dibs *d;
    dibs_grant *h;
    static user stays[4], counts;

    (void)state;
    stranger_need();
    d = expect_open(stranger_url, &quick);
    for (int i = 0; i < 4; i++)
        assert_status(dibs_counter_set(d, keys[i] + 2, 0, NULL, NULL), DIBS_OK);
    assert_status(dibs_counter_set(d, "free", 0, NULL, NULL), DIBS_OK);
    h = expect_lock(d, "h", &o);
    s = stranger_new();
    stranger_keep(s, "dibs_cell", keys, 4);
    for (int i = 0; i < 4; i++)
        user_start(&stays[i], d, keys[i] + 2, count_it);
    user_start(&counts, d, "free", count_it);
    assert_true(stays_held(h, KEPT_MS));
    user_end(&counts);
    print_message("# %d counts, at most %lld ms\n", counts.done, (long long)counts.longest);
    assert_true(counts.done > 20);
    stranger_let_go(s);
    for (int i = 0; i < 4; i++)
        user_end(&stays[i]);
    assert_status(dibs_unlock(h), DIBS_OK);
    for (int i = 0; i < 4; i++) { /* what was refused was not done */
        int64_t value = -1;
        assert_status(dibs_counter_get(d, keys[i] + 2, &value, NULL), DIBS_OK);
        assert_int_equal(value, stays[i].done);
    }
    stranger_free(s);
    dibs_close(d);
}

/* ---- Requests that arrive late --------------------------------------------------------------- */

static bool is_alone(void *ctx)
{
    proxy_counts counts;

    proxy_read(ctx, &counts);
    return counts.open <= 2; /* what the handle has now, and nobody's old connection */
}

/* A request is held up for longer than its caller waits. */
static void hold_up(proxy *p, int64_t ms)
{
    proxy_delay(p, PROXY_UP, ms);
}

static void a_late_begin_changes_nothing(void **state)
{
    dibs_options quick = {.request_ms = WAIT_MS};
    dibs_once_options run_once = {.lease_ms = 500};
    dibs_once *o = NULL;
    dibs *d, *witness;
    dibs_status status;
    proxy *p;
    int64_t end;

    (void)state;
    stranger_need();
    p = proxy_start(stranger_db.port);
    d = expect_open(stranger_url_by(proxy_port(p), ""), &quick);
    witness = expect_open(stranger_url, NULL);
    assert_status(dibs_counter_set(d, "warm", 1, NULL, NULL), DIBS_OK);
    hold_up(p, LATE_MS);
    end = clock_ms() + LATE_MS + 700; /* later than the lease of what was begun late, too */
    status = dibs_once_begin(d, "late", &run_once, &o, NULL);
    assert_true(status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE);
    dibs_once_free(o);
    proxy_heal(p);
    while (clock_ms() < end) /* newer requests of the handle go out meanwhile */
        dibs_counter_add(d, "warm", 1, NULL, NULL, NULL);
    assert_true(wait_until(is_alone, p, SOON_MS));
    o = NULL;
    assert_status(dibs_once_begin(witness, "late", &run_once, &o, NULL), DIBS_OK);
    assert_status(dibs_once_finish(o, NULL, 0, 0, NULL), DIBS_OK);
    dibs_once_free(o);
    dibs_close(witness);
    dibs_close(d);
    proxy_stop(p);
}

static void a_late_set_changes_nothing(void **state)
{
    dibs_options quick = {.request_ms = WAIT_MS};
    dibs_status status;
    dibs *d, *witness;
    int64_t value = 0, end;
    proxy *p;

    (void)state;
    stranger_need();
    p = proxy_start(stranger_db.port);
    d = expect_open(stranger_url_by(proxy_port(p), ""), &quick);
    witness = expect_open(stranger_url, NULL);
    assert_status(dibs_counter_set(d, "stock", 1, NULL, NULL), DIBS_OK);
    hold_up(p, LATE_MS);
    end = clock_ms() + LATE_MS + 200;
    status = dibs_counter_set(d, "stock", 1000, NULL, NULL);
    assert_true(status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE);
    proxy_heal(p);
    do
        status = dibs_counter_set(d, "stock", 5, NULL, NULL); /* the newer one counts */
    while (status != DIBS_OK && clock_ms() < end);
    assert_status(status, DIBS_OK);
    while (clock_ms() < end)
        sleep_ms(10);
    assert_true(wait_until(is_alone, p, SOON_MS));
    assert_status(dibs_counter_get(witness, "stock", &value, NULL), DIBS_OK);
    assert_int_equal(value, 5);
    dibs_close(witness);
    dibs_close(d);
    proxy_stop(p);
}

/* ---- All ------------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    (void)state;
    return stranger_setup(engine);
}

static int tear_down(void **state)
{
    (void)state;
    stranger_teardown();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_are_renewed_while_one_waits),
        cmocka_unit_test(only_the_locked_rows_suffer),
        cmocka_unit_test(only_the_locked_cells_suffer),
        cmocka_unit_test(a_late_begin_changes_nothing),
        cmocka_unit_test(a_late_set_changes_nothing),
    };

    engine = argc > 1 ? argv[1] : "postgresql";
    if (argc > 2) /* one case, by a pattern */
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
