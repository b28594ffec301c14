/* The fence at the resource: raise, then read, then write, in one transaction. */
#include "suite.h"
#include "support/calls.h"

#include "support/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One transaction that only presents a fence; started again as long as it is asked for. */
static dibs_status present(session *s, const char *level, const char *resource, uint64_t fence,
                           uint64_t floor)
{
    dibs_error err = {0};
    dibs_status status;

    do {
        session_begin(s, level);
        status = dibs_sql_fence_pass(s->db, resource, fence, floor, &err);
        if (status == DIBS_OK)
            session_commit(s);
        else
            session_rollback(s);
    } while (must_start_again(status));
    return status;
}

static void older_is_refused(const char *level)
{
    session s;
    dibs_error err = {0};

    session_open(&s);
    start_over(&s);
    must_be(present(&s, level, "r", 10, 0), DIBS_OK, NULL);
    must_be(present(&s, level, "r", 10, 0), DIBS_OK, NULL);
    must_be(present(&s, level, "r", 12, 0), DIBS_OK, NULL);
    must_be(present(&s, level, "r", 11, 0), DIBS_FENCED, NULL);
    must_be(present(&s, level, "R", 11, 0), DIBS_OK, NULL); /* another resource */
    must_be(present(&s, level, "r ", 11, 0), DIBS_OK, NULL);
    must_be(present(&s, level, "'\\\"\xff\x01`%?$1;--", INT64_MAX, 0), DIBS_OK, NULL);
    must_be(present(&s, level, "'\\\"\xff\x01`%?$1;--", 1, 0), DIBS_FENCED, NULL);

    session_begin(&s, level);
    session_say(&s, "INSERT INTO note (id) VALUES (1)");
    must_be(dibs_sql_fence_pass(s.db, "r", 3, 0, &err), DIBS_FENCED, &err);
    must(strstr(err.message, "12") && strstr(err.message, "'r'"));
    session_commit(&s); /* a refusal does not throw the transaction away */
    must(session_number(&s, "SELECT COUNT(*) FROM note") == 1);
    session_close(&s);
}

static void rollback_undoes(const char *level)
{
    session s;
    dibs_error err = {0};

    session_open(&s);
    start_over(&s);
    session_begin(&s, level);
    must_be(dibs_sql_fence_pass(s.db, "r", 20, 0, &err), DIBS_OK, &err);
    must_be(dibs_sql_fence_pass(s.db, "r", 30, 0, &err), DIBS_OK, &err);
    must_be(dibs_sql_fence_pass(s.db, "r", 29, 0, &err), DIBS_FENCED, &err);
    session_rollback(&s);
    must_be(present(&s, level, "r", 5, 0), DIBS_OK, NULL);
    session_close(&s);
}

/* Several holders at once: the resource keeps the highest floor. */
static void shared_floor(const char *level)
{
    session s;

    session_open(&s);
    start_over(&s);
    must_be(present(&s, level, "r", 20, 15), DIBS_OK, NULL);
    must_be(present(&s, level, "r", 16, 15), DIBS_OK, NULL);
    must_be(present(&s, level, "r", 15, 15), DIBS_OK, NULL);
    must_be(present(&s, level, "r", 14, 14), DIBS_FENCED, NULL);
    must_be(present(&s, level, "r", 22, 20), DIBS_OK, NULL);
    must_be(present(&s, level, "r", 16, 15), DIBS_FENCED, NULL);
    must_be(present(&s, level, "r", 21, 15), DIBS_OK, NULL); /* an old floor lowers nothing */
    must_be(present(&s, level, "r", 19, 19), DIBS_FENCED, NULL);
    session_close(&s);
}

typedef struct late {
    const char *level;
    dibs_status status;
    int64_t at;
} late;

static void present_late(void *ctx, int i)
{
    late *l = ctx;
    session s;

    (void)i;
    session_open(&s);
    l->status = present(&s, l->level, "r", 30, 0);
    l->at = clock_ms();
    session_close(&s);
}

/* Whoever comes with an older fence waits for the transaction, and is refused after its commit. */
static void locked_until_commit(const char *level)
{
    session s, watcher;
    dibs_error err = {0};
    late l = {.level = level};
    int64_t committed;
    beside a;

    session_open(&s);
    session_open(&watcher);
    start_over(&s);
    session_begin(&s, level);
    must_be(dibs_sql_fence_pass(s.db, "r", 31, 0, &err), DIBS_OK, &err);
    a = run_beside(present_late, &l);
    wait_for_waiters(&watcher, 1);
    committed = clock_ms();
    session_commit(&s);
    join_beside(a);
    must_be(l.status, DIBS_FENCED, NULL);
    must(l.at >= committed);
    session_close(&s);
    session_close(&watcher);
}

