/* An intrusive binary heap: what is due first is at the top. Nodes live inside the things that are
 * due. */
#ifndef DIBS_CORE_HEAP_H
#define DIBS_CORE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dibs__due {
    int64_t key;
    size_t index; /* 1-based; 0: not in a heap */
} dibs__due;

typedef struct dibs__heap {
    dibs__due **at;
    size_t count, size;
} dibs__heap;

/* Room for one more than there are, so that dibs__heap_put cannot fail. false: out of memory.
 * `promised` counts those that reserved and have not put yet. */
bool dibs__heap_reserve(dibs__heap *h, size_t promised);
void dibs__heap_put(dibs__heap *h, dibs__due *node, int64_t key); /* adds, or moves */
void dibs__heap_remove(dibs__heap *h, dibs__due *node);           /* harmless when not in it */
dibs__due *dibs__heap_top(const dibs__heap *h);                   /* NULL: empty */
/* The first of those that fit; NULL: none. Looks at no other than those before it, and their next. */
dibs__due *dibs__heap_first(const dibs__heap *h, bool (*fits)(dibs__due *node));
void dibs__heap_fini(dibs__heap *h);

#endif
