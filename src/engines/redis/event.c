/* Wake-ups: one subscription a handle, made when the first of it stands in the queue. Whoever reads the handle's
 * events polls one descriptor, an epoll set with the subscription in it and a timer for trying
 * again when that was cut. What is published meanwhile is lost: once it stands again, the core looks at all who
 * wait. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/thread.h"
#include "engines/redis/error.h"
#include "engines/redis/redis.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define FIRST_SPAN \
    (100 * DIBS__MS) /* the keeper has other things to do; a slow network needs more */
#define LAST_SPAN   (800 * DIBS__MS)
#define RETRY_FIRST (100 * DIBS__MS)
#define RETRY_LAST  (5 * DIBS__SECOND)

/* Threads that enter make the connection, whoever reads the events alone reads and drops it. */
struct dibs__events {
    pthread_mutex_t lock; /* `conn` goes from NULL to something, or back */
    int epoll_fd, timer_fd;
    dibs__conn *conn;
    bool wanted;
    bool missed; /* it has been cut: once it stands again, look */
    int64_t pause, span;
    bool refused;              /* the last try was, and not for want of an answer */
    atomic_bool armed;         /* the timer may ring */
    uint64_t made;             /* so many times */
    _Atomic uint64_t standing; /* which of these stands; 0: none */
};

/* ---- Life ------------------------------------------------------------------------------------ */

