/* The fast way: one statement does a command, if nothing unusual is in the way. Statements of several
 * commands go in one batch, in the order of their names, under one commit. */
#include "families/rows/inner.h"

#include "state/attempt.h"

#include <string.h>

typedef struct fast_try {
    dibs__sql_tasks *ts;
    bool durable;
    bool joins; /* some may stand in the queue from now on */
    bool moves; /* or leave it */
    size_t list_count;
    dibs__sql_value
        *lists; /* owners and attempts of those that are touched: room for twice a batch */
    struct {
        size_t first, count; /* the tasks of a command */
    } part[DIBS__SQL_BATCH];
} fast_try;

static bool has(const dibs__sql *e, dibs__sql_op op)
{
    return (e->driver->fast >> op & 1u) != 0;
}

static bool is_plain(const dibs__sql_task *t)
{
    return t->who->weight == DIBS__PLAIN && t->capacity == DIBS__PLAIN;
}

/* A plain lock is entered: it is free, or others are in the way. */
static dibs__sql_op entering(const dibs__sql_task *t, unsigned hint)
{
    if (!(hint & (DIBS__SQL_LINE | DIBS__SQL_HELD)))
        return DIBS__SQL_TAKE;
    return t->window > 0 && dibs__owner_is_private(t->owner, t->attempt) ? DIBS__SQL_JOIN
                                                                         : DIBS__SQL_OPS;
}

/* The operation that might do it; DIBS__SQL_OPS: none. */
static dibs__sql_op operation_of(dibs__sql *e, const dibs__sql_task *t)
{
    unsigned hint = dibs__sql_hint(e, t->hash);
    dibs__sql_op op = DIBS__SQL_OPS;

    if (t->what == DIBS__SQL_ENTER && is_plain(t))
        op = entering(t, hint);
    else if (t->what == DIBS__SQL_RELEASE)
        op = hint & DIBS__SQL_LINE ? DIBS__SQL_HAND : DIBS__SQL_GIVE;
    else if (t->what == DIBS__SQL_KEEP)
        op = t->fence ? DIBS__SQL_EXTEND : DIBS__SQL_TOUCH;
    return op != DIBS__SQL_OPS && has(e, op) && !(hint & DIBS__SQL_CROWD) ? op : DIBS__SQL_OPS;
}

/* ---- Asking ---------------------------------------------------------------------------------- */

static void ask_one(fast_try *f, dibs__sql_op op, size_t at)
{
    dibs__sql_batch *b = &f->ts->conn_slot->batch;
    const dibs__sql_task *t = f->ts->task[at];

    f->part[b->count].first = at;
    f->part[b->count].count = 1;
    dibs__sql_add(b, op);
    dibs__sql_text(b, t->name);
    if (op == DIBS__SQL_TAKE || op == DIBS__SQL_JOIN) {
        dibs__sql_add_who(b, t->who);
    } else {
        dibs__sql_text(b, t->owner);
        dibs__sql_text(b, t->attempt);
    }
    if (op == DIBS__SQL_EXTEND) {
        dibs__sql_number(b, t->lease);
        dibs__sql_number(b, dibs__owner_is_private(t->owner, t->attempt));
    }
    if (op == DIBS__SQL_HAND)
        dibs__sql_text(b, f->ts->e->id);
    if (op == DIBS__SQL_JOIN)
        dibs__sql_number(b, t->window);
    if (op == DIBS__SQL_JOIN)
        dibs__sql_line_add(f->ts->e, t);
    f->joins |= op == DIBS__SQL_JOIN;
    f->moves |= op == DIBS__SQL_JOIN || op == DIBS__SQL_HAND;
    f->durable |= op != DIBS__SQL_GIVE && op != DIBS__SQL_JOIN;
}

static void list_text(fast_try *f, const char *text)
{
    f->lists[f->list_count++] =
        (dibs__sql_value){.kind = DIBS__SQL_BYTES, .bytes = text, .size = strlen(text)};
}

