/* What a dibs_once says without asking anybody: how another's run ended, who runs it, whether ours is
 * still ours. */
#define _GNU_SOURCE
#include "recipes/once.h"

#include <string.h>

/* ---- Of another's ---------------------------------------------------------------------------- */

const void *dibs_once_result(const dibs_once *o, size_t *size)
{
    bool there = o->answer == DIBS_ALREADY && o->theirs.has_result;

    if (size)
        *size = there ? o->theirs.result_size : 0;
    return there ? o->theirs.result : NULL;
}

int dibs_once_code(const dibs_once *o)
{
    return o->answer == DIBS_ALREADY ? o->theirs.code : 0;
}

bool dibs_once_failed(const dibs_once *o)
{
    return o->answer == DIBS_ALREADY && o->theirs.state == DIBS__RUN_FAILED;
}

static int64_t left_of(const dibs_once *o)
{
    const dibs__run_record *r = &o->theirs;
    int64_t age = o->age < INT64_MAX ? o->age + (dibs__now(o->d->env) - o->read_at) : INT64_MAX;
    int64_t span = r->state == DIBS__RUN_RUNNING     ? r->lease
                   : r->state == DIBS__RUN_ABANDONED ? 0
                                                     : r->keep;

    if (span == INT64_MAX)
        return DIBS_FOREVER;
    return span > age ? (span - age) / DIBS__MS : 0;
}

void dibs_once_runner(const dibs_once *o, dibs_party *out, size_t size)
{
    const dibs__run_record *r;
    dibs_party party;
    bool is_theirs;

    memset(out, 0, size);
    if (!dibs__same_process(o->d))
        return;
    pthread_mutex_lock(&o->d->mutex);
    is_theirs = o->phase == DIBS__ONCE_THEIRS;
    pthread_mutex_unlock(&o->d->mutex);
    r = is_theirs ? &o->theirs : &o->mine;
    party = (dibs_party){
        .owner = r->owner,
        .host = r->host,
        .pid = r->pid,
        .since_ms = r->since / DIBS__MS,
        .left_ms = is_theirs ? left_of(o) : dibs_once_remaining_ms(o),
        .fence = (is_theirs && r->fence == 0 ? o->version : r->fence) + o->d->base,
        .weight = 1,
    };
    memcpy(out, &party, size < sizeof party ? size : sizeof party);
}

/* ---- Of ours --------------------------------------------------------------------------------- */

uint64_t dibs_once_fence(const dibs_once *o)
{
    return o->mine.fence + o->d->base;
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
