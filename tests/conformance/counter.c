/* Counters: never below zero, and a request counts once. */
#define _GNU_SOURCE
#include "conformance/suite.h"
#include "support/lossy.h"

#include <stdio.h>
#include <string.h>

static dibs *open_counters(void)
{
    if (!the.can.cells)
        skip();
    return open_handle();
}

static int64_t value_of(dibs *d, const char *name)
{
    int64_t value = -1;

    assert_status(dibs_counter_get(d, name, &value, NULL), DIBS_OK);
    return value;
}

static void a_counter_counts(void **state)
{
    dibs *a = open_counters(), *b = open_handle();
    const char *name = fresh("count");
    int64_t value = -1;

    (void)state;
    assert_status(dibs_counter_get(a, name, &value, NULL), DIBS_NOT_FOUND);
    assert_status(dibs_counter_take(a, name, 1, NULL, &value, NULL), DIBS_NOT_FOUND);
    assert_status(dibs_counter_add(a, name, 5, NULL, &value, NULL), DIBS_OK);
    assert_int_equal(value, 5);
    assert_status(dibs_counter_add(b, name, -2, NULL, &value, NULL), DIBS_OK);
    assert_int_equal(value, 3);
    assert_status(dibs_counter_take(a, name, 3, NULL, &value, NULL), DIBS_OK);
    assert_int_equal(value, 0);
    assert_int_equal(value_of(b, name), 0);
    assert_status(dibs_counter_set(b, name, 7, NULL, NULL), DIBS_OK);
    assert_int_equal(value_of(a, name), 7);
    assert_status(dibs_counter_take(a, name, 1, NULL, NULL, NULL), DIBS_OK);
    assert_int_equal(value_of(a, name), 6);
}

static void it_is_never_below_zero(void **state)
{
    dibs *d = open_counters();
    const char *name = fresh("few");
    dibs_error err = {0};
    int64_t value = -1;

    (void)state;
    assert_status(dibs_counter_add(d, name, -1, NULL, &value, NULL), DIBS_TOO_FEW);
    assert_status(dibs_counter_get(d, name, &value, NULL), DIBS_NOT_FOUND);
    assert_status(dibs_counter_set(d, name, 3, NULL, NULL), DIBS_OK);
    assert_status(dibs_counter_take(d, name, 4, NULL, &value, &err), DIBS_TOO_FEW);
    assert_int_equal(value, 3);
    assert_non_null(strstr(err.message, "3 left"));
    assert_status(dibs_counter_add(d, name, -4, NULL, &value, NULL), DIBS_TOO_FEW);
    assert_int_equal(value, 3);
    assert_int_equal(value_of(d, name), 3);
}

static void wrong_counts_are_refused(void **state)
{
    dibs *d = open_counters();
    const char *name = fresh("wrong");
    char longest[DIBS_NAME_MAX + 2];
    const int64_t most = INT64_MAX; /* on every engine */
    int64_t value;

    (void)state;
    memset(longest, 'r', sizeof longest);
    longest[DIBS_NAME_MAX + 1] = '\0';
    assert_status(dibs_counter_set(d, name, -1, NULL, NULL), DIBS_INVALID);
    assert_status(dibs_counter_take(d, name, 0, NULL, NULL, NULL), DIBS_INVALID);
    assert_status(dibs_counter_take(d, name, -1, NULL, NULL, NULL), DIBS_INVALID);
    assert_status(dibs_counter_set(d, "", 1, NULL, NULL), DIBS_INVALID);
    assert_status(dibs_counter_add(d, name, 1, &(dibs_counter_options){.request = ""}, NULL, NULL),
                  DIBS_INVALID);
    assert_status(
        dibs_counter_add(d, name, 1, &(dibs_counter_options){.request = longest}, NULL, NULL),
        DIBS_INVALID);
    assert_status(dibs_counter_set(d, name, most, NULL, NULL), DIBS_OK);
    assert_int_equal(value_of(d, name), most);
    assert_status(dibs_counter_add(d, name, 1, NULL, &value, NULL), DIBS_INVALID);
    assert_int_equal(value_of(d, name), most);
    assert_status(dibs_counter_take(d, name, most, NULL, &value, NULL), DIBS_OK);
    assert_int_equal(value, 0);
}

