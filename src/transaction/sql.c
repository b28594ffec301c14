/* The public functions of dibs_sql.h: they check what comes in and hand it to the connection's
 * driver. */
#include "transaction/sql.h"

#include "core/error.h"

#include <stdlib.h>
#include <string.h>

#define SHOWN 80 /* bytes of a name in a message */

/* ---- Connections ----------------------------------------------------------------------------- */

dibs_sql dibs_sql_pg(struct pg_conn *connection)
{
    return (dibs_sql){&dibs__tx_driver_pg, connection};
}

dibs_sql dibs_sql_mysql(struct st_mysql *connection)
{
    return (dibs_sql){&dibs__tx_driver_mysql, connection};
}

dibs_sql dibs_sql_sqlite(struct sqlite3 *connection)
{
    return (dibs_sql){&dibs__tx_driver_sqlite, connection};
}

static dibs_status check_connection(dibs_sql db, dibs_error *err)
{
    if (!db.driver)
        return dibs__fail(err, DIBS_INVALID,
                          "no connection: use dibs_sql_pg, dibs_sql_mysql or dibs_sql_sqlite");
    if (db.driver->missing)
        return dibs__fail(err, DIBS_UNSUPPORTED,
                          "this build of dibs lacks %s: install %s and build it again",
                          db.driver->name, db.driver->missing);
    if (!db.connection)
        return dibs__fail(err, DIBS_INVALID, "%s: the connection is NULL", db.driver->name);
    return DIBS_OK;
}

static dibs_status check_name(const char *what, const char *name, dibs_error *err)
{
    size_t size = name ? strnlen(name, DIBS_NAME_MAX + 1) : 0;

    if (size == 0)
        return dibs__fail(err, DIBS_INVALID, "the %s is empty", what);
    if (size > DIBS_NAME_MAX)
        return dibs__fail(err, DIBS_INVALID, "the %s is longer than %d bytes", what, DIBS_NAME_MAX);
    return DIBS_OK;
}

