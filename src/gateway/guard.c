/* A guarded request: its key is claimed, it is sent to the application once, its answer is kept, and duplicates get
 * that answer.
 *
 * On the way: the body is read and hashed; the key is claimed (or it is done, in progress, crashed: then that is the
 * answer); the token is redeemed and the fence presented, by the one request that has the claim; the application is asked; its
 * answer goes to the client as it comes, except its end. The end follows when the claim is finished in the engine:
 * whoever has a whole answer can rely on its replay. Whatever goes wrong before a byte was sent undoes the claim,
 * whatever goes wrong after that leaves its outcome unknown. */
#define _GNU_SOURCE
#include "gateway/gate.h"

#include "gateway/key.h"
#include "gateway/stored.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { PAUSE_MS = 200, ROUND_MS = 1000 };

struct gate_guard {
    gate_exchange *x;
    bool keyed, tokened, fenced;
    char key[GATE_KEY_SIZE], scope[GATE_PATTERN_MAX + 48], key_hash[17];
    char token[DIBS_TOKEN_SIZE], cell[DIBS_NAME_MAX + 1];
    dibs_cell_options fence;
    gate_hash *hash;
    char *path;
    char *query;
    unsigned char fingerprint[GATE_HASH_SIZE];
    gate_buffer body;

    dibs_once *once; /* the claim, or what is known of the key */
    uint64_t asked;  /* the begin that is out */
    bool busy;       /* a request about it is out */
    bool waiting;    /* it is the begin */
    bool claimed;    /* and this run has to end */
    bool again;      /* an earlier run died */
    bool redeemed;   /* our token */
    bool proved;     /* it was proved that an earlier run sent nothing */
    unsigned attempt;

    gate_on_error verdict;            /* of the answer */
    gate_buffer head, kept, trailers; /* what is stored */
    bool too_large;
    bool hold; /* the whole answer is held back: its end could not be told from a broken one */
    gate_buffer tail; /* what the client gets when the claim is finished */
    bool broken;      /* the client must not take its answer for whole */
    bool own;         /* the answer is the gateway's */
    bool issues;      /* a request for a token */
    dibs_op ending;
    http_timer timer;
};

/* ---- What is refused at the head --------------------------------------------------------------- */

static bool refuse(gate_exchange *x, int http, dibs_status status, const char *what)
{
    gate_refuse(x, http, status, "%s", what);
    return false;
}

static bool read_key(gate_exchange *x, const wire_head *h, gate_guard *g)
{
    const wire_field *f = x->route->key == GATE_IGNORED ? NULL : wire_find(h, "Idempotency-Key", 0);

    if (!f && x->route->key == GATE_REQUIRED)
        return refuse(x, 400, DIBS_INVALID, "this request needs an Idempotency-Key");
    if (!f)
        return true;
    if (wire_find(h, "Idempotency-Key", 1) || !gate_key_read(f->value, g->key))
        return refuse(x, 400, DIBS_INVALID,
                      "Idempotency-Key is one quoted string of 1 to 255 printable characters");
    g->keyed = true;
    return true;
}

/* A token that no engine would know is looked up all the same: it is refused there. */
static bool read_token(gate_exchange *x, const wire_head *h, gate_guard *g)
{
    const wire_field *f = x->route->token == GATE_IGNORED ? NULL : wire_find(h, "Dibs-Token", 0);

    if (!f && x->route->token == GATE_REQUIRED)
        return refuse(x, 403, DIBS_REFUSED,
                      "this request needs a Dibs-Token: POST /.dibs/token issues one");
    if (!f)
        return true;
    if (wire_find(h, "Dibs-Token", 1))
        return refuse(x, 400, DIBS_INVALID, "Dibs-Token is given once");
    if (f->value.size == 0 || f->value.size >= sizeof g->token)
        return refuse(x, 409, DIBS_REFUSED, dibs_status_text(DIBS_REFUSED));
    memcpy(g->token, f->value.at, f->value.size);
    g->tokened = true;
    return true;
}