/* What a counter is afterwards, in numbers that cannot overflow. */
static dibs_status expected(int64_t had, int64_t change, int64_t *now)
{
    __int128 sum = (__int128)had + change;

    *now = sum < 0 || sum > INT64_MAX ? had : (int64_t)sum;
    return sum < 0 ? DIBS_TOO_FEW : sum > INT64_MAX ? DIBS_INVALID : DIBS_OK;
}

/* Each number with each change, with and without a request. */
static void the_extremes_are_counted_right(void **state)
{
    static const int64_t had[] = {0, 1, INT64_MAX - 1, INT64_MAX};
    static const int64_t change[] = {INT64_MIN, INT64_MIN + 1, INT64_MIN + 2, -1,
                                     1,         INT64_MAX - 1, INT64_MAX};
    const size_t changes = sizeof change / sizeof change[0];
    dibs *d = open_counters();
    const char *name = fresh("extreme");

    (void)state;
    for (size_t i = 0; i < 4 * changes * 2; i++) {
        int64_t start = had[i / 2 / changes], by = change[i / 2 % changes], value = -1, now;
        dibs_status wanted = expected(start, by, &now);
        dibs_counter_options o = {.request = i % 2 ? fresh("r") : NULL};

        assert_status(dibs_counter_set(d, name, start, NULL, NULL), DIBS_OK);
        assert_status(dibs_counter_add(d, name, by, &o, &value, NULL), wanted);
        assert_int_equal(value, now);
        if (by > INT64_MIN && by < 0) {
            assert_status(dibs_counter_set(d, name, start, NULL, NULL), DIBS_OK);
            assert_status(dibs_counter_take(d, name, -by, &o, &value, NULL),
                          wanted == DIBS_OK && o.request ? DIBS_ALREADY : wanted);
        }
        assert_true(value_of(d, name) == (o.request && wanted == DIBS_OK && by < 0 ? start : now));
    }
    assert_status(dibs_counter_add(d, fresh("none"), INT64_MIN, NULL, NULL, NULL), DIBS_TOO_FEW);
}

/* ---- Requests -------------------------------------------------------------------------------- */

static void a_request_counts_once(void **state)
{
    dibs *a = open_counters(), *b = open_handle();
    const char *name = fresh("request"), *other = fresh("request");
    dibs_counter_options o = {.request = "order 17"};
    int64_t value = -1;

    (void)state;
    assert_status(dibs_counter_set(a, name, 10, NULL, NULL), DIBS_OK);
    assert_status(dibs_counter_take(a, name, 4, &o, &value, NULL), DIBS_OK);
    assert_int_equal(value, 6);
    assert_status(dibs_counter_take(a, name, 1, NULL, &value, NULL), DIBS_OK);
    assert_status(dibs_counter_take(b, name, 4, &o, &value, NULL), DIBS_ALREADY);
    assert_int_equal(value, 6); /* what it was told then */
    assert_status(dibs_counter_add(b, name, 100, &o, &value, NULL), DIBS_ALREADY);
    assert_int_equal(value_of(a, name), 5);
    assert_status(dibs_counter_add(a, other, 4, &o, &value, NULL), DIBS_OK);
    assert_int_equal(value, 4);
}

