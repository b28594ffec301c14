/* The state machine: taking, giving back, standing in the queue, resuming, sharing. */
#include "talk.h"

/* ---- Taking and giving back ------------------------------------------------------------------ */

static void assert_in_way(const char *owner, int64_t left)
{
    const dibs__in_way *w = &f.reply.in_way;

    assert_string_equal(w->owner, owner);
    assert_true(w->left == left);
    assert_true(w->fence > 0);
}

static void takes_what_is_free(void **state)
{
    (void)state;
    assert_int_equal(try("a"), DIBS__GRANTED);
    assert_true(f.reply.remaining == LEASE);
    assert_true(f.reply.fence == (uint64_t)f.now.wall);
    assert_true(f.reply.floor == f.reply.fence);
}

static void refuses_what_is_taken(void **state)
{
    (void)state;
    lock("a");
    pass(10 * SEC);
    assert_int_equal(try("b"), DIBS__BUSY);
    assert_true(f.reply.remaining == 20 * SEC);
    assert_in_way("a", 20 * SEC);
    pass(5 * SEC);
    assert_int_equal(lock("b"), DIBS__QUEUED);
    assert_true(f.reply.remaining == 15 * SEC); /* the head watches the lease */
    assert_in_way("a", 15 * SEC);
    assert_int_equal(lock("c"), DIBS__QUEUED);
    assert_true(f.reply.remaining == 0); /* the others need not */
    assert_in_way("a", 15 * SEC);
}

static void names_the_new_holder(void **state)
{
    uint64_t first, second;

    (void)state;
    lock("a");
    first = f.reply.fence;
    lock("b");
    pass(SEC);
    assert_int_equal(release("a", first), DIBS__RELEASED);
    second = f.woken[0].fence;
    assert_int_equal(f.reply.in_way.fence, 0);
    assert_int_equal(lock("c"), DIBS__QUEUED);
    assert_string_equal(f.reply.in_way.owner, "b");
    assert_int_equal(keep("c", 0), DIBS__QUEUED);
    assert_string_equal(f.reply.in_way.owner, "b");
    assert_true(f.reply.in_way.fence == second);
}

static void names_the_holders_host(void **state)
{
    command c = say(COMMAND_ACQUIRE, "a");

    (void)state;
    snprintf(c.who.host, sizeof c.who.host, "vera");
    c.who.pid = 7;
    run(&c);
    assert_int_equal(try("b"), DIBS__BUSY);
    assert_string_equal(f.reply.in_way.host, "vera");
    assert_int_equal(f.reply.in_way.pid, 7);
}

/* Of several holders the one whose lease ends first. */
static void names_who_goes_first(void **state)
{
    uint64_t a;

    (void)state;
    assert_int_equal(take("a", 1, WINDOW), DIBS__GRANTED);
    a = f.reply.fence;
    pass(SEC);
    assert_int_equal(take("b", 2, WINDOW), DIBS__GRANTED);
    assert_int_equal(f.reply.in_way.fence, 0);
    assert_int_equal(take("c", 1, 0), DIBS__BUSY);
    assert_in_way("a", LEASE - SEC);
    assert_int_equal(keep("a", a), DIBS__GRANTED);
    pass(SEC);
    assert_int_equal(keep("a", a), DIBS__GRANTED);
    assert_int_equal(take("c", 1, WINDOW), DIBS__QUEUED);
    assert_in_way("b", LEASE - SEC);
    pass(LEASE - SEC); /* b's lease is over, and c has been silent for too long */
    assert_int_equal(take("d", 3, 0), DIBS__BUSY);
    assert_in_way("a", SEC);
}

static void repeats_the_same_answer(void **state)
{
    dibs__reply first;

    (void)state;
    lock("a");
    first = f.reply;
    pass(10 * SEC);
    assert_int_equal(lock("a"), DIBS__GRANTED);
    assert_true(f.reply.fence == first.fence);
    assert_true(f.reply.remaining == 20 * SEC);
    assert_int_equal(lock("b"), DIBS__QUEUED);
    assert_int_equal(lock("b"), DIBS__QUEUED);
    assert_int_equal(release("a", first.fence), DIBS__RELEASED);
    assert_woken("b", NULL);
    assert_int_equal(release("a", first.fence), DIBS__LOST);
    assert_woken(NULL, NULL);
}

