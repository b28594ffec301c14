/* The SQLite engine and its disk: places it refuses, databases that are busy or vanish, boots,
 * reaping, every write and sync that fails, and power cuts. */
#define _GNU_SOURCE
#include "disk.h"
#include "lite.h"
#include "support/clock.h"
#include "support/test.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Places ---------------------------------------------------------------------------------- */

static void refuse(const char *bad, dibs_status status, const char *because)
{
    fixture d;
    dibs_error err = {0};

    assert_int_equal(fixture_open(&d, bad, NULL, &err), status);
    if (!strstr(err.message, because))
        fail_msg("'%s' does not say '%s'", err.message, because);
}

static void bad_places_are_refused(void **state)
{
    char text[SCRATCH_MAX + 64];
    FILE *f;

    (void)state;
    refuse("sqlite://host/path", DIBS_INVALID, "host");
    refuse("sqlite://me:secret@/path", DIBS_INVALID, "password");
    refuse("sqlite:///tmp/x.db?sync=1", DIBS_INVALID, "sync");
    refuse("sqlite::memory:", DIBS_INVALID, "memory:");
    snprintf(text, sizeof text, "sqlite://%s", lite_folder.path);
    refuse(text, DIBS_INVALID, "folder");
    snprintf(text, sizeof text, "sqlite://%s/none/t.db", lite_folder.path);
    refuse(text, DIBS_INVALID, "create the folder");
    f = fopen(lite_path, "w");
    fputs("this is a text file, and long enough to be taken for a database, if only it were one: "
          "its header says something else",
          f);
    fclose(f);
    refuse(lite_url, DIBS_ENGINE_FAILED, "not a SQLite database");
}

static void foreign_database_is_refused_untouched(void **state)
{
    struct stat before, after;

    (void)state;
    lite_run("CREATE TABLE customer (name TEXT)");
    stat(lite_path, &before);
    refuse(lite_url, DIBS_ENGINE_FAILED, "another program");
    stat(lite_path, &after);
    assert_int_equal(before.st_size, after.st_size);
    assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
}

static void newer_database_is_refused(void **state)
{
    fixture d;

    (void)state;
    fixture_close(lite_open(&d));
    lite_run("PRAGMA user_version = 4");
    refuse(lite_url, DIBS_UNSUPPORTED, "newer");
}

