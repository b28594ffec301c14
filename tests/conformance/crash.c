/* Runs of once: the dead are the caller's choice, the late are refused; leases, steps, waits. */
#define _GNU_SOURCE
#include "conformance/onces.h"

#include <stdio.h>
#include <string.h>

/* ---- Crashes --------------------------------------------------------------------------------- */

static void a_dead_runner_is_refused_or_run_again(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("crash");
    dibs_once *late = once_fall_silent(a, key, NULL), *o = NULL;
    uint64_t fence = dibs_once_fence(late);
    dibs_party who;

    (void)state;
    assert_true(wait_until(once_is_dead, &(once_asked){b, key, 0}, LONG_MS));
    assert_false(dibs_once_held(late)); /* told before anybody else is */
    assert_status(once_begin(b, key, NULL, &o), DIBS_CRASHED);
    dibs_once_runner(o, &who, sizeof who);
    assert_int_equal(who.fence, fence);
    assert_int_equal(who.left_ms, 0);
    dibs_once_free(o);
    o = once_first(b, key, &(dibs_once_options){.on_crash = DIBS_CRASH_RERUN});
    assert_true(dibs_once_again(o));
    assert_true(dibs_once_fence(o) > fence);
    lossy_stop();
    assert_status(dibs_once_step(late, "s", NULL, 0, NULL), DIBS_LOST);
    assert_status(dibs_once_finish(late, "late", 4, 0, NULL), DIBS_LOST);
    assert_status(dibs_once_undo(late, NULL), DIBS_LOST);
    once_end(o, "in time");
    assert_status(dibs_once_finish(late, "late", 4, 0, NULL), DIBS_LOST);
    dibs_once_free(late);
    lossy_stop();
    once_expect(b, key, "in time");
}

/* The one who took over gave it back: the late one must not end it. */
static void a_late_finish_of_what_was_given_back_is_refused(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("gone");
    dibs_once *late = once_fall_silent(a, key, NULL), *o;

    (void)state;
    assert_true(wait_until(once_is_dead, &(once_asked){b, key, 0}, LONG_MS));
    o = once_first(b, key, &(dibs_once_options){.on_crash = DIBS_CRASH_RERUN});
    assert_status(dibs_once_undo(o, NULL), DIBS_OK);
    dibs_once_free(o);
    lossy_stop();
    assert_status(dibs_once_finish(late, "late", 4, 0, NULL), DIBS_LOST);
    dibs_once_free(late);
    lossy_stop();
    assert_status(once_answered(b, key, NULL), DIBS_CRASHED);
}

static void the_caller_may_decide(void **state)
{
    dibs *d = once_open();
    const char *key = fresh("decide");
    dibs_once *run = once_first(d, key, &(dibs_once_options){.owner = "dead"}), *other = NULL;
    dibs_party who;
    uint64_t fence = dibs_once_fence(run);

    (void)state;
    assert_status(dibs_once_rerun(run, NULL), DIBS_INVALID); /* it is ours */
    assert_status(dibs_once_step(run, "one", "1", 1, NULL), DIBS_OK);
    assert_status(dibs_once_abandon(run, NULL), DIBS_OK);
    dibs_once_free(run);
    assert_status(once_begin(d, key, NULL, &run), DIBS_CRASHED);
    assert_status(once_begin(d, key, NULL, &other), DIBS_CRASHED);
    dibs_once_runner(run, &who, sizeof who);
    assert_string_equal(who.owner, "dead");
    assert_string_equal(dibs_once_step_data(run, "one", NULL), "1");
    assert_status(dibs_once_rerun(run, NULL), DIBS_OK);
    assert_true(dibs_once_held(run) && dibs_once_again(run) && dibs_once_fence(run) > fence);
    assert_status(dibs_once_rerun(other, NULL), DIBS_RUNNING); /* somebody was faster */
    dibs_once_free(other);
    once_end(run, "decided");
}

