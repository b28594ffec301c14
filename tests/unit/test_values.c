/* Cells, counters and tokens in a world in which time stands still: what each call asks the engine for, and what it makes
 * of every answer, also of none. */
#define _GNU_SOURCE
#include "core/error.h"
#include "recipes/cell.h"
#include "support/alloc.h"
#include "support/calls.h"
#include "support/still.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(rows) (sizeof(rows) / sizeof(rows)[0])
#define DAY         (24 * 3600 * DIBS__SECOND)
#define TTL         (10 * 60 * DIBS__SECOND)

static dibs *a, *b;
static dibs__engine_class *class; /* of `a`: may be changed */
static dibs_error err;
static const twist untold = {.status = DIBS_UNKNOWN},
                   lost = {.status = DIBS_UNKNOWN, .stopped = true},
                   denied = {.status = DIBS_DENIED, .stopped = true},
                   unavailable = {.status = DIBS_UNAVAILABLE, .stopped = true};

static int set_up(void **state)
{
    still_begin(state);
    a = still_open(NULL);
    b = still_open(NULL);
    class = (dibs__engine_class *)(uintptr_t)a->class;
    memset(&err, 0, sizeof err);
    return 0;
}

static twist for_ever(twist t)
{
    t.always = true;
    return t;
}

static void answer_with(const dibs__cell_reply *answer)
{
    still_twist(a, (twist){.stopped = true, .answer = answer});
}

/* ---- The calls, as data ------------------------------------------------------------------------ */

typedef enum call {
    READ,
    SWAP,
    DELETE,
    PASS,
    GET,
    SET,
    ADD,
    TAKE,
    ISSUE,
    REDEEM,
    REISSUE,
    CALLS
} call;

static const char a_token[] = "0123456789abcdef0123456789abcdef";

static struct {
    const char *name, *scope, *token;
    dibs_cell_options cell;
    dibs_counter_options counter;
    dibs_token_options token_options;
    dibs_value value;
    int64_t number;
    char text[DIBS_TOKEN_SIZE];
} args;

static void usual_args(void)
{
    memset(&args, 0, sizeof args);
    args.name = "x";
    args.token = a_token;
    args.number = 99;
    memset(&args.value, 0xff, sizeof args.value);
    snprintf(args.text, sizeof args.text, "?");
}

static dibs_status make(call c)
{
    switch (c) {
    case READ:
        return dibs_cell_read(a, args.name, &args.value, &err);
    case SWAP:
        return dibs_cell_swap(a, args.name, 0, "v", 1, &args.cell, &args.value, &err);
    case DELETE:
        return dibs_cell_delete(a, args.name, 5, &args.cell, &err);
    case PASS:
        args.cell.fence = args.cell.fence ? args.cell.fence : 7;
        return dibs_cell_pass(a, args.name, &args.cell, &args.value, &err);
    case GET:
        return dibs_counter_get(a, args.name, &args.number, &err);
    case SET:
        return dibs_counter_set(a, args.name, 3, &args.counter, &err);
    case ADD:
        return dibs_counter_add(a, args.name, 3, &args.counter, &args.number, &err);
    case TAKE:
        return dibs_counter_take(a, args.name, 3, &args.counter, &args.number, &err);
    case ISSUE:
        return dibs_token_issue(a, &args.token_options, args.text, &err);
    case REDEEM:
        return dibs_token_redeem(a, args.token, &args.token_options, &err);
    case REISSUE:
        return dibs_token_reissue(a, args.token, &args.token_options, args.text, &err);
    case CALLS:
        break;
    }
    return DIBS_INVALID;
}

static bool is_cell(call c)
{
    return c <= PASS;
}

/* Nothing of what the caller had there before is left to be taken for an answer. */
static void expect_empty(call c)
{
    static const dibs_value none;

    if (c == READ || c == SWAP || c == PASS)
        assert_memory_equal(&args.value, &none, sizeof none);
    if (c == GET || c == ADD || c == TAKE)
        assert_int_equal(args.number, 0);
    if (c == ISSUE || c == REISSUE)
        assert_string_equal(args.text, "");
}

/* ---- What every call has ------------------------------------------------------------------------ */

static void a_name_is_checked_before_anything_is_asked(void **state)
{
    static char longest[DIBS_NAME_MAX + 2];

    (void)state;
    memset(longest, 'x', sizeof longest - 1);
    for (int c = READ; c <= TAKE; c++) {
        const char *const names[] = {"", NULL, longest};
        for (int i = 0; i < 3; i++) {
            usual_args();
            args.name = names[i];
            args.counter.request = i == 0 ? "r" : NULL;
            assert_status(make((call)c), DIBS_INVALID);
            assert_non_null(
                strstr(err.message, is_cell((call)c) ? "a cell's name" : "a counter's name"));
            assert_non_null(strstr(err.message, i == 2 ? "at most 512" : "must not be empty"));
        }
        assert_int_equal(still_count(a), 0);
    }
    longest[DIBS_NAME_MAX] = '\0';
    usual_args();
    args.name = longest;
    assert_status(make(READ), DIBS_NOT_FOUND);
    assert_int_equal(still_count(a), 1);
}

static void options_of_nobody_are_refused(void **state)
{
    (void)state;
    for (int c = SWAP; c < CALLS; c++) {
        if (c == GET)
            continue;
        usual_args();
        args.cell.reserved[3] = args.counter.reserved[3] = args.token_options.reserved[3] = 1;
        assert_status(make((call)c), DIBS_INVALID);
        assert_int_equal(still_count(a), 0);
    }
}

