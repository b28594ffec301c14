#define _GNU_SOURCE
#include "scenes.h"
#include "support/calls.h"

#include "support/clock.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEASE_MS   400
#define SLACK_MS   250   /* what dibs.h allows beyond a wait or an exchange */
#define EXAMINE_MS 15000 /* questions to a server, once it is reached */
#define CLOSE_MS   2000  /* and beyond that when it closes */
#define GRACE_MS   3000  /* for a machine that is busy with other things */

/* ---- Calls ------------------------------------------------------------------------------------ */

/* A fault of machine or memory may end a call so. */
static bool is_excuse(dibs_status status)
{
    return status == DIBS_NO_MEMORY || status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN ||
           status == DIBS_ENGINE_FAILED || status == DIBS_BUSY || status == DIBS_LOST;
}

static bool noted(stage *s, const char *call, int64_t began, int64_t bound, dibs_status want,
                  dibs_status status, const dibs_error *err)
{
    int64_t over = clock_ms() - began - bound;

    if (over > s->longest)
        s->longest = over;
    if (over > GRACE_MS && !s->wrong[0])
        snprintf(s->wrong, sizeof s->wrong, "%.200s took %lld ms longer than it may", call,
                 (long long)over);
    if (status == want)
        return true;
    s->refused++;
    snprintf(s->last, sizeof s->last, "%.200s: %s: %s", call, dibs_status_name(status),
             err->message);
    if (!is_excuse(status) && !s->wrong[0])
        memcpy(s->wrong, s->last, sizeof s->wrong);
    return false;
}