static void an_abandoned_run_is_dead_at_once(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("abandon"), *freed = fresh("freed"), *closed = fresh("closed");
    dibs_once *o = once_first(a, key, NULL);

    (void)state;
    assert_status(dibs_once_abandon(o, NULL), DIBS_OK);
    assert_false(dibs_once_held(o));
    dibs_once_free(o);
    assert_status(once_answered(b, key, NULL), DIBS_CRASHED);
    dibs_once_free(once_first(a, freed, NULL));
    assert_status(once_answered(b, freed, NULL), DIBS_CRASHED);
    once_first(a, closed, NULL);
    close_handle(a);
    assert_status(once_answered(b, closed, NULL), DIBS_CRASHED);
}

/* ---- Take-overs that came to nothing ---------------------------------------------------------- */

/* A run of "dead" with one step, which nobody knows the end of. */
static void leave_a_crash(dibs *d, const char *key, const dibs_once_options *options)
{
    dibs_once_options o = options ? *options : (dibs_once_options){0};
    dibs_once *run;

    o.owner = "dead";
    run = once_first(d, key, &o);
    assert_status(dibs_once_step(run, "one", "1", 1, NULL), DIBS_OK);
    assert_status(dibs_once_abandon(run, NULL), DIBS_OK);
    dibs_once_free(run);
}

/* The crash is there as it was, and a rerun finds its step. */
static void expect_the_crash(dibs *d, const char *key, const dibs_once_options *options)
{
    dibs_once_options rerun = options ? *options : (dibs_once_options){0};
    dibs_once *o = NULL;
    dibs_party who;

    assert_status(once_begin(d, key, options, &o), DIBS_CRASHED);
    dibs_once_runner(o, &who, sizeof who);
    assert_string_equal(who.owner, "dead");
    dibs_once_free(o);
    rerun.on_crash = DIBS_CRASH_RERUN;
    o = once_first(d, key, &rerun);
    assert_true(dibs_once_again(o));
    assert_string_equal(dibs_once_step_data(o, "one", NULL), "1");
    once_end(o, "rerun");
    assert_status(once_answered(d, key, options), DIBS_ALREADY);
}

/* Takes over from the crash, and gets no answer. On a slow machine the time may be over before the take-over is
 * sent: then once more. */
static void rerun_unheard(dibs *d, const char *key, const dibs_once_options *options, lossy_way way)
{
    dibs_status status = DIBS_UNAVAILABLE;

    for (int i = 0; i < 50 && status == DIBS_UNAVAILABLE; i++) {
        dibs_once *o = NULL;
        lossy_stop();
        status = once_begin(d, key, options, &o);
        if (status == DIBS_CRASHED) {
            lossy_lose(way, -1, NULL, NULL);
            status = dibs_once_rerun(o, NULL);
        }
        dibs_once_free(o);
    }
    assert_status(status, DIBS_UNKNOWN);
}

static void a_withdrawn_take_over_leaves_the_crash(void **state)
{
    dibs *b = once_open();

    (void)state;
    for (int i = 0; i < 3; i++) {
        lossy_way way = i == 2 ? LOSSY_HELD : i == 1 ? LOSSY_REQUEST : LOSSY_ANSWER;
        const char *key = fresh("withdrawn");
        dibs *a = open_with(&(dibs_options){.request_ms = 300});
        int answers;
        leave_a_crash(b, key, NULL);
        lossy_put_in(a);
        rerun_unheard(a, key, NULL, way);
        answers = lossy_answers();
        lossy_stop();
        assert_true(wait_until(once_answers, &(int){answers + 2}, LONG_MS));
        close_handle(a); /* one lossy handle at a time */
        assert_int_equal(lossy_deliver(b) > 0, way == LOSSY_HELD);
        expect_the_crash(b, key, NULL);
    }
}

