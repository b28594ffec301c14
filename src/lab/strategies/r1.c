/* R1: SETNX is the lock, DEL gives it back, and whoever did not get it asks again: at once (R1), or
 * after a sleep (R1a). Nothing ends it but its holder: a dead one blocks everybody for ever. */
#include "lab/raw.h"
#include "strategies.h"

#include <hiredis/hiredis.h>
#include <unistd.h>

#define SLEEP_US (50 * 1000)

static bool r1_open(lab_seat *seat)
{
    seat->own = lab_redis_open(seat, seat->site->url[LAB_REDIS]);
    return seat->own != NULL;
}

static void r1_close(lab_seat *seat)
{
    redisFree(seat->own);
}

static bool take(lab_seat *seat, useconds_t pause)
{
    int64_t until = lab_until(seat);

    for (;;) {
        int64_t got = lab_redis(seat, seat->own, "SETNX lock:%s 1", seat->resource);
        seat->tries++;
        if (got == 1)
            return true;
        if (got == INT64_MIN || lab_now_us() >= until)
            return false;
        if (pause)
            usleep(pause);
    }
}

static bool r1_lock(lab_seat *seat)
{
    return take(seat, 0);
}

static bool r1a_lock(lab_seat *seat)
{
    return take(seat, SLEEP_US);
}

static bool r1_unlock(lab_seat *seat)
{
    return lab_redis(seat, seat->own, "DEL lock:%s", seat->resource) == 1;
}

const lab_strategy lab_r1 = {
    .id = "R1",
    .name = "setnx-spin",
    .title = "SETNX, ask again at once, DEL",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .open = r1_open,
    .close = r1_close,
    .lock = r1_lock,
    .unlock = r1_unlock,
};

const lab_strategy lab_r1a = {
    .id = "R1a",
    .name = "setnx-sleep",
    .title = "SETNX, ask again after 50 ms, DEL",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .open = r1_open,
    .close = r1_close,
    .lock = r1a_lock,
    .unlock = r1_unlock,
};
