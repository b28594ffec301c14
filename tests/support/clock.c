#define _GNU_SOURCE
#include "support/clock.h"

#include <errno.h>
#include <time.h>

int64_t clock_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void sleep_ms(int64_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
}

bool wait_until(bool (*is_so)(void *ctx), void *ctx, int64_t ms)
{
    int64_t end = clock_ms() + ms;

    while (!is_so(ctx)) {
        if (clock_ms() >= end)
            return is_so(ctx);
        sleep_ms(1);
    }
    return true;
}
