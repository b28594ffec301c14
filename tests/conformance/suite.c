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

#define CASES_MAX 512

scratch_store the;
static pid_t locker; /* of the SQLite database */
static bool paused;  /* by a case that failed before it continued the server */

/* ---- Handles --------------------------------------------------------------------------------- */

dibs *open_with(const dibs_options *options)
{
    return open_at(the.url, options);
}

dibs *open_handle(void)
{
    return open_with(NULL);
}

dibs *open_for_load(void)
{
    int ports[REDLOCK_NODES];
    scratch_store patient = the;
    char url[sizeof the.url];

    patient.session_ms = 60000;
    if (scratch_store_ports(&patient, ports) == 0)
        return open_handle();
    scratch_store_url(&patient, ports, url, sizeof url);
    return open_at(url, NULL);
}

bool url_of_nobody(char *url, size_t size)
{
    int ports[REDLOCK_NODES], count = scratch_store_ports(&the, ports);
    char path[400];
    FILE *f;

    if (!the.can.across_processes)
        return false;
    for (int i = 0; i < count; i++)
        ports[i] = free_port();
    if (count > 0) {
        scratch_store_url(&the, ports, url, size);
        return true;
    }
    scratch_file(&the.folder, "no.db", path, sizeof path);
    f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 1000; i++)
        fputs("this is no database\n", f);
    fclose(f);
    snprintf(url, size, "sqlite://%s", path);
    return true;
}

/* A process that has the write lock of SQLite's WAL, a byte of the file beside the database. */
static void lock_sqlite(void)
{
    struct flock write_lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 120, .l_len = 1};
    char path[400], done;
    int ready[2];

    scratch_file(&the.folder, "dibs.db-shm", path, sizeof path);
    assert_int_equal(pipe(ready), 0);
    locker = fork();
    if (locker == 0) {
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
    else if (the.cluster.node[0].pid)
        for (int i = 0; i < CLUSTER_MASTERS; i++)
            server_pause(&the.cluster.node[i]);
    else if (the.nodes == 1 && the.ensemble.node[0].pid)
        ensemble_pause(&the.ensemble, 0);
    else
        return false;
    paused = true;
    return true;
}

void continue_server(void)
{
    paused = false;
    if (locker) {
        kill(locker, SIGKILL);
        waitpid(locker, NULL, 0);
        locker = 0;
    } else if (the.redis.pid)
        server_continue(&the.redis);
    else if (the.database.pid)
        database_continue(&the.database);
    else if (the.node[0].pid)
        for (int i = 0; i < REDLOCK_NODES; i++)
            server_continue(&the.node[i]);
    else if (the.cluster.node[0].pid)
        for (int i = 0; i < CLUSTER_MASTERS; i++)
            server_continue(&the.cluster.node[i]);
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

typedef struct queue {
    dibs *d;
    const char *name;
    size_t waiters;
} queue;

static bool queue_is(void *ctx)
{
    queue *l = ctx;
    size_t n = 0;

    if (the.can.first_come)
        return waiters_of(l->d, l->name) == l->waiters;
    for (size_t i = 0; i < HANDLES_MAX; i++)
        n += handle_at(i) ? waiters_of(handle_at(i), l->name) : 0;
    return n == l->waiters;
}

void wait_for_queue(dibs *d, const char *name, size_t waiters)
{
    if (!wait_until(queue_is, &(queue){d, name, waiters}, LONG_MS))
        fail_msg("%s: never were %zu in the queue", name, waiters);
}

/* Who waits on Redlock leaves a hint on a majority of nodes. */
static bool is_hinted(void *name)
{
    char command[600], reply[256];
    int hints = 0;

    snprintf(command, sizeof command, "ZCARD dibs:{%s}:hints", (const char *)name);
    for (int i = 0; i < REDLOCK_NODES; i++)
        hints += server_command(&the.node[i], command, reply, sizeof reply) == 0 &&
                 strncmp(reply, ":1", 2) == 0;
    return hints > REDLOCK_NODES / 2;
}

void wait_for_helper(dibs *d, const char *name)
{
    char copy[DIBS_NAME_MAX + 1];

    if (the.can.first_come) {
        wait_for_queue(d, name, 1);
        return;
    }
    snprintf(copy, sizeof copy, "%s", name);
    if (!wait_until(is_hinted, copy, LONG_MS))
        fail_msg("%s: nobody waits", name);
}

/* ---- The program ----------------------------------------------------------------------------- */

static int case_teardown(void **state)
{
    (void)state;
    if (paused)
        continue_server();
    close_handles();
    return 0;
}

static bool is_declared(const struct CMUnitTest *test)
{
    need n = (need)(uintptr_t)test->initial_state;

    return (n != NEEDS_SHARED || the.can.shared) &&
           ((n != NEEDS_SLOTS && n != NEEDS_PORTABLE_SLOTS) || the.can.slots) &&
           ((n != NEEDS_PORTABLE && n != NEEDS_PORTABLE_SLOTS) || !the.can.lease_of_handle);
}

static int run_cases(void)
{
    static const cases *const all[] = {
        &open_cases,    &basic_cases,    &queue_cases,   &many_cases,      &lease_cases,
        &break_cases,   &look_cases,     &request_cases, &operation_cases, &process_cases,
        &machine_cases, &cell_cases,     &counter_cases, &once_cases,      &crash_cases,
        &token_cases,   &late_cases,     &call_cases,    &duration_cases,  &hung_cases,
        &close_cases,   &portable_cases, &key_cases};
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
    int code;

    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    if (scratch_store_for_main(&the, argc > 1 ? argv[1] : "memory", SESSION_MS, &code))
        code = run_cases() != 0;
    scratch_store_remove(&the);
    return code;
}