/* ---- A paused holder ---------------------------------------------------------------------------
 */

/* Sells one, as a holder that believes in its lock. */
static dibs_status sell(session *s, const char *level, bool guarded, uint64_t fence)
{
    dibs_error err = {0};
    dibs_status status = DIBS_OK;
    int64_t left;

    session_begin(s, level);
    if (guarded)
        status = dibs_sql_fence_pass(s->db, "stock:1", fence, 0, &err);
    if (status != DIBS_OK) {
        session_rollback(s);
        return status;
    }
    left = session_number(s, "SELECT left_over FROM stock WHERE item = 1");
    session_say(s, "UPDATE stock SET left_over = %lld WHERE item = 1", (long long)left - 1);
    session_commit(s);
    return status;
}

static dibs_grant *take(dibs *d, const char *owner, int64_t lease_ms)
{
    dibs_lock_options options = {.owner = owner, .lease_ms = lease_ms, .no_renew = true};
    dibs_grant *g = NULL;
    dibs_error err = {0};

    must_be(dibs_lock(d, "stock:1", &options, &g, &err), DIBS_OK, &err);
    return g;
}

/* A holder sleeps through its lease; the next one has the lock and sells. Then the first wakes up:
 * with the fence its write is refused, without it the write lands. */
static void paused_holder(const char *level)
{
    session early, next;
    dibs *d = NULL;
    dibs_error err = {0};
    dibs_grant *first, *second;

    session_open(&early);
    session_open(&next);
    start_over(&early);
    must_be(dibs_open("memory:", NULL, &d, &err), DIBS_OK, &err);
    first = take(d, "early", 150);
    second = take(d, "next", 30000); /* waits until the lease of the first is over */
    must(!dibs_grant_held(first) && dibs_grant_held(second));
    must(dibs_grant_fence(second) > dibs_grant_fence(first));

    must_be(sell(&next, level, true, dibs_grant_fence(second)), DIBS_OK, NULL);
    must_be(sell(&early, level, true, dibs_grant_fence(first)), DIBS_FENCED, NULL);
    must(session_number(&next, "SELECT left_over FROM stock WHERE item = 1") == 49);
    must_be(sell(&early, level, false, dibs_grant_fence(first)), DIBS_OK, NULL);
    must(session_number(&next, "SELECT left_over FROM stock WHERE item = 1") == 48);

    unlock(second);
    unlock(first);
    dibs_close(d);
    session_close(&early);
    session_close(&next);
}

/* ---- The guarded counter -----------------------------------------------------------------------
 */

#define COUNTERS 8
#define ROUNDS   25

typedef struct counting {
    const char *level;
    bool guarded;
    _Atomic uint64_t fence;
    _Atomic int written, refused, restarted;
} counting;

/* Read, add one, write back; with the fence presented first, or not at all. */
static dibs_status add_one(session *s, const counting *c, uint64_t fence)
{
    dibs_error err = {0};
    dibs_status status = DIBS_OK;
    int64_t n;

    session_begin(s, c->level);
    if (c->guarded)
        status = dibs_sql_fence_pass(s->db, "counter", fence, 0, &err);
    if (status != DIBS_OK) {
        session_rollback(s);
        return status;
    }
    n = session_number(s, "SELECT version FROM stock WHERE item = 1");
    sleep_ms(1);
    session_say(s, "UPDATE stock SET version = %lld WHERE item = 1", (long long)n + 1);
    session_commit(s);
    return DIBS_OK;
}

/* Everybody believes to hold the lock at once, with the fence of its own grant. */
static void count_on(void *ctx, int i)
{
    counting *c = ctx;
    session s;

    session_open(&s);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t fence = ++c->fence;
        dibs_status status;
        sleep_ms((i + round) % 3); /* some come late */
        while (must_start_again(status = add_one(&s, c, fence)))
            c->restarted++;
        must(status == DIBS_OK || status == DIBS_FENCED);
        status == DIBS_OK ? c->written++ : c->refused++;
    }
    session_close(&s);
}

static void guarded_counter(const char *level)
{
    counting c = {.level = level, .guarded = true};
    session s;

    session_open(&s);
    start_over(&s);
    in_threads(COUNTERS, count_on, &c);
    printf("# guarded: %d written, %d refused, %d restarted\n", c.written, c.refused, c.restarted);
    must(c.written + c.refused == COUNTERS * ROUNDS);
    must(session_number(&s, "SELECT version FROM stock WHERE item = 1") == c.written);
    must(c.refused > 0);
    session_close(&s);
}

/* The check itself: without the fence updates get lost. (REPEATABLE READ on PostgreSQL refuses the
 * second write by itself, SQLite has one writer.) */