/* True: the call ended as wanted. It may use `err`. */
#define CALL(s, bound, want, call)              \
    (err = (dibs_error){0}, began = clock_ms(), \
     noted(s, #call, began, (bound), (want), (call), &err))
#define DO(call)   CALL(s, REQUEST_MS + SLACK_MS, DIBS_OK, call)
#define WAIT(call) CALL(s, WAIT_MS + SLACK_MS, DIBS_OK, call)
#define LOCALS      \
    dibs_error err; \
    int64_t began

static dibs_lock_options lock_options(const stage *s)
{
    return (dibs_lock_options){.wait_ms = WAIT_MS,
                               .lease_ms = s->where->can.lease_of_handle ? 0 : LEASE_MS};
}

/* What one run left half done is not in another's way. */
static const char *fresh(const char *kind)
{
    static char names[4][48];
    static unsigned n;
    char *name = names[n % 4];

    snprintf(name, sizeof names[0], "%s-%u", kind, n++);
    return name;
}

/* ---- Locks ------------------------------------------------------------------------------------ */

static void lock_with(stage *s, const dibs_lock_options *o)
{
    dibs_grant *g = NULL, *again = NULL;
    LOCALS;

    if (!WAIT(dibs_lock(s->d, "sweep-0", o, &g, &err)))
        return;
    if (WAIT(dibs_lock(s->d, "sweep-0", o, &again, &err)) && again == g)
        DO(unlock(again));
    else if (again)
        unlock(again);
    DO(dibs_renew(g, &err));
    DO(unlock(g));
}

static void play_lock(stage *s)
{
    dibs_lock_options o = lock_options(s);

    lock_with(s, &o);
}

static void play_lock_shared(stage *s)
{
    dibs_lock_options o = lock_options(s);

    o.shared = true;
    lock_with(s, &o);
}

static void play_lock_slots(stage *s)
{
    dibs_lock_options o = lock_options(s);
    dibs_grant *g = NULL;
    LOCALS;

    o.slots = 3;
    if (WAIT(dibs_lock(s->d, "sweep-slots", &o, &g, &err)))
        DO(unlock(g));
}

static void play_portable(stage *s)
{
    dibs_lock_options o = lock_options(s);
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = NULL, *there = NULL;
    LOCALS;

    o.portable = true;
    if (!WAIT(dibs_lock(s->d, "sweep-0", &o, &g, &err)))
        return;
    if (DO(dibs_grant_export(g, text, &err)) && DO(dibs_grant_detach(&g, &err)) &&
        DO(dibs_grant_adopt(s->d, text, NULL, &there, &err)))
        DO(unlock(there));
    if (g)
        unlock(g);
}

static void play_lock_many(stage *s)
{
    static const char *const names[LOCKS] = {"sweep-2", "sweep-0", "sweep-1"};
    dibs_lock_options o = lock_options(s);
    dibs_grant *g[LOCKS] = {0};
    LOCALS;

    if (WAIT(dibs_lock_many(s->d, names, LOCKS, &o, g, &err)))
        for (int i = 0; i < LOCKS; i++)
            DO(unlock(g[i]));
}

static void play_lock_busy(stage *s)
{
    dibs_lock_options o = lock_options(s);
    dibs_grant *held = NULL, *g = NULL;
    LOCALS;

    if (!WAIT(dibs_lock(s->second, "sweep-0", &o, &held, &err)))
        return;
    o.wait_ms = 20;
    if (!CALL(s, 20 + SLACK_MS, DIBS_BUSY, dibs_lock(s->d, "sweep-0", &o, &g, &err)) && g)
        unlock(g);
    DO(unlock(held));
}

typedef struct outcome {
    stage *s;
    bool settled;
    dibs_status want;
} outcome;

static void done(void *data, dibs_status status, dibs_grant *g, const dibs_error *err)
{
    outcome *o = data;

    o->settled = true;
    if (status == DIBS_OK && unlock(g) != DIBS_OK)
        o->s->refused++;
    noted(o->s, "the request", clock_ms(), 0, o->want, status, err);
}

static void await_outcome(stage *s, outcome *o)
{
    int64_t end = clock_ms() + WAIT_MS + SLACK_MS + GRACE_MS;

    while (!o->settled && clock_ms() < end) {
        struct pollfd p = {.fd = dibs_fd(s->d), .events = POLLIN};
        poll(&p, 1, 20);
        take_all(s->d);
    }
    if (!o->settled && !s->wrong[0])
        snprintf(s->wrong, sizeof s->wrong, "a request was never settled");
}

/* Behind a holder that goes, or until it is cancelled: 0, 1 by its id, 2 by the lock's name. */
static void request_with(stage *s, int cancelled)
{
    uint64_t t = 0;
    static outcome o;
    dibs_lock_options options = lock_options(s);
    dibs_grant *held = NULL;
    LOCALS;

    o = (outcome){.s = s, .want = cancelled ? DIBS_CANCELLED : DIBS_OK};
    if (!WAIT(dibs_lock(s->second, "sweep-1", &options, &held, &err)))
        return;
    if (!DO(start_lock(s->d, "sweep-1", &options, done, &o, &t, &err))) {
        unlock(held);
        return;
    }
    if (cancelled == 1)
        dibs_stop(s->d, t);
    else if (cancelled == 2)
        dibs_cancel(s->d, "sweep-1");
    else
        DO(unlock(held));
    await_outcome(s, &o);
    if (cancelled)
        DO(unlock(held));
}

static void play_request(stage *s)
{
    request_with(s, 0);
}

static void play_stop(stage *s)
{
    request_with(s, 1);
}

static void play_cancel(stage *s)
{
    request_with(s, 2);
}

static void play_look(stage *s)
{
    dibs_lock_options o = lock_options(s);
    dibs_grant *held = NULL;
    dibs_lock_report *r = NULL;
    dibs_status status;
    LOCALS;

    o.lease_ms = 0; /* the handle's: it is seen also by a look that took its time */
    if (!WAIT(dibs_lock(s->second, "sweep-2", &o, &held, &err)))
        return;
    began = clock_ms();
    status = dibs_lock_inspect(s->d, "sweep-2", &r, &err);
    if (status != DIBS_NOT_FOUND || dibs_grant_held(held))
        noted(s, "dibs_lock_inspect", began, REQUEST_MS + SLACK_MS, DIBS_OK, status, &err);
    dibs_lock_report_free(r);
    r = NULL;
    DO(dibs_lock_list(s->d, "sweep", &(dibs_lock_list_options){.idle = true}, &r, &err));
    dibs_lock_report_free(r);
    DO(unlock(held));
}

static void play_break(stage *s)
{
    dibs_lock_options o = lock_options(s);
    dibs_grant *held = NULL;
    bool broken;
    LOCALS;

    if (!WAIT(dibs_lock(s->second, "sweep-2", &o, &held, &err)))
        return;
    broken = WAIT(dibs_lock_break(
        s->d, "sweep-2", &(dibs_lock_break_options){.by = "sweep", .now = true, .wait_ms = WAIT_MS},
        &err));
    if (unlock(held) == DIBS_OK && broken && !s->wrong[0])
        snprintf(s->wrong, sizeof s->wrong, "the lock was broken, and its holder was not told");
}

static void play_fence_top(stage *s)
{
    uint64_t top;
    LOCALS;

    DO(dibs_fence_top(s->d, &top, &err));
}

/* ---- Cells ------------------------------------------------------------------------------------ */

static void play_cell(stage *s)
{
    const char *name = fresh("cell");
    dibs_value v = {0}, passed = {0};
    LOCALS;

    if (DO(dibs_cell_swap(s->d, name, 0, "value", 5, NULL, NULL, &err)) &&
        DO(dibs_cell_pass(s->d, name, &(dibs_cell_options){.fence = 5}, &passed, &err)) &&
        DO(dibs_cell_read(s->d, name, &v, &err)))
        DO(dibs_cell_delete(s->d, name, v.version, &(dibs_cell_options){.fence = 6}, &err));
    dibs_value_free(&v);
    dibs_value_free(&passed);
}

static void play_counter(stage *s)
{
    const char *name = fresh("counter");
    dibs_counter_options once = {.request = "r"};
    int64_t left = -1;
    LOCALS;

    if (DO(dibs_counter_set(s->d, name, 2, NULL, &err)) &&
        DO(dibs_counter_add(s->d, name, 1, NULL, &left, &err)) &&
        DO(dibs_counter_take(s->d, name, 3, &once, &left, &err)) &&
        DO(dibs_counter_get(s->d, name, &left, &err)))
        CALL(s, REQUEST_MS + SLACK_MS, DIBS_TOO_FEW,
             dibs_counter_take(s->d, name, 1, NULL, &left, &err));
}

static dibs_once_options once_options(const stage *s)
{
    return (dibs_once_options){.wait_ms = DIBS_NO_WAIT,
                               .lease_ms = s->where->can.lease_of_handle ? 0 : LEASE_MS};
}

static void play_once(stage *s)
{
    const char *key = fresh("once");
    dibs_once_options o = once_options(s);
    dibs_once *run = NULL, *again = NULL;
    LOCALS;

    if (DO(dibs_once_begin(s->d, key, &o, &run, &err)) &&
        CALL(s, REQUEST_MS + SLACK_MS, DIBS_RUNNING,
             dibs_once_begin(s->second, key, &o, &again, &err)) &&
        DO(dibs_once_step(run, "step", "data", 4, &err)) &&
        DO(dibs_once_finish(run, "result", 6, 0, &err)))
        CALL(s, WAIT_MS + SLACK_MS, DIBS_ALREADY, dibs_once_wait(again, WAIT_MS, &err));
    dibs_once_free(again);
    dibs_once_free(run);
}

static void play_once_fail(stage *s)
{
    dibs_once_options o = once_options(s);
    dibs_once *run = NULL;
    LOCALS;

    if (DO(dibs_once_begin(s->d, fresh("once"), &o, &run, &err)))
        DO(dibs_once_undo(run, &err));
    dibs_once_free(run);
}

static void play_once_abandon(stage *s)
{
    dibs_once_options o = once_options(s);
    dibs_once *run = NULL;
    LOCALS;

    if (DO(dibs_once_begin(s->d, fresh("once"), &o, &run, &err)))
        DO(dibs_once_abandon(run, &err));
    dibs_once_free(run);
}

/* What operators do: a list, a look, a decision, and the key is forgotten. */
static void play_once_keys(stage *s)
{
    const dibs_once_resolve_options done = {.outcome = DIBS_ONCE_DONE, .result = "r", .size = 1};
    const char *key = fresh("once");
    dibs_once_options o = once_options(s);
    dibs_once_report *r = NULL;
    dibs_once *run = NULL;
    LOCALS;

    if (DO(dibs_once_begin(s->d, key, &o, &run, &err)) && DO(dibs_once_abandon(run, &err)) &&
        DO(dibs_once_list(s->d, key, NULL, &r, &err))) {
        dibs_once_report_free(r);
        r = NULL;
        if (DO(dibs_once_inspect(s->d, key, NULL, &r, &err)) &&
            DO(dibs_once_resolve(s->d, key, &done, &err)))
            DO(dibs_once_forget(s->d, key, NULL, &err));
    }
    dibs_once_report_free(r);
    dibs_once_free(run);
}

static void play_token(stage *s)
{
    char token[DIBS_TOKEN_SIZE], heir[DIBS_TOKEN_SIZE];
    LOCALS;

    if (DO(dibs_token_issue(s->d, NULL, token, &err)) &&
        DO(dibs_token_redeem(s->d, token, NULL, &err)) &&
        DO(dibs_token_reissue(s->d, token, NULL, heir, &err)))
        CALL(s, REQUEST_MS + SLACK_MS, DIBS_REFUSED, dibs_token_redeem(s->d, token, NULL, &err));
}

/* ---- Every op as a request -------------------------------------------------------------------- */

static void go_wrong(stage *s, dibs_op op, const char *what)
{
    if (!s->wrong[0])
        snprintf(s->wrong, sizeof s->wrong, "the request with op %d %s", (int)op, what);
}

/* The one outcome of a request that was started; losses are nobody's. */
static bool take_its(stage *s, uint64_t id, dibs_op op, dibs_outcome *o)
{
    int64_t end = clock_ms() + 2 * REQUEST_MS + SLACK_MS + GRACE_MS;
    dibs_outcome more;

    while (o->id != id && clock_ms() < end) {
        struct pollfd p = {.fd = dibs_fd(s->d), .events = POLLIN};
        if (!dibs_take(s->d, o))
            poll(&p, 1, 20);
        else if (o->id != id && o->op != DIBS_OP_LOST)
            go_wrong(s, op, "got another's outcome");
    }
    if (o->id != id)
        go_wrong(s, op, "was never settled");
    while (dibs_take(s->d, &more))
        if (more.op != DIBS_OP_LOST)
            go_wrong(s, op, "was settled twice");
    return o->id == id;
}

static bool asked(stage *s, dibs_request r, dibs_status want, dibs_outcome *o)
{
    int64_t began = clock_ms();
    dibs_error err = {0};
    uint64_t id = 0;
    char what[40];

    memset(o, 0, sizeof *o);
    snprintf(what, sizeof what, "the request with op %d", (int)r.op);
    if (!noted(s, "dibs_start", began, SLACK_MS, DIBS_OK, dibs_start(s->d, &r, &id, &err), &err) ||
        !take_its(s, id, r.op, o))
        return false;
    return noted(s, what, began, 2 * REQUEST_MS + SLACK_MS, want, o->err.status, &o->err);
}

/* The library has the grant once it is started. */
static void unlock_by_request(stage *s, dibs_grant *g)
{
    dibs_outcome o;

    if (!asked(s, (dibs_request){.op = DIBS_OP_UNLOCK, .grant = g}, DIBS_OK, &o) && !o.id)
        unlock(g);
}

static void play_lock_requests(stage *s)
{
    dibs_lock_options terms = lock_options(s);
    const char *name = "sweep-0";
    dibs_outcome o;
    dibs_grant *g;

    if (!asked(s, (dibs_request){.op = DIBS_OP_LOCK, .name = name, .options.lock = &terms}, DIBS_OK,
               &o))
        return;
    g = o.grant;
    asked(s, (dibs_request){.op = DIBS_OP_RENEW, .grant = g}, DIBS_OK, &o);
    asked(s, (dibs_request){.op = DIBS_OP_LOCK_INSPECT, .name = name}, DIBS_OK, &o);
    dibs_lock_report_free(o.lock_report);
    asked(s, (dibs_request){.op = DIBS_OP_LOCK_LIST, .name = name}, DIBS_OK, &o);
    dibs_lock_report_free(o.lock_report);
    unlock_by_request(s, g);
    asked(s,
          (dibs_request){.op = DIBS_OP_LOCK_BREAK,
                         .name = "never",
                         .options.lock_break = &(dibs_lock_break_options){.by = "sweep"}},
          DIBS_NOT_FOUND, &o);
}

static void play_adopt_request(stage *s)
{
    dibs_lock_options terms = lock_options(s);
    char text[DIBS_GRANT_SIZE];
    dibs_grant *g = NULL;
    dibs_outcome o;
    LOCALS;

    terms.portable = true;
    if (!WAIT(dibs_lock(s->second, "sweep-1", &terms, &g, &err)))
        return;
    if (DO(dibs_grant_export(g, text, &err)) &&
        asked(s, (dibs_request){.op = DIBS_OP_GRANT_ADOPT, .name = text}, DIBS_OK, &o))
        unlock_by_request(s, o.grant);
    unlock(g); /* lost, if it was adopted */
}

static bool cell_by_request(stage *s, dibs_request r, uint64_t *version)
{
    dibs_outcome o;
    bool done = asked(s, r, DIBS_OK, &o);

    *version = o.value.version;
    dibs_value_free(&o.value);
    return done;
}

static void play_cell_requests(stage *s)
{
    const char *cell = fresh("asked");
    const dibs_cell_options under = {.fence = 5};
    uint64_t v;

    if (cell_by_request(
            s, (dibs_request){.op = DIBS_OP_CELL_SWAP, .name = cell, .data = "x", .size = 1}, &v) &&
        cell_by_request(
            s, (dibs_request){.op = DIBS_OP_CELL_PASS, .name = cell, .options.cell = &under}, &v) &&
        cell_by_request(s, (dibs_request){.op = DIBS_OP_CELL_READ, .name = cell}, &v))
        cell_by_request(s,
                        (dibs_request){.op = DIBS_OP_CELL_DELETE,
                                       .name = cell,
                                       .version = DIBS_ANY_VERSION,
                                       .options.cell = &under},
                        &v);
}

static void play_counter_requests(stage *s)
{
    const char *name = fresh("asked");
    dibs_outcome o;

    if (asked(s, (dibs_request){.op = DIBS_OP_COUNTER_SET, .name = name, .number = 5}, DIBS_OK,
              &o) &&
        asked(s, (dibs_request){.op = DIBS_OP_COUNTER_ADD, .name = name, .number = 1}, DIBS_OK,
              &o) &&
        asked(s, (dibs_request){.op = DIBS_OP_COUNTER_GET, .name = name}, DIBS_OK, &o))
        asked(s, (dibs_request){.op = DIBS_OP_COUNTER_TAKE, .name = name, .number = 9},
              DIBS_TOO_FEW, &o);
}

static void play_token_requests(stage *s)
{
    char token[DIBS_TOKEN_SIZE];
    dibs_outcome o;

    if (!asked(s, (dibs_request){.op = DIBS_OP_TOKEN_ISSUE}, DIBS_OK, &o))
        return;
    memcpy(token, o.token, sizeof token);
    if (asked(s, (dibs_request){.op = DIBS_OP_TOKEN_REDEEM, .name = token}, DIBS_OK, &o))
        asked(s, (dibs_request){.op = DIBS_OP_TOKEN_REISSUE, .name = token}, DIBS_OK, &o);
}

static dibs_once *begun_by_request(stage *s, const char *key, dibs_status want)
{
    dibs_once_options terms = once_options(s);
    dibs_outcome o;

    if (asked(s, (dibs_request){.op = DIBS_OP_ONCE_BEGIN, .name = key, .options.once = &terms},
              want, &o))
        return o.once;
    dibs_once_free(o.once);
    return NULL;
}

/* Begun, left, looked at, begun again, ended. */
static void play_once_requests(stage *s)
{
    const char *key = fresh("asked");
    dibs_once *run = begun_by_request(s, key, DIBS_OK);
    dibs_outcome o;

    if (!run)
        return;
    asked(s,
          (dibs_request){
              .op = DIBS_OP_ONCE_STEP, .once = run, .name = "half", .data = "x", .size = 1},
          DIBS_OK, &o);
    asked(s, (dibs_request){.op = DIBS_OP_ONCE_ABANDON, .once = run}, DIBS_OK, &o);
    dibs_once_free(run);
    run = s->refused ? NULL : begun_by_request(s, key, DIBS_CRASHED);
    if (run && asked(s, (dibs_request){.op = DIBS_OP_ONCE_RERUN, .once = run}, DIBS_OK, &o))
        asked(s, (dibs_request){.op = DIBS_OP_ONCE_FINISH, .once = run, .data = "r", .size = 1},
              DIBS_OK, &o);
    dibs_once_free(run);
    run = s->refused ? NULL : begun_by_request(s, fresh("asked"), DIBS_OK);
    if (run)
        asked(s, (dibs_request){.op = DIBS_OP_ONCE_UNDO, .once = run}, DIBS_OK, &o);
    dibs_once_free(run);
}

static void play_key_requests(stage *s)
{
    const dibs_once_resolve_options free_it = {.outcome = DIBS_ONCE_FREE};
    const char *key = fresh("asked");
    dibs_once *run = begun_by_request(s, key, DIBS_OK), *other;
    dibs_outcome o;

    if (!run)
        return;
    other = begun_by_request(s, key, DIBS_RUNNING);
    if (other)
        asked(s, (dibs_request){.op = DIBS_OP_ONCE_WAIT, .once = other, .number = 20}, DIBS_RUNNING,
              &o);
    dibs_once_free(other);
    asked(s, (dibs_request){.op = DIBS_OP_ONCE_LIST, .name = key}, DIBS_OK, &o);
    dibs_once_report_free(o.once_report);
    asked(s, (dibs_request){.op = DIBS_OP_ONCE_INSPECT, .name = key}, DIBS_OK, &o);
    dibs_once_report_free(o.once_report);
    if (asked(s, (dibs_request){.op = DIBS_OP_ONCE_FAIL, .once = run, .number = 3}, DIBS_OK, &o)) {
        asked(s,
              (dibs_request){
                  .op = DIBS_OP_ONCE_RESOLVE, .name = key, .options.once_resolve = &free_it},
              DIBS_CONFLICT, &o);
        asked(s, (dibs_request){.op = DIBS_OP_ONCE_FORGET, .name = key}, DIBS_OK, &o);
    }
    dibs_once_free(run);
}

/* ---- Without a handle ------------------------------------------------------------------------- */

static dibs_options handle_options(void)
{
    return (dibs_options){.connect_ms = CONNECT_MS, .request_ms = REQUEST_MS};
}

/* What is written to memory: stays there as long as anybody has that store open. Cells get a store that goes
 * with the scene, so that its allocations can be counted. */
dibs *stage_open(const scratch_store *p, const scene *s, dibs_error *err)
{
    bool apart = s->need == NEEDS_CELLS && !p->can.across_processes;
    dibs_options o = handle_options();
    dibs *d = NULL;

    dibs_open(apart ? "memory:apart" : p->url, &o, &d, err);
    return d;
}

static void play_open(stage *s)
{
    dibs_options o = handle_options();
    dibs_lock_options brief = lock_options(s);
    dibs_grant *g = NULL;
    dibs *d = NULL;
    LOCALS;

    if (!CALL(s, CONNECT_MS + SLACK_MS, DIBS_OK, dibs_open(s->where->url, &o, &d, &err)))
        return;
    WAIT(dibs_lock(d, "sweep-0", &brief, &g, &err)); /* dibs_close gives it back */
    CALL(s, REQUEST_MS + CLOSE_MS, DIBS_OK, (dibs_close(d), DIBS_OK));
}

/* With something held. Every request that was started has its outcome, and the drain's is the last. */
static void play_drain(stage *s)
{
    dibs_options o = handle_options();
    dibs_lock_options brief = lock_options(s);
    dibs_outcome out = {0};
    uint64_t id = 0;
    LOCALS;

    if (!CALL(s, CONNECT_MS + SLACK_MS, DIBS_OK, dibs_open(s->where->url, &o, &s->d, &err)))
        return;
    asked(s, (dibs_request){.op = DIBS_OP_LOCK, .name = "sweep-0", .options.lock = &brief}, DIBS_OK,
          &out);
    if (DO(dibs_start(s->d, &(dibs_request){.op = DIBS_OP_DRAIN}, &id, &err))) {
        take_its(s, id, DIBS_OP_DRAIN, &out);
        CALL(s, SLACK_MS, DIBS_OK, (dibs_close(s->d), DIBS_OK));
    } else {
        dibs_close(s->d);
    }
    s->d = NULL;
}

static void play_examine(stage *s)
{
    dibs_options o = handle_options();
    dibs_findings *f = NULL;
    LOCALS;

    o.connect_ms = 2 * CONNECT_MS;
    CALL(s, o.connect_ms + EXAMINE_MS, DIBS_OK, dibs_examine(s->where->url, &o, &f, &err));
    dibs_findings_free(f);
}

static void play_schema(stage *s)
{
    char *sql = NULL;
    LOCALS;

    DO(dibs_schema(s->where->url, &sql, &err));
    free(sql);
}

const scene scenes[] = {
    {"lock, renew, unlock", play_lock, NEEDS_NOTHING, false, false},
    {"lock (shared)", play_lock_shared, NEEDS_SHARED, false, false},
    {"lock (slots)", play_lock_slots, NEEDS_SLOTS, false, false},
    {"grant_export, detach, adopt", play_portable, NEEDS_OWN_LEASE, false, false},
    {"lock_many", play_lock_many, NEEDS_NOTHING, false, false},
    {"lock (busy)", play_lock_busy, NEEDS_NOTHING, false, false},
    {"start, take", play_request, NEEDS_NOTHING, false, false},
    {"stop", play_stop, NEEDS_NOTHING, false, false},
    {"cancel", play_cancel, NEEDS_NOTHING, false, false},
    {"inspect, list", play_look, NEEDS_NOTHING, false, false},
    {"break", play_break, NEEDS_NOTHING, false, false},
    {"fence_top", play_fence_top, NEEDS_NOTHING, false, false},
    {"cell_*, fence_pass", play_cell, NEEDS_CELLS, false, false},
    {"counter_*", play_counter, NEEDS_CELLS, false, false},
    {"once_begin, step, finish, wait", play_once, NEEDS_CELLS, false, false},
    {"once_fail", play_once_fail, NEEDS_CELLS, false, false},
    {"once_abandon", play_once_abandon, NEEDS_CELLS, false, false},
    {"once_list, inspect, resolve, forget", play_once_keys, NEEDS_CELLS, false, false},
    {"token_*", play_token, NEEDS_CELLS, false, false},
    {"requests: locks", play_lock_requests, NEEDS_NOTHING, false, false},
    {"requests: adopt", play_adopt_request, NEEDS_OWN_LEASE, false, false},
    {"requests: cells", play_cell_requests, NEEDS_CELLS, false, false},
    {"requests: counters", play_counter_requests, NEEDS_CELLS, false, false},
    {"requests: tokens", play_token_requests, NEEDS_CELLS, false, false},
    {"requests: once", play_once_requests, NEEDS_CELLS, false, false},
    {"requests: keys", play_key_requests, NEEDS_CELLS, false, false},
    {"requests: drain", play_drain, NEEDS_NOTHING, true, false},
    {"open, close", play_open, NEEDS_NOTHING, true, false},
    {"examine", play_examine, NEEDS_NOTHING, true, true},
    {"schema", play_schema, NEEDS_SCHEMA, true, false},
    {0},
};

bool scene_fits(const scene *s, const scratch_store *p)
{
    bool sql = strcmp(p->engine, "postgresql") == 0 || strcmp(p->engine, "mysql") == 0;

    if (s->play == play_examine)
        return p->can.across_processes; /* memory: has no server */
    return (s->need != NEEDS_CELLS || p->can.cells) && (s->need != NEEDS_SHARED || p->can.shared) &&
           (s->need != NEEDS_OWN_LEASE || !p->can.lease_of_handle) &&
           (s->need != NEEDS_SLOTS || p->can.slots) && (s->need != NEEDS_SCHEMA || sql);
}
