/* Many threads, few connections: whoever finds one idle does everybody's commands.
 *
 * One thread alone pays no hop: it takes a connection and does its own. When all are busy, jobs
 * queue up, and the next thread that gets a connection takes all of them at once: many commands,
 * one exchange, one commit. Jobs on a name that is being worked on stay in the queue until that is
 * over: their thread would only wait for the row, and together they are cheaper.
 *
 * Giving back a lock that nobody waits for need not reach the disk. Such jobs go with their like,
 * and one connection slot is left to them: they do not wait for the commits of others.
 *
 * Connection 0 is for keep-alives alone, so that held locks are renewed however busy or stuck the
 * others are. A further connection is made only when a job has waited for a while. */
#define _GNU_SOURCE
#include "families/rows/inner.h"

#include "core/error.h"
#include "core/thread.h"

#include <string.h>
#include <time.h>

#define FIRST_PAUSE (2 * DIBS__MS)   /* while another session keeps a row locked */
#define MAX_PAUSE   (100 * DIBS__MS) /* and it grows to that */
#define LINGER      300              /* whoever goes to the end of a queue can wait for company */
#define LUCK        16               /* as long as that has paid off lately */
#define PROBE       64               /* or once in so many times */
#define PATIENCE    (5 * DIBS__MS)   /* a job that waited so long opens another connection */
#define COMPANY     DIBS__SECOND /* jobs with less time than that left do not make others hurry */
#define REFUSED     (2 * DIBS__SECOND) /* the server had no connection for us: ask again after that */

/* ---- The queue ------------------------------------------------------------------------------- */

static void enqueue(dibs__sql *e, dibs__sql_job *job)
{
    job->next = NULL;
    *e->last = job;
    e->last = &job->next;
}

static void dequeue(dibs__sql *e, dibs__sql_job *job)
{
    dibs__sql_job **at = &e->first;

    while (*at && *at != job)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = job->next;
    if (!*at)
        e->last = at;
}

static bool under_way(const dibs__sql *e, uint64_t hash)
{
    for (size_t i = 0; i < e->conn_slots; i++)
        for (size_t k = 0; k < e->conn_slot[i].name_count; k++)
            if (e->conn_slot[i].names[k] == hash)
                return true;
    return false;
}

/* Is no command on a lock. */
static bool goes_alone(const dibs__sql_job *job)
{
    return job->keep_alives || job->call;
}

static bool ripe(const dibs__sql *e, const dibs__sql_job *job)
{
    return goes_alone(job) || !under_way(e, job->task[0].hash);
}

/* A connection slot is free: the first of each kind that could use it is called, and whoever goes alone. */
static void call_next(dibs__sql *e)
{
    bool called[2] = {false, false};

    for (dibs__sql_job *job = e->first; job; job = job->next) {
        if (job->patient || !ripe(e, job) || called[job->light])
            continue; /* the patient look by themselves */
        job->called = true;
        pthread_cond_signal(&job->cond);
        called[job->light] = !goes_alone(job);
    }
}

/* ---- Connections ----------------------------------------------------------------------------- */

/* One connection slot is left to the light jobs, if there are two. */
static bool enough_heavy(const dibs__sql *e)
{
    size_t heavy = 0;

    for (size_t i = 1; i < e->conn_slots; i++)
        heavy += e->conn_slot[i].taken && e->conn_slot[i].heavy;
    return heavy > 0 && heavy + 2 >= e->conn_slots;
}

/* The one to use, or NULL. Those with a connection first; keep-alives prefer their own. */
static dibs__conn_slot *free_conn_slot(dibs__sql *e, const dibs__sql_job *job, bool may_open)
{
    size_t first = job->keep_alives ? 0 : 1;
    bool refused = dibs__now(e->base.env) < e->no_more;
    bool any = false;

    if (job->keep_alives && !e->conn_slot[0].taken && (e->conn_slot[0].connected || !refused))
        return &e->conn_slot[0];
    if (!job->keep_alives && !job->light && enough_heavy(e))
        return NULL;
    for (size_t i = first; i < e->conn_slots; i++) {
        any |= e->conn_slot[i].connected || e->conn_slot[i].taken;
        if (!e->conn_slot[i].taken && e->conn_slot[i].connected)
            return &e->conn_slot[i];
    }
    for (size_t i = first; i < e->conn_slots && (!any || (may_open && !refused)); i++)
        if (!e->conn_slot[i].taken)
            return &e->conn_slot[i];
    return NULL;
}

