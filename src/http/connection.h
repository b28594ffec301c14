/* A client's connection: requests come in, answers go out. What a request means is its speaker's business (exchange.c for
 * routes, the gateway's client.c for what is passed on).
 *
 * One request is answered at a time; what comes behind it waits in the buffer, and then in the kernel's. Whoever is
 * slow (with a head, a body, or reading an answer) is cut off. A connection that waits has no buffers. */
#ifndef DIBS_HTTP_CONNECTION_H
#define DIBS_HTTP_CONNECTION_H

#include "http/http.h"
#include "http/link.h"
#include "http/wire.h"

enum { HTTP_WINDOW = 64 * 1024, HTTP_PIECE = 16 * 1024, HTTP_ROUNDS = 32 };

typedef struct http_connection http_connection;

typedef struct http_speaker {
    size_t (*head_max)(const http_connection *c);
    /* How long what it waits for now may take: a head, more of a body, the client's reading. */
    int64_t (*patience)(const http_connection *c);
    /* A request begins. `h` and its texts, which may be changed, stay as long as nothing more is read: until `whole`, if
     * the whole body is here already. */
    void (*head)(http_connection *c, wire_head *h);
    bool (*wants)(const http_connection *c); /* more of the body? */
    void (*part)(http_connection *c, wire_text part);
    void (*whole)(http_connection *c);
    /* What came is no request, or its body is none: answer `status` and let the connection end. */
    void (*refuse)(http_connection *c, int status, const char *why);
    bool (*late)(
        http_connection *c); /* the body did not come in time. False: close the connection */
    void (*room)(http_connection *c); /* `out` has room for more */
    void (*gone)(http_connection *c); /* it is closed; a request may be in progress */
    void (*freed)(http_connection *c);
    bool (*draining)(const http_connection *c); /* idle ones end */
    /* Is its client expected to stay? One that shuts down its side then has gone. NULL: never. */
    bool (*must_stay)(const http_connection *c);
} http_speaker;

typedef enum http_stage {
    HTTP_IN_HEAD,
    HTTP_IN_BODY,
    HTTP_IN_ANSWER, /* the request is whole */
    HTTP_LINGERS,   /* after the last answer */
} http_stage;

struct http_connection {
    http_link link;
    http_server *server;
    const http_speaker *speaker;
    http_connection **all, *next, *previous;
    http_buffer in, out;
    wire_body body; /* of the request */
    size_t seen;
    http_timer timer;
    int64_t until_ms; /* of what is waited for; 0: of nothing */
    int64_t began_ms; /* when the first bytes of the request came, or it was waited for */
    http_stage stage;
    bool closing; /* after what is in `out` */
    bool busy;    /* http_connection_go is running */
};

/* Takes descriptor and session, also if it fails. `c` is zero; it is put in the list `all`. */
void http_connection_open(http_connection *c, http_server *s, const http_speaker *speaker,
                          http_connection **all, int fd, struct ssl_st *tls);
/* Goes on after something has changed: reads, begins requests, sends. */
void http_connection_go(http_connection *c);
/* The same, soon: what calls is in another connection's request, which ends first. */
void http_connection_wake(http_connection *c);
/* The answer is in c->out. The connection waits for the next request, or ends. */
void http_connection_answered(http_connection *c, bool close);
void http_connection_close(http_connection *c, bool abort);

static inline bool http_connection_has_request(const http_connection *c)
{
    return c->stage == HTTP_IN_BODY || c->stage == HTTP_IN_ANSWER;
}

static inline bool http_connection_has_room(const http_connection *c)
{
    return http_buffer_size(&c->out) < HTTP_WINDOW;
}

#endif
