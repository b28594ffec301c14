/* What operators see of keys of once, and what they decide, in a world in which time stands still: lists of pages that are
 * made up here, records of every state, and answers that are lost between a look and what it decides. */
#define _GNU_SOURCE
#include "core/error.h"
#include "recipes/keys.h"
#include "support/alloc.h"
#include "support/calls.h"
#include "support/still.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEY         "k"
#define COUNT(rows) (sizeof(rows) / sizeof(rows)[0])
#define LEASE       (12 * DIBS__SECOND)
#define KEEP        (100 * DIBS__SECOND)
#define DAY         (24 * 3600 * DIBS__SECOND)

/* In tables */
#define R DIBS__RUN_RUNNING
#define D DIBS__RUN_DONE
#define F DIBS__RUN_FAILED
#define A DIBS__RUN_ABANDONED
#define N DIBS__RUN_FREE

static dibs *a, *b;
static dibs__engine_class *class; /* of `a`: may be changed */
static dibs_error err;
static dibs_once_report *report;
static const twist untold = {.status = DIBS_UNKNOWN},
                   lost = {.status = DIBS_UNKNOWN, .stopped = true},
                   denied = {.status = DIBS_DENIED, .stopped = true};

static int set_up(void **state)
{
    still_begin(state);
    a = still_open(NULL);
    b = still_open(NULL);
    class = (dibs__engine_class *)(uintptr_t)a->class;
    a->base = 1000;
    memset(&err, 0, sizeof err);
    report = NULL;
    return 0;
}

static int tear_down(void **state)
{
    dibs_once_report_free(report);
    return still_end(state);
}

/* ---- Records ---------------------------------------------------------------------------------- */

static dibs__run_record record_of(dibs__run_state state)
{
    return (dibs__run_record){.state = state,
                              .runs = 3,
                              .code = -42,
                              .pid = 77,
                              .since = 5 * DIBS__SECOND,
                              .lease = LEASE,
                              .keep = KEEP,
                              .fence = 500,
                              .owner = "them",
                              .host = "there",
                              .attempt = "theirs-1"};
}

static uint64_t store_bytes(const char *cell, const void *bytes, size_t size, int64_t keep)
{
    const dibs__cell_command look = {.op = DIBS__CELL_READ, .stamp = ""};
    char stamp[DIBS__STAMP_SIZE];
    dibs__cell_command c = {
        .op = DIBS__CELL_SWAP, .stamp = stamp, .data = bytes, .size = size, .keep = keep};
    dibs__cell_reply reply;

    assert_status(dibs__cell_do(b, cell, &look, false, DIBS__NEVER, &reply, NULL, NULL), DIBS_OK);
    free(reply.data);
    c.version = reply.version;
    dibs__stamp(b, stamp);
    assert_status(dibs__cell_do(b, cell, &c, false, DIBS__NEVER, &reply, NULL, NULL), DIBS_OK);
    assert_int_equal(reply.verdict, DIBS__CELL_DONE);
    free(reply.data);
    return reply.version;
}

/* Its version. */
static uint64_t store_in(const char *scope, const char *key, const dibs__run_record *r,
                         int64_t keep)
{
    char cell[DIBS__CELL_KEY_SIZE];
    size_t size;
    void *bytes = dibs__record_encode(r, &size);
    uint64_t version;

    dibs__key(DIBS__KEY_ONCE, scope, key, cell);
    version = store_bytes(cell, bytes, size, keep);
    free(bytes);
    return version;
}

static uint64_t store(const dibs__run_record *r)
{
    return store_in("", KEY, r, 0);
}

/* ---- Looking at one ---------------------------------------------------------------------------- */

static const dibs_once_info *inspected(void)
{
    dibs_once_report_free(report);
    report = NULL;
    if (dibs_once_inspect(a, KEY, NULL, &report, &err) != DIBS_OK)
        fail_msg("%s", err.message);
    assert_int_equal(dibs_once_report_count(report), 1);
    assert_null(dibs_once_report_next(report));
    assert_null(dibs_once_report_at(report, 1));
    return dibs_once_report_at(report, 0);
}

static const dibs_once_info *listed(const dibs_once_list_options *o, const char *prefix)
{
    dibs_once_report_free(report);
    report = NULL;
    if (dibs_once_list(a, prefix, o, &report, &err) != DIBS_OK)
        fail_msg("%s", err.message);
    return dibs_once_report_at(report, 0);
}

/* Which state a key is in follows from record and age; it is the same in a list. */
static void record_and_age_are_the_state(void **state)
{
    static const struct {
        dibs__run_state state;
        int64_t age;
        dibs_once_state shown;
        int64_t left_ms;
        const char *name;
    } rows[] = {
        {R, LEASE - 1, DIBS_ONCE_RUNNING, 0, "running"},
        {R, LEASE - 1000, DIBS_ONCE_RUNNING, 1, "running"},
        {R, LEASE, DIBS_ONCE_CRASHED, 0, "crashed"},
        {R, LEASE + 1000, DIBS_ONCE_CRASHED, 0, "crashed"},
        {D, KEEP - 2000, DIBS_ONCE_DONE, 2, "done"},
        {D, KEEP, DIBS_ONCE_EXPIRED, 0, "expired"},
        {F, KEEP - 2000, DIBS_ONCE_FAILED, 2, "failed"},
        {F, KEEP, DIBS_ONCE_EXPIRED, 0, "expired"},
        {A, 2000, DIBS_ONCE_CRASHED, 0, "crashed"},
        {N, 2000, DIBS_ONCE_FREE, 0, "free"},
    };

    (void)state;
    for (size_t i = 0; i < 2 * COUNT(rows); i++) {
        dibs__run_record r = record_of(rows[i / 2].state);
        const dibs_once_info *info;
        uint64_t version = store(&r);
        still_pass(rows[i / 2].age - STILL_ANSWER);
        info = i % 2 ? listed(&(dibs_once_list_options){.states = 127}, KEY) : inspected();
        assert_non_null(info);
        assert_int_equal(info->state, rows[i / 2].shown);
        assert_string_equal(dibs_once_state_name(info->state), rows[i / 2].name);
        assert_string_equal(info->scope, "");
        assert_string_equal(info->key, KEY);
        assert_int_equal(info->version, version);
        assert_int_equal(info->runs, 3);
        assert_int_equal(info->code, -42);
        assert_int_equal(info->left_ms, DIBS_FOREVER);
        assert_null(info->decided_by);
        assert_null(info->damage);
        assert_null(info->result);
        assert_int_equal(info->result_size, 0);
        assert_int_equal(info->step_count, 0);
        assert_null(info->steps);
        assert_string_equal(info->runner->owner, "them");
        assert_string_equal(info->runner->host, "there");
        assert_int_equal(info->runner->pid, 77);
        assert_int_equal(info->runner->since_ms, 5000);
        assert_int_equal(info->runner->left_ms, rows[i / 2].left_ms);
        assert_int_equal(info->runner->fence, 1500);
        assert_int_equal(info->runner->weight, 1);
    }
    assert_string_equal(dibs_once_state_name(DIBS_ONCE_DAMAGED), "damaged");
    assert_string_equal(dibs_once_state_name((dibs_once_state)3), "unknown");
    assert_int_equal(dibs__once_state_of(&(dibs__run_record){.state = (dibs__run_state)9}, 0),
                     DIBS_ONCE_DAMAGED);
}

