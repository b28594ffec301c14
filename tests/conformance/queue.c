/* Order, sharing, slots, fences, and that nothing is ever lost under the lock. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAITERS 12

static void served_in_order_of_arrival(void **state)
{
    dibs *d[4];
    const char *name = fresh("fifo");
    job *j[WAITERS];
    uint64_t last;

    (void)state;
    if (!the.can.first_come)
        skip();
    for (int i = 0; i < 4; i++)
        d[i] = open_handle();
    dibs_grant *g = take(d[0], name, NULL);
    last = dibs_grant_fence(g);
    for (int i = 0; i < WAITERS; i++) {
        j[i] = job_start(d[i % 4], name, NULL);
        wait_for_queue(d[0], name, (size_t)i + 1);
    }
    unlock(g);
    for (int i = 0; i < WAITERS; i++) {
        job_join(j[i]);
        assert_status(j[i]->status, DIBS_OK);
        assert_true(j[i]->fence > last);
        last = j[i]->fence;
        for (int k = i + 1; k < WAITERS; k++)
            assert_false(atomic_load(&j[k]->done));
        assert_status(unlock(j[i]->g), DIBS_OK);
    }
}

static void fences_only_grow(void **state)
{
    dibs *d[2] = {open_handle(), open_handle()};
    const char *name = fresh("fence");
    uint64_t last = 0;

    (void)state;
    for (int i = 0; i < 100; i++) {
        dibs_grant *g = take(d[i % 2], name, NULL);
        assert_true(dibs_grant_fence(g) > last);
        last = dibs_grant_fence(g);
        assert_status(unlock(g), DIBS_OK);
    }
}

static void many_share_and_one_excludes(void **state)
{
    dibs *a = open_handle(), *b = open_handle(), *c = open_handle();
    const char *name = fresh("shared");
    dibs_lock_options shared = {.shared = true, .wait_ms = DIBS_NO_WAIT};
    dibs_grant *g = take(a, name, &shared), *h = take(b, name, &shared);
    job *writer, *reader;

    (void)state;
    assert_true(dibs_grant_fence(h) > dibs_grant_fence(g));
    assert_true(dibs_grant_floor(h) == dibs_grant_fence(g));
    assert_status(try_lock(c, name), DIBS_BUSY);
    writer = job_start(c, name, NULL);
    wait_for_queue(a, name, 1);
    reader = job_start(c, name, &(dibs_lock_options){.shared = true});
    wait_for_queue(a, name, 2); /* behind the writer, though it would fit */
    assert_status(unlock(g), DIBS_OK);
    assert_false(atomic_load(&writer->done));
    assert_status(unlock(h), DIBS_OK);
    job_join(writer);
    assert_status(writer->status, DIBS_OK);
    assert_false(atomic_load(&reader->done));
    unlock(writer->g);
    job_join(reader);
    assert_status(reader->status, DIBS_OK);
    unlock(reader->g);
}

static void shared_does_not_become_exclusive(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("upgrade");
    dibs_grant *g = take(d, name, &(dibs_lock_options){.shared = true}), *none = NULL;
    dibs_error err = {0};

    (void)state;
    assert_status(dibs_lock(d, name, NULL, &none, &err), DIBS_MISMATCH);
    assert_null(none);
    assert_true(strlen(err.message) > 10);
    assert_true(dibs_grant_held(g));
    unlock(g);
}

static void exclusive_covers_shared(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("downgrade");
    dibs_grant *g = take(d, name, NULL);

    (void)state;
    assert_ptr_equal(take(d, name, &(dibs_lock_options){.shared = true}), g);
    unlock(g);
    assert_status(try_lock(open_handle(), name), DIBS_BUSY);
    unlock(g);
}

static void slots_are_counted(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("slots");
    dibs_lock_options one = {.slots = 3, .wait_ms = DIBS_NO_WAIT};
    dibs_lock_options two = {.slots = 3, .weight = 2, .wait_ms = DIBS_NO_WAIT};
    dibs_grant *g = take(a, name, &two), *none = NULL;
    dibs_grant *h = take(b, name, &one);

    (void)state;
    assert_status(dibs_lock(b, name, &one, &none, NULL), DIBS_BUSY);
    assert_status(unlock(h), DIBS_OK);
    assert_status(dibs_lock(b, name, &two, &none, NULL), DIBS_BUSY);
    h = take(a, name, &one); /* the same thread: a slot of its own, not a level deeper */
    assert_true(g != h);
    assert_true(dibs_grant_floor(h) == dibs_grant_fence(g));
    assert_status(unlock(g), DIBS_OK);
    assert_status(unlock(h), DIBS_OK);
    assert_int_equal(holders_of(b, name), 0);
}

