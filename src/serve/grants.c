/* POST /v1/renew and /v1/release. Operations on one set come one after another. A grant that is not here is
 * taken up first: it was given out by another server, or expired here by the local clock. */
#define _GNU_SOURCE
#include "serve/bound.h"
#include "serve/past.h"
#include "serve/sets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct serve_op {
    serve_op *next;
    serve_set *set;
    http_exchange *x; /* NULL: its client has gone; it is done all the same */
    size_t out;
    bool started, release, unlocking;
    dibs_error err; /* the first one */
};

static void run_through(serve_set *set);

static void note(serve_op *op, const dibs_error *err)
{
    if (op->err.status == DIBS_OK)
        op->err = *err;
}

static void on_gone(void *data)
{
    ((serve_op *)data)->x = NULL;
}

/* ---- Answers --------------------------------------------------------------------------------- */

static void answer(serve_op *op)
{
    http_exchange *x = op->x;

    op->x = NULL;
    if (!x)
        return;
    if (op->err.status != DIBS_OK)
        http_reply_error(x, &op->err);
    else if (op->release)
        http_reply_json(x, 200, json_pack("{s:b}", "released", true));
    else
        http_reply_json(x, 200, serve_set_json(op->set));
}

/* A grant that could not be taken up leaves nothing here. */
static bool is_empty(const serve_set *set)
{
    for (size_t i = 0; i < set->count; i++)
        if (set->locks[i].g)
            return false;
    return true;
}

/* It is freed behind the operations that wait. */
static void end_set(serve_set *set, const serve_op *op)
{
    set->released = op->err.status == DIBS_OK;
    if (!set->released)
        serve_set_delist_id(set); /* asked again, it is looked up again */
    serve_set_end(set);
}

