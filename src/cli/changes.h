/* What changed between two lists of locks, told a line each: for `dibs watch` when nobody looks at
 * a screen. */
#ifndef DIBS_CLI_CHANGES_H
#define DIBS_CLI_CHANGES_H

#include "dibs.h"

/* Prints to stdout. `before` may be NULL: then everything that there is counts as new. */
void cli_changes_print(const dibs_lock_report *before, const dibs_lock_report *after, bool json);

#endif
