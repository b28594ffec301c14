/* Once: beginning, and waiting for another's run.
 *
 * To begin is one command: swap "nothing" for our running record. It goes well when there is
 * nothing. Else the conflict brings the record that is there, and record and age tell which answer
 * it is: done, running, another fingerprint, dead, expired. A dead one is taken over, if the caller
 * wants that, by a swap that names the version which was read: of many who try, one gets it.
 *
 * A lost reply needs no care of its own: the record carries the attempt, so that a conflict with
 * ourselves is seen as such. A caller who goes without having been told leaves the record, if there is
 * one, to be withdrawn (finish.c). */
#define _GNU_SOURCE
#include "recipes/once.h"

#include "core/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FIRST_PAUSE (10 * DIBS__MS)
#define MAX_PAUSE   (250 * DIBS__MS)
#define SLICE       DIBS__SECOND /* a wake-up may be lost, a wait cancelled, a handle closed */

/* ---- Options --------------------------------------------------------------------------------- */

static dibs_status check_spans(const dibs_once_options *o, dibs_error *err)
{
    dibs_status status =
        dibs__check_ms("keep_ms", o->keep_ms, 1, DIBS__MAX_MS, DIBS__OR_FOREVER, err);

    if (status == DIBS_OK)
        status =
            dibs__check_ms("tombstone_ms", o->tombstone_ms, 1, DIBS__MAX_MS, DIBS__OR_FOREVER, err);
    if (status == DIBS_OK)
        status = dibs__check_wait(o->wait_ms, err);
    return status == DIBS_OK ? dibs__check_lease(o->lease_ms, err) : status;
}

static dibs_status check_options(const char *key, const dibs_once_options *o, dibs_error *err)
{
    dibs_status status = dibs__check_text("a key", key, false, err);

    if (status == DIBS_OK && o->scope)
        status = dibs__check_text("a scope", o->scope, true, err);
    if (status == DIBS_OK)
        status = check_spans(o, err);
    if (status == DIBS_OK)
        status = dibs__check_fingerprint(o->fingerprint, o->fingerprint_size, err);
    if (status != DIBS_OK)
        return status;
    if (o->owner && (!*o->owner || strlen(o->owner) > DIBS_OWNER_MAX))
        return dibs__fail(err, DIBS_INVALID, "invalid owner: give 1 to %d bytes", DIBS_OWNER_MAX);
    if ((unsigned)o->on_crash > DIBS_CRASH_RERUN)
        return dibs__fail(err, DIBS_INVALID, "on_crash: DIBS_CRASH_REFUSE or DIBS_CRASH_RERUN");
    return DIBS__CHECK_RESERVED(o, err);
}

static int64_t span_of(int64_t ms, int64_t standard)
{
    return ms == DIBS_FOREVER ? DIBS__NEVER : ms ? ms * DIBS__MS : standard;
}

static void fill_record(dibs_once *o, const dibs_once_options *options)
{
    dibs *d = o->d;
    dibs__run_record *r = &o->mine;

    r->state = DIBS__RUN_RUNNING;
    r->pid = d->pid;
    r->lease = span_of(options->lease_ms, d->run_lease);
    r->keep = span_of(options->keep_ms, DIBS__DAY_MS * DIBS__MS);
    r->tombstone = span_of(options->tombstone_ms, 0);
    snprintf(r->host, sizeof r->host, "%s", d->host);
    if (options->owner)
        snprintf(r->owner, sizeof r->owner, "%s", options->owner);
    else if (d->owner[0])
        snprintf(r->owner, sizeof r->owner, "%s", d->owner);
    else
        dibs__thread_owner(d, r->owner, sizeof r->owner);
    dibs__stamp(d, r->attempt);
}

static dibs_once *new_once(dibs *d, const char *key, const dibs_once_options *options)
{
    size_t size = strlen(key) + 1;
    dibs_once *o = calloc(1, sizeof *o + size + options->fingerprint_size);

    if (!o)
        return NULL;
    o->d = d;
    o->refs = 1;
    o->on_crash = options->on_crash;
    o->on_lost = options->on_lost;
    o->data = options->data;
    memcpy(o->key, key, size);
    if (options->fingerprint_size)
        memcpy(o->key + size, options->fingerprint, options->fingerprint_size);
    o->mine.fingerprint = o->key + size;
    o->mine.fingerprint_size = options->fingerprint_size;
    dibs__key(DIBS__KEY_ONCE, options->scope ? options->scope : "", key, o->cell);
    fill_record(o, options);
    return o;
}

