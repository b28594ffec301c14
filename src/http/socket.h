/* Sockets to listen at, and the clients that come. */
#ifndef DIBS_HTTP_SOCKET_H
#define DIBS_HTTP_SOCKET_H

#include "dibs.h"

#include "http/http.h"
#include "http/link.h"

typedef struct http_socket {
    int fd;
    bool local; /* loopback or a unix socket: nobody but this machine can reach it */
    bool unix_socket;
    char path[108];    /* of a unix socket that was made here, and is removed at the end */
    char address[320]; /* "http://127.0.0.1:8200" */
    char reach[320];   /* the same, but the machine's name where that is every address */
} http_socket;

/* HOST:PORT, [HOST]:PORT, unix:PATH or fd:N. */
dibs_status http_socket_open(const char *text, bool tls, http_socket *out, dibs_error *err);
void http_socket_close(http_socket *s); /* removes what it made */

typedef struct http_listener {
    http_link link;
    http_server *server;
    http_socket socket;
    http_timer again;
    bool starved; /* there was no descriptor for a client */
    bool paused;  /* clients wait in the kernel's queue */
    /* Takes the descriptor. */
    void (*accepted)(struct http_listener *l, int fd, const struct sockaddr *from, socklen_t size);
    void (*short_of)(struct http_listener *l, const char *what); /* it is starved; may be NULL */
    void *data;
} http_listener;

/* l->socket is open, `accepted` is set. */
bool http_listener_start(http_listener *l, http_server *s);
void http_listener_pause(http_listener *l, bool paused);
void http_listener_close(http_listener *l);

#endif
