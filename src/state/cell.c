/* The cell's machine: load, decide, put. One command sees one cell; a counter's request is the only
 * thing beside it. */
#include "state/cell.h"

#include <string.h>

#define DAY ((int64_t)24 * 3600 * 1000000)

typedef struct decision {
    const dibs__cell_store *store;
    void *ctx;
    dibs__time now;
    const dibs__cell_command *command;
    dibs__cell_answer *out;
    dibs__cell cell; /* what is stored, or all zero */
    bool there;      /* it has a value that has not ended */
    bool stored;     /* there is something to drop */
} decision;

/* ---- Small things ---------------------------------------------------------------------------- */

bool dibs__cell_shows_data(dibs__cell_op op, dibs__cell_verdict verdict)
{
    if (verdict == DIBS__CELL_CONFLICT)
        return true;
    return verdict == DIBS__CELL_DONE && (op == DIBS__CELL_READ || op == DIBS__CELL_PASS);
}

/* What comes after it in its place gets a higher version. */
static bool is_behind(const dibs__cell *cell, dibs__time now)
{
    return cell->counted ? cell->version <= cell->counted : cell->version < (uint64_t)now.wall;
}

bool dibs__cell_may_drop(const dibs__cell *cell, dibs__time now)
{
    if (!cell->empty && cell->expires > now.lease)
        return false;
    if (!is_behind(cell, now))
        return false;
    return cell->floor == 0 ||
           ((uint64_t)(now.wall - DAY) > cell->floor && now.lease - DAY > cell->written);
}

uint64_t dibs__cell_floor(const dibs__cell_command *c)
{
    return c->fence && c->floor ? c->floor : c->fence;
}

static uint64_t next_version(const decision *w)
{
    uint64_t wall = w->now.wall > 0 ? (uint64_t)w->now.wall : 0;

    return wall > w->cell.version ? wall : w->cell.version + 1;
}

static int64_t end_of(int64_t now, int64_t keep)
{
    return keep > INT64_MAX - now ? INT64_MAX : now + keep;
}

static bool is_counter_op(dibs__cell_op op)
{
    return op == DIBS__CELL_SET || op == DIBS__CELL_ADD || op == DIBS__CELL_TAKE;
}

/* ---- Answers --------------------------------------------------------------------------------- */

static int say(decision *w, dibs__cell_verdict verdict)
{
    w->out->verdict = verdict;
    w->out->cell = w->cell;
    if (!w->there) {
        w->out->cell.version = 0;
        w->out->cell.number = 0;
        w->out->cell.data = NULL;
        w->out->cell.size = 0;
    }
    return 0;
}

static int put(decision *w)
{
    return w->store->put(w->ctx, &w->cell);
}

/* The cell has the command's mark now. */
static void mark(decision *w)
{
    size_t size = strlen(w->command->stamp);

    if (size >= sizeof w->cell.stamp)
        size = sizeof w->cell.stamp - 1;
    memset(w->cell.stamp, 0, sizeof w->cell.stamp);
    memcpy(w->cell.stamp, w->command->stamp, size);
    w->cell.version = next_version(w);
    w->cell.written = w->now.lease;
}