static void a_heavy_waiter_is_not_starved(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("heavy");
    dibs_lock_options one = {.slots = 2, .wait_ms = LONG_MS},
                      all = {.slots = 2, .weight = 2, .wait_ms = LONG_MS};
    dibs_grant *g = take(a, name, &one);
    job *heavy = job_start(b, name, &all), *light;

    (void)state;
    if (!the.can.first_come)
        skip();
    wait_for_queue(a, name, 1);
    light = job_start(b, name, &one);
    wait_for_queue(a, name, 2);
    unlock(g);
    job_join(heavy);
    assert_false(atomic_load(&light->done));
    unlock(heavy->g);
    job_join(light);
    unlock(light->g);
}

/* The second handle of an owner waits for the first although it would fit, and whoever comes later waits
 * behind it: those who hold are the front of the line, so that everybody sees who they are. */
static void nobody_overtakes_a_namesake(void **state)
{
    dibs *a = open_handle(), *b = open_handle(), *c = open_handle();
    const char *name = fresh("namesake-slots");
    dibs_lock_options named = {.owner = "job 9", .slots = 3}, other = {.slots = 3};
    dibs_lock_options at_once = {.slots = 3, .wait_ms = DIBS_NO_WAIT};
    dibs_grant *g = take(a, name, &named), *none = NULL;
    job *second, *third;

    (void)state;
    if (!the.can.first_come)
        skip();
    second = job_start(b, name, &named);
    wait_for_queue(a, name, 1);
    assert_status(dibs_lock(c, name, &at_once, &none, NULL), DIBS_BUSY);
    third = job_start(c, name, &other);
    wait_for_queue(a, name, 2);
    assert_int_equal(holders_of(a, name), 1);
    unlock(g);
    job_join_held(second);
    job_join_held(third);
    assert_int_equal(holders_of(a, name), 2);
    assert_status(dibs_lock_break(
                      a, name, &(dibs_lock_break_options){.by = "the operator", .now = true}, NULL),
                  DIBS_OK);
    assert_int_equal(holders_of(a, name), 0);
    unlock(second->g);
    unlock(third->g);
}

/* It goes when the second one gives up as well as when the first lets go. */
static void a_namesake_that_gives_up_blocks_nobody(void **state)
{
    dibs *a = open_handle(), *b = open_handle(), *c = open_handle();
    const char *name = fresh("namesake-leaves");
    dibs_lock_options named = {.owner = "job 10", .slots = 3}, other = {.slots = 3};
    dibs_grant *g = take(a, name, &named);
    job *second, *third;

    (void)state;
    if (!the.can.first_come)
        skip();
    named.wait_ms = KEPT_MS;
    second = job_start(b, name, &named);
    wait_for_queue(a, name, 1);
    third = job_start(c, name, &other);
    job_join(second);
    assert_status(second->status, DIBS_BUSY);
    job_join_held(third);
    unlock(g);
    unlock(third->g);
}

static void other_slots_are_refused(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("mismatch");
    dibs_grant *none = NULL, *g = take(d, name, &(dibs_lock_options){.slots = 3});
    dibs_error err = {0};

    (void)state;
    for (int i = 0; i < 2; i++) { /* while it is held, and when it is not */
        assert_status(dibs_lock(d, name, &(dibs_lock_options){.slots = 4}, &none, &err),
                      DIBS_MISMATCH);
        assert_non_null(strstr(err.message, "3"));
        assert_status(dibs_lock(d, name, NULL, &none, NULL), DIBS_MISMATCH);
        if (i == 0)
            unlock(g);
        if (the.can.forgets_idle)
            return;
    }
    unlock(take(d, name, &(dibs_lock_options){.slots = 3}));
    assert_status(dibs_lock_break(d, name, &(dibs_lock_break_options){.by = "test"}, NULL),
                  DIBS_OK);
    unlock(take(d, name, &(dibs_lock_options){.slots = 4}));
}

static void one_slot_is_a_plain_lock(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("oneslot");

    (void)state;
    unlock(take(d, name, &(dibs_lock_options){.slots = 1, .weight = 1}));
    unlock(take(d, name, NULL));
}

