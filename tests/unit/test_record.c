/* Records of `once`: to bytes and back, and what is no record is told, whatever the bytes are. */
#include "recipes/record.h"
#include "support/alloc.h"
#include "support/env.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dibs__run_record sample(void)
{
    dibs__run_record r = {
        .state = DIBS__RUN_DONE,
        .runs = 3,
        .code = -7,
        .has_result = true,
        .pid = 4711,
        .since = 1700000000000000,
        .lease = 30000000,
        .keep = INT64_MAX,
        .tombstone = 5,
        .fence = UINT64_MAX - 1,
        .fingerprint = "f\0g",
        .fingerprint_size = 3,
        .result = "result\0!",
        .result_size = 8,
    };

    snprintf(r.owner, sizeof r.owner, "the owner");
    snprintf(r.host, sizeof r.host, "host");
    snprintf(r.attempt, sizeof r.attempt, "attempt-1");
    r.steps = dibs__step_new("one", "1", 1);
    r.steps->next = dibs__step_new("two", "", 0);
    return r;
}

static void a_record_comes_back(void **state)
{
    dibs__run_record r = sample(), back;
    size_t size;
    void *bytes = dibs__record_encode(&r, &size);

    (void)state;
    assert_non_null(bytes);
    assert_int_equal(dibs__record_decode(bytes, size, &back, NULL), DIBS_OK);
    assert_int_equal(back.state, r.state);
    assert_int_equal(back.runs, 3);
    assert_int_equal(back.code, -7);
    assert_int_equal(back.pid, r.pid);
    assert_int_equal(back.since, r.since);
    assert_int_equal(back.lease, r.lease);
    assert_int_equal(back.keep, INT64_MAX);
    assert_int_equal(back.tombstone, 5);
    assert_true(back.fence == r.fence);
    assert_string_equal(back.owner, r.owner);
    assert_string_equal(back.host, r.host);
    assert_string_equal(back.attempt, r.attempt);
    assert_int_equal(back.fingerprint_size, 3);
    assert_memory_equal(back.fingerprint, "f\0g", 3);
    assert_true(back.has_result);
    assert_int_equal(back.result_size, 8);
    assert_memory_equal(back.result, r.result, 8);
    assert_string_equal(back.steps->name, "one");
    assert_string_equal(back.steps->data, "1");
    assert_int_equal(dibs__step_find(back.steps, "two")->size, 0);
    assert_null(dibs__step_find(back.steps, "three"));
    assert_int_equal(dibs__record_load(&back), dibs__record_load(&r));
    dibs__steps_free(back.steps);
    dibs__steps_free(r.steps);
    free(bytes);
}

static void a_fresh_step_takes_its_namesakes_place(void **state)
{
    dibs__run_record r = sample(), back;
    dibs__step *fresh = dibs__step_new("one", "new", 3);
    size_t size, without = dibs__record_load(&r);
    void *bytes;

    (void)state;
    r.fresh = fresh;
    assert_int_equal(dibs__record_load(&r), without + 2);
    bytes = dibs__record_encode(&r, &size);
    assert_int_equal(dibs__record_decode(bytes, size, &back, NULL), DIBS_OK);
    assert_string_equal(dibs__step_find(back.steps, "one")->data, "new");
    assert_non_null(dibs__step_find(back.steps, "two"));
    assert_null(back.steps->next->next);
    dibs__steps_free(back.steps);
    dibs__steps_free(r.steps);
    free(fresh);
    free(bytes);
}

static void a_life_has_all_its_parts(void **state)
{
    dibs__run_record r = {.state = DIBS__RUN_DONE, .lease = 100, .keep = 20, .tombstone = 3};

    (void)state;
    assert_int_equal(dibs__record_life(&r), 23);
    r.state = DIBS__RUN_RUNNING;
    assert_int_equal(dibs__record_life(&r), 123);
    r.tombstone = INT64_MAX;
    assert_int_equal(dibs__record_life(&r), 0);
    r.tombstone = 0;
    r.keep = INT64_MAX;
    assert_int_equal(dibs__record_life(&r), 0);
    r.left = 7; /* put back */
    assert_int_equal(dibs__record_life(&r), 7);
    r.left = INT64_MAX;
    assert_int_equal(dibs__record_life(&r), 0);
    r.left = 0;
    r.state = DIBS__RUN_FREE;
    assert_int_equal(dibs__record_life(&r), (int64_t)24 * 3600 * 1000000);
}

