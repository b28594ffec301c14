/* The queue of those that change one cell: keys PREFIX/%q/KEY/TURN in the order of their creation, bound
 * to the lease of a keep-alive, so that those of the dead go by themselves. */
#define _GNU_SOURCE
#include "engines/etcd/etcd.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define SPAN (10 * DIBS__SECOND) /* what a dead one's place lasts at the least */

ProtobufCBinaryData dibs__etcd_queue_key(const dibs__etcd *e, const dibs__entries_blob *cell,
                                         const dibs__entries_turn *t,
                                         char room[DIBS__ETCD_CELL_KEY_SIZE])
{
    ProtobufCBinaryData key = dibs__etcd_cell_key(e, "%q", cell->key, room);

    key.len += (size_t)snprintf(room + key.len, DIBS__ETCD_CELL_KEY_SIZE - key.len, "/%s",
                                t ? t->name : "");
    return key;
}

void dibs__etcd_queue_range(const dibs__etcd *e, const dibs__entries_blob *cell,
                            char room[2][DIBS__ETCD_CELL_KEY_SIZE], Etcd__RangeRequest *range)
{
    etcd__range_request__init(range);
    range->key = dibs__etcd_queue_key(e, cell, NULL, room[0]);
    range->range_end = dibs__etcd_queue_key(e, cell, NULL, room[1]);
    room[1][range->range_end.len - 1]++; /* the slash */
    range->keys_only = true;
}

/* `count` of an answer knows nothing of revisions. */
static dibs_status look(dibs__etcd *e, const dibs__entries_blob *cell, const dibs__entries_turn *t,
                        dibs__deadline until, size_t *ahead)
{
    char room[2][DIBS__ETCD_CELL_KEY_SIZE];
    Etcd__RangeRequest range;
    ProtobufCMessage *reply = NULL;
    dibs_status status;

    dibs__etcd_queue_range(e, cell, room, &range);
    range.max_create_revision = t->order - 1;
    range.serializable = true; /* from any member: it need not be the last word */
    status = dibs__etcd_ask(e->client, DIBS__ETCD_READ, "/etcdserverpb.KV/Range", &range.base,
                            &etcd__range_response__descriptor, &reply, until, NULL);
    if (status == DIBS_OK)
        *ahead = ((Etcd__RangeResponse *)reply)->n_kvs;
    protobuf_c_message_free_unpacked(reply, NULL);
    return status;
}

static bool take_answer(const Etcd__TxnResponse *r, dibs__entries_turn *t, size_t *ahead)
{
    const Etcd__ResponseOp *op = r->n_responses > 0 ? r->responses[0] : NULL;

    if (!r->header || !op || op->response_case != ETCD__RESPONSE_OP__RESPONSE_RESPONSE_RANGE)
        return false;
    *ahead = op->response_range->n_kvs;
    t->order = r->header->revision;
    t->made = true;
    return true;
}

/* Counts first, then takes its place, in one step. */
static dibs_status make(dibs__etcd *e, const dibs__entries_blob *cell, dibs__entries_turn *t,
                        dibs__deadline until, size_t *ahead)
{
    char room[2][DIBS__ETCD_CELL_KEY_SIZE], own[DIBS__ETCD_CELL_KEY_SIZE];
    Etcd__RangeRequest range;
    Etcd__PutRequest put = ETCD__PUT_REQUEST__INIT;
    Etcd__RequestOp op[2] = {ETCD__REQUEST_OP__INIT, ETCD__REQUEST_OP__INIT};
    Etcd__RequestOp *ops[2] = {&op[0], &op[1]};
    Etcd__TxnRequest txn = ETCD__TXN_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    uint64_t random[2];
    dibs_status status = dibs__etcd_heartbeat_lease(e, SPAN, until, &put.lease, NULL);

    if (status != DIBS_OK)
        return status;
    e->env->random(e->env->ctx, random, sizeof random);
    snprintf(t->name, sizeof t->name, "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    dibs__etcd_queue_range(e, cell, room, &range);
    put.key = dibs__etcd_queue_key(e, cell, t, own);
    op[0].request_case = ETCD__REQUEST_OP__REQUEST_REQUEST_RANGE;
    op[0].request_range = &range;
    op[1].request_case = ETCD__REQUEST_OP__REQUEST_REQUEST_PUT;
    op[1].request_put = &put;
    txn.success = ops;
    txn.n_success = 2;
    status = dibs__etcd_ask(e->client, DIBS__ETCD_URGENT, "/etcdserverpb.KV/Txn", &txn.base,
                            &etcd__txn_response__descriptor, &reply, until, NULL);
    if (status != DIBS_OK)
        dibs__etcd_heartbeat_gone(e, put.lease); /* it may have been that */
    else if (!take_answer((Etcd__TxnResponse *)reply, t, ahead))
        status = DIBS_ENGINE_FAILED;
    protobuf_c_message_free_unpacked(reply, NULL);
    return status;
}

dibs_status dibs__etcd_cells_join_queue(dibs__entries_backend *s, const dibs__entries_blob *cell,
                                        dibs__entries_turn *t, dibs__deadline until, size_t *ahead)
{
    dibs__etcd *e = (dibs__etcd *)s;

    *ahead = 0;
    return t->made ? look(e, cell, t, until, ahead) : make(e, cell, t, until, ahead);
}

static void on_left(dibs__etcd_call *call)
{
    dibs__etcd_call_fini(call);
    free(call);
}

/* Nobody waits for that; what gets no answer goes with its lease. */
void dibs__etcd_cells_leave_queue(dibs__entries_backend *s, const dibs__entries_blob *cell,
                                  dibs__entries_turn *t)
{
    dibs__etcd *e = (dibs__etcd *)s;
    dibs__etcd_call *call = malloc(sizeof *call);
    char room[DIBS__ETCD_CELL_KEY_SIZE];
    Etcd__DeleteRangeRequest drop = ETCD__DELETE_RANGE_REQUEST__INIT;

    drop.key = dibs__etcd_queue_key(e, cell, t, room);
    if (call && !dibs__etcd_post(e->client, call, DIBS__ETCD_FINAL, "/etcdserverpb.KV/DeleteRange",
                                 &drop.base, dibs__after(e->env, e->request_span), on_left))
        on_left(call);
    t->made = false;
}