/* Into the handle's list, with a place among the keeper's maintenance: nothing can fail once the engine
 * has said yes. */
static dibs_status enlist(dibs_once *o, dibs_error *err)
{
    dibs *d = o->d;
    bool closing, reserved;

    pthread_mutex_lock(&d->mutex);
    closing = d->closing;
    reserved = !closing && dibs__keeper_reserve(d);
    if (reserved) {
        o->next = d->onces;
        o->at = &d->onces;
        if (o->next)
            o->next->at = &o->next;
        d->onces = o;
        d->end_onces = dibs__onces_end;
        d->free_onces = dibs__onces_free;
    }
    pthread_mutex_unlock(&d->mutex);
    if (closing)
        return dibs__closing(err);
    return reserved ? DIBS_OK
                    : dibs__fail(err, DIBS_NO_MEMORY, "'%.200s': out of memory or threads", o->key);
}

/* ---- What the record says -------------------------------------------------------------------- */

/* Takes the reply's data. */
static dibs_status read_theirs(dibs_once *o, dibs__cell_reply *reply, dibs__deadline sent,
                               dibs_error *err)
{
    dibs__run_record r;
    dibs_status status = dibs__record_decode(reply->data, reply->size, &r, err);

    if (status != DIBS_OK) {
        dibs__wrap(err, "'%.200s'", o->key);
        return status;
    }
    pthread_mutex_lock(&o->d->mutex);
    dibs__steps_free(o->mine.steps);
    o->mine.steps = r.steps;
    r.steps = NULL;
    o->theirs = r;
    free(o->raw);
    o->raw = reply->data;
    reply->data = NULL;
    o->version = reply->version;
    o->age = reply->age;
    o->left = reply->left;
    o->read_at = sent;
    o->phase = DIBS__ONCE_THEIRS;
    pthread_mutex_unlock(&o->d->mutex);
    return DIBS_OK;
}

static uint64_t fence_of_theirs(const dibs_once *o)
{
    return (o->theirs.fence ? o->theirs.fence : o->version) + o->d->base;
}

static dibs_status say_running(const dibs_once *o, dibs_error *err)
{
    const dibs__run_record *r = &o->theirs;
    int64_t left_ms = (r->lease - o->age) / DIBS__MS;

    dibs__fail(
        err, DIBS_RUNNING,
        "'%.200s': already in progress by %s on %s (process %lld); its lease expires in %lld ms",
        o->key, r->owner, r->host, (long long)r->pid, (long long)left_ms);
    dibs__error_holder(err, r->owner, r->host, r->pid, fence_of_theirs(o), left_ms);
    return DIBS_RUNNING;
}

/* What is put back if our run comes to nothing. It says whose crash it is: that one may know that it never
 * ran. */
static void note_crash(dibs_once *o)
{
    dibs__run_record *b = &o->before;

    *b = o->theirs;
    b->state = DIBS__RUN_ABANDONED;
    b->fence = b->fence ? b->fence : o->version;
    if (!b->crashed[0])
        memcpy(b->crashed, b->attempt, sizeof b->crashed);
    memcpy(b->attempt, o->mine.attempt, sizeof b->attempt);
    b->fingerprint = o->mine.fingerprint; /* it is the same */
    o->took_over = true;
    o->before_until = o->left == INT64_MAX ? DIBS__NEVER : o->read_at + o->left;
}

/* DIBS_OK: take over. */
static dibs_status crashed(dibs_once *o, dibs_error *err)
{
    const dibs__run_record *r = &o->theirs;

    o->answer = DIBS_CRASHED;
    if (o->on_crash == DIBS_CRASH_RERUN) {
        note_crash(o);
        return DIBS_OK;
    }
    dibs__fail(
        err, DIBS_CRASHED,
        "'%.200s': an earlier run by %s on %s (process %lld) died; its outcome is unknown: find "
        "out what it did, then dibs_once_rerun",
        o->key, r->owner, r->host, (long long)r->pid);
    dibs__error_holder(err, r->owner, r->host, r->pid, fence_of_theirs(o), 0);
    return DIBS_CRASHED;
}

static bool same_fingerprint(const dibs__run_record *a, const dibs__run_record *b)
{
    return a->fingerprint_size == b->fingerprint_size &&
           (a->fingerprint_size == 0 ||
            memcmp(a->fingerprint, b->fingerprint, a->fingerprint_size) == 0);
}

