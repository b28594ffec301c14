/* Entering: our entry is made and the queue is listed, in one flush.
 *
 * It goes well: create, children and the lock's value are answered. If the lock is not there, it is
 * made (and the folder above it, if that is missing too), and the three are sent again. After a lost
 * answer a sync and a listing come first: an entry of this attempt and this session is taken up.
 *
 * A lock that this handle alone uses needs no listing (known.c). */
#define _GNU_SOURCE
#include "engines/zookeeper/zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRIES 5 /* the server removes an idle lock between our making it and our entering */

static void ask_entry(dibs__zk_op *op);
static void entered(dibs__zk_op *op);
static void lock_made(dibs__zk_op *op);

static const char *suffix_of(const dibs__entries_call *call)
{
    if (call->enter.capacity != DIBS__PLAIN)
        return "__slot__";
    return call->enter.weight == DIBS__PLAIN ? "__lock__" : "__rlock__";
}

/* ---- The entry ------------------------------------------------------------------------------- */

/* The leader's clock when our entry was made: it is as late as that now, at the least. */
static void note_server_time(dibs__zk *z, const struct Stat *stat)
{
    pthread_mutex_lock(&z->mutex);
    z->server_time = stat->ctime * DIBS__MS;
    z->server_time_at = dibs__now(z->backend.env);
    pthread_mutex_unlock(&z->mutex);
}

static void take_entry(dibs__zk_op *op, const char *key, const struct Stat *stat)
{
    dibs__entries_call *call = op->call;

    snprintf(call->made, sizeof call->made, "%s", key);
    call->own.place = dibs__zk_place_by(key, stat);
    call->own.fence = (uint64_t)stat->czxid;
    call->session = op->session;
    call->there = true;
}

static void on_created(int rc, const char *path, const struct Stat *stat, const void *data)
{
    dibs__zk_op *op = (dibs__zk_op *)(uintptr_t)data;

    op->rc = rc;
    if (rc == ZOK) {
        take_entry(op, strrchr(path, '/') + 1, stat);
        note_server_time(op->z, stat);
    }
    dibs__zk_answered(op, rc, true);
}

/* In a long queue that we know: cversion counts what comes and goes. If that was our entry alone, the
 * listing is what we know and the entry that was our last. */
static void on_lock(int rc, const char *value, int size, const struct Stat *stat, const void *data)
{
    dibs__zk_op *op = (dibs__zk_op *)(uintptr_t)data;
    dibs__entries_call *call = op->call;
    dibs__queue_entry facts = {.place = call->enter.known_upto};

    op->list_rc = rc;
    if (rc == ZOK && (uint32_t)stat->cversion == (uint32_t)call->enter.known_as_of + 1) {
        op->listing->as_of = (uint64_t)(uint32_t)stat->cversion;
        op->listing->from = call->enter.known_upto;
        if (!dibs__entries_listing_add(op->listing, call->enter.known_last, NULL, &facts, 0))
            op->list_rc = ZSYSTEMERROR;
    }
    dibs__zk_on_lock(rc, value, size, stat, data);
}

/* ---- The lock's value, if it is known -------------------------------------------------------- */

/* The children of a lock whose value may be known: same node and version, same value. */
static void on_line(int rc, const struct String_vector *names, const struct Stat *stat,
                    const void *data)
{
    dibs__zk_op *op = (dibs__zk_op *)(uintptr_t)data;
    dibs__entries_listing *l = op->listing;

    if (rc == ZOK && stat->czxid == op->lock.czxid && stat->version == op->lock.version) {
        l->exists = true;
        l->version = (uint64_t)(uint32_t)stat->version;
        l->fence = (uint64_t)(stat->pzxid > stat->mzxid ? stat->pzxid : stat->mzxid);
        l->value = strdup(op->lock.value);
        op->lock_rc = l->value ? ZOK : ZSYSTEMERROR;
    }
    dibs__zk_on_children(rc, names, stat, data);
}

