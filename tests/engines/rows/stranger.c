#define _GNU_SOURCE
#include "stranger.h"

#include "support/server.h"
#include "support/test.h"

#include <libpq-fe.h>
#include <mysql.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

database stranger_db;
char stranger_url[256];

struct stranger {
    PGconn *pg;
    MYSQL *my;
};

/* ---- The server ------------------------------------------------------------------------------ */

bool stranger_is_postgresql(void)
{
    return stranger_db.kind == DATABASE_POSTGRESQL;
}

const char *stranger_url_by(int port, const char *query)
{
    static char url[256];

    snprintf(url, sizeof url, "%s://%s@127.0.0.1:%d/%s%s",
             stranger_is_postgresql() ? "postgresql" : "mysql", stranger_db.user, port,
             stranger_is_postgresql() ? "postgres" : "mysql", query);
    return url;
}

int stranger_setup(const char *engine)
{
    database_kind kind = strcmp(engine, "postgresql") == 0 ? DATABASE_POSTGRESQL : DATABASE_MARIADB;

    if (!database_available(kind))
        return 0;
    if (database_start(&stranger_db, kind, NULL) < 0)
        return -1;
    snprintf(stranger_url, sizeof stranger_url, "%s", stranger_url_by(stranger_db.port, ""));
    return 0;
}

void stranger_teardown(void)
{
    database_stop(&stranger_db);
}

void stranger_need(void)
{
    if (stranger_url[0])
        return;
    if (server_required())
        fail_msg("there is no database server");
    skip();
}

/* ---- Sessions -------------------------------------------------------------------------------- */

stranger *stranger_new(void)
{
    stranger *s = calloc(1, sizeof *s);
    char text[128];

    assert_non_null(s);
    if (stranger_is_postgresql()) {
        snprintf(text, sizeof text, "host=127.0.0.1 port=%d user=%s dbname=postgres",
                 stranger_db.port, stranger_db.user);
        s->pg = PQconnectdb(text);
        assert_int_equal(PQstatus(s->pg), CONNECTION_OK);
        return s;
    }
    s->my = mysql_init(NULL);
    assert_non_null(mysql_real_connect(s->my, "127.0.0.1", stranger_db.user, NULL, "mysql",
                                       (unsigned)stranger_db.port, NULL, 0));
    return s;
}

/* The first number, or -1 with `*failed`. */
static int64_t ask(stranger *s, const char *sql, bool *failed)
{
    int64_t number = 0;

    if (s->pg) {
        PGresult *r = PQexec(s->pg, sql);
        ExecStatusType status = PQresultStatus(r);
        *failed = status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK;
        if (status == PGRES_TUPLES_OK && PQntuples(r) > 0)
            number = strtoll(PQgetvalue(r, 0, 0), NULL, 10);
        if (*failed)
            print_message("# %s", PQresultErrorMessage(r));
        PQclear(r);
        return number;
    }
    *failed = mysql_query(s->my, sql) != 0;
    if (*failed)
        print_message("# %s\n", mysql_error(s->my));
    MYSQL_RES *r = mysql_store_result(s->my);
    MYSQL_ROW row = r ? mysql_fetch_row(r) : NULL;
    if (row && row[0])
        number = strtoll(row[0], NULL, 10);
    mysql_free_result(r);
    return number;
}

int64_t stranger_ask(stranger *s, const char *format, ...)
{
    char sql[4096];
    bool failed;
    int64_t number;
    va_list args;

    va_start(args, format);
    vsnprintf(sql, sizeof sql, format, args);
    va_end(args);
    number = ask(s, sql, &failed);
    assert_false(failed);
    return number;
}

bool stranger_try(stranger *s, const char *sql)
{
    bool failed;

    ask(s, sql, &failed);
    return !failed;
}

void stranger_keep(stranger *s, const char *table, const char *const names[], int count)
{
    stranger_ask(s, "BEGIN");
    for (int i = 0; i < count; i++)
        assert_int_equal(
            stranger_ask(s, "SELECT 1 FROM %s WHERE name = '%s' FOR UPDATE", table, names[i]), 1);
}

void stranger_let_go(stranger *s)
{
    stranger_ask(s, "ROLLBACK");
}

void stranger_free(stranger *s)
{
    if (s->pg)
        PQfinish(s->pg);
    else
        mysql_close(s->my);
    free(s);
}
