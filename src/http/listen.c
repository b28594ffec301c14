/* Sockets to listen at: TCP, unix sockets, and those that systemd hands over; and the loop that accepts. */
#define _GNU_SOURCE
#include "http/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { ACCEPTS = 64, STARVED_MS = 200 };

static dibs_status fail(dibs_error *err, dibs_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static dibs_status fail(dibs_error *err, dibs_status status, const char *format, ...)
{
    va_list args;

    err->status = status;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    return status;
}

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24) == 127;
    return a->sa_family == AF_UNIX ||
           (a->sa_family == AF_INET6 &&
            IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr));
}

static bool is_wildcard(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr == htonl(INADDR_ANY);
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

/* 0.0.0.0 is where it listens, but leads nobody here. */
static void describe_reach(bool tls, http_socket *out, const struct sockaddr *a, const char *port)
{
    char name[256] = "";

    strcpy(out->reach, out->address);
    if (is_wildcard(a) && gethostname(name, sizeof name - 1) == 0 && name[0])
        snprintf(out->reach, sizeof out->reach, "%s://%s:%s", tls ? "https" : "http", name, port);
}

/* What the kernel says of the socket: also the port that it chose, and sockets of systemd's. */
static dibs_status describe(bool tls, http_socket *out, const char *text, dibs_error *err)
{
    struct sockaddr_storage a = {0};
    socklen_t size = sizeof a;
    char host[256], port[32];

    if (getsockname(out->fd, (struct sockaddr *)&a, &size) != 0)
        return fail(err, DIBS_INVALID, "--listen %s: %s", text, strerror(errno));
    out->local = is_loopback((struct sockaddr *)&a);
    out->unix_socket = a.ss_family == AF_UNIX;
    if (out->unix_socket) {
        snprintf(out->address, sizeof out->address, "unix:%.*s",
                 (int)sizeof((struct sockaddr_un *)&a)->sun_path,
                 ((struct sockaddr_un *)&a)->sun_path);
        strcpy(out->reach, out->address);
        return DIBS_OK;
    }
    getnameinfo((struct sockaddr *)&a, size, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(out->address, sizeof out->address,
             a.ss_family == AF_INET6 ? "%s://[%s]:%s" : "%s://%s:%s", tls ? "https" : "http", host,
             port);
    describe_reach(tls, out, (struct sockaddr *)&a, port);
    return DIBS_OK;
}

/* A socket that nobody listens at is what a killed server left. A connection to any other file is refused as well:
 * that file is somebody's, and stays. */
static bool is_stale(const struct sockaddr_un *a)
{
    struct stat file;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool refused = fd >= 0 && lstat(a->sun_path, &file) == 0 && S_ISSOCK(file.st_mode) &&
                   connect(fd, (const struct sockaddr *)a, sizeof *a) != 0 && errno == ECONNREFUSED;

    if (fd >= 0)
        close(fd);
    return refused;
}

static dibs_status open_unix(const char *path, http_socket *out, dibs_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    mode_t mask;
    int bound;

    if (path[0] == '\0' || strlen(path) >= sizeof a.sun_path)
        return fail(err, DIBS_INVALID, "--listen unix:%s: a path has 1 to %zu bytes", path,
                    sizeof a.sun_path - 1);
    strcpy(a.sun_path, path);
    out->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (is_stale(&a))
        unlink(path);
    mask = umask(0117); /* owner and group may connect */
    bound = bind(out->fd, (struct sockaddr *)&a, sizeof a);
    umask(mask);
    if (bound != 0 || listen(out->fd, SOMAXCONN) != 0)
        return fail(err, DIBS_UNAVAILABLE, "--listen unix:%s: %s", path, strerror(errno));
    strcpy(out->path, path);
    return DIBS_OK;
}

static dibs_status bind_tcp(const struct addrinfo *a, const char *text, http_socket *out,
                            dibs_error *err)
{
    int on = 1;

    out->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (out->fd < 0)
        return fail(err, DIBS_UNAVAILABLE, "--listen %s: %s", text, strerror(errno));
    setsockopt(out->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(out->fd, a->ai_addr, a->ai_addrlen) != 0 || listen(out->fd, SOMAXCONN) != 0)
        return fail(err, DIBS_UNAVAILABLE, "--listen %s: %s", text, strerror(errno));
    return DIBS_OK;
}

/* getaddrinfo() takes 99999 for 34463. Names of services are left to it. */
static bool is_port(const char *text)
{
    size_t digits = strspn(text, "0123456789");

    return text[digits] != '\0' || (digits <= 5 && atoi(text) <= UINT16_MAX);
}

static dibs_status open_tcp(const char *text, http_socket *out, dibs_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    const char *colon = strrchr(text, ':');
    struct addrinfo *list;
    char host[256];
    dibs_status status;
    int failed;

    if (!colon || colon == text || !colon[1] || (size_t)(colon - text) >= sizeof host ||
        !is_port(colon + 1))
        return fail(
            err, DIBS_INVALID,
            "--listen %s: write HOST:PORT, [HOST]:PORT or unix:PATH, for example 127.0.0.1:8200",
            text);
    snprintf(host, sizeof host, "%.*s", (int)(colon - text), text);
    if (host[0] == '[' && host[strlen(host) - 1] == ']') {
        memmove(host, host + 1, strlen(host));
        host[strlen(host) - 1] = '\0';
    }
    failed = getaddrinfo(host, colon + 1, &hints, &list);
    if (failed)
        return fail(err, DIBS_INVALID, "--listen %s: %s", text, gai_strerror(failed));
    status = bind_tcp(list, text, out, err);
    freeaddrinfo(list);
    return status;
}

static dibs_status take_inherited(const char *number, http_socket *out, dibs_error *err)
{
    size_t digits = strspn(number, "0123456789");
    int listens = 0;
    socklen_t size = sizeof listens;

    if (digits == 0 || digits > 5 || number[digits] ||
        getsockopt(atoi(number), SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens)
        return fail(err, DIBS_INVALID,
                    "--listen fd:%s: this is not the number of an inherited listening socket",
                    number);
    out->fd = atoi(number);
    fcntl(out->fd, F_SETFL, fcntl(out->fd, F_GETFL) | O_NONBLOCK);
    return DIBS_OK;
}

dibs_status http_socket_open(const char *text, bool tls, http_socket *out, dibs_error *err)
{
    dibs_status status = DIBS_OK;

    *out = (http_socket){.fd = -1};
    if (strncmp(text, "fd:", 3) == 0)
        status = take_inherited(text + 3, out, err);
    else if (strncmp(text, "unix:", 5) == 0)
        status = open_unix(text + 5, out, err);
    else
        status = open_tcp(text, out, err);
    return status == DIBS_OK ? describe(tls, out, text, err) : status;
}

void http_socket_close(http_socket *l)
{
    if (l->fd >= 0)
        close(l->fd);
    if (l->path[0])
        unlink(l->path);
    l->fd = -1;
    l->path[0] = '\0';
}

/* ---- Clients --------------------------------------------------------------------------------- */

static void on_released(http_link *l)
{
    (void)l;
}

static void on_again(http_timer *timer)
{
    http_listener *l = (http_listener *)((char *)timer - offsetof(http_listener, again));

    l->link.can_read = true;
    http_link_again(&l->link);
}

/* Without a descriptor the client stays in the kernel's queue, where no edge speaks of it: it is looked for again. */
static void wait_for_descriptor(http_listener *l)
{
    if (!l->starved && l->short_of)
        l->short_of(l, strerror(errno));
    l->starved = true;
    http_timer_set(l->server, &l->again, STARVED_MS, on_again);
}

static void accept_one(http_listener *l)
{
    struct sockaddr_storage from;
    socklen_t size = sizeof from;
    int fd = accept4(l->link.fd, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd >= 0) {
        l->starved = false;
        l->accepted(l, fd, (struct sockaddr *)&from, size);
    } else if (errno != ECONNABORTED && errno != EINTR) {
        l->link.can_read = false;
        if (errno != EAGAIN)
            wait_for_descriptor(l);
    }
}

static void on_ready(http_link *link)
{
    http_listener *l = (http_listener *)((char *)link - offsetof(http_listener, link));

    for (int i = 0; i < ACCEPTS && link->can_read && !l->paused; i++)
        accept_one(l);
    if (link->can_read && !l->paused)
        http_link_again(link);
}

bool http_listener_start(http_listener *l, http_server *s)
{
    l->server = s;
    l->link.ready = on_ready;
    l->link.released = on_released;
    return http_link_open(&l->link, http_server_loop(s), l->socket.fd, NULL);
}

void http_listener_pause(http_listener *l, bool paused)
{
    if (l->paused && !paused && l->link.fd >= 0)
        http_link_again(&l->link);
    l->paused = paused;
}

void http_listener_close(http_listener *l)
{
    if (!l->server) {
        http_socket_close(&l->socket);
        return;
    }
    http_timer_stop(l->server, &l->again);
    http_link_close(&l->link, false);
    l->socket.fd = -1;
    http_socket_close(&l->socket);
}
