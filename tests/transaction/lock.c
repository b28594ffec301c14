/* A lock on a name that lasts as long as the transaction. */
#include "suite.h"

#include "support/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define TAKERS 8
#define ROUNDS 25

typedef struct taking {
    const char *level;
    const char *first, *second; /* names */
    pthread_barrier_t *both;
    _Atomic int restarted;
    dibs_status status;
} taking;

static dibs_status add_one(session *s, const taking *t)
{
    dibs_error err = {0};
    dibs_status status;
    int64_t n;

    session_begin(s, t->level);
    status = dibs_sql_lock(s->db, "counter", 0, &err);
    if (status != DIBS_OK) {
        session_rollback(s);
        return status;
    }
    n = session_number(s, "SELECT version FROM stock WHERE item = 1");
    session_say(s, "UPDATE stock SET version = %lld WHERE item = 1", (long long)n + 1);
    session_commit(s);
    return DIBS_OK;
}

static void count_on(void *ctx, int i)
{
    taking *t = ctx;
    session s;

    (void)i;
    session_open(&s);
    for (int round = 0; round < ROUNDS; round++) {
        dibs_status status;
        while (must_start_again(status = add_one(&s, t)))
            t->restarted++;
        must_be(status, DIBS_OK, NULL);
    }
    session_close(&s);
}

static void excludes(const char *level)
{
    taking t = {.level = level};
    session s;

    session_open(&s);
    start_over(&s);
    in_threads(TAKERS, count_on, &t);
    printf("# %d restarted\n", t.restarted);
    must(session_number(&s, "SELECT version FROM stock WHERE item = 1") == TAKERS * ROUNDS);
    must(t.restarted == 0 || (is_postgresql() && is_snapshot(level)));
    session_close(&s);
}

/* ---- The bound ---------------------------------------------------------------------------------
 */

/* What the session had set, as one number. */
static int64_t settings(session *s)
{
    if (is_postgresql())
        return session_number(s, "SELECT setting FROM pg_settings WHERE name = 'lock_timeout'");
    if (is_mariadb())
        return session_number(
            s, "SELECT 1000 * @@max_statement_time + 1000000 * @@innodb_lock_wait_timeout");
    return session_number(s, "PRAGMA busy_timeout");
}

static void set_settings(session *s)
{
    if (is_postgresql())
        session_say(s, "SET lock_timeout = 7000");
    if (is_mariadb())
        session_say(s, "SET max_statement_time = 77, innodb_lock_wait_timeout = 33");
    if (is_sqlite())
        session_say(s, "PRAGMA busy_timeout = 7000");
}

/* SQLite's only place to wait is before the first write. */
static void begin_to_wait(session *s, const char *level)
{
    if (is_sqlite())
        session_say(s, "BEGIN");
    else
        session_begin(s, level);
    if (!is_sqlite())
        session_say(s, "INSERT INTO note (id) VALUES (1)");
}

static void bound_is_kept(const char *level)
{
    session holder, s;
    dibs_error err = {0};
    int64_t before, set, spent;

    session_open(&holder);
    session_open(&s);
    start_over(&s);
    set_settings(&s);
    set = settings(&s);
    session_begin(&holder, level);
    must_be(dibs_sql_lock(holder.db, "a", 0, &err), DIBS_OK, &err);
    must_be(dibs_sql_lock(holder.db, "a", DIBS_NO_WAIT, &err), DIBS_OK, &err); /* again */

    begin_to_wait(&s, level);
    before = clock_ms();
    must_be(dibs_sql_lock(s.db, "a", 300, &err), DIBS_BUSY, &err);
    spent = clock_ms() - before;
    must(spent >= 295 && spent < 5000); /* the session's own bounds are longer */
    must(settings(&s) == set);
    before = clock_ms();
    must_be(dibs_sql_lock(s.db, "a", DIBS_NO_WAIT, &err), DIBS_BUSY, &err);
    must(clock_ms() - before < 5000);
    session_commit(&holder);
    must_be(dibs_sql_lock(s.db, "a", 300, &err),
            is_postgresql() && is_snapshot(level) ? DIBS_RESTART : DIBS_OK, &err);
    must(settings(&s) == set);
    session_commit(&s); /* the wait did not throw the transaction away */
    must(is_sqlite() || session_number(&s, "SELECT COUNT(*) FROM note") == 1);
    must(settings(&s) == set);
    session_close(&holder);
    session_close(&s);
}

