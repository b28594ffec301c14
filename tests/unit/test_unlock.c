/* Unlocking: what goes back to the engine, how often it is asked, and what is left to the keeper. */
#define _GNU_SOURCE
#include "core/handle.h"
#include "support/alloc.h"
#include "support/room.h"

#include <string.h>

/* ---- Giving back ----------------------------------------------------------------------------- */

/* Up to three answers to a release, how long each takes, and what unlocking comes to. */
static void a_release_is_repeated_until_it_is_known(void **state)
{
    static const struct {
        answer next[3];
        int asked;
        dibs_status status;
        dibs_loss loss;
        bool orphan;
    } rows[] = {
        {{{DIBS_OK, {.verdict = DIBS__RELEASED}, 0}}, 1, DIBS_OK, 0, false},
        {{{DIBS_OK, {.verdict = DIBS__LOST}, 0}}, 1, DIBS_LOST, DIBS_LOSS_GONE, false},
        {{{DIBS_OK, {.verdict = DIBS__LOST}, LEASE}}, 1, DIBS_LOST, DIBS_LOSS_EXPIRED, false},
        {{{DIBS_OK, {.verdict = DIBS__BROKEN}, 0}}, 1, DIBS_LOST, DIBS_LOSS_BROKEN, false},
        {{{DIBS_OK, {.verdict = DIBS__RESUMED}, 0}}, 1, DIBS_LOST, DIBS_LOSS_RESUMED, false},
        /* it was ours, so the first request did it; not if the lease is over by then */
        {{{DIBS_UNKNOWN, {0}, 0}, {DIBS_OK, {.verdict = DIBS__LOST}, 0}}, 2, DIBS_OK, 0, false},
        {{{DIBS_UNKNOWN, {0}, 0}, {DIBS_OK, {.verdict = DIBS__LOST}, LEASE}},
         2,
         DIBS_LOST,
         DIBS_LOSS_EXPIRED,
         false},
        {{{DIBS_UNKNOWN, {0}, 0}, {DIBS_OK, {.verdict = DIBS__LOST}, LEASE - 10 * DIBS__MS}},
         2,
         DIBS_LOST,
         DIBS_LOSS_EXPIRED,
         false},
        {{{DIBS_UNKNOWN, {0}, 0}, {DIBS_OK, {.verdict = DIBS__BROKEN}, 0}},
         2,
         DIBS_LOST,
         DIBS_LOSS_BROKEN,
         false},
        {{{DIBS_UNAVAILABLE, {0}, 0}, {DIBS_OK, {.verdict = DIBS__LOST}, 0}},
         2,
         DIBS_LOST,
         DIBS_LOSS_GONE,
         false},
        {{{DIBS_UNAVAILABLE, {0}, 0}, {DIBS_OK, {.verdict = DIBS__RELEASED}, 0}},
         2,
         DIBS_OK,
         0,
         false},
        /* no time is left for another */
        {{{DIBS_UNKNOWN, {0}, 5 * DIBS__SECOND}}, 1, DIBS_UNKNOWN, 0, true},
        {{{DIBS_UNAVAILABLE, {0}, 5 * DIBS__SECOND}}, 1, DIBS_UNAVAILABLE, 0, true},
        {{{DIBS_UNKNOWN, {0}, 0}, {DIBS_UNAVAILABLE, {0}, 5 * DIBS__SECOND}},
         2,
         DIBS_UNKNOWN,
         0,
         true},
        {{{DIBS_UNKNOWN, {0}, 5 * DIBS__SECOND - 10 * DIBS__MS}}, 1, DIBS_UNKNOWN, 0, true},
        {{{DIBS_UNKNOWN, {0}, 5 * DIBS__SECOND - 10 * DIBS__MS - 1},
          {DIBS_OK, {.verdict = DIBS__RELEASED}, 0}},
         2,
         DIBS_OK,
         0,
         false},
        {{{DIBS_DENIED, {0}, 0}}, 1, DIBS_DENIED, 0, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dibs_grant *g;
        dibs_error err;
        int64_t began;
        room_forget_answers();
        g = take_one();
        began = now();
        for (int n = 0; n < 3; n++)
            will_answer(rows[i].next[n].status, rows[i].next[n].reply, rows[i].next[n].takes);
        memset(room.d->stats.losses, 0, sizeof room.d->stats.losses);
        g->refs++; /* to look at it afterwards */
        print_message("# row %zu\n", i);
        assert_status(dibs_unlock(&(dibs_grant *){g}, &err), rows[i].status);
        assert_int_equal(room.calls - 1, rows[i].asked);
        assert_int_equal(room.until, began + room.d->request_span);
        assert_string_equal(room.attempt, g->attempt);
        assert_int_equal(room.claim.fence, 7);
        assert_int_equal(g->state, rows[i].orphan ? DIBS__ORPHAN : DIBS__OVER);
        assert_int_equal(g->refs, rows[i].orphan ? 2 : 1);
        assert_int_equal(room.d->stats.held, 0);
        assert_int_equal(room.d->stats.releases, i + 1);
        assert_int_equal(room.d->users, 0);
        if (rows[i].loss)
            assert_int_equal(room.d->stats.losses[rows[i].loss], 1);
        if (rows[i].orphan) {
            assert_int_equal(g->due.key, now());
            assert_int_equal(g->give_up, now() + LEASE + DIBS__WINDOW);
            assert_true(g->release_it && g->in_attempts && !g->in_owners);
            assert_int_equal(g->expiry.index, 0);
            dibs__grant_retire(g);
            dibs__grant_unref(g);
        }
        dibs__grant_unref(g);
    }
}

static void a_release_is_repeated_after_pauses_that_grow(void **state)
{
    dibs_grant *g = take_one();

    (void)state;
    for (int i = 0; i < 8; i++)
        will_answer(DIBS_UNAVAILABLE, released, 0);
    room_begin();
    drop(g);
    assert_log("0 release a; 10 release a; 30 release a; 70 release a; 150 release a; "
               "310 release a; 560 release a; 810 release a; 1060 release a");
}

/* A release ends with the lease that it gives back, and with a handle that is being closed. */
static void a_release_has_no_more_time_than_the_lease(void **state)
{
    dibs_grant *g = take_one();
    int64_t end = atomic_load(&g->deadline);

    (void)state;
    pass(LEASE - DIBS__SECOND);
    drop(g);
    assert_int_equal(room.until, end);
    room_forget_answers();
    g = take_one();
    room.d->close_until = now() + 5;
    atomic_store(&room.d->closing, true);
    drop(g);
    assert_int_equal(room.until, now() + 5);
    atomic_store(&room.d->closing, false);
}

/* Left with the engine: the keeper gives it back, unless the handle is drained. */
static void an_orphan_is_the_keepers(void **state)
{
    (void)state;
    for (int drained = 0; drained < 2; drained++) {
        dibs_grant *g = take_one();
        g->refs += 2;
        room.d->drained = drained;
        pthread_mutex_lock(&room.d->mutex);
        dibs__grant_note_end(g);
        dibs__grant_orphan(g, false);
        pthread_mutex_unlock(&room.d->mutex);
        room.d->drained = false;
        assert_int_equal(g->state, drained ? DIBS__OVER : DIBS__ORPHAN);
        assert_int_equal(g->refs, drained ? 2 : 3);
        assert_int_equal(g->expiry.index, 0);
        assert_int_equal(g->due.index != 0, !drained);
        assert_false(g->in_owners || g->release_it);
        assert_int_equal(g->in_attempts, !drained);
        dibs__grant_retire(g);
        while (g->refs > 1)
            dibs__grant_unref(g);
        dibs__grant_unref(g);
    }
}

/* What the user reads. */
static void an_unlock_that_fails_says_why(void **state)
{
    static const struct {
        answer answer;
        dibs_status status;
        const char *message;
    } rows[] = {
        {{DIBS_OK, {.verdict = DIBS__BROKEN}, 0},
         DIBS_LOST,
         "'a' was lost before it was unlocked: an operator broke it"},
        {{DIBS_UNKNOWN, {0}, LEASE}, DIBS_UNKNOWN, "; the lock is free when its lease expires"},
    };
    char name[301];
    dibs_error err;
    dibs_grant *g;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        room_forget_answers();
        g = take_one();
        will_answer(rows[i].answer.status, rows[i].answer.reply, rows[i].answer.takes);
        assert_status(dibs_unlock(&g, &err), rows[i].status);
        assert_null(g);
        assert_non_null(strstr(err.message, rows[i].message));
    }
    memset(name, 'n', 300);
    name[300] = '\0';
    g = take_named(name, (dibs_lock_options){0});
    will_answer(DIBS_OK, (dibs__reply){.verdict = DIBS__LOST}, 0);
    assert_status(dibs_unlock(&g, &err), DIBS_LOST);
    assert_int_equal(strspn(err.message + 1, "n"), 200);
    assert_status(dibs_unlock(&g, &err), DIBS_INVALID);
    assert_status(dibs_unlock(NULL, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "no grant to unlock"));
}

