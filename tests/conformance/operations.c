/* Requests of every kind: each has one outcome, which is that of the blocking call; also when it is stopped, when the
 * handle is drained, and when the engine hangs. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t begin(dibs *d, dibs_request r)
{
    dibs_error err = {0};
    uint64_t id = 0;

    if (dibs_start(d, &r, &id, &err) != DIBS_OK)
        fail_msg("op %d: %s", (int)r.op, err.message);
    assert_true(id != 0);
    return id;
}

static bool take_soon(dibs *d, dibs_outcome *o)
{
    int64_t end = clock_ms() + LONG_MS;

    while (!dibs_take(d, o)) {
        struct pollfd p = {.fd = dibs_fd(d), .events = POLLIN};
        if (clock_ms() >= end)
            return false;
        poll(&p, 1, (int)(end - clock_ms()));
    }
    return true;
}

/* The one request that is out. */
static dibs_outcome outcome_of(dibs *d, uint64_t id)
{
    dibs_outcome o;

    if (!take_soon(d, &o))
        fail_msg("no outcome");
    assert_int_equal(o.id, id);
    return o;
}

static dibs_outcome make(dibs *d, dibs_request r)
{
    return outcome_of(d, begin(d, r));
}

static void expect_none(dibs *d)
{
    dibs_outcome o;

    assert_false(dibs_take(d, &o));
    assert_int_equal(poll(&(struct pollfd){.fd = dibs_fd(d), .events = POLLIN}, 1, 0), 0);
}

/* ---- Each op ----------------------------------------------------------------------------------- */

static void locks_by_request(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("op-lock");
    int mine;
    dibs_outcome o = make(d, (dibs_request){.op = DIBS_OP_LOCK, .name = name, .user = &mine});
    dibs_grant *g = o.grant;

    (void)state;
    assert_status(o.err.status, DIBS_OK);
    assert_ptr_equal(o.user, &mine);
    assert_int_equal(o.op, DIBS_OP_LOCK);
    o = make(d, (dibs_request){.op = DIBS_OP_RENEW, .grant = g});
    assert_status(o.err.status, DIBS_OK);
    o = make(d, (dibs_request){.op = DIBS_OP_LOCK_INSPECT, .name = name});
    assert_status(o.err.status, DIBS_OK);
    assert_int_equal(dibs_lock_report_at(o.lock_report, 0)->holders[0]->fence, dibs_grant_fence(g));
    dibs_lock_report_free(o.lock_report);
    o = make(d, (dibs_request){.op = DIBS_OP_LOCK_LIST,
                               .name = name,
                               .options.lock_list = &(dibs_lock_list_options){.limit = 5}});
    assert_status(o.err.status, DIBS_OK);
    assert_int_equal(dibs_lock_report_count(o.lock_report), 1);
    dibs_lock_report_free(o.lock_report);
    o = make(d, (dibs_request){.op = DIBS_OP_UNLOCK, .grant = g});
    assert_status(o.err.status, DIBS_OK);
    assert_status(try_lock(d, name), DIBS_OK);
    expect_none(d);
}

static void a_reentrant_lock_is_unlocked_level_by_level(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("op-levels");
    dibs_grant *g = take(a, name, NULL);

    (void)state;
    assert_ptr_equal(take(a, name, NULL), g);
    assert_status(make(a, (dibs_request){.op = DIBS_OP_UNLOCK, .grant = g}).err.status, DIBS_OK);
    assert_true(dibs_grant_held(g));
    assert_status(make(a, (dibs_request){.op = DIBS_OP_UNLOCK, .grant = g}).err.status, DIBS_OK);
    assert_status(try_lock(b, name), DIBS_OK);
}

