/* Faults that hit ZooKeeper and etcd alike: partitions, sessions that end while holding and while
 * waiting, answers that are cut anywhere, servers that are silent, dead or back again.
 *
 * usage: test_entries_faults zookeeper|etcd [PATTERN] */
#define _GNU_SOURCE
#include "kit.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ensemble_kind kind;

static void cut_off(proxy *p)
{
    proxy_freeze(p, PROXY_UP);
    proxy_freeze(p, PROXY_DOWN);
}

/* ---- Partitions ------------------------------------------------------------------------------ */

/* The holder that is cut off knows that it is over before anybody else has the lock. */
static void a_holder_that_is_cut_off_lets_go_first(void **state)
{
    static const struct {
        bool up, down;
    } ways[] = {{true, true}, {true, false}, {false, true}};
    dibs *b = open_here();

    (void)state;
    for (int i = 0; i < 3; i++) {
        proxy *p = proxy_here();
        dibs *a = open_through(p);
        loss_note note = {0};
        dibs_grant *g =
            take(a, "cut-off", &(dibs_lock_options){.on_lost = note_loss, .data = &note});
        uint64_t fence = dibs_grant_fence(g);
        job *j = job_start_against(b, "cut-off", NULL, g);
        int64_t start;

        wait_for_queue(b, "cut-off", 1, 1);
        start = clock_ms();
        if (ways[i].up)
            proxy_swallow(p, PROXY_UP, 0);
        if (ways[i].down)
            proxy_swallow(p, PROXY_DOWN, 0);
        job_join_held(j);
        assert_false(j->rival_held);
        assert_true(j->fence > fence);
        /* A one-way partition may be mended by a new connection only when it lets bytes pass. */
        assert_in_range(j->at - start, 0, 2 * SESSION_MS + SOON_MS);
        assert_true(loss_within(&note, SOON_MS));
        assert_true(note.at <= j->at + 50);
        assert_int_equal(dibs_grant_loss(g), atomic_load(&note.why));
        proxy_heal(p);
        proxy_drop_all(p, false);
        assert_status(unlock(g), DIBS_LOST);
        assert_true(dibs_grant_held(j->g));
        assert_status(unlock(j->g), DIBS_OK);
        g = take(a, "cut-off", NULL); /* under a new session */
        assert_true(dibs_grant_fence(g) > j->fence);
        assert_status(unlock(g), DIBS_OK);
        close_handle(a);
    }
}

/* A short one costs nothing. */
static void a_short_partition_is_bridged(void **state)
{
    proxy *p = proxy_here();
    char hosts[32];
    dibs *a, *b = open_here();
    dibs_grant *g;
    job *j;

    (void)state;
    snprintf(hosts, sizeof hosts, "127.0.0.1:%d", proxy_port(p));
    a = open_url(url_lasting(hosts));
    g = take(a, "bridged", NULL);
    j = job_start(b, "bridged", NULL);
    wait_for_queue(b, "bridged", 1, 1);
    for (int i = 0; i < 5; i++) {
        proxy_drop_all(p, false);
        sleep_ms(200);
        assert_true(dibs_grant_held(g));
    }
    assert_status(try_lock(a, "bridged-other"), DIBS_OK);
    assert_false(atomic_load(&j->done));
    assert_status(unlock(g), DIBS_OK);
    job_join_held(j);
    assert_status(unlock(j->g), DIBS_OK);
}

/* The dying entry is never granted; the waiter stands in the queue again, behind who came meanwhile, and
 * somebody is told. */
