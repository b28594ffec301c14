/* Workers: a few threads per handle that ask the engine for those who do not wait for the answer.
 *
 * They are started when there is work for them, one more while all are busy and there are fewer than
 * DIBS__WORKERS, and stay until the handle is closed. A job that is listed or running counts as a user of the handle,
 * so that closing waits for it. Jobs with the same key run one after another, in the order in which they were
 * added: requests for one lock enter its queue as they were started.
 *
 * Where the engine keeps nobody waiting, handing a job over costs more than doing it: there the thread that starts a
 * request does it, as one more worker, unless others are at it already. */
#define _GNU_SOURCE
#include "core/handle.h"
#include "core/thread.h"

#define GUEST DIBS__WORKERS /* the place of a thread that starts a request */

/* A job of that key. */
static bool is_running(const dibs *d, uint64_t key)
{
    for (int i = 0; i <= DIBS__WORKERS; i++)
        if (key && d->workers.key[i] == key)
            return true;
    return false;
}

static dibs__job *next_job(const dibs *d)
{
    dibs__job *j = d->workers.first;

    while (j && is_running(d, j->key))
        j = j->next;
    return j;
}

static void unlist(dibs *d, dibs__job *j)
{
    *j->at = j->next;
    if (j->next)
        j->next->at = j->at;
    else
        d->workers.end = j->at;
    j->at = NULL;
}

static void leave(dibs *d)
{
    if (--d->users == 0)
        pthread_cond_broadcast(&d->quiet);
}

/* `run` may free what the job is in. */
static void run(dibs *d, dibs__job *j, int self)
{
    unlist(d, j);
    d->workers.busy++;
    d->workers.key[self] = j->key;
    j->run(d, j);
    d->workers.key[self] = 0;
    d->workers.busy--;
    leave(d);
}

static void *worker_main(void *data)
{
    dibs *d = data;
    int self;

    pthread_mutex_lock(&d->mutex);
    self = d->workers.started++;
    for (;;) {
        dibs__job *j = next_job(d);
        if (j) {
            run(d, j, self);
        } else if (d->workers.stop) {
            break;
        } else {
            d->workers.idle++;
            pthread_cond_wait(&d->workers.wake, &d->mutex);
            d->workers.idle--;
        }
    }
    pthread_mutex_unlock(&d->mutex);
    return NULL;
}

static void start_one(dibs *d)
{
    if (dibs__thread_start(&d->workers.thread[d->workers.count], worker_main, d))
        d->workers.count++;
}

bool dibs__workers_start(dibs *d)
{
    if (d->workers.count == 0)
        start_one(d);
    return d->workers.count > 0;
}

/* There is a job for one more. */
static void rouse(dibs *d)
{
    if (d->workers.idle == 0 && d->workers.count < DIBS__WORKERS)
        start_one(d);
    pthread_cond_signal(&d->workers.wake);
}

void dibs__job_add(dibs *d, dibs__job *j)
{
    d->users++;
    j->next = NULL;
    j->at = d->workers.end;
    *d->workers.end = j;
    d->workers.end = &j->next;
    if (!is_running(d, j->key))
        rouse(
            d); /* else the worker that runs its predecessor takes it up, or the guest calls one */
}

/* A worker that is busy may be at a request for the same lock, which comes first, or list all locks, which takes as long
 * as there are locks. */
void dibs__job_do(dibs *d, dibs__job *j)
{
    bool others = d->workers.first || d->workers.guest || d->workers.busy > 0;

    if (!d->class->can.never_waits || !dibs__is_open(d) || others) {
        dibs__job_add(d, j);
        return;
    }
    d->users++;
    d->workers.guest = true;
    d->workers.key[GUEST] = j->key;
    j->run(d, j);
    d->workers.key[GUEST] = 0;
    d->workers.guest = false;
    if (d->workers.first)
        rouse(d);
    leave(d);
}

bool dibs__job_drop(dibs *d, dibs__job *j)
{
    if (!j->at)
        return false;
    unlist(d, j);
    leave(d);
    return true;
}

void dibs__workers_stop(dibs *d)
{
    pthread_mutex_lock(&d->mutex);
    d->workers.stop = true;
    pthread_cond_broadcast(&d->workers.wake);
    pthread_mutex_unlock(&d->mutex);
    for (int i = 0; i < d->workers.count; i++)
        pthread_join(d->workers.thread[i], NULL);
    d->workers.count = 0;
}
