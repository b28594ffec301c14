/* What a command writes, passed on live and kept; see the header. */
#define _GNU_SOURCE
#include "capture.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define CHUNK ((size_t)64 * 1024)

typedef struct stream {
    cli_capture *capture;
    int to;
    pthread_t thread;
    bool running;
    char *kept;
    size_t size, room;
    char *chunk; /* the thread's */
    char *rest;  /* what was in the pipe when the command was gone; the thread's from then on */
    size_t rest_size;
    size_t owed; /* so much of it was left in the pipe, for want of memory */
    int failed;  /* errno of the first write that failed */
} stream;

struct cli_capture {
    pthread_mutex_t mutex; /* guards all but `to`; nobody writes while he has it */
    cli_output pipes;      /* -1: closed */
    stream stream[2];
    size_t limit;
    bool too_long;
    bool stopped;
    int quit; /* eventfd: readable when stopped */
};

/* ---- Keeping --------------------------------------------------------------------------------- */

static void keep_nothing(cli_capture *c)
{
    c->too_long = true;
    for (int i = 0; i < 2; i++) {
        free(c->stream[i].kept);
        c->stream[i].kept = NULL;
        c->stream[i].size = c->stream[i].room = 0;
    }
}

static void keep(stream *s, const char *data, size_t size)
{
    cli_capture *c = s->capture;
    size_t room = s->room ? s->room : CHUNK;
    char *larger;

    if (c->too_long)
        return;
    if (c->stream[0].size + c->stream[1].size + size > c->limit) {
        keep_nothing(c);
        return;
    }
    while (room < s->size + size)
        room *= 2;
    larger = room == s->room ? s->kept : realloc(s->kept, room);
    if (!larger) {
        keep_nothing(c);
        return;
    }
    s->kept = larger;
    s->room = room;
    memcpy(s->kept + s->size, data, size);
    s->size += size;
}

/* ---- Passing on ------------------------------------------------------------------------------ */

