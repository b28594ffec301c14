/* Breaking locks: gently, with the holder's knowledge, and at once. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include <string.h>

typedef struct breaker {
    pthread_t thread;
    dibs *d;
    const char *name;
    int64_t wait_ms;
    dibs_status status;
    atomic_bool done;
} breaker;

static void *do_break(void *arg)
{
    breaker *b = arg;

    b->status = dibs_lock_break(
        b->d, b->name, &(dibs_lock_break_options){.by = "operator", .wait_ms = b->wait_ms}, NULL);
    atomic_store(&b->done, true);
    return NULL;
}

static void nothing_to_break(void **state)
{
    dibs *d = open_handle();
    dibs_error err = {0};

    (void)state;
    assert_status(dibs_lock_break(d, fresh("nothing"),
                                  &(dibs_lock_break_options){.by = "me", .now = true}, &err),
                  DIBS_NOT_FOUND);
    assert_true(strlen(err.message) > 10);
    assert_status(dibs_lock_break(d, "", &(dibs_lock_break_options){.by = "me", .now = true}, &err),
                  DIBS_INVALID);
}

static void a_gentle_break_waits_for_the_unlock(void **state)
{
    dibs *a = open_handle(), *b = open_handle(), *c = open_handle();
    const char *name = fresh("gentle");
    loss_note note = {0};
    dibs_grant *g =
        take(a, name, &(dibs_lock_options){.lease_ms = 3000, .on_lost = note_loss, .data = &note});
    job *j = job_start(c, name, NULL);
    breaker k = {.d = b, .name = name, .wait_ms = LONG_MS};
    uint64_t fence = dibs_grant_fence(g);

    (void)state;
    wait_for_queue(a, name, 1);
    assert_int_equal(pthread_create(&k.thread, NULL, do_break, &k), 0);
    assert_true(loss_within(&note, 3000)); /* at the latest with the next renewal */
    assert_int_equal(atomic_load(&note.why), DIBS_LOSS_BROKEN);
    assert_int_equal(dibs_grant_loss(g), DIBS_LOSS_BROKEN);
    assert_false(dibs_grant_held(g));
    assert_false(atomic_load(&k.done)); /* the holder has not let go */
    assert_false(atomic_load(&j->done));
    unlock(g);
    pthread_join(k.thread, NULL);
    assert_status(k.status, DIBS_OK);
    job_join(j);
    assert_status(j->status, DIBS_OK);
    /* The break raised it, the grant again, unless it was fixed when the waiter came. */
    assert_true(j->fence > fence + (the.can.fence_of_place ? 0 : 1));
    assert_true(dibs_grant_held(j->g));
    assert_status(unlock(j->g), DIBS_OK);
}

static void a_gentle_break_ends_with_the_lease(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("gentle-lease");
    dibs_grant *g = take(a, name, &(dibs_lock_options){.lease_ms = 2 * SHORT_MS, .no_renew = true});
    int64_t start = clock_ms();

    (void)state;
    assert_status(dibs_lock_break(b, name, &(dibs_lock_break_options){.by = "operator"}, NULL),
                  DIBS_OK);
    assert_in_range(clock_ms() - start, SHORT_MS, 2 * SHORT_MS + SOON_MS);
    assert_false(dibs_grant_held(g));
    assert_status(unlock(g), DIBS_LOST);
    assert_status(try_lock(b, name), DIBS_OK);
}

static void a_gentle_break_has_patience(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("gentle-busy");
    dibs_grant *g = take(a, name, &(dibs_lock_options){.no_renew = true});
    dibs_error err = {0};
    int64_t start = clock_ms();

    (void)state;
    assert_status(dibs_lock_break(
                      b, name, &(dibs_lock_break_options){.by = "operator", .wait_ms = 150}, &err),
                  DIBS_BUSY);
    assert_in_range(clock_ms() - start, 0, 150 + SOON_MS);
    assert_string_equal(err.owner, dibs_grant_owner(g)); /* who has not let go yet */
    assert_true(err.fence == dibs_grant_fence(g));
    unlock(g);
    assert_status(try_lock(b, name), DIBS_OK);
}

static bool is_breaking(void *arg)
{
    const breaker *k = arg;
    dibs_lock_report *r = NULL;
    bool yes = dibs_lock_inspect(k->d, k->name, &r, NULL) == DIBS_OK &&
               dibs_lock_report_at(r, 0)->holder_count == 1 &&
               dibs_lock_report_at(r, 0)->holders[0]->breaking;

    dibs_lock_report_free(r);
    return yes;
}

