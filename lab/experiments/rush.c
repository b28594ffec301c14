/* A rush; see the header. */
#define _GNU_SOURCE
#include "rush.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESSES_MAX 8

typedef struct gate {
    atomic_int ready, open, sum;
    int threads;
    int (*run)(void *ctx, int number);
    void *ctx;
} gate;

typedef struct runner {
    gate *g;
    int number;
} runner;

static void *runner_main(void *data)
{
    runner *r = data;

    atomic_fetch_add(&r->g->ready, 1);
    while (!atomic_load(&r->g->open))
        usleep(200);
    atomic_fetch_add(&r->g->sum, r->g->run(r->g->ctx, r->number));
    return NULL;
}

static void process_main(gate *g, int process)
{
    pthread_t *thread = calloc((size_t)g->threads, sizeof *thread);
    runner *r = calloc((size_t)g->threads, sizeof *r);

    for (int i = 0; thread && r && i < g->threads; i++) {
        r[i] = (runner){g, process * g->threads + i};
        if (pthread_create(&thread[i], NULL, runner_main, &r[i]) != 0)
            _exit(1);
    }
    for (int i = 0; thread && r && i < g->threads; i++)
        pthread_join(thread[i], NULL);
    _exit(0);
}

int lab_rush(int processes, int threads, int (*run)(void *ctx, int number), void *ctx)
{
    gate *g = mmap(NULL, sizeof *g, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[PROCESSES_MAX], parent = getpid();
    int sum;

    if (g == MAP_FAILED || processes > PROCESSES_MAX)
        return -1;
    g->threads = threads;
    g->run = run;
    g->ctx = ctx;
    for (int i = 0; i < processes; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() == parent)
                process_main(g, i);
            _exit(1);
        }
    }
    for (int tries = 0; atomic_load(&g->ready) < processes * threads && tries < 5000; tries++)
        usleep(1000);
    atomic_store(&g->open, 1);
    for (int i = 0; i < processes; i++)
        waitpid(pids[i], NULL, 0);
    sum = atomic_load(&g->sum);
    munmap(g, sizeof *g);
    return sum;
}