/* All of a group that wait: in one go. */
static void ask_touch(fast_try *f, size_t at, size_t count)
{
    dibs__sql_batch *b = &f->ts->conn_slot->batch;
    size_t owners = f->list_count, attempts;

    for (size_t i = at; i < at + count; i++)
        if (f->ts->task[i]->fence == 0) {
            list_text(f, f->ts->task[i]->owner);
            dibs__sql_line_add(f->ts->e, f->ts->task[i]);
        }
    attempts = f->list_count;
    for (size_t i = at; i < at + count; i++)
        if (f->ts->task[i]->fence == 0)
            list_text(f, f->ts->task[i]->attempt);
    if (attempts == owners)
        return;
    f->part[b->count].first = at;
    f->part[b->count].count = count;
    dibs__sql_add(b, DIBS__SQL_TOUCH);
    dibs__sql_text(b, f->ts->task[at]->name);
    dibs__sql_items(b, f->lists + owners, attempts - owners);
    dibs__sql_items(b, f->lists + attempts, f->list_count - attempts);
    f->durable = true;
}

/* Keep-alives of one name go together, and so do hand-overs and those who queue up: each of them knows what the one
 * before it did. Every other command must be alone with its name. */
static bool goes_along(dibs__sql *e, const dibs__sql_task *t)
{
    dibs__sql_op op = operation_of(e, t);

    return t->what == DIBS__SQL_KEEP || op == DIBS__SQL_HAND || op == DIBS__SQL_JOIN;
}

static void ask_group(fast_try *f, size_t at, size_t count)
{
    bool touch = false;

    for (size_t i = at; i < at + count; i++)
        if (count > 1 && !goes_along(f->ts->e, f->ts->task[i]))
            return;
    for (size_t i = at; i < at + count; i++) {
        dibs__sql_op op = operation_of(f->ts->e, f->ts->task[i]);
        if (op == DIBS__SQL_TOUCH)
            touch = true;
        else if (op != DIBS__SQL_OPS)
            ask_one(f, op, i);
    }
    if (touch)
        ask_touch(f, at, count);
}

/* ---- Answers --------------------------------------------------------------------------------- */

static void answer_one(dibs__sql_task *t, dibs__sql_op op, uint64_t fence)
{
    t->reply = (dibs__reply){.verdict = DIBS__RELEASED};
    if (op == DIBS__SQL_TAKE || op == DIBS__SQL_EXTEND)
        t->reply = (dibs__reply){.verdict = DIBS__GRANTED,
                                 .fence = fence,
                                 .floor = fence,
                                 .remaining = op == DIBS__SQL_TAKE ? t->who->lease : t->lease};
    t->answered = true;
}

static void read_in_way(const dibs__sql_value *cells, dibs__in_way *out)
{
    out->left = cells[0].number;
    out->fence = (uint64_t)cells[1].number;
    out->pid = cells[2].number;
    dibs__sql_read_text(&cells[3], out->owner, sizeof out->owner);
    dibs__sql_read_text(&cells[4], out->host, sizeof out->host);
}

static void answer_touched(fast_try *f, size_t command, const dibs__sql_value *cells)
{
    char attempt[DIBS__ATTEMPT_SIZE];

    dibs__sql_read_text(&cells[0], attempt, sizeof attempt);
    for (size_t i = 0; i < f->part[command].count; i++) {
        dibs__sql_task *t = f->ts->task[f->part[command].first + i];
        if (t->fence != 0 || strcmp(t->attempt, attempt) != 0)
            continue;
        t->reply = (dibs__reply){.verdict = DIBS__QUEUED, .remaining = cells[1].number};
        read_in_way(cells + 2, &t->reply.in_way);
        t->answered = true;
    }
}

