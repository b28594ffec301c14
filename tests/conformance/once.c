/* Once: the first runs, duplicates are told; retention, lost answers, many at the same moment. */
#define _GNU_SOURCE
#include "conformance/onces.h"
#include "conformance/race.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The usual ------------------------------------------------------------------------------- */

static void the_first_runs_and_others_get_the_answer(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("pay");
    dibs_once *o = once_first(a, key, &(dibs_once_options){.owner = "worker 1"}), *other = NULL;
    dibs_party who;

    (void)state;
    assert_true(dibs_once_fence(o) > 0);
    assert_false(dibs_once_again(o));
    assert_status(once_begin(b, key, NULL, &other), DIBS_RUNNING);
    dibs_once_runner(other, &who, sizeof who);
    assert_string_equal(who.owner, "worker 1");
    assert_int_equal(who.fence, dibs_once_fence(o));
    assert_in_range(who.left_ms, 20000, 30000);
    assert_true(who.pid > 0 && who.since_ms > 0 && who.host[0]);
    assert_false(dibs_once_held(other));
    assert_null(dibs_once_result(other, NULL));
    assert_status(dibs_once_finish(other, NULL, 0, 0, NULL), DIBS_INVALID);
    dibs_once_free(other);
    once_end(o, "receipt");
    for (int i = 0; i < 3; i++)
        once_expect(b, key, "receipt");
    once_expect(a, key, "receipt");
}

static void a_result_may_be_nothing_or_empty(void **state)
{
    dibs *d = once_open();
    const char *none = fresh("none"), *empty = fresh("empty");

    (void)state;
    once_end(once_first(d, none, NULL), NULL);
    once_expect(d, none, NULL);
    once_end(once_first(d, empty, NULL), "");
    once_expect(d, empty, "");
}

static void scopes_and_keys_do_not_mix(void **state)
{
    dibs *d = once_open();
    char tall[DIBS_NAME_MAX + 1], key[64];

    (void)state;
    snprintf(key, sizeof key, "%s", fresh("mix"));
    once_end(once_first(d, key, &(dibs_once_options){.scope = "a"}), "1");
    assert_status(once_answered(d, key, &(dibs_once_options){.scope = "b"}),
                  DIBS_OK); /* and abandoned */
    once_end(once_first(d, "bc", &(dibs_once_options){.scope = "a"}), "2");
    once_end(once_first(d, "c", &(dibs_once_options){.scope = "ab"}), "3");
    once_end(once_first(d, "1:ab", NULL), "4");
    once_end(once_first(d, "b", &(dibs_once_options){.scope = "1:a"}), "5");
    memset(tall, 'k', sizeof tall);
    tall[DIBS_NAME_MAX] = '\0';
    once_end(once_first(d, tall, &(dibs_once_options){.scope = tall}), "6");
    assert_status(once_answered(d, tall, &(dibs_once_options){.scope = tall}), DIBS_ALREADY);
}

static void another_fingerprint_is_refused(void **state)
{
    dibs *d = once_open();
    const char *key = fresh("print"), *plain = fresh("plain");
    dibs_once_options x = {.fingerprint = "x\0y", .fingerprint_size = 3};
    dibs_once_options z = {.fingerprint = "x\0z", .fingerprint_size = 3};
    dibs_once *o = once_first(d, key, &x);

    (void)state;
    assert_status(once_answered(d, key, &z), DIBS_MISMATCH);
    assert_status(once_answered(d, key, NULL), DIBS_MISMATCH);
    assert_status(once_answered(d, key, &x), DIBS_RUNNING);
    once_end(o, "done");
    assert_status(once_answered(d, key, &z), DIBS_MISMATCH);
    assert_status(once_answered(d, key, &x), DIBS_ALREADY);
    once_end(once_first(d, plain, NULL), NULL);
    assert_status(once_answered(d, plain, &x), DIBS_MISMATCH);
}

