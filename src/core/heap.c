/* Sift up, sift down; see the header. */
#include "core/heap.h"

#include <stdlib.h>
#include <string.h>

static void set(dibs__heap *h, size_t index, dibs__due *node)
{
    h->at[index - 1] = node;
    node->index = index;
}

static dibs__due *get(const dibs__heap *h, size_t index)
{
    return h->at[index - 1];
}

static void sift_up(dibs__heap *h, dibs__due *node)
{
    size_t i = node->index;

    for (; i > 1 && get(h, i / 2)->key > node->key; i /= 2)
        set(h, i, get(h, i / 2));
    set(h, i, node);
}

static void sift_down(dibs__heap *h, dibs__due *node)
{
    size_t i = node->index;

    for (;;) {
        size_t child = i * 2;
        if (child > h->count)
            break;
        if (child < h->count && get(h, child + 1)->key < get(h, child)->key)
            child++;
        if (get(h, child)->key >= node->key)
            break;
        set(h, i, get(h, child));
        i = child;
    }
    set(h, i, node);
}

bool dibs__heap_reserve(dibs__heap *h, size_t promised)
{
    size_t need = h->count + promised + 1;
    size_t size = h->size ? h->size : 16;
    dibs__due **at;

    if (need <= h->size)
        return true;
    while (size < need)
        size *= 2;
    at = realloc(h->at, size * sizeof(dibs__due *));
    if (!at)
        return false;
    h->at = at;
    h->size = size;
    return true;
}

void dibs__heap_put(dibs__heap *h, dibs__due *node, int64_t key)
{
    node->key = key;
    if (node->index == 0)
        set(h, ++h->count, node);
    sift_up(h, node);
    sift_down(h, node);
}

void dibs__heap_remove(dibs__heap *h, dibs__due *node)
{
    size_t i = node->index;
    dibs__due *last;

    if (i == 0)
        return;
    last = get(h, h->count--);
    node->index = 0;
    if (last == node)
        return;
    set(h, i, last);
    sift_up(h, last);
    sift_down(h, last);
}

dibs__due *dibs__heap_top(const dibs__heap *h)
{
    return h->count ? get(h, 1) : NULL;
}

/* Among `index` and what is below it, if that is before `best`. */
static dibs__due *search(const dibs__heap *h, size_t index, bool (*fits)(dibs__due *node),
                         dibs__due *best)
{
    dibs__due *node = index <= h->count ? get(h, index) : NULL;

    if (!node || (best && node->key >= best->key))
        return best;
    if (fits(node))
        return node; /* what is below comes later */
    best = search(h, index * 2, fits, best);
    return search(h, index * 2 + 1, fits, best);
}

dibs__due *dibs__heap_first(const dibs__heap *h, bool (*fits)(dibs__due *node))
{
    return search(h, 1, fits, NULL);
}

void dibs__heap_fini(dibs__heap *h)
{
    free(h->at);
    memset(h, 0, sizeof *h);
}
