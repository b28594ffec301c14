/* One HTTP/2 connection that speaks gRPC: a socket, TLS if asked for, and nghttp2's session.
 *
 * A stream is one call: it sends messages, gets messages and ends with a status. Nothing here
 * blocks but `open`, nothing is locked: whoever calls holds the client's mutex, and the callbacks
 * of a stream run inside `read`, `flush` or `close` with it held. */
#ifndef DIBS_ETCD_H2_H
#define DIBS_ETCD_H2_H

#include "core/bytes.h"
#include "core/env.h"
#include "dibs.h"
#include "net/tls.h"

#include <protobuf-c/protobuf-c.h>

/* gRPC's own numbers, as far as we tell them apart. CUT and UNSENT are ours: the connection ended,
 * and the request was out (it may have been done) or not. */
enum {
    DIBS__RPC_OK = 0,
    DIBS__RPC_CUT = -1,
    DIBS__RPC_UNSENT = -2,
    DIBS__RPC_MEMORY = -3,
    DIBS__RPC_JUNK = -4, /* what came is not gRPC */
    DIBS__RPC_LATE = -5,
    DIBS__RPC_UNREACHED = -6, /* no server could be reached */
    DIBS__RPC_MEMORY_BEFORE = -7,
    DIBS__RPC_LONG = -8, /* an answer that is longer than dibs__h2_message_max */
};

extern size_t dibs__h2_message_max; /* 64 MiB; changed by a test alone */

typedef struct dibs__h2 dibs__h2;
typedef struct dibs__h2_stream dibs__h2_stream;

/* Part of the caller's own structure, zeroed before `start`, there until `closed` has run or
 * `forget` was called; then `fini`. */
struct dibs__h2_stream {
    /* A whole message came. May be NULL: then it stays in `in`, after a prefix of 5 bytes. */
    void (*message)(dibs__h2_stream *s, const uint8_t *data, size_t length);
    /* The stream is over; `rpc` and `text` say how. Called once for each successful start. */
    void (*closed)(dibs__h2_stream *s);
    dibs__h2_stream *next, **link; /* among the open ones */
    int32_t id;
    bool lasting, out_whole;
    int rpc;
    char text[200];
    dibs__bytes out, in;
    size_t out_at;
};

/* Where a server is. */
typedef struct dibs__h2_address {
    const char *host;
    int port;
    dibs__tls_context *tls; /* NULL: plain */
    const dibs__env *env;
    int stop_fd; /* readable: give up */
} dibs__h2_address;

typedef enum dibs__h2_state { DIBS__H2_GOOD, DIBS__H2_FULL, DIBS__H2_DEAD } dibs__h2_state;

/* Connects, shakes hands with TLS, and queues the greeting. */
dibs_status dibs__h2_open(const dibs__h2_address *address, dibs__deadline until, dibs__h2 **out,
                          dibs_error *err);
/* Ends all streams (CUT or UNSENT) and closes. NULL is allowed. */
void dibs__h2_close(dibs__h2 *h);

int dibs__h2_fd(const dibs__h2 *h);
/* When the last byte came; 0: none yet. */
dibs__deadline dibs__h2_heard(const dibs__h2 *h);

/* Packs a message into `out`, before `start`. false: out of memory. */
bool dibs__h2_pack(dibs__h2_stream *s, const ProtobufCMessage *message);
/* Opens a stream to `path`; `token` may be NULL. `lasting`: more messages will be pushed; else what
 * was packed is all, and stays, so that the stream can be started again elsewhere. false: out of
 * memory, or the connection takes no more streams. */
bool dibs__h2_start(dibs__h2 *h, dibs__h2_stream *s, const char *path, const char *token,
                    bool lasting);
bool dibs__h2_push(dibs__h2 *h, dibs__h2_stream *s, const ProtobufCMessage *message);
/* Tells the server that nobody waits for it any more; `closed` will not run. */
void dibs__h2_forget(dibs__h2 *h, dibs__h2_stream *s);
void dibs__h2_stream_fini(dibs__h2_stream *s);

/* The server takes no more requests on this connection; what is under way may still be answered. */
bool dibs__h2_said_goodbye(const dibs__h2 *h);

/* Writes what is queued. FULL: the socket takes no more now. */
dibs__h2_state dibs__h2_flush(dibs__h2 *h);
/* Reads what is there. */
dibs__h2_state dibs__h2_read(dibs__h2 *h);

#endif
