/* D2 and D3: which rows does one statement lock? A holds a transaction open with an UPDATE (D2) or a
 * SELECT … FOR UPDATE (D3) on one row; B touches another row, and inserts into the gap between two. With
 * and without an index, at both isolation levels; and what the engine itself says it has locked. */
#include "lab/hazards/actor.h"
#include "sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const levels[] = {"REPEATABLE READ", "READ COMMITTED"};

static bool make_table(lab_sessions *x, bool index)
{
    return lab_a(x, "DROP TABLE IF EXISTS lab_rows") &&
           lab_a(x, "CREATE TABLE lab_rows (id INT PRIMARY KEY, goods INT NOT NULL, stock INT NOT "
                    "NULL)") &&
           lab_a(x, "INSERT INTO lab_rows VALUES (1, 10, 5), (2, 20, 5), (3, 30, 5)") &&
           (!index || lab_a(x, "CREATE INDEX lab_rows_goods ON lab_rows (goods)")) &&
           (x->server != LAB_POSTGRESQL || lab_a(x, "ANALYZE lab_rows"));
}

/* The line of INNODB STATUS that counts the locks of a transaction: only A has any. */
static void innodb_says(lab_sessions *x, char out[256])
{
    static const char word[] = " lock struct(s)";
    char *text = lab_sql_text(&x->buyer, x->b, "SHOW ENGINE INNODB STATUS");

    snprintf(out, 256, "%s", text ? "no locks" : x->buyer.note);
    for (char *at = text; at && (at = strstr(at, word)); at++) {
        char *line = at;
        while (line > text && line[-1] != '\n')
            line--;
        if (strtol(line, NULL, 10) > 0)
            snprintf(out, 256, "%.*s", (int)strcspn(line, "\n"), line);
    }
    free(text);
}

/* What the engine knows about the locks of session A's transaction, in one line. */
static void engine_says(lab_sessions *x, char out[256])
{
    char *text;

    if (x->server == LAB_MARIADB) {
        innodb_says(x, out);
        return;
    }
    text = lab_sql_text(
        &x->buyer, x->b, "%s",
        "SELECT string_agg(DISTINCT mode || ' on ' || relation::regclass::text, ', ') FROM "
        "pg_locks "
        "WHERE locktype IN ('relation', 'tuple') AND relation::regclass::text LIKE 'lab_rows%' AND "
        "granted");
    snprintf(out, 256, "%s", text ? text : x->buyer.note);
    out[strcspn(out, "\n")] = '\0';
    free(text);
}

typedef struct tally {
    int other, gap; /* of four: another row waits, an insert into the gap waits */
} tally;

static void one_cell(lab_sessions *x, lab_rows *rows, const char *statement, const char *level,
                     bool index, tally *sum)
{
    char begin[128], says[256] = "";
    bool other, gap;

    snprintf(begin, sizeof begin, "SET SESSION %sTRANSACTION ISOLATION LEVEL %s",
             x->server == LAB_POSTGRESQL ? "CHARACTERISTICS AS " : "", level);
    lab_b(x, "ROLLBACK");
    if (!make_table(x, index) || !lab_a(x, begin) || !lab_b(x, begin) || !lab_a(x, "BEGIN") ||
        !lab_a(x, statement)) {
        lab_rows_add(rows, "%s\t%s\t%s\t\t", level, index ? "index" : "no index", x->buyer.note);
        lab_a(x, "ROLLBACK");
        return;
    }
    other = lab_b_waits(x, "UPDATE lab_rows SET stock = 4 WHERE goods = 30");
    gap = lab_b_waits(x, "INSERT INTO lab_rows VALUES (9, 15, 1)");
    engine_says(x, says);
    sum->other += other;
    sum->gap += gap;
    lab_a(x, "ROLLBACK");
    lab_rows_add(rows, "%s\t%s\t%s\t%s\t%s", level, index ? "index" : "no index",
                 other ? "waits" : "goes on", gap ? "waits" : "goes on", says);
}

static void matrix(const lab_site *site, lab_server server, const char *statement, lab_finding *out)
{
    lab_sessions x;
    lab_rows *rows;
    tally sum = {0};

    if (!lab_sessions_open(&x, site, server)) {
        lab_found(out, LAB_NOT_RUN, "%s", x.why);
        return;
    }
    rows =
        lab_rows_new("isolation\tgoods has\tanother row\tinsert into the gap\tthe engine's report");
    for (size_t i = 0; i < 2; i++)
        for (int index = 0; index < 2; index++)
            one_cell(&x, rows, statement, levels[i], index, &sum);
    lab_a(&x, "DROP TABLE IF EXISTS lab_rows");
    lab_sessions_close(&x);
    out->table = lab_rows_end(rows);
    lab_found(
        out, LAB_SHOWN,
        "another row waits in %d of 4 cases (two isolation levels, with an index and without), "
        "an insert into the gap in %d, beside: %s",
        sum.other, sum.gap, statement);
}

static void under_update(const lab_site *site, lab_server server, lab_finding *out)
{
    matrix(site, server, "UPDATE lab_rows SET stock = stock - 1 WHERE goods = 20 AND stock >= 1",
           out);
}

static void under_read(const lab_site *site, lab_server server, lab_finding *out)
{
    matrix(site, server, "SELECT stock FROM lab_rows WHERE goods = 20 FOR UPDATE", out);
}

LAB_ON_BOTH(lab_rows_update, "D2", "row-locks-update", "which rows an UPDATE locks", under_update);
LAB_ON_BOTH(lab_rows_read, "D3", "row-locks-read", "which rows SELECT FOR UPDATE locks",
            under_read);
