/* The descriptor and what it announces: settled tickets and lost grants. */
#define _GNU_SOURCE
#include "core/handle.h"

#include "core/error.h"

#include <stdlib.h>
#include <sys/eventfd.h>

int dibs_fd(dibs *d)
{
    return d->notice_fd;
}

/* Granted, but lost before anybody dispatched: nobody was told that it was his. The keeper asks the
 * engine, because dispatching never blocks. */
static void take_away(dibs_ticket *t)
{
    dibs_grant *g = t->grant;

    t->status = dibs__fail(&t->err, DIBS_LOST,
                           "'%.200s' was granted and lost before dibs_dispatch was called: %s",
                           g->name, dibs_loss_text(dibs_loss_of(g)));
    dibs__grant_ref(g); /* the ticket's own */
    if (--g->depth == 0) {
        if (dibs__news_forget(g->d, &g->news))
            dibs__grant_unref(g);
        dibs__grant_orphan(g, false);
    }
}

/* With the mutex, which is given away while the callback runs. */
static bool run_ticket(dibs *d)
{
    dibs_ticket *t = d->done;
    dibs_grant *g;

    if (!t)
        return false;
    d->done = t->next;
    if (!d->done)
        d->done_end = &d->done;
    g = t->grant;
    if (t->status == DIBS_OK && !dibs__grant_deliver(g))
        take_away(t);
    dibs__error_settle(&t->err, t->status);
    pthread_mutex_unlock(&d->mutex);
    if (t->done)
        t->done(t->data, t->status, t->status == DIBS_OK ? g : NULL, &t->err);
    pthread_mutex_lock(&d->mutex);
    if (t->status != DIBS_OK)
        dibs__grant_unref(g);
    free(t);
    return true;
}

/* How many there are now: a callback that unlocks may settle the next ticket, and so on for ever.
 */
static int count_done(const dibs *d)
{
    int n = 0;

    for (const dibs_ticket *t = d->done; t; t = t->next)
        n++;
    return n;
}

int dibs_dispatch(dibs *d)
{
    eventfd_t ignored;
    int ran = 0;

    if (!dibs__same_process(d))
        return 0;
    dibs__begin_call(d);
    eventfd_read(d->notice_fd, &ignored);
    ran = d->losses_noted;
    d->losses_noted = 0;
    for (int left = count_done(d); left > 0 && !d->closing && run_ticket(d); left--)
        ran++;
    while (!d->closing && d->dispatch_only && dibs__news_run(d))
        ran++;
    if (d->done)
        dibs__notice(d); /* what came meanwhile is for the next call */
    dibs__end_call(d);
    return ran;
}
