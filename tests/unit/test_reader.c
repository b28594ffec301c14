/* Who reads the engine's events: every order of steps of a few threads that wait, of the keeper, and of what happens
 * around them, over the code of core/reader.c itself.
 *
 * The threads do what core/ticket.c does, the keeper what core/keeper.c does. A step is what happens between two moments
 * at which the handle's mutex is free. A thread that has let go of the mutex may take long to fall asleep, and one that
 * leaves wakes the next leader some time after it has given it the role: both are steps of their own. Events arrive, each for one of the threads, and one for a request; a thread may also be settled by
 * somebody else, or lose patience, at any moment. Searched for: an event that nobody will read although somebody waits
 * for it, a thread that sleeps although it is settled, two who read at once, a role of somebody who has returned.
 *
 * Four faults are put in, to see that the search finds them. */
#include "support/test.h"

#include "core/reader.h"

#include <stdlib.h>
#include <string.h>

#define THREADS 3
#ifndef CALLS
#define CALLS 2 /* waits of each of two threads */
#endif
#define KEEPER THREADS
#define NOBODY (THREADS + 1)

typedef enum place { AWAY, SITS, DOZES, SLEEPS, POLLS, READS, WAKES, OVER } place;

typedef struct thread {
    dibs__driver_call turn;
    signed char at, waits; /* waits still to make */
    bool settled;
    bool rung, woken; /* its bell has changed since it looked; the system call that says so */
    signed char next; /* WAKES: whom */
    bool seen;        /* poll said that there are events */
    bool comes, late; /* its event has been sent; its patience is over */
} thread;

typedef struct world {
    dibs__readers readers;
    thread thread[THREADS];
    bool pending[THREADS + 1]; /* at the descriptor, for this thread, or for a request */
    bool asked;                /* it has been sent: one is enough */
    signed char leader;        /* who polls now, or did so last */
    bool leader_woken;         /* its own descriptor */
    signed char keeper;        /* SITS: between two sleeps */
    bool keeper_has, keeper_seen, keeper_woken;
} world;

typedef enum flaw { NONE, KEEPER_NOT_NOTIFIED, LEADER_NOT_WOKEN, BOTH_READ, BELL_NOT_RUNG } flaw;

static world now; /* pointers inside a world are into this one */
static flaw with;
static bool patient; /* nobody loses it, and no request waits: fewer states */
static const char *fault;

static void fail_if(bool wrong, const char *text)
{
    if (wrong && !fault)
        fault = text;
}

/* ---- What ticket.c does ---------------------------------------------------------------------- */

static thread *of(dibs__driver_call *turn)
{
    return (thread *)turn; /* its first member */
}

/* Finds nobody who does not sleep yet. */
static void wake(thread *t)
{
    t->woken |= t->at == SLEEPS;
}

static void ring(thread *t)
{
    t->rung = true;
    wake(t);
}

static void settle(thread *t, int actor)
{
    if (t->settled || t->at == AWAY || t->at == OVER)
        return;
    t->settled = true;
    dibs__call_finish(&now.readers.threads, &t->turn);
    if (!dibs__call_drives(&now.readers.threads, &t->turn) || with == LEADER_NOT_WOKEN)
        ring(t);
    else if (now.leader != actor)
        now.leader_woken = true;
}

static void notify_all(int actor)
{
    for (int i = 0; i < THREADS; i++)
        if (now.pending[i])
            settle(&now.thread[i], actor);
    memset(now.pending, 0, sizeof now.pending);
}

static bool any_pending(void)
{
    for (int i = 0; i <= THREADS; i++)
        if (now.pending[i])
            return true;
    return false;
}

/* True: the thread has somebody to wake. */
static bool stop_reading(thread *t)
{
    bool keeper;
    dibs__driver_call *next = dibs__reader_leave(&now.readers, &t->turn, &keeper);

    if (next) {
        of(next)->rung |= with != BELL_NOT_RUNG;
        t->next = (signed char)(of(next) - now.thread);
    } else if (keeper && with != KEEPER_NOT_NOTIFIED) {
        now.keeper_woken = true;
    }
    return next;
}

static void go(thread *t, int i)
{
    *t = (thread){.at = t->waits > 0 ? AWAY : OVER, .waits = t->waits};
    now.pending[i] = false;
}

