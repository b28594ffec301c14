/* dibs in your own transaction: the guard and the effect commit together, or neither does.
 *
 *     PQclear(PQexec(pg, "BEGIN"));
 *     if (dibs_sql_fence_pass(dibs_sql_pg(pg), "stock:1", dibs_fence(g), 0, &err) == DIBS_OK)
 *         sell_one(pg), PQclear(PQexec(pg, "COMMIT"));
 *     else                                // DIBS_LOST: a newer holder has been here
 *         PQclear(PQexec(pg, "ROLLBACK"));
 *
 * These functions work on a connection of yours (PGconn, MYSQL, sqlite3), inside a transaction that
 * you have begun and that you end. They need no handle of dibs, keep nothing between calls, and
 * change nothing outside that transaction: when it is rolled back, so is what they did. Without an
 * open transaction they refuse (DIBS_INVALID) and do nothing. Their tables are made once, by
 * dibs_sql_prepare or by whoever runs the SQL of dibs_sql_schema.
 *
 * What every function here may answer beside its own:
 *   DIBS_BUSY         waited as long as it may
 *   DIBS_DEADLOCK     send ROLLBACK and start again. MariaDB has rolled everything back by then:
 *                     what is sent before that ROLLBACK stands on its own
 *   DIBS_STALE        send ROLLBACK and start again: the transaction reads from a moment before
 *                     another's commit (REPEATABLE READ), and what it reads may be old
 *   DIBS_NOT_FOUND    a table of ours is missing: dibs_sql_prepare
 *   DIBS_UNAVAILABLE  the transaction is gone: the connection was lost, or the database has rolled the
 *                     whole transaction back (SQLite after an interrupt, a full disk or an I/O error;
 *                     MariaDB when its table of locks is full). Send ROLLBACK and start again: what is
 *                     sent before that ROLLBACK stands on its own
 *   DIBS_CANCELLED    the statement was cancelled, or outlived the session's statement timeout
 *   DIBS_DENIED       the account may not, or the transaction is read-only
 *   DIBS_UNSUPPORTED  this build lacks the client library; the message names the package
 *   DIBS_INVALID, DIBS_BROKEN_ENGINE, DIBS_NO_MEMORY
 * After all of these but DEADLOCK, STALE and UNAVAILABLE the transaction can go on.
 *
 * Names are any bytes but NUL, 1 to DIBS_NAME_MAX of them. What goes in is borrowed for the call.
 * As with the connection itself: one thread at a time. */
#ifndef DIBS_SQL_H
#define DIBS_SQL_H

#include "dibs.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pg_conn;  /* PGconn of libpq */
struct st_mysql; /* MYSQL of libmariadb */
struct sqlite3;

/* A connection of yours, whatever its make. A value: copy it, make it anew for each call. */
typedef struct dibs_sql {
    const struct dibs__tx_driver *driver;
    void *connection;
} dibs_sql;

DIBS_API dibs_sql dibs_sql_pg(struct pg_conn *connection);
DIBS_API dibs_sql dibs_sql_mysql(struct st_mysql *connection);
DIBS_API dibs_sql dibs_sql_sqlite(struct sqlite3 *connection);

/* ---- Tables ---------------------------------------------------------------------------------- */

/* The SQL that makes the tables, for the one who may: statements that end in ";\n", harmless when
 * repeated. The connection may be NULL. NULL: this build lacks the client library. */
DIBS_API const char *dibs_sql_schema(dibs_sql db);

/* Makes the tables that are missing. Outside a transaction. */
DIBS_API dibs_status dibs_sql_prepare(dibs_sql db, dibs_error *err);

/* ---- The fence ------------------------------------------------------------------------------- */

/* Presents a grant's fence to the resource that it guards, before the first read of it: raise, then
 * read, then write. DIBS_OK: nobody with a newer fence has been here, and none with an older one
 * will come in; others wait until this transaction ends. DIBS_LOST: the fence is older than the
 * resource's floor, the lock was lost: roll back. `floor` is dibs_floor() for shared locks and
 * semaphores; 0 means the fence itself. */
DIBS_API dibs_status dibs_sql_fence_pass(dibs_sql db, const char *resource, uint64_t fence,
                                         uint64_t floor, dibs_error *err);

/* ---- A lock that lasts as long as the transaction -------------------------------------------- */

/* Takes the name until COMMIT or ROLLBACK; the same transaction may take it again. `wait_ms` as in
 * dibs_lock_options: 0 waits for ever, DIBS_NO_WAIT tries once, else at most so long. DIBS_BUSY:
 * not obtained in time. What is read afterwards is not older than the last holder's commit (else
 * DIBS_STALE). */
