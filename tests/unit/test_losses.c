/* How a loss is told when several threads are about: the callback of a lost grant, or run, never runs nor
 * begins after dibs_unlock, or dibs_once_free, has returned; and nobody waits for ever for that.
 *
 * Callbacks of these cases stay inside until they are told to go, so that everything can happen
 * while they run. */
#define _GNU_SOURCE
#include "core/handle.h"
#include "support/clock.h"
#include "support/jobs.h"
#include "support/lossy.h"
#include "support/test.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LEASE_MS 100

typedef struct witness witness;

/* What became of one lost thing. `inside` is what its callback does before it ends. */
struct witness {
    dibs *d;
    dibs_grant *g;
    dibs_once *o;
    void (*inside)(witness *w);
    witness *rival;
    atomic_bool ready; /* what is above is filled in */
    atomic_bool began, ended;
    atomic_bool may_end;
    atomic_bool given_up;    /* dibs_unlock has returned */
    atomic_bool ended_first; /* before that */
};

static bool is_true(void *flag)
{
    return atomic_load((atomic_bool *)flag);
}

static void await(atomic_bool *flag)
{
    if (!wait_until(is_true, flag, LONG_MS))
        fail_msg("it hangs");
}

static void run(witness *w)
{
    while (!atomic_load(&w->ready))
        usleep(500);
    atomic_store(&w->began, true);
    if (w->inside)
        w->inside(w);
    atomic_store(&w->ended, true);
}

static void on_lost(void *data, dibs_grant *g, dibs_loss why)
{
    (void)g;
    (void)why;
    run(data);
}

static void on_run_lost(void *data, dibs_once *o)
{
    (void)o;
    run(data);
}

static void give_up(witness *w)
{
    if (w->g)
        unlock(w->g);
    else
        dibs_once_free(w->o);
    atomic_store(&w->ended_first, atomic_load(&w->ended));
    atomic_store(&w->given_up, true);
}

static void *give_up_thread(void *arg)
{
    give_up(arg);
    return NULL;
}

/* ---- Things that are soon lost --------------------------------------------------------------- */

static char store[64]; /* of this case */

static dibs *open_here(void)
{
    return open_at(store, NULL);
}

static void hold_lock(witness *w, dibs *d, const char *name)
{
    w->d = d;
    w->g = take(d, name,
                &(dibs_lock_options){
                    .lease_ms = LEASE_MS, .no_renew = true, .on_lost = on_lost, .data = w});
    atomic_store(&w->ready, true);
}

/* Its renewals are lost on the way. */
static void hold_run(witness *w, dibs *d, const char *key)
{
    dibs_error err = {0};

    w->d = d;
    lossy_put_in(d);
    if (dibs_once_begin(
            d, key, &(dibs_once_options){.lease_ms = LEASE_MS, .on_lost = on_run_lost, .data = w},
            &w->o, &err) != DIBS_OK)
        fail_msg("%s", err.message);
    lossy_lose(LOSSY_REQUEST, -1, NULL, NULL);
    atomic_store(&w->ready, true);
}

static void start(pthread_t *thread, void *(*what)(void *), void *arg)
{
    assert_int_equal(pthread_create(thread, NULL, what, arg), 0);
}

/* ---- Inside of callbacks --------------------------------------------------------------------- */

static void stay(witness *w)
{
    while (!atomic_load(&w->may_end))
        usleep(500);
}

/* Both are inside before either goes on. */
static void meet_and_unlock_rival(witness *w)
{
    while (!atomic_load(&w->rival->began))
        usleep(500);
    give_up(w->rival);
}

static void unlock_rival(witness *w)
{
    give_up(w->rival);
}

static void unlock_own(witness *w)
{
    give_up(w);
}

/* ---- The cases ------------------------------------------------------------------------------- */

