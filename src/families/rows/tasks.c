/* A batch of commands on one connection: first those that one statement can do, in one exchange;
 * then the rest in the general way, in two.
 *
 * It fails in four ways. Worth doing again at once (deadlock, serialization): done again. Another session
 * keeps a row locked: the server says which, its commands are left out, the others go on without them.
 * Surely not done for another reason, on a connection that still works: one command may have spoilt it for
 * all, so each is tried alone. No connection, or no answer: all are told so.
 *
 * A row that is locked is waited for only by those who have it to themselves. When it was locked the last time,
 * one try in four waits, on one connection at a time: who only asks whether it is free never gets a row that many
 * queue for, and who always waits keeps the connections from all others as long as a row is stuck. */
#include "families/rows/inner.h"

#include "core/error.h"

#include <stdlib.h>
#include <string.h>

#define MOST_TRIES 6
#define WAITS      4 /* one try in so many waits for a row that was locked the last time */
#define WHILE      (100 * DIBS__MS) /* so long */

/* ---- Connections ----------------------------------------------------------------------------- */

static void close_conn_slot(dibs__sql *e, dibs__conn_slot *conn_slot)
{
    e->driver->disconnect(conn_slot->conn);
    conn_slot->conn = NULL;
}

void dibs__conn_slot_give_up(dibs__sql *e, dibs__conn_slot *conn_slot)
{
    dibs__sql_stray_add(e, conn_slot);
    close_conn_slot(e, conn_slot);
}

void dibs__conn_slot_rollback(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__deadline until)
{
    e->driver->rollback(conn_slot->conn, until);
    if (conn_slot->conn
            ->broken) /* its answer may still come: nothing else is asked there any more */
        dibs__conn_slot_give_up(e, conn_slot);
}

dibs_status dibs__conn_slot_ready(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__deadline until,
                                  dibs_error *err)
{
    if (conn_slot->conn && !e->driver->usable(conn_slot->conn))
        close_conn_slot(e, conn_slot);
    if (conn_slot->conn)
        return DIBS_OK;
    if (!dibs__sql_stray_reserve(conn_slot))
        return dibs__fail(err, DIBS_NO_MEMORY, "%s: out of memory", e->driver->name);
    return e->driver->connect(e, until, &conn_slot->conn, err);
}

void dibs__conn_slot_waits(dibs__sql *e, dibs__conn_slot *conn_slot, uint64_t hash)
{
    bool stuck = dibs__sql_hint(e, hash) & DIBS__SQL_STUCK;

    conn_slot->queues =
        stuck && atomic_fetch_add(&e->turns, 1) % WAITS == 0 && !atomic_exchange(&e->queues, true);
    conn_slot->hasty = stuck && !conn_slot->queues;
    conn_slot->patience = stuck ? WHILE : 0;
}

void dibs__conn_slot_waited(dibs__sql *e, dibs__conn_slot *conn_slot)
{
    if (conn_slot->queues)
        atomic_store(&e->queues, false);
    conn_slot->queues = conn_slot->hasty = false;
    conn_slot->patience = 0;
}

/* There must be time left for the rest. Halves, so that a session need not be told another time again and
 * again. */
static int64_t row_wait(const dibs__sql *e, const dibs__conn_slot *conn_slot, dibs__deadline until)
{
    int64_t left = until - dibs__now(e->base.env);
    int64_t wait = conn_slot->patience ? conn_slot->patience : e->driver->row_wait;

    while (wait > 0 && wait > left / 2)
        wait /= 2;
    return conn_slot->hasty ? 0 : wait;
}

/* What belongs to an open transaction was begun before the stray was given up. */
static bool begins(const dibs__sql_batch *b)
{
    return b->mode != DIBS__SQL_MORE && b->mode != DIBS__SQL_END;
}

static dibs_status send_batch(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__deadline until,
                              dibs_error *err)
{
    dibs_status status =
        begins(&conn_slot->batch) ? dibs__sql_strays_end(e, conn_slot, until, err) : DIBS_OK;

    if (begins(&conn_slot->batch))
        conn_slot->conn->row_wait = row_wait(e, conn_slot, until);
    if (status != DIBS_OK)
        conn_slot->conn->again = conn_slot->conn->broken;
    else
        status = e->driver->exchange(conn_slot->conn, &conn_slot->batch, until, err);
    return status;
}

