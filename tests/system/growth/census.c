#define _GNU_SOURCE
#include "census.h"

#include <dirent.h>
#include <libpq-fe.h>
#include <malloc.h>
#include <mysql.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE_MAX (1 << 20)

const char *const figure_names[FIGURES] = {
    [FIGURE_RSS] = "RSS KiB",       [FIGURE_HEAP] = "heap KiB",
    [FIGURE_DESCRIPTORS] = "fds",   [FIGURE_THREADS] = "threads",
    [FIGURE_KEYS] = "keys/rows",    [FIGURE_CONNECTIONS] = "connections",
    [FIGURE_SESSIONS] = "sessions", [FIGURE_WATCHES] = "watches",
};

/* ---- This process ----------------------------------------------------------------------------- */

static int64_t count_entries(const char *folder)
{
    DIR *d = opendir(folder);
    int64_t n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static int64_t resident_kb(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (!f || fscanf(f, "%*d %ld", &pages) != 1)
        pages = -1;
    if (f)
        fclose(f);
    return (int64_t)pages * sysconf(_SC_PAGESIZE) / 1024;
}

static void count_process(census *c)
{
    struct mallinfo2 m;

    malloc_trim(0); /* what is free is no growth */
    m = mallinfo2();
    c->value[FIGURE_RSS] = resident_kb();
    c->value[FIGURE_HEAP] = (int64_t)(m.uordblks + m.hblkhd) / 1024;
    c->value[FIGURE_DESCRIPTORS] = count_entries("/proc/self/fd");
    c->value[FIGURE_THREADS] = count_entries("/proc/self/task");
}

/* ---- Databases -------------------------------------------------------------------------------- */

#define ROWS(a, b, c, d, e)                                                                      \
    "SELECT (SELECT count(*) FROM " a ") + (SELECT count(*) FROM " b                             \
    ") + (SELECT count(*) FROM " c ") + (SELECT count(*) FROM " d ") + (SELECT count(*) FROM " e \
    ")"
#define DIBS_ROWS ROWS("dibs_lock", "dibs_holder", "dibs_waiter", "dibs_cell", "dibs_request")

static bool ask_sqlite(const scratch_store *p, census *c)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    bool counted = sqlite3_open_v2(p->url + strlen("sqlite://"), &db, SQLITE_OPEN_READWRITE,
                                   NULL) == SQLITE_OK &&
                   sqlite3_busy_timeout(db, 5000) == SQLITE_OK &&
                   sqlite3_prepare_v2(db, ROWS("lock", "holder", "waiter", "cell", "request"), -1,
                                      &s, NULL) == SQLITE_OK &&
                   sqlite3_step(s) == SQLITE_ROW;

    if (counted)
        c->value[FIGURE_KEYS] = sqlite3_column_int64(s, 0);
    else
        printf("# %s\n", sqlite3_errmsg(db));
    sqlite3_finalize(s);
    sqlite3_close(db);
    return counted;
}

bool census_hasten(const scratch_store *p)
{
    sqlite3 *db = NULL;
    bool done = true;

    if (strcmp(p->engine, "sqlite") == 0) {
        done = sqlite3_open_v2(p->url + strlen("sqlite://"), &db, SQLITE_OPEN_READWRITE, NULL) ==
                   SQLITE_OK &&
               sqlite3_busy_timeout(db, 5000) == SQLITE_OK &&
               sqlite3_exec(db, "UPDATE meta SET reap_at = 0", NULL, NULL, NULL) == SQLITE_OK;
        sqlite3_close(db);
    }
    return done;
}

