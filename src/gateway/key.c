/* Keys, fences and fingerprints; see the header. */
#include "gateway/key.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The key --------------------------------------------------------------------------------- */

static bool read_quoted(const char *at, const char *end, char out[GATE_KEY_SIZE], size_t *size)
{
    for (; at < end && *at != '"'; at++) {
        if (*at == '\\' && (++at == end || (*at != '"' && *at != '\\')))
            return false;
        if (*at < ' ' || *at > '~' || *size == GATE_KEY_SIZE - 1)
            return false;
        out[(*size)++] = *at;
    }
    return at + 1 == end;
}

static bool read_bare(const char *at, const char *end, char out[GATE_KEY_SIZE], size_t *size)
{
    for (; at < end; at++) {
        if (*at <= ' ' || *at > '~' || strchr("\",;\\", *at) || *size == GATE_KEY_SIZE - 1)
            return false;
        out[(*size)++] = *at;
    }
    return true;
}

bool gate_key_read(wire_text value, char out[GATE_KEY_SIZE])
{
    const char *at = value.at, *end = value.at + value.size;
    size_t size = 0;
    bool good = value.size > 0 && (*at == '"' ? read_quoted(at + 1, end, out, &size)
                                              : read_bare(at, end, out, &size));

    out[good ? size : 0] = '\0';
    return good && size > 0;
}

/* ---- The fence ------------------------------------------------------------------------------- */

/* A fence has 63 bits; 19 digits fit 64. */
static const char *read_number(const char *at, const char *end, uint64_t *out)
{
    const char *from = at;

    *out = 0;
    for (; at < end && *at >= '0' && *at <= '9' && at - from < 19; at++)
        *out = *out * 10 + (uint64_t)(*at - '0');
    return at > from && *out > 0 && *out <= INT64_MAX ? at : NULL;
}

bool gate_fence_read(wire_text value, uint64_t *fence, uint64_t *floor)
{
    const char *end = value.at + value.size, *at = read_number(value.at, end, fence);

    *floor = 0;
    if (at && at < end && *at == '/')
        at = read_number(at + 1, end, floor);
    return at == end && *floor <= *fence;
}

/* ---- The fingerprint ------------------------------------------------------------------------- */

void gate_hash_hex(const unsigned char hash[GATE_HASH_SIZE], size_t bytes, char *out)
{
    for (size_t i = 0; i < bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", hash[i]);
}

/* Neither a method nor a path nor a query has a line feed. */
void gate_fingerprint(const char *method, const char *path, wire_text query,
                      const unsigned char body[GATE_HASH_SIZE], unsigned char out[GATE_HASH_SIZE])
{
    http_digest *h = http_digest_new();

    http_digest_add(h, method, strlen(method));
    http_digest_add(h, "\n", 1);
    http_digest_add(h, path, strlen(path));
    http_digest_add(h, "\n", 1);
    http_digest_add(h, query.at, query.size);
    http_digest_add(h, "\n", 1);
    http_digest_add(h, body, GATE_HASH_SIZE);
    http_digest_end(h, out);
}