static bool others_connected(const dibs__sql *e, const dibs__conn_slot *conn_slot)
{
    for (size_t i = 0; i < e->conn_slots; i++)
        if (&e->conn_slot[i] != conn_slot && e->conn_slot[i].connected)
            return true;
    return false;
}

/* Those who came while their lock was being worked on: whoever has it now will give it back soon.
 */
static void let_linger(dibs__sql *e, const dibs__conn_slot *conn_slot)
{
    int64_t until = e->first ? dibs__now(e->base.env) + LINGER : 0;

    for (dibs__sql_job *job = e->first; job; job = job->next)
        for (size_t i = 0; job->patient && i < conn_slot->name_count; i++)
            if (conn_slot->names[i] == job->task[0].hash)
                job->lingers = until;
}

static void leave(dibs__sql *e, dibs__conn_slot *conn_slot)
{
    let_linger(e, conn_slot);
    conn_slot->taken = false;
    conn_slot->connected = conn_slot->conn != NULL;
    conn_slot->name_count = 0;
    call_next(e);
}

static void settle(dibs__sql_job *job, dibs_status status, const dibs_error *err)
{
    for (size_t i = 0; i < job->count && status != DIBS_OK; i++)
        job->task[i].status = status;
    if (status != DIBS_OK)
        job->status = status;
    if (job->err && err)
        *job->err = *err;
    job->progress = DIBS__SQL_READY;
    pthread_cond_signal(&job->cond);
}

/* ---- Lingering ------------------------------------------------------------------------------- */

/* It will stand in the queue anyway. A hand-over of the same lock that comes soon takes it along: one
 * transaction instead of two. Where a single thread enters one queue after another, nobody will
 * come. */
static bool can_linger(dibs__sql *e, const dibs__sql_job *job)
{
    if (goes_alone(job) || job->task[0].what != DIBS__SQL_ENTER || job->task[0].window == 0 ||
        !(dibs__sql_hint(e, job->task[0].hash) & DIBS__SQL_LINE))
        return false;
    return e->luck > 0 || ++e->probes % PROBE == 0;
}

/* It lingers no more: was there company? */
static void note_luck(dibs__sql *e, dibs__sql_job *job, bool company)
{
    if (company && e->luck < LUCK)
        e->luck++;
    else if (!company)
        e->luck = e->luck > 2 ? e->luck - 2 : 0;
    job->patient = false;
}

/* ---- Driving --------------------------------------------------------------------------------- */

typedef struct load {
    dibs__sql_job *job[DIBS__SQL_BATCH];
    size_t jobs;
    dibs__sql_task *task[DIBS__SQL_BATCH];
    size_t tasks;
    dibs__deadline until;
} load;

static void take_job(dibs__sql *e, dibs__conn_slot *conn_slot, load *l, dibs__sql_job *job)
{
    dequeue(e, job);
    job->progress = DIBS__SQL_TAKEN;
    if (job->patient)
        note_luck(e, job, true);
    l->job[l->jobs++] = job;
    l->task[l->tasks++] = &job->task[0];
    l->until = dibs__sooner(l->until, job->until);
    conn_slot->names[conn_slot->name_count++] = job->task[0].hash;
}

/* Those whose rows were locked go with those of the same name: then the row is theirs alone. */
static bool goes_along(const dibs__sql_job *job, const dibs__sql_job *lead)
{
    if (goes_alone(job) || job->alone != lead->alone || job->light != lead->light)
        return false;
    return !job->alone || job->task[0].hash == lead->task[0].hash;
}

