/* Hashes and random texts; see the header. */
#include "serve/secret.h"

#include <gnutls/crypto.h>
#include <stdlib.h>
#include <string.h>

static void write_hex(char out[33], const unsigned char bytes[16])
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < 16; i++) {
        *out++ = digits[bytes[i] >> 4];
        *out++ = digits[bytes[i] & 15];
    }
    *out = '\0';
}

/* Without its primitives nothing here is safe: the process ends. */
static void need(bool done)
{
    if (!done)
        abort();
}

void serve_hash(char out[33], const char *const texts[])
{
    unsigned char digest[32];
    gnutls_hash_hd_t hash;

    need(gnutls_hash_init(&hash, GNUTLS_DIG_SHA256) == 0);
    for (; *texts; texts++) {
        size_t size = strlen(*texts);
        need(gnutls_hash(hash, &size, sizeof size) == 0 && gnutls_hash(hash, *texts, size) == 0);
    }
    gnutls_hash_deinit(hash, digest);
    write_hex(out, digest);
}

void serve_random(char out[33])
{
    unsigned char bytes[16];

    need(gnutls_rnd(GNUTLS_RND_KEY, bytes, sizeof bytes) == 0);
    write_hex(out, bytes);
}
