/* Redlock's votes and fences, explored: three nodes, two clients, every order in which messages can
 * arrive, leases can end and nodes can restart, as far as it leads to new states.
 *
 * Time is left out and what it means is kept: a client believes that it holds until the moment
 * "its lease is over by its own clock"; only after that may a node, each by itself, let go of that
 * vote. A try whose lease is over cannot be granted any more. Every message of a try is delivered at
 * any moment, or never; a release may come long after the client has gone on. A fence is a small
 * number; clients propose max(highest seen + 1, their clock), and the clocks are worlds apart.
 *
 * Questions of one client reach a node in the order in which they were sent, or not at all: what a
 * dead connection still brings is refused. Releases come whenever they come.
 *
 * The rules: no two believe at once, and whoever is granted later has the higher fence. The same
 * search runs on variants that are known to be wrong, and must catch them: writing the fence back to
 * any majority; restarted nodes that vote at once; a release that does not name its round; questions
 * of a dead connection that still count. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef MOST
#define MOST 3000000 /* states */
#endif

enum { NODES = 3, MAJORITY = 2, CLIENTS = 2, TRIES = 2 };
enum { NO_ONE = 0 }; /* a vote is 1 + client * TRIES + try */

typedef enum variant {
    SOUND,
    ANY_MAJORITY, /* the fence is written back to nodes that did not vote, too */
    NO_GUARD,     /* a restarted node votes at once */
    NO_ROUND,     /* a late release of an old try takes the new vote away */
    NO_ORDER,     /* a late question of an old try still counts */
} variant;

typedef struct world {
    const char *label;
    variant variant;
    int restarts;   /* of nodes, in all */
    bool lose_data; /* a restart forgets */
    uint8_t clock[CLIENTS];
    uint8_t tries[CLIENTS];
} world;

/* What became of a message: not sent, on its way, arrived (its answer is kept), never. */
enum { UNSENT, SENT, ARRIVED };
/* Where a try is. */
enum { IDLE, VOTING, WRITING, HELD, OVER };

typedef struct attempt {
    uint8_t phase;
    uint8_t proposal, fence;
    uint8_t ask[NODES], back[NODES], give[NODES]; /* messages */
    uint8_t answer[NODES];                        /* the fence of the vote; 0: refused */
    uint8_t took[NODES];                          /* the node has taken the fence on */
    uint8_t expired;                              /* by the client's clock */
} attempt;

typedef struct node {
    uint8_t vote, last;
    uint8_t mute; /* restarted, and may not vote yet */
} node;

typedef struct state {
    attempt try[CLIENTS][TRIES];
    node node[NODES];
    uint8_t seen[CLIENTS];
    uint8_t clock[CLIENTS];
    uint8_t granted; /* the highest fence ever granted */
    uint8_t restarts;
} state;

/* ---- Nodes ----------------------------------------------------------------------------------- */

static uint8_t vote_of(int client, int try)
{
    return (uint8_t)(1 + client * TRIES + try);
}

static uint8_t larger(uint8_t a, uint8_t b)
{
    return a > b ? a : b;
}

/* 0: refused. A vote of the same client's older try gives way, as one owner's does. */
static uint8_t node_vote(state *s, int n, uint8_t vote, uint8_t proposal)
{
    node *at = &s->node[n];
    bool mine = at->vote && (at->vote - 1) / TRIES == (vote - 1) / TRIES;

    if (at->mute || (at->vote && !mine))
        return 0;
    at->last = larger((uint8_t)(at->last + 1), proposal);
    at->vote = vote;
    return at->last;
}

static bool node_take(const world *w, state *s, int n, uint8_t vote, uint8_t fence)
{
    node *at = &s->node[n];

    if (w->variant != ANY_MAJORITY && at->vote != vote)
        return false;
    at->last = larger(at->last, fence);
    return true;
}

/* ---- Clients --------------------------------------------------------------------------------- */

static int count(const uint8_t *what)
{
    int n = 0;

    for (int i = 0; i < NODES; i++)
        n += what[i] != 0;
    return n;
}

