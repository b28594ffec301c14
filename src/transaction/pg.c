/* PostgreSQL: in the transaction of the caller's PGconn.
 *
 * The fence and the once key are single upserts, which PostgreSQL serialises on the row whoever
 * rolls back. A lock on a name is an advisory lock of the transaction, which queues fairly and
 * keeps lock_timeout, plus a counter row that every holder raises: under REPEATABLE READ a
 * transaction whose snapshot is older than the last holder's commit fails on that row (40001,
 * DIBS_RESTART) instead of reading old data under the lock. Waiting with an old snapshot cannot be
 * repaired: the snapshot is taken before the wait. */
#include "transaction/pg_execute.h"

#include "core/error.h"

#include <limits.h>
#include <stdio.h>

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* ---- Tables ---------------------------------------------------------------------------------- */

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS dibs_fence (resource bytea PRIMARY KEY, floor bigint NOT NULL);\n"
    "CREATE TABLE IF NOT EXISTS dibs_turn (name bytea PRIMARY KEY, turns bigint NOT NULL);\n"
    "CREATE TABLE IF NOT EXISTS dibs_once (scope bytea, name bytea, fingerprint bytea NOT NULL,"
    " result bytea, made_at timestamptz NOT NULL DEFAULT clock_timestamp(),"
    " PRIMARY KEY (scope, name));\n";

/* CREATE TABLE IF NOT EXISTS fails when two do it at once: one after another, by an advisory lock
 * that ends with the implicit transaction of the whole text. */
static dibs_status prepare(void *connection, dibs_error *err)
{
    PGconn *c = connection;
    char sql[sizeof schema + 256];
    dibs_status status = DIBS_OK;
    PGresult *r;

    if (PQstatus(c) == CONNECTION_OK && PQtransactionStatus(c) != PQTRANS_IDLE)
        return dibs__fail(err, DIBS_INVALID, "a transaction is open: prepare outside of it");
    /* Without the notice that a table is there, which libpq would print. */
    snprintf(sql, sizeof sql,
             "SELECT pg_advisory_xact_lock(%lld), set_config('client_min_messages', 'warning', "
             "true);\n%s",
             (long long)dibs__tx_hash("prepare", "tables"), schema);
    r = PQexec(c, sql);
    if (PQresultStatus(r) != PGRES_COMMAND_OK)
        status = dibs__tx_pg_fail(c, r, true, err);
    PQclear(r);
    return status;
}

/* ---- The fence ------------------------------------------------------------------------------- */

/* The row is written even when the floor stays, so that an older snapshot fails on it. */
static const char fence_raise[] =
    "INSERT INTO dibs_fence AS f (resource, floor) VALUES ($1, $3)"
    " ON CONFLICT (resource) DO UPDATE SET floor = greatest(f.floor, excluded.floor)"
    " WHERE f.floor <= $2";
static const char fence_floor[] = "SELECT floor FROM dibs_fence WHERE resource = $1";

static dibs_status fence_pass(void *connection, const char *resource, int64_t fence, int64_t floor,
                              dibs_error *err)
{
    dibs_sql_value v[] = {dibs__tx_name(resource), dibs_sql_integer(fence),
                          dibs_sql_integer(floor)};
    dibs__tx_pg_statement list[] = {{fence_raise, v, 3}, {fence_floor, v, 1}};
    PGresult *r[COUNT(list)];
    dibs_status status = dibs__tx_pg_check(connection, err);

    if (status == DIBS_OK)
        status = dibs__tx_pg_execute(connection, list, COUNT(list), true, r, err);
    if (status != DIBS_OK)
        return status;
    if (dibs__tx_pg_rows(r[0]) == 0)
        status = dibs__tx_refuse_fence(resource, fence, dibs__tx_pg_number(r[1], 0), err);
    dibs__tx_pg_clear(r, COUNT(list));
    return status;
}

/* ---- The lock -------------------------------------------------------------------------------- */

static const char timeout_set[] =
    "SELECT set_config('dibs.lock_timeout', current_setting('lock_timeout'), true),"
    " set_config('lock_timeout', $1, true)";
static const char timeout_restore[] =
    "SELECT set_config('lock_timeout', current_setting('dibs.lock_timeout'), true)";
