/* The guardian: a small process between `dibs run` or `dibs once` (the wrapper) and COMMAND.
 *
 * It holds the deadline of the lock on a timer and has COMMAND as its child. The wrapper moves the
 * deadline over a pipe whenever the lock was renewed. When the wrapper dies (the pipe ends), is
 * stopped (the deadline is not moved) or says that the lock is lost, the guardian ends COMMAND and
 * everything that it started: TERM first, KILL later, all of it gone before the deadline. On
 * engines that notice a dead process the guardian stands in for the wrapper: the lock passes on
 * only when the guardian is gone too, and it goes last.
 *
 * After the fork it uses async-signal-safe calls alone: the wrapper has threads. All signals are
 * blocked in it. */
#ifndef DIBS_CLI_GUARDIAN_H
#define DIBS_CLI_GUARDIAN_H

#include "dibs.h"
#include "pack.h"

#include <signal.h>

/* Wrapper to guardian. */
typedef struct cli_order {
    enum { CLI_ORDER_DEADLINE, CLI_ORDER_SIGNAL, CLI_ORDER_END } kind;
    int signal;
    int64_t deadline; /* on cli_now */
} cli_order;

/* Guardian to wrapper. */
typedef struct cli_news {
    enum {
        CLI_NEWS_STARTED,    /* value: COMMAND's pid, which is its group */
        CLI_NEWS_NOT_RUN,    /* value: errno of exec */
        CLI_NEWS_NO_SUPPORT, /* value: a dibs_status, or errno negated: COMMAND was not started */
        CLI_NEWS_STOPPED,    /* value: by which signal */
        CLI_NEWS_ENDED, /* value: COMMAND's wait status; what it left in its group may still run */
        CLI_NEWS_GONE,  /* value: a cli_reason; the guardian's last word */
    } kind;
    int value;
} cli_news;

/* Why the guardian ended the command; NONE: it came to its end by itself. */
typedef enum cli_reason {
    CLI_REASON_NONE,
    CLI_REASON_DEADLINE,
    CLI_REASON_LOST,
    CLI_REASON_ORPHANED
} cli_reason;

/* When to ask a command to end and when to kill it. */
typedef struct cli_schedule {
    int64_t term_at;
    int64_t kill_at;
} cli_schedule;

/* Pipes for what COMMAND writes to stdout and stderr, made by the wrapper, which reads them. */
typedef struct cli_output {
    int read[2];
    int write[2];
} cli_output;

/* What to run, and under which deadline. Borrowed for the call. */
typedef struct cli_job {
    dibs *d;
    char **argv;
    char **environment;
    const cli_output *output; /* NULL: COMMAND writes to our own stdout and stderr */
    sigset_t mask;            /* the signal mask that COMMAND gets */
    int terminal;  /* descriptor whose foreground the command takes before it starts; -1: none */
    int64_t lease; /* microseconds */
    int64_t deadline;
    cli_schedule latest; /* however often the lock is renewed; 0: no bound */
} cli_job;

typedef struct cli_guardian {
    pid_t pid;
    int orders; /* write end, non-blocking */
    int news;   /* read end, non-blocking */
} cli_guardian;

/* Forks it. All signals that the process gets must be blocked. 0, or errno. */
int cli_guardian_start(const cli_job *job, cli_guardian *out);

/* From now on, for a lock with this lease whose deadline was just moved, so that the command is gone
 * before. It has up to a sixth of the lease to end after TERM, five seconds at most; and what KILL
 * needs comes off on top. */
cli_schedule cli_schedule_make(int64_t now, int64_t deadline, int64_t lease, cli_schedule latest);

/* For a command that may run for so long: KILL a twenty-fifth of that before (250 ms at most), TERM
 * a twentieth before KILL (five seconds at most). */
cli_schedule cli_schedule_within(int64_t start, int64_t span);

/* TERM now; KILL five seconds later or when the schedule says, whichever comes first. */
cli_schedule cli_schedule_hurry(int64_t now, cli_schedule planned);

#endif