/* The listing of a queue that needs none: nobody is ahead. */
static void take_alone(dibs__zk_op *op)
{
    dibs__entries_listing *l = op->listing;

    l->exists = true;
    l->version = (uint64_t)(uint32_t)op->lock.version;
    l->fence = op->call->own.fence;
    l->value = strdup(op->lock.value);
    op->call->verified = true;
    if (l->value)
        dibs__zk_finish_ok(op);
    else
        dibs__zk_finish(op, ZCONNECTIONLOSS); /* our entry is there: asked again, it is found */
}

/* ---- Create and list ------------------------------------------------------------------------- */

static void ask_value(dibs__zk_op *op)
{
    op->lock_known = false;
    dibs__zk_sent(op, zoo_aget(op->z->zh, dibs__zk_lock_path(op), 0, dibs__zk_on_lock, op),
                  &op->lock_rc);
}

static void ask_children(dibs__zk_op *op)
{
    dibs__zk_sent(op, zoo_aget_children2(op->z->zh, dibs__zk_lock_path(op), 0, on_line, op),
                  &op->list_rc);
}

static void ask_entry(dibs__zk_op *op)
{
    dibs__entries_call *call = op->call;
    dibs__zk *z = op->z;
    char key[DIBS__ENTRIES_KEY_SIZE];
    bool known = dibs__zk_recall(op);
    size_t n;

    op->lock_rc = op->list_rc = ZOK;
    op->alone = known && !call->enter.known_last && dibs__zk_may_follow(op);
    dibs__entries_body(call, op->session, key);
    n = strlen(key);
    snprintf(key + n, sizeof key - n, "%s", suffix_of(call));
    dibs__zk_sent(op,
                  zoo_acreate2(z->zh, dibs__zk_entry_path(op, key), call->enter.value,
                               (int)strlen(call->enter.value), z->acl, ZOO_EPHEMERAL_SEQUENTIAL,
                               on_created, op),
                  &op->rc);
    if (call->enter.known_last)
        dibs__zk_sent(op, zoo_aget(z->zh, dibs__zk_lock_path(op), 0, on_lock, op), &op->lock_rc);
    else if (known && !op->alone)
        ask_children(op);
    else if (!known)
        dibs__zk_ask_listing(op);
}

static void settled(dibs__zk_op *op)
{
    dibs__zk_finish_ok(op);
}

static void entered(dibs__zk_op *op)
{
    int rc = op->rc != ZOK ? op->rc : op->lock_rc != ZOK ? op->lock_rc : op->list_rc;
    bool alone = op->alone;

    if (rc == ZOK)
        dibs__zk_note_entry(op);
    op->alone = false;
    if (rc == ZOK && alone && dibs__zk_follows(op)) {
        take_alone(op);
    } else if (rc == ZOK && alone) {
        dibs__zk_follow(op, ask_children, entered); /* somebody else was there */
    } else if (rc == ZOK && op->call->enter.known_last && op->listing->count == 0) {
        op->call->enter.known_last = NULL; /* others came or went: the whole queue */
        dibs__zk_follow(op, dibs__zk_ask_listing, entered);
    } else if (rc == ZOK && !op->listing->exists) {
        dibs__zk_follow(op, ask_value, entered); /* the lock is another now, or was broken */
    } else if (rc == ZOK) {
        dibs__zk_remember(op);
        dibs__zk_complete_listing(op, false, settled);
    } else if (op->rc == ZNONODE && op->tries++ < TRIES) {
        lock_made(op);
    } else {
        if (op->rc == ZOK && dibs__zk_status(rc) != DIBS_NO_MEMORY)
            rc = ZCONNECTIONLOSS; /* our entry is there: asked again, it is found */
        dibs__zk_finish(op, rc);
    }
}

/* ---- The lock -------------------------------------------------------------------------------- */

static void on_made(int rc, const char *path, const void *data)
{
    dibs__zk_op *op = (dibs__zk_op *)(uintptr_t)data;

    (void)path;
    op->rc = rc;
    dibs__zk_answered(op, rc, true);
}

static void on_parent(int rc, const char *path, const void *data)
{
    (void)path;
    dibs__zk_answered((dibs__zk_op *)(uintptr_t)data, rc, false);
}

