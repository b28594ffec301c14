/* Listing a lock, and all locks.
 *
 * One flush brings the names of the entries and the lock's value, a second one, if that is asked for,
 * what the entries store. Entries that linger are always looked at: one whose time is over is left
 * out, and removed. So are those whose sequence number does not tell their place. */
#define _GNU_SOURCE
#include "engines/zookeeper/zookeeper.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static void ask_value(dibs__zk_op *op)
{
    dibs__zk_sent(op, zoo_aget(op->z->zh, dibs__zk_lock_path(op), 0, dibs__zk_on_lock, op),
                  &op->lock_rc);
}

static void ask_entries(dibs__zk_op *op)
{
    dibs__zk_sent(
        op, zoo_aget_children2(op->z->zh, dibs__zk_lock_path(op), 0, dibs__zk_on_children, op),
        &op->list_rc);
}

void dibs__zk_ask_listing(dibs__zk_op *op)
{
    ask_value(op);
    ask_entries(op);
}

/* ---- What the entries store ------------------------------------------------------------------ */

static bool is_wanted(const dibs__queue_entry *e, bool values)
{
    return values || e->lingering || e->place == DIBS__ZK_BY_ZXID;
}

static void ask_values(dibs__zk_op *op)
{
    for (size_t i = 0; i < op->items; i++)
        dibs__zk_sent(op,
                      zoo_aget(op->z->zh, dibs__zk_entry_path(op, op->item[i].key), 0,
                               dibs__zk_on_item_data, &op->item[i]),
                      &op->item[i].rc);
}

static bool put_value(dibs__zk_op *op, const dibs__queue_entry *old, dibs__zk_item *item,
                      dibs__entries_listing *out)
{
    dibs__queue_entry facts = {.place = dibs__zk_place_by(old->key, &item->stat),
                               .fence = (uint64_t)item->stat.czxid,
                               .since = item->stat.ctime * DIBS__MS,
                               .marked = item->stat.version > 0};

    if (item->rc ==
        ZNONODE) /* gone meanwhile, unless it lingers now under a key that was not listed */
        return old->lingering || !dibs__zk_may_linger(old->key);
    if (item->rc != ZOK)
        return false;
    if (old->lingering && dibs__zk_lingering_left(op->z, item->value, &item->stat) <= 0) {
        dibs__zk_lingering_end_after(op->z, dibs__zk_entry_path(op, old->key), 0);
        return true;
    }
    return dibs__entries_listing_add(out, old->key, item->value, &facts, old->weight);
}

/* The listing anew, with what came. */
static void put_values(dibs__zk_op *op)
{
    dibs__entries_listing old = *op->listing, *l = op->listing;
    size_t k = 0;
    bool complete = true;

    l->entry = NULL;
    l->text = NULL;
    l->count = l->size = 0;
    for (size_t i = 0; i < old.count; i++) {
        dibs__queue_entry *e = &old.entry[i];
        if (k < op->items && op->item[k].key == e->key)
            complete = put_value(op, e, &op->item[k++], l) && complete;
        else
            complete = dibs__entries_listing_add(l, e->key, NULL, e, e->weight) && complete;
    }
    old.value = NULL; /* it stays */
    dibs__entries_listing_fini(&old);
    if (complete)
        op->after(op);
    else
        dibs__zk_finish(op, ZCONNECTIONLOSS);
}

void dibs__zk_complete_listing(dibs__zk_op *op, bool values, void (*next)(dibs__zk_op *op))
{
    dibs__entries_listing *l = op->listing;
    size_t wanted = 0;

    for (size_t i = 0; i < l->count; i++)
        wanted += is_wanted(&l->entry[i], values);
    if (wanted == 0) {
        next(op);
        return;
    }
    if (!dibs__zk_op_items(op, wanted)) {
        dibs__zk_finish_no_memory(op);
        return;
    }
    wanted = 0;
    for (size_t i = 0; i < l->count; i++)
        if (is_wanted(&l->entry[i], values))
            op->item[wanted++].key = l->entry[i].key;
    op->after = next;
    dibs__zk_follow(op, ask_values, put_values);
}

/* ---- One lock -------------------------------------------------------------------------------- */

/* The caller's own entry, behind a sync: whoever was ahead of it is not any more, or is listed too. */
static void find_own(dibs__zk_op *op)
{
    const dibs__entries_listing *l = op->listing;

    for (size_t i = 0; op->call->again && op->call->key && i < l->count; i++)
        op->call->there |= strcmp(l->entry[i].key, op->call->key) == 0;
    dibs__zk_finish_ok(op);
}

static void listed(dibs__zk_op *op)
{
    bool values = op->call ? op->call->list.values : true;
    int rc = op->sync_rc != ZOK ? op->sync_rc : op->lock_rc != ZOK ? op->lock_rc : op->list_rc;

    if (op->call)
        op->call->session = op->session;
    if (rc == ZOK)
        dibs__zk_complete_listing(op, values, op->call ? find_own : dibs__zk_finish_ok);
    else if (rc == ZNONODE) { /* or it went between the two */
        dibs__entries_listing_fini(op->listing);
        dibs__zk_finish_ok(op);
    } else
        dibs__zk_finish(op, rc);
}

