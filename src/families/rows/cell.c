/* Cells and counters.
 *
 * First try, one exchange: a statement that changes the cell if nothing stands in its way, and a look.
 * Did it change, that is the answer; else the machine is asked about what the look found, and mostly
 * it has no wish to write: the answer is a refusal, or a reply that was lost. Only when it would write
 * (a counter that is not there yet, a cell that changed between the two statements) follows the second
 * way, two exchanges: lock and look, then what the machine decided.
 *
 * Every command is alone in its transaction: a swap is done when it is on record. */
#define _GNU_SOURCE
#include "families/rows/inner.h"

#include "core/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_TRIES 8
#define DAY        ((int64_t)24 * 3600 * DIBS__SECOND)

/* Where the columns of a look are. */
enum { VERSION, FLOOR, WRITTEN, EXPIRES, NUMBER, COUNTER, EMPTY, STAMP, DATA, ANSWER, CLOCK };

typedef struct cell_job {
    const char *key;
    const dibs__cell_command *command;
    const char *stamp;  /* never NULL */
    const char *notify; /* NULL: nobody */
    const dibs__sql_batch *batch;
    dibs__cell_reply *out;
    /* What the database answered. */
    bool changed, locked, exists;
    dibs__cell cell;
    void *data; /* the cell's */
    bool answered;
    int64_t answer; /* to the request */
    dibs__time now;
    /* What the machine wants. */
    bool puts, drops, remembers;
    dibs__cell put;
    int64_t number, until; /* of the request */
    dibs__cell_answer reply;
} cell_job;

/* ---- What the database answered -------------------------------------------------------------- */

static int read_data(cell_job *w, const dibs__sql_value *cell)
{
    size_t size = cell->kind == DIBS__SQL_BYTES ? cell->size : 0;
    void *data = malloc(size + 1);

    if (!data)
        return -1;
    if (size)
        memcpy(data, cell->bytes, size);
    free(w->data);
    w->data = data;
    w->cell.data = data;
    w->cell.size = size;
    return 0;
}

static int read_look(cell_job *w, const dibs__sql_value *cells)
{
    w->now = (dibs__time){cells[CLOCK].number, cells[CLOCK].number};
    w->answered = cells[ANSWER].kind == DIBS__SQL_NUMBER;
    w->answer = cells[ANSWER].number;
    w->exists = cells[VERSION].kind == DIBS__SQL_NUMBER;
    memset(&w->cell, 0, sizeof w->cell);
    if (!w->exists)
        return 0;
    w->cell.version = (uint64_t)cells[VERSION].number;
    w->cell.floor = (uint64_t)cells[FLOOR].number;
    w->cell.written = cells[WRITTEN].number;
    w->cell.expires = cells[EXPIRES].number;
    w->cell.number = cells[NUMBER].number;
    w->cell.counter = cells[COUNTER].number != 0;
    w->cell.empty = cells[EMPTY].number != 0;
    dibs__sql_read_text(&cells[STAMP], w->cell.stamp, sizeof w->cell.stamp);
    return read_data(w, &cells[DATA]);
}

static int on_row(void *ctx, size_t command, const dibs__sql_value *cells, size_t count)
{
    cell_job *w = ctx;

    (void)count;
    switch (w->batch->command[command].op) {
    case DIBS__SQL_CELL_LOOK:
        return read_look(w, cells);
    case DIBS__SQL_CELL_LOCK:
        w->locked = true;
        return 0;
    case DIBS__SQL_CELL_PASS:
        return 0; /* the look tells */
    default:
        w->changed = true;
        return 0;
    }
}

/* ---- The machine's store over that ----------------------------------------------------------- */

static int load(void *ctx, dibs__cell *out)
{
    cell_job *w = ctx;

    *out = w->cell;
    return w->exists;
}

static int put(void *ctx, const dibs__cell *cell)
{
    cell_job *w = ctx;

    w->puts = true;
    w->put = *cell;
    return 0;
}

static int drop(void *ctx)
{
    ((cell_job *)ctx)->drops = true;
    return 0;
}

static int request_find(void *ctx, const char *request, int64_t now, int64_t *number)
{
    cell_job *w = ctx;

    (void)request;
    (void)now; /* the look leaves out those that have ended */
    *number = w->answer;
    return w->answered;
}

static int request_put(void *ctx, const char *request, int64_t number, int64_t expires)
{
    cell_job *w = ctx;

    (void)request;
    w->remembers = true;
    w->number = number;
    w->until = expires;
    return 0;
}

