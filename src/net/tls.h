/* TLS on a socket that is already connected. The peer's certificate must be valid, issued by a
 * known authority and made out to the host in the URL; there is no way to go on without. */
#ifndef DIBS_NET_TLS_H
#define DIBS_NET_TLS_H

#include "core/env.h"
#include "dibs.h"

#include <sys/types.h>

typedef struct dibs__tls_context dibs__tls_context; /* one a handle */
typedef struct dibs__tls dibs__tls;                 /* one a connection */

/* `ca`: file or folder of authorities, NULL: the system's. `cert`, `key`: PEM files or NULL. */
dibs_status dibs__tls_context_new(const char *ca, const char *cert, const char *key,
                                  dibs__tls_context **out, dibs_error *err);
void dibs__tls_context_free(dibs__tls_context *context);

/* The protocol that the peer must agree to speak (ALPN), such as "h2". false: out of memory. */
bool dibs__tls_context_speak(dibs__tls_context *context, const char *protocol);

/* Shakes hands on `fd`, which is non-blocking and stays the caller's. */
dibs_status dibs__tls_open(dibs__tls_context *context, int fd, const char *host,
                           const dibs__env *env, dibs__deadline until, dibs__tls **out,
                           dibs_error *err);
void dibs__tls_close(dibs__tls *tls); /* says nothing to the peer */

/* As send() and recv(): -1 with errno EAGAIN sets `*wait_for` to POLLIN or POLLOUT. One thread may
 * read while another writes. */
ssize_t dibs__tls_write(dibs__tls *tls, const void *data, size_t length, short *wait_for);
ssize_t dibs__tls_read(dibs__tls *tls, void *data, size_t length, short *wait_for);

#endif
