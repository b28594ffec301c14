#include "support/machine.h"

#include <stdlib.h>
#include <string.h>

/* ---- The store ------------------------------------------------------------------------------- */

/* Counts the call; true: it is the one that fails. */
static bool fails(tiny *t)
{
    return ++t->calls == t->fail_at;
}

static int load(void *ctx, dibs__record *out)
{
    tiny *t = ctx;

    if (fails(t))
        return -1;
    *out = t->record;
    if (t->lie == TINY_LOOKS_EMPTY)
        out->used = 0;
    return t->exists;
}

static int save(void *ctx, const dibs__record *record)
{
    tiny *t = ctx;
    uint64_t fence = t->record.fence;

    if (fails(t))
        return -1;
    t->record = *record;
    if (t->lie == TINY_FENCE_STANDS)
        t->record.fence = fence;
    t->exists = true;
    return 0;
}

static int give_holder(tiny *t, const dibs__holder *found, dibs__holder *out)
{
    if (fails(t))
        return -1;
    if (found)
        *out = *found;
    return found != NULL;
}

static int give_waiter(tiny *t, const dibs__waiter *found, dibs__waiter *out)
{
    if (fails(t))
        return -1;
    if (found)
        *out = *found;
    return found != NULL;
}

static int holder_of(void *ctx, const char *owner, dibs__holder *out)
{
    tiny *t = ctx;
    const dibs__holder *found = NULL;

    for (size_t i = 0; i < t->holders; i++)
        if (!t->holder[i].released && strcmp(t->holder[i].who.owner, owner) == 0)
            found = &t->holder[i];
    return give_holder(t, found, out);
}

static int holder_expiring(void *ctx, dibs__holder *out)
{
    tiny *t = ctx;
    const dibs__holder *found = NULL;

    for (size_t i = 0; i < t->holders; i++)
        if (!found || t->holder[i].expires < found->expires)
            found = &t->holder[i];
    return give_holder(t, t->lie == TINY_NOTHING_EXPIRES ? NULL : found, out);
}

static int holder_next(void *ctx, uint64_t fence, dibs__holder *out)
{
    tiny *t = ctx;
    const dibs__holder *found = NULL;

    for (size_t i = 0; i < t->holders; i++)
        if (t->holder[i].fence > fence && (!found || t->holder[i].fence < found->fence))
            found = &t->holder[i];
    return give_holder(t, found, out);
}

static int holder_put(void *ctx, const dibs__holder *h)
{
    tiny *t = ctx;
    size_t i = 0;

    if (fails(t))
        return -1;
    while (i < t->holders && t->holder[i].fence != h->fence)
        i++;
    if (i == TINY_MAX) {
        t->overflow = true;
        return -1;
    }
    t->holders += i == t->holders;
    t->holder[i] = *h;
    return 0;
}

static int holder_drop(void *ctx, const dibs__holder *h)
{
    tiny *t = ctx;
    size_t i = 0;

    if (fails(t))
        return -1;
    while (i < t->holders && t->holder[i].fence != h->fence)
        i++;
    if (i == t->holders)
        return -1;
    memmove(&t->holder[i], &t->holder[i + 1], (--t->holders - i) * sizeof t->holder[0]);
    return 0;
}

static int waiter_of(void *ctx, const char *owner, dibs__waiter *out)
{
    tiny *t = ctx;
    const dibs__waiter *found = NULL;

    for (size_t i = 0; i < t->waiters; i++)
        if (strcmp(t->waiter[i].who.owner, owner) == 0)
            found = &t->waiter[i];
    return give_waiter(t, found, out);
}

static int waiter_head(void *ctx, dibs__waiter *out)
{
    tiny *t = ctx;
    bool last = t->lie == TINY_LAST_FIRST;
    const dibs__waiter *found = NULL;

    for (size_t i = 0; i < t->waiters; i++)
        if (!found || (t->waiter[i].place < found->place) != last)
            found = &t->waiter[i];
    return give_waiter(t, found, out);
}

