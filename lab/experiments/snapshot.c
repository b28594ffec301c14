/* D3: a plain SELECT beside SELECT … FOR UPDATE. While A has deducted and not committed, B reads: plainly
 * it gets the older number at once; FOR UPDATE waits until A is over. */
#include "lab/hazards/actor.h"
#include "sessions.h"

static void snapshot(const lab_site *site, lab_server server, lab_finding *out)
{
    lab_sessions x;
    int64_t plain = -1;
    bool waits;

    if (!lab_sessions_open(&x, site, server) || !lab_a(&x, "DROP TABLE IF EXISTS lab_read") ||
        !lab_a(&x, "CREATE TABLE lab_read (id INT PRIMARY KEY, stock INT NOT NULL)") ||
        !lab_a(&x, "INSERT INTO lab_read VALUES (1, 5)") || !lab_a(&x, "BEGIN") ||
        !lab_a(&x, "UPDATE lab_read SET stock = 4 WHERE id = 1")) {
        lab_found(out, LAB_NOT_RUN, "%s", x.why[0] ? x.why : x.buyer.note);
        lab_sessions_close(&x);
        return;
    }
    lab_sql_read(&x.buyer, x.b, &plain, 1, "SELECT stock FROM lab_read WHERE id = 1");
    waits = lab_b_waits(&x, "SELECT stock FROM lab_read WHERE id = 1 FOR UPDATE");
    lab_a(&x, "COMMIT");
    lab_a(&x, "DROP TABLE lab_read");
    lab_sessions_close(&x);
    lab_found(out, LAB_SHOWN,
              "before the commit of 5 -> 4 a plain SELECT reads %lld at once; FOR UPDATE %s",
              (long long)plain, waits ? "waits" : "goes on");
}

LAB_ON_BOTH(lab_snapshot, "D3", "plain-select", "a plain SELECT beside FOR UPDATE", snapshot);
