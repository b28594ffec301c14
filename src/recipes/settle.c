/* What operators decide about keys of `once`: forgotten, or the outcome of a run that died.
 *
 * Both read the record, judge it, and swap the version that was read for what was decided: whoever changed the
 * key in between is not overwritten, and a late finish of the old run finds another version. A key that is
 * forgotten becomes a free record and not nothing, because of late requests (dibs__record_life). If another was
 * faster, the record is read and judged again; but if our own answer was lost on the way, ours may have been
 * there in between, and to do it again could undo what happened since: the caller has to look. */
#define _GNU_SOURCE
#include "recipes/keys.h"

#include "core/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What to do, and about what. */
typedef struct decision {
    dibs *d;
    const char *key;
    const char *by;
    uint64_t version; /* 0: any */
    dibs_once_state outcome;
    bool forget;  /* whatever its state */
    bool running; /* forget: even a run in progress */
    const void *result;
    size_t size;
    int code;
    char cell[DIBS__CELL_KEY_SIZE];
} decision;

/* ---- Judging --------------------------------------------------------------------------------- */

static dibs_status say_running(const decision *c, const dibs__run_record *r,
                               const dibs__cell_reply *reply, dibs_error *err)
{
    dibs__fail(
        err, DIBS_RUNNING,
        "'%.200s': in progress by %s on %s (process %lld); only the option `running` forgets "
        "it",
        c->key, r->owner, r->host, (long long)r->pid);
    dibs__error_holder(err, r->owner, r->host, r->pid,
                       (r->fence ? r->fence : reply->version) + c->d->base,
                       (r->lease - reply->age) / DIBS__MS);
    return DIBS_RUNNING;
}

static dibs_status say_changed(const decision *c, dibs_error *err)
{
    return dibs__fail(err, DIBS_CONFLICT,
                      "'%.200s' has changed since it was inspected: inspect it again", c->key);
}

static dibs_status judge_outcome(const decision *c, dibs_once_state state, dibs_error *err)
{
    dibs_once_state wanted =
        c->outcome == DIBS_ONCE_CRASHED ? DIBS_ONCE_RUNNING : DIBS_ONCE_CRASHED;

    if (state == wanted)
        return DIBS_OK;
    return dibs__fail(err, DIBS_CONFLICT, "'%.200s' is %s, and not %s: nothing was changed", c->key,
                      dibs_once_state_name(state), dibs_once_state_name(wanted));
}

/* DIBS_OK: write. DIBS_ALREADY: it is as it should be. */
static dibs_status judge(const decision *c, const dibs__run_record *r,
                         const dibs__cell_reply *reply, dibs_error *err)
{
    dibs_once_state state = dibs__once_state_of(r, reply->age);

    if (c->forget && state == DIBS_ONCE_FREE)
        return DIBS_ALREADY;
    if (c->version && c->version != reply->version)
        return say_changed(c, err);
    if (!c->forget)
        return judge_outcome(c, state, err);
    return state == DIBS_ONCE_RUNNING && !c->running ? say_running(c, r, reply, err) : DIBS_OK;
}

