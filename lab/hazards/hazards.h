/* Every hazard by name, for the table; and which strategies they are for. */
#ifndef DIBS_LAB_HAZARDS_H
#define DIBS_LAB_HAZARDS_H

#include "lab/finding.h"

extern const lab_hazard lab_hazard_killed, lab_hazard_killed_before_expire, lab_hazard_paused,
    lab_hazard_late_release, lab_hazard_release_gap, lab_hazard_long_work, lab_hazard_wrong_clock,
    lab_hazard_two_processes, lab_hazard_reply_lost, lab_hazard_renewer, lab_hazard_explicit_lease;

/* NULL: it can happen to this strategy. Else why it cannot. */
const char *lab_hazard_for_locks(const lab_strategy *s);       /* with lock and unlock */
const char *lab_hazard_for_redis_locks(const lab_strategy *s); /* on one Redis, not the product */
const char *lab_hazard_for_leases(const lab_strategy *s);      /* of these, with an end */
const char *lab_hazard_has_renewer(const lab_strategy *s);
const char *lab_hazard_has_lease(const lab_strategy *s);  /* given by hand */
const char *lab_hazard_uses_clock(const lab_strategy *s); /* the scheme asks the client's clock */

#endif