static void release_hands_over_to_the_head(void **state)
{
    uint64_t fence;

    (void)state;
    lock("a");
    fence = f.reply.fence;
    lock("b");
    lock("c");
    assert_int_equal(release("a", fence), DIBS__RELEASED);
    assert_woken("b", NULL);
    assert_true(f.woken[0].fence > fence);
    assert_true(f.woken[0].floor == f.woken[0].fence);
}

static void serves_in_order_of_arrival(void **state)
{
    static const char *const names[] = {"b", "c", "d", "e", "f"};
    uint64_t last = 0;
    const char *holder = "a";

    (void)state;
    lock("a");
    last = f.reply.fence;
    for (int i = 0; i < 5; i++)
        assert_int_equal(lock(names[i]), DIBS__QUEUED);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(release(holder, last), DIBS__RELEASED);
        assert_woken(names[i], NULL);
        assert_true(f.woken[0].fence > last);
        last = f.woken[0].fence;
        holder = names[i];
    }
}

static void nobody_overtakes(void **state)
{
    (void)state;
    share("a");
    lock("b");                                  /* exclusive, waits for a */
    assert_int_equal(share("c"), DIBS__QUEUED); /* would fit beside a */
    assert_int_equal(take("d", 1, 0), DIBS__BUSY);
    release("a", 0);
    assert_woken("b", NULL);
    release("b", 0);
    assert_woken("c", NULL);
}

static void cancel_leaves_the_queue(void **state)
{
    (void)state;
    lock("a");
    lock("b");
    lock("c");
    assert_int_equal(cancel("b"), DIBS__RELEASED);
    assert_int_equal(keep("b", 0), DIBS__LOST);
    release("a", 0);
    assert_woken("c", NULL);
}

static void cancel_of_one_just_granted_gives_back(void **state)
{
    (void)state;
    lock("a");
    lock("b");
    lock("c");
    release("a", 0);
    assert_int_equal(cancel("b"), DIBS__RELEASED);
    assert_woken("c", NULL);
}

static void cancel_of_an_old_attempt_is_harmless(void **state)
{
    (void)state;
    lock("a/2");
    assert_int_equal(cancel("a/1"), DIBS__RELEASED);
    assert_int_equal(keep("a/2", 0), DIBS__GRANTED);
    lock("b/2");
    assert_int_equal(cancel("b/1"), DIBS__RELEASED);
    assert_int_equal(keep("b/2", 0), DIBS__QUEUED);
    assert_int_equal(cancel("nobody"), DIBS__RELEASED);
}

/* Who holds a part and now wants all of it lets go, and that serves who waits in the same step. */
static void who_wants_more_lets_the_next_in(void **state)
{
    (void)state;
    share("a/1");
    lock("b");
    assert_int_equal(lock("a/2"), DIBS__QUEUED);
    assert_woken("b", NULL);
}

/* A waiter that is dead to the microsecond is no reason to stop, although it is not the head. */
static void a_dead_rival_asks_nobody_to_stop(void **state)
{
    uint64_t fence;

    (void)state;
    share("a/h-1");
    fence = f.reply.fence;
    pass(SEC);
    lock("b"); /* the head, which lives on */
    pass(-SEC);
    share("a/k-1");
    pass(SEC);
    keep("b", 0);
    pass(WINDOW - SEC - 1);
    assert_int_equal(keep("a/h-1", fence), DIBS__RESUMED);
    pass(1);
    assert_int_equal(keep("a/h-1", fence), DIBS__GRANTED);
}

/* A waiter between two that fit leaves: the one behind must not wait for the next command. */
static void cancel_of_the_head_serves_the_next(void **state)
{
    (void)state;
    share("a");
    lock("b");
    share("c");
    cancel("b");
    assert_woken("c", NULL);
}

static void strangers_change_nothing(void **state)
{
    (void)state;
    lock("a");
    assert_int_equal(release("b", f.reply.fence), DIBS__LOST);
    assert_int_equal(keep("b", 1), DIBS__LOST);
    assert_int_equal(release("a/9", 1), DIBS__RESUMED);
    assert_int_equal(try("c"), DIBS__BUSY);
}

/* ---- The same owner again -------------------------------------------------------------------- */

