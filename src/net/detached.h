/* A call that nothing bounds, made by a thread of its own: looking a host name up, a client library
 * that connects in one go.
 *
 * It goes well: the task is run, whoever asked for it waits no longer than its deadline and gets it
 * back. It takes too long: the task is left to the thread, which drops it, whatever came of it,
 * when the call is over at last. So a task owns all that it needs. */
#ifndef DIBS_NET_DETACHED_H
#define DIBS_NET_DETACHED_H

#include "core/env.h"

#include <stdbool.h>

typedef struct dibs__detached dibs__detached;

/* `drop` frees the task, run or not. `notice`: an eventfd that is rung when `run` is over (it is
 * duplicated), or -1. NULL: no memory, descriptor or thread; the task is still the caller's. */
dibs__detached *dibs__detached_start(void (*run)(void *task), void (*drop)(void *task), void *task,
                                     int notice);

bool dibs__detached_is_over(dibs__detached *a);
/* The same, after waiting for it until then. */
bool dibs__detached_wait(dibs__detached *a, const dibs__env *env, dibs__deadline until);

/* Frees it. True: `run` is over, and the task is the caller's again. False: it is the thread's. */
bool dibs__detached_end(dibs__detached *a);

#endif