static void a_look_shows_all_of_the_record(void **state)
{
    dibs__run_record r = record_of(D);
    const dibs_once_info *info;
    uint64_t version;

    (void)state;
    r.fence = 0; /* of the first record of a run: its version */
    r.keep = INT64_MAX;
    r.has_result = true;
    r.result = "paid\0";
    r.result_size = 5;
    snprintf(r.decided_by, sizeof r.decided_by, "a");
    version = store_in("", KEY, &r, 10 * DIBS__SECOND);
    info = inspected();
    assert_true(still_last(a, 0)->command.alive); /* whether the runner is alive matters */
    assert_int_equal(still_last(a, 0)->command.op, DIBS__CELL_READ);
    assert_false(still_last(a, 0)->notify);
    assert_int_equal(still_last(a, 0)->until, still_last(a, 0)->at + a->request_span);
    assert_string_equal(still_last(a, 0)->key, "o:0:k");
    assert_int_equal(info->runner->left_ms, DIBS_FOREVER);
    assert_int_equal(info->runner->fence, version + 1000);
    assert_int_equal(info->left_ms, 10000 - 1);
    assert_string_equal(info->decided_by, "a");
    assert_int_equal(info->result_size, 5);
    assert_memory_equal(info->result, "paid\0", 5);
    assert_null(info->steps);
    info = listed(NULL, KEY);
    assert_int_equal(info->left_ms, 10000 - 2);
    assert_int_equal(info->result_size, 5);
    assert_null(info->result);
    assert_string_equal(info->decided_by, "a");
    r = record_of(R);
    r.steps = dibs__step_new("one", "1", 1);
    r.steps->next = dibs__step_new("two", "", 0);
    store(&r);
    dibs__steps_free(r.steps);
    info = inspected();
    assert_int_equal(info->step_count, 2);
    assert_string_equal(info->steps[0]->name, "one");
    assert_memory_equal(info->steps[0]->data, "1", 1);
    assert_int_equal(info->steps[0]->size, 1);
    assert_string_equal(info->steps[1]->name, "two");
    assert_int_equal(info->steps[1]->size, 0);
    assert_null(info->result);
    info = listed(NULL, KEY);
    assert_int_equal(info->step_count, 2);
    assert_null(info->steps);
}

static void a_look_that_fails_shows_nothing(void **state)
{
    const struct {
        twist t;
        dibs_status status;
    } rows[] = {{denied, DIBS_DENIED}, {lost, DIBS_UNAVAILABLE}, {{0}, DIBS_NOT_FOUND}};

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        twist t = rows[i].t;
        t.always = true;
        report = (dibs_once_report *)1;
        still_twist(a, t);
        assert_status(dibs_once_inspect(a, KEY, NULL, &report, &err), rows[i].status);
        assert_status(err.status, rows[i].status);
        assert_null(report);
        still_heal(a);
    }
    assert_non_null(strstr(err.message, "'k': this key was not used"));
    assert_status(dibs_once_inspect(a, KEY, &(dibs_once_inspect_options){0}, &report, &err),
                  DIBS_NOT_FOUND);
    assert_string_equal(still_last(a, 0)->key, "o:0:k");
}

static void what_is_no_record_is_shown_as_damaged(void **state)
{
    static const struct {
        const char *bytes;
        size_t size;
        const char *says;
    } rows[] = {{"", 0, "damaged or was not written by dibs"},
                {"\x63", 1, "format 99"},
                {"\x03\x02garbage", 9, "damaged or was not written by dibs"}};
    dibs__run_record r = record_of(D);

    (void)state;
    store_in("", "sound", &r, 0);
    for (size_t i = 0; i < COUNT(rows); i++) {
        const dibs_once_info *info;
        uint64_t version = store_bytes("o:0:k", rows[i].bytes, rows[i].size, 3 * DIBS__SECOND);
        for (int way = 0; way < 2; way++) {
            info = way ? listed(NULL, "") : inspected();
            assert_int_equal(info->state, DIBS_ONCE_DAMAGED);
            assert_non_null(strstr(info->damage, rows[i].says));
            assert_int_equal(info->version, version);
            assert_int_equal(info->left_ms, 3000 - 1 - way);
            assert_null(info->runner);
            assert_null(info->steps);
            assert_null(info->result);
            assert_string_equal(info->key, KEY);
            assert_int_equal(dibs_once_report_count(report), 1 + way);
        }
        assert_null(listed(&(dibs_once_list_options){.states = 127 & ~DIBS_ONCE_DAMAGED}, KEY));
        assert_non_null(listed(&(dibs_once_list_options){.states = DIBS_ONCE_DAMAGED}, KEY));
    }
}

/* ---- What is asked for is checked --------------------------------------------------------------- */

