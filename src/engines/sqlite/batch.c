/* Jobs in one transaction: the gate, BEGIN IMMEDIATE, the state machine for each, COMMIT, then the
 * wake-ups.
 *
 * Jobs are taken from the queue only when the transaction has begun: whoever waits for another
 * process can still give up. If anything fails, all is rolled back and every job of the batch is
 * told: nothing of it has happened. If a fence would leave above the ceiling, the batch is rolled
 * back, the ceiling is raised on the disk, and the batch is run again. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/sqlite/sqlite.h"

#include <stdlib.h>
#include <string.h>

#define SURE_FOR \
    (50 * DIBS__MS) /* between two looks whether the database is still in its place \
                     */

/* ---- One job --------------------------------------------------------------------------------- */

static int run_enter(dibs__lite *e, dibs__time now, dibs__lite_job *job)
{
    dibs__lite_session s = {.e = e, .name = job->name, .wants = job->who->weight};

    return dibs__state_acquire(&dibs__lite_store, &s, now, job->who, job->capacity, job->window,
                               &job->reply);
}

static int run_keep(dibs__lite *e, dibs__time now, dibs__lite_job *job)
{
    for (size_t i = 0; i < job->count; i++) {
        dibs__claim *c = job->claims[i];
        dibs__lite_session s = {.e = e, .name = c->name, .wants = c->fence ? 0 : UINT32_MAX};
        if (dibs__state_keep(&dibs__lite_store, &s, now, c->owner, c->attempt, c->fence, c->lease,
                             &c->reply) < 0)
            return -1;
    }
    return 0;
}

static int run_release(dibs__lite *e, dibs__time now, dibs__lite_job *job)
{
    const dibs__claim *c = job->claim;
    dibs__lite_session s = {.e = e, .name = c->name};

    if (job->kind == DIBS__LITE_CANCEL)
        return dibs__state_cancel(&dibs__lite_store, &s, now, c->owner, c->attempt, &job->reply);
    return dibs__state_release(&dibs__lite_store, &s, now, c->owner, c->attempt, c->fence,
                               &job->reply);
}

/* The store shows a lock that is not there as an idle one; breaking must not make it. */
static int run_break(dibs__lite *e, dibs__time now, dibs__lite_job *job)
{
    dibs__lite_session s = {.e = e, .name = job->name, .wants = UINT32_MAX};
    sqlite3_stmt *q = dibs__lite_sql(e, DIBS__LITE_SQL_EXISTS);
    int found;

    dibs__lite_bind_text(q, 1, job->name);
    found = dibs__lite_step(q);
    sqlite3_reset(q);
    if (found > 0)
        return dibs__state_break(&dibs__lite_store, &s, now, job->by, job->at_once, &job->reply);
    job->reply = (dibs__reply){.verdict = DIBS__LOST};
    return found;
}

static int run_job(dibs__lite *e, dibs__time now, dibs__lite_job *job)
{
    switch (job->kind) {
    case DIBS__LITE_ENTER:
        return run_enter(e, now, job);
    case DIBS__LITE_KEEP:
        return run_keep(e, now, job);
    case DIBS__LITE_RELEASE:
    case DIBS__LITE_CANCEL:
        return run_release(e, now, job);
    case DIBS__LITE_BREAK:
        return run_break(e, now, job);
    case DIBS__LITE_SETTLE:
        return dibs__lite_settle(e, now, job->name, &job->reply);
    case DIBS__LITE_RESCUE:
        return dibs__lite_rescue(e, now);
    case DIBS__LITE_BURY:
        return dibs__lite_bury(e, now, job);
    case DIBS__LITE_CELL:
    case DIBS__LITE_PEEK:
        return dibs__lite_cell(e, dibs__lite_cell_time(e, now), job);
    }
    return -1;
}

/* ---- All of them ----------------------------------------------------------------------------- */

static int run_all(dibs__lite *e, dibs__lite_job *jobs)
{
    const dibs__env *env = e->base.env;
    dibs__time now = {.lease = dibs__now(env), .wall = env->wall(env->ctx)};

    e->notice_count = 0;
    e->highest = 0;
    for (dibs__lite_job *job = jobs; job; job = job->next)
        if (run_job(e, now, job) < 0)
            return -1;
    return now.wall >= e->reap_at ? dibs__lite_reap(e, now) : 0;
}

static int begin_again(dibs__lite *e, bool durable)
{
    return dibs__lite_durable(e, durable) < 0 ? -1 : dibs__lite_begin(e);
}

