/* What the keeper does beside grants: maintenance with a time, deadlines without I/O, and callbacks of
 * the user's. Whoever has any of these has reserved room in the heaps before (dibs__keeper_reserve), so that adding it cannot fail. */
#define _GNU_SOURCE
#include "core/handle.h"

#include <sys/eventfd.h>

#define REAP_FIRST  (2 * DIBS__SECOND)
#define REAP_EVERY  (60 * DIBS__SECOND)
#define REAP_SOON   (10 * DIBS__MS)
#define REAP_LONGER 4
#define REAP_LIMIT  100
#define REAP_ONE_IN 8 /* of the handles that are closed before their keeper came to it */
#define REAP_LAST   (DIBS__SECOND / 2)

bool dibs__keeper_reserve(dibs *d)
{
    if (!dibs__keeper_start(d) ||
        !dibs__heap_reserve(&d->renewals, d->keeper_tasks - d->renewals.count) ||
        !dibs__heap_reserve(&d->maintenance, d->keeper_tasks - d->maintenance.count) ||
        !dibs__heap_reserve(&d->ends, d->keeper_tasks - d->ends.count))
        return false;
    d->keeper_tasks++;
    return true;
}

void dibs__keeper_unreserve(dibs *d)
{
    d->keeper_tasks--;
}

void dibs__keeper_task_at(dibs *d, dibs__heap *heap, dibs__keeper_task *c, dibs__deadline when)
{
    dibs__heap_put(heap, &c->due, when);
    dibs__keeper_arm(d, when);
}

/* ---- News ------------------------------------------------------------------------------------ */

static dibs__news_list *list_of(dibs *d, const dibs__news *n)
{
    return n->fill ? &d->outcomes : &d->news;
}

void dibs__news_add(dibs *d, dibs__news *n)
{
    dibs__news_list *list = list_of(d, n);

    if (n->fill && !list->first)
        eventfd_write(d->notice_fd, 1);
    n->next = NULL;
    n->at = list->end;
    *list->end = n;
    list->end = &n->next;
    if (!n->fill)
        dibs__keeper_wake(d);
}

bool dibs__news_drop(dibs *d, dibs__news *n)
{
    dibs__news_list *list = list_of(d, n);
    eventfd_t ignored;

    if (!n->at)
        return false;
    *n->at = n->next;
    if (n->next)
        n->next->at = n->at;
    else
        list->end = n->at;
    n->at = NULL;
    if (n->fill && !list->first)
        eventfd_read(d->notice_fd, &ignored);
    return true;
}

/* `call` may drop the last reference to what `n` is in. */
bool dibs__news_run(dibs *d)
{
    dibs__news *n = d->news.first;
    dibs__callback t;

    if (!n)
        return false;
    dibs__news_drop(d, n);
    n->calling = true;
    dibs__callback_begin(&t, n);
    n->call(d, n);
    dibs__callback_end(&t);
    return true;
}

bool dibs__news_forget(dibs *d, dibs__news *n)
{
    bool listed = dibs__news_drop(d, n);

    if (n->calling) {
        pthread_mutex_unlock(&d->mutex);
        dibs__callback_await(n);
        pthread_mutex_lock(&d->mutex);
    }
    return listed;
}

/* ---- Reaping --------------------------------------------------------------------------------- */

/* While it finds something, a handle reaps for a tenth of the time. A fixed pause would be a rate, and a store that is
 * written to faster would grow without end; without a pause a fleet of handles would keep the server busy with this
 * alone. When it finds nothing, the pause grows, up to a minute at once if it never found anything: where the engine
 * cannot tell what ended first, that may lie behind some hundred that have not ended. */
static int64_t rest_after(dibs *d, bool more, int64_t took)
{
    int64_t rest = took * 9 > REAP_SOON ? took * 9 : REAP_SOON;

    if (!more && rest < REAP_LONGER * d->reap_rest)
        rest = REAP_LONGER * d->reap_rest;
    d->reap_rest = rest < REAP_EVERY ? rest : REAP_EVERY;
    return d->reap_rest;
}

/* Small batches: nobody's lock waits for the whole of it. */
static void reap(dibs *d, dibs__keeper_task *c, int64_t now)
{
    dibs__deadline until = dibs__keeper_until(d, now);
    int64_t ended;
    bool more;

    d->reaped = true;
    pthread_mutex_unlock(&d->mutex);
    more = d->class->cell_reap(d->engine, REAP_LIMIT, until);
    pthread_mutex_lock(&d->mutex);
    ended = dibs__now(d->env);
    dibs__keeper_task_at(d, &d->maintenance, c, ended + rest_after(d, more, ended - now));
}

void dibs__reap_start(dibs *d)
{
    if (d->reaping || !d->class->cell_reap || !dibs__keeper_reserve(d))
        return;
    d->reaping = true;
    d->reap_rest = REAP_EVERY;
    d->reap.run = reap;
    dibs__keeper_task_at(d, &d->maintenance, &d->reap, dibs__now(d->env) + REAP_FIRST);
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
