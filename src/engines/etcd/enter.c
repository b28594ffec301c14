/* Entering: one transaction that looks at the lock's value, lists the queue and makes our entry.
 *
 * The usual case is guessed: a plain lock has no value of its own, a semaphore has the one that we
 * would give it. When the guess is wrong, or our entry is there already (the answer to an earlier
 * try was lost), the transaction's other half tells what is there, and it is sent again with that.
 */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/etcd/error.h"
#include "engines/etcd/etcd.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TRIES 8

/* What a transaction is made of. The keys are large: on the heap. */
typedef struct parts {
    dibs__etcd_key entry, folder, end, value, tail, before, after;
    char made[DIBS__ENTRIES_KEY_SIZE];
    char stored[DIBS__ENTRIES_KEY_SIZE + DIBS__ENTRIES_VALUE_SIZE];
    Etcd__Compare compare[3];
    Etcd__RangeRequest queue, own, lock, last, strangers[2], count;
    Etcd__PutRequest put, put_tail, put_value;
    Etcd__DeleteRangeRequest no_tail;
    Etcd__RequestOp yes[7], no[3];
    Etcd__Compare *compares[3];
    Etcd__RequestOp *yeses[7], *noes[3];
} parts;

/* "BODY~SLOT" */
static void make_name(const dibs__etcd_op *op, char out[DIBS__ENTRIES_KEY_SIZE])
{
    size_t n;

    dibs__entries_body(op->call, (uint64_t)op->lease, out);
    n = strlen(out);
    snprintf(out + n, DIBS__ENTRIES_KEY_SIZE - n, "~%u", op->slot);
}

static void make_keys(parts *p, const dibs__etcd_op *op)
{
    const dibs__entries_call *call = op->call;

    make_name(op, p->made);
    snprintf(p->stored, sizeof p->stored, "%s\n%s", p->made, call->enter.value);
    dibs__etcd_entry_key(op->e, call->name, p->made, &p->entry);
    dibs__etcd_entry_key(op->e, call->name, "", &p->folder);
    dibs__etcd_end_of(&p->folder, &p->end);
    dibs__etcd_value_key(op->e, call->name, &p->value);
    dibs__etcd_tail_key(op->e, call->name, &p->tail);
    dibs__etcd_entry_key(op->e, call->name, "~", &p->before);
    dibs__etcd_end_of(&p->before, &p->after);
}

/* Is the lock's value what we think? */
static void compare_value(parts *p, const dibs__etcd_op *op)
{
    Etcd__Compare *c = &p->compare[1];

    dibs__etcd_compare(c, &p->value, ETCD__COMPARE__COMPARE_TARGET__MOD, op->lock_rev);
    if (!op->guessed || op->call->enter.capacity == DIBS__PLAIN)
        return;
    c->target = ETCD__COMPARE__COMPARE_TARGET__VALUE;
    c->target_union_case = ETCD__COMPARE__TARGET_UNION_VALUE;
    c->value = dibs__etcd_text(op->call->enter.lock_value);
}

/* What the queue was like the last time decides what is asked for: all of a short one, or only
 * the end of a long one. */
static _Atomic uint64_t *memory_of(dibs__etcd *e, const char *name, uint64_t *hash)
{
    *hash = dibs__hash(name) | 1;
    return &e->lengthy[(*hash >> 8) % (sizeof e->lengthy / sizeof e->lengthy[0])];
}

bool dibs__etcd_is_long(dibs__etcd *e, const char *name)
{
    uint64_t hash;

    return atomic_load(memory_of(e, name, &hash)) == hash;
}

static void remember(const dibs__etcd_op *op, bool is_long_now)
{
    uint64_t hash;
    _Atomic uint64_t *at = memory_of(op->e, op->call->name, &hash);

    if (is_long_now)
        atomic_store(at, hash);
    else if (atomic_load(at) == hash)
        atomic_store(at, 0);
}

