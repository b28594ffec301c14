#define _GNU_SOURCE
#include "sim/world.h"

#include "core/handle.h"
#include "sim/room.h"
#include "sim/server.h"

#include <stdio.h>
#include <string.h>

world the_world;

/* ---- What goes wrong ------------------------------------------------------------------------- */

static sim_process *any_process(void)
{
    return the_world.member[sim_draw((uint64_t)the_world.members)].process;
}

static int living(void)
{
    int n = 0;

    for (int i = 0; i < the_world.members; i++)
        n += !the_world.member[i].process->dead;
    return n;
}

static void misfortune(void *arg)
{
    world *w = &the_world;

    (void)arg;
    if (sim_now() >= w->calm_at)
        return;
    switch (sim_draw(8)) {
    case 0:
        if (w->kills && living() > 1)
            sim_kill(any_process());
        break;
    case 1:
        if (w->restarts)
            sim_server_restart(sim_between(0, 3 * DIBS__SECOND), !w->forgets);
        break;
    case 2:
    case 3:
    case 4:
        if (w->stops)
            sim_stop(any_process(), sim_between(10 * DIBS__MS, 12 * DIBS__SECOND));
        break;
    case 5:
    case 6:
        if (w->cuts)
            sim_server_cut_off(any_process(), sim_between(100 * DIBS__MS, 10 * DIBS__SECOND));
        break;
    default:
        break;
    }
    sim_at(sim_now() + sim_between(10 * DIBS__MS, 4 * DIBS__SECOND), misfortune, NULL);
}

static void calm(void *arg)
{
    (void)arg;
    sim_server_calm();
    for (int i = 0; i < the_world.members; i++)
        the_world.member[i].process->stopped_until = 0;
}

/* ---- The processes --------------------------------------------------------------------------- */

static void sleep_ms(member *m, int64_t ms)
{
    dibs__sleep(&m->process->env, ms * DIBS__MS);
}

static void open_handle(member *m)
{
    static const int64_t requests[] = {300, 1000, 5000};
    dibs_options o = {.request_ms = requests[sim_draw(3)]};
    dibs_error err = {0};

    if (dibs__open_in(&m->process->env, "sim:", &o, &m->d, &err) != DIBS_OK)
        sim_fault("dibs_open: %s", err.message);
}

static void close_handle(member *m)
{
    int64_t began = sim_clock(m->process);

    dibs_close(m->d);
    if (sim_clock(m->process) - began > 12 * DIBS__SECOND)
        sim_fault("dibs_close took %.1f s", (double)(sim_clock(m->process) - began) / 1e6);
}

/* Everybody's last word: what was left behind by the dead is over by now, and nobody is shut out. */
static void *member_thread(void *arg)
{
    member *m = arg;
    int rounds = (int)sim_between(3, 14);

    if (m->entered++ == 0) {
        open_handle(m);
        m->open = true;
    }
    while (!m->open)
        sleep_ms(m, 1);
    for (int i = 0; i < rounds && sim_now() < the_world.calm_at; i++) {
        room_something(m);
        sleep_ms(m, sim_between(0, 300));
    }
    while (sim_now() < the_world.calm_at + AFTERMATH)
        sleep_ms(m, 500);
    room_at_last(m);
    if (--m->inside == 0)
        close_handle(m);
    return NULL;
}

static void add_member(int64_t rate)
{
    member *m = &the_world.member[the_world.members++];

    m->process = sim_process_new(rate);
    m->inside = (int)sim_between(1, 3);
    for (int i = 0; i < m->inside; i++)
        sim_thread_new(m->process, member_thread, m);
}

/* ---- The run --------------------------------------------------------------------------------- */

/* A third of all runs has weather of its own kind, so that rare things meet. */
static sim_weather any_weather(void)
{
    static const uint64_t chances[] = {0, 0, 5000, 30000, 150000, 300000};
    sim_weather w = {.lost = chances[sim_draw(6)],
                     .doubled = chances[sim_draw(6)],
                     .late = chances[sim_draw(6)],
                     .latest = sim_between(1, sim_chance(500000) ? 3 : 30) * DIBS__SECOND,
                     .usual = sim_between(200, 20 * DIBS__MS),
                     .wake_lost = chances[sim_draw(6)],
                     .ends_abandoned = sim_chance(500000)};

    return w;
}

/* The margin is a hundredth of the lease: both ends together must not use it up. */
static int64_t any_rate(void)
{
    return the_world.forgets ? sim_between(-200000, 200000) : sim_between(-4000, 4000);
}

const char *world_run(uint64_t seed)
{
    world *w = &the_world;
    sim_weather weather;
    int members;

    memset(w, 0, sizeof *w);
    sim_begin(seed);
    weather = any_weather();
    sim_server_begin(&weather);
    w->more = seed % 3 == 0;
    w->kills = sim_chance(500000);
    w->stops = sim_chance(700000);
    w->restarts = sim_chance(400000);
    w->cuts = sim_chance(600000);
    w->forgets = sim_chance(60000);
    w->about = (int)sim_draw(3);
    w->names = w->about == 1 ? 1 : (int)sim_between(1, NAMES - 1);
    w->calm_at = sim_now() + sim_between(5, 40) * DIBS__SECOND;
    members = (int)sim_between(2, MEMBERS);
    for (int i = 0; i < members; i++)
        add_member(sim_chance(500000) ? 0 : any_rate());
    sim_at(sim_now() + DIBS__SECOND, misfortune, NULL);
    sim_at(w->calm_at, calm, NULL);
    return sim_run();
}
