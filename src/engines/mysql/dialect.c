/* The text of every operation that sql.h lists, in the dialect that MariaDB and MySQL share.
 *
 * The clock is SYSDATE(6) in a UTC session: the moment at which it is evaluated, not that at which
 * the statement began, so that a statement that waited for its row does not use an old time. An
 * UPDATE by primary key evaluates its conditions and its assignments after it has locked the row,
 * and the assignments from left to right. There is no UPDATE … RETURNING: a fence goes back as
 * LAST_INSERT_ID(fence), which travels in the answer to the UPDATE itself.
 *
 * `held` is 0 while nobody holds a lock exclusively; the columns beside it then still say who was
 * the last. A release that leaves them alone changes the row in its place. */
#include "engines/mysql/mysql.h"

#include "families/rows/columns.h"

#define CLOCK DIBS__MY_CLOCK
#define PLAIN "1073741824" /* DIBS__PLAIN */

/* Comes first among the assignments of SAVE: it looks at what was there. */
#define LISTED                                                                             \
    "listed = IF($4 + $5 = 0, listed & 2, IF(holders + waiters > 0, GREATEST(listed, 1), " \
    "IF(fence > $6 - 1000000, 2, 1))), "
#define NOBODY "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL"

/* Rows of those who have left stay in the indexes until the server purges them: nobody looks below.
 */
#define FIRST "(SELECT first_place FROM {lock} WHERE name = $1)"

/* The parts of a look. $1 name, $2 limit, $3 owners. */
#define EXPIRING "SELECT 101, " HOLDER " FROM {holder} WHERE name = $1 ORDER BY expires LIMIT $2"
#define OLDEST   "SELECT 102, " HOLDER " FROM {holder} WHERE name = $1 ORDER BY fence LIMIT $2"
#define HOLDING \
    "SELECT 104, " HOLDER " FROM {holder} WHERE name = $1 AND owner IN $3 AND released = 0"
#define HEAD(first)                                                               \
    "SELECT 119, " WAITER " FROM {waiter} FORCE INDEX (PRIMARY) WHERE name = $1 " \
    "AND place >= " first " ORDER BY place LIMIT $2"
#define WAITING(first)                                                             \
    "SELECT 111, " WAITER " FROM {waiter} FORCE INDEX (by_owner) WHERE name = $1 " \
    "AND owner IN $3 AND place >= " first

/* Of the one who asks: $1 name, $2 owner, $3 attempt. */
#define MINE "name = $1 AND owner = $2 AND attempt = $3 AND held <> 0 AND released = 0"

/* Those of clients that are gone. */
#define OLD_WAKES "DELETE FROM {wake} WHERE at < " CLOCK " - 3600000000"

/* ---- Cells ----------------------------------------------------------------------------------- */

#define NEVER "9223372036854775807"

/* After `floor`, `written` and `expires` have been assigned. */
#define REAP                                                                                \
    "IF(floor = 0, expires, GREATEST(expires, GREATEST(LEAST(floor, " NEVER " - " DAY "), " \
    "written) + " DAY "))"
#define TILL(keep)    "IF(" keep " = 0, " NEVER ", " CLOCK " + " keep ")"
#define NEXT          "version = GREATEST(version + 1, " CLOCK "), written = " CLOCK
#define IS_THERE      "name = $1 AND vacant = 0 AND expires > " CLOCK
#define IS_VALUE      IS_THERE " AND counter = 0"
#define IS_VERSION    "($2 = -1 OR version = $2)"
#define IS_AWAITED    IS_THERE " AND version = $2"
#define FENCE_IS(arg) "(" arg " = 0 OR " arg " >= floor)"

#define COUNT                                                                     \
    "UPDATE {cell} SET " NEXT ", expires = IF($6 = 0, expires, " CLOCK " + $6), " \
    "reap = " REAP ", number = number * $2 + $3, stamp = $7 WHERE " IS_THERE      \
    " AND counter <> 0 AND stamp <> $7 AND number BETWEEN $4 AND $5"

