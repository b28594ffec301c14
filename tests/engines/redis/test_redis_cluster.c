/* redis+cluster: three masters with a replica each, all private. Locks are spread over the masters; a master is killed or
 * stopped; slots are moved while locks, counters and runs are busy in them. */
#define _GNU_SOURCE
#include "support/calls.h"
#include "support/certificates.h"
#include "support/clock.h"
#include "support/cluster.h"
#include "support/test.h"

#include "engines/redis/redis.h"
#include "fixture.h"
#include "survival.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS 1500 /* of a master, before its replica takes over */
#define LEASE_MS   4000 /* max_lease in cases with a failover */
#define GUARDED    "?wait=1&max_lease=4000"
#define SPAN_MS    60000
#define WORKERS    3
#define MOVES      24

static cluster the;
static const dibs_lock_options at_once = {.lease_ms = LEASE_MS, .wait_ms = DIBS_NO_WAIT};
static const dibs_lock_options patiently = {.lease_ms = LEASE_MS, .wait_ms = 30000};

static void vouch(const char *parameters)
{
    char more[128];

    snprintf(more, sizeof more, "%s&guard=vouch", parameters);
    dibs_close(expect_open(cluster_url(&the, more), NULL));
}

/* The first name like this whose lock is (or is not) on that master. */
static void name_on(int master, bool there, const char *like, char out[32])
{
    for (int i = 0; i < 1000; i++) {
        snprintf(out, 32, "%s-%d", like, i);
        if ((cluster_master_of(&the, cluster_slot(out)) == master) == there)
            return;
    }
    fail_msg("no name like %s", like);
}

/* ---- Where things are ------------------------------------------------------------------------ */

static void urls(void **state)
{
    char url[128];
    server alone;

    (void)state;
    expect_refused("redis+cluster://127.0.0.1:1/3", NULL, DIBS_INVALID, "only database 0");
    expect_refused("redis+cluster://", NULL, DIBS_INVALID, "redis+cluster");
    expect_refused("redis+cluster://127.0.0.1:1?tls=maybe", NULL, DIBS_INVALID, "yes or no");
    expect_refused("redis+cluster://127.0.0.1:1?prefix=a:", NULL, DIBS_INVALID, "colon");
    snprintf(url, sizeof url, "redis+cluster://127.0.0.1:%d", free_port());
    expect_refused(url, NULL, DIBS_UNAVAILABLE, "cannot connect");
    expect_refused(the.node[0].url, NULL, DIBS_UNSUPPORTED, "redis+cluster://");
    server_need(&alone, NULL);
    snprintf(url, sizeof url, "redis+cluster://127.0.0.1:%d", alone.port);
    expect_refused(url, NULL, DIBS_INVALID, "not in cluster mode");
    server_stop(&alone);
    /* One address is enough, also a replica's, and one that is dead does not matter. */
    snprintf(url, sizeof url, "redis+cluster://127.0.0.1:%d,127.0.0.1:%d", free_port(),
             the.node[CLUSTER_NODES - 1].port);
    dibs_close(expect_open(url, NULL));
}

static size_t count_locks(dibs *d, const char *start, bool idle)
{
    dibs_lock_report *report = NULL;
    size_t count;

    assert_status(dibs_lock_list(d, start, &(dibs_lock_list_options){.idle = idle}, &report, NULL),
                  DIBS_OK);
    count = dibs_lock_report_count(report);
    dibs_lock_report_free(report);
    return count;
}

static void locks_of_all_masters(void **state)
{
    dibs *d;
    dibs_grant *g[100];
    bool seen[CLUSTER_NODES] = {false};
    char name[32];

    (void)state;
    vouch(GUARDED);
    d = expect_open(cluster_url(&the, GUARDED), NULL);
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "many-%d", i);
        seen[cluster_master_of(&the, cluster_slot(name))] = true;
        g[i] = expect_lock(d, name, &at_once);
    }
    for (int i = 0; i < CLUSTER_MASTERS; i++)
        assert_true(seen[i]);
    assert_int_equal(count_locks(d, "many-", false), 100);
    for (int i = 0; i < 100; i++)
        assert_status(unlock(g[i]), DIBS_OK);
    assert_int_equal(count_locks(d, "many-", false), 0);
    assert_int_equal(count_locks(d, "many-", true), 100);
    dibs_close(d);
}

