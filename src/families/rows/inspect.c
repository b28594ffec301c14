/* Listing: all locks with a prefix, and their holders, as of one moment; and cells, a page at a time.
 *
 * Locks and holders are sorted by name, so that they are put together in one pass. */
#include "families/rows/inner.h"

#include "core/error.h"
#include "core/report.h"

#include <stdlib.h>
#include <string.h>

typedef struct lock_row {
    char name[DIBS_NAME_MAX + 1];
    dibs__record record;
    bool held;
    dibs__holder holder;
} lock_row;

typedef struct holder_row {
    char name[DIBS_NAME_MAX + 1];
    dibs__holder holder;
} holder_row;

typedef struct listing {
    const char *prefix;
    bool idle;
    dibs__report_builder *out;
    const dibs__sql_batch *batch;
    int64_t clock;
    lock_row *lock;
    size_t locks, lock_room;
    holder_row *holder;
    size_t holders, holder_room;
} listing;

static int add_lock(listing *l, const dibs__sql_value *cells)
{
    lock_row *larger = dibs__sql_grown(l->lock, l->locks, &l->lock_room, sizeof *l->lock);
    const dibs__sql_value *held = cells + 1 + DIBS__SQL_RECORD_COLUMNS;
    uint64_t first_place;
    lock_row *row;

    if (!larger)
        return -1;
    l->lock = larger;
    row = &l->lock[l->locks++];
    memset(row, 0, sizeof *row);
    dibs__sql_read_text(&cells[0], row->name, sizeof row->name);
    dibs__sql_read_record(cells + 1, &row->record, &first_place);
    row->held = held[DIBS__SQL_WHO_COLUMNS].kind == DIBS__SQL_NUMBER;
    if (row->held)
        dibs__sql_read_holder(held, &row->holder);
    return 0;
}

static int add_holder(listing *l, const dibs__sql_value *cells)
{
    holder_row *larger = dibs__sql_grown(l->holder, l->holders, &l->holder_room, sizeof *l->holder);

    if (!larger)
        return -1;
    l->holder = larger;
    dibs__sql_read_text(&cells[0], l->holder[l->holders].name, sizeof l->holder->name);
    dibs__sql_read_holder(cells + 1, &l->holder[l->holders++].holder);
    return 0;
}

static int on_row(void *ctx, size_t command, const dibs__sql_value *cells, size_t count)
{
    listing *l = ctx;

    (void)count;
    switch (l->batch->command[command].op) {
    case DIBS__SQL_CLOCK:
        l->clock = cells[0].number;
        return 0;
    case DIBS__SQL_LIST_LOCKS:
    case DIBS__SQL_LIST_BUSY:
        return add_lock(l, cells);
    default:
        return add_holder(l, cells);
    }
}

/* ---- The report ------------------------------------------------------------------------------ */

/* The lock as it would be if its expired holders had been dropped. Returns where the next lock's
 * holders begin. */
static size_t report_one(const listing *l, lock_row *row, size_t at)
{
    dibs__time now = {l->clock, l->clock};
    size_t first, end;

    while (at < l->holders && strcmp(l->holder[at].name, row->name) < 0)
        at++;
    first = at;
    for (end = at; end < l->holders && strcmp(l->holder[end].name, row->name) == 0; end++)
        if (l->holder[end].holder.expires <= l->clock)
            row->record.used -= l->holder[end].holder.who.weight;
    if (row->held && row->holder.expires <= l->clock) {
        row->held = false;
        row->record.used = 0;
    }
    if (!l->idle && row->record.used == 0 && row->record.waiters == 0)
        return end;
    dibs__report_lock(l->out, row->name, &row->record);
    if (row->held)
        dibs__report_holder(l->out, &row->holder, now);
    for (at = first; at < end; at++)
        if (l->holder[at].holder.expires > l->clock)
            dibs__report_holder(l->out, &l->holder[at].holder, now);
    return end;
}

static int by_lock_name(const void *a, const void *b)
{
    return strcmp(((const lock_row *)a)->name, ((const lock_row *)b)->name);
}

static dibs_status look(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job,
                        dibs_error *err)
{
    listing *l = job->ctx;
    dibs__sql_batch *b = &conn_slot->batch;

    l->batch = b;
    l->locks = l->holders = 0;
    dibs__sql_batch_reset(b, DIBS__SQL_SNAPSHOT);
    dibs__sql_add(b, DIBS__SQL_CLOCK);
    dibs__sql_add(b, l->idle ? DIBS__SQL_LIST_LOCKS : DIBS__SQL_LIST_BUSY);
    dibs__sql_text(b, l->prefix);
    dibs__sql_add(b, DIBS__SQL_LIST_HOLDERS);
    dibs__sql_text(b, l->prefix);
    b->row = on_row;
    b->ctx = l;
    return dibs__conn_slot_exchange(e, conn_slot, job->until, err);
}

