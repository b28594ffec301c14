/* The guard: what a request of ours brings when it arrives late is refused.
 *
 * A request whose caller has given it up may reach the server at any later time: TCP delivers after a
 * partition, a member that hung reads its buffers, a leader applies what it had accepted. By then its
 * caller has been told that nobody knows, has looked, has asked again, has decided. So every session
 * has a key, bound to its lease, and every transaction that must not come late compares the revision
 * at which that key was written last: the epoch. When such a transaction ends without an answer, the
 * key is written anew, and confirmed, before anything is asked that it could change; what bears an
 * older epoch finds it gone and does nothing. So does what belongs to a session that is over, since the
 * server is made to forget that one before the next begins (session.c).
 *
 * It costs nothing while all is well: the comparison, and a look at the key for when it fails, are added
 * to the transaction. (Bytes of one message behind those of another are both of them in one: that is how
 * protocol buffers merge, and so the number is that of the moment of sending.)
 *
 *   unanswered → stale → written → confirmed: epoch = its revision → what has waited goes out
 *
 * A transaction that was under way on a healthy connection meanwhile fails, too; it is sent again. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/etcd/error.h"
#include "engines/etcd/inner.h"

#include <stdio.h>
#include <string.h>

#define AGAIN       (100 * DIBS__MS)
#define WRITE_SPAN  (5 * DIBS__SECOND)
#define PREFIX_SIZE 5 /* of a gRPC message: a flag and its length */

/* ---- On requests ----------------------------------------------------------------------------- */

/* With the mutex, like all here. */
static bool make_bytes(dibs__etcd_guard *g)
{
    Etcd__Compare compare = ETCD__COMPARE__INIT, *compares[1] = {&compare};
    Etcd__RangeRequest look = ETCD__RANGE_REQUEST__INIT;
    Etcd__RequestOp op = ETCD__REQUEST_OP__INIT, *ops[1] = {&op};
    Etcd__TxnRequest txn = ETCD__TXN_REQUEST__INIT;
    uint8_t *to;
    size_t size;

    compare.key = look.key = (ProtobufCBinaryData){g->key.length, (uint8_t *)g->key.data};
    compare.target = ETCD__COMPARE__COMPARE_TARGET__MOD;
    compare.target_union_case = ETCD__COMPARE__TARGET_UNION_MOD_REVISION;
    compare.mod_revision = g->epoch;
    look.keys_only = true;
    op.request_case = ETCD__REQUEST_OP__REQUEST_REQUEST_RANGE;
    op.request_range = &look;
    txn.compare = compares;
    txn.failure = ops;
    txn.n_compare = txn.n_failure = 1;
    size = etcd__txn_request__get_packed_size(&txn);
    dibs__bytes_clear(&g->bytes);
    to = (uint8_t *)dibs__bytes_room(&g->bytes, size);
    if (to)
        g->bytes.length = etcd__txn_request__pack(&txn, to);
    return to != NULL;
}

/* What is right whatever arrives late goes out at once: a holder that cannot ask whether its entry is
 * there, because the guard cannot be written (no space is left), would lose what nobody takes from it. */
bool dibs__etcd_guard_lets(const dibs__etcd_client *c, dibs__etcd_kind kind)
{
    const dibs__etcd_guard *g = &c->guard;

    return kind < DIBS__ETCD_READ || (!g->stale && (kind == DIBS__ETCD_READ || g->session != 0));
}

bool dibs__etcd_guard_put_on(dibs__etcd_client *c, dibs__etcd_call *call)
{
    dibs__bytes *out = &call->stream.out;
    size_t length;

    out->length = call->whole;
    if (!make_bytes(&c->guard) || !dibs__bytes_add(out, c->guard.bytes.data, c->guard.bytes.length))
        return false;
    length = out->length - PREFIX_SIZE;
    for (size_t i = 1; i < PREFIX_SIZE; i++)
        out->data[i] = (uint8_t)(length >> (PREFIX_SIZE - 1 - i) * 8);
    call->session = c->guard.session;
    call->epoch = c->guard.epoch;
    return true;
}

/* ---- On answers ------------------------------------------------------------------------------ */

/* The look at the key, which comes last, in the answer of a transaction that was not done. */
static const Etcd__RangeResponse *guard_in(const Etcd__TxnResponse *r)
{
    const Etcd__ResponseOp *last = r->n_responses ? r->responses[r->n_responses - 1] : NULL;

    return last && last->response_case == ETCD__RESPONSE_OP__RESPONSE_RESPONSE_RANGE
               ? last->response_range
               : NULL;
}

static dibs__etcd_held judge(dibs__etcd_client *c, const dibs__etcd_call *call,
                             const Etcd__RangeResponse *look)
{
    dibs__etcd_guard *g = &c->guard;
    bool ours = g->session == call->session;
    int64_t epoch = look->n_kvs > 0 ? look->kvs[0]->mod_revision : 0;

    if (epoch == call->epoch)
        return DIBS__ETCD_HELD;
    if (epoch == 0) {
        if (ours)
            dibs__etcd_lease_end(c);
        return DIBS__ETCD_GONE_WITH_SESSION;
    }
    if (ours && epoch > g->epoch)
        g->epoch = epoch; /* a write of ours that nobody had answered */
    return DIBS__ETCD_MOVED;
}

/* `succeeded` of a TxnResponse, which comes before what may be long: fields 1 (header), 2, 3. */
static bool succeeded(const uint8_t *p, size_t length)
{
    size_t at = 0;

    if (length > 1 && p[0] == 0x0a && p[1] < 0x80)
        at = 2 + (size_t)p[1];
    return at + 1 < length && p[at] == 0x10 && p[at + 1] != 0;
}