/* The same under a fingerprint. */
static void the_keeper_puts_a_crash_back(void **state)
{
    dibs *a, *b = once_open();
    const char *key = fresh("put-back");
    dibs_once_options print = {.fingerprint = "f", .fingerprint_size = 1};
    dibs_once_options o = {.fingerprint = "f", .fingerprint_size = 1, .lease_ms = 60000};

    (void)state;
    a = open_with(&(dibs_options){.request_ms = 300});
    leave_a_crash(b, key, &print);
    lossy_put_in(a);
    rerun_unheard(a, key, &o, LOSSY_ANSWER);
    assert_status(once_answered(b, key, &print), DIBS_RUNNING); /* that of which nobody was told */
    lossy_stop();
    for (int i = 0; i < LONG_MS / 20 && once_answered(b, key, &print) == DIBS_RUNNING; i++)
        sleep_ms(20);
    expect_the_crash(b, key, &print);
}

/* The earlier run's outcome is as unknown as before; what this one reached is true all the same. */
static void a_rerun_that_failed_leaves_the_crash(void **state)
{
    dibs *d = once_open();
    const char *key = fresh("rerun");
    dibs_once *o;

    (void)state;
    leave_a_crash(d, key, NULL);
    o = once_first(d, key, &(dibs_once_options){.on_crash = DIBS_CRASH_RERUN});
    assert_status(dibs_once_step(o, "two", "2", 1, NULL), DIBS_OK);
    assert_status(dibs_once_undo(o, NULL), DIBS_OK);
    dibs_once_free(o);
    assert_status(once_begin(d, key, NULL, &o), DIBS_CRASHED);
    assert_string_equal(dibs_once_step_data(o, "two", NULL), "2");
    dibs_once_free(o);
    expect_the_crash(d, key, NULL);
}

/* Put back, it ends when it would have ended. */
static void a_crash_that_was_put_back_ends_in_its_time(void **state)
{
    dibs *d = once_open();
    const char *key = fresh("ends");
    dibs_once_options brief = {.on_crash = DIBS_CRASH_RERUN, .keep_ms = 4 * SHORT_MS};
    int64_t until;
    dibs_once *o;

    (void)state;
    leave_a_crash(d, key, &brief);
    until = clock_ms() + LONG_MS;
    do { /* each take-over would begin its time anew */
        o = once_first(d, key, &brief);
        assert_true(clock_ms() < until);
        if (!dibs_once_again(o))
            break;
        assert_status(dibs_once_undo(o, NULL), DIBS_OK);
        dibs_once_free(o);
        sleep_ms(SHORT_MS / 4);
    } while (true);
    once_end(o, "first");
}

/* ---- Leases ---------------------------------------------------------------------------------- */

static void a_run_is_renewed(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("renew");
    dibs_once *o = once_first(a, key, &(dibs_once_options){.lease_ms = 4 * SHORT_MS});
    int64_t begin_at = clock_ms();

    (void)state;
    assert_status(dibs_once_step(o, "s", "data", 4, NULL), DIBS_OK);
    while (clock_ms() < begin_at + 6 * SHORT_MS) {
        assert_true(dibs_once_held(o));
        assert_true(dibs_once_remaining_ms(o) > 0);
        assert_status(once_answered(b, key, NULL), DIBS_RUNNING);
        sleep_ms(50);
    }
    assert_string_equal(dibs_once_step_data(o, "s", NULL), "data");
    once_end(o, "renewed");
    once_expect(b, key, "renewed");
}

static void note_run_lost(void *data, dibs_once *o)
{
    loss_note *n = data;

    n->thread = pthread_self();
    atomic_store(&n->why, dibs_once_held(o));
    atomic_fetch_add(&n->count, 1);
}

static void a_loss_is_reported(void **state)
{
    dibs *d = once_open();
    loss_note lost = {0};
    dibs_once *o = once_fall_silent(d, fresh("lost"),
                                    &(dibs_once_options){.on_lost = note_run_lost, .data = &lost});

    (void)state;
    assert_true(loss_within(&lost, LONG_MS));
    assert_int_equal(atomic_load(&lost.why), false);
    assert_false(pthread_equal(lost.thread, pthread_self()));
    assert_false(dibs_once_held(o));
    assert_int_equal(dibs_once_remaining_ms(o), 0);
    dibs_once_free(o);
    lossy_stop();
    assert_int_equal(atomic_load(&lost.count), 1);
}

