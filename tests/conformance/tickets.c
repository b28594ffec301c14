/* Waiting without a thread each. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What became of one ticket. */
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
    o->fence = g ? dibs_fence(g) : 0;
    o->order = outcomes++;
    if (g && o->unlock)
        dibs_unlock(g);
}

static dibs_ticket *start(dibs *d, const char *name, const dibs_lock_options *options, outcome *o)
{
    dibs_ticket *t = NULL;
    dibs_error err = {0};

    if (dibs_lock_start(d, name, options, note_outcome, o, &t, &err) != DIBS_OK)
        fail_msg("start %s: %s", name, err.message);
    assert_non_null(t);
    return t;
}

/* Dispatches until `o` is settled. */
static bool settle(dibs *d, const outcome *o, int64_t ms)
{
    int64_t end = clock_ms() + ms;

    while (o->calls == 0 && clock_ms() < end) {
        struct pollfd p = {.fd = dibs_fd(d), .events = POLLIN};
        poll(&p, 1, (int)(end - clock_ms()));
        dibs_dispatch(d);
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

static void a_free_lock_is_told_by_dispatch(void **state)
{
    dibs *d = open_handle();
    outcome o = {0};

    (void)state;
    start(d, fresh("ticket"), NULL, &o);
    assert_int_equal(o.calls, 0); /* never from inside the call */
    assert_true(settle(d, &o, SOON_MS));
    assert_status(o.status, DIBS_OK);
    assert_true(dibs_held(o.g));
    assert_status(dibs_unlock(o.g), DIBS_OK);
    assert_int_equal(dibs_dispatch(d), 0);
    assert_int_equal(o.calls, 1);
}

static void a_ticket_is_its_own_owner(void **state)
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
    dibs_unlock(g);
    assert_true(settle(d, &p, SOON_MS));
    assert_status(p.status, DIBS_OK);
    dibs_unlock(p.g);
}

static void a_named_ticket_can_reenter(void **state)
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
    dibs_unlock(g);
    assert_true(dibs_held(g));
    dibs_unlock(g);
}

static void a_bounded_ticket_ends(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("bounded-ticket");
    dibs_grant *g = take(a, name, NULL);
    outcome o = {0};
    int64_t begin = clock_ms();

    (void)state;
    start(b, name, &(dibs_lock_options){.wait_ms = 200}, &o);
    assert_true(settle(b, &o, 200 + SOON_MS));
    assert_status(o.status, DIBS_BUSY);
    assert_in_range(clock_ms() - begin, 199, 200 + SOON_MS);
    wait_for_line(a, name, 0);
    dibs_unlock(g);
}

static void a_ticket_is_cancelled(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("cancel-ticket");
    dibs_grant *g = take(a, name, NULL);
    outcome o[3] = {{0}};
    dibs_ticket *t[3];

    (void)state;
    for (int i = 0; i < 3; i++)
        t[i] = start(b, name, NULL, &o[i]);
    wait_for_line(a, name, 3);
    dibs_ticket_cancel(t[1]);
    assert_true(settle(b, &o[1], SOON_MS));
    assert_status(o[1].status, DIBS_CANCELLED);
    wait_for_line(a, name, 2);
    dibs_unlock(g);
    assert_true(settle(b, &o[0], SOON_MS));
    assert_status(o[0].status, DIBS_OK);
    dibs_cancel(b, name);
    assert_true(settle(b, &o[2], SOON_MS));
    assert_status(o[2].status, DIBS_CANCELLED);
    dibs_unlock(o[0].g);
    dibs_unlock(take(a, name, NULL)); /* the engine hears of a cancelled ticket a moment later */
}

static void tickets_that_nobody_took_are_given_back(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("close-ticket");
    dibs_grant *g = take(a, name, NULL);
    outcome o[4] = {{0}};

    (void)state;
    for (int i = 0; i < 3; i++)
        start(b, name, NULL, &o[i]);
    start(b, fresh("free"), NULL, &o[3]); /* granted, and never dispatched */
    wait_for_line(a, name, 3);
    dibs_unlock(g);
    wait_for_line(a, name, 2); /* the first has it and does not know */
    close_handle(b);
    assert_status(try_lock(a, name), DIBS_OK);
    wait_for_line(a, name, 0);
}

