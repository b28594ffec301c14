#define _GNU_SOURCE
#include "search.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define STACK   (256 * 1024)
#define CHOICES 4096

typedef enum how { READY, BLOCKED, ASLEEP, THROUGH } how;

static struct {
    const sim_plan *plan;
    ucontext_t home, thread[SIM_THREADS];
    char *stack[SIM_THREADS];
    how state[SIM_THREADS];
    const void *on[SIM_THREADS]; /* the mutex, condition or word */
    dibs__deadline until[SIM_THREADS];
    int self, preempted, hurried, owner; /* owner of the one mutex; -1: free */
    int64_t now;
    const char *fault;
    int choice[CHOICES], options[CHOICES];
    int made, known;
} sim;

void sim_fault(const char *what)
{
    if (!sim.fault)
        sim.fault = what;
}

int sim_choose(int options)
{
    int i = sim.made;

    if (options < 2 || sim.fault)
        return 0;
    if (i == CHOICES) {
        sim_fault("the run has no end");
        return 0;
    }
    if (i >= sim.known) {
        sim.choice[i] = 0;
        sim.known = i + 1;
    }
    sim.options[i] = options;
    sim.made++;
    return sim.choice[i];
}

int sim_self(void)
{
    return sim.self;
}

/* ---- Time ------------------------------------------------------------------------------------ */

static int64_t boottime(void *ctx)
{
    (void)ctx;
    return sim.now;
}

static void fill(void *ctx, void *out, size_t size)
{
    (void)ctx;
    memset(out, 0, size);
}

/* ---- Who goes next --------------------------------------------------------------------------- */

static bool can_go(int i)
{
    return sim.state[i] == READY || (sim.state[i] == BLOCKED && sim.owner < 0);
}

/* The next moment at which somebody wakes by itself. */
static dibs__deadline next_moment(void)
{
    dibs__deadline next = DIBS__NEVER;

    for (int i = 0; i < sim.plan->threads; i++)
        if (sim.state[i] == ASLEEP && sim.until[i] < next)
            next = sim.until[i];
    return next;
}

static void pass_time(dibs__deadline moment)
{
    if (moment > sim.now)
        sim.now = moment;
    for (int i = 0; i < sim.plan->threads; i++)
        if (sim.state[i] == ASLEEP && sim.until[i] <= sim.now)
            sim.state[i] = READY;
}

static void switch_to(int i)
{
    int from = sim.self;

    if (from == i)
        return;
    sim.self = i;
    swapcontext(from < 0 ? &sim.home : &sim.thread[from], &sim.thread[i]);
}

static void go_home(void)
{
    int from = sim.self;

    sim.self = -1;
    swapcontext(&sim.thread[from], &sim.home);
}

/* The running thread may go on (`free_to_stay`), or must give way. */
static void schedule(bool free_to_stay)
{
    int order[SIM_THREADS], count = 0, picked;
    bool may_pass;
    dibs__deadline moment = next_moment();

    if (sim.fault) {
        go_home();
        return;
    }
    if (free_to_stay)
        order[count++] = sim.self;
    for (int i = 0; i < sim.plan->threads; i++)
        if (can_go(i) && !(free_to_stay && i == sim.self) &&
            (!free_to_stay || sim.preempted < sim.plan->preemptions))
            order[count++] = i;
    /* Time passes when nobody can go on, or by choice. */
    if (count == 0 && moment == DIBS__NEVER) {
        sim_fault("everybody sleeps, and nobody will wake them");
        go_home();
        return;
    }
    if (count == 0)
        sim.plan->idle();
    may_pass = moment != DIBS__NEVER && !free_to_stay &&
               (count == 0 || sim.hurried < sim.plan->preemptions);
    picked = sim_choose(count + may_pass);
    if (sim.fault) {
        go_home();
        return;
    }
    if (picked == count) {
        sim.hurried += count > 0;
        pass_time(moment);
        schedule(false);
        return;
    }
    sim.preempted += free_to_stay && picked > 0;
    switch_to(order[picked]);
}

void sim_step(void)
{
    schedule(true);
}

/* ---- What threads wait for ------------------------------------------------------------------- */

