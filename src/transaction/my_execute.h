/* Statements on the caller's MYSQL (my_execute.c). */
#ifndef DIBS_TRANSACTION_MY_EXECUTE_H
#define DIBS_TRANSACTION_MY_EXECUTE_H

#include "transaction/sql.h"

#include <mysql.h>

typedef struct dibs__tx_my_statement {
    const char *sql;
    const dibs_sql_value *values;
    size_t count;
    bool ours; /* our own SQL, so that a missing table is one of ours */
} dibs__tx_my_statement;

/* What a statement answered. */
typedef struct dibs__tx_my_answer {
    unsigned code; /* the server's error, or 0 */
    int64_t rows;  /* changed, or read */
    /* The first row, at most two columns; free with dibs__tx_my_clear. */
    int64_t numbers[2];
    void *bytes[2];
    size_t sizes[2];
    bool nulls[2];
} dibs__tx_my_answer;

/* What the columns of a SELECT are. */
typedef enum dibs__tx_my_columns {
    DIBS__TX_MY_NONE,
    DIBS__TX_MY_NUMBERS,
    DIBS__TX_MY_BYTES
} dibs__tx_my_columns;

dibs_status dibs__tx_my_execute(MYSQL *m, const dibs__tx_my_statement *statement,
                                dibs__tx_my_columns columns, dibs__tx_my_answer *out,
                                dibs_error *err);
void dibs__tx_my_clear(dibs__tx_my_answer *answer);

/* Is a transaction open? As far as the last answer told: an error tells nothing. */
bool dibs__tx_my_in_transaction(const MYSQL *m);

/* The same after asking the server, for statements that must not run without one. */
dibs_status dibs__tx_my_check(MYSQL *m, dibs_error *err);

/* For statements without parameters and rows. */
dibs_status dibs__tx_my_say(MYSQL *m, const char *sql, dibs_error *err);

#endif
