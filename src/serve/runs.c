/* Runs of once. A run belongs to the process that began it; the keeper renews it while its client gives signs of
 * life, and a run whose client is silent for a lease is abandoned: its outcome is unknown. A run that no client
 * has heard of is undone: nothing has happened. */
#define _GNU_SOURCE
#include "serve/bound.h"
#include "serve/past.h"
#include "serve/secret.h"
#include "serve/serve.h"

#include "cli/json.h"

#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCOPE_MAX = 512, DATA_MAX = 2 * 1024 * 1024 + 4096, WAIT_MAX = 25000, CODE_MAX = 255 };

#define KEEP_MAX ((int64_t)366 * 24 * 3600 * 1000)

#define AGAIN_MS 200 /* between requests to an engine that does not answer */

typedef struct run {
    serve *s;
    serve_state state; /* COLLECTING: it is being begun; HELD: it runs */
    dibs_once *o;
    http_exchange *x;
    http_timer timer;
    int64_t lease_ms;
    dibs_op busy;    /* a request about it that is out; 0: none */
    bool unanswered; /* that one gives it up, and the engine has not answered */
    bool over;       /* and its lease has passed since */
    bool own_id, delivered, by_key, by_id;
    uint64_t asked; /* the begin that is out */
    char key[33], digest[33];
    char *request, *id, *name;
} run;

/* ---- Tables ---------------------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    return strcmp(((const run *)a)->id, ((const run *)b)->id);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const run *)a)->key, ((const run *)b)->key);
}

static run *run_of_id(serve *s, const char *id)
{
    run like = {.id = (char *)(uintptr_t)id}, **found = tfind(&like, &s->runs, by_id);

    return found ? *found : NULL;
}

static run *run_of_key(serve *s, const char *key)
{
    run like, **found;

    snprintf(like.key, sizeof like.key, "%s", key);
    found = tfind(&like, &s->runs_by_key, by_key);
    return found ? *found : NULL;
}

static void free_run(run *r)
{
    http_timer_stop(r->s->http, &r->timer);
    if (r->by_id)
        tdelete(r, &r->s->runs, by_id);
    if (r->by_key)
        tdelete(r, &r->s->runs_by_key, by_key);
    dibs_once_free(r->o);
    free(r->request);
    free(r->id);
    free(r->name);
    free(r);
}

/* ---- Its end --------------------------------------------------------------------------------- */

static void on_timer(http_timer *timer);

static void set_timer(run *r, int64_t ms)
{
    http_timer_set(r->s->http, &r->timer, ms, on_timer);
}

/* A run is asked for by its id and its key. */
static uint64_t hash_of(const char *id, const char *name)
{
    char hash[33];

    serve_hash(hash, (const char *[]){id, name, NULL});
    return serve_past_hash(hash);
}

/* It is freed, and what remains is how it ended, for answers that were lost. */
static void end(run *r, dibs_op by)
{
    const serve_ended ended = {.key = serve_past_hash(r->key),
                               .digest = serve_past_hash(r->digest),
                               .id = r->by_id ? hash_of(r->id, r->name) : 0,
                               .by = by};

    serve_past_add(r->s->past_runs, &ended, http_now_ms());
    free_run(r);
}

/* Freeing a run that is held asks the engine, in the thread that calls: so it is asked again as a request, until it answers
 * or the lease has passed. */
static void on_given_up(void *data, dibs_outcome *o)
{
    run *r = data;

    if (o->err.status == DIBS_OK) {
        end(r, o->op);
        return;
    }
    r->unanswered = true;
    set_timer(r, AGAIN_MS);
}

/* UNDO or ABANDON, without anybody who waits for it. */
static void give_up(run *r, dibs_op op)
{
    dibs_request request = {.op = op, .once = r->o};
    dibs_error err;

    http_timer_stop(r->s->http, &r->timer);
    r->busy = op;
    if (serve_ask(r->s, &request, on_given_up, r, NULL, &err) != DIBS_OK)
        end(r, DIBS_OP_ONCE_ABANDON); /* freeing it abandons it */
}

/* The library notices the end of a lease a moment after it. */
static void settle(run *r)
{
    if (r->over) {
        end(r, r->busy);
    } else if (dibs_once_held(r->o)) {
        r->unanswered = false;
        give_up(r, r->busy);
    } else {
        r->over = true;
        set_timer(r, AGAIN_MS);
    }
}

