/* Sockets without a network. A connection is an eventfd that is readable while something was said and not read; what is
 * sent on it goes to the peer at once. */
#define _GNU_SOURCE
#include "fuzz/net.h"

#include "net/dial.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#define CONNECTIONS 32
#define TICK        (200 * DIBS__MS) /* of a read that blocks: connection.c's */

typedef struct net_link {
    int fd;
    uint8_t *said;
    size_t size, at;
    bool over, rings; /* `fd` is readable: it may block else */
} net_link;

static struct {
    const dibs__env *env;
    const drive_peer *peer;
    net_link link[CONNECTIONS];
    size_t links, most;
} net;

/* The newest that had this number. */
static net_link *link_of(int fd)
{
    for (size_t i = net.links; i-- > 0;)
        if (net.link[i].fd == fd)
            return &net.link[i];
    fuzz_broken("no connection of ours", __FILE__, __LINE__);
    return NULL;
}

static void ring(net_link *l)
{
    if (!l->rings)
        eventfd_write(l->fd, 1);
    l->rings = true;
}

void drive_say(size_t number, const void *data, size_t size)
{
    net_link *l = &net.link[number];

    if (l->over || size == 0)
        return;
    l->said = realloc(l->said, l->size + size);
    memcpy(l->said + l->size, data, size);
    l->size += size;
    ring(l);
}

void drive_hang_up(size_t number)
{
    net.link[number].over = true;
    ring(&net.link[number]);
}

dibs_status __wrap_dibs__dial(const dibs__env *env, const char *host, int port, int stop_fd,
                              dibs__deadline until, int *out, dibs_error *err);
ssize_t __wrap_send(int fd, const void *data, size_t size, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t size, int flags);

dibs_status __wrap_dibs__dial(const dibs__env *env, const char *host, int port, int stop_fd,
                              dibs__deadline until, int *out, dibs_error *err)
{
    net_link *l = &net.link[net.links];

    (void)env;
    (void)host;
    (void)port;
    (void)stop_fd;
    (void)until;
    if (net.links == net.most) {
        if (err)
            *err = (dibs_error){.status = DIBS_UNAVAILABLE, .message = "no more connections"};
        return DIBS_UNAVAILABLE;
    }
    *l = (net_link){.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    must(l->fd >= 0, "no descriptor");
    net.links++;
    *out = l->fd;
    return DIBS_OK;
}

ssize_t __wrap_send(int fd, const void *data, size_t size, int flags)
{
    net_link *l = link_of(fd);

    (void)flags;
    if (l->over) {
        errno = EPIPE;
        return -1;
    }
    net.peer->heard((size_t)(l - net.link), data, size);
    return (ssize_t)size;
}

ssize_t __wrap_recv(int fd, void *data, size_t size, int flags)
{
    net_link *l = link_of(fd);
    size_t n = fuzz_least(size, l->size - l->at);
    uint64_t count;

    if (n > 0) {
        memcpy(data, l->said + l->at, n);
        l->at += flags & MSG_PEEK ? 0 : n;
        return (ssize_t)n;
    }
    if (l->over)
        return 0;
    if (l->rings)
        eventfd_read(fd, &count);
    l->rings = false;
    if (!(flags & MSG_DONTWAIT))
        dibs__sleep(net.env, TICK);
    errno = EAGAIN;
    return -1;
}

void net_begin(const dibs__env *env, const drive_peer *peer, size_t connections)
{
    memset(&net, 0, sizeof net);
    net.env = env;
    net.peer = peer;
    net.most = fuzz_least(connections, CONNECTIONS);
}

void net_end(void)
{
    for (size_t i = 0; i < net.links; i++)
        free(net.link[i].said);
    net.links = 0;
}
