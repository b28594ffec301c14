/* Two sessions; see the header. */
#define _GNU_SOURCE
#include "sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool lab_sessions_open(lab_sessions *x, const lab_site *site, lab_server server)
{
    const char *patience =
        server == LAB_MARIADB ? "SET innodb_lock_wait_timeout = 1" : "SET lock_timeout = '1s'";

    memset(x, 0, sizeof *x);
    x->buyer.site = site;
    x->server = server;
    x->a = lab_sql_open(&x->buyer, server);
    x->b = x->a ? lab_sql_open(&x->buyer, server) : NULL;
    if (x->b && lab_b(x, patience))
        return true;
    snprintf(x->why, sizeof x->why, "%s", x->buyer.note);
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
    x->buyer.note[0] = '\0';
    return lab_sql_run(&x->buyer, sql, "%s", text) >= 0;
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

const lab_strategy *lab_twin(const char *word, lab_server server)
{
    char name[64];

    snprintf(name, sizeof name, "%s-%s", word, server == LAB_MARIADB ? "mariadb" : "postgresql");
    return lab_find(name, NULL);
}

/* ---- Statements that wait -------------------------------------------------------------------- */

static void *later_main(void *data)
{
    lab_later *l = data;
    int64_t begin = lab_now_us();

    l->done = lab_sql_run(&l->buyer, l->sql, "%s", l->text) >= 0;
    l->took_us = lab_now_us() - begin;
    return NULL;
}

bool lab_later_start(lab_later *l, const lab_site *site, lab_sql *sql, const char *text)
{
    *l = (lab_later){.buyer = {.site = site}, .sql = sql, .text = text};
    l->started = pthread_create(&l->thread, NULL, later_main, l) == 0;
    return l->started;
}

void lab_later_end(lab_later *l)
{
    if (l->started)
        pthread_join(l->thread, NULL);
    l->started = false;
}

/* How many wait now. */
static int64_t count_waiting(lab_sessions *x, const char *begin)
{
    int64_t n = 0;

    if (x->server == LAB_MARIADB)
        lab_sql_read(&x->buyer, x->b, &n, 1,
                     "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = "
                     "'LOCK WAIT' AND trx_query LIKE '%s%%'",
                     begin);
    else
        lab_sql_read(&x->buyer, x->b, &n, 1,
                     "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND "
                     "query LIKE '%s%%'",
                     begin);
    return n;
}

bool lab_waiting(lab_sessions *x, const char *begin, int count)
{
    /* MariaDB renews what it tells only for who has not asked for a tenth of a second. */
    for (int64_t until = lab_now_us() + 5 * 1000000; lab_now_us() < until; usleep(150000))
        if (count_waiting(x, begin) >= count)
            return true;
    return false;
}

void lab_lock_words(lab_sessions *x, const char *table, char out[256])
{
    char *words;

    if (x->server == LAB_MARIADB)
        words = lab_sql_text(&x->buyer, x->b,
                             "SELECT GROUP_CONCAT(DISTINCT lock_mode, ' on ', lock_index ORDER BY "
                             "lock_mode DESC SEPARATOR ', ') FROM "
                             "information_schema.innodb_locks WHERE lock_table LIKE '%%%s%%'",
                             table);
    else
        words = lab_sql_text(&x->buyer, x->b,
                             "SELECT string_agg(DISTINCT mode || ' on ' || locktype, ', ') FROM "
                             "pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM "
                             "pg_stat_activity WHERE query LIKE '%%%s%%')",
                             table);
    snprintf(out, 256, "%s", words ? words : x->buyer.note);
    out[strcspn(out, "\n")] = '\0';
    free(words);
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
