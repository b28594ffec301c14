/* Faults: sessions killed, servers that stop, crash or refuse, and answers that are cut anywhere.
 */
#define _GNU_SOURCE
#include "suite.h"

#include "support/proxy.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every connection of that account, in one statement: one that ends by itself meanwhile is no error. */
static void kill_all(const char *account)
{
    ask(&the_server, "KILL CONNECTION USER %s", account);
}

static void killed_sessions_cost_nothing(void **state)
{
    dibs *a = open_app(), *b = open_app();
    dibs_grant *g = take(a, "killed", 3000);
    waiter w;

    (void)state;
    waiter_start(&w, b, "killed", 3000, false);
    wait_for_waiters(a, "killed", 1);
    for (int i = 0; i < 4; i++) {
        sleep_ms(900);
        kill_all("app");
    }
    assert_true(dibs_grant_held(g));
    assert_false(atomic_load(&w.done));
    assert_status(unlock(g), DIBS_OK);
    waiter_join(&w);
    dibs_close(a);
    dibs_close(b);
}

static void idle_sessions_are_replaced(void **state)
{
    dibs *d;

    (void)state;
    need_server();
    ask(&the_server, "SET GLOBAL wait_timeout = 1");
    d = open_app();
    for (int i = 0; i < 2; i++) {
        assert_status(unlock(take(d, "idle", 0)), DIBS_OK);
        sleep_ms(2500);
    }
    assert_status(unlock(take(d, "idle", 0)), DIBS_OK);
    ask(&the_server, "SET GLOBAL wait_timeout = 28800");
    dibs_close(d);
}

static void a_full_server_keeps_its_locks(void **state)
{
    dibs *a = open_app(), *b = NULL;
    dibs_grant *g = take(a, "full", 3000);
    MYSQL *more[64];
    size_t n = 0;
    dibs_error err = {0};

    (void)state;
    ask(&the_server, "SET GLOBAL max_connections = 12");
    for (; n < 64; n++) {
        more[n] = mysql_init(NULL);
        if (!mysql_real_connect(more[n], "127.0.0.1", "other", "other", "dibs",
                                (unsigned)the_server.port, NULL, 0))
            break;
    }
    assert_int_equal(mysql_errno(more[n]), 1040);
    assert_status(dibs_open(url_of(&the_server, "app", ""), NULL, &b, &err), DIBS_UNAVAILABLE);
    assert_non_null(strstr(err.message, "max_connections"));
    sleep_ms(4500);
    assert_true(dibs_grant_held(g));
    assert_status(unlock(g), DIBS_OK);
    for (size_t i = 0; i <= n; i++)
        mysql_close(more[i]);
    ask(&the_server, "SET GLOBAL max_connections = 151");
    dibs_close(a);
}

static void prepared_statements_may_be_used_up(void **state)
{
    dibs *d;

    (void)state;
    need_server();
    ask(&the_server, "SET GLOBAL max_prepared_stmt_count = 0");
    d = open_app();
    for (int i = 0; i < 3; i++)
        assert_status(unlock(take(d, "text", 0)), DIBS_OK);
    ask(&the_server, "SET GLOBAL max_prepared_stmt_count = 16382");
    dibs_close(d);
}

/* Somebody keeps the row locked for longer than the server waits: it is tried again. */
static void a_locked_row_is_waited_for(void **state)
{
    dibs *d = open_app();
    MYSQL *m = mysql_init(NULL);
    dibs_grant *g = NULL;
    dibs_error err = {0};
    dibs_lock_options o = {.wait_ms = 1000};
    int64_t begin;
    waiter w;

    (void)state;
    unlock(take(d, "row", 0));
    assert_non_null(mysql_real_connect(m, "127.0.0.1", "other", "other", "dibs",
                                       (unsigned)the_server.port, NULL, CLIENT_MULTI_STATEMENTS));
    assert_int_equal(mysql_query(m, "BEGIN"), 0);
    assert_int_equal(mysql_query(m, "UPDATE dibs_lock SET place = place WHERE name = 'row'"), 0);
    begin = clock_ms();
    assert_true(dibs_lock(d, "row", &o, &g, &err) != DIBS_OK);
    assert_in_range(clock_ms() - begin, 900, SOON_MS);
    waiter_start(&w, d, "row", 0, false);
    unlock(take(d, "another-row", 0));
    sleep_ms(2500);
    assert_false(atomic_load(&w.done));
    mysql_query(m, "ROLLBACK");
    waiter_join(&w);
    mysql_close(m);
    dibs_close(d);
}

static void a_stopped_server_keeps_nobody(void **state)
{
    dibs *d = open_app();
    dibs_lock_options o = {.wait_ms = 500};
    dibs_grant *g = NULL;
    int64_t begin;

    (void)state;
    unlock(take(d, "stopped", 0));
    database_pause(&the_server);
    begin = clock_ms();
    assert_status(dibs_lock(d, "stopped", &o, &g, NULL), DIBS_UNAVAILABLE);
    assert_in_range(clock_ms() - begin, 450, SOON_MS);
    database_continue(&the_server);
    unlock(take(d, "stopped", 0));
    dibs_close(d);
}

