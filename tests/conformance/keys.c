/* What operators do with keys of once: listing them, looking at one, forgetting, deciding an outcome. */
#define _GNU_SOURCE
#include "recipes/keys.h"
#include "conformance/onces.h"
#include "core/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MANY    10000
#define MAKERS  8
#define MAKE_MS 6000 /* as many as there are by then, on a slow engine */

/* ---- Looking --------------------------------------------------------------------------------- */

static dibs_once_report *page_of(dibs *d, const char *prefix, const dibs_once_list_options *o)
{
    dibs_once_report *r = NULL;
    dibs_error err = {0};

    if (dibs_once_list(d, prefix, o, &r, &err) != DIBS_OK)
        fail_msg("list '%s': %s", prefix ? prefix : "", err.message);
    assert_non_null(r);
    return r;
}

static dibs_once_report *looked_at(dibs *d, const char *key)
{
    dibs_once_report *r = NULL;
    dibs_error err = {0};

    if (dibs_once_inspect(d, key, NULL, &r, &err) != DIBS_OK)
        fail_msg("inspect '%s': %s", key, err.message);
    assert_int_equal(dibs_once_report_count(r), 1);
    assert_null(dibs_once_report_next(r));
    return r;
}

static dibs_once_state state_of(dibs *d, const char *key)
{
    dibs_once_report *r = looked_at(d, key);
    dibs_once_state state = dibs_once_report_at(r, 0)->state;

    dibs_once_report_free(r);
    return state;
}

static uint64_t version_of(dibs *d, const char *key)
{
    dibs_once_report *r = looked_at(d, key);
    uint64_t version = dibs_once_report_at(r, 0)->version;

    dibs_once_report_free(r);
    return version;
}

/* The state that a list shows; 0: the key is not in it. */
static unsigned listed_state(dibs *d, const char *key, uint32_t states)
{
    dibs_once_report *r = page_of(d, key, &(dibs_once_list_options){.scope = "", .states = states});
    const dibs_once_info *i = dibs_once_report_at(r, 0);
    unsigned state = i && strcmp(i->key, key) == 0 ? i->state : 0;

    dibs_once_report_free(r);
    return state;
}

static void expect_state(dibs *d, const char *key, dibs_once_state state)
{
    assert_string_equal(dibs_once_state_name(state_of(d, key)), dibs_once_state_name(state));
    assert_int_equal(listed_state(d, key, state), state);
    assert_int_equal(listed_state(d, key, 127 & ~(unsigned)state), 0);
    assert_int_equal(listed_state(d, key, 0), state == DIBS_ONCE_FREE ? 0 : state);
}

static void a_key_is_seen_in_every_state(void **state)
{
    dibs *d = once_open();
    const char *key = fresh("state");
    dibs_once_report *r = NULL;
    dibs_once *o;

    (void)state;
    assert_status(dibs_once_inspect(d, key, NULL, &r, NULL), DIBS_NOT_FOUND);
    assert_null(r);
    assert_int_equal(listed_state(d, key, 0), 0);
    o = once_first(d, key, NULL);
    expect_state(d, key, DIBS_ONCE_RUNNING);
    assert_status(dibs_once_undo(o, NULL), DIBS_OK);
    dibs_once_free(o);
    expect_state(d, key, DIBS_ONCE_FREE);
    o = once_first(d, key, NULL);
    assert_status(dibs_once_abandon(o, NULL), DIBS_OK);
    dibs_once_free(o);
    expect_state(d, key, DIBS_ONCE_CRASHED);
    o = once_first(d, key, &(dibs_once_options){.on_crash = DIBS_CRASH_RERUN});
    once_end(o, "it");
    expect_state(d, key, DIBS_ONCE_DONE);
    key = fresh("failed");
    o = once_first(d, key, NULL);
    assert_status(dibs_once_fail(o, NULL, 0, 3, NULL), DIBS_OK);
    dibs_once_free(o);
    expect_state(d, key, DIBS_ONCE_FAILED);
}

/* The same with a run that ends by its lease: it takes the engine's own word on who is alive. */
static void a_silent_runner_is_seen_as_dead(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("silent");
    dibs_once *late = once_fall_silent(a, key, NULL);

    (void)state;
    expect_state(b, key, DIBS_ONCE_RUNNING);
    assert_true(wait_until(once_is_dead, &(once_asked){b, key, 0}, LONG_MS));
    expect_state(b, key, DIBS_ONCE_CRASHED);
    lossy_stop();
    dibs_once_free(late);
}