/* True: it wants to write. */
static bool decide(cell_job *w)
{
    static const dibs__cell_store store = {load, put, drop, request_find, request_put};

    w->puts = w->drops = w->remembers = false;
    dibs__cell_apply(&store, w, w->now, w->command, &w->reply);
    return w->puts || w->drops;
}

/* ---- One statement and a look ---------------------------------------------------------------- */

static void add_notify(dibs__sql_batch *b, const cell_job *w)
{
    if (w->notify)
        dibs__sql_text(b, w->notify);
    else
        dibs__sql_null(b);
}

static void add_look(dibs__sql_batch *b, const cell_job *w)
{
    dibs__sql_add(b, DIBS__SQL_CELL_LOOK);
    dibs__sql_text(b, w->key);
    if (w->command->request)
        dibs__sql_text(b, w->command->request);
    else
        dibs__sql_null(b);
    dibs__sql_text(b, w->stamp);
}

/* A span that reaches beyond all time is for ever. */
static int64_t span_of(int64_t keep)
{
    return keep > INT64_MAX / 2 ? 0 : keep;
}

static void add_swap(dibs__sql_batch *b, const cell_job *w)
{
    const dibs__cell_command *c = w->command;

    dibs__sql_add(b, c->version ? DIBS__SQL_CELL_SWAP : DIBS__SQL_CELL_NEW);
    dibs__sql_text(b, w->key);
    if (c->version)
        dibs__sql_number(b, (int64_t)c->version);
    dibs__sql_number(b, span_of(c->keep));
    dibs__sql_text(b, w->stamp);
    dibs__sql_bytes(b, c->data, c->size);
    dibs__sql_number(b, (int64_t)c->fence);
    dibs__sql_number(b, (int64_t)dibs__cell_floor(c));
    add_notify(b, w);
}

static void add_delete(dibs__sql_batch *b, const cell_job *w)
{
    dibs__sql_add(b, DIBS__SQL_CELL_DELETE);
    dibs__sql_text(b, w->key);
    dibs__sql_number(b, (int64_t)w->command->version);
    add_notify(b, w);
}

static void add_pass(dibs__sql_batch *b, const cell_job *w)
{
    const dibs__cell_command *c = w->command;

    dibs__sql_add(b, DIBS__SQL_CELL_PASS);
    dibs__sql_text(b, w->key);
    dibs__sql_number(b, (int64_t)c->fence);
    dibs__sql_number(b, (int64_t)dibs__cell_floor(c));
}

static void add_count(dibs__sql_batch *b, const cell_job *w)
{
    const dibs__cell_command *c = w->command;
    bool set = c->op == DIBS__CELL_SET;
    int64_t by = c->op == DIBS__CELL_TAKE ? -c->number : c->number;

    if (!set && by == INT64_MIN) /* more than any counter has: the look will show it */
        return;
    if (c->request) {
        dibs__sql_add(b, DIBS__SQL_CELL_LOCK);
        dibs__sql_text(b, w->key);
    }
    dibs__sql_add(b, c->request ? DIBS__SQL_CELL_COUNT_ONCE : DIBS__SQL_CELL_COUNT);
    dibs__sql_text(b, w->key);
    dibs__sql_number(b, !set);
    dibs__sql_number(b, by);
    dibs__sql_number(b, !set && by < 0 ? -by : 0);
    dibs__sql_number(b, !set && by > 0 ? INT64_MAX - by : INT64_MAX);
    dibs__sql_number(b, span_of(c->keep));
    dibs__sql_text(b, w->stamp);
    if (c->request) {
        dibs__sql_text(b, c->request);
        dibs__sql_number(b, span_of(c->request_keep));
    }
}

static void add_change(dibs__sql_batch *b, const cell_job *w)
{
    switch (w->command->op) {
    case DIBS__CELL_READ:
        return;
    case DIBS__CELL_SWAP:
        add_swap(b, w);
        return;
    case DIBS__CELL_DELETE:
        add_delete(b, w);
        return;
    case DIBS__CELL_PASS:
        add_pass(b, w);
        return;
    case DIBS__CELL_SET:
    case DIBS__CELL_ADD:
    case DIBS__CELL_TAKE:
        if (!w->notify) /* nobody waits for a counter */
            add_count(b, w);
    }
}

