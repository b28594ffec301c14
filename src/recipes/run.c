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
#define AGAIN       (200 * DIBS__MS)
#define PATIENCE    (60 * DIBS__SECOND) /* beyond its lease, for a record that nobody wants */

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
static void retire(dibs_once *o, dibs__once_phase phase)
{
    dibs *d = o->d;

    dibs__heap_remove(&d->chores, &o->renew.due);
    dibs__heap_remove(&d->ends, &o->end.due);
    atomic_store(&o->deadline, 0);
    o->phase = phase;
}

/* ---- Losing ---------------------------------------------------------------------------------- */

/* With the mutex, which is given away while the callback runs. */
static void tell(dibs *d, dibs__news *n)
{
    dibs_once *o = DIBS__FROM(dibs_once, loss, n);

    if (o->on_lost) {
        o->telling = true;
        o->teller = pthread_self();
        pthread_mutex_unlock(&d->mutex);
        o->on_lost(o->data, o);
        pthread_mutex_lock(&d->mutex);
        o->telling = false;
        pthread_cond_broadcast(&d->quiet);
    }
    dibs__once_drop(o);
}

static void lose(dibs_once *o, const char *why)
{
    retire(o, DIBS__ONCE_LOST);
    dibs__log(o->d, DIBS_LOG_ERROR, "lost the run of '%.80s': %s", o->key, why);
    o->refs++;
    o->loss.tell = tell;
    dibs__news_add(o->d, &o->loss);
}

static void deadline_over(dibs *d, dibs__chore *c, int64_t now)
{
    dibs_once *o = DIBS__FROM(dibs_once, end, c);

    (void)d;
    (void)now;
    lose(o, o->silent ? "the engine did not answer until its lease was over" : "its lease ran out");
}

/* ---- Holding --------------------------------------------------------------------------------- */

static void renew_due(dibs *d, dibs__chore *c, int64_t now);

static void hold(dibs_once *o, dibs__deadline sent, uint64_t version)
{
    dibs *d = o->d;
    dibs__deadline deadline = dibs__deadline_of(sent, o->mine.lease, o->mine.lease);

    o->version = version;
    o->silent = false;
    atomic_store(&o->deadline, deadline);
    o->renew.run = renew_due;
    o->end.run = deadline_over;
    dibs__chore_at(d, &d->ends, &o->end, deadline);
    dibs__chore_at(d, &d->chores, &o->renew, sent + (deadline - sent) / 3);
}

bool dibs__run_begin(dibs_once *o, dibs__deadline sent, uint64_t version)
{
    if (dibs__now(o->d->env) >= dibs__deadline_of(sent, o->mine.lease, o->mine.lease))
        return false;
    o->phase = DIBS__ONCE_OURS;
    o->answer = DIBS_OK;
    o->mine.fence = version;
    hold(o, sent, version);
    return true;
}

/* ---- One command about it -------------------------------------------------------------------- */

/* What a conflict or an absence means to a run of ours. */
typedef enum outcome {
    WRITTEN,
    STALE,    /* ours, with another version: again */
    ENDED,    /* by ourselves: its answer was lost */
    TAKEN,    /* another's, or gone */
    NO_ANSWER /* `status` says why */
} outcome;

/* `wanted` NULL: a deletion. */
static outcome read_conflict(dibs_once *o, const dibs__run_record *wanted, dibs__cell_reply *reply)
{
    dibs__run_record r;
    bool same, ours;

    if (dibs__record_decode(reply->data, reply->size, &r, NULL) != DIBS_OK)
        return TAKEN;
    dibs__steps_free(r.steps);
    ours = strcmp(r.attempt, o->mine.attempt) == 0;
    if (!ours)
        return TAKEN;
    o->version = reply->version;
    if (r.state == DIBS__RUN_RUNNING || !wanted)
        return STALE;
    same = r.state == wanted->state || wanted->state == DIBS__RUN_RUNNING;
    return same ? ENDED : STALE;
}

