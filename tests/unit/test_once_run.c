/* Runs of once that are ours: renewed, given steps, ended, lost, let go. Every command, moment and status is compared with
 * what the engine and the clock make of it. */
#define _GNU_SOURCE
#include "support/runs.h"

#include "core/error.h"
#include "support/alloc.h"
#include "support/calls.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* In tables */
#define R DIBS__RUN_RUNNING
#define D DIBS__RUN_DONE
#define F DIBS__RUN_FAILED
#define A DIBS__RUN_ABANDONED
#define N DIBS__RUN_FREE

/* ---- Renewing -------------------------------------------------------------------------------- */

static void a_renewal_is_a_new_lease(void **state)
{
    dibs_once *o = ours(&brief);
    uint64_t version = o->version;
    int64_t sent;

    (void)state;
    assert_status(dibs_once_step(o, "s", "1", 1, NULL), DIBS_OK);
    assert_true(o->version > version);
    version = o->version;
    sent = o->renew.due.key;
    still_pass(sent - still_now());
    assert_true(still_serve(a));
    assert_int_equal(still_last(a, 0)->at, sent);
    assert_int_equal(still_last(a, 0)->command.op, DIBS__CELL_SWAP);
    assert_int_equal(still_last(a, 0)->command.version, version);
    assert_int_equal(still_last(a, 0)->command.lease, LEASE);
    assert_int_equal(still_last(a, 0)->command.keep, DAY + LEASE);
    assert_true(still_last(a, 0)->command.alive && still_last(a, 0)->command.fleeting);
    assert_false(still_last(a, 0)->notify);
    assert_int_equal(sent_record(0).state, DIBS__RUN_RUNNING);
    assert_true(o->version > version);
    assert_int_equal(atomic_load(&o->deadline), sent + LEASE - MARGIN);
    assert_int_equal(o->renew.due.key, sent + (LEASE - MARGIN) / 3);
    assert_int_equal(o->end.due.key, sent + LEASE - MARGIN);
    assert_int_equal(a->stats.renewals, 1);
    assert_false(o->busy);
    still_serve_until(a, still_now() + 10 * LEASE);
    assert_true(dibs_once_held(o));
    dibs_once_free(o);
}

/* Without an answer it is repeated after a twelfth of the lease; or a second, where that is longer, or 10 ms. */
static void a_renewal_without_an_answer_is_repeated(void **state)
{
    static const int64_t leases[] = {6000, 60000, 60}, pauses[] = {500, 1000, 10};

    (void)state;
    for (int i = 0; i < 3; i++) {
        dibs_once *o = ours(&(dibs_once_options){.lease_ms = leases[i]});
        int64_t due = o->renew.due.key, deadline = atomic_load(&o->deadline);
        a->stats.renewal_failures = 0;
        still_twist(a, (twist){.stopped = true, .status = DIBS_UNAVAILABLE});
        still_pass(due - still_now());
        assert_true(still_serve(a));
        assert_int_equal(o->renew.due.key, due + STILL_ANSWER + pauses[i] * DIBS__MS);
        assert_int_equal(a->stats.renewal_failures, 1);
        assert_int_equal(a->stats.renewals, 0);
        assert_true(o->silent);
        assert_non_null(strstr(line, "renewing the run of 'k' failed"));
        assert_int_equal(atomic_load(&o->deadline), deadline);
        still_serve_until(a, o->renew.due.key);
        assert_false(o->silent);
        assert_true(atomic_load(&o->deadline) > deadline);
        a->stats.renewals = 0;
        assert_status(dibs_once_undo(o, NULL), DIBS_OK);
        dibs_once_free(o);
    }
}

/* How a run is lost, and what is said of it. */
static void take_it(void)
{
    dibs__run_record r = theirs(DIBS__RUN_RUNNING);

    store(KEY, &r);
}

static void garble_it(void)
{
    static const dibs__run_record none;
    char cell[DIBS__CELL_KEY_SIZE], stamp[DIBS__STAMP_SIZE];
    dibs__cell_command c = {
        .op = DIBS__CELL_SWAP, .version = DIBS__CELL_ANY, .data = "?", .size = 1, .stamp = stamp};
    dibs__cell_reply reply;

    (void)none;
    dibs__key(DIBS__KEY_ONCE, "", KEY, cell);
    dibs__stamp(b, stamp);
    assert_status(dibs__cell_do(b, cell, &c, false, DIBS__NEVER, &reply, NULL, NULL), DIBS_OK);
    free(reply.data);
}

static int losses;

static void on_lost(void *data, dibs_once *o)
{
    assert_ptr_equal(data, &losses);
    assert_false(dibs_once_held(o));
    assert_int_equal(dibs_once_remaining_ms(o), 0);
    assert_null(dibs_once_step_data(o, "s", NULL)); /* calls of the library are allowed */
    losses++;
}

