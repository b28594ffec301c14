/* The text of every operation for PostgreSQL; sql.h says what each means.
 *
 * {now} is clock_timestamp(), never now(): the latter is the time at which the transaction began,
 * before it waited for its row. Where several columns must get the same moment, it is read once,
 * by a subselect that runs when the row is locked: expressions of an UPDATE are computed again for
 * a row that had to be waited for, what comes from a FROM is not.
 *
 * Lists are taken one by one (a LATERAL that cannot be flattened), each by its whole key: `= ANY
 * (…)` may be planned as a walk over all entries of the lock.
 *
 * Names and owners may be any bytes: they, and all other text, are bytea. */
#include "engines/postgresql/postgresql.h"

#include "core/error.h"

#include <stdlib.h>
#include <string.h>

#define NOW "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
#define WHO "owner, attempt, host, pid, wake, weight, lease, min_hold"
#define RECORD                                                                             \
    "capacity, used, holders, waiters, fence, place, broken_fence, broken_at, broken_by, " \
    "first_place"
#define HELD    WHO ", held, since, expires, released"
#define HOLDER  WHO ", fence, since, expires, released"
#define WAITER  WHO ", place, since, span, alive_until"
#define IN_WHO  "$2, $3, $4, $5, $6, $7, $8, $9"
#define IN_MORE "$10, $11, $12, $13"
#define DAY     "86400000000"

/* The rows of `table` whose `column` is in the list `list`, as `what`. */
#define EACH(what, table, column, list, more)                                            \
    "SELECT x.* FROM unnest(" list ") u CROSS JOIN LATERAL (SELECT " what " FROM " table \
    " WHERE name = $1 AND " column " = u" more " OFFSET 0) x"
#define DROP(table, column) \
    "DELETE FROM " table    \
    " WHERE ctid = ANY (ARRAY(" EACH("ctid", table, column, "$2::bigint[]", "") "))"

#define TOUCHED     EACH("ctid", "{waiter}", "owner", "$2::bytea[]", "")
#define OWN_HOLDERS EACH("104, " HOLDER, "{holder}", "owner", "$3::bytea[]", " AND released = 0")
#define OWN_WAITERS EACH("111, " WAITER, "{waiter}", "owner", "$3::bytea[]", "")

/* The kinds are the codes of the letters that sql.h gives them. */
#define LOOK_CLOCK                                                                          \
    "SELECT 99::bigint, NULL::bytea, NULL::bytea, NULL::bytea, NULL::bigint, NULL::bytea, " \
    "NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, {now} "
#define LOOK_WAITERS                                                                \
    "UNION ALL (SELECT 119, " WAITER " FROM {waiter} WHERE name = $1 AND place >= " \
    "(SELECT first_place FROM {lock} WHERE name = $1) ORDER BY place LIMIT $2) "    \
    "UNION ALL (" OWN_WAITERS ")"
#define LOOK_HOLDERS                                                                              \
    "UNION ALL (SELECT 101, " HOLDER " FROM {holder} WHERE name = $1 ORDER BY expires LIMIT $2) " \
    "UNION ALL (SELECT 102, " HOLDER " FROM {holder} WHERE name = $1 ORDER BY fence LIMIT $2) "   \
    "UNION ALL (" OWN_HOLDERS ") "

/* No name is longer than 512 bytes: all that begin with the prefix lie between these two. */
#define STARTS_WITH "name BETWEEN $1 AND $1 || decode(repeat('ff', 513), 'hex')"

