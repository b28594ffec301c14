/* The tables. Created on first use if the account may; an administrator can do it with the same
 * text.
 *
 * The lock's row is rewritten with every grant: half of each page is left free, so that the new
 * version stays on its page and no index is touched (`listed`, which tells what a listing shows, is kept with that in
 * mind: see sql.h). Keys by owner begin with the owner: an index
 * that begins with the name would, while the tables are small, seem as good to the planner for
 * looking up a place, and would stay in its plans when they have grown. The views are for people.
 */
#include "engines/postgresql/postgresql.h"

#include "core/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERSION      "dibs 2" /* of the locks' tables */
#define CELL_VERSION "dibs 1"
#define OLDER        "dibs 1" /* without `listed`: the same text brings it up to date */

#define ADD_LISTED "ALTER TABLE {lock} ADD COLUMN IF NOT EXISTS listed bigint NOT NULL DEFAULT 1;\n"
#define INDEX_LISTED \
    "CREATE INDEX IF NOT EXISTS {index_lock}_listed ON {lock} (name) WHERE listed > 0;\n"

/* CREATE OR REPLACE keeps the names of a view's columns, and a new view would lose its rights. */
#define RENAME_LINE                                                                             \
    "DO $$ BEGIN IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('{waiter}s')" \
    " AND attname = 'line') THEN\n"                                                             \
    "  ALTER TABLE {waiter}s RENAME COLUMN line TO position;\n"                                 \
    "END IF; END $$;\n"

/* What an older table gets first, each in a transaction of its own: the column, for
 * which the table is locked but no row is written; then the index: while it is built, nobody can write. It is not built
 * CONCURRENTLY: that waits for the oldest transaction of the whole database, and leaves an invalid index when it
 * is cut off. Rows from before are listed until UNLIST has come by. */
static const char *const upgrade[] = {ADD_LISTED, INDEX_LISTED};

static const char schema[] =
    "CREATE TABLE IF NOT EXISTS {lock} (\n"
    "  name bytea PRIMARY KEY,\n"
    "  capacity bigint NOT NULL DEFAULT 0, used bigint NOT NULL DEFAULT 0,\n"
    "  holders bigint NOT NULL DEFAULT 0, waiters bigint NOT NULL DEFAULT 0,\n"
    "  fence bigint NOT NULL DEFAULT 0, place bigint NOT NULL DEFAULT 0,\n"
    "  broken_fence bigint NOT NULL DEFAULT 0, broken_at bigint NOT NULL DEFAULT 0,\n"
    "  broken_by bytea NOT NULL DEFAULT '', first_place bigint NOT NULL DEFAULT 0,\n"
    "  owner bytea, attempt bytea, host bytea, pid bigint, wake bytea, weight bigint, lease "
    "bigint,\n"
    "  min_hold bigint, held bigint, since bigint, expires bigint, released bigint\n"
    ") WITH (fillfactor = 50);\n" ADD_LISTED INDEX_LISTED "CREATE TABLE IF NOT EXISTS {holder} (\n"
    "  name bytea NOT NULL, owner bytea NOT NULL, attempt bytea NOT NULL, host bytea NOT NULL,\n"
    "  pid bigint NOT NULL, wake bytea NOT NULL, weight bigint NOT NULL, lease bigint NOT NULL,\n"
    "  min_hold bigint NOT NULL, fence bigint NOT NULL, since bigint NOT NULL,\n"
    "  expires bigint NOT NULL, released bigint NOT NULL,\n"
    "  PRIMARY KEY (name, fence), UNIQUE (name, expires, fence), UNIQUE (owner, name, fence)\n"
    ");\n"
    "CREATE TABLE IF NOT EXISTS {waiter} (\n"
    "  name bytea NOT NULL, owner bytea NOT NULL, attempt bytea NOT NULL, host bytea NOT NULL,\n"
    "  pid bigint NOT NULL, wake bytea NOT NULL, weight bigint NOT NULL, lease bigint NOT NULL,\n"
    "  min_hold bigint NOT NULL, place bigint NOT NULL, since bigint NOT NULL,\n"
    "  span bigint NOT NULL, alive_until bigint NOT NULL,\n"
    "  PRIMARY KEY (name, place), UNIQUE (owner, name)\n"
    ") WITH (fillfactor = 70);\n"
    "CREATE OR REPLACE VIEW {lock}s AS SELECT encode(name, 'escape') AS name,\n"
    "  nullif(capacity, 1073741824) AS slots, holders, waiters, fence,\n"
    "  encode(nullif(broken_by, ''), 'escape') AS broken_by,\n"
    "  to_timestamp(nullif(broken_at, 0) / 1000000.0) AS broken_at FROM {lock};\n"
    "CREATE OR REPLACE VIEW {holder}s AS SELECT encode(name, 'escape') AS name,\n"
    "  encode(owner, 'escape') AS owner, encode(host, 'escape') AS host, pid, held AS fence,\n"
    "  'exclusive' AS kind, to_timestamp(since / 1000000.0) AS since,\n"
    "  to_timestamp(expires / 1000000.0) AS expires, released <> 0 AS released\n"
    "  FROM {lock} WHERE held IS NOT NULL\n"
    "  UNION ALL SELECT encode(h.name, 'escape'), encode(h.owner, 'escape'),\n"
    "  encode(h.host, 'escape'), h.pid, h.fence,\n"
    "  CASE l.capacity WHEN 1073741824 THEN 'shared' ELSE h.weight || ' of ' || l.capacity END,\n"
    "  to_timestamp(h.since / 1000000.0), to_timestamp(h.expires / 1000000.0), h.released <> 0\n"
    "  FROM {holder} h JOIN {lock} l USING (name);\n" RENAME_LINE
    "CREATE OR REPLACE VIEW {waiter}s AS SELECT encode(name, 'escape') AS name,\n"
    "  row_number() OVER (PARTITION BY name ORDER BY place) AS position,\n"
    "  encode(owner, 'escape') AS owner, encode(host, 'escape') AS host, pid, weight,\n"
    "  to_timestamp(since / 1000000.0) AS since, to_timestamp(alive_until / 1000000.0) AS "
    "alive_until\n"
    "  FROM {waiter};\n"
    "COMMENT ON TABLE {lock} IS '" VERSION "';\n";

