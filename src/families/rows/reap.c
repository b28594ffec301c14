/* Dropping what nobody has used for a day: then the clock is past every fence that was ever given
 * out for the name, and a new row begins above them. A few hundred rows at a time, along with
 * other work.
 *
 * Locks that were used often and are idle now leave the index of the listing here, too.
 *
 * Holders and waiters whose processes are gone are not idle: their locks are settled first, and
 * dropped the next time around. */
#include "families/rows/inner.h"

#include <stdio.h>
#include <string.h>

#define ROWS   256 /* looked at in one exchange */
#define CHUNKS 4   /* in one go */
#define STALE  32
#define SPAN   (200 * DIBS__MS)

typedef struct reaping {
    const dibs__sql_batch *batch;
    char last[DIBS_NAME_MAX + 1]; /* the last one looked at; "": no more */
    char stale[STALE][DIBS_NAME_MAX + 1];
    size_t stale_count;
} reaping;

static int on_row(void *ctx, size_t command, const dibs__sql_value *cells, size_t count)
{
    reaping *r = ctx;

    (void)count;
    if (r->batch->command[command].op == DIBS__SQL_REAP)
        dibs__sql_read_text(&cells[0], r->last, sizeof r->last);
    else if (r->stale_count < STALE)
        dibs__sql_read_text(&cells[0], r->stale[r->stale_count++], sizeof r->stale[0]);
    return 0;
}

static dibs_status reap_rows(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job,
                             dibs_error *err)
{
    reaping *r = job->ctx;
    dibs__sql_batch *b = &conn_slot->batch;
    char after[DIBS_NAME_MAX + 1];
    dibs_status status = dibs__conn_slot_ready(e, conn_slot, job->until, err);

    if (status != DIBS_OK)
        return status;
    memcpy(after, r->last, sizeof after);
    r->last[0] = '\0';
    r->stale_count = 0;
    r->batch = b;
    dibs__sql_batch_reset(b, DIBS__SQL_WHOLE);
    dibs__sql_add(b, DIBS__SQL_STALE);
    dibs__sql_text(b, after);
    dibs__sql_number(b, STALE);
    dibs__sql_add(b, DIBS__SQL_REAP);
    dibs__sql_text(b, after);
    dibs__sql_number(b, ROWS);
    dibs__sql_add(b, DIBS__SQL_UNLIST);
    dibs__sql_number(b, ROWS);
    b->durable = false;
    b->row = on_row;
    b->ctx = r;
    return dibs__conn_slot_exchange(e, conn_slot, job->until, err);
}

static void settle_stale(dibs__sql *e, const reaping *r, dibs__deadline until)
{
    for (size_t i = 0; i < r->stale_count; i++) {
        dibs_error err;
        dibs__sql_task task = {
            .what = DIBS__SQL_SETTLE, .name = r->stale[i], .owner = "", .attempt = ""};
        dibs__sql_job job = {
            .task = &task, .maintenance = true, .count = 1, .until = until, .err = &err};
        dibs__sql_do(e, &job);
    }
}

/* What fails is left for the next time. */
void dibs__sql_reap(dibs__sql *e)
{
    int64_t now = dibs__now(e->base.env), due = atomic_load(&e->reap_at);
    dibs__deadline until = now + SPAN;
    reaping r = {0};
    dibs_error err;

    if (now < due ||
        !atomic_compare_exchange_strong(&e->reap_at, &due, now + DIBS__SQL_REAP_INTERVAL))
        return;
    for (int i = 0; i < CHUNKS && dibs__now(e->base.env) < until; i++) {
        dibs__sql_job job = {
            .call = reap_rows, .maintenance = true, .ctx = &r, .until = until, .err = &err};
        memcpy(r.last, e->reaped, sizeof r.last);
        dibs__sql_do(e, &job);
        if (job.status != DIBS_OK)
            return;
        memcpy(e->reaped, r.last, sizeof e->reaped);
        settle_stale(e, &r, until);
        if (!r.last[0])
            return;
    }
}
