/* A batch as one pipeline: everything is written before the first answer is read, and one Sync
 * ends it.
 *
 * Statements of a session of our own are prepared when they are first used, in the same pipeline.
 * Arguments and rows are in the server's binary form. Without a BEGIN the statements up to the
 * Sync are one transaction, which the Sync commits.
 *
 * It fails in three ways. A statement fails: the rest is skipped, the transaction is rolled back,
 * surely not done. The connection ends, or `until` comes, while a commit may be on its way:
 * unknown. The same before that: surely not done, because the server rolls back what its client
 * left. */
#define _GNU_SOURCE
#include "engines/postgresql/postgresql.h"

#include "core/error.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ARGS  24
#define MOST_CELLS 32

#define GRACE (200 * DIBS__MS) /* for a rollback after the caller's deadline */

#define WAKE_ARG 5 /* where JOIN, WAITER_ADD and WAITER_SET have it */

#define OID_BYTEA 17
#define OID_INT8  20
#define OID_INT4  23

/* Statements of our own. They are numbered after the others. */
enum { BEGIN = DIBS__PG_TEXTS, SNAPSHOT, COMMIT, ROLLBACK, ASYNC, SYNC, LIMITS, ROW_WAIT };
_Static_assert(ROW_WAIT < 64, "a session's prepared statements are the bits of 64");

typedef struct exchange {
    dibs__pg_conn *c;
    const dibs__sql_batch *b;
    dibs__deadline until;
    dibs_error *err;
    int unsent; /* as PQflush says */
    dibs_status status;
    bool again;
    bool row_failed;
} exchange;

/* ---- Arguments ------------------------------------------------------------------------------- */

typedef struct arguments {
    int count;
    const char *value[MOST_ARGS];
    int length[MOST_ARGS];
    int format[MOST_ARGS];
    uint64_t number[MOST_ARGS];
} arguments;

static size_t list_size(const dibs__sql_value *v)
{
    size_t size = 20;

    for (size_t i = 0; i < v->size; i++)
        size += 4 + (v->items[i].kind == DIBS__SQL_NUMBER ? 8 : v->items[i].size);
    return size;
}

static char *put32(char *at, uint32_t n)
{
    n = htobe32(n);
    memcpy(at, &n, 4);
    return at + 4;
}

/* A one-dimensional array: dimensions, NULLs?, type, length, lower bound, elements. */
static char *put_list(char *at, const dibs__sql_value *v)
{
    bool numbers = v->items[0].kind == DIBS__SQL_NUMBER;

    at = put32(at, 1);
    at = put32(at, 0);
    at = put32(at, numbers ? OID_INT8 : OID_BYTEA);
    at = put32(at, (uint32_t)v->size);
    at = put32(at, 1);
    for (size_t i = 0; i < v->size; i++) {
        const dibs__sql_value *item = &v->items[i];
        uint64_t n = htobe64((uint64_t)item->number);
        size_t size = numbers ? 8 : item->size;
        at = put32(at, (uint32_t)size);
        memcpy(at, numbers ? (const char *)&n : item->bytes, size);
        at += size;
    }
    return at;
}

/* Room for all lists of a command at once, so that it does not move under them. */
static bool reserve_lists(dibs__pg_conn *c, const dibs__sql_value *v, size_t count)
{
    size_t size = 0;
    char *larger;

    for (size_t i = 0; i < count; i++)
        if (v[i].kind == DIBS__SQL_LIST)
            size += list_size(&v[i]);
    if (size <= c->args_room)
        return true;
    larger = realloc(c->args, size);
    if (!larger)
        return false;
    c->args = larger;
    c->args_room = size;
    return true;
}

