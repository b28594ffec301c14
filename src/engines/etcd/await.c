/* Watching a cell: the watch begins "now" (see watch.c), and once it stands, the key is read. So a
 * change is in what was read, or it is told. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/thread.h"
#include "engines/etcd/etcd.h"

#include <stdlib.h>
#include <string.h>

typedef struct awaited {
    dibs__node by_tag;
    bool stands;
    char key[]; /* as the recipe knows it */
} awaited;

/* With the lock. */
static awaited *find(const dibs__etcd *e, uint64_t tag)
{
    dibs__node *n = dibs__table_first(&e->awaited, tag);

    return n ? DIBS__FROM(awaited, by_tag, n) : NULL;
}

bool dibs__etcd_cell_event(dibs__etcd *e, uint64_t tag, dibs__etcd_news news)
{
    char key[DIBS__ENTRIES_CELL_KEY_SIZE];
    awaited *a;
    bool ours;

    pthread_mutex_lock(&e->lock);
    a = find(e, tag);
    ours = a != NULL;
    if (a && news & DIBS__ETCD_SET_UP) {
        a->stands = true;
        pthread_cond_broadcast(&e->stands);
    }
    if (a)
        strcpy(key, a->key);
    pthread_mutex_unlock(&e->lock);
    if (ours && news & ~DIBS__ETCD_SET_UP)
        dibs__entries_cell_changed(e->backend.entries, key);
    return ours;
}

/* NULL: out of memory. */
static awaited *begin(dibs__etcd *e, const dibs__entries_blob *blob)
{
    size_t size = strlen(blob->key) + 1;
    awaited *a = calloc(1, sizeof *a + size);
    char room[DIBS__ETCD_CELL_KEY_SIZE];
    ProtobufCBinaryData key = dibs__etcd_cell_key(e, blob->folder, blob->key, room);
    bool ok;

    if (!a)
        return NULL;
    memcpy(a->key, blob->key, size);
    pthread_mutex_lock(&e->lock);
    ok = dibs__table_reserve(&e->awaited);
    if (ok) {
        dibs__table_add(&e->awaited, &a->by_tag, ++e->tags);
        ok = dibs__etcd_watch(e->client, a->by_tag.hash, key.data, key.len, 0);
        if (!ok)
            dibs__table_remove(&e->awaited, &a->by_tag);
    }
    pthread_mutex_unlock(&e->lock);
    if (ok)
        return a;
    free(a);
    return NULL;
}

dibs_status dibs__etcd_cells_watch(dibs__entries_backend *s, dibs__entries_blob *blob, void **out,
                                   dibs__deadline until, dibs_error *err)
{
    dibs__etcd *e = (dibs__etcd *)s;
    awaited *a = begin(e, blob);
    dibs_status status;
    bool stands;

    if (!a)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    pthread_mutex_lock(&e->lock);
    while (!a->stands && dibs__now(e->env) < until)
        dibs__cond_sleep(&e->stands, &e->lock, e->env, until);
    stands = a->stands;
    pthread_mutex_unlock(&e->lock);
    if (stands)
        status = dibs__etcd_cells_read(s, blob, 1, until, err);
    else
        status = dibs__fail(err, DIBS_UNAVAILABLE, "etcd: no watch in time");
    if (status == DIBS_OK)
        *out = a;
    else
        dibs__etcd_cells_unwatch(s, a);
    return status;
}

void dibs__etcd_cells_unwatch(dibs__entries_backend *s, void *watch)
{
    dibs__etcd *e = (dibs__etcd *)s;
    awaited *a = watch;
    uint64_t tag = a->by_tag.hash;

    pthread_mutex_lock(&e->lock);
    dibs__table_remove(&e->awaited, &a->by_tag);
    pthread_mutex_unlock(&e->lock);
    dibs__etcd_unwatch(e->client, tag);
    free(a);
}