static void resume_kills_the_old_grant(void **state)
{
    uint64_t old, new;

    (void)state;
    lock("a/1");
    old = f.reply.fence;
    lock("b");
    pass(10 * SEC);
    keep("b", 0);
    assert_int_equal(lock("a/2"), DIBS__GRANTED);
    new = f.reply.fence;
    assert_true(new > old);
    assert_true(f.reply.remaining == LEASE);
    assert_int_equal(keep("a/1", old), DIBS__RESUMED);
    assert_int_equal(release("a/1", old), DIBS__RESUMED);
    assert_woken(NULL, NULL);
    assert_int_equal(keep("a/2", new), DIBS__GRANTED);
    assert_int_equal(release("a/2", new), DIBS__RELEASED);
}

static void a_resumed_waiter_keeps_its_place(void **state)
{
    (void)state;
    lock("a");
    lock("b/1");
    lock("c");
    assert_int_equal(lock("b/2"), DIBS__QUEUED);
    assert_int_equal(keep("b/1", 0), DIBS__RESUMED);
    release("a", 0);
    assert_woken("b", NULL);
    assert_int_equal(keep("b/2", 0), DIBS__GRANTED);
}

/* The attempt that shared was given up: else the core would not have asked. */
static void a_newer_attempt_may_ask_for_more(void **state)
{
    uint64_t old;

    (void)state;
    share("a/1");
    old = f.reply.fence;
    assert_int_equal(lock("a/2"), DIBS__GRANTED);
    assert_true(f.reply.fence > old);
    assert_int_equal(keep("a/1", old), DIBS__RESUMED);
    assert_int_equal(keep("a/2", 0), DIBS__GRANTED);
}

/* Not before those who waited for the one that was given up. */
static void asking_for_more_goes_to_the_end_of_the_queue(void **state)
{
    (void)state;
    share("a/1");
    share("b");
    lock("c");
    assert_int_equal(try("a/2"), DIBS__BUSY);
    assert_int_equal(keep("a/1", 0), DIBS__LOST);
    release("b", 0);
    assert_woken("c", NULL);
    assert_int_equal(lock("a/3"), DIBS__QUEUED);
}

/* ---- Late messages --------------------------------------------------------------------------- */

static void an_older_attempt_cannot_take_over(void **state)
{
    uint64_t fence;

    (void)state;
    lock("a/2");
    fence = f.reply.fence;
    assert_int_equal(lock("a/1"), DIBS__RESUMED);
    assert_int_equal(try("a/1"), DIBS__RESUMED);
    assert_int_equal(share("a/1"), DIBS__RESUMED);
    assert_int_equal(keep("a/1", 0), DIBS__RESUMED);
    assert_int_equal(release("a/1", fence), DIBS__RESUMED);
    assert_int_equal(cancel("a/1"), DIBS__RELEASED);
    assert_int_equal(keep("a/2", fence), DIBS__GRANTED);
    assert_int_equal(try("b"), DIBS__BUSY);
}

/* Numbers are hexadecimal, and longer is higher. */
static void attempts_are_compared_as_numbers(void **state)
{
    (void)state;
    lock("a/10");
    assert_int_equal(lock("a/f"), DIBS__RESUMED);
    assert_int_equal(lock("a/9"), DIBS__RESUMED);
    assert_int_equal(lock("a/a0"), DIBS__GRANTED);
    assert_int_equal(lock("a/9f"), DIBS__RESUMED);
}

static void an_older_attempt_cannot_take_the_place(void **state)
{
    (void)state;
    lock("x");
    lock("a/2");
    lock("b");
    assert_int_equal(lock("a/1"), DIBS__RESUMED);
    assert_int_equal(share("a/1"), DIBS__RESUMED);
    assert_int_equal(try("a/1"), DIBS__RESUMED);
    cancel("a/1");
    release("x", 0);
    assert_woken("a", NULL);
    assert_int_equal(keep("a/2", 0), DIBS__GRANTED);
}

/* ---- The same owner through another handle --------------------------------------------------- */

static void another_handle_waits(void **state)
{
    uint64_t fence;

    (void)state;
    lock("a/1");
    fence = f.reply.fence;
    assert_int_equal(try("a/k-1"), DIBS__BUSY);
    assert_int_equal(f.asked, 0);
    assert_int_equal(keep("a/1", fence), DIBS__GRANTED);
    assert_int_equal(lock("a/k-1"), DIBS__QUEUED);
    assert_int_equal(f.asked, 1);
    pass(SEC);
    assert_int_equal(keep("a/1", fence), DIBS__RESUMED);
    assert_true(f.reply.remaining == LEASE - SEC); /* no longer than it had */
    assert_int_equal(keep("a/k-1", 0), DIBS__QUEUED);
    assert_int_equal(release("a/1", fence), DIBS__RELEASED);
    assert_woken("a", NULL);
    assert_int_equal(keep("a/k-1", 0), DIBS__GRANTED);
    assert_int_equal(keep("a/1", fence), DIBS__RESUMED);
}

