#include "support/env.h"

#include <string.h>

/* splitmix64: every seed is good, also 0. */
uint64_t sim_random(uint64_t *seed)
{
    uint64_t z = (*seed += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t sim_boottime(void *ctx)
{
    return ((sim_env *)ctx)->boottime;
}

static int64_t sim_wall(void *ctx)
{
    return ((sim_env *)ctx)->wall;
}

static void sim_fill(void *ctx, void *out, size_t size)
{
    sim_env *sim = ctx;
    unsigned char *at = out;

    for (size_t i = 0; i < size; i++)
        at[i] = (unsigned char)sim_random(&sim->seed);
}

void sim_env_init(sim_env *sim, uint64_t seed)
{
    memset(sim, 0, sizeof *sim);
    sim->env.boottime = sim_boottime;
    sim->env.wall = sim_wall;
    sim->env.random = sim_fill;
    sim->env.sleep = dibs__env_system.sleep;
    sim->env.ctx = sim;
    sim->boottime = 1000 * DIBS__SECOND;
    sim->wall = 1700000000 * DIBS__SECOND;
    sim->seed = seed;
}

void sim_env_pass(sim_env *sim, int64_t us)
{
    sim->boottime += us;
    sim->wall += us;
}