static void a_refused_ticket_is_refused_at_once(void **state)
{
    dibs *d = open_handle();
    dibs_ticket *t = NULL;
    outcome o = {0};

    (void)state;
    assert_status(dibs_lock_start(d, "", NULL, note_outcome, &o, &t, NULL), DIBS_INVALID);
    assert_null(t);
    assert_int_equal(dibs_dispatch(d), 0);
    assert_int_equal(o.calls, 0);
}

static void conflicts_are_told(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("ticket-slots");
    outcome o = {0};

    (void)state;
    dibs_grant *g = take(d, name, &(dibs_lock_options){.slots = 3}); /* idle, it may be forgotten */
    start(d, name, &(dibs_lock_options){.slots = 2}, &o);
    assert_true(settle(d, &o, SOON_MS));
    assert_status(o.status, DIBS_CONFLICT);
    dibs_unlock(g);
}

/* Dispatches until one more is settled, whichever. */
static bool more_are_served(dibs *d)
{
    int64_t end = clock_ms() + LONG_MS;
    int before = outcomes;

    while (outcomes == before && clock_ms() < end) {
        struct pollfd p = {.fd = dibs_fd(d), .events = POLLIN};
        poll(&p, 1, (int)(end - clock_ms()));
        dibs_dispatch(d);
    }
    return outcomes > before;
}

/* Granted at once, and over before anybody dispatched. */
static void a_ticket_told_too_late_is_lost(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("late-ticket");
    loss_note note = {0};
    outcome o = {0};
    dibs_stats s;

    (void)state;
    start(a, name,
          &(dibs_lock_options){
              .lease_ms = SHORT_MS, .no_renew = true, .on_lost = note_loss, .data = &note},
          &o);
    dibs_unlock(take(b, name, NULL));
    assert_true(settle(a, &o, SOON_MS));
    assert_status(o.status, DIBS_LOST);
    assert_null(o.g);
    assert_int_equal(atomic_load(&note.count), 0); /* of what it never had */
    dibs_stats_read(a, &s);
    assert_int_equal(s.held, 0);
    assert_status(try_lock(b, name), DIBS_OK);
}

/* The same one level deeper: the outer level is still to be unlocked. */
static void a_reentry_told_too_late_is_lost(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("late-reentry");
    dibs_lock_options by_name = {.owner = "me", .lease_ms = SHORT_MS, .no_renew = true};
    dibs_grant *g = take(a, name, &by_name);
    outcome o = {0};

    (void)state;
    start(a, name, &by_name, &o);
    dibs_unlock(take(b, name, NULL));
    assert_true(settle(a, &o, SOON_MS));
    assert_status(o.status, DIBS_LOST);
    assert_status(dibs_unlock(g), DIBS_LOST);
    assert_status(try_lock(b, name), DIBS_OK);
}

#define PENDING 5000

static void thousands_wait_without_threads(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("thousands");
    dibs_grant *g = take(a, name, NULL);
    outcome *o = calloc(PENDING, sizeof *o);
    size_t before = count_threads();
    uint64_t last = dibs_fence(g);

    (void)state;
    assert_non_null(o);
    outcomes = 0;
    for (int i = 0; i < PENDING; i++) {
        o[i].unlock = true;
        start(b, name, NULL, &o[i]);
    }
    wait_for_line(a, name, PENDING);
    assert_in_range(count_threads(), before, before + 1); /* the keeper of b */
    assert_status(dibs_unlock(g), DIBS_OK);
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
    CASE(a_free_lock_is_told_by_dispatch),
    CASE(a_ticket_is_its_own_owner),
    CASE(a_named_ticket_can_reenter),
    CASE(a_bounded_ticket_ends),
    CASE(a_ticket_is_cancelled),
    CASE(tickets_that_nobody_took_are_given_back),
    CASE(a_refused_ticket_is_refused_at_once),
    CASE_FOR(conflicts_are_told, NEEDS_SLOTS),
    CASE(a_ticket_told_too_late_is_lost),
    CASE(a_reentry_told_too_late_is_lost),
    CASE(thousands_wait_without_threads),
};
CASES(ticket_cases, tests);
