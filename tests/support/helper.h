/* Runs support/holder.c as a process and talks to it. */
#ifndef DIBS_TESTS_HELPER_H
#define DIBS_TESTS_HELPER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

typedef struct helper {
    pid_t pid; /* 0: not running */
    int to, from;
} helper;

/* Starts it ($DIBS_TEST_HOLDER) on `url` and waits until it is ready. 0 or -1. */
int helper_start(helper *h, const char *url);
void helper_say(helper *h, const char *command); /* does not wait */
/* The next line it says, without its end; "" when none came within `ms`. Valid until the next call.
 */
const char *helper_hear(helper *h, int64_t ms);
/* Says and hears; at most ten seconds. */
const char *helper_ask(helper *h, const char *command);

/* SIGSTOP and SIGKILL return when it has stopped or is reaped. */
void helper_signal(helper *h, int signal);
void helper_end(helper *h); /* kills it, if it is there */

#endif
