/* The etcd engine: TLS, accounts, leases and keys that somebody else removes, and a history that is cut off. What
 * hits ZooKeeper as well is in test_entries_faults.c. */
#define _GNU_SOURCE
#include "engines/entries/kit.h"
#include "engines/etcd/h2.h"
#include "etcdctl.h"
#include "support/certificates.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- TLS ------------------------------------------------------------------------------------- */

static scratch folder;

static void tls_server(ensemble *e, const char *certificate, bool ask_clients)
{
    static char cert[512], key[512], ca[512];
    /* It asks clients for a certificate as soon as it knows an authority of theirs. */
    const char *const extra[] = {cert, key, ask_clients ? ca : NULL, "--client-cert-auth", NULL};

    snprintf(cert, sizeof cert, "--cert-file=%s/%s", folder.path, certificate);
    snprintf(key, sizeof key, "--key-file=%s/good.key", folder.path);
    snprintf(ca, sizeof ca, "--trusted-ca-file=%s/ca.crt", folder.path);
    ensemble_need(e, ENSEMBLE_ETCD, 1, extra);
}

/* etcds://HOST:PORT/x, with that authority and, if asked for, a certificate of ours. */
static const char *tls_url(const ensemble *e, const char *host, const char *ca, bool with_own)
{
    static char url[2048];
    int n = snprintf(url, sizeof url, "etcds://%s:%d/x?ca=%s/%s", host, e->node[0].port,
                     folder.path, ca);

    if (with_own)
        snprintf(url + n, sizeof url - (size_t)n, "&cert=%s/good.crt&key=%s/good.key", folder.path,
                 folder.path);
    return url;
}

static void use(const char *url)
{
    dibs *d = open_url(url);

    assert_status(unlock(take(d, "used", NULL)), DIBS_OK);
    close_handle(d);
}

static void tls_is_verified(void **state)
{
    ensemble e;
    char url[256];

    (void)state;
    need_server();
    assert_int_equal(scratch_make(&folder), 0);
    make_certificates(&folder);
    tls_server(&e, "good.crt", false);
    use(tls_url(&e, "127.0.0.1", "ca.crt", false));
    use(tls_url(&e, "localhost", "ca.crt", false));
    refused(tls_url(&e, "127.0.0.1", "ca2.crt", false), DIBS_DENIED,
            (const char *const[]){"is not trusted", NULL});
    snprintf(url, sizeof url, "etcds://127.0.0.1:%d/x", e.node[0].port);
    refused(url, DIBS_DENIED, (const char *const[]){"is not trusted", NULL});
    snprintf(url, sizeof url, "etcd://127.0.0.1:%d/x", e.node[0].port);
    refused(url, DIBS_UNAVAILABLE, (const char *const[]){"etcds", NULL});
    snprintf(url, sizeof url, "etcds://%s/x", the_server.hosts);
    refused(url, DIBS_UNAVAILABLE, (const char *const[]){"TLS", NULL});
    ensemble_stop(&e);
    tls_server(&e, "other.crt", false);
    refused(tls_url(&e, "127.0.0.1", "ca.crt", false), DIBS_DENIED,
            (const char *const[]){"is not valid for", NULL});
    ensemble_stop(&e);
    tls_server(&e, "old.crt", false);
    refused(tls_url(&e, "127.0.0.1", "ca.crt", false), DIBS_DENIED,
            (const char *const[]){"has expired", NULL});
    ensemble_stop(&e);
    tls_server(&e, "good.crt", true);
    use(tls_url(&e, "127.0.0.1", "ca.crt", true));
    dibs *d = NULL;
    assert_int_not_equal(dibs_open(tls_url(&e, "127.0.0.1", "ca.crt", false),
                                   &(dibs_options){.connect_ms = 2000}, &d, NULL),
                         DIBS_OK); /* it wants a certificate of ours */
    ensemble_stop(&e);
    scratch_remove(&folder);
}

/* ---- Accounts -------------------------------------------------------------------------------- */

static void make_accounts(const ensemble *e)
{
    must(e, "user add root:rootpw");
    must(e, "user grant-role root root");
    must(e, "role add app");
    must(e, "role grant-permission app --prefix=true readwrite tests/");
    must(e, "user add app:secret");
    must(e, "user grant-role app app");
    must(e, "auth enable");
}

static const char *url_as(const ensemble *e, const char *who, const char *place)
{
    static char url[256];

    snprintf(url, sizeof url, "etcd://%s%s%s/%s?session=20s", who, *who ? "@" : "", e->hosts,
             place);
    return url;
}

