/* An intrusive hash table: nodes live inside the things they find, so that adding one allocates
 * nothing but, now and then, a larger row of slots. Keys are the caller's: walk the nodes of one
 * hash and compare. */
#ifndef DIBS_CORE_TABLE_H
#define DIBS_CORE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dibs__node {
    struct dibs__node *next;
    uint64_t hash;
} dibs__node;

typedef struct dibs__table {
    dibs__node **slot;
    size_t size; /* a power of two, or 0 before the first use */
    size_t count;
} dibs__table;

#define DIBS__FROM(type, member, pointer) \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

/* Makes sure that dibs__table_add cannot fail. false: out of memory. A table that cannot grow past
 * its first slots only becomes slower. */
bool dibs__table_reserve(dibs__table *t);
void dibs__table_add(dibs__table *t, dibs__node *node, uint64_t hash);
void dibs__table_remove(dibs__table *t, dibs__node *node);
dibs__node *dibs__table_first(const dibs__table *t, uint64_t hash);
dibs__node *dibs__table_next(const dibs__node *node); /* with the same hash */
void dibs__table_fini(dibs__table *t);

uint64_t dibs__hash(const char *text);
uint64_t dibs__hash_pair(const char *a, const char *b);

#endif
