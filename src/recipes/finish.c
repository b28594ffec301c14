/* What the user does with a run: steps, its end, and letting go of it.
 *
 * Whoever ends a run waits until the keeper is through with its renewal, and then speaks for it
 * alone. The engine decides whether it is still ours, also when our own clock says no: what is known
 * about the work is better told late than not at all. A step is another matter: it would keep alive
 * what we have already called lost. */
#define _GNU_SOURCE
#include "recipes/once.h"

#include "core/error.h"

#include <stdlib.h>
#include <string.h>

#define AGAIN       (200 * DIBS__MS)
#define RIVAL_AGAIN DIBS__SECOND        /* while another's run or crash is there */
#define PATIENCE    (60 * DIBS__SECOND) /* beyond its lease, for a record that nobody wants */

/* ---- The user's calls ------------------------------------------------------------------------ */

/* In a call, busy and without the mutex when DIBS_OK comes back. A run that is lost by our clock
 * may still be ended: whether it is ours, the engine knows. `until`: for the command that follows, which
 * shares the time of one request with the renewal that we have to wait for. */
static dibs_status enter(dibs_once *o, bool must_hold, dibs__deadline *until, dibs_error *err)
{
    dibs *d = o->d;
    dibs_status status = DIBS_OK;

    if (!dibs__same_process(d))
        return dibs__forked(err);
    dibs__begin_call(d);
    *until = dibs__after(d->env, d->request_span);
    while (o->busy)
        pthread_cond_wait(&d->quiet, &d->mutex);
    if (*until < dibs__after(d->env, DIBS__GRACE))
        *until = dibs__after(d->env, DIBS__GRACE);
    if (d->closing)
        status = dibs__closing(err);
    else if (o->phase == DIBS__ONCE_THEIRS || o->phase == DIBS__ONCE_ASKING)
        status = dibs__fail(err, DIBS_INVALID, "'%.200s': this run is not held", o->key);
    else if (o->phase == DIBS__ONCE_OVER)
        status = dibs__fail(err, DIBS_INVALID, "'%.200s': this run has ended already", o->key);
    else if (must_hold && !dibs_once_held(o))
        status = dibs__fail(err, DIBS_LOST, "'%.200s': the run was lost", o->key);
    if (status != DIBS_OK) {
        dibs__end_call(d);
        return status;
    }
    dibs__run_busy(o);
    pthread_mutex_unlock(&d->mutex);
    return DIBS_OK;
}

static void leave(dibs_once *o)
{
    dibs *d = o->d;

    dibs__run_idle(o);
    dibs__end_call(d);
}

static dibs_status say_lost(const dibs_once *o, dibs_error *err)
{
    return dibs__fail(err, DIBS_LOST,
                      "'%.200s': another run has taken over, or the record is gone: nothing was "
                      "written",
                      o->key);
}