/* Others probably wait for a lock that was handed over, until it has been renewed. */
static void a_release_says_whether_it_was_handed_over(void **state)
{
    (void)state;
    for (int renewals = 0; renewals < 2; renewals++) {
        dibs_grant *g = take_one();
        g->whole = false;
        will_answer(DIBS_OK, granted, 0);
        if (renewals)
            assert_status(dibs_renew(g, NULL), DIBS_OK);
        else
            room_forget_answers();
        drop(g);
        assert_int_equal(room.claim.handed_over, renewals == 0);
    }
}

/* Lost, but the engine may have it in our name: it is told so once, if there is time for that. */
static void what_is_owed_goes_back(void **state)
{
    (void)state;
    for (int ask = 0; ask < 2; ask++) {
        dibs_grant *g = take_one();
        const dibs__reply broken = {.verdict = DIBS__BROKEN, .remaining = 1};
        dibs__unlocking u;
        pthread_mutex_lock(&room.d->mutex);
        dibs__grant_answer(g, now(), DIBS_OK, &broken);
        g->refs++;
        assert_status(dibs__unlock_begin(g, &u), DIBS_LOST);
        assert_true(u.last);
        if (ask)
            will_answer(DIBS_OK, released, 0);
        assert_status(dibs__unlock_end(g, &u, ask), DIBS_LOST);
        pthread_mutex_unlock(&room.d->mutex);
        assert_int_equal(g->refs, 1);
        assert_int_equal(room.until, now() + room.d->request_span);
        dibs__grant_unref(g);
    }
    assert_log("0 enter a; 0 enter a; 0 release a");
}

