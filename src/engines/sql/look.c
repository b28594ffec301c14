/* Listing: all locks with a prefix, and their holders, as of one moment.
 *
 * Both lists are sorted by name, so that they are put together in one pass. */
#include "engines/sql/inner.h"

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

static dibs_status look(dibs__sql *e, dibs__sql_seat *seat, dibs__sql_job *job, dibs_error *err)
{
    listing *l = job->ctx;
    dibs__sql_batch *b = &seat->batch;

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
    return dibs__sql_seat_exchange(e, seat, job->until, err);
}

static dibs_status look_again(dibs__sql *e, dibs__sql_seat *seat, dibs__sql_job *job,
                              dibs_error *err)
{
    for (int tries = 0;; tries++) {
        dibs_status status = dibs__sql_seat_ready(e, seat, job->until, err);
        if (status == DIBS_OK)
            status = look(e, seat, job, err);
        if (status == DIBS_UNKNOWN)
            status = DIBS_UNAVAILABLE;
        if (status == DIBS_OK || !seat->again || tries == 2)
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