static dibs_status exchange(dibs__sql *e, dibs__conn_slot *conn_slot, cell_job *w,
                            dibs__sql_job *job, dibs_error *err)
{
    conn_slot->batch.row = on_row;
    conn_slot->batch.ctx = w;
    w->batch = &conn_slot->batch;
    w->changed = w->locked = false;
    return dibs__conn_slot_exchange(e, conn_slot, job->until, err);
}

/* `*over`: that was it. */
static dibs_status try_at_once(dibs__sql *e, dibs__conn_slot *conn_slot, cell_job *w,
                               dibs__sql_job *job, bool *over, dibs_error *err)
{
    dibs_status status;

    dibs__sql_batch_reset(&conn_slot->batch, DIBS__SQL_WHOLE);
    add_change(&conn_slot->batch, w);
    add_look(&conn_slot->batch, w);
    conn_slot->batch.durable = !w->command->fleeting;
    status = exchange(e, conn_slot, w, job, err);
    if (status != DIBS_OK)
        return status;
    if (w->changed) {
        w->reply.verdict = DIBS__CELL_DONE;
        w->reply.cell = w->cell;
    }
    *over = w->changed || !decide(w);
    return DIBS_OK;
}

/* ---- Lock, look, decide, write --------------------------------------------------------------- */

static int64_t reap_of(const dibs__cell *c)
{
    int64_t floor = c->floor > (uint64_t)(INT64_MAX - DAY) ? INT64_MAX - DAY : (int64_t)c->floor;
    int64_t kept = (floor > c->written ? floor : c->written) + DAY;

    if (!c->empty && c->expires == INT64_MAX)
        return INT64_MAX;
    if (c->floor == 0)
        return c->empty ? c->written : c->expires;
    return c->empty || c->expires < kept ? kept : c->expires;
}

static void add_put(dibs__sql_batch *b, const cell_job *w)
{
    const dibs__cell *c = &w->put;

    dibs__sql_add(b, DIBS__SQL_CELL_PUT);
    dibs__sql_text(b, w->key);
    dibs__sql_number(b, (int64_t)c->version);
    dibs__sql_number(b, (int64_t)c->floor);
    dibs__sql_number(b, c->written);
    dibs__sql_number(b, c->expires);
    dibs__sql_number(b, c->number);
    dibs__sql_number(b, c->counter);
    dibs__sql_number(b, c->empty);
    dibs__sql_text(b, c->stamp);
    if (c->data && c->data == w->data)
        dibs__sql_null(b);
    else
        dibs__sql_bytes(b, c->data, c->size);
    dibs__sql_number(b, reap_of(c));
    add_notify(b, w);
}

static void add_writes(dibs__sql_batch *b, const cell_job *w)
{
    if (w->drops) {
        dibs__sql_add(b, DIBS__SQL_CELL_DROP);
        dibs__sql_text(b, w->key);
        add_notify(b, w);
    } else {
        add_put(b, w);
    }
    if (w->remembers) {
        dibs__sql_add(b, DIBS__SQL_REQUEST_PUT);
        dibs__sql_text(b, w->key);
        dibs__sql_text(b, w->command->request);
        dibs__sql_number(b, w->number);
        dibs__sql_number(b, w->until);
    }
}

static dibs_status lock_and_look(dibs__sql *e, dibs__conn_slot *conn_slot, cell_job *w,
                                 dibs__sql_job *job, dibs_error *err)
{
    dibs__sql_batch *b = &conn_slot->batch;

    dibs__sql_batch_reset(b, DIBS__SQL_BEGIN);
    dibs__sql_add(b, DIBS__SQL_CELL_MAKE);
    dibs__sql_text(b, w->key);
    dibs__sql_add(b, DIBS__SQL_CELL_LOCK);
    dibs__sql_text(b, w->key);
    add_look(b, w);
    return exchange(e, conn_slot, w, job, err);
}

static dibs_status try_with_lock(dibs__sql *e, dibs__conn_slot *conn_slot, cell_job *w,
                                 dibs__sql_job *job, dibs_error *err)
{
    dibs_status status = lock_and_look(e, conn_slot, w, job, err);

    if (status != DIBS_OK)
        return status;
    if (!w->locked || !decide(w)) { /* the row that was made goes, too */
        dibs__conn_slot_rollback(e, conn_slot, job->until);
        conn_slot->again = !w->locked; /* it was dropped by another in between */
        return w->locked ? DIBS_OK
                         : dibs__fail(err, DIBS_UNAVAILABLE, "%s: a cell that others keep dropping",
                                      e->driver->name);
    }
    dibs__sql_batch_reset(&conn_slot->batch, DIBS__SQL_END);
    add_writes(&conn_slot->batch, w);
    return exchange(e, conn_slot, w, job, err);
}

