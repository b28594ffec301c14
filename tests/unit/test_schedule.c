/* The keeper, step by step: what it asks the engine, when, together with what, and until when. */
#define _GNU_SOURCE
#include "core/handle.h"
#include "support/alloc.h"
#include "support/room.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void note_loss(void *data, dibs_grant *g, dibs_loss why)
{
    char what[64];

    (void)data;
    assert_false(room.locked);
    snprintf(what, sizeof what, "lost %s %s", dibs_grant_name(g), dibs_loss_name(why));
    room_note(what);
}

static const dibs_lock_options noted = {.on_lost = note_loss},
                               once_only = {.on_lost = note_loss, .no_renew = true};

/* A request that waits in the queue. */
static void wait_in_queue(const char *name)
{
    will_answer(DIBS_OK, in_queue, 0);
    assert_status(start_lock(room.d, name, NULL, NULL, NULL, NULL, NULL), DIBS_OK);
}

/* Its user left it, and the engine may still have it. */
static void leave_orphan(const char *name)
{
    dibs_grant *g = take_named(name, (dibs_lock_options){0});

    will_answer(DIBS_DENIED, released, 0);
    assert_status(unlock(g), DIBS_DENIED);
}

/* ---- Renewals -------------------------------------------------------------------------------- */

static void a_lock_is_renewed_at_a_third_of_its_lease(void **state)
{
    dibs_grant *g = take_one();

    (void)state;
    room.generous = true;
    room_keep(20 * DIBS__SECOND);
    assert_log("0 enter a; 4000 keep a; 8000 keep a; 12000 keep a; 16000 keep a; 20000 keep a");
    assert_int_equal(room.claim.lease, LEASE);
    assert_int_equal(room.claim.fence, 7);
    assert_int_equal(room.d->stats.renewals, 5);
    assert_int_equal(room.d->stats.late.count, 5);
    assert_int_equal(room.d->stats.late.max_us, 0);
    assert_int_equal(room.timers, 12); /* for each deadline, and for the renewal before it */
    assert_int_equal(room.logged, 0);
    assert_int_equal(g->refs, 1);
    drop(g);
}

/* Within 20 ms, that moment included; sorted by name. */
static void renewals_that_are_due_soon_go_along(void **state)
{
    static const int64_t later[] = {20 * DIBS__MS, 1};
    dibs_grant *g[3] = {take_named("z", noted)};

    (void)state;
    for (int i = 1; i < 3; i++) {
        pass(later[i - 1]);
        g[i] = take_named(i == 1 ? "b" : "c", noted);
    }
    room_begin();
    room.generous = true;
    room_keep(4 * DIBS__SECOND);
    assert_log("3979.999 keep b z; 4000 keep c");
    for (int i = 0; i < 3; i++)
        drop(g[i]);
}

/* A waiter may go along a twelfth of its window early: 500 ms. */
static void keep_alives_that_are_due_soon_go_along(void **state)
{
    dibs_lock_options o = {.lease_ms = 4500};
    dibs__reply reply = granted;
    dibs_grant *g;

    (void)state;
    reply.remaining = 4550 * DIBS__MS; /* due after 1,500 ms */
    will_answer(DIBS_OK, reply, 0);
    g = take_named("h", o);
    wait_in_queue("w");
    pass(1);
    wait_in_queue("x");
    room.generous = true;
    room_begin();
    room.began--; /* when `h` was taken */
    room_keep(2 * DIBS__SECOND);
    assert_log("1500 keep h w; 2000.001 keep x");
    drop(g);
}

static void a_batch_has_at_most_512(void **state)
{
    dibs_grant *g[513];
    char name[8];

    (void)state;
    room.generous = true;
    for (int i = 0; i < 513; i++) {
        snprintf(name, sizeof name, "%03d", i * 263 % 512); /* in no order */
        pass(i == 512 ? 1 : 0);
        g[i] = take_named(i == 512 ? "last" : name, noted);
    }
    room_begin();
    room_keep(4 * DIBS__SECOND);
    assert_log("3999.999 keep 512; 4000 keep last");
    assert_int_equal(room.d->stats.renewals, 513);
    for (int i = 0; i < 513; i++)
        assert_status(unlock(g[i]), DIBS_OK);
}

