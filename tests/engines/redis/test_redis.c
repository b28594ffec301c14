/* The Redis engine by itself: ways in (password, user, database, socket, TLS), the server's moods
 * (scripts flushed, connections killed, restarts, full memory, replicas), wake-ups, looking, keys.
 */
#define _GNU_SOURCE
#include "support/certificates.h"
#include "support/test.h"

#include "core/report.h"
#include "fixture.h"
#include "support/clock.h"
#include "support/server.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ID "0123456789abcdef"

static dibs_status open_url(fixture *g, const char *url, dibs_error *err)
{
    return fixture_open(g, url, ID, 2000, err);
}

/* Opens and takes a lock, or says with which status and word it must fail. */
static void expect_open(const char *url, dibs_status expected, const char *word)
{
    fixture g;
    dibs__reply reply;
    dibs_error err = {0};
    dibs_status status = open_url(&g, url, &err);

    if (status != expected || (word && !strstr(err.message, word)))
        printf("# %s: %s: %s\n", url, dibs_status_name(status), err.message);
    assert_int_equal(status, expected);
    if (word)
        assert_non_null(strstr(err.message, word));
    if (status == DIBS_OK) {
        assert_int_equal(fixture_enter(&g, "lock", "me", 1, 0, &reply, &err), DIBS_OK);
        assert_int_equal(reply.verdict, DIBS__GRANTED);
        assert_int_equal(fixture_release(&g, "lock", "me", 1, &reply, &err), DIBS_OK);
        assert_int_equal(reply.verdict, DIBS__RELEASED);
    }
    fixture_close(&g);
}

#define EXPECT_OPEN(expected, word, ...)          \
    do {                                          \
        char url_[1024];                          \
        snprintf(url_, sizeof url_, __VA_ARGS__); \
        expect_open(url_, expected, word);        \
    } while (0)

/* ---- Ways in --------------------------------------------------------------------------------- */

static void bad_urls_are_distinguished(void **state)
{
    (void)state;
    EXPECT_OPEN(DIBS_INVALID, "database", "redis://127.0.0.1/x");
    EXPECT_OPEN(DIBS_INVALID, "database", "redis://127.0.0.1/-1");
    EXPECT_OPEN(DIBS_INVALID, "one host", "redis://a,b");
    EXPECT_OPEN(DIBS_INVALID, "one host", "redis:x");
    EXPECT_OPEN(DIBS_INVALID, "'colour'", "redis://127.0.0.1?colour=red");
    EXPECT_OPEN(DIBS_INVALID, "'ca'", "redis://127.0.0.1?ca=x");
    EXPECT_OPEN(DIBS_INVALID, "prefix", "redis://127.0.0.1?prefix=a{b");
    EXPECT_OPEN(DIBS_INVALID, "password", "redis://someone@127.0.0.1");
    EXPECT_OPEN(DIBS_INVALID, "path of a socket", "redis+unix://host/x");
    EXPECT_OPEN(DIBS_INVALID, "db=x", "redis+unix:///tmp/none?db=x");
    EXPECT_OPEN(DIBS_INVALID, "no-such-file", "rediss://127.0.0.1?ca=/no-such-file");
    EXPECT_OPEN(DIBS_INVALID, "belong together", "rediss://127.0.0.1?cert=/etc/hostname");
    EXPECT_OPEN(DIBS_UNAVAILABLE, "no-such-socket", "redis+unix:///tmp/no-such-socket");
    EXPECT_OPEN(DIBS_UNAVAILABLE, "is the server running", "redis://127.0.0.1:%d", free_port());
    EXPECT_OPEN(DIBS_UNAVAILABLE, "nowhere.invalid", "redis://nowhere.invalid");
}

static void password_user_database_and_socket(void **state)
{
    server s;

    (void)state;
    server_need(&s, NULL);
    server_command(&s, "ACL SETUSER ann on >word ~dibs:* &dibs:* +@all", NULL, 0);
    server_command(&s, "CONFIG SET requirepass s3cret", NULL, 0);
    EXPECT_OPEN(DIBS_DENIED, "password", "redis://127.0.0.1:%d", s.port);
    EXPECT_OPEN(DIBS_DENIED, "wrong", "redis://:guess@127.0.0.1:%d", s.port);
    EXPECT_OPEN(DIBS_DENIED, "wrong", "redis://ann:guess@127.0.0.1:%d", s.port);
    EXPECT_OPEN(DIBS_OK, NULL, "redis://:s3cret@127.0.0.1:%d", s.port);
    EXPECT_OPEN(DIBS_OK, NULL, "redis://ann:word@127.0.0.1:%d", s.port);
    EXPECT_OPEN(DIBS_OK, NULL, "redis://:s3cret@localhost:%d/7", s.port);
    EXPECT_OPEN(DIBS_INVALID, "no such database", "redis://:s3cret@127.0.0.1:%d/99", s.port);
    EXPECT_OPEN(DIBS_OK, NULL, "redis+unix://:s3cret@%s?db=3&prefix=mine", s.socket);
    server_stop(&s);
}