static void a_waiter_whose_session_ends_enters_again(void **state)
{
    proxy *p = proxy_here();
    dibs *a = open_here(), *b = open_logged(url_at(proxy_port(p), ""));
    dibs_grant *g = take(a, "expired-waiter", NULL);
    job *lost = job_start(b, "expired-waiter", NULL), *later;

    (void)state;
    wait_for_queue(a, "expired-waiter", 1, 1);
    cut_off(p);
    wait_for_queue(a, "expired-waiter", 1, 0);
    later = job_start(a, "expired-waiter", &(dibs_lock_options){.owner = "later"});
    wait_for_queue(a, "expired-waiter", 1, 1);
    proxy_heal(p);
    proxy_drop_all(p, false);
    wait_for_queue(a, "expired-waiter", 1, 2);
    assert_true(atomic_load(&log_lines) > 0);
    assert_status(unlock(g), DIBS_OK);
    job_join_held(later);
    assert_false(atomic_load(&lost->done));
    assert_status(unlock(later->g), DIBS_OK);
    job_join_held(lost);
    assert_true(lost->fence > later->fence);
    assert_status(unlock(lost->g), DIBS_OK);
}

/* The lock is free and the waiter's entry is next, but its session is over: no grant on it. */
static void a_waiter_that_is_cut_off_gets_no_dead_grant(void **state)
{
    proxy *p = proxy_here();
    dibs *a = open_here(), *b = open_through(p);
    dibs_grant *g = take(a, "dead-grant", NULL);
    job *j = job_start(b, "dead-grant", NULL);

    (void)state;
    wait_for_queue(a, "dead-grant", 1, 1);
    cut_off(p);
    assert_status(unlock(g), DIBS_OK);
    g = take(a, "dead-grant", NULL); /* when the other's session has ended */
    assert_false(atomic_load(&j->done));
    proxy_heal(p);
    proxy_drop_all(p, false);
    wait_for_queue(a, "dead-grant", 1, 1);
    assert_false(atomic_load(&j->done));
    assert_status(unlock(g), DIBS_OK);
    job_join_held(j);
    assert_status(unlock(j->g), DIBS_OK);
}

/* ---- Answers that never come ----------------------------------------------------------------- */

/* The entry was made, the answer is lost, and the session ends before anybody can ask again. */
static void an_entry_of_an_old_session_is_not_taken_for_ours(void **state)
{
    proxy *p = proxy_here();
    dibs *a = open_through(p), *b = open_here();
    job *j;

    (void)state;
    unlock(take(a, "old-session", NULL));
    proxy_swallow(p, PROXY_DOWN, 0);
    j = job_start(a, "old-session", NULL);
    wait_for_queue(b, "old-session", 1, 0); /* made, and nobody knows */
    wait_for_queue(b, "old-session", 0, 0); /* gone with its session */
    assert_false(atomic_load(&j->done));
    proxy_heal(p);
    proxy_drop_all(p, false);
    job_join_held(j);
    assert_int_equal(holders_of(b, "old-session"), 1);
    assert_status(try_lock(b, "old-session"), DIBS_BUSY);
    assert_status(unlock(j->g), DIBS_OK);
    assert_int_equal(holders_of(b, "old-session"), 0);
}

static void cut_at(proxy *p, dibs *d, dibs *witness, proxy_way way, int64_t k, uint64_t *last)
{
    dibs_lock_report *r = NULL;
    dibs_grant *g;

    proxy_cut(p, way, k, k % 2 != 0);
    g = take(d, "cut", NULL);
    assert_true(dibs_grant_held(g));
    assert_true(dibs_grant_fence(g) > *last);
    *last = dibs_grant_fence(g);
    assert_status(dibs_lock_inspect(witness, "cut", &r, NULL), DIBS_OK);
    if (dibs_lock_report_at(r, 0)->holder_count != 1 ||
        dibs_lock_report_at(r, 0)->waiter_count != 0)
        fail_msg("cut at byte %d %s: an entry was left behind", (int)k,
                 way == PROXY_UP ? "up" : "down");
    assert_true(dibs_lock_report_at(r, 0)->holders[0]->fence == *last);
    dibs_lock_report_free(r);
    unlock(g); /* whatever it says */
    proxy_heal(p);
    g = take(witness, "cut", NULL);
    assert_true(dibs_grant_fence(g) > *last);
    *last = dibs_grant_fence(g);
    unlock(g);
}

