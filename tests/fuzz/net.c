/* Sockets without a network, a clock that only waiting moves, and threads that run when somebody waits.
 *
 * A connection is an eventfd, so that it can be polled by epoll too; what is sent on it goes to the peer at once. */
#define _GNU_SOURCE
#include "fuzz/net.h"

#include "core/dial.h"
#include "core/thread.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS 64
#define THREADS     64
#define TICK        (200 * DIBS__MS) /* of a read that blocks: connection.c's */

typedef struct link {
    int fd;
    uint8_t *said;
    size_t size, at;
    bool over;
} link_t;

static struct {
    const drive_peer *peer;
    int64_t now;
    uint64_t random;
    link_t link[CONNECTIONS];
    size_t links;
    struct {
        void *(*run)(void *arg);
        void *arg;
    } thread[THREADS];
    size_t threads;
} net;

/* ---- Clock ----------------------------------------------------------------------------------- */

static int64_t boottime(void *ctx)
{
    (void)ctx;
    return net.now += 10; /* nobody stands still in a loop */
}

static int64_t wall(void *ctx)
{
    (void)ctx;
    return 1700000000 * DIBS__SECOND + net.now;
}

static void draw(void *ctx, void *out, size_t size)
{
    uint8_t *to = out;

    (void)ctx;
    for (size_t i = 0; i < size; i++) {
        net.random = net.random * 6364136223846793005u + 1442695040888963407u;
        to[i] = (uint8_t)(net.random >> 56);
    }
}

static void rest(void *ctx, int64_t span)
{
    (void)ctx;
    net.now += span;
}

const dibs__env net_env = {boottime, wall, draw, rest, NULL};

/* ---- Connections ----------------------------------------------------------------------------- */

static link_t *link_of(int fd)
{
    for (size_t i = net.links; i-- > 0;)
        if (net.link[i].fd == fd)
            return &net.link[i];
    return NULL;
}

void drive_say(size_t number, const void *data, size_t size)
{
    link_t *l = &net.link[number];

    if (l->over || size == 0)
        return;
    l->said = realloc(l->said, l->size + size);
    memcpy(l->said + l->size, data, size);
    l->size += size;
}

void drive_hang_up(size_t number)
{
    net.link[number].over = true;
}

static int dial(void)
{
    link_t *l = &net.link[net.links];

    if (net.links == CONNECTIONS) {
        errno = ECONNREFUSED;
        return -1;
    }
    *l = (link_t){.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    must(l->fd >= 0, "no descriptor");
    net.peer->dialled(net.links++);
    return l->fd;
}

dibs_status __wrap_dibs__dial(const dibs__env *env, const char *host, int port, int stop_fd,
                              dibs__deadline until, int *out, dibs_error *err);
ssize_t __wrap_send(int fd, const void *data, size_t size, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t size, int flags);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout);
int __real_poll(struct pollfd *fds, nfds_t count, int timeout);
int __wrap_close(int fd);
int __real_close(int fd);
bool __wrap_dibs__thread_start_detached(void *(*run)(void *arg), void *arg);
void __wrap_dibs__cond_sleep(pthread_cond_t *cond, pthread_mutex_t *mutex, const dibs__env *env,
                             dibs__deadline until);

dibs_status __wrap_dibs__dial(const dibs__env *env, const char *host, int port, int stop_fd,
                              dibs__deadline until, int *out, dibs_error *err)
{
    (void)env;
    (void)host;
    (void)port;
    (void)stop_fd;
    (void)until;
    *out = dial();
    if (*out >= 0)
        return DIBS_OK;
    if (err)
        *err = (dibs_error){DIBS_UNAVAILABLE, "no more connections"};
    return DIBS_UNAVAILABLE;
}

ssize_t __wrap_send(int fd, const void *data, size_t size, int flags)
{
    link_t *l = link_of(fd);

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
    link_t *l = link_of(fd);
    size_t n = fuzz_least(size, l->size - l->at);

    if (n > 0) {
        memcpy(data, l->said + l->at, n);
        l->at += flags & MSG_PEEK ? 0 : n;
        return (ssize_t)n;
    }
    if (l->over)
        return 0;
    if (!(flags & MSG_DONTWAIT))
        net.now += TICK;
    errno = EAGAIN;
    return -1;
}

/* Descriptors that are none of ours are asked for as they are. */
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout)
{
    int ready = 0;

    net_run_threads();
    for (nfds_t i = 0; i < count; i++) {
        link_t *l = fds[i].fd < 0 ? NULL : link_of(fds[i].fd);
        fds[i].revents = 0;
        if (l && (l->over || l->at < l->size))
            fds[i].revents = POLLIN;
        else if (!l && fds[i].fd >= 0)
            __real_poll(&fds[i], 1, 0);
        ready += fds[i].revents != 0;
    }
    if (ready == 0)
        net.now += timeout < 0 ? DIBS__SECOND : timeout * DIBS__MS;
    return ready;
}

int __wrap_close(int fd)
{
    link_t *l = link_of(fd);

    if (l)
        l->fd = -1;
    return __real_close(fd);
}

/* ---- Threads --------------------------------------------------------------------------------- */

bool __wrap_dibs__thread_start_detached(void *(*run)(void *arg), void *arg)
{
    if (net.threads == THREADS)
        return false;
    net.thread[net.threads].run = run;
    net.thread[net.threads++].arg = arg;
    return true;
}

void net_run_threads(void)
{
    while (net.threads > 0) {
        net.threads--;
        net.thread[net.threads].run(net.thread[net.threads].arg);
    }
}

void __wrap_dibs__cond_sleep(pthread_cond_t *cond, pthread_mutex_t *mutex, const dibs__env *env,
                             dibs__deadline until)
{
    (void)cond;
    (void)env;
    pthread_mutex_unlock(mutex);
    net_run_threads();
    pthread_mutex_lock(mutex);
    net.now += fuzz_least(100 * DIBS__MS, until > net.now ? (size_t)(until - net.now) : 0);
}

/* ---- Beginning and end ----------------------------------------------------------------------- */

void net_begin(const drive_peer *peer)
{
    memset(&net, 0, sizeof net);
    net.peer = peer;
    net.now = 1000 * DIBS__SECOND;
}

void net_end(void)
{
    net_run_threads();
    for (size_t i = 0; i < net.links; i++) {
        must(net.link[i].fd < 0, "a connection was left open");
        free(net.link[i].said);
    }
}
