/* Are these entries there, and does our session live? The entries are read in one transaction, with
 * transactions inside, because etcd counts the operations of each: 128 at most. At the same time
 * the lease is renewed unless that was done a moment ago. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/etcd/etcd.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK 100

/* ---- The parts of the answer ----------------------------------------------------------------- */

/* One of the two is done; the last one completes the call. */
static void part_done(dibs__etcd_op *op)
{
    dibs__etcd *e = op->e;
    bool last;

    pthread_mutex_lock(&e->lock);
    last = --op->parts == 0;
    pthread_mutex_unlock(&e->lock);
    if (last)
        dibs__etcd_op_done(op);
}

void dibs__etcd_check_proved(dibs__etcd_op *op, bool proved)
{
    if (!proved && op->call->status == DIBS_OK)
        op->call->status = dibs__fail(&op->call->err, DIBS_UNAVAILABLE,
                                      "the session could not be renewed: is the cluster up, with "
                                      "a majority?");
    part_done(op);
}

static void read_one(dibs__entries_check *check, const Etcd__ResponseOp *r)
{
    const Etcd__RangeResponse *range =
        r->response_case == ETCD__RESPONSE_OP__RESPONSE_RESPONSE_RANGE ? r->response_range : NULL;
    bool there = range && dibs__etcd_is_entry(range, dibs__etcd_place_of(check->key));
    const Etcd__KeyValue *kv = there ? range->kvs[0] : NULL;

    check->there = kv != NULL;
    check->marked = kv && kv->mod_revision != kv->create_revision;
    check->fence = kv ? (uint64_t)kv->create_revision : 0;
}

static void on_read(dibs__etcd_call *rpc)
{
    dibs__etcd_op *op = DIBS__FROM(dibs__etcd_op, rpc, rpc);
    dibs__entries_call *call = op->call;
    dibs_status before = call->status;
    dibs_error why = call->err;
    Etcd__TxnResponse *r = dibs__etcd_op_answer(op, &etcd__txn_response__descriptor);
    size_t k = 0;

    for (size_t i = 0; r && i < r->n_responses; i++) {
        const Etcd__TxnResponse *chunk =
            r->responses[i]->response_case == ETCD__RESPONSE_OP__RESPONSE_RESPONSE_TXN
                ? r->responses[i]->response_txn
                : NULL;
        for (size_t j = 0; chunk && j < chunk->n_responses && k < call->check.count; j++)
            read_one(&call->check.entry[k++], chunk->responses[j]);
    }
    if (r)
        etcd__txn_response__free_unpacked(r, NULL);
    if (r && k < call->check.count)
        call->status = dibs__fail(&call->err, DIBS_ENGINE_FAILED, "unexpected reply from etcd");
    if (call->status == DIBS_OK && before != DIBS_OK) {
        call->status = before;
        call->err = why;
    }
    part_done(op);
}

/* ---- The question ---------------------------------------------------------------------------- */

typedef struct parts {
    Etcd__RangeRequest range;
    Etcd__RequestOp op, *at;
} parts;

typedef struct chunk {
    Etcd__TxnRequest txn;
    Etcd__RequestOp op, *at;
    Etcd__RequestOp *inner[CHUNK];
} chunk;

static void fill_chunk(chunk *c, parts *p, size_t count)
{
    dibs__etcd_nested(&c->txn, &c->op);
    for (size_t i = 0; i < count; i++)
        c->inner[i] = &p[i].op;
    c->txn.success = c->inner;
    c->txn.n_success = count;
}

/* All keys, one behind the other: most are much shorter than the longest. NULL: out of memory. */
static uint8_t *make_keys(const dibs__etcd_op *op, parts *p)
{
    const dibs__entries_call *call = op->call;
    size_t room = 1, n = 0;
    uint8_t *text, *larger;
    dibs__etcd_key key;

    text = malloc(room);
    for (size_t i = 0; text && i < call->check.count; i++) {
        dibs__etcd_entry_key(op->e, call->check.entry[i].name, call->check.entry[i].key, &key);
        dibs__etcd_range(&p[i].range, &p[i].op, &key);
        p[i].range.keys_only = true;
        if (room - n < key.length) {
            room = 2 * room + key.length + 128 * (call->check.count - i);
            larger = realloc(text, room);
            if (!larger)
                free(text);
            text = larger;
        }
        if (text)
            memcpy(text + n, key.text, key.length);
        n += key.length;
    }
    for (size_t i = 0, at = 0; text && i < call->check.count; at += p[i++].range.key.len)
        p[i].range.key.data = text + at;
    return text;
}

static bool send_read(dibs__etcd_op *op)
{
    const dibs__entries_call *call = op->call;
    size_t chunks = (call->check.count + CHUNK - 1) / CHUNK;
    parts *p = calloc(call->check.count, sizeof *p);
    chunk *c = calloc(chunks, sizeof *c);
    Etcd__RequestOp **outer = calloc(chunks, sizeof *outer);
    uint8_t *keys = p ? make_keys(op, p) : NULL;
    Etcd__TxnRequest txn = ETCD__TXN_REQUEST__INIT;
    bool ok = p && c && outer && keys;

    for (size_t i = 0; ok && i < chunks; i++) {
        size_t left = call->check.count - i * CHUNK;
        fill_chunk(&c[i], p + i * CHUNK, left < CHUNK ? left : CHUNK);
        outer[i] = &c[i].op;
    }
    txn.success = outer;
    txn.n_success = chunks;
    ok = ok && dibs__etcd_op_send(op, DIBS__ETCD_LOOK, "/etcdserverpb.KV/Txn", &txn.base, on_read);
    free(keys);
    free(outer);
    free(c);
    free(p);
    return ok;
}

/* With the lock: the session needs a keep-alive, and the op waits for it. */
static bool needs_proof(dibs__etcd *e)
{
    return dibs__etcd_lease_until(e->client) - dibs__now(e->env) < e->ttl * 3 / 5;
}

dibs_status dibs__etcd_check(dibs__entries_backend *s, dibs__entries_call *call)
{
    dibs__etcd *e = (dibs__etcd *)s;
    dibs__etcd_op *op = dibs__etcd_op_new(s, call);
    bool prove, alive, ok;

    if (!op)
        return DIBS_NO_MEMORY;
    pthread_mutex_lock(&e->lock);
    alive = e->lease != 0;
    prove = needs_proof(e) || call->check.count == 0;
    op->parts = (prove ? 1 : 0) + (call->check.count > 0 ? 1 : 0);
    ok = alive && (call->check.count == 0 || send_read(op));
    if (ok && prove) {
        op->next = e->proving;
        e->proving = op;
    }
    pthread_mutex_unlock(&e->lock);
    if (ok && prove)
        dibs__etcd_lease_renew(e->client);
    dibs_status status = dibs__etcd_op_started(op, ok);
    return alive ? status : dibs__fail(&call->err, DIBS_UNAVAILABLE, "the session has expired");
}