static void default_store_is_private(void **state)
{
    char file[SCRATCH_MAX + 32];
    struct stat st;
    fixture d;
    dibs_error err = {0};

    (void)state;
    setenv("XDG_STATE_HOME", lite_folder.path, 1);
    assert_int_equal(fixture_open(&d, "sqlite:", NULL, &err), DIBS_OK);
    fixture_close(&d);
    unsetenv("XDG_STATE_HOME");
    assert_int_equal(stat(scratch_file(&lite_folder, "dibs", file, sizeof file), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(stat(scratch_file(&lite_folder, "dibs/dibs.db", file, sizeof file), &st), 0);
}

static void people_can_read_it(void **state)
{
    fixture d;

    (void)state;
    lite_open(&d);
    fixture_enter(&d, "one", "me", 0, 0);
    fixture_enter(&d, "two", "me", 3, 0);
    fixture_enter(&d, "one", "you", 0, FIXTURE_WINDOW);
    assert_int_equal(lite_ask("SELECT count(*) FROM locks"), 2);
    assert_int_equal(lite_ask("SELECT count(*) FROM holders WHERE owner = 'me' AND since > '2020' "
                              "AND expires > since"),
                     2);
    assert_int_equal(lite_ask("SELECT position FROM waiters WHERE name = 'one' AND owner = 'you'"),
                     1);
    fixture_close(&d);
}

static void a_busy_database_is_unavailable_in_time(void **state)
{
    fixture d;
    sqlite3 *db;
    dibs__reply reply;
    dibs_error err = {0};
    int64_t start_ms;

    (void)state;
    lite_open(&d);
    assert_int_equal(sqlite3_open(lite_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    start_ms = clock_ms();
    assert_int_equal(
        fixture_try_enter(&d, "x", "me", 0, 0, dibs__after(d.env, 100 * DIBS__MS), &reply, &err),
        DIBS_UNAVAILABLE);
    assert_in_range(clock_ms() - start_ms, 90, 10000); /* it is busy for ever */
    sqlite3_close(db);
    assert_int_equal(fixture_enter(&d, "x", "me", 0, 0).verdict, DIBS__GRANTED);
    fixture_close(&d);
}

static void a_removed_database_is_a_loss(void **state)
{
    fixture d;
    uint64_t fence;
    dibs__reply reply;
    dibs_error err = {0};

    (void)state;
    lite_open(&d);
    fence = fixture_enter(&d, "x", "me", 0, 0).fence;
    unlink(lite_path);
    sleep_ms(60);
    assert_int_equal(fixture_keep(&d, "x", "me", fence), DIBS__LOST);
    assert_int_equal(
        fixture_try_enter(&d, "x", "you", 0, 0, dibs__after(d.env, DIBS__SECOND), &reply, &err),
        DIBS_ENGINE_FAILED);
    assert_non_null(strstr(err.message, "removed"));
    fixture_close(&d);
}

/* ---- Time ------------------------------------------------------------------------------------ */

static void a_new_boot_drops_all_entries(void **state)
{
    fixture d;
    uint64_t fence;

    (void)state;
    lite_open(&d);
    d.owner_named = true;
    fence = fixture_enter(&d, "x", "me", 0, 0).fence;
    fixture_enter(&d, "x", "you", 0, FIXTURE_WINDOW);
    fixture_enter(&d, "y", "me", 5, 0);
    fixture_close(&d);
    lite_open(&d);
    assert_int_equal(fixture_enter(&d, "x", "third", 0, 0).verdict, DIBS__BUSY);
    fixture_close(&d);
    lite_boot("second");
    lite_open(&d);
    assert_int_equal(
        lite_ask("SELECT (SELECT count(*) FROM holders) + (SELECT count(*) FROM waiters)"), 0);
    assert_true(fixture_enter(&d, "x", "third", 0, 0).fence > fence);
    fixture_close(&d);
}

static void what_is_idle_for_a_day_is_dropped(void **state)
{
    const int64_t day = 24 * 3600 * DIBS__SECOND;
    sim_env sim;
    fixture d;
    uint64_t fence;

    (void)state;
    sim_env_init(&sim, 1);
    lite_open_in(&d, &sim);
    fence = fixture_enter(&d, "old", "me", 0, 0).fence;
    fixture_release(&d, "old", "me", fence);
    fixture_enter(&d, "forgotten", "me", 0, 0);
    sim_env_pass(&sim, day - DIBS__SECOND);
    fixture_enter(&d, "new", "me", 0, 0);
    assert_int_equal(lite_ask("SELECT count(*) FROM lock"), 3);
    sim_env_pass(&sim, 120 * DIBS__SECOND);
    fixture_enter(&d, "new", "me", 0, 0); /* drops "old", settles "forgotten" */
    sim_env_pass(&sim, 120 * DIBS__SECOND);
    fixture_enter(&d, "new", "me", 0, 0);
    assert_int_equal(lite_ask("SELECT count(*) FROM lock"), 1);
    assert_true(fixture_enter(&d, "old", "me", 0, 0).fence > fence);
    fixture_close(&d);
}

/* ---- Faults ---------------------------------------------------------------------------------- */

/* Some life of three locks, with as many writes and syncs as there are kinds. Every failure must be
 * a status with a reason. Returns the highest fence that was told. */
static uint64_t live(fixture *d)
{
    static const struct {
        const char *name, *owner;
        uint32_t capacity;
        int64_t window;
    } step[] = {
        {"x", "a", 0, 0}, {"x", "b", 0, FIXTURE_WINDOW}, {"y", "a", 3, 0}, {"y", "b", 3, 0},
        {"z", "a", 0, 0},
    };
    uint64_t highest = 0;
    dibs__reply r;
    dibs_error err;

    for (size_t i = 0; i < sizeof step / sizeof step[0]; i++) {
        dibs__deadline until = dibs__after(d->env, 5 * DIBS__SECOND);
        memset(&err, 0, sizeof err);
        if (fixture_try_enter(d, step[i].name, step[i].owner, step[i].capacity, step[i].window,
                              until, &r, &err) == DIBS_OK) {
            if (r.fence > highest)
                highest = r.fence;
        } else {
            assert_int_equal(err.status, DIBS_ENGINE_FAILED);
            assert_non_null(strstr(err.message, "nothing was done"));
        }
    }
    if (fixture_try_release(d, "x", "a", 0, &r, &err) == DIBS_OK && d->fence > highest)
        highest = d->fence;
    fixture_try_release(d, "z", "a", 0, &r, &err);
    return highest;
}

/* What the engine said about who holds is what the database says, and all of it can be given back.
 */
static void expect_sound(fixture *d, uint64_t highest)
{
    static const char *const names[] = {"x", "y", "z"};
    static const char *const owners[] = {"a", "b"};
    dibs__reply r;

    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 2; j++)
            fixture_release(d, names[i], owners[j], 0);
    fixture_release(d, "x", "b", 0); /* was in the queue behind a */
    assert_int_equal(
        lite_ask("SELECT (SELECT count(*) FROM holders) + (SELECT count(*) FROM waiters)"), 0);
    assert_int_equal(
        lite_ask("SELECT count(*) FROM lock WHERE used <> 0 OR holders <> 0 OR waiters <> 0"), 0);
    r = fixture_enter(d, "x", "new", 0, 0);
    assert_int_equal(r.verdict, DIBS__GRANTED);
    assert_true(r.fence > highest);
    assert_int_equal(fixture_release(d, "x", "new", r.fence), DIBS__RELEASED);
}

/* Fails the n-th call for every n, from opening on, until a run is through without. */
static void sweep(disk_fault fault, bool for_ever)
{
    bool struck = true;

    for (int n = 1; struck; n++) {
        fixture d;
        dibs_error err = {0};
        uint64_t highest = 0;

        assert_true(n < 500);
        lite_setup_booted(NULL);
        disk_put_in();
        disk_fail(fault, n, for_ever);
        if (fixture_open(&d, lite_url, NULL, &err) == DIBS_OK) {
            highest = live(&d);
            struck = disk_failed();
            disk_fail(fault, 0, false);
        } else {
            assert_true(disk_failed());
            assert_in_range(strlen(err.message), 10, 1000);
            disk_fail(fault, 0, false);
            lite_open(&d);
        }
        expect_sound(&d, highest);
        fixture_close(&d);
        disk_take_out();
        lite_teardown(NULL);
    }
    lite_setup_booted(NULL);
}

static void a_full_disk_is_reported(void **state)
{
    (void)state;
    sweep(DISK_FULL, false);
    sweep(DISK_FULL, true);
}

static void a_failed_write_is_reported(void **state)
{
    (void)state;
    sweep(DISK_WRITE_FAILS, false);
    sweep(DISK_WRITE_FAILS, true);
}

static void a_failed_sync_is_reported(void **state)
{
    (void)state;
    sweep(DISK_SYNC_FAILS, false);
    sweep(DISK_SYNC_FAILS, true);
}

/* ---- Power cuts ------------------------------------------------------------------------------ */

/* Starts from what the disk had when it was last synced, in another boot, with the clock a year
 * behind: the worst case. */
static void expect_higher(const char *name, uint64_t fence, int round)
{
    sim_env sim;
    fixture d;
    dibs__reply r;

    sim_env_init(&sim, 1);
    sim.wall -= 365 * 24 * 3600 * DIBS__SECOND;
    lite_open_after_power_cut(&d, &sim, round);
    r = fixture_enter(&d, name, "new", 0, 0);
    assert_int_equal(r.verdict, DIBS__GRANTED);
    assert_true(r.fence > fence);
    fixture_close(&d);
}

static void fences_never_repeat_after_a_power_cut(void **state)
{
    sim_env sim;
    fixture d;
    uint64_t seed = 7;

    (void)state;
    disk_put_in();
    sim_env_init(&sim, 1);
    lite_open_in(&d, &sim);
    for (int i = 0; i < 400; i++) {
        char name[16];
        dibs__reply r;
        snprintf(name, sizeof name, "lock %d", (int)(sim_random(&seed) % 60));
        r = fixture_enter(&d, name, "me", 0, 0);
        assert_int_equal(r.verdict, DIBS__GRANTED);
        if (i % 16 == 0)
            expect_higher(name, r.fence, i);
        fixture_release(&d, name, "me", r.fence);
        sim_env_pass(&sim, (int64_t)(sim_random(&seed) % 7) * DIBS__SECOND);
    }
    fixture_close(&d);
    disk_take_out();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, lite_setup_booted, lite_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(bad_places_are_refused),
        TEST(foreign_database_is_refused_untouched),
        TEST(newer_database_is_refused),
        TEST(default_store_is_private),
        TEST(people_can_read_it),
        TEST(a_busy_database_is_unavailable_in_time),
        TEST(a_removed_database_is_a_loss),
        TEST(a_new_boot_drops_all_entries),
        TEST(what_is_idle_for_a_day_is_dropped),
        TEST(a_full_disk_is_reported),
        TEST(a_failed_write_is_reported),
        TEST(a_failed_sync_is_reported),
        TEST(fences_never_repeat_after_a_power_cut),
    };

    return cmocka_run_group_tests_name("sqlite_disk", tests, NULL, NULL);
}
