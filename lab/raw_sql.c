/* libmariadb, libpq and SQLite: a statement as text, its rows as numbers or text. */
#define _GNU_SOURCE
#include "raw.h"

#include <libpq-fe.h>
#include <mariadb/mysql.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MYSQL_DUPLICATE    1062
#define MYSQL_LOCK_TIMEOUT 1205
#define MYSQL_DEADLOCK     1213

struct lab_sql {
    MYSQL *my;
    PGconn *pg;
    sqlite3 *lite;
    lab_sql_trouble trouble;
};

/* What comes out of a statement, row after row: cells are text, NULL for SQL's NULL. */
typedef void (*row_fn)(void *ctx, const char *const *cells, int count);

static const row_fn no_rows = NULL;

/* ---- MariaDB --------------------------------------------------------------------------------- */

static bool open_mysql(lab_buyer *buyer, lab_sql *sql, const char *url)
{
    unsigned limit = LAB_CONNECT_S;
    lab_url u;

    if (!lab_url_read(buyer, "mysql", url, 3306, &u))
        return false;
    sql->my = mysql_init(NULL);
    if (!sql->my)
        return lab_note(buyer, "out of memory");
    mysql_options(sql->my, MYSQL_OPT_CONNECT_TIMEOUT, &limit);
    if (!mysql_real_connect(sql->my, u.host, u.user[0] ? u.user : "root", u.password,
                            u.path[0] ? u.path : NULL, (unsigned)u.port, NULL, 0))
        return lab_note(buyer, "mariadb: %s", mysql_error(sql->my));
    return true;
}

static lab_sql_trouble mysql_trouble(unsigned number)
{
    switch (number) {
    case MYSQL_DUPLICATE:
        return LAB_SQL_DUPLICATE;
    case MYSQL_DEADLOCK:
        return LAB_SQL_DEADLOCK;
    case MYSQL_LOCK_TIMEOUT:
        return LAB_SQL_TIMEOUT;
    default:
        return LAB_SQL_OTHER;
    }
}

static int64_t run_mysql(lab_buyer *buyer, lab_sql *sql, const char *text, row_fn row, void *ctx)
{
    MYSQL_RES *res;
    MYSQL_ROW cells;
    int64_t changed;

    if (mysql_query(sql->my, text) != 0) {
        sql->trouble = mysql_trouble(mysql_errno(sql->my));
        lab_note(buyer, "mariadb: %s", mysql_error(sql->my));
        return -1;
    }
    changed = (int64_t)mysql_affected_rows(sql->my);
    res = mysql_store_result(sql->my);
    while (res && (cells = mysql_fetch_row(res)))
        if (row)
            row(ctx, (const char *const *)cells, (int)mysql_num_fields(res));
    mysql_free_result(res);
    return changed < 0 ? 0 : changed;
}

/* ---- PostgreSQL ------------------------------------------------------------------------------ */

static void hear_nothing(void *ctx, const char *message)
{
    (void)ctx;
    (void)message;
}

static bool open_pg(lab_buyer *buyer, lab_sql *sql, const char *url)
{
    char limit[16];
    const char *const keys[] = {"dbname", "connect_timeout", NULL};
    const char *const values[] = {url, limit, NULL};

    snprintf(limit, sizeof limit, "%d", LAB_CONNECT_S);
    sql->pg = PQconnectdbParams(keys, values, 1);
    if (PQstatus(sql->pg) != CONNECTION_OK)
        return lab_note(buyer, "postgresql: %s", PQerrorMessage(sql->pg));
    PQsetNoticeProcessor(sql->pg, hear_nothing, NULL);
    return true;
}

static lab_sql_trouble pg_trouble(const char *state)
{
    if (!state)
        return LAB_SQL_OTHER;
    if (strcmp(state, "23505") == 0 || strcmp(state, "42P07") == 0 || strcmp(state, "42710") == 0)
        return LAB_SQL_DUPLICATE; /* a row, a table or its type */
    if (strcmp(state, "40P01") == 0 || strcmp(state, "40001") == 0)
        return LAB_SQL_DEADLOCK;
    return strcmp(state, "55P03") == 0 ? LAB_SQL_TIMEOUT : LAB_SQL_OTHER;
}

static int64_t run_pg(lab_buyer *buyer, lab_sql *sql, const char *text, row_fn row, void *ctx)
{
    PGresult *res = PQexec(sql->pg, text);
    ExecStatusType status = PQresultStatus(res);
    int64_t changed = -1;
    const char *cells[16];

    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) {
        sql->trouble = pg_trouble(PQresultErrorField(res, PG_DIAG_SQLSTATE));
        lab_note(buyer, "postgresql: %s", PQerrorMessage(sql->pg));
    } else {
        changed = strtoll(PQcmdTuples(res), NULL, 10);
        for (int i = 0; row && i < PQntuples(res); i++) {
            int n = PQnfields(res) < 16 ? PQnfields(res) : 16;
            for (int j = 0; j < n; j++)
                cells[j] = PQgetisnull(res, i, j) ? NULL : PQgetvalue(res, i, j);
            row(ctx, cells, n);
        }
    }
    PQclear(res);
    return changed;
}

/* ---- SQLite ---------------------------------------------------------------------------------- */