dibs__etcd_held dibs__etcd_guard_held(dibs__etcd_client *c, const dibs__etcd_call *call)
{
    const dibs__bytes *in = &call->stream.in;
    dibs__etcd_held held = DIBS__ETCD_HELD;
    Etcd__TxnResponse *r;

    if (in->length < PREFIX_SIZE ||
        succeeded((const uint8_t *)in->data + PREFIX_SIZE, in->length - PREFIX_SIZE))
        return held; /* or it is no answer of a transaction: whoever asked finds that out */
    r = etcd__txn_response__unpack(NULL, in->length - PREFIX_SIZE,
                                   (const uint8_t *)in->data + PREFIX_SIZE);
    if (r && !r->succeeded && guard_in(r))
        held = judge(c, call, guard_in(r));
    if (r)
        etcd__txn_response__free_unpacked(r, NULL);
    return held;
}

void dibs__etcd_guard_ended(dibs__etcd_client *c, const dibs__etcd_call *call, int rpc)
{
    bool over = c->guard.session != 0 && c->guard.session != call->session;

    if (call->kind < DIBS__ETCD_GUARDED || call->session == 0 || over || rpc == DIBS__RPC_OK ||
        rpc == DIBS__RPC_UNSENT || rpc == DIBS__RPC_UNREACHED || rpc == DIBS__RPC_MEMORY_BEFORE)
        return;
    if (rpc < 0 || dibs__etcd_refusal(rpc, call->stream.text, NULL) == DIBS_UNKNOWN)
        c->guard.stale = true;
}

/* ---- Writing it anew ------------------------------------------------------------------------- */

/* What the server refuses for good must not keep the handle from all else: it goes on without. */
static void go_on(dibs__etcd_guard *g, const dibs_error *err)
{
    g->stale = false;
    if (!g->reported)
        snprintf(g->refused, sizeof g->refused, "%.190s", err->message);
    g->reported = true;
}

static bool is_gone(const dibs__etcd_call *call)
{
    return call->stream.rpc > 0 && strstr(call->stream.text, "key not found");
}

static void on_written(dibs__etcd_call *call)
{
    dibs__etcd_client *c = call->client;
    dibs__etcd_guard *g = &c->guard;
    ProtobufCMessage *reply = NULL;
    dibs_error err = {0};
    dibs_status status = dibs__etcd_answer(call, &etcd__put_response__descriptor, &reply, &err);
    const Etcd__PutResponse *r = (const Etcd__PutResponse *)reply;

    pthread_mutex_lock(&c->lock);
    g->writing = false;
    if (call->session != g->session) {
        /* Of a session that is over. */
    } else if (status == DIBS_OK && r->header) {
        g->epoch = r->header->revision;
        g->stale = g->reported = false;
    } else if (is_gone(call)) {
        dibs__etcd_lease_end(c);
    } else if (status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE) {
        g->again = dibs__after(c->env, AGAIN);
    } else {
        go_on(g, &err);
    }
    dibs__etcd_call_fini(call);
    dibs__etcd_calls_send(c);
    dibs__etcd_flush(c);
    pthread_mutex_unlock(&c->lock);
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
}

dibs__deadline dibs__etcd_guard_turn(dibs__etcd_client *c, int64_t now)
{
    dibs__etcd_guard *g = &c->guard;
    Etcd__PutRequest put = ETCD__PUT_REQUEST__INIT;

    if (!g->stale || !g->session || g->writing || !dibs__etcd_takes_requests(c))
        return DIBS__NEVER;
    if (now < g->again)
        return g->again;
    put.key = (ProtobufCBinaryData){g->key.length, (uint8_t *)g->key.data};
    put.ignore_value = put.ignore_lease = true; /* it fails when the key is not there */
    g->writing = dibs__etcd_post_locked(c, &g->put, DIBS__ETCD_URGENT, "/etcdserverpb.KV/Put",
                                        &put.base, now + WRITE_SPAN, on_written);
    g->put.session = g->session;
    if (!g->writing)
        dibs__etcd_call_fini(&g->put);
    g->again = now + AGAIN;
    return g->writing ? DIBS__NEVER : g->again;
}

/* ---- For everybody --------------------------------------------------------------------------- */

bool dibs__etcd_guard_set(dibs__etcd_client *c, int64_t session, const void *key, size_t length,
                          int64_t epoch)
{
    dibs__etcd_guard *g = &c->guard;
    bool ok;

    pthread_mutex_lock(&c->lock);
    dibs__bytes_clear(&g->key);
    ok = session == 0 || dibs__bytes_add(&g->key, key, length);
    g->session = ok ? session : 0;
    g->epoch = epoch;
    if (g->session)
        g->stale = false;
    if (g->writing && dibs__etcd_call_drop(&g->put))
        g->writing = false; /* that of the session before: this one's must not wait for it */
    dibs__etcd_calls_send(c);
    dibs__etcd_flush(c);
    dibs__etcd_kick(c);
    pthread_mutex_unlock(&c->lock);
    return ok;
}

void dibs__etcd_guard_doubt(dibs__etcd_client *c)
{
    pthread_mutex_lock(&c->lock);
    c->guard.stale = true;
    dibs__etcd_kick(c);
    pthread_mutex_unlock(&c->lock);
}

void dibs__etcd_guard_fini(dibs__etcd_client *c)
{
    dibs__bytes_fini(&c->guard.key);
    dibs__bytes_fini(&c->guard.bytes);
}