/* A lost reply was asked for again: the cell has had this very command. */
static bool had_it(const decision *w)
{
    const char *stamp = w->command->stamp;

    return stamp && stamp[0] && strcmp(w->cell.stamp, stamp) == 0;
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* What stands in the way of SWAP and DELETE; DONE: nothing. */
static dibs__cell_verdict obstacle(const decision *w)
{
    const dibs__cell_command *c = w->command;

    if (c->fence != 0 && c->fence < w->cell.floor)
        return DIBS__CELL_FENCED;
    if (!w->there)
        return c->version == 0 && c->op == DIBS__CELL_SWAP ? DIBS__CELL_DONE : DIBS__CELL_ABSENT;
    if (c->version != DIBS__CELL_ANY && c->version != w->cell.version)
        return DIBS__CELL_CONFLICT;
    return DIBS__CELL_DONE;
}

/* A floor is kept for a day from when it was raised. False: it was as high before. */
static bool raise_floor(decision *w)
{
    uint64_t floor = dibs__cell_floor(w->command);

    if (floor <= w->cell.floor)
        return false;
    w->cell.floor = floor;
    w->cell.written = w->now.lease;
    return true;
}

static int swap(decision *w)
{
    const dibs__cell_command *c = w->command;
    dibs__cell_verdict verdict = obstacle(w);

    if (verdict != DIBS__CELL_DONE)
        return say(w, verdict);
    mark(w);
    raise_floor(w);
    w->there = true;
    w->cell.empty = false;
    w->cell.expires = c->keep > 0 ? end_of(w->now.lease, c->keep) : INT64_MAX;
    w->cell.number = 0;
    w->cell.data = c->data;
    w->cell.size = c->size;
    return put(w) < 0 ? -1 : say(w, DIBS__CELL_DONE);
}

static void empty(decision *w)
{
    w->there = false;
    w->cell.empty = true;
    w->cell.expires = INT64_MAX;
    w->cell.data = NULL;
    w->cell.size = 0;
    w->cell.number = 0;
}

static int delete (decision *w)
{
    dibs__cell_verdict verdict = obstacle(w);

    if (verdict != DIBS__CELL_DONE)
        return say(w, verdict);
    empty(w);
    raise_floor(w);
    if (dibs__cell_may_drop(&w->cell, w->now)) {
        if (w->store->drop(w->ctx) < 0)
            return -1;
    } else {
        mark(w);
        if (put(w) < 0)
            return -1;
    }
    return say(w, DIBS__CELL_DONE);
}

static int pass(decision *w)
{
    const dibs__cell_command *c = w->command;

    if (c->fence < w->cell.floor)
        return say(w, DIBS__CELL_FENCED);
    if (raise_floor(w)) {
        if (!w->there)
            empty(w);
        if (put(w) < 0)
            return -1;
    }
    return say(w, w->there ? DIBS__CELL_DONE : DIBS__CELL_ABSENT);
}

/* ---- Counters -------------------------------------------------------------------------------- */

/* What the counter would be; DONE: `*number` is that. */
static dibs__cell_verdict count(const decision *w, int64_t *number)
{
    const dibs__cell_command *c = w->command;
    int64_t had = w->there ? w->cell.number : 0;
    int64_t change = c->op == DIBS__CELL_TAKE ? -c->number : c->number;

    if (c->op == DIBS__CELL_TAKE && !w->there)
        return DIBS__CELL_ABSENT;
    if (c->op == DIBS__CELL_SET)
        *number = c->number;
    else if (change > 0 && had > INT64_MAX - change)
        return DIBS__CELL_OVERFLOW;
    else if (change < 0 && had + change < 0)
        return DIBS__CELL_TOO_FEW;
    else
        *number = had + change;
    return DIBS__CELL_DONE;
}

static int counter(decision *w)
{
    const dibs__cell_command *c = w->command;
    dibs__cell_verdict verdict;
    int64_t number = 0;
    int found = c->request ? w->store->request_find(w->ctx, c->request, w->now.lease, &number) : 0;

    if (found < 0)
        return -1;
    if (found > 0) {
        say(w, w->there && had_it(w) ? DIBS__CELL_DONE : DIBS__CELL_ALREADY);
        w->out->cell.number = number;
        return 0;
    }
    if (w->there && had_it(w))
        return say(w, DIBS__CELL_DONE);
    verdict = count(w, &number);
    if (verdict != DIBS__CELL_DONE)
        return say(w, verdict);
    mark(w);
    if (!w->there || c->keep > 0)
        w->cell.expires = c->keep > 0 ? end_of(w->now.lease, c->keep) : INT64_MAX;
    w->there = true;
    w->cell.empty = false;
    w->cell.counter = true;
    w->cell.number = number;
    w->cell.data = NULL;
    w->cell.size = 0;
    if (put(w) < 0)
        return -1;
    if (c->request && w->store->request_put(w->ctx, c->request, number,
                                            end_of(w->now.lease, c->request_keep)) < 0)
        return -1;
    return say(w, DIBS__CELL_DONE);
}

/* ---- Commands -------------------------------------------------------------------------------- */

static int run(decision *w)
{
    dibs__cell_op op = w->command->op;

    if (w->there && op != DIBS__CELL_READ && w->cell.counter != is_counter_op(op))
        return say(w, DIBS__CELL_KIND);
    switch (op) {
    case DIBS__CELL_READ:
        return say(w, w->there ? DIBS__CELL_DONE : DIBS__CELL_ABSENT);
    case DIBS__CELL_SWAP:
        return w->there && had_it(w) ? say(w, DIBS__CELL_DONE) : swap(w);
    case DIBS__CELL_DELETE:
        return w->cell.empty && had_it(w) ? say(w, DIBS__CELL_DONE) : delete (w);
    case DIBS__CELL_PASS:
        return pass(w);
    case DIBS__CELL_SET:
    case DIBS__CELL_ADD:
    case DIBS__CELL_TAKE:
        return counter(w);
    }
    return -1;
}

int dibs__cell_apply(const dibs__cell_store *store, void *ctx, dibs__time now,
                     const dibs__cell_command *command, dibs__cell_answer *out)
{
    decision w = {.store = store, .ctx = ctx, .now = now, .command = command, .out = out};
    int found;

    memset(out, 0, sizeof *out);
    found = store->load(ctx, &w.cell);
    if (found < 0)
        return -1;
    w.stored = found > 0;
    if (!w.stored)
        memset(&w.cell, 0, sizeof w.cell);
    w.there = w.stored && !w.cell.empty && w.cell.expires > now.lease;
    if (!w.there)
        w.cell.counter = is_counter_op(command->op);
    return run(&w);
}