/* The time of the request is over: the keeper gives it back. */
static void without_time_the_keeper_releases(void **state)
{
    dibs_grant *g = take_one();
    dibs__unlocking u;

    (void)state;
    pthread_mutex_lock(&room.d->mutex);
    assert_status(dibs__unlock_begin(g, &u), DIBS_OK);
    assert_status(dibs__unlock_end(g, &u, false), DIBS_UNAVAILABLE);
    pthread_mutex_unlock(&room.d->mutex);
    assert_int_equal(g->state, DIBS__ORPHAN);
    assert_int_equal(room.d->stats.held, 0);
    assert_int_equal(room.d->stats.hold.count, 1);
    will_answer(DIBS_OK, released, 0);
    room_keep(0);
    assert_log("0 enter a; 0 release a");
}

/* A forked child frees its copy with the last level of it, and asks nobody. */
static void a_child_frees_what_it_unlocks(void **state)
{
    dibs_grant *g = dibs__grant_new(room.d, "a", NULL, false);
    long before = alloc_live();

    (void)state;
    g->depth = 3;
    for (int level = 2; level >= 0; level--) {
        assert_status(dibs__grant_free_in_child(g, NULL), DIBS_FORKED);
        if (level > 0)
            assert_int_equal(g->depth, level);
        if (alloc_balances)
            assert_int_equal(alloc_live(), before - (level == 0));
    }
}

static void an_inner_level_asks_nobody(void **state)
{
    dibs_grant *g = take_one(), *again = NULL;

    (void)state;
    assert_status(dibs_lock(room.d, "a", NULL, &again, NULL), DIBS_OK);
    assert_ptr_equal(again, g);
    assert_status(unlock(again), DIBS_OK);
    assert_int_equal(room.calls, 1);
    assert_true(dibs_grant_held(g));
    drop(g);
    assert_int_equal(room.calls, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ROOM_CASE(a_release_is_repeated_until_it_is_known),
        ROOM_CASE(a_release_is_repeated_after_pauses_that_grow),
        ROOM_CASE(a_release_has_no_more_time_than_the_lease),
        ROOM_CASE(an_orphan_is_the_keepers),
        ROOM_CASE(an_unlock_that_fails_says_why),
        ROOM_CASE(a_release_says_whether_it_was_handed_over),
        ROOM_CASE(what_is_owed_goes_back),
        ROOM_CASE(without_time_the_keeper_releases),
        ROOM_CASE(a_child_frees_what_it_unlocks),
        ROOM_CASE(an_inner_level_asks_nobody),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