/* ---- Failover -------------------------------------------------------------------------------- */

typedef struct expected {
    int slot, old;
} expected;

static bool is_taken_over(void *ctx)
{
    expected *e = ctx;
    int now = cluster_master_of(&the, e->slot);

    return now >= 0 && now != e->old;
}

/* All but the old one. */
static bool others_know(void *ctx)
{
    expected *e = ctx;

    for (int i = 0; i < CLUSTER_NODES; i++) {
        int now = i == e->old ? -1 : cluster_master_by(&the, i, e->slot);
        if (i != e->old && (now < 0 || now == e->old))
            return false;
    }
    return true;
}

static bool has_replica(void *ctx)
{
    return cluster_replica_of(&the, *(int *)ctx) >= 0;
}

static dibs_status try_for(dibs *d, const char *name, int64_t wait_ms)
{
    dibs_grant *g = NULL;
    dibs_error err = {0};

    dibs_lock(d, name, &(dibs_lock_options){.lease_ms = LEASE_MS, .wait_ms = wait_ms}, &g, &err);
    unlock(g);
    return err.status;
}

/* A lock elsewhere is served all the time; here, once the quiet period is over. */
static void a_master_is_lost(int signal)
{
    dibs *d = expect_open(cluster_url(&the, GUARDED), NULL);
    char here[32], also[32], elsewhere[32];
    int old = cluster_master_of(&the, cluster_slot("failover")), now;
    dibs_grant *g, *other;
    uint64_t before;
    int64_t since, took;
    char key[64];
    survival k;

    assert_true(wait_until(has_replica, &old, SPAN_MS));
    name_on(old, true, "here", here);
    name_on(old, true, "also", also);
    snprintf(key, sizeof key, "kept-%d", signal);
    name_on(old, false, "elsewhere", elsewhere);
    g = expect_lock(d, here, &at_once);
    before = dibs_grant_fence(g);
    survival_write(&k, d, key);
    if (signal == SIGKILL)
        server_end(&the.node[old], SIGKILL);
    else
        server_pause(&the.node[old]);
    other = expect_lock(d, elsewhere, &at_once);
    assert_true(wait_until(is_taken_over, &(expected){cluster_slot(here), old}, SPAN_MS));
    assert_status(unlock(other), DIBS_OK);
    /* It has no replica yet that could acknowledge anything: the old master becomes that. */
    assert_int_not_equal(try_for(d, also, 500), DIBS_OK);
    if (signal == SIGKILL)
        assert_int_equal(server_restart(&the.node[old]), 0);
    else
        server_continue(&the.node[old]);
    since = clock_ms();
    unlock(g);
    g = expect_lock(d, here, &patiently);
    took = clock_ms() - since;
    print_message("# a lock %lld ms after the old master was back\n", (long long)took);
    assert_true(took >= LEASE_MS / 2); /* there was a quiet period */
    assert_true(dibs_grant_fence(g) > before);
    assert_status(unlock(g), DIBS_OK);
    survival_check(&k, d); /* its only replica had acknowledged all of it */
    now = cluster_master_of(&the, cluster_slot(here));
    assert_true(wait_until(has_replica, &now, SPAN_MS));
    dibs_close(d);
}

static void a_killed_and_a_stopped_master(void **state)
{
    (void)state;
    vouch(GUARDED);
    a_master_is_lost(SIGKILL);
    a_master_is_lost(SIGSTOP);
}

static void order(int node, const char *command)
{
    char reply[256];

    assert_int_equal(cluster_ask(&the, node, command, reply, sizeof reply), 0);
    if (!strstr(reply, "+OK"))
        fail_msg("%s: %s", command, reply);
}

static void forget(int node, int other)
{
    char command[128], reply[64], id[48] = "";

    assert_int_equal(cluster_ask(&the, other, "CLUSTER MYID", reply, sizeof reply), 0);
    assert_int_equal(sscanf(reply, "$40\r\n%40s", id), 1);
    snprintf(command, sizeof command, "CLUSTER FORGET %s", id);
    order(node, command);
}

