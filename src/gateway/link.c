/* Connections in the loop; see the header. */
#define _GNU_SOURCE
#include "gateway/link.h"

#include <errno.h>
#include <gnutls/gnutls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { EVENTS = 256 };

/* ---- The loop -------------------------------------------------------------------------------- */

bool gate_loop_open(gate_loop *loop)
{
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    return loop->epoll >= 0;
}

static void bury(gate_loop *loop)
{
    while (loop->dead) {
        gate_link *l = loop->dead;
        loop->dead = l->next_dead;
        l->released(l);
    }
}

void gate_loop_close(gate_loop *loop)
{
    bury(loop);
    if (loop->epoll >= 0)
        close(loop->epoll);
}

static void on_event(gate_link *l, unsigned events)
{
    if (l->fd < 0)
        return;
    l->can_read |= (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    l->can_write |= (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
    l->failed |= (events & EPOLLERR) != 0 || (events & (EPOLLHUP | EPOLLIN)) == EPOLLHUP;
    l->ready(l);
}

/* One batch: the outer loop comes back while there is more, and looks at its other descriptors in between. */
void gate_loop_run(void *data)
{
    gate_loop *loop = data;
    struct epoll_event events[EVENTS];
    int n = epoll_wait(loop->epoll, events, EVENTS, 0);

    for (int i = 0; i < n; i++)
        on_event(events[i].data.ptr, events[i].events);
    bury(loop);
}

/* ---- A link ---------------------------------------------------------------------------------- */

static bool arm(gate_link *l, int how)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = l};

    return epoll_ctl(l->loop->epoll, how, l->fd, &event) == 0;
}

/* Arming it anew makes an edge of what is ready already. */
void gate_link_again(gate_link *l)
{
    arm(l, EPOLL_CTL_MOD);
}

bool gate_link_open(gate_link *l, gate_loop *loop, int fd, gnutls_session_t tls)
{
    int on = 1;

    l->loop = loop;
    l->fd = fd;
    l->tls = tls;
    l->handshaking = tls != NULL;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return arm(l, EPOLL_CTL_ADD);
}

void gate_link_close(gate_link *l, bool abort)
{
    const struct linger hard = {.l_onoff = 1};

    if (l->fd < 0)
        return;
    if (abort) /* the peer must not take it for the end of an answer */
        setsockopt(l->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    else if (l->tls && !l->handshaking)
        gnutls_bye(l->tls, GNUTLS_SHUT_WR);
    if (l->tls)
        gnutls_deinit(l->tls);
    l->tls = NULL;
    close(l->fd);
    l->fd = -1;
    l->failed = true;
    l->next_dead = l->loop->dead;
    l->loop->dead = l;
}

/* True: it can go on. */
static bool shake(gate_link *l)
{
    int result;

    if (!l->handshaking)
        return true;
    result = gnutls_handshake(l->tls);
    if (result == 0) {
        l->handshaking = false;
        l->can_read = l->can_write = true;
    } else if (result == GNUTLS_E_AGAIN) {
        l->can_read = l->can_write = false;
    } else if (gnutls_error_is_fatal(result)) {
        l->failed = true;
    }
    return result == 0;
}

static ssize_t receive(gate_link *l, char *to, size_t size)
{
    ssize_t n;

    if (!l->tls) {
        n = recv(l->fd, to, size, 0);
        return n < 0 && errno == EINTR ? recv(l->fd, to, size, 0) : n;
    }
    n = gnutls_record_recv(l->tls, to, size);
    errno = n == GNUTLS_E_AGAIN || n == GNUTLS_E_INTERRUPTED ? EAGAIN : EPROTO;
    if (n == GNUTLS_E_PREMATURE_TERMINATION)
        l->failed = true;
    return n;
}

bool gate_link_read(gate_link *l, http_buffer *b, size_t size)
{
    char *to;
    ssize_t n;

    if (l->fd < 0 || !l->can_read || l->ended || !shake(l))
        return false;
    to = http_buffer_reserve(b, size);
    n = to ? receive(l, to, size) : -1;
    if (n > 0) {
        b->to += (size_t)n;
        return true;
    }
    if (n == 0)
        l->ended = true;
    else if (to && errno == EAGAIN)
        l->can_read = false;
    else
        l->failed = true;
    return false;
}

static ssize_t deliver(gate_link *l, const char *from, size_t size)
{
    ssize_t n;

    if (!l->tls)
        return send(l->fd, from, size, MSG_NOSIGNAL);
    n = gnutls_record_send(l->tls, from, size);
    errno = n == GNUTLS_E_AGAIN || n == GNUTLS_E_INTERRUPTED ? EAGAIN : EPROTO;
    return n;
}

void gate_link_write(gate_link *l, http_buffer *b)
{
    if (b->failed)
        l->failed = true;
    while (l->fd >= 0 && !l->failed && http_buffer_size(b) > 0 && l->can_write && shake(l)) {
        ssize_t n = deliver(l, http_buffer_start(b), http_buffer_size(b));
        if (n >= 0)
            http_buffer_drop(b, (size_t)n);
        else if (errno == EAGAIN)
            l->can_write = false;
        else
            l->failed = true;
    }
}

bool gate_link_stale(const gate_link *l)
{
    char byte;

    return l->failed || l->ended || l->fd < 0 ||
           recv(l->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}