/* Two names do not meet, except on SQLite, which has one writer. */
static void names_are_apart(const char *level)
{
    session a, b;
    dibs_error err = {0};

    session_open(&a);
    session_open(&b);
    session_begin(&a, level);
    session_begin(&b, level);
    must_be(dibs_sql_lock(a.db, "a", DIBS_NO_WAIT, &err), DIBS_OK, &err);
    must_be(dibs_sql_lock(b.db, "b", DIBS_NO_WAIT, &err), DIBS_OK, &err);
    must_be(dibs_sql_fence_pass(b.db, "a", 1, 0, &err), DIBS_OK, &err); /* of another use */
    session_commit(&a);
    session_commit(&b);
    session_close(&a);
    session_close(&b);
}

/* ---- How it ends -------------------------------------------------------------------------------
 */

static void take_aside(void *ctx, int i)
{
    taking *t = ctx;
    session s;
    dibs_error err = {0};

    (void)i;
    session_open(&s);
    do {
        session_rollback(&s);
        if (is_sqlite())
            session_say(&s, "BEGIN");
        else
            session_begin(&s, t->level);
        t->status = dibs_sql_lock(s.db, "a", 20000, &err);
    } while (must_start_again(t->status));
    session_rollback(&s);
    session_close(&s);
}

/* By rollback, or by the end of the holder's connection. */
static void ends_with_transaction(const char *level)
{
    for (int way = 0; way < 2; way++) {
        session holder, watcher;
        dibs_error err = {0};
        taking t = {.level = level};
        beside a;
        session_open(&holder);
        session_open(&watcher);
        session_begin(&holder, level);
        must_be(dibs_sql_lock(holder.db, "a", 0, &err), DIBS_OK, &err);
        a = run_beside(take_aside, &t);
        wait_for_waiters(&watcher, 1);
        if (way == 0)
            session_rollback(&holder);
        session_close(&holder);
        join_beside(a);
        must_be(t.status, DIBS_OK, NULL);
        session_close(&watcher);
    }
}

/* ---- Deadlock ----------------------------------------------------------------------------------
 */

/* Holds the first, waits until the other does, then wants the second. */
static void take_second(void *ctx, int i)
{
    taking *t = (taking *)ctx + i;
    session s;
    dibs_error err = {0};

    session_open(&s);
    session_begin(&s, t->level);
    session_say(&s, "INSERT INTO note (id) VALUES (%d)", i);
    must_be(dibs_sql_lock(s.db, t->first, 0, &err), DIBS_OK, &err);
    pthread_barrier_wait(t->both);
    t->status = dibs_sql_lock(s.db, t->second, 20000, &err);
    if (t->status == DIBS_RESTART) {
        printf("# %s\n", err.message);
        must(strcmp(err.engine_code, is_mariadb() ? "1213" : "40P01") == 0);
    }
    if (must_start_again(t->status))
        session_rollback(&s);
    else
        session_commit(&s);
    session_close(&s);
}

static void deadlock_is_reported(const char *level)
{
    session s;
    pthread_barrier_t both;
    taking t[2] = {{.level = level, .first = "a", .second = "b", .both = &both},
                   {.level = level, .first = "b", .second = "a", .both = &both}};

    session_open(&s);
    start_over(&s);
    pthread_barrier_init(&both, NULL, 2);
    in_threads(2, take_second, t);
    pthread_barrier_destroy(&both);
    /* One is told, the other has it: the victim left without a commit that would age a snapshot. */
    must((t[0].status == DIBS_RESTART) != (t[1].status == DIBS_RESTART));
    must((t[0].status == DIBS_OK) != (t[1].status == DIBS_OK));
    must(session_number(&s, "SELECT COUNT(*) FROM note") == 1);
    session_close(&s);
}

