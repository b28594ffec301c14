/* The steps that time, servers and clients can take: see model.h. */
#include "model.h"

#include <stdio.h>
#include <string.h>

static uint8_t larger(uint8_t a, uint8_t b)
{
    return a > b ? a : b;
}

static uint8_t clock_of(const world *w, const state *s, int n)
{
    return (uint8_t)(w->clock[n] + s->now);
}

static bool is_master(const state *s, int n)
{
    return s->node[n].follows == n;
}

/* One of two replicas is enough. */
static bool enough(uint8_t had)
{
    return had != 0;
}

void model_begin(const world *w, state *s)
{
    memset(s, 0, sizeof *s);
    s->ids = 1;
    s->now = NOW;
    s->node[0].id = 1;
    for (int n = 0; n < SERVERS; n++)
        s->node[n].d =
            (data){.id = 1, .ceiling = w->fences ? (uint8_t)(w->clock[0] + NOW + RESERVE) : 0};
}

/* ---- Time ------------------------------------------------------------------------------------ */

/* guard.lua: reserved long before it is reached. */
static void reserve(const world *w, const state *s, int n)
{
    data *d = (data *)&s->node[n].d;
    uint8_t top = larger(d->last, larger(clock_of(w, s, n), d->base));

    if (w->fences && top + RESERVE / 2 > d->ceiling)
        d->ceiling = (uint8_t)(top + RESERVE);
}

/* Somebody uses some lock all the time. */
static bool tick(const world *w, state *s, int n, int c, const char **wrong)
{
    (void)wrong;
    if (n > 0 || c > 0 || (w->fences && s->now == NOW + w->ticks))
        return false;
    s->now++;
    for (int i = 0; i < SERVERS; i++)
        if (is_master(s, i) && s->node[i].d.id == s->node[i].id)
            reserve(w, s, i);
    return true;
}

/* ---- Servers --------------------------------------------------------------------------------- */

/* A replica catches up. What it has had, its master is told. */
static bool sync(const world *w, state *s, int n, int c, const char **wrong)
{
    node *at = &s->node[n], *from = &s->node[at->follows];

    (void)w;
    (void)wrong;
    if (c > 0 || is_master(s, n) || !is_master(s, at->follows))
        return false;
    at->d = from->d;
    at->synced = s->now;
    if (from->d.id == from->id)
        from->seen |= (uint8_t)(1 << n);
    for (int i = 0; i < CLIENTS; i++)
        if (s->client[i].at == at->follows + 1)
            s->client[i].had |= (uint8_t)(1 << n);
    return true;
}

static bool promote(const world *w, state *s, int n, int c, const char **wrong)
{
    node *at = &s->node[n];

    (void)wrong;
    if (c > 0 || is_master(s, n) || s->failovers == w->failovers ||
        (w->fences && s->now - at->synced > LAG))
        return false;
    s->failovers++;
    at->follows = (uint8_t)n;
    at->id = ++s->ids;
    at->promoted = 1;
    at->seen = 0;
    s->newest = (uint8_t)n;
    return true;
}

/* The sentinels tell it, sooner or later. */
static bool follow(const world *w, state *s, int n, int c, const char **wrong)
{
    (void)w;
    (void)wrong;
    if (c > 0 || s->node[n].follows == s->newest)
        return false;
    s->node[n].follows = s->newest;
    s->node[n].synced = 0;
    return true;
}

/* The process ends and begins again, with nothing. */
static bool restart(const world *w, state *s, int n, int c, const char **wrong)
{
    node *at = &s->node[n];

    (void)wrong;
    if (c > 0 || !is_master(s, n) || s->restarts == w->restarts)
        return false;
    s->restarts++;
    memset(&at->d, 0, sizeof at->d);
    at->id = ++s->ids;
    at->promoted = at->seen = 0;
    at->synced = s->now; /* since when it runs */
    for (int i = 0; i < CLIENTS; i++)
        if (s->client[i].server == n)
            s->client[i].id = 0;
    return true;
}

/* mark.lua, when the replicas have had the marker. */
static bool confirm(const world *w, state *s, int n, int c, const char **wrong)
{
    node *at = &s->node[n];

    (void)wrong;
    if (c > 0 || !is_master(s, n) || at->d.id != at->id || at->d.opens != NEVER ||
        !enough(at->seen))
        return false;
    at->d.opens = (uint8_t)(clock_of(w, s, n) + QUIET);
    return true;
}

/* ---- Clients --------------------------------------------------------------------------------- */

