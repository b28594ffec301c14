/* Trying for those who are first in their lines. See line.h; event.c tries when their time has come. */
#define _GNU_SOURCE
#include "engines/redlock/line.h"

#include <string.h>

#define PASSES 64             /* from hand to hand in this handle */
#define BREATH (4 * DIBS__MS) /* for the others, after that */

/* ---- Trying ---------------------------------------------------------------------------------- */

dibs__waiting *dibs__spot_begin(dibs__redlock *r, dibs__spot *s, dibs__try *out)
{
    dibs__waiting *w = s->first;

    w->state = DIBS__TRIES;
    s->trying = true;
    dibs__heap_remove(&r->line->due,
                      &s->due); /* or the reader of the events would try for it as well */
    s->hinted = false;
    out->name = s->name;
    out->who = &w->who;
    /* The core counts what it is handed from its last sign of life, which may have been answered
     * while the nodes were being asked: their lease must last that much longer. */
    out->within = 2 * r->v->limit;
    out->lease = w->who.lease + out->within;
    out->waits = 2;
    out->after = NULL;
    return w;
}

static void serve(dibs__redlock_line *l, dibs__spot *s, dibs__waiting *w, const dibs__try *t)
{
    dibs__spot_drop(s, w);
    w->state = DIBS__HAS;
    w->fence = t->reply.fence;
    w->over = t->began + t->lease;
    w->next = l->served;
    l->served = w;
}

bool dibs__spot_end(dibs__redlock *r, dibs__waiting *w, const dibs__try *t)
{
    dibs__redlock_line *l = r->line;
    dibs__spot *s = w->spot;
    bool granted = t->status == DIBS_OK && t->reply.verdict == DIBS__GRANTED;

    s->trying = false;
    s->down = t->status != DIBS_OK;
    w->state = DIBS__WAITS;
    if (granted) {
        serve(l, s, w, t);
        s->pause = DIBS__SPOT_PAUSE_LAST; /* whoever has it now hands it on */
        dibs__spot_pause(r, s, 0);
    } else if (s->hinted) { /* it has become free meanwhile */
        s->try_at = dibs__now(r->v->env);
    } else {
        dibs__spot_pause(r, s, t->status == DIBS_OK ? t->left : 0);
    }
    dibs__spot_turn(r, s);
    pthread_cond_broadcast(&l->tried);
    return granted;
}

void dibs__redlock_line_tried(dibs__redlock *r, dibs__waiting *w, const dibs__try *t)
{
    dibs__sink *sink = r->base.sink;
    char attempt[DIBS__ATTEMPT_SIZE];
    bool tell;

    memcpy(attempt, w->who.attempt, sizeof attempt);
    pthread_mutex_lock(&r->line->lock);
    tell = dibs__spot_end(r, w, t);
    pthread_mutex_unlock(&r->line->lock);
    if (tell)
        sink->granted(sink, attempt, t->reply.fence, t->reply.fence);
}

dibs__waiting *dibs__redlock_line_next(dibs__redlock *r, const char *name, dibs__try *out)
{
    dibs__redlock_line *l = r->line;
    dibs__waiting *w = NULL;
    dibs__spot *s;

    pthread_mutex_lock(&l->lock);
    s = dibs__spot_find(l, name);
    if (s && s->first && !s->trying) {
        if (s->passes++ < PASSES) {
            w = dibs__spot_begin(r, s, out);
        } else {
            s->passes = 0;
            s->try_at = dibs__after(r->v->env, BREATH / 2 + dibs__redlock_random(r, BREATH));
            s->not_before = s->try_at;
            dibs__spot_turn(r, s);
        }
    }
    pthread_mutex_unlock(&l->lock);
    return w;
}
