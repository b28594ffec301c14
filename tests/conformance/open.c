/* Opening and closing handles, and names. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void refuse(const char *url, dibs_status want)
{
    dibs *d = NULL;
    dibs_error err = {0};
    dibs_status got = dibs_open(url, NULL, &d, &err);

    if (got != want)
        fail_msg("%s: %s, not %s: %s", url, dibs_status_name(got), dibs_status_name(want),
                 err.message);
    assert_null(d);
    assert_int_equal(err.status, want);
    assert_true(strlen(err.message) > 10);
}

static void bad_urls_are_refused(void **state)
{
    char url[600];

    (void)state;
    refuse("nosuch://x", DIBS_INVALID);
    refuse("no url", DIBS_INVALID);
    refuse("", DIBS_INVALID);
    snprintf(url, sizeof url, "%s%cmisspelt=1", the.url, strchr(the.url, '?') ? '&' : '?');
    refuse(url, DIBS_INVALID);
}

static void an_unknown_scheme_names_those_there_are(void **state)
{
    dibs *d = NULL;
    dibs_error err = {0};

    (void)state;
    assert_status(dibs_open("nosuch://x", NULL, &d, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "nosuch"));
    assert_non_null(strstr(err.message, the.engine));
}

static void the_environment_names_the_default(void **state)
{
    dibs *d = NULL;

    (void)state;
    setenv("DIBS_URL", the.url, 1);
    assert_status(dibs_open(NULL, NULL, &d, NULL), DIBS_OK);
    assert_string_equal(dibs_engine_name(d), the.engine);
    dibs_close(d);
    setenv("DIBS_URL", "nosuch://x", 1);
    assert_status(dibs_open(NULL, NULL, &d, NULL), DIBS_INVALID);
    unsetenv("DIBS_URL");
}

static void bad_options_are_refused(void **state)
{
    dibs *d = NULL;
    char owner[DIBS_OWNER_MAX + 2];

    (void)state;
    memset(owner, 'x', sizeof owner);
    owner[DIBS_OWNER_MAX + 1] = '\0';
    assert_status(dibs_open(the.url, &(dibs_options){.owner = owner}, &d, NULL), DIBS_INVALID);
    assert_status(dibs_open(the.url, &(dibs_options){.connect_ms = -1}, &d, NULL), DIBS_INVALID);
    assert_status(dibs_open(the.url, &(dibs_options){.request_ms = -1}, &d, NULL), DIBS_INVALID);
    assert_null(d);
}

static void the_engine_lists_what_it_can(void **state)
{
    dibs *d = open_handle();
    dibs_engine_info info;

    (void)state;
    info = *dibs_engine_of(d);
    assert_string_equal(info.scheme, the.engine);
    assert_null(info.missing);
    assert_int_equal(info.across_processes, the.can.across_processes);
    assert_int_equal(info.first_come, the.can.first_come);
    assert_null(dibs_engine_at(1000));
}

static void closing_nothing_is_allowed(void **state)
{
    (void)state;
    dibs_close(NULL);
    for (int i = 0; i < 20; i++)
        close_handle(open_handle());
}

static void names_have_a_size(void **state)
{
    static char huge[10 * 1024 * 1024 + 1];
    char name[DIBS_NAME_MAX + 2];
    dibs *d = open_handle();
    dibs_error err = {0};
    dibs_grant *g = NULL;

    (void)state;
    memset(huge, 'n', sizeof huge - 1);
    memset(name, 'n', sizeof name - 1);
    name[DIBS_NAME_MAX + 1] = '\0';
    assert_status(dibs_lock(d, "", NULL, &g, &err), DIBS_INVALID);
    assert_status(dibs_lock(d, NULL, NULL, &g, &err), DIBS_INVALID);
    assert_status(dibs_lock(d, name, NULL, &g, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "512"));
    assert_status(dibs_lock(d, huge, NULL, &g, &err), DIBS_INVALID);
    assert_status(start_lock(d, huge, NULL, NULL, NULL, NULL, &err), DIBS_INVALID);
    assert_status(
        dibs_lock_break(d, huge, &(dibs_lock_break_options){.by = "me", .now = true}, &err),
        DIBS_INVALID);
    assert_null(g);
    name[DIBS_NAME_MAX] = '\0';
    g = take(d, name, NULL);
    assert_string_equal(dibs_grant_name(g), name);
    assert_status(unlock(g), DIBS_OK);
}

static void names_are_any_bytes(void **state)
{
    static const char *const odd[] = {
        "\x01\x02\xff\xfe", "{a}b{",    "}", "%41%",         "*?[a-z]\\",
        "' OR 1=1; --",     "a\nb\r\n", " ", "\xe2\x82\xac", ":",
    };
    dibs *d = open_handle(), *other = open_handle();

    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        dibs_lock_report *r = NULL;
        dibs_grant *g = take(d, odd[i], NULL);
        assert_string_equal(dibs_grant_name(g), odd[i]);
        assert_status(try_lock(other, odd[i]), DIBS_BUSY);
        assert_status(dibs_lock_inspect(other, odd[i], &r, NULL), DIBS_OK);
        assert_string_equal(dibs_lock_report_at(r, 0)->name, odd[i]);
        dibs_lock_report_free(r);
        assert_status(dibs_lock_list(other, odd[i], NULL, &r, NULL), DIBS_OK);
        assert_int_equal(dibs_lock_report_count(r), 1);
        assert_string_equal(dibs_lock_report_at(r, 0)->name, odd[i]);
        dibs_lock_report_free(r);
        assert_status(unlock(g), DIBS_OK);
        assert_status(try_lock(other, odd[i]), DIBS_OK);
    }
}

static void bad_lock_options_are_refused(void **state)
{
    char owner[DIBS_OWNER_MAX + 2];
    const dibs_lock_options bad[] = {
        {.wait_ms = -2},
        {.lease_ms = -1},
        {.max_hold_ms = -1},
        {.min_hold_ms = -1},
        {.slots = 3, .weight = 4},
        {.weight = 2},
        {.owner = owner},
        {.owner = ""},
        {.slots = 2, .shared = true},
        {.slots = UINT32_MAX},
    };
    dibs *d = open_handle();

    (void)state;
    memset(owner, 'x', sizeof owner);
    owner[DIBS_OWNER_MAX + 1] = '\0';
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dibs_grant *g = NULL;
        dibs_error err = {0};
        dibs_status status = dibs_lock(d, fresh("bad"), &bad[i], &g, &err);
        if (status != DIBS_INVALID)
            fail_msg("bad options %zu: %s", i, dibs_status_name(status));
        assert_true(strlen(err.message) > 10);
        assert_null(g);
    }
}

/* `memory:` is the process's own store, one for all of its handles, and another than one with a name. */
static void the_store_of_the_process_is_one(void **state)
{
    dibs *a = NULL, *b = NULL, *named = NULL;

    (void)state;
    if (strcmp(the.engine, "memory") != 0)
        skip();
    assert_status(dibs_open("memory:", NULL, &a, NULL), DIBS_OK);
    assert_status(dibs_open("memory:", NULL, &b, NULL), DIBS_OK);
    assert_status(dibs_open("memory:other", NULL, &named, NULL), DIBS_OK);
    take(a, "x", NULL);
    assert_status(try_lock(b, "x"), DIBS_BUSY);
    assert_status(try_lock(named, "x"), DIBS_OK);
    dibs_close(a);
    assert_status(try_lock(b, "x"), DIBS_OK);
    dibs_close(b);
    dibs_close(named);
}

