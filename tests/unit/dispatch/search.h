/* Runs the real code of a dispatcher under every order of its threads, with a clock and a scheduler of its own.
 *
 * Threads are coroutines. They can change places wherever real ones can: when they take the mutex, when they
 * sleep, and inside what they do without it. One run follows a list of choices (who goes next, does time pass,
 * how does an exchange end); the search goes through all lists, with at most `preemptions` changes of a thread
 * that could have gone on, and as many moments at which time passes although somebody could. Leaving a thread
 * that sleeps or has to wait costs nothing.
 *
 * Searched for: a thread that nobody will ever wake (all sleep, and time does not help), and whatever the plan
 * checks after each step and at the end. */
#ifndef DIBS_TESTS_DISPATCH_SEARCH_H
#define DIBS_TESTS_DISPATCH_SEARCH_H

#include "core/env.h"

#include <pthread.h>
#include <stdbool.h>

#define SIM_THREADS 4

typedef struct sim_plan {
    int threads, preemptions;
    void (*begin)(void);     /* makes the world anew */
    void (*thread)(int who); /* what each does */
    void (*idle)(void);      /* nobody can go on unless time passes: is that right? */
    void (*end)(void);       /* all are through: what must be true then */
    long most;               /* runs; more are a failure of the plan */
} sim_plan;

/* What was found first, or NULL; `*runs` says how many there were. */
const char *sim_search(const sim_plan *plan, long *runs);

extern const dibs__env sim_env;

void sim_fault(const char *what); /* this run is wrong */
int sim_choose(int options);      /* 0 … options - 1, each in some run */
void sim_step(void);              /* others may go now */
int sim_self(void);

/* In the place of the system's. */
int sim_lock(pthread_mutex_t *m);
int sim_unlock(pthread_mutex_t *m);
void sim_cond_sleep(pthread_cond_t *c, pthread_mutex_t *m, const dibs__env *env,
                    dibs__deadline until);
int sim_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int sim_cond_signal(pthread_cond_t *c);
int sim_word_sleep(_Atomic int *word, int value, const dibs__env *env, dibs__deadline until);
void sim_word_wake(_Atomic int *word);

#endif
