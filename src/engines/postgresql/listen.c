/* Wake-ups: LISTEN on a connection of its own, opened when one of ours first waits for a cell (await.c), or stands
 * in the queue and cannot be woken in the way that costs others nothing (wake.c).
 *
 * It is lost: waiters are looked at by a timer until there is a new one, and once when there is.
 * There is a pooler in between, which would give our LISTEN to somebody else's session: the timer
 * is all there is.
 *
 * The keeper polls one descriptor for the engine's life: an epoll over the sockets of both connections and
 * the timer. */
#define _GNU_SOURCE
#include "engines/postgresql/postgresql.h"

#include "core/error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define LOOK_MS     250              /* between looks while nobody wakes us */
#define CONNECT     (500 * DIBS__MS) /* the keeper has other things to do */
#define RETRY_AFTER (2 * DIBS__SECOND)

dibs_status dibs__pg_listen_open(dibs__pg *e, dibs_error *err)
{
    struct epoll_event on = {.events = EPOLLIN};

    pthread_mutex_init(&e->listen_mutex, NULL);
    e->epoll = epoll_create1(EPOLL_CLOEXEC);
    e->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (e->epoll >= 0 && e->timer >= 0 && epoll_ctl(e->epoll, EPOLL_CTL_ADD, e->timer, &on) == 0)
        return DIBS_OK;
    return dibs__fail(err, DIBS_NO_MEMORY, "postgresql: no descriptors left: %s", strerror(errno));
}

void dibs__pg_listen_close(dibs__pg *e)
{
    dibs__pg_wake_hang_up(e);
    PQfinish(e->listener);
    e->listener = NULL;
    if (e->epoll >= 0)
        close(e->epoll);
    if (e->timer >= 0)
        close(e->timer);
    pthread_mutex_destroy(&e->listen_mutex);
}

void dibs__pg_listen_abandon(dibs__pg *e)
{
    if (e->listener)
        close(PQsocket(e->listener));
    if (e->sleeper)
        close(PQsocket(e->sleeper));
    close(e->epoll);
    close(e->timer);
}

/* ---- The timer, with the mutex --------------------------------------------------------------- */

static void set_timer(dibs__pg *e, bool on)
{
    struct itimerspec every = {0};

    if (e->looking == on)
        return;
    if (on)
        every.it_value.tv_nsec = every.it_interval.tv_nsec = LOOK_MS * 1000000L;
    timerfd_settime(e->timer, 0, &every, NULL);
    e->looking = on;
}

void dibs__pg_kick(dibs__pg *e)
{
    struct itimerspec at_once = {.it_value.tv_nsec = 1};

    if (!e->looking)
        timerfd_settime(e->timer, 0, &at_once, NULL);
}

/* ---- The connection, with the mutex ---------------------------------------------------------- */

static bool start_listening(dibs__pg *e, dibs__deadline until)
{
    struct epoll_event on = {.events = EPOLLIN};
    char sql[DIBS__WAKE_SIZE + 50];
    dibs_error err = {0};
    PGresult *res = NULL;
    PGconn *pg = NULL;

    snprintf(sql, sizeof sql, "LISTEN dibs_%s; LISTEN dibs_cell", e->sql.id);
    if (dibs__pg_dial(e, NULL, until, &pg, &err) == DIBS_OK)
        res = dibs__pg_simple(e->sql.base.env, pg, sql, until, &err);
    PQclear(res);
    if (res && epoll_ctl(e->epoll, EPOLL_CTL_ADD, PQsocket(pg), &on) == 0) {
        e->listener = pg;
        return true;
    }
    e->sql.base.sink->log(e->sql.base.sink, DIBS_LOG_WARNING, "no wake-ups, looking instead: %s",
                          err.message);
    PQfinish(pg);
    return false;
}

static void stop_listening(dibs__pg *e)
{
    epoll_ctl(e->epoll, EPOLL_CTL_DEL, PQsocket(e->listener), NULL);
    PQfinish(e->listener);
    e->listener = NULL;
}

/* Listens if that can be had now. True: it has just begun. */
static bool see_to_listener(dibs__pg *e, dibs__deadline until)
{
    int64_t now = dibs__now(e->sql.base.env);

    if (e->listener || e->pooled || now < e->retry)
        return false;
    e->retry = now + RETRY_AFTER;
    return start_listening(e, dibs__sooner(until, now + CONNECT));
}

/* True: one that was lost is there again. Who entered the queue before has the lost one's name in its row, which the
 * next keep-alive puts right; a first one looks by itself (wake.c). */
