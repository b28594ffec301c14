/* Who does everybody's jobs: the code of sqlite/dispatch.c and rows/dispatch.c itself, under every order of a few
 * threads (dispatch/search.h).
 *
 * Searched for: a role or a connection slot that nobody has and nobody will take, a thread that sleeps although it could
 * go on, a job that is done twice or never, a refusal before its time, a queue that is not empty in the end.
 * The fault that Redis had is put in, to see that the search finds it: whoever was given the role is finished
 * by another before it wakes. */
#define _GNU_SOURCE
#include "dispatch/search.h"
#include "support/test.h"

#include "core/error.h"
#include "core/thread.h"
#include "engines/sqlite/sqlite.h"
#include "families/rows/inner.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define UNTIL (1000000 + 20 * DIBS__MS)

static bool intrudes; /* the fault is in */

#define pthread_mutex_lock      sim_lock
#define pthread_mutex_unlock    sim_unlock
#define pthread_cond_wait       sim_cond_wait
#define pthread_cond_signal     sim_cond_signal
#define pthread_cond_destroy(c) ((void)(c))
#define dibs__cond_sleep        sim_cond_sleep
#define dibs__cond_init(c)      ((void)(c))
#define dibs__word_sleep        sim_word_sleep
#define dibs__word_wake         sim_word_wake

/* ---- SQLite ---------------------------------------------------------------------------------- */

static bool lite_batch(dibs__lite *e, dibs__deadline until);
static bool lite_lasts(const dibs__lite_job *job)
{
    (void)job;
    return false;
}

/* The code is included with names of its own. */
static dibs_status lite_do(dibs__lite *e, dibs__lite_job *job);
static dibs__lite_job *lite_take(dibs__lite *e);
static void lite_done(dibs__lite_job *job);
static bool lite_lasting(dibs__lite *e) __attribute__((unused));

#define dibs__lite_batch      lite_batch
#define dibs__lite_cell_lasts lite_lasts
#define dibs__lite_do         lite_do
#define dibs__lite_take       lite_take
#define dibs__lite_done       lite_done
#define dibs__lite_lasting    lite_lasting
#define enqueue               lite_enqueue
#define drive                 lite_drive
#define withdraw              lite_withdraw
#include "../../src/engines/sqlite/dispatch.c"
#undef enqueue
#undef drive
#undef withdraw

#ifndef CALLS
#define CALLS 1 /* of each thread */
#endif

static dibs__lite lite;
static int lite_at_gate; /* how many wait for the database without a turn of theirs */
static int lite_served;

/* The database is busy until the driver's time is over, or everybody is served. */
static bool lite_batch(dibs__lite *e, dibs__deadline until)
{
    static pthread_cond_t gate;
    static pthread_mutex_t none;
    dibs__lite_job *next;

    if (sim_choose(2)) {
        lite_at_gate++;
        sim_lock(&none);
        sim_cond_sleep(&gate, &none, NULL, until);
        sim_unlock(&none);
        lite_at_gate--;
        return false;
    }
    sim_step();
    for (dibs__lite_job *job = lite_take(e); job; job = next) {
        next = job->next;
        if (job->status != DIBS_UNKNOWN)
            sim_fault("done twice");
        job->status = DIBS_OK;
        lite_served++;
        lite_done(job);
    }
    return true;
}

static void lite_begin(void)
{
    memset(&lite, 0, sizeof lite);
    lite.base.env = &sim_env;
    lite.last = &lite.first;
    lite_served = lite_at_gate = 0;
}

/* What Redis had: a sleeper with the role is finished by another, and its word is overwritten. */
static void lite_intrude(void)
{
    sim_lock(&lite.mutex);
    dibs__lite_job *job = lite.first;
    if (job && progress_of(job) == DIBS__LITE_DRIVE && lite_withdraw(&lite, job)) {
        job->status = DIBS_OK;
        lite_done(job);
        lite_served++;
    }
    sim_unlock(&lite.mutex);
}