/* The master forgets the others, and does not hear that its replica has taken over: it goes on to be reached by clients,
 * says that the cluster is down, and has its own old map. */
static void a_master_that_was_cut_off(void **state)
{
    dibs *d = expect_open(cluster_url(&the, "?guard=off"), NULL);
    int old = cluster_master_of(&the, cluster_slot("cut")), heir;
    int64_t since;

    (void)state;
    assert_true(wait_until(has_replica, &old, SPAN_MS));
    heir = cluster_replica_of(&the, old);
    assert_status(unlock(expect_lock(d, "cut", &at_once)), DIBS_OK);
    for (int i = 0; i < CLUSTER_NODES; i++)
        if (i != old)
            forget(old, i);
    order(heir, "CLUSTER FAILOVER TAKEOVER");
    assert_true(wait_until(others_know, &(expected){cluster_slot("cut"), old}, SPAN_MS));
    since = clock_ms();
    assert_status(try_for(d, "cut", 20000), DIBS_OK);
    print_message("# a lock %lld ms after the others knew\n", (long long)(clock_ms() - since));
    dibs_close(d);
}

/* An operator has a replica take over, which loses nothing: the holder keeps its lock, and others wait all the same. */
static void a_planned_failover(void **state)
{
    dibs *d = expect_open(cluster_url(&the, GUARDED), NULL);
    int old = cluster_master_of(&the, cluster_slot("planned")), heir;
    char also[32], reply[256];
    dibs_grant *mine;
    int64_t since;

    (void)state;
    assert_true(wait_until(has_replica, &old, SPAN_MS));
    heir = cluster_replica_of(&the, old);
    name_on(old, true, "plan", also);
    mine =
        expect_lock(d, "planned", &(dibs_lock_options){.lease_ms = 4000, .wait_ms = DIBS_NO_WAIT});
    assert_int_equal(cluster_ask(&the, heir, "CLUSTER FAILOVER", reply, sizeof reply), 0);
    assert_true(wait_until(is_taken_over, &(expected){cluster_slot("planned"), old}, SPAN_MS));
    since = clock_ms();
    assert_status(unlock(expect_lock(d, also, &patiently)), DIBS_OK);
    print_message("# a lock %lld ms after the planned failover, the holder %s its own\n",
                  (long long)(clock_ms() - since), dibs_grant_held(mine) ? "kept" : "lost");
    unlock(mine);
    dibs_close(d);
}

/* ---- The longest lease ------------------------------------------------------------------------ */

/* In the markers of all buckets of that master, as far as there are any: the shortest, in ms. */
static int64_t longest_on(int master)
{
    char reply[64];

    assert_int_equal(cluster_ask(&the, master,
                                 "EVAL \"local s = 1e15 for _, k in ipairs(redis.call('KEYS', "
                                 "'dibs{???}:server')) do s = math.min(s, (struct.unpack('>d', "
                                 "redis.call('GETRANGE', k, 24, 31)))) end return s\" 0",
                                 reply, sizeof reply),
                     0);
    return strtoll(reply + 1, NULL, 10) / 1000;
}

/* A deployment raises max_lease: the markers are this server's already, and must allow for more. */
static void a_longer_lease_is_kept(void **state)
{
    int master = cluster_master_of(&the, cluster_slot("raised"));
    int64_t before = longest_on(master);
    char more[64];
    dibs *d;

    (void)state;
    snprintf(more, sizeof more, "?wait=1&max_lease=%lld", (long long)before + 1000);
    d = expect_open(cluster_url(&the, more), NULL);
    assert_status(unlock(expect_lock(d, "raised", &patiently)), DIBS_OK);
    assert_int_equal(longest_on(master), before + 1000);
    dibs_close(d);
}

/* ---- Moving slots under load ------------------------------------------------------------------- */

static const char *const names[] = {"moved-1", "moved-2"};
static atomic_int inside[2];
static atomic_bool over;
static _Atomic uint64_t last[2];

