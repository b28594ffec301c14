/* Once: what a key is begun with, what a duplicate is told, beginnings and take-overs that got no answer, and waits. Every
 * command, moment and status is compared with what the engine and the clock make of it. */
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

/* ---- Options --------------------------------------------------------------------------------- */

static void wrong_options_ask_nobody(void **state)
{
    static char longest[DIBS_NAME_MAX + 2];
    const struct {
        const char *key;
        dibs_once_options o;
        const char *says;
    } rows[] = {
        {"", {0}, "a key"},
        {"", {.scope = "s"}, "a key"},
        {longest, {0}, "a key"},
        {KEY, {.scope = longest}, "a scope"},
        {KEY, {.keep_ms = -2}, "keep_ms"},
        {KEY, {.keep_ms = DIBS__MAX_MS + 1}, "keep_ms"},
        {KEY, {.tombstone_ms = -2}, "tombstone_ms"},
        {KEY, {.tombstone_ms = DIBS__MAX_MS + 1}, "tombstone_ms"},
        {KEY, {.wait_ms = -7}, "wait"},
        {KEY, {.lease_ms = 9}, "lease"},
        {KEY, {.fingerprint = "x", .fingerprint_size = DIBS_FINGERPRINT_MAX + 1}, "fingerprint"},
        {KEY, {.fingerprint_size = 1}, "fingerprint"},
        {KEY, {.owner = ""}, "owner"},
        {KEY, {.owner = longest}, "owner"},
        {KEY, {.on_crash = (dibs_on_crash)2}, "on_crash"},
        {KEY, {.on_crash = (dibs_on_crash)-1}, "on_crash"},
        {KEY, {.reserved = {0, 0, 0, 1}}, ""},
    };

    (void)state;
    memset(longest, 'x', sizeof longest - 1);
    for (size_t i = 0; i < COUNT(rows); i++) {
        dibs_once *o = (dibs_once *)1;
        assert_status(dibs_once_begin(a, rows[i].key, &rows[i].o, &o, &err), DIBS_INVALID);
        assert_null(o);
        if (!strstr(err.message, rows[i].says))
            fail_msg("row %zu: %s", i, err.message);
    }
    assert_int_equal(still_count(a), 0);
}

static void what_is_just_allowed_is_taken(void **state)
{
    char owner[DIBS_OWNER_MAX + 1], print[DIBS_FINGERPRINT_MAX], key[DIBS_NAME_MAX + 1];
    dibs_once *longest;
    const dibs_once_options rows[] = {
        {.scope = ""},
        {.keep_ms = 1},
        {.keep_ms = DIBS__MAX_MS},
        {.keep_ms = DIBS_FOREVER},
        {.tombstone_ms = 1},
        {.tombstone_ms = DIBS__MAX_MS},
        {.tombstone_ms = DIBS_FOREVER},
        {.lease_ms = 10},
        {.lease_ms = 24 * 3600 * 1000},
        {.owner = owner},
        {.fingerprint = print, .fingerprint_size = sizeof print},
        {.on_crash = DIBS_CRASH_RERUN},
        {.wait_ms = DIBS_FOREVER},
    };

    (void)state;
    memset(owner, 'o', sizeof owner - 1);
    owner[sizeof owner - 1] = '\0';
    memset(print, 'p', sizeof print);
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = '\0';
    assert_status(dibs_once_begin(a, key, &(dibs_once_options){.scope = key}, &longest, NULL),
                  DIBS_OK);
    assert_string_equal(longest->key, key);
    dibs_once_free(longest);
    for (size_t i = 0; i < COUNT(rows); i++) {
        dibs_once *o = ours(&rows[i]);
        assert_status(dibs_once_undo(o, NULL), DIBS_OK);
        dibs_once_free(o);
    }
}

/* What a run is begun with, by default and by its options. */
static void the_record_has_what_the_options_say(void **state)
{
    const struct {
        dibs_once_options o;
        int64_t lease, keep, tombstone, life;
        const char *owner;
    } rows[] = {
        {{0}, 30 * DIBS__SECOND, DAY, 0, DAY + 30 * DIBS__SECOND, NULL},
        {{.lease_ms = 50, .keep_ms = 7, .tombstone_ms = 3, .owner = "me"},
         50 * DIBS__MS,
         7 * DIBS__MS,
         3 * DIBS__MS,
         60 * DIBS__MS,
         "me"},
        {{.keep_ms = DIBS_FOREVER}, 30 * DIBS__SECOND, INT64_MAX, 0, 0, NULL},
        {{.tombstone_ms = DIBS_FOREVER}, 30 * DIBS__SECOND, DAY, INT64_MAX, 0, NULL},
    };
    char thread[DIBS__OWNER_SIZE], attempts[8][DIBS__ATTEMPT_SIZE];

    (void)state;
    dibs__thread_owner(a, thread, sizeof thread);
    for (size_t i = 0; i < COUNT(rows); i++) {
        int64_t sent = still_now(), wall = still_wall();
        dibs_once *o = ours(&rows[i].o);
        const still_sent *s = still_last(a, 0);
        dibs__run_record r = sent_record(0);
        assert_string_equal(s->key, "o:0:k");
        assert_int_equal(s->command.op, DIBS__CELL_SWAP);
        assert_int_equal(s->command.version, i == 0 ? 0 : s->command.version);
        assert_int_equal(s->command.lease, rows[i].lease);
        assert_int_equal(s->command.keep, rows[i].life);
        assert_true(s->command.alive && !s->command.fleeting && !s->notify && s->stamp[0]);
        if (i == 0) {
            assert_int_equal(s->until, sent + a->request_span);
            assert_int_equal(r.since, wall);
        }
        assert_int_equal(r.state, DIBS__RUN_RUNNING);
        assert_int_equal(r.runs, 1);
        assert_int_equal(r.pid, getpid());
        assert_int_equal(r.lease, rows[i].lease);
        assert_int_equal(r.keep, rows[i].keep);
        assert_int_equal(r.tombstone, rows[i].tombstone);
        assert_int_equal(r.fence, 0);
        assert_string_equal(r.owner, rows[i].owner ? rows[i].owner : thread);
        assert_string_equal(r.host, a->host);
        assert_string_equal(r.attempt, o->mine.attempt);
        snprintf(attempts[i], sizeof attempts[i], "%s", r.attempt);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(attempts[i], attempts[k]);
        assert_status(dibs_once_undo(o, NULL), DIBS_OK);
        dibs_once_free(o);
    }
    dibs_once *o = NULL; /* the owner of the handle */
    assert_status(dibs_once_begin(b, "other", NULL, &o, NULL), DIBS_OK);
    assert_string_equal(o->mine.owner, "rival");
    dibs_once_free(o);
    assert_status(
        dibs_once_begin(still_open(&(dibs_options){.owner = "x"}), "third", NULL, &o, NULL),
        DIBS_OK);
    assert_string_equal(o->mine.owner, "x");
    dibs_once_free(o);
}

