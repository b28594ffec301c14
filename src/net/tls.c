/* OpenSSL, kept from raising SIGPIPE (its own socket BIO writes without MSG_NOSIGNAL) and from
 * being used by a reader and a writer at once (one mutex around each step; no step blocks). */
#define _GNU_SOURCE
#include "net/tls.h"

#include "core/error.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

struct dibs__tls_context {
    SSL_CTX *ssl;
    BIO_METHOD *method;
};

struct dibs__tls {
    SSL *ssl;
    pthread_mutex_t lock;
};

/* ---- A BIO that writes without signals ------------------------------------------------------- */

static int bio_fd(BIO *bio)
{
    return (int)(intptr_t)BIO_get_data(bio);
}

static int bio_write(BIO *bio, const char *data, int length)
{
    ssize_t n = send(bio_fd(bio), data, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT);

    BIO_clear_retry_flags(bio);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_write(bio);
    return (int)n;
}

static int bio_read(BIO *bio, char *data, int length)
{
    ssize_t n = recv(bio_fd(bio), data, (size_t)length, MSG_DONTWAIT);

    BIO_clear_retry_flags(bio);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_read(bio);
    return (int)n;
}

static long bio_control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static int bio_create(BIO *bio)
{
    BIO_set_init(bio, 1);
    return 1;
}

static BIO_METHOD *method_new(void)
{
    int type = BIO_get_new_index();
    BIO_METHOD *m = type < 0 ? NULL : BIO_meth_new(type | BIO_TYPE_SOURCE_SINK, "dibs socket");

    if (m) {
        BIO_meth_set_write(m, bio_write);
        BIO_meth_set_read(m, bio_read);
        BIO_meth_set_ctrl(m, bio_control);
        BIO_meth_set_create(m, bio_create);
    }
    return m;
}

/* ---- Context --------------------------------------------------------------------------------- */

static const char *reason(void)
{
    const char *text = ERR_reason_error_string(ERR_peek_last_error());

    return text ? text : "no reason given";
}

static dibs_status load_authorities(SSL_CTX *ssl, const char *ca, dibs_error *err)
{
    struct stat info;
    bool folder = ca && stat(ca, &info) == 0 && S_ISDIR(info.st_mode);
    int ok = !ca ? SSL_CTX_set_default_verify_paths(ssl)
                 : SSL_CTX_load_verify_locations(ssl, folder ? NULL : ca, folder ? ca : NULL);

    if (ok == 1)
        return DIBS_OK;
    return dibs__fail(err, DIBS_INVALID, "cannot read the CA certificates in ca=%.300s: %s",
                      ca ? ca : "", reason());
}

static dibs_status load_certificate(SSL_CTX *ssl, const char *cert, const char *key,
                                    dibs_error *err)
{
    if (!cert && !key)
        return DIBS_OK;
    if (!cert || !key)
        return dibs__fail(err, DIBS_INVALID,
                          "cert= and key= in the URL belong together: give both or neither");
    if (SSL_CTX_use_certificate_chain_file(ssl, cert) != 1)
        return dibs__fail(err, DIBS_INVALID, "cannot use the certificate cert=%.300s: %s", cert,
                          reason());
    if (SSL_CTX_use_PrivateKey_file(ssl, key, SSL_FILETYPE_PEM) != 1)
        return dibs__fail(err, DIBS_INVALID, "cannot use the key key=%.300s: %s", key, reason());
    return DIBS_OK;
}

