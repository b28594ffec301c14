/* D7: a row by INSERT is the lock, DELETE gives it back. What that does not give: reentrancy, waiting,
 * order. Each is measured with the scheme itself, and with the product on the same server beside it. */
#include "dibs.h"
#include "lab/hazards/actor.h"
#include "queue_up.h"
#include "sessions.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define AGAIN_MS 300
#define HOLD_MS  525
#define WAITERS  8

static const char *fresh_name(char out[64])
{
    static int count;

    snprintf(out, 64, "d7:%d:%d", (int)getpid(), count++);
    return out;
}

/* ---- Reentrancy ------------------------------------------------------------------------------ */

/* The scheme's own holder asks again for a while. False: it could not be run. */
static bool ask_again(const lab_site *site, lab_server server, lab_rows *rows, lab_buyer *buyer)
{
    char name[64];
    int64_t begin;
    bool first, second;

    *buyer = (lab_buyer){.strategy = lab_twin("insert-lock", server), .site = site};
    buyer->resource = fresh_name(name);
    if (!lab_buyer_open(buyer))
        return false;
    first = buyer->strategy->lock(buyer);
    buyer->tries = 0;
    buyer->pace.wait_ms = AGAIN_MS;
    begin = lab_now_us();
    second = first && buyer->strategy->lock(buyer);
    lab_rows_add(rows, "the scheme, asked to wait %d ms\t%s\t%lld ms\t%llu tries", AGAIN_MS,
                 second ? "obtains it" : "waits for itself and gives up",
                 (long long)(lab_now_us() - begin) / 1000, (unsigned long long)buyer->tries);
    if (first)
        buyer->strategy->unlock(buyer);
    lab_buyer_close(buyer);
    return first;
}

/* The same by hand: one statement more, on the same connection and on another one. */
static bool insert_again(lab_sessions *x, lab_rows *rows, char said[256])
{
    static const char insert[] = "INSERT INTO lab_twice VALUES ('again')";
    int64_t begin;
    bool done;

    if (!lab_a(x, "DROP TABLE IF EXISTS lab_twice") ||
        !lab_a(x, "CREATE TABLE lab_twice (name VARCHAR(64) PRIMARY KEY)") || !lab_a(x, insert))
        return false;
    begin = lab_now_us();
    done = lab_a(x, insert);
    snprintf(said, 256, "%s", x->buyer.note);
    lab_rows_add(rows, "a second INSERT, same connection\t%s\t%.1f ms\t%s",
                 done ? "obtains it" : "refused", (double)(lab_now_us() - begin) / 1e3, said);
    lab_a(x, "DELETE FROM lab_twice");
    lab_a(x, "BEGIN");
    lab_a(x, insert);
    begin = lab_now_us();
    done = lab_b(x, insert);
    lab_rows_add(rows, "a second INSERT, the program's second connection\t%s\t%.1f ms\t%s",
                 done                                          ? "obtains it"
                 : lab_sql_trouble_of(x->b) == LAB_SQL_TIMEOUT ? "waits for itself"
                                                               : "refused",
                 (double)(lab_now_us() - begin) / 1e3, x->buyer.note);
    lab_a(x, "ROLLBACK");
    lab_a(x, "DROP TABLE lab_twice");
    return true;
}

static bool dibs_again(const lab_site *site, lab_server server, lab_rows *rows)
{
    dibs_error err = {0};
    dibs_grant *g = NULL, *again = NULL;
    char name[64];
    int64_t begin;
    dibs *d = NULL;
    bool same = false;

    if (dibs_open(site->url[server], NULL, &d, &err) == DIBS_OK &&
        dibs_lock(d, fresh_name(name), NULL, &g, &err) == DIBS_OK) {
        begin = lab_now_us();
        same = dibs_lock(d, name, NULL, &again, &err) == DIBS_OK && again == g;
        lab_rows_add(rows, "dibs\t%s\t%.3f ms\t%s", same ? "obtains it again (reentry)" : "refused",
                     (double)(lab_now_us() - begin) / 1e3, same ? "the same fence" : err.message);
    }
    dibs_close(d); /* which unlocks it */
    return same;
}