static void values_by_request(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("op-value");
    dibs_outcome o;

    (void)state;
    if (!the.can.cells)
        skip();
    o = make(d, (dibs_request){.op = DIBS_OP_CELL_SWAP, .name = name, .data = "one", .size = 3});
    assert_status(o.err.status, DIBS_OK);
    o = make(d, (dibs_request){.op = DIBS_OP_CELL_SWAP, .name = name, .data = "two", .size = 3});
    assert_status(o.err.status, DIBS_CONFLICT);
    assert_memory_equal(o.value.data, "one", 4);
    dibs_value_free(&o.value);
    o = make(d, (dibs_request){.op = DIBS_OP_CELL_PASS,
                               .name = name,
                               .options.cell = &(dibs_cell_options){.fence = 7}});
    assert_status(o.err.status, DIBS_OK);
    dibs_value_free(&o.value);
    o = make(d, (dibs_request){.op = DIBS_OP_CELL_READ, .name = name});
    assert_status(o.err.status, DIBS_OK);
    assert_int_equal(o.value.size, 3);
    dibs_value_free(&o.value);
    o = make(d, (dibs_request){.op = DIBS_OP_CELL_DELETE, .name = name, .version = 1});
    assert_status(o.err.status, DIBS_CONFLICT);
    o = make(d, (dibs_request){.op = DIBS_OP_CELL_DELETE,
                               .name = name,
                               .version = DIBS_ANY_VERSION,
                               .options.cell = &(dibs_cell_options){.fence = 6}});
    assert_status(o.err.status, DIBS_FENCED);
    o = make(d, (dibs_request){.op = DIBS_OP_CELL_READ, .name = name});
    assert_status(o.err.status, DIBS_OK);
    dibs_value_free(&o.value);
}

/* The grant may be unlocked before the request is sent: its fence counts all the same. */
static void a_cell_is_written_under_a_grant(void **state)
{
    dibs *d = open_handle(), *other = open_handle();
    const char *name = fresh("op-fenced");
    dibs_grant *g;
    uint64_t id;
    dibs_outcome o;

    (void)state;
    if (!the.can.cells)
        skip();
    g = take(d, name, NULL);
    id = begin(d, (dibs_request){.op = DIBS_OP_CELL_SWAP,
                                 .name = name,
                                 .data = "x",
                                 .size = 1,
                                 .options.cell = &(dibs_cell_options){.grant = &g}});
    unlock(g);
    o = outcome_of(d, id);
    assert_status(o.err.status, DIBS_OK);
    g = take(other, name, NULL); /* a grant of another handle does as well */
    id = begin(d, (dibs_request){.op = DIBS_OP_CELL_PASS,
                                 .name = name,
                                 .options.cell = &(dibs_cell_options){.grant = &g}});
    unlock(g);
    o = outcome_of(d, id);
    assert_status(o.err.status, DIBS_OK);
    dibs_value_free(&o.value);
    g = take(d, name, &(dibs_lock_options){.lease_ms = SHORT_MS, .no_renew = true});
    sleep_ms(2 * SHORT_MS);
    if (!dibs_grant_held(g))
        assert_status(dibs_start(d,
                                 &(dibs_request){.op = DIBS_OP_CELL_PASS,
                                                 .name = name,
                                                 .options.cell = &(dibs_cell_options){.grant = &g}},
                                 NULL, NULL),
                      DIBS_LOST);
    unlock(g);
}

static void counters_and_tokens_by_request(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("op-count");
    dibs_outcome o;
    char token[DIBS_TOKEN_SIZE];

    (void)state;
    if (!the.can.cells)
        skip();
    o = make(d, (dibs_request){.op = DIBS_OP_COUNTER_SET, .name = name, .number = 5});
    assert_status(o.err.status, DIBS_OK);
    o = make(d, (dibs_request){.op = DIBS_OP_COUNTER_TAKE, .name = name, .number = 6});
    assert_status(o.err.status, DIBS_TOO_FEW);
    assert_int_equal(o.number, 5);
    for (int i = 0; i < 2; i++) {
        o = make(d, (dibs_request){.op = DIBS_OP_COUNTER_ADD,
                                   .name = name,
                                   .number = -2,
                                   .options.counter = &(dibs_counter_options){.request = "r"}});
        assert_status(o.err.status, i ? DIBS_ALREADY : DIBS_OK);
        assert_int_equal(o.number, 3);
    }
    assert_int_equal(make(d, (dibs_request){.op = DIBS_OP_COUNTER_GET, .name = name}).number, 3);

    o = make(d, (dibs_request){.op = DIBS_OP_TOKEN_ISSUE,
                               .options.token = &(dibs_token_options){.scope = "form"}});
    assert_status(o.err.status, DIBS_OK);
    strcpy(token, o.token);
    o = make(d, (dibs_request){.op = DIBS_OP_TOKEN_REDEEM, .name = token});
    assert_status(o.err.status, DIBS_REFUSED); /* another scope */
    for (int i = 0; i < 2; i++) {
        o = make(d, (dibs_request){.op = DIBS_OP_TOKEN_REDEEM,
                                   .name = token,
                                   .options.token = &(dibs_token_options){.scope = "form"}});
        assert_status(o.err.status, i ? DIBS_REFUSED : DIBS_OK);
    }
    o = make(d, (dibs_request){.op = DIBS_OP_TOKEN_REISSUE,
                               .name = token,
                               .options.token = &(dibs_token_options){.scope = "form"}});
    assert_status(o.err.status, DIBS_OK);
    assert_string_not_equal(o.token, token);
}