static void a_run_counts_from_before_its_command(void **state)
{
    int64_t sent = still_now();
    dibs_once *o = ours(&brief);
    dibs_party who;

    (void)state;
    a->base = 1000;
    assert_int_equal(atomic_load(&o->deadline), sent + LEASE - MARGIN);
    assert_int_equal(o->end.due.key, sent + LEASE - MARGIN);
    assert_int_equal(o->renew.due.key, sent + (LEASE - MARGIN) / 3);
    assert_int_equal(still_last(a, 0)->until, sent + a->request_span);
    assert_int_equal(a->brief, LEASE);
    assert_int_equal(a->brief_until, sent + 60 * DIBS__SECOND);
    assert_int_equal(dibs_once_fence(o), o->version + 1000);
    assert_int_equal(dibs_once_remaining_ms(o), (LEASE - MARGIN - STILL_ANSWER) / DIBS__MS);
    assert_false(dibs_once_again(o));
    assert_status(o->answer, DIBS_OK);
    dibs_once_runner(o, &who, sizeof who);
    assert_string_equal(who.owner, o->mine.owner);
    assert_string_equal(who.host, a->host);
    assert_int_equal(who.pid, getpid());
    assert_int_equal(who.since_ms, (still_wall() - STILL_ANSWER) / DIBS__MS);
    assert_int_equal(who.left_ms, dibs_once_remaining_ms(o));
    assert_int_equal(who.fence, dibs_once_fence(o));
    assert_int_equal(who.weight, 1);
    still_pass(LEASE - MARGIN - STILL_ANSWER - 1);
    assert_true(dibs_once_held(o));
    assert_int_equal(dibs_once_remaining_ms(o), 0);
    still_pass(1);
    assert_false(dibs_once_held(o));
    assert_int_equal(dibs_once_remaining_ms(o), 0);
    still_pass(LEASE);
    assert_int_equal(dibs_once_remaining_ms(o), 0);
    dibs_once_free(o);
}

/* A caller that was compiled with a shorter, or a longer, dibs_party. */
static void a_runner_fits_the_callers_structure(void **state)
{
    struct {
        dibs_party party;
        char more[8];
    } longer;
    dibs_once *o = ours(&brief);

    (void)state;
    memset(&longer, 0xff, sizeof longer);
    dibs_once_runner(o, &longer.party, offsetof(dibs_party, host));
    assert_string_equal(longer.party.owner, o->mine.owner);
    assert_int_equal((intptr_t)longer.party.host, -1);
    dibs_once_runner(o, &longer.party, sizeof longer);
    assert_string_equal(longer.party.host, a->host);
    assert_int_equal(longer.more[7], 0);
    dibs_once_free(o);
}

/* ---- What a duplicate is told ----------------------------------------------------------------- */

/* A record of that age and fingerprint, who asks for it, and what he is told: if crashes are refused, and if not. */
typedef struct duplicate {
    dibs__run_state state;
    int64_t age;
    char print, asked;
    dibs_status refuse, rerun;
    int64_t left; /* of the run or of its result */
} duplicate;

static dibs_status ask(const duplicate *row, const dibs_once_options *like, uint64_t fence,
                       dibs_once **out)
{
    dibs__run_record r = theirs(row->state);
    dibs_once_options o = *like;

    r.fence = fence;
    r.fingerprint = &row->print;
    r.fingerprint_size = row->print != 0;
    o.fingerprint = &row->asked;
    o.fingerprint_size = row->asked != 0;
    store(KEY, &r);
    still_pass(row->age - STILL_ANSWER);
    return begin(&o, out);
}

static void expect_our_turn(const duplicate *row, const dibs_once *o)
{
    bool again = row->state != N;
    size_t size = 99;

    assert_int_equal(dibs_once_again(o), again);
    assert_int_equal(sent_record(0).runs, again ? 4 : 1);
    assert_true(still_last(a, 0)->command.version > 0);
    assert_null(dibs_once_result(o, &size)); /* theirs is none of ours */
    assert_int_equal(size, 0);
    assert_int_equal(dibs_once_code(o), 0);
    assert_false(dibs_once_failed(o));
}

static void expect_their_result(const duplicate *row, const dibs_once *o, bool there)
{
    size_t size = 99;

    assert_int_equal(dibs_once_code(o), there ? 42 : 0);
    assert_int_equal(dibs_once_failed(o), there && row->state == F);
    assert_int_equal(dibs_once_result(o, &size) != NULL, there);
    assert_int_equal(size, there ? 4 : 0);
    assert_false(dibs_once_held(o));
    assert_int_equal(dibs_once_remaining_ms(o), 0);
}

static void expect_their_names(const duplicate *row, const dibs_once *o, dibs_status status,
                               uint64_t fence)
{
    dibs_party who;

    dibs_once_runner(o, &who, sizeof who);
    assert_string_equal(who.owner, "them");
    assert_string_equal(who.host, "there");
    assert_int_equal(who.pid, 77);
    assert_int_equal(who.since_ms, 5000);
    assert_int_equal(who.fence, fence);
    assert_int_equal(who.left_ms,
                     row->left > STILL_ANSWER ? (row->left - STILL_ANSWER) / DIBS__MS : 0);
    if (status != DIBS_ALREADY)
        assert_non_null(strstr(err.message, "'" KEY "'"));
    if (status != DIBS_RUNNING && status != DIBS_CRASHED)
        return;
    assert_string_equal(err.owner, "them");
    assert_string_equal(err.host, "there");
    assert_int_equal(err.pid, 77);
    assert_int_equal(err.fence, fence);
    assert_int_equal(err.retry_after_ms, status == DIBS_RUNNING ? row->left / DIBS__MS : 0);
}

static void a_record_and_its_age_are_the_answer(void **state)
{
    static const duplicate rows[] = {
        {R, 2 * STILL_ANSWER, 0, 0, DIBS_RUNNING, DIBS_RUNNING, LEASE - 2 * STILL_ANSWER},
        {R, LEASE - 1, 0, 0, DIBS_RUNNING, DIBS_RUNNING, 1},
        {R, LEASE, 0, 0, DIBS_CRASHED, DIBS_OK, 0},
        {R, 3 * LEASE, 0, 0, DIBS_CRASHED, DIBS_OK, 0},
        {D, LEASE, 0, 0, DIBS_ALREADY, DIBS_ALREADY, LEASE},
        {D, 2 * LEASE - 1, 0, 0, DIBS_ALREADY, DIBS_ALREADY, 1},
        {D, 2 * LEASE, 0, 0, DIBS_EXPIRED, DIBS_EXPIRED, 0},
        {F, 2 * LEASE - 1, 0, 0, DIBS_ALREADY, DIBS_ALREADY, 1},
        {F, 2 * LEASE, 0, 0, DIBS_EXPIRED, DIBS_EXPIRED, 0},
        {A, 2 * STILL_ANSWER, 0, 0, DIBS_CRASHED, DIBS_OK, 0},
        {N, 2 * STILL_ANSWER, 0, 0, DIBS_OK, DIBS_OK, 0},
        /* fingerprints */
        {R, LEASE, 'x', 'x', DIBS_CRASHED, DIBS_OK, 0},
        {R, LEASE, 'x', 'y', DIBS_MISMATCH, DIBS_MISMATCH, 0},
        {R, LEASE, 'x', 0, DIBS_MISMATCH, DIBS_MISMATCH, 0},
        {R, LEASE, 0, 'x', DIBS_MISMATCH, DIBS_MISMATCH, 0},
        {D, LEASE, 'x', 'y', DIBS_MISMATCH, DIBS_MISMATCH, LEASE},
        {A, LEASE, 'x', 'y', DIBS_MISMATCH, DIBS_MISMATCH, 0},
        {N, LEASE, 'x', 'y', DIBS_OK, DIBS_OK, 0},
    };

    (void)state;
    a->base = 1000;
    for (size_t i = 0; i < 2 * COUNT(rows); i++) {
        const duplicate *row = &rows[i / 2];
        bool reruns = i % 2;
        dibs_status want = reruns ? row->rerun : row->refuse;
        int count = still_count(a);
        dibs_once *o = NULL;
        print_message("# row %zu%s\n", i / 2, reruns ? ", rerun" : "");
        assert_status(ask(row, reruns ? &rerun : &brief, reruns ? 500 : 0, &o), want);
        assert_int_equal(still_count(a), count + (want == DIBS_OK ? 2 : 1));
        if (want == DIBS_OK) {
            expect_our_turn(row, o);
        } else {
            expect_their_result(row, o, want == DIBS_ALREADY);
            expect_their_names(row, o, want, (reruns ? 500 : o->version) + 1000);
            assert_status(dibs_once_finish(o, NULL, 0, 0, NULL), DIBS_INVALID);
        }
        dibs_once_free(o);
    }
}