/* What an engine does not declare it refuses at the call, says why, and keeps nothing of it. */
static void what_it_cannot_do_is_refused(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("cannot");
    const dibs_lock_options all[] = {{.shared = true}, {.slots = 3}};
    const bool can[] = {the.can.shared, the.can.slots};

    (void)state;
    for (int i = 0; i < 2; i++) {
        dibs_grant *g = NULL;
        dibs_error err = {0};
        if (can[i])
            continue;
        assert_status(dibs_lock(d, name, &all[i], &g, &err), DIBS_UNSUPPORTED);
        assert_null(g);
        assert_non_null(strstr(err.message, the.engine));
        assert_true(strlen(err.message) > 60); /* the reason */
        assert_status(start_lock(d, name, &all[i], NULL, NULL, NULL, &err), DIBS_UNSUPPORTED);
    }
    unlock(take(d, name, NULL));
}

/* ---- Nothing is lost ------------------------------------------------------------------------- */

typedef struct adder {
    dibs *d;
    const char *name;
    int rounds;
    atomic_long *sum;
    atomic_ullong *fence;
    int bad;
} adder;

static void *add(void *arg)
{
    adder *a = arg;

    for (int i = 0; i < a->rounds; i++) {
        dibs_grant *g = NULL;
        if (dibs_lock(a->d, a->name, &(dibs_lock_options){.wait_ms = LONG_MS}, &g, NULL) !=
            DIBS_OK) {
            a->bad++;
            continue;
        }
        a->bad += dibs_grant_fence(g) <= atomic_load(a->fence);
        atomic_store(a->fence, dibs_grant_fence(g));
        atomic_store(a->sum, atomic_load(a->sum) + 1); /* two steps: without the lock it loses */
        a->bad += unlock(g) != DIBS_OK;
    }
    return NULL;
}

static void add_up(int handles, int rounds)
{
    enum { THREADS = 8 };
    static atomic_long sum;
    static atomic_ullong fence;
    const char *name = fresh("sum");
    dibs *d[THREADS];
    adder a[THREADS];
    pthread_t t[THREADS];

    atomic_store(&sum, 0);
    atomic_store(&fence, 0);
    for (int i = 0; i < handles; i++)
        d[i] = open_handle();
    for (int i = 0; i < THREADS; i++) {
        a[i] = (adder){d[i % handles], name, rounds, &sum, &fence, 0};
        assert_int_equal(pthread_create(&t[i], NULL, add, &a[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(a[i].bad, 0);
    assert_int_equal(atomic_load(&sum), THREADS * rounds);
}

static void threads_of_one_handle_lose_nothing(void **state)
{
    (void)state;
    add_up(1, 200);
}

static void threads_of_many_handles_lose_nothing(void **state)
{
    (void)state;
    add_up(8, 100);
}

static void many_locks_at_once_in_one_handle(void **state)
{
    enum { N = 300 };
    dibs *d = open_handle(), *other = open_handle();
    dibs_grant *g[N];
    char name[64];

    (void)state;
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "bulk-%d", i);
        g[i] = take(d, name, NULL);
    }
    assert_status(try_lock(other, "bulk-17"), DIBS_BUSY);
    for (int i = 0; i < N; i++)
        assert_status(unlock(g[(i * 7) % N]), DIBS_OK);
    assert_status(try_lock(other, "bulk-17"), DIBS_OK);
}

static const struct CMUnitTest tests[] = {
    CASE(served_in_order_of_arrival),
    CASE(fences_only_grow),
    CASE_FOR(many_share_and_one_excludes, NEEDS_SHARED),
    CASE_FOR(shared_does_not_become_exclusive, NEEDS_SHARED),
    CASE_FOR(exclusive_covers_shared, NEEDS_SHARED),
    CASE_FOR(slots_are_counted, NEEDS_SLOTS),
    CASE_FOR(a_heavy_waiter_is_not_starved, NEEDS_SLOTS),
    CASE_FOR(nobody_overtakes_a_namesake, NEEDS_SLOTS),
    CASE_FOR(a_namesake_that_gives_up_blocks_nobody, NEEDS_SLOTS),
    CASE_FOR(other_slots_are_refused, NEEDS_SLOTS),
    CASE(one_slot_is_a_plain_lock),
    CASE(what_it_cannot_do_is_refused),
    CASE(threads_of_one_handle_lose_nothing),
    CASE(threads_of_many_handles_lose_nothing),
    CASE(many_locks_at_once_in_one_handle),
};
CASES(queue_cases, tests);