static dibs_once *begin_run(dibs *d, const char *key)
{
    dibs_outcome o = make(d, (dibs_request){.op = DIBS_OP_ONCE_BEGIN, .name = key});

    assert_status(o.err.status, DIBS_OK);
    assert_true(dibs_once_held(o.once));
    return o.once;
}

static void runs_by_request(void **state)
{
    dibs *d = open_handle();
    const char *key = fresh("op-once");
    dibs_once *run;
    dibs_outcome o;
    size_t size;

    (void)state;
    if (!the.can.cells)
        skip();
    run = begin_run(d, key);
    o = make(d, (dibs_request){
                    .op = DIBS_OP_ONCE_STEP, .once = run, .name = "paid", .data = "7", .size = 1});
    assert_status(o.err.status, DIBS_OK);
    o = make(d, (dibs_request){.op = DIBS_OP_ONCE_ABANDON, .once = run});
    assert_status(o.err.status, DIBS_OK);
    dibs_once_free(run);
    o = make(d, (dibs_request){.op = DIBS_OP_ONCE_BEGIN, .name = key});
    assert_status(o.err.status, DIBS_CRASHED);
    run = o.once;
    o = make(d, (dibs_request){.op = DIBS_OP_ONCE_RERUN, .once = run});
    assert_status(o.err.status, DIBS_OK);
    assert_memory_equal(dibs_once_step_data(run, "paid", &size), "7", 1);
    for (dibs_op op = DIBS_OP_ONCE_FINISH; op <= DIBS_OP_ONCE_FAIL; op++) /* the code is an int */
        assert_status(dibs_start(d,
                                 &(dibs_request){.op = op, .once = run, .number = INT64_C(1) << 32},
                                 NULL, NULL),
                      DIBS_INVALID);
    o = make(d, (dibs_request){
                    .op = DIBS_OP_ONCE_FINISH, .once = run, .data = "ok", .size = 2, .number = 42});
    assert_status(o.err.status, DIBS_OK);
    dibs_once_free(run);
    o = make(d, (dibs_request){.op = DIBS_OP_ONCE_BEGIN, .name = key});
    assert_status(o.err.status, DIBS_ALREADY);
    assert_int_equal(dibs_once_code(o.once), 42);
    assert_memory_equal(dibs_once_result(o.once, &size), "ok", 2);
    dibs_once_free(o.once);
    run = begin_run(d, fresh("op-undo"));
    assert_status(make(d, (dibs_request){.op = DIBS_OP_ONCE_UNDO, .once = run}).err.status,
                  DIBS_OK);
    dibs_once_free(run);
    run = begin_run(d, fresh("op-fail"));
    o = make(d, (dibs_request){.op = DIBS_OP_ONCE_FAIL, .once = run, .number = 3});
    assert_status(o.err.status, DIBS_OK);
    dibs_once_free(run);
    expect_none(d);
}

/* As with a grant: its own handle's mutex guards it. */
static void a_run_of_another_handle_is_refused(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    dibs_error err = {0};
    dibs_once *run;
    uint64_t id = 1;

    (void)state;
    if (!the.can.cells)
        skip();
    run = begin_run(a, fresh("op-foreign"));
    for (dibs_op op = DIBS_OP_ONCE_WAIT; op <= DIBS_OP_ONCE_ABANDON; op++) {
        if (dibs_start(b, &(dibs_request){.op = op, .once = run, .name = "step"}, &id, &err) !=
            DIBS_INVALID)
            fail_msg("op %d was not refused", (int)op);
        assert_non_null(strstr(err.message, "of this handle"));
        assert_int_equal(id, 0);
    }
    expect_none(b);
    assert_status(make(a, (dibs_request){.op = DIBS_OP_ONCE_FINISH, .once = run}).err.status,
                  DIBS_OK);
    dibs_once_free(run);
}

