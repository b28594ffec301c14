/* OpenSSL's hash and comparison, the kernel's random bytes; see the header. Used from one thread, in a process that does
 * not fork. */
#define _GNU_SOURCE
#include "http/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct http_digest {
    EVP_MD_CTX *context;
};

static http_digest spare; /* most digests begin when the one before has ended */
static EVP_MD *sha256;    /* looked up once: that takes longer than a short text */

static void need(bool done)
{
    if (!done)
        abort();
}

http_digest *http_digest_new(void)
{
    http_digest *d = malloc(sizeof *d);

    need(d != NULL);
    *d = spare;
    spare.context = NULL;
    if (!sha256)
        sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    if (!d->context)
        d->context = EVP_MD_CTX_new();
    need(sha256 && d->context && EVP_DigestInit_ex2(d->context, sha256, NULL) == 1);
    return d;
}

void http_digest_add(http_digest *d, const void *data, size_t size)
{
    need(size == 0 || EVP_DigestUpdate(d->context, data, size) == 1);
}

void http_digest_end(http_digest *d, unsigned char out[HTTP_DIGEST])
{
    if (!d)
        return;
    need(EVP_DigestFinal_ex(d->context, out, NULL) == 1);
    if (spare.context)
        EVP_MD_CTX_free(d->context);
    else
        spare = *d;
    free(d);
}

void http_random(void *out, size_t size)
{
    static unsigned char pool[256];
    static size_t left;

    if (size > left) {
        need(getrandom(pool, sizeof pool, 0) == (ssize_t)sizeof pool);
        left = sizeof pool;
    }
    left -= size;
    memcpy(out, pool + left, size);
    explicit_bzero(pool + left, size);
}

bool http_same_bytes(const void *a, const void *b, size_t size)
{
    return CRYPTO_memcmp(a, b, size) == 0;
}
