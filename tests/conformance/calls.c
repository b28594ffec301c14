/* What holds for every public call: what is left in the caller's dibs_error, what a failed call returns, and what
 * must be zero. tests/project/test_exports.sh checks that no call is missing here. */
#define _GNU_SOURCE
#include "conformance/suite.h"
#include "support/fork.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- The error after a call ------------------------------------------------------------------ */

static dibs_error err;

/* What an earlier call may have left. */
static dibs_error *used(void)
{
    err = (dibs_error){.status = DIBS_RESTART,
                       .next = DIBS_NEXT_RESTART,
                       .retry_after_ms = 1,
                       .fence = 2,
                       .pid = 3,
                       .owner = "left",
                       .host = "left",
                       .engine_code = "LEFT",
                       .message = "left by an earlier call",
                       .reserved = {4}};
    return &err;
}

/* As the header says; after DIBS_UNKNOWN it is the call's. */
static dibs_next usual_next(dibs_status status)
{
    switch (status) {
#define ROW(value, name, text, next, http, code) \
    case DIBS_##name:                            \
        return DIBS_NEXT_##next;
        DIBS_STATUSES(ROW)
#undef ROW
    }
    return DIBS_NEXT_NONE;
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
    if (got != DIBS_UNKNOWN && err.next != usual_next(got))
        fail_msg("%s returned %s, and what to do next is %s", call, dibs_status_name(got),
                 dibs_next_name(err.next));
    if (strstr(err.message, "left by") || strcmp(err.owner, "left") == 0 ||
        strcmp(err.host, "left") == 0 || strcmp(err.engine_code, "LEFT") == 0 || err.reserved[0])
        fail_msg("%s left what an earlier call had found", call);
    if (!failed && (err.next || err.retry_after_ms || err.fence || err.pid || err.owner[0] ||
                    err.host[0] || err.engine_code[0]))
        fail_msg("%s succeeded and left details of a failure", call);
}

#define CHECK(call, want) check(#call, call, want)

static void note_outcome(void *data, dibs_status status, dibs_grant *g, const dibs_error *e)
{
    assert_status(status, DIBS_OK);
    assert_int_equal(e->status, DIBS_OK);
    assert_string_equal(e->message, "");
    *(dibs_grant **)data = g;
}

static void check_request(dibs *d)
{
    dibs_grant *g = NULL;
    int64_t end = clock_ms() + LONG_MS;

    CHECK(start_lock(d, fresh("request"), NULL, note_outcome, &g, NULL, used()), DIBS_OK);
    while (!g && clock_ms() < end) {
        take_all(d);
        sleep_ms(5);
    }
    assert_non_null(g);
    unlock(g);
    CHECK(dibs_start(d, &(dibs_request){.op = DIBS_OP_LOCK, .name = ""}, NULL, used()),
          DIBS_INVALID);
}

static void a_lock_leaves_no_old_error(void **state)
{
    dibs *d = NULL, *other = open_handle();
    const char *name = fresh("call");
    const char *const names[] = {fresh("one"), fresh("two")};
    dibs_grant *g = NULL, *both[2] = {NULL, NULL};
    dibs_lock_report *r = NULL;

    (void)state;
    CHECK(dibs_open(the.url, NULL, &d, used()), DIBS_OK);
    CHECK(dibs_lock_inspect(d, name, &r, used()), DIBS_NOT_FOUND);
    CHECK(dibs_lock_break(d, name, &(dibs_lock_break_options){.by = "me", .now = true}, used()),
          DIBS_NOT_FOUND);
    CHECK(dibs_lock(d, name, NULL, &g, used()), DIBS_OK);
    CHECK(dibs_lock(d, name, NULL, &g, used()), DIBS_OK); /* one level deeper */
    CHECK(dibs_lock(other, name, &(dibs_lock_options){.wait_ms = DIBS_NO_WAIT}, &both[0], used()),
          DIBS_BUSY);
    CHECK(dibs_renew(g, used()), DIBS_OK);
    CHECK(dibs_lock_inspect(d, name, &r, used()), DIBS_OK);
    dibs_lock_report_free(r);
    CHECK(dibs_lock_list(d, name, NULL, &r, used()), DIBS_OK);
    dibs_lock_report_free(r);
    CHECK(dibs_lock_break(d, name, &(dibs_lock_break_options){.by = "me", .now = true}, used()),
          DIBS_OK);
    unlock(g);
    unlock(g);
    CHECK(dibs_lock_many(d, names, 2, NULL, both, used()), DIBS_OK);
    unlock(both[0]);
    unlock(both[1]);
    check_request(d);
    dibs_close(d);
}

