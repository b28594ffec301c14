/* Sockets with deadlines.
 *
 * A plain socket is left blocking with a short receive timeout, so that the usual wait for a reply
 * is one system call and no poll; the timeout only makes us look at the clock again. Near its
 * deadline a wait goes through poll. TLS always does, because reader and writer share the TLS state
 * and neither may block in it. */
#define _GNU_SOURCE
#include "engines/redis/connection.h"

#include "core/error.h"
#include "net/dial.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define TICK      (200 * DIBS__MS)
#define REPLY_MAX ((size_t)256 << 20)
#define ARRAY_MAX (REPLY_MAX / 4) /* elements: each takes four bytes at least */

/* ---- Connecting ------------------------------------------------------------------------------ */

static void keep_alive(int fd)
{
    int on = 1, idle = 15, interval = 5, count = 3;

    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

static dibs_status connect_host(const dibs__redis_address *address, dibs__deadline until, int *out,
                                dibs_error *err)
{
    dibs_status status =
        dibs__dial(address->env, address->host, address->port, -1, until, out, err);

    if (status == DIBS_OK)
        keep_alive(*out);
    return status;
}

static dibs_status connect_socket(const dibs__redis_address *address, dibs__deadline until,
                                  int *out, dibs_error *err)
{
    struct sockaddr_un socket_address = {.sun_family = AF_UNIX};

    strncpy(socket_address.sun_path, address->socket,
            sizeof socket_address.sun_path - 1); /* its length was checked */
    *out = dibs__dial_address(address->env, (const struct sockaddr *)&socket_address,
                              sizeof socket_address, -1, until);
    if (*out >= 0)
        return DIBS_OK;
    if (errno == EACCES || errno == EPERM)
        return dibs__fail_errno(err, DIBS_DENIED, errno,
                                "no permission to use the socket: %s; check the file's permissions",
                                strerror(errno));
    return dibs__fail_errno(err, DIBS_UNAVAILABLE, errno,
                            "cannot connect to the socket: %s; is the server running?",
                            strerror(errno));
}

static void let_block(int fd)
{
    struct timeval tick = {0, TICK};

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof tick);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
}

/* A peer may announce any number of elements, and hiredis reserves memory for all of them at once. */
static redisReplyObjectFunctions bounded;
static void *(*create_any_array)(const redisReadTask *, int);

static void *create_array(const redisReadTask *task, int elements)
{
    return (size_t)elements <= ARRAY_MAX ? create_any_array(task, elements) : NULL;
}

static void make_bounded(void)
{
    redisReader *plain = redisReaderCreate();

    if (!plain)
        return;
    bounded = *plain->fn;
    create_any_array = bounded.createArray;
    bounded.createArray = create_array;
    redisReaderFree(plain);
}

/* hiredis 0.14 aborts when it makes a large buffer smaller and there is no memory for the small one: make_small does it. */
static redisReader *create_reader(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    redisReader *r;

    pthread_once(&once, make_bounded);
    r = create_any_array ? redisReaderCreateWithFunctions(&bounded) : redisReaderCreate();
    if (r)
        r->maxbuf = 0;
    return r;
}

dibs_status dibs__conn_open(const dibs__redis_address *address, dibs__deadline until,
                            dibs__conn **out, dibs_error *err)
{
    dibs__conn *c = calloc(1, sizeof *c);
    dibs_status status;

    if (!c)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    c->env = address->env;
    c->fd = -1;
    c->reader = create_reader();
    if (!c->reader)
        status = dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    else if (address->host)
        status = connect_host(address, until, &c->fd, err);
    else
        status = connect_socket(address, until, &c->fd, err);
    if (status == DIBS_OK && address->tls)
        status = dibs__tls_open(address->tls, c->fd, address->host, c->env, until, &c->tls, err);
    if (status == DIBS_OK && !address->tls)
        let_block(c->fd);
    if (status != DIBS_OK)
        dibs__conn_close(c);
    else
        *out = c;
    return status;
}