typedef struct worker {
    pthread_t thread;
    dibs *d;
    int rounds, added, violations;
    int64_t slowest;
    dibs_error err;
} worker;

static bool take_turn(worker *w, int i)
{
    const dibs_lock_options o = {.lease_ms = 10000, .wait_ms = 8000};
    dibs_grant *g = NULL;
    int64_t since = clock_ms(), number;

    if (dibs_lock(w->d, names[i], &o, &g, &w->err) != DIBS_OK)
        return false;
    w->slowest = clock_ms() - since > w->slowest ? clock_ms() - since : w->slowest;
    w->violations += atomic_fetch_add(&inside[i], 1) != 0;
    w->violations += dibs_grant_fence(g) <= atomic_load(&last[i]);
    atomic_store(&last[i], dibs_grant_fence(g));
    if (dibs_counter_add(w->d, names[i], 1, NULL, &number, &w->err) != DIBS_OK)
        return false;
    w->added++;
    atomic_fetch_sub(&inside[i], 1);
    w->rounds++;
    return dibs_unlock(&g, &w->err) == DIBS_OK;
}

static void *work(void *arg)
{
    worker *w = arg;

    for (int i = 0; !atomic_load(&over) && w->err.status == DIBS_OK; i++)
        if (!take_turn(w, i % 2))
            break;
    return NULL;
}

