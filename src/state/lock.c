/* The lock's state machine; see the header for what it promises.
 *
 * Every command has the same shape: load the record, let time pass (settle), find the caller's own
 * entry, change it, let time pass again if that freed something, save. */
#include "state/lock.h"

#include "state/attempt.h"

#include <string.h>

typedef struct machine {
    const dibs__store *store;
    void *ctx;
    dibs__time now;
    dibs__record record;
    bool exists;  /* the record was there when we came */
    bool changed; /* and must be saved */
    bool first_known;
    dibs__holder first; /* whose lease ends first, if it is known */
} machine;

static bool fits(const dibs__record *r, uint32_t weight)
{
    return (uint64_t)r->used + weight <= r->capacity;
}

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void copy_text(char *to, size_t size, const char *from)
{
    size_t n = strlen(from);

    if (n >= size)
        n = size - 1;
    memcpy(to, from, n);
    to[n] = '\0';
}

/* ---- Entries come and go; the record's counts follow ------------------------------------------
 */

static int put_holder(machine *m, const dibs__holder *h)
{
    m->changed = true;
    m->first_known = false;
    return m->store->holder_put(m->ctx, h);
}

static int add_holder(machine *m, const dibs__holder *h)
{
    m->record.holders++;
    m->record.used += h->who.weight;
    return put_holder(m, h);
}

static int drop_holder(machine *m, const dibs__holder *h)
{
    m->record.holders--;
    m->record.used -= h->who.weight;
    m->changed = true;
    m->first_known = false;
    return m->store->holder_drop(m->ctx, h);
}

static int put_waiter(machine *m, const dibs__waiter *w)
{
    m->changed = true;
    return m->store->waiter_put(m->ctx, w);
}

static int add_waiter(machine *m, dibs__waiter *w)
{
    w->place = ++m->record.place;
    m->record.waiters++;
    return put_waiter(m, w);
}

static int drop_waiter(machine *m, const dibs__waiter *w)
{
    m->record.waiters--;
    m->changed = true;
    return m->store->waiter_drop(m->ctx, w);
}

/* Finders that need no look at the store when there is nothing to find. */
static int find_holder(machine *m, const char *owner, dibs__holder *out)
{
    return m->record.holders ? m->store->holder_of(m->ctx, owner, out) : 0;
}

static int find_waiter(machine *m, const char *owner, dibs__waiter *out)
{
    return m->record.waiters ? m->store->waiter_of(m->ctx, owner, out) : 0;
}

static int find_head(machine *m, dibs__waiter *out)
{
    return m->record.waiters ? m->store->waiter_head(m->ctx, out) : 0;
}

/* In m->first; looked up once unless holders have changed meanwhile. */
static int find_expiring(machine *m)
{
    int found;

    if (m->record.holders == 0 || m->first_known)
        return m->record.holders ? 1 : 0;
    found = m->store->holder_expiring(m->ctx, &m->first);
    m->first_known = found > 0;
    return found;
}

/* ---- Grants ------------------------------------------------------------------------------------
 */

static uint64_t next_fence(machine *m)
{
    uint64_t clock = m->now.wall > 0 ? (uint64_t)m->now.wall : 0;

    m->record.fence = m->record.fence + 1 > clock ? m->record.fence + 1 : clock;
    m->changed = true;
    return m->record.fence;
}

/* The lowest fence of those who hold. One holder alone is its own floor, without a look. */
static int find_floor(machine *m, const dibs__holder *h, uint64_t *out)
{
    dibs__holder oldest;
    int found;

    *out = h->fence;
    if (m->record.holders < 2)
        return 0;
    found = m->store->holder_next(m->ctx, 0, &oldest);
    if (found > 0 && oldest.fence < *out)
        *out = oldest.fence;
    return found < 0 ? -1 : 0;
}

static int reply_granted(machine *m, const dibs__holder *h, dibs__reply *out)
{
    out->verdict = DIBS__GRANTED;
    out->fence = h->fence;
    out->remaining = h->expires - m->now.lease;
    return find_floor(m, h, &out->floor);
}