static bool read_fence(gate_exchange *x, const wire_head *h, gate_guard *g)
{
    const wire_field *f = x->route->fence ? wire_find(h, "Dibs-Fence", 0) : NULL;
    const char *brace = x->route->fence ? strstr(x->route->fence, "{segment}") : NULL,
               *segment = "";
    size_t size = 0;
    int written;

    if (!x->route->fence)
        return true;
    if (!f || wire_find(h, "Dibs-Fence", 1) ||
        !gate_fence_read(f->value, &g->fence.fence, &g->fence.floor))
        return refuse(x, 400, DIBS_INVALID,
                      "this request needs one Dibs-Fence: FENCE or FENCE/FLOOR");
    if (brace)
        gate_pattern_match(x->route->path, g->path, &segment, &size);
    written = brace ? snprintf(g->cell, sizeof g->cell, "fence:%.*s%.*s%s",
                               (int)(brace - x->route->fence), x->route->fence, (int)size, segment,
                               brace + 9)
                    : snprintf(g->cell, sizeof g->cell, "fence:%s", x->route->fence);
    g->fenced = true;
    return written < (int)sizeof g->cell ||
           refuse(x, 400, DIBS_INVALID, "the path is too long for a fence");
}

/* Whose key it is. Only a hash of it is stored. */
static void write_scope(gate_exchange *x, const wire_head *h, gate_guard *g)
{
    unsigned char hash[GATE_HASH_SIZE] = {0};
    gate_hash *all = gate_hash_new();
    const wire_field *f;
    char caller[33];

    if (!all)
        abort();
    for (size_t i = 0; x->route->caller && (f = wire_find(h, x->route->caller, i)); i++) {
        gate_hash_add(all, "\n", 1);
        gate_hash_add(all, f->value.at, f->value.size);
    }
    if (x->route->by_certificate)
        gate_hash_add(all, x->client->certificate, strlen(x->client->certificate));
    gate_hash_end(all, hash);
    gate_hash_hex(hash, 16, caller);
    snprintf(g->scope, sizeof g->scope, "%s %s", x->route->path, caller);
}

static void hash_key(gate_guard *g)
{
    unsigned char hash[GATE_HASH_SIZE] = {0};
    gate_hash *all = gate_hash_new();

    if (!all)
        abort();
    gate_hash_add(all, g->key, strlen(g->key));
    gate_hash_end(all, hash);
    gate_hash_hex(hash, 8, g->key_hash);
}

static gate_guard *new_guard(gate_exchange *x, const char *path, wire_text query)
{
    gate_guard *g = x->guard = calloc(1, sizeof *g);

    if (g) {
        g->x = x;
        g->attempt = 1;
        g->hash = gate_hash_new();
        g->path = strdup(path);
        g->query = strndup(query.at, query.size);
    }
    if (g && g->hash && g->path && g->query)
        return g;
    refuse(x, 503, DIBS_NO_MEMORY, "out of memory");
    return NULL;
}

/* The body is needed first; a client that asks whether to send it may do so. */
static bool expect_body(gate_exchange *x, const wire_head *h)
{
    if (h->framing == WIRE_LENGTH && h->length > (uint64_t)x->config->limits.body)
        return refuse(x, 413, DIBS_INVALID, "the body is larger than limits.body of the gateway");
    if (h->expects && (h->framing == WIRE_CHUNKED || h->length > 0))
        gate_buffer_text(&x->client->out, "HTTP/1.1 100 Continue\r\n\r\n");
    return true;
}

bool gate_guard_begin(gate_exchange *x, const wire_head *h, const char *path, wire_text query)
{
    gate_guard *g = new_guard(x, path, query);

    if (!g)
        return false;
    if (!read_key(x, h, g) || !read_token(x, h, g) || !read_fence(x, h, g))
        return false;
    if (!g->keyed && !g->tokened && !g->fenced) {
        gate_guard_free(x);
        return true;
    }
    write_scope(x, h, g);
    hash_key(g);
    return expect_body(x, h);
}

void gate_guard_body(gate_exchange *x, wire_text part)
{
    gate_guard *g = x->guard;

    if (gate_buffer_size(&g->body) + part.size > (size_t)x->config->limits.body) {
        gate_refuse(x, 413, DIBS_INVALID, "the body is larger than limits.body of the gateway");
        return;
    }
    gate_hash_add(g->hash, part.at, part.size);
    gate_buffer_add(&g->body, part.at, part.size);
}

