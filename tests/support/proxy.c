#define _GNU_SOURCE
#include "support/proxy.h"

#include "support/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINKS_MAX  256
#define CHUNK_SIZE 16384

typedef struct rule {
    int64_t cut, swallow, strand; /* bytes to go; -1: no such rule */
    bool cut_resets;
    bool frozen;
    int64_t drip, delay; /* ms; 0: none */
} rule;

/* One direction of one connection: what was read and is not yet passed on. */
typedef struct lane {
    char data[CHUNK_SIZE];
    size_t size;
    int64_t due; /* not before */
    bool ended;  /* the reading end said so */
} lane;

typedef struct link {
    int fd[2]; /* by the way that is read from it: [UP] client, [DOWN] server */
    lane lane[2];
    proxy_way spoke; /* last */
    bool stranded;   /* what the client says is kept back */
    bool delivered;  /* it was, until now */
    bool lossy;      /* bytes were swallowed */
} link_t;

struct proxy {
    int listener, port, server_port, wake;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards all below */
    rule rule[2];
    bool refuse, drop, drop_resets, stop;
    proxy_counts counts;
    link_t *links[LINKS_MAX];
};

/* ---- Connections ----------------------------------------------------------------------------- */

static int dial(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void prepare(int fd)
{
    int on = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, O_NONBLOCK);
}

static void close_link(proxy *p, size_t i, bool reset)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};

    for (int k = 0; k < 2; k++) {
        if (p->links[i]->fd[k] < 0)
            continue;
        if (reset)
            setsockopt(p->links[i]->fd[k], SOL_SOCKET, SO_LINGER, &now, sizeof now);
        close(p->links[i]->fd[k]);
    }
    free(p->links[i]);
    p->links[i] = NULL;
    p->counts.open--;
}

