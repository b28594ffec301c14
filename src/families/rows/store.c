/* The state machine's store for one lock inside one transaction: it answers from the rows that the
 * session has, and notes there what has become of them.
 *
 * An exclusive holder is the only one, and lives in the lock's own row: taking and giving back a
 * free lock reads one row and writes one row. */
#include "families/rows/inner.h"

#include "core/error.h"

#include <string.h>

static int no_memory(dibs__sql_session *s)
{
    s->status = dibs__fail(s->err, DIBS_NO_MEMORY, "%s: out of memory", s->e->driver->name);
    return -1;
}

/* ---- The record ------------------------------------------------------------------------------ */

static int load(void *ctx, dibs__record *out)
{
    dibs__sql_session *s = ctx;

    *out = s->record;
    return s->exists;
}

static int save(void *ctx, const dibs__record *record)
{
    ((dibs__sql_session *)ctx)->record = *record;
    return 0;
}

/* ---- Holders --------------------------------------------------------------------------------- */

static int find_held(const dibs__sql_session *s, dibs__holder *out)
{
    *out = s->holder;
    return 1;
}

static int find_holding(const dibs__sql_session *s, const char *owner, dibs__holder *out)
{
    for (size_t i = 0; i < s->holding_count; i++) {
        const dibs__sql_holding *h = &s->holding[i];
        if (!h->dropped && !h->holder.released && strcmp(h->holder.who.owner, owner) == 0) {
            *out = h->holder;
            return 1;
        }
    }
    return 0;
}

/* Of these owners a look brings every entry. */
static bool is_asked_for(const dibs__sql_session *s, const char *owner)
{
    for (size_t i = 0; i < s->owner_count; i++)
        if (s->owners[i].size == strlen(owner) &&
            memcmp(s->owners[i].bytes, owner, s->owners[i].size) == 0)
            return true;
    return false;
}

/* Any other owner is asked for once it is needed. */
static int holder_of(void *ctx, const char *owner, dibs__holder *out)
{
    dibs__sql_session *s = ctx;

    if (s->held)
        return !s->holder.released && strcmp(s->holder.who.owner, owner) == 0 && find_held(s, out);
    if (s->queue_only && dibs__sql_session_wider(s) < 0)
        return -1;
    if (find_holding(s, owner, out))
        return 1;
    if (is_asked_for(s, owner) || s->expires_bound == INT64_MAX)
        return 0;
    return dibs__sql_session_seek(s, owner) < 0 ? -1 : find_holding(s, owner, out);
}

static const dibs__holder *least(const dibs__sql_session *s, bool by_fence, uint64_t above)
{
    const dibs__holder *best = NULL;

    for (size_t i = 0; i < s->holding_count; i++) {
        const dibs__holder *h = &s->holding[i].holder;
        if (s->holding[i].dropped || h->fence <= above)
            continue;
        if (!best || (by_fence ? h->fence < best->fence : h->expires < best->expires))
            best = h;
    }
    return best;
}

static int find_least(dibs__sql_session *s, bool by_fence, uint64_t above, dibs__holder *out)
{
    for (;;) {
        const dibs__holder *h = least(s, by_fence, above);
        bool complete = by_fence ? s->fence_bound == UINT64_MAX : s->expires_bound == INT64_MAX;
        if (h && (by_fence ? h->fence <= s->fence_bound : h->expires <= s->expires_bound)) {
            *out = *h;
            return 1;
        }
        if (complete)
            return 0;
        if (dibs__sql_session_wider(s) < 0)
            return -1;
    }
}

static int holder_expiring(void *ctx, dibs__holder *out)
{
    dibs__sql_session *s = ctx;

    return s->held ? find_held(s, out) : find_least(s, false, 0, out);
}

static int holder_next(void *ctx, uint64_t fence, dibs__holder *out)
{
    dibs__sql_session *s = ctx;

    if (s->held)
        return s->holder.fence > fence && find_held(s, out);
    return find_least(s, true, fence, out);
}