/* It was given to us, and we were not told; or another has taken that for a crash, and put it back as one. */
static bool is_own(const dibs_once *o)
{
    const dibs__run_record *r = &o->theirs;

    return r->state == DIBS__RUN_RUNNING ? strcmp(r->attempt, o->mine.attempt) == 0
                                         : strcmp(r->crashed, o->mine.attempt) == 0;
}

/* A take-over that was not answered names the version that is there now: it may be on its way. One that
 * names nothing does no harm, because there is something. */
static bool may_still_come(const dibs_once *o)
{
    return o->tried != 0 && o->tried == o->version;
}

/* Ours was there, perhaps, and who runs it now, or did, has taken it for a crash. */
static bool may_hide_ours(const dibs_once *o)
{
    return o->theirs.state == DIBS__RUN_RUNNING || o->theirs.state == DIBS__RUN_ABANDONED;
}

/* DIBS_OK: it may be taken over. */
static dibs_status judge(dibs_once *o, dibs_error *err)
{
    const dibs__run_record *r = &o->theirs;

    if (is_own(o)) {
        o->theirs.runs--; /* the same run */
        return DIBS_OK;
    }
    if (r->state == DIBS__RUN_FREE) {
        o->theirs.runs = 0;
        o->took_over = false;
        return DIBS_OK;
    }
    if (!same_fingerprint(r, &o->mine))
        return dibs__fail(err, DIBS_MISMATCH,
                          "'%.200s' was used with a different fingerprint: use another key",
                          o->key);
    switch (r->state) {
    case DIBS__RUN_DONE:
    case DIBS__RUN_FAILED:
        if (o->age < r->keep)
            return DIBS_ALREADY;
        return dibs__fail(err, DIBS_EXPIRED,
                          "'%.200s' was used, and its result is no longer kept: use another key",
                          o->key);
    case DIBS__RUN_RUNNING:
        return o->age < r->lease ? say_running(o, err) : crashed(o, err);
    case DIBS__RUN_ABANDONED:
    case DIBS__RUN_FREE:
        break;
    }
    return crashed(o, err);
}

/* A take-over that does not get through can be asked for again. */
static dibs_status judge_and_note(dibs_once *o, dibs_error *err)
{
    dibs_status status = judge(o, err);

    o->answer = status == DIBS_OK ? DIBS_RUNNING : status;
    return status;
}

/* ---- Asking ---------------------------------------------------------------------------------- */

/* `take` 0: as the first. Else in the place of the run whose record has that version. */
static dibs_status try_take(dibs_once *o, uint64_t take, dibs__deadline until,
                            dibs__cell_reply *reply, dibs__deadline *sent, dibs_error *err)
{
    dibs *d = o->d;
    dibs__run_record r = o->mine;
    char stamp[DIBS__STAMP_SIZE];
    dibs__cell_command c = {.op = DIBS__CELL_SWAP,
                            .version = take,
                            .stamp = stamp,
                            .alive = true,
                            .lease = o->mine.lease};
    void *bytes;
    bool unsure = false;
    dibs_status status;

    r.since = d->env->wall(d->env->ctx);
    r.runs = take ? o->theirs.runs + 1 : 1;
    if (!take)
        r.steps = NULL;
    bytes = dibs__record_encode(&r, &c.size);
    if (!bytes)
        return dibs__fail(err, DIBS_NO_MEMORY, "'%.200s': out of memory", o->key);
    c.data = bytes;
    c.keep = dibs__record_life(&r);
    dibs__stamp(d, stamp);
    *sent = dibs__now(d->env);
    status = dibs__cell_do(d, o->cell, &c, false, until, reply, &unsure, err);
    free(bytes);
    if (unsure) { /* until it is read what is there: the last answer says nothing about the first request */
        o->maybe_there = true;
        o->tried = take ? take : o->tried;
    }
    if (status == DIBS_OK && reply->verdict == DIBS__CELL_DONE) {
        o->mine.since = r.since;
        o->mine.runs = r.runs;
    }
    return status;
}

/* The engine has given it to us. False: it took so long that it is over by our clock; then it is there,
 * and nobody runs it. */
static bool become_ours(dibs_once *o, bool first, uint64_t version, dibs__deadline sent)
{
    bool ours;

    pthread_mutex_lock(&o->d->mutex);
    if (first) {
        dibs__steps_free(o->mine.steps);
        o->mine.steps = NULL;
        o->took_over = false;
    }
    ours = dibs__run_begin(o, sent, version);
    o->maybe_there = !ours;
    pthread_mutex_unlock(&o->d->mutex);
    return ours;
}

