/* What holds for every public call: what is left in the caller's dibs_error, and which durations are
 * taken. tests/test_exports.sh checks that no call is missing here. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The error after a call ------------------------------------------------------------------ */

static dibs_error err;

/* What an earlier call may have left. */
static dibs_error *used(void)
{
    err.status = DIBS_STALE;
    strcpy(err.message, "left by an earlier call");
    return &err;
}

static void check(const char *call, dibs_status got, dibs_status want)
{
    bool failed = got != DIBS_OK;

    if (got != want)
        fail_msg("%s: %s, not %s: %s", call, dibs_status_name(got), dibs_status_name(want),
                 err.message);
    if (err.status != got)
        fail_msg("%s returned %s and left err.status = %s", call, dibs_status_name(got),
                 dibs_status_name(err.status));
    if (failed ? strlen(err.message) < 10 : err.message[0] != '\0')
        fail_msg("%s returned %s and left the message '%s'", call, dibs_status_name(got),
                 err.message);
    if (strstr(err.message, "left by"))
        fail_msg("%s left the message of an earlier call", call);
}

#define CHECK(call, want) check(#call, call, want)

static void note_ticket(void *data, dibs_status status, dibs_grant *g, const dibs_error *e)
{
    assert_status(status, DIBS_OK);
    assert_int_equal(e->status, DIBS_OK);
    assert_string_equal(e->message, "");
    *(dibs_grant **)data = g;
}

static void check_ticket(dibs *d)
{
    dibs_grant *g = NULL;
    int64_t end = clock_ms() + LONG_MS;

    CHECK(dibs_lock_start(d, fresh("ticket"), NULL, note_ticket, &g, NULL, used()), DIBS_OK);
    while (!g && clock_ms() < end) {
        dibs_dispatch(d);
        sleep_ms(5);
    }
    assert_non_null(g);
    dibs_unlock(g);
    CHECK(dibs_lock_start(d, "", NULL, note_ticket, &g, NULL, used()), DIBS_INVALID);
}

static void a_lock_leaves_no_old_error(void **state)
{
    dibs *d = NULL, *other = open_handle();
    const char *name = fresh("call");
    const char *const names[] = {fresh("one"), fresh("two")};
    dibs_grant *g = NULL, *both[2] = {NULL, NULL};
    dibs_report *r = NULL;

    (void)state;
    CHECK(dibs_open(the.url, NULL, &d, used()), DIBS_OK);
    CHECK(dibs_inspect(d, name, &r, used()), DIBS_NOT_FOUND);
    CHECK(dibs_break(d, name, "me", true, 0, used()), DIBS_NOT_FOUND);
    CHECK(dibs_lock(d, name, NULL, &g, used()), DIBS_OK);
    CHECK(dibs_lock(d, name, NULL, &g, used()), DIBS_OK); /* one level deeper */
    CHECK(dibs_lock(other, name, &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT}, &both[0], used()),
          DIBS_BUSY);
    CHECK(dibs_renew(g, used()), DIBS_OK);
    CHECK(dibs_inspect(d, name, &r, used()), DIBS_OK);
    dibs_report_free(r);
    CHECK(dibs_list(d, name, false, &r, used()), DIBS_OK);
    dibs_report_free(r);
    CHECK(dibs_break(d, name, "me", true, 0, used()), DIBS_OK);
    dibs_unlock(g);
    dibs_unlock(g);
    CHECK(dibs_lock_many(d, names, 2, NULL, both, used()), DIBS_OK);
    dibs_unlock(both[0]);
    dibs_unlock(both[1]);
    check_ticket(d);
    dibs_close(d);
}

static void a_schema_leaves_no_old_error(void **state)
{
    char *sql = NULL, *url = NULL;
    dibs_findings *found = NULL;
    uint64_t top;
    dibs_status status = dibs_schema(the.url, &sql, used());

    (void)state;
    check("dibs_schema", status, sql ? DIBS_OK : DIBS_UNSUPPORTED);
    free(sql);
    status = dibs_examine(the.url, NULL, &found, used());
    check("dibs_examine", status, found ? DIBS_OK : DIBS_UNSUPPORTED);
    dibs_findings_free(found);
    CHECK(dibs_fence_top(open_handle(), &top, used()), DIBS_OK);
    CHECK(dibs_url_read("no/such/file", &url, used()), DIBS_INVALID);
    assert_null(url);
}

