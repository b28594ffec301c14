/* The n-th allocation fails, once or for ever, for every n until the run succeeds: a status each
 * time, no crash, no hang, no leak, and the locks are free afterwards.
 *
 * SQLite alone makes thousands: beyond the first few hundred the steps grow. $DIBS_TEST_EVERY tries
 * them all. */
#define _GNU_SOURCE
#include "dibs.h"
#include "support/alloc.h"
#include "support/clock.h"
#include "support/database.h"
#include "support/ensemble.h"
#include "support/scratch.h"
#include "support/server.h"
#include "support/test.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LEASE_MS 300
#define WAIT_MS  200
#define LONG_MS  10000
#define KEPT_MAX 20
#define DENSE    250 /* so many allocations are tried one by one */
#define LOOSE    50  /* where a failure costs more time */

/* What one run did. */
typedef struct run {
    bool opened;
    int refused; /* calls that answered with an error */
    int foreign; /* with one that has nothing to do with memory or reach */
    dibs_status last;
} run;

static void note(run *r, dibs_status status)
{
    if (status == DIBS_OK)
        return;
    r->refused++;
    r->last = status;
    r->foreign += status == DIBS_INVALID || status == DIBS_CONFLICT || status == DIBS_FORKED ||
                  status == DIBS_DENIED;
}

/* ---- A day in the life of a handle ----------------------------------------------------------- */

static const dibs_lock_options brief = {.wait_ms = WAIT_MS, .lease_ms = LEASE_MS};

static void lock_twice(dibs *d, run *r)
{
    dibs_grant *g = NULL, *again = NULL;
    dibs_status status = dibs_lock(d, "alloc-a", &brief, &g, NULL);

    note(r, status);
    if (status != DIBS_OK)
        return;
    status = dibs_lock(d, "alloc-a", &brief, &again, NULL);
    note(r, status);
    if (status == DIBS_OK)
        note(r, dibs_unlock(again));
    note(r, dibs_renew(g, NULL));
    note(r, dibs_unlock(g));
}

typedef struct outcome {
    bool settled;
    run *r;
} outcome;

static void done(void *data, dibs_status status, dibs_grant *g, const dibs_error *err)
{
    outcome *o = data;

    (void)err;
    o->settled = true;
    note(o->r, status);
    if (status == DIBS_OK)
        note(o->r, dibs_unlock(g));
}

static void use_ticket(dibs *d, run *r)
{
    outcome o = {.r = r};
    int64_t end = clock_ms() + LONG_MS;
    dibs_status status = dibs_lock_start(d, "alloc-b", &brief, done, &o, NULL, NULL);

    note(r, status);
    while (status == DIBS_OK && !o.settled && clock_ms() < end) {
        struct pollfd p = {.fd = dibs_fd(d), .events = POLLIN};
        poll(&p, 1, 100);
        dibs_dispatch(d);
    }
    if (status == DIBS_OK && !o.settled) {
        fprintf(stderr, "# a ticket was never settled\n");
        r->foreign++;
    }
}

static void look_around(dibs *d, run *r)
{
    dibs_report *report = NULL;
    dibs_status status = dibs_inspect(d, "alloc-held", &report, NULL);

    note(r, status);
    dibs_report_free(report);
    report = NULL;
    note(r, dibs_list(d, NULL, true, &report, NULL));
    dibs_report_free(report);
}

static void wait_in_vain(dibs *d, run *r)
{
    dibs_grant *g = NULL;
    dibs_lock_options o = {.wait_ms = 20, .lease_ms = LEASE_MS};
    dibs_status status = dibs_lock(d, "alloc-held", &o, &g, NULL);

    if (status == DIBS_OK) {
        fprintf(stderr, "# took what another holds\n");
        r->foreign++;
    } else if (status != DIBS_BUSY) {
        note(r, status);
    }
}

static void day_of_locks(dibs *d, run *r)
{
    lock_twice(d, r);
    use_ticket(d, r);
    wait_in_vain(d, r);
    look_around(d, r);
}

/* ---- And another with cells ------------------------------------------------------------------ */

/* What a run left half done is no other's business. */
static const char *fresh(void)
{
    static char name[32];
    static int n;

    snprintf(name, sizeof name, "alloc-%d", n++);
    return name;
}

/* True: as expected. */
static bool expect(run *r, dibs_status status, dibs_status want)
{
    if (status == want)
        return true;
    r->refused++;
    r->last = status;
    r->foreign += status != DIBS_NO_MEMORY && status != DIBS_UNAVAILABLE &&
                  status != DIBS_UNKNOWN && status != DIBS_BROKEN_ENGINE;
    return false;
}

static void use_cells(dibs *d, run *r)
{
    const char *name = fresh();
    dibs_value v = {0};
    int64_t left = -1;

    if (expect(r, dibs_cell_swap(d, name, 0, "value", 5, NULL, NULL, NULL), DIBS_OK) &&
        expect(r, dibs_cell_read(d, name, &v, NULL), DIBS_OK))
        expect(r, dibs_cell_delete(d, name, v.version, NULL, NULL), DIBS_OK);
    dibs_value_free(&v);
    if (expect(r, dibs_counter_set(d, name, 2, NULL, NULL), DIBS_OK) &&
        expect(r,
               dibs_counter_take(d, name, 2, &(dibs_counter_options){.request = "r"}, &left, NULL),
               DIBS_OK))
        expect(r, dibs_counter_take(d, name, 1, NULL, &left, NULL), DIBS_TOO_FEW);
}

