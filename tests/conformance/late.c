/* Late messages, sent to the engine's table itself: what an older attempt of a handle asks for after a
 * newer one was served changes nothing. And an owner by name that two handles use at the same time: the
 * second waits, the first is asked to stop. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include "core/handle.h"

#include <stdio.h>
#include <string.h>

#define LEASE (8 * DIBS__SECOND)

/* One attempt of a handle's. */
typedef struct
try {
    dibs *d;
    const char *name;
    const char *owner;
    unsigned number; /* of the attempt */
    bool named, shared, waits;
}
try;

static dibs__deadline soon(const dibs *d)
{
    return dibs__after(d->env, LONG_MS * DIBS__MS);
}

/* Higher than what the handle's own calls use. */
static const char *attempt_of(const try *t)
{
    static char text[8][DIBS__ATTEMPT_SIZE];
    static unsigned n;
    char *out = text[n++ % 8];

    snprintf(out, sizeof text[0], "%s-%x", t->d->id, 0xff0 + t->number);
    return out;
}

/* Asks again while the engine cannot tell, as the core does. */
static dibs__reply enter(const try *t)
{
    int64_t lease =
        t->d->engine->lease && t->d->engine->lease < LEASE ? t->d->engine->lease : LEASE;
    dibs__enter_request r = {.name = t->name,
                             .owner_named = t->named,
                             .capacity = DIBS__PLAIN,
                             .window = t->waits ? lease : 0};
    dibs__reply reply = {0};
    dibs_error err = {0};
    dibs_status status = DIBS_UNKNOWN;

    snprintf(r.who.owner, sizeof r.who.owner, "%s", t->owner);
    snprintf(r.who.attempt, sizeof r.who.attempt, "%s", attempt_of(t));
    snprintf(r.who.host, sizeof r.who.host, "here");
    r.who.pid = 1;
    r.who.weight = t->shared ? 1 : DIBS__PLAIN;
    r.who.lease = lease;
    for (int i = 0; i < 50 && (status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE); i++) {
        status = t->d->class->enter(t->d->engine, &r, soon(t->d), &reply, &err);
        if (status != DIBS_OK)
            sleep_ms(20);
    }
    if (status != DIBS_OK)
        fail_msg("enter: %s", err.message);
    return reply;
}

static dibs__claim claim_of(const try *t, uint64_t fence)
{
    return (dibs__claim){.name = t->name,
                         .owner = t->owner,
                         .attempt = attempt_of(t),
                         .fence = fence,
                         .lease = t->d->engine->lease ? t->d->engine->lease : LEASE};
}

static dibs__reply keep(const try *t, uint64_t fence)
{
    dibs__claim claim = claim_of(t, fence), *claims[] = {&claim};

    t->d->class->keep(t->d->engine, claims, 1, soon(t->d));
    assert_status(claim.status, DIBS_OK);
    return claim.reply;
}

static dibs__verdict release(const try *t, uint64_t fence)
{
    dibs__claim claim = claim_of(t, fence);
    dibs__reply reply = {0};

    assert_status(t->d->class->release(t->d->engine, &claim, soon(t->d), &reply, NULL), DIBS_OK);
    return reply.verdict;
}

static void cancel(const try *t)
{
    dibs__claim claim = claim_of(t, 0);

    assert_status(t->d->class->cancel(t->d->engine, &claim, soon(t->d), NULL), DIBS_OK);
}

static bool is_granted(void *t)
{
    return keep(t, 0).verdict == DIBS__GRANTED;
}

static bool is_over(void *t)
{
    return keep(t, 0).verdict != DIBS__GRANTED;
}

static dibs_status try_shared(dibs *d, const char *name)
{
    dibs_grant *g = NULL;
    dibs_status status =
        dibs_lock(d, name, &(dibs_lock_options){.shared = true, .wait_ms = DIBS_NO_WAIT}, &g, NULL);

    if (g)
        unlock(g);
    return status;
}

