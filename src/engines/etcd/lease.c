/* The handle's lease: kept alive on a stream of its own, and proved.
 *
 * An answer to a keep-alive is not enough. A leader that has been deposed and does not know yet
 * (cut off from the others, for up to an election timeout) still answers, while the new one counts
 * the lease from its own election. So a linearizable read follows each answer: it needs a majority,
 * and when it was served in the same term, the leader that renewed was the leader. If it was
 * elected after the keep-alive was sent, it has extended every lease by a whole TTL since, and the
 * terms differ: then the keep-alive is not counted, and the next one comes at once.
 *
 *   due → keep-alive sent → answered (TTL, term) → read → answered (same term): until = sent + TTL
 */
#define _GNU_SOURCE
#include "engines/etcd/error.h"
#include "engines/etcd/inner.h"

#include <string.h>

/* ---- Steps ----------------------------------------------------------------------------------- */

static void push(dibs__etcd_client *c, int64_t id)
{
    Etcd__LeaseKeepAliveRequest request = ETCD__LEASE_KEEP_ALIVE_REQUEST__INIT;

    request.id = id;
    if (!dibs__h2_push(c->h2, &c->lease.stream, &request.base))
        dibs__etcd_leave(c);
}

static void ask(dibs__etcd_client *c, int64_t now)
{
    dibs__etcd_lease *l = &c->lease;

    l->sent = now;
    l->answered = false;
    push(c, l->id);
    dibs__etcd_flush(c);
}

static void failed(dibs__etcd_client *c, int64_t now)
{
    c->lease.sent = 0;
    c->lease.answered = false;
    c->lease.due = now + c->lease.ttl / 12;
    c->lease.renewed = -1;
}

/* What a majority has confirmed only grows, unless the cluster is another one with the same address:
 * restored from a backup. Our lease may be in there, our entries or not, and watches would wait for
 * revisions that are far off: all of it is begun anew. The proof is compared with what was known when
 * it was asked for: answers to later requests may have come before it, or together with it. */
static bool went_back(dibs__etcd_client *c, const Etcd__ResponseHeader *h)
{
    dibs__etcd_lease *l = &c->lease;
    bool back = h->revision < l->asked_revision || h->raft_term < l->seen_term;

    if (back || h->revision > l->seen_revision)
        l->seen_revision = h->revision; /* that of now, or of the other cluster */
    l->seen_term = h->raft_term;        /* proofs alone tell it, one after another */
    return back;
}

static void end(dibs__etcd_client *c)
{
    if (!c->lease.id)
        return;
    c->lease.over = c->lease.id;
    c->lease.id = 0;
    c->lease.sent = c->lease.until = 0;
    c->lease.answered = false;
}

static void on_message(dibs__h2_stream *s, const uint8_t *data, size_t length)
{
    dibs__etcd_client *c = DIBS__FROM(dibs__etcd_client, lease.stream, s);
    Etcd__LeaseKeepAliveResponse *r = etcd__lease_keep_alive_response__unpack(NULL, length, data);

    if (!r) {
        dibs__etcd_leave(c);
        return;
    }
    if (c->lease.id && r->id == c->lease.id && c->lease.sent) {
        c->lease.term = r->header ? r->header->raft_term : 0;
        c->lease.answered = r->ttl > 0;
        if (r->ttl <= 0)
            end(c);
    }
    etcd__lease_keep_alive_response__free_unpacked(r, NULL);
}

static void on_closed(dibs__h2_stream *s)
{
    dibs__etcd_client *c = DIBS__FROM(dibs__etcd_client, lease.stream, s);

    c->lease.up = false;
    dibs__etcd_leave(c);
}

/* ---- Proof ----------------------------------------------------------------------------------- */

static void on_proof(dibs__etcd_call *call)
{
    dibs__etcd_client *c = call->client;
    dibs__etcd_lease *l = &c->lease;
    ProtobufCMessage *reply = NULL;
    dibs_status status = dibs__etcd_answer(call, &etcd__range_response__descriptor, &reply, NULL);
    const Etcd__RangeResponse *r = (const Etcd__RangeResponse *)reply;

    pthread_mutex_lock(&c->lock);
    dibs__etcd_call_fini(call);
    l->proving = false;
    if (status == DIBS_OK && r->header && went_back(c, r->header))
        end(c);
    if (l->id != l->proved) {
        /* Of a lease that is over. */
    } else if (status == DIBS_OK && r->header && r->header->raft_term == l->term) {
        l->until = l->sent + l->ttl;
        l->due = l->sent + l->ttl / 3;
        l->sent = 0;
        l->answered = false;
        l->renewed = 1;
    } else {
        failed(c, dibs__now(c->env));
    }
    pthread_mutex_unlock(&c->lock);
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
}

