/* Cells: values, versions, ends, limits, fences, lost answers. */
#define _GNU_SOURCE
#include "conformance/suite.h"
#include "support/fork.h"
#include "support/lossy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static dibs *open_cells(void)
{
    if (!the.can.cells)
        skip();
    return open_handle();
}

/* ---- Calls that must go well ----------------------------------------------------------------- */

static uint64_t write_cell(dibs *d, const char *name, uint64_t version, const char *text)
{
    dibs_error err = {0};
    dibs_value now;

    if (dibs_cell_swap(d, name, version, text, strlen(text), NULL, &now, &err) != DIBS_OK)
        fail_msg("%s", err.message);
    assert_null(now.data);
    assert_true(now.version > 0);
    return now.version;
}

/* The version; 0: there is none. */
static uint64_t read_cell(dibs *d, const char *name, const char *expected)
{
    dibs_error err = {0};
    dibs_value v;
    uint64_t version;
    dibs_status status = dibs_cell_read(d, name, &v, &err);

    if (!expected) {
        assert_status(status, DIBS_NOT_FOUND);
        assert_null(v.data);
        return 0;
    }
    if (status != DIBS_OK)
        fail_msg("%s", err.message);
    assert_int_equal(v.size, strlen(expected));
    assert_string_equal(v.data, expected);
    version = v.version;
    dibs_value_free(&v);
    assert_null(v.data);
    return version;
}

/* ---- Values and versions --------------------------------------------------------------------- */

static void a_cell_is_written_and_read(void **state)
{
    dibs *a = open_cells(), *b = open_handle();
    const char *name = fresh("cell");
    uint64_t first, second;
    dibs_value v;

    (void)state;
    read_cell(a, name, NULL);
    first = write_cell(a, name, 0, "one");
    assert_int_equal(read_cell(b, name, "one"), first);
    second = write_cell(b, name, first, "two");
    assert_true(second > first);
    assert_int_equal(read_cell(a, name, "two"), second);
    assert_status(dibs_cell_swap(a, name, DIBS_ANY_VERSION, "a\0b\xff", 4, NULL, NULL, NULL),
                  DIBS_OK);
    assert_status(dibs_cell_read(b, name, &v, NULL), DIBS_OK);
    assert_int_equal(v.size, 4);
    assert_memory_equal(v.data, "a\0b\xff", 5);
    assert_int_equal(v.left_ms, DIBS_FOREVER);
    dibs_value_free(&v);
}

static void a_swap_needs_the_version(void **state)
{
    dibs *d = open_cells();
    const char *name = fresh("version");
    uint64_t version;
    dibs_error err = {0};
    dibs_value now;

    (void)state;
    assert_status(dibs_cell_swap(d, name, DIBS_ANY_VERSION, "x", 1, NULL, &now, NULL),
                  DIBS_NOT_FOUND);
    assert_status(dibs_cell_swap(d, name, 12345, "x", 1, NULL, NULL, NULL), DIBS_NOT_FOUND);
    read_cell(d, name, NULL);
    version = write_cell(d, name, 0, "mine");
    assert_status(dibs_cell_swap(d, name, 0, "x", 1, NULL, &now, &err), DIBS_CONFLICT);
    assert_int_equal(now.version, version);
    assert_string_equal(now.data, "mine");
    assert_non_null(strstr(err.message, name));
    dibs_value_free(&now);
    assert_status(dibs_cell_swap(d, name, version - 1, "x", 1, NULL, NULL, NULL), DIBS_CONFLICT);
    assert_status(dibs_cell_swap(d, name, version + 1, "x", 1, NULL, NULL, NULL), DIBS_CONFLICT);
    assert_status(dibs_cell_delete(d, name, version + 1, NULL, NULL), DIBS_CONFLICT);
    assert_int_equal(read_cell(d, name, "mine"), version);
}

