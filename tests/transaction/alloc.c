/* The n-th allocation fails, ours or the client library's, for every n: a status each time, no
 * leak, and the transaction either goes on or is told to be gone. */
#include "suite.h"

#include "support/alloc.h"

#include <stdio.h>
#include <string.h>

#define KINDS 5

/* What must be there before the call is made. */
static void set_scene(session *s, int kind)
{
    dibs_error err = {0};

    session_say(s, "DELETE FROM dibs_once");
    if (kind != 2)
        return;
    session_begin(s, "READ COMMITTED");
    must_be(dibs_sql_once(s->db, "k", NULL, NULL, &err), DIBS_OK, &err);
    must_be(dibs_sql_once_finish(s->db, "k", "result", 6, NULL, &err), DIBS_OK, &err);
    session_commit(s);
}

static dibs_status call(session *s, int kind, dibs_error *err)
{
    dibs_sql_value v[] = {dibs_sql_integer(-1)};
    dibs_sql_change change = {.table = "stock",
                              .set = "left_over = 0",
                              .row = "item = 1",
                              .still = "left_over = ?",
                              .values = v,
                              .value_count = 1};
    dibs_value stored = {0};
    dibs_status status;

    switch (kind) {
    case 0:
        return dibs_sql_fence_pass(s->db, "alloc", 5, 0, err);
    case 1:
        return dibs_sql_lock(s->db, "alloc", 1000, err);
    case 2:
        status = dibs_sql_once(s->db, "k", NULL, &stored, err);
        must(status != DIBS_ALREADY || (stored.size == 6 && memcmp(stored.data, "result", 6) == 0));
        dibs_value_free(&stored);
        return status;
    case 3:
        return dibs_sql_once(s->db, "k", NULL, NULL, err);
    default:
        return dibs_sql_update(s->db, &change, err);
    }
}

/* One failure at `n`; false when the call never came that far. */
static bool fail_nth(int kind, long n, bool for_ever, int *refused)
{
    static const dibs_status expected[KINDS] = {DIBS_OK, DIBS_OK, DIBS_ALREADY, DIBS_OK,
                                                DIBS_CONFLICT};
    dibs_error err = {0};
    dibs_status status;
    bool struck;
    session s;

    session_open(&s);
    set_scene(&s, kind);
    session_begin(&s, "READ COMMITTED");
    alloc_fail(n, for_ever);
    status = call(&s, kind, &err);
    struck = alloc_heal();
    if (status != expected[kind]) {
        must(struck && err.message[0] != '\0');
        must(status == DIBS_NO_MEMORY || status == DIBS_UNAVAILABLE ||
             status == DIBS_ENGINE_FAILED);
        ++*refused;
    } else if (status == DIBS_OK) {
        session_commit(&s); /* whatever failed inside was made good */
    }
    session_close(&s);
    return struck;
}

static void sweep(const char *level)
{
    int runs = 0, refused = 0;
    session s;

    (void)level;
    if (alloc_balances && !is_sqlite())
        skip();
    session_open(&s);
    start_over(&s);
    for (int kind = 0; kind < KINDS; kind++)
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            long before;
            fail_nth(kind, 1, for_ever, &refused); /* what libraries keep is made now */
            before = alloc_live();
            for (long n = 1; fail_nth(kind, n, for_ever, &refused); n += 1 + n / 60)
                runs++;
            must(!alloc_balances || alloc_live() == before);
        }
    printf("# %d allocations failed, %d calls were refused\n", runs, refused);
    must(runs > 0 && refused > 0);
    session_close(&s);
}

const sql_test sql_alloc[] = {
    {"every allocation fails once", sweep, true, ALL},
    {0},
};