/* A job that must last may have come into the queue after the transaction had begun without. */
static int run_transaction(dibs__lite *e, dibs__lite_job *jobs)
{
    bool durable = false;

    for (dibs__lite_job *job = jobs; job && !durable; job = job->next)
        durable = dibs__lite_cell_lasts(job);
    if (durable && !e->durable) {
        dibs__lite_rollback(e);
        if (begin_again(e, true) < 0)
            return -1;
    }
    for (;;) {
        if (run_all(e, jobs) < 0)
            return -1;
        if (e->highest <= e->ceiling)
            return dibs__lite_commit(e);
        dibs__lite_rollback(e);
        if (dibs__lite_raise_ceiling(e, e->highest) < 0 || begin_again(e, durable) < 0)
            return -1;
    }
}

static void set_status(dibs__lite_job *job, dibs_status status, const dibs_error *err)
{
    job->status = status;
    if (status != DIBS_OK) {
        free(job->cell.data);
        job->cell.data = NULL;
    } else if (job->no_memory) {
        job->status = dibs__fail(job->err, DIBS_NO_MEMORY, "sqlite: out of memory");
    }
    if (status != DIBS_OK && job->err)
        *job->err = *err;
    for (size_t i = 0; i < job->count; i++)
        job->claims[i]->status = status;
}

static void set_all(dibs__lite_job *jobs, dibs_status status, const dibs_error *err)
{
    for (dibs__lite_job *job = jobs; job; job = job->next)
        set_status(job, status, err);
}

/* ---- A database that is not there any more --------------------------------------------------- */

static bool has_moved(dibs__lite *e)
{
    int64_t now = dibs__now(e->base.env);
    int moved = 0;

    if (now < e->location_sure_until)
        return false;
    e->location_sure_until = now + SURE_FOR;
    sqlite3_file_control(e->db, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    if (moved)
        e->location_sure_until = 0;
    return moved;
}

/* Others may have made a new one under its name: what was held in the old is lost. */
static void report_moved(dibs__lite *e, dibs__lite_job *jobs)
{
    dibs_error err;
    dibs_status status =
        dibs__fail(&err, DIBS_ENGINE_FAILED,
                   "sqlite: %.400s: the database was removed or replaced: open it again", e->path);

    for (dibs__lite_job *job = jobs; job; job = job->next) {
        bool holds = job->kind == DIBS__LITE_KEEP || job->kind == DIBS__LITE_RELEASE ||
                     job->kind == DIBS__LITE_CANCEL;
        set_status(job, holds ? DIBS_OK : status, &err);
        job->reply = (dibs__reply){.verdict = DIBS__LOST};
        for (size_t i = 0; i < job->count; i++)
            job->claims[i]->reply = job->reply;
    }
}

/* ---- From the gate to the wake-ups ----------------------------------------------------------- */

/* NULL: busy until `until`. Else the jobs that are done, or failed. */
static dibs__lite_job *work(dibs__lite *e, bool *busy)
{
    dibs__lite_job *jobs;
    dibs_error err;
    int failed = dibs__lite_durable(e, dibs__lite_lasting(e)) < 0 ? -1 : dibs__lite_begin(e);

    *busy = failed < 0 && (sqlite3_errcode(e->db) & 0xff) == SQLITE_BUSY;
    if (*busy)
        return NULL;
    jobs = dibs__lite_take(e);
    if (!failed && has_moved(e)) {
        dibs__lite_rollback(e);
        report_moved(e, jobs);
        return jobs;
    }
    if (!failed)
        failed = run_transaction(e, jobs);
    if (failed) {
        e->notice_count = 0;
        set_all(jobs, dibs__lite_fault(e->db, e->path, "nothing was done", &err), &err);
        dibs__lite_rollback(e);
    } else {
        set_all(jobs, DIBS_OK, NULL);
    }
    return jobs;
}

bool dibs__lite_batch(dibs__lite *e, dibs__deadline until)
{
    bool inside = dibs__lite_gate_enter(e, until);
    dibs__lite_job *jobs, *next;
    bool busy;

    e->busy_until = until;
    e->notice_count = 0;
    dibs__lite_inside();
    jobs = work(e, &busy);
    dibs__lite_outside();
    if (inside)
        dibs__lite_gate_leave(e);
    for (size_t i = 0; i < e->notice_count; i++)
        dibs__lite_wake_send(e, &e->notices[i]);
    for (; jobs; jobs = next) {
        next = jobs->next;
        dibs__lite_done(jobs);
    }
    return !busy;
}