static void versions_grow_over_a_deletion(void **state)
{
    dibs *d = open_cells();
    const char *name = fresh("deleted");
    uint64_t last = 0;

    (void)state;
    for (int i = 0; i < 10; i++) {
        uint64_t version = write_cell(d, name, 0, "A");
        assert_true(version > last);
        if (last)
            assert_status(dibs_cell_swap(d, name, last, "B", 1, NULL, NULL, NULL), DIBS_CONFLICT);
        last = version;
        assert_status(dibs_cell_delete(d, name, i % 2 ? version : DIBS_ANY_VERSION, NULL, NULL),
                      DIBS_OK);
        read_cell(d, name, NULL);
        assert_status(dibs_cell_delete(d, name, version, NULL, NULL), DIBS_NOT_FOUND);
    }
}

typedef struct watched {
    dibs *d;
    const char *name;
} watched;

static bool is_gone(void *ctx)
{
    watched *w = ctx;
    dibs_value v;
    dibs_status status = dibs_cell_read(w->d, w->name, &v, NULL);

    dibs_value_free(&v);
    return status == DIBS_NOT_FOUND;
}

static void a_cell_ends(void **state)
{
    dibs *d = open_cells();
    const char *name = fresh("ends");
    dibs_cell_options o = {.keep_ms = SHORT_MS};
    int64_t begin = clock_ms();
    uint64_t version;
    dibs_value v;

    (void)state;
    assert_status(dibs_cell_swap(d, name, 0, "x", 1, &o, &v, NULL), DIBS_OK);
    assert_in_range(v.left_ms, 1, SHORT_MS);
    version = v.version;
    assert_true(wait_until(is_gone, &(watched){d, name}, LONG_MS));
    assert_true(clock_ms() - begin >= SHORT_MS - 20);
    assert_status(dibs_cell_swap(d, name, version, "y", 1, NULL, NULL, NULL), DIBS_NOT_FOUND);
    assert_true(write_cell(d, name, 0, "again") > version);
}

static void a_new_value_has_a_new_end(void **state)
{
    dibs *d = open_cells();
    const char *name = fresh("kept");
    dibs_value v;

    (void)state;
    assert_status(
        dibs_cell_swap(d, name, 0, "x", 1, &(dibs_cell_options){.keep_ms = 60000}, &v, NULL),
        DIBS_OK);
    assert_in_range(v.left_ms, 60000 - SOON_MS, 60000);
    write_cell(d, name, v.version, "for ever");
    assert_status(dibs_cell_read(d, name, &v, NULL), DIBS_OK);
    assert_int_equal(v.left_ms, DIBS_FOREVER);
    dibs_value_free(&v);
}

/* ---- Limits ---------------------------------------------------------------------------------- */

static void values_up_to_the_limit_fit(void **state)
{
    dibs *d = open_cells();
    size_t most = the.can.value_max;
    const char *name = fresh("large");
    char *large = malloc(most + 1);
    dibs_error err = {0};
    dibs_value v;

    (void)state;
    assert_non_null(large);
    assert_true(most >= 64 * 1024);
    for (size_t i = 0; i < most; i++)
        large[i] = (char)(i * 2654435761u >> 11);
    assert_status(dibs_cell_swap(d, name, 0, large, most, NULL, NULL, &err), DIBS_OK);
    assert_status(dibs_cell_read(d, name, &v, &err), DIBS_OK);
    assert_int_equal(v.size, most);
    assert_memory_equal(v.data, large, most);
    dibs_value_free(&v);
    assert_status(dibs_cell_swap(d, name, 0, large, most + 1, NULL, NULL, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "at most"));
    free(large);
    assert_status(dibs_cell_swap(d, name, DIBS_ANY_VERSION, NULL, 0, NULL, NULL, NULL), DIBS_OK);
    read_cell(d, name, "");
    assert_status(dibs_cell_swap(d, name, DIBS_ANY_VERSION, NULL, 1, NULL, NULL, NULL),
                  DIBS_INVALID);
}