static void ask_all(state *s, int c, attempt *t)
{
    t->phase = VOTING;
    t->proposal = larger((uint8_t)(s->seen[c] + 1), s->clock[c]);
    for (int n = 0; n < NODES; n++)
        t->ask[n] = SENT;
}

static void give_all(attempt *t)
{
    t->phase = OVER;
    for (int n = 0; n < NODES; n++)
        t->give[n] = SENT;
}

/* The text of the rule that this grant breaks, or NULL. */
static const char *grant(state *s, int c, attempt *t, uint8_t fence)
{
    for (int o = 0; o < CLIENTS; o++)
        for (int k = 0; k < TRIES; k++)
            if (o != c && s->try[o][k].phase == HELD)
                return "two believe that they hold it";
    if (fence <= s->granted)
        return "a later grant has no higher fence";
    t->phase = HELD;
    t->fence = fence;
    s->granted = fence;
    s->seen[c] = larger(s->seen[c], fence);
    return NULL;
}

static uint8_t common_fence(const attempt *t)
{
    for (int i = 0; i < NODES; i++) {
        int same = 0;
        for (int k = 0; k < NODES; k++)
            same += t->answer[i] && t->answer[k] == t->answer[i];
        if (same >= MAJORITY)
            return t->answer[i];
    }
    return 0;
}

/* A majority has voted: granted, or the highest is written back. */
static const char *conclude(const world *w, state *s, int c, attempt *t)
{
    uint8_t same = common_fence(t);

    if (same)
        return grant(s, c, t, same);
    t->phase = WRITING;
    for (int n = 0; n < NODES; n++) {
        t->fence = larger(t->fence, t->answer[n]);
        s->seen[c] = larger(s->seen[c], t->answer[n]);
    }
    for (int n = 0; n < NODES; n++)
        t->back[n] = t->answer[n] || w->variant == ANY_MAJORITY ? SENT : UNSENT;
    return NULL;
}

/* ---- Steps: each changes a copy, and says whether it could ----------------------------------- */

typedef bool (*step_fn)(const world *w, state *s, int a, int b, int n, const char **wrong);

static bool begin(const world *w, state *s, int c, int k, int n, const char **wrong)
{
    attempt *t = &s->try[c][k];

    (void)wrong;
    if (n > 0 || k >= w->tries[c] || t->phase != IDLE || (k > 0 && s->try[c][k - 1].phase != OVER))
        return false;
    ask_all(s, c, t);
    return true;
}

/* What was sent before and has not come yet comes no more. */
static void forget_older(const world *w, state *s, int c, int k, int n)
{
    for (int i = 0; i < k && w->variant != NO_ORDER; i++)
        if (s->try[c][i].ask[n] == SENT)
            s->try[c][i].ask[n] = ARRIVED;
}

static bool deliver_ask(const world *w, state *s, int c, int k, int n, const char **wrong)
{
    attempt *t = &s->try[c][k];

    if (t->ask[n] != SENT)
        return false;
    t->ask[n] = ARRIVED;
    forget_older(w, s, c, k, n);
    t->answer[n] = node_vote(s, n, vote_of(c, k), t->proposal);
    if (t->phase != VOTING) {
        t->answer[n] = 0; /* too late to count; a release is on its way */
        return true;
    }
    if (count(t->answer) >= MAJORITY && !t->expired)
        *wrong = conclude(w, s, c, t);
    return true;
}

static bool deliver_back(const world *w, state *s, int c, int k, int n, const char **wrong)
{
    attempt *t = &s->try[c][k];
    bool took;

    if (t->back[n] != SENT)
        return false;
    t->back[n] = ARRIVED;
    took = node_take(w, s, n, vote_of(c, k), t->fence);
    if (t->phase != WRITING)
        return true;
    t->took[n] = took;
    if (count(t->took) >= MAJORITY && !t->expired)
        *wrong = grant(s, c, t, t->fence);
    return true;
}

/* Without rounds a release names only the client: what it finds there goes. */
static bool deliver_give(const world *w, state *s, int c, int k, int n, const char **wrong)
{
    attempt *t = &s->try[c][k];
    node *at = &s->node[n];
    bool same = at->vote == vote_of(c, k);

    (void)wrong;
    if (t->give[n] != SENT)
        return false;
    if (t->ask[n] == SENT && w->variant != NO_ORDER)
        t->ask[n] = ARRIVED;
    forget_older(w, s, c, k, n);
    t->give[n] = ARRIVED;
    if (w->variant == NO_ROUND)
        same = at->vote && (at->vote - 1) / TRIES == c;
    if (same)
        at->vote = NO_ONE;
    return true;
}

