#define _GNU_SOURCE
#include "support/helper.h"

#include "support/clock.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void become_holder(const char *url, int in, int out)
{
    const char *program = getenv("DIBS_TEST_HOLDER");

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(in, 0);
    dup2(out, 1);
    if (program)
        execl(program, program, url, (char *)NULL);
    _exit(127);
}

int helper_start(helper *h, const char *url)
{
    int up[2], down[2];

    memset(h, 0, sizeof *h);
    if (pipe2(up, O_CLOEXEC) < 0 || pipe2(down, O_CLOEXEC) < 0)
        return -1;
    h->pid = fork();
    if (h->pid == 0)
        become_holder(url, up[0], down[1]);
    close(up[0]);
    close(down[1]);
    h->to = up[1];
    h->from = down[0];
    if (h->pid > 0 && strcmp(helper_hear(h, 10000), "ready") == 0)
        return 0;
    helper_end(h);
    return -1;
}

void helper_say(helper *h, const char *command)
{
    dprintf(h->to, "%s\n", command);
}

const char *helper_hear(helper *h, int64_t ms)
{
    static char line[1200];
    size_t n = 0;
    int64_t end = clock_ms() + ms;

    while (n < sizeof line - 1) {
        int64_t left = end - clock_ms();
        struct pollfd p = {.fd = h->from, .events = POLLIN};
        if (poll(&p, 1, left > 0 ? (int)left : 0) <= 0 || read(h->from, &line[n], 1) != 1)
            return "";
        if (line[n] == '\n')
            break;
        n++;
    }
    line[n] = '\0';
    return line;
}

const char *helper_ask(helper *h, const char *command)
{
    helper_say(h, command);
    return helper_hear(h, 10000);
}

void helper_signal(helper *h, int signal)
{
    int status;

    kill(h->pid, signal);
    if (signal == SIGSTOP)
        waitpid(h->pid, &status, WUNTRACED);
    if (signal == SIGKILL) {
        waitpid(h->pid, &status, 0);
        h->pid = 0;
    }
}

void helper_end(helper *h)
{
    if (h->pid > 0)
        helper_signal(h, SIGKILL);
    if (h->to > 0)
        close(h->to);
    if (h->from > 0)
        close(h->from);
    memset(h, 0, sizeof *h);
}
