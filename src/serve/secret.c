/* Hashes and random texts; see the header. */
#include "serve/secret.h"

#include "http/digest.h"

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

void serve_hash(char out[33], const char *const texts[])
{
    http_digest *all = http_digest_new();
    unsigned char digest[HTTP_DIGEST];

    for (; *texts; texts++) {
        size_t size = strlen(*texts);
        http_digest_add(all, &size, sizeof size);
        http_digest_add(all, *texts, size);
    }
    http_digest_end(all, digest);
    write_hex(out, digest);
}

void serve_random(char out[33])
{
    unsigned char bytes[16];

    http_random(bytes, sizeof bytes);
    write_hex(out, bytes);
}
