/* One run: processes x threads x loops on one strategy, begun together, ended by a limit.
 *
 * The buyers live in child processes, because schemes that hold inside one process shall be seen to
 * fail in several; what they come to is written into memory that all share. The parent only waits,
 * and kills what is not over in time. */
#define _GNU_SOURCE
#include "lab.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct tally {
    int64_t sale[LAB_FAILED + 1];
    uint64_t tries;
    int64_t begin, end; /* µs, monotonic */
    char note[256];
} tally;

/* In memory that parent and children share. */
typedef struct hall {
    atomic_int ready, gone; /* buyers that are seated, or could not be */
    atomic_int open;        /* the doors */
    const lab_strategy *strategy;
    const lab_site *site;
    lab_plan plan;
    size_t size; /* of the mapping */
    tally *buyers;
    uint32_t *took; /* µs of each purchase, by buyer; UINT32_MAX: not made */
} hall;

typedef struct thread_arg {
    hall *h;
    void *shared;
    int process, thread;
} thread_arg;

static lab_buyer buyer_of(const hall *h, int process, int thread)
{
    return (lab_buyer){.strategy = h->strategy,
                       .site = h->site,
                       .pace = h->plan.pace,
                       .process = process,
                       .thread = thread,
                       .resource = h->plan.resource ? h->plan.resource : "goods:1"};
}

/* ---- Buyers ---------------------------------------------------------------------------------- */

static void shop(hall *h, lab_buyer *buyer, tally *b, uint32_t *took)
{
    b->begin = lab_now_us();
    for (int64_t i = 0; i < h->plan.loops; i++) {
        int64_t start = lab_now_us(), span;
        lab_sale sale = lab_buy(buyer);
        span = lab_now_us() - start;
        took[i] = span < UINT32_MAX ? (uint32_t)span : UINT32_MAX - 1;
        b->sale[sale]++;
        b->tries = buyer->tries;
        b->end = start + span;
        if (sale == LAB_FAILED)
            memcpy(b->note, buyer->note, sizeof b->note);
    }
}

static void *buyer_main(void *data)
{
    thread_arg *a = data;
    hall *h = a->h;
    int64_t number = a->process * h->plan.threads + a->thread;
    tally *b = &h->buyers[number];
    lab_buyer buyer = buyer_of(h, a->process, a->thread);
    bool seated;

    buyer.shared = a->shared;
    seated = lab_buyer_open(&buyer);
    if (!seated)
        memcpy(b->note, buyer.note, sizeof b->note);
    atomic_fetch_add(seated ? &h->ready : &h->gone, 1);
    while (!atomic_load(&h->open))
        usleep(500);
    if (seated) {
        shop(h, &buyer, b, h->took + number * h->plan.loops);
        lab_buyer_close(&buyer);
    }
    return NULL;
}

