/* The command `dibs`: finds the subcommand and runs it. */
#include "cli.h"
#include "inherited.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

static const cli_command *const commands[] = {
    &cli_run,  &cli_once,  &cli_token, &cli_counter, &cli_cell,    &cli_ls,
    &cli_show, &cli_break, &cli_watch, &cli_doctor,  &cli_engines, &cli_schema,
#ifdef DIBS_HAVE_LAB
    &cli_lab,
#endif
    NULL,
};

static void print_usage(FILE *to)
{
    fputs("dibs: call dibs on a thing: locks with a fencing token, across machines\n\n"
          "usage: dibs COMMAND [--url URL] ...\n\n",
          to);
    for (size_t i = 0; commands[i]; i++)
        fprintf(to, "  %-8s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\n"
          "URL names the engine: sqlite:///path, redis://host, ... Default: $DIBS_URL,\n"
          "else the embedded store in the user's state folder (dibs engines lists all).\n"
          "Durations are written 500ms, 5s, 2m, 1h, 7d.\n"
          "  dibs run nightly -- ./backup.sh   wait for the lock, then run\n"
          "  dibs once order:17 -- ./pay.sh    run it, or say again what it said\n"
          "dibs COMMAND --help says more; so do dibs(1), dibs-run(1) and dibs-once(1).\n",
          to);
}

static const cli_command *find_command(const char *name)
{
    for (size_t i = 0; commands[i]; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

static bool is_one_of(const char *word, const char *a, const char *b)
{
    return strcmp(word, a) == 0 || strcmp(word, b) == 0;
}

/* A file of ours that got the number of a closed stdout would be written into. What stands there
 * instead fails where a closed one would. */
static void fill_standard_descriptors(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDONLY};

    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", modes[fd]); /* the lowest number that is free */
}

int main(int argc, char **argv)
{
    const cli_command *command;

    fill_standard_descriptors();
    cli_inherited_note();
    if (argc < 2) {
        print_usage(stderr);
        return CLI_EXIT_USAGE;
    }
    if (is_one_of(argv[1], "--help", "-h")) {
        print_usage(stdout);
        return cli_finish(0);
    }
    if (is_one_of(argv[1], "--version", "-V")) {
        printf("dibs %s\n", dibs_version());
        return cli_finish(0);
    }
    command = find_command(argv[1]);
    if (command)
        return command->run(command, argc - 2, argv + 2);
    cli_say("%s '%s' (see: dibs --help)",
            argv[1][0] == '-' ? "unknown option" : "there is no command", argv[1]);
    return CLI_EXIT_USAGE;
}
