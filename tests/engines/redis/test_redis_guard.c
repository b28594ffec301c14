/* Exclusion and fences when the server restarts or another one takes over: guard= and wait= of the URL.
 *
 * A master with replicas; failovers are made by hand here, so that each case has exactly the loss that it is
 * about. Failovers by Sentinel and in a cluster: test_redis_sentinel.c, test_redis_cluster.c; under load: dibs torture. */
#define _GNU_SOURCE
#include "support/calls.h"
#include "support/clock.h"
#include "support/server.h"
#include "support/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LONGEST_MS 1500
#define REPLICAS   2

typedef struct group {
    server node[1 + REPLICAS]; /* the first is the master */
    int replicas;
} group;

/* ---- Servers --------------------------------------------------------------------------------- */

static bool is_linked(void *ctx)
{
    char reply[4096];

    return server_command(ctx, "INFO replication", reply, sizeof reply) == 0 &&
           strstr(reply, "master_link_status:up");
}

static void order(server *s, const char *command)
{
    char reply[256];

    assert_int_equal(server_command(s, command, reply, sizeof reply), 0);
    if (reply[0] == '-')
        fail_msg("%s: %s", command, reply);
}

static bool has_replicas(void *ctx)
{
    char reply[4096], *at = reply;

    return server_command(ctx, "INFO replication", reply, sizeof reply) == 0 &&
           strstr(at, "state=online") && !strstr(at, "state=wait") && !strstr(at, "state=send");
}

/* Both sides know that it follows. */
static void follow(server *replica, server *master)
{
    char command[64];

    snprintf(command, sizeof command, "REPLICAOF 127.0.0.1 %d", master->port);
    order(replica, command);
    assert_true(wait_until(is_linked, replica, 10000));
    assert_true(wait_until(has_replicas, master, 10000));
}

static void group_start(group *g, int replicas)
{
    static const char *const fast[] = {"--repl-diskless-sync-delay", "0", NULL};

    memset(g, 0, sizeof *g);
    g->replicas = replicas;
    for (int i = 0; i <= replicas; i++)
        server_need(&g->node[i], fast);
    for (int i = 1; i <= replicas; i++)
        follow(&g->node[i], &g->node[0]);
}

static void group_stop(group *g)
{
    for (int i = 0; i <= g->replicas; i++)
        server_stop(&g->node[i]);
}

static int longest_ms = LONGEST_MS; /* of the URLs */

static const char *url_of(const server *s, const char *more)
{
    static _Thread_local char url[256];

    snprintf(url, sizeof url, "%s?max_lease=%d%s", s->url, longest_ms, more);
    return url;
}

static dibs *open_at(const server *s, const char *more)
{
    return expect_open(url_of(s, more), NULL);
}

/* Nobody holds anything: the quiet period of a new server is not waited for. */
static void vouch(const server *s, const char *more)
{
    char with[64];

    snprintf(with, sizeof with, "&guard=vouch%s", more);
    dibs_close(open_at(s, with));
}

static const dibs_lock_options at_once = {.lease_ms = LONGEST_MS, .wait_ms = DIBS_NO_WAIT};
static const dibs_lock_options patiently = {.lease_ms = LONGEST_MS, .wait_ms = 20000};

static dibs_status try_lock(dibs *d, const char *name, dibs_grant **g, dibs_error *err)
{
    return dibs_lock(d, name, &at_once, g, err);
}

static void expect_quiet(dibs *d, const char *name)
{
    dibs_error err = {0};
    dibs_grant *g = NULL;

    assert_status(try_lock(d, name, &g, &err), DIBS_UNAVAILABLE);
    if (!strstr(err.message, "leases that it has lost may still be valid"))
        fail_msg("%s", err.message);
}

typedef struct expected {
    server *s;
    const char *key;
} expected;

static bool has_key(void *ctx)
{
    expected *e = ctx;
    char command[128], reply[64];

    snprintf(command, sizeof command, "EXISTS %s", e->key);
    return server_command(e->s, command, reply, sizeof reply) == 0 && strcmp(reply, ":1\r\n") == 0;
}

static void await_key(server *s, const char *key)
{
    assert_true(wait_until(has_key, &(expected){s, key}, 10000));
}

