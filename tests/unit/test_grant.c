/* Grants: how long they are held, what each answer to a renewal makes of them, and when they are lost. */
#define _GNU_SOURCE
#include "core/handle.h"
#include "state/attempt.h"
#include "support/alloc.h"
#include "support/room.h"

#include <stdio.h>
#include <string.h>

static void a_grant_counts_from_before_the_request(void **state)
{
    int64_t sent = now();
    dibs_grant *g;

    (void)state;
    will_answer(DIBS_OK, granted, ANSWER);
    g = take_one();
    assert_int_equal(atomic_load(&g->deadline), sent + REMAINS - MARGIN);
    assert_int_equal(g->expiry.key, sent + LEASE);
    assert_int_equal(dibs_grant_remaining_ms(g), (LEASE - ANSWER) / DIBS__MS);
    assert_int_equal(g->since, now());
    assert_int_equal(g->due.key, now() + (LEASE - ANSWER) / 3);
    assert_int_equal(dibs_grant_fence(g), 7);
    assert_int_equal(dibs_grant_floor(g), 6);
    assert_int_equal(room.until, sent + room.d->request_span);
    assert_int_equal(room.d->stats.held, 1);
    assert_int_equal(room.d->stats.grants, 1);
    assert_int_equal(room.d->brief, LEASE);
    assert_int_equal(room.d->stats.acquire.count, 1);
    assert_int_equal(room.d->stats.acquire.max_us, ANSWER);
    pass(LEASE - ANSWER - 1);
    assert_true(dibs_grant_held(g));
    assert_int_equal(dibs_grant_remaining_ms(g), 0);
    assert_int_equal(dibs_grant_loss(g), DIBS_LOSS_NONE);
    pass(1);
    assert_false(dibs_grant_held(g));
    assert_int_equal(dibs_grant_remaining_ms(g), 0);
    assert_int_equal(dibs_grant_loss(g), DIBS_LOSS_EXPIRED);
    assert_status(unlock(g), DIBS_LOST);
    assert_int_equal(room.d->stats.held, 0);
    assert_int_equal(room.d->stats.losses[DIBS_LOSS_EXPIRED], 1);
    assert_int_equal(room.d->stats.hold.count, 1);
    assert_int_equal(room.d->stats.hold.max_us, LEASE - ANSWER);
    assert_log("0 enter a"); /* the engine has forgotten it, too */
}

