/* Runs of once on ZooKeeper and etcd: waits for another's run when connection, session or server fail, and
 * who counts as dead when clocks are wrong.
 *
 * usage: test_entries_runs zookeeper|etcd [PATTERN] */
#define _GNU_SOURCE
#include "families/entries/inner.h"
#include "kit.h"
#include "support/lossy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOUR     (3600 * DIBS__SECOND)
#define LEASE_MS 2000

static dibs_once *run_it(dibs *d, const char *key, const dibs_once_options *options)
{
    dibs_once *o = NULL;
    dibs_error err = {0};

    if (dibs_once_begin(d, key, options, &o, &err) != DIBS_OK)
        fail_msg("%s: %s", key, err.message);
    return o;
}

static void finish(dibs_once *o)
{
    assert_status(dibs_once_finish(o, "done", 4, 0, NULL), DIBS_OK);
    dibs_once_free(o);
}

/* What a duplicate is told that does not wait. */
static dibs_status answer_of(dibs *d, const char *key)
{
    dibs_once *o = NULL;
    dibs_status status =
        dibs_once_begin(d, key, &(dibs_once_options){.wait_ms = DIBS_NO_WAIT}, &o, NULL);

    dibs_once_free(o);
    return status;
}

/* ---- A duplicate that waits ------------------------------------------------------------------ */

typedef struct duplicate {
    pthread_t thread;
    dibs_once *o;
    int64_t wait_ms;
    dibs_status status;
    atomic_bool done;
} duplicate;

static void *wait_for_it(void *arg)
{
    duplicate *w = arg;

    w->status = dibs_once_wait(w->o, w->wait_ms, NULL);
    atomic_store(&w->done, true);
    return NULL;
}

/* It has been told that another is at it. */
static void meet(duplicate *w, dibs *d, const char *key)
{
    memset(w, 0, sizeof *w);
    assert_status(
        dibs_once_begin(d, key, &(dibs_once_options){.wait_ms = DIBS_NO_WAIT}, &w->o, NULL),
        DIBS_RUNNING);
}

static void start(duplicate *w)
{
    assert_int_equal(pthread_create(&w->thread, NULL, wait_for_it, w), 0);
}

static bool is_done(void *w)
{
    return atomic_load(&((duplicate *)w)->done);
}

static dibs_status join(duplicate *w)
{
    assert_true(wait_until(is_done, w, LONG_MS));
    pthread_join(w->thread, NULL);
    dibs_once_free(w->o);
    return w->status;
}

static void cut_off(proxy *p)
{
    proxy_freeze(p, PROXY_UP);
    proxy_freeze(p, PROXY_DOWN);
}

/* ---- Waits ----------------------------------------------------------------------------------- */

static bool can_ask(void *d)
{
    dibs_value v;

    return dibs_cell_read(d, "whatever", &v, NULL) == DIBS_NOT_FOUND;
}

static void a_waiters_connection_may_be_cut_anywhere(void **state)
{
    proxy *p = proxy_here();
    dibs *a = open_here(), *b = open_through(p);
    char key[32];

    (void)state;
    for (int64_t k = 0; k < 700; k += 173) {
        duplicate w;
        dibs_once *o;
        snprintf(key, sizeof key, "cut-%d", (int)k);
        o = run_it(a, key, NULL);
        assert_true(wait_until(can_ask, b, LONG_MS)); /* it may have to connect again */
        meet(&w, b, key);
        proxy_cut(p, PROXY_DOWN, k, k % 2 != 0);
        start(&w);
        sleep_ms(50); /* it may have been cut by now, or not: both are to end well */
        finish(o);
        assert_status(join(&w), DIBS_ALREADY);
        proxy_heal(p);
    }
}

/* Its watch goes with the session, or is taken up again. */
static void a_wait_outlives_the_session(void **state)
{
    proxy *p = proxy_here();
    dibs *a = open_here(), *b = open_through(p);
    duplicate w;
    dibs_once *o = run_it(a, "outlives", NULL);
    dibs_grant *g = take(b, "outlives", NULL);

    (void)state;
    meet(&w, b, "outlives");
    start(&w);
    cut_off(p);
    assert_status(unlock(take(a, "outlives", NULL)), DIBS_OK); /* when b's session is over */
    assert_false(is_done(&w));
    proxy_heal(p);
    proxy_drop_all(p, false);
    finish(o);
    assert_status(join(&w), DIBS_ALREADY);
    unlock(g);
}

