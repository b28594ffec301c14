/* Facts about a MariaDB or MySQL server: its variables, the tables, and what this account may do. Rights
 * on tables are tried out with statements that match no row. The checks are in src/doctor/mysql.c. */
#define _GNU_SOURCE
#include "core/error.h"
#include "doctor/facts.h"
#include "engines/mysql/mysql.h"

#include <mysqld_error.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Answers of two columns, a name and a value. */
static const char variables[] =
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'read_only', 'super_read_only', "
    "'innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin', 'innodb_doublewrite', "
    "'innodb_force_recovery', 'wsrep_on', 'group_replication_group_name', "
    "'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled', 'max_connections', "
    "'max_user_connections', 'max_allowed_packet', 'wait_timeout')";
static const char counters[] =
    "SHOW GLOBAL STATUS WHERE Variable_name IN ('Threads_connected', 'Slaves_connected', "
    "'wsrep_cluster_size')";

/* ---- Asking ---------------------------------------------------------------------------------- */

typedef struct session {
    dibs__my *e;
    dibs__my_conn *c;
    const dibs__env *env;
    dibs__deadline until;
    dibs__facts *f;
} session;

/* One statement. 0, the server's error number, or -1 when it was late. Rows go to `row`. */
static int ask(const session *s, const char *text, void (*row)(const session *s, MYSQL_ROW row))
{
    MYSQL *m = s->c->m;
    MYSQL_RES *result = NULL;

    if (dibs__my_query(m, text, strlen(text), s->env, s->until) < 0)
        return -1;
    if (mysql_errno(m) != 0)
        return (int)mysql_errno(m);
    if (dibs__my_store(m, &result, s->env, s->until) < 0)
        return -1;
    for (MYSQL_ROW r; row && result && (r = mysql_fetch_row(result)) != NULL;)
        row(s, r);
    mysql_free_result(result);
    return (int)mysql_errno(m);
}

static void on_variable(const session *s, MYSQL_ROW row)
{
    if (row[0] && row[1])
        dibs__fact_add(s->f, row[0], "%s", row[1]);
}

/* ---- The server ------------------------------------------------------------------------------ */

static void on_self(const session *s, MYSQL_ROW row)
{
    dibs__fact_add(s->f, "clock", "%s", row[0] ? row[0] : "0");
    dibs__fact_flag(s->f, "proxied",
                    row[1] && strtoul(row[1], NULL, 10) != mysql_thread_id(s->c->m));
    dibs__fact_add(s->f, "account", "%s", row[2] ? row[2] : "?");
}

static void derive(const session *s)
{
    const char *version = dibs__fact_text(s->f, "version", "");
    int major = 0, minor = 0;

    if (sscanf(version, "%d.%d", &major, &minor) == 2)
        dibs__fact_number(s->f, strstr(version, "MariaDB") ? "mariadb_version" : "mysql_version",
                          major * 100 + minor);
    dibs__fact_flag(
        s->f, "semi_sync",
        strcasecmp(dibs__fact_text(s->f, "rpl_semi_sync_master_enabled", ""), "ON") == 0 ||
            strcasecmp(dibs__fact_text(s->f, "rpl_semi_sync_source_enabled", ""), "ON") == 0);
    dibs__fact_percent(s->f, "connections", dibs__fact_value(s->f, "Threads_connected", 0),
                       dibs__fact_value(s->f, "max_connections", 0));
    dibs__fact_flag(s->f, "wait_below_lease",
                    dibs__fact_value(s->f, "wait_timeout", 28800) * 1000 <
                        dibs__fact_value(s->f, "lease_ms", 0));
}

static void look_at_server(const session *s)
{
    int64_t before;

    if (ask(s, variables, on_variable) != 0)
        dibs__fact_unseen(s->f, "innodb_flush_log_at_trx_commit", "SHOW VARIABLES is refused");
    ask(s, counters, on_variable);
    before = s->env->wall(s->env->ctx);
    if (ask(s, "SELECT " DIBS__MY_CLOCK ", CONNECTION_ID(), CURRENT_USER()", on_self) == 0)
        dibs__fact_clock(s->f, dibs__fact_value(s->f, "clock", 0), before,
                         s->env->wall(s->env->ctx));
    derive(s);
}

