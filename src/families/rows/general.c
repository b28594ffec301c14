/* The general way: lock the rows and look, let the state machine decide, write and commit.
 *
 * First exchange: BEGIN, and for each name LOCK and LOOK. Second: what the machine wrote for all
 * names, wake-ups, COMMIT. A third comes between them only when a row has to be made that seemed
 * to be there, or when the machine needs a wider look. */
#include "families/rows/inner.h"

#include "core/error.h"
#include "core/report.h"

#include <stdlib.h>
#include <string.h>

typedef struct general_try {
    dibs__sql_tasks *ts;
    dibs__sql_session *session; /* one a name */
    size_t count;
    size_t *part; /* which session a command of the batch is for */
    size_t part_room;
} general_try;

/* ---- Sessions -------------------------------------------------------------------------------- */

static dibs_status no_memory(dibs__sql_tasks *ts)
{
    return dibs__fail(ts->err, DIBS_NO_MEMORY, "%s: out of memory", ts->e->driver->name);
}

static dibs_status open_sessions(general_try *g)
{
    dibs__sql_tasks *ts = g->ts;

    g->session = calloc(ts->count, sizeof *g->session);
    if (!g->session)
        return no_memory(ts);
    for (size_t at = 0, n; at < ts->count; at += n) {
        dibs__sql_session *s = &g->session[g->count++];
        n = dibs__sql_tasks_group(ts, at);
        s->e = ts->e;
        s->conn_slot = ts->conn_slot;
        s->until = ts->until;
        s->err = ts->err;
        s->name = ts->task[at]->name;
        s->task = &ts->task[at];
        s->task_count = n;
        for (size_t i = 0; i < n; i++)
            if (dibs__sql_session_owner(s, ts->task[at + i]->owner) < 0)
                return no_memory(ts);
    }
    return DIBS_OK;
}

static void close_sessions(general_try *g)
{
    for (size_t i = 0; i < g->count; i++)
        dibs__sql_session_fini(&g->session[i]);
    free(g->session);
    free(g->part);
}

/* The commands added since the last mark are for session number `index`. */
static void mark_part(general_try *g, size_t *marked, size_t index)
{
    dibs__sql_batch *b = &g->ts->conn_slot->batch;

    while (*marked < b->count) {
        size_t *larger = dibs__sql_grown(g->part, *marked, &g->part_room, sizeof *g->part);
        if (!larger) {
            b->failed = true;
            return;
        }
        g->part = larger;
        g->part[(*marked)++] = index;
    }
}

static int on_row(void *ctx, size_t command, const dibs__sql_value *cells, size_t count)
{
    general_try *g = ctx;

    (void)count;
    return dibs__sql_session_row(&g->session[g->part[command]],
                                 g->ts->conn_slot->batch.command[command].op, cells);
}

static void note_locked(general_try *g, const dibs__sql_session *s)
{
    dibs__sql_tasks_mark_locked(g->ts, (size_t)(s->task - g->ts->task), s->task_count);
}

static dibs_status exchange(general_try *g)
{
    dibs__conn_slot *conn_slot = g->ts->conn_slot;
    dibs_status status;

    conn_slot->batch.row = on_row;
    conn_slot->batch.ctx = g;
    status = dibs__conn_slot_exchange(g->ts->e, conn_slot, g->ts->until, g->ts->err);
    if (status != DIBS_OK && conn_slot->locked && conn_slot->culprit < conn_slot->batch.count)
        note_locked(g, &g->session[g->part[conn_slot->culprit]]);
    return status;
}

/* ---- Lock and look --------------------------------------------------------------------------- */

static bool enters(const dibs__sql_session *s)
{
    for (size_t i = 0; i < s->task_count; i++)
        if (s->task[i]->what == DIBS__SQL_ENTER)
            return true;
    return false;
}

/* Those who may stand in the queue from now on are noted. */
static bool may_queue(const dibs__sql_tasks *ts)
{
    bool any = false;

    for (size_t i = 0; i < ts->count; i++) {
        if (ts->task[i]->what != DIBS__SQL_ENTER || ts->task[i]->window <= 0)
            continue;
        dibs__sql_line_add(ts->e, ts->task[i]);
        any = true;
    }
    return any;
}

static dibs_status lock_and_look(general_try *g)
{
    dibs__sql *e = g->ts->e;
    dibs__sql_batch *b = &g->ts->conn_slot->batch;
    size_t marked = 0;

    dibs__sql_batch_reset(b, DIBS__SQL_BEGIN);
    for (size_t i = 0; i < g->count; i++) {
        dibs__sql_session *s = &g->session[i];
        unsigned hint = dibs__sql_hint(e, s->task[0]->hash);
        dibs__sql_session_ask(s, b, !(hint & DIBS__SQL_SEEN) && enters(s), hint);
        mark_part(g, &marked, i);
    }
    return exchange(g);
}

/* Rows that we took for there are not. */
static dibs_status make_missing(general_try *g)
{
    dibs__sql_batch *b = &g->ts->conn_slot->batch;
    size_t marked = 0;

    dibs__sql_batch_reset(b, DIBS__SQL_MORE);
    for (size_t i = 0; i < g->count; i++) {
        if (!g->session[i].exists && enters(&g->session[i])) {
            dibs__sql_session_ask(&g->session[i], b, true, 0);
            mark_part(g, &marked, i);
        }
    }
    return b->count ? exchange(g) : DIBS_OK;
}