/* Neither the call nor the end of the handle waits for a server that says nothing, and nothing is left
 * behind (a build with sanitizers would tell). */
static void a_wait_on_a_silent_server_ends_in_time(void **state)
{
    proxy *p = proxy_here();
    dibs *a = open_here(), *b = open_through(p);
    dibs_once *o = run_it(a, "silent", NULL);
    int64_t began = clock_ms();
    duplicate w;

    (void)state;
    meet(&w, b, "silent");
    w.wait_ms = 1500;
    start(&w);
    sleep_ms(300); /* most likely it has its watch by now; if not, it waits for that */
    cut_off(p);
    assert_true(join(&w) != DIBS_ALREADY);
    assert_in_range(clock_ms() - began, 1500, 1500 + 2 * SOON_MS);
    close_handle(b);
    finish(o);
}

/* ---- Clocks ---------------------------------------------------------------------------------- */

static int64_t wall_ahead(void *ctx)
{
    (void)ctx;
    return dibs__env_system.wall(dibs__env_system.ctx) + HOUR;
}

static int64_t wall_behind(void *ctx)
{
    (void)ctx;
    return dibs__env_system.wall(dibs__env_system.ctx) - HOUR;
}

static dibs__env behind_env, ahead_env;

static void make_clocks(void)
{
    behind_env = ahead_env = dibs__env_system;
    behind_env.wall = wall_behind;
    ahead_env.wall = wall_ahead;
}

/* A client whose clock is off by an hour. */
static dibs *open_off(bool ahead)
{
    dibs *d = open_here();

    d->env = d->engine->env = ahead ? &ahead_env : &behind_env;
    return d;
}

static void no_clock_makes_a_runner_dead(void **state)
{
    dibs *a = open_here(), *ahead = open_off(true), *behind = open_off(false);
    dibs_once_options o = {.lease_ms = LEASE_MS, .keep_ms = 1000};
    dibs_once *run[] = {run_it(a, "of-now", &o), run_it(ahead, "of-later", &o),
                        run_it(behind, "of-earlier", &o)};
    int64_t began = clock_ms();

    (void)state;
    while (clock_ms() - began < LEASE_MS + LEASE_MS / 4) {
        assert_status(answer_of(ahead, "of-now"), DIBS_RUNNING);
        assert_status(answer_of(behind, "of-now"), DIBS_RUNNING);
        assert_status(answer_of(a, "of-later"), DIBS_RUNNING);
        assert_status(answer_of(a, "of-earlier"), DIBS_RUNNING);
        for (size_t i = 0; i < 3; i++)
            assert_true(dibs_once_held(run[i]));
        sleep_ms(100);
    }
    for (size_t i = 0; i < 3; i++)
        finish(run[i]);
}

typedef struct witness {
    dibs *d;
    const char *key;
} witness;

static bool is_dead(void *ctx)
{
    witness *w = ctx;

    return answer_of(w->d, w->key) == DIBS_CRASHED;
}

/* Those who have looked before, and those who come afterwards and do not wait. */
static void the_dead_are_known_by_any_clock(void **state)
{
    dibs *a = open_here(), *ahead = open_off(true), *behind = open_off(false);
    dibs_once_options o = {.lease_ms = LEASE_MS};
    dibs_once *run;

    (void)state;
    lossy_put_in(a);
    run = run_it(a, "dies", &o);
    lossy_lose(LOSSY_REQUEST, -1, NULL, NULL);
    assert_true(wait_until(is_dead, &(witness){ahead, "dies"}, LONG_MS));
    assert_false(dibs_once_held(run)); /* it knew before */
    assert_true(wait_until(is_dead, &(witness){behind, "dies"}, LONG_MS));
    assert_status(answer_of(open_off(false), "dies"), DIBS_CRASHED);
    assert_status(answer_of(open_off(true), "dies"), DIBS_CRASHED);
    lossy_stop();
    dibs_once_free(run);
}

static bool is_lost(void *grant)
{
    return !dibs_grant_held(grant);
}

