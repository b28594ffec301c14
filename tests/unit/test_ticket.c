/* Tickets: what a lock call asks, what each answer makes of it, and what is said in the end. */
#define _GNU_SOURCE
#include "core/handle.h"
#include "support/alloc.h"
#include "support/room.h"

#include <string.h>

static void what_an_entry_asks_for(void **state)
{
    dibs__ticket t;
    dibs_grant *g = room_waiter(&t);

    (void)state;
    g->min_hold = 5;
    g->owner_named = true;
    t.until = now() + DIBS__SECOND;
    room_enter(&t, DIBS_OK, in_queue, 0);
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
    room_enter(&t, DIBS_OK, in_queue, 0);
    assert_int_equal(room.entered.window, 0);
    assert_int_equal(g->refs, 1);
    room_forget_waiter(&t, g);
}

static void a_waiter_is_kept_alive(void **state)
{
    dibs__ticket t;
    dibs_grant *g = room_waiter(&t);
    int64_t sent = now();

    (void)state;
    room_enter(&t, DIBS_OK, in_queue, ANSWER);
    assert_int_equal(g->state, DIBS__WAITING);
    assert_false(t.enter_again || t.settled);
    assert_int_equal(t.alive, sent + DIBS__WINDOW);
    assert_int_equal(g->due.key, sent + DIBS__WINDOW / 3);
    assert_int_equal(room.d->stats.waiting, 1);
    room_enter(&t, DIBS_OK, (dibs__reply){.verdict = DIBS__QUEUED, .remaining = DIBS__MS}, ANSWER);
    assert_int_equal(g->due.key, now() + 2 * DIBS__MS); /* a holder's lease ends sooner */
    assert_int_equal(room.d->stats.waiting, 1);
    t.until = now() + 7;
    room_enter(&t, DIBS_OK, in_queue, 0);
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
    room_forget_waiter(&t, g);
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
        dibs_grant *g = room_waiter(&t);
        t.try_once = rows[i].try_once;
        t.unsure = rows[i].unsure;
        room.d->waits -= t.try_once;
        room_enter(&t, rows[i].answer, rows[i].reply, 0);
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
        room_forget_waiter(&t, g);
    }
}

/* All but a try that the servers refuse for a time that they know. */
static void who_is_not_answered_asks_again(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        dibs__ticket t;
        dibs_grant *g = room_waiter(&t);
        t.try_once = i != 1;
        room_enter(&t, i == 0 ? DIBS_UNKNOWN : DIBS_UNAVAILABLE, (dibs__reply){.remaining = i != 2},
                   0);
        assert_false(t.settled);
        assert_int_equal(t.retry_at, now() + 20 * DIBS__MS);
        room.d->waits = 0;
        room_forget_waiter(&t, g);
    }
}

/* No answer: asked again under the same attempt, after pauses that grow. */
static void a_request_without_an_answer_is_repeated(void **state)
{
    dibs__ticket t;
    dibs_grant *g = room_waiter(&t);
    char attempt[DIBS__ATTEMPT_SIZE];
    int64_t pause_ms = 20;

    (void)state;
    strcpy(attempt, g->attempt);
    room_enter(&t, DIBS_UNAVAILABLE, (dibs__reply){0}, 0);
    assert_false(t.unsure); /* it was surely not sent */
    for (int i = 0; i < 7; i++) {
        assert_true(t.enter_again && !t.settled);
        assert_int_equal(t.retry_at, now() + pause_ms * DIBS__MS);
        assert_int_equal(g->due.key, t.retry_at);
        pause_ms = pause_ms * 2 < 1000 ? pause_ms * 2 : 1000;
        room_enter(&t, DIBS_UNKNOWN, (dibs__reply){0}, 0);
        assert_true(t.unsure);
        assert_string_equal(g->attempt, attempt);
    }
    room_enter(&t, DIBS_OK, in_queue, 0);
    assert_int_equal(t.pause, 0);
    room_enter(&t, DIBS_UNKNOWN, (dibs__reply){0}, 0);
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_time_out(&t);
    pthread_mutex_unlock(&room.d->mutex);
    assert_status(t.status, DIBS_UNAVAILABLE);
    assert_non_null(strstr(t.err->message, "not obtained in time"));
    room_forget_waiter(&t, g);
}

