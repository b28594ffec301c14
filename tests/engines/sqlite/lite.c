/* See lite.h. */
#define _GNU_SOURCE
#include "lite.h"

#include "disk.h"
#include "engines/sqlite/sqlite.h"
#include "support/test.h"

#include <stdio.h>

scratch lite_folder;
char lite_path[SCRATCH_MAX + 16], lite_url[SCRATCH_MAX + 32];

static char boot_file[SCRATCH_MAX + 16];

int lite_setup(void **state)
{
    (void)state;
    if (scratch_make(&lite_folder) < 0)
        return -1;
    scratch_file(&lite_folder, "t.db", lite_path, sizeof lite_path);
    snprintf(lite_url, sizeof lite_url, "sqlite://%s", lite_path);
    return 0;
}

int lite_setup_booted(void **state)
{
    if (lite_setup(state) < 0)
        return -1;
    scratch_file(&lite_folder, "boot", boot_file, sizeof boot_file);
    lite_boot("first");
    dibs__lite_boot_file = boot_file;
    return 0;
}

int lite_teardown(void **state)
{
    (void)state;
    scratch_remove(&lite_folder);
    return 0;
}

void lite_boot(const char *id)
{
    FILE *f = fopen(boot_file, "w");

    assert_non_null(f);
    fprintf(f, "%s\n", id);
    fclose(f);
}

/* ---- Desks ----------------------------------------------------------------------------------- */

static fixture *open_at(fixture *d, const char *url, const sim_env *sim)
{
    dibs_error err = {0};

    if (fixture_open(d, url, sim ? &sim->env : NULL, &err) != DIBS_OK)
        fail_msg("%s", err.message);
    return d;
}

fixture *lite_open(fixture *d)
{
    return open_at(d, lite_url, NULL);
}

fixture *lite_open_in(fixture *d, const sim_env *sim)
{
    return open_at(d, lite_url, sim);
}

fixture *lite_open_after_power_cut(fixture *d, const sim_env *sim, int round)
{
    char copy[SCRATCH_MAX + 32], url[SCRATCH_MAX + 64], id[32];

    snprintf(copy, sizeof copy, "%s.%d", lite_path, round);
    disk_cut_power(lite_path, copy);
    snprintf(url, sizeof url, "sqlite://%s", copy);
    snprintf(id, sizeof id, "after %d", round);
    lite_boot(id);
    return open_at(d, url, sim);
}

/* ---- By hand --------------------------------------------------------------------------------- */

void lite_run(const char *sql)
{
    sqlite3 *db;

    assert_int_equal(sqlite3_open(lite_path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(db));
    sqlite3_close(db);
}

int64_t lite_ask(const char *sql)
{
    sqlite3 *db;
    sqlite3_stmt *q;
    int64_t n;

    assert_int_equal(sqlite3_open(lite_path, &db), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &q, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(db));
    n = sqlite3_step(q) == SQLITE_ROW ? sqlite3_column_int64(q, 0) : -1;
    sqlite3_finalize(q);
    sqlite3_close(db);
    return n;
}
