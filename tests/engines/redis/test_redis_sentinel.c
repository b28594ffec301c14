/* redis+sentinel: a service of one master, two replicas and three sentinels, all private; what happens when the master
 * is killed, stopped or demoted, and who may ask whom. */
#define _GNU_SOURCE
#include "support/calls.h"
#include "support/certificates.h"
#include "support/clock.h"
#include "support/proxy.h"
#include "support/test.h"

#include "survival.h"
#include "watched.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dibs_lock_options at_once = {.lease_ms = WATCHED_LEASE_MS, .wait_ms = DIBS_NO_WAIT};
static const dibs_lock_options patiently = {.lease_ms = WATCHED_LEASE_MS, .wait_ms = 30000};

static dibs *open_watched(const watched *w, const char *more)
{
    return expect_open(watched_url(w, more), NULL);
}

/* ---- URLs ------------------------------------------------------------------------------------ */

static void urls(void **state)
{
    char url[128];

    (void)state;
    expect_refused("redis+sentinel://127.0.0.1:1", NULL, DIBS_INVALID, "name of the service");
    expect_refused("redis+sentinel:///x", NULL, DIBS_INVALID, "sentinel");
    expect_refused("redis+sentinel://127.0.0.1:1/x?tls=maybe", NULL, DIBS_INVALID, "yes or no");
    expect_refused("redis+sentinel://127.0.0.1:1/x?sentinel_user=a", NULL, DIBS_INVALID,
                   "sentinel_password=");
    expect_refused("redis+sentinel://127.0.0.1:1/x/y", NULL, DIBS_INVALID, "invalid database");
    snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d/x", free_port());
    expect_refused(url, NULL, DIBS_UNAVAILABLE, "cannot connect");
}

static void order(server *s, const char *command)
{
    char reply[256];

    assert_int_equal(server_command(s, command, reply, sizeof reply), 0);
    assert_string_equal(reply, "+OK\r\n");
}

/* ---- Finding the master ---------------------------------------------------------------------- */

static void a_service_that_nobody_watches(void **state)
{
    watched w;
    char url[128];

    (void)state;
    watched_start(&w, NULL, NULL);
    snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d/other", w.sentinel[0].port);
    expect_refused(url, NULL, DIBS_INVALID, "watches no service 'other'");
    /* A sentinel that is down is passed over, and one address is enough to find the others. */
    snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d,127.0.0.1:%d/%s", free_port(),
             w.sentinel[1].port, WATCHED_SERVICE);
    dibs_close(expect_open(url, NULL));
    watched_stop(&w);
}

static void passwords_apart(void **state)
{
    watched w;
    char url[256];

    (void)state;
    watched_start(&w, "for-servers", "for-sentinels");
    snprintf(url, sizeof url, "redis+sentinel://:for-servers@127.0.0.1:%d/%s?guard=off",
             w.sentinel[0].port, WATCHED_SERVICE);
    expect_refused(url, NULL, DIBS_DENIED, "sentinel at");
    strcat(url, "&sentinel_password=for-sentinels");
    dibs_close(expect_open(url, NULL));
    snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d/%s?sentinel_password=for-sentinels",
             w.sentinel[0].port, WATCHED_SERVICE);
    expect_refused(url, NULL, DIBS_DENIED, "redis at");
    watched_stop(&w);
}

/* ---- A slow network -------------------------------------------------------------------------- */

#define FAR_MS 60 /* one way */

static bool is_listened_to(void *ctx)
{
    char reply[4096];

    return server_command(ctx, "CLIENT LIST", reply, sizeof reply) == 0 && strstr(reply, " sub=1 ");
}

static void a_sentinel_far_away(void **state)
{
    server node, sentinel;
    proxy *p;
    dibs *d;
    char url[128];

    (void)state;
    server_need(&node, NULL);
    assert_int_equal(sentinel_start(&sentinel, WATCHED_SERVICE, node.port, 1, ""), 0);
    p = proxy_start(sentinel.port);
    assert_non_null(p);
    proxy_delay(p, PROXY_UP, FAR_MS);
    proxy_delay(p, PROXY_DOWN, FAR_MS);
    snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d/%s?guard=off", proxy_port(p),
             WATCHED_SERVICE);
    d = expect_open(url, NULL);
    assert_status(unlock(expect_lock(d, "x", &at_once)), DIBS_OK); /* the keeper begins */
    assert_true(wait_until(is_listened_to, &sentinel, 20000));
    dibs_close(d);
    proxy_stop(p);
    server_stop(&sentinel);
    server_stop(&node);
}

/* ---- Failover -------------------------------------------------------------------------------- */

