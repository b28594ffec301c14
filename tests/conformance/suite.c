/* The suite's program and what its cases share. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CASES_MAX 256

suite the;

/* ---- Handles --------------------------------------------------------------------------------- */

dibs *open_with(const dibs_options *options)
{
    return open_at(the.url, options);
}

dibs *open_handle(void)
{
    return open_with(NULL);
}

/* A process that has the write lock of SQLite's WAL, a byte of the file beside the database. */
static void lock_sqlite(void)
{
    struct flock write_lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 120, .l_len = 1};
    char path[400], done;
    int ready[2];

    scratch_file(&the.folder, "dibs.db-shm", path, sizeof path);
    assert_int_equal(pipe(ready), 0);
    the.locker = fork();
    if (the.locker == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (fcntl(open(path, O_RDWR), F_SETLKW, &write_lock) == 0 && write(ready[1], "", 1) == 1)
            pause();
        _exit(1);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &done, 1), 1);
    close(ready[0]);
}

bool pause_server(void)
{
    if (strcmp(the.engine, "sqlite") == 0)
        lock_sqlite();
    else if (the.redis.pid)
        server_pause(&the.redis);
    else if (the.database.pid)
        database_pause(&the.database);
    else if (the.node[0].pid)
        for (int i = 0; i < REDLOCK_NODES; i++)
            server_pause(&the.node[i]);
    else if (the.nodes == 1 && the.ensemble.node[0].pid)
        ensemble_pause(&the.ensemble, 0);
    else
        return false;
    return true;
}

void continue_server(void)
{
    if (the.locker) {
        kill(the.locker, SIGKILL);
        waitpid(the.locker, NULL, 0);
        the.locker = 0;
    } else if (the.redis.pid)
        server_continue(&the.redis);
    else if (the.database.pid)
        database_continue(&the.database);
    else if (the.node[0].pid)
        for (int i = 0; i < REDLOCK_NODES; i++)
            server_continue(&the.node[i]);
    else
        ensemble_continue(&the.ensemble, 0);
}

const char *fresh(const char *label)
{
    static char names[8][64];
    static unsigned n;
    char *name = names[n % 8];

    snprintf(name, sizeof names[0], "%s-%u", label, n++);
    return name;
}

/* ---- Lines ----------------------------------------------------------------------------------- */

typedef struct line {
    dibs *d;
    const char *name;
    size_t waiters;
} line;

static bool line_is(void *ctx)
{
    line *l = ctx;
    size_t n = 0;

    if (the.can.first_come)
        return waiters_of(l->d, l->name) == l->waiters;
    for (size_t i = 0; i < HANDLES_MAX; i++)
        n += handle_at(i) ? waiters_of(handle_at(i), l->name) : 0;
    return n == l->waiters;
}

void wait_for_line(dibs *d, const char *name, size_t waiters)
{
    if (!wait_until(line_is, &(line){d, name, waiters}, LONG_MS))
        fail_msg("%s: never were %zu in line", name, waiters);
}

/* Who waits on Redlock listens on its nodes. */
static bool is_listened_to(void *name)
{
    char command[600], reply[256];

    snprintf(command, sizeof command, "PUBSUB NUMSUB dibs:{%s}:free", (const char *)name);
    for (int i = 0; i <= REDLOCK_NODES / 2; i++) /* every majority meets these */
        if (server_command(&the.node[i], command, reply, sizeof reply) < 0 ||
            !strstr(reply, ":1\r\n"))
            return false;
    return true;
}

void wait_for_helper(dibs *d, const char *name)
{
    char copy[DIBS_NAME_MAX + 1];

    if (the.can.first_come) {
        wait_for_line(d, name, 1);
        return;
    }
    snprintf(copy, sizeof copy, "%s", name);
    if (!wait_until(is_listened_to, copy, LONG_MS))
        fail_msg("%s: nobody waits", name);
}

/* ---- The program ----------------------------------------------------------------------------- */

/* A place for each engine. NULL: the.url is set. Else why it cannot be tested here. */
static const char *place_memory(void)
{
    snprintf(the.url, sizeof the.url, "memory:conformance");
    return NULL;
}

static const char *place_sqlite(void)
{
    char file[400];

    snprintf(the.url, sizeof the.url, "sqlite://%s",
             scratch_file(&the.folder, "dibs.db", file, sizeof file));
    return NULL;
}

static const char *place_redis(void)
{
    if (!server_available() || server_start(&the.redis, NULL) < 0)
        return "no redis-server";
    snprintf(the.url, sizeof the.url, "%s", the.redis.url);
    return NULL;
}

/* The nodes are as new as the servers: somebody must vouch for them once. */
static const char *place_redlock(void)
{
    char vouched[sizeof the.url + 32];
    dibs *d = NULL;
    int used = snprintf(the.url, sizeof the.url, "redlock://");
    dibs_status status;

    for (int i = 0; i < REDLOCK_NODES; i++) {
        if (!server_available() || server_start(&the.node[i], NULL) < 0)
            return "no redis-server";
        used += snprintf(the.url + used, sizeof the.url - (size_t)used, "%s127.0.0.1:%d",
                         i ? "," : "", the.node[i].port);
    }
    snprintf(vouched, sizeof vouched, "%s?guard=off&max_lease=10", the.url);
    status = dibs_open(vouched, NULL, &d, NULL);
    dibs_close(d);
    return status == DIBS_OK ? NULL : "the nodes do not answer";
}

