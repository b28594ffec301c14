/* POST /v1/acquire: one request of a client, which may come several times.
 *
 * The set of a request is found by the request's id (serve_set_of_key). A request that comes again is answered
 * from it: with the same grant, or by waiting on. A wait is answered with 202 after a slice; the set then stays
 * in the queue without a client for a while, and the same after a connection was closed. What was granted
 * and was collected by nobody in that time is released. */
#include "serve/bound.h"
#include "serve/past.h"
#include "serve/sets.h"

#include <stdlib.h>
#include <string.h>

static void on_timer(http_timer *timer);

static serve_set *set_of_timer(http_timer *timer)
{
    return (serve_set *)((char *)timer - offsetof(serve_set, timer));
}

static void set_timer(serve_set *set, int64_t ms)
{
    http_timer_set(set->s->http, &set->timer, ms, on_timer);
}

/* ---- Answers --------------------------------------------------------------------------------- */

/* Sent, and maybe received: from here on the lease decides. */
static void answer_granted(serve_set *set, http_exchange *x)
{
    int status = set->delivered ? 200 : 201;

    set->x = NULL;
    set->delivered = true;
    if (set->terms.by_keeper)
        set_timer(set, set->terms.lease_ms);
    else
        http_timer_stop(set->s->http, &set->timer);
    http_reply_json(x, status, serve_set_json(set));
}

static void answer_queued(serve_set *set, http_exchange *x)
{
    int64_t left = set->deadline_ms - http_now_ms();
    json_t *body = json_object();

    set->x = NULL;
    json_object_set_new(body, "request", json_string(set->request));
    json_object_set_new(body, "wait_ms", json_integer(left > 0 ? left : 0));
    json_object_set_new(body, "kept_ms", json_integer(SERVE_KEPT_MS));
    http_set_header(x, "Retry-After", "0");
    http_reply_json(x, 202, body);
}

void serve_set_renewed(serve_set *set)
{
    set->delivered = set->used = true;
    if (set->terms.by_keeper)
        set_timer(set, set->terms.lease_ms);
    else
        http_timer_stop(set->s->http, &set->timer);
}

/* ---- Its end --------------------------------------------------------------------------------- */

/* Released, or never delivered. */
static void give_up(serve_set *set)
{
    if (set->state == SERVE_COLLECTING) {
        serve_set_abandon(set);
        return;
    }
    serve_set_release(set);
    serve_set_free(set);
}

void serve_set_end(serve_set *set)
{
    const serve_ended ended = {.key = set->by_key ? serve_past_hash(set->key) : 0,
                               .digest = serve_past_hash(set->digest),
                               .id = set->by_id ? serve_past_id(set->id) : 0};

    if (ended.key || ended.id)
        serve_past_add(set->s->past, &ended, http_now_ms());
    set->state = SERVE_ENDED;
    serve_set_delist_key(set);
    serve_set_delist_id(set);
    http_timer_stop(set->s->http, &set->timer);
}

/* Another server may hold it for the client by now: the id is forgotten here, and so are its leases. */
static void forget(serve_set *set)
{
    serve_set_delist_id(set);
    if (set->terms.portable)
        serve_set_detach(set);
    else
        serve_set_release(set);
    serve_set_end(set);
    serve_set_free(set);
}

/* The engine's lease is the truth; this only ends what is here. */
void serve_set_on_lost(serve_set *set, dibs_loss why)
{
    if (set->first_op)
        return; /* it will find out, and comes back to serve_set_settle */
    if (why == DIBS_LOSS_RESUMED && !set->used) {
        give_up(set); /* its client asks elsewhere, and waits for this */
    } else if (why == DIBS_LOSS_BROKEN || why == DIBS_LOSS_RESUMED) {
        set_timer(set, set->terms.lease_ms); /* until then its client may release it */
    } else {
        forget(set);
    }
}

void serve_set_settle(serve_set *set)
{
    for (size_t i = 0; set->state == SERVE_HELD && i < set->count; i++)
        if (set->locks[i].lost != DIBS_LOSS_NONE) {
            serve_set_on_lost(set, set->locks[i].lost);
            return;
        }
}

static void on_timer(http_timer *timer)
{
    serve_set *set = set_of_timer(timer);

    if (set->x) {
        answer_queued(set, set->x);
        set_timer(set, SERVE_KEPT_MS);
    } else if (set->first_op) {
        set_timer(set, SERVE_KEPT_MS); /* what comes of it is needed first */
    } else if (set->state == SERVE_HELD && set->delivered) {
        forget(set);
    } else {
        give_up(set);
    }
}

