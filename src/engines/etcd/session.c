/* The session of a handle is a lease, with a key that guards its requests (guard.c) and that is watched:
 * when the lease is revoked, by an operator or by a leader that is wrong about the time, the key goes with
 * all entries, and the handle learns it at once. The lease's number is ours to choose, so that a grant
 * whose answer was lost leaves nothing behind that anybody would take for ours.
 *
 *   over → the old lease is revoked, and confirmed → a new one → its key → it stands
 *
 * So nothing of the old session takes effect once the new one stands. Calls that need a session wait for
 * that together; when it fails they learn why, and it is tried again. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/etcd/error.h"
#include "engines/etcd/etcd.h"

#include <stdio.h>
#include <string.h>

#define VALUE_LEASE_SECONDS (24 * 3600)
#define TOUCH_SPAN          (3600 * DIBS__SECOND)
#define AGAIN               (250 * DIBS__MS)
#define SHARE               5 /* the first two tries to open get this part of the time each, the third the rest */
#define GUARD_SIZE          (DIBS__ETCD_PREFIX_MAX + 32)

int64_t dibs__etcd_lease_id(const dibs__etcd *e)
{
    uint64_t id = 0;

    while ((id & INT64_MAX) == 0)
        e->env->random(e->env->ctx, &id, sizeof id);
    return (int64_t)(id & INT64_MAX);
}

/* ---- Its key --------------------------------------------------------------------------------- */

static ProtobufCBinaryData guard_key(const dibs__etcd *e, int64_t lease, char room[GUARD_SIZE])
{
    int n = snprintf(room, GUARD_SIZE, "%s/%%s/%llx", e->prefix, (unsigned long long)lease);

    return (ProtobufCBinaryData){(size_t)n, (uint8_t *)room};
}

/* The lease was asked for at `sent`, and its key was written at revision `epoch`. false: out of memory. */
static bool stands(dibs__etcd *e, int64_t lease, dibs__deadline sent, int64_t epoch)
{
    char room[GUARD_SIZE];
    ProtobufCBinaryData key = guard_key(e, lease, room);
    uint64_t tag;

    pthread_mutex_lock(&e->lock);
    e->lease = lease;
    e->old = 0;
    e->opened = true;
    tag = e->guard_tag = ++e->tags;
    pthread_mutex_unlock(&e->lock);
    dibs__etcd_lease_set(e->client, lease, sent, e->ttl);
    return dibs__etcd_watch(e->client, tag, key.data, key.len, epoch + 1) &&
           dibs__etcd_guard_set(e->client, lease, key.data, key.len, epoch);
}

bool dibs__etcd_session_event(dibs__etcd *e, uint64_t tag, dibs__etcd_news news)
{
    int64_t lease;
    bool ours;

    pthread_mutex_lock(&e->lock);
    ours = tag == e->guard_tag;
    lease = e->lease;
    pthread_mutex_unlock(&e->lock);
    if (ours && news & DIBS__ETCD_GONE)
        dibs__etcd_session_gone(e, lease);
    else if (ours && news & DIBS__ETCD_DOUBT)
        dibs__etcd_guard_doubt(e->client);
    return ours;
}

/* ---- The first ------------------------------------------------------------------------------- */

static dibs_status check_ttl(const dibs__etcd *e, int64_t ttl, dibs_error *err)
{
    int64_t asked = e->ttl / DIBS__SECOND;

    if (ttl == asked)
        return DIBS_OK;
    return dibs__fail(err, DIBS_INVALID,
                      "a session of %lld s is not possible: this cluster allows %lld s to "
                      "9000000000 s; ask for that with ?session= (or --lease), or lower its "
                      "--election-timeout",
                      (long long)asked, (long long)ttl);
}

static dibs_status open_guard(dibs__etcd *e, int64_t lease, dibs__deadline sent,
                              dibs__deadline until, dibs_error *err)
{
    Etcd__PutRequest request = ETCD__PUT_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    char room[GUARD_SIZE];
    dibs_status status;

    request.key = guard_key(e, lease, room);
    request.lease = lease;
    status = dibs__etcd_ask(e->client, DIBS__ETCD_URGENT, "/etcdserverpb.KV/Put", &request.base,
                            &etcd__put_response__descriptor, &reply, until, err);
    if (status == DIBS_OK &&
        !stands(e, lease, sent, ((const Etcd__PutResponse *)reply)->header->revision))
        status = dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    return status;
}

/* Each try has a lease of its own: what an earlier one may have left ends by itself. */
static dibs_status try_to_open(dibs__etcd *e, dibs__deadline until, dibs_error *err)
{
    Etcd__LeaseGrantRequest request = ETCD__LEASE_GRANT_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    dibs__deadline sent = dibs__now(e->env);
    dibs_status status;

    request.id = dibs__etcd_lease_id(e);
    request.ttl = e->ttl / DIBS__SECOND;
    status =
        dibs__etcd_ask(e->client, DIBS__ETCD_URGENT, "/etcdserverpb.Lease/LeaseGrant",
                       &request.base, &etcd__lease_grant_response__descriptor, &reply, until, err);
    if (status != DIBS_OK)
        return status;
    pthread_mutex_lock(&e->lock);
    e->old = request.id; /* to be revoked if it does not stand */
    pthread_mutex_unlock(&e->lock);
    status = check_ttl(e, ((const Etcd__LeaseGrantResponse *)reply)->ttl, err);
    protobuf_c_message_free_unpacked(reply, NULL);
    return status == DIBS_OK ? open_guard(e, request.id, sent, until, err) : status;
}

