/* The session of a handle is a lease. Its number is ours to choose, so that a grant whose answer
 * was lost leaves nothing behind that anybody would take for ours. When it ends, the next entry
 * makes a new one; calls that need it wait for that together. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/etcd/error.h"
#include "engines/etcd/etcd.h"

#define SHELF_SECONDS (24 * 3600)
#define TOUCH_SPAN    (3600 * DIBS__SECOND)

int64_t dibs__etcd_lease_id(const dibs__etcd *e)
{
    uint64_t id = 0;

    while ((id & INT64_MAX) == 0)
        e->env->random(e->env->ctx, &id, sizeof id);
    return (int64_t)(id & INT64_MAX);
}

/* ---- The first ------------------------------------------------------------------------------- */

static dibs_status check_ttl(const dibs__etcd *e, int64_t ttl, dibs_error *err)
{
    int64_t asked = e->ttl / DIBS__SECOND;

    if (ttl == asked)
        return DIBS_OK;
    return dibs__fail(err, DIBS_INVALID,
                      "a session of %lld s is not possible: this cluster grants %lld s to "
                      "9000000000 s; ask for that with ?session= (or --lease), or lower its "
                      "--election-timeout",
                      (long long)asked, (long long)ttl);
}

dibs_status dibs__etcd_session_open(dibs__etcd *e, dibs__deadline until, dibs_error *err)
{
    Etcd__LeaseGrantRequest request = ETCD__LEASE_GRANT_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    dibs__deadline sent = dibs__now(e->env);
    dibs_status status;

    request.id = dibs__etcd_lease_id(e);
    request.ttl = e->ttl / DIBS__SECOND;
    status = dibs__etcd_ask(e->client, "/etcdserverpb.Lease/LeaseGrant", &request.base,
                            &etcd__lease_grant_response__descriptor, &reply, until, err);
    if (status == DIBS_UNKNOWN)
        status = dibs__fail(err, DIBS_UNAVAILABLE,
                            "etcd gave no session in time: has the cluster "
                            "lost its majority?");
    if (status != DIBS_OK)
        return status;
    e->lease = request.id;
    dibs__etcd_lease_set(e->client, e->lease, sent, e->ttl);
    status = check_ttl(e, ((const Etcd__LeaseGrantResponse *)reply)->ttl, err);
    protobuf_c_message_free_unpacked(reply, NULL);
    if (status != DIBS_OK)
        dibs__etcd_session_end(e);
    return status;
}

void dibs__etcd_session_end(dibs__etcd *e)
{
    Etcd__LeaseRevokeRequest request = ETCD__LEASE_REVOKE_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;

    pthread_mutex_lock(&e->lock);
    request.id = e->lease;
    e->lease = 0;
    pthread_mutex_unlock(&e->lock);
    if (!request.id)
        return;
    dibs__etcd_lease_set(e->client, 0, 0, 0);
    dibs__etcd_ask(e->client, "/etcdserverpb.Lease/LeaseRevoke", &request.base,
                   &etcd__lease_revoke_response__descriptor, &reply,
                   dibs__after(e->env, DIBS__SECOND), NULL);
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
}

/* ---- The next -------------------------------------------------------------------------------- */

static dibs__etcd_op *take_all(dibs__etcd_op **list)
{
    dibs__etcd_op *all = *list;

    *list = NULL;
    return all;
}

static void on_granted(dibs__etcd_call *call)
{
    dibs__etcd *e = DIBS__FROM(dibs__etcd, grant, call);
    dibs__etcd_op *ops;
    ProtobufCMessage *reply = NULL;
    dibs_error err = {0};
    dibs_status status =
        dibs__etcd_answer(call, &etcd__lease_grant_response__descriptor, &reply, &err);

    dibs__etcd_call_fini(call);
    if (status == DIBS_OK)
        dibs__etcd_lease_set(e->client, e->grant_id, e->granted, e->ttl);
    pthread_mutex_lock(&e->lock);
    e->granting = false;
    if (status == DIBS_OK)
        e->lease = e->grant_id;
    ops = take_all(&e->waiting);
    pthread_mutex_unlock(&e->lock);
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    for (dibs__etcd_op *next; ops; ops = next) {
        next = ops->next;
        if (status != DIBS_OK)
            dibs__etcd_op_fail(ops, status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status,
                               err.message);
        else
            dibs__etcd_op_go_on(ops, dibs__etcd_session_need(ops));
    }
}

/* With the lock. */
static bool start_grant(dibs__etcd *e)
{
    Etcd__LeaseGrantRequest request = ETCD__LEASE_GRANT_REQUEST__INIT;

    e->grant_id = request.id = dibs__etcd_lease_id(e);
    request.ttl = e->ttl / DIBS__SECOND;
    e->granted = dibs__now(e->env);
    e->granting = dibs__etcd_post(e->client, &e->grant, "/etcdserverpb.Lease/LeaseGrant",
                                  &request.base, dibs__after(e->env, e->request_span), on_granted);
    if (!e->granting)
        dibs__etcd_call_fini(&e->grant);
    return e->granting;
}

