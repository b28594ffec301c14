/* Portable grants: export, adopt, detach; holders that die in between, breaks, and texts that are none. */
#define _GNU_SOURCE
#include "conformance/suite.h"
#include "core/bearer.h"
#include "support/clock.h"
#include "support/helper.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LEASE_MS 2000

static dibs_grant *take_portable(dibs *d, const char *name, int64_t lease_ms,
                                 char text[DIBS_GRANT_SIZE])
{
    dibs_grant *g = take(d, name, &(dibs_lock_options){.portable = true, .lease_ms = lease_ms});
    dibs_error err = {0};

    assert_status(dibs_grant_export(g, text, &err), DIBS_OK);
    assert_in_range(strlen(text), 60, DIBS_GRANT_SIZE - 1);
    return g;
}

static dibs_grant *adopt(dibs *d, const char *text)
{
    dibs_grant *g = NULL;
    dibs_error err = {0};

    if (dibs_grant_adopt(d, text, NULL, &g, &err) != DIBS_OK)
        fail_msg("not adopted: %s", err.message);
    assert_true(dibs_grant_held(g));
    return g;
}

/* That it says so, and why; and what it leaves. */
static void adopt_fails(dibs *d, const char *text, dibs_status want)
{
    dibs_grant *g = (dibs_grant *)(void *)&text;
    dibs_error err = {0};

    assert_status(dibs_grant_adopt(d, text, NULL, &g, &err), want);
    assert_null(g);
    assert_true(strlen(err.message) > 10);
    if (text && strlen(text) > 20)
        assert_null(strstr(err.message, text + 10));
}

/* ---- From handle to handle ------------------------------------------------------------------- */

static void a_grant_passes_with_its_fence(void **state)
{
    dibs *a = open_handle(), *b = open_handle(), *c = open_handle();
    const char *name = fresh("pass");
    char text[DIBS_GRANT_SIZE], again[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(a, name, 0, text), *h = adopt(b, text), *next;

    (void)state;
    assert_int_equal(strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                  "0123456789._-"),
                     strlen(text));
    assert_true(dibs_grant_fence(h) == dibs_grant_fence(g));
    assert_true(dibs_grant_floor(h) == dibs_grant_floor(g));
    assert_string_equal(dibs_grant_name(h), name);
    assert_string_equal(dibs_grant_owner(h), dibs_grant_owner(g));
    assert_status(dibs_grant_export(h, again, NULL), DIBS_OK);
    assert_string_equal(again, text);
    assert_int_equal(holders_of(c, name), 1);
    assert_status(dibs_renew(g, NULL), DIBS_OK);
    assert_status(dibs_renew(h, NULL), DIBS_OK);
    assert_status(try_lock(c, name), DIBS_BUSY);
    assert_status(unlock(h), DIBS_OK);
    next = take(c, name, NULL);
    assert_true(dibs_grant_fence(next) > dibs_grant_fence(g));
    /* What the first one still says is late, and changes nothing. */
    assert_status(dibs_renew(g, NULL), DIBS_LOST);
    assert_status(unlock(g), DIBS_LOST);
    assert_status(dibs_renew(next, NULL), DIBS_OK);
    adopt_fails(b, text, DIBS_LOST);
    assert_status(unlock(next), DIBS_OK);
}

static void late_requests_of_the_first_do_no_harm(void **state)
{
    dibs *a = open_handle(), *b = open_handle(), *c = open_handle();
    const char *name = fresh("late-first");
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(a, name, 0, text), *next;

    (void)state;
    unlock(adopt(b, text));
    next = take(c, name, NULL);
    assert_status(unlock(g), DIBS_LOST); /* without having heard: a release of what is over */
    assert_int_equal(holders_of(c, name), 1);
    assert_status(dibs_renew(next, NULL), DIBS_OK);
    assert_status(unlock(next), DIBS_OK);
}

