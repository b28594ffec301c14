/* An engine's cells against the C machine: the same random commands to both, and every answer must be
 * the same. The engine has its own clock, so versions are compared by whether they grow; whatever is
 * to end ends at once. This and the waits go to the engine's table itself, not through dibs.h. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include "core/handle.h"
#include "support/cells.h"
#include "support/env.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COMMANDS 1200
#define LIFE     150
#define PAIRS    64
#define WHOLE    (the.can.value_max + DIBS__VALUE_EXTRA)

typedef struct both {
    dibs *d;
    tiny_cell cell;
    cell_author author;
    int64_t now;
    char key[64];
    struct {
        uint64_t ours, theirs;
    } pair[PAIRS]; /* versions: the machine's and the engine's */
    size_t pairs;
    uint64_t highest; /* of the engine's */
} both;

static dibs__deadline soon(dibs *d)
{
    return dibs__after(d->env, LONG_MS * DIBS__MS);
}

static void ask(dibs *d, const char *key, const dibs__cell_command *c, bool notify,
                dibs__cell_reply *out)
{
    dibs_error err = {0};

    memset(out, 0, sizeof *out);
    if (d->class->cell(d->engine, key, c, notify, soon(d), out, &err) != DIBS_OK)
        fail_msg("%s: %s", key, err.message);
}

static void need_cells(void)
{
    if (!the.can.cells)
        skip();
}

/* ---- The same as the machine ----------------------------------------------------------------- */

static uint64_t theirs(const both *b, uint64_t version)
{
    if (version == 0 || version == DIBS__CELL_ANY)
        return version;
    for (size_t i = b->pairs; i-- > 0 && i + PAIRS > b->pairs;)
        if (b->pair[i % PAIRS].ours == version)
            return b->pair[i % PAIRS].theirs;
    return 1; /* that was long ago */
}

static void compare(const both *b, const char *what, dibs__cell_op op, const dibs__cell_answer *a,
                    const dibs__cell_reply *r)
{
    bool shown = dibs__cell_shows_data(op, a->verdict);
    bool same = a->verdict == r->verdict && a->cell.floor == r->floor &&
                a->cell.number == r->number && theirs(b, a->cell.version) == r->version &&
                shown == (r->data != NULL);

    if (same && shown)
        same = a->cell.size == r->size && memcmp(a->cell.data, r->data, r->size) == 0;
    if (same && a->cell.version)
        same = (a->cell.expires == INT64_MAX) == (r->left == INT64_MAX);
    if (!same)
        fail_msg("%s, seed as below: %s\n#   machine: %d version %" PRIu64 " floor %" PRIu64
                 " number %" PRId64 " size %zu\n#   engine:  %d version %" PRIu64 " floor %" PRIu64
                 " number %" PRId64 " size %zu",
                 b->key, what, a->verdict, theirs(b, a->cell.version), a->cell.floor,
                 a->cell.number, a->cell.size, r->verdict, r->version, r->floor, r->number,
                 r->size);
}

/* A version that the machine has just given out: the engine's must be the highest so far. */
static void note_version(both *b, uint64_t ours, uint64_t engine)
{
    if (!ours || theirs(b, ours) != 1)
        return;
    assert_true(engine > b->highest);
    b->highest = engine;
    b->pair[b->pairs % PAIRS].ours = ours;
    b->pair[b->pairs++ % PAIRS].theirs = engine;
}

/* An engine in this process may answer within a microsecond, and what is to end must have ended. */
static void let_a_moment_pass(const dibs *d)
{
    for (int64_t began = dibs__now(d->env); dibs__now(d->env) < began + 3;)
        ;
}

static void one_command(both *b)
{
    dibs__cell_answer answer;
    dibs__cell_reply reply;
    cell_order order;
    char what[400];
    bool again;

    b->now += 10;
    let_a_moment_pass(b->d);
    cell_author_next(&b->author, &b->cell, &order, &again);
    cell_describe(&order.command, what, sizeof what);
    tiny_cell_run(&b->cell, (dibs__time){b->now, b->now}, &order.command, &answer);
    order.command.version = theirs(b, order.command.version);
    ask(b->d, b->key, &order.command, false, &reply);
    if (answer.verdict == reply.verdict)
        note_version(b, answer.cell.version, reply.version);
    compare(b, what, order.command.op, &answer, &reply);
    free(reply.data);
}

