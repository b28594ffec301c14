/* TLS 1.2 and 1.3 for connections of a loop: a server's certificate, which may change while it is used, the CA of its
 * clients, and for connections to another server the CA to trust. */
#ifndef DIBS_HTTP_TLS_H
#define DIBS_HTTP_TLS_H

#include "dibs.h"

struct ssl_st;
typedef struct http_tls http_tls;

typedef struct http_tls_files {
    const char *cert, *key; /* PEM, borrowed. NULL: for connections to others */
    const char
        *ca; /* of the peers; NULL: clients need no certificate, servers one of the system's CAs */
    bool require; /* a client without a certificate of the CA fails its handshake */
} http_tls_files;

dibs_status http_tls_open(const http_tls_files *files, http_tls **out, dibs_error *err);
/* Reads the files again. False: what was there stays. */
bool http_tls_reload(http_tls *t, dibs_error *err);
void http_tls_close(http_tls *t);
/* A session for a connection; NULL: out of memory. `host`: whose certificate the peer must have; NULL: we are the server. */
struct ssl_st *http_tls_session(const http_tls *t, int fd, const char *host);
void http_tls_drop(struct ssl_st *session); /* of a connection that was not made; NULL is allowed */
/* The common name of the client's certificate if the CA that was read last signed it; false: there is none. */
bool http_tls_peer(const http_tls *t, struct ssl_st *session, char *name, size_t size);

#endif