static void odd_names_are_names(void **state)
{
    static const char *const names[] = {
        " ", "a b", "a'b\"c", "{x}", "line\nbreak", "%s%n", "schl\xc3\xbcssel", "\xff\xfe", "c:x",
    };
    dibs *d = open_cells();
    char longest[DIBS_NAME_MAX + 2];
    uint64_t version;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        write_cell(d, names[i], 0, names[i]);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        read_cell(d, names[i], names[i]);
    memset(longest, 'n', sizeof longest);
    longest[DIBS_NAME_MAX + 1] = '\0';
    assert_status(dibs_cell_swap(d, longest, 0, "x", 1, NULL, NULL, NULL), DIBS_INVALID);
    longest[DIBS_NAME_MAX] = '\0';
    version = write_cell(d, longest, 0, "x");
    assert_int_equal(read_cell(d, longest, "x"), version);
    longest[DIBS_NAME_MAX - 1] = '\0';
    read_cell(d, longest, NULL);
}

static void wrong_arguments_are_refused(void **state)
{
    dibs *d = open_cells();
    dibs_error err = {0};
    dibs_value v;

    (void)state;
    assert_status(dibs_cell_read(d, "", &v, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "empty"));
    assert_status(dibs_cell_read(d, NULL, &v, NULL), DIBS_INVALID);
    assert_status(
        dibs_cell_swap(d, "x", 0, "x", 1, &(dibs_cell_options){.keep_ms = -5}, NULL, &err),
        DIBS_INVALID);
    assert_non_null(strstr(err.message, "keep_ms"));
    assert_status(dibs_cell_pass(d, "x", &(dibs_cell_options){.fence = 0}, NULL, NULL),
                  DIBS_INVALID);
    assert_status(dibs_cell_pass(d, "x", &(dibs_cell_options){.fence = 5, .floor = 6}, NULL, NULL),
                  DIBS_INVALID);
    dibs_value_free(NULL);
}

/* ---- Fences ---------------------------------------------------------------------------------- */

static dibs_status fenced_write(dibs *d, const char *name, uint64_t fence, const char *text)
{
    return dibs_cell_swap(d, name, DIBS_ANY_VERSION, text, strlen(text),
                          &(dibs_cell_options){.fence = fence}, NULL, NULL);
}

static void an_older_fence_writes_nothing(void **state)
{
    dibs *d = open_cells();
    const char *name = fresh("fence");
    dibs_value v;

    (void)state;
    assert_status(dibs_cell_pass(d, name, &(dibs_cell_options){.fence = 100}, &v, NULL), DIBS_OK);
    assert_int_equal(v.version, 0);
    assert_status(
        dibs_cell_swap(d, name, 0, "by 100", 6, &(dibs_cell_options){.fence = 100}, NULL, NULL),
        DIBS_OK);
    assert_status(
        dibs_cell_pass(d, name, &(dibs_cell_options){.fence = 200, .floor = 150}, &v, NULL),
        DIBS_OK);
    assert_string_equal(v.data, "by 100");
    dibs_value_free(&v);
    assert_status(fenced_write(d, name, 100, "late"), DIBS_FENCED);
    assert_status(fenced_write(d, name, 149, "late"), DIBS_FENCED);
    assert_status(
        dibs_cell_delete(d, name, DIBS_ANY_VERSION, &(dibs_cell_options){.fence = 100}, NULL),
        DIBS_FENCED);
    assert_status(dibs_cell_pass(d, name, &(dibs_cell_options){.fence = 100}, &v, NULL),
                  DIBS_FENCED);
    assert_status(fenced_write(d, name, 150, "by 150"), DIBS_OK); /* shares with 200 */
    assert_status(fenced_write(d, name, 200, "by 200"), DIBS_OK);
    read_cell(d, name, "by 200");
}