static void keys_by_request(void **state)
{
    dibs *d = open_handle();
    const char *key = fresh("op-key");
    dibs_outcome o;
    dibs_once *run;

    (void)state;
    if (!the.can.cells)
        skip();
    run = begin_run(d, key);
    assert_status(dibs_once_abandon(run, NULL), DIBS_OK);
    dibs_once_free(run);
    o = make(d, (dibs_request){.op = DIBS_OP_ONCE_INSPECT, .name = key});
    assert_status(o.err.status, DIBS_OK);
    assert_int_equal(dibs_once_report_at(o.once_report, 0)->state, DIBS_ONCE_CRASHED);
    dibs_once_report_free(o.once_report);
    o = make(d, (dibs_request){.op = DIBS_OP_ONCE_RESOLVE,
                               .name = key,
                               .options.once_resolve = &(dibs_once_resolve_options){
                                   .outcome = DIBS_ONCE_DONE, .result = "paid", .size = 4}});
    assert_status(o.err.status, DIBS_OK);
    o = make(d, (dibs_request){.op = DIBS_OP_ONCE_LIST,
                               .name = key,
                               .options.once_list = &(dibs_once_list_options){.limit = 10}});
    assert_status(o.err.status, DIBS_OK);
    assert_int_equal(dibs_once_report_count(o.once_report), 1);
    assert_int_equal(dibs_once_report_at(o.once_report, 0)->state, DIBS_ONCE_DONE);
    dibs_once_report_free(o.once_report);
    o = make(d, (dibs_request){.op = DIBS_OP_ONCE_FORGET, .name = key});
    assert_status(o.err.status, DIBS_OK);
    dibs_once_free(begin_run(d, key));
}

/* The texts of the options are copied: the caller's are gone when a worker reads them. */
static void keys_of_a_scope_by_request(void **state)
{
    dibs *d = open_handle();
    const char *key = fresh("op-scope");
    char scope[] = "pay", by[] = "alice";
    dibs_once_options options = {.scope = "pay"};
    dibs_outcome o;
    uint64_t id;

    (void)state;
    if (!the.can.cells)
        skip();
    o = make(d, (dibs_request){.op = DIBS_OP_ONCE_BEGIN, .name = key, .options.once = &options});
    assert_status(o.err.status, DIBS_OK);
    assert_status(dibs_once_abandon(o.once, NULL), DIBS_OK);
    dibs_once_free(o.once);
    id = begin(d, (dibs_request){.op = DIBS_OP_ONCE_FORGET,
                                 .name = key,
                                 .options.once_forget =
                                     &(dibs_once_forget_options){.scope = scope, .by = by}});
    memset(by, 'x', sizeof by - 1);
    assert_status(outcome_of(d, id).err.status, DIBS_OK);
    id = begin(
        d, (dibs_request){.op = DIBS_OP_ONCE_INSPECT,
                          .name = key,
                          .options.once_inspect = &(dibs_once_inspect_options){.scope = scope}});
    memset(scope, 'x', sizeof scope - 1);
    o = outcome_of(d, id);
    assert_status(o.err.status, DIBS_OK);
    assert_string_equal(dibs_once_report_at(o.once_report, 0)->decided_by, "alice");
    dibs_once_report_free(o.once_report);
    o = make(d, (dibs_request){.op = DIBS_OP_ONCE_INSPECT, .name = key});
    assert_status(o.err.status, DIBS_NOT_FOUND); /* without the scope it is another key */
}

/* Also one that waits: its wake-up names an attempt with a secret. */
static void a_portable_grant_by_request(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("op-portable");
    dibs_grant *g = take(a, name, NULL);
    dibs_lock_options portable = {.portable = true};
    char text[DIBS_GRANT_SIZE];
    dibs_outcome o;
    uint64_t id;

    (void)state;
    if (the.can.lease_of_handle)
        skip();
    id = begin(b, (dibs_request){.op = DIBS_OP_LOCK, .name = name, .options.lock = &portable});
    wait_for_queue(a, name, 1);
    unlock(g);
    o = outcome_of(b, id);
    assert_status(o.err.status, DIBS_OK);
    assert_status(dibs_grant_export(o.grant, text, NULL), DIBS_OK);
    g = o.grant;
    o = make(a, (dibs_request){.op = DIBS_OP_GRANT_ADOPT,
                               .name = text,
                               .options.lock = &(dibs_lock_options){.slots = 2}});
    assert_status(o.err.status, DIBS_INVALID); /* these are the grant's */
    o = make(a, (dibs_request){.op = DIBS_OP_GRANT_ADOPT, .name = text});
    assert_status(o.err.status, DIBS_OK);
    assert_int_equal(dibs_grant_fence(o.grant), dibs_grant_fence(g));
    assert_status(make(a, (dibs_request){.op = DIBS_OP_UNLOCK, .grant = o.grant}).err.status,
                  DIBS_OK);
    o = make(a, (dibs_request){.op = DIBS_OP_GRANT_ADOPT, .name = text});
    assert_status(o.err.status, DIBS_LOST);
    unlock(g);
}

