/* Another lock library, through a program that speaks lines (dibs-torture(1) has the protocol): one process
 * per worker, in the worker's process group, so that faults hit both. An adapter that ends, or gives an
 * answer that is none, is closed; the worker starts another. */
#define _GNU_SOURCE
#include "adapter.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define GREETING   "dibs-adapter 1 "
#define QUIT_TICKS 200 /* of 10 ms */

typedef struct torture_adapter {
    pid_t pid;
    int fd; /* its stdin and stdout */
    char line[1024];
    size_t size; /* what was read of the next line */
} torture_adapter;

/* ---- Lines ------------------------------------------------------------------------------------ */

/* The next line, without its newline; false: it ended, or took too long. */
static bool read_line(torture_adapter *a, int64_t limit_ms, char out[1024])
{
    int64_t until = torture_now() + limit_ms * TORTURE_MS;

    for (;;) {
        char *end = memchr(a->line, '\n', a->size);
        struct pollfd p = {.fd = a->fd, .events = POLLIN};
        int64_t left = (until - torture_now()) / TORTURE_MS;
        ssize_t n;
        if (end) {
            size_t length = (size_t)(end - a->line);
            memcpy(out, a->line, length);
            out[length] = '\0';
            a->size -= length + 1;
            memmove(a->line, end + 1, a->size);
            return true;
        }
        if (left <= 0 || a->size == sizeof a->line)
            return false;
        if (poll(&p, 1, (int)left) <= 0)
            continue;
        n = read(a->fd, a->line + a->size, sizeof a->line - a->size);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        a->size += n > 0 ? (size_t)n : 0;
    }
}

static bool ask(torture_worker *w, int64_t limit_ms, char answer[1024], const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* One request, one answer. Without one the adapter is closed. */
static bool ask(torture_worker *w, int64_t limit_ms, char answer[1024], const char *format, ...)
{
    char request[512];
    va_list args;
    int size;

    if (!w->adapter)
        return false;
    va_start(args, format);
    size = vsnprintf(request, sizeof request, format, args);
    va_end(args);
    if (send(w->adapter->fd, request, (size_t)size, MSG_NOSIGNAL) == size &&
        read_line(w->adapter, limit_ms, answer))
        return true;
    torture_adapter_close(w);
    return false;
}

/* ---- Its life --------------------------------------------------------------------------------- */

static void become_adapter(const torture_worker *w, int fd, pid_t parent)
{
    char number[16];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(fd, 0) < 0 || dup2(fd, 1) < 0)
        _exit(127);
    snprintf(number, sizeof number, "%d", w->number);
    setenv("DIBS_TORTURE_WORKER", number, 1);
    if (w->plan->url)
        setenv("DIBS_TORTURE_URL", w->plan->url, 1);
    signal(SIGPIPE, SIG_DFL);
    execl("/bin/sh", "sh", "-c", w->plan->adapter, (char *)NULL);
    _exit(127);
}

dibs_status torture_adapter_open(torture_worker *w, dibs_error *err)
{
    torture_adapter *a = calloc(1, sizeof *a);
    pid_t parent = getpid();
    char greeting[1024];
    int pair[2];

    err->status = DIBS_UNAVAILABLE;
    if (!a || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        free(a);
        snprintf(err->message, sizeof err->message, "cannot start the adapter: %s",
                 strerror(errno));
        return err->status;
    }
    a->fd = pair[0];
    a->pid = fork();
    if (a->pid == 0)
        become_adapter(w, pair[1], parent);
    close(pair[1]);
    w->adapter = a;
    if (a->pid > 0 && read_line(a, TORTURE_ADAPTER_MS, greeting) &&
        strncmp(greeting, GREETING, strlen(GREETING)) == 0)
        return err->status = DIBS_OK;
    snprintf(err->message, sizeof err->message,
             "the adapter did not greet with '" GREETING "LIBRARY VERSION'");
    torture_adapter_close(w);
    return err->status;
}

void torture_adapter_close(torture_worker *w)
{
    torture_adapter *a = w->adapter;

    w->adapter = NULL;
    if (!a)
        return;
    if (send(a->fd, "quit\n", 5, MSG_NOSIGNAL) == 5)
        shutdown(a->fd, SHUT_WR);
    for (int i = 0; a->pid > 0 && i < QUIT_TICKS; i++) {
        if (waitpid(a->pid, NULL, WNOHANG) == a->pid)
            a->pid = 0;
        else
            torture_sleep(10 * TORTURE_MS);
    }
    if (a->pid > 0) {
        kill(a->pid, SIGKILL);
        waitpid(a->pid, NULL, 0);
    }
    close(a->fd);
    free(a);
}

/* ---- Locks ------------------------------------------------------------------------------------ */

dibs_status torture_adapter_lock(torture_worker *w, const char *name, int64_t wait_ms, bool *fenced,
                                 uint64_t *fence, dibs_error *err)
{
    int64_t wait = wait_ms == DIBS_NO_WAIT ? 0 : wait_ms;
    char answer[1024] = "the adapter ended or did not answer";

    err->status = DIBS_UNAVAILABLE;
    if (ask(w, wait + TORTURE_ADAPTER_MS, answer, "lock %s %" PRId64 " %" PRId64 "\n", name, wait,
            w->plan->lease_ms)) {
        if (strncmp(answer, "granted ", 8) == 0) {
            *fenced = sscanf(answer + 8, "%" SCNu64, fence) == 1;
            err->status = DIBS_OK;
        } else if (strcmp(answer, "busy") == 0) {
            err->status = DIBS_BUSY;
        }
    }
    if (err->status != DIBS_OK)
        snprintf(err->message, sizeof err->message, "%s", answer);
    return err->status;
}

bool torture_adapter_held(torture_worker *w, const char *name)
{
    char answer[1024];

    return ask(w, TORTURE_ADAPTER_MS, answer, "held %s\n", name) && strcmp(answer, "yes") == 0;
}

dibs_status torture_adapter_unlock(torture_worker *w, const char *name)
{
    char answer[1024];

    if (!ask(w, TORTURE_ADAPTER_MS, answer, "unlock %s\n", name))
        return DIBS_UNAVAILABLE;
    if (strcmp(answer, "released") == 0)
        return DIBS_OK;
    return strcmp(answer, "lost") == 0 ? DIBS_LOST : DIBS_UNAVAILABLE;
}