static void a_dripping_server_keeps_nobody(void **state)
{
    char url[128];
    proxy *p;
    dibs *d;
    dibs_lock_options o = {.wait_ms = 400};
    dibs_grant *g = NULL;
    int64_t begin;

    (void)state;
    need_server();
    p = proxy_start(the_server.port);
    snprintf(url, sizeof url, "mysql://app:app@127.0.0.1:%d/dibs", proxy_port(p));
    d = open_url(url);
    unlock(take(d, "drip", 0));
    proxy_drip(p, PROXY_DOWN, 2000); /* a whole answer would take far longer */
    begin = clock_ms();
    assert_status(dibs_lock(d, "drip", &o, &g, NULL), DIBS_UNAVAILABLE);
    assert_in_range(clock_ms() - begin, 350, SOON_MS);
    proxy_heal(p);
    unlock(take(d, "drip", 0));
    dibs_close(d);
    proxy_stop(p);
}

/* ---- Cut anywhere ------------------------------------------------------------------------------
 */

static void cut_at(proxy *p, dibs *d, dibs *witness, proxy_way way, int64_t k, uint64_t *last)
{
    dibs_grant *g;
    dibs_lock_report *r = NULL;

    proxy_cut(p, way, k, k % 2 != 0);
    g = take(d, "cut", 2000);
    assert_true(dibs_grant_fence(g) > *last);
    *last = dibs_grant_fence(g);
    assert_true(dibs_grant_held(g));
    assert_status(dibs_lock_inspect(witness, "cut", &r, NULL), DIBS_OK);
    assert_int_equal(dibs_lock_report_at(r, 0)->holder_count, 1);
    assert_int_equal(dibs_lock_report_at(r, 0)->holders[0]->fence, dibs_grant_fence(g));
    dibs_lock_report_free(r);
    unlock(g); /* whatever it says */
    proxy_heal(p);
    if (dibs_lock(witness, "cut", &(dibs_lock_options){.wait_ms = LONG_MS}, &g, NULL) != DIBS_OK)
        fail_msg("cut at byte %d %s: not free after its lease", (int)k,
                 way == PROXY_UP ? "up" : "down");
    *last = dibs_grant_fence(g);
    unlock(g);
}

static void an_exchange_may_be_cut_anywhere(void **state)
{
    char url[128];
    proxy_counts counts;
    dibs *d, *witness = open_app();
    uint64_t last = 0;
    proxy *p;

    (void)state;
    p = proxy_start(the_server.port);
    snprintf(url, sizeof url, "mysql://app:app@127.0.0.1:%d/dibs", proxy_port(p));
    d = open_url(url);
    unlock(take(d, "cut", 0));
    unlock(take(d, "cut", 0));
    proxy_reset_counts(p);
    unlock(take(d, "cut", 0));
    proxy_read(p, &counts);
    for (int way = 0; way < 2; way++)
        for (int64_t k = 0; k <= counts.bytes[way]; k += way == PROXY_UP ? 17 : 1)
            cut_at(p, d, witness, (proxy_way)way, k, &last);
    print_message("# %d bytes up, %d down\n", (int)counts.bytes[0], (int)counts.bytes[1]);
    dibs_close(d);
    dibs_close(witness);
    proxy_stop(p);
}

/* ---- Crash -------------------------------------------------------------------------------------
 */

#define LOCKS   8
#define HANDLES 5
#define CROWD   50

static void a_crash_grants_nothing_twice(void **state)
{
    dibs *holder, *other[HANDLES];
    dibs_grant *g[LOCKS];
    uint64_t last[LOCKS];
    waiter w[CROWD];
    char name[32];

    (void)state;
    holder = open_app();
    for (int i = 0; i < HANDLES; i++)
        other[i] = open_app();
    for (int i = 0; i < LOCKS; i++) {
        snprintf(name, sizeof name, "crash-%d", i);
        g[i] = take(holder, name, 20000);
        last[i] = dibs_grant_fence(g[i]);
    }
    for (int i = 0; i < CROWD; i++) {
        snprintf(name, sizeof name, "crash-%d", i % LOCKS);
        waiter_start(&w[i], other[i % HANDLES], name, 20000, false);
        wait_for_waiters(holder, name, (size_t)(i / LOCKS + 1));
    }
    database_end(&the_server, SIGKILL);
    sleep_ms(300);
    assert_int_equal(database_restart(&the_server), 0);
    sleep_ms(1000);
    for (int i = 0; i < CROWD; i++)
        assert_false(atomic_load(&w[i].done)); /* the holders are still there */
    for (int i = 0; i < LOCKS; i++) {
        assert_true(dibs_grant_held(g[i]));
        unlock(g[i]);
    }
    for (int i = 0; i < CROWD; i++) { /* of one lock, those who came first have the lower fence */
        waiter_join(&w[i]);
        assert_true(w[i].fence > last[i % LOCKS]);
        last[i % LOCKS] = w[i].fence;
    }
    for (int i = 0; i < HANDLES; i++)
        dibs_close(other[i]);
    dibs_close(holder);
}

static const struct CMUnitTest all[] = {
    CASE(killed_sessions_cost_nothing),   CASE(idle_sessions_are_replaced),
    CASE(a_full_server_keeps_its_locks),  CASE(prepared_statements_may_be_used_up),
    CASE(a_locked_row_is_waited_for),     CASE(a_stopped_server_keeps_nobody),
    CASE(a_dripping_server_keeps_nobody), CASE(an_exchange_may_be_cut_anywhere),
    CASE(a_crash_grants_nothing_twice),
};

CASES(fault_cases, all);
