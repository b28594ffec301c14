/* Waiting for another to change a cell.
 *
 * The threads of a handle that wait for one cell share one watch. The first of them sets it, together
 * with a look behind it, so that nothing is missed in between; the others find it standing and ask
 * nothing. A watch serves for one change: then all of its waiters go and look, and who comes later
 * makes the next. Whoever leaves last ends it, also when nothing has changed.
 *
 *   set up → stands (the cell has `version`) → over: changed, could not be set, or missed something */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/thread.h"
#include "families/entries/inner.h"

#include <stdlib.h>
#include <string.h>

typedef enum phase { SETTING_UP, STANDS, OVER } phase;

typedef struct await {
    dibs__node by_key; /* until it is over */
    phase phase;
    size_t waiters;
    uint64_t version; /* the cell's, when the watch began */
    dibs_status status;
    dibs_error err;
    void *watch; /* the adapter's */
    pthread_cond_t cond;
    dibs__line_blob blob;
} await;

/* ---- With the mutex -------------------------------------------------------------------------- */

static await *find(const dibs__line *line, const char *key)
{
    dibs__node *n = dibs__table_first(&line->awaits, dibs__hash(key));

    while (n && strcmp(DIBS__FROM(await, by_key, n)->blob.key, key) != 0)
        n = dibs__table_next(n);
    return n ? DIBS__FROM(await, by_key, n) : NULL;
}

/* Whoever waits goes and looks; who comes now finds nothing. */
static void end(dibs__line *line, await *a)
{
    if (a->phase == OVER)
        return;
    a->phase = OVER;
    dibs__table_remove(&line->awaits, &a->by_key);
    pthread_cond_broadcast(&a->cond);
}

/* NULL: out of memory. */
static await *add(dibs__line *line, const dibs__line_blob *blob)
{
    await *a = dibs__table_reserve(&line->awaits) ? calloc(1, sizeof *a) : NULL;

    if (!a)
        return NULL;
    a->blob = *blob;
    dibs__cond_init(&a->cond);
    dibs__table_add(&line->awaits, &a->by_key, dibs__hash(a->blob.key));
    return a;
}

void dibs__line_await_end_all(dibs__line *line)
{
    for (size_t i = 0; i < line->awaits.size; i++)
        while (line->awaits.slot[i])
            end(line, DIBS__FROM(await, by_key, line->awaits.slot[i]));
}

/* ---- One that waits -------------------------------------------------------------------------- */

/* Leaves the mutex for as long as it takes. */
static void set_up(dibs__line *line, await *a, dibs__deadline until)
{
    dibs__line_blob blob = a->blob;
    dibs_error err = {0};
    void *watch = NULL;
    uint64_t version;
    dibs_status status;

    pthread_mutex_unlock(&line->mutex);
    status = line->side->adapter->cells->watch(line->side, &blob, &watch, until, &err);
    version = status == DIBS_OK ? dibs__line_cell_version(&blob) : 0;
    free(blob.data);
    pthread_mutex_lock(&line->mutex);
    a->watch = watch;
    a->version = version;
    a->status = status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
    a->err = err;
    if (status != DIBS_OK || version == 0) /* what is not there is not waited for */
        end(line, a);
    if (a->phase == SETTING_UP)
        a->phase = STANDS;
    pthread_cond_broadcast(&a->cond);
}

static dibs_status sit(dibs__line *line, await *a, bool first, uint64_t version,
                       dibs__deadline until, dibs_error *err)
{
    if (first)
        set_up(line, a, until);
    while (a->phase == SETTING_UP && dibs__now(line->base.env) < until)
        dibs__line_sleep(line, &a->cond, until);
    if (a->phase == STANDS && a->version < version)
        end(line, a); /* its change is on the way to us, and has been seen already */
    while (a->phase == STANDS && a->version == version && dibs__now(line->base.env) < until)
        dibs__line_sleep(line, &a->cond, until);
    if (a->phase == OVER && a->status != DIBS_OK)
        return dibs__fail_as(err, a->status, &a->err);
    return DIBS_OK;
}

/* With the mutex; leaves it. */
static void leave(dibs__line *line, await *a)
{
    bool last = --a->waiters == 0;

    if (last)
        end(line, a);
    pthread_mutex_unlock(&line->mutex);
    if (!last)
        return;
    if (a->watch)
        line->side->adapter->cells->unwatch(line->side, a->watch);
    pthread_cond_destroy(&a->cond);
    free(a);
}

dibs_status dibs__line_cell_wait(dibs__engine *e, const char *key, uint64_t version,
                                 dibs__deadline until, dibs_error *err)
{
    dibs__line *line = dibs__line_of(e);
    dibs__line_blob blob = {0};
    dibs_status status;
    bool first;
    await *a;

    dibs__line_cell_name(&blob, key);
    pthread_mutex_lock(&line->mutex);
    a = find(line, blob.key);
    first = !a;
    if (first)
        a = add(line, &blob);
    if (!a) {
        pthread_mutex_unlock(&line->mutex);
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    }
    a->waiters++;
    status = sit(line, a, first, version, until, err);
    leave(line, a);
    return status;
}

/* ---- What the adapter tells ------------------------------------------------------------------ */

void dibs__line_cell_changed(dibs__line *line, const char *key)
{
    await *a;

    pthread_mutex_lock(&line->mutex);
    a = find(line, key);
    if (a)
        end(line, a);
    pthread_mutex_unlock(&line->mutex);
}
