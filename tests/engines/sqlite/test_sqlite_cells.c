/* Cells in SQLite: an older store, boots, power cuts, reaping, failing disks, dead processes, waits. */
#define _GNU_SOURCE
#include "disk.h"
#include "lite.h"
#include "support/clock.h"
#include "support/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DAY   (24 * 3600 * DIBS__SECOND)
#define TAKES 3

/* ---- Commands -------------------------------------------------------------------------------- */

static dibs_status try(fixture *d, const char *key, const dibs__cell_command *c,
                       dibs__cell_reply *out, dibs_error *err)
{
    dibs__cell_command stamped = *c;
    static int stamps;
    char stamp[DIBS__STAMP_SIZE];

    snprintf(stamp, sizeof stamp, "%d-%d", (int)getpid(), ++stamps);
    stamped.stamp = stamp;
    memset(out, 0, sizeof *out);
    return d->class->cell(d->engine, key, &stamped, false, dibs__after(d->env, 5 * DIBS__SECOND),
                          out, err);
}

static dibs__cell_reply run(fixture *d, const char *key, dibs__cell_command c)
{
    dibs_error err = {0};
    dibs__cell_reply reply;

    if (try(d, key, &c, &reply, &err) != DIBS_OK)
        fail_msg("%s", err.message);
    return reply;
}

/* The verdict; the value is looked at and thrown away. */
static dibs__cell_reply done(fixture *d, const char *key, dibs__cell_command c)
{
    dibs__cell_reply reply = run(d, key, c);

    free(reply.data);
    reply.data = NULL;
    return reply;
}

static dibs__cell_command put(uint64_t version, const char *text, int64_t keep)
{
    return (dibs__cell_command){.op = DIBS__CELL_SWAP,
                                .version = version,
                                .data = text,
                                .size = strlen(text),
                                .keep = keep};
}

static const dibs__cell_command look = {.op = DIBS__CELL_READ};

static void assert_cell(fixture *d, const char *key, const char *text)
{
    dibs__cell_reply reply = run(d, key, look);

    if (!text) {
        assert_int_equal(reply.verdict, DIBS__CELL_ABSENT);
        return;
    }
    assert_int_equal(reply.verdict, DIBS__CELL_DONE);
    assert_string_equal(reply.data, text);
    free(reply.data);
}

/* ---- An older store -------------------------------------------------------------------------- */

static void a_store_of_version_1_opens(void **state)
{
    fixture d;
    uint64_t fence;

    (void)state;
    lite_open(&d);
    d.owner_named = true;
    fence = fixture_enter(&d, "kept", "me", 0, 0).fence;
    fixture_close(&d);
    lite_run("DROP VIEW cells; DROP TABLE cell; DROP TABLE request; DROP INDEX lock_listed; "
             "ALTER TABLE lock DROP COLUMN listed; DROP VIEW waiters; "
             "CREATE VIEW waiters AS SELECT 1 AS line FROM waiter; PRAGMA user_version = 1");
    lite_open(&d);
    assert_int_equal(lite_ask("PRAGMA user_version"), 3);
    assert_int_equal(lite_ask("SELECT count(position) FROM waiters"), 0);
    assert_int_equal(lite_ask("SELECT count(*) FROM lock WHERE listed > 0"), 1);
    assert_int_equal(fixture_enter(&d, "kept", "other", 0, 0).verdict, DIBS__BUSY);
    assert_int_equal(fixture_release(&d, "kept", "me", fence), DIBS__RELEASED);
    assert_int_equal(done(&d, "c:x", put(0, "new", 0)).verdict, DIBS__CELL_DONE);
    assert_cell(&d, "c:x", "new");
    fixture_close(&d);
}

/* All that there is when it is taken over is in the index of the listing, and what a handle of the older version,
 * which does not know the column, makes or takes meanwhile gets there. */
