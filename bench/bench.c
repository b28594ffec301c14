/* Workers that take and release locks for a while, or do one of the other operations.
 *
 *   a   one worker, a lock of its own                 pairs per second, latency of the pair
 *   b   32 workers, a lock each                       pairs per second, latency of the pair
 *   c   32 workers on one lock, nothing inside        changes of owner per second, latency of the wait
 *   d   50 workers, each 100 deductions from a stock  deductions per second, latency of the wait
 *   f   8 workers: once, counter take, token          operations per second, latency of the operation
 *
 * Workers are threads that share one handle (shape=shared) or processes with a handle each
 * (shape=each). Exclusion, fences and the stock are checked while the clock runs. */
#include "bench.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ERROR 100 /* a worker stops after so many failed calls */

typedef struct worker {
    long turns, errors;
    double last, cpu, memory;
    bench_spread spread;
} worker;

typedef struct run {
    const bench_peer *peer;
    const bench_plan *plan;
    void *shared;
    bench_section *sections; /* shared memory, as the workers */
    worker *workers;
} run;

/* What a worker has for itself. */
typedef struct bench_worker {
    const run *r;
    worker *w;
    int id;
    char key[32];
    bench_section *section;
    void *client;
    bench_stock *stock;
    double end;
} bench_worker;

static bool is(const run *r, char scenario)
{
    return r->plan->scenario[0] == scenario;
}

static bool one_lock(const run *r)
{
    return is(r, 'c') || is(r, 'd');
}

/* ---- One turn -------------------------------------------------------------------------------- */

/* Read, then write what was read less one: only right when nobody is between the two. */
static void deduct(bench_worker *d)
{
    long value = bench_stock_read(d->stock);

    if (value < 0 || !bench_stock_write(d->stock, value - 1))
        d->w->errors++;
}

static void take_turn(bench_worker *d)
{
    const run *r = d->r;
    uint64_t fence = 0;
    double asked = bench_now(), had, done;

    if (r->peer->acquire(d->client, d->key, &fence) != 0) {
        d->w->errors++;
        return;
    }
    had = bench_now();
    bench_section_in(d->section, d->id, fence, had < d->end);
    if (d->stock)
        deduct(d);
    bench_section_out(d->section, d->id);
    if (r->peer->release(d->client, d->key) != 0)
        d->w->errors++;
    done = bench_now();
    if (done > d->end && !d->stock)
        return;
    d->w->turns++;
    d->w->last = done;
    bench_spread_add(&d->w->spread, (one_lock(r) ? had : done) - asked);
}

/* ---- One worker ------------------------------------------------------------------------------ */

static int warm_turns(const run *r)
{
    return is(r, 'a') ? 100 : is(r, 'b') ? 3 : 0;
}

static void open_worker(bench_worker *d)
{
    const run *r = d->r;
    int warm_up = warm_turns(r);
    uint64_t fence;

    snprintf(d->key, sizeof d->key, "bench:%c:%d", r->plan->scenario[0], one_lock(r) ? 0 : d->id);
    d->section = &r->sections[one_lock(r) ? 0 : d->id];
    d->client = r->peer->open(r->shared, r->plan, d->key);
    if (is(r, 'd'))
        d->stock = bench_stock_open(r->plan->stock_port);
    if (!d->client || (is(r, 'd') && !d->stock))
        d->w->errors = MAX_ERROR;
    for (int i = 0; i < warm_up && d->w->errors == 0; i++)
        if (r->peer->acquire(d->client, d->key, &fence) != 0 ||
            r->peer->release(d->client, d->key) != 0)
            d->w->errors++;
}

static void work(bench_crew *crew, void *arg, int id)
{
    const run *r = arg;
    worker *w = &r->workers[id];
    bench_worker d = {.r = r, .w = w, .id = id};
    long limit = is(r, 'd') ? r->plan->rounds : INT64_MAX;

    open_worker(&d);
    w->cpu = -bench_cpu();
    d.end = bench_ready(crew) + r->plan->seconds;
    while (w->turns < limit && w->errors < MAX_ERROR && bench_now() < d.end)
        take_turn(&d);
    w->cpu += bench_cpu();
    w->memory = bench_memory();
    bench_finished(crew);
    if (d.client)
        r->peer->close(d.client);
    bench_stock_close(d.stock);
}

