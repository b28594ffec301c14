/* Once: the first runs, duplicates are told, the dead are the caller's choice, the late are refused. */
#define _GNU_SOURCE
#include "conformance/race.h"
#include "conformance/suite.h"
#include "support/lossy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dibs *open_onces(void)
{
    if (!the.can.cells)
        skip();
    return open_handle();
}

/* Does not wait unless the options say so. */
static dibs_status begin(dibs *d, const char *key, const dibs_once_options *options,
                         dibs_once **out)
{
    dibs_once_options o = options ? *options : (dibs_once_options){0};

    if (o.wait_ms == 0)
        o.wait_ms = DIBS_NO_WAIT;
    return dibs_once_begin(d, key, &o, out, NULL);
}

static dibs_once *first(dibs *d, const char *key, const dibs_once_options *options)
{
    dibs_once *o = NULL;

    assert_status(begin(d, key, options, &o), DIBS_OK);
    assert_non_null(o);
    assert_true(dibs_once_held(o));
    return o;
}

/* What a duplicate is told. */
static dibs_status told(dibs *d, const char *key, const dibs_once_options *options)
{
    dibs_once *o = NULL;
    dibs_status status = begin(d, key, options, &o);

    dibs_once_free(o);
    return status;
}

static void end(dibs_once *o, const char *result)
{
    dibs_error err = {0};

    if (dibs_once_finish(o, result, result ? strlen(result) : 0, 7, &err) != DIBS_OK)
        fail_msg("%s", err.message);
    dibs_once_free(o);
}

static void expect_result(dibs *d, const char *key, const char *result)
{
    dibs_once *o = NULL;
    size_t size = 99;

    assert_status(begin(d, key, NULL, &o), DIBS_ALREADY);
    if (result) {
        assert_string_equal(dibs_once_result(o, &size), result);
        assert_int_equal(size, strlen(result));
    } else {
        assert_null(dibs_once_result(o, &size));
        assert_int_equal(size, 0);
    }
    assert_int_equal(dibs_once_code(o), 7);
    dibs_once_free(o);
}

/* ---- The usual ------------------------------------------------------------------------------- */

static void the_first_runs_and_others_are_told(void **state)
{
    dibs *a = open_onces(), *b = open_handle();
    const char *key = fresh("pay");
    dibs_once *o = first(a, key, &(dibs_once_options){.owner = "worker 1"}), *other = NULL;
    dibs_party who;

    (void)state;
    assert_true(dibs_once_fence(o) > 0);
    assert_false(dibs_once_again(o));
    assert_status(begin(b, key, NULL, &other), DIBS_RUNNING);
    dibs_once_runner(other, &who);
    assert_string_equal(who.owner, "worker 1");
    assert_int_equal(who.fence, dibs_once_fence(o));
    assert_in_range(who.left_ms, 20000, 30000);
    assert_true(who.pid > 0 && who.since_ms > 0 && who.host[0]);
    assert_false(dibs_once_held(other));
    assert_null(dibs_once_result(other, NULL));
    assert_status(dibs_once_finish(other, NULL, 0, 0, NULL), DIBS_INVALID);
    dibs_once_free(other);
    end(o, "receipt");
    for (int i = 0; i < 3; i++)
        expect_result(b, key, "receipt");
    expect_result(a, key, "receipt");
}

static void a_result_may_be_nothing_or_empty(void **state)
{
    dibs *d = open_onces();
    const char *none = fresh("none"), *empty = fresh("empty");

    (void)state;
    end(first(d, none, NULL), NULL);
    expect_result(d, none, NULL);
    end(first(d, empty, NULL), "");
    expect_result(d, empty, "");
}

static void scopes_and_keys_do_not_mix(void **state)
{
    dibs *d = open_onces();
    char tall[DIBS_NAME_MAX + 1], key[64];

    (void)state;
    snprintf(key, sizeof key, "%s", fresh("mix"));
    end(first(d, key, &(dibs_once_options){.scope = "a"}), "1");
    assert_status(told(d, key, &(dibs_once_options){.scope = "b"}), DIBS_OK); /* and abandoned */
    end(first(d, "bc", &(dibs_once_options){.scope = "a"}), "2");
    end(first(d, "c", &(dibs_once_options){.scope = "ab"}), "3");
    end(first(d, "1:ab", NULL), "4");
    end(first(d, "b", &(dibs_once_options){.scope = "1:a"}), "5");
    memset(tall, 'k', sizeof tall);
    tall[DIBS_NAME_MAX] = '\0';
    end(first(d, tall, &(dibs_once_options){.scope = tall}), "6");
    assert_status(told(d, tall, &(dibs_once_options){.scope = tall}), DIBS_ALREADY);
}

