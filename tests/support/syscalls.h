/* System calls that fail by countdown, for the whole process: those of our code and of client libraries. Not
 * those that the C library makes for itself.
 *
 * A program that links this in calls these instead of the C library's functions. Each call fails with errors that
 * the kernel can return for it: the first is what a broken machine says (EIO, EMFILE, ECONNRESET), the others may
 * also be interruptions and refusals that pass. */
#ifndef DIBS_TESTS_SYSCALLS_H
#define DIBS_TESTS_SYSCALLS_H

#include <stdbool.h>

#define SYSCALL_VARIANTS 3

/* The n-th from now on fails; with `for_ever` so do all after it, and then only in ways that last. `variant`:
 * which of its errors a call gets. */
void syscall_fail(long n, bool for_ever, int variant);

/* No more failures. True: at least one was made to fail. */
bool syscall_heal(void);

/* The name of the last one that failed, and its error. */
const char *syscall_failed(int *error);

#endif