static void lite_thread(int who)
{
    for (int i = 0; i < CALLS; i++) {
        dibs_error err;
        dibs__lite_job job = {.until = UNTIL + who * DIBS__MS + i * 10 * DIBS__MS,
                              .err = &err,
                              .status = DIBS_UNKNOWN};
        dibs_status status;

        if (intrudes && who == 2) {
            lite_intrude();
            continue;
        }
        status = lite_do(&lite, &job);
        if (status == DIBS_UNKNOWN)
            sim_fault("nobody did it");
        if (status == DIBS_UNAVAILABLE && dibs__now(&sim_env) < job.until)
            sim_fault("refused before its time");
    }
}

static void lite_idle(void)
{
    if (lite.first && lite_at_gate == 0)
        sim_fault("jobs wait, and nobody drives");
}

static void lite_end(void)
{
    if (lite.driving || lite.first)
        sim_fault("somebody is said to drive when all are gone");
}

static void sqlite_dispatch(void **state)
{
    sim_plan plan = {3, 2, lite_begin, lite_thread, lite_idle, lite_end, 20000000};
    const char *found;
    long runs;

    (void)state;
    intrudes = false;
    found = sim_search(&plan, &runs);
    print_message("# sqlite: %ld runs: %s\n", runs, found ? found : "nothing wrong");
    assert_null(found);
    intrudes = true;
    found = sim_search(&plan, &runs);
    print_message("# sqlite with the fault: found in run %ld: %s\n", runs, found ? found : "no");
    assert_non_null(found);
}

/* ---- SQL ------------------------------------------------------------------------------------- */

static dibs_status dispatch_ready(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__deadline until,
                                  dibs_error *err);
static void dispatch_tasks_do(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_task *tasks[],
                              size_t count, dibs__deadline until, dibs_error *err);
static void dispatch_signs(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job,
                           dibs_error *err);
static void dispatch_do(dibs__sql *e, dibs__sql_job *job);

#define dibs__sql_do          dispatch_do
#define dibs__conn_slot_ready dispatch_ready
#define dibs__sql_tasks_do    dispatch_tasks_do
#define dibs__sql_keep_batch  dispatch_signs
#include "../../src/families/rows/dispatch.c"

static dibs__sql dispatch;
static const dibs__sql_driver nobody = {.name = "test"};
static dibs__sql_conn a_connection;
static int dispatch_done[SIM_THREADS][CALLS];
static int dispatch_threads, dispatch_mishaps;

/* How something ends; 0: well. Two mishaps are enough for one run. */
static int dispatch_mishap(int options)
{
    int how = dispatch_mishaps < 2 ? sim_choose(options) : 0;

    dispatch_mishaps += how != 0;
    return how;
}

static dibs_status dispatch_ready(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__deadline until,
                                  dibs_error *err)
{
    (void)e;
    (void)until;
    sim_step();
    if (conn_slot->conn || dispatch_mishap(2) == 0) {
        conn_slot->conn = &a_connection;
        return DIBS_OK;
    }
    return dibs__fail(err, DIBS_UNAVAILABLE, "no connection");
}

static void note_done(dibs__sql_task *t)
{
    int *done = (int *)(void *)(uintptr_t)t->fence;

    t->status = DIBS_OK;
    if (++*done > 1)
        sim_fault("done twice");
}

/* All goes well, the first row is locked, or the connection breaks. */
static void dispatch_tasks_do(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_task *tasks[],
                              size_t count, dibs__deadline until, dibs_error *err)
{
    int how = dispatch_mishap(3);

    (void)e;
    (void)until;
    sim_step();
    for (size_t i = 0; i < count; i++) {
        tasks[i]->locked = how == 1 && i == 0;
        if (how == 2 || tasks[i]->locked)
            tasks[i]->status = dibs__fail(err, DIBS_UNAVAILABLE, "not done");
        else
            note_done(tasks[i]);
    }
    if (how == 2)
        conn_slot->conn = NULL;
}

