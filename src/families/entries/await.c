/* Waiting for another to change a cell: the adapter's watch, with a look behind it. */
#define _GNU_SOURCE
#include "core/error.h"
#include "families/entries/inner.h"

#include <stdlib.h>

static void tell(dibs__line *line, const char *key)
{
    line->base.sink->changed(line->base.sink, dibs__hash(key));
}

dibs_status dibs__line_watch(dibs__engine *e, const char *key, uint64_t version,
                             dibs__deadline until, void **out, dibs_error *err)
{
    dibs__line *line = dibs__line_of(e);
    dibs__line_blob blob = {0};
    dibs_status status;

    *out = NULL;
    dibs__line_cell_name(&blob, key);
    status = line->side->adapter->cells->watch(line->side, &blob, out, until, err);
    if (status == DIBS_OK && dibs__line_cell_version(&blob) != version)
        tell(line, key);
    free(blob.data);
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

void dibs__line_unwatch(dibs__engine *e, void *watch)
{
    dibs__line *line = dibs__line_of(e);

    line->side->adapter->cells->unwatch(line->side, watch);
}

/* What the adapter tells. */
void dibs__line_cell_changed(dibs__line *line, const char *escaped)
{
    char key[DIBS__CELL_KEY_SIZE];

    if (dibs__line_unescape_long(escaped, key, sizeof key - 1))
        tell(line, key);
}