/* What the master does from now on does not reach its replica, which is stopped and will not connect again. */
static void cut_off(group *g)
{
    server_pause(&g->node[1]);
    assert_int_equal(server_command(&g->node[0], "CLIENT KILL TYPE replica", NULL, 0), 0);
}

/* ---- Restart --------------------------------------------------------------------------------- */

/* Whether two held after a restart that lost everything. */
static bool two_after_restart(const char *more)
{
    server s;
    dibs *a, *b;
    dibs_grant *mine, *other = NULL;
    bool two;

    server_need(&s, NULL);
    vouch(&s, "");
    a = open_at(&s, more);
    b = open_at(&s, more);
    mine = expect_lock(a, "x", &at_once);
    server_end(&s, SIGKILL);
    assert_int_equal(server_restart(&s), 0);
    two = try_lock(b, "x", &other, NULL) == DIBS_OK && dibs_grant_held(mine);
    dibs_close(a);
    dibs_close(b);
    server_stop(&s);
    return two;
}

static void a_restart_that_loses_the_data(void **state)
{
    (void)state;
    assert_true(two_after_restart("")); /* else the next line proves nothing */
    assert_false(two_after_restart("&guard=on"));
}

static void a_quiet_period_ends(void **state)
{
    server s;
    dibs *d;
    dibs_error err = {0};
    dibs_grant *g;
    int64_t since = clock_ms();

    (void)state;
    server_need(&s, NULL);
    d = open_at(&s, "&guard=on");
    expect_quiet(d, "x");
    g = expect_lock(d, "x", &patiently);
    assert_true(clock_ms() - since >= LONGEST_MS - 1000); /* uptime has whole seconds */
    assert_status(unlock(g), DIBS_OK);
    assert_status(dibs_lock(d, "x", &(dibs_lock_options){.lease_ms = 2 * LONGEST_MS}, &g, &err),
                  DIBS_INVALID);
    assert_non_null(strstr(err.message, "max_lease"));
    dibs_close(d);
    server_stop(&s);
}

/* ---- Failover -------------------------------------------------------------------------------- */

/* The replica has seen everything but the last grant; it takes over. Whether two hold, and the fences. */
static bool two_after_failover(const char *more, uint64_t fence[2])
{
    group g;
    dibs *a, *b;
    dibs_grant *mine, *other = NULL;
    bool two;

    group_start(&g, 1);
    vouch(&g.node[0], "");
    a = open_at(&g.node[0], more);
    assert_status(unlock(expect_lock(a, "x", &at_once)), DIBS_OK);
    sleep_ms(
        50); /* the marker has reached the replica; a case of its own is about one that has not */
    cut_off(&g);
    mine = expect_lock(a, "x", &at_once);
    fence[0] = dibs_grant_fence(mine);
    server_end(&g.node[0], SIGKILL);
    server_continue(&g.node[1]);
    order(&g.node[1], "REPLICAOF NO ONE");
    b = open_at(&g.node[1], more);
    two = try_lock(b, "x", &other, NULL) == DIBS_OK && dibs_grant_held(mine);
    if (!other)
        other = expect_lock(b, "x", &patiently);
    fence[1] = dibs_grant_fence(other);
    assert_false(!two && dibs_grant_held(mine));
    dibs_close(a);
    dibs_close(b);
    group_stop(&g);
    return two;
}

static void a_failover_that_loses_the_last_grant(void **state)
{
    uint64_t fence[2];

    (void)state;
    assert_true(two_after_failover("", fence));
    assert_false(two_after_failover("&guard=on", fence));
    assert_true(fence[1] > fence[0]);
}