static void another_fingerprint_is_refused(void **state)
{
    dibs *d = open_onces();
    const char *key = fresh("print"), *plain = fresh("plain");
    dibs_once_options x = {.fingerprint = "x\0y", .fingerprint_size = 3};
    dibs_once_options z = {.fingerprint = "x\0z", .fingerprint_size = 3};
    dibs_once *o = first(d, key, &x);

    (void)state;
    assert_status(told(d, key, &z), DIBS_MISMATCH);
    assert_status(told(d, key, NULL), DIBS_MISMATCH);
    assert_status(told(d, key, &x), DIBS_RUNNING);
    end(o, "done");
    assert_status(told(d, key, &z), DIBS_MISMATCH);
    assert_status(told(d, key, &x), DIBS_ALREADY);
    end(first(d, plain, NULL), NULL);
    assert_status(told(d, plain, &x), DIBS_MISMATCH);
}

static void a_failure_is_kept_or_forgotten(void **state)
{
    dibs *d = open_onces();
    const char *key = fresh("fail");
    dibs_once *o = first(d, key, NULL);
    uint64_t fence = dibs_once_fence(o);

    (void)state;
    assert_status(dibs_once_fail(o, false, NULL, 0, 1, NULL), DIBS_OK);
    dibs_once_free(o);
    o = first(d, key, NULL);
    assert_true(dibs_once_fence(o) > fence);
    assert_false(dibs_once_again(o));
    assert_status(dibs_once_fail(o, true, "no money", 8, 3, NULL), DIBS_OK);
    assert_status(dibs_once_fail(o, true, "no money", 8, 3, NULL), DIBS_INVALID);
    dibs_once_free(o);
    assert_status(begin(d, key, NULL, &o), DIBS_ALREADY);
    assert_true(dibs_once_failed(o));
    assert_int_equal(dibs_once_code(o), 3);
    assert_string_equal(dibs_once_result(o, NULL), "no money");
    dibs_once_free(o);
}

static void wrong_options_are_told(void **state)
{
    dibs *d = open_onces();
    dibs_once *o = (dibs_once *)1;
    char name[DIBS_NAME_MAX + 2];

    (void)state;
    memset(name, 'x', sizeof name);
    name[DIBS_NAME_MAX + 1] = '\0';
    assert_status(dibs_once_begin(d, "", NULL, &o, NULL), DIBS_INVALID);
    assert_null(o);
    assert_status(told(d, NULL, NULL), DIBS_INVALID);
    assert_status(told(d, name, NULL), DIBS_INVALID);
    assert_status(told(d, "k", &(dibs_once_options){.scope = name}), DIBS_INVALID);
    assert_status(told(d, "k", &(dibs_once_options){.lease_ms = 1}), DIBS_INVALID);
    assert_status(told(d, "k", &(dibs_once_options){.keep_ms = -2}), DIBS_INVALID);
    assert_status(told(d, "k", &(dibs_once_options){.tombstone_ms = -2}), DIBS_INVALID);
    assert_status(told(d, "k", &(dibs_once_options){.wait_ms = -2}), DIBS_INVALID);
    assert_status(told(d, "k", &(dibs_once_options){.owner = ""}), DIBS_INVALID);
    assert_status(told(d, "k", &(dibs_once_options){.on_crash = DIBS_CRASH_ASK}), DIBS_INVALID);
    assert_status(told(d, "k", &(dibs_once_options){.fingerprint = name, .fingerprint_size = 256}),
                  DIBS_INVALID);
    dibs_once_free(NULL);
}