/* The handle, which has connections to the old master, gets a lock from the new one. How long that took. */
static int64_t served_after(watched *w, dibs *d, int old, const char *name)
{
    int64_t since;

    watched_await_failover(w, old);
    since = clock_ms();
    dibs_grant *g = expect_lock(d, name, &patiently);
    assert_status(unlock(g), DIBS_OK);
    return clock_ms() - since;
}

static void a_killed_and_a_stopped_master(void **state)
{
    watched w;
    dibs *d;
    dibs_grant *g;
    uint64_t before;
    int old;
    int64_t took;

    (void)state;
    watched_start(&w, NULL, NULL);
    watched_vouch(&w, "&wait=1");
    d = open_watched(&w, "&wait=1");
    g = expect_lock(d, "x", &at_once);
    before = dibs_grant_fence(g);
    old = watched_master(&w);
    server_end(&w.node[old], SIGKILL);
    took = served_after(&w, d, old, "y");
    print_message("# killed: a lock %lld ms after the promotion\n", (long long)took);
    assert_true(took >= WATCHED_LEASE_MS / 2); /* there was a quiet period */
    assert_false(dibs_grant_held(g));
    unlock(g);
    g = expect_lock(d, "x", &patiently);
    assert_true(dibs_grant_fence(g) > before);
    unlock(g);
    assert_int_equal(server_restart(&w.node[old]), 0);
    watched_await_replicas(&w, 2);
    old = watched_master(&w);
    server_pause(&w.node[old]);
    took = served_after(&w, d, old, "y");
    print_message("# stopped: a lock %lld ms after the promotion\n", (long long)took);
    server_continue(&w.node[old]);
    dibs_close(d);
    watched_stop(&w);
}

/* The sentinel of the URL is gone by then: the others are known. And a holder keeps its lock. */
static void a_failover_without_the_first_sentinel(void **state)
{
    watched w;
    dibs *d;
    dibs_grant *g;
    char url[256];
    int old;

    (void)state;
    watched_start(&w, NULL, NULL);
    watched_vouch(&w, "");
    snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d/%s?max_lease=30000",
             w.sentinel[0].port, WATCHED_SERVICE);
    d = expect_open(url, NULL);
    g = expect_lock(d, "x", &(dibs_lock_options){.lease_ms = 30000, .wait_ms = 20000});
    server_end(&w.sentinel[0], SIGKILL);
    old = watched_master(&w);
    server_end(&w.node[old], SIGKILL);
    watched_await_failover(&w, old);
    sleep_ms(500);
    assert_int_equal(waiters_of(d, "x"), 0); /* it answers, the new one */
    assert_int_equal(holders_of(d, "x"), 1);
    assert_true(dibs_grant_held(g));
    assert_status(unlock(g), DIBS_OK);
    dibs_close(d);
    watched_stop(&w);
}

/* A sentinel that hears nothing of the others, with a master that stays one: as when both are cut off from the others, but
 * not from the clients. Nobody tells the handle, which listens to that one. */
static void a_sentinel_that_was_cut_off(void **state)
{
    watched w;
    dibs *d;
    char url[256];
    int old;
    int64_t took;

    (void)state;
    watched_start(&w, NULL, NULL);
    watched_vouch(&w, "&wait=1");
    snprintf(url, sizeof url, "redis+sentinel://127.0.0.1:%d/%s?wait=1&max_lease=%d",
             w.sentinel[0].port, WATCHED_SERVICE, WATCHED_LEASE_MS);
    d = expect_open(url, NULL);
    assert_status(unlock(expect_lock(d, "x", &at_once)), DIBS_OK);
    order(&w.sentinel[0], "ACL SETUSER default -publish");
    order(&w.sentinel[0],
          "SENTINEL DEBUG publish-period 1000000000000000"); /* it corrects nobody */
    order(&w.sentinel[0], "SENTINEL DEBUG info-period 1000000000000000");
    old = watched_master(&w);
    order(&w.node[old], "ACL SETUSER default -replicaof -slaveof");
    for (int i = 0; i < WATCHED_SERVERS; i++)
        order(&w.node[i], "ACL SETUSER default -publish");
    assert_true(watched_begin_failover(&w));
    took = served_after(&w, d, old, "x");
    print_message("# cut off: a lock %lld ms after the promotion\n", (long long)took);
    dibs_close(d);
    watched_stop(&w);
}

/* ---- TLS, and a failover that an operator wants ------------------------------------------------- */

static const char *with_tls(const watched *w, const char *more, const char *ca,
                            const char *sentinel_ca)
{
    static char all[4 * SCRATCH_MAX];
    size_t n = (size_t)snprintf(all, sizeof all, "%s", more);

    if (ca)
        n += (size_t)snprintf(all + n, sizeof all - n, "&tls=yes&ca=%s/%s", w->tls, ca);
    if (sentinel_ca)
        snprintf(all + n, sizeof all - n, "&sentinel_tls=yes&sentinel_ca=%s/%s", w->tls,
                 sentinel_ca);
    return watched_url(w, all);
}

