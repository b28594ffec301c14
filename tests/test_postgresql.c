/* The PostgreSQL engine where it differs from the others: what servers, poolers, administrators and
 * networks do to it. What it has in common with them is in the conformance suite. */
#define _GNU_SOURCE
#include "support/test.h"

#include "core/handle.h"
#include "engines/postgresql/postgresql.h"
#include "engines/sql/inner.h"
#include "support/clock.h"
#include "support/database.h"
#include "support/proxy.h"
#include "support/server.h"

#include <dibs.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <libpq-fe.h>
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG_MS 20000
#define DAY_US  (86400 * DIBS__SECOND)

static database db;
static char url[128];
static PGconn *control;

/* ---- What the cases share --------------------------------------------------------------------------------- */

static char *ask(PGconn *pg, const char *sql)
{
    static char value[256];
    PGresult *res = PQexec(pg, sql);

    if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(pg));
    snprintf(value, sizeof value, "%s", PQntuples(res) > 0 ? PQgetvalue(res, 0, 0) : "");
    PQclear(res);
    return value;
}

static PGconn *dial(void)
{
    char info[128];
    PGconn *pg;

    snprintf(info, sizeof info, "host=127.0.0.1 port=%d user=postgres dbname=postgres", db.port);
    pg = PQconnectdb(info);
    if (PQstatus(pg) != CONNECTION_OK)
        fail_msg("%s", PQerrorMessage(pg));
    return pg;
}

static int start_server(void **state)
{
    static const char *const extra[] = {"-cmax_connections=40", "-csuperuser_reserved_connections=5",
                                        NULL};

    (void)state;
    if (!database_available(DATABASE_POSTGRESQL))
        return 0;
    if (database_start(&db, DATABASE_POSTGRESQL, extra) < 0)
        return -1;
    snprintf(url, sizeof url, "postgresql://postgres@127.0.0.1:%d/postgres", db.port);
    control = dial();
    return 0;
}

static int stop_server(void **state)
{
    (void)state;
    PQfinish(control);
    database_stop(&db);
    return 0;
}

static void need_server(void)
{
    if (db.pid == 0 && server_required())
        fail_msg("PostgreSQL is not installed, and servers are required here");
    if (db.pid == 0)
        skip();
}

static dibs *open_at(const char *where)
{
    dibs_error err = {0};
    dibs *d = NULL;

    if (dibs_open(where, &(dibs_options){.request_ms = 3000}, &d, &err) != DIBS_OK)
        fail_msg("%s: %s", where, err.message);
    return d;
}

static dibs_grant *take(dibs *d, const char *name, const dibs_lock_options *o)
{
    dibs_error err = {0};
    dibs_grant *g = NULL;

    if (dibs_lock(d, name, o, &g, &err) != DIBS_OK)
        fail_msg("%s: %s", name, err.message);
    return g;
}

/* A thread that takes a lock, counts, and gives it back. */
typedef struct worker {
    pthread_t thread;
    dibs *d;
    const char *name;
    int rounds;
    dibs_status status;
    dibs_error err;
    int *inside;
    uint64_t *last;
    atomic_int *wrong, *done;
} worker;

static void *work(void *arg)
{
    worker *w = arg;

    for (int i = 0; i < w->rounds; i++) {
        dibs_grant *g = NULL;
        w->status = dibs_lock(w->d, w->name, &(dibs_lock_options){.wait_ms = 2 * LONG_MS}, &g, &w->err);
        if (w->status != DIBS_OK)
            return NULL;
        if (__atomic_add_fetch(w->inside, 1, __ATOMIC_SEQ_CST) != 1 || dibs_fence(g) <= *w->last)
            atomic_fetch_add(w->wrong, 1);
        *w->last = dibs_fence(g);
        __atomic_sub_fetch(w->inside, 1, __ATOMIC_SEQ_CST);
        atomic_fetch_add(w->done, 1);
        dibs_unlock(g);
    }
    return NULL;
}

typedef struct team {
    worker member[64];
    size_t count;
    int inside;
    uint64_t last;
    atomic_int wrong, done;
} team;

