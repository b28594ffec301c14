/* Workers that run side by side, as threads of this process or as processes of their own.
 *
 * What they share is in memory that both kinds see. All prepare, then start at the same moment, and
 * none of them cleans up before all have finished, so that connecting and closing is not measured.
 * With steps=1 the program stops at both moments until it reads a line, so that whoever runs it can
 * read the servers' counters.
 * A worker process that ends early ends the whole run. */
#define _GNU_SOURCE
#include "bench.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS     1000000
#define HEAD_START  0.02 /* seconds: nobody hears of the start too late */
#define WORKERS_MAX 1024

struct bench_crew {
    int count;
    bool processes;
    void (*work)(bench_crew *crew, void *arg, int id);
    void *arg;
    atomic_int ready, finished;
    atomic_bool started, over; /* over: what was to be read of the servers has been read */
    double start;
};

typedef struct member {
    bench_crew *crew;
    int id;
    pthread_t thread;
    pid_t pid;
} member;

void *bench_shared(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory != MAP_FAILED)
        return memory;
    perror("bench: mmap");
    exit(1);
}

bool bench_steps;

void bench_step(const char *name)
{
    if (!bench_steps)
        return;
    puts(name);
    fflush(stdout);
    if (getchar() == EOF)
        exit(1);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
}

double bench_ready(bench_crew *crew)
{
    double left;

    atomic_fetch_add(&crew->ready, 1);
    while (!atomic_load(&crew->started))
        nap();
    left = crew->start - bench_now();
    if (left > 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(left * 1e9)}, NULL);
    return crew->start;
}

void bench_finished(bench_crew *crew)
{
    atomic_fetch_add(&crew->finished, 1);
    while (!atomic_load(&crew->over))
        nap();
}

static void *run_thread(void *arg)
{
    member *m = arg;

    m->crew->work(m->crew, m->crew->arg, m->id);
    return NULL;
}

static bool launch(member *m)
{
    if (!m->crew->processes)
        return pthread_create(&m->thread, NULL, run_thread, m) == 0;
    m->pid = fork();
    if (m->pid != 0)
        return m->pid > 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    m->crew->work(m->crew, m->crew->arg, m->id);
    exit(0);
}

/* Until so many have come to that point. A worker that has ended before will not come. */
static void await(bench_crew *crew, atomic_int *point)
{
    int status;

    while (atomic_load(point) < crew->count) {
        if (crew->processes && atomic_load(&crew->finished) < crew->count &&
            waitpid(-1, &status, WNOHANG) > 0) {
            fprintf(stderr, "bench: a worker ended early\n");
            exit(1); /* the others die with us */
        }
        nap();
    }
}

double bench_crew_run(int count, bool processes, void (*work)(bench_crew *, void *, int), void *arg)
{
    bench_crew *crew = bench_shared(sizeof *crew);
    member members[WORKERS_MAX];

    *crew = (bench_crew){.count = count, .processes = processes, .work = work, .arg = arg};
    for (int i = 0; i < count; i++) {
        members[i] = (member){.crew = crew, .id = i};
        if (count > WORKERS_MAX || !launch(&members[i])) {
            fprintf(stderr, "bench: cannot start %d workers\n", count);
            exit(1);
        }
    }
    await(crew, &crew->ready);
    bench_step("ready");
    crew->start = bench_now() + HEAD_START;
    atomic_store(&crew->started, true);
    await(crew, &crew->finished);
    bench_step("finished");
    atomic_store(&crew->over, true);
    for (int i = 0; i < count; i++)
        if (!processes)
            pthread_join(members[i].thread, NULL);
        else if (waitpid(members[i].pid, NULL, 0) < 0)
            perror("bench: waitpid");
    return crew->start;
}
