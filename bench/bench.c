/* Scenarios a to d: worker threads that take and release locks for a while.
 *
 *   a   one worker, a lock of its own                 pairs a second, latency of the pair
 *   b   32 workers, a lock each                       pairs a second, latency of the pair
 *   c   32 workers on one lock, nothing inside        changes of owner a second, latency of the
 * wait d   50 workers, each 100 deductions from a stock  deductions a second, latency of the wait
 *
 * All workers open and warm up, then start together. Whoever is inside a lock checks that it is
 * alone there and that its fence is higher than the last one seen inside. */
#include "bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES   4000000 /* latencies kept in all */
#define MAX_ERROR 100     /* a worker stops after so many failed calls */
#define CACHELINE 64

/* What the holder of a lock sees and leaves behind. */
typedef struct section {
    _Alignas(CACHELINE) atomic_int inside;
    _Atomic uint64_t fence;
    atomic_int owner;
    atomic_long changes;
} section;

typedef struct run {
    const bench_peer *peer;
    const bench_plan *plan;
    void *shared;
    section *sections;
    pthread_barrier_t barrier;
    double start, end;
    double cpu;
    atomic_long violations;
} run;

typedef struct worker {
    run *r;
    pthread_t thread;
    int id;
    char key[32];
    section *section;
    void *client;
    bench_stock *stock;
    long turns, errors;
    double last;
    float *samples;
    long sample_count, sample_max;
} worker;

static bool is(const run *r, char scenario)
{
    return r->plan->scenario[0] == scenario;
}

static bool own_lock(const run *r)
{
    return is(r, 'a') || is(r, 'b');
}

/* ---- One turn
 * -------------------------------------------------------------------------------------- */

static void go_in(worker *w, uint64_t fence, bool counted)
{
    section *s = w->section;

    if (atomic_exchange(&s->inside, w->id + 1) != 0)
        atomic_fetch_add(&w->r->violations, 1);
    if (fence != 0 && fence <= atomic_exchange(&s->fence, fence))
        atomic_fetch_add(&w->r->violations, 1);
    if (atomic_exchange(&s->owner, w->id + 1) != w->id + 1 && counted)
        atomic_fetch_add(&s->changes, 1);
}

static void go_out(worker *w)
{
    if (atomic_exchange(&w->section->inside, 0) != w->id + 1)
        atomic_fetch_add(&w->r->violations, 1);
}

/* Read, then write what was read less one: only right when nobody is between the two. */
static void deduct(worker *w)
{
    long value = bench_stock_read(w->stock);

    if (value < 0 || !bench_stock_write(w->stock, value - 1))
        w->errors++;
}

static void keep_sample(worker *w, double seconds)
{
    if (w->sample_count < w->sample_max)
        w->samples[w->sample_count++] = (float)(seconds * 1e6);
}

/* False when the lock was not had. */
static bool take_turn(worker *w)
{
    run *r = w->r;
    uint64_t fence = 0;
    double asked = bench_now(), had, done;

    if (r->peer->acquire(w->client, w->key, &fence) != 0) {
        w->errors++;
        return false;
    }
    had = bench_now();
    go_in(w, fence, had < r->end);
    if (w->stock)
        deduct(w);
    go_out(w);
    if (r->peer->release(w->client, w->key) != 0)
        w->errors++;
    done = bench_now();
    if (done > r->end && !is(r, 'd'))
        return true;
    w->turns++;
    w->last = done;
    keep_sample(w, (own_lock(r) ? done : had) - asked);
    return true;
}

/* ---- One worker
 * -------------------------------------------------------------------------------------- */

static int warm_turns(const run *r)
{
    return is(r, 'a') ? 100 : is(r, 'b') ? 3 : 0;
}

static void open_worker(worker *w)
{
    run *r = w->r;
    int warm_up = warm_turns(r);
    uint64_t fence;

    w->client = r->peer->open(r->shared, r->plan, w->key);
    if (is(r, 'd'))
        w->stock = bench_stock_open(r->plan->stock_port);
    if (!w->client || (is(r, 'd') && !w->stock))
        w->errors = MAX_ERROR;
    for (int i = 0; i < warm_up && w->errors == 0; i++)
        if (r->peer->acquire(w->client, w->key, &fence) != 0 ||
            r->peer->release(w->client, w->key) != 0)
            w->errors++;
}

static void *work(void *arg)
{
    worker *w = arg;
    run *r = w->r;
    long limit = is(r, 'd') ? r->plan->rounds : INT64_MAX;

    open_worker(w);
    pthread_barrier_wait(&r->barrier); /* all are ready */
    pthread_barrier_wait(&r->barrier); /* the clock has started */
    while (w->turns < limit && w->errors < MAX_ERROR && bench_now() < r->end)
        take_turn(w);
    pthread_barrier_wait(&r->barrier);
    if (w->client)
        r->peer->close(w->client);
    bench_stock_close(w->stock);
    return NULL;
}

static void prepare_worker(run *r, worker *w, int id)
{
    int lock = own_lock(r) ? id : id % r->plan->locks;

    w->r = r;
    w->id = id;
    snprintf(w->key, sizeof w->key, "bench:%c:%d", r->plan->scenario[0], lock);
    w->section = &r->sections[lock];
    w->sample_max = SAMPLES / r->plan->workers;
    w->samples = malloc((size_t)w->sample_max * sizeof *w->samples);
    if (!w->samples)
        w->sample_max = 0;
}