/* Ended, begun again, and abandoned. */
static void use_once(dibs *d, run *r)
{
    const char *key = fresh();
    dibs_once_options options = {.wait_ms = DIBS_NO_WAIT, .lease_ms = LEASE_MS};
    dibs_once *o = NULL, *again = NULL;

    if (expect(r, dibs_once_begin(d, key, &options, &o, NULL), DIBS_OK) &&
        expect(r, dibs_once_step(o, "step", "data", 4, NULL), DIBS_OK) &&
        expect(r, dibs_once_finish(o, "result", 6, 0, NULL), DIBS_OK))
        expect(r, dibs_once_begin(d, key, &options, &again, NULL), DIBS_ALREADY);
    dibs_once_free(o);
    dibs_once_free(again);
    o = NULL;
    expect(r, dibs_once_begin(d, fresh(), &options, &o, NULL), DIBS_OK);
    dibs_once_free(o);
}

static void use_tokens(dibs *d, run *r)
{
    char token[DIBS_TOKEN_SIZE], heir[DIBS_TOKEN_SIZE];

    if (expect(r, dibs_token_issue(d, NULL, token, NULL), DIBS_OK) &&
        expect(r, dibs_token_redeem(d, NULL, token, NULL), DIBS_OK) &&
        expect(r, dibs_token_reissue(d, NULL, token, heir, NULL), DIBS_OK))
        expect(r, dibs_token_redeem(d, NULL, token, NULL), DIBS_REFUSED);
}

static void day_of_cells(dibs *d, run *r)
{
    use_cells(d, r);
    use_once(d, r);
    use_tokens(d, r);
}

/* ---- Either ---------------------------------------------------------------------------------- */

typedef void (*day_fn)(dibs *d, run *r);

static run live_a_day(const char *url, day_fn day)
{
    run r = {0};
    dibs *d = NULL;
    dibs_options options = {.connect_ms = 2000, .request_ms = 500};
    dibs_status status = dibs_open(url, &options, &d, NULL);

    note(&r, status);
    if (status != DIBS_OK)
        return r;
    r.opened = true;
    day(d, &r);
    dibs_close(d);
    return r;
}

/* ---- The sweep ------------------------------------------------------------------------------- */

/* What a run left behind ends with its lease. */
static void assert_free(dibs *other, const char *name)
{
    dibs_grant *g = NULL;
    dibs_error err = {0};

    if (dibs_lock(other, name, &(dibs_lock_options){.wait_ms = LONG_MS}, &g, &err) != DIBS_OK)
        fail_msg("%s was not free afterwards: %s", name, err.message);
    dibs_unlock(g);
}

static const char *how(bool for_ever)
{
    return for_ever ? "and on" : "alone";
}

/* How many allocations a run with that failure leaves behind. */
static long leaked(const char *url, day_fn day, long n, bool for_ever, run *r, bool *struck)
{
    long before = alloc_live();

    alloc_fail(n, for_ever);
    *r = live_a_day(url, day);
    *struck = alloc_heal();
    return alloc_balances ? alloc_live() - before : 0;
}

/* One failure at `n`; false when the run never came that far. A library may keep something of an
 * error (OpenSSL: a ring of the last 16 of a thread): a real leak goes on for ever. */
static bool fail_nth(const char *url, day_fn day, dibs *other, long n, bool for_ever)
{
    int64_t start = clock_ms();
    run r;
    bool struck;
    int again = 0;

    while (leaked(url, day, n, for_ever, &r, &struck) != 0)
        if (++again > KEPT_MAX)
            fail_msg("allocation %ld %s: something leaks", n, how(for_ever));
    if (r.foreign)
        fail_msg("allocation %ld %s: told %s", n, how(for_ever), dibs_status_name(r.last));
    if (!struck && r.refused)
        fail_msg("no allocation failed, yet %s", dibs_status_name(r.last));
    if (clock_ms() - start > LONG_MS)
        fail_msg("allocation %ld %s: took %lld ms", n, how(for_ever),
                 (long long)(clock_ms() - start));
    if (r.refused) {
        assert_free(other, "alloc-a");
        assert_free(other, "alloc-b");
    }
    return struck;
}

