/* Wake-ups: one connection of the handle sleeps in the server while anybody of it stands in line.
 *
 * It goes well: whoever hands a lock over puts a row into the table `wake`, in the same
 * transaction, and then kills the *query* (not the connection) of the session that holds the user
 * lock named after the waiting handle. That session is ours: its SLEEP ends, and it asks for the
 * rows and sleeps again:
 *
 *     SELECT text FROM wake WHERE wake = 'handle'; DO SLEEP(15)
 *
 * A kill that comes between two rounds meets nobody asleep; but the row was there before it, and
 * the next round begins by reading. Rows that were read are deleted many at a time, or before we
 * rest. When nobody is in line the connection rests; after a failure another is made, after a
 * pause. What is missed nevertheless, the keeper's signs of life find.
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
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define SLEEP_S     15 /* so long at most stays the session of a client that was killed */
#define PATIENCE    (10 * DIBS__SECOND) /* for an answer that should come at once */
#define FIRST_PAUSE (50 * DIBS__MS)
#define MAX_PAUSE   (5 * DIBS__SECOND)
#define MANY        16 /* so many rows are deleted along with a round */

typedef enum step { CONNECT, QUERY, STORE, NEXT } step;
typedef enum phase { OFF, CONNECTING, SETTING_UP, EVICTING, WATCHING, CLEANING, RESTING } phase;

struct dibs__my_wake {
    dibs__my *e;
    int epoll, kick, timer;
    _Atomic bool wanted; /* somebody has asked for us since we came to rest */
    MYSQL *m;
    phase phase;
    step step;     /* the call that is under way */
    int waits_for; /* 0: none is */
    MYSQL *connected;
    MYSQL_RES *result;
    int failed;
    unsigned results; /* of this round, so far */
    bool has_bell;
    int64_t pause;
    dibs__my_text text;
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
    struct epoll_event ev = {.events = events, .data.fd = mysql_get_socket(w->m)};

    if (epoll_ctl(w->epoll, EPOLL_CTL_MOD, ev.data.fd, &ev) < 0 && errno == ENOENT)
        epoll_ctl(w->epoll, EPOLL_CTL_ADD, ev.data.fd, &ev);
}

/* ---- Calls of the library ----------------------------------------------------------------------
 */

static int start(dibs__my_wake *w)
{
    const dibs__my_place *p = &w->e->place;

    switch (w->step) {
    case CONNECT:
        w->connected = NULL;
        return mysql_real_connect_start(&w->connected, w->m, p->host, p->user, p->password,
                                        p->database, p->port, p->socket, CLIENT_MULTI_STATEMENTS);
    case QUERY:
        return mysql_real_query_start(&w->failed, w->m, w->text.at, w->text.size);
    case STORE:
        return mysql_store_result_start(&w->result, w->m);
    case NEXT:
        break;
    }
    return mysql_next_result_start(&w->failed, w->m);
}

static int go_on(dibs__my_wake *w, int ready)
{
    switch (w->step) {
    case CONNECT:
        return mysql_real_connect_cont(&w->connected, w->m, ready);
    case QUERY:
        return mysql_real_query_cont(&w->failed, w->m, ready);
    case STORE:
        return mysql_store_result_cont(&w->result, w->m, ready);
    case NEXT:
        break;
    }
    return mysql_next_result_cont(&w->failed, w->m, ready);
}

static void hang_up(dibs__my_wake *w)
{
    if (!w->m)
        return;
    if (w->waits_for)
        shutdown(mysql_get_socket(w->m), SHUT_RDWR);
    while (w->waits_for)
        w->waits_for = go_on(w, MYSQL_WAIT_TIMEOUT);
    mysql_free_result(w->result);
    w->result = NULL;
    dibs__my_close(w->m);
    w->m = NULL;
    w->phase = OFF;
}

/* ---- What is asked -----------------------------------------------------------------------------
 */

static void begin_round(dibs__my_wake *w, phase next)
{
    w->phase = next;
    w->step = QUERY;
    w->results = 0;
    w->text.size = 0;
    w->seen.going = 0;
}

static void add(dibs__my_wake *w, const char *pattern)
{
    dibs__sql_value id = {.kind = DIBS__SQL_BYTES, .bytes = w->e->base.id};

    id.size = strlen(id.bytes);
    dibs__my_add_pattern(&w->text, w->e->place.prefix, pattern, &id);
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
    dibs__my_seen_list(&w->seen, &w->text);
}

static void watch(dibs__my_wake *w)
{
    char sleep[32];

    begin_round(w, WATCHING);
    add(w, "SELECT text FROM {wake} WHERE wake = $1; ");
    if (w->seen.count >= MANY) {
        add_deletion(w);
        add(w, "; ");
    }
    snprintf(sleep, sizeof sleep, "DO SLEEP(%d)", SLEEP_S);
    add(w, sleep);
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
    } else if (text && dibs__my_seen_add(&w->seen, text)) {
        dibs__sql_tell(&w->e->base, text);
    }
}

