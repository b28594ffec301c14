/* The keeper when much is to be done at once, and handles that are closed while calls are under way. The
 * engine is the memory engine, with calls that take their time. */
#define _GNU_SOURCE
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
static atomic_int cancels;

static dibs_status slow_cancel(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                               dibs_error *err)
{
    usleep(SLOW_US);
    atomic_fetch_add(&cancels, 1);
    return real->cancel(e, claim, until, err);
}

static dibs *open_slow(void)
{
    dibs *d = open_at(STORE, NULL);

    real = d->class;
    slow = *real;
    slow.cancel = slow_cancel;
    d->class = &slow;
    atomic_store(&cancels, 0);
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

/* All of a crowd leave the line at the same moment: each is an exchange. */
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
        assert_status(dibs_lock_start(d, "busy", &(dibs_lock_options){.wait_ms = 100}, count_down,
                                      &waiting, NULL, NULL),
                      DIBS_OK);
    while (waiting > 0) {
        struct pollfd p = {.fd = dibs_fd(d), .events = POLLIN};
        poll(&p, 1, 1000);
        dibs_dispatch(d);
    }
    assert_true(wait_until(all_are_cancelled, NULL, LONG_MS));
    dibs_stats_read(d, &s);
    assert_int_equal(atomic_load(&note.count), 0);
    assert_true(dibs_held(mine));
    assert_true(s.renewals >= 2);
    dibs_unlock(mine);
    dibs_unlock(busy);
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
            dibs_stats_read(c.d, &s);
            usleep(200);
        }
        close_handle(c.d);
        pthread_join(thread, NULL);
        assert_status(c.status, DIBS_CANCELLED);
        assert_status(try_lock(other, "a"), DIBS_OK);
        dibs_unlock(b);
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
        cmocka_unit_test_teardown(a_call_for_several_is_over_before_its_handle, tear_down),
    };

    alarm(100); /* it may hang otherwise */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
