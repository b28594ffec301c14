/* Rows that a stranger keeps locked, and requests that arrive late, on the SQL engines.
 *
 * usage: test_rows postgresql|mysql [CASE] */
#define _GNU_SOURCE
#include "stranger.h"
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
#define BUSY_MS  (3 * LEASE_MS)
#define STUCK    8
#define SOON_MS  20000
#define WAIT_MS  300 /* how long a call waits in the tests of late requests */

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
    int done, unsure;
    int64_t longest; /* ms */
    dibs_status last;
} user;

static void lock_it(user *u)
{
    dibs_grant *g = NULL;

    u->last = dibs_lock(u->d, u->name, &(dibs_lock_options){.wait_ms = 200, .lease_ms = LEASE_MS},
                        &g, NULL);
    if (u->last == DIBS_OK)
        u->last = unlock(g);
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
        u->unsure += u->last == DIBS_UNKNOWN;
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

/* Is it held without a break for that long? Says how little was left of it. */
static bool stays_held(dibs_grant *g, int64_t ms)
{
    int64_t end = clock_ms() + ms, least = INT64_MAX;

    while (clock_ms() < end && dibs_grant_held(g)) {
        int64_t left = dibs_grant_remaining_ms(g);
        least = left < least ? left : least;
        sleep_ms(5);
    }
    print_message("# at least %lld ms of %d were left\n", (long long)least, LEASE_MS);
    return dibs_grant_held(g);
}

/* The busy machine may need several tries: it is to be done, and by a request that is newer than all before. */
static void set_for_sure(dibs *d, const char *name, int64_t value)
{
    int64_t end = clock_ms() + SOON_MS;
    dibs_status status;

    do
        status = dibs_counter_set(d, name, value, NULL, NULL);
    while (status != DIBS_OK && clock_ms() < end);
    assert_status(status, DIBS_OK);
}

/* Three handles, each with its own part, while one stranger keeps rows. They share the time that it takes. */

/* One waits for a row that is kept: the other locks of the handle are renewed. */
typedef struct one_waits {
    dibs *d;
    dibs_grant *h, *z;
    user waits; /* its thread outlives a case that fails */
} one_waits;

static void one_begin(one_waits *t)
{
    dibs_lock_options o = {.lease_ms = LEASE_MS};

    t->d = expect_open(stranger_url, NULL);
    t->h = expect_lock(t->d, "1h", &o);
    t->z = expect_lock(t->d, "z", &o);
}

static void one_end(one_waits *t)
{
    user_end(&t->waits);
    assert_status(unlock(t->h), DIBS_OK);
    assert_status(unlock(t->z), DIBS_OK);
    dibs_close(t->d);
}

/* Holders and waiters of this handle on the rows that are kept: they suffer, nobody else does. */
typedef struct many_wait {
    dibs *d, *other;
    dibs_grant *held[STUCK], *h;
    user waits[STUCK], free_one, counts;
} many_wait;

static void many_begin(many_wait *t)
{
    dibs_lock_options o = {.lease_ms = LEASE_MS};

    t->d = expect_open(stranger_url, NULL);
    t->other = expect_open(stranger_url, NULL);
    assert_status(dibs_counter_set(t->d, "n", 0, NULL, NULL), DIBS_OK);
    for (int i = 0; i < STUCK; i++)
        t->held[i] = expect_lock(i % 2 ? t->d : t->other, stuck[i], &o);
    t->h = expect_lock(t->d, "h", &o);
}

static void many_go(many_wait *t)
{
    for (int i = 0; i < STUCK; i++)
        user_start(&t->waits[i], t->d, stuck[i], lock_it);
    user_start(&t->free_one, t->d, "x", lock_it);
    user_start(&t->counts, t->d, "n", count_it);
}

/* While the rows are still kept. */
static void many_look(many_wait *t)
{
    user_end(&t->free_one);
    user_end(&t->counts);
    print_message("# %d locks, at most %lld ms; %d counts, at most %lld ms\n", t->free_one.done,
                  (long long)t->free_one.longest, t->counts.done, (long long)t->counts.longest);
    assert_true(t->free_one.done > 20);
    assert_true(t->counts.done > 20);
}

static void many_end(many_wait *t)
{
    for (int i = 0; i < STUCK; i++)
        user_end(&t->waits[i]);
    for (int i = 0; i < STUCK; i++) {
        assert_false(dibs_grant_held(t->held[i]));
        assert_status(unlock(t->held[i]), DIBS_LOST);
    }
    assert_status(unlock(t->h), DIBS_OK);
    for (int i = 0; i < STUCK; i++)
        assert_status(unlock(expect_lock(t->d, stuck[i], &(dibs_lock_options){.wait_ms = SOON_MS})),
                      DIBS_OK);
    dibs_close(t->other);
    dibs_close(t->d);
}

/* Cells that are kept locked: their callers are told so in the end, others go on. */
#define CELLS 4
static const char *const keys[CELLS] = {"n:m0", "n:m1", "n:m2", "n:m3"};

typedef struct cells_wait {
    dibs *d;
    dibs_grant *h;
    user stays[CELLS], counts;
} cells_wait;

static void cells_begin(cells_wait *t)
{
    t->d = expect_open(stranger_url, &(dibs_options){.request_ms = 400});
    for (int i = 0; i < CELLS; i++)
        set_for_sure(t->d, keys[i] + 2, 0);
    set_for_sure(t->d, "free", 0);
    t->h = expect_lock(t->d, "2h", &(dibs_lock_options){.lease_ms = LEASE_MS});
}

static void cells_go(cells_wait *t)
{
    for (int i = 0; i < CELLS; i++)
        user_start(&t->stays[i], t->d, keys[i] + 2, count_it);
    user_start(&t->counts, t->d, "free", count_it);
}

static void cells_look(cells_wait *t)
{
    user_end(&t->counts);
    print_message("# %d counts, at most %lld ms\n", t->counts.done, (long long)t->counts.longest);
    assert_true(t->counts.done > 20);
}

static void cells_end(cells_wait *t)
{
    for (int i = 0; i < CELLS; i++)
        user_end(&t->stays[i]);
    assert_status(unlock(t->h), DIBS_OK);
    for (int i = 0; i < CELLS; i++) { /* what was refused was not done */
        int64_t value = -1;
        assert_status(dibs_counter_get(t->d, keys[i] + 2, &value, NULL), DIBS_OK);
        assert_in_range(value, t->stays[i].done, t->stays[i].done + t->stays[i].unsure);
    }
    dibs_close(t->d);
}

static void only_what_is_kept_suffers(void **state)
{
    static one_waits one;
    static many_wait many;
    static cells_wait cells;
    stranger *locks, *values;

    (void)state;
    stranger_need();
    cells_begin(&cells);
    many_begin(&many);
    one_begin(&one);
    locks = stranger_new();
    values = stranger_new();
    stranger_keep(locks, "dibs_lock", stuck, STUCK);
    stranger_keep(values, "dibs_cell", keys, CELLS);
    user_start(&one.waits, one.d, stuck[0], lock_it);
    many_go(&many);
    cells_go(&cells);
    assert_true(stays_held(many.h, KEPT_MS));
    assert_true(dibs_grant_held(one.h));
    assert_true(dibs_grant_held(one.z));
    assert_true(dibs_grant_held(cells.h));
    many_look(&many);
    cells_look(&cells);
    stranger_let_go(locks);
    stranger_let_go(values);
    one_end(&one);
    many_end(&many);
    cells_end(&cells);
    stranger_free(locks);
    stranger_free(values);
}

/* ---- A row that many want -------------------------------------------------------------------- */

#define CROWD 20
#define SLOTS 10

static void pass_through(user *u)
{
    dibs_grant *g = NULL;

    u->last =
        dibs_lock(u->d, u->name, &(dibs_lock_options){.wait_ms = 200, .slots = SLOTS}, &g, NULL);
    if (u->last == DIBS_OK)
        u->last = unlock(g);
}

/* Somebody always queues for the row, and nobody keeps it: whoever holds a slot keeps it, too. */
static void a_busy_row_costs_nobody_a_lock(void **state)
{
    static user crowd[CROWD];
    dibs *d;
    dibs_grant *g;
    int done = 0;

    (void)state;
    stranger_need();
    d = expect_open(stranger_url, NULL);
    g = expect_lock(d, "busy", &(dibs_lock_options){.lease_ms = LEASE_MS, .slots = SLOTS});
    for (int i = 0; i < CROWD; i++)
        user_start(&crowd[i], expect_open(stranger_url, NULL), "busy", pass_through);
    assert_true(stays_held(g, BUSY_MS));
    for (int i = 0; i < CROWD; i++)
        atomic_store(&crowd[i].stop, true);
    for (int i = 0; i < CROWD; i++) {
        user_end(&crowd[i]);
        dibs_close(crowd[i].d);
        done += crowd[i].done;
    }
    print_message("# %d went through\n", done);
    assert_true(done > CROWD);
    assert_status(unlock(g), DIBS_OK);
    dibs_close(d);
}

/* ---- Requests that arrive late --------------------------------------------------------------- */

/* What was kept back, and on how many connections. */
typedef struct late {
    proxy *p;
    dibs *d, *witness; /* by the proxy, and not */
    int64_t stranded;
} late;

static void late_open(late *l, int64_t request_ms)
{
    stranger_need();
    l->p = proxy_start(stranger_db.port);
    l->d = expect_open(stranger_url_by(proxy_port(l->p), ""),
                       &(dibs_options){.request_ms = request_ms});
    l->witness = expect_open(stranger_url, NULL);
}

/* From now on nothing arrives of what the handle says, unless it connects anew. */
static void late_strand(late *l)
{
    proxy_counts counts;

    proxy_strand(l->p, 0);
    proxy_read(l->p, &counts);
    l->stranded = counts.stranded;
    assert_true(l->stranded > 0);
}

/* The server has answered it, or has ended the session that it was for. */
static bool is_over(void *ctx)
{
    late *l = ctx;
    proxy_counts counts;

    proxy_read(l->p, &counts);
    return counts.kept == 0 && (counts.late > 0 || counts.stranded < l->stranded);
}

/* After a newer request of the handle has succeeded. */
static void late_deliver(late *l)
{
    proxy_deliver(l->p);
    assert_true(wait_until(is_over, l, SOON_MS));
}

static void late_close(late *l)
{
    dibs_close(l->witness);
    dibs_close(l->d);
    proxy_stop(l->p);
}

static void a_late_begin_changes_nothing(void **state)
{
    dibs_once_options at_once = {.wait_ms = DIBS_NO_WAIT};
    dibs_once *o = NULL;
    dibs_status status;
    late l;

    (void)state;
    late_open(&l, WAIT_MS);
    set_for_sure(l.d, "warm", 1);
    late_strand(&l);
    status = dibs_once_begin(l.d, "late", NULL, &o, NULL);
    assert_true(status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE);
    dibs_once_free(o);
    set_for_sure(l.d, "warm", 2);
    late_deliver(&l);
    o = NULL;
    assert_status(dibs_once_begin(l.witness, "late", &at_once, &o, NULL), DIBS_OK);
    assert_status(dibs_once_finish(o, NULL, 0, 0, NULL), DIBS_OK);
    dibs_once_free(o);
    late_close(&l);
}

static void a_late_set_changes_nothing(void **state)
{
    dibs_status status;
    int64_t value = 0;
    late l;

    (void)state;
    late_open(&l, WAIT_MS);
    set_for_sure(l.d, "stock", 1);
    late_strand(&l);
    status = dibs_counter_set(l.d, "stock", 1000, NULL, NULL);
    assert_true(status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE);
    set_for_sure(l.d, "stock", 5); /* the newer one counts */
    late_deliver(&l);
    assert_status(dibs_counter_get(l.witness, "stock", &value, NULL), DIBS_OK);
    assert_int_equal(value, 5);
    late_close(&l);
}

/* ---- A rollback without an answer ------------------------------------------------------------ */

#define STALE 5 /* bytes of the rollback that are missing */

/* A deletion with a fence looks under a lock; refused, it is rolled back. */
static dibs_status delete_refused(dibs *d)
{
    return dibs_cell_delete(d, "kept", 1, &(dibs_cell_options){.fence = 1}, NULL);
}

/* How much a refused deletion says: the rollback is the end of it. */
static int64_t size_of_refusal(late *l)
{
    proxy_counts counts;

    assert_status(delete_refused(l->d), DIBS_CONFLICT); /* what it needs is prepared from now on */
    proxy_reset_counts(l->p);
    assert_status(delete_refused(l->d), DIBS_CONFLICT);
    proxy_read(l->p, &counts);
    return counts.bytes[PROXY_UP];
}

static void a_rollback_without_an_answer(void **state)
{
    dibs_value value = {0};
    late l;

    (void)state;
    late_open(&l, 1500);
    assert_status(dibs_cell_swap(l.witness, "kept", 0, "x", 1, NULL, NULL, NULL), DIBS_OK);
    set_for_sure(l.d, "before", 1);
    proxy_strand(l.p, size_of_refusal(&l) - STALE);
    assert_status(delete_refused(l.d), DIBS_CONFLICT); /* it was decided before */
    proxy_deliver(l.p);
    assert_status(dibs_cell_read(l.d, "kept", &value, NULL), DIBS_OK);
    assert_int_equal(value.size, 1);
    dibs_value_free(&value);
    assert_status(delete_refused(l.d), DIBS_CONFLICT);
    set_for_sure(l.d, "before", 2);
    late_close(&l);
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
        cmocka_unit_test(only_what_is_kept_suffers),
        cmocka_unit_test(a_busy_row_costs_nobody_a_lock),
        cmocka_unit_test(a_late_begin_changes_nothing),
        cmocka_unit_test(a_late_set_changes_nothing),
        cmocka_unit_test(a_rollback_without_an_answer),
    };

    engine = argc > 1 ? argv[1] : "postgresql";
    if (argc > 2) /* one case, by a pattern */
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