/* A short queue is asked for whole. Unsorted: an order would cost etcd a look at every value, inside
 * its apply loop. */
static size_t ask_for_all(parts *p, const dibs__etcd_op *op)
{
    dibs__etcd_range(&p->queue, &p->yes[0], &p->folder);
    p->queue.range_end = dibs__etcd_bytes(&p->end);
    p->queue.limit = op->call->enter.owner ? 0 : DIBS__ETCD_SHORT;
    return 1;
}

/* Of a long one its end, and what is not ours and so did not write there. Now and then also how long it is: it
 * may have become short. */
static size_t ask_for_tail(parts *p)
{
    dibs__etcd_range(&p->last, &p->yes[0], &p->tail);
    dibs__etcd_range(&p->strangers[0], &p->yes[1], &p->folder);
    p->strangers[0].range_end = dibs__etcd_bytes(&p->before);
    dibs__etcd_range(&p->strangers[1], &p->yes[2], &p->after);
    p->strangers[1].range_end = dibs__etcd_bytes(&p->end);
    p->strangers[0].keys_only = p->strangers[1].keys_only = true; /* nobody reads theirs here */
    return 3;
}

static void make_txn(parts *p, dibs__etcd_op *op, Etcd__TxnRequest *txn)
{
    const dibs__entries_call *call = op->call;
    size_t n;

    dibs__etcd_compare(&p->compare[0], &p->entry, ETCD__COMPARE__COMPARE_TARGET__CREATE, 0);
    compare_value(p, op);
    n = ask_for_all(p, op);
    dibs__etcd_range(&p->own, &p->no[0], &p->entry);
    dibs__etcd_range(&p->lock, &p->no[1], &p->value);
    p->no[2] = p->yes[0];
    if (op->by_tail)
        n = ask_for_tail(p);
    dibs__etcd_put(&p->put, &p->yes[n++], &p->entry, p->stored, op->lease);
    if (op->by_tail)
        dibs__etcd_put(&p->put_tail, &p->yes[n++], &p->tail, p->made, op->lease);
    else if (op->no_tail)
        dibs__etcd_delete(&p->no_tail, &p->yes[n++], &p->tail);
    else
        dibs__etcd_compare(&p->compare[2], &p->tail, ETCD__COMPARE__COMPARE_TARGET__CREATE, 0);
    op->value_lease = call->enter.capacity != DIBS__PLAIN && !op->guessed && op->lock_rev == 0;
    if (op->value_lease)
        dibs__etcd_put(&p->put_value, &p->yes[n++], &p->value, call->enter.lock_value,
                       dibs__etcd_value_lease(op->e, call->name));
    op->counted = op->by_tail && atomic_fetch_add(&op->e->enters, 1) % 64 == 0 ? n : 0;
    if (op->counted) {
        dibs__etcd_range(&p->count, &p->yes[n++], &p->folder);
        p->count.range_end = dibs__etcd_bytes(&p->end);
        p->count.count_only = true;
    }
    for (size_t i = 0; i < 7; i++) {
        p->yeses[i] = &p->yes[i];
        p->noes[i % 3] = &p->no[i % 3];
        p->compares[i % 3] = &p->compare[i % 3];
    }
    etcd__txn_request__init(txn);
    txn->compare = p->compares;
    txn->n_compare = op->by_tail || op->no_tail ? 2 : 3;
    txn->success = p->yeses;
    txn->n_success = n;
    txn->failure = p->noes;
    txn->n_failure = 3;
}

/* ---- Answers --------------------------------------------------------------------------------- */

static const Etcd__RangeResponse *range_at(const Etcd__TxnResponse *r, size_t i)
{
    return i < r->n_responses &&
                   r->responses[i]->response_case == ETCD__RESPONSE_OP__RESPONSE_RESPONSE_RANGE
               ? r->responses[i]->response_range
               : NULL;
}

