#define _GNU_SOURCE
#include "sim/room.h"
#include "support/calls.h"

#include "core/handle.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define PLAIN 1000 /* slots of what is no semaphore */

static const char *const names[NAMES] = {"a", "b", "c", "s"};

static void sleep_ms(member *m, int64_t ms)
{
    dibs__sleep(&m->process->env, ms * DIBS__MS);
}

/* ---- Who holds ------------------------------------------------------------------------------- */

static uint32_t slots_of(int name)
{
    return name == NAMES - 1 ? SLOTS : PLAIN;
}

/* At one instant of true time, by the word of each holder's own process. */
static void check_alone(const holding *mine)
{
    const holding *other = NULL;
    uint32_t used = 0;

    for (int i = 0; i < HOLDINGS; i++) {
        const holding *h = &the_world.holding[i];
        if (!h->grant || h->name != mine->name || h->by->process->dead ||
            !dibs_grant_held(h->grant))
            continue;
        used += h->weight;
        other = h == mine ? other : h;
    }
    room_check_floor(mine);
    if (used > slots_of(mine->name) && other && dibs_grant_held(mine->grant))
        BROKEN("two hold '%s': process %d with fence %llu and process %d with fence %llu",
               names[mine->name], mine->by->process->number,
               (unsigned long long)dibs_grant_fence(mine->grant), other->by->process->number,
               (unsigned long long)dibs_grant_fence(other->grant));
}

static holding *note_holding(member *m, const dibs_grant *g, int name, uint32_t weight)
{
    holding *h = the_world.holding;

    while (h->grant)
        if (++h == the_world.holding + HOLDINGS)
            abort();
    *h = (holding){g, m, name, weight};
    if (dibs_grant_held(g) && weight == PLAIN) {
        if (dibs_grant_fence(g) <= the_world.highest[name])
            BROKEN("'%s': fence %llu after %llu", names[name],
                   (unsigned long long)dibs_grant_fence(g),
                   (unsigned long long)the_world.highest[name]);
        the_world.highest[name] = dibs_grant_fence(g);
        if (dibs_grant_floor(g) != dibs_grant_fence(g))
            BROKEN("'%s': held alone, and the floor is not the fence", names[name]);
    }
    check_alone(h);
    return h;
}

/* ---- Holding --------------------------------------------------------------------------------- */

/* Also of a loss: it is told soon after the moment when the lock was held no longer. */
static void hold(member *m, holding *h, int64_t span_ms, const bool *reported)
{
    int64_t end = sim_clock(m->process) + span_ms * DIBS__MS;

    while (sim_clock(m->process) < end && dibs_grant_held(h->grant)) {
        check_alone(h);
        sleep_ms(m, sim_between(1, 60));
    }
    check_alone(h);
    if (!dibs_grant_held(h->grant) && reported) {
        for (int i = 0; i < 65 && !*reported; i++) {
            sleep_ms(m, 100); /* not in one piece: the process may be stopped meanwhile */
            if (dibs_grant_held(h->grant))
                sim_fault("'%s' was lost, and is held again", names[h->name]);
        }
        if (!*reported)
            sim_fault("'%s' was lost, and nobody was told", names[h->name]);
    }
}

static loss *new_loss(member *m)
{
    loss *l = &the_world.loss[the_world.losses++ % LOSSES];

    *l = (loss){.by = m};
    return l;
}

/* Not after the lock was given back: whatever the user has for it may be gone. */
static void note_loss(loss *l)
{
    if (l->over)
        sim_fault("a loss was told after the lock had been unlocked");
    if (the_world.more)
        sleep_ms(l->by, sim_between(0, 20));
    if (l->over)
        sim_fault("a lock was unlocked while its loss was being told");
    l->reported = true;
}

static void on_lost(void *data, dibs_grant *g, dibs_loss why)
{
    (void)g;
    (void)why;
    note_loss(data);
}

static int64_t any_wait(void)
{
    switch (sim_draw(4)) {
    case 0:
        return DIBS_NO_WAIT;
    case 1:
        return sim_between(1, 300);
    default:
        return sim_between(300, 8000);
    }
}

/* A call keeps its time, whatever the engine does, if the process could run meanwhile. */
static void check_time(member *m, int64_t began, int64_t stopped, int64_t wait_ms)
{
    int64_t took = sim_clock(m->process) - began - 2 * (m->process->stopped - stopped);
    int64_t most = wait_ms == DIBS_NO_WAIT ? 5000 : wait_ms;

    if (took > (most + 600) * DIBS__MS)
        sim_fault("a wait of %lld ms took %lld ms", (long long)wait_ms,
                  (long long)(took / DIBS__MS));
}

