/* Statements on the caller's MYSQL: prepared and executed in one round trip (MariaDB's direct
 * execution), values bound, the first row read.
 *
 * InnoDB answers some errors by rolling the whole transaction back, and an error does not carry the
 * server's status: after one, the server is asked whether the transaction is still there. */
#include "transaction/my_execute.h"

#include "core/error.h"

#include <errmsg.h>
#include <mysqld_error.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In MariaDB since 10.6.18 and 10.11.8, not in every client's header. */
#define RECORD_CHANGED    1020
#define CHECK_FAILED      4025
#define MARIADB_TIMED_OUT 1969

bool dibs__tx_my_in_transaction(const MYSQL *m)
{
    return m->server_status & SERVER_STATUS_IN_TRANS;
}

/* With autocommit off a transaction is always about to begin. */
static bool may_be_open(const MYSQL *m)
{
    return dibs__tx_my_in_transaction(m) || !(m->server_status & SERVER_STATUS_AUTOCOMMIT);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static const struct {
    unsigned code;
    dibs_status status;
    const char *text;
} codes[] = {
    {ER_LOCK_DEADLOCK, DIBS_RESTART, "deadlock"},
    {ER_LOCK_WAIT_TIMEOUT, DIBS_BUSY, "not obtained in time"},
    {RECORD_CHANGED, DIBS_RESTART, "another has committed since this transaction began"},
    {MARIADB_TIMED_OUT, DIBS_CANCELLED, "the statement was cancelled"},
    {ER_QUERY_INTERRUPTED, DIBS_CANCELLED, "the statement was cancelled"},
    {ER_DBACCESS_DENIED_ERROR, DIBS_DENIED, "the account may not do this"},
    {ER_TABLEACCESS_DENIED_ERROR, DIBS_DENIED, "the account may not do this"},
    {ER_COLUMNACCESS_DENIED_ERROR, DIBS_DENIED, "the account may not do this"},
    {ER_SPECIFIC_ACCESS_DENIED_ERROR, DIBS_DENIED, "the account may not do this"},
    {ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION, DIBS_DENIED, "the transaction is read-only"},
    {ER_OPTION_PREVENTS_STATEMENT, DIBS_DENIED, "the server is read-only"},
    {CR_SERVER_GONE_ERROR, DIBS_UNAVAILABLE, "the connection is gone, and its transaction with it"},
    {CR_SERVER_LOST, DIBS_UNAVAILABLE, "the connection is gone, and its transaction with it"},
    {ER_CONNECTION_KILLED, DIBS_UNAVAILABLE, "the connection is gone, and its transaction with it"},
    {ER_SERVER_SHUTDOWN, DIBS_UNAVAILABLE, "the connection is gone, and its transaction with it"},
    {CR_COMMANDS_OUT_OF_SYNC, DIBS_INVALID,
     "the connection is busy: read the results of the last query first"},
    {CR_OUT_OF_MEMORY, DIBS_NO_MEMORY, "out of memory"},
    {CHECK_FAILED, DIBS_INVALID, "a constraint is not kept"},
};

/* Brings the server's status up to date. A query, because the library does not read the status that
 * a ping brings back. */
static bool refresh(MYSQL *m)
{
    return mysql_real_query(m, "DO 0", 4) == 0;
}

static dibs_status undone(const char *why, const char *message, dibs_error *err)
{
    return dibs__fail(err, DIBS_RESTART,
                      "%s, and the server has rolled the whole transaction back: send ROLLBACK and "
                      "start again: %s",
                      why, message);
}

static dibs_status explain(unsigned code, const char *state, const char *message, bool ours,
                           dibs_error *err)
{
    if (ours && code == ER_NO_SUCH_TABLE)
        return dibs__tx_no_table(message, err);
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i].code == code)
            return dibs__fail(err, codes[i].status, "%s: %s", codes[i].text, message);
    /* Values, constraints, the number of columns, the SQL itself. */
    if (strncmp(state, "22", 2) == 0 || strncmp(state, "23", 2) == 0 ||
        strncmp(state, "21", 2) == 0 || strncmp(state, "42", 2) == 0)
        return dibs__fail(err, DIBS_INVALID, "the SQL is not accepted (%u): %s", code, message);
    return dibs__fail(err, DIBS_ENGINE_FAILED, "the statement failed (%u): %s", code, message);
}