static void a_store_of_version_2_is_indexed(void **state)
{
    fixture d;
    uint64_t fence;

    (void)state;
    lite_open(&d);
    d.owner_named = true;
    fence = fixture_enter(&d, "idle", "me", 0, 0).fence;
    assert_int_equal(fixture_release(&d, "idle", "me", fence), DIBS__RELEASED);
    fence = fixture_enter(&d, "held", "me", 0, 0).fence;
    fixture_close(&d);
    lite_run("DROP INDEX lock_listed; ALTER TABLE lock DROP COLUMN listed; "
             "PRAGMA user_version = 2");
    lite_open(&d);
    assert_int_equal(lite_ask("SELECT count(*) FROM lock WHERE listed > 0"), 2);
    lite_run("INSERT INTO lock (name, capacity, used, holders, waiters, fence, place, "
             "broken_fence, broken_at) VALUES ('theirs', 1, 0, 0, 0, 1, 0, 0, 0); UPDATE lock SET "
             "listed = 0 WHERE name = 'held'");
    assert_int_equal(lite_ask("SELECT listed FROM lock WHERE name = 'theirs'"), 1);
    assert_int_equal(fixture_keep(&d, "held", "me", fence), DIBS__GRANTED);
    assert_int_equal(lite_ask("SELECT listed FROM lock WHERE name = 'held'"), 1);
    assert_int_equal(fixture_release(&d, "held", "me", fence), DIBS__RELEASED);
    assert_int_equal(lite_ask("SELECT listed FROM lock WHERE name = 'held'"), 0);
    fixture_close(&d);
}

static void people_can_read_cells(void **state)
{
    fixture d;

    (void)state;
    lite_open(&d);
    done(&d, "c:x", put(0, "value", 60 * DIBS__SECOND));
    done(&d, "n:x", (dibs__cell_command){.op = DIBS__CELL_SET, .number = 42});
    assert_int_equal(lite_ask("SELECT size FROM cells WHERE key = 'c:x'"), 5);
    assert_int_equal(lite_ask("SELECT number FROM cells WHERE key = 'n:x'"), 42);
    assert_int_equal(lite_ask("SELECT count(*) FROM cells WHERE abs(julianday(written) - "
                              "julianday('now')) < 0.01"),
                     2);
    assert_int_equal(lite_ask("SELECT count(*) FROM cells WHERE expires > written"), 1);
    fixture_close(&d);
}

/* ---- Boots ----------------------------------------------------------------------------------- */

static void time_goes_on_over_a_restart(void **state)
{
    sim_env sim;
    fixture d;

    (void)state;
    sim_env_init(&sim, 1);
    lite_open_in(&d, &sim);
    done(&d, "c:brief", put(0, "x", 100 * DIBS__SECOND));
    done(&d, "c:long", put(0, "x", 1000 * DIBS__SECOND));
    fixture_close(&d);
    lite_boot("second");
    sim.boottime = 5 * DIBS__SECOND; /* the machine was off for a while */
    sim.wall += 200 * DIBS__SECOND;
    lite_open_in(&d, &sim);
    assert_cell(&d, "c:brief", NULL);
    assert_cell(&d, "c:long", "x");
    assert_int_equal(done(&d, "c:long", put(0, "y", 0)).age, 200 * DIBS__SECOND);
    sim.wall += 365 * DAY; /* the clock jumps, the boot goes on */
    assert_cell(&d, "c:long", "x");
    sim.boottime += 800 * DIBS__SECOND;
    assert_cell(&d, "c:long", NULL);
    fixture_close(&d);
}

static void nothing_grows_younger_when_the_clock_is_wrong(void **state)
{
    dibs__cell_command alive = put(0, "running", 0);
    sim_env sim;
    fixture d;
    uint64_t version;

    (void)state;
    alive.alive = true;
    sim_env_init(&sim, 1);
    lite_open_in(&d, &sim);
    version = done(&d, "c:x", alive).version;
    assert_true(done(&d, "c:x", put(0, "y", 0)).age < DIBS__SECOND);
    fixture_close(&d);
    lite_boot("second");
    sim.boottime = 5 * DIBS__SECOND;
    sim.wall = 0; /* 1970 */
    lite_open_in(&d, &sim);
    assert_true(done(&d, "c:x", put(0, "y", 0)).age ==
                INT64_MAX); /* its runner died with the boot */
    assert_true(done(&d, "c:x", put(version, "z", 0)).version > version);
    fixture_close(&d);
}

/* ---- Power cuts ------------------------------------------------------------------------------ */

static void what_was_answered_survives_a_power_cut(void **state)
{
    fixture d, after;
    uint64_t version = 0;
    char text[16];

    (void)state;
    disk_put_in();
    lite_open(&d);
    done(&d, "n:x", (dibs__cell_command){.op = DIBS__CELL_SET, .number = 1000});
    for (int i = 1; i <= 20; i++) {
        dibs__cell_command take = {.op = DIBS__CELL_TAKE, .number = 1, .request = "again"};
        snprintf(text, sizeof text, "value %d", i);
        version = done(&d, "c:x", put(version, text, 0)).version;
        assert_true(version > 0);
        take.request = text;
        take.request_keep = DAY;
        assert_int_equal(done(&d, "n:x", take).number, 1000 - i);
        lite_open_after_power_cut(&after, NULL, i);
        assert_cell(&after, "c:x", text);
        assert_int_equal(done(&after, "n:x", take).verdict, DIBS__CELL_ALREADY);
        assert_int_equal(done(&after, "n:x", look).number, 1000 - i);
        fixture_close(&after);
    }
    fixture_close(&d);
    disk_take_out();
}