static void a_waiter_gets_what_the_adopter_unlocks(void **state)
{
    dibs *a = open_handle(), *b = open_handle(), *c = open_handle();
    const char *name = fresh("pass-on");
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(a, name, 0, text), *h;
    uint64_t fence = dibs_grant_fence(g);
    job *j;

    (void)state;
    assert_status(dibs_grant_detach(&g, NULL), DIBS_OK);
    assert_null(g);
    j = job_start(c, name, NULL);
    wait_for_queue(c, name, 1);
    h = adopt(b, text);
    assert_status(unlock(h), DIBS_OK);
    assert_true(job_done_within(j, SOON_MS));
    job_join(j);
    assert_status(j->status, DIBS_OK);
    assert_true(j->fence > fence);
    unlock(j->g);
}

/* The adopter's own handle may have somebody in the queue. */
/* A waiter that is told of nothing finds out by its next keep-alive, two seconds later. */
static void a_waiter_for_a_portable_lock_is_woken(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("woken-portable");
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(d, name, 0, text);
    const dibs_lock_options waits = {.portable = true, .wait_ms = 10000};
    dibs_request r = {.op = DIBS_OP_LOCK, .name = name, .options.lock = &waits};
    struct pollfd fd = {.fd = dibs_fd(d), .events = POLLIN};
    dibs_outcome o = {0};
    int64_t start;

    (void)state;
    assert_status(dibs_start(d, &r, NULL, NULL), DIBS_OK);
    poll(&fd, 1, 300); /* it is in the queue by then */
    start = clock_ms();
    assert_status(unlock(g), DIBS_OK);
    while (!dibs_take(d, &o))
        assert_true(poll(&fd, 1, 10000) > 0);
    assert_status(o.err.status, DIBS_OK);
    assert_in_range(clock_ms() - start, 0, 1000);
    assert_status(unlock(o.grant), DIBS_OK);
}

static void a_waiter_of_the_adopters_handle_gets_it(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("pass-within");
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(a, name, 0, text);
    job *j = job_start(b, name, NULL);

    (void)state;
    wait_for_queue(b, name, 1);
    assert_status(unlock(adopt(b, text)), DIBS_OK);
    assert_true(job_done_within(j, SOON_MS));
    job_join(j);
    assert_true(j->fence > dibs_grant_fence(g));
    assert_status(unlock(g), DIBS_LOST);
    assert_status(unlock(j->g), DIBS_OK);
    assert_status(try_lock(a, name), DIBS_OK);
}

static void slots_pass_too(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("pass-slots");
    dibs_lock_options two = {.slots = 3, .weight = 2, .portable = true};
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take(a, name, &two), *one = take(b, name, &(dibs_lock_options){.slots = 3});
    dibs_grant *h, *none = NULL;

    (void)state;
    assert_status(dibs_grant_export(g, text, NULL), DIBS_OK);
    h = adopt(b, text);
    assert_true(dibs_grant_fence(h) == dibs_grant_fence(g));
    two.wait_ms = DIBS_NO_WAIT;
    assert_status(dibs_lock(b, name, &two, &none, NULL), DIBS_BUSY);
    assert_status(unlock(h), DIBS_OK);
    assert_status(unlock(take(b, name, &two)), DIBS_OK);
    assert_status(unlock(one), DIBS_OK);
    assert_status(unlock(g), DIBS_LOST);
}

static void a_named_owner_comes_back_in_the_adopter(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("pass-owner");
    dibs_lock_options named = {.owner = "job-7", .portable = true};
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take(a, name, &named), *h, *same;

    (void)state;
    assert_status(dibs_grant_export(g, text, NULL), DIBS_OK);
    h = adopt(b, text);
    same = take(b, name, &named);
    assert_ptr_equal(same, h);
    assert_status(dibs_grant_detach(&same, NULL), DIBS_INVALID); /* two levels */
    assert_ptr_equal(same, h);
    assert_status(unlock(same), DIBS_OK);
    assert_true(dibs_grant_held(h));
    assert_status(unlock(h), DIBS_OK);
    assert_status(unlock(g), DIBS_LOST);
}

/* The handle that took it asks again, in the same thread, for the same owner: it must not take the lock from
 * under the one that has it now. */
