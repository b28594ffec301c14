/* Connecting within a deadline, and setting a session up.
 *
 * A session of our own gets its settings once. Behind a pooler the server's session is shared with
 * strangers from one transaction to the next: it is known by a process id that is not the one that
 * the connection was told, and then nothing is left in the session: no settings, no prepared
 * statements, no LISTEN. */
#define _GNU_SOURCE
#include "engines/postgresql/postgresql.h"

#include "core/error.h"
#include "net/detached.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define OLDEST 120000 /* PostgreSQL 12 */

int dibs__pg_wait(const dibs__env *env, PGconn *pg, bool write_too, dibs__deadline until)
{
    struct pollfd fd = {.fd = PQsocket(pg), .events = POLLIN};

    if (write_too)
        fd.events |= POLLOUT;
    for (;;) {
        int ms = dibs__poll_ms(env, until);
        if (poll(&fd, 1, ms) > 0)
            return 1;
        if (ms == 0)
            return 0;
    }
}

/* ---- Dialling -------------------------------------------------------------------------------- */

static void ignore_notice(void *data, const PGresult *res)
{
    (void)data;
    (void)res;
}

static bool dial_until(const dibs__env *env, PGconn *pg, dibs__deadline until)
{
    PostgresPollingStatusType state = PGRES_POLLING_WRITING;

    if (PQstatus(pg) == CONNECTION_BAD)
        return false;
    while (state != PGRES_POLLING_OK) {
        struct pollfd fd = {.fd = PQsocket(pg),
                            .events = state == PGRES_POLLING_READING ? POLLIN : POLLOUT};
        int ms = dibs__poll_ms(env, until);
        if (state == PGRES_POLLING_FAILED || ms == 0)
            return false;
        if (poll(&fd, 1, ms) > 0)
            state = PQconnectPoll(pg);
    }
    return true;
}

/* ---- The same in a thread of its own, where a name is looked up ------------------------------ */

typedef struct dialling {
    dibs__pg_address address;
    int64_t span;
    PGconn *pg;
    bool done;
} dialling;

/* The clock is the system's: nobody else's may be there when it is used. */
static void run(void *task)
{
    dialling *d = task;
    const dibs__env *env = &dibs__env_system;
    dibs__deadline until = dibs__after(env, d->span);

    d->pg = PQconnectStartParams(d->address.keyword, d->address.value, 0);
    d->done = d->pg && dial_until(env, d->pg, until);
}

static void drop(void *task)
{
    dialling *d = task;

    PQfinish(d->pg);
    dibs__pg_address_fini(&d->address);
    free(d);
}

static dialling *dialling_new(const dibs__pg_address *address, int64_t span)
{
    dialling *d = calloc(1, sizeof *d);

    if (d && !dibs__pg_address_copy(&d->address, address)) {
        free(d);
        return NULL;
    }
    if (d)
        d->span = span;
    return d;
}

/* As PQconnectStartParams and dial_until together. `late`: it took too long, and is left to others. */
static PGconn *dial_detached(const dibs__env *env, const dibs__pg_address *address,
                             dibs__deadline until, bool *done, bool *late)
{
    dialling *d = dialling_new(address, until - dibs__now(env));
    dibs__detached *a = d ? dibs__detached_start(run, drop, d, -1) : NULL;
    PGconn *pg;

    if (!a) {
        if (d)
            drop(d);
        return NULL;
    }
    dibs__detached_wait(a, env, until);
    *late = !dibs__detached_end(a);
    if (*late)
        return NULL;
    pg = d->pg;
    *done = d->done;
    d->pg = NULL;
    drop(d);
    return pg;
}

dibs_status dibs__pg_dial(dibs__pg *e, const char *database, dibs__deadline until, PGconn **out,
                          dibs_error *err)
{
    const dibs__env *env = e->sql.base.env;
    dibs__pg_address there = {0};
    const dibs__pg_address *address = database ? &there : &e->address;
    bool done = false, late = false;
    dibs_status status = DIBS_OK;
    PGconn *pg;

    if (database && !dibs__pg_address_elsewhere(&there, &e->address, database))
        return dibs__fail(err, DIBS_NO_MEMORY, "postgresql: out of memory");
    if (e->address.detached)
        pg = dial_detached(env, address, until, &done, &late);
    else if ((pg = PQconnectStartParams(address->keyword, address->value, 0)) != NULL)
        done = dial_until(env, pg, until);
    dibs__pg_address_fini(&there);
    if (late)
        return dibs__fail(
            err, DIBS_UNAVAILABLE,
            "postgresql: cannot connect to %s: no answer in time (neither from the server nor "
            "from the name lookup, perhaps)",
            e->address.label);
    if (!pg)
        return dibs__fail(err, DIBS_NO_MEMORY, "postgresql: out of memory or threads");
    if (!done)
        status = dibs__pg_fault_connecting(pg, e->address.label, err);
    else if (PQsetnonblocking(pg, 1) != 0)
        status = dibs__pg_fault_lost(pg, DIBS_UNAVAILABLE, err);
    if (status != DIBS_OK) {
        PQfinish(pg);
        return status;
    }
    PQsetNoticeReceiver(pg, ignore_notice, NULL);
    *out = pg;
    return DIBS_OK;
}

