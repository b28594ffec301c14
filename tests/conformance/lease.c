/* Leases: their end, their renewal, and how a loss is told. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include <poll.h>
#include <string.h>

static bool is_lost(void *g)
{
    return !dibs_grant_held(g);
}

/* Without renewal the holder knows that it is over before anybody else has it. */
static void the_end_is_known_before_the_next_grant(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("end");

    (void)state;
    for (int i = 0; i < 3; i++) {
        int64_t start = clock_ms();
        dibs_grant *g = take(a, name, &(dibs_lock_options){.lease_ms = SHORT_MS, .no_renew = true});
        job *j = job_start_against(b, name, NULL, g);
        uint64_t fence = dibs_grant_fence(g);
        job_join(j);
        assert_status(j->status, DIBS_OK);
        assert_false(j->rival_held);
        assert_true(j->fence > fence);
        /* A holder that removes its own entry does so when it is over by its own clock, 9 ms early. */
        assert_in_range(j->at - start, SHORT_MS - 10, SHORT_MS + SOON_MS);
        assert_false(dibs_grant_held(g));
        assert_int_equal(dibs_grant_remaining_ms(g), 0);
        assert_status(unlock(g), DIBS_LOST);
        assert_true(dibs_grant_held(j->g)); /* which a stale unlock does not touch */
        assert_status(try_lock(a, name), DIBS_BUSY);
        assert_status(unlock(j->g), DIBS_OK);
    }
}

static void expiry_is_reported_by_callback(void **state)
{
    dibs *d = open_handle();
    loss_note note = {0};
    dibs_grant *g =
        take(d, fresh("expire"),
             &(dibs_lock_options){
                 .lease_ms = SHORT_MS, .no_renew = true, .on_lost = note_loss, .data = &note});
    dibs_stats s;

    (void)state;
    assert_true(loss_within(&note, SHORT_MS + SOON_MS));
    assert_int_equal(atomic_load(&note.why), DIBS_LOSS_EXPIRED);
    assert_int_equal(dibs_grant_loss(g), DIBS_LOSS_EXPIRED);
    assert_true(strlen(dibs_loss_text(DIBS_LOSS_EXPIRED)) > 3);
    assert_false(dibs_grant_held(g));
    assert_status(unlock(g), DIBS_LOST);
    dibs_stats_read(d, &s, sizeof s);
    assert_int_equal(s.losses[DIBS_LOSS_EXPIRED], 1);
    assert_int_equal(s.held, 0);
    sleep_ms(50);
    assert_int_equal(atomic_load(&note.count), 1);
}

static void expiry_is_an_outcome(void **state)
{
    dibs *d = open_handle();
    int mine;
    dibs_grant *g =
        take(d, fresh("expire-fd"),
             &(dibs_lock_options){.lease_ms = SHORT_MS, .no_renew = true, .data = &mine});
    struct pollfd p = {.fd = dibs_fd(d), .events = POLLIN};
    dibs_outcome o;

    (void)state;
    assert_int_equal(poll(&p, 1, 0), 0);
    assert_false(dibs_take(d, &o));
    assert_int_equal(poll(&p, 1, SHORT_MS + SOON_MS), 1);
    assert_false(dibs_grant_held(g));
    assert_true(dibs_take(d, &o));
    assert_int_equal(o.op, DIBS_OP_LOST);
    assert_int_equal(o.id, 0);
    assert_ptr_equal(o.grant, g);
    assert_ptr_equal(o.user, &mine);
    assert_int_equal(o.loss, DIBS_LOSS_EXPIRED);
    assert_status(o.err.status, DIBS_LOST);
    assert_false(dibs_take(d, &o));
    assert_int_equal(poll(&p, 1, 0), 0);
    assert_status(unlock(g), DIBS_LOST);
}

/* A loss is reported once: by the callback, or as an outcome that unlocking takes back. */
static void a_loss_is_reported_once(void **state)
{
    dibs *d = open_handle();
    loss_note note = {0};
    dibs_lock_options by_callback = {
        .lease_ms = SHORT_MS, .no_renew = true, .on_lost = note_loss, .data = &note};
    dibs_grant *by_report = take(d, fresh("fd"), &by_callback);
    dibs_grant *g =
        take(d, fresh("fd"), &(dibs_lock_options){.lease_ms = SHORT_MS, .no_renew = true});
    struct pollfd p = {.fd = dibs_fd(d), .events = POLLIN};
    dibs_outcome o;

    (void)state;
    assert_int_equal(poll(&p, 1, SHORT_MS + SOON_MS), 1);
    assert_int_equal(dibs_grant_loss(g), DIBS_LOSS_EXPIRED);
    assert_status(unlock(g), DIBS_LOST);
    assert_int_equal(poll(&p, 1, 0), 0);
    assert_false(dibs_take(d, &o));
    assert_status(unlock(by_report), DIBS_LOST);
    assert_int_equal(atomic_load(&note.count), 1);
}