static void run_workers(run *r, worker *workers)
{
    int count = r->plan->workers;
    double cpu;

    pthread_barrier_init(&r->barrier, NULL, (unsigned)count + 1);
    for (int i = 0; i < count; i++) {
        prepare_worker(r, &workers[i], i);
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            fprintf(stderr, "bench: cannot start %d threads\n", count);
            exit(1);
        }
    }
    pthread_barrier_wait(&r->barrier);
    r->start = bench_now();
    r->end = r->start + r->plan->seconds;
    cpu = bench_cpu();
    pthread_barrier_wait(&r->barrier);
    pthread_barrier_wait(&r->barrier);
    r->cpu = bench_cpu() - cpu;
    for (int i = 0; i < count; i++)
        pthread_join(workers[i].thread, NULL);
    pthread_barrier_destroy(&r->barrier);
}

/* ---- The figures
 * --------------------------------------------------------------------------------------- */

typedef struct totals {
    long turns, errors, most, least, changes, sample_count;
    double elapsed;
    float *samples;
} totals;

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return x < y ? -1 : x > y;
}

static void add_worker(totals *t, const worker *w, double start)
{
    t->turns += w->turns;
    t->errors += w->errors;
    t->most = w->turns > t->most ? w->turns : t->most;
    t->least = w->turns < t->least ? w->turns : t->least;
    if (w->last - start > t->elapsed)
        t->elapsed = w->last - start;
    if (t->samples && w->sample_count > 0) {
        memcpy(t->samples + t->sample_count, w->samples,
               (size_t)w->sample_count * sizeof *w->samples);
        t->sample_count += w->sample_count;
    }
}

static void add_up(const run *r, const worker *workers, totals *t)
{
    *t = (totals){.least = INT64_MAX};
    t->samples = malloc(SAMPLES * sizeof *t->samples);
    for (int i = 0; i < r->plan->workers; i++)
        add_worker(t, &workers[i], r->start);
    for (int i = 0; i < r->plan->locks; i++)
        t->changes += atomic_load(&r->sections[i].changes);
    if (!is(r, 'd'))
        t->elapsed = r->plan->seconds;
    if (t->sample_count > 0)
        qsort(t->samples, (size_t)t->sample_count, sizeof *t->samples, by_value);
}

static double quantile(const totals *t, long percent)
{
    return t->sample_count > 0 ? (double)t->samples[(t->sample_count - 1) * percent / 100] : 0;
}

static void print_line(const run *r, const totals *t, long stock_left)
{
    const bench_plan *p = r->plan;
    long operations = is(r, 'c') ? t->changes : t->turns;

    printf("{\"peer\": \"%s\", \"title\": \"%s\", \"scenario\": \"%s\", \"workers\": %d, "
           "\"locks\": %d, \"warm\": %d, ",
           r->peer->id, r->peer->title, p->scenario, p->workers, p->locks,
           p->workers * warm_turns(r));
    printf("\"turns\": %ld, \"changes\": %ld, \"seconds\": %.3f, \"rate\": %.1f, ", t->turns,
           t->changes, t->elapsed, t->elapsed > 0 ? (double)operations / t->elapsed : 0);
    printf("\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, \"most\": %ld, \"least\": %ld, ",
           quantile(t, 50), quantile(t, 99), quantile(t, 100), t->most, t->least);
    printf("\"cpu_us\": %.2f, \"errors\": %ld, \"violations\": %ld",
           t->turns ? r->cpu * 1e6 / (double)t->turns : 0, t->errors, atomic_load(&r->violations));
    if (is(r, 'd'))
        printf(", \"stock_left\": %ld, \"exact\": %s", stock_left,
               stock_left == (long)p->workers * p->rounds - t->turns ? "true" : "false");
    printf("}\n");
}

static int report(const run *r, const worker *workers)
{
    totals t;
    long stock_left = 0;
    bool wrong;

    add_up(r, workers, &t);
    wrong = t.errors > 0 || atomic_load(&r->violations) > 0;
    if (is(r, 'd')) {
        bench_stock *stock = bench_stock_open(r->plan->stock_port);
        stock_left = stock ? bench_stock_read(stock) : -1;
        wrong = wrong || stock_left != (long)r->plan->workers * r->plan->rounds - t.turns;
        bench_stock_close(stock);
    }
    print_line(r, &t, stock_left);
    free(t.samples);
    return wrong ? 1 : 0;
}

static bool fill_stock(const bench_plan *plan)
{
    bench_stock *stock = bench_stock_open(plan->stock_port);
    bool filled = stock && bench_stock_write(stock, (long)plan->workers * plan->rounds);

    bench_stock_close(stock);
    return filled;
}

int bench_threads(const bench_peer *peer, const bench_plan *plan)
{
    bench_plan p = *plan;
    run r = {.peer = peer, .plan = &p};
    worker *workers = calloc((size_t)p.workers, sizeof *workers);
    int code = 1;

    if (own_lock(&r))
        p.locks = p.workers;
    r.sections = aligned_alloc(CACHELINE, (size_t)p.locks * sizeof *r.sections);
    if (!workers || !r.sections || (is(&r, 'd') && !fill_stock(&p)))
        goto out;
    memset(r.sections, 0, (size_t)p.locks * sizeof *r.sections);
    if (peer->setup && !(r.shared = peer->setup(&p)))
        goto out;
    run_workers(&r, workers);
    code = report(&r, workers);
    if (peer->teardown)
        peer->teardown(r.shared);
out:
    for (int i = 0; workers && i < p.workers; i++)
        free(workers[i].samples);
    free(workers);
    free(r.sections);
    return code;
}
