/* Requests: calls that are made without waiting for the answer.
 *
 * Starting one copies its arguments and does no I/O. It goes well: a worker makes the blocking call that its op
 * names, and the outcome is listed until dibs_take. A lock's request is a ticket: a worker enters, and the keeper
 * and the engine's events do the rest. A wait for another's run or for a break is the same call without waiting, made
 * again at growing intervals: no worker sits in it. It fails like the call; also when no worker came to it in time,
 * because the engine does not answer: then it was not sent. */
#define _GNU_SOURCE
#include "calls/request.h"

#include "core/error.h"
#include "core/thread.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_MAX (2 * DIBS_GRANT_SIZE) /* no valid text is longer: it is refused, cut off or not */

/* ---- What a request ended with ---------------------------------------------------------------- */

static void free_request(dibs__request *r)
{
    if (r->reserved)
        dibs__keeper_unreserve(r->d);
    if (r->op == DIBS_OP_LOCK)
        dibs__ticket_fini(&r->of.ticket);
    free(r);
}

/* Granted, but lost before it was taken: nobody had it. The keeper asks the engine, because taking never
 * blocks. */
static void take_away(dibs__ticket *t)
{
    dibs_grant *g = t->grant;
    dibs_error err;

    t->status = dibs__fail(&err, DIBS_LOST,
                           "'%.200s' was granted and lost before its outcome was taken: %s",
                           g->name, dibs_loss_text(dibs_grant_loss(g)));
    dibs__ticket_note(t, &err);
    dibs__grant_ref(g); /* the ticket's own */
    if (--g->depth == 0) {
        if (dibs__news_drop(g->d, &g->news))
            dibs__grant_unref(g);
        dibs__grant_orphan(g, false);
    }
}

static void fill_lock(dibs__request *r, dibs_outcome *out)
{
    dibs__ticket *t = &r->of.ticket;

    if (t->status == DIBS_OK && !dibs__grant_deliver(t->grant))
        take_away(t);
    if (t->status == DIBS_OK)
        out->grant = t->grant;
    else
        dibs__grant_unref(t->grant);
    dibs__ticket_error(t, &out->err);
    dibs__error_settle(&out->err, t->status, DIBS_NEXT_REPEAT);
}

static void fill_call(const dibs__request *r, dibs_outcome *out)
{
    const dibs__call *c = r->of.call;

    out->once = c->once;
    out->grant = c->grant;
    out->lock_report = c->report;
    out->once_report = c->once_report;
    out->value = c->value;
    out->number = r->op >= DIBS_OP_COUNTER_GET && r->op <= DIBS_OP_COUNTER_TAKE ? c->number : 0;
    memcpy(out->token, c->token, sizeof out->token);
    out->err = c->err;
}

static void fill(dibs *d, dibs__news *n, dibs_outcome *out)
{
    dibs__request *r = DIBS__FROM(dibs__request, outcome, n);

    (void)d;
    out->id = r->id;
    out->op = r->op;
    out->user = r->user;
    if (r->op == DIBS_OP_LOCK)
        fill_lock(r, out);
    else
        fill_call(r, out);
    free_request(r);
}

/* Nobody took it. Grants and runs are freed with the handle. */
static void free_outcome(dibs_outcome *out)
{
    dibs_lock_report_free(out->lock_report);
    dibs_once_report_free(out->once_report);
    dibs_value_free(&out->value);
}

void dibs__request_end(dibs__request *r)
{
    dibs__table_remove(&r->d->requests, &r->by_id);
    if (r->grant && r->op != DIBS_OP_UNLOCK)
        dibs__grant_unref(r->grant);
    r->outcome.fill = fill;
    dibs__news_add(r->d, &r->outcome);
}

static void lock_done(dibs *d, dibs__ticket *t)
{
    dibs__request *r = DIBS__FROM(dibs__request, of.ticket, t);

    (void)d;
    dibs__request_end(r);
}

void dibs__request_cancel(dibs__request *r)
{
    dibs__call *c = r->of.call;

    if (r->op == DIBS_OP_ONCE_BEGIN && c->once) {
        dibs__once_leave(c->once);
        c->once = NULL;
    }
    dibs__error_clear(&c->err);
    dibs__error_settle(&c->err, DIBS_CANCELLED, DIBS_NEXT_NONE);
    dibs__request_end(r);
}

