/* dibs_lock and its request: from options to a grant and a ticket, and out of the queue again. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/handle.h"
#include "core/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Options --------------------------------------------------------------------------------- */

static dibs_status check_slots(const dibs_lock_options *o, dibs_error *err)
{
    uint32_t slots = o->slots > 1 ? o->slots : 1;

    if (o->shared && slots > 1)
        return dibs__fail(err, DIBS_INVALID,
                          "shared cannot be combined with slots: a semaphore is always shared");
    if (slots >= DIBS__PLAIN)
        return dibs__fail(err, DIBS_INVALID, "slots = %u is too large: give at most %u", slots,
                          DIBS__PLAIN - 1);
    if (o->weight > slots)
        return dibs__fail(err, DIBS_INVALID,
                          "weight %u is more than the %u slot%s of the semaphore", o->weight, slots,
                          slots == 1 ? "" : "s");
    return DIBS_OK;
}

/* What the engine cannot do is refused here, with its reason. */
static dibs_status check_engine(const dibs__engine_class *class, const dibs_lock_options *o,
                                dibs_error *err)
{
    const char *why = o->shared ? class->can.no_shared : NULL;

    if (o->slots > 1)
        why = class->can.no_slots;
    if (why)
        return dibs__fail(err, DIBS_UNSUPPORTED, "%s: no %s: %s", class->scheme,
                          o->slots > 1 ? "semaphores" : "shared locks", why);
    return o->portable ? dibs__check_portable(class, err) : DIBS_OK;
}

static dibs_status check_options(const dibs__engine_class *class, const dibs_lock_options *o,
                                 dibs_error *err)
{
    dibs_status status = DIBS__CHECK_RESERVED(o, err);

    if (status == DIBS_OK)
        status = check_slots(o, err);
    if (status == DIBS_OK)
        status = check_engine(class, o, err);
    if (status == DIBS_OK)
        status = dibs__check_wait(o->wait_ms, err);
    if (status == DIBS_OK)
        status = dibs__check_lease(o->lease_ms, err);
    if (status == DIBS_OK)
        status = dibs__check_ms("max_hold_ms", o->max_hold_ms, DIBS__MIN_LEASE / DIBS__MS,
                                DIBS__MAX_MS, DIBS__OR_FOREVER, err);
    if (status == DIBS_OK)
        status =
            dibs__check_ms("min_hold_ms", o->min_hold_ms, 1, DIBS__MAX_LEASE / DIBS__MS, 0, err);
    if (status == DIBS_OK && o->not_reentrant && o->owner)
        status = dibs__fail(err, DIBS_INVALID,
                            "not_reentrant cannot be combined with a named owner: its locks are");
    if (status == DIBS_OK && o->owner && (!*o->owner || strlen(o->owner) > DIBS_OWNER_MAX))
        status = dibs__fail(err, DIBS_INVALID, "invalid owner: give 1 to %d bytes", DIBS_OWNER_MAX);
    return status;
}

void dibs__thread_owner(const dibs *d, char *out, size_t size)
{
    snprintf(out, size, "%s/%llu", d->id, (unsigned long long)dibs__thread_number());
}

/* Where the lease is the handle's, a lock cannot have a longer one. */
static dibs_status check_lease(const dibs *d, const dibs_lock_options *o, dibs_error *err)
{
    int64_t session = dibs__is_open(d) ? d->engine->session : 0;

    if (session && o->lease_ms > session / DIBS__MS)
        return dibs__fail(err, DIBS_INVALID,
                          "lease_ms = %lld: on %s the lease is the handle's, which was opened with "
                          "%lld ms: open it with ?session=%lldms, or ask for less",
                          (long long)o->lease_ms, d->class->scheme, (long long)(session / DIBS__MS),
                          (long long)o->lease_ms);
    return DIBS_OK;
}

dibs_status dibs__check_lock_options(const dibs *d, const dibs_lock_options *o, dibs_error *err)
{
    dibs_status status = check_options(d->class, o, err);

    return status == DIBS_OK ? check_lease(d, o, err) : status;
}

