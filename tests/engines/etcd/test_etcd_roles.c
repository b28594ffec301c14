/* Who sends, who is woken, who cuts: the protocol of an etcd handle's connection, searched exhaustively.
 *
 * The model follows client.c (callers write their requests, or leave them in the queue), io.c (one thread
 * reads, reports, drops the connection and makes the next) and guard.c (what got no answer is made harmless
 * before anything newer goes out). A step is what happens under the mutex at once. Connections break at any
 * moment; requests that were on them arrive at the server never, at once or at any later time. Time does not
 * pass: nobody is saved by a timer, but for the one by which a silent connection is noticed.
 *
 *   wedge   from every state that can be reached, all calls can still come to their end
 *   late    a request whose caller was told "unknown" takes no effect after a newer one was sent
 *   once    no request takes effect twice, and none whose caller is told that it was done has had none
 *
 * Each mutation takes one line of the protocol out and must be found. */
#define _GNU_SOURCE
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 3, PUT = CALLS, ALL = CALLS + 1, BREAKS = 2, LATES = 1 };

typedef enum where { IDLE, QUEUED, FLYING, OVER, DONE } where;
typedef enum pipe_of {
    NOWHERE,
    UNDER_WAY,
    STRANDED
} pipe_of;                                    /* a request, and on which connection */
typedef enum answer { NONE, YES, NO } answer; /* NO: the guard was another */
typedef enum outcome { OPEN, KNOWN, UNKNOWN } outcome;
typedef enum violation { NO_VIOLATION, TOO_LATE, TWICE, NOT_DONE } violation;
typedef enum point { LOOKS, SLEEPS, READS, TELLS, CONNECTS } point; /* where the thread is */

/* Everything is a byte: states are compared as bytes. */
typedef struct state {
    uint8_t where[ALL], pipe[ALL], answer[ALL], bears[ALL], outcome[ALL];
    uint8_t
        after[CALLS];    /* bit by bit: calls whose caller had been told when this one was posted */
    uint8_t sent[CALLS]; /* once at least */
    uint8_t applied[CALLS];
    uint8_t old_puts; /* writes of the guard on connections that were given up */
    uint8_t up, broken, cut, kicked, point;
    uint8_t stale, writing, epoch, server_epoch;
    uint8_t breaks, lates;
    uint8_t violated; /* which property */
} state;

typedef enum mutation {
    INTACT,
    CUT_WITHOUT_KICK, /* who cuts does not wake the thread */
    CUTTER_FINISHES, /* who cuts finishes the calls itself; the thread, about to be woken, is not */
    WRITER_FINISHED, /* the guard's write is finished by a cut, and counts as under way for ever */
    NO_COMPARE,      /* requests do not bear the guard */
    NOT_CONFIRMED,   /* newer requests go out before the guard's write is answered */
    LATE_IS_NOT_STALE, /* a call that was given up in time, on a healthy connection, is forgotten */
    CUT_IS_NOT_STALE,  /* the same for those on a connection that was dropped */
    MOVED_IS_LOST,     /* what the guard refused is not sent again */
    MUTATIONS
} mutation;

static const char *const names[MUTATIONS] = {
    "intact",        "cut without kick",  "cutter finishes",  "writer finished", "no compare",
    "not confirmed", "late is not stale", "cut is not stale", "moved is lost"};

static const char *const faults[] = {"nobody goes on", "a late request took effect",
                                     "a request took effect twice",
                                     "a call was told that it was done, and it was not"};

static mutation mutated;

/* ---- The table of states --------------------------------------------------------------------- */

typedef struct edge {
    uint32_t from, to;
} edge;

static state *states;
static edge *edges;
static uint32_t *slots;
static size_t count, room, edge_count, edge_room, slot_count;