/* ---- Ending the claim -------------------------------------------------------------------------- */

static void settle(gate_guard *g, dibs_op op);

static void deliver(gate_guard *g)
{
    gate_exchange *x = g->x;

    if (x->client && !g->broken)
        gate_buffer_add(&x->client->out, gate_buffer_start(&g->tail), gate_buffer_size(&g->tail));
    gate_exchange_finish(x, g->broken);
}

static void on_over(http_timer *timer)
{
    deliver((gate_guard *)((char *)timer - offsetof(gate_guard, timer)));
}

/* An answer of our own promises nothing that the engine has to confirm: the client need not wait for it. */
static void let_client_go(gate_guard *g)
{
    gate_client *c = g->x->client;

    if (!c || !g->own)
        return;
    gate_buffer_add(&c->out, gate_buffer_start(&g->tail), gate_buffer_size(&g->tail));
    gate_client_answered(c);
    g->x->client = NULL;
}

static void on_pause(http_timer *timer)
{
    gate_guard *g = (gate_guard *)((char *)timer - offsetof(gate_guard, timer));

    settle(g, g->ending);
}

static void set_claimed(gate_guard *g, bool claimed)
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
    set_claimed(g, false);
    if (o->err.status == DIBS_OK) {
        deliver(g);
        return;
    }
    gate_say(x->g, "the claim of key %s was lost: its answer is not stored (%s)", g->key_hash,
             o->err.message);
    g->broken |= !g->own;
    x->result = GATE_FAILED;
    http_timer_set(x->g->http, &g->timer, PAUSE_MS,
                   on_over); /* until the library has noticed, too */
}

static void settle(gate_guard *g, dibs_op op)
{
    gate_exchange *x = g->x;
    gate_buffer all = {0};
    dibs_request r = {.op = op, .once = g->once, .number = x->status};
    dibs_error err;

    g->ending = op;
    if (!g->claimed) {
        deliver(g);
        return;
    }
    if (op == DIBS_OP_ONCE_FINISH) {
        gate_stored_encode(&all, &g->head, g->too_large ? NULL : &g->kept, &g->trailers);
        r.data = gate_buffer_start(&all);
        r.size = gate_buffer_size(&all);
    }
    g->busy = !all.failed && gate_ask(x->g, &r, on_settled, g, NULL, &err) == DIBS_OK;
    gate_buffer_free(&all);
    if (!g->busy)
        http_timer_set(x->g->http, &g->timer, PAUSE_MS, on_pause);
}

/* An answer of our own, when `op` is done: a client that reads it can rely on it. */
#define ANSWER(g, op, result_, http, code, retry, headers, ...)                            \
    do {                                                                                   \
        (g)->x->result = (result_);                                                        \
        (g)->own = true;                                                                   \
        gate_problem((g)->x, &(g)->tail, (http), (code), (retry), (headers), __VA_ARGS__); \
        settle((g), (op));                                                                 \
    } while (0)

/* ---- The engine is down ------------------------------------------------------------------------ */

static void forward(gate_guard *g);

static bool is_trouble(dibs_status status)
{
    return status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN || status == DIBS_DENIED ||
           status == DIBS_ENGINE_FAILED || status == DIBS_NO_MEMORY || status == DIBS_CANCELLED;
}

/* What the engine says names servers: that is for the log. */
static void without_engine(gate_guard *g, const dibs_error *err)
{
    gate_exchange *x = g->x;

    gate_say(x->g, "engine: %s", err->message);
    if (x->route->open && !g->claimed && err->status != DIBS_NO_MEMORY) {
        x->result = GATE_UNPROTECTED;
        g->keyed = false;
        forward(g);
        return;
    }
    ANSWER(g, DIBS_OP_ONCE_UNDO, GATE_FAILED, 503, DIBS_UNAVAILABLE, 1, "",
           "the engine that keeps the keys is unavailable; the request was not sent");
}

/* ---- Sending ----------------------------------------------------------------------------------- */

static void ask_about(gate_guard *g, dibs_request *r, gate_outcome_fn done)
{
    dibs_error err;

    r->once = g->once;
    g->busy = gate_ask(g->x->g, r, done, g, NULL, &err) == DIBS_OK;
    if (!g->busy)
        without_engine(g, &err);
}

