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

/* Runs this program where it was built? Then its checker is in the source tree; an installed one may be
 * older. An installed program never looks there: the folder may be somebody else's by now. */
static bool is_uninstalled(void)
{
    char self[4096];
    ssize_t size = readlink("/proc/self/exe", self, sizeof self);
    size_t root = strlen(DIBS_TORTURE_BUILD);

    return size > (ssize_t)root && memcmp(self, DIBS_TORTURE_BUILD "/", root + 1) == 0;
}

static const char *find(void)
{
    const char *chosen = getenv("DIBS_TORTURE_CHECK");

    if (chosen && chosen[0])
        return chosen;
    return is_uninstalled() ? DIBS_TORTURE_SOURCE : DIBS_TORTURE_INSTALLED;
}

int torture_check(const char *folder, bool json)
{
    const char *program = find();
    int status = 0;
    pid_t pid;

    if (access(program, R_OK) != 0) {
        cli_say("no checker at %s; set $DIBS_TORTURE_CHECK to its path", program);
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