static void sit(thread *t, int i)
{
    if (!t->settled && t->late)
        settle(t, i);
    if (t->settled) {
        if (stop_reading(t))
            t->at = WAKES;
        else
            go(t, i);
        return;
    }
    t->rung = t->woken = false;
    if (dibs__reader_lead(&now.readers, &t->turn) ||
        (with == BOTH_READ && dibs__call_drive(&now.readers.threads, &t->turn))) {
        now.leader = (signed char)i;
        t->at = POLLS;
    } else {
        t->at = DOZES;
    }
}

/* False: it cannot go on now. */
static bool step_thread(int i)
{
    thread *t = &now.thread[i];

    switch (t->at) {
    case AWAY:
        if (t->waits == 0)
            return false;
        t->waits--;
        t->at = SITS;
        return true;
    case SITS:
        sit(t, i);
        return true;
    case DOZES: /* a wake-up that came by now found nobody: the bell must do */
        t->at = t->rung ? SITS : SLEEPS;
        return true;
    case SLEEPS:
        if (!t->woken && !t->late)
            return false;
        t->at = SITS;
        return true;
    case WAKES: /* it may have returned meanwhile */
        wake(&now.thread[t->next]);
        go(t, i);
        return true;
    case POLLS:
        if (!any_pending() && !now.leader_woken && !t->late)
            return false;
        t->seen = any_pending();
        now.leader_woken = false;
        t->at = t->seen ? READS : SITS;
        return true;
    case READS:
        notify_all(i);
        t->at = SITS;
        return true;
    default:
        return false;
    }
}

/* ---- What keeper.c does ---------------------------------------------------------------------- */

static bool step_keeper(void)
{
    dibs__driver_call *next;

    switch (now.keeper) {
    case SITS: /* to sleep */
        now.keeper_has = dibs__keeper_minds(&now.readers);
        now.keeper = SLEEPS;
        return true;
    case SLEEPS:
        if (!now.keeper_woken && !(now.keeper_has && any_pending()))
            return false;
        now.keeper_seen = now.keeper_has && any_pending();
        now.keeper_woken = false;
        now.keeper = POLLS;
        return true;
    case POLLS: /* has come out of it */
        now.keeper = now.keeper_seen && dibs__keeper_begins(&now.readers) ? READS : SITS;
        return true;
    default:
        notify_all(KEEPER);
        next = dibs__keeper_ends(&now.readers);
        if (next)
            ring(of(next));
        now.keeper = SITS;
        return true;
    }
}

/* ---- What happens to them -------------------------------------------------------------------- */

static bool is_waiting(const thread *t)
{
    return t->at != AWAY && t->at != OVER && t->at != WAKES && !t->settled;
}

static bool ask(void)
{
    if (now.asked)
        return false;
    now.pending[THREADS] = now.asked = true;
    return true;
}

static bool happen(int i, int what)
{
    thread *t = &now.thread[i];

    if (!is_waiting(t))
        return false;
    if (what == 0 && !t->comes) {
        now.pending[i] = t->comes = true;
        return true;
    }
    if (what == 1) {
        settle(t, NOBODY);
        return true;
    }
    if (what == 2 && !t->late && !patient) {
        t->late = true;
        return true;
    }
    return false;
}

/* ---- What must hold -------------------------------------------------------------------------- */

static void check(void)
{
    int readers = now.keeper == READS, polls = 0;

    for (int i = 0; i < THREADS; i++) {
        const thread *t = &now.thread[i];
        readers += t->at == READS;
        polls += t->at == POLLS || t->at == READS;
        fail_if((t->at == AWAY || t->at == OVER) &&
                    dibs__call_drives(&now.readers.threads, &t->turn),
                "the role of somebody who has returned");
    }
    fail_if(readers > 1 || polls > 1, "two read at once");
}

static void check_rest(void)
{
    fail_if(now.pending[THREADS], "an event that nobody will read");
    for (int i = 0; i < THREADS; i++) {
        fail_if(now.thread[i].settled, "a thread sleeps although it is settled");
        fail_if(now.pending[i] && is_waiting(&now.thread[i]), "an event that nobody will read");
    }
}

/* ---- The search ------------------------------------------------------------------------------ */