static void forward(gate_guard *g)
{
    gate_exchange *x = g->x;

    if (g->claimed && !dibs_once_held(g->once)) {
        ANSWER(g, DIBS_OP_ONCE_ABANDON, GATE_FAILED, 409, DIBS_LOST, 1, "",
               "the claim was lost before the request was sent");
        return;
    }
    if (g->keyed)
        gate_buffer_format(&x->request, "Dibs-Attempt: %u\r\n", g->attempt);
    if (x->framing != WIRE_EMPTY)
        gate_buffer_format(&x->request, "Content-Length: %zu\r\n", gate_buffer_size(&g->body));
    gate_buffer_text(&x->request, "\r\n");
    if (gate_buffer_size(&g->body) > 0)
        gate_buffer_add(&x->request, gate_buffer_start(&g->body), gate_buffer_size(&g->body));
    gate_buffer_free(&g->body);
    gate_upstream_ask(x);
}

static void on_step(void *data, dibs_outcome *o)
{
    gate_guard *g = data;

    g->busy = false;
    if (o->err.status == DIBS_OK)
        forward(g);
    else if (is_trouble(o->err.status))
        without_engine(g, &o->err);
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
    ask_about(g,
              &(dibs_request){
                  .op = DIBS_OP_ONCE_STEP, .name = "sent", .data = text, .size = strlen(text)},
              on_step);
}

/* ---- Token and fence --------------------------------------------------------------------------- */

static void on_passed(void *data, dibs_outcome *o)
{
    gate_guard *g = data;

    g->busy = false;
    dibs_value_free(&o->value);
    if (o->err.status == DIBS_OK)
        record(g);
    else if (o->err.status == DIBS_FENCED)
        ANSWER(g, DIBS_OP_ONCE_UNDO, GATE_REFUSED, 409, DIBS_FENCED, 0, "",
               "a newer holder has used the resource: this fence is too old; the request was not "
               "sent");
    else
        without_engine(g, &o->err);
}

static void pass_fence(gate_guard *g)
{
    if (g->fenced)
        ask_about(
            g, &(dibs_request){.op = DIBS_OP_CELL_PASS, .name = g->cell, .options.cell = &g->fence},
            on_passed);
    else
        record(g);
}

/* In a rerun the token may have been redeemed by the run that died: the key is what counts then. */
static void on_redeemed(void *data, dibs_outcome *o)
{
    gate_guard *g = data;

    g->busy = false;
    g->redeemed = o->err.status == DIBS_OK;
    if (g->redeemed || (o->err.status == DIBS_REFUSED && g->again))
        pass_fence(g);
    else if (o->err.status == DIBS_REFUSED || o->err.status == DIBS_INVALID)
        ANSWER(g, DIBS_OP_ONCE_UNDO, GATE_REFUSED, 409, DIBS_REFUSED, 0, "",
               "%s; the request was not sent", dibs_status_text(DIBS_REFUSED));
    else
        without_engine(g, &o->err);
}

static void admit(gate_guard *g)
{
    const dibs_token_options options = {.scope = g->x->route->path};

    if (g->tokened)
        ask_about(g,
                  &(dibs_request){
                      .op = DIBS_OP_TOKEN_REDEEM, .name = g->token, .options.token = &options},
                  on_redeemed);
    else
        pass_fence(g);
}

/* ---- The claim --------------------------------------------------------------------------------- */