/* ---- The figures ----------------------------------------------------------------------------- */

typedef struct totals {
    long turns, errors, most, least, changes, violations;
    double elapsed, cpu, memory;
    bench_spread spread;
} totals;

static void add_up(const run *r, double start, totals *t)
{
    int count = r->plan->workers;

    *t = (totals){.least = INT64_MAX};
    for (int i = 0; i < count; i++) {
        const worker *w = &r->workers[i];
        t->turns += w->turns;
        t->errors += w->errors;
        t->most = w->turns > t->most ? w->turns : t->most;
        t->least = w->turns < t->least ? w->turns : t->least;
        t->elapsed = w->last - start > t->elapsed ? w->last - start : t->elapsed;
        /* Threads all see what the process used. */
        t->cpu = r->plan->each ? t->cpu + w->cpu : w->cpu > t->cpu ? w->cpu : t->cpu;
        t->memory = r->plan->each ? t->memory + w->memory : w->memory;
        t->changes += atomic_load(&r->sections[i].changes);
        t->violations += atomic_load(&r->sections[i].violations);
        bench_spread_merge(&t->spread, &w->spread);
    }
    if (!is(r, 'd'))
        t->elapsed = r->plan->seconds;
}

static void print_line(const run *r, const totals *t, long stock_left)
{
    const bench_plan *p = r->plan;
    long operations = is(r, 'c') ? t->changes : t->turns;

    printf("{\"peer\": \"%s\", \"title\": \"%s\", \"scenario\": \"%s\", \"shape\": \"%s\", "
           "\"workers\": %d, \"warm\": %d, ",
           r->peer->id, r->peer->title, p->scenario, p->each ? "each" : "shared", p->workers,
           p->workers * warm_turns(r));
    printf("\"turns\": %ld, \"changes\": %ld, \"seconds\": %.3f, \"rate\": %.1f, ", t->turns,
           t->changes, t->elapsed, t->elapsed > 0 ? (double)operations / t->elapsed : 0);
    printf("\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, \"most\": %ld, \"least\": %ld, ",
           bench_spread_us(&t->spread, 0.5), bench_spread_us(&t->spread, 0.99),
           bench_spread_us(&t->spread, 1), t->most, t->least);
    printf("\"cpu_us\": %.2f, \"memory_kb\": %.0f, \"errors\": %ld, \"violations\": %ld",
           operations ? t->cpu * 1e6 / (double)operations : 0, t->memory, t->errors, t->violations);
    if (is(r, 'd'))
        printf(", \"stock_left\": %ld, \"exact\": %s, \"complete\": %s", stock_left,
               stock_left == (long)p->workers * p->rounds - t->turns ? "true" : "false",
               stock_left == 0 ? "true" : "false");
    printf("}\n");
}

static int report(const run *r, double start)
{
    totals t;
    long stock_left = 0;
    bool wrong;

    add_up(r, start, &t);
    if (r->peer->end && r->peer->end(r->shared, r->plan, t.turns) != 0)
        t.violations++;
    wrong = t.errors > 0 || t.violations > 0 || t.turns == 0;
    if (is(r, 'd')) {
        bench_stock *stock = bench_stock_open(r->plan->stock_port);
        stock_left = stock ? bench_stock_read(stock) : -1;
        wrong = wrong || stock_left != (long)r->plan->workers * r->plan->rounds - t.turns;
        bench_stock_close(stock);
    }
    print_line(r, &t, stock_left);
    return wrong ? 1 : 0;
}

static bool fill_stock(const bench_plan *plan)
{
    bench_stock *stock = bench_stock_open(plan->stock_port);
    bool filled = stock && bench_stock_write(stock, (long)plan->workers * plan->rounds);

    bench_stock_close(stock);
    return filled;
}

int bench_workers(const bench_peer *peer, const bench_plan *plan)
{
    run r = {.peer = peer, .plan = plan};
    double start;

    r.sections = bench_shared((size_t)plan->workers * sizeof *r.sections);
    r.workers = bench_shared((size_t)plan->workers * sizeof *r.workers);
    if ((is(&r, 'd') && !fill_stock(plan)) || (peer->setup && !(r.shared = peer->setup(plan))))
        return 1;
    start = bench_crew_run(plan->workers, plan->each, work, &r);
    return report(&r, start);
}
