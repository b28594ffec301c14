/* A connection, with or without TLS, in the loop. Nothing here blocks.
 *
 * The loop is edge-triggered: `ready` is called when something has changed, and whoever stopped reading before
 * everything was read goes on by itself when there is room again. */
#ifndef DIBS_HTTP_LINK_H
#define DIBS_HTTP_LINK_H

#include "http/buffer.h"

#include <sys/socket.h>
#include <sys/types.h>

typedef struct http_link http_link;
struct http_server;
struct ssl_st;

typedef struct http_loop {
    int epoll;
    unsigned turn;
    http_link *first_again, *last_again;
    http_link *dead; /* freed when no event can speak of them any more */
} http_loop;

struct http_link {
    http_loop *loop;
    struct ssl_st *tls; /* owned; NULL: none */
    int fd;
    bool handshaking, can_read, can_write;
    bool hung_up; /* the peer has shut down its side; what it sent before may still be unread */
    bool ended;   /* the same, and everything was read */
    bool failed;  /* nothing comes or goes any more */
    void (*ready)(http_link *l);
    void (*released)(http_link *l); /* frees what it is a part of */
    http_link *next;                /* of those that go on, or of the dead */
    http_link *previous;
    unsigned turn;
    bool again;
};

http_loop *http_server_loop(struct http_server *s);
/* For the loop: an event of the link; those that go on; frees those that were closed. */
void http__link_event(http_link *l, unsigned events);
void http__links_go(http_loop *loop);
void http__links_bury(http_loop *loop);

/* False: descriptor and session are not watched, and still the caller's. */
bool http_link_open(http_link *l, http_loop *loop, int fd, struct ssl_st *tls);
/* Closes it now; `released` is called later. */
void http_link_close(http_link *l, bool abort);
/* Appends what has come to `b`, up to `size` bytes. False: there is nothing now. */
bool http_link_read(http_link *l, http_buffer *b, size_t size);
/* Sends what is in `b` as far as possible. */
void http_link_write(http_link *l, http_buffer *b);
/* `ready` is called again in the next turn of the loop: others come first. */
void http_link_again(http_link *l);
/* Has an idle peer closed the connection, or sent what nobody asked for? */
bool http_link_stale(const http_link *l);

#endif
