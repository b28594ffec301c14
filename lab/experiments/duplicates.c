/* D7: the same key inserted by several open transactions. The second one waits for the first: the engine
 * cannot know yet whether it is a duplicate. On MariaDB those who wait ask for a shared lock on the row;
 * when the first one rolls back, two of them get it, both want it for themselves, and that is a deadlock.
 * PostgreSQL lets them wait for the transaction: the next one has it, and the last one keeps waiting. */
#include "lab/hazards/actor.h"
#include "sessions.h"

#include <stdio.h>
#include <unistd.h>

#define HOLD_US (300 * 1000)

static const char insert[] = "INSERT INTO lab_dup VALUES ('same')";

static bool make(lab_sessions *x)
{
    return lab_a(x, "DROP TABLE IF EXISTS lab_dup") &&
           lab_a(x, "CREATE TABLE lab_dup (name VARCHAR(64) PRIMARY KEY)");
}

/* B inserts what A has inserted and not committed; then A ends this way. */
static bool second_waits(lab_sessions *x, lab_sql *c, const char *end, lab_rows *rows,
                         int64_t *waited_us)
{
    lab_later later;
    char locks[256] = "";
    bool waits;

    if (!make(x) || !lab_a(x, "BEGIN") || !lab_a(x, insert) ||
        lab_sql_run(&x->buyer, c, "BEGIN") < 0 ||
        !lab_later_start(&later, x->buyer.site, c, insert))
        return false;
    waits = lab_waiting(x, "INSERT INTO lab_dup", 1);
    lab_lock_words(x, "lab_dup", locks);
    usleep(HOLD_US); /* so long A takes to end */
    lab_a(x, end);
    lab_later_end(&later);
    lab_sql_run(&x->buyer, c, "ROLLBACK");
    lab_rows_add(rows, "A inserts, B inserts, A: %s\t%s\t%lld ms\t%s\t%s", end,
                 waits ? "B waits" : "B does not wait", (long long)later.took_us / 1000, locks,
                 later.done ? "B obtains it" : later.buyer.note);
    *waited_us = later.took_us;
    return true;
}

typedef struct ends {
    int done, deadlocks, still_waiting;
    char said[256];
} ends;

/* B and C both wait for A, and A rolls back. */
static bool three(lab_sessions *x, lab_sql *c, lab_sql *d, lab_rows *rows, ends *out)
{
    lab_later later[2] = {0};
    lab_sql *sql[] = {c, d};
    char locks[256] = "";
    int64_t begin;
    bool waits;

    if (!make(x) || !lab_a(x, "BEGIN") || !lab_a(x, insert))
        return false;
    for (int i = 0; i < 2; i++)
        if (lab_sql_run(&x->buyer, sql[i], "BEGIN") < 0 ||
            !lab_later_start(&later[i], x->buyer.site, sql[i], insert)) {
            lab_a(x, "ROLLBACK");
            lab_later_end(&later[0]);
            return false;
        }
    waits = lab_waiting(x, "INSERT INTO lab_dup", 2);
    lab_lock_words(x, "lab_dup", locks);
    begin = lab_now_us();
    lab_a(x, "ROLLBACK");
    /* One of them is through, or thrown out; does the other one still wait for it? */
    if (x->server == LAB_POSTGRESQL)
        out->still_waiting = lab_waiting(x, "INSERT INTO lab_dup", 1);
    for (int i = 0; i < 2; i++) {
        lab_later_end(&later[i]);
        out->done += later[i].done;
        if (!later[i].done && lab_sql_trouble_of(sql[i]) == LAB_SQL_DEADLOCK)
            out->deadlocks++;
        if (!later[i].done)
            snprintf(out->said, sizeof out->said, "%s", later[i].buyer.note);
    }
    for (int i = 0; i < 2; i++) /* not before: the one that waits would be let in by it */
        lab_sql_run(&x->buyer, sql[i], "ROLLBACK");
    lab_rows_add(rows, "A, B and C insert, A: ROLLBACK\t%s\t%lld ms\t%s\t%d obtains it, %s",
                 waits ? "B and C wait" : "they do not wait",
                 (long long)(lab_now_us() - begin) / 1000, locks, out->done, out->said);
    return true;
}

/* Two more sessions; the waiters give up by themselves after a while. */
static bool open_more(lab_sessions *x, lab_sql **c, lab_sql **d)
{
    const char *patience =
        x->server == LAB_MARIADB ? "SET innodb_lock_wait_timeout = 4" : "SET lock_timeout = '4s'";

    *c = lab_sql_open(&x->buyer, x->server);
    *d = *c ? lab_sql_open(&x->buyer, x->server) : NULL;
    return *d && lab_sql_run(&x->buyer, *c, "%s", patience) >= 0 &&
           lab_sql_run(&x->buyer, *d, "%s", patience) >= 0;
}

static void duplicates(const lab_site *site, lab_server server, lab_finding *out)
{
    lab_rows *rows = lab_rows_new("transactions\twhile A is open\tfor\tthe engine's locks\tend");
    lab_sql *c = NULL, *d = NULL;
    int64_t committed = 0, rolled_back = 0;
    lab_sessions x;
    ends e = {0};
    bool ran = lab_sessions_open(&x, site, server);

    ran = ran && open_more(&x, &c, &d) && second_waits(&x, c, "COMMIT", rows, &committed) &&
          second_waits(&x, c, "ROLLBACK", rows, &rolled_back) && three(&x, c, d, rows, &e);
    lab_found(out, ran ? LAB_SHOWN : LAB_NOT_RUN, "%s", x.why[0] ? x.why : x.buyer.note);
    out->table = lab_rows_end(rows);
    if (ran)
        lab_found(out, LAB_SHOWN,
                  "a duplicate INSERT waited %lld ms for an open transaction; three at once, and "
                  "the first rolls back: %s, %d obtains it, the other %s (%s)",
                  (long long)committed / 1000, e.deadlocks ? "a deadlock" : "no deadlock", e.done,
                  e.still_waiting ? "keeps waiting" : "is aborted", e.said);
    if (ran)
        lab_a(&x, "DROP TABLE IF EXISTS lab_dup");
    lab_sql_close(c);
    lab_sql_close(d);
    lab_sessions_close(&x);
}

LAB_ON_BOTH(lab_insert_twice, "D7", "insert-lock-duplicates",
            "a lock row: duplicates in open transactions", duplicates);
