/* The SQLite engine, below the core: processes that hand over, die, are stopped or stand in for
 * each other. */
#define _GNU_SOURCE
#include "lite.h"
#include "other.h"
#include "support/clock.h"
#include "support/test.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT_ONCE 4000 /* milliseconds: generous, and shorter than any window or lease */

/* Another process, about the lock "x". */
static void start(other *o, const char *owner, uint32_t capacity)
{
    *o = (other){.url = lite_url, .name = "x", .owner = owner, .capacity = capacity};
    other_start(o);
}

/* ---- Two processes --------------------------------------------------------------------------- */

static void a_lock_goes_from_process_to_process(void **state)
{
    fixture d;
    other o;
    uint64_t fence;

    (void)state;
    start(&o, "child", 0);
    fence = other_order(&o, 'e');
    assert_true(fence > 0);
    lite_open(&d);
    assert_int_equal(fixture_enter(&d, "x", "parent", 0, 0).verdict, DIBS__BUSY);
    assert_int_equal(fixture_enter(&d, "x", "parent", 0, FIXTURE_WINDOW).verdict, DIBS__QUEUED);
    assert_int_equal(other_order(&o, 'r'), 1);
    assert_true(fixture_wait(&d, "parent", AT_ONCE) > fence);
    other_order(&o, 'q');
    other_end(&o, 0);
    fixture_close(&d);
}

/* Waits for a holder that is killed; `capacity` 0 is an exclusive lock. */
static void outlive_holder(uint32_t capacity)
{
    fixture d;
    other o;

    start(&o, "child", capacity);
    assert_true(other_order(&o, 'e') > 0);
    lite_open(&d);
    for (uint32_t i = 1; i < capacity; i++) {
        char owner[16];
        snprintf(owner, sizeof owner, "mine%u", i);
        assert_int_equal(fixture_enter(&d, "x", owner, capacity, 0).verdict, DIBS__GRANTED);
    }
    assert_int_equal(fixture_enter(&d, "x", "parent", capacity, FIXTURE_WINDOW).verdict,
                     DIBS__QUEUED);
    other_end(&o, SIGKILL);
    assert_true(fixture_wait(&d, "parent", AT_ONCE) > 0);
    fixture_close(&d);
}

static void a_killed_holder_is_replaced_at_once(void **state)
{
    (void)state;
    outlive_holder(0);
}

static void a_killed_sharer_is_replaced_at_once(void **state)
{
    (void)state;
    outlive_holder(3);
}

static void trying_finds_the_dead_too(void **state)
{
    fixture d;
    other o;

    (void)state;
    start(&o, "child", 0);
    other_order(&o, 'e');
    lite_open(&d); /* before the death: sweeping at open is another test */
    other_end(&o, SIGKILL);
    assert_int_equal(fixture_enter(&d, "x", "parent", 0, 0).verdict, DIBS__GRANTED);
    fixture_close(&d);
}

static void a_killed_waiter_is_skipped(void **state)
{
    fixture d;
    other o;
    uint64_t fence;

    (void)state;
    lite_open(&d);
    fence = fixture_enter(&d, "x", "parent", 0, 0).fence;
    start(&o, "child", 0);
    other_order(&o, 'w');
    assert_int_equal(fixture_enter(&d, "x", "third", 0, FIXTURE_WINDOW).verdict, DIBS__QUEUED);
    other_end(&o, SIGKILL);
    assert_int_equal(fixture_release(&d, "x", "parent", fence), DIBS__RELEASED);
    assert_true(fixture_wait(&d, "third", 0) > fence);
    fixture_close(&d);
}

static void holder_and_waiter_killed_together_hold_up_nobody(void **state)
{
    fixture d;
    other holder, waiter;

    (void)state;
    start(&holder, "a", 0);
    other_order(&holder, 'e');
    start(&waiter, "b", 0);
    other_order(&waiter, 'w');
    lite_open(&d);
    assert_int_equal(fixture_enter(&d, "x", "c", 0, FIXTURE_WINDOW).verdict, DIBS__QUEUED);
    other_end(&holder, SIGKILL);
    other_end(&waiter, SIGKILL);
    assert_true(fixture_wait(&d, "c", AT_ONCE) > 0);
    fixture_close(&d);
}

/* A waiter that was handed the lock and is killed is not known as a holder to those behind it. */
static void a_death_after_a_hand_over_is_noticed(void **state)
{
    fixture d;
    other holder, next;

    (void)state;
    start(&holder, "a", 0);
    other_order(&holder, 'e');
    start(&next, "b", 0);
    other_order(&next, 'w');
    lite_open(&d);
    assert_int_equal(fixture_enter(&d, "x", "c", 0, FIXTURE_WINDOW).verdict, DIBS__QUEUED);
    other_order(&holder, 'r');
    other_end(&next, SIGKILL);
    assert_true(fixture_wait(&d, "c", AT_ONCE) > 0);
    other_order(&holder, 'q');
    other_end(&holder, 0);
    fixture_close(&d);
}