/* The lead's job, and all others that can go along, in order of arrival. */
static void take_jobs(dibs__sql *e, dibs__conn_slot *conn_slot, load *l, dibs__sql_job *lead)
{
    int64_t soon = dibs__now(e->base.env) + COMPANY;
    bool led = false;

    for (dibs__sql_job *job = e->first, *next; job; job = next) {
        next = job->next;
        bool goes = job == lead || (goes_along(job, lead) && job->until > soon &&
                                    l->tasks + (led ? 1 : 2) <= DIBS__SQL_BATCH);
        /* Names of this very connection slot may come again: they are done in order. */
        size_t mine = conn_slot->name_count;
        conn_slot->name_count = 0;
        goes = goes && !under_way(e, job->task[0].hash);
        conn_slot->name_count = mine;
        led |= job == lead && goes;
        if (goes)
            take_job(e, conn_slot, l, job);
    }
}

/* Its row was locked, and the others did not wait for it: now it waits by itself. */
static void put_back(dibs__sql *e, dibs__sql_job *job)
{
    job->alone = true;
    job->patient = job->called = false;
    job->progress = DIBS__SQL_QUEUED;
    enqueue(e, job);
    pthread_cond_signal(&job->cond);
}

static void drive_batch(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *lead)
{
    load l = {.until = DIBS__NEVER};
    dibs_error err = {0};

    take_jobs(e, conn_slot, &l, lead);
    if (l.jobs == 0)
        return;
    pthread_mutex_unlock(&e->mutex);
    dibs__sql_tasks_do(e, conn_slot, l.task, l.tasks, l.until, &err);
    pthread_mutex_lock(&e->mutex);
    for (size_t i = 0; i < l.jobs; i++) {
        if (l.tasks > 1 && l.task[i]->locked && !l.job[i]->alone)
            put_back(e, l.job[i]);
        else
            settle(l.job[i], DIBS_OK, &err);
    }
}

static void call(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job, dibs_error *err)
{
    conn_slot->locked = false;
    if (job->hash)
        dibs__conn_slot_waits(e, conn_slot, job->hash);
    conn_slot->hasty |= job->maintenance && !conn_slot->queues;
    job->status = job->call(e, conn_slot, job, err);
    job->locked = job->status == DIBS_UNAVAILABLE && conn_slot->locked;
    if (job->hash && (job->locked || job->status == DIBS_OK))
        dibs__sql_hint_stuck(e, job->hash, job->locked);
    dibs__conn_slot_waited(e, conn_slot);
}

/* keep-alives of many; or what is no command at all. */
static void drive_alone(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job)
{
    dibs_error err = {0};

    dequeue(e, job);
    job->progress = DIBS__SQL_TAKEN;
    pthread_mutex_unlock(&e->mutex);
    if (job->call)
        call(e, conn_slot, job, &err);
    else
        dibs__sql_keep_batch(e, conn_slot, job, &err);
    pthread_mutex_lock(&e->mutex);
    settle(job, DIBS_OK, &err);
}

/* When to stop trying to connect. If it is in vain, there must be time left for doing the job on one
 * of the other connections. */
static dibs__deadline connect_until(const dibs__sql *e, const dibs__conn_slot *conn_slot,
                                    dibs__deadline until)
{
    int64_t now = dibs__now(e->base.env);

    if (until == DIBS__NEVER || until <= now || !others_connected(e, conn_slot))
        return until;
    return now + (until - now) / 2;
}

