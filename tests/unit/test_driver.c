/* Who drives, who is woken, who cuts: every order of steps of a few threads that share a connection, over the
 * code of core/driver.c itself.
 *
 * The threads do what redis/pipeline.c does (one connection, written to outside the mutex, made by whoever needs
 * it) or what redlock/ask.c does (two nodes, written to under the mutex, dialled by others, and one answer is
 * enough). A step is what happens between two moments at which the mutex is free. Connections die, callers lose
 * patience and new ones come at any moment. Searched for: a role that nobody carries out, a caller that waits
 * for ever although the server answers, an answer for somebody else or for nobody, a connection that points to a call that has
 * returned, a connection that is closed under its reader.
 *
 * Two faults that were in the code are put back, to see that the search finds them. */
#include "support/test.h"

#include "core/driver.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALLERS 3 /* at most */
#define LINKS   2
#ifndef CALLS
#define CALLS 2 /* of each caller */
#endif
#define LINE (CALLERS * 3)

typedef enum place { AWAY, ARRIVES, CONNECTS, WRITES, SLEEPS, WOKE, READS, OVER } place;

typedef struct caller {
    dibs__driver_call call;
    signed char at, calls; /* calls still to make */
    signed char number;    /* of its call */
    bool late;             /* its deadline has come */
    unsigned char asked, heard;
} caller;

typedef struct line_entry {
    signed char caller, number; /* caller -1: nobody waits for it */
} line_entry;

typedef enum link_state { DOWN, DIALLED, UP, BROKEN } link_state;

typedef struct link {
    signed char state, count, sent;
    bool dead, writing; /* dead: the peer has gone, and we do not know */
    line_entry line[LINE];
} link;

typedef struct world {
    dibs__calls calls;
    caller caller[CALLERS];
    link link[LINKS];
    signed char deaths; /* that may still happen */
    bool reading;       /* somebody waits for bytes, without the mutex */
} world;

/* What is searched. */
typedef struct plan {
    int links, callers;
    int calls, deaths; /* calls of each, and deaths of connections */
    bool overwrite;    /* the old rule: who is finished is told so, and nothing else */
    bool no_forget;    /* the old way out of dibs__ask_run */
} plan;

static world now; /* pointers inside a world are into this one */
static plan what;
static const char *fault;

static bool is_redlock(void)
{
    return what.links > 1;
}

static void fail_if(bool wrong, const char *text)
{
    if (wrong && !fault)
        fault = text;
}

/* ---- What pipeline.c and link.c do ----------------------------------------------------------- */

static void finish(caller *c)
{
    dibs__call_finish(&now.calls, &c->call);
    if (what.overwrite)
        atomic_store(&c->call.word, DIBS__CALL_DONE);
}

/* A node has answered, or will not. */
static void note(caller *c, int node)
{
    c->heard |= 1 << node;
    if (!dibs__call_is_done(&c->call) && c->heard) /* one answer is enough, and one failure too */
        finish(c);
}

static void tidy(link *l)
{
    bool used = is_redlock() ? now.reading : now.calls.driver || l->writing;

    if (l->state != BROKEN || used)
        return;
    fail_if(now.reading, "closed under its reader");
    *l = (link){.state = DOWN};
}

static void cut(link *l)
{
    if (l->state != UP)
        return;
    l->state = BROKEN;
    for (int i = 0; i < l->count; i++)
        if (l->line[i].caller >= 0)
            note(&now.caller[l->line[i].caller], (int)(l - now.link));
    l->count = l->sent = 0;
    tidy(l);
}

static void hand_out(link *l)
{
    line_entry e = l->line[0];

    memmove(l->line, l->line + 1, sizeof l->line - sizeof l->line[0]);
    l->line[LINE - 1] = (line_entry){0, 0};
    l->count--;
    l->sent--;
    if (e.caller < 0)
        return;
    caller *c = &now.caller[e.caller];
    fail_if(c->number != e.number || c->at == AWAY || c->at == OVER,
            "an answer for a call that is over");
    fail_if(!is_redlock() && dibs__call_is_done(&c->call), "answered twice");
    note(c, (int)(l - now.link));
}