static void a_look_shows_all_of_it(void **state)
{
    dibs *d = once_open();
    const char *key = fresh("look");
    dibs_once *o = once_first(d, key, &(dibs_once_options){.owner = "shop", .keep_ms = 60000});
    uint64_t fence = dibs_once_fence(o);
    dibs_once_report *r;
    const dibs_once_info *i;

    (void)state;
    assert_status(dibs_once_step(o, "reserved", "seat 3", 6, NULL), DIBS_OK);
    assert_status(dibs_once_step(o, "paid", NULL, 0, NULL), DIBS_OK);
    r = looked_at(d, key);
    i = dibs_once_report_at(r, 0);
    assert_string_equal(i->scope, "");
    assert_string_equal(i->key, key);
    assert_string_equal(i->runner->owner, "shop");
    assert_true(i->runner->fence == fence && i->runner->left_ms > 0 && i->runner->pid > 0);
    assert_int_equal(i->runs, 1);
    assert_int_equal(i->step_count, 2);
    assert_string_equal(i->steps[0]->name, "reserved");
    assert_memory_equal(i->steps[0]->data, "seat 3", 6);
    assert_int_equal(i->steps[1]->size, 0);
    assert_null(i->result);
    assert_null(i->decided_by);
    assert_true(i->left_ms > 0 && i->left_ms < DIBS_FOREVER);
    dibs_once_report_free(r);
    r = page_of(d, key, NULL);
    assert_int_equal(dibs_once_report_at(r, 0)->step_count, 2);
    assert_null(dibs_once_report_at(r, 0)->steps);
    dibs_once_report_free(r);
    once_end(o, "the receipt");
    r = looked_at(d, key);
    i = dibs_once_report_at(r, 0);
    assert_int_equal(i->result_size, 11);
    assert_memory_equal(i->result, "the receipt", 11);
    assert_int_equal(i->code, 7);
    assert_null(i->steps);
    dibs_once_report_free(r);
    r = page_of(d, key, NULL);
    assert_int_equal(dibs_once_report_at(r, 0)->result_size, 11);
    assert_null(dibs_once_report_at(r, 0)->result);
    dibs_once_report_free(r);
}

/* ("ab", "c") and ("a", "bc") are two keys; a list of one scope has no other's. */
static void scopes_are_kept_apart(void **state)
{
    dibs *d = once_open();
    const char *key = fresh("scoped"), *scopes[] = {"", "x", "x/ä {%}", "xs"};
    dibs_once_report *r;

    (void)state;
    for (size_t i = 0; i < 4; i++)
        once_end(once_first(d, key, &(dibs_once_options){.scope = scopes[i]}), NULL);
    for (size_t i = 0; i < 4; i++) {
        r = page_of(d, key, &(dibs_once_list_options){.scope = scopes[i]});
        assert_int_equal(dibs_once_report_count(r), 1);
        assert_string_equal(dibs_once_report_at(r, 0)->scope, scopes[i]);
        assert_string_equal(dibs_once_report_at(r, 0)->key, key);
        dibs_once_report_free(r);
    }
    r = page_of(d, key, NULL);
    assert_int_equal(dibs_once_report_count(r), 4);
    assert_null(dibs_once_report_next(r));
    dibs_once_report_free(r);
    assert_status(dibs_once_inspect(d, key, &(dibs_once_inspect_options){.scope = "y"}, &r, NULL),
                  DIBS_NOT_FOUND);
}

/* ---- Pages ----------------------------------------------------------------------------------- */

typedef struct maker {
    dibs *d;
    const char *start;
    int first, made; /* out: how many of its own */
    pthread_t thread;
} maker;

/* A record that is done, in one command. */
static bool make_key(dibs *d, const char *key)
{
    dibs__run_record record = {
        .state = DIBS__RUN_DONE, .runs = 1, .keep = 3600 * DIBS__SECOND, .has_result = true};
    char cell[DIBS__CELL_KEY_SIZE], stamp[DIBS__STAMP_SIZE];
    dibs__cell_command c = {.op = DIBS__CELL_SWAP, .stamp = stamp};
    dibs__cell_reply reply;
    void *bytes = dibs__record_encode(&record, &c.size);
    dibs_status status;

    dibs__key(DIBS__KEY_ONCE, "", key, cell);
    dibs__stamp(d, stamp);
    c.data = bytes;
    c.keep = dibs__record_life(&record);
    status = dibs__cell_do(d, cell, &c, false, dibs__after(d->env, LONG_MS * DIBS__MS), &reply,
                           NULL, NULL);
    free(bytes);
    free(reply.data);
    return status == DIBS_OK && reply.verdict == DIBS__CELL_DONE;
}

