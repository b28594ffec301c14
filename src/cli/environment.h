/* The environment of a command: ours, with what dibs has to tell it. Variables of an outer dibs are
 * replaced or taken out: what is there always belongs together. */
#ifndef DIBS_CLI_ENVIRONMENT_H
#define DIBS_CLI_ENVIRONMENT_H

#include "dibs.h"

#define CLI_VARIABLES 7

typedef struct cli_environment {
    char **list;               /* for exec; borrows what was inherited */
    size_t used;               /* entries so far */
    char *ours[CLI_VARIABLES]; /* those to free; NULL: not there */
} cli_environment;

/* Both: false when out of memory; there is something to free in any case. */

/* DIBS_NAME, DIBS_FENCE, DIBS_OWNER, and DIBS_HELD with what is inherited (nested.h). Names are separated by newlines and fences by spaces, in the
 * order of the grants. */
bool cli_environment_of_locks(cli_environment *e, dibs_grant *const grants[], int count);

/* DIBS_SCOPE, DIBS_KEY, DIBS_FENCE, DIBS_OWNER; DIBS_AGAIN=1 when an earlier runner died. */
bool cli_environment_of_once(cli_environment *e, const char *scope, const char *key,
                             const dibs_once *o);

void cli_environment_free(cli_environment *e);

#endif
