/* Cells in memory; see the header. One table has the cells by key, one the requests of counters by
 * key and request. */
#define _GNU_SOURCE
#include "engines/memory/cells.h"

#include "core/table.h"

#include <stdlib.h>
#include <string.h>

typedef struct cell {
    dibs__node by_key;
    dibs__cell is;
    char key[];
} cell;

typedef struct request {
    dibs__node by_name;
    int64_t number;
    int64_t expires;
    const char *name; /* in `key`, behind it */
    char key[];
} request;

struct dibs__cells {
    dibs__table cells, requests;
    size_t sweep;
};

/* The `ctx` of the store: one cell for the time of one command, with what it may need. */
typedef struct cursor {
    dibs__cells *all;
    const char *key;
    cell *at;           /* NULL: there is none */
    cell *fresh;        /* for a new one */
    void *copy;         /* of the command's data */
    request *remembers; /* for a new request */
} cursor;

/* ---- Finding --------------------------------------------------------------------------------- */

static cell *find_cell(const dibs__cells *all, const char *key)
{
    dibs__node *n = dibs__table_first(&all->cells, dibs__hash(key));

    for (; n; n = dibs__table_next(n)) {
        cell *c = DIBS__FROM(cell, by_key, n);
        if (strcmp(c->key, key) == 0)
            return c;
    }
    return NULL;
}

static request *find_request(const dibs__cells *all, const char *key, const char *name)
{
    dibs__node *n = dibs__table_first(&all->requests, dibs__hash_pair(key, name));

    for (; n; n = dibs__table_next(n)) {
        request *r = DIBS__FROM(request, by_name, n);
        if (strcmp(r->key, key) == 0 && strcmp(r->name, name) == 0)
            return r;
    }
    return NULL;
}

static void free_cell(cell *c)
{
    if (c)
        free((void *)(uintptr_t)c->is.data);
    free(c);
}

/* ---- The store ------------------------------------------------------------------------------- */

static int load(void *ctx, dibs__cell *out)
{
    cursor *c = ctx;

    if (c->at)
        *out = c->at->is;
    return c->at != NULL;
}

/* The value is the cell's own already (a floor was raised), the command's, or none. */
static int put(void *ctx, const dibs__cell *new)
{
    cursor *c = ctx;
    const void *old;

    if (!c->at) {
        c->at = c->fresh;
        c->fresh = NULL;
        dibs__table_add(&c->all->cells, &c->at->by_key, dibs__hash(c->key));
    }
    old = c->at->is.data;
    c->at->is = *new;
    if (new->data == old && old)
        return 0;
    free((void *)(uintptr_t)old);
    c->at->is.data = new->data ? c->copy : NULL;
    if (new->data)
        c->copy = NULL;
    return 0;
}

static int drop(void *ctx)
{
    cursor *c = ctx;

    dibs__table_remove(&c->all->cells, &c->at->by_key);
    free_cell(c->at);
    c->at = NULL;
    return 0;
}

static int request_find(void *ctx, const char *name, int64_t now, int64_t *number)
{
    cursor *c = ctx;
    const request *r = find_request(c->all, c->key, name);

    if (!r || r->expires <= now)
        return 0;
    *number = r->number;
    return 1;
}

static int request_put(void *ctx, const char *name, int64_t number, int64_t expires)
{
    cursor *c = ctx;
    request *r = find_request(c->all, c->key, name);

    if (!r) {
        r = c->remembers;
        c->remembers = NULL;
        dibs__table_add(&c->all->requests, &r->by_name, dibs__hash_pair(c->key, name));
    }
    r->number = number;
    r->expires = expires;
    return 0;
}

static const dibs__cell_store store = {load, put, drop, request_find, request_put};

/* ---- One command ----------------------------------------------------------------------------- */

static cell *new_cell(const char *key)
{
    cell *c = calloc(1, sizeof *c + strlen(key) + 1);

    if (c)
        strcpy(c->key, key);
    return c;
}

static request *new_request(const char *key, const char *name)
{
    size_t size = strlen(key) + 1;
    request *r = calloc(1, sizeof *r + size + strlen(name) + 1);

    if (!r)
        return NULL;
    memcpy(r->key, key, size);
    r->name = strcpy(r->key + size, name);
    return r;
}

