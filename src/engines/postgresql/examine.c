/* Facts about a PostgreSQL server: its settings, its role, its connections, and what this account may do
 * with the tables. One SELECT, which changes nothing. The checks are in src/doctor/postgresql.c. */
#define _GNU_SOURCE
#include "core/error.h"
#include "doctor/facts.h"
#include "engines/postgresql/postgresql.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMED(names) "(SELECT to_regclass('%1$s' || t) AS id FROM unnest(ARRAY[" names "]) t) x "
#define LOCK_NAMES   "'lock','holder','waiter'"
#define CELL_NAMES   "'cell','request'"
#define LOCK_TABLES  NAMED(LOCK_NAMES)
#define CELL_TABLES  NAMED(CELL_NAMES)
#define TABLES       NAMED(LOCK_NAMES "," CELL_NAMES)
#define USABLE                                                                              \
    "bool_and(has_table_privilege(id, 'SELECT') AND has_table_privilege(id, 'INSERT') AND " \
    "has_table_privilege(id, 'UPDATE') AND has_table_privilege(id, 'DELETE'))"

/* Names and values. %1$s: the tables' prefix; %2$s: the schema that they are made in. */
static const char questions[] =
    "SELECT name, setting FROM pg_settings WHERE name IN ('server_version', "
    "'server_version_num', "
    "'fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names', "
    "'autovacuum', "
    "'max_connections', 'superuser_reserved_connections', 'statement_timeout', "
    "'transaction_timeout', 'idle_session_timeout', 'default_transaction_read_only') "
    "UNION ALL SELECT 'recovery', pg_is_in_recovery()::text "
    "UNION ALL SELECT 'pid', pg_backend_pid()::text "
    "UNION ALL SELECT 'clock', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text "
    "UNION ALL SELECT 'connections', count(*)::text FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' "
    "UNION ALL SELECT 'oldest_transaction', "
    "coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::bigint::text "
    "FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
    "UNION ALL SELECT 'standbys', count(*)::text FROM pg_stat_replication "
    "UNION ALL SELECT 'role_limit', rolconnlimit::text FROM pg_roles WHERE rolname = "
    "current_user "
    "UNION ALL SELECT 'account', current_user::text "
    "UNION ALL SELECT 'may_create', coalesce((SELECT has_schema_privilege(oid, 'CREATE') "
    "FROM pg_namespace WHERE nspname = %2$s), false)::text "
    "UNION ALL SELECT 'may_end', bool_and(has_function_privilege(oid, 'EXECUTE'))::text "
    "FROM pg_proc WHERE proname = 'pg_terminate_backend' "
    "UNION ALL SELECT 'tables', count(id)::text FROM " LOCK_TABLES
    "UNION ALL SELECT 'cell_tables', count(id)::text FROM " CELL_TABLES
    "UNION ALL SELECT 'may_use', " USABLE "::text FROM " LOCK_TABLES "WHERE id IS NOT NULL "
    "UNION ALL SELECT 'may_use_cells', " USABLE "::text FROM " CELL_TABLES "WHERE id IS NOT NULL "
    "UNION ALL SELECT 'unlogged', bool_or(relpersistence <> 'p')::text FROM pg_class JOIN " TABLES
    "ON pg_class.oid = x.id "
    "UNION ALL SELECT 'layout', coalesce(obj_description(to_regclass('%1$slock'), 'pg_class'), '') "
    "WHERE to_regclass('%1$slock') IS NOT NULL";

/* The account may have rights in a schema that the prefix names, else where it would make tables. */
static void write_schema(const char *prefix, char *out, size_t size)
{
    const char *dot = strchr(prefix, '.');

    if (dot)
        snprintf(out, size, "'%.*s'", (int)(dot - prefix), prefix);
    else
        snprintf(out, size, "current_schema()");
}

/* Derived from what the server said; `pg` was told another process id if a pooler is in between. */
static void derive(dibs__facts *f, PGconn *pg)
{
    dibs__fact_flag(f, "pooled", dibs__fact_value(f, "pid", 0) != PQbackendPID(pg));
    dibs__fact_percent(f, "connections", dibs__fact_value(f, "connections", 0),
                       dibs__fact_value(f, "max_connections", 0) -
                           dibs__fact_value(f, "superuser_reserved_connections", 0));
    dibs__fact_flag(f, "idle_below_lease",
                    dibs__fact_value(f, "idle_session_timeout", 0) <
                        dibs__fact_value(f, "lease_ms", 0));
}

static dibs_status ask(dibs__pg *e, PGconn *pg, dibs__deadline until, dibs__facts *f,
                       dibs_error *err)
{
    const dibs__env *env = e->sql.base.env;
    char schema[DIBS__PG_PREFIX_MAX + 8];
    int64_t before = env->wall(env->ctx);
    PGresult *res = NULL;
    char *sql = NULL;

    write_schema(e->address.prefix, schema, sizeof schema);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (asprintf(&sql, questions, e->address.prefix, schema) < 0)
        return dibs__fail(err, DIBS_NO_MEMORY, "postgresql: out of memory");
#pragma GCC diagnostic pop
    res = dibs__pg_simple(env, pg, sql, until, err);
    free(sql);
    if (!res)
        return err ? err->status : DIBS_UNAVAILABLE;
    for (int i = 0; i < PQntuples(res); i++)
        if (!PQgetisnull(res, i, 1))
            dibs__fact_add(f, PQgetvalue(res, i, 0), "%s", PQgetvalue(res, i, 1));
    PQclear(res);
    dibs__fact_clock(f, dibs__fact_value(f, "clock", 0), before, env->wall(env->ctx));
    dibs__fact_add(f, "prefix", "%s", e->address.prefix);
    derive(f, pg);
    return DIBS_OK;
}

typedef struct exchange {
    dibs__pg *e;
    PGconn *pg;
    dibs__deadline until;
} exchange;

static bool select_one(void *ctx)
{
    exchange *x = ctx;
    PGresult *res = dibs__pg_simple(x->e->sql.base.env, x->pg, "SELECT 1", x->until, NULL);

    PQclear(res);
    return res != NULL;
}

dibs_status dibs__pg_examine(const dibs__open_request *request, dibs__facts *out, dibs_error *err)
{
    dibs__pg *e = calloc(1, sizeof *e);
    PGconn *pg = NULL;
    dibs_error own = {0};
    dibs__deadline until;
    dibs_status status;

    if (!e)
        return dibs__fail(err, DIBS_NO_MEMORY, "postgresql: out of memory");
    e->sql.base.env = request->env;
    status = dibs__pg_address_read(&e->address, request->url, err);
    if (status == DIBS_OK)
        status = dibs__pg_dial(e, NULL, request->until, &pg, err);
    until = dibs__after(request->env, DIBS__EXAMINE_SPAN);
    if (status == DIBS_OK && (status = ask(e, pg, until, out, &own)) == DIBS_OK)
        dibs__facts_measure(out, request->env, until, select_one, &(exchange){e, pg, until});
    else if (own.message[0])
        dibs__fail_as(err, own.status, &own);
    PQfinish(pg);
    dibs__pg_address_fini(&e->address);
    free(e);
    return status;
}