static void a_failure_is_kept_or_forgotten(void **state)
{
    dibs *d = once_open();
    const char *key = fresh("fail");
    dibs_once *o = once_first(d, key, NULL);
    uint64_t fence = dibs_once_fence(o);

    (void)state;
    assert_status(dibs_once_undo(o, NULL), DIBS_OK);
    dibs_once_free(o);
    o = once_first(d, key, NULL);
    assert_true(dibs_once_fence(o) > fence);
    assert_false(dibs_once_again(o));
    assert_status(dibs_once_fail(o, "no money", 8, 3, NULL), DIBS_OK);
    assert_status(dibs_once_fail(o, "no money", 8, 3, NULL), DIBS_INVALID);
    dibs_once_free(o);
    assert_status(once_begin(d, key, NULL, &o), DIBS_ALREADY);
    assert_true(dibs_once_failed(o));
    assert_int_equal(dibs_once_code(o), 3);
    assert_string_equal(dibs_once_result(o, NULL), "no money");
    dibs_once_free(o);
}

static void wrong_options_are_refused(void **state)
{
    dibs *d = once_open();
    dibs_once *o = (dibs_once *)1;
    char name[DIBS_NAME_MAX + 2];

    (void)state;
    memset(name, 'x', sizeof name);
    name[DIBS_NAME_MAX + 1] = '\0';
    assert_status(dibs_once_begin(d, "", NULL, &o, NULL), DIBS_INVALID);
    assert_null(o);
    assert_status(once_answered(d, NULL, NULL), DIBS_INVALID);
    assert_status(once_answered(d, name, NULL), DIBS_INVALID);
    assert_status(once_answered(d, "k", &(dibs_once_options){.scope = name}), DIBS_INVALID);
    assert_status(once_answered(d, "k", &(dibs_once_options){.lease_ms = 1}), DIBS_INVALID);
    assert_status(once_answered(d, "k", &(dibs_once_options){.keep_ms = -2}), DIBS_INVALID);
    assert_status(once_answered(d, "k", &(dibs_once_options){.tombstone_ms = -2}), DIBS_INVALID);
    assert_status(once_answered(d, "k", &(dibs_once_options){.wait_ms = -2}), DIBS_INVALID);
    assert_status(once_answered(d, "k", &(dibs_once_options){.owner = ""}), DIBS_INVALID);
    assert_status(once_answered(d, "k", &(dibs_once_options){.on_crash = (dibs_on_crash)2}),
                  DIBS_INVALID);
    assert_status(
        once_answered(d, "k", &(dibs_once_options){.fingerprint = name, .fingerprint_size = 256}),
        DIBS_INVALID);
    dibs_once_free(NULL);
}

static void results_up_to_the_limit_fit(void **state)
{
    dibs *d = once_open();
    size_t most = the.can.value_max, size = 0;
    const char *key = fresh("large");
    dibs_once *o = once_first(d, key, NULL);
    char *large = malloc(most + 1);
    dibs_error err = {0};

    (void)state;
    assert_non_null(large);
    for (size_t i = 0; i <= most; i++)
        large[i] = (char)(i * 2654435761u >> 13);
    assert_status(dibs_once_finish(o, large, most + 1, 0, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "at most"));
    assert_status(dibs_once_step(o, "too large", large, most + 1, NULL), DIBS_INVALID);
    assert_status(dibs_once_step(o, "half", large, most / 2, NULL), DIBS_OK);
    assert_status(dibs_once_step(o, "rest", large, most / 2, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "at most"));
    assert_null(dibs_once_step_data(o, "rest", NULL));
    assert_true(dibs_once_held(o));
    assert_status(dibs_once_finish(o, large, most, 0, &err), DIBS_OK);
    dibs_once_free(o);
    assert_status(once_begin(d, key, NULL, &o), DIBS_ALREADY);
    assert_memory_equal(dibs_once_result(o, &size), large, most);
    assert_int_equal(size, most);
    dibs_once_free(o);
    free(large);
}

/* ---- Retention ------------------------------------------------------------------------------- */

static void a_result_ends_and_a_tombstone_says_so(void **state)
{
    dibs *d = once_open();
    const char *brief = fresh("brief"), *tomb = fresh("tomb");
    dibs_once *o = once_first(d, brief, &(dibs_once_options){.keep_ms = SHORT_MS});
    dibs_party who;

    (void)state;
    once_end(o, "x");
    o = once_first(d, tomb,
                   &(dibs_once_options){.keep_ms = SHORT_MS, .tombstone_ms = DIBS_FOREVER});
    once_end(o, "x");
    if (once_begin(d, tomb, NULL, &o) == DIBS_ALREADY) {
        dibs_once_runner(o, &who, sizeof who);
        assert_in_range(who.left_ms, 0, SHORT_MS);
    }
    dibs_once_free(o);
    assert_true(wait_until(once_answers_with, &(once_asked){d, tomb, DIBS_EXPIRED}, LONG_MS));
    assert_status(once_answered(d, tomb, NULL), DIBS_EXPIRED);
    assert_true(wait_until(once_answers_with, &(once_asked){d, brief, DIBS_OK}, LONG_MS));
}

