/* D4 against D3 where data are mostly read: of twenty who look at a row, one changes it. Optimistic: look,
 * and write if the version is still that one, else look again. Pessimistic: SELECT … FOR UPDATE, and COMMIT
 * when it has been looked at, changed or not. The same with a write each, as in the runs. */
#include "lab/hazards/actor.h"
#include "sessions.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define BUYERS  16
#define SPAN_US (600 * 1000)

typedef struct reader {
    const lab_site *site;
    lab_server server;
    bool optimistic;
    int every; /* so many looks to a write */
    atomic_bool *over;
    int64_t looks, tries;
    pthread_t thread;
    bool started;
} reader;

/* Until the version was still that one. */
static bool write_optimistically(reader *r, lab_buyer *buyer, lab_sql *sql, int64_t row[2])
{
    int64_t done;

    for (;; r->tries++) {
        done = lab_sql_run(buyer, sql,
                           "UPDATE lab_mostly SET stock = %lld, version = version + 1 WHERE id = 1 "
                           "AND version = %lld",
                           (long long)row[0] - 1, (long long)row[1]);
        if (done != 0 || atomic_load(r->over))
            return done >= 0;
        if (lab_sql_read(buyer, sql, row, 2,
                         "SELECT stock, version FROM lab_mostly WHERE id = 1") <= 0)
            return false;
    }
}

static bool look_optimistically(reader *r, lab_buyer *buyer, lab_sql *sql, bool write)
{
    int64_t row[2];

    r->tries++;
    return lab_sql_read(buyer, sql, row, 2, "SELECT stock, version FROM lab_mostly WHERE id = 1") >
               0 &&
           (!write || write_optimistically(r, buyer, sql, row));
}

static bool look_locked(reader *r, lab_buyer *buyer, lab_sql *sql, bool write)
{
    int64_t row[2];

    r->tries++;
    return lab_sql_run(buyer, sql, "BEGIN") >= 0 &&
           lab_sql_read(buyer, sql, row, 2,
                        "SELECT stock, version FROM lab_mostly WHERE id = 1 FOR UPDATE") > 0 &&
           (!write || lab_sql_run(buyer, sql, "UPDATE lab_mostly SET stock = %lld WHERE id = 1",
                                  (long long)row[0] - 1) >= 0) &&
           lab_sql_run(buyer, sql, "COMMIT") >= 0;
}

static void *reader_main(void *data)
{
    reader *r = data;
    lab_buyer buyer = {.site = r->site};
    lab_sql *sql = lab_sql_open(&buyer, r->server);

    while (sql && !atomic_load(r->over)) {
        bool write = r->looks % r->every == 0;
        if (!(r->optimistic ? look_optimistically : look_locked)(r, &buyer, sql, write))
            break;
        r->looks++;
    }
    lab_sql_close(sql);
    return NULL;
}

/* Looks a second of all of them together. */
static double looks(lab_sessions *x, bool optimistic, int every, lab_rows *rows)
{
    reader r[BUYERS];
    atomic_bool over = false;
    int64_t begin = lab_now_us(), sum = 0, tries = 0;
    double a_second;

    for (int i = 0; i < BUYERS; i++) {
        r[i] = (reader){.site = x->buyer.site,
                        .server = x->server,
                        .optimistic = optimistic,
                        .every = every,
                        .over = &over};
        r[i].started = pthread_create(&r[i].thread, NULL, reader_main, &r[i]) == 0;
    }
    while (lab_now_us() - begin < SPAN_US)
        usleep(5000);
    atomic_store(&over, true);
    for (int i = 0; i < BUYERS; i++) {
        if (r[i].started)
            pthread_join(r[i].thread, NULL);
        sum += r[i].looks;
        tries += r[i].tries;
    }
    a_second = (double)sum * 1e6 / (double)(lab_now_us() - begin);
    lab_rows_add(rows, "1 in %d\t%s\t%.0f\t%.2f", every,
                 optimistic ? "version number" : "FOR UPDATE", a_second,
                 sum ? (double)tries / (double)sum : 0);
    return a_second;
}

static void mostly_read(const lab_site *site, lab_server server, lab_finding *out)
{
    lab_rows *rows = lab_rows_new("writes\tscheme\taccesses per second\ttries per access");
    double optimistic[2], locked[2];
    lab_sessions x;

    if (!lab_sessions_open(&x, site, server) || !lab_a(&x, "DROP TABLE IF EXISTS lab_mostly") ||
        !lab_a(&x, "CREATE TABLE lab_mostly (id INT PRIMARY KEY, stock BIGINT, version BIGINT)") ||
        !lab_a(&x, "INSERT INTO lab_mostly VALUES (1, 1000000, 0)")) {
        lab_found(out, LAB_NOT_RUN, "%s", x.why[0] ? x.why : x.buyer.note);
        out->table = lab_rows_end(rows);
        lab_sessions_close(&x);
        return;
    }
    for (int i = 0; i < 2; i++) {
        optimistic[i] = looks(&x, true, i ? 1 : 20, rows);
        locked[i] = looks(&x, false, i ? 1 : 20, rows);
    }
    lab_a(&x, "DROP TABLE lab_mostly");
    lab_sessions_close(&x);
    out->table = lab_rows_end(rows);
    lab_found(out, LAB_SHOWN,
              "1 access in 20 writes: %.0f optimistic and %.0f locked per second; every access "
              "writes: %.0f and %.0f",
              optimistic[0], locked[0], optimistic[1], locked[1]);
}

LAB_ON_BOTH(lab_mostly_read, "D4", "mostly-read", "a version number where data is mostly read",
            mostly_read);