/* We never looked at the third process: only the folder tells of its death. */
static void a_death_far_ahead_in_the_queue_is_noticed(void **state)
{
    fixture d;
    other o[3];

    (void)state;
    for (int i = 0; i < 3; i++) {
        start(&o[i], (const char *[]){"a", "b", "c"}[i], 0);
        other_order(&o[i], i == 0 ? 'e' : 'w');
    }
    lite_open(&d);
    assert_int_equal(fixture_enter(&d, "x", "d", 0, FIXTURE_WINDOW).verdict, DIBS__QUEUED);
    other_order(&o[0], 'r');
    other_order(&o[1], 'r');
    assert_int_equal(fixture_wait(&d, "d", 20), 0);
    other_end(&o[2], SIGKILL);
    assert_true(fixture_wait(&d, "d", AT_ONCE) > 0);
    for (int i = 0; i < 2; i++) {
        other_order(&o[i], 'q');
        other_end(&o[i], 0);
    }
    fixture_close(&d);
}

static void a_named_owner_lives_by_its_lease(void **state)
{
    fixture d;
    other o;

    (void)state;
    o = (other){.url = lite_url, .name = "x", .owner = "job", .owner_named = true};
    other_start(&o);
    other_order(&o, 'e');
    other_end(&o, SIGKILL);
    lite_open(&d);
    assert_int_equal(fixture_enter(&d, "x", "parent", 0, 0).verdict, DIBS__BUSY);
    d.owner_named = true; /* the same attempt, asked for again: it is still there */
    assert_int_equal(fixture_enter(&d, "x", "job", 0, 0).verdict, DIBS__GRANTED);
    fixture_close(&d);
}

static void min_hold_outlives_its_process(void **state)
{
    fixture d;
    other o;

    (void)state;
    o = (other){.url = lite_url, .name = "x", .owner = "job", .min_hold = 20 * DIBS__SECOND};
    other_start(&o);
    other_order(&o, 'e');
    other_order(&o, 'r');
    lite_open(&d);
    other_end(&o, SIGKILL);
    assert_int_equal(fixture_enter(&d, "x", "parent", 0, 0).verdict, DIBS__BUSY);
    fixture_close(&d);
}

static void a_child_that_stands_in_keeps_the_lock(void **state)
{
    fixture d;
    other o;
    pid_t child;

    (void)state;
    start(&o, "wrapper", 0);
    other_order(&o, 'e');
    child = (pid_t)other_order(&o, 's');
    lite_open(&d);
    assert_int_equal(fixture_enter(&d, "x", "parent", 0, FIXTURE_WINDOW).verdict, DIBS__QUEUED);
    other_end(&o, SIGKILL);
    assert_int_equal(fixture_wait(&d, "parent", 100), 0);
    assert_int_equal(fixture_keep(&d, "x", "parent", 0), DIBS__QUEUED);
    kill(child, SIGKILL);
    assert_true(fixture_wait(&d, "parent", AT_ONCE) > 0);
    fixture_close(&d);
}

static void a_child_that_inherits_keeps_nothing(void **state)
{
    fixture d;
    other o;
    pid_t child;

    (void)state;
    start(&o, "master", 0);
    other_order(&o, 'e');
    child = (pid_t)other_order(&o, 'i');
    lite_open(&d);
    assert_int_equal(fixture_enter(&d, "x", "parent", 0, FIXTURE_WINDOW).verdict, DIBS__QUEUED);
    other_end(&o, SIGKILL);
    assert_true(fixture_wait(&d, "parent", AT_ONCE) > 0);
    kill(child, SIGKILL);
    fixture_close(&d);
}

static void handles_of_one_process_leave_each_other_alone(void **state)
{
    fixture a, b;
    other o;

    (void)state;
    lite_open(&a);
    lite_open(&b);
    fixture_enter(&a, "x", "a", 0, 0);
    assert_int_equal(fixture_enter(&b, "x", "b", 0, 0).verdict, DIBS__BUSY);
    fixture_close(&b);
    lite_open(&b); /* sweeps: must not touch a's file */
    start(&o, "child", 0);
    assert_int_equal(other_order(&o, 'e'), 0); /* still held, in the eyes of another process */
    other_end(&o, SIGKILL);
    fixture_close(&b);
    fixture_close(&a);
}

static void a_break_reaches_the_holder(void **state)
{
    fixture d;
    other o;
    uint64_t fence;
    dibs__reply reply;
    dibs_error err;

    (void)state;
    lite_open(&d);
    fence = fixture_enter(&d, "x", "parent", 0, 0).fence;
    start(&o, "operator", 0);
    other_order(&o, 'w'); /* is there */
    {
        pid_t pid = fork();
        if (pid == 0) {
            fixture b;
            lite_open(&b);
            b.class->break_lock(b.engine, "x", "op", false, dibs__after(b.env, DIBS__SECOND),
                                &reply, &err);
            fixture_close(&b);
            _exit(reply.verdict == DIBS__BUSY ? 0 : 1);
        }
        int code;
        waitpid(pid, &code, 0);
        assert_int_equal(code, 0);
    }
    assert_true(fixture_wait_look(&d, "parent", AT_ONCE));
    assert_int_equal(fixture_keep(&d, "x", "parent", fence), DIBS__BROKEN);
    other_end(&o, SIGKILL);
    fixture_close(&d);
}