static void a_loss_is_told_once(void **state)
{
    const struct {
        twist renewal;
        bool always;
        void (*deed)(void);
        const char *says;
        bool at_the_deadline;
    } rows[] = {
        {{0}, false, take_it, "another has taken it over, or its record is gone", false},
        {{0}, false, finish_it, "another has taken it over, or its record is gone", false},
        {{0}, false, delete_it, "another has taken it over, or its record is gone", false},
        {{0}, false, garble_it, "another has taken it over, or its record is gone", false},
        {{.stopped = true, .status = DIBS_UNAVAILABLE},
         true,
         NULL,
         "the engine did not answer until its lease was over",
         true},
        {{.takes = LEASE}, false, NULL, "the renewal came too late", false},
    };

    (void)state;
    for (size_t i = 0; i < 2 * COUNT(rows); i++) {
        bool by_callback = i % 2;
        dibs_once_options o = brief;
        dibs_once *once;
        dibs_outcome out;
        int64_t deadline;
        losses = 0;
        o.data = &losses;
        o.on_lost = by_callback ? on_lost : NULL;
        o.on_crash = DIBS_CRASH_RERUN;
        store(KEY, NULL);
        once = ours(&o);
        deadline = atomic_load(&once->deadline);
        if (rows[i / 2].deed)
            rows[i / 2].deed();
        still_twist(a, rows[i / 2].always ? for_ever(rows[i / 2].renewal) : rows[i / 2].renewal);
        assert_false(dibs_take(a, &out));
        still_serve_until(a, deadline - 1);
        assert_int_equal(once->phase == DIBS__ONCE_LOST, !rows[i / 2].at_the_deadline);
        still_serve_until(a, deadline);
        assert_int_equal(once->phase, DIBS__ONCE_LOST);
        assert_non_null(strstr(line, rows[i / 2].says));
        assert_non_null(strstr(line, "lost the run of 'k'"));
        assert_int_equal(losses, by_callback);
        assert_int_equal(dibs_take(a, &out), !by_callback);
        if (!by_callback) {
            assert_int_equal(out.op, DIBS_OP_LOST);
            assert_ptr_equal(out.once, once);
            assert_ptr_equal(out.user, &losses);
            assert_status(out.err.status, DIBS_LOST);
            assert_string_equal(out.err.message, "'k': the run was lost");
            assert_false(dibs_take(a, &out));
        }
        assert_int_equal(once->refs, 1);
        assert_false(dibs_once_held(once));
        assert_int_equal(still_next(a), DIBS__NEVER);
        still_heal(a);
        dibs_once_free(once);
    }
}

/* Nobody was told that it is his: nobody is told that it is lost. */
static void what_was_not_delivered_is_not_told_to_be_lost(void **state)
{
    dibs_once *o = ours(&brief);

    (void)state;
    o->delivered = false;
    still_pass(LEASE);
    while (still_serve(a))
        continue;
    assert_int_equal(o->phase, DIBS__ONCE_LOST);
    assert_int_equal(o->refs, 1);
    assert_false(dibs_take(a, &(dibs_outcome){0}));
    dibs_once_free(o);
}

/* The answer to a renewal comes at the last moment, and at the deadline. */
static void an_answer_at_the_deadline_is_too_late(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        dibs_once *o = ours(&brief);
        int64_t due = o->renew.due.key, deadline = atomic_load(&o->deadline);
        still_pass(due - still_now());
        still_twist(a, (twist){.takes = deadline - due - STILL_ANSWER - !late});
        assert_true(still_serve(a));
        assert_int_equal(still_last(a, 0)->until, due + a->request_span);
        assert_int_equal(o->phase, late ? DIBS__ONCE_LOST : DIBS__ONCE_OURS);
        dibs_once_free(o);
        store(KEY, NULL);
    }
}

static void a_lease_that_nobody_renewed_has_expired(void **state)
{
    dibs_once *o = ours(&brief);

    (void)state;
    still_pass(LEASE);
    assert_true(still_serve(a));
    assert_non_null(strstr(line, "its lease expired"));
    assert_int_equal(o->phase, DIBS__ONCE_LOST);
    dibs_once_free(o);
    assert_false(dibs_take(a, &(dibs_outcome){0})); /* it is not told of what is freed */
}

/* While the user's command is on its way, the renewal waits. */
static bool served_meanwhile;

static void serve_meanwhile(void)
{
    still_pass(a->onces->renew.due.key - still_now());
    served_meanwhile = still_serve(a);
    assert_int_equal(a->onces->renew.due.key, still_now() + 20 * DIBS__MS);
}

static void a_renewal_waits_for_the_users_command(void **state)
{
    dibs_once *o = ours(&brief);
    int count = still_count(a);

    (void)state;
    served_meanwhile = false;
    still_twist(a, (twist){.before = serve_meanwhile});
    assert_status(dibs_once_step(o, "s", NULL, 0, NULL), DIBS_OK);
    assert_true(served_meanwhile);
    assert_int_equal(still_count(a), count + 1);
    dibs_once_free(o);
}

/* The other way round: who ends a run waits for its renewal, and shares the time of one request with it; but gets enough
 * for a command. */
static int64_t renewal_takes;

static void the_renewal_is_answered(void)
{
    still_pass(renewal_takes);
    pthread_mutex_lock(&a->mutex);
    dibs__run_idle(a->onces);
    pthread_mutex_unlock(&a->mutex);
}

static void be_renewed(dibs_once *o)
{
    pthread_mutex_lock(&a->mutex);
    dibs__run_busy(o);
    pthread_mutex_unlock(&a->mutex);
    still_meanwhile(the_renewal_is_answered);
}

