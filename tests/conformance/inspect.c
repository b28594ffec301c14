/* Looking at locks: one, and many. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void nobody_used_it(void **state)
{
    dibs_lock_report *r = NULL;
    dibs_error err = {0};
    const char *name = fresh("unused");

    (void)state;
    assert_status(dibs_lock_inspect(open_handle(), name, &r, &err), DIBS_NOT_FOUND);
    assert_null(r);
    assert_non_null(strstr(err.message, name));
    dibs_lock_report_free(NULL);
}

static void check_holder(const dibs_party *p, const dibs_grant *g)
{
    char host[256] = "";
    int64_t now = (int64_t)time(NULL) * 1000;

    gethostname(host, sizeof host - 1);
    assert_string_equal(p->owner, dibs_grant_owner(g));
    assert_memory_equal(p->host, host, strlen(p->host));
    assert_int_equal(p->pid, getpid());
    assert_true(p->fence == dibs_grant_fence(g));
    assert_true(p->since_ms > now - 60000 && p->since_ms < now + 60000);
    assert_in_range(p->left_ms, 1, 30000);
    assert_false(p->released);
    assert_false(p->breaking);
}

static void a_lock_and_its_queue(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("look");
    dibs_grant *g = take(a, name, &(dibs_lock_options){.owner = "the holder"});
    job *j = job_start(b, name, &(dibs_lock_options){.owner = "first"}), *k;
    const dibs_lock_info *info;
    dibs_lock_report *r = NULL;

    (void)state;
    wait_for_queue(a, name, 1);
    k = job_start(b, name, &(dibs_lock_options){.owner = "second", .shared = the.can.shared});
    wait_for_queue(a, name, 2);
    assert_status(dibs_lock_inspect(b, name, &r, NULL), DIBS_OK);
    assert_int_equal(dibs_lock_report_count(r), 1);
    assert_null(dibs_lock_report_at(r, 1));
    info = dibs_lock_report_at(r, 0);
    assert_string_equal(info->name, name);
    assert_int_equal(info->slots, 0);
    assert_int_equal(info->used, 1);
    assert_true(info->fence == dibs_grant_fence(g));
    assert_null(info->broken_by);
    assert_int_equal(info->holder_count, 1);
    check_holder(info->holders[0], g);
    assert_false(info->holders[0]->shared);
    assert_int_equal(info->waiter_count, 2);
    assert_string_equal(info->waiters[0]->owner, "first");
    assert_string_equal(info->waiters[1]->owner, "second");
    assert_true(info->waiters[1]->shared == the.can.shared);
    assert_in_range(info->waiters[0]->left_ms, 1, 30000);
    assert_int_equal(info->waiters[0]->pid, getpid());
    dibs_lock_report_free(r);
    dibs_cancel(b, name);
    job_join(j);
    job_join(k);
    unlock(g);
}

static void a_semaphore_shows_its_slots(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("look-slots");
    dibs_grant *g = take(d, name, &(dibs_lock_options){.slots = 5, .weight = 2});
    dibs_grant *h = take(d, name, &(dibs_lock_options){.slots = 5});
    const dibs_lock_info *info;
    dibs_lock_report *r = NULL;

    (void)state;
    assert_status(dibs_lock_inspect(d, name, &r, NULL), DIBS_OK);
    info = dibs_lock_report_at(r, 0);
    assert_int_equal(info->slots, 5);
    assert_int_equal(info->used, 3);
    assert_int_equal(info->holder_count, 2);
    assert_int_equal(info->holders[0]->weight, 2);
    assert_int_equal(info->holders[1]->weight, 1);
    assert_true(info->holders[0]->fence < info->holders[1]->fence);
    dibs_lock_report_free(r);
    unlock(g);
    unlock(h);
}

static void sharers_are_counted(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("look-shared");
    dibs_grant *g = take(a, name, &(dibs_lock_options){.shared = true});
    dibs_grant *h = take(b, name, &(dibs_lock_options){.shared = true});
    dibs_lock_report *r = NULL;

    (void)state;
    assert_status(dibs_lock_inspect(a, name, &r, NULL), DIBS_OK);
    assert_int_equal(dibs_lock_report_at(r, 0)->used, 2);
    assert_int_equal(dibs_lock_report_at(r, 0)->slots, 0);
    assert_true(dibs_lock_report_at(r, 0)->holders[0]->shared);
    dibs_lock_report_free(r);
    unlock(g);
    unlock(h);
}

/* A lease of 100 ms is over. Where the lease is the session's, the handle itself removes the entry then, and that
 * takes as long as the machine lets it. */