static void answer_joined(dibs__sql_task *t, const dibs__sql_value *cells)
{
    t->reply = (dibs__reply){.verdict = DIBS__QUEUED, .remaining = cells[0].number};
    read_in_way(cells + 1, &t->reply.in_way);
    t->answered = true;
    t->hint = DIBS__SQL_SEEN | DIBS__SQL_LINE | DIBS__SQL_HELD;
}

/* To be delivered if the commit succeeds, and only to our own handle: the server has woken any other. */
static void answer_handed(fast_try *f, dibs__sql_task *t, const dibs__sql_value *cells)
{
    dibs__sql_notice n = {.fence = (uint64_t)cells[3].number, .floor = (uint64_t)cells[3].number};

    answer_one(t, DIBS__SQL_HAND, n.fence);
    t->hint = DIBS__SQL_SEEN | DIBS__SQL_HELD | (cells[0].number > 0 ? DIBS__SQL_LINE : 0);
    dibs__sql_read_text(&cells[1], n.wake, sizeof n.wake);
    dibs__sql_read_text(&cells[2], n.attempt, sizeof n.attempt);
    if (dibs__sql_is_ours(f->ts->e, n.wake))
        dibs__sql_mail_add(&f->ts->conn_slot->mail, &n);
}

static int on_row(void *ctx, size_t command, const dibs__sql_value *cells, size_t count)
{
    fast_try *f = ctx;
    dibs__sql_op op = f->ts->conn_slot->batch.command[command].op;
    dibs__sql_task *t = f->ts->task[f->part[command].first];

    (void)count;
    if (op == DIBS__SQL_TOUCH)
        answer_touched(f, command, cells);
    else if (op == DIBS__SQL_JOIN)
        answer_joined(t, cells);
    else if (op == DIBS__SQL_HAND)
        answer_handed(f, t, cells);
    else
        answer_one(t, op, (uint64_t)cells[0].number);
    return 0;
}

static void finish(dibs__sql *e, dibs__sql_task *t)
{
    t->done = t->answered;
    if (t->done && t->what != DIBS__SQL_KEEP)
        dibs__sql_hint_set(e, t->hash, t->hint);
    else if (t->done)
        dibs__sql_hint_stuck(e, t->hash, false);
}

dibs_status dibs__sql_fast(dibs__sql_tasks *ts)
{
    dibs__sql_value lists[2 * DIBS__SQL_BATCH];
    fast_try f = {.ts = ts, .lists = lists};
    dibs__sql_batch *b = &ts->conn_slot->batch;
    size_t mail = ts->conn_slot->mail.count;
    dibs_status status = DIBS_OK;

    dibs__sql_batch_reset(b, DIBS__SQL_WHOLE);
    for (size_t at = 0, n; at < ts->count; at += n) {
        n = dibs__sql_tasks_group(ts, at);
        for (size_t i = at; i < at + n; i++) {
            ts->task[i]->answered = false;
            ts->task[i]->hint = DIBS__SQL_SEEN; /* it is there, free or ours, and nobody waits */
        }
        ask_group(&f, at, n);
    }
    b->durable = f.durable;
    b->row = on_row;
    b->ctx = &f;
    if (f.joins && ts->e->driver->listen)
        ts->e->driver->listen(ts->e, ts->until);
    if (b->count > 0 || b->failed)
        status = dibs__conn_slot_exchange(ts->e, ts->conn_slot, ts->until, ts->err);
    if (status != DIBS_OK && ts->conn_slot->locked && ts->conn_slot->culprit < b->count)
        dibs__sql_tasks_mark_locked(ts, f.part[ts->conn_slot->culprit].first,
                                    f.part[ts->conn_slot->culprit].count);
    if (status != DIBS_OK)
        ts->conn_slot->mail.count = mail;
    for (size_t i = 0; status == DIBS_OK && i < ts->count; i++)
        finish(ts->e, ts->task[i]);
    if (status == DIBS_OK && f.moves && ts->e->driver->queue_changed)
        ts->e->driver->queue_changed(ts->e);
    return status;
}
