/* What the linker puts in the place of the calls by which threads wait for each other (--wrap, see
 * meson.build). Mutexes and conditions are the library's own memory, used differently. */
#define _GNU_SOURCE
#include "sim/sched.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define PREEMPTED 150000 /* in a million: at the edges of a mutex somebody else comes first */
#define SPURIOUS  5000   /* a condition wakes for nothing */

/* ---- Threads --------------------------------------------------------------------------------- */

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_join(pthread_t thread, void **result);
pthread_t __wrap_pthread_self(void);
pthread_t __real_pthread_self(void);
uint64_t __wrap_dibs__thread_number(void);

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *arg)
{
    (void)attributes;
    *out = (pthread_t)sim_thread_new(sim_self_process(), run, arg);
    return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
    (void)result;
    while (!sim_thread_ended((sim_thread *)thread))
        sim_wait((void *)thread, DIBS__NEVER);
    return 0;
}

pthread_t __wrap_pthread_self(void)
{
    return sim_self() ? (pthread_t)sim_self() : __real_pthread_self(); /* a sanitizer's */
}

uint64_t __wrap_dibs__thread_number(void)
{
    return sim_thread_number();
}

/* ---- Mutexes --------------------------------------------------------------------------------- */

typedef struct mutex {
    sim_thread *owner;
} mutex;

int __wrap_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attributes);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);

int __wrap_pthread_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attributes)
{
    (void)attributes;
    memset(m, 0, sizeof *m);
    return 0;
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *m)
{
    if (((mutex *)m)->owner)
        sim_fault("a mutex is destroyed while somebody has it");
    return 0;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
    mutex *x = (mutex *)m;

    if (sim_chance(PREEMPTED))
        sim_step();
    if (x->owner && x->owner == sim_self())
        sim_fault("a thread waits for a mutex that it has");
    while (x->owner)
        sim_wait(x, DIBS__NEVER);
    x->owner = sim_self();
    return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
    mutex *x = (mutex *)m;

    if (x->owner != sim_self())
        sim_fault("a thread gives a mutex away that it has not");
    x->owner = NULL;
    sim_wake(x, false);
    if (sim_chance(PREEMPTED))
        sim_step();
    return 0;
}

/* ---- Conditions ------------------------------------------------------------------------------ */

int __wrap_pthread_cond_init(pthread_cond_t *c, const pthread_condattr_t *attributes);
int __wrap_pthread_cond_destroy(pthread_cond_t *c);
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *at);
int __wrap_pthread_cond_signal(pthread_cond_t *c);
int __wrap_pthread_cond_broadcast(pthread_cond_t *c);
struct timespec __wrap_dibs__moment(clockid_t clock, int64_t span);

int __wrap_pthread_cond_init(pthread_cond_t *c, const pthread_condattr_t *attributes)
{
    (void)attributes;
    memset(c, 0, sizeof *c);
    return 0;
}

int __wrap_pthread_cond_destroy(pthread_cond_t *c)
{
    (void)c;
    return 0;
}

/* From letting the mutex go to the wait nothing comes between. */
static bool wait_for(pthread_cond_t *c, pthread_mutex_t *m, int64_t until)
{
    bool woken;

    if (((mutex *)m)->owner != sim_self())
        sim_fault("a thread waits for a condition without its mutex");
    ((mutex *)m)->owner = NULL;
    sim_wake(m, false);
    woken = sim_chance(SPURIOUS) || sim_wait(c, until);
    while (((mutex *)m)->owner)
        sim_wait(m, DIBS__NEVER);
    ((mutex *)m)->owner = sim_self();
    return woken;
}

int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
    wait_for(c, m, DIBS__NEVER);
    return 0;
}

/* The only clock that there is. */
struct timespec __wrap_dibs__moment(clockid_t clock, int64_t span)
{
    int64_t at = sim_clock(sim_self_process()) + span;

    (void)clock;
    return (struct timespec){at / DIBS__SECOND, at % DIBS__SECOND * 1000};
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *at)
{
    int64_t clock = at->tv_sec * DIBS__SECOND + at->tv_nsec / 1000;

    return wait_for(c, m, sim_true_time(sim_self_process(), clock)) ? 0 : ETIMEDOUT;
}

int __wrap_pthread_cond_signal(pthread_cond_t *c)
{
    sim_wake(c, false);
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *c)
{
    sim_wake(c, true);
    return 0;
}

/* ---- Words ----------------------------------------------------------------------------------- */

int __wrap_dibs__word_sleep(_Atomic int *word, int value, const dibs__env *env,
                            dibs__deadline until);
