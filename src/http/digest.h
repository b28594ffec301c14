/* SHA-256, random bytes, and a comparison whose time says nothing. A process without these primitives is not safe: it
 * ends. */
#ifndef DIBS_HTTP_DIGEST_H
#define DIBS_HTTP_DIGEST_H

#include <stdbool.h>
#include <stddef.h>

enum { HTTP_DIGEST = 32 };

typedef struct http_digest http_digest;
http_digest *http_digest_new(void);
void http_digest_add(http_digest *d, const void *data, size_t size);
void http_digest_end(http_digest *d,
                     unsigned char out[HTTP_DIGEST]); /* frees it; NULL is allowed */

void http_random(void *out, size_t size); /* up to 256 bytes */
bool http_same_bytes(const void *a, const void *b, size_t size);

#endif
