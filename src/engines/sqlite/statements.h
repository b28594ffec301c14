/* Every statement of the SQLite engine that is prepared at its first use and run often. Readers in store.c know
 * the order of the columns. Without statistics SQLite would rather walk a queue than use its index:
 * hence INDEXED BY. */
#ifndef DIBS_ENGINES_SQLITE_STATEMENTS_H
#define DIBS_ENGINES_SQLITE_STATEMENTS_H

#define DIBS__LITE_WHO "owner, attempt, host, pid, client, weight, lease, min_hold"
#define DIBS__LITE_RECORD \
    "id, capacity, used, holders, waiters, fence, place, broken_fence, broken_at, broken_by"
#define DIBS__LITE_HELD   DIBS__LITE_WHO ", held, since, expires, released"
#define DIBS__LITE_HOLDER DIBS__LITE_WHO ", fence, since, expires, released"
#define DIBS__LITE_WAITER DIBS__LITE_WHO ", place, since, span, alive_until"

#define DIBS__LITE_CELL_ROW \
    "version, floor, written, expires, number, counter, empty, stamp, client"

#define DIBS__LITE_RECORD_COLUMNS 10

#define DIBS__LITE_SET                                                                 \
    "capacity = ?1, used = ?2, holders = ?3, waiters = ?4, fence = ?5, place = ?6, "   \
    "broken_fence = ?7, broken_at = ?8, broken_by = ?9, owner = ?10, attempt = ?11, "  \
    "host = ?12, pid = ?13, client = ?14, weight = ?15, lease = ?16, min_hold = ?17, " \
    "held = ?18, since = ?19, expires = ?20, released = ?21"

/* The driver's. */
#define DIBS__LITE_SQL(X)                                                                          \
    X(BEGIN, "BEGIN IMMEDIATE")                                                                    \
    X(COMMIT, "COMMIT")                                                                            \
    X(ROLLBACK, "ROLLBACK")                                                                        \
    X(LOAD, "SELECT " DIBS__LITE_RECORD ", " DIBS__LITE_HELD ", listed FROM lock WHERE name = ?1") \
    X(INSERT, "INSERT INTO lock (capacity, used, holders, waiters, fence, place, broken_fence, "   \
              "broken_at, broken_by, " DIBS__LITE_HELD ", name, listed) VALUES "                   \
              "(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22, "  \
              "?23)")                                                                              \
    X(UPDATE, "UPDATE lock SET " DIBS__LITE_SET " WHERE id = ?22")                                 \
    X(UPDATE_LISTED, "UPDATE lock SET " DIBS__LITE_SET ", listed = ?23 WHERE id = ?22")            \
    X(HOLDER_OF, "SELECT " DIBS__LITE_HOLDER " FROM holder INDEXED BY holder_owner "               \
                 "WHERE lock = ?1 AND owner = ?2 AND released = 0 LIMIT 1")                        \
    X(HOLDER_EXPIRING, "SELECT " DIBS__LITE_HOLDER " FROM holder INDEXED BY holder_expires "       \
                       "WHERE lock = ?1 ORDER BY expires LIMIT 1")                                 \
    X(HOLDER_NEXT, "SELECT " DIBS__LITE_HOLDER " FROM holder WHERE lock = ?1 AND fence > ?2 "      \
                   "ORDER BY fence LIMIT 1")                                                       \
    X(HOLDER_PUT, "INSERT INTO holder (lock, " DIBS__LITE_HOLDER ") VALUES "                       \
                  "(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13) ON CONFLICT (lock, fence) "        \
                  "DO UPDATE SET expires = excluded.expires, released = excluded.released")        \
    X(HOLDER_DROP, "DELETE FROM holder WHERE lock = ?1 AND fence = ?2")                            \
    X(HOLDER_CLIENTS, "SELECT DISTINCT client FROM holder WHERE lock = ?1 AND released = 0 "       \
                      "AND expires >= 0")                                                          \
    X(HOLDER_DEAD, "UPDATE holder SET expires = -1 WHERE lock = ?1 AND client = ?2 "               \
                   "AND released = 0")                                                             \
    X(WAITER_OF, "SELECT " DIBS__LITE_WAITER " FROM waiter INDEXED BY waiter_owner "               \
                 "WHERE lock = ?1 AND owner = ?2 LIMIT 1")                                         \
    X(WAITER_HEAD, "SELECT " DIBS__LITE_WAITER " FROM waiter WHERE lock = ?1 "                     \
                   "ORDER BY place LIMIT 1")                                                       \
    X(WAITER_PUT, "INSERT INTO waiter (lock, " DIBS__LITE_WAITER ") VALUES "                       \
                  "(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13) ON CONFLICT (lock, place) "        \
                  "DO UPDATE SET attempt = excluded.attempt, host = excluded.host, "               \
                  "pid = excluded.pid, client = excluded.client, lease = excluded.lease, "         \
                  "min_hold = excluded.min_hold, span = excluded.span, "                           \
                  "alive_until = excluded.alive_until")                                            \
    X(WAITER_DROP, "DELETE FROM waiter WHERE lock = ?1 AND place = ?2")                            \
    X(WAITER_DEAD, "UPDATE waiter SET alive_until = -1 WHERE client = ?1")                         \
    X(EXISTS, "SELECT 1 FROM lock WHERE name = ?1")                                                \
    X(WAITED_FOR, "SELECT lock, (SELECT name FROM lock WHERE id = waiter.lock) FROM waiter "       \
                  "WHERE lock > ?1 AND client IN (?2, ?3) ORDER BY lock LIMIT 1")                  \
    X(BUSY, "SELECT name FROM lock INDEXED BY lock_listed WHERE listed > 0 AND name > ?1 "         \
            "AND (holders > 0 OR waiters > 0) ORDER BY name LIMIT 1")                              \
    X(UNLIST, "UPDATE lock SET listed = 0 WHERE id IN (SELECT id FROM lock INDEXED BY "            \
              "lock_listed WHERE listed > 0 AND holders + waiters = 0 AND fence < ?1 LIMIT ?2)")   \
    X(OLD,                                                                                         \
      "SELECT name, fence, holders + waiters FROM lock WHERE name > ?1 ORDER BY name LIMIT 1")     \
    X(DROP, "DELETE FROM lock WHERE name = ?1")                                                    \
    X(META, "SELECT boot, ceiling, floor, reap_at, reap_after, clock FROM meta")                   \
    X(CEILING, "UPDATE meta SET ceiling = ?1")                                                     \
    X(BOOT, "UPDATE meta SET boot = ?1, floor = ceiling, clock = ?2")                              \
    X(REAPED, "UPDATE meta SET reap_at = ?1, reap_after = ?2")                                     \
    X(CELL_LOAD, "SELECT " DIBS__LITE_CELL_ROW ", data FROM cell WHERE key = ?1")                  \
    X(CELL_PUT, "INSERT INTO cell (" DIBS__LITE_CELL_ROW ", reap, key, data) "                     \
                "VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12) ON CONFLICT (key) DO UPDATE SET " \
                "version = excluded.version, floor = excluded.floor, written = excluded.written, " \
                "expires = excluded.expires, number = excluded.number, "                           \
                "counter = excluded.counter, empty = excluded.empty, stamp = excluded.stamp, "     \
                "client = excluded.client, reap = excluded.reap, data = excluded.data")            \
    X(CELL_FLOOR, "UPDATE cell SET floor = ?1, reap = ?2, written = ?4 WHERE key = ?3")            \
    X(CELL_DROP, "DELETE FROM cell WHERE key = ?1")                                                \
    X(CELL_DEAD, "UPDATE cell SET client = '!' WHERE client = ?1 AND client <> ''")                \
    X(CELL_OLD, "SELECT " DIBS__LITE_CELL_ROW ", key FROM cell WHERE reap <= ?1 ORDER BY reap "    \
                "LIMIT 1")                                                                         \
    X(CELL_LATER, "UPDATE cell SET reap = ?1 WHERE key = ?2")                                      \
    X(REQUEST_FIND, "SELECT number FROM request WHERE key = ?1 AND request = ?2 AND expires > ?3") \
    X(REQUEST_PUT, "INSERT OR REPLACE INTO request (key, request, number, expires) "               \
                   "VALUES (?1,?2,?3,?4)")                                                         \
    X(REQUEST_REAP, "DELETE FROM request WHERE (key, request) IN (SELECT key, request FROM "       \
                    "request WHERE expires <= ?1 ORDER BY expires LIMIT ?2)")

