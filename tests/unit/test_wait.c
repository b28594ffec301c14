/* Waiting for a lock: a thread that sleeps, one that reads the engine's events, and a request that a worker enters. What
 * is asked meanwhile, when, and when the call returns. */
#define _GNU_SOURCE
#include "core/handle.h"
#include "support/room.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

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

/* What the engine may say. */
enum { NOTHING_MORE, IN_QUEUE, HAS_IT, GONE, GIVEN_BACK, NO_ANSWER, NOT_SENT, REFUSED };

static const answer said[] = {
    [IN_QUEUE] = {DIBS_OK, {.verdict = DIBS__QUEUED}, 0},
    [HAS_IT] = {DIBS_OK, {.verdict = DIBS__GRANTED, .fence = 9, .remaining = LEASE}, 0},
    [GONE] = {DIBS_OK, {.verdict = DIBS__LOST}, 0},
    [GIVEN_BACK] = {DIBS_OK, {.verdict = DIBS__RELEASED}, 0},
    [NO_ANSWER] = {DIBS_UNKNOWN, {0}, 0},
    [NOT_SENT] = {DIBS_UNAVAILABLE, {0}, 0},
    [REFUSED] = {DIBS_DENIED, {0}, 0},
};

/* A thread waits, for ten seconds if nothing else is said, the keeper beside it: what the engine answers, what happens
 * after three seconds, what the engine is asked, what the call returns, and what it says. */
static void a_thread_waits(void **state)
{
    static const struct {
        int answers[8];
        const char *log, *message;
        int64_t wait_ms;
        void (*meanwhile)(void);
    } rows[] = {
        {.answers = {IN_QUEUE, IN_QUEUE},
         .log = "0 enter a <5000; 2000 keep a <7000; 3000 OK",
         .meanwhile = hand_over},
        {.answers = {IN_QUEUE, IN_QUEUE, GIVEN_BACK},
         .log = "0 enter a <5000; 2000 keep a <7000; 3000 cancel a <3200; 3000 CANCELLED",
         .message = "'a': the wait was cancelled",
         .meanwhile = cancel_all},
        {.answers = {IN_QUEUE, IN_QUEUE, GIVEN_BACK},
         .log = "0 enter a <3500; 2000 keep a <7000; 3500 cancel a <3700; 3500 BUSY",
         .message = "'a': held by another client; not obtained in time",
         .wait_ms = 3500},
        /* a keep-alive that is due later is not sent when its time is over */
        {.answers = {IN_QUEUE, GIVEN_BACK},
         .log = "0 enter a <1500; 1500 cancel a <1700; 1500 BUSY",
         .message = "'a': held by another client; not obtained in time",
         .wait_ms = 1500},
        /* a keep-alive may bring the lock as well */
        {.answers = {IN_QUEUE, HAS_IT}, .log = "0 enter a <5000; 2000 keep a <7000; 2000 OK"},
        /* the entry has gone: it enters anew, at once */
        {.answers = {IN_QUEUE, GONE, IN_QUEUE},
         .log = "0 enter a <5000; 2000 keep a <7000; 2000 enter a <7000; 3000 OK",
         .meanwhile = hand_over},
        /* no answer to the entry: the thread asks again, after pauses that grow */
        {.answers = {NO_ANSWER, NOT_SENT, NOT_SENT, HAS_IT},
         .log = "0 enter a <5000; 20 enter a <5020; 60 enter a <5060; 140 enter a <5140; 140 OK"},
        /* until its time is over; then the keeper takes back what may be there */
        {.answers = {NOT_SENT, NOT_SENT, NOT_SENT},
         .log = "0 enter a <100; 20 enter a <100; 60 enter a <100; 100 UNAVAILABLE",
         .message = "'a': not obtained in time: as it was told",
         .wait_ms = 100},
        /* no answer to a keep-alive: the keeper asks again */
        {.answers = {IN_QUEUE, NO_ANSWER, NOT_SENT, HAS_IT},
         .log =
             "0 enter a <5000; 2000 keep a <7000; 2020 keep a <7020; 2060 keep a <7060; 2060 OK"},
        {.answers = {IN_QUEUE, NO_ANSWER, NOT_SENT, NOT_SENT},
         .log = "0 enter a <2100; 2000 keep a <7000; 2020 keep a <7020; 2060 keep a <7060; "
                "2100 UNAVAILABLE",
         .message = "'a': not obtained in time: the engine cannot be reached",
         .wait_ms = 2100},
        /* it stood in the queue all the time, so that a hand-over needs no confirmation */
        {.answers = {IN_QUEUE, NO_ANSWER, IN_QUEUE},
         .log = "0 enter a <5000; 2000 keep a <7000; 2020 keep a <7020; 3000 OK",
         .meanwhile = hand_over},
        {.answers = {REFUSED, GIVEN_BACK},
         .log = "0 enter a <5000; 0 cancel a <200; 0 DENIED",
         .message = "as it was told"},
    };

    (void)state;
    room.untils = true;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dibs_grant *g = NULL;
        dibs_error err;
        dibs_status status;
        print_message("# row %zu\n", i);
        room_begin();
        for (const int *next = rows[i].answers; *next; next++)
            will_answer(said[*next].status, said[*next].reply, 0);
        if (rows[i].meanwhile)
            room_after(3 * DIBS__SECOND, rows[i].meanwhile);
        status = wait_for(rows[i].wait_ms ? rows[i].wait_ms : 10000, &g, &err);
        room_note(dibs_status_name(status));
        assert_log(rows[i].log);
        assert_status(err.status, status);
        assert_non_null(strstr(err.message, rows[i].message ? rows[i].message : ""));
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
        assert_int_equal(room.claim.handed_over, rows[i].meanwhile == hand_over);
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
        room_begin();
        will_answer(DIBS_OK, in_queue, 0);
        will_answer(DIBS_OK, released, 0);
        if (rows[i].first)
            room_after(1500 * DIBS__MS, rows[i].first);
        if (rows[i].second)
            room_after(2500 * DIBS__MS, rows[i].second);
        room.polls = 0;
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
        will_answer(DIBS_OK, in_queue, 0);
        if (!alone)
            room_after(DIBS__SECOND, another_comes);
        room_after(1500 * DIBS__MS, hand_over_by_event); /* half a second before its keep-alive */
        room.timer = room.d->armed = DIBS__NEVER;
        room.signalled = NULL;
        room.signalled_locked = true;
        assert_status(wait_for(10000, &g, NULL), DIBS_OK);
        assert_ptr_equal(room.signalled, alone ? NULL : &other.bell);
        assert_int_equal(atomic_load(&other.bell), !alone); /* it does not fall asleep any more */
        assert_int_equal(room.signalled_locked, alone);     /* it needs the mutex at once */
        assert_ptr_equal(room.d->readers.threads.driver, alone ? NULL : &other.turn);
        assert_int_equal(room.timer, now() + (alone ? 200 : 500) * DIBS__MS);
        if (!alone)
            dibs__call_leave(&room.d->readers.threads, &other.turn);
        drop(g);
    }
}

