/* From the claim to the application: the fence is presented, the token redeemed, what the next run has to know is recorded, and
 * the request is sent, once. Until it is sent everything can be undone. */
#define _GNU_SOURCE
#include "gateway/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The engine is down ------------------------------------------------------------------------ */

static void forward(gate_guard *g);

static bool is_trouble(dibs_status status)
{
    return status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN || status == DIBS_DENIED ||
           status == DIBS_ENGINE_FAILED || status == DIBS_NO_MEMORY || status == DIBS_CANCELLED;
}

/* Only what the engine could not decide may go on without it. A token comes from the engine or from nowhere. */
static bool may_go_on(const gate_guard *g, dibs_status status)
{
    return g->x->route->open && !g->claimed && !g->issues && is_trouble(status) &&
           status != DIBS_NO_MEMORY;
}

/* What the engine says names servers: that is for the log. */
void gate_guard_without_engine(gate_guard *g, const dibs_error *err)
{
    gate_exchange *x = g->x;

    gate_say(x->g, "engine: %s", err->message);
    if (may_go_on(g, err->status)) {
        x->result = GATE_UNPROTECTED;
        g->keyed = false;
        forward(g);
        return;
    }
    if (err->status == DIBS_INVALID)
        GATE_ANSWER(g, DIBS_OP_ONCE_UNDO, GATE_REFUSED, 400, DIBS_INVALID, 0, "",
                    "the engine takes no such key, token or fence; the request was not sent");
    else
        GATE_ANSWER(g, DIBS_OP_ONCE_UNDO, GATE_FAILED, 503, DIBS_UNAVAILABLE, 1, "",
                    "the engine that keeps the keys is unavailable; the request was not sent");
}

/* ---- Sending ----------------------------------------------------------------------------------- */

void gate_guard_ask(gate_guard *g, dibs_request *r, gate_outcome_fn done)
{
    dibs_error err;

    r->once = g->once;
    g->busy = gate_ask(g->x->g, r, done, g, NULL, &err) == DIBS_OK;
    if (!g->busy)
        gate_guard_without_engine(g, &err);
}

static void forward(gate_guard *g)
{
    gate_exchange *x = g->x;

    if (g->claimed && !dibs_once_held(g->once)) {
        GATE_ANSWER(g, DIBS_OP_ONCE_ABANDON, GATE_FAILED, 409, DIBS_LOST, 1, "",
                    "the claim was lost before the request was sent");
        return;
    }
    if (g->keyed)
        http_buffer_format(&x->request, "Dibs-Attempt: %u\r\n", g->attempt);
    if (x->framing != WIRE_EMPTY)
        http_buffer_format(&x->request, "Content-Length: %zu\r\n", http_buffer_size(&g->body));
    http_buffer_text(&x->request, "\r\n");
    if (http_buffer_size(&g->body) > 0)
        http_buffer_add(&x->request, http_buffer_start(&g->body), http_buffer_size(&g->body));
    http_buffer_free(&g->body);
    gate_upstream_ask(x);
}

static void on_step(void *data, dibs_outcome *o)
{
    gate_guard *g = data;

    g->busy = false;
    if (o->err.status == DIBS_OK)
        forward(g);
    else if (is_trouble(o->err.status))
        gate_guard_without_engine(g, &o->err);
    else
        forward(g); /* which finds that the claim was lost */
}

/* What the next run has to know, if this one dies: that it was sent, and as which attempt. */
static void record(gate_guard *g)
{
    char text[16];

    if (!g->claimed || (!g->again && !g->x->route->prove)) {
        forward(g);
        return;
    }
    snprintf(text, sizeof text, "%u", g->attempt);
    gate_guard_ask(g,
                   &(dibs_request){
                       .op = DIBS_OP_ONCE_STEP, .name = "sent", .data = text, .size = strlen(text)},
                   on_step);
}

/* ---- Fence and token --------------------------------------------------------------------------- */

/* In a rerun the token may have been redeemed by the run that died: the key is what counts then. */
static void on_redeemed(void *data, dibs_outcome *o)
{
    gate_guard *g = data;

    g->busy = false;
    g->redeemed = o->err.status == DIBS_OK;
    if (g->redeemed || (o->err.status == DIBS_REFUSED && g->again))
        record(g);
    else if (o->err.status == DIBS_REFUSED || o->err.status == DIBS_INVALID)
        GATE_ANSWER(g, DIBS_OP_ONCE_UNDO, GATE_REFUSED, 409, DIBS_REFUSED, 0, "",
                    "%s; the request was not sent", dibs_status_text(DIBS_REFUSED));
    else
        gate_guard_without_engine(g, &o->err);
}

static void redeem(gate_guard *g)
{
    const dibs_token_options options = {.scope = g->x->route->path};

    if (g->tokened)
        gate_guard_ask(g,
                       &(dibs_request){
                           .op = DIBS_OP_TOKEN_REDEEM, .name = g->token, .options.token = &options},
                       on_redeemed);
    else
        record(g);
}

static void on_passed(void *data, dibs_outcome *o)
{
    gate_guard *g = data;

    g->busy = false;
    dibs_value_free(&o->value);
    if (o->err.status == DIBS_OK)
        redeem(g);
    else if (o->err.status == DIBS_FENCED)
        GATE_ANSWER(
            g, DIBS_OP_ONCE_UNDO, GATE_REFUSED, 409, DIBS_FENCED, 0, "",
            "a newer holder has used the resource: this fence is too old; the request was not "
            "sent");
    else
        gate_guard_without_engine(g, &o->err);
}

/* The fence first: it can be presented again, the token cannot. */
void gate_guard_admit(gate_guard *g)
{
    if (g->fenced)
        gate_guard_ask(
            g, &(dibs_request){.op = DIBS_OP_CELL_PASS, .name = g->cell, .options.cell = &g->fence},
            on_passed);
    else
        redeem(g);
}
