/* The SQL engines' way of running the state machine against a plain array: the same long random
 * sequences of commands, in simulated time, to both. Every reply, every wake-up and all rows after
 * each command must be what the array has.
 *
 * It is PostgreSQL that is asked, because its clock can be replaced from outside: a function of
 * the same name, in a schema that is searched first, answers from a table. So that the fast
 * statements, the prefetched rows, their bounds and the wider looks are all seen. */
#define _GNU_SOURCE
#include "support/test.h"

#include "core/report.h"
#include "engines/engine.h"
#include "support/database.h"
#include "support/env.h"
#include "support/machine.h"
#include "support/sink.h"

#include <inttypes.h>
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWNERS   10
#define STEPS    1500 /* commands to one lock */
#define LOCKS    4
#define TOGETHER 4 /* keep-alives in one call, at most */

typedef struct world {
    database db;
    PGconn *control;
    const dibs__engine_class *class;
    dibs__engine *engine;
    dibs__sink sink;
    tiny lock;
    char name[32];
    int64_t now;
    uint64_t seed;
    uint32_t capacity;
    int attempt[OWNERS];
    uint64_t granted[64];
    size_t granted_count;
} world;

static world w;

static uint64_t chance(uint64_t below)
{
    return sim_random(&w.seed) % below;
}

/* ---- The server ------------------------------------------------------------------------------ */

static PGresult *ask(const char *sql)
{
    PGresult *res = PQexec(w.control, sql);

    if (PQresultStatus(res) != PGRES_TUPLES_OK && PQresultStatus(res) != PGRES_COMMAND_OK)
        fail_msg("%s: %s", sql, PQerrorMessage(w.control));
    return res;
}

static void order(const char *sql)
{
    PQclear(ask(sql));
}

static void set_clock(int64_t now)
{
    char sql[80];

    w.now = now;
    snprintf(sql, sizeof sql, "UPDATE fake.clock SET us = %" PRId64, now);
    order(sql);
}

static void on_granted(dibs__sink *sink, const char *attempt, uint64_t fence, uint64_t floor)
{
    (void)sink, (void)attempt, (void)floor;
    if (w.granted_count < 64)
        w.granted[w.granted_count++] = fence;
}

static void on_look(dibs__sink *sink, const char *attempt)
{
    (void)sink, (void)attempt;
}

static void on_log(dibs__sink *sink, dibs_log_level level, const char *format, ...)
{
    (void)sink, (void)level, (void)format;
}

static int setup(void **state)
{
    static const char *const quick[] = {"-cfsync=off", NULL};
    char url[256];
    dibs__url parsed;
    dibs_error err = {0};
    dibs__open_request request = {.url = &parsed,
                                  .env = &dibs__env_system,
                                  .sink = &w.sink,
                                  .handle_id = "me",
                                  .request_span = 20 * DIBS__SECOND};

    (void)state;
    if (!database_available(DATABASE_POSTGRESQL))
        return 0;
    if (database_start(&w.db, DATABASE_POSTGRESQL, quick) < 0)
        return -1;
    snprintf(url, sizeof url, "host=127.0.0.1 port=%d user=postgres", w.db.port);
    w.control = PQconnectdb(url);
    order("CREATE SCHEMA fake");
    order("CREATE TABLE fake.clock AS SELECT 0::bigint AS us");
    order("CREATE FUNCTION fake.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
          "$$ SELECT 'epoch'::timestamptz + us * interval '1 microsecond' FROM fake.clock $$");
    order("SET search_path = fake");
    w.sink = (dibs__sink){.granted = on_granted, .check = on_look, .log = on_log, QUIET_SINK};
    w.class = dibs__engine_find("postgresql");
    snprintf(url, sizeof url,
             "postgresql://postgres@127.0.0.1:%d/postgres"
             "?options=-csearch_path%%3Dfake%%2Cpg_catalog",
             w.db.port);
    assert_int_equal(dibs__url_parse(&parsed, url, &err), DIBS_OK);
    request.until = dibs__after(&dibs__env_system, 10 * DIBS__SECOND);
    if (w.class->open(&request, &w.engine, &err) != DIBS_OK)
        fail_msg("%s", err.message);
    dibs__url_fini(&parsed);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (w.engine)
        w.class->close(w.engine);
    PQfinish(w.control);
    database_stop(&w.db);
    return 0;
}

