/* Those that share, semaphores, and several at once: what must hold at every instant, and what must be possible when all
 * is well. */
#include "sim/room.h"
#include "support/calls.h"

#include <stdio.h>

/* Nobody who holds is below the floor of another: its guarded writes would be refused. */
void room_check_floor(const holding *mine)
{
    uint64_t floor = dibs_grant_floor(mine->grant);

    for (int i = 0; i < HOLDINGS; i++) {
        const holding *h = &the_world.holding[i];
        if (h->grant && h->name == mine->name && !h->by->process->dead &&
            dibs_grant_held(h->grant) && dibs_grant_held(mine->grant) &&
            dibs_grant_fence(h->grant) < floor)
            BROKEN("the floor of fence %llu is %llu, and fence %llu holds it too",
                   (unsigned long long)dibs_grant_fence(mine->grant), (unsigned long long)floor,
                   (unsigned long long)dibs_grant_fence(h->grant));
    }
}

static dibs_grant *get(member *m, const char *name, const char *owner, dibs_lock_options o)
{
    dibs_grant *g = NULL;

    o.owner = owner;
    o.lease_ms = 5000;
    o.wait_ms = DIBS_NO_WAIT;
    return dibs_lock(m->d, name, &o, &g, NULL) == DIBS_OK ? g : NULL;
}

/* Two that get in beside each other, and a third that only gets in when `first` is gone. */
static void check_three(member *m, const char *name, const dibs_lock_options o[3])
{
    dibs_grant *first = get(m, name, "first", o[0]), *second = get(m, name, "second", o[1]), *third;

    if (!first || !second) {
        sim_fault("all is well, but '%s' has no room for two", name);
        return;
    }
    if (dibs_grant_floor(second) != dibs_grant_fence(first) ||
        dibs_grant_floor(first) != dibs_grant_fence(first))
        sim_fault("all is well, but the floor of '%s' is not the fence of the first", name);
    if (get(m, name, "third", o[2]))
        sim_fault("all is well, but '%s' has room for three", name);
    unlock(second);
    if (get(m, name, "third", o[2]))
        sim_fault("all is well, but '%s' has more room than was given back", name);
    unlock(first);
    third = get(m, name, "third", o[2]);
    if (!third)
        sim_fault("all is well, but '%s' is not free again", name);
    else
        unlock(third);
}

void room_shares_at_last(member *m)
{
    static const dibs_lock_options readers[] = {
        {.shared = true}, {.shared = true}, {.shared = false}};
    static const dibs_lock_options slots[] = {{.slots = SLOTS, .weight = SLOTS - 1},
                                              {.slots = SLOTS, .weight = 1},
                                              {.slots = SLOTS, .weight = 2}};
    char name[64];

    if (m->shared_at_last)
        return; /* the owners are the handle's: one thread of it is enough */
    m->shared_at_last = true;
    snprintf(name, sizeof name, "shared by process %d", m->process->number);
    check_three(m, name, readers);
    snprintf(name, sizeof name, "slots of process %d", m->process->number);
    check_three(m, name, slots);
}

/* Who asks for two and gets one of them keeps nobody out with what it had. */
void room_many_at_last(member *m)
{
    char name[2][64];
    const char *both[] = {name[0], name[1]};
    dibs_grant *second, *g[2];
    dibs_lock_options o = {
        .owner = "both", .lease_ms = 5000, .min_hold_ms = 3000, .wait_ms = DIBS_NO_WAIT};

    if (!the_world.more || m->many_at_last)
        return;
    m->many_at_last = true;
    for (int i = 0; i < 2; i++)
        snprintf(name[i], sizeof name[i], "number %d of process %d", i, m->process->number);
    second = get(m, both[1], "second", (dibs_lock_options){0});
    if (dibs_lock_many(m->d, both, 2, &o, g, NULL) == DIBS_OK)
        sim_fault("all is well, but '%s' has two owners", both[1]);
    g[0] = get(m, both[0], "first", (dibs_lock_options){0});
    if (!second || !g[0]) {
        sim_fault("all is well, but '%s' is blocked by a call that failed", both[0]);
        return;
    }
    unlock(g[0]);
    unlock(second);
}