static void a_user_without_rights_gets_the_reason(void **state)
{
    server s;
    fixture g;
    dibs__reply reply;
    dibs_error err = {0};

    (void)state;
    server_need(&s, NULL);
    /* No INFO, no CLIENT, no channel: all of these are courtesies. */
    server_command(&s, "ACL SETUSER bob on >word ~dibs:* resetchannels +@all -info -client", NULL,
                   0);
    server_command(&s, "ACL SETUSER eve on >word ~other:* +@all", NULL, 0);
    EXPECT_OPEN(DIBS_OK, NULL, "redis://bob:word@127.0.0.1:%d", s.port);
    char url[128];
    snprintf(url, sizeof url, "redis://eve:word@127.0.0.1:%d", s.port);
    assert_int_equal(open_url(&g, url, &err), DIBS_OK);
    assert_int_equal(fixture_enter(&g, "lock", "me", 1, 0, &reply, &err), DIBS_DENIED);
    assert_non_null(strstr(err.message, "may not"));
    fixture_close(&g);
    server_stop(&s);
}

/* ---- TLS ------------------------------------------------------------------------------------- */

/* A server with TLS on `port`, showing `certificate`. */
static void tls_server(server *s, const scratch *folder, const char *certificate, const char *port,
                       const char *clients)
{
    char cert[SCRATCH_MAX + 32], key[SCRATCH_MAX + 32], ca[SCRATCH_MAX + 32];
    const char *const extra[] = {"--tls-port",
                                 port,
                                 "--tls-cert-file",
                                 scratch_file(folder, certificate, cert, sizeof cert),
                                 "--tls-key-file",
                                 scratch_file(folder, "good.key", key, sizeof key),
                                 "--tls-ca-cert-file",
                                 scratch_file(folder, "ca.crt", ca, sizeof ca),
                                 "--tls-auth-clients",
                                 clients,
                                 NULL};

    server_need(s, extra);
}

static void tls_is_verified(void **state)
{
    scratch folder;
    server s;
    char port[16];

    (void)state;
    if (!server_available() && !server_required())
        skip();
    assert_int_equal(scratch_make(&folder), 0);
    make_certificates(&folder);
    snprintf(port, sizeof port, "%d", free_port());
    tls_server(&s, &folder, "good.crt", port, "no");
    EXPECT_OPEN(DIBS_OK, NULL, "rediss://127.0.0.1:%s?ca=%s/ca.crt", port, folder.path);
    EXPECT_OPEN(DIBS_OK, NULL, "rediss://localhost:%s?ca=%s/ca.crt", port, folder.path);
    EXPECT_OPEN(DIBS_DENIED, "is not trusted", "rediss://127.0.0.1:%s?ca=%s/ca2.crt", port,
                folder.path);
    EXPECT_OPEN(DIBS_DENIED, "is not trusted", "rediss://127.0.0.1:%s", port);
    EXPECT_OPEN(DIBS_UNAVAILABLE, "TLS port", "rediss://127.0.0.1:%d?ca=%s/ca.crt", s.port,
                folder.path);
    server_stop(&s);
    tls_server(&s, &folder, "other.crt", port, "no");
    EXPECT_OPEN(DIBS_DENIED, "is not valid for", "rediss://127.0.0.1:%s?ca=%s/ca.crt", port,
                folder.path);
    EXPECT_OPEN(DIBS_DENIED, "is not valid for", "rediss://localhost:%s?ca=%s/ca.crt", port,
                folder.path);
    server_stop(&s);
    tls_server(&s, &folder, "old.crt", port, "no");
    EXPECT_OPEN(DIBS_DENIED, "has expired", "rediss://127.0.0.1:%s?ca=%s/ca.crt", port,
                folder.path);
    server_stop(&s);
    tls_server(&s, &folder, "good.crt", port, "yes");
    EXPECT_OPEN(DIBS_OK, NULL,
                "rediss://127.0.0.1:%s?ca=%s/ca.crt&cert=%s/good.crt&key=%s/good.key", port,
                folder.path, folder.path, folder.path);
    fixture g;
    dibs_error err = {0};
    char url[512];
    snprintf(url, sizeof url, "rediss://127.0.0.1:%s?ca=%s/ca.crt", port, folder.path);
    assert_int_not_equal(open_url(&g, url, &err), DIBS_OK); /* it wants a certificate of ours */
    fixture_close(&g);
    server_stop(&s);
    scratch_remove(&folder);
}

