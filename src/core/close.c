/* Closing a handle, or draining it: those who wait return, then what the engine has of ours is given back, as far as the
 * time of one request allows. What is left ends with its lease. */
#define _GNU_SOURCE
#include "core/handle.h"

#include <stdlib.h>

/* With the mutex. Threads that wait return, requests get their outcome; then nobody but us is left. */
static void drive_out(dibs *d)
{
    d->closing = true;
    d->close_until = dibs__after(d->env, d->request_span);
    pthread_cond_broadcast(&d->opening.changed);
    if (d->stop_requests)
        d->stop_requests(d);
    dibs__watches_end_all(d);
    for (size_t i = 0; i < d->attempts.size; i++) {
        for (dibs__node *n = d->attempts.slot[i]; n; n = n->next) {
            dibs_grant *g = DIBS__FROM(dibs_grant, by_attempt, n);
            if (g->ticket && !g->ticket->by_event)
                dibs__ticket_cancel(g->ticket);
        }
    }
    while (d->users > 0)
        pthread_cond_wait(&d->quiet, &d->mutex);
    d->keeper_stops = true;
}

static bool is_out(const dibs_grant *g)
{
    return g->state == DIBS__HELD || g->state == DIBS__ORPHAN ||
           (g->state == DIBS__GRANT_LOST && g->owed);
}

/* With the mutex, which is given away meanwhile. A grant that its user still has is lost. */
static void give_back(dibs_grant *g)
{
    dibs *d = g->d;
    dibs__claim claim = dibs__grant_claim(g);
    bool release_it = g->state == DIBS__HELD     ? g->delivered
                      : g->state == DIBS__ORPHAN ? g->release_it
                                                 : true;
    dibs__reply reply;

    if (g->state == DIBS__HELD)
        atomic_store(&g->loss, DIBS_LOSS_CLOSED);
    atomic_store(&g->deadline, 0);
    g->state = DIBS__GRANT_LOST;
    g->owed = false;
    dibs__grant_ref(g); /* its user may unlock it meanwhile */
    pthread_mutex_unlock(&d->mutex);
    if (dibs__now(d->env) >= d->close_until)
        ; /* it is free when its lease expires */
    else if (release_it)
        d->class->release(d->engine, &claim, d->close_until, &reply, NULL);
    else
        d->class->cancel(d->engine, &claim, d->close_until, NULL);
    pthread_mutex_lock(&d->mutex);
    dibs__grant_unref(g);
}

/* The first in this slot that the engine may have. */
static dibs_grant *first_out(const dibs *d, size_t slot)
{
    dibs__node *n = slot < d->attempts.size ? d->attempts.slot[slot] : NULL;

    while (n && !is_out(DIBS__FROM(dibs_grant, by_attempt, n)))
        n = n->next;
    return n ? DIBS__FROM(dibs_grant, by_attempt, n) : NULL;
}

/* What the engine has of ours is given back, as far as the time allows. Nothing is added meanwhile, but grants may
 * be unlocked. */
static void give_back_all(dibs *d)
{
    pthread_mutex_lock(&d->mutex);
    for (size_t i = 0; i < d->attempts.size; i++)
        for (dibs_grant *g = first_out(d, i); g; g = first_out(d, i))
            give_back(g);
    pthread_mutex_unlock(&d->mutex);
}

void dibs__drain(dibs *d)
{
    pthread_mutex_lock(&d->mutex);
    drive_out(d);
    pthread_mutex_unlock(&d->mutex);
    dibs__open_join(d);
    dibs__keeper_stop(d);
    dibs__workers_stop(d);
    if (d->end_onces)
        d->end_onces(d, d->close_until);
    give_back_all(d);
    dibs__reap_last(d);
    pthread_mutex_lock(&d->mutex);
    d->drained = true;
    pthread_mutex_unlock(&d->mutex);
}

static void free_grants(dibs *d)
{
    for (size_t i = 0; i < d->attempts.size; i++) {
        for (dibs__node *n = d->attempts.slot[i], *next; n; n = next) {
            next = n->next;
            free(DIBS__FROM(dibs_grant, by_attempt, n));
        }
    }
    d->attempts.count = 0;
}

void dibs_close(dibs *d)
{
    if (!d)
        return;
    if (!dibs__same_process(d)) {
        if (dibs__is_open(d))
            d->class->abandon(d->engine);
        return; /* the rest may be in the middle of a change: it goes with the process */
    }
    if (d->drainer_runs)
        pthread_join(d->drainer, NULL);
    else
        dibs__drain(d);
    dibs__outcomes_free(d);
    if (d->free_onces)
        d->free_onces(d);
    free_grants(d);
    if (dibs__is_open(d))
        d->class->close(d->engine);
    dibs__handle_free(d);
}
