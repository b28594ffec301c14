#define _GNU_SOURCE
#include "support/still.h"

#include "core/error.h"
#include "support/alloc.h"
#include "support/calls.h"
#include "support/env.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLIENTS 8
#define TWISTS  64
#define KEPT    32

typedef struct client {
    dibs *d;
    dibs__engine *engine;
    dibs__engine_class class;
    twist twists[TWISTS];
    int planned, used;
    still_sent sent[KEPT];
    int count;
} client;

static struct {
    sim_env sim;
    client clients[CLIENTS + 1]; /* the last one stays unused */
    int64_t when;                /* 0: nothing is to happen */
    void (*then)(void);
    int64_t slept;
    void (*meanwhile)(void);
    int locks; /* until `before_lock` */
    void (*before_lock)(void);
    const pthread_cond_t *woken; /* the last one */
    long live;
} world;

static const dibs__engine_class *real;

/* ---- Time ------------------------------------------------------------------------------------ */

int64_t still_now(void)
{
    return world.sim.boottime;
}

int64_t still_wall(void)
{
    return world.sim.wall;
}

void still_at(int64_t when, void (*then)(void))
{
    world.when = when;
    world.then = then;
}

void still_pass(int64_t span)
{
    int64_t end = still_now() + span;

    if (world.when && world.when <= end) {
        sim_env_pass(&world.sim, world.when > still_now() ? world.when - still_now() : 0);
        world.when = 0;
        world.then();
    }
    if (end > still_now())
        sim_env_pass(&world.sim, end - still_now());
}

static void pause_here(void *ctx, int64_t span)
{
    (void)ctx;
    world.slept += span;
    still_pass(span);
}

int64_t still_slept(void)
{
    return world.slept;
}

/* ---- Commands -------------------------------------------------------------------------------- */

static client *client_of(const dibs *d)
{
    for (int i = 0; i < CLIENTS; i++)
        if (world.clients[i].d == d)
            return &world.clients[i];
    fail_msg("not a handle of this world");
    return NULL;
}

void still_twist(dibs *d, twist t)
{
    client *c = client_of(d);

    if (c->used == c->planned)
        still_heal(d);
    assert_true(c->planned < TWISTS);
    c->twists[c->planned++] = t;
}

void still_heal(dibs *d)
{
    client *c = client_of(d);

    c->planned = c->used = 0;
}

int still_count(const dibs *d)
{
    return client_of(d)->count;
}

const still_sent *still_last(const dibs *d, int before)
{
    client *c = client_of(d);

    assert_in_range(before, 0, KEPT - 1);
    assert_true(c->count > before);
    return &c->sent[(c->count - 1 - before) % KEPT];
}

static void note(client *c, const char *key, const dibs__cell_command *command, bool notify,
                 dibs__deadline until)
{
    still_sent *s = &c->sent[c->count++ % KEPT];

    *s = (still_sent){.at = still_now(), .until = until, .notify = notify, .command = *command};
    snprintf(s->key, sizeof s->key, "%s", key);
    snprintf(s->stamp, sizeof s->stamp, "%s", command->stamp ? command->stamp : "");
    snprintf(s->request, sizeof s->request, "%s", command->request ? command->request : "");
    s->command.stamp = command->stamp ? s->stamp : NULL;
    s->command.request = command->request ? s->request : NULL;
    if (command->size && command->size <= sizeof s->data)
        memcpy(s->data, command->data, command->size);
    s->command.data = s->data;
}

static void put_answer(const dibs__cell_reply *answer, dibs__cell_reply *out)
{
    free(out->data);
    *out = *answer;
    if (!answer->data)
        return;
    out->data = malloc(answer->size + 1);
    assert_non_null(out->data);
    memcpy(out->data, answer->data, answer->size);
    ((char *)out->data)[answer->size] = '\0';
}

static dibs_status cell(dibs__engine *e, const char *key, const dibs__cell_command *command,
                        bool notify, dibs__deadline until, dibs__cell_reply *out, dibs_error *err)
{
    static const dibs__cell_reply zero;
    client *c = world.clients;
    dibs_status status = DIBS_OK;
    twist t = {0};

    assert_memory_equal(out, &zero, sizeof zero); /* whatever an engine leaves as it is */
    while (c->engine != e)
        c++;
    note(c, key, command, notify, until);
    if (c->used < c->planned) {
        t = c->twists[c->used];
        c->used += !t.always;
    }
    if (t.before)
        t.before();
    if (!t.stopped)
        status = real->cell(e, key, command, notify, until, out, err);
    still_pass(STILL_ANSWER + t.takes);
    if (t.then)
        t.then();
    if (t.answer)
        put_answer(t.answer, out);
    if (t.status == DIBS_OK)
        return status;
    free(out->data);
    *out =
        (dibs__cell_reply){.verdict = DIBS__CELL_ABSENT, .version = 99}; /* nobody may look at it */
    return dibs__fail(err, t.status, "twisted");
}

