/* A resource that checks the fence: stock in a SQLite database of the caller's own.
 *
 * A lease limits how long others wait; it cannot stop a holder that slept through it. What makes
 * the effect safe is here: the holder presents its fence before its first read (raise, then read),
 * and check and write are one transaction. The second half plays a holder that comes back too late.
 *
 * Usage: stock DATABASE [URL] */
#include <dibs.h>
#include <sqlite3.h>
#include <stdio.h>

static sqlite3 *db;

static int run(const char *sql)
{
    return sqlite3_exec(db, sql, NULL, NULL, NULL);
}

/* Raises the fence of the item; false when a higher one has been here. */
static bool present(uint64_t fence)
{
    sqlite3_stmt *s = NULL;
    bool passed = false;

    if (sqlite3_prepare_v2(db, "UPDATE stock SET fence = ?1 WHERE item = 1 AND fence <= ?1", -1, &s,
                           NULL) == SQLITE_OK) {
        sqlite3_bind_int64(s, 1, (sqlite3_int64)fence);
        passed = sqlite3_step(s) == SQLITE_DONE && sqlite3_changes(db) == 1;
    }
    sqlite3_finalize(s);
    return passed;
}

static int read_left(void)
{
    sqlite3_stmt *s = NULL;
    int left = -1;

    if (sqlite3_prepare_v2(db, "SELECT left_over FROM stock WHERE item = 1", -1, &s, NULL) ==
            SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW)
        left = sqlite3_column_int(s, 0);
    sqlite3_finalize(s);
    return left;
}

/* Sells one under this fence. */
static bool take_one(uint64_t fence)
{
    bool sold = run("BEGIN IMMEDIATE") == SQLITE_OK && present(fence) && read_left() > 0 &&
                run("UPDATE stock SET left_over = left_over - 1 WHERE item = 1") == SQLITE_OK;

    if (sold && run("COMMIT") == SQLITE_OK)
        return true;
    run("ROLLBACK");
    return false;
}

/* Locks, sells one, unlocks. The fence it had, or 0. */
static uint64_t sell(dibs *d)
{
    dibs_grant *g = NULL;
    dibs_error err = {0};
    uint64_t fence;

    if (dibs_lock(d, "stock:1", NULL, &g, &err) != DIBS_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 0;
    }
    fence = dibs_grant_fence(g);
    if (!take_one(fence))
        fence = 0;
    if (dibs_unlock(&g, &err) != DIBS_OK) /* the sale stands: the fence was checked with it */
        fprintf(stderr, "%s\n", err.message);
    return fence;
}

int main(int argc, char **argv)
{
    dibs *d = NULL;
    dibs_error err = {0};
    uint64_t early, late;
    bool refused;

    if (argc < 2 || sqlite3_open(argv[1], &db) != SQLITE_OK ||
        run("CREATE TABLE IF NOT EXISTS stock (item INTEGER PRIMARY KEY, left_over INTEGER, fence "
            "INTEGER);"
            "INSERT OR REPLACE INTO stock VALUES (1, 10, 0)") != SQLITE_OK) {
        fprintf(stderr, "usage: stock DATABASE [URL] (%s)\n",
                db ? sqlite3_errmsg(db) : "no database");
        return 64;
    }
    if (dibs_open(argc > 2 ? argv[2] : NULL, NULL, &d, &err) != DIBS_OK) {
        fprintf(stderr, "%s\n", err.message);
        return dibs_status_exit_code(err.status);
    }
    early = sell(d);
    late = sell(d);
    refused = !take_one(early); /* as a holder that was asleep would */
    printf("sold with fence %llu and %llu; with %llu again: %s; %d of 10 left\n",
           (unsigned long long)early, (unsigned long long)late, (unsigned long long)early,
           refused ? "refused" : "SOLD", read_left());
    dibs_close(d);
    sqlite3_close(db);
    return early && late > early && refused ? 0 : 1;
}
