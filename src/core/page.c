/* Pages of cells. */
#include "core/page.h"

#include <stdlib.h>
#include <string.h>

static bool make_room(dibs__cell_page *p)
{
    size_t room = p->room ? 2 * p->room : 64;
    dibs__cell_found *larger;

    if (p->count < p->room)
        return true;
    larger = realloc(p->found, room * sizeof *larger);
    if (!larger)
        return false;
    p->found = larger;
    p->room = room;
    return true;
}

void dibs__cell_page_add(dibs__cell_page *page, const dibs__cell_found *found)
{
    size_t key = strlen(found->key) + 1, head = found->head ? found->head_size : 0;
    char *both = page->failed ? NULL : malloc(key + head + 1);

    if (!both || !make_room(page)) {
        page->failed = true;
        free(both);
        return;
    }
    memcpy(both, found->key, key);
    if (head)
        memcpy(both + key, found->head, head);
    page->found[page->count] = *found;
    page->found[page->count].key = both;
    page->found[page->count].head = found->head ? both + key : NULL;
    page->found[page->count++].head_size = head;
}

int64_t dibs__span(int64_t a, int64_t b)
{
    int64_t out;

    if (a >= b)
        return 0;
    return __builtin_sub_overflow(b, a, &out) ? INT64_MAX : out;
}

void dibs__cell_page_put(dibs__cell_page *page, const char *key, const dibs__cell *cell,
                         dibs__time now, bool dead, size_t head)
{
    dibs__cell_found found = {
        .key = key,
        .version = cell->version,
        .age = dead ? INT64_MAX : dibs__span(cell->written, now.lease),
        .left = cell->expires == INT64_MAX ? INT64_MAX : dibs__span(now.lease, cell->expires),
        .head = cell->data ? cell->data : "",
        .head_size = cell->size < head ? cell->size : head,
        .size = cell->size,
    };

    if (!cell->empty && !cell->counter && cell->expires > now.lease)
        dibs__cell_page_add(page, &found);
}

void dibs__cell_page_fini(dibs__cell_page *page)
{
    for (size_t i = 0; i < page->count; i++)
        free((void *)(uintptr_t)page->found[i].key);
    free(page->found);
    memset(page, 0, sizeof *page);
}

void dibs__cell_range_end(const char *prefix, char out[DIBS__CELL_KEY_SIZE])
{
    size_t n = strlen(prefix);

    memcpy(out, prefix, n);
    while (n > 0 && (unsigned char)out[n - 1] == 0xff)
        n--;
    out[n] = '\0';
    if (n > 0)
        out[n - 1]++;
}