static void team_start(team *t, dibs *const handles[], size_t handle_count, size_t count, int rounds,
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

static void team_end(team *t)
{
    for (size_t i = 0; i < t->count; i++) {
        pthread_join(t->member[i].thread, NULL);
        if (t->member[i].status != DIBS_OK)
            fail_msg("worker %zu: %s", i, t->member[i].err.message);
    }
    assert_int_equal(atomic_load(&t->wrong), 0);
}

static bool line_is(void *ctx)
{
    return atol(ask(control, "SELECT coalesce(sum(waiters), 0) FROM dibs_lock")) == *(long *)ctx;
}

static void wait_for_line(long count)
{
    if (!wait_until(line_is, &count, LONG_MS))
        fail_msg("never were %ld in line", count);
}

/* ---- Opening ------------------------------------------------------------------------------------------------ */

static void expect_open(const char *where, dibs_status want, const char *word)
{
    dibs_error err = {0};
    dibs *d = NULL;
    dibs_status status = dibs_open(where, &(dibs_options){.connect_ms = 2000}, &d, &err);

    if (status != want || !strstr(err.message, word))
        fail_msg("%s: %s '%s', not %s with '%s'", where, dibs_status_name(status), err.message,
                 dibs_status_name(want), word);
    assert_null(d);
}

static void bad_urls_say_what(void **state)
{
    char text[256];

    (void)state;
    need_server();
    expect_open("postgresql://127.0.0.1/x?sslmoode=require", DIBS_INVALID, "sslmoode");
    expect_open("postgresql://127.0.0.1/x?replication=1", DIBS_INVALID, "replication");
    expect_open("postgresql://127.0.0.1/x?table_prefix=a;b", DIBS_INVALID, "table_prefix");
    expect_open("postgresql:x", DIBS_INVALID, "postgresql://");
    expect_open("postgres://127.0.0.1:1/x", DIBS_UNAVAILABLE, "refused");
    snprintf(text, sizeof text, "postgresql://postgres@127.0.0.1:%d/nowhere", db.port);
    expect_open(text, DIBS_INVALID, "nowhere");
    snprintf(text, sizeof text, "postgresql://nobody_at_all@127.0.0.1:%d/postgres", db.port);
    expect_open(text, DIBS_DENIED, "nobody_at_all");
    snprintf(text, sizeof text, "postgresql://postgres@127.0.0.1:%d/postgres?sslmode=require", db.port);
    expect_open(text, DIBS_DENIED, "SSL");
}

static void works_over_a_unix_socket(void **state)
{
    char text[512];
    dibs *d;

    (void)state;
    need_server();
    snprintf(text, sizeof text, "postgres:///postgres?host=%s&port=%d&user=postgres", db.socket,
             db.port);
    d = open_at(text);
    assert_int_equal(dibs_unlock(take(d, "socket", NULL)), DIBS_OK);
    dibs_close(d);
}

static void without_rights_names_the_way_out(void **state)
{
    char text[256], *schema = NULL;
    dibs_error err = {0};
    dibs *d;

    (void)state;
    need_server();
    ask(control, "CREATE ROLE poor LOGIN");
    ask(control, "REVOKE CREATE ON SCHEMA public FROM public");
    snprintf(text, sizeof text, "postgresql://poor@127.0.0.1:%d/postgres?table_prefix=own_", db.port);
    expect_open(text, DIBS_DENIED, "dibs schema");
    /* What it says is what helps. */
    assert_int_equal(dibs_schema(text, &schema, &err), DIBS_OK);
    ask(control, schema);
    free(schema);
    ask(control, "GRANT SELECT, INSERT, UPDATE, DELETE ON own_lock, own_holder, own_waiter TO poor");
    d = open_at(text);
    assert_int_equal(dibs_unlock(take(d, "poor", NULL)), DIBS_OK);
    assert_int_equal(dibs_unlock(take(d, "poor2", &(dibs_lock_options){.slots = 2})), DIBS_OK);
    dibs_close(d);
    assert_string_equal(ask(control, "SELECT count(*) FROM own_locks"), "2");
}

static void a_foreign_table_is_left_alone(void **state)
{
    char text[256];

    (void)state;
    need_server();
    ask(control, "CREATE TABLE their_lock (name text)");
    snprintf(text, sizeof text, "%s?table_prefix=their_", url);
    expect_open(text, DIBS_BROKEN_ENGINE, "their_lock");
}

static void a_schema_of_its_own(void **state)
{
    char text[256];
    dibs *d;

    (void)state;
    need_server();
    ask(control, "CREATE SCHEMA apart");
    snprintf(text, sizeof text, "%s?table_prefix=apart.x_", url);
    d = open_at(text);
    assert_int_equal(dibs_unlock(take(d, "a", NULL)), DIBS_OK);
    dibs_close(d);
    assert_string_equal(ask(control, "SELECT name FROM apart.x_locks"), "a");
}

/* ---- Sessions that end ---------------------------------------------------------------------------------------- */

static void terminate_all(void)
{
    ask(control, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                 "WHERE application_name = 'dibs'");
}

static void terminated_under_a_holder(void **state)
{
    dibs *d;
    dibs_grant *g;

    (void)state;
    need_server();
    d = open_at(url);
    g = take(d, "terminated", &(dibs_lock_options){.lease_ms = 900});
    for (int i = 0; i < 5; i++) {
        terminate_all();
        sleep_ms(300);
        assert_true(dibs_held(g));
    }
    assert_int_equal(dibs_unlock(g), DIBS_OK);
    dibs_close(d);
}

static void terminated_under_waiters(void **state)
{
    dibs *handles[3];
    dibs_grant *g;
    team t;

    (void)state;
    need_server();
    for (int i = 0; i < 3; i++)
        handles[i] = open_at(url);
    g = take(handles[0], "line", NULL);
    team_start(&t, handles, 3, 12, 1, "line");
    wait_for_line(12);
    terminate_all(); /* the listening connections too */
    dibs_unlock(g);
    team_end(&t);
    assert_int_equal(atomic_load(&t.done), 12);
    for (int i = 0; i < 3; i++)
        dibs_close(handles[i]);
}

static void crash_under_holders_and_waiters(void **state)
{
    dibs *handles[6];
    dibs_grant *held[8];
    uint64_t fence[8];
    char name[8][16];
    team t;

    (void)state;
    need_server();
    for (int i = 0; i < 6; i++)
        handles[i] = open_at(url);
    for (int i = 0; i < 8; i++) {
        snprintf(name[i], sizeof name[i], "crash%d", i);
        held[i] = take(handles[i % 6], name[i], NULL);
        fence[i] = dibs_fence(held[i]);
    }
    team_start(&t, handles, 6, 50, 2, name[0]);
    wait_for_line(50);
    PQfinish(control);
    database_end(&db, SIGQUIT); /* every process dies at once, nothing is written down */
    assert_int_equal(database_restart(&db), 0);
    control = dial();
    for (int i = 0; i < 8; i++)
        assert_true(dibs_held(held[i]));
    t.last = fence[0];
    assert_int_equal(dibs_unlock(held[0]), DIBS_OK);
    team_end(&t);
    assert_int_equal(atomic_load(&t.done), 100);
    for (int i = 1; i < 8; i++) {
        assert_int_equal(dibs_unlock(held[i]), DIBS_OK);
        dibs_grant *g = take(handles[0], name[i], NULL);
        assert_true(dibs_fence(g) > fence[i]);
        dibs_unlock(g);
    }
    for (int i = 0; i < 6; i++)
        dibs_close(handles[i]);
}

static void no_connection_left(void **state)
{
    PGconn *others[64];
    size_t count = 0;
    dibs_error err = {0};
    dibs *d, *late = NULL;
    dibs_grant *g;
    char info[160];

    (void)state;
    need_server();
    ask(control, "CREATE ROLE many LOGIN IN ROLE pg_read_all_data, pg_write_all_data");
    snprintf(info, sizeof info, "postgresql://many@127.0.0.1:%d/postgres", db.port);
    d = open_at(info);
    g = take(d, "full", &(dibs_lock_options){.lease_ms = 900});
    snprintf(info, sizeof info, "host=127.0.0.1 port=%d user=many dbname=postgres", db.port);
    while (count < 64) {
        others[count] = PQconnectdb(info);
        if (PQstatus(others[count++]) != CONNECTION_OK)
            break;
    }
    snprintf(info, sizeof info, "postgresql://many@127.0.0.1:%d/postgres", db.port);
    assert_int_equal(dibs_open(info, NULL, &late, &err), DIBS_UNAVAILABLE);
    for (int i = 0; i < 10; i++) {
        sleep_ms(200);
        assert_true(dibs_held(g)); /* renewed on what it has */
    }
    for (size_t i = 0; i < count; i++)
        PQfinish(others[i]);
    assert_int_equal(dibs_unlock(g), DIBS_OK);
    dibs_close(d);
}

/* ---- Rows that others keep ---------------------------------------------------------------------------------------- */

static void a_row_kept_locked_costs_only_itself(void **state)
{
    dibs *d;
    dibs_grant *a, *b;
    PGconn *stranger;

    (void)state;
    need_server();
    d = open_at(url);
    a = take(d, "kept-a", &(dibs_lock_options){.lease_ms = 6000});
    b = take(d, "kept-b", &(dibs_lock_options){.lease_ms = 6000});
    stranger = dial();
    ask(stranger, "BEGIN");
    ask(stranger, "SELECT 1 FROM dibs_lock WHERE name = 'kept-a' FOR UPDATE");
    for (int i = 0; i < 14; i++) {
        sleep_ms(500);
        assert_true(dibs_held(b)); /* beyond its first lease */
    }
    ask(stranger, "COMMIT");
    PQfinish(stranger);
    dibs_unlock(a);
    assert_int_equal(dibs_unlock(b), DIBS_OK);
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
    need_server();
    d = open_at(url);
    dibs_unlock(take(d, "row", NULL));
    ask(control, "BEGIN");
    ask(control, "SELECT 1 FROM dibs_lock WHERE name = 'row' FOR UPDATE");
    team_start(&t, &d, 1, 1, 1, "row"); /* waits for the row */
    sleep_ms(300);
    ahead = dibs__env_system.wall(NULL);
    snprintf(sql, sizeof sql, "UPDATE dibs_lock SET fence = %" PRId64 " WHERE name = 'row'", ahead);
    ask(control, sql);
    ask(control, "COMMIT");
    team_end(&t);
    assert_true(t.last > (uint64_t)ahead);
    /* A lease that began while it waited would be over too early. */
    g = take(d, "row", NULL);
    assert_true(dibs_remaining_ms(g) > 29000);
    dibs_unlock(g);
    dibs_close(d);
}

static void the_clock_goes_back(void **state)
{
    dibs *d;
    dibs_grant *g;
    uint64_t before;
    char text[256];

    (void)state;
    need_server();
    ask(control, "CREATE SCHEMA fake");
    ask(control, "CREATE TABLE fake.shift AS SELECT interval '0' AS by");
    ask(control, "CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
                 "$$ SELECT pg_catalog.clock_timestamp() + by FROM fake.shift $$");
    snprintf(text, sizeof text, "%s?options=-csearch_path%%3Dfake%%2Cpg_catalog", url);
    d = open_at(text);
    g = take(d, "back", NULL);
    before = dibs_fence(g);
    dibs_unlock(g);
    ask(control, "UPDATE fake.shift SET by = interval '-1 hour'");
    for (int i = 0; i < 3; i++) {
        g = take(d, "back", i == 1 ? &(dibs_lock_options){.shared = true} : NULL);
        assert_true(dibs_fence(g) == before + 1);
        before = dibs_fence(g);
        assert_int_equal(dibs_unlock(g), DIBS_OK);
    }
    dibs_close(d);
}

static void reap_now(dibs *d)
{
    dibs__sql *e = (dibs__sql *)d->engine;

    atomic_store(&e->reap_at, 0);
    dibs__sql_reap(e);
}

static void idle_rows_are_reaped(void **state)
{
    dibs *d;
    dibs_grant *g, *kept;
    uint64_t fence;
    char sql[300];

    (void)state;
    need_server();
    d = open_at(url);
    kept = take(d, "reap-held", NULL);
    dibs_unlock(take(d, "reap-young", NULL));
    g = take(d, "reap-old", NULL);
    fence = dibs_fence(g);
    dibs_unlock(g);
    dibs_unlock(take(d, "reap-dead", &(dibs_lock_options){.slots = 3}));
    snprintf(sql, sizeof sql,
             "UPDATE dibs_lock SET fence = fence - %" PRId64 " WHERE name IN ('reap-old', 'reap-dead')",
             DAY_US + DIBS__SECOND);
    ask(control, sql);
    /* A semaphore whose holder died a day ago. */
    ask(control, "UPDATE dibs_lock SET holders = 1, used = 1 WHERE name = 'reap-dead'");
    ask(control, "INSERT INTO dibs_holder SELECT 'reap-dead', 'o', 'a', 'h', 1, 'w', 1, 1000, 0, fence, "
                 "1, 1000, 0 FROM dibs_lock WHERE name = 'reap-dead'");
    reap_now(d);
    reap_now(d);
    assert_string_equal(ask(control, "SELECT string_agg(encode(name, 'escape'), ' ' ORDER BY name) "
                                     "FROM dibs_lock WHERE name::text LIKE '\\\\x72656170%'"),
                        "reap-held reap-young");
    g = take(d, "reap-old", NULL);
    assert_true(dibs_fence(g) > fence);
    dibs_unlock(g);
    assert_int_equal(dibs_unlock(kept), DIBS_OK);
    dibs_close(d);
}

/* ---- The wire ------------------------------------------------------------------------------------------------------ */

/* The exchange is cut after k bytes, up or down, for every k: the caller gets the lock all the same, once. */
static void cut_at_every_byte(proxy_way way, const char *name, const char *where, proxy *p)
{
    uint64_t last = 0;

    for (int64_t k = 0; k < 3000; k += k < 600 ? 7 : 61) {
        dibs_error err = {0};
        dibs_grant *g = NULL;
        proxy_counts seen;
        dibs *d = open_at(where);
        dibs_unlock(take(d, name, NULL)); /* statements are prepared */
        proxy_reset_counts(p);
        proxy_cut(p, way, k, k % 2);
        if (dibs_lock(d, name, &(dibs_lock_options){.wait_ms = 8000}, &g, &err) != DIBS_OK)
            fail_msg("cut at %" PRId64 ": %s", k, err.message);
        assert_true(dibs_fence(g) > last);
        last = dibs_fence(g);
        assert_string_equal(ask(control, "SELECT holders FROM dibs_lock WHERE name = 'wire'"), "1");
        dibs_status status = dibs_unlock(g);
        if (status != DIBS_OK && status != DIBS_UNKNOWN)
            fail_msg("cut at %" PRId64 ": unlock says %s", k, dibs_status_name(status));
        proxy_read(p, &seen);
        proxy_heal(p);
        dibs_close(d);
        assert_string_equal(ask(control, "SELECT holders FROM dibs_lock WHERE name = 'wire'"), "0");
        if (seen.cuts == 0)
            break; /* the whole exchange is shorter */
    }
}

static void the_wire_is_cut(void **state)
{
    proxy *p;
    char where[128];

    (void)state;
    need_server();
    p = proxy_start(db.port);
    snprintf(where, sizeof where, "postgresql://postgres@127.0.0.1:%d/postgres?sslmode=disable",
             proxy_port(p));
    cut_at_every_byte(PROXY_UP, "wire", where, p);
    cut_at_every_byte(PROXY_DOWN, "wire", where, p);
    proxy_stop(p);
}

static void a_silent_server_keeps_nobody(void **state)
{
    proxy *p;
    char where[128];
    dibs_error err = {0};
    dibs_grant *g = NULL;
    dibs *d;
    int64_t begun;

    (void)state;
    need_server();
    p = proxy_start(db.port);
    snprintf(where, sizeof where, "postgresql://postgres@127.0.0.1:%d/postgres?sslmode=disable",
             proxy_port(p));
    d = open_at(where);
    dibs_unlock(take(d, "silent", NULL));
    proxy_drip(p, PROXY_DOWN, 500);
    begun = clock_ms();
    assert_int_equal(dibs_lock(d, "silent", &(dibs_lock_options){.wait_ms = 700}, &g, &err),
                     DIBS_UNAVAILABLE);
    assert_in_range(clock_ms() - begun, 600, 1500);
    proxy_heal(p);
    assert_int_equal(dibs_unlock(take(d, "silent", &(dibs_lock_options){.wait_ms = LONG_MS})), DIBS_OK);
    dibs_close(d);
    proxy_stop(p);
}

/* ---- Behind a pooler ------------------------------------------------------------------------------------------------ */

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
            "[databases]\npostgres = host=127.0.0.1 port=%d user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            "listen_port = %d\nunix_socket_dir =\nauth_type = any\npool_mode = %s\n"
            "default_pool_size = 3\nlogfile = %s/log\npidfile = %s/pid\n",
            db.port, p->port, mode, p->folder.path, p->folder.path);
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