static void the_users_command_waits_for_a_renewal(void **state)
{
    static const int64_t spans[] = {0, 1000, 4800, 4801, 4990, 6000},
                         left[] = {5000, 4000, 200, 200, 200, 200};

    (void)state;
    for (size_t i = 0; i < COUNT(spans); i++) {
        dibs_once *o = ours(&brief);
        int refs = o->refs;
        renewal_takes = spans[i] * DIBS__MS;
        be_renewed(o);
        assert_status(dibs_once_step(o, "s", NULL, 0, NULL), DIBS_OK);
        assert_int_equal(still_last(a, 0)->until - still_last(a, 0)->at, left[i] * DIBS__MS);
        assert_int_equal(o->refs, refs);
        dibs_once_free(o);
        store(KEY, NULL);
    }
}

static void who_lets_go_waits_for_a_renewal(void **state)
{
    dibs_once *o = ours(&brief);
    size_t tasks = a->keeper_tasks - 1;

    (void)state;
    renewal_takes = DIBS__MS;
    assert_status(dibs_once_finish(o, NULL, 0, 0, NULL), DIBS_OK);
    be_renewed(o);
    dibs_once_free(o);
    expect_nothing_left(tasks);
}

/* The answer to the renewal comes when the user has ended the run. */
static dibs_once *the_run;

static void end_it(void)
{
    pthread_mutex_lock(&a->mutex);
    dibs__run_retire(the_run, DIBS__ONCE_OVER);
    pthread_mutex_unlock(&a->mutex);
}

static void a_renewal_of_what_is_over_changes_nothing(void **state)
{
    dibs_once *o = the_run = ours(&brief);

    (void)state;
    still_twist(a, (twist){.then = end_it});
    still_pass(o->renew.due.key - still_now());
    assert_true(still_serve(a));
    assert_int_equal(o->phase, DIBS__ONCE_OVER);
    assert_int_equal(still_next(a), DIBS__NEVER);
    assert_int_equal(a->stats.renewals, 0);
    dibs_once_free(o);
}

/* ---- Ends ------------------------------------------------------------------------------------ */

typedef enum deed { FINISH, FAIL, UNDO, ABANDON, STEP, RENEW } deed;

static dibs_status act(deed what, dibs_once *o)
{
    memset(&err, 0, sizeof err);
    switch (what) {
    case FINISH:
        return dibs_once_finish(o, "r\0s", 3, 7, &err);
    case FAIL:
        return dibs_once_fail(o, "no", 2, -7, &err);
    case UNDO:
        return dibs_once_undo(o, &err);
    case ABANDON:
        return dibs_once_abandon(o, &err);
    case STEP:
        return dibs_once_step(o, "s", "2", 1, &err);
    case RENEW:
        still_pass(o->renew.due.key - still_now());
        assert_true(still_serve(a));
        return o->phase == DIBS__ONCE_OURS ? DIBS_OK : DIBS_LOST;
    }
    return DIBS_INVALID;
}

static void an_end_is_one_command(void **state)
{
    static const struct {
        deed what;
        dibs__run_state state;
        const char *result;
        size_t size;
        int code;
        int64_t keep;
        int steps;
    } rows[] = {
        {FINISH, DIBS__RUN_DONE, "r\0s", 3, 7, DAY, 0},
        {FAIL, DIBS__RUN_FAILED, "no", 2, -7, DAY, 0},
        {UNDO, DIBS__RUN_FREE, NULL, 0, 0, DAY, 0},
        {ABANDON, DIBS__RUN_ABANDONED, NULL, 0, 0, DAY, 1},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        dibs_once *o = ours(&brief);
        int n = 0, count;
        uint64_t version;
        dibs__run_record r;
        const still_sent *s;
        int64_t sent;
        assert_status(dibs_once_step(o, "s", "1", 1, NULL), DIBS_OK);
        version = o->version;
        count = still_count(a);
        sent = still_now();
        assert_status(act(rows[i].what, o), DIBS_OK);
        assert_int_equal(still_count(a), count + 1);
        s = still_last(a, 0);
        assert_int_equal(s->command.version, version);
        assert_int_equal(s->command.keep, rows[i].keep);
        assert_int_equal(s->command.lease, 0);
        assert_true(s->notify && !s->command.alive && !s->command.fleeting);
        assert_int_equal(s->until, sent + a->request_span);
        r = stored(KEY);
        assert_int_equal(r.state, rows[i].state);
        assert_int_equal(r.code, rows[i].code);
        assert_int_equal(r.has_result, rows[i].result != NULL);
        assert_int_equal(r.result_size, rows[i].size);
        if (rows[i].result)
            assert_memory_equal(r.result, rows[i].result, rows[i].size);
        for (const dibs__step *step = r.steps; step; step = step->next)
            n++;
        assert_int_equal(n, rows[i].steps);
        dibs__steps_free(r.steps);
        assert_false(dibs_once_held(o));
        assert_int_equal(o->phase, DIBS__ONCE_OVER);
        assert_int_equal(still_next(a), DIBS__NEVER);
        for (int what = FINISH; what <= STEP; what++) {
            assert_status(act((deed)what, o), DIBS_INVALID);
            assert_non_null(strstr(err.message, "ended already"));
        }
        assert_status(dibs_once_wait(o, 0, &err), DIBS_INVALID);
        assert_int_equal(still_count(a), count + 1);
        dibs_once_free(o);
        assert_int_equal(still_count(a), count + 1);
        store(KEY, NULL);
    }
}