/* A result that is kept for ever has no end; what is left falls with time. */
static void what_is_left_falls_with_time(void **state)
{
    dibs__run_record r = theirs(DIBS__RUN_DONE);
    dibs_once *o = NULL;
    dibs_party who;

    (void)state;
    store(KEY, &r);
    assert_status(begin(&brief, &o), DIBS_ALREADY);
    for (int i = 0; i < 4; i++) {
        int64_t age = 2 * STILL_ANSWER + i * LEASE;
        dibs_once_runner(o, &who, sizeof who);
        assert_int_equal(who.left_ms, age < r.keep ? (r.keep - age) / DIBS__MS : 0);
        still_pass(LEASE);
    }
    dibs_once_free(o);
    r.keep = INT64_MAX;
    store(KEY, &r);
    assert_status(begin(&brief, &o), DIBS_ALREADY);
    dibs_once_runner(o, &who, sizeof who);
    assert_int_equal(who.left_ms, DIBS_FOREVER);
    dibs_once_free(o);
}

/* Where the engine knows that the runner is dead. */
static void a_runner_that_is_surely_dead_has_crashed(void **state)
{
    dibs__run_record r = theirs(DIBS__RUN_RUNNING);
    dibs__cell_reply dead = {
        .verdict = DIBS__CELL_CONFLICT, .version = 7, .age = INT64_MAX, .left = LEASE};
    dibs_once *o = NULL;
    dibs_party who;

    (void)state;
    dead.data = dibs__record_encode(&r, &dead.size);
    still_twist(a, (twist){.answer = &dead});
    assert_status(begin(&brief, &o), DIBS_CRASHED);
    dibs_once_runner(o, &who, sizeof who);
    assert_int_equal(who.left_ms, 0);
    assert_int_equal(who.fence, 7);
    free(dead.data);
    dibs_once_free(o);
}

static void what_is_no_record_is_an_error(void **state)
{
    const dibs__cell_reply rows[] = {
        {.verdict = DIBS__CELL_CONFLICT, .version = 3, .data = (void *)(uintptr_t) "?", .size = 1},
        {.verdict = DIBS__CELL_KIND},
        {.verdict = DIBS__CELL_FENCED},
        {.verdict = DIBS__CELL_ALREADY},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        dibs_once *o = (dibs_once *)1;
        size_t tasks = a->keeper_tasks;
        still_twist(a, (twist){.stopped = true, .answer = &rows[i]});
        assert_status(begin(&brief, &o), DIBS_ENGINE_FAILED);
        assert_null(o);
        assert_non_null(strstr(err.message, "'" KEY "'"));
        expect_nothing_left(tasks);
    }
}

/* ---- Beginnings that were not heard of -------------------------------------------------------- */

static void a_lost_answer_is_asked_for_again(void **state)
{
    int64_t sent = still_now();
    dibs_once *o;

    (void)state;
    still_twist(a, untold);
    still_twist(a, lost);
    o = ours(&brief);
    assert_int_equal(still_count(a), 3);
    assert_string_equal(still_last(a, 0)->stamp, still_last(a, 2)->stamp);
    assert_int_equal(atomic_load(&o->deadline), sent + LEASE - MARGIN); /* from the first on */
    assert_false(o->maybe_there);
    dibs_once_free(o);
    assert_int_equal(stored_state(KEY), DIBS__RUN_ABANDONED);
}

/* The keeper works until it has nothing to do, or until then. */
static void serve_all(int64_t until)
{
    while (still_next(a) <= until)
        still_serve_until(a, still_next(a));
}

/* What the keeper writes in the place of a beginning of which nobody was told. */
static void expect_mark(const still_sent *s)
{
    dibs__run_record r;

    assert_status(dibs__record_decode(s->data, s->command.size, &r, &err), DIBS_OK);
    assert_int_equal(r.state, DIBS__RUN_FREE);
    assert_int_equal(r.runs, 0);
    assert_int_equal(r.fingerprint_size, 0);
    assert_null(r.steps);
    assert_true(s->notify && !s->command.alive && !s->command.fleeting);
    assert_int_equal(s->command.lease, 0);
    assert_int_equal(s->command.keep, DAY);
}

/* The whole time of the call goes without an answer. Then the keeper makes sure that nothing of it is there or can come. */
static void a_beginning_without_an_answer_is_withdrawn(void **state)
{
    const struct {
        twist on_the_way;
        dibs__run_state before; /* 0: nothing */
        int commands;           /* of the keeper, at first */
        bool comes_back;
        dibs__run_state after;
    } rows[] = {
        {untold, 0, 2, false, DIBS__RUN_FREE},
        {lost, 0, 1, false, DIBS__RUN_FREE},
        {lost, DIBS__RUN_FREE, 1, false, DIBS__RUN_FREE},
        {lost, DIBS__RUN_DONE, 1, false, DIBS__RUN_DONE},
        {lost, DIBS__RUN_FAILED, 1, false, DIBS__RUN_FAILED},
        {lost, DIBS__RUN_RUNNING, 1, true, DIBS__RUN_RUNNING},
        {lost, DIBS__RUN_ABANDONED, 1, true, DIBS__RUN_ABANDONED},
    };
    dibs_once_options o = brief;

    (void)state;
    o.fingerprint = "f";
    o.fingerprint_size = 1;
    for (size_t i = 0; i < COUNT(rows); i++) {
        dibs__run_record r = theirs(rows[i].before);
        size_t tasks = a->keeper_tasks;
        int64_t left_at, give_up;
        dibs_once *once = (dibs_once *)1;
        int count;
        store(KEY, NULL);
        if (rows[i].before)
            store(KEY, &r);
        still_twist(a, for_ever(rows[i].on_the_way));
        assert_status(begin(&o, &once), DIBS_UNKNOWN);
        assert_null(once);
        left_at = still_next(a);
        assert_int_equal(left_at, still_now());
        assert_int_equal(a->keeper_tasks, tasks + 1);
        still_heal(a);
        count = still_count(a);
        assert_true(still_serve(a));
        assert_int_equal(still_count(a), count + rows[i].commands);
        assert_int_equal(still_last(a, rows[i].commands - 1)->command.version, 0);
        assert_int_equal(still_last(a, 0)->until, left_at + a->request_span);
        expect_mark(still_last(a, 0));
        assert_int_equal(stored_state(KEY), rows[i].after);
        if (rows[i].comes_back) {
            give_up = left_at + LEASE + 60 * DIBS__SECOND;
            assert_int_equal(still_next(a), left_at + STILL_ANSWER + DIBS__SECOND);
            serve_all(give_up - 1);
            assert_in_range(still_next(a), give_up, give_up + 2 * DIBS__SECOND);
            serve_all(give_up + 2 * DIBS__SECOND);
        }
        expect_nothing_left(tasks);
    }
}

