/* What the subcommands of `dibs` share: how one is described, how it complains, how it opens an
 * engine.
 *
 * The command is a user of the library like any other: it sees dibs.h and nothing else of it. */
#ifndef DIBS_CLI_CLI_H
#define DIBS_CLI_CLI_H

#include "dibs.h"

/* Exit codes beside those that belong to a status (dibs_status_exit_code). */
enum {
    CLI_EXIT_USAGE = 64,
    CLI_EXIT_SYSTEM = 71,
    CLI_EXIT_OUTPUT = 74,
    CLI_EXIT_NOT_OBTAINED = 75,
    CLI_EXIT_LOST = 76,
    CLI_EXIT_NOT_EXECUTABLE = 126,
    CLI_EXIT_NOT_FOUND = 127,
    CLI_EXIT_SIGNAL = 128, /* plus its number */
};

typedef struct cli_command {
    const char *name;
    const char *summary; /* a line of `dibs --help` */
    const char *help;    /* all of `dibs NAME --help`: 24 lines of 80 columns at most */
    int (*run)(const struct cli_command *self, int argc, char **argv);
} cli_command;

extern const cli_command cli_run, cli_once, cli_token, cli_counter, cli_cell, cli_ls, cli_show,
    cli_break, cli_watch, cli_fence, cli_doctor, cli_engines, cli_schema, cli_serve, cli_gateway,
    cli_lab, cli_torture;

/* "dibs: …" and a newline on stderr. Control bytes of the message are shown escaped. */
void cli_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Says it with a hint at the command's help; returns CLI_EXIT_USAGE. */
int cli_misused(const cli_command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Opens the engine, or says why not and returns the exit code; 0: opened. Engines that live inside
 * one process are refused: no other command could ever see their locks. */
int cli_open(const char *url, const dibs_options *options, dibs **out);

/* Says what the library said; returns the exit code that belongs to it. */
int cli_failed(const dibs_error *err);

/* "user@host": who decides, for what is recorded. */
const char *cli_operator(char out[DIBS_OWNER_MAX + 1]);

/* Hands over what is left in stdout's buffer; `code`, or CLI_EXIT_OUTPUT when it could not be
 * written. */
int cli_finish(int code);

#endif
