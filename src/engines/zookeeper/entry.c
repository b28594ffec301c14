/* One entry, or a few: watching, removing, lingering, checking; and a lock's value with its entries. */
#define _GNU_SOURCE
#include "engines/zookeeper/zookeeper.h"

#include <stdlib.h>
#include <string.h>

/* Starts an op whose one flush `fill` fills. */
static dibs_status start(dibs__entries_backend *s, dibs__entries_call *call, dibs__zk_op *op,
                         void (*fill)(dibs__zk_op *op), void (*next)(dibs__zk_op *op))
{
    dibs_status status;

    if (!op)
        return dibs__zk_fail((dibs__zk *)s, ZSYSTEMERROR, &call->err);
    status = dibs__zk_flush_begin(op, next);
    if (status == DIBS_OK) {
        fill(op);
        status = dibs__zk_flush_end(op);
    }
    if (status != DIBS_OK)
        dibs__zk_op_free(op);
    return status;
}

/* ---- Remove ---------------------------------------------------------------------------------- */

static void ask_delete(dibs__zk_op *op)
{
    dibs__zk_sent(
        op,
        zoo_adelete(op->z->zh, dibs__zk_entry_path(op, op->call->key), -1, dibs__zk_on_void, op),
        &op->rc);
}

/* Done, or it was not there. */
static void deleted(dibs__zk_op *op)
{
    op->call->there = op->rc == ZOK;
    if (op->rc == ZOK && op->call->remove.was_first)
        dibs__zk_note_removed(op);
    if (op->rc == ZOK || op->rc == ZNONODE)
        dibs__zk_finish_ok(op);
    else
        dibs__zk_finish(op, op->rc);
}

dibs_status dibs__zk_remove(dibs__entries_backend *s, dibs__entries_call *call)
{
    return start(s, call, dibs__zk_op_new((dibs__zk *)s, call, call->name), ask_delete, deleted);
}

/* ---- Linger ---------------------------------------------------------------------------------- */

static bool make_multi(dibs__zk_op *op, size_t count)
{
    op->multi = calloc(count, sizeof *op->multi);
    op->multi_result = calloc(count, sizeof *op->multi_result);
    return op->multi && op->multi_result;
}

static void send_multi(dibs__zk_op *op, size_t count)
{
    dibs__zk_sent(
        op, zoo_amulti(op->z->zh, (int)count, op->multi, op->multi_result, dibs__zk_on_void, op),
        &op->rc);
}

/* The paths of a multi must last until it has been handed over. */
static void ask_linger(dibs__zk_op *op)
{
    dibs__entries_call *call = op->call;
    char key[DIBS__ENTRIES_KEY_SIZE];
    char *from = strdup(dibs__zk_entry_path(op, call->key));

    if (!from || !make_multi(op, 2)) {
        free(from);
        return;
    }
    dibs__zk_lingering_key(call->key, key);
    zoo_delete_op_init(&op->multi[0], from, -1);
    zoo_create_op_init(&op->multi[1], dibs__zk_entry_path(op, key), call->linger.value,
                       (int)strlen(call->linger.value), op->z->acl, 0, NULL, 0);
    send_multi(op, 2);
    free(from);
}

/* It ends by our own hand, if we live so long; else by whoever comes next. */
static void lingers(dibs__zk_op *op)
{
    dibs__entries_call *call = op->call;
    char key[DIBS__ENTRIES_KEY_SIZE];

    dibs__zk_lingering_key(call->key, key);
    if (op->rc == ZOK)
        dibs__zk_lingering_end_after(op->z, dibs__zk_entry_path(op, key), call->linger.span);
    deleted(op);
}

dibs_status dibs__zk_linger(dibs__entries_backend *s, dibs__entries_call *call)
{
    return start(s, call, dibs__zk_op_new((dibs__zk *)s, call, call->name), ask_linger, lingers);
}

/* ---- Check ----------------------------------------------------------------------------------- */

