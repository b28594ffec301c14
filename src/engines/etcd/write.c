/* Breaking, in one step: the lock's value, and its entries marked or removed. A mark is a write
 * that changes nothing: it raises the entry's modification above its creation. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/etcd/error.h"
#include "engines/etcd/etcd.h"

#include <stdlib.h>

#define CHUNK 100 /* etcd takes 128 operations at each level of a transaction */

/* For each entry: if it is there, write to it; or delete it. */
typedef struct part {
    dibs__etcd_key key;
    Etcd__TxnRequest txn;
    Etcd__Compare compare, *compares[1];
    Etcd__PutRequest put;
    Etcd__DeleteRangeRequest delete;
    Etcd__RequestOp inner, *inners[1];
    Etcd__RequestOp op;
} part;

typedef struct chunk {
    Etcd__TxnRequest txn;
    Etcd__RequestOp op;
    Etcd__RequestOp *inner[CHUNK];
} chunk;

static void fill_part(part *p, const dibs__etcd_op *op, const char *key)
{
    dibs__etcd_entry_key(op->e, op->call->name, key, &p->key);
    dibs__etcd_nested(&p->txn, &p->op);
    dibs__etcd_compare_entry(&p->compare, &p->key, key);
    if (op->call->write.at_once)
        dibs__etcd_delete(&p->delete, &p->inner, &p->key);
    else
        dibs__etcd_put(&p->put, &p->inner, &p->key, NULL, 0);
    p->compares[0] = &p->compare;
    p->inners[0] = &p->inner;
    p->txn.compare = p->compares;
    p->txn.success = p->inners;
    p->txn.n_compare = p->txn.n_success = 1;
}

static void fill_chunk(chunk *c, part *p, size_t count)
{
    dibs__etcd_nested(&c->txn, &c->op);
    for (size_t i = 0; i < count; i++)
        c->inner[i] = &p[i].op;
    c->txn.success = c->inner;
    c->txn.n_success = count;
}

static bool send_write(dibs__etcd_op *op);

static void on_written(dibs__etcd_call *rpc)
{
    dibs__etcd_op *op = DIBS__FROM(dibs__etcd_op, rpc, rpc);
    dibs__entries_call *call = op->call;
    Etcd__TxnResponse *r = dibs__etcd_op_answer(op, &etcd__txn_response__descriptor);

    if (!r && dibs__etcd_lease_is_gone(rpc->stream.rpc, rpc->stream.text) && op->tries++ < 3) {
        dibs__etcd_value_lease_make(op, send_write);
        return;
    }
    if (r) {
        call->there = r->succeeded;
        call->fence = r->header ? (uint64_t)r->header->revision : 0;
        etcd__txn_response__free_unpacked(r, NULL);
    }
    dibs__etcd_op_done(op);
}

static bool send_write(dibs__etcd_op *op)
{
    const dibs__entries_call *call = op->call;
    size_t chunks = (call->write.count + CHUNK - 1) / CHUNK;
    part *p = calloc(call->write.count + 1, sizeof *p);
    chunk *c = calloc(chunks + 1, sizeof *c);
    Etcd__RequestOp value, **yes = calloc(chunks + 1, sizeof *yes);
    Etcd__Compare compare, *compares[1] = {&compare};
    Etcd__PutRequest put;
    Etcd__TxnRequest txn = ETCD__TXN_REQUEST__INIT;
    dibs__etcd_key key;
    bool ok = p && c && yes;

    dibs__etcd_value_key(op->e, call->name, &key);
    dibs__etcd_compare(&compare, &key, ETCD__COMPARE__COMPARE_TARGET__MOD,
                       (int64_t)call->write.version);
    if (call->write.value)
        dibs__etcd_put(&put, &value, &key, call->write.value,
                       dibs__etcd_value_lease(op->e, call->name));
    for (size_t i = 0; ok && i < call->write.count; i++)
        fill_part(&p[i], op, call->write.keys[i]);
    for (size_t i = 0; ok && i < chunks; i++) {
        size_t left = call->write.count - i * CHUNK;
        fill_chunk(&c[i], p + i * CHUNK, left < CHUNK ? left : CHUNK);
        yes[i] = &c[i].op;
    }
    if (ok && call->write.value)
        yes[chunks] = &value;
    txn.compare = compares;
    txn.n_compare = 1;
    txn.success = yes;
    txn.n_success = chunks + (call->write.value ? 1 : 0);
    ok = ok &&
         dibs__etcd_op_send(op, DIBS__ETCD_GUARDED, "/etcdserverpb.KV/Txn", &txn.base, on_written);
    free(yes);
    free(c);
    free(p);
    return ok;
}

dibs_status dibs__etcd_write(dibs__entries_backend *s, dibs__entries_call *call)
{
    dibs__etcd_op *op = dibs__etcd_op_new(s, call);

    return dibs__etcd_op_started(op, op && send_write(op));
}
