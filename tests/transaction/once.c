/* The dedupe insert: a key is written down in the transaction that does the work. */
#include "suite.h"

#include "support/clock.h"

#include <stdio.h>
#include <string.h>

#define TWINS 6

/* A key with its options. */
typedef struct known_key {
    const char *name;
    dibs_sql_once_options options;
} known_key;

static known_key key_of(const char *name, const char *fingerprint)
{
    return (known_key){name,
                       {.scope = "orders",
                        .fingerprint = fingerprint,
                        .fingerprint_size = fingerprint ? strlen(fingerprint) : 0}};
}

static dibs_status once(const session *s, const known_key *key, dibs_value *stored, dibs_error *err)
{
    return dibs_sql_once(s->db, key->name, &key->options, stored, err);
}

static dibs_status finish(const session *s, const known_key *key, const void *result, size_t size,
                          dibs_error *err)
{
    return dibs_sql_once_finish(s->db, key->name, result, size, &key->options, err);
}

static void done_already_conflict(const char *level)
{
    session s;
    dibs_error err = {0};
    known_key key = key_of("k1", "pay 5"), other = key_of("k1", "pay 6"), bare = key_of("k1", NULL),
              elsewhere = key, unscoped = key;
    dibs_value stored;

    unscoped.options.scope = NULL;
    elsewhere.options.scope = "refunds";
    session_open(&s);
    start_over(&s);
    session_begin(&s, level);
    must_be(finish(&s, &key, "x", 1, &err), DIBS_NOT_FOUND, &err);
    must_be(once(&s, &key, &stored, &err), DIBS_OK, &err);
    must(!stored.data);
    session_say(&s, "INSERT INTO note (id) VALUES (1)");
    must_be(finish(&s, &key, "a\0b", 3, &err), DIBS_OK, &err);
    must_be(finish(&s, &key, "c", 1, &err), DIBS_ALREADY, &err);
    session_commit(&s);

    session_begin(&s, level);
    must_be(once(&s, &key, &stored, &err), DIBS_ALREADY, &err);
    must(stored.size == 3 && memcmp(stored.data, "a\0b", 3) == 0);
    dibs_value_free(&stored);
    must_be(once(&s, &key, NULL, NULL), DIBS_ALREADY, NULL);
    must_be(once(&s, &other, &stored, &err), DIBS_MISMATCH, &err);
    must(!stored.data);
    must_be(once(&s, &bare, NULL, &err), DIBS_MISMATCH, &err);
    must_be(once(&s, &elsewhere, NULL, &err), DIBS_OK, &err);
    must_be(once(&s, &unscoped, NULL, &err), DIBS_OK, &err);
    must_be(finish(&s, &unscoped, "y", 1, &err), DIBS_OK, &err);
    unscoped.options.scope = ""; /* the same as none */
    must_be(once(&s, &unscoped, NULL, &err), DIBS_ALREADY, &err);
    session_say(&s, "INSERT INTO note (id) VALUES (2)");
    session_commit(&s); /* none of that threw the transaction away */
    must(session_number(&s, "SELECT COUNT(*) FROM note") == 2);
    session_close(&s);
}

static void results(const char *level)
{
    static char big[300000];
    session s;
    dibs_error err = {0};
    known_key empty = key_of("empty", NULL), large = key_of("large", NULL),
              none = key_of("none", NULL);
    dibs_value stored;

    memset(big, '\xfe', sizeof big);
    session_open(&s);
    start_over(&s);
    session_begin(&s, level);
    must_be(once(&s, &empty, NULL, &err), DIBS_OK, &err);
    must_be(finish(&s, &empty, "", 0, &err), DIBS_OK, &err);
    must_be(once(&s, &large, NULL, &err), DIBS_OK, &err);
    must_be(finish(&s, &large, big, sizeof big, &err), DIBS_OK, &err);
    must_be(once(&s, &none, NULL, &err), DIBS_OK, &err);
    session_commit(&s);
    session_begin(&s, level);
    must_be(once(&s, &empty, &stored, &err), DIBS_ALREADY, &err);
    must(stored.data && stored.size == 0);
    dibs_value_free(&stored);
    must_be(once(&s, &large, &stored, &err), DIBS_ALREADY, &err);
    must(stored.size == sizeof big && memcmp(stored.data, big, sizeof big) == 0);
    dibs_value_free(&stored);
    must_be(once(&s, &none, &stored, &err), DIBS_ALREADY, &err);
    must(!stored.data);
    session_rollback(&s);
    session_close(&s);
}

static void rollback_forgets(const char *level)
{
    session s;
    dibs_error err = {0};
    known_key key = key_of("k", NULL);

    session_open(&s);
    start_over(&s);
    for (int i = 0; i < 2; i++) {
        session_begin(&s, level);
        must_be(once(&s, &key, NULL, &err), DIBS_OK, &err);
        must_be(once(&s, &key, NULL, &err), DIBS_ALREADY, &err);
        session_rollback(&s);
    }
    session_close(&s);
}

/* ---- Duplicates at once ------------------------------------------------------------------------
 */

