/* R6: SETNX with the time of expiry as value. Who finds it overdue swaps his own in with GETSET, and has
 * it if he gets the overdue one back. Clients' clocks decide: when they disagree, a living holder's lock
 * is taken; a loser's GETSET moves the winner's expiry all the same; and a holder that is overdue must
 * not release, because the lock may be another's. */
#include "lab/raw.h"
#include "strategies.h"

#include <stdlib.h>
#include <time.h>

/* This client's idea of the time, in milliseconds. */
static int64_t clock_ms(const lab_seat *seat)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000 + seat->pace.skew_ms;
}

static int ask(lab_seat *seat)
{
    lab_holder *h = lab_holder_of(seat);
    int64_t expires = clock_ms(seat) + h->lease_ms, old, before;
    int64_t got =
        lab_redis(seat, h->redis, "SETNX lock:%s %lld", seat->resource, (long long)expires);

    *(int64_t *)h->more = expires;
    if (got != 0)
        return got == INT64_MIN ? -1 : 1;
    old = lab_redis(seat, h->redis, "GET lock:%s", seat->resource);
    if (old == INT64_MIN)
        return -1;
    if (old < 0 || old > clock_ms(seat))
        return 0;
    lab_point(seat, "between GET and GETSET");
    *(int64_t *)h->more = expires = clock_ms(seat) + h->lease_ms;
    before = lab_redis(seat, h->redis, "GETSET lock:%s %lld", seat->resource, (long long)expires);
    return before == INT64_MIN ? -1 : before == old;
}

static bool r6_lock(lab_seat *seat)
{
    return lab_spin(seat, LAB_PAUSE_US, ask);
}

static bool r6_unlock(lab_seat *seat)
{
    lab_holder *h = lab_holder_of(seat);

    if (clock_ms(seat) > *(int64_t *)h->more)
        return false;
    return lab_redis(seat, h->redis, "DEL lock:%s", seat->resource) == 1;
}

static bool r6_open(lab_seat *seat)
{
    int64_t *expires = calloc(1, sizeof *expires);

    if (!expires || !lab_holder_open(seat)) {
        free(expires);
        return false;
    }
    lab_holder_of(seat)->more = expires;
    return true;
}

static void r6_close(lab_seat *seat)
{
    free(lab_holder_of(seat)->more);
    lab_holder_close(seat);
}

const lab_strategy lab_r6 = {
    .id = "R6",
    .name = "getset",
    .title = "SETNX, GET, GETSET with the time of expiry as value",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .uses_clock = true,
    .open = r6_open,
    .close = r6_close,
    .lock = r6_lock,
    .unlock = r6_unlock,
};