static void a_result_kept_for_ever_has_no_end(void **state)
{
    dibs *d = once_open();
    const char *key = fresh("ever");
    dibs_once *o = once_first(d, key, &(dibs_once_options){.keep_ms = DIBS_FOREVER});
    dibs_party who;

    (void)state;
    once_end(o, "x");
    assert_status(once_begin(d, key, NULL, &o), DIBS_ALREADY);
    dibs_once_runner(o, &who, sizeof who);
    assert_int_equal(who.left_ms, DIBS_FOREVER);
    dibs_once_free(o);
}

/* ---- Lost answers ---------------------------------------------------------------------------- */

/* At every command of a whole life, in both ways. */
static void lost_answers_change_nothing(void **state)
{
    dibs *a = once_open(), *b = open_handle();

    (void)state;
    lossy_put_in(a);
    for (int way = LOSSY_ANSWER; way <= LOSSY_REQUEST; way++) {
        const char *key = fresh("lossy"), *again = fresh("lossy");
        dibs_once *o;
        lossy_lose((lossy_way)way, 2, NULL, NULL);
        o = once_first(a, key, NULL);
        assert_false(dibs_once_again(o));
        lossy_lose((lossy_way)way, 2, NULL, NULL);
        assert_status(dibs_once_step(o, "s", "1", 1, NULL), DIBS_OK);
        lossy_lose((lossy_way)way, 2, NULL, NULL);
        once_end(o, "told");
        once_expect(b, key, "told");
        lossy_lose((lossy_way)way, 2, NULL, NULL);
        o = once_first(a, again, NULL);
        lossy_lose((lossy_way)way, 1, NULL, NULL);
        assert_status(dibs_once_undo(o, NULL), DIBS_OK);
        dibs_once_free(o);
        assert_status(once_answered(b, again, NULL), DIBS_OK);
    }
    lossy_stop();
}

/* The answer to the finish never comes, but the finish went through: asked again, it is done. */
static void a_finish_can_be_asked_again(void **state)
{
    dibs *a, *b = once_open();
    const char *key = fresh("finish");
    dibs_once *o;

    (void)state;
    a = open_with(&(dibs_options){.request_ms = 300});
    lossy_put_in(a);
    o = once_first(a, key, &(dibs_once_options){.lease_ms = 10 * SHORT_MS});
    lossy_lose(LOSSY_ANSWER, -1, NULL, NULL);
    assert_status(dibs_once_finish(o, "done", 4, 7, NULL), DIBS_UNKNOWN);
    once_expect(b, key, "done");
    lossy_stop();
    assert_status(dibs_once_finish(o, "done", 4, 7, NULL), DIBS_OK);
    dibs_once_free(o);
    lossy_stop();
    once_expect(b, key, "done");
}

/* The caller does not ask again, and lets go of the run: what it has told stays. */
static void a_finish_stays_when_its_run_is_let_go(void **state)
{
    dibs *b = once_open();

    (void)state;
    for (int close = 0; close < 2; close++) {
        const char *key = fresh("finish");
        dibs *a = open_with(&(dibs_options){.request_ms = 1000});
        dibs_once *o;
        lossy_put_in(a);
        o = once_first(a, key, &(dibs_once_options){.lease_ms = 60000});
        lossy_lose(LOSSY_ANSWER, -1, NULL, NULL);
        assert_status(dibs_once_finish(o, "done", 4, 7, NULL), DIBS_UNKNOWN);
        lossy_stop();
        if (!close)
            dibs_once_free(o);
        close_handle(a);
        once_expect(b, key, "done");
    }
}