static dibs_status judge(MYSQL *m, MYSQL_STMT *s, unsigned code, bool ours, dibs_error *err)
{
    char message[512], state[8];
    bool was_open = dibs__tx_my_in_transaction(m); /* an error brings no status */
    dibs_status status;

    /* Asking the server overwrites both. */
    snprintf(message, sizeof message, "%s", s ? mysql_stmt_error(s) : mysql_error(m));
    snprintf(state, sizeof state, "%s", s ? mysql_stmt_sqlstate(s) : mysql_sqlstate(m));
    status = explain(code, state, message, ours, err);
    if (code == ER_LOCK_DEADLOCK)
        return undone("deadlock", message, err);
    if (code == RECORD_CHANGED)
        return undone("another has committed since this transaction began", message, err);
    if (status == DIBS_UNAVAILABLE || status == DIBS_NO_MEMORY || code == CR_COMMANDS_OUT_OF_SYNC)
        return status;
    if (!refresh(m))
        return dibs__fail(err, DIBS_UNAVAILABLE,
                          "the connection is gone, and its transaction with it: %s", message);
    if (status == DIBS_BUSY && !may_be_open(m))
        return undone("not obtained in time (innodb_rollback_on_timeout)", message, err);
    if (was_open && !dibs__tx_my_in_transaction(m)) /* such as a full table of locks (1206) */
        return dibs__tx_undone(status == DIBS_BUSY ? DIBS_RESTART : DIBS_UNAVAILABLE, message, err);
    return status;
}

static dibs_status fail(MYSQL *m, MYSQL_STMT *s, bool ours, dibs_error *err)
{
    unsigned code = s ? mysql_stmt_errno(s) : mysql_errno(m);
    dibs_status status = judge(m, s, code, ours, err);

    dibs__error_code(err, "%u", code); /* last: a new message has no code */
    return status;
}

dibs_status dibs__tx_my_check(MYSQL *m, dibs_error *err)
{
    if (!refresh(m))
        return fail(m, NULL, true, err);
    return may_be_open(m) ? DIBS_OK : dibs__tx_no_transaction(err);
}

/* ---- Values in ------------------------------------------------------------------------------- */

static void bind_values(MYSQL_BIND *binds, const dibs_sql_value *values, size_t count)
{
    memset(binds, 0, count * sizeof *binds);
    for (size_t i = 0; i < count; i++) {
        dibs_sql_value v = values[i];
        size_t size = v.type == DIBS_SQL_TEXT ? strlen(v.data) : v.size;
        binds[i].buffer_type = v.type == DIBS_SQL_INTEGER ? MYSQL_TYPE_LONGLONG
                               : v.type == DIBS_SQL_TEXT  ? MYSQL_TYPE_STRING
                               : v.type == DIBS_SQL_BYTES ? MYSQL_TYPE_BLOB
                                                          : MYSQL_TYPE_NULL;
        /* The library reads from here and never writes. */
        binds[i].buffer = v.type == DIBS_SQL_INTEGER ? (void *)&values[i].integer : (void *)v.data;
        binds[i].buffer_length = (unsigned long)size;
    }
}

static int execute(MYSQL_STMT *s, const dibs__tx_my_statement *statement)
{
    MYSQL_BIND binds[DIBS_SQL_VALUES_MAX];
    unsigned count = (unsigned)statement->count;

    bind_values(binds, statement->values, statement->count);
    if (mysql_stmt_attr_set(s, STMT_ATTR_PREBIND_PARAMS, &count) != 0 ||
        (count > 0 && mysql_stmt_bind_param(s, binds) != 0))
        return 1;
    return mariadb_stmt_execute_direct(s, statement->sql, strlen(statement->sql));
}

/* ---- Rows out -------------------------------------------------------------------------------- */

