/* Statuses and messages, and the clock's small arithmetic. */
#include "core/env.h"
#include "core/error.h"
#include "support/env.h"
#include "support/test.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

static void every_status_has_a_row(void **state)
{
    static const struct {
        dibs_status status;
        const char *name;
        int http, code;
    } rows[] = {
        {DIBS_OK, "OK", 200, 0},
        {DIBS_BUSY, "BUSY", 409, 75},
        {DIBS_LOST, "LOST", 410, 76},
        {DIBS_INVALID, "INVALID", 400, 64},
        {DIBS_UNAVAILABLE, "UNAVAILABLE", 503, 69},
        {DIBS_NO_MEMORY, "NO_MEMORY", 500, 71},
        {DIBS_CRASHED, "CRASHED", 409, 79},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_string_equal(dibs_status_name(rows[i].status), rows[i].name);
        assert_int_equal(dibs_status_http(rows[i].status), rows[i].http);
        assert_int_equal(dibs_status_exit_code(rows[i].status), rows[i].code);
    }
    for (int i = 0; i <= DIBS_TOO_FEW; i++)
        assert_true(strlen(dibs_status_text((dibs_status)i)) > 3);
    assert_int_equal(DIBS_TOO_FEW, 22); /* values never change */
    assert_int_equal(DIBS_UNKNOWN, 10);
}

static void an_unknown_status_is_no_crash(void **state)
{
    (void)state;
    assert_non_null(dibs_status_name((dibs_status)9999));
    assert_non_null(dibs_status_text((dibs_status)-1));
    assert_true(dibs_status_exit_code((dibs_status)9999) != 0);
}

static void every_loss_has_a_name(void **state)
{
    (void)state;
    for (int i = 0; i <= DIBS_LOSS_CLOSED; i++) {
        assert_true(strlen(dibs_loss_name((dibs_loss)i)) > 3);
        assert_true(strlen(dibs_loss_text((dibs_loss)i)) > 3);
    }
    assert_string_equal(dibs_loss_name(DIBS_LOSS_CLOSED), "closed");
    assert_string_equal(dibs_loss_name((dibs_loss)99), "unknown");
    assert_string_equal(dibs_loss_text((dibs_loss)-1), "unknown");
    assert_string_equal(dibs_once_state_name((dibs_once_state)3), "unknown");
    assert_string_equal(dibs_severity_name((dibs_severity)99), "unknown");
}

static void the_version_is_returned(void **state)
{
    char number[32];

    snprintf(number, sizeof number, "%u.%u.%u", DIBS_VERSION_NUMBER >> 16,
             DIBS_VERSION_NUMBER >> 8 & 0xff, DIBS_VERSION_NUMBER & 0xff);
    (void)state;
    assert_string_equal(dibs_version(), number);
    assert_int_equal(dibs_version_number(), DIBS_VERSION_NUMBER);
}

static void a_failure_says_what(void **state)
{
    dibs_error err = {0};

    (void)state;
    assert_int_equal(dibs__fail(&err, DIBS_BUSY, "lock '%s' of %d", "x", 5), DIBS_BUSY);
    assert_int_equal(err.status, DIBS_BUSY);
    assert_string_equal(err.message, "lock 'x' of 5");
    assert_int_equal(dibs__fail(NULL, DIBS_BUSY, "%s", "x"), DIBS_BUSY);
}

static void a_message_is_one_line(void **state)
{
    dibs_error err = {0};

    (void)state;
    dibs__fail(&err, DIBS_BUSY, "a%sb", "\n\t\x1b[31m\x7f");
    assert_string_equal(err.message, "a???[31m?b");
}

static void wrapping_puts_words_before(void **state)
{
    dibs_error err = {0};

    (void)state;
    dibs__fail(&err, DIBS_UNKNOWN, "timed out");
    dibs__wrap(&err, "node %d", 2);
    dibs__wrap(&err, "redlock");
    assert_string_equal(err.message, "redlock: node 2: timed out");
    dibs__wrap(&err, "redlock"); /* not twice */
    assert_string_equal(err.message, "redlock: node 2: timed out");
    dibs__wrap(&err, "red");
    assert_string_equal(err.message, "red: redlock: node 2: timed out");
    assert_int_equal(err.status, DIBS_UNKNOWN);
    dibs__wrap(NULL, "nothing");
}

/* The answer to a look was lost: the call says that the engine is unavailable, and why. */
static void a_lost_look_keeps_its_reason(void **state)
{
    dibs_error err = {0};

    (void)state;
    dibs__fail(&err, DIBS_UNKNOWN, "the connection to here was lost");
    assert_int_equal(dibs__error_settle(&err, DIBS_UNAVAILABLE, DIBS_NEXT_INSPECT),
                     DIBS_UNAVAILABLE);
    assert_int_equal(err.status, DIBS_UNAVAILABLE);
    assert_string_equal(err.message, "the connection to here was lost");
    assert_int_equal(dibs__error_settle(&err, DIBS_DENIED, DIBS_NEXT_INSPECT),
                     DIBS_DENIED); /* of another's failure */
    assert_string_equal(err.message, dibs_status_text(DIBS_DENIED));
}