static const char cells[] =
    "CREATE TABLE IF NOT EXISTS {cell} (\n"
    "  name bytea PRIMARY KEY, version bigint NOT NULL DEFAULT 0, floor bigint NOT NULL DEFAULT "
    "0,\n"
    "  written bigint NOT NULL DEFAULT 0, expires bigint NOT NULL, number bigint NOT NULL DEFAULT "
    "0,\n"
    "  counter bigint NOT NULL DEFAULT 0, vacant bigint NOT NULL DEFAULT 0,\n"
    "  waited bigint NOT NULL DEFAULT 0, reap bigint NOT NULL, stamp bytea NOT NULL DEFAULT '',\n"
    "  data bytea NOT NULL DEFAULT ''\n"
    ") WITH (fillfactor = 70);\n"
    "CREATE INDEX IF NOT EXISTS {index_cell}_reap ON {cell} (reap) WHERE reap < "
    "9223372036854775807;\n"
    "CREATE TABLE IF NOT EXISTS {request} (\n"
    "  name bytea NOT NULL, request bytea NOT NULL, number bigint NOT NULL, expires bigint NOT "
    "NULL,\n"
    "  PRIMARY KEY (name, request)\n"
    ");\n"
    "CREATE INDEX IF NOT EXISTS {index_request}_expires ON {request} (expires)\n"
    "  WHERE expires < 9223372036854775807;\n"
    "CREATE OR REPLACE VIEW {cell}s AS SELECT encode(name, 'escape') AS name, version,\n"
    "  CASE WHEN counter <> 0 THEN number END AS number,\n"
    "  CASE WHEN counter = 0 THEN length(data) END AS bytes,\n"
    "  nullif(floor, 0) AS floor, to_timestamp(written / 1000000.0) AS written,\n"
    "  to_timestamp(nullif(expires, 9223372036854775807) / 1000000.0) AS expires\n"
    "  FROM {cell} WHERE vacant = 0;\n"
    "COMMENT ON TABLE {cell} IS '" CELL_VERSION "';\n";

/* All of it, for a person. */
char *dibs__pg_schema_text(const char *prefix)
{
    char *locks = dibs__pg_fill_in(schema, prefix), *more = dibs__pg_fill_in(cells, prefix);
    char *all = locks && more ? malloc(strlen(locks) + strlen(more) + 1) : NULL;

    if (all)
        strcat(strcpy(all, locks), more);
    free(locks);
    free(more);
    return all;
}

/* ---- Are they there? ------------------------------------------------------------------------- */

typedef enum found { FAILED = -1 /* `err` is set */, NONE, OUTDATED, OURS } found;

