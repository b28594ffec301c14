/* A run that is ours: renewed, given steps, finished, failed, abandoned, lost.
 *
 * Each command names the version that the last one made, so that a runner who was taken over can
 * write nothing any more. A conflict with a record of our own attempt is the trace of a command whose
 * answer was lost: its version is taken up, and the command goes out again. Everything else is a
 * loss. */
#define _GNU_SOURCE
#include "recipes/once.h"

#include "core/error.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_PAUSE (10 * DIBS__MS)
#define MAX_PAUSE   DIBS__SECOND
#define BUSY_PAUSE  (20 * DIBS__MS)

/* ---- References ------------------------------------------------------------------------------ */

void dibs__once_drop(dibs_once *o)
{
    if (--o->refs > 0)
        return;
    dibs__steps_free(o->mine.steps);
    free(o->raw);
    free(o);
}

/* Nothing of the keeper's is left. */
void dibs__run_retire(dibs_once *o, dibs__once_phase phase)
{
    dibs *d = o->d;

    dibs__heap_remove(&d->renewals, &o->renew.due);
    dibs__heap_remove(&d->ends, &o->end.due);
    atomic_store(&o->deadline, 0);
    o->phase = phase;
}

/* ---- Losing ---------------------------------------------------------------------------------- */

/* With the mutex, which is given away while the callback runs. */
static void report_loss(dibs *d, dibs__news *n)
{
    dibs_once *o = DIBS__FROM(dibs_once, loss, n);

    pthread_mutex_unlock(&d->mutex);
    o->on_lost(o->data, o);
    pthread_mutex_lock(&d->mutex);
    dibs__once_drop(o);
}

static void fill_loss(dibs *d, dibs__news *n, dibs_outcome *out)
{
    dibs_once *o = DIBS__FROM(dibs_once, loss, n);

    (void)d;
    out->op = DIBS_OP_LOST;
    out->user = o->data;
    out->once = o;
    dibs__fail(&out->err, DIBS_LOST, "'%.200s': the run was lost", o->key);
    dibs__once_drop(o); /* the user has it: this is not the last reference */
}

void dibs__run_lose(dibs_once *o, const char *why)
{
    dibs__run_retire(o, DIBS__ONCE_LOST);
    dibs__log(o->d, DIBS_LOG_ERROR, "lost the run of '%.80s': %s", o->key, why);
    if (!o->delivered)
        return; /* whoever is about to hand it out finds that it is not held */
    o->refs++;
    if (o->on_lost)
        o->loss.call = report_loss;
    else
        o->loss.fill = fill_loss;
    dibs__news_add(o->d, &o->loss);
}

static void deadline_over(dibs *d, dibs__keeper_task *c, int64_t now)
{
    dibs_once *o = DIBS__FROM(dibs_once, end, c);

    (void)d;
    (void)now;
    dibs__run_lose(o, o->silent ? "the engine did not answer until its lease was over"
                                : "its lease expired");
}

/* ---- Holding --------------------------------------------------------------------------------- */

static void renew_due(dibs *d, dibs__keeper_task *c, int64_t now);

void dibs__run_hold(dibs_once *o, dibs__deadline sent, uint64_t version)
{
    dibs *d = o->d;
    dibs__deadline deadline = dibs__deadline_of(sent, o->mine.lease, o->mine.lease);

    o->version = version;
    o->silent = false;
    atomic_store(&o->deadline, deadline);
    o->renew.run = renew_due;
    o->end.run = deadline_over;
    dibs__keeper_expect(d, o->mine.lease, sent);
    dibs__keeper_task_at(d, &d->ends, &o->end, deadline);
    dibs__keeper_task_at(d, &d->renewals, &o->renew, sent + (deadline - sent) / 3);
}

bool dibs__run_begin(dibs_once *o, dibs__deadline sent, uint64_t version)
{
    if (dibs__now(o->d->env) >= dibs__deadline_of(sent, o->mine.lease, o->mine.lease))
        return false;
    o->phase = DIBS__ONCE_OURS;
    o->answer = DIBS_OK;
    o->mine.fence = version;
    dibs__run_hold(o, sent, version);
    return true;
}

/* ---- One command about it -------------------------------------------------------------------- */

/* A renewal, an abandoning, a crash that is put back: none of them knows better than an end that was told. */
static bool says_no_end(const dibs__run_record *r)
{
    return r->state == DIBS__RUN_RUNNING || r->state == DIBS__RUN_ABANDONED;
}

static bool is_ours(const dibs_once *o, const dibs__run_record *r)
{
    return strcmp(r->attempt, o->mine.attempt) == 0 ||
           (o->withdrawing && strcmp(r->crashed, o->mine.attempt) == 0);
}

static dibs__run_outcome read_conflict(dibs_once *o, const dibs__run_record *wanted,
                                       dibs__cell_reply *reply, dibs_status *status,
                                       dibs_error *err)
{
    dibs__run_record r;
    dibs_status read = dibs__record_decode(reply->data, reply->size, &r, err);

    if (read == DIBS_NO_MEMORY) {
        *status = read;
        return DIBS__RUN_NO_ANSWER;
    }
    if (read != DIBS_OK)
        return DIBS__RUN_TAKEN;
    dibs__steps_free(r.steps);
    o->unsettled = says_no_end(&r) && !is_ours(o, &r);
    if (!is_ours(o, &r))
        return DIBS__RUN_TAKEN;
    o->version = reply->version;
    if (r.state == DIBS__RUN_RUNNING)
        return DIBS__RUN_STALE;
    if (r.state == wanted->state || says_no_end(wanted))
        return DIBS__RUN_ENDED;
    return r.state == DIBS__RUN_FREE ? DIBS__RUN_TAKEN : DIBS__RUN_STALE;
}

