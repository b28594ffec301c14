#define _GNU_SOURCE
#include "session.h"

#include "support/clock.h"
#include "support/database.h"
#include "support/scratch.h"

#include <libpq-fe.h>
#include <mysql.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

make under_test;
static database server;
static scratch folder;

/* ---- The database ---------------------------------------------------------------------------- */

bool is_sqlite(void)
{
    return under_test == MAKE_SQLITE;
}

bool is_postgresql(void)
{
    return under_test == MAKE_POSTGRESQL;
}

bool is_mariadb(void)
{
    return under_test == MAKE_MARIADB;
}

static int open_server(database_kind kind)
{
    /* The harsher setting of InnoDB: a lock wait that times out rolls everything back. Nothing here
     * is about a crash, so nobody waits for the disk. The smallest buffer pool, so that locks can fill it. */
    static const char *const mariadb[] = {
        "--innodb-rollback-on-timeout=ON", "--innodb-flush-log-at-trx-commit=0",
        "--innodb-buffer-pool-size=6M", "--innodb-flush-method=nosync", NULL};
    static const char *const postgresql[] = {"-cfsync=off", NULL};
    MYSQL *m;
    int failed;

    if (!database_available(kind))
        return 1;
    if (database_start(&server, kind, kind == DATABASE_MARIADB ? mariadb : postgresql) != 0)
        return -1;
    if (kind == DATABASE_POSTGRESQL)
        return 0;
    m = mysql_init(NULL);
    failed =
        !mysql_real_connect(m, "127.0.0.1", "root", "", NULL, (unsigned)server.port, NULL, 0) ||
        mysql_query(m, "CREATE DATABASE test");
    mysql_close(m);
    return failed ? -1 : 0;
}

int database_open(make kind)
{
    under_test = kind;
    if (kind == MAKE_SQLITE)
        return scratch_make(&folder);
    return open_server(kind == MAKE_POSTGRESQL ? DATABASE_POSTGRESQL : DATABASE_MARIADB);
}

void database_close(void)
{
    database_stop(&server);
    scratch_remove(&folder);
}

/* ---- Failing from any thread ----------------------------------------------------------------- */

/* cmocka's own assertions jump, which only its own thread may. */
void must_fail(const char *what, const char *file, int line)
{
    fprintf(stderr, "# %s:%d: not so: %s\n", file, line, what);
    database_close();
    _exit(1);
}

void must_be(dibs_status status, dibs_status expected, const dibs_error *err)
{
    if (status == expected && (!err || err->status == status) &&
        (!err || status != DIBS_OK || !err->message[0]))
        return;
    fprintf(stderr, "# %s instead of %s: %s: %s\n", dibs_status_name(status),
            dibs_status_name(expected), err ? dibs_status_name(err->status) : "",
            err ? err->message : "");
    must_fail("the status", __FILE__, __LINE__);
}

bool must_start_again(dibs_status status)
{
    return status == DIBS_RESTART;
}

/* ---- Sessions -------------------------------------------------------------------------------- */

static PGconn *open_pg(void)
{
    char info[128];
    PGconn *c;

    snprintf(info, sizeof info, "host=127.0.0.1 port=%d user=postgres dbname=postgres",
             server.port);
    c = PQconnectdb(info);
    must(PQstatus(c) == CONNECTION_OK);
    return c;
}

static MYSQL *open_my(void)
{
    MYSQL *m = mysql_init(NULL);

    must(mysql_real_connect(m, "127.0.0.1", "root", "", "test", (unsigned)server.port, NULL, 0));
    return m;
}