/* No answer to that either: again after a while, and not for ever. */
static void withdrawing_goes_on_until_it_is_answered(void **state)
{
    (void)state;
    for (int forever = 0; forever < 2; forever++) {
        size_t tasks = a->keeper_tasks;
        int64_t give_up;
        dibs_once *o;
        still_twist(a, for_ever(lost));
        assert_status(begin(&brief, &o), DIBS_UNKNOWN);
        give_up = still_now() + LEASE + 60 * DIBS__SECOND;
        assert_true(still_serve(a));
        assert_int_equal(still_next(a), still_now() + 200 * DIBS__MS);
        if (!forever)
            still_heal(a);
        serve_all(forever ? give_up + 20 * DIBS__SECOND : still_next(a));
        expect_nothing_left(tasks);
        assert_int_equal(still_now() >= give_up, forever);
        still_heal(a);
        assert_int_equal(stored_state(KEY), DIBS__RUN_FREE);
    }
}

/* Its time is over with the lease, and a minute. */
static void withdrawing_ends_at_its_time(void **state)
{
    size_t tasks = a->keeper_tasks;
    dibs_once *o;

    (void)state;
    for (int late = 0; late < 2; late++) {
        still_twist(a, for_ever(lost));
        assert_status(begin(&brief, &o), DIBS_UNKNOWN);
        still_heal(a);
        still_twist(
            a, (twist){.status = DIBS_UNAVAILABLE,
                       .stopped = true,
                       .takes = LEASE + 60 * DIBS__SECOND - 200 * DIBS__MS - STILL_ANSWER - !late});
        still_twist(a, for_ever(lost));
        assert_true(still_serve(a));
        still_serve_until(a, still_next(a));
        assert_int_equal(still_next(a) == DIBS__NEVER, late);
        still_heal(a);
        serve_all(still_now() + DIBS__SECOND);
        expect_nothing_left(tasks);
    }
}

/* What the repeat is told says nothing about the first request. */
static void a_repeat_that_is_refused_leaves_the_doubt(void **state)
{
    size_t tasks = a->keeper_tasks;
    dibs_once *o;

    (void)state;
    still_twist(a, untold);
    still_twist(a, (twist){.stopped = true, .status = DIBS_DENIED});
    assert_status(begin(&brief, &o), DIBS_DENIED);
    assert_int_equal(stored_state(KEY), DIBS__RUN_RUNNING);
    assert_true(still_serve(a));
    assert_int_equal(stored_state(KEY), DIBS__RUN_FREE);
    expect_nothing_left(tasks);
}

static void what_was_surely_not_begun_is_not_withdrawn(void **state)
{
    size_t tasks = a->keeper_tasks;
    dibs_once *o;

    (void)state;
    still_twist(a, (twist){.stopped = true, .status = DIBS_DENIED});
    assert_status(begin(&brief, &o), DIBS_DENIED);
    expect_nothing_left(tasks);
    assert_int_equal(still_count(a), 1);
}

/* The answer came when the lease was over by our clock: nobody has run it, so it is begun once more. */
static void an_answer_after_the_lease_begins_again(void **state)
{
    dibs_once_options o = {.lease_ms = 1000, .wait_ms = DIBS_NO_WAIT};
    int64_t margin = 15 * DIBS__MS;
    dibs_once *once;

    (void)state;
    still_twist(a, (twist){.takes = DIBS__SECOND - margin - STILL_ANSWER});
    once = ours(&o);
    assert_int_equal(still_count(a), 2);
    assert_int_equal(sent_record(0).runs, 1);
    assert_int_equal(still_last(a, 0)->command.version > 0, true);
    assert_false(dibs_once_again(once));
    assert_false(once->maybe_there);
    dibs_once_free(once);
    store(KEY, NULL);
    still_twist(a, (twist){.takes = DIBS__SECOND - margin - STILL_ANSWER - 1});
    once = ours(&o); /* the last moment at which it is ours */
    assert_int_equal(still_count(a), 4);
    dibs_once_free(once);
}

static void an_answer_after_the_call_is_withdrawn(void **state)
{
    dibs_once_options o = {.lease_ms = 1000, .wait_ms = DIBS_NO_WAIT};
    size_t tasks = a->keeper_tasks;
    dibs_once *once;

    (void)state;
    still_twist(a, (twist){.takes = a->request_span - STILL_ANSWER});
    assert_status(begin(&o, &once), DIBS_UNAVAILABLE);
    assert_non_null(strstr(err.message, "no answer in time"));
    assert_null(once);
    assert_true(still_serve(a));
    assert_int_equal(stored_state(KEY), DIBS__RUN_FREE);
    expect_nothing_left(tasks);
    still_twist(a, (twist){.takes = a->request_span - STILL_ANSWER - 1}); /* in time */
    once = ours(&o);
    dibs_once_free(once);
}

/* The first request was not answered, and another's record is there when it is sent again: whether ours was there before
 * it, or may be put back, depends on what it is. Who lets go of it leaves the rest to the keeper. */
static dibs__run_state rivals;

static void be_faster(void)
{
    dibs__run_record r = theirs(rivals);

    store(KEY, &r);
}

static void another_may_hide_what_was_begun(void **state)
{
    static const struct {
        dibs__run_state state;
        dibs_status status;
        bool doubt;
    } rows[] = {
        {R, DIBS_RUNNING, true},
        {A, DIBS_CRASHED, true},
        {D, DIBS_ALREADY, false},
        {F, DIBS_ALREADY, false},
    };

    (void)state;
    for (size_t i = 0; i < 2 * COUNT(rows); i++) {
        size_t tasks = a->keeper_tasks;
        bool unsure = i % 2;
        dibs_once *o;
        store(KEY, NULL);
        rivals = rows[i / 2].state;
        if (unsure)
            still_twist(a, lost);
        still_twist(a, (twist){.before = be_faster});
        assert_status(begin(&brief, &o), rows[i / 2].status);
        assert_int_equal(o->maybe_there, unsure && rows[i / 2].doubt);
        dibs_once_free(o);
        assert_int_equal(still_next(a) <= still_now(), unsure && rows[i / 2].doubt);
        still_at(still_now() + 10 * DIBS__SECOND, finish_it); /* then it is settled */
        serve_all(DIBS__NEVER - 1);
        expect_nothing_left(tasks);
    }
}

/* A take-over of a free key was not answered. The key is free as before: the request may still come. Or it has changed:
 * then it finds nothing any more. */
static void free_it(void)
{
    dibs__run_record r = theirs(DIBS__RUN_FREE);

    store(KEY, &r);
}

