/* Private servers; see the header.
 *
 * Each is started the way its page says: a data folder is made where one is needed, the program is
 * run with everything on the command line, and it is there when it answers what only a ready server
 * answers. Databases refuse to run as root: they get their own account then. */
#define _GNU_SOURCE
#include "servers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <grp.h>
#include <libpq-fe.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SERVERS_MAX 16
#define ARGS_MAX    24
#define READY_MS    30000
#define NODES       5

typedef struct process {
    pid_t pid;
    int end; /* the signal that ends it at once */
} process;

static struct {
    process running[SERVERS_MAX];
    size_t count;
    char folder[200];
    pid_t owner; /* only this process ends them */
    pid_t janitor;
    int pipe; /* the janitor sweeps when it is closed */
} all;

/* ---- Programs -------------------------------------------------------------------------------- */

static bool find(const char *const patterns[], char out[256])
{
    for (size_t i = 0; patterns[i]; i++) {
        glob_t g;
        bool found = glob(patterns[i], 0, NULL, &g) == 0;
        if (found)
            snprintf(out, 256, "%s", g.gl_pathv[g.gl_pathc - 1]);
        globfree(&g);
        if (found)
            return true;
    }
    return false;
}

static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = -1;

    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, size) == 0 &&
        getsockname(fd, (struct sockaddr *)&a, &size) == 0)
        port = ntohs(a.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

static bool make_folder(const char *name, const char *account, char out[256])
{
    const struct passwd *p = account && geteuid() == 0 ? getpwnam(account) : NULL;

    snprintf(out, 256, "%s/%s", all.folder, name);
    return mkdir(out, 0755) == 0 && (!p || chown(out, p->pw_uid, p->pw_gid) == 0);
}

/* ---- Starting -------------------------------------------------------------------------------- */

typedef struct launch {
    const char *account; /* NULL: ours */
    int end;
    char folder[256], log[300];
    char text[ARGS_MAX][300];
    char *args[ARGS_MAX + 1];
} launch;

static void launch_init(launch *l, const char *folder, const char *account, int end)
{
    memset(l, 0, sizeof *l);
    l->account = account;
    l->end = end;
    snprintf(l->folder, sizeof l->folder, "%s", folder);
    snprintf(l->log, sizeof l->log, "%s/log", folder);
}

static void add(launch *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(launch *l, const char *format, ...)
{
    size_t n = 0;
    va_list list;

    while (l->args[n])
        n++;
    if (n == ARGS_MAX)
        abort();
    va_start(list, format);
    vsnprintf(l->text[n], sizeof l->text[n], format, list);
    va_end(list);
    l->args[n] = l->text[n];
}

/* In the child: the account, no input, output into the log; a signal when the parent goes. */
static void child(const launch *l, pid_t parent)
{
    const struct passwd *p = l->account && geteuid() == 0 ? getpwnam(l->account) : NULL;
    int null = open("/dev/null", O_RDWR);
    int log = open(l->log, O_WRONLY | O_CREAT | O_APPEND, 0666);

    setenv("TMPDIR", l->folder, 1); /* ours may be closed to its account */
    setpgid(0, 0);                  /* Ctrl-C is for us, who end them in order */
    if (p && (initgroups(p->pw_name, p->pw_gid) != 0 || setgid(p->pw_gid) != 0 ||
              setuid(p->pw_uid) != 0))
        _exit(126);
    prctl(PR_SET_PDEATHSIG, l->end); /* after setuid, which forgets it */
    if (getppid() != parent || chdir("/") != 0)
        _exit(126);
    dup2(null, 0);
    dup2(log, 1);
    dup2(log, 2);
    execv(l->args[0], l->args);
    _exit(127);
}

static pid_t spawn(const launch *l)
{
    pid_t parent = getpid(), pid = fork();

    if (pid == 0)
        child(l, parent);
    return pid;
}

static bool run_once(const launch *l)
{
    pid_t pid = spawn(l);
    int status = -1;

    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static bool start(const launch *l)
{
    pid_t pid = all.count < SERVERS_MAX ? spawn(l) : -1;

    if (pid <= 0)
        return false;
    all.running[all.count++] = (process){pid, l->end};
    return true;
}

/* Does it answer `question` (NULL: with anything at all, unasked) with something that has `word`? */
static bool answers(int port, const char *question, const char *word)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char reply[2048];
    ssize_t got = -1;

    a.sin_port = htons((uint16_t)port);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
        (!question || send(fd, question, strlen(question), MSG_NOSIGNAL) > 0) &&
        poll(&p, 1, 1000) > 0)
        got = recv(fd, reply, sizeof reply - 1, 0);
    if (fd >= 0)
        close(fd);
    return got > 0 && (!word || memmem(reply, (size_t)got, word, strlen(word)));
}

static bool ready(int port, const char *question, const char *word)
{
    for (int64_t until = lab_now_us() + READY_MS * 1000LL; lab_now_us() < until; usleep(20000))
        if (answers(port, question, word))
            return true;
    return false;
}

/* ---- The scratch folder ------------------------------------------------------------------------- */

static int drop(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st;
    (void)type;
    (void)where;
    remove(path);
    return 0;
}

/* The janitor sweeps when we are gone, however we went: its pipe tells. Servers die by the kernel's
 * signal; what they still write while they do is swept again. */
static void sweep(int pipe)
{
    char byte;

    setsid(); /* Ctrl-C is not for the janitor */
    while (read(pipe, &byte, 1) > 0)
        continue;
    for (int tries = 0; tries < 100 && access(all.folder, F_OK) == 0; tries++) {
        nftw(all.folder, drop, 16, FTW_DEPTH | FTW_PHYS);
        usleep(50000);
    }
    _exit(0);
}

static bool make_scratch(char why[256])
{
    const char *base = getenv("TMPDIR");
    int pipes[2];

    snprintf(all.folder, sizeof all.folder, "%s/dibs-lab-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(all.folder) || chmod(all.folder, 0755) != 0 || pipe2(pipes, O_CLOEXEC) != 0) {
        snprintf(why, 256, "no folder for the servers can be made in %s", base ? base : "/tmp");
        all.folder[0] = '\0';
        return false;
    }
    all.owner = getpid();
    all.janitor = fork();
    if (all.janitor == 0) {
        close(pipes[1]);
        sweep(pipes[0]);
    }
    close(pipes[0]);
    all.pipe = pipes[1];
    return all.janitor > 0;
}

/* ---- Each of them ---------------------------------------------------------------------------- */

static const char *const redis_at[] = {"/usr/bin/redis-server", "/usr/local/bin/redis-server",
                                       NULL};
static const char *const mariadb_at[] = {"/usr/sbin/mariadbd", "/usr/local/sbin/mariadbd", NULL};
static const char *const mariadb_maker_at[] = {"/usr/bin/mariadb-install-db", NULL};
static const char *const postgres_at[] = {"/usr/lib/postgresql/*/bin/postgres", NULL};
static const char *const initdb_at[] = {"/usr/lib/postgresql/*/bin/initdb", NULL};
static const char *const java_at[] = {"/usr/bin/java", NULL};
static const char *const zookeeper_at[] = {"/usr/share/java/zookeeper.jar", NULL};
static const char *const etcd_at[] = {"/usr/bin/etcd", NULL};

/* "KEY=VALUE" words before the options go into the environment. */
static void redis_args(launch *l, const char *program, const lab_node *n, const char *const extra[])
{
    if (extra && extra[0] && strchr(extra[0], '='))
        add(l, "/usr/bin/env");
    for (; extra && *extra && strchr(*extra, '='); extra++)
        add(l, "%s", *extra);
    add(l, "%s", program);
    add(l, "--port");
    add(l, "%d", n->port);
    add(l, "--bind");
    add(l, "127.0.0.1");
    add(l, "--dir");
    add(l, "%s", n->folder);
    add(l, "--save");
    add(l, "%s", "");
    for (; extra && *extra; extra++)
        add(l, "%s", *extra);
}

bool lab_node_start(lab_node *n, const char *const extra[])
{
    char program[256];
    launch l;

    if (!find(redis_at, program))
        return false;
    launch_init(&l, n->folder, NULL, SIGKILL);
    redis_args(&l, program, n, extra);
    n->pid = spawn(&l);
    return n->pid > 0 && ready(n->port, "PING\r\n", "PONG");
}

bool lab_node_new(lab_node *n, const char *const extra[], char why[256])
{
    static int count;
    char name[32];

    *n = (lab_node){.port = free_port()};
    snprintf(name, sizeof name, "node-%d", count++);
    snprintf(why, 256, "redis-server did not start");
    if (!all.folder[0] && !make_scratch(why))
        return false;
    snprintf(n->url, sizeof n->url, "redis://127.0.0.1:%d", n->port);
    return make_folder(name, NULL, n->folder) && lab_node_start(n, extra);
}

void lab_node_kill(lab_node *n)
{
    if (n->pid <= 0)
        return;
    kill(n->pid, SIGKILL);
    waitpid(n->pid, NULL, 0);
    n->pid = 0;
}

static bool start_redis(int *port)
{
    lab_node n;
    char why[256];

    if (all.count == SERVERS_MAX || !lab_node_new(&n, NULL, why))
        return false;
    all.running[all.count++] = (process){n.pid, SIGKILL};
    *port = n.port;
    return true;
}

static bool one_redis(char *url, size_t size)
{
    int port;

    if (!start_redis(&port))
        return false;
    snprintf(url, size, "redis://127.0.0.1:%d", port);
    return true;
}

static bool five_redis(char *url, size_t size)
{
    size_t n = (size_t)snprintf(url, size, "redlock://");

    for (int i = 0; i < NODES; i++) {
        int port;
        if (!start_redis(&port))
            return false;
        n += (size_t)snprintf(url + n, size - n, "%s127.0.0.1:%d", i ? "," : "", port);
    }
    return true;
}

static bool mariadb(char *url, size_t size)
{
    char program[256], maker[256], folder[256];
    int port = free_port();
    launch l;

    if (!find(mariadb_at, program) || !find(mariadb_maker_at, maker) ||
        !make_folder("mariadb", "mysql", folder))
        return false;
    launch_init(&l, folder, "mysql", SIGKILL);
    add(&l, "%s", maker);
    add(&l, "--no-defaults");
    add(&l, "--datadir=%s/data", folder);
    add(&l, "--auth-root-authentication-method=normal");
    if (!run_once(&l))
        return false;
    launch_init(&l, folder, "mysql", SIGKILL);
    add(&l, "%s", program);
    add(&l, "--no-defaults");
    add(&l, "--datadir=%s/data", folder);
    add(&l, "--bind-address=127.0.0.1");
    add(&l, "--port=%d", port);
    add(&l, "--socket=%s/socket", folder);
    add(&l, "--pid-file=%s/pid", folder);
    add(&l, "--max-connections=1000");
    snprintf(url, size, "mysql://root@127.0.0.1:%d/test", port);
    return start(&l) && ready(port, NULL, "MariaDB");
}

/* It accepts connections before it serves them, and says so only in its own protocol. */
static bool serves_postgresql(const char *url)
{
    for (int64_t until = lab_now_us() + READY_MS * 1000LL; lab_now_us() < until; usleep(50000))
        if (PQping(url) == PQPING_OK)
            return true;
    return false;
}

/* So that it counts statements. Without the extension the figure is left out. */
static void count_statements(const char *url)
{
    PGconn *pg = PQconnectdb(url);

    if (PQstatus(pg) == CONNECTION_OK)
        PQclear(PQexec(pg, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"));
    PQfinish(pg);
}

static bool postgresql(char *url, size_t size)
{
    char program[256], maker[256], folder[256];
    int port = free_port();
    launch l;

    if (!find(postgres_at, program) || !find(initdb_at, maker) ||
        !make_folder("postgresql", "postgres", folder))
        return false;
    launch_init(&l, folder, "postgres", SIGQUIT);
    add(&l, "%s", maker);
    add(&l, "-D");
    add(&l, "%s/data", folder);
    add(&l, "-U");
    add(&l, "postgres");
    add(&l, "-A");
    add(&l, "trust");
    add(&l, "--no-sync");
    if (!run_once(&l))
        return false;
    launch_init(&l, folder, "postgres", SIGQUIT);
    add(&l, "%s", program);
    add(&l, "-D%s/data", folder);
    add(&l, "-p%d", port);
    add(&l, "-clisten_addresses=127.0.0.1");
    add(&l, "-cunix_socket_directories=%s", folder);
    add(&l, "-cmax_connections=400");
    add(&l, "-cshared_preload_libraries=pg_stat_statements");
    snprintf(url, size, "postgresql://postgres@127.0.0.1:%d/postgres", port);
    if (!start(&l) || !serves_postgresql(url))
        return false;
    count_statements(url);
    return true;
}

static bool zookeeper(char *url, size_t size)
{
    char program[256], jar[256], folder[256], path[300];
    int port = free_port();
    FILE *cfg;
    launch l;

    if (!find(java_at, program) || !find(zookeeper_at, jar) ||
        !make_folder("zookeeper", NULL, folder))
        return false;
    snprintf(path, sizeof path, "%s/zoo.cfg", folder);
    cfg = fopen(path, "w");
    if (!cfg)
        return false;
    fprintf(cfg,
            "tickTime=500\ndataDir=%s\nclientPort=%d\nclientPortAddress=127.0.0.1\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n",
            folder, port);
    fclose(cfg);
    launch_init(&l, folder, NULL, SIGKILL);
    add(&l, "%s", program);
    add(&l, "-Xmx512m");
    add(&l, "-XX:+UseSerialGC");
    add(&l, "-cp");
    add(&l, "%s:%s", folder, jar);
    add(&l, "org.apache.zookeeper.server.quorum.QuorumPeerMain");
    add(&l, "%s", path);
    snprintf(url, size, "zookeeper://127.0.0.1:%d/lab?session=%dms", port, LAB_SESSION_MS);
    return start(&l) && ready(port, "srvr", "Mode:");
}

static bool etcd(char *url, size_t size)
{
    char program[256], folder[256];
    int port = free_port(), peers = free_port();
    launch l;

    if (!find(etcd_at, program) || !make_folder("etcd", NULL, folder))
        return false;
    launch_init(&l, folder, NULL, SIGKILL);
    add(&l, "%s", program);
    add(&l, "--name=lab");
    add(&l, "--data-dir=%s/data", folder);
    add(&l, "--listen-client-urls=http://127.0.0.1:%d", port);
    add(&l, "--advertise-client-urls=http://127.0.0.1:%d", port);
    add(&l, "--listen-peer-urls=http://127.0.0.1:%d", peers);
    add(&l, "--initial-advertise-peer-urls=http://127.0.0.1:%d", peers);
    add(&l, "--initial-cluster=lab=http://127.0.0.1:%d", peers);
    snprintf(url, size, "etcd://127.0.0.1:%d?session=%dms", port, LAB_SESSION_MS);
    return start(&l) && ready(port, "GET /health HTTP/1.0\r\n\r\n", "\"true\"");
}

static bool sqlite(char *url, size_t size)
{
    snprintf(url, size, "sqlite://%s/dibs.db", all.folder);
    return true;
}

static const struct {
    bool (*start)(char *url, size_t size);
    const char *const *program[3]; /* all must be found */
} kinds[LAB_SERVERS] = {
    [LAB_REDIS] = {one_redis, {redis_at}},
    [LAB_REDIS_NODES] = {five_redis, {redis_at}},
    [LAB_MARIADB] = {mariadb, {mariadb_at, mariadb_maker_at}},
    [LAB_POSTGRESQL] = {postgresql, {postgres_at, initdb_at}},
    [LAB_SQLITE] = {sqlite, {NULL}},
    [LAB_ZOOKEEPER] = {zookeeper, {java_at, zookeeper_at}},
    [LAB_ETCD] = {etcd, {etcd_at}},
};

/* ---- All of them ----------------------------------------------------------------------------- */

static bool is_here(lab_server server)
{
    char path[256];

    for (size_t i = 0; i < 3 && kinds[server].program[i]; i++)
        if (!find(kinds[server].program[i], path))
            return false;
    return true;
}

/* The log that was written to last; NULL: none. */
static FILE *last_log(void)
{
    char pattern[256];
    struct stat st;
    time_t newest = 0;
    FILE *log = NULL;
    glob_t g;

    snprintf(pattern, sizeof pattern, "%s/*/log", all.folder);
    if (glob(pattern, 0, NULL, &g) == 0)
        for (size_t i = 0; i < g.gl_pathc; i++) {
            if (stat(g.gl_pathv[i], &st) != 0 || st.st_mtime < newest)
                continue;
            newest = st.st_mtime;
            if (log)
                fclose(log);
            log = fopen(g.gl_pathv[i], "r");
        }
    globfree(&g);
    return log;
}

/* Its last line. */
static void last_words(char out[160])
{
    char text[4096] = "", *line;
    FILE *log = last_log();

    if (log && fseek(log, -4000, SEEK_END) != 0)
        rewind(log);
    if (log) {
        text[fread(text, 1, sizeof text - 1, log)] = '\0';
        fclose(log);
    }
    while (text[0] && text[strlen(text) - 1] == '\n')
        text[strlen(text) - 1] = '\0';
    line = strrchr(text, '\n');
    snprintf(out, 160, "%s", line ? line + 1 : text[0] ? text : "it left no log");
}

bool lab_servers_start(lab_site *site, unsigned needs, char missing[256], char why[256])
{
    missing[0] = why[0] = '\0';
    if (!all.folder[0] && !make_scratch(why))
        return false;
    for (int i = 0; i < LAB_SERVERS; i++) {
        if (!(needs & LAB_NEED(i)) || site->url[i][0])
            continue;
        if (!is_here((lab_server)i)) {
            size_t n = strlen(missing);
            snprintf(missing + n, 256 - n, "%s%s", n ? ", " : "", lab_server_name((lab_server)i));
        } else if (!kinds[i].start(site->url[i], sizeof site->url[i])) {
            char words[160];
            last_words(words);
            snprintf(why, 256, "%s did not start: %s", lab_server_name((lab_server)i), words);
            return false;
        }
    }
    return true;
}

void lab_servers_stop(void)
{
    if (all.owner != getpid())
        return;
    for (size_t i = 0; i < all.count; i++)
        kill(all.running[i].pid, all.running[i].end);
    for (size_t i = 0; i < all.count; i++)
        waitpid(all.running[i].pid, NULL, 0);
    all.count = 0;
    close(all.pipe);
    waitpid(all.janitor, NULL, 0);
    all.owner = 0;
    all.folder[0] = '\0';
}
