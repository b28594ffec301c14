/* `dibs lab shop` in a build without libmicrohttpd: says so. */
#include "lab/command.h"

int lab_verb_shop(const cli_command *self, int argc, char **argv)
{
    (void)self;
    (void)argc;
    (void)argv;
    cli_say("this dibs was built without libmicrohttpd: install libmicrohttpd-dev and build again");
    return dibs_status_exit_code(DIBS_UNSUPPORTED);
}
