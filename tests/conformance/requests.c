/* Locks by request: waiting without a thread each. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What became of one request. */
typedef struct outcome {
    int calls;
    dibs_status status;
    dibs_grant *g;
    uint64_t fence;
    int order; /* the how-manieth */
    bool unlock;
} outcome;

static int outcomes;

static void note_outcome(void *data, dibs_status status, dibs_grant *g, const dibs_error *err)
{
    outcome *o = data;

    (void)err;
    o->calls++;
    o->status = status;
    o->g = g;
    o->fence = g ? dibs_grant_fence(g) : 0;
    o->order = outcomes++;
    if (g && o->unlock)
        unlock(g);
}

static uint64_t start(dibs *d, const char *name, const dibs_lock_options *options, outcome *o)
{
    uint64_t t = 0;
    dibs_error err = {0};

    if (start_lock(d, name, options, note_outcome, o, &t, &err) != DIBS_OK)
        fail_msg("start %s: %s", name, err.message);
    assert_true(t != 0);
    return t;
}

/* Takes outcomes until `o` is there. */
static bool settle(dibs *d, const outcome *o, int64_t ms)
{
    int64_t end = clock_ms() + ms;

    while (o->calls == 0 && clock_ms() < end) {
        struct pollfd p = {.fd = dibs_fd(d), .events = POLLIN};
        poll(&p, 1, (int)(end - clock_ms()));
        take_all(d);
    }
    return o->calls > 0;
}

static size_t count_threads(void)
{
    DIR *dir = opendir("/proc/self/task");
    size_t n = 0;

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static void a_free_lock_is_an_outcome(void **state)
{
    dibs *d = open_handle();
    outcome o = {0};

    (void)state;
    start(d, fresh("request"), NULL, &o);
    assert_int_equal(o.calls, 0); /* never from inside the call */
    assert_true(settle(d, &o, SOON_MS));
    assert_status(o.status, DIBS_OK);
    assert_true(dibs_grant_held(o.g));
    assert_status(unlock(o.g), DIBS_OK);
    assert_int_equal(take_all(d), 0);
    assert_int_equal(o.calls, 1);
}

static void a_request_is_its_own_owner(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("own");
    outcome o = {0}, p = {0};
    dibs_grant *g = take(d, name, NULL);

    (void)state;
    start(d, name, &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT}, &o);
    start(d, name, NULL, &p);
    assert_true(settle(d, &o, SOON_MS));
    assert_status(o.status, DIBS_BUSY);
    assert_null(o.g);
    unlock(g);
    assert_true(settle(d, &p, SOON_MS));
    assert_status(p.status, DIBS_OK);
    unlock(p.g);
}

static void a_named_request_can_reenter(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("named");
    dibs_lock_options by_name = {.owner = "me"};
    dibs_grant *g = take(d, name, &by_name);
    outcome o = {0};

    (void)state;
    start(d, name, &by_name, &o);
    assert_true(settle(d, &o, SOON_MS));
    assert_ptr_equal(o.g, g);
    unlock(g);
    assert_true(dibs_grant_held(g));
    unlock(g);
}

static void a_bounded_request_ends(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("bounded-request");
    dibs_grant *g = take(a, name, NULL);
    outcome o = {0};
    int64_t begin = clock_ms();

    (void)state;
    start(b, name, &(dibs_lock_options){.wait_ms = 200}, &o);
    assert_true(settle(b, &o, 200 + SOON_MS));
    assert_status(o.status, DIBS_BUSY);
    assert_in_range(clock_ms() - begin, 199, 200 + SOON_MS);
    wait_for_queue(a, name, 0);
    unlock(g);
}

static void a_request_is_stopped(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("cancel-request");
    dibs_grant *g = take(a, name, NULL);
    outcome o[3] = {{0}};
    uint64_t t[3];

    (void)state;
    for (int i = 0; i < 3; i++)
        t[i] = start(b, name, NULL, &o[i]);
    wait_for_queue(a, name, 3);
    dibs_stop(b, t[1]);
    assert_true(settle(b, &o[1], SOON_MS));
    assert_status(o[1].status, DIBS_CANCELLED);
    wait_for_queue(a, name, 2);
    unlock(g);
    assert_true(settle(b, &o[0], SOON_MS));
    assert_status(o[0].status, DIBS_OK);
    dibs_cancel(b, name);
    assert_true(settle(b, &o[2], SOON_MS));
    assert_status(o[2].status, DIBS_CANCELLED);
    unlock(o[0].g);
    unlock(take(a, name, NULL)); /* the engine hears of a stopped request a moment later */
}

static void requests_that_nobody_took_are_given_back(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("close-request");
    dibs_grant *g = take(a, name, NULL);
    outcome o[4] = {{0}};

    (void)state;
    for (int i = 0; i < 3; i++)
        start(b, name, NULL, &o[i]);
    start(b, fresh("free"), NULL, &o[3]); /* granted, and never taken */
    wait_for_queue(a, name, 3);
    unlock(g);
    wait_for_queue(a, name, 2); /* the first has it and does not know */
    close_handle(b);
    assert_status(try_lock(a, name), DIBS_OK);
    wait_for_queue(a, name, 0);
}