static void accept_one(proxy *p)
{
    int client = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
    size_t i = 0;

    if (client < 0)
        return;
    p->counts.connections++;
    while (i < LINKS_MAX && p->links[i])
        i++;
    int server = p->refuse || i == LINKS_MAX ? -1 : dial(p->server_port);
    link_t *l = server < 0 ? NULL : calloc(1, sizeof *l);
    if (!l) {
        close(client);
        if (server >= 0)
            close(server);
        return;
    }
    prepare(client);
    prepare(server);
    l->fd[PROXY_UP] = client;
    l->fd[PROXY_DOWN] = server;
    l->spoke = PROXY_DOWN;
    p->links[i] = l;
    p->counts.open++;
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

static void fill(proxy *p, link_t *l, proxy_way way)
{
    lane *a = &l->lane[way];
    ssize_t n = recv(l->fd[way], a->data + a->size, sizeof a->data - a->size, 0);

    if (n <= 0) {
        a->ended = n == 0 || (errno != EAGAIN && errno != EINTR);
        return;
    }
    if (a->size == 0)
        a->due = clock_ms() + p->rule[way].delay;
    a->size += (size_t)n;
    if (way == PROXY_UP && l->spoke == PROXY_DOWN)
        p->counts.turns++;
    l->spoke = way;
}

static void consume(lane *a, size_t n)
{
    a->size -= n;
    memmove(a->data, a->data + n, a->size);
}

/* How many bytes of the lane may go now. */
static size_t allowance(const proxy *p, const link_t *l, proxy_way way)
{
    const rule *r = &p->rule[way];
    size_t n = l->lane[way].size;

    if (r->drip > 0 && n > 1)
        n = 1;
    if (r->cut >= 0 && (int64_t)n > r->cut)
        n = (size_t)r->cut;
    if (r->swallow > 0 && (int64_t)n > r->swallow)
        n = (size_t)r->swallow;
    if (r->strand >= 0 && (int64_t)n > r->strand)
        n = (size_t)r->strand;
    return n;
}

/* The client of a stranded connection is gone, and what it said is not. */
static void desert(link_t *l)
{
    if (l->fd[PROXY_UP] >= 0)
        close(l->fd[PROXY_UP]);
    l->fd[PROXY_UP] = -1;
}

/* false: the server's end is gone. */
static bool pass_stranded(proxy *p, link_t *l)
{
    lane *up = &l->lane[PROXY_UP], *down = &l->lane[PROXY_DOWN];

    if (up->ended)
        desert(l);
    if (l->delivered && up->size > 0) {
        ssize_t sent = send(l->fd[PROXY_DOWN], up->data, up->size, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        consume(up, sent > 0 ? (size_t)sent : 0);
    }
    if (l->delivered)
        p->counts.late += (int64_t)down->size;
    down->size = 0;
    return !down->ended;
}

/* Passes on what is due. False: the connection was cut or has ended. */
static bool pass(proxy *p, link_t *l, proxy_way way, bool *reset)
{
    lane *a = &l->lane[way];
    rule *r = &p->rule[way];

    if (r->frozen)
        return true;
    if (a->size > 0 && r->swallow == 0) {
        p->counts.swallowed += (int64_t)a->size;
        l->lossy = true;
        a->size = 0;
    }
    if (a->size > 0 && clock_ms() >= a->due) {
        size_t n = allowance(p, l, way);
        ssize_t sent = n ? send(l->fd[!way], a->data, n, MSG_NOSIGNAL) : 0;
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        n = sent > 0 ? (size_t)sent : 0;
        consume(a, n);
        p->counts.bytes[way] += (int64_t)n;
        a->due = clock_ms() + r->drip;
        if (r->swallow > 0)
            r->swallow -= (int64_t)n;
        if (r->strand >= 0 && (r->strand -= (int64_t)n) == 0) {
            l->stranded = true;
            r->strand = -1;
        }
        if (r->cut >= 0 && (r->cut -= (int64_t)n) == 0 && (a->size > 0 || n > 0)) {
            r->cut = -1;
            *reset = r->cut_resets;
            p->counts.cuts++;
            return false;
        }
    }
    return !(a->ended && a->size == 0);
}

static void serve(proxy *p, size_t i)
{
    bool reset = false;

    if (p->links[i]->stranded) {
        if (!pass_stranded(p, p->links[i]))
            close_link(p, i, false);
        return;
    }
    if (p->links[i]->lossy && p->rule[PROXY_UP].swallow < 0 && p->rule[PROXY_DOWN].swallow < 0) {
        close_link(p, i, true); /* healed, and TCP never goes on with bytes missing */
        return;
    }
    for (int way = 0; way < 2; way++)
        if (!pass(p, p->links[i], (proxy_way)way, &reset)) {
            close_link(p, i, reset);
            return;
        }
}

/* ---- The thread ------------------------------------------------------------------------------ */

/* What to poll for; returns the milliseconds until a held-back chunk is due, or -1. */
static int watch(proxy *p, struct pollfd *polls)
{
    int64_t next = -1, now = clock_ms();

    polls[0] = (struct pollfd){.fd = p->listener, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = p->wake, .events = POLLIN};
    for (size_t i = 0; i < LINKS_MAX; i++)
        for (int way = 0; way < 2; way++) {
            struct pollfd *f = &polls[2 + 2 * i + (size_t)way];
            const link_t *l = p->links[i];
            *f = (struct pollfd){.fd = -1};
            if (!l || p->rule[way].frozen || l->fd[way] < 0)
                continue;
            const lane *a = &l->lane[way];
            if (!a->ended && a->size < sizeof a->data)
                *f = (struct pollfd){.fd = l->fd[way], .events = POLLIN};
            if (a->size > 0 && !l->stranded) {
                int64_t left = a->due > now ? a->due - now : 1;
                next = next < 0 || left < next ? left : next;
            }
        }
    return (int)next;
}

static void step(proxy *p, const struct pollfd *polls)
{
    uint64_t n;

    if (polls[1].revents && read(p->wake, &n, sizeof n) < 0)
        return;
    for (size_t i = 0; i < LINKS_MAX; i++) {
        if (!p->links[i])
            continue;
        for (int way = 0; way < 2; way++)
            if (polls[2 + 2 * i + (size_t)way].revents && !p->rule[way].frozen)
                fill(p, p->links[i], (proxy_way)way);
        if (p->drop)
            close_link(p, i, p->drop_resets);
        else
            serve(p, i);
    }
    p->drop = false;
    if (polls[0].revents)
        accept_one(p);
}

static void *run(void *arg)
{
    proxy *p = arg;
    struct pollfd *polls = calloc(2 + 2 * LINKS_MAX, sizeof *polls);

    pthread_mutex_lock(&p->mutex);
    while (polls && !p->stop) {
        int ms = watch(p, polls);
        pthread_mutex_unlock(&p->mutex);
        poll(polls, 2 + 2 * LINKS_MAX, ms);
        pthread_mutex_lock(&p->mutex);
        step(p, polls);
    }
    for (size_t i = 0; i < LINKS_MAX; i++)
        if (p->links[i])
            close_link(p, i, false);
    pthread_mutex_unlock(&p->mutex);
    free(polls);
    return NULL;
}

static void clear_rules(proxy *p)
{
    for (int way = 0; way < 2; way++)
        p->rule[way] = (rule){.cut = -1, .swallow = -1, .strand = -1};
    p->refuse = false;
}

static bool listen_on(proxy *p)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;

    p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->listener < 0 || p->wake < 0 || bind(p->listener, (struct sockaddr *)&a, size) < 0 ||
        listen(p->listener, 128) < 0 || getsockname(p->listener, (struct sockaddr *)&a, &size) < 0)
        return false;
    p->port = ntohs(a.sin_port);
    return true;
}

