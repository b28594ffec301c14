/* Trying for those who are first in their queues. See waiters.h; event.c tries when their time has come. */
#define _GNU_SOURCE
#include "engines/redlock/waiters.h"

#include <string.h>

#define PASSES 64       /* from hand to hand in this handle */
#define BREATH DIBS__MS /* for the others, after that: the release is on its way */

/* ---- Trying ---------------------------------------------------------------------------------- */

dibs__waiting *dibs__lock_queue_begin(dibs__redlock *r, dibs__lock_queue *s, dibs__try *out)
{
    dibs__waiting *w = s->first;

    w->state = DIBS__TRIES;
    s->trying = true;
    dibs__heap_remove(&r->waiters->due,
                      &s->due); /* or the reader of the events would try for it as well */
    s->again = false;
    out->name = s->name;
    out->who = &w->who;
    /* The core counts what it is handed from its last keep-alive, which may have been answered
     * while the nodes were being asked: their lease must last that much longer. */
    out->within = 2 * r->v->limit;
    out->lease = w->who.lease + out->within;
    out->waits = true;
    out->arrival = w->arrival;
    out->after = NULL;
    return w;
}

static void serve(dibs__redlock_waiters *l, dibs__lock_queue *s, dibs__waiting *w,
                  const dibs__try *t)
{
    dibs__lock_queue_drop(s, w);
    w->state = DIBS__HAS;
    w->fence = t->reply.fence;
    w->over = t->began + t->lease;
    w->next = l->served;
    l->served = w;
}

bool dibs__lock_queue_end(dibs__redlock *r, dibs__waiting *w, const dibs__try *t)
{
    dibs__redlock_waiters *l = r->waiters;
    dibs__lock_queue *s = w->queue;
    bool granted = t->status == DIBS_OK && t->reply.verdict == DIBS__GRANTED;

    s->trying = false;
    s->down = t->status != DIBS_OK;
    w->state = DIBS__WAITS;
    w->arrival = t->arrival;
    if (granted) {
        serve(l, s, w, t);
        s->served = t->reply.fence;
    }
    if (s->again && !granted) /* it has become free meanwhile */
        s->try_at = dibs__now(r->v->env);
    else
        dibs__lock_queue_pause(r, s, t->status == DIBS_OK ? t : NULL);
    dibs__lock_queue_turn(r, s);
    pthread_cond_broadcast(&l->tried);
    return granted;
}

void dibs__redlock_waiters_tried(dibs__redlock *r, dibs__waiting *w, const dibs__try *t)
{
    dibs__sink *sink = r->base.sink;
    char attempt[DIBS__ATTEMPT_SIZE];
    bool notify;

    memcpy(attempt, w->who.attempt, sizeof attempt);
    pthread_mutex_lock(&r->waiters->lock);
    notify = dibs__lock_queue_end(r, w, t);
    pthread_mutex_unlock(&r->waiters->lock);
    if (notify)
        sink->granted(sink, attempt, t->reply.fence, t->reply.fence);
}

dibs__waiting *dibs__redlock_waiters_next(dibs__redlock *r, const char *name, dibs__try *out)
{
    dibs__redlock_waiters *l = r->waiters;
    dibs__waiting *w = NULL;
    dibs__lock_queue *s;

    pthread_mutex_lock(&l->lock);
    s = dibs__lock_queue_find(l, name);
    if (s && s->first && !s->trying) {
        if (s->passes++ < PASSES) {
            w = dibs__lock_queue_begin(r, s, out);
        } else {
            s->passes = 0;
            s->try_at = dibs__after(r->v->env, BREATH);
            dibs__lock_queue_turn(r, s);
        }
    }
    pthread_mutex_unlock(&l->lock);
    return w;
}