static void a_wait_that_ends_names_the_holder(void **state)
{
    dibs__ticket t;
    dibs_grant *g = room_waiter(&t);
    dibs__reply reply = {
        .verdict = DIBS__QUEUED,
        .in_way = {.fence = 5, .pid = 4, .left = LEASE, .owner = "it", .host = "there"}};

    (void)state;
    room.d->base = 100;
    room_enter(&t, DIBS_OK, reply, 0);
    pass(DIBS__SECOND);
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_time_out(&t);
    pthread_mutex_unlock(&room.d->mutex);
    assert_status(t.status, DIBS_BUSY);
    assert_int_equal(t.err->fence, 105);
    assert_int_equal(t.err->retry_after_ms, (LEASE - DIBS__SECOND) / DIBS__MS);
    assert_string_equal(t.err->owner, "it");
    assert_status(t.err->status, DIBS_BUSY);
    assert_string_equal(t.err->message,
                        "'a': held by it (host there, pid 4); not obtained in time");
    room_forget_waiter(&t, g);
    for (int over = 0; over < 2; over++) { /* a lease that nobody can have is not known */
        g = room_waiter(&t);
        t.try_once = true;
        reply.verdict = DIBS__BUSY;
        reply.in_way.left = DIBS__MAX_LEASE + over;
        room_enter(&t, DIBS_OK, reply, 0);
        assert_int_equal(t.err->retry_after_ms, over ? 0 : DIBS__MAX_LEASE / DIBS__MS);
        room_forget_waiter(&t, g);
    }
    room.d->waits = 0;
    g = room_waiter(&t);
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_time_out(&t);
    pthread_mutex_unlock(&room.d->mutex);
    assert_status(t.status, DIBS_UNAVAILABLE); /* it was never asked */
    room_forget_waiter(&t, g);
}

