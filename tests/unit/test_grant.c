/* Grants and tickets under a clock that stands still and an engine that answers what it is told: each moment, status
 * and number is compared exactly. No keeper runs: what it would do next is read from its heaps. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/handle.h"
#include "state/attempt.h"
#include "support/calls.h"
#include "support/env.h"
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#define LEASE  (12 * DIBS__SECOND)
#define MARGIN (125 * DIBS__MS) /* of that lease: a hundredth and 5 ms */
#define ANSWER (3 * DIBS__MS)   /* how long the engine takes */

/* ---- The engine ------------------------------------------------------------------------------ */

typedef struct answer {
    dibs_status status;
    dibs__reply reply;
    int64_t takes;
} answer;

static struct {
    dibs *d;
    sim_env sim;
    dibs__engine_class class;
    answer next[16]; /* of enter, keep and release alike */
    int count, calls;
    dibs__deadline until; /* of the last call */
    dibs__enter_request entered;
    dibs__claim claim;
    char attempt[DIBS__ATTEMPT_SIZE];
    int done; /* requests that were settled */
} room;

static void will_answer(dibs_status status, dibs__reply reply, int64_t takes)
{
    room.next[room.count++] = (answer){status, reply, takes};
}

static dibs_status say(dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    answer a = room.next[room.calls];

    assert_true(room.calls < room.count);
    room.calls++;
    room.until = until;
    sim_env_pass(&room.sim, a.takes);
    *out = a.reply;
    return a.status == DIBS_OK ? DIBS_OK : dibs__fail(err, a.status, "as it was told");
}

static dibs_status enter(dibs__engine *e, const dibs__enter_request *request, dibs__deadline until,
                         dibs__reply *out, dibs_error *err)
{
    (void)e;
    room.entered = *request;
    return say(until, out, err);
}

static void note_claim(const dibs__claim *claim)
{
    room.claim = *claim;
    snprintf(room.attempt, sizeof room.attempt, "%s", claim->attempt);
}

static void keep(dibs__engine *e, dibs__claim *const claims[], size_t count, dibs__deadline until)
{
    (void)e;
    assert_int_equal(count, 1);
    note_claim(claims[0]);
    claims[0]->status = say(until, &claims[0]->reply, NULL);
}

static dibs_status release(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                           dibs__reply *out, dibs_error *err)
{
    (void)e;
    note_claim(claim);
    return say(until, out, err);
}

/* A pause passes at once. */
static void pause(void *sim, int64_t span)
{
    sim_env_pass(sim, span);
}

static int set_up(void **state)
{
    (void)state;
    memset(&room, 0, sizeof room);
    sim_env_init(&room.sim, 1);
    room.sim.env.sleep = pause;
    assert_status(dibs__open_in(&room.sim.env, "memory:grant", NULL, &room.d, NULL), DIBS_OK);
    room.class = *room.d->class;
    room.class.enter = enter;
    room.class.keep = keep;
    room.class.release = release;
    room.d->class = &room.class;
    room.d->keeper_runs = true; /* no thread of it is started */
    room.d->armed = 0;          /* nor woken */
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    room.d->keeper_runs = false;
    room.d->drained = true;
    dibs_close(room.d);
    return 0;
}

static int64_t now(void)
{
    return room.sim.boottime;
}

/* ---- Grants ---------------------------------------------------------------------------------- */

static const dibs__reply granted = {
    .verdict = DIBS__GRANTED, .fence = 7, .floor = 6, .remaining = LEASE};

static dibs_grant *take_with(dibs_lock_options o)
{
    dibs_grant *g = NULL;
    dibs_error err;

    o.lease_ms = LEASE / DIBS__MS;
    will_answer(DIBS_OK, granted, ANSWER);
    if (dibs_lock(room.d, "a", &o, &g, &err) != DIBS_OK)
        fail_msg("%s", err.message);
    return g;
}

static dibs_grant *take_one(void)
{
    return take_with((dibs_lock_options){0});
}

/* Without the keeper nobody else has it. */
static void drop(dibs_grant *g)
{
    will_answer(DIBS_OK, (dibs__reply){.verdict = DIBS__RELEASED}, 0);
    assert_true(unlock(g) == DIBS_OK || !g);
}

