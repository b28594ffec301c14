/* Wake-ups: one connection of the handle sleeps in the server while anybody of it stands in the queue,
 * or waits for a cell (await.c).
 *
 * It goes well: whoever hands a lock over puts a row into the table `wake`, in the same
 * transaction, and then kills the *query* (not the connection) of the session that holds the user
 * lock named after the waiting handle. That session is ours: its wait ends, and it asks for the
 * rows and waits again, for the latch (latch.c), which another session of the handle keeps:
 *
 *     SELECT text FROM wake WHERE wake = 'handle'; SELECT GET_LOCK('dibs:latch:handle', 15)
 *
 * A kill that comes between two rounds (round.c) meets nobody asleep; but the row was there before
 * it, and the next round begins by reading. When nobody waits the connection rests; after a failure
 * another is made, after a pause. If the latch is free, another session is made to take it, and we
 * try again after a pause. What is missed nevertheless, the keeper's keep-alives find, and the
 * looks of those who wait for a cell.
 *
 * Everything here is done by the keeper, without blocking: each call of the library is started, and
 * continued when its socket is ready. Others only ring `kick`. */
#define _GNU_SOURCE
#include "engines/mysql/mysql.h"

#include <errno.h>
#include <mysqld_error.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define FIRST_PAUSE (50 * DIBS__MS)
#define LATCH_PAUSE (5 * DIBS__MS)
#define MAX_PAUSE   (5 * DIBS__SECOND)

typedef enum phase { OFF, CONNECTING, ASKING, PAUSING, RESTING } phase;

struct dibs__my_wake {
    dibs__my *e;
    int epoll, kick, timer;
    _Atomic bool wanted; /* somebody has asked for us since we came to rest */
    phase phase;
    bool listened; /* others may have left something for us */
    dibs__my_dial
        *dial; /* connecting is done in another thread, which signals `kick` when it is over */
    dibs__my_call call;
    dibs__my_round round; /* ASKING: the one that is under way; PAUSING: the last one */
    int64_t pause;
};

/* ---- Descriptors ----------------------------------------------------------------------------- */

static void set_timer(dibs__my_wake *w, int64_t span)
{
    struct itimerspec at = {0};

    at.it_value.tv_sec = span / DIBS__SECOND;
    at.it_value.tv_nsec = span % DIBS__SECOND * 1000;
    timerfd_settime(w->timer, 0, &at, NULL);
}

static bool add_fd(dibs__my_wake *w, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};

    return fd >= 0 && epoll_ctl(w->epoll, EPOLL_CTL_ADD, fd, &ev) == 0;
}

/* The socket may have become another one since the last time. */
static void watch_socket(dibs__my_wake *w, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.fd = mysql_get_socket(w->call.m)};

    if (epoll_ctl(w->epoll, EPOLL_CTL_MOD, ev.data.fd, &ev) < 0 && errno == ENOENT)
        epoll_ctl(w->epoll, EPOLL_CTL_ADD, ev.data.fd, &ev);
}

static void hang_up(dibs__my_wake *w)
{
    MYSQL *unused = w->dial ? dibs__my_dial_end(w->dial) : NULL;

    if (unused)
        dibs__my_close(unused);
    w->dial = NULL;
    dibs__my_call_end(&w->call);
    w->phase = OFF;
}

/* ---- From one round to the next -------------------------------------------------------------- */

static bool waited_for(dibs__my_wake *w)
{
    dibs__sink *sink = w->e->base.base.sink;

    return sink->waited_for(sink);
}

/* True: go on with `step`. */
static bool begin(dibs__my_wake *w, dibs__my_round_kind kind)
{
    w->phase = ASKING;
    w->call.step = DIBS__MY_QUERY;
    dibs__my_round_begin(&w->round, kind, &w->call.text);
    set_timer(w, dibs__my_round_span(&w->round));
    return true;
}

static void lie_down(dibs__my_wake *w, phase how, int64_t span)
{
    w->phase = how;
    w->call.waits_for = 0;
    set_timer(w, span);
    watch_socket(w, EPOLLIN | EPOLLRDHUP);
}

/* The connection that had the latch is gone. keep-alives and looks will take it, on another. */
static bool await_latch(dibs__my_wake *w)
{
    dibs__sink *sink = w->e->base.base.sink;

    w->pause = dibs__longer(w->pause, LATCH_PAUSE, MAX_PAUSE);
    lie_down(w, PAUSING, w->pause);
    sink->check_all(sink, DIBS__WAITERS | DIBS__CELLS);
    return false;
}

static bool rest(dibs__my_wake *w)
{
    lie_down(w, RESTING, 0);
    atomic_store(&w->wanted, false);
    /* Somebody may have come between our look and our rest, and found us awake. */
    if (!waited_for(w))
        return false;
    atomic_store(&w->wanted, true);
    return begin(w, DIBS__MY_WATCH);
}

