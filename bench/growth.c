/* Scenario e, growth: does the cost of one thing depend on how many others there are?
 *
 *   wait   N requests wait for one lock, spread over up to 100 processes with a handle each. Each that is
 *          served enters again behind the others and releases, so that N stays: hand-overs per second.
 *   hold   N locks are held and renewed by the keeper at a lease of three times `seconds`: client CPU and memory for each
 *          lock, over one third of a lease, in which each is renewed once. A loss is a violation.
 *   idle   makes N locks that nobody holds, for listing.py. */
#include "bench.h"

#include <dibs.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROCESSES 100
#define TAKERS    8  /* threads that take the locks of `hold` */
#define WARM      64 /* pairs of each before it counts */
#define NAME      "bench:held:%08ld"
#define QUEUE     "bench:queue"

/* ---- Requests in the queue ------------------------------------------------------------------- */

typedef struct waiter {
    long served, errors, disorder; /* disorder: served before one of its process that came first */
    double cpu;
    bench_spread spread; /* from a release to the next grant */
} waiter;

/* In memory that all processes share. */
typedef struct queue {
    const bench_plan *plan;
    int processes;
    atomic_bool held; /* from the first worker: the others may enter the queue */
    _Atomic double released;
    bench_section section;
    waiter waiters[PROCESSES + 1];
} queue;

/* One process's part. */
typedef struct part {
    queue *q;
    waiter *w;
    int id;
    dibs *handle;
    bool first_come;
    long entered, came; /* requests, in order */
    double end;
} part;

static void fail(part *p, const char *why)
{
    fprintf(stderr, "bench: %s\n", why);
    p->w->errors++;
}

static void enter(part *p)
{
    dibs_error err = {0};
    dibs_request r = {.op = DIBS_OP_LOCK, .name = QUEUE, .user = (void *)p->entered};

    p->entered++;
    if (dibs_start(p->handle, &r, NULL, &err) != DIBS_OK)
        fail(p, err.message);
}

/* A request that was started has not entered the queue yet. */
static void enter_all(part *p, long count)
{
    dibs_stats s = {0};
    double end = bench_now() + 60;

    for (long i = 0; i < count && p->w->errors == 0; i++)
        enter(p);
    for (; s.waiting < (uint64_t)count && p->w->errors == 0; usleep(1000)) {
        dibs_stats_read(p->handle, &s, sizeof s);
        if (bench_now() > end)
            fail(p, "requests do not enter the queue");
    }
}

static void served(part *p, dibs_outcome *o)
{
    queue *q = p->q;
    double now = bench_now();
    dibs_error err = {0};

    if (o->err.status != DIBS_OK) {
        fail(p, o->err.message);
        return;
    }
    if (p->first_come && (long)o->user != p->came++)
        p->w->disorder++;
    bench_section_in(&q->section, p->id, dibs_grant_fence(o->grant), now < p->end);
    if (now < p->end) {
        bench_spread_add(&p->w->spread, now - atomic_load(&q->released));
        p->w->served++;
        enter(p);
    }
    bench_section_out(&q->section, p->id);
    atomic_store(&q->released, bench_now());
    if (dibs_unlock(&o->grant, &err) != DIBS_OK)
        fail(p, err.message);
}

static void serve(part *p)
{
    struct pollfd fd = {.fd = dibs_fd(p->handle), .events = POLLIN};
    dibs_outcome o;

    for (double left; (left = p->end - bench_now()) > 0 && p->w->errors == 0;) {
        poll(&fd, 1, (int)(left * 1000) + 1);
        while (p->w->errors == 0 && dibs_take(p->handle, &o))
            served(p, &o);
    }
}

/* Holds the lock until everybody is in the queue. */
static void hold_first(bench_crew *crew, part *p)
{
    dibs_grant *first = NULL;
    dibs_error err = {0};

    if (dibs_lock(p->handle, QUEUE, NULL, &first, &err) != DIBS_OK)
        fail(p, err.message);
    atomic_store(&p->q->held, true);
    bench_ready(crew);
    atomic_store(&p->q->released, bench_now());
    if (first && dibs_unlock(&first, &err) != DIBS_OK)
        fail(p, err.message);
}

static void wait_in_queue(bench_crew *crew, part *p)
{
    long all = p->q->plan->count;
    int i = p->id - 1, n = p->q->processes;

    while (!atomic_load(&p->q->held))
        usleep(1000);
    enter_all(p, all * (i + 1) / n - all * i / n);
    p->end = bench_ready(crew) + p->q->plan->seconds;
    p->w->cpu = -bench_cpu();
    serve(p);
    p->w->cpu += bench_cpu();
}

/* Whoever still waits at the end leaves the queue when its handle is closed. */
static void work_in_queue(bench_crew *crew, void *arg, int id)
{
    queue *q = arg;
    part p = {.q = q, .w = &q->waiters[id], .id = id, .handle = bench_open_dibs(q->plan)};

    if (!p.handle)
        exit(1);
    p.first_come = dibs_engine_of(p.handle)->first_come;
    if (id == 0)
        hold_first(crew, &p);
    else
        wait_in_queue(crew, &p);
    bench_finished(crew);
    dibs_close(p.handle);
}

