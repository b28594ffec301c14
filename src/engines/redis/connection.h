/* One connection to the server: a socket of our own, TLS if the URL asks for it, and hiredis'
 * reader.
 *
 * Bytes go out through `send` and come in through `receive`, both bounded by an absolute deadline;
 * `next` takes a whole reply out of what came in. One thread may send while another receives. */
#ifndef DIBS_REDIS_CONNECTION_H
#define DIBS_REDIS_CONNECTION_H

#include "core/env.h"
#include "dibs.h"
#include "engines/redis/resp.h"
#include "net/tls.h"

#include <hiredis/hiredis.h>

typedef struct dibs__sentinels dibs__sentinels; /* sentinel.h */
typedef struct dibs__cluster dibs__cluster;     /* cluster.h */

/* Where the server is and as whom to come: what the URL said. */
typedef struct dibs__redis_address {
    const dibs__env *env;
    dibs__sentinels *sentinels; /* NULL: it is at one address. Else they say at which */
    dibs__cluster *cluster;     /* NULL: it is one server. Else they share the keys */
    char *host;                 /* NULL: a unix socket */
    int port;
    char *socket;
    char *user;     /* NULL: the default user */
    char *password; /* NULL: none */
    int64_t db;
    dibs__tls_context *tls; /* NULL: plain */
    char text[300];         /* for messages: "redis at host:port" */
} dibs__redis_address;

#define DIBS__RUN_ID_SIZE 48

typedef struct dibs__conn {
    const dibs__env *env;
    int fd;
    dibs__tls *tls;
    redisReader *reader;
    size_t largest; /* what its buffer has had at once */
    /* What the server calls it, and which run of the server that was: see handshake.c. */
    int64_t id;                     /* 0: we may not know */
    char run_id[DIBS__RUN_ID_SIZE]; /* "": the same */
    uint64_t ended; /* see abandoned.h: up to this one it has ended those given up */
} dibs__conn;

typedef enum dibs__io {
    DIBS__IO_GOT,  /* something came */
    DIBS__IO_LATE, /* the deadline passed */
    DIBS__IO_CUT,  /* the peer hung up, or the network says so */
    DIBS__IO_MEMORY,
    DIBS__IO_JUNK, /* what came is not the Redis protocol, or is too long */
} dibs__io;

/* Connects and shakes hands with TLS; says nothing to Redis yet. */
dibs_status dibs__conn_open(const dibs__redis_address *address, dibs__deadline until,
                            dibs__conn **out, dibs_error *err);
void dibs__conn_close(dibs__conn *c); /* NULL is allowed */
/* When it is closed, what the system has not sent yet is thrown away. */
void dibs__conn_drop_unsent(dibs__conn *c);

/* Sends all of it, or stops; `*sent` is how much the system took. GOT: all. LATE: the deadline came. */
dibs__io dibs__conn_send(dibs__conn *c, const char *data, size_t length, dibs__deadline until,
                         size_t *sent);

/* The same without waiting, for who polls many connections. GOT: all of it is out. LATE: the rest
 * when poll says `*wait_for`. */
dibs__io dibs__conn_push(dibs__conn *c, const char *data, size_t length, size_t *sent,
                         short *wait_for);

/* Gives the reader all that has come, without waiting. LATE: nothing, poll for `*wait_for`. */
dibs__io dibs__conn_pull(dibs__conn *c, short *wait_for);

/* Waits for bytes and gives them to the reader. GOT may also mean that nothing has come for a while: ask `next`. */
dibs__io dibs__conn_receive(dibs__conn *c, dibs__deadline until);

/* GOT: a whole reply, the caller's to free. LATE: none is complete yet. */
dibs__io dibs__conn_next(dibs__conn *c, redisReply **out);

/* Nothing has come on it although nothing was asked: neither a farewell nor anything else. */
bool dibs__conn_is_quiet(dibs__conn *c);

/* What went wrong, for a message. */
const char *dibs__io_text(dibs__io io);

/* One exchange on a connection that nobody else uses: `count` replies into `out`, the caller's to
 * free, also after a failure. UNAVAILABLE: it did not go out whole. UNKNOWN: it did. */
dibs_status dibs__conn_ask(dibs__conn *c, const dibs__bytes *bytes, redisReply **out, size_t count,
                           dibs__deadline until, dibs_error *err);

#endif
