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
