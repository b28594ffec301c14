/* Cells in etcd: keys PREFIX/%c/KEY and PREFIX/%r/KEY%REQUEST, and keep-alives PREFIX/%l/KEY (heartbeat.c). A
 * look is one transaction of ranges, a write one that compares the revisions which were read. */
#define _GNU_SOURCE
#include "families/entries/cell.h"
#include "core/error.h"
#include "engines/etcd/etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_MAX  2
#define BESIDE    2 /* a keep-alive goes with the first, and a place in its queue */
#define OPS_MAX   (READ_MAX + BESIDE)
#define WRITE_MAX (DIBS__ENTRIES_BATCH + BESIDE)
#define TXN       "/etcdserverpb.KV/Txn"

ProtobufCBinaryData dibs__etcd_cell_key(const dibs__etcd *e, const char *folder, const char *key,
                                        char room[DIBS__ETCD_CELL_KEY_SIZE])
{
    int n = snprintf(room, DIBS__ETCD_CELL_KEY_SIZE, "%s/%s/%s", e->prefix, folder, key);

    return (ProtobufCBinaryData){(size_t)n, (uint8_t *)room};
}

static bool take_value(dibs__entries_blob *b, const Etcd__KeyValue *kv)
{
    b->data = malloc(kv->value.len + 1);
    if (!b->data)
        return false;
    if (kv->value.len)
        memcpy(b->data, kv->value.data, kv->value.len);
    b->size = kv->value.len;
    b->version = kv->mod_revision;
    b->number = (uint64_t)kv->mod_revision;
    return true;
}

/* The i-th key that was asked for; NULL: not there. */
static const Etcd__KeyValue *answer_at(const Etcd__TxnResponse *r, size_t i)
{
    const Etcd__ResponseOp *op = i < r->n_responses ? r->responses[i] : NULL;

    return op && op->response_case == ETCD__RESPONSE_OP__RESPONSE_RESPONSE_RANGE &&
                   op->response_range->n_kvs > 0
               ? op->response_range->kvs[0]
               : NULL;
}

static bool take_answers(const Etcd__TxnResponse *r, dibs__entries_blob *blobs, size_t count)
{
    const Etcd__KeyValue *heartbeat = blobs[0].heartbeats ? answer_at(r, count) : NULL;

    for (size_t i = 0; i < count; i++) {
        const Etcd__KeyValue *kv = answer_at(r, i);
        blobs[i].version = -1;
        blobs[i].data = NULL;
        if (kv && !take_value(&blobs[i], kv))
            return false;
    }
    blobs[0].alive = heartbeat && heartbeat->mod_revision == blobs[0].version;
    blobs[0].queue = blobs[0].turn && answer_at(r, count + blobs[0].heartbeats);
    return true;
}

static void ask_for(dibs__etcd *e, const char *folder, const char *key,
                    char room[DIBS__ETCD_CELL_KEY_SIZE], Etcd__RangeRequest *range,
                    Etcd__RequestOp *op)
{
    etcd__range_request__init(range);
    etcd__request_op__init(op);
    range->key = dibs__etcd_cell_key(e, folder, key, room);
    op->request_case = ETCD__REQUEST_OP__REQUEST_REQUEST_RANGE;
    op->request_range = range;
}

static void ask_for_queue(dibs__etcd *e, const dibs__entries_blob *cell,
                          char room[2][DIBS__ETCD_CELL_KEY_SIZE], Etcd__RangeRequest *range,
                          Etcd__RequestOp *op)
{
    etcd__request_op__init(op);
    dibs__etcd_queue_range(e, cell, room, range);
    range->limit = 1;
    op->request_case = ETCD__REQUEST_OP__REQUEST_REQUEST_RANGE;
    op->request_range = range;
}

