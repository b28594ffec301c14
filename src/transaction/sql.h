/* What dibs_sql.h asks of each make of database: one const table of functions.
 *
 * sql.c checks the arguments, so that a driver gets names of 1 to DIBS_NAME_MAX bytes, fences that
 * fit a signed 64-bit column, and a connection that is not NULL. The statuses are those of
 * dibs_sql.h. A driver refuses when no transaction of the caller's is open; when a statement of its
 * own fails, it leaves the transaction as it found it, unless the database has rolled it back. */
#ifndef DIBS_TRANSACTION_SQL_H
#define DIBS_TRANSACTION_SQL_H

#include "core/calls.h"
#include "dibs_sql.h"

/* A key of once as the drivers get it, checked: with a scope, though it may be empty. */
typedef struct dibs__tx_key {
    const char *scope, *name;
    const void *fingerprint; /* never NULL */
    size_t fingerprint_size;
    int64_t wait_ms;
} dibs__tx_key;

typedef struct dibs__tx_driver {
    const char *name;    /* for messages */
    const char *missing; /* package to install; non-NULL: there is nothing else in the table */
    const char *schema;
    bool numbered;          /* placeholders are $1, $2, …; else each is a ? */
    const char *for_update; /* what ends a SELECT that locks */
    bool counts_matched;    /* an UPDATE counts also rows that had these values already */

    dibs_status (*prepare)(void *connection, dibs_error *err);
    dibs_status (*fence_pass)(void *connection, const char *resource, int64_t fence, int64_t floor,
                              dibs_error *err);
    dibs_status (*lock)(void *connection, const char *name, int64_t wait_ms, dibs_error *err);
    dibs_status (*once)(void *connection, const dibs__tx_key *key, dibs_value *stored,
                        dibs_error *err);
    dibs_status (*once_finish)(void *connection, const dibs__tx_key *key, const void *result,
                               size_t size, dibs_error *err);

    /* An UPDATE of the caller's; the rows that it changed. DIBS_CONFLICT when a row is newer than
     * the transaction's snapshot and the transaction can go on, DIBS_RESTART when it cannot. */
    dibs_status (*update)(void *connection, const char *sql, const dibs_sql_value *values,
                          size_t count, int64_t *rows, dibs_error *err);
    /* A locking SELECT of two numbers: how many rows there are, and the first one's numbers. */
    dibs_status (*look)(void *connection, const char *sql, const dibs_sql_value *values,
                        size_t count, int64_t *rows, int64_t numbers[2], dibs_error *err);
} dibs__tx_driver;

extern const dibs__tx_driver dibs__tx_driver_pg;
extern const dibs__tx_driver dibs__tx_driver_mysql;
extern const dibs__tx_driver dibs__tx_driver_sqlite;

/* The versioned update, on `update` and `look` (change.c). */
dibs_status dibs__tx_change(const dibs__tx_driver *driver, void *connection,
                            const dibs_sql_change *change, dibs_error *err);

/* ---- Small things that the drivers share (sql.c) --------------------------------------------- */

/* A name or fingerprint as a value that is bound; never NULL. */
dibs_sql_value dibs__tx_name(const char *name);
dibs_sql_value dibs__tx_fingerprint(const dibs__tx_key *key);

/* 64 bits of a name, the same for ever; `domain` keeps names of different use apart. */
uint64_t dibs__tx_hash(const char *domain, const char *name);

/* DIBS_ALREADY or DIBS_MISMATCH for a key that is there with this fingerprint. */
dibs_status dibs__tx_seen(const dibs__tx_key *key, const void *fingerprint, size_t size,
                          dibs_error *err);
/* Copies the stored result out; `data` NULL: it is SQL's NULL. `stored` may be NULL. */
dibs_status dibs__tx_keep(dibs_value *stored, const void *data, size_t size, dibs_error *err);

dibs_status dibs__tx_refuse_fence(const char *resource, int64_t fence, int64_t floor,
                                  dibs_error *err);
dibs_status dibs__tx_no_transaction(dibs_error *err);
dibs_status dibs__tx_no_table(const char *what, dibs_error *err);
/* The database has rolled the whole transaction back. */
dibs_status dibs__tx_undone(dibs_status status, const char *why, dibs_error *err);
dibs_status dibs__tx_not_in_time(const char *name, dibs_error *err);

/* The public calls; see core/calls.h. */
#define DIBS__SQL_CALLS(X)                                                                     \
    X(sql_prepare, RESTART, (dibs_sql db, dibs_error * err), (db, err))                        \
    X(sql_fence_pass, RESTART,                                                                 \
      (dibs_sql db, const char *resource, uint64_t fence, uint64_t floor, dibs_error *err),    \
      (db, resource, fence, floor, err))                                                       \
    X(sql_lock, RESTART, (dibs_sql db, const char *name, int64_t wait_ms, dibs_error *err),    \
      (db, name, wait_ms, err))                                                                \
    X(sql_once, RESTART,                                                                       \
      (dibs_sql db, const char *key, const dibs_sql_once_options *options, dibs_value *stored, \
       dibs_error *err),                                                                       \
      (db, key, options, stored, err))                                                         \
    X(sql_once_finish, RESTART,                                                                \
      (dibs_sql db, const char *key, const void *result, size_t size,                          \
       const dibs_sql_once_options *options, dibs_error *err),                                 \
      (db, key, result, size, options, err))                                                   \
    X(sql_update, RESTART, (dibs_sql db, const dibs_sql_change *change, dibs_error *err),      \
      (db, change, err))

DIBS__SQL_CALLS(DIBS__CALL_DECLARE)

#endif