static void a_take_over_on_its_way_is_kept_in_mind(void **state)
{
    (void)state;
    for (int changed = 0; changed < 2; changed++) {
        dibs__run_record r = theirs(DIBS__RUN_RUNNING);
        dibs_once_options o = brief;
        size_t tasks = a->keeper_tasks;
        dibs_once *once;
        o.wait_ms = DIBS_FOREVER;
        store(KEY, &r);
        still_twist(a, (twist){.then = free_it});
        still_twist(a, (twist){0});
        for (int i = 0; i < 27; i++)
            still_twist(a, lost);
        still_twist(a, (twist){.status = DIBS_UNKNOWN,
                               .stopped = true,
                               .takes = a->request_span,
                               .then = changed ? free_it : NULL});
        still_twist(a, (twist){0});
        still_twist(a, (twist){.stopped = true, .status = DIBS_DENIED});
        assert_status(begin(&o, &once), DIBS_DENIED);
        assert_null(once);
        if (changed) {
            expect_nothing_left(tasks);
        } else {
            assert_true(still_serve(a)); /* what is there is written anew */
            assert_int_equal(sent_record(0).state, DIBS__RUN_FREE);
            assert_int_equal(still_last(a, 1)->command.version, 0);
            assert_true(still_last(a, 0)->command.version > 0);
            expect_nothing_left(tasks);
        }
        still_heal(a);
    }
}

/* The handle is closed while the call begins: no run of it is begun. */
static int64_t (*clock_as_it_is)(void *ctx);
static int looks, leap_at;

static int64_t closing_clock(void *ctx)
{
    a->closing = true;
    return clock_as_it_is(ctx);
}

static void a_handle_that_is_being_closed_begins_nothing(void **state)
{
    static dibs__env env;
    dibs_once_options o = brief;
    size_t tasks = a->keeper_tasks;
    dibs__run_record r = theirs(DIBS__RUN_RUNNING);
    dibs_once *once;

    (void)state;
    store(KEY, &r);
    assert_status(begin(&brief, &once), DIBS_RUNNING);
    a->closing = true;
    assert_status(dibs_once_wait(once, DIBS_NO_WAIT, &err), DIBS_CANCELLED);
    assert_false(once->maybe_there);
    a->closing = false;
    dibs_once_free(once);
    env = *a->env;
    clock_as_it_is = env.boottime;
    env.boottime = closing_clock;
    a->env = &env;
    o.wait_ms = 3000;
    once = (dibs_once *)1;
    assert_status(begin(&o, &once), DIBS_CANCELLED);
    a->env = b->env;
    a->closing = false;
    assert_null(once);
    assert_int_equal(still_count(a), 1);
    expect_nothing_left(tasks);
}

/* The machine sleeps for an hour between any two looks at the clock. */
static int64_t leaping_clock(void *ctx)
{
    if (++looks == leap_at)
        still_pass(3600 * DIBS__SECOND);
    return clock_as_it_is(ctx);
}

static void a_machine_may_sleep_at_any_moment(void **state)
{
    static dibs__env env;
    bool unavailable = false;

    (void)state;
    env = *a->env;
    clock_as_it_is = env.boottime;
    env.boottime = leaping_clock;
    a->env = &env;
    for (leap_at = 1; leap_at <= 12; leap_at++) {
        dibs_once *o = NULL;
        dibs_status status;
        store(KEY, &(dibs__run_record){.state = DIBS__RUN_FREE});
        looks = 0;
        status = begin(&brief, &o);
        looks = 1000; /* from here on it is awake */
        if (status == DIBS_OK) {
            assert_true(o->delivered);
            assert_status(dibs_once_undo(o, NULL), DIBS_OK);
            dibs_once_free(o);
        } else {
            assert_status(status, DIBS_UNAVAILABLE);
            assert_null(o);
            assert_non_null(strstr(err.message, KEY));
            unavailable = true;
        }
        while (still_serve(a))
            continue;
        assert_int_equal(stored_state(KEY), DIBS__RUN_FREE);
        assert_null(a->onces);
    }
    assert_true(unavailable);
    a->env = b->env;
}

/* The same between any two steps of a wait, whose end was that the run is ours: it is said to be ours only while it is. Of
 * what was lost before, nobody has run anything: it can be waited for again. */
static void sleep_for_an_hour(void)
{
    still_pass(3600 * DIBS__SECOND);
}

static void what_was_lost_before_it_was_told_is_waited_for_again(void **state)
{
    int late = 0, unavailable = 0;

    (void)state;
    for (int n = 1; n <= 20; n++) {
        dibs__run_record r = theirs(DIBS__RUN_RUNNING);
        dibs_once *o;
        dibs_status status;
        store(KEY, &r);
        assert_status(begin(&brief, &o), DIBS_RUNNING);
        free_it();
        still_before_lock(n, sleep_for_an_hour);
        status = dibs_once_wait(o, DIBS_NO_WAIT, &err);
        still_before_lock(0, NULL);
        if (status == DIBS_OK) {
            late += !dibs_once_held(o); /* it slept after the last step */
        } else {
            assert_status(status, DIBS_UNAVAILABLE);
            assert_false(o->delivered);
            assert_int_equal(still_next(a), DIBS__NEVER);
            assert_status(dibs_once_wait(o, DIBS_NO_WAIT, &err), DIBS_OK);
            assert_true(dibs_once_held(o));
            unavailable++;
        }
        assert_false(dibs_once_again(o));
        assert_status(dibs_once_undo(o, NULL), DIBS_OK);
        dibs_once_free(o);
    }
    assert_in_range(late, 0, 1);
    assert_true(unavailable > 1);
}

/* And a renewal of it is on its way at that moment: who speaks for it waits for that one. */
static void the_renewal_is_answered(void)
{
    pthread_mutex_lock(&a->mutex);
    dibs__run_idle(a->onces);
    pthread_mutex_unlock(&a->mutex);
}

static void sleep_while_it_is_renewed(void)
{
    dibs_once *o = a->onces;

    if (!o || o->phase != DIBS__ONCE_OURS)
        return;
    sleep_for_an_hour();
    pthread_mutex_lock(&a->mutex);
    dibs__run_busy(o);
    pthread_mutex_unlock(&a->mutex);
    still_meanwhile(the_renewal_is_answered);
}

static void what_is_renewed_is_not_given_up(void **state)
{
    int waited = 0;

    (void)state;
    for (int n = 1; n <= 20; n++) {
        dibs__run_record r = theirs(DIBS__RUN_RUNNING);
        dibs_once *o;
        dibs_status status;
        store(KEY, &r);
        assert_status(begin(&brief, &o), DIBS_RUNNING);
        free_it();
        still_before_lock(n, sleep_while_it_is_renewed);
        status = dibs_once_wait(o, DIBS_NO_WAIT, &err);
        still_before_lock(0, NULL);
        waited += status == DIBS_UNAVAILABLE;
        if (o->busy) /* that was after the last step */
            the_renewal_is_answered();
        still_meanwhile(NULL);
        dibs_once_free(o);
        while (still_serve(a))
            continue;
        store(KEY, NULL);
    }
    assert_true(waited > 0);
}

/* ---- Take-overs ------------------------------------------------------------------------------- */