static void a_cell_leaves_no_old_error(void **state)
{
    dibs *d = open_handle();
    const char *cell = fresh("cell"), *counter = fresh("counter");
    const dibs_counter_options same = {.request = "r1"};
    dibs_value v = {0};
    int64_t n;

    (void)state;
    if (!the.can.cells)
        return;
    CHECK(dibs_cell_read(d, cell, &v, used()), DIBS_NOT_FOUND);
    CHECK(dibs_fence_pass(d, cell, 7, 0, &v, used()), DIBS_OK); /* there is no value yet */
    CHECK(dibs_cell_swap(d, cell, 0, "x", 1, NULL, NULL, used()), DIBS_OK);
    CHECK(dibs_cell_swap(d, cell, 0, "x", 1, NULL, NULL, used()), DIBS_CONFLICT);
    CHECK(dibs_fence_pass(d, cell, 8, 0, &v, used()), DIBS_OK);
    dibs_value_free(&v);
    CHECK(dibs_fence_pass(d, cell, 7, 0, NULL, used()), DIBS_LOST);
    CHECK(dibs_cell_read(d, cell, &v, used()), DIBS_OK);
    dibs_value_free(&v);
    CHECK(dibs_cell_delete(d, cell, DIBS_ANY_VERSION, NULL, used()), DIBS_OK);
    CHECK(dibs_counter_get(d, counter, &n, used()), DIBS_NOT_FOUND);
    CHECK(dibs_counter_set(d, counter, 5, NULL, used()), DIBS_OK);
    CHECK(dibs_counter_get(d, counter, &n, used()), DIBS_OK);
    CHECK(dibs_counter_add(d, counter, 1, &same, &n, used()), DIBS_OK);
    CHECK(dibs_counter_add(d, counter, 1, &same, &n, used()), DIBS_ALREADY);
    CHECK(dibs_counter_take(d, counter, 2, NULL, &n, used()), DIBS_OK);
    CHECK(dibs_counter_take(d, counter, 9, NULL, &n, used()), DIBS_TOO_FEW);
}

static void a_run_leaves_no_old_error(void **state)
{
    dibs *d = open_handle();
    const char *key = fresh("run");
    dibs_once_options o = {.wait_ms = DIBS_NO_WAIT};
    dibs_once *first = NULL, *second = NULL;

    (void)state;
    if (!the.can.cells)
        return;
    CHECK(dibs_once_begin(d, key, &o, &first, used()), DIBS_OK);
    CHECK(dibs_once_begin(d, key, &o, &second, used()), DIBS_RUNNING);
    CHECK(dibs_once_step(first, "half", "x", 1, used()), DIBS_OK);
    CHECK(dibs_once_wait(second, DIBS_NO_WAIT, used()), DIBS_RUNNING);
    CHECK(dibs_once_finish(first, "done", 4, 0, used()), DIBS_OK);
    CHECK(dibs_once_wait(second, 1000, used()), DIBS_ALREADY);
    dibs_once_free(first);
    dibs_once_free(second);
    CHECK(dibs_once_begin(d, key, &o, &first, used()), DIBS_ALREADY);
    dibs_once_free(first);
    CHECK(dibs_once_begin(d, fresh("fails"), &o, &first, used()), DIBS_OK);
    CHECK(dibs_once_fail(first, false, NULL, 0, 1, used()), DIBS_OK);
    dibs_once_free(first);
    key = fresh("left");
    CHECK(dibs_once_begin(d, key, &o, &first, used()), DIBS_OK);
    CHECK(dibs_once_abandon(first, used()), DIBS_OK);
    CHECK(dibs_once_begin(d, key, &o, &second, used()), DIBS_CRASHED);
    dibs_once_free(first);
    dibs_once_free(second);
}

static void a_token_leaves_no_old_error(void **state)
{
    dibs *d = open_handle();
    char token[DIBS_TOKEN_SIZE], next[DIBS_TOKEN_SIZE];

    (void)state;
    if (!the.can.cells)
        return;
    CHECK(dibs_token_issue(d, NULL, token, used()), DIBS_OK);
    CHECK(dibs_token_reissue(d, NULL, token, next, used()), DIBS_REFUSED);
    CHECK(dibs_token_redeem(d, NULL, token, used()), DIBS_OK);
    CHECK(dibs_token_redeem(d, NULL, token, used()), DIBS_REFUSED);
    CHECK(dibs_token_reissue(d, NULL, token, next, used()), DIBS_OK);
}

