/* Handles that are closed after the case, also when it failed half-way, and threads that lock on them. */
#ifndef DIBS_TESTS_JOBS_H
#define DIBS_TESTS_JOBS_H

#include "support/calls.h"

#include <pthread.h>
#include <stdatomic.h>

#define SOON_MS 5000  /* what happens "at once" happens within this, on the slowest machine */
#define LONG_MS 30000 /* what takes longer than this hangs */

#define HANDLES_MAX 64

/* ---- Handles --------------------------------------------------------------------------------- */

dibs *open_at(const char *url, const dibs_options *options); /* or the case fails */
dibs *handle_at(size_t i); /* of those that are open, one or NULL; i < HANDLES_MAX */
void close_handle(dibs *d);

/* Joins the threads that are done, closes all handles, which ends the waits of the other threads, and joins
 * those. */
void close_handles(void);

/* ---- Locks ----------------------------------------------------------------------------------- */

/* Waits for LONG_MS if `options` says nothing about it; or the case fails. */
dibs_grant *take(dibs *d, const char *name, const dibs_lock_options *options);
dibs_status try_lock(dibs *d, const char *name); /* gives it back when it was free */

/* ---- Threads that lock ----------------------------------------------------------------------- */

typedef struct job {
    pthread_t thread;
    dibs *d;
    char name[DIBS_NAME_MAX + 1];
    dibs_lock_options options;
    atomic_bool done;
    dibs_status status;
    dibs_error err;
    dibs_grant *g;
    uint64_t fence;
    bool held;               /* at the moment it was granted */
    const dibs_grant *rival; /* looked at in that moment */
    bool rival_held;
    int64_t at; /* clock_ms() when it came back */
} job;

/* A thread calls dibs_lock and ends. The grant, if any, is the job's. */
job *job_start(dibs *d, const char *name, const dibs_lock_options *options);
job *job_start_against(dibs *d, const char *name, const dibs_lock_options *options,
                       const dibs_grant *rival);
bool job_done_within(job *j, int64_t ms);
void job_join(job *j);      /* within LONG_MS, or the case fails */
void job_join_held(job *j); /* and it has the lock */

/* ---- Losses ---------------------------------------------------------------------------------- */

typedef struct loss_note {
    atomic_int count;
    atomic_int why;
    pthread_t thread;
    int64_t at;
} loss_note;

/* For dibs_lock_options.on_lost, with a loss_note as data. */
void note_loss(void *data, dibs_grant *g, dibs_loss why);
bool loss_within(loss_note *n, int64_t ms);

#endif
