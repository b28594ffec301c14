/* What every call of the recipe's goes through: made, sent, answered, completed. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/etcd/etcd.h"

#include <stdlib.h>

dibs__etcd_op *dibs__etcd_op_new(dibs__entries_backend *s, dibs__entries_call *call)
{
    dibs__etcd *e = (dibs__etcd *)s;
    dibs__etcd_op *op = calloc(1, sizeof *op);

    if (!op)
        return NULL;
    op->e = e;
    op->call = call;
    op->until = dibs__sooner(call->until, dibs__after(e->env, e->request_span));
    return op;
}

bool dibs__etcd_op_send(dibs__etcd_op *op, dibs__etcd_kind kind, const char *method,
                        const ProtobufCMessage *request, dibs__etcd_done_fn *done)
{
    dibs__etcd_call_fini(&op->rpc);
    return dibs__etcd_post(op->e->client, &op->rpc, kind, method, request, op->until, done);
}

static void op_free(dibs__etcd_op *op)
{
    dibs__etcd_call_fini(&op->rpc);
    free(op);
}

dibs_status dibs__etcd_op_started(dibs__etcd_op *op, bool ok)
{
    if (ok)
        return DIBS_OK;
    if (op)
        op_free(op);
    return DIBS_NO_MEMORY;
}

void dibs__etcd_op_go_on(dibs__etcd_op *op, bool ok)
{
    if (!ok)
        dibs__etcd_op_fail(op, DIBS_NO_MEMORY, "out of memory");
}

void dibs__etcd_op_done(dibs__etcd_op *op)
{
    dibs__entries_call *call = op->call;

    op_free(op);
    dibs__entries_done(call);
}

void dibs__etcd_op_fail(dibs__etcd_op *op, dibs_status status, const char *why)
{
    op->call->status = dibs__fail(&op->call->err, status, "%s", why);
    dibs__etcd_op_done(op);
}

void *dibs__etcd_op_answer(dibs__etcd_op *op, const ProtobufCMessageDescriptor *type)
{
    ProtobufCMessage *reply = NULL;

    op->call->status = dibs__etcd_answer(&op->rpc, type, &reply, &op->call->err);
    return reply;
}
