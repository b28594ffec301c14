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
    return s->lock ? NULL : "the scheme has no lock to hold";
}

const char *lab_hazard_for_redis_locks(const lab_strategy *s)
{
    if (!s->lock)
        return lab_hazard_for_locks(s);
    if (s->product)
        return "dibs acquires and releases in one step each: there is no such moment";
    return s->needs & LAB_NEED(LAB_REDIS) ? NULL : "the scheme does not use these Redis commands";
}

const char *lab_hazard_for_leases(const lab_strategy *s)
{
    if (s->lock && s->no_lease)
        return "it has no EXPIRE: its lock never expires";
    return lab_hazard_for_redis_locks(s);
}

const char *lab_hazard_uses_clock(const lab_strategy *s)
{
    if (!s->lock)
        return lab_hazard_for_locks(s);
    return s->uses_clock ? NULL : "the scheme does not use the client's clock";
}

const char *lab_hazard_has_renewer(const lab_strategy *s)
{
    if (!s->lock)
        return lab_hazard_for_locks(s);
    return s->renewed_outside ? NULL : "its lock is not renewed from outside its process";
}

/* The product's lease is always given by hand here, and renewed all the same. */
const char *lab_hazard_has_lease(const lab_strategy *s)
{
    if (!s->lock)
        return lab_hazard_for_locks(s);
    return s->explicit_lease || s->product ? NULL : "an explicit lease does not change the scheme";
}
