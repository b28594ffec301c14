/* R3: SET NX PX in one command, with the same value for everybody. A dead holder's lock ends by itself;
 * but a late holder's DEL deletes whatever is there, also the next holder's lock. */
#include "lab/raw.h"
#include "strategies.h"

static int ask(lab_seat *seat)
{
    lab_holder *h = lab_holder_of(seat);
    int64_t got = lab_redis(seat, h->redis, "SET lock:%s 1 NX PX %lld", seat->resource,
                            (long long)h->lease_ms);

    return got == INT64_MIN ? -1 : got == 1;
}

static bool r3_lock(lab_seat *seat)
{
    return lab_spin(seat, LAB_PAUSE_US, ask);
}

static bool r3_unlock(lab_seat *seat)
{
    return lab_redis(seat, lab_holder_of(seat)->redis, "DEL lock:%s", seat->resource) == 1;
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
