/* What is the same for every thread of ours: how it is started, and how one sleeps until something happens
 * or a deadline passes.
 *
 * Deadlines are on a clock that goes on while the host sleeps; what the system lets us sleep on is not. So
 * nobody sleeps for longer than a second without a look at our own clock. */
#ifndef DIBS_CORE_THREAD_H
#define DIBS_CORE_THREAD_H

#include "core/env.h"

#include <pthread.h>
#include <stdbool.h>

/* It takes no signals, which are for the threads of the program that uses us. False: there is no thread. */
bool dibs__thread_start(pthread_t *out, void *(*run)(void *arg), void *arg);
/* The same, and nobody joins it. */
bool dibs__thread_start_detached(void *(*run)(void *arg), void *arg);

/* The calling thread's; no other thread of this process ever has it. */
uint64_t dibs__thread_number(void);

/* A condition for dibs__cond_sleep. */
void dibs__cond_init(pthread_cond_t *cond);
/* With the mutex. Until it is signalled or `until` has come, and for a second at most, unless that is
 * DIBS__NEVER: the caller looks again. */
void dibs__cond_sleep(pthread_cond_t *cond, pthread_mutex_t *mutex, const dibs__env *env,
                      dibs__deadline until);

/* For so long at most; 0, or an error number as of pthread_mutex_lock: ETIMEDOUT, EOWNERDEAD. */
int dibs__mutex_lock_within(pthread_mutex_t *mutex, int64_t most);

/* Without a mutex: until the word is no longer `value`, or `until` has come. What it is then. */
int dibs__word_sleep(_Atomic int *word, int value, const dibs__env *env, dibs__deadline until);
/* Wakes one who sleeps on it, after it was changed. The word may be gone already: then it is a false
 * wake-up for somebody else. */
void dibs__word_wake(_Atomic int *word);

#endif