/* Says on which make of database it went wrong. */
static dibs_status wrap(dibs_sql db, dibs_status status, dibs_error *err)
{
    if (status != DIBS_OK)
        dibs__wrap(err, "%s", db.driver->name);
    if (status == DIBS_UNAVAILABLE && err)
        err->next = DIBS_NEXT_RESTART; /* with a new transaction */
    return status;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

const char *dibs_sql_schema(dibs_sql db)
{
    return db.driver ? db.driver->schema : NULL;
}

dibs_status dibs__do_sql_prepare(dibs_sql db, dibs_error *err)
{
    dibs_status status = check_connection(db, err);

    if (status != DIBS_OK)
        return status;
    return wrap(db, db.driver->prepare(db.connection, err), err);
}

/* ---- Fence and lock -------------------------------------------------------------------------- */

dibs_status dibs__do_sql_fence_pass(dibs_sql db, const char *resource, uint64_t fence,
                                    uint64_t floor, dibs_error *err)
{
    dibs_status status = check_connection(db, err);

    if (status == DIBS_OK)
        status = check_name("resource", resource, err);
    if (status != DIBS_OK)
        return status;
    if (floor == 0)
        floor = fence;
    if (fence == 0 || fence > INT64_MAX || floor > fence)
        return dibs__fail(err, DIBS_INVALID, "fence %llu with floor %llu is not a valid fence",
                          (unsigned long long)fence, (unsigned long long)floor);
    status = db.driver->fence_pass(db.connection, resource, (int64_t)fence, (int64_t)floor, err);
    return wrap(db, status, err);
}

dibs_status dibs__do_sql_lock(dibs_sql db, const char *name, int64_t wait_ms, dibs_error *err)
{
    dibs_status status = check_connection(db, err);

    if (status == DIBS_OK)
        status = check_name("name", name, err);
    if (status == DIBS_OK)
        status = dibs__check_wait(wait_ms, err);
    if (status != DIBS_OK)
        return status;
    return wrap(db, db.driver->lock(db.connection, name, wait_ms, err), err);
}

/* ---- Once ------------------------------------------------------------------------------------ */

static dibs_status check_key(dibs_sql db, const char *name, const dibs_sql_once_options *options,
                             dibs__tx_key *key, dibs_error *err)
{
    static const dibs_sql_once_options defaults;
    const dibs_sql_once_options *o = options ? options : &defaults;
    dibs_status status = check_connection(db, err);

    if (status == DIBS_OK)
        status = DIBS__CHECK_RESERVED(o, err);
    if (status == DIBS_OK)
        status = check_name("key", name, err);
    if (status == DIBS_OK && o->scope && *o->scope)
        status = check_name("scope", o->scope, err);
    if (status == DIBS_OK)
        status = dibs__check_fingerprint(o->fingerprint, o->fingerprint_size, err);
    if (status == DIBS_OK)
        status = dibs__check_wait(o->wait_ms, err);
    *key = (dibs__tx_key){.scope = o->scope ? o->scope : "",
                          .name = name,
                          .fingerprint = o->fingerprint_size ? o->fingerprint : "",
                          .fingerprint_size = o->fingerprint_size,
                          .wait_ms = o->wait_ms};
    return status;
}

dibs_status dibs__do_sql_once(dibs_sql db, const char *name, const dibs_sql_once_options *options,
                              dibs_value *stored, dibs_error *err)
{
    dibs__tx_key key;
    dibs_status status = check_key(db, name, options, &key, err);

    if (stored)
        *stored = (dibs_value){0};
    if (status != DIBS_OK)
        return status;
    return wrap(db, db.driver->once(db.connection, &key, stored, err), err);
}

dibs_status dibs__do_sql_once_finish(dibs_sql db, const char *name, const void *result, size_t size,
                                     const dibs_sql_once_options *options, dibs_error *err)
{
    dibs__tx_key key;
    dibs_status status = check_key(db, name, options, &key, err);

    if (status != DIBS_OK)
        return status;
    if (!result)
        return dibs__fail(err, DIBS_INVALID,
                          "the result is NULL: for no result, do not call dibs_sql_once_finish");
    if (size > INT32_MAX)
        return dibs__fail(err, DIBS_INVALID, "a result of %zu bytes is too long", size);
    return wrap(db, db.driver->once_finish(db.connection, &key, result, size, err), err);
}

/* ---- Change ---------------------------------------------------------------------------------- */

dibs_sql_value dibs_sql_integer(int64_t integer)
{
    return (dibs_sql_value){.type = DIBS_SQL_INTEGER, .integer = integer};
}

dibs_sql_value dibs_sql_text(const char *text)
{
    return (dibs_sql_value){.type = text ? DIBS_SQL_TEXT : DIBS_SQL_NULL, .data = text};
}

dibs_sql_value dibs_sql_bytes(const void *data, size_t size)
{
    return (dibs_sql_value){
        .type = DIBS_SQL_BYTES, .data = data ? data : "", .size = data ? size : 0};
}

static dibs_status check_values(const dibs_sql_change *change, dibs_error *err)
{
    if (change->value_count > DIBS_SQL_VALUES_MAX)
        return dibs__fail(err, DIBS_INVALID, "%zu values are more than %d", change->value_count,
                          DIBS_SQL_VALUES_MAX);
    if (change->value_count > 0 && !change->values)
        return dibs__fail(err, DIBS_INVALID, "the values are NULL");
    for (size_t i = 0; i < change->value_count; i++) {
        const dibs_sql_value *v = &change->values[i];
        bool has_data = v->type == DIBS_SQL_TEXT || v->type == DIBS_SQL_BYTES;
        if (v->type > DIBS_SQL_BYTES || (has_data && !v->data) || v->size > INT32_MAX)
            return dibs__fail(err, DIBS_INVALID, "value %zu is not a value", i + 1);
    }
    return DIBS_OK;
}

dibs_status dibs__do_sql_update(dibs_sql db, const dibs_sql_change *change, dibs_error *err)
{
    dibs_status status = check_connection(db, err);

    if (status != DIBS_OK)
        return status;
    if (!change || !change->table || !change->set || !change->row || !change->still)
        return dibs__fail(err, DIBS_INVALID, "a change needs table, set, row and still");
    status = DIBS__CHECK_RESERVED(change, err);
    if (status == DIBS_OK)
        status = check_values(change, err);
    if (status != DIBS_OK)
        return status;
    return wrap(db, dibs__tx_change(db.driver, db.connection, change, err), err);
}

DIBS__SQL_CALLS(DIBS__CALL_DEFINE)

/* ---- What the drivers share ------------------------------------------------------------------ */

dibs_sql_value dibs__tx_name(const char *name)
{
    return dibs_sql_bytes(name, strlen(name));
}

dibs_sql_value dibs__tx_fingerprint(const dibs__tx_key *key)
{
    return dibs_sql_bytes(key->fingerprint, key->fingerprint_size);
}

static uint64_t hash_more(uint64_t hash, const char *text)
{
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return (hash ^ 0xff) * 0x100000001b3u;
}

/* FNV-1a, and a mixer so that the low bits, which pick a slot, depend on all of it. */
uint64_t dibs__tx_hash(const char *domain, const char *name)
{
    uint64_t hash = hash_more(hash_more(0xcbf29ce484222325u, domain), name);

    hash ^= hash >> 33;
    hash *= 0xff51afd7ed558ccdu;
    hash ^= hash >> 33;
    return hash;
}

dibs_status dibs__tx_seen(const dibs__tx_key *key, const void *fingerprint, size_t size,
                          dibs_error *err)
{
    if (size == key->fingerprint_size &&
        (size == 0 || memcmp(fingerprint, key->fingerprint, size) == 0))
        return dibs__fail(err, DIBS_ALREADY, "key '%.*s' of '%.*s' was already done", SHOWN,
                          key->name, SHOWN, key->scope);
    return dibs__fail(err, DIBS_MISMATCH,
                      "key '%.*s' of '%.*s' was used with a different fingerprint", SHOWN,
                      key->name, SHOWN, key->scope);
}

dibs_status dibs__tx_keep(dibs_value *stored, const void *data, size_t size, dibs_error *err)
{
    if (!stored || !data)
        return DIBS_OK;
    stored->data = calloc(1, size + 1); /* with the NUL that follows every value */
    if (!stored->data)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory for a result of %zu bytes", size);
    memcpy(stored->data, data, size);
    stored->size = size;
    stored->left_ms = DIBS_FOREVER;
    return DIBS_OK;
}

dibs_status dibs__tx_refuse_fence(const char *resource, int64_t fence, int64_t floor,
                                  dibs_error *err)
{
    dibs__fail(err, DIBS_FENCED,
               "'%.*s' has seen fence %lld, and %lld is older: the lock was lost, roll back", SHOWN,
               resource, (long long)floor, (long long)fence);
    if (err)
        err->fence = (uint64_t)floor;
    return DIBS_FENCED;
}

dibs_status dibs__tx_no_transaction(dibs_error *err)
{
    return dibs__fail(err, DIBS_INVALID,
                      "no transaction is open on this connection: begin one first");
}

dibs_status dibs__tx_no_table(const char *what, dibs_error *err)
{
    return dibs__fail(err, DIBS_NOT_FOUND,
                      "a table of dibs is missing (%s): call dibs_sql_prepare, or have the SQL of "
                      "dibs_sql_schema run",
                      what);
}

dibs_status dibs__tx_undone(dibs_status status, const char *why, dibs_error *err)
{
    return dibs__fail(err, status,
                      "the database has rolled the whole transaction back: send ROLLBACK and start "
                      "again: %.300s",
                      why);
}

dibs_status dibs__tx_not_in_time(const char *name, dibs_error *err)
{
    return dibs__fail(err, DIBS_BUSY, "'%.*s' is taken by another transaction", SHOWN, name);
}