/* They had no `decided_by`, and the first no `crashed`, which are empty texts here: their sizes are taken
 * out. */
static void older_formats_are_read(void **state)
{
    (void)state;
    for (unsigned char format = 1; format <= 2; format++) {
        dibs__run_record r = sample(), back = {0};
        size_t size, at, less = format == 1 ? 8 : 4;
        unsigned char *bytes = dibs__record_encode(&r, &size);

        at = 58 + 4 + r.fingerprint_size + 4 + strlen(r.owner) + 4 + strlen(r.host) + 4 +
             strlen(r.attempt);
        memmove(bytes + at, bytes + at + less, size - at - less);
        bytes[0] = format;
        assert_int_equal(dibs__record_decode(bytes, size - less, &back, NULL), DIBS_OK);
        assert_string_equal(back.attempt, r.attempt);
        assert_string_equal(back.crashed, "");
        assert_string_equal(back.decided_by, "");
        assert_int_equal(back.result_size, r.result_size);
        dibs__steps_free(back.steps);
        dibs__steps_free(r.steps);
        free(bytes);
    }
}

/* A record with everything as long as it may be, as far as a list reads it. */
static dibs__run_record largest(void)
{
    static char fingerprint[255], result[100000];
    dibs__run_record r = sample();

    dibs__steps_free(r.steps);
    r.steps = NULL;
    memset(r.owner, 'o', sizeof r.owner - 1);
    memset(r.host, 'h', sizeof r.host - 1);
    memset(r.attempt, 'a', sizeof r.attempt - 1);
    memset(r.crashed, 'c', sizeof r.crashed - 1);
    memset(r.decided_by, 'd', sizeof r.decided_by - 1);
    r.fingerprint = fingerprint;
    r.fingerprint_size = sizeof fingerprint;
    r.result = result;
    r.result_size = sizeof result;
    return r;
}

static void a_peek_reads_the_beginning(void **state)
{
    dibs__run_record r = largest(), back;
    dibs__record_sizes sizes;
    size_t size;
    char *bytes = dibs__record_encode(&r, &size), *head = malloc(DIBS__RECORD_HEAD);

    (void)state;
    memcpy(head, bytes, DIBS__RECORD_HEAD);
    assert_int_equal(dibs__record_peek(head, DIBS__RECORD_HEAD, size, &back, &sizes, NULL),
                     DIBS_OK);
    assert_int_equal(sizes.result, r.result_size);
    assert_int_equal(sizes.steps, 0);
    assert_string_equal(back.decided_by, r.decided_by);
    assert_null(back.steps);
    assert_int_equal(dibs__record_peek(head, DIBS__RECORD_HEAD, size - 1, &back, &sizes, NULL),
                     DIBS_ENGINE_FAILED); /* one byte is missing */
    assert_int_equal(dibs__record_peek(head, 200, 200, &back, &sizes, NULL), DIBS_ENGINE_FAILED);
    assert_int_equal(dibs__record_peek(head, 0, 0, &back, &sizes, NULL), DIBS_ENGINE_FAILED);
    head[0] = 99;
    assert_int_equal(dibs__record_peek(head, DIBS__RECORD_HEAD, size, &back, &sizes, NULL),
                     DIBS_ENGINE_FAILED);
    free(bytes);
    r = sample();
    bytes = dibs__record_encode(&r, &size);
    assert_int_equal(dibs__record_peek(bytes, size, size, &back, &sizes, NULL), DIBS_OK);
    assert_int_equal(sizes.steps, 2);
    dibs__steps_free(r.steps);
    free(bytes);
    free(head);
}

static void a_newer_format_is_reported(void **state)
{
    dibs__run_record r = sample(), back;
    dibs_error err = {0};
    size_t size;
    unsigned char *bytes = dibs__record_encode(&r, &size);

    (void)state;
    bytes[0] = 99;
    assert_int_equal(dibs__record_decode(bytes, size, &back, &err), DIBS_ENGINE_FAILED);
    assert_non_null(strstr(err.message, "format 99"));
    bytes[0] = 0;
    assert_int_equal(dibs__record_decode(bytes, size, &back, &err), DIBS_ENGINE_FAILED);
    assert_non_null(strstr(err.message, "format 0"));
    dibs__steps_free(r.steps);
    free(bytes);
}