static void *make_keys(void *data)
{
    maker *m = data;
    int64_t end = clock_ms() + MAKE_MS;
    char key[DIBS_NAME_MAX];

    for (int i = m->first; i < MANY && clock_ms() < end; i += MAKERS) {
        snprintf(key, sizeof key, "%s:%05d", m->start, i);
        if (!make_key(m->d, key))
            break;
        m->made++;
    }
    return NULL;
}

/* Which of them there are, by number; how many in all. */
static int make_many(dibs *d, const char *start, bool there[MANY])
{
    maker m[MAKERS];
    int count = 0;

    for (int i = 0; i < MAKERS; i++) {
        m[i] = (maker){.d = d, .start = start, .first = i};
        assert_int_equal(pthread_create(&m[i].thread, NULL, make_keys, &m[i]), 0);
    }
    for (int i = 0; i < MAKERS; i++) {
        pthread_join(m[i].thread, NULL);
        for (int k = 0; k < m[i].made; k++)
            there[i + k * MAKERS] = true;
        count += m[i].made;
    }
    return count;
}

/* Takes them out of `there`. Each comes once, and in order. */
static int page_through(dibs *d, const char *start, size_t limit, bool there[MANY])
{
    char *after = NULL, last[DIBS_NAME_MAX + 1] = "";
    int seen = 0;

    for (;;) {
        dibs_once_report *r = page_of(
            d, start, &(dibs_once_list_options){.scope = "", .after = after, .limit = limit});
        size_t count = dibs_once_report_count(r);
        assert_true(count <= limit);
        for (size_t i = 0; i < count; i++) {
            const dibs_once_info *info = dibs_once_report_at(r, i);
            int n = atoi(info->key + strlen(start) + 1);
            assert_int_equal(info->state, DIBS_ONCE_DONE);
            assert_true(strcmp(info->key, last) > 0);
            assert_true(n >= 0 && n < MANY && there[n]);
            there[n] = false;
            strcpy(last, info->key);
            seen++;
        }
        free(after);
        after = dibs_once_report_next(r) ? strdup(dibs_once_report_next(r)) : NULL;
        dibs_once_report_free(r);
        if (!after)
            return seen;
    }
}

static void ten_thousand_keys_come_in_pages(void **state)
{
    dibs *d = once_open();
    char start[DIBS_NAME_MAX];
    bool *there = calloc(MANY, 1);
    int count;
    int64_t began;

    (void)state;
    assert_non_null(there);
    close_handle(d);
    d = open_for_load();
    snprintf(start, sizeof start, "%s", fresh("many"));
    count = make_many(d, start, there);
    began = clock_ms();
    assert_int_equal(page_through(d, start, 1000, there), count);
    print_message("# %d keys in pages of 1000: %d ms\n", count, (int)(clock_ms() - began));
    assert_true(count > 100);
    free(there);
}

static void a_page_ends_at_its_limit(void **state)
{
    dibs *d = once_open();
    const char *start = fresh("page");
    bool there[MANY] = {false};
    dibs_once_report *r;

    (void)state;
    for (int i = 0; i < 10; i++) {
        char key[DIBS_NAME_MAX];
        snprintf(key, sizeof key, "%s:%05d", start, i);
        assert_true(make_key(d, key));
        there[i] = true;
    }
    r = page_of(d, start, &(dibs_once_list_options){.scope = "", .limit = 10});
    assert_null(dibs_once_report_next(r)); /* they are all there: no page is empty for nothing */
    dibs_once_report_free(r);
    assert_int_equal(page_through(d, start, 3, there), 10);
    r = page_of(d, start, &(dibs_once_list_options){.states = DIBS_ONCE_CRASHED});
    assert_int_equal(dibs_once_report_count(r), 0);
    assert_null(dibs_once_report_next(r));
    dibs_once_report_free(r);
}

