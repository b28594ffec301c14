/* Waiters that sleep in a statement and are woken by a cancel: that it comes to that, what it leaves behind, and
 * what happens where it cannot be, or goes wrong. A wake-up that is lost costs two seconds, until a keep-alive. */
#define _GNU_SOURCE
#include "pg.h"

#include "support/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLEEPERS  "FROM pg_stat_activity WHERE datname = 'template1' AND wait_event = 'PgSleep'"
#define LISTENERS "FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
#define HANDLES   8

typedef struct counted {
    const char *what;
    const char *want;
} counted;

static bool is_counted(void *ctx)
{
    const counted *c = ctx;
    char sql[256];

    snprintf(sql, sizeof sql, "SELECT count(*) %s", c->what);
    return strcmp(pg_ask(pg_control, sql), c->want) == 0;
}

static void await_count(const char *what, const char *want, int64_t ms)
{
    if (!wait_until(is_counted, &(counted){what, want}, ms))
        fail_msg("never %s %s", want, what);
}

static void open_all(dibs *handles[], size_t count, const char *user)
{
    char where[128];

    snprintf(where, sizeof where, "postgresql://%s@127.0.0.1:%d/postgres?wake_db=template1", user,
             pg_db.port);
    for (size_t i = 0; i < count; i++)
        handles[i] = pg_open(where);
}

static void close_all(dibs *handles[], size_t count)
{
    for (size_t i = 0; i < count; i++)
        dibs_close(handles[i]);
}

/* One hand-over after the other; if each of them waited for a keep-alive, it would take minutes. */
static void take_turns(dibs *handles[], size_t count, size_t threads, int rounds)
{
    int64_t start = clock_ms();
    team t;

    team_start(&t, handles, count, threads, rounds, "turns");
    team_end(&t);
    assert_int_equal(atomic_load(&t.done), (int)threads * rounds);
    if (clock_ms() - start > (int64_t)threads * rounds * 500)
        fail_msg("%zu hand-overs took %lld ms", threads * (size_t)rounds,
                 (long long)(clock_ms() - start));
}

/* They come to it when they next enter a queue; on a busy machine a connection may take several tries. */
static void take_turns_until(dibs *handles[], size_t count, size_t threads, const char *listeners)
{
    int64_t end = clock_ms() + LONG_MS;

    do
        take_turns(handles, count, threads, 5);
    while (!is_counted(&(counted){LISTENERS, listeners}) && clock_ms() < end);
    assert_true(is_counted(&(counted){LISTENERS, listeners}));
}

static void sleep_and_are_woken(void **state)
{
    dibs *handles[HANDLES];
    dibs_grant *g;
    team t;

    (void)state;
    pg_need();
    open_all(handles, HANDLES, "postgres");
    g = expect_lock(handles[0], "asleep", NULL);
    team_start(&t, handles + 1, HANDLES - 1, HANDLES - 1, 1, "asleep");
    await_count(SLEEPERS, "7", LONG_MS);
    assert_true(is_counted(&(counted){LISTENERS, "0"}));
    unlock(g);
    team_end(&t);
    take_turns(handles, HANDLES, HANDLES, 10);
    assert_true(is_counted(&(counted){LISTENERS, "0"}));
    close_all(handles, HANDLES);
    /* Sooner than they would have risen. */
    await_count("FROM pg_stat_activity WHERE datname = 'template1'", "0", 1500);
}

/* Dead versions of other rows go while somebody sleeps: the table stays as small as it is. */
static void keep_nothing_alive(void **state)
{
    dibs *handles[2];
    dibs_grant *g;
    team t;

    (void)state;
    pg_need();
    open_all(handles, 2, "postgres");
    g = expect_lock(handles[0], "kept", NULL);
    team_start(&t, handles + 1, 1, 1, 1, "kept");
    await_count(SLEEPERS, "1", LONG_MS);
    pg_ask(pg_control, "CREATE TABLE busy (id int PRIMARY KEY, n int) WITH (autovacuum_enabled = "
                       "off, fillfactor = 50)");
    pg_ask(pg_control, "INSERT INTO busy VALUES (1, 0)");
    pg_ask(pg_control,
           "DO $$BEGIN FOR i IN 1..5000 LOOP UPDATE busy SET n = n + 1; COMMIT; END LOOP; END$$");
    assert_int_equal(atol(pg_ask(pg_control, "SELECT pg_relation_size('busy') / 8192")), 1);
    unlock(g);
    team_end(&t);
    close_all(handles, 2);
}

