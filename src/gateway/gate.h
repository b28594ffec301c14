/* `dibs gateway`: a reverse proxy that makes requests idempotent.
 *
 * One thread, one loop: dibs serve's (http/http.h), which has the timers, the signals, the admin address, and the connections
 * of clients (http/connection.h) and to the application (http/link.h).
 *
 *     client.c     what a client's connection calls
 *     exchange.c   a request that is passed through, and what every request needs
 *     guard.c      a request with a key, a token or a fence: claim, forward, collect, finish, replay
 *     upstream.c   the connections to the application
 */
#ifndef DIBS_GATEWAY_GATE_H
#define DIBS_GATEWAY_GATE_H

#include "gateway/config.h"

#include "http/connection.h"
#include "http/http.h"
#include "http/socket.h"
#include "http/tls.h"

#include <netdb.h>

enum { GATE_LISTENS = 8 };

typedef struct gate gate;
typedef struct gate_client gate_client;
typedef struct gate_exchange gate_exchange;
typedef struct gate_upstream gate_upstream;
typedef struct gate_guard gate_guard;
typedef struct gate_metrics gate_metrics;

/* ---- The application ------------------------------------------------------------------------- */

/* What a name resolved to. A connection that is being made keeps it: it may be resolved again meanwhile. */
typedef struct gate_addresses {
    size_t users;
    struct addrinfo *list;
} gate_addresses;

typedef struct gate_target {
    const char *url;
    char host[256], port[8];
    bool tls;
    const char *ca; /* PEM file (default: the system's) */
    http_tls *trust;
    gate_addresses *addresses;
} gate_target;

/* Why there is no answer, or no more of it. */
typedef enum gate_failure {
    GATE_UNREACHED, /* no byte was sent */
    GATE_CLOSED,
    GATE_SILENT,
    GATE_GARBLED,
    GATE_CROWDED, /* too many wait for a connection; no byte was sent */
} gate_failure;

struct gate_upstream {
    http_link link;
    gate *g;
    gate_exchange *x; /* NULL: idle */
    gate_addresses *addresses;
    const struct addrinfo *address; /* of these: the one that is tried, or connected */
    http_buffer in, out;
    size_t seen;
    wire_body body;
    http_timer timer;
    int64_t at_ms; /* something happened last; idle since */
    bool connected, reused, sent, answering, closing;
    bool held;                      /* its client has to take something first */
    bool busy;                      /* gate_upstream_go is running */
    gate_upstream *next, *previous; /* idle, the latest first */
};

bool gate_target_read(gate_target *t, dibs_error *err);
bool gate_target_resolve(gate_target *t, dibs_error *err);
void gate_target_close(gate_target *t);

/* Sends x->request over a connection, at once or when there is one. */
void gate_upstream_ask(gate_exchange *x);
/* The exchange does not want its answer any more. */
void gate_upstream_cancel(gate_exchange *x);
/* Sends what was added, and reads what has come if it was held up. */
void gate_upstream_go(gate_upstream *u);
void gate_upstream_close_idle(gate *g);

/* ---- A client -------------------------------------------------------------------------------- */

struct gate_client {
    http_connection c;
    gate *g;
    gate_exchange *x; /* NULL: between requests */
    int64_t whole_ms; /* when the whole body has to be there, if it is kept in memory */
    struct in6_addr address;
    char address_text[64];
    char certificate[65]; /* the name in it; "": none */
};

void gate_client_accept(http_listener *l, int fd, const struct sockaddr *from, socklen_t size);
/* Of its exchange: the answer is in the connection's buffer. */
void gate_client_answered(gate_client *k);
void gate_client_starved(http_listener *l, const char *what);

/* ---- A request ------------------------------------------------------------------------------- */

struct gate_exchange {
    gate *g;
    gate_client *client; /* NULL: it has gone */
    gate_upstream *up;
    gate_config *config;
    const gate_route *route; /* NULL: passed through */
    gate_guard *guard;       /* NULL: the same */
    char method[16];
    bool head, repeatable; /* HEAD; safe to send twice */
    int minor;
    bool close;                  /* the client's connection ends with it */
    http_buffer request;         /* its head as it is sent on; behind it the body if that is here */
    wire_framing framing;        /* of the request as it is sent on */
    bool complete;               /* the whole request is in the connection's buffer, or sent */
    wire_framing answer_framing; /* as the client gets it */
    bool answered;               /* the head of an answer was given to the client */
    int status;
    gate_result result;
    int64_t began_us, asked_us, upstream_us;
    gate_exchange *next; /* in the queue for a connection */
    bool waiting;
};