static void behind_a_pooler(void **state)
{
    pooler p;
    char where[128];
    dibs *handles[4];
    dibs_grant *g;
    team t;

    (void)state;
    need_server();
    pooler_start(&p, "transaction");
    snprintf(where, sizeof where, "postgresql://postgres@127.0.0.1:%d/postgres", p.port);
    for (int i = 0; i < 4; i++)
        handles[i] = open_at(where);
    assert_true(((dibs__pg *)handles[0]->engine)->pooled);
    g = take(handles[0], "pooled", NULL);
    team_start(&t, handles, 4, 8, 5, "pooled");
    wait_for_line(8);
    dibs_unlock(g);
    team_end(&t); /* bounded looks instead of wake-ups between handles */
    assert_int_equal(atomic_load(&t.done), 40);
    g = take(handles[1], "pooled slots", &(dibs_lock_options){.slots = 3, .lease_ms = 600});
    sleep_ms(1500);
    assert_true(dibs_held(g));
    assert_int_equal(dibs_unlock(g), DIBS_OK);
    for (int i = 0; i < 4; i++)
        dibs_close(handles[i]);
    /* Nothing of ours stays in the sessions that others will get. */
    assert_string_equal(ask(control, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%'"),
                        "0");
    pooler_stop(&p);
}

/* ---- How much it asks ---------------------------------------------------------------------------------------------- */

static void waiters_ask_little(void **state)
{
    dibs *handles[2];
    dibs_grant *g;
    team t;
    long before, idle;

    (void)state;
    need_server();
    for (int i = 0; i < 2; i++)
        handles[i] = open_at(url);
    g = take(handles[0], "quiet", NULL);
    team_start(&t, handles + 1, 1, 60, 1, "quiet");
    wait_for_line(60);
    ask(control, "SELECT pg_stat_force_next_flush()");
    before = atol(ask(control, "SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'"));
    sleep_ms(5000);
    idle = atol(ask(control, "SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'")) -
           before;
    assert_in_range(idle, 1, 20); /* one sign of life for all of them every two seconds */
    dibs_unlock(g);
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
        cmocka_unit_test(terminated_under_a_holder),
        cmocka_unit_test(terminated_under_waiters),
        cmocka_unit_test(crash_under_holders_and_waiters),
        cmocka_unit_test(no_connection_left),
        cmocka_unit_test(a_row_kept_locked_costs_only_itself),
        cmocka_unit_test(the_fence_is_taken_with_the_row),
        cmocka_unit_test(the_clock_goes_back),
        cmocka_unit_test(idle_rows_are_reaped),
        cmocka_unit_test(the_wire_is_cut),
        cmocka_unit_test(a_silent_server_keeps_nobody),
        cmocka_unit_test(behind_a_pooler),
        cmocka_unit_test(waiters_ask_little),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("postgresql", tests, start_server, stop_server);
}