static void another_handle_waits_until_the_lease_ends(void **state)
{
    (void)state;
    lock("a/1");
    lock("a/k-1");
    for (int i = 0; i < 5; i++) {
        pass(5 * SEC);
        assert_int_equal(keep("a/1", 0), DIBS__RESUMED);
        assert_int_equal(keep("a/k-1", 0), DIBS__QUEUED);
    }
    pass(5 * SEC);
    assert_int_equal(keep("a/k-1", 0), DIBS__GRANTED);
}

/* It would fit beside the old one: it waits just the same, and so do those behind it. */
static void another_handle_waits_for_a_shared_one(void **state)
{
    (void)state;
    share("a/1");
    assert_int_equal(share("a/k-1"), DIBS__QUEUED);
    assert_int_equal(f.asked, 1);
    assert_int_equal(share("b"), DIBS__QUEUED);
    assert_int_equal(settle(), DIBS__RELEASED);
    assert_int_equal(keep("a/1", 0), DIBS__RESUMED);
    release("a/1", 0);
    assert_woken("a", "b");
}

/* Given back before its min_hold is over, it belongs to nobody, and keeps its slot. */
static void another_handle_does_not_wait_for_a_kept_slot(void **state)
{
    command c = say(COMMAND_ACQUIRE, "a/1");

    (void)state;
    c.who.min_hold = 5 * SEC;
    c.who.weight = 1;
    c.window = WINDOW;
    assert_int_equal(run(&c), DIBS__GRANTED);
    share("a/k-1");
    release("a/1", 0);
    assert_woken("a", NULL);
}

static void another_handle_that_leaves_asks_no_more(void **state)
{
    (void)state;
    lock("a/1");
    lock("a/k-1");
    cancel("a/k-1");
    assert_int_equal(keep("a/1", 0), DIBS__GRANTED);
    lock("b");
    lock("a/k-2");
    pass(WINDOW + SEC); /* it died in the queue, behind another */
    assert_int_equal(keep("a/1", 0), DIBS__GRANTED);
}

static void another_handle_takes_the_place_in_the_queue(void **state)
{
    (void)state;
    lock("x");
    lock("a/1");
    lock("b");
    assert_int_equal(try("a/k-1"), DIBS__BUSY);
    assert_int_equal(keep("a/1", 0), DIBS__QUEUED);
    assert_int_equal(lock("a/k-2"), DIBS__QUEUED);
    assert_int_equal(keep("a/1", 0), DIBS__RESUMED);
    release("x", 0);
    assert_woken("a", NULL);
    assert_int_equal(keep("a/k-2", 0), DIBS__GRANTED);
}

static void exclusive_may_become_shared(void **state)
{
    (void)state;
    lock("a/1");
    share("b");
    assert_int_equal(share("a/2"), DIBS__GRANTED);
    assert_woken("b", NULL);
    assert_true(f.reply.floor == f.reply.fence);
}

/* The queue moved, so everybody who fits now must be served in the same step. */
static void a_waiter_that_asks_for_less_is_served(void **state)
{
    (void)state;
    take("a", 2, WINDOW);
    assert_int_equal(take("b/1", 2, WINDOW), DIBS__QUEUED);
    assert_int_equal(take("b/2", 1, WINDOW), DIBS__GRANTED);
    assert_int_equal(take("c/1", 3, WINDOW), DIBS__QUEUED);
    release("a", 0);
    take("d", 1, WINDOW);
    assert_int_equal(take("c/2", 2, WINDOW), DIBS__QUEUED); /* d was behind, and is now ahead */
    assert_woken("d", NULL);
}

/* ---- Several at once ------------------------------------------------------------------------- */