static void a_result_may_be_nothing_or_empty(void **state)
{
    static const char *const results[] = {NULL, "", "x"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        dibs_once *o = ours(&brief);
        size_t size = 99;
        assert_status(dibs_once_finish(o, NULL, 1, 0, &err), DIBS_INVALID);
        assert_status(dibs_once_finish(o, results[i], i == 2, 0, &err), DIBS_OK);
        dibs_once_free(o);
        assert_status(begin(&brief, &o), DIBS_ALREADY);
        assert_int_equal(dibs_once_result(o, &size) != NULL, i > 0);
        assert_int_equal(size, i == 2);
        dibs_once_free(o);
        store(KEY, NULL);
    }
}

/* What our command finds instead of what it named, when that is of our own doing: the answers of earlier commands were
 * lost. And when it is not. */
static void what_is_found_there_decides(void **state)
{
    static const struct {
        deed what;
        dibs__run_state there;
        dibs_status status;
        dibs__run_state after;
        dibs__once_phase phase;
        int commands;
    } rows[] = {
        {FINISH, R, DIBS_OK, D, DIBS__ONCE_OVER, 2},
        {FINISH, D, DIBS_OK, D, DIBS__ONCE_OVER, 1},
        {FINISH, F, DIBS_OK, D, DIBS__ONCE_OVER, 2},
        {FINISH, A, DIBS_OK, D, DIBS__ONCE_OVER, 2},
        {FINISH, N, DIBS_LOST, N, DIBS__ONCE_LOST, 1},
        {FAIL, R, DIBS_OK, F, DIBS__ONCE_OVER, 2},
        {FAIL, F, DIBS_OK, F, DIBS__ONCE_OVER, 1},
        {FAIL, D, DIBS_OK, F, DIBS__ONCE_OVER, 2},
        {FAIL, N, DIBS_LOST, N, DIBS__ONCE_LOST, 1},
        {UNDO, R, DIBS_OK, N, DIBS__ONCE_OVER, 2},
        {UNDO, N, DIBS_OK, N, DIBS__ONCE_OVER, 1},
        {UNDO, D, DIBS_OK, N, DIBS__ONCE_OVER, 2},
        {ABANDON, R, DIBS_OK, A, DIBS__ONCE_OVER, 2},
        {ABANDON, D, DIBS_OK, D, DIBS__ONCE_OVER, 1},
        {ABANDON, F, DIBS_OK, F, DIBS__ONCE_OVER, 1},
        {ABANDON, A, DIBS_OK, A, DIBS__ONCE_OVER, 1},
        {ABANDON, N, DIBS_OK, N, DIBS__ONCE_OVER, 1},
        {STEP, R, DIBS_OK, R, DIBS__ONCE_OURS, 2},
        {STEP, D, DIBS_LOST, D, DIBS__ONCE_LOST, 1},
        {STEP, N, DIBS_LOST, N, DIBS__ONCE_LOST, 1},
        {RENEW, R, DIBS_OK, R, DIBS__ONCE_OURS, 2},
        {RENEW, D, DIBS_LOST, D, DIBS__ONCE_ENDED, 1},
        {RENEW, A, DIBS_LOST, A, DIBS__ONCE_ENDED, 1},
        {RENEW, N, DIBS_LOST, N, DIBS__ONCE_ENDED, 1},
    };

    (void)state;
    for (size_t i = 0; i < 2 * COUNT(rows); i++) {
        bool taken = i % 2; /* the same of another's making */
        dibs__run_record r = theirs(rows[i / 2].there);
        dibs_once *o = ours(&brief);
        dibs__once_phase lost_phase = DIBS__ONCE_LOST;
        dibs_outcome out;
        int count;
        snprintf(r.attempt, sizeof r.attempt, "%s", taken ? "theirs-1" : o->mine.attempt);
        snprintf(r.crashed, sizeof r.crashed, "%s",
                 o->mine.attempt); /* only while it is withdrawn that counts */
        store(KEY, &r);
        count = still_count(a);
        print_message("# row %zu%s\n", i / 2, taken ? ", of another" : "");
        assert_status(act(rows[i / 2].what, o), taken ? DIBS_LOST : rows[i / 2].status);
        assert_int_equal(still_count(a), count + (taken ? 1 : rows[i / 2].commands));
        assert_int_equal(o->phase, taken ? lost_phase : rows[i / 2].phase);
        assert_int_equal(stored_state(KEY), taken ? rows[i / 2].there : rows[i / 2].after);
        if (rows[i / 2].what < RENEW && (taken || rows[i / 2].status == DIBS_LOST))
            assert_non_null(strstr(err.message, "another run has taken over"));
        assert_int_equal(o->unsettled, taken && (rows[i / 2].there == R || rows[i / 2].there == A));
        while (dibs_take(a, &out))
            continue;
        dibs_once_free(o);
        store(KEY, NULL);
    }
}

static void what_is_gone_is_lost(void **state)
{
    (void)state;
    for (int what = FINISH; what <= STEP; what++) {
        dibs_once *o = ours(&brief);
        delete_it();
        assert_status(act((deed)what, o), DIBS_LOST);
        assert_int_equal(o->phase, DIBS__ONCE_LOST);
        dibs_once_free(o);
        assert_int_equal(stored_state(KEY), 0);
    }
}