#define SEEN (1u << 24)

typedef struct search {
    world *stack;
    size_t depth, room, states;
    uint64_t *seen;
} search;

static bool is_new(search *s)
{
    const unsigned char *at = (const unsigned char *)&now;
    uint64_t hash = 14695981039346656037u;
    size_t i;

    for (i = 0; i < sizeof now; i++)
        hash = (hash ^ at[i]) * 1099511628211u;
    hash = (hash ^ hash >> 29) | 1;
    for (i = hash & (SEEN - 1); s->seen[i] && s->seen[i] != hash; i = (i + 1) & (SEEN - 1))
        continue;
    if (s->seen[i])
        return false;
    s->seen[i] = hash;
    return true;
}

static void visit(search *s)
{
    check();
    if (!is_new(s))
        return;
    assert_true(++s->states < SEEN / 2);
    if (s->depth == s->room) {
        s->room = s->room ? 2 * s->room : 1024;
        s->stack = realloc(s->stack, s->room * sizeof *s->stack);
        assert_non_null(s->stack);
    }
    s->stack[s->depth++] = now;
}

static void expand(search *s, const world *from)
{
    bool goes_on = false;

    for (int i = 0; i <= THREADS; i++) {
        now = *from;
        if (i < THREADS ? step_thread(i) : step_keeper()) {
            goes_on |= i == THREADS || from->thread[i].at != AWAY;
            visit(s);
        }
    }
    now = *from;
    if (!goes_on)
        check_rest();
    if (ask())
        visit(s);
    for (int i = 0; i < THREADS; i++)
        for (int what = 0; what < 3; what++) {
            now = *from;
            if (happen(i, what))
                visit(s);
        }
}

static size_t search_all(flaw f, int threads, int waits)
{
    search s = {.seen = calloc(SEEN, sizeof *s.seen)};

    assert_non_null(s.seen);
    with = f;
    patient = threads > 2;
    fault = NULL;
    memset(&now, 0, sizeof now);
    now.keeper = SITS;
    now.leader = NOBODY;
    now.asked = patient;
    for (int i = 0; i < THREADS; i++) {
        now.thread[i].at = i < threads ? AWAY : OVER;
        now.thread[i].waits = i < threads ? (signed char)waits : 0;
    }
    visit(&s);
    while (s.depth > 0 && !fault) {
        world from = s.stack[--s.depth];
        expand(&s, &from);
    }
    free(s.stack);
    free(s.seen);
    print_message("# %zu states%s%s\n", s.states, fault ? ": " : "", fault ? fault : "");
    return s.states;
}

/* ---- Cases ----------------------------------------------------------------------------------- */

static void every_event_is_read(void **state)
{
    (void)state;
    assert_true(search_all(NONE, 3, 1) > 1000);
    assert_null(fault);
    assert_true(search_all(NONE, 2, CALLS) > 1000);
    assert_null(fault);
}

static void a_keeper_that_is_not_notified_is_found(void **state)
{
    (void)state;
    search_all(KEEPER_NOT_NOTIFIED, 2, 2);
    assert_non_null(fault);
    assert_non_null(strstr(fault, "nobody will read"));
}

static void a_leader_that_is_not_woken_is_found(void **state)
{
    (void)state;
    search_all(LEADER_NOT_WOKEN, 2, 1);
    assert_non_null(fault);
    assert_non_null(strstr(fault, "although it is settled"));
}

static void a_bell_that_is_not_rung_is_found(void **state)
{
    (void)state;
    search_all(BELL_NOT_RUNG, 2, 1);
    assert_non_null(fault);
    assert_non_null(strstr(fault, "sleeps"));
}

static void two_readers_are_found(void **state)
{
    (void)state;
    search_all(BOTH_READ, 2, 1);
    assert_non_null(fault);
    assert_non_null(strstr(fault, "two read at once"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_event_is_read),
        cmocka_unit_test(a_keeper_that_is_not_notified_is_found),
        cmocka_unit_test(a_leader_that_is_not_woken_is_found),
        cmocka_unit_test(a_bell_that_is_not_rung_is_found),
        cmocka_unit_test(two_readers_are_found),
    };

    return cmocka_run_group_tests_name("the reader's role", tests, NULL, NULL);
}