/* ---- Copying the arguments -------------------------------------------------------------------- */

/* `at` NULL: it is only measured. */
typedef struct room {
    char *at;
    size_t used;
} room;

static const void *put(room *to, const void *bytes, size_t size)
{
    char *copy = to->at ? to->at + to->used : NULL;

    if (!bytes)
        return NULL;
    if (copy)
        memcpy(copy, bytes, size);
    to->used += size;
    return copy;
}

static const char *put_text(room *to, const char *text)
{
    size_t n = text ? strnlen(text, TEXT_MAX) : 0;
    const char *copy = put(to, text, n);

    if (text)
        put(to, "", 1);
    return copy;
}

/* Each copies one kind of options: the members, and the texts behind them. */
static void put_lock(room *to, const dibs_request *r, dibs__call *c)
{
    c->options.lock = *r->options.lock;
    c->options.lock.owner = put_text(to, r->options.lock->owner);
}

static void put_list(room *to, const dibs_request *r, dibs__call *c)
{
    c->options.lock_list = *r->options.lock_list;
    c->options.lock_list.after = put_text(to, r->options.lock_list->after);
}

static void put_break(room *to, const dibs_request *r, dibs__call *c)
{
    c->options.lock_break = *r->options.lock_break;
    c->options.lock_break.by = put_text(to, r->options.lock_break->by);
}

static void put_once(room *to, const dibs_request *r, dibs__call *c)
{
    const dibs_once_options *o = r->options.once;

    c->options.once = *o;
    c->options.once.scope = put_text(to, o->scope);
    c->options.once.owner = put_text(to, o->owner);
    c->options.once.fingerprint = put(to, o->fingerprint, o->fingerprint_size);
}

static void put_once_list(room *to, const dibs_request *r, dibs__call *c)
{
    c->options.once_list = *r->options.once_list;
    c->options.once_list.scope = put_text(to, r->options.once_list->scope);
    c->options.once_list.after = put_text(to, r->options.once_list->after);
}

static void put_once_inspect(room *to, const dibs_request *r, dibs__call *c)
{
    c->options.once_inspect = *r->options.once_inspect;
    c->options.once_inspect.scope = put_text(to, r->options.once_inspect->scope);
}

static void put_once_forget(room *to, const dibs_request *r, dibs__call *c)
{
    c->options.once_forget = *r->options.once_forget;
    c->options.once_forget.scope = put_text(to, r->options.once_forget->scope);
    c->options.once_forget.by = put_text(to, r->options.once_forget->by);
}

static void put_once_resolve(room *to, const dibs_request *r, dibs__call *c)
{
    const dibs_once_resolve_options *o = r->options.once_resolve;

    c->options.once_resolve = *o;
    c->options.once_resolve.scope = put_text(to, o->scope);
    c->options.once_resolve.by = put_text(to, o->by);
    c->options.once_resolve.result = put(to, o->result, o->size);
}

static void put_token(room *to, const dibs_request *r, dibs__call *c)
{
    c->options.token = *r->options.token;
    c->options.token.scope = put_text(to, r->options.token->scope);
}

static void put_counter(room *to, const dibs_request *r, dibs__call *c)
{
    c->options.counter = *r->options.counter;
    c->options.counter.request = put_text(to, r->options.counter->request);
}

/* The grant may be gone when the request is sent, and may be another handle's: only its fence goes along. */
static void put_cell(room *to, const dibs_request *r, dibs__call *c)
{
    dibs_cell_options *o = &c->options.cell;

    (void)to;
    *o = *r->options.cell;
    dibs__grant_guard(r->options.cell, &o->fence, &o->floor, NULL); /* it was checked */
    o->grant = NULL;
}