/* ---- The tables ------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    bool cell;
    const char *column;
} tables[] = {
    {"lock", false, "name"}, {"holder", false, "name"}, {"waiter", false, "name"},
    {"wake", false, "wake"}, {"cell", true, "name"},    {"request", true, "name"},
};

static void on_engine(const session *s, MYSQL_ROW row)
{
    if (row[0] && row[1] && strcasecmp(row[1], "InnoDB") != 0) {
        dibs__fact_add(s->f, "other_engine", "%s", row[1]);
        dibs__fact_add(s->f, "other_table", "%s", row[0]);
    }
}

/* Needs the right and changes nothing. The number of the error, 0: it may. */
static int try_rights(const session *s, const char *table, const char *column)
{
    static const char *const forms[] = {
        "SELECT %2$s FROM %1$s LIMIT 0",
        "UPDATE %1$s SET %2$s = %2$s WHERE 1 = 0",
        "DELETE FROM %1$s WHERE 1 = 0",
        "INSERT INTO %1$s SELECT * FROM %1$s WHERE 1 = 0",
    };
    char text[256];
    int failed = 0;

    for (size_t i = 0; i < sizeof forms / sizeof forms[0] && failed == 0; i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(text, sizeof text, forms[i], table, column);
#pragma GCC diagnostic pop
        failed = ask(s, text, NULL);
    }
    return failed;
}

/* SHOW GRANTS lists a right by name, or all of them, on everything or on a database, in whose name _ is
 * escaped. */
static void on_grant(const session *s, MYSQL_ROW row)
{
    char database[200], grant[2000] = "";
    size_t n = 0;
    bool here;

    for (const char *c = row[0] ? row[0] : ""; *c && n + 1 < sizeof grant; c++)
        if (*c != '\\')
            grant[n++] = *c;
    grant[n] = '\0';
    snprintf(database, sizeof database, " ON `%.180s`.*", s->e->address.database);
    here = strstr(grant, " ON *.*") || strcasestr(grant, database) || strstr(grant, " ON `%`.*");
    if (here &&
        (strstr(grant, "ALL PRIVILEGES") || strstr(grant, "CREATE,") || strstr(grant, "CREATE ON")))
        dibs__fact_add(s->f, "may_create", "yes");
}

static void look_at_tables(const session *s)
{
    const char *prefix = s->e->address.prefix;
    char text[400], name[DIBS__MY_PREFIX_MAX + 16];

    dibs__fact_add(s->f, "prefix", "%s", prefix);
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        int failed;
        snprintf(name, sizeof name, "%s%s", prefix, tables[i].name);
        failed = try_rights(s, name, tables[i].column);
        if (failed == ER_NO_SUCH_TABLE)
            dibs__fact_add(s->f, tables[i].cell ? "missing_cells" : "missing", "%s", name);
        else if (failed != 0)
            dibs__fact_add(s->f, tables[i].cell ? "refused_cells" : "refused", "%s (%s)", name,
                           failed < 0 ? "no answer" : mysql_error(s->c->m));
    }
    snprintf(text, sizeof text,
             "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = "
             "DATABASE() AND TABLE_NAME IN ('%1$slock', '%1$sholder', '%1$swaiter', '%1$swake', "
             "'%1$scell', '%1$srequest')",
             prefix);
    ask(s, text, on_engine);
    dibs__fact_add(s->f, "may_create", "no");
    if (ask(s, "SHOW GRANTS", on_grant) != 0)
        dibs__fact_unseen(s->f, "may_create", "SHOW GRANTS is refused");
}

/* ---- All of it ------------------------------------------------------------------------------- */

static bool select_one(void *ctx)
{
    return ask(ctx, "SELECT 1", NULL) == 0;
}

/* A server that `open` would refuse is a finding. */
static dibs_status connect_to(session *s, dibs_error *err)
{
    dibs__sql_conn *c = NULL;
    dibs_error why = {0};
    dibs_status status = dibs__my_conn_open(&s->e->base, s->until, &c, &why);

    s->c = (dibs__my_conn *)c;
    if (status == DIBS_UNSUPPORTED) {
        dibs__fact_add(s->f, "refusal", "%s", why.message);
        return DIBS_OK;
    }
    return status == DIBS_OK ? status : dibs__fail_as(err, status, &why);
}

dibs_status dibs__my_examine(const dibs__open_request *request, dibs__facts *out, dibs_error *err)
{
    dibs__my *e = calloc(1, sizeof *e);
    session s = {e, NULL, request->env, request->until, out};
    dibs_status status;

    if (!e)
        return dibs__fail(err, DIBS_NO_MEMORY, "mysql: out of memory");
    e->base.base.env = request->env;
    status = dibs__my_address_read(&e->address, request->url, err);
    if (status == DIBS_OK)
        status = connect_to(&s, err);
    s.until = dibs__after(request->env, DIBS__EXAMINE_SPAN);
    if (status == DIBS_OK && s.c) {
        look_at_server(&s);
        look_at_tables(&s);
        dibs__facts_measure(out, request->env, s.until, select_one, &s);
    }
    if (s.c)
        dibs__my_conn_close(&s.c->base);
    dibs__my_address_fini(&e->address);
    free(e);
    return status;
}
