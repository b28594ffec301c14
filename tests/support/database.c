#define _GNU_SOURCE
#include "support/database.h"

#include "support/clock.h"
#include "support/server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
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

#define START_MS 30000

static const struct {
    const char *name, *account, *user, *maker, *server;
    const char *places[3]; /* patterns of folders */
    int end;               /* the signal that makes it go at once and leave nothing behind */
} kinds[] = {
    [DATABASE_POSTGRESQL] = {"PostgreSQL",
                             "postgres",
                             "postgres",
                             "initdb",
                             "postgres",
                             {"/usr/lib/postgresql/*/bin", "/usr/local/bin", "/usr/bin"},
                             SIGQUIT},
    [DATABASE_MARIADB] = {"MariaDB",
                          "mysql",
                          "root",
                          "mariadb-install-db",
                          "mariadbd",
                          {"/usr/sbin", "/usr/bin", "/usr/local/bin"},
                          SIGKILL},
};

/* ---- Programs -------------------------------------------------------------------------------- */

/* The newest of that name. */
static bool find_program(database_kind kind, const char *name, char *out, size_t size)
{
    bool found = false;

    for (size_t i = 0; i < 3 && !found; i++) {
        char pattern[256];
        glob_t g;
        snprintf(pattern, sizeof pattern, "%s/%s", kinds[kind].places[i], name);
        if (glob(pattern, 0, NULL, &g) == 0) {
            snprintf(out, size, "%s", g.gl_pathv[g.gl_pathc - 1]);
            found = true;
        }
        globfree(&g);
    }
    return found;
}

bool database_available(database_kind kind)
{
    char path[256];

    return find_program(kind, kinds[kind].maker, path, sizeof path) &&
           find_program(kind, kinds[kind].server, path, sizeof path);
}

/* In the child: another account if we are root, no input, output into the log; dies with us. */
static void become(const database *d, pid_t parent)
{
    const struct passwd *account = geteuid() == 0 ? getpwnam(kinds[d->kind].account) : NULL;
    char log[SCRATCH_MAX + 16];
    int null = open("/dev/null", O_RDWR);
    int fd =
        open(scratch_file(&d->folder, "log", log, sizeof log), O_WRONLY | O_CREAT | O_APPEND, 0666);

    if (account && (initgroups(account->pw_name, account->pw_gid) != 0 ||
                    setgid(account->pw_gid) != 0 || setuid(account->pw_uid) != 0))
        _exit(126);
    prctl(PR_SET_PDEATHSIG, kinds[d->kind].end); /* after setuid, which forgets it */
    if (getppid() != parent || chdir("/") != 0)
        _exit(126);
    dup2(null, 0);
    dup2(fd, 1);
    dup2(fd, 2);
}

static pid_t spawn(const database *d, char *const args[])
{
    pid_t parent = getpid(), pid = fork();

    if (pid != 0)
        return pid;
    become(d, parent);
    execv(args[0], args);
    _exit(127);
}

/* ---- Data folder and arguments --------------------------------------------------------------- */

static int make_data(database *d)
{
    const struct passwd *account = geteuid() == 0 ? getpwnam(kinds[d->kind].account) : NULL;
    char program[256], option[SCRATCH_MAX + 64], tmpdir[SCRATCH_MAX + 32];
    char *postgresql[] = {program,         (char *)"-D",        d->data,
                          (char *)"-U",    (char *)"postgres",  (char *)"-A",
                          (char *)"trust", (char *)"--no-sync", NULL};
    char *mariadb[] = {
        program, (char *)"--no-defaults",  option,
        tmpdir,  (char *)"--skip-test-db", (char *)"--auth-root-authentication-method=normal",
        NULL};
    int status = -1;
    pid_t pid;

    scratch_file(&d->folder, "data", d->data, sizeof d->data);
    snprintf(option, sizeof option, "--datadir=%s", d->data);
    /* A server that starts removes what it takes for its own in there: each has one. */
    snprintf(tmpdir, sizeof tmpdir, "--tmpdir=%s", d->folder.path);
    if (mkdir(d->data, 0700) != 0 ||
        (account && (chown(d->data, account->pw_uid, account->pw_gid) != 0 ||
                     chown(d->folder.path, account->pw_uid, account->pw_gid) != 0)) ||
        !find_program(d->kind, kinds[d->kind].maker, program, sizeof program))
        return -1;
    pid = spawn(d, d->kind == DATABASE_POSTGRESQL ? postgresql : mariadb);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return status == 0 ? 0 : -1;
}

