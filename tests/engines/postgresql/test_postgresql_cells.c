/* Cells on PostgreSQL by themselves: tables that an older version did not have, a clock that was set
 * back, a network that is cut. */
#define _GNU_SOURCE
#include "pg.h"
#include "support/clock.h"
#include "support/cutting.h"
#include "support/proxy.h"

#include "core/handle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POORER "FROM pg_stat_activity WHERE usename = 'poorer'"

/* Whoever only holds locks needs no tables of cells, and keeps its connection. */
static void holds_for_a_while(dibs *poor)
{
    dibs_grant *g = expect_lock(poor, "a", NULL);
    char before[64], ask[256];

    snprintf(before, sizeof before, "%s", pg_ask(pg_control, "SELECT min(pid) " POORER));
    sleep_ms(2200); /* its keeper has listened twice */
    snprintf(ask, sizeof ask, "SELECT count(*) " POORER " AND pid = %s", before);
    assert_string_equal(pg_ask(pg_control, ask), "1");
    assert_int_equal(dibs_counter_set(poor, "n", 5, NULL, NULL), DIBS_DENIED);
    assert_string_equal(pg_ask(pg_control, ask), "1");
    assert_int_equal(unlock(g), DIBS_OK);
}

static void older_tables_are_enough_for_locks(void **state)
{
    char text[256], *schema = NULL;
    dibs_error err = {0};
    int64_t left = 0;
    dibs *d, *poor;

    (void)state;
    pg_need();
    snprintf(text, sizeof text, "%s?table_prefix=public.old_", pg_url);
    d = pg_open(text);
    assert_int_equal(unlock(expect_lock(d, "a", NULL)), DIBS_OK);
    assert_string_equal(pg_ask(pg_control, "SELECT to_regclass('old_cell') IS NULL"), "t");
    pg_ask(pg_control, "CREATE ROLE poorer LOGIN; REVOKE CREATE ON SCHEMA public FROM public; "
                       "GRANT SELECT, INSERT, UPDATE, DELETE ON old_lock, old_holder, old_waiter "
                       "TO poorer");
    snprintf(text, sizeof text,
             "postgresql://poorer@127.0.0.1:%d/postgres?table_prefix=public.old_", pg_db.port);
    poor = pg_open(text);
    assert_int_equal(dibs_counter_set(poor, "n", 5, NULL, &err), DIBS_DENIED);
    assert_non_null(strstr(err.message, "dibs schema"));
    holds_for_a_while(poor); /* the locks go on */
    assert_int_equal(dibs_schema(text, &schema, &err), DIBS_OK);
    pg_ask(pg_control, schema);
    pg_ask(pg_control, schema); /* harmless when repeated */
    free(schema);
    pg_ask(pg_control, "GRANT SELECT, INSERT, UPDATE, DELETE ON old_cell, old_request TO poorer");
    assert_int_equal(dibs_counter_set(poor, "n", 5, NULL, &err), DIBS_OK);
    assert_int_equal(dibs_counter_take(d, "n", 2, NULL, &left, &err), DIBS_OK);
    assert_int_equal(left, 3);
    assert_string_equal(pg_ask(pg_control, "SELECT number FROM old_cells WHERE name = 'n:n'"), "3");
    dibs_close(poor);
    dibs_close(d);
}

/* The clock was set back by an hour: a cell that has ended is kept until it is past its version again. */
static void a_version_ahead_of_the_clock_is_kept(void **state)
{
    dibs_value old = {0}, new = {0};
    dibs_error err = {0};
    char text[32];
    dibs *d;

    (void)state;
    pg_need();
    d = pg_open(pg_url);
    assert_int_equal(
        dibs_cell_swap(d, "ahead", 0, "x", 1, &(dibs_cell_options){.keep_ms = 1}, &old, &err),
        DIBS_OK);
    snprintf(text, sizeof text, "%" PRIu64, old.version + 3600000000);
    pg_ask(pg_control,
           "UPDATE dibs_cell SET version = version + 3600000000 WHERE name = 'c:ahead'");
    while (dibs_cell_read(d, "ahead", &new, NULL) == DIBS_OK)
        dibs_value_free(&new);
    d->class->cell_reap(d->engine, 1000, dibs__after(d->env, LONG_MS * DIBS__MS));
    assert_string_equal(pg_ask(pg_control, "SELECT version FROM dibs_cell WHERE name = 'c:ahead'"),
                        text);
    assert_int_equal(dibs_cell_swap(d, "ahead", 0, "y", 1, NULL, &new, &err), DIBS_OK);
    assert_true(new.version == old.version + 3600000001);
    dibs_close(d);
}

static void cells_may_be_cut_anywhere(void **state)
{
    char url[128];
    dibs *d, *witness;
    proxy *p;

    (void)state;
    pg_need();
    p = proxy_start(pg_db.port);
    snprintf(url, sizeof url, "postgresql://postgres@127.0.0.1:%d/postgres?sslmode=disable",
             proxy_port(p));
    d = pg_open(url);
    witness = pg_open(pg_url);
    cut_counters(p, d, witness, 23, 9);
    cut_cells(p, d, witness, 23, 9);
    dibs_close(d);
    dibs_close(witness);
    proxy_stop(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(older_tables_are_enough_for_locks),
        cmocka_unit_test(a_version_ahead_of_the_clock_is_kept),
        cmocka_unit_test(cells_may_be_cut_anywhere),
    };

    return cmocka_run_group_tests_name("postgresql_cells", tests, pg_setup, pg_teardown);
}
