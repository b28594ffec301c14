/* The keeper when much is to be done at once, and handles that are closed while calls are under way. The
 * engine is the memory engine, with calls that take their time. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/handle.h"
#include "support/clock.h"
#include "support/jobs.h"
#include "support/test.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STORE    "memory:keeper"
#define CROWD    200
#define SLOW_US  10000 /* what giving back takes: CROWD of them take longer than a lease */
#define LEASE_MS 800

static dibs__engine_class slow;
static const dibs__engine_class *real;
static const dibs__env *env;
static atomic_int cancels;
static atomic_bool cancels_hang; /* none is answered */
static atomic_bool hangs;        /* one of them is under way */
static atomic_int far_us;        /* what each exchange about a cell takes */

/* Not longer than the caller has. False: that is over. */
static bool take_time(int64_t us, dibs__deadline until)
{
    int64_t left = until - dibs__now(env);

    if (us > left)
        us = left > 0 ? left : 0;
    usleep((useconds_t)us);
    return us < left;
}

static dibs_status slow_cancel(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                               dibs_error *err)
{
    if (atomic_load(&cancels_hang)) {
        atomic_store(&hangs, true);
        take_time(until - dibs__now(env), until);
        return dibs__fail(err, DIBS_UNAVAILABLE, "no answer");
    }
    usleep(SLOW_US);
    atomic_fetch_add(&cancels, 1);
    return real->cancel(e, claim, until, err);
}

static dibs_status slow_cell(dibs__engine *e, const char *key, const dibs__cell_command *command,
                             bool notify, dibs__deadline until, dibs__cell_reply *out,
                             dibs_error *err)
{
    if (!take_time(atomic_load(&far_us), until))
        return dibs__fail(err, DIBS_UNAVAILABLE, "no answer in time");
    return real->cell(e, key, command, notify, until, out, err);
}

static dibs *open_slow(void)
{
    dibs *d = open_at(STORE, NULL);

    real = d->class;
    slow = *real;
    slow.cancel = slow_cancel;
    slow.cell = slow_cell;
    d->class = &slow;
    env = d->env;
    atomic_store(&cancels, 0);
    atomic_store(&cancels_hang, false);
    atomic_store(&hangs, false);
    atomic_store(&far_us, 0);
    return d;
}

static void count_down(void *data, dibs_status status, dibs_grant *g, const dibs_error *err)
{
    (void)g;
    (void)err;
    if (status == DIBS_BUSY)
        --*(int *)data;
}

static bool all_are_cancelled(void *unused)
{
    (void)unused;
    return atomic_load(&cancels) >= CROWD;
}

