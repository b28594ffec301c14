/* Keys, fences and fingerprints; see the header. */
#include "gateway/key.h"

#include <gnutls/crypto.h>
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

struct gate_hash {
    gnutls_hash_hd_t handle;
};

gate_hash *gate_hash_new(void)
{
    gate_hash *h = malloc(sizeof *h);

    if (h && gnutls_hash_init(&h->handle, GNUTLS_DIG_SHA256) != 0) {
        free(h);
        return NULL;
    }
    return h;
}

/* A hash that fails would let requests pass for each other: the process ends. */
void gate_hash_add(gate_hash *h, const void *data, size_t size)
{
    if (size > 0 && gnutls_hash(h->handle, data, size) != 0)
        abort();
}

void gate_hash_end(gate_hash *h, unsigned char out[GATE_HASH_SIZE])
{
    if (!h)
        return;
    gnutls_hash_deinit(h->handle, out);
    free(h);
}

void gate_hash_hex(const unsigned char hash[GATE_HASH_SIZE], size_t bytes, char *out)
{
    for (size_t i = 0; i < bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", hash[i]);
}

/* Neither a method nor a path nor a query has a line feed. */
void gate_fingerprint(const char *method, const char *path, wire_text query,
                      const unsigned char body[GATE_HASH_SIZE], unsigned char out[GATE_HASH_SIZE])
{
    gate_hash *h = gate_hash_new();

    if (!h)
        abort();
    gate_hash_add(h, method, strlen(method));
    gate_hash_add(h, "\n", 1);
    gate_hash_add(h, path, strlen(path));
    gate_hash_add(h, "\n", 1);
    gate_hash_add(h, query.at, query.size);
    gate_hash_add(h, "\n", 1);
    gate_hash_add(h, body, GATE_HASH_SIZE);
    gate_hash_end(h, out);
}
