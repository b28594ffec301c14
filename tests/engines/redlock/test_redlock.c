/* The Redlock engine by itself: nodes that are down, hang, are slow, come late or want a password;
 * votes that are not enough; restarts. What waiters are told is in hints.c, the storm in storm.c. */
#define _GNU_SOURCE
#include "support/test.h"

#include "cluster.h"
#include "suite.h"
#include "support/clock.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOON 5000 /* what happens "at once" happens within this, on the slowest machine */

static dibs_lock_options once(int64_t lease_ms)
{
    return (dibs_lock_options){.wait_ms = DIBS_NO_WAIT, .lease_ms = lease_ms};
}

/* The text of what dibs_lock_inspect notes about the nodes. */
static void notes_of(dibs *d, const char *name, char *out, size_t size)
{
    dibs_lock_report *r = NULL;
    dibs_error err = {0};
    size_t used = 0;

    if (dibs_lock_inspect(d, name, &r, &err) != DIBS_OK)
        fail_msg("%s: %s", name, err.message);
    *out = '\0';
    for (size_t i = 0; i < dibs_lock_report_at(r, 0)->note_count && used < size; i++)
        used +=
            (size_t)snprintf(out + used, size - used, "%s\n", dibs_lock_report_at(r, 0)->notes[i]);
    dibs_lock_report_free(r);
}

/* ---- URLs ------------------------------------------------------------------------------------ */

static void bad_urls_are_distinguished(void **state)
{
    char url[200];

    (void)state;
    expect_refused("redlock://one", NULL, DIBS_INVALID, "three or more");
    expect_refused("redlock://a,b,,c", NULL, DIBS_INVALID, "missing");
    expect_refused("redlock://a:1,b:1,a:1", NULL, DIBS_INVALID, "twice");
    expect_refused("redlock://a,b,c?tls=4", NULL, DIBS_INVALID, "1 to 3");
    expect_refused("redlock://a,b,c?guard=maybe", NULL, DIBS_INVALID, "on or off");
    expect_refused("redlock://a,b,c?node_ms=0", NULL, DIBS_INVALID, "node_ms");
    expect_refused("redlock://a,b,c?colour=red", NULL, DIBS_INVALID, "'colour'");
    expect_refused("redlock://a,b,c/x", NULL, DIBS_INVALID, "database");
    expect_refused("redlock://u@a,b,c", NULL, DIBS_INVALID, "no password");
    snprintf(url, sizeof url, "redlock://127.0.0.1:%d,127.0.0.1:%d", free_port(), free_port());
    expect_refused(url, NULL, DIBS_UNAVAILABLE, "0 of 2 nodes answer, and 2 are needed");
}

/* Asking again within the call would be of no use: they say for how long they do not vote. */
static void a_try_at_new_nodes_is_answered_at_once(void **state)
{
    cluster c;
    dibs *d;
    dibs_grant *g = NULL;
    dibs_lock_options o = once(30000);
    dibs_error err = {0};
    int64_t start;

    (void)state;
    cluster_need(&c, 3, NULL, false);
    assert_status(
        dibs_open(cluster_url(&c, NULL), &(dibs_options){.request_ms = 2 * SOON}, &d, NULL),
        DIBS_OK);
    start = clock_ms();
    assert_status(dibs_lock(d, "a", &o, &g, &err), DIBS_UNAVAILABLE);
    assert_in_range(clock_ms() - start, 0, SOON);
    assert_non_null(strstr(err.message, "'a'"));
    assert_non_null(strstr(err.message, "of 3 nodes"));
    assert_non_null(strstr(err.message, "do not vote for"));
    dibs_close(d);
    cluster_stop(&c);
}

/* ---- Nodes that die, hang or are slow -------------------------------------------------------- */

static bool is_notified(void *g)
{
    return dibs_grant_loss(g) == DIBS_LOSS_UNREACHABLE;
}