/* ---- State as text, the same from both ------------------------------------------------------- */

static void add_asker(FILE *f, const dibs__asker *who)
{
    fprintf(f, " %s %s %s %" PRId64 " %s %u %" PRId64 " %" PRId64 "]", who->owner, who->attempt,
            who->host, who->pid, who->wake, who->weight, who->lease, who->min_hold);
}

static char *state_of_array(tiny t)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    const dibs__record *r = &t.record;

    tiny_sort(&t);
    if (t.exists && r->fence)
        fprintf(f, "%u %u %u %u %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %s", r->capacity,
                r->used, r->holders, r->waiters, r->fence, r->place, r->broken_fence, r->broken_at,
                r->broken_by);
    for (size_t i = 0; i < t.holders; i++) {
        const dibs__holder *h = &t.holder[i];
        fprintf(f, "\n[%" PRIu64 " %" PRId64 " %" PRId64 " %d", h->fence, h->since, h->expires,
                h->released);
        add_asker(f, &h->who);
    }
    for (size_t i = 0; i < t.waiters; i++) {
        const dibs__waiter *p = &t.waiter[i];
        fprintf(f, "\n[%" PRIu64 " %" PRId64 " %" PRId64 " %" PRId64, p->place, p->since, p->window,
                p->alive_until);
        add_asker(f, &p->who);
    }
    fclose(f);
    return text;
}

#define TEXT(column) "encode(" column ", 'escape')"
#define WHO                                                                                \
    "concat_ws(' ', " TEXT("owner") ", " TEXT("attempt") ", " TEXT("host") ", pid, " TEXT( \
        "wake") ", weight, lease, min_hold) || ']'"

static char *state_of_tables(void)
{
    char sql[2000];
    PGresult *res;
    char *text;

    snprintf(
        sql, sizeof sql,
        "SELECT coalesce(string_agg(line, E'\\n' ORDER BY kind, number), '') FROM ("
        "SELECT 0 AS kind, 0 AS number, concat_ws(' ', capacity, used, holders, waiters, fence, "
        "place, broken_fence, broken_at) || ' ' || " TEXT(
            "broken_by") " AS line "
                         "FROM dibs_lock WHERE name = '%s' AND fence > 0 "
                         "UNION ALL SELECT 1, held, concat_ws(' ', '[' || held, since, expires, "
                         "released, " WHO ") "
                         "FROM dibs_lock WHERE name = '%s' AND held IS NOT NULL "
                         "UNION ALL SELECT 1, fence, concat_ws(' ', '[' || fence, since, expires, "
                         "released, " WHO ") FROM dibs_holder WHERE name = '%s' "
                         "UNION ALL SELECT 2, place, concat_ws(' ', '[' || place, since, span, "
                         "alive_until, " WHO ") FROM dibs_waiter WHERE name = '%s') s",
        w.name, w.name, w.name, w.name);
    res = ask(sql);
    text = strdup(PQgetvalue(res, 0, 0));
    PQclear(res);
    return text;
}

/* ---- Commands by chance ---------------------------------------------------------------------- */

static void choose_attempt(int owner, bool fresh, char *out, size_t size)
{
    int n;

    if (fresh)
        w.attempt[owner]++;
    n = w.attempt[owner];
    if (!fresh && n > 0 && chance(6) == 0)
        n--; /* one that is dead, or was never used */
    snprintf(out, size, "me-%d", owner * 100000 + n);
}

/* Every second one is of this handle alone, as most owners are. */
static void name_owner(size_t owner, char *out, size_t size)
{
    snprintf(out, size, owner % 2 ? "me/%zu" : "owner%zu", owner);
}

static void choose_asker(command *c)
{
    dibs__asker *who = &c->who;
    int owner = (int)chance(OWNERS);

    name_owner((size_t)owner, who->owner, sizeof who->owner);
    choose_attempt(owner, c->kind == COMMAND_ACQUIRE && chance(3) > 0, who->attempt,
                   sizeof who->attempt);
    snprintf(who->host, sizeof who->host, "host%d", owner);
    who->pid = 1000 + owner;
    strcpy(who->wake, "me");
    who->lease = (int64_t)(1 + chance(40)) * 50000;
    who->min_hold = chance(6) == 0 ? (int64_t)chance(10) * 50000 : 0;
    if (c->capacity == DIBS__PLAIN)
        who->weight = chance(3) == 0 ? 1 : DIBS__PLAIN;
    else
        who->weight = 1 + (uint32_t)chance(c->capacity / 3);
}