static bool ask_postgresql(const scratch_store *p, census *c)
{
    static const char *const asked[] = {
        DIBS_ROWS, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dibs'"};
    PGconn *pg = PQconnectdb(p->url);
    bool counted = true;

    for (int i = 0; i < 2 && counted; i++) {
        PGresult *r = PQexec(pg, asked[i]);
        counted = PQresultStatus(r) == PGRES_TUPLES_OK;
        if (counted)
            c->value[i ? FIGURE_CONNECTIONS : FIGURE_KEYS] = atoll(PQgetvalue(r, 0, 0));
        else
            printf("# %s\n", PQerrorMessage(pg));
        PQclear(r);
    }
    PQfinish(pg);
    return counted;
}

static bool ask_mysql(const scratch_store *p, census *c)
{
    static const char *const asked[] = {
        ROWS("dibs_lock", "dibs_holder", "dibs_waiter", "dibs_cell",
             "dibs_request") " + (SELECT count(*) FROM dibs_wake)",
        "SELECT count(*) FROM information_schema.processlist WHERE id <> connection_id() AND "
        "db = 'store'"};
    MYSQL *my = mysql_init(NULL);
    bool counted = mysql_real_connect(my, "127.0.0.1", p->database.user, "", "store",
                                      (unsigned)p->database.port, NULL, 0) != NULL;

    for (int i = 0; i < 2 && counted; i++) {
        MYSQL_RES *r = mysql_query(my, asked[i]) == 0 ? mysql_store_result(my) : NULL;
        MYSQL_ROW row = r ? mysql_fetch_row(r) : NULL;
        counted = row != NULL;
        if (counted)
            c->value[i ? FIGURE_CONNECTIONS : FIGURE_KEYS] = atoll(row[0]);
        mysql_free_result(r);
    }
    if (!counted)
        printf("# %s\n", mysql_error(my));
    mysql_close(my);
    return counted;
}

/* ---- Servers that print figures ---------------------------------------------------------------- */

/* The number behind `name` at the start of a line, added to `sum`. */
static bool add_figure(const char *text, const char *name, int64_t *sum)
{
    size_t length = strlen(name);
    const char *at = text;

    while ((at = strstr(at, name)) != NULL) {
        if ((at == text || at[-1] == '\n') && strchr(" \t:", at[length])) {
            *sum = (*sum == FIGURE_NONE ? 0 : *sum) + (int64_t)strtod(at + length + 1, NULL);
            return true;
        }
        at += length;
    }
    printf("# the server does not tell %s\n", name);
    return false;
}

static bool ask_redis(server *s, char *page, census *c)
{
    int64_t *v = c->value;

    if (server_command(s, "DBSIZE", page, PAGE_MAX) < 0 || page[0] != ':')
        return false;
    v[FIGURE_KEYS] = (v[FIGURE_KEYS] == FIGURE_NONE ? 0 : v[FIGURE_KEYS]) + atoll(page + 1);
    return server_command(s, "INFO clients", page, PAGE_MAX) == 0 &&
           add_figure(page, "connected_clients", &v[FIGURE_CONNECTIONS]) &&
           server_command(s, "INFO stats", page, PAGE_MAX) == 0 &&
           add_figure(page, "pubsub_channels", &v[FIGURE_WATCHES]);
}

static bool ask_zookeeper(scratch_store *p, char *page, census *c)
{
    int64_t *v = c->value;

    return ensemble_word(&p->ensemble, 0, "mntr", page, PAGE_MAX) > 0 &&
           add_figure(page, "zk_znode_count", &v[FIGURE_KEYS]) &&
           add_figure(page, "zk_num_alive_connections", &v[FIGURE_CONNECTIONS]) &&
           add_figure(page, "zk_global_sessions", &v[FIGURE_SESSIONS]) &&
           add_figure(page, "zk_watch_count", &v[FIGURE_WATCHES]);
}

/* A connection is a descriptor of the server's; it has some of its own, always as many. */
static bool ask_etcd(scratch_store *p, char *page, census *c)
{
    int64_t *v = c->value, ended = 0;
    bool counted = ensemble_page(&p->ensemble, 0, "/metrics", page, PAGE_MAX) > 0 &&
                   add_figure(page, "etcd_debugging_mvcc_keys_total", &v[FIGURE_KEYS]) &&
                   add_figure(page, "process_open_fds", &v[FIGURE_CONNECTIONS]) &&
                   add_figure(page, "etcd_debugging_lease_granted_total", &v[FIGURE_SESSIONS]) &&
                   add_figure(page, "etcd_debugging_lease_revoked_total", &ended) &&
                   add_figure(page, "etcd_debugging_mvcc_watcher_total", &v[FIGURE_WATCHES]);

    v[FIGURE_SESSIONS] -= ended;
    return counted;
}

static bool ask_servers(scratch_store *p, census *c)
{
    char *page = malloc(PAGE_MAX);
    bool counted = page != NULL;

    for (int i = 0; counted && i < REDLOCK_NODES; i++)
        if (p->node[i].pid)
            counted = ask_redis(&p->node[i], page, c);
    if (counted && p->redis.pid)
        counted = ask_redis(&p->redis, page, c);
    if (counted && p->ensemble.node[0].pid)
        counted =
            p->ensemble.kind == ENSEMBLE_ETCD ? ask_etcd(p, page, c) : ask_zookeeper(p, page, c);
    free(page);
    return counted;
}

bool census_take(scratch_store *p, census *out)
{
    bool counted;

    for (int i = 0; i < FIGURES; i++)
        out->value[i] = FIGURE_NONE;
    if (strcmp(p->engine, "sqlite") == 0)
        counted = ask_sqlite(p, out);
    else if (strcmp(p->engine, "postgresql") == 0)
        counted = ask_postgresql(p, out);
    else if (strcmp(p->engine, "mysql") == 0)
        counted = ask_mysql(p, out);
    else
        counted = ask_servers(p, out);
    count_process(out);
    return counted;
}
