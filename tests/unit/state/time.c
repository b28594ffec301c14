/* The state machine: leases, keep-alives, fences, and locks that stay taken for a while. */
#include "talk.h"

/* ---- Time ------------------------------------------------------------------------------------ */

static void a_lease_ends(void **state)
{
    uint64_t fence;

    (void)state;
    lock("a");
    fence = f.reply.fence;
    pass(LEASE - 1);
    assert_int_equal(try("b"), DIBS__BUSY);
    assert_true(f.reply.remaining == 1);
    pass(1);
    assert_int_equal(try("b"), DIBS__GRANTED);
    assert_true(f.reply.fence > fence);
    assert_int_equal(keep("a", fence), DIBS__LOST);
    assert_int_equal(release("a", fence), DIBS__LOST);
    assert_int_equal(keep("b", 0), DIBS__GRANTED);
}

static void renewal_makes_it_whole(void **state)
{
    uint64_t fence;

    (void)state;
    lock("a");
    fence = f.reply.fence;
    for (int i = 0; i < 5; i++) {
        pass(20 * SEC);
        assert_int_equal(keep("a", fence), DIBS__GRANTED);
        assert_true(f.reply.remaining == LEASE);
        assert_true(f.reply.fence == fence);
    }
}

static void renewal_never_makes_anew(void **state)
{
    (void)state;
    lock("a");
    pass(LEASE);
    assert_int_equal(keep("a", f.reply.fence), DIBS__LOST);
    assert_int_equal(try("b"), DIBS__GRANTED);
}

static void expiry_hands_over(void **state)
{
    (void)state;
    lock("a");
    pass(LEASE - SEC);
    lock("b");
    pass(SEC);
    assert_int_equal(settle(), DIBS__RELEASED);
    assert_woken("b", NULL);
    assert_int_equal(settle(), DIBS__RELEASED);
    assert_woken(NULL, NULL);
}

static void dead_waiters_are_skipped(void **state)
{
    (void)state;
    lock("a");
    lock("b");
    lock("c");
    pass(WINDOW);
    lock("d");
    assert_int_equal(release("a", 0), DIBS__RELEASED);
    assert_woken("d", NULL);
    assert_int_equal(keep("b", 0), DIBS__LOST);
}

static void a_sign_of_life_keeps_the_place(void **state)
{
    (void)state;
    lock("a");
    lock("b");
    lock("c");
    for (int i = 0; i < 4; i++) {
        pass(WINDOW - 1);
        assert_int_equal(keep("b", 0), DIBS__QUEUED);
        keep("c", 0);
    }
    release("a", 0);
    assert_woken("b", NULL);
}

static void a_hand_over_lasts_as_long_as_the_waiter_lived(void **state)
{
    uint64_t fence;

    (void)state;
    lock("a");
    lock("b");
    pass(2 * SEC);
    release("a", 0);
    fence = f.woken[0].fence;
    assert_int_equal(try("c"), DIBS__BUSY);
    assert_true(f.reply.remaining == WINDOW - 2 * SEC);
    assert_int_equal(keep("b", fence), DIBS__GRANTED);
    assert_true(f.reply.remaining == LEASE);
    assert_true(f.reply.fence == fence);
}

static void a_dead_head_costs_its_window(void **state)
{
    (void)state;
    lock("a");
    lock("b");
    release("a", 0);
    pass(WINDOW - 1);
    lock("c");
    pass(1);
    settle();
    assert_woken("c", NULL);
}

static void the_window_is_never_longer_than_the_lease(void **state)
{
    command c = say(COMMAND_ACQUIRE, "b");

    (void)state;
    lock("a");
    c.who.lease = 2 * SEC;
    c.window = WINDOW;
    assert_int_equal(run(&c), DIBS__QUEUED);
    pass(2 * SEC);
    release("a", 0);
    assert_woken(NULL, NULL);
}

static void a_missed_grant_is_found_by_the_next_keep_alive(void **state)
{
    uint64_t fence;

    (void)state;
    lock("a");
    lock("b");
    release("a", 0);
    fence = f.woken[0].fence;
    pass(SEC);
    assert_int_equal(keep("b", 0), DIBS__GRANTED);
    assert_true(f.reply.fence == fence);
    assert_true(f.reply.remaining == LEASE);
    assert_int_equal(lock("b"), DIBS__GRANTED);
    assert_true(f.reply.fence == fence);
}

static void fences_grow_when_the_clock_goes_back(void **state)
{
    uint64_t last = 0;

    (void)state;
    for (int i = 0; i < 10; i++) {
        f.now.wall -= 3600 * SEC;
        assert_int_equal(try("a"), DIBS__GRANTED);
        assert_true(f.reply.fence > last);
        last = f.reply.fence;
        release("a", last);
    }
    f.now.wall = -5; /* before 1970 */
    try("a");
    assert_true(f.reply.fence == last + 1);
}

/* ---- min_hold -------------------------------------------------------------------------------- */

static void released_early_it_stays_taken(void **state)
{
    (void)state;
    lock_for_at_least("a", 10 * SEC);
    pass(8 * SEC);
    lock("b");
    assert_int_equal(release("a", 0), DIBS__RELEASED);
    assert_woken(NULL, NULL);
    assert_int_equal(release("a", 0), DIBS__LOST);
    assert_int_equal(try("c"), DIBS__BUSY);
    assert_true(f.reply.remaining == 2 * SEC);
    pass(2 * SEC);
    settle();
    assert_woken("b", NULL);
}

static void released_early_it_is_not_the_owners_either(void **state)
{
    (void)state;
    lock_for_at_least("a/1", 10 * SEC);
    release("a/1", 0);
    assert_int_equal(lock("a/2"), DIBS__QUEUED);
    pass(5 * SEC);
    keep("a/2", 0);
    pass(5 * SEC);
    assert_int_equal(keep("a/2", 0), DIBS__GRANTED);
}

static void released_late_it_is_free_at_once(void **state)
{
    (void)state;
    lock_for_at_least("a", 10 * SEC);
    pass(10 * SEC);
    release("a", 0);
    assert_int_equal(try("b"), DIBS__GRANTED);
}

static void a_cancelled_grant_does_not_linger(void **state)
{
    (void)state;
    lock("a");
    lock_for_at_least("b", 10 * SEC);
    release("a", 0);
    cancel("b");
    assert_int_equal(try("c"), DIBS__GRANTED);
}

static const struct CMUnitTest tests[] = {
    TEST(a_lease_ends),
    TEST(renewal_makes_it_whole),
    TEST(renewal_never_makes_anew),
    TEST(expiry_hands_over),
    TEST(dead_waiters_are_skipped),
    TEST(a_sign_of_life_keeps_the_place),
    TEST(a_hand_over_lasts_as_long_as_the_waiter_lived),
    TEST(a_dead_head_costs_its_window),
    TEST(the_window_is_never_longer_than_the_lease),
    TEST(a_missed_grant_is_found_by_the_next_keep_alive),
    TEST(fences_grow_when_the_clock_goes_back),
    TEST(released_early_it_stays_taken),
    TEST(released_early_it_is_not_the_owners_either),
    TEST(released_late_it_is_free_at_once),
    TEST(a_cancelled_grant_does_not_linger),
};
TESTS(time_tests, tests);
