/* The claim of a key, and what the key may be instead: done, in progress, crashed, another request's. */
#define _GNU_SOURCE
#include "gateway/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- The claim --------------------------------------------------------------------------------- */

static void write_replayed_head(gate_exchange *x, http_buffer *out, gate_stored *s)
{
    char date[64];
    time_t now = time(NULL);
    struct tm t;

    strftime(date, sizeof date, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", gmtime_r(&now, &t));
    http_buffer_format(out, "HTTP/1.1 %d ", s->head.status);
    http_buffer_add(out, s->head.reason.at, s->head.reason.size);
    http_buffer_text(out, "\r\n");
    gate_write_fields(out, &s->head);
    http_buffer_text(out, date);
    http_buffer_text(out, "Idempotent-Replayed: true\r\n");
    x->answer_framing = s->trailers.trailer_size > 0 && x->minor > 0 ? WIRE_CHUNKED : WIRE_LENGTH;
    if (x->answer_framing == WIRE_CHUNKED)
        http_buffer_text(out, "Transfer-Encoding: chunked\r\n");
    else if (!wire_find(&s->head, "Content-Length", 0) && s->head.status != 204 &&
             s->head.status != 304)
        http_buffer_format(out, "Content-Length: %zu\r\n", s->body.size);
    http_buffer_text(out, x->close        ? "Connection: close\r\n\r\n"
                          : x->minor == 0 ? "Connection: keep-alive\r\n\r\n"
                                          : "\r\n");
}

static void replay(gate_guard *g)
{
    gate_exchange *x = g->x;
    size_t size = 0;
    const char *data = dibs_once_result(g->once, &size);
    gate_stored s;

    if (!gate_stored_decode(data, size, &s)) {
        GATE_ANSWER(g, DIBS_OP_ONCE_UNDO, GATE_FAILED, 409, DIBS_ALREADY, 0, "",
                    "this key was used by another program than the gateway");
    } else if (!s.kept) {
        GATE_ANSWER(
            g, DIBS_OP_ONCE_UNDO, GATE_REFUSED, 409, DIBS_ALREADY, 0, "",
            "executed, answer not kept: the request was executed with status %d; its answer was "
            "too "
            "large to be kept",
            s.head.status);
    } else {
        x->status = s.head.status;
        x->result = GATE_REPLAYED;
        write_replayed_head(x, &g->tail, &s);
        if (s.body.size > 0)
            gate_write_part(x, &g->tail, s.body);
        gate_write_end(x, &g->tail, &s.trailers);
        gate_guard_deliver(g);
    }
}

static void refuse_crashed(gate_guard *g)
{
    dibs_party p;
    char began[48] = "at an unknown time";
    time_t since;
    struct tm t;

    dibs_once_runner(g->once, &p, sizeof p);
    since = (time_t)(p.since_ms / 1000);
    if (since > 0)
        strftime(began, sizeof began, "at %Y-%m-%dT%H:%M:%SZ", gmtime_r(&since, &t));
    GATE_ANSWER(
        g, DIBS_OP_ONCE_UNDO, GATE_REFUSED, 409, DIBS_CRASHED, 0, "",
        "an earlier run of this request, with fence %llu, began %s and died: its outcome is "
        "unknown. "
        "The request was not sent again",
        (unsigned long long)p.fence, began);
}

static void on_begun(void *data, dibs_outcome *o);

/* The run that died had recorded every request that it sent, and this one is not among them. */
static bool was_not_sent(const gate_guard *g)
{
    size_t size;

    return g->x->route->prove && !g->proved && !dibs_once_step_data(g->once, "sent", &size);
}

static void judge(gate_guard *g, const dibs_error *err)
{
    int retry = err->retry_after_ms > 0 ? (int)((err->retry_after_ms + 999) / 1000) : 1;

    if (err->status == DIBS_ALREADY)
        replay(g);
    else if (err->status == DIBS_CRASHED && was_not_sent(g)) {
        g->proved = g->busy = true;
        gate_guard_ask(g, &(dibs_request){.op = DIBS_OP_ONCE_RERUN}, on_begun);
    } else if (err->status == DIBS_CRASHED)
        refuse_crashed(g);
    else if (err->status == DIBS_RUNNING)
        GATE_ANSWER(g, DIBS_OP_ONCE_UNDO, GATE_REFUSED, 409, DIBS_RUNNING, retry > 10 ? 10 : retry,
                    "", "the first request with this Idempotency-Key is still in progress");
    else if (err->status == DIBS_MISMATCH)
        GATE_ANSWER(
            g, DIBS_OP_ONCE_UNDO, GATE_REFUSED, 422, DIBS_MISMATCH, 0, "",
            "this Idempotency-Key was used for another request: method, path, query or body "
            "differ");
    else if (err->status == DIBS_EXPIRED)
        GATE_ANSWER(g, DIBS_OP_ONCE_UNDO, GATE_REFUSED, 410, DIBS_EXPIRED, 0, "",
                    "this Idempotency-Key was used; its answer is no longer kept");
    else
        gate_guard_without_engine(g, err);
}

static void begin_run(gate_guard *g)
{
    size_t size = 0;
    const char *sent;
    char text[16] = "";

    gate_guard_set_claimed(g, true);
    g->x->result = GATE_FIRST;
    g->again = dibs_once_again(g->once);
    sent = dibs_once_step_data(g->once, "sent", &size);
    if (sent && size < sizeof text)
        memcpy(text, sent, size);
    if (g->again && !g->proved)
        g->attempt = sent ? (unsigned)strtoul(text, NULL, 10) + 1 : 2;
    if (g->x->client)
        gate_guard_admit(g);
    else
        gate_guard_settle(g, DIBS_OP_ONCE_UNDO); /* nobody waits for it, and nothing was sent */
}

static void on_begun(void *data, dibs_outcome *o)
{
    gate_guard *g = data;

    g->busy = false;
    g->x->g->waits -= g->waiting;
    g->waiting = false;
    if (o->once)
        g->once = o->once;
    if (o->err.status == DIBS_OK)
        begin_run(g);
    else if (!g->x->client)
        gate_exchange_finish(g->x, true);
    else
        judge(g, &o->err);
}

static void claim(gate_guard *g)
{
    gate_exchange *x = g->x;
    const gate_route *route = x->route;
    const dibs_once_options options = {.scope = g->scope,
                                       .fingerprint = g->fingerprint,
                                       .fingerprint_size = sizeof g->fingerprint,
                                       .lease_ms = route->lease_ms,
                                       .keep_ms = route->keep_ms,
                                       .tombstone_ms = route->tombstone_ms,
                                       .wait_ms = route->wait_ms ? route->wait_ms : DIBS_NO_WAIT,
                                       .on_crash = route->on_crash,
                                       .data = g,
                                       .owner = "gateway"};
    dibs_request r = {.op = DIBS_OP_ONCE_BEGIN, .name = g->key, .options.once = &options};
    dibs_error err;

    g->busy = gate_ask(x->g, &r, on_begun, g, &g->asked, &err) == DIBS_OK;
    g->waiting = g->busy;
    x->g->waits += g->waiting;
    if (!g->busy)
        gate_guard_without_engine(g, &err);
}

void gate_guard_complete(gate_exchange *x)
{
    gate_guard *g = x->guard;
    unsigned char body[GATE_HASH_SIZE];

    if (g->body.failed) {
        gate_refuse(x, 503, DIBS_NO_MEMORY, "out of memory");
        return;
    }
    http_digest_end(g->hash, body);
    g->hash = NULL;
    gate_fingerprint(x->method, g->path, (wire_text){g->query, strlen(g->query)}, body,
                     g->fingerprint);
    if (g->issues)
        gate_guard_issue(g);
    else if (g->keyed)
        claim(g);
    else
        gate_guard_admit(g);
}