/* It has had enough of waiting, or gives back what it holds. */
static bool let_go(const world *w, state *s, int c, int k, int n, const char **wrong)
{
    attempt *t = &s->try[c][k];

    (void)w;
    (void)wrong;
    if (n > 0 || t->phase == IDLE || t->phase == OVER)
        return false;
    give_all(t);
    return true;
}

/* By the client's own clock its lease is over: what it holds it holds no longer. */
static bool expire(const world *w, state *s, int c, int k, int n, const char **wrong)
{
    attempt *t = &s->try[c][k];

    (void)w;
    (void)wrong;
    if (n > 0 || t->phase == IDLE || t->expired)
        return false;
    t->expired = 1;
    if (t->phase != OVER)
        give_all(t);
    return true;
}

/* ... and only then by a node's. */
static bool node_expires(const world *w, state *s, int c, int k, int n, const char **wrong)
{
    (void)w;
    (void)wrong;
    if (s->node[n].vote != vote_of(c, k) || !s->try[c][k].expired)
        return false;
    s->node[n].vote = NO_ONE;
    return true;
}

static bool restart(const world *w, state *s, int c, int k, int n, const char **wrong)
{
    (void)wrong;
    if (c > 0 || k > 0 || s->restarts == w->restarts)
        return false;
    s->restarts++;
    if (!w->lose_data)
        return true;
    s->node[n] = (node){.mute = w->variant != NO_GUARD};
    return true;
}

/* The longest lease has passed since the restart: all tries that were under way are over, and every
 * clock has gone past the fences of that time. */
static bool guard_ends(const world *w, state *s, int c, int k, int n, const char **wrong)
{
    (void)w;
    (void)wrong;
    if (c > 0 || k > 0 || !s->node[n].mute)
        return false;
    for (int i = 0; i < CLIENTS; i++)
        for (int j = 0; j < TRIES; j++) {
            attempt *t = &s->try[i][j];
            if (t->phase != IDLE && !t->expired)
                return false;
        }
    s->node[n].mute = 0;
    for (int i = 0; i < CLIENTS; i++)
        s->clock[i] = larger(s->clock[i], (uint8_t)(s->granted + 1));
    return true;
}

static const struct {
    const char *name;
    step_fn run;
} steps[] = {{"begins", begin},
             {"is asked", deliver_ask},
             {"gets the fence", deliver_back},
             {"gets the release", deliver_give},
             {"lets go", let_go},
             {"is over by its clock", expire},
             {"lets it expire", node_expires},
             {"restarts", restart},
             {"may vote again", guard_ends}};

enum { KINDS = sizeof steps / sizeof steps[0], CHOICES = KINDS * CLIENTS * TRIES * NODES };

static bool take_step(const world *w, state *s, int choice, const char **wrong)
{
    int n = choice % NODES, k = choice / NODES % TRIES, c = choice / NODES / TRIES % CLIENTS;

    return steps[choice / NODES / TRIES / CLIENTS].run(w, s, c, k, n, wrong);
}

/* ---- The search ------------------------------------------------------------------------------ */

typedef struct search {
    const world *w;
    state *states;
    uint32_t *parent;
    uint16_t *by;
    uint32_t *slot; /* open addressing: index + 1 */
    size_t count, slots;
    bool full;
    const char *wrong;
    char how[4096];
} search;

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
        f->full = true;
        return;
    }
    f->states[f->count] = *s;
    f->parent[f->count] = parent;
    f->by[f->count] = by;
    f->slot[i] = (uint32_t)++f->count;
}