/* An absent record is never of our own doing: we delete none. */
static dibs__run_outcome read_answer(dibs_once *o, const dibs__run_record *wanted,
                                     dibs__cell_reply *reply, dibs_status *status, dibs_error *err)
{
    switch (reply->verdict) {
    case DIBS__CELL_DONE:
        o->version = reply->version;
        return DIBS__RUN_WRITTEN;
    case DIBS__CELL_CONFLICT:
        return read_conflict(o, wanted, reply, status, err);
    default:
        return DIBS__RUN_TAKEN;
    }
}

/* While the handle is closed, dibs__cell_do refuses everything. */
static dibs_status send(dibs_once *o, const dibs__cell_command *c, bool notify,
                        dibs__deadline until, dibs__cell_reply *reply, dibs_error *err)
{
    dibs *d = o->d;

    memset(reply, 0, sizeof *reply);
    if (o->last)
        return d->class->cell(d->engine, o->cell, c, notify, until, reply, err);
    return dibs__cell_do(d, o->cell, c, notify, until, reply, NULL, err);
}

dibs__run_outcome dibs__run_try(dibs_once *o, const dibs__run_record *r, bool notify,
                                dibs__deadline until, dibs_status *status, dibs_error *err)
{
    char stamp[DIBS__STAMP_SIZE];
    dibs__cell_command c = {.op = DIBS__CELL_SWAP, .version = o->version, .stamp = stamp};
    dibs__cell_reply reply;
    void *bytes = dibs__record_encode(r, &c.size);
    dibs__run_outcome what = DIBS__RUN_NO_ANSWER;

    if (!bytes) {
        *status = dibs__fail(err, DIBS_NO_MEMORY, "'%.200s': out of memory", o->key);
        return what;
    }
    c.data = bytes;
    c.keep = dibs__record_life(r);
    c.alive = r->state == DIBS__RUN_RUNNING;
    c.lease = c.alive ? r->lease : 0;
    c.fleeting = r == &o->mine; /* a renewal: it says nothing new */
    dibs__stamp(o->d, stamp);
    *status = send(o, &c, notify, until, &reply, err);
    if (*status == DIBS_OK)
        what = read_answer(o, r, &reply, status, err);
    free(reply.data);
    free(bytes);
    return what;
}

dibs__run_outcome dibs__run_write(dibs_once *o, const dibs__run_record *r, bool notify,
                                  dibs__deadline until, dibs_status *status, dibs_error *err)
{
    dibs__run_outcome what = DIBS__RUN_STALE;

    while (what == DIBS__RUN_STALE && dibs__now(o->d->env) < until)
        what = dibs__run_try(o, r, notify, until, status, err);
    if (what == DIBS__RUN_STALE) {
        *status = dibs__fail(err, DIBS_UNAVAILABLE, "'%.200s': no answer in time", o->key);
        what = DIBS__RUN_NO_ANSWER;
    }
    return what;
}

/* ---- Renewing: on the keeper ----------------------------------------------------------------- */

static int64_t renewal_pause(const dibs_once *o)
{
    int64_t pause = o->mine.lease / 12;

    return pause < FIRST_PAUSE ? FIRST_PAUSE : pause > MAX_PAUSE ? MAX_PAUSE : pause;
}

static void renewed(dibs_once *o, dibs__deadline sent, dibs__run_outcome what, dibs_status status)
{
    dibs *d = o->d;

    if (o->phase != DIBS__ONCE_OURS)
        return;
    if (what == DIBS__RUN_TAKEN) {
        dibs__run_lose(o, "another has taken it over, or its record is gone");
    } else if (what == DIBS__RUN_ENDED) {
        dibs__run_retire(o, DIBS__ONCE_ENDED);
    } else if (dibs__now(d->env) >= atomic_load(&o->deadline)) {
        dibs__run_lose(o, "the renewal came too late");
    } else if (what == DIBS__RUN_WRITTEN) {
        d->stats.renewals++;
        dibs__run_hold(o, sent, o->version);
    } else {
        o->silent = true;
        d->stats.renewal_failures++;
        dibs__log(d, DIBS_LOG_WARNING, "renewing the run of '%.80s' failed: %s", o->key,
                  dibs_status_text(status));
        dibs__keeper_task_at(d, &d->renewals, &o->renew, dibs__now(d->env) + renewal_pause(o));
    }
}

void dibs__run_busy(dibs_once *o)
{
    o->busy = true;
    o->refs++;
}

void dibs__run_idle(dibs_once *o)
{
    o->busy = false;
    pthread_cond_broadcast(&o->d->quiet);
    dibs__once_drop(o);
}

static void renew_due(dibs *d, dibs__keeper_task *c, int64_t now)
{
    dibs_once *o = DIBS__FROM(dibs_once, renew, c);
    dibs__deadline until = dibs__keeper_renew_until(d, now);
    dibs_status status = DIBS_OK;
    dibs__run_outcome what;

    if (o->busy) {
        dibs__keeper_task_at(d, &d->renewals, c, now + BUSY_PAUSE);
        return;
    }
    dibs__run_busy(o);
    pthread_mutex_unlock(&d->mutex);
    what = dibs__run_write(o, &o->mine, false, until, &status, NULL);
    pthread_mutex_lock(&d->mutex);
    renewed(o, now, what, status);
    dibs__run_idle(o);
}