/* mark.lua: another server is in the marker. */
static void take_over(const world *w, const state *s, int n, node *at)
{
    uint8_t now = clock_of(w, s, n);

    at->d.id = at->id;
    at->seen = 0;
    at->d.opens = NEVER;
    if (w->variant == EARLY_QUIET || w->variant == NO_WAIT)
        at->d.opens = (uint8_t)(now + QUIET);
    else if (w->variant == EARLY_RESTART && !at->promoted)
        at->d.opens = (uint8_t)(w->clock[n] + at->synced + QUIET);
    if (!w->fences || w->variant == NO_CEILING)
        return;
    at->d.base = larger(at->d.base, (uint8_t)(at->d.ceiling + 1));
    at->d.ceiling = (uint8_t)(larger(now, at->d.base) + RESERVE);
}

/* Any server that says that it is a master: a sentinel may be cut off as well. What was under way is given up. */
static bool connect_to(const world *w, state *s, int n, int c, const char **wrong)
{
    client *who = &s->client[c];
    node *at = &s->node[n];

    (void)wrong;
    if (!is_master(s, n) || (who->id == at->id && who->server == n))
        return false;
    who->server = (uint8_t)n;
    who->id = at->id;
    who->asks = who->at = who->had = who->sent = who->got = 0;
    if (w->variant != NO_GUARD && at->d.id != at->id)
        take_over(w, s, n, at);
    return true;
}

static bool ask(const world *w, state *s, int n, int c, const char **wrong)
{
    client *who = &s->client[c];
    bool holds = who->deadline > s->now;

    (void)wrong;
    if (n > 0 || who->asks || !who->id || (w->fences && who->fence))
        return false;
    who->asks = holds ? RENEW : ENTER;
    who->sent = s->now;
    who->at = who->had = who->got = 0;
    return true;
}

static bool may_grant(const world *w, const state *s, int n)
{
    const data *d = &s->node[n].d;

    return (w->variant == NO_GUARD || (d->id == s->node[n].id && d->opens <= clock_of(w, s, n))) &&
           (!d->holder || d->ends <= clock_of(w, s, n));
}

static void grant(const world *w, state *s, int n, client *who)
{
    data *d = &s->node[n].d;

    d->holder = (uint8_t)(who - s->client + 1);
    d->ends = (uint8_t)(clock_of(w, s, n) + LEASE);
    if (w->fences) {
        reserve(w, s, n);
        d->last = larger((uint8_t)(d->last + 1), larger(clock_of(w, s, n), d->base));
        who->got = d->last;
    }
}

/* The server does it. A refusal is not told apart from a lost message. */
static bool deliver(const world *w, state *s, int n, int c, const char **wrong)
{
    client *who = &s->client[c];
    node *at = &s->node[n];

    (void)wrong;
    if (!who->asks || who->at || who->server != n || !is_master(s, n) || who->id != at->id)
        return false;
    if (who->asks == ENTER && may_grant(w, s, n)) {
        grant(w, s, n, who);
    } else if (who->asks == RENEW && at->d.holder == c + 1 && at->d.ends > clock_of(w, s, n)) {
        at->d.ends = (uint8_t)(clock_of(w, s, n) + LEASE);
    } else {
        who->asks = 0;
        return true;
    }
    who->at = (uint8_t)(n + 1);
    return true;
}

static const char *check(const world *w, state *s, const client *who)
{
    for (int i = 0; i < CLIENTS; i++)
        if (&s->client[i] != who && s->client[i].deadline > s->now)
            return "two hold";
    if (w->fences && who->fence <= s->granted)
        return "the fence went back";
    s->granted = larger(s->granted, who->fence);
    return NULL;
}

/* The client learns of it: it counts from when it sent it. */
static bool learn(const world *w, state *s, int n, int c, const char **wrong)
{
    client *who = &s->client[c];
    bool renewal = who->asks == RENEW, held = who->deadline > s->now;
    bool counts =
        enough(who->had) || w->variant == NO_WAIT || (renewal && w->variant == NO_WAIT_RENEW);

    if (n > 0 || !who->at || !counts)
        return false;
    if (renewal ? held : who->sent + LEASE > s->now) {
        who->deadline = (uint8_t)(who->sent + LEASE);
        if (!renewal) {
            who->fence = who->got;
            *wrong = check(w, s, who);
        }
    }
    who->asks = who->at = who->had = who->sent = who->got = 0;
    return true;
}

