/* An HTTP server for programs that answer from an event loop: one thread, which never blocks.
 *
 * A program gives a table of routes. The table checks what comes in (paths, query, JSON bodies), says who may
 * ask, and is what the OpenAPI document is made from, so there is one description of the interface. A route's
 * handler answers at once, or keeps the exchange and answers later from the same thread; the connection is
 * suspended meanwhile and costs no thread. A client that goes away while its answer is out is reported
 * (http_on_gone). Everything here is called from the loop's thread. */
#ifndef DIBS_HTTP_HTTP_H
#define DIBS_HTTP_HTTP_H

#include "dibs.h"

#include <jansson.h>

/* ---- Routes ---------------------------------------------------------------------------------- */

/* What a client has to be allowed to do. HTTP_OPEN: no token is needed. */
typedef enum http_verb {
    HTTP_OPEN = 0,
    HTTP_READ = 1,
    HTTP_LOCK = 2,
    HTTP_BREAK = 4,
    HTTP_ADMIN = 8,
} http_verb;

typedef enum http_kind {
    HTTP_TEXT = 1, /* low, high: its length in bytes */
    HTTP_NAME,     /* the same; must be within the client's name prefixes */
    HTTP_PREFIX,   /* of names: the same; absent means "" */
    HTTP_NAMES,    /* an array of HTTP_NAME; low, high: how many */
    HTTP_INTEGER,  /* low, high: its range */
    HTTP_BOOLEAN,
} http_kind;

/* A member of the body or a parameter of the query. A table of them ends with a NULL name. */
typedef struct http_field {
    const char *name;
    http_kind kind;
    int64_t low, high;
    const char *about; /* a sentence of the OpenAPI document */
    bool required;
} http_field;

/* An answer that a route may give; a table of them ends with status 0. Problems that any route may give
 * (400, 401, 403, ...) need not be named. */
typedef struct http_answer {
    int status;
    const char
        *schema; /* in the schemas of the OpenAPI document; NULL: no body; "*": other than JSON */
} http_answer;

/* What answers contain, for the OpenAPI document. `type` is string, integer or boolean, or the name of another
 * schema; behind it [] (an array of them) and ? (or null). A table ends with a NULL name. */
typedef struct http_member {
    const char *name, *type, *about;
    bool optional;
} http_member;

typedef struct http_schema {
    const char *name;
    const http_member *members;
} http_schema;

typedef struct http_exchange http_exchange;
typedef struct http_server http_server;

typedef struct http_route {
    const char *method;
    const char
        *path; /* "/v1/locks/{name}": {name} is one segment, percent-decoded; HTTP_NAME if called
                         name or key */
    http_verb verb;
    const char *summary;
    const http_field *query, *body; /* NULL: none is accepted */
    const http_answer *answers;
    void (*handle)(http_exchange *x);
    size_t body_max; /* default 64 KiB */
    bool raw;        /* the body is bytes: see http_bytes */
    bool stream;     /* answers with events; the request must accept text/event-stream */
} http_route;

/* ---- An exchange: one request and its answer ------------------------------------------------- */

/* Parameters of the path, the query and the body, which are checked. They, the headers and the body are
 * there until the handler returns. Absent: NULL, `absent`, false. */
const char *http_text(const http_exchange *x, const char *name);
int64_t http_integer(const http_exchange *x, const char *name, int64_t absent);
bool http_flag(const http_exchange *x, const char *name);
const json_t *http_list(const http_exchange *x, const char *name);
bool http_given(const http_exchange *x, const char *name);
const char *http_header(const http_exchange *x, const char *name);
const void *http_bytes(const http_exchange *x, size_t *size);

const http_route *http_route_of(const http_exchange *x);
const char *http_client(const http_exchange *x); /* the name of its token or certificate, or "" */
bool http_may(const http_exchange *x, http_verb verb);        /* may the client do that? */
bool http_may_name(const http_exchange *x, const char *name); /* is it within its prefixes? */
/* Do both come from one client, with the same rights? The rights of a name may have changed in between. */
bool http_same_client(const http_exchange *a, const http_exchange *b);
/* False: the tokens were read again since, and the client's line is gone, or another one. */
bool http_is_welcome(const http_exchange *x);
void *http_context(const http_exchange *x); /* of the server's options */
http_server *http_server_of(const http_exchange *x);
bool http_is_utf8(const char *text);

/* Called once if the client goes away before the exchange was answered, or at any time during a stream. The
 * exchange must not be used any more. NULL: none. */
void http_on_gone(http_exchange *x, void (*gone)(void *data), void *data);

/* ---- Answers. Each ends the exchange, which must not be used afterwards ----------------------- */

void http_set_header(http_exchange *x, const char *name, const char *value); /* before the answer */
void http_reply_json(http_exchange *x, int status, json_t *body);            /* takes the body */
void http_reply_bytes(http_exchange *x, int status, const char *type, const void *data,
                      size_t size); /* copied */
