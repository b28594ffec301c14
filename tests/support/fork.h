/* Forking a process that has threads. */
#ifndef DIBS_TESTS_FORK_H
#define DIBS_TESTS_FORK_H

#include <sys/types.h>

/* As fork. Under the address sanitizer at a moment in which no other thread of this process runs: gcc 12's leaves the
 * locks of its allocator as they are (newer ones take them before a fork), and one that a thread of the parent holds
 * stays locked in the child for ever. A thread that starts takes one, in the child too. */
pid_t fork_at_rest(void);

#endif
