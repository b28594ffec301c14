/* Unlocking: a held lock goes back to the engine, a lost one is reported as lost.
 *
 * It goes well in one exchange. Without an answer it is asked again while the lease lasts; what is still unknown then
 * becomes an orphan, which the keeper gives back. A grant leaves the tables first, so that its owner may ask for the
 * lock again at once. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/handle.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_PAUSE (10 * DIBS__MS)
#define MAX_PAUSE   (250 * DIBS__MS)

/* Without the mutex. Asks again while the answer is unknown and the lease lasts. */
static dibs_status release(dibs_grant *g, dibs__deadline until, dibs__reply *reply)
{
    dibs *d = g->d;
    dibs__claim claim = dibs__grant_claim(g);
    int64_t pause = FIRST_PAUSE;
    bool unknown = false;

    for (;;) {
        dibs_status status = d->class->release(d->engine, &claim, until, reply, NULL);
        if (status == DIBS_OK && reply->verdict == DIBS__LOST && unknown &&
            dibs__now(d->env) < atomic_load(&g->deadline))
            reply->verdict = DIBS__RELEASED; /* it was ours, so the first request did it */
        if (status != DIBS_UNKNOWN && status != DIBS_UNAVAILABLE)
            return status;
        unknown |= status == DIBS_UNKNOWN;
        if (dibs__now(d->env) + pause >= until)
            return unknown ? DIBS_UNKNOWN : status;
        dibs__sleep(d->env, pause);
        pause = dibs__longer(pause, FIRST_PAUSE, MAX_PAUSE);
    }
}

static dibs_loss loss_of_verdict(dibs__verdict verdict, bool was_held)
{
    if (verdict == DIBS__BROKEN)
        return DIBS_LOSS_BROKEN;
    if (verdict == DIBS__RESUMED)
        return DIBS_LOSS_RESUMED;
    return was_held ? DIBS_LOSS_GONE : DIBS_LOSS_EXPIRED;
}

/* With the mutex, which is given away meanwhile; the grant has left the tables. */
static dibs_status give_back(dibs_grant *g, dibs_loss *why)
{
    dibs *d = g->d;
    dibs__reply reply = {0};
    dibs__deadline until = dibs__after(d->env, d->request_span);
    dibs_status status;
    bool was_held;

    if (d->closing)
        until = dibs__sooner(until, d->close_until);
    dibs__grant_note_end(g);
    d->stats.releases++;
    pthread_mutex_unlock(&d->mutex);
    status = release(g, dibs__sooner(until, atomic_load(&g->deadline)), &reply);
    pthread_mutex_lock(&d->mutex);
    was_held = dibs_grant_held(g);
    if (status == DIBS_OK && reply.verdict != DIBS__RELEASED) {
        *why = loss_of_verdict(reply.verdict, was_held);
        d->stats.losses[*why]++;
        status = DIBS_LOST;
    }
    if (status == DIBS_OK || status == DIBS_LOST)
        dibs__grant_unref(g);
    else
        dibs__grant_orphan(g, true);
    return status;
}

/* The lock is lost, but the engine may still have it in our name. */
static dibs_status acknowledge(dibs_grant *g, bool ask)
{
    dibs *d = g->d;
    dibs__claim claim = dibs__grant_claim(g);
    dibs__reply reply;

    if (g->owed && ask) {
        pthread_mutex_unlock(&d->mutex);
        d->class->release(d->engine, &claim, dibs__after(d->env, d->request_span), &reply, NULL);
        pthread_mutex_lock(&d->mutex);
    }
    dibs__grant_unref(g);
    return DIBS_LOST;
}

/* No call of the child's looks into the tables that still have it. */
dibs_status dibs__grant_free_in_child(dibs_grant *g, dibs_error *err)
{
    if (--g->depth == 0)
        free(g);
    return dibs__forked(err);
}

dibs_status dibs__unlock_say(const dibs__unlocking *u, dibs_status status, dibs_error *err)
{
    if (status == DIBS_LOST)
        return dibs__fail(err, status, "'%s' was lost before it was unlocked: %s", u->name,
                          dibs_loss_text(u->why));
    if (status != DIBS_OK)
        return dibs__fail(err, status, "'%s': %s; the lock is free when its lease expires", u->name,
                          dibs_status_text(status));
    return DIBS_OK;
}

dibs_status dibs__unlock_begin(dibs_grant *g, dibs__unlocking *u)
{
    dibs__grant_lose_if_over(g);
    u->name[0] = '\0';
    strncat(u->name, g->name, sizeof u->name - 1);
    u->why = (dibs_loss)atomic_load(&g->loss);
    u->held = g->state == DIBS__HELD;
    u->last = --g->depth == 0;
    if (u->last) {
        dibs__grant_retire(g);
        if (dibs__news_drop(g->d, &g->news))
            dibs__grant_unref(g);
    }
    return u->held ? DIBS_OK : DIBS_LOST;
}

dibs_status dibs__unlock_end(dibs_grant *g, dibs__unlocking *u, bool ask)
{
    dibs__news_forget(g->d, &g->news); /* its callback may run */
    if (u->held && ask)
        return give_back(g, &u->why);
    if (!u->held)
        return acknowledge(g, ask);
    dibs__grant_note_end(g);
    dibs__grant_orphan(g, true);
    return DIBS_UNAVAILABLE;
}

dibs_status dibs__do_unlock(dibs_grant **grant, dibs_error *err)
{
    dibs_grant *g = grant ? *grant : NULL;
    dibs__unlocking u;
    dibs *d;
    dibs_status status;

    if (!g)
        return dibs__no_grant("unlock", err);
    *grant = NULL;
    d = g->d;
    if (!dibs__same_process(d))
        return dibs__grant_free_in_child(g, err);
    dibs__begin_call(d);
    status = dibs__unlock_begin(g, &u);
    if (u.last)
        status = dibs__unlock_end(g, &u, true);
    dibs__end_call(d);
    return dibs__unlock_say(&u, status, err);
}
