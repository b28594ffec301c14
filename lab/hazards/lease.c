/* Leases that do not fit: shorter than the work, or judged by a clock that is ahead. */
#include "actor.h"
#include "hazards.h"

#define LEASE_MS 600
#define WORK_US  (1800 * 1000)
#define STEP_MS  15000

/* A works under the lock; B, meanwhile, wants in. */
static void work_beside(const lab_role *role, int64_t skew_ms, lab_finding *out)
{
    lab_role other = *role;
    lab_actor a, b = {-1, -1, -1};
    lab_answer answer = {0};
    char why[256], lease[32];
    bool in;

    other.pace.skew_ms = skew_ms;
    if (!lab_actor_start(&a, role, why) || !lab_actor_start(&b, &other, why)) {
        lab_found(out, LAB_NOT_RUN, "%s", why);
    } else if (!lab_actor_do(&a, LAB_STEP_LOCK, 0, STEP_MS, &answer)) {
        lab_found(out, LAB_NOT_RUN, "the first client did not obtain the lock: %s", answer.note);
    } else {
        lab_actor_order(&a, LAB_STEP_WORK, 0);
        in = lab_actor_do(&b, LAB_STEP_LOCK, role->pace.work_us / 1000 - 400, STEP_MS, &answer);
        out->at_once = in ? 2 : 1;
        if (in)
            lab_found(out, LAB_BROKE,
                      "a second client obtained the lock while the first was still working");
        else
            lab_found(out, LAB_SURVIVED,
                      "no other client obtained the lock during %lld ms of work (%s)",
                      (long long)role->pace.work_us / 1000,
                      lab_lease_words(role->strategy, role->pace.lease_ms, lease));
    }
    lab_actor_end(&a);
    lab_actor_end(&b);
}

static void long_work(const lab_strategy *s, const lab_site *site, lab_finding *out)
{
    char resource[64], why[256];
    lab_role role = {.strategy = s,
                     .site = site,
                     .resource = resource,
                     .pace = {.lease_ms = LEASE_MS, .work_us = 3000 * lab_lease(s, LEASE_MS)}};

    if (lab_scene(s, site, 10, resource, why))
        work_beside(&role, 0, out);
    else
        lab_found(out, LAB_NOT_RUN, "%s", why);
}

/* The lease is far longer than the work, but the second client's clock is an hour ahead. */
static void wrong_clock(const lab_strategy *s, const lab_site *site, lab_finding *out)
{
    char resource[64], why[256];
    lab_role role = {.strategy = s,
                     .site = site,
                     .resource = resource,
                     .pace = {.lease_ms = 20000, .work_us = WORK_US}};

    if (lab_scene(s, site, 10, resource, why))
        work_beside(&role, 3600 * 1000, out);
    else
        lab_found(out, LAB_NOT_RUN, "%s", why);
}

const lab_hazard lab_hazard_long_work = {
    .kind = LAB_LONG_WORK,
    .name = "long-work",
    .title = "the work takes longer than the lease",
    .why_not = lab_hazard_for_locks,
    .run = long_work,
};

const lab_hazard lab_hazard_wrong_clock = {
    .kind = LAB_WRONG_CLOCK,
    .name = "wrong-clock",
    .title = "a client's clock is an hour ahead",
    .why_not = lab_hazard_uses_clock,
    .run = wrong_clock,
};

const lab_hazard lab_hazard_explicit_lease = {
    .kind = LAB_EXPLICIT_LEASE,
    .name = "explicit-lease",
    .title = "an explicit lease, and longer work",
    .why_not = lab_hazard_has_lease,
    .run = long_work,
};