static outcome read_answer(dibs_once *o, const dibs__run_record *wanted, dibs__cell_reply *reply,
                           bool unsure)
{
    switch (reply->verdict) {
    case DIBS__CELL_DONE:
        o->version = reply->version;
        return WRITTEN;
    case DIBS__CELL_CONFLICT:
        return read_conflict(o, wanted, reply);
    case DIBS__CELL_ABSENT:
        return o->maybe_gone || unsure ? ENDED : TAKEN;
    default:
        return TAKEN;
    }
}

/* Without the mutex, and busy. `r` NULL: delete. An absence after a lost answer is our own doing
 * only if we deleted. */
static outcome write_run(dibs_once *o, const dibs__run_record *r, bool tell_others,
                         dibs__deadline until, dibs_status *status, dibs_error *err)
{
    char stamp[DIBS__STAMP_SIZE];
    dibs__cell_command c = {.op = r ? DIBS__CELL_SWAP : DIBS__CELL_DELETE, .stamp = stamp};
    dibs__cell_reply reply;
    void *bytes = r ? dibs__record_encode(r, &c.size) : NULL;
    outcome what = STALE;

    if (r && !bytes) {
        *status = dibs__fail(err, DIBS_NO_MEMORY, "'%.200s': out of memory", o->key);
        return NO_ANSWER;
    }
    c.data = bytes;
    c.keep = r ? dibs__record_life(r) : 0;
    c.alive = r && r->state == DIBS__RUN_RUNNING;
    c.fleeting = r == &o->mine; /* a renewal: it says nothing new */
    while (what == STALE && dibs__now(o->d->env) < until) {
        bool unsure = false;
        c.version = o->version;
        dibs__stamp(o->d, stamp);
        *status = dibs__cell_do(o->d, o->cell, &c, tell_others, until, &reply, &unsure, err);
        o->maybe_gone |= !r && *status == DIBS_UNKNOWN;
        what = *status == DIBS_OK ? read_answer(o, r, &reply, unsure && !r) : NO_ANSWER;
        free(reply.data);
    }
    free(bytes);
    if (what == STALE) {
        *status = dibs__fail(err, DIBS_UNAVAILABLE, "'%.200s': no answer in time", o->key);
        what = NO_ANSWER;
    }
    return what;
}

/* ---- Renewing: on the keeper ----------------------------------------------------------------- */

static int64_t renewal_pause(const dibs_once *o)
{
    int64_t pause = o->mine.lease / 12;

    return pause < FIRST_PAUSE ? FIRST_PAUSE : pause > MAX_PAUSE ? MAX_PAUSE : pause;
}

static void renewed(dibs_once *o, dibs__deadline sent, outcome what, dibs_status status)
{
    dibs *d = o->d;

    if (o->phase != DIBS__ONCE_OURS)
        return;
    if (what == TAKEN) {
        lose(o, "another has taken it over, or its record is gone");
    } else if (what == ENDED) {
        retire(o, DIBS__ONCE_ENDED);
    } else if (dibs__now(d->env) >= atomic_load(&o->deadline)) {
        lose(o, "the renewal came too late");
    } else if (what == WRITTEN) {
        d->stats.renewals++;
        hold(o, sent, o->version);
    } else {
        o->silent = true;
        d->stats.renewal_failures++;
        dibs__log(d, DIBS_LOG_WARNING, "renewing the run of '%.80s' failed: %s", o->key,
                  dibs_status_text(status));
        dibs__chore_at(d, &d->chores, &o->renew, dibs__now(d->env) + renewal_pause(o));
    }
}

static void set_busy(dibs_once *o)
{
    o->busy = true;
    o->refs++;
}

static void set_idle(dibs_once *o)
{
    o->busy = false;
    pthread_cond_broadcast(&o->d->quiet);
    dibs__once_drop(o);
}

static void renew_due(dibs *d, dibs__chore *c, int64_t now)
{
    dibs_once *o = DIBS__FROM(dibs_once, renew, c);
    dibs__deadline until = dibs__keeper_until(d, now);
    dibs_status status = DIBS_OK;
    outcome what;

    if (o->busy) {
        dibs__chore_at(d, &d->chores, c, now + BUSY_PAUSE);
        return;
    }
    set_busy(o);
    pthread_mutex_unlock(&d->mutex);
    what = write_run(o, &o->mine, false, until, &status, NULL);
    pthread_mutex_lock(&d->mutex);
    renewed(o, now, what, status);
    set_idle(o);
}

