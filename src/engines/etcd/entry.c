/* Single entries: watching one, removing one, letting one linger. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/etcd/error.h"
#include "engines/etcd/etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Watching -------------------------------------------------------------------------------- */

/* One entry that is watched, until it goes. `op` is the call that asked, while it is under way. */
typedef struct watched {
    dibs__node by_tag;
    dibs__etcd *e;
    dibs__etcd_op *op;
    dibs__etcd_call look; /* is it there? */
    bool looking, gone;
    bool seen; /* it was there when the watch begins */
    uint64_t place;
    char *name;
    dibs__etcd_key key;
} watched;

static void watched_free(watched *w)
{
    dibs__etcd_call_fini(&w->look);
    free(w->name);
    free(w);
}

/* It is gone, or nobody can tell any more. With the lock; afterwards only the caller knows it. */
static void take_out(watched *w)
{
    dibs__table_remove(&w->e->watched, &w->by_tag);
}

static void on_looked(dibs__etcd_call *call)
{
    watched *w = DIBS__FROM(watched, look, call);
    dibs__etcd *e = w->e;
    ProtobufCMessage *reply = NULL;
    dibs_error err = {0};
    dibs_status status = dibs__etcd_answer(call, &etcd__range_response__descriptor, &reply, &err);
    bool there = status == DIBS_OK &&
                 dibs__etcd_is_entry((const Etcd__RangeResponse *)reply, (int64_t)w->place);
    dibs__etcd_op *op;
    bool over;

    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    pthread_mutex_lock(&e->lock);
    w->looking = false;
    dibs__etcd_call_fini(&w->look);
    there = there && !w->gone;
    op = w->op;
    w->op = NULL;
    over = !there && (op || status == DIBS_OK);
    if (over)
        take_out(w);
    pthread_mutex_unlock(&e->lock);
    if (op) {
        op->call->there = there;
        op->call->status =
            status == DIBS_OK ? DIBS_OK : dibs__fail_as(&op->call->err, status, &err);
        dibs__etcd_op_done(op);
    } else if (over) {
        dibs__entries_gone(e->backend.entries, w->name, w->place);
    } else if (!there) {
        dibs__entries_recheck(e->backend.entries); /* a second look that failed */
    }
    if (over) {
        dibs__etcd_unwatch(e->client, w->by_tag.hash);
        watched_free(w);
    }
}

/* With the lock. Linearizable: the watch stands since some revision, and a member that has not heard of
 * all before it (we may have changed members meanwhile) would take an entry for gone that it does not
 * know yet, or for there when nobody will tell any more that it went. */
static bool look(watched *w, dibs__deadline until)
{
    Etcd__RangeRequest r;

    if (w->looking)
        return true;
    dibs__etcd_range(&r, NULL, &w->key);
    r.keys_only = true;
    w->looking = dibs__etcd_post(w->e->client, &w->look, DIBS__ETCD_READ, "/etcdserverpb.KV/Range",
                                 &r.base, until, on_looked);
    return w->looking;
}

static watched *find(dibs__etcd *e, uint64_t tag)
{
    dibs__node *n = dibs__table_first(&e->watched, tag);

    return n ? DIBS__FROM(watched, by_tag, n) : NULL;
}

void dibs__etcd_on_watched(void *ctx, uint64_t tag, dibs__etcd_news news)
{
    dibs__etcd *e = ctx;
    dibs__etcd_op *failed = NULL, *there = NULL;
    watched *w, *gone = NULL;

    if (dibs__etcd_session_event(e, tag, news) || dibs__etcd_cell_event(e, tag, news))
        return;
    pthread_mutex_lock(&e->lock);
    w = find(e, tag);
    if (w && w->seen && !w->looking && news & DIBS__ETCD_SET_UP) {
        there = w->op;
        w->op = NULL;
        news &= ~DIBS__ETCD_SET_UP;
    }
    if (w && news & DIBS__ETCD_GONE && !w->op && !w->looking) {
        take_out(w);
        gone = w;
    } else if (w && news & DIBS__ETCD_GONE) {
        w->gone = true;
    }
    if (w && !gone && news & (DIBS__ETCD_SET_UP | DIBS__ETCD_DOUBT) &&
        !look(w, w->op ? w->op->until : dibs__after(e->env, e->request_span))) {
        failed = w->op;
        take_out(w);
        gone = w;
    }
    pthread_mutex_unlock(&e->lock);
    if (there) {
        there->call->there = true;
        dibs__etcd_op_done(there);
    }
    if (!gone)
        return;
    dibs__etcd_unwatch(e->client, tag);
    if (failed)
        dibs__etcd_op_fail(failed, DIBS_NO_MEMORY, "out of memory");
    else
        dibs__entries_gone(e->backend.entries, gone->name, gone->place);
    watched_free(gone);
}