static void a_refused_request_may_try_again(void **state)
{
    dibs *d = open_counters();
    const char *name = fresh("later");
    dibs_counter_options o = {.request = "r"};
    int64_t value = -1;

    (void)state;
    assert_status(dibs_counter_set(d, name, 1, NULL, NULL), DIBS_OK);
    assert_status(dibs_counter_take(d, name, 2, &o, &value, NULL), DIBS_TOO_FEW);
    assert_status(dibs_counter_add(d, name, 1, NULL, NULL, NULL), DIBS_OK);
    assert_status(dibs_counter_take(d, name, 2, &o, &value, NULL), DIBS_OK);
    assert_int_equal(value, 0);
    assert_status(dibs_counter_take(d, name, 2, &o, &value, NULL), DIBS_ALREADY);
}

typedef struct asked {
    dibs *d;
    const char *name;
} asked;

static bool counts_again(void *ctx)
{
    asked *a = ctx;

    return dibs_counter_add(a->d, a->name, 1,
                            &(dibs_counter_options){.request = "r", .keep_ms = 300}, NULL,
                            NULL) == DIBS_OK;
}

static void a_request_is_forgotten_in_time(void **state)
{
    dibs *d = open_counters();
    const char *name = fresh("forgotten");
    dibs_counter_options o = {.request = "r", .keep_ms = 300};

    (void)state;
    assert_status(dibs_counter_add(d, name, 1, &o, NULL, NULL), DIBS_OK);
    assert_true(wait_until(counts_again, &(asked){d, name}, LONG_MS));
    assert_int_equal(value_of(d, name), 2);
    o = (dibs_counter_options){.request = "for ever", .keep_ms = DIBS_FOREVER};
    assert_status(dibs_counter_add(d, name, 1, &o, NULL, NULL), DIBS_OK);
    assert_status(dibs_counter_add(d, name, 1, &o, NULL, NULL), DIBS_ALREADY);
}

static void a_lost_answer_counts_once(void **state)
{
    dibs *d = open_counters();
    const char *name = fresh("lost");
    dibs_counter_options o = {.request = "r"};
    int64_t value = -1;

    (void)state;
    lossy_put_in(d);
    assert_status(dibs_counter_set(d, name, 10, NULL, NULL), DIBS_OK);
    lossy_lose(LOSSY_ANSWER, 2, NULL, NULL);
    assert_status(dibs_counter_take(d, name, 1, &o, &value, NULL), DIBS_OK);
    assert_int_equal(value, 9);
    lossy_lose(LOSSY_ANSWER, 1, NULL, NULL); /* nobody could tell: so it is not sent again */
    assert_status(dibs_counter_take(d, name, 1, NULL, &value, NULL), DIBS_UNKNOWN);
    assert_int_equal(value_of(d, name), 8);
    lossy_lose(LOSSY_REQUEST, 1, NULL, NULL);
    assert_status(dibs_counter_take(d, name, 1, NULL, &value, NULL), DIBS_UNKNOWN);
    assert_int_equal(value_of(d, name), 8);
    lossy_stop();
}

typedef struct rival {
    dibs *d;
    const char *name, *request;
} rival;

static void count_too(void *data)
{
    rival *r = data;

    dibs_counter_add(r->d, r->name, 1, &(dibs_counter_options){.request = r->request}, NULL, NULL);
}

/* Of all who use a request id one is told OK, also when answers are lost: the one who counted. */
static void a_lost_answer_is_no_second_ok(void **state)
{
    dibs *a = open_counters(), *b = open_handle();
    const char *name = fresh("whose");
    dibs_counter_options o = {.request = "r"};
    int64_t value = -1;

    (void)state;
    lossy_put_in(a);
    assert_status(dibs_counter_set(b, name, 10, NULL, NULL), DIBS_OK);
    assert_status(dibs_counter_take(b, name, 1, &o, &value, NULL), DIBS_OK);
    lossy_lose(LOSSY_ANSWER, 1, NULL, NULL); /* it was told ALREADY, and did not hear it */
    assert_status(dibs_counter_take(a, name, 1, &o, &value, NULL), DIBS_ALREADY);
    assert_int_equal(value, 9);
    o.request = "s";
    lossy_lose(LOSSY_REQUEST, 1, count_too, &(rival){b, name, "s"}); /* another is faster */
    assert_status(dibs_counter_take(a, name, 1, &o, &value, NULL), DIBS_ALREADY);
    assert_int_equal(value, 10);
    o.request = "t";
    lossy_lose(LOSSY_ANSWER, 2, NULL, NULL); /* it was ours */
    assert_status(dibs_counter_take(a, name, 1, &o, &value, NULL), DIBS_OK);
    assert_int_equal(value, 9);
    o.request = "u";
    lossy_lose(LOSSY_ANSWER, 1, count_too, &(rival){b, name, NULL}); /* ours, and changed since */
    assert_status(dibs_counter_take(a, name, 1, &o, &value, NULL), DIBS_ALREADY);
    assert_int_equal(value, 8);
    lossy_stop();
    assert_int_equal(value_of(b, name), 9);
}

