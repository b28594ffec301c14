/* A simulated machine room: processes with threads, clocks that run at different rates, descriptors. One
 * scheduler runs all of it on one real thread, and one seed decides everything: who goes next, how long
 * anything takes, who is stopped or killed and when. The same seed gives the same run.
 *
 * The library is the real one. Its threads become coroutines because the linker replaces the calls by which
 * they wait for each other (mutexes, conditions, threads, descriptors; sim/posix.c); time, sleep and
 * randomness it gets from the environment of its process. */
#ifndef DIBS_TESTS_SIM_SCHED_H
#define DIBS_TESTS_SIM_SCHED_H

#include "core/env.h"

#include <stdbool.h>

#define SIM_PROCESSES 16

typedef struct sim_process {
    int number;
    bool dead;
    int64_t stopped_until; /* true time */
    int64_t stopped;       /* how long it was, all in all */
    int64_t rate;          /* of its clock: millionths that it is too fast */
    dibs__env env;
} sim_process;

typedef struct sim_thread sim_thread;

void sim_begin(uint64_t seed);
/* Until every thread of a living process has ended. NULL: nothing was wrong. */
const char *sim_run(void);
/* Something is wrong: the run ends. Only the first counts. */
void sim_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* What happens, with DIBS_SIM_TRACE in the environment: true time, process, thread. */
void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Chance, by the seed. */
uint64_t sim_draw(uint64_t below);
bool sim_chance(uint64_t in_a_million);
int64_t sim_between(int64_t low, int64_t high);

/* True time, in microseconds, which no process knows. */
int64_t sim_now(void);
/* Calls `run` at that time, outside every process: on the network, in the server. It must not wait. */
void sim_at(int64_t when, void (*run)(void *arg), void *arg);

sim_process *sim_process_new(int64_t rate);
sim_thread *sim_thread_new(sim_process *p, void *(*run)(void *arg), void *arg);
sim_thread *sim_self(void); /* NULL: nobody's thread runs */
sim_process *sim_self_process(void);
uint64_t sim_thread_number(void);
bool sim_thread_ended(const sim_thread *t);
void sim_stop(sim_process *p, int64_t span); /* as SIGSTOP, and SIGCONT after that */
void sim_kill(sim_process *p);
int64_t sim_clock(const sim_process *p);                    /* what its clock says now */
int64_t sim_true_time(const sim_process *p, int64_t clock); /* when its clock will say that */

/* The calling thread: others may come first. */
void sim_step(void);
/* Until somebody wakes `on`, or that true time. False: it was the time. */
bool sim_wait(const void *on, int64_t until);
void sim_wake(const void *on, bool all);

long sim_steps(void); /* of this run so far */

#endif