/* Those in the queue on the replica's own data are not served before that either. */
static void the_queue_is_not_served_meanwhile(void **state)
{
    group g;
    dibs *a, *b;
    dibs_grant *mine;
    uint64_t id;
    int64_t took_over;

    (void)state;
    group_start(&g, 1);
    vouch(&g.node[0], "");
    a = open_at(&g.node[0], "&guard=on");
    b = open_at(&g.node[0], "&guard=on");
    mine = expect_lock(a, "x", &at_once);
    assert_status(start_lock(b, "x", &patiently, NULL, NULL, &id, NULL), DIBS_OK);
    while (waiters_of(a, "x") == 0)
        sleep_ms(5);
    await_key(&g.node[1], "dibs:{x}:q");
    server_pause(&g.node[0]);
    order(&g.node[1], "REPLICAOF NO ONE");
    took_over = clock_ms();
    dibs *c = open_at(&g.node[1], "&guard=on");
    assert_int_equal(waiters_of(c, "x"), 1);
    assert_status(dibs_lock_break(c, "x", &(dibs_lock_break_options){.now = true}, NULL),
                  DIBS_OK); /* nobody is in the way any more */
    assert_int_equal(holders_of(c, "x"), 0);
    expect_quiet(c, "x");
    assert_true(clock_ms() - took_over < LONGEST_MS);
    dibs_close(c);
    server_continue(&g.node[0]);
    unlock(mine);
    dibs_close(a);
    dibs_close(b);
    group_stop(&g);
}

/* One that was demoted, and promoted again without a restart, lacks what it had to give up. */
static void a_server_that_is_promoted_again(void **state)
{
    group g;
    dibs *d;

    (void)state;
    group_start(&g, 1);
    vouch(&g.node[0], "");
    d = open_at(&g.node[0], "&guard=on");
    assert_status(unlock(expect_lock(d, "x", &at_once)), DIBS_OK);
    dibs_close(d);
    await_key(&g.node[1], "dibs:server");
    order(&g.node[1], "REPLICAOF NO ONE");
    follow(&g.node[0], &g.node[1]);
    order(&g.node[0], "REPLICAOF NO ONE");
    d = open_at(&g.node[0], "&guard=on");
    expect_quiet(d, "x");
    dibs_close(d);
    group_stop(&g);
}

/* ---- The longest lease ------------------------------------------------------------------------ */

static int64_t longest_of(server *s)
{
    char reply[64];

    assert_int_equal(server_command(s,
                                    "EVAL \"return struct.unpack('>d', redis.call('GETRANGE', "
                                    "'dibs:server', 24, 31))\" 0",
                                    reply, sizeof reply),
                     0);
    return strtoll(reply + 1, NULL, 10) / 1000;
}

/* The marker does not allow for the lease that is asked for, as after a failover that lost the change of it. */
static void a_lease_that_the_marker_does_not_allow_for(void **state)
{
    const dibs_lock_options o = {.lease_ms = 2 * LONGEST_MS, .wait_ms = 20000};
    server s;
    dibs *d;

    (void)state;
    server_need(&s, NULL);
    vouch(&s, "");
    longest_ms = 2 * LONGEST_MS;
    d = open_at(&s, "&guard=on");
    assert_int_equal(longest_of(&s), 2 * LONGEST_MS);
    order(
        &s,
        "EVAL \"return redis.call('SETRANGE', 'dibs:server', 24, struct.pack('>d', 1500000))\" 0");
    assert_int_equal(longest_of(&s), LONGEST_MS);
    assert_status(unlock(expect_lock(d, "x", &patiently)), DIBS_OK);
    assert_int_equal(longest_of(&s), LONGEST_MS);
    assert_status(unlock(expect_lock(d, "x", &o)), DIBS_OK);
    assert_int_equal(longest_of(&s), 2 * LONGEST_MS);
    longest_ms = LONGEST_MS;
    dibs_close(d);
    server_stop(&s);
}

/* ---- The fence ------------------------------------------------------------------------------- */

#ifdef CLOCK_LIBRARY
/* Starts it ten minutes behind the others, with the clock that torture uses. */
static void start_behind(server *s, const scratch *folder)
{
    char path[SCRATCH_MAX + 16];
    int64_t behind = -600;
    FILE *f = fopen(scratch_file(folder, "clock", path, sizeof path), "w");

    assert_non_null(f);
    assert_int_equal(fwrite(&behind, sizeof behind, 1, f), 1);
    fclose(f);
    setenv("DIBS_TORTURE_CLOCK", path, 1);
    setenv("LD_PRELOAD", CLOCK_LIBRARY, 1);
    server_need(s, NULL);
    unsetenv("LD_PRELOAD");
    unsetenv("DIBS_TORTURE_CLOCK");
}

