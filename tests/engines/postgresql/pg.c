#define _GNU_SOURCE
#include "pg.h"

#include "support/clock.h"
#include "support/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

database pg_db;
char pg_url[128];
PGconn *pg_control;

char *pg_ask(PGconn *pg, const char *sql)
{
    static char value[256];
    PGresult *res = PQexec(pg, sql);

    if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(pg));
    snprintf(value, sizeof value, "%s", PQntuples(res) > 0 ? PQgetvalue(res, 0, 0) : "");
    PQclear(res);
    return value;
}

PGconn *pg_dial(void)
{
    char info[128];
    PGconn *pg;

    snprintf(info, sizeof info, "host=127.0.0.1 port=%d user=postgres dbname=postgres", pg_db.port);
    pg = PQconnectdb(info);
    if (PQstatus(pg) != CONNECTION_OK)
        fail_msg("%s", PQerrorMessage(pg));
    return pg;
}

int pg_setup(void **state)
{
    static const char *const extra[] = {"-cmax_connections=40",
                                        "-csuperuser_reserved_connections=5", NULL};

    (void)state;
    if (!database_available(DATABASE_POSTGRESQL))
        return 0;
    if (database_start(&pg_db, DATABASE_POSTGRESQL, extra) < 0)
        return -1;
    snprintf(pg_url, sizeof pg_url, "postgresql://postgres@127.0.0.1:%d/postgres", pg_db.port);
    pg_control = pg_dial();
    return 0;
}

int pg_teardown(void **state)
{
    (void)state;
    PQfinish(pg_control);
    database_stop(&pg_db);
    return 0;
}

void pg_need(void)
{
    if (pg_db.pid == 0 && server_required())
        fail_msg("PostgreSQL is not installed, and servers are required here");
    if (pg_db.pid == 0)
        skip();
}

dibs *pg_open(const char *where)
{
    return expect_open(where, &(dibs_options){.request_ms = 3000});
}

static void *work(void *arg)
{
    worker *w = arg;

    for (int i = 0; i < w->rounds; i++) {
        dibs_grant *g = NULL;
        w->status =
            dibs_lock(w->d, w->name, &(dibs_lock_options){.wait_ms = 2 * LONG_MS}, &g, &w->err);
        if (w->status != DIBS_OK)
            return NULL;
        if (__atomic_add_fetch(w->inside, 1, __ATOMIC_SEQ_CST) != 1 ||
            dibs_grant_fence(g) <= *w->last)
            atomic_fetch_add(w->wrong, 1);
        *w->last = dibs_grant_fence(g);
        __atomic_sub_fetch(w->inside, 1, __ATOMIC_SEQ_CST);
        atomic_fetch_add(w->done, 1);
        unlock(g);
    }
    return NULL;
}

void team_start(team *t, dibs *const handles[], size_t handle_count, size_t count, int rounds,
                const char *name)
{
    memset(t, 0, sizeof *t);
    t->count = count;
    for (size_t i = 0; i < count; i++) {
        t->member[i] = (worker){.d = handles[i % handle_count],
                                .name = name,
                                .rounds = rounds,
                                .inside = &t->inside,
                                .last = &t->last,
                                .wrong = &t->wrong,
                                .done = &t->done};
        assert_int_equal(pthread_create(&t->member[i].thread, NULL, work, &t->member[i]), 0);
    }
}

void team_end(team *t)
{
    for (size_t i = 0; i < t->count; i++) {
        pthread_join(t->member[i].thread, NULL);
        if (t->member[i].status != DIBS_OK)
            fail_msg("worker %zu: %s", i, t->member[i].err.message);
    }
    assert_int_equal(atomic_load(&t->wrong), 0);
}

static bool queue_is(void *ctx)
{
    return atol(pg_ask(pg_control, "SELECT coalesce(sum(waiters), 0) FROM dibs_lock")) ==
           *(long *)ctx;
}

void pg_wait_for_queue(long count)
{
    if (!wait_until(queue_is, &count, LONG_MS))
        fail_msg("never were %ld in the queue", count);
}
