/* Taking, waiting, cancelling, reentry, owners, statistics. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void one_at_a_time(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("one");
    dibs_grant *g = take(a, name, NULL);

    (void)state;
    assert_true(dibs_grant_held(g));
    assert_true(dibs_grant_fence(g) > 0);
    assert_true(dibs_grant_floor(g) == dibs_grant_fence(g));
    assert_true(dibs_grant_remaining_ms(g) > (the.can.lease_of_handle ? SESSION_MS / 5 : 20000));
    assert_true(dibs_grant_remaining_ms(g) <= (the.can.lease_of_handle ? SESSION_MS : 30000));
    assert_int_equal(dibs_grant_loss(g), DIBS_LOSS_NONE);
    assert_status(try_lock(b, name), DIBS_BUSY);
    assert_status(unlock(g), DIBS_OK);
    assert_status(try_lock(b, name), DIBS_OK);
}

static void other_names_are_other_locks(void **state)
{
    dibs *d = open_handle();
    dibs_grant *a = take(d, fresh("x"), NULL), *b = take(d, fresh("x"), NULL);

    (void)state;
    assert_true(a != b);
    assert_status(unlock(a), DIBS_OK);
    assert_true(dibs_grant_held(b));
    assert_status(unlock(b), DIBS_OK);
}

static void a_try_does_not_wait(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("try");
    dibs_grant *g = take(a, name, NULL), *none = NULL;
    dibs_error err = {0};
    int64_t start = clock_ms();

    (void)state;
    assert_status(dibs_lock(b, name, &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT}, &none, &err),
                  DIBS_BUSY);
    assert_true(clock_ms() - start < SOON_MS);
    assert_null(none);
    assert_non_null(strstr(err.message, name));
    wait_for_queue(a, name, 0);
    unlock(g);
}

static void a_bounded_wait_ends(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("bounded");
    dibs_grant *g = take(a, name, NULL), *none = NULL;
    int64_t start = clock_ms(), took;

    (void)state;
    assert_status(dibs_lock(b, name, &(dibs_lock_options){.wait_ms = 200}, &none, NULL), DIBS_BUSY);
    took = clock_ms() - start;
    assert_in_range(took, 199, 200 + SOON_MS);
    wait_for_queue(a, name, 0);
    unlock(g);
    assert_status(try_lock(b, name), DIBS_OK);
}

/* Those who wait take it from `b`. */
static void assert_names(const dibs_error *err, const dibs_grant *g)
{
    char host[65] = "";

    gethostname(host, sizeof host - 1);
    assert_int_equal(err->next, DIBS_NEXT_LATER);
    if (!the.can.names_holder) {
        assert_string_equal(err->owner, "");
        assert_int_equal(err->fence, 0);
        return;
    }
    assert_string_equal(err->owner, "the holder");
    assert_string_equal(err->host, host);
    assert_int_equal(err->pid, getpid());
    assert_int_equal(err->fence, dibs_grant_fence(g));
    assert_in_range(err->retry_after_ms, 1, 30000);
    assert_non_null(strstr(err->message, "the holder"));
}

static void busy_names_the_holder(void **state)
{
    dibs *a = open_handle(), *b = open_handle(), *c = open_handle();
    const char *name = fresh("holder");
    dibs_grant *g = take(a, name, &(dibs_lock_options){.owner = "the holder"}), *none = NULL;
    job *head;
    dibs_error err = {0};

    (void)state;
    assert_status(dibs_lock(b, name, &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT}, &none, &err),
                  DIBS_BUSY);
    assert_names(&err, g);
    head = job_start(b, name, &(dibs_lock_options){.wait_ms = LONG_MS});
    wait_for_queue(a, name, 1);
    assert_status(dibs_lock(c, name, &(dibs_lock_options){.wait_ms = 300}, &none, &err), DIBS_BUSY);
    assert_names(&err, g);
    assert_non_null(strstr(err.message, "in time"));
    dibs_cancel(b, name);
    job_join(head);
    assert_status(dibs_lock(b, name, &(dibs_lock_options){.wait_ms = 300}, &none, &err), DIBS_BUSY);
    assert_names(&err, g); /* at the head of the queue */
    assert_status(unlock(g), DIBS_OK);
}

/* With the hand-over the line learns of another holder, by its next keep-alive. */
static void busy_names_the_holder_of_now(void **state)
{
    dibs *a = open_handle(), *b = open_handle(), *c = open_handle();
    const char *name = fresh("holder-now");
    dibs_grant *g, *none = NULL;
    job *next, *last;

    (void)state;
    if (!the.can.first_come)
        skip(); /* the last may be served before the next */
    g = take(a, name, &(dibs_lock_options){.owner = "the first"});
    next = job_start(b, name, &(dibs_lock_options){.owner = "the holder"});
    wait_for_queue(a, name, 1);
    last = job_start(c, name, &(dibs_lock_options){.wait_ms = 4000});
    wait_for_queue(a, name, 2);
    assert_status(unlock(g), DIBS_OK);
    job_join_held(next);
    job_join(last);
    assert_status(last->status, DIBS_BUSY);
    assert_null(none);
    assert_names(&last->err, next->g);
    assert_status(unlock(next->g), DIBS_OK);
}

