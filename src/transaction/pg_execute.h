/* Statements on the caller's PGconn, inside a savepoint (pg_execute.c). */
#ifndef DIBS_TRANSACTION_PG_EXECUTE_H
#define DIBS_TRANSACTION_PG_EXECUTE_H

#include "transaction/sql.h"

#include <libpq-fe.h>

typedef struct dibs__tx_pg_statement {
    const char *sql;
    const dibs_sql_value *values;
    size_t count;
} dibs__tx_pg_statement;

/* DIBS_OK when a transaction is open, works, and the connection is free. */
dibs_status dibs__tx_pg_check(PGconn *c, dibs_error *err);

/* Runs the statements in one round trip. DIBS_OK: results[i] is that of statement i; give all of
 * them to dibs__tx_pg_clear. Else all are NULL and the transaction is as before. `ours`: the
 * statements are our own, so that a missing table is one of ours. */
dibs_status dibs__tx_pg_execute(PGconn *c, const dibs__tx_pg_statement list[], size_t count,
                                bool ours, PGresult *results[], dibs_error *err);
void dibs__tx_pg_clear(PGresult *results[], size_t count);

/* Turns a failed result into a status and a message. */
dibs_status dibs__tx_pg_fail(PGconn *c, const PGresult *r, bool ours, dibs_error *err);

/* The rows that an INSERT or UPDATE touched; a number in the first row. */
int64_t dibs__tx_pg_rows(PGresult *r);
int64_t dibs__tx_pg_number(const PGresult *r, int column);

#endif
