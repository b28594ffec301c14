/* SQLite: in the transaction of the caller's sqlite3.
 *
 * A database has one writer at a time, so every function here first becomes it: what is read
 * afterwards is the newest state, and a transaction that read before another's commit is told so by
 * SQLite (DIBS_RESTART). Begin with BEGIN IMMEDIATE and neither can happen. A lock on a name is the
 * writer's place itself: it excludes every other writer, whatever the name. */
#include "transaction/sql.h"

#include "core/env.h"
#include "core/error.h"

#include <sqlite3.h>
#include <string.h>
#include <time.h>

/* ---- Statements ------------------------------------------------------------------------------ */

static const struct {
    int code;
    dibs_status status;
    const char *text;
} codes[] = {
    {SQLITE_BUSY, DIBS_BUSY, "another connection is writing"},
    {SQLITE_LOCKED, DIBS_BUSY, "another connection is writing"},
    {SQLITE_INTERRUPT, DIBS_CANCELLED, "the statement was interrupted"},
    {SQLITE_READONLY, DIBS_DENIED, "the database cannot be written"},
    {SQLITE_AUTH, DIBS_DENIED, "the connection's authorizer refused"},
    {SQLITE_PERM, DIBS_DENIED, "the database cannot be written"},
    {SQLITE_NOMEM, DIBS_NO_MEMORY, "out of memory"},
    {SQLITE_ERROR, DIBS_INVALID, "the SQL is not accepted"},
    {SQLITE_CONSTRAINT, DIBS_INVALID, "a constraint is not kept"},
    {SQLITE_MISMATCH, DIBS_INVALID, "a value is not accepted"},
    {SQLITE_RANGE, DIBS_INVALID, "the number of placeholders is wrong"},
    {SQLITE_TOOBIG, DIBS_INVALID, "a value is too long"},
};

/* Who has read cannot wait to write: the writer's commit would make that reading old. */
static bool too_late(sqlite3 *db)
{
    int code = sqlite3_extended_errcode(db);

    return code == SQLITE_BUSY_SNAPSHOT ||
           ((code & 0xff) == SQLITE_BUSY && sqlite3_txn_state(db, "main") == SQLITE_TXN_READ);
}

/* An interrupt, a full disk, an error of I/O or memory may have rolled everything back: then SQLite commits
 * by itself again. */
static dibs_status explain(sqlite3 *db, int code, bool was_open, bool ours, dibs_error *err)
{
    const char *message = sqlite3_errmsg(db);

    if (too_late(db))
        return dibs__fail(err, DIBS_RESTART,
                          "this transaction has read, and another writes: roll back, and start "
                          "again with BEGIN IMMEDIATE");
    if (was_open && sqlite3_get_autocommit(db))
        return dibs__tx_undone(DIBS_UNAVAILABLE, message, err);
    if (ours && strstr(message, "no such table"))
        return dibs__tx_no_table(message, err);
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (codes[i].code == (code & 0xff))
            return dibs__fail(err, codes[i].status, "%s: %s", codes[i].text, message);
    return dibs__fail(err, DIBS_ENGINE_FAILED, "the statement failed: %s", message);
}

static dibs_status fail_in(sqlite3 *db, bool was_open, bool ours, dibs_error *err)
{
    int code = sqlite3_extended_errcode(db);
    dibs_status status = explain(db, code, was_open, ours, err);

    dibs__error_code(err, "%d", code);
    return status;
}

/* Inside the caller's transaction, which `check` has seen. */
static dibs_status fail(sqlite3 *db, bool ours, dibs_error *err)
{
    return fail_in(db, true, ours, err);
}

static int bind(sqlite3_stmt *s, int i, const dibs_sql_value *v)
{
    switch (v->type) {
    case DIBS_SQL_INTEGER:
        return sqlite3_bind_int64(s, i, v->integer);
    case DIBS_SQL_TEXT:
        return sqlite3_bind_text(s, i, v->data, -1, SQLITE_STATIC);
    case DIBS_SQL_BYTES:
        return sqlite3_bind_blob(s, i, v->data, (int)v->size, SQLITE_STATIC);
    default:
        return sqlite3_bind_null(s, i);
    }
}

/* A statement with its values, not yet begun; NULL: sqlite3_errmsg says why. */
static sqlite3_stmt *start(sqlite3 *db, const char *sql, const dibs_sql_value *values, size_t count)
{
    sqlite3_stmt *s = NULL;
    int code = sqlite3_prepare_v2(db, sql, -1, &s, NULL);

    for (size_t i = 0; i < count && code == SQLITE_OK; i++)
        code = bind(s, (int)i + 1, &values[i]);
    if (code == SQLITE_OK)
        return s;
    sqlite3_finalize(s);
    return NULL;
}