static void prove(dibs__etcd_client *c)
{
    dibs__etcd_lease *l = &c->lease;
    Etcd__RangeRequest read = ETCD__RANGE_REQUEST__INIT;

    read.key = (ProtobufCBinaryData){strlen(c->address.probe), (uint8_t *)c->address.probe};
    read.keys_only = true;
    l->proved = l->id;
    l->asked_revision = l->seen_revision;
    l->proving = dibs__etcd_post_locked(c, &l->proof, DIBS__ETCD_URGENT, "/etcdserverpb.KV/Range",
                                        &read.base, l->sent + l->ttl / 2, on_proof);
    if (!l->proving)
        failed(c, dibs__now(c->env));
}

/* ---- For the thread -------------------------------------------------------------------------- */

void dibs__etcd_lease_start(dibs__etcd_client *c)
{
    dibs__etcd_lease *l = &c->lease;
    dibs__h2_stream *s = &l->stream;

    memset(s, 0, sizeof *s);
    s->message = on_message;
    s->closed = on_closed;
    l->up = dibs__h2_start(c->h2, s, "/etcdserverpb.Lease/LeaseKeepAlive", c->token, true);
    if (!l->up)
        dibs__etcd_leave(c);
    if (l->id && l->sent && !l->proving && !l->answered)
        l->sent = 0; /* its answer went with the old connection */
    if (l->id && !l->sent)
        l->due = dibs__now(c->env);
}

dibs__deadline dibs__etcd_lease_turn(dibs__etcd_client *c, int64_t now)
{
    dibs__etcd_lease *l = &c->lease;

    if (!l->id)
        return DIBS__NEVER;
    if (now >= l->until) {
        end(c);
        return now;
    }
    if (l->answered && !l->proving)
        prove(c);
    if (l->sent && !l->answered && c->address.count > 1 && now >= l->sent + l->ttl / 3) {
        failed(c, now);
        c->cut = true; /* this server does not reach the leader: another may */
    }
    if (!l->sent && l->up && !c->cut && now >= l->due)
        ask(c, now);
    if (l->sent)
        return dibs__sooner(l->until, l->answered || c->address.count == 1 ? DIBS__NEVER
                                                                           : l->sent + l->ttl / 3);
    return l->up ? dibs__sooner(l->until, l->due) : l->until;
}

/* ---- For everybody --------------------------------------------------------------------------- */

/* Every answer begins with a header: field 1, whose field 3 is the revision. It is read by hand, because
 * this is done for all of them. 0: there is none. */
static int64_t revision_in(const uint8_t *p, size_t length)
{
    const uint8_t *end = p + 2;

    if (length < 2 || p[0] != 0x0a || p[1] >= 0x80 || length - 2 < p[1])
        return 0;
    end += p[1];
    for (p += 2; p < end;) {
        uint8_t tag = *p++;
        uint64_t value = 0;
        for (int shift = 0; p < end && shift < 64; shift += 7) {
            value |= (uint64_t)(*p & 0x7f) << shift;
            if (*p++ < 0x80)
                break;
        }
        if (tag == 0x18)
            return (int64_t)value;
    }
    return 0;
}

void dibs__etcd_seen(dibs__etcd_client *c, const uint8_t *answer, size_t length)
{
    int64_t revision = revision_in(answer, length);

    if (revision > c->lease.seen_revision)
        c->lease.seen_revision = revision;
}

void dibs__etcd_lease_end(dibs__etcd_client *c)
{
    end(c);
}

void dibs__etcd_lease_drop(dibs__etcd_client *c, int64_t lease)
{
    pthread_mutex_lock(&c->lock);
    if (c->lease.id == lease) {
        end(c);
        c->lease.over = 0;
    }
    pthread_mutex_unlock(&c->lock);
}

void dibs__etcd_lease_set(dibs__etcd_client *c, int64_t lease, dibs__deadline sent, int64_t ttl)
{
    dibs__etcd_lease *l = &c->lease;

    pthread_mutex_lock(&c->lock);
    l->id = lease;
    l->ttl = ttl;
    l->until = lease ? sent + ttl : 0;
    l->due = sent + ttl / 3;
    l->sent = 0;
    l->answered = false;
    dibs__etcd_kick(c);
    pthread_mutex_unlock(&c->lock);
}

dibs__deadline dibs__etcd_lease_until(dibs__etcd_client *c)
{
    dibs__deadline until;

    pthread_mutex_lock(&c->lock);
    until = c->lease.until;
    pthread_mutex_unlock(&c->lock);
    return until;
}

void dibs__etcd_lease_renew(dibs__etcd_client *c)
{
    pthread_mutex_lock(&c->lock);
    if (c->lease.id && !c->lease.sent) {
        c->lease.due = 0;
        dibs__etcd_kick(c);
    }
    pthread_mutex_unlock(&c->lock);
}

void dibs__etcd_lease_touch(dibs__etcd_client *c, int64_t lease)
{
    pthread_mutex_lock(&c->lock);
    if (c->lease.up && !c->cut) {
        push(c, lease);
        dibs__etcd_flush(c);
    }
    pthread_mutex_unlock(&c->lock);
}