static void forget(caller *c)
{
    for (int i = 0; i < what.links; i++)
        for (int k = 0; k < now.link[i].count; k++)
            if (now.link[i].line[k].caller == c - now.caller)
                now.link[i].line[k].caller = -1;
}

static void go_away(caller *c)
{
    memset(&c->call, 0, sizeof c->call);
    c->late = false;
    c->asked = c->heard = 0;
    c->number++;
    c->at = c->calls > 0 ? AWAY : OVER;
}

static void leave(caller *c)
{
    if (!dibs__call_is_done(&c->call) || (is_redlock() && !what.no_forget))
        forget(c);
    dibs__call_leave(&now.calls, &c->call);
    for (int i = 0; i < what.links; i++)
        tidy(&now.link[i]);
    go_away(c);
}

static void enqueue(caller *c, link *l)
{
    fail_if(l->count == LINE, "the line is too long");
    l->line[(int)l->count++] = (line_entry){(signed char)(c - now.caller), c->number};
    c->asked |= 1 << (l - now.link);
}

/* ---- Steps of a caller ----------------------------------------------------------------------- */

static void await(caller *c)
{
    bool drives = dibs__call_drive(&now.calls, &c->call);

    c->at = drives ? WOKE : SLEEPS;
}

/* Unless another writes: it will go on with what is queued. */
static void write_or_await(caller *c, link *l)
{
    if (l->state == UP && !l->writing && l->sent < l->count) {
        l->writing = true;
        c->at = WRITES;
    } else {
        await(c);
    }
}

static void enter_pipeline(caller *c)
{
    link *l = &now.link[0];

    dibs__call_enter(&now.calls, &c->call);
    enqueue(c, l);
    write_or_await(c, l);
}

/* `broken`: of the nodes that are dead, the write finds it out. */
static void ask_nodes(caller *c, int broken)
{
    dibs__call_enter(&now.calls, &c->call);
    for (int i = 0; i < what.links; i++)
        if (now.link[i].state == UP)
            enqueue(c, &now.link[i]);
    for (int i = 0; i < what.links; i++) {
        link *l = &now.link[i];
        if (l->state != UP)
            continue;
        l->sent = l->count;
        if (l->dead && broken >> i & 1)
            cut(l);
    }
    if (c->asked && !dibs__call_is_done(&c->call)) {
        await(c);
    } else if (what.no_forget) {
        dibs__call_leave(&now.calls, &c->call);
        go_away(c);
    } else {
        leave(c);
    }
}

/* choice 1: it finds the connection silent for too long, or hung up, and cuts it. */
static bool arrive(caller *c, int choice)
{
    link *l = &now.link[0];

    if (is_redlock()) {
        ask_nodes(c, choice);
        return choice < 1 << LINKS;
    }
    if (choice > 1 || (choice == 1 && l->state != UP))
        return false;
    if (choice == 1)
        cut(l);
    if (l->state == UP)
        enter_pipeline(c);
    else if (l->state == DOWN) {
        l->state = DIALLED;
        c->at = CONNECTS;
    } else {
        c->at = ARRIVES; /* asleep until that has changed */
    }
    return true;
}

static bool connect(caller *c, int choice)
{
    link *l = &now.link[0];

    l->state = choice == 0 ? UP : DOWN;
    if (choice == 0)
        enter_pipeline(c);
    else
        go_away(c);
    return choice < 2;
}

static bool write_on(caller *c, int choice)
{
    link *l = &now.link[0];

    l->writing = false;
    if (choice == 1 && !l->dead)
        return false;
    if (choice == 1)
        cut(l);
    else if (l->state == UP)
        l->sent = l->count;
    tidy(l);
    write_or_await(c, l);
    return choice < 2;
}

/* Woken, out of patience, or back from reading: with the mutex. */
static bool go_on(caller *c, int choice)
{
    bool drives = dibs__call_drives(&now.calls, &c->call);

    if (choice > 0)
        return false;
    if (!drives || dibs__call_is_done(&c->call) || c->late) {
        leave(c);
        return true;
    }
    for (int i = 0; i < what.links; i++)
        if (now.link[i].state == UP && !now.link[i].writing)
            now.link[i].sent = now.link[i].count;
    now.reading = true;
    c->at = READS;
    return true;
}

