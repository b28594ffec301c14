/* Cells where the store knows only keys with versions: ZooKeeper and etcd.
 *
 * A cell is one key that holds the machine's record, a counter's request is another beside it. A
 * command is a look and, if it changes anything, a write on the condition that nobody was there in
 * between: two exchanges. Whoever was slower looks again, and queues if that happens twice (crowd.c).
 *
 * The store numbers its writes (zxid, revision). A cell's version is the number of the write that gave it
 * its value: no client's clock has a part in it, and it grows also over a deletion. */
#ifndef DIBS_FAMILIES_ENTRIES_CELL_H
#define DIBS_FAMILIES_ENTRIES_CELL_H

#include "families/entries/entries.h"

#define DIBS__ENTRIES_CELL_KEY_SIZE (3 * (DIBS__CELL_KEY_SIZE + DIBS__REQUEST_SIZE) + 4)

/* Values that are looked at, or dropped, in one exchange: each may have a mebibyte. */
#define DIBS__ENTRIES_BATCH 32

typedef enum dibs__entries_change {
    DIBS__ENTRIES_AS_IT_IS,
    DIBS__ENTRIES_PUT,
    DIBS__ENTRIES_DROP,
} dibs__entries_change;

/* A place in the queue of those that want to change one cell. It is advice and nothing more: whoever
 * ignores it, or has died in it, costs the others time. */
typedef struct dibs__entries_turn {
    bool made;
    int64_t order; /* the adapter's, like the next two */
    uint64_t session;
    char name[48];
} dibs__entries_turn;

/* One key of the store's. */
typedef struct dibs__entries_blob {
    char folder[3]; /* "%c": cells, "%r": requests; no lock's name is escaped like that */
    char key[DIBS__ENTRIES_CELL_KEY_SIZE]; /* one component of a path */
    void *data;                            /* read: allocated; a caller of `read` frees it */
    size_t size;
    int64_t version;   /* the store's own; -1: there is no such key */
    int64_t guard;     /* the adapter's, from `read` to `write` */
    uint64_t number;   /* read: of the write that made it what it is */
    int64_t stamp;     /* read: when it was written, by the store's clock, if there is one */
    bool only;         /* read: nothing will be written */
    bool heartbeats;   /* read: look for the keep-alive that was put with it, too */
    bool alive;        /* read: it is there, and has not run out */
    int64_t heartbeat; /* put: leave one that lasts so long by the store's account; 0: none */
    dibs__entries_change change;
    const void *put;
    size_t put_size;
    dibs__entries_turn *turn; /* of who writes, or NULL */
    bool queue;               /* read: somebody is in its queue; only with a turn */
} dibs__entries_blob;

/* What an adapter with cells brings. All calls block, until `until` at the latest. A store has a clock, or
 * it knows keep-alives, so that no two clients compare their clocks about who is alive. */
struct dibs__entries_cells {
    /* Everything that was written before this call is seen. */
    dibs_status (*read)(dibs__entries_backend *s, dibs__entries_blob *blobs, size_t count,
                        dibs__deadline until, dibs_error *err);
    /* All changes in one step, if every blob is still the one that was read: a cell, with its request, or up to
     * DIBS__ENTRIES_BATCH drops of what a walk brought. `*number`: the store's, greater than that of every write
     * before; 0: one has changed, and nothing was done. May give up the turn of the first in the same step; then
     * it is not `made` any more. */
    dibs_status (*write)(dibs__entries_backend *s, const dibs__entries_blob *blobs, size_t count,
                         dibs__deadline until, uint64_t *number, dibs_error *err);
    /* Takes a place in the queue of this cell, if the turn is not made yet, and counts those before
     * it. It is given up by itself soon after the handle is gone. */
    dibs_status (*join_queue)(dibs__entries_backend *s, const dibs__entries_blob *cell,
                              dibs__entries_turn *t, dibs__deadline until, size_t *ahead);
    void (*leave_queue)(dibs__entries_backend *s, const dibs__entries_blob *cell,
                        dibs__entries_turn *t);
    /* Up to `limit` keys of a folder, DIBS__ENTRIES_BATCH at the most, that come after `after` in the order of
     * bytes; 0 only when there are no more. Where a walk goes on from a key at which another ended, keys that were made in
     * the last ten seconds may be missing. The caller frees `*out` with
     * dibs__entries_blobs_free. */
    dibs_status (*walk)(dibs__entries_backend *s, const char *folder, const char *after,
                        size_t limit, dibs__deadline until, dibs__entries_blob **out, size_t *count,
                        dibs_error *err);
    /* What the store's clock shows, in microseconds, at the least: never ahead of it. NULL: it shows
     * none, and keep-alives end by themselves. */
    dibs_status (*clock)(dibs__entries_backend *s, dibs__deadline until, int64_t *out,
                         dibs_error *err);
    /* As `read` of one, seen from any server. From then on dibs__entries_cell_changed is told when the key
     * is put or dropped, once at least. `*out` is the adapter's, for unwatch; NULL: nothing to undo. */
    dibs_status (*watch)(dibs__entries_backend *s, dibs__entries_blob *blob, void **out,
                         dibs__deadline until, dibs_error *err);
    /* Does not block. What is on its way may still be told. */
    void (*unwatch)(dibs__entries_backend *s, void *watch);
};

/* Told by the adapter from any thread, with no lock held that a call of these needs. `key` as in the
 * blob. */
void dibs__entries_cell_changed(dibs__entries *entries, const char *key);

typedef enum dibs__entries_found {
    DIBS__ENTRIES_NONE,
    DIBS__ENTRIES_CELL,
    DIBS__ENTRIES_FOREIGN, /* what is there was not written by dibs, or by a newer one */
} dibs__entries_found;

/* What a blob holds, for a listing. `clock` is the store's, 0 if it has none; then `b->alive` counts. `dead`:
 * its writer is. `out->data` stays the blob's. */
dibs__entries_found dibs__entries_cell_view(const dibs__entries_blob *b, dibs__time now,
                                            int64_t clock, dibs__cell *out, bool *dead);
/* Does it matter whether its writer is alive? */
bool dibs__entries_cell_stands_for_life(const dibs__entries_blob *b);

void dibs__entries_blobs_free(dibs__entries_blob *blobs, size_t count);

#endif