static void two_of_five_may_die_and_not_three(void **state)
{
    cluster c;
    dibs *d, *e;
    dibs_grant *g, *none = NULL;
    dibs_lock_options o = once(30000);
    dibs_error err = {0};
    int64_t start;

    (void)state;
    cluster_need(&c, 5, NULL, true);
    d = cluster_open(&c, NULL);
    assert_status(dibs_open(cluster_url(&c, NULL), &(dibs_options){.request_ms = 500}, &e, NULL),
                  DIBS_OK);
    server_end(&c.node[0], SIGKILL);
    server_end(&c.node[1], SIGKILL);
    for (int i = 0; i < 20; i++)
        assert_status(unlock(cluster_take(d, "a", 30000, SOON)), DIBS_OK);
    g = cluster_take(d, "b", 2000, SOON);
    server_end(&c.node[2], SIGKILL);
    start = clock_ms();
    assert_status(dibs_lock(e, "c", &o, &none, &err), DIBS_UNAVAILABLE);
    assert_in_range(clock_ms() - start, 0, 500 + SOON);
    assert_non_null(strstr(err.message, "3 are needed"));
    assert_true(wait_until(is_notified, g, 2000 + SOON)); /* nobody renews it any more */
    assert_false(dibs_grant_held(g));
    unlock(g);
    dibs_close(d);
    dibs_close(e);
    cluster_stop(&c);
}

static void a_hanging_node_holds_nobody_up(void **state)
{
    cluster c;
    dibs *d, *late;
    char notes[4096];
    int64_t start;

    (void)state;
    cluster_need(&c, 5, NULL, true);
    d = cluster_open(&c, NULL);
    server_pause(&c.node[0]); /* the first of them: it is asked like the others */
    start = clock_ms();
    for (int i = 0; i < 20; i++)
        assert_status(unlock(cluster_take(d, "a", 30000, SOON)), DIBS_OK);
    assert_in_range(clock_ms() - start, 0, SOON);
    start = clock_ms();
    late = cluster_open(&c, NULL);
    assert_in_range(clock_ms() - start, 0, SOON);
    dibs_grant *g = cluster_take(late, "b", 30000, SOON);
    notes_of(late, "b", notes, sizeof notes);
    assert_non_null(strstr(notes, "node 1 of 5"));
    assert_non_null(strstr(notes, "voted for"));
    unlock(g);
    server_continue(&c.node[0]);
    dibs_close(late);
    dibs_close(d);
    cluster_stop(&c);
}

/* The slowest of the majority counts, not the slowest. */
static void a_slow_node_slows_nobody_down(void **state)
{
    enum { ROUNDS = 30, DELAY = 1000 };
    cluster c;
    dibs *d;
    int64_t start;

    (void)state;
    cluster_need(&c, 5, NULL, true);
    cluster_proxy(&c, 2);
    d = cluster_open(&c, NULL);
    proxy_delay(c.proxy[2], PROXY_DOWN, DELAY);
    start = clock_ms();
    for (int i = 0; i < ROUNDS; i++)
        assert_status(unlock(cluster_take(d, "a", 30000, SOON)), DIBS_OK);
    assert_in_range(clock_ms() - start, 0, ROUNDS * DELAY / 2);
    dibs_close(d);
    cluster_stop(&c);
}

static void a_node_that_was_down_comes_back(void **state)
{
    cluster c;
    dibs *d;

    (void)state;
    cluster_need(&c, 3, NULL, true);
    server_end(&c.node[1], SIGKILL);
    d = cluster_open(&c, NULL);
    unlock(cluster_take(d, "a", 30000, SOON));
    assert_int_equal(server_restart(&c.node[1]), 0);
    cluster_vouch(&c);
    for (int64_t end = clock_ms() + SOON; clock_ms() < end;) { /* it is called now and then */
        dibs_grant *g = cluster_take(d, "a", 30000, SOON);
        int votes = cluster_votes(&c, "a");
        unlock(g);
        if (votes == 3)
            break;
        sleep_ms(20);
    }
    dibs_grant *g = cluster_take(d, "a", 30000, SOON);
    cluster_expect_votes(&c, "a", 3, SOON);
    unlock(g);
    cluster_expect_votes(&c, "a", 0, SOON); /* a release goes to all */
    dibs_close(d);
    cluster_stop(&c);
}

/* ---- Logins and TLS -------------------------------------------------------------------------- */

static void note_denied(void *data, dibs_log_level level, const char *message)
{
    if (level == DIBS_LOG_WARNING && strstr(message, "node 2 of 3") && strstr(message, "wrong"))
        atomic_fetch_add((atomic_int *)data, 1);
}

