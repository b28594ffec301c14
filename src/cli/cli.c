/* Complaints, opening and finishing: the same for every subcommand. */
#include "cli.h"
#include "text.h"

#include <errno.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define EXAMPLE "user:password@" /* of messages that say how a URL is written */

static void say(const char *before, const char *format, va_list args, const char *after)
    __attribute__((format(printf, 2, 0)));

static void say(const char *before, const char *format, va_list args, const char *after)
{
    char message[2048];

    vsnprintf(message, sizeof message, format, args);
    for (char *at = strstr(message, "://"); at; at = strstr(at + 3, "://"))
        if (strncmp(at + 3, EXAMPLE, strlen(EXAMPLE)) != 0) /* a URL in the wrong place */
            cli_hide_login(at + 3, strcspn(at + 3, " "));
    fprintf(stderr, "dibs: %s", before);
    cli_print_line(stderr, message);
    fprintf(stderr, "%s\n", after);
}

void cli_say(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say("", format, args, "");
    va_end(args);
}

int cli_misused(const cli_command *command, const char *format, ...)
{
    char before[32], after[64];
    va_list args;

    snprintf(before, sizeof before, "%s: ", command->name);
    snprintf(after, sizeof after, " (see: dibs %s --help)", command->name);
    va_start(args, format);
    say(before, format, args, after);
    va_end(args);
    return CLI_EXIT_USAGE;
}

int cli_failed(const dibs_error *err)
{
    cli_say("%s", err->message[0] ? err->message : dibs_status_text(err->status));
    return dibs_status_exit_code(err->status);
}

int cli_open(const char *url, const dibs_options *options, dibs **out)
{
    dibs_error err = {0};
    dibs_engine_info engine;

    err.status = dibs_open(url, options, out, &err);
    if (err.status != DIBS_OK)
        return cli_failed(&err);
    engine = *dibs_engine_of(*out);
    if (engine.across_processes)
        return 0;
    cli_say("%s: its locks are visible in one process only, so not to other commands; "
            "use sqlite: or a server",
            engine.scheme);
    dibs_close(*out);
    *out = NULL;
    return CLI_EXIT_USAGE;
}

int cli_finish(int code)
{
    static bool reported;

    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    if (!reported) /* later the cause is not known any more */
        cli_say("cannot write the output: %s", strerror(errno));
    reported = true;
    return CLI_EXIT_OUTPUT;
}

const char *cli_operator(char out[DIBS_OWNER_MAX + 1])
{
    const struct passwd *user = getpwuid(geteuid());
    char host[65] = "";

    gethostname(host, sizeof host - 1);
    if (user)
        snprintf(out, DIBS_OWNER_MAX + 1, "%.60s@%s", user->pw_name, host);
    else
        snprintf(out, DIBS_OWNER_MAX + 1, "uid %ld@%s", (long)geteuid(), host);
    return out;
}
