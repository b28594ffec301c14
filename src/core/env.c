/* The system's clocks and randomness behind dibs__env. */
#define _GNU_SOURCE
#include "core/env.h"

#include <errno.h>
#include <limits.h>
#include <sys/random.h>

static int64_t read_clock(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * DIBS__SECOND + t.tv_nsec / 1000;
}

static int64_t system_boottime(void *ctx)
{
    (void)ctx;
    return read_clock(CLOCK_BOOTTIME);
}

static int64_t system_wall(void *ctx)
{
    (void)ctx;
    return read_clock(CLOCK_REALTIME);
}

static void system_random(void *ctx, void *out, size_t size)
{
    char *at = out;

    (void)ctx;
    while (size > 0) {
        ssize_t n = getrandom(at, size, 0);
        if (n < 0 && errno != EINTR)
            break; /* cannot happen for small sizes on a kernel that has the call */
        if (n > 0) {
            at += n;
            size -= (size_t)n;
        }
    }
}

static void system_sleep(void *ctx, int64_t span)
{
    (void)ctx;
    nanosleep(&(struct timespec){span / DIBS__SECOND, span % DIBS__SECOND * 1000}, NULL);
}

const dibs__env dibs__env_system = {system_boottime, system_wall, system_random, system_sleep,
                                    NULL};

dibs__deadline dibs__after(const dibs__env *env, int64_t span)
{
    int64_t now = dibs__now(env);

    if (span <= 0)
        return now;
    return span > DIBS__NEVER - now ? DIBS__NEVER : now + span;
}

struct timespec dibs__moment(clockid_t clock, int64_t span)
{
    int64_t at = read_clock(clock) + span;

    return (struct timespec){at / DIBS__SECOND, at % DIBS__SECOND * 1000};
}

int dibs__poll_ms(const dibs__env *env, dibs__deadline until)
{
    if (until == DIBS__NEVER)
        return -1;
    int64_t left = until - dibs__now(env);
    if (left <= 0)
        return 0;
    left = (left + DIBS__MS - 1) / DIBS__MS;
    return left > INT_MAX ? INT_MAX : (int)left;
}
