/* The PostgreSQL engine where it differs from the others: what administrators, clocks and poolers
 * do to it, and how much it asks of the server. What it has in common with the others is in the
 * conformance suite. */
#define _GNU_SOURCE
#include "pg.h"

#include "core/handle.h"
#include "engines/postgresql/postgresql.h"
#include "families/rows/inner.h"
#include "support/clock.h"
#include "support/server.h"

#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define DAY_US (86400 * DIBS__SECOND)

/* ---- Opening --------------------------------------------------------------------------------- */

static void refused(const char *where, dibs_status want, const char *text)
{
    expect_refused(where, &(dibs_options){.connect_ms = 2000}, want, text);
}

static void bad_urls_say_what(void **state)
{
    char text[256];

    (void)state;
    pg_need();
    refused("postgresql://127.0.0.1/x?sslmoode=require", DIBS_INVALID, "sslmoode");
    refused("postgresql://127.0.0.1/x?replication=1", DIBS_INVALID, "replication");
    refused("postgresql://127.0.0.1/x?table_prefix=a;b", DIBS_INVALID, "table_prefix");
    refused("postgresql:x", DIBS_INVALID, "postgresql://");
    refused("postgres://127.0.0.1:1/x", DIBS_UNAVAILABLE, "refused");
    snprintf(text, sizeof text, "postgresql://postgres@127.0.0.1:%d/nowhere", pg_db.port);
    refused(text, DIBS_INVALID, "nowhere");
    snprintf(text, sizeof text, "postgresql://nobody_at_all@127.0.0.1:%d/postgres", pg_db.port);
    refused(text, DIBS_DENIED, "nobody_at_all");
    snprintf(text, sizeof text, "postgresql://postgres@127.0.0.1:%d/postgres?sslmode=require",
             pg_db.port);
    refused(text, DIBS_DENIED, "SSL");
}

static void works_over_a_unix_socket(void **state)
{
    char text[512];
    dibs *d;

    (void)state;
    pg_need();
    snprintf(text, sizeof text, "postgres:///postgres?host=%s&port=%d&user=postgres", pg_db.socket,
             pg_db.port);
    d = pg_open(text);
    assert_int_equal(unlock(expect_lock(d, "socket", NULL)), DIBS_OK);
    dibs_close(d);
}

static void without_rights_names_the_way_out(void **state)
{
    char text[256], *schema = NULL;
    dibs_error err = {0};
    dibs *d;

    (void)state;
    pg_need();
    pg_ask(pg_control, "CREATE ROLE poor LOGIN");
    pg_ask(pg_control, "REVOKE CREATE ON SCHEMA public FROM public");
    snprintf(text, sizeof text, "postgresql://poor@127.0.0.1:%d/postgres?table_prefix=own_",
             pg_db.port);
    refused(text, DIBS_DENIED, "dibs schema");
    /* What it says is what helps. */
    assert_int_equal(dibs_schema(text, &schema, &err), DIBS_OK);
    pg_ask(pg_control, schema);
    free(schema);
    pg_ask(pg_control,
           "GRANT SELECT, INSERT, UPDATE, DELETE ON own_lock, own_holder, own_waiter TO poor");
    d = pg_open(text);
    assert_int_equal(unlock(expect_lock(d, "poor", NULL)), DIBS_OK);
    assert_int_equal(unlock(expect_lock(d, "poor2", &(dibs_lock_options){.slots = 2})), DIBS_OK);
    dibs_close(d);
    assert_string_equal(pg_ask(pg_control, "SELECT count(*) FROM own_locks"), "2");
}

static void a_foreign_table_is_left_alone(void **state)
{
    char text[256];

    (void)state;
    pg_need();
    pg_ask(pg_control, "CREATE TABLE their_lock (name text)");
    snprintf(text, sizeof text, "%s?table_prefix=their_", pg_url);
    refused(text, DIBS_ENGINE_FAILED, "their_lock");
}

static void a_schema_of_its_own(void **state)
{
    char text[256];
    dibs *d;

    (void)state;
    pg_need();
    pg_ask(pg_control, "CREATE SCHEMA apart");
    snprintf(text, sizeof text, "%s?table_prefix=apart.x_", pg_url);
    d = pg_open(text);
    assert_int_equal(unlock(expect_lock(d, "a", NULL)), DIBS_OK);
    dibs_close(d);
    assert_string_equal(pg_ask(pg_control, "SELECT name FROM apart.x_locks"), "a");
}

