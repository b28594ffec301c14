/* Portable grants: a lock that passes from one handle to another, with its fence.
 *
 * A portable lock is entered like one of a named owner: the engine frees it when its lease ends, and not because
 * a process is gone. Engines know a holder by owner and attempt, and do not ask which handle renews or
 * releases it: so the text of a grant is what `keep` and `release` need, and adopting is one `keep`. The
 * attempt carries a secret (grant.c), because everything else can be read in a listing.
 *
 * Nothing of the engine's changes hands. A late request of the first handle does what it always did: `keep`
 * and `release` name the attempt, and change nothing once it is over. */
#define _GNU_SOURCE
#include "core/bearer.h"
#include "core/error.h"
#include "core/handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dibs_status dibs__check_portable(const dibs__engine_class *class, dibs_error *err)
{
    if (!class->can.lease_of_handle)
        return DIBS_OK;
    return dibs__fail(err, DIBS_UNSUPPORTED,
                      "%s: no portable locks: the lease belongs to the session of the handle, and "
                      "ends with it",
                      class->scheme);
}

/* ---- Export ---------------------------------------------------------------------------------- */

/* Each fits: they were checked when the grant was made. */
static void write_text(const dibs_grant *g, char out[DIBS_GRANT_SIZE])
{
    dibs__bearer b;

    strcpy(b.engine, g->d->class->scheme);
    strcpy(b.name, g->name);
    strcpy(b.owner, g->owner);
    strcpy(b.attempt, g->attempt);
    b.fence = g->fence;
    b.lease = g->lease;
    b.capacity = g->capacity;
    b.weight = g->weight;
    dibs__bearer_write(&b, out);
}

dibs_status dibs__do_grant_export(const dibs_grant *g, char out[DIBS_GRANT_SIZE], dibs_error *err)
{
    dibs_status status = DIBS_OK;

    out[0] = '\0';
    if (!g)
        return dibs__fail(err, DIBS_INVALID, "no grant to export");
    if (!dibs__same_process(g->d))
        return dibs__forked(err);
    if (!g->portable)
        return dibs__fail(err, DIBS_INVALID,
                          "'%.200s' was not acquired with `portable`: it cannot be exported",
                          g->name);
    pthread_mutex_lock(&g->d->mutex);
    if (dibs_grant_held(g))
        write_text(g, out);
    else
        status = dibs__fail(err, DIBS_LOST, "'%.200s' was lost: %s", g->name,
                            dibs_loss_text(dibs_grant_loss(g)));
    pthread_mutex_unlock(&g->d->mutex);
    return status;
}

/* ---- Adopt ----------------------------------------------------------------------------------- */

static dibs_status check_terms(const dibs_lock_options *o, dibs_error *err)
{
    dibs_status status = DIBS__CHECK_RESERVED(o, err);

    if (status == DIBS_OK)
        status = dibs__check_ms("max_hold_ms", o->max_hold_ms, DIBS__MIN_LEASE / DIBS__MS,
                                DIBS__MAX_MS, DIBS__OR_FOREVER, err);
    if (status == DIBS_OK && (o->wait_ms || o->lease_ms || o->min_hold_ms || o->not_reentrant ||
                              o->shared || o->portable || o->slots || o->weight || o->owner))
        status = dibs__fail(err, DIBS_INVALID,
                            "adopting takes only no_renew, max_hold_ms, on_lost and data: the rest "
                            "is the grant's");
    return status;
}

/* The message says nothing of what is in the text. */
static dibs_status read_text(const dibs *d, const char *text, dibs__bearer *b, dibs_error *err)
{
    dibs_status status = dibs__check_portable(d->class, err);

    if (status != DIBS_OK)
        return status;
    if (!text || !dibs__bearer_read(text, b))
        return dibs__fail(
            err, DIBS_INVALID,
            "invalid grant: it was not exported by dibs, or it was damaged: pass it on as "
            "dibs_grant_export wrote it");
    if (strcmp(b->engine, d->class->scheme) != 0)
        return dibs__fail(err, DIBS_INVALID,
                          "'%.200s': this grant was exported from %s, and the handle is of %s",
                          b->name, b->engine, d->class->scheme);
    return DIBS_OK;
}