/* Nobody presented anything before: the writes alone keep their order. */
static void a_fenced_write_raises_the_floor(void **state)
{
    dibs *d = open_cells();
    const char *name = fresh("raise");
    dibs_cell_options guarded = {.fence = 200};
    dibs_value v;

    (void)state;
    assert_status(dibs_cell_swap(d, name, 0, "by 200", 6, &guarded, NULL, NULL), DIBS_OK);
    assert_status(fenced_write(d, name, 199, "late"), DIBS_FENCED);
    assert_status(fenced_write(d, name, 300, "by 300"), DIBS_OK);
    assert_status(fenced_write(d, name, 200, "late"), DIBS_FENCED);
    assert_status(fenced_write(d, name, 300, "again"), DIBS_OK);
    assert_status(
        dibs_cell_swap(d, name, 7, "x", 1, &(dibs_cell_options){.fence = 400}, NULL, NULL),
        DIBS_CONFLICT); /* nothing was written, and nothing raised */
    assert_status(fenced_write(d, name, 301, "by 301"), DIBS_OK);
    guarded.fence = 400;
    assert_status(dibs_cell_delete(d, name, DIBS_ANY_VERSION, &guarded, NULL), DIBS_OK);
    guarded.fence = 399;
    assert_status(dibs_cell_swap(d, name, 0, "late", 4, &guarded, NULL, NULL), DIBS_FENCED);
    assert_status(dibs_cell_read(d, name, &v, NULL), DIBS_NOT_FOUND);
    guarded = (dibs_cell_options){.fence = 600, .floor = 500}; /* shares with 500 */
    assert_status(dibs_cell_swap(d, name, 0, "by 600", 6, &guarded, NULL, NULL), DIBS_OK);
    assert_status(fenced_write(d, name, 499, "late"), DIBS_FENCED);
    assert_status(fenced_write(d, name, 500, "by 500"), DIBS_OK);
    guarded.floor = 601;
    assert_status(dibs_cell_swap(d, name, DIBS_ANY_VERSION, "x", 1, &guarded, NULL, NULL),
                  DIBS_INVALID);
}

static void a_floor_outlives_its_value(void **state)
{
    dibs *d = open_cells();
    const char *name = fresh("floor");
    dibs_cell_options guarded = {.fence = 200};

    (void)state;
    assert_status(dibs_cell_pass(d, name, &(dibs_cell_options){.fence = 200}, NULL, NULL), DIBS_OK);
    assert_status(dibs_cell_swap(d, name, 0, "x", 1, &guarded, NULL, NULL), DIBS_OK);
    assert_status(dibs_cell_delete(d, name, DIBS_ANY_VERSION, &guarded, NULL), DIBS_OK);
    assert_status(dibs_cell_pass(d, name, &(dibs_cell_options){.fence = 199}, NULL, NULL),
                  DIBS_FENCED);
    guarded.keep_ms = SHORT_MS;
    assert_status(dibs_cell_swap(d, name, 0, "x", 1, &guarded, NULL, NULL), DIBS_OK);
    assert_true(wait_until(is_gone, &(watched){d, name}, LONG_MS));
    guarded.fence = 199;
    assert_status(dibs_cell_swap(d, name, 0, "x", 1, &guarded, NULL, NULL), DIBS_FENCED);
}

/* Raise, read, write: an old holder between the new one's read and write changes nothing. */
static void a_lock_guards_a_cell(void **state)
{
    dibs *a = open_cells(), *b = open_handle();
    const char *name = fresh("guarded");
    dibs_grant *old = take(a, name, &(dibs_lock_options){.no_renew = true, .lease_ms = SHORT_MS});
    uint64_t was = dibs_grant_fence(old);
    dibs_grant *new;
    dibs_value v;

    (void)state;
    write_cell(a, name, 0, "0");
    assert_status(dibs_cell_pass(a, name,
                                 &(dibs_cell_options){.fence = was, .floor = dibs_grant_floor(old)},
                                 NULL, NULL),
                  DIBS_OK);
    new = take(b, name, NULL);
    assert_true(dibs_grant_fence(new) > was);
    assert_status(dibs_cell_pass(b, name,
                                 &(dibs_cell_options){.fence = dibs_grant_fence(new),
                                                      .floor = dibs_grant_floor(new)},
                                 &v, NULL),
                  DIBS_OK);
    assert_string_equal(v.data, "0");
    dibs_value_free(&v);
    assert_status(fenced_write(a, name, was, "old"), DIBS_FENCED);
    assert_status(fenced_write(b, name, dibs_grant_fence(new), "1"), DIBS_OK);
    read_cell(a, name, "1");
    unlock(new);
    unlock(old);
}