static bool is_semaphore(const dibs_lock_options *o)
{
    return o->slots > 1;
}

/* Whose lock it is: NULL for an owner of its own. */
static const char *owner_of(const dibs *d, const dibs_lock_options *o, bool by_event, char *room,
                            size_t size)
{
    if (o->owner)
        return o->owner;
    if (d->owner[0] && !o->not_reentrant)
        return d->owner;
    if (by_event || o->not_reentrant || o->portable || is_semaphore(o))
        return NULL;
    dibs__thread_owner(d, room, size);
    return room;
}

static void fill_grant(dibs_grant *g, const dibs_lock_options *o)
{
    g->capacity = is_semaphore(o) ? o->slots : DIBS__PLAIN;
    g->weight = is_semaphore(o) ? (o->weight ? o->weight : 1) : o->shared ? 1 : DIBS__PLAIN;
    g->lease = o->lease_ms ? o->lease_ms * DIBS__MS : g->d->lease;
    dibs__grant_fit_lease(g);
    g->max_hold = o->max_hold_ms * DIBS__MS;
    g->min_hold = o->min_hold_ms * DIBS__MS;
    if (g->max_hold && g->max_hold < g->lease)
        g->lease = g->max_hold;
    g->renew = !o->no_renew;
    g->on_lost = o->on_lost;
    g->data = o->data;
    g->owner_named = o->owner || (g->d->owner[0] && !o->not_reentrant) || o->portable;
    g->asked = dibs__now(g->d->env);
}

static void fill_ticket(dibs__ticket *t, dibs_grant *g, const dibs_lock_options *o)
{
    dibs *d = g->d;

    t->grant = g;
    t->try_once = o->wait_ms == DIBS_NO_WAIT;
    t->until = t->try_once ? g->asked + d->request_span : dibs__wait_until(d, o->wait_ms);
    t->window = g->lease < DIBS__WINDOW ? g->lease : DIBS__WINDOW;
    t->enter_again = true;
    g->ticket = t;
    d->waits += !t->try_once;
}

/* ---- Reentry --------------------------------------------------------------------------------- */

void dibs__lock_again(dibs_grant *g)
{
    g->depth++;
    g->d->stats.reentries++;
}

/* The owner has this lock already, or waits for it. */
static dibs_status reenter(dibs_grant *g, const dibs_lock_options *o, dibs_error *err)
{
    uint32_t capacity = is_semaphore(o) ? o->slots : DIBS__PLAIN;
    uint32_t weight = is_semaphore(o) ? (o->weight ? o->weight : 1) : o->shared ? 1 : DIBS__PLAIN;
    const char *name = g->name;

    if (g->ticket)
        return dibs__fail(err, DIBS_INVALID, "'%.200s': this owner is already waiting for it",
                          name);
    if (!dibs_grant_held(g))
        return dibs__fail(err, DIBS_LOST, "'%.200s' was lost: unlock the lost grant first", name);
    if (capacity != g->capacity)
        return dibs__fail(err, DIBS_MISMATCH, "'%.200s' is held with a different number of slots",
                          name);
    if (weight > g->weight)
        return dibs__fail(
            err, DIBS_MISMATCH,
            "'%.200s' is held shared (or with fewer slots): unlock it first, then request more",
            name);
    if (o->portable && !g->portable)
        return dibs__fail(err, DIBS_MISMATCH,
                          "'%.200s' is held and not portable: unlock it first, then request it so",
                          name);
    dibs__lock_again(g);
    return DIBS_OK;
}

/* ---- Leaving the queue ----------------------------------------------------------------------- */

/* The engine may have an entry that nobody wants. It is told at once, until then; else the keeper sees to
 * it. Takes the grant's reference. */
