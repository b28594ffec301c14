/* OpenSSL's contexts; see the header.
 *
 * A session keeps the context that it began with, so that a handshake in progress outlives its certificate. Who a
 * client is is asked for each request: its certificate is then verified with the CA that was read last. */
#define _GNU_SOURCE
#include "http/tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct http_tls {
    http_tls_files files;
    SSL_CTX *now;
};

/* `path` NULL: only what is wrong. */
static bool fail(dibs_error *err, const char *path, const char *what)
{
    err->status = DIBS_INVALID;
    snprintf(err->message, sizeof err->message, "%s%s%s", path ? path : "", path ? ": " : "", what);
    ERR_clear_error();
    return false;
}

static const char *reason(void)
{
    const char *text = ERR_reason_error_string(ERR_peek_last_error());

    return text ? text : "no reason given";
}

/* ---- Contexts -------------------------------------------------------------------------------- */

/* A client that names its protocols has HTTP/1.1 among them. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *size,
                           const unsigned char *offered, unsigned offered_size, void *data)
{
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *chosen;

    (void)ssl;
    (void)data;
    if (SSL_select_next_proto(&chosen, size, ours, sizeof ours - 1, offered, offered_size) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

/* The handshake goes on without a certificate that we trust: the requests are refused. */
static int accept_any(int good, X509_STORE_CTX *context)
{
    (void)good;
    (void)context;
    return 1;
}

static bool load_pair(SSL_CTX *c, const http_tls_files *f, dibs_error *err)
{
    if (SSL_CTX_use_certificate_chain_file(c, f->cert) != 1)
        return fail(err, f->cert, reason());
    if (SSL_CTX_use_PrivateKey_file(c, f->key, SSL_FILETYPE_PEM) == 1)
        return true;
    if (ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_VALUES_MISMATCH ||
        ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_TYPE_MISMATCH)
        return fail(err, f->key, "this is not the key of the certificate");
    return fail(err, f->key, reason());
}

static bool load_client_ca(SSL_CTX *c, const http_tls_files *f, dibs_error *err)
{
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(f->ca);

    if (!names || sk_X509_NAME_num(names) == 0 ||
        SSL_CTX_load_verify_locations(c, f->ca, NULL) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return fail(err, f->ca, "no certificates can be used from it");
    }
    SSL_CTX_set_client_CA_list(c, names);
    if (f->require)
        SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    else
        SSL_CTX_set_verify(c, SSL_VERIFY_PEER, accept_any);
    return true;
}

static bool load_server(SSL_CTX *c, const http_tls_files *f, dibs_error *err)
{
    SSL_CTX_set_alpn_select_cb(c, choose_protocol, NULL);
    return load_pair(c, f, err) && (!f->ca || load_client_ca(c, f, err));
}

static bool load_trust(SSL_CTX *c, const http_tls_files *f, dibs_error *err)
{
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL);
    if ((f->ca ? SSL_CTX_load_verify_locations(c, f->ca, NULL)
               : SSL_CTX_set_default_verify_paths(c)) == 1)
        return true;
    return fail(err, f->ca, "no certificates can be used from it");
}

/* Sessions are not resumed: whoever comes shows its certificate. */
static SSL_CTX *read_files(const http_tls_files *f, dibs_error *err)
{
    SSL_CTX *c = SSL_CTX_new(f->cert ? TLS_server_method() : TLS_client_method());

    ERR_clear_error();
    if (!c) {
        fail(err, NULL, "cannot set up TLS: out of memory");
        return NULL;
    }
    SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
    SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_num_tickets(c, 0);
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
    if (f->cert ? load_server(c, f, err) : load_trust(c, f, err))
        return c;
    SSL_CTX_free(c);
    return NULL;
}

dibs_status http_tls_open(const http_tls_files *files, http_tls **out, dibs_error *err)
{
    http_tls *t = calloc(1, sizeof *t);

    *out = NULL;
    *err = (dibs_error){.status = DIBS_NO_MEMORY};
    if (!t)
        return DIBS_NO_MEMORY;
    t->files = *files;
    if (!http_tls_reload(t, err)) {
        http_tls_close(t);
        return err->status;
    }
    *out = t;
    return DIBS_OK;
}

bool http_tls_reload(http_tls *t, dibs_error *err)
{
    SSL_CTX *fresh = read_files(&t->files, err);

    if (!fresh)
        return false;
    SSL_CTX_free(t->now);
    t->now = fresh;
    return true;
}

void http_tls_close(http_tls *t)
{
    if (!t)
        return;
    SSL_CTX_free(t->now);
    free(t);
}

/* ---- Sessions -------------------------------------------------------------------------------- */

/* The certificate names the host: as an address when it is one, else as a DNS name. */
static bool expect_host(SSL *ssl, const char *host)
{
    unsigned char address[16];

    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

SSL *http_tls_session(const http_tls *t, int fd, const char *host)
{
    SSL *ssl = SSL_new(t->now);

    if (ssl && SSL_set_fd(ssl, fd) == 1 && (!host || expect_host(ssl, host))) {
        if (host)
            SSL_set_connect_state(ssl);
        else
            SSL_set_accept_state(ssl);
        return ssl;
    }
    SSL_free(ssl);
    ERR_clear_error();
    return NULL;
}

void http_tls_drop(SSL *session)
{
    SSL_free(session);
}

static bool is_trusted(const http_tls *t, X509 *certificate, STACK_OF(X509) * chain)
{
    X509_STORE_CTX *c = X509_STORE_CTX_new();
    bool good = c &&
                X509_STORE_CTX_init(c, SSL_CTX_get_cert_store(t->now), certificate, chain) == 1 &&
                X509_STORE_CTX_set_default(c, "ssl_client") == 1 && X509_verify_cert(c) == 1;

    X509_STORE_CTX_free(c);
    ERR_clear_error();
    return good;
}

/* As UTF-8; a name with a NUL could be cut to another one. */
static bool read_name(X509 *certificate, char *out, size_t size)
{
    const X509_NAME *subject = X509_get_subject_name(certificate);
    int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1), length;
    unsigned char *text = NULL;
    bool good;

    if (at < 0)
        return false;
    length = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
    good = length >= 0 && (size_t)length < size && !memchr(text, 0, (size_t)length);
    if (good)
        snprintf(out, size, "%.*s", length, (char *)text);
    OPENSSL_free(text);
    return good;
}

bool http_tls_peer(const http_tls *t, SSL *session, char *name, size_t size)
{
    X509 *certificate = session ? SSL_get0_peer_certificate(session) : NULL;

    return certificate && is_trusted(t, certificate, SSL_get_peer_cert_chain(session)) &&
           read_name(certificate, name, size);
}