/* Runs a statement without rows; how many it changed. */
static dibs_status execute(sqlite3 *db, const char *sql, const dibs_sql_value *values, size_t count,
                           bool ours, int64_t *changed, dibs_error *err)
{
    sqlite3_stmt *s = start(db, sql, values, count);
    dibs_status status = DIBS_OK;

    if (!s || sqlite3_step(s) != SQLITE_DONE)
        status = fail(db, ours, err);
    else if (changed)
        *changed = sqlite3_changes(db);
    sqlite3_finalize(s);
    return status;
}

static dibs_status check(sqlite3 *db, dibs_error *err)
{
    return sqlite3_get_autocommit(db) ? dibs__tx_no_transaction(err) : DIBS_OK;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS dibs_fence (resource BLOB PRIMARY KEY, floor INTEGER NOT NULL)"
    " WITHOUT ROWID;\n"
    "CREATE TABLE IF NOT EXISTS dibs_once (scope BLOB NOT NULL, name BLOB NOT NULL,"
    " fingerprint BLOB NOT NULL, result BLOB,"
    " made_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')),"
    " PRIMARY KEY (scope, name));\n";

static dibs_status prepare(void *connection, dibs_error *err)
{
    sqlite3 *db = connection;

    if (!sqlite3_get_autocommit(db))
        return dibs__fail(err, DIBS_INVALID, "a transaction is open: prepare outside of it");
    return sqlite3_exec(db, schema, NULL, NULL, NULL) == SQLITE_OK ? DIBS_OK
                                                                   : fail_in(db, false, false, err);
}

/* ---- The fence ------------------------------------------------------------------------------- */

static const char fence_raise[] =
    "INSERT INTO dibs_fence AS f (resource, floor) VALUES (?1, ?3)"
    " ON CONFLICT (resource) DO UPDATE SET floor = max(f.floor, excluded.floor)"
    " WHERE f.floor <= ?2";
static const char fence_floor[] = "SELECT floor FROM dibs_fence WHERE resource = ?1";

static dibs_status refuse(sqlite3 *db, const char *resource, int64_t fence, dibs_error *err)
{
    dibs_sql_value name = dibs__tx_name(resource);
    sqlite3_stmt *s = start(db, fence_floor, &name, 1);
    dibs_status status;

    if (s && sqlite3_step(s) == SQLITE_ROW)
        status = dibs__tx_refuse_fence(resource, fence, sqlite3_column_int64(s, 0), err);
    else
        status = fail(db, true, err);
    sqlite3_finalize(s);
    return status;
}

static dibs_status fence_pass(void *connection, const char *resource, int64_t fence, int64_t floor,
                              dibs_error *err)
{
    dibs_sql_value v[] = {dibs__tx_name(resource), dibs_sql_integer(fence),
                          dibs_sql_integer(floor)};
    int64_t changed = 0;
    dibs_status status = check(connection, err);

    if (status == DIBS_OK)
        status = execute(connection, fence_raise, v, 3, true, &changed, err);
    if (status != DIBS_OK || changed > 0)
        return status;
    return refuse(connection, resource, fence, err);
}

/* ---- The lock -------------------------------------------------------------------------------- */

/* A statement that changes nothing makes this connection the writer all the same. */
static const char write_nothing[] = "UPDATE dibs_fence SET floor = floor WHERE 0";

static int64_t busy_timeout(sqlite3 *db)
{
    sqlite3_stmt *s = start(db, "PRAGMA busy_timeout", NULL, 0);
    int64_t ms = s && sqlite3_step(s) == SQLITE_ROW ? sqlite3_column_int64(s, 0) : 0;

    sqlite3_finalize(s);
    return ms;
}

static void pause_between(const dibs__env *env, dibs__deadline until, int64_t *span)
{
    int64_t left = until - dibs__now(env), now = *span < left ? *span : left;

    dibs__sleep(env, now);
    *span = dibs__longer(*span, DIBS__MS, 20 * DIBS__MS);
}

/* SQLite has no queue to wait in: it is tried again and again, as its own busy handler would. */
static dibs_status try_until(sqlite3 *db, dibs__deadline until, dibs_error *err)
{
    const dibs__env *env = &dibs__env_system;
    int64_t span = DIBS__MS;

    for (;;) {
        dibs_status status = execute(db, write_nothing, NULL, 0, true, NULL, err);
        if (status != DIBS_BUSY || dibs__now(env) >= until)
            return status;
        pause_between(env, until, &span);
    }
}

/* `wait_ms` 0: the caller's busy timeout decides. Else it is put aside meanwhile; a busy handler of the
 * caller's cannot be read and stays, so that it may wait longer. */
static dibs_status lock(void *connection, const char *name, int64_t wait_ms, dibs_error *err)
{
    sqlite3 *db = connection;
    dibs__deadline until = DIBS__NEVER;
    dibs_status status = check(db, err);
    int64_t theirs = 0;

    if (status != DIBS_OK)
        return status;
    if (wait_ms != DIBS_FOREVER)
        until = dibs__after(&dibs__env_system, wait_ms * DIBS__MS);
    if (wait_ms != 0)
        theirs = busy_timeout(db);
    if (theirs > 0)
        sqlite3_busy_timeout(db, 0);
    status = try_until(db, until, err);
    if (theirs > 0)
        sqlite3_busy_timeout(db, (int)theirs);
    return status == DIBS_BUSY ? dibs__tx_not_in_time(name, err) : status;
}

/* ---- Once ------------------------------------------------------------------------------------ */

static const char once_insert[] = "INSERT INTO dibs_once (scope, name, fingerprint)"
                                  " VALUES (?, ?, ?) ON CONFLICT (scope, name) DO NOTHING";
static const char once_read[] =
    "SELECT fingerprint, result FROM dibs_once WHERE scope = ? AND name = ?";
static const char once_store[] =
    "UPDATE dibs_once SET result = ?3 WHERE scope = ?1 AND name = ?2 AND result IS NULL";

/* A key that is there: what it says. */
static dibs_status once_seen(sqlite3 *db, const dibs__tx_key *key, const dibs_sql_value v[2],
                             dibs_value *stored, dibs_error *err)
{
    sqlite3_stmt *s = start(db, once_read, v, 2);
    dibs_status status, kept = DIBS_OK;
    int code = s ? sqlite3_step(s) : SQLITE_ERROR;

    if (code == SQLITE_ROW) {
        const void *fingerprint = sqlite3_column_blob(s, 0), *result = sqlite3_column_blob(s, 1);
        bool none = sqlite3_column_type(s, 1) == SQLITE_NULL;
        status = dibs__tx_seen(key, fingerprint, (size_t)sqlite3_column_bytes(s, 0), err);
        if (status == DIBS_ALREADY && !none)
            kept = dibs__tx_keep(stored, result ? result : "", (size_t)sqlite3_column_bytes(s, 1),
                                 err);
    } else if (code == SQLITE_DONE) {
        status = dibs__fail(err, DIBS_NOT_FOUND, "no such key: call dibs_sql_once first");
    } else {
        status = fail(db, true, err);
    }
    sqlite3_finalize(s);
    return kept == DIBS_OK ? status : kept;
}

static dibs_status once(void *connection, const dibs__tx_key *key, dibs_value *stored,
                        dibs_error *err)
{
    dibs_sql_value v[] = {dibs__tx_name(key->scope), dibs__tx_name(key->name),
                          dibs__tx_fingerprint(key)};
    int64_t changed = 0;
    dibs_status status = check(connection, err);

    if (status == DIBS_OK && key->wait_ms) /* whoever writes is alone with the database */
        status = lock(connection, key->name, key->wait_ms, err);
    if (status == DIBS_OK)
        status = execute(connection, once_insert, v, 3, true, &changed, err);
    if (status != DIBS_OK || changed > 0)
        return status;
    return once_seen(connection, key, v, stored, err);
}

static dibs_status once_finish(void *connection, const dibs__tx_key *key, const void *result,
                               size_t size, dibs_error *err)
{
    dibs_sql_value v[] = {dibs__tx_name(key->scope), dibs__tx_name(key->name),
                          dibs_sql_bytes(result, size)};
    int64_t changed = 0;
    dibs_status status = check(connection, err);

    if (status == DIBS_OK)
        status = execute(connection, once_store, v, 3, true, &changed, err);
    if (status != DIBS_OK || changed > 0)
        return status;
    status = once_seen(connection, key, v, NULL, err);
    if (status == DIBS_ALREADY || status == DIBS_MISMATCH)
        return dibs__fail(err, DIBS_ALREADY, "the key already has a result");
    return status;
}

/* ---- The caller's own row -------------------------------------------------------------------- */

static dibs_status update(void *connection, const char *sql, const dibs_sql_value *values,
                          size_t count, int64_t *rows, dibs_error *err)
{
    dibs_status status = check(connection, err);

    return status == DIBS_OK ? execute(connection, sql, values, count, false, rows, err) : status;
}

static dibs_status look(void *connection, const char *sql, const dibs_sql_value *values,
                        size_t count, int64_t *rows, int64_t numbers[2], dibs_error *err)
{
    sqlite3_stmt *s = start(connection, sql, values, count);
    int code = s ? sqlite3_step(s) : SQLITE_ERROR;
    dibs_status status = DIBS_OK;

    for (*rows = 0; code == SQLITE_ROW; code = sqlite3_step(s))
        if ((*rows)++ == 0)
            for (int i = 0; i < 2; i++)
                numbers[i] = sqlite3_column_int64(s, i);
    if (code != SQLITE_DONE)
        status = fail(connection, false, err);
    sqlite3_finalize(s);
    return status;
}

const dibs__tx_driver dibs__tx_driver_sqlite = {
    .name = "sqlite",
    .schema = schema,
    .for_update = "",
    .counts_matched = true,
    .prepare = prepare,
    .fence_pass = fence_pass,
    .lock = lock,
    .once = once,
    .once_finish = once_finish,
    .update = update,
    .look = look,
};