/* ---- Durations ------------------------------------------------------------------------------- */

#define CENTURY_MS ((int64_t)100 * 365 * 24 * 3600 * 1000)

/* Calls with one duration, and expects `want`. */
typedef dibs_status (*span_fn)(dibs *d, int64_t ms);

static dibs_status opened(const dibs_options *o)
{
    dibs *d = NULL;
    dibs_status status = dibs_open(the.url, o, &d, &err);

    dibs_close(d);
    return status;
}

static dibs_status connect_ms(dibs *d, int64_t ms)
{
    (void)d;
    return opened(&(dibs_options){.connect_ms = ms});
}

static dibs_status request_ms(dibs *d, int64_t ms)
{
    (void)d;
    return opened(&(dibs_options){.request_ms = ms});
}

static dibs_status handle_lease_ms(dibs *d, int64_t ms)
{
    (void)d;
    return opened(&(dibs_options){.lease_ms = ms});
}

/* By each of the three calls, which must agree. */
static dibs_status locked(dibs *d, dibs_lock_options o)
{
    const char *names[] = {fresh("span"), fresh("spans")};
    dibs_grant *g = NULL, *both[2] = {NULL, NULL};
    dibs_ticket *t = NULL;
    dibs_status status = dibs_lock(d, names[0], &o, &g, &err);

    dibs_unlock(g);
    assert_int_equal(dibs_lock_many(d, names, 2, &o, both, &err), status);
    dibs_unlock(both[0]);
    dibs_unlock(both[1]);
    if (status != DIBS_OK)
        assert_int_equal(dibs_lock_start(d, names[0], &o, note_ticket, &g, &t, &err), status);
    return status;
}

static dibs_status wait_ms(dibs *d, int64_t ms)
{
    return locked(d, (dibs_lock_options){.wait_ms = ms});
}

static dibs_status lease_ms(dibs *d, int64_t ms)
{
    return locked(d, (dibs_lock_options){.lease_ms = ms});
}

static dibs_status max_hold_ms(dibs *d, int64_t ms)
{
    return locked(d, (dibs_lock_options){.max_hold_ms = ms});
}

static dibs_status min_hold_ms(dibs *d, int64_t ms)
{
    return locked(d, (dibs_lock_options){.min_hold_ms = ms});
}

static dibs_status break_wait_ms(dibs *d, int64_t ms)
{
    const char *name = fresh("broken");
    dibs_grant *g = take(d, name, NULL);
    dibs_status status = dibs_break(d, name, "me", true, ms, &err);

    dibs_unlock(g);
    return status;
}

static dibs_status cell_keep_ms(dibs *d, int64_t ms)
{
    return dibs_cell_swap(d, fresh("kept"), 0, "x", 1, &(dibs_cell_options){.keep_ms = ms}, NULL,
                          &err);
}

static dibs_status counter_keep_ms(dibs *d, int64_t ms)
{
    const dibs_counter_options o = {.request = "r", .keep_ms = ms};
    const char *name = fresh("kept");
    dibs_status status = dibs_counter_set(d, name, 9, &o, &err);

    if (status != DIBS_OK) {
        assert_int_equal(dibs_counter_add(d, name, 1, &o, NULL, &err), status);
        assert_int_equal(dibs_counter_take(d, name, 1, &o, NULL, &err), status);
    }
    return status;
}

static dibs_status begun(dibs *d, const dibs_once_options *o)
{
    dibs_once *run = NULL;
    dibs_status status = dibs_once_begin(d, fresh("begun"), o, &run, &err);

    dibs_once_free(run);
    return status;
}

static dibs_status once_lease_ms(dibs *d, int64_t ms)
{
    return begun(d, &(dibs_once_options){.lease_ms = ms});
}

static dibs_status once_keep_ms(dibs *d, int64_t ms)
{
    return begun(d, &(dibs_once_options){.keep_ms = ms});
}

static dibs_status tombstone_ms(dibs *d, int64_t ms)
{
    return begun(d, &(dibs_once_options){.keep_ms = ms, .tombstone_ms = ms});
}

static dibs_status once_wait_ms(dibs *d, int64_t ms)
{
    return begun(d, &(dibs_once_options){.wait_ms = ms});
}