static void on_gone(void *data)
{
    serve_set *set = data;

    set->x = NULL;
    if (set->own_id)
        set_timer(set, SERVE_KEPT_MS);
    else
        give_up(set);
}

/* ---- Granted, or not ------------------------------------------------------------------------- */

static void fail(serve_set *set, const dibs_error *err)
{
    http_exchange *x = set->x;

    set->x = NULL;
    if (x)
        http_reply_error(x, err);
    serve_set_free(set);
}

static void on_collected(serve_set *set, const dibs_error *err)
{
    if (err->status != DIBS_OK) {
        fail(set, err);
        return;
    }
    if (!serve_set_make_id(set) || !serve_set_enlist_id(set)) {
        serve_set_release(set);
        fail(set, &(dibs_error){.status = DIBS_LOST, .next = DIBS_NEXT_RESTART});
        return;
    }
    if (set->x)
        answer_granted(set, set->x);
    else
        set_timer(set, SERVE_KEPT_MS);
}

/* ---- Shutting down --------------------------------------------------------------------------- */

static void shut_down(serve_set *set)
{
    http_exchange *x = set->x;

    if (set->state != SERVE_COLLECTING)
        return;
    set->x = NULL;
    if (x)
        http_reply_problem(x, 503, DIBS_UNAVAILABLE,
                           "this server is shutting down: send the same request to another one");
    give_up(set);
}

/* ---- The request ----------------------------------------------------------------------------- */

static void attach(serve_set *set, http_exchange *x, int64_t wait_ms)
{
    if (set->x)
        http_reply_problem(set->x, 409, DIBS_CANCELLED,
                           "the same request has come again, and is answered there");
    set->x = x;
    http_on_gone(x, on_gone, set);
    set_timer(set, wait_ms > set->s->slice_ms ? set->s->slice_ms : wait_ms > 0 ? wait_ms : 0);
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
                       "the grant of this request has ended: choose a new id for a new request");
}

/* What ends no later by itself is waited for, also if it does not wait: its first answer may be on the way. */
static int64_t wait_of(const serve_set *set, const serve_set *asked)
{
    return asked->deadline_ms >= set->deadline_ms ? set->s->slice_ms
                                                  : asked->deadline_ms - http_now_ms();
}

/* The request came before, to this server: its client knows the id, also one that was made here. */
static void come_again(serve_set *set, const serve_set *asked, http_exchange *x)
{
    if (strcmp(set->digest, asked->digest) != 0) {
        refuse_digest(x);
        return;
    }
    set->own_id = true;
    if (set->state == SERVE_COLLECTING)
        attach(set, x, wait_of(set, asked));
    else if (serve_set_is_held(set))
        answer_granted(set, x);
    else
        refuse_ended(x);
}

/* True: it was answered, because it has ended. */
static bool has_ended(const serve_set *asked, http_exchange *x)
{
    const serve_ended *ended =
        serve_past_of_key(asked->s->past, serve_past_hash(asked->key), http_now_ms());

    if (ended && ended->digest != serve_past_hash(asked->digest))
        refuse_digest(x);
    else if (ended)
        refuse_ended(x);
    return ended != NULL;
}

static void begin(serve_set *set, http_exchange *x)
{
    if (!serve_set_enlist_key(set)) {
        http_reply_error(x, &(dibs_error){.status = DIBS_NO_MEMORY});
        serve_set_free(set);
        return;
    }
    set->collected = on_collected;
    set->lost = serve_set_on_lost;
    set->shutdown = shut_down;
    attach(set, x, set->s->slice_ms); /* the library ends a shorter wait */
    serve_set_collect(set);
}

static void acquire(http_exchange *x)
{
    serve *s = http_context(x);
    serve_set *asked, *set;

    if (http_server_draining(s->http)) {
        http_reply_problem(x, 503, DIBS_UNAVAILABLE,
                           "this server is shutting down: ask another one");
        return;
    }
    asked = serve_set_read(x, false);
    if (!asked)
        return;
    set = serve_set_of_key(s, asked->key);
    if (set) {
        come_again(set, asked, x);
    } else if (!asked->own_id || !has_ended(asked, x)) {
        begin(asked, x);
        return;
    }
    serve_set_free(asked);
}

static const http_answer answers[] = {{200, "Grant"},
                                      {201, "Grant"},
                                      {202, "Queued"},
                                      {409, "Problem"},
                                      {410, "Problem"},
                                      {422, "Problem"},
                                      {0}};

const http_route serve_acquire_routes[] = {
    {.method = "POST",
     .path = "/v1/acquire",
     .verb = HTTP_LOCK,
     .summary = "Acquire one lock, or several: all or none",
     .body = serve_acquire_fields,
     .answers = answers,
     .handle = acquire},
    {0},
};