void http_reply_static(http_exchange *x, int status, const char *type, const void *data,
                       size_t size); /* borrowed for ever */
void http_reply_empty(http_exchange *x, int status);
/* problem+json, with the HTTP status that DIBS_STATUSES gives. */
void http_reply_error(http_exchange *x, const dibs_error *err);
void http_reply_problem(http_exchange *x, int http, dibs_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
json_t *http_problem(const dibs_error *err); /* the same as data */
/* The same with members of the caller's (taken; may be NULL). */
void http_reply_error_with(http_exchange *x, int http, const dibs_error *err, json_t *more);

/* ---- A stream of events ---------------------------------------------------------------------- */

/* Answers 200 with text/event-stream. The exchange lives until http_stream_end or until the client is gone
 * (http_on_gone). */
void http_stream_open(http_exchange *x);
/* `data` is taken. False: the client reads too slowly (1 MiB is waiting for it): end the stream. */
bool http_stream_send(http_exchange *x, const char *event, json_t *data);
/* Text that many streams send. It is copied once; each stream that is sending it has a share in it. */
typedef struct http_shared http_shared;
http_shared *http_shared_new(const char *text, size_t size); /* whole events; NULL: out of memory */
void http_shared_drop(http_shared *text);                    /* NULL is allowed */
/* False: the client reads too slowly (four such texts wait for it already); it has missed this one. */
bool http_stream_share(http_exchange *x, http_shared *text);
bool http_stream_has_room(const http_exchange *x); /* for one more */
void http_stream_beat(http_exchange *x); /* a comment, so that proxies keep the connection open */
void http_stream_end(http_exchange *x);
/* The connection ends if sent bytes are not acknowledged for so long. */
void http_stream_patience(http_exchange *x, int64_t ms);

/* ---- Timers ---------------------------------------------------------------------------------- */

/* Zero it first. It belongs to the caller, who stops it before freeing it. */
typedef struct http_timer {
    int64_t at_ms;
    size_t place; /* 0: not set */
    void (*fire)(struct http_timer *timer);
} http_timer;

int64_t http_now_ms(void); /* CLOCK_BOOTTIME */
void http_timer_set(http_server *s, http_timer *timer, int64_t in_ms,
                    void (*fire)(http_timer *timer));
void http_timer_stop(http_server *s, http_timer *timer);

/* ---- The server ------------------------------------------------------------------------------ */

/* Told of every exchange that has ended. `status` 0: the client went away first. */
typedef void (*http_ended_fn)(void *context, const http_route *route, const char *method,
                              int status, int64_t us);

/* Zero means default. Strings are borrowed for as long as the server lives. */
typedef struct http_options {
    const http_route *const *routes; /* tables, each ended by a NULL method; ended by NULL */
    void *context;
    const char *const *listen; /* HOST:PORT, [HOST]:PORT or unix:PATH; ended by NULL */
    const char *tokens;        /* file; NULL: none */
    const char *cert, *key;    /* PEM files; NULL: no TLS */
    const char *client_ca;     /* PEM file: clients need a certificate of it */
    const char *cors;          /* origin that browsers may ask from; "*": any */
    const char *access_log;    /* file; "-": standard output */
    const char *api_title;
    const http_schema *schemas; /* ended by a NULL name */
    size_t connections;         /* limit (default 20,000) */
    size_t header_max;          /* bytes of a request's head (default 8 KiB) */
    int64_t
        patience_ms; /* for a whole request to arrive, and for idle connections (default 30,000) */
    http_ended_fn on_ended;
    /* A handler has returned without an answer. One that is there by now is sent without waiting for the loop. */
    void (*on_handled)(void *context);
    void (*on_drain)(void *context); /* SIGTERM or SIGINT came: see http_server_stop */
    /* SIGHUP came, and tokens, certificates and the log were opened anew; `err` says what could not be. */
    void (*on_reload)(void *context, const dibs_error *err);
} http_options;

/* Binds and listens. On failure a message is in err. */
dibs_status http_server_open(const http_options *options, http_server **out, dibs_error *err);
/* Calls `ready` in the loop whenever `fd` is readable. */
bool http_server_watch(http_server *s, int fd, void (*ready)(void *data), void *data);
/* Serves until http_server_stop. */
void http_server_run(http_server *s);
/* Accepts no new connections; new requests on open ones get 503. */
void http_server_drain(http_server *s);
bool http_server_draining(const http_server *s);
/* Ends http_server_run when answers have been sent, or after `within_ms`. */
void http_server_stop(http_server *s, int64_t within_ms);
void http_server_close(http_server *s);
/* The i-th address that it listens at, as a URL; NULL after the last one. */
const char *http_server_address(const http_server *s, size_t i);
/* The same, as other machines reach it: the machine's name for 0.0.0.0 and [::]. */
const char *http_server_reach(const http_server *s, size_t i);
/* A handler: the OpenAPI document, made from the routes and the schemas. */
void http_reply_openapi(http_exchange *x);
size_t http_server_connections(const http_server *s);

#endif
