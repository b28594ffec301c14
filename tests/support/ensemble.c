#define _GNU_SOURCE
#include "support/ensemble.h"

#include "support/clock.h"
#include "support/server.h"

#include <arpa/inet.h>
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
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define START_MS 60000
#define JAR      "/usr/share/java/zookeeper.jar"

static const char *const names[] = {"ZooKeeper", "etcd"};

/* ---- Programs, ports and arguments ----------------------------------------------------------- */

static bool find_program(const char *name, char *out, size_t size)
{
    char path[4096], *save = NULL;
    const char *env = getenv("PATH");

    snprintf(path, sizeof path, "%s", env ? env : "/usr/bin");
    for (char *p = strtok_r(path, ":", &save); p; p = strtok_r(NULL, ":", &save)) {
        snprintf(out, size, "%s/%s", p, name);
        if (access(out, X_OK) == 0)
            return true;
    }
    return false;
}

bool ensemble_available(ensemble_kind kind)
{
    char path[4200];

    return kind == ENSEMBLE_ETCD
               ? find_program("etcd", path, sizeof path)
               : find_program("java", path, sizeof path) && access(JAR, R_OK) == 0;
}

/* Below the ports that the kernel gives to clients: one that tries to reach a killed node would at
 * last be given that node's own port, connect to itself and keep the node from coming back. */
static int quiet_port(void)
{
    static unsigned next;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    if (next == 0)
        next = (unsigned)getpid() * 37 + (unsigned)clock_ms();
    for (int i = 0; i < 10000; i++) {
        int port = 12000 + (int)(next++ % 20000);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        a.sin_port = htons((uint16_t)port);
        bool is_free = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
        close(fd);
        if (is_free)
            return port;
    }
    abort();
}

