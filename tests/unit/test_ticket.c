/* Tickets: what each answer makes of a lock call, and how long a call waits, asks again and sleeps. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/handle.h"
#include "support/alloc.h"
#include "support/room.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

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

/* ---- Threads that wait ------------------------------------------------------------------------ */

static char attempt[DIBS__ATTEMPT_SIZE]; /* of the thread that waits */

static void note_attempt(void)
{
    strcpy(attempt, room.entered.who.attempt);
}

/* What happens while a thread waits. The engine tells the last attempt that entered. */
static void hand_over(void)
{
    note_attempt();
    room.d->sink.granted(&room.d->sink, attempt, 9, 8);
}

static void cancel_all(void)
{
    dibs_cancel(room.d, NULL);
}

/* Somebody else does so: the thread that waits does not poll meanwhile. */
static void cancel_from_elsewhere(void)
{
    memset(&room.d->leader, 0, sizeof room.d->leader);
    cancel_all();
}

static dibs_status wait_for(int64_t wait_ms, dibs_grant **out, dibs_error *err)
{
    return dibs_lock(room.d, "a",
                     &(dibs_lock_options){.wait_ms = wait_ms, .lease_ms = LEASE / DIBS__MS}, out,
                     err);
}

/* A thread waits for up to ten seconds, the keeper beside it: what the engine answers, what happens, what it is asked,
 * and what comes of it. */