static void fences_grow_although_the_clock_is_behind(void **state)
{
    group g = {.replicas = 1};
    dibs *a, *b;
    dibs_grant *mine;
    uint64_t before, after;

    (void)state;
    longest_ms = 6000; /* a ceiling that is far enough ahead for a slow machine */
    server_need(&g.node[0], NULL);
    start_behind(&g.node[1], &g.node[0].folder);
    follow(&g.node[1], &g.node[0]);
    vouch(&g.node[0], "");
    a = open_at(&g.node[0], "&guard=on");
    unlock(expect_lock(a, "x", &at_once));
    await_key(&g.node[1], "dibs:server");
    cut_off(&g);
    mine = expect_lock(a, "y", &at_once); /* a lock that the replica has never heard of */
    before = dibs_grant_fence(mine);
    server_end(&g.node[0], SIGKILL);
    server_continue(&g.node[1]);
    order(&g.node[1], "REPLICAOF NO ONE");
    b = open_at(&g.node[1], "&guard=on");
    dibs_grant *other = expect_lock(b, "y", &patiently);
    after = dibs_grant_fence(other);
    print_message("# the clock is behind by %d s, the fence is %lld us ahead\n", 600,
                  (long long)(after - before));
    assert_true(after > before);
    longest_ms = LONGEST_MS;
    unlock(other);
    dibs_close(a);
    dibs_close(b);
    group_stop(&g);
}

#endif

/* ---- Replicas that acknowledge --------------------------------------------------------------- */

static void a_grant_without_replicas_is_not_held(void **state)
{
    group g;
    dibs *d;
    dibs_grant *mine = NULL;
    dibs_error err = {0};

    (void)state;
    group_start(&g, 1);
    vouch(&g.node[0], "&wait=1");
    d = open_at(&g.node[0], "&guard=on&wait=1&wait_ms=300");
    assert_status(unlock(expect_lock(d, "x", &patiently)), DIBS_OK);
    server_pause(&g.node[1]);
    assert_status(dibs_lock(d, "x", &(dibs_lock_options){.lease_ms = LONGEST_MS, .wait_ms = 700},
                            &mine, &err),
                  DIBS_UNAVAILABLE);
    assert_null(mine);
    if (!strstr(err.message, "replica"))
        fail_msg("%s", err.message);
    server_continue(&g.node[1]);
    mine = expect_lock(d, "x", &patiently); /* it was given back */
    assert_status(unlock(mine), DIBS_OK);
    dibs_close(d);
    group_stop(&g);
}

/* The holder on a master that was cut off loses its lock before the new master grants anything. */
static void a_renewal_without_replicas_does_not_count(void **state)
{
    group g;
    dibs *a, *b;
    dibs_grant *mine, *other;

    (void)state;
    group_start(&g, 2);
    vouch(&g.node[0], "&wait=1");
    a = open_at(&g.node[0], "&guard=on&wait=1&wait_ms=300");
    mine = expect_lock(a, "x", &patiently);
    /* The new master is there, and has the other replica; the old one still answers `a`. */
    order(&g.node[1], "REPLICAOF NO ONE");
    follow(&g.node[2], &g.node[1]);
    b = open_at(&g.node[1], "&guard=on&wait=1");
    expect_quiet(b, "x");
    other = expect_lock(b, "x", &patiently);
    assert_false(dibs_grant_held(mine));
    assert_true(dibs_grant_held(other));
    assert_status(unlock(other), DIBS_OK);
    unlock(mine);
    dibs_close(a);
    dibs_close(b);
    group_stop(&g);
}