static int holder_put(void *ctx, const dibs__holder *holder)
{
    dibs__sql_session *s = ctx;
    dibs__sql_holding *h;

    s->durable =
        true; /* a grant, or a longer lease: nobody else may be told otherwise after a crash */
    if (holder->who.weight == DIBS__PLAIN) {
        s->held = s->held_changed = true;
        s->holder = *holder;
        return 0;
    }
    h = dibs__sql_holding_of(s, holder->fence);
    if (!h && !(h = dibs__sql_holding_new(s)))
        return no_memory(s);
    h->holder = *holder;
    h->changed = true;
    return 0;
}

static int holder_drop(void *ctx, const dibs__holder *holder)
{
    dibs__sql_session *s = ctx;
    dibs__sql_holding *h;

    if (s->held) {
        s->held = false;
        s->held_changed = true;
        return 0;
    }
    h = dibs__sql_holding_of(s, holder->fence);
    if (h)
        h->dropped = true;
    return 0;
}

/* ---- Waiters --------------------------------------------------------------------------------- */

static int waiter_of(void *ctx, const char *owner, dibs__waiter *out)
{
    dibs__sql_session *s = ctx;

    for (size_t i = 0; i < s->place_count; i++) {
        const dibs__sql_place *p = &s->place[i];
        if (!p->dropped && strcmp(p->waiter.who.owner, owner) == 0) {
            *out = p->waiter;
            return 1;
        }
    }
    return 0;
}

static int waiter_head(void *ctx, dibs__waiter *out)
{
    dibs__sql_session *s = ctx;

    for (;;) {
        const dibs__waiter *best = NULL;
        for (size_t i = 0; i < s->place_count; i++)
            if (!s->place[i].dropped && (!best || s->place[i].waiter.place < best->place))
                best = &s->place[i].waiter;
        if (best && best->place <= s->place_bound) {
            *out = *best;
            return 1;
        }
        if (s->place_bound == UINT64_MAX)
            return 0;
        if (dibs__sql_session_wider(s) < 0)
            return -1;
    }
}

static int waiter_put(void *ctx, const dibs__waiter *waiter)
{
    dibs__sql_session *s = ctx;
    dibs__sql_place *p = dibs__sql_place_of(s, waiter->place);

    if (p && p->stored)
        s->durable = true; /* its hand-over lasts as long as this keep-alive says */
    if (!p && !(p = dibs__sql_place_new(s)))
        return no_memory(s);
    p->waiter = *waiter;
    p->changed = true;
    return 0;
}

static int waiter_drop(void *ctx, const dibs__waiter *waiter)
{
    dibs__sql_place *p = dibs__sql_place_of(ctx, waiter->place);

    if (p)
        p->dropped = true;
    return 0;
}

/* ---- Whom to tell, once it is on record ------------------------------------------------------ */

static void note(dibs__sql_session *s, const dibs__holder *holder, uint64_t fence, uint64_t floor)
{
    dibs__sql_notice *larger =
        dibs__sql_grown(s->notice, s->notice_count, &s->notice_room, sizeof *s->notice);
    dibs__sql_notice *n;

    if (!larger)
        return; /* it finds out at its next keep-alive */
    s->notice = larger;
    n = &s->notice[s->notice_count++];
    memcpy(n->wake, holder->who.wake, sizeof n->wake);
    memcpy(n->attempt, holder->who.attempt, sizeof n->attempt);
    n->fence = fence;
    n->floor = floor;
    dibs__sql_notice_text(n);
}

static void granted(void *ctx, const dibs__holder *holder, uint64_t floor)
{
    note(ctx, holder, holder->fence, floor);
}

static void breaking(void *ctx, const dibs__holder *holder)
{
    note(ctx, holder, 0, 0);
}

const dibs__store dibs__sql_store = {
    .load = load,
    .save = save,
    .holder_of = holder_of,
    .holder_expiring = holder_expiring,
    .holder_next = holder_next,
    .holder_put = holder_put,
    .holder_drop = holder_drop,
    .waiter_of = waiter_of,
    .waiter_head = waiter_head,
    .waiter_put = waiter_put,
    .waiter_drop = waiter_drop,
    .granted = granted,
    .breaking = breaking,
};