static void durations_are_checked(void **state)
{
    static const int64_t wrong[] = {-2, DIBS__MAX_MS + 1};
    const call calls[] = {SWAP, SET, ADD, TAKE, ISSUE, REDEEM, REISSUE};

    (void)state;
    for (size_t i = 0; i < COUNT(calls); i++)
        for (int k = 0; k < 2; k++) {
            usual_args();
            args.cell.keep_ms = args.counter.keep_ms = args.token_options.ttl_ms = wrong[k];
            args.token = k ? "no token" : a_token; /* which is not the first thing that is wrong */
            assert_status(make(calls[i]), DIBS_INVALID);
            assert_int_equal(still_count(a), 0);
        }
    usual_args();
    args.token_options.scope = "s";
    args.token_options.ttl_ms = DIBS_FOREVER;
    assert_status(make(ISSUE), DIBS_INVALID);
    args.token_options.ttl_ms = DIBS_NO_WAIT;
    assert_status(make(ISSUE), DIBS_INVALID);
}

static void the_shortest_and_the_longest_are_allowed(void **state)
{
    static const int64_t right[] = {1, DIBS__MAX_MS};

    (void)state;
    for (int k = 0; k < 2; k++)
        for (int c = SWAP; c <= ISSUE; c++) {
            int count = still_count(a);
            usual_args();
            args.cell.keep_ms = args.counter.keep_ms = args.token_options.ttl_ms = right[k];
            make((call)c);
            dibs_value_free(c == SWAP || c == PASS ? &args.value : NULL);
            assert_int_equal(still_count(a), count + 1);
        }
}

static void a_scope_is_checked(void **state)
{
    char longest[DIBS_NAME_MAX + 2];

    (void)state;
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    for (int c = ISSUE; c < CALLS; c++) {
        usual_args();
        args.token_options.scope = longest;
        assert_status(make((call)c), DIBS_INVALID);
        assert_non_null(strstr(err.message, "a scope"));
        assert_int_equal(still_count(a), 0);
    }
}

/* Without an answer, and with a refusal: the status, and nothing that looks like an answer. */
static void a_failure_leaves_nothing_behind(void **state)
{
    const twist ways[] = {denied, unavailable};

    (void)state;
    for (int c = READ; c < CALLS; c++)
        for (int way = 0; way < 2; way++) {
            int count = still_count(a);
            usual_args();
            still_twist(a, ways[way]);
            assert_status(make((call)c), ways[way].status);
            assert_status(err.status, ways[way].status);
            expect_empty((call)c);
            assert_int_equal(still_count(a), count + 1);
        }
}

/* What names its command by a stamp, or changes nothing, is asked for again until the time is over. */
static void what_may_be_repeated_is_repeated(void **state)
{
    static const int64_t pauses[] = {5, 10, 20, 40, 80, 160, 200, 200};

    (void)state;
    for (int c = READ; c < CALLS; c++) {
        bool counts = c == SET || c == ADD || c == TAKE;
        for (int request = 0; request < 1 + counts; request++) {
            int count = still_count(a);
            int64_t began = still_now(), end = began + a->request_span;
            const still_sent *s;
            usual_args();
            args.counter.request = request ? "r" : NULL;
            still_twist(a, for_ever(lost));
            assert_status(make((call)c), DIBS_UNKNOWN);
            assert_status(err.status, DIBS_UNKNOWN);
            still_heal(a);
            expect_empty((call)c);
            if (counts && !request) {
                assert_int_equal(still_count(a), count + 1);
                continue;
            }
            assert_in_range(still_count(a) - count, 20, 31);
            for (int i = 0; i < 8; i++) {
                int from_end = still_count(a) - count - 1;
                s = still_last(a, from_end - i);
                assert_int_equal(s->until, end);
                assert_int_equal(still_last(a, from_end - i - 1)->at - s->at,
                                 pauses[i] * DIBS__MS + STILL_ANSWER);
                assert_string_equal(s->stamp, still_last(a, 0)->stamp);
            }
            assert_in_range(still_now(), end - 200 * DIBS__MS, end - 1);
            if (counts)
                assert_int_equal(err.next, DIBS_NEXT_REPEAT); /* it is counted once */
        }
    }
}

/* A pause that would end with the time is not begun. */
static void nobody_sleeps_for_nothing(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        int count = still_count(a);
        usual_args();
        still_twist(a, (twist){.status = DIBS_UNKNOWN,
                               .stopped = true,
                               .takes = a->request_span - STILL_ANSWER - 5 * DIBS__MS - !late});
        assert_status(make(READ), late ? DIBS_UNKNOWN : DIBS_NOT_FOUND);
        assert_int_equal(still_count(a), count + 2 - late);
    }
}

/* Refused when it is asked for again: the first one may have been done. */
static void an_outage_after_a_lost_answer_stays_unknown(void **state)
{
    (void)state;
    usual_args();
    still_twist(a, untold);
    still_twist(a, for_ever(unavailable));
    assert_status(make(SWAP), DIBS_UNKNOWN);
    still_heal(a);
    assert_status(err.status, DIBS_UNKNOWN);
    usual_args();
    still_twist(a, untold);
    still_twist(a, unavailable);
    assert_status(dibs_cell_swap(a, "y", 0, "v", 1, NULL, NULL, &err), DIBS_OK);
    still_twist(a, untold);
    still_twist(a, denied);
    assert_status(dibs_cell_swap(a, "z", 0, "v", 1, NULL, NULL, NULL), DIBS_DENIED);
    still_twist(a, for_ever(lost)); /* who wants no details gets none */
    assert_status(dibs_cell_swap(a, "z", 0, "v", 1, NULL, NULL, NULL), DIBS_UNKNOWN);
    still_heal(a);
}

static void an_engine_without_cells_says_why(void **state)
{
    (void)state;
    for (int c = READ; c < CALLS; c++) {
        class->cell = NULL;
        class->no_cells = c % 2 ? "because" : NULL;
        usual_args();
        assert_status(make((call)c), DIBS_UNSUPPORTED);
        assert_non_null(strstr(err.message, c % 2 ? "memory: because" : "memory: has no cells"));
        expect_empty((call)c);
    }
}

