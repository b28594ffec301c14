/* The state machine: breaking, gently and at once. */
#include "talk.h"

static void breaking_what_is_not_there(void **state)
{
    (void)state;
    assert_int_equal(break_lock("root", true), DIBS__LOST);
    assert_int_equal(settle(), DIBS__LOST);
}

static void breaking_at_once(void **state)
{
    uint64_t fence;

    (void)state;
    lock("a");
    fence = f.reply.fence;
    lock("b");
    assert_int_equal(break_lock("root", true), DIBS__RELEASED);
    assert_true(f.reply.fence > fence);
    assert_woken("b", NULL);
    assert_true(f.woken[0].fence > f.reply.fence);
    assert_int_equal(keep("a", fence), DIBS__BROKEN);
    assert_true(f.reply.remaining == 0);
    assert_int_equal(release("a", fence), DIBS__BROKEN);
    assert_int_equal(keep("b", 0), DIBS__GRANTED);
}

static void breaking_gently(void **state)
{
    uint64_t fence;

    (void)state;
    lock("a");
    fence = f.reply.fence;
    pass(10 * SEC);
    lock("b");
    assert_int_equal(break_lock("root", false), DIBS__BUSY);
    assert_int_equal(f.asked, 1);
    assert_true(f.reply.remaining == 20 * SEC);
    assert_woken(NULL, NULL);
    assert_int_equal(keep("a", fence), DIBS__BROKEN);
    assert_true(f.reply.remaining == 20 * SEC); /* not renewed, and still there */
    assert_int_equal(try("c"), DIBS__BUSY);
    assert_int_equal(release("a", fence), DIBS__RELEASED);
    assert_woken("b", NULL);
    assert_int_equal(keep("b", 0), DIBS__GRANTED); /* the next one is not broken */
}

static void breaking_gently_ends_with_the_lease(void **state)
{
    (void)state;
    lock("a");
    break_lock("root", false);
    pass(LEASE);
    assert_int_equal(keep("a", 1), DIBS__BROKEN);
    assert_int_equal(try("b"), DIBS__GRANTED);
}

static void breaking_drops_what_lingers(void **state)
{
    (void)state;
    lock_for_at_least("a", 100 * SEC);
    release("a", 0);
    assert_int_equal(break_lock("root", false), DIBS__RELEASED);
    assert_int_equal(try("b"), DIBS__GRANTED);
}

static void breaking_says_who(void **state)
{
    dibs__report_builder *b = dibs__report_new();
    dibs_lock_report *r = NULL;
    const dibs_lock_info *info;

    (void)state;
    lock("a");
    break_lock("an operator", true);
    dibs__memory_report(f.memory, "lock", f.now, b);
    assert_int_equal(dibs__report_finish(b, 0, &r, NULL), DIBS_OK);
    info = dibs_lock_report_at(r, 0);
    assert_string_equal(info->broken_by, "an operator");
    assert_true(info->broken_at_ms == f.now.wall / 1000);
    assert_int_equal(info->slots, 0);
    dibs_lock_report_free(r);
}

/* A name that is too long is cut, and ends. */
static void breaking_cuts_a_long_name(void **state)
{
    char by[2 * DIBS__BY_SIZE] = "";

    (void)state;
    lock("a");
    for (size_t size = DIBS__BY_SIZE - 1; size < sizeof by; size++) {
        dibs__memory_cursor cursor = {0};
        dibs__record record;
        memset(by, 'b', size);
        assert_true(dibs__memory_begin(&cursor, f.memory, "lock", f.now.wall));
        assert_int_equal(
            dibs__state_break(&dibs__memory_store, &cursor, f.now, by, false, &f.reply), 0);
        assert_int_equal(dibs__memory_store.load(&cursor, &record), 1);
        dibs__memory_end(&cursor);
        assert_int_equal(strnlen(record.broken_by, sizeof record.broken_by), DIBS__BY_SIZE - 1);
    }
}

static void breaking_at_once_is_reported(void **state)
{
    (void)state;
    lock("a");
    break_lock("root", true);
    assert_int_equal(f.asked, 1);
}

/* The newer attempt goes on in the place of the older one, whoever waits. */
static void a_newer_attempt_is_not_sent_behind_waiters(void **state)
{
    (void)state;
    lock("a");
    lock("b");
    assert_int_equal(lock("a/2"), DIBS__GRANTED);
}

/* One that never held was not broken, whatever happened to others. */
static void a_waiter_that_is_gone_was_not_broken(void **state)
{
    (void)state;
    lock("a");
    break_lock("root", true);
    assert_int_equal(keep("b", 0), DIBS__LOST);
    assert_int_equal(release("b", 0), DIBS__LOST);
}

/* A server whose clock begins at 0 gives out the fence 1. */
static void the_first_fence_of_all_is_asked_too(void **state)
{
    (void)state;
    f.now.wall = 0;
    lock("a");
    assert_int_equal(f.reply.fence, 1);
    assert_int_equal(break_lock("root", false), DIBS__BUSY);
    assert_int_equal(f.asked, 1);
}

/* The same when it was given back and lingers: it is dropped. */
static void the_first_fence_of_all_may_linger(void **state)
{
    (void)state;
    f.now.wall = 0;
    lock_for_at_least("a", 100 * SEC);
    assert_int_equal(f.reply.fence, 1);
    release("a", 1);
    assert_int_equal(break_lock("root", false), DIBS__RELEASED);
    assert_int_equal(try("b"), DIBS__GRANTED);
}

/* A lock without min_hold is free at once, also when the clock of the leases was set back. */
static void a_release_lingers_only_if_asked_to(void **state)
{
    (void)state;
    lock("a");
    f.now.lease -= SEC;
    assert_int_equal(release("a", f.reply.fence), DIBS__RELEASED);
    assert_int_equal(try("b"), DIBS__GRANTED);
}

static const struct CMUnitTest tests[] = {
    TEST(breaking_what_is_not_there),
    TEST(breaking_at_once),
    TEST(breaking_gently),
    TEST(breaking_gently_ends_with_the_lease),
    TEST(breaking_drops_what_lingers),
    TEST(breaking_says_who),
    TEST(breaking_cuts_a_long_name),
    TEST(breaking_at_once_is_reported),
    TEST(a_newer_attempt_is_not_sent_behind_waiters),
    TEST(a_waiter_that_is_gone_was_not_broken),
    TEST(the_first_fence_of_all_is_asked_too),
    TEST(the_first_fence_of_all_may_linger),
    TEST(a_release_lingers_only_if_asked_to),
};
TESTS(operator_tests, tests);