static void lock_one(member *m)
{
    static const int64_t leases[] = {100, 400, 1500, 6000};
    loss *l = new_loss(m);
    int name = (int)sim_draw((uint64_t)the_world.names);
    dibs_lock_options o = {.wait_ms = any_wait(),
                           .lease_ms = leases[sim_draw(4)],
                           .shared = sim_chance(300000),
                           .no_renew = sim_chance(150000),
                           .min_hold_ms = sim_chance(100000) ? 200 : 0,
                           .max_hold_ms = sim_chance(100000) ? 2000 : 0,
                           .on_lost = on_lost,
                           .data = l};
    int64_t began = sim_clock(m->process), stopped = m->process->stopped;
    dibs_grant *g = NULL;
    dibs_error err = {0};
    dibs_status status = dibs_lock(m->d, names[name], &o, &g, &err);
    holding *h;

    check_time(m, began, stopped, o.wait_ms);
    if (status != DIBS_OK) {
        if (status != DIBS_BUSY && status != DIBS_UNAVAILABLE && status != DIBS_UNKNOWN &&
            status != DIBS_LOST && status != DIBS_CANCELLED)
            sim_fault("dibs_lock: %s", err.message);
        return;
    }
    if (m->process->stopped == stopped && g->deadline != 0 &&
        g->deadline < sim_clock(m->process) - 10 * DIBS__MS)
        sim_fault("'%s': obtained, and over for long", names[name]);
    h = note_holding(m, g, name, o.shared ? 1 : PLAIN);
    hold(m, h, sim_between(0, 3 * o.lease_ms > 4000 ? 4000 : 3 * o.lease_ms),
         the_world.more && sim_chance(300000) ? NULL : &l->reported);
    h->grant = NULL;
    unlock(g);
    l->over = true;
}

/* What is lost is told, by its own grant. */
typedef struct pair {
    dibs_grant *g[2];
    loss *loss[2];
} pair;

static void on_one_lost(void *data, dibs_grant *g, dibs_loss why)
{
    const pair *p = data;

    (void)why;
    note_loss(p->loss[g == p->g[1]]);
}

/* None of them was lost before the last one was there: nobody would be told. */
static void check_both(member *m, pair *p, holding *h[2])
{
    for (int i = 0; i < 2; i++) {
        hold(m, h[i], 0, &p->loss[i]->reported);
        h[i]->grant = NULL;
        unlock(p->g[i]);
        p->loss[i]->over = true;
    }
}

static void lock_both(member *m)
{
    const char *both[] = {names[0], names[1]};
    pair p = {.loss = {new_loss(m), new_loss(m)}};
    dibs_grant **g = p.g;
    dibs_lock_options o = {.wait_ms = any_wait(), .lease_ms = 1500};
    holding *h[2];

    if (the_world.more) {
        o.on_lost = on_one_lost;
        o.data = &p;
        o.lease_ms = 300;
        o.no_renew = sim_chance(500000);
    }
    if (the_world.names < 2 || dibs_lock_many(m->d, both, 2, &o, g, NULL) != DIBS_OK)
        return;
    for (int i = 0; i < 2; i++)
        h[i] = note_holding(m, g[i], i, PLAIN);
    hold(m, h[0], sim_between(0, 1000), NULL);
    check_alone(h[1]);
    if (the_world.more) {
        check_both(m, &p, h);
        return;
    }
    for (int i = 0; i < 2; i++) {
        h[i]->grant = NULL;
        unlock(g[i]);
    }
}

static void lock_slots(member *m)
{
    dibs_lock_options o = {.wait_ms = any_wait(), .lease_ms = 1500, .slots = SLOTS};
    dibs_grant *g = NULL;
    holding *h;

    o.weight = (uint32_t)sim_between(1, SLOTS);
    if (dibs_lock(m->d, names[NAMES - 1], &o, &g, NULL) != DIBS_OK)
        return;
    h = note_holding(m, g, NAMES - 1, o.weight);
    hold(m, h, sim_between(0, 2000), NULL);
    h->grant = NULL;
    unlock(g);
}

static void lock_twice(member *m)
{
    int name = (int)sim_draw((uint64_t)the_world.names);
    dibs_lock_options o = {.wait_ms = any_wait(), .lease_ms = 1500};
    dibs_grant *g, *again;
    holding *h;

    if (dibs_lock(m->d, names[name], &o, &g, NULL) != DIBS_OK)
        return;
    h = note_holding(m, g, name, PLAIN);
    if (dibs_lock(m->d, names[name], &o, &again, NULL) == DIBS_OK) {
        if (again != g)
            sim_fault("'%s': another grant for its own holder", names[name]);
        hold(m, h, sim_between(0, 1000), NULL);
        unlock(again);
    }
    h->grant = NULL;
    unlock(g);
}

