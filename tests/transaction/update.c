/* The versioned update: by version, by timestamp, by condition. */
#include "suite.h"

#include <stdio.h>
#include <string.h>

#define BUYERS 8
#define ROUNDS 20

static dibs_status apply(session *s, dibs_sql_change *c, const dibs_sql_value *values, size_t count,
                         dibs_error *err)
{
    c->values = values;
    c->value_count = count;
    return dibs_sql_update(s->db, c, err);
}

static dibs_sql_change by_version(void)
{
    return (dibs_sql_change){.table = "stock",
                             .set = "left_over = left_over - ?, version = version + 1",
                             .row = "item = ?",
                             .still = "version = ?"};
}

/* Sells one by the version that was read. */
static dibs_status sell_version(session *s, int64_t version, dibs_error *err)
{
    dibs_sql_change c = by_version();
    dibs_sql_value v[] = {dibs_sql_integer(1), dibs_sql_integer(1), dibs_sql_integer(version)};

    return apply(s, &c, v, 3, err);
}

static void done_conflict_not_found(const char *level)
{
    session s;
    dibs_error err = {0};
    dibs_sql_change c = by_version();
    dibs_sql_value missing[] = {dibs_sql_integer(1), dibs_sql_integer(2), dibs_sql_integer(0)};

    session_open(&s);
    start_over(&s);
    session_begin(&s, level);
    must_be(sell_version(&s, 0, &err), DIBS_OK, &err);
    must_be(sell_version(&s, 0, &err), DIBS_CONFLICT, &err);
    must_be(sell_version(&s, 1, &err), DIBS_OK, &err);
    must_be(apply(&s, &c, missing, 3, &err), DIBS_NOT_FOUND, &err);
    session_commit(&s);
    must(session_number(&s, "SELECT left_over FROM stock WHERE item = 1") == 48);
    session_close(&s);
}

/* The caller's own mistakes: told, and the transaction goes on. */
static void mistakes(const char *level)
{
    session s;
    dibs_error err = {0};
    dibs_sql_value v[] = {dibs_sql_integer(1), dibs_sql_integer(1), dibs_sql_integer(0)};
    dibs_sql_change c = by_version();

    session_open(&s);
    start_over(&s);
    session_say(&s, "INSERT INTO stock (item, left_over, version) VALUES (2, 50, 0)");
    session_begin(&s, level);
    session_say(&s, "INSERT INTO note (id) VALUES (1)");
    must_be(apply(&s, &c, v, 2, &err), DIBS_INVALID, &err);
    c.table = "no_such_table";
    must_be(apply(&s, &c, v, 3, &err), DIBS_INVALID, &err);
    c = by_version();
    c.set = "no_such_column = ?";
    must_be(apply(&s, &c, v, 3, &err), DIBS_INVALID, &err);
    c = by_version();
    c.set = "item = ? + 1"; /* as the other row's */
    must_be(apply(&s, &c, v, 3, &err), DIBS_INVALID, &err);
    c = by_version();
    c.row = NULL;
    must_be(apply(&s, &c, v, 3, &err), DIBS_INVALID, &err);
    c = by_version();
    c.row = "item >= ?";
    v[2] = dibs_sql_integer(7);
    must_be(apply(&s, &c, v, 3, &err), DIBS_INVALID, &err); /* two rows, none changed */
    session_commit(&s);
    must(session_number(&s, "SELECT COUNT(*) FROM note") == 1);
    must(session_number(&s, "SELECT SUM(left_over) FROM stock") == 100);

    session_begin(&s, level);
    v[2] = dibs_sql_integer(0);
    must_be(apply(&s, &c, v, 3, &err), DIBS_INVALID, &err); /* two rows, both changed */
    must(strstr(err.message, "roll this back"));
    session_rollback(&s);
    session_close(&s);
}

