/* `dibs gateway` in a build without OpenSSL: says so. */
#include "cli/cli.h"

static int run(const cli_command *self, int argc, char **argv)
{
    (void)self;
    (void)argc;
    (void)argv;
    cli_say("this dibs was built without dibs gateway: install libssl-dev and build again");
    return CLI_EXIT_USAGE;
}

const cli_command cli_gateway = {"gateway", "guard an HTTP application by Idempotency-Key",
                                 "usage: dibs gateway (this build lacks it)\n", run};