dibs_status dibs__zk_list(dibs__entries_backend *s, dibs__entries_call *call)
{
    dibs__zk_op *op = dibs__zk_op_new((dibs__zk *)s, call, call->name);
    dibs_status status;

    if (!op)
        return dibs__zk_fail((dibs__zk *)s, ZSYSTEMERROR, &call->err);
    status = dibs__zk_flush_begin(op, listed);
    if (status == DIBS_OK) {
        if (call->again)
            dibs__zk_sent(op, zoo_async(op->z->zh, dibs__zk_lock_path(op), dibs__zk_on_sync, op),
                          &op->sync_rc);
        if (call->place == UINT64_MAX)
            ask_value(op);
        ask_entries(op);
        status = dibs__zk_flush_end(op);
    }
    if (status != DIBS_OK)
        dibs__zk_op_free(op);
    return status;
}

/* ---- All locks ------------------------------------------------------------------------------- */

/* One lock of many: an op of its own, which ends here. All answers come on one thread. */
static void end_part(dibs__zk_op *all, int rc)
{
    if (rc != ZOK)
        all->rc = rc;
    if (--all->left > 0)
        return;
    if (all->rc == ZOK)
        dibs__zk_finish_ok(all);
    else
        dibs__zk_finish(all, all->rc);
}

static bool is_lock(const dibs__entries_listing *l)
{
    return l->exists && (l->count > 0 || (l->value && strncmp(l->value, "dibs ", 5) == 0));
}

static void part_done(dibs__zk_op *op)
{
    dibs__zk_op *all = op->whole;
    dibs__entries_listing *l = op->listing, *to = l;
    char name[DIBS_NAME_MAX + 1];
    int rc = op->rc;

    if (rc == ZOK && is_lock(l) &&
        dibs__entries_unescape(strrchr(dibs__zk_lock_path(op), '/') + 1, name)) {
        to = dibs__entries_add_lock(all->call, name);
        if (to) {
            *to = *l;
            memset(l, 0, sizeof *l);
        } else {
            rc = ZSYSTEMERROR;
        }
    }
    dibs__entries_listing_fini(l);
    free(l);
    dibs__zk_op_free(op);
    end_part(all, rc);
}

/* One without entries is idle: its value is of no interest. */
static void entries_listed(dibs__zk_op *op)
{
    if (op->list_rc == ZOK && op->listing->count > 0)
        dibs__zk_follow(op, ask_value, listed);
    else
        listed(op);
}

static void start_part(dibs__zk_op *all, const char *name)
{
    dibs__zk_op *op = dibs__zk_op_new(all->z, NULL, name);
    dibs__entries_listing *l = calloc(1, sizeof *l);

    all->left++;
    if (!op || !l) {
        free(l);
        if (op)
            dibs__zk_op_free(op);
        end_part(all, ZSYSTEMERROR);
        return;
    }
    op->listing = l;
    op->whole = all;
    op->done = part_done;
    if (all->call->names.idle)
        dibs__zk_follow(op, dibs__zk_ask_listing, listed);
    else
        dibs__zk_follow(op, ask_entries, entries_listed);
}

static void on_names(int rc, const struct String_vector *names, const void *data)
{
    dibs__zk_op *all = (dibs__zk_op *)(uintptr_t)data;
    size_t prefix = strlen(all->call->names.prefix);
    char name[DIBS_NAME_MAX + 1];

    pthread_mutex_lock(&all->z->mutex); /* not before the flush is over */
    dibs__zk_op_closed(all);
    pthread_mutex_unlock(&all->z->mutex);
    all->rc = rc == ZNONODE ? ZOK : rc; /* no folder: no locks */
    for (int i = 0; rc == ZOK && i < names->count; i++)
        if (dibs__entries_unescape(names->data[i], name) &&
            strncmp(name, all->call->names.prefix, prefix) == 0) {
            atomic_fetch_add(&all->call->names.reads, 1);
            start_part(all, name);
        }
    end_part(all, ZOK); /* this answer itself */
}

static void names_lost(dibs__zk_op *all)
{
    dibs__zk_finish(all, ZCLOSING);
}

dibs_status dibs__zk_names(dibs__entries_backend *s, dibs__entries_call *call)
{
    dibs__zk_op *op = dibs__zk_op_new((dibs__zk *)s, call, NULL);
    dibs_status status;

    if (!op)
        return dibs__zk_fail((dibs__zk *)s, ZSYSTEMERROR, &call->err);
    status = dibs__zk_flush_begin(op, names_lost);
    if (status == DIBS_OK) {
        dibs__zk_sent(op, zoo_aget_children(op->z->zh, dibs__zk_lock_path(op), 0, on_names, op),
                      &op->rc);
        status = dibs__zk_flush_end(op);
    }
    if (status != DIBS_OK)
        dibs__zk_op_free(op);
    return status;
}