/* A new master that no replica follows might not be the only one: it grants nothing at all. */
static void a_new_master_that_is_alone(void **state)
{
    group g;
    dibs *d;
    dibs_error err = {0};
    dibs_grant *mine = NULL;

    (void)state;
    group_start(&g, 1);
    vouch(&g.node[0], "&wait=1");
    await_key(&g.node[1], "dibs:server");
    order(&g.node[1], "REPLICAOF NO ONE");
    d = open_at(&g.node[1], "&guard=on&wait=1&wait_ms=50");
    sleep_ms(LONGEST_MS * 102 / 100 + 100);
    assert_status(try_lock(d, "x", &mine, &err), DIBS_UNAVAILABLE);
    if (!strstr(err.message, "not enough replicas"))
        fail_msg("%s", err.message);
    follow(&g.node[0], &g.node[1]);
    mine = expect_lock(d, "x", &patiently);
    assert_status(unlock(mine), DIBS_OK);
    dibs_close(d);
    group_stop(&g);
}

static void give_back(void *data, dibs_status status, dibs_grant *g, const dibs_error *err)
{
    (void)err;
    assert_status(status, DIBS_OK);
    *(uint64_t *)data = dibs_grant_fence(g);
    assert_status(unlock(g), DIBS_OK);
}

/* A hand-over by somebody else's release is looked at with a WAIT before it counts. */
static void a_queue_with_replicas(void **state)
{
    group g;
    dibs *a, *b;
    uint64_t id, fence;

    (void)state;
    group_start(&g, 1);
    vouch(&g.node[0], "&wait=1");
    a = open_at(&g.node[0], "&guard=on&wait=1");
    b = open_at(&g.node[0], "&guard=on&wait=1");
    for (int i = 0; i < 20; i++) {
        dibs_grant *mine = expect_lock(a, "x", &patiently);
        uint64_t before = dibs_grant_fence(mine);
        fence = 0;
        assert_status(start_lock(b, "x", &patiently, give_back, &fence, &id, NULL), DIBS_OK);
        while (waiters_of(a, "x") == 0)
            sleep_ms(1);
        assert_status(unlock(mine), DIBS_OK);
        while (take_all(b) == 0)
            sleep_ms(1);
        assert_true(fence > before);
    }
    dibs_close(a);
    dibs_close(b);
    group_stop(&g);
}

/* A counter that no replica has acknowledged is not known to be set; asked again with the same request, it is. */
static void cells_and_replicas(void **state)
{
    group g;
    dibs *d;
    int64_t value = 0;

    (void)state;
    group_start(&g, 1);
    d = open_at(&g.node[0], "&wait=1&wait_ms=1500");
    assert_status(dibs_counter_set(d, "n", 7, NULL, NULL), DIBS_OK);
    server_pause(&g.node[1]);
    assert_status(
        dibs_counter_add(d, "n", 1, &(dibs_counter_options){.request = "once"}, &value, NULL),
        DIBS_UNKNOWN);
    server_continue(&g.node[1]);
    assert_status(
        dibs_counter_add(d, "n", 1, &(dibs_counter_options){.request = "once"}, &value, NULL),
        DIBS_ALREADY);
    assert_int_equal(value, 8);
    dibs_close(d);
    group_stop(&g);
}

static bool has_a_blocked_client(void *ctx)
{
    char reply[4096];

    return server_command(ctx, "INFO clients", reply, sizeof reply) == 0 &&
           strstr(reply, "blocked_clients:1\r");
}

/* The master is demoted while a WAIT is blocked, which ends it with an error; then it is promoted again. */
static void demote_while_it_waits(group *g)
{
    char command[64];

    assert_true(wait_until(has_a_blocked_client, &g->node[0], 10000));
    snprintf(command, sizeof command, "REPLICAOF 127.0.0.1 %d", g->node[1].port);
    order(&g->node[0], command);
    order(&g->node[0], "REPLICAOF NO ONE");
    server_continue(&g->node[1]);
    assert_true(wait_until(has_replicas, &g->node[0], 10000));
}