/* The command's test_moving.py opens new places on every engine; this one has no command. */
static void fences_go_on_from_another_store(void **state)
{
    dibs *d = open_handle();
    dibs_grant *g = take(d, fresh("top"), NULL);
    uint64_t top = 0, above = 4000000000000000;

    (void)state;
    assert_status(dibs_fence_top(d, &top, NULL), DIBS_OK);
    assert_true(top >= dibs_grant_fence(g));
    if (strcmp(the.engine, "memory") != 0)
        return;
    d = open_at("memory:moved?fence_above=4000000000000000", NULL);
    g = take(d, "a", NULL);
    assert_true(dibs_grant_fence(g) > above && dibs_grant_floor(g) == dibs_grant_fence(g));
    assert_status(dibs_fence_top(d, &top, NULL), DIBS_OK);
    assert_true(top >= dibs_grant_fence(g));
    d = NULL;
    assert_status(dibs_open("memory:moved?fence_above=8000000000000000", NULL, &d, NULL),
                  DIBS_MISMATCH);
    assert_null(d);
}

/* For programs that know their engine: what it says itself, as a field. */
static void a_failure_has_the_engines_own_code(void **state)
{
    dibs_options brief = {.connect_ms = 1000};
    dibs_error err = {0};
    dibs *d = NULL;
    char url[600];

    (void)state;
    if (!url_of_nobody(url, sizeof url))
        skip();
    assert_status(dibs_open(url, &brief, &d, &err),
                  strcmp(the.engine, "sqlite") == 0 ? DIBS_ENGINE_FAILED : DIBS_UNAVAILABLE);
    print_message("# %s: '%s': %s\n", the.engine, err.engine_code, err.message);
    assert_string_not_equal(err.engine_code, "");
}