static const char turn_wait[] = "SELECT pg_advisory_xact_lock($1)";
static const char turn_take[] = "INSERT INTO dibs_turn AS t (name, turns) VALUES ($1, 1)"
                                " ON CONFLICT (name) DO UPDATE SET turns = t.turns + 1";
static const char turn_try[] =
    "INSERT INTO dibs_turn AS t (name, turns) SELECT $1, 1 WHERE pg_try_advisory_xact_lock($2)"
    " ON CONFLICT (name) DO UPDATE SET turns = t.turns + 1";

static dibs_status lock_try(PGconn *c, const char *name, const dibs_sql_value v[2], dibs_error *err)
{
    dibs__tx_pg_statement list[] = {{turn_try, v, 2}};
    PGresult *r[COUNT(list)];
    dibs_status status = dibs__tx_pg_execute(c, list, COUNT(list), true, r, err);

    if (status == DIBS_OK && dibs__tx_pg_rows(r[0]) == 0)
        status = dibs__tx_not_in_time(name, err);
    if (r[0])
        dibs__tx_pg_clear(r, COUNT(list));
    return status;
}

/* NO_WAIT is the shortest wait that there is; 0 is the server's word for no limit. */
static dibs_sql_value timeout_text(char text[24], int64_t wait_ms)
{
    int64_t ms = wait_ms == DIBS_NO_WAIT ? 1 : wait_ms > INT_MAX ? INT_MAX : wait_ms;

    if (wait_ms == DIBS_FOREVER)
        ms = 0;

    snprintf(text, 24, "%lld", (long long)ms);
    return dibs_sql_text(text);
}

/* Within the savepoint lock_timeout is ours; afterwards it is the caller's again: restored by the
 * last statement, or by the rollback to the savepoint. `wait_ms` 0: it stays the caller's. */
static dibs_status lock_wait(PGconn *c, const char *name, int64_t wait_ms,
                             const dibs_sql_value v[2], dibs_error *err)
{
    char text[24];
    dibs_sql_value timeout;
    dibs__tx_pg_statement list[] = {{timeout_set, &timeout, 1},
                                    {turn_wait, v + 1, 1},
                                    {turn_take, v, 1},
                                    {timeout_restore, NULL, 0}};
    size_t first = wait_ms ? 0 : 1, count = wait_ms ? 4 : 2;
    PGresult *r[COUNT(list)];
    dibs_status status;

    timeout = timeout_text(text, wait_ms);
    status = dibs__tx_pg_execute(c, list + first, count, true, r, err);
    dibs__tx_pg_clear(r, count);
    return status == DIBS_BUSY ? dibs__tx_not_in_time(name, err) : status;
}

static dibs_status lock(void *connection, const char *name, int64_t wait_ms, dibs_error *err)
{
    dibs_sql_value v[] = {dibs__tx_name(name),
                          dibs_sql_integer((int64_t)dibs__tx_hash("lock", name))};
    dibs_status status = dibs__tx_pg_check(connection, err);

    if (status != DIBS_OK)
        return status;
    return wait_ms == DIBS_NO_WAIT ? lock_try(connection, name, v, err)
                                   : lock_wait(connection, name, wait_ms, v, err);
}

/* ---- Once ------------------------------------------------------------------------------------ */

static const char once_insert[] = "INSERT INTO dibs_once (scope, name, fingerprint)"
                                  " VALUES ($1, $2, $3) ON CONFLICT (scope, name) DO NOTHING";
static const char once_read[] =
    "SELECT fingerprint, result FROM dibs_once WHERE scope = $1 AND name = $2";
static const char once_store[] =
    "UPDATE dibs_once SET result = $3 WHERE scope = $1 AND name = $2 AND result IS NULL";
static const char once_there[] = "SELECT 1 FROM dibs_once WHERE scope = $1 AND name = $2";

/* What the two results say. */
static dibs_status once_answer(const dibs__tx_key *key, PGresult *inserted, const PGresult *row,
                               dibs_value *stored, dibs_error *err)
{
    dibs_status status, kept;

    if (dibs__tx_pg_rows(inserted) == 1)
        return DIBS_OK;
    if (PQntuples(row) == 0) /* deleted by somebody between the two statements */
        return dibs__fail(err, DIBS_RESTART, "the key is being deleted: retry");
    status = dibs__tx_seen(key, PQgetvalue(row, 0, 0), (size_t)PQgetlength(row, 0, 0), err);
    if (status != DIBS_ALREADY || PQgetisnull(row, 0, 1))
        return status;
    kept = dibs__tx_keep(stored, PQgetvalue(row, 0, 1), (size_t)PQgetlength(row, 0, 1), err);
    return kept == DIBS_OK ? status : kept;
}