static void put_options(room *to, const dibs_request *r, dibs__options_kind kind, dibs__call *c)
{
    static void (*const put_kind[])(room *, const dibs_request *, dibs__call *) = {
        [DIBS__LOCK_OPTIONS] = put_lock,
        [DIBS__LIST_OPTIONS] = put_list,
        [DIBS__BREAK_OPTIONS] = put_break,
        [DIBS__ONCE_OPTIONS] = put_once,
        [DIBS__ONCE_LIST_OPTIONS] = put_once_list,
        [DIBS__ONCE_INSPECT_OPTIONS] = put_once_inspect,
        [DIBS__ONCE_FORGET_OPTIONS] = put_once_forget,
        [DIBS__ONCE_RESOLVE_OPTIONS] = put_once_resolve,
        [DIBS__TOKEN_OPTIONS] = put_token,
        [DIBS__COUNTER_OPTIONS] = put_counter,
        [DIBS__CELL_OPTIONS] = put_cell,
    };

    if (kind != DIBS__NO_OPTIONS && r->options.lock) /* the same pointer, whatever its kind */
        put_kind[kind](to, r, c);
}

static void put_call(room *to, const dibs_request *r, const dibs__op_row *row, dibs__call *c)
{
    c->name = put_text(to, r->name);
    c->data = put(to, r->data, r->size);
    c->size = r->size;
    c->version = r->version;
    c->number = r->number;
    c->once = row->takes_once ? r->once : NULL;
    put_options(to, r, row->options, c);
}

/* ---- Stopping ---------------------------------------------------------------------------------- */

/* With the mutex: one that has no outcome yet. */
static void stop(dibs__request *r)
{
    dibs *d = r->d;

    if (r->op == DIBS_OP_LOCK) {
        dibs__ticket_cancel(&r->of.ticket);
    } else if (r->row && dibs__job_drop(d, &r->job)) {
        dibs__request_cancel(r);
    } else if (r->row && r->again.due.index != 0) {
        dibs__heap_remove(&d->maintenance, &r->again.due);
        dibs__request_cancel(r);
    } else {
        r->stopped = true;
    }
}

/* Stopping takes at most the request itself out of the table. */
static void stop_all(dibs *d, bool (*which)(const dibs__request *r, const char *name),
                     const char *name)
{
    for (size_t i = 0; i < d->requests.size; i++) {
        for (dibs__node *n = d->requests.slot[i], *next; n; n = next) {
            dibs__request *r = DIBS__FROM(dibs__request, by_id, n);
            next = n->next;
            if (which(r, name))
                stop(r);
        }
    }
}

static bool is_any(const dibs__request *r, const char *name)
{
    (void)name;
    return r->op != DIBS_OP_UNLOCK && r->op != DIBS_OP_DRAIN;
}

/* A lock's wait is its ticket's. */
static bool waits_for(const dibs__request *r, const char *name)
{
    if (r->op == DIBS_OP_LOCK_BREAK)
        return !name || (r->of.call->name && strcmp(r->of.call->name, name) == 0);
    return !name && (r->op == DIBS_OP_ONCE_BEGIN || r->op == DIBS_OP_ONCE_WAIT);
}

/* With the mutex. */
static void stop_requests(dibs *d)
{
    stop_all(d, is_any, NULL);
}

void dibs_stop(dibs *d, uint64_t id)
{
    if (!dibs__same_process(d))
        return;
    pthread_mutex_lock(&d->mutex);
    for (dibs__node *n = dibs__table_first(&d->requests, id); n; n = dibs__table_next(n)) {
        dibs__request *r = DIBS__FROM(dibs__request, by_id, n);
        if (r->id == id) {
            stop(r);
            break;
        }
    }
    pthread_mutex_unlock(&d->mutex);
}

void dibs_cancel(dibs *d, const char *name)
{
    if (!dibs__same_process(d))
        return;
    pthread_mutex_lock(&d->mutex);
    dibs__waits_cancel(d, name);
    stop_all(d, waits_for, name);
    pthread_mutex_unlock(&d->mutex);
}

/* ---- Starting ---------------------------------------------------------------------------------- */

