/* Who asks the engine for a request. Where the engine keeps nobody waiting the thread that starts it does, and its
 * outcome is there when dibs_start returns; a worker does what is long, and what comes while another thread is at it. */
#define _GNU_SOURCE
#include "core/handle.h"
#include "support/clock.h"
#include "support/jobs.h"
#include "support/test.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static dibs__engine_class class; /* a copy of the memory engine's, which tells who is inside */
static const dibs__engine_class *real;
static pthread_t in_enter, in_list;
static int first, second; /* what requests have as `user` */
static atomic_int enters;
static atomic_bool may_go;

static dibs_status enter(dibs__engine *e, const dibs__enter_request *request, dibs__deadline until,
                         dibs__reply *out, dibs_error *err)
{
    in_enter = pthread_self();
    atomic_fetch_add(&enters, 1);
    while (request->name[0] == 's' && !atomic_load(&may_go))
        usleep(500);
    return real->enter(e, request, until, out, err);
}

static dibs_status list(dibs__engine *e, const char *prefix, bool idle, dibs__deadline until,
                        dibs__report_builder *out, dibs_error *err)
{
    in_list = pthread_self();
    return real->list(e, prefix, idle, until, out, err);
}

static dibs *open_here(bool never_waits)
{
    static int n;
    char store[32];
    dibs *d;

    snprintf(store, sizeof store, "memory:start-%d", n++);
    d = open_at(store, NULL);
    real = d->class;
    class = *real;
    class.enter = enter;
    class.list = list;
    class.can.never_waits = never_waits;
    d->class = &class;
    atomic_store(&enters, 0);
    atomic_store(&may_go, false);
    return d;
}

static void start(dibs *d, dibs_request r)
{
    assert_status(dibs_start(d, &r, NULL, NULL), DIBS_OK);
}

static dibs_outcome outcome(dibs *d)
{
    dibs_outcome o;

    poll(&(struct pollfd){.fd = dibs_fd(d), .events = POLLIN}, 1, LONG_MS);
    assert_true(dibs_take(d, &o));
    return o;
}

static void its_outcome_is_there_at_once(void **state)
{
    dibs *d = open_here(true);
    dibs_outcome o;

    (void)state;
    start(d, (dibs_request){.op = DIBS_OP_LOCK, .name = "a"});
    assert_true(dibs_take(d, &o));
    assert_status(o.err.status, DIBS_OK);
    assert_true(pthread_equal(in_enter, pthread_self()));
    start(d, (dibs_request){.op = DIBS_OP_RENEW, .grant = o.grant});
    start(d, (dibs_request){.op = DIBS_OP_UNLOCK, .grant = o.grant});
    assert_int_equal(poll(&(struct pollfd){.fd = dibs_fd(d), .events = POLLIN}, 1, 0), 1);
    assert_true(dibs_take(d, &o));
    assert_true(dibs_take(d, &o));
    assert_status(o.err.status, DIBS_OK);
    assert_false(dibs_take(d, &o));
    assert_status(try_lock(d, "a"), DIBS_OK);
}

static void a_worker_asks_an_engine_that_may_wait(void **state)
{
    dibs *d = open_here(false);
    dibs_outcome o;

    (void)state;
    start(d, (dibs_request){.op = DIBS_OP_LOCK, .name = "a"});
    o = outcome(d);
    assert_status(o.err.status, DIBS_OK);
    assert_false(pthread_equal(in_enter, pthread_self()));
}

static void a_worker_lists(void **state)
{
    dibs *d = open_here(true);
    dibs_outcome o;

    (void)state;
    start(d, (dibs_request){.op = DIBS_OP_LOCK_LIST, .name = ""});
    o = outcome(d);
    assert_status(o.err.status, DIBS_OK);
    assert_false(pthread_equal(in_list, pthread_self()));
    dibs_lock_report_free(o.lock_report);
}

static void *start_slow(void *d)
{
    start(d, (dibs_request){.op = DIBS_OP_LOCK, .name = "slow", .user = &first});
    return NULL;
}

static bool has_entered(void *unused)
{
    (void)unused;
    return atomic_load(&enters) > 0;
}

/* Nobody who starts a request waits for a thread that does; and the order of one lock's requests is kept. */
static void others_do_not_wait_for_it(void **state)
{
    dibs *d = open_here(true);
    pthread_t thread;
    dibs_outcome o;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, start_slow, d), 0);
    assert_true(wait_until(has_entered, NULL, LONG_MS));
    start(d, (dibs_request){.op = DIBS_OP_LOCK, .name = "slow", .user = &second});
    start(d, (dibs_request){.op = DIBS_OP_LOCK, .name = "other"});
    o = outcome(d);
    assert_null(o.user);
    assert_int_equal(atomic_load(&enters), 2); /* the second request for `slow` has not entered */
    atomic_store(&may_go, true);
    pthread_join(thread, NULL);
    o = outcome(d);
    assert_ptr_equal(o.user, &first);
    assert_status(o.err.status, DIBS_OK);
    assert_status(unlock(o.grant), DIBS_OK);
    o = outcome(d);
    assert_ptr_equal(o.user, &second);
    assert_status(o.err.status, DIBS_OK);
}

/* What a worker has taken up comes before what its caller would do by itself. */
static void nobody_overtakes_a_worker(void **state)
{
    dibs *d = open_here(false);
    pthread_t thread;
    dibs_outcome o;

    (void)state;
    start(d, (dibs_request){.op = DIBS_OP_LOCK, .name = "slow", .user = &second});
    assert_true(wait_until(has_entered, NULL, LONG_MS));
    class.can.never_waits = true;
    assert_int_equal(pthread_create(&thread, NULL, start_slow, d), 0);
    usleep(20000); /* time enough to overtake */
    assert_int_equal(atomic_load(&enters), 1);
    pthread_join(thread, NULL); /* who enters does not return before may_go */
    atomic_store(&may_go, true);
    o = outcome(d);
    assert_ptr_equal(o.user, &second);
    assert_status(unlock(o.grant), DIBS_OK);
    o = outcome(d);
    assert_ptr_equal(o.user, &first);
    assert_status(o.err.status, DIBS_OK);
}

static int tear_down(void **state)
{
    (void)state;
    close_handles();
    return 0;
}

#define CASE(name) cmocka_unit_test_teardown(name, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(its_outcome_is_there_at_once),
        CASE(a_worker_asks_an_engine_that_may_wait),
        CASE(a_worker_lists),
        CASE(others_do_not_wait_for_it),
        CASE(nobody_overtakes_a_worker),
    };

    alarm(120); /* it may hang otherwise */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
