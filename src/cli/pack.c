/* A command and everything that it started; see the header. */
#include "pack.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int64_t cli_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

bool cli_pack_reap(cli_pack *p)
{
    bool deaths = false;
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0) {
        deaths |= !WIFSTOPPED(status);
        if (pid != p->leader)
            continue;
        if (WIFSTOPPED(status)) {
            p->stopped = WSTOPSIG(status);
        } else {
            p->ended = true;
            p->status = status;
        }
    }
    p->alone = pid < 0 && errno == ECHILD;
    return deaths;
}

void cli_pack_signal(const cli_pack *p, int signal)
{
    if (!cli_pack_over(p))
        kill(-p->leader, signal);
}

static void end_child(const cli_pack *p, pid_t pid, int signal)
{
    if (pid <= 0 || getpgid(pid) == p->leader)
        return;
    kill(pid, signal);
    kill(pid, SIGCONT);
}

/* The kernel lists the children of a thread as decimal numbers. Only our own child can have such a
 * number, since nobody but us reaps it. Without that list (an old kernel) we wait for those who
 * left the group. */
void cli_pack_end_strays(const cli_pack *p, int signal)
{
    char text[4096];
    ssize_t n;
    pid_t pid = 0;
    int fd = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return;
    while ((n = read(fd, text, sizeof text)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            if (text[i] >= '0' && text[i] <= '9') {
                pid = pid * 10 + (text[i] - '0');
                continue;
            }
            end_child(p, pid, signal);
            pid = 0;
        }
    end_child(p, pid, signal);
    close(fd);
}

void cli_pack_end(const cli_pack *p, int signal)
{
    cli_pack_signal(p, signal);
    cli_pack_signal(p, SIGCONT);
    cli_pack_end_strays(p, signal);
}

/* A group ends when its last member is reaped; its number is not used again before. */
bool cli_pack_over(const cli_pack *p)
{
    return p->leader <= 0 || (kill(-p->leader, 0) < 0 && errno == ESRCH);
}

bool cli_pack_gone(const cli_pack *p)
{
    return p->alone && cli_pack_over(p);
}