/* Values of every kind; a ? inside quotes is text. */
static void values(const char *level)
{
    session s;
    dibs_error err = {0};
    dibs_sql_change c = {.table = "note", .set = "body = ?", .row = "id = ?"};
    dibs_sql_value odd[] = {dibs_sql_text("o'?\\ \"\xc3\xa4"), dibs_sql_integer(1)};
    dibs_sql_value back[] = {dibs_sql_text(NULL), dibs_sql_integer(1),
                             dibs_sql_text("o'?\\ \"\xc3\xa4")};
    dibs_sql_value last[] = {dibs_sql_integer(1)};

    session_open(&s);
    start_over(&s);
    session_say(&s, "INSERT INTO note (id, body) VALUES (1, 'what?')");
    session_begin(&s, level);
    c.still = "body = 'what?'";
    must_be(apply(&s, &c, odd, 2, &err), DIBS_OK, &err);
    c.still = "body = ?";
    must_be(apply(&s, &c, back, 3, &err), DIBS_OK, &err);
    c.set = "body = 'end'";
    c.still = "body IS NULL";
    must_be(apply(&s, &c, last, 1, &err), DIBS_OK, &err);
    c.still = "body = 'end'"; /* nothing to change: done all the same, on MariaDB too */
    must_be(apply(&s, &c, last, 1, &err), DIBS_OK, &err);
    session_commit(&s);
    must(session_number(&s, "SELECT COUNT(*) FROM note WHERE body = 'end'") == 1);
    session_close(&s);
}

/* A change that leaves its mark can be asked for again when the commit's answer was lost. */
static void made_before(const char *level)
{
    session s;
    dibs_error err = {0};
    dibs_sql_change c = {.table = "stock",
                         .set = "left_over = left_over - ?, version = version + 1, request = ?",
                         .row = "item = ?",
                         .still = "version = ?",
                         .made = "request = ?"};
    dibs_sql_value v[] = {dibs_sql_integer(1), dibs_sql_text("req-1"), dibs_sql_integer(1),
                          dibs_sql_integer(0), dibs_sql_text("req-1")};

    session_open(&s);
    start_over(&s);
    session_begin(&s, level);
    must_be(apply(&s, &c, v, 5, &err), DIBS_OK, &err);
    session_commit(&s);
    session_begin(&s, level);
    must_be(apply(&s, &c, v, 5, &err), DIBS_ALREADY, &err);
    v[1] = v[4] = dibs_sql_text("req-2");
    must_be(apply(&s, &c, v, 5, &err), DIBS_CONFLICT, &err);
    session_commit(&s);
    must(session_number(&s, "SELECT left_over FROM stock WHERE item = 1") == 49);
    session_close(&s);
}

/* ---- Buyers at once ----------------------------------------------------------------------------
 */

typedef enum scheme { VERSION, TIMESTAMP, CONDITION } scheme;

typedef struct market {
    const char *level;
    scheme scheme;
    _Atomic int sold, conflicts, restarted;
} market;

/* A clock that can stand still: what was read, plus one when it did not move. */
static dibs_status sell_timestamp(session *s, int64_t read, dibs_error *err)
{
    dibs_sql_change c = {.table = "stock",
                         .set = "left_over = left_over - 1, changed = ?",
                         .row = "item = 1",
                         .still = "changed = ?"};
    dibs_sql_value v[] = {dibs_sql_integer(read + 1), dibs_sql_integer(read)};

    return apply(s, &c, v, 2, err);
}

static dibs_status sell_condition(session *s, dibs_error *err)
{
    dibs_sql_change c = {.table = "stock",
                         .set = "left_over = left_over - 1",
                         .row = "item = 1",
                         .still = "left_over >= 1"};

    return apply(s, &c, NULL, 0, err);
}

static dibs_status sell_one(session *s, const market *m)
{
    dibs_error err = {0};
    dibs_status status;
    int64_t read;

    session_begin(s, m->level);
    read = session_number(s, m->scheme == TIMESTAMP ? "SELECT changed FROM stock WHERE item = 1"
                                                    : "SELECT version FROM stock WHERE item = 1");
    status = m->scheme == VERSION     ? sell_version(s, read, &err)
             : m->scheme == TIMESTAMP ? sell_timestamp(s, read, &err)
                                      : sell_condition(s, &err);
    if (status == DIBS_OK)
        session_commit(s);
    else
        session_rollback(s);
    if (status != DIBS_OK && !must_start_again(status))
        must_be(status, DIBS_CONFLICT, &err);
    return status;
}

/* Buys until ROUNDS were got, or until there is nothing left. */
static void buy(void *ctx, int i)
{
    market *m = ctx;
    session s;

    (void)i;
    session_open(&s);
    for (int got = 0; got < ROUNDS;) {
        dibs_status status = sell_one(&s, m);
        got += status == DIBS_OK;
        m->sold += status == DIBS_OK;
        m->conflicts += status == DIBS_CONFLICT;
        m->restarted += must_start_again(status);
        if (status == DIBS_CONFLICT &&
            session_number(&s, "SELECT left_over FROM stock WHERE item = 1") == 0)
            break;
    }
    session_close(&s);
}