/* The same for a key that was to be forgotten: asked again it is done, and nothing else is. */
static void a_forgetting_can_be_asked_again(void **state)
{
    dibs *a, *b = once_open();
    const char *key = fresh("forget");
    dibs_once *o;

    (void)state;
    a = open_with(&(dibs_options){.request_ms = 300});
    lossy_put_in(a);
    o = once_first(a, key, &(dibs_once_options){.lease_ms = 10 * SHORT_MS});
    lossy_lose(LOSSY_ANSWER, -1, NULL, NULL);
    assert_status(dibs_once_undo(o, NULL), DIBS_UNKNOWN);
    lossy_stop();
    assert_status(dibs_once_undo(o, NULL), DIBS_OK);
    dibs_once_free(o);
    o = once_first(a, key, &(dibs_once_options){.lease_ms = 10 * SHORT_MS});
    lossy_lose(LOSSY_ANSWER, -1, NULL, NULL);
    assert_status(dibs_once_undo(o, NULL), DIBS_UNKNOWN);
    lossy_stop();
    assert_status(dibs_once_finish(o, "x", 1, 0, NULL), DIBS_LOST);
    dibs_once_free(o);
    assert_status(once_answered(b, key, NULL), DIBS_OK);
}

/* What withdraws the beginning does not get through either, or it could be over before the other handle looks. */
static void lose_the_rest(void *data)
{
    (void)data;
    lossy_lose(LOSSY_REQUEST, -1, NULL, NULL);
}

/* Nobody was told to run it, so nobody has crashed. */
static void a_beginning_that_nobody_heard_of_is_withdrawn(void **state)
{
    dibs *a, *b = once_open();
    const char *key = fresh("unheard");
    dibs_once *o = (dibs_once *)1;

    (void)state;
    a = open_with(&(dibs_options){.request_ms = 300});
    lossy_put_in(a);
    lossy_lose(LOSSY_ANSWER, 1, lose_the_rest, NULL);
    assert_status(once_begin(a, key, &(dibs_once_options){.lease_ms = 60000}, &o), DIBS_UNKNOWN);
    assert_null(o);
    assert_status(once_answered(b, key, NULL), DIBS_RUNNING);
    lossy_stop();
    assert_true(wait_until(once_answers_with, &(once_asked){b, key, DIBS_OK}, LONG_MS));
}

static void deny_the_rest(void *data)
{
    (void)data;
    lossy_lose(LOSSY_DENIED, -1, NULL, NULL);
}

/* The repeat of a begin whose answer was lost is told something else, which says nothing about the first. */
static void a_beginning_that_was_denied_when_repeated_is_withdrawn(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("denied");
    dibs_once *o = (dibs_once *)1;

    (void)state;
    lossy_put_in(a);
    lossy_lose(LOSSY_ANSWER, 1, deny_the_rest, NULL);
    assert_status(once_begin(a, key, &(dibs_once_options){.lease_ms = 60000}, &o), DIBS_DENIED);
    assert_null(o);
    assert_status(once_answered(b, key, NULL), DIBS_RUNNING);
    lossy_stop();
    assert_true(wait_until(once_answers_with, &(once_asked){b, key, DIBS_OK}, LONG_MS));
}

/* The same when the handle is closed at once, as the command does it. */
static void a_beginning_that_nobody_heard_of_ends_with_its_handle(void **state)
{
    dibs *a, *b = once_open();
    const char *key = fresh("unheard");
    dibs_once *o = NULL;

    (void)state;
    a = open_with(&(dibs_options){.request_ms = 1000});
    lossy_put_in(a);
    lossy_lose(LOSSY_ANSWER, -1, NULL, NULL);
    assert_status(once_begin(a, key, &(dibs_once_options){.lease_ms = 60000}, &o), DIBS_UNKNOWN);
    lossy_stop();
    close_handle(a);
    assert_status(once_answered(b, key, NULL), DIBS_OK);
}

/* ---- Requests that arrive late ---------------------------------------------------------------- */

/* The network delivers the begin after the caller was told UNKNOWN and had it withdrawn. */
static void a_late_request_begins_nothing(void **state)
{
    dibs *b = once_open();

    (void)state;
    for (int close = 0; close < 2; close++) {
        const char *key = fresh("late");
        dibs *a = open_with(&(dibs_options){.request_ms = close ? 1000 : 300});
        dibs_once *o = NULL;
        lossy_put_in(a);
        lossy_lose(LOSSY_HELD, -1, NULL, NULL);
        assert_status(once_begin(a, key, NULL, &o), DIBS_UNKNOWN);
        lossy_stop();
        if (close)
            close_handle(a);
        else
            assert_true(wait_until(once_answers, &(int){1}, LONG_MS));
        assert_true(lossy_deliver(b) > 0);
        if (!close)
            close_handle(a); /* one lossy handle at a time */
        once_end(once_first(b, key, NULL), "first");
        once_expect(b, key, "first");
    }
}