static dibs__request *new_request(dibs *d, const dibs_request *from, size_t more)
{
    size_t size = from->op == DIBS_OP_LOCK ? 0 : sizeof(dibs__call) + more;
    dibs__request *r = calloc(1, sizeof *r + size);

    if (r) {
        if (size > 0)
            r->of.call = (dibs__call *)(r + 1);
        r->d = d;
        r->op = from->op;
        r->user = from->user;
        r->job.run = dibs__request_perform;
        r->send_until = dibs__after(d->env, d->request_span);
    }
    return r;
}

static dibs__request *new_call(dibs *d, const dibs_request *from, const dibs__op_row *row)
{
    room size = {0}, text = {0};
    dibs__call measured = {0};
    dibs__request *r;

    put_call(&size, from, row, &measured);
    r = new_request(d, from, size.used);
    if (!r)
        return NULL;
    text.at = (char *)(r->of.call + 1);
    r->row = row;
    put_call(&text, from, row, r->of.call);
    r->grant = row->takes_grant ? from->grant : NULL;
    return r;
}

static dibs_status check_bytes(const void *data, size_t size, dibs_error *err)
{
    if (size > DIBS_VALUE_MAX || (size > 0 && !data))
        return dibs__fail(err, DIBS_INVALID, "invalid data: give at most %d bytes", DIBS_VALUE_MAX);
    return DIBS_OK;
}

/* What is copied before the call itself looks at it, or may be gone by then. */
static dibs_status check_options(const dibs_request *r, dibs__options_kind kind, dibs_error *err)
{
    uint64_t fence, floor;

    if (!r->options.lock)
        return DIBS_OK;
    if (kind == DIBS__ONCE_RESOLVE_OPTIONS)
        return check_bytes(r->options.once_resolve->result, r->options.once_resolve->size, err);
    if (kind == DIBS__ONCE_OPTIONS)
        return dibs__check_fingerprint(r->options.once->fingerprint,
                                       r->options.once->fingerprint_size, err);
    return kind == DIBS__CELL_OPTIONS ? dibs__grant_guard(r->options.cell, &fence, &floor, err)
                                      : DIBS_OK;
}

static dibs_status check_call(const dibs *d, const dibs_request *r, const dibs__op_row *row,
                              dibs_error *err)
{
    dibs_status status;

    if (!row)
        return dibs__fail(err, DIBS_INVALID, "unknown op: %d", (int)r->op);
    if (row->takes_grant && (!r->grant || r->grant->d != d))
        return dibs__fail(err, DIBS_INVALID, "no grant of this handle given");
    if (row->takes_once && (!r->once || r->once->d != d))
        return dibs__fail(err, DIBS_INVALID, "no run of this handle given");
    if ((r->op == DIBS_OP_ONCE_FINISH || r->op == DIBS_OP_ONCE_FAIL) && (int)r->number != r->number)
        return dibs__fail(err, DIBS_INVALID, "invalid code %lld: it does not fit into an int",
                          (long long)r->number);
    status = check_bytes(r->data, r->size, err);
    return status == DIBS_OK ? check_options(r, row->options, err) : status;
}

/* With the mutex: it can be found, and there is somebody to do it. */
static dibs_status enlist(dibs__request *r, dibs_error *err)
{
    dibs *d = r->d;

    if (d->closing)
        return dibs__closing(err);
    if (r->row && r->row->waits) {
        r->reserved = dibs__keeper_reserve(d);
        if (!r->reserved)
            return dibs__fail(err, DIBS_NO_MEMORY, "out of memory or threads");
    }
    if (!dibs__workers_start(d) || !dibs__table_reserve(&d->requests))
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory or threads");
    d->stop_requests = stop_requests;
    d->free_outcome = free_outcome;
    r->id = ++d->requests_made;
    dibs__table_add(&d->requests, &r->by_id, r->id);
    return DIBS_OK;
}

/* It takes as long as there are locks, or keys: nothing for the caller's thread. */
static bool is_listing(const dibs__request *r)
{
    return r->op == DIBS_OP_LOCK_LIST || r->op == DIBS_OP_ONCE_LIST;
}