/* ---- Waiting ----------------------------------------------------------------------------------- */

static void a_begin_waits_for_anothers_run(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *key = fresh("op-wait");
    dibs_once *run;
    dibs_outcome o;
    uint64_t id, other;

    (void)state;
    if (!the.can.cells)
        skip();
    run = begin_run(a, key);
    o = make(b, (dibs_request){.op = DIBS_OP_ONCE_BEGIN,
                               .name = key,
                               .options.once = &(dibs_once_options){.wait_ms = 100}});
    assert_status(o.err.status, DIBS_RUNNING);
    other = begin(b, (dibs_request){.op = DIBS_OP_ONCE_WAIT, .once = o.once, .number = LONG_MS});
    sleep_ms(100);
    dibs_stop(b, other);
    assert_status(outcome_of(b, other).err.status, DIBS_CANCELLED);
    dibs_once_free(o.once);
    id = begin(b, (dibs_request){.op = DIBS_OP_ONCE_BEGIN, .name = key});
    sleep_ms(50);
    expect_none(b);
    assert_status(dibs_once_finish(run, "done", 4, 0, NULL), DIBS_OK);
    o = outcome_of(b, id);
    assert_status(o.err.status, DIBS_ALREADY);
    dibs_once_free(o.once);
    dibs_once_free(run);
}

static void waits_for_runs_are_stopped(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *key = fresh("op-stop");
    dibs_once *run;
    uint64_t id[3];

    (void)state;
    if (!the.can.cells)
        skip();
    run = begin_run(a, key);
    for (int i = 0; i < 3; i++)
        id[i] = begin(b, (dibs_request){.op = DIBS_OP_ONCE_BEGIN, .name = key});
    dibs_stop(b, id[0]); /* perhaps before it was sent */
    assert_status(outcome_of(b, id[0]).err.status, DIBS_CANCELLED);
    sleep_ms(50);
    dibs_stop(b, id[1]);
    dibs_stop(b, id[1]);
    dibs_stop(b, id[0]);
    dibs_stop(b, 0);
    assert_status(outcome_of(b, id[1]).err.status, DIBS_CANCELLED);
    dibs_cancel(b, NULL);
    assert_status(outcome_of(b, id[2]).err.status, DIBS_CANCELLED);
    expect_none(b);
    dibs_once_free(run);
}

static void a_break_waits_for_the_holder(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("op-break");
    dibs_grant *g = take(a, name, NULL);
    uint64_t id = begin(
        b, (dibs_request){.op = DIBS_OP_LOCK_BREAK,
                          .name = name,
                          .options.lock_break = &(dibs_lock_break_options){.by = "operator"}});
    dibs_outcome o;

    (void)state;
    assert_true(take_soon(a, &o)); /* the holder hears of it */
    assert_int_equal(o.op, DIBS_OP_LOST);
    assert_int_equal(o.loss, DIBS_LOSS_BROKEN);
    assert_ptr_equal(o.grant, g);
    expect_none(b);
    assert_status(unlock(g), DIBS_LOST);
    assert_status(outcome_of(b, id).err.status, DIBS_OK);
}