void dibs__conn_close(dibs__conn *c)
{
    if (!c)
        return;
    dibs__tls_close(c->tls);
    if (c->fd >= 0)
        close(c->fd);
    if (c->reader)
        redisReaderFree(c->reader);
    free(c);
}

void dibs__conn_drop_unsent(dibs__conn *c)
{
    struct linger none = {.l_onoff = 1, .l_linger = 0};

    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

/* ---- Sending --------------------------------------------------------------------------------- */

static ssize_t write_some(dibs__conn *c, const char *data, size_t length, short *wait_for)
{
    *wait_for = POLLOUT;
    return c->tls ? dibs__tls_write(c->tls, data, length, wait_for)
                  : send(c->fd, data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

dibs__io dibs__conn_send(dibs__conn *c, const char *data, size_t length, dibs__deadline until,
                         size_t *sent)
{
    *sent = 0;
    while (*sent < length) {
        short wait_for;
        ssize_t n = write_some(c, data + *sent, length - *sent, &wait_for);
        if (n > 0) {
            *sent += (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            struct pollfd p = {c->fd, wait_for, 0};
            int left = dibs__poll_ms(c->env, until);
            if (left == 0)
                return DIBS__IO_LATE;
            if (poll(&p, 1, left) < 0 && errno != EINTR)
                return DIBS__IO_CUT;
        } else if (n == 0 || errno != EINTR) {
            return DIBS__IO_CUT;
        }
    }
    return DIBS__IO_GOT;
}

dibs__io dibs__conn_push(dibs__conn *c, const char *data, size_t length, size_t *sent,
                         short *wait_for)
{
    *sent = 0;
    while (*sent < length) {
        ssize_t n = write_some(c, data + *sent, length - *sent, wait_for);
        if (n > 0)
            *sent += (size_t)n;
        else if (n < 0 && errno == EAGAIN)
            return DIBS__IO_LATE;
        else if (n == 0 || errno != EINTR)
            return DIBS__IO_CUT;
    }
    return DIBS__IO_GOT;
}

/* ---- Receiving ------------------------------------------------------------------------------- */

static ssize_t read_some(dibs__conn *c, char *data, size_t length, bool block, short *wait_for)
{
    *wait_for = POLLIN;
    return c->tls ? dibs__tls_read(c->tls, data, length, wait_for)
                  : recv(c->fd, data, length, block ? 0 : MSG_DONTWAIT);
}

/* Between replies. Without memory the reader stays as it is. */
static void make_small(dibs__conn *c)
{
    redisReader *fresh = create_reader();

    if (!fresh)
        return;
    redisReaderFree(c->reader);
    c->reader = fresh;
    c->largest = 0;
}

static dibs__io feed(dibs__conn *c, const char *data, size_t length)
{
    if (c->reader->len - c->reader->pos + length > REPLY_MAX)
        return DIBS__IO_JUNK;
    if (c->largest > REDIS_READER_MAX_BUF && c->reader->len == 0 && c->reader->ridx == -1)
        make_small(c);
    if (redisReaderFeed(c->reader, data, length) == REDIS_OK) {
        c->largest = c->reader->len > c->largest ? c->reader->len : c->largest;
        return DIBS__IO_GOT;
    }
    return c->reader->err == REDIS_ERR_OOM ? DIBS__IO_MEMORY : DIBS__IO_JUNK;
}

/* Sleeps until there is something to read; GOT: there is. */
static dibs__io await_bytes(dibs__conn *c, dibs__deadline until, short wait_for)
{
    struct pollfd p = {c->fd, wait_for, 0};
    int left = dibs__poll_ms(c->env, until);
    int n = poll(&p, 1, left < 0 || left > TICK / DIBS__MS ? TICK / DIBS__MS : left);

    if (n < 0)
        return errno == EINTR ? DIBS__IO_GOT : DIBS__IO_CUT;
    return n == 0 && left == 0 ? DIBS__IO_LATE : DIBS__IO_GOT;
}

dibs__io dibs__conn_receive(dibs__conn *c, dibs__deadline until)
{
    char data[16384];
    /* With TLS there may be bytes that poll does not see, so that reading comes first. */
    bool poll_first = !c->tls;
    short wait_for = POLLIN;

    for (;;) {
        bool block = !c->tls && until - dibs__now(c->env) > TICK, waited = block;
        if (!block && poll_first) {
            dibs__io io = await_bytes(c, until, wait_for);
            if (io != DIBS__IO_GOT)
                return io;
            waited = true;
        }
        ssize_t n = read_some(c, data, sizeof data, block, &wait_for);
        if (n > 0)
            return feed(c, data, (size_t)n);
        if (n == 0 || (errno != EAGAIN && errno != EINTR))
            return DIBS__IO_CUT;
        if (waited)
            return DIBS__IO_GOT; /* whoever reads for others has more to look after */
        poll_first = true;
    }
}

dibs__io dibs__conn_pull(dibs__conn *c, short *wait_for)
{
    char data[16384];
    dibs__io got = DIBS__IO_LATE;

    for (;;) {
        ssize_t n = read_some(c, data, sizeof data, false, wait_for);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return got;
        if (n <= 0)
            return DIBS__IO_CUT;
        got = feed(c, data, (size_t)n);
        /* TLS may have more that poll does not see. */
        if (got != DIBS__IO_GOT || (!c->tls && (size_t)n < sizeof data))
            return got;
    }
}

dibs__io dibs__conn_next(dibs__conn *c, redisReply **out)
{
    void *reply = NULL;

    if (redisReaderGetReply(c->reader, &reply) != REDIS_OK)
        return c->reader->err == REDIS_ERR_OOM ? DIBS__IO_MEMORY : DIBS__IO_JUNK;
    *out = reply;
    return reply ? DIBS__IO_GOT : DIBS__IO_LATE;
}

bool dibs__conn_is_quiet(dibs__conn *c)
{
    char byte;
    short wait_for;
    ssize_t n;

    if (c->reader->pos != c->reader->len)
        return false;
    /* TLS talks to itself at times: only a read tells whether there is anything for us. */
    n = c->tls ? dibs__tls_read(c->tls, &byte, 1, &wait_for)
               : recv(c->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n < 0 && errno == EAGAIN;
}

const char *dibs__io_text(dibs__io io)
{
    switch (io) {
    case DIBS__IO_LATE:
        return "no answer in time";
    case DIBS__IO_CUT:
        return "the connection was closed";
    case DIBS__IO_MEMORY:
        return "out of memory";
    case DIBS__IO_JUNK:
        return "what came back is not the Redis protocol";
    case DIBS__IO_GOT:
        break;
    }
    return "interrupted";
}

/* ---- One exchange ---------------------------------------------------------------------------- */

dibs_status dibs__conn_ask(dibs__conn *c, const dibs__bytes *bytes, redisReply **out, size_t count,
                           dibs__deadline until, dibs_error *err)
{
    size_t sent, got = 0;
    dibs__io io = DIBS__IO_GOT;

    memset(out, 0, count * sizeof *out);
    if (bytes->failed)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    if (dibs__conn_send(c, bytes->data, bytes->length, until, &sent) != DIBS__IO_GOT)
        return dibs__fail(err, DIBS_UNAVAILABLE, "the request could not be sent");
    while (got < count) {
        io = dibs__conn_next(c, &out[got]);
        if (io == DIBS__IO_GOT)
            got++;
        else if (io != DIBS__IO_LATE || (io = dibs__conn_receive(c, until)) != DIBS__IO_GOT)
            return dibs__fail(err, DIBS_UNKNOWN, "%s", dibs__io_text(io));
    }
    return DIBS_OK;
}
