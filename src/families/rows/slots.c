/* The slots of the engine table, and what is shared in opening and closing. */
#define _GNU_SOURCE
#include "families/rows/inner.h"

#include "core/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Opening and closing --------------------------------------------------------------------- */

static void plan_reaping(dibs__sql *e)
{
    uint8_t dice;

    /* One handle in sixteen begins with it, so that it happens where all handles are short-lived. */
    e->base.env->random(e->base.env->ctx, &dice, sizeof dice);
    atomic_store(&e->reap_at,
                 dibs__after(e->base.env, dice % 16 == 0 ? 0 : DIBS__SQL_REAP_INTERVAL));
}

dibs_status dibs__sql_open(dibs__sql *e, const dibs__sql_driver *driver,
                           const dibs__open_request *request, size_t connections, dibs_error *err)
{
    dibs__conn_slot *conn_slot = &e->conn_slot[1];
    dibs_status status;

    e->base.env = request->env;
    e->base.sink = request->sink;
    e->driver = driver;
    e->request_span = request->request_span;
    e->last = &e->first;
    e->conn_slots = connections;
    e->luck = 1;
    snprintf(e->id, sizeof e->id, "%s", request->handle_id);
    pthread_mutex_init(&e->mutex, NULL);
    pthread_mutex_init(&e->stray_mutex, NULL);
    dibs__sql_line_init(&e->line);
    plan_reaping(e);
    status = dibs__conn_slot_ready(e, conn_slot, request->until, err);
    if (status == DIBS_OK)
        status = driver->prepare(conn_slot->conn, request->until, err);
    conn_slot->connected = status == DIBS_OK;
    if (status != DIBS_OK)
        dibs__sql_close(e);
    return status;
}

void dibs__sql_close(dibs__sql *e)
{
    for (size_t i = 0; i < DIBS__SQL_CONNECTIONS; i++) {
        if (e->conn_slot[i].conn)
            e->driver->disconnect(e->conn_slot[i].conn);
        e->conn_slot[i].conn = NULL;
        dibs__sql_batch_fini(&e->conn_slot[i].batch);
    }
    dibs__sql_stray_fini(e);
    dibs__sql_line_fini(&e->line);
    pthread_mutex_destroy(&e->mutex);
    pthread_mutex_destroy(&e->stray_mutex);
}

void dibs__sql_abandon(dibs__sql *e)
{
    for (size_t i = 0; i < DIBS__SQL_CONNECTIONS; i++)
        if (e->conn_slot[i].conn)
            e->driver->abandon(e->conn_slot[i].conn);
}

/* ---- Commands -------------------------------------------------------------------------------- */

static dibs_status do_one(dibs__sql *e, dibs__sql_task *task, dibs__deadline until,
                          dibs__reply *out, dibs_error *err)
{
    dibs_error unused;
    dibs__sql_job job = {.task = task, .count = 1, .until = until, .err = err ? err : &unused};

    dibs__sql_do(e, &job);
    if (task->status == DIBS_OK && out)
        *out = task->reply;
    return task->status;
}

dibs_status dibs__sql_enter(dibs__engine *base, const dibs__enter_request *request,
                            dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    dibs__sql *e = (dibs__sql *)base;
    dibs__asker who = request->who;
    dibs__sql_task task = {.what = DIBS__SQL_ENTER,
                           .name = request->name,
                           .owner = who.owner,
                           .attempt = who.attempt,
                           .who = &who,
                           .capacity = request->capacity,
                           .window = request->window};

    memcpy(who.wake, e->id, sizeof who.wake);
    if (do_one(e, &task, until, out, err) != DIBS_UNKNOWN &&
        (task.status != DIBS_OK || task.reply.verdict != DIBS__QUEUED))
        dibs__sql_line_drop(e, task.attempt);
    return task.status;
}

dibs_status dibs__sql_release(dibs__engine *base, const dibs__claim *claim, dibs__deadline until,
                              dibs__reply *out, dibs_error *err)
{
    dibs__sql_task task = {.what = DIBS__SQL_RELEASE,
                           .name = claim->name,
                           .owner = claim->owner,
                           .attempt = claim->attempt,
                           .fence = claim->fence};
    dibs_status status = do_one((dibs__sql *)base, &task, until, out, err);

    dibs__sql_line_drop((dibs__sql *)base, task.attempt);
    dibs__sql_reap((dibs__sql *)base);
    return status;
}

dibs_status dibs__sql_cancel(dibs__engine *base, const dibs__claim *claim, dibs__deadline until,
                             dibs_error *err)
{
    dibs__sql_task task = {.what = DIBS__SQL_CANCEL,
                           .name = claim->name,
                           .owner = claim->owner,
                           .attempt = claim->attempt};

    dibs__sql_line_drop((dibs__sql *)base, task.attempt);
    return do_one((dibs__sql *)base, &task, until, NULL, err);
}

dibs_status dibs__sql_break(dibs__engine *base, const char *name, const char *by, bool at_once,
                            dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    dibs__sql_task task = {.what = DIBS__SQL_BREAK,
                           .name = name,
                           .owner = "",
                           .attempt = "",
                           .by = by,
                           .at_once = at_once};

    return do_one((dibs__sql *)base, &task, until, out, err);
}

dibs_status dibs__sql_inspect(dibs__engine *base, const char *name, dibs__deadline until,
                              dibs__report_builder *out, dibs_error *err)
{
    dibs__sql_task task = {
        .what = DIBS__SQL_SETTLE, .name = name, .owner = "", .attempt = "", .report = out};

    return do_one((dibs__sql *)base, &task, until, NULL, err);
}

/* ---- keep-alives --------------------------------------------------------------------------- */

/* Not in the queue any more. */
static void note_left(dibs__sql *e, const dibs__sql_task *t)
{
    if (t->fence || t->status != DIBS_OK || t->reply.verdict == DIBS__QUEUED)
        return;
    if (dibs__sql_line_drop(e, t->attempt) && t->was_handed && e->driver->missed)
        e->driver->missed(e);
}

void dibs__sql_keep(dibs__engine *base, dibs__claim *const claims[], size_t count,
                    dibs__deadline until)
{
    dibs__sql *e = (dibs__sql *)base;
    dibs_error err = {0};
    dibs__sql_task *task = calloc(count, sizeof *task);
    dibs__sql_job job = {
        .task = task, .count = count, .keep_alives = true, .until = until, .err = &err};

    for (size_t i = 0; i < count && !task; i++)
        claims[i]->status = DIBS_NO_MEMORY;
    if (!task)
        return;
    for (size_t i = 0; i < count; i++) {
        task[i] = (dibs__sql_task){.what = DIBS__SQL_KEEP,
                                   .name = claims[i]->name,
                                   .owner = claims[i]->owner,
                                   .attempt = claims[i]->attempt,
                                   .fence = claims[i]->fence,
                                   .lease = claims[i]->lease};
    }
    dibs__sql_do(e, &job);
    for (size_t i = 0; i < count; i++) {
        claims[i]->status = task[i].status;
        claims[i]->reply = task[i].reply;
        note_left(e, &task[i]);
    }
    if (err.message[0])
        e->base.sink->log(e->base.sink, DIBS_LOG_WARNING, "signs of life: %s", err.message);
    free(task);
    dibs__sql_reap(e);
}