static void a_master_that_is_demoted_while_it_waits(void **state)
{
    group g;
    dibs *d;
    dibs_request add = {.op = DIBS_OP_COUNTER_ADD,
                        .name = "n",
                        .number = 1,
                        .options.counter = &(dibs_counter_options){.request = "once"}};
    dibs_outcome o = {0};
    uint64_t id, fence = 0;

    (void)state;
    group_start(&g, 1);
    vouch(&g.node[0], "&wait=1");
    d = open_at(&g.node[0], "&guard=on&wait=1&wait_ms=10000");
    server_pause(&g.node[1]);
    assert_status(start_lock(d, "x", &patiently, give_back, &fence, &id, NULL), DIBS_OK);
    demote_while_it_waits(&g);
    while (take_all(d) == 0)
        sleep_ms(1);
    assert_true(fence > 0);
    server_pause(&g.node[1]);
    assert_status(dibs_start(d, &add, &id, NULL), DIBS_OK);
    demote_while_it_waits(&g);
    while (!dibs_take(d, &o))
        sleep_ms(1);
    assert_status(o.err.status, DIBS_OK);
    assert_int_equal(o.number, 1);
    dibs_close(d);
    group_stop(&g);
}

/* ---- Without the guard ------------------------------------------------------------------------ */

static void point_to(const char *path, const server *s)
{
    unlink(path);
    assert_int_equal(symlink(s->socket, path), 0);
}

/* As behind a managed endpoint: the server is demoted and goes on, and the address leads to the other one. */
static void an_endpoint_that_moves_without_a_cut(void **state)
{
    group g;
    dibs *d;
    char path[SCRATCH_MAX + 16], url[SCRATCH_MAX + 64];

    (void)state;
    group_start(&g, 1);
    scratch_file(&g.node[0].folder, "endpoint", path, sizeof path);
    point_to(path, &g.node[0]);
    snprintf(url, sizeof url, "redis+unix://%s", path);
    d = expect_open(url, NULL);
    assert_status(unlock(expect_lock(d, "x", &at_once)), DIBS_OK);
    order(&g.node[1], "REPLICAOF NO ONE");
    point_to(path, &g.node[1]);
    follow(&g.node[0], &g.node[1]);
    assert_status(unlock(expect_lock(d, "x", &patiently)), DIBS_OK);
    dibs_close(d);
    group_stop(&g);
}

/* ---- Services that withhold commands ---------------------------------------------------------- */

static void services_without_info_or_wait(void **state)
{
    static const char *const no_info[] = {"--rename-command", "INFO", "", NULL};
    static const char *const no_wait[] = {"--rename-command", "WAIT", "", NULL};
    server s;
    dibs *d;

    (void)state;
    server_need(&s, no_info);
    expect_refused(url_of(&s, "&guard=on"), NULL, DIBS_DENIED, "a service that withholds INFO");
    dibs_close(open_at(&s, ""));
    server_stop(&s);
    server_need(&s, no_wait);
    expect_refused(url_of(&s, "&guard=on&wait=1"), NULL, DIBS_UNSUPPORTED, "WAIT");
    vouch(&s, "");
    d = open_at(&s, "&guard=on");
    assert_status(unlock(expect_lock(d, "x", &at_once)), DIBS_OK);
    dibs_close(d);
    server_stop(&s);
}

static void parameters(void **state)
{
    (void)state;
    expect_refused("redis://127.0.0.1:1?guard=maybe", NULL, DIBS_INVALID, "on, off or vouch");
    expect_refused("redis://127.0.0.1:1?wait=-1", NULL, DIBS_INVALID, "wait");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters),
        cmocka_unit_test(a_restart_that_loses_the_data),
        cmocka_unit_test(a_quiet_period_ends),
        cmocka_unit_test(a_failover_that_loses_the_last_grant),
        cmocka_unit_test(the_queue_is_not_served_meanwhile),
        cmocka_unit_test(a_server_that_is_promoted_again),
        cmocka_unit_test(a_lease_that_the_marker_does_not_allow_for),
#ifdef CLOCK_LIBRARY
        cmocka_unit_test(fences_grow_although_the_clock_is_behind),
#endif
        cmocka_unit_test(a_grant_without_replicas_is_not_held),
        cmocka_unit_test(a_renewal_without_replicas_does_not_count),
        cmocka_unit_test(a_new_master_that_is_alone),
        cmocka_unit_test(a_queue_with_replicas),
        cmocka_unit_test(cells_and_replicas),
        cmocka_unit_test(a_master_that_is_demoted_while_it_waits),
        cmocka_unit_test(an_endpoint_that_moves_without_a_cut),
        cmocka_unit_test(services_without_info_or_wait),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