static void encode(dibs__pg_conn *c, const dibs__sql_value *v, size_t count, arguments *out)
{
    char *at = c->args;

    out->count = (int)count;
    for (size_t i = 0; i < count; i++) {
        out->format[i] = 1;
        out->value[i] = NULL;
        out->length[i] = 0;
        if (v[i].kind == DIBS__SQL_NUMBER) {
            out->number[i] = htobe64((uint64_t)v[i].number);
            out->value[i] = (const char *)&out->number[i];
            out->length[i] = 8;
        } else if (v[i].kind == DIBS__SQL_BYTES) {
            out->value[i] = v[i].bytes;
            out->length[i] = (int)v[i].size;
        } else if (v[i].kind == DIBS__SQL_LIST) {
            out->value[i] = at;
            at = put_list(at, &v[i]);
            out->length[i] = (int)(at - out->value[i]);
        }
    }
}

/* ---- Sending --------------------------------------------------------------------------------- */

static bool expect(dibs__pg_conn *c, int32_t what)
{
    if (c->expected == c->expect_room) {
        size_t room = c->expect_room ? c->expect_room * 2 : 64;
        int32_t *larger = realloc(c->expect, room * sizeof *larger);
        if (!larger)
            return false;
        c->expect = larger;
        c->expect_room = room;
    }
    c->expect[c->expected++] = what;
    return true;
}

static const char *text_of(const dibs__pg_conn *c, int statement)
{
    static const char *const texts[] = {
        [BEGIN] = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
        [SNAPSHOT] = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        [COMMIT] = "COMMIT",
        [ROLLBACK] = "ROLLBACK",
        [ASYNC] = "SET LOCAL synchronous_commit = off",
        [SYNC] = "SET LOCAL synchronous_commit = on",
        [LIMITS] = "SELECT set_config('lock_timeout', '" DIBS__PG_TEXT(
            DIBS__PG_ROW_MS) "', true), "
                             "set_config('idle_in_transaction_session_timeout', '2000', true)",
        [ROW_WAIT] = "SELECT set_config('lock_timeout', $1, true)",
    };

    return statement < DIBS__PG_TEXTS ? ((dibs__pg *)c->base.e)->text[statement] : texts[statement];
}

/* `command` is its number in the batch, -1 for those that have none. */
static bool send_statement(dibs__pg_conn *c, int statement, int32_t command, const arguments *a)
{
    char name[16];

    if (c->pooled)
        return PQsendQueryParams(c->pg, text_of(c, statement), a->count, NULL, a->value, a->length,
                                 a->format, 1) &&
               expect(c, command);
    snprintf(name, sizeof name, "dibs%d", statement);
    if (!(c->prepared >> statement & 1)) {
        if (!PQsendPrepare(c->pg, name, text_of(c, statement), 0, NULL) ||
            !expect(c, -2 - statement))
            return false;
        c->prepared |= (uint64_t)1 << statement; /* taken back if it fails */
    }
    return PQsendQueryPrepared(c->pg, name, a->count, a->value, a->length, a->format, 1) &&
           expect(c, command);
}

static bool send_plain(dibs__pg_conn *c, int statement)
{
    static const arguments none;

    return send_statement(c, statement, -1, &none);
}

/* A list of one needs no array. */
static int statement_of(dibs__sql_op op, dibs__sql_value v[2])
{
    if ((op != DIBS__SQL_HOLDER_DROP && op != DIBS__SQL_WAITER_DROP) || v[1].size != 1)
        return (int)op;
    v[1] = v[1].items[0];
    return op == DIBS__SQL_HOLDER_DROP ? DIBS__PG_HOLDER_DROP_ONE : DIBS__PG_WAITER_DROP_ONE;
}

/* ---- Whose session is to be woken ------------------------------------------------------------ */

static bool reserve_bell(dibs__pg_conn *c)
{
    size_t room = c->bell_room ? c->bell_room * 2 : 4;
    dibs__pg_bell *larger;

    if (c->bells < c->bell_room)
        return true;
    larger = realloc(c->bell, room * sizeof *larger);
    if (!larger)
        return false;
    c->bell = larger;
    c->bell_room = room;
    return true;
}