/* Reply or request lost at any byte: one entry, one grant, nothing left behind. */
static void an_exchange_may_be_cut_anywhere(void **state)
{
    proxy *p = proxy_here();
    dibs *d = open_through(p), *witness = open_here();
    proxy_counts counts;
    uint64_t last = 0;

    (void)state;
    unlock(take(d, "cut", NULL));
    unlock(take(d, "cut", NULL));
    proxy_reset_counts(p);
    unlock(take(d, "cut", NULL));
    proxy_read(p, &counts);
    for (int way = 0; way < 2; way++)
        for (int64_t k = 0; k <= counts.bytes[way]; k += 1 + counts.bytes[way] / 24)
            cut_at(p, d, witness, (proxy_way)way, k, &last);
    print_message("# %d bytes up, %d down\n", (int)counts.bytes[0], (int)counts.bytes[1]);
}

/* The same for a waiter: it is woken all the same. */
static void a_waiters_connection_may_be_cut_anywhere(void **state)
{
    proxy *p = proxy_here();
    dibs *a = open_here(), *b = open_through(p);

    (void)state;
    for (int64_t k = 0; k < 400; k += 37) {
        dibs_grant *g = take(a, "cut-waiter", NULL);
        job *j;
        proxy_cut(p, PROXY_DOWN, k, k % 2 != 0);
        j = job_start(b, "cut-waiter", NULL);
        wait_for_queue(a, "cut-waiter", 1, 1);
        assert_status(unlock(g), DIBS_OK);
        job_join_held(j);
        assert_status(unlock(j->g), DIBS_OK);
        proxy_heal(p);
        wait_for_queue(a, "cut-waiter", 0, 0);
    }
}

static void a_silent_server_keeps_nobody(void **state)
{
    proxy *p = proxy_here();
    dibs *d = open_through(p);
    dibs_lock_options o = {.wait_ms = 700};
    dibs_grant *g = NULL;

    (void)state;
    unlock(take(d, "silent", NULL));
    for (int i = 0; i < 3; i++) {
        int64_t start = clock_ms();
        if (i == 0)
            cut_off(p);
        else if (i == 1)
            proxy_drip(p, PROXY_DOWN, 300);
        else
            ensemble_pause(&the_server, 0);
        dibs_status status = dibs_lock(d, "silent", &o, &g, NULL);
        if (i == 2)
            ensemble_continue(&the_server, 0);
        proxy_heal(p);
        print_message("# silent in way %d: %s\n", i, dibs_status_name(status));
        assert_true(status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN);
        assert_null(g);
        assert_in_range(clock_ms() - start, 600, 700 + SOON_MS);
        proxy_drop_all(p, false);
        assert_status(unlock(take(d, "silent", NULL)), DIBS_OK);
    }
    wait_for_queue(d, "silent", 0, 0);
}

/* Its release is not heard: it passes on with the session, and the handle goes on. */
static void a_release_that_is_not_heard(void **state)
{
    proxy *p = proxy_here();
    dibs *a = open_url(url_at(proxy_port(p), "")), *b = open_here();
    dibs_grant *g = take(a, "unheard", NULL);
    dibs_status status;
    job *j = job_start(b, "unheard", NULL);

    (void)state;
    wait_for_queue(b, "unheard", 1, 1);
    proxy_swallow(p, PROXY_UP, 0);
    status = unlock(g);
    assert_true(status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN || status == DIBS_LOST);
    proxy_heal(p);
    proxy_drop_all(p, false);
    job_join_held(j);
    assert_status(unlock(j->g), DIBS_OK);
    assert_status(unlock(take(a, "unheard", NULL)), DIBS_OK);
    wait_for_queue(b, "unheard", 0, 0);
}

/* ---- Servers that come and go ---------------------------------------------------------------- */

