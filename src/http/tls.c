/* TLS: the server's certificate and the CA of its clients, which may change while it runs, and certificates of clients.
 *
 * A handshake gets the key that is the newest when it begins, and may need it much later: keys that were replaced are
 * kept to the end. A CA is a part of the credentials that sessions share; those are not ours (libmicrohttpd makes them),
 * so they get a new CA when the next session shows them. */
#define _GNU_SOURCE
#include "http/socket.h"
#include "inner.h"

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHAIN = 16 };

typedef struct pair {
    struct pair *older;
    gnutls_pcert_st chain[CHAIN];
    unsigned count;
    gnutls_privkey_t key;
} pair;

/* Credentials, and which CA they have. */
typedef struct trust {
    gnutls_certificate_credentials_t of;
    unsigned number;
} trust;

struct http__tls {
    const http_options *o;
    pair *now;
    char *ca;           /* as it was at the beginning, which others have a pointer to */
    char *fresh;        /* as it was read last; NULL: `ca` */
    unsigned ca_number; /* 0: of the beginning */
    trust trusts[HTTP_LISTENS];
};

static struct http__tls *in_use; /* gnutls passes nothing of the caller's to its callback */

static bool fail(dibs_error *err, const char *path, const char *what)
{
    err->status = DIBS_INVALID;
    snprintf(err->message, sizeof err->message, "%s: %s", path, what);
    return false;
}

static void free_pair(pair *p)
{
    for (unsigned i = 0; p && i < p->count; i++)
        gnutls_pcert_deinit(&p->chain[i]);
    if (p && p->key)
        gnutls_privkey_deinit(p->key);
    free(p);
}

static bool read_chain(const char *path, pair *p, dibs_error *err)
{
    gnutls_datum_t data;
    int failed = gnutls_load_file(path, &data);

    if (failed != 0)
        return fail(err, path, gnutls_strerror(failed));
    p->count = CHAIN;
    failed = gnutls_pcert_list_import_x509_raw(p->chain, &p->count, &data, GNUTLS_X509_FMT_PEM, 0);
    gnutls_free(data.data);
    if (failed == 0)
        return true;
    p->count = 0;
    return fail(err, path, gnutls_strerror(failed));
}

static bool read_key(const char *path, pair *p, dibs_error *err)
{
    gnutls_datum_t data;
    int failed = gnutls_load_file(path, &data);

    if (failed != 0)
        return fail(err, path, gnutls_strerror(failed));
    failed = gnutls_privkey_init(&p->key);
    if (failed == 0)
        failed = gnutls_privkey_import_x509_raw(p->key, &data, GNUTLS_X509_FMT_PEM, NULL, 0);
    gnutls_memset(data.data, 0, data.size);
    gnutls_free(data.data);
    return failed == 0 || fail(err, path, gnutls_strerror(failed));
}

/* A key of another certificate would fail every handshake. */
static bool match(const pair *p, const char *path, dibs_error *err)
{
    gnutls_pubkey_t key;
    unsigned char mine[64], theirs[64];
    size_t a = sizeof mine, b = sizeof theirs;
    bool good;

    if (gnutls_pubkey_init(&key) != 0)
        return fail(err, path, "out of memory");
    good = gnutls_pubkey_import_privkey(key, p->key, 0, 0) == 0 &&
           gnutls_pubkey_get_key_id(key, GNUTLS_KEYID_USE_SHA256, mine, &a) == 0 &&
           gnutls_pubkey_get_key_id(p->chain[0].pubkey, GNUTLS_KEYID_USE_SHA256, theirs, &b) == 0 &&
           a == b && memcmp(mine, theirs, a) == 0;
    gnutls_pubkey_deinit(key);
    return good || fail(err, path, "this is not the key of the certificate");
}

static pair *read_pair(const http_options *o, dibs_error *err)
{
    pair *p = calloc(1, sizeof *p);

    if (!p)
        fail(err, o->cert, "out of memory");
    else if (read_chain(o->cert, p, err) && read_key(o->key, p, err) && match(p, o->key, err))
        return p;
    free_pair(p);
    return NULL;
}