static void another_waits(void)
{
    room.d->waits++;
    an_event_for_others();
}

/* Where hand-overs inside a handle are no events, a thread reads if it is the only one that waits, and goes on when
 * another comes; else the keeper reads, and keeps it alive meanwhile. */
static void of_several_none_begins_to_read(void **state)
{
    static const char reads[] = "0 enter a; 1500 events; 2500 events; 2500 OK",
                      sleeps[] = "0 enter a; 1500 events; 2000 keep a; 2500 events; 2500 OK";
    static const struct {
        bool wakes_own;
        int others;
        void (*meanwhile)(void); /* after a second and a half */
        const char *log;
    } rows[] = {
        {false, 1, an_event_for_others, reads},
        {true, 0, an_event_for_others, reads},
        {true, 0, another_waits, reads},
        {true, 1, an_event_for_others, sleeps},
    };

    (void)state;
    room.class.can.waiters_read = true;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dibs_grant *g;
        room_forget_answers();
        room_begin();
        room.class.can.wakes_own = rows[i].wakes_own;
        room.d->waits = (size_t)rows[i].others;
        will_answer(DIBS_OK, in_queue, 0);
        will_answer(DIBS_OK, in_queue, 0);
        room_after(1500 * DIBS__MS, rows[i].meanwhile);
        room_after(2500 * DIBS__MS, hand_over_by_event);
        print_message("# row %zu\n", i);
        room_note(dibs_status_name(wait_for(10000, &g, NULL)));
        assert_log(rows[i].log);
        assert_null(room.d->readers.threads.driver);
        room.d->waits = 0;
        room_forget_answers();
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
    room_after(1, another_comes);
    room_after(2, look_who_leads_in_the_next);
    room_after(3, its_entry_is_gone);
    will_answer(DIBS_OK, in_queue, 0);
    will_answer(DIBS_OK, granted, 0);
    assert_status(wait_for(10000, &g, NULL), DIBS_OK);
    assert_log("0 enter a; 0.003 enter a");
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
    room_enter(&t, DIBS_OK, in_queue, 0);
    assert_true(dibs__reader_lead(&room.d->readers, &leader));
    assert_false(dibs__reader_lead(&room.d->readers, &t.turn));
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_cancel(&t);
    pthread_mutex_unlock(&room.d->mutex);
    assert_null(dibs__call_leave(&room.d->readers.threads, &leader));
    room_forget_waiter(&t, g);
}

/* ---- Requests that a worker enters ------------------------------------------------------------- */

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
        memset(&room.entered, 0, sizeof room.entered);
        shut();
        room_begin();
        room_request("a", rows[i].wait_ms);
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
        room_request("a", 1000);
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
        ROOM_CASE(a_thread_waits),
        ROOM_CASE(a_thread_is_cancelled_during_a_keep_alive),
        ROOM_CASE(a_thread_is_cancelled_while_it_enters),
        ROOM_CASE(a_thread_is_handed_the_lock_while_it_enters),
        ROOM_CASE(a_thread_reads_its_own_event),
        ROOM_CASE(a_poll_that_fails_is_repeated),
        ROOM_CASE(who_goes_gives_the_role_on),
        ROOM_CASE(of_several_none_begins_to_read),
        ROOM_CASE(who_enters_again_gives_the_role_on),
        ROOM_CASE(who_is_settled_reads_no_more),
        ROOM_CASE(a_worker_waits_for_the_engine),
        ROOM_CASE(a_worker_asks_only_in_time),
    };

    alarm(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