/* Takes a request whose head is there. What is refused is answered. */
void gate_exchange_begin(gate_client *c, wire_head *h);
/* A piece of the request's body; the end of it. */
void gate_exchange_body(gate_exchange *x, wire_text part);
void gate_exchange_complete(gate_exchange *x);
bool gate_exchange_wants_body(const gate_exchange *x);
void gate_exchange_gone(gate_exchange *x); /* the client has gone */

/* From the application. */
void gate_exchange_head(gate_exchange *x, const wire_head *h);
void gate_exchange_part(gate_exchange *x, wire_text part);
void gate_exchange_end(gate_exchange *x, const wire_body *body);
void gate_exchange_failed(gate_exchange *x, gate_failure why);
bool gate_exchange_has_room(const gate_exchange *x);

/* Sends it to the application: head, framing, and what of the body is there. */
void gate_exchange_forward(gate_exchange *x);
/* It has been answered, or cannot be: frees it. `broken`: the client must not take its answer for whole. */
void gate_exchange_finish(gate_exchange *x, bool broken);

/* An answer of the gateway's own, in `out`. The exchange goes on until it is finished. */
void gate_problem(gate_exchange *x, http_buffer *out, int http, dibs_status status, int retry_s,
                  const char *headers, const char *format, ...)
    __attribute__((format(printf, 7, 8)));
/* Sends it, and finishes the exchange. */
void gate_refuse(gate_exchange *x, int http, dibs_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void gate_write_fields(http_buffer *out, const wire_head *h);
void gate_write_chunk(http_buffer *out, wire_text part);
void gate_write_trailers(http_buffer *out, const wire_body *body);
/* The head of an answer for this client: its framing may differ from the application's. */
void gate_write_head(gate_exchange *x, http_buffer *out, const wire_head *h);
void gate_write_part(gate_exchange *x, http_buffer *out, wire_text part);
void gate_write_end(gate_exchange *x, http_buffer *out, const wire_body *body);
int gate_failure_status(gate_failure why);
const char *gate_failure_text(gate_failure why);

/* ---- Guarded requests ------------------------------------------------------------------------ */

/* False: it was refused. Sets x->guard if there is something to guard. `plain`: what the route was found by. */
bool gate_guard_begin(gate_exchange *x, const wire_head *h, const char *path, const char *plain,
                      wire_text query);
void gate_guard_body(gate_exchange *x, wire_text part);
void gate_guard_complete(gate_exchange *x);
void gate_guard_head(gate_exchange *x, const wire_head *h);
void gate_guard_part(gate_exchange *x, wire_text part);
void gate_guard_end(gate_exchange *x, const wire_body *body);
void gate_guard_failed(gate_exchange *x, gate_failure why);
void gate_guard_gone(gate_exchange *x);
void gate_guard_free(gate_exchange *x);
void gate_guard_lost(void *guard);
const char *gate_guard_key_hash(const gate_exchange *x); /* "" */
/* POST /.dibs/token?route=PATTERN */
void gate_token_issue(gate_exchange *x, const wire_head *h, wire_text query);

/* ---- The engine ------------------------------------------------------------------------------ */

typedef void (*gate_outcome_fn)(void *data, dibs_outcome *o);
dibs_status gate_ask(gate *g, dibs_request *r, gate_outcome_fn done, void *data, uint64_t *id,
                     dibs_error *err);
void gate_take(void *gate);

int64_t gate_now_us(void);

/* ---- Watching it ----------------------------------------------------------------------------- */

gate_metrics *gate_metrics_new(void);
void gate_metrics_free(gate_metrics *m);
void gate_metrics_outcome(gate_metrics *m, const dibs_outcome *o);
void gate_watch_end(
    const gate_exchange *x); /* of a request: counts it, and writes the access log */
void gate_say(gate *g, const char *format, ...) __attribute__((format(printf, 2, 3)));
extern const http_route gate_admin_routes[];

struct gate {
    dibs *d;
    http_server *http;
    gate_config *config;
    const char *config_path;
    gate_target target;
    http_listener listeners[GATE_LISTENS];
    size_t listens;
    http_tls *tls;
    bool by_certificate; /* clients need one */
    http_connection *clients;
    size_t client_count, exchanges, claims, waits, calls;
    gate_upstream *idle;
    size_t upstreams, idle_count;
    gate_exchange *first_waiting, *last_waiting;
    size_t waiting;
    gate_metrics *metrics;
    const char *log_path;
    int log;
    size_t answer_max;
    bool draining;
};

#endif