/* MariaDB has rolled the victim back while the client still believes in its transaction: nothing of
 * ours may then run on its own. */
static void after_a_rollback_behind_the_back(const char *level)
{
    session s, other;
    dibs_error err = {0};
    dibs_sql_change change = {
        .table = "stock", .set = "left_over = 0", .row = "item = 1", .still = "left_over > 0"};

    session_open(&s);
    session_open(&other);
    start_over(&s);
    session_begin(&other, level);
    session_say(&other, "SELECT 1 FROM stock WHERE item = 1 FOR UPDATE");
    session_begin(&s, level);
    session_say(&s, "SET innodb_lock_wait_timeout = 1");
    must(!session_try(&s, "UPDATE stock SET left_over = 1 WHERE item = 1")); /* rolls back */
    session_commit(&other);
    must_be(dibs_sql_fence_pass(s.db, "r", 5, 0, &err), DIBS_INVALID, &err);
    must(session_number(&other, "SELECT COUNT(*) FROM dibs_fence") == 0);

    session_begin(&other, level);
    session_say(&other, "SELECT 1 FROM stock WHERE item = 1 FOR UPDATE");
    session_begin(&s, level);
    must(!session_try(&s, "UPDATE stock SET left_over = 1 WHERE item = 1"));
    session_commit(&other);
    must_be(dibs_sql_update(s.db, &change, &err), DIBS_INVALID, &err);
    must(session_number(&other, "SELECT left_over FROM stock WHERE item = 1") == 50);

    /* Our own wait under the session's bound: told that everything is gone. */
    session_begin(&other, level);
    must_be(dibs_sql_fence_pass(other.db, "r", 5, 0, &err), DIBS_OK, &err);
    session_begin(&s, level);
    must_be(dibs_sql_fence_pass(s.db, "r", 5, 0, &err), DIBS_RESTART, &err);
    printf("# %s\n", err.message);
    session_rollback(&s);
    session_commit(&other);
    session_close(&s);
    session_close(&other);
}

#define SHARERS_MAX 100
#define KEYS_MAX    2000

/* InnoDB splits no page when locks have left less than a quarter of its buffer pool (see session.c). */
static bool is_full_of_locks(session *s)
{
    return session_number(s,
                          "SELECT 4 * SUM(IF(variable_name LIKE '%%TOTAL', 0, variable_value)) < "
                          "SUM(IF(variable_name LIKE '%%TOTAL', variable_value, 0)) "
                          "FROM information_schema.global_status WHERE variable_name IN "
                          "('INNODB_BUFFER_POOL_PAGES_TOTAL', 'INNODB_BUFFER_POOL_PAGES_DATA', "
                          "'INNODB_BUFFER_POOL_PAGES_FREE')") == 1;
}

static int fill_with_locks(session *s, session sharer[])
{
    int n = 0;

    session_say(s, "CREATE TABLE wide (id INT PRIMARY KEY, pad CHAR(200) NOT NULL DEFAULT '')");
    session_say(s, "INSERT INTO wide (id) SELECT seq FROM seq_1_to_60000");
    while (!is_full_of_locks(s)) {
        must(n < SHARERS_MAX);
        session_open(&sharer[n]);
        session_begin(&sharer[n], "REPEATABLE READ");
        session_say(&sharer[n++], "SELECT COUNT(*) FROM wide LOCK IN SHARE MODE");
    }
    return n;
}

/* Error 1206 rolls back what came before in the same transaction: the caller is told. It comes when the table of keys
 * needs one more page. */