/* ---- The server's moods ---------------------------------------------------------------------- */

static void forgotten_scripts_are_sent_again(void **state)
{
    server s;
    fixture g;
    dibs__reply reply;
    size_t holders, waiters;
    uint64_t fence;

    (void)state;
    server_need(&s, NULL);
    assert_int_equal(open_url(&g, s.url, NULL), DIBS_OK);
    server_command(&s, "SCRIPT FLUSH", NULL, 0);
    assert_int_equal(fixture_enter(&g, "a", "me", 1, 0, &reply, NULL), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__GRANTED);
    fence = reply.fence;
    server_command(&s, "SCRIPT FLUSH", NULL, 0);
    assert_int_equal(fixture_keep(&g, "a", "me", 1, fence, &reply), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__GRANTED);
    server_command(&s, "SCRIPT FLUSH", NULL, 0);
    assert_true(fixture_look(&g, "a", &holders, &waiters, &fence));
    server_command(&s, "SCRIPT FLUSH", NULL, 0);
    assert_int_equal(fixture_release(&g, "a", "me", 1, &reply, NULL), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__RELEASED);
    fixture_close(&g);
    server_stop(&s);
}

static void killed_connections_and_restarts(void **state)
{
    server s;
    fixture g;
    dibs__reply reply;

    (void)state;
    server_need(&s, NULL);
    assert_int_equal(open_url(&g, s.url, NULL), DIBS_OK);
    assert_int_equal(fixture_enter(&g, "a", "me", 1, 0, &reply, NULL), DIBS_OK);
    server_command(&s, "CLIENT KILL TYPE normal SKIPME yes", NULL, 0);
    sleep_ms(150); /* an idle connection is looked at before it is used */
    assert_int_equal(fixture_keep(&g, "a", "me", 1, reply.fence, &reply), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__GRANTED);
    server_end(&s, SIGKILL);
    assert_int_equal(server_restart(&s), 0);
    sleep_ms(150);
    assert_int_equal(fixture_keep(&g, "a", "me", 1, reply.fence, &reply), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__LOST); /* this server kept nothing */
    fixture_close(&g);
    server_stop(&s);
}

static void a_flush_loses_the_lock_and_nothing_comes_back(void **state)
{
    server s;
    fixture g;
    dibs__reply reply;
    char text[64];
    uint64_t fence;

    (void)state;
    server_need(&s, NULL);
    assert_int_equal(open_url(&g, s.url, NULL), DIBS_OK);
    assert_int_equal(fixture_enter(&g, "a", "me", 1, 0, &reply, NULL), DIBS_OK);
    fence = reply.fence;
    server_command(&s, "FLUSHALL", NULL, 0);
    assert_int_equal(fixture_keep(&g, "a", "me", 1, fence, &reply), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__LOST);
    server_command(&s, "DBSIZE", text, sizeof text);
    assert_memory_equal(text, ":0", 2);
    assert_int_equal(fixture_enter(&g, "a", "me", 2, 0, &reply, NULL), DIBS_OK);
    assert_true(reply.fence > fence);
    fixture_close(&g);
    server_stop(&s);
}

static void a_full_server_still_lets_go(void **state)
{
    server s;
    fixture g;
    dibs__reply reply;
    dibs_error err = {0};

    (void)state;
    server_need(&s, NULL);
    assert_int_equal(open_url(&g, s.url, NULL), DIBS_OK);
    assert_int_equal(fixture_enter(&g, "a", "me", 1, 0, &reply, NULL), DIBS_OK);
    server_command(&s, "CONFIG SET maxmemory 1", NULL, 0);
    assert_int_equal(fixture_keep(&g, "a", "me", 1, reply.fence, &reply), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__GRANTED);
    assert_int_equal(fixture_enter(&g, "b", "me", 2, 0, &reply, &err), DIBS_UNAVAILABLE);
    assert_non_null(strstr(err.message, "maxmemory"));
    assert_int_equal(fixture_release(&g, "a", "me", 1, &reply, &err), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__RELEASED);
    fixture_close(&g);
    server_stop(&s);
}

