/* What a worker does with a request: the call that its op names, and what follows from its status.
 *
 * A call that waits for another client is made without waiting. While its answer is "not yet", and its caller has
 * time, it is made again, after a pause that grows. */
#define _GNU_SOURCE
#include "calls/request.h"

#include "core/error.h"

#define FIRST_PAUSE (5 * DIBS__MS)
#define MAX_PAUSE   (250 * DIBS__MS)

/* ---- The calls --------------------------------------------------------------------------------- */

static dibs_status ask_renew(dibs *d, dibs__request *r)
{
    (void)d;
    return dibs_renew(r->grant, &r->of.call->err);
}

static dibs_status ask_adopt(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_grant_adopt(d, c->name, &c->options.lock, &c->grant, &c->err);
}

static dibs_status ask_inspect(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_lock_inspect(d, c->name, &c->report, &c->err);
}

static dibs_status ask_list(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_lock_list(d, c->name, &c->options.lock_list, &c->report, &c->err);
}

static dibs_status ask_break_check(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    dibs__error_clear(&c->err);
    return dibs__error_settle(&c->err, dibs__break_check(d, c->name, r->until, &c->err),
                              DIBS_NEXT_REPEAT);
}

static dibs_status ask_break(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return r->begun ? ask_break_check(d, r)
                    : dibs_lock_break(d, c->name, &c->options.lock_break, &c->err);
}

static dibs_status ask_once_begin(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return r->begun ? dibs_once_wait(c->once, DIBS_NO_WAIT, &c->err)
                    : dibs_once_begin(d, c->name, &c->options.once, &c->once, &c->err);
}

static dibs_status ask_once_wait(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    (void)d;
    return dibs_once_wait(c->once, c->number, &c->err);
}

static dibs_status ask_once_rerun(dibs *d, dibs__request *r)
{
    (void)d;
    return dibs_once_rerun(r->of.call->once, &r->of.call->err);
}

static dibs_status ask_once_step(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    (void)d;
    return dibs_once_step(c->once, c->name, c->data, c->size, &c->err);
}

static dibs_status ask_once_finish(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    (void)d;
    return dibs_once_finish(c->once, c->data, c->size, (int)c->number, &c->err);
}

static dibs_status ask_once_fail(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    (void)d;
    return dibs_once_fail(c->once, c->data, c->size, (int)c->number, &c->err);
}

static dibs_status ask_once_undo(dibs *d, dibs__request *r)
{
    (void)d;
    return dibs_once_undo(r->of.call->once, &r->of.call->err);
}

static dibs_status ask_once_abandon(dibs *d, dibs__request *r)
{
    (void)d;
    return dibs_once_abandon(r->of.call->once, &r->of.call->err);
}

static dibs_status ask_once_list(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_once_list(d, c->name, &c->options.once_list, &c->once_report, &c->err);
}

static dibs_status ask_once_inspect(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_once_inspect(d, c->name, &c->options.once_inspect, &c->once_report, &c->err);
}

static dibs_status ask_once_forget(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_once_forget(d, c->name, &c->options.once_forget, &c->err);
}

static dibs_status ask_once_resolve(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_once_resolve(d, c->name, &c->options.once_resolve, &c->err);
}

static dibs_status ask_token_issue(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_token_issue(d, &c->options.token, c->token, &c->err);
}

static dibs_status ask_token_redeem(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_token_redeem(d, c->name, &c->options.token, &c->err);
}

static dibs_status ask_token_reissue(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_token_reissue(d, c->name, &c->options.token, c->token, &c->err);
}

static dibs_status ask_counter_get(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_counter_get(d, c->name, &c->number, &c->err);
}

static dibs_status ask_counter_set(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_counter_set(d, c->name, c->number, &c->options.counter, &c->err);
}

static dibs_status ask_counter_add(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_counter_add(d, c->name, c->number, &c->options.counter, &c->number, &c->err);
}

static dibs_status ask_counter_take(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_counter_take(d, c->name, c->number, &c->options.counter, &c->number, &c->err);
}

static dibs_status ask_cell_read(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_cell_read(d, c->name, &c->value, &c->err);
}

static dibs_status ask_cell_swap(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_cell_swap(d, c->name, c->version, c->data, c->size, &c->options.cell, &c->value,
                          &c->err);
}

static dibs_status ask_cell_delete(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_cell_delete(d, c->name, c->version, &c->options.cell, &c->err);
}

static dibs_status ask_cell_pass(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;

    return dibs_cell_pass(d, c->name, &c->options.cell, &c->value, &c->err);
}

