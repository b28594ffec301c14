/* A connection, with or without TLS, in the gateway's loop. Nothing here blocks.
 *
 * The loop is edge-triggered: `ready` is called when something has changed, and whoever stopped reading before
 * everything was read goes on by itself when there is room again. */
#ifndef DIBS_GATEWAY_LINK_H
#define DIBS_GATEWAY_LINK_H

#include "http/buffer.h"

#include <sys/socket.h>
#include <sys/types.h>

typedef struct gate_link gate_link;
struct gnutls_session_int;

typedef struct gate_loop {
    int epoll;
    gate_link *dead; /* freed when no event can speak of them any more */
} gate_loop;

struct gate_link {
    gate_loop *loop;
    int fd;
    struct gnutls_session_int *tls; /* owned; NULL: none */
    bool handshaking, can_read, can_write;
    bool ended;  /* the peer sends no more */
    bool failed; /* nothing comes or goes any more */
    void (*ready)(gate_link *l);
    void (*released)(gate_link *l); /* frees what it is a part of */
    gate_link *next_dead;
};

bool gate_loop_open(gate_loop *loop);
void gate_loop_close(gate_loop *loop);
/* Handles what has happened; called when loop->epoll is readable. */
void gate_loop_run(void *loop);

/* Takes the descriptor and the session, also if it fails. */
bool gate_link_open(gate_link *l, gate_loop *loop, int fd, struct gnutls_session_int *tls);
/* Closes it now; `released` is called later. */
void gate_link_close(gate_link *l, bool abort);
/* Appends what has come to `b`, up to `size` bytes. False: there is nothing now. */
bool gate_link_read(gate_link *l, http_buffer *b, size_t size);
/* Sends what is in `b` as far as possible. */
void gate_link_write(gate_link *l, http_buffer *b);
/* `ready` is called again soon: others come first. */
void gate_link_again(gate_link *l);
/* Has an idle peer closed the connection, or sent what nobody asked for? */
bool gate_link_stale(const gate_link *l);

#endif
