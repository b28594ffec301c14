/* The table of hazards, in the order in which people meet them. */
#include "hazards.h"

const lab_hazard *const lab_hazard_table[] = {
    /* clang-format off: a line each */
    &lab_hazard_two_processes,
    &lab_hazard_killed,
    &lab_hazard_killed_before_expire,
    &lab_hazard_paused,
    &lab_hazard_late_release,
    &lab_hazard_release_gap,
    &lab_hazard_long_work,
    &lab_hazard_wrong_clock,
    &lab_hazard_reply_lost,
    &lab_hazard_renewer,
    &lab_hazard_explicit_lease,
    /* clang-format on */
    NULL,
};

const char *lab_hazard_for_locks(const lab_strategy *s)
{
    return s->lock ? NULL : "it has no lock that anybody could hold";
}

const char *lab_hazard_for_redis_locks(const lab_strategy *s)
{
    if (!s->lock)
        return lab_hazard_for_locks(s);
    if (s->product)
        return "dibs takes and gives back in one step: there is no such moment";
    return s->needs & LAB_NEED(LAB_REDIS) ? NULL : "it is not made of these commands of Redis";
}

const char *lab_hazard_for_leases(const lab_strategy *s)
{
    if (s->lock && s->no_lease)
        return "it has no EXPIRE: its lock never ends by itself";
    return lab_hazard_for_redis_locks(s);
}

const char *lab_hazard_uses_clock(const lab_strategy *s)
{
    if (!s->lock)
        return lab_hazard_for_locks(s);
    return s->uses_clock ? NULL : "it does not ask the client's clock";
}

const char *lab_hazard_has_renewer(const lab_strategy *s)
{
    if (!s->lock)
        return lab_hazard_for_locks(s);
    return s->renewed_outside ? NULL : "nobody outside its process renews it";
}

/* The product's lease is always given by hand here, and renewed all the same. */
const char *lab_hazard_has_lease(const lab_strategy *s)
{
    if (!s->lock)
        return lab_hazard_for_locks(s);
    return s->explicit_lease || s->product ? NULL
                                           : "a lease of its own does not change how it works";
}