static uint64_t true_fence(const char *owner)
{
    for (size_t i = 0; i < w.lock.holders; i++)
        if (strcmp(w.lock.holder[i].who.owner, owner) == 0 && !w.lock.holder[i].released)
            return w.lock.holder[i].fence;
    return 0;
}

static uint64_t choose_fence(const char *owner)
{
    for (size_t i = 0; i < w.lock.holders && chance(8) > 0; i++)
        if (strcmp(w.lock.holder[i].who.owner, owner) == 0)
            return w.lock.holder[i].fence;
    return chance(2) ? 0 : w.lock.record.fence - chance(3);
}

static void choose(command *c)
{
    static const command_kind often[] = {
        COMMAND_ACQUIRE, COMMAND_ACQUIRE, COMMAND_ACQUIRE, COMMAND_KEEP,   COMMAND_KEEP,
        COMMAND_KEEP,    COMMAND_RELEASE, COMMAND_RELEASE, COMMAND_CANCEL, COMMAND_SETTLE};

    memset(c, 0, sizeof *c);
    c->kind = chance(40) == 0 ? COMMAND_BREAK : often[chance(sizeof often / sizeof often[0])];
    c->capacity = chance(60) == 0 ? 3 : w.capacity;
    choose_asker(c);
    c->window = chance(4) == 0 ? 0 : (int64_t)(1 + chance(12)) * 50000;
    c->fence = choose_fence(c->who.owner);
    c->at_once = chance(2) == 0;
    c->now = (dibs__time){w.now, w.now};
}

/* ---- One step on both ------------------------------------------------------------------------ */

static dibs__claim claim_of(const command *c)
{
    return (dibs__claim){.name = w.name,
                         .owner = c->who.owner,
                         .attempt = c->who.attempt,
                         .fence = c->fence,
                         .lease = c->who.lease};
}

static dibs_status run_on_engine(const command *c, dibs__reply *out, dibs_error *err)
{
    dibs__deadline until = dibs__after(&dibs__env_system, 10 * DIBS__SECOND);
    dibs__claim claim = claim_of(c), *claims[] = {&claim};
    dibs__enter_request enter = {
        .name = w.name, .who = c->who, .capacity = c->capacity, .window = c->window};
    dibs__report_builder *report;
    dibs_status status;

    memset(out, 0, sizeof *out);
    switch (c->kind) {
    case COMMAND_ACQUIRE:
        return w.class->enter(w.engine, &enter, until, out, err);
    case COMMAND_KEEP:
        w.class->keep(w.engine, claims, 1, until);
        *out = claim.reply;
        return claim.status;
    case COMMAND_RELEASE:
        return w.class->release(w.engine, &claim, until, out, err);
    case COMMAND_CANCEL:
        out->verdict = DIBS__RELEASED;
        return w.class->cancel(w.engine, &claim, until, err);
    case COMMAND_BREAK:
        return w.class->break_lock(w.engine, w.name, c->who.owner, c->at_once, until, out, err);
    default:
        report = dibs__report_new();
        status = w.class->inspect(w.engine, w.name, until, report, err);
        out->verdict = dibs__report_is_empty(report) ? DIBS__LOST : DIBS__RELEASED;
        dibs__report_drop(report);
        return status;
    }
}

static void compare_replies(const command *c, const dibs__reply *want, const dibs__reply *got)
{
    if (want->verdict != got->verdict || want->fence != got->fence || want->floor != got->floor ||
        want->remaining != got->remaining || want->capacity != got->capacity)
        fail_msg("seed %" PRIu64 ", command %d of %s (%s): verdict %d not %d, fence %" PRIu64
                 " not %" PRIu64 ", floor %" PRIu64 " not %" PRIu64 ", remaining %" PRId64
                 " not %" PRId64,
                 w.seed, c->kind, c->who.owner, c->who.attempt, got->verdict, want->verdict,
                 got->fence, want->fence, got->floor, want->floor, got->remaining, want->remaining);
}

/* The fast statements leave a dead head where it is until somebody comes the general way. */
static void settle_both(void)
{
    command c = {.kind = COMMAND_SETTLE, .now = {w.now, w.now}};
    dibs__reply reply;
    dibs_error err;

    tiny_run(&w.lock, &c, &reply);
    assert_int_equal(run_on_engine(&c, &reply, &err), DIBS_OK);
}

