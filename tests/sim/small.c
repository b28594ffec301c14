/* Counters, tokens, and cells that are written under fences. */
#define _GNU_SOURCE
#include "sim/room.h"

#include <stdio.h>
#include <string.h>

static const char *const counters[COUNTERS] = {"n", "m"};

/* With a name for the request it can be asked for again: it counts once. */
void room_counter(member *m)
{
    int which = (int)sim_draw(COUNTERS);
    counter *c = &the_world.counter[which];
    char request[32];
    dibs_counter_options o = {.request = sim_chance(700000) ? request : NULL};
    dibs_status status = DIBS_UNKNOWN;
    int reported = 0;

    if (the_world.more && sim_chance(100000) &&
        dibs_counter_add(m->d, counters[which], INT64_MIN, NULL, NULL, NULL) == DIBS_OK)
        BROKEN("'%s' was taken below zero", counters[which]);
    snprintf(request, sizeof request, "r%llu", (unsigned long long)the_world.requests++);
    c->maybe++;
    for (int i = 0; i < (o.request ? 4 : 1) && status != DIBS_OK && status != DIBS_ALREADY; i++)
        status = dibs_counter_add(m->d, counters[which], 1, &o, NULL, NULL);
    reported += status == DIBS_OK;
    if (status == DIBS_OK || status == DIBS_ALREADY) {
        c->maybe--;
        c->sure++;
    }
    if (o.request && sim_chance(200000))
        reported += dibs_counter_add(m->d, counters[which], 1, &o, NULL, NULL) == DIBS_OK;
    if (reported > 1)
        BROKEN("'%s': two were told that they had counted '%s'", counters[which], request);
}

void room_counters_at_last(member *m)
{
    for (int i = 0; i < COUNTERS; i++) {
        const counter *c = &the_world.counter[i];
        int64_t value = 0, sure = c->sure;
        dibs_status status = dibs_counter_get(m->d, counters[i], &value, NULL);
        if (status != DIBS_OK && status != DIBS_NOT_FOUND)
            sim_fault("all is well, but '%s' cannot be read", counters[i]);
        else if (value < sure || value > c->sure + c->maybe)
            BROKEN("'%s' is %lld; %lld were counted, and perhaps %lld more", counters[i],
                   (long long)value, (long long)c->sure, (long long)c->maybe);
    }
}

void room_token(member *m)
{
    world *w = &the_world;
    token *t;

    if (w->tokens < TOKENS && sim_chance(500000)) {
        token fresh = {0};
        if (dibs_token_issue(m->d, NULL, fresh.text, NULL) == DIBS_OK && w->tokens < TOKENS)
            w->token[w->tokens++] = fresh;
    }
    if (w->tokens == 0)
        return;
    t = &w->token[sim_draw((uint64_t)w->tokens)];
    if (dibs_token_redeem(m->d, t->text, NULL, NULL) == DIBS_OK && t->redeemed++)
        BROKEN("a token was redeemed twice");
}

/* Somebody writes under a fence of its own, or under an old one, as a holder does that slept. */
void room_fenced(member *m)
{
    static const char *const cells[FENCED] = {"f", "g"};
    int which = (int)sim_draw(FENCED);
    fenced *f = &the_world.fenced[which];
    uint64_t before = f->sure;
    uint64_t fence = sim_chance(500000) || the_world.fences == 0 ? ++the_world.fences
                                                                 : 1 + sim_draw(the_world.fences);
    dibs_cell_options o = {.fence = fence};
    dibs_status status =
        dibs_cell_swap(m->d, cells[which], DIBS_ANY_VERSION, "x", 1, &o, NULL, NULL);

    if (status == DIBS_NOT_FOUND)
        status = dibs_cell_swap(m->d, cells[which], 0, "x", 1, &o, NULL, NULL);
    if (status == DIBS_OK && fence < before)
        BROKEN("'%s': fence %llu has written after %llu", cells[which], (unsigned long long)fence,
               (unsigned long long)before);
    if (status == DIBS_OK && fence > f->sure)
        f->sure = fence;
}