/* With the mutex, which is given away meanwhile. */
static void drive(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job)
{
    bool fresh = conn_slot->conn == NULL;
    dibs_error err = {0};
    dibs_status status = DIBS_OK;
    dibs__sql_mail mail;

    conn_slot->taken = true;
    conn_slot->heavy = !job->light;
    if (fresh) {
        dibs__deadline until = connect_until(e, conn_slot, job->until);
        pthread_mutex_unlock(&e->mutex);
        status = dibs__conn_slot_ready(e, conn_slot, until, &err);
        pthread_mutex_lock(&e->mutex);
    }
    if (status != DIBS_OK && others_connected(e, conn_slot)) {
        e->no_more = dibs__after(e->base.env, REFUSED);
    } else if (job->progress != DIBS__SQL_QUEUED) {
        /* another connection took it meanwhile */
    } else if (status != DIBS_OK) {
        dequeue(e, job);
        settle(job, status, &err);
    } else if (goes_alone(job)) {
        drive_alone(e, conn_slot, job);
    } else {
        drive_batch(e, conn_slot, job);
    }
    mail = conn_slot->mail;
    conn_slot->mail = (dibs__sql_mail){0};
    leave(e, conn_slot);
    if (mail.count > 0) {
        pthread_mutex_unlock(&e->mutex);
        dibs__sql_mail_deliver(e, &mail);
        pthread_mutex_lock(&e->mutex);
    }
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static void give_up(dibs__sql *e, dibs__sql_job *job)
{
    dibs_error err;

    dibs__fail(&err, DIBS_UNAVAILABLE, "%s: no connection was free in time", e->driver->name);
    dequeue(e, job);
    settle(job, DIBS_UNAVAILABLE, &err);
    if (job->called)
        call_next(e);
}

static bool is_light(dibs__sql *e, const dibs__sql_job *job)
{
    return !goes_alone(job) && job->task[0].what == DIBS__SQL_RELEASE &&
           !(dibs__sql_hint(e, job->task[0].hash) & (DIBS__SQL_LINE | DIBS__SQL_CROWD));
}

/* With the mutex, like all from here on. */
static void set_out(dibs__sql *e, dibs__sql_job *job)
{
    for (size_t i = 0; i < job->count; i++)
        job->task[i].hash = dibs__hash(job->task[i].name);
    job->light = is_light(e, job);
    job->came = dibs__now(e->base.env);
    job->patient = can_linger(e, job);
    job->lingers = job->came + LINGER;
    job->progress = DIBS__SQL_QUEUED;
    job->called = job->alone = job->locked = false;
    enqueue(e, job);
}

/* One step: give up, drive, or wait. */
static void go_on(dibs__sql *e, dibs__sql_job *job)
{
    int64_t now = dibs__now(e->base.env), impatient = job->came + PATIENCE;
    dibs__conn_slot *conn_slot = NULL;

    if (job->progress != DIBS__SQL_QUEUED) {
        pthread_cond_wait(&job->cond, &e->mutex);
        return;
    }
    if (now >= job->until) {
        give_up(e, job);
        return;
    }
    if (job->patient && now >= job->lingers && ripe(e, job))
        note_luck(e, job, false);
    else if (job->patient && now >= job->lingers)
        job->lingers = now + LINGER; /* its lock is being worked on */
    if (!job->patient && ripe(e, job))
        conn_slot = free_conn_slot(e, job, now >= impatient);
    if (conn_slot)
        drive(e, conn_slot, job);
    else
        dibs__cond_sleep(&job->cond, &e->mutex, e->base.env,
                         dibs__sooner(job->until, job->patient      ? job->lingers
                                                  : now < impatient ? impatient
                                                                    : DIBS__NEVER));
}

/* Another session keeps the row locked. Who asks for a lock, gives one back or renews it is told so, and
 * the core asks again; everybody else tries until there is no more time, and keeps no connection slot meanwhile. */
static bool insists(const dibs__sql *e, const dibs__sql_job *job, int64_t pause)
{
    bool locked = job->call ? job->locked : job->count == 1 && job->task[0].locked;
    bool asked_again =
        !job->call && job->task[0].what != DIBS__SQL_BREAK && job->task[0].what != DIBS__SQL_SETTLE;

    return locked && !asked_again && !job->maintenance &&
           dibs__now(e->base.env) + pause < job->until;
}

void dibs__sql_do(dibs__sql *e, dibs__sql_job *job)
{
    int64_t pause = FIRST_PAUSE;

    dibs__cond_init(&job->cond);
    for (;;) {
        pthread_mutex_lock(&e->mutex);
        set_out(e, job);
        while (job->progress != DIBS__SQL_READY)
            go_on(e, job);
        pthread_mutex_unlock(&e->mutex);
        if (!insists(e, job, pause))
            break;
        dibs__sleep(e->base.env, pause);
        pause = dibs__longer(pause, FIRST_PAUSE, MAX_PAUSE);
    }
    pthread_cond_destroy(&job->cond);
}