/* The one that is wanted comes after many that are not. */
static void one_of_many_is_found(void **state)
{
    dibs *d = once_open();
    const char *start = fresh("sparse");
    char key[DIBS_NAME_MAX];
    dibs_once_report *r;
    dibs_once *o;

    (void)state;
    for (int i = 0; i < 30; i++) {
        snprintf(key, sizeof key, "%s:%05d", start, i);
        if (i != 25)
            assert_true(make_key(d, key));
    }
    snprintf(key, sizeof key, "%s:%05d", start, 25);
    o = once_first(d, key, NULL);
    assert_status(dibs_once_abandon(o, NULL), DIBS_OK);
    dibs_once_free(o);
    r = page_of(d, start,
                &(dibs_once_list_options){.scope = "", .states = DIBS_ONCE_CRASHED, .limit = 1});
    assert_int_equal(dibs_once_report_count(r), 1);
    assert_string_equal(dibs_once_report_at(r, 0)->key, key);
    dibs_once_report_free(r);
}

/* ---- While keys come and go ------------------------------------------------------------------ */

typedef struct churn {
    dibs *d;
    const char *start;
    atomic_bool stop;
    int rounds;
} churn;

static void *begin_and_end(void *data)
{
    churn *c = data;
    char key[DIBS_NAME_MAX];

    for (; !atomic_load(&c->stop); c->rounds++) {
        dibs_once *o = NULL;
        snprintf(key, sizeof key, "%s:%05d+", c->start, c->rounds % 40);
        if (once_begin(c->d, key, &(dibs_once_options){.on_crash = DIBS_CRASH_RERUN}, &o) !=
            DIBS_OK)
            dibs_once_forget(c->d, key, NULL, NULL);
        else if (c->rounds % 3 == 0)
            dibs_once_finish(o, "x", 1, 0, NULL);
        else if (c->rounds % 3 == 1)
            dibs_once_undo(o, NULL);
        dibs_once_free(o);
    }
    return NULL;
}

/* How often each is listed. False: the list failed, or shows what is not there. */
static bool count_stable(dibs *d, const char *start, int times[40])
{
    dibs_once_list_options o = {.scope = "", .limit = 7};
    char *after = NULL;
    bool good = true;

    do {
        dibs_once_report *r = NULL;
        o.after = after;
        good = dibs_once_list(d, start, &o, &r, NULL) == DIBS_OK;
        for (size_t i = 0; good && i < dibs_once_report_count(r); i++) {
            const dibs_once_info *info = dibs_once_report_at(r, i);
            if (info->key[strlen(info->key) - 1] != '+')
                times[atoi(info->key + strlen(start) + 1)]++;
            good = info->state != DIBS_ONCE_DAMAGED;
        }
        free(after);
        after = good && dibs_once_report_next(r) ? strdup(dibs_once_report_next(r)) : NULL;
        dibs_once_report_free(r);
    } while (after);
    return good;
}

static bool all_once(const int times[40])
{
    for (int i = 0; i < 40; i++)
        if (times[i] != 1)
            return false;
    return true;
}

static void what_stays_is_listed_once_while_others_change(void **state)
{
    dibs *d = once_open();
    const char *start = fresh("churn");
    churn c = {.d = open_handle(), .start = start};
    int64_t end = clock_ms() + 1500;
    bool good = true;
    pthread_t thread;

    (void)state;
    for (int i = 0; i < 40; i++) {
        char key[DIBS_NAME_MAX];
        snprintf(key, sizeof key, "%s:%05d", start, i);
        assert_true(make_key(d, key));
    }
    assert_int_equal(pthread_create(&thread, NULL, begin_and_end, &c), 0);
    for (int lists = 0; good && (lists < 3 || clock_ms() < end); lists++) {
        int times[40] = {0};
        good = count_stable(d, start, times) && all_once(times);
    }
    atomic_store(&c.stop, true);
    pthread_join(thread, NULL);
    assert_true(good);
    assert_true(c.rounds > 3);
}

/* ---- Forgetting ------------------------------------------------------------------------------ */

static void a_forgotten_key_runs_again(void **state)
{
    dibs *d = once_open();
    const char *key = fresh("forget");
    const dibs_once_options other = {.fingerprint = "f", .fingerprint_size = 1};
    uint64_t version;
    dibs_once_report *r;
    dibs_once *o;

    (void)state;
    assert_status(dibs_once_forget(d, key, NULL, NULL), DIBS_NOT_FOUND);
    once_end(once_first(d, key, NULL), "old");
    version = version_of(d, key);
    assert_status(
        dibs_once_forget(d, key, &(dibs_once_forget_options){.version = version - 1}, NULL),
        DIBS_CONFLICT);
    once_expect(d, key, "old");
    assert_status(dibs_once_forget(
                      d, key, &(dibs_once_forget_options){.version = version, .by = "alice"}, NULL),
                  DIBS_OK);
    r = looked_at(d, key);
    assert_int_equal(dibs_once_report_at(r, 0)->state, DIBS_ONCE_FREE);
    assert_string_equal(dibs_once_report_at(r, 0)->decided_by, "alice");
    dibs_once_report_free(r);
    assert_status(dibs_once_forget(d, key, &(dibs_once_forget_options){.version = version}, NULL),
                  DIBS_OK);         /* it is as it should be */
    o = once_first(d, key, &other); /* as if it had never been used */
    assert_false(dibs_once_again(o));
    once_end(o, "new");
    r = looked_at(d, key);
    assert_null(dibs_once_report_at(r, 0)->decided_by);
    dibs_once_report_free(r);
}