/* It is there again, as that of "them", with these steps; what is left of it. */
static int64_t expect_the_crash(const char *who, const char *fingerprint, int steps)
{
    dibs__run_record r = stored(KEY);
    const still_sent *s = still_last(b, 0);
    int n = 0;

    assert_int_equal(s->command.op, DIBS__CELL_READ);
    assert_int_equal(r.state, DIBS__RUN_ABANDONED);
    assert_string_equal(r.owner, "them");
    assert_string_equal(r.crashed, who);
    assert_int_equal(r.runs, 3);
    assert_int_equal(r.fingerprint_size, fingerprint ? strlen(fingerprint) : 0);
    if (fingerprint)
        assert_memory_equal(r.fingerprint, fingerprint, r.fingerprint_size);
    for (const dibs__step *step = r.steps; step; step = step->next)
        n++;
    assert_int_equal(n, steps);
    dibs__steps_free(r.steps);
    return still_last(a, 0)->command.keep;
}

/* Undone, the crash is there again for the rest of its time; the steps of both are with it. */
static void an_undone_rerun_leaves_the_crash(void **state)
{
    static const int64_t keeps[] = {0, 100 * DIBS__SECOND};
    dibs_once_options o = rerun;

    (void)state;
    o.fingerprint = "f";
    o.fingerprint_size = 1;
    for (int i = 0; i < 4; i++) {
        dibs_once *once;
        uint64_t version;
        int64_t stored_at = still_now() + STILL_ANSWER;
        leave_a_crash("f", keeps[i % 2]);
        once = ours(&o);
        assert_true(dibs_once_again(once));
        assert_string_equal(dibs_once_step_data(once, "one", NULL), "1");
        version = still_last(a, 0)->command.version;
        if (i >= 2)
            assert_status(dibs_once_step(once, "two", "2", 1, NULL), DIBS_OK);
        still_pass(DIBS__SECOND);
        assert_status(dibs_once_undo(once, NULL), DIBS_OK);
        assert_int_equal(sent_record(0).fence, version);
        assert_string_equal(sent_record(0).attempt, once->mine.attempt);
        dibs_once_free(once);
        expect_the_crash("theirs-1", "f", i < 2 ? 1 : 2);
        /* counted from before the look, so not longer than it had */
        if (i % 2)
            assert_in_range(still_last(a, 0)->at + still_last(a, 0)->command.keep,
                            stored_at + keeps[1] - 2 * STILL_ANSWER, stored_at + keeps[1]);
        else
            assert_int_equal(still_last(a, 0)->command.keep, 0);
    }
}

/* The crash would have ended in the meantime: nothing is put back. */
static void a_crash_that_has_ended_is_not_put_back(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        int64_t end;
        dibs_once *o;
        leave_a_crash(NULL, 2 * DIBS__SECOND);
        o = ours(&rerun);
        end = o->before_until;
        still_pass(end - still_now() - !late);
        assert_status(dibs_once_undo(o, NULL), DIBS_OK);
        dibs_once_free(o);
        assert_int_equal(sent_record(0).state, late ? DIBS__RUN_FREE : DIBS__RUN_ABANDONED);
        if (!late)
            assert_int_equal(still_last(a, 0)->command.keep, 1);
        store(KEY, NULL);
    }
}

/* Who put it back is told whose crash it is, also of the next one. */
static void a_crash_stays_that_of_the_first(void **state)
{
    dibs__run_record r;

    (void)state;
    leave_a_crash(NULL, 0);
    for (int i = 0; i < 2; i++) {
        dibs_once *o = ours(&rerun);
        assert_status(dibs_once_undo(o, NULL), DIBS_OK);
        dibs_once_free(o);
    }
    r = stored(KEY);
    assert_string_equal(r.crashed, "theirs-1");
    dibs__steps_free(r.steps);
}

/* The same when the take-over gets no answer, and the keeper withdraws it. */
static void a_take_over_without_an_answer_leaves_the_crash(void **state)
{
    const twist ways[] = {untold, lost};

    (void)state;
    for (int i = 0; i < 4; i++) {
        size_t tasks = a->keeper_tasks;
        dibs_once *o;
        int count;
        leave_a_crash(NULL, 0);
        if (i < 2) { /* at once */
            still_twist(a, (twist){0});
            still_twist(a, for_ever(ways[i % 2]));
            assert_status(begin(&rerun, &o), DIBS_UNKNOWN);
            assert_null(o);
        } else { /* the caller decides */
            assert_status(begin(&brief, &o), DIBS_CRASHED);
            still_twist(a, for_ever(ways[i % 2]));
            assert_status(dibs_once_rerun(o, &err), DIBS_UNKNOWN);
            dibs_once_free(o);
        }
        still_heal(a);
        count = still_count(a);
        assert_true(still_serve(a));
        assert_int_equal(still_count(a), count + 2);
        assert_true(still_last(a, 0)->notify);
        expect_the_crash("theirs-1", NULL, 1);
        expect_nothing_left(tasks);
    }
}

/* What was to be taken over is gone when the command comes: it is the first. */
static void a_take_over_of_nothing_is_the_first(void **state)
{
    dibs_once *o;

    (void)state;
    leave_a_crash(NULL, 0);
    still_twist(a, (twist){0});
    still_twist(a, (twist){.before = delete_it});
    o = ours(&rerun);
    assert_int_equal(still_count(a), 3);
    assert_int_equal(still_last(a, 0)->command.version, 0);
    assert_int_equal(sent_record(0).runs, 1);
    assert_false(dibs_once_again(o));
    assert_null(dibs_once_step_data(o, "one", NULL));
    assert_null(stored(KEY).steps);
    assert_status(dibs_once_undo(o, NULL), DIBS_OK);
    assert_int_equal(sent_record(0).state, DIBS__RUN_FREE);
    dibs_once_free(o);
}

/* Nothing of it can come any more: it is not withdrawn. */
static void a_take_over_of_nothing_leaves_no_doubt(void **state)
{
    size_t tasks = a->keeper_tasks;
    dibs_once *o;

    (void)state;
    leave_a_crash(NULL, 0);
    still_twist(a, (twist){0});
    still_twist(a, lost); /* it is asked for again, and gone */
    still_twist(a, (twist){.before = delete_it});
    still_twist(a, (twist){.stopped = true, .status = DIBS_DENIED});
    assert_status(begin(&rerun, &o), DIBS_DENIED);
    expect_nothing_left(tasks);
}

static void heal(void)
{
    still_heal(a);
}

/* Begun while the caller waits, and not heard of: the next look finds our own. */
static void what_was_begun_unheard_is_found(void **state)
{
    dibs__run_record r = theirs(DIBS__RUN_RUNNING);
    dibs_once_options o = brief;
    dibs_once *once;
    int count;

    (void)state;
    o.wait_ms = DIBS_FOREVER;
    store(KEY, &r);
    still_twist(a, (twist){.then = delete_it});
    still_twist(a, for_ever(untold));
    still_at(still_now() + a->request_span + DIBS__SECOND,
             heal); /* longer than a request may take */
    assert_status(begin(&o, &once), DIBS_OK);
    count = still_count(a);
    assert_true(count > 25);
    assert_false(dibs_once_again(once));
    assert_int_equal(sent_record(0).runs, 1);
    assert_false(once->maybe_there);
    assert_status(dibs_once_undo(once, NULL), DIBS_OK);
    assert_int_equal(sent_record(0).state, DIBS__RUN_FREE);
    dibs_once_free(once);
}