/* Of a run that is not in the way any more. */
static dibs_status waited_ms(dibs *d, int64_t ms)
{
    const dibs_once_options o = {.wait_ms = DIBS_NO_WAIT};
    const char *key = fresh("waited");
    dibs_once *first = NULL, *second = NULL;
    dibs_status status;

    assert_status(dibs_once_begin(d, key, &o, &first, &err), DIBS_OK);
    assert_status(dibs_once_begin(d, key, &o, &second, &err), DIBS_RUNNING);
    assert_status(dibs_once_finish(first, NULL, 0, 0, &err), DIBS_OK);
    status = dibs_once_wait(second, ms, &err);
    dibs_once_free(first);
    dibs_once_free(second);
    return status == DIBS_ALREADY ? DIBS_OK : status;
}

static dibs_status ttl_ms(dibs *d, int64_t ms)
{
    const dibs_token_options o = {.ttl_ms = ms};
    char token[DIBS_TOKEN_SIZE], next[DIBS_TOKEN_SIZE];
    dibs_status status = dibs_token_issue(d, &o, token, &err);

    if (status != DIBS_OK)
        assert_int_equal(dibs_token_reissue(d, &o, "none", next, &err), status);
    return status;
}

/* `minus`: DIBS_NO_WAIT or DIBS_FOREVER has a meaning. `most`: 0: depends on the engine. */
static const struct {
    span_fn call;
    const char *field; /* as the message names it */
    int64_t most;
    bool minus, of_cells;
} spans[] = {
    {connect_ms, "connect_ms", CENTURY_MS, false, false},
    {request_ms, "request_ms", CENTURY_MS, false, false},
    {handle_lease_ms, "lease_ms", 0, false, false},
    {wait_ms, "wait_ms", CENTURY_MS, true, false},
    {lease_ms, "lease_ms", 0, false, false},
    {max_hold_ms, "max_hold_ms", CENTURY_MS, false, false},
    {min_hold_ms, "min_hold_ms", 0, false, false},
    {break_wait_ms, "wait_ms", CENTURY_MS, false, false},
    {cell_keep_ms, "keep_ms", CENTURY_MS, true, true},
    {counter_keep_ms, "keep_ms", CENTURY_MS, true, true},
    {once_lease_ms, "lease_ms", 24 * 3600 * 1000, false, true},
    {once_keep_ms, "keep_ms", CENTURY_MS, true, true},
    {tombstone_ms, "_ms", CENTURY_MS, true, true},
    {once_wait_ms, "wait_ms", CENTURY_MS, true, true},
    {waited_ms, "wait_ms", CENTURY_MS, true, true},
    {ttl_ms, "ttl_ms", CENTURY_MS, false, true},
};

static void refuse_span(dibs *d, size_t i, int64_t ms)
{
    char want[64];
    dibs_status status = spans[i].call(d, ms);

    snprintf(want, sizeof want, "%s = %" PRId64, spans[i].field, ms);
    if (status != DIBS_INVALID || !strstr(err.message, want))
        fail_msg("duration %zu, %s: %s: %s", i, want, dibs_status_name(status), err.message);
}

static void absurd_durations_are_refused(void **state)
{
    const int64_t absurd[] = {INT64_MIN,        INT64_MIN + 1,        -2,       CENTURY_MS + 1,
                              INT64_MAX / 1000, INT64_MAX / 1000 + 1, INT64_MAX};
    dibs *d = open_handle();

    (void)state;
    for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++) {
        if (spans[i].of_cells && !the.can.cells)
            continue;
        for (size_t k = 0; k < sizeof absurd / sizeof absurd[0]; k++)
            refuse_span(d, i, absurd[k]);
        if (!spans[i].minus)
            refuse_span(d, i, -1);
    }
}

static void a_century_is_a_duration(void **state)
{
    dibs *d = open_handle();

    (void)state;
    for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++) {
        if (spans[i].most == 0 || (spans[i].of_cells && !the.can.cells))
            continue;
        dibs_status status = spans[i].call(d, spans[i].most);
        if (status != DIBS_OK)
            fail_msg("duration %zu, %s = %" PRId64 ": %s: %s", i, spans[i].field, spans[i].most,
                     dibs_status_name(status), err.message);
    }
}

static const struct CMUnitTest tests[] = {
    CASE(a_lock_leaves_no_old_error),  CASE(a_schema_leaves_no_old_error),
    CASE(a_cell_leaves_no_old_error),  CASE(a_run_leaves_no_old_error),
    CASE(a_token_leaves_no_old_error), CASE(absurd_durations_are_refused),
    CASE(a_century_is_a_duration),
};
CASES(call_cases, tests);