static bool sleep_on(caller *c, int choice)
{
    int word = atomic_load(&c->call.word);

    if (choice > 0 || (word == 0 && !c->late))
        return false;
    if (word == DIBS__CALL_DONE && !is_redlock())
        go_away(c); /* without the mutex */
    else
        c->at = WOKE;
    return true;
}

/* choice: which link has something to say. */
static bool read_on(caller *c, int choice)
{
    link *l = &now.link[choice % LINKS];
    bool gone = l->state == BROKEN || (l->state == UP && l->dead);

    if (choice >= LINKS || choice % LINKS >= what.links)
        return false;
    if (!gone && !c->late && (l->state != UP || l->sent == 0))
        return false;
    now.reading = false;
    if (gone)
        cut(l);
    else if (l->state == UP && l->sent > 0)
        hand_out(l);
    for (int i = 0; is_redlock() && i < what.links; i++)
        tidy(&now.link[i]);
    c->at = WOKE;
    return true;
}

/* False: not now. */
static bool step(int i, int choice)
{
    caller *c = &now.caller[i];

    switch ((place)c->at) {
    case AWAY:
        c->calls -= choice == 0 || c->calls > 0;
        return arrive(c, choice);
    case ARRIVES: /* the condition is signalled when the connection has come or gone */
        if (c->late && choice == 0) {
            go_away(c);
            return true;
        }
        return choice == 0 && (now.link[0].state == UP || now.link[0].state == DOWN) &&
               arrive(c, 0);
    case CONNECTS:
        return connect(c, choice);
    case WRITES:
        return write_on(c, choice);
    case SLEEPS:
        return sleep_on(c, choice);
    case WOKE:
        return go_on(c, choice);
    case READS:
        return read_on(c, choice);
    case OVER:
        break;
    }
    return false;
}

/* ---- What may happen to them ----------------------------------------------------------------- */

static bool lose_patience(int i)
{
    caller *c = &now.caller[i];

    if (c->late || (c->at != SLEEPS && c->at != READS && c->at != ARRIVES))
        return false;
    c->late = true;
    return true;
}

static bool die(int i)
{
    link *l = &now.link[i];

    if (now.deaths == 0 || l->state != UP || l->dead)
        return false;
    l->dead = true;
    now.deaths--;
    return true;
}

static bool dial(int i)
{
    if (!is_redlock() || now.link[i].state != DOWN)
        return false;
    now.link[i].state = UP;
    return true;
}

/* ---- What must hold -------------------------------------------------------------------------- */

static bool will_run(const caller *c)
{
    return c->at == WRITES || c->at == WOKE || c->at == READS ||
           (c->at == SLEEPS && (c->call.word & DIBS__CALL_DRIVES));
}

static void check(void)
{
    bool found = !now.calls.driver;

    for (int i = 0; i < CALLERS; i++)
        found |= now.calls.driver == &now.caller[i].call && will_run(&now.caller[i]);
    fail_if(!found, "somebody has the role and will not act on it");
    for (int i = 0; i < what.links; i++)
        for (int k = 0; k < now.link[i].count; k++) {
            line_entry e = now.link[i].line[k];
            if (e.caller < 0)
                continue;
            const caller *c = &now.caller[e.caller];
            fail_if(c->number != e.number || c->at == AWAY || c->at == OVER,
                    "a connection points to a call that has returned");
        }
}

static bool all_over(void)
{
    for (int i = 0; i < CALLERS; i++)
        if (now.caller[i].at != OVER)
            return false;
    return true;
}

/* ---- The search ------------------------------------------------------------------------------ */

typedef struct search {
    world *stack;
    size_t depth, room;
    uint64_t *seen;
    size_t size, states;
} search;

static uint64_t hash_of(const world *w)
{
    const unsigned char *at = (const unsigned char *)w;
    uint64_t hash = 14695981039346656037u;

    for (size_t i = 0; i < sizeof *w; i++)
        hash = (hash ^ at[i]) * 1099511628211u;
    hash ^= hash >> 29;
    return hash ? hash : 1;
}