/* A copy of the begin was lost on the way, another was answered; the run ended as forgotten. */
static void a_late_copy_begins_nothing_after_a_failure(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("late");
    dibs_once *o;

    (void)state;
    lossy_put_in(a);
    lossy_lose(LOSSY_HELD, 1, NULL, NULL);
    o = once_first(a, key, NULL);
    assert_status(dibs_once_undo(o, NULL), DIBS_OK);
    dibs_once_free(o);
    assert_int_equal(lossy_deliver(b), 1);
    once_end(once_first(b, key, NULL), "next");
    once_expect(b, key, "next");
}

/* The withdrawal finds the run of another, which is forgotten before the late request comes. */
static void a_late_request_begins_nothing_after_anothers_failure(void **state)
{
    dibs *a, *b = once_open();
    const char *key = fresh("late");
    dibs_once *o = NULL;

    (void)state;
    a = open_with(&(dibs_options){.request_ms = 300});
    lossy_put_in(a);
    lossy_lose(LOSSY_HELD, -1, NULL, NULL);
    assert_status(once_begin(a, key, NULL, &o), DIBS_UNKNOWN);
    o = once_first(b, key, NULL);
    lossy_stop();
    assert_true(wait_until(once_answers, &(int){1}, LONG_MS));
    assert_status(dibs_once_undo(o, NULL), DIBS_OK);
    dibs_once_free(o);
    assert_true(lossy_deliver(b) > 0);
    once_end(once_first(b, key, NULL), "next");
    once_expect(b, key, "next");
}

static void hold_the_rest(void *data)
{
    (void)data;
    lossy_lose(LOSSY_HELD, -1, NULL, NULL);
}

/* The key had been given back: the begin names the version of the free record. */
static void a_late_request_begins_nothing_on_a_free_key(void **state)
{
    dibs *a, *b = once_open();
    const char *key = fresh("late");
    dibs_once *o = once_first(b, key, NULL);
    dibs_status status = DIBS_UNAVAILABLE;
    int answers;

    (void)state;
    assert_status(dibs_once_undo(o, NULL), DIBS_OK);
    dibs_once_free(o);
    a = open_with(&(dibs_options){.request_ms = 300});
    lossy_put_in(a);
    for (int i = 0; i < 50 && status == DIBS_UNAVAILABLE; i++) { /* too slow for 300 ms */
        lossy_lose(LOSSY_LATE, 1, hold_the_rest, NULL);
        status = once_begin(a, key, NULL, &o);
    }
    assert_status(status, DIBS_UNKNOWN);
    answers = lossy_answers();
    lossy_stop();
    assert_true(wait_until(once_answers, &(int){answers + 2}, LONG_MS));
    assert_true(lossy_deliver(b) > 0);
    once_end(once_first(b, key, NULL), "next");
    once_expect(b, key, "next");
}

static void sleep_past_the_lease(void *data)
{
    sleep_ms(*(int *)data);
}

/* Nothing was run: the key is free again, and no crash is told. */
static void a_beginning_answered_after_its_lease_is_withdrawn(void **state)
{
    dibs *a, *b = once_open();
    const char *key = fresh("slow");
    dibs_once *o = (dibs_once *)1;
    int span = SHORT_MS + 500;

    (void)state;
    a = open_with(&(dibs_options){.request_ms = 300});
    lossy_put_in(a);
    lossy_lose(LOSSY_LATE, 1, sleep_past_the_lease, &span);
    assert_status(once_begin(a, key, &(dibs_once_options){.lease_ms = SHORT_MS}, &o),
                  DIBS_UNAVAILABLE);
    assert_null(o);
    assert_true(wait_until(once_answers_with, &(once_asked){b, key, DIBS_OK}, LONG_MS));
}

/* ---- Many at once ---------------------------------------------------------------------------- */

static char race_key[64];

static void new_key(race *r)
{
    snprintf(race_key, sizeof race_key, "%s", fresh("race"));
    (void)r;
}

