/* Processes: forked children, killed holders, stopped holders. */
#define _GNU_SOURCE
#include "conformance/suite.h"
#include "support/fork.h"
#include "support/helper.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a child finds wrong, as bits of its exit code. */
static int check_child(dibs *d, dibs_grant *g, const char *name)
{
    dibs_grant *none = NULL;
    dibs_lock_report *r = NULL;
    int bad = 0;

    bad |= dibs_grant_held(g) ? 1 : 0;
    bad |= dibs_lock(d, name, NULL, &none, NULL) != DIBS_FORKED ? 2 : 0;
    bad |= dibs_renew(g, NULL) != DIBS_FORKED ? 4 : 0;
    bad |= unlock(g) != DIBS_FORKED ? 8 : 0;
    bad |= dibs_lock_inspect(d, name, &r, NULL) != DIBS_FORKED ? 16 : 0;
    bad |= dibs_lock_break(d, name, &(dibs_lock_break_options){.by = "child", .now = true}, NULL) !=
                   DIBS_FORKED
               ? 32
               : 0;
    bad |= start_lock(d, name, NULL, NULL, NULL, NULL, NULL) != DIBS_FORKED ? 64 : 0;
    dibs_cancel(d, NULL);
    take_all(d);
    dibs_close(d);
    return bad;
}

