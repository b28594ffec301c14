/* Job control; see the header. */
#include "terminal.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

/* In a pipeline that goes on after us (`dibs run … | less`) others of our group read the terminal
 * too: there the command gets it only when it asks, by being stopped for reading. */
static bool others_may_read(void)
{
    struct stat out;

    return fstat(STDOUT_FILENO, &out) == 0 && (S_ISFIFO(out.st_mode) || S_ISSOCK(out.st_mode));
}

void cli_terminal_open(cli_terminal *t)
{
    *t = (cli_terminal){.fd = open("/dev/tty", O_RDWR | O_CLOEXEC)};
    t->eager =
        t->fd >= 0 && isatty(STDIN_FILENO) && tcgetpgrp(t->fd) == getpgrp() && !others_may_read();
    t->lent = t->eager; /* the command takes it before it starts */
}

bool cli_terminal_lend(cli_terminal *t, pid_t group)
{
    if (t->fd < 0 || tcgetpgrp(t->fd) != getpgrp())
        return false;
    t->lent = tcsetpgrp(t->fd, group) == 0;
    return t->lent;
}

void cli_terminal_return(cli_terminal *t, pid_t group)
{
    if (t->fd >= 0 && t->lent && tcgetpgrp(t->fd) == group)
        tcsetpgrp(t->fd, getpgrp());
}

void cli_terminal_stop_job(const cli_terminal *t, int signal)
{
    sigset_t one;

    sigemptyset(&one);
    sigaddset(&one, signal);
    kill(t->lent ? 0 : getpid(), signal);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    pthread_sigmask(SIG_BLOCK, &one, NULL);
}
