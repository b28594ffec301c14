/* A database whose clock a test sets, also while it runs, with libfaketime. The tests' own clock stays
 * what it is. */
#ifndef DIBS_TESTS_FAKETIME_H
#define DIBS_TESTS_FAKETIME_H

#include "support/database.h"

#include <stdint.h>

/* Skips the case where there is no libfaketime, fails it where there must be. */
void faketime_need(void);

/* Starts the server again, in order, `ahead` seconds ahead of the real clock, in the given zone (as
 * $TZ; NULL: the machine's). faketime_end: with the real clock. */
void faketime_begin(database *d, int64_t ahead, const char *zone);
void faketime_end(database *d);

/* From now on so much ahead. */
void faketime_set(const database *d, int64_t ahead);

/* Seconds from now until that Unix time. */
int64_t faketime_until(int64_t when);

#endif