/* ---- Rows that others keep ------------------------------------------------------------------- */

static void a_row_kept_locked_costs_only_itself(void **state)
{
    dibs *d;
    dibs_grant *a, *b;
    PGconn *stranger;

    (void)state;
    pg_need();
    d = pg_open(pg_url);
    a = expect_lock(d, "kept-a", &(dibs_lock_options){.lease_ms = 6000});
    b = expect_lock(d, "kept-b", &(dibs_lock_options){.lease_ms = 6000});
    stranger = pg_dial();
    pg_ask(stranger, "BEGIN");
    pg_ask(stranger, "SELECT 1 FROM dibs_lock WHERE name = 'kept-a' FOR UPDATE");
    for (int i = 0; i < 14; i++) {
        sleep_ms(500);
        assert_true(dibs_grant_held(b)); /* beyond its first lease */
    }
    pg_ask(stranger, "COMMIT");
    PQfinish(stranger);
    unlock(a);
    assert_int_equal(unlock(b), DIBS_OK);
    dibs_close(d);
}

static void the_fence_is_taken_with_the_row(void **state)
{
    dibs *d;
    dibs_grant *g;
    team t;
    int64_t ahead;
    char sql[200];

    (void)state;
    pg_need();
    d = pg_open(pg_url);
    unlock(expect_lock(d, "row", NULL));
    pg_ask(pg_control, "BEGIN");
    pg_ask(pg_control, "SELECT 1 FROM dibs_lock WHERE name = 'row' FOR UPDATE");
    team_start(&t, &d, 1, 1, 1, "row"); /* waits for the row */
    sleep_ms(300);
    ahead = dibs__env_system.wall(NULL);
    snprintf(sql, sizeof sql, "UPDATE dibs_lock SET fence = %" PRId64 " WHERE name = 'row'", ahead);
    pg_ask(pg_control, sql);
    pg_ask(pg_control, "COMMIT");
    team_end(&t);
    assert_true(t.last > (uint64_t)ahead);
    /* A lease that began while it waited would be over too early. */
    g = expect_lock(d, "row", NULL);
    assert_true(dibs_grant_remaining_ms(g) > 20000);
    unlock(g);
    dibs_close(d);
}

static void reap_now(dibs *d)
{
    dibs__sql *e = (dibs__sql *)d->engine;

    atomic_store(&e->reap_at, 0);
    dibs__sql_reap(e);
}

/* Made before there was an index for listings: what is held is listed all the same. No row is rewritten, since nobody
 * can renew a lock meanwhile. */
static void older_tables_are_brought_up_to_date(void **state)
{
    dibs *d, *other;
    dibs_grant *g;
    dibs_lock_report *r = NULL;
    const char *version = "SELECT xmin FROM dibs_lock WHERE name = 'older-idle'";
    char before[32];

    (void)state;
    pg_need();
    d = pg_open(pg_url);
    g = expect_lock(d, "older-held", NULL);
    unlock(expect_lock(d, "older-idle", NULL));
    pg_ask(pg_control, "ALTER TABLE dibs_lock DROP COLUMN listed; "
                       "ALTER TABLE dibs_waiters RENAME COLUMN position TO line; "
                       "COMMENT ON TABLE dibs_lock IS 'dibs 1'");
    snprintf(before, sizeof before, "%s", pg_ask(pg_control, version));
    other = pg_open(pg_url);
    assert_int_equal(dibs_lock_list(other, "older-", NULL, &r, NULL), DIBS_OK);
    assert_int_equal(dibs_lock_report_count(r), 1);
    assert_string_equal(dibs_lock_report_at(r, 0)->name, "older-held");
    dibs_lock_report_free(r);
    assert_string_equal(pg_ask(pg_control, version), before);
    assert_string_equal(pg_ask(pg_control, "SELECT to_regclass('dibs_lock_listed') IS NOT NULL"),
                        "t");
    assert_string_equal(pg_ask(pg_control, "SELECT count(position) FROM dibs_waiters"), "0");
    unlock(g);
    dibs_close(other);
    dibs_close(d);
}

