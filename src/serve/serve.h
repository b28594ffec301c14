/* `dibs serve`: locks and idempotency over HTTP.
 *
 * The HTTP server (http/http.h) and the library's requests and outcomes meet in one loop, in one thread: a
 * handler starts a request on the handle (serve_ask) and returns; its outcome is taken when dibs_fd is
 * readable, and the exchange is answered. */
#ifndef DIBS_SERVE_SERVE_H
#define DIBS_SERVE_SERVE_H

#include "dibs.h"
#include "http/http.h"

typedef struct serve_metrics serve_metrics;
typedef struct serve_dashboard serve_dashboard;
typedef struct serve_past serve_past;
typedef struct serve_ready serve_ready;

typedef struct serve {
    dibs *d;
    http_server *http;
    const dibs_engine_info *engine;
    serve_metrics *metrics;
    serve_dashboard *dashboard;
    const char *advertise;    /* the address at which clients reach this very server */
    char instance[33];        /* of this process: part of what is bound to it */
    void *by_key, *by_id;     /* sets: see sets.h */
    serve_past *past;         /* those that have ended; NULL: none is remembered */
    size_t calls;             /* requests whose outcome is not here yet */
    size_t streams;           /* hold streams that are open */
    int64_t slice_ms;         /* a wait is answered after this */
    int64_t lease_ms;         /* of locks that say nothing else; the handle's */
    size_t left_behind;       /* grants that must outlive the handle */
    void *runs, *runs_by_key; /* runs.c */
    serve_past *past_runs;
    serve_ready *ready; /* status.c */
} serve;

/* Is given the outcome, whose parts it frees or keeps. */
typedef void (*serve_outcome_fn)(void *data, dibs_outcome *o);

/* Starts the request; `done` is called once, later, if it returns DIBS_OK. r->user is overwritten. `id`, for
 * dibs_stop, may be NULL. */
dibs_status serve_ask(serve *s, dibs_request *r, serve_outcome_fn done, void *data, uint64_t *id,
                      dibs_error *err);

/* Frees what an outcome brought and nobody keeps: locks are released, runs undone. */
void serve_drop(serve *s, dibs_outcome *o);

/* The usual handler: starts the request and answers with what `write` makes of a good outcome (a JSON body
 * with this status), or with the problem. An answer that comes after the client has gone is dropped. */
typedef json_t *(*serve_write_fn)(const dibs_outcome *o);
void serve_answer(http_exchange *x, dibs_request *r, int status, serve_write_fn write);

/* Bytes that are given as text or in hexadecimal, allocated; NULL and true: neither is given. False: it was
 * answered. */
bool serve_bytes(http_exchange *x, const char *text, const char *hex, void **out, size_t *size);

/* For the loop: takes the outcomes that are there. */
void serve_take(void *serve);
/* The same after a handler, until every request has its outcome. */
void serve_take_answers(void *serve);

serve_ready *serve_ready_new(void); /* NULL: out of memory */
void serve_ready_free(serve_ready *r);

extern const http_route serve_inspect_routes[], serve_run_routes[], serve_key_routes[],
    serve_token_routes[], serve_counter_routes[], serve_cell_routes[], serve_status_routes[];
extern const http_schema serve_schemas[];

#endif