static void a_thread_waits(void **state)
{
    static const struct {
        answer next[9];
        int64_t after;
        void (*meanwhile)(void);
        int64_t wait_ms;
        const char *log;
        dibs_status status;
        const char *message;
    } rows[] = {
        {{{DIBS_OK, {.verdict = DIBS__QUEUED}, 0}, {DIBS_OK, {.verdict = DIBS__QUEUED}, 0}},
         3 * DIBS__SECOND,
         hand_over,
         10000,
         "0 enter a <5000; 2000 keep a <7000; 3000 OK",
         DIBS_OK,
         ""},
        /* a keep-alive may bring it as well */
        {{{DIBS_OK, {.verdict = DIBS__QUEUED}, 0},
          {DIBS_OK, {.verdict = DIBS__GRANTED, .fence = 9, .floor = 8, .remaining = LEASE}, 0}},
         0,
         NULL,
         10000,
         "0 enter a <5000; 2000 keep a <7000; 2000 OK",
         DIBS_OK,
         ""},
        {{{DIBS_OK, {.verdict = DIBS__QUEUED}, 0},
          {DIBS_OK, {.verdict = DIBS__QUEUED}, 0},
          {DIBS_OK, {.verdict = DIBS__RELEASED}, 0}},
         0,
         NULL,
         3000,
         "0 enter a <3000; 2000 keep a <7000; 3000 cancel a <3200; 3000 BUSY",
         DIBS_BUSY,
         "held by another"},
        /* a keep-alive that is due later is not sent when its time is over */
        {{{DIBS_OK, {.verdict = DIBS__QUEUED}, 0}, {DIBS_OK, {.verdict = DIBS__RELEASED}, 0}},
         0,
         NULL,
         1500,
         "0 enter a <1500; 1500 cancel a <1700; 1500 BUSY",
         DIBS_BUSY,
         "held by another"},
        {{{DIBS_OK, {.verdict = DIBS__QUEUED}, 0}, {DIBS_OK, {.verdict = DIBS__RELEASED}, 0}},
         DIBS__SECOND,
         cancel_all,
         10000,
         "0 enter a <5000; 1000 cancel a <1200; 1000 CANCELLED",
         DIBS_CANCELLED,
         "cancelled"},
        /* the entry has gone: it enters anew, at once */
        {{{DIBS_OK, {.verdict = DIBS__QUEUED}, 0},
          {DIBS_OK, {.verdict = DIBS__LOST}, 0},
          {DIBS_OK, {.verdict = DIBS__QUEUED}, 0}},
         3 * DIBS__SECOND,
         hand_over,
         10000,
         "0 enter a <5000; 2000 keep a <7000; 2000 enter a <7000; 3000 OK",
         DIBS_OK,
         ""},
        /* no answer to the entry: the thread asks again, after pauses that grow, up to a second */
        {{{DIBS_UNKNOWN, {0}, 0},
          {DIBS_UNAVAILABLE, {0}, 0},
          {DIBS_UNAVAILABLE, {0}, 0},
          {DIBS_OK, {.verdict = DIBS__GRANTED, .fence = 9, .floor = 8, .remaining = LEASE}, 0}},
         0,
         NULL,
         10000,
         "0 enter a <5000; 20 enter a <5020; 60 enter a <5060; 140 enter a <5140; 140 OK",
         DIBS_OK,
         ""},
        /* no answer to a keep-alive: the keeper asks again */
        {{{DIBS_OK, {.verdict = DIBS__QUEUED}, 0},
          {DIBS_UNKNOWN, {0}, 0},
          {DIBS_UNAVAILABLE, {0}, 0},
          {DIBS_OK, {.verdict = DIBS__GRANTED, .fence = 9, .floor = 8, .remaining = LEASE}, 0}},
         0,
         NULL,
         10000,
         "0 enter a <5000; 2000 keep a <7000; 2020 keep a <7020; 2060 keep a <7060; 2060 OK",
         DIBS_OK,
         ""},
        /* so it does until the thread has no time left */
        {{{DIBS_OK, {.verdict = DIBS__QUEUED}, 0},
          {DIBS_UNKNOWN, {0}, 0},
          {DIBS_UNAVAILABLE, {0}, 0},
          {DIBS_UNAVAILABLE, {0}, 0}},
         0,
         NULL,
         2100,
         "0 enter a <2100; 2000 keep a <7000; 2020 keep a <7020; 2060 keep a <7060; "
         "2100 UNAVAILABLE",
         DIBS_UNAVAILABLE,
         "'a': not obtained in time: the engine cannot be reached"},
        /* it stood in the queue all the time, so that a hand-over needs no confirmation */
        {{{DIBS_OK, {.verdict = DIBS__QUEUED}, 0},
          {DIBS_UNKNOWN, {0}, 0},
          {DIBS_OK, {.verdict = DIBS__QUEUED}, 0}},
         3 * DIBS__SECOND,
         hand_over,
         10000,
         "0 enter a <5000; 2000 keep a <7000; 2020 keep a <7020; 3000 OK",
         DIBS_OK,
         ""},
        /* until its time is over; then the keeper takes back what may be there */
        {{{DIBS_UNAVAILABLE, {0}, 0}, {DIBS_UNAVAILABLE, {0}, 0}, {DIBS_UNAVAILABLE, {0}, 0}},
         0,
         NULL,
         100,
         "0 enter a <100; 20 enter a <100; 60 enter a <100; 100 UNAVAILABLE",
         DIBS_UNAVAILABLE,
         "'a': not obtained in time: as it was told"},
        {{{DIBS_DENIED, {0}, 0}, {DIBS_OK, {.verdict = DIBS__RELEASED}, 0}},
         0,
         NULL,
         10000,
         "0 enter a <5000; 0 cancel a <200; 0 DENIED",
         DIBS_DENIED,
         "as it was told"},
    };

    (void)state;
    room.untils = true;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dibs_grant *g = NULL;
        dibs_error err = {0};
        dibs_status status;
        room_forget_answers();
        for (int n = 0; n < 9 && (rows[i].next[n].status || rows[i].next[n].reply.verdict ||
                                  rows[i].next[n].reply.fence);
             n++)
            will_answer(rows[i].next[n].status, rows[i].next[n].reply, 0);
        room.steps = room.steps_done = 0;
        if (rows[i].meanwhile)
            room_after(rows[i].after, rows[i].meanwhile);
        room_begin();
        print_message("# row %zu\n", i);
        status = wait_for(rows[i].wait_ms, &g, &err);
        room_note(dibs_status_name(status));
        assert_log(rows[i].log);
        assert_status(status, rows[i].status);
        assert_status(err.status, status);
        assert_non_null(strstr(err.message, rows[i].message));
        assert_int_equal(room.d->waits, 0);
        assert_int_equal(room.d->stats.waiting, 0);
        if (status == DIBS_OK) {
            assert_int_equal(g->fence, 9);
            assert_int_equal(g->refs, 1);
            drop(g);
        }
        room.generous = true;
        room_keep(DIBS__SECOND); /* what was left is given back */
        room.generous = false;
        assert_int_equal(room.d->attempts.count, 0);
    }
}

static void cancel_inside_the_next(void)
{
    room.inside = cancel_all;
}