static void wrong_questions_ask_nobody(void **state)
{
    static char longer[DIBS_NAME_MAX + 2];
    static const uint64_t one = 1;
    dibs_once_forget_options forget = {0};
    dibs_once_resolve_options resolve = {.outcome = DIBS_ONCE_DONE};
    dibs_once_inspect_options inspect = {0};

    (void)state;
    memset(longer, 'x', sizeof longer - 1);
    for (int i = 0; i < 5; i++) { /* key, scope, reserved */
        const char *key = i == 0 ? "" : i == 1 ? NULL : i == 2 ? longer : KEY;
        forget.scope = resolve.scope = inspect.scope = i == 3 ? longer : NULL;
        forget.reserved[3] = resolve.reserved[3] = inspect.reserved[3] = i == 4 ? one : 0;
        report = (dibs_once_report *)1;
        assert_status(dibs_once_inspect(a, key, &inspect, &report, &err), DIBS_INVALID);
        assert_null(report);
        assert_status(dibs_once_forget(a, key, &forget, &err), DIBS_INVALID);
        assert_status(dibs_once_resolve(a, key, &resolve, &err), DIBS_INVALID);
    }
    for (int i = 0; i < 2; i++) {
        char by[DIBS_OWNER_MAX + 2];
        memset(by, 'b', sizeof by);
        by[DIBS_OWNER_MAX + 1 - i] = '\0';
        forget = (dibs_once_forget_options){.by = by};
        resolve = (dibs_once_resolve_options){.by = by, .outcome = DIBS_ONCE_FREE};
        assert_status(dibs_once_forget(a, KEY, &forget, &err), i ? DIBS_NOT_FOUND : DIBS_INVALID);
        assert_status(dibs_once_resolve(a, KEY, &resolve, &err), i ? DIBS_NOT_FOUND : DIBS_INVALID);
    }
    assert_int_equal(still_count(a), 2);
}

static void wrong_outcomes_are_refused(void **state)
{
    static const struct {
        dibs_once_resolve_options o;
        const char *says;
    } rows[] = {
        {{0}, "outcome:"},
        {{.outcome = DIBS_ONCE_RUNNING}, "outcome:"},
        {{.outcome = DIBS_ONCE_EXPIRED}, "outcome:"},
        {{.outcome = DIBS_ONCE_DAMAGED}, "outcome:"},
        {{.outcome = DIBS_ONCE_FREE, .result = "x", .size = 1}, "only DONE and FAILED"},
        {{.outcome = DIBS_ONCE_FREE, .result = "x"}, "only DONE and FAILED"},
        {{.outcome = DIBS_ONCE_FREE, .size = 1}, "only DONE and FAILED"},
        {{.outcome = DIBS_ONCE_CRASHED, .code = 1}, "only DONE and FAILED"},
        {{.outcome = DIBS_ONCE_DONE, .size = 1}, "the result"},
        {{.outcome = DIBS_ONCE_DONE, .size = 4, .result = "1234"}, "the result is too long"},
    };

    (void)state;
    class->can.value_max = 3;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_status(dibs_once_resolve(a, KEY, &rows[i].o, &err), DIBS_INVALID);
        assert_non_null(strstr(err.message, rows[i].says));
    }
    assert_status(dibs_once_resolve(a, KEY, NULL, &err), DIBS_INVALID);
    assert_int_equal(still_count(a), 0);
}

static void wrong_lists_ask_nobody(void **state)
{
    static char longer[DIBS__CELL_KEY_SIZE + 1];
    const struct {
        const char *prefix;
        dibs_once_list_options o;
        const char *says;
    } rows[] = {
        {longer, {0}, "the prefix"},
        {longer, {.scope = "x"}, "the prefix"},
        {"", {.scope = longer}, "a scope"},
        {"", {.reserved = {0, 0, 0, 1}}, ""},
        {"", {.states = 128}, "states: unknown bits (0x80)"},
        {"", {.limit = 10001}, "limit: at most 10000"},
        {"", {.after = longer}, "after:"},
        {"", {.after = longer + 2}, "after:"},
    };

    (void)state;
    memset(longer, 'x', sizeof longer - 1);
    for (size_t i = 0; i < COUNT(rows); i++) {
        report = (dibs_once_report *)1;
        assert_status(dibs_once_list(a, rows[i].prefix, &rows[i].o, &report, &err), DIBS_INVALID);
        assert_null(report);
        assert_non_null(strstr(err.message, rows[i].says));
    }
    listed(
        &(dibs_once_list_options){.after = longer + 3, .limit = 10000, .states = 127, .scope = ""},
        NULL);
    class->cell_list = NULL;
    dibs_once_report_free(report);
    assert_status(dibs_once_list(a, "", NULL, &report, &err), DIBS_UNSUPPORTED);
    assert_string_equal(err.message, "memory: cells cannot be listed");
    class->cell = NULL;
    class->no_cells = "because";
    assert_status(dibs_once_list(a, "", NULL, &report, &err), DIBS_UNSUPPORTED);
    assert_string_equal(err.message, "memory: because");
}

