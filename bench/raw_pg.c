/* Raw limits on PostgreSQL, a connection for every worker.
 *
 *   pg-row       a row inserted and deleted, each its own durable transaction
 *   pg-advisory  pg_advisory_lock and its unlock: nothing is kept, and no token is given */
#include "bench.h"

#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>

static int run(PGconn *c, const char *sql)
{
    PGresult *result = PQexec(c, sql);
    ExecStatusType status = PQresultStatus(result);

    PQclear(result);
    return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK ? 0 : -1;
}

static void close_client(void *arg)
{
    PQfinish(arg);
}

static void *open_client(void *shared, const bench_plan *plan, const char *key)
{
    char where[200];
    PGconn *c;

    (void)shared;
    (void)key;
    snprintf(where, sizeof where,
             "host=127.0.0.1 port=%d user=postgres dbname=bench sslmode=disable", plan->sql_port);
    c = PQconnectdb(where);
    if (PQstatus(c) == CONNECTION_OK)
        return c;
    fprintf(stderr, "bench: %s", PQerrorMessage(c));
    PQfinish(c);
    return NULL;
}

/* Once, since two at a time would get in each other's way. */
static void *make_table(const bench_plan *plan)
{
    PGconn *c = open_client(NULL, plan, NULL);
    int failed = !c || run(c, "SET client_min_messages = error; "
                              "CREATE TABLE IF NOT EXISTS raw (k text PRIMARY KEY, v text)");

    if (failed && c)
        fprintf(stderr, "bench: %s", PQerrorMessage(c));
    PQfinish(c);
    return failed ? NULL : (void *)plan;
}

static int insert_row(void *arg, const char *key, uint64_t *fence)
{
    char sql[200];

    (void)fence;
    snprintf(sql, sizeof sql, "INSERT INTO raw VALUES ('%s', 'x')", key);
    return run(arg, sql);
}

static int delete_row(void *arg, const char *key)
{
    char sql[200];

    snprintf(sql, sizeof sql, "DELETE FROM raw WHERE k = '%s'", key);
    return run(arg, sql);
}

static int lock_advisory(void *arg, const char *key, uint64_t *fence)
{
    char sql[200];

    (void)fence;
    snprintf(sql, sizeof sql, "SELECT pg_advisory_lock(hashtext('%s'))", key);
    return run(arg, sql);
}

static int unlock_advisory(void *arg, const char *key)
{
    char sql[200];

    snprintf(sql, sizeof sql, "SELECT pg_advisory_unlock(hashtext('%s'))", key);
    return run(arg, sql);
}

const bench_peer bench_pg_row = {
    .id = "pg-row",
    .title = "raw insert + delete",
    .setup = make_table,
    .open = open_client,
    .acquire = insert_row,
    .release = delete_row,
    .close = close_client,
};

const bench_peer bench_pg_advisory = {
    .id = "pg-advisory",
    .title = "raw pg_advisory_lock",
    .open = open_client,
    .acquire = lock_advisory,
    .release = unlock_advisory,
    .close = close_client,
};
