/* Cuts the connections of other processes from outside: a descriptor of theirs is duplicated into this
 * process (pidfd_getfd) and shut down. Needs no privilege for children of the same user. */
#define _GNU_SOURCE
#include "coordinator.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool is_tcp(int fd)
{
    int domain = 0, type = 0;
    socklen_t size = sizeof domain;

    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0)
        return false;
    size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0)
        return false;
    return (domain == AF_INET || domain == AF_INET6) && type == SOCK_STREAM;
}

/* 1: shut down; 0: it is no TCP socket, or closed by now; -1: not allowed. */
static int cut_one(int pidfd, int number)
{
    int fd = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0), done;

    if (fd < 0)
        return errno == EBADF || errno == ESRCH ? 0 : -1;
    done = is_tcp(fd) && shutdown(fd, SHUT_RDWR) == 0;
    close(fd);
    return done;
}

static int cut_process(pid_t pid)
{
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0), cut = 0, one = 0, why;
    char path[64];
    struct dirent *e;
    DIR *dir;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    dir = pidfd >= 0 ? opendir(path) : NULL;
    why = errno;
    while (dir && one >= 0 && (e = readdir(dir)))
        if (isdigit((unsigned char)e->d_name[0])) {
            one = cut_one(pidfd, atoi(e->d_name));
            cut += one > 0;
            why = errno;
        }
    if (dir)
        closedir(dir);
    if (pidfd >= 0)
        close(pidfd);
    errno = why;
    if (!dir)
        return why == ESRCH || why == ENOENT ? 0 : -1;
    return one < 0 ? -1 : cut;
}

int torture_cut(pid_t group)
{
    DIR *dir = opendir("/proc");
    int cut = 0, one = 0;
    struct dirent *e;

    while (dir && one >= 0 && (e = readdir(dir))) {
        pid_t pid = isdigit((unsigned char)e->d_name[0]) ? atoi(e->d_name) : 0;
        if (pid <= 0 || getpgid(pid) != group)
            continue;
        one = cut_process(pid);
        cut += one > 0 ? one : 0;
    }
    if (dir)
        closedir(dir); /* succeeds, and leaves errno alone */
    return one < 0 || !dir ? -1 : cut;
}
