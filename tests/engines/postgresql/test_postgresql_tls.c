/* The PostgreSQL engine with TLS: who is believed, who is not, and that nothing goes out in plain
 * text instead. */
#define _GNU_SOURCE
#include "pg.h"

#include "support/clock.h"
#include "support/proxy.h"
#include "support/tls_files.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tls_files the_tls_files;

/* ---- The server ------------------------------------------------------------------------------ */

/* `someone` may not come in plain text, and `app` must show a certificate. */
static void write_rules(void)
{
    char path[SCRATCH_MAX + 64];
    FILE *f;

    snprintf(path, sizeof path, "%s/pg_hba.conf", pg_db.data);
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "local all all trust\n"
               "hostssl all app 127.0.0.1/32 cert\n"
               "hostssl all someone 127.0.0.1/32 trust\n"
               "host all postgres 127.0.0.1/32 trust\n");
    fclose(f);
}

static void dial_control(void)
{
    char info[SCRATCH_MAX + 128];

    snprintf(info, sizeof info, "host=%s port=%d user=postgres dbname=postgres", pg_db.socket,
             pg_db.port);
    pg_control = PQconnectdb(info);
    if (PQstatus(pg_control) != CONNECTION_OK)
        fail_msg("%s", PQerrorMessage(pg_control));
}

static void need_tls(void)
{
    char cert[SCRATCH_MAX + 64], key[SCRATCH_MAX + 64], ca[SCRATCH_MAX + 64];

    if (pg_db.pid > 0)
        return;
    tls_files_need(&the_tls_files, "postgres");
    tls_files_copy(&the_tls_files, "good", "server");
    snprintf(cert, sizeof cert, "-cssl_cert_file=%s", tls_files_file(&the_tls_files, "server.crt"));
    snprintf(key, sizeof key, "-cssl_key_file=%s", tls_files_file(&the_tls_files, "server.key"));
    snprintf(ca, sizeof ca, "-cssl_ca_file=%s", tls_files_file(&the_tls_files, "ca.crt"));
    database_need(&pg_db, DATABASE_POSTGRESQL,
                  (const char *const[]){"-cssl=on", cert, key, ca, NULL});
    write_rules();
    database_end(&pg_db, SIGINT);
    assert_int_equal(database_restart(&pg_db), 0);
    dial_control();
    pg_ask(pg_control, "CREATE ROLE app LOGIN SUPERUSER");
    pg_ask(pg_control, "CREATE ROLE someone LOGIN SUPERUSER");
}

/* From now on the server shows another certificate. */
static void show(const char *name)
{
    need_tls();
    tls_files_copy(&the_tls_files, name, "server");
    PQfinish(pg_control);
    database_end(&pg_db, SIGINT);
    assert_int_equal(database_restart(&pg_db), 0);
    dial_control();
}

/* ---- URLs ------------------------------------------------------------------------------------ */

/* `%` in `more` is the folder of the certificates. */
static const char *tls_url(const char *user, const char *host, const char *more)
{
    char head[128];

    snprintf(head, sizeof head, "postgresql://%s@%s:%d/postgres?", user, host, pg_db.port);
    return tls_files_url(&the_tls_files, head, more);
}

static bool all_are_encrypted(void)
{
    return strcmp(pg_ask(pg_control, "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity "
                                     "USING (pid) WHERE application_name = 'dibs'"),
                  "t") == 0;
}

static void good_for(const char *user, const char *host, const char *more)
{
    dibs *d = pg_open(tls_url(user, host, more));

    assert_int_equal(unlock(expect_lock(d, "by-tls", NULL)), DIBS_OK);
    assert_true(all_are_encrypted());
    dibs_close(d);
}

static void bad_for(const char *user, const char *host, const char *more, const char *word)
{
    expect_refused(tls_url(user, host, more), NULL, DIBS_DENIED, word);
}

static void good(const char *host, const char *more)
{
    good_for("someone", host, more);
}

static void bad(const char *host, const char *more, const char *word)
{
    bad_for("someone", host, more, word);
}

/* ---- Cases ----------------------------------------------------------------------------------- */

static void the_right_server_is_believed(void **state)
{
    (void)state;
    show("good");
    bad("127.0.0.1", "sslmode=disable", "no encryption");
    good("127.0.0.1", "sslmode=require");
    good("localhost", "sslmode=verify-ca&sslrootcert=%/ca.crt");
    good("localhost", "sslmode=verify-full&sslrootcert=%/ca.crt");
    good("127.0.0.1", "sslmode=verify-full&sslrootcert=%/ca.crt");
}

