/* The database: connecting, making the tables, and what changes when the machine has been
 * restarted.
 *
 * A database is ours by its application id; its version is PRAGMA user_version. A foreign one is
 * refused before anything in it is changed.
 *
 * In WAL mode with synchronous=NORMAL a power cut can take the last transactions, and with them the
 * fences that were given out in them. So no fence leaves above the ceiling in `meta`, and a ceiling
 * is raised, some way ahead, by a transaction that is on the disk before it is seen. After a
 * restart of the machine (another boot id) every fence starts above the ceiling, whatever was lost;
 * and all who held or waited are dead. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/sqlite/sqlite.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define APPLICATION_ID 0x64696273 /* "dibs" */
#define VERSION        3
#define FIRST_VERSION  1                   /* locks alone; see `cells` */
#define AHEAD          (60 * DIBS__SECOND) /* so far above the fence that needs it a ceiling goes */
#define SHORT_LOG      250                 /* pages */
#define LONG_LOG       1000 /* with 4,000, who moves it keeps all others waiting for 25 ms */
#define FEW            16   /* commits */
#define FIRST_NAP      (DIBS__MS / 4)
#define LONGEST_NAP    (5 * DIBS__MS)
#define STRING(x)      #x
#define STRING_OF(x)   STRING(x)

const char *dibs__lite_boot_file = "/proc/sys/kernel/random/boot_id";

/* What version 3 added: an index of what `dibs ls` shows. A lock that is held or waited for has `listed` > 0, and
 * so may an idle one: 1 is taken back when the lock becomes idle, and 2, for a lock that had been
 * granted less than a second before, stays until the reaper comes. So a lock that is used again and again
 * does not change the index each time. Rows from before are listed until the reaper has come by, and so are those that
 * a handle of an older version makes, if one is still open. */
static const char listed[] = "ALTER TABLE lock ADD COLUMN listed INTEGER NOT NULL DEFAULT 1;"
                             "CREATE INDEX lock_listed ON lock (name) WHERE listed > 0;";

/* For people. In databases that were made before it was renamed, the second column is called `line`. */
static const char waiters[] =
    "DROP VIEW IF EXISTS waiters;"
    "CREATE VIEW waiters AS"
    " SELECT name, row_number() OVER (PARTITION BY w.lock ORDER BY w.place) AS position, w.owner,"
    " w.host, w.pid, w.weight, datetime((w.since + clock) / 1000000, 'unixepoch') AS since"
    " FROM waiter w JOIN lock l ON l.id = w.lock, meta;";

/* By these the file is known for ours. */
#define MARKS                                                                                  \
    "PRAGMA application_id = " STRING_OF(APPLICATION_ID) "; PRAGMA user_version = " STRING_OF( \
        VERSION) ";"

/* What version 2 added. `reap` is when the reaper looks at it, NULL for never; times are on the clock
 * of the boot that made them plus `meta.clock`, which is Unix time and does not jump. */
static const char cells[] =
    "CREATE TABLE cell ("
    " key TEXT PRIMARY KEY,"
    " version INTEGER NOT NULL, floor INTEGER NOT NULL, written INTEGER NOT NULL,"
    " expires INTEGER NOT NULL, number INTEGER NOT NULL, counter INTEGER NOT NULL,"
    " empty INTEGER NOT NULL, stamp TEXT NOT NULL, client TEXT NOT NULL, reap INTEGER,"
    " data BLOB);"
    "CREATE INDEX cell_client ON cell (client) WHERE client <> '';"
    "CREATE INDEX cell_reap ON cell (reap) WHERE reap IS NOT NULL;"
    "CREATE TABLE request ("
    " key TEXT NOT NULL, request TEXT NOT NULL, number INTEGER NOT NULL, expires INTEGER NOT NULL,"
    " PRIMARY KEY (key, request)) WITHOUT ROWID;"
    "CREATE INDEX request_expires ON request (expires);"
    "CREATE VIEW cells AS"
    " SELECT key, version, nullif(floor, 0) AS floor, iif(counter, number, NULL) AS number,"
    " length(data) AS size, datetime(written / 1000000, 'unixepoch') AS written,"
    " iif(expires = 9223372036854775807, NULL, datetime(expires / 1000000, 'unixepoch')) AS expires"
    " FROM cell WHERE NOT empty;";