typedef struct twins {
    const char *level;
    bool plain; /* INSERT by hand instead of dibs_sql_once */
    _Atomic int done, already, restarted, deadlocks;
} twins;

/* A request as a program would serve it: a row of its own first, then the key, then the work. */
static dibs_status serve(session *s, twins *t, int i)
{
    dibs_error err = {0};
    known_key key = key_of("twin", "same");
    dibs_status status;

    session_begin(s, t->level);
    session_say(s, "INSERT INTO note (id, body) VALUES (%d, 'seen')", i);
    status = once(s, &key, NULL, &err);
    if (status == DIBS_OK)
        session_say(s, "INSERT INTO note (id, body) VALUES (%d, 'work')", i);
    if (must_start_again(status)) {
        t->deadlocks += strstr(err.message, "deadlock") != NULL;
        session_rollback(s);
    } else {
        session_commit(s); /* must work: that is the claim */
    }
    return status;
}

static void be_a_twin(void *ctx, int i)
{
    twins *t = ctx;
    session s;
    dibs_status status;

    session_open(&s);
    while (must_start_again(status = serve(&s, t, i)))
        t->restarted++;
    must(status == DIBS_OK || status == DIBS_ALREADY);
    status == DIBS_OK ? t->done++ : t->already++;
    session_close(&s);
}

static void run_twins(void *ctx, int i)
{
    (void)i;
    in_threads(TWINS, be_a_twin, ctx);
}

/* The first has the key and rolls back while the others wait for it: one of them does the work, the
 * others are told, and nobody loses a transaction. */
static void first_rolls_back(const char *level)
{
    session first, watcher;
    dibs_error err = {0};
    known_key key = key_of("twin", "same");
    twins t = {.level = level};

    session_open(&first);
    session_open(&watcher);
    for (int round = 0; round < 3; round++) {
        beside a;
        start_over(&first);
        session_begin(&first, level);
        must_be(once(&first, &key, NULL, &err), DIBS_OK, &err);
        a = run_beside(run_twins, &t);
        if (is_sqlite()) /* they wait to begin */
            sleep_ms(50);
        else
            wait_for_waiters(&watcher, TWINS);
        session_rollback(&first);
        join_beside(a);
        must(session_number(&first, "SELECT COUNT(*) FROM note WHERE body = 'work'") == 1);
        must(session_number(&first, "SELECT COUNT(*) FROM note WHERE body = 'seen'") == TWINS);
    }
    printf("# %d did it, %d were told, %d restarted\n", t.done, t.already, t.restarted);
    must(t.done == 3 && t.already == 3 * (TWINS - 1) && t.deadlocks == 0);
    must(t.restarted == 0 || (is_postgresql() && is_snapshot(level)));
    session_close(&first);
    session_close(&watcher);
}

/* The check itself: the same with plain INSERTs deadlocks on InnoDB. */
static void insert_by_hand(void *ctx, int i)
{
    twins *t = ctx;
    session s;

    (void)i;
    session_open(&s);
    session_begin(&s, t->level);
    if (!session_try(&s, "INSERT INTO dibs_once (scope, name, fingerprint) VALUES ('o', 'k', '')"))
        t->deadlocks += session_number(&s, "SELECT @@in_transaction") == 0;
    session_rollback(&s);
    session_close(&s);
}

static void insert_in_threads(void *ctx, int i)
{
    (void)i;
    in_threads(TWINS, insert_by_hand, ctx);
}

static void plain_inserts_deadlock(const char *level)
{
    session first, watcher;
    twins t = {.level = level};
    beside a;

    session_open(&first);
    session_open(&watcher);
    start_over(&first);
    session_begin(&first, level);
    session_say(&first, "INSERT INTO dibs_once (scope, name, fingerprint) VALUES ('o', 'k', '')");
    a = run_beside(insert_in_threads, &t);
    wait_for_waiters(&watcher, TWINS);
    session_rollback(&first);
    join_beside(a);
    printf("# %d of %d transactions lost to a deadlock\n", t.deadlocks, TWINS);
    must(t.deadlocks > 0);
    session_close(&first);
    session_close(&watcher);
}

/* Different keys at full speed: nobody meets anybody. */
static void insert_many(void *ctx, int i)
{
    twins *t = ctx;
    session s;

    session_open(&s);
    for (int n = 0; n < 40; n++) {
        char name[32];
        known_key key = key_of(name, NULL);
        dibs_error err = {0};
        snprintf(name, sizeof name, "key %d of %d", n, i);
        session_begin(&s, t->level);
        must_be(once(&s, &key, NULL, &err), DIBS_OK, &err);
        must_be(finish(&s, &key, name, strlen(name), &err), DIBS_OK, &err);
        session_commit(&s);
        t->done++;
    }
    session_close(&s);
}

static void many_keys(const char *level)
{
    twins t = {.level = level};
    session s;

    session_open(&s);
    start_over(&s);
    in_threads(TWINS, insert_many, &t);
    must(session_number(&s, "SELECT COUNT(*) FROM dibs_once") == 40 * TWINS);
    session_close(&s);
}

