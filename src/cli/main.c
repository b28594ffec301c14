/* The command `dibs`: finds the subcommand, in this program or in another (program.h), and runs it. */
#include "inherited.h"
#include "options.h"
#include "program.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

static const cli_command *const commands[] = {
    &cli_run,  &cli_once,  &cli_token, &cli_counter, &cli_cell,   &cli_ls,
    &cli_show, &cli_break, &cli_watch, &cli_fence,   &cli_doctor, NULL,
};

static void print_usage(FILE *to)
{
    fputs("usage: dibs COMMAND [OPTION...] ...       (dibs help COMMAND shows its options)\n"
          "Distributed locks with fencing tokens, and idempotent commands.\n",
          to);
    for (size_t i = 0; commands[i]; i++)
        fprintf(to, "  %-8s %s\n", commands[i]->name, commands[i]->summary);
    for (size_t i = 0; cli_large[i]; i++)
        fprintf(to, "  %-8s %s\n", cli_large[i]->name, cli_large[i]->summary);
    fputs("Engine: --url URL (redis://host, ...) or --url-file FILE, else $DIBS_URL or the\n"
          "file $DIBS_URL_FILE, else the embedded store: one per user; for root, that of\n"
          "the machine (sqlite:machine). Durations: 500ms, 5s (or 5), 1h30m, 7d.\n"
          "  dibs run nightly -- ./backup.sh   wait for the lock, then run the command\n"
          "  dibs once order:17 -- ./pay.sh    run it, or replay the first run's output\n",
          to);
}

static const cli_command *find_in(const cli_command *const list[], const char *name)
{
    while (*list && strcmp((*list)->name, name) != 0)
        list++;
    return *list;
}

static const cli_command *find_command(const char *name)
{
    const cli_command *command = find_in(commands, name);

    return command ? command : find_in(cli_large, name);
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

static int complain(const char *word)
{
    const char *what = "unknown command";

    if (is_one_of(word, "--url", "--url-file"))
        what = "no COMMAND after";
    else if (word[0] == '-')
        what = "unknown option";
    cli_say("%s '%.*s' (see: dibs help)", what, (int)strcspn(word, word[0] == '-' ? "=" : ""),
            word);
    return CLI_EXIT_USAGE;
}

/* `dibs help [COMMAND]` */
static int help(int argc, char **argv)
{
    const cli_command *command = argc > 0 ? find_command(argv[0]) : NULL;

    if (argc > 0 && !command && !is_one_of(argv[0], "help", "--help"))
        return complain(argv[0]);
    if (command)
        fputs(command->help, stdout);
    else
        print_usage(stdout);
    return cli_finish(0);
}

/* What only the whole command answers: its large subcommands, help, and what is no subcommand. `moved`: argv[1] is
 * meant as one. */
static int answer(bool moved, int argc, char **argv)
{
    const cli_command *command;

    if (argc < 2) {
        print_usage(stderr);
        return CLI_EXIT_USAGE;
    }
    if (is_one_of(argv[1], "--help", "-h"))
        return help(0, NULL);
    if (!moved)
        return complain(argv[1]);
    if (strcmp(argv[1], "help") == 0)
        return help(argc - 2, argv + 2);
    command = find_in(cli_large, argv[1]);
    return command ? command->run(command, argc - 2, argv + 2) : complain(argv[1]);
}

int main(int argc, char **argv)
{
    const cli_command *command;
    bool moved;
    int code;

    fill_standard_descriptors();
    if (argc > 1 && is_one_of(argv[1], "--version", "-V")) {
        printf("dibs %s\n", dibs_version());
        return cli_finish(0);
    }
    moved = argc > 1 && !is_one_of(argv[1], "--help", "-h") && cli_move_options(argc - 1, argv + 1);
    command = moved ? find_in(commands, argv[1]) : NULL;
    code = cli_become(command != NULL, argv);
    if (code >= 0)
        return code;
    cli_inherited_note();
    return command ? command->run(command, argc - 2, argv + 2) : answer(moved, argc, argv);
}