/* What a renewal asks for, and until when it may last. */
static void a_renewal_asks_for_its_own_lease(void **state)
{
    static const struct {
        dibs_lock_options o;
        int64_t at, lease;
    } rows[] = {
        {{0}, LEASE / 2, LEASE},
        {{.max_hold_ms = 17000}, LEASE / 2, 11 * DIBS__SECOND},
        {{.no_renew = true}, LEASE / 2, LEASE / 2}, /* it is only looked at */
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dibs_grant *g = take_named("a", rows[i].o);
        pass(rows[i].at);
        pthread_mutex_lock(&room.d->mutex);
        dibs__grant_check(g);
        pthread_mutex_unlock(&room.d->mutex);
        will_answer(DIBS_OK, granted, 0);
        room_keep(0);
        assert_int_equal(room.claim.lease, rows[i].lease);
        assert_string_equal(room.attempt, g->attempt);
        drop(g);
    }
    wait_in_queue("w");
    will_answer(DIBS_OK, in_queue, 0);
    room_keep(2 * DIBS__SECOND);
    assert_int_equal(room.claim.lease, DIBS__DEFAULT_LEASE);
    assert_int_equal(room.claim.fence, 0);
}

/* A hand-over that nobody renews gets its one whole lease. */
static void a_hand_over_asks_for_a_whole_lease(void **state)
{
    dibs_grant *g = take_named("a", once_only);

    (void)state;
    g->whole = false;
    pass(DIBS__SECOND);
    pthread_mutex_lock(&room.d->mutex);
    dibs__grant_check(g);
    pthread_mutex_unlock(&room.d->mutex);
    will_answer(DIBS_OK, granted, 0);
    room_keep(0);
    assert_int_equal(room.claim.lease, LEASE);
    room_begin();
    room_keep(LEASE); /* and no second one */
    assert_log("12000 lost a expired");
    assert_status(unlock(g), DIBS_LOST);
}

/* No exchange lasts beyond the deadline of the next holder, or the time of one request. */
static void an_exchange_ends_by_the_next_deadline(void **state)
{
    dibs_grant *a = take_named("a", noted), *b;

    (void)state;
    pass(2 * DIBS__SECOND);
    b = take_named("b", once_only);
    room.generous = room.untils = true;
    room_begin();
    room_keep(10 * DIBS__SECOND);
    assert_log("2000 keep a <7000; 6000 keep a <11000; 10000 keep a <12000");
    drop(a);
    drop(b);
}

/* ---- Losses ---------------------------------------------------------------------------------- */