static void run_market(const char *level, scheme how, int64_t stock)
{
    market m = {.level = level, .scheme = how};
    session s;

    session_open(&s);
    start_over(&s);
    session_say(&s, "UPDATE stock SET left_over = %lld", (long long)stock);
    in_threads(BUYERS, buy, &m);
    printf("# %d sold, %d conflicts, %d restarted\n", m.sold, m.conflicts, m.restarted);
    must(m.sold == (stock < BUYERS * ROUNDS ? stock : BUYERS * ROUNDS));
    must(session_number(&s, "SELECT left_over FROM stock WHERE item = 1") == stock - m.sold);
    must(m.restarted == 0);
    if (how == VERSION)
        must(session_number(&s, "SELECT version FROM stock WHERE item = 1") == m.sold);
    session_close(&s);
}

static void optimistic_version(const char *level)
{
    run_market(level, VERSION, BUYERS * ROUNDS);
}

static void optimistic_timestamp(const char *level)
{
    run_market(level, TIMESTAMP, BUYERS * ROUNDS);
}

static void optimistic_condition(const char *level)
{
    run_market(level, CONDITION, BUYERS * ROUNDS - 30); /* not enough for all */
}

/* The check is against the newest row, not against an old snapshot. */
static void newest_counts(const char *level)
{
    session early, next;
    dibs_error err = {0};

    session_open(&early);
    session_open(&next);
    start_over(&early);
    session_begin(&early, level);
    session_say(&early, "INSERT INTO note (id) VALUES (1)");
    must(session_number(&early, "SELECT version FROM stock WHERE item = 1") == 0);
    session_begin(&next, level);
    must_be(sell_version(&next, 0, &err), DIBS_OK, &err);
    session_commit(&next);
    must_be(sell_version(&early, 0, &err), DIBS_CONFLICT, &err);
    session_commit(&early); /* the conflict did not throw the transaction away */
    must(session_number(&early, "SELECT COUNT(*) FROM note") == 1);
    must(session_number(&early, "SELECT version FROM stock WHERE item = 1") == 1);
    session_close(&early);
    session_close(&next);
}

/* A trigger that keeps the row as it is: nothing was changed, and that is told. */
static void kept_by_a_trigger(const char *level)
{
    session s;
    dibs_error err = {0};

    session_open(&s);
    start_over(&s);
    if (is_postgresql()) {
        session_say(&s, "CREATE OR REPLACE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS "
                        "'BEGIN RETURN NULL; END'");
        session_say(&s, "CREATE TRIGGER keeper BEFORE UPDATE ON stock FOR EACH ROW EXECUTE "
                        "FUNCTION keep()");
    } else {
        session_say(&s, "CREATE TRIGGER keeper BEFORE UPDATE ON stock "
                        "BEGIN SELECT RAISE(IGNORE); END");
    }
    session_begin(&s, level);
    session_say(&s, "INSERT INTO note (id) VALUES (1)");
    must_be(sell_version(&s, 0, &err), DIBS_DENIED, &err);
    must(strstr(err.message, "trigger"));
    session_commit(&s); /* it can go on */
    session_say(&s, is_postgresql() ? "DROP TRIGGER keeper ON stock" : "DROP TRIGGER keeper");
    must(session_number(&s, "SELECT COUNT(*) FROM note") == 1);
    must(session_number(&s, "SELECT version FROM stock WHERE item = 1") == 0);
    session_close(&s);
}

const sql_test sql_update[] = {
    {"done, conflict, not found", done_conflict_not_found, false, ALL},
    {"mistakes are told, the transaction goes on", mistakes, false, ALL},
    {"values of every kind", values, false, ALL},
    {"a change that was made before", made_before, false, ALL},
    {"optimistic by version", optimistic_version, false, ALL},
    {"optimistic by timestamp", optimistic_timestamp, false, ALL},
    {"optimistic by condition", optimistic_condition, false, ALL},
    {"the newest row counts", newest_counts, false, SERVERS},
    {"a row that a trigger keeps is not called changed", kept_by_a_trigger, false, NO_MARIADB},
    {0},
};