/* ---- A command ------------------------------------------------------------------------------- */

dibs_status dibs__sql_cells_ready(dibs__sql *e, dibs__conn_slot *conn_slot, bool make,
                                  dibs__deadline until, dibs_error *err)
{
    dibs_status status;

    if (atomic_load(&e->cells))
        return DIBS_OK;
    status = e->driver->prepare_cells(conn_slot->conn, make, until, err);
    if (status == DIBS_OK)
        atomic_store(&e->cells, true);
    if (conn_slot->conn->broken)
        dibs__conn_slot_give_up(e, conn_slot);
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

/* A deletion that has to keep a row is no single statement. */
static bool leaves_a_floor(const dibs__cell_command *c)
{
    return c->op == DIBS__CELL_DELETE && c->fence != 0;
}

static dibs_status try_once(dibs__sql *e, dibs__conn_slot *conn_slot, cell_job *w,
                            dibs__sql_job *job, dibs_error *err)
{
    bool over = false;
    dibs_status status = dibs__conn_slot_ready(e, conn_slot, job->until, err);

    conn_slot->again = false;
    if (status == DIBS_OK)
        status =
            dibs__sql_cells_ready(e, conn_slot, w->command->op != DIBS__CELL_READ, job->until, err);
    if (status == DIBS_NOT_FOUND) { /* no tables, and so nothing in them */
        decide(w);
        return DIBS_OK;
    }
    if (status == DIBS_OK && !leaves_a_floor(w->command))
        status = try_at_once(e, conn_slot, w, job, &over, err);
    if (status == DIBS_OK && !over) /* what was committed may have cost the connection */
        status = dibs__conn_slot_ready(e, conn_slot, job->until, err);
    if (status == DIBS_OK && !over)
        status = try_with_lock(e, conn_slot, w, job, err);
    return status;
}

/* Those who met in a deadlock should not meet again: a pause by chance, longer each time. */
static void step_aside(const dibs__env *env, int tries)
{
    uint32_t dice;

    env->random(env->ctx, &dice, sizeof dice);
    dibs__sleep(env, dice % (500u << tries));
}

static dibs_status execute(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__sql_job *job,
                           dibs_error *err)
{
    cell_job *w = job->ctx;
    dibs_status status;

    for (int tries = 1;; tries++) {
        status = try_once(e, conn_slot, w, job, err);
        if (status == DIBS_OK || !conn_slot->again || tries == MOST_TRIES ||
            dibs__now(e->base.env) >= job->until)
            break;
        if (conn_slot->conn)
            step_aside(e->base.env, tries);
    }
    if (status == DIBS_UNKNOWN && w->command->op == DIBS__CELL_READ)
        status = DIBS_UNAVAILABLE;
    if (status == DIBS_OK && !dibs__cell_reply_of(w->command, &w->reply, w->now, w->out))
        status = dibs__fail(err, DIBS_NO_MEMORY, "%s: out of memory for a value", e->driver->name);
    return status;
}

void dibs__sql_cell_text(const char *key, char out[DIBS__SQL_CELL_TEXT_SIZE])
{
    snprintf(out, DIBS__SQL_CELL_TEXT_SIZE, "%016" PRIx64, dibs__hash(key));
}

dibs_status dibs__sql_cell(dibs__engine *base, const char *key, const dibs__cell_command *command,
                           bool notify, dibs__deadline until, dibs__cell_reply *out,
                           dibs_error *err)
{
    dibs__sql *e = (dibs__sql *)base;
    char text[DIBS__SQL_CELL_TEXT_SIZE];
    cell_job w = {.key = key, .command = command, .out = out};
    dibs__sql_job job = {.call = execute, .ctx = &w, .until = until, .err = err};

    if (command->fence > INT64_MAX || command->floor > INT64_MAX)
        return dibs__fail(err, DIBS_INVALID, "%s: a fence has at most 63 bits", e->driver->name);
    w.stamp = command->stamp ? command->stamp : "";
    dibs__sql_cell_text(key, text);
    w.notify = notify ? text : NULL;
    job.hash = dibs__hash(key);
    job.maintenance =
        command->fleeting; /* a renewal: the keeper has more of them, and asks again */
    dibs__sql_do(e, &job);
    free(w.data);
    return job.status;
}