static bool is_same(const pair *a, const pair *b)
{
    bool same = a && a->count == b->count;

    for (unsigned i = 0; same && i < a->count; i++)
        same = a->chain[i].cert.size == b->chain[i].cert.size &&
               memcmp(a->chain[i].cert.data, b->chain[i].cert.data, a->chain[i].cert.size) == 0;
    return same;
}

static gnutls_x509_trust_list_t make_list(const char *ca)
{
    const gnutls_datum_t data = {(unsigned char *)(uintptr_t)ca, (unsigned)strlen(ca)};
    gnutls_x509_trust_list_t list;

    if (gnutls_x509_trust_list_init(&list, 0) != 0)
        return NULL;
    if (gnutls_x509_trust_list_add_trust_mem(list, &data, NULL, GNUTLS_X509_FMT_PEM,
                                             GNUTLS_TL_USE_IN_TLS, 0) > 0)
        return list;
    gnutls_x509_trust_list_deinit(list, 1);
    return NULL;
}

static char *read_ca(const char *path, dibs_error *err)
{
    gnutls_x509_trust_list_t list;
    gnutls_datum_t data;
    char *text;
    int failed = gnutls_load_file(path, &data);

    if (failed != 0) {
        fail(err, path, gnutls_strerror(failed));
        return NULL;
    }
    text = strndup((char *)data.data, data.size);
    gnutls_free(data.data);
    list = text ? make_list(text) : NULL;
    if (list) {
        gnutls_x509_trust_list_deinit(list, 1);
        return text;
    }
    fail(err, path, "no certificates can be used from it");
    free(text);
    return NULL;
}

static void take_pair(http__tls *t, pair *p)
{
    if (is_same(t->now, p)) {
        free_pair(p);
        return;
    }
    p->older = t->now;
    t->now = p;
}

static void take_ca(http__tls *t, char *text)
{
    if (!t->ca) {
        t->ca = text;
        return;
    }
    free(t->fresh);
    t->fresh = text;
    t->ca_number++;
}

bool http__tls_reload(http__tls *t, dibs_error *err)
{
    pair *p = read_pair(t->o, err);
    char *ca = p && t->o->client_ca ? read_ca(t->o->client_ca, err) : NULL;

    if (!p || (t->o->client_ca && !ca)) {
        free_pair(p);
        return false;
    }
    take_pair(t, p);
    if (ca)
        take_ca(t, ca);
    return true;
}

dibs_status http__tls_read(const http_options *o, http__tls **out, dibs_error *err)
{
    http__tls *t = calloc(1, sizeof *t);

    *err = (dibs_error){.status = DIBS_NO_MEMORY};
    if (!t)
        return DIBS_NO_MEMORY;
    t->o = o;
    if (!http__tls_reload(t, err)) {
        http__tls_free(t);
        return err->status;
    }
    in_use = t;
    *out = t;
    return DIBS_OK;
}

void http__tls_free(http__tls *t)
{
    if (!t)
        return;
    if (in_use == t)
        in_use = NULL;
    for (pair *p = t->now, *older; p; p = older) {
        older = p->older;
        free_pair(p);
    }
    free(t->ca);
    free(t->fresh);
    free(t);
}

/* The credentials of the session get the CA that was read last. */
static void renew_trust(http__tls *t, gnutls_session_t session)
{
    gnutls_certificate_credentials_t of = NULL;
    gnutls_x509_trust_list_t list;
    size_t i = 0;

    if (t->ca_number == 0 ||
        gnutls_credentials_get(session, GNUTLS_CRD_CERTIFICATE, (void **)&of) != 0)
        return;
    while (i + 1 < HTTP_LISTENS && t->trusts[i].of && t->trusts[i].of != of)
        i++;
    if (t->trusts[i].of == of && t->trusts[i].number == t->ca_number)
        return;
    list = make_list(t->fresh);
    if (!list)
        return; /* no memory: the next session tries again */
    gnutls_certificate_set_trust_list(of, list, 0);
    t->trusts[i] = (trust){of, t->ca_number};
}

const char *http__tls_ca(const http__tls *t)
{
    return t->ca;
}