/* op, options, takes_once, takes_grant, waits, ask */
static const dibs__op_row rows[] = {
    {DIBS_OP_RENEW, DIBS__NO_OPTIONS, false, true, false, ask_renew},
    {DIBS_OP_GRANT_ADOPT, DIBS__LOCK_OPTIONS, false, false, false, ask_adopt},
    {DIBS_OP_LOCK_INSPECT, DIBS__NO_OPTIONS, false, false, false, ask_inspect},
    {DIBS_OP_LOCK_LIST, DIBS__LIST_OPTIONS, false, false, false, ask_list},
    {DIBS_OP_LOCK_BREAK, DIBS__BREAK_OPTIONS, false, false, true, ask_break},
    {DIBS_OP_ONCE_BEGIN, DIBS__ONCE_OPTIONS, false, false, true, ask_once_begin},
    {DIBS_OP_ONCE_WAIT, DIBS__NO_OPTIONS, true, false, true, ask_once_wait},
    {DIBS_OP_ONCE_RERUN, DIBS__NO_OPTIONS, true, false, false, ask_once_rerun},
    {DIBS_OP_ONCE_STEP, DIBS__NO_OPTIONS, true, false, false, ask_once_step},
    {DIBS_OP_ONCE_FINISH, DIBS__NO_OPTIONS, true, false, false, ask_once_finish},
    {DIBS_OP_ONCE_FAIL, DIBS__NO_OPTIONS, true, false, false, ask_once_fail},
    {DIBS_OP_ONCE_UNDO, DIBS__NO_OPTIONS, true, false, false, ask_once_undo},
    {DIBS_OP_ONCE_ABANDON, DIBS__NO_OPTIONS, true, false, false, ask_once_abandon},
    {DIBS_OP_ONCE_LIST, DIBS__ONCE_LIST_OPTIONS, false, false, false, ask_once_list},
    {DIBS_OP_ONCE_INSPECT, DIBS__ONCE_INSPECT_OPTIONS, false, false, false, ask_once_inspect},
    {DIBS_OP_ONCE_FORGET, DIBS__ONCE_FORGET_OPTIONS, false, false, false, ask_once_forget},
    {DIBS_OP_ONCE_RESOLVE, DIBS__ONCE_RESOLVE_OPTIONS, false, false, false, ask_once_resolve},
    {DIBS_OP_TOKEN_ISSUE, DIBS__TOKEN_OPTIONS, false, false, false, ask_token_issue},
    {DIBS_OP_TOKEN_REDEEM, DIBS__TOKEN_OPTIONS, false, false, false, ask_token_redeem},
    {DIBS_OP_TOKEN_REISSUE, DIBS__TOKEN_OPTIONS, false, false, false, ask_token_reissue},
    {DIBS_OP_COUNTER_GET, DIBS__NO_OPTIONS, false, false, false, ask_counter_get},
    {DIBS_OP_COUNTER_SET, DIBS__COUNTER_OPTIONS, false, false, false, ask_counter_set},
    {DIBS_OP_COUNTER_ADD, DIBS__COUNTER_OPTIONS, false, false, false, ask_counter_add},
    {DIBS_OP_COUNTER_TAKE, DIBS__COUNTER_OPTIONS, false, false, false, ask_counter_take},
    {DIBS_OP_CELL_READ, DIBS__NO_OPTIONS, false, false, false, ask_cell_read},
    {DIBS_OP_CELL_SWAP, DIBS__CELL_OPTIONS, false, false, false, ask_cell_swap},
    {DIBS_OP_CELL_DELETE, DIBS__CELL_OPTIONS, false, false, false, ask_cell_delete},
    {DIBS_OP_CELL_PASS, DIBS__CELL_OPTIONS, false, false, false, ask_cell_pass},
};

const dibs__op_row *dibs__op_find(dibs_op op)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].op == op)
            return &rows[i];
    return NULL;
}

/* ---- Making one -------------------------------------------------------------------------------- */

/* On the keeper: the time has come. */
static void repeat(dibs *d, dibs__keeper_task *c, int64_t now)
{
    (void)now;
    dibs__job_add(d, &DIBS__FROM(dibs__request, again, c)->job);
}

/* An engine that does not answer for a while does not end a wait that has begun. */
static bool is_not_yet(const dibs__request *r, dibs_status status)
{
    if (!r->row->waits)
        return false;
    return status == (r->op == DIBS_OP_LOCK_BREAK ? DIBS_BUSY : DIBS_RUNNING) ||
           (r->begun && (status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN));
}

static void wait_more(dibs *d, dibs__request *r)
{
    int64_t now = dibs__now(d->env);

    r->begun = true;
    r->pause = dibs__longer(r->pause, FIRST_PAUSE, MAX_PAUSE);
    r->again.run = repeat;
    dibs__keeper_task_at(d, &d->maintenance, &r->again, dibs__sooner(now + r->pause, r->until));
}

static void perform_call(dibs *d, dibs__request *r)
{
    dibs_status status;

    pthread_mutex_unlock(&d->mutex);
    status = r->row->ask(d, r);
    if (r->op == DIBS_OP_ONCE_BEGIN && r->begun && !is_not_yet(r, status) &&
        !dibs__once_is_answer(status)) {
        dibs_once_free(r->of.call->once);
        r->of.call->once = NULL;
    }
    pthread_mutex_lock(&d->mutex);
    if (!is_not_yet(r, status) || (dibs__now(d->env) >= r->until && !r->stopped))
        dibs__request_end(r);
    else if (r->stopped || d->closing)
        dibs__request_cancel(r);
    else
        wait_more(d, r);
}

static void perform_unlock(dibs *d, dibs__request *r)
{
    dibs__call *c = r->of.call;
    dibs__deadline until = d->closing ? dibs__sooner(r->send_until, d->close_until) : r->send_until;
    dibs_status status = dibs__unlock_end(r->grant, &c->unlocking, dibs__now(d->env) < until);

    dibs__error_settle(&c->err, dibs__unlock_say(&c->unlocking, status, &c->err), DIBS_NEXT_NONE);
    dibs__request_end(r);
}

void dibs__request_perform(dibs *d, dibs__job *j)
{
    dibs__request *r = DIBS__FROM(dibs__request, job, j);

    if (r->op == DIBS_OP_UNLOCK) {
        perform_unlock(d, r);
    } else if (!r->begun && dibs__now(d->env) >= r->send_until) {
        dibs__error_settle(&r->of.call->err,
                           dibs__fail(&r->of.call->err, DIBS_UNAVAILABLE,
                                      "not sent: the engine does not answer earlier requests"),
                           DIBS_NEXT_REPEAT);
        dibs__request_end(r);
    } else {
        perform_call(d, r);
    }
}
