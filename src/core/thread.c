/* See thread.h. */
#define _GNU_SOURCE
#include "core/thread.h"

#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- Starting -------------------------------------------------------------------------------- */

static bool start(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    int failed;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(out, attributes, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed == 0;
}

bool dibs__thread_start(pthread_t *out, void *(*run)(void *arg), void *arg)
{
    return start(out, NULL, run, arg);
}

bool dibs__thread_start_detached(void *(*run)(void *arg), void *arg)
{
    pthread_attr_t attributes;
    pthread_t thread;
    bool started;

    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    started = start(&thread, &attributes, run, arg);
    pthread_attr_destroy(&attributes);
    return started;
}

/* Numbers are given out once: a thread id may come again. */
uint64_t dibs__thread_number(void)
{
    static _Atomic uint64_t threads;
    static _Thread_local uint64_t number;

    if (number == 0)
        number = atomic_fetch_add(&threads, 1) + 1;
    return number;
}

/* ---- Sleeping -------------------------------------------------------------------------------- */

/* How long to sleep before the next look at our own clock; 0 or less: `until` has come. */
static int64_t span(const dibs__env *env, dibs__deadline until)
{
    int64_t left = until == DIBS__NEVER ? DIBS__SECOND : until - dibs__now(env);

    return left < DIBS__SECOND ? left : DIBS__SECOND;
}

void dibs__cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;

    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void dibs__cond_sleep(pthread_cond_t *cond, pthread_mutex_t *mutex, const dibs__env *env,
                      dibs__deadline until)
{
    int64_t left = span(env, until);
    struct timespec at;

    if (until == DIBS__NEVER) {
        pthread_cond_wait(cond, mutex);
        return;
    }
    if (left <= 0)
        return;
    at = dibs__moment(CLOCK_MONOTONIC, left);
    pthread_cond_timedwait(cond, mutex, &at);
}

/* The thread sanitizer of GCC 12 does not know pthread_mutex_clocklock, and would take the unlock
 * for a mistake; the other one follows the wall clock. */
int dibs__mutex_lock_within(pthread_mutex_t *mutex, int64_t most)
{
#ifdef __SANITIZE_THREAD__
    struct timespec at = dibs__moment(CLOCK_REALTIME, most);
    return pthread_mutex_timedlock(mutex, &at);
#else
    struct timespec at = dibs__moment(CLOCK_MONOTONIC, most);
    return pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &at);
#endif
}

int dibs__word_sleep(_Atomic int *word, int value, const dibs__env *env, dibs__deadline until)
{
    int now;

    while ((now = atomic_load_explicit(word, memory_order_acquire)) == value) {
        int64_t left = span(env, until);
        if (left <= 0)
            break;
        struct timespec t = {left / DIBS__SECOND, left % DIBS__SECOND * 1000};
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, until == DIBS__NEVER ? NULL : &t, NULL,
                0);
    }
    return now;
}

void dibs__word_wake(_Atomic int *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
