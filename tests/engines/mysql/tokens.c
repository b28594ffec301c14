/* Tokens grow, whatever the server's rows and clocks do. */
#define _GNU_SOURCE
#include "suite.h"

#include "support/faketime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUMMER_ENDS 1792890000 /* 2026-10-25 01:00 UTC */

/* Those who wait for the row while somebody raises its fence go on from there. */
static void a_fence_raised_meanwhile_counts(void **state)
{
    dibs *a = open_app(), *b = open_app();
    MYSQL *m = mysql_init(NULL);
    uint64_t raised;
    char sql[256];
    waiter w[2];

    (void)state;
    unlock(take(a, "raised", 0));
    unlock(take(b, "raised", 0));
    assert_non_null(mysql_real_connect(m, "127.0.0.1", "other", "other", "dibs",
                                       (unsigned)the_server.port, NULL, 0));
    raised = (uint64_t)ask(&the_server, "SELECT fence + 60000000 FROM dibs.dibs_lock "
                                        "WHERE name = 'raised'");
    mysql_query(m, "BEGIN");
    snprintf(sql, sizeof sql, "UPDATE dibs_lock SET fence = %llu WHERE name = 'raised'",
             (unsigned long long)raised);
    assert_int_equal(mysql_query(m, sql), 0);
    waiter_start(&w[0], a, "raised", 0, false);
    waiter_start(&w[1], b, "raised", 0, false);
    sleep_ms(300);
    mysql_query(m, "COMMIT");
    mysql_close(m);
    waiter_join(&w[0]);
    waiter_join(&w[1]);
    assert_true(w[0].fence > raised && w[1].fence > raised);
    assert_true(w[0].fence != w[1].fence);
    dibs_close(a);
    dibs_close(b);
}

/* A record that nobody has used for a day is dropped, by one handle in sixteen; its name goes on
 * above what it had. */
static void a_reaped_lock_goes_on_higher(void **state)
{
    dibs *d = open_app();
    uint64_t old = dibs_grant_fence(take(d, "keep", 0)), now;
    int64_t left = 1;

    (void)state;
    unlock(take(d, "reaped", 0));
    ask(&the_server, "UPDATE dibs.dibs_lock SET fence = fence - 90000000000 WHERE name = 'reaped'");
    old = (uint64_t)ask(&the_server, "SELECT fence FROM dibs.dibs_lock WHERE name = 'reaped'");
    for (int i = 0; i < 400 && left; i++) {
        dibs *e = open_app();
        unlock(take(e, "bystander", 0));
        dibs_close(e);
        left = ask(&the_server, "SELECT COUNT(*) FROM dibs.dibs_lock WHERE name = 'reaped'");
    }
    assert_int_equal(left, 0);
    assert_int_equal(ask(&the_server, "SELECT COUNT(*) FROM dibs.dibs_lock WHERE name = 'keep'"),
                     1);
    dibs_grant *g = take(d, "reaped", 0);
    now = dibs_grant_fence(g);
    assert_true(now > old);
    unlock(g);
    dibs_close(d);
}

/* ---- Clocks ------------------------------------------------------------------------------------
 */

static uint64_t server_clock(void)
{
    return (uint64_t)ask(&the_server,
                         "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)");
}

/* Set back by an hour under a holder and a waiter. */
static void a_clock_set_back_does_not_matter(void **state)
{
    uint64_t before;
    dibs_grant *g;
    dibs *a, *b;
    waiter w;

    (void)state;
    faketime_need();
    need_server();
    faketime_begin(&the_server, 0, "UTC");
    a = open_app();
    b = open_app();
    g = take(a, "back", 3000);
    before = dibs_grant_fence(g);
    waiter_start(&w, b, "back", 3000, false);
    wait_for_waiters(a, "back", 1);
    faketime_set(&the_server, -3600);
    assert_true(server_clock() < before); /* else nothing is tested here */
    for (int i = 0; i < 10; i++) {
        sleep_ms(450);
        assert_true(dibs_grant_held(g));
        assert_in_range(dibs_grant_remaining_ms(g), 1, 3000);
    }
    assert_status(unlock(g), DIBS_OK);
    waiter_join(&w);
    assert_true(w.fence > before);
    before = w.fence;
    for (int i = 0; i < 3; i++) {
        g = take(a, "back", 0);
        assert_true(dibs_grant_fence(g) > before);
        before = dibs_grant_fence(g);
        unlock(g);
    }
    assert_true(server_clock() < before);
    faketime_end(&the_server);
    dibs_close(a);
    dibs_close(b);
}

/* 2026-10-25, 03:00 in Berlin: the clocks go back to 02:00. */
static void the_end_of_summer_time_does_not_matter(void **state)
{
    uint64_t last = 0;
    dibs *d;

    (void)state;
    faketime_need();
    need_server();
    faketime_begin(&the_server, faketime_until(SUMMER_ENDS - 50), "Europe/Berlin");
    assert_int_equal(ask(&the_server, "SELECT HOUR(SYSDATE()) * 100 + MINUTE(SYSDATE())"), 259);
    faketime_set(&the_server, faketime_until(SUMMER_ENDS - 2));
    d = open_app();
    for (int i = 0; i < 250; i++) {
        dibs_grant *g = take(d, "summer", 0);
        assert_true(dibs_grant_fence(g) > last);
        /* A fence is the clock: had it gone back, it would only count on from here. */
        assert_true(last == 0 || dibs_grant_fence(g) - last > 1000);
        last = dibs_grant_fence(g);
        sleep_ms(20);
        assert_true(dibs_grant_held(g));
        unlock(g);
    }
    assert_int_equal(ask(&the_server, "SELECT HOUR(SYSDATE())"), 2); /* once more */
    assert_true(ask(&the_server, "SELECT MINUTE(SYSDATE())") < 30);
    dibs_close(d);
    faketime_end(&the_server);
}

static const struct CMUnitTest all[] = {
    CASE(a_fence_raised_meanwhile_counts),
    CASE(a_reaped_lock_goes_on_higher),
    CASE(the_end_of_summer_time_does_not_matter),
    CASE(a_clock_set_back_does_not_matter),
};

CASES(token_cases, all);