/* Long before the next look by itself, which is after a fifth of the session: 4 s. */
static void a_broken_holder_hears_of_it_by_any_clock(void **state)
{
    const dibs__env *const env[] = {&ahead_env, &behind_env, &dibs__env_system};
    dibs *d[3];
    dibs_grant *g[3];

    (void)state;
    need_server();
    for (size_t i = 0; i < 3; i++) {
        d[i] = open_url(url_lasting(the_server.hosts));
        d[i]->env = d[i]->engine->env = env[i];
        g[i] = expect_lock(d[i], "breaks", &(dibs_lock_options){.shared = true});
    }
    assert_status(
        dibs_lock_break(d[2], "breaks", &(dibs_lock_break_options){.by = "me", .now = true}, NULL),
        DIBS_OK);
    assert_true(wait_until(is_lost, g[0], 3000));
    assert_true(wait_until(is_lost, g[1], LONG_MS));
    assert_true(wait_until(is_lost, g[2], LONG_MS));
    for (size_t i = 0; i < 3; i++)
        unlock(g[i]);
}

/* ---- The base of all fences ------------------------------------------------------------------ */

/* Others may have one: a client that took it for 0 would give out lower fences than they do. */
static void a_base_that_may_not_be_read_is_not_taken_for_0(void **state)
{
    dibs *a = open_here();
    dibs__deadline until = dibs__after(a->env, LONG_MS * DIBS__MS);
    dibs_error err = {0};

    (void)state;
    lossy_put_in(a);
    lossy_lose(LOSSY_DENIED, 1, NULL, NULL);
    assert_status(dibs__base_open(a, 0, until, &err), DIBS_DENIED);
    lossy_lose(LOSSY_REQUEST, 3, NULL, NULL); /* asked again */
    assert_status(dibs__base_open(a, 0, until, &err), DIBS_OK);
    lossy_stop();
}

/* ---- Versions and fences --------------------------------------------------------------------- */

#define ROUNDS 12

static uint64_t version_of(dibs *d, const char *name)
{
    dibs_value v;
    uint64_t version;

    assert_status(dibs_cell_read(d, name, &v, NULL), DIBS_OK);
    version = v.version;
    dibs_value_free(&v);
    return version;
}

/* Clients whose clocks are two hours apart write in turns, change and delete. */
static void versions_grow_by_any_clocks(void **state)
{
    dibs *d[] = {open_off(true), open_off(false), open_here()};
    uint64_t last = 0;

    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        dibs *a = d[i % 3], *b = d[(i + 1) % 3];
        dibs_value v;
        assert_status(dibs_cell_swap(a, "grows", 0, "x", 1, NULL, &v, NULL), DIBS_OK);
        assert_true(v.version > last && v.version < (uint64_t)1 << 63);
        last = v.version;
        assert_int_equal(version_of(b, "grows"), last);
        if (i >= ROUNDS / 2) /* with a floor, the emptied cell stays */
            assert_status(dibs_cell_pass(b, "grows", &(dibs_cell_options){.fence = 7, .floor = 7},
                                         NULL, NULL),
                          DIBS_OK);
        assert_int_equal(version_of(a, "grows"), last); /* only the floor has changed */
        assert_status(dibs_cell_swap(b, "grows", last, "y", 1, NULL, &v, NULL), DIBS_OK);
        assert_true(v.version > last);
        assert_status(dibs_cell_swap(a, "grows", last, "z", 1, NULL, NULL, NULL), DIBS_CONFLICT);
        last = v.version;
        assert_status(dibs_cell_delete(a, "grows", i % 2 ? last : DIBS_ANY_VERSION, NULL, NULL),
                      DIBS_OK);
    }
}

static void fences_of_runs_grow_by_any_clocks(void **state)
{
    dibs *d[] = {open_off(true), open_off(false), open_here()};
    dibs_once_options o = {.lease_ms = LEASE_MS};
    uint64_t last = 0;

    (void)state;
    for (int i = 0; i < ROUNDS; i++) {
        dibs_once *run = run_it(d[i % 3], "fenced", &o);
        assert_true(dibs_once_fence(run) > last);
        last = dibs_once_fence(run);
        assert_status(dibs_once_undo(run, NULL), DIBS_OK); /* it may run again */
        dibs_once_free(run);
    }
}

/* ---- What the store holds -------------------------------------------------------------------- */

static const struct dibs__entries_cells *cells_of(dibs *d, dibs__entries_backend **backend)
{
    *backend = ((dibs__entries *)d->engine)->backend;
    return (*backend)->adapter->cells;
}

static dibs__entries_blob look_at(dibs *d, const char *key)
{
    dibs__entries_backend *backend;
    const struct dibs__entries_cells *cells = cells_of(d, &backend);
    dibs__entries_blob b = {0};

    dibs__entries_cell_name(&b, key);
    assert_status(cells->read(backend, &b, 1, dibs__after(d->env, LONG_MS * DIBS__MS), NULL),
                  DIBS_OK);
    return b;
}