/* ---- The same handle ------------------------------------------------------------------------- */

/* Where entries are ordered by the server and the owner is a thread's, nobody there knows that two are of
 * one owner: a sharer that comes late stands beside the other until it is cancelled. */
static bool may_stand_beside(const try *old, const try *newer)
{
    return the.can.lease_of_handle && !old->named && old->shared && newer->shared;
}

/* Everything that a given-up attempt may still bring, twice: nothing of it may count. */
static void send_late(const try *old, const try *newer, uint64_t fence)
{
    bool beside = may_stand_beside(old, newer);

    for (int i = 0; i < 2; i++) {
        assert_true(enter(old).verdict != DIBS__GRANTED || beside);
        assert_true(keep(old, 0).verdict != DIBS__GRANTED || beside);
        assert_int_equal(keep(newer, fence).verdict, DIBS__GRANTED);
        release(old, 0);
        cancel(old);
        assert_int_equal(keep(newer, fence).verdict, DIBS__GRANTED);
    }
}

static void late_after_a_grant(bool named, bool newer_shared, bool older_shared)
{
    dibs *d = open_handle(), *other = open_handle();
    const char *name = fresh("late");
    char thread[DIBS__OWNER_SIZE];
    try newer = {d, name, named ? "worker 1" : thread, 5, named, newer_shared, true};
    dibs__reply held;

    snprintf(thread, sizeof thread, "%s/99", d->id);
    held = enter(&newer);
    assert_int_equal(held.verdict, DIBS__GRANTED);
    for (int waits = 0; waits < 2; waits++) {
        try old = {d, name, newer.owner, 3, named, older_shared, waits};
        send_late(&old, &newer, held.fence);
        assert_status(try_lock(other, name), DIBS_BUSY);
        if (the.can.shared && !newer_shared)
            assert_status(try_shared(other, name), DIBS_BUSY);
    }
    assert_int_equal(release(&newer, held.fence), DIBS__RELEASED);
    assert_status(try_lock(other, name), DIBS_OK);
}

static void an_older_attempt_cannot_take_over(void **state)
{
    (void)state;
    late_after_a_grant(false, false, false);
    late_after_a_grant(true, false, false);
}

/* Seen with a partition: the exclusive holder became a sharer, and another sharer was let in. */
static void an_older_shared_attempt_cannot_take_over(void **state)
{
    (void)state;
    for (int named = 0; named < 2; named++) {
        late_after_a_grant(named, false, true);
        late_after_a_grant(named, true, true);
        late_after_a_grant(named, true, false);
    }
}

static void an_older_attempt_cannot_take_the_place_in_the_queue(void **state)
{
    dibs *d = open_handle(), *other = open_handle();
    const char *name = fresh("late-line");
    dibs_grant *g;
    try newer = {d, name, "worker 2", 5, true, false, true};
    try old = {d, name, "worker 2", 3, true, false, true};

    (void)state;
    if (!the.can.first_come)
        skip();
    g = take(other, name, NULL);
    assert_int_equal(enter(&newer).verdict, DIBS__QUEUED);
    for (int i = 0; i < 2; i++) {
        enter(&old);
        cancel(&old);
        assert_int_equal(keep(&newer, 0).verdict, DIBS__QUEUED);
    }
    assert_status(unlock(g), DIBS_OK);
    assert_true(wait_until(is_granted, &newer, SOON_MS));
    assert_int_equal(release(&newer, keep(&newer, 0).fence), DIBS__RELEASED);
}

