/* The MariaDB engine on a private server: accounts and TLS, wake-ups and what they cost, faults,
 * and tokens that must grow. */
#define _GNU_SOURCE
#include "suite.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASES_MAX 64

database the_server;

void need_server(void)
{
    if (the_server.pid > 0)
        return;
    database_need(&the_server, DATABASE_MARIADB, NULL);
    make_accounts(&the_server);
}

const char *url_of(const database *d, const char *account, const char *more)
{
    static char urls[8][512];
    static unsigned n;
    char *url = urls[n++ % 8];

    snprintf(url, sizeof urls[0], "mysql://%s:%s@127.0.0.1:%d/dibs%s", account, account, d->port,
             more);
    return url;
}

/* ---- The console -------------------------------------------------------------------------------
 */

static int64_t first_cell(MYSQL *m)
{
    MYSQL_RES *result = mysql_store_result(m);
    MYSQL_ROW row = result ? mysql_fetch_row(result) : NULL;
    int64_t value = row && row[0] ? strtoll(row[0], NULL, 10) : 0;

    mysql_free_result(result);
    return value;
}

int64_t ask(const database *d, const char *format, ...)
{
    unsigned protocol = MYSQL_PROTOCOL_SOCKET;
    MYSQL *m = mysql_init(NULL);
    char sql[4096];
    int64_t value;
    va_list list;

    va_start(list, format);
    vsnprintf(sql, sizeof sql, format, list);
    va_end(list);
    mysql_options(m, MYSQL_OPT_PROTOCOL, &protocol);
    if (!mysql_real_connect(m, "localhost", "root", "", NULL, 0, d->socket,
                            CLIENT_MULTI_STATEMENTS) ||
        mysql_query(m, sql) != 0)
        fail_msg("%s: %s", sql, mysql_error(m));
    value = first_cell(m);
    while (mysql_next_result(m) == 0)
        first_cell(m);
    if (mysql_errno(m) != 0)
        fail_msg("%s: %s", sql, mysql_error(m));
    mysql_close(m);
    return value;
}

void make_accounts(const database *d)
{
    ask(d, "CREATE DATABASE dibs");
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "other" : "app";
        ask(d,
            "CREATE USER %s@'127.0.0.1' IDENTIFIED BY '%s'; CREATE USER %s@localhost IDENTIFIED BY "
            "'%s'; "
            "GRANT ALL ON dibs.* TO %s@'127.0.0.1'; GRANT ALL ON dibs.* TO %s@localhost",
            name, name, name, name, name, name);
    }
}

/* ---- Handles and locks ----------------------------------------------------------------------- */

dibs *open_url(const char *url)
{
    return expect_open(url, NULL);
}

dibs *open_app(void)
{
    need_server();
    return open_url(url_of(&the_server, "app", ""));
}

dibs_grant *take(dibs *d, const char *name, int64_t lease_ms)
{
    return expect_lock(d, name, &(dibs_lock_options){.wait_ms = LONG_MS, .lease_ms = lease_ms});
}

void wait_for_waiters(dibs *d, const char *name, size_t count)
{
    int64_t end = clock_ms() + LONG_MS;

    while (waiters_of(d, name) != count) {
        if (clock_ms() > end)
            fail_msg("%s: never were %zu in the queue", name, count);
        sleep_ms(5);
    }
}

static void *wait_for_lock(void *arg)
{
    waiter *w = arg;
    dibs_lock_options o = {.wait_ms = 3 * LONG_MS, .lease_ms = w->lease_ms};

    w->status = dibs_lock(w->d, w->name, &o, &w->g, &w->err);
    w->at = clock_ms();
    if (w->status == DIBS_OK) {
        w->fence = dibs_grant_fence(w->g);
        if (!w->keep)
            unlock(w->g);
    }
    atomic_store(&w->done, true);
    return NULL;
}

void waiter_start(waiter *w, dibs *d, const char *name, int64_t lease_ms, bool keep)
{
    memset(w, 0, sizeof *w);
    w->d = d;
    w->lease_ms = lease_ms;
    w->keep = keep;
    snprintf(w->name, sizeof w->name, "%s", name);
    assert_int_equal(pthread_create(&w->thread, NULL, wait_for_lock, w), 0);
}

void waiter_join(waiter *w)
{
    pthread_join(w->thread, NULL);
    if (w->status != DIBS_OK)
        fail_msg("%s: %s", w->name, w->err.message);
}

/* ---- All cases ------------------------------------------------------------------------------- */

int main(int argc, char *argv[])
{
    static const cases *const all[] = {&open_cases,  &tls_cases,  &wake_cases, &fault_cases,
                                       &token_cases, &cell_cases, &await_cases};
    static struct CMUnitTest tests[CASES_MAX];
    size_t n = 0;
    int failed;

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (size_t k = 0; k < all[i]->count && n < CASES_MAX; k++)
            tests[n++] = all[i]->test[k];
    failed = _cmocka_run_group_tests("mysql", tests, n, NULL, NULL);
    database_stop(&the_server);
    tls_end();
    return failed ? 1 : 0;
}
