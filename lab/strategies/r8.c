/* R8: R7, and a thread that renews the lock at half of its lease while it is held. It dies with its
 * process, and so does the lock, a lease later.
 *
 * R9 is the same with a bound on the wait: whoever has no patience left goes without. */
#include "hash_lock.h"
#include "renewer.h"
#include "strategies.h"

#define DEFAULT_WAIT_MS 5000

static bool r8_lock(lab_buyer *buyer)
{
    return lab_spin(buyer, LAB_PAUSE_US, lab_hash_ask) &&
           lab_renewer_start(lab_holder_of(buyer)->more, buyer);
}

static bool r8_unlock(lab_buyer *buyer)
{
    bool given = lab_hash_give(buyer);

    lab_renewer_stop(
        lab_holder_of(buyer)->more); /* afterwards: nobody waits for our thread to end */
    return given;
}

static bool r9_lock(lab_buyer *buyer)
{
    if (buyer->pace.wait_ms == 0)
        buyer->pace.wait_ms = DEFAULT_WAIT_MS;
    return r8_lock(buyer);
}

static bool r8_open(lab_buyer *buyer)
{
    if (!lab_holder_open(buyer))
        return false;
    lab_holder_of(buyer)->more = lab_renewer_new(buyer, 2);
    return lab_holder_of(buyer)->more != NULL;
}

static void r8_close(lab_buyer *buyer)
{
    lab_renewer_free(lab_holder_of(buyer)->more);
    lab_holder_close(buyer);
}

const lab_strategy lab_r8 = {
    .id = "R8",
    .name = "hash-renewed",
    .title = "R7 with a thread that renews at half of the lease",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .open = r8_open,
    .close = r8_close,
    .lock = r8_lock,
    .unlock = r8_unlock,
};

const lab_strategy lab_r9 = {
    .id = "R9",
    .name = "hash-trylock",
    .title = "R8 with a wait of at most 5 s",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .open = r8_open,
    .close = r8_close,
    .lock = r9_lock,
    .unlock = r8_unlock,
};
