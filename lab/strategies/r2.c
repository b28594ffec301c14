/* R2: SETNX, then EXPIRE, so that a dead holder does not block for ever. They are two commands: who
 * dies between them blocks for ever all the same. */
#include "lab/raw.h"
#include "strategies.h"

static int ask(lab_buyer *buyer)
{
    lab_holder *h = lab_holder_of(buyer);
    int64_t got = lab_redis(buyer, h->redis, "SETNX lock:%s 1", buyer->resource);

    if (got != 1)
        return got == INT64_MIN ? -1 : 0;
    lab_point(buyer, "between SETNX and EXPIRE");
    got =
        lab_redis(buyer, h->redis, "PEXPIRE lock:%s %lld", buyer->resource, (long long)h->lease_ms);
    return got == INT64_MIN ? -1 : 1;
}

static bool r2_lock(lab_buyer *buyer)
{
    return lab_spin(buyer, LAB_PAUSE_US, ask);
}

static bool r2_unlock(lab_buyer *buyer)
{
    return lab_redis(buyer, lab_holder_of(buyer)->redis, "DEL lock:%s", buyer->resource) == 1;
}

const lab_strategy lab_r2 = {
    .id = "R2",
    .name = "setnx-expire",
    .title = "SETNX, then EXPIRE, DEL",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .open = lab_holder_open,
    .close = lab_holder_close,
    .lock = r2_lock,
    .unlock = r2_unlock,
};
