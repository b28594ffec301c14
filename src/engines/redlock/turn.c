/* Trying for those who are first in their lines: an unlock's, and the threads' own. See line.h; event.c tries
 * for requests. */
#define _GNU_SOURCE
#include "engines/redlock/line.h"

#include "core/thread.h"

#include <string.h>
#include <sys/eventfd.h>

#define PASSES 64             /* from hand to hand in this handle */
#define BREATH (4 * DIBS__MS) /* for the others, after that */

/* ---- Trying ---------------------------------------------------------------------------------- */

dibs__waiting *dibs__spot_begin(dibs__redlock *r, dibs__spot *s, dibs__try *out)
{
    dibs__waiting *w = s->first;

    w->state = DIBS__TRIES;
    s->trying = true;
    dibs__heap_remove(&r->line->due, &s->due); /* or the keeper would try for it as well */
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
    if (!w->by_event)
        pthread_cond_signal(&w->cond);
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
    return granted && w->by_event;
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

/* ---- Threads that wait ----------------------------------------------------------------------- */

/* With the lock, which is given away meanwhile. */
static void try_first(dibs__redlock *r, dibs__spot *s, dibs__deadline until)
{
    dibs__try t, *tries[] = {&t};
    bool hinted = s->hinted;
    dibs__waiting *w = dibs__spot_begin(r, s, &t);

    pthread_mutex_unlock(&r->line->lock);
    dibs__try_all(r, tries, 1, hinted, until);
    pthread_mutex_lock(&r->line->lock);
    dibs__spot_end(r, w, &t);
    if (w->spot && s->heard != dibs__ears(r->v))
        eventfd_write(r->v->ear_fd, 1); /* the keeper tries to listen again */
}

dibs_status dibs__redlock_wait(dibs__engine *e, dibs__sitter *sitter, dibs__deadline until,
                               dibs__reply *out, dibs_error *err)
{
    dibs__redlock *r = (dibs__redlock *)e;
    dibs__redlock_line *l = r->line;
    dibs__waiting *w;

    (void)err;
    *out = (dibs__reply){.verdict = DIBS__QUEUED};
    pthread_mutex_lock(&l->lock);
    while ((w = dibs__waiting_find(l, sitter->claim.attempt)) && !w->poked) {
        int64_t now = dibs__now(r->v->env);
        dibs__spot *s = w->spot;
        if (w->state == DIBS__HAS) {
            *out = (dibs__reply){.verdict = DIBS__GRANTED, .fence = w->fence, .floor = w->fence};
            break;
        }
        if (now >= until)
            break;
        bool mine = s->first == w && !s->trying;
        if (mine && now >= s->try_at)
            try_first(r, s, until);
        else
            dibs__cond_sleep(&w->cond, &l->lock, r->v->env,
                             mine ? dibs__sooner(until, s->try_at) : until);
    }
    if (w)
        w->poked = false;
    pthread_mutex_unlock(&l->lock);
    return DIBS_OK;
}

/* The handle's mutex is held: nobody calls the sink with the line's lock. */
void dibs__redlock_poke(dibs__engine *e, dibs__sitter *sitter)
{
    dibs__redlock *r = (dibs__redlock *)e;
    dibs__waiting *w;

    if (!sitter->claim.attempt)
        return;
    pthread_mutex_lock(&r->line->lock);
    w = dibs__waiting_find(r->line, sitter->claim.attempt);
    if (w && !w->by_event) {
        w->poked = true;
        pthread_cond_signal(&w->cond);
    }
    pthread_mutex_unlock(&r->line->lock);
}
