/* D3: an index is there, and the planner may scan the table all the same: it is small. What does that do
 * to the locks? */
#include "lab/hazards/actor.h"
#include "sessions.h"

#include <stdlib.h>
#include <string.h>

static void small_table(const lab_site *site, lab_server server, lab_finding *out)
{
    static const char read[] = "SELECT stock FROM lab_small WHERE goods = 20 FOR UPDATE";
    lab_sessions x;
    lab_rows *rows;
    char *plan;
    bool waits;

    if (!lab_sessions_open(&x, site, server) || !lab_a(&x, "DROP TABLE IF EXISTS lab_small") ||
        !lab_a(&x, "CREATE TABLE lab_small (id INT PRIMARY KEY, goods INT NOT NULL, stock INT NOT "
                   "NULL)") ||
        !lab_a(&x, "CREATE INDEX lab_small_goods ON lab_small (goods)") ||
        !lab_a(&x, "INSERT INTO lab_small VALUES (1, 20, 5), (2, 20, 5), (3, 30, 5)") ||
        !lab_a(&x, server == LAB_MARIADB ? "ANALYZE TABLE lab_small" : "ANALYZE lab_small")) {
        lab_found(out, LAB_NOT_RUN, "%s", x.why[0] ? x.why : x.seat.note);
        lab_sessions_close(&x);
        return;
    }
    plan = lab_sql_text(&x.seat, x.a, "EXPLAIN %s", read);
    lab_a(&x, "BEGIN");
    lab_a(&x, read);
    waits = lab_b_waits(&x, "UPDATE lab_small SET stock = 4 WHERE id = 3");
    lab_a(&x, "ROLLBACK");
    lab_a(&x, "DROP TABLE lab_small");
    lab_sessions_close(&x);
    rows = lab_rows_new("the plan");
    for (char *line = plan ? strtok(plan, "\n") : NULL; line; line = strtok(NULL, "\n")) {
        for (char *c = line; *c; c++)
            *c = *c == '\t' ? ' ' : *c;
        lab_rows_add(rows, "%s", line);
    }
    free(plan);
    out->table = lab_rows_end(rows);
    lab_found(out, LAB_SHOWN,
              "three rows and an index: an update of a row that was not asked for %s",
              waits ? "waits: the whole table was locked" : "goes on");
}

LAB_ON_BOTH(lab_plan, "D3", "small-table", "a small table and its index", small_table);