dibs_status dibs__etcd_watch_entry(dibs__entries_backend *s, dibs__entries_call *call)
{
    dibs__etcd *e = (dibs__etcd *)s;
    dibs__etcd_op *op = dibs__etcd_op_new(s, call);
    watched *w = calloc(1, sizeof *w);
    uint64_t tag = 0;
    bool ok;

    if (w) {
        w->e = e;
        w->op = op;
        w->place = call->place;
        w->name = strdup(call->name);
        dibs__etcd_entry_key(e, call->name, call->key, &w->key);
    }
    pthread_mutex_lock(&e->lock);
    ok = op && w && w->name && dibs__table_reserve(&e->watched);
    if (ok) {
        tag = ++e->tags;
        dibs__table_add(&e->watched, &w->by_tag, tag);
        w->seen = call->watch.as_of > 0;
        ok = dibs__etcd_watch(e->client, tag, w->key.text, w->key.length,
                              w->seen ? (int64_t)call->watch.as_of + 1 : 0);
        if (!ok)
            take_out(w);
    }
    pthread_mutex_unlock(&e->lock);
    if (!ok && w)
        watched_free(w);
    return dibs__etcd_op_started(op, ok);
}

void dibs__etcd_watched_fini(dibs__etcd *e)
{
    for (size_t i = 0; i < e->watched.size; i++)
        while (e->watched.slot[i]) {
            watched *w = DIBS__FROM(watched, by_tag, e->watched.slot[i]);
            take_out(w);
            if (w->op)
                dibs__etcd_op_fail(w->op, DIBS_UNAVAILABLE, "the handle is being closed");
            watched_free(w);
        }
    dibs__table_fini(&e->watched);
}

/* ---- Removing -------------------------------------------------------------------------------- */

/* Its key is free, unless no answer says so. */
static void free_slot(dibs__etcd *e, const char *key)
{
    if (strncmp(key, "dibs.", 5) == 0)
        dibs__etcd_slot_drop(e, key + 5, strcspn(key + 5, "."), true);
}

static bool send_removal(dibs__etcd_op *op);

static void on_removed(dibs__etcd_call *rpc)
{
    dibs__etcd_op *op = DIBS__FROM(dibs__etcd_op, rpc, rpc);
    Etcd__TxnResponse *r = dibs__etcd_op_answer(op, &etcd__txn_response__descriptor);

    if (!r && op->head && dibs__etcd_lease_is_gone(rpc->stream.rpc, rpc->stream.text)) {
        op->head = false;
        dibs__etcd_op_go_on(op, send_removal(op));
        return;
    }
    if (r) {
        op->call->there = r->succeeded;
        free_slot(op->e, op->call->key);
        etcd__txn_response__free_unpacked(r, NULL);
    }
    dibs__etcd_op_done(op);
}

/* "BODY~SLOT": what the tail says of an entry. */
static void tail_of(const char *key, char out[DIBS__ENTRIES_KEY_SIZE])
{
    const char *end = strrchr(key, '~');

    snprintf(out, DIBS__ENTRIES_KEY_SIZE, "%.*s", (int)(end ? end - key : 0), key);
}

/* What a removal is made of. */
typedef struct removal {
    dibs__etcd_key key, tail, head;
    char name[DIBS__ENTRIES_KEY_SIZE], place[24];
    Etcd__TxnRequest txn, inner;
    Etcd__DeleteRangeRequest delete, delete_tail;
    Etcd__PutRequest put;
    Etcd__RequestOp op[3], *ops[3], tail_op, *tail_ops[1];
    Etcd__Compare there, last, *theres[1], *lasts[1];
} removal;

/* The end of the queue goes too, if that is the entry. */
static void remove_tail(removal *r, const dibs__etcd_op *op, Etcd__RequestOp *to)
{
    dibs__etcd_tail_key(op->e, op->call->name, &r->tail);
    tail_of(op->call->key, r->name);
    dibs__etcd_compare(&r->last, &r->tail, ETCD__COMPARE__COMPARE_TARGET__VALUE, 0);
    r->last.target_union_case = ETCD__COMPARE__TARGET_UNION_VALUE;
    r->last.value = dibs__etcd_text(r->name);
    dibs__etcd_delete(&r->delete_tail, &r->tail_op, &r->tail);
    r->lasts[0] = &r->last;
    r->tail_ops[0] = &r->tail_op;
    dibs__etcd_nested(&r->inner, to);
    r->inner.compare = r->lasts;
    r->inner.success = r->tail_ops;
    r->inner.n_compare = r->inner.n_success = 1;
}

