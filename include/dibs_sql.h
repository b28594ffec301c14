/* dibs in your own transaction: the check and the effect commit together, or neither does.
 *
 *     PQclear(PQexec(pg, "BEGIN"));
 *     if (dibs_sql_fence_pass(dibs_sql_pg(pg), "stock:1", dibs_grant_fence(g), 0, &err) == DIBS_OK)
 *         sell_one(pg), PQclear(PQexec(pg, "COMMIT"));
 *     else                                // DIBS_FENCED: a newer holder has been here
 *         PQclear(PQexec(pg, "ROLLBACK"));
 *
 * These functions use your own connection (PGconn, MYSQL, sqlite3), inside a transaction that you
 * begin and end. They need no dibs handle, keep no state between calls, and change nothing outside
 * that transaction: if it is rolled back, their effects are, too. Without an open transaction they
 * return DIBS_INVALID and do nothing. Create their tables once, with dibs_sql_prepare or with the
 * SQL of dibs_sql_schema.
 *
 * Statuses that every function may return in addition to its own:
 *   DIBS_BUSY         timed out while waiting
 *   DIBS_RESTART      send ROLLBACK and start the transaction again: a deadlock, or its snapshot
 *                     (REPEATABLE READ) is older than another transaction's commit. MariaDB may have
 *                     rolled it back already: statements sent before that ROLLBACK run outside it
 *   DIBS_NOT_FOUND    a table is missing: call dibs_sql_prepare
 *   DIBS_UNAVAILABLE  the transaction is gone: the connection was lost, or the database has rolled back
 *                     the whole transaction (SQLite after an interrupt, a full disk or an I/O error;
 *                     MariaDB if its lock table is full). Send ROLLBACK and retry: statements sent
 *                     before that ROLLBACK run outside the transaction
 *   DIBS_CANCELLED    the statement was cancelled, or exceeded the session's statement timeout
 *   DIBS_DENIED       permission denied, or the transaction is read-only
 *   DIBS_UNSUPPORTED  this build lacks the client library; the message names the package
 *   DIBS_INVALID, DIBS_ENGINE_FAILED, DIBS_NO_MEMORY
 * After all of these but RESTART and UNAVAILABLE the transaction can continue.
 *
 * Names are 1 to DIBS_NAME_MAX bytes, without NUL. Arguments are borrowed for the call. As with the
 * connection itself, only one thread may use it at a time. */
#ifndef DIBS_SQL_H
#define DIBS_SQL_H

#include "dibs.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pg_conn;  /* PGconn of libpq */
struct st_mysql; /* MYSQL of libmariadb */
struct sqlite3;

/* Your connection, of any kind. A plain value: copy it, or create it for each call. */
typedef struct dibs_sql {
    const struct dibs__tx_driver *driver;
    void *connection;
} dibs_sql;

DIBS_API dibs_sql dibs_sql_pg(struct pg_conn *connection);
DIBS_API dibs_sql dibs_sql_mysql(struct st_mysql *connection);
DIBS_API dibs_sql dibs_sql_sqlite(struct sqlite3 *connection);

/* ---- Tables ---------------------------------------------------------------------------------- */

/* The SQL that creates the tables, for an account that may: statements that end in ";\n" and can be
 * repeated. The connection may be NULL. Returns NULL if this build lacks the client library. */
DIBS_API const char *dibs_sql_schema(dibs_sql db);

/* Creates missing tables. Call it outside a transaction. */
DIBS_API dibs_status dibs_sql_prepare(dibs_sql db, dibs_error *err);

/* ---- The fence ------------------------------------------------------------------------------- */

/* Presents a grant's fence to the resource that the lock protects, before the first read of it.
 * DIBS_OK: no newer fence has been presented, and older ones are rejected from now on; other
 * transactions wait until this one ends. DIBS_FENCED: the fence is older than the resource's floor,
 * so the lock was lost: roll back. `floor` is dibs_grant_floor() for shared locks and semaphores; 0
 * means the fence. */
