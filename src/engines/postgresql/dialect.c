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
#include "families/rows/columns.h"

#include <stdlib.h>
#include <string.h>

#define NOW     "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
#define IN_WHO  "$2, $3, $4, $5, $6, $7, $8, $9"
#define IN_MORE "$10, $11, $12, $13"
#define PLAIN   "1073741824" /* DIBS__PLAIN */

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

/* ---- Cells ------------------------------------------------------------------------------------ */

#define NEVER "9223372036854775807"

/* When a cell with a floor may go: not before a day has passed since both. */
#define REAP(till, floor, now)                                                            \
    "CASE WHEN " floor " = 0 THEN " till " ELSE greatest(" till ", greatest(least(" floor \
    ", " NEVER " - " DAY "), " now ") + " DAY ") END"

/* What a change of cell `c` gives to version, written, expires and reap; `till` may name m.now. */
#define NEXT(till, floor)                                                                 \
    "(version, written, expires, reap) = (SELECT greatest(c.version + 1, k.now), k.now, " \
    "k.till, " REAP("k.till", floor,                                                      \
                    "k.now") " FROM (SELECT m.now, " till                                 \
                             " AS till FROM (SELECT {now} AS now OFFSET 0) m OFFSET 0) k)"

#define TILL(keep)  "CASE " keep "::bigint WHEN 0 THEN " NEVER " ELSE m.now + " keep "::bigint END"
#define LATER(keep) "CASE " keep "::bigint WHEN 0 THEN c.expires ELSE m.now + " keep "::bigint END"

#define IS_THERE      "c.name = $1 AND c.vacant = 0 AND c.expires > {now}"
#define IS_VALUE      IS_THERE " AND c.counter = 0"
#define IS_VERSION    "($2::bigint = -1 OR c.version = $2::bigint)"
#define FENCE_IS(arg) "(" arg "::bigint = 0 OR " arg "::bigint >= c.floor)"
#define RAISED(arg)   "greatest(c.floor, " arg "::bigint)"

/* Clients that wait for the cell are notified; most cells nobody waits for, and a NOTIFY makes commits queue. */
#define NOTIFIED(text)                                         \
    "CASE WHEN c.waited <> 0 AND " text "::bytea IS NOT NULL " \
    "THEN pg_notify('dibs_cell', encode(" text "::bytea, 'escape'))::text END"
#define DURABLE(arg) "set_config('synchronous_commit', " arg ", true)"

#define COUNT                                                                                \
    "UPDATE {cell} c SET " NEXT(LATER("$6"),                                                 \
                                "c.floor") ", number = c.number * $2::bigint + $3::bigint, " \
                                           "stamp = $7 WHERE " IS_THERE                      \
                                           " AND c.counter <> 0 AND c.stamp <> $7 "          \
                                           "AND c.number BETWEEN $4::bigint AND $5::bigint "

/* With the arguments of each operation. */
#define NEW_TILL   TILL("$2")
#define NEW_REAP   REAP("k.till", "$6::bigint", "k.now")
#define NEW_NEXT   NEXT(TILL("$2"), RAISED("$6")) ", floor = " RAISED("$6")
#define NEW_FENCE  FENCE_IS("$5")
#define NEW_END    " RETURNING 1, " NOTIFIED("$7") ", " DURABLE("$8")
#define SWAP_NEXT  NEXT(TILL("$3"), RAISED("$7")) ", floor = " RAISED("$7")
#define SWAP_FENCE FENCE_IS("$6")
#define SWAP_END   " RETURNING 1, " NOTIFIED("$8") ", " DURABLE("$9")
#define PASS_REAP  REAP("c.expires", "$3::bigint", "m.now")
#define PASS_END   " RETURNING 1, " DURABLE("$4")
#define WAIT_END   " RETURNING 1, " DURABLE("$3")

/* `also`: one more condition. */
#define REAPED(table, name, also)                                                         \
    "WITH gone AS (DELETE FROM " table " WHERE ctid = ANY (ARRAY(SELECT ctid FROM " table \
    " WHERE " name " <= (SELECT {now}) AND " name " < " NEVER also " ORDER BY " name      \
    " LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING 1) SELECT count(*) FROM gone"

/* ---- The statements -------------------------------------------------------------------------- */

