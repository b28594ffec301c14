/* Scenario e, growth: does the cost of one thing depend on how many others there are?
 *
 *   wait   N requests wait for one lock. Whoever is served enters again behind the others
 * and releases, so that N stays: hand-offs a second. Served out of turn is a violation. hold   N
 * locks are held and renewed by the keeper at a lease of 30 s: client CPU, server CPU and memory a
 * lock, over one third of a lease, in which each is renewed once. A loss is a violation.
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

#define LEASE_MS 30000
#define TAKERS   8 /* threads that take the locks of `hold` */
#define NAME     "bench:held:%08ld"

/* Bytes that the allocator has given out, in all arenas. */
static double allocated(void)
{
    struct mallinfo2 m = mallinfo2();

    return (double)m.uordblks + (double)m.hblkhd;
}

static dibs *open_handle(const bench_plan *plan)
{
    dibs *d = NULL;
    dibs_error err = {0};

    if (dibs_open(plan->url, NULL, &d, &err) != DIBS_OK)
        fprintf(stderr, "bench: %s\n", err.message);
    return d;
}

/* ---- Requests in the queue ----------------------------------------------------------------------
 */

typedef struct line {
    dibs *handle;
    long entered, served, errors, violations;
    long counted; /* served while the clock ran */
    uint64_t fence;
    double end; /* afterwards nobody enters again: the line becomes empty */
    double cpu;
} line;

typedef struct place {
    line *in;
    long number;
} place;

static void enter(place *p)
{
    dibs_error err = {0};

    p->number = p->in->entered++;
    if (dibs_start(p->in->handle,
                   &(dibs_request){.op = DIBS_OP_LOCK, .name = "bench:line", .user = p}, NULL,
                   &err) != DIBS_OK) {
        fprintf(stderr, "bench: %s\n", err.message);
        p->in->errors++;
    }
}

/* Served in turn, with a higher fence than the one before? */
static void check(line *l, const place *p, const dibs_grant *g)
{
    if (p->number != l->served || dibs_grant_fence(g) <= l->fence)
        l->violations++;
    l->fence = dibs_grant_fence(g);
    l->served++;
}

static void served(dibs_outcome *o)
{
    place *p = o->user;
    line *l = p->in;

    if (o->err.status != DIBS_OK) {
        fprintf(stderr, "bench: %s\n", o->err.message);
        l->errors++;
        return;
    }
    check(l, p, o->grant);
    if (bench_now() < l->end) {
        l->counted++;
        l->cpu = bench_cpu();
        enter(p);
    }
    if (dibs_unlock(&o->grant, NULL) != DIBS_OK)
        l->errors++;
}

static void serve_all(line *l)
{
    struct pollfd fd = {.fd = dibs_fd(l->handle), .events = POLLIN};
    dibs_outcome o;

    while (l->served < l->entered && l->errors == 0) {
        if (poll(&fd, 1, 10000) <= 0) {
            fprintf(stderr, "bench: nobody was served for 10 s\n");
            l->errors++;
        }
        while (l->errors == 0 && dibs_take(l->handle, &o))
            served(&o);
    }
}

/* Starting a request does not enter yet. */
static void await_all(line *l, uint64_t count)
{
    dibs_stats s = {0};

    for (double end = bench_now() + 60; s.waiting < count && l->errors == 0; usleep(200)) {
        dibs_stats_read(l->handle, &s, sizeof s);
        if (bench_now() > end)
            l->errors++;
    }
}

static int report_line(const line *l, const bench_plan *plan, double enter_seconds, double cpu)
{
    printf(
        "{\"peer\": \"dibs\", \"title\": \"dibs\", \"scenario\": \"wait\", \"count\": %ld, "
        "\"turns\": %ld, \"seconds\": %.3f, \"rate\": %.1f, \"enter_us\": %.1f, \"cpu_us\": %.2f, "
        "\"errors\": %ld, \"violations\": %ld}\n",
        plan->count, l->counted, plan->seconds, (double)l->counted / plan->seconds,
        enter_seconds * 1e6 / (double)plan->count,
        l->counted ? (l->cpu - cpu) * 1e6 / (double)l->counted : 0, l->errors, l->violations);
    return l->errors || l->violations || l->counted == 0 ? 1 : 0;
}