/* A request that a member passes to a leader that is dead is never answered, although the cluster has a new
 * leader a second later: so it is asked again. The last try has most of the time, for a cluster that is slow. */
dibs_status dibs__etcd_session_open(dibs__etcd *e, dibs__deadline until, dibs_error *err)
{
    int64_t share = (until - dibs__now(e->env)) / SHARE;
    dibs_status status;
    bool again;

    for (int tries = 1;; tries++) {
        dibs__deadline end = tries < 3 ? dibs__after(e->env, share) : until;
        status = try_to_open(e, end, err);
        again = status == DIBS_UNKNOWN || (status == DIBS_UNAVAILABLE && dibs__now(e->env) >= end);
        if (!again || dibs__now(e->env) + AGAIN >= until)
            break;
        dibs__sleep(e->env, dibs__sooner(end - dibs__now(e->env), AGAIN));
    }
    if (status == DIBS_UNKNOWN)
        status = dibs__fail(err, DIBS_UNAVAILABLE,
                            "etcd did not open a session in time: has the cluster "
                            "lost its majority?");
    if (status != DIBS_OK)
        dibs__etcd_session_end(e);
    return status;
}

void dibs__etcd_session_end(dibs__etcd *e)
{
    Etcd__LeaseRevokeRequest request = ETCD__LEASE_REVOKE_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;

    pthread_mutex_lock(&e->lock);
    e->closing = true;
    request.id = e->lease ? e->lease : e->old;
    e->lease = e->old = 0;
    e->guard_tag = 0;
    pthread_mutex_unlock(&e->lock);
    if (!request.id)
        return;
    dibs__etcd_lease_set(e->client, 0, 0, 0);
    dibs__etcd_ask(e->client, DIBS__ETCD_URGENT, "/etcdserverpb.Lease/LeaseRevoke", &request.base,
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

static bool start_step(dibs__etcd *e, dibs__etcd_step step);

/* It stands, or it does not: those who wait go on. */
static void settle(dibs__etcd *e, dibs_status status, const dibs_error *err)
{
    dibs__etcd_op *ops;
    bool closing;

    pthread_mutex_lock(&e->lock);
    e->step = DIBS__ETCD_NO_STEP;
    closing = e->closing;
    ops = take_all(&e->waiting);
    pthread_mutex_unlock(&e->lock);
    if (status != DIBS_OK && !closing)
        dibs__etcd_alarm(e->client, dibs__after(e->env, AGAIN));
    for (dibs__etcd_op *next; ops; ops = next) {
        next = ops->next;
        if (status != DIBS_OK)
            dibs__etcd_op_fail(ops, status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status,
                               err->message);
        else
            dibs__etcd_op_go_on(ops, dibs__etcd_session_need(ops));
    }
}

static void on_step(dibs__etcd_call *call)
{
    static const ProtobufCMessageDescriptor *const types[] = {
        [DIBS__ETCD_REVOKES] = &etcd__lease_revoke_response__descriptor,
        [DIBS__ETCD_GRANTS] = &etcd__lease_grant_response__descriptor,
        [DIBS__ETCD_GUARDS] = &etcd__put_response__descriptor,
    };
    dibs__etcd *e = DIBS__FROM(dibs__etcd, grant, call);
    dibs__etcd_step step = e->step;
    ProtobufCMessage *reply = NULL;
    dibs_error err = {0};
    dibs_status status = dibs__etcd_answer(call, types[step], &reply, &err);
    bool gone = dibs__etcd_lease_is_gone(call->stream.rpc, call->stream.text);
    int64_t epoch = 0;

    dibs__etcd_call_fini(call);
    if (step == DIBS__ETCD_REVOKES && gone)
        status = DIBS_OK;
    if (step == DIBS__ETCD_GUARDS && status == DIBS_OK)
        epoch = ((const Etcd__PutResponse *)reply)->header->revision;
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    if (status == DIBS_OK && step == DIBS__ETCD_GUARDS) {
        if (!stands(e, e->grant_id, e->granted, epoch)) {
            status = dibs__fail(&err, DIBS_NO_MEMORY, "out of memory");
            dibs__etcd_session_gone(e, e->grant_id); /* another time */
        }
        settle(e, status, &err);
        return;
    }
    pthread_mutex_lock(&e->lock);
    if (status == DIBS_OK && step == DIBS__ETCD_REVOKES)
        e->old = 0;
    if (status == DIBS_OK && !start_step(e, step + 1))
        status = dibs__fail(&err, DIBS_NO_MEMORY, "out of memory");
    pthread_mutex_unlock(&e->lock);
    if (status != DIBS_OK)
        settle(e, status, &err);
}

/* With the lock. */
static bool start_step(dibs__etcd *e, dibs__etcd_step step)
{
    Etcd__LeaseRevokeRequest revoke = ETCD__LEASE_REVOKE_REQUEST__INIT;
    Etcd__LeaseGrantRequest grant = ETCD__LEASE_GRANT_REQUEST__INIT;
    Etcd__PutRequest put = ETCD__PUT_REQUEST__INIT;
    const ProtobufCMessage *request = &revoke.base;
    const char *method = "/etcdserverpb.Lease/LeaseRevoke";
    char room[GUARD_SIZE];

    revoke.id = e->old;
    if (step == DIBS__ETCD_GRANTS) {
        method = "/etcdserverpb.Lease/LeaseGrant";
        request = &grant.base;
        e->grant_id = grant.id = dibs__etcd_lease_id(e);
        grant.ttl = e->ttl / DIBS__SECOND;
        e->granted = dibs__now(e->env);
    } else if (step == DIBS__ETCD_GUARDS) {
        method = "/etcdserverpb.KV/Put";
        request = &put.base;
        put.key = guard_key(e, e->grant_id, room);
        put.lease = e->grant_id;
    }
    e->step = step;
    if (dibs__etcd_post(e->client, &e->grant, DIBS__ETCD_URGENT, method, request,
                        dibs__after(e->env, e->request_span), on_step))
        return true;
    dibs__etcd_call_fini(&e->grant);
    e->step = DIBS__ETCD_NO_STEP;
    return false;
}

/* With the lock. */
static bool begin_anew(dibs__etcd *e)
{
    return e->step != DIBS__ETCD_NO_STEP ||
           start_step(e, e->old ? DIBS__ETCD_REVOKES : DIBS__ETCD_GRANTS);
}

void dibs__etcd_session_retry(dibs__etcd *e)
{
    bool ok = true;

    pthread_mutex_lock(&e->lock);
    if (e->opened && !e->lease && !e->closing)
        ok = begin_anew(e);
    pthread_mutex_unlock(&e->lock);
    if (!ok)
        dibs__etcd_alarm(e->client, dibs__after(e->env, AGAIN));
}

bool dibs__etcd_session_need(dibs__etcd_op *op)
{
    dibs__etcd *e = op->e;
    int64_t lease;
    bool ok = true;

    pthread_mutex_lock(&e->lock);
    lease = op->lease = e->lease;
    if (!lease) {
        ok = begin_anew(e);
        if (ok) {
            op->next = e->waiting;
            e->waiting = op;
        }
    }
    pthread_mutex_unlock(&e->lock);
    return lease ? dibs__etcd_enter_send(op) : ok; /* who waits in the queue is the thread's */
}

/* ---- Its end --------------------------------------------------------------------------------- */

void dibs__etcd_on_lease_over(void *ctx, int64_t lease)
{
    dibs__etcd *e = ctx;
    dibs__etcd_op *ops;
    uint64_t tag;
    bool ours;

    pthread_mutex_lock(&e->lock);
    ours = e->lease == lease && lease != 0;
    tag = e->guard_tag;
    if (ours) {
        e->old = lease; /* the server may still have it */
        e->lease = 0;
        e->guard_tag = 0;
        dibs__etcd_slots_clear(e);
    }
    ops = ours ? take_all(&e->proving) : NULL;
    pthread_mutex_unlock(&e->lock);
    if (!ours)
        return;
    dibs__etcd_guard_set(e->client, 0, NULL, 0, 0);
    dibs__etcd_unwatch(e->client, tag);
    dibs__etcd_session_retry(e);
    dibs__entries_log(
        e->backend.entries, DIBS_LOG_WARNING,
        "etcd: the session has expired: what was held is lost, what waits enters again");
    dibs__entries_expired(e->backend.entries, (uint64_t)lease);
    for (dibs__etcd_op *next; ops; ops = next) {
        next = ops->next;
        dibs__etcd_check_proved(ops, false);
    }
}

void dibs__etcd_session_gone(dibs__etcd *e, int64_t lease)
{
    dibs__etcd_lease_drop(e->client, lease);
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

static void on_value_lease(dibs__etcd_call *call)
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

void dibs__etcd_value_lease_make(dibs__etcd_op *op, bool (*again)(dibs__etcd_op *op))
{
    Etcd__LeaseGrantRequest request = ETCD__LEASE_GRANT_REQUEST__INIT;

    request.id = dibs__etcd_value_lease(op->e, op->call->name);
    request.ttl = VALUE_LEASE_SECONDS;
    op->again = again;
    dibs__etcd_op_go_on(op,
                        dibs__etcd_op_send(op, DIBS__ETCD_URGENT, "/etcdserverpb.Lease/LeaseGrant",
                                           &request.base, on_value_lease));
}

void dibs__etcd_value_lease_touch(dibs__etcd *e, const char *name)
{
    int64_t lease = dibs__etcd_value_lease(e, name);
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
