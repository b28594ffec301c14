/* The wrapper: `dibs run` while its command runs. It holds the lock; the keeper of its handle
 * renews it. */
#ifndef DIBS_CLI_WRAPPER_H
#define DIBS_CLI_WRAPPER_H

#include "guardian.h"

#include <signal.h>

typedef struct cli_held {
    dibs *d;
    dibs_grant **grant;
    int count;
    int64_t lease_ms;
} cli_held;

typedef struct cli_outcome {
    int failed;   /* exit code when the command was not run, with the reason said; else 0 */
    int status;   /* the command's, as from waitpid */
    bool started; /* it may have been run */
    bool lost;    /* the lock was lost while it ran, or it was ended in time before that */
    bool at_home; /* it had the terminal */
} cli_outcome;

/* Runs the command under a guardian until nothing is left of it. The grants stay with the caller.
 */
cli_outcome cli_wrap(const cli_held *held, char **argv, char **environment,
                     const sigset_t *passed_on, const sigset_t *mask);

#endif
