/* Host names of tests. What ends in ".test" is this machine, and is looked up here: the program's own
 * getaddrinfo() comes before the system's, for client libraries too. It can be made to stand still,
 * as it does when a name server is silent. */
#ifndef DIBS_TESTS_NAMES_H
#define DIBS_TESTS_NAMES_H

#include <stdbool.h>

void names_stop(void); /* those who ask from now on wait */
void names_go_on(void);

/* How many wait for an answer now, and how many were ever answered. */
int names_waiting(void);
int names_answered(void);

#endif