static void a_grant_counts_from_before_the_request(void **state)
{
    int64_t sent = now();
    dibs_grant *g = take_one();

    (void)state;
    assert_int_equal(atomic_load(&g->deadline), sent + LEASE - MARGIN);
    assert_int_equal(g->expiry.key, sent + LEASE - MARGIN);
    assert_int_equal(dibs_grant_remaining_ms(g), (LEASE - MARGIN - ANSWER) / DIBS__MS);
    assert_int_equal(g->since, now());
    assert_int_equal(g->due.key, now() + (sent + LEASE - MARGIN - now()) / 3);
    assert_int_equal(dibs_grant_fence(g), 7);
    assert_int_equal(dibs_grant_floor(g), 6);
    assert_int_equal(room.until, sent + room.d->request_span);
    assert_int_equal(room.d->stats.held, 1);
    assert_int_equal(room.d->stats.grants, 1);
    assert_int_equal(room.d->brief, LEASE);
    assert_int_equal(room.d->stats.acquire.count, 1);
    assert_int_equal(room.d->stats.acquire.max_us, ANSWER);
    sim_env_pass(&room.sim, LEASE - MARGIN - ANSWER - 1);
    assert_true(dibs_grant_held(g));
    assert_int_equal(dibs_grant_remaining_ms(g), 0);
    assert_int_equal(dibs_grant_loss(g), DIBS_LOSS_NONE);
    sim_env_pass(&room.sim, 1);
    assert_false(dibs_grant_held(g));
    assert_int_equal(dibs_grant_remaining_ms(g), 0);
    assert_int_equal(dibs_grant_loss(g), DIBS_LOSS_EXPIRED);
    assert_status(unlock(g), DIBS_LOST);
    assert_int_equal(room.d->stats.held, 0);
    assert_int_equal(room.d->stats.losses[DIBS_LOSS_EXPIRED], 1);
    assert_int_equal(room.d->stats.hold.count, 1);
    assert_int_equal(room.d->stats.hold.max_us, LEASE - MARGIN - ANSWER);
    assert_int_equal(room.calls, 1); /* the engine has forgotten it, too */
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
        room.count = room.calls = 0;
        g = take_one();
        if (rows[i].over)
            sim_env_pass(&room.sim, LEASE);
        pthread_mutex_lock(&room.d->mutex);
        dibs__grant_answer(g, now(), rows[i].status, &reply);
        pthread_mutex_unlock(&room.d->mutex);
        print_message("# row %zu\n", i);
        assert_int_equal(atomic_load(&g->loss), rows[i].loss);
        assert_int_equal(dibs_grant_held(g), rows[i].loss == DIBS_LOSS_NONE);
        assert_int_equal(g->state, rows[i].loss ? DIBS__GRANT_LOST : DIBS__HELD);
        assert_int_equal(g->owed, rows[i].owed);
        assert_int_equal(g->due.index != 0, rows[i].loss == DIBS_LOSS_NONE);
        assert_int_equal(g->expiry.index != 0, rows[i].loss == DIBS_LOSS_NONE);
        assert_int_equal(room.d->outcomes.first != NULL, rows[i].loss != DIBS_LOSS_NONE);
        will_answer(DIBS_OK, (dibs__reply){.verdict = DIBS__RELEASED}, 0);
        assert_status(unlock(g), rows[i].loss ? DIBS_LOST : DIBS_OK);
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
    reply.remaining = LEASE - DIBS__SECOND;
    sim_env_pass(&room.sim, LEASE / 2);
    sent = now();
    will_answer(DIBS_OK, reply, ANSWER);
    assert_status(dibs_renew(g, NULL), DIBS_OK);
    assert_int_equal(room.claim.lease, LEASE);
    assert_int_equal(room.until, sent + room.d->request_span);
    assert_int_equal(atomic_load(&g->deadline), sent + LEASE - DIBS__SECOND - MARGIN);
    assert_int_equal(g->due.key, sent + (LEASE - DIBS__SECOND - MARGIN) / 3);
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
        room.count = room.calls = 0;
        g = take_one();
        g->lease = leases[i];
        pthread_mutex_lock(&room.d->mutex);
        dibs__grant_answer(g, now(), DIBS_UNAVAILABLE, &none);
        assert_int_equal(g->due.key, now() + pauses[i]);
        assert_int_equal(room.d->stats.renewal_failures, i + 1);
        sim_env_pass(&room.sim, LEASE);
        dibs__grant_lose_if_over(g);
        pthread_mutex_unlock(&room.d->mutex);
        assert_int_equal(dibs_grant_loss(g), DIBS_LOSS_UNREACHABLE);
        assert_status(unlock(g), DIBS_LOST);
    }
}