static int grant(machine *m, const dibs__asker *who, int64_t expires, dibs__holder *h)
{
    memset(h, 0, sizeof *h);
    h->who = *who;
    h->fence = next_fence(m);
    h->since = m->now.lease;
    h->expires = expires;
    return add_holder(m, h);
}

static int hand_over(machine *m, const dibs__waiter *w)
{
    dibs__holder h;
    uint64_t floor;

    if (drop_waiter(m, w) < 0 || grant(m, &w->who, w->alive_until, &h) < 0 ||
        find_floor(m, &h, &floor) < 0)
        return -1;
    m->store->granted(m->ctx, &h, floor);
    return 0;
}

/* ---- Time passes -------------------------------------------------------------------------------
 */

static int expire_holders(machine *m)
{
    int found;

    while ((found = find_expiring(m)) > 0 && m->first.expires <= m->now.lease)
        if (drop_holder(m, &m->first) < 0)
            return -1;
    return found < 0 ? -1 : 0;
}

/* Does its owner hold the lock through another handle? That one has been asked to stop, and must be gone
 * first. One who needs all slots fits only when nobody holds; and most owners cannot be another's. */
static int owner_holds(machine *m, const dibs__asker *who)
{
    dibs__holder h;

    if (who->weight >= m->record.capacity || dibs__owner_is_private(who->owner, who->attempt))
        return 0;
    return find_holder(m, who->owner, &h);
}

static int serve_queue(machine *m)
{
    dibs__waiter w;
    int found;

    while ((found = find_head(m, &w)) > 0) {
        int failed;
        if (w.alive_until <= m->now.lease) {
            failed = drop_waiter(m, &w);
        } else {
            failed = fits(&m->record, w.who.weight) ? owner_holds(m, &w.who) : 1;
            if (failed > 0)
                return 0;
            failed = failed < 0 ? -1 : hand_over(m, &w);
        }
        if (failed < 0)
            return -1;
    }
    return found < 0 ? -1 : 0;
}

static int settle(machine *m)
{
    return expire_holders(m) < 0 || serve_queue(m) < 0 ? -1 : 0;
}

/* ---- Beginning and end of every command ------------------------------------------------------ */

static int begin(machine *m, const dibs__store *store, void *ctx, dibs__time now, dibs__reply *out)
{
    int found;

    memset(m, 0, offsetof(machine, first));
    memset(out, 0, sizeof *out);
    m->store = store;
    m->ctx = ctx;
    m->now = now;
    found = store->load(ctx, &m->record);
    if (found < 0)
        return -1;
    if (found == 0)
        memset(&m->record, 0, sizeof m->record);
    m->exists = found > 0;
    return settle(m);
}

static int end(machine *m)
{
    return m->changed ? m->store->save(m->ctx, &m->record) : 0;
}

/* ---- Acquire --------------------------------------------------------------------------------- */

/* The caller of the older attempt gave it up: this one goes on in its place. */
static int resume(machine *m, const dibs__holder *old, const dibs__asker *who, dibs__reply *out)
{
    dibs__holder h;

    if (drop_holder(m, old) < 0 || grant(m, who, m->now.lease + who->lease, &h) < 0)
        return -1;
    if (who->weight < old->who.weight && serve_queue(m) < 0)
        return -1;
    return reply_granted(m, &h, out);
}

/* When the first holder's lease ends, for those whom it concerns. */
static int until_expiry(machine *m, int64_t *out)
{
    int found = find_expiring(m);

    *out = found > 0 ? m->first.expires - m->now.lease : 0;
    return found < 0 ? -1 : 0;
}

/* Who is in the way, for the one who asks; settling has found it already. */
static int report_in_way(machine *m, dibs__in_way *out)
{
    int found = find_expiring(m);

    if (found <= 0)
        return found;
    out->fence = m->first.fence;
    out->pid = m->first.who.pid;
    out->left = m->first.expires - m->now.lease;
    copy_text(out->owner, sizeof out->owner, m->first.who.owner);
    copy_text(out->host, sizeof out->host, m->first.who.host);
    return 0;
}