void __wrap_dibs__word_wake(_Atomic int *word);

int __wrap_dibs__word_sleep(_Atomic int *word, int value, const dibs__env *env,
                            dibs__deadline until)
{
    while (atomic_load(word) == value && dibs__now(env) < until)
        sim_wait(word, until == DIBS__NEVER ? until : sim_true_time(sim_self_process(), until));
    return atomic_load(word);
}

void __wrap_dibs__word_wake(_Atomic int *word)
{
    sim_wake(word, false);
}

/* ---- Descriptors ----------------------------------------------------------------------------- */

#define FIRST_FD 1000000
#define FDS      256

static struct descriptor {
    bool open;
    uint64_t count;
    int64_t due; /* a timer's, by its process's clock; 0: none */
    sim_process *process;
} descriptors[FDS];

int __wrap_eventfd(unsigned initial, int flags);
int __wrap_timerfd_create(clockid_t clock, int flags);
int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *at, struct itimerspec *old);
int __wrap_eventfd_write(int fd, eventfd_t value);
int __wrap_eventfd_read(int fd, eventfd_t *value);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout);
ssize_t __wrap_read(int fd, void *out, size_t size);
ssize_t __real_read(int fd, void *out, size_t size);
int __wrap_close(int fd);
int __real_close(int fd);

static struct descriptor *descriptor_of(int fd)
{
    return fd >= FIRST_FD ? &descriptors[fd - FIRST_FD] : NULL;
}

static int open_one(uint64_t count)
{
    for (int i = 0; i < FDS; i++)
        if (!descriptors[i].open) {
            descriptors[i] =
                (struct descriptor){.open = true, .count = count, .process = sim_self_process()};
            return FIRST_FD + i;
        }
    abort();
}

int __wrap_eventfd(unsigned initial, int flags)
{
    (void)flags;
    return open_one(initial);
}

int __wrap_timerfd_create(clockid_t clock, int flags)
{
    (void)clock;
    (void)flags;
    return open_one(0);
}

int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *at, struct itimerspec *old)
{
    struct descriptor *d = descriptor_of(fd);

    (void)old;
    if (!(flags & TFD_TIMER_ABSTIME))
        abort();
    d->count = 0;
    d->due = at->it_value.tv_sec * DIBS__SECOND + at->it_value.tv_nsec / 1000;
    sim_wake(&d->process->env,
             true); /* whoever polls in this process has another moment to wait for */
    return 0;
}

static bool is_readable(struct descriptor *d)
{
    if (d->due && sim_clock(d->process) >= d->due) {
        d->due = 0;
        d->count++;
    }
    return d->count > 0;
}

int __wrap_eventfd_write(int fd, eventfd_t value)
{
    struct descriptor *d = descriptor_of(fd);

    d->count += value;
    sim_wake(&d->process->env, true); /* whoever polls in this process */
    return 0;
}

int __wrap_eventfd_read(int fd, eventfd_t *value)
{
    return __wrap_read(fd, value, sizeof *value) < 0 ? -1 : 0;
}

ssize_t __wrap_read(int fd, void *out, size_t size)
{
    struct descriptor *d = descriptor_of(fd);

    if (!d)
        return __real_read(fd, out, size);
    if (!is_readable(d)) {
        errno = EAGAIN;
        return -1;
    }
    memcpy(out, &d->count, sizeof d->count);
    d->count = 0;
    return sizeof d->count;
}

int __wrap_close(int fd)
{
    struct descriptor *d = descriptor_of(fd);

    if (!d)
        return __real_close(fd);
    d->open = false;
    return 0;
}

static int count_ready(struct pollfd *fds, nfds_t count, int64_t *next)
{
    int ready = 0;

    for (nfds_t i = 0; i < count; i++) {
        struct descriptor *d = fds[i].fd < 0 ? NULL : descriptor_of(fds[i].fd);
        fds[i].revents = d && is_readable(d) ? POLLIN : 0;
        ready += fds[i].revents != 0;
        if (d && d->due && sim_true_time(d->process, d->due) < *next)
            *next = sim_true_time(d->process, d->due);
    }
    return ready;
}

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout)
{
    sim_process *p = sim_self_process();
    int64_t end = timeout < 0 ? DIBS__NEVER : sim_true_time(p, sim_clock(p) + timeout * DIBS__MS);

    for (;;) {
        int64_t next = end;
        int ready = count_ready(fds, count, &next);
        if (ready > 0 || sim_now() >= end)
            return ready;
        sim_wait(&p->env, next);
    }
}
