/* What the files of the HTTP server share. */
#ifndef DIBS_HTTP_INNER_H
#define DIBS_HTTP_INNER_H

#include "http/buffer.h"
#include "http/http.h"

#include <gnutls/abstract.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <sys/socket.h>

enum {
    HTTP_LISTENS = 8,
    HTTP_WATCHES = 8,
    HTTP_BODY = 64 * 1024,          /* of a route that does not say otherwise */
    HTTP_DISCARD = 4 * 1024 * 1024, /* of a body that is too long: then the connection is cut */
    HTTP_UNSENT = 1024 * 1024,      /* of a stream whose client does not read */
    HTTP_FAILURES = 10,             /* of an address in a minute, before it is told to wait */
};

typedef struct http__timers {
    http_timer **heap; /* from 1 on */
    size_t count, room;
} http__timers;

int64_t http__now_us(void);
http__timers *http__timers_of(http_server *s);
int64_t http__timers_run(http_server *s); /* ms until the next one; -1: there is none */

/* ---- Addresses that the server listens at ---------------------------------------------------- */

typedef struct http__listen {
    http_server *server;
    int fd;
    bool local; /* loopback or a unix socket: nobody but this machine can reach it */
    bool unix_socket;
    char path[108];    /* of a unix socket that was made here, and is removed at the end */
    char address[320]; /* "http://127.0.0.1:8200" */
    char reach[320];   /* the same, but the machine's name where that is every address */
    struct MHD_Daemon *daemon;
    int epoll;
} http__listen;

/* Binds `text`: HOST:PORT, [HOST]:PORT, unix:PATH or fd:N. */
dibs_status http__listen_open(const char *text, bool tls, http__listen *out, dibs_error *err);
void http__listen_close(http__listen *l);

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

/* ---- TLS ------------------------------------------------------------------------------------- */

typedef struct http__tls http__tls;
dibs_status http__tls_read(const http_options *o, http__tls **out, dibs_error *err);
bool http__tls_reload(http__tls *t, dibs_error *err);
void http__tls_free(http__tls *t);
const char *http__tls_ca(const http__tls *t);
/* For MHD_OPTION_HTTPS_CERT_CALLBACK; the files are the ones read last. */
gnutls_certificate_retrieve_function2 *http__tls_callback(void);
/* The common name of the client's certificate if it was signed by the CA; false: there is none. */
bool http__tls_client(struct MHD_Connection *connection, char *name, size_t size);

/* ---- Connections and exchanges --------------------------------------------------------------- */

typedef struct http__connection {
    struct http__connection *next, *previous;
    http_server *server;
    const http__listen *listen;
    struct MHD_Connection *mhd;
    http_exchange *exchange;
    http_timer
        timer; /* the request has to be here by then; or look whether the client is still there */
    int fd;
    bool watched, cut;
} http__connection;

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
    http__connection *connection;
    const http_route *route;
    const char *method; /* one of our own strings, or "" */
    struct MHD_Response *response;
    http__header *headers; /* of the answer, beside those that every answer has */
    const char *type;
    http__given *given; /* parameters, until the handler has returned */
    size_t given_count, given_room;
    http_buffer body;
    size_t received; /* of the body, kept or not */
    char *allow;     /* 405 and OPTIONS */
    http__stream *stream;
    void (*gone)(void *data);
    void *gone_data;
    const http__client *client; /* in `tokens`, or the next one */
    http__tokens *tokens;       /* as they were when it began */
    http__client *own_client;   /* of a certificate */
    int64_t began_us;
    int status;
    bool first_done, too_long, handled, suspended, dead, sent;
};

struct http_server {
    http_options o;
    http__listen listens[HTTP_LISTENS];
    size_t listen_count;
    http__timers timers;
    http__tokens *tokens;
    http__tls *tls;
    http__failures *failures;
    char *openapi; /* made when it is asked for */
    int epoll, signals, log;
    struct {
        int fd;
        void (*ready)(void *data);
        void *data;
    } watches[HTTP_WATCHES];
    size_t watch_count;
    size_t connections, exchanges;
    http__connection *all;
    bool resumed; /* connections: MHD has to run, which its own timeout does not say */
    bool draining, stopping, stopped;
    http_timer end;
};

/* MHD's callbacks. */
enum MHD_Result http__on_request(void *listen, struct MHD_Connection *mhd, const char *url,
                                 const char *method, const char *version, const char *upload,
                                 size_t *upload_size, void **exchange);
void http__on_completed(void *listen, struct MHD_Connection *mhd, void **exchange,
                        enum MHD_RequestTerminationCode why);
void http__on_connection(void *listen, struct MHD_Connection *mhd, void **socket_context,
                         enum MHD_ConnectionNotificationCode code);
/* The connection's descriptor says that the client is gone. */
void http__connection_gone(http__connection *c);
void http__connections_end(http_server *s); /* those that are suspended */

/* Finds the route, or answers. */
bool http__route_find(http_exchange *x, const char *path);
/* Its parameters, when it is known who asks. False: it was answered. */
bool http__route_give(http_exchange *x, const char *path);
/* Checks headers, the client, path and query. False: it was answered. */
bool http__request_check(http_exchange *x, const char *path);
bool http__request_body(http_exchange *x);
bool http__client_check(http_exchange *x);
/* One segment or value, decoded in place: false: no valid escapes, a NUL, or no UTF-8. */
bool http__decode(char *text);
bool http__is_utf8(const char *text, size_t size);
json_t *http__given_value(const http_exchange *x, const char *name); /* NULL: absent */
/* Puts a checked value; false: it was answered. */
bool http__give(http_exchange *x, const http_field *f, json_t *value);
bool http__give_text(http_exchange *x, const http_field *f, const char *text);

/* `type`: of the body, a constant; NULL: there is none. */
void http__reply(http_exchange *x, int status, const char *type, struct MHD_Response *response);
void http__add_headers(http_exchange *x); /* to its answer */
void http__resume(http_exchange *x);
void http__watch_suspended(http_exchange *x); /* notices when its client goes away */
void http__watch_now(http_exchange *x);
void http__stream_free(http__stream *t);
void http__log(const http_exchange *x, int64_t us);

#endif
