/* Waiting for another to change a cell: the adapter's watch, with a look behind it. */
#define _GNU_SOURCE
#include "core/error.h"
#include "families/entries/inner.h"

#include <stdlib.h>

static void notify(dibs__entries *entries, const char *key)
{
    entries->base.sink->changed(entries->base.sink, dibs__hash(key));
}

dibs_status dibs__entries_watch(dibs__engine *e, const char *key, uint64_t version,
                                dibs__deadline until, void **out, dibs_error *err)
{
    dibs__entries *entries = dibs__entries_of(e);
    dibs__entries_blob blob = {0};
    dibs_status status;

    *out = NULL;
    dibs__entries_cell_name(&blob, key);
    status = entries->backend->adapter->cells->watch(entries->backend, &blob, out, until, err);
    if (status == DIBS_OK && dibs__entries_cell_version(&blob) != version)
        notify(entries, key);
    free(blob.data);
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

void dibs__entries_unwatch(dibs__engine *e, void *watch)
{
    dibs__entries *entries = dibs__entries_of(e);

    entries->backend->adapter->cells->unwatch(entries->backend, watch);
}

/* What the adapter tells. */
void dibs__entries_cell_changed(dibs__entries *entries, const char *escaped)
{
    char key[DIBS__CELL_KEY_SIZE];

    if (dibs__entries_unescape_long(escaped, key, sizeof key - 1))
        notify(entries, key);
}
