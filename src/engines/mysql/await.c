/* Watching a cell.
 *
 * It goes well: the watcher leaves a mark in the table `wake` and sees, in the same transaction, that the cell has not
 * changed yet. Whoever changes it turns the mark around and kills the query of the handle's sleeping connection, as
 * for a lock; the keeper reads the row there. So there is one mark for all of a handle who wait for the same.
 *
 * A wake-up gets lost (the one who changed the cell died before it was told; the accounts differ; there is no
 * connection to sleep on): the core looks by itself, within a second.
 *
 * Marks that nobody turned around go when the handle is closed, or after an hour (CELL_REAP). */
#define _GNU_SOURCE
#include "engines/mysql/mysql.h"

#include <inttypes.h>
#include <stdio.h>

/* So little is not worth a mark, and an exchange that comes too late costs its connection. */
#define SHORT (50 * DIBS__MS)

void dibs__my_cell_key(const char *name, uint64_t version, char out[DIBS__WAKE_SIZE])
{
    char hash[DIBS__SQL_CELL_TEXT_SIZE];

    dibs__sql_cell_text(name, hash);
    snprintf(out, DIBS__WAKE_SIZE, DIBS__MY_CELL "%s:%" PRIu64, hash, version);
}

dibs_status dibs__my_watch(dibs__engine *base, const char *key, uint64_t version,
                           dibs__deadline until, void **out, dibs_error *err)
{
    dibs__my *e = (dibs__my *)base;
    bool same = true;
    dibs_status status = DIBS_OK;

    *out = NULL;
    if (until - dibs__now(base->env) > SHORT) {
        atomic_store(&e->awaited, true);
        dibs__my_wake_listen(&e->base, until);
        status = dibs__sql_cell_mark(&e->base, key, version, until, &same, err);
    }
    if (status == DIBS_OK && !same)
        base->sink->changed(base->sink, dibs__hash(key));
    return status;
}