static void the_first_does_not_take_it_back(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("take-back");
    dibs_lock_options named = {.owner = "job-9", .portable = true, .wait_ms = DIBS_NO_WAIT};
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(a, name, 0, text), *h, *none = NULL;

    (void)state;
    assert_status(dibs_grant_detach(&g, NULL), DIBS_OK);
    h = adopt(b, text);
    assert_status(try_lock(a, name), DIBS_BUSY);
    assert_status(unlock(h), DIBS_OK);
    g = take(a, name, &named);
    assert_status(dibs_grant_export(g, text, NULL), DIBS_OK);
    assert_status(dibs_grant_detach(&g, NULL), DIBS_OK);
    h = adopt(b, text);
    assert_status(dibs_lock(a, name, &named, &none, NULL), DIBS_BUSY);
    named.portable = false;
    assert_status(dibs_lock(a, name, &named, &none, NULL), DIBS_BUSY);
    assert_status(dibs_renew(h, NULL), DIBS_OK);
    assert_status(unlock(h), DIBS_OK);
}

/* ---- Processes ------------------------------------------------------------------------------- */

static helper h1, h2;

/* The text of a lock that a process took, which is dead now. */
static uint64_t left_by_a_killed_process(const char *name, int lease_ms, char text[DIBS_GRANT_SIZE])
{
    char command[200];
    unsigned long long fence;
    const char *said;

    if (!the.can.across_processes)
        skip();
    assert_int_equal(helper_start(&h1, the.url), 0);
    snprintf(command, sizeof command, "portable %s %d", name, lease_ms);
    said = helper_ask(&h1, command);
    if (sscanf(said, "OK %llu %1023s", &fence, text) != 2)
        fail_msg("the helper got '%s'", said);
    helper_signal(&h1, SIGKILL);
    helper_end(&h1);
    return fence;
}

static void a_killed_holders_lock_is_adopted(void **state)
{
    dibs *d = open_handle(), *c = open_handle();
    const char *name = fresh("killed-portable"), *said;
    char text[DIBS_GRANT_SIZE], command[DIBS_GRANT_SIZE + 16];
    uint64_t fence;
    dibs_grant *g;
    job *j;

    (void)state;
    if (the.can.across_processes)
        assert_int_equal(helper_start(&h2, the.url), 0); /* before the lease begins to run out */
    fence = left_by_a_killed_process(name, LEASE_MS, text);
    assert_status(try_lock(c, name), DIBS_BUSY);
    snprintf(command, sizeof command, "adopt %s", text);
    said = helper_ask(&h2, command);
    assert_int_equal(strncmp(said, "OK ", 3), 0);
    assert_true(strtoull(said + 3, NULL, 10) == fence);
    sleep_ms(LEASE_MS + 500); /* the second server renews it */
    assert_string_equal(helper_ask(&h2, "held"), "yes");
    helper_signal(&h2, SIGKILL);
    helper_end(&h2);
    g = adopt(d, text); /* the same text, a third time */
    assert_true(dibs_grant_fence(g) == fence);
    j = job_start(c, name, NULL);
    wait_for_queue(c, name, 1);
    sleep_ms(LEASE_MS + 500);
    assert_true(dibs_grant_held(g));
    assert_false(atomic_load(&j->done));
    assert_status(unlock(g), DIBS_OK);
    assert_true(job_done_within(j, SOON_MS));
    job_join(j);
    assert_true(j->fence > fence);
    assert_status(unlock(j->g), DIBS_OK);
}

static void a_killed_holders_lock_lasts_for_its_lease(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("killed-alone");
    char text[DIBS_GRANT_SIZE];
    uint64_t fence = left_by_a_killed_process(name, LEASE_MS, text);
    int64_t start = clock_ms();
    dibs_grant *g = take(d, name, NULL);

    (void)state;
    assert_in_range(clock_ms() - start, LEASE_MS / 3, LEASE_MS + SOON_MS);
    assert_true(dibs_grant_fence(g) > fence);
    adopt_fails(d, text, DIBS_LOST);
    assert_status(unlock(g), DIBS_OK);
}

