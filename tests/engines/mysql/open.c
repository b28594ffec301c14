/* Opening: URLs, accounts, rights, sockets, and servers that cannot be used. */
#define _GNU_SOURCE
#include "suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void refused(const char *url, dibs_status want, const char *words)
{
    expect_refused(url, &(dibs_options){.connect_ms = 3000}, want, words);
}

static void bad_urls_are_refused(void **state)
{
    (void)state;
    refused("mysql://u:p@127.0.0.1:1", DIBS_INVALID, "needs a database");
    refused("mysql://u:p@127.0.0.1:1/a/b", DIBS_INVALID, "needs a database");
    refused("mysql://u:p@one,two/db", DIBS_INVALID, "give one host");
    refused("mysql://u:p@127.0.0.1:1/db?sokcet=/x", DIBS_INVALID, "sokcet");
    refused("mysql://u:p@127.0.0.1:1/db?ssl_mode=maybe", DIBS_INVALID, "verify_identity");
    refused("mysql://u:p@127.0.0.1:1/db?ssl_ca=/no/such/file", DIBS_INVALID, "/no/such/file");
    refused("mysql://u:p@127.0.0.1:1/db?table_prefix=a-b", DIBS_INVALID, "table_prefix");
}

static void a_server_that_is_not_there_is_unavailable(void **state)
{
    char url[128];
    int64_t begin = clock_ms();

    (void)state;
    snprintf(url, sizeof url, "mysql://u:p@127.0.0.1:%d/db", free_port());
    refused(url, DIBS_UNAVAILABLE, "check host and port");
    assert_true(clock_ms() - begin < SOON_MS);
}

static void accounts_are_checked(void **state)
{
    char url[256];

    (void)state;
    need_server();
    snprintf(url, sizeof url, "mysql://app:wrong@127.0.0.1:%d/dibs", the_server.port);
    refused(url, DIBS_DENIED, "user and password");
    snprintf(url, sizeof url, "mysql://root@127.0.0.1:%d/nosuch", the_server.port);
    refused(url, DIBS_INVALID, "create the database");
    snprintf(url, sizeof url, "mysql://app:app@127.0.0.1:%d/nosuch", the_server.port);
    refused(url, DIBS_DENIED, "grant the account this database");
}

/* Without the right to create tables: told how; with tables made by another: works. */
static void tables_may_be_made_by_another(void **state)
{
    char url[256], *sql = NULL;
    dibs_error err = {0};
    dibs *d;

    (void)state;
    need_server();
    ask(&the_server, "CREATE USER small@localhost IDENTIFIED BY 'small'; CREATE DATABASE strict; "
                     "GRANT SELECT, INSERT, UPDATE, DELETE ON strict.* TO small@localhost");
    snprintf(url, sizeof url, "mysql://small:small@127.0.0.1:%d/strict?table_prefix=x_",
             the_server.port);
    refused(url, DIBS_DENIED, "dibs schema");
    assert_status(dibs_schema(url, &sql, &err), DIBS_OK);
    assert_non_null(strstr(sql, "`x_lock`"));
    ask(&the_server, "USE strict; %s", sql);
    free(sql);
    d = open_url(url);
    unlock(take(d, "mine", 0));
    assert_int_equal(ask(&the_server, "SELECT COUNT(*) FROM strict.x_lock"), 1);
    dibs_close(d);
}

static void foreign_tables_are_refused(void **state)
{
    (void)state;
    need_server();
    ask(&the_server, "CREATE TABLE dibs.foreign_lock (id INT)");
    refused(url_of(&the_server, "app", "?table_prefix=foreign_"), DIBS_ENGINE_FAILED,
            "another table_prefix");
}

/* Made before there was an index for listings: what is held is listed all the same. */
static void older_tables_are_brought_up_to_date(void **state)
{
    const char *url;
    dibs *d, *other;
    dibs_grant *g;
    dibs_lock_report *r = NULL;

    (void)state;
    need_server();
    url = url_of(&the_server, "app", "?table_prefix=older_");
    d = open_url(url);
    g = take(d, "held", 0);
    unlock(take(d, "idle", 0));
    ask(&the_server, "ALTER TABLE dibs.older_lock DROP KEY by_listed, DROP COLUMN listed");
    other = open_url(url);
    assert_status(dibs_lock_list(other, "", NULL, &r, NULL), DIBS_OK);
    assert_int_equal(dibs_lock_report_count(r), 1);
    assert_string_equal(dibs_lock_report_at(r, 0)->name, "held");
    dibs_lock_report_free(r);
    assert_int_equal(ask(&the_server, "SELECT SUM(listed) FROM dibs.older_lock"), 2);
    unlock(g);
    dibs_close(other);
    dibs_close(d);
}

static void a_unix_socket_will_do(void **state)
{
    char url[SCRATCH_MAX + 128];
    dibs *d;

    (void)state;
    need_server();
    snprintf(url, sizeof url, "mariadb://app:app@/dibs?socket=%s", the_server.socket);
    d = open_url(url);
    unlock(take(d, "by-socket", 0));
    dibs_close(d);
}

/* Replication by statement would give replicas other times. */
static void replication_by_statement_is_refused(void **state)
{
    database d;

    (void)state;
    database_need(&d, DATABASE_MARIADB,
                  (const char *const[]){"--log-bin=log", "--binlog-format=STATEMENT", NULL});
    make_accounts(&d);
    refused(url_of(&d, "app", ""), DIBS_UNSUPPORTED, "MIXED or ROW");
    ask(&d, "SET GLOBAL binlog_format = MIXED");
    dibs_close(open_url(url_of(&d, "app", "")));
    database_stop(&d);
}

static const struct CMUnitTest all[] = {
    CASE(bad_urls_are_refused),       CASE(a_server_that_is_not_there_is_unavailable),
    CASE(accounts_are_checked),       CASE(tables_may_be_made_by_another),
    CASE(foreign_tables_are_refused), CASE(older_tables_are_brought_up_to_date),
    CASE(a_unix_socket_will_do),      CASE(replication_by_statement_is_refused),
};

CASES(open_cases, all);