static void a_run_in_progress_is_forgotten_only_on_demand(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("busy");
    dibs_once *late = once_first(a, key, NULL), *o;
    dibs_error err;

    (void)state;
    assert_status(dibs_once_forget(b, key, NULL, &err), DIBS_RUNNING);
    assert_true(err.fence == dibs_once_fence(late) && err.pid > 0);
    assert_status(dibs_once_step(late, "on", NULL, 0, NULL), DIBS_OK);
    assert_status(dibs_once_forget(b, key, &(dibs_once_forget_options){.running = true}, NULL),
                  DIBS_OK);
    o = once_first(b, key, NULL);
    assert_status(dibs_once_step(late, "off", NULL, 0, NULL), DIBS_LOST);
    assert_status(dibs_once_finish(late, "late", 4, 0, NULL), DIBS_LOST);
    dibs_once_free(late);
    once_end(o, "new");
    once_expect(a, key, "new");
}

/* The late one finds a key that nobody has taken since. */
static void a_late_finish_of_what_was_forgotten_is_refused(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("late");
    dibs_once *late = once_first(a, key, NULL);

    (void)state;
    assert_status(dibs_once_forget(b, key, &(dibs_once_forget_options){.running = true}, NULL),
                  DIBS_OK);
    assert_status(dibs_once_finish(late, "late", 4, 0, NULL), DIBS_LOST);
    dibs_once_free(late);
    assert_int_equal(state_of(b, key), DIBS_ONCE_FREE);
}

/* A begin that the network brings after the key was forgotten begins nothing. */
static void a_late_begin_finds_no_empty_key(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("begin");
    dibs_once *o = NULL;

    (void)state;
    close_handle(a);
    a = open_with(&(dibs_options){.request_ms = 1000});
    lossy_put_in(a);
    lossy_lose(LOSSY_HELD, -1, NULL, NULL);
    assert_status(once_begin(a, key, NULL, &o), DIBS_UNKNOWN);
    once_end(once_first(b, key, NULL), "done");
    assert_status(dibs_once_forget(b, key, NULL, NULL), DIBS_OK);
    assert_true(lossy_deliver(b) > 0);
    assert_int_equal(state_of(b, key), DIBS_ONCE_FREE);
    lossy_stop();
}

/* ---- Deciding -------------------------------------------------------------------------------- */

static dibs_once *crash(dibs *d, const char *key)
{
    dibs_once *o = once_first(d, key, NULL);

    assert_status(dibs_once_step(o, "half", "x", 1, NULL), DIBS_OK);
    assert_status(dibs_once_abandon(o, NULL), DIBS_OK);
    return o;
}

static void a_crash_is_resolved(void **state)
{
    dibs *d = once_open();
    const char *key = fresh("resolve");
    dibs_once_report *r;
    dibs_once *o;

    (void)state;
    dibs_once_free(crash(d, key));
    assert_status(
        dibs_once_resolve(
            d, key,
            &(dibs_once_resolve_options){
                .outcome = DIBS_ONCE_DONE, .result = "paid", .size = 4, .code = 7, .by = "bob"},
            NULL),
        DIBS_OK);
    once_expect(d, key, "paid");
    r = looked_at(d, key);
    assert_string_equal(dibs_once_report_at(r, 0)->decided_by, "bob");
    assert_int_equal(dibs_once_report_at(r, 0)->step_count, 0);
    dibs_once_report_free(r);
    dibs_once_free(crash(d, key = fresh("failed")));
    assert_status(
        dibs_once_resolve(d, key, &(dibs_once_resolve_options){.outcome = DIBS_ONCE_FAILED}, NULL),
        DIBS_OK);
    assert_status(once_begin(d, key, NULL, &o), DIBS_ALREADY);
    assert_true(dibs_once_failed(o));
    dibs_once_free(o);
    dibs_once_free(crash(d, key = fresh("free")));
    assert_status(
        dibs_once_resolve(d, key, &(dibs_once_resolve_options){.outcome = DIBS_ONCE_FREE}, NULL),
        DIBS_OK);
    o = once_first(d, key, NULL);
    assert_false(dibs_once_again(o));
    once_end(o, NULL);
}