dibs_status dibs__tls_context_new(const char *ca, const char *cert, const char *key,
                                  dibs__tls_context **out, dibs_error *err)
{
    dibs__tls_context *c = calloc(1, sizeof *c);
    dibs_status status;

    if (c) {
        c->ssl = SSL_CTX_new(TLS_client_method());
        c->method = method_new();
    }
    if (!c || !c->ssl || !c->method) {
        dibs__tls_context_free(c);
        return dibs__fail(err, DIBS_NO_MEMORY, "cannot set up TLS: out of memory");
    }
    ERR_clear_error();
    SSL_CTX_set_min_proto_version(c->ssl, TLS1_2_VERSION);
    SSL_CTX_set_verify(c->ssl, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(c->ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    status = load_authorities(c->ssl, ca, err);
    if (status == DIBS_OK)
        status = load_certificate(c->ssl, cert, key, err);
    ERR_clear_error();
    if (status != DIBS_OK) {
        dibs__tls_context_free(c);
        return status;
    }
    *out = c;
    return DIBS_OK;
}

void dibs__tls_context_free(dibs__tls_context *c)
{
    if (!c)
        return;
    SSL_CTX_free(c->ssl);
    BIO_meth_free(c->method);
    free(c);
}

bool dibs__tls_context_speak(dibs__tls_context *c, const char *protocol)
{
    unsigned char list[256];
    size_t length = strlen(protocol) & 0xff;

    list[0] = (unsigned char)length;
    memcpy(list + 1, protocol, length);
    return SSL_CTX_set_alpn_protos(c->ssl, list, (unsigned)length + 1) == 0;
}

/* ---- Connections ----------------------------------------------------------------------------- */

/* The certificate must name the host: as an address when it is one, else as a DNS name. */
static bool expect_host(SSL *ssl, const char *host)
{
    unsigned char address[16];

    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

static dibs__tls *tls_new(dibs__tls_context *context, int fd, const char *host)
{
    dibs__tls *t = calloc(1, sizeof *t);
    BIO *bio = BIO_new(context->method);

    if (t)
        t->ssl = SSL_new(context->ssl);
    if (!t || !t->ssl || !bio || !expect_host(t->ssl, host)) {
        BIO_free(bio);
        if (t)
            SSL_free(t->ssl);
        free(t);
        return NULL;
    }
    BIO_set_data(bio, (void *)(intptr_t)fd);
    SSL_set_bio(t->ssl, bio, bio);
    SSL_set_connect_state(t->ssl);
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

static dibs_status explain_handshake(SSL *ssl, const char *host, int kind, dibs_error *err)
{
    long verdict = SSL_get_verify_result(ssl);

    if (verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH)
        return dibs__fail(err, DIBS_DENIED,
                          "the server's certificate is not valid for '%.200s' (%s): use a name in "
                          "the certificate",
                          host, X509_verify_cert_error_string(verdict));
    if (verdict == X509_V_ERR_CERT_HAS_EXPIRED || verdict == X509_V_ERR_CERT_NOT_YET_VALID)
        return dibs__fail(err, DIBS_DENIED,
                          "the server's certificate has expired or is not valid yet: %s",
                          X509_verify_cert_error_string(verdict));
    if (verdict != X509_V_OK)
        return dibs__fail(err, DIBS_DENIED,
                          "the server's certificate is not trusted: %s; give its CA with ca=FILE",
                          X509_verify_cert_error_string(verdict));
    if (kind == SSL_ERROR_SSL)
        return dibs__fail(err, DIBS_DENIED,
                          "TLS failed: %s; is it a TLS port, and does it want a client "
                          "certificate (cert=, key=)?",
                          reason());
    return dibs__fail(
        err, DIBS_UNAVAILABLE,
        "the server closed the connection during the TLS handshake; is it a TLS port?");
}

static dibs_status shake_hands(dibs__tls *t, int fd, const char *host, const dibs__env *env,
                               dibs__deadline until, dibs_error *err)
{
    for (;;) {
        ERR_clear_error();
        int result = SSL_do_handshake(t->ssl);
        if (result == 1)
            return DIBS_OK;
        int kind = SSL_get_error(t->ssl, result);
        if (kind != SSL_ERROR_WANT_READ && kind != SSL_ERROR_WANT_WRITE) {
            dibs_status status = explain_handshake(t->ssl, host, kind, err);
            ERR_clear_error();
            return status;
        }
        struct pollfd p = {fd, kind == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, 0};
        int left = dibs__poll_ms(env, until);
        if (left == 0 || (poll(&p, 1, left) < 0 && errno != EINTR))
            return dibs__fail(err, DIBS_UNAVAILABLE,
                              "the TLS handshake timed out; is it a TLS port?");
    }
}

dibs_status dibs__tls_open(dibs__tls_context *context, int fd, const char *host,
                           const dibs__env *env, dibs__deadline until, dibs__tls **out,
                           dibs_error *err)
{
    dibs__tls *t = tls_new(context, fd, host);
    dibs_status status;

    if (!t)
        return dibs__fail(err, DIBS_NO_MEMORY, "cannot set up TLS: out of memory");
    status = shake_hands(t, fd, host, env, until, err);
    if (status != DIBS_OK)
        dibs__tls_close(t);
    else
        *out = t;
    return status;
}

void dibs__tls_close(dibs__tls *t)
{
    if (!t)
        return;
    SSL_free(t->ssl);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* What a failed step means, in errno's words. */
static ssize_t step_failed(dibs__tls *t, int result, short *wait_for)
{
    int kind = SSL_get_error(t->ssl, result);

    ERR_clear_error();
    *wait_for = kind == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
    if (kind == SSL_ERROR_ZERO_RETURN)
        return 0;
    errno = kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE ? EAGAIN : ECONNRESET;
    return -1;
}

ssize_t dibs__tls_write(dibs__tls *t, const void *data, size_t length, short *wait_for)
{
    ssize_t n;

    pthread_mutex_lock(&t->lock);
    ERR_clear_error();
    n = SSL_write(t->ssl, data, length > INT_MAX ? INT_MAX : (int)length);
    if (n <= 0 && (n = step_failed(t, (int)n, wait_for)) == 0) {
        errno = EPIPE;
        n = -1;
    }
    pthread_mutex_unlock(&t->lock);
    return n;
}

ssize_t dibs__tls_read(dibs__tls *t, void *data, size_t length, short *wait_for)
{
    ssize_t n;

    pthread_mutex_lock(&t->lock);
    ERR_clear_error();
    n = SSL_read(t->ssl, data, length > INT_MAX ? INT_MAX : (int)length);
    if (n <= 0)
        n = step_failed(t, (int)n, wait_for);
    pthread_mutex_unlock(&t->lock);
    return n;
}
