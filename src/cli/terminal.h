/* Job control: the command gets the terminal's foreground, so that it can read and gets Ctrl-C and
 * Ctrl-Z itself; the shell gets it back when the command ends or stops. Without a terminal nothing
 * is done. */
#ifndef DIBS_CLI_TERMINAL_H
#define DIBS_CLI_TERMINAL_H

#include <stdbool.h>
#include <sys/types.h>

typedef struct cli_terminal {
    int fd;     /* the controlling terminal; -1: none */
    bool lent;  /* the command has had the foreground */
    bool eager; /* lend it before the command asks */
} cli_terminal;

/* SIGTTOU must be blocked for all of these. */
void cli_terminal_open(cli_terminal *t);

/* Lends the foreground to the group, if it is ours to lend. False: it is not. */
bool cli_terminal_lend(cli_terminal *t, pid_t group);

/* Takes it back from the group, if that still has it. */
void cli_terminal_return(cli_terminal *t, pid_t group);

/* Stops as the shell expects it after Ctrl-Z: with our whole group if the command had the
 * foreground in its place, else alone. `signal` is blocked, and so it is again when we were
 * continued. Where no shell could continue the job, nothing stops. */
void cli_terminal_stop_job(const cli_terminal *t, int signal);

#endif
