#define _GNU_SOURCE
#include "conformance/race.h"

#include "conformance/suite.h"

typedef struct runner {
    race *r;
    dibs *d;
    pthread_t thread;
} runner;

static void *runner_main(void *arg)
{
    runner *me = arg;

    for (int round = 0; round < me->r->rounds; round++) {
        pthread_barrier_wait(&me->r->start);
        dibs_status status = me->r->run(me->r, me->d);
        atomic_fetch_add(&me->r->count[round][status], 1);
        pthread_barrier_wait(&me->r->end);
    }
    return NULL;
}

void race_run(race *r)
{
    runner all[RACE_THREADS];

    r->rounds = r->rounds ? r->rounds : RACE_ROUNDS;
    pthread_barrier_init(&r->start, NULL, RACE_THREADS + 1);
    pthread_barrier_init(&r->end, NULL, RACE_THREADS + 1);
    for (int i = 0; i < RACE_THREADS; i++) {
        all[i] = (runner){.r = r, .d = r->d[i % RACE_HANDLES]};
        assert_int_equal(pthread_create(&all[i].thread, NULL, runner_main, &all[i]), 0);
    }
    for (r->round = 0; r->round < r->rounds; r->round++) {
        if (r->prepare)
            r->prepare(r);
        pthread_barrier_wait(&r->start);
        pthread_barrier_wait(&r->end);
    }
    for (int i = 0; i < RACE_THREADS; i++)
        pthread_join(all[i].thread, NULL);
    pthread_barrier_destroy(&r->start);
    pthread_barrier_destroy(&r->end);
}