/* ---- In the background ------------------------------------------------------------------------- */

static void a_handle_opens_in_the_background(void **state)
{
    dibs *d = open_with(&(dibs_options){.in_background = true});
    dibs *e = open_with(&(dibs_options){.in_background = true});
    const char *name = fresh("background");
    dibs_grant *g = NULL;
    dibs_outcome o = {0};

    (void)state;
    assert_string_equal(dibs_engine_name(d), the.engine);
    assert_status(dibs_start(d, &(dibs_request){.op = DIBS_OP_LOCK, .name = name}, NULL, NULL),
                  DIBS_OK);
    poll(&(struct pollfd){.fd = dibs_fd(d), .events = POLLIN}, 1, LONG_MS);
    assert_true(dibs_take(d, &o));
    assert_status(o.err.status, DIBS_OK);
    assert_status(dibs_lock(e, name, &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT}, &g, NULL),
                  DIBS_BUSY);
    assert_status(dibs_unlock(&o.grant, NULL), DIBS_OK);
    assert_status(dibs_lock(e, name, NULL, &g, NULL), DIBS_OK);
    assert_status(dibs_unlock(&g, NULL), DIBS_OK);
}

/* It may be read at any time, while the handle opens as well. */
static void what_an_engine_was_said_to_be_stays(void **state)
{
    dibs *d = open_with(&(dibs_options){.in_background = true});
    const dibs_engine_info *early = dibs_engine_of(d);
    int64_t first = early->lease_ms, last = first;
    int64_t end = clock_ms() + SHORT_MS; /* without a call that would wait for the other thread */

    (void)state;
    while (clock_ms() < end || (the.can.lease_of_handle && last == 0 && clock_ms() < end + LONG_MS))
        last = dibs_engine_of(d)->lease_ms;
    assert_string_equal(dibs_engine_of(d)->scheme, the.engine);
    assert_int_equal(early->lease_ms, first);
    assert_int_equal(last != 0, the.can.lease_of_handle);
}

#define CONNECT_MS 1000

/* The server hangs: opening returns, calls are bounded, requests wait; then it continues, and all is well. */
static void opening_waits_for_a_server_that_hangs(void **state)
{
    dibs *d = NULL;
    dibs_grant *g = NULL;
    dibs_outcome o = {0};
    dibs_error err;
    const char *name = fresh("background-hung");
    int64_t began, opened, called;

    (void)state;
    open_handle(); /* the store is there */
    if (!pause_server())
        skip();
    began = clock_ms();
    assert_status(dibs_open(the.url,
                            &(dibs_options){.in_background = true,
                                            .connect_ms = CONNECT_MS,
                                            .request_ms = CONNECT_MS},
                            &d, NULL),
                  DIBS_OK);
    opened = clock_ms();
    dibs_status begun =
        dibs_start(d,
                   &(dibs_request){.op = DIBS_OP_LOCK,
                                   .name = name,
                                   .options.lock = &(dibs_lock_options){.wait_ms = LONG_MS}},
                   NULL, &err);
    dibs_status status = dibs_lock(d, name, &(dibs_lock_options){.wait_ms = 200}, &g, &err);
    called = clock_ms();
    continue_server();
    assert_status(begun, DIBS_OK);
    assert_in_range(opened - began, 0, CONNECT_MS / 2);
    assert_in_range(called - opened, 0, CONNECT_MS);
    assert_int_not_equal(status, DIBS_OK);
    assert_true(strlen(err.message) > 5);
    poll(&(struct pollfd){.fd = dibs_fd(d), .events = POLLIN}, 1, LONG_MS);
    assert_true(dibs_take(d, &o));
    assert_status(o.err.status, DIBS_OK);
    assert_status(dibs_unlock(&o.grant, NULL), DIBS_OK);
    dibs_close(d);
}