static void a_try_at_a_full_server_is_answered_at_once(void **state)
{
    server s;
    dibs *d = NULL;
    dibs_grant *g = NULL;
    dibs_error err = {0};
    int64_t start;

    (void)state;
    server_need(&s, NULL);
    assert_int_equal(dibs_open(s.url, &(dibs_options){.request_ms = 10000}, &d, NULL), DIBS_OK);
    server_command(&s, "CONFIG SET maxmemory 1", NULL, 0);
    start = clock_ms();
    assert_int_equal(dibs_lock(d, "a", &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT}, &g, &err),
                     DIBS_UNAVAILABLE);
    assert_in_range(clock_ms() - start, 0, 5000);
    assert_non_null(strstr(err.message, "maxmemory"));
    dibs_close(d);
    server_stop(&s);
}

static void eviction_is_warned_of(void **state)
{
    const char *const extra[] = {"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru", NULL};
    server s;
    fixture g;

    (void)state;
    server_need(&s, extra);
    assert_int_equal(open_url(&g, s.url, NULL), DIBS_OK);
    assert_int_equal(g.warnings, 1);
    fixture_close(&g);
    server_stop(&s);
}

static void a_replica_and_a_stranger_s_key_are_refused(void **state)
{
    server s;
    fixture g;
    dibs__reply reply;
    dibs_error err = {0};
    char command[64];

    (void)state;
    server_need(&s, NULL);
    assert_int_equal(open_url(&g, s.url, NULL), DIBS_OK);
    server_command(&s, "SET dibs:{a} x", NULL, 0);
    assert_int_equal(fixture_enter(&g, "a", "me", 1, 0, &reply, &err), DIBS_ENGINE_FAILED);
    assert_non_null(strstr(err.message, "prefix="));
    server_command(&s, "LPUSH dibs:{b} x", NULL, 0);
    assert_int_equal(fixture_enter(&g, "b", "me", 1, 0, &reply, &err), DIBS_ENGINE_FAILED);
    snprintf(command, sizeof command, "REPLICAOF 127.0.0.1 %d", free_port());
    server_command(&s, command, NULL, 0);
    assert_int_equal(fixture_enter(&g, "c", "me", 1, 0, &reply, &err), DIBS_UNAVAILABLE);
    fixture_close(&g);
    EXPECT_OPEN(DIBS_UNAVAILABLE, "replica", "%s", s.url);
    server_stop(&s);
}

static void a_table_that_is_gone_does_not_block_the_lock(void **state)
{
    server s;
    fixture g;
    dibs__reply reply;

    (void)state;
    server_need(&s, NULL);
    assert_int_equal(open_url(&g, s.url, NULL), DIBS_OK);
    assert_int_equal(fixture_enter(&g, "a", "me", 1, 0, &reply, NULL), DIBS_OK);
    assert_int_equal(fixture_enter(&g, "a", "you", 2, 5000, &reply, NULL), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__QUEUED);
    server_command(&s, "DEL dibs:{a}:q", NULL, 0);
    assert_int_equal(fixture_release(&g, "a", "me", 1, &reply, NULL), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__RELEASED);
    assert_int_equal(fixture_keep(&g, "a", "you", 2, 0, &reply), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__LOST);
    assert_int_equal(fixture_enter(&g, "a", "him", 3, 0, &reply, NULL), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__GRANTED);
    fixture_close(&g);
    server_stop(&s);
}

/* ---- Wake-ups -------------------------------------------------------------------------------- */

static bool woken(void *ctx)
{
    return fixture_events(ctx)->granted > 0;
}

static bool looked_again(void *ctx)
{
    return fixture_events(ctx)->looks_again > 0;
}

