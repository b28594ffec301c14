/* Listing cells where the store knows only keys: stretches of the folder of cells, in the order of the
 * escaped keys, from where the last page ended.
 *
 * Values come whole, and each may have a mebibyte: so a stretch is short at first, and longer as long as its
 * values are small. Whether a runner is alive is asked for once per stretch: the store's clock, or the signs of
 * life of the same keys. Signs are read after the cells: one that is younger than its cell says that the runner
 * was alive even later. */
#define _GNU_SOURCE
#include "core/error.h"
#include "families/entries/cell.h"
#include "families/entries/inner.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_STRETCH 32
#define MAX_STRETCH   512
#define MUCH          ((size_t)1024 * 1024) /* bytes of one stretch */

/* What stays the same during a page. */
typedef struct listing {
    dibs__entries *entries;
    const dibs__cell_range *range;
    dibs__deadline until;
    dibs__cell_page *page;
    char prefix[DIBS__ENTRIES_CELL_KEY_SIZE]; /* escaped */
    size_t looked;                            /* at so many of them */
} listing;

/* ---- Who is alive ---------------------------------------------------------------------------- */

/* Both are sorted by key. */
static void note_heartbeats(dibs__entries_blob *cell, size_t count,
                            const dibs__entries_blob *heartbeat, size_t heartbeats)
{
    for (size_t i = 0, k = 0; i < count && k < heartbeats;) {
        int order = strcmp(cell[i].key, heartbeat[k].key);
        if (order == 0)
            cell[i].alive = heartbeat[k].number >= cell[i].number;
        i += order <= 0;
        k += order >= 0;
    }
}

static dibs_status read_heartbeats(const listing *l, const char *after, dibs__entries_blob *cell,
                                   size_t count, dibs_error *err)
{
    const struct dibs__entries_cells *cells = l->entries->backend->adapter->cells;
    char at[DIBS__ENTRIES_CELL_KEY_SIZE];
    bool more = true;

    strcpy(at, after);
    while (more) {
        dibs__entries_blob *heartbeat = NULL;
        size_t heartbeats = 0;
        dibs_status status = cells->walk(l->entries->backend, "%l", at, MAX_STRETCH, l->until,
                                         &heartbeat, &heartbeats, err);
        if (status != DIBS_OK)
            return status;
        note_heartbeats(cell, count, heartbeat, heartbeats);
        more = heartbeats > 0 && strcmp(heartbeat[heartbeats - 1].key, cell[count - 1].key) < 0;
        if (more)
            strcpy(at, heartbeat[heartbeats - 1].key);
        dibs__entries_blobs_free(heartbeat, heartbeats);
    }
    return DIBS_OK;
}

/* `*clock` is 0 where the store has none: then the blobs say who is alive. */
static dibs_status look_for_life(const listing *l, const char *after, dibs__entries_blob *blobs,
                                 size_t count, int64_t *clock, dibs_error *err)
{
    const struct dibs__entries_cells *cells = l->entries->backend->adapter->cells;
    bool matters = false;

    *clock = 0;
    for (size_t i = 0; i < count && !matters; i++)
        matters = dibs__entries_cell_stands_for_life(&blobs[i]);
    if (!matters)
        return DIBS_OK;
    return cells->clock ? cells->clock(l->entries->backend, l->until, clock, err)
                        : read_heartbeats(l, after, blobs, count, err);
}

/* ---- A stretch ------------------------------------------------------------------------------- */

static void add_one(listing *l, const dibs__entries_blob *b, const char *key, dibs__time now,
                    int64_t clock)
{
    const dibs__cell_found foreign = {.key = key, .left = INT64_MAX};
    dibs__cell cell;
    bool dead = false;

    switch (dibs__entries_cell_view(b, now, clock, &cell, &dead)) {
    case DIBS__ENTRIES_CELL:
        dibs__cell_page_put(l->page, key, &cell, now, dead, l->range->head);
        break;
    case DIBS__ENTRIES_FOREIGN:
        dibs__cell_page_add(l->page, &foreign);
        break;
    case DIBS__ENTRIES_NONE:
        break;
    }
}

/* False: the page or the prefix ends here. What is no escaped key is none of ours. */
static bool add_stretch(listing *l, const dibs__entries_blob *blobs, size_t count, int64_t clock)
{
    const dibs__env *env = l->entries->base.env;
    int64_t wall = env->wall(env->ctx);
    size_t prefix = strlen(l->prefix);
    char key[DIBS__CELL_KEY_SIZE];

    for (size_t i = 0; i < count; i++) {
        if (strncmp(blobs[i].key, l->prefix, prefix) != 0)
            return false;
        if (!dibs__entries_unescape_long(blobs[i].key, key, sizeof key - 1))
            continue;
        if (l->looked == l->range->limit) {
            l->page->more = true;
            return false;
        }
        l->looked++;
        add_one(l, &blobs[i], key, (dibs__time){wall, wall}, clock);
        strcpy(l->page->reached, key);
    }
    return true;
}

static size_t next_stretch(size_t stretch, const dibs__entries_blob *blobs, size_t count)
{
    size_t bytes = 0;

    for (size_t i = 0; i < count; i++)
        bytes += blobs[i].size;
    if (bytes > MUCH)
        return stretch > FIRST_STRETCH / 2 ? stretch / 2 : stretch;
    return stretch < MAX_STRETCH ? 2 * stretch : stretch;
}

/* One stretch after `at`, which moves on. `*on`: there may be more. */
static dibs_status list_stretch(listing *l, char *at, size_t *stretch, bool *on, dibs_error *err)
{
    const struct dibs__entries_cells *cells = l->entries->backend->adapter->cells;
    dibs__entries_blob *blobs = NULL;
    size_t count = 0;
    int64_t clock = 0;
    dibs_status status =
        cells->walk(l->entries->backend, "%c", at, *stretch, l->until, &blobs, &count, err);

    *on = false;
    if (status == DIBS_OK && count > 0)
        status = look_for_life(l, at, blobs, count, &clock, err);
    if (status == DIBS_OK && count > 0) {
        *on = add_stretch(l, blobs, count, clock);
        strcpy(at, blobs[count - 1].key);
        *stretch = next_stretch(*stretch, blobs, count);
    }
    dibs__entries_blobs_free(blobs, count);
    return status;
}

/* Just before the first key that begins with `prefix`: escaped keys have no byte as high as the last. */
static void before(const char *prefix, char *out)
{
    size_t n = strlen(prefix);

    memcpy(out, prefix, n);
    out[n - 1]--;
    strcpy(out + n, "\x7f");
}

dibs_status dibs__entries_cell_list(dibs__engine *e, const dibs__cell_range *range,
                                    dibs__deadline until, dibs__cell_page *out, dibs_error *err)
{
    listing l = {.entries = dibs__entries_of(e), .range = range, .until = until, .page = out};
    char at[DIBS__ENTRIES_CELL_KEY_SIZE], after[DIBS__ENTRIES_CELL_KEY_SIZE];
    dibs__deadline enough = until - (until - dibs__now(e->env)) / 2;
    size_t stretch = FIRST_STRETCH;
    dibs_status status = DIBS_OK;

    dibs__entries_escape(range->prefix, l.prefix);
    dibs__entries_escape(range->after, after);
    before(l.prefix, at);
    if (strcmp(after, at) > 0)
        strcpy(at, after);
    for (bool on = true; on && status == DIBS_OK;) {
        status = list_stretch(&l, at, &stretch, &on, err);
        if (on && l.looked > 0 && dibs__now(e->env) >= enough) {
            out->more = true;
            on = false;
        }
    }
    return status;
}
