/* A name server that does not answer keeps nobody: neither a caller beyond its deadline, nor the
 * thread that renews what is held. On every engine that connects to a host by name.
 *
 * usage: test_names redis|postgresql|mysql */
#define _GNU_SOURCE
#include "names.h"
#include "support/calls.h"
#include "support/clock.h"
#include "support/database.h"
#include "support/server.h"
#include "support/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define LONG_MS  20000
#define LEASE_MS 3000

static const char *engine;
static server redis;
static database db;
static char url[128];

static int set_up(void **state)
{
    bool postgresql = strcmp(engine, "postgresql") == 0;
    database_kind kind = postgresql ? DATABASE_POSTGRESQL : DATABASE_MARIADB;

    (void)state;
    if (strcmp(engine, "redis") == 0) {
        if (!server_available())
            return 0;
        snprintf(url, sizeof url, "redis://here.test:%d",
                 server_start(&redis, NULL) ? 0 : redis.port);
        return redis.pid > 0 ? 0 : -1;
    }
    if (!database_available(kind))
        return 0;
    if (database_start(&db, kind, NULL) < 0)
        return -1;
    snprintf(url, sizeof url, "%s://%s@here.test:%d/%s", engine, db.user, db.port,
             postgresql ? "postgres" : "mysql");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    server_stop(&redis);
    database_stop(&db);
    return 0;
}

static void need(void)
{
    if (url[0])
        return;
    if (server_required())
        fail_msg("no server for %s, and servers are required here", engine);
    skip();
}

static dibs *open_handle(void)
{
    return expect_open(url, NULL);
}

static dibs_grant *take(dibs *d, const char *name)
{
    return expect_lock(d, name, &(dibs_lock_options){.lease_ms = LEASE_MS, .wait_ms = LONG_MS});
}

static bool nobody_waits(void *unused)
{
    (void)unused;
    return names_waiting() == 0;
}

static void an_answer_that_comes_is_taken(void **state)
{
    int before = names_answered();
    dibs *d;

    (void)state;
    need();
    d = open_handle();
    assert_int_equal(unlock(take(d, "named")), DIBS_OK);
    assert_true(names_answered() > before); /* else nothing is tested here */
    dibs_close(d);
}

static void opening_ends_in_time(void **state)
{
    dibs_error err = {0};
    dibs *d = NULL;
    int64_t begun;

    (void)state;
    need();
    names_stop();
    begun = clock_ms();
    assert_int_equal(dibs_open(url, &(dibs_options){.connect_ms = 500}, &d, &err),
                     DIBS_UNAVAILABLE);
    assert_in_range(clock_ms() - begun, 450, LONG_MS / 2);
    assert_non_null(strstr(err.message, "here.test"));
    assert_true(names_waiting() > 0);
    names_go_on(); /* whoever was left behind goes away without harm */
    assert_true(wait_until(nobody_waits, NULL, LONG_MS));
}

/* ---- The keeper ------------------------------------------------------------------------------ */

typedef struct waiter {
    dibs *d;
    atomic_bool done;
} waiter;

static void *join_queue(void *arg)
{
    waiter *w = arg;

    unlock(take(w->d, "first"));
    atomic_store(&w->done, true);
    return NULL;
}

/* Whoever is in the queue first needs a connection more, to be woken by. */
static void what_is_held_is_renewed(void **state)
{
    dibs *a, *b;
    dibs_grant *first, *other;
    pthread_t thread;
    waiter w;

    (void)state;
    need();
    a = open_handle();
    b = open_handle();
    first = take(a, "first");
    other = take(b, "other");
    w = (waiter){.d = b};
    names_stop();
    assert_int_equal(pthread_create(&thread, NULL, join_queue, &w), 0);
    for (int i = 0; i < 10; i++) {
        sleep_ms(LEASE_MS / 5);
        assert_true(dibs_grant_held(first));
        assert_true(dibs_grant_held(other));
    }
    assert_true(names_waiting() > 0);
    assert_false(atomic_load(&w.done));
    names_go_on();
    assert_int_equal(unlock(first), DIBS_OK);
    pthread_join(thread, NULL);
    assert_int_equal(unlock(other), DIBS_OK);
    assert_true(wait_until(nobody_waits, NULL, LONG_MS));
    dibs_close(a);
    dibs_close(b);
}

int main(int argc, char *argv[])
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_that_comes_is_taken),
        cmocka_unit_test(opening_ends_in_time),
        cmocka_unit_test(what_is_held_is_renewed),
    };

    if (argc < 2) {
        fprintf(stderr, "usage: test_names redis|postgresql|mysql\n");
        return 2;
    }
    engine = argv[1];
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests_name("names", tests, set_up, tear_down);
}
