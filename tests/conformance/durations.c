/* Which durations the public calls take: one rule for all of them (dibs.h, Durations). */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static dibs_error err;

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

static dibs_status handle_wait_ms(dibs *d, int64_t ms)
{
    (void)d;
    return opened(&(dibs_options){.wait_ms = ms});
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
    uint64_t t = 0;
    dibs_status status = dibs_lock(d, names[0], &o, &g, &err);

    unlock(g);
    assert_int_equal(dibs_lock_many(d, names, 2, &o, both, &err), status);
    unlock(both[0]);
    unlock(both[1]);
    if (status != DIBS_OK)
        assert_int_equal(start_lock(d, names[0], &o, NULL, &g, &t, &err), status);
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
    dibs_status status = dibs_lock_break(
        d, name, &(dibs_lock_break_options){.by = "me", .now = true, .wait_ms = ms}, &err);

    unlock(g);
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

static dibs_status file_wait_ms(dibs *d, int64_t ms)
{
    static scratch folder;
    char path[SCRATCH_MAX];
    dibs_status status;
    int fd;

    (void)d;
    assert_int_equal(scratch_make(&folder), 0);
    scratch_file(&folder, "file", path, sizeof path);
    status = dibs_fence_file(path, "1", ms, &fd, &err);
    if (fd >= 0)
        close(fd);
    scratch_remove(&folder);
    return status;
}

/* Refused before anything is asked; the text is none. */
static dibs_status adopted_max_hold_ms(dibs *d, int64_t ms)
{
    dibs_grant *g = NULL;
    dibs_status status =
        dibs_grant_adopt(d, "text", &(dibs_lock_options){.max_hold_ms = ms}, &g, &err);

    return status == DIBS_UNSUPPORTED || strstr(err.message, "invalid grant") ? DIBS_OK : status;
}

static dibs_status ttl_ms(dibs *d, int64_t ms)
{
    const dibs_token_options o = {.ttl_ms = ms};
    char token[DIBS_TOKEN_SIZE], next[DIBS_TOKEN_SIZE];
    dibs_status status = dibs_token_issue(d, &o, token, &err);

    if (status != DIBS_OK)
        assert_int_equal(dibs_token_reissue(d, "none", &o, next, &err), status);
    return status;
}

/* What else has a meaning: NONE is DIBS_NO_WAIT, LIMITLESS is DIBS_FOREVER. `most`: 0: depends on the engine. */
#define NONE      1
#define LIMITLESS 2
#define WAIT      (NONE | LIMITLESS)

static const struct {
    span_fn call;
    const char *field; /* as the message names it */
    int64_t most;
    int also;
    bool of_cells;
} spans[] = {
    {connect_ms, "connect_ms", CENTURY_MS, 0, false},
    {request_ms, "request_ms", CENTURY_MS, 0, false},
    {handle_wait_ms, "wait_ms", CENTURY_MS, WAIT, false},
    {handle_lease_ms, "lease_ms", 0, 0, false},
    {wait_ms, "wait_ms", CENTURY_MS, WAIT, false},
    {lease_ms, "lease_ms", 0, 0, false},
    {max_hold_ms, "max_hold_ms", CENTURY_MS, LIMITLESS, false},
    {min_hold_ms, "min_hold_ms", 0, 0, false},
    {break_wait_ms, "wait_ms", CENTURY_MS, WAIT, false},
    {cell_keep_ms, "keep_ms", CENTURY_MS, LIMITLESS, true},
    {counter_keep_ms, "keep_ms", CENTURY_MS, LIMITLESS, true},
    {once_lease_ms, "lease_ms", 24 * 3600 * 1000, 0, true},
    {once_keep_ms, "keep_ms", CENTURY_MS, LIMITLESS, true},
    {tombstone_ms, "_ms", CENTURY_MS, LIMITLESS, true},
    {once_wait_ms, "wait_ms", CENTURY_MS, WAIT, true},
    {waited_ms, "wait_ms", CENTURY_MS, WAIT, true},
    {ttl_ms, "ttl_ms", CENTURY_MS, 0, true},
    {file_wait_ms, "wait_ms", CENTURY_MS, WAIT, false},
    {adopted_max_hold_ms, "max_hold_ms", CENTURY_MS, LIMITLESS, false},
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
    const int64_t absurd[] = {INT64_MIN,        INT64_MIN + 1,        -2,           CENTURY_MS + 1,
                              INT64_MAX / 1000, INT64_MAX / 1000 + 1, INT64_MAX - 1};
    dibs *d = open_handle();

    (void)state;
    for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++) {
        if (spans[i].of_cells && !the.can.cells)
            continue;
        for (size_t k = 0; k < sizeof absurd / sizeof absurd[0]; k++)
            refuse_span(d, i, absurd[k]);
        if (!(spans[i].also & NONE))
            refuse_span(d, i, DIBS_NO_WAIT);
        if (!(spans[i].also & LIMITLESS))
            refuse_span(d, i, DIBS_FOREVER);
    }
}

static void accept_span(dibs *d, size_t i, int64_t ms)
{
    dibs_status status = spans[i].call(d, ms);

    if (status != DIBS_OK)
        fail_msg("duration %zu, %s = %" PRId64 ": %s: %s", i, spans[i].field, ms,
                 dibs_status_name(status), err.message);
}

static void a_century_is_a_duration(void **state)
{
    dibs *d = open_handle();

    (void)state;
    for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++) {
        if (spans[i].of_cells && !the.can.cells)
            continue;
        if (spans[i].most > 0)
            accept_span(d, i, spans[i].most);
        if (spans[i].also & NONE)
            accept_span(d, i, DIBS_NO_WAIT);
        if (spans[i].also & LIMITLESS)
            accept_span(d, i, DIBS_FOREVER);
    }
}

/* What a call does not say, the handle says. */
static void the_handle_has_a_default_wait(void **state)
{
    dibs *d = open_handle(), *hasty = open_with(&(dibs_options){.wait_ms = DIBS_NO_WAIT});
    const char *name = fresh("busy");
    dibs_grant *held = take(d, name, NULL), *g = NULL;
    int64_t start = clock_ms();

    (void)state;
    assert_status(dibs_lock(hasty, name, NULL, &g, &err), DIBS_BUSY);
    assert_status(dibs_lock_many(hasty, &name, 1, NULL, &g, &err), DIBS_BUSY);
    assert_true(clock_ms() - start < 5000);
    assert_status(dibs_lock(hasty, name, &(dibs_lock_options){.wait_ms = 500}, &g, &err),
                  DIBS_BUSY);
    assert_status(unlock(held), DIBS_OK);
    g = take(hasty, name, &(dibs_lock_options){.wait_ms = DIBS_FOREVER});
    assert_status(unlock(g), DIBS_OK);
}

static const struct CMUnitTest tests[] = {
    CASE(absurd_durations_are_refused),
    CASE(a_century_is_a_duration),
    CASE(the_handle_has_a_default_wait),
};
CASES(duration_cases, tests);