static void unlock_from_the_callback(void *data, dibs_grant *g, dibs_loss why)
{
    note_loss(data, g, why);
    unlock(g);
}

static void a_callback_may_unlock(void **state)
{
    dibs *d = open_handle();
    loss_note note = {0};
    const char *name = fresh("callback");

    (void)state;
    take(d, name,
         &(dibs_lock_options){.lease_ms = SHORT_MS,
                              .no_renew = true,
                              .on_lost = unlock_from_the_callback,
                              .data = &note});
    assert_true(loss_within(&note, SHORT_MS + SOON_MS));
    unlock(take(open_handle(), name, NULL));
}

static void renewal_outlives_the_lease(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("renew");
    dibs_grant *g = take(a, name, &(dibs_lock_options){.lease_ms = KEPT_MS});
    int64_t end = clock_ms() + 2 * KEPT_MS + KEPT_MS / 2;
    dibs_stats s;

    (void)state;
    while (clock_ms() < end) {
        assert_true(dibs_grant_held(g));
        assert_status(try_lock(b, name), DIBS_BUSY);
        sleep_ms(20);
    }
    dibs_stats_read(a, &s, sizeof s);
    assert_true(s.renewals >= 3);
    assert_int_equal(s.renewal_failures, 0);
    assert_int_equal(s.late.count, s.renewals);
    assert_status(unlock(g), DIBS_OK);
}

/* The first lease after a hand-over is short: it must become a whole one. */
static void a_handed_over_lock_is_renewed_too(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("renew-handed");
    dibs_grant *g = take(a, name, NULL);
    job *j = job_start(b, name, &(dibs_lock_options){.lease_ms = KEPT_MS});
    int64_t end;

    (void)state;
    wait_for_queue(a, name, 1);
    unlock(g);
    job_join(j);
    end = clock_ms() + KEPT_MS + KEPT_MS / 2;
    while (clock_ms() < end) {
        assert_true(dibs_grant_held(j->g));
        sleep_ms(20);
    }
    assert_status(unlock(j->g), DIBS_OK);
}

static void max_hold_ends_renewals(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("max");
    loss_note note = {0};
    int64_t start = clock_ms(), hold = 3 * SHORT_MS;
    dibs_grant *g =
        take(a, name,
             &(dibs_lock_options){
                 .lease_ms = SHORT_MS, .max_hold_ms = hold, .on_lost = note_loss, .data = &note});
    job *j = job_start_against(b, name, NULL, g);

    (void)state;
    job_join(j);
    assert_in_range(j->at - start, hold - SHORT_MS, hold + SOON_MS);
    assert_true(j->at - start >= 2 * SHORT_MS);
    assert_false(j->rival_held);
    assert_true(loss_within(&note, SOON_MS));
    assert_int_equal(atomic_load(&note.why), DIBS_LOSS_EXPIRED);
    assert_status(unlock(g), DIBS_LOST);
    unlock(j->g);
}

static void min_hold_keeps_it_taken(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("min");
    int64_t start = clock_ms();
    dibs_grant *g = take(a, name, &(dibs_lock_options){.min_hold_ms = 500});
    job *j;

    (void)state;
    assert_status(unlock(g), DIBS_OK);
    assert_status(try_lock(b, name), DIBS_BUSY);
    assert_status(try_lock(a, name), DIBS_BUSY);
    j = job_start(b, name, NULL);
    job_join(j);
    assert_in_range(j->at - start, 499, 500 + SOON_MS);
    assert_status(unlock(j->g), DIBS_OK);
}

static void renewing_by_hand(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("hand");
    dibs_grant *g = take(a, name, &(dibs_lock_options){.lease_ms = KEPT_MS, .no_renew = true});
    dibs_error err = {0};

    (void)state;
    for (int i = 0; i < 5; i++) {
        sleep_ms(KEPT_MS / 4);
        assert_status(dibs_renew(g, &err), DIBS_OK);
    }
    assert_status(try_lock(b, name), DIBS_BUSY);
    assert_true(wait_until(is_lost, g, KEPT_MS + SOON_MS));
    assert_status(dibs_renew(g, &err), DIBS_LOST);
    assert_true(strlen(err.message) > 10);
    assert_false(dibs_grant_held(g)); /* never made anew */
    assert_status(unlock(g), DIBS_LOST);
    unlock(take(b, name, NULL));
}

/* Two handles, one owner by name: the second waits, the first is told to stop, and has the lock until it
 * has let go. Where no queue is kept, the first is not told. */
