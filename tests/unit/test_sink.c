/* What engines report: each event finds its grant, or those who wait for its cell, and nothing else. */
#define _GNU_SOURCE
#include "core/handle.h"
#include "support/room.h"

#include <stdio.h>
#include <string.h>

/* While the handle is being closed nothing of it is heard, nor what nobody knows. */
static void events_find_their_grant(void **state)
{
    dibs__sink *sink = &room.d->sink;
    dibs__ticket t;
    dibs_grant *g = room_waiter(&t);

    (void)state;
    room_enter(&t, DIBS_OK, in_queue, 0);
    for (int closing = 1; closing >= 0; closing--) {
        atomic_store(&room.d->closing, closing);
        sink->granted(sink, "nobody", 9, 8);
        sink->check(sink, "nobody");
        assert_int_equal(g->due.key, now() + DIBS__WINDOW / 3);
        sink->check(sink, g->attempt);
        assert_int_equal(g->due.key, closing ? now() + DIBS__WINDOW / 3 : now());
        sink->granted(sink, g->attempt, 9, 8);
        assert_int_equal(g->state, closing ? DIBS__WAITING : DIBS__HELD);
    }
    assert_int_equal(g->fence, 9);
    assert_int_equal(g->floor, 8);
    sink->granted(sink, g->attempt, 10, 10); /* a second time: it waits no more */
    assert_int_equal(g->fence, 9);
    dibs__grant_note_end(g);
    room_forget_waiter(&t, g);
}

/* Who looks again after something may have been missed. */
static void all_of_a_kind_look_again(void **state)
{
    static const struct {
        unsigned at;
        bool closing, waiter, holder;
    } rows[] = {
        {DIBS__WAITERS, false, true, false},
        {DIBS__HOLDERS, false, false, true},
        {DIBS__WAITERS | DIBS__HOLDERS, false, true, true},
        {DIBS__CELLS, false, false, false},
        {DIBS__WAITERS | DIBS__HOLDERS, true, false, false},
    };
    dibs__ticket t;
    dibs_grant *holder = take_named("b", (dibs_lock_options){0}), *waiter = room_waiter(&t);

    (void)state;
    room_enter(&t, DIBS_OK, in_queue, 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dibs__heap_put(&room.d->due, &holder->due, now() + 1);
        dibs__heap_put(&room.d->due, &waiter->due, now() + 1);
        atomic_store(&room.d->closing, rows[i].closing);
        room.d->sink.check_all(&room.d->sink, rows[i].at);
        atomic_store(&room.d->closing, false);
        print_message("# row %zu\n", i);
        assert_int_equal(waiter->due.key, now() + !rows[i].waiter);
        assert_int_equal(holder->due.key, now() + !rows[i].holder);
    }
    room.d->stats.waiting--;
    room_forget_waiter(&t, waiter);
    drop(holder);
}

/* However many there are. */
static void all_of_many_look_again(void **state)
{
    dibs_grant *g[64];
    char name[8];

    (void)state;
    room.generous = true;
    for (int i = 0; i < 64; i++) {
        snprintf(name, sizeof name, "%d", i);
        g[i] = take_named(name, (dibs_lock_options){0});
    }
    room.d->sink.check_all(&room.d->sink, DIBS__HOLDERS);
    for (int i = 0; i < 64; i++) {
        assert_int_equal(g[i]->due.key, now());
        assert_status(unlock(g[i]), DIBS_OK);
    }
}

/* A waiter whose thread is inside `enter` looks when that has been answered; who has no ticket, never. */
static void a_check_waits_for_the_answer(void **state)
{
    dibs__sink *sink = &room.d->sink;
    dibs__ticket t;
    dibs_grant *g = room_waiter(&t);

    (void)state;
    sink->check(sink, g->attempt);
    assert_true(t.doubt);
    assert_int_equal(g->due.index, 0);
    t.doubt = false;
    room.d->sink.check_all(sink, DIBS__WAITERS);
    assert_true(t.doubt);
    g->ticket = NULL;
    sink->check(sink, g->attempt);
    assert_int_equal(g->due.index, 0);
    room.d->waits--;
    room_forget_waiter(&t, g);
}

static dibs_status watch(dibs__engine *e, const char *key, uint64_t version, dibs__deadline until,
                         void **out, dibs_error *err)
{
    (void)e, (void)key, (void)version, (void)until, (void)out, (void)err;
    return DIBS_OK;
}

static void another_changes(void)
{
    room.d->sink.changed(&room.d->sink, dibs__hash("another"));
}

static void it_changes(void)
{
    room.d->sink.changed(&room.d->sink, dibs__hash("cell"));
}

static void cells_are_missed(void)
{
    room.d->sink.check_all(&room.d->sink, DIBS__CELLS);
}

static void locks_are_missed(void)
{
    room.d->sink.check_all(&room.d->sink, DIBS__WAITERS | DIBS__HOLDERS);
}

/* Who waits for a cell hears that it has changed, or that this may have been missed. */
static void a_cell_that_changes_is_looked_at(void **state)
{
    static const struct {
        void (*first)(void), (*second)(void); /* after one and two seconds, of five */
        int64_t ends;
    } rows[] = {
        {another_changes, it_changes, 2 * DIBS__SECOND},
        {locks_are_missed, cells_are_missed, 2 * DIBS__SECOND},
        {another_changes, locks_are_missed, 5 * DIBS__SECOND},
    };

    (void)state;
    room.class.watch = watch;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t began = now();
        room_begin();
        room_after(DIBS__SECOND, rows[i].first);
        room_after(2 * DIBS__SECOND, rows[i].second);
        pthread_mutex_lock(&room.d->mutex);
        assert_false(room.d->waits);
        assert_status(dibs__cell_wait(room.d, "cell", 1, now() + 5 * DIBS__SECOND, NULL), DIBS_OK);
        pthread_mutex_unlock(&room.d->mutex);
        assert_int_equal(now() - began, rows[i].ends);
    }
}

static void an_engine_asks_whether_anybody_waits(void **state)
{
    dibs__sink *sink = &room.d->sink;
    dibs__ticket t;
    dibs_grant *g;

    (void)state;
    assert_false(sink->waited_for(sink));
    g = room_waiter(&t);
    assert_true(sink->waited_for(sink));
    room_enter(&t, DIBS_OK, granted, 0);
    assert_false(sink->waited_for(sink));
    dibs__grant_note_end(g);
    room_forget_waiter(&t, g);
}

static void an_engine_writes_to_the_log(void **state)
{
    dibs__sink *sink = &room.d->sink;

    (void)state;
    sink->log(sink, DIBS_LOG_WARNING, "%s of %d", "one", 2);
    assert_int_equal(room.logged, 1);
    assert_int_equal(room.level, DIBS_LOG_WARNING);
    assert_string_equal(room.line, "one of 2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ROOM_CASE(events_find_their_grant),
        ROOM_CASE(all_of_a_kind_look_again),
        ROOM_CASE(all_of_many_look_again),
        ROOM_CASE(a_check_waits_for_the_answer),
        ROOM_CASE(a_cell_that_changes_is_looked_at),
        ROOM_CASE(an_engine_asks_whether_anybody_waits),
        ROOM_CASE(an_engine_writes_to_the_log),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
