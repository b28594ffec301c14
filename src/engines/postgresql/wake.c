/* Wake-ups that cost the same however many sessions wait: a session that sleeps in a statement is ended by
 * pg_cancel_backend. (A NOTIFY wakes every session that listens in the database.)
 *
 * It goes well: while one of ours stands in the queue, a connection of this handle sleeps in pg_sleep, and catches
 * what ends it, so that nothing is written to the server's log. Its row in the queue names the session: "id.pid.start".
 * Who hands the lock over cancels the statement of the session with that process id and that start, after the
 * commit. We look who of ours has the lock (families/rows/line.c), and lie down again.
 *
 * A session that sleeps keeps a snapshot, and dead row versions behind it. Those of ordinary tables are kept for
 * sessions of the same database alone, so this one is connected to another database of the server (the URL's wake_db).
 *
 * A cancel that meets us awake is lost. So we say that we sleep (a NOTICE from inside the statement) and look once
 * afterwards, if somebody stands in the queue by then. The sleep is short: a client that was killed leaves its
 * session behind for no longer.
 *
 * Where it cannot be (a pooler, no such database or no right to it, a server before 14, whose pruning spares what any
 * session may see), there is LISTEN (listen.c). So there is where wake-ups do not arrive, because they come from
 * another account, and where many stand in the queue for one handle, which would have to be looked for each time. */
#define _GNU_SOURCE
#include "engines/postgresql/postgresql.h"

#include "core/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define SLEEP_SECONDS 3
#define SLEEP         (SLEEP_SECONDS * DIBS__SECOND)
#define FEW           16 /* who stand in the queue for one handle */
#define OLDEST        140000
#define MISSES        2 /* then we listen: */
#define MISTRUST      (600 * DIBS__SECOND)
#define GOODBYE       (200 * DIBS__MS)
#define SAYS          "dibs"

static const char hello[] = "SELECT set_config('statement_timeout', '0', false), "
                            "set_config('idle_session_timeout', '0', false), "
                            "set_config('client_min_messages', 'notice', false), pid, "
                            "(extract(epoch FROM backend_start) * 1000000)::bigint "
                            "FROM pg_stat_get_activity(pg_backend_pid())";

static const char sleep_until_cancelled[] =
    "DO $$BEGIN RAISE NOTICE '" SAYS "'; PERFORM pg_sleep(" DIBS__PG_TEXT(
        SLEEP_SECONDS) "); EXCEPTION WHEN query_canceled THEN NULL; END$$";

/* ---- What can be had, with the mutex --------------------------------------------------------- */

static bool is_possible(const dibs__pg *e)
{
    return !e->pooled && !e->no_sleep && e->address.wake_db[0] &&
           dibs__now(e->sql.base.env) >= e->listen_until;
}

void dibs__pg_wake_learn(dibs__pg *e, PGconn *pg)
{
    if (PQserverVersion(pg) < OLDEST || strcmp(PQdb(pg), e->address.wake_db) == 0)
        e->no_sleep = true;
}

bool dibs__pg_is_silent(dibs__pg *e)
{
    return is_possible(e) && dibs__sql_line_count(&e->sql) <= FEW;
}

void dibs__pg_missed(dibs__sql *base)
{
    dibs__pg *e = (dibs__pg *)base;
    bool enough;

    pthread_mutex_lock(&e->listen_mutex);
    enough = e->sleeper && ++e->misses == MISSES;
    if (enough) {
        e->misses = 0;
        e->listen_until = dibs__after(base->base.env, MISTRUST);
    }
    pthread_mutex_unlock(&e->listen_mutex);
    if (enough)
        base->base.sink->log(base->base.sink, DIBS_LOG_WARNING,
                             "postgresql: wake-ups do not arrive (do others use another account?): "
                             "listening instead for a while");
}

/* ---- The session, with the mutex ------------------------------------------------------------- */

static void on_notice(void *data, const PGresult *res)
{
    const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);

    if (text && strcmp(text, SAYS) == 0)
        ((dibs__pg *)data)->noticed = true;
}

void dibs__pg_wake_hang_up(dibs__pg *e)
{
    if (!e->sleeper)
        return;
    epoll_ctl(e->epoll, EPOLL_CTL_DEL, PQsocket(e->sleeper), NULL);
    PQfinish(e->sleeper);
    e->sleeper = NULL;
    e->sleep = DIBS__PG_AWAKE;
}

/* For good if the server has said no. */
static void give_up(dibs__pg *e, dibs_status status, const char *why)
{
    dibs__sink *sink = e->sql.base.sink;

    e->no_sleep |= status == DIBS_DENIED || status == DIBS_INVALID || status == DIBS_ENGINE_FAILED;
    sink->log(sink, DIBS_LOG_WARNING,
              "postgresql: no session that sleeps in database '%s', listening: %s",
              e->address.wake_db, why);
    dibs__pg_wake_hang_up(e);
}

static bool lie_down(dibs__pg *e)
{
    e->noticed = e->due = false;
    e->slept_at = dibs__now(e->sql.base.env);
    e->sleep = DIBS__PG_DOZING;
    if (PQsendQuery(e->sleeper, sleep_until_cancelled) && PQflush(e->sleeper) == 0)
        return true;
    dibs__pg_wake_hang_up(e);
    return false;
}

static bool name_session(dibs__pg *e, const PGresult *res)
{
    if (PQntuples(res) != 1 || atoi(PQgetvalue(res, 0, 3)) != PQbackendPID(e->sleeper))
        return false; /* of a pooler */
    snprintf(e->wake, sizeof e->wake, "%.16s.%.10s.%.17s", e->sql.id, PQgetvalue(res, 0, 3),
             PQgetvalue(res, 0, 4));
    return true;
}