static int process_main(hall *h, int process)
{
    int64_t n = h->plan.threads;
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    thread_arg *args = calloc((size_t)n, sizeof *args);
    lab_buyer buyer = buyer_of(h, process, -1);

    if (!threads || !args)
        return 1;
    if (h->strategy->open_process && !h->strategy->open_process(&buyer)) {
        memcpy(h->buyers[process * n].note, buyer.note, sizeof buyer.note);
        atomic_fetch_add(&h->gone, (int)n);
        return 1;
    }
    for (int i = 0; i < n; i++) {
        args[i] = (thread_arg){h, buyer.shared, process, i};
        if (pthread_create(&threads[i], NULL, buyer_main, &args[i]) != 0)
            return 1;
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    if (h->strategy->close_process)
        h->strategy->close_process(&buyer);
    free(threads);
    free(args);
    return 0;
}

/* ---- The parent ------------------------------------------------------------------------------ */

static hall *hall_new(const lab_strategy *strategy, const lab_site *site, const lab_plan *plan)
{
    size_t buyers = (size_t)(plan->processes * plan->threads);
    size_t calls = buyers * (size_t)plan->loops;
    size_t size = sizeof(hall) + buyers * sizeof(tally) + calls * sizeof(uint32_t);
    hall *h = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (h == MAP_FAILED)
        return NULL;
    h->size = size;
    h->strategy = strategy;
    h->site = site;
    h->plan = *plan;
    h->buyers = (tally *)(h + 1);
    h->took = (uint32_t *)(h->buyers + buyers);
    memset(h->took, 0xff, calls * sizeof(uint32_t));
    return h;
}

static pid_t start_process(hall *h, int process)
{
    pid_t parent = getpid(), pid = fork();

    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    signal(SIGINT, SIG_IGN); /* the parent ends us */
    _exit(process_main(h, process));
}

/* Waits until every child is gone; kills them at `until`. True: they went by themselves. */
static bool wait_for(pid_t *pids, int64_t count, int64_t until)
{
    bool cut = false;

    for (int64_t i = 0; i < count;) {
        pid_t got = pids[i] > 0 ? waitpid(pids[i], NULL, WNOHANG) : pids[i];
        if (got != 0 && !(got < 0 && errno == EINTR)) {
            i++;
        } else if (lab_now_us() < until) {
            usleep(2000);
        } else {
            cut = true;
            kill(pids[i], SIGKILL);
            waitpid(pids[i++], NULL, 0);
        }
    }
    return !cut;
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static void add_times(hall *h, lab_result *out)
{
    size_t calls = (size_t)(out->buyers * h->plan.loops), made = 0;

    qsort(h->took, calls, sizeof *h->took, by_size);
    while (made < calls && h->took[made] != UINT32_MAX)
        made++;
    out->asked = (int64_t)made;
    out->p50_us = made ? h->took[made / 2] : NAN;
    out->p99_us = made ? h->took[made - 1 - made / 100] : NAN;
}

static void add_buyers(hall *h, lab_result *out)
{
    int64_t begin = INT64_MAX, end = 0;
    uint64_t tries = 0;

    out->least = INT64_MAX;
    for (int64_t i = 0; i < out->buyers; i++) {
        const tally *b = &h->buyers[i];
        out->sold += b->sale[LAB_SOLD];
        out->sold_out += b->sale[LAB_SOLD_OUT];
        out->refused += b->sale[LAB_REFUSED];
        out->failed += b->sale[LAB_FAILED];
        out->most = b->sale[LAB_SOLD] > out->most ? b->sale[LAB_SOLD] : out->most;
        out->least = b->sale[LAB_SOLD] < out->least ? b->sale[LAB_SOLD] : out->least;
        tries += b->tries;
        begin = b->begin && b->begin < begin ? b->begin : begin;
        end = b->end > end ? b->end : end;
        if (b->note[0])
            memcpy(out->note, b->note, sizeof out->note);
    }
    out->seconds = end > begin ? (double)(end - begin) / 1e6 : 0;
    out->idle_ms = (lab_now_us() - end) / 1000;
    out->tries_per_sale = tries && out->sold ? (double)tries / (double)out->sold : NAN;
}

/* The children shop between these two looks at the books. */
static void trade(hall *h, lab_result *out)
{
    int64_t count = h->plan.processes, begin = lab_now_us();
    int64_t until = begin + h->plan.limit_ms * 1000;
    pid_t *pids = calloc((size_t)count, sizeof *pids);
    int64_t before;

    if (!pids) {
        snprintf(out->error, sizeof out->error, "out of memory");
        return;
    }
    for (int i = 0; i < count; i++)
        pids[i] = start_process(h, i);
    while (atomic_load(&h->ready) + atomic_load(&h->gone) < out->buyers && lab_now_us() < until)
        usleep(1000);
    before = lab_requests(h->site, h->strategy->needs);
    if (atomic_load(&h->ready) < out->buyers)
        snprintf(out->error, sizeof out->error, "%d of %lld buyers could start",
                 atomic_load(&h->ready), (long long)out->buyers);
    else
        atomic_store(&h->open, 1);
    out->cut = !wait_for(pids, count, out->error[0] ? lab_now_us() : until);
    free(pids);
    add_buyers(h, out);
    add_times(h, out);
    if (before >= 0 && out->sold > 0 && !out->cut)
        out->requests_per_sale =
            (double)(lab_requests(h->site, h->strategy->needs) - before) / (double)out->sold;
}

/* As many buyers, in more processes, where the strategy's row is about that. */
static lab_plan spread(const lab_strategy *strategy, const lab_plan *plan)
{
    lab_plan p = *plan;

    if (strategy->processes > p.processes) {
        p.threads = p.processes * p.threads / strategy->processes;
        p.threads = p.threads > 0 ? p.threads : 1;
        p.processes = strategy->processes;
    }
    return p;
}

void lab_run(const lab_strategy *strategy, const lab_site *site, const lab_plan *asked,
             lab_result *out)
{
    const lab_plan own = spread(strategy, asked), *plan = &own;
    hall *h = hall_new(strategy, site, plan);
    lab_buyer books;

    *out = (lab_result){.strategy = strategy, .requests_per_sale = NAN, .tries_per_sale = NAN};
    out->processes = plan->processes;
    out->threads = plan->threads;
    out->buyers = plan->processes * plan->threads;
    if (!h) {
        snprintf(out->error, sizeof out->error, "out of memory");
        return;
    }
    books = buyer_of(h, -1, -1);
    if (!lab_stock_open(&books) || !lab_stock_set(&books, plan->stock)) {
        snprintf(out->error, sizeof out->error, "%s", books.note);
    } else {
        trade(h, out);
        if (!lab_stock_read(&books, &out->left))
            snprintf(out->error, sizeof out->error, "%s", books.note);
        else if (out->sold > plan->stock - out->left)
            out->oversold = out->sold - (plan->stock - out->left);
        else
            out->lost = plan->stock - out->left - out->sold;
    }
    if (out->error[0] && out->note[0])
        snprintf(out->error + strlen(out->error), sizeof out->error - strlen(out->error),
                 ": %.200s", out->note);
    lab_stock_close(&books);
    munmap(h, h->size);
}
