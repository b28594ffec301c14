/* Waiting for another to change a cell.
 *
 * The threads of a handle that wait for one cell share one watch. The first of them has the engine set it up;
 * the engine looks behind it, so that nothing is missed in between. The others find it standing and ask nothing.
 * A watch serves for one change: the sink is told, all of its waiters go and look, and who comes later makes the
 * next. Whoever leaves last ends it, also when nothing has changed.
 *
 *   set up → stands (the cell had `version`) → over: changed, could not be set up, or may have missed something
 *
 * Who waits is asked for by version: one that has seen a newer one than the watch began with knows that its change
 * is on the way to us, and ends it; one that has seen an older one has something to look at already. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/handle.h"
#include "core/thread.h"

#include <stdlib.h>
#include <string.h>

typedef enum phase { SETTING_UP, STANDS, OVER } phase;

typedef struct watch {
    dibs__node by_cell; /* until it is over */
    phase phase;
    size_t waiters;
    uint64_t version;
    dibs_status status;
    dibs_error err;
    void *engines; /* the engine's own */
    pthread_cond_t cond;
    char key[];
} watch;

/* ---- With the mutex -------------------------------------------------------------------------- */

static watch *find(const dibs *d, const char *key)
{
    dibs__node *n = dibs__table_first(&d->watches, dibs__hash(key));

    while (n && strcmp(DIBS__FROM(watch, by_cell, n)->key, key) != 0)
        n = dibs__table_next(n);
    return n ? DIBS__FROM(watch, by_cell, n) : NULL;
}

/* NULL: out of memory. */
static watch *add(dibs *d, const char *key, uint64_t version)
{
    size_t size = strlen(key) + 1;
    watch *w = dibs__table_reserve(&d->watches) ? calloc(1, sizeof *w + size) : NULL;

    if (!w)
        return NULL;
    memcpy(w->key, key, size);
    w->version = version;
    dibs__cond_init(&w->cond);
    dibs__table_add(&d->watches, &w->by_cell, dibs__hash(key));
    return w;
}

/* Whoever waits goes and looks; who comes now finds nothing. */
static void end(dibs *d, watch *w)
{
    if (w->phase == OVER)
        return;
    w->phase = OVER;
    dibs__table_remove(&d->watches, &w->by_cell);
    pthread_cond_broadcast(&w->cond);
}

void dibs__watches_end(dibs *d, uint64_t cell)
{
    for (dibs__node *n = dibs__table_first(&d->watches, cell), *next; n; n = next) {
        next = dibs__table_next(n);
        end(d, DIBS__FROM(watch, by_cell, n));
    }
}

void dibs__watches_end_all(dibs *d)
{
    for (size_t i = 0; i < d->watches.size; i++)
        while (d->watches.slot[i])
            end(d, DIBS__FROM(watch, by_cell, d->watches.slot[i]));
}

/* ---- One that waits -------------------------------------------------------------------------- */

static void set_up(dibs *d, watch *w, dibs__deadline until)
{
    dibs_error err = {0};
    void *engines = NULL;
    dibs_status status;

    pthread_mutex_unlock(&d->mutex);
    status = d->class->watch(d->engine, w->key, w->version, until, &engines, &err);
    pthread_mutex_lock(&d->mutex);
    w->engines = engines;
    w->status = status;
    w->err = err;
    if (status != DIBS_OK)
        end(d, w);
    if (w->phase == SETTING_UP)
        w->phase = STANDS;
    pthread_cond_broadcast(&w->cond);
}

static void sit(dibs *d, watch *w, uint64_t version, dibs__deadline until)
{
    if (w->phase == STANDS && w->version < version)
        end(d, w);
    while (w->phase != OVER && w->version == version && dibs__now(d->env) < until)
        dibs__cond_sleep(&w->cond, &d->mutex, d->env, until);
}

/* Gives the mutex away while the engine forgets the watch. */
static void leave(dibs *d, watch *w)
{
    if (--w->waiters > 0)
        return;
    end(d, w);
    if (w->engines) {
        pthread_mutex_unlock(&d->mutex);
        d->class->unwatch(d->engine, w->engines);
        pthread_mutex_lock(&d->mutex);
    }
    pthread_cond_destroy(&w->cond);
    free(w);
}

dibs_status dibs__cell_wait(dibs *d, const char *key, uint64_t version, dibs__deadline until,
                            dibs_error *err)
{
    watch *w = find(d, key);
    bool first = !w;
    dibs_status status;

    if (!d->class->watch)
        return DIBS_UNSUPPORTED;
    if (first && dibs__keeper_start(d)) /* it hears of the change */
        w = add(d, key, version);
    if (!w)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory or threads");
    w->waiters++;
    d->waits++;
    if (first)
        set_up(d, w, until);
    sit(d, w, version, until);
    status = w->status;
    if (status != DIBS_OK)
        dibs__fail(err, status, "%s", w->err.message);
    leave(d, w);
    d->waits--;
    return status;
}