/* ---- Decide ---------------------------------------------------------------------------------- */

static int decide(dibs__sql_session *s, dibs__sql_task *t)
{
    const dibs__store *store = &dibs__sql_store;

    t->was_handed = t->what == DIBS__SQL_KEEP && !t->fence && s->held &&
                    strcmp(s->holder.who.attempt, t->attempt) == 0;
    switch (t->what) {
    case DIBS__SQL_ENTER:
        return dibs__state_acquire(store, s, s->now, t->who, t->capacity, t->window, &t->reply);
    case DIBS__SQL_KEEP:
        return dibs__state_keep(store, s, s->now, t->owner, t->attempt, t->fence, t->lease,
                                &t->reply);
    case DIBS__SQL_RELEASE:
        return dibs__state_release(store, s, s->now, t->owner, t->attempt, t->fence, &t->reply);
    case DIBS__SQL_CANCEL:
        return dibs__state_cancel(store, s, s->now, t->owner, t->attempt, &t->reply);
    case DIBS__SQL_BREAK:
        return dibs__state_break(store, s, s->now, t->by, t->at_once, &t->reply);
    case DIBS__SQL_SETTLE:
        break;
    }
    return dibs__state_settle(store, s, s->now, &t->reply);
}

static dibs_status decide_all(general_try *g)
{
    for (size_t i = 0; i < g->count; i++)
        for (size_t k = 0; k < g->session[i].task_count; k++)
            if (decide(&g->session[i], g->session[i].task[k]) < 0) {
                if (g->ts->conn_slot->locked)
                    note_locked(g, &g->session[i]);
                return g->session[i].status;
            }
    return DIBS_OK;
}

/* ---- Write ----------------------------------------------------------------------------------- */

static void ask_for_report(dibs__sql_session *s, dibs__sql_batch *b)
{
    bool wanted = false;

    for (size_t i = 0; i < s->task_count; i++)
        wanted |= s->task[i]->report != NULL;
    if (!wanted || !s->exists)
        return;
    dibs__sql_add(b, DIBS__SQL_SHOW_HOLDERS);
    dibs__sql_text(b, s->name);
    dibs__sql_add(b, DIBS__SQL_SHOW_WAITERS);
    dibs__sql_text(b, s->name);
}

static dibs_status write_all(general_try *g)
{
    dibs__sql_batch *b = &g->ts->conn_slot->batch;
    size_t marked = 0;
    bool durable = false;

    dibs__sql_batch_reset(b, DIBS__SQL_END);
    for (size_t i = 0; i < g->count; i++) {
        dibs__sql_session_write(&g->session[i], b);
        ask_for_report(&g->session[i], b);
        mark_part(g, &marked, i);
        durable |= g->session[i].durable;
    }
    b->durable = durable;
    return exchange(g);
}

/* ---- On record: tell ------------------------------------------------------------------------- */

static void note_hint(const dibs__sql_session *s)
{
    unsigned hint = s->exists ? DIBS__SQL_SEEN : 0;

    if (s->record.waiters > 0)
        hint |= DIBS__SQL_LINE;
    if (s->record.holders > 0)
        hint |= s->held ? DIBS__SQL_HELD : DIBS__SQL_HELD | DIBS__SQL_CROWD;
    dibs__sql_hint_set(s->e, s->task[0]->hash, hint);
}

static void report(const dibs__sql_session *s, dibs__report_builder *out)
{
    if (!s->exists)
        return;
    dibs__report_lock(out, s->name, &s->record);
    if (s->held)
        dibs__report_holder(out, &s->holder, s->now);
    for (size_t i = 0; i < s->shown_count; i++)
        dibs__report_holder(out, &s->shown[i], s->now);
    for (size_t i = 0; i < s->shown_queue_count; i++)
        dibs__report_waiter(out, &s->shown_queue[i], s->now);
}

static void finish(dibs__sql_session *s)
{
    note_hint(s);
    for (size_t i = 0; i < s->task_count; i++) {
        s->task[i]->done = true;
        if (s->task[i]->report)
            report(s, s->task[i]->report);
    }
    for (size_t i = 0; i < s->notice_count; i++)
        if (dibs__sql_is_ours(s->e, s->notice[i].wake))
            dibs__sql_mail_add(&s->conn_slot->mail, &s->notice[i]);
}

dibs_status dibs__sql_general(dibs__sql_tasks *ts)
{
    general_try g = {.ts = ts};
    dibs_status status = open_sessions(&g);

    if (status == DIBS_OK && may_queue(ts) && ts->e->driver->listen)
        ts->e->driver->listen(ts->e, ts->until);
    if (status == DIBS_OK)
        status = lock_and_look(&g);
    if (status == DIBS_OK)
        status = make_missing(&g);
    if (status == DIBS_OK) {
        status = decide_all(&g);
        if (status == DIBS_NO_MEMORY && ts->conn_slot->conn) /* the exchanges that fail roll back */
            dibs__conn_slot_rollback(ts->e, ts->conn_slot, ts->until);
    }
    if (status == DIBS_OK)
        status = write_all(&g);
    for (size_t i = 0; status == DIBS_OK && i < g.count; i++)
        finish(&g.session[i]);
    if (status == DIBS_OK && ts->e->driver->queue_changed)
        ts->e->driver->queue_changed(ts->e);
    close_sessions(&g);
    return status;
}