/* One grant of every job, in whatever order they come: each higher than the one before it on its lock. */
static void serve_all(job *const j[], size_t count, uint64_t last[], size_t locks)
{
    int64_t end = clock_ms() + 2 * LONG_MS;
    size_t served = 0;

    while (served < count) {
        assert_true(clock_ms() < end);
        for (size_t i = 0; i < count; i++)
            if (j[i]->thread && job_done_within(j[i], 0)) {
                job_join_held(j[i]);
                assert_true(j[i]->fence > last[i % locks]);
                last[i % locks] = j[i]->fence;
                assert_status(unlock(j[i]->g), DIBS_OK);
                served++;
            }
        sleep_ms(5);
    }
}

/* Sessions are kept on disk: who holds goes on holding, and nobody is forgotten. On a slow machine the
 * restart may outlast a session; then who waits stands in the queue again. */
static void a_restart_grants_nothing_twice(void **state)
{
    enum { LOCKS = 4, WAITERS = 12 };
    dibs *a = open_here(), *b = open_here(), *c = open_here();
    dibs_grant *g[LOCKS];
    uint64_t last[LOCKS];
    job *j[WAITERS];
    char name[32];

    (void)state;
    for (int i = 0; i < LOCKS; i++) {
        snprintf(name, sizeof name, "restart-%d", i);
        g[i] = take(a, name, NULL);
        last[i] = dibs_grant_fence(g[i]);
    }
    for (int i = 0; i < WAITERS; i++) {
        snprintf(name, sizeof name, "restart-%d", i % LOCKS);
        j[i] = job_start(i % 2 ? b : c, name, NULL);
        wait_for_queue(a, name, 1, (size_t)(i / LOCKS + 1));
    }
    ensemble_end(&the_server, 0, SIGKILL);
    assert_int_equal(ensemble_restart(&the_server, 0), 0);
    for (int i = 0; i < LOCKS; i++)
        unlock(g[i]); /* LOST, where it took longer than the session */
    serve_all(j, WAITERS, last, LOCKS);
}

static void a_server_that_is_down(void **state)
{
    char port[16];
    const char *const words[] = {"127.0.0.1", port, NULL};
    int64_t start = clock_ms();

    (void)state;
    need_server();
    snprintf(port, sizeof port, "%d", free_port());
    refused(url_at(atoi(port), ""), DIBS_UNAVAILABLE, words);
    assert_in_range(clock_ms() - start, 0, 4000 + SOON_MS);
}

static void the_next_server_is_tried(void **state)
{
    char hosts[256];

    (void)state;
    need_server();
    for (int i = 0; i < 4; i++) {
        int64_t start = clock_ms();
        snprintf(hosts, sizeof hosts, "127.0.0.1:%d,127.0.0.1:%d,%s", free_port(), free_port(),
                 the_server.hosts);
        dibs *d = open_url(url_of(hosts, ""));
        assert_status(unlock(take(d, "next", NULL)), DIBS_OK);
        assert_in_range(clock_ms() - start, 0, SOON_MS);
        close_handle(d);
    }
}

/* Two ways to the server; the one that is used dies. */
static void the_next_server_is_tried_under_a_holder(void **state)
{
    proxy *p[2] = {proxy_here(), proxy_here()};
    char hosts[128];
    dibs *d;
    dibs_grant *g;

    (void)state;
    snprintf(hosts, sizeof hosts, "127.0.0.1:%d,127.0.0.1:%d", proxy_port(p[0]), proxy_port(p[1]));
    d = open_url(url_lasting(hosts));
    g = take(d, "two-ways", NULL);
    for (int i = 0; i < 4; i++) {
        proxy_heal(p[1 - i % 2]);
        proxy_drop_all(p[i % 2], true);
        assert_true(wait_until(has_connections, p[1 - i % 2], LONG_MS));
        assert_status(dibs_renew(g, NULL), DIBS_OK);
        assert_true(dibs_grant_held(g));
    }
    assert_status(unlock(g), DIBS_OK);
}