static void take_back(dibs_grant *g, bool maybe_there, dibs__deadline until)
{
    dibs *d = g->d;
    dibs__claim claim = dibs__grant_claim(g);
    dibs_status status = DIBS_OK;

    dibs__grant_leave_owner(g);
    dibs__heap_remove(&d->due, &g->due);
    dibs__heap_remove(&d->expiries, &g->expiry);
    if (maybe_there && dibs__now(d->env) < until) {
        g->state = DIBS__OVER; /* not the keeper's meanwhile */
        pthread_mutex_unlock(&d->mutex);
        status = d->class->cancel(d->engine, &claim, until, NULL);
        pthread_mutex_lock(&d->mutex);
    } else if (maybe_there) {
        status = DIBS_UNAVAILABLE;
    }
    if (status != DIBS_OK) {
        dibs__grant_orphan(g, false);
        return;
    }
    dibs__grant_retire(g);
    dibs__grant_unref(g);
}

/* Not delivered, it is cancelled: min_hold counts for those who have had the lock. */
void dibs__lock_undo(dibs_grant *g, dibs__deadline until)
{
    dibs *d = g->d;
    bool held = g->state == DIBS__HELD;

    if (--g->depth > 0)
        return;
    if (held)
        dibs__grant_note_end(g);
    if (dibs__news_forget(d, &g->news))
        dibs__grant_unref(g);
    if (g->delivered)
        dibs__grant_orphan(g, true);
    else
        take_back(g, true, g->silent ? 0 : until);
}

/* ---- The calls ------------------------------------------------------------------------------- */

dibs_lock_options dibs__lock_terms(const dibs *d, const dibs_lock_options *given)
{
    dibs_lock_options o = {0};

    if (given)
        o = *given;
    o.wait_ms = dibs__wait_ms(d, o.wait_ms);
    if (o.max_hold_ms == DIBS_FOREVER)
        o.max_hold_ms = 0;
    return o;
}

dibs__deadline dibs__wait_until(const dibs *d, int64_t wait_ms)
{
    if (wait_ms == DIBS_FOREVER)
        return DIBS__NEVER;
    return dibs__after(d->env, wait_ms > 0 && wait_ms <= DIBS__MAX_MS ? wait_ms * DIBS__MS : 0);
}

/* Everything that can be refused before the engine is asked. In a call; `again` is set when it was a
 * reentry. */
static dibs_status prepare(dibs *d, const char *name, const dibs_lock_options *o, bool by_event,
                           dibs_grant **out, bool *again, dibs_error *err)
{
    char room[DIBS__OWNER_SIZE];
    const char *owner;
    dibs_status status = dibs__check_name(name, err);

    *again = false;
    *out = NULL;
    if (status == DIBS_OK)
        status = dibs__check_lock_options(d, o, err);
    if (status != DIBS_OK)
        return status;
    if (d->closing)
        return dibs__closing(err);
    owner = owner_of(d, o, by_event, room, sizeof room);
    *out = owner ? dibs__grant_of_owner(d, owner, name) : NULL;
    if (*out) {
        status = reenter(*out, o, err);
        *again = status == DIBS_OK;
    } else {
        *out = dibs__grant_new(d, name, owner, o->portable);
        if (!*out || !dibs__keeper_start(d) || !dibs__grant_enlist(*out)) {
            free(*out);
            status = dibs__fail(err, DIBS_NO_MEMORY, "'%.200s': out of memory or threads", name);
        }
    }
    if (status != DIBS_OK)
        *out = NULL;
    return status;
}

/* With the mutex, which is given away meanwhile: the calling thread waits. */
static dibs_status wait_for(dibs_grant *g, const dibs_lock_options *o, dibs_error *err)
{
    dibs *d = g->d;
    dibs__ticket t;

    memset(&t, 0, sizeof t);
    fill_grant(g, o);
    fill_ticket(&t, g, o);
    dibs__ticket_enter(&t, dibs__after(d->env, d->request_span));
    dibs__ticket_await(&t);
    if (t.status != DIBS_OK) {
        take_back(g, t.maybe_there, t.pause == 0 ? dibs__after(d->env, DIBS__GRACE) : 0);
        if (err)
            dibs__ticket_error(&t, err);
    }
    dibs__ticket_fini(&t);
    return t.status;
}