static uint64_t hash_of(const state *s)
{
    const uint8_t *p = (const uint8_t *)s;
    uint64_t h = 1469598103934665603u;

    for (size_t i = 0; i < sizeof *s; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h ^ h >> 29;
}

static void *grown(void *p, size_t size)
{
    p = realloc(p, size);
    if (!p)
        abort();
    return p;
}

static void rehash(void)
{
    slot_count = slot_count ? 2 * slot_count : 1 << 16;
    slots = grown(slots, slot_count * sizeof *slots);
    memset(slots, 0, slot_count * sizeof *slots);
    for (size_t i = 0; i < count; i++) {
        size_t k = hash_of(&states[i]) & (slot_count - 1);
        while (slots[k])
            k = (k + 1) & (slot_count - 1);
        slots[k] = (uint32_t)i + 1;
    }
}

static uint32_t number_of(const state *s)
{
    size_t k;

    if (2 * (count + 1) > slot_count)
        rehash();
    for (k = hash_of(s) & (slot_count - 1); slots[k]; k = (k + 1) & (slot_count - 1))
        if (memcmp(&states[slots[k] - 1], s, sizeof *s) == 0)
            return slots[k] - 1;
    if (count == room) {
        room = room ? 2 * room : 4096;
        states = grown(states, room * sizeof *states);
    }
    states[count] = *s;
    slots[k] = (uint32_t)++count;
    return (uint32_t)count - 1;
}

static uint32_t stepped_from;

static void reach(const state *s)
{
    if (edge_count == edge_room) {
        edge_room = edge_room ? 2 * edge_room : 4096;
        edges = grown(edges, edge_room * sizeof *edges);
    }
    edges[edge_count++] = (edge){stepped_from, number_of(s)};
}

/* ---- What callers and thread do under the mutex ---------------------------------------------- */

static bool may_go(const state *s, int i)
{
    bool held = mutated == NOT_CONFIRMED ? s->stale && !s->writing : s->stale;

    return s->up && !s->cut && (i == PUT || !held);
}

static void kick(state *s)
{
    s->kicked = 1;
}

static void leave(state *s)
{
    s->cut = 1;
    if (mutated == CUTTER_FINISHES) {
        for (int i = 0; i < CALLS; i++)
            if (s->where[i] == FLYING) {
                s->where[i] = OVER;
                s->outcome[i] = UNKNOWN;
                s->stale = 1;
            }
        s->cut = 0;
        s->up = 0;
        return;
    }
    if (mutated != CUT_WITHOUT_KICK)
        kick(s);
}

static void send_call(state *s, int i)
{
    s->where[i] = FLYING;
    s->pipe[i] = UNDER_WAY;
    s->answer[i] = NONE;
    s->bears[i] = s->epoch;
    if (i < CALLS)
        s->sent[i] = 1;
}

static void end_unanswered(state *s, int i, bool makes_stale)
{
    s->where[i] = OVER;
    s->outcome[i] = UNKNOWN;
    s->answer[i] = NONE;
    if (s->pipe[i] == UNDER_WAY && i == PUT)
        s->old_puts++;
    if (s->pipe[i] == UNDER_WAY)
        s->pipe[i] = i == PUT ? NOWHERE : STRANDED;
    if (i < CALLS && makes_stale)
        s->stale = 1;
}

/* ---- Steps of callers ------------------------------------------------------------------------ */

static void post(const state *from, int i)
{
    state s = *from;
    uint8_t after = 0;

    if (s.where[i] != IDLE)
        return;
    for (int k = 0; k < CALLS; k++)
        if (s.where[k] == DONE)
            after |= (uint8_t)(1u << k);
    s.after[i] = after;
    if (!may_go(&s, i)) {
        s.where[i] = QUEUED;
        reach(&s); /* whatever it waits for wakes the thread */
        return;
    }
    send_call(&s, i);
    reach(&s);
    if (s.broken) { /* or the system says so at once */
        leave(&s);
        reach(&s);
    }
    if (from->breaks < BREAKS) { /* or no stream is to be had on this connection */
        s = *from;
        s.after[i] = after;
        s.where[i] = QUEUED;
        s.breaks++;
        leave(&s);
        reach(&s);
    }
}

/* ---- Steps of server and network -------------------------------------------------------------- */

/* It takes effect, unless the guard is another one. */
static void apply(state *s, int i)
{
    bool fits = s->bears[i] == s->server_epoch || mutated == NO_COMPARE;

    s->answer[i] = i == PUT || fits ? YES : NO;
    if (i == PUT) {
        s->server_epoch++;
        return;
    }
    if (fits && s->applied[i])
        s->violated = TWICE;
    s->applied[i] |= fits;
    for (int k = 0; fits && s->outcome[i] == UNKNOWN && k < CALLS; k++)
        if (s->sent[k] && s->after[k] & 1u << i)
            s->violated = TOO_LATE;
}

static void arrive(const state *from, int i)
{
    state s = *from;

    if (s.pipe[i] == UNDER_WAY && !s.broken) {
        apply(&s, i);
        s.pipe[i] = NOWHERE;
        if (i == PUT)
            s.bears[i] = s.server_epoch;
        reach(&s);
    } else if (s.pipe[i] == STRANDED) {
        apply(&s, i);
        s.answer[i] = NONE; /* nobody hears it */
        s.pipe[i] = NOWHERE;
        reach(&s);
    }
}

static void arrive_old_put(const state *from)
{
    state s = *from;

    if (s.old_puts == 0)
        return;
    s.old_puts--;
    s.server_epoch++;
    reach(&s);
}

static void lose(const state *from)
{
    state s = *from;

    if (!s.up || s.broken || s.breaks == BREAKS)
        return;
    s.broken = 1;
    s.breaks++;
    for (int i = 0; i < ALL; i++)
        s.answer[i] = NONE;
    reach(&s);
}

/* ---- Steps of the thread ---------------------------------------------------------------------- */

static void look(state *s)
{
    if (s->stale && !s->writing && s->up && !s->cut) {
        s->writing = 1;
        send_call(s, PUT);
    }
    for (int i = 0; i < CALLS; i++)
        if (s->where[i] == QUEUED && may_go(s, i))
            send_call(s, i);
}

static void drop(state *s)
{
    s->up = s->broken = s->cut = 0;
    for (int i = 0; i < ALL; i++)
        if (s->where[i] == FLYING)
            end_unanswered(s, i, mutated != CUT_IS_NOT_STALE);
}

static void read_answers(state *s)
{
    for (int i = 0; i < ALL; i++) {
        if (s->where[i] != FLYING || s->answer[i] == NONE)
            continue;
        s->where[i] = s->answer[i] == NO && mutated != MOVED_IS_LOST ? QUEUED : OVER;
        s->outcome[i] = s->where[i] == OVER ? KNOWN : OPEN;
        if (s->answer[i] == NO)
            s->epoch = s->server_epoch;
        s->answer[i] = s->answer[i] == NO && mutated == MOVED_IS_LOST ? NO : NONE;
    }
}

/* The callbacks run without the mutex: one at a time. */
static void print_path(state *s, int i)
{
    s->where[i] = DONE;
    if (i != PUT && s->outcome[i] == KNOWN && !s->applied[i])
        s->violated = NOT_DONE;
    if (i != PUT)
        return;
    s->where[PUT] = IDLE;
    if (s->outcome[PUT] == KNOWN) {
        s->epoch = s->bears[PUT];
        s->stale = 0;
    }
    if (s->outcome[PUT] == KNOWN || mutated != WRITER_FINISHED)
        s->writing = 0;
    s->outcome[PUT] = OPEN;
}

static bool has_news(const state *s)
{
    for (int i = 0; i < ALL; i++)
        if (s->where[i] == OVER)
            return true;
    return false;
}

static bool is_readable(const state *s)
{
    bool flying = false, answered = false;

    for (int i = 0; i < ALL; i++) {
        flying = flying || s->where[i] == FLYING;
        answered = answered || (s->where[i] == FLYING && s->answer[i] != NONE);
    }
    return s->up && (answered || (s->broken && flying)); /* a silence is noticed */
}

/* A caller's time is over: the thread ends the call on a healthy connection. */
static void be_late(const state *from)
{
    for (int i = 0; i < CALLS; i++) {
        state s = *from;
        if (s.where[i] != FLYING || s.lates == LATES)
            continue;
        s.lates++;
        end_unanswered(&s, i, mutated != LATE_IS_NOT_STALE);
        reach(&s);
    }
}

static void thread_steps(const state *from)
{
    state s = *from;

    switch ((point)s.point) {
    case LOOKS:
        if (!s.up || s.cut) {
            drop(&s);
            s.point = has_news(&s) ? TELLS : CONNECTS;
        } else {
            be_late(from);
            look(&s);
            s.point = has_news(&s) ? TELLS : SLEEPS;
        }
        reach(&s);
        break;
    case SLEEPS:
        if (!s.kicked && !is_readable(&s))
            break;
        s.kicked = 0;
        s.point = READS;
        reach(&s);
        break;
    case READS:
        read_answers(&s);
        s.cut |= s.broken;
        s.point = TELLS;
        reach(&s);
        break;
    case TELLS:
        for (int i = 0; i < ALL; i++)
            if (from->where[i] == OVER) {
                s = *from;
                print_path(&s, i);
                reach(&s);
            }
        if (!has_news(from)) {
            s.point = from->up ? LOOKS : CONNECTS;
            reach(&s);
        }
        break;
    case CONNECTS:
        s.up = 1;
        s.point = LOOKS;
        reach(&s);
        break;
    }
}

/* ---- The search ------------------------------------------------------------------------------ */

static void expand(uint32_t n)
{
    state s = states[n];

    stepped_from = n;
    if (s.violated)
        return;
    for (int i = 0; i < CALLS; i++)
        post(&s, i);
    for (int i = 0; i < ALL; i++)
        arrive(&s, i);
    arrive_old_put(&s);
    lose(&s);
    thread_steps(&s);
}

static bool is_goal(const state *s)
{
    for (int i = 0; i < CALLS; i++)
        if (s->where[i] != DONE)
            return false;
    return true;
}

static void show(const char *what, const state *s)
{
    print_message("# %s: %s: thread at %d, up %d broken %d cut %d kicked %d stale %d writing %d\n",
                  names[mutated], what, s->point, s->up, s->broken, s->cut, s->kicked, s->stale,
                  s->writing);
    for (int i = 0; i < ALL; i++)
        print_message("#   %s %d: at %d, request %d, answer %d, outcome %d\n",
                      i == PUT ? "guard" : "call", i, s->where[i], s->pipe[i], s->answer[i],
                      s->outcome[i]);
}

/* True: nothing was found. */
static bool search(mutation m)
{
    state first = {.up = 1, .point = LOOKS, .epoch = 1, .server_epoch = 1};
    uint8_t *good;
    bool changed = true, clean = true;

    mutated = m;
    if (m != INTACT)
        first.where[CALLS - 1] = DONE; /* two calls are enough to find them */
    count = edge_count = 0;
    if (slots)
        memset(slots, 0, slot_count * sizeof *slots);
    number_of(&first);
    for (uint32_t n = 0; n < count; n++)
        expand(n);
    good = calloc(count, 1);
    if (!good)
        abort();
    for (size_t n = 0; n < count; n++)
        good[n] = is_goal(&states[n]);
    while (changed) {
        changed = false;
        for (size_t k = edge_count; k-- > 0;)
            if (good[edges[k].to] && !good[edges[k].from])
                good[edges[k].from] = changed = true;
    }
    for (size_t n = 0; clean && n < count; n++) {
        clean = !states[n].violated && good[n];
        if (!clean)
            show(faults[states[n].violated], &states[n]);
    }
    print_message("# %s: %zu states, %zu steps\n", names[m], count, edge_count);
    free(good);
    return clean;
}

static void the_protocol_is_sound(void **unused)
{
    (void)unused;
    assert_true(search(INTACT));
}

static void every_mutation_is_found(void **unused)
{
    (void)unused;
    for (int m = INTACT + 1; m < MUTATIONS; m++)
        if (search((mutation)m))
            fail_msg("%s was not found", names[m]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_protocol_is_sound),
        cmocka_unit_test(every_mutation_is_found),
    };
    int failed = cmocka_run_group_tests_name("etcd-roles", tests, NULL, NULL);

    free(states);
    free(edges);
    free(slots);
    return failed ? 1 : 0;
}