/* An answer in between: the lease expired, and not because the engine was away. */
static void an_answer_ends_the_silence(void **state)
{
    dibs_grant *g = take_one();
    dibs__reply none = {0};
    dibs_outcome o;

    (void)state;
    pthread_mutex_lock(&room.d->mutex);
    dibs__grant_answer(g, now(), DIBS_UNKNOWN, &none);
    assert_true(g->silent);
    dibs__grant_answer(g, now(), DIBS_OK, &granted);
    sim_env_pass(&room.sim, LEASE);
    dibs__grant_lose_if_over(g);
    dibs__grant_lose_if_over(g); /* once */
    pthread_mutex_unlock(&room.d->mutex);
    assert_true(dibs_take(room.d, &o));
    assert_int_equal(o.op, DIBS_OP_LOST);
    assert_int_equal(o.loss, DIBS_LOSS_EXPIRED);
    assert_ptr_equal(o.grant, g);
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
    dibs_grant *g = take_with((dibs_lock_options){.max_hold_ms = 2 * LEASE / DIBS__MS});
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
    dibs_grant *g = take_with((dibs_lock_options){.max_hold_ms = LEASE / DIBS__MS});

    (void)state;
    assert_int_equal(g->due.index, 0);
    drop(g);
}

static void what_is_not_renewed_is_not_due(void **state)
{
    dibs_grant *g = take_with((dibs_lock_options){.no_renew = true});

    (void)state;
    assert_int_equal(g->due.index, 0);
    pthread_mutex_lock(&room.d->mutex);
    dibs__grant_hold(g, 8, 8, now() + DIBS__SECOND, false); /* a hand-over gets its whole lease */
    assert_int_equal(g->due.key, now() + DIBS__SECOND / 3);
    room.d->stats.held--; /* it was held already */
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
    sim_env_pass(&room.sim, LEASE);
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
    sim_env_pass(&room.sim, DIBS__SECOND);
    pthread_mutex_lock(&room.d->mutex);
    dibs__grant_deliver_anew(g, false, LEASE);
    assert_int_equal(g->since, now());
    assert_int_equal(g->max_until, now() + LEASE);
    assert_int_equal(g->due.index, 0);
    dibs__grant_deliver_anew(g, true, 0);
    assert_int_equal(g->max_until, DIBS__NEVER);
    assert_int_equal(g->due.key, now() + (atomic_load(&g->deadline) - now()) / 3);
    pthread_mutex_unlock(&room.d->mutex);
    drop(g);
}

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
        {{{DIBS_DENIED, {0}, 0}}, 1, DIBS_DENIED, 0, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dibs_grant *g;
        dibs_error err;
        int64_t began;
        room.count = room.calls = 0;
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

/* A release ends with the lease that it gives back, and with a handle that is being closed. */
static void a_release_has_no_more_time_than_the_lease(void **state)
{
    dibs_grant *g = take_one();
    int64_t end = atomic_load(&g->deadline);

    (void)state;
    sim_env_pass(&room.sim, LEASE - MARGIN - DIBS__SECOND);
    drop(g);
    assert_int_equal(room.until, end);
    room.count = room.calls = 0;
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
    sim_env_pass(&room.sim, LEASE);
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

/* ---- Tickets --------------------------------------------------------------------------------- */

static void note_done(dibs *d, dibs__ticket *t)
{
    (void)d;
    (void)t;
    room.done++;
}

/* A request's, ready to enter. */
static dibs_grant *new_waiter(dibs__ticket *t)
{
    dibs_grant *g = dibs__grant_new(room.d, "a", NULL, false);

    assert_non_null(g);
    g->lease = LEASE;
    g->renew = true;
    g->capacity = DIBS__PLAIN;
    g->weight = 1;
    assert_true(dibs__grant_enlist(g));
    *t = (dibs__ticket){.grant = g,
                        .until = now() + 60 * DIBS__SECOND,
                        .window = DIBS__WINDOW,
                        .enter_again = true,
                        .by_event = true,
                        .done = note_done};
    g->ticket = t;
    room.d->waits++;
    room.count = room.calls = room.done = 0;
    return g;
}

static void enter_as(dibs__ticket *t, dibs_status status, dibs__reply reply, int64_t takes)
{
    will_answer(status, reply, takes);
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_enter(t, now() + room.d->request_span);
    pthread_mutex_unlock(&room.d->mutex);
}

/* The ticket has its reference until its request is taken. */
static void forget(dibs__ticket *t, dibs_grant *g)
{
    dibs__ticket_fini(t);
    if (g->state != DIBS__OVER)
        dibs__grant_retire(g);
    while (g->refs > 1)
        dibs__grant_unref(g);
    dibs__grant_unref(g);
}

static void what_an_entry_asks_for(void **state)
{
    dibs__ticket t;
    dibs_grant *g = new_waiter(&t);

    (void)state;
    g->min_hold = 5;
    g->owner_named = true;
    t.until = now() + DIBS__SECOND;
    enter_as(&t, DIBS_OK, (dibs__reply){.verdict = DIBS__QUEUED}, 0);
    assert_int_equal(room.until, t.until); /* sooner than a request */
    assert_string_equal(room.entered.name, "a");
    assert_string_equal(room.entered.who.attempt, g->attempt);
    assert_string_equal(room.entered.who.owner, g->owner);
    assert_string_equal(room.entered.who.host, room.d->host);
    assert_int_equal(room.entered.who.pid, room.d->pid);
    assert_int_equal(room.entered.who.lease, LEASE);
    assert_int_equal(room.entered.who.min_hold, 5);
    assert_int_equal(room.entered.who.weight, 1);
    assert_int_equal(room.entered.capacity, DIBS__PLAIN);
    assert_int_equal(room.entered.window, DIBS__WINDOW);
    assert_true(room.entered.owner_named);
    t.try_once = true;
    enter_as(&t, DIBS_OK, (dibs__reply){.verdict = DIBS__QUEUED}, 0);
    assert_int_equal(room.entered.window, 0);
    assert_int_equal(g->refs, 1);
    forget(&t, g);
}

static void a_waiter_is_kept_alive(void **state)
{
    dibs__ticket t;
    dibs_grant *g = new_waiter(&t);
    int64_t sent = now();

    (void)state;
    enter_as(&t, DIBS_OK, (dibs__reply){.verdict = DIBS__QUEUED}, ANSWER);
    assert_int_equal(g->state, DIBS__WAITING);
    assert_false(t.enter_again || t.settled);
    assert_int_equal(t.alive, sent + DIBS__WINDOW);
    assert_int_equal(g->due.key, sent + DIBS__WINDOW / 3);
    assert_int_equal(room.d->stats.waiting, 1);
    enter_as(&t, DIBS_OK, (dibs__reply){.verdict = DIBS__QUEUED, .remaining = DIBS__MS}, ANSWER);
    assert_int_equal(g->due.key, now() + 2 * DIBS__MS); /* a holder's lease ends sooner */
    assert_int_equal(room.d->stats.waiting, 1);
    t.until = now() + 7;
    enter_as(&t, DIBS_OK, (dibs__reply){.verdict = DIBS__QUEUED}, 0);
    assert_int_equal(g->due.key, t.until);
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_cancel(&t);
    pthread_mutex_unlock(&room.d->mutex);
    assert_int_equal(room.done, 1);
    assert_status(t.status, DIBS_CANCELLED);
    assert_int_equal(g->state, DIBS__ORPHAN); /* the engine has its entry */
    assert_false(g->release_it);
    assert_int_equal(room.d->stats.waiting, 0);
    assert_int_equal(room.d->stats.cancelled, 1);
    forget(&t, g);
}

/* What settles a request, and whether the engine may have an entry afterwards. */
static void answers_that_settle(void **state)
{
    static const struct {
        dibs_status answer;
        dibs__reply reply;
        bool try_once, unsure;
        dibs_status status;
        bool orphan;
    } rows[] = {
        {DIBS_OK, {.verdict = DIBS__BUSY}, true, false, DIBS_BUSY, false},
        {DIBS_OK, {.verdict = DIBS__MISMATCH, .capacity = 3}, false, false, DIBS_MISMATCH, false},
        {DIBS_OK,
         {.verdict = DIBS__MISMATCH, .capacity = DIBS__PLAIN},
         false,
         false,
         DIBS_MISMATCH,
         false},
        {DIBS_OK, {.verdict = DIBS__RESUMED}, false, false, DIBS_LOST, false},
        {DIBS_OK, {.verdict = DIBS__RESUMED, .remaining = 1}, false, false, DIBS_LOST, true},
        {DIBS_UNAVAILABLE, {.remaining = 1}, true, false, DIBS_UNAVAILABLE, false},
        {DIBS_UNAVAILABLE, {.remaining = 1}, true, true, DIBS_UNAVAILABLE, true},
        {DIBS_DENIED, {0}, false, false, DIBS_DENIED, true},
    };

    size_t busy = 0;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dibs__ticket t;
        dibs_grant *g = new_waiter(&t);
        t.try_once = rows[i].try_once;
        t.unsure = rows[i].unsure;
        room.d->waits -= t.try_once;
        enter_as(&t, rows[i].answer, rows[i].reply, 0);
        print_message("# row %zu\n", i);
        assert_true(t.settled);
        assert_int_equal(room.done, 1);
        assert_status(t.status, rows[i].status);
        assert_int_equal(g->state, rows[i].orphan ? DIBS__ORPHAN : DIBS__OVER);
        assert_null(g->ticket);
        assert_int_equal(room.d->waits, 0);
        busy += t.status == DIBS_BUSY;
        assert_int_equal(room.d->stats.busy, busy);
        assert_int_equal(room.d->stats.failures, i + 1 - busy);
        pthread_mutex_lock(&room.d->mutex);
        dibs__ticket_settle(&t, DIBS_OK, NULL); /* it is settled once */
        pthread_mutex_unlock(&room.d->mutex);
        assert_int_equal(room.done, 1);
        assert_status(t.status, rows[i].status);
        forget(&t, g);
    }
}

/* All but a try that the servers refuse for a time that they know. */
static void who_is_not_answered_asks_again(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        dibs__ticket t;
        dibs_grant *g = new_waiter(&t);
        t.try_once = i != 1;
        enter_as(&t, i == 0 ? DIBS_UNKNOWN : DIBS_UNAVAILABLE, (dibs__reply){.remaining = i != 2},
                 0);
        assert_false(t.settled);
        assert_int_equal(t.retry_at, now() + 20 * DIBS__MS);
        room.d->waits = 0;
        forget(&t, g);
    }
}

