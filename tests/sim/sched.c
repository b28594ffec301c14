#define _GNU_SOURCE
#include "sim/sched.h"

#include "support/env.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#ifndef STACK /* a fuzzer with sanitizers needs more */
#define STACK (96 * 1024)
#endif
#define THREADS    128
#define EVENTS     8192
#define MOST_STEPS 3000000
#define BEGINNING  (1000 * DIBS__SECOND)
#define WALL       (1700000000 * DIBS__SECOND)

struct sim_thread {
    ucontext_t context;
    sim_process *process;
    void *(*run)(void *arg);
    void *arg;
    bool ended;
    const void *on; /* what it waits for; NULL: it can go on */
    int64_t until;
    bool woken;
};

typedef struct event {
    int64_t when;
    uint64_t order; /* of those at the same time */
    void (*run)(void *arg);
    void *arg;
} event;

static struct {
    uint64_t seed;
    int64_t now;
    long steps;
    ucontext_t home;
    sim_process process[SIM_PROCESSES];
    int processes;
    sim_thread thread[THREADS];
    int threads;
    sim_thread *self;
    event event[EVENTS]; /* a heap, the first comes first */
    int events;
    uint64_t events_made;
    bool wrong;
    char fault[1024];
} sim;

static _Thread_local bool inside; /* a sanitizer may have real threads */

/* ---- Chance and faults ----------------------------------------------------------------------- */

uint64_t sim_draw(uint64_t below)
{
    return below > 1 ? sim_random(&sim.seed) % below : 0;
}

bool sim_chance(uint64_t in_a_million)
{
    return sim_draw(1000000) < in_a_million;
}

int64_t sim_between(int64_t low, int64_t high)
{
    return low + (int64_t)sim_draw((uint64_t)(high - low + 1));
}

void sim_fault(const char *format, ...)
{
    va_list args;

    if (sim.wrong)
        return;
    sim.wrong = true;
    va_start(args, format);
    vsnprintf(sim.fault, sizeof sim.fault, format, args);
    va_end(args);
}

void sim_trace(const char *format, ...)
{
    static int wanted = -1;
    va_list args;

    if (wanted < 0)
        wanted = getenv("DIBS_SIM_TRACE") != NULL;
    if (!wanted)
        return;
    printf("# %12.6f ", (double)(sim.now - BEGINNING) / 1e6);
    if (sim.self)
        printf("%d/%d: ", sim.self->process->number, (int)(sim.self - sim.thread));
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}

/* ---- Time ------------------------------------------------------------------------------------ */

int64_t sim_now(void)
{
    return sim.now;
}

int64_t sim_clock(const sim_process *p)
{
    return sim.now + sim.now * p->rate / 1000000;
}

/* Rounded up: a deadline that has come has come for its process as well. */
int64_t sim_true_time(const sim_process *p, int64_t clock)
{
    int64_t parts = 1000000 + p->rate;

    return clock > DIBS__NEVER / 1000000 ? DIBS__NEVER : (clock * 1000000 + parts - 1) / parts;
}

static int64_t env_boottime(void *ctx)
{
    return sim_clock(ctx);
}

static int64_t env_wall(void *ctx)
{
    return WALL + sim_clock(ctx);
}

static void env_random(void *ctx, void *out, size_t size)
{
    unsigned char *at = out;

    (void)ctx;
    for (size_t i = 0; i < size; i++)
        at[i] = (unsigned char)sim_draw(256);
}

static void env_sleep(void *ctx, int64_t span)
{
    sim_process *p = ctx;

    sim_wait(p, sim_true_time(p, sim_clock(p) + span));
}

/* ---- Processes and threads ------------------------------------------------------------------- */

sim_process *sim_process_new(int64_t rate)
{
    sim_process *p = &sim.process[sim.processes];

    if (sim.processes == SIM_PROCESSES)
        abort();
    *p = (sim_process){.number = sim.processes++, .rate = rate};
    p->env = (dibs__env){env_boottime, env_wall, env_random, env_sleep, p};
    return p;
}

static void enter_thread(void)
{
    sim_thread *t = sim.self;

    t->run(t->arg);
    t->ended = true;
    sim_wake(t, true);
    swapcontext(&t->context, &sim.home);
}

sim_thread *sim_thread_new(sim_process *p, void *(*run)(void *arg), void *arg)
{
    static void *stacks[THREADS]; /* the next run takes the same */
    sim_thread *t = &sim.thread[sim.threads];
    void **stack = &stacks[sim.threads];

    if (sim.threads++ == THREADS)
        abort();
    if (!*stack)
        *stack = malloc(STACK);
    *t = (sim_thread){.process = p, .run = run, .arg = arg};
    getcontext(&t->context);
    t->context.uc_stack.ss_sp = *stack;
    t->context.uc_stack.ss_size = STACK;
    makecontext(&t->context, enter_thread, 0);
    return t;
}

sim_thread *sim_self(void)
{
    return inside ? sim.self : NULL;
}