static void wait_for_expiry(dibs *d, const char *name)
{
    int64_t until = clock_ms() + 10000;

    sleep_ms(150);
    while (the.can.lease_of_handle && holders_of(d, name) > 0 && clock_ms() < until)
        sleep_ms(5);
}

static void an_expired_holder_is_not_shown(void **state)
{
    dibs *a = open_handle();
    const char *name = fresh("look-expired");
    dibs_grant *g = take(a, name, &(dibs_lock_options){.lease_ms = 100, .no_renew = true});
    dibs_lock_report *r = NULL;

    (void)state;
    wait_for_expiry(a, name);
    assert_int_equal(holders_of(a, name), 0);
    assert_status(dibs_lock_list(a, name, NULL, &r, NULL), DIBS_OK);
    assert_int_equal(dibs_lock_report_count(r), 0);
    dibs_lock_report_free(r);
    unlock(g);
}

static void what_lingers_is_shown_as_released(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("look-min");
    dibs_lock_report *r = NULL;

    (void)state;
    unlock(take(d, name, &(dibs_lock_options){.min_hold_ms = 20000}));
    assert_status(dibs_lock_inspect(d, name, &r, NULL), DIBS_OK);
    assert_int_equal(dibs_lock_report_at(r, 0)->holder_count, 1);
    assert_true(dibs_lock_report_at(r, 0)->holders[0]->released);
    dibs_lock_report_free(r);
    assert_status(
        dibs_lock_break(d, name, &(dibs_lock_break_options){.by = "test", .now = true}, NULL),
        DIBS_OK);
}

static void a_list_by_prefix(void **state)
{
    dibs *d = open_handle();
    const char *prefix = fresh("list*[");
    char name[3][100];
    dibs_grant *g[3];
    dibs_lock_report *r = NULL;

    (void)state;
    for (int i = 0; i < 3; i++) {
        snprintf(name[i], sizeof name[i], "%s/%c", prefix, "cab"[i]);
        g[i] = take(d, name[i], NULL);
    }
    assert_status(unlock(g[1]), DIBS_OK);
    assert_status(dibs_lock_list(d, prefix, NULL, &r, NULL), DIBS_OK);
    assert_int_equal(dibs_lock_report_count(r), 2);
    assert_string_equal(dibs_lock_report_at(r, 0)->name, name[2]); /* sorted: b, c */
    assert_string_equal(dibs_lock_report_at(r, 1)->name, name[0]);
    assert_int_equal(dibs_lock_report_at(r, 0)->holder_count, 1);
    dibs_lock_report_free(r);
    assert_status(dibs_lock_list(d, prefix, &(dibs_lock_list_options){.idle = true}, &r, NULL),
                  DIBS_OK);
    assert_in_range(dibs_lock_report_count(r), the.can.forgets_idle ? 2 : 3, 3);
    if (dibs_lock_report_count(r) == 3) {
        assert_string_equal(dibs_lock_report_at(r, 0)->name, name[1]);
        assert_int_equal(dibs_lock_report_at(r, 0)->holder_count, 0);
    }
    dibs_lock_report_free(r);
    assert_status(dibs_lock_list(d, prefix, &(dibs_lock_list_options){.after = name[2]}, &r, NULL),
                  DIBS_OK);
    assert_int_equal(dibs_lock_report_count(r), 1);
    assert_string_equal(dibs_lock_report_at(r, 0)->name, name[0]);
    dibs_lock_report_free(r);
    assert_status(dibs_lock_list(d, prefix, &(dibs_lock_list_options){.limit = 1}, &r, NULL),
                  DIBS_OK);
    assert_int_equal(dibs_lock_report_count(r), 1);
    assert_string_equal(dibs_lock_report_at(r, 0)->name, name[2]);
    dibs_lock_report_free(r);
    assert_status(
        dibs_lock_list(d, "no such prefix", &(dibs_lock_list_options){.idle = true}, &r, NULL),
        DIBS_OK);
    assert_int_equal(dibs_lock_report_count(r), 0);
    dibs_lock_report_free(r);
    unlock(g[0]);
    unlock(g[2]);
}

