/* A guarded request: its key is claimed, it is sent to the application once, its answer is kept, and duplicates get
 * that answer.
 *
 * On the way: the body is read and hashed; the key is claimed (or it is done, in progress, crashed: then that is the
 * answer); the fence is presented and the token redeemed, by the one request that has the claim; the application is asked; its
 * answer goes to the client as it comes, except its end. The end follows when the claim is finished in the engine:
 * whoever has a whole answer can rely on its replay. Whatever goes wrong before a byte was sent undoes the claim,
 * whatever goes wrong after that leaves its outcome unknown. */
#define _GNU_SOURCE
#include "gateway/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAUSE_MS = 200 };

/* ---- Ending the claim -------------------------------------------------------------------------- */

void gate_guard_deliver(gate_guard *g)
{
    gate_exchange *x = g->x;

    if (x->client && !g->broken)
        http_buffer_add(&x->client->c.out, http_buffer_start(&g->tail), http_buffer_size(&g->tail));
    gate_exchange_finish(x, g->broken);
}

static void on_over(http_timer *timer)
{
    gate_guard_deliver((gate_guard *)((char *)timer - offsetof(gate_guard, timer)));
}

/* An answer of our own promises nothing that the engine has to confirm: the client need not wait for it. */
static void let_client_go(gate_guard *g)
{
    gate_client *c = g->x->client;

    if (!c || !g->own)
        return;
    http_buffer_add(&c->c.out, http_buffer_start(&g->tail), http_buffer_size(&g->tail));
    gate_client_answered(c);
    g->x->client = NULL;
}

static void on_pause(http_timer *timer)
{
    gate_guard *g = (gate_guard *)((char *)timer - offsetof(gate_guard, timer));

    gate_guard_settle(g, g->ending);
}

void gate_guard_set_claimed(gate_guard *g, bool claimed)
{
    if (g->claimed != claimed)
        g->x->g->claims += claimed ? 1 : -1;
    g->claimed = claimed;
}

/* What was not settled is settled by the end of the lease: the key is crashed then. */
static void on_settled(void *data, dibs_outcome *o)
{
    gate_guard *g = data;
    gate_exchange *x = g->x;

    g->busy = false;
    if (o->err.status != DIBS_OK && o->err.status != DIBS_LOST && dibs_once_held(g->once)) {
        http_timer_set(x->g->http, &g->timer, PAUSE_MS, on_pause);
        let_client_go(g);
        return;
    }
    gate_guard_set_claimed(g, false);
    if (o->err.status == DIBS_OK) {
        gate_guard_deliver(g);
        return;
    }
    gate_say(x->g, "the claim of key %s was lost: its answer is not stored (%s)", g->key_hash,
             o->err.message);
    g->broken |= !g->own;
    x->result = GATE_FAILED;
    http_timer_set(x->g->http, &g->timer, PAUSE_MS,
                   on_over); /* until the library has noticed, too */
}

void gate_guard_settle(gate_guard *g, dibs_op op)
{
    gate_exchange *x = g->x;
    http_buffer all = {0};
    dibs_request r = {.op = op, .once = g->once, .number = x->status};
    dibs_error err;

    g->ending = op;
    if (!g->claimed) {
        gate_guard_deliver(g);
        return;
    }
    if (op == DIBS_OP_ONCE_FINISH) {
        gate_stored_encode(&all, &g->head, g->too_large ? NULL : &g->kept, &g->trailers);
        r.data = http_buffer_start(&all);
        r.size = http_buffer_size(&all);
    }
    g->busy = !all.failed && gate_ask(x->g, &r, on_settled, g, NULL, &err) == DIBS_OK;
    http_buffer_free(&all);
    if (!g->busy)
        http_timer_set(x->g->http, &g->timer, PAUSE_MS, on_pause);
}

/* ---- The answer -------------------------------------------------------------------------------- */

static gate_on_error judge_answer(const gate_route *route, int status)
{
    return status >= 500 ? route->on_5xx : status == 429 ? route->on_429 : GATE_KEEP;
}

void gate_guard_head(gate_exchange *x, const wire_head *h)
{
    gate_guard *g = x->guard;
    http_buffer *out;

    g->verdict = judge_answer(x->route, h->status);
    if (g->claimed)
        gate_stored_head(&g->head, h, x->route->set_cookie);
    if (!x->client)
        return;
    http_buffer_drop(&g->tail, http_buffer_size(&g->tail));
    g->hold = h->framing == WIRE_EMPTY || (h->framing == WIRE_LENGTH && h->length == 0) ||
              (x->minor == 0 && h->framing != WIRE_LENGTH);
    out = g->hold && g->claimed ? &g->tail : &x->client->c.out;
    x->answered = out != &g->tail;
    gate_write_head(x, out, h);
}

static void collect(gate_guard *g, wire_text part)
{
    size_t room = g->x->g->answer_max, limit = (size_t)g->x->config->limits.answer;

    if (g->verdict != GATE_KEEP || g->too_large || !g->claimed)
        return;
    if (http_buffer_size(&g->kept) + part.size > limit ||
        http_buffer_size(&g->kept) + part.size + http_buffer_size(&g->head) > room) {
        g->too_large = true;
        http_buffer_free(&g->kept);
        return;
    }
    http_buffer_add(&g->kept, part.at, part.size);
}