static void take_lock(pthread_mutex_t *m)
{
    while (sim.owner >= 0) {
        sim.state[sim.self] = BLOCKED;
        sim.on[sim.self] = m;
        schedule(false);
    }
    sim.state[sim.self] = READY;
    sim.owner = sim.self;
}

int sim_lock(pthread_mutex_t *m)
{
    sim_step();
    take_lock(m);
    return 0;
}

int sim_unlock(pthread_mutex_t *m)
{
    (void)m;
    if (sim.owner != sim.self)
        sim_fault("unlocks what it has not");
    sim.owner = -1;
    return 0;
}

static void sleep_on(const void *what, dibs__deadline until)
{
    sim.state[sim.self] = until <= sim.now ? READY : ASLEEP;
    sim.on[sim.self] = what;
    sim.until[sim.self] = until;
    schedule(false);
    sim.on[sim.self] = NULL;
}

void sim_cond_sleep(pthread_cond_t *c, pthread_mutex_t *m, const dibs__env *env,
                    dibs__deadline until)
{
    (void)env;
    sim_unlock(m);
    sleep_on(c, until);
    take_lock(m);
}

int sim_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
    sim_cond_sleep(c, m, NULL, DIBS__NEVER);
    return 0;
}

int sim_cond_signal(pthread_cond_t *c)
{
    for (int i = 0; i < sim.plan->threads; i++)
        if (sim.state[i] == ASLEEP && sim.on[i] == c)
            sim.state[i] = READY;
    return 0;
}

int sim_word_sleep(_Atomic int *word, int value, const dibs__env *env, dibs__deadline until)
{
    (void)env;
    sim_step();
    if (*word == value && until > sim.now)
        sleep_on(word, until);
    return *word;
}

void sim_word_wake(_Atomic int *word)
{
    for (int i = 0; i < sim.plan->threads; i++)
        if (sim.state[i] == ASLEEP && sim.on[i] == word)
            sim.state[i] = READY;
}

/* ---- The search ------------------------------------------------------------------------------ */

static void thread_main(int who)
{
    sim.plan->thread(who);
    sim.state[who] = THROUGH;
    for (int i = 0; i < sim.plan->threads; i++) {
        if (sim.state[i] != THROUGH) {
            schedule(false);
            break;
        }
    }
    go_home();
}

static void run_once(void)
{
    sim.made = sim.preempted = sim.hurried = 0;
    sim.owner = -1;
    sim.now = 1000000;
    sim.fault = NULL;
    sim.plan->begin();
    for (int i = 0; i < sim.plan->threads; i++) {
        sim.state[i] = READY;
        sim.on[i] = NULL;
        getcontext(&sim.thread[i]);
        sim.thread[i].uc_stack.ss_sp = sim.stack[i];
        sim.thread[i].uc_stack.ss_size = STACK;
        sim.thread[i].uc_link = &sim.home;
        makecontext(&sim.thread[i], (void (*)(void))thread_main, 1, i);
    }
    sim.self = -1;
    switch_to(sim_choose(sim.plan->threads));
    for (int i = 0; i < sim.plan->threads && !sim.fault; i++)
        if (sim.state[i] != THROUGH)
            sim_fault("a thread is not through");
    if (!sim.fault)
        sim.plan->end();
}

/* The next list of choices; false: that was the last. */
static bool advance(void)
{
    sim.known = sim.made;
    while (sim.known > 0) {
        int i = sim.known - 1;
        if (++sim.choice[i] < sim.options[i])
            return true;
        sim.known--;
    }
    return false;
}

const char *sim_search(const sim_plan *plan, long *runs)
{
    memset(&sim, 0, sizeof sim);
    sim.plan = plan;
    for (int i = 0; i < plan->threads; i++)
        sim.stack[i] = malloc(STACK);
    *runs = 0;
    do {
        run_once();
        if (++*runs > plan->most)
            sim_fault("the search has no end");
    } while (!sim.fault && advance());
    for (int i = 0; i < plan->threads; i++)
        free(sim.stack[i]);
    return sim.fault;
}

static void nap(void *ctx, int64_t span)
{
    (void)ctx;
    (void)span;
    sim_step();
}

const dibs__env sim_env = {.boottime = boottime, .random = fill, .sleep = nap};
