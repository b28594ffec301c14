/* R8: R7, and a thread that renews the lock at half of its lease while it is held. It dies with its
 * process, and so does the lock, a lease later.
 *
 * R9 is the same with a bound on the wait: whoever has no patience left goes without. */
#include "hash_lock.h"
#include "renewer.h"
#include "strategies.h"

#define DEFAULT_WAIT_MS 5000

static bool r8_lock(lab_seat *seat)
{
    return lab_spin(seat, LAB_PAUSE_US, lab_hash_ask) &&
           lab_renewer_start(lab_holder_of(seat)->more, seat);
}

static bool r8_unlock(lab_seat *seat)
{
    bool given = lab_hash_give(seat);

    lab_renewer_stop(
        lab_holder_of(seat)->more); /* afterwards: nobody waits for our thread to end */
    return given;
}

static bool r9_lock(lab_seat *seat)
{
    if (seat->pace.wait_ms == 0)
        seat->pace.wait_ms = DEFAULT_WAIT_MS;
    return r8_lock(seat);
}

static bool r8_open(lab_seat *seat)
{
    if (!lab_holder_open(seat))
        return false;
    lab_holder_of(seat)->more = lab_renewer_new(seat, 2);
    return lab_holder_of(seat)->more != NULL;
}

static void r8_close(lab_seat *seat)
{
    lab_renewer_free(lab_holder_of(seat)->more);
    lab_holder_close(seat);
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
