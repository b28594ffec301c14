#define _GNU_SOURCE
#include "kit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROXIES_MAX 8
#define LASTING_MS  20000

ensemble the_server;
atomic_int log_lines;

static ensemble_kind the_kind;
static const char *const *the_extra;
static proxy *proxies[PROXIES_MAX];

/* ---- The server ------------------------------------------------------------------------------ */

/* A build may lack the engine: that is a skip like a missing server. */
static void need_engine(const char *scheme)
{
    const dibs_engine_info *info;

    for (size_t i = 0; (info = dibs_engine_at(i)); i++)
        if (strcmp(info->scheme, scheme) == 0 && info->missing) {
            if (server_required())
                fail_msg("this build is without %s, and servers are required here", scheme);
            skip();
        }
}

void describe_server(ensemble_kind kind, const char *const extra[])
{
    the_kind = kind;
    the_extra = extra;
}

void need_server(void)
{
    need_engine(the_kind == ENSEMBLE_ETCD ? "etcd" : "zookeeper");
    if (the_server.count == 0)
        ensemble_need(&the_server, the_kind, 1, the_extra);
    if (the_server.node[0].pid == 0) /* a case that failed left it dead */
        assert_int_equal(ensemble_restart(&the_server, 0), 0);
}

static const char *make_url(const char *hosts, int session_ms, const char *more)
{
    static char urls[8][512];
    static unsigned n;
    char *url = urls[n++ % 8];

    snprintf(url, sizeof urls[0], "%s://%s/tests?session=%dms%s",
             the_kind == ENSEMBLE_ETCD ? "etcd" : "zookeeper", hosts, session_ms, more);
    return url;
}

const char *url_of(const char *hosts, const char *more)
{
    return make_url(hosts, SESSION_MS, more);
}

const char *url_lasting(const char *hosts)
{
    return make_url(hosts, LASTING_MS, "");
}

const char *url_at(int port, const char *more)
{
    char hosts[32];

    snprintf(hosts, sizeof hosts, "127.0.0.1:%d", port);
    return url_of(hosts, more);
}

static void become(const char *const words[], int out)
{
    dup2(out, 1);
    execvp(words[0], (char *const *)words);
    _exit(127);
}

int run_program(char *out, size_t size, const char *const words[])
{
    char unread[4096];
    int fds[2], status = -1;
    size_t used = 0;
    ssize_t got;
    pid_t pid;

    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0)
        become(words, fds[1]);
    close(fds[1]);
    if (!out) {
        out = unread;
        size = sizeof unread;
    }
    while (used + 1 < size && (got = read(fds[0], out + used, size - used - 1)) > 0)
        used += (size_t)got;
    out[used] = '\0';
    close(fds[0]);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- Handles --------------------------------------------------------------------------------- */

dibs *open_url(const char *url)
{
    return open_at(url, NULL);
}

dibs *open_here(void)
{
    need_server();
    return open_url(url_of(the_server.hosts, ""));
}

dibs *open_through(const proxy *p)
{
    return open_url(url_at(proxy_port(p), ""));
}

static void count_log(void *data, dibs_log_level level, const char *message)
{
    (void)data;
    (void)message;
    if (level <= DIBS_LOG_WARNING)
        atomic_fetch_add(&log_lines, 1);
}

dibs *open_logged(const char *url)
{
    atomic_store(&log_lines, 0);
    return open_at(url, &(dibs_options){.log = count_log});
}

/* A handle behind a proxy that holds things back would be long in closing. */
int close_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < PROXIES_MAX; i++)
        if (proxies[i])
            proxy_heal(proxies[i]);
    close_handles();
    for (size_t i = 0; i < PROXIES_MAX; i++) {
        if (proxies[i])
            proxy_stop(proxies[i]);
        proxies[i] = NULL;
    }
    return 0;
}

proxy *proxy_to(int port)
{
    size_t i = 0;

    while (i < PROXIES_MAX && proxies[i])
        i++;
    assert_true(i < PROXIES_MAX);
    proxies[i] = proxy_start(port);
    assert_non_null(proxies[i]);
    return proxies[i];
}

proxy *proxy_here(void)
{
    need_server();
    return proxy_to(the_server.node[0].port);
}

const char *hosts_of(const proxy *p)
{
    static char hosts[8][32];
    static unsigned n;
    char *out = hosts[n++ % 8];

    snprintf(out, sizeof hosts[0], "127.0.0.1:%d", proxy_port(p));
    return out;
}

bool has_connections(void *p)
{
    proxy_counts counts;

    proxy_read(p, &counts);
    return counts.open > 0;
}

void refused(const char *url, dibs_status want, const char *const words[])
{
    static const char *const none[] = {NULL};

    expect_refused_with(url, &(dibs_options){.connect_ms = 4000}, want, words ? words : none);
}

void wait_for_queue(dibs *d, const char *name, size_t holders, size_t waiters)
{
    int64_t end = clock_ms() + LONG_MS;
    size_t h, w;

    for (;;) {
        count_queue(d, name, &h, &w);
        if (h == holders && w == waiters)
            return;
        if (clock_ms() > end)
            fail_msg("%s: %zu hold and %zu wait, not %zu and %zu", name, h, w, holders, waiters);
        sleep_ms(10);
    }
}
