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

bool lab_hazard_for_locks(const lab_strategy *s)
{
    return s->lock != NULL;
}

bool lab_hazard_for_redis_locks(const lab_strategy *s)
{
    return s->lock && !s->product && (s->needs & LAB_NEED(LAB_REDIS));
}

bool lab_hazard_uses_clock(const lab_strategy *s)
{
    return s->lock && s->uses_clock;
}

bool lab_hazard_has_renewer(const lab_strategy *s)
{
    return s->lock && s->renewed_outside;
}

/* The product's lease is always given by hand here, and renewed all the same. */
bool lab_hazard_has_lease(const lab_strategy *s)
{
    return s->lock && (s->explicit_lease || s->product);
}