/* It ends the wait, not the break. */
static void the_wait_of_a_break_is_cancelled(void **state)
{
    dibs *a = open_for_load(), *b = open_handle();
    const char *name = fresh("gentle-cancel");
    dibs_grant *g = take(a, name, &(dibs_lock_options){.no_renew = true});
    breaker k = {.d = b, .name = name, .wait_ms = DIBS_FOREVER};

    (void)state;
    for (int i = 0; i < 2; i++) { /* by its name, and with all others */
        atomic_store(&k.done, false);
        assert_int_equal(pthread_create(&k.thread, NULL, do_break, &k), 0);
        assert_true(wait_until(is_breaking, &k, SOON_MS));
        dibs_cancel(b, fresh("nobody breaks this"));
        sleep_ms(150);
        assert_false(atomic_load(&k.done));
        for (int64_t end = clock_ms() + SOON_MS; !atomic_load(&k.done) && clock_ms() < end;) {
            dibs_cancel(b, i == 0 ? name : NULL); /* the second may not have begun to wait */
            sleep_ms(10);
        }
        if (!atomic_load(&k.done))
            unlock(g); /* so that its thread ends */
        pthread_join(k.thread, NULL);
        assert_status(k.status, DIBS_CANCELLED);
    }
    assert_true(is_breaking(&k));
    unlock(g);
    assert_status(try_lock(b, name), DIBS_OK);
}

static void breaking_now(void **state)
{
    dibs *a = open_handle(), *b = open_handle(), *c = open_handle();
    const char *name = fresh("now");
    loss_note note = {0};
    dibs_grant *g =
        take(a, name,
             &(dibs_lock_options){.lease_ms = 2 * KEPT_MS, .on_lost = note_loss, .data = &note});
    job *j = job_start(c, name, NULL);
    dibs_lock_report *r = NULL;
    uint64_t fence = dibs_grant_fence(g);

    (void)state;
    wait_for_queue(a, name, 1);
    assert_status(dibs_lock_break(
                      b, name, &(dibs_lock_break_options){.by = "the operator", .now = true}, NULL),
                  DIBS_OK);
    assert_true(job_done_within(j, SOON_MS));
    job_join(j);
    assert_true(j->fence > fence);
    assert_true(loss_within(&note, 2 * KEPT_MS + SOON_MS));
    assert_int_equal(atomic_load(&note.why), DIBS_LOSS_BROKEN);
    assert_status(unlock(g), DIBS_LOST);
    assert_true(dibs_grant_held(j->g));
    assert_status(dibs_lock_inspect(b, name, &r, NULL), DIBS_OK);
    assert_string_equal(dibs_lock_report_at(r, 0)->broken_by, "the operator");
    assert_true(dibs_lock_report_at(r, 0)->broken_at_ms > 1600000000000);
    dibs_lock_report_free(r);
    assert_status(unlock(j->g), DIBS_OK);
}

static void breaking_sharers(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("sharers");
    dibs_lock_options shared = {.shared = true, .no_renew = true};
    dibs_grant *g = take(a, name, &shared), *h = take(b, name, &shared);

    (void)state;
    assert_status(
        dibs_lock_break(a, name, &(dibs_lock_break_options){.by = "operator", .now = true}, NULL),
        DIBS_OK);
    assert_int_equal(holders_of(a, name), 0);
    assert_status(unlock(g), DIBS_LOST);
    assert_status(unlock(h), DIBS_LOST);
    assert_int_equal(dibs_status_exit_code(DIBS_LOST), 76);
}

static void breaking_what_is_free_raises_the_fence(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("free");
    dibs_grant *g = take(d, name, NULL);
    uint64_t fence = dibs_grant_fence(g);
    dibs_lock_report *r = NULL;

    (void)state;
    unlock(g);
    if (the.can.forgets_idle && dibs_lock_inspect(d, name, &r, NULL) == DIBS_NOT_FOUND)
        return; /* there is nothing to break */
    dibs_lock_report_free(r);
    assert_status(dibs_lock_break(d, name, &(dibs_lock_break_options){.by = "operator"}, NULL),
                  DIBS_OK);
    assert_status(dibs_lock_inspect(d, name, &r, NULL), DIBS_OK);
    assert_true(dibs_lock_report_at(r, 0)->fence > fence);
    dibs_lock_report_free(r);
}

static const struct CMUnitTest tests[] = {
    CASE(nothing_to_break),
    CASE(a_gentle_break_waits_for_the_unlock),
    CASE(a_gentle_break_ends_with_the_lease),
    CASE(a_gentle_break_has_patience),
    CASE(the_wait_of_a_break_is_cancelled),
    CASE(breaking_now),
    CASE_FOR(breaking_sharers, NEEDS_SHARED),
    CASE(breaking_what_is_free_raises_the_fence),
};
CASES(break_cases, tests);