/* In an ON DUPLICATE KEY UPDATE: the first assignment decides, the others follow it. */
#define IF_NEW(column, value) column " = IF(@dibs_ok, " value ", " column ")"
#define NEW_STAMP                                               \
    "stamp = IF(@dibs_ok := ((vacant <> 0 OR expires <= " CLOCK \
    ") AND " FENCE_IS("$5") "), VALUES(stamp), stamp)"
#define NEW_VERSION IF_NEW("version", "GREATEST(version + 1, " CLOCK ")")
#define NEW_TIMES                          \
    IF_NEW("floor", "GREATEST(floor, $6)") \
    ", " IF_NEW("written", CLOCK) ", " IF_NEW("expires", TILL("$2")) ", " IF_NEW("reap", REAP)
#define NEW_KIND  IF_NEW("number", "0") ", " IF_NEW("counter", "0") ", " IF_NEW("vacant", "0")
#define NEW_VALUE IF_NEW("data", "VALUES(data)")
#define NEW_TILL  TILL("$2")
#define NEW_REAP                                                                          \
    "IF($6 = 0, " NEW_TILL ", GREATEST(" NEW_TILL ", GREATEST(LEAST($6, " NEVER " - " DAY \
    "), " CLOCK ") + " DAY "))"

#define SWAP_TILL    TILL("$3")
#define SWAP_FENCE   FENCE_IS("$6")
#define REQUEST_TILL TILL("$9")

/* Who waits for it. */
#define WATCHERS(text)                                                                 \
    {                                                                                  \
        "SELECT wake, text FROM {wake} WHERE wake > CONCAT('" DIBS__MY_CELL "', " text \
        ") AND wake < CONCAT('" DIBS__MY_CELL "', " text ", '~')",                     \
            DIBS__MY_WATCHERS                                                          \
    }

/* ---- Operations ------------------------------------------------------------------------------ */