static const char *const patterns[DIBS__PG_TEXTS] = {
    [DIBS__SQL_TAKE] =
        "INSERT INTO {lock} AS l (name, " RECORD ", " HELD ") "
        "SELECT $1, $7, $7, 1, 0, c.now, 0, 0, 0, '', 0, " IN_WHO ", c.now, c.now, c.now + $8, 0 "
        "FROM (SELECT {now} AS now OFFSET 0) c "
        "ON CONFLICT (name) DO UPDATE SET capacity = $7, used = $7, holders = 1, "
        "owner = $2, attempt = $3, host = $4, pid = $5, wake = $6, weight = $7, lease = $8, "
        "min_hold = $9, released = 0, (fence, held, since, expires, listed) = "
        "(SELECT greatest(l.fence + 1, n.now), greatest(l.fence + 1, n.now), n.now, n.now + $8, "
        "CASE WHEN l.holders > 0 THEN greatest(l.listed, 1) "
        "WHEN l.fence > n.now - 1000000 THEN 2 ELSE 1 END FROM (SELECT {now} AS now OFFSET 0) n) "
        "WHERE l.waiters = 0 AND (l.holders = 0 OR (l.held IS NOT NULL AND l.expires <= {now})) "
        "AND l.capacity IN (0, $7) "
        "RETURNING fence, set_config('synchronous_commit', $10, true)",
    [DIBS__SQL_GIVE] =
        "UPDATE {lock} SET used = 0, holders = 0, owner = NULL, attempt = NULL, host = NULL, "
        "pid = NULL, wake = NULL, weight = NULL, lease = NULL, min_hold = NULL, held = NULL, "
        "since = NULL, expires = NULL, released = NULL, listed = listed & 2 "
        "WHERE name = $1 AND owner = $2 AND attempt = $3 AND waiters = 0 AND released = 0 "
        "AND expires > {now} AND (min_hold = 0 OR since + min_hold <= {now}) "
        "RETURNING fence, set_config('synchronous_commit', $4, true)",
    /* Who joined while this waited for the lock's row may not be seen, but stands behind all others; who left is not
     * found any more, and then nothing is done. */
    [DIBS__SQL_HAND] =
        "WITH l AS MATERIALIZED (SELECT fence, first_place FROM {lock} "
        "WHERE name = $1 AND owner = $2 AND attempt = $3 AND waiters > 0 AND released = 0 "
        "AND expires > {now} AND (min_hold = 0 OR since + min_hold <= {now}) FOR UPDATE), "
        "n AS MATERIALIZED (SELECT l.*, {now} AS now FROM l), "
        "w AS (DELETE FROM {waiter} d USING n WHERE d.name = $1 AND d.place = "
        "(SELECT h.place FROM {waiter} h WHERE h.name = $1 AND h.place >= n.first_place "
        "ORDER BY h.place LIMIT 1) AND d.alive_until > n.now AND d.weight = " PLAIN
        " RETURNING d.*, n.now, greatest(n.fence + 1, n.now) AS next) "
        "UPDATE {lock} k SET waiters = k.waiters - 1, fence = w.next, held = w.next, "
        "first_place = w.place + 1, owner = w.owner, attempt = w.attempt, host = w.host, "
        "pid = w.pid, wake = w.wake, weight = w.weight, lease = w.lease, min_hold = w.min_hold, "
        "since = w.now, expires = w.alive_until, listed = greatest(k.listed, 1) "
        "FROM w WHERE k.name = $1 RETURNING k.waiters, w.wake, w.attempt, w.next, "
        "CASE WHEN position($4 IN w.wake) = 1 THEN NULL WHEN position('.'::bytea IN w.wake) = 0 "
        "THEN pg_notify('dibs_' || encode(w.wake, 'escape'), "
        "encode(w.attempt, 'escape') || ' ' || w.next || ' ' || w.next)::text "
        "ELSE set_config('dibs.bell', encode(w.wake, 'escape'), $6::text::boolean) END, "
        "set_config('synchronous_commit', $5, true)",
    [DIBS__SQL_JOIN] =
        "WITH k AS (UPDATE {lock} l SET waiters = l.waiters + 1, place = l.place + 1, "
        "first_place = CASE WHEN l.waiters = 0 THEN l.place + 1 ELSE l.first_place END, "
        "listed = greatest(l.listed, 1) "
        "WHERE l.name = $1 AND l.capacity = $7 AND l.held IS NOT NULL AND l.owner <> $2 "
        "AND l.expires > {now} "
        "AND NOT EXISTS (SELECT 1 FROM {waiter} o WHERE o.owner = $2 AND o.name = $1) "
        "RETURNING l.*), "
        "n AS MATERIALIZED (SELECT k.*, {now} AS now FROM k), "
        "i AS (INSERT INTO {waiter} (name, " WAITER ") SELECT $1, " IN_WHO
        ", n.place, n.now, least($10::bigint, $8::bigint), n.now + least($10::bigint, $8::bigint) "
        "FROM n) "
        "SELECT CASE WHEN EXISTS (SELECT 1 FROM {waiter} h WHERE h.name = $1 "
        "AND h.place >= n.first_place AND h.alive_until > n.now) THEN 0 "
        "ELSE n.expires - n.now END, n.expires - n.now, n.held, n.pid, n.owner, n.host, "
        "set_config('synchronous_commit', $11, true) FROM n",
    [DIBS__SQL_EXTEND] =
        "UPDATE {lock} SET expires = {now} + $4 WHERE name = $1 AND owner = $2 AND attempt = $3 "
        "AND released = 0 AND held >= broken_fence AND expires > {now} "
        "AND (waiters = 0 OR $5::bigint <> 0) "
        "RETURNING held, set_config('synchronous_commit', $6, true)",
    /* A waiter that was changed while this waited for the lock's row is left out: its ctid is another. */
    [DIBS__SQL_TOUCH] =
        "WITH l AS MATERIALIZED (SELECT held, expires, first_place, owner, host, pid FROM {lock} "
        "WHERE name = $1 FOR UPDATE), "
        "n AS MATERIALIZED (SELECT l.*, {now} AS now FROM l), "
        "t AS (UPDATE {waiter} w SET alive_until = n.now + w.span, wake = $5 FROM n "
        "WHERE w.ctid = ANY (ARRAY(" TOUCHED ")) "
        "AND w.attempt = ANY ($3) AND w.alive_until > n.now "
        "AND n.held IS NOT NULL AND n.expires > n.now RETURNING w.attempt, w.place) "
        "SELECT t.attempt, CASE WHEN t.place = (SELECT h.place FROM {waiter} h "
        "WHERE h.name = $1 AND h.place >= n.first_place AND h.alive_until > n.now "
        "ORDER BY h.place LIMIT 1) THEN n.expires - n.now ELSE 0 END, "
        "n.expires - n.now, n.held, n.pid, n.owner, n.host, "
        "set_config('synchronous_commit', $4, true) FROM t, n",

    [DIBS__SQL_MAKE] = "INSERT INTO {lock} (name) VALUES ($1) ON CONFLICT (name) DO NOTHING",
    [DIBS__SQL_LOCK] = "SELECT " RECORD ", " HELD " FROM {lock} WHERE name = $1 FOR UPDATE",
    [DIBS__SQL_LOOK] = LOOK_CLOCK LOOK_HOLDERS LOOK_WAITERS,
    [DIBS__SQL_LOOK_LINE] = LOOK_CLOCK LOOK_WAITERS,
    [DIBS__SQL_SAVE] =
        "UPDATE {lock} SET (" RECORD ", " HELD ") = ROW ($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, "
        "$12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23), "
        "listed = CASE WHEN $4::bigint + $5::bigint = 0 THEN listed & 2 "
        "WHEN holders + waiters > 0 THEN greatest(listed, 1) "
        "WHEN fence > $6::bigint - 1000000 THEN 2 ELSE 1 END WHERE name = $1",
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
    [DIBS__SQL_FIND] =
        "SELECT u.attempt, x.fence FROM unnest($1::bytea[], $2::bytea[], $3::bytea[]) "
        "AS u (name, owner, attempt) CROSS JOIN LATERAL (SELECT held AS fence FROM {lock} "
        "WHERE name = u.name AND attempt = u.attempt AND held IS NOT NULL "
        "UNION ALL SELECT 0 FROM {holder} h "
        "WHERE h.name = u.name AND h.owner = u.owner AND h.attempt = u.attempt OFFSET 0) x",
    [DIBS__SQL_SHOW_HOLDERS] = "SELECT " HOLDER " FROM {holder} WHERE name = $1 ORDER BY fence",
    [DIBS__SQL_SHOW_WAITERS] = "SELECT " WAITER " FROM {waiter} WHERE name = $1 ORDER BY place",
    [DIBS__SQL_LIST_LOCKS] =
        "SELECT name, " RECORD ", " HELD " FROM {lock} WHERE " STARTS_WITH " ORDER BY name",
    [DIBS__SQL_LIST_BUSY] = "SELECT name, " RECORD ", " HELD " FROM {lock} WHERE " STARTS_WITH
                            " AND listed > 0 ORDER BY name",
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
    [DIBS__SQL_UNLIST] =
        "UPDATE {lock} SET listed = 0 WHERE ctid = ANY (ARRAY(SELECT ctid FROM {lock} "
        "WHERE listed > 0 AND holders = 0 AND waiters = 0 AND fence < {now} - 1000000 "
        "LIMIT $1 FOR UPDATE SKIP LOCKED))",
    [DIBS__SQL_STALE] =
        "SELECT name FROM {lock} WHERE name > $1 AND listed > 0 "
        "AND (holders > 0 OR waiters > 0) AND fence < {now} - " DAY " ORDER BY name LIMIT $2",

    /* A value that can be seen is in the way: then no row is locked. */
    [DIBS__SQL_CELL_NEW] =
        "INSERT INTO {cell} AS c (name, version, floor, written, expires, reap, stamp, data) "
        "SELECT $1, k.now, $6::bigint, k.now, k.till, " NEW_REAP
        ", $3, $4 FROM (SELECT m.now, " NEW_TILL
        " AS till FROM (SELECT {now} AS now OFFSET 0) m OFFSET 0) k "
        "WHERE NOT EXISTS (SELECT 1 FROM {cell} c WHERE " IS_THERE ") "
        "ON CONFLICT (name) DO UPDATE SET " NEW_NEXT ", number = 0, counter = 0, vacant = 0, "
        "stamp = $3, data = $4 "
        "WHERE (c.vacant <> 0 OR c.expires <= {now}) AND " NEW_FENCE NEW_END,
    [DIBS__SQL_CELL_SWAP] =
        "UPDATE {cell} c SET " SWAP_NEXT ", stamp = $4, data = $5 "
        "WHERE " IS_VALUE " AND " IS_VERSION " AND c.stamp <> $4 AND " SWAP_FENCE SWAP_END,
    [DIBS__SQL_CELL_DELETE] =
        "DELETE FROM {cell} c WHERE " IS_VALUE " AND " IS_VERSION
        " AND c.floor = 0 AND c.version < {now} RETURNING 1, " NOTIFIED("$3") ", " DURABLE("$4"),
    [DIBS__SQL_CELL_COUNT] = COUNT "RETURNING 1, " DURABLE("$8"),
    [DIBS__SQL_CELL_COUNT_ONCE] =
        "WITH u AS (" COUNT "AND NOT EXISTS (SELECT 1 FROM {request} r WHERE r.name = $1 "
        "AND r.request = $8 AND r.expires > {now}) RETURNING c.number), "
        "r AS (INSERT INTO {request} (name, request, number, expires) "
        "SELECT $1, $8, u.number, CASE $9::bigint WHEN 0 THEN " NEVER
        " ELSE {now} + $9::bigint END FROM u ON CONFLICT (name, request) "
        "DO UPDATE SET number = excluded.number, expires = excluded.expires) "
        "SELECT 1, " DURABLE("$10") " FROM u",
    [DIBS__SQL_CELL_PASS] =
        "UPDATE {cell} c SET floor = $3, (written, reap) = (SELECT m.now, " PASS_REAP
        " FROM (SELECT {now} AS now OFFSET 0) m) "
        "WHERE " IS_VALUE " AND c.floor <= $2::bigint AND c.floor < $3::bigint" PASS_END,
    [DIBS__SQL_CELL_MAKE] = "INSERT INTO {cell} (name, vacant, expires, reap) "
                            "VALUES ($1, 1, " NEVER ", 0) ON CONFLICT (name) DO NOTHING",
    [DIBS__SQL_CELL_LOCK] = "SELECT 1 FROM {cell} WHERE name = $1 FOR UPDATE",
    [DIBS__SQL_CELL_LOOK] =
        "SELECT c.version, c.floor, c.written, c.expires, c.number, c.counter, c.vacant, c.stamp, "
        "CASE WHEN c.stamp = $3 THEN NULL ELSE c.data END, r.number, {now} FROM (SELECT 1) one "
        "LEFT JOIN {cell} c ON c.name = $1 LEFT JOIN {request} r ON r.name = $1 "
        "AND r.request = $2 AND r.expires > {now}",
    [DIBS__SQL_CELL_LIST] =
        "SELECT name, version, written, expires, octet_length(data)::bigint, "
        "substring(data FROM 1 FOR $5::bigint::integer), k.now "
        "FROM {cell} c, (SELECT {now} AS now OFFSET 0) k WHERE name >= $1 AND name < $2 "
        "AND name > $3 AND vacant = 0 AND counter = 0 AND expires > k.now "
        "ORDER BY name LIMIT $4",
    [DIBS__SQL_CELL_PUT] =
        "UPDATE {cell} c SET version = $2, floor = $3, written = $4, expires = $5, number = $6, "
        "counter = $7, vacant = $8, stamp = $9, data = coalesce($10, c.data), reap = $11 "
        "WHERE c.name = $1 RETURNING 1, " NOTIFIED("$12"),
    [DIBS__SQL_CELL_DROP] = "DELETE FROM {cell} c WHERE c.name = $1 RETURNING 1, " NOTIFIED("$2"),
    [DIBS__SQL_REQUEST_PUT] =
        "INSERT INTO {request} (name, request, number, expires) VALUES ($1, $2, $3, $4) "
        "ON CONFLICT (name, request) DO UPDATE SET number = $3, expires = $4",
    /* Marked by another already: seen, though not locked, it will be told to both. */
    [DIBS__SQL_CELL_WAIT] =
        "WITH u AS (UPDATE {cell} c SET waited = 1 "
        "WHERE " IS_THERE " AND c.version = $2 AND c.waited = 0" WAIT_END ") SELECT 1 FROM u "
        "UNION ALL SELECT 1 FROM {cell} c "
        "WHERE " IS_THERE " AND c.version = $2 AND c.waited <> 0",
    [DIBS__SQL_CELL_REAP] = REAPED("{cell}", "reap", " AND version < {now}"),
    [DIBS__SQL_REQUEST_REAP] = REAPED("{request}", "expires", ""),

    /* A member of the same role, so that nothing is refused; and no other session that has got the number since. */
    [DIBS__PG_RING] =
        "SELECT pg_cancel_backend(a.pid) FROM pg_stat_get_activity($1::bigint::integer) a "
        "WHERE (extract(epoch FROM a.backend_start) * 1000000)::bigint = $2 "
        "AND pg_has_role(a.usesysid, 'MEMBER')",

    /* The one that the hand-over before it has left in the session, if it did. */
    [DIBS__PG_RING_NEXT] =
        "SELECT set_config('dibs.bell', '', false), (SELECT count(pg_cancel_backend(a.pid)) "
        "FROM pg_stat_get_activity(nullif(split_part(c.bell, '.', 2), '')::integer) a "
        "WHERE c.bell <> '' AND (extract(epoch FROM a.backend_start) * 1000000)::bigint "
        "= nullif(split_part(c.bell, '.', 3), '')::bigint AND pg_has_role(a.usesysid, 'MEMBER')) "
        "FROM (SELECT coalesce(current_setting('dibs.bell', true), '') AS bell OFFSET 0) c",

    [DIBS__PG_HOLDER_DROP_ONE] = "DELETE FROM {holder} WHERE name = $1 AND fence = $2",
    [DIBS__PG_WAITER_DROP_ONE] = "DELETE FROM {waiter} WHERE name = $1 AND place = $2",
};