static void the_same_as_the_machine(void **state)
{
    static both b;
    const char *given = getenv("DIBS_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);

    (void)state;
    need_cells();
    memset(&b, 0, sizeof b);
    b.d = open_handle();
    b.author = (cell_author){.seed = seed, .moment = 1};
    printf("# seed %" PRIu64 "\n", seed);
    for (int i = 0; i < COMMANDS; i++) {
        if (i % LIFE == 0) {
            memset(&b.cell, 0, sizeof b.cell);
            b.pairs = 0;
            b.highest = 0;
            b.now = (int64_t)time(NULL) * 1000000;
            b.author.counts = i / LIFE % 2;
            snprintf(b.key, sizeof b.key, "%s", fresh("machine"));
        }
        if (i % 40 == 0 && b.d->class->cell_reap)
            b.d->class->cell_reap(b.d->engine, 100, soon(b.d));
        one_command(&b);
    }
}

/* ---- Values ---------------------------------------------------------------------------------- */

static void the_largest_value_comes_back(void **state)
{
    unsigned char *value = malloc(WHOLE);
    const char *key = fresh("large");
    dibs__cell_command put = {.op = DIBS__CELL_SWAP, .data = value, .size = WHOLE, .stamp = "1-1"};
    dibs__cell_command look = {.op = DIBS__CELL_READ};
    uint64_t seed = 5;
    dibs__cell_reply r;
    dibs *d;

    (void)state;
    if (!the.can.cells)
        free(value);
    need_cells();
    d = open_handle();
    for (size_t i = 0; i < WHOLE; i++)
        value[i] = (unsigned char)sim_random(&seed);
    ask(d, key, &put, false, &r);
    assert_int_equal(r.verdict, DIBS__CELL_DONE);
    assert_null(r.data);
    ask(d, key, &put, false, &r); /* as after a lost reply */
    assert_int_equal(r.verdict, DIBS__CELL_DONE);
    ask(d, key, &look, false, &r);
    assert_int_equal(r.verdict, DIBS__CELL_DONE);
    assert_int_equal(r.size, WHOLE);
    assert_memory_equal(r.data, value, WHOLE);
    free(r.data);
    put.stamp = "1-2";
    ask(d, key, &put, false, &r); /* it is there already: the answer brings it */
    assert_int_equal(r.verdict, DIBS__CELL_CONFLICT);
    assert_int_equal(r.size, WHOLE);
    assert_memory_equal(r.data, value, WHOLE);
    free(r.data);
    free(value);
}

/* ---- Waits ----------------------------------------------------------------------------------- */

typedef struct waiter {
    dibs *d;
    const char *key;
    uint64_t version;
    atomic_bool over;
    dibs_status status;
} waiter;

static dibs_status wait_once(dibs *d, const char *key, uint64_t version, dibs__deadline until)
{
    dibs_status status;

    dibs__begin_call(d);
    status = dibs__cell_wait(d, key, version, until, NULL);
    dibs__end_call(d);
    return status;
}

static void *wait_for_change(void *arg)
{
    waiter *w = arg;

    /* An early return is allowed: a look decides, as in the core. */
    for (dibs__deadline until = soon(w->d); dibs__now(w->d->env) < until;) {
        dibs__cell_command look = {.op = DIBS__CELL_READ};
        dibs__cell_reply r = {0};
        w->status = wait_once(w->d, w->key, w->version, until);
        if (w->status == DIBS_OK)
            w->status = w->d->class->cell(w->d->engine, w->key, &look, false, until, &r, NULL);
        free(r.data);
        if (w->status != DIBS_OK || r.version != w->version)
            break;
    }
    atomic_store(&w->over, true);
    return NULL;
}

static bool is_over(void *ctx)
{
    return atomic_load(&((waiter *)ctx)->over);
}

/* Two waiters of two handles, and one change for both. `change` has everything but the version. */
static void wake_both(dibs__cell_command *change)
{
    dibs__cell_command put = {.op = DIBS__CELL_SWAP, .data = "a", .size = 1, .stamp = "2-1"};
    waiter w[2] = {{.d = open_handle()}, {.d = open_handle()}};
    dibs *d = open_handle();
    dibs__cell_reply r;
    pthread_t thread[2];

    w[0].key = w[1].key = fresh("wait");
    ask(d, w[0].key, &put, true, &r);
    change->version = w[0].version = w[1].version = r.version;
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, wait_for_change, &w[i]), 0);
    sleep_ms(200); /* most likely both wait by now; if not, they see the change at once */
    ask(d, w[0].key, change, true, &r);
    for (int i = 0; i < 2; i++) {
        assert_true(wait_until(is_over, &w[i], SOON_MS));
        pthread_join(thread[i], NULL);
        assert_status(w[i].status, DIBS_OK);
    }
}

static bool can_wait(void)
{
    dibs *d = open_handle();
    bool can = d->class->watch != NULL;

    close_handle(d);
    return can;
}

static void a_change_ends_the_wait(void **state)
{
    (void)state;
    need_cells();
    if (!can_wait())
        skip();
    wake_both(&(dibs__cell_command){
        .op = DIBS__CELL_SWAP, .data = "b", .size = 1, .stamp = "2-2", .keep = DIBS__SECOND});
    wake_both(&(dibs__cell_command){.op = DIBS__CELL_DELETE, .stamp = "2-3"});
}

