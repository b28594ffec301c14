/* Many threads, one connection: whoever finds it idle does everybody's jobs.
 *
 * A thread queues its job. If nobody drives, it drives: takes all that is queued into one
 * transaction, and again what came meanwhile, for a few rounds; then it hands the wheel to the
 * first in the queue. So one thread alone pays no hop, and many share one commit. A job that has
 * not been taken can still be withdrawn when its deadline comes; once taken, it is a matter of one
 * transaction, and its outcome is always known. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/thread.h"
#include "engines/sqlite/sqlite.h"

#define ROUNDS 8

/* ---- Sleeping -------------------------------------------------------------------------------- */

/* The job may be gone as soon as it is done: then the wake-up is a false one for somebody else. */
static void advance(dibs__lite_job *job, dibs__lite_progress progress)
{
    bool sleeps = job->sleeps;

    atomic_store_explicit(&job->progress, progress, memory_order_release);
    if (sleeps)
        dibs__word_wake(&job->progress);
}

static dibs__lite_progress progress_of(dibs__lite_job *job)
{
    return (dibs__lite_progress)atomic_load_explicit(&job->progress, memory_order_acquire);
}

/* Until it is done or ours to drive, or `until` has come. */
static dibs__lite_progress sleep_until(dibs__lite *e, dibs__lite_job *job, dibs__deadline until)
{
    int progress = progress_of(job), before;

    do {
        before = progress;
        if (progress != DIBS__LITE_DONE && progress != DIBS__LITE_DRIVE)
            progress = dibs__word_sleep(&job->progress, before, e->base.env, until);
    } while (progress != before);
    return (dibs__lite_progress)progress;
}

/* ---- The queue ------------------------------------------------------------------------------- */

/* True: nobody drove, we do. */
static bool enqueue(dibs__lite *e, dibs__lite_job *job)
{
    bool drive;

    pthread_mutex_lock(&e->mutex);
    job->next = NULL;
    *e->last = job;
    e->last = &job->next;
    drive = !e->driving;
    e->driving = true;
    job->sleeps = !drive;
    pthread_mutex_unlock(&e->mutex);
    return drive;
}

bool dibs__lite_lasting(dibs__lite *e)
{
    bool lasting = false;

    pthread_mutex_lock(&e->mutex);
    for (dibs__lite_job *job = e->first; job && !lasting; job = job->next)
        lasting = dibs__lite_cell_lasts(job);
    pthread_mutex_unlock(&e->mutex);
    return lasting;
}

dibs__lite_job *dibs__lite_take(dibs__lite *e)
{
    dibs__lite_job *jobs;

    pthread_mutex_lock(&e->mutex);
    jobs = e->first;
    e->first = NULL;
    e->last = &e->first;
    for (dibs__lite_job *job = jobs; job; job = job->next)
        atomic_store_explicit(&job->progress, DIBS__LITE_TAKEN, memory_order_relaxed);
    pthread_mutex_unlock(&e->mutex);
    return jobs;
}

void dibs__lite_done(dibs__lite_job *job)
{
    advance(job, DIBS__LITE_DONE);
}

/* With the mutex. False: it has been taken. */
static bool withdraw(dibs__lite *e, dibs__lite_job *job)
{
    dibs__lite_job **at = &e->first;

    while (*at && *at != job)
        at = &(*at)->next;
    if (!*at)
        return false;
    *at = job->next;
    if (e->last == &job->next)
        e->last = at;
    return true;
}

static void say_late(dibs__lite *e, dibs__lite_job *job)
{
    job->status = dibs__fail(
        job->err, DIBS_UNAVAILABLE,
        "sqlite: %.400s: locked by another process for too long; look for a process that is "
        "stopped or has a transaction open",
        e->path);
    for (size_t i = 0; i < job->count; i++)
        job->claims[i]->status = DIBS_UNAVAILABLE;
}

/* ---- Driving --------------------------------------------------------------------------------- */

/* With the mutex: the next in the queue drives, if there is one. */
static void hand_on(dibs__lite *e)
{
    dibs__lite_job *next = e->first;

    e->driving = next != NULL;
    if (next)
        advance(next, DIBS__LITE_DRIVE);
}

static void drive(dibs__lite *e, dibs__lite_job *job)
{
    bool idle = false;

    for (int round = 0; round < ROUNDS && !idle; round++) {
        bool went = dibs__lite_batch(e, job->until);
        pthread_mutex_lock(&e->mutex);
        idle = !went || !e->first;
        if (idle || round == ROUNDS - 1) {
            if (progress_of(job) != DIBS__LITE_DONE && withdraw(e, job))
                say_late(e, job);
            hand_on(e);
        }
        pthread_mutex_unlock(&e->mutex);
    }
}

dibs_status dibs__lite_do(dibs__lite *e, dibs__lite_job *job)
{
    dibs__lite_progress progress = DIBS__LITE_DRIVE;

    atomic_init(&job->progress, DIBS__LITE_QUEUED);
    if (!enqueue(e, job))
        progress = sleep_until(e, job, job->until);
    if (progress == DIBS__LITE_QUEUED || progress == DIBS__LITE_TAKEN) {
        pthread_mutex_lock(&e->mutex);
        progress = progress_of(job);
        bool ours = progress == DIBS__LITE_QUEUED && withdraw(e, job);
        pthread_mutex_unlock(&e->mutex);
        if (ours) {
            say_late(e, job);
            return job->status;
        }
        progress = sleep_until(e, job, DIBS__NEVER);
    }
    if (progress == DIBS__LITE_DRIVE) {
        job->sleeps = false;
        drive(e, job);
    }
    return job->status;
}