static int reply_busy(machine *m, dibs__reply *out)
{
    out->verdict = DIBS__BUSY;
    if (report_in_way(m, &out->in_way) < 0)
        return -1;
    out->remaining = out->in_way.left;
    return 0;
}

/* Only the head needs to watch the holder's lease; the others are woken by hand-over or find out at
 * their next keep-alive. */
static int reply_queued(machine *m, const dibs__waiter *w, dibs__reply *out)
{
    dibs__waiter head;
    int found = find_head(m, &head);

    out->verdict = DIBS__QUEUED;
    if (found < 0 || report_in_way(m, &out->in_way) < 0)
        return -1;
    if (found > 0 && head.place == w->place)
        out->remaining = out->in_way.left;
    return 0;
}

/* Into the queue with a keep-alive: at the end, or where the owner stands already (asked again, or
 * resumed). */
static int join_queue(machine *m, dibs__waiter *w, bool there, const dibs__asker *who,
                      int64_t window, dibs__reply *out)
{
    if (!there) {
        memset(w, 0, sizeof *w);
        w->since = m->now.lease;
    }
    w->who = *who;
    w->window = at_most(window, who->lease);
    w->alive_until = m->now.lease + w->window;
    if (there ? put_waiter(m, w) < 0 : add_waiter(m, w) < 0)
        return -1;
    return reply_queued(m, w, out);
}

/* The owner is here with a newer attempt of the same handle. */
static int reply_late(dibs__reply *out)
{
    out->verdict = DIBS__RESUMED;
    return 0;
}

/* `rival`: the owner holds it through another handle; then it is not granted now, whatever would fit. A
 * try that fails leaves everything as it was: it asks nobody to stop. */
static int take_or_queue(machine *m, const dibs__asker *who, int64_t window,
                         const dibs__holder *rival, dibs__reply *out)
{
    dibs__waiter w;
    dibs__holder h;
    int there = find_waiter(m, who->owner, &w);
    dibs__kin kin = there > 0 ? dibs__attempt_kin(who->attempt, w.who.attempt) : DIBS__SAME;

    if (there < 0)
        return -1;
    if (kin == DIBS__OLDER)
        return reply_late(out);
    /* It wants something else: back to the end of the queue. Or it does not want to wait any more. */
    if (there > 0 && (window > 0 ? w.who.weight != who->weight : kin == DIBS__NEWER)) {
        if (drop_waiter(m, &w) < 0 || serve_queue(m) < 0)
            return -1;
        there = 0;
    }
    if (!rival && m->record.waiters == 0 && fits(&m->record, who->weight)) {
        if (grant(m, who, m->now.lease + who->lease, &h) < 0)
            return -1;
        return reply_granted(m, &h, out);
    }
    if (window > 0) {
        if (rival)
            m->store->breaking(m->ctx, rival);
        return join_queue(m, &w, there > 0, who, window, out);
    }
    return reply_busy(m, out);
}

/* The owner holds it, in `mine`. */
static int enter_again(machine *m, const dibs__asker *who, int64_t window, dibs__holder *mine,
                       dibs__reply *out)
{
    int found;

    switch (dibs__attempt_kin(who->attempt, mine->who.attempt)) {
    case DIBS__SAME:
        return reply_granted(m, mine, out);
    case DIBS__NEWER:
        if (who->weight <= mine->who.weight)
            return resume(m, mine, who, out);
        /* It needs more than the one that was given up: from the end of the queue. */
        if (drop_holder(m, mine) < 0 || serve_queue(m) < 0)
            return -1;
        found = find_holder(m, who->owner, mine); /* through another handle, just now */
        return found < 0 ? -1 : take_or_queue(m, who, window, found ? mine : NULL, out);
    case DIBS__OLDER:
        return reply_late(out);
    default:
        return take_or_queue(m, who, window, mine, out);
    }
}

