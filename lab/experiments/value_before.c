/* D2: the conditional UPDATE does not tell the program what was there before. It answers how many rows it
 * changed; RETURNING, where there is one, gives the value after; and who reads before or after reads what
 * another has changed meanwhile. */
#include "lab/hazards/actor.h"
#include "sessions.h"

#include <stdio.h>

#define DEDUCT "UPDATE lab_before SET stock = stock - 1 WHERE id = 1 AND stock >= 1"

static void value_before(const lab_site *site, lab_server server, lab_finding *out)
{
    int64_t before = -1, changed, returned = -1, after = -1;
    char said[256];
    lab_sessions x;

    if (!lab_sessions_open(&x, site, server) || !lab_a(&x, "DROP TABLE IF EXISTS lab_before") ||
        !lab_a(&x, "CREATE TABLE lab_before (id INT PRIMARY KEY, stock INT NOT NULL)") ||
        !lab_a(&x, "INSERT INTO lab_before VALUES (1, 10)") ||
        lab_sql_read(&x.buyer, x.a, &before, 1, "SELECT stock FROM lab_before WHERE id = 1") <= 0 ||
        !lab_b(&x, DEDUCT) || (changed = lab_sql_run(&x.buyer, x.a, DEDUCT)) < 0 ||
        !lab_b(&x, DEDUCT) ||
        lab_sql_read(&x.buyer, x.a, &after, 1, "SELECT stock FROM lab_before WHERE id = 1") <= 0) {
        lab_found(out, LAB_NOT_RUN, "%s", x.why[0] ? x.why : x.buyer.note);
        lab_sessions_close(&x);
        return;
    }
    if (lab_sql_read(&x.buyer, x.a, &returned, 1, DEDUCT " RETURNING stock") > 0)
        snprintf(said, sizeof said, "RETURNING gave %lld, the value after it", (long long)returned);
    else
        snprintf(said, sizeof said, "RETURNING is refused");
    lab_a(&x, "DROP TABLE lab_before");
    lab_sessions_close(&x);
    lab_found(
        out, LAB_SHOWN,
        "a SELECT before the UPDATE had read %lld, one after it %lld, because others bought "
        "meanwhile; the UPDATE itself returned %lld row, and not that it changed %lld to %lld; %s",
        (long long)before, (long long)after, (long long)changed, (long long)after + 2,
        (long long)after + 1, said);
}

LAB_ON_BOTH(lab_value_before, "D2", "value-before", "an UPDATE does not return the value before it",
            value_before);