/* At the moment of the deadline, once, and with the reason. */
static void a_loss_is_reported_in_time(void **state)
{
    static const struct {
        bool no_renew;
        dibs_status answer;
        const char *log;
    } rows[] = {
        {false, DIBS_UNAVAILABLE,
         "4000 keep a; 5000 keep a; 6000 keep a; 7000 keep a; 8000 keep a; 9000 keep a; "
         "10000 keep a; 11000 keep a; 12000 lost a unreachable"},
        {false, DIBS_UNKNOWN,
         "4000 keep a; 5000 keep a; 6000 keep a; 7000 keep a; 8000 keep a; 9000 keep a; "
         "10000 keep a; 11000 keep a; 12000 lost a unreachable"},
        {true, DIBS_OK, "12000 lost a expired"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dibs_grant *g;
        room_forget_answers();
        g = take_named("a", rows[i].no_renew ? once_only : noted);
        for (int n = 0; n < 8; n++)
            will_answer(rows[i].answer, granted, 0);
        room_begin();
        room_keep(2 * LEASE);
        assert_log(rows[i].log);
        assert_int_equal(g->refs, 1);
        assert_status(unlock(g), DIBS_LOST);
    }
}

/* Losses without a callback are taken in the order in which they happened; what was unlocked is not among them. */
static void losses_are_taken_in_order(void **state)
{
    static const char *const names[] = {"c", "a", "b"};
    dibs_grant *g[3];
    dibs_outcome o;

    (void)state;
    for (int i = 0; i < 3; i++) {
        g[i] = take_named(names[i], (dibs_lock_options){.no_renew = true});
        pass(DIBS__SECOND);
    }
    room_keep(LEASE);
    assert_status(unlock(g[1]), DIBS_LOST);
    for (int i = 0; i < 3; i += 2) {
        assert_true(dibs_take(room.d, &o));
        assert_ptr_equal(o.grant, g[i]);
        assert_int_equal(o.loss, DIBS_LOSS_EXPIRED);
        assert_status(unlock(g[i]), DIBS_LOST);
    }
    assert_false(dibs_take(room.d, &o));
}

static void tell_the_keeper_to_look(void)
{
    room.d->sink.check_all(&room.d->sink, DIBS__HOLDERS);
}

/* Before the next exchange, which may hang. */
static void a_loss_is_reported_before_the_next_exchange(void **state)
{
    dibs_grant *a, *b;

    (void)state;
    leave_orphan("orphan");
    a = take_named("a", once_only);
    room_begin();
    pass(LEASE); /* the keeper had no time meanwhile */
    will_answer(DIBS_OK, released, 0);
    room_keep(0);
    assert_log("12000 lost a expired; 12000 release orphan");
    assert_status(unlock(a), DIBS_LOST);
    a = take_named("a", once_only);
    pass(DIBS__SECOND);
    b = take_named("b", noted);
    pass(LEASE - DIBS__SECOND);
    will_answer(DIBS_OK, granted, 0);
    room_begin();
    room_keep(0);
    assert_log("0 lost a expired; 0 keep b");
    assert_status(unlock(a), DIBS_LOST);
    drop(b);
    leave_orphan("orphan");
    b = take_named("b", noted);
    tell_the_keeper_to_look();
    will_answer(DIBS_OK, (dibs__reply){.verdict = DIBS__LOST}, 0);
    will_answer(DIBS_OK, released, 0);
    room_begin();
    room_keep(0);
    assert_log("0 keep b; 0 lost b gone; 0 release orphan");
    assert_status(unlock(b), DIBS_LOST);
}

static dibs_status cell(dibs__engine *e, const char *key, const dibs__cell_command *command,
                        bool notify, dibs__deadline until, dibs__cell_reply *out, dibs_error *err)
{
    (void)e, (void)command, (void)notify, (void)until, (void)err;
    room_note(key);
    out->version = 5;
    return DIBS_OK;
}

/* Within a second, where the engine does not report it by itself. */
static void a_break_is_heard_of_soon(void **state)
{
    dibs_grant *g;

    (void)state;
    room.class.can.notifies_holders = false;
    room.class.cell = cell;
    g = take_named("a", noted);
    will_answer(DIBS_OK, (dibs__reply){.verdict = DIBS__BROKEN}, 0);
    room_keep(DIBS__SECOND);
    assert_log("0 enter a; 800 =broken; 800 keep a; 800 lost a broken");
    assert_status(unlock(g), DIBS_LOST);
    room.class.can.notifies_holders = true;
}

/* ---- Answers that come too late to count ------------------------------------------------------ */

static dibs_grant *meanwhile;

static void unlock_meanwhile(void)
{
    assert_status(unlock(meanwhile), DIBS_OK);
}

static void begin_anew_meanwhile(void)
{
    pthread_mutex_lock(&room.d->mutex);
    dibs__grant_new_attempt(meanwhile);
    pthread_mutex_unlock(&room.d->mutex);
}

static void an_answer_counts_for_what_was_asked(void **state)
{
    const dibs__reply gone = {.verdict = DIBS__LOST};

    (void)state;
    meanwhile = take_named("a", noted);
    tell_the_keeper_to_look();
    room.inside = unlock_meanwhile;
    will_answer(DIBS_OK, gone, 0); /* the engine has done it by then */
    will_answer(DIBS_OK, released, 0);
    room_begin();
    room_keep(0);
    assert_log("0 keep a; 0 release a");
    assert_int_equal(room.d->attempts.count, 0);
    assert_int_equal(room.d->stats.held, 0);
    assert_int_equal(room.d->stats.losses[DIBS_LOSS_GONE], 0);
    meanwhile = take_named("a", noted);
    tell_the_keeper_to_look();
    room.inside = begin_anew_meanwhile;
    will_answer(DIBS_OK, gone, 0);
    room_keep(0);
    assert_true(dibs_grant_held(meanwhile));
    drop(meanwhile);
}

/* ---- Giving back ------------------------------------------------------------------------------ */

static void an_orphan_is_given_back_until_the_engine_answers(void **state)
{
    dibs_grant *kept;

    (void)state;
    leave_orphan("a");
    kept = room.d->due.count ? DIBS__FROM(dibs_grant, due, dibs__heap_top(&room.d->due)) : NULL;
    assert_non_null(kept);
    kept->refs++; /* to look at it afterwards */
    for (int i = 0; i < 2; i++)
        will_answer(i ? DIBS_UNKNOWN : DIBS_UNAVAILABLE, released, 0);
    will_answer(DIBS_OK, released, 0);
    room.untils = true;
    room_begin();
    room_keep(LEASE);
    assert_log("0 release a <5000; 200 release a <5200; 400 release a <5400");
    assert_int_equal(room.claim.fence, 7);
    assert_string_equal(room.attempt, kept->attempt);
    assert_int_equal(kept->state, DIBS__OVER);
    assert_int_equal(kept->refs, 1);
    assert_int_equal(room.d->attempts.count, 0);
    dibs__grant_unref(kept);
}

/* The engine has surely forgotten it after its lease, or the window of a waiter that was handed it. */
static void an_orphan_is_given_up_when_it_has_ended(void **state)
{
    dibs_grant *kept;

    (void)state;
    leave_orphan("a");
    kept = DIBS__FROM(dibs_grant, due, dibs__heap_top(&room.d->due));
    kept->refs++;
    kept->give_up = now() + DIBS__SECOND;
    for (int i = 0; i < 6; i++)
        will_answer(DIBS_UNAVAILABLE, released, 0);
    room_begin();
    room_keep(LEASE);
    assert_log("0 release a; 200 release a; 400 release a; 600 release a; 800 release a; "
               "1000 release a");
    assert_int_equal(kept->refs, 1);
    dibs__grant_unref(kept);
}

/* What has never been held is cancelled: no min_hold counts for it. */
static void a_waiter_that_left_is_cancelled(void **state)
{
    (void)state;
    wait_in_queue("w");
    dibs_cancel(room.d, "w");
    will_answer(DIBS_OK, released, 0);
    room_begin();
    room_keep(LEASE);
    assert_log("0 cancel w");
    take_all(room.d);
}

/* One exchange at a time, and none lasts so long that too little is left for a renewal. */
static void giving_back_leaves_a_third_for_renewals(void **state)
{
    dibs__reply reply = granted;
    dibs_grant *g;

    (void)state;
    leave_orphan("x");
    leave_orphan("y");
    reply.remaining = 3035 * DIBS__MS; /* three seconds by our clock */
    will_answer(DIBS_OK, reply, 0);
    g = take_named("a", (dibs_lock_options){.lease_ms = 3000, .on_lost = note_loss});
    pass(DIBS__SECOND);
    will_answer(DIBS_OK, reply, 0);
    will_answer(DIBS_OK, released, 2 * DIBS__SECOND);
    will_answer(DIBS_OK, reply, 0);
    will_answer(DIBS_OK, released, 0);
    room.untils = true;
    room_begin();
    room_keep(2 * DIBS__SECOND);
    assert_log("0 keep a <2000; 0 release x <2000; 2000 keep a <3000; 2000 release y <4000");
    assert_int_equal(room.d->stats.late.max_us, DIBS__SECOND);
    drop(g);
}

/* ---- Tasks ------------------------------------------------------------------------------------ */

typedef struct task {
    dibs__keeper_task task;
    const char *name;
    int64_t takes;
} task;

static void run_task(dibs *d, dibs__keeper_task *c, int64_t at)
{
    task *t = DIBS__FROM(task, task, c);

    (void)d;
    assert_int_equal(at, now());
    room_note(t->name);
    pass(t->takes);
}

static void do_later(task *t, dibs__heap *heap, const char *name, int64_t when, int64_t takes)
{
    *t = (task){.task = {.run = run_task}, .name = name, .takes = takes};
    pthread_mutex_lock(&room.d->mutex);
    assert_true(dibs__keeper_reserve(room.d));
    dibs__keeper_task_at(room.d, heap, &t->task, when);
    pthread_mutex_unlock(&room.d->mutex);
}

/* Renewals of locks, then those of runs, each with a look at what else is due, then one thing that is given back, then
 * one piece of maintenance. */
static void renewals_come_first(void **state)
{
    task first, second, rest[2], end;
    int64_t at;
    dibs_grant *g;

    (void)state;
    leave_orphan("o");
    g = take_named("a", noted);
    at = now() + 4 * DIBS__SECOND;
    do_later(&rest[0], &room.d->maintenance, "maintenance", at, 0);
    do_later(&rest[1], &room.d->maintenance, "maintenance", at + 1, 0);
    do_later(&first, &room.d->renewals, "run", at, 5 * DIBS__SECOND);
    do_later(&second, &room.d->renewals, "run", at + 1, 0);
    do_later(&end, &room.d->ends, "end", at + DIBS__SECOND, 0);
    pass(4 * DIBS__SECOND);
    room_begin();
    room.generous = true;
    room_keep(8 * DIBS__SECOND);
    assert_log("0 keep a; 0 run; 5000 end; 5000 keep a; 5000 run; 5000 release o; "
               "5000 maintenance; 5000 maintenance");
    drop(g);
}

/* Each at its moment, and not before. */
static void tasks_have_their_time(void **state)
{
    task run, maintenance, end;
    dibs *d = room.d;

    (void)state;
    do_later(&maintenance, &d->maintenance, "maintenance", now() + 3, 0);
    do_later(&run, &d->renewals, "run", now() + 2, 0);
    do_later(&end, &d->ends, "end", now() + 1, 0);
    room_keep(DIBS__SECOND);
    assert_log("0.001 end; 0.002 run; 0.003 maintenance");
    assert_int_equal(room.timers,
                     5); /* each is earlier than the last; then for the two that are left */
}

static void renew_meanwhile(void)
{
    assert_status(dibs_renew(meanwhile, NULL), DIBS_LOST);
}

/* Giving back takes a while: what its user finds lost meanwhile is reported before anything else is asked. */
static void a_loss_is_reported_before_maintenance(void **state)
{
    task maintenance;

    (void)state;
    leave_orphan("o");
    meanwhile = take_named("a", noted);
    do_later(&maintenance, &room.d->maintenance, "maintenance", now(), 0);
    room.inside = renew_meanwhile;
    will_answer(DIBS_OK, released, 0);
    will_answer(DIBS_OK, (dibs__reply){.verdict = DIBS__LOST}, 0);
    room_begin();
    room_keep(0);
    assert_log("0 release o; 0 keep a; 0 lost a gone; 0 maintenance");
    assert_status(unlock(meanwhile), DIBS_LOST);
}

/* ---- Requests --------------------------------------------------------------------------------- */

static void a_request_ends_when_its_caller_has_no_time_left(void **state)
{
    (void)state;
    room.untils = true;
    will_answer(DIBS_OK, in_queue, 0);
    room_request("w", 3000);
    room.generous = true;
    room_keep(3 * DIBS__SECOND - 1);
    assert_int_equal(take_all(room.d), 0);
    room_keep(1);
    assert_int_equal(take_all(room.d), 1);
    assert_log("0 enter w <3000; 2000 keep w <7000; 3000 cancel w <8000; 3000 BUSY");
}

/* A worker enters again, the keeper only sees to it that one does. */
static void a_request_without_an_answer_is_entered_again(void **state)
{
    (void)state;
    will_answer(DIBS_UNKNOWN, in_queue, 0);
    will_answer(DIBS_OK, granted, 0);
    room_request("a", DIBS_FOREVER);
    room_keep(20 * DIBS__MS - 1);
    assert_false(room_work());
    room_keep(1);
    assert_true(room_work());
    assert_false(room_work());
    assert_log("0 enter a; 20 enter a");
}

/* No worker came in time: it is not sent any more. */
static void a_request_that_no_worker_took_up_is_over(void **state)
{
    (void)state;
    room.class.can.never_waits = false;
    room_request("a", 1000);
    room_keep(DIBS__SECOND);
    assert_int_equal(take_all(room.d), 1);
    assert_false(room_work());
    assert_log("1000 UNAVAILABLE");
}

static void its_time_ends_inside(void)
{
    pass(DIBS__SECOND);
    room_keep(0);
    assert_log("0 enter a"); /* a worker is inside: it is settled when that comes back */
}

static void a_request_is_not_settled_while_a_worker_enters(void **state)
{
    (void)state;
    room.class.can.never_waits = false;
    room_request("a", 1000);
    room.inside = its_time_ends_inside;
    will_answer(DIBS_OK, in_queue, 0);
    will_answer(DIBS_OK, released, 0);
    assert_true(room_work());
    room_keep(0);
    assert_int_equal(take_all(room.d), 1);
    assert_log("0 enter a; 1000 cancel a; 1000 BUSY");
}

/* Its pause ends a microsecond after a renewal, with which it does not go along. */
static void a_request_is_not_entered_again_early(void **state)
{
    dibs_grant *g = take_named("b", noted);

    (void)state;
    pass(3980 * DIBS__MS + 1);
    will_answer(DIBS_UNKNOWN, in_queue, 0);
    room_request("a", DIBS_FOREVER);
    room.generous = true;
    room_keep(20 * DIBS__MS - 1);
    assert_false(room_work());
    room_keep(1);
    assert_true(room_work());
    assert_log("0 enter b; 3980.001 enter a; 4000 keep b; 4000.001 enter a");
    drop(g);
}

/* A thread that has been told goes by itself: nothing is asked for it. */
static void a_thread_that_is_settled_is_left_alone(void **state)
{
    dibs__ticket t;
    dibs_grant *g = room_waiter(&t), *holder;

    (void)state;
    t.by_event = false;
    room_enter(&t, DIBS_OK, in_queue, 0);
    holder = take_named("b", noted);
    pthread_mutex_lock(&room.d->mutex);
    dibs__ticket_cancel(&t);
    dibs__grant_schedule(holder, now());
    dibs__grant_schedule(g, now() + 1);
    pthread_mutex_unlock(&room.d->mutex);
    room.generous = true;
    room_begin();
    room_keep(DIBS__SECOND);
    assert_log("0 keep b");
    assert_int_equal(g->due.index, 0);
    room_forget_waiter(&t, g);
    drop(holder);
}

/* ---- Sleeping --------------------------------------------------------------------------------- */

static void a_poll_that_fails_delays_nothing(void **state)
{
    static const int errors[] = {ENOMEM, EINTR};

    (void)state;
    for (int i = 0; i < 2; i++) {
        room.slept = 0;
        room.poll_errno = errors[i];
        room_keep(DIBS__SECOND);
        assert_int_equal(room.slept, errors[i] == ENOMEM ? 10 * DIBS__MS : 0);
    }
}

static int wake_fd;

static void mend(void)
{
    room.d->wake_fd = wake_fd;
}

static void a_descriptor_that_fails_is_reported(void **state)
{
    int ends[2];

    (void)state;
    assert_int_equal(pipe(ends), 0);
    close(ends[0]);
    wake_fd = room.d->wake_fd;
    room.d->wake_fd = ends[1]; /* cannot be read */
    room.heard = mend;
    room_keep(0);
    close(ends[1]);
    assert_int_equal(room.logged, 1);
    assert_int_equal(room.level, DIBS_LOG_ERROR);
    assert_string_equal(room.line, "keeper: Bad file descriptor");
}

static void say_nothing(void)
{
}

static void an_event_arrives(void)
{
    room_event(say_nothing);
}

static dibs__driver_call reader;

static void a_reader_comes_before_an_event(void)
{
    reader = (dibs__driver_call){0};
    assert_true(dibs__reader_lead(&room.d->readers, &reader));
    an_event_arrives();
}

/* While no thread of a waiter does, and not if one comes while the keeper sleeps. */
static void the_keeper_reads_events(void **state)
{
    (void)state;
    room.untils = true;
    room_after(DIBS__SECOND, an_event_arrives);
    room_after(2 * DIBS__SECOND, a_reader_comes_before_an_event);
    room_keep(3 * DIBS__SECOND);
    assert_log("1000 events <6000");
    room_keep(DIBS__SECOND);
    assert_log("1000 events <6000");
    dibs__call_leave(&room.d->readers.threads, &reader);
    room_keep(0);
    assert_log("1000 events <6000; 4000 events <9000");
}

static dibs__ticket sitter;

static void a_thread_comes(void)
{
    room_note("comes");
    assert_false(dibs__reader_lead(&room.d->readers, &sitter.turn)); /* the keeper reads */
}

/* It goes on reading for us. */
static void a_thread_that_comes_meanwhile_reads_from_then_on(void **state)
{
    (void)state;
    memset(&sitter, 0, sizeof sitter);
    room_event(a_thread_comes);
    room_keep(0);
    assert_log("0 events; 0 comes");
    assert_ptr_equal(room.signalled, &sitter.bell);
    assert_int_equal(atomic_load(&sitter.bell), 1);
    assert_true(dibs__reader_lead(&room.d->readers, &sitter.turn));
}

/* Before the engine is open it has no descriptor. */
static void a_handle_that_is_not_open_is_kept(void **state)
{
    dibs__engine *engine = room.d->engine;

    (void)state;
    atomic_store(&room.d->ready, false);
    room.d->engine = NULL;
    room_keep(DIBS__SECOND);
    room.d->engine = engine;
    atomic_store(&room.d->ready, true);
    assert_int_equal(room.d->armed, DIBS__NEVER);
}

/* A thread that read goes: the keeper reads at once if somebody waits, else it may take its time. */
static void events_are_minded_soon(void **state)
{
    (void)state;
    room_woken();
    room.d->waits = 1;
    dibs__keeper_mind(room.d);
    assert_true(room_woken());
    assert_int_equal(room.timers, 0);
    room.d->waits = 0;
    dibs__keeper_mind(room.d);
    assert_false(room_woken());
    assert_int_equal(room.timer, now() + 200 * DIBS__MS);
    dibs__keeper_mind(room.d);
    assert_int_equal(room.timers, 1); /* only ever earlier */
    pass(-1);
    dibs__keeper_mind(room.d);
    assert_int_equal(room.timer, now() + 200 * DIBS__MS);
}

/* ---- Starting --------------------------------------------------------------------------------- */

static void the_keeper_is_started_once(void **state)
{
    (void)state;
    room.no_threads = true;
    assert_false(dibs__keeper_start(room.d));
    assert_status(dibs_lock(room.d, "a", NULL, &(dibs_grant *){NULL}, NULL), DIBS_NO_MEMORY);
    room.no_threads = false;
    room.d->keeper_batch = (free(room.d->keeper_batch), NULL);
    alloc_fail(1, false);
    assert_false(dibs__keeper_start(room.d));
    assert_true(alloc_heal());
    assert_true(dibs__keeper_start(room.d));
    room.no_threads = true;
    assert_true(dibs__keeper_start(room.d)); /* it runs */
}

/* ---- How long it may be away ------------------------------------------------------------------ */

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
    pass(60 * DIBS__SECOND);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        ROOM_CASE(a_lock_is_renewed_at_a_third_of_its_lease),
        ROOM_CASE(renewals_that_are_due_soon_go_along),
        ROOM_CASE(keep_alives_that_are_due_soon_go_along),
        ROOM_CASE(a_batch_has_at_most_512),
        ROOM_CASE(a_renewal_asks_for_its_own_lease),
        ROOM_CASE(a_hand_over_asks_for_a_whole_lease),
        ROOM_CASE(an_exchange_ends_by_the_next_deadline),
        ROOM_CASE(a_loss_is_reported_in_time),
        ROOM_CASE(losses_are_taken_in_order),
        ROOM_CASE(a_loss_is_reported_before_the_next_exchange),
        ROOM_CASE(a_break_is_heard_of_soon),
        ROOM_CASE(an_answer_counts_for_what_was_asked),
        ROOM_CASE(an_orphan_is_given_back_until_the_engine_answers),
        ROOM_CASE(an_orphan_is_given_up_when_it_has_ended),
        ROOM_CASE(a_waiter_that_left_is_cancelled),
        ROOM_CASE(giving_back_leaves_a_third_for_renewals),
        ROOM_CASE(renewals_come_first),
        ROOM_CASE(tasks_have_their_time),
        ROOM_CASE(a_loss_is_reported_before_maintenance),
        ROOM_CASE(a_request_ends_when_its_caller_has_no_time_left),
        ROOM_CASE(a_request_without_an_answer_is_entered_again),
        ROOM_CASE(a_request_that_no_worker_took_up_is_over),
        ROOM_CASE(a_request_is_not_settled_while_a_worker_enters),
        ROOM_CASE(a_request_is_not_entered_again_early),
        ROOM_CASE(a_thread_that_is_settled_is_left_alone),
        ROOM_CASE(a_poll_that_fails_delays_nothing),
        ROOM_CASE(a_descriptor_that_fails_is_reported),
        ROOM_CASE(the_keeper_reads_events),
        ROOM_CASE(a_thread_that_comes_meanwhile_reads_from_then_on),
        ROOM_CASE(a_handle_that_is_not_open_is_kept),
        ROOM_CASE(events_are_minded_soon),
        ROOM_CASE(the_keeper_is_started_once),
        ROOM_CASE(the_keeper_is_back_in_time),
    };

    alarm(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
