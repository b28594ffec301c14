/* libmariadb's calls, each within a deadline.
 *
 * The library's non-blocking form of a call starts, says what it waits for, and is continued when
 * the socket is ready. When the deadline comes first, the socket is shut down and the call is told
 * that it timed out, so that it ends by itself and frees what it holds.
 *
 * The library leaves two traces in the program that uses us, which are wiped away here: its sockets would be
 * inherited by what the program executes, and TLS may raise SIGPIPE. */
#define _GNU_SOURCE
#include "engines/mysql/mysql.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>

/* What of `flags` is ready; MYSQL_WAIT_TIMEOUT when the deadline has passed. */
static int await(MYSQL *m, int flags, const dibs__env *env, dibs__deadline until)
{
    struct pollfd p = {.fd = mysql_get_socket(m)};
    int n;

    p.events =
        (short)((flags & MYSQL_WAIT_READ ? POLLIN : 0) | (flags & MYSQL_WAIT_WRITE ? POLLOUT : 0) |
                (flags & MYSQL_WAIT_EXCEPT ? POLLPRI : 0));
    do
        n = poll(&p, 1, dibs__poll_ms(env, until));
    while (n < 0 && errno == EINTR);
    if (n <= 0) {
        shutdown(p.fd, SHUT_RDWR);
        return MYSQL_WAIT_TIMEOUT;
    }
    /* An error on the socket is found by whatever is tried next. */
    if (p.revents & (POLLERR | POLLHUP | POLLNVAL))
        return flags & (MYSQL_WAIT_READ | MYSQL_WAIT_WRITE);
    return (p.revents & POLLIN ? MYSQL_WAIT_READ : 0) |
           (p.revents & POLLOUT ? MYSQL_WAIT_WRITE : 0) |
           (p.revents & POLLPRI ? MYSQL_WAIT_EXCEPT : 0);
}

/* ---- Traces ---------------------------------------------------------------------------------- */

void dibs__my_close_on_exec(MYSQL *m)
{
    int fd = mysql_get_socket(m);

    if (fd >= 0)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
}

typedef struct hush {
    bool active, pending;
    sigset_t mask;
} hush;

/* OpenSSL writes to its socket without MSG_NOSIGNAL. Threads of ours block all signals anyway. */
static hush be_quiet(MYSQL *m)
{
    hush h = {.active = mysql_get_ssl_cipher(m) != NULL};
    sigset_t set;

    if (!h.active)
        return h;
    sigpending(&set);
    h.pending = sigismember(&set, SIGPIPE);
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, &h.mask);
    return h;
}

static void be_loud(const hush *h)
{
    static const struct timespec at_once;
    sigset_t set;

    if (!h->active)
        return;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    while (!h->pending && sigtimedwait(&set, NULL, &at_once) == SIGPIPE)
        ;
    pthread_sigmask(SIG_SETMASK, &h->mask, NULL);
}

/* ---- Calls ----------------------------------------------------------------------------------- */

/* Starts the call and goes on with `cont` until it is over. */
#define SEE_THROUGH(late, start, cont)               \
    do {                                             \
        hush quiet = be_quiet(m);                    \
        int flags = start;                           \
        while (flags) {                              \
            int ready = await(m, flags, env, until); \
            late |= ready == MYSQL_WAIT_TIMEOUT;     \
            flags = cont;                            \
        }                                            \
        be_loud(&quiet);                             \
    } while (0)

int dibs__my_connect(MYSQL *m, const dibs__my_address *p, const dibs__env *env,
                     dibs__deadline until)
{
    MYSQL *out = NULL;
    bool late = false;
    int flags =
        mysql_real_connect_start(&out, m, p->host, p->user, p->password, p->database, p->port,
                                 p->socket, CLIENT_MULTI_STATEMENTS | CLIENT_FOUND_ROWS);

    while (flags) {
        dibs__my_close_on_exec(m); /* each address that is tried has a socket of its own */
        int ready = await(m, flags, env, until);
        late |= ready == MYSQL_WAIT_TIMEOUT;
        flags = mysql_real_connect_cont(&out, m, ready);
    }
    return late && !out ? -1 : 0;
}

int dibs__my_query(MYSQL *m, const char *text, size_t size, const dibs__env *env,
                   dibs__deadline until)
{
    int failed = 0;
    bool late = false;

    SEE_THROUGH(late, mysql_real_query_start(&failed, m, text, size),
                mysql_real_query_cont(&failed, m, ready));
    return late ? -1 : 0;
}

int dibs__my_store(MYSQL *m, MYSQL_RES **out, const dibs__env *env, dibs__deadline until)
{
    bool late = false;

    SEE_THROUGH(late, mysql_store_result_start(out, m), mysql_store_result_cont(out, m, ready));
    return late ? -1 : 0;
}

int dibs__my_next(MYSQL *m, bool *more, const dibs__env *env, dibs__deadline until)
{
    int found = 0;
    bool late = false;

    SEE_THROUGH(late, mysql_next_result_start(&found, m), mysql_next_result_cont(&found, m, ready));
    /* A connection that breaks in the middle of the columns' names is -1, too. */
    *more = found >= 0 || mysql_errno(m) != 0;
    return late ? -1 : 0;
}

int dibs__my_stmt_prepare(MYSQL *m, MYSQL_STMT *s, const char *text, size_t size,
                          const dibs__env *env, dibs__deadline until)
{
    int failed = 0;
    bool late = false;

    SEE_THROUGH(late, mysql_stmt_prepare_start(&failed, s, text, size),
                mysql_stmt_prepare_cont(&failed, s, ready));
    return late ? -1 : 0;
}

int dibs__my_stmt_execute(MYSQL *m, MYSQL_STMT *s, const dibs__env *env, dibs__deadline until)
{
    int failed = 0;
    bool late = false;

    SEE_THROUGH(late, mysql_stmt_execute_start(&failed, s),
                mysql_stmt_execute_cont(&failed, s, ready));
    return late ? -1 : 0;
}

void dibs__my_close(MYSQL *m)
{
    hush quiet = be_quiet(m);
    int flags = mysql_close_start(m);

    while (flags) { /* the goodbye does not go out at once: leave without */
        shutdown(mysql_get_socket(m), SHUT_RDWR);
        flags = mysql_close_cont(m, MYSQL_WAIT_TIMEOUT);
    }
    be_loud(&quiet);
}
