/* What a command writes, passed on live and kept.
 *
 * A thread for each of stdout and stderr reads the command's pipe, keeps what it read and writes it
 * on. So a reader of ours that is slow (a pager) holds up the command, as it would without us, but
 * neither the renewals nor the other stream. Once the command is gone, cli_capture_stop takes what is
 * left in the pipes without waiting for anybody: what was kept is complete then, and the outcome can
 * be told to the engine while the slow reader still gets the rest.
 *
 * Where our own output cannot be written any more (nobody reads it, the disk is full), the pipe is
 * closed: the command learns it by SIGPIPE or EPIPE. */
#ifndef DIBS_CLI_CAPTURE_H
#define DIBS_CLI_CAPTURE_H

#include "guardian.h"

#include <stddef.h>

typedef struct cli_capture cli_capture;

/* What was kept. More than the limit, stdout and stderr together, is not kept at all. */
typedef struct cli_kept {
    const void *data[2]; /* stdout, stderr */
    size_t size[2];
    bool too_long; /* or there was no memory for it */
} cli_kept;

/* Makes the pipes and starts the threads; `to` are our own descriptors. NULL: see errno. SIGPIPE
 * must be blocked. */
cli_capture *cli_capture_open(const int to[2], size_t limit);

/* For cli_wrap. */
const cli_output *cli_capture_output(const cli_capture *c);

/* The command is gone. What it left behind in other groups writes to nobody from now on. */
void cli_capture_stop(cli_capture *c, cli_kept *out);

/* After stop: waits until everything is passed on, however long its reader takes. 0, or errno of the
 * first write that failed. */
int cli_capture_flush(cli_capture *c);

/* Writes all of it, also to a descriptor that does not block. 0, or errno. */
int cli_write_all(int fd, const void *data, size_t size);

/* After flush; `out` of stop is gone with it. NULL is allowed. */
void cli_capture_free(cli_capture *c);

#endif
