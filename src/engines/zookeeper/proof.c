/* Until when the session surely lives, whatever happens to servers and network from now on.
 *
 * A session ends when its leader has heard of it for the last time longer ago than its span. Followers
 * hear our requests and tell the leader with their answer to its next ping, every half tick. So that a
 * request was answered proves little: the follower may be cut off from its leader, which goes on for
 * several ticks, or die before it has told; and a leader that has lost its quorum answers reads and
 * syncs for a while, while the others elect a new one, with whom all sessions begin anew.
 *
 * What proves something is an answer that needs a quorum, to a request sent at t: our server was then
 * in touch with a leader that had a quorum, and all that it had heard from us more than half a tick
 * before t had been told. A tick is at most half the shortest session that the server grants; a quarter
 * of the session is taken to be safe. So
 *
 *     alive until = the latest touch before (t − span/4) + span − margin
 *
 * with touches and proofs every span/16 while there is anything to lose, which leaves 5/8 of the span at
 * the least; half of it is what locks are promised. A proof is a multi that checks "/": it goes
 * through the quorum and changes nothing. Creates and deletes are proofs too.
 *
 * When the connection moves, the new server asks the leader whether the session lives, which counts: so
 * whatever was answered before is a base then. */
#include "engines/zookeeper/zookeeper.h"

#include <string.h>

static int64_t span_of(const dibs__zk *z)
{
    return z->session_span ? z->session_span : z->asked;
}

static void add_touch(dibs__zk_proof *p, dibs__deadline at, int64_t apart)
{
    size_t newest = (p->touches + DIBS__ZK_STAMPS - 1) % DIBS__ZK_STAMPS;

    if (at > p->last)
        p->last = at;
    if (p->touches && at < p->touch[newest] + apart)
        return;
    p->touch[p->touches++ % DIBS__ZK_STAMPS] = at;
}

void dibs__zk_proof_reset(dibs__zk *z, dibs__deadline at)
{
    memset(&z->proof, 0, sizeof z->proof);
    z->proof.base = z->proof.last = at;
    add_touch(&z->proof, at, 0);
}

void dibs__zk_proof_moved(dibs__zk *z)
{
    if (z->proof.last > z->proof.base)
        z->proof.base = z->proof.last;
}

void dibs__zk_proof_answered(dibs__zk *z, dibs__deadline sent, bool quorum)
{
    dibs__zk_proof *p = &z->proof;
    int64_t span = span_of(z);

    if (quorum)
        for (size_t i = 0; i < DIBS__ZK_STAMPS && i < p->touches; i++)
            if (p->touch[i] <= sent - span / 4 && p->touch[i] > p->base)
                p->base = p->touch[i];
    if (quorum && sent > p->tried)
        p->tried = sent;
    add_touch(p, sent, span / 32);
}

dibs__deadline dibs__zk_proof_until(const dibs__zk *z)
{
    int64_t span = span_of(z);

    return z->state == DIBS__ZK_OPEN ? z->proof.base + span - span / 64 : 0;
}

/* Idle, a touch now and then is enough for a proof to find it when there is something to lose again. */
dibs__deadline dibs__zk_proof_due(const dibs__zk *z)
{
    return z->proof.tried + span_of(z) / 16;
}

int64_t dibs__zk_usable(const dibs__entries_backend *s)
{
    return span_of((const dibs__zk *)s) / 2;
}

dibs__deadline dibs__zk_alive_until(dibs__entries_backend *s)
{
    dibs__zk *z = (dibs__zk *)s;
    dibs__deadline until;

    pthread_mutex_lock(&z->mutex);
    until = dibs__zk_proof_until(z);
    pthread_mutex_unlock(&z->mutex);
    return until;
}