static void long_messages_are_cut(void **state)
{
    static char text[5000];
    dibs_error err = {0};

    (void)state;
    memset(text, 'm', sizeof text - 1);
    dibs__fail(&err, DIBS_BUSY, "%s", text);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    dibs__wrap(&err, "front");
    assert_memory_equal(err.message, "front: mmm", 10);
    assert_true(strlen(err.message) < sizeof err.message);
    dibs__wrap(&err, "%s", text);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    dibs__wrap(&err, "%s", "");
    assert_true(strlen(err.message) < sizeof err.message);
    dibs__fail(&err, DIBS_BUSY, "inner");
    dibs__wrap(&err, "%.1018s", text);
    assert_true(strlen(err.message) < sizeof err.message);
}

static void deadlines_do_not_overflow(void **state)
{
    sim_env sim;

    (void)state;
    sim_env_init(&sim, 1);
    assert_true(dibs__after(&sim.env, 5) == sim.boottime + 5);
    assert_true(dibs__after(&sim.env, INT64_MAX) == DIBS__NEVER);
    assert_true(dibs__after(&sim.env, -7) == sim.boottime);
    assert_true(dibs__after(&sim.env, INT64_MIN) == sim.boottime);
}

static void poll_times_round_up(void **state)
{
    sim_env sim;

    (void)state;
    sim_env_init(&sim, 1);
    assert_int_equal(dibs__poll_ms(&sim.env, DIBS__NEVER), -1);
    assert_int_equal(dibs__poll_ms(&sim.env, sim.boottime), 0);
    assert_int_equal(dibs__poll_ms(&sim.env, sim.boottime - 1), 0);
    assert_int_equal(dibs__poll_ms(&sim.env, sim.boottime + 1), 1);
    assert_int_equal(dibs__poll_ms(&sim.env, sim.boottime + 1000), 1);
    assert_int_equal(dibs__poll_ms(&sim.env, sim.boottime + 1001), 2);
    assert_int_equal(dibs__poll_ms(&sim.env, DIBS__NEVER - 1), INT_MAX);
}

static void the_system_has_clocks(void **state)
{
    unsigned char a[16] = {0}, b[16] = {0};
    int64_t now = dibs__now(&dibs__env_system);

    (void)state;
    assert_true(now > 0);
    assert_true(dibs__now(&dibs__env_system) >= now);
    assert_true(dibs__env_system.wall(dibs__env_system.ctx) > 1600000000 * DIBS__SECOND);
    dibs__env_system.random(dibs__env_system.ctx, a, sizeof a);
    dibs__env_system.random(dibs__env_system.ctx, b, sizeof b);
    assert_memory_not_equal(a, b, sizeof a);
}

/* What to do next depends on the call, and of an earlier failure nothing is left. */
static void an_error_says_what_to_do(void **state)
{
    dibs_error err = {0};

    (void)state;
    dibs__fail(&err, DIBS_RUNNING, "busy");
    dibs__error_holder(&err, "me", "here", 7, 8, 90);
    dibs__error_code(&err, "%d", 40001);
    dibs__error_settle(&err, DIBS_RUNNING, DIBS_NEXT_REPEAT);
    assert_int_equal(err.next, DIBS_NEXT_LATER);
    assert_int_equal(err.retry_after_ms, 90);
    assert_string_equal(err.owner, "me");
    assert_string_equal(err.engine_code, "40001");
    dibs__fail(&err, DIBS_UNKNOWN, "no answer");
    assert_string_equal(err.owner, "");
    assert_string_equal(err.engine_code, "");
    assert_int_equal(err.pid, 0);
    dibs__error_settle(&err, DIBS_UNKNOWN, DIBS_NEXT_REPEAT);
    assert_int_equal(err.next, DIBS_NEXT_REPEAT);
    dibs__fail(&err, DIBS_UNAVAILABLE, "away");
    dibs__error_settle(&err, DIBS_UNAVAILABLE, DIBS_NEXT_NONE);
    assert_int_equal(err.next, DIBS_NEXT_NONE);
    dibs__error_settle(&err, DIBS_UNAVAILABLE, DIBS_NEXT_INSPECT);
    assert_int_equal(err.next, DIBS_NEXT_LATER);
    dibs__error_settle(&err, DIBS_OK, DIBS_NEXT_INSPECT);
    assert_int_equal(err.next, DIBS_NEXT_NONE);
    assert_string_equal(dibs_next_name(DIBS_NEXT_RESTART), "restart");
    assert_string_equal(dibs_next_name((dibs_next)99), "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_row),
        cmocka_unit_test(an_unknown_status_is_no_crash),
        cmocka_unit_test(every_loss_has_a_name),
        cmocka_unit_test(the_version_is_returned),
        cmocka_unit_test(a_failure_says_what),
        cmocka_unit_test(an_error_says_what_to_do),
        cmocka_unit_test(a_message_is_one_line),
        cmocka_unit_test(wrapping_puts_words_before),
        cmocka_unit_test(a_lost_look_keeps_its_reason),
        cmocka_unit_test(long_messages_are_cut),
        cmocka_unit_test(deadlines_do_not_overflow),
        cmocka_unit_test(poll_times_round_up),
        cmocka_unit_test(the_system_has_clocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