static void start_workers(worker w[WORKERS], const char *url)
{
    for (int i = 0; i < WORKERS; i++) {
        w[i] = (worker){.d = expect_open(url, NULL)};
        assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
}

static void end_workers(worker w[WORKERS])
{
    int rounds = 0, added = 0;
    int64_t number = 0, sum = 0;

    atomic_store(&over, true);
    for (int i = 0; i < WORKERS; i++)
        pthread_join(w[i].thread, NULL);
    for (int i = 0; i < WORKERS; i++) {
        if (w[i].err.status != DIBS_OK)
            fail_msg("worker %d: %s", i, w[i].err.message);
        assert_int_equal(w[i].violations, 0);
        print_message("# worker %d: %d rounds, the slowest lock took %lld ms\n", i, w[i].rounds,
                      (long long)w[i].slowest);
        rounds += w[i].rounds;
        added += w[i].added;
    }
    for (int i = 0; i < 2; i++) {
        assert_status(dibs_counter_get(w[0].d, names[i], &number, NULL), DIBS_OK);
        sum += number;
    }
    assert_int_equal(sum, added);
    assert_true(rounds > WORKERS);
    for (int i = 0; i < WORKERS; i++)
        dibs_close(w[i].d);
}

/* With a quiet period of a minute, which a move must not begin. */
static void moved_slots_are_served(void **state)
{
    const char *more = "?wait=1&max_lease=60000";
    worker w[WORKERS];

    (void)state;
    vouch(more);
    start_workers(w, cluster_url(&the, more));
    for (int i = 0; i < MOVES; i++) {
        int slot = cluster_slot(names[i % 2]), from = cluster_master_of(&the, slot), to = from;
        do
            to = (to + 1) % CLUSTER_NODES;
        while (!cluster_is_master(&the, to));
        assert_int_equal(cluster_move_slot(&the, slot, from, to), 0);
        sleep_ms(150);
        assert_true(wait_until(is_taken_over, &(expected){slot, from}, SPAN_MS));
    }
    end_workers(w);
}

/* ---- Many addresses, and TLS ------------------------------------------------------------------- */

/* A cluster of one server, which says that it is at another address each time. */
static void addresses_that_change(void **state)
{
    const char *const extra[] = {"--cluster-enabled", "yes", NULL};
    char command[64];
    server alone;
    fixture f;
    dibs__redis *r;
    dibs__reply reply;

    (void)state;
    server_need(&alone, extra);
    assert_int_equal(server_command(&alone, "CLUSTER ADDSLOTSRANGE 0 16383", NULL, 0), 0);
    snprintf(command, sizeof command, "redis+cluster://127.0.0.1:%d?guard=off", alone.port);
    assert_status(fixture_open(&f, command, "aaaaaaaaaaaaaaaa", 5000, NULL), DIBS_OK);
    r = (dibs__redis *)f.engine;
    for (int i = 0; i < DIBS__NODES_MAX + 10; i++) {
        snprintf(command, sizeof command, "CONFIG SET cluster-announce-ip 127.1.%d.%d", i / 250,
                 1 + i % 250);
        assert_int_equal(server_command(&alone, command, NULL, 0), 0);
        assert_true(dibs__cluster_refresh(r->address.cluster, NULL, fixture_until(&f)));
    }
    assert_int_equal(server_command(&alone, "CONFIG SET cluster-announce-ip 127.0.0.1", NULL, 0),
                     0);
    assert_status(fixture_enter(&f, "x", "me", 1, 0, &reply, NULL), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__GRANTED);
    fixture_close(&f);
    server_stop(&alone);
}

static void tls(void **state)
{
    scratch folder;
    cluster c;
    char more[SCRATCH_MAX + 64];
    dibs *d;

    (void)state;
    assert_int_equal(scratch_make(&folder), 0);
    make_certificates(&folder);
    assert_int_equal(cluster_start_tls(&c, 5000, folder.path), 0);
    snprintf(more, sizeof more, "?tls=yes&ca=%s/ca2.crt&guard=off", folder.path);
    expect_refused(cluster_url(&c, more), NULL, DIBS_DENIED, "certificate");
    expect_refused(cluster_url(&c, "?guard=off"), NULL, DIBS_UNAVAILABLE, "redis at");
    snprintf(more, sizeof more, "?tls=yes&ca=%s/ca.crt&guard=vouch&wait=1", folder.path);
    d = expect_open(cluster_url(&c, more), NULL);
    for (int i = 0; i < 20; i++) {
        snprintf(more, sizeof more, "tls-%d", i);
        assert_status(unlock(expect_lock(d, more, &at_once)), DIBS_OK);
    }
    dibs_close(d);
    cluster_stop(&c);
    scratch_remove(&folder);
}

/* ---- Rights ---------------------------------------------------------------------------------- */

static void the_least_rights(void **state)
{
    char reply[256], url[600], *at;
    dibs *d;

    (void)state;
    for (int i = 0; i < CLUSTER_NODES; i++) {
        assert_int_equal(cluster_ask(&the, i,
                                     "ACL SETUSER locks on >secret ~dibs{* &dibs:* +@read +@write "
                                     "+@scripting +@connection +@pubsub +time +info +wait "
                                     "+cluster|slots",
                                     reply, sizeof reply),
                         0);
        assert_non_null(strstr(reply, "+OK"));
    }
    vouch("?wait=1");
    strcpy(url, cluster_url(&the, "?wait=1"));
    at = strstr(url, "//") + 2;
    memmove(at + strlen("locks:secret@"), at, strlen(at) + 1);
    memcpy(at, "locks:secret@", strlen("locks:secret@"));
    d = expect_open(url, NULL);
    assert_status(unlock(expect_lock(d, "allowed", NULL)), DIBS_OK);
    dibs_close(d);
    for (int i = 0; i < CLUSTER_NODES; i++)
        cluster_ask(&the, i, "ACL SETUSER locks -cluster|slots", reply, sizeof reply);
    expect_refused(url, NULL, DIBS_DENIED, "may not do that");
}

static int start(void **state)
{
    (void)state;
    if (!server_available())
        return server_required() ? -1 : 0;
    return cluster_start(&the, TIMEOUT_MS, NULL);
}

static int stop(void **state)
{
    (void)state;
    cluster_stop(&the);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(urls),
        cmocka_unit_test(locks_of_all_masters),
        cmocka_unit_test(a_killed_and_a_stopped_master), /* a marker keeps the longest max_lease */
        cmocka_unit_test(a_planned_failover),
        cmocka_unit_test(a_longer_lease_is_kept),
        cmocka_unit_test(moved_slots_are_served),
        cmocka_unit_test(addresses_that_change),
        cmocka_unit_test(tls),
        cmocka_unit_test(the_least_rights),
        cmocka_unit_test(a_master_that_was_cut_off), /* for good */
    };

    if (!server_available() && !server_required()) {
        printf("1..0 # SKIP no redis-server\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, start, stop);
}