/* What is decided to be done stays what it was done for; what is to run again may be something else. */
static void a_decision_keeps_or_forgets_the_fingerprint(void **state)
{
    const dibs_once_options one = {.fingerprint = "1", .fingerprint_size = 1},
                            other = {.fingerprint = "2", .fingerprint_size = 1};
    const dibs_once_state outcomes[] = {DIBS_ONCE_DONE, DIBS_ONCE_FAILED, DIBS_ONCE_FREE};
    dibs *d = once_open();

    (void)state;
    for (int i = 0; i < 3; i++) {
        const char *key = fresh("decided");
        dibs_once *o = once_first(d, key, &one);
        assert_status(dibs_once_abandon(o, NULL), DIBS_OK);
        dibs_once_free(o);
        assert_status(
            dibs_once_resolve(d, key, &(dibs_once_resolve_options){.outcome = outcomes[i]}, NULL),
            DIBS_OK);
        o = NULL;
        if (i < 2) {
            assert_status(once_begin(d, key, &one, &o), DIBS_ALREADY);
            dibs_once_free(o);
            o = NULL;
        }
        assert_status(once_begin(d, key, &other, &o), i < 2 ? DIBS_MISMATCH : DIBS_OK);
        if (i == 2)
            assert_int_equal(dibs_once_code(o), 0);
        dibs_once_free(o);
    }
}

static void only_a_crash_is_resolved(void **state)
{
    dibs *d = once_open();
    const char *key = fresh("not");
    const dibs_once_resolve_options done = {.outcome = DIBS_ONCE_DONE};
    dibs_once_resolve_options once = done;
    dibs_once *o = once_first(d, key, NULL);

    (void)state;
    assert_status(dibs_once_resolve(d, key, &done, NULL), DIBS_CONFLICT);
    assert_status(dibs_once_step(o, "on", NULL, 0, NULL), DIBS_OK);
    once_end(o, "mine");
    assert_status(dibs_once_resolve(d, key, &done, NULL), DIBS_CONFLICT);
    once_expect(d, key, "mine");
    assert_status(dibs_once_resolve(d, fresh("none"), &done, NULL), DIBS_NOT_FOUND);
    assert_status(dibs_once_resolve(d, key, NULL, NULL), DIBS_INVALID);
    dibs_once_free(crash(d, key = fresh("crash")));
    once.version = version_of(d, key);
    o = once_first(d, key, &(dibs_once_options){.on_crash = DIBS_CRASH_RERUN});
    assert_status(dibs_once_abandon(o, NULL), DIBS_OK); /* crashed again, and not the same crash */
    dibs_once_free(o);
    assert_status(dibs_once_resolve(d, key, &once, NULL), DIBS_CONFLICT);
    assert_int_equal(state_of(d, key), DIBS_ONCE_CRASHED);
}

/* One that was only slow comes back after the decision. */
static void a_late_finish_of_what_was_resolved_is_refused(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("slow");
    dibs_once *late = once_fall_silent(a, key, NULL);

    (void)state;
    assert_true(wait_until(once_is_dead, &(once_asked){b, key, 0}, LONG_MS));
    assert_status(
        dibs_once_resolve(b, key,
                          &(dibs_once_resolve_options){
                              .outcome = DIBS_ONCE_DONE, .result = "decided", .size = 7, .code = 7},
                          NULL),
        DIBS_OK);
    lossy_stop();
    assert_status(dibs_once_finish(late, "late", 4, 0, NULL), DIBS_LOST);
    dibs_once_free(late);
    lossy_stop();
    once_expect(b, key, "decided");
}