/* False: it is woken in another way, or not by us. Without memory it finds out at its next keep-alive. */
static bool note_bell(dibs__pg_conn *c, const dibs__sql_value *wake)
{
    char text[DIBS__WAKE_SIZE];
    dibs__pg_bell bell;
    const char *dot;

    dibs__sql_read_text(wake, text, sizeof text);
    dot = strchr(text, '.');
    if (!dot || sscanf(dot, ".%" SCNd64 ".%" SCNd64, &bell.pid, &bell.start) != 2)
        return false;
    if (reserve_bell(c))
        c->bell[c->bells++] = bell;
    return true;
}

/* The new holder's. */
static void note_handed(dibs__pg_conn *c, const dibs__sql_value *wake)
{
    char text[DIBS__WAKE_SIZE];

    dibs__sql_read_text(wake, text, sizeof text);
    c->rings = !dibs__sql_is_ours(c->base.e, text) && note_bell(c, wake);
}

static bool enters_queue(dibs__sql_op op)
{
    return op == DIBS__SQL_JOIN || op == DIBS__SQL_WAITER_ADD || op == DIBS__SQL_WAITER_SET;
}

/* A waiter of ours: whoever wakes it must find the session that sleeps. */
static void name_sleeper(dibs__pg_conn *c, dibs__sql_value *wake)
{
    dibs__pg *e = (dibs__pg *)c->base.e;
    char text[DIBS__WAKE_SIZE];

    dibs__sql_read_text(wake, text, sizeof text);
    if (!dibs__sql_is_ours(&e->sql, text))
        return;
    dibs__pg_wake_text(e, c->wake);
    wake->bytes = c->wake;
    wake->size = strlen(c->wake);
}

static bool send_command(exchange *x, size_t i)
{
    dibs__pg_conn *c = x->c;
    const dibs__sql_command *command = &x->b->command[i];
    dibs__sql_value v[MOST_ARGS];
    arguments a;
    int statement;

    memcpy(v, dibs__sql_args(x->b, command), command->count * sizeof v[0]);
    if (command->op == DIBS__SQL_NOTIFY && note_bell(c, &v[0]))
        return true;
    statement = statement_of(command->op, v);
    if (enters_queue(command->op))
        name_sleeper(c, &v[WAKE_ARG]);
    if (!reserve_lists(c, v, command->count))
        return false;
    encode(c, v, command->count, &a);
    if (dibs__pg_takes_commit(command->op)) {
        a.value[a.count] = x->b->durable ? c->commit : "off";
        a.length[a.count] = (int)strlen(a.value[a.count]);
        a.format[a.count++] = 0;
    }
    if (command->op == DIBS__SQL_TOUCH) {
        dibs__pg_wake_text((dibs__pg *)c->base.e, c->wake);
        a.value[a.count] = c->wake;
        a.length[a.count] = (int)strlen(c->wake);
        a.format[a.count++] = 1;
    } else if (command->op == DIBS__SQL_HAND) { /* for this transaction only? */
        a.value[a.count] = c->ahead ? "false" : "true";
        a.length[a.count] = (int)strlen(a.value[a.count]);
        a.format[a.count++] = 0;
    }
    return send_statement(c, statement, (int32_t)i, &a);
}

/* In milliseconds, and the shortest that there is instead of none. */
static bool send_row_wait(dibs__pg_conn *c)
{
    int64_t ms = c->base.row_wait / DIBS__MS;
    arguments a = {.count = 1};
    char text[24];

    if (ms == DIBS__PG_ROW_MS)
        return true;
    a.length[0] = snprintf(text, sizeof text, "%lld", (long long)(ms > 0 ? ms : 1));
    a.value[0] = text;
    return send_statement(c, ROW_WAIT, -1, &a);
}

static bool send_beginning(exchange *x)
{
    dibs__sql_mode mode = x->b->mode;

    if (mode == DIBS__SQL_SNAPSHOT)
        return send_plain(x->c, SNAPSHOT);
    if (mode == DIBS__SQL_BEGIN && !send_plain(x->c, BEGIN))
        return false;
    if (mode == DIBS__SQL_MORE || mode == DIBS__SQL_END)
        return true;
    return (!x->c->pooled || send_plain(x->c, LIMITS)) && send_row_wait(x->c);
}