/* Every fifth round all wait, and get the winner's result. */
static dibs_status compete(race *r, dibs *d)
{
    bool waits = r->round % 5 == 0;
    dibs_once *o = NULL;
    dibs_status status = dibs_once_begin(
        d, race_key, &(dibs_once_options){.wait_ms = waits ? LONG_MS : DIBS_NO_WAIT}, &o, NULL);

    if (status == DIBS_OK && dibs_once_finish(o, "won", 3, 0, NULL) != DIBS_OK)
        status = DIBS_LOST;
    if (status == DIBS_ALREADY && strcmp(dibs_once_result(o, NULL), "won") != 0)
        status = DIBS_CONFLICT;
    dibs_once_free(o);
    return status;
}

static void sixty_four_begin_and_one_runs(void **state)
{
    race r = {.prepare = new_key, .run = compete};

    (void)state;
    if (!the.can.cells)
        skip();
    for (int i = 0; i < RACE_HANDLES; i++)
        r.d[i] = open_handle();
    race_run(&r);
    for (int round = 0; round < RACE_ROUNDS; round++) {
        int answered_done = atomic_load(&r.count[round][DIBS_ALREADY]);
        int answered_running = atomic_load(&r.count[round][DIBS_RUNNING]);
        assert_int_equal(r.count[round][DIBS_OK], 1);
        assert_int_equal(answered_done + answered_running, RACE_THREADS - 1);
        assert_true(round % 5 != 0 || answered_running == 0);
    }
}

/* Of many who find it dead, one takes over. */
static void kill_it(race *r)
{
    new_key(r);
    dibs_once_free(once_first(r->d[0], race_key, NULL));
}

static dibs_status take_over(race *r, dibs *d)
{
    dibs_once *o = NULL;
    dibs_status status = dibs_once_begin(
        d, race_key, &(dibs_once_options){.wait_ms = DIBS_NO_WAIT, .on_crash = DIBS_CRASH_RERUN},
        &o, NULL);

    (void)r;
    if (status == DIBS_OK && dibs_once_finish(o, "won", 3, 0, NULL) != DIBS_OK)
        status = DIBS_LOST;
    dibs_once_free(o);
    return status;
}

static void one_of_many_takes_over(void **state)
{
    race r = {.prepare = kill_it, .run = take_over, .rounds = 10};

    (void)state;
    if (!the.can.cells)
        skip();
    for (int i = 0; i < RACE_HANDLES; i++)
        r.d[i] = open_handle();
    race_run(&r);
    for (int round = 0; round < r.rounds; round++) {
        assert_int_equal(r.count[round][DIBS_OK], 1);
        assert_int_equal(r.count[round][DIBS_ALREADY] + r.count[round][DIBS_RUNNING],
                         RACE_THREADS - 1);
    }
}

static const struct CMUnitTest tests[] = {
    CASE(the_first_runs_and_others_get_the_answer),
    CASE(a_result_may_be_nothing_or_empty),
    CASE(scopes_and_keys_do_not_mix),
    CASE(another_fingerprint_is_refused),
    CASE(a_failure_is_kept_or_forgotten),
    CASE(wrong_options_are_refused),
    CASE(results_up_to_the_limit_fit),
    CASE(a_result_ends_and_a_tombstone_says_so),
    CASE(a_result_kept_for_ever_has_no_end),
    CASE(lost_answers_change_nothing),
    CASE(a_finish_can_be_asked_again),
    CASE(a_finish_stays_when_its_run_is_let_go),
    CASE(a_forgetting_can_be_asked_again),
    CASE(a_beginning_that_nobody_heard_of_is_withdrawn),
    CASE(a_beginning_that_was_denied_when_repeated_is_withdrawn),
    CASE(a_beginning_that_nobody_heard_of_ends_with_its_handle),
    CASE(a_late_request_begins_nothing),
    CASE(a_late_copy_begins_nothing_after_a_failure),
    CASE(a_late_request_begins_nothing_after_anothers_failure),
    CASE(a_late_request_begins_nothing_on_a_free_key),
    CASE(a_beginning_answered_after_its_lease_is_withdrawn),
    CASE(sixty_four_begin_and_one_runs),
    CASE(one_of_many_takes_over),
};

CASES(once_cases, tests);