proxy *proxy_start(int server_port)
{
    proxy *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->listener = p->wake = -1;
    p->server_port = server_port;
    pthread_mutex_init(&p->mutex, NULL);
    clear_rules(p);
    if (!listen_on(p) || pthread_create(&p->thread, NULL, run, p) != 0) {
        if (p->listener >= 0)
            close(p->listener);
        if (p->wake >= 0)
            close(p->wake);
        free(p);
        return NULL;
    }
    return p;
}

int proxy_port(const proxy *p)
{
    return p->port;
}

/* ---- Rules ----------------------------------------------------------------------------------- */

static void locked(proxy *p)
{
    pthread_mutex_lock(&p->mutex);
}

static void unlocked(proxy *p)
{
    uint64_t one = 1;

    pthread_mutex_unlock(&p->mutex);
    if (write(p->wake, &one, sizeof one) < 0)
        abort();
}

void proxy_stop(proxy *p)
{
    if (!p)
        return;
    locked(p);
    p->stop = true;
    unlocked(p);
    pthread_join(p->thread, NULL);
    pthread_mutex_destroy(&p->mutex);
    close(p->listener);
    close(p->wake);
    free(p);
}

void proxy_cut(proxy *p, proxy_way way, int64_t k, bool reset)
{
    locked(p);
    p->rule[way].cut = k;
    p->rule[way].cut_resets = reset;
    unlocked(p);
}

void proxy_swallow(proxy *p, proxy_way way, int64_t k)
{
    locked(p);
    p->rule[way].swallow = k;
    unlocked(p);
}

void proxy_freeze(proxy *p, proxy_way way)
{
    locked(p);
    p->rule[way].frozen = true;
    unlocked(p);
}

void proxy_drip(proxy *p, proxy_way way, int64_t ms)
{
    locked(p);
    p->rule[way].drip = ms;
    unlocked(p);
}

void proxy_delay(proxy *p, proxy_way way, int64_t ms)
{
    locked(p);
    p->rule[way].delay = ms;
    unlocked(p);
}

void proxy_strand(proxy *p, int64_t k)
{
    locked(p);
    p->rule[PROXY_UP].strand = k > 0 ? k : -1;
    for (size_t i = 0; k == 0 && i < LINKS_MAX; i++)
        if (p->links[i])
            p->links[i]->stranded = true;
    unlocked(p);
}

void proxy_desert(proxy *p)
{
    locked(p);
    for (size_t i = 0; i < LINKS_MAX; i++)
        if (p->links[i] && p->links[i]->stranded)
            desert(p->links[i]);
    unlocked(p);
}

void proxy_deliver(proxy *p)
{
    locked(p);
    for (size_t i = 0; i < LINKS_MAX; i++)
        if (p->links[i])
            p->links[i]->delivered = p->links[i]->stranded;
    unlocked(p);
}

void proxy_say(proxy *p, proxy_way way, const void *data, size_t size)
{
    locked(p);
    for (size_t i = 0; i < LINKS_MAX; i++) {
        lane *a = p->links[i] ? &p->links[i]->lane[way] : NULL;
        if (!a || sizeof a->data - a->size < size)
            continue;
        memcpy(a->data + a->size, data, size);
        a->size += size;
    }
    unlocked(p);
}

void proxy_drop_all(proxy *p, bool refuse)
{
    locked(p);
    p->drop = true;
    p->drop_resets = false;
    p->refuse = refuse;
    unlocked(p);
}

void proxy_reset_all(proxy *p)
{
    locked(p);
    p->drop = p->drop_resets = true;
    unlocked(p);
    for (bool done = false; !done; sleep_ms(1)) {
        pthread_mutex_lock(&p->mutex);
        done = !p->drop;
        pthread_mutex_unlock(&p->mutex);
    }
}

void proxy_heal(proxy *p)
{
    locked(p);
    clear_rules(p);
    unlocked(p);
}

void proxy_read(proxy *p, proxy_counts *out)
{
    locked(p);
    *out = p->counts;
    for (size_t i = 0; i < LINKS_MAX; i++)
        if (p->links[i] && p->links[i]->stranded) {
            out->stranded++;
            out->kept += (int64_t)p->links[i]->lane[PROXY_UP].size;
        }
    unlocked(p);
}

void proxy_reset_counts(proxy *p)
{
    int64_t open;

    locked(p);
    open = p->counts.open;
    p->counts = (proxy_counts){.open = open};
    unlocked(p);
}