static const char schema[] =
    "CREATE TABLE lock ("
    " id INTEGER PRIMARY KEY,"
    " name TEXT NOT NULL UNIQUE,"
    " capacity INTEGER NOT NULL,"
    " used INTEGER NOT NULL,"
    " holders INTEGER NOT NULL,"
    " waiters INTEGER NOT NULL,"
    " fence INTEGER NOT NULL,"
    " place INTEGER NOT NULL,"
    " broken_fence INTEGER NOT NULL,"
    " broken_at INTEGER NOT NULL,"
    " broken_by TEXT,"
    /* the exclusive holder, NULL if there is none */
    " owner TEXT, attempt TEXT, host TEXT, pid INTEGER, client TEXT, weight INTEGER, lease INTEGER,"
    " min_hold INTEGER, held INTEGER, since INTEGER, expires INTEGER, released INTEGER);"
    "CREATE TABLE holder ("
    " lock INTEGER NOT NULL REFERENCES lock (id),"
    " owner TEXT NOT NULL, attempt TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,"
    " client TEXT NOT NULL, weight INTEGER NOT NULL, lease INTEGER NOT NULL, min_hold INTEGER NOT "
    "NULL,"
    " fence INTEGER NOT NULL, since INTEGER NOT NULL, expires INTEGER NOT NULL,"
    " released INTEGER NOT NULL,"
    " PRIMARY KEY (lock, fence)) WITHOUT ROWID;"
    "CREATE INDEX holder_owner ON holder (lock, owner);"
    "CREATE INDEX holder_expires ON holder (lock, expires);"
    "CREATE TABLE waiter ("
    " lock INTEGER NOT NULL REFERENCES lock (id),"
    " owner TEXT NOT NULL, attempt TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,"
    " client TEXT NOT NULL, weight INTEGER NOT NULL, lease INTEGER NOT NULL, min_hold INTEGER NOT "
    "NULL,"
    " place INTEGER NOT NULL, since INTEGER NOT NULL, span INTEGER NOT NULL,"
    " alive_until INTEGER NOT NULL,"
    " PRIMARY KEY (lock, place)) WITHOUT ROWID;"
    "CREATE INDEX waiter_owner ON waiter (lock, owner);"
    "CREATE TABLE meta ("
    " id INTEGER PRIMARY KEY CHECK (id = 1),"
    " boot TEXT NOT NULL, ceiling INTEGER NOT NULL, floor INTEGER NOT NULL, clock INTEGER NOT NULL,"
    " reap_at INTEGER NOT NULL, reap_after TEXT NOT NULL);"
    "INSERT INTO meta VALUES (1, '', 0, 0, 0, 0, '');"
    /* for people */
    "CREATE VIEW locks AS SELECT name, nullif(capacity, 1073741824) AS slots, holders, waiters, "
    "fence,"
    " broken_by, datetime(nullif(broken_at, 0) / 1000000, 'unixepoch') AS broken_at FROM lock;"
    "CREATE VIEW holders AS"
    " SELECT name, owner, host, pid, l.held AS fence, 'exclusive' AS kind,"
    " datetime((since + clock) / 1000000, 'unixepoch') AS since,"
    " datetime((expires + clock) / 1000000, 'unixepoch') AS expires, released"
    " FROM lock l, meta WHERE l.held IS NOT NULL"
    " UNION ALL"
    " SELECT name, h.owner, h.host, h.pid, h.fence,"
    " CASE capacity WHEN 1073741824 THEN 'shared' ELSE h.weight || ' of ' || capacity END,"
    " datetime((h.since + clock) / 1000000, 'unixepoch'),"
    " datetime((h.expires + clock) / 1000000, 'unixepoch'), h.released"
    " FROM holder h JOIN lock l ON l.id = h.lock, meta;";

/* ---- Transactions ---------------------------------------------------------------------------- */

/* Only when there is no gate, or somebody came past it: then SQLite can but try again. */
static int wait_for_others(void *ctx, int tried)
{
    dibs__lite *e = ctx;
    int64_t nap = FIRST_NAP << (tried < 5 ? tried : 5);

    if (dibs__now(e->base.env) >= e->busy_until)
        return 0;
    e->called_out = dibs__lite_called_out();
    if (e->called_out)
        return 0;
    if (nap > LONGEST_NAP)
        nap = LONGEST_NAP;
    dibs__sleep(e->base.env, nap);
    return 1;
}

