/* See jobs.h. */
#define _GNU_SOURCE
#include "support/jobs.h"

#include "support/clock.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>

#define JOBS_MAX 256

static dibs *handles[HANDLES_MAX];
static job *jobs[JOBS_MAX];
static size_t job_count;

/* ---- Handles --------------------------------------------------------------------------------- */

dibs *open_at(const char *url, const dibs_options *options)
{
    size_t i = 0;

    while (i < HANDLES_MAX && handles[i])
        i++;
    assert_true(i < HANDLES_MAX);
    handles[i] = expect_open(url, options);
    return handles[i];
}

dibs *handle_at(size_t i)
{
    return handles[i];
}

void close_handle(dibs *d)
{
    for (size_t i = 0; i < HANDLES_MAX; i++)
        if (handles[i] == d)
            handles[i] = NULL;
    dibs_close(d);
}

static void join_those_done(void)
{
    for (size_t i = 0; i < job_count; i++)
        if (jobs[i]->thread && atomic_load(&jobs[i]->done)) {
            pthread_join(jobs[i]->thread, NULL);
            jobs[i]->thread = 0;
        }
}

void close_handles(void)
{
    join_those_done();
    for (size_t i = 0; i < HANDLES_MAX; i++) {
        if (handles[i])
            dibs_close(handles[i]);
        handles[i] = NULL;
    }
    for (size_t i = 0; i < job_count; i++) {
        if (jobs[i]->thread)
            pthread_join(jobs[i]->thread, NULL);
        free(jobs[i]);
    }
    job_count = 0;
}

/* ---- Locks ----------------------------------------------------------------------------------- */

dibs_grant *take(dibs *d, const char *name, const dibs_lock_options *options)
{
    dibs_lock_options o = options ? *options : (dibs_lock_options){0};

    if (o.wait_ms == 0)
        o.wait_ms = LONG_MS;
    return expect_lock(d, name, &o);
}

dibs_status try_lock(dibs *d, const char *name)
{
    dibs_grant *g = NULL;
    dibs_status status =
        dibs_lock(d, name, &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT}, &g, NULL);

    if (status == DIBS_OK)
        unlock(g);
    else
        assert_null(g);
    return status;
}

/* ---- Threads --------------------------------------------------------------------------------- */

static void *job_run(void *arg)
{
    job *j = arg;

    j->status = dibs_lock(j->d, j->name, &j->options, &j->g, &j->err);
    if (j->status == DIBS_OK) {
        j->rival_held = j->rival && dibs_grant_held(j->rival);
        j->held = dibs_grant_held(j->g);
        j->fence = dibs_grant_fence(j->g);
    }
    j->at = clock_ms();
    atomic_store(&j->done, true);
    return NULL;
}

job *job_start_against(dibs *d, const char *name, const dibs_lock_options *options,
                       const dibs_grant *rival)
{
    job *j = calloc(1, sizeof *j);

    assert_non_null(j);
    assert_true(job_count < JOBS_MAX);
    j->d = d;
    j->rival = rival;
    snprintf(j->name, sizeof j->name, "%s", name);
    if (options)
        j->options = *options;
    jobs[job_count++] = j;
    assert_int_equal(pthread_create(&j->thread, NULL, job_run, j), 0);
    return j;
}

job *job_start(dibs *d, const char *name, const dibs_lock_options *options)
{
    return job_start_against(d, name, options, NULL);
}

static bool job_is_done(void *ctx)
{
    return atomic_load(&((job *)ctx)->done);
}

bool job_done_within(job *j, int64_t ms)
{
    return wait_until(job_is_done, j, ms);
}

void job_join(job *j)
{
    if (!job_done_within(j, LONG_MS))
        fail_msg("a thread hangs in dibs_lock(%s)", j->name);
    pthread_join(j->thread, NULL);
    j->thread = 0;
}

void job_join_held(job *j)
{
    job_join(j);
    if (j->status != DIBS_OK)
        fail_msg("%s: %s", j->name, j->err.message);
    assert_true(j->held);
}

/* ---- Losses ---------------------------------------------------------------------------------- */

void note_loss(void *data, dibs_grant *g, dibs_loss why)
{
    loss_note *n = data;

    (void)g;
    n->thread = pthread_self();
    n->at = clock_ms();
    atomic_store(&n->why, (int)why);
    atomic_fetch_add(&n->count, 1);
}

static bool loss_came(void *ctx)
{
    return atomic_load(&((loss_note *)ctx)->count) > 0;
}

bool loss_within(loss_note *n, int64_t ms)
{
    return wait_until(loss_came, n, ms);
}
