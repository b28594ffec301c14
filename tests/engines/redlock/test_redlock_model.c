/* Redlock's argument, searched: the sound scheme keeps the rules in every state that can be reached, and
 * each scheme that lacks a part of it is caught. See model.h. */
#include "support/test.h"

#include "model.h"

static void keeps_the_rules(const world *w)
{
    finding found;

    model_explore(w, &found);
    print_message("# %s: %zu states%s\n", w->label, found.states,
                  found.full ? ", all that there is room for" : ", all that there are");
    if (found.wrong)
        fail_msg("%s after%s", found.wrong, found.how);
}

static void is_caught(const world *w)
{
    finding found;

    model_explore(w, &found);
    print_message("# %s: %s after%s\n", w->label, found.wrong ? found.wrong : "NOTHING NOTICED",
                  found.how);
    assert_non_null(found.wrong);
}

/* A restart may happen or not: this includes all that can happen without. One that keeps its data
 * only cuts connections, and every message may be lost here anyway. */
static void sound_with_retries_delays_expiry_and_restarts(void **unused)
{
    (void)unused;
    keeps_the_rules(&(world){"two tries and one, a restart", SOUND, 1, true, {1, 4}, {2, 1}});
}

static void sound_with_more_restarts(void **unused)
{
    (void)unused;
    keeps_the_rules(&(world){"one try each, clocks equal", SOUND, 3, true, {2, 2}, {1, 1}});
    keeps_the_rules(&(world){"one try each, restarts with data", SOUND, 3, false, {4, 1}, {1, 1}});
}

static void write_back_to_any_majority_is_caught(void **unused)
{
    (void)unused;
    is_caught(&(world){"any majority", ANY_MAJORITY, 0, false, {1, 1}, {2, 1}});
}

static void restarts_without_guard_are_caught(void **unused)
{
    (void)unused;
    is_caught(&(world){"no guard", NO_GUARD, 1, true, {1, 4}, {1, 1}});
}

static void releases_without_round_are_caught(void **unused)
{
    (void)unused;
    is_caught(&(world){"no round", NO_ROUND, 0, false, {1, 4}, {2, 1}});
}

static void questions_out_of_order_are_caught(void **unused)
{
    (void)unused;
    is_caught(&(world){"no order", NO_ORDER, 0, false, {1, 4}, {2, 1}});
}

static void a_notice_taken_for_a_vote_is_caught(void **unused)
{
    (void)unused;
    is_caught(&(world){"told is held", NOTICE_IS_HELD, 0, false, {1, 1}, {1, 1}});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_with_retries_delays_expiry_and_restarts),
        cmocka_unit_test(sound_with_more_restarts),
        cmocka_unit_test(write_back_to_any_majority_is_caught),
        cmocka_unit_test(restarts_without_guard_are_caught),
        cmocka_unit_test(releases_without_round_are_caught),
        cmocka_unit_test(questions_out_of_order_are_caught),
        cmocka_unit_test(a_notice_taken_for_a_vote_is_caught),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
