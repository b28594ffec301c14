/* A simulated dibs__env: time stands still until the test moves it, randomness comes from a seed.
 */
#ifndef DIBS_TESTS_ENV_H
#define DIBS_TESTS_ENV_H

#include "core/env.h"

typedef struct sim_env {
    dibs__env env;    /* give &sim.env to what is tested */
    int64_t boottime; /* microseconds; set and add at will */
    int64_t wall;
    uint64_t seed;
} sim_env;

/* boottime = 1,000 s, wall = 1,700,000,000 s. `sim` must not move in memory afterwards. */
void sim_env_init(sim_env *sim, uint64_t seed);

/* Both clocks. */
void sim_env_pass(sim_env *sim, int64_t us);

/* The seed's next number; also for tests that need repeatable chance. */
uint64_t sim_random(uint64_t *seed);

#endif
