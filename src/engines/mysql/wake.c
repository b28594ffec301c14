/* Wake-ups: one connection of the handle sleeps in the server while anybody of it stands in line.
 *
 * It goes well: whoever hands a lock over puts a row into the table `wake`, in the same
 * transaction, and then kills the *query* (not the connection) of the session that holds the user
 * lock named after the waiting handle. That session is ours: its wait ends, and it asks for the
 * rows and waits again, for the latch (latch.c), which another session of the handle keeps:
 *
 *     SELECT text FROM wake WHERE wake = 'handle'; SELECT GET_LOCK('dibs:latch:handle', 15)
 *
 * A kill that comes between two rounds meets nobody asleep; but the row was there before it, and
 * the next round begins by reading. Rows that were read are deleted many at a time, or before we
 * rest. When nobody is in line the connection rests; after a failure another is made, after a
 * pause. If the latch is free, another session is made to take it, and we try again after a pause.
 * What is missed nevertheless, the keeper's signs of life find.
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

#define SLEEP_S     15
#define PATIENCE    (10 * DIBS__SECOND) /* for an answer that should come at once */
#define FIRST_PAUSE (50 * DIBS__MS)
#define LATCH_PAUSE (5 * DIBS__MS)
#define MAX_PAUSE   (5 * DIBS__SECOND)
#define MANY        16 /* so many rows are deleted along with a round */

typedef enum phase {
    OFF,
    CONNECTING,
    SETTING_UP,
    EVICTING,
    WATCHING,
    CLEANING,
    PAUSING,
    RESTING
} phase;

struct dibs__my_wake {
    dibs__my *e;
    int epoll, kick, timer;
    _Atomic bool wanted; /* somebody has asked for us since we came to rest */
    phase phase;
    dibs__my_dial *dial; /* connecting is done aside; rings `kick` when it is over */
    dibs__my_call call;
    unsigned results; /* of this round, so far */
    unsigned asleep;  /* which of them the wait gives */
    bool has_bell, latch_free;
    int64_t pause;
    dibs__my_seen seen;
};

/* ---- Descriptors -------------------------------------------------------------------------------
 */

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

/* ---- What is asked -----------------------------------------------------------------------------
 */

static void begin_round(dibs__my_wake *w, phase next)
{
    w->phase = next;
    w->call.step = DIBS__MY_QUERY;
    w->results = w->asleep = 0;
    w->latch_free = false;
    w->call.text.size = 0;
    w->seen.going = 0;
}

static void add(dibs__my_wake *w, const char *pattern)
{
    dibs__sql_value id = {.kind = DIBS__SQL_BYTES, .bytes = w->e->base.id};

    id.size = strlen(id.bytes);
    dibs__my_add_pattern(&w->call.text, w->e->place.prefix, pattern, &id);
}

static void set_up(dibs__my_wake *w, const char *patience)
{
    begin_round(w, SETTING_UP);
    w->has_bell = false;
    add(w, dibs__my_session);
    add(w, "; SELECT GET_LOCK(CONCAT('" DIBS__MY_BELL "', $1), ");
    add(w, patience);
    add(w, ")");
    set_timer(w, PATIENCE);
}

/* A session that we have lost is still there. */
static void evict(dibs__my_wake *w)
{
    begin_round(w, EVICTING);
    add(w, "KILL CONNECTION IS_USED_LOCK(CONCAT('" DIBS__MY_BELL "', $1))");
    set_timer(w, PATIENCE);
}

static void add_deletion(dibs__my_wake *w)
{
    add(w, "DELETE FROM {wake} WHERE wake = $1 AND text IN ");
    dibs__my_seen_list(&w->seen, &w->call.text);
}