static void each_node_has_its_own_password(void **state)
{
    cluster c;
    char url[300], notes[4096];
    atomic_int denied = 0;
    dibs *d = NULL;
    dibs_grant *g;
    int p[3];

    (void)state;
    cluster_need(&c, 3, NULL, true);
    for (int i = 0; i < 3; i++) {
        char command[64];
        snprintf(command, sizeof command, "CONFIG SET requirepass word%d", i + 1);
        server_command(&c.node[i], command, NULL, 0);
        p[i] = c.node[i].port;
    }
    expect_refused(c.url, NULL, DIBS_DENIED, "password");
    snprintf(url, sizeof url,
             "redlock://:word1@127.0.0.1:%d,:w%%6frd2@127.0.0.1:%d,:word3@"
             "127.0.0.1:%d",
             p[0], p[1], p[2]);
    assert_status(dibs_open(url, NULL, &d, NULL), DIBS_OK);
    unlock(cluster_take(d, "a", 30000, SOON));
    dibs_close(d);
    snprintf(url, sizeof url,
             "redlock://:word1@127.0.0.1:%d,:guess@127.0.0.1:%d,:word3@"
             "127.0.0.1:%d",
             p[0], p[1], p[2]);
    assert_status(
        dibs_open(url, &(dibs_options){.log = note_denied, .log_data = &denied}, &d, NULL),
        DIBS_OK);
    g = cluster_take(d, "a", 30000, SOON);
    notes_of(d, "a", notes, sizeof notes);
    assert_non_null(strstr(notes, "node 2 of 3"));
    assert_non_null(strstr(notes, "WRONGPASS"));
    assert_true(atomic_load(&denied) > 0);
    unlock(g);
    dibs_close(d);
    cluster_stop(&c);
}

static void a_node_with_tls(void **state)
{
    cluster c;
    scratch folder;
    char port[16], cert[300], key[300], url[1200], line[1200];
    server tls;
    dibs *d;

    (void)state;
    cluster_need(&c, 2, NULL, true);
    assert_int_equal(scratch_make(&folder), 0);
    scratch_file(&folder, "crt", cert, sizeof cert);
    scratch_file(&folder, "key", key, sizeof key);
    snprintf(line, sizeof line,
             "openssl req -x509 -newkey rsa:2048 -nodes -keyout %s -out %s -subj /CN=localhost "
             "-addext subjectAltName=IP:127.0.0.1 -days 2 >/dev/null 2>&1",
             key, cert);
    assert_int_equal(system(line), 0);
    snprintf(port, sizeof port, "%d", free_port());
    server_need(&tls, (const char *const[]){"--tls-port", port, "--tls-cert-file", cert,
                                            "--tls-key-file", key, "--tls-ca-cert-file", cert,
                                            "--tls-auth-clients", "no", NULL});
    snprintf(url, sizeof url, "%s,127.0.0.1:%s?tls=3&ca=%s&guard=off", c.url, port, cert);
    d = expect_open(url, NULL);
    server_end(&c.node[0], SIGKILL); /* so that its vote is needed */
    unlock(cluster_take(d, "a", 30000, SOON));
    dibs_close(d);
    server_stop(&tls);
    scratch_remove(&folder);
    cluster_stop(&c);
}

/* ---- Votes that are not enough --------------------------------------------------------------- */

/* A holds on the nodes 2 and 3; node 1 was away meanwhile, and is as good as new. */
static dibs_grant *hold_on_two(cluster *c, dibs **a)
{
    dibs_grant *g;

    server_end(&c->node[0], SIGKILL);
    *a = cluster_open(c, NULL);
    g = cluster_take(*a, "x", 30000, SOON);
    assert_int_equal(server_restart(&c->node[0]), 0);
    cluster_expect_votes(c, "x", 2, SOON);
    return g;
}