static void a_runner_can_be_declared_dead(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("dead");
    const dibs_once_resolve_options dead = {.outcome = DIBS_ONCE_CRASHED, .by = "carol"};
    dibs_once *late = once_first(a, key, NULL);
    dibs_once_report *r;

    (void)state;
    assert_status(dibs_once_step(late, "half", "x", 1, NULL), DIBS_OK);
    assert_status(dibs_once_resolve(b, key, &dead, NULL), DIBS_OK);
    assert_status(dibs_once_resolve(b, key, &dead, NULL), DIBS_CONFLICT);
    r = looked_at(b, key);
    assert_int_equal(dibs_once_report_at(r, 0)->state, DIBS_ONCE_CRASHED);
    assert_int_equal(dibs_once_report_at(r, 0)->step_count, 1);
    assert_string_equal(dibs_once_report_at(r, 0)->decided_by, "carol");
    dibs_once_report_free(r);
    assert_status(dibs_once_finish(late, "late", 4, 0, NULL), DIBS_LOST);
    dibs_once_free(late);
    assert_status(once_answered(b, key, NULL), DIBS_CRASHED);
}

/* ---- Lost answers ---------------------------------------------------------------------------- */

/* The second command of a call loses its answer, so often; `then` runs after that. */
typedef struct plan {
    int times;
    void (*then)(void *data);
    dibs *d;
    const char *key;
} plan;

static void lose_the_next(void *data)
{
    plan *p = data;

    lossy_lose(LOSSY_ANSWER, p->times, p->then, p);
}

static void lose_the_second(plan *p)
{
    lossy_lose(LOSSY_LATE, 1, lose_the_next, p);
}

static void a_lost_answer_is_asked_for_again(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("lost");
    plan p = {.times = 2};

    (void)state;
    once_end(once_first(b, key, NULL), "x");
    lossy_put_in(a);
    lose_the_second(&p);
    assert_status(dibs_once_forget(a, key, NULL, NULL), DIBS_OK);
    assert_int_equal(lossy_commands(), 4);
    lossy_stop();
    assert_int_equal(state_of(b, key), DIBS_ONCE_FREE);
}

static void run_it_again(void *data)
{
    plan *p = data;

    once_end(once_first(p->d, p->key, NULL), "new");
}

/* Ours was there, and another has run it since: that run is not forgotten as well. */
static void what_happened_since_is_not_forgotten(void **state)
{
    dibs *a = once_open(), *b = open_handle();
    const char *key = fresh("since");
    plan p = {1, run_it_again, b, key};

    (void)state;
    once_end(once_first(b, key, NULL), "old");
    lossy_put_in(a);
    lose_the_second(&p);
    assert_status(dibs_once_forget(a, key, NULL, NULL), DIBS_UNKNOWN);
    lossy_stop();
    once_expect(b, key, "new");
}

/* ---- What is no record, or no longer --------------------------------------------------------- */

static void write_raw(dibs *d, const char *key, const void *data, size_t size)
{
    char cell[DIBS__CELL_KEY_SIZE], stamp[DIBS__STAMP_SIZE];
    dibs__cell_command c = {.op = DIBS__CELL_SWAP, .data = data, .size = size, .stamp = stamp};
    dibs__cell_reply reply;

    dibs__key(DIBS__KEY_ONCE, "", key, cell);
    dibs__stamp(d, stamp);
    assert_status(dibs__cell_do(d, cell, &c, false, dibs__after(d->env, LONG_MS * DIBS__MS), &reply,
                                NULL, NULL),
                  DIBS_OK);
    free(reply.data);
}

static void a_damaged_record_is_shown_as_such(void **state)
{
    static const struct {
        const void *data;
        size_t size;
    } bad[] = {{"", 0}, {"\x63", 1}, {"\x03\x02garbage", 9}, {"\x03", 1}};
    dibs *d = once_open();
    char start[64], key[DIBS_NAME_MAX];
    dibs_once_report *r;

    (void)state;
    snprintf(start, sizeof start, "%s", fresh("bad"));
    for (size_t i = 0; i < 4; i++) {
        snprintf(key, sizeof key, "%s:%zu", start, i);
        write_raw(d, key, bad[i].data, bad[i].size);
        expect_state(d, key, DIBS_ONCE_DAMAGED);
        r = looked_at(d, key);
        assert_true(strlen(dibs_once_report_at(r, 0)->damage) > 10);
        assert_null(dibs_once_report_at(r, 0)->runner);
        dibs_once_report_free(r);
        assert_status(once_answered(d, key, NULL), DIBS_ENGINE_FAILED);
        assert_status(dibs_once_forget(d, key, NULL, NULL), DIBS_ENGINE_FAILED);
        assert_status(dibs_once_resolve(
                          d, key, &(dibs_once_resolve_options){.outcome = DIBS_ONCE_FREE}, NULL),
                      DIBS_ENGINE_FAILED);
    }
    snprintf(key, sizeof key, "%s:sound", start);
    once_end(once_first(d, key, NULL), "x");
    r = page_of(d, start, NULL); /* the others are listed all the same */
    assert_int_equal(dibs_once_report_count(r), 5);
    assert_int_equal(dibs_once_report_at(r, 4)->state, DIBS_ONCE_DONE);
    dibs_once_report_free(r);
    snprintf(key, sizeof key, "%s:0", start);
    assert_status(dibs_once_forget(d, key, &(dibs_once_forget_options){.running = true}, NULL),
                  DIBS_OK);
    once_end(once_first(d, key, NULL), NULL);
}