static void read_result(dibs__my_wake *w)
{
    MYSQL_ROW row;

    w->results++;
    while (w->result && (row = mysql_fetch_row(w->result)) != NULL)
        read_row(w, row[0]);
    mysql_free_result(w->result);
    w->result = NULL;
    /* In a round with a deletion that is the second statement, or the only one. */
    if (w->results == (w->phase == CLEANING ? 1 : 2))
        dibs__my_seen_gone(&w->seen);
}

/* ---- From one round to the next ----------------------------------------------------------------
 */

static bool rest(dibs__my_wake *w)
{
    w->phase = RESTING;
    w->waits_for = 0;
    set_timer(w, 0);
    watch_socket(w, EPOLLIN | EPOLLRDHUP);
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
    if (w->phase == WATCHING && w->seen.count > 0) {
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
    w->pause = w->pause ? w->pause * 2 : FIRST_PAUSE;
    if (w->pause > MAX_PAUSE)
        w->pause = MAX_PAUSE;
    set_timer(w, w->pause);
    return false;
}

/* The server said no, to the statement that was being answered. */
static bool refused(dibs__my_wake *w)
{
    unsigned number = mysql_errno(w->m);

    if (w->phase == EVICTING || number == ER_QUERY_INTERRUPTED)
        return round_over(w);
    return give_up(w, mysql_error(w->m));
}

/* A call is over: what comes next? False: nothing, for now. */
static bool done(dibs__my_wake *w)
{
    switch (w->step) {
    case CONNECT:
        if (!w->connected)
            return give_up(w, mysql_error(w->m));
        if (w->e->place.tls && !mysql_get_ssl_cipher(w->m))
            return give_up(w, "the server has no TLS");
        set_up(w, "0");
        return true;
    case QUERY:
        w->step = STORE;
        return w->failed ? refused(w) : true;
    case STORE:
        if (!w->result && mysql_errno(w->m) != 0)
            return refused(w);
        read_result(w);
        w->step = NEXT;
        return true;
    case NEXT:
        break;
    }
    w->step = STORE;
    if (w->failed < 0)
        return round_over(w);
    return w->failed > 0 ? refused(w) : true;
}

/* Goes on as far as it can. */
static void drive(dibs__my_wake *w, int flags)
{
    while (flags == 0) {
        w->waits_for = 0;
        if (!done(w))
            return;
        if (w->text.failed) {
            w->text.failed = false;
            give_up(w, "out of memory");
            return;
        }
        flags = start(w);
    }
    w->waits_for = flags;
    watch_socket(w, (flags & MYSQL_WAIT_READ ? EPOLLIN : 0u) |
                        (flags & MYSQL_WAIT_WRITE ? EPOLLOUT : 0u) |
                        (flags & MYSQL_WAIT_EXCEPT ? EPOLLPRI : 0u));
}

static void connect_anew(dibs__my_wake *w)
{
    w->m = dibs__my_new(&w->e->place);
    if (!w->m) {
        set_timer(w, MAX_PAUSE);
        return;
    }
    w->phase = CONNECTING;
    w->step = CONNECT;
    set_timer(w, PATIENCE);
    drive(w, start(w));
}

static void wake_up(dibs__my_wake *w)
{
    if (w->phase == OFF)
        connect_anew(w);
    if (w->phase == RESTING) {
        watch(w);
        drive(w, start(w));
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
        ready |= w->waits_for & (MYSQL_WAIT_READ | MYSQL_WAIT_WRITE);
    if (w->phase == RESTING)
        hang_up(w); /* the server has left */
    else if (w->waits_for && ready)
        drive(w, go_on(w, ready));
}

static void on_timer(dibs__my_wake *w)
{
    if (w->phase != OFF && w->phase != RESTING) {
        give_up(w, "no answer in time");
        return;
    }
    if (dibs__sql_waiting(&w->e->base) > 0)
        wake_up(w);
    else
        atomic_store(&w->wanted, false);
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
        else if (w->m && ev[i].data.fd == mysql_get_socket(w->m))
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
    dibs__my_text_fini(&w->text);
    free(w);
}

/* Rows that nobody will read any more, and the session, which would sleep on: the server does not
 * see that its client has gone. */
void dibs__my_wake_clean(dibs__my_wake *w, dibs__my_conn *c, dibs__deadline until)
{
    char kill[64];

    if (!w->m)
        return;
    snprintf(kill, sizeof kill, "; KILL CONNECTION %lu", mysql_thread_id(w->m));
    w->text.size = 0;
    add(w, "DELETE FROM {wake} WHERE wake = $1");
    if (w->phase != CONNECTING && w->phase != RESTING)
        add(w, kill);
    dibs__my_add_bytes(&w->text, "", 1);
    if (!w->text.failed)
        dibs__my_do(c, w->text.at, until, NULL);
}

void dibs__my_wake_abandon(dibs__my_wake *w)
{
    if (w->m)
        close(mysql_get_socket(w->m));
    close_all(w);
}