static void compare_states(const command *c)
{
    char *want = state_of_array(w.lock), *got = state_of_tables();

    if (strcmp(want, got) != 0) {
        free(want);
        free(got);
        settle_both();
        want = state_of_array(w.lock);
        got = state_of_tables();
    }
    if (strcmp(want, got) != 0)
        fail_msg("seed %" PRIu64 ", after command %d of %s:\nwant %s\ngot  %s", w.seed, c->kind,
                 c->who.owner, want, got);
    free(want);
    free(got);
}

static void compare_wakes(const uint64_t *want, size_t count)
{
    assert_int_equal(w.granted_count, count);
    for (size_t i = 0; i < count; i++)
        assert_true(w.granted[i] == want[i]);
}

static void step(void)
{
    dibs__reply want = {0}, got = {0};
    dibs_error err = {0};
    command c;

    choose(&c);
    w.granted_count = 0;
    assert_int_equal(tiny_run(&w.lock, &c, &want), 0);
    assert_false(w.lock.overflow);
    if (c.kind == COMMAND_CANCEL)
        want = (dibs__reply){.verdict = DIBS__RELEASED};
    if (run_on_engine(&c, &got, &err) != DIBS_OK)
        fail_msg("command %d: %s", c.kind, err.message);
    compare_replies(&c, &want, &got);
    compare_wakes(w.lock.woken, w.lock.woken_count);
    compare_states(&c);
}

static int holders_first(const void *a, const void *b)
{
    const command *x = a, *y = b;

    return (x->fence == 0) - (y->fence == 0);
}

/* keep-alives of several owners in one call. Holders come first there, whatever the order. */
static void step_together(void)
{
    size_t count = 2 + chance(TOGETHER - 1);
    command c[TOGETHER];
    dibs__claim claim[TOGETHER], *claims[TOGETHER];
    dibs__reply want[TOGETHER];
    uint64_t woken[TOGETHER * TINY_MAX];
    size_t woken_count = 0;

    for (size_t i = 0; i < count; i++) {
        choose(&c[i]);
        c[i].kind = COMMAND_KEEP;
        name_owner(i * 2, c[i].who.owner, sizeof c[i].who.owner);
        choose_attempt((int)i * 2, false, c[i].who.attempt, sizeof c[i].who.attempt);
        c[i].fence = true_fence(c[i].who.owner);
    }
    qsort(c, count, sizeof c[0], holders_first);
    for (size_t i = 0; i < count; i++) {
        claim[i] = claim_of(&c[i]);
        claims[i] = &claim[i];
    }
    w.granted_count = 0;
    w.class->keep(w.engine, claims, count, dibs__after(&dibs__env_system, 10 * DIBS__SECOND));
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(tiny_run(&w.lock, &c[i], &want[i]), 0);
        memcpy(woken + woken_count, w.lock.woken, w.lock.woken_count * sizeof woken[0]);
        woken_count += w.lock.woken_count;
    }
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(claim[i].status, DIBS_OK);
        compare_replies(&c[i], &want[i], &claim[i].reply);
    }
    compare_wakes(woken, woken_count);
    compare_states(&c[0]);
}

static void run_one_lock(uint64_t seed)
{
    static const uint32_t capacities[] = {DIBS__PLAIN, 9, DIBS__PLAIN, 4};

    memset(&w.lock, 0, sizeof w.lock);
    memset(w.attempt, 0, sizeof w.attempt);
    w.seed = seed;
    w.capacity = capacities[seed % 4];
    snprintf(w.name, sizeof w.name, "lock%" PRIu64, seed);
    set_clock(1700000000000000);
    for (int i = 0; i < STEPS; i++) {
        if (chance(3) > 0)
            set_clock(w.now + (int64_t)chance(300000));
        else if (chance(50) == 0)
            set_clock(w.now + 5000000); /* all leases end at once */
        if (chance(10) == 0)
            step_together();
        else
            step();
    }
}

static void same_as_the_array(void **state)
{
    (void)state;
    if (!w.engine)
        skip();
    for (uint64_t seed = 0; seed < LOCKS; seed++)
        run_one_lock(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_as_the_array)};

    return cmocka_run_group_tests_name("postgresql-machine", tests, setup, teardown);
}