/* Each side by itself: who trusts another authority, or speaks without TLS, does not come in. */
static void tls_apart(const watched *w)
{
    expect_refused(with_tls(w, "", "ca.crt", "ca2.crt"), NULL, DIBS_DENIED, "sentinel at");
    expect_refused(with_tls(w, "", "ca2.crt", "ca.crt"), NULL, DIBS_DENIED, "redis at");
    expect_refused(with_tls(w, "", "ca.crt", NULL), NULL, DIBS_UNAVAILABLE, "sentinel at");
    expect_refused(with_tls(w, "", NULL, "ca.crt"), NULL, DIBS_UNAVAILABLE, "redis at");
}

/* The old master stays one for some seconds, until the sentinels make it a replica. */
static void tls_and_a_planned_failover(void **state)
{
    scratch folder;
    watched w;
    dibs *d, *other;
    dibs_grant *mine, *next;
    int old;
    int64_t since;

    (void)state;
    assert_int_equal(scratch_make(&folder), 0);
    make_certificates(&folder);
    watched_start_tls(&w, folder.path);
    tls_apart(&w);
    dibs_close(expect_open(with_tls(&w, "&guard=vouch", "ca.crt", "ca.crt"), NULL));
    d = expect_open(with_tls(&w, "&wait=1", "ca.crt", "ca.crt"), NULL);
    other = expect_open(with_tls(&w, "&wait=1", "ca.crt", "ca.crt"), NULL);
    mine = expect_lock(d, "x", &at_once);
    old = watched_master(&w);
    assert_true(watched_begin_failover(&w));
    watched_await_failover(&w, old);
    since = clock_ms();
    next = expect_lock(other, "y", &patiently);
    print_message("# planned: a lock %lld ms after the promotion, the holder %s its own\n",
                  (long long)(clock_ms() - since), dibs_grant_held(mine) ? "kept" : "lost");
    assert_status(unlock(next), DIBS_OK);
    next = NULL;
    if (dibs_grant_held(mine))
        assert_status(dibs_lock(other, "x", &at_once, &next, NULL), DIBS_BUSY);
    assert_null(next);
    unlock(mine);
    dibs_close(d);
    dibs_close(other);
    watched_stop(&w);
    scratch_remove(&folder);
}

/* ---- Rights ---------------------------------------------------------------------------------- */

/* Also what is kept in cells: both replicas acknowledged it, so none can be promoted that lacks it. */
static void the_least_rights_and_what_is_kept(void **state)
{
    watched w;
    dibs *d;
    survival k;
    char url[512];
    int old;

    (void)state;
    watched_start(&w, NULL, NULL);
    for (int i = 0; i < WATCHED_SERVERS; i++) {
        order(&w.node[i], "ACL SETUSER locks on >secret ~dibs:* &dibs:* +@read +@write +@scripting "
                          "+@connection +@pubsub +time +info +wait +role");
        order(&w.sentinel[i],
              "ACL SETUSER asks on >word +sentinel|get-master-addr-by-name +sentinel|master "
              "+sentinel|sentinels +subscribe +auth +client|setname resetchannels &+switch-master");
    }
    watched_vouch(&w, "&wait=2");
    snprintf(url, sizeof url,
             "redis+sentinel://locks:secret@127.0.0.1:%d/%s?sentinel_user=asks&sentinel_password="
             "word&wait=2&max_lease=%d",
             w.sentinel[0].port, WATCHED_SERVICE, WATCHED_LEASE_MS);
    d = expect_open(url, NULL);
    assert_status(unlock(expect_lock(d, "x", &at_once)), DIBS_OK);
    survival_write(&k, d, "kept");
    old = watched_master(&w);
    server_end(&w.node[old], SIGKILL);
    watched_await_failover(&w, old);
    assert_int_equal(server_restart(&w.node[old]), 0);
    order(&w.node[old], "ACL SETUSER locks on >secret ~dibs:* &dibs:* +@all");
    watched_await_replicas(&w, 2);
    survival_check(&k, d);
    dibs_close(d);
    watched_stop(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(urls),
        cmocka_unit_test(a_service_that_nobody_watches),
        cmocka_unit_test(passwords_apart),
        cmocka_unit_test(a_sentinel_far_away),
        cmocka_unit_test(a_killed_and_a_stopped_master),
        cmocka_unit_test(a_failover_without_the_first_sentinel),
        cmocka_unit_test(a_sentinel_that_was_cut_off),
        cmocka_unit_test(tls_and_a_planned_failover),
        cmocka_unit_test(the_least_rights_and_what_is_kept),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