/* Bytes of any length: the first fetch tells the size, a second one gets them. */
static int fetch_bytes(MYSQL_STMT *s, MYSQL_BIND *binds, unsigned columns, dibs__tx_my_answer *out)
{
    for (unsigned i = 0; i < columns; i++) {
        out->sizes[i] = binds[i].length_value;
        if (out->nulls[i])
            continue;
        out->bytes[i] = malloc(out->sizes[i] + 1);
        if (!out->bytes[i])
            return 1;
        binds[i].buffer = out->bytes[i];
        binds[i].buffer_length = (unsigned long)out->sizes[i];
        if (out->sizes[i] > 0 && mysql_stmt_fetch_column(s, &binds[i], i, 0) != 0)
            return 1;
    }
    return 0;
}

static int fetch_first(MYSQL_STMT *s, dibs__tx_my_columns kind, dibs__tx_my_answer *out)
{
    MYSQL_BIND binds[2];
    my_bool nulls[2] = {0, 0};
    unsigned columns = mysql_stmt_field_count(s);
    int code;

    memset(binds, 0, sizeof binds);
    for (unsigned i = 0; i < columns; i++) {
        bool number = kind == DIBS__TX_MY_NUMBERS;
        binds[i].buffer_type = number ? MYSQL_TYPE_LONGLONG : MYSQL_TYPE_BLOB;
        binds[i].buffer = number ? &out->numbers[i] : NULL;
        binds[i].length = &binds[i].length_value;
        binds[i].is_null = &nulls[i];
    }
    if (mysql_stmt_bind_result(s, binds) != 0 || mysql_stmt_store_result(s) != 0)
        return 1;
    out->rows = (int64_t)mysql_stmt_num_rows(s);
    if (out->rows == 0)
        return 0;
    code = mysql_stmt_fetch(s);
    for (unsigned i = 0; i < columns; i++)
        out->nulls[i] = nulls[i];
    if (code != 0 && code != MYSQL_DATA_TRUNCATED)
        return 1;
    return kind == DIBS__TX_MY_BYTES ? fetch_bytes(s, binds, columns, out) : 0;
}

static dibs_status read_answer(MYSQL *m, MYSQL_STMT *s, const dibs__tx_my_statement *statement,
                               dibs__tx_my_columns kind, dibs__tx_my_answer *out, dibs_error *err)
{
    if (kind == DIBS__TX_MY_NONE) {
        out->rows = (int64_t)mysql_stmt_affected_rows(s);
        return DIBS_OK;
    }
    if (mysql_stmt_field_count(s) > 2)
        return dibs__fail(err, DIBS_ENGINE_FAILED, "the answer has too many columns");
    if (fetch_first(s, kind, out) == 0)
        return DIBS_OK;
    if (mysql_stmt_errno(s) == 0)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory for a row");
    out->code = mysql_stmt_errno(s);
    return fail(m, s, statement->ours, err);
}

dibs_status dibs__tx_my_execute(MYSQL *m, const dibs__tx_my_statement *statement,
                                dibs__tx_my_columns columns, dibs__tx_my_answer *out,
                                dibs_error *err)
{
    MYSQL_STMT *s = mysql_stmt_init(m);
    dibs_status status;

    memset(out, 0, sizeof *out);
    if (!s)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory for a statement");
    if (execute(s, statement) == 0) {
        status = read_answer(m, s, statement, columns, out, err);
    } else {
        out->code = mysql_stmt_errno(s);
        status = fail(m, s, statement->ours, err);
    }
    mysql_stmt_close(s);
    if (status != DIBS_OK)
        dibs__tx_my_clear(out);
    return status;
}

void dibs__tx_my_clear(dibs__tx_my_answer *answer)
{
    for (int i = 0; i < 2; i++) {
        free(answer->bytes[i]);
        answer->bytes[i] = NULL;
    }
}

dibs_status dibs__tx_my_say(MYSQL *m, const char *sql, dibs_error *err)
{
    return mysql_real_query(m, sql, (unsigned long)strlen(sql)) == 0 ? DIBS_OK
                                                                     : fail(m, NULL, true, err);
}