static dibs_status once(void *connection, const dibs__tx_key *key, dibs_value *stored,
                        dibs_error *err)
{
    char text[24];
    dibs_sql_value timeout = timeout_text(text, key->wait_ms);
    dibs_sql_value v[] = {dibs__tx_name(key->scope), dibs__tx_name(key->name),
                          dibs__tx_fingerprint(key)};
    dibs__tx_pg_statement list[] = {{timeout_set, &timeout, 1},
                                    {once_insert, v, 3},
                                    {once_read, v, 2},
                                    {timeout_restore, NULL, 0}};
    size_t first = key->wait_ms ? 0 : 1, count = key->wait_ms ? 4 : 2;
    PGresult *r[COUNT(list)] = {NULL};
    dibs_status status = dibs__tx_pg_check(connection, err);

    if (status == DIBS_OK)
        status = dibs__tx_pg_execute(connection, list + first, count, true, r + first, err);
    if (status == DIBS_BUSY && key->wait_ms)
        return dibs__tx_not_in_time(key->name, err);
    if (status != DIBS_OK)
        return status;
    status = once_answer(key, r[1], r[2], stored, err);
    dibs__tx_pg_clear(r + first, count);
    return status;
}

static dibs_status once_finish(void *connection, const dibs__tx_key *key, const void *result,
                               size_t size, dibs_error *err)
{
    dibs_sql_value v[] = {dibs__tx_name(key->scope), dibs__tx_name(key->name),
                          dibs_sql_bytes(result, size)};
    dibs__tx_pg_statement list[] = {{once_store, v, 3}, {once_there, v, 2}};
    PGresult *r[COUNT(list)];
    dibs_status status = dibs__tx_pg_check(connection, err);

    if (status == DIBS_OK)
        status = dibs__tx_pg_execute(connection, list, COUNT(list), true, r, err);
    if (status != DIBS_OK)
        return status;
    if (PQntuples(r[1]) == 0)
        status = dibs__fail(err, DIBS_NOT_FOUND, "no such key: call dibs_sql_once first");
    else if (dibs__tx_pg_rows(r[0]) == 0)
        status = dibs__fail(err, DIBS_ALREADY, "the key already has a result");
    dibs__tx_pg_clear(r, COUNT(list));
    return status;
}

/* ---- The caller's own row -------------------------------------------------------------------- */

static dibs_status run_theirs(PGconn *c, const dibs__tx_pg_statement *s, PGresult **r,
                              dibs_error *err)
{
    dibs_status status = dibs__tx_pg_check(c, err);

    return status == DIBS_OK ? dibs__tx_pg_execute(c, s, 1, false, r, err) : status;
}

static dibs_status update(void *connection, const char *sql, const dibs_sql_value *values,
                          size_t count, int64_t *rows, dibs_error *err)
{
    dibs__tx_pg_statement s = {sql, values, count};
    PGresult *r = NULL;
    dibs_status status = run_theirs(connection, &s, &r, err);

    if (status == DIBS_OK)
        *rows = dibs__tx_pg_rows(r);
    PQclear(r);
    return status;
}

static dibs_status look(void *connection, const char *sql, const dibs_sql_value *values,
                        size_t count, int64_t *rows, int64_t numbers[2], dibs_error *err)
{
    dibs__tx_pg_statement s = {sql, values, count};
    PGresult *r = NULL;
    dibs_status status = run_theirs(connection, &s, &r, err);

    *rows = status == DIBS_OK ? PQntuples(r) : 0;
    for (int i = 0; i < 2 && *rows > 0; i++)
        numbers[i] = dibs__tx_pg_number(r, i);
    PQclear(r);
    return status;
}

const dibs__tx_driver dibs__tx_driver_pg = {
    .name = "postgresql",
    .schema = schema,
    .numbered = true,
    .counts_matched = true,
    .for_update = " FOR UPDATE",
    .prepare = prepare,
    .fence_pass = fence_pass,
    .lock = lock,
    .once = once,
    .once_finish = once_finish,
    .update = update,
    .look = look,
};