static void a_closed_handle_asks_nobody(void **state)
{
    dibs__cell_command c = {.op = DIBS__CELL_READ};
    dibs__cell_reply reply;
    bool unsure = true;

    (void)state;
    a->closing = true;
    for (int i = READ; i < CALLS; i++) {
        usual_args();
        assert_status(make((call)i), DIBS_CANCELLED);
    }
    memset(&reply, 0xff, sizeof reply);
    assert_status(dibs__cell_do(a, "c:x", &c, false, DIBS__NEVER, &reply, &unsure, &err),
                  DIBS_CANCELLED);
    a->closing = false;
    assert_memory_equal(&reply, &(dibs__cell_reply){0},
                        sizeof reply); /* its data is the caller's to free */
    assert_int_equal(a->users, 0);
    assert_int_equal(still_count(a), 0);
}

static void a_forked_child_asks_nobody(void **state)
{
    pid_t child = fork();
    int status;

    (void)state;
    if (child == 0) {
        bool good = true;
        for (int c = READ; c < CALLS; c++) {
            usual_args();
            good &= make((call)c) == DIBS_FORKED;
        }
        _exit(good ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* Whoever has used cells drops, from now on, what has ended; it takes an engine that wants that, and an answer. */
static bool reap(dibs__engine *e, size_t limit, dibs__deadline until)
{
    (void)e;
    (void)limit;
    (void)until;
    return false;
}

static void what_has_ended_is_reaped_from_the_first_answer_on(void **state)
{
    (void)state;
    class->cell_reap = reap;
    usual_args();
    still_twist(a, denied);
    assert_status(make(READ), DIBS_DENIED);
    assert_false(a->reaping);
    assert_status(make(READ), DIBS_NOT_FOUND);
    assert_true(a->reaping);
    class->cell_reap = NULL;
    a->reaping = false;
}

/* ---- Cells ----------------------------------------------------------------------------------- */

static void a_verdict_is_a_status(void **state)
{
    static const struct {
        dibs__cell_verdict verdict;
        dibs_status read, pass, swap, doubtful; /* the last: a swap whose first answer was lost */
        const char *says;
    } rows[] = {
        {DIBS__CELL_DONE, DIBS_OK, DIBS_OK, DIBS_OK, DIBS_OK, ""},
        {DIBS__CELL_ALREADY, DIBS_OK, DIBS_OK, DIBS_OK, DIBS_OK, ""},
        {DIBS__CELL_ABSENT, DIBS_NOT_FOUND, DIBS_OK, DIBS_NOT_FOUND, DIBS_UNKNOWN, "no such cell"},
        {DIBS__CELL_CONFLICT, DIBS_CONFLICT, DIBS_CONFLICT, DIBS_CONFLICT, DIBS_UNKNOWN,
         "'x' has version 12"},
        {DIBS__CELL_FENCED, DIBS_FENCED, DIBS_FENCED, DIBS_FENCED, DIBS_FENCED, "floor 34"},
        {DIBS__CELL_TOO_FEW, DIBS_ENGINE_FAILED, DIBS_ENGINE_FAILED, DIBS_ENGINE_FAILED,
         DIBS_ENGINE_FAILED, "unexpected data"},
        {DIBS__CELL_OVERFLOW, DIBS_ENGINE_FAILED, DIBS_ENGINE_FAILED, DIBS_ENGINE_FAILED,
         DIBS_ENGINE_FAILED, "unexpected data"},
        {DIBS__CELL_KIND, DIBS_ENGINE_FAILED, DIBS_ENGINE_FAILED, DIBS_ENGINE_FAILED,
         DIBS_ENGINE_FAILED, "unexpected data"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        for (int way = 0; way < 4; way++) {
            const dibs__cell_reply answer = {.verdict = rows[i].verdict,
                                             .version = 12,
                                             .floor = 34,
                                             .left = 1001,
                                             .data = (void *)(uintptr_t) "data",
                                             .size = 4};
            const dibs_status wanted[] = {rows[i].read, rows[i].pass, rows[i].swap,
                                          rows[i].doubtful};
            dibs_status status = wanted[way];
            usual_args();
            if (way == 3)
                still_twist(a, lost);
            answer_with(&answer);
            assert_status(make(way == 0 ? READ : way == 1 ? PASS : SWAP), status);
            if (status == DIBS_OK && rows[i].verdict == DIBS__CELL_ABSENT) {
                expect_empty(PASS); /* presented, and nothing there yet */
            } else if (status == DIBS_OK || status == DIBS_CONFLICT) {
                assert_int_equal(args.value.version, 12);
                assert_int_equal(args.value.size, 4);
                assert_string_equal(args.value.data, "data");
                assert_int_equal(args.value.left_ms, 2); /* 1 ms and a little more */
            } else {
                expect_empty(READ);
                assert_non_null(strstr(err.message, "'x'"));
                assert_non_null(strstr(err.message, status == DIBS_UNKNOWN
                                                        ? "the cell has changed since"
                                                        : rows[i].says));
            }
            assert_int_equal(err.fence, status == DIBS_FENCED ? 34 : 0);
            dibs_value_free(&args.value);
        }
}

static void what_is_left_is_rounded_up(void **state)
{
    static const int64_t left[] = {0, 1, 999, 1000, 1001, INT64_MAX},
                         ms[] = {0, 1, 1, 1, 2, DIBS_FOREVER};

    (void)state;
    for (size_t i = 0; i < COUNT(left); i++) {
        dibs__cell_reply answer = {.verdict = DIBS__CELL_DONE, .left = left[i]};
        usual_args();
        answer_with(&answer);
        assert_status(make(READ), DIBS_OK);
        assert_int_equal(args.value.left_ms, ms[i]);
        dibs_value_free(&args.value);
    }
    dibs_value_free(NULL);
    args.value = (dibs_value){.size = 5, .version = 6};
    dibs_value_free(&args.value);
    expect_empty(READ);
}

/* The command that each call sends. */
static void a_call_is_one_command(void **state)
{
    const still_sent *s;
    dibs_value v;

    (void)state;
    usual_args();
    args.cell = (dibs_cell_options){.fence = 9, .floor = 8, .keep_ms = 3000};
    assert_status(make(SWAP), DIBS_OK);
    s = still_last(a, 0);
    assert_string_equal(s->key, "c:x");
    assert_int_equal(s->command.op, DIBS__CELL_SWAP);
    assert_int_equal(s->command.keep, 3000 * DIBS__MS);
    assert_int_equal(s->command.fence, 9);
    assert_int_equal(s->command.floor, 8);
    assert_int_equal(s->command.size, 1);
    assert_int_equal(s->data[0], 'v');
    assert_true(s->stamp[0]);
    assert_false(s->notify || s->command.alive || s->command.fleeting);
    assert_int_equal(s->until, s->at + a->request_span);
    assert_int_equal(args.value.left_ms, 3000);
    assert_null(args.value.data);
    usual_args();
    args.cell.fence = 9;
    assert_status(make(PASS), DIBS_OK);
    s = still_last(a, 0);
    assert_int_equal(s->command.op, DIBS__CELL_PASS);
    assert_int_equal(s->command.fence, 9);
    assert_int_equal(s->command.floor, 9);
    assert_string_equal(s->stamp, "");
    dibs_value_free(&args.value);
    args.cell.floor = 4;
    assert_status(make(PASS), DIBS_OK);
    assert_int_equal(still_last(a, 0)->command.floor, 4);
    dibs_value_free(&args.value);
    assert_status(dibs_cell_pass(a, "x", &args.cell, NULL, &err), DIBS_OK);
    usual_args();
    assert_status(make(READ), DIBS_OK);
    s = still_last(a, 0);
    assert_int_equal(s->command.op, DIBS__CELL_READ);
    assert_string_equal(s->stamp, "");
    v = args.value;
    assert_string_equal(v.data, "v");
    assert_status(dibs_cell_delete(a, "x", v.version, &(dibs_cell_options){.fence = 9}, &err),
                  DIBS_OK);
    s = still_last(a, 0);
    assert_int_equal(s->command.op, DIBS__CELL_DELETE);
    assert_int_equal(s->command.version, v.version);
    assert_int_equal(s->command.fence, 9);
    assert_true(s->stamp[0]);
    dibs_value_free(&v);
    assert_status(dibs_cell_delete(a, "x", 5, NULL, &err), DIBS_NOT_FOUND);
    assert_status(dibs_cell_swap(a, "y", 0, NULL, 0, &(dibs_cell_options){.keep_ms = DIBS_FOREVER},
                                 NULL, &err),
                  DIBS_OK);
    assert_int_equal(still_last(a, 0)->command.keep, 0);
    assert_status(dibs_cell_swap(a, "y", 0, "w", 1, NULL, &v, &err), DIBS_CONFLICT);
    assert_int_equal(v.size, 0);
    assert_string_equal(v.data, "");
    assert_int_equal(v.left_ms, DIBS_FOREVER);
    dibs_value_free(&v);
    assert_status(dibs_cell_swap(a, "y", 0, "w", 1, NULL, NULL, &err), DIBS_CONFLICT);
}

static void a_value_fits_or_is_refused(void **state)
{
    int count = still_count(a);

    (void)state;
    class->can.value_max = 3;
    assert_status(dibs_cell_swap(a, "x", 0, "1234", 4, NULL, NULL, &err), DIBS_INVALID);
    assert_string_equal(err.message, "the value is too long: memory takes at most 3 bytes");
    assert_status(dibs_cell_swap(a, "x", 0, NULL, 1, NULL, NULL, &err), DIBS_INVALID);
    assert_string_equal(err.message, "the value: 1 bytes, but no data given");
    assert_int_equal(still_count(a), count);
    assert_status(dibs_cell_swap(a, "x", 0, "123", 3, NULL, NULL, &err), DIBS_OK);
}

static void a_fence_is_given_as_a_grant_has_it(void **state)
{
    (void)state;
    for (int c = SWAP; c <= PASS; c++) {
        usual_args();
        args.cell = (dibs_cell_options){.fence = 7, .floor = 8};
        assert_status(make((call)c), DIBS_INVALID);
        assert_non_null(strstr(err.message, "fence 7, floor 8"));
    }
    assert_status(dibs_cell_pass(a, "x", NULL, NULL, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "no fence"));
    assert_int_equal(still_count(a), 0);
    usual_args();
    args.cell = (dibs_cell_options){.fence = 7, .floor = 7};
    assert_status(make(SWAP), DIBS_OK);
}

/* ---- Counters -------------------------------------------------------------------------------- */

static void a_counters_verdict_is_a_status(void **state)
{
    static const struct {
        dibs__cell_verdict verdict;
        dibs_status status;
        const char *says;
    } rows[] = {
        {DIBS__CELL_DONE, DIBS_OK, ""},
        {DIBS__CELL_ALREADY, DIBS_ALREADY, ""},
        {DIBS__CELL_ABSENT, DIBS_NOT_FOUND, "no such counter"},
        {DIBS__CELL_TOO_FEW, DIBS_TOO_FEW, "only 5 left"},
        {DIBS__CELL_OVERFLOW, DIBS_INVALID, "'x' is 5"},
        {DIBS__CELL_CONFLICT, DIBS_ENGINE_FAILED, "unexpected data"},
        {DIBS__CELL_FENCED, DIBS_ENGINE_FAILED, "unexpected data"},
        {DIBS__CELL_KIND, DIBS_ENGINE_FAILED, "unexpected data"},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        for (int c = GET; c <= TAKE; c++) {
            const dibs__cell_reply answer = {
                .verdict = rows[i].verdict, .number = 5, .data = (void *)(uintptr_t) "", .size = 0};
            usual_args();
            answer_with(&answer);
            assert_status(make((call)c), rows[i].status);
            assert_int_equal(args.number, c == SET ? 99 : 5);
            assert_non_null(strstr(err.message, rows[i].says));
        }
}

static void a_count_is_one_command(void **state)
{
    static const struct {
        call what;
        dibs__cell_op op;
        int64_t number;
    } rows[] = {{GET, DIBS__CELL_READ, 0},
                {SET, DIBS__CELL_SET, 3},
                {ADD, DIBS__CELL_ADD, 3},
                {TAKE, DIBS__CELL_TAKE, 3}};
    static const int64_t keeps[] = {0, 7, DIBS_FOREVER}, lives[] = {DAY, 7 * DIBS__MS, INT64_MAX};

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++)
        for (int k = 0; k < 3; k++) {
            const still_sent *s;
            usual_args();
            args.counter = (dibs_counter_options){.request = k ? "r" : NULL, .keep_ms = keeps[k]};
            make(rows[i].what);
            s = still_last(a, 0);
            assert_string_equal(s->key, "n:x");
            assert_int_equal(s->command.op, rows[i].op);
            assert_int_equal(s->command.number, rows[i].number);
            assert_string_equal(s->request, k && rows[i].what != GET ? "r" : "");
            assert_int_equal(s->command.request_keep, rows[i].what == GET ? DAY : lives[k]);
            assert_true(s->stamp[0]);
            assert_false(s->notify);
            assert_int_equal(s->until, s->at + a->request_span);
        }
}

static void counts_are_checked(void **state)
{
    static char longest[DIBS_NAME_MAX + 2];
    int64_t value = 99;

    (void)state;
    memset(longest, 'r', sizeof longest - 1);
    for (int c = SET; c <= TAKE; c++)
        for (int i = 0; i < 2; i++) {
            usual_args();
            args.counter.request = i ? longest : "";
            assert_status(make((call)c), DIBS_INVALID);
            assert_non_null(strstr(err.message, "a request's id"));
        }
    assert_status(dibs_counter_set(a, "x", -1, NULL, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "-1: a counter cannot be negative"));
    for (int64_t n = -1; n <= 0; n++) {
        value = 99;
        assert_status(dibs_counter_take(a, "x", n, NULL, &value, &err), DIBS_INVALID);
        assert_non_null(strstr(err.message, "take 1 or more"));
        assert_int_equal(value, 0);
    }
    assert_int_equal(still_count(a), 0);
    assert_status(dibs_counter_set(a, "x", 0, NULL, &err), DIBS_OK);
    assert_status(dibs_counter_add(a, "x", 2, NULL, NULL, &err), DIBS_OK);
    assert_status(dibs_counter_take(a, "x", 1, NULL, NULL, &err), DIBS_OK);
    assert_status(dibs_counter_get(a, "x", NULL, &err), DIBS_OK);
    assert_status(dibs_counter_get(a, "x", &value, NULL), DIBS_OK);
    assert_int_equal(value, 1);
    longest[DIBS_NAME_MAX] = '\0';
    assert_status(
        dibs_counter_add(a, "x", 2, &(dibs_counter_options){.request = longest}, NULL, &err),
        DIBS_OK);
}

/* Nobody can tell whether it was counted: only with a request it may be asked for again. */
static void an_unknown_count_is_repeated_with_a_request_only(void **state)
{
    (void)state;
    for (int request = 0; request < 2; request++) {
        dibs_counter_options o = {.request = request ? "r" : NULL};
        memset(&err, 0, sizeof err);
        still_twist(a, for_ever(lost));
        assert_status(dibs_counter_add(a, "x", 1, &o, NULL, &err), DIBS_UNKNOWN);
        assert_int_equal(err.next == DIBS_NEXT_REPEAT, request);
        still_heal(a);
        still_twist(a, denied); /* surely not counted: there is nothing to repeat */
        assert_status(dibs_counter_add(a, "x", 1, &o, NULL, &err), DIBS_DENIED);
        assert_int_equal(err.next, DIBS_NEXT_NONE);
        still_twist(a, for_ever(lost));
        assert_status(dibs_counter_add(a, "x", 1, &o, NULL, NULL), DIBS_UNKNOWN);
        still_heal(a);
    }
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

static const char *issued(const dibs_token_options *o)
{
    static char token[DIBS_TOKEN_SIZE];

    assert_status(dibs_token_issue(a, o, token, &err), DIBS_OK);
    return token;
}

/* A record as token.c writes it. */
static void store_token(unsigned char format, char is, const char *heir, size_t size)
{
    unsigned char record[64] = {format, (unsigned char)is};
    const dibs__cell_command look = {.op = DIBS__CELL_READ, .stamp = ""};
    dibs__cell_command c = {
        .op = DIBS__CELL_SWAP, .data = record, .size = size, .keep = TTL, .stamp = ""};
    char key[DIBS__CELL_KEY_SIZE], stamp[DIBS__STAMP_SIZE];
    dibs__cell_reply reply;

    if (heir)
        memcpy(record + 2, heir, 32);
    dibs__key(DIBS__KEY_TOKEN, "", a_token, key);
    assert_string_equal(key, "t:0:0123456789abcdef0123456789abcdef");
    assert_status(dibs__cell_do(b, key, &look, false, DIBS__NEVER, &reply, NULL, NULL), DIBS_OK);
    free(reply.data);
    c.version = reply.version;
    dibs__stamp(b, stamp);
    c.stamp = stamp;
    assert_status(dibs__cell_do(b, key, &c, false, DIBS__NEVER, &reply, NULL, NULL), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__CELL_DONE);
    free(reply.data);
}

static void a_token_is_random_text(void **state)
{
    char one[DIBS_TOKEN_SIZE], scoped[DIBS__CELL_KEY_SIZE];
    unsigned seen = 0;

    (void)state;
    for (int i = 0; i < 50; i++) {
        const still_sent *s;
        snprintf(one, sizeof one, "%s", issued(NULL));
        s = still_last(a, 0);
        assert_int_equal(strlen(one), 32);
        assert_int_equal(strspn(one, "0123456789abcdef"), 32);
        for (int k = 0; k < 32; k++)
            seen |= 1u << (one[k] <= '9' ? one[k] - '0' : one[k] - 'a' + 10);
        assert_string_equal(s->key + 4, one);
        assert_int_equal(s->command.op, DIBS__CELL_SWAP);
        assert_int_equal(s->command.version, 0);
        assert_int_equal(s->command.keep, TTL);
        assert_int_equal(s->command.size, 34);
        assert_memory_equal(s->data, "\1i\0", 3);
        assert_int_equal(s->until, s->at + a->request_span);
    }
    assert_int_equal(seen, 0xffff);
    issued(&(dibs_token_options){.scope = ""}); /* as without one */
    assert_memory_equal(still_last(a, 0)->key, "t:0:", 4);
    issued(&(dibs_token_options){.scope = "shop", .ttl_ms = 2});
    snprintf(scoped, sizeof scoped, "t:4:shop");
    assert_memory_equal(still_last(a, 0)->key, scoped, 8);
    assert_int_equal(still_last(a, 0)->command.keep, 2 * DIBS__MS);
}

static void random_same(void *ctx, void *out, size_t size)
{
    (void)ctx;
    memset(out, 0xa5, size);
}

/* Chance gives the same token twice: the second one is not issued. */
static void a_token_that_is_there_is_not_issued_again(void **state)
{
    dibs__env env = *a->env;
    const dibs__env *real = a->env;
    char out[DIBS_TOKEN_SIZE] = "?";

    (void)state;
    env.random = random_same;
    a->env = &env;
    assert_status(dibs_token_issue(a, NULL, out, &err), DIBS_OK);
    assert_string_equal(out, "a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5");
    assert_status(dibs_token_issue(a, NULL, out, &err), DIBS_ENGINE_FAILED);
    assert_string_equal(out, "");
    a->env = real;
}

static void what_is_no_token_asks_nobody(void **state)
{
    static const char *const texts[] = {NULL,
                                        "",
                                        "0123456789abcdef0123456789abcde",
                                        "0123456789abcdef0123456789abcdef0",
                                        "0123456789abcdef0123456789abcdefg",
                                        "0123456789abcdef0123456789abcdeg"};

    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++)
        for (int c = REDEEM; c <= REISSUE; c++) {
            usual_args();
            args.token = texts[i];
            assert_status(make((call)c), DIBS_REFUSED);
            assert_non_null(strstr(err.message, "was never issued"));
            expect_empty((call)c);
        }
    assert_int_equal(still_count(a), 0);
    usual_args();
    assert_status(make(REDEEM), DIBS_REFUSED);
    assert_int_equal(still_count(a), 1);
    assert_non_null(strstr(err.message, "has expired, was never issued, or is for another scope"));
}

static void a_record_of_a_token_is_checked(void **state)
{
    static const struct {
        unsigned char format;
        char is;
        const char *heir;
        size_t size;
        dibs_status redeem, reissue;
    } rows[] = {
        {1, 'i', NULL, 34, DIBS_OK, DIBS_REFUSED},
        {1, 's', NULL, 34, DIBS_REFUSED, DIBS_OK},
        {1, 's', "0123456789abcdef0123456789abcd00", 34, DIBS_REFUSED, DIBS_OK},
        {1, 's', "0123456789abcdef0123456789abcd0x", 34, DIBS_REFUSED, DIBS_ENGINE_FAILED},
        {0, 'i', NULL, 34, DIBS_ENGINE_FAILED, DIBS_ENGINE_FAILED},
        {2, 'i', NULL, 34, DIBS_ENGINE_FAILED, DIBS_ENGINE_FAILED},
        {1, 'i', NULL, 33, DIBS_ENGINE_FAILED, DIBS_ENGINE_FAILED},
        {1, 'i', NULL, 35, DIBS_ENGINE_FAILED, DIBS_ENGINE_FAILED},
        {1, 'i', NULL, 0, DIBS_ENGINE_FAILED, DIBS_ENGINE_FAILED},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        print_message("# row %zu\n", i);
        usual_args();
        store_token(rows[i].format, rows[i].is, rows[i].heir, rows[i].size);
        assert_status(make(REISSUE), rows[i].reissue);
        if (rows[i].reissue == DIBS_OK && rows[i].heir)
            assert_string_equal(args.text, rows[i].heir);
        if (rows[i].reissue != DIBS_OK)
            assert_string_equal(args.text, "");
        store_token(rows[i].format, rows[i].is, rows[i].heir, rows[i].size);
        assert_status(make(REDEEM), rows[i].redeem);
        if (rows[i].redeem == DIBS_REFUSED)
            assert_non_null(strstr(err.message, "was already used"));
    }
}

/* Where a counter stands under the token's key. */
static void a_token_of_another_kind_is_an_error(void **state)
{
    const dibs__cell_reply kind = {.verdict = DIBS__CELL_KIND, .size = 34};

    (void)state;
    usual_args();
    answer_with(&kind);
    assert_status(make(REDEEM), DIBS_ENGINE_FAILED);
}

/* It is read and swapped; what is spent stays for the rest of its time. */
static void a_redemption_is_two_commands(void **state)
{
    char token[DIBS_TOKEN_SIZE];
    int64_t issued_at = still_now();
    int count;

    (void)state;
    snprintf(token, sizeof token, "%s", issued(NULL));
    still_pass(DIBS__SECOND);
    count = still_count(a);
    assert_status(dibs_token_redeem(a, token, NULL, &err), DIBS_OK);
    assert_int_equal(still_count(a), count + 2);
    assert_false(still_last(a, 1)->notify ||
                 still_last(a, 0)->notify); /* nobody waits for a token */
    assert_int_equal(still_last(a, 1)->command.op, DIBS__CELL_READ);
    assert_int_equal(still_last(a, 0)->command.op, DIBS__CELL_SWAP);
    assert_int_equal(still_last(a, 0)->command.keep, issued_at + TTL - still_last(a, 1)->at);
    assert_int_equal(still_last(a, 0)->until, still_last(a, 1)->at + a->request_span);
    assert_memory_equal(still_last(a, 0)->data, "\1s\0", 3);
    assert_status(dibs_token_redeem(a, token, NULL, &err), DIBS_REFUSED);
    assert_int_equal(a->users, 0);
}

static void a_redemption_that_is_denied_spends_nothing(void **state)
{
    (void)state;
    usual_args();
    store_token(1, 'i', NULL, 34);
    still_twist(a, (twist){0});
    still_twist(a, denied);
    assert_status(make(REDEEM), DIBS_DENIED);
    assert_status(make(REDEEM), DIBS_OK);
}

static char spent[DIBS_TOKEN_SIZE];

static void spend_it(void)
{
    assert_status(dibs_token_redeem(b, spent, NULL, NULL), DIBS_OK);
}

/* Another is faster; the answer is lost; both. */
static void of_two_who_redeem_one_is_told_so(void **state)
{
    (void)state;
    for (int doubt = 0; doubt < 3; doubt++) {
        snprintf(spent, sizeof spent, "%s", issued(NULL));
        still_twist(a, (twist){.then = doubt == 2 ? NULL : spend_it});
        if (doubt)
            still_twist(a, doubt == 1 ? lost : untold);
        assert_status(dibs_token_redeem(a, spent, NULL, &err), doubt == 0   ? DIBS_REFUSED
                                                               : doubt == 1 ? DIBS_UNKNOWN
                                                                            : DIBS_OK);
        if (doubt == 1)
            assert_non_null(strstr(err.message, "possibly by this call"));
        else if (doubt == 0)
            assert_non_null(strstr(err.message, "was already used"));
    }
}

static void a_token_ends_in_its_time(void **state)
{
    char token[DIBS_TOKEN_SIZE];
    dibs_token_options o = {.ttl_ms = 50};

    (void)state;
    for (int late = 0; late < 2; late++) {
        snprintf(token, sizeof token, "%s", issued(&o));
        still_pass(50 * DIBS__MS - STILL_ANSWER - 2 * STILL_ANSWER * !late);
        assert_status(dibs_token_redeem(a, token, NULL, &err), late ? DIBS_REFUSED : DIBS_OK);
    }
    /* it ends between the look and the swap: then nothing was there to be spent */
    snprintf(token, sizeof token, "%s", issued(&o));
    still_twist(a, (twist){.takes = 50 * DIBS__MS});
    assert_status(dibs_token_redeem(a, token, NULL, &err), DIBS_REFUSED);
}

/* One that is for ever, or has no time left by the engine's word. */
static void what_is_left_of_a_token_is_kept(void **state)
{
    static const int64_t left[] = {INT64_MAX, 5, 1, 0, -3}, keep[] = {0, 5, 1, 1, 1};

    (void)state;
    for (size_t i = 0; i < COUNT(left); i++) {
        dibs__cell_reply answer = {
            .verdict = DIBS__CELL_DONE, .version = 1, .left = left[i], .size = 34};
        char record[34] = "\1i";
        answer.data = record;
        usual_args();
        answer_with(&answer);
        make(REDEEM);
        assert_int_equal(still_last(a, 0)->command.keep, keep[i]);
    }
}

/* The note of the heir ends no later than the heir. */
static void an_heir_outlives_its_note(void **state)
{
    static const int64_t ttls[] = {0, 1000, 3600 * 1000};
    char token[DIBS_TOKEN_SIZE], heir[DIBS_TOKEN_SIZE], again[DIBS_TOKEN_SIZE];

    (void)state;
    for (int i = 0; i < 3; i++) {
        dibs_token_options o = {.ttl_ms = ttls[i], .scope = i ? "s" : NULL},
                           first = {.scope = o.scope};
        int64_t ttl = ttls[i] ? ttls[i] * DIBS__MS : TTL, left;
        const still_sent *look, *name, *birth;
        snprintf(token, sizeof token, "%s", issued(&first));
        assert_status(dibs_token_redeem(a, token, &first, &err), DIBS_OK);
        assert_status(dibs_token_reissue(a, token, &o, heir, &err), DIBS_OK);
        look = still_last(a, 2);
        name = still_last(a, 1);
        birth = still_last(a, 0);
        left = TTL - (look->at - still_last(a, 4)->at);
        assert_int_equal(look->command.op, DIBS__CELL_READ);
        assert_int_equal(name->command.keep, left < ttl ? left : ttl);
        assert_memory_equal(name->data + 2, heir, 32);
        assert_int_equal(name->data[1], 's');
        assert_int_equal(birth->command.keep, ttl);
        assert_int_equal(birth->command.version, 0);
        assert_memory_equal(birth->data, "\1i\0", 3);
        assert_non_null(strstr(birth->key, heir));
        assert_int_equal(birth->until, look->at + a->request_span);
        assert_int_equal(name->until, look->at + a->request_span);
        still_pass(DIBS__SECOND / 2);
        assert_status(dibs_token_reissue(a, token,
                                         &(dibs_token_options){.ttl_ms = 1, .scope = o.scope},
                                         again, &err),
                      DIBS_OK);
        assert_string_equal(again, heir);
        /* it lives no shorter than what is left of the note, whoever makes it */
        assert_int_equal(still_last(a, 0)->command.keep,
                         name->at + name->command.keep - still_last(a, 1)->at);
        assert_status(dibs_token_redeem(a, heir, &o, &err), DIBS_OK);
        assert_status(dibs_token_redeem(a, heir, &o, &err), DIBS_REFUSED);
    }
    assert_int_equal(a->users, 0);
}

/* Another names an heir first: both tell of the same. */
static char rivals[DIBS_TOKEN_SIZE];

static void reissue_it(void)
{
    assert_status(dibs_token_reissue(b, spent, NULL, rivals, NULL), DIBS_OK);
}

static void there_is_one_heir(void **state)
{
    char heir[DIBS_TOKEN_SIZE];

    (void)state;
    snprintf(spent, sizeof spent, "%s", issued(NULL));
    spend_it();
    still_twist(a, (twist){.then = reissue_it});
    assert_status(dibs_token_reissue(a, spent, NULL, heir, &err), DIBS_OK);
    assert_string_equal(heir, rivals);
}

/* The note is changed under us until the time is over. */
static void garble_it(void)
{
    store_token(1, 's', NULL, 34);
}

static void a_race_for_the_heir_has_an_end(void **state)
{
    int64_t began = still_now();

    (void)state;
    usual_args();
    store_token(1, 's', NULL, 34);
    began = still_now();
    /* half a second for each, with what changes it */
    still_twist(
        a,
        (twist){.then = garble_it, .takes = DIBS__SECOND / 2 - 3 * STILL_ANSWER, .always = true});
    assert_status(make(REISSUE), DIBS_UNAVAILABLE);
    assert_non_null(strstr(err.message, "no answer in time"));
    assert_string_equal(args.text, "");
    assert_int_equal(still_now() - began, a->request_span);
    assert_int_equal(still_count(a), 10);
    still_heal(a);
    assert_status(make(REISSUE), DIBS_OK);
}

static void an_heir_that_was_not_made_is_not_told(void **state)
{
    char again[DIBS_TOKEN_SIZE];

    (void)state;
    usual_args();
    store_token(1, 's', NULL, 34);
    for (int failing = 0; failing < 3; failing++) {
        for (int i = 0; i < failing; i++)
            still_twist(a, (twist){0});
        still_twist(a, denied);
        assert_status(make(REISSUE), DIBS_DENIED);
        assert_string_equal(args.text, "");
        store_token(1, 's', NULL, 34);
    }
    assert_status(make(REISSUE), DIBS_OK);
    assert_status(dibs_token_reissue(b, a_token, NULL, again, &err), DIBS_OK);
    assert_string_equal(again, args.text);
}

/* ---- No memory ------------------------------------------------------------------------------- */

static void a_failed_allocation_is_a_status(void **state)
{
    (void)state;
    for (int c = READ; c < CALLS; c++) {
        bool failed = true;
        for (long n = 1; failed; n++) {
            dibs_status status;
            usual_args();
            if (c == REDEEM || c == REISSUE)
                store_token(1, c == REDEEM ? 'i' : 's', NULL, 34);
            args.counter.request = "r";
            alloc_fail(n, false);
            status = make((call)c);
            failed = alloc_heal();
            if (failed && status == DIBS_NO_MEMORY)
                expect_empty((call)c);
            dibs_value_free(c == READ || c == SWAP || c == PASS ? &args.value : NULL);
        }
    }
    assert_int_equal(a->users, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, still_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_name_is_checked_before_anything_is_asked),
        CASE(options_of_nobody_are_refused),
        CASE(durations_are_checked),
        CASE(the_shortest_and_the_longest_are_allowed),
        CASE(a_scope_is_checked),
        CASE(a_failure_leaves_nothing_behind),
        CASE(what_may_be_repeated_is_repeated),
        CASE(nobody_sleeps_for_nothing),
        CASE(an_outage_after_a_lost_answer_stays_unknown),
        CASE(an_engine_without_cells_says_why),
        CASE(a_closed_handle_asks_nobody),
        CASE(a_forked_child_asks_nobody),
        CASE(what_has_ended_is_reaped_from_the_first_answer_on),
        CASE(a_verdict_is_a_status),
        CASE(what_is_left_is_rounded_up),
        CASE(a_call_is_one_command),
        CASE(a_value_fits_or_is_refused),
        CASE(a_fence_is_given_as_a_grant_has_it),
        CASE(a_counters_verdict_is_a_status),
        CASE(a_count_is_one_command),
        CASE(counts_are_checked),
        CASE(an_unknown_count_is_repeated_with_a_request_only),
        CASE(a_token_is_random_text),
        CASE(a_token_that_is_there_is_not_issued_again),
        CASE(what_is_no_token_asks_nobody),
        CASE(a_record_of_a_token_is_checked),
        CASE(a_token_of_another_kind_is_an_error),
        CASE(a_redemption_is_two_commands),
        CASE(a_redemption_that_is_denied_spends_nothing),
        CASE(of_two_who_redeem_one_is_told_so),
        CASE(a_token_ends_in_its_time),
        CASE(what_is_left_of_a_token_is_kept),
        CASE(an_heir_outlives_its_note),
        CASE(there_is_one_heir),
        CASE(a_race_for_the_heir_has_an_end),
        CASE(an_heir_that_was_not_made_is_not_told),
        CASE(a_failed_allocation_is_a_status),
    };

    return cmocka_run_group_tests_name("values", tests, NULL, NULL);
}