/* It lets go, and tells the server that it is connected to. */
static bool release(const world *w, state *s, int n, int c, const char **wrong)
{
    client *who = &s->client[c];
    node *at = &s->node[who->server];

    (void)wrong;
    if (n > 0 || who->deadline <= s->now || who->asks || w->fences)
        return false;
    who->deadline = 0;
    if (who->id == at->id && is_master(s, who->server) && at->d.holder == c + 1)
        at->d.holder = at->d.ends = 0;
    return true;
}

/* No answer comes. */
static bool give_up(const world *w, state *s, int n, int c, const char **wrong)
{
    client *who = &s->client[c];

    (void)wrong;
    if (n > 0 || !who->asks || w->fences)
        return false;
    who->asks = who->at = who->had = who->sent = who->got = 0;
    return true;
}

/* ---- One form for states that are alike ------------------------------------------------------- */

static void shift(uint8_t *time, uint8_t by)
{
    if (*time && *time != NEVER)
        *time = (uint8_t)(*time - by);
}

static void forget_node(state *s, node *at)
{
    at->seen = at->seen != 0;
    if (at->d.ends <= s->now)
        at->d.holder = at->d.ends = 0;
    if (at->d.opens <= s->now)
        at->d.opens = 0;
    if (at->promoted || at->synced + QUIET <= s->now)
        at->synced = 0;
}

static void forget_client(state *s, client *who)
{
    who->had = who->had != 0;
    if (who->deadline <= s->now)
        who->deadline = 0;
    if (who->asks && who->sent + LEASE < s->now)
        who->sent = (uint8_t)(s->now - LEASE);
}

/* Which of the two clients is which. */
static void swap_clients(state *s)
{
    client first = s->client[0];

    s->client[0] = s->client[1];
    s->client[1] = first;
    for (int n = 0; n < SERVERS; n++)
        if (s->node[n].d.holder)
            s->node[n].d.holder = (uint8_t)(3 - s->node[n].d.holder);
}

static bool is_alive(const state *s, uint8_t id)
{
    for (int n = 0; n < SERVERS; n++)
        if (s->node[n].id == id)
            return true;
    return false;
}

void model_forget(const world *w, state *s)
{
    uint8_t by = (uint8_t)(s->now - NOW);
    state other;

    for (int n = 0; n < SERVERS; n++)
        if (w->fences)
            s->node[n].seen = s->node[n].seen != 0;
        else
            forget_node(s, &s->node[n]);
    for (int c = 0; c < CLIENTS; c++)
        forget_client(s, &s->client[c]);
    for (int c = 0; c < CLIENTS; c++)
        if (!is_alive(s, s->client[c].id)) { /* the process that it was connected to is no more */
            uint8_t deadline = s->client[c].deadline, fence = s->client[c].fence;
            memset(&s->client[c], 0, sizeof s->client[c]);
            s->client[c].deadline = deadline;
            s->client[c].fence = fence;
        }
    if (w->fences)
        return;
    for (int n = 0; n < SERVERS; n++) {
        shift(&s->node[n].d.ends, by);
        shift(&s->node[n].d.opens, by);
        shift(&s->node[n].synced, by);
    }
    for (int c = 0; c < CLIENTS; c++) {
        shift(&s->client[c].sent, by);
        shift(&s->client[c].deadline, by);
    }
    s->now = NOW;
    other = *s;
    swap_clients(&other);
    if (memcmp(&other, s, sizeof other) < 0)
        *s = other;
}

/* ---- All of them ----------------------------------------------------------------------------- */

typedef bool (*step_fn)(const world *w, state *s, int n, int c, const char **wrong);

static const struct {
    const char *name;
    step_fn run;
} steps[] = {{"time passes", tick},
             {"catches up", sync},
             {"is promoted", promote},
             {"follows the new master", follow},
             {"restarts empty", restart},
             {"begins its quiet period", confirm},
             {"is connected to", connect_to},
             {"is asked", ask},
             {"does it", deliver},
             {"is heard", learn},
             {"is given it back", release},
             {"is not heard", give_up}};

_Static_assert(sizeof steps / sizeof steps[0] == STEP_KINDS, "the header says how many there are");

bool model_step(const world *w, state *s, int choice, const char **wrong)
{
    return steps[choice / (SERVERS * CLIENTS)].run(w, s, choice % SERVERS,
                                                   choice / SERVERS % CLIENTS, wrong);
}

int model_describe(int choice, char *out, size_t size)
{
    return snprintf(out, size, " %c%d %s;", 'A' + choice / SERVERS % CLIENTS, choice % SERVERS + 1,
                    steps[choice / (SERVERS * CLIENTS)].name);
}