/* No answer: asked again under the same attempt, after pauses that grow. */
static void a_request_without_an_answer_is_repeated(void **state)
{
    dibs__ticket t;
    dibs_grant *g = new_waiter(&t);
    char attempt[DIBS__ATTEMPT_SIZE];
    int64_t pause_ms = 20;

    (void)state;
    strcpy(attempt, g->attempt);
    enter_as(&t, DIBS_UNAVAILABLE, (dibs__reply){0}, 0);
    assert_false(t.unsure); /* it was surely not sent */
    for (int i = 0; i < 7; i++) {
        assert_true(t.enter_again && !t.settled);
        assert_int_equal(t.retry_at, now() + pause_ms * DIBS__MS);
        assert_int_equal(g->due.key, t.retry_at);
        pause_ms = pause_ms * 2 < 1000 ? pause_ms * 2 : 1000;
        enter_as(&t, DIBS_UNKNOWN, (dibs__reply){0}, 0);
        assert_true(t.unsure);
        assert_string_equal(g->attempt, attempt);
    }
    enter_as(&t, DIBS_OK, (dibs__reply){.verdict = DIBS__QUEUED}, 0);
    assert_int_equal(t.pause, 0);
    enter_as(&t, DIBS_UNKNOWN, (dibs__reply){0}, 0);
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_time_out(&t);
    pthread_mutex_unlock(&room.d->mutex);
    assert_status(t.status, DIBS_UNAVAILABLE);
    assert_non_null(strstr(t.err->message, "not obtained in time"));
    forget(&t, g);
}

