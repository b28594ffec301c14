/* Allocations that fail by countdown, and their balance.
 *
 * In a plain build malloc and its kin are replaced for the whole process, so that libraries'
 * allocations fail too and every one is counted. A sanitizer has replaced them already: there
 * (ALLOC_WRAPPED) only the calls of our own code are caught, by the linker, and leaks are the
 * sanitizer's to find. */
#ifndef DIBS_TESTS_ALLOC_H
#define DIBS_TESTS_ALLOC_H

#include <stdbool.h>

/* The n-th allocation from now on fails, in whatever thread; with `for_ever` so do all after it. */
void alloc_fail(long n, bool for_ever);

/* No more failures. True: at least one allocation was made to fail. */
bool alloc_heal(void);

/* From now on only those count that the program's own code asks for, not those of shared libraries: for client
 * libraries that do not look at what malloc gives them. */
void alloc_only_ours(bool ours);

/* Allocated and not freed, now. */
long alloc_live(void);

/* Can alloc_live be trusted? */
extern const bool alloc_balances;

#endif