static void watch(dibs__my_wake *w)
{
    char wait[16];

    begin_round(w, WATCHING);
    w->asleep = 2;
    add(w, "SELECT text FROM {wake} WHERE wake = $1; ");
    if (w->seen.count >= MANY) {
        w->asleep = 3;
        add_deletion(w);
        add(w, "; ");
    }
    /* 1: we got it, and let it go. */
    snprintf(wait, sizeof wait, "%d", SLEEP_S);
    add(w, "SELECT IF(GET_LOCK(CONCAT('" DIBS__MY_LATCH "', $1), ");
    add(w, wait);
    add(w, "), RELEASE_LOCK(CONCAT('" DIBS__MY_LATCH "', $1)), 0)");
    set_timer(w, SLEEP_S * DIBS__SECOND + PATIENCE);
}

static void clean(dibs__my_wake *w)
{
    begin_round(w, CLEANING);
    add_deletion(w);
    set_timer(w, PATIENCE);
}

/* ---- What is answered --------------------------------------------------------------------------
 */

static void read_row(dibs__my_wake *w, const char *text)
{
    if (w->phase == SETTING_UP) {
        w->has_bell = text && strcmp(text, "1") == 0;
    } else if (w->results == w->asleep) {
        w->latch_free = text && strcmp(text, "1") == 0;
    } else if (text && dibs__my_seen_add(&w->seen, text)) {
        dibs__sql_tell(&w->e->base, text);
    }
}

static void read_result(dibs__my_wake *w)
{
    MYSQL_ROW row;

    w->results++;
    while (w->call.result && (row = mysql_fetch_row(w->call.result)) != NULL)
        read_row(w, row[0]);
    mysql_free_result(w->call.result);
    w->call.result = NULL;
    /* In a round with a deletion that is the second statement, or the only one. */
    if (w->results == (w->phase == CLEANING ? 1 : 2))
        dibs__my_seen_gone(&w->seen);
}

/* ---- From one round to the next ----------------------------------------------------------------
 */

static void lie_down(dibs__my_wake *w, phase how, int64_t span)
{
    w->phase = how;
    w->call.waits_for = 0;
    set_timer(w, span);
    watch_socket(w, EPOLLIN | EPOLLRDHUP);
}

static void make_longer(int64_t *pause, int64_t first)
{
    *pause = *pause ? *pause * 2 : first;
    if (*pause > MAX_PAUSE)
        *pause = MAX_PAUSE;
}

/* The connection that had the latch is gone. Signs of life will take it, on another. */
static bool await_latch(dibs__my_wake *w)
{
    make_longer(&w->pause, LATCH_PAUSE);
    lie_down(w, PAUSING, w->pause);
    dibs__sql_look_at_all(&w->e->base);
    return false;
}

static bool rest(dibs__my_wake *w)
{
    lie_down(w, RESTING, 0);
    atomic_store(&w->wanted, false);
    /* Somebody may have come between our look and our rest, and found us awake. */
    if (dibs__sql_waiting(&w->e->base) == 0)
        return false;
    atomic_store(&w->wanted, true);
    watch(w);
    return true;
}

/* True: go on with `step`. */
static bool round_over(dibs__my_wake *w)
{
    bool waited_for = dibs__sql_waiting(&w->e->base) > 0;

    switch (w->phase) {
    case SETTING_UP:
        if (!w->has_bell) {
            evict(w);
            return true;
        }
        w->pause = 0;
        break;
    case WATCHING:
        if (w->latch_free)
            atomic_store(&w->e->latched, false);
        if (w->latch_free && waited_for)
            return await_latch(w);
        w->pause = 0;
        break;
    case EVICTING:
        set_up(w, "2");
        return true;
    default:
        break;
    }
    if (waited_for || w->phase == SETTING_UP) {
        watch(w);
        return true;
    }
    if (w->phase != CLEANING && w->seen.count > 0) {
        clean(w);
        return true;
    }
    return rest(w);
}