static void lock_is_denied(const char *url)
{
    dibs_error err = {0};
    dibs_grant *g = NULL;
    dibs *d = NULL;
    dibs_status status = dibs_open(url, NULL, &d, &err);

    if (status == DIBS_OK)
        status = dibs_lock(d, "denied", &(dibs_lock_options){.wait_ms = 3000}, &g, &err);
    dibs_close(d);
    if (status != DIBS_DENIED)
        fail_msg("%s: %s: %s", url, dibs_status_name(status), err.message);
    assert_true(strlen(err.message) > 20);
}

static void accounts_are_checked(void **state)
{
    ensemble e;
    dibs *d;
    dibs_grant *g;

    (void)state;
    need_server();
    ensemble_need(&e, ENSEMBLE_ETCD, 1, NULL);
    make_accounts(&e);
    use(url_as(&e, "app:secret", "tests"));
    refused(url_as(&e, "app:wrong", "tests"), DIBS_DENIED, (const char *const[]){"password", NULL});
    refused(url_as(&e, "nobody:secret", "tests"), DIBS_DENIED,
            (const char *const[]){"password", NULL});
    lock_is_denied(url_as(&e, "", "tests"));
    lock_is_denied(url_as(&e, "app:secret", "elsewhere"));
    /* A restarted server has forgotten its tokens: a new one is fetched, unseen. */
    d = open_url(url_as(&e, "app:secret", "tests"));
    g = take(d, "token", NULL);
    ensemble_end(&e, 0, SIGKILL);
    assert_int_equal(ensemble_restart(&e, 0), 0);
    assert_status(dibs_renew(g, NULL), DIBS_OK);
    assert_status(unlock(g), DIBS_OK);
    use(url_as(&e, "app:secret", "tests"));
    close_handle(d);
    ensemble_stop(&e);
}

/* Tokens live for two seconds there: nobody notices when one ends. */
static void tokens_are_fetched_anew(void **state)
{
    static const char *const extra[] = {"--auth-token-ttl=1", NULL};
    ensemble e;
    dibs *d;

    (void)state;
    need_server();
    ensemble_need(&e, ENSEMBLE_ETCD, 1, extra);
    make_accounts(&e);
    d = open_url(url_as(&e, "app:secret", "tests"));
    for (int i = 0; i < 2; i++) {
        dibs_grant *g = take(d, "ttl", NULL);
        int64_t end = clock_ms() + 3500;
        while (clock_ms() < end) {
            assert_true(dibs_grant_held(g));
            sleep_ms(20);
        }
        assert_status(unlock(g), DIBS_OK);
        sleep_ms(2500);
    }
    close_handle(d);
    ensemble_stop(&e);
}

/* ---- What others remove ---------------------------------------------------------------------- */

static void a_revoked_lease_is_a_loss(void **state)
{
    dibs *a = open_here(), *b = open_here();
    loss_note note = {0};
    dibs_grant *g = take(a, "revoked", &(dibs_lock_options){.on_lost = note_loss, .data = &note});
    job *waiter = job_start(a, "revoked-line", NULL);
    dibs_grant *h = NULL;

    (void)state;
    job_join_held(waiter);
    assert_status(unlock(waiter->g), DIBS_OK);
    h = take(b, "revoked-line", NULL);
    waiter = job_start(a, "revoked-line", NULL);
    wait_for_queue(b, "revoked-line", 1, 1);
    revoke_lease_of(&the_server, "revoked", 0);
    assert_true(loss_within(&note, SESSION_MS + SOON_MS));
    assert_false(dibs_grant_held(g));
    assert_status(unlock(g), DIBS_LOST);
    wait_for_queue(b, "revoked-line", 1, 1); /* stands in the queue again, under a new lease */
    assert_status(unlock(h), DIBS_OK);
    job_join_held(waiter);
    assert_status(unlock(waiter->g), DIBS_OK);
    assert_status(unlock(take(a, "revoked", NULL)), DIBS_OK);
}

static void a_deleted_key_is_a_loss(void **state)
{
    dibs *a = open_here(), *b = open_here();
    loss_note note = {0};
    dibs_grant *g = take(a, "deleted", &(dibs_lock_options){.on_lost = note_loss, .data = &note});
    uint64_t fence = dibs_grant_fence(g);

    (void)state;
    must(&the_server, "del --prefix tests/deleted/");
    assert_true(loss_within(&note, SESSION_MS + SOON_MS));
    assert_int_equal(atomic_load(&note.why), DIBS_LOSS_GONE);
    assert_status(unlock(g), DIBS_LOST);
    assert_int_equal(holders_of(b, "deleted"), 0); /* never made anew */
    g = take(b, "deleted", NULL);
    assert_true(dibs_grant_fence(g) > fence);
    assert_status(unlock(g), DIBS_OK);
}

