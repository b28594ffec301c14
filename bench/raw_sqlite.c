/* Raw limit on SQLite: a row inserted and deleted, each its own transaction, in WAL mode with
 * synchronous=NORMAL, a connection for every worker. While the row is there: again after a
 * millisecond. */
#include "bench.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define BUSY_MS 20000
#define GIVE_UP 20.0

typedef struct client {
    sqlite3 *db;
    sqlite3_stmt *insert;
    sqlite3_stmt *delete;
} client;

static void close_client(void *arg)
{
    client *c = arg;

    if (!c)
        return;
    sqlite3_finalize(c->insert);
    sqlite3_finalize(c->delete);
    sqlite3_close(c->db);
    free(c);
}

static int prepare(client *c, const char *path)
{
    int failed = sqlite3_open(path, &c->db);

    if (failed)
        return failed;
    sqlite3_busy_timeout(c->db, BUSY_MS);
    failed =
        sqlite3_exec(c->db,
                     "PRAGMA journal_mode = wal; PRAGMA synchronous = normal;"
                     "CREATE TABLE IF NOT EXISTS raw (k TEXT PRIMARY KEY, v TEXT) WITHOUT ROWID",
                     NULL, NULL, NULL);
    if (!failed)
        failed = sqlite3_prepare_v2(c->db, "INSERT OR IGNORE INTO raw VALUES (?, 'x')", -1,
                                    &c->insert, NULL);
    if (!failed)
        failed = sqlite3_prepare_v2(c->db, "DELETE FROM raw WHERE k = ?", -1, &c->delete, NULL);
    return failed;
}

static void *open_client(void *shared, const bench_plan *plan, const char *key)
{
    client *c = calloc(1, sizeof *c);
    char path[4096];

    (void)shared;
    (void)key;
    snprintf(path, sizeof path, "%s/raw.db", plan->folder);
    if (c && prepare(c, path) == SQLITE_OK)
        return c;
    fprintf(stderr, "bench: %s: %s\n", path, c ? sqlite3_errmsg(c->db) : "out of memory");
    close_client(c);
    return NULL;
}

/* Once, since many at a time cannot change the journal's mode. */
static void *make_table(const bench_plan *plan)
{
    void *c = open_client(NULL, plan, NULL);

    close_client(c);
    return c ? (void *)plan : NULL;
}

/* How many rows the statement changed, or -1. */
static int change(client *c, sqlite3_stmt *statement, const char *key)
{
    int result;

    sqlite3_bind_text(statement, 1, key, -1, SQLITE_STATIC);
    result = sqlite3_step(statement);
    sqlite3_reset(statement);
    return result == SQLITE_DONE ? sqlite3_changes(c->db) : -1;
}

static int acquire(void *arg, const char *key, uint64_t *fence)
{
    client *c = arg;
    double end = bench_now() + GIVE_UP;

    (void)fence;
    for (;;) {
        int changed = change(c, c->insert, key);
        if (changed == 1)
            return 0;
        if (changed < 0 || bench_now() > end)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static int release(void *arg, const char *key)
{
    client *c = arg;

    return change(c, c->delete, key) == 1 ? 0 : -1;
}

const bench_peer bench_sqlite_row = {
    .id = "sqlite-row",
    .title = "raw insert + delete, WAL",
    .setup = make_table,
    .open = open_client,
    .acquire = acquire,
    .release = release,
    .close = close_client,
};