static bool is_gone(void *ctx)
{
    once_asked *a = ctx;

    return listed_state(a->d, a->key, 127) == 0;
}

static void what_has_ended_is_not_listed(void **state)
{
    dibs *d = once_open();
    const char *key = fresh("ended"), *stone = fresh("stone");
    dibs_once_report *r = NULL;

    (void)state;
    once_end(once_first(d, stone, &(dibs_once_options){.keep_ms = 50, .tombstone_ms = 60000}), "x");
    once_end(once_first(d, key, &(dibs_once_options){.keep_ms = 2000}), "x");
    assert_int_equal(listed_state(d, key, 0), DIBS_ONCE_DONE);
    assert_true(wait_until(is_gone, &(once_asked){d, key, 0}, LONG_MS));
    assert_status(dibs_once_inspect(d, key, NULL, &r, NULL), DIBS_NOT_FOUND);
    expect_state(d, stone, DIBS_ONCE_EXPIRED);
}

static void what_is_asked_for_is_checked(void **state)
{
    dibs *d = once_open();
    char longer[4000];
    dibs_once_report *r = NULL;

    (void)state;
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_status(dibs_once_list(d, NULL, &(dibs_once_list_options){.limit = 10001}, &r, NULL),
                  DIBS_INVALID);
    assert_status(dibs_once_list(d, NULL, &(dibs_once_list_options){.states = 128}, &r, NULL),
                  DIBS_INVALID);
    assert_status(dibs_once_list(d, NULL, &(dibs_once_list_options){.after = longer}, &r, NULL),
                  DIBS_INVALID);
    assert_status(dibs_once_list(d, longer, NULL, &r, NULL), DIBS_INVALID);
    assert_null(r);
    assert_status(
        dibs_once_list(d, "", &(dibs_once_list_options){.scope = "", .limit = 1}, &r, NULL),
        DIBS_OK); /* nothing is a prefix, and a scope */
    dibs_once_report_free(r);
    r = NULL;
    assert_status(dibs_once_inspect(d, "", NULL, &r, NULL), DIBS_INVALID);
    assert_status(dibs_once_forget(d, "k", &(dibs_once_forget_options){.by = longer}, NULL),
                  DIBS_INVALID);
    assert_status(dibs_once_resolve(d, "k",
                                    &(dibs_once_resolve_options){
                                        .outcome = DIBS_ONCE_FREE, .result = "x", .size = 1},
                                    NULL),
                  DIBS_INVALID);
}

static const struct CMUnitTest tests[] = {
    CASE(a_key_is_seen_in_every_state),
    CASE(a_silent_runner_is_seen_as_dead),
    CASE(a_look_shows_all_of_it),
    CASE(scopes_are_kept_apart),
    CASE(a_page_ends_at_its_limit),
    CASE(one_of_many_is_found),
    CASE(ten_thousand_keys_come_in_pages),
    CASE(what_stays_is_listed_once_while_others_change),
    CASE(a_forgotten_key_runs_again),
    CASE(a_run_in_progress_is_forgotten_only_on_demand),
    CASE(a_late_finish_of_what_was_forgotten_is_refused),
    CASE(a_late_begin_finds_no_empty_key),
    CASE(a_crash_is_resolved),
    CASE(a_decision_keeps_or_forgets_the_fingerprint),
    CASE(only_a_crash_is_resolved),
    CASE(a_late_finish_of_what_was_resolved_is_refused),
    CASE(a_runner_can_be_declared_dead),
    CASE(a_lost_answer_is_asked_for_again),
    CASE(what_happened_since_is_not_forgotten),
    CASE(a_damaged_record_is_shown_as_such),
    CASE(what_has_ended_is_not_listed),
    CASE(what_is_asked_for_is_checked),
};

CASES(key_cases, tests);
