/* `dibs-all`: it has everything, and never becomes another program. */
#include "program.h"

const cli_command *const cli_large[] = {
    &cli_engines, &cli_schema, &cli_serve, &cli_gateway,
#ifdef DIBS_HAVE_LAB
    &cli_lab,
#endif
    &cli_torture, NULL,
};

int cli_become(bool here, char **argv)
{
    (void)here;
    (void)argv;
    return -1;
}