/* Queued, sent, or waiting for the holder: dibs_cancel ends it by the lock's name. */
static void breaks_are_cancelled(void **state)
{
    dibs *a = open_for_load(), *b = open_handle();
    const char *x = fresh("op-cancel-x"), *y = fresh("op-cancel-y");
    dibs_lock_options deaf = {.no_renew = true};
    dibs_grant *g = take(a, x, &deaf), *h = take(a, y, &deaf);
    uint64_t first = begin(b, (dibs_request){.op = DIBS_OP_LOCK_BREAK, .name = x});
    uint64_t second = begin(b, (dibs_request){.op = DIBS_OP_LOCK_BREAK, .name = y});

    (void)state;
    dibs_cancel(b, fresh("nobody breaks this"));
    sleep_ms(50);
    expect_none(b);
    dibs_cancel(b, x);
    assert_status(outcome_of(b, first).err.status, DIBS_CANCELLED);
    expect_none(b);
    dibs_cancel(b, NULL);
    assert_status(outcome_of(b, second).err.status, DIBS_CANCELLED);
    expect_none(b);
    unlock(g);
    unlock(h);
}

/* ---- What is refused --------------------------------------------------------------------------- */

static void what_makes_no_sense_is_refused(void **state)
{
    dibs *d = open_handle();
    static char large[DIBS_VALUE_MAX + 1], name[DIBS_NAME_MAX + 2];
    const dibs_request wrong[] = {
        {.op = (dibs_op)0},
        {.op = DIBS_OP_LOST},
        {.op = (dibs_op)999},
        {.op = DIBS_OP_UNLOCK},
        {.op = DIBS_OP_RENEW},
        {.op = DIBS_OP_ONCE_FINISH},
        {.op = DIBS_OP_ONCE_WAIT},
        {.op = DIBS_OP_LOCK},
        {.op = DIBS_OP_LOCK, .name = ""},
        {.op = DIBS_OP_CELL_SWAP, .name = "x", .data = large, .size = sizeof large},
        {.op = DIBS_OP_CELL_SWAP, .name = "x", .size = 1},
        {.op = DIBS_OP_CELL_READ, .name = "x", .reserved = {[7] = 1}},
    };
    dibs_outcome o;
    uint64_t id = 1;

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (dibs_start(d, &wrong[i], &id, NULL) != DIBS_INVALID)
            fail_msg("request %zu was not refused", i);
        assert_int_equal(id, 0);
    }
    memset(name, 'n', sizeof name - 1);
    o = make(d, (dibs_request){.op = DIBS_OP_LOCK_INSPECT, .name = name});
    assert_status(o.err.status, DIBS_INVALID); /* as the blocking call */
    assert_null(o.lock_report);
    o = make(d, (dibs_request){.op = DIBS_OP_LOCK_BREAK});
    assert_status(o.err.status, DIBS_INVALID);
    expect_none(d);
}

/* ---- Draining ---------------------------------------------------------------------------------- */

#define WAITING 20

static void a_drained_handle_has_every_outcome(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *held = fresh("op-held"), *wanted = fresh("op-wanted"), *key = fresh("op-key");
    dibs_grant *g = take(a, wanted, NULL);
    uint64_t last;
    int cancelled = 0;
    dibs_outcome o;

    (void)state;
    take(b, held, NULL);
    for (int i = 0; i < WAITING; i++)
        begin(b, (dibs_request){.op = DIBS_OP_LOCK, .name = wanted});
    if (the.can.cells)
        begin_run(b, key);
    wait_for_queue(a, wanted, WAITING);
    last = begin(b, (dibs_request){.op = DIBS_OP_DRAIN});
    assert_status(dibs_start(b, &(dibs_request){.op = DIBS_OP_LOCK, .name = "x"}, NULL, NULL),
                  DIBS_CANCELLED);
    for (;;) {
        assert_true(take_soon(b, &o));
        if (o.id == last)
            break;
        assert_status(o.err.status, DIBS_CANCELLED);
        cancelled++;
    }
    assert_status(o.err.status, DIBS_OK);
    assert_int_equal(cancelled, WAITING);
    assert_false(dibs_take(b, &o));
    assert_status(try_lock(a, held), DIBS_OK); /* before it is closed */
    wait_for_queue(a, wanted, 0);
    if (the.can.cells) {
        dibs_once *run = NULL;
        assert_status(dibs_once_begin(a, key, NULL, &run, NULL), DIBS_CRASHED);
        dibs_once_free(run);
    }
    close_handle(b);
    unlock(g);
}