bool dibs__events_watch(dibs__events *v, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    return epoll_ctl(v->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

dibs__events *dibs__events_new(void)
{
    dibs__events *v = calloc(1, sizeof *v);

    if (!v)
        return NULL;
    pthread_mutex_init(&v->lock, NULL);
    v->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    v->span = FIRST_SPAN;
    v->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (v->epoll_fd < 0 || v->timer_fd < 0 || !dibs__events_watch(v, v->timer_fd)) {
        dibs__events_free(v);
        return NULL;
    }
    return v;
}

void dibs__events_free(dibs__events *v)
{
    if (!v)
        return;
    dibs__conn_close(v->conn);
    if (v->timer_fd >= 0)
        close(v->timer_fd);
    if (v->epoll_fd >= 0)
        close(v->epoll_fd);
    pthread_mutex_destroy(&v->lock);
    free(v);
}

void dibs__events_abandon(dibs__events *v)
{
    if (!v)
        return;
    if (v->conn)
        close(v->conn->fd);
    close(v->timer_fd);
    close(v->epoll_fd);
}

void dibs__events_renew(dibs__events *v)
{
    pthread_mutex_lock(&v->lock);
    if (v->conn)
        shutdown(v->conn->fd, SHUT_RDWR); /* the keeper reads that it was cut */
    pthread_mutex_unlock(&v->lock);
}

/* Has `events` called after `span`. */
static void call_later(dibs__events *v, int64_t span)
{
    struct itimerspec t = {.it_value = {span / DIBS__SECOND, span % DIBS__SECOND * 1000 + 1}};

    atomic_store(&v->armed, true);
    timerfd_settime(v->timer_fd, 0, &t, NULL);
}

static bool has_rung(dibs__events *v)
{
    uint64_t ticks;

    if (!atomic_load_explicit(&v->armed, memory_order_relaxed))
        return false;
    if (read(v->timer_fd, &ticks, sizeof ticks) != sizeof ticks)
        return false;
    atomic_store(&v->armed, false);
    return true;
}

/* ---- Subscribing ----------------------------------------------------------------------------- */

static dibs_status subscribe(dibs__redis *r, dibs__conn *c, dibs__deadline until, dibs_error *err)
{
    dibs__bytes bytes = {0};
    redisReply *reply = NULL;
    dibs_status status;

    dibs__resp_begin(&bytes, 2);
    dibs__resp_text(&bytes, "SUBSCRIBE");
    dibs__resp_text(&bytes, r->channel);
    status = dibs__conn_ask(c, &bytes, &reply, 1, until, err);
    if (status == DIBS_UNKNOWN)
        status = DIBS_UNAVAILABLE;
    if (status == DIBS_OK && reply->type != REDIS_REPLY_ARRAY)
        status = dibs__redis_refusal(reply, err);
    if (status != DIBS_OK)
        dibs__wrap(err, "%s: cannot subscribe to %s", r->address.text, r->channel);
    if (reply)
        freeReplyObject(reply);
    dibs__bytes_fini(&bytes);
    return status;
}

/* With the lock. */
static dibs_status connect_events(dibs__redis *r, dibs__deadline until, dibs_error *err)
{
    dibs__events *v = r->events;
    dibs__conn *c = NULL;
    dibs_status status = dibs__redis_connect(&r->address, until, &c, err);

    if (status == DIBS_OK)
        status = subscribe(r, c, until, err);
    if (status == DIBS_OK && !dibs__events_watch(v, c->fd))
        status =
            dibs__fail(err, DIBS_NO_MEMORY, "cannot poll the subscription: %s", strerror(errno));
    if (status != DIBS_OK) {
        dibs__conn_close(c);
        return status;
    }
    v->conn = c;
    v->pause = 0;
    v->refused = false;
    atomic_store(&v->standing, ++v->made);
    call_later(v, 0); /* something may have come with the confirmation already */
    return DIBS_OK;
}

/* With the lock. Nobody else may come to try: the reader does, later and later. */
static void retry_later(dibs__redis *r, const dibs_error *err)
{
    dibs__events *v = r->events;
    bool refused = err->status != DIBS_UNAVAILABLE;

    if (refused && !v->refused)
        r->base.sink->log(r->base.sink, DIBS_LOG_WARNING,
                          "%s: those who wait ask every 2 s instead of being notified",
                          err->message);
    v->refused = refused;
    v->pause = dibs__longer(v->pause, RETRY_FIRST, RETRY_LAST);
    call_later(v, v->pause);
}

static bool lock_until(dibs__events *v, const dibs__env *env, dibs__deadline until)
{
    int64_t left = until - dibs__now(env);

    if (pthread_mutex_trylock(&v->lock) == 0)
        return true;
    if (left <= 0)
        return false;
    return dibs__mutex_lock_within(&v->lock, left < 60 * DIBS__SECOND ? left : 60 * DIBS__SECOND) ==
           0;
}

/* With the lock. True: it stands again, and what was published meanwhile is lost. */
static bool stands_again(dibs__events *v)
{
    bool again = v->conn && v->missed;

    v->missed &= !again;
    return again;
}

dibs_status dibs__events_need(dibs__redis *r, dibs__deadline until, dibs_error *err)
{
    dibs__events *v = r->events;
    dibs_error unused = {0};
    dibs_status status = DIBS_OK;
    bool again;

    if (!lock_until(v, r->base.env, until))
        return dibs__fail(err, DIBS_UNAVAILABLE, "%s: not subscribed in time", r->address.text);
    v->wanted = true;
    err = err ? err : &unused;
    if (!v->conn && v->refused)
        status =
            dibs__fail(err, DIBS_UNAVAILABLE, "%s: the subscription was refused", r->address.text);
    else if (!v->conn && (status = connect_events(r, until, err)) != DIBS_OK)
        retry_later(r, err); /* the reader may have been turned away meanwhile */
    again = stands_again(v);
    pthread_mutex_unlock(&v->lock);
    if (again)
        r->base.sink->check_all(r->base.sink, DIBS__WAITERS | DIBS__CELLS);
    return status;
}

uint64_t dibs__events_standing(const dibs__redis *r)
{
    return atomic_load_explicit(&r->events->standing, memory_order_acquire);
}

/* ---- What the reader does -------------------------------------------------------------------- */

int dibs__redis_event_fd(dibs__engine *e)
{
    return ((dibs__redis *)e)->events->epoll_fd;
}

/* "attempt fence floor": handed over. "attempt": look. "=hash": a cell has changed. Whether replicas have a
 * hand-over, only a keep tells: it goes out with a WAIT. */
static void deliver(const dibs__redis *r, const redisReply *reply)
{
    dibs__sink *sink = r->base.sink;
    char attempt[DIBS__ATTEMPT_SIZE];
    int64_t fence, floor;
    uint64_t cell;
    int n;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 || !reply->element[0]->str ||
        strcmp(reply->element[0]->str, "message") != 0 || !reply->element[2]->str)
        return;
    if (sscanf(reply->element[2]->str, DIBS__REDIS_CHANGED "%16" SCNx64, &cell) == 1) {
        sink->changed(sink, cell);
        return;
    }
    n = sscanf(reply->element[2]->str, "%39s %" SCNd64 " %" SCNd64, attempt, &fence, &floor);
    if (n == 1 || (n == 3 && r->guard.replicas > 0))
        sink->check(sink, attempt);
    else if (n == 3 && dibs__redis_is_fence(fence, floor))
        sink->granted(sink, attempt, (uint64_t)fence, (uint64_t)floor);
}

static dibs__io deliver_all(dibs__conn *c, const dibs__redis *r)
{
    redisReply *reply = NULL;
    dibs__io io;

    while ((io = dibs__conn_next(c, &reply)) == DIBS__IO_GOT) {
        deliver(r, reply);
        freeReplyObject(reply);
    }
    return io;
}

/* Something may have come with the last answer already. False: the connection is of no use any more. */
static bool read_events(dibs__conn *c, const dibs__redis *r)
{
    short wait_for;
    dibs__io io = deliver_all(c, r);

    if (io == DIBS__IO_LATE)
        io = dibs__conn_pull(c, &wait_for);
    return io == DIBS__IO_LATE || (io == DIBS__IO_GOT && deliver_all(c, r) == DIBS__IO_LATE);
}

/* Without it, all who wait have a look now and then. */
static bool try_again(dibs__redis *r, dibs__deadline until)
{
    dibs_error err = {0};
    dibs_status status;

    until = dibs__sooner(until, dibs__after(r->base.env, r->events->span));
    status = connect_events(r, until, &err);
    if (status != DIBS_OK) {
        r->events->span = dibs__longer(r->events->span, FIRST_SPAN, LAST_SPAN);
        retry_later(r, &err);
    }
    return status == DIBS_OK;
}

static void drop(dibs__redis *r, dibs__events *v)
{
    dibs__conn *c = v->conn;

    r->base.sink->log(r->base.sink, DIBS_LOG_INFO, "%s: the subscription was cut", r->address.text);
    epoll_ctl(v->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    pthread_mutex_lock(&v->lock);
    v->conn = NULL;
    v->missed = true;
    atomic_store(&v->standing, 0);
    pthread_mutex_unlock(&v->lock);
    dibs__conn_close(c);
    call_later(v, 0);
}

static void leave_master(void *ctx)
{
    dibs__redis *r = ctx;

    r->base.sink->log(r->base.sink, DIBS_LOG_INFO, "%s: there is another master", r->address.text);
    dibs__pipeline_renew(r->node->pipeline);
    dibs__events_renew(r->events);
}

void dibs__redis_events(dibs__engine *e, dibs__deadline until)
{
    dibs__redis *r = (dibs__redis *)e;
    dibs__events *v = r->events;
    dibs__conn *c;
    bool rang = has_rung(v), again = false;

    if (r->address.sentinels)
        dibs__sentinels_hear(r->address.sentinels, until, leave_master, r);

    if (pthread_mutex_trylock(&v->lock) != 0)
        return; /* somebody is connecting, and will ring again */
    if (!v->conn && v->wanted && rang)
        again = !try_again(r, until);
    c = v->conn;
    again |= stands_again(v);
    pthread_mutex_unlock(&v->lock);
    if (again)
        r->base.sink->check_all(r->base.sink, DIBS__WAITERS | DIBS__CELLS);
    if (c && !read_events(c, r))
        drop(r, v);
}