static sqlite3 *open_sqlite(void)
{
    char path[SCRATCH_MAX + 16];
    sqlite3 *db = NULL;

    must(sqlite3_open(scratch_file(&folder, "db", path, sizeof path), &db) == SQLITE_OK);
    sqlite3_busy_timeout(db, 20000);
    must(sqlite3_exec(db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF", NULL, NULL, NULL) ==
         SQLITE_OK);
    return db;
}

void session_open(session *s)
{
    if (is_postgresql()) {
        s->connection = open_pg();
        s->db = dibs_sql_pg(s->connection);
    } else if (is_mariadb()) {
        s->connection = open_my();
        s->db = dibs_sql_mysql(s->connection);
    } else {
        s->connection = open_sqlite();
        s->db = dibs_sql_sqlite(s->connection);
    }
}

void session_close(session *s)
{
    if (is_postgresql())
        PQfinish(s->connection);
    else if (is_mariadb())
        mysql_close(s->connection);
    else
        must(sqlite3_close(s->connection) == SQLITE_OK);
    s->connection = NULL;
}

/* ---- Statements ------------------------------------------------------------------------------ */

static bool ask_pg(PGconn *c, const char *sql, int64_t *number)
{
    PGresult *r = PQexec(c, sql);
    bool good = PQresultStatus(r) == PGRES_COMMAND_OK || PQresultStatus(r) == PGRES_TUPLES_OK;

    if (!good)
        fprintf(stderr, "# %s", PQresultErrorMessage(r));
    if (PQntuples(r) > 0)
        *number = strtoll(PQgetvalue(r, 0, 0), NULL, 10);
    PQclear(r);
    return good;
}

static bool ask_my(MYSQL *m, const char *sql, int64_t *number)
{
    MYSQL_RES *r;
    MYSQL_ROW row;

    if (mysql_query(m, sql) != 0) {
        fprintf(stderr, "# %u %s\n", mysql_errno(m), mysql_error(m));
        return false;
    }
    r = mysql_store_result(m);
    if (r && (row = mysql_fetch_row(r)) && row[0])
        *number = strtoll(row[0], NULL, 10);
    mysql_free_result(r);
    return true;
}

static bool ask_sqlite(sqlite3 *db, const char *sql, int64_t *number)
{
    sqlite3_stmt *st = NULL;
    int code = sqlite3_prepare_v2(db, sql, -1, &st, NULL);

    if (code == SQLITE_OK)
        code = sqlite3_step(st);
    if (code == SQLITE_ROW)
        *number = sqlite3_column_int64(st, 0);
    else if (code != SQLITE_DONE)
        fprintf(stderr, "# %s\n", sqlite3_errmsg(db));
    sqlite3_finalize(st);
    return code == SQLITE_ROW || code == SQLITE_DONE;
}

static bool ask(session *s, const char *sql, int64_t *number)
{
    if (is_postgresql())
        return ask_pg(s->connection, sql, number);
    return is_mariadb() ? ask_my(s->connection, sql, number)
                        : ask_sqlite(s->connection, sql, number);
}

bool session_try(session *s, const char *sql)
{
    int64_t ignored;

    return ask(s, sql, &ignored);
}

void session_say(session *s, const char *format, ...)
{
    char sql[2048];
    va_list args;

    va_start(args, format);
    vsnprintf(sql, sizeof sql, format, args);
    va_end(args);
    must(session_try(s, sql));
}

int64_t session_number(session *s, const char *format, ...)
{
    int64_t number = -1;
    char sql[2048];
    va_list args;

    va_start(args, format);
    vsnprintf(sql, sizeof sql, format, args);
    va_end(args);
    must(ask(s, sql, &number));
    return number;
}

int64_t session_changed(session *s, const char *sql)
{
    int64_t count;
    PGresult *r;

    if (is_postgresql()) {
        r = PQexec(s->connection, sql);
        must(PQresultStatus(r) == PGRES_COMMAND_OK);
        count = strtoll(PQcmdTuples(r), NULL, 10);
        PQclear(r);
        return count;
    }
    must(session_try(s, sql));
    return is_mariadb() ? (int64_t)mysql_affected_rows(s->connection)
                        : sqlite3_changes(s->connection);
}

int64_t session_id(session *s)
{
    return session_number(s,
                          is_postgresql() ? "SELECT pg_backend_pid()" : "SELECT CONNECTION_ID()");
}

void session_begin(session *s, const char *level)
{
    if (is_mariadb())
        session_say(s, "SET TRANSACTION ISOLATION LEVEL %s", level);
    if (is_postgresql())
        session_say(s, "BEGIN ISOLATION LEVEL %s", level);
    else
        session_say(s, is_mariadb() ? "START TRANSACTION" : "BEGIN IMMEDIATE");
}

void session_commit(session *s)
{
    session_say(s, "COMMIT");
}

/* Also where the database has rolled back already. */
void session_rollback(session *s)
{
    if (!is_sqlite() || !sqlite3_get_autocommit(s->connection))
        session_say(s, "ROLLBACK");
}

/* ---- Threads --------------------------------------------------------------------------------- */

typedef struct job {
    pthread_t thread;
    void (*fn)(void *ctx, int i);
    void *ctx;
    int i;
} job;

static void *run_job(void *arg)
{
    job *j = arg;

    j->fn(j->ctx, j->i);
    mysql_thread_end();
    return NULL;
}

void in_threads(int count, void (*fn)(void *ctx, int i), void *ctx)
{
    job jobs[64];

    must(count <= 64);
    for (int i = 0; i < count; i++) {
        jobs[i] = (job){.fn = fn, .ctx = ctx, .i = i};
        must(pthread_create(&jobs[i].thread, NULL, run_job, &jobs[i]) == 0);
    }
    for (int i = 0; i < count; i++)
        pthread_join(jobs[i].thread, NULL);
}

beside run_beside(void (*fn)(void *ctx, int i), void *ctx)
{
    job *j = calloc(1, sizeof *j);

    must(j);
    *j = (job){.fn = fn, .ctx = ctx};
    must(pthread_create(&j->thread, NULL, run_job, j) == 0);
    return (beside){j};
}

void join_beside(beside a)
{
    job *j = a.handle;

    pthread_join(j->thread, NULL);
    free(j);
}

void wait_for_waiters(session *s, int64_t count)
{
    const char *sql =
        is_postgresql()
            ? "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            : "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    int64_t end = clock_ms() + 20000;

    /* SQLite cannot tell. InnoDB answers from a copy that it renews when nobody has looked for a
     * tenth of a second. */
    do {
        sleep_ms(is_postgresql() ? 5 : 110);
        must(clock_ms() < end);
    } while (!is_sqlite() && session_number(s, "%s", sql) < count);
}
