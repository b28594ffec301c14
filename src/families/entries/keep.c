/* keep-alives.
 *
 * The session lives by the adapter's own doing, whatever the number of locks. What is asked here is
 * whether the entries of holders are still there and unmarked, all in one exchange; waiters are
 * looked at now and then, and their watches are mended if the connection dropped them. */
#define _GNU_SOURCE
#include "families/entries/inner.h"

#include <stdlib.h>
#include <string.h>

typedef struct round {
    dibs__entries *entries;
    dibs__claim *const *claims;
    size_t count;
    dibs__entries_call *call;
    size_t *index; /* of each check: its claim */
    dibs__deadline asked, until;
} round;

static void lost(dibs__claim *c)
{
    c->status = DIBS_OK;
    c->reply = (dibs__reply){.verdict = DIBS__LOST};
}

/* A waiter's entry is looked at once a session: somebody may have deleted it by hand. */
static bool is_due(const round *r, const dibs__own_entry *s)
{
    return s->state == DIBS__OWN_ENTRY_HOLDING || r->asked - s->checked > r->entries->base.session;
}

/* With the mutex. Names and keys are copied: an own entry may go while the answer is out. */
static void add_check(round *r, size_t i, const dibs__own_entry *s)
{
    dibs__entries_check *check = &r->call->check.entry[r->call->check.count];

    check->name = dibs__ask_copy(r->call, s->name);
    check->key = dibs__ask_copy(r->call, s->key);
    if (check->name && check->key)
        r->index[r->call->check.count++] = i;
    else
        r->claims[i]->status = DIBS_NO_MEMORY;
}

/* With the mutex. What needs no exchange is answered here. */
static void look_at(round *r, size_t i)
{
    dibs__claim *c = r->claims[i];
    dibs__own_entry *s = dibs__own_entry_find(r->entries, c->attempt);

    c->status = DIBS_OK;
    memset(&c->reply, 0, sizeof c->reply);
    c->reply.verdict = DIBS__QUEUED; /* until an answer says otherwise */
    if (!s || s->dead || s->state == DIBS__OWN_ENTRY_LEAVING || !s->key[0]) {
        lost(c);
        return;
    }
    if (s->state == DIBS__OWN_ENTRY_WAITING)
        dibs__view_check(r->entries, s);
    if (is_due(r, s))
        add_check(r, i, s);
}

static bool prepare(round *r)
{
    r->call = dibs__ask_new(r->entries, NULL, NULL);
    if (!r->call)
        return false;
    r->call->check.entry = calloc(r->count, sizeof *r->call->check.entry);
    r->index = calloc(r->count, sizeof *r->index);
    if (!r->call->check.entry || !r->index)
        return false;
    pthread_mutex_lock(&r->entries->mutex);
    for (size_t i = 0; i < r->count; i++)
        look_at(r, i);
    dibs__view_settle(r->entries);
    pthread_mutex_unlock(&r->entries->mutex);
    return true;
}

/* ---- Answers --------------------------------------------------------------------------------- */

/* With the mutex. Its entry is there; a waiter may have become a holder meanwhile. */
static void renew(round *r, dibs__claim *c, dibs__own_entry *s, int64_t alive)
{
    s->checked = r->asked;
    if (s->state != DIBS__OWN_ENTRY_HOLDING)
        return;
    if (alive <= 0 || (c->fence == 0 && alive < dibs__entries_worth_it(r->entries, c->lease))) {
        c->status = DIBS_UNKNOWN;
        return;
    }
    s->lease = c->lease;
    c->reply = (dibs__reply){.verdict = DIBS__GRANTED,
                             .fence = s->fence,
                             .floor = s->floor,
                             .remaining = alive < c->lease ? alive : c->lease};
    dibs__own_entry_lasts(r->entries, s, r->asked + c->lease + DIBS__MS);
}

