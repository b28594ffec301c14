/* D8: a table with a row a method, held by SELECT … FOR UPDATE until COMMIT. It waits; it is reentrant on
 * one connection only, and the first COMMIT gives all of it back; it keeps one connection per lock;
 * and two methods of one name are one lock, unless the signature is in the key. That a crash releases it is
 * a hazard: holder-killed. */
#include "dibs.h"
#include "lab/hazards/actor.h"
#include "sessions.h"

#include <stdio.h>
#include <unistd.h>

#define HOLD_US (300 * 1000)
#define LOCKS   8

static const char take[] = "SELECT name FROM lab_row WHERE name = 'sell' FOR UPDATE";

static bool make(lab_sessions *x)
{
    return lab_a(x, "DROP TABLE IF EXISTS lab_row") &&
           lab_a(x, "CREATE TABLE lab_row (name VARCHAR(64) PRIMARY KEY)") &&
           lab_a(x, "INSERT INTO lab_row VALUES ('sell')");
}

static void not_run(lab_sessions *x, lab_finding *out)
{
    lab_found(out, LAB_NOT_RUN, "%s", x->why[0] ? x->why : x->buyer.note);
}

/* ---- Waiting, and coming again --------------------------------------------------------------- */

/* Another one asks while A holds it, and A commits after a while. */
static bool another_waits(lab_sessions *x, lab_sql *c, lab_rows *rows, int64_t *waited_us)
{
    lab_later later;
    char locks[256] = "";

    if (!lab_a(x, "BEGIN") || !lab_a(x, take) || lab_sql_run(&x->buyer, c, "BEGIN") < 0 ||
        !lab_later_start(&later, x->buyer.site, c, take))
        return false;
    lab_waiting(x, "SELECT name FROM lab_row", 1);
    lab_lock_words(x, "lab_row", locks);
    usleep(HOLD_US); /* so long A works */
    lab_a(x, "COMMIT");
    lab_later_end(&later);
    lab_sql_run(&x->buyer, c, "ROLLBACK");
    lab_rows_add(rows, "another one\t%s\t%lld ms\t%s",
                 later.done ? "waits, then obtains it" : "refused", (long long)later.took_us / 1000,
                 locks);
    *waited_us = later.took_us;
    return later.done;
}

/* The holder itself, where it holds and elsewhere; and what one COMMIT of two leaves. */
static bool itself(lab_sessions *x, lab_rows *rows, bool *passes, bool *blocks, bool *gone)
{
    int64_t begin;

    if (!lab_a(x, "BEGIN") || !lab_a(x, take))
        return false;
    begin = lab_now_us();
    *passes = lab_a(x, take);
    lab_rows_add(rows, "the holder, same connection\t%s\t%.1f ms\t%s",
                 *passes ? "obtains it again" : "refused", (double)(lab_now_us() - begin) / 1e3,
                 x->buyer.note);
    begin = lab_now_us();
    *blocks = lab_b_waits(x, take);
    lab_rows_add(rows, "the holder, its second connection\t%s\t%lld ms\t",
                 *blocks ? "waits for itself" : "obtains it again",
                 (long long)(lab_now_us() - begin) / 1000);
    lab_a(x, "COMMIT");
    *gone = !lab_b_waits(x, take);
    lab_rows_add(rows, "another one, after one COMMIT of two\t%s\t\t",
                 *gone ? "obtains it: everything was released" : "waits");
    return true;
}

static void waits(const lab_site *site, lab_server server, lab_finding *out)
{
    lab_rows *rows = lab_rows_new("client\tresult\tfor\tthe engine's locks");
    lab_sql *c = NULL;
    lab_sessions x;
    int64_t waited = 0;
    bool passes = false, blocks = false, gone = false;
    bool ran = lab_sessions_open(&x, site, server) && (c = lab_sql_open(&x.buyer, server)) &&
               make(&x) && another_waits(&x, c, rows, &waited) &&
               itself(&x, rows, &passes, &blocks, &gone);

    out->table = lab_rows_end(rows);
    if (ran) {
        lab_found(
            out, LAB_SHOWN,
            "another client waited %lld ms and obtained it at the COMMIT; the holder %s on its own "
            "connection (and one COMMIT of two %s) and %s on a second one",
            (long long)waited / 1000, passes ? "obtains it again" : "is refused",
            gone ? "released everything" : "kept it",
            blocks ? "waits for itself" : "obtains it again");
        lab_a(&x, "DROP TABLE lab_row");
    } else {
        not_run(&x, out);
    }
    lab_sql_close(c);
    lab_sessions_close(&x);
}

/* ---- A connection for every lock ------------------------------------------------------------- */

static int64_t connections(lab_sessions *x)
{
    int64_t n = -1;

    lab_sql_read(
        &x->buyer, x->a, &n, 1,
        x->server == LAB_MARIADB
            ? "SELECT COUNT(*) FROM information_schema.processlist"
            : "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'");
    return n;
}

/* A server forgets a connection a moment after it was closed: not before that. */
static int64_t settled_connections(lab_sessions *x)
{
    int64_t last = -1, now = connections(x);

    for (int64_t until = lab_now_us() + 5 * 1000000; now != last && lab_now_us() < until;) {
        usleep(50000);
        last = now;
        now = connections(x);
    }
    return now;
}

