/* D3: two sessions lock two rows, or a row in each of two tables, in opposite order. Neither can go on;
 * the engine notices, and one of them pays. */
#include "lab/hazards/actor.h"
#include "sessions.h"

#include <pthread.h>
#include <stdio.h>

typedef struct second_step {
    lab_sessions *x;
    lab_seat seat; /* its own: two threads, two notes */
    const char *sql;
    bool done;
} second_step;

static void *run_a(void *data)
{
    second_step *s = data;

    s->done = lab_sql_run(&s->seat, s->x->a, "%s", s->sql) >= 0;
    return NULL;
}

static bool make(lab_sessions *x)
{
    return lab_a(x, "DROP TABLE IF EXISTS lab_pair") &&
           lab_a(x, "DROP TABLE IF EXISTS lab_other") &&
           lab_a(x, "CREATE TABLE lab_pair (id INT PRIMARY KEY, stock INT NOT NULL)") &&
           lab_a(x, "CREATE TABLE lab_other (id INT PRIMARY KEY, stock INT NOT NULL)") &&
           lab_a(x, "INSERT INTO lab_pair VALUES (1, 5), (2, 5)") &&
           lab_a(x, "INSERT INTO lab_other VALUES (2, 5)") &&
           (x->server == LAB_MARIADB || lab_b(x, "SET lock_timeout = 0"));
}

/* A has the first and wants the second; B the other way round. Who was told of a deadlock? */
static void cross(lab_sessions *x, const char *first, const char *second, lab_rows *rows,
                  const char *what)
{
    second_step step = {.x = x, .seat = x->seat, .sql = second};
    lab_sql_trouble a, b;
    int64_t begin;
    pthread_t thread;
    char said[256];
    bool b_done;

    if (!lab_a(x, "BEGIN") || !lab_b(x, "BEGIN") || !lab_a(x, first) || !lab_b(x, second) ||
        pthread_create(&thread, NULL, run_a, &step) != 0) {
        lab_rows_add(rows, "%s\tnot run: %s\t", what, x->seat.note);
        return;
    }
    begin = lab_now_us();
    b_done = lab_b(x, first);
    snprintf(said, sizeof said, "%s", x->seat.note);
    lab_b(x, b_done ? "COMMIT" : "ROLLBACK");
    pthread_join(thread, NULL);
    a = step.done ? LAB_SQL_FINE : lab_sql_trouble_of(x->a);
    b = b_done ? LAB_SQL_FINE : LAB_SQL_DEADLOCK;
    lab_rows_add(rows, "%s\t%s\t%lld ms\t%s", what,
                 a == LAB_SQL_DEADLOCK   ? "the first one was thrown out"
                 : b == LAB_SQL_DEADLOCK ? "the second one was thrown out"
                                         : "nobody was told",
                 (long long)(lab_now_us() - begin) / 1000, step.done ? said : step.seat.note);
    lab_a(x, "ROLLBACK");
}

static void deadlock(const lab_site *site, lab_server server, lab_finding *out)
{
    static const char one[] = "SELECT stock FROM lab_pair WHERE id = 1 FOR UPDATE";
    static const char two[] = "SELECT stock FROM lab_pair WHERE id = 2 FOR UPDATE";
    static const char other[] = "SELECT stock FROM lab_other WHERE id = 2 FOR UPDATE";
    lab_sessions x;
    lab_rows *rows;

    if (!lab_sessions_open(&x, site, server) || !make(&x)) {
        lab_found(out, LAB_NOT_RUN, "%s", x.why[0] ? x.why : x.seat.note);
        lab_sessions_close(&x);
        return;
    }
    rows = lab_rows_new("locked in opposite order\tend\tnoticed after\tthe engine says");
    cross(&x, one, two, rows, "two rows");
    cross(&x, one, other, rows, "two tables");
    lab_a(&x, "DROP TABLE lab_pair");
    lab_a(&x, "DROP TABLE lab_other");
    lab_sessions_close(&x);
    out->table = lab_rows_end(rows);
    lab_found(out, LAB_SHOWN,
              "rows and tables locked in opposite order deadlock: the engine throws "
              "one of the two out");
}

LAB_ON_BOTH(lab_deadlock, "D3", "opposite-order", "rows and tables in opposite order", deadlock);
