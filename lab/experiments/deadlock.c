/* D3: two sessions lock two rows, or a row in each of two tables, in opposite order. Neither can go on;
 * the engine notices, and one of them pays. */
#include "lab/hazards/actor.h"
#include "sessions.h"

#include <stdio.h>

typedef struct outcome {
    int thrown_out; /* of the two, with the engine's own error for a deadlock */
    int64_t noticed_us;
    char said[256];
} outcome;

static bool make(lab_sessions *x)
{
    return lab_a(x, "DROP TABLE IF EXISTS lab_pair") &&
           lab_a(x, "DROP TABLE IF EXISTS lab_other") &&
           lab_a(x, "CREATE TABLE lab_pair (id INT PRIMARY KEY, stock INT NOT NULL)") &&
           lab_a(x, "CREATE TABLE lab_other (id INT PRIMARY KEY, stock INT NOT NULL)") &&
           lab_a(x, "INSERT INTO lab_pair VALUES (1, 5), (2, 5)") &&
           lab_a(x, "INSERT INTO lab_other VALUES (2, 5)") &&
           lab_b(x, x->server == LAB_MARIADB ? "SET innodb_lock_wait_timeout = 20"
                                             : "SET lock_timeout = '20s'");
}

/* A has the first and wants the second; B the other way round. Who was told of a deadlock? */
static bool cross(lab_sessions *x, const char *first, const char *second, lab_rows *rows,
                  const char *what, outcome *out)
{
    bool a_informed, b_informed, b_done;
    lab_later step;
    int64_t begin;

    if (!lab_a(x, "BEGIN") || !lab_b(x, "BEGIN") || !lab_a(x, first) || !lab_b(x, second) ||
        !lab_later_start(&step, x->buyer.site, x->a, second))
        return false;
    begin = lab_now_us();
    b_done = lab_b(x, first);
    b_informed = !b_done && lab_sql_trouble_of(x->b) == LAB_SQL_DEADLOCK;
    snprintf(out->said, sizeof out->said, "%s", x->buyer.note);
    lab_b(x, b_done ? "COMMIT" : "ROLLBACK");
    lab_later_end(&step);
    a_informed = !step.done && lab_sql_trouble_of(x->a) == LAB_SQL_DEADLOCK;
    out->noticed_us = lab_now_us() - begin;
    out->thrown_out = a_informed + b_informed;
    if (!step.done)
        snprintf(out->said, sizeof out->said, "%s", step.buyer.note);
    lab_rows_add(rows, "%s\t%s\t%lld ms\t%s", what,
                 a_informed   ? "the first was aborted"
                 : b_informed ? "the second was aborted"
                              : "neither got an error",
                 (long long)out->noticed_us / 1000, out->said);
    return lab_a(x, "ROLLBACK");
}

static void deadlock(const lab_site *site, lab_server server, lab_finding *out)
{
    static const char one[] = "SELECT stock FROM lab_pair WHERE id = 1 FOR UPDATE";
    static const char two[] = "SELECT stock FROM lab_pair WHERE id = 2 FOR UPDATE";
    static const char other[] = "SELECT stock FROM lab_other WHERE id = 2 FOR UPDATE";
    lab_rows *rows = lab_rows_new("locked in opposite order\tend\tnoticed after\terror");
    outcome of_rows = {0}, of_tables = {0};
    lab_sessions x;
    bool ran = lab_sessions_open(&x, site, server) && make(&x) &&
               cross(&x, one, two, rows, "two rows", &of_rows) &&
               cross(&x, one, other, rows, "two tables", &of_tables);

    out->table = lab_rows_end(rows);
    if (ran) {
        lab_a(&x, "DROP TABLE lab_pair");
        lab_a(&x, "DROP TABLE lab_other");
        lab_found(out, LAB_SHOWN,
                  "two rows in opposite order: %d of the two is aborted after %lld ms (%s); two "
                  "tables: %d, after %lld ms",
                  of_rows.thrown_out, (long long)of_rows.noticed_us / 1000, of_rows.said,
                  of_tables.thrown_out, (long long)of_tables.noticed_us / 1000);
    } else {
        lab_found(out, LAB_NOT_RUN, "%s", x.why[0] ? x.why : x.buyer.note);
    }
    lab_sessions_close(&x);
}

LAB_ON_BOTH(lab_deadlock, "D3", "opposite-order", "rows and tables in opposite order", deadlock);