static void unguarded_counter(const char *level)
{
    counting c = {.level = level};
    session s;
    int64_t n;

    if (is_postgresql() && is_snapshot(level))
        skip();
    session_open(&s);
    start_over(&s);
    in_threads(COUNTERS, count_on, &c);
    n = session_number(&s, "SELECT version FROM stock WHERE item = 1");
    printf("# unguarded: %d written, %lld counted\n", c.written, (long long)n);
    must(c.written == COUNTERS * ROUNDS && n < c.written);
    session_close(&s);
}

/* ---- Old snapshots -----------------------------------------------------------------------------
 */

/* Whoever has read before it presents its fence may have read old data: told, not guessed. */
static void read_before(const char *level)
{
    session early, next;
    dibs_error err = {0};
    dibs_status status;

    session_open(&early);
    session_open(&next);
    start_over(&early);
    must_be(present(&early, level, "stock:1", 40, 0), DIBS_OK, NULL);
    for (int same = 0; same < 2; same++) { /* also when the floor stays what it was */
        uint64_t fence = same ? 42 : 41;
        session_begin(&early, level);
        session_number(&early, "SELECT left_over FROM stock WHERE item = 1");
        must_be(sell(&next, level, true, same ? 42 : 41), DIBS_OK, NULL);
        status = dibs_sql_fence_pass(early.db, "stock:1", fence, 0, &err);
        must_be(status, is_snapshot(level) ? DIBS_RESTART : DIBS_OK, &err);
        session_rollback(&early);
    }
    session_close(&early);
    session_close(&next);
}

/* The fence first, then the read: whatever was committed while it waited is seen. */
static void sell_late(void *ctx, int i)
{
    late *l = ctx;
    session s;

    (void)i;
    session_open(&s);
    while (must_start_again(l->status = sell(&s, l->level, true, 61)))
        ;
    session_close(&s);
}

static void read_after(const char *level)
{
    session s, watcher;
    dibs_error err = {0};
    late l = {.level = level};
    beside a;

    session_open(&s);
    session_open(&watcher);
    start_over(&s);
    session_begin(&s, level);
    must_be(dibs_sql_fence_pass(s.db, "stock:1", 60, 0, &err), DIBS_OK, &err);
    a = run_beside(sell_late, &l);
    wait_for_waiters(&watcher, 1);
    session_say(&s, "UPDATE stock SET left_over = 7 WHERE item = 1");
    session_commit(&s);
    join_beside(a);
    must_be(l.status, DIBS_OK, NULL);
    must(session_number(&watcher, "SELECT left_over FROM stock WHERE item = 1") == 6);
    session_close(&s);
    session_close(&watcher);
}

/* A deferred transaction of SQLite's that has read, while another writes. */
static void stale_sqlite(const char *level)
{
    session early, next;
    dibs_error err = {0};

    session_open(&early);
    session_open(&next);
    start_over(&early);
    session_say(&early, "BEGIN");
    session_number(&early, "SELECT left_over FROM stock WHERE item = 1");
    session_begin(&next, level);
    must_be(dibs_sql_fence_pass(next.db, "stock:1", 51, 0, &err), DIBS_OK, &err);
    must_be(dibs_sql_fence_pass(early.db, "stock:1", 50, 0, &err), DIBS_RESTART, &err);
    session_commit(&next);
    must_be(dibs_sql_fence_pass(early.db, "stock:1", 52, 0, &err), DIBS_RESTART, &err);
    must_be(dibs_sql_lock(early.db, "stock:1", 0, &err), DIBS_RESTART, &err);
    session_rollback(&early);
    session_say(&early, "BEGIN");
    must_be(dibs_sql_fence_pass(early.db, "stock:1", 52, 0, &err), DIBS_OK, &err);
    session_commit(&early);
    session_close(&early);
    session_close(&next);
}

/* Every read locks there: a resource that nobody has presented a fence to keeps nobody from another. */
static void serializable_locks_no_gap(const char *level)
{
    session one, other;
    dibs_error err = {0};

    (void)level;
    session_open(&one);
    session_open(&other);
    start_over(&one);
    session_say(&other, "SET SESSION innodb_lock_wait_timeout = 1");
    session_begin(&one, "SERIALIZABLE");
    session_begin(&other, "SERIALIZABLE");
    must_be(dibs_sql_fence_pass(one.db, "gap:1", 5, 0, &err), DIBS_OK, &err);
    must_be(dibs_sql_fence_pass(other.db, "gap:2", 6, 0, &err), DIBS_OK, &err);
    must_be(dibs_sql_fence_pass(one.db, "gap:3", 7, 0, &err), DIBS_OK, &err);
    must_be(dibs_sql_fence_pass(other.db, "gap:0", 4, 0, &err), DIBS_OK, &err);
    session_commit(&one);
    session_commit(&other);
    must(session_number(&one, "SELECT SUM(floor) FROM dibs_fence") == 22);
    session_close(&one);
    session_close(&other);
}