static int count_files(void)
{
    char beside[SCRATCH_MAX + 32];
    DIR *dir;
    int n = 0;

    snprintf(beside, sizeof beside, "%s-dibs", lite_path);
    dir = opendir(beside);
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 2;
}

static void the_dead_are_buried_at_open(void **state)
{
    fixture d;
    other o;

    (void)state;
    start(&o, "child", 0);
    other_order(&o, 'e');
    other_end(&o, SIGKILL);
    assert_int_equal(count_files(), 3); /* the gate, and the two of the dead */
    lite_open(&d);
    assert_int_equal(count_files(), 3); /* the gate, and our own two */
    assert_int_equal(lite_ask("SELECT count(*) FROM holders"), 0);
    fixture_close(&d);
    assert_int_equal(count_files(), 1);
}

/* Its file is gone when its turn comes: it must not get it. */
static void the_buried_are_not_served(void **state)
{
    fixture d, later;
    other dead;
    uint64_t fence;

    (void)state;
    lite_open(&d);
    fence = fixture_enter(&d, "x", "a", 0, 0).fence;
    fixture_enter(&d, "x", "b", 0, FIXTURE_WINDOW);
    start(&dead, "c", 0);
    other_order(&dead, 'w');
    fixture_enter(&d, "x", "d", 0, FIXTURE_WINDOW);
    other_end(&dead, SIGKILL);
    fixture_close(lite_open(&later));
    fixture_release(&d, "x", "a", fence);
    fence = fixture_wait(&d, "b", 0);
    assert_true(fence > 0);
    fixture_release(&d, "x", "b", fence);
    assert_true(fixture_wait(&d, "d", 0) > fence);
    fixture_close(&d);
}

static void a_cleared_folder_kills_nobody(void **state)
{
    char command[SCRATCH_MAX + 64];
    fixture a, b;

    (void)state;
    lite_open(&a);
    fixture_enter(&a, "x", "a", 0, 0);
    snprintf(command, sizeof command, "rm -r '%s-dibs'", lite_path);
    assert_int_equal(system(command), 0);
    lite_open(&b);
    assert_int_equal(fixture_enter(&b, "x", "b", 0, 0).verdict, DIBS__BUSY);
    fixture_close(&b);
    fixture_close(&a);
}

static void others_go_on_while_a_holder_is_stopped(void **state)
{
    fixture d;
    other o;

    (void)state;
    start(&o, "child", 0);
    other_order(&o, 'e');
    lite_open(&d);
    kill(o.pid, SIGSTOP);
    assert_int_equal(fixture_enter(&d, "x", "parent", 0, 0).verdict, DIBS__BUSY);
    assert_int_equal(fixture_enter(&d, "y", "parent", 0, 0).verdict, DIBS__GRANTED);
    other_end(&o, SIGKILL);
    fixture_close(&d);
}

/* ---- What a lock writes ---------------------------------------------------------------------- */

static off_t log_size(void)
{
    char log[300];
    struct stat st;

    snprintf(log, sizeof log, "%s-wal", lite_url + strlen("sqlite://"));
    assert_int_equal(stat(log, &st), 0);
    return st.st_size;
}

static void use(fixture *d)
{
    uint64_t fence = fixture_enter(d, "x", "owner", 0, 0).fence;

    assert_true(fence > 0);
    assert_int_equal(fixture_release(d, "x", "owner", fence), DIBS__RELEASED);
}

/* A frame of the log has 1024 bytes and a header of 24. */
static void a_lock_in_use_writes_one_page_a_command(void **state)
{
    fixture d;
    off_t before;

    (void)state;
    lite_open(&d);
    for (int i = 0; i < 3; i++) /* comes into the index of what is in use, and stays there */
        use(&d);
    before = log_size();
    use(&d);
    assert_int_equal(log_size() - before, 2 * (1024 + 24));
    fixture_close(&d);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, lite_setup, lite_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_lock_goes_from_process_to_process),
        TEST(a_killed_holder_is_replaced_at_once),
        TEST(a_killed_sharer_is_replaced_at_once),
        TEST(trying_finds_the_dead_too),
        TEST(a_killed_waiter_is_skipped),
        TEST(holder_and_waiter_killed_together_hold_up_nobody),
        TEST(a_death_after_a_hand_over_is_noticed),
        TEST(a_death_far_ahead_in_the_queue_is_noticed),
        TEST(a_named_owner_lives_by_its_lease),
        TEST(min_hold_outlives_its_process),
        TEST(a_child_that_stands_in_keeps_the_lock),
        TEST(a_child_that_inherits_keeps_nothing),
        TEST(handles_of_one_process_leave_each_other_alone),
        TEST(a_break_reaches_the_holder),
        TEST(the_dead_are_buried_at_open),
        TEST(the_buried_are_not_served),
        TEST(a_cleared_folder_kills_nobody),
        TEST(others_go_on_while_a_holder_is_stopped),
        TEST(a_lock_in_use_writes_one_page_a_command),
    };

    return cmocka_run_group_tests_name("sqlite", tests, NULL, NULL);
}
