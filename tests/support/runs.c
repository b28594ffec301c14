#define _GNU_SOURCE
#include "support/runs.h"

#include "core/error.h"
#include "support/calls.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dibs *a, *b;
dibs_error err;
char line[512];

const dibs_once_options brief = {.lease_ms = LEASE / DIBS__MS, .wait_ms = DIBS_NO_WAIT};
const dibs_once_options rerun = {
    .lease_ms = LEASE / DIBS__MS, .wait_ms = DIBS_NO_WAIT, .on_crash = DIBS_CRASH_RERUN};
const twist untold = {.status = DIBS_UNKNOWN}, lost = {.status = DIBS_UNKNOWN, .stopped = true};

static void note_line(void *data, dibs_log_level level, const char *message)
{
    (void)data;
    (void)level;
    snprintf(line, sizeof line, "%s", message);
}

int runs_begin(void **state)
{
    still_begin(state);
    line[0] = '\0';
    a = still_open(&(dibs_options){.log = note_line, .request_ms = 5000});
    b = still_open(&(dibs_options){.owner = "rival"});
    return 0;
}

int runs_end(void **state)
{
    stored(NULL);
    return still_end(state);
}

twist for_ever(twist t)
{
    t.always = true;
    return t;
}

/* ---- Keys as they are in the store ------------------------------------------------------------ */

/* What is there; its steps are the caller's to free. `state` 0: nothing. */
dibs__run_record stored(const char *key)
{
    static dibs__cell_reply reply;
    char cell[DIBS__CELL_KEY_SIZE];
    const dibs__cell_command look = {.op = DIBS__CELL_READ, .stamp = ""};
    dibs__run_record r = {0};

    free(reply.data);
    reply.data = NULL;
    if (!key)
        return r;
    dibs__key(DIBS__KEY_ONCE, "", key, cell);
    assert_status(dibs__cell_do(b, cell, &look, false, DIBS__NEVER, &reply, NULL, NULL), DIBS_OK);
    if (reply.verdict == DIBS__CELL_DONE)
        assert_status(dibs__record_decode(reply.data, reply.size, &r, &err), DIBS_OK);
    return r;
}

dibs__run_state stored_state(const char *key)
{
    dibs__run_record r = stored(key);

    dibs__steps_free(r.steps);
    return r.state;
}

/* Whatever was there is replaced, or deleted. It stays until the world ends, unless a time is given. */
void store_for(const char *key, const dibs__run_record *r, int64_t keep)
{
    char cell[DIBS__CELL_KEY_SIZE], stamp[DIBS__STAMP_SIZE];
    dibs__cell_command look = {.op = DIBS__CELL_READ, .stamp = ""}, c = {.stamp = stamp};
    dibs__cell_reply reply;
    void *bytes = NULL;

    dibs__key(DIBS__KEY_ONCE, "", key, cell);
    assert_status(dibs__cell_do(b, cell, &look, false, DIBS__NEVER, &reply, NULL, NULL), DIBS_OK);
    free(reply.data);
    if (!r && reply.verdict == DIBS__CELL_ABSENT)
        return;
    c.op = r ? DIBS__CELL_SWAP : DIBS__CELL_DELETE;
    c.version = reply.version;
    c.keep = keep;
    if (r)
        bytes = dibs__record_encode(r, &c.size);
    c.data = bytes;
    dibs__stamp(b, stamp);
    assert_status(dibs__cell_do(b, cell, &c, false, DIBS__NEVER, &reply, NULL, NULL), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__CELL_DONE);
    free(bytes);
    free(reply.data);
}

void store(const char *key, const dibs__run_record *r)
{
    store_for(key, r, 0);
}

/* Of another, who is on no handle. */
dibs__run_record theirs(dibs__run_state state)
{
    return (dibs__run_record){.state = state,
                              .runs = 3,
                              .code = 42,
                              .pid = 77,
                              .since = 5 * DIBS__SECOND,
                              .lease = LEASE,
                              .keep = 2 * LEASE,
                              .owner = "them",
                              .host = "there",
                              .attempt = "theirs-1",
                              .has_result = true,
                              .result = "paid",
                              .result_size = 4};
}

dibs__run_record sent_record(int before)
{
    const still_sent *s = still_last(a, before);
    dibs__run_record r;

    assert_status(dibs__record_decode(s->data, s->command.size, &r, &err), DIBS_OK);
    dibs__steps_free(r.steps);
    r.steps = NULL;
    return r;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

dibs_status begin(const dibs_once_options *o, dibs_once **out)
{
    memset(&err, 0, sizeof err);
    return dibs_once_begin(a, KEY, o, out, &err);
}

dibs_once *ours(const dibs_once_options *o)
{
    dibs_once *once = NULL;

    if (begin(o, &once) != DIBS_OK)
        fail_msg("%s", err.message);
    assert_true(dibs_once_held(once));
    return once;
}

/* Nothing of the keeper's is left, and the handle has no run any more. */
void expect_nothing_left(size_t tasks)
{
    assert_int_equal(still_next(a), DIBS__NEVER);
    assert_null(a->onces);
    assert_int_equal(a->keeper_tasks, tasks);
}

/* A run of "them" that reached one step, and died. */
void leave_a_crash(const char *fingerprint, int64_t keep)
{
    dibs__run_record r = theirs(DIBS__RUN_ABANDONED);

    r.has_result = false;
    r.fingerprint = fingerprint;
    r.fingerprint_size = fingerprint ? strlen(fingerprint) : 0;
    r.steps = dibs__step_new("one", "1", 1);
    store_for(KEY, &r, keep);
    dibs__steps_free(r.steps);
}

void delete_it(void)
{
    store(KEY, NULL);
}

void finish_it(void)
{
    dibs__run_record r = theirs(DIBS__RUN_DONE);

    store(KEY, &r);
}