static void a_wait_is_answered(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("answer");
    dibs_grant *g = take(a, name, NULL);
    job *j = job_start(b, name, NULL);
    uint64_t fence = dibs_grant_fence(g);

    (void)state;
    wait_for_queue(a, name, 1);
    assert_false(atomic_load(&j->done));
    assert_status(unlock(g), DIBS_OK);
    assert_true(job_done_within(j, SOON_MS));
    job_join(j);
    assert_status(j->status, DIBS_OK);
    assert_true(j->held);
    assert_true(j->fence > fence);
    assert_status(unlock(j->g), DIBS_OK);
}

static void a_wait_is_cancelled_from_another_thread(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("cancel"), *other = fresh("cancel");
    dibs_grant *g = take(a, name, NULL), *h = take(a, other, NULL);
    job *j = job_start(b, name, NULL), *k = job_start(b, other, NULL),
        *l = job_start(b, name, NULL);

    (void)state;
    wait_for_queue(a, name, 2);
    wait_for_queue(a, other, 1);
    dibs_cancel(b, name);
    job_join(j);
    job_join(l);
    assert_status(j->status, DIBS_CANCELLED);
    assert_status(l->status, DIBS_CANCELLED);
    wait_for_queue(a, name, 0);
    assert_false(atomic_load(&k->done));
    dibs_cancel(b, NULL);
    job_join(k);
    assert_status(k->status, DIBS_CANCELLED);
    unlock(g);
    unlock(h);
    dibs_cancel(b, "nobody waits for this");
    assert_status(try_lock(b, name), DIBS_OK); /* a cancel is not remembered */
}

/* Requests that the server has seen; 0 where there is no server to ask. */
static long long requests_seen(void)
{
    char reply[4096], *at;
    server *s = the.node[0].pid ? &the.node[0] : &the.redis;

    if (s->pid == 0 || server_command(s, "INFO stats", reply, sizeof reply) < 0)
        return 0;
    at = strstr(reply, "total_commands_processed:");
    return at ? strtoll(at + 25, NULL, 10) : 0;
}

static void reentry_costs_nothing(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("deep");
    dibs_grant *g = take(d, name, NULL);
    long long before = requests_seen(), after;
    dibs_stats stats;

    (void)state;
    for (int i = 0; i < 1000; i++)
        assert_ptr_equal(take(d, name, NULL), g);
    for (int i = 0; i < 1000; i++)
        assert_status(unlock(g), DIBS_OK);
    after = requests_seen();
    assert_in_range(after - before, 0,
                    50); /* the question itself, and what sentinels ask: not one for each */
    assert_true(dibs_grant_held(g));
    dibs_stats_read(d, &stats, sizeof stats);
    assert_int_equal(stats.grants, 1);
    assert_int_equal(stats.reentries, 1000);
    assert_status(unlock(g), DIBS_OK);
    assert_status(try_lock(open_handle(), name), DIBS_OK);
}

static void a_thread_is_an_owner(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("thread");
    dibs_grant *g = take(d, name, NULL);
    job *j = job_start(d, name, &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT});

    (void)state;
    job_join(j);
    assert_status(j->status, DIBS_BUSY);
    assert_true(strlen(dibs_grant_owner(g)) > 0);
    unlock(g);
}

static void two_handles_are_two_owners(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("two");
    dibs_grant *g = take(a, name, NULL);

    (void)state;
    assert_status(try_lock(b, name), DIBS_BUSY);
    assert_true(dibs_grant_held(g));
    unlock(g);
}

static void an_owner_by_name_moves_between_threads(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("moves");
    dibs_lock_options o = {.owner = "the job", .wait_ms = DIBS_NO_WAIT};
    dibs_grant *g = take(d, name, &o);
    job *j = job_start(d, name, &o);

    (void)state;
    job_join(j);
    assert_status(j->status, DIBS_OK);
    assert_ptr_equal(j->g, g);
    assert_string_equal(dibs_grant_owner(g), "the job");
    assert_status(unlock(g), DIBS_OK);
    assert_true(dibs_grant_held(g));
    assert_status(unlock(g), DIBS_OK);
}

static void a_handle_can_have_an_owner(void **state)
{
    dibs *d = open_with(&(dibs_options){.owner = "the handle's"});
    const char *name = fresh("handle-owner");
    dibs_grant *g = take(d, name, NULL);
    job *j = job_start(d, name, &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT});

    (void)state;
    job_join(j);
    assert_ptr_equal(j->g, g);
    assert_string_equal(dibs_grant_owner(g), "the handle's");
    unlock(g);
    unlock(g);
    g = take(d, name, &(dibs_lock_options){.owner = "another"});
    assert_string_equal(dibs_grant_owner(g), "another");
    unlock(g);
}