/* How many are listed as held or waited for. */
static size_t listed(dibs *d, const char *prefix)
{
    dibs_lock_report *r = NULL;
    size_t count;

    assert_status(dibs_lock_list(d, prefix, NULL, &r, NULL), DIBS_OK);
    count = dibs_lock_report_count(r);
    dibs_lock_report_free(r);
    return count;
}

/* Whichever way a lock becomes idle, it leaves the listing; while it is held or waited for, it is there. */
static void a_list_has_what_is_held_or_waited_for(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("listed");
    dibs_grant *g = take(a, name, NULL);
    job *j;

    (void)state;
    assert_int_equal(listed(b, name), 1);
    j = job_start(b, name, NULL);
    wait_for_queue(b, name, 1);
    assert_int_equal(listed(a, name), 1);
    assert_status(unlock(g), DIBS_OK); /* to the one that waits */
    job_join_held(j);
    assert_int_equal(listed(a, name), 1);
    assert_status(unlock(j->g), DIBS_OK);
    assert_int_equal(listed(a, name), 0);
    g = take(a, name, NULL); /* a lock that exists already */
    assert_int_equal(listed(b, name), 1);
    assert_status(
        dibs_lock_break(b, name, &(dibs_lock_break_options){.by = "test", .now = true}, NULL),
        DIBS_OK);
    assert_int_equal(listed(b, name), 0);
    unlock(g);
    g = take(b, name, NULL); /* one that was broken, */
    assert_int_equal(listed(a, name), 1);
    assert_status(unlock(g), DIBS_OK);
    assert_int_equal(listed(a, name), 0);
    g = take(b, name, &(dibs_lock_options){.lease_ms = 100, .no_renew = true});
    wait_for_expiry(a, name);
    assert_int_equal(listed(a, name), 0);
    unlock(g);
    g = take(a, name, NULL); /* one whose holder was too late */
    assert_int_equal(listed(b, name), 1);
    assert_status(unlock(g), DIBS_OK);
    assert_int_equal(listed(b, name), 0);
}

/* The same where several hold it. */
static void a_list_has_what_is_shared(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("listed-shared");
    dibs_grant *g = take(a, name, &(dibs_lock_options){.shared = true});
    dibs_grant *h = take(b, name, &(dibs_lock_options){.shared = true});

    (void)state;
    assert_int_equal(listed(a, name), 1);
    assert_status(unlock(g), DIBS_OK);
    assert_int_equal(listed(a, name), 1);
    assert_status(unlock(h), DIBS_OK);
    assert_int_equal(listed(a, name), 0);
    g = take(a, name, &(dibs_lock_options){.shared = true});
    assert_int_equal(listed(b, name), 1);
    assert_status(unlock(g), DIBS_OK);
    assert_int_equal(listed(b, name), 0);
}

static void a_list_of_everything(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("everything");
    dibs_grant *g = take(d, name, NULL);
    dibs_lock_report *r = NULL;
    bool found = false;

    (void)state;
    assert_status(dibs_lock_list(d, NULL, &(dibs_lock_list_options){.idle = true}, &r, NULL),
                  DIBS_OK);
    for (size_t i = 0; i < dibs_lock_report_count(r); i++) {
        found = found || strcmp(dibs_lock_report_at(r, i)->name, name) == 0;
        if (i > 0)
            assert_true(
                strcmp(dibs_lock_report_at(r, i - 1)->name, dibs_lock_report_at(r, i)->name) < 0);
    }
    assert_true(found);
    dibs_lock_report_free(r);
    unlock(g);
}

static const struct CMUnitTest tests[] = {
    CASE(nobody_used_it),
    CASE(a_lock_and_its_queue),
    CASE_FOR(a_semaphore_shows_its_slots, NEEDS_SLOTS),
    CASE_FOR(sharers_are_counted, NEEDS_SHARED),
    CASE(an_expired_holder_is_not_shown),
    CASE(what_lingers_is_shown_as_released),
    CASE(a_list_by_prefix),
    CASE(a_list_has_what_is_held_or_waited_for),
    CASE_FOR(a_list_has_what_is_shared, NEEDS_SHARED),
    CASE(a_list_of_everything),
};
CASES(look_cases, tests);