static const char *const patterns[DIBS__PG_TEXTS] = {
    [DIBS__SQL_TAKE] =
        "INSERT INTO {lock} AS l (name, " RECORD ", " HELD ") "
        "SELECT $1, $7, $7, 1, 0, c.now, 0, 0, 0, '', 0, " IN_WHO ", c.now, c.now, c.now + $8, 0 "
        "FROM (SELECT {now} AS now OFFSET 0) c "
        "ON CONFLICT (name) DO UPDATE SET capacity = $7, used = $7, holders = 1, "
        "owner = $2, attempt = $3, host = $4, pid = $5, wake = $6, weight = $7, lease = $8, "
        "min_hold = $9, released = 0, (fence, held, since, expires) = "
        "(SELECT greatest(l.fence + 1, n.now), greatest(l.fence + 1, n.now), n.now, n.now + $8 "
        "FROM (SELECT {now} AS now OFFSET 0) n) "
        "WHERE l.waiters = 0 AND (l.holders = 0 OR (l.held IS NOT NULL AND l.expires <= {now})) "
        "AND l.capacity IN (0, $7) "
        "RETURNING fence, set_config('synchronous_commit', $10, true)",
    [DIBS__SQL_GIVE] =
        "UPDATE {lock} SET used = 0, holders = 0, owner = NULL, attempt = NULL, host = NULL, "
        "pid = NULL, wake = NULL, weight = NULL, lease = NULL, min_hold = NULL, held = NULL, "
        "since = NULL, expires = NULL, released = NULL "
        "WHERE name = $1 AND owner = $2 AND attempt = $3 AND waiters = 0 AND released = 0 "
        "AND expires > {now} AND (min_hold = 0 OR since + min_hold <= {now}) "
        "RETURNING fence, set_config('synchronous_commit', $4, true)",
    [DIBS__SQL_EXTEND] =
        "UPDATE {lock} SET expires = {now} + $4 WHERE name = $1 AND owner = $2 AND attempt = $3 "
        "AND released = 0 AND held >= broken_fence AND expires > {now} "
        "RETURNING held, set_config('synchronous_commit', $5, true)",
    /* A waiter that was changed while this waited for the lock's row is left out: its ctid is another. */
    [DIBS__SQL_TOUCH] =
        "WITH l AS MATERIALIZED (SELECT held, expires, first_place FROM {lock} WHERE name = $1 "
        "FOR UPDATE), "
        "n AS MATERIALIZED (SELECT l.*, {now} AS now FROM l), "
        "t AS (UPDATE {waiter} w SET alive_until = n.now + w.span FROM n "
        "WHERE w.ctid = ANY (ARRAY(" TOUCHED ")) "
        "AND w.attempt = ANY ($3) AND w.alive_until > n.now "
        "AND n.held IS NOT NULL AND n.expires > n.now RETURNING w.attempt, w.place) "
        "SELECT t.attempt, CASE WHEN t.place = (SELECT h.place FROM {waiter} h "
        "WHERE h.name = $1 AND h.place >= n.first_place AND h.alive_until > n.now "
        "ORDER BY h.place LIMIT 1) THEN n.expires - n.now ELSE 0 END, "
        "set_config('synchronous_commit', $4, true) FROM t, n",

    [DIBS__SQL_MAKE] = "INSERT INTO {lock} (name) VALUES ($1) ON CONFLICT (name) DO NOTHING",
    [DIBS__SQL_LOCK] = "SELECT " RECORD ", " HELD " FROM {lock} WHERE name = $1 FOR UPDATE",
    [DIBS__SQL_LOOK] = LOOK_CLOCK LOOK_HOLDERS LOOK_WAITERS,
    [DIBS__SQL_LOOK_LINE] = LOOK_CLOCK LOOK_WAITERS,
    [DIBS__SQL_SAVE] =
        "UPDATE {lock} SET (" RECORD ", " HELD ") = ROW ($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, "
        "$12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23) WHERE name = $1",
    [DIBS__SQL_HOLDER_ADD] =
        "INSERT INTO {holder} (name, " HOLDER ") VALUES ($1, " IN_WHO ", " IN_MORE ")",
    [DIBS__SQL_HOLDER_SET] =
        "UPDATE {holder} SET expires = $3, released = $4 WHERE name = $1 AND fence = $2",
    [DIBS__SQL_HOLDER_DROP] = DROP("{holder}", "fence"),
    [DIBS__SQL_WAITER_ADD] =
        "INSERT INTO {waiter} (name, " WAITER ") VALUES ($1, " IN_WHO ", " IN_MORE ")",
    [DIBS__SQL_WAITER_SET] =
        "UPDATE {waiter} SET attempt = $3, host = $4, pid = $5, wake = $6, lease = $7, "
        "min_hold = $8, span = $9, alive_until = $10 WHERE name = $1 AND place = $2",
    [DIBS__SQL_WAITER_DROP] = DROP("{waiter}", "place"),
    [DIBS__SQL_NOTIFY] =
        "SELECT pg_notify('dibs_' || encode($1::bytea, 'escape'), encode($2::bytea, 'escape'))",

    [DIBS__SQL_CLOCK] = "SELECT {now}",
    [DIBS__SQL_SHOW_HOLDERS] = "SELECT " HOLDER " FROM {holder} WHERE name = $1 ORDER BY fence",
    [DIBS__SQL_SHOW_WAITERS] = "SELECT " WAITER " FROM {waiter} WHERE name = $1 ORDER BY place",
    [DIBS__SQL_LIST_LOCKS] = "SELECT name, " RECORD ", " HELD " FROM {lock} WHERE " STARTS_WITH
                             " AND ($2::bigint <> 0 OR holders > 0 OR waiters > 0) ORDER BY name",
    [DIBS__SQL_LIST_HOLDERS] =
        "SELECT name, " HOLDER " FROM {holder} WHERE " STARTS_WITH " ORDER BY name, fence",
    [DIBS__SQL_REAP] =
        "WITH part AS MATERIALIZED (SELECT name, ctid AS id, holders + waiters AS users, fence "
        "FROM {lock} WHERE name > $1 ORDER BY name LIMIT $2), "
        "old AS MATERIALIZED (SELECT ctid AS id FROM {lock} WHERE ctid = ANY (ARRAY(SELECT id "
        "FROM part WHERE users = 0 AND fence < {now} - " DAY ")) "
        "AND holders = 0 AND waiters = 0 FOR UPDATE SKIP LOCKED), "
        "gone AS (DELETE FROM {lock} WHERE ctid = ANY (ARRAY(SELECT id FROM old))) "
        "SELECT name FROM part ORDER BY name DESC LIMIT 1",
    [DIBS__SQL_STALE] = "SELECT name FROM {lock} WHERE name > $1 AND (holders > 0 OR waiters > 0) "
                        "AND fence < {now} - " DAY " ORDER BY name LIMIT $2",

    [DIBS__PG_HOLDER_DROP_ONE] = "DELETE FROM {holder} WHERE name = $1 AND fence = $2",
    [DIBS__PG_WAITER_DROP_ONE] = "DELETE FROM {waiter} WHERE name = $1 AND place = $2",
};