bool dibs__pg_takes_commit(dibs__sql_op op)
{
    return op == DIBS__SQL_TAKE || op == DIBS__SQL_GIVE || op == DIBS__SQL_HAND ||
           op == DIBS__SQL_JOIN || op == DIBS__SQL_EXTEND || op == DIBS__SQL_TOUCH ||
           op == DIBS__SQL_CELL_WAIT || (op >= DIBS__SQL_CELL_NEW && op <= DIBS__SQL_CELL_PASS);
}

/* ---- Filling in ------------------------------------------------------------------------------ */

/* What stands for {word}; `table` is added after it. An index has no schema in its name. */
static const char *meaning_of(const char *word, const char *prefix, const char **table)
{
    static const char *const tables[] = {"lock", "holder", "waiter", "cell", "request"};
    bool index = strncmp(word, "{index_", 7) == 0;
    const char *dot = index ? strrchr(prefix, '.') : NULL;

    *table = "";
    if (strncmp(word, "{now}", 5) == 0)
        return NOW;
    word += index ? 7 : 1;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        if (strncmp(word, tables[i], strlen(tables[i])) == 0)
            *table = tables[i];
    return dot ? dot + 1 : prefix;
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
        const char *table;
        for (const char *part = meaning_of(pattern, prefix, &table); *part; part++)
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