bool dibs__etcd_session_need(dibs__etcd_op *op)
{
    dibs__etcd *e = op->e;
    int64_t lease;
    bool ok = true;

    pthread_mutex_lock(&e->lock);
    lease = op->lease = e->lease;
    if (!lease) {
        ok = e->granting || start_grant(e);
        if (ok) {
            op->next = e->waiting;
            e->waiting = op;
        }
    }
    pthread_mutex_unlock(&e->lock);
    return lease ? dibs__etcd_enter_send(op) : ok; /* who waits in line is the thread's */
}

/* ---- Its end --------------------------------------------------------------------------------- */

typedef struct revoke {
    dibs__etcd_call call;
} revoke;

static void on_revoked(dibs__etcd_call *call)
{
    dibs__etcd_call_fini(call);
    free(call);
}

/* The server may still have it: what we have told to be over shall not be in others' way. */
static void revoke_old(dibs__etcd *e, int64_t lease)
{
    Etcd__LeaseRevokeRequest request = ETCD__LEASE_REVOKE_REQUEST__INIT;
    revoke *r = calloc(1, sizeof *r);

    request.id = lease;
    if (r && !dibs__etcd_post(e->client, &r->call, "/etcdserverpb.Lease/LeaseRevoke", &request.base,
                              dibs__after(e->env, e->ttl), on_revoked))
        on_revoked(&r->call);
}

void dibs__etcd_on_lease_over(void *ctx, int64_t lease)
{
    dibs__etcd *e = ctx;
    dibs__etcd_op *ops;
    bool ours;

    pthread_mutex_lock(&e->lock);
    ours = e->lease == lease;
    if (ours) {
        e->lease = 0;
        dibs__etcd_slots_clear(e);
    }
    ops = ours ? take_all(&e->proving) : NULL;
    pthread_mutex_unlock(&e->lock);
    if (!ours)
        return;
    revoke_old(e, lease);
    dibs__line_log(e->side.line, DIBS_LOG_WARNING,
                   "etcd: the session is over: what was held is lost, what waits enters again");
    dibs__line_expired(e->side.line, (uint64_t)lease);
    for (dibs__etcd_op *next; ops; ops = next) {
        next = ops->next;
        dibs__etcd_check_proved(ops, false);
    }
}

void dibs__etcd_session_gone(dibs__etcd *e, int64_t lease)
{
    dibs__etcd_lease_set(e->client, 0, 0, 0);
    dibs__etcd_on_lease_over(e, lease);
}

void dibs__etcd_on_lease_renewed(void *ctx, bool proved)
{
    dibs__etcd *e = ctx;
    dibs__etcd_op *ops;

    pthread_mutex_lock(&e->lock);
    ops = take_all(&e->proving);
    pthread_mutex_unlock(&e->lock);
    for (dibs__etcd_op *next; ops; ops = next) {
        next = ops->next;
        dibs__etcd_check_proved(ops, proved);
    }
}

/* ---- Leases of names ------------------------------------------------------------------------- */

static void on_shelf(dibs__etcd_call *call)
{
    dibs__etcd_op *op = DIBS__FROM(dibs__etcd_op, rpc, call);
    bool there = strstr(call->stream.text, "lease already exists") != NULL;
    void *reply = dibs__etcd_op_answer(op, &etcd__lease_grant_response__descriptor);

    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    if (reply || there)
        dibs__etcd_op_go_on(op, op->again(op));
    else
        dibs__etcd_op_done(op);
}

void dibs__etcd_shelf_make(dibs__etcd_op *op, bool (*again)(dibs__etcd_op *op))
{
    Etcd__LeaseGrantRequest request = ETCD__LEASE_GRANT_REQUEST__INIT;

    request.id = dibs__etcd_shelf(op->e, op->call->name);
    request.ttl = SHELF_SECONDS;
    op->again = again;
    dibs__etcd_op_go_on(
        op, dibs__etcd_op_send(op, "/etcdserverpb.Lease/LeaseGrant", &request.base, on_shelf));
}

void dibs__etcd_shelf_touch(dibs__etcd *e, const char *name)
{
    int64_t lease = dibs__etcd_shelf(e, name);
    size_t i = (size_t)lease % (sizeof e->touched / sizeof e->touched[0]);
    dibs__deadline now = dibs__now(e->env);
    bool due;

    pthread_mutex_lock(&e->lock);
    due = e->touched[i].lease != lease || now > e->touched[i].at + TOUCH_SPAN;
    e->touched[i].lease = lease;
    if (due)
        e->touched[i].at = now;
    pthread_mutex_unlock(&e->lock);
    if (due)
        dibs__etcd_lease_touch(e->client, lease);
}
