/* The proxy; see the header. One process, one poll loop, a pair of sockets for each connection. */
#define _GNU_SOURCE
#include "proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAIRS_MAX 32

typedef struct link {
    int client, server;
} link_pair;

typedef struct relay {
    int listener;
    char host[256], port[16];
    atomic_int *armed;
    link_pair pairs[PAIRS_MAX];
    size_t count;
} relay;

/* ---- In the proxy's process ------------------------------------------------------------------ */

static int dial(const char *host, const char *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int fd = -1;

    if (getaddrinfo(host, port, &hints, &found) != 0)
        return -1;
    for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    return fd;
}

static void accept_one(relay *r)
{
    int client = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC), server;

    if (client < 0)
        return;
    server = r->count < PAIRS_MAX ? dial(r->host, r->port) : -1;
    if (server < 0)
        close(client);
    else
        r->pairs[r->count++] = (link_pair){client, server};
}

static void drop_pair(relay *r, size_t i)
{
    close(r->pairs[i].client);
    close(r->pairs[i].server);
    r->pairs[i] = r->pairs[--r->count];
}

/* False: this connection is over. */
static bool pass_on(relay *r, int from, int to, bool answer)
{
    char bytes[65536];
    ssize_t got = recv(from, bytes, sizeof bytes, 0), sent = 0, n;
    int one = 1;

    if (got <= 0)
        return false;
    if (answer && atomic_compare_exchange_strong(r->armed, &one, 2))
        return false;
    while (sent < got) {
        n = send(to, bytes + sent, (size_t)(got - sent), MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        sent += n;
    }
    return true;
}

static void relay_main(relay *r)
{
    struct pollfd p[1 + 2 * PAIRS_MAX];

    for (;;) {
        size_t n = r->count;
        p[0] = (struct pollfd){.fd = r->listener, .events = POLLIN};
        for (size_t i = 0; i < n; i++) {
            p[1 + 2 * i] = (struct pollfd){.fd = r->pairs[i].client, .events = POLLIN};
            p[2 + 2 * i] = (struct pollfd){.fd = r->pairs[i].server, .events = POLLIN};
        }
        if (poll(p, 1 + 2 * n, -1) < 0 && errno != EINTR)
            return;
        for (size_t i = n; i-- > 0;) {
            link_pair l = r->pairs[i];
            if ((p[1 + 2 * i].revents && !pass_on(r, l.client, l.server, false)) ||
                (p[2 + 2 * i].revents && !pass_on(r, l.server, l.client, true)))
                drop_pair(r, i);
        }
        if (p[0].revents)
            accept_one(r);
    }
}

/* ---- In ours --------------------------------------------------------------------------------- */

/* Where host:port stands in the URL. */
static bool find_address(const char *url, const char **begin, const char **end)
{
    const char *rest = strstr(url, "://"), *at;

    if (!rest)
        return false;
    rest += 3;
    *end = rest + strcspn(rest, "/?");
    at = memrchr(rest, '@', (size_t)(*end - rest));
    *begin = at ? at + 1 : rest;
    return !memchr(*begin, ',', (size_t)(*end - *begin)) &&
           memchr(*begin, ':', (size_t)(*end - *begin));
}

static bool listen_here(relay *r, int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;

    r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (r->listener < 0 || bind(r->listener, (struct sockaddr *)&a, size) != 0 ||
        listen(r->listener, 64) != 0 || getsockname(r->listener, (struct sockaddr *)&a, &size) != 0)
        return false;
    *port = ntohs(a.sin_port);
    return true;
}

static pid_t start_relay(relay *r)
{
    pid_t parent = getpid(), pid = fork();

    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN);
    if (getppid() == parent)
        relay_main(r);
    _exit(0);
}

bool lab_proxy_start(lab_proxy *p, const char *url, char out[512], char why[256])
{
    relay r = {.listener = -1};
    const char *begin, *end, *colon;

    *p = (lab_proxy){.pid = -1};
    if (!find_address(url, &begin, &end)) {
        snprintf(why, 256, "no proxy for %.200s: it names no host with a port", url);
        return false;
    }
    colon = memrchr(begin, ':', (size_t)(end - begin));
    snprintf(r.host, sizeof r.host, "%.*s", (int)(colon - begin), begin);
    snprintf(r.port, sizeof r.port, "%.*s", (int)(end - colon - 1), colon + 1);
    p->armed =
        mmap(NULL, sizeof *p->armed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p->armed == MAP_FAILED || !listen_here(&r, &p->port)) {
        snprintf(why, 256, "no proxy: %s", strerror(errno));
        return false;
    }
    r.armed = p->armed;
    p->pid = start_relay(&r);
    close(r.listener);
    snprintf(out, 512, "%.*s127.0.0.1:%d%s", (int)(begin - url), url, p->port, end);
    return p->pid > 0;
}

void lab_proxy_arm(lab_proxy *p)
{
    atomic_store(p->armed, 1);
}

bool lab_proxy_struck(const lab_proxy *p)
{
    return atomic_load(p->armed) == 2;
}

void lab_proxy_stop(lab_proxy *p)
{
    if (p->pid > 0) {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, NULL, 0);
        munmap(p->armed, sizeof *p->armed);
    }
    p->pid = -1;
}
