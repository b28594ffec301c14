/* The PostgreSQL engine and the server's clock: fences grow and leases stay what they are when it is
 * set back or forward under holders and waiters, and at the end of summer time. */
#define _GNU_SOURCE
#include "pg.h"

#include "support/clock.h"
#include "support/faketime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOUR_S      3600
#define LEASE_MS    3000
#define SUMMER_ENDS 1792890000 /* 2026-10-25 01:00 UTC */

static void begin(int64_t ahead)
{
    PQfinish(pg_control);
    faketime_begin(&pg_db, ahead, NULL);
    pg_control = pg_dial();
}

static void end(void)
{
    PQfinish(pg_control);
    faketime_end(&pg_db);
    pg_control = pg_dial();
}

static uint64_t server_clock(void)
{
    return strtoull(
        pg_ask(pg_control, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"),
        NULL, 10);
}

static void stays_held(dibs_grant *g)
{
    for (int i = 0; i < 10; i++) { /* longer than a lease */
        sleep_ms(LEASE_MS * 3 / 20);
        assert_true(dibs_grant_held(g));
        assert_in_range(dibs_grant_remaining_ms(g), 1, LEASE_MS);
    }
}

/* ---- Set ------------------------------------------------------------------------------------- */

static void set_back_under_holder_and_waiters(void **state)
{
    dibs *handles[2];
    uint64_t before;
    dibs_grant *g;
    team t;

    (void)state;
    pg_need();
    faketime_need();
    begin(0);
    for (int i = 0; i < 2; i++)
        handles[i] = pg_open(pg_url);
    g = expect_lock(handles[0], "back", &(dibs_lock_options){.lease_ms = LEASE_MS});
    before = dibs_grant_fence(g);
    team_start(&t, handles, 2, 6, 2, "back");
    pg_wait_for_queue(6);
    faketime_set(&pg_db, -HOUR_S);
    assert_true(server_clock() < before); /* else nothing is tested here */
    stays_held(g);
    t.last = before;
    assert_int_equal(unlock(g), DIBS_OK);
    team_end(&t);
    assert_int_equal(atomic_load(&t.done), 12);
    before = t.last;
    for (int i = 0; i < 3; i++) {
        g = expect_lock(handles[i % 2], "back",
                        i == 1 ? &(dibs_lock_options){.shared = true} : NULL);
        assert_int_equal(dibs_grant_fence(g), before + 1); /* by one, while the clock is behind */
        before = dibs_grant_fence(g);
        assert_int_equal(unlock(g), DIBS_OK);
    }
    assert_true(server_clock() < before);
    for (int i = 0; i < 2; i++)
        dibs_close(handles[i]);
    end();
}

/* A lease that began after the clock was set back ends like any other. */
static void a_lease_after_that_ends_in_time(void **state)
{
    dibs *handles[2];
    dibs_grant *g, *h;

    (void)state;
    pg_need();
    faketime_need();
    begin(0);
    for (int i = 0; i < 2; i++)
        handles[i] = pg_open(pg_url);
    unlock(expect_lock(handles[0], "ends", NULL));
    faketime_set(&pg_db, -HOUR_S);
    g = expect_lock(handles[0], "ends", &(dibs_lock_options){.lease_ms = 1000, .no_renew = true});
    h = expect_lock(handles[1], "ends", &(dibs_lock_options){.wait_ms = LONG_MS});
    assert_true(dibs_grant_fence(h) > dibs_grant_fence(g));
    assert_false(dibs_grant_held(g));
    assert_int_equal(unlock(g), DIBS_LOST);
    assert_int_equal(unlock(h), DIBS_OK);
    for (int i = 0; i < 2; i++)
        dibs_close(handles[i]);
    end();
}

/* Its lease is over for the server: the holder is told so, and by nobody before its own clock says
 * so. Fences go on, above those of the hour that was skipped. */
static void set_forward_under_a_holder(void **state)
{
    dibs *d;
    dibs_grant *g, *h;

    (void)state;
    pg_need();
    faketime_need();
    begin(-HOUR_S);
    d = pg_open(pg_url);
    g = expect_lock(d, "forward", &(dibs_lock_options){.lease_ms = LEASE_MS, .owner = "one"});
    stays_held(g);
    faketime_set(&pg_db, 0);
    h = expect_lock(d, "forward", &(dibs_lock_options){.owner = "two", .wait_ms = LONG_MS});
    assert_true(dibs_grant_fence(h) > dibs_grant_fence(g) + (HOUR_S - 60) * 1000000ull);
    assert_int_equal(unlock(g), DIBS_LOST);
    assert_int_equal(unlock(h), DIBS_OK);
    dibs_close(d);
    end();
}

/* ---- Summer time ----------------------------------------------------------------------------- */

/* 2026-10-25, 03:00 in Berlin: the clocks go back to 02:00. */
static void the_end_of_summer_time_does_not_matter(void **state)
{
    uint64_t last = 0;
    char text[256];
    dibs *d;

    (void)state;
    pg_need();
    faketime_need();
    pg_ask(pg_control, "ALTER SYSTEM SET timezone = 'Europe/Berlin'");
    begin(faketime_until(SUMMER_ENDS - 50));
    assert_string_equal(pg_ask(pg_control, "SELECT to_char(clock_timestamp(), 'HH24:MI')"),
                        "02:59");
    snprintf(text, sizeof text, "%s?application_name=summer", pg_url);
    d = pg_open(text);
    faketime_set(&pg_db, faketime_until(SUMMER_ENDS - 2));
    for (int i = 0; i < 250; i++) {
        dibs_grant *g = expect_lock(d, "summer", NULL);
        assert_true(dibs_grant_fence(g) > last);
        /* A fence is the clock: had it gone back, it would only count on from here. */
        assert_true(last == 0 || dibs_grant_fence(g) - last > 1000);
        last = dibs_grant_fence(g);
        sleep_ms(20);
        assert_true(dibs_grant_held(g));
        assert_int_equal(unlock(g), DIBS_OK);
    }
    assert_string_equal(pg_ask(pg_control, "SELECT to_char(clock_timestamp(), 'HH24')"), "02");
    assert_true(last > SUMMER_ENDS * 1000000ull);
    dibs_close(d);
    pg_ask(pg_control, "ALTER SYSTEM RESET timezone");
    end();
}

int main(int argc, char *argv[])
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_back_under_holder_and_waiters),
        cmocka_unit_test(a_lease_after_that_ends_in_time),
        cmocka_unit_test(set_forward_under_a_holder),
        cmocka_unit_test(the_end_of_summer_time_does_not_matter),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("postgresql-clock", tests, pg_setup, pg_teardown);
}
