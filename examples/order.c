/* An order that is placed once, whoever retries it, by a holder whose fence is checked; all of it
 * in one transaction of the caller's own (here SQLite; dibs_sql_pg and dibs_sql_mysql work alike).
 *
 * Guard, effect and answer commit together: after a crash either all of it is there or nothing is,
 * and the same request may simply be sent again.
 *
 * Usage: order DATABASE [URL] */
#include <dibs.h>
#include <dibs_sql.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

static sqlite3 *db;

static bool run(const char *sql)
{
    return sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK;
}

/* Takes `pieces` from the stock if there are as many. */
static dibs_status take(int64_t pieces, dibs_error *err)
{
    dibs_sql_value v[] = {dibs_sql_integer(pieces), dibs_sql_integer(1), dibs_sql_integer(pieces)};
    dibs_sql_change c = {.table = "stock",
                         .set = "left_over = left_over - ?",
                         .row = "item = ?",
                         .still = "left_over >= ?",
                         .values = v,
                         .value_count = 3};

    return dibs_sql_update(dibs_sql_sqlite(db), &c, err);
}

/* The work, inside the transaction: the key, the fence, the stock, the answer. */
static dibs_status work(const char *request, uint64_t fence, int64_t pieces, dibs_error *err)
{
    dibs_sql_once_options options = {
        .scope = "orders", .fingerprint = &pieces, .fingerprint_size = sizeof pieces};
    dibs_value answer = {0};
    dibs_status status = dibs_sql_once(dibs_sql_sqlite(db), request, &options, &answer, err);

    if (status == DIBS_ALREADY)
        printf("%s: %.*s (as before)\n", request, (int)answer.size, (const char *)answer.data);
    dibs_value_free(&answer);
    if (status == DIBS_OK)
        status = dibs_sql_fence_pass(dibs_sql_sqlite(db), "stock:1", fence, 0, err);
    if (status == DIBS_OK)
        status = take(pieces, err);
    if (status == DIBS_OK)
        status = dibs_sql_once_finish(dibs_sql_sqlite(db), request, "sold", 4, &options, err);
    return status;
}

static dibs_status order(const char *request, uint64_t fence, int64_t pieces)
{
    dibs_error err = {0};
    dibs_status status = DIBS_UNAVAILABLE;

    if (run("BEGIN IMMEDIATE"))
        status = work(request, fence, pieces, &err);
    if (status == DIBS_OK && run("COMMIT")) {
        printf("%s: sold\n", request);
        return status;
    }
    run("ROLLBACK");
    if (status != DIBS_ALREADY)
        printf("%s: %s\n", request, err.message);
    return status;
}

static int story(dibs *d)
{
    dibs_grant *g = NULL;
    dibs_error err = {0};
    uint64_t early, late;
    bool good;

    if (dibs_lock(d, "stock:1", NULL, &g, &err) != DIBS_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    early = dibs_grant_fence(g);
    good = order("request 1", early, 3) == DIBS_OK;
    good &= order("request 1", early, 3) == DIBS_ALREADY;  /* the answer was lost: asked again */
    good &= order("request 1", early, 4) == DIBS_MISMATCH; /* the same key for something else */
    good &= order("request 2", early, 8) == DIBS_CONFLICT; /* not enough left */
    good &= dibs_unlock(&g, &err) == DIBS_OK;

    if (dibs_lock(d, "stock:1", NULL, &g, &err) != DIBS_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    late = dibs_grant_fence(g);
    good &= order("request 3", late, 1) == DIBS_OK;
    good &= order("request 4", early, 1) == DIBS_FENCED; /* as a holder that was asleep would */
    good &= dibs_unlock(&g, &err) == DIBS_OK;
    return good ? 0 : 1;
}

int main(int argc, char **argv)
{
    dibs *d = NULL;
    dibs_error err = {0};
    int result;

    if (argc < 2 || sqlite3_open(argv[1], &db) != SQLITE_OK ||
        dibs_sql_prepare(dibs_sql_sqlite(db), &err) != DIBS_OK ||
        !run("CREATE TABLE IF NOT EXISTS stock (item INTEGER PRIMARY KEY, left_over INTEGER);"
             "INSERT OR REPLACE INTO stock VALUES (1, 10);"
             "DELETE FROM dibs_once")) { /* so that the story can be told again */
        fprintf(stderr, "usage: order DATABASE [URL] (%s)\n", err.message);
        return 64;
    }
    if (dibs_open(argc > 2 ? argv[2] : NULL, NULL, &d, &err) != DIBS_OK) {
        fprintf(stderr, "%s\n", err.message);
        return dibs_status_exit_code(err.status);
    }
    result = story(d);
    dibs_close(d);
    sqlite3_close(db);
    return result;
}