/* Every folder above the lock; those that are there already say so. */
static void ask_parents(dibs__zk_op *op)
{
    dibs__zk *z = op->z;
    char *path = strdup(z->root);
    int rc;

    for (char *slash = path ? strchr(path + 1, '/') : NULL; path && *path;) {
        if (slash)
            *slash = '\0';
        dibs__zk_sent(op, zoo_acreate(z->zh, path, NULL, -1, z->acl, 0, on_parent, op), &rc);
        if (!slash)
            break;
        *slash = '/';
        slash = strchr(slash + 1, '/');
    }
    free(path);
}

static void ask_lock(dibs__zk_op *op)
{
    dibs__entries_call *call = op->call;

    if (op->tries > 1)
        ask_parents(op);
    dibs__zk_sent(op,
                  zoo_acreate(op->z->zh, dibs__zk_lock_path(op), call->enter.lock_value,
                              (int)strlen(call->enter.lock_value), op->z->acl, ZOO_CONTAINER,
                              on_made, op),
                  &op->rc);
}

static void enter_it(dibs__zk_op *op)
{
    if (op->rc == ZNONODE && op->tries == 1) { /* the folder is missing too */
        op->tries++;
        dibs__zk_follow(op, ask_lock, enter_it);
    } else if (op->rc != ZOK && op->rc != ZNODEEXISTS) {
        dibs__zk_finish(op, op->rc);
    } else {
        dibs__entries_listing_fini(op->listing);
        dibs__zk_follow(op, ask_entry, entered);
    }
}

static void lock_made(dibs__zk_op *op)
{
    dibs__zk_follow(op, ask_lock, enter_it);
}

/* ---- An answer was lost ---------------------------------------------------------------------- */

static void ask_old(dibs__zk_op *op)
{
    dibs__zk_item *item = op->item;

    dibs__zk_sent(
        op,
        zoo_aexists(op->z->zh, dibs__zk_entry_path(op, item->key), 0, dibs__zk_on_item_stat, item),
        &item->rc);
}

static void old_found(dibs__zk_op *op)
{
    dibs__zk_item *item = op->item;

    if (item->rc != ZOK) {
        dibs__zk_finish(op, item->rc == ZNONODE ? ZCONNECTIONLOSS : item->rc);
        return;
    }
    take_entry(op, item->key, &item->stat);
    free(op->item);
    op->item = NULL;
    op->items = 0;
    dibs__zk_complete_listing(op, false, settled);
}

static void searched(dibs__zk_op *op)
{
    dibs__entries_listing *l = op->listing;
    const char *key = NULL;

    if (op->list_rc != ZOK && op->list_rc != ZNONODE) {
        dibs__zk_finish(op, op->list_rc);
        return;
    }
    for (size_t i = 0; i < l->count; i++)
        if (dibs__entries_is_ours(l->entry[i].key, op->call->attempt, op->session))
            key = l->entry[i].key;
    if (!key) {
        dibs__entries_listing_fini(l);
        dibs__zk_follow(op, ask_entry, entered);
    } else if (dibs__zk_op_items(op, 1)) {
        op->item->key = key;
        dibs__zk_follow(op, ask_old, old_found);
    } else {
        dibs__zk_finish_no_memory(op);
    }
}

static void ask_search(dibs__zk_op *op)
{
    dibs__zk_sent(op, zoo_async(op->z->zh, dibs__zk_lock_path(op), dibs__zk_on_sync, op),
                  &op->sync_rc);
    dibs__zk_ask_listing(op);
}

dibs_status dibs__zk_enter(dibs__entries_backend *s, dibs__entries_call *call)
{
    dibs__zk_op *op = dibs__zk_op_new((dibs__zk *)s, call, call->name);
    dibs_status status;

    if (!op)
        return dibs__zk_fail((dibs__zk *)s, ZSYSTEMERROR, &call->err);
    if (dibs__zk_is_late(call->enter.known_upto))
        call->enter.known_last = NULL; /* cversion does not count any more, either */
    status = dibs__zk_flush_begin(op, call->again ? searched : entered);
    if (status == DIBS_OK) {
        (call->again ? ask_search : ask_entry)(op);
        status = dibs__zk_flush_end(op);
    }
    if (status != DIBS_OK)
        dibs__zk_op_free(op);
    return status;
}