static void the_table_of_locks_is_full(const char *level)
{
    static session sharer[SHARERS_MAX];
    session s, other;
    dibs_error err = {0};
    dibs_status status = DIBS_OK;
    int sharers, keys = 0;

    session_open(&s);
    session_open(&other);
    start_over(&s);
    sharers = fill_with_locks(&other, sharer);
    session_begin(&s, level);
    session_say(&s, "INSERT INTO note (id) VALUES (1)");
    while (status == DIBS_OK && keys < KEYS_MAX) {
        char name[200];
        snprintf(name, sizeof name, "%0150d", ++keys);
        status = dibs_sql_once(s.db, name, NULL, NULL, &err);
    }
    printf("# %d sessions, %d keys: %s\n", sharers, keys, err.message);
    must_be(status, DIBS_UNAVAILABLE, &err);
    must(strcmp(err.engine_code, "1206") == 0);
    session_say(&s, "INSERT INTO note (id) VALUES (2)"); /* stands alone */
    session_rollback(&s);
    while (sharers > 0)
        session_close(&sharer[--sharers]);
    must(session_number(&other, "SELECT SUM(id) FROM note") == 2);
    must(session_number(&other, "SELECT COUNT(*) FROM dibs_once") == 0);
    session_say(&other, "DROP TABLE wide");
    session_close(&s);
    session_close(&other);
}

/* ---- Old snapshots -----------------------------------------------------------------------------
 */

static void read_before(const char *level)
{
    session early, next;
    dibs_error err = {0};

    session_open(&early);
    session_open(&next);
    start_over(&early);
    session_begin(&early, level);
    session_number(&early, "SELECT left_over FROM stock WHERE item = 1");
    session_begin(&next, level);
    must_be(dibs_sql_lock(next.db, "stock:1", 0, &err), DIBS_OK, &err);
    session_say(&next, "UPDATE stock SET left_over = 7 WHERE item = 1");
    session_commit(&next);
    must_be(dibs_sql_lock(early.db, "stock:1", 0, &err),
            is_snapshot(level) ? DIBS_RESTART : DIBS_OK, &err);
    session_rollback(&early);
    session_close(&early);
    session_close(&next);
}

/* innodb_snapshot_isolation: the server itself refuses, and rolls everything back. */
static void server_refuses(const char *level)
{
    session early, next;
    dibs_error err = {0};
    dibs_sql_change change = {
        .table = "stock", .set = "left_over = 0", .row = "item = 1", .still = "left_over > 0"};

    if (!is_snapshot(level))
        skip();
    session_open(&early);
    session_open(&next);
    start_over(&early);
    if (!session_try(&early, "SET innodb_snapshot_isolation = ON"))
        skip(); /* an older server */
    for (int i = 0; i < 2; i++) {
        session_begin(&early, level);
        session_number(&early, "SELECT left_over FROM stock WHERE item = 1");
        session_begin(&next, level);
        must_be(dibs_sql_lock(next.db, "stock:1", 0, &err), DIBS_OK, &err);
        session_say(&next, "UPDATE stock SET left_over = left_over - 1 WHERE item = 1");
        session_commit(&next);
        must_be(i == 0 ? dibs_sql_lock(early.db, "stock:1", 0, &err)
                       : dibs_sql_update(early.db, &change, &err),
                DIBS_RESTART, &err);
        session_rollback(&early);
    }
    must(session_number(&next, "SELECT left_over FROM stock WHERE item = 1") == 48);
    session_close(&early);
    session_close(&next);
}

const sql_test sql_lock[] = {
    {"a lock excludes", excludes, false, ALL},
    {"the bound is kept, the transaction and its settings too", bound_is_kept, false, ALL},
    {"names are apart", names_are_apart, false, SERVERS},
    {"a lock ends with its transaction", ends_with_transaction, false, ALL},
    {"a deadlock is told as such", deadlock_is_reported, false, SERVERS},
    {"nothing runs after a rollback behind the back", after_a_rollback_behind_the_back, false,
     ONLY_MARIADB},
    {"mariadb: the table of locks is full", the_table_of_locks_is_full, true, ONLY_MARIADB},
    {"a read before the lock is told when it is old", read_before, false, SERVERS},
    {"mariadb: the server refuses an old snapshot", server_refuses, false, ONLY_MARIADB},
    {0},
};
