/* Non-blocking connects, so that a silent address costs its share of the time and no more. */
#define _GNU_SOURCE
#include "net/dial.h"

#include "core/error.h"
#include "net/resolve.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

/* 0, or what errno would say. */
static int await_connected(int fd, int stop_fd, const dibs__env *env, dibs__deadline until)
{
    struct pollfd p[2] = {{fd, POLLOUT, 0}, {stop_fd, POLLIN, 0}};
    int error = 0;
    socklen_t size = sizeof error;

    for (;;) {
        int left = dibs__poll_ms(env, until);
        int n = poll(p, 2, left);
        if (n > 0)
            break;
        if (n < 0 && errno != EINTR)
            return errno;
        if (left == 0)
            return ETIMEDOUT;
    }
    if (!p[0].revents)
        return ECANCELED;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 ? errno : error;
}

int dibs__dial_address(const dibs__env *env, const struct sockaddr *address, socklen_t size,
                       int stop_fd, dibs__deadline until)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int failed = 0, on = 1;

    if (fd < 0)
        return -1;
    if (connect(fd, address, size) < 0)
        failed = errno == EINPROGRESS || errno == EINTR ? await_connected(fd, stop_fd, env, until)
                                                        : errno;
    if (failed) {
        close(fd);
        errno = failed;
        return -1;
    }
    if (address->sa_family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static dibs_status refused(int failure, dibs_error *err)
{
    return dibs__fail_errno(err, DIBS_UNAVAILABLE, failure,
                            "cannot connect: %s; is the server running there?", strerror(failure));
}

dibs_status dibs__dial(const dibs__env *env, const char *host, int port, int stop_fd,
                       dibs__deadline until, int *out, dibs_error *err)
{
    struct addrinfo *list = NULL;
    dibs_status status = dibs__resolve(env, host, port, until, &list, err);
    int fd = -1, left = 0;

    if (status != DIBS_OK)
        return status;
    for (const struct addrinfo *a = list; a; a = a->ai_next)
        left++;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next, left--) {
        int64_t share = (until - dibs__now(env)) / left;
        fd = dibs__dial_address(env, a->ai_addr, a->ai_addrlen, stop_fd,
                                dibs__sooner(until, dibs__after(env, share)));
        if (fd < 0 && errno == ECANCELED)
            break;
    }
    if (fd < 0)
        status = refused(errno, err);
    freeaddrinfo(list);
    *out = fd;
    return status;
}