/* ---- Simple SQL ------------------------------------------------------------------------------ */

static bool read_until(const dibs__env *env, PGconn *pg, dibs__deadline until)
{
    int unsent = PQflush(pg);

    while (unsent > 0 || PQisBusy(pg)) {
        if (!dibs__pg_wait(env, pg, unsent > 0, until) || !PQconsumeInput(pg))
            return false;
        unsent = unsent > 0 ? PQflush(pg) : 0;
    }
    return unsent == 0;
}

PGresult *dibs__pg_simple(const dibs__env *env, PGconn *pg, const char *sql, dibs__deadline until,
                          dibs_error *err)
{
    PGresult *last = NULL, *res;
    bool again, failed = false;

    if (!PQsendQuery(pg, sql)) {
        dibs__pg_fault_lost(pg, DIBS_UNAVAILABLE, err);
        return NULL;
    }
    for (;;) {
        if (!read_until(env, pg, until)) {
            if (!failed)
                dibs__pg_fault_lost(pg, DIBS_UNAVAILABLE, err);
            failed = true;
            break;
        }
        res = PQgetResult(pg);
        if (!res)
            break;
        if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK &&
            !failed) {
            dibs__pg_fault(res, &again, err);
            failed = true;
        }
        PQclear(last);
        last = res;
    }
    if (failed) {
        PQclear(last);
        return NULL;
    }
    return last;
}

/* ---- The session ----------------------------------------------------------------------------- */

/* What a session of our own is set to: a row that a stopped stranger keeps locked does not keep us
 * for ever, a transaction that we are stopped in does not keep others; and the plans stay what
 * they are meant to be however small the tables were when they were made. */
static void write_hello(char *sql, size_t size, int pid, uint64_t key)
{
    snprintf(
        sql, size,
        "SELECT pg_backend_pid(), current_setting('server_version_num')::int, "
        "pg_is_in_recovery(), current_setting('synchronous_commit'), "
        "CASE WHEN pg_backend_pid() = %d THEN "
        "set_config('lock_timeout', '" DIBS__PG_TEXT(
            DIBS__PG_ROW_MS) "ms', false) || "
                             "set_config('idle_in_transaction_session_timeout', '%dms', false) || "
                             "set_config('default_transaction_isolation', 'read committed', false) "
                             "|| "
                             "set_config('default_transaction_read_only', 'off', false) || "
                             "set_config('plan_cache_mode', 'force_generic_plan', false) || "
                             "set_config('jit', 'off', false) || "
                             "set_config('enable_seqscan', 'off', false) || "
                             "set_config('enable_bitmapscan', 'off', false) || "
                             "set_config('enable_sort', 'off', false) || "
                             "pg_try_advisory_lock(%llu)::text END",
        pid, DIBS__PG_IDLE_MS, (unsigned long long)key);
}

static dibs_status read_hello(dibs__pg_conn *c, const PGresult *res, dibs_error *err)
{
    dibs__pg *e = (dibs__pg *)c->base.e;
    const char *commit = PQgetvalue(res, 0, 3);

    if (atoi(PQgetvalue(res, 0, 1)) < OLDEST)
        return dibs__fail(err, DIBS_UNSUPPORTED, "postgresql: %s is older than PostgreSQL 12",
                          e->address.label);
    if (PQgetvalue(res, 0, 2)[0] == 't')
        return dibs__fail(err, DIBS_UNAVAILABLE,
                          "postgresql: %s is a read-only standby: use the primary",
                          e->address.label);
    c->pooled = atoi(PQgetvalue(res, 0, 0)) != PQbackendPID(c->pg);
    snprintf(c->commit, sizeof c->commit, "%s", strcmp(commit, "off") == 0 ? "on" : commit);
    return DIBS_OK;
}