static void a_portable_grant_leaves_no_old_error(void **state)
{
    dibs *d = open_handle();
    const dibs_lock_options portable = {.portable = !the.can.lease_of_handle};
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = take(d, fresh("portable-call"), &portable);
    bool can = portable.portable;

    (void)state;
    CHECK(dibs_grant_export(g, text, used()), can ? DIBS_OK : DIBS_INVALID);
    CHECK(dibs_grant_detach(&g, used()), can ? DIBS_OK : DIBS_INVALID);
    if (!can)
        unlock(g);
    CHECK(dibs_grant_adopt(d, text, NULL, &g, used()), can ? DIBS_OK : DIBS_UNSUPPORTED);
    if (can)
        unlock(g);
    CHECK(dibs_grant_adopt(d, text, NULL, &g, used()), can ? DIBS_LOST : DIBS_UNSUPPORTED);
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
    /* It reads every lock that the suite has used. */
    CHECK(dibs_fence_top(open_with(&(dibs_options){.request_ms = 30000}), &top, used()), DIBS_OK);
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
    CHECK(dibs_cell_pass(d, cell, &(dibs_cell_options){.fence = 7}, &v, used()),
          DIBS_OK); /* there is no value yet */
    CHECK(dibs_cell_swap(d, cell, 0, "x", 1, NULL, NULL, used()), DIBS_OK);
    CHECK(dibs_cell_swap(d, cell, 0, "x", 1, NULL, NULL, used()), DIBS_CONFLICT);
    CHECK(dibs_cell_pass(d, cell, &(dibs_cell_options){.fence = 8}, &v, used()), DIBS_OK);
    dibs_value_free(&v);
    CHECK(dibs_cell_pass(d, cell, &(dibs_cell_options){.fence = 7}, NULL, used()), DIBS_FENCED);
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

static void check_keys(dibs *d, const char *key)
{
    dibs_once_report *r = NULL;

    CHECK(dibs_once_list(d, key, NULL, &r, used()), DIBS_OK);
    dibs_once_report_free(r);
    CHECK(dibs_once_inspect(d, key, NULL, &r, used()), DIBS_OK);
    dibs_once_report_free(r);
    CHECK(dibs_once_inspect(d, fresh("none"), NULL, &r, used()), DIBS_NOT_FOUND);
    CHECK(
        dibs_once_resolve(d, key, &(dibs_once_resolve_options){.outcome = DIBS_ONCE_DONE}, used()),
        DIBS_CONFLICT);
    CHECK(dibs_once_forget(d, key, NULL, used()), DIBS_OK);
    CHECK(dibs_once_forget(d, key, NULL, used()), DIBS_OK);
    CHECK(dibs_once_list(d, key, &(dibs_once_list_options){.limit = 1 << 20}, &r, used()),
          DIBS_INVALID);
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
    CHECK(dibs_once_undo(first, used()), DIBS_OK);
    dibs_once_free(first);
    key = fresh("left");
    CHECK(dibs_once_begin(d, key, &o, &first, used()), DIBS_OK);
    CHECK(dibs_once_abandon(first, used()), DIBS_OK);
    CHECK(dibs_once_begin(d, key, &o, &second, used()), DIBS_CRASHED);
    CHECK(dibs_once_rerun(first, used()), DIBS_INVALID);
    CHECK(dibs_once_rerun(second, used()), DIBS_OK);
    CHECK(dibs_once_fail(second, "no", 2, 1, used()), DIBS_OK);
    dibs_once_free(first);
    dibs_once_free(second);
    check_keys(d, key);
}

static void a_fence_leaves_no_old_error(void **state)
{
    char next[DIBS_FENCE_SIZE];
    int fd;

    (void)state;
    CHECK(dibs_fence_check("1", "2", next, used()), DIBS_OK);
    CHECK(dibs_fence_check("2", "1", next, used()), DIBS_FENCED);
    CHECK(dibs_fence_file("/no/such/folder/file", "1", 0, &fd, used()), DIBS_INVALID);
}

static void a_token_leaves_no_old_error(void **state)
{
    dibs *d = open_handle();
    char token[DIBS_TOKEN_SIZE], next[DIBS_TOKEN_SIZE];

    (void)state;
    if (!the.can.cells)
        return;
    CHECK(dibs_token_issue(d, NULL, token, used()), DIBS_OK);
    CHECK(dibs_token_reissue(d, token, NULL, next, used()), DIBS_REFUSED);
    CHECK(dibs_token_redeem(d, token, NULL, used()), DIBS_OK);
    CHECK(dibs_token_redeem(d, token, NULL, used()), DIBS_REFUSED);
    CHECK(dibs_token_reissue(d, token, NULL, next, used()), DIBS_OK);
}

/* ---- What a failed call returns ---------------------------------------------------------------- */

/* Each puts something into what the call fills in, and says whether nothing is left of it. */
typedef dibs_status (*failing_fn)(dibs *d, const char *name, bool *empty);

#define JUNK ((void *)&err)

static bool is_empty_value(const dibs_value *v)
{
    return !v->data && !v->size && !v->version && !v->left_ms && !v->reserved[0] && !v->reserved[1];
}

static dibs_value junk_value(void)
{
    return (dibs_value){JUNK, 1, 2, 3, {4, 5}};
}

static dibs_status fail_lock(dibs *d, const char *name, bool *empty)
{
    dibs_grant *g = JUNK;
    dibs_status status = dibs_lock(d, name, NULL, &g, &err);

    *empty = !g;
    return status;
}

static dibs_status fail_lock_many(dibs *d, const char *name, bool *empty)
{
    const char *const names[] = {"free", name};
    dibs_grant *g[2] = {JUNK, JUNK};
    dibs_status status = dibs_lock_many(d, names, 2, NULL, g, &err);

    *empty = !g[0] && !g[1];
    return status;
}

/* Of an engine that has them, so that it gets as far as the handle. */
static dibs_status fail_adopt(dibs *d, const char *name, bool *empty)
{
    dibs_grant *g = JUNK;
    dibs_status status = dibs_grant_adopt(d, name, NULL, &g, &err);

    *empty = !g;
    return status;
}

static dibs_status fail_start(dibs *d, const char *name, bool *empty)
{
    uint64_t id = 1;
    dibs_status status =
        dibs_start(d, &(dibs_request){.op = DIBS_OP_LOCK, .name = name}, &id, &err);

    *empty = !id;
    return status;
}

static dibs_status fail_cell_read(dibs *d, const char *name, bool *empty)
{
    dibs_value v = junk_value();
    dibs_status status = dibs_cell_read(d, name, &v, &err);

    *empty = is_empty_value(&v);
    return status;
}

static dibs_status fail_cell_swap(dibs *d, const char *name, bool *empty)
{
    dibs_value v = junk_value();
    dibs_status status = dibs_cell_swap(d, name, 0, "x", 1, NULL, &v, &err);

    *empty = is_empty_value(&v);
    return status;
}

static dibs_status fail_cell_pass(dibs *d, const char *name, bool *empty)
{
    dibs_value v = junk_value();
    dibs_status status = dibs_cell_pass(d, name, &(dibs_cell_options){.fence = 1}, &v, &err);

    *empty = is_empty_value(&v);
    return status;
}

static dibs_status fail_counter_get(dibs *d, const char *name, bool *empty)
{
    int64_t n = 1;
    dibs_status status = dibs_counter_get(d, name, &n, &err);

    *empty = !n;
    return status;
}

static dibs_status fail_counter_add(dibs *d, const char *name, bool *empty)
{
    int64_t n = 1;
    dibs_status status = dibs_counter_add(d, name, 1, NULL, &n, &err);

    *empty = !n;
    return status;
}

static dibs_status fail_counter_take(dibs *d, const char *name, bool *empty)
{
    int64_t n = 1;
    dibs_status status = dibs_counter_take(d, name, 1, NULL, &n, &err);

    *empty = !n;
    return status;
}

/* After DIBS_UNKNOWN there is a run, which the caller frees. */
static dibs_status fail_once_begin(dibs *d, const char *name, bool *empty)
{
    dibs_once *o = JUNK;
    dibs_status status = dibs_once_begin(d, name, NULL, &o, &err);

    *empty = !o;
    return status;
}

static dibs_status fail_once_list(dibs *d, const char *name, bool *empty)
{
    dibs_once_report *r = JUNK;
    dibs_status status =
        dibs_once_list(d, name, &(dibs_once_list_options){.limit = *name ? 1 : 1 << 20}, &r, &err);

    *empty = !r;
    return status;
}

static dibs_status fail_once_inspect(dibs *d, const char *name, bool *empty)
{
    dibs_once_report *r = JUNK;
    dibs_status status = dibs_once_inspect(d, name, NULL, &r, &err);

    *empty = !r;
    return status;
}

static dibs_status fail_token_issue(dibs *d, const char *name, bool *empty)
{
    char text[DIBS_TOKEN_SIZE] = "junk";
    dibs_status status =
        dibs_token_issue(d, &(dibs_token_options){.ttl_ms = *name ? 0 : -1}, text, &err);

    *empty = !text[0];
    return status;
}

static dibs_status fail_token_reissue(dibs *d, const char *name, bool *empty)
{
    char text[DIBS_TOKEN_SIZE] = "junk";
    dibs_status status =
        dibs_token_reissue(d, "token", &(dibs_token_options){.ttl_ms = *name ? 0 : -1}, text, &err);

    *empty = !text[0];
    return status;
}

static dibs_status fail_inspect(dibs *d, const char *name, bool *empty)
{
    dibs_lock_report *r = JUNK;
    dibs_status status = dibs_lock_inspect(d, name, &r, &err);

    *empty = !r;
    return status;
}

static dibs_status fail_list(dibs *d, const char *name, bool *empty)
{
    dibs_lock_report *r = JUNK;
    dibs_lock_list_options wrong = {.reserved = {!*name}};
    dibs_status status = dibs_lock_list(d, name, &wrong, &r, &err);

    *empty = !r;
    return status;
}

static const struct {
    const char *call;
    failing_fn make;
    bool cells, portable;
} failing[] = {
    {"dibs_lock", fail_lock, false, false},
    {"dibs_lock_many", fail_lock_many, false, false},
    {"dibs_grant_adopt", fail_adopt, false, true},
    {"dibs_start", fail_start, false, false},
    {"dibs_lock_inspect", fail_inspect, false, false},
    {"dibs_lock_list", fail_list, false, false},
    {"dibs_cell_read", fail_cell_read, true, false},
    {"dibs_cell_swap", fail_cell_swap, true, false},
    {"dibs_cell_pass", fail_cell_pass, true, false},
    {"dibs_counter_get", fail_counter_get, true, false},
    {"dibs_counter_add", fail_counter_add, true, false},
    {"dibs_counter_take", fail_counter_take, true, false},
    {"dibs_once_begin", fail_once_begin, true, false},
    {"dibs_once_list", fail_once_list, true, false},
    {"dibs_once_inspect", fail_once_inspect, true, false},
    {"dibs_token_issue", fail_token_issue, true, false},
    {"dibs_token_reissue", fail_token_reissue, true, false},
};

/* The first that left something, or did not fail so; NULL: none. */
static const char *left_by_failures(dibs *d, const char *name, dibs_status want)
{
    for (size_t i = 0; i < sizeof failing / sizeof failing[0]; i++) {
        bool empty = false;
        dibs_status status;
        if ((failing[i].cells && !the.can.cells) ||
            (failing[i].portable && the.can.lease_of_handle))
            continue;
        if (failing[i].make == fail_start && want == DIBS_UNAVAILABLE)
            continue; /* it is the outcome's */
        used();
        status = failing[i].make(d, name, &empty);
        if (status == want && err.status == want && empty)
            continue;
        fprintf(stderr, "# %s: %s, and %s: %s\n", failing[i].call, dibs_status_name(status),
                empty ? "nothing is left" : "something is left", err.message);
        return failing[i].call;
    }
    return NULL;
}

static void what_a_failed_call_returns_is_empty(void **state)
{
    dibs *d = open_handle(), *away;
    char url[600];
    int wrong = -1;
    pid_t child;

    (void)state;
    assert_null(left_by_failures(d, "", DIBS_INVALID));
    child = fork_at_rest();
    if (child == 0)
        _exit(left_by_failures(d, "x", DIBS_FORKED) || left_by_failures(d, "", DIBS_FORKED) ? 1
                                                                                            : 0);
    assert_int_equal(waitpid(child, &wrong, 0), child);
    assert_int_equal(wrong, 0);
    assert_status(dibs_start(d, &(dibs_request){.op = DIBS_OP_DRAIN}, NULL, &err), DIBS_OK);
    assert_null(left_by_failures(d, "x", DIBS_CANCELLED));
    if (!url_of_nobody(url, sizeof url) || strcmp(the.engine, "sqlite") == 0)
        return;
    away = open_at(url, &(dibs_options){.in_background = true, .request_ms = 20, .wait_ms = 20});
    assert_null(left_by_failures(away, "x", DIBS_UNAVAILABLE));
}

/* The same of calls without a handle. */
static void what_fails_without_a_handle_returns_nothing(void **state)
{
    char fence[DIBS_FENCE_SIZE] = "junk", grant[DIBS_GRANT_SIZE] = "junk", *text = JUNK;
    dibs_findings *f = JUNK;
    dibs *d = JUNK;
    int fd = 7;

    (void)state;
    CHECK(dibs_open("nosuch:", NULL, &d, used()), DIBS_INVALID);
    assert_null(d);
    CHECK(dibs_url_read("/no/such/file", &text, used()), DIBS_INVALID);
    assert_null(text);
    text = JUNK;
    CHECK(dibs_schema("nosuch:", &text, used()), DIBS_INVALID);
    assert_null(text);
    CHECK(dibs_examine("nosuch:", NULL, &f, used()), DIBS_INVALID);
    assert_null(f);
    CHECK(dibs_fence_check("2", "1", fence, used()), DIBS_FENCED);
    assert_string_equal(fence, "");
    CHECK(dibs_fence_file("/no/such/file", "1", 0, &fd, used()), DIBS_INVALID);
    assert_int_equal(fd, -1);
    CHECK(dibs_grant_export(NULL, grant, used()), DIBS_INVALID);
    assert_string_equal(grant, "");
}

/* ---- Options of a newer header ---------------------------------------------------------------- */

/* With each of the options' reserved members. */
#define REFUSED(o, call)                                                 \
    for (size_t k = 0; k < sizeof(o).reserved / sizeof(uint64_t); k++) { \
        (o).reserved[k] = 1;                                             \
        assert_status(call, DIBS_INVALID);                               \
        assert_non_null(strstr(err.message, "reserved members"));        \
        (o).reserved[k] = 0;                                             \
    }

static void what_is_reserved_must_be_zero(void **state)
{
    const char *name = fresh("reserved");
    dibs *d = open_handle(), *other = NULL;
    dibs_options open = {0};
    dibs_lock_options lock = {0};
    dibs_lock_list_options list = {0};
    dibs_lock_break_options breaking = {0};
    dibs_request request = {.op = DIBS_OP_LOCK_LIST};
    dibs_findings *f = NULL;
    dibs_lock_report *r = NULL;
    dibs_grant *g = NULL;

    (void)state;
    REFUSED(open, dibs_open(the.url, &open, &other, &err));
    REFUSED(open, dibs_examine(the.url, &open, &f, &err));
    REFUSED(lock, dibs_lock(d, name, &lock, &g, &err));
    REFUSED(lock, dibs_lock_many(d, &name, 1, &lock, &g, &err));
    REFUSED(lock,
            dibs_start(d, &(dibs_request){.op = DIBS_OP_LOCK, .name = name, .options.lock = &lock},
                       NULL, &err));
    if (!the.can.lease_of_handle)
        REFUSED(lock, dibs_grant_adopt(d, "text", &lock, &g, &err));
    REFUSED(list, dibs_lock_list(d, name, &list, &r, &err));
    REFUSED(breaking, dibs_lock_break(d, name, &breaking, &err));
    REFUSED(request, dibs_start(d, &request, NULL, &err));
    assert_true(!other && !g && !r && !f);
}

static void what_is_reserved_for_values_must_be_zero(void **state)
{
    dibs_cell_options cell = {.fence = 1};
    dibs_counter_options counter = {0};
    dibs_token_options token = {0};
    char text[DIBS_TOKEN_SIZE];
    dibs *d = open_handle();

    (void)state;
    if (!the.can.cells)
        return;
    REFUSED(cell, dibs_cell_swap(d, "c", 0, "x", 1, &cell, NULL, &err));
    REFUSED(cell, dibs_cell_delete(d, "c", 1, &cell, &err));
    REFUSED(cell, dibs_cell_pass(d, "c", &cell, NULL, &err));
    REFUSED(counter, dibs_counter_set(d, "c", 1, &counter, &err));
    REFUSED(counter, dibs_counter_add(d, "c", 1, &counter, NULL, &err));
    REFUSED(counter, dibs_counter_take(d, "c", 1, &counter, NULL, &err));
    REFUSED(token, dibs_token_issue(d, &token, text, &err));
    REFUSED(token, dibs_token_redeem(d, "t", &token, &err));
    REFUSED(token, dibs_token_reissue(d, "t", &token, text, &err));
}

static void what_is_reserved_for_runs_must_be_zero(void **state)
{
    dibs_once_options once = {0};
    dibs_once_list_options list = {0};
    dibs_once_inspect_options inspect = {0};
    dibs_once_forget_options forget = {0};
    dibs_once_resolve_options resolve = {.outcome = DIBS_ONCE_DONE};
    dibs *d = open_handle();
    dibs_once_report *keys = NULL;
    dibs_once *o = NULL;

    (void)state;
    if (!the.can.cells)
        return;
    REFUSED(once, dibs_once_begin(d, "k", &once, &o, &err));
    REFUSED(list, dibs_once_list(d, "k", &list, &keys, &err));
    REFUSED(inspect, dibs_once_inspect(d, "k", &inspect, &keys, &err));
    REFUSED(forget, dibs_once_forget(d, "k", &forget, &err));
    REFUSED(resolve, dibs_once_resolve(d, "k", &resolve, &err));
    assert_true(!o && !keys);
}

/* A program of an older header asks for less, one of a newer header for more. */
static void what_is_filled_in_has_the_size_of_the_caller(void **state)
{
    struct {
        dibs_stats stats;
        uint64_t more;
    } large = {.more = 7};
    uint64_t small[2] = {9, 9};
    dibs *d = open_handle();
    dibs_grant *g = take(d, fresh("sizes"), NULL);

    (void)state;
    dibs_stats_read(d, (dibs_stats *)small, sizeof small[0]);
    assert_int_equal(small[0], 1); /* grants */
    assert_int_equal(small[1], 9);
    dibs_stats_read(d, &large.stats, sizeof large);
    assert_int_equal(large.stats.grants, 1);
    assert_int_equal(large.more, 0);
    assert_status(dibs_unlock(&g, &err), DIBS_OK);
}

/* ---- Unlocking --------------------------------------------------------------------------------- */

static void an_unlocked_grant_is_gone(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("gone");
    dibs_grant *g = take(d, name, NULL), *again = take(d, name, NULL);

    (void)state;
    assert_ptr_equal(g, again);
    err = (dibs_error){.status = DIBS_BUSY, .message = "old"};
    assert_status(dibs_unlock(&again, &err), DIBS_OK);
    assert_null(again);
    assert_status(err.status, DIBS_OK);
    assert_string_equal(err.message, "");
    assert_true(dibs_grant_held(g));
    assert_status(dibs_unlock(&again, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "no grant to unlock"));
    assert_status(dibs_unlock(&g, NULL), DIBS_OK);
    assert_null(g);
    assert_status(dibs_unlock(&g, &err), DIBS_INVALID);
    assert_status(dibs_unlock(NULL, &err), DIBS_INVALID);
}

/* What dibs_unlock leaves is a grant of nobody's: asked for anything, it is not held, and lets nobody in. */
static void an_unlocked_grant_is_not_held(void **state)
{
    dibs *d = open_handle();
    dibs_grant *g = take(d, fresh("gone"), NULL);
    char text[DIBS_FENCE_SIZE], next[DIBS_FENCE_SIZE];
    const dibs_cell_options under = {.grant = &g};
    dibs_value v;

    (void)state;
    assert_status(dibs_unlock(&g, NULL), DIBS_OK);
    assert_false(dibs_grant_held(g));
    assert_int_equal(dibs_grant_remaining_ms(g), 0);
    assert_int_equal(dibs_grant_loss(g), DIBS_LOSS_NONE);
    assert_int_equal(dibs_grant_fence(g), 0);
    assert_int_equal(dibs_grant_floor(g), 0);
    assert_string_equal(dibs_grant_name(g), "");
    assert_string_equal(dibs_grant_owner(g), "");
    assert_status(dibs_renew(g, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "no grant to renew"));
    dibs_fence_text(g, text);
    assert_status(dibs_fence_check(NULL, text, next, &err), DIBS_INVALID);
    if (!the.can.cells)
        return;
    assert_status(dibs_cell_pass(d, "gone", &under, NULL, &err), DIBS_INVALID);
    assert_status(dibs_cell_swap(d, "gone", 0, "x", 1, &under, NULL, &err), DIBS_INVALID);
    assert_non_null(strstr(err.message, "no grant to write under"));
    assert_status(dibs_cell_delete(d, "gone", DIBS_ANY_VERSION, &under, &err), DIBS_INVALID);
    assert_status(
        dibs_start(d,
                   &(dibs_request){.op = DIBS_OP_CELL_SWAP, .name = "gone", .options.cell = &under},
                   NULL, &err),
        DIBS_INVALID);
    assert_status(dibs_cell_read(d, "gone", &v, &err), DIBS_NOT_FOUND);
}

static void a_lost_lock_is_named(void **state)
{
    dibs *d = open_handle();
    const char *name = fresh("lost");
    dibs_grant *g = take(d, name, NULL);

    (void)state;
    assert_status(
        dibs_lock_break(d, name, &(dibs_lock_break_options){.by = "me", .now = true}, &err),
        DIBS_OK);
    assert_status(dibs_unlock(&g, &err), DIBS_LOST);
    assert_null(g);
    assert_non_null(strstr(err.message, name));
    assert_non_null(strstr(err.message, "was lost"));
}

/* The child's copy goes; the parent's lock stays. */
static void a_forked_child_frees_its_copy(void **state)
{
    dibs *d = open_handle();
    dibs_grant *g = take(d, fresh("forked"), NULL);
    int wrong = -1;
    pid_t child;

    (void)state;
    child = fork_at_rest();
    if (child == 0)
        _exit(dibs_unlock(&g, &err) == DIBS_FORKED && !g && err.status == DIBS_FORKED ? 0 : 1);
    assert_int_equal(waitpid(child, &wrong, 0), child);
    assert_int_equal(wrong, 0);
    assert_true(dibs_grant_held(g));
    assert_status(dibs_unlock(&g, &err), DIBS_OK);
}

static const struct CMUnitTest tests[] = {
    CASE(a_lock_leaves_no_old_error),
    CASE(a_portable_grant_leaves_no_old_error),
    CASE(a_schema_leaves_no_old_error),
    CASE(a_cell_leaves_no_old_error),
    CASE(a_run_leaves_no_old_error),
    CASE(a_fence_leaves_no_old_error),
    CASE(a_token_leaves_no_old_error),
    CASE(an_unlocked_grant_is_gone),
    CASE(an_unlocked_grant_is_not_held),
    CASE(a_lost_lock_is_named),
    CASE(a_forked_child_frees_its_copy),
    CASE(what_a_failed_call_returns_is_empty),
    CASE(what_fails_without_a_handle_returns_nothing),
    CASE(what_is_reserved_must_be_zero),
    CASE(what_is_reserved_for_values_must_be_zero),
    CASE(what_is_reserved_for_runs_must_be_zero),
    CASE(what_is_filled_in_has_the_size_of_the_caller),
};
CASES(call_cases, tests);