/* In memory of its own size, so that a sanitizer sees a read past the end. */
static dibs_status decode_copy(const unsigned char *bytes, size_t size)
{
    unsigned char *copy = malloc(size ? size : 1);
    dibs__run_record back;
    dibs_error err = {0};
    dibs_status status;

    assert_non_null(copy);
    memcpy(copy, bytes, size);
    status = dibs__record_decode(copy, size, &back, &err);
    if (status == DIBS_OK)
        dibs__steps_free(back.steps);
    else
        assert_true(err.message[0] != '\0');
    free(copy);
    return status;
}

static void a_damaged_record_is_reported(void **state)
{
    dibs__run_record r = sample();
    size_t size;
    unsigned char *bytes = dibs__record_encode(&r, &size);
    uint64_t seed = 1;

    (void)state;
    for (size_t n = 0; n < size; n++)
        assert_int_equal(decode_copy(bytes, n), DIBS_ENGINE_FAILED);
    assert_int_equal(decode_copy(bytes, size), DIBS_OK);
    for (int i = 0; i < 20000; i++) {
        size_t at = sim_random(&seed) % size;
        unsigned char was = bytes[at];
        dibs_status status;
        bytes[at] = (unsigned char)sim_random(&seed);
        status = decode_copy(bytes, size);
        assert_true(status == DIBS_OK || status == DIBS_ENGINE_FAILED);
        bytes[at] = was;
    }
    dibs__steps_free(r.steps);
    free(bytes);
}

static void decode_changed(size_t at, unsigned char value, dibs_status status)
{
    dibs__run_record r = sample();
    size_t size;
    unsigned char *bytes = dibs__record_encode(&r, &size);

    bytes[at] = value;
    assert_int_equal(decode_copy(bytes, size), status);
    dibs__steps_free(r.steps);
    free(bytes);
}

static void only_known_formats_and_states_are_read(void **state)
{
    (void)state;
    decode_changed(0, 0, DIBS_ENGINE_FAILED);
    decode_changed(0, 3, DIBS_OK);
    decode_changed(0, 4, DIBS_ENGINE_FAILED);
    decode_changed(1, DIBS__RUN_RUNNING - 1, DIBS_ENGINE_FAILED);
    decode_changed(1, DIBS__RUN_RUNNING, DIBS_OK);
    decode_changed(1, DIBS__RUN_FREE, DIBS_OK);
    decode_changed(1, DIBS__RUN_FREE + 1, DIBS_ENGINE_FAILED);
}

/* A name that fills its room has no place for its end. */
static void a_text_that_does_not_fit_is_refused(void **state)
{
    dibs__run_record r = sample(), back;
    size_t size, at = 58 + 4 + r.fingerprint_size, room = sizeof r.owner;
    unsigned char *bytes, *longer;

    (void)state;
    memset(r.owner, 'o', room - 1);
    r.owner[room - 1] = '\0';
    bytes = dibs__record_encode(&r, &size);
    assert_int_equal(dibs__record_decode(bytes, size, &back, NULL), DIBS_OK);
    assert_string_equal(back.owner, r.owner);
    dibs__steps_free(back.steps);
    longer = malloc(size + 1);
    memcpy(longer, bytes, at + 4 + room - 1);
    longer[at + 4 + room - 1] = 'o';
    memcpy(longer + at + 4 + room, bytes + at + 4 + room - 1, size - (at + 4 + room - 1));
    longer[at] = (unsigned char)room;
    assert_int_equal(decode_copy(longer, size + 1), DIBS_ENGINE_FAILED);
    dibs__steps_free(r.steps);
    free(bytes);
    free(longer);
}

static void the_load_counts_what_the_user_brought(void **state)
{
    dibs__run_record r = sample(), back;
    size_t size;
    void *bytes;

    (void)state;
    assert_int_equal(dibs__record_load(&r), 8 + (3 + 1 + 8) + (3 + 0 + 8));
    r.has_result = false; /* whatever is in `result` */
    assert_int_equal(dibs__record_load(&r), (3 + 1 + 8) + (3 + 0 + 8));
    snprintf(r.crashed, sizeof r.crashed, "h-1");
    bytes = dibs__record_encode(&r, &size);
    assert_int_equal(dibs__record_decode(bytes, size, &back, NULL), DIBS_OK);
    assert_false(back.has_result);
    assert_int_equal(back.result_size, 0);
    assert_string_equal(back.crashed, "h-1");
    dibs__steps_free(back.steps);
    dibs__steps_free(r.steps);
    free(bytes);
}

