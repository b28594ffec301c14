/* D3: an index is there, and the planner may scan the table all the same: it is small. What does that do
 * to the locks? Whoever locks what he scans makes everybody wait. */
#include "lab/hazards/actor.h"
#include "sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct seen {
    bool scanned, waits;
} seen;

static bool make(lab_sessions *x)
{
    return lab_a(x, "DROP TABLE IF EXISTS lab_small") &&
           lab_a(x, "CREATE TABLE lab_small (id INT PRIMARY KEY, goods INT NOT NULL, stock INT NOT "
                    "NULL)") &&
           lab_a(x, "CREATE INDEX lab_small_goods ON lab_small (goods)") &&
           lab_a(x, "INSERT INTO lab_small VALUES (1, 20, 5), (2, 20, 5), (3, 30, 5)") &&
           lab_a(x, x->server == LAB_MARIADB ? "ANALYZE TABLE lab_small" : "ANALYZE lab_small");
}

/* One statement: how the engine reads the table, and whether a row that was not asked for is locked. */
static bool look(lab_sessions *x, const char *condition, lab_rows *rows, seen *out)
{
    char *plan = lab_sql_text(&x->buyer, x->a,
                              "EXPLAIN SELECT stock FROM lab_small WHERE %s FOR UPDATE", condition);
    bool asked = plan && lab_a(x, "BEGIN") &&
                 lab_sql_run(&x->buyer, x->a, "SELECT stock FROM lab_small WHERE %s FOR UPDATE",
                             condition) >= 0;

    if (asked) {
        out->scanned = strstr(plan, "\tALL\t") || strstr(plan, "Seq Scan");
        out->waits = lab_b_waits(x, "UPDATE lab_small SET stock = 4 WHERE id = 3");
        for (char *c = plan; *c; c++)
            *c = *c == '\t' ? ' ' : *c == '\n' ? ';' : *c;
        lab_rows_add(rows, "%s\t%s\t%s\t%s", condition,
                     out->scanned ? "scans the table" : "uses the index",
                     out->waits ? "waits" : "goes on", plan);
    }
    lab_a(x, "ROLLBACK");
    free(plan);
    return asked;
}

static void small_table(const lab_site *site, lab_server server, lab_finding *out)
{
    lab_rows *rows = lab_rows_new("condition\tthe engine\tanother row\tits plan");
    seen one = {0}, two = {0};
    lab_sessions x;
    bool ran = lab_sessions_open(&x, site, server) && make(&x) &&
               look(&x, "goods = 20", rows, &one) && look(&x, "goods IN (10, 20)", rows, &two);

    out->table = lab_rows_end(rows);
    if (ran) {
        lab_found(
            out, LAB_SHOWN,
            "three rows and an index: goods = 20 %s, another row %s; goods IN (10, 20) %s, "
            "another row %s",
            one.scanned ? "scans the table" : "uses the index", one.waits ? "waits" : "goes on",
            two.scanned ? "scans the table" : "uses the index", two.waits ? "waits" : "goes on");
        lab_a(&x, "DROP TABLE lab_small");
    } else {
        lab_found(out, LAB_NOT_RUN, "%s", x.why[0] ? x.why : x.buyer.note);
    }
    lab_sessions_close(&x);
}

LAB_ON_BOTH(lab_plan, "D3", "small-table", "a small table and its index", small_table);