/* Its caller has given it up, so a newer one takes its place, also when it asks for more. */
static void a_forgotten_attempt_is_replaced(void **state)
{
    dibs *d = open_handle(), *other = open_handle();
    const char *name = fresh("forgotten");

    (void)state;
    for (int shared = 0; shared < 1 + the.can.shared; shared++) {
        try old = {d, name, "worker 3", 3, true, shared, false};
        try newer = {d, name, "worker 3", 5, true, false, false};
        dibs__reply first = enter(&old), second;
        assert_int_equal(first.verdict, DIBS__GRANTED);
        second = enter(&newer);
        assert_int_equal(second.verdict, DIBS__GRANTED);
        assert_true(second.fence > first.fence);
        cancel(&old);
        assert_int_equal(keep(&newer, second.fence).verdict, DIBS__GRANTED);
        assert_status(try_lock(other, name), DIBS_BUSY);
        assert_int_equal(release(&newer, second.fence), DIBS__RELEASED);
    }
}

/* ---- Another handle, the same name ----------------------------------------------------------- */

static void the_second_waits(bool first_shared, bool second_shared)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("namesake");
    try old = {a, name, "job", 1, true, first_shared, true};
    try new = {b, name, "job", 1, true, second_shared, true};
    dibs__reply held = enter(&old);

    assert_int_equal(held.verdict, DIBS__GRANTED);
    new.waits = false; /* a try asks nobody to stop */
    assert_int_equal(enter(&new).verdict, DIBS__BUSY);
    assert_int_equal(keep(&old, held.fence).verdict, DIBS__GRANTED);
    new.waits = true;
    new.number = 2;
    assert_int_equal(enter(&new).verdict, DIBS__QUEUED);
    if (!the.can.first_come) { /* nobody keeps a line: the first is not asked */
        assert_int_equal(keep(&old, held.fence).verdict, DIBS__GRANTED);
        cancel(&new);
        assert_int_equal(release(&old, held.fence), DIBS__RELEASED);
        return;
    }
    assert_true(wait_until(is_over, &old, SOON_MS));
    assert_int_equal(keep(&old, held.fence).verdict, DIBS__RESUMED);
    assert_true(keep(&old, held.fence).remaining > 0); /* still there: it has yet to let go */
    assert_int_equal(keep(&new, 0).verdict, DIBS__QUEUED);
    assert_int_equal(release(&old, held.fence), DIBS__RELEASED);
    assert_true(wait_until(is_granted, &new, SOON_MS));
    assert_true(keep(&new, 0).fence > held.fence);
    assert_int_equal(release(&new, keep(&new, 0).fence), DIBS__RELEASED);
}

static void the_second_of_a_name_waits(void **state)
{
    (void)state;
    the_second_waits(false, false);
}

static void the_second_of_a_name_waits_for_a_shared_one(void **state)
{
    (void)state;
    the_second_waits(true, true);
    the_second_waits(true, false);
    the_second_waits(false, true);
}

/* It left the queue before the first heard of it: nothing has happened. */
static void the_second_of_a_name_may_leave(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("namesake-leaves");
    try old = {a, name, "job", 1, true, false, true};
    try new = {b, name, "job", 1, true, false, true};
    dibs__reply held = enter(&old);

    (void)state;
    assert_int_equal(held.verdict, DIBS__GRANTED);
    assert_int_equal(enter(&new).verdict, DIBS__QUEUED);
    cancel(&new);
    assert_int_equal(keep(&old, held.fence).verdict, DIBS__GRANTED);
    assert_int_equal(release(&old, held.fence), DIBS__RELEASED);
    assert_status(try_lock(b, name), DIBS_OK);
}

static const struct CMUnitTest tests[] = {
    CASE(an_older_attempt_cannot_take_over),
    CASE_FOR(an_older_shared_attempt_cannot_take_over, NEEDS_SHARED),
    CASE(an_older_attempt_cannot_take_the_place_in_the_queue),
    CASE(a_forgotten_attempt_is_replaced),
    CASE(the_second_of_a_name_waits),
    CASE_FOR(the_second_of_a_name_waits_for_a_shared_one, NEEDS_SHARED),
    CASE(the_second_of_a_name_may_leave),
};
CASES(late_cases, tests);