static void results_up_to_the_limit_fit(void **state)
{
    dibs *d = open_onces();
    size_t most = the.can.value_max, size = 0;
    const char *key = fresh("large");
    dibs_once *o = first(d, key, NULL);
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
    assert_status(begin(d, key, NULL, &o), DIBS_ALREADY);
    assert_memory_equal(dibs_once_result(o, &size), large, most);
    assert_int_equal(size, most);
    dibs_once_free(o);
    free(large);
}

/* ---- Retention ------------------------------------------------------------------------------- */

typedef struct asked {
    dibs *d;
    const char *key;
    dibs_status want;
} asked;

static bool is_told(void *ctx)
{
    asked *a = ctx;

    return told(a->d, a->key, NULL) == a->want;
}

static void a_result_ends_and_a_tombstone_says_so(void **state)
{
    dibs *d = open_onces();
    const char *brief = fresh("brief"), *tomb = fresh("tomb");
    dibs_once *o = first(d, brief, &(dibs_once_options){.keep_ms = SHORT_MS});
    dibs_party who;

    (void)state;
    end(o, "x");
    o = first(d, tomb, &(dibs_once_options){.keep_ms = SHORT_MS, .tombstone_ms = DIBS_FOREVER});
    end(o, "x");
    if (begin(d, tomb, NULL, &o) == DIBS_ALREADY) {
        dibs_once_runner(o, &who);
        assert_in_range(who.left_ms, 0, SHORT_MS);
    }
    dibs_once_free(o);
    assert_true(wait_until(is_told, &(asked){d, tomb, DIBS_EXPIRED}, LONG_MS));
    assert_status(told(d, tomb, NULL), DIBS_EXPIRED);
    assert_true(wait_until(is_told, &(asked){d, brief, DIBS_OK}, LONG_MS));
}

static void a_result_kept_for_ever_has_no_end(void **state)
{
    dibs *d = open_onces();
    const char *key = fresh("ever");
    dibs_once *o = first(d, key, &(dibs_once_options){.keep_ms = DIBS_FOREVER});
    dibs_party who;

    (void)state;
    end(o, "x");
    assert_status(begin(d, key, NULL, &o), DIBS_ALREADY);
    dibs_once_runner(o, &who);
    assert_int_equal(who.left_ms, DIBS_FOREVER);
    dibs_once_free(o);
}

/* ---- Crashes --------------------------------------------------------------------------------- */

/* A runner whose renewals are lost on the way is as good as dead: its lease ends. */
static dibs_once *begin_and_fall_silent(dibs *d, const char *key, const dibs_once_options *options)
{
    dibs_once_options o = options ? *options : (dibs_once_options){0};
    dibs_once *run;

    lossy_put_in(d);
    o.lease_ms = 2 * SHORT_MS;
    run = first(d, key, &o);
    lossy_lose(LOSSY_REQUEST, -1, NULL, NULL);
    return run;
}

static bool is_dead(void *ctx)
{
    asked *a = ctx;

    return told(a->d, a->key, NULL) == DIBS_CRASHED;
}

static void a_dead_runner_is_refused_or_run_again(void **state)
{
    dibs *a = open_onces(), *b = open_handle();
    const char *key = fresh("crash");
    dibs_once *late = begin_and_fall_silent(a, key, NULL), *o = NULL;
    uint64_t fence = dibs_once_fence(late);
    dibs_party who;

    (void)state;
    assert_true(wait_until(is_dead, &(asked){b, key, 0}, LONG_MS));
    assert_false(dibs_once_held(late)); /* told before anybody else is */
    assert_status(begin(b, key, NULL, &o), DIBS_CRASHED);
    dibs_once_runner(o, &who);
    assert_int_equal(who.fence, fence);
    assert_int_equal(who.left_ms, 0);
    dibs_once_free(o);
    o = first(b, key, &(dibs_once_options){.on_crash = DIBS_CRASH_RERUN});
    assert_true(dibs_once_again(o));
    assert_true(dibs_once_fence(o) > fence);
    lossy_stop();
    assert_status(dibs_once_step(late, "s", NULL, 0, NULL), DIBS_LOST);
    assert_status(dibs_once_finish(late, "late", 4, 0, NULL), DIBS_LOST);
    assert_status(dibs_once_fail(late, false, NULL, 0, 0, NULL), DIBS_LOST);
    end(o, "in time");
    assert_status(dibs_once_finish(late, "late", 4, 0, NULL), DIBS_LOST);
    dibs_once_free(late);
    lossy_stop();
    expect_result(b, key, "in time");
}