static void add_arg(ensemble_node *n, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void add_arg(ensemble_node *n, const char *format, ...)
{
    char arg[1024];
    size_t count = 0;
    va_list list;

    while (n->args[count])
        count++;
    va_start(list, format);
    vsnprintf(arg, sizeof arg, format, list);
    va_end(list);
    if (count + 1 >= ENSEMBLE_ARGS_MAX || !(n->args[count] = strdup(arg)))
        abort();
}

static void drop_args(ensemble *e)
{
    for (int i = 0; i < ENSEMBLE_MAX; i++)
        for (size_t k = 0; k < ENSEMBLE_ARGS_MAX; k++) {
            free(e->node[i].args[k]);
            e->node[i].args[k] = NULL;
        }
}

/* The node's own folder, made. */
static void node_folder(const ensemble *e, int i, char *out, size_t size)
{
    snprintf(out, size, "%s/%d", e->folder.path, i + 1);
    mkdir(out, 0700);
}

static bool has_option(const char *const extra[], const char *start)
{
    for (size_t i = 0; extra && extra[i]; i++)
        if (strncmp(extra[i], start, strlen(start)) == 0)
            return true;
    return false;
}

/* ---- ZooKeeper ------------------------------------------------------------------------------- */

/* Ticks are short for short sessions; what nodes wait for each other is 10 s all the same. */
static void write_config(const ensemble *e, int i, const char *folder, const char *const extra[])
{
    char path[SCRATCH_MAX + 32];
    FILE *f;

    snprintf(path, sizeof path, "%s/myid", folder);
    f = fopen(path, "w");
    if (!f || fprintf(f, "%d\n", i + 1) < 0 || fclose(f) != 0)
        abort();
    snprintf(path, sizeof path, "%s/zoo.cfg", folder);
    f = fopen(path, "w");
    if (!f)
        abort();
    fprintf(f,
            "tickTime=200\ninitLimit=50\nsyncLimit=50\nminSessionTimeout=400\n"
            "maxSessionTimeout=60000\ndataDir=%s\nclientPortAddress=127.0.0.1\nclientPort=%d\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n",
            folder, e->node[i].port);
    for (int k = 0; e->count > 1 && k < e->count; k++)
        fprintf(f, "server.%d=127.0.0.1:%d:%d\n", k + 1, e->node[k].peer_port,
                e->node[k].other_port);
    for (size_t k = 0; extra && extra[k]; k++)
        if (extra[k][0] != '-')
            fprintf(f, "%s\n", extra[k]);
    if (fclose(f) != 0)
        abort();
}

/* Not forced to disk: a killed process loses nothing by that, only a killed machine would. */
static void make_zookeeper(ensemble *e, int i, const char *const extra[])
{
    ensemble_node *n = &e->node[i];
    char folder[SCRATCH_MAX + 16];

    node_folder(e, i, folder, sizeof folder);
    write_config(e, i, folder, extra);
    add_arg(n, "java");
    add_arg(n, "-Xmx192m");
    add_arg(n, "-XX:+UseSerialGC");
    add_arg(n, "-XX:TieredStopAtLevel=1");
    add_arg(n, "-Dzookeeper.jmx.log4j.disable=true");
    add_arg(n, "-Dzookeeper.log.dir=%s", folder);
    add_arg(n, "-Dzookeeper.forceSync=no");
    for (size_t k = 0; extra && extra[k]; k++)
        if (extra[k][0] == '-')
            add_arg(n, "%s", extra[k]);
    add_arg(n, "-cp");
    add_arg(n, "%s:%s", folder, JAR);
    add_arg(n, "org.apache.zookeeper.server.quorum.QuorumPeerMain");
    add_arg(n, "%s/zoo.cfg", folder);
}

/* ---- etcd ------------------------------------------------------------------------------------ */

/* With a certificate among the extra arguments, clients are served over TLS. Leases of one second
 * are granted when one and a half election timeouts fit into it. */
static void make_etcd(ensemble *e, int i, const char *const extra[])
{
    ensemble_node *n = &e->node[i];
    const char *scheme = has_option(extra, "--cert-file") ? "https" : "http";
    char folder[SCRATCH_MAX + 16], members[512];
    size_t used = 0;

    node_folder(e, i, folder, sizeof folder);
    for (int k = 0; k < e->count; k++)
        used += (size_t)snprintf(members + used, sizeof members - used, "%sn%d=http://127.0.0.1:%d",
                                 k ? "," : "", k + 1, e->node[k].peer_port);
    add_arg(n, "etcd");
    add_arg(n, "--name=n%d", i + 1);
    add_arg(n, "--data-dir=%s", folder);
    add_arg(n, "--listen-client-urls=%s://127.0.0.1:%d", scheme, n->port);
    add_arg(n, "--advertise-client-urls=%s://127.0.0.1:%d", scheme, n->port);
    add_arg(n, "--listen-peer-urls=http://127.0.0.1:%d", n->peer_port);
    add_arg(n, "--initial-advertise-peer-urls=http://127.0.0.1:%d", n->peer_port);
    add_arg(n, "--listen-metrics-urls=http://127.0.0.1:%d", n->other_port);
    add_arg(n, "--initial-cluster=%s", members);
    add_arg(n, "--heartbeat-interval=60");
    add_arg(n, "--election-timeout=600");
    add_arg(n, "--logger=zap");
    for (size_t k = 0; extra && extra[k]; k++)
        add_arg(n, "%s", extra[k]);
}

static void make_args(ensemble *e, const char *const extra[])
{
    size_t used = 0;

    for (int i = 0; i < e->count; i++) {
        ensemble_node *n = &e->node[i];
        n->port = quiet_port();
        n->peer_port = quiet_port();
        n->other_port = quiet_port();
        used += (size_t)snprintf(e->hosts + used, sizeof e->hosts - used, "%s127.0.0.1:%d",
                                 i ? "," : "", n->port);
    }
    for (int i = 0; i < e->count; i++)
        e->kind == ENSEMBLE_ETCD ? make_etcd(e, i, extra) : make_zookeeper(e, i, extra);
}

/* ---- Talking to a node ----------------------------------------------------------------------- */

/* Says `text` to a port and takes all that comes until the other side closes. */
static int exchange(int port, const char *text, char *out, size_t size)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    size_t used = 0;
    ssize_t got = -1;

    a.sin_port = htons((uint16_t)port);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
        send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text))
        while (used + 1 < size && poll(&p, 1, 2000) > 0 &&
               (got = recv(fd, out + used, size - used - 1, 0)) > 0)
            used += (size_t)got;
    if (fd >= 0)
        close(fd);
    out[used] = '\0';
    return used > 0 ? (int)used : -1;
}

int ensemble_word(ensemble *e, int i, const char *word, char *out, size_t size)
{
    return exchange(e->node[i].port, word, out, size);
}

int ensemble_page(ensemble *e, int i, const char *path, char *out, size_t size)
{
    char request[128];

    snprintf(request, sizeof request, "GET %s HTTP/1.0\r\n\r\n", path);
    return exchange(e->node[i].other_port, request, out, size);
}

/* `ruok` answers before sessions are served: `srvr` names a mode only then. */
static bool serves(ensemble *e, int i)
{
    char answer[8192];

    if (e->kind == ENSEMBLE_ZOOKEEPER)
        return ensemble_word(e, i, "srvr", answer, sizeof answer) > 0 && strstr(answer, "Mode: ");
    return ensemble_page(e, i, "/health", answer, sizeof answer) > 0 &&
           strstr(answer, "\"health\":\"true\"");
}