static void write_replayed_head(gate_exchange *x, gate_buffer *out, gate_stored *s)
{
    char date[64];
    time_t now = time(NULL);
    struct tm t;

    strftime(date, sizeof date, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", gmtime_r(&now, &t));
    gate_buffer_format(out, "HTTP/1.1 %d ", s->head.status);
    gate_buffer_add(out, s->head.reason.at, s->head.reason.size);
    gate_buffer_text(out, "\r\n");
    gate_write_fields(out, &s->head);
    gate_buffer_text(out, date);
    gate_buffer_text(out, "Idempotent-Replayed: true\r\n");
    x->answer_framing = s->trailers.trailer_size > 0 && x->minor > 0 ? WIRE_CHUNKED : WIRE_LENGTH;
    if (x->answer_framing == WIRE_CHUNKED)
        gate_buffer_text(out, "Transfer-Encoding: chunked\r\n");
    else if (!wire_find(&s->head, "Content-Length", 0) && s->head.status != 204 &&
             s->head.status != 304)
        gate_buffer_format(out, "Content-Length: %zu\r\n", s->body.size);
    gate_buffer_text(out, x->close        ? "Connection: close\r\n\r\n"
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
        ANSWER(g, DIBS_OP_ONCE_FINISH, GATE_FAILED, 409, DIBS_ALREADY, 0, "",
               "this key was used by another program than the gateway");
    } else if (!s.kept) {
        ANSWER(g, DIBS_OP_ONCE_FINISH, GATE_REFUSED, 409, DIBS_ALREADY, 0, "",
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
        deliver(g);
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
    ANSWER(g, DIBS_OP_ONCE_UNDO, GATE_REFUSED, 409, DIBS_CRASHED, 0, "",
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
        ask_about(g, &(dibs_request){.op = DIBS_OP_ONCE_RERUN}, on_begun);
    } else if (err->status == DIBS_CRASHED)
        refuse_crashed(g);
    else if (err->status == DIBS_RUNNING)
        ANSWER(g, DIBS_OP_ONCE_UNDO, GATE_REFUSED, 409, DIBS_RUNNING, retry > 10 ? 10 : retry, "",
               "the first request with this Idempotency-Key is still in progress");
    else if (err->status == DIBS_MISMATCH)
        ANSWER(g, DIBS_OP_ONCE_UNDO, GATE_REFUSED, 422, DIBS_MISMATCH, 0, "",
               "this Idempotency-Key was used for another request: method, path, query or body "
               "differ");
    else if (err->status == DIBS_EXPIRED)
        ANSWER(g, DIBS_OP_ONCE_UNDO, GATE_REFUSED, 410, DIBS_EXPIRED, 0, "",
               "this Idempotency-Key was used; its answer is no longer kept");
    else
        without_engine(g, err);
}

static void begin_run(gate_guard *g)
{
    size_t size = 0;
    const char *sent;
    char text[16] = "";

    set_claimed(g, true);
    g->x->result = GATE_FIRST;
    g->again = dibs_once_again(g->once);
    sent = dibs_once_step_data(g->once, "sent", &size);
    if (sent && size < sizeof text)
        memcpy(text, sent, size);
    if (g->again && !g->proved)
        g->attempt = sent ? (unsigned)strtoul(text, NULL, 10) + 1 : 2;
    if (g->x->client)
        admit(g);
    else
        settle(g, DIBS_OP_ONCE_UNDO); /* nobody waits for it, and nothing was sent */
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
        without_engine(g, &err);
}

static void issue(gate_guard *g);

void gate_guard_complete(gate_exchange *x)
{
    gate_guard *g = x->guard;
    unsigned char body[GATE_HASH_SIZE];

    if (g->body.failed) {
        gate_refuse(x, 503, DIBS_NO_MEMORY, "out of memory");
        return;
    }
    gate_hash_end(g->hash, body);
    g->hash = NULL;
    gate_fingerprint(x->method, g->path, (wire_text){g->query, strlen(g->query)}, body,
                     g->fingerprint);
    if (g->issues)
        issue(g);
    else if (g->keyed)
        claim(g);
    else
        admit(g);
}

/* ---- The answer -------------------------------------------------------------------------------- */

static gate_on_error judge_answer(const gate_route *route, int status)
{
    return status >= 500 ? route->on_5xx : status == 429 ? route->on_429 : GATE_KEEP;
}

void gate_guard_head(gate_exchange *x, const wire_head *h)
{
    gate_guard *g = x->guard;
    gate_buffer *out;

    g->verdict = judge_answer(x->route, h->status);
    if (g->claimed)
        gate_stored_head(&g->head, h, x->route->set_cookie);
    if (!x->client)
        return;
    gate_buffer_drop(&g->tail, gate_buffer_size(&g->tail));
    g->hold = h->framing == WIRE_EMPTY || (h->framing == WIRE_LENGTH && h->length == 0) ||
              (x->minor == 0 && h->framing != WIRE_LENGTH);
    out = g->hold && g->claimed ? &g->tail : &x->client->out;
    x->answered = out != &g->tail;
    gate_write_head(x, out, h);
}

static void collect(gate_guard *g, wire_text part)
{
    size_t room = g->x->g->answer_max, limit = (size_t)g->x->config->limits.answer;

    if (g->verdict != GATE_KEEP || g->too_large || !g->claimed)
        return;
    if (gate_buffer_size(&g->kept) + part.size > limit ||
        gate_buffer_size(&g->kept) + part.size + gate_buffer_size(&g->head) > room) {
        g->too_large = true;
        gate_buffer_free(&g->kept);
        return;
    }
    gate_buffer_add(&g->kept, part.at, part.size);
}

/* The end of a body of known length is its last byte. */
static void send_but_last(gate_exchange *x, gate_guard *g, wire_text part)
{
    gate_buffer *out = &x->client->out;

    if (gate_buffer_size(&g->tail) > 0)
        gate_buffer_add(out, gate_buffer_start(&g->tail), gate_buffer_size(&g->tail));
    gate_buffer_drop(&g->tail, gate_buffer_size(&g->tail));
    gate_buffer_add(out, part.at, part.size - 1);
    gate_buffer_add(&g->tail, part.at + part.size - 1, 1);
}

void gate_guard_part(gate_exchange *x, wire_text part)
{
    gate_guard *g = x->guard;

    collect(g, part);
    if (!x->client)
        return;
    if (g->hold && g->claimed && gate_buffer_size(&g->tail) + part.size > x->g->answer_max) {
        gate_buffer_add(&x->client->out, gate_buffer_start(&g->tail), gate_buffer_size(&g->tail));
        gate_buffer_drop(&g->tail, gate_buffer_size(&g->tail));
        g->hold = false;
        x->answered = true;
    }
    if (g->hold && g->claimed)
        gate_write_part(x, &g->tail, part);
    else if (x->answer_framing == WIRE_LENGTH && g->claimed)
        send_but_last(x, g, part);
    else
        gate_write_part(x, &x->client->out, part);
}

void gate_guard_end(gate_exchange *x, const wire_body *body)
{
    gate_guard *g = x->guard;
    wire_head trailers;

    if (wire_trailers(body, &trailers))
        gate_write_fields(&g->trailers, &trailers);
    g->too_large |=
        g->kept.failed || g->head.failed || g->trailers.failed ||
        gate_buffer_size(&g->kept) + gate_buffer_size(&g->head) + gate_buffer_size(&g->trailers) >
            x->g->answer_max;
    if (x->client)
        gate_write_end(x, &g->tail, body);
    settle(g, g->verdict == GATE_KEEP     ? DIBS_OP_ONCE_FINISH
              : g->verdict == GATE_FORGET ? DIBS_OP_ONCE_UNDO
                                          : DIBS_OP_ONCE_ABANDON);
}

/* ---- No answer --------------------------------------------------------------------------------- */

static void on_reissued(void *data, dibs_outcome *o)
{
    gate_guard *g = data;
    char header[DIBS_TOKEN_SIZE + 32] = "";

    g->busy = false;
    if (o->err.status == DIBS_OK)
        snprintf(header, sizeof header, "Dibs-Token: %s\r\n", o->token);
    ANSWER(g, DIBS_OP_ONCE_UNDO, GATE_FAILED, 502, DIBS_UNAVAILABLE, 0, header, "%s",
           gate_failure_text(GATE_UNREACHED));
}

static void reissue(gate_guard *g)
{
    const dibs_token_options options = {.scope = g->x->route->path};

    ask_about(
        g,
        &(dibs_request){.op = DIBS_OP_TOKEN_REISSUE, .name = g->token, .options.token = &options},
        on_reissued);
}

void gate_guard_failed(gate_exchange *x, gate_failure why)
{
    gate_guard *g = x->guard;
    bool sent = why != GATE_UNREACHED && why != GATE_CROWDED;

    if (why == GATE_UNREACHED && g->redeemed) {
        reissue(g);
        return;
    }
    gate_buffer_drop(&g->tail, gate_buffer_size(&g->tail));
    g->broken = x->answered;
    g->own = !x->answered;
    x->result = GATE_FAILED;
    if (!x->answered)
        gate_problem(x, &g->tail, gate_failure_status(why), sent ? DIBS_UNKNOWN : DIBS_UNAVAILABLE,
                     why == GATE_CROWDED, "", "%s", gate_failure_text(why));
    settle(g, sent ? DIBS_OP_ONCE_ABANDON : DIBS_OP_ONCE_UNDO);
}

/* Another run may have begun: what this one learns is worth nothing any more. */
void gate_guard_lost(void *guard)
{
    gate_guard *g = guard;
    gate_exchange *x = g->x;

    if (!g->claimed || g->busy)
        return; /* the request that is out says so itself */
    gate_say(x->g, "the claim of key %s was lost while the application worked", g->key_hash);
    set_claimed(g, false);
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
    set_claimed(g, false);
    http_timer_stop(x->g->http, &g->timer);
    dibs_once_free(g->once);
    gate_hash_end(g->hash, hash);
    free(g->path);
    free(g->query);
    gate_buffer_free(&g->body);
    gate_buffer_free(&g->head);
    gate_buffer_free(&g->kept);
    gate_buffer_free(&g->trailers);
    gate_buffer_free(&g->tail);
    free(g);
}

const char *gate_guard_key_hash(const gate_exchange *x)
{
    return x->guard && x->guard->keyed ? x->guard->key_hash : "";
}

/* ---- Tokens for pages -------------------------------------------------------------------------- */

enum { TOKEN_MS = 10 * 60 * 1000 };

static void on_issued(void *data, dibs_outcome *o)
{
    gate_guard *g = data;
    gate_exchange *x = g->x;
    char body[DIBS_TOKEN_SIZE + 64];
    int size =
        snprintf(body, sizeof body, "{\"token\":\"%s\",\"expires_ms\":%d}\n", o->token, TOKEN_MS);

    g->busy = false;
    if (o->err.status != DIBS_OK) {
        without_engine(g, &o->err);
        return;
    }
    x->status = 201;
    gate_buffer_format(
        &g->tail,
        "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nCache-Control: no-store\r\n"
        "Content-Length: %d\r\n%s\r\n%s",
        size, x->close ? "Connection: close\r\n" : "", body);
    deliver(g);
}

static void issue(gate_guard *g)
{
    const dibs_token_options options = {.scope = g->x->route->path, .ttl_ms = TOKEN_MS};

    ask_about(g, &(dibs_request){.op = DIBS_OP_TOKEN_ISSUE, .options.token = &options}, on_issued);
}

/* Browsers say which page asks; whoever says nothing is no page. */
static bool is_own_page(const wire_head *h)
{
    const wire_field *origin = wire_find(h, "Origin", 0), *site = wire_find(h, "Sec-Fetch-Site", 0);
    const char *at = origin ? memmem(origin->value.at, origin->value.size, "://", 3) : NULL;
    size_t size = at ? origin->value.size - (size_t)(at + 3 - origin->value.at) : 0;

    if (origin)
        return at && size == h->host.size && strncasecmp(at + 3, h->host.at, size) == 0;
    return !site || wire_is(site->value, "same-origin") || wire_is(site->value, "none");
}

void gate_token_issue(gate_exchange *x, const wire_head *h, wire_text query)
{
    static const char name[] = "?route=";
    char path[GATE_PATTERN_MAX * 3 + 1] = "";
    size_t size = query.size > sizeof name - 1 ? query.size - (sizeof name - 1) : 0;
    bool given = size > 0 && size < sizeof path && memcmp(query.at, name, sizeof name - 1) == 0 &&
                 gate_query_decode(query.at + sizeof name - 1, size, path);

    x->route = given ? gate_config_named(x->config, path, strlen(path)) : NULL;
    if (!is_own_page(h))
        gate_refuse(x, 403, DIBS_DENIED, "tokens are for pages of this origin");
    else if (!x->route || x->route->token == GATE_IGNORED)
        gate_refuse(x, 404, DIBS_NOT_FOUND, "?route= names the path of a route with tokens");
    else if (new_guard(x, "", (wire_text){"", 0})) {
        x->guard->issues = true;
        expect_body(x, h);
    }
}