/* The server forgets all that was until now. */
static void compact_all(dibs *d)
{
    char line[64];

    for (int i = 0; i < 3; i++)
        unlock(take(d, "another", NULL));
    snprintf(line, sizeof line, "compact %lld",
             etcdctl_number(&the_server, "get nothing -w json", "revision", 0));
    must(&the_server, line);
}

/* What the waiter watches goes while it is away, and the server has forgotten that it went. */
static void a_compacted_history_costs_no_wake_up(void **state)
{
    proxy *p = proxy_here();
    dibs *a = open_here(), *b = open_through(p);
    dibs_grant *g = take(a, "compacted", NULL);
    job *j = job_start(b, "compacted", NULL);

    (void)state;
    wait_for_queue(a, "compacted", 1, 1);
    proxy_drop_all(p, true);
    assert_status(unlock(g), DIBS_OK);
    compact_all(a);
    proxy_heal(p);
    job_join_held(j);
    assert_status(unlock(j->g), DIBS_OK);
}

/* Those that begin in the past are, or were ended: etcd does that ten times a second. */
static bool all_watches_are_served(void *ctx)
{
    static char page[1 << 20];

    (void)ctx;
    return ensemble_page(&the_server, 0, "/metrics", page, sizeof page) > 0 &&
           strstr(page, "\netcd_debugging_mvcc_slow_watcher_total 0");
}

/* The same, but it goes when the waiter is back: the watch that the server has ended is made anew. */
static void a_watch_is_made_anew_after_a_compaction(void **state)
{
    proxy *p = proxy_here();
    dibs *a = open_url(url_lasting(the_server.hosts)), *b = open_url(url_lasting(hosts_of(p)));
    dibs_grant *g = take(a, "watch-anew", NULL);
    job *j = job_start(b, "watch-anew", NULL);

    (void)state;
    wait_for_queue(a, "watch-anew", 1, 1);
    proxy_drop_all(p, true);
    compact_all(a);
    proxy_heal(p);
    assert_true(wait_until(has_connections, p, LONG_MS));
    assert_status(try_lock(b, "watch-other"), DIBS_OK);
    assert_true(wait_until(all_watches_are_served, NULL, LONG_MS));
    assert_status(try_lock(b, "watch-other"), DIBS_OK); /* what the server said before it is here */
    assert_status(unlock(g), DIBS_OK);
    if (!job_done_within(j, SOON_MS))
        fail_msg("first in the queue, and not woken");
    job_join_held(j);
    assert_status(unlock(j->g), DIBS_OK);
}

/* Somebody's key that is no entry of a line does not hold anything up. */
static void foreign_keys_are_left_alone(void **state)
{
    dibs *d = open_here();
    char answer[256];

    (void)state;
    must(&the_server, "put tests/foreign value");
    must(&the_server, "put tests/foreignish/x value");
    assert_status(unlock(take(d, "foreign", NULL)), DIBS_OK);
    assert_int_equal(
        etcdctl(&the_server, answer, sizeof answer, "get tests/foreign --print-value-only"), 0);
    assert_string_equal(answer, "value\n");
}

/* ---- Large values ---------------------------------------------------------------------------- */

/* What cells hold is no part of a listing. An answer that is too long for us is told as that. */
static void large_cells_cost_a_listing_nothing(void **state)
{
    proxy *p = proxy_here();
    dibs *d = open_url(url_of(hosts_of(p), ""));
    dibs_grant *g = take(d, "large-held", NULL);
    size_t size = 900000, longest = dibs__h2_message_max;
    char *value = calloc(1, size), name[32];
    dibs_error err = {0};
    dibs_value read = {0};
    dibs_lock_report *r = NULL;
    proxy_counts passed;

    (void)state;
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "large%d", i);
        assert_status(dibs_cell_swap(d, name, 0, value, size, NULL, NULL, &err), DIBS_OK);
    }
    proxy_reset_counts(p);
    assert_status(dibs_lock_list(d, "large", &(dibs_lock_list_options){.idle = true}, &r, &err),
                  DIBS_OK);
    proxy_read(p, &passed);
    assert_in_range(passed.bytes[PROXY_DOWN], 1, 100000);
    assert_int_equal(dibs_lock_report_count(r), 1);
    assert_string_equal(dibs_lock_report_at(r, 0)->name, "large-held");
    dibs_lock_report_free(r);
    dibs__h2_message_max = 100000;
    assert_true(dibs_cell_read(d, "large0", &read, &err) != DIBS_OK);
    dibs__h2_message_max = longest;
    assert_non_null(strstr(err.message, "is longer than"));
    assert_status(unlock(g), DIBS_OK);
    free(value);
}

/* ---- A full store ---------------------------------------------------------------------------- */

