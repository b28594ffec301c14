/* Watching a cell: the watcher marks it, so that the change is followed by a NOTIFY; cells that nobody watches cost
 * nothing. The notice arrives on the connection that also brings the locks' wake-ups.
 *
 * Without that connection (a pooler, no connection left) the timer of listen.c has everybody look. */
#define _GNU_SOURCE
#include "engines/postgresql/postgresql.h"

#include <inttypes.h>
#include <stdio.h>

dibs_status dibs__pg_watch(dibs__engine *base, const char *key, uint64_t version,
                           dibs__deadline until, void **out, dibs_error *err)
{
    dibs__pg *e = (dibs__pg *)base;
    bool same = false;
    dibs_status status;

    *out = NULL;
    dibs__pg_listen_cells(e, until);
    status = dibs__sql_cell_mark(&e->sql, key, version, until, &same, err);
    if (status == DIBS_OK && !same)
        base->sink->changed(base->sink, dibs__hash(key));
    return status;
}