static void fill(dibs_grant *g, const dibs__bearer *b, const dibs_lock_options *o)
{
    snprintf(g->attempt, sizeof g->attempt, "%s", b->attempt);
    g->adopted = true;
    g->owner_named = true;
    g->fence = b->fence;
    g->lease = b->lease;
    g->capacity = b->capacity;
    g->weight = b->weight;
    g->max_hold = o->max_hold_ms * DIBS__MS;
    g->renew = !o->no_renew;
    g->on_lost = o->on_lost;
    g->data = o->data;
    g->asked = dibs__now(g->d->env);
    /* Where its owner waits here already, that one is found by the owner's name, and not this. */
    g->reentrant = !dibs__grant_of_owner(g->d, g->owner, g->name);
}

/* With the mutex. A grant that is in the tables, so that nobody else adopts it here meanwhile. */
static dibs_status prepare(dibs *d, const dibs__bearer *b, const dibs_lock_options *o,
                           dibs_grant **out, dibs_error *err)
{
    dibs_grant *there = dibs__grant_of_attempt(d, b->attempt);
    dibs_grant *g;

    if (d->closing)
        return dibs__closing(err);
    if (there && there->state == DIBS__ORPHAN)
        return dibs__fail(err, DIBS_LOST, "'%.200s' was released through this handle", b->name);
    if (there)
        return dibs__fail(err, DIBS_ALREADY, "'%.200s': this handle already has the grant",
                          b->name);
    g = dibs__grant_new(d, b->name, b->owner, true);
    if (g)
        fill(g, b, o);
    if (!g || !dibs__keeper_start(d) || !dibs__grant_enlist(g)) {
        free(g);
        return dibs__fail(err, DIBS_NO_MEMORY, "'%.200s': out of memory or threads", b->name);
    }
    *out = g;
    return DIBS_OK;
}

/* Nothing is left of it here. */
static void forget(dibs_grant **out)
{
    dibs__grant_retire(*out);
    dibs__grant_unref(*out);
    *out = NULL;
}

static dibs_status take_up(dibs_grant **out, dibs__deadline sent, const dibs__reply *reply,
                           dibs_error *err)
{
    dibs_grant *g = *out;
    dibs__deadline deadline = dibs__deadline_of(sent, reply->remaining, g->lease);
    dibs_status status;

    if (reply->fence != g->fence)
        status = dibs__fail(err, DIBS_INVALID, "'%.200s': the text has another fence than the lock",
                            g->name);
    else if (dibs__now(g->d->env) >= deadline)
        status = dibs__fail(err, DIBS_UNAVAILABLE,
                            "'%.200s': the answer came after the lease had ended", g->name);
    else
        status = DIBS_OK;
    if (status != DIBS_OK) {
        forget(out);
        return status;
    }
    g->d->adopts = true;
    dibs__grant_hold(g, reply->fence, reply->floor, deadline, true);
    g->delivered = true;
    return DIBS_OK;
}

/* It is to be given up, and still there: whoever asked for it waits for our unlock. */
static void take_up_lost(dibs_grant *g, dibs__deadline sent, const dibs__reply *reply,
                         dibs_loss why)
{
    dibs__grant_hold(g, g->fence, g->fence, sent + reply->remaining, true);
    dibs__grant_lose(g, why);
    g->owed = true;
    g->delivered = true;
}

static dibs_status not_held(dibs_grant **out, dibs__deadline sent, const dibs__reply *reply,
                            dibs_error *err)
{
    dibs_grant *g = *out;
    dibs_loss why = reply->verdict == DIBS__BROKEN    ? DIBS_LOSS_BROKEN
                    : reply->verdict == DIBS__RESUMED ? DIBS_LOSS_RESUMED
                                                      : DIBS_LOSS_GONE;
    dibs_status status =
        dibs__fail(err, DIBS_LOST, "'%.200s' is no longer held under this grant: %s", g->name,
                   why == DIBS_LOSS_GONE ? "it was released or has expired, or is in another store"
                                         : dibs_loss_text(why));

    if (why != DIBS_LOSS_GONE && reply->remaining > 0)
        take_up_lost(g, sent, reply, why);
    else
        forget(out);
    return status;
}

