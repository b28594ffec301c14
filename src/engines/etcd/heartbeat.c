/* keep-alives of runs: keys PREFIX/%l/KEY, put together with the cell PREFIX/%c/KEY and bound to a
 * lease. While the key is there, and of the same revision as the cell, the runner has written within its
 * lease by etcd's clock; when it is not, the runner is dead. A new leader begins all leases anew, so that
 * nobody is declared dead too early.
 *
 * A lease serves all runs of the handle that ask for the same span, for a quarter of it: the signs of many
 * short runs cost next to nothing, and those of a dead one last up to a quarter longer, or until the least
 * that etcd grants. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/etcd/etcd.h"

#define HEARTBEATS (sizeof((dibs__etcd *)0)->heartbeat / sizeof((dibs__etcd *)0)->heartbeat[0])

/* With the lock. 0: there is none that lasts. */
static int64_t find(dibs__etcd *e, int64_t span)
{
    dibs__deadline now = dibs__now(e->env);

    for (size_t i = 0; i < HEARTBEATS; i++)
        if (e->heartbeat[i].lease && e->heartbeat[i].span == span &&
            now + span <= e->heartbeat[i].until)
            return e->heartbeat[i].lease;
    return 0;
}

/* With the lock: in the place of one that is over, or of the one that ends first. */
static void keep(dibs__etcd *e, int64_t span, int64_t lease, dibs__deadline until)
{
    size_t worst = 0;

    for (size_t i = 0; i < HEARTBEATS; i++)
        if (e->heartbeat[i].until < e->heartbeat[worst].until)
            worst = i;
    e->heartbeat[worst].span = span;
    e->heartbeat[worst].lease = lease;
    e->heartbeat[worst].until = until;
}

static dibs_status grant(dibs__etcd *e, int64_t span, dibs__deadline until, int64_t *lease,
                         dibs_error *err)
{
    Etcd__LeaseGrantRequest request = ETCD__LEASE_GRANT_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    dibs__deadline sent = dibs__now(e->env);
    dibs_status status;

    request.id = dibs__etcd_lease_id(e);
    request.ttl = (span + span / 4 + DIBS__SECOND - 1) / DIBS__SECOND;
    status =
        dibs__etcd_ask(e->client, DIBS__ETCD_URGENT, "/etcdserverpb.Lease/LeaseGrant",
                       &request.base, &etcd__lease_grant_response__descriptor, &reply, until, err);
    if (status == DIBS_UNKNOWN)
        status = DIBS_UNAVAILABLE; /* a lease that nothing is bound to is nothing */
    if (status != DIBS_OK)
        return status;
    protobuf_c_message_free_unpacked(reply, NULL);
    *lease = request.id;
    pthread_mutex_lock(&e->lock);
    keep(e, span, *lease, sent + request.ttl * DIBS__SECOND);
    pthread_mutex_unlock(&e->lock);
    return DIBS_OK;
}

dibs_status dibs__etcd_heartbeat_lease(dibs__etcd *e, int64_t span, dibs__deadline until,
                                       int64_t *lease, dibs_error *err)
{
    pthread_mutex_lock(&e->lock);
    *lease = find(e, span);
    pthread_mutex_unlock(&e->lock);
    return *lease ? DIBS_OK : grant(e, span, until, lease, err);
}

void dibs__etcd_heartbeat_gone(dibs__etcd *e, int64_t lease)
{
    pthread_mutex_lock(&e->lock);
    for (size_t i = 0; i < HEARTBEATS; i++)
        if (e->heartbeat[i].lease == lease)
            e->heartbeat[i].lease = e->heartbeat[i].until = 0;
    pthread_mutex_unlock(&e->lock);
}
