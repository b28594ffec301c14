/* See driver.h. */
#include "core/driver.h"

#include <stdatomic.h>

void dibs__call_enter(dibs__calls *q, dibs__driver_call *c)
{
    c->older = q->youngest;
    c->younger = NULL;
    if (c->older)
        c->older->younger = c;
    else
        q->oldest = c;
    q->youngest = c;
    c->queued = true;
}

static void give_role(dibs__calls *q, dibs__driver_call *c)
{
    q->driver = c;
    atomic_fetch_or(&c->word, DIBS__CALL_DRIVES);
}

bool dibs__call_drive(dibs__calls *q, dibs__driver_call *c)
{
    if (!q->driver)
        give_role(q, c);
    return q->driver == c;
}

void dibs__call_finish(dibs__calls *q, dibs__driver_call *c)
{
    if (!c->queued)
        return;
    if (c->older)
        c->older->younger = c->younger;
    else
        q->oldest = c->younger;
    if (c->younger)
        c->younger->older = c->older;
    else
        q->youngest = c->older;
    c->queued = false;
    atomic_fetch_or(&c->word, DIBS__CALL_DONE);
}

dibs__driver_call *dibs__call_leave(dibs__calls *q, dibs__driver_call *c)
{
    dibs__call_finish(q, c);
    if (q->driver != c)
        return NULL;
    q->driver = NULL;
    if (q->youngest)
        give_role(q, q->to_oldest ? q->oldest : q->youngest);
    return q->driver;
}
