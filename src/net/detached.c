/* Both sides share a small record; the one that is done with it last frees it. */
#define _GNU_SOURCE
#include "net/detached.h"

#include "core/answer.h"
#include "core/thread.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct dibs__detached {
    dibs__answer over;
    int notice; /* the thread's */
    void (*run)(void *task);
    void (*drop)(void *task);
    void *task;
};

static void *work(void *arg)
{
    dibs__detached *a = arg;
    int notice = a->notice;

    a->run(a->task);
    if (dibs__answer_give(&a->over)) {
        a->drop(a->task);
        free(a);
    } else if (notice >= 0) {
        eventfd_write(notice, 1);
    }
    if (notice >= 0)
        close(notice);
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
    dibs__answer_expect(&a->over);
    if ((notice >= 0 && a->notice < 0) || !dibs__thread_start_detached(work, a)) {
        if (a->notice >= 0)
            close(a->notice);
        free(a);
        return NULL;
    }
    return a;
}

bool dibs__detached_is_over(dibs__detached *a)
{
    return dibs__answer_came(&a->over);
}

bool dibs__detached_wait(dibs__detached *a, const dibs__env *env, dibs__deadline until)
{
    return dibs__answer_wait(&a->over, env, until);
}

bool dibs__detached_end(dibs__detached *a)
{
    bool over = dibs__answer_leave(&a->over);

    if (over)
        free(a);
    return over;
}
