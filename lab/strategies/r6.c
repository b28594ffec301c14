/* R6: SETNX with the time of expiry as value. Who finds it overdue swaps his own in with GETSET, and has
 * it if he gets the overdue one back. Clients' clocks decide: when they disagree, a living holder's lock
 * is taken; a loser's GETSET moves the winner's expiry all the same; and a holder that is overdue must
 * not release, because the lock may be another's. */
#include "lab/raw.h"
#include "strategies.h"

#include <stdlib.h>
#include <time.h>

/* This client's idea of the time, in milliseconds. */
static int64_t clock_ms(const lab_buyer *buyer)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000 + buyer->pace.skew_ms;
}

static int ask(lab_buyer *buyer)
{
    lab_holder *h = lab_holder_of(buyer);
    int64_t expires = clock_ms(buyer) + h->lease_ms, old, before;
    int64_t got =
        lab_redis(buyer, h->redis, "SETNX lock:%s %lld", buyer->resource, (long long)expires);

    *(int64_t *)h->more = expires;
    if (got != 0)
        return got == INT64_MIN ? -1 : 1;
    old = lab_redis(buyer, h->redis, "GET lock:%s", buyer->resource);
    if (old == INT64_MIN)
        return -1;
    if (old < 0 || old > clock_ms(buyer))
        return 0;
    lab_point(buyer, "between GET and GETSET");
    *(int64_t *)h->more = expires = clock_ms(buyer) + h->lease_ms;
    before = lab_redis(buyer, h->redis, "GETSET lock:%s %lld", buyer->resource, (long long)expires);
    return before == INT64_MIN ? -1 : before == old;
}

static bool r6_lock(lab_buyer *buyer)
{
    return lab_spin(buyer, LAB_PAUSE_US, ask);
}

static bool r6_unlock(lab_buyer *buyer)
{
    lab_holder *h = lab_holder_of(buyer);

    if (clock_ms(buyer) > *(int64_t *)h->more)
        return false;
    return lab_redis(buyer, h->redis, "DEL lock:%s", buyer->resource) == 1;
}

static bool r6_open(lab_buyer *buyer)
{
    int64_t *expires = calloc(1, sizeof *expires);

    if (!expires || !lab_holder_open(buyer)) {
        free(expires);
        return false;
    }
    lab_holder_of(buyer)->more = expires;
    return true;
}

static void r6_close(lab_buyer *buyer)
{
    free(lab_holder_of(buyer)->more);
    lab_holder_close(buyer);
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