static void add_arg(database *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add_arg(database *d, const char *format, ...)
{
    char arg[SCRATCH_MAX + 128];
    size_t n = 0;
    va_list list;

    while (d->args[n])
        n++;
    va_start(list, format);
    vsnprintf(arg, sizeof arg, format, list);
    va_end(list);
    if (n + 1 >= DATABASE_ARGS_MAX || !(d->args[n] = strdup(arg)))
        abort();
}

static void drop_args(database *d)
{
    for (size_t i = 0; i < DATABASE_ARGS_MAX; i++) {
        free(d->args[i]);
        d->args[i] = NULL;
    }
}

static void make_args(database *d, const char *const extra[])
{
    char program[256];

    if (!find_program(d->kind, kinds[d->kind].server, program, sizeof program))
        abort();
    add_arg(d, "%s", program);
    if (d->kind == DATABASE_POSTGRESQL) {
        snprintf(d->socket, sizeof d->socket, "%s", d->folder.path);
        add_arg(d, "-D%s", d->data);
        add_arg(d, "-p%d", d->port);
        add_arg(d, "-clisten_addresses=127.0.0.1");
        add_arg(d, "-cunix_socket_directories=%s", d->socket);
    } else {
        scratch_file(&d->folder, "socket", d->socket, sizeof d->socket);
        add_arg(d, "--no-defaults");
        add_arg(d, "--datadir=%s", d->data);
        add_arg(d, "--tmpdir=%s", d->folder.path);
        add_arg(d, "--bind-address=127.0.0.1");
        add_arg(d, "--port=%d", d->port);
        add_arg(d, "--socket=%s", d->socket);
        add_arg(d, "--pid-file=%s/pid", d->folder.path);
    }
    for (size_t i = 0; extra && extra[i]; i++)
        add_arg(d, "%s", extra[i]);
}

/* ---- Is it there? ---------------------------------------------------------------------------- */

static int dial(const database *d)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    a.sin_port = htons((uint16_t)d->port);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* PostgreSQL answers a start-up message with R when it serves, MariaDB greets with its protocol. */
static bool answers(const database *d)
{
    static const char hello[] = "\0\0\0\x17\0\3\0\0user\0postgres\0";
    bool postgresql = d->kind == DATABASE_POSTGRESQL;
    int fd = dial(d);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char reply[5] = {0};
    bool good;

    if (fd < 0)
        return false;
    good = !postgresql || send(fd, hello, 23, MSG_NOSIGNAL) == 23;
    good = good && poll(&p, 1, 1000) > 0 && recv(fd, reply, sizeof reply, 0) == sizeof reply;
    close(fd);
    return good && (postgresql ? reply[0] == 'R' : reply[4] == 10);
}

/* ---- Starting and ending --------------------------------------------------------------------- */

static bool ended(database *d)
{
    if (waitpid(d->pid, NULL, WNOHANG) != d->pid)
        return false;
    d->pid = 0;
    return true;
}

int database_restart(database *d)
{
    int64_t end = clock_ms() + START_MS;

    d->pid = spawn(d, d->args);
    while (d->pid > 0 && !ended(d)) {
        if (answers(d))
            return 0;
        if (clock_ms() > end)
            database_end(d, SIGKILL);
        sleep_ms(20);
    }
    d->pid = 0;
    return -1;
}

int database_start(database *d, database_kind kind, const char *const extra[])
{
    memset(d, 0, sizeof *d);
    d->kind = kind;
    d->user = kinds[kind].user;
    if (scratch_make(&d->folder) < 0 || make_data(d) < 0) {
        fprintf(stderr, "# %s made no data folder in %s\n", kinds[kind].name, d->folder.path);
        return -1;
    }
    /* Another may take the free port before the server does: then again, with another one. */
    for (int i = 0; i < 3; i++) {
        d->port = free_port();
        make_args(d, extra);
        if (database_restart(d) == 0)
            return 0;
        drop_args(d);
    }
    fprintf(stderr, "# %s did not start in %s\n", kinds[kind].name, d->folder.path);
    return -1;
}

void database_need(database *d, database_kind kind, const char *const extra[])
{
    memset(d, 0, sizeof *d);
    if (!database_available(kind)) {
        if (server_required())
            fail_msg("%s is not installed, and servers are required here", kinds[kind].name);
        skip();
    }
    assert_int_equal(database_start(d, kind, extra), 0);
}

/* PostgreSQL has a process for each session. */
static void signal_children(const database *d, int signal)
{
    char path[64];
    FILE *list;
    int pid;

    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)d->pid, (int)d->pid);
    list = fopen(path, "r");
    while (list && fscanf(list, "%d", &pid) == 1)
        kill(pid, signal);
    if (list)
        fclose(list);
}

void database_pause(database *d)
{
    int status;

    kill(d->pid, SIGSTOP);
    waitpid(d->pid, &status, WUNTRACED);
    signal_children(d, SIGSTOP);
}

void database_continue(database *d)
{
    signal_children(d, SIGCONT);
    kill(d->pid, SIGCONT);
}

void database_end(database *d, int signal)
{
    int64_t end = clock_ms() + 10000;

    if (d->pid <= 0)
        return;
    kill(d->pid, signal);
    database_continue(d);
    while (!ended(d)) {
        if (clock_ms() > end)
            kill(d->pid, SIGKILL);
        sleep_ms(2);
    }
}

void database_stop(database *d)
{
    database_end(d, kinds[d->kind].end);
    drop_args(d);
    scratch_remove(&d->folder);
}
