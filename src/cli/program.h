/* The command is several programs, so that none loads libraries that it does not use. `dibs`, which people call, has
 * the engines without a server; `dibs-redis` and its like have one engine more each, and `dibs-all` has everything,
 * also the large subcommands. All are made of the same files: what differs is which engines they are linked with. */
#ifndef DIBS_CLI_PROGRAM_H
#define DIBS_CLI_PROGRAM_H

#include "cli.h"

#include <stdbool.h>

/* The subcommands that only `dibs-all` has; empty elsewhere. NULL-terminated. */
extern const cli_command *const cli_large[];

/* `argv[1]` is the subcommand; `here`: this program has it. Becomes the program that has it together with the engine
 * that is asked for. Returns if that is this one, or with an exit code (>= 0) if the other could not be started. */
int cli_become(bool here, char **argv);

#endif
