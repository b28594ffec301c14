/* What is done with cells beside commands: noting that somebody waits for one, and dropping what has
 * ended. */
#include "families/rows/inner.h"

/* ---- Waiting --------------------------------------------------------------------------------- */

typedef struct marking {
    const char *key;
    uint64_t version;
    bool same;
} marking;

static int on_mark(void *ctx, size_t command, const dibs__sql_value *cells, size_t count)
{
    (void)command, (void)cells, (void)count;
    ((marking *)ctx)->same = true;
    return 0;
}

static dibs_status mark(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job,
                        dibs_error *err)
{
    marking *m = job->ctx;
    dibs__sql_batch *b = &conn_slot->batch;
    dibs_status status = dibs__conn_slot_ready(e, conn_slot, job->until, err);

    if (status == DIBS_OK)
        status = dibs__sql_cells_ready(e, conn_slot, true, job->until, err);
    if (status != DIBS_OK)
        return status;
    dibs__sql_batch_reset(b, DIBS__SQL_WHOLE);
    dibs__sql_add(b, DIBS__SQL_CELL_WAIT);
    dibs__sql_text(b, m->key);
    dibs__sql_number(b, (int64_t)m->version);
    b->durable = false;
    b->row = on_mark;
    b->ctx = m;
    status = dibs__conn_slot_exchange(e, conn_slot, job->until, err);
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

dibs_status dibs__sql_cell_mark(dibs__sql *e, const char *key, uint64_t version,
                                dibs__deadline until, bool *same, dibs_error *err)
{
    marking m = {.key = key, .version = version};
    dibs__sql_job job = {.call = mark, .ctx = &m, .until = until, .err = err};

    dibs__sql_do(e, &job);
    *same = m.same;
    return job.status;
}

/* ---- Dropping what has ended ----------------------------------------------------------------- */

typedef struct reaping {
    size_t limit;
    bool more;
} reaping;

static int on_count(void *ctx, size_t command, const dibs__sql_value *cells, size_t count)
{
    reaping *r = ctx;

    (void)command, (void)count;
    r->more |= cells[0].number >= (int64_t)r->limit;
    return 0;
}

static dibs_status reap(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job,
                        dibs_error *err)
{
    reaping *r = job->ctx;
    dibs__sql_batch *b = &conn_slot->batch;
    dibs_status status = dibs__conn_slot_ready(e, conn_slot, job->until, err);

    if (status != DIBS_OK)
        return status;
    dibs__sql_batch_reset(b, DIBS__SQL_WHOLE);
    dibs__sql_add(b, DIBS__SQL_CELL_REAP);
    dibs__sql_number(b, (int64_t)r->limit);
    dibs__sql_add(b, DIBS__SQL_REQUEST_REAP);
    dibs__sql_number(b, (int64_t)r->limit);
    b->durable = false;
    b->row = on_count;
    b->ctx = r;
    return dibs__conn_slot_exchange(e, conn_slot, job->until, err);
}

/* Nothing to do for a handle that has never asked for a cell: there may not even be tables. */
bool dibs__sql_cell_reap(dibs__engine *base, size_t limit, dibs__deadline until)
{
    dibs__sql *e = (dibs__sql *)base;
    reaping r = {.limit = limit};
    dibs_error err;
    dibs__sql_job job = {.call = reap, .maintenance = true, .ctx = &r, .until = until, .err = &err};

    if (!atomic_load(&e->cells))
        return false;
    dibs__sql_do(e, &job);
    return job.status == DIBS_OK && r.more;
}