static bool begin(dibs__pg *e, dibs__deadline until)
{
    struct epoll_event on = {.events = EPOLLIN};
    dibs_error err = {0};
    PGresult *res = NULL;
    bool good;

    if (dibs__pg_dial(e, e->address.wake_db, until, &e->sleeper, &err) == DIBS_OK)
        res = dibs__pg_simple(e->sql.base.env, e->sleeper, hello, until, &err);
    good = res && name_session(e, res);
    PQclear(res);
    if (!good) {
        give_up(e, res ? DIBS_INVALID : err.status, res ? "a pooler is in between" : err.message);
        return false;
    }
    PQsetNoticeReceiver(e->sleeper, on_notice, e);
    if (epoll_ctl(e->epoll, EPOLL_CTL_ADD, PQsocket(e->sleeper), &on) != 0)
        dibs__pg_wake_hang_up(e);
    return e->sleeper != NULL;
}

/* False: the connection is lost. */
static bool read_input(dibs__pg *e)
{
    if (!PQconsumeInput(e->sleeper)) {
        dibs__pg_wake_hang_up(e);
        return false;
    }
    if (PQisBusy(e->sleeper) && e->noticed && e->sleep == DIBS__PG_DOZING)
        e->sleep = DIBS__PG_ASLEEP;
    return true;
}

bool dibs__pg_wake_begin(dibs__pg *e, dibs__deadline until)
{
    if (!e->sleeper && !begin(e, until))
        return false;
    if (e->sleep == DIBS__PG_DOZING && !read_input(e))
        return false;
    /* What was read here the descriptor says no more. */
    if (e->sleep == DIBS__PG_DOZING ? !PQisBusy(e->sleeper) : e->due)
        dibs__pg_kick(e);
    if (e->sleep == DIBS__PG_AWAKE && !lie_down(e))
        return false;
    e->due |= e->sleep == DIBS__PG_DOZING;
    return true;
}

/* ---- Events ---------------------------------------------------------------------------------- */

/* True: the statement is over, and the session is awake. An error that says anything but that it was cancelled (before
 * it could catch that) is a refusal. */
static bool rise(dibs__pg *e)
{
    dibs_error err = {0};
    bool again, refused = false;
    PGresult *res;

    while (e->sleep != DIBS__PG_AWAKE && !PQisBusy(e->sleeper)) {
        const char *state;
        res = PQgetResult(e->sleeper);
        if (!res)
            e->sleep = DIBS__PG_AWAKE;
        state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
        if (state && strcmp(state, "57014") != 0) {
            refused = true;
            dibs__pg_fault(res, &again, &err);
        }
        PQclear(res);
    }
    if (refused)
        give_up(e, err.status, err.message);
    return e->sleeper && e->sleep == DIBS__PG_AWAKE;
}

typedef enum event { NOTHING, LOST, FELL_ASLEEP, SLEPT_OUT, WOKEN } event;

static event next_event(dibs__pg *e)
{
    bool awake = e->sleep == DIBS__PG_AWAKE, looks;

    if (!e->sleeper)
        return NOTHING;
    if (!read_input(e))
        return LOST;
    if (!awake && rise(e))
        return dibs__now(e->sql.base.env) - e->slept_at < SLEEP ? WOKEN : SLEPT_OUT;
    if (!e->sleeper)
        return LOST;
    looks = e->due && e->sleep == DIBS__PG_ASLEEP;
    e->due &= !looks;
    return looks ? FELL_ASLEEP : NOTHING;
}

/* Who was woken may be back in the queue soon: lying down is out of the way by then. False: the session is lost. */
static bool lie_down_again(dibs__pg *e, bool found)
{
    bool waits = dibs__sql_line_count(&e->sql) > 0;

    if (found)
        e->misses = 0;
    if (!e->sleeper || e->sleep != DIBS__PG_AWAKE || (!waits && !found))
        return true;
    if (!lie_down(e))
        return false;
    e->due |= waits;
    return true;
}

bool dibs__pg_wake_events(dibs__pg *e, dibs__deadline until)
{
    size_t found = 0;
    event what;

    pthread_mutex_lock(&e->listen_mutex);
    what = next_event(e);
    pthread_mutex_unlock(&e->listen_mutex);
    if (what == WOKEN || what == FELL_ASLEEP)
        found = dibs__sql_line_look(&e->sql, until);
    if (what == WOKEN || what == SLEPT_OUT) {
        pthread_mutex_lock(&e->listen_mutex);
        if (!lie_down_again(e, found > 0))
            what = LOST;
        pthread_mutex_unlock(&e->listen_mutex);
    }
    return what != LOST;
}

/* ---- For others ------------------------------------------------------------------------------ */

void dibs__pg_wake_text(dibs__pg *e, char out[DIBS__WAKE_SIZE])
{
    bool locked = dibs__pg_lock(e);

    memcpy(out, locked && e->silent && e->sleeper ? e->wake : e->sql.id, DIBS__WAKE_SIZE);
    if (locked)
        pthread_mutex_unlock(&e->listen_mutex);
}

/* A server notices a client that has gone only when its statement is over. */
void dibs__pg_wake_close(dibs__pg *e)
{
    dibs__deadline until = dibs__after(e->sql.base.env, GOODBYE);

    if (e->sleeper && e->sleep != DIBS__PG_AWAKE)
        for (size_t i = 0; i < DIBS__SQL_CONNECTIONS; i++)
            if (dibs__pg_ring(e->sql.conn_slot[i].conn, e->wake, until))
                break;
    dibs__pg_wake_hang_up(e);
}