/* With the mutex, which may be given away. How long it may wait is counted from here. */
static void begin_call(dibs__request *r)
{
    dibs *d = r->d;
    dibs__call *c = r->of.call;
    int64_t *wait_ms = r->op == DIBS_OP_LOCK_BREAK   ? &c->options.lock_break.wait_ms
                       : r->op == DIBS_OP_ONCE_BEGIN ? &c->options.once.wait_ms
                                                     : &c->number;

    if (r->row->waits && dibs__check_wait(*wait_ms, NULL) == DIBS_OK) {
        r->until = dibs__wait_until(d, dibs__wait_ms(d, *wait_ms));
        *wait_ms = DIBS_NO_WAIT; /* what is invalid, the call itself refuses */
    }
    if (r->grant)
        dibs__grant_ref(r->grant);
    if (is_listing(r))
        dibs__job_add(d, &r->job);
    else
        dibs__job_do(d, &r->job);
}

/* The same. While a callback about the grant runs, unlocking waits for its end. */
static void begin_unlock(dibs__request *r, dibs_grant *g)
{
    dibs__call *c = r->of.call;
    dibs_status status = dibs__unlock_begin(g, &c->unlocking);

    r->grant = g;
    if (c->unlocking.last && g->news.calling) {
        dibs__job_add(r->d, &r->job);
        return;
    }
    if (c->unlocking.last) {
        dibs__job_do(r->d, &r->job);
        return;
    }
    dibs__error_settle(&c->err, dibs__unlock_say(&c->unlocking, status, &c->err), DIBS_NEXT_NONE);
    dibs__request_end(r);
}

static void *drain_main(void *data)
{
    dibs__request *r = data;
    dibs *d = r->d;

    dibs__drain(d);
    pthread_mutex_lock(&d->mutex);
    dibs__request_end(r);
    pthread_mutex_unlock(&d->mutex);
    return NULL;
}

static dibs_status begin(dibs__request *r, const dibs_request *from, dibs_error *err)
{
    dibs *d = r->d;

    switch (r->op) {
    case DIBS_OP_LOCK:
        r->of.ticket.done = lock_done;
        return dibs__lock_request(d, from->name, from->options.lock, &r->of.ticket, err);
    case DIBS_OP_UNLOCK:
        begin_unlock(r, from->grant);
        return DIBS_OK;
    case DIBS_OP_DRAIN:
        if (!dibs__thread_start(&d->drainer, drain_main, r))
            return dibs__fail(err, DIBS_NO_MEMORY, "no thread could be started");
        d->closing = d->drainer_runs = true;
        d->close_until = dibs__after(d->env, d->request_span);
        return DIBS_OK;
    default:
        begin_call(r);
        return DIBS_OK;
    }
}

static dibs_status check(const dibs *d, const dibs_request *r, const dibs__op_row *row,
                         dibs_error *err)
{
    dibs_status status = dibs__same_process(d) ? DIBS__CHECK_RESERVED(r, err) : dibs__forked(err);

    if (status != DIBS_OK)
        return status;
    if (r->op == DIBS_OP_UNLOCK && (!r->grant || r->grant->d != d))
        return dibs__fail(err, DIBS_INVALID, "no grant of this handle to unlock");
    if (r->op == DIBS_OP_LOCK || r->op == DIBS_OP_UNLOCK || r->op == DIBS_OP_DRAIN)
        return DIBS_OK;
    return check_call(d, r, row, err);
}

dibs_status dibs__do_start(dibs *d, const dibs_request *from, uint64_t *id, dibs_error *err)
{
    const dibs__op_row *row = dibs__op_find(from->op);
    dibs__request *r;
    dibs_status status = check(d, from, row, err);

    if (id)
        *id = 0;
    if (status != DIBS_OK)
        return status;
    r = row ? new_call(d, from, row) : new_request(d, from, 0);
    if (!r)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    pthread_mutex_lock(&d->mutex);
    status = enlist(r, err);
    if (status == DIBS_OK) {
        uint64_t number = r->id; /* it may be taken and freed as soon as the mutex is */
        status = begin(r, from, err);
        if (status != DIBS_OK)
            dibs__table_remove(&d->requests, &r->by_id);
        else if (id)
            *id = number;
    }
    if (status != DIBS_OK)
        free_request(r);
    pthread_mutex_unlock(&d->mutex);
    return status;
}
