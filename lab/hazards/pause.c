/* Holders that sleep past their lease (a stopped process, a long collection of garbage, a suspended
 * host), wake up and go on as if nothing had been. */
#include "actor.h"
#include "hazards.h"

#include <signal.h>
#include <unistd.h>

#define LEASE_MS 1000
#define STEP_MS  8000
#define LOOK_MS  300 /* how long a third one looks whether it is free */

typedef struct cast {
    lab_actor a, b, c;
} cast;

static bool enter(cast *x, const lab_role *role, lab_finding *out)
{
    lab_role other = *role;
    char why[256];

    other.point = NULL;
    other.pace.work_us = 0;
    x->a = x->b = x->c = (lab_actor){-1, -1, -1};
    if (lab_actor_start(&x->a, role, why) && lab_actor_start(&x->b, &other, why) &&
        lab_actor_start(&x->c, &other, why))
        return true;
    lab_found(out, LAB_NOT_RUN, "%s", why);
    return false;
}

static void leave(cast *x)
{
    lab_actor_end(&x->a);
    lab_actor_end(&x->b);
    lab_actor_end(&x->c);
}

static lab_role role_of(const lab_strategy *s, const lab_site *site, const char *resource)
{
    return (lab_role){.strategy = s, .site = site, .resource = resource, .pace.lease_ms = LEASE_MS};
}

/* ---- Stopped between read and write ---------------------------------------------------------- */

/* A has read, sleeps, B buys, A writes what it read. */
static void wake_and_write(cast *x, const lab_role *role, lab_finding *out)
{
    lab_answer a = {0}, b = {0};
    bool let_in;
    int64_t left = -1, sold;

    lab_actor_order(&x->a, LAB_STEP_SELL, 0);
    if (!lab_actor_stopped(&x->a, STEP_MS)) {
        lab_found(out, LAB_NOT_RUN, "the holder did not come to its write");
        return;
    }
    let_in = lab_actor_do(&x->b, LAB_STEP_LOCK, STEP_MS, STEP_MS + 2000, &b) &&
             lab_actor_do(&x->b, LAB_STEP_SELL, 0, STEP_MS, &b);
    lab_actor_signal(&x->a, SIGCONT);
    lab_actor_hear(&x->a, STEP_MS, &a);
    sold = (a.sale == LAB_SOLD && a.yes) + let_in;
    if (!lab_scene_stock(role->strategy, role->site, role->resource, &left)) {
        lab_found(out, LAB_NOT_RUN, "the stock record could not be read");
        return;
    }
    out->oversold = sold > 10 - left ? sold - (10 - left) : 0;
    if (out->oversold > 0)
        lab_found(
            out, LAB_BROKE,
            "both sold, and %lld of 2 sales is missing from the stock record: oversold by %lld",
            (long long)(10 - left), (long long)out->oversold);
    else if (!let_in)
        lab_found(out, LAB_BROKE,
                  "no other client obtained the lock while the holder was paused for %d ms",
                  STEP_MS);
    else
        lab_found(out, LAB_SURVIVED, "the paused holder's write was rejected%s%s",
                  a.note[0] ? ": " : "", a.note);
}

static void pause_holder(const lab_strategy *s, const lab_site *site, lab_finding *out)
{
    char resource[64] = "", why[256];
    lab_role role = role_of(s, site, resource);
    lab_answer answer = {0};
    cast x;

    role.point = "between read and write";
    role.strike = SIGSTOP;
    if (!lab_scene(s, site, 10, resource, why)) {
        lab_found(out, LAB_NOT_RUN, "%s", why);
        return;
    }
    if (enter(&x, &role, out)) {
        if (lab_actor_do(&x.a, LAB_STEP_LOCK, 0, STEP_MS, &answer))
            wake_and_write(&x, &role, out);
        else
            lab_found(out, LAB_NOT_RUN, "the first client did not obtain the lock: %s",
                      answer.note);
    }
    leave(&x);
}