/* The answer to a keep-alive is nobody's any more. */
static void a_thread_is_cancelled_during_a_keep_alive(void **state)
{
    dibs_grant *g;

    (void)state;
    room_after(DIBS__SECOND, cancel_inside_the_next);
    will_answer(DIBS_OK, in_queue, 0);
    will_answer(DIBS_OK, granted, 0);
    will_answer(DIBS_OK, released, 0);
    assert_status(wait_for(10000, &g, NULL), DIBS_CANCELLED);
    assert_log("0 enter a; 2000 keep a; 2000 cancel a");
    assert_int_equal(room.d->stats.grants, 0);
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

/* A thread that is inside is cancelled at once, and what the engine says then goes back. */
static void a_thread_is_cancelled_while_it_enters(void **state)
{
    dibs_grant *g;

    (void)state;
    room.inside = cancel_all;
    will_answer(DIBS_OK, granted, 0);
    will_answer(DIBS_OK, released, 0);
    assert_status(wait_for(10000, &g, NULL), DIBS_CANCELLED);
    assert_log("0 enter a; 0 cancel a");
    assert_int_equal(room.d->stats.cancelled, 1);
    assert_int_equal(room.d->stats.grants, 0);
}

/* A hand-over that is heard of before the entry is answered counts as soon as it is. */
static void a_thread_is_handed_the_lock_while_it_enters(void **state)
{
    dibs_grant *g;

    (void)state;
    room.inside = hand_over;
    will_answer(DIBS_OK, in_queue, 0);
    assert_status(wait_for(10000, &g, NULL), DIBS_OK);
    assert_log("0 enter a");
    assert_int_equal(g->fence, 9);
    drop(g);
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

/* ---- Threads that read events ------------------------------------------------------------------ */

static void hand_over_by_event(void)
{
    room_event(hand_over);
}

static void cancel_by_event(void)
{
    room_event(cancel_all);
}

static void say_nothing(void)
{
}

static void an_event_for_others(void)
{
    room_event(say_nothing);
}

/* The thread that waits polls the engine's descriptor by itself. */
static void a_thread_reads_its_own_event(void **state)
{
    static const struct {
        int64_t wait_ms;
        void (*first)(void), (*second)(void); /* after one and two seconds and a half */
        const char *log;
        int polls;
    } rows[] = {
        {10000, an_event_for_others, hand_over_by_event,
         "0 enter a <5000; 1500 events <6500; 2500 events <7500; 2500 OK", 3},
        {DIBS_FOREVER, an_event_for_others, hand_over_by_event,
         "0 enter a <5000; 1500 events <6500; 2500 events <7500; 2500 OK", 2},
        {2200, an_event_for_others, NULL,
         "0 enter a <2200; 1500 events <2400; 2200 cancel a <2400; 2200 BUSY", 3},
        {DIBS_FOREVER, NULL, cancel_from_elsewhere,
         "0 enter a <5000; 2500 cancel a <2700; 2500 CANCELLED", 1},
        {10000, NULL, cancel_by_event,
         "0 enter a <5000; 2500 events <7500; 2500 cancel a <2700; 2500 CANCELLED", 3},
    };

    eventfd_t unread;

    (void)state;
    room.class.can.waiters_read = true;
    room.untils = true;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dibs_grant *g = NULL;
        room_forget_answers();
        will_answer(DIBS_OK, in_queue, 0);
        will_answer(DIBS_OK, released, 0);
        room.steps = room.steps_done = 0;
        if (rows[i].first)
            room_after(1500 * DIBS__MS, rows[i].first);
        if (rows[i].second)
            room_after(2500 * DIBS__MS, rows[i].second);
        room.polls = 0;
        room_begin();
        print_message("# row %zu\n", i);
        room_note(dibs_status_name(wait_for(rows[i].wait_ms, &g, NULL)));
        assert_log(rows[i].log);
        assert_int_equal(room.polls, rows[i].polls);
        assert_int_equal(eventfd_read(room.d->leader_fd, &unread), -1);
        assert_null(room.d->readers.threads.driver);
        if (g)
            assert_status(unlock(g), DIBS_OK);
    }
}

static void a_poll_that_fails_is_repeated(void **state)
{
    static const int errors[] = {ENOMEM, EINTR};

    (void)state;
    room.class.can.waiters_read = true;
    for (int i = 0; i < 2; i++) {
        dibs_grant *g;
        room_forget_answers();
        will_answer(DIBS_OK, in_queue, 0);
        room_after(DIBS__SECOND, hand_over_by_event);
        room.slept = 0;
        room.poll_errno = errors[i];
        assert_status(wait_for(10000, &g, NULL), DIBS_OK);
        assert_int_equal(room.slept, errors[i] == ENOMEM ? 10 * DIBS__MS : 0);
        drop(g);
    }
}

static dibs__ticket other;

static void another_comes(void)
{
    assert_false(dibs__reader_lead(&room.d->readers, &other.turn));
}

/* Who goes gives the role of reading to a thread that still waits, or to the keeper. */
static void who_goes_gives_the_role_on(void **state)
{
    (void)state;
    room.class.can.waiters_read = true;
    for (int alone = 0; alone < 2; alone++) {
        dibs_grant *g;
        room_forget_answers();
        memset(&other, 0, sizeof other);
        pthread_cond_init(&other.cond, NULL);
        will_answer(DIBS_OK, in_queue, 0);
        if (!alone)
            room_after(DIBS__SECOND, another_comes);
        room_after(2 * DIBS__SECOND, hand_over_by_event);
        room.timer = room.d->armed = DIBS__NEVER;
        room.signalled = NULL;
        room.timers = 0;
        assert_status(wait_for(10000, &g, NULL), DIBS_OK);
        assert_ptr_equal(room.signalled, alone ? NULL : &other.cond);
        assert_ptr_equal(room.d->readers.threads.driver, alone ? NULL : &other.turn);
        assert_int_equal(room.timer, alone ? now() + 20 * DIBS__MS : DIBS__NEVER);
        if (!alone)
            dibs__call_leave(&room.d->readers.threads, &other.turn);
        pthread_cond_destroy(&other.cond);
        drop(g);
    }
}

static void its_entry_is_gone(void)
{
    const dibs__reply gone = {.verdict = DIBS__LOST};

    memset(&room.d->leader, 0, sizeof room.d->leader); /* the keeper hears of it */
    note_attempt();
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_answer(dibs__grant_of_attempt(room.d, attempt)->ticket, now(), DIBS_OK, &gone,
                        NULL);
    pthread_mutex_unlock(&room.d->mutex);
}

static void another_leads(void)
{
    assert_ptr_equal(room.d->readers.threads.driver, &other.turn);
    dibs__call_leave(&room.d->readers.threads, &other.turn);
}

static void look_who_leads_in_the_next(void)
{
    room.inside = another_leads;
}

/* A leader that has to enter again is away for as long as the engine takes: another reads meanwhile. */
static void who_enters_again_gives_the_role_on(void **state)
{
    dibs_grant *g;

    (void)state;
    room.class.can.waiters_read = true;
    memset(&other, 0, sizeof other);
    pthread_cond_init(&other.cond, NULL);
    room_after(1, another_comes);
    room_after(2, look_who_leads_in_the_next);
    room_after(3, its_entry_is_gone);
    will_answer(DIBS_OK, in_queue, 0);
    will_answer(DIBS_OK, granted, 0);
    assert_status(wait_for(10000, &g, NULL), DIBS_OK);
    assert_log("0 enter a; 0.003 enter a");
    pthread_cond_destroy(&other.cond);
    drop(g);
}

/* The role is not given to a thread that is about to go. */
static void who_is_settled_reads_no_more(void **state)
{
    dibs__ticket t;
    dibs_grant *g = room_waiter(&t);
    dibs__driver_call leader = {0};

    (void)state;
    t.by_event = false;
    pthread_cond_init(&t.cond, NULL);
    room_enter(&t, DIBS_OK, in_queue, 0);
    assert_true(dibs__reader_lead(&room.d->readers, &leader));
    assert_false(dibs__reader_lead(&room.d->readers, &t.turn));
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_cancel(&t);
    pthread_mutex_unlock(&room.d->mutex);
    assert_null(dibs__call_leave(&room.d->readers.threads, &leader));
    pthread_cond_destroy(&t.cond);
    room_forget_waiter(&t, g);
}

/* ---- Requests that a worker enters ------------------------------------------------------------- */

static void note_outcome(void *data, dibs_status status, dibs_grant *g, const dibs_error *err)
{
    (void)data;
    (void)err;
    room_note(dibs_status_name(status));
    if (g) {
        will_answer(DIBS_OK, released, 0);
        assert_status(unlock(g), DIBS_OK);
    }
}

static void request(const char *name, int64_t wait_ms)
{
    assert_status(start_lock(room.d, name,
                             &(dibs_lock_options){.wait_ms = wait_ms, .lease_ms = LEASE / DIBS__MS},
                             note_outcome, NULL, NULL, NULL),
                  DIBS_OK);
}

static dibs__engine *engine;

/* The engine is not open yet. */
static void shut(void)
{
    engine = room.d->engine;
    room.d->opening.status = DIBS_UNAVAILABLE;
    snprintf(room.d->opening.err.message, sizeof room.d->opening.err.message, "not open yet");
    room.d->opening.over = false;
    atomic_store(&room.d->ready, false);
}

static void it_opens(void)
{
    atomic_store(&room.d->ready, true);
    pthread_cond_broadcast(&room.d->opening.changed);
}

/* A handle has a lease of its own there. */
static void it_opens_with_a_session(void)
{
    engine->lease = 4 * DIBS__SECOND;
    it_opens();
}

static void it_refuses_us(void)
{
    room.d->opening.status = DIBS_DENIED;
    room.d->opening.over = true;
    pthread_cond_broadcast(&room.d->opening.changed);
}

static void a_worker_waits_for_the_engine(void **state)
{
    static const struct {
        int64_t wait_ms;
        void (*meanwhile)(void); /* after a second, */
        void (*then)(void);      /* and after two */
        const char *log;
        int64_t window, lease; /* as it enters */
    } rows[] = {
        {10000, it_opens, NULL, "1000 enter a <6000; 1000 OK; 1000 release a <6000", DIBS__WINDOW,
         LEASE},
        {3000, it_opens, NULL, "1000 enter a <3000; 1000 OK; 1000 release a <6000", DIBS__WINDOW,
         LEASE},
        {10000, it_opens_with_a_session, NULL, "1000 enter a <6000; 1000 OK; 1000 release a <4955",
         4 * DIBS__SECOND, 4 * DIBS__SECOND},
        {10000, cancel_all, NULL, "5000 CANCELLED", 0, 0},
        {10000, cancel_all, it_opens, "2000 CANCELLED", 0, 0},
        {2000, NULL, NULL, "2000 UNAVAILABLE", 0, 0},
        {10000, it_refuses_us, NULL, "1000 DENIED", 0, 0},
    };

    (void)state;
    room.untils = true;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dibs__reply reply = granted;
        room_forget_answers();
        room.steps = room.steps_done = 0;
        memset(&room.entered, 0, sizeof room.entered);
        shut();
        room_begin();
        request("a", rows[i].wait_ms);
        if (rows[i].meanwhile)
            room_after(DIBS__SECOND, rows[i].meanwhile);
        if (rows[i].then)
            room_after(2 * DIBS__SECOND, rows[i].then);
        if (rows[i].lease < LEASE)
            reply.remaining = rows[i].lease;
        if (rows[i].lease)
            will_answer(DIBS_OK, reply, 0);
        print_message("# row %zu\n", i);
        room.keeper = NULL; /* the worker sleeps alone */
        room_work();
        room.d->keeper_runs = false;
        room_keep(0);
        it_opens();
        take_all(room.d);
        assert_log(rows[i].log);
        assert_int_equal(room.entered.window, rows[i].window);
        assert_int_equal(room.entered.who.lease, rows[i].lease);
        engine->lease = 0;
    }
}