static void a_wait_that_ends_names_the_holder(void **state)
{
    dibs__ticket t;
    dibs_grant *g = new_waiter(&t);
    dibs__reply reply = {
        .verdict = DIBS__QUEUED,
        .in_way = {.fence = 5, .pid = 4, .left = LEASE, .owner = "it", .host = "there"}};

    (void)state;
    room.d->base = 100;
    enter_as(&t, DIBS_OK, reply, 0);
    sim_env_pass(&room.sim, DIBS__SECOND);
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_time_out(&t);
    pthread_mutex_unlock(&room.d->mutex);
    assert_status(t.status, DIBS_BUSY);
    assert_int_equal(t.err->fence, 105);
    assert_int_equal(t.err->retry_after_ms, (LEASE - DIBS__SECOND) / DIBS__MS);
    assert_string_equal(t.err->owner, "it");
    forget(&t, g);
    for (int over = 0; over < 2; over++) { /* a lease that nobody can have is not known */
        g = new_waiter(&t);
        t.try_once = true;
        reply.verdict = DIBS__BUSY;
        reply.in_way.left = DIBS__MAX_LEASE + over;
        enter_as(&t, DIBS_OK, reply, 0);
        assert_int_equal(t.err->retry_after_ms, over ? 0 : DIBS__MAX_LEASE / DIBS__MS);
        forget(&t, g);
    }
    room.d->waits = 0;
    g = new_waiter(&t);
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_time_out(&t);
    pthread_mutex_unlock(&room.d->mutex);
    assert_status(t.status, DIBS_UNAVAILABLE); /* it was never asked */
    forget(&t, g);
}