static bool is_new(search *s, uint64_t hash);

static void grow(search *s)
{
    uint64_t *old = s->seen;
    size_t size = s->size;

    s->size = size ? 4 * size : 1 << 16;
    s->seen = calloc(s->size, sizeof *s->seen);
    assert_non_null(s->seen);
    for (size_t i = 0; i < size; i++)
        if (old[i])
            is_new(s, old[i]);
    free(old);
}

static bool is_new(search *s, uint64_t hash)
{
    size_t i = hash & (s->size - 1);

    while (s->seen[i] && s->seen[i] != hash)
        i = (i + 1) & (s->size - 1);
    if (s->seen[i])
        return false;
    s->seen[i] = hash;
    return true;
}

static void visit(search *s)
{
    if (!is_new(s, hash_of(&now)))
        return;
    if (++s->states * 2 > s->size)
        grow(s);
    if (s->depth == s->room) {
        s->room = s->room ? 2 * s->room : 1024;
        s->stack = realloc(s->stack, s->room * sizeof *s->stack);
        assert_non_null(s->stack);
    }
    s->stack[s->depth++] = now;
}

/* All that can come after `from`. */
static void expand(search *s, const world *from)
{
    bool goes_on = false;

    for (int i = 0; i < CALLERS; i++)
        for (int choice = 0; choice < 4; choice++) {
            now = *from;
            if (now.caller[i].at == OVER || !step(i, choice))
                continue;
            goes_on = true;
            check();
            visit(s);
        }
    for (int i = 0; i < LINKS; i++) {
        now = *from;
        if (i < what.links && dial(i))
            visit(s);
        now = *from;
        if (i < what.links && die(i))
            visit(s);
    }
    for (int i = 0; i < CALLERS; i++) {
        now = *from;
        if (lose_patience(i))
            visit(s);
    }
    now = *from;
    fail_if(!goes_on && !all_over(), "nobody can go on, although the server answers");
}

/* Returns how many states there are; `fault` says what was found. */
static size_t search_all(plan p)
{
    search s = {0};

    what = p;
    fault = NULL;
    memset(&now, 0, sizeof now);
    now.deaths = (signed char)p.deaths;
    for (int i = 0; i < CALLERS; i++) {
        now.caller[i].calls = (signed char)p.calls;
        now.caller[i].at = i < p.callers ? AWAY : OVER;
    }
    grow(&s);
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

static void one_connection_for_all(void **state)
{
    (void)state;
    assert_true(search_all((plan){.links = 1, .callers = 3, .calls = CALLS, .deaths = 1}) > 1000);
    assert_null(fault);
    assert_true(search_all((plan){.links = 1, .callers = 2, .calls = 3, .deaths = 2}) > 1000);
    assert_null(fault);
}

static void two_nodes_for_all(void **state)
{
    (void)state;
    assert_true(search_all((plan){.links = 2, .callers = 3, .calls = 1, .deaths = 2}) > 1000);
    assert_null(fault);
    assert_true(search_all((plan){.links = 2, .callers = 2, .calls = CALLS, .deaths = 2}) > 1000);
    assert_null(fault);
}

static void a_role_that_is_overwritten_is_found(void **state)
{
    (void)state;
    search_all((plan){.links = 1, .callers = 3, .calls = 2, .deaths = 1, .overwrite = true});
    assert_non_null(fault);
    assert_non_null(strstr(fault, "will not act on it"));
}

static void a_call_that_is_not_forgotten_is_found(void **state)
{
    (void)state;
    search_all((plan){.links = 2, .callers = 3, .calls = 1, .deaths = 2, .no_forget = true});
    assert_non_null(fault);
    assert_non_null(strstr(fault, "has returned"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_connection_for_all),
        cmocka_unit_test(two_nodes_for_all),
        cmocka_unit_test(a_role_that_is_overwritten_is_found),
        cmocka_unit_test(a_call_that_is_not_forgotten_is_found),
    };

    return cmocka_run_group_tests_name("the driver's role", tests, NULL, NULL);
}