static void a_stranger_is_not(void **state)
{
    (void)state;
    show("good");
    bad("localhost", "sslmode=verify-ca&sslrootcert=%/stranger.crt", "certificate verify failed");
    bad("localhost", "sslmode=verify-full&sslrootcert=%/stranger.crt", "certificate verify failed");
    bad("localhost", "sslmode=verify-full&sslrootcert=%/nothing.crt", "does not exist");
}

static void another_name_is_not(void **state)
{
    (void)state;
    show("elsewhere");
    bad("localhost", "sslmode=verify-full&sslrootcert=%/ca.crt", "does not match");
    bad("127.0.0.1", "sslmode=verify-full&sslrootcert=%/ca.crt", "does not match");
    good("localhost", "sslmode=verify-ca&sslrootcert=%/ca.crt");
    /* The name that is in it, at an address that is given. */
    good("elsewhere.example", "hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert=%/ca.crt");
}

static void an_expired_one_is_not(void **state)
{
    (void)state;
    show("expired");
    bad("localhost", "sslmode=verify-ca&sslrootcert=%/ca.crt", "certificate verify failed");
    bad("localhost", "sslmode=verify-full&sslrootcert=%/ca.crt", "certificate verify failed");
}

static void a_client_shows_its_own(void **state)
{
    const char *ca = "sslmode=verify-full&sslrootcert=%/ca.crt";
    char more[256];

    (void)state;
    show("good");
    snprintf(more, sizeof more, "%s&sslcert=%%/app.crt&sslkey=%%/app.key", ca);
    good_for("app", "127.0.0.1", more);
    bad_for("app", "127.0.0.1", ca, "certificate");
    snprintf(more, sizeof more, "%s&sslcert=%%/good.crt&sslkey=%%/good.key", ca);
    bad_for("app", "127.0.0.1", more, "certificate authentication failed");
    snprintf(more, sizeof more, "%s&sslcert=%%/foreign.crt&sslkey=%%/foreign.key", ca);
    bad_for("app", "127.0.0.1", more, "unknown ca");
    snprintf(more, sizeof more, "%s&sslcert=%%/app.crt&sslkey=%%/good.key", ca);
    bad_for("app", "127.0.0.1", more, "key");
}

static bool one_listens(void *unused)
{
    (void)unused;
    return strcmp(pg_ask(pg_control, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE "
                                     "'LISTEN dibs%' AND state = 'idle'"),
                  "1") == 0;
}

static void waiters_are_woken_through_it(void **state)
{
    dibs *handles[2];
    dibs_grant *g;
    team t;

    (void)state;
    show("good");
    for (int i = 0; i < 2; i++)
        handles[i] =
            pg_open(tls_url("someone", "localhost", "sslmode=verify-full&sslrootcert=%/ca.crt"));
    g = expect_lock(handles[0], "woken-by-tls", NULL);
    team_start(&t, handles + 1, 1, 3, 1, "woken-by-tls");
    pg_wait_for_queue(3);
    assert_true(wait_until(one_listens, NULL, LONG_MS));
    assert_true(all_are_encrypted());
    unlock(g);
    team_end(&t);
    for (int i = 0; i < 2; i++)
        dibs_close(handles[i]);
}

/* A server that is there and says nothing while hands are being shaken, or to the first question. */
static void a_silent_handshake_ends_in_time(void **state)
{
    (void)state;
    need_tls();
    for (int i = 0; i < 2; i++) {
        proxy *p = proxy_start(pg_db.port);
        dibs_error err = {0};
        dibs *d = NULL;
        char url[256];
        int64_t begun;
        snprintf(url, sizeof url, "postgresql://postgres@127.0.0.1:%d/postgres?sslmode=require",
                 proxy_port(p));
        proxy_swallow(p, PROXY_DOWN, i); /* after "yes, TLS" */
        begun = clock_ms();
        assert_int_equal(dibs_open(url, &(dibs_options){.connect_ms = 500}, &d, &err),
                         DIBS_UNAVAILABLE);
        assert_in_range(clock_ms() - begun, 450, 10000);
        proxy_stop(p);
    }
}

static int tear_down(void **state)
{
    int status = pg_teardown(state);

    tls_files_drop(&the_tls_files);
    return status;
}

int main(int argc, char *argv[])
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_right_server_is_believed),
        cmocka_unit_test(a_stranger_is_not),
        cmocka_unit_test(another_name_is_not),
        cmocka_unit_test(an_expired_one_is_not),
        cmocka_unit_test(a_client_shows_its_own),
        cmocka_unit_test(waiters_are_woken_through_it),
        cmocka_unit_test(a_silent_handshake_ends_in_time),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("postgresql-tls", tests, NULL, tear_down);
}
