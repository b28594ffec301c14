/* Both sides share a small record; whoever is last frees it. */
#define _GNU_SOURCE
#include "core/aside.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

struct dibs__aside {
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool is_over, is_left;
    int notice;
    void (*run)(void *task);
    void (*drop)(void *task);
    void *task;
};

static void free_aside(dibs__aside *a)
{
    if (a->notice >= 0)
        close(a->notice);
    pthread_cond_destroy(&a->over);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

static void *work(void *arg)
{
    dibs__aside *a = arg;
    bool left;

    a->run(a->task);
    pthread_mutex_lock(&a->lock);
    left = a->is_left;
    a->is_over = true;
    if (!left) { /* with the lock: the other side frees the record once it has seen that it is over */
        pthread_cond_signal(&a->over);
        if (a->notice >= 0)
            eventfd_write(a->notice, 1);
    }
    pthread_mutex_unlock(&a->lock);
    if (left) {
        a->drop(a->task);
        free_aside(a);
    }
    return NULL;
}

/* Threads of ours take no signals, and nobody joins this one. */
static int start_thread(dibs__aside *a)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    int failed = pthread_attr_init(&attributes);

    if (failed)
        return failed;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&thread, &attributes, work, a);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return failed;
}

static void init_condition(pthread_cond_t *c)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(c, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

dibs__aside *dibs__aside_start(void (*run)(void *task), void (*drop)(void *task), void *task,
                               int notice)
{
    dibs__aside *a = calloc(1, sizeof *a);

    if (!a)
        return NULL;
    a->run = run;
    a->drop = drop;
    a->task = task;
    a->notice = notice < 0 ? -1 : fcntl(notice, F_DUPFD_CLOEXEC, 0);
    pthread_mutex_init(&a->lock, NULL);
    init_condition(&a->over);
    if ((notice >= 0 && a->notice < 0) || start_thread(a) != 0) {
        free_aside(a);
        return NULL;
    }
    return a;
}

bool dibs__aside_is_over(dibs__aside *a)
{
    bool over;

    pthread_mutex_lock(&a->lock);
    over = a->is_over;
    pthread_mutex_unlock(&a->lock);
    return over;
}

/* A second at a time: the deadline's clock goes on while the machine sleeps, this one does not. */
bool dibs__aside_wait(dibs__aside *a, const dibs__env *env, dibs__deadline until)
{
    bool over;

    pthread_mutex_lock(&a->lock);
    while (!a->is_over && dibs__now(env) < until) {
        int64_t left = until - dibs__now(env);
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        left = (left < DIBS__SECOND ? left : DIBS__SECOND) * 1000 + t.tv_nsec;
        t.tv_sec += left / 1000000000;
        t.tv_nsec = left % 1000000000;
        pthread_cond_timedwait(&a->over, &a->lock, &t);
    }
    over = a->is_over;
    pthread_mutex_unlock(&a->lock);
    return over;
}

bool dibs__aside_end(dibs__aside *a)
{
    bool over;

    pthread_mutex_lock(&a->lock);
    a->is_left = true;
    over = a->is_over;
    pthread_mutex_unlock(&a->lock);
    if (over)
        free_aside(a);
    return over;
}