int cli_write_all(int fd, const void *data, size_t size)
{
    const char *at = data;
    ssize_t n;

    while (size > 0) {
        n = write(fd, at, size);
        if (n >= 0) {
            at += n;
            size -= (size_t)n;
        } else if (errno == EAGAIN) {
            poll(&(struct pollfd){fd, POLLOUT, 0}, 1, -1);
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

static int *read_end(stream *s)
{
    return &s->capture->pipes.read[s - s->capture->stream];
}

static void close_end(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Waits for something to read and keeps it. 0: there will be nothing more for this thread. */
static size_t take(stream *s, char *chunk)
{
    cli_capture *c = s->capture;
    struct pollfd fds[] = {{*read_end(s), POLLIN, 0}, {c->quit, POLLIN, 0}};
    ssize_t n = -1;
    bool more = true;

    while (more && n <= 0) {
        poll(fds, 2, -1);
        pthread_mutex_lock(&c->mutex);
        more = !c->stopped;
        n = more ? read(fds[0].fd, chunk, CHUNK) : 0;
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            more = false;
        if (n > 0)
            keep(s, chunk, (size_t)n);
        pthread_mutex_unlock(&c->mutex);
    }
    return n > 0 ? (size_t)n : 0;
}

/* What the command has written before it learns that nobody reads any more: it was done, and is kept.
 * With the mutex. */
static void keep_unread(stream *s)
{
    ssize_t n;

    while (!s->capture->too_long && (n = read(*read_end(s), s->chunk, CHUNK)) > 0)
        keep(s, s->chunk, (size_t)n);
}

static void give_up(stream *s, int code)
{
    pthread_mutex_lock(&s->capture->mutex);
    s->failed = code;
    if (!s->capture->stopped)
        keep_unread(s);
    close_end(read_end(s));
    pthread_mutex_unlock(&s->capture->mutex);
}

/* Straight out of the pipe. 0, or errno. */
static int pass_on_owed(stream *s)
{
    ssize_t n;
    int code = 0;

    while (code == 0 && s->owed > 0) {
        n = read(*read_end(s), s->chunk, s->owed < CHUNK ? s->owed : CHUNK);
        if (n <= 0)
            return n < 0 ? errno : 0;
        s->owed -= (size_t)n;
        code = cli_write_all(s->to, s->chunk, (size_t)n);
    }
    return code;
}

static void *pump(void *data)
{
    stream *s = data;
    size_t n;
    int code = 0;

    while (code == 0 && (n = take(s, s->chunk)) > 0)
        code = cli_write_all(s->to, s->chunk, n);
    if (code == 0) /* stopped: the rest lies there */
        code = cli_write_all(s->to, s->rest, s->rest_size);
    if (code == 0)
        code = pass_on_owed(s);
    if (code)
        give_up(s, code);
    return NULL;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static bool open_stream(cli_capture *c, int i, int to)
{
    stream *s = &c->stream[i];
    int ends[2];

    s->to = to;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return false;
    c->pipes.read[i] = ends[0];
    c->pipes.write[i] = ends[1];
    if (fcntl(ends[0], F_SETFL, O_NONBLOCK) < 0)
        return false;
    s->chunk = malloc(CHUNK);
    return s->chunk != NULL;
}

/* They take no signals: those are the wrapper's. */
static bool start_threads(cli_capture *c)
{
    sigset_t all, before;
    int code = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < 2 && code == 0; i++) {
        code = pthread_create(&c->stream[i].thread, NULL, pump, &c->stream[i]);
        c->stream[i].running = code == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = code;
    return code == 0;
}

cli_capture *cli_capture_open(const int to[2], size_t limit)
{
    cli_capture *c = calloc(1, sizeof *c);
    int code;

    if (!c)
        return NULL;
    pthread_mutex_init(&c->mutex, NULL);
    c->pipes = (cli_output){{-1, -1}, {-1, -1}};
    c->stream[0].capture = c->stream[1].capture = c;
    c->limit = limit;
    c->quit = eventfd(0, EFD_CLOEXEC);
    if (c->quit >= 0 && open_stream(c, 0, to[0]) && open_stream(c, 1, to[1]) && start_threads(c))
        return c;
    code = errno;
    if (c->quit >= 0)
        cli_capture_stop(c, &(cli_kept){0});
    cli_capture_flush(c);
    cli_capture_free(c);
    errno = code;
    return NULL;
}

const cli_output *cli_capture_output(const cli_capture *c)
{
    return &c->pipes;
}

/* ---- Ending ---------------------------------------------------------------------------------- */

/* As much as is in the pipe now, however large the command has made it, and no more: somebody who left
 * the group may go on writing. */
static void take_rest(stream *s)
{
    int fd = *read_end(s), there = 0;
    ssize_t n = 1;

    if (fd < 0 || ioctl(fd, FIONREAD, &there) < 0 || there <= 0)
        return;
    s->rest = malloc((size_t)there);
    if (!s->rest) {
        keep_nothing(s->capture);
        s->owed = (size_t)there;
        return;
    }
    while (s->rest_size < (size_t)there && n > 0) {
        n = read(fd, s->rest + s->rest_size, (size_t)there - s->rest_size);
        if (n > 0) {
            keep(s, s->rest + s->rest_size, (size_t)n);
            s->rest_size += (size_t)n;
        }
    }
}

void cli_capture_stop(cli_capture *c, cli_kept *out)
{
    pthread_mutex_lock(&c->mutex);
    c->stopped = true;
    for (int i = 0; i < 2; i++)
        take_rest(&c->stream[i]);
    *out = (cli_kept){{c->stream[0].kept, c->stream[1].kept},
                      {c->stream[0].size, c->stream[1].size},
                      c->too_long};
    pthread_mutex_unlock(&c->mutex);
    eventfd_write(c->quit, 1);
}

int cli_capture_flush(cli_capture *c)
{
    stream *s;

    for (s = c->stream; s < c->stream + 2; s++) {
        if (s->running)
            pthread_join(s->thread, NULL);
        s->running = false;
    }
    return c->stream[0].failed ? c->stream[0].failed : c->stream[1].failed;
}

void cli_capture_free(cli_capture *c)
{
    if (!c)
        return;
    for (int i = 0; i < 2; i++) {
        close_end(&c->pipes.read[i]);
        close_end(&c->pipes.write[i]);
        free(c->stream[i].kept);
        free(c->stream[i].rest);
        free(c->stream[i].chunk);
    }
    close_end(&c->quit);
    pthread_mutex_destroy(&c->mutex);
    free(c);
}