/* The engine has no entry of this attempt (any more), or its grant was over when we heard of it. */
static void what_is_gone_begins_anew(void **state)
{
    dibs__reply late = granted;

    (void)state;
    for (int i = 0; i < 2; i++) {
        dibs__ticket t;
        dibs_grant *g = new_waiter(&t);
        char attempt[DIBS__ATTEMPT_SIZE];
        strcpy(attempt, g->attempt);
        late.remaining = MARGIN + ANSWER; /* just over */
        enter_as(&t, DIBS_OK, i ? late : (dibs__reply){.verdict = DIBS__LOST}, ANSWER);
        assert_true(t.enter_again && !t.settled && !t.unsure);
        assert_string_not_equal(g->attempt, attempt);
        assert_ptr_equal(dibs__grant_of_attempt(room.d, g->attempt), g);
        assert_null(dibs__grant_of_attempt(room.d, attempt));
        assert_int_equal(g->state, DIBS__WAITING);
        assert_int_equal(t.retry_at, i ? now() + 20 * DIBS__MS : 0);
        assert_int_equal(g->due.key, now());
        late.remaining++;
        enter_as(&t, DIBS_OK, late, ANSWER);
        assert_status(t.status, DIBS_OK);
        assert_int_equal(g->state, DIBS__HELD);
        dibs__grant_note_end(g);
        forget(&t, g);
    }
}

static void hand(dibs__ticket *t)
{
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_handed(t, 9, 8);
    pthread_mutex_unlock(&room.d->mutex);
}

/* A hand-over says nothing about time: it lasts for the window since the last answer. */
static void a_hand_over_counts_from_the_last_answer(void **state)
{
    dibs__ticket t;
    dibs_grant *g = new_waiter(&t);
    int64_t sent = now(), margin = DIBS__WINDOW / 100 + 5 * DIBS__MS;

    (void)state;
    enter_as(&t, DIBS_OK, (dibs__reply){.verdict = DIBS__QUEUED}, ANSWER);
    hand(&t);
    assert_status(t.status, DIBS_OK);
    assert_int_equal(g->state, DIBS__HELD);
    assert_int_equal(atomic_load(&g->deadline), sent + DIBS__WINDOW - margin);
    assert_int_equal(g->fence, 9);
    assert_int_equal(atomic_load(&g->floor), 8);
    assert_false(g->whole);
    assert_int_equal(room.d->stats.wait.count, 1);
    dibs__grant_note_end(g);
    forget(&t, g);
}