/* The queue as the transaction saw it. `*more`: that was not enough. */
static bool fill_queue(dibs__etcd_op *op, const Etcd__RangeResponse *queue, bool *more)
{
    dibs__entries_call *call = op->call;

    *more = queue->more;
    remember(op, queue->count > DIBS__ETCD_SHORT);
    return *more || dibs__etcd_listing_fill(&call->listing, op->e, call->name, queue,
                                            call->own.place, false);
}

static bool fill_tail(dibs__etcd_op *op, const Etcd__TxnResponse *r, bool *more)
{
    dibs__entries_call *call = op->call;
    const Etcd__RangeResponse *tail = range_at(r, 0);

    *more = tail->n_kvs == 0;
    if (op->counted && range_at(r, op->counted))
        remember(op, range_at(r, op->counted)->count > DIBS__ETCD_SHORT);
    if (*more)
        return true;
    for (size_t i = 1; i < 3; i++)
        if (range_at(r, i) && !dibs__etcd_listing_fill(&call->listing, op->e, call->name,
                                                       range_at(r, i), call->own.place, false))
            return false;
    return dibs__etcd_listing_tail(&call->listing, tail->kvs[0]);
}

/* The entry is there, made now (`r` tells the queue) or before (`queue` does). */
static dibs_status fill(dibs__etcd_op *op, const Etcd__TxnResponse *r,
                        const Etcd__RangeResponse *queue, int64_t place, bool *more)
{
    dibs__entries_call *call = op->call;
    dibs__entries_listing *l = &call->listing;

    if (place <= 0)
        return dibs__fail(&call->err, DIBS_ENGINE_FAILED, "etcd returned an invalid revision");
    make_name(op, call->made);
    snprintf(call->made + strlen(call->made), sizeof call->made - strlen(call->made), "~%llx",
             (unsigned long long)place);
    call->session = (uint64_t)op->lease;
    call->own.place = call->own.fence = (uint64_t)place;
    call->there = call->verified = true;
    if (!(queue ? fill_queue(op, queue, more) : fill_tail(op, r, more)))
        return dibs__fail(&call->err, DIBS_UNKNOWN, "out of memory while the answer was read");
    l->exists = true;
    if (!l->value && call->enter.capacity != DIBS__PLAIN) { /* it is what we guessed, or put */
        l->value = strdup(call->enter.lock_value);
        l->version = op->value_lease ? (uint64_t)place : 0;
        if (!l->value)
            return dibs__fail(&call->err, DIBS_UNKNOWN, "out of memory");
    }
    if (call->enter.capacity != DIBS__PLAIN)
        dibs__etcd_value_lease_touch(op->e, call->name);
    return DIBS_OK;
}

static bool is_mine(const dibs__etcd_op *op, const Etcd__KeyValue *kv)
{
    char name[DIBS__ENTRIES_KEY_SIZE];
    size_t n;

    make_name(op, name);
    n = strlen(name);
    return kv->value.len > n && memcmp(kv->value.data, name, n) == 0 && kv->value.data[n] == '\n';
}