static void dispatch_signs(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job,
                           dibs_error *err)
{
    (void)e;
    (void)conn_slot;
    (void)err;
    sim_step();
    for (size_t i = 0; i < job->count; i++)
        note_done(&job->task[i]);
}

static void dispatch_begin(void)
{
    memset(&dispatch, 0, sizeof dispatch);
    memset(dispatch_done, 0, sizeof dispatch_done);
    dispatch_mishaps = 0;
    dispatch.base.env = &sim_env;
    dispatch.driver = &nobody;
    dispatch.last = &dispatch.first;
    dispatch.conn_slots = 2;
    dispatch.conn_slot[1].conn = &a_connection;
    dispatch.conn_slot[1].connected = true;
}

/* Whoever was called to the free connection slot is settled by another before it wakes. */
static void dispatch_intrude(void)
{
    sim_lock(&dispatch.mutex);
    for (dibs__sql_job *job = dispatch.first; job; job = job->next) {
        if (!job->called)
            continue;
        dequeue(&dispatch, job);
        settle(job, DIBS_UNAVAILABLE, NULL);
        break;
    }
    sim_unlock(&dispatch.mutex);
}

static void dispatch_thread(int who)
{
    static const char *const names[] = {"a", "a", "b", "c"};

    for (int i = 0; i < CALLS; i++) {
        dibs_error err;
        dibs__sql_task task = {.what = who == 1 ? DIBS__SQL_RELEASE : DIBS__SQL_ENTER,
                               .name = names[who],
                               .fence = (uint64_t)(uintptr_t)&dispatch_done[who][i]};
        dibs__sql_job job = {.task = &task,
                             .count = 1,
                             .until = UNTIL + who * DIBS__MS + i * 10 * DIBS__MS,
                             .err = &err};

        if (intrudes && who == dispatch_threads - 1) {
            dispatch_intrude();
            continue;
        }
        task.what = who == 2 ? DIBS__SQL_KEEP : task.what;
        job.keep_alives = task.what == DIBS__SQL_KEEP;
        dispatch_do(&dispatch, &job);
        if ((task.status == DIBS_OK) != (dispatch_done[who][i] == 1))
            sim_fault("told otherwise than it is");
    }
}

/* Everybody sleeps: could one of them have gone on? */
static void dispatch_idle(void)
{
    int64_t now = dibs__now(&sim_env);

    for (dibs__sql_job *job = dispatch.first; job; job = job->next)
        if (!job->patient && ripe(&dispatch, job) &&
            free_conn_slot(&dispatch, job, now >= job->came + PATIENCE))
            sim_fault("a job sleeps, and a connection is free");
}

static void dispatch_end(void)
{
    for (size_t i = 0; i < dispatch.conn_slots; i++)
        if (dispatch.conn_slot[i].taken || dispatch.conn_slot[i].name_count)
            sim_fault("a connection is taken when all are gone");
    if (dispatch.first)
        sim_fault("a job is left in the queue");
}

static void sql_dispatch(void **state)
{
    sim_plan plan = {3, 2, dispatch_begin, dispatch_thread, dispatch_idle, dispatch_end, 20000000};
    const char *found;
    long runs;

    (void)state;
    intrudes = false;
    dispatch_threads = plan.threads;
    found = sim_search(&plan, &runs);
    print_message("# sql: %ld runs: %s\n", runs, found ? found : "nothing wrong");
    assert_null(found);
    intrudes = true;
    plan.threads = dispatch_threads = 4;
    found = sim_search(&plan, &runs);
    print_message("# sql with the fault: found in run %ld: %s\n", runs, found ? found : "no");
    assert_non_null(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sqlite_dispatch),
                                       cmocka_unit_test(sql_dispatch)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