sim_process *sim_self_process(void)
{
    return sim.self ? sim.self->process : NULL;
}

uint64_t sim_thread_number(void)
{
    return sim.self ? (uint64_t)(sim.self - sim.thread) + 1 : 0;
}

bool sim_thread_ended(const sim_thread *t)
{
    return t->ended;
}

void sim_stop(sim_process *p, int64_t span)
{
    if (p->stopped_until >= sim.now + span)
        return;
    p->stopped += sim.now + span - (p->stopped_until > sim.now ? p->stopped_until : sim.now);
    p->stopped_until = sim.now + span;
}

void sim_kill(sim_process *p)
{
    p->dead = true;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static void give_way(void)
{
    sim_thread *t = sim.self;

    swapcontext(&t->context, &sim.home);
}

void sim_step(void)
{
    if (sim.self)
        give_way();
}

bool sim_wait(const void *on, int64_t until)
{
    sim_thread *t = sim.self;

    t->on = on;
    t->until = until;
    t->woken = false;
    give_way();
    return t->woken;
}

void sim_wake(const void *on, bool all)
{
    int waiting[THREADS], count = 0;

    for (int i = 0; i < sim.threads; i++)
        if (sim.thread[i].on == on)
            waiting[count++] = i;
    for (int first = all ? 0 : (int)sim_draw((uint64_t)count), i = first;
         i < count && (all || i == first); i++) {
        sim.thread[waiting[i]].on = NULL;
        sim.thread[waiting[i]].woken = true;
    }
}

/* ---- Events ---------------------------------------------------------------------------------- */

static bool is_before(const event *a, const event *b)
{
    return a->when < b->when || (a->when == b->when && a->order < b->order);
}

static void swap(int a, int b)
{
    event e = sim.event[a];

    sim.event[a] = sim.event[b];
    sim.event[b] = e;
}

void sim_at(int64_t when, void (*run)(void *arg), void *arg)
{
    int i = sim.events++;

    if (i == EVENTS)
        abort();
    sim.event[i] = (event){when, sim.events_made++, run, arg};
    for (; i > 0 && is_before(&sim.event[i], &sim.event[(i - 1) / 2]); i = (i - 1) / 2)
        swap(i, (i - 1) / 2);
}

static event take_event(void)
{
    event first = sim.event[0];

    sim.event[0] = sim.event[--sim.events];
    for (int i = 0, least = 0;; i = least) {
        for (int child = 2 * i + 1; child < 2 * i + 3 && child < sim.events; child++)
            if (is_before(&sim.event[child], &sim.event[least]))
                least = child;
        if (least == i)
            break;
        swap(i, least);
    }
    return first;
}

static void run_events(void)
{
    while (!sim.wrong && sim.events > 0 && sim.event[0].when <= sim.now) {
        event e = take_event();
        e.run(e.arg);
    }
}

/* ---- The scheduler --------------------------------------------------------------------------- */

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* When it can go on; DIBS__NEVER: not by itself. */
static int64_t moment_of(const sim_thread *t)
{
    if (t->ended || t->process->dead)
        return DIBS__NEVER;
    return later(t->on ? t->until : sim.now, t->process->stopped_until);
}

/* One of those that can go on now. If there is none, `next` is when there will be. */
static sim_thread *pick(int64_t *next)
{
    sim_thread *ready[THREADS];
    uint64_t count = 0;

    *next = DIBS__NEVER;
    for (int i = 0; i < sim.threads; i++) {
        int64_t at = moment_of(&sim.thread[i]);
        if (at <= sim.now)
            ready[count++] = &sim.thread[i];
        else if (at < *next)
            *next = at;
    }
    return count > 0 ? ready[sim_draw(count)] : NULL;
}

static bool all_ended(void)
{
    for (int i = 0; i < sim.threads; i++)
        if (!sim.thread[i].ended && !sim.thread[i].process->dead)
            return false;
    return true;
}

static void go(sim_thread *t)
{
    t->on = NULL;
    sim.self = t;
    swapcontext(&sim.home, &t->context);
    sim.self = NULL;
    sim.now += 1 + (int64_t)sim_draw(30);
}

const char *sim_run(void)
{
    int64_t next;

    while (!sim.wrong && !all_ended()) {
        sim_thread *t;
        run_events();
        t = sim.wrong ? NULL : pick(&next);
        if (t)
            go(t);
        else if (sim.events > 0 && sim.event[0].when < next)
            sim.now = later(sim.now, sim.event[0].when);
        else if (next == DIBS__NEVER)
            sim_fault("nobody can go on, and not all have ended");
        else
            sim.now = next;
        if (++sim.steps > MOST_STEPS)
            sim_fault("the run does not end");
    }
    return sim.wrong ? sim.fault : NULL;
}

long sim_steps(void)
{
    return sim.steps;
}

void sim_begin(uint64_t seed)
{
    inside = true;
    memset(&sim, 0, sizeof sim);
    sim.seed = seed;
    sim.now = BEGINNING;
}
