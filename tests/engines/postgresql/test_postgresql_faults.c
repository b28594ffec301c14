/* The PostgreSQL engine when things break: sessions that are ended, servers that crash or are
 * full, wires that are cut or silent. */
#define _GNU_SOURCE
#include "pg.h"

#include "support/clock.h"
#include "support/proxy.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Sessions that end ----------------------------------------------------------------------- */

static void terminate_all(void)
{
    pg_ask(pg_control, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                       "WHERE application_name = 'dibs'");
}

static void terminated_under_a_holder(void **state)
{
    dibs *d;
    dibs_grant *g;

    (void)state;
    pg_need();
    d = pg_open(pg_url);
    g = expect_lock(d, "terminated", &(dibs_lock_options){.lease_ms = 3000});
    for (int i = 0; i < 5; i++) {
        terminate_all();
        sleep_ms(900);
        assert_true(dibs_grant_held(g));
    }
    assert_int_equal(unlock(g), DIBS_OK);
    dibs_close(d);
}

static void terminated_under_waiters(void **state)
{
    dibs *handles[3];
    dibs_grant *g;
    team t;

    (void)state;
    pg_need();
    for (int i = 0; i < 3; i++)
        handles[i] = pg_open(pg_url);
    g = expect_lock(handles[0], "line", NULL);
    team_start(&t, handles, 3, 12, 1, "line");
    pg_wait_for_queue(12);
    terminate_all(); /* the listening connections too */
    unlock(g);
    team_end(&t);
    assert_int_equal(atomic_load(&t.done), 12);
    for (int i = 0; i < 3; i++)
        dibs_close(handles[i]);
}

static void crash_under_holders_and_waiters(void **state)
{
    dibs *handles[6];
    dibs_grant *held[8];
    uint64_t fence[8];
    char name[8][16];
    team t;

    (void)state;
    pg_need();
    for (int i = 0; i < 6; i++)
        handles[i] = pg_open(pg_url);
    for (int i = 0; i < 8; i++) {
        snprintf(name[i], sizeof name[i], "crash%d", i);
        held[i] = expect_lock(handles[i % 6], name[i], NULL);
        fence[i] = dibs_grant_fence(held[i]);
    }
    team_start(&t, handles, 6, 50, 2, name[0]);
    pg_wait_for_queue(50);
    PQfinish(pg_control);
    database_end(&pg_db, SIGQUIT); /* every process dies at once, nothing is written down */
    assert_int_equal(database_restart(&pg_db), 0);
    pg_control = pg_dial();
    for (int i = 0; i < 8; i++)
        assert_true(dibs_grant_held(held[i]));
    t.last = fence[0];
    assert_int_equal(unlock(held[0]), DIBS_OK);
    team_end(&t);
    assert_int_equal(atomic_load(&t.done), 100);
    for (int i = 1; i < 8; i++) {
        assert_int_equal(unlock(held[i]), DIBS_OK);
        dibs_grant *g = expect_lock(handles[0], name[i], NULL);
        assert_true(dibs_grant_fence(g) > fence[i]);
        unlock(g);
    }
    for (int i = 0; i < 6; i++)
        dibs_close(handles[i]);
}

static void no_connection_left(void **state)
{
    PGconn *others[64];
    size_t count = 0;
    dibs_error err = {0};
    dibs *d, *late = NULL;
    dibs_grant *g;
    char info[160];

    (void)state;
    pg_need();
    pg_ask(pg_control, "CREATE ROLE many LOGIN IN ROLE pg_read_all_data, pg_write_all_data");
    snprintf(info, sizeof info, "postgresql://many@127.0.0.1:%d/postgres", pg_db.port);
    d = pg_open(info);
    g = expect_lock(d, "full", &(dibs_lock_options){.lease_ms = 3000});
    snprintf(info, sizeof info, "host=127.0.0.1 port=%d user=many dbname=postgres", pg_db.port);
    while (count < 64) {
        others[count] = PQconnectdb(info);
        if (PQstatus(others[count++]) != CONNECTION_OK)
            break;
    }
    snprintf(info, sizeof info, "postgresql://many@127.0.0.1:%d/postgres", pg_db.port);
    assert_int_equal(dibs_open(info, NULL, &late, &err), DIBS_UNAVAILABLE);
    for (int i = 0; i < 10; i++) {
        sleep_ms(450);
        assert_true(dibs_grant_held(g)); /* renewed on what it has */
    }
    for (size_t i = 0; i < count; i++)
        PQfinish(others[i]);
    assert_int_equal(unlock(g), DIBS_OK);
    dibs_close(d);
}