static int execute(dibs__lite *e, int which)
{
    return dibs__lite_step(dibs__lite_sql(e, which)) < 0 ? -1 : 0;
}

/* A fork may have called us out of the wait for others: then again after it. */
int dibs__lite_begin(dibs__lite *e)
{
    int failed;

    while (e->called_out = false,
           (failed = execute(e, DIBS__LITE_SQL_BEGIN)) < 0 && e->called_out) {
        dibs__lite_outside();
        dibs__lite_inside();
    }
    return failed;
}

int dibs__lite_commit(dibs__lite *e)
{
    return execute(e, DIBS__LITE_SQL_COMMIT);
}

/* Every commit is on the disk when it returns, or only at the next checkpoint. */
int dibs__lite_durable(dibs__lite *e, bool durable)
{
    const char *sql = durable ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL";

    if (e->durable == durable)
        return 0;
    e->durable = durable;
    return sqlite3_exec(e->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : -1;
}

/* Some failures have rolled back by themselves. */
void dibs__lite_rollback(dibs__lite *e)
{
    if (!sqlite3_get_autocommit(e->db))
        execute(e, DIBS__LITE_SQL_ROLLBACK);
    if (e->durable)
        dibs__lite_durable(e, false);
}

/* ---- Connecting ------------------------------------------------------------------------------ */

/* One statement, because another process may be making the database at the same moment: what it has
 * done is seen as a whole or not at all. */
static int read_marks(sqlite3 *db, int64_t *id, int64_t *version, int64_t *tables)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db,
                                "SELECT application_id, user_version,"
                                " (SELECT count(*) FROM sqlite_schema)"
                                " FROM pragma_application_id, pragma_user_version",
                                -1, &q, NULL);

    if (rc == SQLITE_OK && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        *id = sqlite3_column_int64(q, 0);
        *version = sqlite3_column_int64(q, 1);
        *tables = sqlite3_column_int64(q, 2);
        rc = SQLITE_OK;
    }
    sqlite3_finalize(q);
    return rc == SQLITE_OK ? 0 : -1;
}

typedef enum found { FAILED = -1, EMPTY, FIRST, SECOND, OURS } found;

/* FAILED: refused, or the connection failed; `status` says. */
static found recognise(dibs__lite *e, dibs_status *status, dibs_error *err)
{
    int64_t id = 0, version = 0, tables = 0;

    if (read_marks(e->db, &id, &version, &tables) < 0) {
        *status = dibs__lite_fault(e->db, e->path, "cannot read it", err);
        return FAILED;
    }
    if (id == APPLICATION_ID && version == VERSION)
        return OURS;
    if (id == APPLICATION_ID && version >= FIRST_VERSION && version < VERSION)
        return version == FIRST_VERSION ? FIRST : SECOND;
    if (id == 0 && version == 0 && tables == 0)
        return EMPTY;
    if (id == APPLICATION_ID)
        *status = dibs__fail(err, DIBS_UNSUPPORTED,
                             "sqlite: %.400s: created by a newer version of dibs (schema %lld, "
                             "this one has %d): update dibs",
                             e->path, (long long)version, VERSION);
    else
        *status = dibs__fail(
            err, DIBS_ENGINE_FAILED,
            "sqlite: %.400s: a database of another program: use a separate file for dibs", e->path);
    return FAILED;
}

dibs_status dibs__lite_recognise(dibs__lite *e, dibs_error *err)
{
    dibs_status status = DIBS_OK;

    recognise(e, &status, err);
    return status;
}

static bool exec(dibs__lite *e, const char *sql)
{
    return sqlite3_exec(e->db, sql, NULL, NULL, NULL) == SQLITE_OK;
}

/* Makes the tables, or those that an older version did not have. Another process may be at it at the
 * same moment: that is busy, and tried again. */