/* It was given back in the meantime: ours is the first, and gives back as such. */
static void a_take_over_of_what_was_given_back_is_the_first(void **state)
{
    dibs_once *o;

    (void)state;
    leave_a_crash(NULL, 0);
    still_twist(a, (twist){0});
    still_twist(a, (twist){.before = free_it});
    o = ours(&rerun);
    assert_int_equal(still_count(a), 3);
    assert_int_equal(sent_record(0).runs, 1);
    assert_false(dibs_once_again(o));
    assert_status(dibs_once_undo(o, NULL), DIBS_OK);
    assert_int_equal(sent_record(0).state, DIBS__RUN_FREE);
    dibs_once_free(o);
}

static void a_take_over_that_came_too_late_is_told_so(void **state)
{
    dibs_once *o;

    (void)state;
    leave_a_crash(NULL, 0);
    still_twist(a, (twist){0});
    still_twist(a, (twist){.before = finish_it});
    assert_status(begin(&rerun, &o), DIBS_ALREADY);
    assert_string_equal(dibs_once_result(o, NULL), "paid");
    dibs_once_free(o);
}

static void only_a_crash_is_rerun(void **state)
{
    static const dibs__run_state states[] = {DIBS__RUN_DONE, DIBS__RUN_RUNNING,
                                             DIBS__RUN_ABANDONED};
    dibs_once *o;

    (void)state;
    for (int i = 0; i < 3; i++) {
        dibs__run_record r = theirs(states[i]);
        store(KEY, &r);
        begin(&brief, &o);
        assert_status(dibs_once_rerun(o, &err), i < 2 ? DIBS_INVALID : DIBS_OK);
        if (i < 2)
            assert_non_null(strstr(err.message, "nothing to rerun"));
        else
            assert_status(dibs_once_rerun(o, &err), DIBS_INVALID); /* it is ours */
        dibs_once_free(o);
    }
}