static void write_head(removal *r, const dibs__etcd_op *op, Etcd__RequestOp *to)
{
    dibs__etcd_head_key(op->e, op->call->name, &r->head);
    snprintf(r->place, sizeof r->place, "%llx",
             (unsigned long long)dibs__etcd_place_of(op->call->key));
    dibs__etcd_put(&r->put, to, &r->head, r->place, op->lease);
}

/* The entry, and what tells of the queue's ends. */
static bool send_removal(dibs__etcd_op *op)
{
    const char *key = op->call->key;
    removal *r = malloc(sizeof *r);
    size_t n = 0;
    bool ok;

    if (!r)
        return false;
    etcd__txn_request__init(&r->txn);
    dibs__etcd_entry_key(op->e, op->call->name, key, &r->key);
    dibs__etcd_compare_entry(&r->there, &r->key, key);
    r->theres[0] = &r->there;
    dibs__etcd_delete(&r->delete, &r->op[n++], &r->key);
    if (strncmp(key, "dibs.", 5) != 0 ||
        dibs__etcd_slot_by_tail(op->e, key + 5, strcspn(key + 5, ".")))
        remove_tail(r, op, &r->op[n++]);
    if (op->head)
        write_head(r, op, &r->op[n++]);
    for (size_t i = 0; i < 3; i++)
        r->ops[i] = &r->op[i];
    r->txn.compare = r->theres;
    r->txn.n_compare = 1;
    r->txn.success = r->ops;
    r->txn.n_success = n;
    ok = dibs__etcd_op_send(op, DIBS__ETCD_FINAL, "/etcdserverpb.KV/Txn", &r->txn.base, on_removed);
    free(r);
    return ok;
}

dibs_status dibs__etcd_remove(dibs__entries_backend *s, dibs__entries_call *call)
{
    dibs__etcd *e = (dibs__etcd *)s;
    dibs__etcd_op *op = dibs__etcd_op_new(s, call);

    if (op) {
        pthread_mutex_lock(&e->lock);
        op->lease = e->lease;
        pthread_mutex_unlock(&e->lock);
        op->head = op->lease && call->remove.was_first && dibs__etcd_is_long(e, call->name);
    }
    return dibs__etcd_op_started(op, op && send_removal(op));
}

/* ---- Lingering ------------------------------------------------------------------------------- */

/* An entry that was given back and stays until its time. Its own lease ends it if we are not there
 * any more; that counts in whole seconds, so that we do it ourselves while we are. */
typedef struct dibs__etcd_lingering {
    struct dibs__etcd_lingering *next;
    dibs__etcd_call rpc;
    dibs__deadline at;
    dibs__etcd *e;
    dibs__etcd_key key;
    char name[DIBS__ENTRIES_KEY_SIZE]; /* the recipe's */
} lingering;

static void on_lingering_removed(dibs__etcd_call *rpc)
{
    lingering *k = DIBS__FROM(lingering, rpc, rpc);

    if (rpc->stream.rpc == DIBS__RPC_OK)
        free_slot(k->e, k->name);
    dibs__etcd_call_fini(rpc);
    free(k);
}

static void remove_lingering(dibs__etcd *e, lingering *k)
{
    Etcd__TxnRequest txn = ETCD__TXN_REQUEST__INIT;
    Etcd__Compare there, *compares[1] = {&there};
    Etcd__DeleteRangeRequest delete;
    Etcd__RequestOp op, *ops[1] = {&op};

    dibs__etcd_compare_entry(&there, &k->key, k->name); /* and not another that has the key now */
    dibs__etcd_delete(&delete, &op, &k->key);
    txn.compare = compares;
    txn.success = ops;
    txn.n_compare = txn.n_success = 1;
    if (!dibs__etcd_post(e->client, &k->rpc, DIBS__ETCD_FINAL, "/etcdserverpb.KV/Txn", &txn.base,
                         dibs__after(e->env, e->request_span), on_lingering_removed))
        free(k);
}