static bool see_to_sleeper(dibs__pg *e, dibs__deadline until)
{
    int64_t now = dibs__now(e->sql.base.env);
    bool had = e->sleeper, before = e->wake[0] != '\0';

    e->silent = dibs__pg_is_silent(e) && (had || now >= e->sleep_retry) &&
                dibs__pg_wake_begin(e, dibs__sooner(until, now + CONNECT));
    if (!e->sleeper)
        e->sleep_retry = now + RETRY_AFTER;
    return e->silent && !had && before;
}

/* What those who are in the queue, or about to be, need. Nothing can be had: the timer runs. */
static bool see_to_it(dibs__pg *e, dibs__deadline until)
{
    bool begun;

    atomic_store(&e->connecting, true);
    begun = see_to_sleeper(e, until);
    if (!e->silent || e->hears)
        begun |= see_to_listener(e, until);
    atomic_store(&e->connecting, false);
    if (atomic_exchange(&e->skipped, false)) {
        begun = true;
        if (e->hears)
            see_to_listener(e, until);
    }
    set_timer(e, !e->listener && (!e->silent || e->hears));
    return begun;
}

bool dibs__pg_lock(dibs__pg *e)
{
    if (pthread_mutex_trylock(&e->listen_mutex) == 0)
        return true;
    atomic_store(&e->skipped, true);
    if (atomic_load(&e->connecting))
        return false;
    pthread_mutex_lock(&e->listen_mutex);
    return true;
}

void dibs__pg_listen(dibs__sql *base, dibs__deadline until)
{
    dibs__pg *e = (dibs__pg *)base;
    bool begun;

    if (!dibs__pg_lock(e))
        return;
    begun = see_to_it(e, until);
    pthread_mutex_unlock(&e->listen_mutex);
    if (begun)
        base->base.sink->check_all(base->base.sink, DIBS__WAITERS | DIBS__CELLS);
}

void dibs__pg_listen_cells(dibs__pg *e, dibs__deadline until)
{
    dibs__sink *sink = e->sql.base.sink;
    bool begun;

    atomic_store(&e->hears, true);
    if (!dibs__pg_lock(e))
        return;
    atomic_store(&e->connecting, true);
    begun = see_to_listener(e, until);
    atomic_store(&e->connecting, false);
    set_timer(e, !e->listener);
    pthread_mutex_unlock(&e->listen_mutex);
    if (begun)
        sink->check_all(sink, DIBS__WAITERS | DIBS__CELLS);
}

/* ---- Events ---------------------------------------------------------------------------------- */

int dibs__pg_event_fd(dibs__engine *e)
{
    return ((dibs__pg *)e)->epoll;
}

/* The next wake-up that has arrived, or NULL. The sink is told without the mutex. */
static PGnotify *next_notice(dibs__pg *e, bool *missed)
{
    PGnotify *n = NULL;

    pthread_mutex_lock(&e->listen_mutex);
    if (e->listener) {
        n = PQnotifies(e->listener);
        if (!n && !PQconsumeInput(e->listener)) {
            stop_listening(e);
            *missed = true;
        } else if (!n) {
            n = PQnotifies(e->listener);
        }
    }
    pthread_mutex_unlock(&e->listen_mutex);
    return n;
}

static bool is_looking(dibs__pg *e)
{
    bool looking;

    pthread_mutex_lock(&e->listen_mutex);
    looking = e->looking;
    pthread_mutex_unlock(&e->listen_mutex);
    return looking;
}

void dibs__pg_events(dibs__engine *base, dibs__deadline until)
{
    dibs__pg *e = (dibs__pg *)base;
    dibs__sink *sink = base->sink;
    bool missed = false, waited_for;
    uint64_t rings;
    PGnotify *n;

    if (!dibs__pg_wake_events(e, until))
        missed = true;
    while ((n = next_notice(e, &missed)) != NULL) {
        if (strcmp(n->relname, "dibs_cell") == 0)
            dibs__sql_cell_notice_arrived(&e->sql, n->extra);
        else
            dibs__sql_notice_arrived(&e->sql, n->extra);
        PQfreemem(n);
    }
    if (read(e->timer, &rings, sizeof rings) == sizeof rings)
        missed |= is_looking(e);
    if (!missed)
        return;
    waited_for = sink->waited_for(sink);
    pthread_mutex_lock(&e->listen_mutex);
    if (waited_for)
        see_to_it(e, until);
    else
        set_timer(e, false);
    pthread_mutex_unlock(&e->listen_mutex);
    sink->check_all(sink, DIBS__WAITERS | DIBS__CELLS);
}
