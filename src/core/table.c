/* Chained hashing with doubling; see the header. */
#include "core/table.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_SIZE 16

static dibs__node **place(const dibs__table *t, uint64_t hash)
{
    return &t->slot[hash & (t->size - 1)];
}

static void push(dibs__table *t, dibs__node *node)
{
    dibs__node **at = place(t, node->hash);

    node->next = *at;
    *at = node;
}

static void grow(dibs__table *t)
{
    dibs__table larger = {calloc(t->size * 2, sizeof *larger.slot), t->size * 2, t->count};

    if (!larger.slot)
        return;
    for (size_t i = 0; i < t->size; i++) {
        for (dibs__node *n = t->slot[i], *next; n; n = next) {
            next = n->next;
            push(&larger, n);
        }
    }
    free(t->slot);
    *t = larger;
}

bool dibs__table_reserve(dibs__table *t)
{
    if (t->size == 0) {
        t->slot = calloc(FIRST_SIZE, sizeof *t->slot);
        t->size = t->slot ? FIRST_SIZE : 0;
    } else if (t->count >= t->size) {
        grow(t);
    }
    return t->size > 0;
}

void dibs__table_add(dibs__table *t, dibs__node *node, uint64_t hash)
{
    node->hash = hash;
    push(t, node);
    t->count++;
}

void dibs__table_remove(dibs__table *t, dibs__node *node)
{
    dibs__node **at = place(t, node->hash);

    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    t->count--;
}

static dibs__node *with_hash(dibs__node *node, uint64_t hash)
{
    while (node && node->hash != hash)
        node = node->next;
    return node;
}

dibs__node *dibs__table_first(const dibs__table *t, uint64_t hash)
{
    return t->size ? with_hash(*place(t, hash), hash) : NULL;
}

dibs__node *dibs__table_next(const dibs__node *node)
{
    return with_hash(node->next, node->hash);
}

void dibs__table_fini(dibs__table *t)
{
    free(t->slot);
    memset(t, 0, sizeof *t);
}

/* FNV-1a with a final mix, because only the low bits pick the slot. */
static uint64_t add_text(uint64_t h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}

static uint64_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return h ^ (h >> 32);
}

uint64_t dibs__hash(const char *text)
{
    return mix(add_text(0xcbf29ce484222325u, text));
}

uint64_t dibs__hash_pair(const char *a, const char *b)
{
    return mix(add_text(add_text(0xcbf29ce484222325u, a) * 31, b));
}