static void a_lost_run_is_an_outcome(void **state)
{
    dibs *d;
    dibs_once *o;
    dibs_outcome out = {0};
    int64_t until = clock_ms() + LONG_MS;

    (void)state;
    if (!the.can.cells)
        skip();
    d = open_handle();
    o = once_fall_silent(d, fresh("outcome"), &(dibs_once_options){.data = &until});
    while (!dibs_take(d, &out) && clock_ms() < until)
        sleep_ms(5);
    assert_int_equal(out.op, DIBS_OP_LOST);
    assert_ptr_equal(out.once, o);
    assert_ptr_equal(out.user, &until);
    assert_status(out.err.status, DIBS_LOST);
    dibs_once_free(o);
    lossy_stop();
}

/* Nobody took over: what was done may still be told. */
static void a_late_finish_counts_if_nobody_took_over(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("late");
    dibs_once *o = once_fall_silent(a, key, NULL);

    (void)state;
    assert_true(wait_until(once_is_dead, &(once_asked){b, key, 0}, LONG_MS));
    lossy_stop();
    assert_status(dibs_once_step(o, "s", NULL, 0, NULL), DIBS_LOST);
    once_end(o, "late");
    lossy_stop();
    once_expect(b, key, "late");
}

static void sleep_through(void *data)
{
    (void)data;
    sleep_ms(3 * SHORT_MS + 200);
}