/* The key was committed after this transaction began to read. */
static void key_newer_than_snapshot(const char *level)
{
    session early, next;
    dibs_error err = {0};
    known_key key = key_of("new", "same");
    dibs_value stored;

    session_open(&early);
    session_open(&next);
    start_over(&early);
    session_begin(&early, level);
    session_number(&early, "SELECT COUNT(*) FROM note");
    session_begin(&next, level);
    must_be(once(&next, &key, NULL, &err), DIBS_OK, &err);
    must_be(finish(&next, &key, "r", 1, &err), DIBS_OK, &err);
    session_commit(&next);
    if (is_postgresql() && is_snapshot(level)) {
        must_be(once(&early, &key, &stored, &err), DIBS_RESTART, &err);
    } else {
        must_be(once(&early, &key, &stored, &err), DIBS_ALREADY, &err);
        must(stored.size == 1);
        dibs_value_free(&stored);
    }
    session_say(&early, "INSERT INTO note (id) VALUES (1)");
    session_commit(&early);
    must(session_number(&early, "SELECT COUNT(*) FROM note") == 1);
    session_close(&early);
    session_close(&next);
}

/* A duplicate that may not wait longer is told so, and its transaction goes on. */
static void a_bounded_wait(const char *level)
{
    static const int64_t waits[] = {DIBS_NO_WAIT, 80}, absurd[] = {INT64_MIN, -7, INT64_MAX - 1};
    session first, other;
    dibs_error err = {0};
    known_key key = key_of("slow", "same"), wrong = key;

    session_open(&first);
    session_open(&other);
    for (int i = 0; i < 2; i++) {
        int64_t began = clock_ms();
        key.options.wait_ms = waits[i];
        start_over(&first);
        session_begin(&first, level);
        must_be(once(&first, &key, NULL, &err), DIBS_OK, &err);
        if (is_sqlite()) /* BEGIN IMMEDIATE would do the waiting */
            session_say(&other, "BEGIN");
        else
            session_begin(&other, level);
        must_be(once(&other, &key, NULL, &err), DIBS_BUSY, &err);
        must(strstr(err.message, "slow"));
        must(clock_ms() - began < 20000);
        session_commit(&first);
        if (!(is_postgresql() && is_snapshot(level))) /* that one would be told DIBS_RESTART */
            must_be(once(&other, &key, NULL, &err), DIBS_ALREADY, &err);
        session_say(&other, "INSERT INTO note (id) VALUES (7)");
        session_commit(&other);
        must(session_number(&other, "SELECT COUNT(*) FROM note") == 1);
    }
    session_begin(&first, level);
    for (size_t i = 0; i < sizeof absurd / sizeof absurd[0]; i++) {
        wrong.options.wait_ms = absurd[i];
        must_be(once(&first, &wrong, NULL, &err), DIBS_INVALID, &err);
        must_be(dibs_sql_lock(first.db, "a", absurd[i], &err), DIBS_INVALID, &err);
        must(strstr(err.message, "wait_ms = "));
    }
    session_rollback(&first);
    session_close(&first);
    session_close(&other);
}

/* Options of a newer header are refused, and the transaction goes on. */
static void reserved_members(const char *level)
{
    session s;
    dibs_error err = {0};
    known_key key = key_of("k1", NULL);
    dibs_sql_change change = {
        .table = "stock", .set = "left_over = 0", .row = "item = 1", .still = "1 = 1"};
    dibs_value stored = {.data = &key, .size = 1};

    session_open(&s);
    start_over(&s);
    session_begin(&s, level);
    for (size_t i = 0; i < sizeof key.options.reserved / sizeof key.options.reserved[0]; i++) {
        key.options.reserved[i] = 1;
        must_be(once(&s, &key, &stored, &err), DIBS_INVALID, &err);
        must(strstr(err.message, "reserved") && !stored.data && !stored.size);
        must_be(finish(&s, &key, "x", 1, &err), DIBS_INVALID, &err);
        key.options.reserved[i] = 0;
    }
    for (size_t i = 0; i < sizeof change.reserved / sizeof change.reserved[0]; i++) {
        change.reserved[i] = 1;
        must_be(dibs_sql_update(s.db, &change, &err), DIBS_INVALID, &err);
        must(strstr(err.message, "reserved"));
        change.reserved[i] = 0;
    }
    session_commit(&s);
    session_close(&s);
}

const sql_test sql_once[] = {
    {"done, already, conflict", done_already_conflict, false, ALL},
    {"results are kept as they are", results, false, ALL},
    {"a rollback forgets the key", rollback_forgets, false, ALL},
    {"duplicates at once, the first rolls back", first_rolls_back, false, ALL},
    {"mariadb: plain duplicate inserts deadlock", plain_inserts_deadlock, false, ONLY_MARIADB},
    {"a duplicate waits only as long as it may", a_bounded_wait, false, ALL},
    {"different keys do not meet", many_keys, false, ALL},
    {"reserved members must be zero", reserved_members, true, ALL},
    {"a key that is newer than the snapshot", key_newer_than_snapshot, false, SERVERS},
    {0},
};
