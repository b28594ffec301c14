/* Wake-ups between processes, and all that the keeper or a waiting thread polls.
 *
 * Each client reads a pipe of its own, `ID.wake` beside the database. Whoever handed a lock over
 * writes one fixed record to the new holder's pipe, once the transaction is on record. Writers open
 * it for reading too: then writing to a client that died raises no signal. A record that does not
 * fit is dropped; its reader finds out at its next keep-alive.
 *
 * Deaths are noticed in two ways, behind one epoll descriptor: the folder is watched for life files
 * whose last descriptor was closed, from the first wait on; and the processes of those who stood in
 * our way are followed. A death is no news by itself: it makes us settle the locks that we wait
 * for. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/sqlite/sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <unistd.h>

#define PIPE_ROOM (256 * 1024)
#define SWEPT     8

typedef struct message {
    uint64_t fence; /* 0: have a look */
    uint64_t floor;
    char attempt[DIBS__ATTEMPT_SIZE];
} message;

/* ---- Opening and closing --------------------------------------------------------------------- */

static bool poll_for(dibs__lite *e, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    return epoll_ctl(e->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

static int open_pipe(dibs__lite *e, const char *client)
{
    char file[DIBS__WAKE_SIZE + 8];

    snprintf(file, sizeof file, "%.47s.wake", client);
    return openat(e->folder, file, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
}

dibs_status dibs__lite_wake_open(dibs__lite *e, dibs_error *err)
{
    char file[DIBS__WAKE_SIZE + 8];

    snprintf(file, sizeof file, "%.47s.wake", e->client);
    if (mkfifoat(e->folder, file, 0600) == 0)
        e->wake = open_pipe(e, e->client);
    if (e->wake >= 0) {
        dibs__lite_location_share(e, e->wake);
        (void)fcntl(e->wake, F_SETPIPE_SZ, PIPE_ROOM); /* the usual size will do, too */
        e->epoll = epoll_create1(EPOLL_CLOEXEC);
    }
    if (e->epoll < 0 || !poll_for(e, e->wake))
        return dibs__fail_errno(err, DIBS_ENGINE_FAILED, errno,
                                "sqlite: %.400s-dibs: cannot create %s: %s", e->path, file,
                                strerror(errno));
    return DIBS_OK;
}

static void close_one(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void dibs__lite_wake_close(dibs__lite *e)
{
    for (int i = 0; i < DIBS__LITE_PEERS; i++) {
        close_one(&e->peers[i].pidfd);
        close_one(&e->peers[i].life);
        close_one(&e->peers[i].wake);
    }
    if (e->inotify >= 0)
        close(e->inotify);
    close_one(&e->log);
    close_one(&e->log_timer);
    close_one(&e->wake);
    close_one(&e->epoll);
}

/* ---- Peers, with the mutex ------------------------------------------------------------------- */

static dibs__lite_peer *find_peer(dibs__lite *e, const char *client)
{
    for (int i = 0; i < DIBS__LITE_PEERS; i++) {
        dibs__lite_peer *p = &e->peers[i];
        if (p->used && strcmp(p->client, client) == 0) {
            p->used = ++e->peers_clock;
            return p;
        }
    }
    return NULL;
}

static void forget_peer(dibs__lite_peer *p)
{
    close_one(&p->pidfd); /* leaves the epoll set by that */
    close_one(&p->life);
    close_one(&p->wake);
    p->used = 0;
}

/* A client that has closed its handle has removed its files. */
static bool is_gone(const dibs__lite_peer *p)
{
    struct stat st;
    int fd = p->wake >= 0 ? p->wake : p->life;

    return fd >= 0 && fstat(fd, &st) == 0 && st.st_nlink == 0;
}

/* Some for each new peer: descriptors of clients that come and go must not pile up until they are pushed out. */
static void forget_gone(dibs__lite *e)
{
    for (int i = 0; i < SWEPT; i++) {
        dibs__lite_peer *p = &e->peers[e->peers_swept++ % DIBS__LITE_PEERS];
        if (p->used && is_gone(p))
            forget_peer(p);
    }
}

static dibs__lite_peer *have_peer(dibs__lite *e, const char *client)
{
    dibs__lite_peer *p = find_peer(e, client);

    if (p)
        return p;
    forget_gone(e);
    p = &e->peers[0];
    for (int i = 1; i < DIBS__LITE_PEERS; i++)
        if (e->peers[i].used < p->used)
            p = &e->peers[i];
    forget_peer(p);
    snprintf(p->client, sizeof p->client, "%s", client);
    p->used = ++e->peers_clock;
    return p;
}

void dibs__lite_peer_follow(dibs__lite *e, const char *client, int pidfd, int life)
{
    dibs__lite_peer *p;

    pthread_mutex_lock(&e->peers_mutex);
    p = have_peer(e, client);
    close_one(&p->pidfd);
    close_one(&p->life);
    p->life = life;
    if (poll_for(e, pidfd))
        p->pidfd = pidfd;
    else
        close(pidfd);
    pthread_mutex_unlock(&e->peers_mutex);
}

static bool has_ended(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};

    return poll(&p, 1, 0) == 1;
}

/* A process lives on after an exec, and its handle does not. If the process has ended, whoever has taken its
 * place must be found anew. */
int dibs__lite_peer_lives(dibs__lite *e, const char *client)
{
    dibs__lite_peer *p;
    pid_t pid;
    int lives = -1;

    pthread_mutex_lock(&e->peers_mutex);
    p = find_peer(e, client);
    if (p && p->life >= 0 && p->pidfd >= 0)
        lives = dibs__lite_life_ask(p->life, &pid);
    pthread_mutex_unlock(&e->peers_mutex);
    return lives;
}

/* ---- Sending --------------------------------------------------------------------------------- */

static void send_to(dibs__lite *e, const dibs__lite_notice *n)
{
    message m = {.fence = n->fence, .floor = n->floor};
    dibs__lite_peer *p;

    memcpy(m.attempt, n->attempt, sizeof m.attempt);
    pthread_mutex_lock(&e->peers_mutex);
    p = have_peer(e, n->client);
    if (p->wake < 0)
        p->wake = open_pipe(e, n->client);
    if (p->wake >= 0 && write(p->wake, &m, sizeof m) < 0 && errno != EAGAIN)
        close_one(&p->wake);
    pthread_mutex_unlock(&e->peers_mutex);
}

static void notify_sink(dibs__lite *e, const char *attempt, uint64_t fence, uint64_t floor)
{
    dibs__sink *sink = e->base.sink;

    if (fence)
        sink->granted(sink, attempt, fence, floor);
    else
        sink->check(sink, attempt);
}

void dibs__lite_wake_send(dibs__lite *e, const dibs__lite_notice *n)
{
    if (strcmp(n->client, e->client) == 0)
        notify_sink(e, n->attempt, n->fence, n->floor);
    else
        send_to(e, n);
}

/* ---- Receiving ------------------------------------------------------------------------------- */

/* Records are written whole, so that a read never ends inside one. */
static void read_pipe(dibs__lite *e)
{
    message m[32];
    ssize_t n;

    while ((n = read(e->wake, m, sizeof m)) > 0) {
        for (size_t i = 0; i < (size_t)n / sizeof m[0]; i++) {
            m[i].attempt[sizeof m[i].attempt - 1] = '\0';
            notify_sink(e, m[i].attempt, m[i].fence, m[i].floor);
        }
        if ((size_t)n < sizeof m)
            return;
    }
}

static bool is_of_death(dibs__lite *e, struct inotify_event *event)
{
    char *ending;

    if (event->mask & IN_Q_OVERFLOW)
        return true;
    ending = event->len ? strrchr(event->name, '.') : NULL;
    if (!ending || strcmp(ending, ".life") != 0)
        return false;
    *ending = '\0';
    return dibs__lite_dead(e, event->name);
}

static bool read_folder(dibs__lite *e)
{
    char buffer[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
    bool death = false;
    ssize_t n;

    while ((n = read(e->inotify, buffer, sizeof buffer)) > 0) {
        for (char *at = buffer; at < buffer + n;) {
            struct inotify_event *event = (struct inotify_event *)at;
            death |= is_of_death(e, event);
            at += sizeof *event + event->len;
        }
    }
    return death;
}

/* Its life file may be held by a child that stands in; settling finds out. */
static bool read_peer(dibs__lite *e, int fd)
{
    bool death = false;

    pthread_mutex_lock(&e->peers_mutex);
    for (int i = 0; i < DIBS__LITE_PEERS; i++) {
        if (e->peers[i].pidfd == fd && has_ended(fd)) {
            close_one(&e->peers[i].pidfd);
            death = true;
        }
    }
    pthread_mutex_unlock(&e->peers_mutex);
    return death;
}

void dibs__lite_wake_events(dibs__lite *e, dibs__deadline until)
{
    struct epoll_event event[16];
    int n = epoll_wait(e->epoll, event, 16, 0);
    bool death = false;

    for (int i = 0; i < n; i++) {
        int fd = event[i].data.fd;
        if (dibs__lite_await_events(e, fd, until))
            continue;
        if (fd == e->wake)
            read_pipe(e);
        else if (fd == e->inotify)
            death |= read_folder(e);
        else
            death |= read_peer(e, fd);
    }
    if (death) {
        dibs__lite_job job = {.kind = DIBS__LITE_RESCUE, .until = until};
        dibs__lite_do(e, &job);
    }
}

/* Watchers are few a user: without one, followed processes and keep-alives must do. */
bool dibs__lite_wake_watch(dibs__lite *e)
{
    char folder[PATH_MAX + 8];
    int fd;

    if (atomic_exchange(&e->watching, true))
        return false;
    fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    snprintf(folder, sizeof folder, "%s-dibs", e->path);
    if (fd < 0 ||
        inotify_add_watch(fd, folder,
                          IN_CLOSE_WRITE | IN_EXCL_UNLINK | IN_ONLYDIR | IN_DONT_FOLLOW) < 0) {
        close_one(&fd);
        e->base.sink->log(e->base.sink, DIBS_LOG_INFO, "sqlite: %s: cannot be watched: %s", folder,
                          strerror(errno));
        return false;
    }
    e->inotify = fd;
    return poll_for(e, fd);
}