static void idle_rows_are_reaped(void **state)
{
    dibs *d;
    dibs_grant *g, *kept;
    uint64_t fence;
    char sql[300];

    (void)state;
    pg_need();
    d = pg_open(pg_url);
    kept = expect_lock(d, "reap-held", NULL);
    unlock(expect_lock(d, "reap-young", NULL));
    g = expect_lock(d, "reap-old", NULL);
    fence = dibs_grant_fence(g);
    unlock(g);
    unlock(expect_lock(d, "reap-dead", &(dibs_lock_options){.slots = 3}));
    snprintf(sql, sizeof sql,
             "UPDATE dibs_lock SET fence = fence - %" PRId64
             " WHERE name IN ('reap-old', 'reap-dead')",
             DAY_US + DIBS__SECOND);
    pg_ask(pg_control, sql);
    /* A semaphore whose holder died a day ago. */
    pg_ask(pg_control, "UPDATE dibs_lock SET holders = 1, used = 1, listed = 1 "
                       "WHERE name = 'reap-dead'");
    pg_ask(pg_control,
           "INSERT INTO dibs_holder SELECT 'reap-dead', 'o', 'a', 'h', 1, 'w', 1, 1000, 0, fence, "
           "1, 1000, 0 FROM dibs_lock WHERE name = 'reap-dead'");
    reap_now(d);
    reap_now(d);
    assert_string_equal(pg_ask(pg_control,
                               "SELECT string_agg(encode(name, 'escape'), ' ' ORDER BY name) "
                               "FROM dibs_lock WHERE name::text LIKE '\\\\x72656170%'"),
                        "reap-held reap-young");
    g = expect_lock(d, "reap-old", NULL);
    assert_true(dibs_grant_fence(g) > fence);
    unlock(g);
    assert_int_equal(unlock(kept), DIBS_OK);
    dibs_close(d);
}

/* ---- Behind a pooler ------------------------------------------------------------------------- */

typedef struct pooler {
    pid_t pid;
    int port;
    scratch folder;
} pooler;

static bool pooler_answers(void *ctx)
{
    const pooler *p = ctx;
    char info[128];
    PGconn *pg;
    bool good;

    snprintf(info, sizeof info, "host=127.0.0.1 port=%d user=postgres dbname=postgres", p->port);
    pg = PQconnectdb(info);
    good = PQstatus(pg) == CONNECTION_OK;
    PQfinish(pg);
    return good;
}

static void pooler_start(pooler *p, const char *mode)
{
    const struct passwd *account = geteuid() == 0 ? getpwnam("postgres") : NULL;
    char file[SCRATCH_MAX + 32];
    FILE *f;

    if (access("/usr/sbin/pgbouncer", X_OK) != 0)
        skip();
    assert_int_equal(scratch_make(&p->folder), 0);
    p->port = free_port();
    f = fopen(scratch_file(&p->folder, "pooler.ini", file, sizeof file), "w");
    assert_non_null(f);
    fprintf(f,
            "[databases]\npostgres = host=127.0.0.1 port=%d "
            "user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            "listen_port = %d\nunix_socket_dir =\nauth_type = any\npool_mode = %s\n"
            "default_pool_size = 3\nlogfile = %s/log\npidfile = %s/pid\n",
            pg_db.port, p->port, mode, p->folder.path, p->folder.path);
    fclose(f);
    if (account)
        assert_int_equal(chown(p->folder.path, account->pw_uid, account->pw_gid), 0);
    assert_int_equal(chmod(p->folder.path, 0755), 0);
    p->pid = fork();
    if (p->pid == 0) {
        int null = open("/dev/null", O_RDWR);
        if (account && (initgroups("postgres", account->pw_gid) || setgid(account->pw_gid) ||
                        setuid(account->pw_uid)))
            _exit(126);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(null, 1);
        dup2(null, 2);
        execl("/usr/sbin/pgbouncer", "pgbouncer", "-q", file, (char *)NULL);
        _exit(127);
    }
    if (!wait_until(pooler_answers, p, LONG_MS))
        fail_msg("the pooler did not start");
}

static void pooler_stop(pooler *p)
{
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
    scratch_remove(&p->folder);
}

typedef struct twin {
    dibs *d;
    dibs_status status;
    dibs_error err;
} twin;

static void *be_refused(void *arg)
{
    twin *t = arg;
    dibs_once *o = NULL;

    t->status =
        dibs_once_begin(t->d, "pooled", &(dibs_once_options){.wait_ms = LONG_MS}, &o, &t->err);
    dibs_once_free(o);
    return NULL;
}

