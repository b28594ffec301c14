/* The wrapper: `dibs run` or `dibs once` while its command runs. It holds something that has a
 * lease, locks or the run of a key; the keeper of its handle renews it. */
#ifndef DIBS_CLI_WRAPPER_H
#define DIBS_CLI_WRAPPER_H

#include "guardian.h"

#include <signal.h>

/* What is held while the command runs. Neither function asks the engine. */
typedef struct cli_held {
    dibs *d;
    int64_t lease_ms;
    bool (*held)(const void *what);
    int64_t (*remaining_ms)(const void *what);
    const void *what;
    cli_schedule latest; /* the end of the command, however long it is held; 0: no bound */
} cli_held;

typedef struct cli_outcome {
    int failed;   /* exit code when the command was not run, with the reason said; else 0 */
    int status;   /* the command's, as from waitpid */
    bool started; /* it may have been run */
    bool lost;    /* it was lost while the command ran, or the command was ended in time before */
    bool at_home; /* it had the terminal */
    bool cut_off; /* the guardian died or was stopped: we ended the command, for no fault of its */
    int stopped;  /* the signal by which we were told to end while something of it ran; else 0 */
} cli_outcome;

/* Runs the command under a guardian until nothing is left of it. What is held stays with the
 * caller. `output` (NULL: ours) is what the command writes to. */
cli_outcome cli_wrap(const cli_held *held, char **argv, char **environment,
                     const cli_output *output, const sigset_t *passed_on, const sigset_t *mask);

/* The exit code that belongs to a wait status: 128 + n for signal n; -1 counts as killed. */
int cli_exit_code_of(int status);

/* That of the command. When Ctrl-C ended it, which went to the command
 * alone because that had the terminal, the shell or the script that runs us should know that the
 * user meant all of it: then this ends the process as if we had got it, with our whole job. The
 * handle is closed before. */
int cli_exit_as(const cli_outcome *out);

#endif
