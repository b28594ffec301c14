/* Finds the checker and runs it. It is a program of its own that knows only the history. */
#define _GNU_SOURCE
#include "torture.h"

#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NO_VERDICT 2

/* $DIBS_TORTURE_CHECK, else the installed one, else that of the source tree this was built in. */
static const char *find(void)
{
    static const char *const places[] = {DIBS_TORTURE_INSTALLED, DIBS_TORTURE_SOURCE};
    const char *chosen = getenv("DIBS_TORTURE_CHECK");

    if (chosen && chosen[0])
        return chosen;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (access(places[i], R_OK) == 0)
            return places[i];
    return NULL;
}

int torture_check(const char *folder, bool json)
{
    const char *program = find();
    int status = 0;
    pid_t pid;

    if (!program || access(program, R_OK) != 0) {
        cli_say("there is no checker at %s; name it in $DIBS_TORTURE_CHECK",
                program ? program : DIBS_TORTURE_INSTALLED);
        return NO_VERDICT;
    }
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        execl("/usr/bin/env", "env", "python3", program, folder, json ? "--json" : NULL,
              (char *)NULL);
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) <= NO_VERDICT)
        return WEXITSTATUS(status);
    cli_say("the checker %s failed", program);
    return NO_VERDICT;
}
