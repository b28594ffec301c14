/* Raw limits on MariaDB, a connection for every worker.
 *
 *   mysql-row      a row inserted and deleted, each its own durable transaction
 *   mysql-getlock  GET_LOCK and RELEASE_LOCK: nothing is kept, and no token is given */
#include "bench.h"

#include <mysql.h>
#include <stdio.h>
#include <stdlib.h>

/* The first value of the first row; 0 where there is none; -1: failed. */
static long run(MYSQL *m, const char *sql)
{
    MYSQL_RES *result;
    MYSQL_ROW row;
    long value;

    if (mysql_query(m, sql) != 0)
        return -1;
    result = mysql_store_result(m);
    row = result ? mysql_fetch_row(result) : NULL;
    value = row && row[0] ? atol(row[0]) : 0;
    mysql_free_result(result);
    return value;
}

static void close_client(void *arg)
{
    mysql_close(arg);
}

static void *open_client(void *shared, const bench_plan *plan, const char *key)
{
    MYSQL *m = mysql_init(NULL);
    unsigned protocol = MYSQL_PROTOCOL_TCP;

    (void)shared;
    (void)key;
    mysql_options(m, MYSQL_OPT_PROTOCOL, &protocol);
    if (mysql_real_connect(m, "127.0.0.1", "root", "", "bench", (unsigned)plan->sql_port, NULL, 0))
        return m;
    fprintf(stderr, "bench: %s\n", mysql_error(m));
    mysql_close(m);
    return NULL;
}

/* The library is made ready here, before there are threads. */
static void *make_table(const bench_plan *plan)
{
    MYSQL *m = mysql_library_init(0, NULL, NULL) == 0 ? open_client(NULL, plan, NULL) : NULL;
    long failed = !m || run(m, "CREATE TABLE IF NOT EXISTS raw (k VARCHAR(100) PRIMARY KEY, "
                               "v VARCHAR(100)) ENGINE=InnoDB");

    if (failed && m)
        fprintf(stderr, "bench: %s\n", mysql_error(m));
    if (m)
        mysql_close(m);
    return failed ? NULL : (void *)plan;
}

static int insert_row(void *arg, const char *key, uint64_t *fence)
{
    char sql[200];

    (void)fence;
    snprintf(sql, sizeof sql, "INSERT INTO raw VALUES ('%s', 'x')", key);
    return (int)run(arg, sql);
}

static int delete_row(void *arg, const char *key)
{
    char sql[200];

    snprintf(sql, sizeof sql, "DELETE FROM raw WHERE k = '%s'", key);
    return (int)run(arg, sql);
}

static int get_lock(void *arg, const char *key, uint64_t *fence)
{
    char sql[200];

    (void)fence;
    snprintf(sql, sizeof sql, "SELECT GET_LOCK('%s', 30)", key);
    return run(arg, sql) == 1 ? 0 : -1;
}

static int release_lock(void *arg, const char *key)
{
    char sql[200];

    snprintf(sql, sizeof sql, "SELECT RELEASE_LOCK('%s')", key);
    return run(arg, sql) == 1 ? 0 : -1;
}

const bench_peer bench_mysql_row = {
    .id = "mysql-row",
    .title = "raw insert + delete",
    .setup = make_table,
    .open = open_client,
    .acquire = insert_row,
    .release = delete_row,
    .close = close_client,
};

const bench_peer bench_mysql_getlock = {
    .id = "mysql-getlock",
    .title = "raw GET_LOCK",
    .setup = make_table,
    .open = open_client,
    .acquire = get_lock,
    .release = release_lock,
    .close = close_client,
};
