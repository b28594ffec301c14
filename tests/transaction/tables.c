/* Making the tables, and what happens without them, without a transaction, without a connection. */
#include "suite.h"

#include <sqlite3.h>

#include <stdio.h>
#include <string.h>

static void drop_ours(session *s)
{
    session_say(s, "DROP TABLE IF EXISTS dibs_fence");
    session_say(s, "DROP TABLE IF EXISTS dibs_turn");
    session_say(s, "DROP TABLE IF EXISTS dibs_once");
}

/* Each function in turn; the caller looks at the status. */
static dibs_status call(int i, dibs_sql db, dibs_error *err)
{
    dibs_sql_once_options scope = {.scope = "tables"};
    dibs_sql_change change = {
        .table = "stock", .set = "left_over = 0", .row = "item = 1", .still = "left_over > 0"};

    switch (i) {
    case 0:
        return dibs_sql_fence_pass(db, "tables", 5, 0, err);
    case 1:
        return dibs_sql_lock(db, "tables", 1000, err);
    case 2:
        return dibs_sql_lock(db, "tables", DIBS_NO_WAIT, err);
    case 3:
        return dibs_sql_once(db, "k", &scope, NULL, err);
    case 4:
        return dibs_sql_once_finish(db, "k", "r", 1, &scope, err);
    default:
        return dibs_sql_update(db, &change, err);
    }
}
#define CALLS 6

static void without_transaction(const char *level)
{
    session s;

    (void)level;
    session_open(&s);
    start_over(&s);
    for (int i = 0; i < CALLS; i++) {
        dibs_error err = {0};
        must_be(call(i, s.db, &err), DIBS_INVALID, &err);
        must(strstr(err.message, "no transaction is open"));
    }
    must(session_number(&s, "SELECT COUNT(*) FROM dibs_fence") == 0);
    must(session_number(&s, "SELECT COUNT(*) FROM dibs_once") == 0);
    must(session_number(&s, "SELECT left_over FROM stock WHERE item = 1") > 0);
    session_close(&s);
}

static void without_tables(const char *level)
{
    session s;
    dibs_error err = {0};

    session_open(&s);
    session_say(&s, "DELETE FROM note");
    drop_ours(&s);
    session_begin(&s, level);
    session_say(&s, "INSERT INTO note (id) VALUES (1)");
    for (int i = 0; i < CALLS - 1; i++) {
        must_be(call(i, s.db, &err), DIBS_NOT_FOUND, &err);
        must(strstr(err.message, "dibs_sql_prepare"));
    }
    session_commit(&s); /* the caller's own row is not thrown away */
    must(session_number(&s, "SELECT COUNT(*) FROM note") == 1);
    must_be(dibs_sql_prepare(s.db, &err), DIBS_OK, &err);
    session_close(&s);
}

static void prepare_in_thread(void *ctx, int i)
{
    session s;
    dibs_error err = {0};

    (void)ctx, (void)i;
    session_open(&s);
    must_be(dibs_sql_prepare(s.db, &err), DIBS_OK, &err);
    session_close(&s);
}

static void prepare_at_once(const char *level)
{
    session s;
    dibs_error err = {0};

    session_open(&s);
    drop_ours(&s);
    in_threads(4, prepare_in_thread, NULL);
    session_begin(&s, level);
    must_be(dibs_sql_lock(s.db, "a", 0, &err), DIBS_OK, &err);
    must_be(dibs_sql_prepare(s.db, &err), DIBS_INVALID, &err);
    if (!is_sqlite())
        in_threads(1, prepare_in_thread, NULL); /* does not wait for the slot that is held */
    session_commit(&s);
    session_close(&s);
}

/* What is printed for the DBA is what prepare does. */
static void schema_by_hand(const char *level)
{
    session s;
    dibs_error err = {0};
    char text[4096];

    session_open(&s);
    for (int times = 0; times < 2; times++) {
        if (times == 0)
            drop_ours(&s);
        snprintf(text, sizeof text, "%s", dibs_sql_schema(s.db));
        for (char *at = text, *end; (end = strstr(at, ";\n")); at = end + 2) {
            *end = '\0';
            session_say(&s, "%s", at);
        }
    }
    session_begin(&s, level);
    for (int i = 0; i < CALLS - 1; i++)
        must_be(call(i, s.db, &err), DIBS_OK, &err);
    session_rollback(&s);
    session_close(&s);
}

