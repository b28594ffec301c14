/* Cells: tables that an older version did not have, a server for which a value is too long, a network
 * that is cut. */
#define _GNU_SOURCE
#include "suite.h"

#include "support/cutting.h"
#include "support/proxy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void older_tables_are_enough_for_locks(void **state)
{
    dibs_error err = {0};
    char *schema = NULL;
    int64_t left = 0;
    dibs *d, *poor;

    (void)state;
    need_server();
    d = open_url(url_of(&the_server, "app", "?table_prefix=old_"));
    unlock(take(d, "a", 0));
    assert_int_equal(ask(&the_server, "SELECT COUNT(*) FROM information_schema.tables WHERE "
                                      "table_name IN ('old_cell', 'old_request')"),
                     0);
    ask(&the_server, "CREATE OR REPLACE USER poor@'%%' IDENTIFIED BY 'poor'; "
                     "GRANT SELECT, INSERT, UPDATE, DELETE ON dibs.* TO poor@'%%'");
    poor = open_url(url_of(&the_server, "poor", "?table_prefix=old_"));
    unlock(take(poor, "a", 0));
    assert_status(dibs_counter_set(poor, "n", 5, NULL, &err), DIBS_DENIED);
    assert_non_null(strstr(err.message, "dibs schema"));
    unlock(take(poor, "a", 0)); /* the locks go on */
    assert_status(dibs_schema(url_of(&the_server, "poor", "?table_prefix=old_"), &schema, &err),
                  DIBS_OK);
    ask(&the_server, "USE dibs; %s", schema);
    free(schema);
    assert_status(dibs_counter_set(poor, "n", 5, NULL, &err), DIBS_OK);
    assert_status(dibs_counter_take(d, "n", 2, NULL, &left, &err), DIBS_OK);
    assert_int_equal(left, 3);
    dibs_close(poor);
    dibs_close(d);
}

static void a_value_too_long_for_the_server_is_reported(void **state)
{
    static char value[DIBS_VALUE_MAX];
    const char *const extra[] = {"--max-allowed-packet=1M", NULL};
    database small;
    dibs_error err = {0};
    dibs *d;

    (void)state;
    need_server();
    memset(value, 'x', sizeof value);
    database_need(&small, DATABASE_MARIADB, extra);
    make_accounts(&small);
    d = open_url(url_of(&small, "app", ""));
    assert_status(dibs_cell_swap(d, "a", 0, value, sizeof value, NULL, NULL, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "max_allowed_packet"));
    assert_status(dibs_cell_swap(d, "a", 0, value, sizeof value / 2, NULL, NULL, &err), DIBS_OK);
    dibs_close(d);
    database_stop(&small);
}

static void cells_may_be_cut_anywhere(void **state)
{
    char url[128];
    dibs *d, *witness = open_app();
    proxy *p;

    (void)state;
    p = proxy_start(the_server.port);
    snprintf(url, sizeof url, "mysql://app:app@127.0.0.1:%d/dibs", proxy_port(p));
    d = open_url(url);
    cut_counters(p, d, witness, 29, 5);
    cut_cells(p, d, witness, 29, 5);
    dibs_close(d);
    dibs_close(witness);
    proxy_stop(p);
}

static const struct CMUnitTest all[] = {
    CASE(older_tables_are_enough_for_locks),
    CASE(a_value_too_long_for_the_server_is_reported),
    CASE(cells_may_be_cut_anywhere),
};

CASES(cell_cases, all);
