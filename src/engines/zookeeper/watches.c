/* How many watches the library has.
 *
 * After a new connection the library (3.8) sets all of them anew in one request. A server hangs up on one
 * that is longer than its jute.maxbuffer, a mebibyte unless told otherwise; the next connection brings the
 * same, and the session ends with every lock of the handle. So the paths that are watched are counted, and
 * when they fill half of that, what else is to be watched is only looked at: its waiter looks again with
 * its next keep-alive, every two seconds at the latest.
 *
 * A path counts from when it is asked for. The library forgets it when it has told of a change, when there
 * was nothing to watch, and when it is closed. */
#define _GNU_SOURCE
#include "engines/zookeeper/zookeeper.h"

#include <stdlib.h>
#include <string.h>

#define MOST ((size_t)512 * 1024)

typedef struct watched {
    dibs__node by_path;
    bool stands;    /* the library has it */
    size_t pending; /* requests for it that have no answer yet */
    size_t size;    /* in that request */
    char path[];
} watched;

static watched *find(const dibs__zk *z, const char *path)
{
    dibs__node *n = dibs__table_first(&z->watches, dibs__hash(path));

    while (n && strcmp(DIBS__FROM(watched, by_path, n)->path, path) != 0)
        n = dibs__table_next(n);
    return n ? DIBS__FROM(watched, by_path, n) : NULL;
}

static void forget(dibs__zk *z, watched *w)
{
    dibs__table_remove(&z->watches, &w->by_path);
    z->watch_bytes -= w->size;
    free(w);
}

bool dibs__zk_watch_may(dibs__zk *z, const char *path)
{
    watched *w = find(z, path);
    size_t size = strlen(path) + 4;

    if (!w && (z->watch_bytes + size > MOST || !dibs__table_reserve(&z->watches) ||
               !(w = calloc(1, sizeof *w + size))))
        return false;
    if (w->size == 0) {
        strcpy(w->path, path);
        w->size = size;
        z->watch_bytes += size;
        dibs__table_add(&z->watches, &w->by_path, dibs__hash(path));
    }
    w->pending++;
    return true;
}

void dibs__zk_watch_answered(dibs__zk *z, const char *path, bool stands)
{
    watched *w = find(z, path);

    if (!w || w->pending == 0)
        return; /* the library was closed meanwhile */
    w->pending--;
    w->stands = w->stands || stands;
    if (!w->stands && w->pending == 0)
        forget(z, w);
}

void dibs__zk_watch_fired(dibs__zk *z, const char *path)
{
    watched *w = find(z, path);

    if (!w)
        return;
    w->stands = false;
    if (w->pending == 0)
        forget(z, w);
}

void dibs__zk_watches_clear(dibs__zk *z)
{
    for (size_t i = 0; i < z->watches.size; i++)
        while (z->watches.slot[i])
            forget(z, DIBS__FROM(watched, by_path, z->watches.slot[i]));
}