/* Nobody takes anything: closing frees all of it, and the engine gets back what it had given. */
static void closing_forgets_outcomes(void **state)
{
    dibs *a = open_handle(), *b = NULL;
    const char *name = fresh("op-closed"), *key = fresh("op-closed");

    (void)state;
    assert_status(dibs_open(the.url, NULL, &b, NULL), DIBS_OK);
    begin(b, (dibs_request){.op = DIBS_OP_LOCK, .name = name});
    begin(b, (dibs_request){.op = DIBS_OP_LOCK, .name = name});
    begin(b, (dibs_request){.op = DIBS_OP_LOCK_LIST});
    if (the.can.cells) {
        begin(b, (dibs_request){.op = DIBS_OP_ONCE_BEGIN, .name = key});
        begin(b, (dibs_request){.op = DIBS_OP_ONCE_BEGIN, .name = key});
        begin(b, (dibs_request){.op = DIBS_OP_CELL_READ, .name = key});
    }
    sleep_ms(100);
    dibs_close(b);
    assert_status(try_lock(a, name), DIBS_OK);
}

/* ---- The engine hangs -------------------------------------------------------------------------- */

#define PENDING          5000
#define REQUEST_MS       2000
#define LEASE_MS         50000
#define CROWD_SESSION_MS 20000
#define CLOSE_MS         2000 /* what dibs.h allows beyond a request when the handle is closed */
#define BLOCKED_US       1000

typedef struct tally {
    int outcomes[2 * PENDING]; /* of each id */
    uint64_t first;            /* id */
    int ok, unsent, other;
    int64_t slowest_us; /* what a call slept */
    int slow;           /* calls that slept for more than a millisecond */
    int64_t leases_end; /* of the first lock, on a machine that took that long: it may be lost */
} tally;

static int64_t clock_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* The time in which this thread ran, or waited for a processor: the machine is shared. */
static int64_t busy_us(void)
{
    static _Thread_local int fd = -1;
    char text[80] = "";
    long long ran = 0, queued = 0;

    if (fd < 0)
        fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (pread(fd, text, sizeof text - 1, 0) <= 0 || sscanf(text, "%lld %lld", &ran, &queued) != 2)
        return 0; /* without such figures all of it counts */
    return (ran + queued) / 1000;
}

static void start_timed(dibs *d, const dibs_request *r, tally *t)
{
    int64_t busy = busy_us(), before = clock_us(), took;
    uint64_t id;

    assert_status(dibs_start(d, r, &id, NULL), DIBS_OK);
    took = clock_us() - before - (busy_us() - busy);
    t->slow += took > BLOCKED_US;
    t->slowest_us = took > t->slowest_us ? took : t->slowest_us;
    t->first = t->first ? t->first : id;
}

static void count(tally *t, const dibs_outcome *o)
{
    if (o->id - t->first >= 2 * PENDING)
        fail_msg("outcome %d of no request of these: %s, %lld ms before the leases end", o->op,
                 o->err.message, (long long)(t->leases_end - clock_ms()));
    t->outcomes[o->id - t->first]++;
    if (o->err.status == DIBS_OK)
        t->ok++;
    else if (o->err.status == DIBS_UNAVAILABLE || o->err.status == DIBS_UNKNOWN ||
             o->err.status == DIBS_CANCELLED ||
             (o->err.status == DIBS_LOST && clock_ms() > t->leases_end))
        t->unsent++;
    else
        t->other++;
}

/* The next outcome. A machine that takes that long may lose locks that nobody renews. */
static void take_next(dibs *d, const tally *t, dibs_outcome *o)
{
    do {
        if (!take_soon(d, o))
            fail_msg("there is no other outcome");
    } while (o->op == DIBS_OP_LOST && clock_ms() > t->leases_end);
}

/* So many locks that are held, and then so many requests for another that are out when the server stops, and so
 * many unlocks. */
static dibs *start_all(tally *t)
{
    int64_t lease_ms = the.can.lease_of_handle ? CROWD_SESSION_MS : LEASE_MS;
    dibs *d = open_with(&(dibs_options){.request_ms = REQUEST_MS, .lease_ms = lease_ms});
    const dibs_lock_options quiet = {.no_renew = true};
    static dibs_grant *grant[PENDING];
    char name[64];
    dibs_outcome o;

    *t = (tally){.leases_end = clock_ms() + lease_ms / 10 * (the.can.lease_of_handle ? 4 : 9)};
    for (int i = 0; i < PENDING; i++) {
        snprintf(name, sizeof name, "%s-%d", fresh("op-hung"), i);
        begin(d, (dibs_request){.op = DIBS_OP_LOCK, .name = name, .options.lock = &quiet});
    }
    for (int i = 0; i < PENDING; i++) {
        take_next(d, t, &o);
        grant[i] = o.grant;
        if (!o.grant)
            fail_msg("%d locks, then: %s", i, o.err.message);
    }
    if (!pause_server())
        skip();
    for (int i = 0; i < PENDING; i++) {
        start_timed(d, &(dibs_request){.op = DIBS_OP_UNLOCK, .grant = grant[i]}, t);
        start_timed(d, &(dibs_request){.op = DIBS_OP_LOCK, .name = "op-hung"}, t);
    }
    return d;
}

