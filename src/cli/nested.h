/* A `dibs run` inside the command of another one. It would wait for ever for a lock that the outer one
 * holds until its command has ended, so it is noticed: DIBS_HELD lists what the runs around a command hold. */
#ifndef DIBS_CLI_NESTED_H
#define DIBS_CLI_NESTED_H

#include "dibs.h"

/* "DIBS_HELD=…": what is inherited, and these. NULL: out of memory; free() it. */
char *cli_nested_entry(dibs_grant *const grants[], int count);

/* May this be waited for? -1 to go on, or CLI_EXIT_USAGE after a complaint. A lock of the same name in
 * another store is another lock. */
int cli_nested_check(dibs *d, const char *name, const dibs_lock_options *options);

#endif
