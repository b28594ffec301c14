/* `dibs once ls|show|forget|resolve`, beside `dibs once KEY -- COMMAND`. */
#ifndef DIBS_CLI_KEYS_H
#define DIBS_CLI_KEYS_H

#include "cli.h"

/* Is it one of these, and not a run? */
bool cli_is_keys(int argc, char **argv);
extern const cli_command cli_keys; /* its name is once's: `dibs once ls --help` is its help */

#endif
