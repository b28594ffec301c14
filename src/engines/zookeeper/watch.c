/* Watching an entry.
 *
 * A read with a watch tells whether the entry is there and, once, when it goes; one that is written to
 * (an operator marks it) is watched again. An entry with a min_hold may leave another in its place, which
 * lingers: then that one is watched, and somebody removes it when its time is over. The library sets
 * watches anew when it changes servers, and brings what was missed. There may be too many of them for
 * that (watches.c): then it is only looked at, and the recipe hears that there is no watch. */
#define _GNU_SOURCE
#include "engines/zookeeper/zookeeper.h"

#include <stdlib.h>
#include <string.h>

static void on_event(zhandle_t *zh, int type, int state, const char *path, void *context);
static void watched(dibs__zk_op *op);

/* ---- Keys ------------------------------------------------------------------------------------ */

/* dibs.ATTEMPT.SESSION.KIND: a kind that has an m. */
bool dibs__zk_may_linger(const char *key)
{
    const char *kind = key;

    if (strncmp(key, "dibs.", 5) != 0)
        return false;
    for (int i = 0; i < 3 && kind; i++)
        kind = strchr(kind + 1, '.');
    return kind && strcspn(kind + 1, "m") < strcspn(kind + 1, "._");
}

static bool is_lingering(const char *key)
{
    return strncmp(key, "kept.", 5) == 0;
}

/* ROOT/NAME/KEY, taken apart. */
static const char *split_path(const dibs__zk *z, const char *path, char name[DIBS_NAME_MAX + 1])
{
    size_t root = strlen(z->root);
    const char *slash = strrchr(path, '/');
    char escaped[3 * DIBS_NAME_MAX + 1];
    size_t n = slash ? (size_t)(slash - path) : 0;

    if (n <= root + 1 || n - root - 1 >= sizeof escaped)
        return NULL;
    memcpy(escaped, path + root + 1, n - root - 1);
    escaped[n - root - 1] = '\0';
    return dibs__entries_unescape(escaped, name) ? slash + 1 : NULL;
}

/* ---- Looking --------------------------------------------------------------------------------- */

static void ask_entry(dibs__zk_op *op)
{
    dibs__zk_item *item = op->item;
    const char *path = dibs__zk_entry_path(op, item->key);
    watcher_fn watcher;

    op->watching = dibs__zk_watch_may(op->z, path);
    watcher = op->watching ? on_event : NULL;
    dibs__zk_sent(op, zoo_awget(op->z->zh, path, watcher, op->z, dibs__zk_on_item_data, item),
                  &item->rc);
    if (op->left == 0 && op->watching)
        dibs__zk_watch_answered(op->z, path, false);
}

static void note_watch(dibs__zk_op *op)
{
    if (!op->watching)
        return;
    pthread_mutex_lock(&op->z->mutex);
    dibs__zk_watch_answered(op->z, dibs__zk_entry_path(op, op->key), op->item->rc == ZOK);
    pthread_mutex_unlock(&op->z->mutex);
}

/* An op for a key: of a call, or by itself after an event. NULL: out of memory. */
static dibs__zk_op *new_op(dibs__zk *z, dibs__entries_call *call, const char *name, const char *key)
{
    dibs__zk_op *op = dibs__zk_op_new(z, call, name);

    if (!op || !dibs__zk_op_items(op, 1) || strlen(key) >= sizeof op->key) {
        if (op)
            dibs__zk_op_free(op);
        return NULL;
    }
    strcpy(op->key, key);
    op->item->key = op->key;
    return op;
}

/* It has gone, but did it leave something? */
static void look_for_twin(dibs__zk_op *op)
{
    char key[DIBS__ENTRIES_KEY_SIZE];

    dibs__zk_lingering_key(op->key, key);
    memcpy(op->key, key, sizeof key);
    dibs__zk_follow(op, ask_entry, watched);
}

static void watched(dibs__zk_op *op)
{
    dibs__zk_item *item = op->item;
    bool there = item->rc == ZOK;

    note_watch(op);
    if (item->rc == ZNONODE && dibs__zk_may_linger(op->key)) {
        look_for_twin(op);
        return;
    }
    if (there && is_lingering(op->key))
        dibs__zk_lingering_end_after(op->z, dibs__zk_entry_path(op, op->key),
                                     dibs__zk_lingering_left(op->z, item->value, &item->stat));
    if (op->call && there) {
        op->call->own.fence = (uint64_t)item->stat.czxid;
        op->call->own.marked = item->stat.version > 0;
    }
    if (op->call)
        op->call->there = there;
    if (there && !op->watching)
        dibs__zk_finish(op, ZINVALIDSTATE); /* the next keep-alive looks again */
    else if (there || item->rc == ZNONODE)
        dibs__zk_finish_ok(op);
    else
        dibs__zk_finish(op, item->rc);
}

dibs_status dibs__zk_watch(dibs__entries_backend *s, dibs__entries_call *call)
{
    dibs__zk_op *op = new_op((dibs__zk *)s, call, call->name, call->key);
    dibs_status status;

    if (!op)
        return dibs__zk_fail((dibs__zk *)s, ZSYSTEMERROR, &call->err);
    status = dibs__zk_flush_begin(op, watched);
    if (status == DIBS_OK) {
        ask_entry(op);
        status = dibs__zk_flush_end(op);
    }
    if (status != DIBS_OK)
        dibs__zk_op_free(op);
    return status;
}

/* ---- Events ---------------------------------------------------------------------------------- */

/* Late entries are not known by their keys alone: then every waiter looks. */
static void report_gone(dibs__zk *z, const char *name, const char *key)
{
    uint64_t place = dibs__zk_place(key);

    if (place == DIBS__ZK_BY_ZXID)
        dibs__entries_recheck(z->backend.entries);
    else
        dibs__entries_gone(z->backend.entries, name, place);
}

/* A look that an event made necessary. */
static void looked(dibs__zk_op *op)
{
    dibs__zk *z = op->z;
    char name[DIBS_NAME_MAX + 1];
    bool gone = op->rc == ZOK && op->item->rc == ZNONODE, failed = op->rc != ZOK;
    const char *key = split_path(z, dibs__zk_entry_path(op, op->key), name);

    if (failed)
        dibs__entries_recheck(z->backend.entries);
    else if (gone && key)
        report_gone(z, name, key);
    dibs__zk_op_free(op);
}

static void look_again(dibs__zk *z, const char *name, const char *key, bool deleted)
{
    dibs__zk_op *op = new_op(z, NULL, name, key);

    if (!op) {
        dibs__entries_recheck(z->backend.entries);
        return;
    }
    op->done = looked;
    if (deleted)
        look_for_twin(op);
    else
        dibs__zk_follow(op, ask_entry, watched);
}

static void note_fired(dibs__zk *z, const char *path)
{
    pthread_mutex_lock(&z->mutex);
    if (path)
        dibs__zk_watch_fired(z, path);
    pthread_mutex_unlock(&z->mutex);
}

static void on_event(zhandle_t *zh, int type, int state, const char *path, void *context)
{
    dibs__zk *z = context;
    char name[DIBS_NAME_MAX + 1];
    const char *key = path ? split_path(z, path, name) : NULL;

    (void)zh;
    (void)state;
    if (type == ZOO_SESSION_EVENT)
        return; /* session.c hears of these */
    note_fired(z, path);
    if (!key)
        return;
    if (type == ZOO_DELETED_EVENT && !dibs__zk_may_linger(key))
        report_gone(z, name, key);
    else
        look_again(z, name, key, type == ZOO_DELETED_EVENT);
}