static void on_timer(http_timer *timer)
{
    run *r = (run *)((char *)timer - offsetof(run, timer));

    if (r->unanswered)
        settle(r);
    else if (r->busy)
        set_timer(r, r->lease_ms);
    else
        give_up(r, r->delivered ? DIBS_OP_ONCE_ABANDON : DIBS_OP_ONCE_UNDO);
}

/* ---- Beginning ------------------------------------------------------------------------------- */

static void answer_run(run *r, http_exchange *x)
{
    json_t *body = json_object();
    int status = r->delivered ? 200 : 201;

    r->x = NULL;
    r->delivered = true;
    set_timer(r, r->lease_ms);
    json_object_set_new(body, "state", json_string("running"));
    json_object_set_new(body, "run", json_string(r->id));
    json_object_set_new(body, "request", json_string(r->request));
    json_object_set_new(body, "fence", json_integer((json_int_t)dibs_once_fence(r->o)));
    json_object_set_new(body, "again", json_boolean(dibs_once_again(r->o)));
    json_object_set_new(body, "lease_ms", json_integer(r->lease_ms));
    http_reply_json(x, status, body);
}

static void answer_done(http_exchange *x, const dibs_once *o)
{
    json_t *body = json_object();
    size_t size;
    const void *result = dibs_once_result(o, &size);

    json_object_set_new(body, "state", json_string(dibs_once_failed(o) ? "failed" : "done"));
    cli_json_bytes(body, "result", result, size);
    json_object_set_new(body, "code", json_integer(dibs_once_code(o)));
    http_reply_json(x, 200, body);
}

static void on_gone(void *data)
{
    run *r = data;

    r->x = NULL;
    if (r->state == SERVE_COLLECTING && !r->own_id)
        dibs_stop(r->s->d, r->asked); /* whatever comes is undone */
}

/* Nobody may be there any more: then a client that chose its id may still come back. */
static void take_run(run *r)
{
    r->state = SERVE_HELD;
    r->id = serve_bound_id(r->s);
    r->by_id = r->id && tsearch(r, &r->s->runs, by_id);
    if (r->by_id && r->x) {
        answer_run(r, r->x);
        return;
    }
    if (r->x)
        http_reply_error(r->x, &(dibs_error){.status = DIBS_NO_MEMORY});
    r->x = NULL;
    if (r->by_id && r->own_id)
        set_timer(r, SERVE_KEPT_MS);
    else
        give_up(r, DIBS_OP_ONCE_UNDO);
}

static void on_begun(void *data, dibs_outcome *o)
{
    run *r = data;
    http_exchange *x = r->x;

    r->o = o->once;
    if (o->err.status == DIBS_OK) {
        take_run(r);
        return;
    }
    r->x = NULL;
    if (x && o->err.status == DIBS_ALREADY)
        answer_done(x, o->once);
    else if (x)
        http_reply_error(x, &o->err);
    free_run(r);
}

static bool read_begin(http_exchange *x, dibs_once_options *o)
{
    const char *fingerprint = http_text(x, "fingerprint"), *on_crash = http_text(x, "on_crash");
    int64_t wait = http_integer(x, "wait_ms", 0);

    if (on_crash && strcmp(on_crash, "refuse") != 0 && strcmp(on_crash, "rerun") != 0) {
        http_reply_problem(x, 400, DIBS_INVALID, "'on_crash' is refuse or rerun");
        return false;
    }
    o->scope = http_text(x, "scope");
    o->fingerprint = fingerprint;
    o->fingerprint_size = fingerprint ? strlen(fingerprint) : 0;
    o->lease_ms = http_integer(x, "lease_ms", 0);
    o->keep_ms = http_integer(x, "keep_ms", 0);
    o->tombstone_ms = http_integer(x, "tombstone_ms", 0);
    o->wait_ms = wait ? wait : DIBS_NO_WAIT;
    o->on_crash = on_crash && strcmp(on_crash, "rerun") == 0 ? DIBS_CRASH_RERUN : DIBS_CRASH_REFUSE;
    o->owner = http_text(x, "owner");
    if (!o->owner)
        o->owner = http_client(x)[0] ? http_client(x) : "http";
    return true;
}

