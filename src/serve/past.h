/* What has ended: for a minute it is known that a request was answered and that a grant was released, so that a request
 * that comes late, or again because its answer was lost, is answered in the same way. Of each only hashes are kept, and
 * of the last 131,072 at most: on a server that ends more in a minute the oldest are forgotten sooner. A late request
 * then gets a lock that its client does not renew, and a repeated release is LOST. */
#ifndef DIBS_SERVE_PAST_H
#define DIBS_SERVE_PAST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct serve_past serve_past;

/* Of hashes as serve_hash writes them: the first half. */
typedef struct serve_ended {
    uint64_t key, digest, id; /* key or id 0: there is none by which it may come again */
    int by;                   /* what ended it: its owner's */
} serve_ended;

uint64_t serve_past_hash(const char hash[33]);
uint64_t serve_past_id(const char *id);

serve_past *serve_past_new(void); /* NULL: out of memory; then nothing is remembered */
void serve_past_free(serve_past *p);
void serve_past_add(serve_past *p, const serve_ended *ended, int64_t now_ms);
/* NULL: nothing of the kind has ended lately. Valid until the next call. */
const serve_ended *serve_past_of_key(serve_past *p, uint64_t key, int64_t now_ms);
const serve_ended *serve_past_of_id(serve_past *p, uint64_t id, int64_t now_ms);

#endif