void dibs__etcd_on_alarm(void *ctx)
{
    dibs__etcd *e = ctx;
    dibs__deadline now = dibs__now(e->env), next = DIBS__NEVER;
    lingering *due = NULL;

    pthread_mutex_lock(&e->lock);
    for (lingering **at = &e->lingering, *k; (k = *at);) {
        if (k->at <= now) {
            *at = k->next;
            k->next = due;
            due = k;
        } else {
            next = dibs__sooner(next, k->at);
            at = &k->next;
        }
    }
    pthread_mutex_unlock(&e->lock);
    for (lingering *following; due; due = following) {
        following = due->next;
        remove_lingering(e, due);
    }
    dibs__etcd_alarm(e->client, next);
    dibs__etcd_session_retry(e);
}

void dibs__etcd_lingering_fini(dibs__etcd *e)
{
    for (lingering *k = e->lingering, *next; k; k = next) {
        next = k->next;
        free(k);
    }
}

static void keep_until(dibs__etcd_op *op, dibs__deadline at)
{
    dibs__etcd *e = op->e;
    lingering *k = calloc(1, sizeof *k);

    if (!k)
        return; /* its lease ends it */
    k->at = at;
    k->e = e;
    strcpy(k->name, op->call->key);
    dibs__etcd_entry_key(e, op->call->name, op->call->key, &k->key);
    pthread_mutex_lock(&e->lock);
    k->next = e->lingering;
    e->lingering = k;
    pthread_mutex_unlock(&e->lock);
    dibs__etcd_alarm(e->client, at);
}

static void on_lingers(dibs__etcd_call *rpc)
{
    dibs__etcd_op *op = DIBS__FROM(dibs__etcd_op, rpc, rpc);
    Etcd__TxnResponse *r = dibs__etcd_op_answer(op, &etcd__txn_response__descriptor);

    if (r) {
        op->call->there = r->succeeded;
        if (r->succeeded)
            keep_until(op, op->ends);
        etcd__txn_response__free_unpacked(r, NULL);
    }
    dibs__etcd_op_done(op);
}

static bool send_linger(dibs__etcd_op *op)
{
    const dibs__entries_call *call = op->call;
    Etcd__TxnRequest txn = ETCD__TXN_REQUEST__INIT;
    Etcd__Compare compare, *compares[1] = {&compare};
    Etcd__PutRequest put;
    Etcd__RequestOp yes, *yeses[1] = {&yes};
    dibs__etcd_key key;
    char stored[DIBS__ENTRIES_KEY_SIZE + DIBS__ENTRIES_VALUE_SIZE + 1];

    dibs__etcd_entry_key(op->e, call->name, call->key, &key);
    dibs__etcd_compare_entry(&compare, &key, call->key);
    tail_of(call->key, stored);
    strcat(stored, "\n");
    strncat(stored, call->linger.value ? call->linger.value : "", DIBS__ENTRIES_VALUE_SIZE - 1);
    dibs__etcd_put(&put, &yes, &key, stored, op->lease);
    txn.compare = compares;
    txn.success = yeses;
    txn.n_compare = txn.n_success = 1;
    return dibs__etcd_op_send(op, DIBS__ETCD_FINAL, "/etcdserverpb.KV/Txn", &txn.base, on_lingers);
}

static void on_linger_lease(dibs__etcd_call *rpc)
{
    dibs__etcd_op *op = DIBS__FROM(dibs__etcd_op, rpc, rpc);
    Etcd__LeaseGrantResponse *r = dibs__etcd_op_answer(op, &etcd__lease_grant_response__descriptor);

    if (!r) {
        dibs__etcd_op_done(op);
        return;
    }
    op->lease = r->id;
    etcd__lease_grant_response__free_unpacked(r, NULL);
    dibs__etcd_op_go_on(op, send_linger(op));
}

dibs_status dibs__etcd_linger(dibs__entries_backend *s, dibs__entries_call *call)
{
    dibs__etcd_op *op = dibs__etcd_op_new(s, call);
    Etcd__LeaseGrantRequest request = ETCD__LEASE_GRANT_REQUEST__INIT;

    if (!op)
        return DIBS_NO_MEMORY;
    op->ends = dibs__after(op->e->env, call->linger.span);
    request.ttl = (call->linger.span + DIBS__SECOND - 1) / DIBS__SECOND;
    request.ttl = request.ttl > 0 ? request.ttl : 1;
    return dibs__etcd_op_started(op, dibs__etcd_op_send(op, DIBS__ETCD_URGENT,
                                                        "/etcdserverpb.Lease/LeaseGrant",
                                                        &request.base, on_linger_lease));
}