/* ---- The mutex, and waiting for others -------------------------------------------------------- */

int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
    int wrong;

    if (world.locks > 0 && --world.locks == 0)
        world.before_lock();
    wrong = __real_pthread_mutex_lock(m);

    if (wrong)
        abort(); /* this thread has it already */
    return wrong;
}

void still_before_lock(int n, void (*deed)(void))
{
    world.locks = n;
    world.before_lock = deed;
}

int __real_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
    int wrong = __real_pthread_mutex_unlock(m);

    if (wrong)
        abort(); /* this thread has it not */
    return wrong;
}

int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
    void (*deed)(void) = world.meanwhile;

    if (!deed)
        abort();
    world.meanwhile = NULL;
    world.woken = NULL;
    pthread_mutex_unlock(m);
    deed();
    pthread_mutex_lock(m);
    if (world.woken != c)
        abort(); /* nobody has woken it */
    return 0;
}

int __real_pthread_cond_broadcast(pthread_cond_t *c);
int __wrap_pthread_cond_broadcast(pthread_cond_t *c);
int __wrap_pthread_cond_broadcast(pthread_cond_t *c)
{
    world.woken = c;
    return __real_pthread_cond_broadcast(c);
}

void still_meanwhile(void (*deed)(void))
{
    world.meanwhile = deed;
}

/* From now on it notices both. */
static void watch_mutex(pthread_mutex_t *m)
{
    pthread_mutexattr_t strict;

    pthread_mutexattr_init(&strict);
    pthread_mutexattr_settype(&strict, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_destroy(m);
    pthread_mutex_init(m, &strict);
    pthread_mutexattr_destroy(&strict);
}

/* ---- Handles --------------------------------------------------------------------------------- */

dibs *still_open(const dibs_options *options)
{
    client *c = world.clients;
    dibs_error err = {0};

    while (c->d)
        c++;
    assert_true(c < world.clients + CLIENTS);
    memset(c, 0, sizeof *c);
    if (dibs__open_in(&world.sim.env, "memory:still", options, &c->d, &err) != DIBS_OK)
        fail_msg("%s", err.message);
    c->engine = c->d->engine;
    real = c->d->class;
    c->class = *real;
    c->class.cell = cell;
    c->class.cell_reap = NULL;
    c->class.watch = NULL;
    c->d->class = &c->class;
    watch_mutex(&c->d->mutex);
    c->d->keeper_runs = true; /* no thread of it is started */
    c->d->armed = 0;          /* nor woken */
    return c->d;
}

void still_close(dibs *d)
{
    client *c = client_of(d);

    assert_int_equal(d->users, 0); /* each call has been left */
    d->keeper_runs = false;
    c->d = NULL;
    dibs_close(d);
    c->engine = NULL;
}

int still_begin(void **state)
{
    (void)state;
    memset(&world, 0, sizeof world);
    world.live = alloc_live();
    sim_env_init(&world.sim, 1);
    world.sim.env.sleep = pause_here;
    return 0;
}

int still_end(void **state)
{
    (void)state;
    for (int i = 0; i < CLIENTS; i++)
        if (world.clients[i].d)
            still_close(world.clients[i].d);
    if (!alloc_balances || alloc_live() == world.live)
        return 0;
    print_error("%ld allocations are left\n", alloc_live() - world.live);
    return -1;
}

/* ---- The keeper ------------------------------------------------------------------------------ */

/* The first in one of these heaps, if it is due. */
static bool run_first(dibs *d, dibs__heap *heap)
{
    dibs__due *top = dibs__heap_top(heap);
    dibs__keeper_task *task = top ? DIBS__FROM(dibs__keeper_task, due, top) : NULL;

    if (!task || top->key > still_now())
        return false;
    dibs__heap_remove(heap, top);
    task->run(d, task, still_now());
    return true;
}

bool still_serve(dibs *d)
{
    bool done;

    pthread_mutex_lock(&d->mutex);
    done = run_first(d, &d->ends) || dibs__news_run(d) || run_first(d, &d->renewals) ||
           run_first(d, &d->maintenance);
    pthread_mutex_unlock(&d->mutex);
    return done;
}

dibs__deadline still_next(const dibs *d)
{
    const dibs__heap *heaps[] = {&d->ends, &d->renewals, &d->maintenance};
    dibs__deadline next = d->news.first ? still_now() : DIBS__NEVER;

    for (int i = 0; i < 3; i++) {
        dibs__due *top = dibs__heap_top(heaps[i]);
        next = dibs__sooner(next, top ? top->key : DIBS__NEVER);
    }
    return next;
}

void still_serve_until(dibs *d, int64_t when)
{
    while (still_serve(d) || still_next(d) <= when)
        if (still_next(d) > still_now() && still_next(d) <= when)
            still_pass(still_next(d) - still_now());
    if (still_now() < when)
        still_pass(when - still_now());
}
