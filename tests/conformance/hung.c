/* The engine hangs: its server is stopped, or another process keeps the database locked. Every call comes
 * back when its time is over, whatever it waited for. The bounds are far from request_ms, which is what
 * calls took that did not keep their wait. */
#define _GNU_SOURCE
#include "conformance/suite.h"
#include "support/clock.h"

#include <pthread.h>
#include <stdio.h>

#define WAIT_MS          200
#define REQUEST_MS       5000
#define BOUND_MS         3000 /* 450 by the rule, on a machine that does nothing else */
#define SHORT_REQUEST_MS 1500
#define SLOW_MS          600 /* more than the 200 that a call gets beyond its wait */
#define CLOSE_MS         (SHORT_REQUEST_MS + 2500) /* dibs.h says 2000 */

typedef struct room {
    dibs *d;
    dibs_once *running; /* another's */
    const char *name;
} room;

static void assert_fails(dibs_status status)
{
    assert_int_not_equal(status, DIBS_OK);
}

static void lock(room *r)
{
    dibs_grant *g = NULL;

    assert_fails(dibs_lock(r->d, r->name, &(dibs_lock_options){.wait_ms = WAIT_MS}, &g, NULL));
}

static void lock_many(room *r)
{
    const char *const names[] = {"hung-a", "hung-b", r->name};
    dibs_grant *g[3];

    assert_fails(dibs_lock_many(r->d, names, 3, &(dibs_lock_options){.wait_ms = WAIT_MS}, g, NULL));
}

static void once_begin(room *r)
{
    dibs_once *o = NULL;

    assert_fails(dibs_once_begin(r->d, "hung", &(dibs_once_options){.wait_ms = WAIT_MS}, &o, NULL));
    dibs_once_free(o);
}

static void once_wait(room *r)
{
    assert_fails(dibs_once_wait(r->running, WAIT_MS, NULL));
}

static void break_it(room *r)
{
    assert_fails(dibs_lock_break(
        r->d, r->name, &(dibs_lock_break_options){.by = "operator", .wait_ms = WAIT_MS}, NULL));
}

static const struct call {
    const char *name;
    void (*run)(room *r);
    bool cells;
} calls[] = {{"dibs_lock", lock, false},
             {"dibs_lock_many", lock_many, false},
             {"dibs_once_begin", once_begin, true},
             {"dibs_once_wait", once_wait, true},
             {"dibs_lock_break", break_it, false}};

static void hang_or_skip(void)
{
    if (!pause_server())
        skip(); /* memory: nothing to hang */
}

static void a_call_keeps_its_wait_when_the_engine_hangs(void **state)
{
    dibs *a = open_handle();
    room r = {.d = open_with(&(dibs_options){.request_ms = REQUEST_MS}), .name = fresh("hung")};
    const char *late = NULL;
    dibs_once *o = NULL;
    int64_t took = 0;

    (void)state;
    take(a, r.name, NULL);
    if (the.can.cells) {
        assert_status(dibs_once_begin(a, r.name, NULL, &o, NULL), DIBS_OK);
        assert_status(dibs_once_begin(r.d, r.name, &(dibs_once_options){.wait_ms = DIBS_NO_WAIT},
                                      &r.running, NULL),
                      DIBS_RUNNING);
    }
    hang_or_skip();
    for (size_t i = 0; !late && i < sizeof calls / sizeof calls[0]; i++) {
        int64_t start = clock_ms();
        if (calls[i].cells && !the.can.cells)
            continue;
        calls[i].run(&r);
        took = clock_ms() - start;
        print_message("# %s: %s with a wait of %d ms: %lld ms\n", the.engine, calls[i].name,
                      WAIT_MS, (long long)took);
        if (took > BOUND_MS)
            late = calls[i].name;
    }
    continue_server();
    if (late)
        fail_msg("%s took %lld ms", late, (long long)took);
}

/* While it holds, runs something, and has begun something whose answer never came. */
static void closing_has_a_bound_when_the_engine_hangs(void **state)
{
    dibs *d = NULL;
    dibs_once *o = NULL;
    int64_t start, took;

    (void)state;
    assert_status(dibs_open(the.url, &(dibs_options){.request_ms = SHORT_REQUEST_MS}, &d, NULL),
                  DIBS_OK);
    take(d, fresh("hung"), NULL);
    if (the.can.cells)
        assert_status(dibs_once_begin(d, fresh("hung"), NULL, &o, NULL), DIBS_OK);
    if (!pause_server()) {
        dibs_close(d);
        skip();
    }
    if (the.can.cells)
        dibs_once_begin(d, fresh("hung"), &(dibs_once_options){.wait_ms = WAIT_MS}, &o, NULL);
    start = clock_ms();
    dibs_close(d);
    took = clock_ms() - start;
    continue_server();
    print_message("# %s: dibs_close: %lld ms\n", the.engine, (long long)took);
    assert_in_range(took, 0, CLOSE_MS);
}

static void *continue_later(void *data)
{
    (void)data;
    sleep_ms(SLOW_MS);
    continue_server();
    return NULL;
}

/* DIBS_NO_WAIT is about other clients: the engine itself has request_ms to answer. (A node of Redlock has node_ms,
 * whatever the call.) */
static void who_does_not_wait_hears_a_slow_engine(void **state)
{
    dibs *a = open_handle(), *b = open_with(&(dibs_options){.request_ms = REQUEST_MS});
    const dibs_lock_break_options o = {.by = "operator", .now = true, .wait_ms = DIBS_NO_WAIT};
    const char *name = fresh("slow");
    dibs_error err = {0};
    dibs_status status;
    pthread_t thread;

    (void)state;
    if (!the.can.first_come)
        skip();
    take(a, name, NULL);
    assert_status(dibs_lock_break(b, fresh("warm"), &o, NULL), DIBS_NOT_FOUND);
    hang_or_skip();
    assert_int_equal(pthread_create(&thread, NULL, continue_later, NULL), 0);
    status = dibs_lock_break(b, name, &o, &err);
    pthread_join(thread, NULL);
    if (status != DIBS_OK)
        fail_msg("%s: %s", dibs_status_name(status), err.message);
}

static const struct CMUnitTest tests[] = {
    CASE(a_call_keeps_its_wait_when_the_engine_hangs),
    CASE(who_does_not_wait_hears_a_slow_engine),
    CASE(closing_has_a_bound_when_the_engine_hangs),
};
CASES(hung_cases, tests);
