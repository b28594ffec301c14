/* The break notice: how a holder learns soon that its lock was broken, on engines that cannot tell it themselves, or
 * tell another handle (portable.c).
 *
 * A break writes one cell, the same for all locks of the store. The keeper of a handle that holds something
 * reads that cell, one small read however many locks there are, and looks at all of its locks if the cell has
 * another version than the last time: no clock is compared. If the process that broke the lock dies before it
 * writes, or the read fails, the next renewal finds out. */
#define _GNU_SOURCE
#include "core/handle.h"

#include <stdlib.h>

#define KEY   DIBS__OWN_CELL "broken"
#define EVERY (800 * DIBS__MS) /* with the look that follows: within a second */

/* An engine that tells holders tells the handle that took the lock, not the one that adopted it. */
static bool needs_break_notice(const dibs *d)
{
    return d->class->cell && (!d->class->can.notifies_holders || d->adopts);
}

void dibs__break_notice_send(dibs *d, dibs__deadline until)
{
    char stamp[DIBS__STAMP_SIZE];
    dibs__cell_command c = {.op = DIBS__CELL_SET, .number = 1, .stamp = stamp};
    dibs__cell_reply reply = {0};

    if (!d->class->cell)
        return;
    dibs__stamp(d, stamp);
    d->class->cell(d->engine, KEY, &c, false, until, &reply, NULL);
    free(reply.data);
}

/* On the keeper. The first read of a handle looks as well, if anybody has ever rung. */
static void listen_due(dibs *d, dibs__keeper_task *c, int64_t now)
{
    dibs__deadline until = dibs__keeper_until(d, now);
    dibs__cell_command read = {.op = DIBS__CELL_READ, .stamp = ""};
    dibs__cell_reply reply = {0};
    dibs_status status;

    if (d->stats.held == 0) {
        d->listening = false;
        return;
    }
    pthread_mutex_unlock(&d->mutex);
    status = d->class->cell(d->engine, KEY, &read, false, until, &reply, NULL);
    pthread_mutex_lock(&d->mutex);
    free(reply.data);
    if (status == DIBS_DENIED) /* and so it will be the next time: `listening` stays */
        return;
    if (status == DIBS_OK && reply.version != d->break_notice_version) {
        d->break_notice_version = reply.version;
        dibs__check_all(d, DIBS__HOLDERS);
    }
    dibs__keeper_task_at(d, &d->maintenance, c, dibs__now(d->env) + EVERY);
}

void dibs__break_notice_listen(dibs *d, int64_t now)
{
    if (d->listening || !needs_break_notice(d) ||
        (!d->break_notice.run && !dibs__keeper_reserve(d)))
        return;
    d->listening = true;
    d->break_notice.run = listen_due;
    dibs__keeper_task_at(d, &d->maintenance, &d->break_notice, now + EVERY);
}