int bench_wait(const bench_plan *plan)
{
    line l = {.handle = open_handle(plan)};
    place *places = calloc((size_t)plan->count, sizeof *places);
    dibs_grant *first = NULL;
    double began = bench_now(), entered, cpu;
    int code = 1;

    if (l.handle && places && dibs_lock(l.handle, "bench:line", NULL, &first, NULL) == DIBS_OK) {
        for (long i = 0; i < plan->count && l.errors == 0; i++) {
            places[i].in = &l;
            enter(&places[i]);
        }
        await_all(&l, (uint64_t)plan->count);
        entered = bench_now();
        l.end = entered + plan->seconds;
        cpu = bench_cpu();
        l.errors += dibs_unlock(&first, NULL) != DIBS_OK;
        serve_all(&l);
        code = report_line(&l, plan, entered - began, cpu);
    }
    dibs_close(l.handle);
    free(places);
    return code;
}

/* ---- Held locks
 * ---------------------------------------------------------------------------------------- */

typedef struct taker {
    pthread_t thread;
    dibs *handle;
    long from, to, errors;
    bool give; /* each back at once */
} taker;

static void *take(void *arg)
{
    taker *t = arg;
    dibs_lock_options options = {.wait_ms = DIBS_NO_WAIT, .lease_ms = LEASE_MS};
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
static bool take_all(dibs *d, long count, bool give)
{
    taker takers[TAKERS];
    long errors = 0;

    for (int i = 0; i < TAKERS; i++) {
        takers[i] = (taker){
            .handle = d, .from = count * i / TAKERS, .to = count * (i + 1) / TAKERS, .give = give};
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

/* A lock is taken and released first, so that connections and the keeper are not counted as its
 * memory. */
static bool warm_up(dibs *d)
{
    dibs_grant *g = NULL;

    return dibs_lock(d, "bench:warm", NULL, &g, NULL) == DIBS_OK &&
           dibs_unlock(&g, NULL) == DIBS_OK;
}

int bench_hold(const bench_plan *plan)
{
    dibs *d = open_handle(plan);
    dibs_stats before, after;
    double bytes, cpu, server, span = LEASE_MS / 1000.0 / 3;
    size_t name = (size_t)snprintf(NULL, 0, NAME, 0L) + 1;

    if (!d || !warm_up(d))
        return 1;
    bytes = allocated();
    if (!take_all(d, plan->count, false))
        return 1;
    bytes = (allocated() - bytes) / (double)plan->count;
    dibs_stats_read(d, &before, sizeof before);
    server = bench_server_cpu(plan->server_pid);
    cpu = bench_cpu();
    poll(NULL, 0, (int)(span * 1000));
    cpu = bench_cpu() - cpu;
    server = bench_server_cpu(plan->server_pid) - server;
    dibs_stats_read(d, &after, sizeof after);
    printf("{\"peer\": \"dibs\", \"title\": \"dibs\", \"scenario\": \"hold\", \"count\": %ld, "
           "\"renewals\": %ld, "
           "\"seconds\": %.3f, \"client_cpu_percent\": %.2f, \"server_cpu_percent\": %.2f, "
           "\"bytes_a_lock\": %.0f, \"bytes_beside_name\": %.0f, \"late_max_us\": %llu, "
           "\"errors\": %llu, "
           "\"violations\": %ld}\n",
           plan->count, (long)(after.renewals - before.renewals), span, cpu * 100 / span,
           server * 100 / span, bytes, bytes - (double)name, (unsigned long long)after.late.max_us,
           (unsigned long long)after.renewal_failures, losses(&after));
    fflush(stdout);
    _Exit(losses(&after) || after.renewal_failures
              ? 1
              : 0); /* giving back 100,000 locks is not measured */
}

int bench_idle(const bench_plan *plan)
{
    dibs *d = open_handle(plan);
    bool done = d && take_all(d, plan->count, true);

    dibs_close(d);
    return done ? 0 : 1;
}