static run *new_run(http_exchange *x, const dibs_once_options *o)
{
    const char *request = http_text(x, "request");
    run *r = calloc(1, sizeof *r);
    char made[33], numbers[96];

    if (!r)
        return NULL;
    r->s = http_context(x);
    r->lease_ms = o->lease_ms ? o->lease_ms : r->s->lease_ms;
    r->own_id = request != NULL;
    serve_random(made);
    r->request = strdup(request ? request : made);
    r->name = strdup(http_text(x, "key"));
    if (!r->request || !r->name) {
        free_run(r);
        return NULL;
    }
    snprintf(numbers, sizeof numbers, "%lld %lld %lld %d", (long long)o->lease_ms,
             (long long)o->keep_ms, (long long)o->tombstone_ms, (int)o->on_crash);
    serve_hash(r->key, (const char *[]){http_client(x), r->request, NULL});
    serve_hash(r->digest,
               (const char *[]){http_text(x, "key"), o->scope ? o->scope : "",
                                o->fingerprint ? (const char *)o->fingerprint : "", numbers, NULL});
    return r;
}

static void refuse_digest(http_exchange *x)
{
    http_reply_problem(
        x, 422, DIBS_MISMATCH,
        "this request id was used with other members: choose a new one for each request");
}

static void refuse_ended(http_exchange *x)
{
    http_reply_problem(x, 410, DIBS_LOST,
                       "the run of this request has ended: choose a new id for a new request");
}

/* Its answer was lost, or its connection: the client knows the id, also one that was made here. */
static void come_again(run *before, const run *r, http_exchange *x)
{
    if (strcmp(before->digest, r->digest) != 0) {
        refuse_digest(x);
        return;
    }
    before->own_id = true;
    if (before->state == SERVE_COLLECTING) {
        if (before->x)
            http_reply_problem(before->x, 409, DIBS_CANCELLED,
                               "the same request has come again, and is answered there");
        before->x = x;
        http_on_gone(x, on_gone, before);
    } else if (before->busy == DIBS_OP_ONCE_UNDO || before->busy == DIBS_OP_ONCE_ABANDON) {
        refuse_ended(x);
    } else {
        answer_run(before, x); /* also while a step is being recorded */
    }
}

/* True: it was answered. What was finished is asked for again: the engine has the result. */
static bool has_ended(const run *r, http_exchange *x)
{
    const serve_ended *ended =
        serve_past_of_key(r->s->past_runs, serve_past_hash(r->key), http_now_ms());

    if (!ended)
        return false;
    if (ended->digest != serve_past_hash(r->digest))
        refuse_digest(x);
    else if (ended->by == DIBS_OP_ONCE_FINISH || ended->by == DIBS_OP_ONCE_FAIL)
        return false;
    else
        refuse_ended(x);
    return true;
}

/* True: this request came before. */
static bool came_before(const run *r, http_exchange *x)
{
    run *before = run_of_key(r->s, r->key);

    if (!before)
        return r->own_id && has_ended(r, x);
    come_again(before, r, x);
    return true;
}

static void begin(http_exchange *x)
{
    serve *s = http_context(x);
    dibs_once_options options = {0};
    dibs_request request = {
        .op = DIBS_OP_ONCE_BEGIN, .name = http_text(x, "key"), .options.once = &options};
    dibs_error err = {.status = DIBS_NO_MEMORY};
    run *r;

    if (http_server_draining(s->http)) {
        http_reply_problem(x, 503, DIBS_UNAVAILABLE,
                           "this server is shutting down: ask another one");
        return;
    }
    if (!read_begin(x, &options))
        return;
    r = new_run(x, &options);
    if (r && came_before(r, x)) {
        free_run(r);
        return;
    }
    if (r) {
        options.data = r;
        r->x = x;
        r->by_key = tsearch(r, &s->runs_by_key, by_key) != NULL;
        http_on_gone(x, on_gone, r);
        if (r->by_key && serve_ask(s, &request, on_begun, r, &r->asked, &err) == DIBS_OK)
            return;
        free_run(r);
    }
    http_reply_error(x, &err);
}

/* ---- During a run ---------------------------------------------------------------------------- */

