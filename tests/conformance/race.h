/* Many threads that do the same thing at the same moment, many times over. */
#ifndef DIBS_TESTS_RACE_H
#define DIBS_TESTS_RACE_H

#include "dibs.h"

#include <pthread.h>
#include <stdatomic.h>

#define RACE_THREADS  64
#define RACE_HANDLES  4 /* the threads share them */
#define RACE_ROUNDS   50
#define RACE_STATUSES 32

typedef struct race {
    dibs *d[RACE_HANDLES];
    void (*prepare)(struct race *r); /* one thread, before each round; may be NULL */
    dibs_status (*run)(struct race *r, dibs *d);
    int rounds; /* 0: RACE_ROUNDS */
    int round;
    atomic_int count[RACE_ROUNDS][RACE_STATUSES]; /* how often which status */
    pthread_barrier_t start, end;
} race;

void race_run(race *r);

#endif