/* Items lie in the op, and each has its own lock: the path is written anew for each. */
static void ask_checks(dibs__zk_op *op)
{
    dibs__entries_call *call = op->call;
    size_t root = strlen(op->z->root);

    if (call->again)
        dibs__zk_sent(op, zoo_async(op->z->zh, "/", dibs__zk_on_sync, op), &op->sync_rc);
    for (size_t i = 0; i < call->check.count; i++) {
        op->path[root] = '/';
        dibs__entries_escape(call->check.entry[i].name, op->path + root + 1);
        op->lock_length = strlen(op->path);
        dibs__zk_sent(op,
                      zoo_aexists(op->z->zh, dibs__zk_entry_path(op, call->check.entry[i].key), 0,
                                  dibs__zk_on_item_stat, &op->item[i]),
                      &op->item[i].rc);
    }
}

static void checked(dibs__zk_op *op)
{
    dibs__entries_call *call = op->call;
    int rc = call->again ? op->sync_rc : ZOK;

    for (size_t i = 0; i < call->check.count; i++) {
        dibs__zk_item *item = &op->item[i];
        call->check.entry[i].there = item->rc == ZOK;
        call->check.entry[i].marked = item->rc == ZOK && item->stat.version > 0;
        call->check.entry[i].fence = item->rc == ZOK ? (uint64_t)item->stat.czxid : 0;
        if (item->rc != ZOK && item->rc != ZNONODE)
            rc = item->rc;
    }
    if (rc == ZOK)
        dibs__zk_finish_ok(op);
    else
        dibs__zk_finish(op, rc);
}

dibs_status dibs__zk_check(dibs__entries_backend *s, dibs__entries_call *call)
{
    dibs__zk_op *op = dibs__zk_op_new((dibs__zk *)s, call, NULL);

    if (op && !dibs__zk_op_items(op, call->check.count)) {
        dibs__zk_op_free(op);
        op = NULL;
    }
    return start(s, call, op, ask_checks, checked);
}

/* ---- Write ----------------------------------------------------------------------------------- */

static void free_paths(char **path, size_t count)
{
    for (size_t i = 0; path && i < count; i++)
        free(path[i]);
    free(path);
}

static char **entry_paths(dibs__zk_op *op)
{
    dibs__entries_call *call = op->call;
    char **path = calloc(call->write.count + 1, sizeof *path);

    for (size_t i = 0; path && i < call->write.count; i++) {
        path[i] = strdup(dibs__zk_entry_path(op, call->write.keys[i]));
        if (!path[i]) {
            free_paths(path, i);
            return NULL;
        }
    }
    return path;
}

static void ask_write(dibs__zk_op *op)
{
    dibs__entries_call *call = op->call;
    char **path = entry_paths(op);

    if (!path || !make_multi(op, call->write.count + 1)) {
        free_paths(path, call->write.count);
        return;
    }
    if (call->write.value)
        zoo_set_op_init(&op->multi[0], dibs__zk_lock_path(op), call->write.value,
                        (int)strlen(call->write.value), (int)call->write.version, &op->stat);
    else
        zoo_check_op_init(&op->multi[0], dibs__zk_lock_path(op), (int)call->write.version);
    for (size_t i = 0; i < call->write.count; i++) {
        const char *value = call->write.key_values[i];
        if (call->write.at_once)
            zoo_delete_op_init(&op->multi[i + 1], path[i], -1);
        else
            zoo_set_op_init(&op->multi[i + 1], path[i], value, (int)strlen(value), -1, NULL);
    }
    send_multi(op, call->write.count + 1);
    free_paths(path, call->write.count);
}

static void written(dibs__zk_op *op)
{
    dibs__zk_note_written(op);
    op->call->there = op->rc == ZOK;
    op->call->fence = op->rc == ZOK ? (uint64_t)op->stat.mzxid : 0;
    if (op->rc == ZOK || op->rc == ZBADVERSION || op->rc == ZNONODE)
        dibs__zk_finish_ok(op);
    else
        dibs__zk_finish(op, op->rc);
}

dibs_status dibs__zk_write(dibs__entries_backend *s, dibs__entries_call *call)
{
    return start(s, call, dibs__zk_op_new((dibs__zk *)s, call, call->name), ask_write, written);
}
