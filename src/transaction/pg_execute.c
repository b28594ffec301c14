/* Statements on the caller's PGconn. An error inside a transaction makes PostgreSQL refuse all that
 * follows; so each batch runs inside a savepoint, and a failed one is rolled back to it. SAVEPOINT,
 * the statements and RELEASE go out as one pipeline: one round trip when it goes well, two when it
 * fails. */
#include "transaction/pg_execute.h"

#include "core/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OID_BYTEA 17

dibs_status dibs__tx_pg_check(PGconn *c, dibs_error *err)
{
    if (PQstatus(c) != CONNECTION_OK)
        return dibs__fail(err, DIBS_UNAVAILABLE,
                          "the connection is gone, and its transaction with it: %s",
                          PQerrorMessage(c));
    if (PQpipelineStatus(c) != PQ_PIPELINE_OFF)
        return dibs__fail(err, DIBS_INVALID, "the connection is in pipeline mode: leave it first");
    switch (PQtransactionStatus(c)) {
    case PQTRANS_INTRANS:
        return DIBS_OK;
    case PQTRANS_IDLE:
        return dibs__tx_no_transaction(err);
    case PQTRANS_INERROR:
        return dibs__fail(err, DIBS_INVALID,
                          "the transaction has failed in an earlier statement: roll it back");
    default:
        return dibs__fail(err, DIBS_INVALID,
                          "the connection is busy: read the results of the last query first");
    }
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static const struct {
    const char *state; /* an SQLSTATE, or the class of it */
    dibs_status status;
    const char *text;
} states[] = {
    {"40P01", DIBS_RESTART, "deadlock: roll back and start again"},
    {"40001", DIBS_RESTART, "another has committed since this transaction began: start it again"},
    {"55P03", DIBS_BUSY, "not obtained in time"},
    {"57014", DIBS_CANCELLED, "the statement was cancelled"},
    {"42501", DIBS_DENIED, "the account may not do this"},
    {"25006", DIBS_DENIED, "the transaction is read-only"},
    {"08", DIBS_UNAVAILABLE, "the connection is gone, and its transaction with it"},
    {"57P", DIBS_UNAVAILABLE, "the connection is gone, and its transaction with it"},
    {"22", DIBS_INVALID, "a value is not accepted"},
    {"23", DIBS_INVALID, "a constraint is not kept"},
    {"42", DIBS_INVALID, "the SQL is not accepted"},
};

static dibs_status explain(const char *state, const char *message, bool ours, dibs_error *err)
{
    if (ours && strcmp(state, "42P01") == 0)
        return dibs__tx_no_table(message, err);
    if (!ours && strcmp(state, "40001") == 0) /* what a versioned update is there to find */
        return dibs__fail(err, DIBS_CONFLICT, "the row has changed since this transaction began");
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        if (strncmp(state, states[i].state, strlen(states[i].state)) == 0)
            return dibs__fail(err, states[i].status, "%s: %s", states[i].text, message);
    return dibs__fail(err, DIBS_ENGINE_FAILED, "the statement failed (%s): %s", state, message);
}

dibs_status dibs__tx_pg_fail(PGconn *c, const PGresult *r, bool ours, dibs_error *err)
{
    const char *state = PQresultErrorField(r, PG_DIAG_SQLSTATE);
    const char *message = PQresultErrorField(r, PG_DIAG_MESSAGE_PRIMARY);
    dibs_status status;

    if (!message)
        message = PQerrorMessage(c);
    if (!state && PQstatus(c) == CONNECTION_OK) /* not from the server */
        return dibs__fail(err, DIBS_NO_MEMORY, "%s", message);
    status = explain(state ? state : "08", message, ours, err);
    dibs__error_code(err, "%s", state ? state : "");
    return status;
}

/* ---- Sending --------------------------------------------------------------------------------- */

/* libpq sends integers and texts as text, so that the server gives them the type that the statement
 * wants; bytes go as they are. */
static int send_statement(PGconn *c, const dibs__tx_pg_statement *s)
{
    const char *data[DIBS_SQL_VALUES_MAX];
    char numbers[DIBS_SQL_VALUES_MAX][24];
    int sizes[DIBS_SQL_VALUES_MAX], formats[DIBS_SQL_VALUES_MAX];
    Oid types[DIBS_SQL_VALUES_MAX];

    for (size_t i = 0; i < s->count; i++) {
        const dibs_sql_value *v = &s->values[i];
        bool bytes = v->type == DIBS_SQL_BYTES;
        snprintf(numbers[i], sizeof numbers[i], "%lld", (long long)v->integer);
        data[i] = v->type == DIBS_SQL_NULL      ? NULL
                  : v->type == DIBS_SQL_INTEGER ? numbers[i]
                                                : v->data;
        sizes[i] = bytes ? (int)v->size : 0;
        formats[i] = bytes;
        types[i] = bytes ? OID_BYTEA : 0;
    }
    /* Results in binary: bytes come as they are. */
    return PQsendQueryParams(c, s->sql, (int)s->count, types, data, sizes, formats, 1);
}

static int send_batch(PGconn *c, const dibs__tx_pg_statement list[], size_t count)
{
    static const dibs__tx_pg_statement save = {.sql = "SAVEPOINT dibs_sql"};
    static const dibs__tx_pg_statement release = {.sql = "RELEASE SAVEPOINT dibs_sql"};
    int sent = send_statement(c, &save);

    for (size_t i = 0; i < count && sent; i++)
        sent = send_statement(c, &list[i]);
    return sent && send_statement(c, &release) && PQpipelineSync(c);
}

/* ---- Reading --------------------------------------------------------------------------------- */

static bool is_good(const PGresult *r)
{
    ExecStatusType s = PQresultStatus(r);

    return s == PGRES_COMMAND_OK || s == PGRES_TUPLES_OK;
}

/* Reads until the end of the pipeline: the results of SAVEPOINT, `count` statements and RELEASE,
 * each followed by a NULL. The first that failed is returned (to be cleared), else NULL. `gone`:
 * the end was not found, nothing can be said of this connection any more. */
static PGresult *read_batch(PGconn *c, size_t count, PGresult *results[], bool *gone)
{
    PGresult *bad = NULL, *r;
    size_t at = 0;

    for (bool ended = false; !ended; at += !r) {
        r = PQgetResult(c);
        ended = r ? PQresultStatus(r) == PGRES_PIPELINE_SYNC : at > count + 2;
        *gone = ended && !r;
        if (r && is_good(r) && at > 0 && at <= count && !results[at - 1])
            results[at - 1] = r;
        else if (r && !is_good(r) && !ended && !bad)
            bad = r;
        else
            PQclear(r);
    }
    *gone = *gone || PQstatus(c) != CONNECTION_OK;
    return bad;
}

void dibs__tx_pg_clear(PGresult *results[], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        PQclear(results[i]);
        results[i] = NULL;
    }
}