/* The next keep-alive writes into the queue how the new session is found. */
static void a_session_that_ends_is_replaced(void **state)
{
    dibs *handles[2];
    char before[64];
    dibs_grant *g;
    team t;
    int64_t start;

    (void)state;
    pg_need();
    open_all(handles, 2, "postgres");
    g = expect_lock(handles[0], "ended", NULL);
    team_start(&t, handles + 1, 1, 1, 1, "ended");
    await_count(SLEEPERS, "1", LONG_MS);
    pg_wait_for_queue(1);
    snprintf(
        before, sizeof before, "%s",
        pg_ask(pg_control, "SELECT encode(wake, 'escape') FROM dibs_waiter WHERE name = 'ended'"));
    assert_non_null(strchr(before, '.'));
    pg_ask(pg_control, "SELECT count(pg_terminate_backend(pid)) " SLEEPERS);
    for (start = clock_ms(); clock_ms() - start < LONG_MS;) {
        char sql[400];
        snprintf(sql, sizeof sql,
                 "SELECT count(*) FROM dibs_waiter w JOIN pg_stat_activity a ON "
                 "encode(w.wake, 'escape') LIKE '%%.' || a.pid || '.%%' WHERE w.name = 'ended' "
                 "AND a.wait_event = 'PgSleep' AND encode(w.wake, 'escape') <> '%s'",
                 before);
        if (strcmp(pg_ask(pg_control, sql), "1") == 0)
            break;
        sleep_ms(10);
    }
    assert_true(clock_ms() - start < LONG_MS);
    unlock(g);
    team_end(&t);
    close_all(handles, 2);
}

/* Cancels that mean nobody, at any moment: those that are lost with them are made up for. */
static void *disturb(void *stop)
{
    PGconn *pg = pg_dial();

    while (!atomic_load((atomic_bool *)stop))
        PQclear(PQexec(
            pg, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = 'template1'"));
    PQfinish(pg);
    return NULL;
}

static void strange_cancels_do_no_harm(void **state)
{
    dibs *handles[HANDLES];
    atomic_bool stop = false;
    pthread_t thread;

    (void)state;
    pg_need();
    open_all(handles, HANDLES, "postgres");
    assert_int_equal(pthread_create(&thread, NULL, disturb, &stop), 0);
    take_turns(handles, HANDLES, HANDLES, 20);
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    close_all(handles, HANDLES);
}

static void grant_to(const char *role)
{
    char sql[256];

    snprintf(sql, sizeof sql, "CREATE ROLE %s LOGIN", role);
    pg_ask(pg_control, sql);
    snprintf(sql, sizeof sql,
             "GRANT SELECT, INSERT, UPDATE, DELETE ON dibs_lock, dibs_holder, dibs_waiter TO %s",
             role);
    pg_ask(pg_control, sql);
}

static void without_a_right_to_it_they_listen(void **state)
{
    dibs *handles[4];

    (void)state;
    pg_need();
    grant_to("outsider");
    pg_ask(pg_control, "REVOKE CONNECT ON DATABASE template1 FROM public");
    open_all(handles, 4, "outsider");
    take_turns_until(handles, 4, 4, "4");
    close_all(handles, 4);
    pg_ask(pg_control, "GRANT CONNECT ON DATABASE template1 TO public");
}

/* An account may not cancel what a superuser does. */
static void where_others_may_not_wake_them_they_listen(void **state)
{
    dibs *handles[2];

    (void)state;
    pg_need();
    grant_to("humble");
    open_all(handles, 1, "humble");
    open_all(handles + 1, 1, "postgres");
    take_turns_until(handles, 2, 2, "1");
    close_all(handles, 2);
}

static void many_of_one_handle_listen(void **state)
{
    dibs *handles[2];

    (void)state;
    pg_need();
    open_all(handles, 2, "postgres");
    take_turns_until(handles, 2, 60, "2");
    close_all(handles, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sleep_and_are_woken),
        cmocka_unit_test(keep_nothing_alive),
        cmocka_unit_test(a_session_that_ends_is_replaced),
        cmocka_unit_test(strange_cancels_do_no_harm),
        cmocka_unit_test(without_a_right_to_it_they_listen),
        cmocka_unit_test(where_others_may_not_wake_them_they_listen),
        cmocka_unit_test(many_of_one_handle_listen),
    };

    return cmocka_run_group_tests(tests, pg_setup, pg_teardown);
}