/* They cost no sync, and may be lost: whoever sent them is dead then. */
static void signs_of_life_are_not_synced(void **state)
{
    dibs__cell_command c = put(0, "begun", 0);
    fixture d, after;
    uint64_t version;

    (void)state;
    disk_put_in();
    lite_open(&d);
    c.alive = true;
    version = done(&d, "c:x", c).version;
    c = put(version, "renewed", 0);
    c.alive = c.fleeting = true;
    version = done(&d, "c:x", c).version;
    assert_cell(&d, "c:x", "renewed");
    lite_open_after_power_cut(&after, NULL, 1);
    assert_cell(&after, "c:x", "begun");
    assert_true(done(&after, "c:x", put(0, "x", 0)).age == INT64_MAX);
    assert_true(done(&after, "c:x", put(DIBS__CELL_ANY, "x", 0)).version > version);
    fixture_close(&after);
    fixture_close(&d);
    disk_take_out();
}

/* ---- Disks that fail ------------------------------------------------------------------------- */

/* Every command is done as a whole or not at all, and says which. */
static void live(fixture *d, int64_t *taken)
{
    dibs__cell_command take = {.op = DIBS__CELL_TAKE, .number = 1, .request_keep = DAY};
    char request[16];
    dibs__cell_reply reply;
    dibs_error err = {0};

    for (int i = 0; i < TAKES; i++) {
        dibs_status status;
        snprintf(request, sizeof request, "r%d", i);
        take.request = request;
        status = try(d, "n:x", &take, &reply, &err);
        if (status == DIBS_OK)
            *taken += reply.verdict == DIBS__CELL_DONE;
        else
            assert_non_null(strstr(err.message, "nothing was done"));
    }
}

static void sweep(disk_fault fault, bool for_ever)
{
    bool struck = true;

    for (int n = 1; struck; n++) {
        fixture d;
        int64_t taken = 0;

        assert_true(n < 500);
        lite_setup_booted(NULL);
        disk_put_in();
        lite_open(&d);
        done(&d, "n:x", (dibs__cell_command){.op = DIBS__CELL_SET, .number = TAKES});
        disk_fail(fault, n, for_ever);
        live(&d, &taken);
        struck = disk_failed();
        disk_fail(fault, 0, false);
        assert_int_equal(done(&d, "n:x", look).number, TAKES - taken);
        live(&d, &taken); /* once more: what was done is not done again */
        assert_int_equal(taken, TAKES);
        assert_int_equal(done(&d, "n:x", look).number, 0);
        fixture_close(&d);
        disk_take_out();
        lite_teardown(NULL);
    }
    lite_setup_booted(NULL);
}

static void a_failing_disk_counts_nothing_twice(void **state)
{
    (void)state;
    for (int fault = 0; fault < DISK_FAULTS; fault++) {
        sweep((disk_fault)fault, false);
        sweep((disk_fault)fault, true);
    }
}

/* ---- Reaping --------------------------------------------------------------------------------- */

static void what_has_ended_is_reaped_in_small_batches(void **state)
{
    dibs__cell_command request = {
        .op = DIBS__CELL_ADD, .number = 1, .request = "r", .request_keep = DIBS__SECOND};
    sim_env sim;
    fixture d;
    char key[32];
    int64_t before, left;

    (void)state;
    sim_env_init(&sim, 1);
    lite_open_in(&d, &sim);
    for (int i = 0; i < 200; i++) {
        snprintf(key, sizeof key, "c:%d", i);
        done(&d, key, put(0, "x", 10 * DIBS__SECOND));
    }
    done(&d, "n:x", request);
    done(&d, "c:kept", put(0, "x", 0));
    before = lite_ask("SELECT count(*) FROM cell");
    assert_int_equal(before, 202);
    for (left = before; left > 2; before = left) {
        sim_env_pass(&sim, 70 * DIBS__SECOND);
        done(&d, "c:kept", look);
        left = lite_ask("SELECT count(*) FROM cell");
        assert_true(left < before && before - left <= 100);
    }
    assert_int_equal(lite_ask("SELECT count(*) FROM request"), 0);
    assert_cell(&d, "c:kept", "x");
    fixture_close(&d);
}

