/* One server's process; see the header. */
#define _GNU_SOURCE
#include "launch.h"

#include "lab.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define REPLY_MAX 2048

/* ---- Programs and ports ---------------------------------------------------------------------- */

bool lab_program_find(const char *const patterns[], char out[256])
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

int lab_port_free(void)
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

/* ---- Starting -------------------------------------------------------------------------------- */

void lab_launch_init(lab_launch *l, const char *folder, const char *account, int end)
{
    memset(l, 0, sizeof *l);
    l->account = account;
    l->end = end;
    snprintf(l->folder, sizeof l->folder, "%s", folder);
    snprintf(l->log, sizeof l->log, "%s/log", folder);
}

void lab_launch_add(lab_launch *l, const char *format, ...)
{
    size_t n = 0;
    va_list list;

    while (l->args[n])
        n++;
    if (n == LAB_ARGS_MAX)
        abort();
    va_start(list, format);
    vsnprintf(l->text[n], sizeof l->text[n], format, list);
    va_end(list);
    l->args[n] = l->text[n];
}

/* In the child: the account, no input, output into the log; a signal when the parent goes. */
static void child(const lab_launch *l, pid_t parent)
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

pid_t lab_launch_spawn(const lab_launch *l)
{
    pid_t parent = getpid(), pid = fork();

    if (pid == 0)
        child(l, parent);
    return pid;
}

bool lab_launch_once(const lab_launch *l)
{
    pid_t pid = lab_launch_spawn(l);
    int status = -1;

    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

/* ---- Is it there? ---------------------------------------------------------------------------- */

bool lab_port_ask(int port, const char *question, const char *word, char *reply)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    size_t size = 0;
    bool open = false, found = false;

    a.sin_port = htons((uint16_t)port);
    reply[0] = '\0';
    open = fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
           (!question || send(fd, question, strlen(question), MSG_NOSIGNAL) > 0);
    while (open && !found && size < REPLY_MAX - 1 && poll(&p, 1, 1000) > 0) {
        ssize_t got = recv(fd, reply + size, REPLY_MAX - 1 - size, 0);
        open = got > 0;
        size += open ? (size_t)got : 0;
        reply[size] = '\0';
        found = open && (!word || memmem(reply, size, word, strlen(word)));
    }
    if (fd >= 0)
        close(fd);
    return found;
}

bool lab_port_ready(int port, const char *question, const char *word)
{
    char reply[REPLY_MAX];

    for (int64_t until = lab_now_us() + LAB_READY_MS * 1000LL; lab_now_us() < until; usleep(20000))
        if (lab_port_ask(port, question, word, reply))
            return true;
    return false;
}