static bool send_end(exchange *x)
{
    dibs__sql_mode mode = x->b->mode;

    if (mode == DIBS__SQL_END && !x->b->durable && !send_plain(x->c, ASYNC))
        return false;
    if (mode == DIBS__SQL_END && x->b->durable && x->c->pooled && strcmp(x->c->commit, "on") == 0 &&
        !send_plain(x->c, SYNC))
        return false;
    if ((mode == DIBS__SQL_END || mode == DIBS__SQL_SNAPSHOT) && !send_plain(x->c, COMMIT))
        return false;
    return PQpipelineSync(x->c->pg);
}

/* One hand-over, and the last was to one who sleeps: the cancel goes along, behind the commit, and need not wait for us
 * to hear of it. */
static bool rings_ahead(const exchange *x)
{
    size_t hands = 0;

    for (size_t i = 0; i < x->b->count; i++)
        hands += x->b->command[i].op == DIBS__SQL_HAND;
    return hands == 1 && x->c->rings && !x->c->pooled && x->b->mode == DIBS__SQL_WHOLE;
}

static bool send_all(exchange *x)
{
    x->c->ahead = rings_ahead(x);
    if (!send_beginning(x))
        return false;
    for (size_t i = 0; i < x->b->count; i++)
        if (!send_command(x, i))
            return false;
    if (!send_end(x))
        return false;
    x->c->settled = x->c->expected;
    return !x->c->ahead || (send_plain(x->c, DIBS__PG_RING_NEXT) && PQpipelineSync(x->c->pg));
}

/* ---- Answers --------------------------------------------------------------------------------- */

/* 1: `out` is the next result, NULL at the end of one statement's; 0: no more answers will come. */
static int next_result(exchange *x, PGresult **out)
{
    PGconn *pg = x->c->pg;

    while (x->unsent > 0 || PQisBusy(pg)) {
        if (!dibs__pg_wait(x->c->base.e->base.env, pg, x->unsent > 0, x->until) ||
            !PQconsumeInput(pg))
            return 0;
        if (x->unsent > 0)
            x->unsent = PQflush(pg);
        if (x->unsent < 0)
            return 0;
    }
    *out = PQgetResult(pg);
    return 1;
}

static int64_t read_number(const PGresult *res, int row, int column, Oid type)
{
    const char *at = PQgetvalue(res, row, column);
    uint64_t wide;
    uint32_t narrow;

    if (type == OID_INT4) {
        memcpy(&narrow, at, sizeof narrow);
        return (int32_t)be32toh(narrow);
    }
    memcpy(&wide, at, sizeof wide);
    return (int64_t)be64toh(wide);
}

static int read_rows(exchange *x, const PGresult *res, size_t command)
{
    dibs__sql_value cells[MOST_CELLS];
    int columns = PQnfields(res);

    for (int row = 0; row < PQntuples(res); row++) {
        for (int i = 0; i < columns; i++) {
            Oid type = PQftype(res, i);
            cells[i] = (dibs__sql_value){.kind = DIBS__SQL_NULL};
            if (PQgetisnull(res, row, i))
                continue;
            if (type == OID_INT8 || type == OID_INT4)
                cells[i] = (dibs__sql_value){.kind = DIBS__SQL_NUMBER,
                                             .number = read_number(res, row, i, type)};
            else
                cells[i] = (dibs__sql_value){.kind = DIBS__SQL_BYTES,
                                             .bytes = PQgetvalue(res, row, i),
                                             .size = (size_t)PQgetlength(res, row, i)};
        }
        if (x->b->row && x->b->row(x->b->ctx, command, cells, (size_t)columns) < 0)
            return -1;
        if (x->b->command[command].op == DIBS__SQL_HAND)
            note_handed(x->c, &cells[1]);
    }
    return 0;
}

