/* R6: two more flaws of the lock whose value is its time of expiry (the third, clocks that disagree, is a
 * hazard: wrong-clock). A loser's GETSET writes his own time over the winner's. And a holder that is overdue
 * must not release, so that its key stays behind, with no end of its own. */
#include "lab/hazards/actor.h"
#include "lab/raw.h"
#include "sessions.h"

#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define STEP_MS  10000
#define LEASE_MS 400
#define APART_US (250 * 1000) /* between the winner's GETSET and the loser's */

typedef struct stage {
    lab_role role;
    char resource[64], why[256];
    lab_buyer buyer;
    redisContext *redis;
} stage;

static bool not_now(stage *s, const char *what, const lab_answer *answer)
{
    snprintf(s->why, sizeof s->why, "%s%s%.200s", what, answer->note[0] ? ": " : "", answer->note);
    return false;
}

/* Both find it overdue; one is stopped between GET and GETSET while the other one takes it. */
static bool loser_moves(stage *s, int64_t *moved_ms)
{
    lab_role late = s->role;
    lab_actor winner = {-1, -1, -1}, loser = {-1, -1, -1};
    lab_answer answer = {0};
    int64_t before;
    bool ran = false;

    late.point = "between GET and GETSET";
    late.strike = SIGSTOP;
    lab_redis(&s->buyer, s->redis, "SET lock:%s 1", s->resource);
    if (lab_actor_start(&loser, &late, s->why) && lab_actor_start(&winner, &s->role, s->why)) {
        lab_actor_order(&loser, LAB_STEP_LOCK, 1);
        if (!lab_actor_stopped(&loser, STEP_MS)) {
            not_now(s, "the loser never came to GETSET", &answer);
        } else if (!lab_actor_do(&winner, LAB_STEP_LOCK, 0, STEP_MS, &answer)) {
            not_now(s, "the winner did not get it", &answer);
        } else {
            before = lab_redis(&s->buyer, s->redis, "GET lock:%s", s->resource);
            usleep(APART_US);
            lab_actor_signal(&loser, SIGCONT);
            ran = lab_actor_hear(&loser, STEP_MS, &answer) == 1 && !answer.yes;
            if (!ran)
                not_now(s, "the loser did not lose", &answer);
            *moved_ms = lab_redis(&s->buyer, s->redis, "GET lock:%s", s->resource) - before;
        }
    }
    lab_actor_end(&winner);
    lab_actor_end(&loser);
    return ran;
}

/* Longer work than the lease, then the release; what is left of it? */
static bool overdue_skips(stage *s, bool *released, bool *there, int64_t *end_ms)
{
    lab_actor a = {-1, -1, -1};
    lab_answer answer = {0};
    bool ran = false;

    lab_redis(&s->buyer, s->redis, "DEL lock:%s", s->resource);
    if (lab_actor_start(&a, &s->role, s->why)) {
        ran = lab_actor_do(&a, LAB_STEP_LOCK, 0, STEP_MS, &answer) &&
              lab_actor_do(&a, LAB_STEP_WORK, 0, STEP_MS, &answer);
        if (!ran)
            not_now(s, "the holder did not get it", &answer);
        *released = lab_actor_do(&a, LAB_STEP_UNLOCK, 0, STEP_MS, &answer);
        *there = lab_redis(&s->buyer, s->redis, "EXISTS lock:%s", s->resource) == 1;
        *end_ms = lab_redis(&s->buyer, s->redis, "PTTL lock:%s", s->resource);
    }
    lab_actor_end(&a);
    lab_redis(&s->buyer, s->redis, "DEL lock:%s", s->resource);
    return ran;
}

static void flaws(const lab_site *site, lab_finding *out)
{
    const lab_strategy *r6 = lab_find("getset", NULL);
    stage s = {.buyer = {.site = site}};
    int64_t moved = 0, end = 0;
    bool released = false, there = false, ran;

    s.role = (lab_role){.strategy = r6,
                        .site = site,
                        .resource = s.resource,
                        .pace = {.lease_ms = LEASE_MS, .work_us = 2000 * LEASE_MS}};
    s.redis = lab_redis_open(&s.buyer, site->url[LAB_REDIS]);
    ran = s.redis && lab_scene(r6, site, 10, s.resource, s.why) && loser_moves(&s, &moved) &&
          overdue_skips(&s, &released, &there, &end);
    if (s.redis)
        redisFree(s.redis);
    if (!ran)
        lab_found(out, LAB_NOT_RUN, "%s", s.why[0] ? s.why : s.buyer.note);
    else
        lab_found(
            out, LAB_SHOWN,
            "a loser's GETSET moved the winner's expiry by %lld ms; an overdue holder's release "
            "%s, and the key %s (PTTL %lld)",
            (long long)moved, released ? "went through" : "was skipped",
            there ? "remains, without an expiry" : "is gone", (long long)end);
}

const lab_experiment lab_getset_flaws = {
    .id = "R6",
    .name = "getset-flaws",
    .title = "GETSET: a loser moves the winner's expiry, an overdue holder leaves its key",
    .needs = LAB_NEED(LAB_REDIS),
    .run = flaws,
};
