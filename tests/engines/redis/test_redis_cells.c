/* Cells on Redis by themselves: forgotten scripts, a full memory, strangers' keys, what expires and what
 * must not, a network that is cut anywhere. */
#define _GNU_SOURCE
#include "support/test.h"

#include "support/calls.h"
#include "support/clock.h"
#include "support/cutting.h"
#include "support/proxy.h"
#include "support/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOON_MS 5000

static server s;
static dibs *d;

static int set_up(void **state)
{
    (void)state;
    memset(&s, 0, sizeof s);
    d = NULL;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    if (d)
        dibs_close(d);
    server_stop(&s);
    return 0;
}

static void need(void)
{
    server_need(&s, NULL);
    d = expect_open(s.url, NULL);
}

static long number_of(const char *command)
{
    char reply[64] = "";

    assert_int_equal(server_command(&s, command, reply, sizeof reply), 0);
    assert_true(reply[0] == ':');
    return atol(reply + 1);
}

static void forgotten_scripts_are_sent_again(void **state)
{
    int64_t left = 0;

    (void)state;
    need();
    assert_int_equal(dibs_counter_set(d, "n", 5, NULL, NULL), DIBS_OK);
    server_command(&s, "SCRIPT FLUSH", NULL, 0);
    assert_int_equal(dibs_counter_take(d, "n", 2, NULL, &left, NULL), DIBS_OK);
    assert_int_equal(left, 3);
}

static void a_full_server_finishes_what_was_begun(void **state)
{
    dibs_once *run = NULL;
    dibs_error err = {0};
    int64_t left = 0;

    (void)state;
    need();
    assert_int_equal(dibs_counter_set(d, "n", 5, NULL, NULL), DIBS_OK);
    assert_int_equal(dibs_once_begin(d, "key", NULL, &run, NULL), DIBS_OK);
    server_command(&s, "CONFIG SET maxmemory 1", NULL, 0);
    assert_int_equal(dibs_counter_set(d, "other", 5, NULL, &err), DIBS_UNAVAILABLE);
    assert_non_null(strstr(err.message, "maxmemory"));
    assert_int_equal(dibs_counter_take(d, "n", 1, NULL, &left, NULL), DIBS_OK);
    assert_int_equal(left, 4);
    assert_int_equal(dibs_once_finish(run, "done", 4, 0, &err), DIBS_OK);
    dibs_once_free(run);
}

static void a_stranger_s_key_is_refused(void **state)
{
    dibs_error err = {0};
    dibs_value v;

    (void)state;
    need();
    server_command(&s, "SET dibs:{c:a}:c x", NULL, 0);
    assert_int_equal(dibs_cell_read(d, "a", &v, &err), DIBS_ENGINE_FAILED);
    assert_non_null(strstr(err.message, "prefix="));
    server_command(&s, "LPUSH dibs:{c:b}:c x", NULL, 0);
    assert_int_equal(dibs_cell_swap(d, "b", 0, "x", 1, NULL, NULL, &err), DIBS_ENGINE_FAILED);
}

static bool nothing_left(void *ctx)
{
    (void)ctx;
    return number_of("DBSIZE") == 0;
}

static void what_ends_is_dropped_by_the_server(void **state)
{
    (void)state;
    need();
    assert_int_equal(
        dibs_cell_swap(d, "a", 0, "x", 1, &(dibs_cell_options){.keep_ms = 20}, NULL, NULL),
        DIBS_OK);
    assert_int_equal(dibs_counter_set(d, "n", 1, NULL, NULL), DIBS_OK);
    assert_int_equal(dibs_counter_take(d, "n", 1,
                                       &(dibs_counter_options){.request = "{odd}%", .keep_ms = 20},
                                       NULL, NULL),
                     DIBS_OK);
    server_command(&s, "DEL dibs:{n:n}:c", NULL, 0);
    assert_true(wait_until(nothing_left, NULL, SOON_MS));
}

static void a_floor_outlives_the_value(void **state)
{
    dibs_error err = {0};
    dibs_value v = {0};
    uint64_t fence = 2000;

    (void)state;
    need();
    assert_int_equal(dibs_cell_pass(d, "a", &(dibs_cell_options){.fence = fence}, &v, &err),
                     DIBS_OK);
    assert_int_equal(dibs_cell_swap(d, "a", 0, "x", 1,
                                    &(dibs_cell_options){.keep_ms = 1, .fence = fence}, &v, &err),
                     DIBS_OK);
    assert_true(number_of("PTTL dibs:{c:a}:c") > (long)23 * 3600 * 1000);
    while (dibs_cell_read(d, "a", &v, NULL) == DIBS_OK)
        dibs_value_free(&v);
    assert_int_equal(dibs_cell_pass(d, "a", &(dibs_cell_options){.fence = fence - 1}, &v, &err),
                     DIBS_FENCED);
    assert_int_equal(
        dibs_cell_swap(d, "a", 0, "y", 1, &(dibs_cell_options){.fence = fence - 1}, NULL, &err),
        DIBS_FENCED);
}

static void cells_are_no_locks(void **state)
{
    dibs_lock_report *r = NULL;

    (void)state;
    need();
    assert_int_equal(dibs_counter_set(d, "n", 1, &(dibs_counter_options){.request = "x}"}, NULL),
                     DIBS_OK);
    assert_int_equal(dibs_cell_swap(d, "{a}", 0, "x", 1, NULL, NULL, NULL), DIBS_OK);
    assert_int_equal(dibs_lock_list(d, "", &(dibs_lock_list_options){.idle = true}, &r, NULL),
                     DIBS_OK);
    assert_int_equal(dibs_lock_report_count(r), 0);
    dibs_lock_report_free(r);
}

static void an_exchange_may_be_cut_anywhere(void **state)
{
    char url[64];
    dibs *cut = NULL;
    proxy *p;

    (void)state;
    need();
    p = proxy_start(s.port);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", proxy_port(p));
    assert_int_equal(dibs_open(url, NULL, &cut, NULL), DIBS_OK);
    cut_counters(p, cut, d, 5, 1);
    cut_cells(p, cut, d, 5, 1);
    dibs_close(cut);
    proxy_stop(p);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(forgotten_scripts_are_sent_again), CASE(a_full_server_finishes_what_was_begun),
        CASE(a_stranger_s_key_is_refused),      CASE(what_ends_is_dropped_by_the_server),
        CASE(a_floor_outlives_the_value),       CASE(cells_are_no_locks),
        CASE(an_exchange_may_be_cut_anywhere),
    };

    return cmocka_run_group_tests_name("redis_cells", tests, NULL, NULL);
}