/* In a call. `deliver`: to the user. `lost` is set when it was granted, and lost before that. */
static dibs_status lock_once(dibs *d, const char *name, const dibs_lock_options *o, bool deliver,
                             dibs_grant **out, bool *lost, dibs_error *err)
{
    bool again;
    dibs_status status = prepare(d, name, o, false, out, &again, err);

    *lost = false;
    if (status != DIBS_OK)
        return status;
    if (!again)
        status = wait_for(*out, o, err);
    if (status == DIBS_OK && deliver && !dibs__grant_deliver(*out)) {
        dibs__lock_undo(*out, dibs__after(d->env, DIBS__GRACE));
        *lost = true;
        status = dibs__fail(err, DIBS_BUSY, "'%.200s': obtained, and lost before it could be used",
                            name);
    }
    if (status != DIBS_OK)
        *out = NULL;
    return status;
}

dibs_status dibs__lock(dibs *d, const char *name, const dibs_lock_options *o, dibs_grant **out,
                       dibs_error *err)
{
    dibs_status status;
    bool lost;

    dibs__begin_call(d);
    status = lock_once(d, name, o, false, out, &lost, err);
    dibs__end_call(d);
    return status;
}

int64_t dibs__wait_left(const dibs *d, int64_t wait_ms, dibs__deadline until)
{
    int64_t left;

    if (wait_ms == DIBS_FOREVER || wait_ms == DIBS_NO_WAIT)
        return wait_ms;
    left = (until - dibs__now(d->env)) / DIBS__MS;
    return left > 0 ? left : DIBS_NO_WAIT;
}

dibs_status dibs__do_lock(dibs *d, const char *name, const dibs_lock_options *options,
                          dibs_grant **out, dibs_error *err)
{
    dibs_lock_options o = dibs__lock_terms(d, options);
    int64_t wait_ms = o.wait_ms;
    dibs__deadline until;
    dibs_status status;
    bool lost;

    *out = NULL;
    until = dibs__wait_until(d, wait_ms);
    if (!dibs__is_open(d) || !dibs__same_process(d)) {
        status = dibs__usable_until(
            d, dibs__request_until(d, wait_ms == DIBS_NO_WAIT ? DIBS__NEVER : until), err);
        if (status != DIBS_OK)
            return status;
    }
    dibs__begin_call(d); /* one call, so that dibs_close waits for the whole of it */
    do {
        status = lock_once(d, name, &o, true, out, &lost, err);
        o.wait_ms = dibs__wait_left(d, wait_ms, until);
    } while (lost && o.wait_ms != DIBS_NO_WAIT);
    dibs__end_call(d);
    return status;
}

dibs_status dibs__lock_request(dibs *d, const char *name, const dibs_lock_options *options,
                               dibs__ticket *t, dibs_error *err)
{
    dibs_lock_options o = dibs__lock_terms(d, options);
    dibs_grant *g = NULL;
    bool again;
    dibs_status status = prepare(d, name, &o, true, &g, &again, err);

    if (status != DIBS_OK)
        return status;
    t->by_event = true;
    if (again) { /* the grant is there already */
        t->grant = g;
        t->settled = true;
        t->done(d, t);
        return DIBS_OK;
    }
    fill_grant(g, &o);
    fill_ticket(t, g, &o);
    g->state = DIBS__WAITING;
    dibs__ticket_begin(t);
    return DIBS_OK;
}

void dibs__waits_cancel(dibs *d, const char *name)
{
    d->cancels += name == NULL;
    if (!name)
        dibs__watches_end_all(d);
    dibs__breakers_cancel(d, name);
    /* Settling takes at most the entry itself out of the table. */
    for (size_t i = 0; i < d->attempts.size; i++) {
        for (dibs__node *n = d->attempts.slot[i], *next; n; n = next) {
            dibs_grant *g = DIBS__FROM(dibs_grant, by_attempt, n);
            next = n->next;
            if (g->ticket && (!name || strcmp(g->name, name) == 0))
                dibs__ticket_cancel(g->ticket);
        }
    }
}