typedef struct call {
    run *r;
    http_exchange *x;
} call;

static void on_caller_gone(void *data)
{
    ((call *)data)->x = NULL;
}

/* `r` NULL: it has ended. */
static void answer_state(http_exchange *x, const run *r)
{
    json_t *body = json_object();

    json_object_set_new(body, "state", json_string(r ? "running" : "ended"));
    if (r)
        json_object_set_new(body, "remaining_ms", json_integer(r->lease_ms));
    http_reply_json(x, 200, body);
}

static void on_done(void *data, dibs_outcome *o)
{
    call *c = data;
    run *r = c->r;
    bool ended = o->err.status == DIBS_OK && o->op != DIBS_OP_ONCE_STEP;

    r->busy = 0;
    if (c->x && o->err.status == DIBS_OK)
        answer_state(c->x, ended ? NULL : r);
    else if (c->x)
        http_reply_error(c->x, &o->err);
    if (ended)
        end(r, o->op);
    else
        set_timer(r, r->lease_ms);
    free(c);
}

/* The run is not here, or not any more. */
static void refuse_absent(http_exchange *x, const char *id, dibs_op op)
{
    const serve *s = http_context(x);
    const serve_ended *ended =
        serve_past_of_id(s->past_runs, hash_of(id, http_text(x, "key")), http_now_ms());

    if (ended && ended->by == (int)op)
        answer_state(x, NULL); /* its answer was lost */
    else if (ended)
        http_reply_problem(x, 410, DIBS_LOST, "this run has ended");
    else if (serve_is_bound(id))
        serve_bound_refuse(x, id, "run");
    else
        http_reply_problem(x, 400, DIBS_INVALID,
                           "invalid run: send the text that begin returned, unchanged");
}

/* The run that the request names; NULL: it was answered. */
static run *find(http_exchange *x, dibs_op op)
{
    const char *id = http_text(x, "run");
    run *r = run_of_id(http_context(x), id);

    if (!r) {
        refuse_absent(x, id, op);
    } else if (strcmp(r->name, http_text(x, "key")) != 0) {
        http_reply_problem(x, 400, DIBS_INVALID, "this run belongs to another key");
        r = NULL;
    } else if (r->busy && op) {
        http_reply_error(x,
                         &(dibs_error){.status = DIBS_RUNNING,
                                       .next = DIBS_NEXT_LATER,
                                       .message = "another request about this run is in progress"});
        r = NULL;
    }
    return r;
}

static void operate(http_exchange *x, dibs_op op, const char *text, const char *hex)
{
    run *r = find(x, op);
    call *c = r ? malloc(sizeof *c) : NULL;
    dibs_request request = {
        .op = op, .name = http_text(x, "step"), .number = http_integer(x, "code", 0)};
    void *bytes = NULL;
    dibs_error err = {.status = DIBS_NO_MEMORY};

    if (!r || (text && !serve_bytes(x, text, hex, &bytes, &request.size))) {
        free(c);
        return;
    }
    request.once = r->o;
    request.data = bytes;
    if (c) {
        *c = (call){r, x};
        http_on_gone(x, on_caller_gone, c);
        r->busy = serve_ask(r->s, &request, on_done, c, NULL, &err) == DIBS_OK ? op : 0;
    }
    free(bytes);
    if (c && r->busy)
        return;
    free(c);
    http_reply_error(x, &err);
}

static void step(http_exchange *x)
{
    operate(x, DIBS_OP_ONCE_STEP, "data", "data_hex");
}

static void finish(http_exchange *x)
{
    operate(x, DIBS_OP_ONCE_FINISH, "result", "result_hex");
}

static void fail(http_exchange *x)
{
    operate(x, DIBS_OP_ONCE_FAIL, "result", "result_hex");
}

static void undo(http_exchange *x)
{
    operate(x, DIBS_OP_ONCE_UNDO, NULL, NULL);
}

static void abandon(http_exchange *x)
{
    operate(x, DIBS_OP_ONCE_ABANDON, NULL, NULL);
}