/* ---- The user's calls ------------------------------------------------------------------------ */

/* In a call, busy and without the mutex when DIBS_OK comes back. A run that is lost by our clock
 * may still be ended: whether it is ours, the engine knows. */
static dibs_status enter(dibs_once *o, bool must_hold, dibs_error *err)
{
    dibs *d = o->d;
    dibs_status status = DIBS_OK;

    if (!dibs__same_process(d))
        return dibs__forked(err);
    dibs__begin_call(d);
    while (o->busy)
        pthread_cond_wait(&d->quiet, &d->mutex);
    if (d->closing)
        status = dibs__fail(err, DIBS_CANCELLED, "the handle is being closed");
    else if (o->phase == DIBS__ONCE_TOLD || o->phase == DIBS__ONCE_ASKING)
        status = dibs__fail(err, DIBS_INVALID, "'%.200s': this run is not ours", o->key);
    else if (o->phase == DIBS__ONCE_OVER)
        status = dibs__fail(err, DIBS_INVALID, "'%.200s': this run has ended already", o->key);
    else if (must_hold && !dibs_once_held(o))
        status = dibs__fail(err, DIBS_LOST, "'%.200s': the run was lost", o->key);
    if (status != DIBS_OK) {
        dibs__end_call(d);
        return status;
    }
    set_busy(o);
    pthread_mutex_unlock(&d->mutex);
    return DIBS_OK;
}

static void leave(dibs_once *o)
{
    dibs *d = o->d;

    set_idle(o);
    dibs__end_call(d);
}

static dibs_status say_lost(const dibs_once *o, dibs_error *err)
{
    return dibs__fail(err, DIBS_LOST,
                      "'%.200s': another run has taken over, or the record is gone: nothing was "
                      "written",
                      o->key);
}

/* The last command of a run; `r` NULL: forget it. */
static dibs_status end_run(dibs_once *o, const dibs__run_record *r, dibs_error *err)
{
    dibs *d = o->d;
    dibs_status status = DIBS_OK;
    outcome what = write_run(o, r, true, dibs__after(d->env, d->request_span), &status, err);

    pthread_mutex_lock(&d->mutex);
    if (what == WRITTEN || what == ENDED) {
        retire(o, DIBS__ONCE_OVER);
        status = DIBS_OK;
    } else if (what == TAKEN) {
        retire(o, DIBS__ONCE_LOST);
        status = say_lost(o, err);
    }
    leave(o);
    return status;
}

static dibs_status check_load(const dibs_once *o, const dibs__run_record *r, dibs_error *err)
{
    size_t load = dibs__record_load(r), most = o->d->class->can.value_max;

    if (load <= most)
        return DIBS_OK;
    return dibs__fail(err, DIBS_INVALID,
                      "'%.200s': steps or result have %zu bytes; %s takes at most %zu", o->key,
                      load, o->d->class->scheme, most);
}

static dibs_status end_with(dibs_once *o, dibs__run_state state, const void *result, size_t size,
                            int code, dibs_error *err)
{
    dibs__run_record r;
    dibs_status status;

    if (size > 0 && !result)
        return dibs__fail(err, DIBS_INVALID, "'%.200s': %zu bytes, but no data given", o->key,
                          size);
    status = enter(o, false, err);
    if (status != DIBS_OK)
        return status;
    r = o->mine;
    r.state = state;
    r.steps = NULL;
    r.code = code;
    r.has_result = result != NULL;
    r.result = result;
    r.result_size = size;
    status = check_load(o, &r, err);
    if (status == DIBS_OK)
        return end_run(o, &r, err);
    pthread_mutex_lock(&o->d->mutex);
    leave(o);
    return status;
}

