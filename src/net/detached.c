/* Both sides share a small record; whoever is last frees it. */
#define _GNU_SOURCE
#include "net/detached.h"

#include "core/thread.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct dibs__detached {
    pthread_mutex_t lock;
    pthread_cond_t over;
    bool is_over, is_left;
    int notice;
    void (*run)(void *task);
    void (*drop)(void *task);
    void *task;
};

static void free_detached(dibs__detached *a)
{
    if (a->notice >= 0)
        close(a->notice);
    pthread_cond_destroy(&a->over);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

static void *work(void *arg)
{
    dibs__detached *a = arg;
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
        free_detached(a);
    }
    return NULL;
}

dibs__detached *dibs__detached_start(void (*run)(void *task), void (*drop)(void *task), void *task,
                                     int notice)
{
    dibs__detached *a = calloc(1, sizeof *a);

    if (!a)
        return NULL;
    a->run = run;
    a->drop = drop;
    a->task = task;
    a->notice = notice < 0 ? -1 : fcntl(notice, F_DUPFD_CLOEXEC, 0);
    pthread_mutex_init(&a->lock, NULL);
    dibs__cond_init(&a->over);
    if ((notice >= 0 && a->notice < 0) || !dibs__thread_start_detached(work, a)) {
        free_detached(a);
        return NULL;
    }
    return a;
}

bool dibs__detached_is_over(dibs__detached *a)
{
    bool over;

    pthread_mutex_lock(&a->lock);
    over = a->is_over;
    pthread_mutex_unlock(&a->lock);
    return over;
}

bool dibs__detached_wait(dibs__detached *a, const dibs__env *env, dibs__deadline until)
{
    bool over;

    pthread_mutex_lock(&a->lock);
    while (!a->is_over && dibs__now(env) < until)
        dibs__cond_sleep(&a->over, &a->lock, env, until);
    over = a->is_over;
    pthread_mutex_unlock(&a->lock);
    return over;
}

bool dibs__detached_end(dibs__detached *a)
{
    bool over;

    pthread_mutex_lock(&a->lock);
    a->is_left = true;
    over = a->is_over;
    pthread_mutex_unlock(&a->lock);
    if (over)
        free_detached(a);
    return over;
}