static void take_check(round *r, dibs__claim *c, const dibs__entries_check *check, int64_t alive)
{
    dibs__own_entry *s = dibs__own_entry_find(r->entries, c->attempt);

    if (!s || s->dead)
        lost(c);
    else if (!check->there)
        c->reply.verdict = DIBS__LOST; /* why: when the mutex is free */
    else if (check->marked && s->state == DIBS__OWN_ENTRY_HOLDING && !s->named)
        c->reply = (dibs__reply){.verdict = DIBS__BROKEN, .remaining = alive > 0 ? alive : 1};
    else
        renew(r, c, s, alive);
}

/* A waiter stays for another window, if the session surely does. */
static void keep_waiter(round *r, dibs__claim *c, int64_t alive)
{
    dibs__own_entry *s = dibs__own_entry_find(r->entries, c->attempt);
    int64_t usable = r->entries->base.lease;

    if (alive < (c->lease < usable ? c->lease : usable))
        c->status = DIBS_UNKNOWN;
    else if (s && !s->dead)
        dibs__own_entry_lasts(r->entries, s, r->asked + 4 * usable);
    else
        lost(c);
}

static void take_answers(round *r, dibs_status status)
{
    dibs__entries_backend *backend = r->entries->backend;
    int64_t alive = backend->adapter->alive_until(backend) - r->asked;

    pthread_mutex_lock(&r->entries->mutex);
    for (size_t k = 0; k < r->call->check.count; k++) {
        dibs__claim *c = r->claims[r->index[k]];
        c->status = status;
        if (status == DIBS_OK)
            take_check(r, c, &r->call->check.entry[k], alive);
    }
    for (size_t i = 0; i < r->count; i++)
        if (r->claims[i]->status == DIBS_OK && r->claims[i]->reply.verdict == DIBS__QUEUED)
            keep_waiter(r, r->claims[i], alive);
    pthread_mutex_unlock(&r->entries->mutex);
}

/* Its entry is marked, and its owner is a name: by an operator, or by another handle of that owner. If
 * neither wants it any more, the renewal stands. */
static void find_who_asks(round *r, dibs__claim *c)
{
    dibs__verdict why;
    dibs_status status = dibs__entries_why(r->entries, c->name, c->owner, c->attempt,
                                           c->reply.fence, r->until, &why, NULL);

    if (status != DIBS_OK)
        c->status = status;
    else if (why != DIBS__LOST)
        c->reply = (dibs__reply){.verdict = why, .remaining = c->reply.remaining};
}

/* Those whose entry is gone though the session lives, or is marked. */
static void find_reasons(round *r)
{
    for (size_t k = 0; k < r->call->check.count; k++) {
        dibs__claim *c = r->claims[r->index[k]];
        dibs__own_entry *s;
        if (c->status == DIBS_OK && c->reply.verdict == DIBS__GRANTED &&
            r->call->check.entry[k].marked)
            find_who_asks(r, c);
        if (c->status != DIBS_OK || c->reply.verdict != DIBS__LOST)
            continue;
        c->status = dibs__entries_why(r->entries, c->name, c->owner, c->attempt, c->fence, r->until,
                                      &c->reply.verdict, NULL);
        pthread_mutex_lock(&r->entries->mutex);
        s = dibs__own_entry_find(r->entries, c->attempt);
        if (c->status == DIBS_OK && s)
            dibs__own_entry_drop(r->entries, s);
        pthread_mutex_unlock(&r->entries->mutex);
    }
}

void dibs__entries_keep(dibs__engine *e, dibs__claim *const claims[], size_t count,
                        dibs__deadline until)
{
    round r = {.entries = dibs__entries_of(e),
               .claims = claims,
               .count = count,
               .asked = dibs__now(e->env),
               .until = until};
    dibs_status status = DIBS_OK;

    if (!prepare(&r)) {
        for (size_t i = 0; i < count; i++)
            claims[i]->status = DIBS_NO_MEMORY;
        if (r.call)
            dibs__ask_drop(r.call);
        free(r.index);
        return;
    }
    if (r.call->check.count > 0)
        status = dibs__ask_wait(r.entries, r.entries->backend->adapter->check, r.call, until, NULL);
    take_answers(&r, status);
    find_reasons(&r);
    dibs__ask_free(r.call);
    free(r.index);
    dibs__entries_notify_all(r.entries);
}