static void finish(serve_op *op)
{
    serve_set *set = op->set;

    set->first_op = op->next;
    if (op->err.status == DIBS_OK && !op->release)
        serve_set_renewed(set);
    answer(op);
    if (set->state == SERVE_HELD && (op->release || is_empty(set)))
        end_set(set, op);
    free(op);
    run_through(set);
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* Which lock of which operation an outcome is about. */
typedef struct step {
    serve_op *op;
    serve_lock *lock;
} step;

static void unlock_all(serve_op *op);

static void step_done(serve_op *op)
{
    if (--op->out > 0)
        return;
    if (op->release && !op->unlocking)
        unlock_all(op);
    else
        finish(op);
}

static void on_step(void *data, dibs_outcome *o)
{
    step *st = data;
    serve_op *op = st->op;
    serve_lock *lock = st->lock;

    if (o->op == DIBS_OP_GRANT_ADOPT) {
        lock->g = o->grant;
        if (o->grant && !lock->name)
            lock->name = strdup(dibs_grant_name(o->grant));
        if (o->grant && o->err.status != DIBS_OK)
            lock->lost = dibs_grant_loss(o->grant);
    }
    if (o->err.status != DIBS_OK)
        note(op, &o->err);
    free(st);
    step_done(op);
}

static void ask(serve_op *op, serve_lock *lock, dibs_request *r)
{
    step *st = malloc(sizeof *st);
    dibs_error err = {.status = DIBS_NO_MEMORY, .next = DIBS_NEXT_LATER};

    if (st)
        *st = (step){op, lock};
    op->out++;
    if (st && serve_ask(op->set->s, r, on_step, st, NULL, &err) == DIBS_OK)
        return;
    free(st);
    op->out--;
    note(op, &err);
}

static void unlock_all(serve_op *op)
{
    serve_set *set = op->set;

    op->unlocking = true;
    op->out++;
    for (size_t i = 0; i < set->count; i++)
        if (set->locks[i].g) {
            dibs_request r = {.op = DIBS_OP_UNLOCK, .grant = set->locks[i].g};
            set->locks[i].g = NULL;
            ask(op, &set->locks[i], &r);
        }
    step_done(op);
}

static void ask_about(serve_op *op, serve_lock *lock)
{
    const dibs_lock_options options = {.no_renew = true, .data = lock};
    dibs_request adopt = {.op = DIBS_OP_GRANT_ADOPT, .name = lock->text, .options.lock = &options};
    dibs_request renew = {.op = DIBS_OP_RENEW, .grant = lock->g};

    if (!lock->g && lock->text)
        ask(op, lock, &adopt);
    else if (!lock->g)
        note(op, &(dibs_error){.status = DIBS_LOST, .next = DIBS_NEXT_RESTART});
    else if (!op->release && !op->set->terms.by_keeper)
        ask(op, lock, &renew);
    else if (!op->release && !dibs_grant_held(lock->g))
        note(op, &(dibs_error){.status = DIBS_LOST, .next = DIBS_NEXT_RESTART});
}

/* What came before may have ended the set. */
static void start(serve_op *op)
{
    serve_set *set = op->set;

    op->started = true;
    op->out = 1;
    if (set->state == SERVE_ENDED && !(op->release && set->released))
        note(op, &(dibs_error){.status = DIBS_LOST, .next = DIBS_NEXT_RESTART});
    if (set->state == SERVE_ENDED)
        op->unlocking = true;
    for (size_t i = 0; set->state == SERVE_HELD && i < set->count; i++)
        ask_about(op, &set->locks[i]);
    step_done(op);
}

/* Thousands may be in the queue, and end at once because the first one has ended the set: they come here one after
 * another, not one inside the other. */
static void run_through(serve_set *set)
{
    if (set->operating)
        return;
    set->operating = true;
    while (set->first_op && !set->first_op->started)
        start(set->first_op);
    set->operating = false;
    if (set->first_op)
        return;
    if (set->state == SERVE_ENDED)
        serve_set_free(set);
    else
        serve_set_settle(set);
}

/* ---- Requests -------------------------------------------------------------------------------- */

/* A set of texts, whose grants are taken up by the first operation. */
static serve_set *set_of_texts(serve *s, const char *id, dibs_error *err)
{
    char *copy = strdup(id), *texts[SERVE_NAMES];
    int64_t lease_ms;
    size_t n = copy ? serve_id_split(copy, &lease_ms, texts) : 0;
    serve_set *set = n > 0 ? calloc(1, sizeof *set + n * sizeof(serve_lock)) : NULL;

    *err = (dibs_error){.status = n > 0 || !copy ? DIBS_NO_MEMORY : DIBS_INVALID};
    if (err->status == DIBS_INVALID)
        strcpy(err->message, "invalid grant: send the text that acquire returned, unchanged");
    if (set) {
        set->s = s;
        set->state = SERVE_HELD;
        set->delivered = set->used = true;
        set->count = set->held = n;
        set->terms = (serve_terms){.lease_ms = lease_ms, .portable = true};
        set->lost = serve_set_on_lost;
        set->id = strdup(id);
        for (size_t i = 0; i < n; i++) {
            set->locks[i].set = set;
            set->locks[i].text = strdup(texts[i]);
        }
        if (!set->id || !serve_set_enlist_id(set)) {
            serve_set_free(set);
            set = NULL;
        }
    }
    free(copy);
    return set;
}

static void queue(serve_set *set, http_exchange *x, bool release)
{
    serve_op *op = calloc(1, sizeof *op), **last = &set->first_op;

    if (!op) {
        http_reply_error(x, &(dibs_error){.status = DIBS_NO_MEMORY});
        return;
    }
    op->set = set;
    op->x = x;
    op->release = release;
    http_on_gone(x, on_gone, op);
    while (*last)
        last = &(*last)->next;
    *last = op;
    run_through(set);
}

/* A grant that was released here a moment ago. */
static bool has_ended(serve *s, http_exchange *x, const char *id, bool release)
{
    if (!serve_past_of_id(s->past, serve_past_id(id), http_now_ms()))
        return false;
    if (release)
        http_reply_json(x, 200, json_pack("{s:b}", "released", true));
    else
        http_reply_error(x, &(dibs_error){.status = DIBS_LOST, .next = DIBS_NEXT_RESTART});
    return true;
}

static void operate(http_exchange *x, bool release)
{
    serve *s = http_context(x);
    const char *id = http_text(x, "grant");
    serve_set *set = serve_set_of_id(s, id);
    dibs_error err;

    if (!set && has_ended(s, x, id, release))
        return;
    if (!set && (serve_is_bound(id) || s->engine->lease_of_handle)) {
        serve_bound_refuse(x, id, "grant");
        return;
    }
    if (!set)
        set = set_of_texts(s, id, &err);
    if (set)
        queue(set, x, release);
    else
        http_reply_error(x, &err);
}

static void renew(http_exchange *x)
{
    operate(x, false);
}

static void release(http_exchange *x)
{
    operate(x, true);
}

/* Closing the handle would release what it holds. What cannot be detached ends with the process: see serve.c. */
static void drain(serve_set *set)
{
    if (set->state != SERVE_HELD)
        return;
    if (set->terms.portable && !set->first_op)
        serve_set_detach(set);
    else
        set->s->left_behind++;
}

void serve_grants_drain(serve *s)
{
    serve_sets_each(s->by_id, drain);
}

static const http_field fields[] = {
    {"grant", HTTP_TEXT, 1, SERVE_ID_MAX, "The grant, as it was returned.", true},
    {0},
};
static const http_answer renewed[] = {{200, "Grant"}, {410, "Problem"}, {421, "Problem"}, {0}};
static const http_answer released[] = {{200, "Released"}, {410, "Problem"}, {421, "Problem"}, {0}};

const http_route serve_grant_routes[] = {
    {.method = "POST",
     .path = "/v1/renew",
     .verb = HTTP_LOCK,
     .summary = "Renew the lease of a grant, in full",
     .body = fields,
     .answers = renewed,
     .handle = renew},
    {.method = "POST",
     .path = "/v1/release",
     .verb = HTTP_LOCK,
     .summary = "Release a grant",
     .body = fields,
     .answers = released,
     .handle = release},
    {0},
};