static const char *place_postgresql(void)
{
    if (!database_available(DATABASE_POSTGRESQL) ||
        database_start(&the.database, DATABASE_POSTGRESQL, NULL) < 0)
        return "no PostgreSQL";
    snprintf(the.url, sizeof the.url, "postgresql://%s@127.0.0.1:%d/postgres", the.database.user,
             the.database.port);
    return NULL;
}

/* A new MariaDB server has no database of a user's: it makes one when it starts. */
static bool write_init(char *path, size_t size)
{
    FILE *f = fopen(scratch_file(&the.folder, "init.sql", path, size), "w");
    bool written = f && fputs("CREATE DATABASE IF NOT EXISTS conformance;\n", f) >= 0;

    return f && fclose(f) == 0 && written && chmod(the.folder.path, 0755) == 0 &&
           chmod(path, 0644) == 0;
}

static const char *place_mysql(void)
{
    char option[512] = "--init-file=";
    size_t used = strlen(option);
    const char *const extra[] = {option, NULL};

    if (!write_init(option + used, sizeof option - used) || !database_available(DATABASE_MARIADB) ||
        database_start(&the.database, DATABASE_MARIADB, extra) < 0)
        return "no MariaDB";
    snprintf(the.url, sizeof the.url, "mysql://%s@127.0.0.1:%d/conformance", the.database.user,
             the.database.port);
    return NULL;
}

static const char *place_zookeeper(void)
{
    if (!ensemble_available(ENSEMBLE_ZOOKEEPER) ||
        ensemble_start(&the.ensemble, ENSEMBLE_ZOOKEEPER, the.nodes, NULL) < 0)
        return "no ZooKeeper";
    snprintf(the.url, sizeof the.url, "zookeeper://%s/conformance?session=%dms", the.ensemble.hosts,
             SESSION_MS);
    return NULL;
}

static const char *place_etcd(void)
{
    if (!ensemble_available(ENSEMBLE_ETCD) ||
        ensemble_start(&the.ensemble, ENSEMBLE_ETCD, the.nodes, NULL) < 0)
        return "no etcd";
    snprintf(the.url, sizeof the.url, "etcd://%s/conformance?session=%dms", the.ensemble.hosts,
             SESSION_MS);
    return NULL;
}

static const struct {
    const char *engine;
    const char *(*make)(void);
} places[] = {{"memory", place_memory},         {"sqlite", place_sqlite},
              {"redis", place_redis},           {"redlock", place_redlock},
              {"postgresql", place_postgresql}, {"mysql", place_mysql},
              {"zookeeper", place_zookeeper},   {"etcd", place_etcd}};

/* NULL: ready. Else why not. A name that ends in 3 ("etcd3") asks for three nodes. */
static const char *make_place(const char *name)
{
    bool known = false;
    size_t length = strcspn(name, "3");
    const char *engine = the.engine;

    snprintf(the.engine, sizeof the.engine, "%.*s", (int)length, name);
    the.nodes = name[length] ? 3 : 1;
    for (size_t i = 0; !known && dibs_engine_at(i, &the.can); i++)
        known = strcmp(the.can.scheme, engine) == 0;
    if (!known)
        return "no such engine";
    if (the.can.missing)
        return "this build is without that engine";
    if (scratch_make(&the.folder) < 0)
        return "no scratch folder";
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        if (strcmp(places[i].engine, engine) == 0)
            return places[i].make();
    return "the suite has no place for it";
}

static int case_teardown(void **state)
{
    (void)state;
    close_handles();
    return 0;
}

static bool is_declared(const struct CMUnitTest *test)
{
    need n = (need)(uintptr_t)test->initial_state;

    return (n != NEEDS_SHARED || the.can.shared) && (n != NEEDS_SLOTS || the.can.slots);
}

static int run_cases(void)
{
    static const cases *const all[] = {
        &open_cases, &basic_cases,  &queue_cases,   &many_cases,    &lease_cases, &break_cases,
        &look_cases, &ticket_cases, &process_cases, &machine_cases, &cell_cases,  &counter_cases,
        &once_cases, &crash_cases,  &token_cases,   &late_cases,    &call_cases,  &hung_cases};
    static struct CMUnitTest tests[CASES_MAX];
    size_t n = 0;

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (size_t k = 0; k < all[i]->count && n < CASES_MAX; k++) {
            if (!is_declared(&all[i]->test[k])) {
                printf("# left out, as declared: %s\n", all[i]->test[k].name);
                continue;
            }
            tests[n] = all[i]->test[k];
            tests[n].initial_state = NULL;
            tests[n++].teardown_func = case_teardown;
        }
    return _cmocka_run_group_tests(the.engine, tests, n, NULL, NULL);
}

int main(int argc, char *argv[])
{
    const char *why = make_place(argc > 1 ? argv[1] : "memory");
    int failed = 0;

    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    if (why && server_required()) {
        printf("1..1\n# %s: %s, and it is required here\nnot ok 1 - %s\n", the.engine, why,
               the.engine);
        failed = 1;
    } else if (why) {
        printf("1..0 # SKIP %s: %s\n", the.engine, why);
    } else {
        failed = run_cases();
    }
    server_stop(&the.redis);
    for (int i = 0; i < REDLOCK_NODES; i++)
        server_stop(&the.node[i]);
    database_stop(&the.database);
    ensemble_stop(&the.ensemble);
    scratch_remove(&the.folder);
    return failed ? 1 : 0;
}
