/* F0: five statements, each repeated: which of them change nothing the second time? The answer of the
 * second may differ; the effect may not. */
#include "lab/hazards/actor.h"
#include "sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *what, *sql;
} statements[] = {
    {"select", "SELECT stock FROM lab_five WHERE id = 1"},
    {"insert without a unique key", "INSERT INTO lab_five_loose VALUES (7, 1)"},
    {"insert with a unique key", "INSERT INTO lab_five VALUES (7, 1)"},
    {"update to a value", "UPDATE lab_five SET stock = 4 WHERE id = 1"},
    {"update by a difference", "UPDATE lab_five SET stock = stock - 1 WHERE id = 1"},
    {"delete by key", "DELETE FROM lab_five WHERE id = 2"},
};

static bool make(lab_sessions *x)
{
    return lab_a(x, "DROP TABLE IF EXISTS lab_five") &&
           lab_a(x, "DROP TABLE IF EXISTS lab_five_loose") &&
           lab_a(x, "CREATE TABLE lab_five (id INT PRIMARY KEY, stock INT NOT NULL)") &&
           lab_a(x, "CREATE TABLE lab_five_loose (id INT, stock INT NOT NULL)") &&
           lab_a(x, "INSERT INTO lab_five VALUES (1, 5), (2, 5)");
}

/* All that both tables hold. */
static char *contents(lab_sessions *x)
{
    return lab_sql_text(&x->buyer, x->a,
                        "SELECT id, stock FROM lab_five UNION ALL SELECT id, stock FROM "
                        "lab_five_loose ORDER BY 1, 2");
}

static void five(const lab_site *site, lab_server server, lab_finding *out)
{
    lab_sessions x;
    lab_rows *rows;
    int same = 0;

    if (!lab_sessions_open(&x, site, server)) {
        lab_found(out, LAB_NOT_RUN, "%s", x.why);
        return;
    }
    rows = lab_rows_new("statement\tsecond time\teffect");
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
        char *once, *twice;
        bool answered;
        if (!make(&x) || !lab_a(&x, statements[i].sql))
            break;
        once = contents(&x);
        answered = lab_a(&x, statements[i].sql);
        twice = contents(&x);
        same += once && twice && strcmp(once, twice) == 0;
        lab_rows_add(rows, "%s\t%s\t%s", statements[i].what, answered ? "accepted" : x.buyer.note,
                     once && twice && strcmp(once, twice) == 0 ? "none: idempotent" : "done twice");
        free(once);
        free(twice);
    }
    lab_a(&x, "DROP TABLE IF EXISTS lab_five");
    lab_a(&x, "DROP TABLE IF EXISTS lab_five_loose");
    lab_sessions_close(&x);
    out->table = lab_rows_end(rows);
    lab_found(out, LAB_SHOWN, "%d of %zu statements changed nothing when repeated", same,
              sizeof statements / sizeof statements[0]);
}

LAB_ON_BOTH(lab_five, "F0", "repeated", "statements repeated: which are idempotent", five);
