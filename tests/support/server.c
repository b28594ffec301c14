#define _GNU_SOURCE
#include "support/server.h"

#include "support/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define START_MS 10000

bool server_available(void)
{
    char path[4096], *save = NULL, file[4200];
    const char *env = getenv("PATH");

    snprintf(path, sizeof path, "%s", env ? env : "/usr/bin");
    for (char *p = strtok_r(path, ":", &save); p; p = strtok_r(NULL, ":", &save)) {
        snprintf(file, sizeof file, "%s/redis-server", p);
        if (access(file, X_OK) == 0)
            return true;
    }
    return false;
}

bool server_required(void)
{
    const char *ci = getenv("CI"), *must = getenv("DIBS_TEST_REQUIRE_SERVERS");

    return (ci && *ci) || (must && *must && strcmp(must, "0") != 0);
}

int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&a, size) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &size) < 0)
        abort();
    close(fd);
    return ntohs(a.sin_port);
}

/* ---- Arguments ------------------------------------------------------------------------------- */

static void add_args(server *s, ...)
{
    va_list list;
    const char *arg;
    size_t n = 0;

    while (s->args[n])
        n++;
    va_start(list, s);
    while ((arg = va_arg(list, const char *))) {
        if (n + 1 >= SERVER_ARGS_MAX || !(s->args[n++] = strdup(arg)))
            abort();
    }
    va_end(list);
}

static void drop_args(server *s)
{
    for (size_t i = 0; i < SERVER_ARGS_MAX; i++) {
        free(s->args[i]);
        s->args[i] = NULL;
    }
}

static void make_args(server *s, const char *const extra[])
{
    char port[16], log[SCRATCH_MAX + 16];

    snprintf(port, sizeof port, "%d", s->port);
    scratch_file(&s->folder, "log", log, sizeof log);
    scratch_file(&s->folder, "socket", s->socket, sizeof s->socket);
    snprintf(s->url, sizeof s->url, "redis://127.0.0.1:%d", s->port);
    add_args(s, "redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", s->folder.path,
             "--unixsocket", s->socket, "--logfile", log, "--save", "", "--appendonly", "no",
             "--daemonize", "no", NULL);
    for (size_t i = 0; extra && extra[i]; i++)
        add_args(s, extra[i], NULL);
}

/* ---- Talking to it --------------------------------------------------------------------------- */

static int dial(const server *s)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(a.sun_path, sizeof a.sun_path, "%.*s", (int)sizeof a.sun_path - 1, s->socket);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

int server_command(server *s, const char *command, char *reply, size_t size)
{
    char line[1024], buffer[4096];
    int n = snprintf(line, sizeof line, "%s\r\n", command);
    int fd = dial(s);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    ssize_t got = -1;

    if (fd < 0)
        return -1;
    if (send(fd, line, (size_t)n, MSG_NOSIGNAL) == n && poll(&p, 1, 5000) > 0)
        got = recv(fd, buffer, sizeof buffer - 1, 0);
    close(fd);
    if (got <= 0)
        return -1;
    buffer[got] = '\0';
    if (reply)
        snprintf(reply, size, "%s", buffer);
    return 0;
}

static bool answers(void *ctx)
{
    char reply[64];
    server *s = ctx;

    /* Anything but LOADING will do: with a password it is an error, and it is there. */
    return server_command(s, "PING", reply, sizeof reply) == 0 &&
           strncmp(reply, "-LOADING", 8) != 0;
}

/* ---- Starting and ending --------------------------------------------------------------------- */

static pid_t spawn(server *s)
{
    pid_t parent = getpid(), pid = fork();

    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(null, 1);
    execvp(s->args[0], s->args);
    _exit(127);
}

static bool ended(server *s)
{
    if (waitpid(s->pid, NULL, WNOHANG) != s->pid)
        return false;
    s->pid = 0;
    return true;
}

int server_restart(server *s)
{
    int64_t end = clock_ms() + START_MS;

    s->pid = spawn(s);
    while (s->pid > 0 && !ended(s)) {
        if (answers(s))
            return 0;
        if (clock_ms() > end)
            server_end(s, SIGKILL);
        sleep_ms(2);
    }
    s->pid = 0;
    return -1;
}

int server_start(server *s, const char *const extra[])
{
    memset(s, 0, sizeof *s);
    if (scratch_make(&s->folder) < 0)
        return -1;
    /* Another may take the free port before the server does: then again, with another one. */
    for (int i = 0; i < 5; i++) {
        s->port = free_port();
        make_args(s, extra);
        if (server_restart(s) == 0)
            return 0;
        drop_args(s);
    }
    fprintf(stderr, "# redis-server did not start in %s\n", s->folder.path);
    return -1;
}

static bool write_conf(const server *s, const char *path, const char *watch, const char *more)
{
    char log[SCRATCH_MAX + 16];
    FILE *f = fopen(path, "w");

    if (!f)
        return false;
    fprintf(f, "port %d\nbind 127.0.0.1\ndir %s\nunixsocket %s\nlogfile %s\n%s\n%s", s->port,
            s->folder.path, s->socket, scratch_file(&s->folder, "log", log, sizeof log), watch,
            more);
    return fclose(f) == 0;
}

int sentinel_start(server *s, const char *service, int port, int quorum, const char *more)
{
    char path[SCRATCH_MAX + 16], watch[128];

    memset(s, 0, sizeof *s);
    if (scratch_make(&s->folder) < 0)
        return -1;
    s->port = free_port();
    scratch_file(&s->folder, "socket", s->socket, sizeof s->socket);
    scratch_file(&s->folder, "sentinel.conf", path, sizeof path);
    snprintf(watch, sizeof watch, "sentinel monitor %s 127.0.0.1 %d %d", service, port, quorum);
    if (!write_conf(s, path, watch, more))
        return -1;
    add_args(s, "redis-server", path, "--sentinel", NULL);
    return server_restart(s);
}

int server_add_tls(server_tls_args *texts, const char *folder, const char *port,
                   const char *extra[], int n)
{
    const char *const more[] = {"--port",
                                "0",
                                "--tls-port",
                                port,
                                "--tls-cert-file",
                                texts->cert,
                                "--tls-key-file",
                                texts->key,
                                "--tls-ca-cert-file",
                                texts->ca,
                                "--tls-auth-clients",
                                "no",
                                "--tls-replication",
                                "yes"};

    snprintf(texts->cert, sizeof texts->cert, "%s/good.crt", folder);
    snprintf(texts->key, sizeof texts->key, "%s/good.key", folder);
    snprintf(texts->ca, sizeof texts->ca, "%s/ca.crt", folder);
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        extra[n++] = more[i];
    return n;
}

void server_need(server *s, const char *const extra[])
{
    memset(s, 0, sizeof *s);
    if (!server_available()) {
        if (server_required())
            fail_msg("redis-server is not installed, and servers are required here");
        skip();
    }
    assert_int_equal(server_start(s, extra), 0);
}

void server_end(server *s, int signal)
{
    int64_t end = clock_ms() + 5000;

    if (s->pid <= 0)
        return;
    kill(s->pid, signal);
    kill(s->pid, SIGCONT);
    while (!ended(s)) {
        if (clock_ms() > end)
            kill(s->pid, SIGKILL);
        sleep_ms(1);
    }
}

void server_pause(server *s)
{
    int status;

    kill(s->pid, SIGSTOP);
    waitpid(s->pid, &status, WUNTRACED);
}

void server_continue(server *s)
{
    kill(s->pid, SIGCONT);
}

void server_stop(server *s)
{
    server_end(s, SIGTERM);
    drop_args(s);
    scratch_remove(&s->folder);
}