static void a_full_store_is_reported(void **state)
{
    static const char *const extra[] = {"--quota-backend-bytes=16777216", NULL};
    ensemble e;
    proxy *p;
    dibs *d;
    dibs_grant *g, *none = NULL;
    dibs_error err = {0};
    char command[512];

    (void)state;
    need_server();
    ensemble_need(&e, ENSEMBLE_ETCD, 1, extra);
    p = proxy_to(e.node[0].port);
    d = open_url(url_of(hosts_of(p), ""));
    g = take(d, "full", NULL);
    snprintf(
        command, sizeof command,
        "export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=%s; "
        "for i in $(seq 100); do etcdctl alarm list | grep -q NOSPACE && exit 0; "
        "head -c 1000000 /dev/zero | tr '\\0' x | etcdctl put k$i >/dev/null 2>&1; done; exit 1",
        e.hosts);
    assert_int_equal(run_program(NULL, 0, (const char *const[]){"sh", "-c", command, NULL}), 0);
    dibs_status status = dibs_lock(d, "more", &(dibs_lock_options){.wait_ms = 1000}, &none, &err);
    assert_true(status != DIBS_OK);
    assert_non_null(strstr(err.message, "space"));
    assert_true(dibs_grant_held(g));
    /* No answer to a write: its guard cannot be written anew, and the holder asks for its own all the same. */
    proxy_swallow(p, PROXY_DOWN, 0);
    status = dibs_lock(d, "more", &(dibs_lock_options){.wait_ms = 300}, &none, NULL);
    assert_true(status != DIBS_OK);
    proxy_heal(p);
    assert_status(dibs_renew(g, &err), DIBS_OK);
    assert_status(unlock(g), DIBS_OK); /* deleting is allowed */
    close_handle(d);
    ensemble_stop(&e);
}

/* ---- A long queue ---------------------------------------------------------------------------- */

#define WAITERS 77 /* more than a queue that is told whole */
#define QUITTER \
    (WAITERS - 2) /* gives up, so that the one behind it has a predecessor that never held */

/* Of several handles, none of which knows all of it. What tells its beginning and its end does not outlast it. */
static void a_long_queue_is_served_in_order(void **state)
{
    const dibs_lock_options brief = {.wait_ms = SOON_MS};
    dibs *d[3], *other;
    dibs_grant *g;
    char left[1024];
    uint64_t fence;
    job *j[WAITERS];

    (void)state;
    need_server();
    for (int i = 0; i < 3; i++)
        d[i] = open_url(url_lasting(the_server.hosts));
    g = take(d[0], "long", NULL);
    fence = dibs_grant_fence(g);
    for (int i = 0; i < WAITERS; i++) {
        j[i] = job_start(d[i % 3], "long", i == QUITTER ? &brief : NULL);
        wait_for_queue(d[0], "long", 1, (size_t)i + 1);
    }
    job_join(j[QUITTER]);
    assert_status(j[QUITTER]->status, DIBS_BUSY);
    for (int i = 0; i < WAITERS; i++) {
        if (i == QUITTER)
            continue;
        assert_status(unlock(g), DIBS_OK);
        job_join_held(j[i]);
        assert_true(j[i]->fence > fence);
        fence = j[i]->fence;
        g = j[i]->g;
    }
    assert_int_equal(etcdctl_number(&the_server, "get tests/%h/long -w json", "count", 0), 1);
    assert_status(unlock(g), DIBS_OK);
    other = open_url(url_lasting(the_server.hosts));
    for (int i = 0; i < 3; i++) {
        assert_status(try_lock(d[i], "long"), DIBS_OK);
        assert_status(try_lock(other, "long"), DIBS_OK);
    }
    close_all(NULL);
    assert_int_equal(etcdctl(&the_server, left, sizeof left, "get tests/%% --prefix"), 0);
    assert_string_equal(left, "");
}

static const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_teardown(name, close_all)
    CASE(tls_is_verified),
    CASE(accounts_are_checked),
    CASE(tokens_are_fetched_anew),
    CASE(a_revoked_lease_is_a_loss),
    CASE(a_deleted_key_is_a_loss),
    CASE(a_compacted_history_costs_no_wake_up),
    CASE(a_watch_is_made_anew_after_a_compaction),
    CASE(foreign_keys_are_left_alone),
    CASE(large_cells_cost_a_listing_nothing),
    CASE(a_long_queue_is_served_in_order),
    CASE(a_full_store_is_reported),
};

int main(int argc, char *argv[])
{
    int failed;

    describe_server(ENSEMBLE_ETCD, NULL);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    failed = cmocka_run_group_tests_name("etcd", tests, NULL, NULL);
    ensemble_stop(&the_server);
    return failed ? 1 : 0;
}