/* Other versions read what this one writes. */
static void a_record_is_these_bytes(void **state)
{
    static const char bytes[] = "\3\2\3\0\0\0\371\377\377\377\0\1\0\0\0\0\0\0\1\0\0\0\0\0\0\0"
                                "\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0\5\0\0\0\0\0\0\200"
                                "\1\0\0\0f\1\0\0\0o\1\0\0\0h\1\0\0\0a\1\0\0\0c\1\0\0\0d"
                                "\2\0\0\0\1\0\0\0s\1\0\0\0"
                                "1\1\0\0\0t\0\0\0\0\1\2\0\0\0ok";
    dibs__run_record r = {.state = DIBS__RUN_DONE,
                          .runs = 3,
                          .code = -7,
                          .has_result = true,
                          .pid = 256,
                          .since = 1,
                          .lease = 2,
                          .keep = 3,
                          .tombstone = 4,
                          .fence = 5 | (uint64_t)128 << 56,
                          .owner = "o",
                          .host = "h",
                          .attempt = "a",
                          .crashed = "c",
                          .decided_by = "d",
                          .fingerprint = "f",
                          .fingerprint_size = 1,
                          .result = "ok",
                          .result_size = 2};
    dibs__step *fresh = dibs__step_new("t", NULL, 0);
    size_t size;
    void *got;

    (void)state;
    r.steps = dibs__step_new("s", "1", 1);
    r.fresh = fresh;
    got = dibs__record_encode(&r, &size);
    assert_int_equal(size, sizeof bytes - 1);
    assert_memory_equal(got, bytes, size);
    dibs__steps_free(r.steps);
    free(fresh);
    free(got);
}

/* Whatever was in the structure before: what a record does not have is zero, and after a failure all of it. */
static void what_is_not_there_is_zero(void **state)
{
    static const dibs__run_record zero;
    static const dibs__record_sizes none;
    dibs__run_record r = sample(), back;
    dibs__record_sizes sizes;
    size_t size;
    unsigned char *bytes = dibs__record_encode(&r, &size);

    (void)state;
    for (int peek = 0; peek < 2; peek++)
        for (unsigned char format = 3; format <= 4; format++) {
            dibs_status status;
            memset(&back, 0xff, sizeof back);
            memset(&sizes, 0xff, sizeof sizes);
            bytes[0] = format;
            status = peek ? dibs__record_peek(bytes, size, size, &back, &sizes, NULL)
                          : dibs__record_decode(bytes, size, &back, NULL);
            assert_int_equal(status, format == 3 ? DIBS_OK : DIBS_ENGINE_FAILED);
            assert_null(back.fresh);
            assert_int_equal(back.left, 0);
            if (format == 4) {
                assert_memory_equal(&back, &zero, sizeof zero);
                if (peek)
                    assert_memory_equal(&sizes, &none, sizeof none);
            }
            dibs__steps_free(back.steps);
        }
    dibs__steps_free(r.steps);
    free(bytes);
}

/* No time in it is below zero; zero is one. */
static void a_negative_time_is_damage(void **state)
{
    static const size_t at[] = {26, 34, 42}; /* lease, keep, tombstone */

    (void)state;
    for (size_t i = 0; i < 3; i++)
        for (int negative = 0; negative < 2; negative++) {
            dibs__run_record r = sample();
            size_t size;
            unsigned char *bytes = dibs__record_encode(&r, &size);
            memset(bytes + at[i], negative ? 0xff : 0, 8);
            assert_int_equal(decode_copy(bytes, size), negative ? DIBS_ENGINE_FAILED : DIBS_OK);
            dibs__steps_free(r.steps);
            free(bytes);
        }
}

static void what_comes_after_a_record_is_damage(void **state)
{
    dibs__run_record r = sample(), back;
    dibs_error err = {0};
    size_t size;
    unsigned char *bytes = dibs__record_encode(&r, &size), *longer = malloc(size + 1);

    (void)state;
    memcpy(longer, bytes, size);
    longer[size] = 0;
    assert_int_equal(dibs__record_decode(longer, size + 1, &back, &err), DIBS_ENGINE_FAILED);
    assert_null(back.steps);
    assert_non_null(strstr(err.message, "damaged"));
    dibs__steps_free(r.steps);
    free(bytes);
    free(longer);
}