/* ---- Released too late ----------------------------------------------------------------------- */

/* A sleeps past its lease, B takes it, A releases: can a third one get in while B holds? */
static void release_late(cast *x, lab_finding *out)
{
    lab_answer answer = {0};

    if (!lab_actor_do(&x->b, LAB_STEP_LOCK, STEP_MS, STEP_MS + 2000, &answer)) {
        lab_actor_signal(&x->a, SIGCONT);
        lab_found(out, LAB_BROKE,
                  "no other client obtained the lock while the holder was paused for %d ms",
                  STEP_MS);
        out->stuck_ms = INT64_MAX;
        return;
    }
    lab_actor_signal(&x->a, SIGCONT);
    lab_actor_hear(&x->a, STEP_MS, &answer); /* its release is over */
    if (lab_actor_do(&x->c, LAB_STEP_LOCK, LOOK_MS, STEP_MS, &answer)) {
        out->foreign = 1;
        out->at_once = 2;
        lab_found(out, LAB_BROKE,
                  "the late release deleted the next holder's lock: a third client obtained it");
    } else {
        out->foreign = 0;
        out->at_once = 1;
        lab_found(out, LAB_SURVIVED, "the late release did not affect the next holder");
    }
}

static void late_release(const lab_strategy *s, const lab_site *site, lab_finding *out)
{
    char resource[64] = "", why[256];
    lab_role role = role_of(s, site, resource);
    lab_answer answer = {0};
    cast x;

    if (!lab_scene(s, site, 10, resource, why)) {
        lab_found(out, LAB_NOT_RUN, "%s", why);
        return;
    }
    if (enter(&x, &role, out)) {
        if (lab_actor_do(&x.a, LAB_STEP_LOCK, 0, STEP_MS, &answer)) {
            lab_actor_signal(&x.a, SIGSTOP);
            lab_actor_order(&x.a, LAB_STEP_UNLOCK, 0);
            release_late(&x, out);
        } else {
            lab_found(out, LAB_NOT_RUN, "the first client did not obtain the lock: %s",
                      answer.note);
        }
    }
    leave(&x);
}

/* The same, asleep between looking whose it is and deleting it. */
static void release_gap(const lab_strategy *s, const lab_site *site, lab_finding *out)
{
    char resource[64] = "", why[256];
    lab_role role = role_of(s, site, resource);
    lab_answer answer = {0};
    cast x;

    role.point = "between GET and DEL";
    role.strike = SIGSTOP;
    if (!lab_scene(s, site, 10, resource, why)) {
        lab_found(out, LAB_NOT_RUN, "%s", why);
        return;
    }
    if (enter(&x, &role, out)) {
        if (lab_actor_do(&x.a, LAB_STEP_LOCK, 0, STEP_MS, &answer)) {
            lab_actor_order(&x.a, LAB_STEP_UNLOCK, 0);
            if (lab_actor_stopped(&x.a, 500))
                release_late(&x, out);
            else
                lab_found(out, LAB_SURVIVED,
                          "checking and deleting are one step: there is no such gap");
        } else {
            lab_found(out, LAB_NOT_RUN, "the first client did not obtain the lock: %s",
                      answer.note);
        }
    }
    leave(&x);
}

const lab_hazard lab_hazard_paused = {
    .kind = LAB_HOLDER_PAUSED,
    .name = "holder-paused",
    .title = "paused past its lease, then it writes",
    .why_not = lab_hazard_for_locks,
    .run = pause_holder,
};

const lab_hazard lab_hazard_late_release = {
    .kind = LAB_LATE_RELEASE,
    .name = "late-release",
    .title = "an overdue holder releases",
    .why_not = lab_hazard_for_locks,
    .run = late_release,
};

const lab_hazard lab_hazard_release_gap = {
    .kind = LAB_RELEASE_GAP,
    .name = "release-gap",
    .title = "paused between GET and DEL",
    .why_not = lab_hazard_for_redis_locks,
    .run = release_gap,
};