/* All of a crowd leave the queue at the same moment: each is an exchange. */
static void a_crowd_that_leaves_delays_no_renewal(void **state)
{
    dibs *d = open_slow(), *other = open_at(STORE, NULL);
    dibs_grant *busy = take(other, "busy", NULL), *mine;
    loss_note note = {0};
    int waiting = CROWD;
    dibs_stats s;

    (void)state;
    mine = take(d, "mine",
                &(dibs_lock_options){.lease_ms = LEASE_MS, .on_lost = note_loss, .data = &note});
    for (int i = 0; i < CROWD; i++)
        assert_status(start_lock(d, "busy", &(dibs_lock_options){.wait_ms = 100}, count_down,
                                 &waiting, NULL, NULL),
                      DIBS_OK);
    while (waiting > 0) {
        struct pollfd p = {.fd = dibs_fd(d), .events = POLLIN};
        poll(&p, 1, 1000);
        take_all(d);
    }
    assert_true(wait_until(all_are_cancelled, NULL, LONG_MS));
    dibs_stats_read(d, &s, sizeof s);
    assert_int_equal(atomic_load(&note.count), 0);
    assert_true(dibs_grant_held(mine));
    assert_true(s.renewals >= 2);
    unlock(mine);
    unlock(busy);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

typedef struct renewing {
    dibs *d;
    dibs_once *run;
    uint64_t want;
} renewing;

static dibs_once *begin(dibs *d, const char *key, int64_t lease_ms)
{
    dibs_once *o = NULL;

    assert_status(dibs_once_begin(d, key, &(dibs_once_options){.lease_ms = lease_ms}, &o, NULL),
                  DIBS_OK);
    return o;
}

/* Or it is lost, and there is nothing to wait for. */
static bool is_renewed(void *arg)
{
    renewing *r = arg;
    dibs_stats s;

    dibs_stats_read(r->d, &s, sizeof s);
    return s.renewals >= r->want || !dibs_once_held(r->run);
}

static void assert_is_renewed(dibs *d, dibs_once *run)
{
    assert_true(wait_until(is_renewed, &(renewing){d, run, 2}, LONG_MS));
    assert_true(dibs_once_held(run));
    atomic_store(&cancels_hang, false);
    dibs_once_free(run);
}

static bool somebody_waits(void *d)
{
    dibs_stats s;

    dibs_stats_read(d, &s, sizeof s);
    return s.waiting > 0;
}

/* What was handed over has a short time until its first renewal. Far from the engine an exchange takes a
 * while, and runs must get theirs all the same. */
static void a_hand_over_leaves_runs_their_time(void **state)
{
    dibs *d = open_slow(), *other = open_at(STORE, NULL);
    dibs_grant *first = take(other, "handed", NULL);
    job *next = job_start(d, "handed", &(dibs_lock_options){.lease_ms = 60000});
    dibs_once *run;

    (void)state;
    assert_true(wait_until(somebody_waits, d, LONG_MS));
    unlock(first);
    job_join_held(next);
    atomic_store(&far_us, 100000);
    run = begin(d, "run", 1200);
    assert_is_renewed(d, run);
    unlock(next->g);
}

/* Giving back what a waiter left gets no answer for as long as the keeper has patience. */
static void what_hangs_leaves_runs_their_renewals(void **state)
{
    dibs *d = open_slow(), *other = open_at(STORE, NULL);
    dibs_grant *busy = take(other, "busy", NULL);
    dibs_once *run = begin(d, "run", 2000);

    (void)state;
    atomic_store(&cancels_hang, true);
    assert_status(
        dibs_lock(d, "busy", &(dibs_lock_options){.wait_ms = 10}, &(dibs_grant *){NULL}, NULL),
        DIBS_BUSY);
    assert_is_renewed(d, run);
    unlock(busy);
}

static bool one_hangs(void *unused)
{
    (void)unused;
    return atomic_load(&hangs);
}

/* The keeper is away when the lock is taken: it cannot know it, and comes back for it all the same. */
static void what_hangs_leaves_the_next_lock_its_renewals(void **state)
{
    dibs *d = open_slow(), *other = open_at(STORE, NULL);
    dibs_grant *busy = take(other, "busy", NULL), *late;
    loss_note note = {0};
    dibs_lock_options brief = {.lease_ms = LEASE_MS, .on_lost = note_loss, .data = &note};

    (void)state;
    unlock(take(d, "early", &brief));
    atomic_store(&cancels_hang, true);
    assert_status(
        dibs_lock(d, "busy", &(dibs_lock_options){.wait_ms = 10}, &(dibs_grant *){NULL}, NULL),
        DIBS_BUSY);
    atomic_store(&hangs, false); /* that was the call's own try */
    assert_true(wait_until(one_hangs, NULL, LONG_MS));
    late = take(d, "late", &brief);
    sleep_ms(2 * LEASE_MS);
    assert_int_equal(atomic_load(&note.count), 0);
    assert_true(dibs_grant_held(late));
    atomic_store(&cancels_hang, false);
    unlock(late);
    unlock(busy);
}

/* ---- Closing --------------------------------------------------------------------------------- */

typedef struct call {
    dibs *d;
    dibs_status status;
} call;

static void *take_two(void *arg)
{
    call *c = arg;
    const char *names[] = {"a", "b"};
    dibs_grant *g[2];

    c->status = dibs_lock_many(c->d, names, 2, NULL, g, NULL);
    return NULL;
}

/* The first is given back after the wait for the second has ended: that is still the same call. */
static void a_call_for_several_is_over_before_its_handle(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        dibs *other = open_at(STORE, NULL);
        dibs_grant *b = take(other, "b", NULL);
        call c = {.d = open_slow()};
        dibs_stats s = {0};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, take_two, &c), 0);
        while (s.waiting == 0) {
            dibs_stats_read(c.d, &s, sizeof s);
            usleep(200);
        }
        close_handle(c.d);
        pthread_join(thread, NULL);
        assert_status(c.status, DIBS_CANCELLED);
        assert_status(try_lock(other, "a"), DIBS_OK);
        unlock(b);
        close_handle(other);
    }
}

static int tear_down(void **state)
{
    (void)state;
    close_handles();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_crowd_that_leaves_delays_no_renewal, tear_down),
        cmocka_unit_test_teardown(a_hand_over_leaves_runs_their_time, tear_down),
        cmocka_unit_test_teardown(what_hangs_leaves_runs_their_renewals, tear_down),
        cmocka_unit_test_teardown(what_hangs_leaves_the_next_lock_its_renewals, tear_down),
        cmocka_unit_test_teardown(a_call_for_several_is_over_before_its_handle, tear_down),
    };

    alarm(100); /* it may hang otherwise */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