/* Stopped while the answer lay in the socket: what comes back is held, or is not called ours. */
static void a_late_answer_is_no_dead_run(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("slow");
    dibs_once *o;

    (void)state;
    lossy_put_in(a);
    lossy_lose(LOSSY_LATE, 1, sleep_through, NULL);
    o = once_first(a, key, &(dibs_once_options){.lease_ms = 3 * SHORT_MS});
    assert_false(dibs_once_again(o));
    once_end(o, "alive");
    once_expect(b, key, "alive");
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static void work_goes_on_where_it_stopped(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("steps");
    dibs_once *o = once_first(a, key, NULL);
    size_t size = 99;

    (void)state;
    assert_null(dibs_once_step_data(o, "reserved", &size));
    assert_int_equal(size, 0);
    assert_status(dibs_once_step(o, "reserved", "seat 3", 6, NULL), DIBS_OK);
    assert_status(dibs_once_step(o, "charged", NULL, 0, NULL), DIBS_OK);
    assert_status(dibs_once_step(o, "reserved", "seat 4", 6, NULL), DIBS_OK);
    assert_status(dibs_once_step(o, "", "x", 1, NULL), DIBS_INVALID);
    assert_string_equal(dibs_once_step_data(o, "reserved", &size), "seat 4");
    assert_status(dibs_once_abandon(o, NULL), DIBS_OK);
    assert_status(dibs_once_step(o, "more", NULL, 0, NULL), DIBS_INVALID);
    dibs_once_free(o);
    o = once_first(b, key, &(dibs_once_options){.on_crash = DIBS_CRASH_RERUN});
    assert_string_equal(dibs_once_step_data(o, "reserved", &size), "seat 4");
    assert_int_equal(size, 6);
    assert_non_null(dibs_once_step_data(o, "charged", &size));
    assert_int_equal(size, 0);
    assert_null(dibs_once_step_data(o, "sent", &size));
    assert_status(dibs_once_step(o, "sent", "1", 1, NULL), DIBS_OK);
    once_end(o, NULL);
}

static void a_failure_forgets_the_steps(void **state)
{
    dibs *d = once_open();
    const char *key = fresh("steps");
    dibs_once *o = once_first(d, key, NULL);

    (void)state;
    assert_status(dibs_once_step(o, "reserved", "seat 3", 6, NULL), DIBS_OK);
    assert_status(dibs_once_undo(o, NULL), DIBS_OK);
    dibs_once_free(o);
    o = once_first(d, key, NULL); /* from the beginning */
    assert_false(dibs_once_again(o));
    assert_null(dibs_once_step_data(o, "reserved", NULL));
    once_end(o, NULL);
}

/* The one who took over dies before its first renewal. */
static void steps_outlive_two_runners(void **state)
{
    dibs_once_options rerun = {.on_crash = DIBS_CRASH_RERUN, .lease_ms = SHORT_MS};
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("steps");
    dibs_once *o = once_first(b, key, NULL), *late;

    (void)state;
    assert_status(dibs_once_step(o, "reserved", "seat 3", 6, NULL), DIBS_OK);
    assert_status(dibs_once_abandon(o, NULL), DIBS_OK);
    dibs_once_free(o);
    late = once_fall_silent(a, key, &rerun);
    assert_true(wait_until(once_is_dead, &(once_asked){b, key, 0}, LONG_MS));
    o = once_first(b, key, &rerun);
    assert_string_equal(dibs_once_step_data(o, "reserved", NULL), "seat 3");
    once_end(o, NULL);
    lossy_stop();
    dibs_once_free(late);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

typedef struct waiter {
    pthread_t thread;
    dibs *d;
    const char *key;
    dibs_once_options options;
    dibs_status status;
    char result[32];
    bool again;
    atomic_bool done;
} waiter;

static void *waiter_main(void *arg)
{
    waiter *w = arg;
    dibs_once *o = NULL;

    w->status = dibs_once_begin(w->d, w->key, &w->options, &o, NULL);
    if (w->status == DIBS_ALREADY)
        snprintf(w->result, sizeof w->result, "%s", (const char *)dibs_once_result(o, NULL));
    if (w->status == DIBS_OK) {
        w->again = dibs_once_again(o);
        dibs_once_undo(o, NULL);
    }
    if (o)
        dibs_once_free(o);
    atomic_store(&w->done, true);
    return NULL;
}

static void start_waiter(waiter *w, dibs *d, const char *key, const dibs_once_options *options)
{
    memset(w, 0, sizeof *w);
    w->d = d;
    w->key = key;
    if (options)
        w->options = *options;
    assert_int_equal(pthread_create(&w->thread, NULL, waiter_main, w), 0);
}

static bool waiter_is_done(void *ctx)
{
    return atomic_load(&((waiter *)ctx)->done);
}

static void join_waiter(waiter *w)
{
    assert_true(wait_until(waiter_is_done, w, LONG_MS));
    pthread_join(w->thread, NULL);
}

static void a_wait_ends_with_the_run(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("wait"), *failed = fresh("wait");
    dibs_once *o = once_first(a, key, NULL), *p = once_first(a, failed, NULL);
    waiter w[2];

    (void)state;
    start_waiter(&w[0], b, key, NULL);
    start_waiter(&w[1], b, failed, NULL);
    sleep_ms(100); /* they may be waiting by now, or not yet: both are to end well */
    assert_false(waiter_is_done(&w[0]));
    once_end(o, "waited for");
    assert_status(dibs_once_undo(p, NULL), DIBS_OK);
    dibs_once_free(p);
    join_waiter(&w[0]);
    join_waiter(&w[1]);
    assert_status(w[0].status, DIBS_ALREADY);
    assert_string_equal(w[0].result, "waited for");
    assert_status(w[1].status, DIBS_OK); /* its turn, as the first */
    assert_false(w[1].again);
}

/* An engine that declares it wakes those who wait: in between they look once a second, not more often
 * (looking at growing intervals would take eight in the first one). Many of one handle share. */
static void waiters_are_woken_and_do_not_poll(void **state)
{
    enum { WAITERS = 8 };
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("woken");
    dibs_once *o;
    waiter w[WAITERS];
    int64_t began;
    int most;

    (void)state;
    if (!b->class->watch)
        skip();
    o = once_first(a, key, NULL);
    lossy_put_in(b);
    began = clock_ms();
    for (int i = 0; i < WAITERS; i++)
        start_waiter(&w[i], b, key, NULL);
    sleep_ms(900);
    once_end(o, "woken");
    for (int i = 0; i < WAITERS; i++) {
        join_waiter(&w[i]);
        assert_status(w[i].status, DIBS_ALREADY);
        assert_string_equal(w[i].result, "woken");
    }
    /* The first look, the last, one a second, and one to spare for a wait that ends early. */
    most = WAITERS * (3 + (int)((clock_ms() - began) / 1000));
    assert_in_range(lossy_commands(), 2 * WAITERS, most);
}

static void a_wait_has_a_bound(void **state)
{
    dibs *d = once_open();
    const char *key = fresh("bound");
    dibs_once *o = once_first(d, key, NULL), *other = NULL;
    int64_t begin_at = clock_ms();

    (void)state;
    assert_status(once_begin(d, key, &(dibs_once_options){.wait_ms = 900}, &other), DIBS_RUNNING);
    assert_in_range(clock_ms() - begin_at, 899, 900 + SOON_MS);
    assert_status(dibs_once_wait(other, 100, NULL), DIBS_RUNNING);
    assert_status(dibs_once_wait(other, DIBS_NO_WAIT, NULL), DIBS_RUNNING);
    assert_status(dibs_once_wait(other, -7, NULL), DIBS_INVALID);
    assert_status(dibs_once_wait(o, 100, NULL), DIBS_INVALID);
    once_end(o, "done");
    assert_status(dibs_once_wait(other, 0, NULL), DIBS_ALREADY);
    assert_string_equal(dibs_once_result(other, NULL), "done");
    assert_status(dibs_once_wait(other, 0, NULL), DIBS_ALREADY);
    dibs_once_free(other);
}

static void a_wait_ends_with_the_runners_lease(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("dies");
    dibs_once *late = once_fall_silent(a, key, NULL);
    waiter refuse, rerun;

    (void)state;
    start_waiter(&refuse, b, key, NULL);
    join_waiter(&refuse);
    assert_status(refuse.status, DIBS_CRASHED);
    start_waiter(&rerun, b, key, &(dibs_once_options){.on_crash = DIBS_CRASH_RERUN});
    join_waiter(&rerun);
    assert_status(rerun.status, DIBS_OK);
    assert_true(rerun.again);
    lossy_stop();
    dibs_once_free(late);
}

static void a_wait_can_be_cancelled(void **state)
{
    dibs *a = once_open(), *b = open_handle(), *c = open_handle();
    const char *key = fresh("cancel");
    dibs_once *o = once_first(a, key, NULL);
    waiter w[2];

    (void)state;
    start_waiter(&w[0], b, key, NULL);
    start_waiter(&w[1], c, key, NULL);
    sleep_ms(100);
    for (int i = 0; !waiter_is_done(&w[0]) && i < 200; i++) {
        dibs_cancel(b, NULL); /* it may not have begun to wait */
        sleep_ms(50);
    }
    join_waiter(&w[0]);
    assert_status(w[0].status, DIBS_CANCELLED);
    close_handle(c);
    join_waiter(&w[1]);
    assert_status(w[1].status, DIBS_CANCELLED);
    once_end(o, "not cancelled");
}

static const struct CMUnitTest tests[] = {
    CASE(a_dead_runner_is_refused_or_run_again),
    CASE(a_late_finish_of_what_was_given_back_is_refused),
    CASE(the_caller_may_decide),
    CASE(an_abandoned_run_is_dead_at_once),
    CASE(a_withdrawn_take_over_leaves_the_crash),
    CASE(the_keeper_puts_a_crash_back),
    CASE(a_rerun_that_failed_leaves_the_crash),
    CASE(a_crash_that_was_put_back_ends_in_its_time),
    CASE(a_run_is_renewed),
    CASE(a_loss_is_reported),
    CASE(a_lost_run_is_an_outcome),
    CASE(a_late_finish_counts_if_nobody_took_over),
    CASE(a_late_answer_is_no_dead_run),
    CASE(work_goes_on_where_it_stopped),
    CASE(a_failure_forgets_the_steps),
    CASE(steps_outlive_two_runners),
    CASE(a_wait_ends_with_the_run),
    CASE(waiters_are_woken_and_do_not_poll),
    CASE(a_wait_has_a_bound),
    CASE(a_wait_ends_with_the_runners_lease),
    CASE(a_wait_can_be_cancelled),
};

CASES(crash_cases, tests);