/* With the mutex, which is given away meanwhile. */
static dibs_status ask(dibs_grant **out, dibs_error *err)
{
    dibs_grant *g = *out;
    dibs *d = g->d;
    dibs__claim claim = dibs__grant_claim(g), *claims[] = {&claim};
    dibs__deadline sent = dibs__now(d->env);

    claim.lease = g->max_hold && g->max_hold < g->lease ? g->max_hold : g->lease;
    pthread_mutex_unlock(&d->mutex);
    d->class->keep(d->engine, claims, 1, dibs__after(d->env, d->request_span));
    pthread_mutex_lock(&d->mutex);
    if (claim.status != DIBS_OK) {
        dibs__fail(err, claim.status, "adopting '%.200s': %s", g->name,
                   dibs_status_text(claim.status));
        forget(out);
        return claim.status;
    }
    return claim.reply.verdict == DIBS__GRANTED ? take_up(out, sent, &claim.reply, err)
                                                : not_held(out, sent, &claim.reply, err);
}

dibs_status dibs__do_grant_adopt(dibs *d, const char *text, const dibs_lock_options *options,
                                 dibs_grant **out, dibs_error *err)
{
    dibs_lock_options o = {0};
    dibs__bearer b;
    dibs_status status = dibs__usable(d, err);

    *out = NULL;
    if (status != DIBS_OK)
        return status;
    if (options)
        o = *options;
    status = check_terms(&o, err);
    if (o.max_hold_ms == DIBS_FOREVER)
        o.max_hold_ms = 0;
    if (status == DIBS_OK)
        status = read_text(d, text, &b, err);
    if (status != DIBS_OK)
        return status;
    dibs__begin_call(d);
    status = prepare(d, &b, &o, out, err);
    if (status == DIBS_OK)
        status = ask(out, err);
    dibs__end_call(d);
    return status;
}

/* ---- Detach ---------------------------------------------------------------------------------- */

static dibs_status check_detach(const dibs_grant *g, dibs_error *err)
{
    if (!g->portable)
        return dibs__fail(err, DIBS_INVALID,
                          "'%.200s' was not acquired with `portable`: it can only be unlocked",
                          g->name);
    if (g->depth > 1)
        return dibs__fail(err, DIBS_INVALID,
                          "'%.200s' was acquired %d times: unlock it until once is left", g->name,
                          g->depth);
    return DIBS_OK;
}

/* With the mutex, which may be given away meanwhile. */
static dibs_status detach(dibs_grant *g, dibs_error *err)
{
    dibs_status status = DIBS_OK;

    dibs__grant_lose_if_over(g);
    if (g->state == DIBS__HELD)
        dibs__grant_note_end(g);
    else
        status = dibs__fail(err, DIBS_LOST, "'%.200s' was lost before it was detached: %s", g->name,
                            dibs_loss_text(dibs_grant_loss(g)));
    dibs__grant_retire(g);
    if (dibs__news_forget(g->d, &g->news))
        dibs__grant_unref(g);
    dibs__grant_unref(g);
    return status;
}

dibs_status dibs__do_grant_detach(dibs_grant **grant, dibs_error *err)
{
    dibs_grant *g = grant ? *grant : NULL;
    dibs_status status;
    dibs *d;

    if (!g)
        return dibs__fail(err, DIBS_INVALID, "no grant to detach");
    d = g->d;
    if (!dibs__same_process(d)) {
        *grant = NULL;
        return dibs__grant_free_in_child(g, err);
    }
    dibs__begin_call(d);
    status = check_detach(g, err);
    if (status == DIBS_OK) {
        *grant = NULL;
        status = detach(g, err);
    }
    dibs__end_call(d);
    return status;
}