/* Of a worker that comes too late nothing is asked. */
static void a_worker_asks_only_in_time(void **state)
{
    (void)state;
    room.class.can.never_waits = false;
    for (int late = 0; late < 2; late++) {
        room_forget_answers();
        room_begin();
        request("a", 1000);
        pass(late ? DIBS__SECOND : DIBS__SECOND - 1);
        if (!late)
            will_answer(DIBS_OK, granted, 0);
        assert_true(room_work());
        take_all(room.d);
        assert_log(late ? "1000 UNAVAILABLE" : "999.999 enter a; 999.999 OK; 999.999 release a");
    }
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
        ROOM_CASE(a_thread_waits),
        ROOM_CASE(a_thread_is_cancelled_during_a_keep_alive),
        ROOM_CASE(an_entry_has_nothing_of_others),
        ROOM_CASE(a_thread_is_cancelled_while_it_enters),
        ROOM_CASE(a_thread_is_handed_the_lock_while_it_enters),
        ROOM_CASE(a_message_that_finds_no_memory_is_left_out),
        ROOM_CASE(a_mismatch_says_what_there_is),
        ROOM_CASE(a_request_is_looked_at_when_its_time_is_over),
        ROOM_CASE(a_thread_reads_its_own_event),
        ROOM_CASE(a_poll_that_fails_is_repeated),
        ROOM_CASE(who_goes_gives_the_role_on),
        ROOM_CASE(who_enters_again_gives_the_role_on),
        ROOM_CASE(who_is_settled_reads_no_more),
        ROOM_CASE(a_worker_waits_for_the_engine),
        ROOM_CASE(a_worker_asks_only_in_time),
    };

    alarm(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