/* What an answer to a renewal makes of a grant that is held, or over by our clock. */
static void an_answer_is_the_grants_end_or_not(void **state)
{
    static const struct {
        bool over;
        dibs_status status;
        dibs__verdict verdict;
        int64_t remaining;
        dibs_loss loss;
        bool owed;
    } rows[] = {
        {false, DIBS_OK, DIBS__GRANTED, LEASE, DIBS_LOSS_NONE, false},
        {false, DIBS_OK, DIBS__QUEUED, LEASE, DIBS_LOSS_NONE, false},
        {false, DIBS_UNKNOWN, DIBS__GRANTED, LEASE, DIBS_LOSS_NONE, false},
        {false, DIBS_OK, DIBS__LOST, 0, DIBS_LOSS_GONE, false},
        {false, DIBS_OK, DIBS__BROKEN, 1, DIBS_LOSS_BROKEN, true},
        {false, DIBS_OK, DIBS__BROKEN, 0, DIBS_LOSS_BROKEN, false},
        {false, DIBS_OK, DIBS__RESUMED, 1, DIBS_LOSS_RESUMED, true},
        {false, DIBS_OK, DIBS__RESUMED, 0, DIBS_LOSS_RESUMED, false},
        {true, DIBS_OK, DIBS__GRANTED, LEASE, DIBS_LOSS_EXPIRED, true},
        {true, DIBS_OK, DIBS__LOST, 0, DIBS_LOSS_EXPIRED, false},
        {true, DIBS_OK, DIBS__BROKEN, 1, DIBS_LOSS_BROKEN, true},
        {true, DIBS_UNKNOWN, DIBS__GRANTED, LEASE, DIBS_LOSS_UNREACHABLE, false},
        /* without an answer there is no verdict, whatever the reply has */
        {false, DIBS_UNKNOWN, DIBS__BROKEN, 1, DIBS_LOSS_NONE, false},
        {false, DIBS_UNKNOWN, DIBS__RESUMED, 1, DIBS_LOSS_NONE, false},
        {true, DIBS_UNKNOWN, DIBS__QUEUED, 0, DIBS_LOSS_UNREACHABLE, false},
        {true, DIBS_UNKNOWN, DIBS__BROKEN, 1, DIBS_LOSS_UNREACHABLE, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dibs_grant *g;
        dibs__reply reply = {.verdict = rows[i].verdict, .remaining = rows[i].remaining};
        room_forget_answers();
        g = take_one();
        if (rows[i].over)
            pass(LEASE);
        pthread_mutex_lock(&room.d->mutex);
        dibs__grant_answer(g, now(), rows[i].status, &reply);
        pthread_mutex_unlock(&room.d->mutex);
        print_message("# row %zu\n", i);
        assert_int_equal(atomic_load(&g->loss), rows[i].loss);
        assert_int_equal(dibs_grant_held(g), rows[i].loss == DIBS_LOSS_NONE);
        assert_int_equal(g->state, rows[i].loss ? DIBS__GRANT_LOST : DIBS__HELD);
        assert_int_equal(atomic_load(&g->deadline) == 0, rows[i].loss != DIBS_LOSS_NONE);
        assert_int_equal(g->owed, rows[i].owed);
        assert_int_equal(g->due.index != 0, rows[i].loss == DIBS_LOSS_NONE);
        assert_int_equal(g->expiry.index != 0, rows[i].loss == DIBS_LOSS_NONE);
        assert_int_equal(room.d->outcomes.first != NULL, rows[i].loss != DIBS_LOSS_NONE);
        will_answer(DIBS_OK, released, 0);
        g->refs++; /* to look at it afterwards */
        assert_status(unlock(g), rows[i].loss ? DIBS_LOST : DIBS_OK);
        assert_int_equal(g->refs, 1);
        dibs__grant_unref(g);
        assert_int_equal(room.calls, rows[i].loss && !rows[i].owed ? 1 : 2);
        assert_null(room.d->outcomes.first); /* unlocking takes the news back */
    }
}

static void a_renewal_is_a_new_lease(void **state)
{
    dibs_grant *g = take_one();
    int64_t sent;
    dibs__reply reply = granted;

    (void)state;
    reply.floor = 7;
    reply.remaining = REMAINS - DIBS__SECOND;
    pass(LEASE / 2);
    sent = now();
    will_answer(DIBS_OK, reply, ANSWER);
    assert_status(dibs_renew(g, NULL), DIBS_OK);
    assert_int_equal(room.claim.lease, LEASE);
    assert_int_equal(room.until, sent + room.d->request_span);
    assert_int_equal(atomic_load(&g->deadline), sent + LEASE - DIBS__SECOND);
    assert_int_equal(g->due.key, sent + (LEASE - DIBS__SECOND) / 3);
    assert_int_equal(dibs_grant_floor(g), 7);
    assert_int_equal(room.d->stats.renewals, 1);
    drop(g);
}

/* One that gets no answer is repeated after a twelfth of the lease; or a second, where that is longer, or 10 ms. */
static void a_renewal_without_an_answer_is_repeated(void **state)
{
    static const int64_t leases[] = {6 * DIBS__SECOND, 60 * DIBS__SECOND, 60 * DIBS__MS},
                         pauses[] = {DIBS__SECOND / 2, DIBS__SECOND, 10 * DIBS__MS};

    (void)state;
    for (int i = 0; i < 3; i++) {
        dibs_grant *g;
        dibs__reply none = {0};
        room_forget_answers();
        g = take_one();
        g->lease = leases[i];
        pthread_mutex_lock(&room.d->mutex);
        dibs__grant_answer(g, now(), DIBS_UNAVAILABLE, &none);
        assert_int_equal(g->due.key, now() + pauses[i]);
        assert_int_equal(room.d->stats.renewal_failures, i + 1);
        assert_int_equal(room.level, DIBS_LOG_WARNING);
        assert_non_null(strstr(room.line, "renewing 'a' failed: "));
        pass(LEASE);
        dibs__grant_lose_if_over(g);
        pthread_mutex_unlock(&room.d->mutex);
        assert_int_equal(dibs_grant_loss(g), DIBS_LOSS_UNREACHABLE);
        assert_status(unlock(g), DIBS_LOST);
    }
}

/* An answer in between: the lease expired, and not because the engine was away. */
static void an_answer_ends_the_silence(void **state)
{
    dibs_grant *g = take_named("a", (dibs_lock_options){.data = &room});
    dibs__reply none = {0};
    dibs_outcome o;

    (void)state;
    pthread_mutex_lock(&room.d->mutex);
    dibs__grant_answer(g, now(), DIBS_UNKNOWN, &none);
    assert_true(g->silent);
    dibs__grant_answer(g, now(), DIBS_OK, &granted);
    pass(LEASE);
    dibs__grant_lose_if_over(g);
    dibs__grant_lose_if_over(g); /* once */
    pthread_mutex_unlock(&room.d->mutex);
    assert_true(dibs_take(room.d, &o));
    assert_int_equal(o.op, DIBS_OP_LOST);
    assert_int_equal(o.loss, DIBS_LOSS_EXPIRED);
    assert_ptr_equal(o.grant, g);
    assert_ptr_equal(o.user, &room);
    assert_int_equal(room.level, DIBS_LOG_ERROR);
    assert_string_equal(room.line, "lost 'a': its lease expired");
    assert_status(o.err.status, DIBS_LOST);
    assert_string_equal(o.err.message, "'a' was lost: its lease expired");
    assert_int_equal(g->refs, 1);
    assert_false(dibs_take(room.d, &o));
    assert_int_equal(room.d->stats.losses[DIBS_LOSS_EXPIRED], 1);
    assert_status(unlock(g), DIBS_LOST);
}

/* max_hold: no renewal asks for more, and the one that reaches it is the last. */
static void max_hold_is_the_end(void **state)
{
    dibs_grant *g = take_named("a", (dibs_lock_options){.max_hold_ms = 2 * LEASE / DIBS__MS});
    dibs__reply reply = granted;
    int64_t begun = now();

    (void)state;
    assert_int_equal(g->max_until, begun + 2 * LEASE);
    assert_true(g->due.index != 0);
    assert_int_equal(dibs__grant_lease_left(g, begun + LEASE), LEASE);
    assert_int_equal(dibs__grant_lease_left(g, begun + LEASE + 5), LEASE - 5);
    assert_int_equal(dibs__grant_lease_left(g, begun + 2 * LEASE), 1);
    for (int i = 0; i < 2; i++) { /* the first ends before it, the second at it */
        pthread_mutex_lock(&room.d->mutex);
        dibs__grant_answer(g, begun + LEASE - 1 + i, DIBS_OK, &reply);
        pthread_mutex_unlock(&room.d->mutex);
        assert_int_equal(g->due.index != 0, i == 0);
    }
    drop(g);
}

static void a_lease_that_is_max_hold_is_the_only_one(void **state)
{
    dibs_grant *g = take_named("a", (dibs_lock_options){.max_hold_ms = LEASE / DIBS__MS});

    (void)state;
    assert_int_equal(g->due.index, 0);
    drop(g);
}

static void what_is_not_renewed_is_not_due(void **state)
{
    dibs_grant *g = take_named("a", (dibs_lock_options){.no_renew = true});

    (void)state;
    assert_int_equal(g->due.index, 0);
    pthread_mutex_lock(&room.d->mutex);
    dibs__grant_hold(g, 8, 8, now() + DIBS__SECOND, false); /* a hand-over gets its whole lease */
    assert_int_equal(g->due.key, now() + DIBS__SECOND / 3);
    room.d->stats.held--; /* it was held already */
    g->max_hold = LEASE;  /* also where that is the only one it may have */
    dibs__grant_hold(g, 8, 8, now() + DIBS__SECOND, false);
    assert_true(g->due.index != 0);
    room.d->stats.held--;
    pthread_mutex_unlock(&room.d->mutex);
    drop(g);
}

static void what_is_over_is_not_delivered(void **state)
{
    dibs_grant *g = take_one();

    (void)state;
    pthread_mutex_lock(&room.d->mutex);
    assert_true(dibs__grant_deliver(g));
    g->delivered = false;
    pass(LEASE);
    assert_false(dibs__grant_deliver(g));
    assert_false(g->delivered);
    assert_null(room.d->outcomes.first);
    pthread_mutex_unlock(&room.d->mutex);
    assert_status(unlock(g), DIBS_LOST);
}

static void delivered_anew_its_terms_count_from_then(void **state)
{
    dibs_grant *g = take_one();

    (void)state;
    pass(DIBS__SECOND);
    pthread_mutex_lock(&room.d->mutex);
    g->delivered = false;
    dibs__grant_deliver_anew(g, false, LEASE);
    assert_true(g->delivered); /* from now on its loss is reported */
    assert_int_equal(g->since, now());
    assert_int_equal(g->max_until, now() + LEASE);
    assert_int_equal(g->due.index, 0);
    dibs__grant_deliver_anew(g, true, 0);
    assert_int_equal(g->max_until, DIBS__NEVER);
    assert_int_equal(g->due.key, now() + (atomic_load(&g->deadline) - now()) / 3);
    pthread_mutex_unlock(&room.d->mutex);
    drop(g);
}

static void a_lost_grant_is_not_renewed(void **state)
{
    dibs_grant *g = take_one();

    (void)state;
    will_answer(DIBS_OK, (dibs__reply){.verdict = DIBS__LOST}, 0);
    assert_status(dibs_renew(g, NULL), DIBS_LOST);
    assert_int_equal(dibs_grant_loss(g), DIBS_LOSS_GONE);
    assert_status(dibs_renew(g, NULL), DIBS_LOST);
    assert_int_equal(room.calls, 2);
    assert_int_equal(g->refs, 2); /* the user's, and the outcome's */
    assert_status(unlock(g), DIBS_LOST);
}

static void nothing_is_written_under_a_lost_grant(void **state)
{
    dibs_grant *g = take_one(), *none = NULL;
    uint64_t fence = 0, floor = 0;
    dibs_cell_options by_grant = {.grant = &g}, both = {.grant = &g, .fence = 7},
                      floor_too = {.grant = &g, .floor = 7}, by_number = {.fence = 9, .floor = 8},
                      nothing = {.grant = &none};

    (void)state;
    room.d->base = 100;
    assert_status(dibs__grant_guard(&by_grant, &fence, &floor, NULL), DIBS_OK);
    assert_int_equal(fence, 107);
    assert_int_equal(floor, 106);
    assert_status(dibs__grant_guard(&by_number, &fence, &floor, NULL), DIBS_OK);
    assert_int_equal(fence, 9);
    assert_int_equal(floor, 8);
    assert_status(dibs__grant_guard(&both, &fence, &floor, NULL), DIBS_INVALID);
    assert_status(dibs__grant_guard(&floor_too, &fence, &floor, NULL), DIBS_INVALID);
    assert_status(dibs__grant_guard(&nothing, &fence, &floor, NULL), DIBS_INVALID);
    pass(LEASE);
    assert_status(dibs__grant_guard(&by_grant, &fence, &floor, NULL), DIBS_LOST);
    assert_status(unlock(g), DIBS_LOST);
}

/* What dibs_unlock leaves behind. */
static void no_grant_holds_nothing(void **state)
{
    (void)state;
    assert_false(dibs_grant_held(NULL));
    assert_int_equal(dibs_grant_remaining_ms(NULL), 0);
    assert_int_equal(dibs_grant_loss(NULL), DIBS_LOSS_NONE);
    assert_int_equal(dibs_grant_fence(NULL), 0);
    assert_int_equal(dibs_grant_floor(NULL), 0);
    assert_string_equal(dibs_grant_name(NULL), "");
    assert_string_equal(dibs_grant_owner(NULL), "");
}

/* Of each digit the secret of a portable lock has all six bits. */
static void a_secret_is_drawn_from_all_digits(void **state)
{
    static const char all[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_~";
    bool seen[256] = {false};

    (void)state;
    for (int i = 0; i < 100; i++) {
        dibs_grant *g = dibs__grant_new(room.d, "a", "me", true);
        assert_non_null(g);
        assert_int_equal(g->secret[0], DIBS__SECRET);
        assert_int_equal(strlen(g->secret), sizeof g->secret - 1);
        assert_int_equal(strspn(g->secret + 1, all), sizeof g->secret - 2);
        assert_non_null(strstr(g->attempt, g->secret));
        for (const char *at = g->secret + 1; *at; at++)
            seen[(unsigned char)*at] = true;
        assert_string_equal(dibs_grant_owner(g), "me");
        assert_string_equal(dibs_grant_name(g), "a");
        dibs__grant_unref(g);
    }
    for (const char *at = all; *at; at++)
        assert_true(seen[(unsigned char)*at]);
}

/* As its handle's id and a number in hex: engines compare them. */
static void attempts_are_numbered(void **state)
{
    static const uint64_t from[] = {0, 0xedcba98765};
    char expected[DIBS__ATTEMPT_SIZE];

    (void)state;
    for (int i = 0; i < 2; i++) {
        room.d->attempts_made = from[i];
        for (uint64_t n = from[i] + 1; n < from[i] + 300; n++) {
            dibs_grant *g = dibs__grant_new(room.d, "a", NULL, n % 2);
            snprintf(expected, sizeof expected, "-%llx", (unsigned long long)n);
            assert_string_equal(strrchr(g->attempt, '-'), expected);
            assert_int_equal(strncmp(g->attempt, room.d->id, strlen(room.d->id)), 0);
            /* nobody else's owner is its own, and shows no secret */
            snprintf(expected, sizeof expected, "%s-%llx", room.d->id, (unsigned long long)n);
            assert_string_equal(dibs_grant_owner(g), expected);
            dibs__grant_unref(g);
        }
    }
}

/* Two pairs of owner and name may have the same hash. */
static void an_owner_is_found_by_its_name(void **state)
{
    static const char *const others[][2] = {{"me", "b"}, {"you", "a"}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        dibs_grant *g = dibs__grant_new(room.d, "a", "me", false);
        assert_true(dibs__grant_enlist(g));
        assert_ptr_equal(dibs__grant_of_owner(room.d, "me", "a"), g);
        dibs__table_remove(&room.d->owners, &g->by_owner);
        dibs__table_add(&room.d->owners, &g->by_owner, dibs__hash_pair(others[i][0], others[i][1]));
        assert_null(dibs__grant_of_owner(room.d, others[i][0], others[i][1]));
        dibs__grant_retire(g);
        dibs__grant_unref(g);
    }
}

/* Only ever earlier, and the keeper sleeps meanwhile. */
static void the_alarm_is_set_for_what_is_earlier(void **state)
{
    dibs_grant *g = take_named("a", (dibs_lock_options){.no_renew = true});
    int64_t alarm = now() + LEASE;

    (void)state;
    pthread_mutex_lock(&room.d->mutex);
    assert_int_equal(room.timer, alarm); /* its deadline */
    room.timers = 0;
    dibs__grant_schedule(g, alarm + 1);
    dibs__grant_schedule(g, alarm);
    assert_int_equal(room.timers, 0);
    dibs__grant_schedule(g, alarm - 1);
    assert_int_equal(room.timers, 1);
    assert_int_equal(room.timer, alarm - 1);
    for (int earlier = 0; earlier < 2; earlier++) { /* its deadline counts like that */
        dibs__reply reply = granted;
        reply.remaining -= 1 + earlier;
        dibs__grant_answer(g, now(), DIBS_OK, &reply);
        assert_int_equal(room.timers, 1 + earlier);
        assert_int_equal(room.timer, alarm - 1 - earlier);
    }
    assert_int_equal(room.d->armed, alarm - 2);
    assert_false(room_woken());
    pthread_mutex_unlock(&room.d->mutex);
    drop(g);
}

/* The keeper may not have come to it. */
static void what_is_over_is_not_renewed(void **state)
{
    dibs_grant *g = take_one();

    (void)state;
    pass(LEASE);
    assert_status(dibs_renew(g, NULL), DIBS_LOST);
    assert_log("0 enter a");
    assert_int_equal(dibs_grant_loss(g), DIBS_LOSS_EXPIRED);
    assert_status(unlock(g), DIBS_LOST);
}

static void lose_it_meanwhile(void)
{
    pass(LEASE);
    room_keep(0);
}

/* What a renewal by hand comes to. */
static void a_renewal_by_hand_says_what_happened(void **state)
{
    static const struct {
        answer answer;
        void (*inside)(void);
        dibs_status status;
        const char *message;
        int refs; /* the user's, and that of the outcome of a loss */
    } rows[] = {
        {{DIBS_OK, {.verdict = DIBS__GRANTED, .remaining = LEASE}, 0}, NULL, DIBS_OK, "", 1},
        {{DIBS_UNKNOWN, {0}, 0}, NULL, DIBS_UNKNOWN, "renewing 'a': ", 1},
        {{DIBS_UNAVAILABLE, {0}, 0}, NULL, DIBS_UNAVAILABLE, "renewing 'a': ", 1},
        {{DIBS_OK, {.verdict = DIBS__BROKEN}, 0},
         NULL,
         DIBS_LOST,
         "'a' was lost: an operator broke it",
         2},
        /* the keeper came first: the answer does not count any more */
        {{DIBS_OK, {.verdict = DIBS__GRANTED, .remaining = LEASE}, 0},
         lose_it_meanwhile,
         DIBS_LOST,
         "'a' was lost: its lease expired",
         2},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dibs_grant *g;
        dibs_error err = {0};
        room_forget_answers();
        g = take_one();
        will_answer(rows[i].answer.status, rows[i].answer.reply, 0);
        room.inside = rows[i].inside;
        room.d->stats.renewals = 0;
        print_message("# row %zu\n", i);
        assert_status(dibs_renew(g, &err), rows[i].status);
        assert_non_null(strstr(err.message, rows[i].message));
        assert_int_equal(room.d->stats.renewals, rows[i].status == DIBS_OK);
        assert_int_equal(g->refs, rows[i].refs);
        assert_int_equal(room.d->users, 0);
        will_answer(DIBS_OK, released, 0);
        unlock(g);
    }
}

static void a_handle_that_closes_renews_nothing(void **state)
{
    dibs_grant *g = take_one();
    dibs_error err;

    (void)state;
    atomic_store(&room.d->closing, true);
    assert_status(dibs_renew(g, &err), DIBS_CANCELLED);
    assert_int_equal(room.d->users, 0);
    atomic_store(&room.d->closing, false);
    drop(g);
    assert_status(dibs_renew(NULL, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "no grant to renew"));
}

/* What a forked child has of it is not held. */
static void a_child_holds_nothing(void **state)
{
    dibs_grant *g = take_one();
    char *here = (char *)(uintptr_t)room.d->here;

    (void)state;
    assert_int_equal(dibs_grant_remaining_ms(g), LEASE / DIBS__MS);
    *here = 0;
    assert_false(dibs_grant_held(g));
    assert_int_equal(dibs_grant_remaining_ms(g), 0);
    assert_status(dibs_renew(g, NULL), DIBS_FORKED);
    *here = 1;
    drop(g);
}

static void losses_have_names(void **state)
{
    (void)state;
    assert_string_equal(dibs_loss_name(DIBS_LOSS_NONE), "none");
    assert_string_equal(dibs_loss_name(DIBS_LOSS_CLOSED), "closed");
    assert_string_equal(dibs_loss_text(DIBS_LOSS_CLOSED), "its handle was closed or drained");
    assert_string_equal(dibs_loss_name((dibs_loss)(DIBS_LOSS_CLOSED + 1)), "unknown");
    assert_string_equal(dibs_loss_text((dibs_loss)(DIBS_LOSS_CLOSED + 1)), "unknown");
}

/* Our own end of a lease: a hundredth and 5 ms early, but never more than a tenth. */
static void a_deadline_keeps_its_margin(void **state)
{
    (void)state;
    assert_int_equal(dibs__deadline_of(1000, 30 * DIBS__SECOND, 30 * DIBS__SECOND),
                     1000 + 30 * DIBS__SECOND - 305 * DIBS__MS);
    assert_int_equal(dibs__deadline_of(0, 20 * DIBS__MS, 20 * DIBS__MS), 18 * DIBS__MS);
    assert_int_equal(dibs__deadline_of(7, 0, DIBS__SECOND), 7 - 15 * DIBS__MS);
}

/* Where the lease is the handle's, a lock has none that is longer. */
static void a_lease_fits_the_session(void **state)
{
    static const int64_t session[] = {0, 4, 4}, lease[] = {5, 5, 3}, fits[] = {5, 4, 3};
    dibs_grant *g = dibs__grant_new(room.d, "a", NULL, false);

    (void)state;
    for (int i = 0; i < 3; i++) {
        room.d->engine->lease = session[i];
        g->lease = lease[i];
        dibs__grant_fit_lease(g);
        assert_int_equal(g->lease, fits[i]);
    }
    room.d->engine->lease = 0;
    dibs__grant_unref(g);
}

/* Everything that a grant needs is there before the engine is asked. */
static void no_memory_means_that_nothing_was_asked(void **state)
{
    bool failed = true;
    int n = 0;

    while (failed && n++ < 20) {
        dibs_grant *g = NULL;
        dibs_status status;
        assert_int_equal(room_tear_down(state), 0);
        assert_int_equal(room_set_up(state), 0); /* it has no room for anything yet */
        will_answer(DIBS_OK, granted, 0);
        alloc_fail(n, false);
        status = dibs_lock(room.d, "a", NULL, &g, NULL);
        failed = alloc_heal();
        assert_status(status, failed ? DIBS_NO_MEMORY : DIBS_OK);
        assert_log(failed ? "" : "0 enter a");
        assert_int_equal(room.d->attempts.count, !failed);
        drop(g);
    }
    assert_true(n == 8); /* the grant, two tables, three heaps, and the keeper's batch */
}

/* One that has left the tables needs room in them again. */
static void an_orphan_that_finds_no_room_ends_with_its_lease(void **state)
{
    (void)state;
    for (int listed = 0; listed < 2; listed++) {
        dibs_grant *g = take_one();
        size_t size = room.d->due.size;
        g->refs++; /* to look at it afterwards */
        pthread_mutex_lock(&room.d->mutex);
        dibs__grant_note_end(g);
        if (!listed)
            dibs__grant_retire(g);
        room.d->due.size = 0;
        alloc_fail(1, true);
        dibs__grant_orphan(g, true);
        alloc_heal();
        room.d->due.size = size;
        pthread_mutex_unlock(&room.d->mutex);
        assert_int_equal(g->state, listed ? DIBS__ORPHAN : DIBS__OVER);
        assert_int_equal(g->refs, 1 + listed);
        assert_int_equal(room.d->attempts.count, listed);
        dibs__grant_retire(g);
        while (g->refs > 1)
            dibs__grant_unref(g);
        dibs__grant_unref(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ROOM_CASE(a_grant_counts_from_before_the_request),
        ROOM_CASE(an_answer_is_the_grants_end_or_not),
        ROOM_CASE(a_renewal_is_a_new_lease),
        ROOM_CASE(a_renewal_without_an_answer_is_repeated),
        ROOM_CASE(an_answer_ends_the_silence),
        ROOM_CASE(max_hold_is_the_end),
        ROOM_CASE(a_lease_that_is_max_hold_is_the_only_one),
        ROOM_CASE(what_is_not_renewed_is_not_due),
        ROOM_CASE(what_is_over_is_not_delivered),
        ROOM_CASE(delivered_anew_its_terms_count_from_then),
        ROOM_CASE(a_lost_grant_is_not_renewed),
        ROOM_CASE(nothing_is_written_under_a_lost_grant),
        ROOM_CASE(no_grant_holds_nothing),
        ROOM_CASE(a_secret_is_drawn_from_all_digits),
        ROOM_CASE(attempts_are_numbered),
        ROOM_CASE(an_owner_is_found_by_its_name),
        ROOM_CASE(the_alarm_is_set_for_what_is_earlier),
        ROOM_CASE(what_is_over_is_not_renewed),
        ROOM_CASE(a_renewal_by_hand_says_what_happened),
        ROOM_CASE(a_handle_that_closes_renews_nothing),
        ROOM_CASE(a_child_holds_nothing),
        ROOM_CASE(losses_have_names),
        ROOM_CASE(a_deadline_keeps_its_margin),
        ROOM_CASE(a_lease_fits_the_session),
        ROOM_CASE(no_memory_means_that_nothing_was_asked),
        ROOM_CASE(an_orphan_that_finds_no_room_ends_with_its_lease),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