static bool begin(cursor *c, const dibs__cell_command *command)
{
    if (command->op == DIBS__CELL_READ)
        return true;
    if (!c->at && (!dibs__table_reserve(&c->all->cells) || !(c->fresh = new_cell(c->key))))
        return false;
    if (command->op == DIBS__CELL_SWAP) {
        c->copy = malloc(command->size + 1);
        if (!c->copy)
            return false;
        if (command->size)
            memcpy(c->copy, command->data, command->size);
    }
    return !command->request || (dibs__table_reserve(&c->all->requests) &&
                                 (c->remembers = new_request(c->key, command->request)));
}

static void end(cursor *c)
{
    free(c->fresh);
    free(c->copy);
    free(c->remembers);
}

/* A slot of each table at a time: nothing stays for ever, and no command pays for it. */
static void sweep(dibs__cells *all, dibs__time now)
{
    size_t at = all->sweep++;

    if (all->cells.size) {
        for (dibs__node *n = all->cells.slot[at & (all->cells.size - 1)], *next; n; n = next) {
            cell *c = DIBS__FROM(cell, by_key, n);
            next = n->next;
            if (dibs__cell_may_drop(&c->is, now)) {
                dibs__table_remove(&all->cells, n);
                free_cell(c);
            }
        }
    }
    if (all->requests.size) {
        for (dibs__node *n = all->requests.slot[at & (all->requests.size - 1)], *next; n;
             n = next) {
            request *r = DIBS__FROM(request, by_name, n);
            next = n->next;
            if (r->expires <= now.lease) {
                dibs__table_remove(&all->requests, n);
                free(r);
            }
        }
    }
}

int dibs__cells_run(dibs__cells *cells, const char *key, dibs__time now,
                    const dibs__cell_command *command, dibs__cell_answer *out)
{
    cursor c = {.all = cells, .key = key};
    int failed = -1;

    sweep(cells, now);
    c.at = find_cell(cells, key);
    if (begin(&c, command))
        failed = dibs__cell_apply(&store, &c, now, command, out);
    end(&c);
    return failed;
}

uint64_t dibs__cells_version(const dibs__cells *cells, const char *key, dibs__time now)
{
    const cell *c = find_cell(cells, key);

    return c && !c->is.empty && c->is.expires > now.lease ? c->is.version : 0;
}

size_t dibs__cells_count(const dibs__cells *cells)
{
    return cells->cells.count + cells->requests.count;
}

/* ---- Listing --------------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b)
{
    return strcmp((*(cell *const *)a)->key, (*(cell *const *)b)->key);
}

/* Those that begin with the prefix and come after that key, into `out`; how many. */
static size_t pick(const dibs__cells *all, const dibs__cell_range *range, const cell **out)
{
    size_t count = 0, prefix = strlen(range->prefix);

    for (size_t i = 0; i < all->cells.size; i++)
        for (dibs__node *n = all->cells.slot[i]; n; n = n->next) {
            const cell *c = DIBS__FROM(cell, by_key, n);
            if (strncmp(c->key, range->prefix, prefix) == 0 && strcmp(c->key, range->after) > 0)
                out[count++] = c;
        }
    return count;
}

void dibs__cells_list(const dibs__cells *cells, const dibs__cell_range *range, dibs__time now,
                      dibs__cell_page *out)
{
    const cell **picked = malloc((cells->cells.count + 1) * sizeof *picked);
    size_t count;

    if (!picked) {
        out->failed = true;
        return;
    }
    count = pick(cells, range, picked);
    qsort(picked, count, sizeof *picked, by_key);
    out->more = count > range->limit;
    count = out->more ? range->limit : count;
    for (size_t i = 0; i < count; i++)
        dibs__cell_page_put(out, picked[i]->key, &picked[i]->is, now, false, range->head);
    if (out->more)
        strcpy(out->reached, picked[count - 1]->key);
    free(picked);
}

/* ---- All of them ----------------------------------------------------------------------------- */

dibs__cells *dibs__cells_new(void)
{
    return calloc(1, sizeof(dibs__cells));
}

void dibs__cells_free(dibs__cells *cells)
{
    if (!cells)
        return;
    for (size_t i = 0; i < cells->cells.size; i++) {
        for (dibs__node *n = cells->cells.slot[i], *next; n; n = next) {
            next = n->next;
            free_cell(DIBS__FROM(cell, by_key, n));
        }
    }
    for (size_t i = 0; i < cells->requests.size; i++) {
        for (dibs__node *n = cells->requests.slot[i], *next; n; n = next) {
            next = n->next;
            free(DIBS__FROM(request, by_name, n));
        }
    }
    dibs__table_fini(&cells->cells);
    dibs__table_fini(&cells->requests);
    free(cells);
}