static bool give_up(dibs__my_wake *w, const char *why)
{
    dibs__sink *sink = w->e->base.base.sink;

    sink->log(sink, DIBS_LOG_WARNING, "mysql: %s: no connection for wake-ups: %.200s: trying again",
              w->e->place.label, why);
    hang_up(w);
    make_longer(&w->pause, FIRST_PAUSE);
    set_timer(w, w->pause);
    return false;
}

/* The server said no, to the statement that was being answered. */
static bool refused(dibs__my_wake *w)
{
    unsigned number = mysql_errno(w->call.m);

    if (w->phase == EVICTING || number == ER_QUERY_INTERRUPTED)
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
        if (w->e->place.tls && !mysql_get_ssl_cipher(w->call.m))
            return give_up(w, "the server has no TLS");
        set_up(w, "0");
        return true;
    case DIBS__MY_QUERY:
        w->call.step = DIBS__MY_STORE;
        return w->call.failed ? refused(w) : true;
    case DIBS__MY_STORE:
        if (!w->call.result && mysql_errno(w->call.m) != 0)
            return refused(w);
        read_result(w);
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
        flags = dibs__my_call_start(&w->call, &w->e->place);
    }
    w->call.waits_for = flags;
    watch_socket(w, (flags & MYSQL_WAIT_READ ? EPOLLIN : 0u) |
                        (flags & MYSQL_WAIT_WRITE ? EPOLLOUT : 0u) |
                        (flags & MYSQL_WAIT_EXCEPT ? EPOLLPRI : 0u));
}

static void connect_anew(dibs__my_wake *w)
{
    bool aside = w->e->place.aside;

    if (aside)
        w->dial = dibs__my_dial_start(&w->e->place, PATIENCE, w->kick);
    else
        w->call.m = dibs__my_new(&w->e->place);
    if (!w->dial && !w->call.m) {
        set_timer(w, MAX_PAUSE);
        return;
    }
    w->phase = CONNECTING;
    w->call.step = DIBS__MY_CONNECT;
    set_timer(w, PATIENCE);
    if (!aside)
        drive(w, dibs__my_call_start(&w->call, &w->e->place));
}

/* What was dialled aside goes on here. */
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
        watch(w);
        drive(w, dibs__my_call_start(&w->call, &w->e->place));
    }
}

/* ---- Events ------------------------------------------------------------------------------------
 */

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
        if (round_over(w))
            drive(w, dibs__my_call_start(&w->call, &w->e->place));
    } else if (dibs__sql_waiting(&w->e->base) > 0) {
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

/* ---- Asked for by others -----------------------------------------------------------------------
 */

void dibs__my_wake_listen(dibs__sql *e, dibs__deadline until)
{
    dibs__my_wake *w = ((dibs__my *)e)->wake;

    (void)until;
    if (!atomic_load(&w->wanted) && !atomic_exchange(&w->wanted, true))
        eventfd_write(w->kick, 1);
}

void dibs__my_wake_line_changed(dibs__sql *e)
{
    if (!atomic_load(&((dibs__my *)e)->wake->wanted) && dibs__sql_waiting(e) > 0)
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

/* ---- Making and freeing ------------------------------------------------------------------------
 */

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
    w->e = e;
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
    dibs__my_text_fini(&w->call.text);
    free(w);
}

/* Rows that nobody will read any more. The session that sleeps wakes up when the connection that has
 * the latch is closed, and finds us gone. */
void dibs__my_wake_clean(dibs__my_wake *w, dibs__my_conn *c, dibs__deadline until)
{
    if (!w->call.m)
        return;
    w->call.text.size = 0;
    add(w, "DELETE FROM {wake} WHERE wake = $1");
    dibs__my_add_bytes(&w->call.text, "", 1);
    if (!w->call.text.failed)
        dibs__my_do(c, w->call.text.at, until, NULL);
}

void dibs__my_wake_abandon(dibs__my_wake *w)
{
    if (w->call.m)
        close(mysql_get_socket(w->call.m));
    close_all(w);
}