static void minority_votes_go_back_at_once(void **state)
{
    cluster c;
    dibs *a, *b;
    dibs_grant *g, *none = NULL;
    dibs_lock_options o = once(30000);

    (void)state;
    cluster_need(&c, 3, NULL, true);
    g = hold_on_two(&c, &a);
    b = cluster_open(&c, "?guard=off");
    for (int i = 0; i < 5; i++) {
        assert_status(dibs_lock(b, "x", &o, &none, NULL), DIBS_BUSY);
        cluster_expect_votes(&c, "x", 2, SOON); /* those of A */
    }
    assert_true(dibs_grant_held(g));
    assert_status(unlock(g), DIBS_OK);
    dibs_close(a);
    dibs_close(b);
    cluster_stop(&c);
}

static void late_and_lost_votes_go_back_too(void **state)
{
    cluster c;
    dibs *a, *b;
    dibs_grant *g, *none = NULL;
    dibs_lock_options o = once(30000);

    (void)state;
    cluster_need(&c, 3, NULL, true);
    g = hold_on_two(&c, &a);
    cluster_proxy(&c, 0);
    b = cluster_open(&c, "?guard=off");
    proxy_delay(c.proxy[0], PROXY_DOWN, 300); /* node 1 votes, and its answer comes too late */
    assert_status(dibs_lock(b, "x", &o, &none, NULL), DIBS_BUSY);
    cluster_expect_votes(&c, "x", 2, SOON);
    proxy_heal(c.proxy[0]);
    assert_status(dibs_lock(b, "x", &o, &none, NULL), DIBS_BUSY);
    proxy_cut(c.proxy[0], PROXY_DOWN, 0, true); /* it votes, and its answer never comes */
    assert_status(dibs_lock(b, "x", &o, &none, NULL), DIBS_BUSY);
    cluster_expect_votes(&c, "x", 2, SOON);
    assert_true(dibs_grant_held(g));
    assert_status(unlock(g), DIBS_OK);
    dibs_close(a);
    dibs_close(b);
    cluster_stop(&c);
}

static const dibs_lock_break_options broken_at_once = {.by = "test", .now = true};

/* Nodes 3 to 5 hear of the break, 1 and 2 do not. The holder reaches 1 to 4: two still have its vote. */
static void a_break_is_reported_by_half_of_the_nodes(void **state)
{
    cluster c;
    dibs *a, *b;
    dibs_grant *g;

    (void)state;
    cluster_need(&c, 5, NULL, true);
    cluster_proxy(&c, 4);
    a = cluster_open(&c, NULL);
    g = cluster_take(a, "x", 30000, SOON);
    cluster_expect_votes(&c, "x", 5, SOON);
    cluster_proxy(&c, 0);
    cluster_proxy(&c, 1);
    b = cluster_open(&c, NULL);
    proxy_drop_all(c.proxy[0], true);
    proxy_drop_all(c.proxy[1], true);
    assert_status(dibs_lock_break(b, "x", &broken_at_once, NULL), DIBS_OK);
    cluster_expect_votes(&c, "x", 2, SOON);
    proxy_drop_all(c.proxy[4], true);
    assert_status(unlock(g), DIBS_LOST);
    cluster_expect_votes(&c, "x", 0, SOON);
    dibs_close(a);
    dibs_close(b);
    cluster_stop(&c);
}

/* Nodes 2 and 3 have the vote, 1 and 3 hear of the break, 1 and 2 of the release. */
static void a_break_is_reported_by_a_node_without_a_vote(void **state)
{
    cluster c;
    dibs *a, *b;
    dibs_grant *g;

    (void)state;
    cluster_need(&c, 3, NULL, true);
    cluster_proxy(&c, 2);
    g = hold_on_two(&c, &a);
    cluster_proxy(&c, 1);
    b = cluster_open(&c, NULL);
    proxy_drop_all(c.proxy[1], true);
    assert_status(dibs_lock_break(b, "x", &broken_at_once, NULL), DIBS_OK);
    proxy_drop_all(c.proxy[2], true);
    assert_status(unlock(g), DIBS_LOST);
    dibs_close(a);
    dibs_close(b);
    cluster_stop(&c);
}