/* The books lie beside the store of the product, in a file of their own. */
static bool open_lite(lab_buyer *buyer, lab_sql *sql, const char *url)
{
    char path[600];
    const char *file = strncmp(url, "sqlite://", 9) == 0 ? url + 9 : url;

    snprintf(path, sizeof path, "%.*s.books", (int)strcspn(file, "?"), file);
    if (sqlite3_open(path, &sql->lite) != SQLITE_OK)
        return lab_note(buyer, "sqlite: %s: %s", path, sqlite3_errmsg(sql->lite));
    sqlite3_busy_timeout(sql->lite, 10000);
    sqlite3_exec(sql->lite, "PRAGMA journal_mode=WAL", NULL, NULL, NULL);
    return true;
}

typedef struct lite_rows {
    row_fn row;
    void *ctx;
} lite_rows;

static int lite_row(void *ctx, int count, char **cells, char **names)
{
    lite_rows *r = ctx;

    (void)names;
    if (r->row)
        r->row(r->ctx, (const char *const *)cells, count);
    return 0;
}

static int64_t run_lite(lab_buyer *buyer, lab_sql *sql, const char *text, row_fn row, void *ctx)
{
    lite_rows rows = {row, ctx};
    int before = sqlite3_total_changes(sql->lite);
    int code = sqlite3_exec(sql->lite, text, lite_row, &rows, NULL);

    if (code == SQLITE_OK)
        return sqlite3_total_changes(sql->lite) - before;
    sql->trouble = code == SQLITE_CONSTRAINT ? LAB_SQL_DUPLICATE
                   : code == SQLITE_BUSY     ? LAB_SQL_TIMEOUT
                                             : LAB_SQL_OTHER;
    lab_note(buyer, "sqlite: %s", sqlite3_errmsg(sql->lite));
    return -1;
}

/* ---- One face for the three ------------------------------------------------------------------ */

lab_sql *lab_sql_open(lab_buyer *buyer, lab_server server)
{
    lab_sql *sql = calloc(1, sizeof *sql);
    const char *url = buyer->site->url[server];
    bool open;

    if (!sql) {
        lab_note(buyer, "out of memory");
        return NULL;
    }
    open = server == LAB_MARIADB      ? open_mysql(buyer, sql, url)
           : server == LAB_POSTGRESQL ? open_pg(buyer, sql, url)
                                      : open_lite(buyer, sql, url);
    if (open)
        return sql;
    lab_sql_close(sql);
    return NULL;
}

void lab_sql_close(lab_sql *sql)
{
    if (!sql)
        return;
    if (sql->my)
        mysql_close(sql->my);
    if (sql->pg)
        PQfinish(sql->pg);
    sqlite3_close(sql->lite);
    free(sql);
}

dibs_sql lab_sql_handle(const lab_sql *sql)
{
    return sql->my   ? dibs_sql_mysql(sql->my)
           : sql->pg ? dibs_sql_pg(sql->pg)
                     : dibs_sql_sqlite(sql->lite);
}

lab_sql_trouble lab_sql_trouble_of(const lab_sql *sql)
{
    return sql->trouble;
}

static int64_t run(lab_buyer *buyer, lab_sql *sql, row_fn row, void *ctx, const char *format,
                   va_list list) __attribute__((format(printf, 5, 0)));

static int64_t run(lab_buyer *buyer, lab_sql *sql, row_fn row, void *ctx, const char *format,
                   va_list list)
{
    char *text = NULL;
    int64_t changed;

    sql->trouble = LAB_SQL_FINE;
    if (vasprintf(&text, format, list) < 0) {
        lab_note(buyer, "out of memory");
        sql->trouble = LAB_SQL_OTHER;
        return -1;
    }
    changed = sql->my   ? run_mysql(buyer, sql, text, row, ctx)
              : sql->pg ? run_pg(buyer, sql, text, row, ctx)
                        : run_lite(buyer, sql, text, row, ctx);
    free(text);
    return changed;
}

int64_t lab_sql_run(lab_buyer *buyer, lab_sql *sql, const char *format, ...)
{
    int64_t changed;
    va_list list;

    va_start(list, format);
    changed = run(buyer, sql, no_rows, NULL, format, list);
    va_end(list);
    return changed;
}

typedef struct numbers {
    int64_t *out;
    int count;
    bool found;
} numbers;

static void take_numbers(void *ctx, const char *const *cells, int count)
{
    numbers *n = ctx;

    for (int i = 0; !n->found && i < n->count && i < count; i++)
        n->out[i] = cells[i] ? strtoll(cells[i], NULL, 10) : 0;
    n->found = true;
}

int lab_sql_read(lab_buyer *buyer, lab_sql *sql, int64_t *out, int count, const char *format, ...)
{
    numbers n = {out, count, false};
    int64_t changed;
    va_list list;

    va_start(list, format);
    changed = run(buyer, sql, take_numbers, &n, format, list);
    va_end(list);
    return changed < 0 ? -1 : n.found;
}

static void take_text(void *ctx, const char *const *cells, int count)
{
    for (int i = 0; i < count; i++)
        fprintf(ctx, "%s%c", cells[i] ? cells[i] : "NULL", i + 1 < count ? '\t' : '\n');
}

char *lab_sql_text(lab_buyer *buyer, lab_sql *sql, const char *format, ...)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    int64_t changed;
    va_list list;

    if (!to) {
        lab_note(buyer, "out of memory");
        return NULL;
    }
    va_start(list, format);
    changed = run(buyer, sql, take_text, to, format, list);
    va_end(list);
    fclose(to);
    if (changed >= 0)
        return text;
    free(text);
    return NULL;
}