static void waiters_are_woken_by_event(void **state)
{
    server s;
    fixture g;
    dibs__reply reply;

    (void)state;
    server_need(&s, NULL);
    assert_int_equal(open_url(&g, s.url, NULL), DIBS_OK);
    assert_int_equal(fixture_enter(&g, "a", "me", 1, 0, &reply, NULL), DIBS_OK);
    assert_int_equal(fixture_enter(&g, "a", "you", 2, 5000, &reply, NULL), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__QUEUED);
    assert_int_equal(fixture_release(&g, "a", "me", 1, &reply, NULL), DIBS_OK);
    assert_true(wait_until(woken, &g, 2000));
    assert_string_equal(g.attempt, ID "-2");
    assert_true(g.fence > 0);
    /* The subscription is cut, and made again by itself. */
    server_command(&s, "CLIENT KILL TYPE pubsub", NULL, 0);
    g.granted = 0;
    assert_int_equal(g.looks_again, 0);
    assert_true(wait_until(looked_again, &g, 5000)); /* what was published meanwhile is lost */
    assert_int_equal(fixture_enter(&g, "a", "him", 3, 5000, &reply, NULL), DIBS_OK);
    assert_int_equal(fixture_release(&g, "a", "you", 2, &reply, NULL), DIBS_OK);
    assert_true(wait_until(woken, &g, 2000));
    assert_string_equal(g.attempt, ID "-3");
    fixture_close(&g);
    server_stop(&s);
}

/* ---- Names and looking ----------------------------------------------------------------------- */

static size_t list_count(fixture *g, const char *prefix, bool idle)
{
    dibs__report_builder *b = dibs__report_new();
    dibs_lock_report *report = NULL;
    size_t count;

    assert_int_equal(g->engine->class->list(g->engine, prefix, idle, fixture_until(g), b, NULL),
                     DIBS_OK);
    assert_int_equal(dibs__report_finish(b, 0, &report, NULL), DIBS_OK);
    count = dibs_lock_report_count(report);
    dibs_lock_report_free(report);
    return count;
}

static void names_of_any_bytes_are_listed(void **state)
{
    static const char *const names[] = {"plain",   "pl*in",  "pl?in",    "[pl]ain",
                                        "pl\\ain", "{tag}",  "}{",       "100%",
                                        "%41",     "a\nb c", "\xff\xfe", "plain:q"};
    const size_t count = sizeof names / sizeof names[0];
    server s;
    fixture g;
    dibs__reply reply;
    char url[128], longest[DIBS_NAME_MAX + 1];

    (void)state;
    server_need(&s, NULL);
    snprintf(url, sizeof url, "%s?prefix=p*[x]", s.url);
    assert_int_equal(open_url(&g, url, NULL), DIBS_OK);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(fixture_enter(&g, names[i], "me", (int)i, 0, &reply, NULL), DIBS_OK);
        assert_int_equal(reply.verdict, DIBS__GRANTED);
    }
    assert_int_equal(list_count(&g, "", false), count);
    assert_int_equal(list_count(&g, "pl", false), 5);
    assert_int_equal(list_count(&g, "pl*", false), 1);
    assert_int_equal(list_count(&g, "{", false), 1);
    assert_int_equal(list_count(&g, "%4", false), 1);
    assert_int_equal(list_count(&g, "nothing", false), 0);
    assert_int_equal(fixture_release(&g, "plain", "me", 0, &reply, NULL), DIBS_OK);
    assert_int_equal(list_count(&g, "plain", false), 1);
    assert_int_equal(list_count(&g, "plain", true), 2);
    memset(longest, '%', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(fixture_enter(&g, longest, "me", 99, 0, &reply, NULL), DIBS_OK);
    assert_int_equal(list_count(&g, longest, false), 1);
    fixture_close(&g);
    server_stop(&s);
}

/* Calls that the server has counted, those of scripts included. */
static long calls_of(server *s, const char *command)
{
    char reply[16384], wanted[64];
    const char *at;

    assert_int_equal(server_command(s, "INFO commandstats", reply, sizeof reply), 0);
    snprintf(wanted, sizeof wanted, "cmdstat_%s:calls=", command);
    at = strstr(reply, wanted);
    return at ? atol(at + strlen(wanted)) : 0;
}

static void enter_and_leave(fixture *g, const char *name, int attempt)
{
    dibs__reply reply;

    assert_int_equal(fixture_enter(g, name, "me", attempt, 0, &reply, NULL), DIBS_OK);
    assert_int_equal(fixture_release(g, name, "me", attempt, &reply, NULL), DIBS_OK);
}

/* What is idle costs a listing nothing. If the set of the busy ones is lost, as it is in what an older
 * version wrote, the next listing makes it anew, and the ones after that use it. */