dibs_status dibs_once_finish(dibs_once *o, const void *result, size_t size, int code,
                             dibs_error *err)
{
    return end_with(o, DIBS__RUN_DONE, result, size, code, err);
}

dibs_status dibs_once_fail(dibs_once *o, bool final, const void *result, size_t size, int code,
                           dibs_error *err)
{
    dibs_status status;

    if (final)
        return end_with(o, DIBS__RUN_FAILED, result, size, code, err);
    status = enter(o, false, err);
    return status == DIBS_OK ? end_run(o, NULL, err) : status;
}

dibs_status dibs_once_abandon(dibs_once *o, dibs_error *err)
{
    dibs__run_record r;
    dibs_status status = enter(o, false, err);

    if (status != DIBS_OK)
        return status;
    r = o->mine;
    r.state = DIBS__RUN_ABANDONED;
    return end_run(o, &r, err);
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* With the mutex: `fresh` takes the place of its namesake. */
static void keep_step(dibs_once *o, dibs__step *fresh)
{
    dibs__step **at = &o->mine.steps;

    while (*at) {
        dibs__step *s = *at;
        if (strcmp(s->name, fresh->name) == 0) {
            *at = s->next;
            free(s);
        } else {
            at = &s->next;
        }
    }
    *at = fresh;
}

/* Busy; leaves. Takes `fresh`. */
static dibs_status write_step(dibs_once *o, dibs__step *fresh, dibs_error *err)
{
    dibs *d = o->d;
    dibs__run_record r = o->mine;
    dibs__deadline sent = dibs__now(d->env);
    outcome what = NO_ANSWER;
    dibs_status status;

    r.fresh = fresh;
    status = check_load(o, &r, err);
    if (status == DIBS_OK)
        what = write_run(o, &r, false, dibs__after(d->env, d->request_span), &status, err);
    pthread_mutex_lock(&d->mutex);
    if (what == WRITTEN) {
        keep_step(o, fresh);
        fresh = NULL;
        if (dibs_once_held(o))
            hold(o, sent, o->version);
    } else if (what != NO_ANSWER) {
        if (o->phase == DIBS__ONCE_OURS)
            lose(o, "another has taken it over, or its record is gone");
        status = say_lost(o, err);
    }
    free(fresh);
    leave(o);
    return status;
}

dibs_status dibs_once_step(dibs_once *o, const char *step, const void *data, size_t size,
                           dibs_error *err)
{
    dibs__step *fresh;
    dibs_status status = dibs__check_text("a step's name", step, false, err);

    if (status == DIBS_OK)
        status = dibs__check_size(o->d, "a step's data", data, size, err);
    if (status == DIBS_OK)
        status = enter(o, true, err);
    if (status != DIBS_OK)
        return status;
    fresh = dibs__step_new(step, data, size);
    if (fresh)
        return write_step(o, fresh, err);
    pthread_mutex_lock(&o->d->mutex);
    leave(o);
    return dibs__fail(err, DIBS_NO_MEMORY, "'%.200s': out of memory", step);
}

const void *dibs_once_step_data(const dibs_once *o, const char *step, size_t *size)
{
    dibs *d = o->d;
    const dibs__step *s = NULL;
    const void *data;

    if (size)
        *size = 0;
    if (!step || !dibs__same_process(d))
        return NULL;
    pthread_mutex_lock(&d->mutex);
    s = dibs__step_find(o->mine.steps, step);
    if (s && size)
        *size = s->size;
    data = s ? s->data : NULL;
    pthread_mutex_unlock(&d->mutex);
    return data;
}

/* ---- Asking without I/O ---------------------------------------------------------------------- */

uint64_t dibs_once_fence(const dibs_once *o)
{
    return o->mine.fence;
}

bool dibs_once_held(const dibs_once *o)
{
    return dibs__same_process(o->d) && dibs__now(o->d->env) < atomic_load(&o->deadline);
}

int64_t dibs_once_remaining_ms(const dibs_once *o)
{
    int64_t left = atomic_load(&o->deadline) - dibs__now(o->d->env);

    return left > 0 && dibs__same_process(o->d) ? left / DIBS__MS : 0;
}

bool dibs_once_again(const dibs_once *o)
{
    return o->mine.runs > 1;
}

/* ---- The end --------------------------------------------------------------------------------- */

/* With the mutex: out of the handle, and no callback runs or begins after this, unless we are inside
 * it. */
static void detach(dibs_once *o)
{
    dibs *d = o->d;

    while (o->busy)
        pthread_cond_wait(&d->quiet, &d->mutex);
    retire(o, DIBS__ONCE_OVER);
    if (o->loss.listed) {
        dibs__news_forget(d, &o->loss);
        dibs__once_drop(o);
    }
    while (o->telling && !pthread_equal(o->teller, pthread_self()))
        pthread_cond_wait(&d->quiet, &d->mutex);
    *o->at = o->next;
    if (o->next)
        o->next->at = o->at;
    dibs__unlodge(d);
}

/* On the keeper. Nothing was done under it, so that it must not be taken for a crash: it is deleted if
 * it is there. Version 0 fits no record, and brings the one that is there. */
static void withdraw_due(dibs *d, dibs__chore *c, int64_t now)
{
    dibs_once *o = DIBS__FROM(dibs_once, renew, c);
    dibs__deadline until = dibs__keeper_until(d, now);
    dibs_status status;
    outcome what;

    set_busy(o);
    pthread_mutex_unlock(&d->mutex);
    what = write_run(o, NULL, true, until, &status, NULL);
    pthread_mutex_lock(&d->mutex);
    set_idle(o);
    if (what == NO_ANSWER && now < o->give_up) {
        dibs__chore_at(d, &d->chores, c, dibs__now(d->env) + AGAIN);
        return;
    }
    detach(o);
    dibs__once_drop(o);
}

/* With the mutex. The keeper gets the user's reference. */
static void leave_to_keeper(dibs_once *o)
{
    int64_t now = dibs__now(o->d->env);

    o->phase = DIBS__ONCE_OVER;
    o->version = 0;
    o->give_up = now + o->mine.lease + PATIENCE;
    o->renew.run = withdraw_due;
    dibs__chore_at(o->d, &o->d->chores, &o->renew, now);
}

static bool is_ours(dibs_once *o)
{
    bool ours;

    pthread_mutex_lock(&o->d->mutex);
    ours = o->phase == DIBS__ONCE_OURS;
    pthread_mutex_unlock(&o->d->mutex);
    return ours;
}

void dibs_once_free(dibs_once *o)
{
    dibs *d;

    if (!o || !dibs__same_process(o->d))
        return;
    d = o->d;
    if (is_ours(o))
        dibs_once_abandon(o, NULL);
    if (dibs__begin_call(d) && o->maybe_there) {
        leave_to_keeper(o);
    } else {
        detach(o);
        dibs__once_drop(o);
    }
    dibs__end_call(d);
}

/* The keeper is gone, and so is everybody else. */
static void abandon_last(dibs_once *o, dibs__deadline until)
{
    dibs *d = o->d;
    dibs__run_record r = o->mine;
    char stamp[DIBS__STAMP_SIZE];
    dibs__cell_command c = {.op = DIBS__CELL_SWAP, .version = o->version, .stamp = stamp};
    dibs__cell_reply reply = {0};
    void *bytes;

    r.state = DIBS__RUN_ABANDONED;
    bytes = dibs__record_encode(&r, &c.size);
    if (!bytes)
        return; /* it ends with its lease */
    c.data = bytes;
    c.keep = dibs__record_life(&r);
    dibs__stamp(d, stamp);
    d->class->cell(d->engine, o->cell, &c, true, until, &reply, NULL);
    free(reply.data);
    free(bytes);
}

void dibs__onces_close(dibs *d, dibs__deadline until)
{
    for (dibs_once *o = d->onces, *next; o; o = next) {
        next = o->next;
        if (o->phase == DIBS__ONCE_OURS && dibs__now(d->env) < until)
            abandon_last(o, until);
        o->refs = 1;
        dibs__once_drop(o);
    }
}