/* It is asked about first: if little is left of the window, or it may be about an entry that has ended. */
static void a_doubtful_hand_over_is_confirmed_first(void **state)
{
    int64_t margin = DIBS__WINDOW / 100 + 5 * DIBS__MS;

    (void)state;
    for (int i = 0; i < 4; i++) {
        dibs__ticket t;
        dibs_grant *g = new_waiter(&t);
        int64_t enough = DIBS__WINDOW - margin - DIBS__WINDOW / 4;
        if (i == 0)
            enter_as(&t, DIBS_UNKNOWN, (dibs__reply){0}, 0);
        enter_as(&t, DIBS_OK, (dibs__reply){.verdict = DIBS__QUEUED}, 0);
        sim_env_pass(&room.sim, i == 1 ? enough + 1 : i == 2 ? enough : 0);
        if (i == 3)
            t.enter_again = true;
        hand(&t);
        assert_int_equal(g->state, i == 2 ? DIBS__HELD : DIBS__WAITING);
        if (i < 2)
            assert_int_equal(g->due.key, now());
        if (i == 2)
            dibs__grant_note_end(g);
        else
            room.d->stats.waiting--;
        forget(&t, g);
    }
}

/* It overtakes the answer that the waiter is in the queue. */
static void a_hand_over_may_come_before_the_answer(void **state)
{
    dibs__ticket t;
    dibs_grant *g = new_waiter(&t);
    const dibs__reply queued = {.verdict = DIBS__QUEUED};

    (void)state;
    g->state = DIBS__ENTERING;
    hand(&t);
    assert_int_equal(g->state, DIBS__ENTERING);
    assert_true(t.handed);
    g->state = DIBS__WAITING;
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_answer(&t, now(), DIBS_OK, &queued, NULL);
    pthread_mutex_unlock(&room.d->mutex);
    assert_int_equal(g->state, DIBS__HELD);
    assert_int_equal(g->fence, 9);
    dibs__grant_note_end(g);
    forget(&t, g);
    g = new_waiter(&t); /* what came before a request is in its answer, or over */
    t.handed = t.doubt = true;
    enter_as(&t, DIBS_OK, queued, 0);
    assert_int_equal(g->state, DIBS__WAITING);
    assert_int_equal(g->due.key, now() + DIBS__WINDOW / 3);
    t.doubt = true; /* wake-ups were missed while it was out */
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_answer(&t, now(), DIBS_OK, &queued, NULL);
    pthread_mutex_unlock(&room.d->mutex);
    assert_int_equal(g->due.key, now());
    assert_false(t.doubt);
    room.d->stats.waiting--;
    forget(&t, g);
}

/* A worker is inside `enter`: its request is settled when that comes back. */
static void a_request_that_is_out_is_cancelled_by_its_answer(void **state)
{
    dibs__ticket t;
    dibs_grant *g = new_waiter(&t);

    (void)state;
    g->state = DIBS__ENTERING;
    t.maybe_there = true;
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_cancel(&t);
    assert_true(t.cancelled && !t.settled);
    dibs__ticket_answer(&t, now(), DIBS_OK, &granted, NULL);
    pthread_mutex_unlock(&room.d->mutex);
    assert_status(t.status, DIBS_CANCELLED);
    assert_int_equal(g->state, DIBS__ORPHAN);
    forget(&t, g);
}

/* ---- How long the keeper may be away --------------------------------------------------------- */