/* The rows have been read, unless it is the first time. */
static bool go_on_watching(dibs__my_wake *w)
{
    if (waited_for(w) || w->round.kind == DIBS__MY_SET_UP)
        return begin(w, DIBS__MY_WATCH);
    if (w->round.kind != DIBS__MY_CLEAN && w->round.seen.count > 0)
        return begin(w, DIBS__MY_CLEAN);
    return rest(w);
}

static bool round_over(dibs__my_wake *w)
{
    switch (w->round.kind) {
    case DIBS__MY_SET_UP:
        if (!w->round.has_wake_signal) /* a session that we have lost is still there */
            return begin(w, DIBS__MY_EVICT);
        break;
    case DIBS__MY_EVICT:
        return begin(w, DIBS__MY_SET_UP);
    case DIBS__MY_WATCH:
        if (w->round.latch_free)
            atomic_store(&w->e->latched, false);
        if (w->round.latch_free && waited_for(w))
            return await_latch(w);
        break;
    case DIBS__MY_CLEAN:
        return go_on_watching(w);
    }
    w->pause = 0;
    return go_on_watching(w);
}

static bool give_up(dibs__my_wake *w, const char *why)
{
    dibs__sink *sink = w->e->base.base.sink;

    sink->log(sink, DIBS_LOG_WARNING, "mysql: %s: no connection for wake-ups: %.200s: trying again",
              w->e->address.label, why);
    hang_up(w);
    w->pause = dibs__longer(w->pause, FIRST_PAUSE, MAX_PAUSE);
    set_timer(w, w->pause);
    return false;
}

/* The server said no, to the statement that was being answered. */
static bool refused(dibs__my_wake *w)
{
    unsigned number = mysql_errno(w->call.m);

    if (w->round.kind == DIBS__MY_EVICT || number == ER_QUERY_INTERRUPTED)
        return round_over(w);
    return give_up(w, mysql_error(w->call.m));
}

/* A call is over: what comes next? False: nothing, for now. */
static bool done(dibs__my_wake *w)
{
    switch (w->call.step) {
    case DIBS__MY_CONNECT:
        if (!w->call.connected)
            return give_up(w, mysql_error(w->call.m));
        if (w->e->address.tls && !mysql_get_ssl_cipher(w->call.m))
            return give_up(w, "the server has no TLS");
        return begin(w, DIBS__MY_SET_UP);
    case DIBS__MY_QUERY:
        w->call.step = DIBS__MY_STORE;
        return w->call.failed ? refused(w) : true;
    case DIBS__MY_STORE:
        if (!w->call.result && mysql_errno(w->call.m) != 0)
            return refused(w);
        dibs__my_round_read(&w->round, w->call.result);
        mysql_free_result(w->call.result);
        w->call.result = NULL;
        w->call.step = DIBS__MY_NEXT;
        return true;
    case DIBS__MY_NEXT:
        break;
    }
    w->call.step = DIBS__MY_STORE;
    if (mysql_errno(w->call.m) != 0) /* -1 may be one, see dibs__my_next */
        return refused(w);
    return w->call.failed < 0 ? round_over(w) : true;
}

/* Goes on as far as it can. */
static void drive(dibs__my_wake *w, int flags)
{
    while (flags == 0) {
        w->call.waits_for = 0;
        if (!done(w))
            return;
        if (w->call.text.failed) {
            w->call.text.failed = false;
            give_up(w, "out of memory");
            return;
        }
        flags = dibs__my_call_start(&w->call, &w->e->address);
    }
    w->call.waits_for = flags;
    watch_socket(w, (flags & MYSQL_WAIT_READ ? EPOLLIN : 0u) |
                        (flags & MYSQL_WAIT_WRITE ? EPOLLOUT : 0u) |
                        (flags & MYSQL_WAIT_EXCEPT ? EPOLLPRI : 0u));
}

static void connect_anew(dibs__my_wake *w)
{
    bool detached = w->e->address.detached;

    w->listened = true;
    if (detached)
        w->dial = dibs__my_dial_start(&w->e->address, DIBS__MY_PATIENCE, w->kick);
    else
        w->call.m = dibs__my_new(&w->e->address);
    if (!w->dial && !w->call.m) {
        set_timer(w, MAX_PAUSE);
        return;
    }
    w->phase = CONNECTING;
    w->call.step = DIBS__MY_CONNECT;
    set_timer(w, DIBS__MY_PATIENCE);
    if (!detached)
        drive(w, dibs__my_call_start(&w->call, &w->e->address));
}

/* What was dialled in another thread goes on here. */
static void dialled(dibs__my_wake *w)
{
    w->call.m = dibs__my_dial_end(w->dial);
    w->dial = NULL;
    if (!w->call.m) {
        give_up(w, "no answer in time");
        return;
    }
    w->call.connected = mysql_errno(w->call.m) == 0 ? w->call.m : NULL;
    drive(w, 0);
}

