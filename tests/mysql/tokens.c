/* Tokens grow, whatever the server's rows and clocks do. */
#define _GNU_SOURCE
#include "mysql/suite.h"

#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Those who wait for the row while somebody raises its fence go on from there. */
static void a_fence_raised_meanwhile_counts(void **state)
{
    dibs *a = open_app(), *b = open_app();
    MYSQL *m = mysql_init(NULL);
    uint64_t raised;
    char sql[256];
    waiter w[2];

    (void)state;
    dibs_unlock(take(a, "raised", 0));
    dibs_unlock(take(b, "raised", 0));
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
    uint64_t old = dibs_fence(take(d, "keep", 0)), now;
    int64_t left = 1;

    (void)state;
    dibs_unlock(take(d, "reaped", 0));
    ask(&the_server, "UPDATE dibs.dibs_lock SET fence = fence - 90000000000 WHERE name = 'reaped'");
    old = (uint64_t)ask(&the_server, "SELECT fence FROM dibs.dibs_lock WHERE name = 'reaped'");
    for (int i = 0; i < 400 && left; i++) {
        dibs *e = open_app();
        dibs_unlock(take(e, "bystander", 0));
        dibs_close(e);
        left = ask(&the_server, "SELECT COUNT(*) FROM dibs.dibs_lock WHERE name = 'reaped'");
    }
    assert_int_equal(left, 0);
    assert_int_equal(ask(&the_server, "SELECT COUNT(*) FROM dibs.dibs_lock WHERE name = 'keep'"),
                     1);
    dibs_grant *g = take(d, "reaped", 0);
    now = dibs_fence(g);
    assert_true(now > old);
    dibs_unlock(g);
    dibs_close(d);
}

/* ---- Clocks ------------------------------------------------------------------------------------
 */

static bool faketime(char *out, size_t size)
{
    static const char *const places[] = {"/usr/lib/*/faketime/libfaketimeMT.so.1",
                                         "/usr/lib/faketime/libfaketimeMT.so.1",
                                         "/usr/local/lib/faketime/libfaketimeMT.so.1"};
    bool found = false;

    for (size_t i = 0; i < 3 && !found; i++) {
        glob_t g;
        found = glob(places[i], 0, NULL, &g) == 0;
        if (found)
            snprintf(out, size, "%s", g.gl_pathv[0]);
        globfree(&g);
    }
    return found;
}

static void need_faketime(char *library, size_t size)
{
    if (faketime(library, size))
        return;
    if (server_required())
        fail_msg("libfaketime is not installed, and is required here");
    skip();
}

/* Restarts the server of the suite with another clock. */
static void restart_at(const char *library, const char *when, const char *zone)
{
    database_end(&the_server, SIGTERM);
    if (library) {
        setenv("LD_PRELOAD", library, 1);
        setenv("FAKETIME", when, 1);
        setenv("FAKETIME_FMT", "%s", 1);
        setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1", 1);
        setenv("TZ", zone, 1);
    }
    assert_int_equal(database_restart(&the_server), 0);
    unsetenv("LD_PRELOAD");
    unsetenv("FAKETIME");
    unsetenv("FAKETIME_FMT");
    unsetenv("TZ");
}

static void a_clock_set_back_does_not_matter(void **state)
{
    char library[256];
    uint64_t before;
    int64_t clock;
    dibs_grant *g;
    dibs *d;

    (void)state;
    need_faketime(library, sizeof library);
    d = open_app();
    g = take(d, "back", 0);
    before = dibs_fence(g);
    dibs_unlock(g);
    restart_at(library, "-1h", "UTC");
    clock = ask(&the_server, "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)");
    assert_true((uint64_t)clock < before); /* else nothing is tested here */
    for (int i = 0; i < 3; i++) {
        g = take(d, "back", 0);
        assert_true(dibs_fence(g) > before);
        before = dibs_fence(g);
        dibs_unlock(g);
    }
    restart_at(NULL, NULL, NULL);
    dibs_close(d);
}

/* 2026-10-25, 03:00 in Berlin: the clocks go back to 02:00. */
static void the_end_of_summer_time_does_not_matter(void **state)
{
    char library[256];
    uint64_t last = 0;
    int64_t first_hour, begin;
    dibs *d;

    (void)state;
    need_faketime(library, sizeof library);
    need_server();
    restart_at(library, "@1792889997", "Europe/Berlin"); /* 00:59:57 UTC: 02:59:57 the first time */
    first_hour = ask(&the_server, "SELECT HOUR(SYSDATE()) * 100 + MINUTE(SYSDATE())");
    assert_int_equal(first_hour, 259);
    d = open_app();
    begin = clock_ms();
    while (clock_ms() - begin < 5000) {
        dibs_grant *g = take(d, "summer", 0);
        assert_true(dibs_fence(g) > last);
        /* A fence is the clock: had it gone back, it would only count on from here. */
        assert_true(last == 0 || dibs_fence(g) - last > 1000);
        last = dibs_fence(g);
        sleep_ms(20);
        assert_true(dibs_held(g));
        dibs_unlock(g);
    }
    assert_in_range(ask(&the_server, "SELECT HOUR(SYSDATE())"), 2, 2);
    assert_true(ask(&the_server, "SELECT MINUTE(SYSDATE())") < 10);
    dibs_close(d);
    restart_at(NULL, NULL, NULL);
}

static const struct CMUnitTest all[] = {
    CASE(a_fence_raised_meanwhile_counts),
    CASE(a_reaped_lock_goes_on_higher),
    CASE(the_end_of_summer_time_does_not_matter),
    CASE(a_clock_set_back_does_not_matter),
};

CASES(token_cases, all);