static void the_keeper_is_back_in_time(void **state)
{
    dibs *d = room.d;
    int64_t span = d->request_span, grace = 50 * DIBS__MS, from = now();
    dibs_grant *g;

    (void)state;
    assert_int_equal(dibs__keeper_renew_until(d, from), from + span);
    assert_int_equal(dibs__keeper_until(d, from), from + span);
    dibs__keeper_expect(d, 3 * DIBS__SECOND, from); /* a lease of the last minute */
    assert_int_equal(dibs__keeper_renew_until(d, from), from + 3 * DIBS__SECOND);
    assert_int_equal(dibs__keeper_until(d, from), from + 2 * DIBS__SECOND);
    dibs__keeper_expect(d, 4 * DIBS__SECOND, from + 1); /* the shortest counts */
    assert_int_equal(dibs__keeper_renew_until(d, from), from + 3 * DIBS__SECOND);
    dibs__keeper_expect(d, 3 * DIBS__SECOND, from + 30 * DIBS__SECOND); /* for a minute from then */
    assert_int_equal(d->brief_until, from + 90 * DIBS__SECOND);
    dibs__keeper_expect(d, 30 * DIBS__MS, from);
    assert_int_equal(dibs__keeper_renew_until(d, from), from + grace);
    assert_int_equal(dibs__keeper_renew_until(d, from + 60 * DIBS__SECOND - 1),
                     from + 60 * DIBS__SECOND - 1 + grace);
    assert_int_equal(dibs__keeper_renew_until(d, from + 60 * DIBS__SECOND),
                     from + 60 * DIBS__SECOND + span);
    sim_env_pass(&room.sim, 60 * DIBS__SECOND);
    dibs__keeper_expect(d, LEASE, now()); /* the short ones are forgotten */
    assert_int_equal(d->brief, LEASE);
    g = take_one();
    from = now();
    pthread_mutex_lock(&d->mutex);
    dibs__heap_put(&d->expiries, &g->expiry, from + 3 * DIBS__SECOND);
    assert_int_equal(dibs__keeper_renew_until(d, from), from + 3 * DIBS__SECOND);
    assert_int_equal(dibs__keeper_until(d, from), from + 2 * DIBS__SECOND);
    dibs__heap_put(&d->expiries, &g->expiry, from - 1);
    assert_int_equal(dibs__keeper_renew_until(d, from), from + grace);
    dibs__heap_put(&d->expiries, &g->expiry, from + 3 * DIBS__SECOND);
    dibs__heap_remove(&d->due, &g->due); /* one that is not renewed just ends */
    assert_int_equal(dibs__keeper_until(d, from), from + 3 * DIBS__SECOND);
    d->close_until = from + 7;
    atomic_store(&d->closing, true);
    assert_int_equal(dibs__keeper_renew_until(d, from), from + 7);
    atomic_store(&d->closing, false);
    pthread_mutex_unlock(&d->mutex);
    drop(g);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_grant_counts_from_before_the_request),
        CASE(an_answer_is_the_grants_end_or_not),
        CASE(a_renewal_is_a_new_lease),
        CASE(a_renewal_without_an_answer_is_repeated),
        CASE(an_answer_ends_the_silence),
        CASE(max_hold_is_the_end),
        CASE(a_lease_that_is_max_hold_is_the_only_one),
        CASE(what_is_not_renewed_is_not_due),
        CASE(what_is_over_is_not_delivered),
        CASE(delivered_anew_its_terms_count_from_then),
        CASE(a_release_is_repeated_until_it_is_known),
        CASE(a_release_has_no_more_time_than_the_lease),
        CASE(an_orphan_is_the_keepers),
        CASE(an_inner_level_asks_nobody),
        CASE(a_lost_grant_is_not_renewed),
        CASE(nothing_is_written_under_a_lost_grant),
        CASE(no_grant_holds_nothing),
        CASE(a_secret_is_drawn_from_all_digits),
        CASE(what_an_entry_asks_for),
        CASE(a_waiter_is_kept_alive),
        CASE(answers_that_settle),
        CASE(who_is_not_answered_asks_again),
        CASE(a_request_without_an_answer_is_repeated),
        CASE(a_wait_that_ends_names_the_holder),
        CASE(what_is_gone_begins_anew),
        CASE(a_hand_over_counts_from_the_last_answer),
        CASE(a_doubtful_hand_over_is_confirmed_first),
        CASE(a_hand_over_may_come_before_the_answer),
        CASE(a_request_that_is_out_is_cancelled_by_its_answer),
        CASE(the_keeper_is_back_in_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
