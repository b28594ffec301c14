/* See reader.h. */
#include "core/reader.h"

bool dibs__reader_lead(dibs__readers *r, dibs__driver_call *c)
{
    if (!c->queued) {
        *c = (dibs__driver_call){0};
        r->threads.to_oldest = true;
        dibs__call_enter(&r->threads, c);
    }
    return !r->keeper_reads && dibs__call_drive(&r->threads, c);
}

dibs__driver_call *dibs__reader_leave(dibs__readers *r, dibs__driver_call *c, bool *keeper)
{
    bool led = dibs__call_drives(&r->threads, c);
    dibs__driver_call *next = dibs__call_leave(&r->threads, c);

    *keeper = led && !next && !r->keeper_minds;
    return next;
}

bool dibs__keeper_minds(dibs__readers *r)
{
    r->keeper_minds = !r->threads.driver;
    return r->keeper_minds;
}

bool dibs__keeper_begins(dibs__readers *r)
{
    r->keeper_reads = !r->threads.driver;
    return r->keeper_reads;
}

dibs__driver_call *dibs__keeper_ends(dibs__readers *r)
{
    r->keeper_reads = false;
    if (!r->threads.oldest)
        return NULL;
    dibs__call_drive(&r->threads, r->threads.oldest);
    return r->threads.oldest;
}