/* What a newer version of dibs wrote may be a run in progress. */
static dibs_status judge_damaged(const decision *c, const dibs__cell_reply *reply, dibs_error *err)
{
    if (c->version && c->version != reply->version)
        return say_changed(c, err);
    if (c->forget && c->running)
        return DIBS_OK;
    dibs__wrap(err, "'%.200s'", c->key);
    return DIBS_ENGINE_FAILED;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* In the place of `r`, whose runner it still names. */
static dibs__run_record decided(const decision *c, const dibs__run_record *r, uint64_t version)
{
    dibs__run_record new = *r;

    new.fence = r->fence ? r->fence : version;
    new.crashed[0] = '\0';
    snprintf(new.decided_by, sizeof new.decided_by, "%s", c->by);
    dibs__stamp(c->d, new.attempt);
    if (c->outcome == DIBS_ONCE_CRASHED) { /* its steps stay; whose crash it is, as in note_crash */
        new.state = DIBS__RUN_ABANDONED;
        snprintf(new.crashed, sizeof new.crashed, "%s", r->crashed[0] ? r->crashed : r->attempt);
        return new;
    }
    new.steps = NULL;
    new.state = c->outcome == DIBS_ONCE_DONE     ? DIBS__RUN_DONE
                : c->outcome == DIBS_ONCE_FAILED ? DIBS__RUN_FAILED
                                                 : DIBS__RUN_FREE;
    new.has_result = c->result != NULL;
    new.result = c->result;
    new.result_size = c->size;
    new.code = c->code;
    if (new.state == DIBS__RUN_FREE) {
        new.runs = 0;
        new.fingerprint_size = 0;
    }
    return new;
}

/* `*again`: another was faster. */
static dibs_status write(const decision *c, const dibs__run_record *r, uint64_t version,
                         dibs__deadline until, bool *again, dibs_error *err)
{
    dibs__run_record new = decided(c, r, version);
    char stamp[DIBS__STAMP_SIZE];
    dibs__cell_command swap = {.op = DIBS__CELL_SWAP, .version = version, .stamp = stamp};
    void *bytes = dibs__record_encode(&new, &swap.size);
    dibs__cell_reply reply = {0};
    bool unsure = false;
    dibs_status status;

    *again = false;
    if (!bytes)
        return dibs__fail(err, DIBS_NO_MEMORY, "'%.200s': out of memory", c->key);
    swap.data = bytes;
    swap.keep = dibs__record_life(&new);
    dibs__stamp(c->d, stamp);
    status = dibs__cell_do(c->d, c->cell, &swap, true, until, &reply, &unsure, err);
    free(bytes);
    free(reply.data);
    if (status != DIBS_OK || reply.verdict == DIBS__CELL_DONE)
        return status;
    if (unsure)
        return dibs__fail(
            err, DIBS_UNKNOWN,
            "'%.200s': the answer was lost, and the key has changed since: inspect it", c->key);
    *again = c->version == 0;
    return say_changed(c, err);
}

/* One look and, if it may be, one write. */
static dibs_status try_once(const decision *c, dibs__deadline until, bool *again, dibs_error *err)
{
    dibs__cell_reply reply = {0};
    dibs__run_record r = {0};
    dibs_error why = {0};
    dibs_status status = dibs__once_read(c->d, c->cell, c->key, &reply, until, err);

    *again = false;
    if (status == DIBS_OK) {
        status = dibs__record_decode(reply.data, reply.size, &r, &why);
        if (status == DIBS_ENGINE_FAILED) {
            memset(&r, 0, sizeof r);
            status = judge_damaged(c, &reply, &why);
        } else if (status == DIBS_OK) {
            status = judge(c, &r, &reply, &why);
        }
        if (err && status != DIBS_OK)
            *err = why;
    }
    if (status == DIBS_OK)
        status = write(c, &r, reply.version, until, again, err);
    dibs__steps_free(r.steps);
    free(reply.data);
    return status == DIBS_ALREADY ? DIBS_OK : status;
}

/* A call of several commands: dibs_close waits for the whole of it. */
static dibs_status settle(decision *c, const char *scope, dibs_error *err)
{
    dibs *d = c->d;
    dibs__deadline until = dibs__after(d->env, d->request_span);
    dibs_status status;
    bool again;

    dibs__key(DIBS__KEY_ONCE, scope ? scope : "", c->key, c->cell);
    dibs__begin_call(d);
    pthread_mutex_unlock(&d->mutex);
    do {
        status = try_once(c, until, &again, err);
    } while (again && dibs__now(d->env) < until);
    pthread_mutex_lock(&d->mutex);
    dibs__end_call(d);
    return status;
}

/* ---- The calls ------------------------------------------------------------------------------- */

static dibs_status check(dibs *d, const char *scope, const char *key, const char *by,
                         dibs_error *err)
{
    dibs_status status = dibs__check_key(d, scope, key, err);

    if (status == DIBS_OK && by && strnlen(by, DIBS_OWNER_MAX + 1) > DIBS_OWNER_MAX)
        status = dibs__fail(err, DIBS_INVALID, "by: at most %d bytes", DIBS_OWNER_MAX);
    return status;
}

static const char *who(const char *by)
{
    return by && *by ? by : "?";
}

dibs_status dibs__do_once_forget(dibs *d, const char *key, const dibs_once_forget_options *options,
                                 dibs_error *err)
{
    static const dibs_once_forget_options defaults;
    const dibs_once_forget_options *o = options ? options : &defaults;
    decision c = {.d = d,
                  .key = key,
                  .by = who(o->by),
                  .version = o->version,
                  .outcome = DIBS_ONCE_FREE,
                  .forget = true,
                  .running = o->running};
    dibs_status status = check(d, o->scope, key, o->by, err);

    if (status == DIBS_OK)
        status = DIBS__CHECK_RESERVED(o, err);
    return status == DIBS_OK ? settle(&c, o->scope, err) : status;
}

static dibs_status check_outcome(const dibs_once_resolve_options *o, dibs_error *err)
{
    bool ends = o->outcome == DIBS_ONCE_DONE || o->outcome == DIBS_ONCE_FAILED;

    if (!ends && o->outcome != DIBS_ONCE_FREE && o->outcome != DIBS_ONCE_CRASHED)
        return dibs__fail(err, DIBS_INVALID,
                          "outcome: DIBS_ONCE_DONE, DIBS_ONCE_FAILED, DIBS_ONCE_FREE or "
                          "DIBS_ONCE_CRASHED");
    if (!ends && (o->result || o->size || o->code))
        return dibs__fail(err, DIBS_INVALID, "only DONE and FAILED have a result and a code");
    return DIBS_OK;
}

dibs_status dibs__do_once_resolve(dibs *d, const char *key,
                                  const dibs_once_resolve_options *options, dibs_error *err)
{
    static const dibs_once_resolve_options defaults;
    const dibs_once_resolve_options *o = options ? options : &defaults;
    decision c = {.d = d,
                  .key = key,
                  .by = who(o->by),
                  .version = o->version,
                  .outcome = o->outcome,
                  .result = o->result,
                  .size = o->size,
                  .code = o->code};
    dibs_status status = check(d, o->scope, key, o->by, err);

    if (status == DIBS_OK)
        status = DIBS__CHECK_RESERVED(o, err);
    if (status == DIBS_OK)
        status = check_outcome(o, err);
    if (status == DIBS_OK)
        status = dibs__check_size(d, "the result", o->result, o->size, err);
    return status == DIBS_OK ? settle(&c, o->scope, err) : status;
}