/* ---- URLs ------------------------------------------------------------------------------------ */

static void wrong_arguments_are_refused(void **state)
{
    static const char *const session[] = {"session", NULL};
    const char *scheme = kind == ENSEMBLE_ETCD ? "etcd" : "zookeeper";
    static const char *const bad[] = {"abc", "0", "-1s", "", "10x", "99999999999999999999s"};
    char url[256];

    (void)state;
    need_server();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(url, sizeof url, "%s://%s/x?session=%s", scheme, the_server.hosts, bad[i]);
        refused(url, DIBS_INVALID, session);
    }
    snprintf(url, sizeof url, "%s://%s/x?sesion=2s", scheme, the_server.hosts);
    refused(url, DIBS_INVALID, (const char *const[]){"sesion", NULL});
    snprintf(url, sizeof url, "%s://127.0.0.1:99999/x", scheme);
    refused(url, DIBS_INVALID, NULL);
}

/* The server's own range is named. */
static void a_session_out_of_range_is_refused(void **state)
{
    static const char *const least_zookeeper[] = {"400", NULL}, *const least_etcd[] = {"1", NULL};
    char url[256];

    (void)state;
    need_server();
    snprintf(url, sizeof url, "%s://%s/x?session=100ms",
             kind == ENSEMBLE_ETCD ? "etcd" : "zookeeper", the_server.hosts);
    refused(url, DIBS_INVALID, kind == ENSEMBLE_ETCD ? least_etcd : least_zookeeper);
    if (kind == ENSEMBLE_ZOOKEEPER) {
        snprintf(url, sizeof url, "zookeeper://%s/x?session=10m", the_server.hosts);
        refused(url, DIBS_INVALID, (const char *const[]){"60000", NULL});
    }
}

static void a_lease_longer_than_the_session_is_refused(void **state)
{
    dibs *d = open_here();
    dibs_error err = {0};
    dibs_grant *g = NULL;
    dibs_engine_info info;

    (void)state;
    info = *dibs_engine_of(d);
    assert_true(info.lease_of_handle);
    assert_int_equal(info.lease_ms, SESSION_MS);
    assert_status(dibs_lock(d, "long", &(dibs_lock_options){.lease_ms = SESSION_MS + 1}, &g, &err),
                  DIBS_INVALID);
    assert_non_null(strstr(err.message, "session"));
    assert_null(g);
}

static const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_teardown(name, close_all)
    CASE(a_holder_that_is_cut_off_lets_go_first),
    CASE(a_short_partition_is_bridged),
    CASE(a_waiter_whose_session_ends_enters_again),
    CASE(a_waiter_that_is_cut_off_gets_no_dead_grant),
    CASE(an_entry_of_an_old_session_is_not_taken_for_ours),
    CASE(an_exchange_may_be_cut_anywhere),
    CASE(a_waiters_connection_may_be_cut_anywhere),
    CASE(a_silent_server_keeps_nobody),
    CASE(a_release_that_is_not_heard),
    CASE(a_restart_grants_nothing_twice),
    CASE(a_server_that_is_down),
    CASE(the_next_server_is_tried),
    CASE(the_next_server_is_tried_under_a_holder),
    CASE(wrong_arguments_are_refused),
    CASE(a_session_out_of_range_is_refused),
    CASE(a_lease_longer_than_the_session_is_refused),
};

int main(int argc, char *argv[])
{
    int failed;

    kind = argc > 1 && strcmp(argv[1], "etcd") == 0 ? ENSEMBLE_ETCD : ENSEMBLE_ZOOKEEPER;
    describe_server(kind, NULL);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    failed = cmocka_run_group_tests_name(argc > 1 ? argv[1] : "zookeeper", tests, NULL, NULL);
    ensemble_stop(&the_server);
    return failed ? 1 : 0;
}