static void a_forked_child_adopts_nothing(void **state)
{
    dibs *d = open_handle();
    char text[DIBS_GRANT_SIZE], none[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(d, fresh("portable-fork"), 0, text), *h = NULL;
    int status;
    pid_t pid = fork();

    (void)state;
    if (pid == 0) {
        bool good = dibs_grant_adopt(d, text, NULL, &h, NULL) == DIBS_FORKED &&
                    dibs_grant_export(g, none, NULL) == DIBS_FORKED &&
                    dibs_grant_detach(&g, NULL) == DIBS_FORKED && !g;
        alarm(10);
        dibs_close(d);
        _exit(good ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_status(unlock(g), DIBS_OK);
}

/* ---- The end --------------------------------------------------------------------------------- */

static void a_detached_lock_lasts_for_its_lease(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("detached");
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(a, name, LEASE_MS, text);
    uint64_t fence = dibs_grant_fence(g);
    dibs_stats stats;
    int64_t start;

    (void)state;
    assert_status(dibs_grant_detach(&g, NULL), DIBS_OK);
    assert_null(g);
    assert_status(dibs_grant_detach(&g, NULL), DIBS_INVALID);
    dibs_stats_read(a, &stats, sizeof stats);
    assert_true(stats.held == 0);
    g = adopt(a, text); /* it may come back to where it was */
    assert_true(dibs_grant_fence(g) == fence);
    start = clock_ms();
    assert_status(dibs_grant_detach(&g, NULL), DIBS_OK);
    close_handle(a);
    assert_status(try_lock(b, name), DIBS_BUSY);
    g = take(b, name, NULL);
    assert_in_range(clock_ms() - start, LEASE_MS / 3, LEASE_MS + SOON_MS);
    assert_true(dibs_grant_fence(g) > fence);
    adopt_fails(b, text, DIBS_LOST);
    assert_status(unlock(g), DIBS_OK);
}

static void closing_releases_what_was_adopted(void **state)
{
    dibs *a = open_handle(), *b = open_handle(), *c = open_handle();
    const char *name = fresh("adopted-closed");
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(a, name, 0, text);

    (void)state;
    assert_status(dibs_grant_detach(&g, NULL), DIBS_OK);
    adopt(b, text);
    assert_status(try_lock(c, name), DIBS_BUSY);
    close_handle(b);
    assert_status(try_lock(c, name), DIBS_OK);
}

static void the_terms_are_the_adopters(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(a, fresh("terms"), LEASE_MS, text), *h = NULL;
    loss_note note = {0};
    dibs_lock_options terms = {.max_hold_ms = SHORT_MS, .on_lost = note_loss, .data = &note};
    int64_t start;

    (void)state;
    assert_status(dibs_grant_detach(&g, NULL), DIBS_OK);
    start = clock_ms();
    assert_status(dibs_grant_adopt(b, text, &terms, &h, NULL), DIBS_OK);
    assert_true(loss_within(&note, SHORT_MS + SOON_MS));
    assert_in_range(clock_ms() - start, SHORT_MS / 2, SHORT_MS + SOON_MS);
    assert_int_equal(atomic_load(&note.why), DIBS_LOSS_EXPIRED);
    assert_status(dibs_grant_detach(&h, NULL), DIBS_LOST);
    assert_null(h);
    terms = (dibs_lock_options){.no_renew = true};
    g = take_portable(a, fresh("terms"), SHORT_MS, text);
    assert_status(dibs_grant_detach(&g, NULL), DIBS_OK);
    assert_status(dibs_grant_adopt(b, text, &terms, &h, NULL), DIBS_OK);
    sleep_ms(SHORT_MS + 100);
    assert_false(dibs_grant_held(h));
    assert_status(dibs_grant_export(h, text, NULL), DIBS_LOST);
    assert_status(unlock(h), DIBS_LOST);
}

/* ---- Breaks ---------------------------------------------------------------------------------- */

typedef struct breaker {
    pthread_t thread;
    dibs *d;
    const char *name;
    dibs_status status;
} breaker;

static void *do_break(void *arg)
{
    breaker *b = arg;

    b->status = dibs_lock_break(
        b->d, b->name, &(dibs_lock_break_options){.by = "operator", .wait_ms = LONG_MS}, NULL);
    return NULL;
}

/* Long before its next renewal, except on Redlock, which has no cells. */
static void a_break_reaches_the_adopter(void **state)
{
    dibs *a = open_handle(), *b = open_handle(), *c = open_handle();
    const char *name = fresh("broken-portable");
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(a, name, the.can.cells ? 60000 : KEPT_MS, text), *h = NULL;
    loss_note note = {0};
    breaker k = {.d = c, .name = name};

    (void)state;
    assert_status(dibs_grant_detach(&g, NULL), DIBS_OK);
    close_handle(a);
    assert_status(dibs_grant_adopt(
                      b, text, &(dibs_lock_options){.on_lost = note_loss, .data = &note}, &h, NULL),
                  DIBS_OK);
    assert_int_equal(pthread_create(&k.thread, NULL, do_break, &k), 0);
    assert_true(loss_within(&note, SOON_MS));
    assert_int_equal(atomic_load(&note.why), DIBS_LOSS_BROKEN);
    assert_status(unlock(h), DIBS_LOST);
    pthread_join(k.thread, NULL);
    assert_status(k.status, DIBS_OK);
    assert_status(try_lock(b, name), DIBS_OK);
}

static bool is_breaking(void *data)
{
    breaker *b = data;
    dibs_lock_report *r = NULL;
    bool is = dibs_lock_inspect(b->d, b->name, &r, NULL) == DIBS_OK &&
              dibs_lock_report_at(r, 0)->holder_count == 1 &&
              dibs_lock_report_at(r, 0)->holders[0]->breaking;

    dibs_lock_report_free(r);
    return is;
}

/* Whoever has the text can say that the work has stopped: the operator does not wait for the lease. */
static void a_lock_that_is_being_broken_can_be_given_back(void **state)
{
    dibs *a = open_handle(), *b = open_handle(), *c = open_handle();
    const char *name = fresh("breaking-portable");
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(a, name, 60000, text), *h = NULL;
    breaker k = {.d = c, .name = name};

    (void)state;
    assert_status(dibs_grant_detach(&g, NULL), DIBS_OK);
    assert_int_equal(pthread_create(&k.thread, NULL, do_break, &k), 0);
    assert_true(wait_until(is_breaking, &(breaker){.d = b, .name = name}, LONG_MS));
    assert_status(dibs_grant_adopt(b, text, NULL, &h, NULL), DIBS_LOST);
    assert_non_null(h);
    assert_false(dibs_grant_held(h));
    assert_int_equal(dibs_grant_loss(h), DIBS_LOSS_BROKEN);
    assert_status(try_lock(a, name), DIBS_BUSY);
    assert_status(unlock(h), DIBS_LOST);
    pthread_join(k.thread, NULL);
    assert_status(k.status, DIBS_OK);
    assert_status(try_lock(a, name), DIBS_OK);
    adopt_fails(b, text, DIBS_LOST);
}

/* ---- What is refused ------------------------------------------------------------------------- */

static void one_handle_has_it_once(void **state)
{
    dibs *d = open_handle(), *b = open_handle();
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(d, fresh("once-adopted"), 0, text), *h;

    (void)state;
    adopt_fails(d, text, DIBS_ALREADY);
    h = adopt(b, text);
    adopt_fails(b, text, DIBS_ALREADY);
    assert_status(dibs_grant_detach(&h, NULL), DIBS_OK);
    assert_true(dibs_grant_held(g));
    assert_status(unlock(g), DIBS_OK);
    adopt_fails(d, text, DIBS_LOST);
}

static void only_portable_locks_are_exported(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("not-portable");
    char text[DIBS_GRANT_SIZE] = "old";
    dibs_lock_options named = {.owner = "job-8"};
    dibs_grant *g = take(d, name, &named), *h = g, *more = NULL;
    dibs_error err = {0};

    (void)state;
    assert_status(dibs_grant_export(g, text, &err), DIBS_INVALID);
    assert_string_equal(text, "");
    assert_status(dibs_grant_detach(&h, &err), DIBS_INVALID);
    assert_ptr_equal(h, g);
    named.portable = true;
    assert_status(dibs_lock(d, name, &named, &more, &err), DIBS_MISMATCH);
    assert_status(unlock(g), DIBS_OK);
    g = take(d, name, &named);
    named.portable = false;
    assert_ptr_equal(take(d, name, &named), g); /* less than it is */
    assert_status(unlock(g), DIBS_OK);
    assert_status(unlock(g), DIBS_OK);
}

static void other_terms_are_refused(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const dibs_lock_options bad[] = {
        {.wait_ms = 1},
        {.lease_ms = 1000},
        {.min_hold_ms = 1},
        {.not_reentrant = true},
        {.shared = true},
        {.portable = true},
        {.slots = 2},
        {.weight = 1},
        {.owner = "somebody"},
        {.max_hold_ms = -2},
        {.reserved = {0, 0, 1}},
        {.max_hold_ms = 1},
    };
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(a, fresh("other-terms"), 0, text), *h = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_status(dibs_grant_adopt(b, text, &bad[i], &h, NULL), DIBS_INVALID);
    assert_null(h);
    assert_status(unlock(g), DIBS_OK);
}

static void a_damaged_text_is_refused(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    char text[DIBS_GRANT_SIZE], bad[3 * DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(a, fresh("damaged"), 0, text);
    size_t length = strlen(text);

    (void)state;
    adopt_fails(b, NULL, DIBS_INVALID);
    for (size_t i = 0; i < length; i++) {
        snprintf(bad, sizeof bad, "%.*s", (int)i, text); /* cut */
        adopt_fails(b, bad, DIBS_INVALID);
        strcpy(bad, text);
        bad[i] = bad[i] == 'A' ? 'B' : 'A'; /* changed */
        adopt_fails(b, bad, DIBS_INVALID);
        snprintf(bad, sizeof bad, "%.*s%s", (int)i, text, text + i + 1); /* left out */
        adopt_fails(b, bad, DIBS_INVALID);
    }
    snprintf(bad, sizeof bad, "%s ", text);
    adopt_fails(b, bad, DIBS_INVALID);
    memset(bad, 'A', sizeof bad - 1);
    bad[sizeof bad - 1] = '\0';
    adopt_fails(b, bad, DIBS_INVALID);
    memcpy(bad, text, length);
    adopt_fails(b, bad, DIBS_INVALID);
    unlock(adopt(b, text));
    assert_status(unlock(g), DIBS_LOST);
}

static void a_text_of_another_engine_is_refused(void **state)
{
    dibs *d = open_handle(), *other = open_at("memory:another-engine", NULL);
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(other, fresh("foreign"), 0, text);

    (void)state;
    /* Another store of the same engine does not know it. */
    adopt_fails(d, text, strcmp(the.engine, "memory") == 0 ? DIBS_LOST : DIBS_INVALID);
    assert_status(unlock(g), DIBS_OK);
}

/* ---- Secrets --------------------------------------------------------------------------------- */

static void nothing_that_is_shown_is_enough(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("secret");
    dibs_lock_options own = {.portable = true, .not_reentrant = true};
    dibs_grant *g = take(d, name, &own);
    dibs_lock_report *r = NULL;
    const char *owner;

    (void)state;
    assert_status(dibs_lock_inspect(d, name, &r, NULL), DIBS_OK);
    owner = dibs_lock_report_at(r, 0)->holders[0]->owner;
    assert_string_equal(owner, dibs_grant_owner(g));
    assert_null(strchr(owner, '.')); /* where the secret begins */
    assert_in_range(strlen(owner), 17, 24);
    dibs_lock_report_free(r);
    assert_status(unlock(g), DIBS_OK);
}

/* A text that is well-formed, and has everything but the secret. */
static void the_secret_cannot_be_left_out(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    char text[DIBS_GRANT_SIZE], forged[DIBS_GRANT_SIZE];
    dibs_grant *g = take_portable(a, fresh("forged"), 0, text);
    dibs__bearer real, copy;
    char *last;

    (void)state;
    assert_true(dibs__bearer_read(text, &real));
    copy = real;
    last = strrchr(copy.attempt, '-') - 1;
    *last = *last == 'x' ? 'y' : 'x';
    dibs__bearer_write(&copy, forged);
    adopt_fails(b, forged, DIBS_LOST);
    copy = real;
    copy.fence++;
    dibs__bearer_write(&copy, forged);
    if (the.can.slots) /* on Redlock the fence is what the holder says: its nodes may have others */
        adopt_fails(b, forged, DIBS_INVALID);
    assert_true(dibs_grant_held(g));
    assert_status(unlock(g), DIBS_OK);
}

static void it_is_refused_where_the_lease_is_the_sessions(void **state)
{
    dibs *d = open_handle();
    dibs_grant *g = NULL;
    dibs_error err = {0};

    (void)state;
    if (!the.can.lease_of_handle)
        return; /* the other cases speak for it */
    assert_status(dibs_lock(d, fresh("cannot"), &(dibs_lock_options){.portable = true}, &g, &err),
                  DIBS_UNSUPPORTED);
    assert_null(g);
    assert_non_null(strstr(err.message, "session"));
    assert_status(dibs_grant_adopt(d, "dibs1.", NULL, &g, &err), DIBS_UNSUPPORTED);
    assert_null(g);
    assert_non_null(strstr(err.message, "session"));
    g = take(d, fresh("cannot"), NULL);
    assert_status(dibs_grant_detach(&g, &err), DIBS_INVALID);
    assert_status(unlock(g), DIBS_OK);
}

static const struct CMUnitTest tests[] = {
    CASE_FOR(a_grant_passes_with_its_fence, NEEDS_PORTABLE),
    CASE_FOR(late_requests_of_the_first_do_no_harm, NEEDS_PORTABLE),
    CASE_FOR(a_waiter_gets_what_the_adopter_unlocks, NEEDS_PORTABLE),
    CASE_FOR(a_waiter_for_a_portable_lock_is_woken, NEEDS_PORTABLE),
    CASE_FOR(a_waiter_of_the_adopters_handle_gets_it, NEEDS_PORTABLE),
    CASE_FOR(slots_pass_too, NEEDS_PORTABLE_SLOTS),
    CASE_FOR(a_named_owner_comes_back_in_the_adopter, NEEDS_PORTABLE),
    CASE_FOR(the_first_does_not_take_it_back, NEEDS_PORTABLE),
    CASE_FOR(a_killed_holders_lock_is_adopted, NEEDS_PORTABLE),
    CASE_FOR(a_killed_holders_lock_lasts_for_its_lease, NEEDS_PORTABLE),
    CASE_FOR(a_forked_child_adopts_nothing, NEEDS_PORTABLE),
    CASE_FOR(a_detached_lock_lasts_for_its_lease, NEEDS_PORTABLE),
    CASE_FOR(closing_releases_what_was_adopted, NEEDS_PORTABLE),
    CASE_FOR(the_terms_are_the_adopters, NEEDS_PORTABLE),
    CASE_FOR(a_break_reaches_the_adopter, NEEDS_PORTABLE),
    CASE_FOR(a_lock_that_is_being_broken_can_be_given_back, NEEDS_PORTABLE),
    CASE_FOR(one_handle_has_it_once, NEEDS_PORTABLE),
    CASE_FOR(only_portable_locks_are_exported, NEEDS_PORTABLE),
    CASE_FOR(other_terms_are_refused, NEEDS_PORTABLE),
    CASE_FOR(a_damaged_text_is_refused, NEEDS_PORTABLE),
    CASE_FOR(a_text_of_another_engine_is_refused, NEEDS_PORTABLE),
    CASE_FOR(nothing_that_is_shown_is_enough, NEEDS_PORTABLE),
    CASE_FOR(the_secret_cannot_be_left_out, NEEDS_PORTABLE),
    CASE(it_is_refused_where_the_lease_is_the_sessions),
};
CASES(portable_cases, tests);