static int on_certificate(gnutls_session_t session, const gnutls_datum_t *issuers, int issuer_count,
                          const gnutls_pk_algorithm_t *algorithms, int algorithm_count,
                          gnutls_pcert_st **chain, unsigned *count, gnutls_privkey_t *key)
{
    (void)issuers;
    (void)issuer_count;
    (void)algorithms;
    (void)algorithm_count;
    if (!in_use)
        return -1;
    renew_trust(in_use, session);
    *chain = in_use->now->chain;
    *count = in_use->now->count;
    *key = in_use->now->key;
    return 0;
}

gnutls_certificate_retrieve_function2 *http__tls_callback(void)
{
    return on_certificate;
}

bool http_tls_peer(gnutls_session_t session, char *name, size_t size)
{
    const gnutls_datum_t *list;
    gnutls_x509_crt_t crt;
    unsigned wrong = 1, count = 0;
    bool good;

    if (session && in_use)
        renew_trust(in_use, session); /* the CA may have changed since the handshake */
    if (!session || gnutls_certificate_verify_peers2(session, &wrong) != 0 || wrong != 0)
        return false;
    list = gnutls_certificate_get_peers(session, &count);
    if (!list || count == 0 || gnutls_x509_crt_init(&crt) != 0)
        return false;
    good = gnutls_x509_crt_import(crt, &list[0], GNUTLS_X509_FMT_DER) == 0 &&
           gnutls_x509_crt_get_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, 0, name, &size) == 0;
    gnutls_x509_crt_deinit(crt);
    return good;
}

bool http__tls_client(struct MHD_Connection *connection, char *name, size_t size)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);

    return info && http_tls_peer(info->tls_session, name, size);
}

/* ---- For programs that speak to their clients themselves -------------------------------------- */

struct http_tls {
    http_options o;
    http__tls *files;
    gnutls_certificate_credentials_t credentials;
};

/* The certificate comes from the callback, for each handshake. */
static bool allocate(http_tls *t)
{
    gnutls_datum_t ca = {0};

    if (gnutls_certificate_allocate_credentials(&t->credentials) != 0)
        return false;
    gnutls_certificate_set_retrieve_function2(t->credentials, on_certificate);
    if (!t->files->ca)
        return true;
    ca = (gnutls_datum_t){(unsigned char *)t->files->ca, (unsigned)strlen(t->files->ca)};
    return gnutls_certificate_set_x509_trust_mem(t->credentials, &ca, GNUTLS_X509_FMT_PEM) > 0;
}

dibs_status http_tls_open(const char *cert, const char *key, const char *client_ca, http_tls **out,
                          dibs_error *err)
{
    http_tls *t = calloc(1, sizeof *t);
    dibs_status status;

    *out = NULL;
    *err = (dibs_error){.status = DIBS_NO_MEMORY};
    if (!t)
        return DIBS_NO_MEMORY;
    t->o = (http_options){.cert = cert, .key = key, .client_ca = client_ca};
    status = http__tls_read(&t->o, &t->files, err);
    if (status == DIBS_OK && !allocate(t)) {
        fail(err, client_ca ? client_ca : cert, "no certificates can be used from it");
        status = DIBS_INVALID;
    }
    if (status == DIBS_OK)
        *out = t;
    else
        http_tls_close(t);
    return status;
}

bool http_tls_reload(http_tls *t, dibs_error *err)
{
    return http__tls_reload(t->files, err);
}

void http_tls_close(http_tls *t)
{
    if (!t)
        return;
    if (t->credentials)
        gnutls_certificate_free_credentials(t->credentials);
    http__tls_free(t->files);
    free(t);
}

gnutls_session_t http_tls_session(http_tls *t, int fd)
{
    gnutls_session_t session;

    if (gnutls_init(&session, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL) != 0)
        return NULL;
    if (gnutls_priority_set_direct(session, "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2", NULL) !=
            0 ||
        gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, t->credentials) != 0) {
        gnutls_deinit(session);
        return NULL;
    }
    if (t->files->ca) { /* the handshake fails without one */
        gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUIRE);
        gnutls_session_set_verify_cert(session, NULL, 0);
    }
    gnutls_transport_set_int(session, fd);
    return session;
}
