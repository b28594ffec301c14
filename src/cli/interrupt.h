/* Ctrl-C while waiting: a thread that takes the ending signals (INT, TERM, HUP, QUIT) and cancels
 * the wait, so that the place in the queue is given up at once. Before the engine is open there is
 * nothing to give up, and a signal ends the process right there. */
#ifndef DIBS_CLI_INTERRUPT_H
#define DIBS_CLI_INTERRUPT_H

#include "dibs.h"

#include <signal.h>

typedef struct cli_interrupt cli_interrupt;

/* The signals that `dibs run` takes itself: those that end, those that it passes on and those that
 * must not hit it. Blocks them all, puts SIGCHLD back to its default, and gives the mask that there
 * was. Signals that were ignored on entry (nohup, background jobs) stay ignored and are not taken.
 */
void cli_signals_take(sigset_t *passed_on, sigset_t *mask_before);

/* INT, TERM, HUP or QUIT. */
bool cli_signal_ends(int signal);

/* Tells a person what is waited for. */
typedef void (*cli_waiting_fn)(void *data, dibs *d);

/* Starts the thread; NULL: no memory or no thread. The signals must be taken. If stderr is a terminal,
 * `waiting` is called on it once, when the wait has taken a second. */
cli_interrupt *cli_interrupt_start(const sigset_t *passed_on, cli_waiting_fn waiting, void *data);

/* From now on a signal cancels the waits of this handle. */
void cli_interrupt_watch(cli_interrupt *i, dibs *d);

/* Ends the thread; the number of the signal that came, or 0. NULL is allowed. */
int cli_interrupt_end(cli_interrupt *i);

/* All of it: opens the engine and calls `obtain`, minding signals. The code of `obtain` (-1 to go on), or of what failed before, or 128 + n when signal n came: then
 * there may be something to give back. */
int cli_enter(const char *url, int64_t lease_ms, const sigset_t *passed_on, dibs **d,
              int (*obtain)(void *data), cli_waiting_fn waiting, void *data);

#endif