static void an_invalid_request_is_refused_at_once(void **state)
{
    dibs *d = open_handle();
    uint64_t t = 0;
    outcome o = {0};

    (void)state;
    assert_status(start_lock(d, "", NULL, note_outcome, &o, &t, NULL), DIBS_INVALID);
    assert_int_equal(t, 0);
    assert_int_equal(take_all(d), 0);
    assert_int_equal(o.calls, 0);
}

static void conflicts_are_reported(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("request-slots");
    outcome o = {0};

    (void)state;
    dibs_grant *g = take(d, name, &(dibs_lock_options){.slots = 3}); /* idle, it may be forgotten */
    start(d, name, &(dibs_lock_options){.slots = 2}, &o);
    assert_true(settle(d, &o, SOON_MS));
    assert_status(o.status, DIBS_MISMATCH);
    unlock(g);
}

/* Takes outcomes until there is one more, whichever. */
static bool more_are_served(dibs *d)
{
    int64_t end = clock_ms() + LONG_MS;
    int before = outcomes;

    while (outcomes == before && clock_ms() < end) {
        struct pollfd p = {.fd = dibs_fd(d), .events = POLLIN};
        poll(&p, 1, (int)(end - clock_ms()));
        take_all(d);
    }
    return outcomes > before;
}

/* Granted at once, and over before anybody took it. */
static void a_grant_taken_too_late_is_lost(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("late-request");
    loss_note note = {0};
    outcome o = {0};
    dibs_stats s;

    (void)state;
    start(a, name,
          &(dibs_lock_options){
              .lease_ms = SHORT_MS, .no_renew = true, .on_lost = note_loss, .data = &note},
          &o);
    poll(&(struct pollfd){.fd = dibs_fd(a), .events = POLLIN}, 1, LONG_MS);
    unlock(take(b, name, NULL));
    assert_true(settle(a, &o, SOON_MS));
    assert_status(o.status, DIBS_LOST);
    assert_null(o.g);
    assert_int_equal(atomic_load(&note.count), 0); /* of what it never had */
    dibs_stats_read(a, &s, sizeof s);
    assert_int_equal(s.held, 0);
    assert_status(try_lock(b, name), DIBS_OK);
}

/* The same one level deeper: the outer level is still to be unlocked. */
static void a_reentry_taken_too_late_is_lost(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("late-reentry");
    dibs_lock_options by_name = {.owner = "me", .lease_ms = SHORT_MS, .no_renew = true};
    dibs_grant *g = take(a, name, &by_name);
    outcome o = {0};

    (void)state;
    start(a, name, &by_name, &o);
    unlock(take(b, name, NULL));
    assert_true(settle(a, &o, SOON_MS));
    assert_status(o.status, DIBS_LOST);
    assert_status(unlock(g), DIBS_LOST);
    assert_status(try_lock(b, name), DIBS_OK);
}

#define PENDING 5000

/* Entered, by the handle's own count; as long as it takes, if it goes on. */
static void wait_for_all(dibs *d, uint64_t count)
{
    uint64_t before = 0;
    dibs_stats s = {0};

    for (int64_t end = clock_ms() + LONG_MS; s.waiting < count && clock_ms() < end;) {
        sleep_ms(5);
        dibs_stats_read(d, &s, sizeof s);
        if (s.waiting > before)
            end = clock_ms() + LONG_MS;
        before = s.waiting;
    }
}

static bool threads_are_few(void *most)
{
    return count_threads() <= *(const size_t *)most;
}

static void thousands_wait_without_threads(void **state)
{
    dibs *a = open_for_load(), *b = open_for_load();
    const char *name = fresh("thousands");
    dibs_grant *g = take(a, name, NULL);
    outcome *o = calloc(PENDING, sizeof *o);
    size_t before = count_threads();
    uint64_t last = dibs_grant_fence(g);

    (void)state;
    assert_non_null(o);
    outcomes = 0;
    for (int i = 0; i < PENDING; i++) {
        o[i].unlock = true;
        start(b, name, NULL, &o[i]);
    }
    wait_for_all(b, PENDING);
    wait_for_queue(a, name, PENDING);
    before += 5; /* the keeper of b and its workers; threads that connect end by themselves */
    assert_true(wait_until(threads_are_few, &before, LONG_MS));
    assert_status(unlock(g), DIBS_OK);
    while (outcomes < PENDING && more_are_served(b)) {
        /* however slow the disk is */
    }
    assert_int_equal(outcomes, PENDING);
    for (int i = 0; i < PENDING; i++) {
        assert_int_equal(o[i].calls, 1);
        assert_status(o[i].status, DIBS_OK);
        if (!the.can.first_come)
            continue;
        assert_int_equal(o[i].order, i);
        assert_true(o[i].fence > last);
        last = o[i].fence;
    }
    free(o);
}

static const struct CMUnitTest tests[] = {
    CASE(a_free_lock_is_an_outcome),
    CASE(a_request_is_its_own_owner),
    CASE(a_named_request_can_reenter),
    CASE(a_bounded_request_ends),
    CASE(a_request_is_stopped),
    CASE(requests_that_nobody_took_are_given_back),
    CASE(an_invalid_request_is_refused_at_once),
    CASE_FOR(conflicts_are_reported, NEEDS_SLOTS),
    CASE(a_grant_taken_too_late_is_lost),
    CASE(a_reentry_taken_too_late_is_lost),
    CASE(thousands_wait_without_threads),
};
CASES(request_cases, tests);