DIBS_API dibs_status dibs_sql_fence_pass(dibs_sql db, const char *resource, uint64_t fence,
                                         uint64_t floor, dibs_error *err);

/* ---- A lock that lasts as long as the transaction -------------------------------------------- */

/* Acquires the lock `name` until COMMIT or ROLLBACK; the same transaction may acquire it again.
 * `wait_ms` is the timeout: DIBS_NO_WAIT tries once, DIBS_FOREVER has no limit, 0 is the session's
 * own timeout (lock_timeout, innodb_lock_wait_timeout, busy_timeout). DIBS_BUSY: not obtained in
 * time. Later reads see at least the last holder's commit (else DIBS_RESTART). */
DIBS_API dibs_status dibs_sql_lock(dibs_sql db, const char *name, int64_t wait_ms, dibs_error *err);

/* ---- Once ------------------------------------------------------------------------------------ */

/* Zero means default. */
typedef struct dibs_sql_once_options {
    const char *scope;       /* namespace of the key: a tenant, an endpoint, a queue (default "") */
    const void *fingerprint; /* identifies the request, usually its hash: the same key with a
                                different fingerprint is rejected (DIBS_MISMATCH) */
    size_t fingerprint_size; /* up to DIBS_FINGERPRINT_MAX. 0: no fingerprint */
    int64_t wait_ms; /* timeout for another open transaction with the same key, then DIBS_BUSY.
                        As in dibs_sql_lock */
    uint64_t reserved[4];
} dibs_sql_once_options;

/* Records the key (the id of the request or message) in this transaction. DIBS_OK: the key is new:
 * do the work here, then COMMIT. A duplicate waits for that; its own transaction stays usable,
 * whatever the outcome. DIBS_ALREADY: the work was done and committed; `stored` (may be NULL)
 * receives its result: `data` is NULL if there is none. Free it with dibs_value_free.
 * DIBS_MISMATCH: the key was used with a different fingerprint. After a ROLLBACK the key is new
 * again. */
DIBS_API dibs_status dibs_sql_once(dibs_sql db, const char *key,
                                   const dibs_sql_once_options *options, dibs_value *stored,
                                   dibs_error *err);

/* Stores a result with a key for which dibs_sql_once returned DIBS_OK, in the same transaction and
 * with the same scope; the other options are not used. DIBS_ALREADY: the key has a result, which is
 * kept. DIBS_NOT_FOUND: no such key. */
DIBS_API dibs_status dibs_sql_once_finish(dibs_sql db, const char *key, const void *result,
                                          size_t size, const dibs_sql_once_options *options,
                                          dibs_error *err);

/* ---- Optimistic update of a row -------------------------------------------------------------- */

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
 * >= ?"). Each ? outside quotes is a parameter, counted through set, row, still and made. Never put
 * user input into the texts: pass it as a value. */
typedef struct dibs_sql_change {
    const char *table;
    const char *set;
    const char *row;   /* selects exactly one row */
    const char *still; /* must still hold */
    const char *made;  /* holds after this change was made ("request = ?"). May be NULL */
    const dibs_sql_value *values;
    size_t value_count;
    uint64_t reserved[4];
} dibs_sql_change;

/* DIBS_OK: changed. DIBS_ALREADY: `made` holds. DIBS_CONFLICT: the row exists and `still` does not
 * hold (under REPEATABLE READ on PostgreSQL: the row has changed in any way); read it again and
 * decide again, under REPEATABLE READ in a new transaction. DIBS_NOT_FOUND: no such row.
 * DIBS_DENIED: a trigger or rule of the table prevents the change (PostgreSQL, SQLite).
 * DIBS_INVALID: the database rejects the SQL, or `row` selects several rows (then roll back: they
 * are changed). The check always uses the newest row, never an older snapshot. */
DIBS_API dibs_status dibs_sql_update(dibs_sql db, const dibs_sql_change *change, dibs_error *err);

#ifdef __cplusplus
}
#endif
#endif