dibs_status dibs__conn_slot_exchange(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__deadline until,
                                     dibs_error *err)
{
    dibs_status status;

    conn_slot->again = conn_slot->locked = false;
    conn_slot->conn->again = conn_slot->conn->locked = false;
    conn_slot->conn->culprit = SIZE_MAX;
    if (conn_slot->batch.failed) {
        e->driver->rollback(conn_slot->conn, until);
        status = dibs__fail(err, DIBS_NO_MEMORY, "%s: out of memory", e->driver->name);
    } else {
        status = send_batch(e, conn_slot, until, err);
        conn_slot->again = status != DIBS_OK && status != DIBS_UNKNOWN && conn_slot->conn->again;
        conn_slot->locked = status != DIBS_OK && status != DIBS_UNKNOWN && conn_slot->conn->locked;
        conn_slot->culprit = conn_slot->conn->culprit;
    }
    if (conn_slot->conn->broken)
        dibs__conn_slot_give_up(e, conn_slot);
    return status;
}

/* ---- Tries ----------------------------------------------------------------------------------- */

size_t dibs__sql_tasks_group(const dibs__sql_tasks *ts, size_t at)
{
    size_t n = 1;

    while (at + n < ts->count && strcmp(ts->task[at + n]->name, ts->task[at]->name) == 0)
        n++;
    return n;
}

static dibs_status try_until_done(dibs__sql_tasks *ts, dibs_status (*way)(dibs__sql_tasks *))
{
    for (int tries = 1;; tries++) {
        dibs_status status = dibs__conn_slot_ready(ts->e, ts->conn_slot, ts->until, ts->err);
        if (status == DIBS_OK)
            status = way(ts);
        else
            ts->conn_slot->again = false;
        if (status == DIBS_OK || !ts->conn_slot->again || tries == MOST_TRIES ||
            dibs__now(ts->e->base.env) >= ts->until)
            return status;
    }
}

static void forget_done(dibs__sql_tasks *ts)
{
    size_t left = 0;

    for (size_t i = 0; i < ts->count; i++)
        if (!ts->task[i]->done)
            ts->task[left++] = ts->task[i];
    ts->count = left;
}

void dibs__sql_tasks_mark_locked(dibs__sql_tasks *ts, size_t first, size_t count)
{
    for (size_t i = first; i < first + count; i++)
        ts->task[i]->locked = true;
}

/* Those whose rows are locked are left out; all, if the server does not say which. */
static void skip_locked(dibs__sql_tasks *ts)
{
    size_t left = 0;
    bool known = false;

    for (size_t i = 0; i < ts->count; i++)
        known |= ts->task[i]->locked;
    for (size_t i = 0; i < ts->count; i++) {
        dibs__sql_task *t = ts->task[i];
        if (known && !t->locked) {
            ts->task[left++] = t;
            continue;
        }
        t->locked = true;
        t->status = DIBS_UNAVAILABLE;
        if (!ts->company)
            dibs__sql_hint_stuck(ts->e, t->hash, true);
    }
    ts->count = left;
}

static dibs_status do_both_ways(dibs__sql_tasks *ts)
{
    for (;;) {
        dibs_status status = try_until_done(ts, dibs__sql_fast);

        forget_done(ts);
        if (status == DIBS_OK && ts->count > 0)
            status = try_until_done(ts, dibs__sql_general);
        forget_done(ts);
        if (status == DIBS_OK || !ts->conn_slot->locked)
            return status;
        skip_locked(ts);
        if (ts->count == 0)
            return DIBS_OK;
    }
}

static void do_each_alone(dibs__sql_tasks *all)
{
    for (size_t i = 0; i < all->count; i++) {
        dibs__sql_task *task = all->task[i];
        dibs__sql_tasks one = *all;
        one.task = &task;
        one.count = 1;
        dibs_status status = do_both_ways(&one);
        if (!task->locked)
            task->status = status;
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

void dibs__sql_tasks_do(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_task *tasks[],
                        size_t count, dibs__deadline until, dibs_error *err)
{
    dibs__sql_tasks ts = {
        .e = e, .conn_slot = conn_slot, .task = tasks, .count = count, .until = until, .err = err};
    bool hasty = conn_slot->hasty, waits = conn_slot->patience > 0;
    dibs_status status;

    for (size_t i = 0; i < count; i++) {
        tasks[i]->order = i;
        tasks[i]->done = tasks[i]->locked = false;
        tasks[i]->status = DIBS_OK;
    }
    if (count > 1)
        qsort(tasks, count, sizeof tasks[0], by_name);
    ts.company = hasty || dibs__sql_tasks_group(&ts, 0) < count;
    if (ts.company)
        conn_slot->hasty = true;
    else if (!waits)
        dibs__conn_slot_waits(e, conn_slot, tasks[0]->hash);
    status = do_both_ways(&ts);
    if (!ts.company && !waits)
        dibs__conn_slot_waited(e, conn_slot);
    conn_slot->hasty = hasty;
    if (status != DIBS_OK && status != DIBS_UNKNOWN && conn_slot->conn && count > 1) {
        do_each_alone(&ts);
        return;
    }
    for (size_t i = 0; i < ts.count; i++)
        ts.task[i]->status = status;
}