/* ---- Lost answers ---------------------------------------------------------------------------- */

static void overwrite(void *data)
{
    watched *w = data;

    write_cell(w->d, w->name, DIBS_ANY_VERSION, "another's");
}

static void a_lost_answer_is_asked_for_again(void **state)
{
    dibs *a = open_cells(), *b = open_handle();
    const char *name = fresh("lost");
    uint64_t version;

    (void)state;
    lossy_put_in(a);
    for (int way = LOSSY_ANSWER; way <= LOSSY_REQUEST; way++) {
        lossy_lose((lossy_way)way, 2, NULL, NULL);
        version = write_cell(a, name, 0, "once");
        assert_int_equal(read_cell(b, name, "once"), version);
        lossy_lose((lossy_way)way, 1, NULL, NULL);
        assert_true(write_cell(a, name, version, "twice") > version);
        assert_status(dibs_cell_delete(b, name, DIBS_ANY_VERSION, NULL, NULL), DIBS_OK);
    }
    lossy_stop();
}

static void what_cannot_be_decided_is_unknown(void **state)
{
    dibs *a = open_cells(), *b = open_handle();
    const char *name = fresh("unknown");
    watched w = {b, name};
    uint64_t version;

    (void)state;
    lossy_put_in(a);
    version = write_cell(a, name, 0, "x");
    for (int way = LOSSY_ANSWER; way <= LOSSY_REQUEST; way++) {
        lossy_lose((lossy_way)way, 1, overwrite, &w);
        assert_status(dibs_cell_swap(a, name, version, "y", 1, NULL, NULL, NULL), DIBS_UNKNOWN);
        version = read_cell(a, name, "another's");
    }
    lossy_lose(LOSSY_REFUSED, 1, NULL, NULL);
    assert_status(dibs_cell_swap(a, name, version, "y", 1, NULL, NULL, NULL), DIBS_UNAVAILABLE);
    assert_int_equal(read_cell(b, name, "another's"), version);
    lossy_stop();
}

static void silence_ends_with_the_deadline(void **state)
{
    dibs *d;
    int64_t begin;
    dibs_error err = {0};

    (void)state;
    if (!the.can.cells)
        skip();
    d = open_with(&(dibs_options){.request_ms = 300});
    lossy_put_in(d);
    lossy_lose(LOSSY_REQUEST, -1, NULL, NULL);
    begin = clock_ms();
    assert_status(dibs_cell_swap(d, fresh("silent"), 0, "y", 1, NULL, NULL, &err), DIBS_UNKNOWN);
    assert_in_range(clock_ms() - begin, 50, 300 + SOON_MS);
    assert_int_equal(err.status, DIBS_UNKNOWN);
    lossy_stop();
}

/* ---- Many at once ---------------------------------------------------------------------------- */

#define ADDERS 8
#define ROUNDS 25

static void add_one(dibs *d, const char *name)
{
    for (;;) {
        dibs_value v;
        char text[32];
        uint64_t version;
        int n = 0;
        if (dibs_cell_read(d, name, &v, NULL) == DIBS_OK)
            n = atoi(v.data);
        version = v.version;
        dibs_value_free(&v);
        snprintf(text, sizeof text, "%d", n + 1);
        if (dibs_cell_swap(d, name, version, text, strlen(text), NULL, NULL, NULL) == DIBS_OK)
            return;
    }
}

static void *add_many(void *arg)
{
    watched *w = arg;

    for (int i = 0; i < ROUNDS; i++)
        add_one(w->d, w->name);
    return NULL;
}