const dibs__my_form dibs__my_forms[DIBS__SQL_OPS] = {
    [DIBS__SQL_TAKE] =
        {{{"UPDATE {lock} SET listed = IF(holders > 0, GREATEST(listed, 1), "
           "IF(fence > " CLOCK
           " - 1000000, 2, 1)), fence = LAST_INSERT_ID(GREATEST(fence + 1, " CLOCK
           ")), held = fence, "
           "owner = $2, attempt = $3, host = $4, pid = $5, wake = $6, weight = $7, lease = $8, "
           "min_hold = $9, since = " CLOCK ", expires = since + $8, released = 0, "
           "capacity = $7, used = $7, holders = 1 "
           "WHERE name = $1 AND waiters = 0 AND capacity IN (0, $7) "
           "AND (holders = 0 OR (held <> 0 AND expires <= " CLOCK "))",
           DIBS__MY_FENCE}},
         true},
    [DIBS__SQL_GIVE] =
        {{{"UPDATE {lock} SET used = 0 * LAST_INSERT_ID(held), holders = 0, held = 0, "
           "listed = listed & 2 "
           "WHERE " MINE " AND waiters = 0 AND expires > " CLOCK " AND since + min_hold <= " CLOCK,
           DIBS__MY_FENCE}},
         true},
    /* A SELECT of aggregates gives one row whatever it finds, so that no variable keeps a value from before. Its clock
     * is read with the lock's row locked; what it decides, the others do or leave. */
    [DIBS__SQL_HAND] =
        {{{"SELECT MAX(l.waiters) - 1, @dibs_wake := MAX(w.wake), @dibs_attempt := MAX(w.attempt), "
           "@dibs_fence := MAX(IF(w.alive_until > " CLOCK " AND w.weight = " PLAIN
           ", GREATEST(l.fence + 1, " CLOCK "), NULL)), @dibs_place := MAX(w.place), "
           "@dibs_owner := MAX(w.owner), @dibs_host := MAX(w.host), @dibs_pid := MAX(w.pid), "
           "@dibs_lease := MAX(w.lease), @dibs_min_hold := MAX(w.min_hold), "
           "@dibs_until := MAX(w.alive_until) "
           "FROM {lock} l JOIN {waiter} w ON w.name = $1 AND w.place = (SELECT MIN(h.place) "
           "FROM {waiter} h WHERE h.name = $1 AND h.place >= l.first_place) "
           "WHERE l.name = $1 AND l.owner = $2 AND l.attempt = $3 AND l.held <> 0 "
           "AND l.waiters > 0 AND l.released = 0 AND l.expires > " CLOCK
           " AND l.since + l.min_hold <= " CLOCK " FOR UPDATE",
           DIBS__MY_DECIDED},
          {"UPDATE {lock} SET listed = GREATEST(listed, 1), waiters = waiters - 1, "
           "fence = @dibs_fence, held = @dibs_fence, first_place = @dibs_place + 1, "
           "owner = @dibs_owner, attempt = @dibs_attempt, host = @dibs_host, pid = @dibs_pid, "
           "wake = @dibs_wake, lease = @dibs_lease, min_hold = @dibs_min_hold, since = " CLOCK
           ", expires = @dibs_until WHERE name = $1 AND @dibs_fence IS NOT NULL",
           DIBS__MY_NOTHING},
          {"DELETE FROM {waiter} WHERE name = $1 AND place = @dibs_place "
           "AND @dibs_fence IS NOT NULL",
           DIBS__MY_NOTHING},
          {"INSERT IGNORE INTO {wake} (wake, text, at) SELECT @dibs_wake, "
           "CONCAT(@dibs_attempt, ' ', @dibs_fence, ' ', @dibs_fence), " CLOCK
           " FROM DUAL WHERE @dibs_fence IS NOT NULL AND @dibs_wake <> $4",
           DIBS__MY_WAKE}},
         false},
    [DIBS__SQL_JOIN] =
        {{{"SELECT MAX(IF(EXISTS (SELECT 1 FROM {waiter} h WHERE h.name = $1 "
           "AND h.place >= l.first_place AND h.alive_until > " CLOCK
           "), 0, GREATEST(l.expires - " CLOCK ", 1))), MAX(GREATEST(l.expires - " CLOCK
           ", 1)), MAX(l.held), MAX(l.pid), MAX(l.owner), MAX(l.host), "
           "@dibs_place := MAX(l.place) + 1 FROM {lock} l WHERE l.name = $1 AND l.capacity = $7 "
           "AND l.held <> 0 AND l.owner <> $2 AND l.expires > " CLOCK
           " AND NOT EXISTS (SELECT 1 FROM {waiter} o WHERE o.name = $1 AND o.owner = $2 "
           "AND o.place >= l.first_place) FOR UPDATE",
           DIBS__MY_DECIDED},
          {"INSERT INTO {waiter} (name, " WAITER ") SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, "
           "@dibs_place, " CLOCK ", LEAST($a, $8), " CLOCK " + LEAST($a, $8) "
           "FROM DUAL WHERE @dibs_place IS NOT NULL",
           DIBS__MY_NOTHING},
          {"UPDATE {lock} SET listed = GREATEST(listed, 1), "
           "first_place = IF(waiters = 0, @dibs_place, first_place), waiters = waiters + 1, "
           "place = @dibs_place WHERE name = $1 AND @dibs_place IS NOT NULL",
           DIBS__MY_NOTHING}},
         false},
    [DIBS__SQL_EXTEND] = {{{"UPDATE {lock} SET expires = " CLOCK " + $4 + 0 * LAST_INSERT_ID(held) "
                            "WHERE " MINE " AND expires > " CLOCK " AND held >= broken_fence "
                            "AND (waiters = 0 OR $5)",
                            DIBS__MY_FENCE}},
                          true},
    [DIBS__SQL_TOUCH] =
        {{{"SELECT COUNT(*), MAX(first_place) INTO @dibs_live, @dibs_first FROM {lock} "
           "WHERE name = $1 AND held <> 0 AND expires > " CLOCK " FOR UPDATE",
           DIBS__MY_NOTHING},
          {"UPDATE {waiter} FORCE INDEX (by_owner) SET alive_until = " CLOCK
           " + span WHERE @dibs_live "
           "AND name = $1 AND owner IN $2 AND place >= @dibs_first AND attempt IN $3",
           DIBS__MY_NOTHING},
          {"SELECT w.attempt, IF(w.place = (SELECT MIN(h.place) FROM {waiter} h "
           "WHERE h.name = $1 AND h.place >= @dibs_first), GREATEST(l.expires - " CLOCK ", 1), 0), "
           "GREATEST(l.expires - " CLOCK ", 1), l.held, l.pid, l.owner, l.host "
           "FROM {lock} l JOIN {waiter} w FORCE INDEX (by_owner) ON w.name = l.name "
           "WHERE @dibs_live AND l.name = $1 AND w.owner IN $2 AND w.place >= @dibs_first "
           "AND w.attempt IN $3",
           DIBS__MY_ROWS}},
         false},
    [DIBS__SQL_MAKE] = {{{"INSERT INTO {lock} (name) SELECT $1 FROM DUAL "
                          "WHERE NOT EXISTS (SELECT 1 FROM {lock} WHERE name = $1) "
                          "ON DUPLICATE KEY UPDATE name = $1",
                          DIBS__MY_NOTHING}},
                        true},
    [DIBS__SQL_LOCK] = {{{"SELECT " RECORD ", " HELD ", " CLOCK ", @dibs_first := first_place "
                          "FROM {lock} WHERE name = $1 FOR UPDATE",
                          DIBS__MY_LOCKED}},
                        false},
    [DIBS__SQL_LOOK] = {{{"SELECT 99, " NOBODY ", " CLOCK, DIBS__MY_ROWS},
                         {"(" EXPIRING ") UNION ALL (" OLDEST ") UNION ALL (" HOLDING ")",
                          DIBS__MY_ROWS},
                         {"(" HEAD(FIRST) ") UNION ALL (" WAITING(FIRST) ")", DIBS__MY_ROWS}},
                        false},
    [DIBS__SQL_SAVE] =
        {{{"UPDATE {lock} SET " LISTED
           "capacity = $2, used = $3, holders = $4, waiters = $5, fence = $6, "
           "place = $7, broken_fence = $8, broken_at = $9, broken_by = $a, first_place = $b, "
           "owner = $c, attempt = $d, host = $e, pid = $f, wake = $g, weight = $h, lease = $i, "
           "min_hold = $j, held = $k, since = $l, expires = $m, released = $n WHERE name = $1",
           DIBS__MY_NOTHING}},
         true},
    [DIBS__SQL_HOLDER_ADD] = {{{"INSERT INTO {holder} (name, " HOLDER ") VALUES "
                                "($1, $2, $3, $4, $5, $6, $7, $8, $9, $a, $b, $c, $d)",
                                DIBS__MY_NOTHING}},
                              true},
    [DIBS__SQL_HOLDER_SET] = {{{"UPDATE {holder} SET expires = $3, released = $4 "
                                "WHERE name = $1 AND fence = $2",
                                DIBS__MY_NOTHING}},
                              true},
    [DIBS__SQL_HOLDER_DROP] = {{{"DELETE FROM {holder} WHERE name = $1 AND fence IN $2",
                                 DIBS__MY_NOTHING}},
                               true},
    [DIBS__SQL_WAITER_ADD] = {{{"INSERT INTO {waiter} (name, " WAITER ") VALUES "
                                "($1, $2, $3, $4, $5, $6, $7, $8, $9, $a, $b, $c, $d)",
                                DIBS__MY_NOTHING}},
                              true},
    [DIBS__SQL_WAITER_SET] = {{{"UPDATE {waiter} SET attempt = $3, host = $4, pid = $5, wake = $6, "
                                "lease = $7, min_hold = $8, span = $9, alive_until = $a "
                                "WHERE name = $1 AND place = $2",
                                DIBS__MY_NOTHING}},
                              true},
    [DIBS__SQL_WAITER_DROP] = {{{"DELETE FROM {waiter} WHERE name = $1 AND place IN $2",
                                 DIBS__MY_NOTHING}},
                               true},
    [DIBS__SQL_NOTIFY] = {{{"INSERT IGNORE INTO {wake} (wake, text, at) VALUES ($1, $2, " CLOCK ")",
                            DIBS__MY_NOTHING}},
                          false},
    [DIBS__SQL_CLOCK] = {{{"SELECT " CLOCK, DIBS__MY_ROWS}}, true},
    [DIBS__SQL_SHOW_HOLDERS] = {{{"SELECT " HOLDER " FROM {holder} WHERE name = $1 ORDER BY fence",
                                  DIBS__MY_ROWS}},
                                true},
    [DIBS__SQL_SHOW_WAITERS] = {{{"SELECT " WAITER " FROM {waiter} WHERE name = $1 ORDER BY place",
                                  DIBS__MY_ROWS}},
                                true},
    [DIBS__SQL_LIST_LOCKS] = {{{"SELECT name, " RECORD ", " HELD " FROM {lock} "
                                "WHERE name >= $1 AND LEFT(name, LENGTH($1)) = $1 ORDER BY name",
                                DIBS__MY_LISTED}},
                              true},
    [DIBS__SQL_LIST_BUSY] = {{{"SELECT name, " RECORD ", " HELD
                               " FROM {lock} FORCE INDEX (by_listed) "
                               "WHERE listed > 0 AND LEFT(name, LENGTH($1)) = $1 ORDER BY name",
                               DIBS__MY_LISTED}},
                             true},
    [DIBS__SQL_LIST_HOLDERS] = {{{"SELECT name, " HOLDER " FROM {holder} WHERE name >= $1 "
                                  "AND LEFT(name, LENGTH($1)) = $1 ORDER BY name, fence",
                                  DIBS__MY_ROWS}},
                                true},
    [DIBS__SQL_REAP] =
        {{{"SELECT MAX(name) INTO @dibs_last FROM "
           "(SELECT name FROM {lock} WHERE name > $1 ORDER BY name LIMIT $2) AS looked_at",
           DIBS__MY_NOTHING},
          {"DELETE FROM {lock} WHERE name > $1 AND name <= @dibs_last AND holders = 0 "
           "AND waiters = 0 AND fence < " CLOCK " - " DAY,
           DIBS__MY_NOTHING},
          {"SELECT @dibs_last FROM DUAL WHERE @dibs_last IS NOT NULL", DIBS__MY_ROWS},
          {OLD_WAKES, DIBS__MY_NOTHING}},
         false},
    /* What is found is read without locking it, so that no held lock is waited for. */
    [DIBS__SQL_UNLIST] = {{{"UPDATE {lock} l JOIN (SELECT name FROM {lock} FORCE INDEX (by_listed) "
                            "WHERE listed > 0 AND holders = 0 AND waiters = 0 "
                            "AND fence < " CLOCK " - 1000000 LIMIT $1) AS idle USING (name) "
                            "SET l.listed = 0 WHERE l.holders = 0 AND l.waiters = 0",
                            DIBS__MY_NOTHING}},
                          true},
    [DIBS__SQL_STALE] = {{{"SELECT name FROM {lock} FORCE INDEX (by_listed) "
                           "WHERE name > $1 AND listed > 0 "
                           "AND (holders > 0 OR waiters > 0) AND fence < " CLOCK " - " DAY
                           " ORDER BY name LIMIT $2",
                           DIBS__MY_ROWS}},
                         true},
    /* A value that can be seen is in the way: then no row is locked. */
    [DIBS__SQL_CELL_NEW] =
        {{{"INSERT INTO {cell} (name, version, floor, written, expires, reap, stamp, data) "
           "SELECT $1, " CLOCK ", $6, " CLOCK ", " NEW_TILL ", " NEW_REAP ", $3, $4 FROM DUAL "
           "WHERE NOT EXISTS (SELECT 1 FROM {cell} WHERE " IS_THERE ") "
           "ON DUPLICATE KEY UPDATE " NEW_STAMP ", " NEW_VERSION ", " NEW_TIMES ", " NEW_KIND
           ", " NEW_VALUE,
           DIBS__MY_NOTHING},
          {"SELECT 1 FROM {cell} WHERE name = $1 AND stamp = $3", DIBS__MY_ROWS},
          WATCHERS("$7")},
         false},
    [DIBS__SQL_CELL_SWAP] = {{{"UPDATE {cell} SET " NEXT ", floor = GREATEST(floor, $7), "
                               "expires = " SWAP_TILL ", reap = " REAP ", data = $5, stamp = $4 "
                               "WHERE " IS_VALUE " AND " IS_VERSION
                               " AND stamp <> $4 AND " SWAP_FENCE,
                               DIBS__MY_FENCE},
                              WATCHERS("$8")},
                             false},
    [DIBS__SQL_CELL_DELETE] = {{{"DELETE FROM {cell} WHERE " IS_VALUE " AND " IS_VERSION
                                 " AND floor = 0 AND version < " CLOCK,
                                 DIBS__MY_FENCE},
                                WATCHERS("$3")},
                               false},
    [DIBS__SQL_CELL_COUNT] = {{{COUNT, DIBS__MY_FENCE}}, false},
    [DIBS__SQL_CELL_COUNT_ONCE] =
        {{{COUNT " AND NOT EXISTS (SELECT 1 FROM {request} WHERE name = $1 AND request = $8 "
                 "AND expires > " CLOCK ")",
           DIBS__MY_FENCE},
          {"INSERT INTO {request} (name, request, number, expires) "
           "SELECT c.name, $8, c.number, " REQUEST_TILL " FROM {cell} c "
           "WHERE c.name = $1 AND c.stamp = $7 ON DUPLICATE KEY UPDATE "
           "number = IF({request}.expires > " CLOCK ", {request}.number, VALUES(number)), "
           "expires = IF({request}.expires > " CLOCK ", {request}.expires, VALUES(expires))",
           DIBS__MY_NOTHING}},
         false},
    [DIBS__SQL_CELL_PASS] = {{{"UPDATE {cell} SET floor = $3, written = " CLOCK ", reap = " REAP
                               " WHERE " IS_VALUE " AND floor <= $2 AND floor < $3",
                               DIBS__MY_NOTHING}},
                             false},
    [DIBS__SQL_CELL_MAKE] = {{{"INSERT INTO {cell} (name, vacant, expires, reap, data) "
                               "VALUES ($1, 1, " NEVER ", 0, '') ON DUPLICATE KEY UPDATE name = $1",
                               DIBS__MY_NOTHING}},
                             true},
    [DIBS__SQL_CELL_LOCK] = {{{"SELECT 1 FROM {cell} WHERE name = $1 FOR UPDATE", DIBS__MY_ROWS}},
                             true},
    [DIBS__SQL_CELL_LOOK] =
        {{{"SELECT c.version, c.floor, c.written, c.expires, c.number, c.counter, c.vacant, "
           "c.stamp, "
           "IF(c.stamp = $3, NULL, c.data), r.number, " CLOCK " FROM (SELECT 1) AS one "
           "LEFT JOIN {cell} c ON c.name = $1 LEFT JOIN {request} r ON r.name = $1 "
           "AND r.request = $2 AND r.expires > " CLOCK,
           DIBS__MY_ROWS}},
         true},
    [DIBS__SQL_CELL_LIST] =
        {{{"SELECT name, version, written, expires, LENGTH(data), LEFT(data, $5), " CLOCK
           " FROM {cell} WHERE name >= $1 AND name < $2 AND name > $3 AND vacant = 0 "
           "AND counter = 0 AND expires > " CLOCK " ORDER BY name LIMIT $4",
           DIBS__MY_ROWS}},
         true},
    [DIBS__SQL_CELL_PUT] =
        {{{"UPDATE {cell} SET version = $2, floor = $3, written = $4, expires = $5, number = $6, "
           "counter = $7, vacant = $8, stamp = $9, data = COALESCE($a, data), reap = $b "
           "WHERE name = $1",
           DIBS__MY_NOTHING},
          WATCHERS("$c")},
         false},
    [DIBS__SQL_CELL_DROP] = {{{"DELETE FROM {cell} WHERE name = $1", DIBS__MY_NOTHING},
                              WATCHERS("$2")},
                             false},
    [DIBS__SQL_REQUEST_PUT] = {{{"INSERT INTO {request} (name, request, number, expires) "
                                 "VALUES ($1, $2, $3, $4) ON DUPLICATE KEY UPDATE "
                                 "number = $3, expires = $4",
                                 DIBS__MY_NOTHING}},
                               true},
    /* $3 the mark, $4 our handle. The look waits for whoever is changing the cell, and who wants
     * to change it next waits for us, and sees the mark. */
    [DIBS__SQL_CELL_WAIT] = {{{"SELECT 1 FROM {cell} WHERE " IS_AWAITED " LOCK IN SHARE MODE",
                               DIBS__MY_ROWS},
                              {"INSERT IGNORE INTO {wake} (wake, text, at) SELECT $3, $4, " CLOCK
                               " FROM {cell} WHERE " IS_AWAITED,
                               DIBS__MY_NOTHING}},
                             false},
    [DIBS__SQL_CELL_REAP] = {{{"SET @dibs_now = " CLOCK, DIBS__MY_NOTHING},
                              {"DELETE FROM {cell} WHERE reap <= @dibs_now AND version < @dibs_now "
                               "ORDER BY reap LIMIT $1",
                               DIBS__MY_NOTHING},
                              {"SELECT ROW_COUNT()", DIBS__MY_ROWS},
                              {OLD_WAKES, DIBS__MY_NOTHING}},
                             false},
    [DIBS__SQL_REQUEST_REAP] = {{{"SET @dibs_now = " CLOCK, DIBS__MY_NOTHING},
                                 {"DELETE FROM {request} WHERE expires <= @dibs_now "
                                  "ORDER BY expires LIMIT $1",
                                  DIBS__MY_NOTHING},
                                 {"SELECT ROW_COUNT()", DIBS__MY_ROWS}},
                                false},
};

/* Who held it is left as it was. */
const dibs__my_form dibs__my_save_idle = {
    {{"UPDATE {lock} SET " LISTED
      "capacity = $2, used = $3, holders = $4, waiters = $5, fence = $6, "
      "place = $7, broken_fence = $8, broken_at = $9, broken_by = $a, first_place = $b, held = 0 "
      "WHERE name = $1",
      DIBS__MY_NOTHING}},
    true,
};

/* LOOK in the same message as its LOCK, part by part: several statements cost less than one with all in
 * it, and a variable less than a subquery. */
const dibs__my_form dibs__my_look_holders = {
    {{EXPIRING, DIBS__MY_ROWS}, {OLDEST, DIBS__MY_ROWS}, {HOLDING, DIBS__MY_ROWS}}, false};
const dibs__my_form dibs__my_look_waiters = {
    {{HEAD("@dibs_first"), DIBS__MY_ROWS}, {WAITING("@dibs_first"), DIBS__MY_ROWS}}, false};

/* The mark is turned around. */
const dibs__my_form dibs__my_notify_cell = {
    {{"UPDATE IGNORE {wake} SET wake = $1, text = $2, at = " CLOCK " WHERE wake = $2 AND text = $1",
      DIBS__MY_NOTHING}},
    false};