static void wake_up(dibs__my_wake *w)
{
    if (w->dial && dibs__my_dial_is_over(w->dial))
        dialled(w);
    if (w->phase == OFF)
        connect_anew(w);
    if (w->phase == RESTING) {
        begin(w, DIBS__MY_WATCH);
        drive(w, dibs__my_call_start(&w->call, &w->e->address));
    }
}

/* ---- Events ---------------------------------------------------------------------------------- */

static void on_socket(dibs__my_wake *w, uint32_t events)
{
    int ready = (events & EPOLLIN ? MYSQL_WAIT_READ : 0) |
                (events & EPOLLOUT ? MYSQL_WAIT_WRITE : 0) |
                (events & EPOLLPRI ? MYSQL_WAIT_EXCEPT : 0);

    if (events & (EPOLLERR | EPOLLHUP))
        ready |= w->call.waits_for & (MYSQL_WAIT_READ | MYSQL_WAIT_WRITE);
    if (w->phase == RESTING || w->phase == PAUSING)
        hang_up(w); /* the server has left */
    else if (w->call.waits_for && ready)
        drive(w, dibs__my_call_go_on(&w->call, ready));
}

static void on_timer(dibs__my_wake *w)
{
    if (w->phase != OFF && w->phase != RESTING && w->phase != PAUSING) {
        give_up(w, "no answer in time");
        return;
    }
    if (w->phase == PAUSING) {
        if (go_on_watching(w))
            drive(w, dibs__my_call_start(&w->call, &w->e->address));
    } else if (waited_for(w)) {
        wake_up(w);
    } else {
        atomic_store(&w->wanted, false);
    }
}

void dibs__my_wake_events(dibs__my_wake *w)
{
    struct epoll_event ev[4];
    int n = epoll_wait(w->epoll, ev, 4, 0);
    uint64_t ignored;

    for (int i = 0; i < n; i++) {
        bool socket = ev[i].data.fd != w->kick && ev[i].data.fd != w->timer;
        if (!socket && read(ev[i].data.fd, &ignored, sizeof ignored) < 0)
            continue;
        if (ev[i].data.fd == w->kick)
            wake_up(w);
        else if (!socket)
            on_timer(w);
        else if (w->call.m && ev[i].data.fd == mysql_get_socket(w->call.m))
            on_socket(w, ev[i].events);
    }
}

/* ---- Asked for by others --------------------------------------------------------------------- */

void dibs__my_wake_listen(dibs__sql *e, dibs__deadline until)
{
    dibs__my_wake *w = ((dibs__my *)e)->wake;

    (void)until;
    if (!atomic_load(&w->wanted) && !atomic_exchange(&w->wanted, true))
        eventfd_write(w->kick, 1);
}

void dibs__my_wake_queue_changed(dibs__sql *e)
{
    if (!atomic_load(&((dibs__my *)e)->wake->wanted) && e->base.sink->waited_for(e->base.sink))
        dibs__my_wake_listen(e, 0);
}

bool dibs__my_wake_wanted(const dibs__my_wake *w)
{
    return atomic_load(&w->wanted);
}

int dibs__my_wake_fd(const dibs__my_wake *w)
{
    return w->epoll;
}

/* ---- Making and freeing ---------------------------------------------------------------------- */

static void close_all(dibs__my_wake *w)
{
    if (w->epoll >= 0)
        close(w->epoll);
    if (w->kick >= 0)
        close(w->kick);
    if (w->timer >= 0)
        close(w->timer);
}

dibs__my_wake *dibs__my_wake_new(dibs__my *e)
{
    dibs__my_wake *w = calloc(1, sizeof *w);

    if (!w)
        return NULL;
    w->e = w->round.e = e;
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    w->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (w->epoll >= 0 && add_fd(w, w->kick) && add_fd(w, w->timer))
        return w;
    close_all(w);
    free(w);
    return NULL;
}

void dibs__my_wake_free(dibs__my_wake *w)
{
    if (!w)
        return;
    hang_up(w);
    close_all(w);
    dibs__bytes_fini(&w->call.text);
    free(w);
}

/* Rows that nobody will read any more, and for waits that are over. The session that sleeps wakes
 * up when the connection that has the latch is closed, and finds us gone. */
void dibs__my_wake_clean(dibs__my_wake *w, dibs__my_conn *c, dibs__deadline until)
{
    if (!w->listened)
        return;
    w->call.text.length = 0;
    dibs__my_round_add_goodbye(&w->round, atomic_load(&w->e->awaited), &w->call.text);
    dibs__bytes_add(&w->call.text, "", 1);
    if (!w->call.text.failed)
        dibs__my_do(c, w->call.text.data, until, NULL);
}

void dibs__my_wake_abandon(dibs__my_wake *w)
{
    if (w->call.m)
        close(mysql_get_socket(w->call.m));
    close_all(w);
}