static void read_result(exchange *x, const PGresult *res, int32_t what)
{
    ExecStatusType status = PQresultStatus(res);

    if (status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK) {
        if (what >= 0 && !x->row_failed && read_rows(x, res, (size_t)what) < 0)
            x->row_failed = true;
        return;
    }
    if (what <= -2)
        x->c->prepared &= ~((uint64_t)1 << (-2 - what));
    if (status == PGRES_PIPELINE_ABORTED)
        return;
    if (x->status != DIBS_OK)
        return;
    x->status = dibs__pg_fault(res, &x->again, x->err);
    x->c->base.locked = dibs__pg_is_locked(res);
    if (what >= 0)
        x->c->base.culprit = (size_t)what;
}

/* The answers in their order, up to the Sync's. True: it came. `answered` counts statements. */
static bool read_answers(exchange *x, size_t *answered)
{
    PGresult *res;

    for (*answered = 0;;) {
        if (!next_result(x, &res))
            return false;
        if (!res) {
            ++*answered;
            if (*answered > x->c->expected)
                return false;
            continue;
        }
        if (PQresultStatus(res) == PGRES_PIPELINE_SYNC) {
            PQclear(res);
            return true;
        }
        read_result(x, res, *answered < x->c->expected ? x->c->expect[*answered] : -1);
        PQclear(res);
        if (PQstatus(x->c->pg) != CONNECTION_OK)
            return false;
    }
}

/* ---- The exchange ---------------------------------------------------------------------------- */

static bool commits(const dibs__sql_batch *b)
{
    return b->mode == DIBS__SQL_WHOLE || b->mode == DIBS__SQL_END;
}

/* The connection is over. What the server said before it went counts; without a word, a commit
 * that was on its way may have happened. The last statement of an END is the COMMIT itself; a
 * WHOLE is committed after its last. */
static dibs_status lost(exchange *x, size_t answered)
{
    size_t before_commit = x->c->expected - (x->b->mode == DIBS__SQL_END ? 1 : 0);
    bool refused = x->status != DIBS_OK && answered < before_commit;

    x->c->base.broken = true;
    x->c->base.again = refused && x->again;
    if (refused)
        return x->status;
    if (dibs__now(x->c->base.e->base.env) >= x->until)
        return dibs__fail(x->err, commits(x->b) ? DIBS_UNKNOWN : DIBS_UNAVAILABLE,
                          "postgresql: no answer from %s in time",
                          ((dibs__pg *)x->c->base.e)->address.label);
    return dibs__pg_fault_lost(x->c->pg, commits(x->b) ? DIBS_UNKNOWN : DIBS_UNAVAILABLE, x->err);
}

static dibs_status no_memory(exchange *x)
{
    x->c->base.broken = true; /* some of it may have been sent */
    return dibs__fail(x->err, DIBS_NO_MEMORY, "postgresql: out of memory");
}

/* ---- Waking others, once it is committed ----------------------------------------------------- */

/* What was sent behind the commit is answered after all else. */
static void ring_was_sent(dibs__pg_conn *c, size_t sent)
{
    if (!c->ahead)
        return;
    memmove(c->expect, c->expect + c->settled, (sent - c->settled) * sizeof *c->expect);
    c->expected = sent - c->settled;
    c->bells = 0;
    c->rung = true;
}

/* How it ends is nobody's concern: the answer is read before the next thing is asked. */
static void ring(dibs__pg_conn *c)
{
    c->expected = 0;
    for (size_t i = 0; i < c->bells; i++) {
        arguments a = {.count = 2};
        dibs__sql_value v[2] = {{.kind = DIBS__SQL_NUMBER, .number = c->bell[i].pid},
                                {.kind = DIBS__SQL_NUMBER, .number = c->bell[i].start}};
        encode(c, v, 2, &a);
        c->base.broken |= !send_statement(c, DIBS__PG_RING, -1, &a);
    }
    c->base.broken |= !PQpipelineSync(c->pg) || PQflush(c->pg) < 0;
    c->bells = 0;
    c->rung = true;
}