/* `beside`: where somebody looks on from. */
static void sweep_beside(const char *beside, const char *url, day_fn day, long dense)
{
    dibs *other = NULL;
    dibs_grant *held = NULL;
    bool every = getenv("DIBS_TEST_EVERY") != NULL;
    long last[2] = {0}, runs[2] = {0};

    assert_int_equal(dibs_open(beside, NULL, &other, NULL), DIBS_OK);
    assert_int_equal(dibs_lock(other, "alloc-held", NULL, &held, NULL), DIBS_OK);
    assert_free(other, "alloc-a");
    assert_free(other, "alloc-b");
    for (int i = 0; i < 2; i++) /* what libraries keep for later is made now */
        assert_int_equal(live_a_day(url, day).refused, 0);
    for (int for_ever = 0; for_ever < 2; for_ever++)
        for (long n = 1; fail_nth(url, day, other, n, for_ever); n += every ? 1 : 1 + n / dense) {
            last[for_ever] = n;
            runs[for_ever]++;
        }
    print_message("# %s: of some %ld allocations, %ld failed alone and %ld with all after it\n",
                  dibs_engine_name(other), last[0], runs[0], runs[1]);
    assert_true(runs[0] > 5);
    dibs_unlock(held);
    dibs_close(other);
}

static void sweep(const char *url, day_fn day, long dense)
{
    sweep_beside(url, url, day, dense);
}

static void memory_engine(void **state)
{
    (void)state;
    sweep("memory:alloc", day_of_locks, DENSE);
    /* Alone in its store: what it keeps goes with it. */
    sweep_beside("memory:alloc", "memory:", day_of_cells, DENSE);
}

static bool engine_missing(const char *scheme)
{
    dibs_engine_info info;

    for (size_t i = 0; dibs_engine_at(i, &info); i++)
        if (strcmp(info.scheme, scheme) == 0)
            return info.missing != NULL;
    return true;
}

static void sqlite_engine(void **state)
{
    scratch s;
    char file[300], url[320];

    (void)state;
    if (engine_missing("sqlite"))
        skip();
    assert_int_equal(scratch_make(&s), 0);
    snprintf(url, sizeof url, "sqlite://%s", scratch_file(&s, "alloc.db", file, sizeof file));
    sweep(url, day_of_locks, DENSE);
    sweep(url, day_of_cells, DENSE);
    scratch_remove(&s);
}

static void redis_engine(void **state)
{
    server s;

    (void)state;
    if (engine_missing("redis"))
        skip();
    server_need(&s, NULL);
    sweep(s.url, day_of_locks, DENSE);
    sweep(s.url, day_of_cells, DENSE);
    server_stop(&s);
}

/* Three nodes, which somebody vouches for at every opening. */
static void redlock_engine(void **state)
{
    server s[3];
    char url[256];

    (void)state;
    if (engine_missing("redlock"))
        skip();
    for (int i = 0; i < 3; i++)
        server_need(&s[i], NULL);
    snprintf(url, sizeof url, "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d?guard=off",
             s[0].port, s[1].port, s[2].port);
    sweep(url, day_of_locks, LOOSE);
    for (int i = 0; i < 3; i++)
        server_stop(&s[i]);
}

/* libmariadb and libzookeeper do not look at what malloc gives them: a build with sanitizers can tell
 * theirs from ours. */
static void need_our_own(const char *scheme)
{
    if (engine_missing(scheme) || alloc_balances)
        skip();
}

/* A new MariaDB server has no database of a user's: it makes one when it starts. */
static void write_init(scratch *s, char *path, size_t size)
{
    FILE *f = fopen(scratch_file(s, "init.sql", path, size), "w");

    assert_non_null(f);
    assert_true(fputs("CREATE DATABASE IF NOT EXISTS alloc;\n", f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(s->path, 0755), 0);
    assert_int_equal(chmod(path, 0644), 0);
}

static void mysql_engine(void **state)
{
    char url[128], option[512] = "--init-file=";
    size_t used = strlen(option);
    const char *const extra[] = {option, NULL};
    database d;
    scratch s;

    (void)state;
    need_our_own("mysql");
    assert_int_equal(scratch_make(&s), 0);
    write_init(&s, option + used, sizeof option - used);
    database_need(&d, DATABASE_MARIADB, extra);
    snprintf(url, sizeof url, "mysql://%s@127.0.0.1:%d/alloc", d.user, d.port);
    sweep(url, day_of_locks, LOOSE);
    sweep(url, day_of_cells, LOOSE);
    database_stop(&d);
    scratch_remove(&s);
}

/* Locks of these two are swept in test_line_faults. */
static void sweep_cells_of(ensemble_kind kind, const char *scheme)
{
    char url[256];
    ensemble e;

    ensemble_need(&e, kind, 1, NULL);
    snprintf(url, sizeof url, "%s://%s/alloc?session=2000ms", scheme, e.hosts);
    sweep(url, day_of_cells, LOOSE);
    ensemble_stop(&e);
}

static void zookeeper_engine(void **state)
{
    (void)state;
    need_our_own("zookeeper");
    sweep_cells_of(ENSEMBLE_ZOOKEEPER, "zookeeper");
}

static void etcd_engine(void **state)
{
    (void)state;
    if (engine_missing("etcd"))
        skip();
    sweep_cells_of(ENSEMBLE_ETCD, "etcd");
}

int main(int argc, char *argv[])
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_engine), cmocka_unit_test(sqlite_engine),
        cmocka_unit_test(redis_engine),  cmocka_unit_test(redlock_engine),
        cmocka_unit_test(mysql_engine),  cmocka_unit_test(zookeeper_engine),
        cmocka_unit_test(etcd_engine),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
