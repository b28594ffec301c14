/* The loop: one epoll set for listening sockets, connections (also those of a program that speaks to its clients itself),
 * the program's descriptors and signals. */
#define _GNU_SOURCE
#include "inner.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { CONNECTIONS = 20000, HEADER_MAX = 8 * 1024, PATIENCE_MS = 30000, EVENTS = 256 };

http__timers *http__timers_of(http_server *s)
{
    return &s->timers;
}

http_loop *http_server_loop(http_server *s)
{
    return &s->loop;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static dibs_status fail(dibs_error *err, dibs_status status, const char *what)
{
    err->status = status;
    snprintf(err->message, sizeof err->message, "%s: %s", what, strerror(errno));
    return status;
}

/* Whoever can reach it over a network shows who it is, over TLS. */
static bool is_safe(const http_server *s, const http_socket *l)
{
    return l->local || (s->tls && (s->tokens || s->o.client_ca));
}

static dibs_status refuse_unsafe(const char *address, dibs_error *err)
{
    err->status = DIBS_INVALID;
    snprintf(err->message, sizeof err->message,
             "--listen %s can be reached over the network: give --tls-cert and --tls-key, and "
             "--tokens or "
             "--client-ca",
             address);
    return DIBS_INVALID;
}

static dibs_status open_listens(http_server *s, dibs_error *err)
{
    for (size_t i = 0; s->o.listen[i] && i < HTTP_LISTENS; i++) {
        http_listener *l = &s->listeners[s->listen_count++];
        dibs_status status = http_socket_open(s->o.listen[i], s->o.cert != NULL, &l->socket, err);

        if (status == DIBS_OK && !is_safe(s, &l->socket))
            status = refuse_unsafe(s->o.listen[i], err);
        if (status != DIBS_OK)
            return status;
        l->accepted = http__accept;
        if (!http_listener_start(l, s))
            return fail(err, DIBS_NO_MEMORY, "epoll_ctl");
    }
    return DIBS_OK;
}

/* Signals come through the loop; threads that start later inherit the mask. */
static dibs_status open_signals(http_server *s, dibs_error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &s->signals};
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    s->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (s->signals < 0 || epoll_ctl(s->loop.epoll, EPOLL_CTL_ADD, s->signals, &event) != 0)
        return fail(err, DIBS_NO_MEMORY, "signalfd");
    return DIBS_OK;
}

static dibs_status open_security(http_server *s, dibs_error *err)
{
    dibs_status status = DIBS_OK;

    s->failures = http__failures_new();
    if (!s->failures)
        return fail(err, DIBS_NO_MEMORY, "http");
    if (s->o.tokens)
        status = http__tokens_read(s->o.tokens, &s->tokens, err);
    if (status == DIBS_OK && s->o.cert)
        status = http_tls_open(
            &(http_tls_files){.cert = s->o.cert, .key = s->o.key, .ca = s->o.client_ca}, &s->tls,
            err);
    return status;
}

static dibs_status open_log(http_server *s, dibs_error *err)
{
    if (!s->o.access_log)
        return DIBS_OK;
    s->log = strcmp(s->o.access_log, "-") == 0
                 ? dup(STDOUT_FILENO)
                 : open(s->o.access_log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    return s->log < 0 ? fail(err, DIBS_INVALID, s->o.access_log) : DIBS_OK;
}

/* What cannot be read is reported, and what was there stays. */
static void reload(http_server *s)
{
    dibs_error err = {0}, tls = {0}, log = {0};
    http__tokens *tokens = NULL;
    int before = s->log;

    if (s->o.tokens && http__tokens_read(s->o.tokens, &tokens, &err) == DIBS_OK) {
        http__tokens_free(s->tokens);
        s->tokens = tokens;
    }
    if (s->tls && !http_tls_reload(s->tls, &tls) && err.status == DIBS_OK)
        err = tls;
    if (before >= 0 && open_log(s, &log) == DIBS_OK)
        close(before);
    else
        s->log = before;
    if (s->o.on_reload)
        s->o.on_reload(s->o.context, &err);
}

static void raise_limit(size_t *connections)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    if (*connections + 64 > limit.rlim_cur) /* some for the engine and for files */
        *connections = limit.rlim_cur > 128 ? limit.rlim_cur - 64 : 64;
}

static void set_defaults(http_options *o)
{
    o->connections = o->connections ? o->connections : CONNECTIONS;
    o->header_max = o->header_max ? o->header_max : HEADER_MAX;
    o->patience_ms = o->patience_ms ? o->patience_ms : PATIENCE_MS;
    raise_limit(&o->connections);
}

