/* Many who write at once: threads that share a connection, and processes at the gate. */
#define _GNU_SOURCE
#include "engines/sqlite/sqlite.h"
#include "lite.h"
#include "support/clock.h"
#include "support/test.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT_ONCE  500   /* milliseconds; who waits for a gate waits for a second */
#define FOREVER  20000 /* milliseconds */
#define ATTEMPTS 3     /* one may meet a busy moment of the machine */

/* ---- The gate -------------------------------------------------------------------------------- */

/* A process that is inside the gate, and stays there. */
static pid_t block_gate(void)
{
    int ready[2];
    char done;
    fixture d;
    pid_t pid;

    assert_int_equal(pipe(ready), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(20);
        lite_open(&d);
        if (dibs__lite_gate_enter((dibs__lite *)d.engine, dibs__after(d.env, DIBS__SECOND)))
            done = write(ready[1], "!", 1) == 1;
        for (;;)
            pause();
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &done, 1), 1);
    close(ready[0]);
    return pid;
}

static int64_t time_a_grant(fixture *d, const char *name)
{
    int64_t start_ms = clock_ms();

    assert_int_equal(fixture_enter(d, name, "me", 0, 0).verdict, DIBS__GRANTED);
    return clock_ms() - start_ms;
}

static void a_stuck_gate_is_passed_by(void **state)
{
    bool at_once = false;
    fixture d;
    pid_t pid;

    (void)state;
    lite_open(&d);
    pid = block_gate();
    assert_in_range(time_a_grant(&d, "x"), 900, FOREVER); /* it was waited for */
    for (int i = 0; i < ATTEMPTS; i++)
        at_once |= time_a_grant(&d, (const char *[]){"y", "z", "zz"}[i]) < AT_ONCE;
    assert_true(at_once);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    fixture_close(&d);
}

static void a_death_inside_the_gate_opens_it(void **state)
{
    bool at_once = false;
    fixture d;
    pid_t pid;

    (void)state;
    lite_open(&d);
    for (int i = 0; i < ATTEMPTS; i++) {
        pid = block_gate();
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        at_once |= time_a_grant(&d, (const char *[]){"x", "y", "z"}[i]) < AT_ONCE;
    }
    assert_true(at_once);
    fixture_close(&d);
}

/* ---- Threads --------------------------------------------------------------------------------- */

typedef struct worker {
    pthread_t thread;
    fixture *d;
    int number;
    int *inside;
    int rounds;
} worker;

static void *work(void *ctx)
{
    worker *w = ctx;
    char name[16], owner[16];
    dibs__reply r;

    snprintf(owner, sizeof owner, "w%d", w->number);
    snprintf(name, sizeof name, "own%d", w->number);
    for (int i = 0; i < 50; i++) {
        r = fixture_enter(w->d, name, owner, 0, 0);
        assert_int_equal(r.verdict, DIBS__GRANTED);
        assert_int_equal(fixture_release(w->d, name, owner, r.fence), DIBS__RELEASED);
        r = fixture_enter(w->d, "all", owner, 0, 0);
        if (r.verdict == DIBS__GRANTED) {
            *w->inside += 1;
            w->rounds++;
            assert_int_equal(fixture_release(w->d, "all", owner, r.fence), DIBS__RELEASED);
        }
    }
    return NULL;
}

static void many_threads_share_a_connection(void **state)
{
    enum { WORKERS = 12 };
    worker w[WORKERS];
    fixture d;
    int inside = 0, rounds = 0;

    (void)state;
    lite_open(&d);
    for (int i = 0; i < WORKERS; i++) {
        w[i] = (worker){.d = &d, .number = i, .inside = &inside};
        assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(w[i].thread, NULL);
        rounds += w[i].rounds;
    }
    assert_true(rounds > 0);
    assert_int_equal(inside, rounds);
    fixture_close(&d);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, lite_setup, lite_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_stuck_gate_is_passed_by),
        TEST(a_death_inside_the_gate_opens_it),
        TEST(many_threads_share_a_connection),
    };

    return cmocka_run_group_tests_name("sqlite_dispatch", tests, NULL, NULL);
}