static void many_share(void **state)
{
    uint64_t first, second;

    (void)state;
    assert_int_equal(share("a"), DIBS__GRANTED);
    first = f.reply.fence;
    assert_int_equal(share("b"), DIBS__GRANTED);
    second = f.reply.fence;
    assert_true(second > first);
    assert_true(f.reply.floor == first);
    assert_int_equal(lock("x"), DIBS__QUEUED);
    release("a", first);
    assert_woken(NULL, NULL);
    assert_int_equal(keep("b", second), DIBS__GRANTED);
    assert_true(f.reply.floor == second);
    release("b", second);
    assert_woken("x", NULL);
}

static void one_release_can_serve_many(void **state)
{
    (void)state;
    lock("x");
    share("a");
    share("b");
    lock("y");
    share("c");
    release("x", 0);
    assert_woken("a", "b");
    assert_true(f.woken[1].fence > f.woken[0].fence);
    assert_true(f.woken[1].floor == f.woken[0].fence);
}

static void slots_are_counted(void **state)
{
    (void)state;
    assert_int_equal(take("a", 2, 0), DIBS__GRANTED);
    assert_int_equal(take("b", 2, 0), DIBS__BUSY);
    assert_int_equal(take("b", 1, 0), DIBS__GRANTED);
    assert_int_equal(take("c", 1, 0), DIBS__BUSY);
    assert_int_equal(take("c", 2, WINDOW), DIBS__QUEUED);
    assert_int_equal(release("b", 0), DIBS__RELEASED);
    assert_woken(NULL, NULL);
    assert_int_equal(take("d", 1, 0), DIBS__BUSY); /* would fit, but c is in the queue */
    release("a", 0);
    assert_woken("c", NULL);
}

static void capacity_is_kept(void **state)
{
    (void)state;
    assert_int_equal(take("a", 1, 0), DIBS__GRANTED);
    release("a", 0);
    f.capacity = 5;
    assert_int_equal(take("b", 1, 0), DIBS__MISMATCH);
    assert_int_equal(f.reply.capacity, 3);
    f.capacity = DIBS__PLAIN;
    assert_int_equal(lock("b"), DIBS__MISMATCH);
    f.capacity = 3;
    assert_int_equal(take("b", 3, 0), DIBS__GRANTED);
}

static void an_idle_lock_forgets_its_capacity_when_broken(void **state)
{
    uint64_t fence;

    (void)state;
    take("a", 1, 0);
    fence = f.reply.fence;
    release("a", 0);
    assert_int_equal(break_lock("root", false), DIBS__RELEASED);
    f.capacity = 7;
    assert_int_equal(take("b", 7, 0), DIBS__GRANTED);
    assert_true(f.reply.fence > fence);
}

static const struct CMUnitTest tests[] = {
    TEST(takes_what_is_free),
    TEST(refuses_what_is_taken),
    TEST(names_the_new_holder),
    TEST(names_the_holders_host),
    SLOTS(names_who_goes_first),
    TEST(repeats_the_same_answer),
    TEST(release_hands_over_to_the_head),
    TEST(serves_in_order_of_arrival),
    TEST(nobody_overtakes),
    TEST(cancel_leaves_the_queue),
    TEST(cancel_of_one_just_granted_gives_back),
    TEST(cancel_of_an_old_attempt_is_harmless),
    TEST(cancel_of_the_head_serves_the_next),
    TEST(who_wants_more_lets_the_next_in),
    TEST(a_dead_rival_asks_nobody_to_stop),
    TEST(strangers_change_nothing),
    TEST(resume_kills_the_old_grant),
    TEST(a_resumed_waiter_keeps_its_place),
    TEST(a_newer_attempt_may_ask_for_more),
    TEST(asking_for_more_goes_to_the_end_of_the_queue),
    TEST(an_older_attempt_cannot_take_over),
    TEST(attempts_are_compared_as_numbers),
    TEST(an_older_attempt_cannot_take_the_place),
    TEST(another_handle_waits),
    TEST(another_handle_waits_until_the_lease_ends),
    TEST(another_handle_waits_for_a_shared_one),
    TEST(another_handle_does_not_wait_for_a_kept_slot),
    TEST(another_handle_that_leaves_asks_no_more),
    TEST(another_handle_takes_the_place_in_the_queue),
    TEST(exclusive_may_become_shared),
    SLOTS(a_waiter_that_asks_for_less_is_served),
    TEST(many_share),
    TEST(one_release_can_serve_many),
    SLOTS(slots_are_counted),
    SLOTS(capacity_is_kept),
    SLOTS(an_idle_lock_forgets_its_capacity_when_broken),
};
TESTS(queue_tests, tests);