int dibs__state_acquire(const dibs__store *store, void *ctx, dibs__time now, const dibs__asker *who,
                        uint32_t capacity, int64_t window, dibs__reply *out)
{
    machine m;
    dibs__holder mine;
    int found, failed;

    if (begin(&m, store, ctx, now, out) < 0)
        return -1;
    if (m.record.capacity != 0 && m.record.capacity != capacity) {
        out->verdict = DIBS__MISMATCH;
        out->capacity = m.record.capacity;
        return end(&m);
    }
    m.record.capacity = capacity;
    found = find_holder(&m, who->owner, &mine);
    if (found < 0)
        return -1;
    failed = found ? enter_again(&m, who, window, &mine, out)
                   : take_or_queue(&m, who, window, NULL, out);
    return failed < 0 ? -1 : end(&m);
}

/* ---- Keep ------------------------------------------------------------------------------------ */

/* The entry is not there: why? */
static void reply_missing(machine *m, uint64_t fence, dibs__reply *out)
{
    out->verdict =
        m->exists && fence != 0 && fence < m->record.broken_fence ? DIBS__BROKEN : DIBS__LOST;
}

/* Whether the owner waits for it through another handle, alive: then this one is to stop. */
static int is_wanted(machine *m, const dibs__holder *h)
{
    dibs__waiter w;
    int found = find_waiter(m, h->who.owner, &w);

    return found > 0 ? w.alive_until > m->now.lease : found;
}

/* One who is to stop keeps what is left of its lease: the lock passes on when it has let go. */
static int keep_holder(machine *m, dibs__holder *h, int64_t lease, dibs__reply *out)
{
    int wanted;

    if (h->fence < m->record.broken_fence) {
        out->verdict = DIBS__BROKEN;
        out->remaining = h->expires - m->now.lease;
        return 0;
    }
    wanted = is_wanted(m, h);
    if (wanted < 0)
        return -1;
    if (wanted) {
        out->verdict = DIBS__RESUMED;
        out->remaining = h->expires - m->now.lease;
        return 0;
    }
    h->expires = m->now.lease + lease;
    return put_holder(m, h) < 0 ? -1 : reply_granted(m, h, out);
}

static int keep_waiter(machine *m, dibs__waiter *w, dibs__reply *out)
{
    w->alive_until = m->now.lease + w->window;
    return put_waiter(m, w) < 0 ? -1 : reply_queued(m, w, out);
}

int dibs__state_keep(const dibs__store *store, void *ctx, dibs__time now, const char *owner,
                     const char *attempt, uint64_t fence, int64_t lease, dibs__reply *out)
{
    machine m;
    dibs__holder h;
    dibs__waiter w;
    int holds, waits, failed = 0;

    if (begin(&m, store, ctx, now, out) < 0)
        return -1;
    holds = find_holder(&m, owner, &h);
    waits = holds < 0 ? -1 : find_waiter(&m, owner, &w);
    if (waits < 0)
        return -1;
    if (holds && strcmp(h.who.attempt, attempt) == 0)
        failed = keep_holder(&m, &h, lease, out);
    else if (waits && strcmp(w.who.attempt, attempt) == 0)
        failed = keep_waiter(&m, &w, out);
    else if (holds || waits)
        out->verdict = DIBS__RESUMED;
    else
        reply_missing(&m, fence, out);
    return failed < 0 ? -1 : end(&m);
}

/* ---- Release and cancel ---------------------------------------------------------------------- */

static int give_back(machine *m, dibs__holder *h)
{
    int64_t keep_until = h->since + h->who.min_hold;

    if (h->who.min_hold > 0 && keep_until > m->now.lease) {
        h->released = true;
        h->expires = keep_until;
        return put_holder(m, h) < 0 ? -1 : serve_queue(m); /* its owner may wait elsewhere */
    }
    return drop_holder(m, h) < 0 ? -1 : serve_queue(m);
}