/* A keep-alive, nothing else: the keeper renews it at the engine. */
static void renew(http_exchange *x)
{
    run *r = find(x, (dibs_op)0);

    if (!r)
        return;
    if (!dibs_once_held(r->o) || r->busy == DIBS_OP_ONCE_UNDO || r->busy == DIBS_OP_ONCE_ABANDON) {
        http_reply_problem(x, 410, DIBS_LOST, "this run was lost: another one may have begun");
        return;
    }
    set_timer(r, r->lease_ms);
    answer_state(x, r);
}

/* ---- Routes ---------------------------------------------------------------------------------- */

#define RUN                                                             \
    {                                                                   \
        "run", HTTP_TEXT, 1, 1024, "The run, as it was returned.", true \
    }
#define RESULT                                                                                  \
    {"result", HTTP_TEXT, 0, DATA_MAX, "What duplicates get.", false},                          \
        {"result_hex", HTTP_TEXT, 0, DATA_MAX, "The same, as bytes in hexadecimal.", false},    \
    {                                                                                           \
        "code", HTTP_INTEGER, 0, CODE_MAX, "A code of yours for duplicates (default 0).", false \
    }

static const http_field begin_fields[] = {
    {"request", HTTP_TEXT, SERVE_REQUEST_MIN, SERVE_REQUEST_MAX,
     "An id for this request, chosen by the client at random: the same id again returns the same "
     "run.",
     false},
    {"scope", HTTP_TEXT, 0, SCOPE_MAX, "Namespace of the key.", false},
    {"fingerprint", HTTP_TEXT, 1, 255, "Identifies the work: another one with this key is refused.",
     false},
    {"lease_ms", HTTP_INTEGER, 10, SERVE_DAY_MS, "A silent client is considered dead after this.",
     false},
    {"keep_ms", HTTP_INTEGER, 1, KEEP_MAX, "How long the result is kept (default: 24 hours).",
     false},
    {"tombstone_ms", HTTP_INTEGER, 1, KEEP_MAX,
     "How long EXPIRED is answered after that (default: 0).", false},
    {"wait_ms", HTTP_INTEGER, 0, WAIT_MAX, "How long to wait for a run in progress.", false},
    {"on_crash", HTTP_TEXT, 1, 8, "refuse (default) or rerun.", false},
    {"owner", HTTP_TEXT, 1, DIBS_OWNER_MAX, "Shown to operators.", false},
    {0},
};
static const http_field step_fields[] = {
    RUN,
    {"step", HTTP_TEXT, 1, DIBS_NAME_MAX, "The name of the recovery point.", true},
    {"data", HTTP_TEXT, 0, DATA_MAX, "What has been done so far.", false},
    {"data_hex", HTTP_TEXT, 0, DATA_MAX, "The same, as bytes in hexadecimal.", false},
    {0},
};
static const http_field result_fields[] = {RUN, RESULT, {0}};
static const http_field run_fields[] = {RUN, {0}};

static const http_answer begun[] = {{200, "Begun"},   {201, "Begun"},   {409, "Problem"},
                                    {410, "Problem"}, {422, "Problem"}, {0}};
static const http_answer ended[] = {
    {200, "Run"}, {409, "Problem"}, {410, "Problem"}, {421, "Problem"}, {0}};

#define RUN_ROUTE(verb_path, text, fields, function, most)                                         \
    {                                                                                              \
        .method = "POST", .path = "/v1/once/{key}/" verb_path, .verb = HTTP_LOCK, .summary = text, \
        .body = fields, .answers = ended, .handle = function, .body_max = most                     \
    }

const http_route serve_run_routes[] = {
    {.method = "POST",
     .path = "/v1/once/{key}/begin",
     .verb = HTTP_LOCK,
     .summary = "Begin the work of a key, or get the result of the run that did it",
     .body = begin_fields,
     .answers = begun,
     .handle = begin},
    RUN_ROUTE("step", "Record a recovery point", step_fields, step, DATA_MAX),
    RUN_ROUTE("finish", "The work is done: store its result", result_fields, finish, DATA_MAX),
    RUN_ROUTE("fail", "The work has failed, finally: store its result", result_fields, fail,
              DATA_MAX),
    RUN_ROUTE("undo", "Nothing has happened: release the key", run_fields, undo, 0),
    RUN_ROUTE("abandon", "The outcome is unknown: as if the runner had died", run_fields, abandon,
              0),
    RUN_ROUTE("renew", "A sign of life", run_fields, renew, 0),
    {0},
};