/* None blocks, but for a thread of the library that was stopped inside the mutex, by chance. */
static void check_all(const tally *t)
{
    print_message("# %s: %d done, %d not; a start slept for at most %lld us, %d for more than %d\n",
                  the.engine, t->ok, t->unsent, (long long)t->slowest_us, t->slow, BLOCKED_US);
    for (int i = 0; i < 2 * PENDING; i++)
        assert_int_equal(t->outcomes[i], 1);
    assert_int_equal(t->other, 0);
    assert_in_range(t->slow, 0, 2 * PENDING / 1000);
}

static void take_outcomes(dibs *d, tally *t, int n)
{
    dibs_outcome o;

    for (int i = 0; i < n; i++) {
        take_next(d, t, &o);
        count(t, &o);
    }
}

static void expect_drained(dibs *d, uint64_t id)
{
    dibs_outcome o = outcome_of(d, id);

    assert_int_equal(o.op, DIBS_OP_DRAIN);
    expect_none(d);
}

static void nothing_blocks_when_the_engine_hangs(void **state)
{
    static tally t;
    dibs *d = start_all(&t);

    (void)state;
    sleep_ms(REQUEST_MS / 2);
    continue_server();
    take_outcomes(d, &t,
                  PENDING); /* the unlocks, or some of the locks that were not sent in time */
    uint64_t drain = begin(d, (dibs_request){.op = DIBS_OP_DRAIN});
    take_outcomes(d, &t, PENDING);
    expect_drained(d, drain);
    check_all(&t);
}

/* The same when the handle is drained meanwhile: nothing waits for the engine. */
static void a_hung_engine_keeps_no_outcome(void **state)
{
    static tally t;
    dibs *d = start_all(&t);
    int64_t began = clock_ms();
    uint64_t drain = begin(d, (dibs_request){.op = DIBS_OP_DRAIN});

    (void)state;
    take_outcomes(d, &t, 2 * PENDING);
    expect_drained(d, drain);
    assert_in_range(clock_ms() - began, 0, REQUEST_MS + CLOSE_MS + SOON_MS);
    began = clock_ms();
    close_handle(d);
    assert_in_range(clock_ms() - began, 0, SOON_MS);
    check_all(&t);
}

/* And when nobody takes them: closing has its bound, and leaves nothing. */
static void a_hung_engine_keeps_no_handle(void **state)
{
    static tally t;
    dibs *d = start_all(&t);
    int64_t began = clock_ms();

    (void)state;
    close_handle(d);
    assert_in_range(clock_ms() - began, 0, REQUEST_MS + CLOSE_MS + SOON_MS);
}

static const struct CMUnitTest tests[] = {
    CASE(locks_by_request),
    CASE(a_reentrant_lock_is_unlocked_level_by_level),
    CASE(values_by_request),
    CASE(a_cell_is_written_under_a_grant),
    CASE(counters_and_tokens_by_request),
    CASE(runs_by_request),
    CASE(a_run_of_another_handle_is_refused),
    CASE(keys_by_request),
    CASE(keys_of_a_scope_by_request),
    CASE(a_portable_grant_by_request),
    CASE(a_begin_waits_for_anothers_run),
    CASE(waits_for_runs_are_stopped),
    CASE(a_break_waits_for_the_holder),
    CASE(breaks_are_cancelled),
    CASE(what_makes_no_sense_is_refused),
    CASE(a_drained_handle_has_every_outcome),
    CASE(closing_forgets_outcomes),
    CASE(nothing_blocks_when_the_engine_hangs),
    CASE(a_hung_engine_keeps_no_outcome),
    CASE(a_hung_engine_keeps_no_handle),
};
CASES(operation_cases, tests);