static dibs_status create(dibs__lite *e, dibs_error *err)
{
    dibs_status status = DIBS_OK;
    found what;

    if (!exec(e, "PRAGMA page_size = 1024; PRAGMA journal_mode = WAL; BEGIN IMMEDIATE"))
        return dibs__lite_fault(e->db, e->path, "cannot make the database", err);
    what = recognise(e, &status, err);
    if ((what == EMPTY && !exec(e, schema)) ||
        ((what == EMPTY || what == FIRST) && !exec(e, cells)) ||
        (what != FAILED && what != OURS &&
         (!exec(e, listed) || !exec(e, waiters) || !exec(e, MARKS "COMMIT"))))
        status = dibs__lite_fault(e->db, e->path, "cannot make the tables", err);
    if (!sqlite3_get_autocommit(e->db))
        sqlite3_exec(e->db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

/* Moves the log into the database when it has grown: two waits for the disk, with the gate closed, which few commits are to
 * pay. But a command that finds the store idle reads all of the log, because SQLite's index of it is gone: where commands
 * come and go, which commit a few times each, they leave a short one. */
static int limit_log(void *ctx, sqlite3 *db, const char *name, int pages)
{
    dibs__lite *e = ctx;

    e->commits += e->commits < FEW;
    if (pages >= (e->commits < FEW ? SHORT_LOG : LONG_LOG))
        sqlite3_wal_checkpoint_v2(db, name, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    return SQLITE_OK; /* what could not be moved stays in the log */
}

static dibs_status make_ready(dibs__lite *e, dibs_error *err)
{
    dibs_status status = DIBS_OK;
    found what = recognise(e, &status, err);

    if (what == FAILED)
        return status;
    if (what != OURS)
        status = create(e, err);
    if (status == DIBS_OK && !exec(e, "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
                                      "PRAGMA cache_size = -256"))
        status = dibs__lite_fault(e->db, e->path, "cannot set it up", err);
    sqlite3_wal_hook(e->db, limit_log, e);
    return status;
}

/* Most handles need few of them: a short command would spend more on preparing them all than on its lock. */
sqlite3_stmt *dibs__lite_sql(dibs__lite *e, int which)
{
    static const char *const text[] = {
#define X(name, sql) sql,
        DIBS__LITE_SQL(X)
#undef X
    };

    if (!e->sql[which])
        sqlite3_prepare_v3(e->db, text[which], -1, SQLITE_PREPARE_PERSISTENT, &e->sql[which], NULL);
    return e->sql[which];
}

/* What ends a transaction must be there before one begins, whatever memory there is then. */
static dibs_status prepare(dibs__lite *e, dibs_error *err)
{
    if (!dibs__lite_sql(e, DIBS__LITE_SQL_BEGIN) || !dibs__lite_sql(e, DIBS__LITE_SQL_COMMIT) ||
        !dibs__lite_sql(e, DIBS__LITE_SQL_ROLLBACK))
        return dibs__lite_fault(e->db, e->path, "cannot read its tables", err);
    return DIBS_OK;
}

static void nap_outside(const dibs__lite *e)
{
    dibs__lite_outside();
    dibs__sleep(e->base.env, LONGEST_NAP);
    dibs__lite_inside();
}

/* While a log is being made or recovered, SQLite says busy without asking the handler. */
dibs_status dibs__lite_connect(dibs__lite *e, dibs__deadline until, dibs_error *err)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX |
                SQLITE_OPEN_EXRESCODE | SQLITE_OPEN_NOFOLLOW;
    dibs_status status;
    const char *real;

    if (sqlite3_open_v2(e->path, &e->db, flags, NULL) != SQLITE_OK)
        return dibs__lite_fault(e->db, e->path, "cannot open it", err);
    real = sqlite3_db_filename(e->db, "main");
    if (real && strlen(real) < sizeof e->path - sizeof "-dibs")
        memmove(e->path, real, strlen(real) + 1);
    e->busy_until = until;
    sqlite3_busy_handler(e->db, wait_for_others, e);
    /* Else the last to leave would move the log into the database, and the next to come would begin
     * a new one: several waits for the disk in the life of a short command. */
    sqlite3_db_config(e->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    while ((status = make_ready(e, err)) == DIBS_UNAVAILABLE && dibs__now(e->base.env) < until)
        nap_outside(e);
    return status == DIBS_OK ? prepare(e, err) : status;
}

/* ---- Boots and ceilings ---------------------------------------------------------------------- */

static dibs_status read_boot(dibs__lite *e, dibs_error *err)
{
    int fd = open(dibs__lite_boot_file, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, e->boot, sizeof e->boot - 1);

    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return dibs__fail(err, DIBS_UNSUPPORTED,
                          "sqlite: cannot read %s, which identifies the boot: mount /proc",
                          dibs__lite_boot_file);
    e->boot[strcspn(e->boot, "\n")] = '\0';
    return DIBS_OK;
}

/* True: the machine has been restarted since. */
static int read_meta(dibs__lite *e, bool *other_boot)
{
    sqlite3_stmt *q = dibs__lite_sql(e, DIBS__LITE_SQL_META);
    const void *boot;
    size_t size;

    if (dibs__lite_step(q) <= 0)
        return -1;
    boot = sqlite3_column_blob(q, 0);
    size = (size_t)sqlite3_column_bytes(q, 0);
    *other_boot = size != strlen(e->boot) || memcmp(boot, e->boot, size) != 0;
    e->ceiling = (uint64_t)sqlite3_column_int64(q, 1);
    e->floor = (uint64_t)sqlite3_column_int64(q, 2);
    e->reap_at = sqlite3_column_int64(q, 3);
    e->clock = sqlite3_column_int64(q, 5);
    sqlite3_reset(q);
    return 0;
}

static int start_boot(dibs__lite *e)
{
    static const char forget[] =
        "DELETE FROM holder; DELETE FROM waiter;"
        "UPDATE lock SET listed = 0, used = 0, holders = 0, waiters = 0, owner = NULL, attempt = "
        "NULL, host = "
        "NULL,"
        " pid = NULL, client = NULL, weight = NULL, lease = NULL, min_hold = NULL, held = NULL,"
        " since = NULL, expires = NULL, released = NULL WHERE holders > 0 OR waiters > 0;"
        "UPDATE cell SET client = '!' WHERE client <> '';";
    sqlite3_stmt *q = dibs__lite_sql(e, DIBS__LITE_SQL_BOOT);
    const dibs__env *env = e->base.env;

    int64_t wall = env->wall(env->ctx);

    if (wall <
        (int64_t)e->ceiling) /* the machine's clock is not set yet: cells do not get younger */
        wall = (int64_t)e->ceiling;
    e->clock = wall - dibs__now(env);
    dibs__lite_bind_text(q, 1, e->boot);
    sqlite3_bind_int64(q, 2, e->clock);
    if (sqlite3_exec(e->db, forget, NULL, NULL, NULL) != SQLITE_OK || dibs__lite_step(q) < 0)
        return -1;
    e->floor = e->ceiling;
    return 0;
}

dibs_status dibs__lite_schema_open(dibs__lite *e, dibs__deadline until, dibs_error *err)
{
    bool other = false;
    dibs_status status = read_boot(e, err);

    if (status != DIBS_OK)
        return status;
    e->busy_until = until;
    if (read_meta(e, &other) < 0)
        return dibs__lite_fault(e->db, e->path, "cannot read its tables", err);
    if (!other)
        return DIBS_OK;
    if (dibs__lite_begin(e) < 0 || read_meta(e, &other) < 0 || (other && start_boot(e) < 0) ||
        dibs__lite_commit(e) < 0) {
        status = dibs__lite_fault(e->db, e->path, "cannot begin a new boot", err);
        dibs__lite_rollback(e);
    }
    return status;
}

/* Another client may have raised it meanwhile; what we can read is on the disk, because SQLite
 * syncs before it shows. */
static int write_ceiling(dibs__lite *e, uint64_t fence)
{
    sqlite3_stmt *q = dibs__lite_sql(e, DIBS__LITE_SQL_CEILING);
    bool other;

    if (dibs__lite_begin(e) < 0 || read_meta(e, &other) < 0)
        return -1;
    if (e->ceiling >= fence)
        return dibs__lite_commit(e);
    sqlite3_bind_int64(q, 1, (int64_t)(fence + AHEAD));
    if (dibs__lite_step(q) < 0 || dibs__lite_commit(e) < 0)
        return -1;
    e->ceiling = fence + AHEAD;
    return 0;
}

int dibs__lite_raise_ceiling(dibs__lite *e, uint64_t fence)
{
    return dibs__lite_durable(e, true) < 0 || write_ceiling(e, fence) < 0 ||
                   dibs__lite_durable(e, false) < 0
               ? -1
               : 0;
}