/* It is stale again and again, until the time is over. */
static void touch_it(void)
{
    dibs__run_record r = stored(KEY);

    store(KEY, &r);
    dibs__steps_free(r.steps);
}

static void what_is_always_stale_is_unavailable(void **state)
{
    (void)state;
    for (int what = FINISH; what <= STEP; what++) {
        dibs_once *o = ours(&brief);
        int64_t sent = still_now();
        int count = still_count(a);
        /* a second for each, with what touches it */
        still_twist(
            a,
            (twist){.before = touch_it, .takes = DIBS__SECOND - 4 * STILL_ANSWER, .always = true});
        assert_status(act((deed)what, o), DIBS_UNAVAILABLE);
        assert_non_null(strstr(err.message, "no answer in time"));
        assert_int_equal(still_now(), sent + a->request_span);
        assert_int_equal(still_count(a), count + 5);
        assert_int_equal(o->phase, DIBS__ONCE_OURS);
        assert_false(o->busy);
        still_heal(a);
        assert_status(act((deed)what, o), DIBS_OK);
        dibs_once_free(o);
        store(KEY, NULL);
    }
}

/* An end whose answer is lost is asked for again by its caller; nothing else ends it in between. */
static void an_end_without_an_answer_can_be_repeated(void **state)
{
    static const dibs__run_state after[] = {DIBS__RUN_DONE, DIBS__RUN_FAILED, DIBS__RUN_FREE,
                                            DIBS__RUN_ABANDONED};
    const twist ways[] = {untold, lost};

    (void)state;
    for (int what = FINISH; what <= ABANDON; what++)
        for (int way = 0; way < 2; way++) {
            dibs_once *o = ours(&brief);
            still_twist(a, for_ever(ways[way]));
            assert_status(act((deed)what, o), DIBS_UNKNOWN);
            assert_int_equal(o->phase, DIBS__ONCE_OURS);
            still_heal(a);
            assert_int_equal(stored_state(KEY), way ? DIBS__RUN_RUNNING : after[what]);
            assert_status(act((deed)what, o), DIBS_OK);
            assert_int_equal(stored_state(KEY), after[what]);
            dibs_once_free(o);
            store(KEY, NULL);
        }
}

/* By our clock it is lost; the engine says that nobody has taken over. */
static void a_late_end_counts_and_a_late_step_does_not(void **state)
{
    (void)state;
    for (int what = FINISH; what <= STEP; what++)
        for (int told = 0; told < 2; told++) {
            dibs_once *o = ours(&brief);
            int count = still_count(a);
            still_pass(LEASE);
            while (told && still_serve(a))
                continue;
            assert_int_equal(o->phase, told ? DIBS__ONCE_LOST : DIBS__ONCE_OURS);
            assert_status(act((deed)what, o), what == STEP ? DIBS_LOST : DIBS_OK);
            assert_int_equal(still_count(a), count + (what == STEP ? 0 : 1));
            if (what == STEP)
                assert_string_equal(err.message, "'k': the run was lost");
            dibs_once_free(o);
            store(KEY, NULL);
        }
}