/* The last command of a run. */
static dibs_status end_run(dibs_once *o, const dibs__run_record *r, dibs__deadline until,
                           dibs_error *err)
{
    dibs *d = o->d;
    dibs_status status = DIBS_OK;
    dibs__run_outcome what = dibs__run_write(o, r, true, until, &status, err);

    pthread_mutex_lock(&d->mutex);
    if (what == DIBS__RUN_WRITTEN || what == DIBS__RUN_ENDED) {
        dibs__run_retire(o, DIBS__ONCE_OVER);
        status = DIBS_OK;
    } else if (what == DIBS__RUN_TAKEN) {
        dibs__run_retire(o, DIBS__ONCE_LOST);
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
    dibs__deadline until;
    dibs_status status;

    if (size > 0 && !result)
        return dibs__fail(err, DIBS_INVALID, "'%.200s': %zu bytes, but no data given", o->key,
                          size);
    status = enter(o, false, &until, err);
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
        return end_run(o, &r, until, err);
    pthread_mutex_lock(&o->d->mutex);
    leave(o);
    return status;
}

dibs_status dibs__do_once_finish(dibs_once *o, const void *result, size_t size, int code,
                                 dibs_error *err)
{
    return end_with(o, DIBS__RUN_DONE, result, size, code, err);
}

static dibs__run_record free_record(const dibs_once *o)
{
    dibs__run_record r = o->mine;

    r.state = DIBS__RUN_FREE;
    r.runs = 0;
    r.steps = NULL;
    r.fingerprint_size = 0;
    return r;
}

/* What is left of a run that came to nothing: what it replaced. That is a free key, or the crash of an
 * earlier run, whose outcome is as unknown as before. What ours has reached since is true all the same:
 * its steps stay with the crash. */
static dibs__run_record given_back(const dibs_once *o)
{
    int64_t left = o->before_until - dibs__now(o->d->env);
    dibs__run_record r = o->before;

    if (!o->took_over || left <= 0)
        return free_record(o);
    r.steps = o->mine.steps;
    r.left = o->before_until == DIBS__NEVER ? INT64_MAX : left;
    return r;
}

dibs_status dibs__do_once_fail(dibs_once *o, const void *result, size_t size, int code,
                               dibs_error *err)
{
    return end_with(o, DIBS__RUN_FAILED, result, size, code, err);
}

dibs_status dibs__do_once_undo(dibs_once *o, dibs_error *err)
{
    dibs__run_record r;
    dibs__deadline until;
    dibs_status status = enter(o, false, &until, err);

    if (status != DIBS_OK)
        return status;
    r = given_back(o);
    return end_run(o, &r, until, err);
}

dibs_status dibs__do_once_abandon(dibs_once *o, dibs_error *err)
{
    dibs__run_record r;
    dibs__deadline until;
    dibs_status status = enter(o, false, &until, err);

    if (status != DIBS_OK)
        return status;
    r = o->mine;
    r.state = DIBS__RUN_ABANDONED;
    return end_run(o, &r, until, err);
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
static dibs_status write_step(dibs_once *o, dibs__step *fresh, dibs__deadline until,
                              dibs_error *err)
{
    dibs *d = o->d;
    dibs__run_record r = o->mine;
    dibs__deadline sent = dibs__now(d->env);
    dibs__run_outcome what = DIBS__RUN_NO_ANSWER;
    dibs_status status;

    r.fresh = fresh;
    status = check_load(o, &r, err);
    if (status == DIBS_OK)
        what = dibs__run_write(o, &r, false, until, &status, err);
    pthread_mutex_lock(&d->mutex);
    if (what == DIBS__RUN_WRITTEN) {
        keep_step(o, fresh);
        fresh = NULL;
        if (dibs_once_held(o))
            dibs__run_hold(o, sent, o->version);
    } else if (what != DIBS__RUN_NO_ANSWER) {
        if (o->phase == DIBS__ONCE_OURS)
            dibs__run_lose(o, "another has taken it over, or its record is gone");
        status = say_lost(o, err);
    }
    free(fresh);
    leave(o);
    return status;
}

dibs_status dibs__do_once_step(dibs_once *o, const char *step, const void *data, size_t size,
                               dibs_error *err)
{
    dibs__step *fresh;
    dibs__deadline until;
    dibs_status status = dibs__check_text("a step's name", step, false, err);

    if (status == DIBS_OK)
        status = dibs__check_size(o->d, "a step's data", data, size, err);
    if (status == DIBS_OK)
        status = enter(o, true, &until, err);
    if (status != DIBS_OK)
        return status;
    fresh = dibs__step_new(step, data, size);
    if (fresh)
        return write_step(o, fresh, until, err);
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

/* ---- The end --------------------------------------------------------------------------------- */

/* With the mutex: out of the handle, and no callback runs or begins after this, unless we are inside
 * it. */
static void detach(dibs_once *o)
{
    dibs *d = o->d;

    while (o->busy)
        pthread_cond_wait(&d->quiet, &d->mutex);
    dibs__run_retire(o, DIBS__ONCE_OVER);
    if (dibs__news_forget(d, &o->loss))
        dibs__once_drop(o);
    *o->at = o->next;
    if (o->next)
        o->next->at = o->at;
    dibs__keeper_unreserve(d);
}

/* Nothing was done under it, so that it must not be taken for a crash: whatever it replaced comes back.
 * If it is not there, it may still be on its way, and must find nothing that it can replace: an empty
 * place is marked as free, and what it wanted to take over is written anew, which changes its version.
 * Version 0 fits no record, and brings the one that is there. */
static dibs__run_outcome withdraw(dibs_once *o, dibs__deadline until)
{
    dibs__run_record mark = free_record(o), back = given_back(o);
    dibs_status status;
    dibs__run_outcome what;

    o->withdrawing = true;
    o->version = 0;
    what = dibs__run_try(o, &mark, true, until, &status, NULL);
    if (what == DIBS__RUN_STALE)
        what = dibs__run_write(o, &back, true, until, &status, NULL);
    if (what == DIBS__RUN_TAKEN && o->tried) {
        o->version = o->tried;
        what = dibs__run_write(o, &back, true, until, &status, NULL);
    }
    return what;
}

/* Whether there may be something to withdraw yet. Who runs it now, or did, may have taken ours for a crash; if
 * that run comes to nothing, the crash is put back, and it is ours again. */
static bool may_come_back(const dibs_once *o, dibs__run_outcome what)
{
    return what == DIBS__RUN_NO_ANSWER || (what == DIBS__RUN_TAKEN && o->unsettled);
}

/* On the keeper. */
static void withdraw_due(dibs *d, dibs__keeper_task *c, int64_t now)
{
    dibs_once *o = DIBS__FROM(dibs_once, withdrawal, c);
    dibs__deadline until = dibs__keeper_until(d, now);
    dibs__run_outcome what;

    dibs__run_busy(o);
    pthread_mutex_unlock(&d->mutex);
    what = withdraw(o, until);
    pthread_mutex_lock(&d->mutex);
    dibs__run_idle(o);
    if (may_come_back(o, what) && now < o->give_up) {
        dibs__keeper_task_at(d, &d->maintenance, c,
                             dibs__now(d->env) + (what == DIBS__RUN_TAKEN ? RIVAL_AGAIN : AGAIN));
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
    o->give_up = now + o->mine.lease + PATIENCE;
    o->withdrawal.run = withdraw_due;
    dibs__keeper_task_at(o->d, &o->d->maintenance, &o->withdrawal, now);
}

/* With the mutex. Whoever closes the handle withdraws or abandons it. It was not lost: nobody is to be told. */
static void leave_to_closer(dibs_once *o)
{
    o->left_running = o->phase == DIBS__ONCE_OURS;
    dibs__run_retire(o, DIBS__ONCE_OVER);
}

static bool is_ours(dibs_once *o)
{
    bool ours;

    pthread_mutex_lock(&o->d->mutex);
    ours = o->phase == DIBS__ONCE_OURS;
    pthread_mutex_unlock(&o->d->mutex);
    return ours;
}

void dibs__once_leave(dibs_once *o)
{
    if (o->maybe_there && !o->d->closing) {
        leave_to_keeper(o);
    } else if ((o->maybe_there || o->phase == DIBS__ONCE_OURS) && !o->last) {
        leave_to_closer(o);
    } else {
        detach(o);
        dibs__once_drop(o);
    }
}

void dibs_once_free(dibs_once *o)
{
    dibs *d;

    if (!o || !dibs__same_process(o->d))
        return;
    d = o->d;
    if (is_ours(o))
        dibs__do_once_abandon(o, NULL);
    dibs__begin_call(d);
    dibs__once_leave(o);
    dibs__end_call(d);
}

static void abandon_last(dibs_once *o, dibs__deadline until)
{
    dibs__run_record r = o->mine;
    dibs_status status;

    r.state = DIBS__RUN_ABANDONED;
    dibs__run_write(o, &r, true, until, &status, NULL);
}

/* With the mutex, which is given away meanwhile; busy, so that it stays in the list. */
static void end_last(dibs_once *o, dibs__deadline until)
{
    dibs *d = o->d;
    bool runs = o->phase == DIBS__ONCE_OURS || o->left_running;

    o->last = true;
    pthread_mutex_unlock(&d->mutex);
    if (runs)
        abandon_last(o, until);
    else if (o->maybe_there && dibs__now(d->env) < until)
        withdraw(o, until);
    pthread_mutex_lock(&d->mutex);
    dibs__run_retire(o, DIBS__ONCE_OVER);
}

/* The keeper is gone, and nothing new begins; runs may be freed. What the engine does not answer ends with its
 * lease. */
void dibs__onces_end(dibs *d, dibs__deadline until)
{
    pthread_mutex_lock(&d->mutex);
    for (dibs_once *o = d->onces, *next; o; o = next) {
        dibs__run_busy(o);
        end_last(o, until);
        next = o->next;
        dibs__run_idle(o);
    }
    pthread_mutex_unlock(&d->mutex);
}

void dibs__onces_free(dibs *d)
{
    for (dibs_once *o = d->onces, *next; o; o = next) {
        next = o->next;
        o->refs = 1;
        dibs__once_drop(o);
    }
}