/* Back to the savepoint, so that the caller's transaction goes on. */
static bool roll_back(PGconn *c)
{
    PGresult *r = PQexec(c, "ROLLBACK TO SAVEPOINT dibs_sql; RELEASE SAVEPOINT dibs_sql");
    bool good = is_good(r);

    PQclear(r);
    return good;
}

static dibs_status gone_status(PGconn *c, dibs_error *err)
{
    return dibs__fail(err, DIBS_UNAVAILABLE,
                      "the connection is gone, and its transaction with it: %s", PQerrorMessage(c));
}

dibs_status dibs__tx_pg_execute(PGconn *c, const dibs__tx_pg_statement list[], size_t count,
                                bool ours, PGresult *results[], dibs_error *err)
{
    dibs_status status = DIBS_OK;
    bool gone = false;
    PGresult *bad;

    memset(results, 0, count * sizeof results[0]);
    if (!PQenterPipelineMode(c))
        return dibs__fail(err, DIBS_ENGINE_FAILED, "%s", PQerrorMessage(c));
    if (!send_batch(c, list, count)) {
        status = PQstatus(c) == CONNECTION_OK
                     ? dibs__fail(err, DIBS_NO_MEMORY, "%s", PQerrorMessage(c))
                     : gone_status(c, err);
        PQexitPipelineMode(c);
        return status;
    }
    bad = read_batch(c, count, results, &gone);
    gone = !PQexitPipelineMode(c) || gone;
    if (bad)
        status = dibs__tx_pg_fail(c, bad, ours, err);
    else if (gone)
        status = gone_status(c, err);
    PQclear(bad);
    if (status != DIBS_OK)
        dibs__tx_pg_clear(results, count);
    if (status != DIBS_OK && !gone && !roll_back(c))
        return gone_status(c, err);
    return status;
}

int64_t dibs__tx_pg_rows(PGresult *r)
{
    return strtoll(PQcmdTuples(r), NULL, 10);
}

int64_t dibs__tx_pg_number(const PGresult *r, int column)
{
    const unsigned char *at = (const unsigned char *)PQgetvalue(r, 0, column);
    int size = PQgetlength(r, 0, column);
    uint64_t n = 0;

    if (size == 4) /* int4, in network order as all binary results */
        return (int32_t)((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 |
                         at[3]);
    for (int i = 0; i < size; i++)
        n = n << 8 | at[i];
    return (int64_t)n;
}
