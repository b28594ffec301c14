/* R7, R9 and R10: what a lock owes its user beyond exclusion. Is its holder let in again? Can one who does
 * not hold it give it back? Does one who waits at most so long give up in time? Each of the Redis schemes
 * is asked, with buyers in processes of their own, and dibs beside them. */
#include "lab/hazards/actor.h"
#include "sessions.h"

#include <stdio.h>
#include <string.h>

#define WAIT_MS 300
#define STEP_MS 10000

static const char *const asked[] = {"setnx-sleep", "set-nx-px",      "set-get-del",  "lua-evalsha",
                                    "getset",      "hash-reentrant", "hash-renewed", "hash-trylock",
                                    "redisson",    "dibs-redis"};
#define ASKED (sizeof asked / sizeof asked[0])

typedef struct manners {
    bool again; /* its holder was let in a second time */
    bool freed; /* by one who did not hold it */
    int64_t gave_up_ms;
    char said[256]; /* to the stranger */
} manners;

/* The holder holds; the other one waits a little, then gives back what is not his, and asks again. */
static bool ask_two(lab_actor *holder, lab_actor *other, bool product, manners *m, char why[256])
{
    lab_answer answer = {0};
    int64_t begin;

    if (!lab_actor_do(holder, LAB_STEP_LOCK, 0, STEP_MS, &answer)) {
        snprintf(why, 256, "the holder did not get it: %.200s", answer.note);
        return false;
    }
    begin = lab_now_us();
    if (lab_actor_do(other, LAB_STEP_LOCK, WAIT_MS, STEP_MS, &answer)) {
        snprintf(why, 256, "two holders");
        return false;
    }
    m->gave_up_ms = (lab_now_us() - begin) / 1000;
    m->again = lab_actor_do(holder, LAB_STEP_LOCK, WAIT_MS, STEP_MS, &answer);
    snprintf(m->said, sizeof m->said, "there is no such call");
    if (product) /* what is given back is a grant, and a stranger has none */
        return true;
    lab_actor_do(other, LAB_STEP_UNLOCK, 0, STEP_MS, &answer);
    snprintf(m->said, sizeof m->said, "%s",
             answer.note[0] ? answer.note
             : answer.yes   ? "done"
                            : "no");
    m->freed = lab_actor_do(other, LAB_STEP_LOCK, WAIT_MS, STEP_MS, &answer);
    return true;
}

static bool ask_one(const lab_strategy *s, const lab_site *site, manners *m, char why[256])
{
    char resource[64];
    lab_role role = {
        .strategy = s, .site = site, .resource = resource, .pace = {.lease_ms = 30000}};
    lab_actor holder = {-1, -1, -1}, other = {-1, -1, -1};
    bool asked_both = lab_scene(s, site, 10, resource, why) &&
                      lab_actor_start(&holder, &role, why) && lab_actor_start(&other, &role, why) &&
                      ask_two(&holder, &other, s->product, m, why);

    lab_actor_end(&holder);
    lab_actor_end(&other);
    return asked_both;
}

static void add_name(char *list, size_t size, const char *name)
{
    size_t n = strlen(list);

    snprintf(list + n, size - n, "%s%s", n ? ", " : "", name);
}

static void ask_all(const lab_site *site, lab_finding *out)
{
    lab_rows *rows =
        lab_rows_new("scheme\tits holder asks again\tanother client's release\treply\tgave up, "
                     "asked to wait 300 ms");
    char again[200] = "", freed[200] = "", why[256] = "";
    int64_t slowest = 0;
    bool ran = true;

    for (size_t i = 0; ran && i < ASKED; i++) {
        const lab_strategy *s = lab_find(asked[i], NULL);
        manners m = {0};
        ran = ask_one(s, site, &m, why);
        lab_rows_add(rows, "%s %s\t%s\t%s\t%s\t%lld ms", s->id, s->name,
                     m.again ? "obtains it" : "waits for itself",
                     m.freed ? "releases it" : "changes nothing", m.said, (long long)m.gave_up_ms);
        if (m.again)
            add_name(again, sizeof again, s->name);
        if (m.freed)
            add_name(freed, sizeof freed, s->name);
        slowest = m.gave_up_ms > slowest ? m.gave_up_ms : slowest;
    }
    out->table = lab_rows_end(rows);
    if (ran)
        lab_found(out, LAB_SHOWN,
                  "reentrant: %s; released by another client: %s; asked to wait %d ms, all gave up "
                  "within "
                  "%lld ms",
                  again, freed, WAIT_MS, (long long)slowest);
    else
        lab_found(out, LAB_NOT_RUN, "%s", why);
}

const lab_experiment lab_manners = {
    .id = "R7",
    .name = "manners",
    .title = "reentry, release by others, giving up in time (R1 to R10)",
    .needs = LAB_NEED(LAB_REDIS),
    .run = ask_all,
};