dibs_status dibs__etcd_cells_read(dibs__entries_backend *s, dibs__entries_blob *blobs, size_t count,
                                  dibs__deadline until, dibs_error *err)
{
    dibs__etcd *e = (dibs__etcd *)s;
    char room[OPS_MAX][DIBS__ETCD_CELL_KEY_SIZE], queue[2][DIBS__ETCD_CELL_KEY_SIZE];
    Etcd__RangeRequest range[OPS_MAX];
    Etcd__RequestOp op[OPS_MAX], *ops[OPS_MAX] = {&op[0], &op[1], &op[2], &op[3]};
    Etcd__TxnRequest txn = ETCD__TXN_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    size_t n = count;
    dibs_status status;

    for (size_t i = 0; i < count; i++)
        ask_for(e, blobs[i].folder, blobs[i].key, room[i], &range[i], &op[i]);
    if (blobs[0].heartbeats)
        ask_for(e, "%l", blobs[0].key, room[n], &range[n], &op[n]), n++;
    if (blobs[0].turn)
        ask_for_queue(e, &blobs[0], queue, &range[n], &op[n]), n++;
    txn.success = ops;
    txn.n_success = n;
    status = dibs__etcd_ask(e->client, DIBS__ETCD_READ, TXN, &txn.base,
                            &etcd__txn_response__descriptor, &reply, until, err);
    if (status == DIBS_OK && !take_answers((Etcd__TxnResponse *)reply, blobs, count))
        status = dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    protobuf_c_message_free_unpacked(reply, NULL);
    return status;
}

typedef struct change {
    char room[DIBS__ETCD_CELL_KEY_SIZE];
    Etcd__Compare compare;
    Etcd__RequestOp op;
    Etcd__PutRequest put;
    Etcd__DeleteRangeRequest drop;
} change;

static void fill_put(Etcd__PutRequest *put, Etcd__RequestOp *op, ProtobufCBinaryData key,
                     ProtobufCBinaryData value, int64_t lease)
{
    etcd__put_request__init(put);
    etcd__request_op__init(op);
    put->key = key;
    put->value = value;
    put->lease = lease;
    op->request_case = ETCD__REQUEST_OP__REQUEST_REQUEST_PUT;
    op->request_put = put;
}

static void fill_drop(Etcd__DeleteRangeRequest *drop, Etcd__RequestOp *op, ProtobufCBinaryData key)
{
    etcd__delete_range_request__init(drop);
    etcd__request_op__init(op);
    drop->key = key;
    op->request_case = ETCD__REQUEST_OP__REQUEST_REQUEST_DELETE_RANGE;
    op->request_delete_range = drop;
}

/* True: there is something to do, not only to compare. */
static bool fill_change(const dibs__etcd *e, const dibs__entries_blob *b, change *c)
{
    ProtobufCBinaryData key = dibs__etcd_cell_key(e, b->folder, b->key, c->room);

    etcd__compare__init(&c->compare);
    c->compare.key = key;
    c->compare.target = ETCD__COMPARE__COMPARE_TARGET__MOD;
    c->compare.target_union_case = ETCD__COMPARE__TARGET_UNION_MOD_REVISION;
    c->compare.mod_revision = b->version < 0 ? 0 : b->version;
    if (b->change == DIBS__ENTRIES_PUT) {
        fill_put(&c->put, &c->op, key,
                 (ProtobufCBinaryData){b->put_size, (uint8_t *)(uintptr_t)b->put}, 0);
    } else {
        fill_drop(&c->drop, &c->op, key);
    }
    return b->change != DIBS__ENTRIES_AS_IT_IS;
}

/* What goes with the first: its keep-alive, bound to `lease` (0: it has none), and its place in the queue. */
static void fill_beside(const dibs__etcd *e, const dibs__entries_blob *first, int64_t lease,
                        change *c, Etcd__TxnRequest *txn)
{
    const dibs__entries_turn *turn = first->turn;

    if (lease) {
        fill_put(&c->put, &c->op, dibs__etcd_cell_key(e, "%l", first->key, c->room),
                 (ProtobufCBinaryData){0}, lease);
        txn->success[txn->n_success++] = &c++->op;
    }
    if (turn && turn->made) {
        fill_drop(&c->drop, &c->op, dibs__etcd_queue_key(e, first, turn, c->room));
        txn->success[txn->n_success++] = &c->op;
    }
}

