/* D5: the ABA case. A version (or a time) that can go back is no version: A reads it, B deducts and
 * raises it, C cancels an order and lowers it again; A finds what it knew and writes an old number over
 * a new one. With a version that only grows, A is refused. */
#include "lab/hazards/actor.h"
#include "sessions.h"

/* What A's write came to, when the cancelling transaction sets the version this way. */
static int64_t story(lab_sessions *x, const char *cancel, int64_t *stock)
{
    int64_t changed = -1;

    if (lab_a(x, "DROP TABLE IF EXISTS lab_aba") &&
        lab_a(x, "CREATE TABLE lab_aba (id INT PRIMARY KEY, stock INT NOT NULL, sold INT NOT NULL, "
                 "version INT NOT NULL)") &&
        lab_a(x, "INSERT INTO lab_aba VALUES (1, 10, 0, 7)") &&
        /* A has read stock 10, version 7. B sells one, then one and one; C takes one order back. */
        lab_b(x, "UPDATE lab_aba SET stock = 7, sold = 3, version = 8 WHERE id = 1") &&
        lab_b(x, cancel))
        changed =
            lab_sql_run(&x->buyer, x->a,
                        "UPDATE lab_aba SET stock = 9, sold = sold + 1, version = 8 WHERE id = 1 "
                        "AND version = 7");
    lab_sql_read(&x->buyer, x->a, stock, 1, "SELECT stock + sold FROM lab_aba WHERE id = 1");
    lab_a(x, "DROP TABLE IF EXISTS lab_aba");
    return changed;
}

static void aba(const lab_site *site, lab_server server, lab_finding *out)
{
    int64_t back, on, wrong = 0, right = 0;
    lab_sessions x;

    if (!lab_sessions_open(&x, site, server)) {
        lab_found(out, LAB_NOT_RUN, "%s", x.why);
        return;
    }
    back = story(&x, "UPDATE lab_aba SET stock = 8, sold = 2, version = 7 WHERE id = 1", &wrong);
    on = story(&x, "UPDATE lab_aba SET stock = 8, sold = 2, version = 9 WHERE id = 1", &right);
    if (back < 0 || on < 0)
        lab_found(out, LAB_NOT_RUN, "%s", x.buyer.note);
    else
        lab_found(
            out, LAB_SHOWN,
            "version back to 7: the late write %s, stock + sold = %lld of 10; version on to 9: it "
            "%s, stock + sold = %lld of 10",
            back ? "lands" : "is refused", (long long)wrong, on ? "lands" : "is refused",
            (long long)right);
    lab_sessions_close(&x);
}

LAB_ON_BOTH(lab_aba, "D5", "aba", "a version that can go back", aba);