/* Those of inspect and list. */
#define DIBS__LITE_INSPECT(X)                                                                     \
    X(ONE, "SELECT " DIBS__LITE_RECORD ", " DIBS__LITE_HELD ", name FROM lock WHERE name = ?1")   \
    X(FROM, "SELECT " DIBS__LITE_RECORD ", " DIBS__LITE_HELD ", name FROM lock WHERE name >= ?1 " \
            "ORDER BY name")                                                                      \
    X(LISTED,                                                                                     \
      "SELECT " DIBS__LITE_RECORD ", " DIBS__LITE_HELD ", name FROM lock INDEXED BY lock_listed " \
      "WHERE listed > 0 AND name >= ?1 ORDER BY name")                                            \
    X(HOLDERS, "SELECT " DIBS__LITE_HOLDER " FROM holder WHERE lock = ?1 ORDER BY fence")         \
    X(WAITERS, "SELECT " DIBS__LITE_WAITER " FROM waiter WHERE lock = ?1 ORDER BY place")         \
    X(CELLS, "SELECT version, floor, written, expires, number, counter, empty, stamp, client, "   \
             "substr(data, 1, ?5), length(data), key FROM cell WHERE key >= ?1 AND key < ?2 "     \
             "AND key > ?3 ORDER BY key LIMIT ?4")

enum {
#define X(name, text) DIBS__LITE_SQL_##name,
    DIBS__LITE_SQL(X)
#undef X
        DIBS__LITE_STATEMENTS
};

enum {
#define X(name, text) DIBS__LITE_LOOK_##name,
    DIBS__LITE_INSPECT(X)
#undef X
        DIBS__LITE_INSPECT_STATEMENTS
};

#endif