/* Somebody gives it up while its callback runs. */
static void give_up_meanwhile(witness *w)
{
    pthread_t user;

    await(&w->began);
    start(&user, give_up_thread, w);
    sleep_ms(50); /* nothing tells that it waits; it must not have come back by then, or later */
    atomic_store(&w->may_end, true);
    pthread_join(user, NULL);
    assert_true(w->ended_first);
}

static void unlock_waits_for_its_callback(void **state)
{
    static witness a;

    (void)state;
    a.inside = stay;
    hold_lock(&a, open_here(), "a");
    give_up_meanwhile(&a);
}

/* So does a request: its outcome comes after the callback. */
static void an_unlock_request_waits_for_its_callback(void **state)
{
    static witness a;
    dibs *d = open_here();
    dibs_outcome o;

    (void)state;
    a.inside = stay;
    hold_lock(&a, d, "a");
    await(&a.began);
    assert_status(dibs_start(d, &(dibs_request){.op = DIBS_OP_UNLOCK, .grant = a.g}, NULL, NULL),
                  DIBS_OK);
    sleep_ms(50);
    assert_false(dibs_take(d, &o));
    atomic_store(&a.may_end, true);
    poll(&(struct pollfd){.fd = dibs_fd(d), .events = POLLIN}, 1, LONG_MS);
    assert_true(dibs_take(d, &o));
    assert_true(a.ended);
    assert_status(o.err.status, DIBS_LOST);
}

static void free_waits_for_its_callback(void **state)
{
    static witness a;

    (void)state;
    a.inside = stay;
    hold_run(&a, open_here(), "a");
    give_up_meanwhile(&a);
    lossy_stop();
}

static void keepers_may_unlock_each_others(void **state)
{
    static witness a, b;

    (void)state;
    a.inside = b.inside = meet_and_unlock_rival;
    a.rival = &b;
    b.rival = &a;
    hold_lock(&a, open_here(), "a");
    hold_lock(&b, open_here(), "b");
    await(&a.ended);
    await(&b.ended);
    assert_true(a.ended_first || b.ended_first);
}

/* The callback of one unlocks another whose callback runs elsewhere: that is waited for. */
static void a_callback_waits_for_anothers(void **state)
{
    static witness a, b;

    (void)state;
    b.inside = stay;
    a.inside = unlock_rival;
    a.rival = &b;
    hold_lock(&b, open_here(), "b");
    await(&b.began);
    hold_lock(&a, open_here(), "a");
    await(&a.began);
    sleep_ms(50); /* as above */
    assert_false(b.given_up);
    atomic_store(&b.may_end, true);
    await(&a.ended);
    assert_true(b.ended_first);
    unlock(a.g);
}

static void unlock_from_inside_returns(void **state)
{
    static witness a;

    (void)state;
    a.inside = unlock_own;
    hold_lock(&a, open_here(), "a");
    await(&a.ended);
    assert_true(a.given_up);
}

static void unlock_lost_rival(witness *w)
{
    while (dibs_grant_held(w->rival->g))
        usleep(500);
    give_up(w->rival);
}

/* A callback that was due and has not begun does not begin any more: the keeper is inside the first. */
static void a_callback_that_was_due_is_dropped(void **state)
{
    static witness a, b;
    dibs *d = open_here();

    (void)state;
    a.inside = unlock_lost_rival;
    a.rival = &b;
    hold_lock(&b, d, "b");
    hold_lock(&a, d, "a");
    await(&a.ended);
    unlock(a.g);
    assert_true(b.given_up);
    assert_false(b.began && !b.ended_first);
}

static int set_up(void **state)
{
    static int n;

    (void)state;
    snprintf(store, sizeof store, "memory:losses-%d", n++);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    close_handles();
    return 0;
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(unlock_waits_for_its_callback),
        CASE(free_waits_for_its_callback),
        CASE(an_unlock_request_waits_for_its_callback),
        CASE(keepers_may_unlock_each_others),
        CASE(a_callback_waits_for_anothers),
        CASE(unlock_from_inside_returns),
        CASE(a_callback_that_was_due_is_dropped),
    };

    alarm(120); /* it may hang otherwise */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