static void the_second_of_a_name_follows_the_first(void **state)
{
    dibs *a = open_handle(), *b = open_handle(), *c = open_handle();
    const char *name = fresh("namesake");
    loss_note note = {0};
    dibs_lock_options first = {
        .owner = "job 7", .lease_ms = 2 * KEPT_MS, .on_lost = note_loss, .data = &note};
    dibs_grant *g = take(a, name, &first), *none = NULL;
    job *j;

    (void)state;
    assert_status(dibs_lock(b, name,
                            &(dibs_lock_options){.owner = "job 7", .wait_ms = DIBS_NO_WAIT}, &none,
                            NULL),
                  DIBS_BUSY); /* which tells nobody to stop */
    assert_status(dibs_renew(g, NULL), DIBS_OK);
    j = job_start(b, name, &(dibs_lock_options){.owner = "job 7"});
    if (the.can.first_come) {
        assert_true(loss_within(&note, 2 * KEPT_MS + SOON_MS));
        assert_int_equal(atomic_load(&note.why), DIBS_LOSS_RESUMED);
        assert_false(dibs_grant_held(g));
    } else {
        wait_for_queue(b, name, 1);
    }
    assert_false(atomic_load(&j->done));
    assert_status(unlock(g), the.can.first_come ? DIBS_LOST : DIBS_OK);
    job_join(j);
    assert_status(j->status, DIBS_OK);
    assert_status(try_lock(c, name), DIBS_BUSY);
    assert_status(dibs_renew(j->g, NULL), DIBS_OK);
    assert_status(unlock(j->g), DIBS_OK);
    assert_status(try_lock(c, name), DIBS_OK);
}

/* The first does not renew and never lets go: the second has it when the lease is over. */
static void the_second_of_a_name_waits_for_the_lease(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("namesake-lease");
    dibs_grant *g = take(
        a, name, &(dibs_lock_options){.owner = "job 8", .lease_ms = SHORT_MS, .no_renew = true});
    int64_t start = clock_ms();
    job *j = job_start_against(b, name, &(dibs_lock_options){.owner = "job 8"}, g);

    (void)state;
    job_join(j);
    assert_status(j->status, DIBS_OK);
    assert_false(j->rival_held);
    assert_in_range(j->at - start, 0, SHORT_MS + SOON_MS);
    assert_true(j->fence > dibs_grant_fence(g));
    assert_status(unlock(g), DIBS_LOST);
    assert_true(dibs_grant_held(j->g));
    assert_status(unlock(j->g), DIBS_OK);
}

static void a_lost_lock_can_be_taken_again(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("again");
    dibs_grant *g = take(d, name, &(dibs_lock_options){.lease_ms = SHORT_MS, .no_renew = true}),
               *h = NULL;
    uint64_t fence = dibs_grant_fence(g);

    (void)state;
    assert_true(wait_until(is_lost, g, SHORT_MS + SOON_MS));
    assert_status(dibs_lock(d, name, NULL, &h, NULL),
                  DIBS_LOST); /* not while the lost grant is unreturned */
    assert_null(h);
    assert_status(unlock(g), DIBS_LOST);
    h = take(d, name, NULL);
    assert_true(dibs_grant_fence(h) > fence);
    assert_status(unlock(h), DIBS_OK);
}

static void waiters_stay_alive_in_the_queue(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("alive");
    dibs_grant *g = take(a, name, NULL);
    job *j = job_start(b, name, &(dibs_lock_options){.lease_ms = KEPT_MS});

    (void)state;
    wait_for_queue(a, name, 1);
    sleep_ms(2 * KEPT_MS); /* its window is its lease: without keep-alives it is out */
    wait_for_queue(a, name, 1);
    assert_status(unlock(g), DIBS_OK);
    assert_true(job_done_within(j, SOON_MS));
    job_join(j);
    assert_status(j->status, DIBS_OK);
    unlock(j->g);
}

static const struct CMUnitTest tests[] = {
    CASE(the_end_is_known_before_the_next_grant),
    CASE(expiry_is_reported_by_callback),
    CASE(expiry_is_an_outcome),
    CASE(a_loss_is_reported_once),
    CASE(a_callback_may_unlock),
    CASE(renewal_outlives_the_lease),
    CASE(a_handed_over_lock_is_renewed_too),
    CASE(max_hold_ends_renewals),
    CASE(min_hold_keeps_it_taken),
    CASE(renewing_by_hand),
    CASE(the_second_of_a_name_follows_the_first),
    CASE(the_second_of_a_name_waits_for_the_lease),
    CASE(a_lost_lock_can_be_taken_again),
    CASE(waiters_stay_alive_in_the_queue),
};
CASES(lease_cases, tests);