/* The engine has no entry of this attempt (any more), or its grant was over when we heard of it. */
static void what_is_gone_begins_anew(void **state)
{
    dibs__reply late = granted;

    (void)state;
    for (int i = 0; i < 2; i++) {
        dibs__ticket t;
        dibs_grant *g = room_waiter(&t);
        char attempt[DIBS__ATTEMPT_SIZE];
        strcpy(attempt, g->attempt);
        late.remaining = MARGIN + ANSWER; /* just over */
        room_enter(&t, DIBS_OK, i ? late : (dibs__reply){.verdict = DIBS__LOST}, ANSWER);
        assert_true(t.enter_again && !t.settled && !t.unsure);
        assert_string_not_equal(g->attempt, attempt);
        assert_ptr_equal(dibs__grant_of_attempt(room.d, g->attempt), g);
        assert_null(dibs__grant_of_attempt(room.d, attempt));
        assert_int_equal(g->state, DIBS__WAITING);
        assert_int_equal(t.retry_at, i ? now() + 20 * DIBS__MS : 0);
        assert_int_equal(g->due.key, now());
        late.remaining++;
        room_enter(&t, DIBS_OK, late, ANSWER);
        assert_status(t.status, DIBS_OK);
        assert_int_equal(g->state, DIBS__HELD);
        dibs__grant_note_end(g);
        room_forget_waiter(&t, g);
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
    dibs_grant *g = room_waiter(&t);
    int64_t sent = now(), margin = DIBS__WINDOW / 100 + 5 * DIBS__MS;

    (void)state;
    room_enter(&t, DIBS_OK, in_queue, ANSWER);
    hand(&t);
    assert_status(t.status, DIBS_OK);
    assert_int_equal(g->state, DIBS__HELD);
    assert_int_equal(atomic_load(&g->deadline), sent + DIBS__WINDOW - margin);
    assert_int_equal(g->fence, 9);
    assert_int_equal(atomic_load(&g->floor), 8);
    assert_false(g->whole);
    assert_int_equal(room.d->stats.wait.count, 1);
    dibs__grant_note_end(g);
    room_forget_waiter(&t, g);
}

/* It is asked about first: if little is left of the window, or it may be about an entry that has ended. */
static void a_doubtful_hand_over_is_confirmed_first(void **state)
{
    int64_t margin = DIBS__WINDOW / 100 + 5 * DIBS__MS;

    (void)state;
    for (int i = 0; i < 4; i++) {
        dibs__ticket t;
        dibs_grant *g = room_waiter(&t);
        int64_t enough = DIBS__WINDOW - margin - DIBS__WINDOW / 4;
        if (i == 0)
            room_enter(&t, DIBS_UNKNOWN, (dibs__reply){0}, 0);
        room_enter(&t, DIBS_OK, in_queue, 0);
        pass(i == 1 ? enough + 1 : i == 2 ? enough : 0);
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
        room_forget_waiter(&t, g);
    }
}

/* It overtakes the answer that the waiter is in the queue. */
static void a_hand_over_may_come_before_the_answer(void **state)
{
    dibs__ticket t;
    dibs_grant *g = room_waiter(&t);
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
    room_forget_waiter(&t, g);
    g = room_waiter(&t); /* what came before a request is in its answer, or over */
    t.handed = t.doubt = true;
    room_enter(&t, DIBS_OK, queued, 0);
    assert_int_equal(g->state, DIBS__WAITING);
    assert_int_equal(g->due.key, now() + DIBS__WINDOW / 3);
    t.doubt = true; /* wake-ups were missed while it was out */
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_answer(&t, now(), DIBS_OK, &queued, NULL);
    pthread_mutex_unlock(&room.d->mutex);
    assert_int_equal(g->due.key, now());
    assert_false(t.doubt);
    room.d->stats.waiting--;
    room_forget_waiter(&t, g);
}

/* A worker is inside `enter`: its request is settled when that comes back. */
static void a_request_that_is_out_is_cancelled_by_its_answer(void **state)
{
    dibs__ticket t;
    dibs_grant *g = room_waiter(&t);

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
    room_forget_waiter(&t, g);
}

/* ---- Inside of an entry ------------------------------------------------------------------------ */

static dibs_grant *entering;

static void look_inside(void)
{
    assert_int_equal(entering->state, DIBS__ENTERING);
    assert_int_equal(entering->refs, 2); /* whoever settles it does not free it */
}

/* What the engine is told is no more than what was asked for, whoever asked before. */
static void an_entry_has_nothing_of_others(void **state)
{
    char owner[DIBS_OWNER_MAX + 1];
    dibs__enter_request expected = {.name = "a", .window = DIBS__WINDOW, .capacity = DIBS__PLAIN};
    dibs__ticket t;

    (void)state;
    entering = room_waiter(&t);
    room.inside = look_inside;
    room_enter(&t, DIBS_OK, in_queue, 0);
    assert_int_equal(entering->refs, 1);
    strcpy(expected.who.owner, entering->owner);
    strcpy(expected.who.attempt, entering->attempt);
    strcpy(expected.who.host, room.d->host);
    expected.who.pid = room.d->pid;
    expected.who.weight = 1;
    expected.who.lease = LEASE;
    assert_string_equal(room.entered.name, "a");
    room.entered.name = expected.name;
    assert_memory_equal(&room.entered, &expected, sizeof expected);
    room.d->stats.waiting--;
    room_forget_waiter(&t, entering);
    memset(owner, 'o', DIBS_OWNER_MAX);
    owner[DIBS_OWNER_MAX] = '\0';
    drop(take_named("a", (dibs_lock_options){.owner = owner}));
    assert_string_equal(room.entered.who.owner, owner);
}

/* The wait does not depend on memory for its message. */
static void a_message_that_finds_no_memory_is_left_out(void **state)
{
    const dibs_error err = {.status = DIBS_BUSY, .message = "held"};
    dibs_error out = {.message = "old"};
    dibs__ticket t = {0};

    (void)state;
    alloc_fail(1, false);
    dibs__ticket_note(&t, &err);
    assert_true(alloc_heal());
    assert_null(t.err);
    dibs__ticket_error(&t, &out);
    assert_string_equal(out.message, "");
    assert_status(out.status, DIBS_OK);
    dibs__ticket_note(&t, &err);
    dibs__ticket_error(&t, &out);
    assert_string_equal(out.message, "held");
    dibs__ticket_fini(&t);
    assert_null(t.err);
}

/* A lock of another kind: what it is, and what to do. */
static void a_mismatch_says_what_there_is(void **state)
{
    static const struct {
        uint32_t slots, capacity;
        const char *message;
    } rows[] = {
        {3, DIBS__PLAIN, "'a' is a plain lock, not a semaphore of 3 slots: use another name"},
        {3, 4, "'a' is a semaphore of 4 slots: use the same number, or break it to change it"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dibs_error err;
        room_forget_answers();
        will_answer(DIBS_OK, (dibs__reply){.verdict = DIBS__MISMATCH, .capacity = rows[i].capacity},
                    0);
        assert_status(dibs_lock(room.d, "a", &(dibs_lock_options){.slots = rows[i].slots},
                                &(dibs_grant *){NULL}, &err),
                      DIBS_MISMATCH);
        assert_string_equal(err.message, rows[i].message);
    }
}

/* A retry does not come later than the end of the wait. */
static void a_request_is_looked_at_when_its_time_is_over(void **state)
{
    dibs__ticket t;
    dibs_grant *g = room_waiter(&t);

    (void)state;
    t.until = now() + 10 * DIBS__MS;
    room_enter(&t, DIBS_UNKNOWN, in_queue, 0);
    assert_int_equal(t.retry_at, now() + 20 * DIBS__MS);
    assert_int_equal(g->due.key, t.until);
    room.d->waits--;
    room_forget_waiter(&t, g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ROOM_CASE(what_an_entry_asks_for),
        ROOM_CASE(a_waiter_is_kept_alive),
        ROOM_CASE(answers_that_settle),
        ROOM_CASE(who_is_not_answered_asks_again),
        ROOM_CASE(a_request_without_an_answer_is_repeated),
        ROOM_CASE(a_wait_that_ends_names_the_holder),
        ROOM_CASE(what_is_gone_begins_anew),
        ROOM_CASE(a_hand_over_counts_from_the_last_answer),
        ROOM_CASE(a_doubtful_hand_over_is_confirmed_first),
        ROOM_CASE(a_hand_over_may_come_before_the_answer),
        ROOM_CASE(a_request_that_is_out_is_cancelled_by_its_answer),
        ROOM_CASE(an_entry_has_nothing_of_others),
        ROOM_CASE(a_message_that_finds_no_memory_is_left_out),
        ROOM_CASE(a_mismatch_says_what_there_is),
        ROOM_CASE(a_request_is_looked_at_when_its_time_is_over),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
