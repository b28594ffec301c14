/* Two sessions; see the header. */
#define _GNU_SOURCE
#include "sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool lab_sessions_open(lab_sessions *x, const lab_site *site, lab_server server)
{
    const char *patience =
        server == LAB_MARIADB ? "SET innodb_lock_wait_timeout = 1" : "SET lock_timeout = '1s'";

    memset(x, 0, sizeof *x);
    x->seat.site = site;
    x->server = server;
    x->a = lab_sql_open(&x->seat, server);
    x->b = x->a ? lab_sql_open(&x->seat, server) : NULL;
    if (x->b && lab_b(x, patience))
        return true;
    snprintf(x->why, sizeof x->why, "%s", x->seat.note);
    lab_sessions_close(x);
    return false;
}

void lab_sessions_close(lab_sessions *x)
{
    lab_sql_close(x->a);
    lab_sql_close(x->b);
    x->a = x->b = NULL;
}

static bool run(lab_sessions *x, lab_sql *sql, const char *text)
{
    x->seat.note[0] = '\0';
    return lab_sql_run(&x->seat, sql, "%s", text) >= 0;
}

bool lab_a(lab_sessions *x, const char *sql)
{
    return run(x, x->a, sql);
}

bool lab_b(lab_sessions *x, const char *sql)
{
    return run(x, x->b, sql);
}

bool lab_b_waits(lab_sessions *x, const char *sql)
{
    bool waits;

    lab_b(x, "BEGIN");
    waits = !lab_b(x, sql) && lab_sql_trouble_of(x->b) == LAB_SQL_TIMEOUT;
    lab_b(x, "ROLLBACK");
    return waits;
}

/* ---- Tables of findings ---------------------------------------------------------------------- */

struct lab_rows {
    FILE *to;
    char *text;
    size_t size;
};

lab_rows *lab_rows_new(const char *heading)
{
    lab_rows *rows = calloc(1, sizeof *rows);

    if (!rows || !(rows->to = open_memstream(&rows->text, &rows->size)))
        abort();
    fprintf(rows->to, "%s\n", heading);
    return rows;
}

void lab_rows_add(lab_rows *rows, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    vfprintf(rows->to, format, list);
    va_end(list);
    fputc('\n', rows->to);
}

char *lab_rows_end(lab_rows *rows)
{
    char *text;

    fclose(rows->to);
    text = rows->text;
    free(rows);
    return text;
}