/* False: it is not what was looked at any more. */
static bool write_over(dibs *d, dibs__entries_blob *b, const void *data, size_t size)
{
    dibs__entries_backend *backend;
    const struct dibs__entries_cells *cells = cells_of(d, &backend);
    dibs__deadline until = dibs__after(d->env, LONG_MS * DIBS__MS);
    uint64_t number = 0;

    b->change = DIBS__ENTRIES_PUT;
    b->put = data;
    b->put_size = size;
    assert_status(cells->write(backend, b, 1, until, &number, NULL), DIBS_OK);
    free(b->data);
    return number != 0;
}

/* Between look and write it was deleted and made again: as often as that, all is as it was. */
static void what_was_made_again_is_another(void **state)
{
    dibs *a = open_here(), *b = open_here();
    dibs__entries_blob old;

    (void)state;
    assert_status(dibs_cell_swap(b, "again", 0, "x", 1, NULL, NULL, NULL), DIBS_OK);
    old = look_at(a, "c:again");
    for (int i = 0; i < 3; i++) {
        assert_status(dibs_cell_delete(b, "again", DIBS_ANY_VERSION, NULL, NULL), DIBS_OK);
        assert_status(dibs_cell_swap(b, "again", 0, "x", 1, NULL, NULL, NULL), DIBS_OK);
    }
    assert_false(write_over(a, &old, "late", 4));
}

/* The first layout: versions by the clients' clocks, which no number of the store's comes near. */
static void an_older_record_does_not_go_back(void **state)
{
    static const uint64_t then = 1750000000000000;
    dibs *d = open_here();
    char record[2 + 5 * 8 + DIBS__STAMP_SIZE + 3] = {1, 0};
    dibs__entries_blob b = look_at(d, "c:older");
    dibs_value v;

    (void)state;
    for (int i = 0; i < 8; i++) {
        record[2 + i] = (char)(then >> (56 - 8 * i));
        record[2 + 24 + i] = (char)((uint64_t)INT64_MAX >> (56 - 8 * i));
    }
    memcpy(record + sizeof record - 3, "old", 3);
    while (!write_over(d, &b, record, sizeof record)) /* the folder is made first */
        b = look_at(d, "c:older");
    assert_int_equal(version_of(d, "older"), then);
    assert_status(dibs_cell_swap(d, "older", then, "new", 3, NULL, &v, NULL), DIBS_OK);
    assert_true(v.version > then);
    assert_status(dibs_cell_delete(d, "older", v.version, NULL, NULL), DIBS_OK);
    while (d->class->cell_reap(d->engine, 1000, dibs__after(d->env, LONG_MS * DIBS__MS)))
        ;
    assert_status(dibs_cell_read(d, "older", &v, NULL), DIBS_NOT_FOUND);
    assert_status(dibs_cell_swap(d, "older", 0, "newest", 6, NULL, &v, NULL), DIBS_OK);
    assert_true(v.version > then + 1);
}

/* ---- What has ended -------------------------------------------------------------------------- */

#define ENDED   320
#define STRETCH ((uint64_t)DIBS__ENTRIES_BATCH)

/* Long names: a listing is much larger than what the cells hold. */
static const char *ended(int i, char out[400])
{
    snprintf(out, 400, "c:ended-%d-%0300d", i, 0);
    return out;
}

static void make_ended(dibs *d)
{
    char name[400];

    for (int i = 0; i < ENDED; i++) {
        ended(i, name);
        assert_status(dibs_cell_swap(d, name + 2, 0, "x", 1, &(dibs_cell_options){.keep_ms = 60000},
                                     NULL, NULL),
                      DIBS_OK);
    }
}

/* The store's number of a write that is made now. */
static uint64_t write_mark(dibs *d)
{
    dibs_value v = {0}, old = {0};
    uint64_t version;

    if (dibs_cell_swap(d, "mark", 0, "x", 1, NULL, &old, NULL) == DIBS_OK)
        return old.version;
    assert_status(dibs_cell_swap(d, "mark", old.version, "x", 1, NULL, &v, NULL), DIBS_OK);
    version = v.version;
    dibs_value_free(&old);
    dibs_value_free(&v);
    return version;
}

static size_t count_ended(dibs *d)
{
    char name[400];
    size_t left = 0;

    for (int i = 0; i < ENDED; i++) {
        dibs__entries_blob b = look_at(d, ended(i, name));
        left += b.version >= 0;
        free(b.data);
    }
    return left;
}