/* Node 1 votes for the holder after it has heard of the break, and node 2 does not hear of it: a majority has votes. */
static void a_vote_that_comes_after_the_break_is_none(void **state)
{
    cluster c;
    proxy *way;
    dibs *a, *b;
    dibs_grant *g;

    (void)state;
    cluster_need(&c, 3, NULL, true);
    cluster_proxy(&c, 1);
    b = cluster_open(&c, NULL);
    way = c.proxy[1];
    c.proxy[1] = NULL; /* not the holder's */
    cluster_proxy(&c, 0);
    a = cluster_open(&c, NULL);
    c.proxy[1] = way;
    proxy_delay(c.proxy[0], PROXY_UP, 800);
    g = cluster_take(a, "x", 30000, SOON);
    proxy_drop_all(c.proxy[1], true);
    assert_status(dibs_lock_break(b, "x", &broken_at_once, NULL), DIBS_OK);
    cluster_expect_votes(&c, "x", 2, SOON);
    proxy_heal(c.proxy[0]);
    assert_status(unlock(g), DIBS_LOST);
    cluster_expect_votes(&c, "x", 0, SOON);
    dibs_close(a);
    dibs_close(b);
    cluster_stop(&c);
}

static void forgotten_scripts_are_sent_again(void **state)
{
    cluster c;
    dibs *d;
    dibs_grant *g;

    (void)state;
    cluster_need(&c, 3, NULL, true);
    d = cluster_open(&c, NULL);
    for (int i = 0; i < 3; i++)
        server_command(&c.node[i], "SCRIPT FLUSH", NULL, 0);
    g = cluster_take(d, "a", 30000, SOON);
    for (int i = 0; i < 3; i++)
        server_command(&c.node[i], "SCRIPT FLUSH", NULL, 0);
    assert_status(dibs_renew(g, NULL), DIBS_OK);
    for (int i = 0; i < 3; i++)
        server_command(&c.node[i], "SCRIPT FLUSH", NULL, 0);
    assert_status(unlock(g), DIBS_OK);
    cluster_expect_votes(&c, "a", 0, SOON);
    dibs_close(d);
    cluster_stop(&c);
}

/* Clocks that are apart make different answers: the highest is written back, and tokens grow. */
static void different_answers_become_one_fence(void **state)
{
    cluster c;
    dibs *d;
    uint64_t last = 0;

    (void)state;
    cluster_need(&c, 3, NULL, true);
    d = cluster_open(&c, NULL);
    unlock(cluster_take(d, "a", 30000, SOON));
    for (int i = 0; i < 6; i++) { /* one node is ahead of the others, each time another */
        char command[400];
        snprintf(command, sizeof command,
                 "EVAL \"local s=redis.call('GET',KEYS[1]) local f=struct.unpack('>d',s,5) "
                 "redis.call('SET',KEYS[1],s:sub(1,4)..struct.pack('>d',f+3600000000*%d)..s:sub(13)"
                 ") return 1\" "
                 "1 dibs:{a}",
                 i + 1);
        server_command(&c.node[i % 3], command, NULL, 0);
        dibs_grant *g = cluster_take(d, "a", 30000, SOON);
        assert_true(dibs_grant_fence(g) > last);
        last = dibs_grant_fence(g);
        assert_status(unlock(g), DIBS_OK);
    }
    dibs_close(d);
    cluster_stop(&c);
}

static void what_is_not_ours_is_left_alone(void **state)
{
    const char *const foreign[] = {"SET dibs:{a} something", "RPUSH dibs:{a} something"};
    cluster c;
    dibs *d;
    dibs_grant *none = NULL;
    dibs_error err = {0};
    dibs_lock_options o = once(2000);
    char reply[64];

    (void)state;
    cluster_need(&c, 3, NULL, true);
    d = cluster_open(&c, NULL);
    for (int i = 0; i < 2; i++) {
        for (int n = 0; n < 3; n++) {
            server_command(&c.node[n], "DEL dibs:{a}", NULL, 0);
            server_command(&c.node[n], foreign[i], NULL, 0);
        }
        assert_status(dibs_lock(d, "a", &o, &none, &err), DIBS_ENGINE_FAILED);
        assert_non_null(strstr(err.message, "prefix="));
        server_command(&c.node[0], "TYPE dibs:{a}", reply, sizeof reply);
        assert_non_null(strstr(reply, i ? "list" : "string"));
    }
    dibs_close(d);
    cluster_stop(&c);
}

