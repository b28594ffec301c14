/* What a request says of itself: its key, its fence, its fingerprint. Without I/O. */
#ifndef DIBS_GATEWAY_KEY_H
#define DIBS_GATEWAY_KEY_H

#include "http/digest.h"
#include "http/wire.h"

enum { GATE_KEY_SIZE = 256, GATE_HASH_SIZE = HTTP_DIGEST };

/* A quoted string (RFC 8941), or a bare word with the same meaning. */
bool gate_key_read(wire_text value, char out[GATE_KEY_SIZE]);
/* FENCE or FENCE/FLOOR */
bool gate_fence_read(wire_text value, uint64_t *fence, uint64_t *floor);

void gate_hash_hex(const unsigned char hash[GATE_HASH_SIZE], size_t bytes, char *out);

/* Over method, path, query and the hash of the body. */
void gate_fingerprint(const char *method, const char *path, wire_text query,
                      const unsigned char body[GATE_HASH_SIZE], unsigned char out[GATE_HASH_SIZE]);

#endif