/* A process at full speed must not write more than it can reap in a small share of its time. So a stretch is one look
 * and one write, and a folder is listed once, however long it is. */
static void what_has_ended_goes_in_few_exchanges(void **state)
{
    proxy *p = proxy_here();
    dibs *a = open_here(), *ahead = open_through(p);
    char first[400];
    proxy_counts counts;
    uint64_t before;

    (void)state;
    ahead->env = ahead->engine->env = &ahead_env;
    make_ended(a);
    ended(0, first);
    assert_status(dibs_cell_delete(a, first + 2, DIBS_ANY_VERSION, NULL, NULL),
                  DIBS_OK); /* makes the guards */
    assert_int_equal(count_ended(a), ENDED - 1);
    before = write_mark(a);
    proxy_reset_counts(p);
    assert_true(ahead->class->cell_reap(ahead->engine, 2 * ENDED,
                                        dibs__after(ahead->env, LONG_MS * DIBS__MS)));
    proxy_read(p, &counts);
    assert_in_range(write_mark(a) - before - 1, 1, ENDED / STRETCH + 4);
    assert_in_range(counts.bytes[PROXY_DOWN], 1, 1000 * ENDED);
    assert_int_equal(count_ended(a), 0);
}

/* One of a stretch is deleted and made again between the look and the drop: nothing is dropped then, and all but that one
 * by the next round. */
static void what_comes_back_to_life_is_not_reaped(void **state)
{
    dibs *a = open_here(), *ahead = open_off(true);
    dibs__entries_backend *backend;
    const struct dibs__entries_cells *cells = cells_of(ahead, &backend);
    dibs__deadline until;
    dibs__entries_blob *blobs = NULL, front = {0};
    char last[DIBS_NAME_MAX + 1];
    uint64_t number = 1;
    size_t count = 0;

    (void)state;
    make_ended(a);
    until = dibs__after(a->env, LONG_MS * DIBS__MS);
    dibs__entries_cell_name(&front, "c:ended-");
    assert_status(cells->walk(backend, "%c", front.key, STRETCH, until, &blobs, &count, NULL),
                  DIBS_OK);
    assert_int_equal(count, STRETCH);
    for (size_t i = 0; i < count; i++)
        blobs[i].change = DIBS__ENTRIES_DROP;
    assert_true(dibs__entries_unescape(blobs[count - 1].key, last));
    assert_status(dibs_cell_delete(a, last + 2, DIBS_ANY_VERSION, NULL, NULL), DIBS_OK);
    assert_status(dibs_cell_swap(a, last + 2, 0, "y", 1, NULL, NULL, NULL), DIBS_OK);
    assert_status(cells->write(backend, blobs, count, until, &number, NULL), DIBS_OK);
    assert_int_equal(number, 0);
    dibs__entries_blobs_free(blobs, count);
    assert_int_equal(count_ended(a), ENDED);
    until = dibs__after(a->env, LONG_MS * DIBS__MS);
    while (ahead->class->cell_reap(ahead->engine, 2 * ENDED, until))
        ;
    assert_int_equal(count_ended(a), 1);
    assert_int_equal(version_of(a, last + 2) > 0, 1);
}

static const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_teardown(name, close_all)
    CASE(a_waiters_connection_may_be_cut_anywhere),
    CASE(a_wait_outlives_the_session),
    CASE(a_wait_on_a_silent_server_ends_in_time),
    CASE(no_clock_makes_a_runner_dead),
    CASE(the_dead_are_known_by_any_clock),
    CASE(a_broken_holder_hears_of_it_by_any_clock),
    CASE(a_base_that_may_not_be_read_is_not_taken_for_0),
    CASE(versions_grow_by_any_clocks),
    CASE(fences_of_runs_grow_by_any_clocks),
    CASE(what_was_made_again_is_another),
    CASE(an_older_record_does_not_go_back),
    CASE(what_has_ended_goes_in_few_exchanges),
    CASE(what_comes_back_to_life_is_not_reaped),
};

int main(int argc, char *argv[])
{
    int failed;

    describe_server(argc > 1 && strcmp(argv[1], "etcd") == 0 ? ENSEMBLE_ETCD : ENSEMBLE_ZOOKEEPER,
                    NULL);
    make_clocks();
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    failed = cmocka_run_group_tests_name(argc > 1 ? argv[1] : "zookeeper", tests, NULL, NULL);
    ensemble_stop(&the_server);
    return failed ? 1 : 0;
}