static void again(const lab_site *site, lab_server server, lab_finding *out)
{
    lab_rows *rows = lab_rows_new("the holder asks again\tresult\tafter\treply");
    lab_sessions x;
    lab_buyer buyer;
    char said[256] = "";
    bool ran, deeper;

    if (!lab_sessions_open(&x, site, server)) {
        out->table = lab_rows_end(rows);
        lab_found(out, LAB_NOT_RUN, "%s", x.why);
        return;
    }
    ran = insert_again(&x, rows, said);
    snprintf(x.why, sizeof x.why, "%s", x.buyer.note);
    ran = ran && ask_again(site, server, rows, &buyer);
    deeper = dibs_again(site, server, rows);
    lab_sessions_close(&x);
    out->table = lab_rows_end(rows);
    if (!ran)
        lab_found(out, LAB_NOT_RUN, "%s", x.why);
    else
        lab_found(out, LAB_SHOWN,
                  "the holder's second INSERT is refused (%s); asking for %d ms it "
                  "tried %llu times and waited for itself; dibs %s",
                  said, AGAIN_MS, (unsigned long long)buyer.tries,
                  deeper ? "grants it again" : "does not grant it either");
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static void polls(const lab_site *site, lab_server server, lab_finding *out)
{
    lab_rows *rows =
        lab_rows_new("scheme\ttries of one waiter\theld for\tobtained after the release");
    const lab_strategy *s[] = {lab_twin("insert-lock", server), lab_twin("dibs", server)};
    lab_queue queue[2];
    char name[64];

    for (int i = 0; i < 2; i++) {
        lab_queue_up(s[i], site, fresh_name(name), 1, HOLD_MS, &queue[i]);
        lab_rows_add(rows, "%s\t%llu\t%lld ms\t%.1f ms%s%s", s[i]->name,
                     (unsigned long long)queue[i].tries, (long long)queue[i].held_us / 1000,
                     (double)queue[i].late_us / 1e3, queue[i].note[0] ? ": " : "", queue[i].note);
    }
    out->table = lab_rows_end(rows);
    if (queue[0].overtaken < 0 || queue[1].overtaken < 0)
        lab_found(out, LAB_NOT_RUN, "%s", queue[0].note[0] ? queue[0].note : queue[1].note);
    else
        lab_found(out, LAB_SHOWN,
                  "one waiter, with a pause of 50 ms between tries, asked %llu times during %lld "
                  "ms and obtained the lock %.1f ms after "
                  "the release; dibs asked %llu time and obtained it after %.1f ms",
                  (unsigned long long)queue[0].tries, (long long)queue[0].held_us / 1000,
                  (double)queue[0].late_us / 1e3, (unsigned long long)queue[1].tries,
                  (double)queue[1].late_us / 1e3);
}

/* ---- Order ----------------------------------------------------------------------------------- */

static void order_words(const lab_queue *queue, char out[64])
{
    size_t n = 0;

    out[0] = '\0';
    for (int i = 0; i < queue->waiters && n < 60; i++)
        n += (size_t)snprintf(out + n, 64 - n, "%s%d", i ? " " : "", queue->order[i]);
}

static void order(const lab_site *site, lab_server server, lab_finding *out)
{
    lab_rows *rows = lab_rows_new("scheme\tarrived\tserved\tovertaken\ttries");
    const lab_strategy *s[] = {lab_twin("insert-lock", server), lab_twin("dibs", server)};
    lab_queue queue[2];
    char name[64], served[64];

    for (int i = 0; i < 2; i++) {
        lab_queue_up(s[i], site, fresh_name(name), WAITERS, 0, &queue[i]);
        order_words(&queue[i], served);
        lab_rows_add(rows, "%s\t1 to %d\t%s\t%d\t%llu", s[i]->name, WAITERS, served,
                     queue[i].overtaken, (unsigned long long)queue[i].tries);
    }
    out->table = lab_rows_end(rows);
    if (queue[0].overtaken < 0 || queue[1].overtaken < 0)
        lab_found(out, LAB_NOT_RUN, "%s", queue[0].note[0] ? queue[0].note : queue[1].note);
    else
        lab_found(out, queue[1].overtaken ? LAB_BROKE : LAB_SHOWN,
                  "of %d waiters %d were overtaken by one that came later; in dibs' queue %d",
                  WAITERS, queue[0].overtaken, queue[1].overtaken);
}

LAB_ON_BOTH(lab_insert_again, "D7", "insert-lock-again", "a lock row: its holder asks again",
            again);
LAB_ON_BOTH(lab_insert_polls, "D7", "insert-lock-polls",
            "a lock row: clients poll instead of waiting", polls);
LAB_ON_BOTH(lab_insert_order, "D7", "insert-lock-order",
            "a lock row: order of arrival and of service", order);