/* ---- The wire -------------------------------------------------------------------------------- */

/* The exchange is cut after k bytes, up or down, for every k: the caller gets the lock all the
 * same, once. */
static void cut_at_every_byte(proxy_way way, const char *name, const char *where, proxy *p)
{
    uint64_t last = 0;

    for (int64_t k = 0; k < 3000; k += k < 600 ? 7 : 61) {
        dibs_error err = {0};
        dibs_grant *g = NULL;
        proxy_counts seen;
        dibs *d = pg_open(where);
        unlock(expect_lock(d, name, NULL)); /* statements are prepared */
        proxy_reset_counts(p);
        proxy_cut(p, way, k, k % 2);
        if (dibs_lock(d, name, &(dibs_lock_options){.wait_ms = 8000}, &g, &err) != DIBS_OK)
            fail_msg("cut at %" PRId64 ": %s", k, err.message);
        assert_true(dibs_grant_fence(g) > last);
        last = dibs_grant_fence(g);
        assert_string_equal(pg_ask(pg_control, "SELECT holders FROM dibs_lock WHERE name = 'wire'"),
                            "1");
        dibs_status status = unlock(g);
        if (status != DIBS_OK && status != DIBS_UNKNOWN)
            fail_msg("cut at %" PRId64 ": unlock says %s", k, dibs_status_name(status));
        proxy_read(p, &seen);
        proxy_heal(p);
        dibs_close(d);
        assert_string_equal(pg_ask(pg_control, "SELECT holders FROM dibs_lock WHERE name = 'wire'"),
                            "0");
        if (seen.cuts == 0)
            break; /* the whole exchange is shorter */
    }
}

static void the_wire_is_cut(void **state)
{
    proxy *p;
    char where[128];

    (void)state;
    pg_need();
    p = proxy_start(pg_db.port);
    snprintf(where, sizeof where, "postgresql://postgres@127.0.0.1:%d/postgres?sslmode=disable",
             proxy_port(p));
    cut_at_every_byte(PROXY_UP, "wire", where, p);
    cut_at_every_byte(PROXY_DOWN, "wire", where, p);
    proxy_stop(p);
}

static void a_silent_server_keeps_nobody(void **state)
{
    proxy *p;
    char where[128];
    dibs_error err = {0};
    dibs_grant *g = NULL;
    dibs *d;
    int64_t begun;

    (void)state;
    pg_need();
    p = proxy_start(pg_db.port);
    snprintf(where, sizeof where, "postgresql://postgres@127.0.0.1:%d/postgres?sslmode=disable",
             proxy_port(p));
    d = pg_open(where);
    unlock(expect_lock(d, "silent", NULL));
    proxy_drip(p, PROXY_DOWN, 1000);
    begun = clock_ms();
    assert_int_equal(dibs_lock(d, "silent", &(dibs_lock_options){.wait_ms = 700}, &g, &err),
                     DIBS_UNAVAILABLE);
    assert_in_range(clock_ms() - begun, 600, 8000); /* a whole answer would take far longer */
    proxy_heal(p);
    assert_int_equal(unlock(expect_lock(d, "silent", &(dibs_lock_options){.wait_ms = LONG_MS})),
                     DIBS_OK);
    dibs_close(d);
    proxy_stop(p);
}

int main(int argc, char *argv[])
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(terminated_under_a_holder),
        cmocka_unit_test(terminated_under_waiters),
        cmocka_unit_test(crash_under_holders_and_waiters),
        cmocka_unit_test(no_connection_left),
        cmocka_unit_test(the_wire_is_cut),
        cmocka_unit_test(a_silent_server_keeps_nobody),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("postgresql-faults", tests, pg_setup, pg_teardown);
}