static void nothing_is_lost_between_read_and_swap(void **state)
{
    dibs *d[2] = {open_cells(), open_handle()};
    const char *name = fresh("sum");
    pthread_t thread[ADDERS];
    watched w[ADDERS];
    char text[32];

    (void)state;
    for (int i = 0; i < ADDERS; i++) {
        w[i] = (watched){d[i % 2], name};
        assert_int_equal(pthread_create(&thread[i], NULL, add_many, &w[i]), 0);
    }
    for (int i = 0; i < ADDERS; i++)
        pthread_join(thread[i], NULL);
    snprintf(text, sizeof text, "%d", ADDERS * ROUNDS);
    read_cell(d[0], name, text);
}

/* ---- Engines without, and children ----------------------------------------------------------- */

static void an_engine_without_says_so(void **state)
{
    dibs *d = open_handle();
    dibs_error err = {0};
    char token[DIBS_TOKEN_SIZE];
    dibs_once *o = NULL;
    dibs_value v;

    (void)state;
    if (the.can.cells)
        skip();
    assert_status(dibs_cell_read(d, "x", &v, &err), DIBS_UNSUPPORTED);
    assert_non_null(strstr(err.message, the.engine));
    assert_status(dibs_counter_set(d, "x", 1, NULL, NULL), DIBS_UNSUPPORTED);
    assert_status(dibs_once_begin(d, "x", NULL, &o, NULL), DIBS_UNSUPPORTED);
    assert_null(o);
    assert_status(dibs_token_issue(d, NULL, token, NULL), DIBS_UNSUPPORTED);
}

static int check_child(dibs *d, dibs_once *mine)
{
    char token[DIBS_TOKEN_SIZE] = "";
    dibs_once *o = NULL;
    dibs_value v;
    int bad = 0;

    bad |= dibs_cell_read(d, "x", &v, NULL) != DIBS_FORKED ? 1 : 0;
    bad |= dibs_counter_add(d, "x", 1, NULL, NULL, NULL) != DIBS_FORKED ? 2 : 0;
    bad |= dibs_once_begin(d, "x", NULL, &o, NULL) != DIBS_FORKED || o ? 4 : 0;
    bad |= dibs_token_redeem(d, token, &(dibs_token_options){.scope = "x"}, NULL) != DIBS_FORKED
               ? 8
               : 0;
    bad |= dibs_once_held(mine) || dibs_once_remaining_ms(mine) ? 16 : 0;
    bad |= dibs_once_finish(mine, NULL, 0, 0, NULL) != DIBS_FORKED ? 32 : 0;
    bad |= dibs_once_step(mine, "s", NULL, 0, NULL) != DIBS_FORKED ? 64 : 0;
    dibs_once_free(mine);
    dibs_close(d);
    return bad;
}

static void a_forked_child_is_refused(void **state)
{
    dibs *d = open_cells();
    dibs_once *o = NULL;
    int status;
    pid_t pid;

    (void)state;
    assert_status(dibs_once_begin(d, fresh("fork"), NULL, &o, NULL), DIBS_OK);
    pid = fork_at_rest();
    if (pid == 0) {
        alarm(10);
        _exit(check_child(d, o));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(dibs_once_held(o));
    assert_status(dibs_once_finish(o, NULL, 0, 0, NULL), DIBS_OK);
    dibs_once_free(o);
}

static const struct CMUnitTest tests[] = {
    CASE(a_cell_is_written_and_read),
    CASE(a_swap_needs_the_version),
    CASE(versions_grow_over_a_deletion),
    CASE(a_cell_ends),
    CASE(a_new_value_has_a_new_end),
    CASE(values_up_to_the_limit_fit),
    CASE(odd_names_are_names),
    CASE(wrong_arguments_are_refused),
    CASE(an_older_fence_writes_nothing),
    CASE(a_fenced_write_raises_the_floor),
    CASE(a_floor_outlives_its_value),
    CASE(a_lock_guards_a_cell),
    CASE(a_lost_answer_is_asked_for_again),
    CASE(what_cannot_be_decided_is_unknown),
    CASE(silence_ends_with_the_deadline),
    CASE(nothing_is_lost_between_read_and_swap),
    CASE(an_engine_without_says_so),
    CASE(a_forked_child_is_refused),
};

CASES(cell_cases, tests);