static void bad_input(const char *level)
{
    char name[DIBS_NAME_MAX + 2];
    dibs_error err = {0};
    session s;

    session_open(&s);
    start_over(&s);
    session_begin(&s, level);
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    must_be(dibs_sql_fence_pass(s.db, name, 1, 0, &err), DIBS_INVALID, &err);
    must_be(dibs_sql_fence_pass(s.db, "", 1, 0, &err), DIBS_INVALID, &err);
    must_be(dibs_sql_fence_pass(s.db, NULL, 1, 0, &err), DIBS_INVALID, &err);
    must_be(dibs_sql_fence_pass(s.db, "a", 0, 0, &err), DIBS_INVALID, &err);
    must_be(dibs_sql_fence_pass(s.db, "a", 3, 4, &err), DIBS_INVALID, &err);
    must_be(dibs_sql_fence_pass(s.db, "a", UINT64_MAX, 0, &err), DIBS_INVALID, &err);
    must_be(dibs_sql_lock(s.db, "a", -5, &err), DIBS_INVALID, &err);
    must_be(dibs_sql_once(s.db, NULL, NULL, NULL, &err), DIBS_INVALID, &err);
    must_be(dibs_sql_once(s.db, "", NULL, NULL, NULL), DIBS_INVALID, NULL);
    must_be(dibs_sql_lock((dibs_sql){0}, "a", 0, &err), DIBS_INVALID, &err);
    must_be(dibs_sql_lock((dibs_sql){s.db.driver, NULL}, "a", 0, &err), DIBS_INVALID, &err);
    name[DIBS_NAME_MAX] = '\0';
    must_be(dibs_sql_fence_pass(s.db, name, 1, 0, &err), DIBS_OK, &err);
    session_commit(&s);
    session_close(&s);
}

/* The server ends the session in the middle. */
static int interrupts(void *unused)
{
    (void)unused;
    return 1;
}

/* SQLite has rolled everything back: nobody is told that the transaction can go on. */
static void must_be_undone(session *s, dibs_status status, dibs_error *err)
{
    must_be(status, DIBS_UNAVAILABLE, err);
    must(strstr(err->message, "rolled the whole transaction back"));
    must_be(dibs_sql_lock(s->db, "a", 0, err), DIBS_INVALID, err); /* none is open */
    must(session_number(s, "SELECT COUNT(*) FROM note") == 0);
}

static void undone_by_sqlite(const char *level)
{
    static const char large[4 * 1024 * 1024];
    dibs_sql_once_options scope = {.scope = "s"};
    dibs_error err = {0};
    session s;

    session_open(&s);
    start_over(&s);
    session_begin(&s, level);
    session_say(&s, "INSERT INTO note (id) VALUES (1)");
    sqlite3_progress_handler(s.connection, 1, interrupts, NULL);
    dibs_status status = dibs_sql_once(s.db, "undone", &scope, NULL, &err);
    sqlite3_progress_handler(s.connection, 0, NULL, NULL);
    must_be_undone(&s, status, &err);

    session_begin(&s, level);
    session_say(&s, "INSERT INTO note (id) VALUES (1)");
    must_be(dibs_sql_once(s.db, "undone", &scope, NULL, &err), DIBS_OK, &err);
    session_say(&s, "PRAGMA max_page_count = 1"); /* as many as there are */
    status = dibs_sql_once_finish(s.db, "undone", large, sizeof large, &scope, &err);
    session_say(&s, "PRAGMA max_page_count = 1073741823");
    must_be_undone(&s, status, &err);
    session_close(&s);
}

static void connection_lost(const char *level)
{
    for (int i = 0; i < CALLS; i++) {
        session s, killer;
        dibs_error err = {0};
        int64_t id;
        session_open(&s);
        session_open(&killer);
        id = session_id(&s);
        session_begin(&s, level);
        session_say(&s, "INSERT INTO note (id) VALUES (99)");
        session_say(&killer, is_postgresql() ? "SELECT pg_terminate_backend(%lld)" : "KILL %lld",
                    (long long)id);
        must_be(call(i, s.db, &err), DIBS_UNAVAILABLE, &err);
        must_be(call(i, s.db, &err), DIBS_UNAVAILABLE, &err);
        must(session_number(&killer, "SELECT COUNT(*) FROM note WHERE id = 99") == 0);
        session_close(&s);
        session_close(&killer);
    }
}

const sql_test sql_tables[] = {
    {"without a transaction all is refused", without_transaction, true, ALL},
    {"a missing table is told, and the transaction goes on", without_tables, false, ALL},
    {"the tables are made by several at once", prepare_at_once, false, ALL},
    {"the schema for the DBA works", schema_by_hand, false, ALL},
    {"bad input is refused", bad_input, true, ALL},
    {"a lost connection is told", connection_lost, false, SERVERS},
    {"sqlite: what it has rolled back is told", undone_by_sqlite, true, ONLY_SQLITE},
    {0},
};