static int waiter_put(void *ctx, const dibs__waiter *w)
{
    tiny *t = ctx;
    size_t i = 0;

    if (fails(t))
        return -1;
    while (i < t->waiters && t->waiter[i].place != w->place)
        i++;
    if (i == TINY_MAX) {
        t->overflow = true;
        return -1;
    }
    t->waiters += i == t->waiters;
    t->waiter[i] = *w;
    return 0;
}

static int waiter_drop(void *ctx, const dibs__waiter *w)
{
    tiny *t = ctx;
    size_t i = 0, n = t->lie == TINY_LOSES_WAITERS ? 2 : 1;

    if (fails(t))
        return -1;
    while (i < t->waiters && t->waiter[i].place != w->place)
        i++;
    if (i == t->waiters)
        return -1;
    if (i + n > t->waiters)
        n = 1;
    t->waiters -= n;
    memmove(&t->waiter[i], &t->waiter[i + n], (t->waiters - i) * sizeof t->waiter[0]);
    return 0;
}

static void granted(void *ctx, const dibs__holder *h, uint64_t floor)
{
    tiny *t = ctx;

    (void)floor;
    if (t->lie != TINY_DEAF)
        t->woken[t->woken_count++ % TINY_MAX] = h->fence;
}

static void breaking(void *ctx, const dibs__holder *h)
{
    tiny *t = ctx;

    if (t->asked_count == TINY_MAX)
        return;
    memcpy(t->asked[t->asked_count], h->who.attempt, sizeof h->who.attempt);
    t->asked_after[t->asked_count++] = t->woken_count;
}

const dibs__store tiny_store = {
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

void tiny_copy(tiny *to, const tiny *from)
{
    memcpy(to, from, offsetof(tiny, holder));
    memcpy(to->holder, from->holder, from->holders * sizeof from->holder[0]);
    memcpy(to->waiter, from->waiter, from->waiters * sizeof from->waiter[0]);
}

static int by_fence(const void *a, const void *b)
{
    const dibs__holder *x = a, *y = b;

    return x->fence < y->fence ? -1 : x->fence > y->fence;
}

static int by_place(const void *a, const void *b)
{
    const dibs__waiter *x = a, *y = b;

    return x->place < y->place ? -1 : x->place > y->place;
}

void tiny_sort(tiny *t)
{
    qsort(t->holder, t->holders, sizeof t->holder[0], by_fence);
    qsort(t->waiter, t->waiters, sizeof t->waiter[0], by_place);
}

/* ---- Commands -------------------------------------------------------------------------------- */

int command_run(const dibs__store *store, void *ctx, const command *c, dibs__reply *out)
{
    const dibs__asker *w = &c->who;

    switch (c->kind) {
    case COMMAND_ACQUIRE:
        return dibs__state_acquire(store, ctx, c->now, w, c->capacity, c->window, out);
    case COMMAND_KEEP:
        return dibs__state_keep(store, ctx, c->now, w->owner, w->attempt, c->fence, w->lease, out);
    case COMMAND_RELEASE:
        return dibs__state_release(store, ctx, c->now, w->owner, w->attempt, c->fence, out);
    case COMMAND_CANCEL:
        return dibs__state_cancel(store, ctx, c->now, w->owner, w->attempt, out);
    case COMMAND_BREAK:
        return dibs__state_break(store, ctx, c->now, w->owner, c->at_once, out);
    default:
        return dibs__state_settle(store, ctx, c->now, out);
    }
}

int tiny_run(tiny *t, const command *c, dibs__reply *out)
{
    tiny before;
    int result;

    tiny_copy(&before, t);
    t->calls = 0;
    t->woken_count = 0;
    t->asked_count = 0;
    result = command_run(&tiny_store, t, c, out);
    if (result < 0) {
        before.calls = t->calls;
        before.overflow = t->overflow;
        tiny_copy(t, &before);
    }
    return result;
}