/* Not answered, it may be asked for again: by waiting, which finds that nobody runs it. */
static void a_rerun_without_an_answer_can_be_asked_again(void **state)
{
    dibs_once *o;

    (void)state;
    leave_a_crash(NULL, 0);
    assert_status(begin(&brief, &o), DIBS_CRASHED);
    still_twist(a, for_ever(lost));
    assert_status(dibs_once_rerun(o, &err), DIBS_UNKNOWN);
    still_heal(a);
    assert_status(dibs_once_wait(o, DIBS_NO_WAIT, &err), DIBS_CRASHED);
    assert_status(dibs_once_rerun(o, &err), DIBS_OK);
    dibs_once_free(o);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static dibs_once_options waiting(int64_t wait_ms)
{
    dibs_once_options o = brief;

    o.wait_ms = wait_ms;
    return o;
}

static void a_wait_looks_again_at_growing_intervals(void **state)
{
    static const int64_t pauses[] = {10, 20, 40, 80, 160, 250, 250, 250};
    dibs__run_record r = theirs(DIBS__RUN_RUNNING);
    dibs_once_options o = waiting(3000);
    dibs_once *once;
    int64_t asked;

    (void)state;
    store(KEY, &r);
    asked = still_now();
    assert_status(begin(&o, &once), DIBS_RUNNING);
    assert_int_equal(still_now(), asked + 3 * DIBS__SECOND + STILL_ANSWER);
    for (int i = 0; i < 8; i++) {
        const still_sent *earlier = still_last(a, still_count(a) - 1 - i),
                         *later = still_last(a, still_count(a) - 2 - i);
        assert_int_equal(later->at - earlier->at, pauses[i] * DIBS__MS + STILL_ANSWER);
        assert_int_equal(earlier->command.version, 0);
        assert_int_equal(earlier->until, dibs__sooner(earlier->at + a->request_span,
                                                      asked + 3 * DIBS__SECOND + DIBS__GRACE));
    }
    dibs_once_free(once);
}

static void a_wait_ends_with_the_run(void **state)
{
    static const int64_t waits[] = {DIBS_FOREVER, 0, 4000};
    dibs__run_record r = theirs(DIBS__RUN_RUNNING);

    (void)state;
    for (int i = 0; i < 6; i++) {
        dibs_once_options o = waiting(i < 3 ? waits[i] : DIBS_NO_WAIT);
        dibs_once *once;
        int64_t end;
        store(KEY, &r);
        end = still_now() + 2 * DIBS__SECOND;
        still_at(end, finish_it);
        if (i < 3) {
            assert_status(begin(&o, &once), DIBS_ALREADY);
        } else {
            assert_status(begin(&o, &once), DIBS_RUNNING);
            assert_status(dibs_once_wait(once, DIBS_NO_WAIT, &err), DIBS_RUNNING);
            assert_int_equal(still_last(a, 0)->command.version, 0);
            assert_status(dibs_once_wait(once, waits[i - 3], &err), DIBS_ALREADY);
            assert_status(dibs_once_wait(once, waits[i - 3], &err),
                          DIBS_ALREADY); /* without a look */
        }
        assert_string_equal(dibs_once_result(once, NULL), "paid");
        assert_in_range(still_now(), end, end + 260 * DIBS__MS);
        dibs_once_free(once);
    }
}

static void who_waits_may_have_its_turn(void **state)
{
    dibs__run_record r = theirs(DIBS__RUN_RUNNING);

    (void)state;
    for (int i = 0; i < 2; i++) {
        dibs_once_options o = waiting(i ? DIBS_NO_WAIT : DIBS_FOREVER);
        dibs_once *once;
        store(KEY, &r);
        still_at(still_now() + DIBS__SECOND, free_it);
        assert_status(begin(&o, &once), i ? DIBS_RUNNING : DIBS_OK);
        if (i)
            assert_status(dibs_once_wait(once, DIBS_FOREVER, &err), DIBS_OK);
        assert_true(dibs_once_held(once) && once->delivered);
        assert_false(dibs_once_again(once));
        assert_status(dibs_once_wait(once, 0, &err), DIBS_INVALID);
        assert_non_null(strstr(err.message, "no run in progress"));
        dibs_once_free(once);
        store(KEY, NULL);
    }
}

/* It is looked at when the runner counts as dead, and not later. */
static void a_wait_ends_when_the_runner_is_dead(void **state)
{
    dibs__run_record r = theirs(DIBS__RUN_RUNNING);
    dibs_once_options o = waiting(DIBS_FOREVER);
    dibs_once *once;
    int64_t dead;

    (void)state;
    store(KEY, &r);
    dead = still_now() - STILL_ANSWER + LEASE;
    assert_status(begin(&o, &once), DIBS_CRASHED);
    assert_int_equal(still_last(a, 0)->at, dead);
    dibs_once_free(once);
}

/* Nobody looks again when the time is over. */
static void a_wait_ends_at_its_time(void **state)
{
    dibs__run_record r = theirs(DIBS__RUN_RUNNING);
    dibs_once *once;

    (void)state;
    store(KEY, &r);
    for (int ms = 11; ms <= 13; ms++) { /* the second look ends after 12 ms */
        dibs_once_options o = waiting(ms);
        int count = still_count(a);
        assert_status(begin(&o, &once), DIBS_RUNNING);
        assert_int_equal(still_count(a), count + 2 + (ms == 13));
        dibs_once_free(once);
    }
}

/* Its lease is for ever, or over by its age and not by its state: the next look is not at once. */
static void an_odd_lease_does_not_spin(void **state)
{
    dibs__run_record r = theirs(DIBS__RUN_RUNNING);
    dibs_once_options o = waiting(2000);
    dibs_once *once;
    int count;

    (void)state;
    r.lease = INT64_MAX;
    store(KEY, &r);
    assert_status(begin(&o, &once), DIBS_RUNNING);
    count = still_count(a);
    assert_in_range(count, 5, 14);
    dibs_once_free(once);
}

/* An engine that does not answer for a while does not end the wait. */
static void a_wait_outlasts_an_outage(void **state)
{
    dibs__run_record r = theirs(DIBS__RUN_RUNNING);
    dibs_once_options o = waiting(DIBS_FOREVER);
    dibs_once *once;

    (void)state;
    store(KEY, &r);
    still_twist(a, (twist){0});
    for (int i = 0; i < 5; i++)
        still_twist(a, (twist){.stopped = true,
                               .status = DIBS_UNAVAILABLE,
                               .then = i == 4 ? finish_it : NULL});
    assert_status(begin(&o, &once), DIBS_ALREADY);
    assert_int_equal(still_count(a), 7);
    assert_int_equal(still_slept(), (10 + 20 + 40 + 80 + 160 + 250) * DIBS__MS);
    dibs_once_free(once);
    store(KEY, &r);
    still_twist(a, (twist){0});
    still_twist(a, (twist){.stopped = true, .status = DIBS_DENIED});
    assert_status(begin(&o, &once), DIBS_DENIED);
    assert_null(once);
}

static void cancel_it(void)
{
    dibs_cancel(a, NULL);
}

static void a_wait_can_be_cancelled(void **state)
{
    dibs__run_record r = theirs(DIBS__RUN_RUNNING);
    dibs_once_options o = waiting(DIBS_FOREVER);
    dibs_once *once = (dibs_once *)1;
    int64_t when;

    (void)state;
    store(KEY, &r);
    cancel_it(); /* before it began */
    when = still_now() + DIBS__SECOND;
    still_at(when, cancel_it);
    assert_status(begin(&o, &once), DIBS_CANCELLED);
    assert_null(once);
    assert_non_null(strstr(err.message, "'" KEY "'"));
    assert_in_range(still_now(), when, when + 250 * DIBS__MS);
}

/* Where the engine tells of changes, the wait does not sleep between two looks. */
static struct {
    int calls;
    uint64_t version;
    dibs__deadline until;
} watched;

static dibs_status watch(dibs__engine *e, const char *key, uint64_t version, dibs__deadline until,
                         void **out, dibs_error *error)
{
    (void)out;
    (void)error;
    watched.calls++;
    watched.version = version;
    watched.until = until;
    still_pass(100 * DIBS__MS);
    e->sink->changed(e->sink, dibs__hash(key));
    return DIBS_OK;
}

static void a_wait_is_woken_by_the_engine(void **state)
{
    dibs__run_record r = theirs(DIBS__RUN_RUNNING);
    dibs_once_options o = waiting(DIBS_FOREVER);
    dibs_once *once;
    int64_t began;

    (void)state;
    memset(&watched, 0, sizeof watched);
    ((dibs__engine_class *)(uintptr_t)a->class)->watch = watch;
    store(KEY, &r);
    began = still_now();
    still_at(began + 95 * DIBS__MS, finish_it);
    assert_status(begin(&o, &once), DIBS_ALREADY);
    assert_int_equal(still_slept(), 0);
    assert_int_equal(watched.calls, 1);
    assert_int_equal(watched.until, began + STILL_ANSWER + DIBS__SECOND); /* a slice */
    dibs_once_free(once);
    r.lease = DIBS__SECOND / 2;
    store(KEY, &r);
    began = still_now();
    assert_status(begin(&o, &once), DIBS_CRASHED);
    assert_int_equal(watched.until, began - STILL_ANSWER + r.lease);
    assert_int_equal(watched.version, once->version);
    dibs_once_free(once);
    r.lease = DIBS__SECOND / 2; /* what is as good as dead is not looked at without a pause */
    store(KEY, &r);
    still_pass(r.lease - 2 * STILL_ANSWER);
    began = still_now();
    assert_status(begin(&o, &once), DIBS_CRASHED);
    assert_int_equal(watched.until, began + STILL_ANSWER + 2 * DIBS__MS);
    dibs_once_free(once);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, runs_begin, runs_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(wrong_options_ask_nobody),
        CASE(what_is_just_allowed_is_taken),
        CASE(the_record_has_what_the_options_say),
        CASE(a_run_counts_from_before_its_command),
        CASE(a_runner_fits_the_callers_structure),
        CASE(a_record_and_its_age_are_the_answer),
        CASE(what_is_left_falls_with_time),
        CASE(a_runner_that_is_surely_dead_has_crashed),
        CASE(what_is_no_record_is_an_error),
        CASE(a_lost_answer_is_asked_for_again),
        CASE(a_beginning_without_an_answer_is_withdrawn),
        CASE(withdrawing_goes_on_until_it_is_answered),
        CASE(withdrawing_ends_at_its_time),
        CASE(a_repeat_that_is_refused_leaves_the_doubt),
        CASE(what_was_surely_not_begun_is_not_withdrawn),
        CASE(an_answer_after_the_lease_begins_again),
        CASE(an_answer_after_the_call_is_withdrawn),
        CASE(another_may_hide_what_was_begun),
        CASE(a_take_over_on_its_way_is_kept_in_mind),
        CASE(a_handle_that_is_being_closed_begins_nothing),
        CASE(a_machine_may_sleep_at_any_moment),
        CASE(what_was_lost_before_it_was_told_is_waited_for_again),
        CASE(what_is_renewed_is_not_given_up),
        CASE(an_undone_rerun_leaves_the_crash),
        CASE(a_crash_that_has_ended_is_not_put_back),
        CASE(a_crash_stays_that_of_the_first),
        CASE(a_take_over_without_an_answer_leaves_the_crash),
        CASE(a_take_over_of_nothing_is_the_first),
        CASE(a_take_over_of_nothing_leaves_no_doubt),
        CASE(what_was_begun_unheard_is_found),
        CASE(a_take_over_of_what_was_given_back_is_the_first),
        CASE(a_take_over_that_came_too_late_is_told_so),
        CASE(only_a_crash_is_rerun),
        CASE(a_rerun_without_an_answer_can_be_asked_again),
        CASE(a_wait_looks_again_at_growing_intervals),
        CASE(a_wait_ends_with_the_run),
        CASE(who_waits_may_have_its_turn),
        CASE(a_wait_ends_when_the_runner_is_dead),
        CASE(a_wait_ends_at_its_time),
        CASE(an_odd_lease_does_not_spin),
        CASE(a_wait_outlasts_an_outage),
        CASE(a_wait_can_be_cancelled),
        CASE(a_wait_is_woken_by_the_engine),
    };

    return cmocka_run_group_tests_name("once", tests, NULL, NULL);
}