/* Two threads of one owner cannot wait for one lock at the same time: the second is told so at
 * once. */
static void one_owner_waits_once(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("twins");
    dibs_grant *g = take(a, name, NULL);
    dibs_lock_options o = {.owner = "twins", .wait_ms = LONG_MS};
    job *j = job_start(b, name, &o), *k;

    (void)state;
    wait_for_queue(a, name, 1);
    k = job_start(b, name, &o);
    job_join(k);
    assert_status(k->status, DIBS_INVALID);
    unlock(g);
    job_join(j);
    assert_status(j->status, DIBS_OK);
    assert_status(unlock(j->g), DIBS_OK);
    assert_status(try_lock(a, name), DIBS_OK);
}

static void closing_releases(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("close");

    (void)state;
    take(a, name, NULL);
    close_handle(a);
    assert_status(try_lock(b, name), DIBS_OK);
}

static void closing_ends_waits(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("close-wait");
    dibs_grant *g = take(a, name, NULL);
    job *j[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        j[i] = job_start(b, name, NULL);
    wait_for_queue(a, name, 4);
    close_handle(b);
    for (int i = 0; i < 4; i++) {
        job_join(j[i]);
        assert_status(j[i]->status, DIBS_CANCELLED);
    }
    wait_for_queue(a, name, 0);
    unlock(g);
}

/* The engine has the entry a moment before the answer is here. */
static bool one_waits(void *d)
{
    dibs_stats s;

    dibs_stats_read(d, &s, sizeof s);
    return s.waiting == 1;
}

static void statistics_count(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("stats");
    dibs_stats s;
    uint64_t buckets = 0;

    (void)state;
    for (int i = 0; i < 5; i++)
        unlock(take(a, name, NULL));
    dibs_grant *g = take(a, name, NULL);
    try_lock(b, name);
    job *j = job_start(b, name, NULL);
    assert_true(wait_until(one_waits, b, SOON_MS));
    dibs_stats_read(b, &s, sizeof s);
    assert_int_equal(s.busy, 1);
    assert_int_equal(s.held, 0);
    unlock(g);
    job_join(j);
    dibs_stats_read(b, &s, sizeof s);
    assert_int_equal(s.grants, 1);
    assert_int_equal(s.held, 1);
    assert_int_equal(s.waiting, 0);
    assert_int_equal(s.wait.count, 1);
    unlock(j->g);
    dibs_stats_read(a, &s, sizeof s);
    assert_int_equal(s.grants, 6);
    assert_int_equal(s.releases, 6);
    assert_int_equal(s.held, 0);
    assert_int_equal(s.acquire.count, 6);
    assert_int_equal(s.hold.count, 6);
    for (int i = 0; i < DIBS_BUCKETS; i++)
        buckets += s.acquire.bucket[i];
    assert_int_equal(buckets, 6);
    assert_true(s.acquire.sum_us >= s.acquire.max_us && s.acquire.max_us > 0);
}

static void cancelled_waits_are_counted(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("stats-cancel");
    dibs_grant *g = take(a, name, NULL);
    job *j = job_start(b, name, NULL);
    dibs_stats s;

    (void)state;
    wait_for_queue(a, name, 1);
    dibs_cancel(b, name);
    job_join(j);
    dibs_stats_read(b, &s, sizeof s);
    assert_int_equal(s.cancelled, 1);
    assert_int_equal(s.waiting, 0);
    unlock(g);
}

static void a_new_semaphore_leaves_other_locks_alone(void **state)
{
    dibs *d = open_handle();
    dibs_grant *g = take(d, fresh("beside-slots"), NULL), *h;
    dibs_error err = {0};

    (void)state;
    h = take(d, fresh("slots"), &(dibs_lock_options){.slots = 5, .weight = 2});
    assert_status(dibs_renew(g, &err), DIBS_OK); /* asks the engine */
    assert_true(dibs_grant_held(g));
    unlock(h);
    unlock(g);
}

static const struct CMUnitTest tests[] = {
    CASE(one_at_a_time),
    CASE(other_names_are_other_locks),
    CASE_FOR(a_new_semaphore_leaves_other_locks_alone, NEEDS_SLOTS),
    CASE(a_try_does_not_wait),
    CASE(a_bounded_wait_ends),
    CASE(busy_names_the_holder),
    CASE(busy_names_the_holder_of_now),
    CASE(a_wait_is_answered),
    CASE(a_wait_is_cancelled_from_another_thread),
    CASE(reentry_costs_nothing),
    CASE(a_thread_is_an_owner),
    CASE(two_handles_are_two_owners),
    CASE(an_owner_by_name_moves_between_threads),
    CASE(a_handle_can_have_an_owner),
    CASE(one_owner_waits_once),
    CASE(closing_releases),
    CASE(closing_ends_waits),
    CASE(statistics_count),
    CASE(cancelled_waits_are_counted),
};
CASES(basic_cases, tests);