/* The other half of the transaction. true: it was sent again. */
static bool look_closer(dibs__etcd_op *op, const Etcd__TxnResponse *r, bool *more)
{
    dibs__entries_call *call = op->call;
    const Etcd__RangeResponse *own = range_at(r, 0), *lock = range_at(r, 1),
                              *queue = range_at(r, 2);
    uint32_t capacity;

    if (!own || !lock || !queue) {
        call->status = dibs__fail(&call->err, DIBS_ENGINE_FAILED, "unexpected reply from etcd");
        return false;
    }
    dibs__entries_listing_fini(&call->listing);
    if (!dibs__etcd_listing_value(&call->listing, lock)) {
        call->status = dibs__fail(&call->err, DIBS_NO_MEMORY, "out of memory");
        return false;
    }
    if (own->n_kvs > 0 && is_mine(op, own->kvs[0])) {
        call->status = fill(op, NULL, queue, own->kvs[0]->create_revision, more);
        return false;
    }
    if (own->n_kvs > 0) /* an entry that came late has the key */
        dibs__etcd_slot_drop(op->e, call->attempt, strlen(call->attempt), false);
    capacity = dibs__entries_capacity(call->listing.value);
    if (call->listing.value && capacity != 0 && capacity != call->enter.capacity) {
        dibs__etcd_slot_drop(op->e, call->attempt, strlen(call->attempt), true);
        return false; /* there = false: it does not fit */
    }
    op->guessed = false;
    op->seen_long = queue->count > DIBS__ETCD_SHORT;
    op->no_tail = !op->seen_long; /* what tells its end is of another time */
    remember(op, op->seen_long);
    op->lock_rev = (int64_t)call->listing.version;
    if (++op->tries < MAX_TRIES) {
        dibs__etcd_op_go_on(op, dibs__etcd_enter_send(op));
        return true;
    }
    call->status = dibs__fail(&call->err, DIBS_UNAVAILABLE, "the lock's value changes too often");
    return false;
}

/* A lease that the transaction needs is not there: the name's, or the session. */
static void lease_is_gone(dibs__etcd_op *op)
{
    if (++op->tries >= MAX_TRIES) {
        dibs__etcd_op_done(op);
    } else if (op->value_lease && !op->shelved) {
        op->shelved = true;
        dibs__etcd_value_lease_make(op, dibs__etcd_enter_send);
    } else {
        op->shelved = false;
        dibs__etcd_session_gone(op->e, op->lease);
        dibs__etcd_op_go_on(op, dibs__etcd_session_need(op));
    }
}

static void on_answer(dibs__etcd_call *rpc)
{
    dibs__etcd_op *op = DIBS__FROM(dibs__etcd_op, rpc, rpc);
    dibs__entries_call *call = op->call;
    Etcd__TxnResponse *r = dibs__etcd_op_answer(op, &etcd__txn_response__descriptor);
    bool again = false, more = false;

    if (!r && dibs__etcd_lease_is_gone(rpc->stream.rpc, rpc->stream.text)) {
        lease_is_gone(op);
        return;
    }
    if (r && r->succeeded && range_at(r, 0))
        call->status = fill(op, r, op->by_tail ? NULL : range_at(r, 0), r->header->revision, &more);
    else if (r)
        again = look_closer(op, r, &more);
    if (r)
        etcd__txn_response__free_unpacked(r, NULL);
    if (!again && more && call->status == DIBS_OK) {
        call->verified = false; /* another look tells who is ahead */
        dibs__etcd_op_go_on(op, dibs__etcd_send_ahead(op, call->own.place));
    } else if (!again)
        dibs__etcd_op_done(op);
}

bool dibs__etcd_enter_send(dibs__etcd_op *op)
{
    parts *p = malloc(sizeof *p);
    Etcd__TxnRequest txn;
    bool ok;

    op->by_tail = !op->call->enter.owner &&
                  (op->seen_long || (!op->no_tail && dibs__etcd_is_long(op->e, op->call->name)));
    op->no_tail |= op->call->enter.owner != NULL;
    if (!p || !dibs__etcd_slot_take(op->e, op->call->attempt, op->by_tail, &op->slot)) {
        free(p);
        return false;
    }
    make_keys(p, op);
    make_txn(p, op, &txn);
    ok = dibs__etcd_op_send(op, DIBS__ETCD_BOUND, "/etcdserverpb.KV/Txn", &txn.base, on_answer);
    free(p);
    return ok;
}

dibs_status dibs__etcd_enter(dibs__entries_backend *s, dibs__entries_call *call)
{
    dibs__etcd_op *op = dibs__etcd_op_new(s, call);

    if (op)
        op->guessed = true;
    return dibs__etcd_op_started(op, op && dibs__etcd_session_need(op));
}
