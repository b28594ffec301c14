/* The real clock for tests, and waiting for something to become true instead of sleeping in hope.
 */
#ifndef DIBS_TESTS_CLOCK_H
#define DIBS_TESTS_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

int64_t clock_ms(void); /* CLOCK_BOOTTIME */
void sleep_ms(int64_t ms);

/* Asks every millisecond until `is_so(ctx)`; false when it was not within `ms`. */
bool wait_until(bool (*is_so)(void *ctx), void *ctx, int64_t ms);

#endif