static void a_listing_costs_what_it_lists(void **state)
{
    server s;
    fixture g;
    dibs__reply reply;
    char name[32];
    long before;

    (void)state;
    server_need(&s, NULL);
    assert_int_equal(open_url(&g, s.url, NULL), DIBS_OK);
    for (int i = 0; i < 1500; i++) {
        snprintf(name, sizeof name, "idle%d", i);
        enter_and_leave(&g, name, i);
    }
    assert_int_equal(fixture_enter(&g, "held", "me", 2000, 0, &reply, NULL), DIBS_OK);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(list_count(&g, "", false), 1);
        before = calls_of(&s, "evalsha") + calls_of(&s, "eval") + calls_of(&s, "scan");
        assert_int_equal(list_count(&g, "", false), 1);
        assert_in_range(
            calls_of(&s, "evalsha") + calls_of(&s, "eval") + calls_of(&s, "scan") - before, 1, 3);
        server_command(&s, "DEL dibs:busy", name, sizeof name);
    }
    assert_int_equal(list_count(&g, "", true), 1501);
    fixture_close(&g);
    server_stop(&s);
}

/* A record that ends by itself leaves its name behind only until others use the server. */
static void names_left_behind_are_swept(void **state)
{
    server s;
    fixture g;
    char name[32], reply[64];

    (void)state;
    server_need(&s, NULL);
    assert_int_equal(open_url(&g, s.url, NULL), DIBS_OK);
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "SADD dibs:busy dibs:{gone%d}", i);
        server_command(&s, name, reply, sizeof reply);
    }
    for (int i = 0; i < 2000; i++) {
        snprintf(name, sizeof name, "new%d", i);
        enter_and_leave(&g, name, i);
    }
    server_command(&s, "SCARD dibs:busy", reply, sizeof reply);
    assert_int_equal(atoi(reply + 1), 0);
    fixture_close(&g);
    server_stop(&s);
}

static void nothing_stays_for_ever(void **state)
{
    server s;
    fixture g;
    dibs__reply reply;
    char text[64];

    (void)state;
    server_need(&s, NULL);
    assert_int_equal(open_url(&g, s.url, NULL), DIBS_OK);
    assert_int_equal(fixture_enter(&g, "a", "me", 1, 0, &reply, NULL), DIBS_OK);
    assert_int_equal(fixture_enter(&g, "a", "you", 2, 5000, &reply, NULL), DIBS_OK);
    static const char *const keys[] = {"dibs:{a}", "dibs:{a}:q"};
    for (size_t i = 0; i < 2; i++) {
        char command[64];
        snprintf(command, sizeof command, "PTTL %s", keys[i]);
        server_command(&s, command, text, sizeof text);
        assert_in_range(atoll(text + 1), 86400000, 2 * 86400000);
    }
    assert_int_equal(fixture_release(&g, "a", "me", 1, &reply, NULL), DIBS_OK);
    server_command(&s, "PTTL dibs:{a}", text, sizeof text);
    assert_in_range(atoll(text + 1), 86400000, 2 * 86400000);
    fixture_close(&g);
    server_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_urls_are_distinguished),
        cmocka_unit_test(password_user_database_and_socket),
        cmocka_unit_test(a_user_without_rights_gets_the_reason),
        cmocka_unit_test(tls_is_verified),
        cmocka_unit_test(forgotten_scripts_are_sent_again),
        cmocka_unit_test(killed_connections_and_restarts),
        cmocka_unit_test(a_flush_loses_the_lock_and_nothing_comes_back),
        cmocka_unit_test(a_full_server_still_lets_go),
        cmocka_unit_test(a_try_at_a_full_server_is_answered_at_once),
        cmocka_unit_test(eviction_is_warned_of),
        cmocka_unit_test(a_replica_and_a_stranger_s_key_are_refused),
        cmocka_unit_test(a_table_that_is_gone_does_not_block_the_lock),
        cmocka_unit_test(waiters_are_woken_by_event),
        cmocka_unit_test(names_of_any_bytes_are_listed),
        cmocka_unit_test(a_listing_costs_what_it_lists),
        cmocka_unit_test(names_left_behind_are_swept),
        cmocka_unit_test(nothing_stays_for_ever),
    };

    return cmocka_run_group_tests_name("redis", tests, NULL, NULL);
}
