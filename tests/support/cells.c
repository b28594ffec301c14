/* Random commands on a cell; see the header. */
#define _GNU_SOURCE
#include "support/cells.h"

#include "support/env.h"
#include "support/test.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- The plain cell -------------------------------------------------------------------------- */

static int load(void *ctx, dibs__cell *out)
{
    tiny_cell *t = ctx;

    *out = t->cell;
    return t->exists;
}

static int put(void *ctx, const dibs__cell *cell)
{
    tiny_cell *t = ctx;

    assert_true(cell->size <= sizeof t->data);
    if (cell->size && cell->data != t->data)
        memmove(t->data, cell->data, cell->size);
    t->cell = *cell;
    t->cell.data = t->data;
    t->exists = true;
    return 0;
}

static int drop(void *ctx)
{
    ((tiny_cell *)ctx)->exists = false;
    return 0;
}

static int number_of(const char *request)
{
    return request[1] - '0';
}

static int request_find(void *ctx, const char *request, int64_t now, int64_t *number)
{
    tiny_cell *t = ctx;
    int i = number_of(request);

    *number = t->request[i].number;
    return t->request[i].exists && t->request[i].expires > now;
}

static int request_put(void *ctx, const char *request, int64_t number, int64_t expires)
{
    tiny_cell *t = ctx;
    int i = number_of(request);

    t->request[i].exists = true;
    t->request[i].number = number;
    t->request[i].expires = expires;
    return 0;
}

void tiny_cell_run(tiny_cell *t, dibs__time now, const dibs__cell_command *command,
                   dibs__cell_answer *out)
{
    static const dibs__cell_store store = {load, put, drop, request_find, request_put};

    assert_int_equal(dibs__cell_apply(&store, t, now, command, out), 0);
}

/* ---- Commands -------------------------------------------------------------------------------- */

static uint64_t chance(cell_author *a, uint64_t below)
{
    if (!a->drawn)
        return sim_random(&a->seed) % below;
    return a->left ? a->left--, *a->drawn++ % below : 0;
}

static uint64_t choose_version(cell_author *a, const tiny_cell *t)
{
    uint64_t now = t->exists ? t->cell.version : 0;

    switch (chance(a, 6)) {
    case 0:
        return 0;
    case 1:
        return DIBS__CELL_ANY;
    case 2:
        return a->older;
    default:
        return now;
    }
}

/* Around the floor, and sometimes with more bits than a double has. */
static uint64_t choose_fence(cell_author *a, const tiny_cell *t)
{
    uint64_t floor = t->exists ? t->cell.floor : 0;
    uint64_t high = chance(a, 12) == 0 ? (uint64_t)1 << (40 + chance(a, 22)) : 0;

    if (floor > (uint64_t)1 << 62)
        high = 0;
    return floor + high + chance(a, 4) - (floor > 2 ? 1 + chance(a, 2) : 0);
}

static int64_t choose_number(cell_author *a, dibs__cell_op op)
{
    static const int64_t large[] = {INT64_MAX,        INT64_MAX - 1,
                                    (int64_t)1 << 53, ((int64_t)1 << 53) + 1,
                                    (int64_t)1 << 32, UINT32_MAX};
    int64_t n = chance(a, 3) == 0 ? large[chance(a, 6)] : (int64_t)chance(a, 20);

    if (op == DIBS__CELL_TAKE && n == 0)
        n = 1;
    return op == DIBS__CELL_ADD && chance(a, 2) ? -n : n;
}

static void fill_counter(cell_author *a, cell_order *o)
{
    dibs__cell_command *c = &o->command;

    c->op = (dibs__cell_op)(DIBS__CELL_SET + chance(a, 3));
    if (c->op == DIBS__CELL_SET && chance(a, 2))
        c->op = DIBS__CELL_TAKE;
    c->number = choose_number(a, c->op);
    if (chance(a, 2) == 0) {
        snprintf(o->request, sizeof o->request, "r%d", (int)chance(a, CELL_REQUESTS));
        c->request = o->request;
        c->request_keep = chance(a, 3) == 0 ? INT64_MAX : a->moment;
    }
}

static void fill_value(cell_author *a, const tiny_cell *t, cell_order *o)
{
    dibs__cell_command *c = &o->command;

    c->version = choose_version(a, t);
    c->op = chance(a, 4) == 0 ? DIBS__CELL_DELETE : DIBS__CELL_SWAP;
    if (chance(a, 12) == 0)
        c->op = DIBS__CELL_PASS;
    if (c->op == DIBS__CELL_PASS || chance(a, 5) == 0)
        c->fence = choose_fence(a, t);
    if (c->op == DIBS__CELL_PASS && c->fence == 0)
        c->fence = 1;
    if (c->fence && chance(a, 4) != 0) /* else 0: the fence itself */
        c->floor = c->fence - chance(a, c->fence < 3 ? 1 : 3);
    if (c->op == DIBS__CELL_SWAP) {
        c->size = chance(a, CELL_DATA);
        for (size_t i = 0; i < c->size; i++)
            o->data[i] = (char)chance(a, 256);
        c->data = o->data;
    }
}

/* The text of a copy is its own. */
static void point_home(cell_order *o)
{
    o->command.stamp = o->stamp;
    if (o->command.data)
        o->command.data = o->data;
    if (o->command.request)
        o->command.request = o->request;
}

void cell_author_next(cell_author *a, const tiny_cell *t, cell_order *out, bool *again)
{
    bool counts = chance(a, 15) == 0 ? !a->counts : a->counts;

    *again = a->made > 0 && chance(a, 10) == 0;
    if (*again) {
        *out = a->last;
        point_home(out);
        return;
    }
    memset(out, 0, sizeof *out);
    snprintf(out->stamp, sizeof out->stamp, "0123456789abcdef-%" PRIx64, ++a->made);
    if (chance(a, 12) == 0)
        out->command.op = DIBS__CELL_READ;
    else if (counts)
        fill_counter(a, out);
    else
        fill_value(a, t, out);
    out->command.keep = chance(a, 4) == 0 ? a->moment : 0;
    if (t->exists && chance(a, 5) == 0)
        a->older = t->cell.version;
    point_home(out);
    a->last = *out;
}

void cell_describe(const dibs__cell_command *c, char *out, size_t size)
{
    snprintf(out, size,
             "op %d version %" PRIu64 " number %" PRId64 " keep %" PRId64 " fence %" PRIu64
             " floor %" PRIu64 " size %zu stamp %s request %s for %" PRId64,
             c->op, c->version, c->number, c->keep, c->fence, c->floor, c->size, c->stamp,
             c->request ? c->request : "-", c->request_keep);
}
