/* What the server says of itself. */
#include "serve/serve.h"

#include <stdlib.h>

static void healthz(http_exchange *x)
{
    http_reply_json(x, 200, json_pack("{s:b}", "ok", true));
}

typedef struct asked {
    http_exchange *x;
    serve *s;
} asked;

static void on_gone(void *data)
{
    ((asked *)data)->x = NULL;
}

/* Any answer of the engine's will do. */
static void on_outcome(void *data, dibs_outcome *o)
{
    asked *a = data;

    if (a->x && (o->err.status == DIBS_OK || o->err.status == DIBS_NOT_FOUND))
        http_reply_json(a->x, 200, json_pack("{s:b}", "ok", true));
    else if (a->x)
        http_reply_error_with(a->x, 503, &o->err, NULL);
    serve_drop(a->s, o);
    free(a);
}

static void readyz(http_exchange *x)
{
    asked *a = malloc(sizeof *a);
    dibs_request r = {.op = DIBS_OP_LOCK_INSPECT, .name = "dibs-serve"};
    dibs_error err = {.status = DIBS_NO_MEMORY};

    if (http_server_draining(http_server_of(x))) {
        http_reply_problem(x, 503, DIBS_UNAVAILABLE, "this server is shutting down");
        free(a);
        return;
    }
    if (a) {
        *a = (asked){x, http_context(x)};
        http_on_gone(x, on_gone, a);
        if (serve_ask(a->s, &r, on_outcome, a, NULL, &err) == DIBS_OK)
            return;
    }
    free(a);
    http_reply_error(x, &err);
}

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
static const http_answer told[] = {{200, "About"}, {0}};
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
     .answers = told,
     .handle = about},
    {.method = "GET",
     .path = "/openapi.json",
     .summary = "This document",
     .answers = document,
     .handle = http_reply_openapi},
    {0},
};