bool dibs__pg_takes_commit(dibs__sql_op op)
{
    return op == DIBS__SQL_TAKE || op == DIBS__SQL_GIVE || op == DIBS__SQL_EXTEND ||
           op == DIBS__SQL_TOUCH;
}

/* ---- Filling in ------------------------------------------------------------------------------ */

/* What stands for {word}; `table` is added after the prefix. */
static const char *meaning_of(const char *word, const char **table)
{
    static const char *const tables[] = {"lock", "holder", "waiter"};

    *table = "";
    if (strncmp(word, "{now}", 5) == 0)
        return NOW;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (strncmp(word + 1, tables[i], strlen(tables[i])) == 0)
            *table = tables[i];
    return NULL;
}

char *dibs__pg_fill_in(const char *pattern, const char *prefix)
{
    size_t braces = 1, size = 0;
    char *out;

    for (const char *at = pattern; (at = strchr(at, '{')) != NULL; at++)
        braces++;
    out = malloc(strlen(pattern) + braces * (sizeof NOW + strlen(prefix) + 8));
    if (!out)
        return NULL;
    while (*pattern) {
        size_t n = strcspn(pattern, "{");
        memcpy(out + size, pattern, n);
        size += n;
        pattern += n;
        if (*pattern != '{')
            break;
        const char *table, *text = meaning_of(pattern, &table);
        for (const char *part = text ? text : prefix; *part; part++)
            out[size++] = *part;
        for (; *table; table++)
            out[size++] = *table;
        pattern = strchr(pattern, '}') + 1;
    }
    out[size] = '\0';
    return out;
}

dibs_status dibs__pg_dialect(char *out[], const char *prefix, dibs_error *err)
{
    for (int i = 0; i < DIBS__PG_TEXTS; i++) {
        out[i] = dibs__pg_fill_in(patterns[i], prefix);
        if (!out[i])
            return dibs__fail(err, DIBS_NO_MEMORY, "postgresql: out of memory");
    }
    return DIBS_OK;
}
