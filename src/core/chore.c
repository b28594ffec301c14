/* What the keeper does beside grants: chores with a time, deadlines without I/O, and callbacks of
 * the user's. Whoever has any of these has lodged first, so that putting one cannot fail. */
#define _GNU_SOURCE
#include "core/handle.h"

#define REAP_FIRST  (2 * DIBS__SECOND)
#define REAP_EVERY  (60 * DIBS__SECOND)
#define REAP_SOON   (10 * DIBS__MS)
#define REAP_LIMIT  100
#define REAP_ONE_IN 8 /* of the handles that are closed before their keeper came to it */
#define REAP_LAST   (DIBS__SECOND / 2)

bool dibs__lodge(dibs *d)
{
    if (!dibs__keeper_start(d) ||
        !dibs__heap_reserve(&d->renewals, d->lodgers - d->renewals.count) ||
        !dibs__heap_reserve(&d->chores, d->lodgers - d->chores.count) ||
        !dibs__heap_reserve(&d->ends, d->lodgers - d->ends.count))
        return false;
    d->lodgers++;
    return true;
}

void dibs__unlodge(dibs *d)
{
    d->lodgers--;
}

void dibs__chore_at(dibs *d, dibs__heap *heap, dibs__chore *c, dibs__deadline when)
{
    dibs__heap_put(heap, &c->due, when);
    if (when < d->armed)
        dibs__keeper_wake(d);
}

/* ---- News ------------------------------------------------------------------------------------ */

void dibs__news_add(dibs *d, dibs__news *n)
{
    n->next = NULL;
    n->listed = true;
    *d->news_end = n;
    d->news_end = &n->next;
    dibs__keeper_wake(d); /* it runs the callback, or passes the notice on */
}

static void unlist(dibs *d, dibs__news *n)
{
    dibs__news **at = &d->news;

    while (*at != n)
        at = &(*at)->next;
    *at = n->next;
    if (!*at)
        d->news_end = at;
    n->listed = false;
}

/* `tell` may drop the last reference to what `n` is in. */
bool dibs__news_run(dibs *d)
{
    dibs__news *n = d->news;
    dibs__telling t;

    if (!n)
        return false;
    unlist(d, n);
    n->telling = true;
    dibs__telling_begin(&t, n);
    n->tell(d, n);
    dibs__telling_end(&t);
    return true;
}

bool dibs__news_forget(dibs *d, dibs__news *n)
{
    bool listed = n->listed;

    if (listed)
        unlist(d, n);
    if (n->telling) {
        pthread_mutex_unlock(&d->mutex);
        dibs__telling_await(n);
        pthread_mutex_lock(&d->mutex);
    }
    return listed;
}

/* ---- Reaping --------------------------------------------------------------------------------- */

/* Small batches: nobody's lock waits for the whole of it. While there is more, a handle reaps for a tenth of the
 * time. A fixed pause would be a rate, and a store that is written to faster would grow without end; without a pause
 * a fleet of handles would keep the server busy with this alone. */
static void reap(dibs *d, dibs__chore *c, int64_t now)
{
    dibs__deadline until = dibs__keeper_until(d, now);
    int64_t ended, rest;
    bool more;

    d->reaped = true;
    pthread_mutex_unlock(&d->mutex);
    more = d->class->cell_reap(d->engine, REAP_LIMIT, until);
    pthread_mutex_lock(&d->mutex);
    ended = dibs__now(d->env);
    rest = (ended - now) * 9 > REAP_SOON ? (ended - now) * 9 : REAP_SOON;
    dibs__chore_at(d, &d->chores, c, ended + (more && rest < REAP_EVERY ? rest : REAP_EVERY));
}

void dibs__reap_start(dibs *d)
{
    if (d->reaping || !d->class->cell_reap || !dibs__lodge(d))
        return;
    d->reaping = true;
    d->reap.run = reap;
    dibs__chore_at(d, &d->chores, &d->reap, dibs__now(d->env) + REAP_FIRST);
}

/* Without this, nobody would ever reap where every handle is a command's. One that makes one thing
 * drops up to a dozen on the average, and seldom pays for it. */
void dibs__reap_last(dibs *d)
{
    unsigned char dice;

    if (!d->reaping || d->reaped)
        return;
    d->env->random(d->env->ctx, &dice, sizeof dice);
    if (dice % REAP_ONE_IN == 0)
        d->class->cell_reap(d->engine, REAP_LIMIT,
                            dibs__sooner(d->close_until, dibs__after(d->env, REAP_LAST)));
}
