/* TLS: who is believed, who is not, and that nothing goes out in plain text instead. */
#define _GNU_SOURCE
#include "suite.h"

#include "support/proxy.h"
#include "support/tls_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tls_files the_tls_files;
static database the_tls;

/* The server's certificate is the file server.crt; its clients' are signed by the authority. */
static void need_tls(void)
{
    char cert[SCRATCH_MAX + 64], key[SCRATCH_MAX + 64], ca[SCRATCH_MAX + 64];

    if (the_tls.pid > 0)
        return;
    tls_files_need(&the_tls_files, "mysql");
    tls_files_copy(&the_tls_files, "good", "server");
    snprintf(cert, sizeof cert, "--ssl-cert=%s", tls_files_file(&the_tls_files, "server.crt"));
    snprintf(key, sizeof key, "--ssl-key=%s", tls_files_file(&the_tls_files, "server.key"));
    snprintf(ca, sizeof ca, "--ssl-ca=%s", tls_files_file(&the_tls_files, "ca.crt"));
    database_need(&the_tls, DATABASE_MARIADB, (const char *const[]){cert, key, ca, NULL});
    make_accounts(&the_tls);
    ask(&the_tls, "ALTER USER app@localhost REQUIRE SSL; ALTER USER app@'127.0.0.1' REQUIRE SSL");
}

/* From now on the server shows another certificate. */
static void show(const char *name)
{
    need_tls();
    tls_files_copy(&the_tls_files, name, "server");
    ask(&the_tls, "FLUSH SSL");
}

/* `%` in `more` is the folder of the certificates. */
static const char *tls_url(const char *host, const char *more)
{
    char head[128];

    snprintf(head, sizeof head, "mysql://app:app@%s:%d/dibs?", host, the_tls.port);
    return tls_files_url(&the_tls_files, head, more);
}

static void good(const char *host, const char *more)
{
    dibs *d = open_url(tls_url(host, more));

    unlock(take(d, "by-tls", 0));
    dibs_close(d);
}

static void refused(const char *host, const char *more, dibs_status want, const char *word)
{
    expect_refused(tls_url(host, more), NULL, want, word);
}

static void bad(const char *host, const char *more, const char *word)
{
    refused(host, more, DIBS_DENIED, word);
}

static void plain_text_is_no_way_out(void **state)
{
    (void)state;
    need_server();
    need_tls(); /* for the authority; the server without TLS is the other one */
    for (int i = 0; i < 3; i++) {
        const char *mode = (const char *[]){"required", "verify_ca", "verify_identity"}[i];
        char more[SCRATCH_MAX + 64];
        snprintf(more, sizeof more, "?ssl_mode=%s&ssl_ca=%s", mode,
                 tls_files_file(&the_tls_files, "ca.crt"));
        expect_refused(url_of(&the_server, "app", more), NULL, DIBS_DENIED, "TLS");
    }
}

/* An account that may not come in plain text tells that nothing does. */
static void the_right_server_is_believed(void **state)
{
    (void)state;
    show("good");
    bad("127.0.0.1", "ssl_mode=disabled", "user and password");
    good("127.0.0.1", "ssl_mode=required");
    good("127.0.0.1", "ssl_ca=%/ca.crt"); /* that is verify_identity */
    good("localhost", "ssl_mode=verify_identity&ssl_ca=%/ca.crt");
    good("localhost", "ssl_mode=verify_ca&ssl_ca=%/ca.crt");
}

static void a_stranger_is_not(void **state)
{
    (void)state;
    show("good");
    bad("localhost", "ssl_ca=%/stranger.crt", "certificate");
    bad("localhost", "ssl_mode=verify_ca&ssl_ca=%/stranger.crt", "certificate");
    bad("localhost", "ssl_mode=verify_identity",
        "certificate"); /* nobody on this machine signed it */
    refused("localhost", "ssl_mode=verify_ca", DIBS_INVALID, "ssl_ca");
}

