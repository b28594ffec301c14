/* What the server says of itself. */
#include "serve/serve.h"

#include <stdlib.h>
#include <string.h>

static void healthz(http_exchange *x)
{
    http_reply_json(x, 200, json_pack("{s:b}", "ok", true));
}

/* ---- Is the engine there? --------------------------------------------------------------------- */

/* Whoever can connect may ask: all who ask within a second get one answer of the engine's, and not its message, which
 * may name hosts. */
enum { READY_MS = 1000 };

typedef struct asked {
    struct asked *next;
    http_exchange *x; /* NULL: the client has gone */
} asked;

struct serve_ready {
    bool out; /* the engine was asked */
    asked *waiting;
    int64_t at_ms; /* of the last answer; 0: there was none */
    dibs_status status;
};

serve_ready *serve_ready_new(void)
{
    return calloc(1, sizeof(serve_ready));
}

void serve_ready_free(serve_ready *r)
{
    free(r);
}

static void on_gone(void *data)
{
    ((asked *)data)->x = NULL;
}

static void answer_ready(http_exchange *x, dibs_status status)
{
    dibs_error err = {.status = status, .next = DIBS_NEXT_LATER};

    if (status == DIBS_OK) {
        http_reply_json(x, 200, json_pack("{s:b}", "ok", true));
        return;
    }
    strcpy(err.message, "the engine does not answer as it should: a request of yours says why");
    http_reply_error_with(x, 503, &err, NULL);
}

/* Any answer of the engine's will do. */
static void on_outcome(void *data, dibs_outcome *o)
{
    serve *s = data;
    serve_ready *r = s->ready;

    r->out = false;
    r->at_ms = http_now_ms();
    r->status = o->err.status == DIBS_NOT_FOUND ? DIBS_OK : o->err.status;
    serve_drop(s, o);
    while (r->waiting) {
        asked *a = r->waiting;

        r->waiting = a->next;
        if (a->x)
            answer_ready(a->x, r->status);
        free(a);
    }
}

static void await(serve *s, http_exchange *x)
{
    dibs_request r = {.op = DIBS_OP_LOCK_INSPECT, .name = "dibs-serve"};
    asked *a = malloc(sizeof *a);
    dibs_error err = {.status = DIBS_NO_MEMORY};

    if (a && !s->ready->out)
        s->ready->out = serve_ask(s, &r, on_outcome, s, NULL, &err) == DIBS_OK;
    if (!a || !s->ready->out) {
        free(a);
        answer_ready(x, err.status);
        return;
    }
    *a = (asked){s->ready->waiting, x};
    s->ready->waiting = a;
    http_on_gone(x, on_gone, a);
}

static void readyz(http_exchange *x)
{
    serve *s = http_context(x);

    if (http_server_draining(s->http))
        http_reply_problem(x, 503, DIBS_UNAVAILABLE, "this server is shutting down");
    else if (s->ready->at_ms && http_now_ms() - s->ready->at_ms < READY_MS)
        answer_ready(x, s->ready->status);
    else
        await(s, x);
}

/* ---- The rest --------------------------------------------------------------------------------- */

static void about(http_exchange *x)
{
    const serve *s = http_context(x);
    json_t *body = json_pack("{s:s, s:s, s:s, s:b}", "version", dibs_version(), "engine",
                             dibs_engine_name(s->d), "address", s->advertise, "portable",
                             !s->engine->lease_of_handle);

    json_object_set_new(body, "shared", json_boolean(s->engine->shared));
    json_object_set_new(body, "slots", json_boolean(s->engine->slots));
    json_object_set_new(body, "value_max", json_integer((json_int_t)s->engine->value_max));
    json_object_set_new(body, "lease_ms", json_integer(s->lease_ms));
    json_object_set_new(body, "connections",
                        json_integer((json_int_t)http_server_connections(s->http)));
    http_reply_json(x, 200, body);
}

static const http_answer healthy[] = {{200, "Health"}, {0}};
static const http_answer ready[] = {{200, "Health"}, {503, "Problem"}, {0}};
static const http_answer about_answers[] = {{200, "About"}, {0}};
static const http_answer document[] = {{200, "*"}, {0}};

const http_route serve_status_routes[] = {
    {.method = "GET",
     .path = "/healthz",
     .summary = "The process serves",
     .answers = healthy,
     .handle = healthz},
    {.method = "GET",
     .path = "/readyz",
     .summary = "The engine answers",
     .answers = ready,
     .handle = readyz},
    {.method = "GET",
     .path = "/v1",
     .verb = HTTP_READ,
     .summary = "The server, its engine and what that supports",
     .answers = about_answers,
     .handle = about},
    {.method = "GET",
     .path = "/openapi.json",
     .summary = "This document",
     .answers = document,
     .handle = http_reply_openapi},
    {0},
};
