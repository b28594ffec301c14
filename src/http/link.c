/* Connections in the loop; see the header. */
#define _GNU_SOURCE
#include "http/link.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <unistd.h>

/* ---- The loop -------------------------------------------------------------------------------- */

void http__links_bury(http_loop *loop)
{
    while (loop->dead) {
        http_link *l = loop->dead;
        loop->dead = l->next;
        l->released(l);
    }
}

static void leave(http_link *l)
{
    if (!l->again)
        return;
    *(l->previous ? &l->previous->next : &l->loop->first_again) = l->next;
    *(l->next ? &l->next->previous : &l->loop->last_again) = l->previous;
    l->again = false;
}

/* An edge of epoll would not do: a socket may take more although it does not say so. */
void http_link_again(http_link *l)
{
    http_loop *loop = l->loop;

    if (l->again || l->fd < 0)
        return;
    l->again = true;
    l->turn = loop->turn;
    l->next = NULL;
    l->previous = loop->last_again;
    *(l->previous ? &l->previous->next : &loop->first_again) = l;
    loop->last_again = l;
}

/* Those that come up meanwhile are for the next turn. */
void http__links_go(http_loop *loop)
{
    unsigned turn = ++loop->turn;

    while (loop->first_again && loop->first_again->turn != turn) {
        http_link *l = loop->first_again;
        leave(l);
        l->ready(l);
    }
}

/* TLS may have to write before it can read, and the other way round. */
void http__link_event(http_link *l, unsigned events)
{
    if (l->fd < 0)
        return;
    l->can_read |= l->tls || (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    l->can_write |= l->tls || (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
    l->hung_up |= (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    l->failed |= (events & EPOLLERR) != 0 || (events & (EPOLLHUP | EPOLLIN)) == EPOLLHUP;
    l->ready(l);
}

/* ---- A link ---------------------------------------------------------------------------------- */

bool http_link_open(http_link *l, http_loop *loop, int fd, SSL *tls)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = l};
    int on = 1;

    l->loop = loop;
    l->fd = fd;
    l->tls = tls;
    l->handshaking = tls != NULL;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

void http_link_close(http_link *l, bool abort)
{
    const struct linger hard = {.l_onoff = 1};

    if (l->fd < 0)
        return;
    if (abort) /* the peer must not take it for the end of an answer */
        setsockopt(l->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    else if (l->tls && !l->handshaking && !l->failed)
        SSL_shutdown(l->tls);
    SSL_free(l->tls);
    ERR_clear_error();
    l->tls = NULL;
    close(l->fd);
    l->fd = -1;
    l->failed = true;
    leave(l);
    l->next = l->loop->dead;
    l->loop->dead = l;
}

/* What a step of TLS that did not succeed means, as recv() says it. */
static ssize_t explain(http_link *l, int result)
{
    int kind = SSL_get_error(l->tls, result);

    errno = kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return kind == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

/* True: it can go on. */
static bool shake(http_link *l)
{
    int result;

    if (!l->handshaking)
        return true;
    ERR_clear_error();
    result = SSL_do_handshake(l->tls);
    if (result == 1) {
        l->handshaking = false;
        l->can_read = l->can_write = true;
        return true;
    }
    explain(l, result);
    l->failed |= errno != EAGAIN;
    l->can_read = l->can_write = false;
    return false;
}

/* A socket that gave less than it was asked for is empty: the next bytes are a new edge. Its end may have come before. */
static ssize_t receive(http_link *l, char *to, size_t size)
{
    ssize_t n;

    if (!l->tls) {
        n = recv(l->fd, to, size, 0);
        if (n < 0 && errno == EINTR)
            n = recv(l->fd, to, size, 0);
        l->can_read = l->hung_up || n <= 0 || (size_t)n == size;
        return n;
    }
    ERR_clear_error();
    n = SSL_read(l->tls, to, size > INT_MAX ? INT_MAX : (int)size);
    return n > 0 ? n : explain(l, (int)n);
}

bool http_link_read(http_link *l, http_buffer *b, size_t size)
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

static ssize_t deliver(http_link *l, const char *from, size_t size)
{
    int n;

    if (!l->tls)
        return send(l->fd, from, size, MSG_NOSIGNAL);
    ERR_clear_error();
    n = SSL_write(l->tls, from, size > INT_MAX ? INT_MAX : (int)size);
    return n > 0 ? n : explain(l, n) < 0 ? -1 : (errno = EPROTO, -1);
}

void http_link_write(http_link *l, http_buffer *b)
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

bool http_link_stale(const http_link *l)
{
    char byte;

    return l->failed || l->ended || l->fd < 0 ||
           recv(l->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}
