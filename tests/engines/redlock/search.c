/* Every state that can be reached, breadth first: see model.h. States that differ in nothing that matters
 * are written down as one. */
#include "model.h"

#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#ifndef MOST
#define MOST 3000000 /* states */
#endif

/* ---- One form for states that are alike ------------------------------------------------------ */

/* Fences only matter by their order: written down by rank, states repeat. */
static void write_ranks(state *s)
{
    uint8_t *all[CLIENTS * TRIES * (2 + NODES) + NODES + 2 * CLIENTS + 1];
    bool used[256] = {false};
    uint8_t rank[256] = {0}, next = 0;
    size_t n = 0;

    for (int c = 0; c < CLIENTS; c++) {
        all[n++] = &s->seen[c];
        all[n++] = &s->clock[c];
        for (int k = 0; k < TRIES; k++) {
            all[n++] = &s->try[c][k].proposal;
            all[n++] = &s->try[c][k].fence;
            for (int i = 0; i < NODES; i++)
                all[n++] = &s->try[c][k].answer[i];
        }
    }
    for (int i = 0; i < NODES; i++)
        all[n++] = &s->node[i].last;
    all[n++] = &s->granted;
    for (size_t i = 0; i < n; i++)
        used[*all[i]] = true;
    /* A gap is kept as a gap of one: last + 1 may fall into it. */
    for (int v = 0, before = 0; v < 256; v++) {
        if (!used[v])
            continue;
        next = v == 0 ? 0 : (uint8_t)(next + (v - before > 1 ? 2 : 1));
        rank[v] = next;
        before = v;
    }
    for (size_t i = 0; i < n; i++)
        *all[i] = rank[*all[i]];
}

/* The i-th order of the nodes, which are all alike. */
static void reorder(const state *from, int i, state *to)
{
    static const uint8_t order[6][NODES] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                            {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

    *to = *from;
    for (int n = 0; n < NODES; n++) {
        int m = order[i][n];
        to->node[n] = from->node[m];
        for (int c = 0; c < CLIENTS; c++)
            for (int k = 0; k < TRIES; k++) {
                const attempt *a = &from->try[c][k];
                attempt *b = &to->try[c][k];
                b->ask[n] = a->ask[m];
                b->back[n] = a->back[m];
                b->give[n] = a->give[m];
                b->answer[n] = a->answer[m];
                b->took[n] = a->took[m];
            }
    }
}

/* One of the six that are the same but for the names of the nodes. */
static void write_order(state *s)
{
    state least = *s, other;

    for (int i = 1; i < 6; i++) {
        reorder(s, i, &other);
        if (memcmp(&other, &least, sizeof other) < 0)
            least = other;
    }
    *s = least;
}

static int count_sent(const uint8_t *what)
{
    int n = 0;

    for (int i = 0; i < NODES; i++)
        n += what[i] == SENT;
    return n;
}

/* Questions of this try and of those before it that may still reach the node. */
static int count_sent_before(const state *s, int c, int k, int n)
{
    int sent = 0;

    for (int i = 0; i <= k; i++)
        sent += s->try[c][i].ask[n] == SENT;
    return sent;
}

/* What can have no effect any more is forgotten: answers of a try that is over, releases of votes
 * that are not there and can no longer come. */
static void write_short(const world *w, state *s)
{
    /* In other variants these messages do things that a sound node does not. */
    bool named = w->variant == SOUND || w->variant == NO_GUARD;
    bool given = named || w->variant == ANY_MAJORITY;

    for (int c = 0; c < CLIENTS; c++)
        for (int k = 0; k < TRIES; k++) {
            attempt *t = &s->try[c][k];
            for (int n = 0; given && n < NODES; n++)
                if (s->node[n].vote != vote_of(c, k) && count_sent_before(s, c, k, n) == 0) {
                    if (named && t->phase == OVER && t->back[n] == SENT)
                        t->back[n] = ARRIVED;
                    t->give[n] = t->give[n] == SENT ? ARRIVED : t->give[n];
                }
            if (t->phase != OVER && t->phase != HELD)
                continue;
            memset(t->answer, 0, sizeof t->answer);
            memset(t->took, 0, sizeof t->took);
            if (count_sent(t->ask) == 0)
                t->proposal = 0;
            if (count_sent(t->back) == 0)
                t->fence = 0;
        }
}

/* ---- The search ------------------------------------------------------------------------------ */

typedef struct search {
    const world *w;
    state *states;
    uint32_t *parent;
    uint16_t *by;
    uint32_t *slot; /* open addressing: index + 1 */
    size_t count, slots;
    finding *out;
} search;

static uint64_t hash_of(const state *s)
{
    const unsigned char *p = (const unsigned char *)s;
    uint64_t h = 14695981039346656037u;

    for (size_t i = 0; i < sizeof *s; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h ^ (h >> 29);
}

static void add_state(search *f, const state *s, uint32_t parent, uint16_t by)
{
    size_t i = hash_of(s) & (f->slots - 1);

    while (f->slot[i]) {
        if (memcmp(&f->states[f->slot[i] - 1], s, sizeof *s) == 0)
            return;
        i = (i + 1) & (f->slots - 1);
    }
    if (f->count == MOST) {
        f->out->full = true;
        return;
    }
    f->states[f->count] = *s;
    f->parent[f->count] = parent;
    f->by[f->count] = by;
    f->slot[i] = (uint32_t)++f->count;
}

static void print_path(search *f, uint32_t at, int choice)
{
    uint16_t path[256];
    size_t n = 0, used = 0;

    path[n++] = (uint16_t)choice;
    for (; at != 0 && n < 256; at = f->parent[at])
        path[n++] = f->by[at];
    while (n-- > 0 && used < sizeof f->out->how - 80)
        used += (size_t)model_describe(path[n], f->out->how + used, sizeof f->out->how - used);
}

static void expand(search *f, uint32_t at)
{
    for (int choice = 0; choice < CHOICES && !f->out->wrong; choice++) {
        state s = f->states[at];
        if (!model_step(f->w, &s, choice, &f->out->wrong))
            continue;
        if (f->out->wrong) {
            print_path(f, at, choice);
            return;
        }
        write_short(f->w, &s);
        write_ranks(&s);
        write_order(&s);
        add_state(f, &s, at, (uint16_t)choice);
    }
}

static bool make_room(search *f)
{
    for (f->slots = 1; f->slots < 2 * (size_t)MOST; f->slots *= 2)
        ;
    f->states = malloc(MOST * sizeof *f->states);
    f->parent = malloc(MOST * sizeof *f->parent);
    f->by = malloc(MOST * sizeof *f->by);
    f->slot = calloc(f->slots, sizeof *f->slot);
    return f->states && f->parent && f->by && f->slot;
}

void model_explore(const world *w, finding *out)
{
    search f = {.w = w, .out = out};
    state start;

    memset(out, 0, sizeof *out);
    memset(&start, 0, sizeof start);
    memcpy(start.clock, w->clock, sizeof start.clock);
    assert_true(make_room(&f));
    write_ranks(&start);
    add_state(&f, &start, 0, 0);
    for (size_t i = 0; i < f.count && !out->wrong; i++)
        expand(&f, (uint32_t)i);
    out->states = f.count;
    free(f.states);
    free(f.parent);
    free(f.by);
    free(f.slot);
}
