/* MariaDB and MySQL: in the transaction of the caller's MYSQL.
 *
 * InnoDB deadlocks when several wait for a row that is being inserted and the insert is rolled
 * back, and a locking read of a missing row locks a gap that two may hold. So nothing here waits
 * for a row that may not be there: every name has a slot, one of 65,536 rows made beforehand, and
 * whoever holds the slot's row lock does the rest alone. Two names share a slot once in 65,536
 * pairs; then they wait for each other, and that is all.
 *
 * Under REPEATABLE READ the snapshot begins with the first plain SELECT. None comes before the slot
 * is locked, so that what is read afterwards is new; a caller that has read before has an older
 * snapshot, which a plain read of the slot's counter betrays (DIBS_RESTART). */
#include "transaction/my_execute.h"

#include "core/error.h"

#include <mysqld_error.h>
#include <stdio.h>
#include <string.h>

#define SLOTS       65536
#define YEAR_MS     (365 * 24 * 3600 * (int64_t)1000)
#define SESSION     0    /* wait as long as the session's own innodb_lock_wait_timeout */
#define TIMED_OUT   1969 /* MariaDB's max_statement_time */
#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* ---- Tables ---------------------------------------------------------------------------------- */

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS dibs_fence (resource VARBINARY(512) NOT NULL PRIMARY KEY,"
    " floor BIGINT NOT NULL) ENGINE=InnoDB;\n"
    "CREATE TABLE IF NOT EXISTS dibs_turn (slot INT NOT NULL PRIMARY KEY,"
    " turns BIGINT NOT NULL DEFAULT 0) ENGINE=InnoDB;\n"
    "CREATE TABLE IF NOT EXISTS dibs_once (scope VARBINARY(512) NOT NULL,"
    " name VARBINARY(512) NOT NULL, fingerprint VARBINARY(255) NOT NULL, result LONGBLOB,"
    " made_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),"
    " PRIMARY KEY (scope, name)) ENGINE=InnoDB;\n"
    "INSERT IGNORE INTO dibs_turn (slot) WITH d AS (SELECT 0 AS i UNION ALL SELECT 1"
    " UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5"
    " UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9"
    " UNION ALL SELECT 10 UNION ALL SELECT 11 UNION ALL SELECT 12 UNION ALL SELECT 13"
    " UNION ALL SELECT 14 UNION ALL SELECT 15)"
    " SELECT a.i + 16 * b.i + 256 * c.i + 4096 * e.i FROM d a, d b, d c, d e;\n";

/* All slots are there: inserting them again would wait for those that are held. */
static dibs_status is_full(MYSQL *m, bool *full, dibs_error *err)
{
    dibs__tx_my_statement s = {"SELECT COUNT(*) FROM dibs_turn", NULL, 0, true};
    dibs__tx_my_answer a;
    dibs_status status = dibs__tx_my_execute(m, &s, DIBS__TX_MY_NUMBERS, &a, err);

    *full = status == DIBS_OK && a.numbers[0] == SLOTS;
    return status;
}

static dibs_status make_tables(MYSQL *m, dibs_error *err)
{
    dibs_status status = DIBS_OK;

    for (const char *at = schema, *end; status == DIBS_OK && *at; at = end + 2) {
        char sql[sizeof schema];
        bool full = false;
        end = strstr(at, ";\n");
        snprintf(sql, sizeof sql, "%.*s", (int)(end - at), at);
        if (strncmp(sql, "INSERT", 6) == 0)
            status = is_full(m, &full, err);
        if (status == DIBS_OK && !full)
            status = dibs__tx_my_say(m, sql, err);
    }
    return status == DIBS_OK ? dibs__tx_my_say(m, "COMMIT", err)
                             : status; /* autocommit may be off */
}

static dibs_status prepare(void *connection, dibs_error *err)
{
    MYSQL *m = connection;

    dibs_status status = dibs__tx_my_say(m, "DO 0", err); /* brings the server's status */

    if (status == DIBS_OK && dibs__tx_my_in_transaction(m))
        return dibs__fail(err, DIBS_INVALID, "a transaction is open: prepare outside of it");
    return status == DIBS_OK ? make_tables(m, err) : status;
}

/* ---- Slots ----------------------------------------------------------------------------------- */

#define SELECT_SLOT "SELECT turns FROM dibs_turn WHERE slot = ? FOR UPDATE"
#define FOR_EVER    "innodb_lock_wait_timeout = 100000000" /* the server's word for it */

/* The statement that waits so long. SKIP LOCKED and max_statement_time leave the transaction alone
 * also where innodb_rollback_on_timeout is set; NOWAIT and the lock wait timeout would not. */
static dibs_status write_select(MYSQL *m, int64_t wait_ms, char *sql, size_t size, dibs_error *err)
{
    bool mariadb = mariadb_connection(m);

    if (wait_ms > YEAR_MS) /* more than max_statement_time can be */
        wait_ms = DIBS_FOREVER;
    if (wait_ms == DIBS_NO_WAIT)
        snprintf(sql, size, SELECT_SLOT " SKIP LOCKED");
    else if (wait_ms == SESSION)
        snprintf(sql, size, SELECT_SLOT);
    else if (wait_ms == DIBS_FOREVER && mariadb)
        snprintf(sql, size, "SET STATEMENT " FOR_EVER " FOR " SELECT_SLOT);
    else if (mariadb)
        snprintf(sql, size,
                 "SET STATEMENT max_statement_time = %lld.%03d, " FOR_EVER " FOR " SELECT_SLOT,
                 (long long)(wait_ms / 1000), (int)(wait_ms % 1000));
    else
        return dibs__fail(
            err, DIBS_UNSUPPORTED,
            "MySQL has no timeout for one wait: use 0 (innodb_lock_wait_timeout decides), "
            "DIBS_NO_WAIT, or MariaDB");
    return DIBS_OK;
}

/* Locks the slot of a name. Before it nothing is changed, so that this is also where a transaction
 * is found missing for certain. */
static dibs_status take_slot(MYSQL *m, const char *domain, const char *name, int64_t wait_ms,
                             dibs_sql_value *slot, int64_t *turns, dibs_error *err)
{
    char sql[256];
    dibs__tx_my_statement s = {sql, slot, 1, true};
    dibs__tx_my_answer a = {0};
    dibs_status status = write_select(m, wait_ms, sql, sizeof sql, err);

    if (status != DIBS_OK)
        return status;
    if ((m->server_status & SERVER_STATUS_AUTOCOMMIT) && !dibs__tx_my_in_transaction(m))
        return dibs__tx_no_transaction(err);
    *slot = dibs_sql_integer((int64_t)(dibs__tx_hash(domain, name) % SLOTS));
    status = dibs__tx_my_execute(m, &s, DIBS__TX_MY_NUMBERS, &a, err);
    if (a.code == TIMED_OUT && wait_ms > 0)
        return dibs__tx_not_in_time(name, err);
    if (status != DIBS_OK)
        return status;
    if (!dibs__tx_my_in_transaction(m))
        return dibs__tx_no_transaction(err);
    if (a.rows == 0)
        return wait_ms == DIBS_NO_WAIT ? dibs__tx_not_in_time(name, err)
                                       : dibs__tx_no_table("dibs_turn is not filled", err);
    *turns = a.numbers[0];
    return DIBS_OK;
}

static dibs_status stale(dibs_error *err)
{
    return dibs__fail(
        err, DIBS_RESTART,
        "this transaction's snapshot is older than another commit: roll back and retry, "
        "with the dibs call before the first read");
}

/* For statements that change rows and answer nothing. */
static dibs_status change(MYSQL *m, const char *sql, const dibs_sql_value *values, size_t count,
                          unsigned *code, dibs_error *err)
{
    dibs__tx_my_statement s = {sql, values, count, true};
    dibs__tx_my_answer a;
    dibs_status status = dibs__tx_my_execute(m, &s, DIBS__TX_MY_NONE, &a, err);

    if (code)
        *code = a.code;
    return status;
}

/* ---- The lock -------------------------------------------------------------------------------- */

static const char turn_read[] = "SELECT turns FROM dibs_turn WHERE slot = ?";
static const char turn_next[] = "UPDATE dibs_turn SET turns = turns + 1 WHERE slot = ?";

static dibs_status lock(void *connection, const char *name, int64_t wait_ms, dibs_error *err)
{
    dibs_sql_value slot;
    dibs__tx_my_statement s = {turn_read, &slot, 1, true};
    dibs__tx_my_answer a;
    int64_t turns = 0;
    dibs_status status = take_slot(connection, "lock", name, wait_ms, &slot, &turns, err);

    if (status == DIBS_OK)
        status = dibs__tx_my_execute(connection, &s, DIBS__TX_MY_NUMBERS, &a, err);
    if (status != DIBS_OK)
        return status;
    if (a.rows == 0 || a.numbers[0] != turns)
        return stale(err);
    return change(connection, turn_next, &slot, 1, NULL, err);
}

/* ---- The fence ------------------------------------------------------------------------------- */

static const char fence_read[] = "SELECT t.turns, f.floor FROM dibs_turn t"
                                 " LEFT JOIN dibs_fence f ON f.resource = ? WHERE t.slot = ?";
/* The row is there before it is read: under SERIALIZABLE every read locks, and one that finds no row would
 * lock the gap, which others want to insert into. */
static const char fence_make[] = "INSERT INTO dibs_fence (resource, floor) VALUES (?, 0)"
                                 " ON DUPLICATE KEY UPDATE floor = floor";
static const char fence_raise[] =
    "UPDATE dibs_turn t, dibs_fence f SET t.turns = t.turns + 1, f.floor = GREATEST(f.floor, ?)"
    " WHERE f.resource = ? AND t.slot = ?";

static dibs_status fence_pass(void *connection, const char *resource, int64_t fence, int64_t floor,
                              dibs_error *err)
{
    dibs_sql_value v[3] = {dibs_sql_integer(floor), dibs__tx_name(resource)};
    dibs__tx_my_statement s = {fence_read, v + 1, 2, true};
    dibs__tx_my_answer a;
    int64_t turns = 0;
    dibs_status status = take_slot(connection, "fence", resource, SESSION, &v[2], &turns, err);

    if (status == DIBS_OK)
        status = change(connection, fence_make, v + 1, 1, NULL, err);
    if (status == DIBS_OK)
        status = dibs__tx_my_execute(connection, &s, DIBS__TX_MY_NUMBERS, &a, err);
    if (status != DIBS_OK)
        return status;
    if (a.rows > 0 && !a.nulls[1] && fence < a.numbers[1])
        return dibs__tx_refuse_fence(resource, fence, a.numbers[1], err);
    if (a.rows == 0 || a.nulls[1] || a.numbers[0] != turns)
        return stale(err);
    return change(connection, fence_raise, v, 3, NULL, err);
}

/* ---- Once ------------------------------------------------------------------------------------ */

static const char once_insert[] =
    "INSERT INTO dibs_once (scope, name, fingerprint) VALUES (?, ?, ?)";
/* A locking read, because the row may be newer than the snapshot; it is there, so no gap. */
static const char once_read[] =
    "SELECT fingerprint, result FROM dibs_once WHERE scope = ? AND name = ? FOR UPDATE";
static const char once_store[] =
    "UPDATE dibs_once SET result = ? WHERE scope = ? AND name = ? AND result IS NULL";
static const char once_there[] = "SELECT 1 FROM dibs_once WHERE scope = ? AND name = ?";

static dibs_status once_seen(MYSQL *m, const dibs__tx_key *key, const dibs_sql_value v[2],
                             dibs_value *stored, dibs_error *err)
{
    dibs__tx_my_statement s = {once_read, v, 2, true};
    dibs__tx_my_answer a;
    dibs_status kept = DIBS_OK, status = dibs__tx_my_execute(m, &s, DIBS__TX_MY_BYTES, &a, err);

    if (status != DIBS_OK)
        return status;
    if (a.rows == 0)
        return dibs__fail(err, DIBS_RESTART, "the key is being deleted: retry");
    status = dibs__tx_seen(key, a.bytes[0], a.sizes[0], err);
    if (status == DIBS_ALREADY && !a.nulls[1])
        kept = dibs__tx_keep(stored, a.bytes[1], a.sizes[1], err);
    dibs__tx_my_clear(&a);
    return kept == DIBS_OK ? status : kept;
}

static dibs_status once(void *connection, const dibs__tx_key *key, dibs_value *stored,
                        dibs_error *err)
{
    dibs_sql_value slot,
        v[] = {dibs__tx_name(key->scope), dibs__tx_name(key->name), dibs__tx_fingerprint(key)};
    int64_t turns = 0;
    unsigned code = 0;
    dibs_status status =
        take_slot(connection, key->scope, key->name, key->wait_ms, &slot, &turns, err);

    if (status != DIBS_OK)
        return status;
    status = change(connection, once_insert, v, COUNT(v), &code, err);
    return code == ER_DUP_ENTRY ? once_seen(connection, key, v, stored, err) : status;
}

static dibs_status once_finish(void *connection, const dibs__tx_key *key, const void *result,
                               size_t size, dibs_error *err)
{
    dibs_sql_value v[] = {dibs_sql_bytes(result, size), dibs__tx_name(key->scope),
                          dibs__tx_name(key->name)};
    dibs__tx_my_statement store = {once_store, v, 3, true}, there = {once_there, v + 1, 2, true};
    dibs__tx_my_answer a;
    dibs_status status = dibs__tx_my_check(connection, err);

    if (status == DIBS_OK)
        status = dibs__tx_my_execute(connection, &store, DIBS__TX_MY_NONE, &a, err);
    if (status != DIBS_OK || a.rows > 0)
        return status;
    status = dibs__tx_my_execute(connection, &there, DIBS__TX_MY_NUMBERS, &a, err);
    if (status != DIBS_OK)
        return status;
    if (a.rows == 0)
        return dibs__fail(err, DIBS_NOT_FOUND, "no such key: call dibs_sql_once first");
    return dibs__fail(err, DIBS_ALREADY, "the key already has a result");
}

/* ---- The caller's own row -------------------------------------------------------------------- */

static dibs_status update(void *connection, const char *sql, const dibs_sql_value *values,
                          size_t count, int64_t *rows, dibs_error *err)
{
    dibs__tx_my_statement s = {sql, values, count, false};
    dibs__tx_my_answer a;
    dibs_status status = dibs__tx_my_check(connection, err);

    if (status != DIBS_OK)
        return status;
    status = dibs__tx_my_execute(connection, &s, DIBS__TX_MY_NONE, &a, err);
    *rows = a.rows;
    return status;
}

static dibs_status look(void *connection, const char *sql, const dibs_sql_value *values,
                        size_t count, int64_t *rows, int64_t numbers[2], dibs_error *err)
{
    dibs__tx_my_statement s = {sql, values, count, false};
    dibs__tx_my_answer a;
    dibs_status status = dibs__tx_my_execute(connection, &s, DIBS__TX_MY_NUMBERS, &a, err);

    *rows = a.rows;
    memcpy(numbers, a.numbers, sizeof a.numbers);
    return status;
}

const dibs__tx_driver dibs__tx_driver_mysql = {
    .name = "mysql",
    .schema = schema,
    .for_update = " FOR UPDATE",
    .prepare = prepare,
    .fence_pass = fence_pass,
    .lock = lock,
    .once = once,
    .once_finish = once_finish,
    .update = update,
    .look = look,
};