static int report_queue(const queue *q, double entering)
{
    const bench_plan *plan = q->plan;
    waiter sum = {0};
    long violations = atomic_load(&q->section.violations);
    long most = 0, least = plan->count ? 1000000000 : 0;

    for (int i = 0; i <= q->processes; i++) {
        const waiter *w = &q->waiters[i];
        sum.served += w->served;
        sum.errors += w->errors;
        sum.disorder += w->disorder;
        sum.cpu += w->cpu;
        bench_spread_merge(&sum.spread, &w->spread);
        most = w->served > most ? w->served : most;
        least = i > 0 && w->served < least ? w->served : least;
    }
    printf("{\"peer\": \"dibs\", \"title\": \"dibs\", \"scenario\": \"wait\", \"shape\": \"each\", "
           "\"count\": %ld, \"processes\": %d, \"turns\": %ld, \"seconds\": %.3f, \"rate\": %.1f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"most\": %ld, \"least\": %ld, \"cpu_us\": %.2f, "
           "\"entering_s\": %.2f, \"errors\": %ld, \"disorder\": %ld, \"violations\": %ld}\n",
           plan->count, q->processes, sum.served, plan->seconds, (double)sum.served / plan->seconds,
           bench_spread_us(&sum.spread, 0.5), bench_spread_us(&sum.spread, 0.99), most, least,
           sum.served ? sum.cpu * 1e6 / (double)sum.served : 0, entering, sum.errors, sum.disorder,
           violations);
    return sum.errors || sum.disorder || violations || sum.served == 0 ? 1 : 0;
}

int bench_wait(const bench_plan *plan)
{
    queue *q = bench_shared(sizeof *q);
    double began = bench_now();

    q->plan = plan;
    q->processes = plan->count < PROCESSES ? (int)plan->count : PROCESSES;
    return report_queue(q, bench_crew_run(q->processes + 1, true, work_in_queue, q) - began);
}

/* ---- Held locks ------------------------------------------------------------------------------ */

/* Bytes that the allocator has given out, in all arenas. */
static double allocated(void)
{
    struct mallinfo2 m = mallinfo2();

    return (double)m.uordblks + (double)m.hblkhd;
}

typedef struct taker {
    pthread_t thread;
    dibs *handle;
    long from, to, errors;
    int64_t lease_ms;
    bool give; /* each back at once */
} taker;

static void *take(void *arg)
{
    taker *t = arg;
    dibs_lock_options options = {.wait_ms = DIBS_NO_WAIT, .lease_ms = t->lease_ms};
    dibs_error err = {0};
    char name[64];

    for (long i = t->from; i < t->to && t->errors == 0; i++) {
        dibs_grant *g;
        snprintf(name, sizeof name, NAME, i);
        if (dibs_lock(t->handle, name, &options, &g, &err) != DIBS_OK ||
            (t->give && dibs_unlock(&g, &err) != DIBS_OK)) {
            fprintf(stderr, "bench: %s\n", err.message);
            t->errors++;
        }
    }
    return NULL;
}

/* Takes the locks from a few threads at once, because only the time after it is measured. */
static bool take_all(dibs *d, const bench_plan *plan, bool give)
{
    taker takers[TAKERS];
    long errors = 0, count = plan->count;

    for (int i = 0; i < TAKERS; i++) {
        takers[i] = (taker){.handle = d,
                            .from = count * i / TAKERS,
                            .to = count * (i + 1) / TAKERS,
                            .lease_ms = (int64_t)(plan->seconds * 3000),
                            .give = give};
        if (pthread_create(&takers[i].thread, NULL, take, &takers[i]) != 0)
            return false;
    }
    for (int i = 0; i < TAKERS; i++) {
        pthread_join(takers[i].thread, NULL);
        errors += takers[i].errors;
    }
    return errors == 0;
}

static long losses(const dibs_stats *s)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < sizeof s->losses / sizeof s->losses[0]; i++)
        sum += s->losses[i];
    return (long)sum;
}

/* Some locks are taken and given back first, by as many threads: connections and the keeper are not counted as the
 * locks' memory. */
static bool warm_up(dibs *d, const bench_plan *plan)
{
    bench_plan some = *plan;

    some.count = WARM * TAKERS;
    return take_all(d, &some, true);
}

static int report_held(const bench_plan *plan, const dibs_stats *before, const dibs_stats *after,
                       double cpu_percent, double bytes)
{
    size_t name = (size_t)snprintf(NULL, 0, NAME, 0L) + 1;

    printf(
        "{\"peer\": \"dibs\", \"title\": \"dibs\", \"scenario\": \"hold\", \"shape\": \"shared\", "
        "\"count\": %ld, \"renewals\": %ld, \"seconds\": %.3f, \"client_cpu_percent\": %.2f, "
        "\"bytes\": %.0f, \"bytes_beside_name\": %.0f, \"late_max_us\": %llu, \"errors\": %llu, "
        "\"violations\": %ld}\n",
        plan->count, (long)(after->renewals - before->renewals), plan->seconds, cpu_percent, bytes,
        bytes - (double)name, (unsigned long long)after->late.max_us,
        (unsigned long long)after->renewal_failures, losses(after));
    fflush(stdout);
    return losses(after) || after->renewal_failures ? 1 : 0;
}

int bench_hold(const bench_plan *plan)
{
    dibs *d = bench_open_dibs(plan);
    dibs_stats before, after;
    double bytes, cpu;

    if (!d || !warm_up(d, plan))
        return 1;
    bytes = allocated();
    if (!take_all(d, plan, false))
        return 1;
    bytes = (allocated() - bytes) / (double)plan->count;
    bench_step("ready");
    dibs_stats_read(d, &before, sizeof before);
    cpu = bench_cpu();
    poll(NULL, 0, (int)(plan->seconds * 1000));
    cpu = bench_cpu() - cpu;
    dibs_stats_read(d, &after, sizeof after);
    bench_step("finished");
    /* Releasing 100,000 locks is not measured. */
    _exit(report_held(plan, &before, &after, cpu * 100 / (plan->seconds), bytes));
}

int bench_idle(const bench_plan *plan)
{
    dibs *d = bench_open_dibs(plan);
    bool done = d && take_all(d, plan, true);

    dibs_close(d);
    return done ? 0 : 1;
}
