/* Work that is to be done once. Keys 0 to 2 refuse after a crash, the others run again. */
#define _GNU_SOURCE
#include "recipes/once.h"
#include "sim/room.h"

#include <stdio.h>
#include <string.h>

static bool refuses(int k)
{
    return k < KEYS / 2;
}

static const char *name_of(int k)
{
    static const char *const keys[KEYS] = {"k0", "k1", "k2", "k3", "k4", "k5"};

    return keys[k];
}

static void check_result(int k, const dibs_once *o)
{
    const key *what = &the_world.key[k];
    size_t size = 0;
    const void *data = dibs_once_result(o, &size);
    int result = 0;

    if (!data || size != sizeof result) {
        BROKEN("'%s': done, and its result has %zu bytes", name_of(k), size);
        return;
    }
    memcpy(&result, data, sizeof result);
    if (what->ended_well && result != what->ended_well)
        BROKEN("'%s': the result is %d, and was %d", name_of(k), result, what->ended_well);
    if (!what->ended_well && what->doubts == 0)
        BROKEN("'%s': done, and nobody has finished it", name_of(k));
}

static void note_begin(member *m, int k, dibs_once *o)
{
    key *what = &the_world.key[k];

    if (what->ended_well)
        BROKEN("'%s' runs again after it was done", name_of(k));
    if (refuses(k) && what->began > 0 && !what->may_run)
        BROKEN("'%s' runs again although its outcome is unknown", name_of(k));
    if (what->run && what->runner != m && !what->runner->process->dead &&
        dibs_once_held(what->run) && dibs_once_held(o))
        BROKEN("'%s': two run it", name_of(k));
    if (dibs_once_held(o)) {
        if (dibs_once_fence(o) <= what->fence)
            BROKEN("'%s': fence %llu after %llu", name_of(k),
                   (unsigned long long)dibs_once_fence(o), (unsigned long long)what->fence);
        what->fence = dibs_once_fence(o);
    }
    what->began++;
    what->may_run = false;
    what->run = o;
    what->runner = m;
}

static void finish(int k, dibs_once *o)
{
    key *what = &the_world.key[k];
    int result = 1 + (int)sim_draw(1000000);
    dibs_status status = DIBS_UNKNOWN;

    what->doubts++; /* while it is on its way */
    for (int i = 0; i < 5 && (status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE); i++)
        status = dibs_once_finish(o, &result, sizeof result, 0, NULL);
    if (status == DIBS_OK && what->ended_well)
        BROKEN("'%s' was finished twice", name_of(k));
    if (status == DIBS_OK)
        what->ended_well = result;
    if (status == DIBS_OK || status == DIBS_LOST)
        what->doubts--;
}

static void work(member *m, int k, dibs_once *o)
{
    key *what = &the_world.key[k];

    dibs__sleep(&m->process->env, sim_between(0, 1500) * DIBS__MS);
    if (sim_chance(200000))
        dibs_once_step(o, "half", "x", 1, NULL);
    if (what->run == o)
        what->run = NULL; /* from now on its end is on its way */
    switch (sim_draw(5)) {
    case 0:
        what->may_run = true;
        if (dibs_once_undo(o, NULL) != DIBS_OK)
            what->doubts++;
        break;
    case 1:
        dibs_once_abandon(o, NULL);
        break;
    default:
        finish(k, o);
    }
}

/* Somebody takes a dead run over, sees that it can do nothing, and gives it back: as dead as before. */
static bool comes_to_nothing(int k, dibs_once *o)
{
    dibs_status status;

    if (!refuses(k) || !dibs_once_again(o))
        return false;
    status = dibs_once_undo(o, NULL);
    sim_trace("fail %s: %s", name_of(k), dibs_status_text(status));
    if (status != DIBS_OK)
        the_world.key[k].left_open = true;
    return true;
}

static dibs_status begin(member *m, int k, bool insists, int64_t wait_ms, dibs_once **o,
                         dibs_error *err)
{
    dibs_once_options options = {
        .wait_ms = wait_ms,
        .lease_ms = 500,
        .on_crash = refuses(k) && !insists ? DIBS_CRASH_REFUSE : DIBS_CRASH_RERUN,
    };

    return dibs_once_begin(m->d, name_of(k), &options, o, err);
}

void room_once(member *m)
{
    int k = the_world.about == 2 ? 3 * (int)sim_draw(2) : (int)sim_draw(KEYS); /* few, or many */
    dibs_once *o = NULL;
    dibs_error err = {0};
    int64_t wait_ms = sim_chance(500000) ? DIBS_NO_WAIT : sim_between(1, 3000);
    bool insists = sim_chance(400000);
    dibs_status status;

    sim_trace("begin %s%s", name_of(k), insists ? ", insists" : "");
    status = begin(m, k, insists, wait_ms, &o, &err);
    sim_trace("begin %s: %s%s", name_of(k), dibs_status_text(status),
              status == DIBS_OK && dibs_once_again(o) ? " again" : "");

    if (status == DIBS_CRASHED && strcmp(o->theirs.crashed, o->mine.attempt) == 0)
        BROKEN("'%s': a begin takes itself for a run that died", name_of(k));
    if (status == DIBS_OK && comes_to_nothing(k, o)) {
        dibs_once_free(o);
        return;
    }
    if (status == DIBS_OK) {
        note_begin(m, k, o);
        work(m, k, o);
    } else if (status == DIBS_ALREADY) {
        check_result(k, o);
    } else if (status != DIBS_RUNNING && status != DIBS_CRASHED && status != DIBS_UNKNOWN &&
               status != DIBS_UNAVAILABLE) {
        sim_fault("dibs_once_begin: %s", err.message);
    }
    if (the_world.key[k].run == o)
        the_world.key[k].run = NULL;
    dibs_once_free(o);
}

static bool anybody_died(void)
{
    for (int i = 0; i < the_world.members; i++)
        if (the_world.member[i].process->dead)
            return true;
    return false;
}

/* Every key has an answer, and it is the right one. */
void room_once_at_last(member *m)
{
    for (int k = 0; k < KEYS; k++) {
        key *what = &the_world.key[k];
        dibs_once *o = NULL;
        dibs_error err = {0};
        dibs_status status = begin(m, k, false, 20000, &o, &err);
        if (status == DIBS_OK) {
            note_begin(m, k, o);
            what->run = NULL;
            finish(k, o);
            if (!what->ended_well)
                sim_fault("all is well, but '%s' cannot be finished", name_of(k));
        } else if (status == DIBS_ALREADY) {
            check_result(k, o);
        } else if (status != DIBS_CRASHED) {
            sim_fault("all is well, but '%s': %s", name_of(k), err.message);
        } else if (what->began == 0 && !what->left_open && !anybody_died()) {
            BROKEN("'%s' is said to have crashed, and nobody ever ran it", name_of(k));
        } else if (what->ended_well) {
            BROKEN("'%s' is said to have crashed, and was finished", name_of(k));
        }
        dibs_once_free(o);
    }
}