/* ---- Tickets --------------------------------------------------------------------------------- */

typedef struct answer {
    int reported;
    dibs_status status;
    dibs_grant *grant;
} answer;

static void on_settled(void *data, dibs_status status, dibs_grant *g, const dibs_error *err)
{
    answer *t = data;

    (void)err;
    if (t->reported++)
        sim_fault("a request was settled twice");
    t->status = status;
    t->grant = g;
}

static void lock_by_event(member *m)
{
    int name = (int)sim_draw((uint64_t)the_world.names);
    dibs_lock_options o = {.wait_ms = any_wait(), .lease_ms = 1500};
    answer t = {0};
    int64_t end = sim_clock(m->process) + 30 * DIBS__SECOND + m->process->stopped;
    holding *h;

    if (start_lock(m->d, names[name], &o, on_settled, &t, NULL, NULL) != DIBS_OK)
        return;
    while (!t.reported && sim_clock(m->process) < end + 2 * m->process->stopped) {
        struct pollfd p = {.fd = dibs_fd(m->d), .events = POLLIN};
        poll(&p, 1, 50);
        take_all(m->d);
        if (!t.reported && sim_chance(10000))
            dibs_cancel(m->d, names[name]);
    }
    if (!t.reported) {
        sim_fault("'%s': a request is never settled", names[name]);
        return;
    }
    if (t.status != DIBS_OK)
        return;
    h = note_holding(m, t.grant, name, PLAIN);
    hold(m, h, sim_between(0, 1000), NULL);
    h->grant = NULL;
    unlock(t.grant);
}

/* ---- All of it ------------------------------------------------------------------------------- */

/* The holder is asked, and lets go by itself: exclusion stays. */
static void break_one(member *m)
{
    dibs_lock_break(m->d, names[sim_draw((uint64_t)the_world.names)],
                    &(dibs_lock_break_options){.by = "test", .wait_ms = sim_between(1, 500)}, NULL);
}

/* Some runs are about locks alone, some about work that is done once: rare things meet more often. */
void room_something(member *m)
{
    static void (*const what[])(member *) = {lock_one,  lock_one,     lock_one,   lock_one,
                                             lock_both, lock_twice,   lock_slots, lock_by_event,
                                             break_one, room_once,    room_once,  room_once,
                                             room_once, room_counter, room_token, room_fenced};
    static const struct {
        uint64_t first, count;
    } parts[] = {{0, 15}, {0, 4}, {9, 4}};

    uint64_t more = the_world.more && the_world.about == 0 ? 1 : 0; /* room_fenced */

    what[parts[the_world.about].first + sim_draw(parts[the_world.about].count + more)](m);
}

/* The next in the queue is woken, and does not find out by itself. */
static void check_hand_over(int name, int64_t asked)
{
    int64_t given_back = the_world.given_back[name];

    if (asked < given_back && sim_now() - given_back > 300 * DIBS__MS)
        sim_fault("all is well, but it took %lld ms to hand over '%s'",
                  (long long)((sim_now() - given_back) / DIBS__MS), names[name]);
}

void room_at_last(member *m)
{
    for (int name = 0; name < the_world.names; name++) {
        /* An owner of its own, for once: what this thread has left behind is in its way, too. */
        dibs_lock_options o = {.wait_ms = 30000, .lease_ms = 900, .not_reentrant = the_world.more};
        dibs_grant *g = NULL;
        dibs_error err = {0};
        int64_t asked = sim_now();
        holding *h;
        if (dibs_lock(m->d, names[name], &o, &g, &err) != DIBS_OK) {
            sim_fault("all is well, but '%s' cannot be had: %s", names[name], err.message);
            return;
        }
        check_hand_over(name, asked);
        h = note_holding(m, g, name, PLAIN);
        hold(m, h, 2000, NULL);
        if (!dibs_grant_held(g))
            sim_fault("all is well, but '%s' was lost: %s", names[name],
                      dibs_loss_text(dibs_grant_loss(g)));
        h->grant = NULL;
        the_world.given_back[name] = sim_now();
        if (unlock(g) != DIBS_OK)
            sim_fault("all is well, but '%s' was not there to be given back", names[name]);
    }
    room_shares_at_last(m);
    room_many_at_last(m);
    room_once_at_last(m);
    room_counters_at_last(m);
}
