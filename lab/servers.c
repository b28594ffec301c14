/* Private servers; see the header.
 *
 * Each is started the way its page says: a data folder is made where one is needed, the program is
 * run with everything on the command line, and it is there when it answers what only a ready server
 * answers. Databases refuse to run as root: they get their own account then. */
#define _GNU_SOURCE
#include "servers.h"

#include "launch.h"

#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <libpq-fe.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SERVERS_MAX 16
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

static bool make_folder(const char *name, const char *account, char out[256])
{
    const struct passwd *p = account && geteuid() == 0 ? getpwnam(account) : NULL;

    snprintf(out, 256, "%s/%s", all.folder, name);
    return mkdir(out, 0755) == 0 && (!p || chown(out, p->pw_uid, p->pw_gid) == 0);
}

static bool start(const lab_launch *l)
{
    pid_t pid = all.count < SERVERS_MAX ? lab_launch_spawn(l) : -1;

    if (pid <= 0)
        return false;
    all.running[all.count++] = (process){pid, l->end};
    return true;
}

/* ---- The scratch folder ---------------------------------------------------------------------- */

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

bool lab_scratch_folder(const char *name, char out[256], char why[256])
{
    if (!all.folder[0] && !make_scratch(why))
        return false;
    if (make_folder(name, NULL, out))
        return true;
    snprintf(why, 256, "no folder %.100s can be made in %.100s", name, all.folder);
    return false;
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
static void redis_args(lab_launch *l, const char *program, const lab_node *n,
                       const char *const extra[])
{
    if (extra && extra[0] && strchr(extra[0], '='))
        lab_launch_add(l, "/usr/bin/env");
    for (; extra && *extra && strchr(*extra, '='); extra++)
        lab_launch_add(l, "%s", *extra);
    lab_launch_add(l, "%s", program);
    lab_launch_add(l, "--port");
    lab_launch_add(l, "%d", n->port);
    lab_launch_add(l, "--bind");
    lab_launch_add(l, "127.0.0.1");
    lab_launch_add(l, "--dir");
    lab_launch_add(l, "%s", n->folder);
    lab_launch_add(l, "--save");
    lab_launch_add(l, "%s", "");
    for (; extra && *extra; extra++)
        lab_launch_add(l, "%s", *extra);
}

bool lab_node_start(lab_node *n, const char *const extra[])
{
    char program[256];
    lab_launch l;

    if (!lab_program_find(redis_at, program))
        return false;
    lab_launch_init(&l, n->folder, NULL, SIGKILL);
    redis_args(&l, program, n, extra);
    n->pid = lab_launch_spawn(&l);
    return n->pid > 0 && lab_port_ready(n->port, "PING\r\n", "PONG");
}

bool lab_node_new(lab_node *n, const char *const extra[], char why[256])
{
    static int count;
    char name[32];

    *n = (lab_node){.port = lab_port_free()};
    snprintf(name, sizeof name, "node-%d", count++);
    snprintf(n->url, sizeof n->url, "redis://127.0.0.1:%d", n->port);
    if (!lab_scratch_folder(name, n->folder, why))
        return false;
    snprintf(why, 256, "redis-server did not start");
    return lab_node_start(n, extra);
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
    int port = lab_port_free();
    lab_launch l;

    if (!lab_program_find(mariadb_at, program) || !lab_program_find(mariadb_maker_at, maker) ||
        !make_folder("mariadb", "mysql", folder))
        return false;
    lab_launch_init(&l, folder, "mysql", SIGKILL);
    lab_launch_add(&l, "%s", maker);
    lab_launch_add(&l, "--no-defaults");
    lab_launch_add(&l, "--datadir=%s/data", folder);
    lab_launch_add(&l, "--tmpdir=%s", folder);
    lab_launch_add(&l, "--auth-root-authentication-method=normal");
    if (!lab_launch_once(&l))
        return false;
    lab_launch_init(&l, folder, "mysql", SIGKILL);
    lab_launch_add(&l, "%s", program);
    lab_launch_add(&l, "--no-defaults");
    lab_launch_add(&l, "--datadir=%s/data", folder);
    lab_launch_add(&l, "--tmpdir=%s", folder);
    lab_launch_add(&l, "--bind-address=127.0.0.1");
    lab_launch_add(&l, "--port=%d", port);
    lab_launch_add(&l, "--socket=%s/socket", folder);
    lab_launch_add(&l, "--pid-file=%s/pid", folder);
    lab_launch_add(&l, "--max-connections=1000");
    snprintf(url, size, "mysql://root@127.0.0.1:%d/test", port);
    return start(&l) && lab_port_ready(port, NULL, "MariaDB");
}

/* It accepts connections before it serves them, and says so only in its own protocol. */
static bool serves_postgresql(const char *url)
{
    for (int64_t until = lab_now_us() + LAB_READY_MS * 1000LL; lab_now_us() < until; usleep(50000))
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
    int port = lab_port_free();
    lab_launch l;

    if (!lab_program_find(postgres_at, program) || !lab_program_find(initdb_at, maker) ||
        !make_folder("postgresql", "postgres", folder))
        return false;
    lab_launch_init(&l, folder, "postgres", SIGQUIT);
    lab_launch_add(&l, "%s", maker);
    lab_launch_add(&l, "-D");
    lab_launch_add(&l, "%s/data", folder);
    lab_launch_add(&l, "-U");
    lab_launch_add(&l, "postgres");
    lab_launch_add(&l, "-A");
    lab_launch_add(&l, "trust");
    lab_launch_add(&l, "--no-sync");
    if (!lab_launch_once(&l))
        return false;
    lab_launch_init(&l, folder, "postgres", SIGQUIT);
    lab_launch_add(&l, "%s", program);
    lab_launch_add(&l, "-D%s/data", folder);
    lab_launch_add(&l, "-p%d", port);
    lab_launch_add(&l, "-clisten_addresses=127.0.0.1");
    lab_launch_add(&l, "-cunix_socket_directories=%s", folder);
    lab_launch_add(&l, "-cmax_connections=400");
    lab_launch_add(&l, "-cshared_preload_libraries=pg_stat_statements");
    snprintf(url, size, "postgresql://postgres@127.0.0.1:%d/postgres", port);
    if (!start(&l) || !serves_postgresql(url))
        return false;
    count_statements(url);
    return true;
}

static bool zookeeper(char *url, size_t size)
{
    char program[256], jar[256], folder[256], path[300];
    int port = lab_port_free();
    FILE *cfg;
    lab_launch l;

    if (!lab_program_find(java_at, program) || !lab_program_find(zookeeper_at, jar) ||
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
    lab_launch_init(&l, folder, NULL, SIGKILL);
    lab_launch_add(&l, "%s", program);
    lab_launch_add(&l, "-Xmx512m");
    lab_launch_add(&l, "-XX:+UseSerialGC");
    lab_launch_add(&l, "-cp");
    lab_launch_add(&l, "%s:%s", folder, jar);
    lab_launch_add(&l, "org.apache.zookeeper.server.quorum.QuorumPeerMain");
    lab_launch_add(&l, "%s", path);
    snprintf(url, size, "zookeeper://127.0.0.1:%d/lab?session=%dms", port, LAB_SESSION_MS);
    return start(&l) && lab_port_ready(port, "srvr", "Mode:");
}

static bool etcd(char *url, size_t size)
{
    char program[256], folder[256];
    int port = lab_port_free(), peers = lab_port_free();
    lab_launch l;

    if (!lab_program_find(etcd_at, program) || !make_folder("etcd", NULL, folder))
        return false;
    lab_launch_init(&l, folder, NULL, SIGKILL);
    lab_launch_add(&l, "%s", program);
    lab_launch_add(&l, "--name=lab");
    lab_launch_add(&l, "--data-dir=%s/data", folder);
    lab_launch_add(&l, "--listen-client-urls=http://127.0.0.1:%d", port);
    lab_launch_add(&l, "--advertise-client-urls=http://127.0.0.1:%d", port);
    lab_launch_add(&l, "--listen-peer-urls=http://127.0.0.1:%d", peers);
    lab_launch_add(&l, "--initial-advertise-peer-urls=http://127.0.0.1:%d", peers);
    lab_launch_add(&l, "--initial-cluster=lab=http://127.0.0.1:%d", peers);
    snprintf(url, size, "etcd://127.0.0.1:%d?session=%dms", port, LAB_SESSION_MS);
    return start(&l) && lab_port_ready(port, "GET /health HTTP/1.0\r\n\r\n", "\"true\"");
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
        if (!lab_program_find(kinds[server].program[i], path))
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
    snprintf(out, 160, "%.159s", line ? line + 1 : text[0] ? text : "it left no log");
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