static void a_floor_is_reaped_a_day_later(void **state)
{
    sim_env sim;
    fixture d;
    uint64_t fence;

    (void)state;
    sim_env_init(&sim, 1);
    fence = (uint64_t)sim.wall;
    lite_open_in(&d, &sim);
    done(&d, "c:x", (dibs__cell_command){.op = DIBS__CELL_PASS, .fence = fence, .floor = fence});
    done(&d, "c:x", put(0, "x", 0));
    done(&d, "c:x", (dibs__cell_command){.op = DIBS__CELL_DELETE, .version = DIBS__CELL_ANY});
    for (int i = 0; i < 3; i++) {
        sim_env_pass(&sim, 7 * 3600 * DIBS__SECOND);
        assert_int_equal(
            done(&d, "c:x", (dibs__cell_command){.op = DIBS__CELL_PASS, .fence = fence - 1})
                .verdict,
            DIBS__CELL_FENCED);
    }
    sim_env_pass(&sim, DAY);
    done(&d, "c:y", look);
    assert_int_equal(lite_ask("SELECT count(*) FROM cell"), 0);
    fixture_close(&d);
}

/* ---- The dead and those who wait ------------------------------------------------------------- */

/* A child that writes a cell for itself and is killed. */
static void die_with(const char *key, bool alive)
{
    int ready[2], status;
    char byte;
    pid_t pid;

    assert_int_equal(pipe(ready), 0);
    pid = fork();
    if (pid == 0) {
        dibs__cell_command c = put(0, "running", 0);
        fixture d;
        alarm(20);
        lite_open(&d);
        c.alive = alive;
        done(&d, key, c);
        if (write(ready[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(ready[0]);
    close(ready[1]);
}

static void a_dead_process_is_noticed(void **state)
{
    fixture d;
    void *watched = NULL;
    uint64_t version;
    int64_t begin;

    (void)state;
    die_with("c:dead", true);
    die_with("c:value", false);
    lite_open(&d); /* buries them, and takes their files away */
    assert_true(done(&d, "c:dead", put(0, "x", 0)).age == INT64_MAX);
    assert_true(done(&d, "c:value", put(0, "x", 0)).age < 60 * DIBS__SECOND);
    die_with("c:next", true);
    assert_true(done(&d, "c:next", put(0, "x", 0)).age == INT64_MAX); /* while we were there */
    version = done(&d, "c:next", look).version;
    begin = clock_ms();
    assert_int_equal(d.class->watch(d.engine, "c:next", version,
                                    dibs__after(d.env, 20 * DIBS__SECOND), &watched, NULL),
                     DIBS_OK);
    assert_true(fixture_wait_change(&d, "c:next", 0)); /* there is nothing to wait for */
    assert_true(clock_ms() - begin < 10000);
    d.class->unwatch(d.engine, watched);
    fixture_close(&d);
}

/* Another client's commit wakes, and is told once; other cells tell nothing. */
static void a_commit_wakes(void **state)
{
    fixture a, b;
    void *watched = NULL;
    uint64_t version;

    (void)state;
    lite_open(&a);
    lite_open(&b);
    version = done(&a, "c:x", put(0, "1", 0)).version;
    assert_int_equal(
        a.class->watch(a.engine, "c:x", version, dibs__after(a.env, DIBS__SECOND), &watched, NULL),
        DIBS_OK);
    for (int i = 0; i < 20; i++) {
        char key[16];
        snprintf(key, sizeof key, "c:other%d", i);
        done(&b, key, put(0, "x", 0));
    }
    assert_false(fixture_wait_change(&a, "c:x", 100));
    done(&b, "c:x", put(version, "2", 0));
    assert_true(fixture_wait_change(&a, "c:x", 10000));
    a.class->unwatch(a.engine, watched);
    fixture_close(&a);
    fixture_close(&b);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, lite_setup_booted, lite_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_store_of_version_1_opens),
        TEST(a_store_of_version_2_is_indexed),
        TEST(people_can_read_cells),
        TEST(time_goes_on_over_a_restart),
        TEST(nothing_grows_younger_when_the_clock_is_wrong),
        TEST(what_was_answered_survives_a_power_cut),
        TEST(signs_of_life_are_not_synced),
        TEST(a_failing_disk_counts_nothing_twice),
        TEST(what_has_ended_is_reaped_in_small_batches),
        TEST(a_floor_is_reaped_a_day_later),
        TEST(a_dead_process_is_noticed),
        TEST(a_commit_wakes),
    };

    return cmocka_run_group_tests_name("sqlite_cells", tests, NULL, NULL);
}