/* Two locks, not a list: SQLite's database, locked against writers, can still be opened and read. */
static void a_handle_that_is_not_open_is_closed(void **state)
{
    dibs *d = NULL;
    dibs_outcome o = {0};
    uint64_t id;
    int64_t began;

    (void)state;
    open_handle();
    if (!pause_server())
        skip();
    dibs_open(
        the.url,
        &(dibs_options){.in_background = true, .connect_ms = CONNECT_MS, .request_ms = CONNECT_MS},
        &d, NULL);
    assert_status(dibs_start(d, &(dibs_request){.op = DIBS_OP_LOCK, .name = "x"}, NULL, NULL),
                  DIBS_OK);
    assert_status(dibs_start(d, &(dibs_request){.op = DIBS_OP_LOCK, .name = "y"}, NULL, NULL),
                  DIBS_OK);
    began = clock_ms();
    assert_status(dibs_start(d, &(dibs_request){.op = DIBS_OP_DRAIN}, &id, NULL), DIBS_OK);
    for (int i = 0; i < 3; i++) {
        while (!dibs_take(d, &o) && clock_ms() < began + LONG_MS)
            poll(&(struct pollfd){.fd = dibs_fd(d), .events = POLLIN}, 1, 100);
        assert_status(o.err.status, i < 2 ? DIBS_CANCELLED : DIBS_OK);
    }
    dibs_close(d);
    continue_server();
    assert_in_range(clock_ms() - began, 0, CONNECT_MS + 4000);
}

static void what_is_wrong_is_said_by_the_first_call(void **state)
{
    char url[1200];
    dibs *d = NULL;
    dibs_grant *g = NULL;
    dibs_outcome o = {0};

    (void)state;
    assert_status(dibs_open("nosuch://x", &(dibs_options){.in_background = true}, &d, NULL),
                  DIBS_INVALID);
    assert_null(d);
    snprintf(url, sizeof url, "%s%cnonsense=1", the.url, strchr(the.url, '?') ? '&' : '?');
    assert_status(dibs_open(url, &(dibs_options){.in_background = true}, &d, NULL), DIBS_OK);
    assert_status(dibs_lock(d, "x", NULL, &g, NULL), DIBS_INVALID);
    assert_status(dibs_start(d, &(dibs_request){.op = DIBS_OP_LOCK, .name = "x"}, NULL, NULL),
                  DIBS_OK);
    poll(&(struct pollfd){.fd = dibs_fd(d), .events = POLLIN}, 1, LONG_MS);
    assert_true(dibs_take(d, &o));
    assert_status(o.err.status, DIBS_INVALID);
    dibs_close(d);
}

static const struct CMUnitTest tests[] = {
    CASE(a_handle_opens_in_the_background),
    CASE(what_an_engine_was_said_to_be_stays),
    CASE(opening_waits_for_a_server_that_hangs),
    CASE(a_handle_that_is_not_open_is_closed),
    CASE(what_is_wrong_is_said_by_the_first_call),
    CASE(a_failure_has_the_engines_own_code),
    CASE(fences_go_on_from_another_store),
    CASE(bad_urls_are_refused),
    CASE(an_unknown_scheme_names_those_there_are),
    CASE(the_environment_names_the_default),
    CASE(bad_options_are_refused),
    CASE(the_engine_lists_what_it_can),
    CASE(closing_nothing_is_allowed),
    CASE(names_have_a_size),
    CASE(names_are_any_bytes),
    CASE(bad_lock_options_are_refused),
    CASE(the_store_of_the_process_is_one),
};
CASES(open_cases, tests);
