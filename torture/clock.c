/* Another wall clock for one server, moved while it runs: a library to preload. libfaketime does the same and more, but not
 * under Redis: its initialisation and jemalloc's call each other.
 *
 * $DIBS_TORTURE_CLOCK names a file of 8 bytes, the seconds by which the wall clock is ahead (a signed number of
 * this machine). Monotonic clocks are the machine's own, and so are waits: a point in time of the wrong
 * clock is turned into the kernel's before it is waited for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define OURS          __attribute__((visibility("default")))
#define A_DATE_FROM_S 1000000000 /* what is less counts from the start of the machine */

static const volatile int64_t *ahead;

__attribute__((constructor)) static void map_file(void)
{
    const char *path = getenv("DIBS_TORTURE_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, fd, 0);

    if (at != MAP_FAILED)
        ahead = at;
    if (fd >= 0)
        close(fd);
}

static int64_t seconds_ahead(void)
{
    return ahead ? *ahead : 0;
}

OURS int clock_gettime(clockid_t clock, struct timespec *t)
{
    long failed = syscall(SYS_clock_gettime, clock, t);

    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        t->tv_sec += seconds_ahead();
    return (int)failed;
}

OURS int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    long failed = syscall(SYS_gettimeofday, t, zone);

    if (!failed)
        t->tv_sec += seconds_ahead();
    return (int)failed;
}

OURS time_t time(time_t *out)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}

OURS int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *until)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec t = *until;

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    if (t.tv_sec > A_DATE_FROM_S)
        t.tv_sec -= seconds_ahead();
    return real(c, m, &t);
}
