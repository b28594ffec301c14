/* `dibs lab`: finds the verb and runs it. */
#include "command.h"

#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: dibs lab list [--json]\n"
    "       dibs lab run [STRATEGY...] [--processes P] [--threads T] [--loops L]\n"
    "                    [--stock S] [--limit D] [--with-servers] [--json]\n"
    "       dibs lab hazards [STRATEGY...] [--with-servers] [--json]\n"
    "       dibs lab report [STRATEGY...] [-o FOLDER] [--from JSON] ...\n"
    "       dibs lab shop --strategy NAME [--url URL] [--port P] ...\n"
    "       dibs lab adapter STRATEGY [--url URL]\n"
    "Runs well-known locking schemes, and dibs itself, on the sale of a stock, and\n"
    "reports which of them oversell. STRATEGY is a name or a row of `dibs lab list`\n"
    "(default: all). Defaults: 1 process, 50 threads, 100 loops, stock 5000.\n"
    "adapter lets `dibs torture --adapter` test a strategy that is a lock.\n\n"
    "  --with-servers    start private servers on free ports; they end with dibs\n"
    "  --redis URL  --redlock URL  --mysql URL  --postgresql URL  --sqlite URL\n"
    "  --zookeeper URL  --etcd URL\n"
    "                    or use these: tables lab_... and keys stock:... are created\n"
    "                    and overwritten there\n"
    "  --limit D         end a run that takes longer than D (default 2m)\n\n"
    "Exit: 0, or 1 if dibs, or a scheme that should be correct, was not.\n";

static int start(const cli_command *self, int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const cli_command *, int, char **);
    } verbs[] = {{"adapter", lab_verb_adapter}, {"list", lab_verb_list},
                 {"run", lab_verb_run},         {"hazards", lab_verb_hazards},
                 {"report", lab_verb_report},   {"shop", lab_verb_shop}};

    cli_move_options(argc, argv); /* those that stood before `lab` */
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        fputs(help, stdout);
        return cli_finish(0);
    }
    if (argc == 0)
        return cli_misused(self, "give a subcommand: list, run, hazards, report, shop or adapter");
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
        if (strcmp(argv[0], verbs[i].name) == 0)
            return verbs[i].run(self, argc - 1, argv + 1);
    return cli_misused(self, "unknown subcommand '%s': use list, run, hazards, report or shop",
                       argv[0]);
}

const cli_command cli_lab = {"lab", "run well-known locking schemes, and see which oversell", help,
                             start};