/* So many more, while the scheme holds LOCKS of them. */
static int64_t of_the_scheme(lab_sessions *x)
{
    int64_t before = settled_connections(x), during = -1;
    lab_sql *held[LOCKS] = {0};
    int n = 0;

    for (; n < LOCKS && (held[n] = lab_sql_open(&x->buyer, x->server)); n++)
        if (lab_sql_run(&x->buyer, held[n], "BEGIN") < 0 ||
            lab_sql_run(&x->buyer, held[n],
                        "SELECT name FROM lab_row WHERE name = 'm%d' FOR UPDATE", n) < 0)
            break;
    if (n == LOCKS)
        during = connections(x) - before;
    for (int i = 0; i < LOCKS; i++)
        lab_sql_close(held[i]);
    return during;
}

static int64_t of_dibs(lab_sessions *x)
{
    int64_t before = settled_connections(x), during = -1;
    dibs_grant *held[LOCKS] = {0};
    dibs_error err = {0};
    dibs *d = NULL;
    int n = 0;

    if (dibs_open(x->buyer.site->url[x->server], NULL, &d, &err) == DIBS_OK)
        for (char name[64]; n < LOCKS; n++) {
            snprintf(name, sizeof name, "d8:%d:%d", (int)getpid(), n);
            if (dibs_lock(d, name, NULL, &held[n], &err) != DIBS_OK)
                break;
        }
    if (n == LOCKS)
        during = connections(x) - before;
    else
        lab_note(&x->buyer, "%s", err.message);
    dibs_close(d); /* which unlocks them */
    return during;
}

static void holds_connections(const lab_site *site, lab_server server, lab_finding *out)
{
    lab_sessions x;
    int64_t scheme = -1, product = -1;
    bool ran = lab_sessions_open(&x, site, server) && make(&x);

    for (int i = 0; ran && i < LOCKS; i++)
        ran = lab_sql_run(&x.buyer, x.a, "INSERT INTO lab_row VALUES ('m%d')", i) == 1;
    if (ran) {
        product = of_dibs(&x);
        scheme = of_the_scheme(&x);
        lab_a(&x, "DROP TABLE lab_row");
    }
    if (scheme < 0 || product < 0)
        not_run(&x, out);
    else
        lab_found(
            out, LAB_SHOWN,
            "%d locks held: %lld more connections on the server; dibs with as many locks: %lld",
            LOCKS, (long long)scheme, (long long)product);
    lab_sessions_close(&x);
}

/* ---- Overloads ------------------------------------------------------------------------------- */

/* sell(goods) and sell(goods, count): how many rows, and does B's method wait for A's? */
static bool two_methods(lab_sessions *x, bool signature, lab_rows *rows, int64_t *count, bool *wait)
{
    static const char *const one = "INSERT INTO lab_row VALUES ('sell', 'goods')";
    static const char *const two = "INSERT INTO lab_row VALUES ('sell', 'goods, count')";
    char said[256];

    if (!lab_a(x, "DROP TABLE IF EXISTS lab_row") ||
        !lab_a(x, signature ? "CREATE TABLE lab_row (name VARCHAR(64), signature VARCHAR(100), "
                              "PRIMARY KEY (name, signature))"
                            : "CREATE TABLE lab_row (name VARCHAR(64) PRIMARY KEY, signature "
                              "VARCHAR(100))") ||
        !lab_a(x, one))
        return false;
    lab_a(x, two);
    snprintf(said, sizeof said, "%s", x->buyer.note);
    lab_sql_read(&x->buyer, x->a, count, 1, "SELECT COUNT(*) FROM lab_row");
    if (!lab_a(x, "BEGIN") ||
        !lab_a(x, signature
                      ? "SELECT name FROM lab_row WHERE name = 'sell' AND signature = 'goods' "
                        "FOR UPDATE"
                      : "SELECT name FROM lab_row WHERE name = 'sell' FOR UPDATE"))
        return false;
    *wait = lab_b_waits(x, signature ? "SELECT name FROM lab_row WHERE name = 'sell' AND signature "
                                       "= 'goods, count' FOR UPDATE"
                                     : "SELECT name FROM lab_row WHERE name = 'sell' FOR UPDATE");
    lab_a(x, "COMMIT");
    lab_rows_add(rows, "%s\t%lld\t%s\t%s", signature ? "name and signature" : "name",
                 (long long)*count, *wait ? "waits for the other" : "goes on", said);
    return true;
}

static void overloads(const lab_site *site, lab_server server, lab_finding *out)
{
    lab_rows *rows =
        lab_rows_new("the key is\trows of two methods\tthe second method\tits INSERT was told");
    int64_t without = -1, with = -1;
    bool excludes = false, apart = false;
    lab_sessions x;
    bool ran = lab_sessions_open(&x, site, server) &&
               two_methods(&x, false, rows, &without, &excludes) &&
               two_methods(&x, true, rows, &with, &apart);

    out->table = lab_rows_end(rows);
    if (ran)
        lab_found(
            out, LAB_SHOWN,
            "sell(goods) and sell(goods, count): by name alone %lld row, and one %s the other; "
            "with the signature in the key %lld rows, and one %s the other",
            (long long)without, excludes ? "waits for" : "does not wait for", (long long)with,
            apart ? "waits for" : "does not wait for");
    else
        not_run(&x, out);
    if (ran)
        lab_a(&x, "DROP TABLE lab_row");
    lab_sessions_close(&x);
}

LAB_ON_BOTH(lab_method_waits, "D8", "method-row-waits", "one row per method: who waits for whom",
            waits);
LAB_ON_BOTH(lab_method_connections, "D8", "method-row-connections",
            "one row per method: one connection per lock", holds_connections);
LAB_ON_BOTH(lab_method_overloads, "D8", "method-row-overloads",
            "one row per method: two methods of one name", overloads);