/* There is no LISTEN: a duplicate looks again now and then, and is told all the same. */
static void cells_behind_a_pooler(dibs *a, dibs *b)
{
    twin t = {.d = b};
    dibs_once *o = NULL;
    dibs_error err = {0};
    int64_t left = 0;
    pthread_t thread;

    assert_int_equal(dibs_counter_set(a, "pooled", 3, NULL, &err), DIBS_OK);
    assert_int_equal(dibs_counter_take(b, "pooled", 2, NULL, &left, &err), DIBS_OK);
    assert_int_equal(left, 1);
    assert_int_equal(dibs_once_begin(a, "pooled", NULL, &o, &err), DIBS_OK);
    assert_int_equal(pthread_create(&thread, NULL, be_refused, &t), 0);
    sleep_ms(200); /* most likely it waits by now */
    assert_int_equal(dibs_once_finish(o, "r", 1, 0, &err), DIBS_OK);
    dibs_once_free(o);
    pthread_join(thread, NULL);
    if (t.status != DIBS_ALREADY)
        fail_msg("%s", t.err.message);
}

static void behind_a_pooler(void **state)
{
    pooler p;
    char where[128];
    dibs *handles[4];
    dibs_grant *g;
    team t;

    (void)state;
    pg_need();
    pooler_start(&p, "transaction");
    snprintf(where, sizeof where, "postgresql://postgres@127.0.0.1:%d/postgres", p.port);
    for (int i = 0; i < 4; i++)
        handles[i] = pg_open(where);
    assert_true(((dibs__pg *)handles[0]->engine)->pooled);
    g = expect_lock(handles[0], "pooled", NULL);
    team_start(&t, handles, 4, 8, 5, "pooled");
    pg_wait_for_queue(8);
    unlock(g);
    team_end(&t); /* bounded looks instead of wake-ups between handles */
    assert_int_equal(atomic_load(&t.done), 40);
    g = expect_lock(handles[1], "pooled slots", &(dibs_lock_options){.slots = 3, .lease_ms = 3000});
    sleep_ms(4500);
    assert_true(dibs_grant_held(g));
    assert_int_equal(unlock(g), DIBS_OK);
    cells_behind_a_pooler(handles[0], handles[1]);
    for (int i = 0; i < 4; i++)
        dibs_close(handles[i]);
    /* Nothing of ours stays in the sessions that others will get. */
    assert_string_equal(
        pg_ask(pg_control, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%'"),
        "0");
    pooler_stop(&p);
}

/* ---- How much it asks ------------------------------------------------------------------------ */

static long transactions(void)
{
    return atol(
        pg_ask(pg_control, "SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'"));
}

/* A session publishes its count late, up to ten seconds after: what came before the waiting may show
 * up in the first windows. Nothing that goes on all the time escapes all of them. */
static void waiters_ask_little(void **state)
{
    dibs *handles[2];
    dibs_grant *g;
    team t;
    long idle = 0;

    (void)state;
    pg_need();
    for (int i = 0; i < 2; i++)
        handles[i] = pg_open(pg_url);
    g = expect_lock(handles[0], "quiet", NULL);
    team_start(&t, handles + 1, 1, 60, 1, "quiet");
    pg_wait_for_queue(60);
    for (int i = 0; i < 5 && (idle < 1 || idle > 20); i++) {
        long before = transactions();
        sleep_ms(5000);
        idle = transactions() - before;
        print_message("# 60 waiters: %ld transactions in 5 s\n", idle);
    }
    assert_in_range(idle, 1, 20); /* one keep-alive for all of them every two seconds */
    unlock(g);
    team_end(&t);
    for (int i = 0; i < 2; i++)
        dibs_close(handles[i]);
}

int main(int argc, char *argv[])
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_urls_say_what),
        cmocka_unit_test(works_over_a_unix_socket),
        cmocka_unit_test(without_rights_names_the_way_out),
        cmocka_unit_test(a_foreign_table_is_left_alone),
        cmocka_unit_test(a_schema_of_its_own),
        cmocka_unit_test(a_row_kept_locked_costs_only_itself),
        cmocka_unit_test(the_fence_is_taken_with_the_row),
        cmocka_unit_test(older_tables_are_brought_up_to_date),
        cmocka_unit_test(idle_rows_are_reaped),
        cmocka_unit_test(behind_a_pooler),
        cmocka_unit_test(waiters_ask_little),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("postgresql", tests, pg_setup, pg_teardown);
}