/* The end of a body of known length is its last byte. */
static void send_but_last(gate_exchange *x, gate_guard *g, wire_text part)
{
    http_buffer *out = &x->client->c.out;

    if (http_buffer_size(&g->tail) > 0)
        http_buffer_add(out, http_buffer_start(&g->tail), http_buffer_size(&g->tail));
    http_buffer_drop(&g->tail, http_buffer_size(&g->tail));
    http_buffer_add(out, part.at, part.size - 1);
    http_buffer_add(&g->tail, part.at + part.size - 1, 1);
}

void gate_guard_part(gate_exchange *x, wire_text part)
{
    gate_guard *g = x->guard;

    collect(g, part);
    if (!x->client)
        return;
    if (g->hold && g->claimed && http_buffer_size(&g->tail) + part.size > x->g->answer_max) {
        http_buffer_add(&x->client->c.out, http_buffer_start(&g->tail), http_buffer_size(&g->tail));
        http_buffer_drop(&g->tail, http_buffer_size(&g->tail));
        g->hold = false;
        x->answered = true;
    }
    if (g->hold && g->claimed)
        gate_write_part(x, &g->tail, part);
    else if (x->answer_framing == WIRE_LENGTH && g->claimed)
        send_but_last(x, g, part);
    else
        gate_write_part(x, &x->client->c.out, part);
}

void gate_guard_end(gate_exchange *x, const wire_body *body)
{
    gate_guard *g = x->guard;
    wire_head trailers;

    if (wire_trailers(body, &trailers))
        gate_write_fields(&g->trailers, &trailers);
    g->too_large |=
        g->kept.failed || g->head.failed || g->trailers.failed ||
        http_buffer_size(&g->kept) + http_buffer_size(&g->head) + http_buffer_size(&g->trailers) >
            x->g->answer_max;
    if (x->client)
        gate_write_end(x, &g->tail, body);
    gate_guard_settle(g, g->verdict == GATE_KEEP     ? DIBS_OP_ONCE_FINISH
                         : g->verdict == GATE_FORGET ? DIBS_OP_ONCE_UNDO
                                                     : DIBS_OP_ONCE_ABANDON);
}

/* ---- No answer --------------------------------------------------------------------------------- */

static bool was_sent(gate_failure why)
{
    return why != GATE_UNREACHED && why != GATE_CROWDED;
}

static void fail(gate_guard *g, const char *headers)
{
    gate_exchange *x = g->x;
    gate_failure why = g->failure;

    http_buffer_drop(&g->tail, http_buffer_size(&g->tail));
    g->broken = x->answered;
    g->own = !x->answered;
    x->result = GATE_FAILED;
    if (!x->answered)
        gate_problem(x, &g->tail, gate_failure_status(why),
                     was_sent(why) ? DIBS_UNKNOWN : DIBS_UNAVAILABLE, why == GATE_CROWDED, headers,
                     "%s", gate_failure_text(why));
    gate_guard_settle(g, was_sent(why) ? DIBS_OP_ONCE_ABANDON : DIBS_OP_ONCE_UNDO);
}

static void on_reissued(void *data, dibs_outcome *o)
{
    gate_guard *g = data;
    char header[DIBS_TOKEN_SIZE + 32] = "";

    g->busy = false;
    if (o->err.status == DIBS_OK)
        snprintf(header, sizeof header, "Dibs-Token: %s\r\n", o->token);
    fail(g, header);
}

/* A token that was spent for nothing is replaced. */
void gate_guard_failed(gate_exchange *x, gate_failure why)
{
    gate_guard *g = x->guard;
    const dibs_token_options options = {.scope = x->route->path};

    g->failure = why;
    if (g->redeemed && !was_sent(why))
        gate_guard_ask(g,
                       &(dibs_request){.op = DIBS_OP_TOKEN_REISSUE,
                                       .name = g->token,
                                       .options.token = &options},
                       on_reissued);
    else
        fail(g, "");
}

/* Another run may have begun: what this one learns is worth nothing any more. */
void gate_guard_lost(void *guard)
{
    gate_guard *g = guard;
    gate_exchange *x = g->x;

    if (!g->claimed || g->busy)
        return; /* the request that is out says so itself */
    gate_say(x->g, "the claim of key %s was lost while the application worked", g->key_hash);
    gate_guard_set_claimed(g, false);
    x->result = GATE_FAILED;
    gate_exchange_finish(x, true);
}

/* A run goes on without its client; a wait for one does not. */
void gate_guard_gone(gate_exchange *x)
{
    gate_guard *g = x->guard;

    if (g->waiting)
        dibs_stop(x->g->d, g->asked);
    else if (!g->claimed && !g->busy)
        gate_exchange_finish(x, true);
}

void gate_guard_free(gate_exchange *x)
{
    gate_guard *g = x->guard;
    unsigned char hash[GATE_HASH_SIZE];

    if (!g)
        return;
    x->guard = NULL;
    gate_guard_set_claimed(g, false);
    http_timer_stop(x->g->http, &g->timer);
    dibs_once_free(g->once);
    http_digest_end(g->hash, hash);
    free(g->path);
    free(g->query);
    http_buffer_free(&g->body);
    http_buffer_free(&g->head);
    http_buffer_free(&g->kept);
    http_buffer_free(&g->trailers);
    http_buffer_free(&g->tail);
    free(g);
}

const char *gate_guard_key_hash(const gate_exchange *x)
{
    return x->guard && x->guard->keyed ? x->guard->key_hash : "";
}
