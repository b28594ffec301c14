/* Holders that die: with the lock, or between taking it and giving it an end. */
#include "actor.h"
#include "hazards.h"

#include <signal.h>

#define LEASE_MS    1000
#define PATIENCE_MS 8000 /* after this, "for ever" */

/* The next one comes; how long does it wait? */
static void let_next_try(const lab_role *role, lab_finding *out)
{
    lab_role next = *role;
    lab_actor b;
    lab_answer answer = {0};
    char why[256], lease[32];
    int64_t begin;

    next.point = NULL;
    if (!lab_actor_start(&b, &next, why)) {
        lab_found(out, LAB_NOT_RUN, "%s", why);
        return;
    }
    begin = lab_now_us();
    if (lab_actor_do(&b, LAB_STEP_LOCK, PATIENCE_MS, PATIENCE_MS + 2000, &answer)) {
        out->stuck_ms = (lab_now_us() - begin) / 1000;
        lab_found(out, LAB_SURVIVED, "the next client obtained the lock %lld ms later (%s)",
                  (long long)out->stuck_ms, lab_lease_words(role->strategy, LEASE_MS, lease));
    } else {
        out->stuck_ms = INT64_MAX;
        lab_found(out, LAB_BROKE, "the next client was still waiting after %d ms%s%s", PATIENCE_MS,
                  answer.note[0] ? ": " : "", answer.note);
    }
    lab_actor_end(&b);
}

static lab_role role_of(const lab_strategy *s, const lab_site *site, const char *resource)
{
    return (lab_role){.strategy = s, .site = site, .resource = resource, .pace.lease_ms = LEASE_MS};
}

static void kill_holder(const lab_strategy *s, const lab_site *site, lab_finding *out)
{
    char resource[64] = "", why[256];
    lab_role role = role_of(s, site, resource);
    lab_answer answer = {0};
    lab_actor a;

    if (!lab_scene(s, site, 10, resource, why) || !lab_actor_start(&a, &role, why)) {
        lab_found(out, LAB_NOT_RUN, "%s", why);
        return;
    }
    if (!lab_actor_do(&a, LAB_STEP_LOCK, 0, PATIENCE_MS, &answer)) {
        lab_found(out, LAB_NOT_RUN, "the first client did not obtain the lock: %s", answer.note);
    } else {
        lab_actor_end(&a);
        let_next_try(&role, out);
    }
    lab_actor_end(&a);
}

static void kill_before_expire(const lab_strategy *s, const lab_site *site, lab_finding *out)
{
    char resource[64] = "", why[256];
    lab_role role = role_of(s, site, resource);
    lab_answer answer = {0};
    lab_actor a;

    role.point = "between SETNX and EXPIRE";
    role.strike = SIGKILL;
    if (!lab_scene(s, site, 10, resource, why) || !lab_actor_start(&a, &role, why)) {
        lab_found(out, LAB_NOT_RUN, "%s", why);
        return;
    }
    lab_actor_order(&a, LAB_STEP_LOCK, 0);
    if (lab_actor_hear(&a, PATIENCE_MS, &answer) == -1)
        let_next_try(&role, out);
    else
        lab_found(
            out, LAB_SURVIVED,
            "acquiring the lock and setting its expiry are one step: there is no such moment");
    lab_actor_end(&a);
}

const lab_hazard lab_hazard_killed = {
    .kind = LAB_HOLDER_KILLED,
    .name = "holder-killed",
    .title = "the holder is killed",
    .why_not = lab_hazard_for_locks,
    .run = kill_holder,
};

const lab_hazard lab_hazard_killed_before_expire = {
    .kind = LAB_KILLED_BEFORE_EXPIRE,
    .name = "killed-before-expire",
    .title = "killed between SETNX and EXPIRE",
    .why_not = lab_hazard_for_leases,
    .run = kill_before_expire,
};

const lab_hazard lab_hazard_renewer = {
    .kind = LAB_RENEWER_OUTLIVES,
    .name = "renewer-outlives",
    .title = "the renewing service outlives the holder",
    .why_not = lab_hazard_has_renewer,
    .run = kill_holder,
};
