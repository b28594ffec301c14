/* R3: SET NX PX in one command, with the same value for everybody. A dead holder's lock ends by itself;
 * but a late holder's DEL deletes whatever is there, also the next holder's lock. */
#include "lab/raw.h"
#include "strategies.h"

static int ask(lab_buyer *buyer)
{
    lab_holder *h = lab_holder_of(buyer);
    int64_t got = lab_redis(buyer, h->redis, "SET lock:%s 1 NX PX %lld", buyer->resource,
                            (long long)h->lease_ms);

    return got == INT64_MIN ? -1 : got == 1;
}

static bool r3_lock(lab_buyer *buyer)
{
    return lab_spin(buyer, LAB_PAUSE_US, ask);
}

static bool r3_unlock(lab_buyer *buyer)
{
    return lab_redis(buyer, lab_holder_of(buyer)->redis, "DEL lock:%s", buyer->resource) == 1;
}

const lab_strategy lab_r3 = {
    .id = "R3",
    .name = "set-nx-px",
    .title = "SET NX PX with a constant value, DEL",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .open = lab_holder_open,
    .close = lab_holder_close,
    .lock = r3_lock,
    .unlock = r3_unlock,
};