/* With one step, with none, and with as many as a damaged record can claim. */
static void a_peek_counts_steps(void **state)
{
    dibs__run_record r = sample(), back;
    dibs__record_sizes sizes;

    (void)state;
    dibs__steps_free(r.steps->next);
    r.steps->next = NULL;
    r.has_result = false;
    for (int steps = 1; steps >= 0; steps--) {
        size_t size, at;
        unsigned char *bytes = dibs__record_encode(&r, &size);
        assert_int_equal(dibs__record_peek(bytes, size, size, &back, &sizes, NULL), DIBS_OK);
        assert_int_equal(sizes.steps, steps);
        assert_int_equal(sizes.result, 0);
        assert_false(back.has_result);
        at = 58 + 4 + r.fingerprint_size + 4 + strlen(r.owner) + 4 + strlen(r.host) + 4 +
             strlen(r.attempt) + 4 + 4;
        assert_int_equal(bytes[at], steps);
        for (size_t more = 0; steps && more < 2; more++) {
            bytes[at] = (unsigned char)(size + more);
            assert_int_equal(dibs__record_peek(bytes, size, size, &back, &sizes, NULL),
                             more ? DIBS_ENGINE_FAILED : DIBS_OK);
        }
        free(bytes);
        if (steps)
            dibs__steps_free(r.steps);
        r.steps = NULL;
    }
    r.has_result = true;
    r.result_size = 0;
    {
        size_t size;
        void *bytes = dibs__record_encode(&r, &size);
        assert_int_equal(dibs__record_peek(bytes, size, size, &back, &sizes, NULL), DIBS_OK);
        assert_true(back.has_result);
        free(bytes);
    }
}

/* Of any size: what is beside it in memory stays as it is. */
static void a_step_fits_its_memory(void **state)
{
    static const char bytes[80] =
        "0123456789012345678901234567890123456789012345678901234567890123456789";
    dibs__step *steps[64];

    (void)state;
    for (size_t i = 0; i < 64; i++)
        steps[i] = dibs__step_new("name", bytes, i);
    for (size_t i = 0; i < 64; i++) {
        assert_string_equal(steps[i]->name, "name");
        assert_int_equal(steps[i]->size, i);
        assert_memory_equal(steps[i]->data, bytes, i);
        assert_int_equal(((char *)steps[i]->data)[i], 0);
    }
    for (size_t i = 0; i < 64; i++)
        dibs__steps_free(steps[i]);
}

static void no_memory_is_a_status(void **state)
{
    dibs__run_record r = sample(), back;
    dibs_error err = {0};
    size_t size;
    void *bytes = dibs__record_encode(&r, &size);
    long live = alloc_live();

    (void)state;
    for (int n = 1; n <= 2; n++) {
        alloc_fail(n, false);
        assert_int_equal(dibs__record_decode(bytes, size, &back, &err), DIBS_NO_MEMORY);
        assert_true(alloc_heal());
        assert_string_equal(err.message, "out of memory");
        assert_null(back.steps);
        assert_true(!alloc_balances || alloc_live() == live);
    }
    alloc_fail(1, false);
    assert_null(dibs__record_encode(&r, &size));
    assert_true(alloc_heal());
    alloc_fail(1, false);
    assert_null(dibs__step_new("a", NULL, 0));
    assert_true(alloc_heal());
    dibs__steps_free(r.steps);
    free(bytes);
    if (alloc_balances)
        assert_int_equal(alloc_live(), live - 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_comes_back),
        cmocka_unit_test(a_fresh_step_takes_its_namesakes_place),
        cmocka_unit_test(a_life_has_all_its_parts),
        cmocka_unit_test(older_formats_are_read),
        cmocka_unit_test(a_peek_reads_the_beginning),
        cmocka_unit_test(a_newer_format_is_reported),
        cmocka_unit_test(a_damaged_record_is_reported),
        cmocka_unit_test(only_known_formats_and_states_are_read),
        cmocka_unit_test(a_text_that_does_not_fit_is_refused),
        cmocka_unit_test(the_load_counts_what_the_user_brought),
        cmocka_unit_test(a_record_is_these_bytes),
        cmocka_unit_test(what_is_not_there_is_zero),
        cmocka_unit_test(a_negative_time_is_damage),
        cmocka_unit_test(what_comes_after_a_record_is_damage),
        cmocka_unit_test(a_peek_counts_steps),
        cmocka_unit_test(a_step_fits_its_memory),
        cmocka_unit_test(no_memory_is_a_status),
    };

    return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
