/* One run: processes that use the library on the simulated engine while things go wrong, and what must hold
 * all the while. NULL: nothing was wrong. */
#ifndef DIBS_TESTS_SIM_WORLD_H
#define DIBS_TESTS_SIM_WORLD_H

#include <stdint.h>

const char *world_run(uint64_t seed);

#endif
