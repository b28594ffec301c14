/* A batch of commands on one connection: first those that one statement can do, in one exchange;
 * then the rest in the general way, in two.
 *
 * It fails in three ways. Worth doing again at once (deadlock, serialization): done again. Surely
 * not done, on a connection that still works: one command may have spoilt it for all (a row that
 * somebody keeps locked), so each is tried alone. No connection, or no answer: all are told so. */
#include "engines/sql/inner.h"

#include "core/error.h"

#include <stdlib.h>
#include <string.h>

#define MOST_TRIES 6

/* ---- Seats ----------------------------------------------------------------------------------- */

static void close_seat(dibs__sql *e, dibs__sql_seat *seat)
{
    e->driver->disconnect(seat->conn);
    seat->conn = NULL;
}

void dibs__sql_seat_give_up(dibs__sql *e, dibs__sql_seat *seat)
{
    dibs__sql_stray_add(e, seat);
    close_seat(e, seat);
}

dibs_status dibs__sql_seat_ready(dibs__sql *e, dibs__sql_seat *seat, dibs__deadline until,
                                 dibs_error *err)
{
    if (seat->conn && !e->driver->usable(seat->conn))
        close_seat(e, seat);
    if (seat->conn)
        return DIBS_OK;
    if (!dibs__sql_stray_reserve(seat))
        return dibs__fail(err, DIBS_NO_MEMORY, "%s: out of memory", e->driver->name);
    return e->driver->connect(e, until, &seat->conn, err);
}

/* What belongs to an open transaction was begun before the stray was given up. */
static bool begins(const dibs__sql_batch *b)
{
    return b->mode != DIBS__SQL_MORE && b->mode != DIBS__SQL_END;
}

static dibs_status send_batch(dibs__sql *e, dibs__sql_seat *seat, dibs__deadline until,
                              dibs_error *err)
{
    dibs_status status =
        begins(&seat->batch) ? dibs__sql_strays_end(e, seat, until, err) : DIBS_OK;

    if (status != DIBS_OK)
        seat->conn->again = seat->conn->broken;
    else
        status = e->driver->exchange(seat->conn, &seat->batch, until, err);
    return status;
}

dibs_status dibs__sql_seat_exchange(dibs__sql *e, dibs__sql_seat *seat, dibs__deadline until,
                                    dibs_error *err)
{
    dibs_status status;

    seat->again = false;
    seat->conn->again = false;
    if (seat->batch.failed) {
        e->driver->rollback(seat->conn, until);
        status = dibs__fail(err, DIBS_NO_MEMORY, "%s: out of memory", e->driver->name);
    } else {
        status = send_batch(e, seat, until, err);
        seat->again = status != DIBS_OK && status != DIBS_UNKNOWN && seat->conn->again;
    }
    if (seat->conn->broken)
        dibs__sql_seat_give_up(e, seat);
    return status;
}

/* ---- Tries ----------------------------------------------------------------------------------- */

size_t dibs__sql_run_group(const dibs__sql_run *r, size_t at)
{
    size_t n = 1;

    while (at + n < r->count && strcmp(r->task[at + n]->name, r->task[at]->name) == 0)
        n++;
    return n;
}

static dibs_status try_until_done(dibs__sql_run *r, dibs_status (*way)(dibs__sql_run *))
{
    for (int tries = 1;; tries++) {
        dibs_status status = dibs__sql_seat_ready(r->e, r->seat, r->until, r->err);
        if (status == DIBS_OK)
            status = way(r);
        else
            r->seat->again = false;
        if (status == DIBS_OK || !r->seat->again || tries == MOST_TRIES ||
            dibs__now(r->e->base.env) >= r->until)
            return status;
    }
}

static void forget_done(dibs__sql_run *r)
{
    size_t left = 0;

    for (size_t i = 0; i < r->count; i++)
        if (!r->task[i]->done)
            r->task[left++] = r->task[i];
    r->count = left;
}

static dibs_status do_both_ways(dibs__sql_run *r)
{
    dibs_status status = try_until_done(r, dibs__sql_fast);

    forget_done(r);
    if (status == DIBS_OK && r->count > 0)
        status = try_until_done(r, dibs__sql_general);
    forget_done(r);
    return status;
}

static void do_each_alone(dibs__sql_run *all)
{
    for (size_t i = 0; i < all->count; i++) {
        dibs__sql_task *task = all->task[i];
        dibs__sql_run one = *all;
        one.task = &task;
        one.count = 1;
        task->status = do_both_ways(&one);
    }
}

/* ---- In order -------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const dibs__sql_task *x = *(dibs__sql_task *const *)a, *y = *(dibs__sql_task *const *)b;
    int order = strcmp(x->name, y->name);

    if (order == 0)
        order = x->order < y->order ? -1 : x->order > y->order;
    return order;
}

void dibs__sql_run_all(dibs__sql *e, dibs__sql_seat *seat, dibs__sql_task *tasks[], size_t count,
                       dibs__deadline until, dibs_error *err)
{
    dibs__sql_run r = {
        .e = e, .seat = seat, .task = tasks, .count = count, .until = until, .err = err};
    dibs_status status;

    for (size_t i = 0; i < count; i++) {
        tasks[i]->order = i;
        tasks[i]->done = false;
        tasks[i]->status = DIBS_OK;
    }
    if (count > 1)
        qsort(tasks, count, sizeof tasks[0], by_name);
    status = do_both_ways(&r);
    if (status != DIBS_OK && status != DIBS_UNKNOWN && seat->conn && count > 1) {
        do_each_alone(&r);
        return;
    }
    for (size_t i = 0; i < r.count; i++)
        r.task[i]->status = status;
}