/* `take`: as in try_take. */
static dibs_status ask(dibs_once *o, uint64_t take, dibs__deadline until, dibs_error *err)
{
    for (;;) {
        dibs__cell_reply reply;
        dibs__deadline sent = 0;
        dibs_status status = try_take(o, take, until, &reply, &sent, err);
        if (status != DIBS_OK)
            return status;
        if (reply.verdict == DIBS__CELL_DONE) {
            if (become_ours(o, take == 0, reply.version, sent))
                return DIBS_OK;
            take = reply.version; /* nobody has done anything: once more */
            o->theirs.runs = o->mine.runs - 1;
        } else if (reply.verdict == DIBS__CELL_ABSENT) {
            take = 0;
            o->took_over = o->maybe_there = false;
        } else if (reply.verdict == DIBS__CELL_CONFLICT) {
            status = read_theirs(o, &reply, sent, err);
            free(reply.data);
            if (status == DIBS_OK) {
                o->maybe_there =
                    is_own(o) || may_still_come(o) || (o->maybe_there && may_hide_ours(o));
                status = judge_and_note(o, err);
            }
            if (status != DIBS_OK)
                return status;
            take = o->version;
        } else {
            return dibs__fail(err, DIBS_ENGINE_FAILED,
                              "'%.200s': the engine has unexpected data there", o->key);
        }
        if (dibs__now(o->d->env) >= until)
            return dibs__fail(err, DIBS_UNAVAILABLE, "'%.200s': no answer in time", o->key);
    }
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static uint64_t cancels_of(dibs *d)
{
    uint64_t n;

    pthread_mutex_lock(&d->mutex);
    n = d->cancels;
    pthread_mutex_unlock(&d->mutex);
    return n;
}

static void nap(const dibs *d, dibs__deadline until, int64_t *pause)
{
    int64_t left = until - dibs__now(d->env);
    int64_t span = *pause < left ? *pause : left;

    dibs__sleep(d->env, span);
    *pause = dibs__longer(*pause, FIRST_PAUSE, MAX_PAUSE);
}

/* Until something may have changed. */
static void wait_for_news(dibs_once *o, dibs__deadline until, int64_t *pause)
{
    dibs *d = o->d;
    dibs__deadline soon = dibs__after(d->env, 2 * DIBS__MS);
    int64_t left = o->theirs.lease - o->age;
    dibs__deadline dead = left > DIBS__NEVER - o->read_at ? DIBS__NEVER : o->read_at + left;
    dibs_status status = DIBS_UNSUPPORTED;

    until = dibs__sooner(until, dibs__after(d->env, SLICE));
    until = dibs__sooner(until, dead > soon ? dead : soon);
    if (dibs__begin_call(d))
        status = dibs__cell_wait(d, o->cell, o->version, until, NULL);
    dibs__end_call(d);
    if (status != DIBS_OK)
        nap(d, until, pause);
}

static bool will_pass(dibs_status status)
{
    return status == DIBS_RUNNING || status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN;
}

/* After DIBS_RUNNING. An engine that does not answer for a while does not end the wait. */
static dibs_status wait_for_end(dibs_once *o, dibs__deadline until, dibs_error *err)
{
    dibs *d = o->d;
    uint64_t cancels = cancels_of(d);
    int64_t pause = FIRST_PAUSE;
    dibs_status status = DIBS_RUNNING;

    while (will_pass(status) && dibs__now(d->env) < until) {
        if (status == DIBS_RUNNING)
            wait_for_news(o, until, &pause);
        else
            nap(d, until, &pause);
        if (cancels_of(d) != cancels)
            return dibs__fail(err, DIBS_CANCELLED, "'%.200s': the wait was cancelled", o->key);
        status = ask(o, 0, dibs__request_until(d, until), err);
    }
    return status;
}

/* Whoever does not want to wait gives the engine the time of one request. */
static dibs__deadline patience(const dibs *d, int64_t wait_ms)
{
    return wait_ms == DIBS_NO_WAIT ? DIBS__NEVER : dibs__wait_until(d, wait_ms);
}

/* ---- The calls ------------------------------------------------------------------------------- */

/* Statuses that leave something to look at. */
bool dibs__once_is_answer(dibs_status status)
{
    return status == DIBS_OK || status == DIBS_ALREADY || status == DIBS_RUNNING ||
           status == DIBS_MISMATCH || status == DIBS_CRASHED || status == DIBS_EXPIRED;
}

/* The last step of a call that was given the run. If it was lost before that, nobody has run anything: it
 * can be asked for again, and is withdrawn if it is not. */
static dibs_status deliver(dibs_once *o, dibs_error *err)
{
    dibs *d = o->d;
    bool held;

    pthread_mutex_lock(&d->mutex);
    held = o->phase == DIBS__ONCE_OURS && dibs_once_held(o);
    if (held) {
        o->delivered = true;
    } else {
        while (o->busy) /* with a renewal: what follows speaks for it alone */
            pthread_cond_wait(&d->quiet, &d->mutex);
        dibs__run_retire(o, DIBS__ONCE_THEIRS);
        o->answer = DIBS_RUNNING;
        o->maybe_there = true;
    }
    pthread_mutex_unlock(&d->mutex);
    return held ? DIBS_OK
                : dibs__fail(err, DIBS_UNAVAILABLE,
                             "'%.200s': begun, and lost before it could be used", o->key);
}

dibs_status dibs__do_once_begin(dibs *d, const char *key, const dibs_once_options *options,
                                dibs_once **out, dibs_error *err)
{
    static const dibs_once_options defaults;
    const dibs_once_options *o = options ? options : &defaults;
    int64_t wait_ms;
    dibs__deadline until;
    dibs_once *once;
    dibs_status status = dibs__cells_ready(d, err);

    *out = NULL;
    if (status == DIBS_OK)
        status = check_options(key, o, err);
    if (status != DIBS_OK)
        return status;
    wait_ms = dibs__wait_ms(d, o->wait_ms);
    until = patience(d, wait_ms);
    once = new_once(d, key, o);
    if (!once)
        return dibs__fail(err, DIBS_NO_MEMORY, "'%.200s': out of memory", key);
    status = enlist(once, err);
    if (status != DIBS_OK) {
        free(once);
        return status;
    }
    dibs__stay(d);
    status = ask(once, 0, dibs__request_until(d, until), err);
    if (status == DIBS_RUNNING && wait_ms != DIBS_NO_WAIT)
        status = wait_for_end(once, until, err);
    if (status == DIBS_OK)
        status = deliver(once, err);
    if (dibs__once_is_answer(status))
        *out = once;
    else
        dibs_once_free(once);
    dibs__go(d);
    return status;
}

/* What there is to wait for. DIBS_RUNNING: a run of another's. */
static dibs_status state_of(dibs_once *o, dibs_error *err)
{
    dibs_status status;

    pthread_mutex_lock(&o->d->mutex);
    status = o->phase == DIBS__ONCE_THEIRS ? o->answer : DIBS_INVALID;
    pthread_mutex_unlock(&o->d->mutex);
    if (status == DIBS_INVALID)
        dibs__fail(err, status, "'%.200s': no run in progress to wait for", o->key);
    return status;
}

dibs_status dibs__do_once_wait(dibs_once *o, int64_t wait_ms, dibs_error *err)
{
    dibs *d = o->d;
    dibs_status status;

    if (!dibs__same_process(d))
        return dibs__forked(err);
    status = dibs__check_wait(wait_ms, err);
    if (status == DIBS_OK)
        status = state_of(o, err);
    if (status != DIBS_RUNNING)
        return status;
    dibs__stay(d);
    wait_ms = dibs__wait_ms(d, wait_ms);
    if (wait_ms == DIBS_NO_WAIT)
        status = ask(o, 0, dibs__after(d->env, d->request_span), err);
    else
        status = wait_for_end(o, patience(d, wait_ms), err);
    if (status == DIBS_OK)
        status = deliver(o, err);
    dibs__go(d);
    return status;
}

dibs_status dibs__do_once_rerun(dibs_once *o, dibs_error *err)
{
    dibs *d = o->d;
    dibs_status status;

    if (!dibs__same_process(d))
        return dibs__forked(err);
    pthread_mutex_lock(&d->mutex);
    status = o->phase == DIBS__ONCE_THEIRS && o->answer == DIBS_CRASHED ? DIBS_OK : DIBS_INVALID;
    pthread_mutex_unlock(&d->mutex);
    if (status != DIBS_OK)
        return dibs__fail(err, status, "'%.200s': no run that died: there is nothing to rerun",
                          o->key);
    dibs__stay(d);
    note_crash(o);
    o->answer = DIBS_RUNNING; /* if it does not get through, it can be asked for again */
    status = ask(o, o->version, dibs__after(d->env, d->request_span), err);
    if (status == DIBS_OK)
        status = deliver(o, err);
    dibs__go(d);
    return status;
}