static void nobody_else_is_asked(void **state)
{
    static char longer[DIBS__CELL_KEY_SIZE + 1];
    const dibs_once_list_options wrong[] = {{.states = 128}, {.limit = 10001}, {.after = longer}};
    pid_t child;
    int status;

    (void)state;
    memset(longer, 'x', sizeof longer - 1);
    a->closing = true;
    assert_status(dibs_once_list(a, "", NULL, &report, &err), DIBS_CANCELLED);
    for (size_t i = 0; i < COUNT(wrong); i++) /* whatever else is wrong */
        assert_status(dibs_once_list(a, "", &wrong[i], &report, &err), DIBS_CANCELLED);
    assert_status(dibs_once_inspect(a, KEY, NULL, &report, &err), DIBS_CANCELLED);
    assert_status(dibs_once_forget(a, KEY, &(dibs_once_forget_options){.by = longer}, &err),
                  DIBS_CANCELLED);
    a->closing = false;
    child = fork();
    if (child == 0)
        _exit(dibs_once_list(a, "", NULL, &report, &err) == DIBS_FORKED &&
                      dibs_once_inspect(a, KEY, NULL, &report, &err) == DIBS_FORKED &&
                      dibs_once_forget(a, KEY, NULL, &err) == DIBS_FORKED
                  ? 0
                  : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* ---- Lists ------------------------------------------------------------------------------------- */

/* Keys as the engine returns them; which of them are those of `once`. */
static void keys_are_taken_apart(void **state)
{
    static char scope[DIBS_NAME_MAX + 2], key[DIBS_NAME_MAX + 2], largest[DIBS__CELL_KEY_SIZE],
        too_tall[DIBS__CELL_KEY_SIZE + 8], too_wide[DIBS__CELL_KEY_SIZE + 8];
    const struct {
        const char *cell, *scope, *key; /* NULL: it is damaged */
    } rows[] = {
        {"o:0:k", "", "k"},      {"o:3:payname", "pay", "name"},
        {"o:1::k", ":", "k"},    {"o:3:pay", NULL, NULL}, /* no key */
        {"o:4:pay", NULL, NULL}, {"o:03:payk", NULL, NULL},
        {"o:+1:pk", NULL, NULL}, {"o: 1:pk", NULL, NULL},
        {"o:-1:pk", NULL, NULL}, {"o:x", NULL, NULL},
        {"o:", NULL, NULL},      {"o:1", NULL, NULL},
        {"o:1pk", NULL, NULL},   {largest, scope, key},
        {too_tall, NULL, NULL},  {too_wide, NULL, NULL},
    };
    dibs__run_record r = record_of(D);
    size_t size;
    void *bytes = dibs__record_encode(&r, &size);

    (void)state;
    memset(scope, 's', DIBS_NAME_MAX);
    memset(key, 'k', DIBS_NAME_MAX);
    snprintf(largest, sizeof largest, "o:512:%s%s", scope, key);
    snprintf(too_tall, sizeof too_tall, "o:513:s%s%s", scope, key);
    snprintf(too_wide, sizeof too_wide, "o:512:%s%sk", scope, key);
    for (size_t i = 0; i < COUNT(rows); i++) {
        dibs *d = still_open(NULL);
        const dibs_once_info *info;
        still_close(d);
        store_bytes(rows[i].cell, bytes, size, 10 * DIBS__MS);
        info = listed(&(dibs_once_list_options){.states = 127}, NULL);
        assert_int_equal(dibs_once_report_count(report), 1);
        if (rows[i].key) {
            assert_string_equal(info->scope, rows[i].scope);
            assert_string_equal(info->key, rows[i].key);
            assert_int_equal(info->state, DIBS_ONCE_DONE);
        } else {
            assert_string_equal(info->scope, "");
            assert_string_equal(info->key, rows[i].cell + 2);
            assert_int_equal(info->state, DIBS_ONCE_DAMAGED);
            assert_string_equal(info->damage, "this is not a key of once");
        }
        still_pass(20 * DIBS__MS);
    }
    free(bytes);
}

/* An engine whose pages are made up: numbered keys, of which every so-manyth is a crash. */
static struct {
    int keys, every; /* how many there are, and each n-th is a crash */
    int pages;       /* that were read */
    int silent;      /* of the next, so many get no answer */
    bool headless, fails;
    int64_t takes;
    size_t limit[32];
    size_t head;
    dibs__deadline until;
    char prefix[DIBS__CELL_KEY_SIZE], after[DIBS__CELL_KEY_SIZE];
} store_of_many;

static dibs_status list_many(dibs__engine *e, const dibs__cell_range *range, dibs__deadline until,
                             dibs__cell_page *out, dibs_error *error)
{
    int next = *range->after ? atoi(range->after + 4) + 1 : 0;

    (void)e;
    if (store_of_many.pages < 32)
        store_of_many.limit[store_of_many.pages] = range->limit;
    store_of_many.pages++;
    store_of_many.head = range->head;
    store_of_many.until = until;
    snprintf(store_of_many.prefix, DIBS__CELL_KEY_SIZE, "%s", range->prefix);
    snprintf(store_of_many.after, DIBS__CELL_KEY_SIZE, "%s", range->after);
    still_pass(STILL_ANSWER + store_of_many.takes);
    if (store_of_many.silent > 0) {
        store_of_many.silent--;
        dibs__cell_page_put(out, "o:0:x", &(dibs__cell){.expires = INT64_MAX}, (dibs__time){0},
                            false, 0); /* half a page */
        return dibs__fail(error, DIBS_UNKNOWN, "lost on the way");
    }
    out->failed = store_of_many.fails;
    for (size_t i = 0; i < range->limit && next < store_of_many.keys; i++, next++) {
        dibs__run_record r =
            record_of(store_of_many.every && next % store_of_many.every == 0 ? A : D);
        dibs__cell cell = {.version = 1, .expires = INT64_MAX};
        void *bytes = dibs__record_encode(&r, &cell.size);
        char key[64];
        snprintf(key, sizeof key, "o:0:%05d", next);
        cell.data = bytes;
        dibs__cell_page_put(out, key, &cell, (dibs__time){0}, false, range->head);
        if (store_of_many.headless)
            out->found[out->count - 1].head = NULL;
        snprintf(out->reached, sizeof out->reached, "%s", key);
        free(bytes);
    }
    out->more = next < store_of_many.keys;
    return DIBS_OK;
}

static void make_many(int keys, int every)
{
    memset(&store_of_many, 0, sizeof store_of_many);
    store_of_many.keys = keys;
    store_of_many.every = every;
    class->cell_list = list_many;
}

static int number_at(size_t i)
{
    return atoi(dibs_once_report_at(report, i)->key);
}

/* A page has no more than was asked for, and `next` says where it goes on, only where it does. */
static void a_page_has_an_end(void **state)
{
    static const struct {
        int keys;
        size_t limit;
        size_t count;
        bool more;
        size_t looked; /* how many the engine was asked for at first */
    } rows[] = {
        {0, 5, 0, false, 6},          {4, 5, 4, false, 6},         {5, 5, 5, false, 6},
        {6, 5, 5, true, 6},           {70, 70, 70, false, 71},     {200, 129, 129, true, 130},
        {1000, 0, 1000, false, 1001}, {1001, 0, 1000, true, 1001},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        make_many(rows[i].keys, 0);
        listed(&(dibs_once_list_options){.limit = rows[i].limit}, NULL);
        assert_int_equal(dibs_once_report_count(report), rows[i].count);
        assert_int_equal(store_of_many.limit[0], rows[i].looked);
        assert_int_equal(store_of_many.pages, 1);
        assert_string_equal(store_of_many.prefix, "o:");
        assert_string_equal(store_of_many.after, "");
        assert_int_equal(store_of_many.head, DIBS__RECORD_HEAD);
        for (size_t k = 0; k < rows[i].count; k++)
            assert_int_equal(number_at(k), k);
        assert_int_equal(dibs_once_report_next(report) != NULL, rows[i].more);
        assert_null(dibs_once_report_at(report, rows[i].count));
        if (rows[i].more) {
            char after[64];
            snprintf(after, sizeof after, "%s", dibs_once_report_next(report));
            listed(&(dibs_once_list_options){.limit = 2, .after = after}, NULL);
            assert_int_equal(number_at(0), rows[i].count);
        }
    }
    assert_int_equal(a->users, 0);
}

/* Few of many are wanted: the engine is asked for more and more at once, up to a bound. */
static void few_of_many_are_looked_for_in_growing_pages(void **state)
{
    static const size_t limits[] = {2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2000, 2000};

    (void)state;
    make_many(6001, 6000);
    listed(&(dibs_once_list_options){.limit = 1, .states = DIBS_ONCE_FAILED}, NULL);
    assert_int_equal(dibs_once_report_count(report), 0);
    assert_int_equal(store_of_many.pages, COUNT(limits));
    for (size_t i = 0; i < COUNT(limits); i++)
        assert_int_equal(store_of_many.limit[i], limits[i]);
    make_many(10000, 0); /* not only for powers of two */
    listed(&(dibs_once_list_options){.limit = 699, .states = DIBS_ONCE_FAILED}, NULL);
    assert_int_equal(store_of_many.limit[0], 700);
    assert_int_equal(store_of_many.limit[1], 1400);
    assert_int_equal(store_of_many.limit[2], 2000);
    make_many(6001, 6000);
    listed(&(dibs_once_list_options){.limit = 2, .states = DIBS_ONCE_CRASHED}, NULL);
    assert_int_equal(dibs_once_report_count(report), 2);
    assert_int_equal(number_at(1), 6000);
    assert_null(dibs_once_report_next(report));
}

/* The last of a page is the last that was asked for, and there are more pages. */
static void a_list_ends_with_a_page(void **state)
{
    (void)state;
    make_many(10, 100); /* the first is a crash */
    listed(&(dibs_once_list_options){.limit = 1, .states = DIBS_ONCE_DONE}, NULL);
    assert_int_equal(dibs_once_report_count(report), 1);
    assert_int_equal(number_at(0), 1);
    assert_string_equal(dibs_once_report_next(report), "0:00001");
    assert_int_equal(store_of_many.pages, 1);
}

/* Those that are found count: not more is asked for than is missing, where that is more than the growing page. */
static void what_is_missing_is_asked_for(void **state)
{
    (void)state;
    make_many(20000, 2);
    listed(&(dibs_once_list_options){.limit = 9000, .states = DIBS_ONCE_CRASHED}, NULL);
    assert_int_equal(store_of_many.limit[0], 9001);
    assert_int_equal(store_of_many.limit[1], 9000 - 4501 + 1);
    assert_int_equal(dibs_once_report_count(report), 9000);
    assert_string_equal(dibs_once_report_next(report), "0:17998");
}

/* Whoever looks for few among many gets what there is after half the time of a request. */
static void a_search_has_an_end(void **state)
{
    int64_t began = still_now();

    (void)state;
    make_many(10000000, 0);
    store_of_many.takes = a->request_span / 4 - STILL_ANSWER;
    listed(&(dibs_once_list_options){.limit = 1, .states = DIBS_ONCE_CRASHED}, NULL);
    assert_int_equal(still_now() - began, a->request_span / 2);
    assert_int_equal(store_of_many.pages, 2);
    assert_int_equal(store_of_many.until, began + a->request_span);
    assert_int_equal(dibs_once_report_count(report), 0);
    assert_string_equal(dibs_once_report_next(report), "0:00005"); /* 2 and 4 */
    make_many(10, 0);
    store_of_many.takes = a->request_span / 2 - 2 * STILL_ANSWER;
    listed(&(dibs_once_list_options){.limit = 1, .states = DIBS_ONCE_CRASHED}, NULL);
    assert_true(store_of_many.pages > 1);
}

/* A look changes nothing: it is repeated until the time is over. */
static void a_page_without_an_answer_is_read_again(void **state)
{
    int64_t began;

    (void)state;
    make_many(3, 0);
    store_of_many.silent = 2;
    began = still_now();
    listed(NULL, NULL);
    assert_int_equal(dibs_once_report_count(report), 3);
    assert_int_equal(still_now() - began, 3 * STILL_ANSWER + 100 * DIBS__MS);
    store_of_many.silent = 100000;
    store_of_many.pages = 0;
    began = still_now();
    dibs_once_report_free(report);
    report = (dibs_once_report *)1;
    assert_status(dibs_once_list(a, NULL, NULL, &report, &err), DIBS_UNAVAILABLE);
    assert_null(report);
    assert_in_range(still_now() - began, a->request_span - 60 * DIBS__MS, a->request_span);
    assert_in_range(store_of_many.pages, 90, 100);
    /* no sleep that ends with the time */
    store_of_many.silent = 1;
    store_of_many.takes = a->request_span - 50 * DIBS__MS - STILL_ANSWER;
    assert_status(dibs_once_list(a, NULL, NULL, &report, &err), DIBS_UNAVAILABLE);
    assert_null(report);
    store_of_many.silent = 1;
    store_of_many.takes--;
    listed(NULL, NULL);
}

static void an_engine_that_fails_is_told_of(void **state)
{
    (void)state;
    make_many(3, 0);
    store_of_many.fails = true;
    assert_status(dibs_once_list(a, NULL, NULL, &report, &err), DIBS_NO_MEMORY);
    assert_null(report);
    make_many(3, 0);
    store_of_many.headless = true;
    assert_int_equal(listed(NULL, NULL)->state, DIBS_ONCE_DAMAGED);
    assert_string_equal(dibs_once_report_at(report, 0)->damage,
                        "the record was not written by dibs, or by a newer version");
    assert_int_equal(dibs_once_report_count(report), 3);
}

/* By prefix, scope and state. */
static void a_list_has_what_is_asked_for(void **state)
{
    static const struct {
        const char *scope, *key;
        dibs__run_state state;
    } there[] = {{"", "aa", D}, {"", "ab", A}, {"", "b", N}, {"x", "aa", F}, {"xs", "ab", R}};
    static const struct {
        const char *prefix, *scope;
        uint32_t states;
        const char *keys; /* as scope/key, in order */
    } rows[] = {
        {NULL, NULL, 0, "/aa /ab x/aa xs/ab "},
        {"", "", 0, "/aa /ab "},
        {"a", NULL, 0, "/aa /ab x/aa xs/ab "},
        {"ab", NULL, 0, "/ab xs/ab "},
        {"b", NULL, 0, ""},
        {"b", NULL, DIBS_ONCE_FREE, "/b "},
        {NULL, NULL, DIBS_ONCE_FREE | DIBS_ONCE_FAILED, "/b x/aa "},
        {NULL, "x", 0, "x/aa "},
        {"ab", "xs", 0, "xs/ab "},
        {"ab", "x", 0, ""},
        {NULL, NULL, DIBS_ONCE_RUNNING, "xs/ab "},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(there); i++) {
        dibs__run_record r = record_of(there[i].state);
        store_in(there[i].scope, there[i].key, &r, 0);
    }
    for (size_t i = 0; i < COUNT(rows); i++) {
        char got[256] = "";
        listed(&(dibs_once_list_options){.scope = rows[i].scope, .states = rows[i].states},
               rows[i].prefix);
        for (size_t k = 0; k < dibs_once_report_count(report); k++) {
            const dibs_once_info *info = dibs_once_report_at(report, k);
            snprintf(got + strlen(got), sizeof got - strlen(got), "%s/%s ", info->scope, info->key);
        }
        assert_string_equal(got, rows[i].keys);
        assert_null(dibs_once_report_next(report));
    }
    dibs_once_report_free(NULL);
    assert_status(dibs_once_inspect(a, "aa", &(dibs_once_inspect_options){.scope = "xs"},
                                    &(dibs_once_report *){NULL}, &err),
                  DIBS_NOT_FOUND);
    dibs_once_report_free(report);
    assert_status(
        dibs_once_inspect(a, "aa", &(dibs_once_inspect_options){.scope = "x"}, &report, &err),
        DIBS_OK);
    assert_string_equal(dibs_once_report_at(report, 0)->scope, "x");
    assert_string_equal(dibs_once_report_at(report, 0)->key, "aa");
    assert_int_equal(dibs_once_report_at(report, 0)->state, DIBS_ONCE_FAILED);
}

/* ---- Deciding ---------------------------------------------------------------------------------- */

typedef enum deed { FORGET, FORGET_RUNNING, TO_DONE, TO_FAILED, TO_FREE, TO_CRASHED, DEEDS } deed;

static dibs_status decide(deed what, uint64_t version, const char *by)
{
    static const dibs_once_state outcomes[] = {[TO_DONE] = DIBS_ONCE_DONE,
                                               [TO_FAILED] = DIBS_ONCE_FAILED,
                                               [TO_FREE] = DIBS_ONCE_FREE,
                                               [TO_CRASHED] = DIBS_ONCE_CRASHED};
    bool ends = what == TO_DONE || what == TO_FAILED;

    memset(&err, 0, sizeof err);
    if (what <= FORGET_RUNNING)
        return dibs_once_forget(a, KEY,
                                &(dibs_once_forget_options){.version = version,
                                                            .running = what == FORGET_RUNNING,
                                                            .by = by},
                                &err);
    return dibs_once_resolve(a, KEY,
                             &(dibs_once_resolve_options){.version = version,
                                                          .outcome = outcomes[what],
                                                          .result = ends ? "it" : NULL,
                                                          .size = ends ? 2 : 0,
                                                          .code = ends ? 9 : 0,
                                                          .by = by},
                             &err);
}

/* What comes of a decision: it is written, refused because the key is in another state or in progress, or it is as it
 * should be already. */
typedef enum fate { OK, NO, BUSY, SAME } fate;

static const dibs_status fates[] = {
    [OK] = DIBS_OK, [NO] = DIBS_CONFLICT, [BUSY] = DIBS_RUNNING, [SAME] = DIBS_OK};

/* Of a run with a step, that may have taken over from another: `named`. Its version. */
static uint64_t store_run(dibs__run_state state, bool named)
{
    dibs__run_record r = record_of(state);
    uint64_t version;

    r.fence = named ? 500 : 0;
    snprintf(r.crashed, sizeof r.crashed, "%s", named ? "first-1" : "");
    r.fingerprint = "f";
    r.fingerprint_size = 1;
    r.steps = dibs__step_new("one", "1", 1);
    version = store(&r);
    dibs__steps_free(r.steps);
    return version;
}

static void expect_written(deed what, uint64_t version, bool named)
{
    static const dibs__run_state after[] = {N, N, D, F, N, A};
    const still_sent *s = still_last(a, 0);
    dibs__run_record new;
    int steps = 0;

    assert_int_equal(s->command.op, DIBS__CELL_SWAP);
    assert_int_equal(s->command.version, version);
    assert_true(s->notify && s->stamp[0] && !s->command.alive);
    assert_int_equal(s->until, still_last(a, 1)->at + a->request_span);
    assert_status(dibs__record_decode(s->data, s->command.size, &new, &err), DIBS_OK);
    for (const dibs__step *step = new.steps; step; step = step->next)
        steps++;
    dibs__steps_free(new.steps);
    assert_int_equal(s->command.keep, dibs__record_life(&new));
    assert_int_equal(new.state, after[what]);
    assert_int_equal(new.fence, named ? 500 : version);
    assert_string_equal(new.decided_by, named ? "alice" : "?");
    assert_string_equal(new.owner, "them");
    assert_int_equal(steps, what == TO_CRASHED);
    assert_int_equal(new.runs, after[what] == N ? 0 : 3);
    assert_int_equal(new.fingerprint_size, after[what] != N);
    assert_int_equal(new.has_result, what == TO_DONE || what == TO_FAILED);
    assert_int_equal(new.result_size, new.has_result ? 2 : 0);
    assert_int_equal(new.code, new.has_result ? 9 : what == TO_CRASHED ? -42 : 0);
    assert_string_not_equal(new.attempt, "theirs-1");
    assert_string_equal(new.crashed, what != TO_CRASHED ? "" : named ? "first-1" : "theirs-1");
}

static void expect_in_progress(uint64_t fence, int64_t age)
{
    assert_string_equal(err.owner, "them");
    assert_string_equal(err.host, "there");
    assert_int_equal(err.pid, 77);
    assert_int_equal(err.fence, fence + 1000);
    assert_int_equal(err.retry_after_ms, (LEASE - age) / DIBS__MS);
    assert_non_null(strstr(err.message, "'k': in progress by them on there (process 77)"));
}

static void a_decision_fits_the_state(void **state)
{
    static const struct {
        dibs__run_state state;
        int64_t age;
        fate come[DEEDS];
    } rows[] = {
        {R, DIBS__SECOND, {BUSY, OK, NO, NO, NO, OK}},
        {R, LEASE - 1, {BUSY, OK, NO, NO, NO, OK}},
        {R, LEASE, {OK, OK, OK, OK, OK, NO}},
        {A, DIBS__SECOND, {OK, OK, OK, OK, OK, NO}},
        {D, DIBS__SECOND, {OK, OK, NO, NO, NO, NO}},
        {D, KEEP, {OK, OK, NO, NO, NO, NO}},
        {F, DIBS__SECOND, {OK, OK, NO, NO, NO, NO}},
        {N, DIBS__SECOND, {SAME, SAME, NO, NO, NO, NO}},
    };

    (void)state;
    for (size_t i = 0; i < 2 * COUNT(rows) * DEEDS; i++) {
        bool named = i % 2;
        deed what = (deed)(i / 2 % DEEDS);
        size_t row = i / 2 / DEEDS;
        fate come = rows[row].come[what];
        int count = still_count(a);
        uint64_t version = store_run(rows[row].state, named);
        still_pass(rows[row].age - STILL_ANSWER);
        print_message("# row %zu, deed %d%s\n", row, what, named ? ", by version" : "");
        assert_status(decide(what, named ? version : 0, named ? "alice" : ""), fates[come]);
        assert_int_equal(still_count(a), count + (come == OK ? 2 : 1));
        if (come == OK)
            expect_written(what, version, named);
        if (come == BUSY)
            expect_in_progress(named ? 500 : version, rows[row].age);
        if (come == NO)
            assert_non_null(strstr(err.message, what == TO_CRASHED
                                                    ? "and not running: nothing was changed"
                                                    : "and not crashed: nothing was changed"));
    }
    assert_int_equal(a->users, 0);
}

static void another_version_is_not_what_was_inspected(void **state)
{
    dibs__run_record r = record_of(A);

    (void)state;
    for (int what = FORGET; what < DEEDS; what++) {
        uint64_t version = store(&r);
        assert_status(decide((deed)what, version - 1, NULL), DIBS_CONFLICT);
        assert_string_equal(err.message,
                            "'k' has changed since it was inspected: inspect it again");
    }
    r.state = N;
    store(&r);
    assert_status(decide(FORGET, 1, NULL), DIBS_OK); /* it is as it should be */
}

/* Of a record that cannot be read nobody knows whether it is a run in progress. */
static void a_damaged_record_is_forgotten_on_demand(void **state)
{
    (void)state;
    for (int named = 0; named < 3; named++)
        for (int what = FORGET; what < DEEDS; what++) {
            uint64_t version = store_bytes("o:0:k", "\3?", 2, 0);
            bool ok = what == FORGET_RUNNING && named < 2;
            assert_status(decide((deed)what,
                                 named == 1   ? version
                                 : named == 2 ? version + 1
                                              : 0,
                                 NULL),
                          named == 2 ? DIBS_CONFLICT
                          : ok       ? DIBS_OK
                                     : DIBS_ENGINE_FAILED);
            if (!ok)
                assert_non_null(strstr(err.message, "'k'"));
            else
                assert_int_equal(inspected()->state, DIBS_ONCE_FREE);
        }
    store_bytes("o:0:k", "\3?", 2, 0);
    assert_status(dibs_once_forget(a, KEY, NULL, NULL), DIBS_ENGINE_FAILED);
}

/* Nothing of it gets into the record that takes its place. */
static void a_damaged_record_is_replaced_as_a_whole(void **state)
{
    dibs__run_record r = record_of(R);
    size_t size;
    void *bytes = dibs__record_encode(&r, &size);

    (void)state;
    store_bytes("o:0:k", bytes, size - 1, 0);
    free(bytes);
    assert_status(decide(FORGET_RUNNING, 0, NULL), DIBS_OK);
    assert_status(
        dibs__record_decode(still_last(a, 0)->data, still_last(a, 0)->command.size, &r, &err),
        DIBS_OK);
    assert_int_equal(r.state, N);
    assert_string_equal(r.owner, "");
    assert_int_equal(r.lease, 0);
    assert_int_equal(r.pid, 0);
}

/* Of this scope and no other. */
static void a_decision_is_for_one_scope(void **state)
{
    dibs__run_record r = record_of(A);

    (void)state;
    store_in("x", KEY, &r, 0);
    assert_status(dibs_once_forget(a, KEY, NULL, &err), DIBS_NOT_FOUND);
    assert_status(
        dibs_once_resolve(a, KEY, &(dibs_once_resolve_options){.outcome = DIBS_ONCE_DONE}, &err),
        DIBS_NOT_FOUND);
    assert_status(
        dibs_once_resolve(
            a, KEY, &(dibs_once_resolve_options){.scope = "x", .outcome = DIBS_ONCE_DONE}, &err),
        DIBS_OK);
    assert_string_equal(still_last(a, 0)->key, "o:1:xk");
    assert_status(dibs_once_forget(a, KEY, &(dibs_once_forget_options){.scope = "x"}, &err),
                  DIBS_OK);
    assert_string_equal(still_last(a, 0)->key, "o:1:xk");
}

/* Another changes it between the look and the decision. */
static dibs__run_state rivals;

static void be_faster(void)
{
    dibs__run_record r = record_of(rivals);

    store(&r);
}

static void whoever_is_faster_is_not_overwritten(void **state)
{
    static const struct {
        deed what;
        dibs__run_state by;
        bool named;
        dibs_status status;
        int commands;
    } rows[] = {
        {FORGET, D, false, DIBS_OK, 4}, /* looked at again, and forgotten */
        {FORGET, R, false, DIBS_RUNNING, 3},   {FORGET, N, false, DIBS_OK, 3},
        {TO_DONE, D, false, DIBS_CONFLICT, 3}, {TO_DONE, A, false, DIBS_OK, 4},
        {FORGET, D, true, DIBS_CONFLICT, 2},   {TO_DONE, A, true, DIBS_CONFLICT, 2},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        dibs__run_record r = record_of(A);
        uint64_t version = store(&r);
        int count = still_count(a);
        rivals = rows[i].by;
        still_twist(a, (twist){.then = be_faster});
        assert_status(decide(rows[i].what, rows[i].named ? version : 0, NULL), rows[i].status);
        assert_int_equal(still_count(a), count + rows[i].commands);
    }
}

/* Our answer was lost, and another has changed it since: to do it again could undo that. */
static void what_happened_since_is_not_undone(void **state)
{
    dibs__run_record r = record_of(A);
    int count;

    (void)state;
    store(&r);
    rivals = D;
    still_twist(a, (twist){0});
    still_twist(a, (twist){.status = DIBS_UNKNOWN, .then = be_faster});
    assert_status(decide(FORGET, 0, NULL), DIBS_UNKNOWN);
    assert_non_null(strstr(err.message, "'k': the answer was lost"));
    assert_int_equal(inspected()->state, DIBS_ONCE_DONE);
    count = still_count(a);
    still_twist(a, (twist){0});
    still_twist(a, untold);
    assert_status(decide(FORGET, 0, NULL), DIBS_OK); /* asked for again under its stamp */
    assert_int_equal(still_count(a), count + 3);
    store(&r);
    still_twist(a, (twist){0});
    still_twist(a, denied);
    assert_status(decide(FORGET, 0, NULL), DIBS_DENIED);
    still_twist(a, denied);
    assert_status(decide(FORGET, 0, NULL), DIBS_DENIED);
    assert_int_equal(inspected()->state, DIBS_ONCE_CRASHED);
}

/* Others are faster again and again: it has an end. */
static void a_race_has_an_end(void **state)
{
    dibs__run_record r = record_of(A);
    int64_t began;

    (void)state;
    store(&r);
    rivals = A;
    began = still_now();
    still_twist(
        a,
        (twist){.then = be_faster, .takes = DIBS__SECOND / 2 - 3 * STILL_ANSWER, .always = true});
    assert_status(decide(FORGET, 0, NULL), DIBS_CONFLICT);
    assert_int_equal(still_now() - began, a->request_span);
    assert_int_equal(still_count(a), 10); /* half a second each, with what is faster */
    still_heal(a);
    assert_int_equal(a->users, 0);
}

/* ---- No memory ------------------------------------------------------------------------------- */

static void a_failed_allocation_is_a_status(void **state)
{
    dibs__run_record r = record_of(A);
    char last[sizeof err.message] = "";

    (void)state;
    for (int what = 0; what < 4; what++) {
        bool failed = true;
        for (long n = 1; failed; n++) {
            dibs_status status;
            r.steps = dibs__step_new("one", "1", 1);
            for (int i = 0; what == 0 && i < 70; i++) {
                char key[16];
                snprintf(key, sizeof key, "%d", i);
                store_in("", key, &r, 0);
            }
            store(&r);
            dibs__steps_free(r.steps);
            report = (dibs_once_report *)1;
            memset(&err, 0, sizeof err);
            alloc_fail(n, false);
            status = what == 0   ? dibs_once_list(a, NULL, &(dibs_once_list_options){.limit = 69},
                                                  &report, &err)
                     : what == 1 ? dibs_once_inspect(a, KEY, NULL, &report, &err)
                                 : decide(what == 2 ? FORGET : TO_DONE, 0, NULL);
            failed = alloc_heal();
            assert_status(status, failed ? DIBS_NO_MEMORY : DIBS_OK);
            if (status != DIBS_OK) {
                assert_non_null(strstr(err.message, "memory"));
                snprintf(last, sizeof last, "%s", err.message);
            }
            if (what < 2 && status != DIBS_OK)
                assert_null(report);
            if (what < 2 && status == DIBS_OK)
                dibs_once_report_free(report);
            report = NULL;
        }
        if (what == 1)
            assert_string_equal(last, "out of memory for the list"); /* of its steps */
    }
    assert_int_equal(a->users, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(record_and_age_are_the_state),
        CASE(a_look_shows_all_of_the_record),
        CASE(a_look_that_fails_shows_nothing),
        CASE(what_is_no_record_is_shown_as_damaged),
        CASE(wrong_questions_ask_nobody),
        CASE(wrong_outcomes_are_refused),
        CASE(wrong_lists_ask_nobody),
        CASE(nobody_else_is_asked),
        CASE(keys_are_taken_apart),
        CASE(a_page_has_an_end),
        CASE(few_of_many_are_looked_for_in_growing_pages),
        CASE(a_list_ends_with_a_page),
        CASE(what_is_missing_is_asked_for),
        CASE(a_search_has_an_end),
        CASE(a_page_without_an_answer_is_read_again),
        CASE(an_engine_that_fails_is_told_of),
        CASE(a_list_has_what_is_asked_for),
        CASE(a_decision_fits_the_state),
        CASE(another_version_is_not_what_was_inspected),
        CASE(a_damaged_record_is_forgotten_on_demand),
        CASE(a_damaged_record_is_replaced_as_a_whole),
        CASE(a_decision_is_for_one_scope),
        CASE(whoever_is_faster_is_not_overwritten),
        CASE(what_happened_since_is_not_undone),
        CASE(a_race_has_an_end),
        CASE(a_failed_allocation_is_a_status),
    };

    return cmocka_run_group_tests_name("keys", tests, NULL, NULL);
}