/* Its record was forgotten by the one who took over: the late one must not make it anew. */
static void a_late_finish_without_a_record_is_refused(void **state)
{
    dibs *a = open_onces(), *b = open_handle();
    const char *key = fresh("gone");
    dibs_once *late = begin_and_fall_silent(a, key, NULL), *o;

    (void)state;
    assert_true(wait_until(is_dead, &(asked){b, key, 0}, LONG_MS));
    o = first(b, key, &(dibs_once_options){.on_crash = DIBS_CRASH_RERUN});
    assert_status(dibs_once_fail(o, false, NULL, 0, 0, NULL), DIBS_OK);
    dibs_once_free(o);
    lossy_stop();
    assert_status(dibs_once_finish(late, "late", 4, 0, NULL), DIBS_LOST);
    dibs_once_free(late);
    lossy_stop();
    assert_status(told(b, key, NULL), DIBS_OK);
}

static bool answer;

static bool decide(void *data, const dibs_once *o)
{
    dibs_party who;
    size_t size = 0;

    dibs_once_runner(o, &who);
    assert_string_equal(who.owner, "dead");
    assert_string_equal(dibs_once_step_data(o, "one", &size), "1");
    ++*(int *)data;
    return answer;
}

static void the_caller_may_be_asked(void **state)
{
    dibs *d = open_onces();
    const char *key = fresh("ask");
    int asked_for = 0;
    dibs_once_options o = {.on_crash = DIBS_CRASH_ASK, .ask = decide, .data = &asked_for};
    dibs_once *run = first(d, key, &(dibs_once_options){.owner = "dead"});

    (void)state;
    assert_status(dibs_once_step(run, "one", "1", 1, NULL), DIBS_OK);
    assert_status(dibs_once_abandon(run, NULL), DIBS_OK);
    dibs_once_free(run);
    answer = false;
    assert_status(told(d, key, &o), DIBS_CRASHED);
    assert_int_equal(asked_for, 1);
    answer = true;
    run = first(d, key, &o);
    assert_int_equal(asked_for, 2);
    end(run, "asked");
}

static void an_abandoned_run_is_dead_at_once(void **state)
{
    dibs *a = open_onces(), *b = open_handle();
    const char *key = fresh("abandon"), *freed = fresh("freed"), *closed = fresh("closed");
    dibs_once *o = first(a, key, NULL);

    (void)state;
    assert_status(dibs_once_abandon(o, NULL), DIBS_OK);
    assert_false(dibs_once_held(o));
    dibs_once_free(o);
    assert_status(told(b, key, NULL), DIBS_CRASHED);
    dibs_once_free(first(a, freed, NULL));
    assert_status(told(b, freed, NULL), DIBS_CRASHED);
    first(a, closed, NULL);
    close_handle(a);
    assert_status(told(b, closed, NULL), DIBS_CRASHED);
}

/* ---- Leases ---------------------------------------------------------------------------------- */

static void a_run_is_renewed(void **state)
{
    dibs *a = open_onces(), *b = open_handle();
    const char *key = fresh("renew");
    dibs_once *o = first(a, key, &(dibs_once_options){.lease_ms = 4 * SHORT_MS});
    int64_t begin_at = clock_ms();

    (void)state;
    assert_status(dibs_once_step(o, "s", "data", 4, NULL), DIBS_OK);
    while (clock_ms() < begin_at + 6 * SHORT_MS) {
        assert_true(dibs_once_held(o));
        assert_true(dibs_once_remaining_ms(o) > 0);
        assert_status(told(b, key, NULL), DIBS_RUNNING);
        sleep_ms(50);
    }
    assert_string_equal(dibs_once_step_data(o, "s", NULL), "data");
    end(o, "renewed");
    expect_result(b, key, "renewed");
}

static void note_run_lost(void *data, dibs_once *o)
{
    loss_note *n = data;

    n->thread = pthread_self();
    atomic_store(&n->why, dibs_once_held(o));
    atomic_fetch_add(&n->count, 1);
}