/* ---- Without our tables ------------------------------------------------------------------------ */

/* The n-th statement of docs/fencing.md, with these values; "floor" 0: the fence. */
static void statement(int n, int64_t fence, int64_t new_value, char *out, size_t size)
{
    char line[512], value[32];
    FILE *doc = fopen(FENCING, "r");
    const char *at = line;

    must(doc);
    while (n > 0 && fgets(line, sizeof line, doc))
        n -= strncmp(line, "UPDATE stock ", 13) == 0;
    fclose(doc);
    must(n == 0);
    out[0] = '\0';
    while (*at && *at != ';') {
        static const char *const names[] = {":new", ":floor", ":item", ":fence", "GREATEST("};
        char one[2] = {*at, '\0'};
        const char *put = one;
        size_t skip = 1;
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            if (strncmp(at, names[i], strlen(names[i])) != 0)
                continue;
            snprintf(value, sizeof value, "%lld",
                     i == 0   ? (long long)new_value
                     : i == 2 ? 1LL
                              : (long long)fence);
            put = i < 4 ? value : is_sqlite() ? "max(" : names[i];
            skip = strlen(names[i]);
        }
        must(strlen(out) + strlen(put) < size);
        strcat(out, put);
        at += skip;
    }
}

/* How many rows it changed, by the client's own count. */
static int64_t changed_by(session *s, int n, int64_t fence, int64_t new_value)
{
    char sql[512];

    statement(n, fence, new_value, sql, sizeof sql);
    return session_changed(s, sql);
}

static void one_statement(const char *level)
{
    session s;

    (void)level;
    session_open(&s);
    start_over(&s);
    must(changed_by(&s, 1, 5, 40) == 1);
    must(changed_by(&s, 1, 5, 40) == 1); /* the same again is no older holder */
    must(changed_by(&s, 2, 7, 0) == 1);
    must(changed_by(&s, 2, 7, 0) == 1);
    must(changed_by(&s, 1, 6, 30) == 0); /* one is newer, though it has not written yet */
    must(changed_by(&s, 2, 6, 0) == 0);
    must(session_number(&s, "SELECT left_over FROM stock WHERE item = 1") == 40);
    must(changed_by(&s, 1, 7, 20) == 1);
    must(session_number(&s, "SELECT left_over FROM stock WHERE item = 1") == 20);
    must(session_number(&s, "SELECT fence FROM stock WHERE item = 1") == 7);
    session_close(&s);
}

/* Present the fence, read, write, in one transaction: an older holder that comes between is refused. */
static void one_transaction(const char *level)
{
    session s, old;
    int64_t left;

    session_open(&s);
    session_open(&old);
    start_over(&s);
    must(session_number(&old, "SELECT left_over FROM stock WHERE item = 1") == 50); /* and pauses */
    session_begin(&s, level);
    must(changed_by(&s, 2, 9, 0) == 1);
    left = session_number(&s, "SELECT left_over FROM stock WHERE item = 1");
    must(changed_by(&s, 1, 9, left - 1) == 1);
    session_commit(&s);
    must(changed_by(&old, 1, 8, 49) == 0);
    must(session_number(&s, "SELECT left_over FROM stock WHERE item = 1") == 49);
    session_close(&old);
    session_close(&s);
}

const sql_test sql_fence[] = {
    {"an older fence is refused", older_is_refused, false, ALL},
    {"a rollback takes the floor back", rollback_undoes, false, ALL},
    {"shared: the highest floor counts", shared_floor, false, ALL},
    {"the resource stays locked until commit", locked_until_commit, false, ALL},
    {"a paused holder is refused, and lands unguarded", paused_holder, false, ALL},
    {"the guarded counter loses nothing", guarded_counter, false, ALL},
    {"the unguarded counter loses updates", unguarded_counter, false, SERVERS},
    {"a read before the fence is told when it is old", read_before, false, SERVERS},
    {"a read after the fence is new", read_after, false, ALL},
    {"docs/fencing.md: one statement", one_statement, true, ALL},
    {"docs/fencing.md: one transaction", one_transaction, false, ALL},
    {"sqlite: who has read cannot wait to write", stale_sqlite, true, ONLY_SQLITE},
    {"mariadb: SERIALIZABLE locks no gap", serializable_locks_no_gap, true, ONLY_MARIADB},
    {0},
};
