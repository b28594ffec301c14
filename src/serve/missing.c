/* `dibs serve` in a build without OpenSSL: says so. */
#include "cli/cli.h"

static int run(const cli_command *self, int argc, char **argv)
{
    (void)self;
    (void)argc;
    (void)argv;
    cli_say("this dibs was built without dibs serve: install libssl-dev and build again");
    return CLI_EXIT_USAGE;
}

const cli_command cli_serve = {"serve", "serve locks over HTTP, with a dashboard",
                               "usage: dibs serve (this build lacks it)\n", run};
