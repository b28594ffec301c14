/* GET /v1/locks/{name}/hold: the open connection is the lock. The keeper renews it; closing the connection, in
 * the queue or later, gives it up at once. */
#include "serve/sets.h"

#include <stdlib.h>
#include <string.h>

enum { QUEUED_AFTER_MS = 30, BEAT_MS = 15000, LOOKS = 12 /* in a lease */ };

static serve_set *set_of_timer(http_timer *timer)
{
    return (serve_set *)((char *)timer - offsetof(serve_set, timer));
}

/* The connection is closed or closing. */
static void let_go(serve_set *set)
{
    set->x = NULL;
    set->s->streams--;
    if (set->state == SERVE_COLLECTING) {
        serve_set_abandon(set);
        return;
    }
    if (set->state == SERVE_HELD)
        serve_set_release(set);
    serve_set_free(set);
}

static void on_gone(void *data)
{
    let_go(data);
}

/* The last event, and the end. */
static void finish(serve_set *set, const char *why, const dibs_error *err)
{
    json_t *data = json_pack("{s:s}", "why", why);

    if (err)
        json_object_set_new(data, "problem", http_problem(err));
    http_stream_send(set->x, "lost", data);
    http_stream_end(set->x);
    let_go(set);
}

static void send(serve_set *set, const char *event, json_t *data)
{
    if (!http_stream_send(set->x, event, data))
        finish(set, "the client reads too slowly", NULL);
}

/* ---- What happens ---------------------------------------------------------------------------- */

/* Until when the client may work, by what the keeper has reached so far. */
static int64_t promised_ms(const serve_set *set)
{
    return http_now_ms() + dibs_grant_remaining_ms(set->locks[0].g);
}

/* The keeper renews after each third of the lease, and a grant that was waited for at once. Only a promise that
 * has become longer is an event: while the engine does not answer, there is none. */
static void on_look(http_timer *timer)
{
    serve_set *set = set_of_timer(timer);
    int64_t until = promised_ms(set), looks_ms = set->terms.lease_ms / LOOKS + 1;

    http_timer_set(set->s->http, timer, looks_ms, on_look);
    if (until < set->promised_ms + looks_ms)
        return;
    set->promised_ms = until;
    send(set, "renewed", json_pack("{s:I}", "remaining_ms", (json_int_t)(until - http_now_ms())));
}

/* The client may work until its last promise ends, unless it closes before. */
static void on_breaking(http_timer *timer)
{
    serve_set *set = set_of_timer(timer);
    int64_t left = set->promised_ms - http_now_ms();

    if (left <= 0) {
        finish(set, dibs_loss_text(DIBS_LOSS_BROKEN), NULL);
        return;
    }
    http_timer_set(set->s->http, timer, left < BEAT_MS ? left : BEAT_MS, on_breaking);
    http_stream_beat(set->x);
}

static void on_lost(serve_set *set, dibs_loss why)
{
    if (why != DIBS_LOSS_BROKEN) {
        finish(set, dibs_loss_text(why), NULL);
        return;
    }
    http_timer_set(set->s->http, &set->timer, 0, on_breaking);
    send(set, "breaking", json_pack("{s:s}", "why", dibs_loss_text(why)));
}

static void on_collected(serve_set *set, const dibs_error *err)
{
    json_t *grant;

    if (err->status != DIBS_OK) {
        finish(set, dibs_status_text(err->status), err);
        return;
    }
    http_timer_stop(set->s->http,
                    &set->timer); /* it would bound what remains, as that of a client that renews */
    grant = serve_set_json(set);
    set->promised_ms = promised_ms(set);
    http_timer_set(set->s->http, &set->timer, set->terms.lease_ms / LOOKS + 1, on_look);
    send(set, "granted", grant);
}

static void on_beat(http_timer *timer)
{
    serve_set *set = set_of_timer(timer);

    http_timer_set(set->s->http, timer, BEAT_MS, on_beat);
    http_stream_beat(set->x);
}

static void on_queued(http_timer *timer)
{
    serve_set *set = set_of_timer(timer);

    http_timer_set(set->s->http, timer, BEAT_MS, on_beat);
    send(set, "queued", json_pack("{s:s}", "name", set->locks[0].name));
}

static void shut_down(serve_set *set)
{
    if (set->x)
        finish(set, "the server is shutting down", NULL);
}

static void check(serve_set *set)
{
    if (set->shutdown == shut_down && set->x && !http_is_welcome(set->x))
        finish(set, "the token of this client was changed or removed", NULL);
}

void serve_streams_check(serve *s)
{
    serve_sets_each(s->by_key, check);
}

static void hold(http_exchange *x)
{
    serve *s = http_context(x);
    serve_set *set;

    if (http_server_draining(s->http)) {
        http_reply_problem(x, 503, DIBS_UNAVAILABLE,
                           "this server is shutting down: ask another one");
        return;
    }
    set = serve_set_read(x, true);
    if (!set)
        return;
    if (!serve_set_enlist_key(set)) {
        http_reply_error(x, &(dibs_error){.status = DIBS_NO_MEMORY});
        serve_set_free(set);
        return;
    }
    s->streams++;
    set->x = x;
    set->collected = on_collected;
    set->lost = on_lost;
    set->shutdown = shut_down;
    free(set->request);
    set->request = NULL;
    http_on_gone(x, on_gone, set);
    http_stream_open(x);
    http_stream_patience(x, set->terms.lease_ms);
    http_timer_set(s->http, &set->timer, QUEUED_AFTER_MS, on_queued);
    serve_set_collect(set);
}

static const http_answer answers[] = {{200, "*"}, {406, "Problem"}, {0}};

const http_route serve_hold_routes[] = {
    {.method = "GET",
     .path = "/v1/locks/{name}/hold",
     .verb = HTTP_LOCK,
     .summary = "Hold a lock for as long as the connection is open: a stream of events",
     .query = serve_hold_fields,
     .answers = answers,
     .handle = hold,
     .stream = true},
    {0},
};