static void a_forked_child_holds_nothing(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("fork");
    dibs_grant *g = take(a, name, &(dibs_lock_options){.lease_ms = 2 * SHORT_MS});
    int status;
    pid_t pid = fork_at_rest();

    (void)state;
    if (pid == 0) {
        alarm(10);
        _exit(check_child(a, g, name));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(dibs_grant_held(g));
    assert_status(try_lock(b, name), DIBS_BUSY);
    sleep_ms(3 * SHORT_MS); /* the parent's keeper goes on */
    assert_true(dibs_grant_held(g));
    assert_status(try_lock(b, name), DIBS_BUSY);
    assert_status(unlock(g), DIBS_OK);
    assert_status(try_lock(b, name), DIBS_OK);
}

/* The thread sanitizer cannot follow threads that a forked child starts. */
#if defined(__SANITIZE_THREAD__)
#define NO_THREADS_AFTER_FORK 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NO_THREADS_AFTER_FORK 1
#endif
#endif
#ifndef NO_THREADS_AFTER_FORK
#define NO_THREADS_AFTER_FORK 0
#endif

/* A child that forks, forgets and opens its own handle. */
static void a_forked_child_can_open_its_own(void **state)
{
    dibs *a = open_handle();
    const char *name = fresh("fork-own");
    dibs_grant *g;
    int status;
    pid_t pid;

    (void)state;
    if (!the.can.across_processes || NO_THREADS_AFTER_FORK)
        skip();
    g = take(a, name, NULL);
    pid = fork_at_rest();
    if (pid == 0) {
        dibs *mine = NULL;
        int bad = 0;
        alarm(10);
        dibs_close(a);
        if (dibs_open(the.url, NULL, &mine, NULL) != DIBS_OK)
            _exit(1);
        dibs_grant *h = NULL;
        bad |= dibs_lock(mine, name, &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT}, &h, NULL) !=
                       DIBS_BUSY
                   ? 2
                   : 0;
        bad |= dibs_lock(mine, "fork-own-free", NULL, &h, NULL) != DIBS_OK ? 4 : 0;
        bad |= h && unlock(h) != DIBS_OK ? 8 : 0;
        dibs_close(mine);
        _exit(bad);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(dibs_grant_held(g));
    assert_status(dibs_renew(g, NULL), DIBS_OK);
    unlock(g);
}

/* ---- Other processes ------------------------------------------------------------------------- */

static helper h;

static void need_helper(void)
{
    if (!the.can.across_processes)
        skip();
    assert_int_equal(helper_start(&h, the.url), 0);
}

/* Lets the helper lock; the fence. */
static unsigned long long helper_lock(const char *name, int lease_ms, int wait_ms,
                                      const char *owner)
{
    char command[800];
    const char *said;

    snprintf(command, sizeof command, "lock %s %d %d %s", name, lease_ms, wait_ms, owner);
    said = helper_ask(&h, command);
    if (strncmp(said, "OK ", 3) != 0 || !strstr(said, "held"))
        fail_msg("the helper got '%s'", said);
    return strtoull(said + 3, NULL, 10);
}

static void two_processes_exclude_each_other(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("processes");
    unsigned long long fence;
    job *j;

    (void)state;
    need_helper();
    fence = helper_lock(name, 0, 0, "-");
    assert_status(try_lock(d, name), DIBS_BUSY);
    j = job_start(d, name, NULL);
    wait_for_queue(d, name, 1);
    assert_string_equal(helper_ask(&h, "unlock"), "OK");
    assert_true(job_done_within(j, SOON_MS));
    job_join(j);
    assert_true(j->fence > fence);
    unlock(j->g);
    helper_end(&h);
}

static void a_waiter_in_another_process_is_woken(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("wake"), *said;
    dibs_grant *g = take(d, name, NULL);
    char command[200];

    (void)state;
    need_helper();
    snprintf(command, sizeof command, "lock %s 0 0 -", name);
    helper_say(&h, command);
    wait_for_helper(d, name);
    assert_status(unlock(g), DIBS_OK);
    said = helper_hear(&h, SOON_MS);
    assert_int_equal(strncmp(said, "OK", 2), 0);
    assert_string_equal(helper_ask(&h, "unlock"), "OK");
    helper_end(&h);
}

static void a_killed_holder_is_followed(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("killed");
    const int lease = the.can.notices_death ? 15000 : the.can.lease_of_handle ? SESSION_MS : 2000;
    unsigned long long fence;
    job *j;
    int64_t start;

    (void)state;
    need_helper();
    fence = helper_lock(name, lease, 0, "-");
    j = job_start(d, name, NULL);
    wait_for_queue(d, name, 1);
    start = clock_ms();
    helper_signal(&h, SIGKILL);
    job_join(j);
    assert_status(j->status, DIBS_OK);
    assert_true(j->fence > fence);
    if (the.can.notices_death) /* the lease has long to go */
        assert_in_range(j->at - start, 0, SOON_MS);
    else
        assert_in_range(j->at - start, 0, lease + SOON_MS);
    unlock(j->g);
    helper_end(&h);
}

/* It lives by its lease alone, for everybody: its owner, come back, waits as well. */
static void a_named_owner_outlives_its_process(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("survivor");
    const int lease = the.can.lease_of_handle ? SESSION_MS : 2000;
    dibs_lock_options again = {.owner = "phoenix", .wait_ms = LONG_MS};
    unsigned long long fence;
    dibs_grant *g;
    int64_t start;

    (void)state;
    need_helper();
    fence = helper_lock(name, lease, 0, "phoenix");
    start = clock_ms();
    helper_signal(&h, SIGKILL);
    assert_status(try_lock(d, name), DIBS_BUSY);
    g = take(d, name, &again);
    assert_in_range(clock_ms() - start, 0, 2 * lease + SOON_MS);
    assert_true(dibs_grant_fence(g) > fence);
    assert_status(unlock(g), DIBS_OK);
    assert_status(try_lock(d, name), DIBS_OK);
    helper_end(&h);
}

static void a_killed_waiter_is_skipped(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("killed-waiter");
    dibs_grant *g = take(a, name, NULL);
    char command[200];
    job *j;
    int64_t start;

    (void)state;
    need_helper();
    snprintf(command, sizeof command, "lock %s 1000 0 -", name);
    helper_say(&h, command);
    wait_for_helper(a, name);
    j = job_start(b, name, NULL);
    wait_for_queue(a, name, the.can.first_come ? 2 : 1);
    helper_signal(&h, SIGKILL);
    start = clock_ms();
    unlock(g);
    job_join(j);
    assert_status(j->status, DIBS_OK);
    assert_in_range(j->at - start, 0, (the.can.lease_of_handle ? SESSION_MS : 1000) + SOON_MS);
    unlock(j->g);
    helper_end(&h);
}

static void a_stopped_holder_knows_when_it_wakes(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("stopped");
    unsigned long long fence;
    dibs_grant *g;

    (void)state;
    need_helper();
    fence = helper_lock(name, SHORT_MS, 0, "-");
    helper_signal(&h, SIGSTOP);
    g = take(d, name, NULL); /* when its lease is over */
    assert_true(dibs_grant_fence(g) > fence);
    helper_say(&h, "held"); /* the first thing it does */
    helper_signal(&h, SIGCONT);
    assert_string_equal(helper_hear(&h, SOON_MS), "no");
    assert_string_equal(helper_ask(&h, "renew"), "LOST");
    assert_string_equal(helper_ask(&h, "unlock"), "LOST");
    assert_true(dibs_grant_held(g));
    assert_status(dibs_renew(g, NULL), DIBS_OK);
    unlock(g);
    helper_end(&h);
}

/* Stopped in the queue; the lock was handed to it, and it slept through its whole time. */
static void a_stopped_waiter_gets_no_dead_grant(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("stopped-waiter"), *said;
    dibs_grant *g = take(d, name, NULL);
    char command[200];
    uint64_t fence;

    (void)state;
    need_helper();
    snprintf(command, sizeof command, "lock %s %d 0 -", name, SHORT_MS);
    helper_say(&h, command);
    wait_for_helper(d, name);
    helper_signal(&h, SIGSTOP);
    unlock(g); /* the hand-over waits in its socket */
    g = take(d, name, NULL);
    fence = dibs_grant_fence(g);
    helper_signal(&h, SIGCONT);
    assert_string_equal(helper_hear(&h, 500), ""); /* it waits again */
    assert_status(unlock(g), DIBS_OK);
    said = helper_hear(&h, LONG_MS);
    assert_int_equal(strncmp(said, "OK ", 3), 0);
    assert_true(strtoull(said + 3, NULL, 10) > fence);
    assert_non_null(strstr(said, "held"));
    helper_end(&h);
}

/* The same with the answer to its very first question. */
static void a_late_answer_is_no_grant(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("late"), *said;
    char command[200];
    dibs_grant *g;
    uint64_t fence;

    (void)state;
    need_helper();
    if ((!the.redis.pid && !the.can.lease_of_handle) || !pause_server()) {
        helper_end(&h);
        skip(); /* needs a single server with one process */
    }
    snprintf(command, sizeof command, "lock %s %d -1 -", name, SHORT_MS);
    helper_say(&h, command);
    sleep_ms(
        100); /* its question is in the server's socket; there is nobody to ask whether it is */
    helper_signal(&h, SIGSTOP);
    continue_server();
    sleep_ms(SHORT_MS + 100);
    g = take(d, name, NULL);
    fence = dibs_grant_fence(g);
    helper_signal(&h, SIGCONT);
    said = helper_hear(&h, LONG_MS);
    if (strncmp(said, "OK ", 3) == 0)
        fail_msg("a dead grant was returned: %s, and %llu is held", said,
                 (unsigned long long)fence);
    assert_true(strlen(said) > 0);
    assert_true(dibs_grant_held(g));
    unlock(g);
    helper_end(&h);
}

static const struct CMUnitTest tests[] = {
    CASE(a_forked_child_holds_nothing),        CASE(a_forked_child_can_open_its_own),
    CASE(two_processes_exclude_each_other),    CASE(a_waiter_in_another_process_is_woken),
    CASE(a_killed_holder_is_followed),         CASE(a_named_owner_outlives_its_process),
    CASE(a_killed_waiter_is_skipped),          CASE(a_stopped_holder_knows_when_it_wakes),
    CASE(a_stopped_waiter_gets_no_dead_grant), CASE(a_late_answer_is_no_grant),
};
CASES(process_cases, tests);