int dibs__state_release(const dibs__store *store, void *ctx, dibs__time now, const char *owner,
                        const char *attempt, uint64_t fence, dibs__reply *out)
{
    machine m;
    dibs__holder h;
    int found, failed = 0;

    if (begin(&m, store, ctx, now, out) < 0)
        return -1;
    found = find_holder(&m, owner, &h);
    if (found < 0)
        return -1;
    if (found == 0) {
        reply_missing(&m, fence, out);
    } else if (strcmp(h.who.attempt, attempt) != 0) {
        out->verdict = DIBS__RESUMED;
    } else {
        out->verdict = DIBS__RELEASED;
        failed = give_back(&m, &h);
    }
    return failed < 0 ? -1 : end(&m);
}

int dibs__state_cancel(const dibs__store *store, void *ctx, dibs__time now, const char *owner,
                       const char *attempt, dibs__reply *out)
{
    machine m;
    dibs__holder h;
    dibs__waiter w;
    int holds, waits, failed = 0;

    if (begin(&m, store, ctx, now, out) < 0)
        return -1;
    out->verdict = DIBS__RELEASED;
    holds = find_holder(&m, owner, &h);
    waits = holds < 0 ? -1 : find_waiter(&m, owner, &w);
    if (waits < 0)
        return -1;
    if (holds && strcmp(h.who.attempt, attempt) == 0)
        failed = drop_holder(&m, &h) < 0 || serve_queue(&m) < 0 ? -1 : 0;
    else if (waits && strcmp(w.who.attempt, attempt) == 0)
        failed = drop_waiter(&m, &w) < 0 || serve_queue(&m) < 0 ? -1 : 0;
    return failed < 0 ? -1 : end(&m);
}

/* ---- Break ----------------------------------------------------------------------------------- */

/* One that was given back belongs to nobody: nobody is to be told. */
static void notify_broken(machine *m, const dibs__holder *h)
{
    if (!h->released)
        m->store->breaking(m->ctx, h);
}

static int drop_all_holders(machine *m)
{
    int found;

    while ((found = find_expiring(m)) > 0) {
        notify_broken(m, &m->first);
        if (drop_holder(m, &m->first) < 0)
            return -1;
    }
    return found < 0 ? -1 : serve_queue(m);
}

/* Those given back already belong to nobody and need not be asked. */
static int drop_released(machine *m)
{
    dibs__holder h;
    int found = 0;

    while (m->record.holders > 0 && (found = m->store->holder_next(m->ctx, 0, &h)) > 0 &&
           h.released)
        if (drop_holder(m, &h) < 0)
            return -1;
    return found < 0 ? -1 : serve_queue(m);
}

static int ask_holders(machine *m, dibs__reply *out)
{
    dibs__holder h = {.fence = 0};
    int found = 0;

    out->verdict = DIBS__RELEASED;
    while (m->record.holders > 0 && (found = m->store->holder_next(m->ctx, h.fence, &h)) > 0 &&
           h.fence < m->record.broken_fence) {
        out->verdict = DIBS__BUSY;
        notify_broken(m, &h);
    }
    if (found < 0)
        return -1;
    return out->verdict == DIBS__BUSY ? until_expiry(m, &out->remaining) : 0;
}

int dibs__state_break(const dibs__store *store, void *ctx, dibs__time now, const char *by,
                      bool at_once, dibs__reply *out)
{
    machine m;

    if (begin(&m, store, ctx, now, out) < 0)
        return -1;
    if (!m.exists) {
        out->verdict = DIBS__LOST;
        return 0;
    }
    m.record.broken_fence = out->fence = next_fence(&m);
    m.record.broken_at = now.wall;
    copy_text(m.record.broken_by, sizeof m.record.broken_by, by);
    if ((at_once ? drop_all_holders(&m) : drop_released(&m)) < 0 || ask_holders(&m, out) < 0)
        return -1;
    if (m.record.holders == 0 && m.record.waiters == 0)
        m.record.capacity = 0;
    return end(&m);
}

int dibs__state_settle(const dibs__store *store, void *ctx, dibs__time now, dibs__reply *out)
{
    machine m;

    if (begin(&m, store, ctx, now, out) < 0)
        return -1;
    out->verdict = m.exists ? DIBS__RELEASED : DIBS__LOST;
    return end(&m);
}
