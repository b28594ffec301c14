/* F4: a dedupe table: the request's key goes into a unique column before the business row, in the same
 * transaction. Duplicates at the same moment: one business row. Rolled back: the key is gone too, and
 * the request may come again. */
#include "lab/hazards/actor.h"
#include "rush.h"
#include "sessions.h"

#define BUYERS 16

typedef struct order {
    const lab_site *site;
    lab_server server;
} order;

static int submit(void *ctx, int number)
{
    const order *o = ctx;
    lab_buyer buyer = {.site = o->site};
    lab_sql *sql = lab_sql_open(&buyer, o->server);
    int submitted = 0;

    (void)number;
    if (!sql)
        return 0;
    if (lab_sql_run(&buyer, sql, "BEGIN") >= 0 &&
        lab_sql_run(&buyer, sql, "INSERT INTO lab_dedupe VALUES ('request-1')") == 1 &&
        lab_sql_run(&buyer, sql, "INSERT INTO lab_orders VALUES ('request-1', 1)") == 1)
        submitted = lab_sql_run(&buyer, sql, "COMMIT") >= 0;
    else
        lab_sql_run(&buyer, sql, "ROLLBACK");
    lab_sql_close(sql);
    return submitted;
}

static void dedupe(const lab_site *site, lab_server server, lab_finding *out)
{
    order o = {site, server};
    int64_t rows = -1, keys = -1;
    lab_sessions x;
    int confirmed;

    if (!lab_sessions_open(&x, site, server) || !lab_a(&x, "DROP TABLE IF EXISTS lab_dedupe") ||
        !lab_a(&x, "DROP TABLE IF EXISTS lab_orders") ||
        !lab_a(&x, "CREATE TABLE lab_dedupe (request VARCHAR(64) PRIMARY KEY)") ||
        !lab_a(&x, "CREATE TABLE lab_orders (request VARCHAR(64), pieces INT)")) {
        lab_found(out, LAB_NOT_RUN, "%s", x.why[0] ? x.why : x.buyer.note);
        lab_sessions_close(&x);
        return;
    }
    confirmed = lab_rush(2, BUYERS / 2, submit, &o);
    lab_sql_read(&x.buyer, x.a, &rows, 1, "SELECT count(*) FROM lab_orders");
    lab_a(&x, "BEGIN");
    lab_a(&x, "INSERT INTO lab_dedupe VALUES ('request-2')");
    lab_a(&x, "ROLLBACK");
    lab_sql_read(&x.buyer, x.a, &keys, 1,
                 "SELECT count(*) FROM lab_dedupe WHERE request = 'request-2'");
    lab_a(&x, "DROP TABLE lab_dedupe");
    lab_a(&x, "DROP TABLE lab_orders");
    lab_sessions_close(&x);
    lab_found(out, rows == 1 && confirmed == 1 && keys == 0 ? LAB_SURVIVED : LAB_BROKE,
              "%d duplicates at once: %lld order recorded, %d client was told that it was placed; "
              "after a rollback %lld keys remain",
              BUYERS, (long long)rows, confirmed, (long long)keys);
}

LAB_ON_BOTH(lab_dedupe, "F4", "dedupe-table", "a unique key in the same transaction", dedupe);
