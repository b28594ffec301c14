/* What the files of the HTTP server share. */
#ifndef DIBS_HTTP_INNER_H
#define DIBS_HTTP_INNER_H

#include "http/connection.h"
#include "http/socket.h"
#include "http/tls.h"

#include <netinet/in.h>

enum {
    HTTP_LISTENS = 8,
    HTTP_WATCHES = 8,
    HTTP_BODY = 64 * 1024,     /* of a route that does not say otherwise */
    HTTP_UNSENT = 1024 * 1024, /* of a stream whose client does not read */
    HTTP_FAILURES = 10,        /* of an address in a minute, before it is told to wait */
};

typedef struct http__timers {
    http_timer **heap; /* from 1 on */
    size_t count, room;
} http__timers;

int64_t http__now_us(void);
http__timers *http__timers_of(http_server *s);
int64_t http__timers_run(http_server *s); /* ms until the next one; -1: there is none */

/* ---- Who asks -------------------------------------------------------------------------------- */

typedef struct http__client {
    char name[65];
    unsigned verbs;
    const char *const *prefixes; /* ended by NULL; NULL: all names */
} http__client;

typedef struct http__tokens http__tokens;
dibs_status http__tokens_read(const char *path, http__tokens **out, dibs_error *err);
http__tokens *http__tokens_share(http__tokens *t); /* each share is freed */
void http__tokens_free(http__tokens *t);
/* Takes the same time for every token of the file. NULL: none of them. */
const http__client *http__tokens_find(const http__tokens *t, const char *secret);
const http__client *http__tokens_named(const http__tokens *t, const char *name);
/* Does `t` have the same line as the tokens that `c` is of? */
bool http__tokens_keep(const http__tokens *t, const http__client *c);

typedef struct http__failures http__failures;
http__failures *http__failures_new(void);
void http__failures_count(http__failures *f, const struct sockaddr *from);
int http__failures_wait(const http__failures *f,
                        const struct sockaddr *from); /* seconds; 0: none */

/* ---- Connections and exchanges --------------------------------------------------------------- */

typedef struct http__client_connection {
    http_connection c;
    const http_listener *listener;
    http_exchange *exchange; /* NULL: between requests */
} http__client_connection;

typedef struct http__header {
    struct http__header *next;
    char *value;
    char name[];
} http__header;

/* A parameter that was checked: one that the route names, so there are few. */
typedef struct http__given {
    char name[32];
    json_t *value;
} http__given;

typedef struct http__stream http__stream;

struct http_exchange {
    http_server *server;
    http__client_connection *connection;
    const http_route *route;
    const char *method;    /* one of our own strings, or "" */
    const wire_head *head; /* until the handler has returned */
    wire_head *own_head;   /* the same if the body is not here yet */
    char *query;           /* in the head; "" */
    http__header *headers; /* of the answer, beside those that every answer has */
    http__given *given;    /* parameters, until the handler has returned */
    size_t given_count, given_room;
    wire_text body;   /* until the handler has returned: in the connection's buffer, or in `kept` */
    http_buffer kept; /* a body that comes in pieces */
    http__stream *stream; /* NULL: none */
    void (*gone)(void *data);
    void *gone_data;
    const http__client *client; /* in `tokens`, or the next one */
    http__tokens *tokens;       /* as they were when it began */
    http__client *own_client;   /* of a certificate */
    int64_t began_us;
    int status, minor;
    bool close;    /* the connection ends with it */
    bool answered; /* its answer, or the head of it, is in the connection's buffer */
    bool dead;     /* it has no client any more, or no memory for an answer */
};

struct http_server {
    http_options o;
    http_loop loop;
    http_listener listeners[HTTP_LISTENS];
    size_t listen_count;
    http__timers timers;
    http__tokens *tokens;
    http_tls *tls;
    http__failures *failures;
    char *openapi; /* made when it is asked for */
    int signals, log;
    struct {
        int fd;
        void (*ready)(void *data);
        void *data;
    } watches[HTTP_WATCHES];
    size_t watch_count;
    int64_t now_ms; /* of this turn of the loop: limits need no more */
    size_t connections, exchanges;
    http_connection *all; /* of clients that ask for routes */
    http_buffer spare_in, spare_out;
    bool draining, stopping, stopped;
    http_timer end;
};

/* A listener's: a client of the routes. */
void http__accept(http_listener *l, int fd, const struct sockaddr *from, socklen_t size);

/* Finds the route, or answers. */
bool http__route_find(http_exchange *x, const char *path);
/* Its parameters, when it is known who asks. False: it was answered. */
bool http__route_give(http_exchange *x, const char *path);
/* Checks headers, the client, path and query. False: it was answered. */
bool http__request_check(http_exchange *x, const char *path);
bool http__request_body(http_exchange *x);
size_t http__body_max(const http_exchange *x);
bool http__client_check(http_exchange *x);
/* One segment or value, decoded in place: false: no valid escapes, a NUL, or no UTF-8. */
bool http__decode(char *text);
bool http__is_utf8(const char *text, size_t size);
json_t *http__given_value(const http_exchange *x, const char *name); /* NULL: absent */
/* Puts a checked value; false: it was answered. */
bool http__give(http_exchange *x, const http_field *f, json_t *value);
bool http__give_text(http_exchange *x, const http_field *f, const char *text);

/* Writes the answer. `type`: of the body, a constant; NULL: there is none. */
void http__reply(http_exchange *x, int status, const char *type, const void *data, size_t size);
void http__give_up(http_exchange *x); /* there is no memory for an answer */
/* Moves what a stream has to send to the connection. True: it has ended, and all of it was moved. */
bool http__stream_pump(http_exchange *x);
void http__stream_free(http__stream *t);
void http__log(const http_exchange *x, int64_t us);

#endif
