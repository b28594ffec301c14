/* The descriptor and what it announces: settled tickets and lost grants. */
#define _GNU_SOURCE
#include "core/handle.h"

#include <stdlib.h>
#include <sys/eventfd.h>

int dibs_fd(dibs *d)
{
    return d->notice_fd;
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
    pthread_mutex_unlock(&d->mutex);
    if (t->done)
        t->done(t->data, t->status, t->status == DIBS_OK ? g : NULL,
                t->status == DIBS_OK ? NULL : &t->err);
    pthread_mutex_lock(&d->mutex);
    if (t->status != DIBS_OK)
        dibs__grant_unref(g);
    free(t);
    return true;
}

bool dibs__run_lost(dibs *d)
{
    dibs_grant *g = d->lost;
    dibs_loss why;

    if (!g)
        return false;
    d->lost = g->next;
    if (!d->lost)
        d->lost_end = &d->lost;
    g->untold = false;
    why = (dibs_loss)atomic_load(&g->loss);
    if (g->on_lost) {
        d->telling = g;
        d->teller = pthread_self();
        pthread_mutex_unlock(&d->mutex);
        g->on_lost(g->data, g, why);
        pthread_mutex_lock(&d->mutex);
        d->telling = NULL;
        pthread_cond_broadcast(&d->quiet);
    }
    dibs__grant_unref(g);
    return true;
}

void dibs__forget_loss(dibs_grant *g)
{
    dibs *d = g->d;

    if (g->untold) {
        dibs_grant **at = &d->lost;
        while (*at != g)
            at = &(*at)->next;
        *at = g->next;
        if (!*at)
            d->lost_end = at;
        g->untold = false;
        dibs__grant_unref(g);
    }
    while (d->telling == g && !pthread_equal(d->teller, pthread_self()))
        pthread_cond_wait(&d->quiet, &d->mutex);
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
    while (!d->closing && d->dispatch_only && (dibs__run_lost(d) || dibs__news_run(d)))
        ran++;
    if (d->done)
        dibs__notice(d); /* what came meanwhile is for the next call */
    dibs__end_call(d);
    return ran;
}