static void a_loss_is_told(void **state)
{
    dibs *d = open_onces();
    loss_note lost = {0};
    dibs_once *o = begin_and_fall_silent(
        d, fresh("lost"), &(dibs_once_options){.on_lost = note_run_lost, .data = &lost});

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

static void a_loss_is_told_by_dispatch(void **state)
{
    dibs *d;
    loss_note lost = {0};
    dibs_once *o;
    int64_t until = clock_ms() + LONG_MS;

    (void)state;
    if (!the.can.cells)
        skip();
    d = open_with(&(dibs_options){.dispatch_only = true});
    o = begin_and_fall_silent(d, fresh("dispatch"),
                              &(dibs_once_options){.on_lost = note_run_lost, .data = &lost});
    while (atomic_load(&lost.count) == 0 && clock_ms() < until) {
        dibs_dispatch(d);
        sleep_ms(5);
    }
    assert_int_equal(atomic_load(&lost.count), 1);
    assert_true(pthread_equal(lost.thread, pthread_self()));
    dibs_once_free(o);
    lossy_stop();
}

/* Nobody took over: what was done may still be told. */
static void a_late_finish_counts_if_nobody_took_over(void **state)
{
    dibs *a = open_onces(), *b = open_handle();
    const char *key = fresh("late");
    dibs_once *o = begin_and_fall_silent(a, key, NULL);

    (void)state;
    assert_true(wait_until(is_dead, &(asked){b, key, 0}, LONG_MS));
    lossy_stop();
    assert_status(dibs_once_step(o, "s", NULL, 0, NULL), DIBS_LOST);
    end(o, "late");
    lossy_stop();
    expect_result(b, key, "late");
}

static void sleep_through(void *data)
{
    (void)data;
    sleep_ms(3 * SHORT_MS + 200);
}

/* Stopped while the answer lay in the socket: what comes back is held, or is not called ours. */
static void a_late_answer_is_no_dead_run(void **state)
{
    dibs *a = open_onces(), *b = open_handle();
    const char *key = fresh("slow");
    dibs_once *o;

    (void)state;
    lossy_put_in(a);
    lossy_lose(LOSSY_LATE, 1, sleep_through, NULL);
    o = first(a, key, &(dibs_once_options){.lease_ms = 3 * SHORT_MS});
    assert_false(dibs_once_again(o));
    end(o, "alive");
    expect_result(b, key, "alive");
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static void work_goes_on_where_it_stopped(void **state)
{
    dibs *a = open_onces(), *b = open_handle();
    const char *key = fresh("steps");
    dibs_once *o = first(a, key, NULL);
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
    o = first(b, key, &(dibs_once_options){.on_crash = DIBS_CRASH_RERUN});
    assert_string_equal(dibs_once_step_data(o, "reserved", &size), "seat 4");
    assert_int_equal(size, 6);
    assert_non_null(dibs_once_step_data(o, "charged", &size));
    assert_int_equal(size, 0);
    assert_null(dibs_once_step_data(o, "sent", &size));
    assert_status(dibs_once_step(o, "sent", "1", 1, NULL), DIBS_OK);
    assert_status(dibs_once_fail(o, false, NULL, 0, 0, NULL), DIBS_OK);
    dibs_once_free(o);
    o = first(a, key, NULL); /* forgotten: from the beginning */
    assert_null(dibs_once_step_data(o, "reserved", &size));
    end(o, NULL);
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
        dibs_once_fail(o, false, NULL, 0, 0, NULL);
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
    dibs *a = open_onces(), *b = open_handle();
    const char *key = fresh("wait"), *failed = fresh("wait");
    dibs_once *o = first(a, key, NULL), *p = first(a, failed, NULL);
    waiter w[2];

    (void)state;
    start_waiter(&w[0], b, key, NULL);
    start_waiter(&w[1], b, failed, NULL);
    sleep_ms(100); /* they may be waiting by now, or not yet: both are to end well */
    assert_false(waiter_is_done(&w[0]));
    end(o, "waited for");
    assert_status(dibs_once_fail(p, false, NULL, 0, 0, NULL), DIBS_OK);
    dibs_once_free(p);
    join_waiter(&w[0]);
    join_waiter(&w[1]);
    assert_status(w[0].status, DIBS_ALREADY);
    assert_string_equal(w[0].result, "waited for");
    assert_status(w[1].status, DIBS_OK); /* its turn, as the first */
    assert_false(w[1].again);
}

static void a_wait_has_a_bound(void **state)
{
    dibs *d = open_onces();
    const char *key = fresh("bound");
    dibs_once *o = first(d, key, NULL), *other = NULL;
    int64_t begin_at = clock_ms();

    (void)state;
    assert_status(begin(d, key, &(dibs_once_options){.wait_ms = 300}, &other), DIBS_RUNNING);
    assert_in_range(clock_ms() - begin_at, 299, 300 + SOON_MS);
    assert_status(dibs_once_wait(other, 100, NULL), DIBS_RUNNING);
    assert_status(dibs_once_wait(other, DIBS_NO_WAIT, NULL), DIBS_RUNNING);
    assert_status(dibs_once_wait(other, -7, NULL), DIBS_INVALID);
    assert_status(dibs_once_wait(o, 100, NULL), DIBS_INVALID);
    end(o, "done");
    assert_status(dibs_once_wait(other, 0, NULL), DIBS_ALREADY);
    assert_string_equal(dibs_once_result(other, NULL), "done");
    assert_status(dibs_once_wait(other, 0, NULL), DIBS_ALREADY);
    dibs_once_free(other);
}

static void a_wait_ends_with_the_runners_lease(void **state)
{
    dibs *a = open_onces(), *b = open_handle();
    const char *key = fresh("dies");
    dibs_once *late = begin_and_fall_silent(a, key, NULL);
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
    dibs *a = open_onces(), *b = open_handle(), *c = open_handle();
    const char *key = fresh("cancel");
    dibs_once *o = first(a, key, NULL);
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
    end(o, "not cancelled");
}

/* ---- Lost answers ---------------------------------------------------------------------------- */

/* At every command of a whole life, in both ways. */
static void lost_answers_change_nothing(void **state)
{
    dibs *a = open_onces(), *b = open_handle();

    (void)state;
    lossy_put_in(a);
    for (int way = LOSSY_ANSWER; way <= LOSSY_REQUEST; way++) {
        const char *key = fresh("lossy"), *again = fresh("lossy");
        dibs_once *o;
        lossy_lose((lossy_way)way, 2, NULL, NULL);
        o = first(a, key, NULL);
        assert_false(dibs_once_again(o));
        lossy_lose((lossy_way)way, 2, NULL, NULL);
        assert_status(dibs_once_step(o, "s", "1", 1, NULL), DIBS_OK);
        lossy_lose((lossy_way)way, 2, NULL, NULL);
        end(o, "told");
        expect_result(b, key, "told");
        lossy_lose((lossy_way)way, 2, NULL, NULL);
        o = first(a, again, NULL);
        lossy_lose((lossy_way)way, 1, NULL, NULL);
        assert_status(dibs_once_fail(o, false, NULL, 0, 0, NULL), DIBS_OK);
        dibs_once_free(o);
        assert_status(told(b, again, NULL), DIBS_OK);
    }
    lossy_stop();
}

/* The answer to the finish never comes, but the finish went through: asked again, it is done. */
static void a_finish_can_be_asked_again(void **state)
{
    dibs *a, *b = open_onces();
    const char *key = fresh("finish");
    dibs_once *o;

    (void)state;
    a = open_with(&(dibs_options){.request_ms = 300});
    lossy_put_in(a);
    o = first(a, key, &(dibs_once_options){.lease_ms = 10 * SHORT_MS});
    lossy_lose(LOSSY_ANSWER, -1, NULL, NULL);
    assert_status(dibs_once_finish(o, "done", 4, 7, NULL), DIBS_UNKNOWN);
    expect_result(b, key, "done");
    lossy_stop();
    assert_status(dibs_once_finish(o, "done", 4, 7, NULL), DIBS_OK);
    dibs_once_free(o);
    lossy_stop();
    expect_result(b, key, "done");
}

/* The same for a key that was to be forgotten: asked again it is done, and nothing else is. */
static void a_forgetting_can_be_asked_again(void **state)
{
    dibs *a, *b = open_onces();
    const char *key = fresh("forget");
    dibs_once *o;

    (void)state;
    a = open_with(&(dibs_options){.request_ms = 300});
    lossy_put_in(a);
    o = first(a, key, &(dibs_once_options){.lease_ms = 10 * SHORT_MS});
    lossy_lose(LOSSY_ANSWER, -1, NULL, NULL);
    assert_status(dibs_once_fail(o, false, NULL, 0, 0, NULL), DIBS_UNKNOWN);
    lossy_stop();
    assert_status(dibs_once_fail(o, false, NULL, 0, 0, NULL), DIBS_OK);
    dibs_once_free(o);
    o = first(a, key, &(dibs_once_options){.lease_ms = 10 * SHORT_MS});
    lossy_lose(LOSSY_ANSWER, -1, NULL, NULL);
    assert_status(dibs_once_fail(o, false, NULL, 0, 0, NULL), DIBS_UNKNOWN);
    lossy_stop();
    assert_status(dibs_once_finish(o, "x", 1, 0, NULL), DIBS_LOST);
    dibs_once_free(o);
    assert_status(told(b, key, NULL), DIBS_OK);
}

/* Nobody was told to run it, so nobody has crashed. */
static void a_beginning_that_nobody_heard_of_is_withdrawn(void **state)
{
    dibs *a, *b = open_onces();
    const char *key = fresh("unheard");
    dibs_once *o = (dibs_once *)1;

    (void)state;
    a = open_with(&(dibs_options){.request_ms = 300});
    lossy_put_in(a);
    lossy_lose(LOSSY_ANSWER, -1, NULL, NULL);
    assert_status(begin(a, key, &(dibs_once_options){.lease_ms = 60000}, &o), DIBS_UNKNOWN);
    assert_null(o);
    assert_status(told(b, key, NULL), DIBS_RUNNING);
    lossy_stop();
    assert_true(wait_until(is_told, &(asked){b, key, DIBS_OK}, LONG_MS));
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
        int told_done = atomic_load(&r.count[round][DIBS_ALREADY]);
        int told_running = atomic_load(&r.count[round][DIBS_RUNNING]);
        assert_int_equal(r.count[round][DIBS_OK], 1);
        assert_int_equal(told_done + told_running, RACE_THREADS - 1);
        assert_true(round % 5 != 0 || told_running == 0);
    }
}

/* Of many who find it dead, one takes over. */
static void kill_it(race *r)
{
    new_key(r);
    dibs_once_free(first(r->d[0], race_key, NULL));
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
    CASE(the_first_runs_and_others_are_told),
    CASE(a_result_may_be_nothing_or_empty),
    CASE(scopes_and_keys_do_not_mix),
    CASE(another_fingerprint_is_refused),
    CASE(a_failure_is_kept_or_forgotten),
    CASE(wrong_options_are_told),
    CASE(results_up_to_the_limit_fit),
    CASE(a_result_ends_and_a_tombstone_says_so),
    CASE(a_result_kept_for_ever_has_no_end),
    CASE(a_dead_runner_is_refused_or_run_again),
    CASE(a_late_finish_without_a_record_is_refused),
    CASE(the_caller_may_be_asked),
    CASE(an_abandoned_run_is_dead_at_once),
    CASE(a_run_is_renewed),
    CASE(a_loss_is_told),
    CASE(a_loss_is_told_by_dispatch),
    CASE(a_late_finish_counts_if_nobody_took_over),
    CASE(a_late_answer_is_no_dead_run),
    CASE(work_goes_on_where_it_stopped),
    CASE(a_wait_ends_with_the_run),
    CASE(a_wait_has_a_bound),
    CASE(a_wait_ends_with_the_runners_lease),
    CASE(a_wait_can_be_cancelled),
    CASE(lost_answers_change_nothing),
    CASE(a_finish_can_be_asked_again),
    CASE(a_forgetting_can_be_asked_again),
    CASE(a_beginning_that_nobody_heard_of_is_withdrawn),
    CASE(sixty_four_begin_and_one_runs),
    CASE(one_of_many_takes_over),
};

CASES(once_cases, tests);