static void a_closed_handle_ends_nothing(void **state)
{
    dibs_once *o = ours(&brief);

    (void)state;
    a->closing = true;
    for (int what = FINISH; what <= STEP; what++)
        assert_status(act((deed)what, o), DIBS_CANCELLED);
    assert_status(dibs_once_begin(a, "new", NULL, &(dibs_once *){NULL}, &err), DIBS_CANCELLED);
    a->closing = false;
    assert_int_equal(a->users, 0);
    assert_status(act(FINISH, o), DIBS_OK);
    dibs_once_free(o);
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static void a_step_is_kept_and_is_a_sign_of_life(void **state)
{
    dibs_once *o = ours(&brief);
    size_t size = 99;
    int64_t sent;

    (void)state;
    assert_null(dibs_once_step_data(o, "s", &size));
    assert_int_equal(size, 0);
    assert_null(dibs_once_step_data(o, NULL, NULL));
    still_pass(DIBS__SECOND);
    sent = still_now();
    assert_status(dibs_once_step(o, "s", "12", 2, NULL), DIBS_OK);
    assert_false(still_last(a, 0)->notify || still_last(a, 0)->command.fleeting);
    assert_true(still_last(a, 0)->command.alive);
    assert_int_equal(atomic_load(&o->deadline), sent + LEASE - MARGIN);
    assert_int_equal(o->renew.due.key, sent + (LEASE - MARGIN) / 3);
    assert_string_equal(dibs_once_step_data(o, "s", &size), "12");
    assert_int_equal(size, 2);
    assert_null(dibs_once_step_data(o, NULL, &size));
    assert_status(dibs_once_step(o, "t", "", 0, NULL), DIBS_OK);
    assert_status(dibs_once_step(o, "s", "345", 3, NULL), DIBS_OK);
    assert_string_equal(dibs_once_step_data(o, "s", NULL), "345");
    assert_string_equal(dibs_once_step_data(o, "t", &size), "");
    assert_int_equal(size, 0);
    assert_null(o->mine.steps->next->next);
    assert_status(dibs_once_step(o, "", NULL, 0, NULL), DIBS_INVALID);
    assert_status(dibs_once_step(o, "s", NULL, 1, NULL), DIBS_INVALID);
    dibs_once_free(o);
}

/* The answer comes when the lease is over by our clock: the step is there, and the run is not ours again. */
static void a_late_answer_to_a_step_is_no_lease(void **state)
{
    dibs_once *o = ours(&brief);
    int64_t deadline = atomic_load(&o->deadline);

    (void)state;
    still_pass(deadline - still_now() - DIBS__SECOND);
    still_twist(a, (twist){.takes = DIBS__SECOND});
    assert_status(dibs_once_step(o, "s", "1", 1, NULL), DIBS_OK);
    assert_string_equal(dibs_once_step_data(o, "s", NULL), "1");
    assert_int_equal(atomic_load(&o->deadline), deadline);
    assert_false(dibs_once_held(o));
    dibs_once_free(o);
}

static void a_step_without_an_answer_is_not_kept(void **state)
{
    dibs_once *o = ours(&brief);

    (void)state;
    still_twist(a, for_ever(untold));
    assert_status(dibs_once_step(o, "s", "1", 1, NULL), DIBS_UNKNOWN);
    still_heal(a);
    assert_null(dibs_once_step_data(o, "s", NULL));
    assert_int_equal(o->phase, DIBS__ONCE_OURS);
    assert_true(dibs_once_held(o));
    dibs_once_free(o);
}

/* A step that finds another's run has the loss told, once. */
static void a_step_can_find_that_the_run_is_lost(void **state)
{
    dibs_once *o = ours(&brief);
    dibs_outcome out;

    (void)state;
    take_it();
    assert_status(dibs_once_step(o, "s", "1", 1, NULL), DIBS_LOST);
    assert_non_null(strstr(line, "another has taken it over, or its record is gone"));
    assert_true(dibs_take(a, &out));
    assert_status(dibs_once_step(o, "s", "1", 1, NULL), DIBS_LOST);
    assert_false(dibs_take(a, &out));
    assert_null(dibs_once_step_data(o, "s", NULL));
    dibs_once_free(o);
}

/* Steps and results share the room, to the byte. */
static void what_does_not_fit_is_refused(void **state)
{
    dibs__engine_class *class = (dibs__engine_class *)(uintptr_t)a->class;
    char data[64] = {0};
    dibs_once *o = ours(&brief);
    int count = still_count(a);

    (void)state;
    class->can.value_max = 40;
    assert_status(dibs_once_step(o, "s", data, 41, &err), DIBS_INVALID);
    assert_status(dibs_once_step(o, "s", data, 32, &err), DIBS_INVALID); /* its name and 8 more */
    assert_non_null(strstr(err.message, "at most 40"));
    assert_int_equal(still_count(a), count);
    assert_status(dibs_once_step(o, "s", data, 31, &err), DIBS_OK);
    assert_status(dibs_once_step(o, "t", data, 0, &err), DIBS_INVALID);
    assert_status(dibs_once_finish(o, data, 41, 0, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "'k': steps or result have 41 bytes"));
    assert_false(o->busy);
    assert_int_equal(a->users, 0);
    assert_status(dibs_once_finish(o, data, 40, 0, &err), DIBS_OK);
    dibs_once_free(o);
}

/* ---- Letting go ------------------------------------------------------------------------------ */

/* Any of them is freed, in any order: the others stay in the list, and the handle ends them. */
static void runs_are_freed_in_any_order(void **state)
{
    static const char *const keys[] = {"0", "1", "2"};
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                    {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

    (void)state;
    for (size_t i = 0; i < COUNT(orders); i++)
        for (int freed = 0; freed <= 3; freed++) {
            dibs *d = still_open(NULL);
            dibs_once *o[3];
            for (int k = 0; k < 3; k++) {
                assert_status(dibs_once_begin(d, keys[k], NULL, &o[k], NULL), DIBS_OK);
                assert_ptr_equal(d->onces, o[k]);
            }
            for (int k = 0; k < freed; k++) {
                size_t left = 0;
                dibs_once_free(o[orders[i][k]]);
                for (dibs_once *p = d->onces; p; p = p->next) {
                    assert_ptr_equal(*p->at, p);
                    left++;
                }
                assert_int_equal(left, 2 - k);
                assert_int_equal(d->keeper_tasks, left);
                assert_int_equal(stored_state(keys[orders[i][k]]), DIBS__RUN_ABANDONED);
            }
            still_close(d);
            for (int k = 0; k < 3; k++) {
                assert_int_equal(stored_state(keys[k]), DIBS__RUN_ABANDONED);
                store(keys[k], NULL);
            }
        }
}

/* What is not ours costs no command. */
static void who_only_looked_writes_nothing(void **state)
{
    static const dibs__run_state states[] = {DIBS__RUN_RUNNING, DIBS__RUN_DONE,
                                             DIBS__RUN_ABANDONED};

    (void)state;
    dibs_once_free(NULL);
    for (int i = 0; i < 6; i++) {
        dibs__run_record r = theirs(states[i % 3]);
        dibs *d = i < 3 ? a : still_open(NULL);
        dibs_once *o;
        int count;
        store(KEY, &r);
        dibs_once_begin(d, KEY, &brief, &o, NULL);
        count = still_count(d);
        if (i < 3)
            dibs_once_free(o);
        if (i >= 3) {
            d->keeper_runs = false;
            dibs__drain(d);
        }
        assert_int_equal(still_count(d), count);
        if (i >= 3)
            still_close(d);
        assert_int_equal(stored_state(KEY), states[i % 3]);
    }
}

/* The handle is closed: runs are abandoned, what nobody was told of is withdrawn; within the time that is left. */
static void a_closing_handle_ends_what_is_left(void **state)
{
    static const struct {
        bool unheard, late;
        int64_t takes;
        dibs__run_state after;
    } rows[] = {
        {false, false, 0, DIBS__RUN_ABANDONED},
        {true, false, 0, DIBS__RUN_FREE},
        {false, true, 0, DIBS__RUN_RUNNING}, /* there is no time left */
        {true, true, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        dibs *d = still_open(&(dibs_options){.request_ms = 1000});
        dibs_once *o = NULL;
        if (rows[i].unheard) {
            twist t = for_ever(rows[i].late ? lost : untold);
            still_twist(d, t);
            assert_status(dibs_once_begin(d, KEY, &brief, &o, NULL), DIBS_UNKNOWN);
            still_heal(d);
        } else {
            assert_status(dibs_once_begin(d, KEY, &brief, &o, NULL), DIBS_OK);
        }
        if (rows[i].late) {
            dibs_once *first;
            assert_status(dibs_once_begin(d, "slow", &brief, &first, NULL), DIBS_OK);
            /* the last one begun is ended first, and takes all of the time */
            still_twist(d, (twist){.takes = DIBS__SECOND - STILL_ANSWER});
        }
        still_close(d);
        assert_int_equal(stored_state(KEY), rows[i].after);
        store(KEY, NULL);
        if (rows[i].late)
            store("slow", NULL);
    }
}

/* Nobody answers: it is not renewed any more, and whoever closes the handle tries once more. */
static void a_run_is_let_go_without_an_answer(void **state)
{
    (void)state;
    for (int silent = 0; silent < 2; silent++) {
        dibs *d = still_open(&(dibs_options){.request_ms = 1000});
        dibs_once *o;
        assert_status(dibs_once_begin(d, KEY, &brief, &o, NULL), DIBS_OK);
        still_twist(d, for_ever(lost));
        dibs_once_free(o);
        assert_int_equal(still_next(d), DIBS__NEVER);
        assert_int_equal(stored_state(KEY), DIBS__RUN_RUNNING);
        if (!silent)
            still_heal(d);
        still_close(d);
        assert_int_equal(stored_state(KEY), silent ? DIBS__RUN_RUNNING : DIBS__RUN_ABANDONED);
        store(KEY, NULL);
    }
}

/* A handle is drained before it is closed: its runs are over, and say so. */
static void a_drained_handle_has_no_runs(void **state)
{
    dibs *d = still_open(NULL);
    dibs_once *o;

    (void)state;
    assert_status(dibs_once_begin(d, KEY, &brief, &o, NULL), DIBS_OK);
    d->keeper_runs = false;
    dibs__drain(d);
    assert_int_equal(stored_state(KEY), DIBS__RUN_ABANDONED);
    assert_true(still_last(d, 0)->notify);
    assert_false(dibs_once_held(o));
    assert_int_equal(o->phase, DIBS__ONCE_OVER);
    assert_int_equal(still_next(d), DIBS__NEVER);
    dibs_once_free(o);
    assert_null(d->onces);
    still_close(d);
}

static void put_it_there(void)
{
    dibs__run_record r = theirs(DIBS__RUN_RUNNING);

    store(KEY, &r);
}

/* A begin was not answered at first, and another's run is told of: there may be something to withdraw. Who frees it while
 * the handle is closed leaves it to whoever closes; afterwards it is gone at once. */
static void what_may_be_there_is_left_to_who_closes(void **state)
{
    (void)state;
    for (int drained = 0; drained < 2; drained++) {
        dibs *d = still_open(NULL);
        dibs_once *o;
        store(KEY, NULL);
        still_twist(d, lost);
        still_twist(d, (twist){.before = put_it_there});
        assert_status(dibs_once_begin(d, KEY, &brief, &o, NULL), DIBS_RUNNING);
        assert_true(o->maybe_there);
        if (drained) {
            d->keeper_runs = false;
            dibs__drain(d);
            dibs_once_free(o);
            assert_null(d->onces);
        } else {
            d->closing = true;
            dibs_once_free(o);
            assert_ptr_equal(d->onces, o);
            assert_int_equal(still_next(d), DIBS__NEVER);
        }
        still_close(d);
        assert_int_equal(stored_state(KEY), DIBS__RUN_RUNNING);
    }
}

/* A runner that lost it to nobody lets go: its crash is not told before its lease. */
static void a_lost_run_is_let_go_without_a_word(void **state)
{
    dibs_once *o = ours(&brief);
    int count;

    (void)state;
    still_pass(LEASE);
    while (still_serve(a))
        continue;
    count = still_count(a);
    dibs_once_free(o);
    assert_int_equal(still_count(a), count);
    assert_int_equal(stored_state(KEY), DIBS__RUN_RUNNING);
    expect_nothing_left(a->keeper_tasks);
}

/* ---- Another process ------------------------------------------------------------------------- */

static void a_forked_child_has_no_runs(void **state)
{
    dibs_once *o = ours(&brief);
    dibs_party who = {.pid = 9};
    pid_t child;
    int status;

    (void)state;
    assert_status(dibs_once_step(o, "s", "1", 1, NULL), DIBS_OK);
    child = fork();
    if (child == 0) {
        bool good = dibs_once_finish(o, NULL, 0, 0, NULL) == DIBS_FORKED &&
                    dibs_once_step(o, "s", NULL, 0, NULL) == DIBS_FORKED &&
                    dibs_once_wait(o, 0, NULL) == DIBS_FORKED &&
                    dibs_once_rerun(o, NULL) == DIBS_FORKED &&
                    dibs_once_begin(a, KEY, NULL, &(dibs_once *){NULL}, NULL) == DIBS_FORKED &&
                    !dibs_once_held(o) && dibs_once_remaining_ms(o) == 0 &&
                    !dibs_once_step_data(o, "s", NULL);
        dibs_once_runner(o, &who, sizeof who);
        dibs_once_free(o);
        good = good && o->phase == DIBS__ONCE_OURS; /* it is the parent's */
        _exit(good && who.pid == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(dibs_once_held(o));
    dibs_once_free(o);
}

/* ---- No memory ------------------------------------------------------------------------------- */

/* The n-th allocation of a whole life fails. A call says so, or does without; the next one works, and nothing stays. */
static bool live_without_memory(long n)
{
    dibs_once *o = NULL;
    dibs_status status;
    bool failed;

    leave_a_crash("f", 0);
    alloc_fail(n, false);
    status = dibs_once_begin(a, KEY,
                             &(dibs_once_options){.on_crash = DIBS_CRASH_RERUN,
                                                  .wait_ms = DIBS_NO_WAIT,
                                                  .lease_ms = LEASE / DIBS__MS,
                                                  .fingerprint = "f",
                                                  .fingerprint_size = 1},
                             &o, &err);
    if (status == DIBS_OK) {
        status = dibs_once_step(o, "s", "1", 1, &err);
        if (status == DIBS_OK) {
            still_pass(o->renew.due.key - still_now());
            still_serve(a);
            assert_true(dibs_once_held(o));
            status = dibs_once_finish(o, "r", 1, 0, &err);
        }
    }
    failed = alloc_heal();
    if (status != DIBS_OK) {
        assert_true(failed);
        assert_status(status, DIBS_NO_MEMORY);
        assert_non_null(strstr(err.message, "out of memory"));
    }
    if (o && status != DIBS_OK)
        assert_status(dibs_once_finish(o, "r", 1, 0, &err), DIBS_OK);
    dibs_once_free(o);
    assert_null(a->onces);
    assert_int_equal(a->users, 0);
    return failed;
}

/* The same for a command that finds a record of our own, and has to read it. */
static bool end_without_memory(long n)
{
    dibs_once *o = ours(&brief);
    dibs_status status;
    bool failed;

    assert_status(dibs_once_step(o, "s", "1", 1, &err), DIBS_OK);
    touch_it();
    alloc_fail(n, false);
    status = dibs_once_finish(o, "r", 1, 0, &err);
    failed = alloc_heal();
    assert_status(status, failed ? DIBS_NO_MEMORY : DIBS_OK);
    if (failed)
        assert_status(dibs_once_finish(o, "r", 1, 0, &err), DIBS_OK);
    dibs_once_free(o);
    store(KEY, NULL);
    return failed;
}

static void a_failed_allocation_is_a_status(void **state)
{
    long n = 1;

    (void)state;
    while (live_without_memory(n))
        n++;
    assert_true(n > 8);
    store(KEY, NULL);
    for (n = 1; end_without_memory(n); n++)
        continue;
    assert_true(n > 4);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, runs_begin, runs_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_renewal_is_a_new_lease),
        CASE(a_renewal_without_an_answer_is_repeated),
        CASE(a_loss_is_told_once),
        CASE(what_was_not_delivered_is_not_told_to_be_lost),
        CASE(an_answer_at_the_deadline_is_too_late),
        CASE(a_lease_that_nobody_renewed_has_expired),
        CASE(a_renewal_waits_for_the_users_command),
        CASE(the_users_command_waits_for_a_renewal),
        CASE(who_lets_go_waits_for_a_renewal),
        CASE(a_renewal_of_what_is_over_changes_nothing),
        CASE(an_end_is_one_command),
        CASE(a_result_may_be_nothing_or_empty),
        CASE(what_is_found_there_decides),
        CASE(what_is_gone_is_lost),
        CASE(what_is_always_stale_is_unavailable),
        CASE(an_end_without_an_answer_can_be_repeated),
        CASE(a_late_end_counts_and_a_late_step_does_not),
        CASE(a_closed_handle_ends_nothing),
        CASE(a_step_is_kept_and_is_a_sign_of_life),
        CASE(a_late_answer_to_a_step_is_no_lease),
        CASE(a_step_without_an_answer_is_not_kept),
        CASE(a_step_can_find_that_the_run_is_lost),
        CASE(what_does_not_fit_is_refused),
        CASE(runs_are_freed_in_any_order),
        CASE(who_only_looked_writes_nothing),
        CASE(a_closing_handle_ends_what_is_left),
        CASE(a_run_is_let_go_without_an_answer),
        CASE(a_drained_handle_has_no_runs),
        CASE(what_may_be_there_is_left_to_who_closes),
        CASE(a_lost_run_is_let_go_without_a_word),
        CASE(a_forked_child_has_no_runs),
        CASE(a_failed_allocation_is_a_status),
    };

    return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}
