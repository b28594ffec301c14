/* A command and everything that it started.
 *
 * The leader has its own process group; what it starts stays in that group unless it leaves it
 * (setsid). The process that keeps a pack is a child subreaper, so that whatever loses its parent
 * becomes its child: nothing gets away unseen, and "gone" means reaped, not only signalled.
 *
 * Everything here is async-signal-safe: the guardian is forked from a process with threads. */
#ifndef DIBS_CLI_PACK_H
#define DIBS_CLI_PACK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct cli_pack {
    pid_t leader;
    bool ended;  /* the leader is reaped, `status` is as from waitpid */
    int status;  /* -1: not known */
    int stopped; /* the signal that stopped the leader; 0: it runs. The caller sets it back */
    bool alone;  /* the last reaping found that there is no child left at all */
} cli_pack;

/* Collects everybody who ended, and notes how the leader is. Never blocks. True: somebody had
 * ended. */
bool cli_pack_reap(cli_pack *p);

/* To the leader's group. */
void cli_pack_signal(const cli_pack *p, int signal);

/* To every child of ours outside the group. A stopped process is continued so that it hears. */
void cli_pack_end_strays(const cli_pack *p, int signal);

/* To both, in the same way. */
void cli_pack_end(const cli_pack *p, int signal);

/* Has the leader's group come to its end? Those who left it may go on. */
bool cli_pack_over(const cli_pack *p);

/* Is nothing left of it, inside the group or out? */
bool cli_pack_gone(const cli_pack *p);

/* CLOCK_BOOTTIME in microseconds: it goes on while the host sleeps, as leases do. */
int64_t cli_now(void);

#endif
