/* The environment of a command under locks: ours, with DIBS_NAME, DIBS_FENCE and DIBS_OWNER. */
#ifndef DIBS_CLI_ENVIRONMENT_H
#define DIBS_CLI_ENVIRONMENT_H

#include "dibs.h"

typedef struct cli_environment {
    char **list;   /* for exec; borrows what was inherited */
    char *ours[3]; /* the end of the list */
} cli_environment;

/* Names are separated by newlines and fences by spaces, in the order of the grants. False: out of
 * memory; there is something to free in any case. */
bool cli_environment_make(cli_environment *e, dibs_grant *const grants[], int count);
void cli_environment_free(cli_environment *e);

#endif