static dibs_status write_all(dibs__etcd *e, const dibs__entries_blob *blobs, size_t count,
                             int64_t lease, dibs__deadline until, uint64_t *number, dibs_error *err)
{
    change *c = malloc((count + BESIDE) * sizeof *c);
    Etcd__Compare *compares[WRITE_MAX];
    Etcd__RequestOp *ops[WRITE_MAX];
    Etcd__TxnRequest txn = ETCD__TXN_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    Etcd__TxnResponse *r;
    dibs_status status;

    if (!c)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    txn.compare = compares;
    txn.n_compare = count;
    txn.success = ops;
    for (size_t i = 0; i < count; i++) {
        if (fill_change(e, &blobs[i], &c[i]))
            ops[txn.n_success++] = &c[i].op;
        compares[i] = &c[i].compare;
    }
    fill_beside(e, &blobs[0], lease, &c[count], &txn);
    status = dibs__etcd_ask(e->client, DIBS__ETCD_GUARDED, TXN, &txn.base,
                            &etcd__txn_response__descriptor, &reply, until, err);
    r = (Etcd__TxnResponse *)reply;
    *number = status == DIBS_OK && r->succeeded && r->header ? (uint64_t)r->header->revision : 0;
    if (*number && blobs[0].turn)
        blobs[0].turn->made = false;
    protobuf_c_message_free_unpacked(reply, NULL);
    free(c);
    return status;
}

/* A lease that was revoked meanwhile is surely not bound to anything: once more with another. */
dibs_status dibs__etcd_cells_write(dibs__entries_backend *s, const dibs__entries_blob *blobs,
                                   size_t count, dibs__deadline until, uint64_t *number,
                                   dibs_error *err)
{
    dibs__etcd *e = (dibs__etcd *)s;
    bool heartbeat = blobs[0].change == DIBS__ENTRIES_PUT && blobs[0].heartbeat > 0;
    dibs_status status = DIBS_OK;
    int64_t lease = 0;

    *number = 0;
    for (int tries = 0; tries < 2; tries++) {
        if (heartbeat)
            status = dibs__etcd_heartbeat_lease(e, blobs[0].heartbeat, until, &lease, err);
        if (status == DIBS_OK)
            status = write_all(e, blobs, count, lease, until, number, err);
        if (!heartbeat || status != DIBS_UNAVAILABLE || lease == 0)
            break;
        dibs__etcd_heartbeat_gone(e, lease);
    }
    return status;
}

dibs_status dibs__etcd_cells_walk(dibs__entries_backend *s, const char *folder, const char *after,
                                  size_t limit, dibs__deadline until, dibs__entries_blob **out,
                                  size_t *count, dibs_error *err)
{
    dibs__etcd *e = (dibs__etcd *)s;
    char from[DIBS__ETCD_CELL_KEY_SIZE], end[DIBS__ETCD_CELL_KEY_SIZE];
    Etcd__RangeRequest range = ETCD__RANGE_REQUEST__INIT;
    Etcd__RangeResponse *r;
    ProtobufCMessage *reply = NULL;
    size_t head = strlen(e->prefix) + strlen(folder) + 2;
    dibs_status status;

    range.key = dibs__etcd_cell_key(e, folder, after, from);
    range.key.len += *after ? 1 : 0; /* the zero behind it: the next key */
    range.range_end = dibs__etcd_cell_key(e, folder, "", end);
    end[range.range_end.len - 1]++; /* the slash */
    range.limit = (int64_t)limit;
    status = dibs__etcd_ask(e->client, DIBS__ETCD_READ, "/etcdserverpb.KV/Range", &range.base,
                            &etcd__range_response__descriptor, &reply, until, err);
    if (status != DIBS_OK)
        return status;
    r = (Etcd__RangeResponse *)reply;
    *out = calloc(r->n_kvs + 1, sizeof **out);
    *count = 0;
    for (size_t i = 0; *out && i < r->n_kvs; i++) {
        dibs__entries_blob *b = &(*out)[*count];
        const Etcd__KeyValue *kv = r->kvs[i];
        if (kv->key.len < head) /* none of that folder */
            continue;
        snprintf(b->folder, sizeof b->folder, "%s", folder);
        snprintf(b->key, sizeof b->key, "%.*s", (int)(kv->key.len - head), kv->key.data + head);
        if (!take_value(b, kv)) {
            dibs__entries_blobs_free(*out, *count);
            *out = NULL;
            *count = 0;
            break;
        }
        ++*count;
    }
    protobuf_c_message_free_unpacked(reply, NULL);
    return *out ? DIBS_OK : dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
}