static found find_table(dibs__pg_conn *c, const char *which, const char *version,
                        dibs__deadline until, dibs_error *err)
{
    dibs__pg *e = (dibs__pg *)c->base.e;
    char sql[400];
    PGresult *res;
    found what = NONE;

    snprintf(sql, sizeof sql,
             "SELECT to_regclass('%s%s') IS NOT NULL, "
             "coalesce(obj_description(to_regclass('%s%s'), 'pg_class'), '')",
             e->address.prefix, which, e->address.prefix, which);
    res = dibs__pg_simple(e->sql.base.env, c->pg, sql, until, err);
    if (!res)
        return FAILED;
    if (PQgetvalue(res, 0, 0)[0] == 't')
        what = strcmp(PQgetvalue(res, 0, 1), version) == 0 ? OURS
               : strcmp(PQgetvalue(res, 0, 1), OLDER) == 0 ? OUTDATED
                                                           : FAILED;
    if (what == FAILED)
        dibs__fail(err, DIBS_ENGINE_FAILED,
                   "postgresql: the table %s%s in %s is not of this version ('%s' "
                   "is its comment, there is '%.60s'): give another ?table_prefix=",
                   e->address.prefix, which, e->address.label, version, PQgetvalue(res, 0, 1));
    PQclear(res);
    return what;
}

/* One at a time: CREATE TABLE IF NOT EXISTS by two at once fails for one of them. */
static dibs_status run_alone(dibs__pg_conn *c, const char *pattern, dibs__deadline until,
                             dibs_error *err)
{
    static const char first[] = "SELECT set_config('lock_timeout', '0', true); "
                                "SELECT pg_advisory_xact_lock(7236978148462129154);\n";
    dibs__pg *e = (dibs__pg *)c->base.e;
    char *text = dibs__pg_fill_in(pattern, e->address.prefix);
    char *sql = text ? malloc(sizeof first + strlen(text)) : NULL;
    PGresult *res = NULL;
    dibs_status status = DIBS_OK;

    if (sql) {
        strcpy(sql, first);
        strcat(sql, text);
        res = dibs__pg_simple(e->sql.base.env, c->pg, sql, until, err);
        status = res ? DIBS_OK : err->status;
    } else {
        status = dibs__fail(err, DIBS_NO_MEMORY, "postgresql: out of memory");
    }
    free(text);
    free(sql);
    PQclear(res);
    return status;
}

static dibs_status create_tables(dibs__pg_conn *c, found what, const char *pattern,
                                 dibs__deadline until, dibs_error *err)
{
    dibs_status status = DIBS_OK;

    for (size_t i = 0; what == OUTDATED && i < 2 && status == DIBS_OK; i++)
        status = run_alone(c, upgrade[i], until, err);
    return status == DIBS_OK ? run_alone(c, pattern, until, err) : status;
}

/* `pattern` NULL: none are created. `names`: for the message, each with its prefix. */
static dibs_status see_to(dibs__pg_conn *c, const char *which, const char *version,
                          const char *pattern, const char *names, dibs__deadline until,
                          dibs_error *err)
{
    dibs__pg *e = (dibs__pg *)c->base.e;
    dibs_error own = {0};
    dibs_status status;
    found what = find_table(c, which, version, until, &own);

    if (what == NONE && !pattern)
        return DIBS_NOT_FOUND;
    status = what == FAILED ? own.status
             : what == OURS ? DIBS_OK
                            : create_tables(c, what, pattern, until, &own);
    if (status == DIBS_DENIED && what != FAILED)
        return dibs__fail(
            err, DIBS_DENIED,
            "postgresql: %s has no tables %s of this version, and this "
            "account may not create them: let an administrator run what `dibs schema "
            "--url '…'` prints, then GRANT SELECT, INSERT, UPDATE, DELETE on them (%s)",
            e->address.label, names, own.message);
    if (status != DIBS_OK)
        dibs__fail_as(err, status, &own);
    return status;
}

dibs_status dibs__pg_prepare(dibs__sql_conn *base, dibs__deadline until, dibs_error *err)
{
    const char *prefix = ((dibs__pg *)base->e)->address.prefix;
    char names[3 * DIBS__PG_PREFIX_MAX + 40];

    snprintf(names, sizeof names, "%slock, %sholder and %swaiter", prefix, prefix, prefix);
    return see_to((dibs__pg_conn *)base, "lock", VERSION, schema, names, until, err);
}

/* The connection may be in the middle of its pipelines by then. */
dibs_status dibs__pg_prepare_cells(dibs__sql_conn *base, bool make, dibs__deadline until,
                                   dibs_error *err)
{
    dibs__pg_conn *c = (dibs__pg_conn *)base;
    const char *prefix = ((dibs__pg *)base->e)->address.prefix;
    char names[2 * DIBS__PG_PREFIX_MAX + 40];
    dibs_status status;

    dibs__pg_leave_pipeline(c, until);
    snprintf(names, sizeof names, "%scell and %srequest", prefix, prefix);
    status = see_to(c, "cell", CELL_VERSION, make ? cells : NULL, names, until, err);
    c->base.broken = PQtransactionStatus(c->pg) != PQTRANS_IDLE; /* answers may be on their way */
    return status;
}