static void tell(search *f, uint32_t at, int choice)
{
    uint16_t path[256];
    size_t n = 0, used = 0;

    path[n++] = (uint16_t)choice;
    for (; at != 0 && n < 256; at = f->parent[at])
        path[n++] = f->by[at];
    while (n-- > 0 && used < sizeof f->how - 80) {
        int p = path[n], at_node = p % NODES, k = p / NODES % TRIES,
            c = p / NODES / TRIES % CLIENTS;
        used += (size_t)snprintf(f->how + used, sizeof f->how - used, " %c%d@%d %s;", 'A' + c,
                                 k + 1, at_node + 1, steps[p / NODES / TRIES / CLIENTS].name);
    }
}

static void expand(search *f, uint32_t at)
{
    for (int choice = 0; choice < CHOICES && !f->wrong; choice++) {
        state s = f->states[at];
        if (!take_step(f->w, &s, choice, &f->wrong))
            continue;
        if (f->wrong) {
            tell(f, at, choice);
            return;
        }
        write_short(f->w, &s);
        write_ranks(&s);
        write_order(&s);
        add_state(f, &s, at, (uint16_t)choice);
    }
}

static const char *explore(const world *w, search *f)
{
    state start;

    memset(f, 0, sizeof *f);
    memset(&start, 0, sizeof start);
    memcpy(start.clock, w->clock, sizeof start.clock);
    f->w = w;
    for (f->slots = 1; f->slots < 2 * (size_t)MOST; f->slots *= 2)
        ;
    f->states = malloc(MOST * sizeof *f->states);
    f->parent = malloc(MOST * sizeof *f->parent);
    f->by = malloc(MOST * sizeof *f->by);
    f->slot = calloc(f->slots, sizeof *f->slot);
    assert_true(f->states && f->parent && f->by && f->slot);
    write_ranks(&start);
    add_state(f, &start, 0, 0);
    for (size_t i = 0; i < f->count && !f->wrong; i++)
        expand(f, (uint32_t)i);
    free(f->states);
    free(f->parent);
    free(f->by);
    free(f->slot);
    return f->wrong;
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static search found;

static void keeps_the_rules(const world *w)
{
    const char *wrong = explore(w, &found);

    print_message("# %s: %zu states%s\n", w->label, found.count,
                  found.full ? ", all that there is room for" : ", all that there are");
    if (wrong)
        fail_msg("%s after%s", wrong, found.how);
}

static void is_caught(const world *w)
{
    const char *wrong = explore(w, &found);

    print_message("# %s: %s after%s\n", w->label, wrong ? wrong : "NOTHING NOTICED", found.how);
    assert_non_null(wrong);
}

/* A restart may happen or not: this includes all that can happen without. One that keeps its data
 * only cuts connections, and every message may be lost here anyway. */
static void sound_with_retries_delays_expiry_and_restarts(void **unused)
{
    (void)unused;
    keeps_the_rules(&(world){"two tries and one, a restart", SOUND, 1, true, {1, 4}, {2, 1}});
}

static void sound_with_more_restarts(void **unused)
{
    (void)unused;
    keeps_the_rules(&(world){"one try each, clocks equal", SOUND, 3, true, {2, 2}, {1, 1}});
    keeps_the_rules(&(world){"one try each, restarts with data", SOUND, 3, false, {4, 1}, {1, 1}});
}

static void write_back_to_any_majority_is_caught(void **unused)
{
    (void)unused;
    is_caught(&(world){"any majority", ANY_MAJORITY, 0, false, {1, 1}, {2, 1}});
}

static void restarts_without_guard_are_caught(void **unused)
{
    (void)unused;
    is_caught(&(world){"no guard", NO_GUARD, 1, true, {1, 4}, {1, 1}});
}

static void releases_without_round_are_caught(void **unused)
{
    (void)unused;
    is_caught(&(world){"no round", NO_ROUND, 0, false, {1, 4}, {2, 1}});
}

static void questions_out_of_order_are_caught(void **unused)
{
    (void)unused;
    is_caught(&(world){"no order", NO_ORDER, 0, false, {1, 4}, {2, 1}});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_with_retries_delays_expiry_and_restarts),
        cmocka_unit_test(sound_with_more_restarts),
        cmocka_unit_test(write_back_to_any_majority_is_caught),
        cmocka_unit_test(restarts_without_guard_are_caught),
        cmocka_unit_test(releases_without_round_are_caught),
        cmocka_unit_test(questions_out_of_order_are_caught),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