static void a_lease_beyond_the_limit_is_refused(void **state)
{
    cluster c;
    dibs *d;
    dibs_grant *none = NULL;
    dibs_error err = {0};
    dibs_lock_options o = once(2000);

    (void)state;
    cluster_need(&c, 3, NULL, true);
    d = cluster_open(&c, "?max_lease=1000");
    assert_status(dibs_lock(d, "a", &o, &none, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "max_lease="));
    dibs_close(d);
    cluster_stop(&c);
}

/* ---- Tickets --------------------------------------------------------------------------------- */

static void note_grant(void *data, dibs_status status, dibs_grant *g, const dibs_error *err)
{
    if (status != DIBS_OK)
        fail_msg("%s", err->message);
    *(dibs_grant **)data = g;
}

/* The first in the queue is due while an unlock is asking for it: only one of the two may try. The nodes are so slow
 * that it is due every time. */
static void an_unlock_and_the_keeper_do_not_both_try(void **state)
{
    cluster c;
    dibs *d;

    (void)state;
    cluster_need(&c, 3, NULL, true);
    for (int i = 0; i < 3; i++)
        cluster_proxy(&c, i);
    d = cluster_open(&c, NULL);
    for (int i = 0; i < 3; i++)
        proxy_delay(c.proxy[i], PROXY_DOWN, 15);
    for (int round = 0; round < 10; round++) {
        dibs_grant *first = cluster_take(d, "x", 30000, SOON), *second = NULL;
        uint64_t t = 0;
        int64_t end = clock_ms() + SOON;
        assert_status(start_lock(d, "x", NULL, note_grant, &second, &t, NULL), DIBS_OK);
        sleep_ms(5); /* it stands in the queue, or enters it meanwhile: either is fine */
        unlock(first);
        while (!second && clock_ms() < end) {
            struct pollfd p = {.fd = dibs_fd(d), .events = POLLIN};
            poll(&p, 1, 100);
            take_all(d);
        }
        assert_non_null(second);
        assert_status(unlock(second), DIBS_OK);
    }
    dibs_close(d);
    cluster_stop(&c);
}

int main(int argc, char *argv[])
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_urls_are_distinguished),
        cmocka_unit_test(a_try_at_new_nodes_is_answered_at_once),
        cmocka_unit_test(two_of_five_may_die_and_not_three),
        cmocka_unit_test(a_hanging_node_holds_nobody_up),
        cmocka_unit_test(a_slow_node_slows_nobody_down),
        cmocka_unit_test(a_node_that_was_down_comes_back),
        cmocka_unit_test(each_node_has_its_own_password),
        cmocka_unit_test(a_node_with_tls),
        cmocka_unit_test(minority_votes_go_back_at_once),
        cmocka_unit_test(late_and_lost_votes_go_back_too),
        cmocka_unit_test(a_break_is_reported_by_half_of_the_nodes),
        cmocka_unit_test(a_break_is_reported_by_a_node_without_a_vote),
        cmocka_unit_test(a_vote_that_comes_after_the_break_is_none),
        cmocka_unit_test(forgotten_scripts_are_sent_again),
        cmocka_unit_test(different_answers_become_one_fence),
        cmocka_unit_test(a_lease_beyond_the_limit_is_refused),
        cmocka_unit_test(an_unlock_and_the_keeper_do_not_both_try),
        cmocka_unit_test(what_is_not_ours_is_left_alone),
        cmocka_unit_test(without_the_guard_two_hold),
        cmocka_unit_test(with_the_guard_one_holds),
        cmocka_unit_test(a_node_that_syncs_votes_at_once),
        cmocka_unit_test(most_nodes_cut_while_nobody_reads),
        cmocka_unit_test(most_nodes_cut_under_many_threads),
        cmocka_unit_test(a_free_lock_is_free_after_idle_connections_ended),
        cmocka_unit_test(a_break_breaks_after_idle_connections_ended),
        cmocka_unit_test(a_release_wakes_one_of_many),
        cmocka_unit_test(a_waiter_that_left_costs_no_look),
        cmocka_unit_test(a_waiter_that_hangs_costs_a_look),
        cmocka_unit_test(nodes_that_disagree_serve_both),
        cmocka_unit_test(hints_are_bounded_and_end),
        cmocka_unit_test(a_storm_of_clients_and_restarts),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