/* False: the connection is lost. */
static bool settle(dibs__pg_conn *c, dibs__deadline until)
{
    static const dibs__sql_batch nothing = {.mode = DIBS__SQL_MORE};
    dibs_error ignored;
    exchange x = {.c = c, .b = &nothing, .until = until, .err = &ignored};
    size_t answered;

    c->bells = 0;
    if (!c->rung)
        return true;
    c->rung = false;
    x.unsent = PQflush(c->pg);
    if (x.unsent < 0 || !read_answers(&x, &answered))
        c->base.broken = true;
    return !c->base.broken;
}

void dibs__pg_leave_pipeline(dibs__pg_conn *c, dibs__deadline until)
{
    if (PQpipelineStatus(c->pg) != PQ_PIPELINE_OFF && settle(c, until))
        PQexitPipelineMode(c->pg);
}

bool dibs__pg_ring(dibs__sql_conn *base, const char *wake, dibs__deadline until)
{
    dibs__pg_conn *c = (dibs__pg_conn *)base;
    dibs__sql_value text = {.kind = DIBS__SQL_BYTES, .bytes = wake, .size = strlen(wake)};

    if (!c || base->broken || PQpipelineStatus(c->pg) == PQ_PIPELINE_OFF || !settle(c, until) ||
        !note_bell(c, &text))
        return false;
    ring(c);
    return settle(c, until);
}

/* ---- The exchange itself ---------------------------------------------------------------------- */

dibs_status dibs__pg_exchange(dibs__sql_conn *base, const dibs__sql_batch *b, dibs__deadline until,
                              dibs_error *err)
{
    dibs__pg_conn *c = (dibs__pg_conn *)base;
    exchange x = {.c = c, .b = b, .until = until, .err = err};
    size_t answered, sent;

    if (!settle(c, until)) {
        base->again = true;
        return dibs__pg_fault_lost(c->pg, DIBS_UNAVAILABLE, err);
    }
    c->expected = 0;
    if (PQpipelineStatus(c->pg) == PQ_PIPELINE_OFF && !PQenterPipelineMode(c->pg))
        return no_memory(&x);
    if (!send_all(&x)) {
        if (PQstatus(c->pg) == CONNECTION_OK)
            return no_memory(&x);
        c->base.broken = c->base.again = true;
        return dibs__pg_fault_lost(c->pg, DIBS_UNAVAILABLE, err);
    }
    x.unsent = PQflush(c->pg);
    sent = c->expected;
    c->expected = c->settled;
    if (x.unsent < 0 || !read_answers(&x, &answered))
        return lost(&x, x.unsent < 0 ? 0 : answered);
    ring_was_sent(c, sent);
    base->again = x.again;
    if (x.status == DIBS_OK && x.row_failed)
        x.status = dibs__fail(err, commits(b) ? DIBS_UNKNOWN : DIBS_NO_MEMORY,
                              "postgresql: out of memory for the answer");
    if (x.status != DIBS_OK && PQtransactionStatus(c->pg) != PQTRANS_IDLE)
        dibs__pg_rollback(base, until);
    if (x.status == DIBS_OK && commits(b) && c->bells > 0)
        ring(c);
    return x.status;
}

void dibs__pg_rollback(dibs__sql_conn *base, dibs__deadline until)
{
    static const dibs__sql_batch nothing = {.mode = DIBS__SQL_MORE};
    dibs__pg_conn *c = (dibs__pg_conn *)base;
    dibs__deadline grace = dibs__after(base->e->base.env, GRACE);
    dibs_error ignored;
    exchange x = {.c = c, .b = &nothing, .until = grace > until ? grace : until, .err = &ignored};
    size_t answered;

    c->expected = 0;
    if (!send_plain(c, ROLLBACK) || !PQpipelineSync(c->pg) || (x.unsent = PQflush(c->pg)) < 0 ||
        !read_answers(&x, &answered) || x.status != DIBS_OK)
        c->base.broken = true;
}
