/* Cells in etcd: keys PREFIX/%c/KEY and PREFIX/%r/KEY%REQUEST. A look is one transaction of ranges, a
 * write one that compares the revisions which were read. */
#define _GNU_SOURCE
#include "engines/line/cell.h"
#include "core/error.h"
#include "engines/etcd/etcd.h"

#include <stdio.h>

#define BLOBS_MAX 2
#define TXN       "/etcdserverpb.KV/Txn"

ProtobufCBinaryData dibs__etcd_cell_key(const dibs__etcd *e, const char *folder, const char *key,
                                        char room[DIBS__ETCD_CELL_KEY_SIZE])
{
    int n = snprintf(room, DIBS__ETCD_CELL_KEY_SIZE, "%s/%s/%s", e->prefix, folder, key);

    return (ProtobufCBinaryData){(size_t)n, (uint8_t *)room};
}

static bool take_value(dibs__line_blob *b, const Etcd__KeyValue *kv)
{
    b->data = malloc(kv->value.len + 1);
    if (!b->data)
        return false;
    if (kv->value.len)
        memcpy(b->data, kv->value.data, kv->value.len);
    b->size = kv->value.len;
    b->version = kv->mod_revision;
    return true;
}

static bool take_answers(const Etcd__TxnResponse *r, dibs__line_blob *blobs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const Etcd__RangeResponse *range =
            i < r->n_responses &&
                    r->responses[i]->response_case == ETCD__RESPONSE_OP__RESPONSE_RESPONSE_RANGE
                ? r->responses[i]->response_range
                : NULL;
        blobs[i].version = -1;
        blobs[i].data = NULL;
        if (range && range->n_kvs > 0 && !take_value(&blobs[i], range->kvs[0]))
            return false;
    }
    return true;
}

dibs_status dibs__etcd_cells_read(dibs__line_side *s, dibs__line_blob *blobs, size_t count,
                                  dibs__deadline until, dibs_error *err)
{
    dibs__etcd *e = (dibs__etcd *)s;
    char room[BLOBS_MAX][DIBS__ETCD_CELL_KEY_SIZE];
    Etcd__RangeRequest range[BLOBS_MAX];
    Etcd__RequestOp op[BLOBS_MAX], *ops[BLOBS_MAX];
    Etcd__TxnRequest txn = ETCD__TXN_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    dibs_status status;

    for (size_t i = 0; i < count; i++) {
        etcd__range_request__init(&range[i]);
        etcd__request_op__init(&op[i]);
        range[i].key = dibs__etcd_cell_key(e, blobs[i].folder, blobs[i].key, room[i]);
        op[i].request_case = ETCD__REQUEST_OP__REQUEST_REQUEST_RANGE;
        op[i].request_range = &range[i];
        ops[i] = &op[i];
    }
    txn.success = ops;
    txn.n_success = count;
    status = dibs__etcd_ask(e->client, TXN, &txn.base, &etcd__txn_response__descriptor, &reply,
                            until, err);
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

/* True: there is something to do, not only to compare. */
static bool fill_change(const dibs__etcd *e, const dibs__line_blob *b, change *c)
{
    ProtobufCBinaryData key = dibs__etcd_cell_key(e, b->folder, b->key, c->room);

    etcd__compare__init(&c->compare);
    c->compare.key = key;
    c->compare.target = ETCD__COMPARE__COMPARE_TARGET__MOD;
    c->compare.target_union_case = ETCD__COMPARE__TARGET_UNION_MOD_REVISION;
    c->compare.mod_revision = b->version < 0 ? 0 : b->version;
    etcd__request_op__init(&c->op);
    if (b->change == DIBS__LINE_PUT) {
        etcd__put_request__init(&c->put);
        c->put.key = key;
        c->put.value = (ProtobufCBinaryData){b->put_size, (uint8_t *)(uintptr_t)b->put};
        c->op.request_case = ETCD__REQUEST_OP__REQUEST_REQUEST_PUT;
        c->op.request_put = &c->put;
    } else {
        etcd__delete_range_request__init(&c->drop);
        c->drop.key = key;
        c->op.request_case = ETCD__REQUEST_OP__REQUEST_REQUEST_DELETE_RANGE;
        c->op.request_delete_range = &c->drop;
    }
    return b->change != DIBS__LINE_AS_IT_IS;
}

dibs_status dibs__etcd_cells_write(dibs__line_side *s, const dibs__line_blob *blobs, size_t count,
                                   dibs__deadline until, bool *done, dibs_error *err)
{
    dibs__etcd *e = (dibs__etcd *)s;
    change c[BLOBS_MAX];
    Etcd__Compare *compares[BLOBS_MAX];
    Etcd__RequestOp *ops[BLOBS_MAX];
    Etcd__TxnRequest txn = ETCD__TXN_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    dibs_status status;

    for (size_t i = 0; i < count; i++) {
        if (fill_change(e, &blobs[i], &c[i]))
            ops[txn.n_success++] = &c[i].op;
        compares[i] = &c[i].compare;
    }
    txn.compare = compares;
    txn.n_compare = count;
    txn.success = ops;
    status = dibs__etcd_ask(e->client, TXN, &txn.base, &etcd__txn_response__descriptor, &reply,
                            until, err);
    *done = status == DIBS_OK && ((Etcd__TxnResponse *)reply)->succeeded;
    protobuf_c_message_free_unpacked(reply, NULL);
    return status;
}

dibs_status dibs__etcd_cells_walk(dibs__line_side *s, const char *folder, const char *after,
                                  size_t limit, dibs__deadline until, dibs__line_blob **out,
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
    status = dibs__etcd_ask(e->client, "/etcdserverpb.KV/Range", &range.base,
                            &etcd__range_response__descriptor, &reply, until, err);
    if (status != DIBS_OK)
        return status;
    r = (Etcd__RangeResponse *)reply;
    *out = calloc(r->n_kvs + 1, sizeof **out);
    for (*count = 0; *out && *count < r->n_kvs; (*count)++) {
        dibs__line_blob *b = &(*out)[*count];
        const Etcd__KeyValue *kv = r->kvs[*count];
        snprintf(b->folder, sizeof b->folder, "%s", folder);
        snprintf(b->key, sizeof b->key, "%.*s", (int)(kv->key.len - head), kv->key.data + head);
        if (!take_value(b, kv))
            break;
    }
    protobuf_c_message_free_unpacked(reply, NULL);
    return *out ? DIBS_OK : dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
}