static bool leads(ensemble *e, int i)
{
    static char answer[1 << 20];

    if (e->node[i].pid == 0)
        return false;
    if (e->kind == ENSEMBLE_ZOOKEEPER)
        return ensemble_word(e, i, "srvr", answer, sizeof answer) > 0 &&
               (strstr(answer, "Mode: leader") || strstr(answer, "Mode: standalone"));
    return ensemble_page(e, i, "/metrics", answer, sizeof answer) > 0 &&
           strstr(answer, "\netcd_server_is_leader 1");
}

int ensemble_leader(ensemble *e)
{
    for (int i = 0; i < e->count; i++)
        if (leads(e, i))
            return i;
    return -1;
}

/* ---- Starting and ending --------------------------------------------------------------------- */

int ensemble_launch(ensemble *e, int i)
{
    ensemble_node *n = &e->node[i];
    char log[SCRATCH_MAX + 32];
    pid_t parent = getpid();

    snprintf(log, sizeof log, "%s/%d.log", e->folder.path, i + 1);
    n->pid = fork();
    if (n->pid > 0)
        return 0;
    if (n->pid < 0) {
        n->pid = 0;
        return -1;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    int null = open("/dev/null", O_RDWR), out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(null, 0);
    dup2(out, 1);
    dup2(out, 2);
    execvp(n->args[0], n->args);
    _exit(127);
}

static bool ended(ensemble_node *n)
{
    if (n->pid != 0 && waitpid(n->pid, NULL, WNOHANG) == n->pid)
        n->pid = 0;
    return n->pid == 0;
}

static int wait_for_node(ensemble *e, int i, int64_t end)
{
    while (!ended(&e->node[i]) && clock_ms() < end) {
        if (serves(e, i))
            return 0;
        sleep_ms(20);
    }
    ensemble_end(e, i, SIGKILL);
    return -1;
}

int ensemble_restart(ensemble *e, int i)
{
    return ensemble_launch(e, i) == 0 ? wait_for_node(e, i, clock_ms() + START_MS) : -1;
}

static int start_all(ensemble *e)
{
    int64_t end = clock_ms() + START_MS;
    int failed = 0;

    for (int i = 0; i < e->count; i++)
        failed |= ensemble_launch(e, i);
    for (int i = 0; !failed && i < e->count; i++)
        failed |= wait_for_node(e, i, end);
    for (int i = 0; failed && i < e->count; i++)
        ensemble_end(e, i, SIGKILL);
    return failed;
}

int ensemble_start(ensemble *e, ensemble_kind kind, int count, const char *const extra[])
{
    memset(e, 0, sizeof *e);
    e->kind = kind;
    e->count = count;
    /* Another may take a free port before the node does: then again, with other ones. */
    for (int i = 0; i < 3; i++) {
        if (scratch_make(&e->folder) < 0)
            return -1;
        make_args(e, extra);
        if (start_all(e) == 0)
            return 0;
        drop_args(e);
        if (i < 2)
            scratch_remove(&e->folder);
    }
    fprintf(stderr, "# %s did not start in %s\n", names[kind], e->folder.path);
    return -1;
}

void ensemble_need(ensemble *e, ensemble_kind kind, int count, const char *const extra[])
{
    memset(e, 0, sizeof *e);
    if (!ensemble_available(kind)) {
        if (server_required())
            fail_msg("%s is not installed, and servers are required here", names[kind]);
        skip();
    }
    assert_int_equal(ensemble_start(e, kind, count, extra), 0);
}

void ensemble_end(ensemble *e, int i, int signal)
{
    ensemble_node *n = &e->node[i];
    int64_t end = clock_ms() + 10000;

    if (n->pid == 0)
        return;
    kill(n->pid, signal);
    kill(n->pid, SIGCONT);
    while (!ended(n)) {
        if (clock_ms() > end)
            kill(n->pid, SIGKILL);
        sleep_ms(2);
    }
}

void ensemble_pause(ensemble *e, int i)
{
    int status;

    kill(e->node[i].pid, SIGSTOP);
    waitpid(e->node[i].pid, &status, WUNTRACED);
}

void ensemble_continue(ensemble *e, int i)
{
    kill(e->node[i].pid, SIGCONT);
}

void ensemble_stop(ensemble *e)
{
    for (int i = 0; i < e->count; i++)
        ensemble_end(e, i, SIGKILL);
    drop_args(e);
    scratch_remove(&e->folder);
}