static void a_wait_without_a_change_ends_in_time(void **state)
{
    dibs__cell_command put = {.op = DIBS__CELL_SWAP, .data = "a", .size = 1, .stamp = "3-1"};
    const char *key = fresh("wait");
    dibs__cell_reply r;
    int64_t began;
    dibs *d;

    (void)state;
    need_cells();
    if (!can_wait())
        skip();
    d = open_handle();
    ask(d, key, &put, true, &r);
    began = clock_ms();
    assert_status(wait_once(d, key, r.version, dibs__after(d->env, 300 * DIBS__MS)), DIBS_OK);
    assert_true(clock_ms() - began < SOON_MS);
    /* It was another version all along: no wait at all, though nobody tells. */
    began = clock_ms();
    assert_status(wait_once(d, key, r.version - 1, soon(d)), DIBS_OK);
    assert_true(clock_ms() - began < SOON_MS);
}

/* ---- The end --------------------------------------------------------------------------------- */

/* A handle on a store of its own: what other tests made may end at any moment. Of the engines that are
 * told to reap, ZooKeeper and etcd have folders, the databases have tables by prefix. */
static dibs *open_apart(void)
{
    static const char folder[] = "/store?";
    const char *at = strstr(the.url, folder);
    char url[sizeof the.url + 32];

    if (at)
        snprintf(url, sizeof url, "%.*s/apart?%s", (int)(at - the.url), the.url,
                 at + strlen(folder));
    else
        snprintf(url, sizeof url, "%s?table_prefix=apart_", the.url);
    return open_at(url, NULL);
}

/* Until nothing is there that has ended. */
static void reap_all(dibs *d)
{
    for (int rounds = 0; d->class->cell_reap(d->engine, 1000, soon(d)); rounds++)
        assert_true(rounds < 100);
}

static void what_has_ended_is_reaped(void **state)
{
    dibs__cell_command put = {
        .op = DIBS__CELL_SWAP, .data = "a", .size = 1, .stamp = "4-1", .keep = 1};
    dibs__cell_command add = {
        .op = DIBS__CELL_ADD, .number = 1, .stamp = "4-2", .request = "r", .request_keep = 1};
    dibs__cell_reply r;
    dibs *d;

    (void)state;
    need_cells();
    if (!open_handle()->class->cell_reap)
        skip();
    d = open_apart();
    for (int i = 0; i < 25; i++) {
        ask(d, fresh("ends"), &put, false, &r);
        ask(d, fresh("counts"), &add, false, &r);
    }
    sleep_ms(1);
    assert_true(d->class->cell_reap(d->engine, 10, soon(d))); /* there is more */
    reap_all(d);
}

static void nothing_but_zeros(void *ctx, void *out, size_t size)
{
    (void)ctx;
    memset(out, 0, size);
}

/* The engine has another clock: for it, every deadline is far away. */
static int64_t an_hour_ahead(void *ctx)
{
    return dibs__env_system.boottime(ctx) + 3600 * DIBS__SECOND;
}

/* Where every handle is a command's, nobody's keeper comes to it: then a handle that is closed reaps,
 * if the dice say so. It begins at what it used: what comes before may be more than it looks at. It
 * gives itself half a second, which is too little where everything is slow: here it has an hour. */
static void handles_that_live_shortly_reap_too(void **state)
{
    dibs__cell_command put = {.op = DIBS__CELL_SWAP, .data = "a", .size = 1, .stamp = "4-3"};
    dibs__cell_reply r;
    dibs *d, *brief;
    dibs_value v;
    dibs__env env;

    (void)state;
    need_cells();
    if (!open_handle()->class->cell_reap)
        skip();
    d = open_apart();
    for (int i = 0; i < 110; i++) /* they stay */
        ask(d, fresh("c:live"), &put, false, &r);
    put.keep = 1;
    for (int i = 0; i < 5; i++)
        ask(d, fresh("c:short"), &put, false, &r);
    sleep_ms(1);
    brief = open_apart();
    env = *brief->env;
    env.random = nothing_but_zeros;
    env.boottime = an_hour_ahead;
    brief->env = &env;
    assert_status(dibs_cell_read(brief, "short", &v, NULL), DIBS_NOT_FOUND);
    close_handle(brief);
    assert_false(
        d->class->cell_reap(d->engine, 1, soon(d))); /* where one is found, it says: more */
    assert_false(d->class->cell_reap(d->engine, 1000, soon(d))); /* where it looks at so many */
}

static const struct CMUnitTest machine_tests[] = {
    CASE(the_same_as_the_machine),  CASE(the_largest_value_comes_back),
    CASE(a_change_ends_the_wait),   CASE(a_wait_without_a_change_ends_in_time),
    CASE(what_has_ended_is_reaped), CASE(handles_that_live_shortly_reap_too),
};
CASES(machine_cases, machine_tests);