DIBS_API dibs_status dibs_sql_lock(dibs_sql db, const char *name, int64_t wait_ms, dibs_error *err);

/* ---- Once ------------------------------------------------------------------------------------ */

#define DIBS_SQL_FINGERPRINT_MAX 255

/* A piece of work that shall be done once. */
typedef struct dibs_sql_key {
    const char *scope;       /* whose keys: a tenant, an endpoint, a queue: "" */
    const char *key;         /* the request's or message's own */
    const void *fingerprint; /* what was asked for, usually a hash: the same key with another one is
                                refused (DIBS_MISMATCH) */
    size_t fingerprint_size; /* 0: not compared with anything but another 0 */
    int64_t wait_ms; /* for another's transaction that has the same key open: at most so long, then
                        DIBS_BUSY; DIBS_NO_WAIT not at all; 0 as the session's own timeout says
                        (lock_timeout, innodb_lock_wait_timeout, busy_timeout) */
} dibs_sql_key;

/* What the first run left behind. Give it back with dibs_sql_result_free. */
typedef struct dibs_sql_result {
    void *data; /* NULL: the run left nothing */
    size_t size;
} dibs_sql_result;

/* Writes the key down in this transaction. DIBS_OK: it is new: do the work here, then COMMIT; a
 * duplicate waits for that, and goes on with its own transaction whatever comes of the wait.
 * DIBS_ALREADY: the work was done and committed; `stored` (may be NULL)
 * gets its result. DIBS_MISMATCH: the key was used for something else. After a ROLLBACK the key is
 * new again. */
DIBS_API dibs_status dibs_sql_once(dibs_sql db, const dibs_sql_key *key, dibs_sql_result *stored,
                                   dibs_error *err);

/* Leaves a result with a key that dibs_sql_once has just called new, in the same transaction.
 * DIBS_ALREADY: it has one, which stays. DIBS_NOT_FOUND: there is no such key. */
DIBS_API dibs_status dibs_sql_once_finish(dibs_sql db, const dibs_sql_key *key, const void *result,
                                          size_t size, dibs_error *err);

DIBS_API void dibs_sql_result_free(dibs_sql_result *result);

/* ---- Change a row if it is still what was read ----------------------------------------------- */

typedef enum dibs_sql_type {
    DIBS_SQL_NULL,
    DIBS_SQL_INTEGER,
    DIBS_SQL_TEXT, /* also for timestamps and decimals: the database converts */
    DIBS_SQL_BYTES
} dibs_sql_type;

typedef struct dibs_sql_value {
    dibs_sql_type type;
    int64_t integer;
    const void *data; /* TEXT: terminated by NUL */
    size_t size;      /* BYTES */
} dibs_sql_value;

DIBS_API dibs_sql_value dibs_sql_integer(int64_t integer);
DIBS_API dibs_sql_value dibs_sql_text(const char *text); /* NULL: SQL's NULL */
DIBS_API dibs_sql_value dibs_sql_bytes(const void *data, size_t size);

#define DIBS_SQL_VALUES_MAX 64

/* One UPDATE of one row of your own table, in your own SQL:
 *
 *     dibs_sql_change c = {.table = "stock",
 *                          .set = "left_over = left_over - ?, version = version + 1",
 *                          .row = "item = ?",
 *                          .still = "version = ?",
 *                          .values = v, .value_count = 3};
 *
 * `still` is the version that was read, a timestamp ("changed_at = ?") or a condition ("left_over
 * >= ?"). Each ? outside quotes stands for a value, counted through set, row, still and made. Never
 * put what a user typed into the texts: put it into the values. */
typedef struct dibs_sql_change {
    const char *table;
    const char *set;
    const char *row;   /* names exactly one row */
    const char *still; /* must still hold */
    const char *made;  /* holds once this very change was made ("request = ?"). May be NULL */
    const dibs_sql_value *values;
    size_t value_count;
} dibs_sql_change;

/* DIBS_OK: changed. DIBS_ALREADY: `made` holds. DIBS_CONFLICT: the row is there and `still` does
 * not hold (under REPEATABLE READ on PostgreSQL: the row has changed at all); read again and decide
 * again, under REPEATABLE READ in a new transaction. DIBS_NOT_FOUND: there is no such row.
 * DIBS_DENIED: a trigger or a rule of the table keeps the row from being changed (PostgreSQL, SQLite).
 * DIBS_INVALID: the database does not accept the SQL, or `row` names several rows (then roll back:
 * they are changed). The check is against the newest row, never against an older snapshot. */
DIBS_API dibs_status dibs_sql_update(dibs_sql db, const dibs_sql_change *change, dibs_error *err);

#ifdef __cplusplus
}
#endif
#endif
