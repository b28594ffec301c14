/* What is known of a lock that was entered before: its value, and our entry that held it last.
 *
 * The value need not be read again while it is the same node in the same version, which a listing tells. And a lock
 * that this handle alone uses needs no listing. The node counts the entries that were ever made in it, and gives
 * each that count. When our entry N held the lock alone, all before it were gone; we have removed it; if the
 * next is N + 1, nobody has made one in between: that answer alone says that our entry is there, and first.
 *
 * The node could have been removed and made again, and have counted to N + 1 anew. But every entry that somebody
 * makes is a write, the ensemble numbers all writes, and the fences of both entries are such numbers. Our removal,
 * the node's removal, the node, its N + 1 other entries and ours would be N + 5 writes. If the two are not that far apart, it
 * is the same node. (Who makes several entries in one multi breaks this; no lock recipe does.)
 *
 * What somebody writes into the lock's value in between (an operator, who breaks it) is seen a second later. */
#define _GNU_SOURCE
#include "engines/zookeeper/zookeeper.h"

#include <stdlib.h>
#include <string.h>

#define FRESH DIBS__SECOND

/* With the mutex. NULL: it is not known. */
static dibs__zk_known *find(dibs__zk_op *op)
{
    const char *path = dibs__zk_lock_path(op);
    dibs__zk_known *known = &op->z->known[dibs__hash(path) % DIBS__ZK_KNOWN];

    return known->path && strcmp(known->path, path) == 0 ? known : NULL;
}

bool dibs__zk_recall(dibs__zk_op *op)
{
    const dibs__zk_known *known = find(op);

    if (known)
        op->lock = *known;
    op->lock_known = known != NULL;
    op->lock.path = NULL; /* it may go */
    return op->lock_known;
}

void dibs__zk_remember(dibs__zk_op *op)
{
    const char *value = op->listing->value;
    dibs__zk *z = op->z;
    dibs__zk_known *at;
    char *path, *old;

    if (op->lock_known || !value || strlen(value) >= sizeof op->lock.value)
        return;
    path = strdup(dibs__zk_lock_path(op));
    if (!path)
        return;
    memcpy(op->lock.value, value, strlen(value) + 1);
    op->lock.read_at = op->sent;
    op->lock.last_fence = 0;
    pthread_mutex_lock(&z->mutex);
    at = &z->known[dibs__hash(path) % DIBS__ZK_KNOWN];
    old = at->path;
    *at = op->lock;
    at->path = path;
    pthread_mutex_unlock(&z->mutex);
    free(old);
}

bool dibs__zk_follows(const dibs__zk_op *op)
{
    const dibs__zk_known *lock = &op->lock;
    const dibs__queue_entry *own = &op->call->own;

    return op->lock_known && lock->last_fence && own->place == lock->last_place + 1 &&
           !dibs__zk_is_late(own->place) && own->fence > lock->last_fence &&
           own->fence - lock->last_fence < own->place + 3 &&
           own->fence >> 32 == lock->last_fence >> 32;
}

bool dibs__zk_may_follow(const dibs__zk_op *op)
{
    const dibs__entries_call *call = op->call;
    const dibs__zk_known *lock = &op->lock;

    return op->lock_known && op->tries == 0 && lock->follows && lock->last_fence &&
           !call->enter.owner && op->sent < lock->read_at + FRESH &&
           dibs__entries_capacity(lock->value) == call->enter.capacity;
}

void dibs__zk_note_entry(dibs__zk_op *op)
{
    bool again = dibs__zk_follows(op);
    dibs__zk *z = op->z;
    dibs__zk_known *known;

    pthread_mutex_lock(&z->mutex);
    known = find(op);
    if (known) {
        known->follows = again;
        if (!op->alone && op->listing->exists)
            known->read_at = op->sent;
    }
    pthread_mutex_unlock(&z->mutex);
}

void dibs__zk_note_removed(dibs__zk_op *op)
{
    dibs__zk *z = op->z;
    dibs__zk_known *known;

    pthread_mutex_lock(&z->mutex);
    known = find(op);
    if (known) {
        known->last_place = dibs__zk_place(op->call->key);
        known->last_fence = op->call->own.fence;
    }
    pthread_mutex_unlock(&z->mutex);
}

void dibs__zk_note_written(dibs__zk_op *op)
{
    dibs__zk *z = op->z;
    dibs__zk_known *known;

    pthread_mutex_lock(&z->mutex);
    known = find(op);
    if (known) {
        free(known->path);
        known->path = NULL;
    }
    pthread_mutex_unlock(&z->mutex);
}

void dibs__zk_known_free(dibs__zk *z)
{
    for (size_t i = 0; i < DIBS__ZK_KNOWN; i++)
        free(z->known[i].path);
}