/* ---- Many at once ---------------------------------------------------------------------------- */

#define TAKERS 16
#define TAKES  40
#define STOCK  500 /* less than TAKERS * TAKES */

typedef struct taker {
    dibs *d;
    const char *name;
    int number, taken, repeated, short_of, wrong;
} taker;

/* Every tenth is asked for a second time. */
static void take_once(taker *t, int i)
{
    char id[32];
    dibs_counter_options o = {.request = id};
    int64_t left = -1, again = -1;
    dibs_status status;

    snprintf(id, sizeof id, "%d/%d", t->number, i);
    status = dibs_counter_take(t->d, t->name, 1, &o, &left, NULL);
    t->wrong += left < 0 || (status != DIBS_OK && status != DIBS_TOO_FEW);
    t->taken += status == DIBS_OK;
    t->short_of += status == DIBS_TOO_FEW;
    if (status == DIBS_OK && i % 10 == 0) {
        status = dibs_counter_take(t->d, t->name, 1, &o, &again, NULL);
        t->repeated += status == DIBS_ALREADY && again == left;
    } else if (i % 10 == 0) {
        t->repeated++; /* nothing to repeat */
    }
}

static void *taker_main(void *arg)
{
    taker *t = arg;

    for (int i = 0; i < TAKES; i++)
        take_once(t, i);
    return NULL;
}

static void many_take_what_there_is(void **state)
{
    dibs *d[4] = {open_counters(), open_handle(), open_handle(), open_handle()};
    const char *name = fresh("stock");
    pthread_t thread[TAKERS];
    taker t[TAKERS];
    int taken = 0, wrong = 0, repeated = 0, short_of = 0;

    (void)state;
    assert_status(dibs_counter_set(d[0], name, STOCK, NULL, NULL), DIBS_OK);
    for (int i = 0; i < TAKERS; i++) {
        t[i] = (taker){.d = d[i % 4], .name = name, .number = i};
        assert_int_equal(pthread_create(&thread[i], NULL, taker_main, &t[i]), 0);
    }
    for (int i = 0; i < TAKERS; i++) {
        pthread_join(thread[i], NULL);
        taken += t[i].taken;
        wrong += t[i].wrong;
        repeated += t[i].repeated;
        short_of += t[i].short_of;
    }
    assert_int_equal(wrong, 0);
    assert_int_equal(taken, STOCK);
    assert_int_equal(short_of, TAKERS * TAKES - STOCK);
    assert_int_equal(repeated, TAKERS * (TAKES / 10));
    assert_int_equal(value_of(d[1], name), 0);
}

static const struct CMUnitTest tests[] = {
    CASE(a_counter_counts),
    CASE(it_is_never_below_zero),
    CASE(wrong_counts_are_refused),
    CASE(the_extremes_are_counted_right),
    CASE(a_request_counts_once),
    CASE(a_refused_request_may_try_again),
    CASE(a_request_is_forgotten_in_time),
    CASE(a_lost_answer_counts_once),
    CASE(a_lost_answer_is_no_second_ok),
    CASE(many_take_what_there_is),
};

CASES(counter_cases, tests);
