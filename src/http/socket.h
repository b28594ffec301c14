/* For programs that speak to their clients themselves: sockets to listen at, and TLS with a certificate that may
 * change while it is used. */
#ifndef DIBS_HTTP_SOCKET_H
#define DIBS_HTTP_SOCKET_H

#include "dibs.h"

struct gnutls_session_int;

typedef struct http_socket {
    int fd;
    bool local; /* loopback or a unix socket */
    bool unix_socket;
    char address[320]; /* "http://127.0.0.1:8200" */
    char path[108];    /* of a unix socket that was made here */
} http_socket;

/* HOST:PORT, [HOST]:PORT, unix:PATH or fd:N. */
dibs_status http_socket_open(const char *text, bool tls, http_socket *out, dibs_error *err);
void http_socket_close(http_socket *s); /* removes what it made */

typedef struct http_tls http_tls;

/* PEM files, borrowed; `client_ca` NULL: clients need no certificate. */
dibs_status http_tls_open(const char *cert, const char *key, const char *client_ca, http_tls **out,
                          dibs_error *err);
bool http_tls_reload(http_tls *t, dibs_error *err);
void http_tls_close(http_tls *t);
/* A session for a connection that was accepted; NULL: out of memory. */
struct gnutls_session_int *http_tls_session(http_tls *t, int fd);
/* The common name of the client's certificate if the CA signed it; false: there is none. */
bool http_tls_peer(struct gnutls_session_int *session, char *name, size_t size);

#endif