dibs_status http_server_open(const http_options *options, http_server **out, dibs_error *err)
{
    http_server *s = calloc(1, sizeof *s);
    dibs_status status;

    *out = NULL;
    if (!s)
        return fail(err, DIBS_NO_MEMORY, "http");
    s->o = *options;
    s->log = s->signals = -1;
    set_defaults(&s->o);
    s->loop.epoll = epoll_create1(EPOLL_CLOEXEC);
    status = s->loop.epoll < 0 ? fail(err, DIBS_NO_MEMORY, "epoll_create1") : DIBS_OK;
    if (status == DIBS_OK)
        status = open_signals(s, err);
    if (status == DIBS_OK)
        status = open_security(s, err);
    if (status == DIBS_OK)
        status = open_log(s, err);
    if (status == DIBS_OK)
        status = open_listens(s, err);
    if (status == DIBS_OK)
        *out = s;
    else
        http_server_close(s);
    return status;
}

bool http_server_watch(http_server *s, int fd, void (*ready)(void *data), void *data)
{
    struct epoll_event event = {.events = EPOLLIN};
    size_t i = s->watch_count;

    if (i == HTTP_WATCHES)
        return false;
    s->watches[i].fd = fd;
    s->watches[i].ready = ready;
    s->watches[i].data = data;
    event.data.ptr = &s->watches[i];
    if (epoll_ctl(s->loop.epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        return false;
    s->watch_count++;
    return true;
}

/* ---- Running --------------------------------------------------------------------------------- */

static void on_signal(http_server *s)
{
    struct signalfd_siginfo info;

    while (read(s->signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGHUP) {
            reload(s);
        } else if (s->draining) {
            s->stopped = true; /* asked twice */
        } else if (s->o.on_drain) {
            s->o.on_drain(s->o.context);
        } else {
            http_server_stop(s, 0);
        }
    }
}

static bool in_range(const void *p, const void *from, size_t size)
{
    return (const char *)p >= (const char *)from && (const char *)p < (const char *)from + size;
}

/* The set tells them apart by where the pointer leads. */
static void on_event(http_server *s, const struct epoll_event *event)
{
    void *what = event->data.ptr;

    if (what == &s->signals) {
        on_signal(s);
    } else if (in_range(what, s->watches, sizeof s->watches)) {
        size_t i = (size_t)((char *)what - (char *)s->watches) / sizeof s->watches[0];
        s->watches[i].ready(s->watches[i].data);
    } else {
        http__link_event(what, event->events);
    }
}

static bool is_over(const http_server *s)
{
    return s->stopped || (s->stopping && s->exchanges == 0);
}

/* Connections that events and timers woke go on; those that were closed are freed when no event speaks of them. */
static int settle(http_server *s)
{
    int64_t ms;

    s->now_ms = http_now_ms();
    http__timers_run(s);
    http__links_go(&s->loop);
    http__links_bury(&s->loop);
    ms = http__timers_run(s);
    if (is_over(s) || s->loop.first_again || s->loop.dead)
        return 0;
    return ms < 0 || ms > 60000 ? 60000 : (int)ms;
}

void http_server_run(http_server *s)
{
    struct epoll_event events[EVENTS];

    while (!is_over(s)) {
        int n = epoll_wait(s->loop.epoll, events, EVENTS, settle(s));
        s->now_ms = http_now_ms();
        for (int i = 0; i < n; i++)
            on_event(s, &events[i]);
    }
}

/* ---- Ending ---------------------------------------------------------------------------------- */

void http_server_drain(http_server *s)
{
    if (s->draining)
        return;
    s->draining = true;
    for (size_t i = 0; i < s->listen_count; i++)
        http_listener_close(&s->listeners[i]);
}

bool http_server_draining(const http_server *s)
{
    return s->draining;
}

static void on_end(http_timer *timer)
{
    http_server *s = (http_server *)((char *)timer - offsetof(http_server, end));

    s->stopped = true;
}

void http_server_stop(http_server *s, int64_t within_ms)
{
    http_server_drain(s);
    s->stopping = true;
    http_timer_set(s, &s->end, within_ms, on_end);
}

void http_server_close(http_server *s)
{
    if (!s)
        return;
    while (s->all)
        http_connection_close(s->all, false);
    for (size_t i = 0; i < s->listen_count; i++)
        http_listener_close(&s->listeners[i]);
    http__links_bury(&s->loop);
    http_buffer_free(&s->spare_in);
    http_buffer_free(&s->spare_out);
    if (s->signals >= 0)
        close(s->signals);
    if (s->loop.epoll >= 0)
        close(s->loop.epoll);
    if (s->log >= 0)
        close(s->log);
    http__tokens_free(s->tokens);
    http_tls_close(s->tls);
    free(s->failures);
    free(s->timers.heap);
    free(s->openapi);
    free(s);
}

const char *http_server_address(const http_server *s, size_t i)
{
    return i < s->listen_count ? s->listeners[i].socket.address : NULL;
}

const char *http_server_reach(const http_server *s, size_t i)
{
    return i < s->listen_count ? s->listeners[i].socket.reach : NULL;
}

size_t http_server_connections(const http_server *s)
{
    return s->connections;
}
