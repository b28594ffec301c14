/* R1: SETNX is the lock, DEL gives it back, and whoever did not get it asks again: at once (R1), or
 * after a sleep (R1a). Nothing ends it but its holder: a dead one blocks everybody for ever. */
#include "lab/raw.h"
#include "strategies.h"

static int ask(lab_buyer *buyer)
{
    int64_t got = lab_redis(buyer, lab_holder_of(buyer)->redis, "SETNX lock:%s 1", buyer->resource);

    return got == INT64_MIN ? -1 : got == 1;
}

static bool r1_lock(lab_buyer *buyer)
{
    return lab_spin(buyer, 0, ask);
}

static bool r1a_lock(lab_buyer *buyer)
{
    return lab_spin(buyer, LAB_PAUSE_US, ask);
}

static bool r1_unlock(lab_buyer *buyer)
{
    return lab_redis(buyer, lab_holder_of(buyer)->redis, "DEL lock:%s", buyer->resource) == 1;
}

const lab_strategy lab_r1 = {
    .id = "R1",
    .name = "setnx-spin",
    .title = "SETNX, ask again at once, DEL",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .no_lease = true,
    .open = lab_holder_open,
    .close = lab_holder_close,
    .lock = r1_lock,
    .unlock = r1_unlock,
};

const lab_strategy lab_r1a = {
    .id = "R1a",
    .name = "setnx-sleep",
    .title = "SETNX, ask again after 50 ms, DEL",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .no_lease = true,
    .open = lab_holder_open,
    .close = lab_holder_close,
    .lock = r1a_lock,
    .unlock = r1_unlock,
};