static dibs_status set_up(dibs__pg_conn *c, dibs__deadline until, dibs_error *err)
{
    dibs__pg *e = (dibs__pg *)c->base.e;
    dibs_error own = {0};
    char hello[1200];
    uint64_t key;
    PGresult *res;
    dibs_status status;

    key = dibs__sql_stray_key(e->sql.base.env);
    write_hello(hello, sizeof hello, PQbackendPID(c->pg), key);
    res = dibs__pg_simple(e->sql.base.env, c->pg, hello, until, &own);
    if (!res)
        return dibs__fail_as(err, own.status, &own);
    status = read_hello(c, res, err);
    PQclear(res);
    c->base.key = c->pooled ? 0 : key;
    if (status == DIBS_OK) {
        pthread_mutex_lock(&e->listen_mutex);
        e->pooled = c->pooled;
        dibs__pg_wake_learn(e, c->pg);
        pthread_mutex_unlock(&e->listen_mutex);
    }
    return status;
}

dibs_status dibs__pg_connect(dibs__sql *e, dibs__deadline until, dibs__sql_conn **out,
                             dibs_error *err)
{
    dibs__pg_conn *c = calloc(1, sizeof *c);
    dibs_status status;

    if (!c)
        return dibs__fail(err, DIBS_NO_MEMORY, "postgresql: out of memory");
    c->base.e = e;
    status = dibs__pg_dial((dibs__pg *)e, NULL, until, &c->pg, err);
    if (status == DIBS_OK)
        status = set_up(c, until, err);
    if (status != DIBS_OK) {
        dibs__pg_disconnect(&c->base);
        return status;
    }
    *out = &c->base;
    return DIBS_OK;
}

/* ---- Sessions that were given up ------------------------------------------------------------- */

/* Those who wait for the same lock as we do, shared, are not meant. */
static const char terminate[] =
    "SELECT set_config('lock_timeout', '%lldms', true), count(pg_terminate_backend(pid)) "
    "FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted "
    "AND objsubid = 1 AND pid <> pg_backend_pid() "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND (classid::bigint << 32 | objid::bigint) = ANY ('{%s}'::bigint[]); "
    "SELECT pg_advisory_xact_lock_shared(k) FROM unnest('{%s}'::bigint[]) k";

/* The server has said why not, and will say it again. (What passes is unavailable: see error.c.) */
static bool is_refused(dibs_status status)
{
    return status == DIBS_DENIED || status == DIBS_ENGINE_FAILED || status == DIBS_INVALID;
}

dibs_status dibs__pg_end_strays(dibs__sql_conn *base, const uint64_t keys[], size_t count,
                                dibs__deadline until, dibs_error *err)
{
    dibs__pg_conn *c = (dibs__pg_conn *)base;
    const dibs__env *env = base->e->base.env;
    int64_t left = until == DIBS__NEVER ? base->e->request_span : until - dibs__now(env);
    char list[DIBS__SQL_STRAYS * 24] = "", sql[sizeof terminate + 2 * sizeof list + 32];
    PGresult *res;

    for (size_t i = 0; i < count && i < DIBS__SQL_STRAYS; i++)
        snprintf(list + strlen(list), 24, "%s%llu", i ? "," : "", (unsigned long long)keys[i]);
    left =
        left / 4 * 3; /* so that the refusal comes in time, and this session is not given up, too */
    snprintf(sql, sizeof sql, terminate, (long long)(left > 0 ? left / DIBS__MS + 1 : 1), list,
             list);
    dibs__pg_leave_pipeline(c, until);
    res = dibs__pg_simple(env, c->pg, sql, until, err);
    PQclear(res);
    if (res)
        return DIBS_OK;
    c->base.broken = PQtransactionStatus(c->pg) != PQTRANS_IDLE; /* answers may be on their way */
    return !c->base.broken && is_refused(err->status) ? DIBS_DENIED : err->status;
}

/* ---- The end --------------------------------------------------------------------------------- */

void dibs__pg_disconnect(dibs__sql_conn *base)
{
    static const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    dibs__pg_conn *c = (dibs__pg_conn *)base;

    if (base->broken) /* what the kernel has not sent yet shall not go out later */
        setsockopt(PQsocket(c->pg), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    PQfinish(c->pg);
    free(c->args);
    free(c->expect);
    free(c->bell);
    free(c);
}

/* PQfinish would say goodbye in the parent's name. */
void dibs__pg_abandon(dibs__sql_conn *base)
{
    close(PQsocket(((dibs__pg_conn *)base)->pg));
}

bool dibs__pg_usable(dibs__sql_conn *base)
{
    PGconn *pg = ((dibs__pg_conn *)base)->pg;
    struct pollfd fd = {.fd = PQsocket(pg), .events = POLLIN};

    if (poll(&fd, 1, 0) > 0 && !PQconsumeInput(pg))
        return false;
    return PQstatus(pg) == CONNECTION_OK;
}
