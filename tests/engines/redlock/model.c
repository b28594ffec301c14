/* The steps that nodes and clients can take: see model.h. */
#include "model.h"

#include <stdio.h>

/* ---- Nodes ----------------------------------------------------------------------------------- */

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

/* The node has no vote out, and keeps the next one for somebody: for whom, it says to nobody. Where being told is taken for
 * a vote, it is for this client. */
static bool keep_for_another(const world *w, state *s, int c, int k, int n, const char **wrong)
{
    attempt *t = &s->try[c][k];

    if (t->ask[n] != SENT || s->node[n].vote || s->node[n].mute)
        return false;
    t->ask[n] = ARRIVED;
    forget_older(w, s, c, k, n);
    if (w->variant == NOTICE_IS_HELD && t->phase == VOTING) {
        t->answer[n] = larger((uint8_t)(s->node[n].last + 1), t->proposal);
        if (count(t->answer) >= MAJORITY && !t->expired)
            *wrong = conclude(w, s, c, t);
    }
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
             {"keeps its vote", keep_for_another},
             {"gets the fence", deliver_back},
             {"gets the release", deliver_give},
             {"lets go", let_go},
             {"is over by its clock", expire},
             {"lets it expire", node_expires},
             {"restarts", restart},
             {"may vote again", guard_ends}};

_Static_assert(sizeof steps / sizeof steps[0] == STEP_KINDS, "the header says how many there are");

static const int per_kind = CLIENTS * TRIES * NODES;

bool model_step(const world *w, state *s, int choice, const char **wrong)
{
    int n = choice % NODES, k = choice / NODES % TRIES, c = choice / NODES / TRIES % CLIENTS;

    return steps[choice / per_kind].run(w, s, c, k, n, wrong);
}

int model_describe(int choice, char *out, size_t size)
{
    int n = choice % NODES, k = choice / NODES % TRIES, c = choice / NODES / TRIES % CLIENTS;

    return snprintf(out, size, " %c%d@%d %s;", 'A' + c, k + 1, n + 1,
                    steps[choice / per_kind].name);
}