static void another_name_is_not(void **state)
{
    (void)state;
    show("elsewhere");
    bad("localhost", "ssl_ca=%/ca.crt", "certificate");
    bad("127.0.0.1", "ssl_mode=verify_identity&ssl_ca=%/ca.crt", "certificate");
    good("localhost", "ssl_mode=verify_ca&ssl_ca=%/ca.crt");
    good("localhost", "ssl_mode=required");
}

static void an_expired_one_is_not(void **state)
{
    (void)state;
    show("expired");
    bad("localhost", "ssl_ca=%/ca.crt", "certificate");
    bad("localhost", "ssl_mode=verify_ca&ssl_ca=%/ca.crt", "certificate");
}

static void a_client_shows_its_own(void **state)
{
    (void)state;
    show("good");
    ask(&the_tls, "ALTER USER app@localhost REQUIRE SUBJECT '/CN=app'; "
                  "ALTER USER app@'127.0.0.1' REQUIRE SUBJECT '/CN=app'");
    good("127.0.0.1", "ssl_ca=%/ca.crt&ssl_cert=%/app.crt&ssl_key=%/app.key");
    bad("127.0.0.1", "ssl_ca=%/ca.crt", "user and password");
    bad("127.0.0.1", "ssl_ca=%/ca.crt&ssl_cert=%/good.crt&ssl_key=%/good.key", "user and password");
    refused("127.0.0.1", "ssl_ca=%/ca.crt&ssl_cert=%/foreign.crt&ssl_key=%/foreign.key",
            DIBS_UNAVAILABLE, "ssl_cert");
    bad("127.0.0.1", "ssl_ca=%/ca.crt&ssl_cert=%/app.crt&ssl_key=%/good.key", "TLS");
    ask(&the_tls, "ALTER USER app@localhost REQUIRE SSL; ALTER USER app@'127.0.0.1' REQUIRE SSL");
}

static bool one_sleeps(void *unused)
{
    (void)unused;
    return ask(&the_tls, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE "
                         "'SELECT IF(GET_LOCK%%' AND STATE = 'User lock'") == 1;
}

/* The connection that sleeps until it is woken is made in another way: it too must be encrypted. */
static void waiters_are_woken_through_it(void **state)
{
    dibs *a, *b;
    dibs_grant *g;
    waiter w;

    (void)state;
    show("good");
    a = open_url(tls_url("127.0.0.1", "ssl_ca=%/ca.crt"));
    b = open_url(tls_url("127.0.0.1", "ssl_ca=%/ca.crt"));
    g = take(a, "woken-by-tls", 0);
    waiter_start(&w, b, "woken-by-tls", 0, false);
    wait_for_waiters(a, "woken-by-tls", 1);
    assert_true(wait_until(one_sleeps, NULL, LONG_MS));
    unlock(g);
    waiter_join(&w);
    dibs_close(a);
    dibs_close(b);
}

/* A server that is there and says nothing while hands are being shaken. */
static void a_silent_handshake_ends_in_time(void **state)
{
    int64_t begin;
    dibs_error err = {0};
    char url[256];
    dibs *d = NULL;
    proxy *p;

    (void)state;
    need_tls();
    p = proxy_start(the_tls.port);
    snprintf(url, sizeof url, "mysql://app:app@127.0.0.1:%d/dibs?ssl_mode=required", proxy_port(p));
    proxy_freeze(p, PROXY_UP); /* its greeting arrives, our hello does not */
    begin = clock_ms();
    assert_status(dibs_open(url, &(dibs_options){.connect_ms = 500}, &d, &err), DIBS_UNAVAILABLE);
    assert_in_range(clock_ms() - begin, 450, SOON_MS);
    proxy_stop(p);
}

void tls_end(void)
{
    database_stop(&the_tls);
    tls_files_drop(&the_tls_files);
}

static const struct CMUnitTest all[] = {
    CASE(plain_text_is_no_way_out),
    CASE(the_right_server_is_believed),
    CASE(a_stranger_is_not),
    CASE(another_name_is_not),
    CASE(an_expired_one_is_not),
    CASE(a_client_shows_its_own),
    CASE(waiters_are_woken_through_it),
    CASE(a_silent_handshake_ends_in_time),
};

CASES(tls_cases, all);