static dibs_status look_again(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job,
                              dibs_error *err)
{
    for (int tries = 0;; tries++) {
        dibs_status status = dibs__conn_slot_ready(e, conn_slot, job->until, err);
        if (status == DIBS_OK)
            status = look(e, conn_slot, job, err);
        if (status == DIBS_UNKNOWN)
            status = DIBS_UNAVAILABLE;
        if (status == DIBS_OK || !conn_slot->again || tries == 2)
            return status;
    }
}

dibs_status dibs__sql_list(dibs__engine *base, const char *prefix, bool idle, dibs__deadline until,
                           dibs__report_builder *out, dibs_error *err)
{
    listing l = {.prefix = prefix, .idle = idle, .out = out};
    dibs__sql_job job = {.call = look_again, .ctx = &l, .until = until, .err = err};
    size_t at = 0;

    dibs__sql_do((dibs__sql *)base, &job);
    if (job.status == DIBS_OK) {
        if (l.locks > 1)
            qsort(l.lock, l.locks, sizeof *l.lock, by_lock_name);
        for (size_t i = 0; i < l.locks; i++)
            at = report_one(&l, &l.lock[i], at);
    }
    free(l.lock);
    free(l.holder);
    return job.status;
}

/* ---- Cells ----------------------------------------------------------------------------------- */

typedef struct cell_listing {
    const dibs__cell_range *range;
    dibs__cell_page *page;
} cell_listing;

static int on_cell(void *ctx, size_t command, const dibs__sql_value *cells, size_t count)
{
    cell_listing *l = ctx;
    dibs__time now = {cells[6].number, cells[6].number};
    dibs__cell cell = {
        .version = (uint64_t)cells[1].number,
        .written = cells[2].number,
        .expires = cells[3].number,
        .data = cells[5].kind == DIBS__SQL_BYTES && cells[5].size ? cells[5].bytes : NULL,
        .size = cells[4].kind == DIBS__SQL_NUMBER ? (size_t)cells[4].number : 0,
    };

    (void)command, (void)count;
    dibs__sql_read_text(&cells[0], l->page->reached, sizeof l->page->reached);
    dibs__cell_page_put(l->page, l->page->reached, &cell, now, false, l->range->head);
    return l->page->failed ? -1 : 0;
}

static dibs_status look_at_cells(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job,
                                 dibs_error *err)
{
    cell_listing *l = job->ctx;
    dibs__sql_batch *b = &conn_slot->batch;
    char end[DIBS__CELL_KEY_SIZE];

    dibs__cell_page_fini(l->page); /* of an earlier try */
    dibs__cell_range_end(l->range->prefix, end);
    dibs__sql_batch_reset(b, DIBS__SQL_SNAPSHOT);
    dibs__sql_add(b, DIBS__SQL_CELL_LIST);
    dibs__sql_text(b, l->range->prefix);
    dibs__sql_text(b, end);
    dibs__sql_text(b, l->range->after);
    dibs__sql_number(b, (int64_t)l->range->limit);
    dibs__sql_number(b, (int64_t)l->range->head);
    b->row = on_cell;
    b->ctx = l;
    return dibs__conn_slot_exchange(e, conn_slot, job->until, err);
}

/* No tables, and so nothing in them. */
static dibs_status look_at_cells_again(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job,
                                       dibs_error *err)
{
    for (int tries = 0;; tries++) {
        dibs_status status = dibs__conn_slot_ready(e, conn_slot, job->until, err);
        conn_slot->again = false;
        if (status == DIBS_OK)
            status = dibs__sql_cells_ready(e, conn_slot, false, job->until, err);
        if (status == DIBS_NOT_FOUND)
            return DIBS_OK;
        if (status == DIBS_OK)
            status = look_at_cells(e, conn_slot, job, err);
        if (status == DIBS_UNKNOWN)
            status = DIBS_UNAVAILABLE;
        if (status == DIBS_OK || !conn_slot->again || tries == 2)
            return status;
    }
}

dibs_status dibs__sql_cell_list(dibs__engine *base, const dibs__cell_range *range,
                                dibs__deadline until, dibs__cell_page *out, dibs_error *err)
{
    cell_listing l = {.range = range, .page = out};
    dibs__sql_job job = {.call = look_at_cells_again, .ctx = &l, .until = until, .err = err};

    dibs__sql_do((dibs__sql *)base, &job);
    out->more = out->count == range->limit;
    return job.status;
}
