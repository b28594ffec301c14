/* The base: a number that is added to every fence of a store, so that a lock which moves here from another
 * engine goes on with higher fences.
 *
 * Engines give out fences from their clock, in microseconds, or (ZooKeeper, etcd) number them by themselves,
 * from small numbers on. The URL's `fence_above=N` asks for fences above N. The first to open the store
 * decides and writes the base into a cell, in one step that only one can do; everybody else finds it
 * there, and it never changes: so all clients add the same. On an engine that numbers by itself everybody
 * asks, also without the parameter, and a store that was opened without one has the base 0 for good. On the
 * others fences are above N anyway as soon as the clock is; only those who name N ask.
 *
 * Inside, fences are the engine's own. The base is added where they go out: grants, runs, reports. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/handle.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BASE_KEY DIBS__OWN_CELL "base"
#define TOP_KEY  DIBS__OWN_CELL "top"
#define PAUSE    (20 * DIBS__MS)

/* A number of the engine's above all that it has given out before, unless its clock was set back. */
static dibs_status top_of(dibs *d, dibs__deadline until, uint64_t *out, dibs_error *err)
{
    char stamp[DIBS__STAMP_SIZE];
    dibs__cell_command c = {.op = DIBS__CELL_SET, .number = 1, .stamp = stamp};
    dibs__cell_reply reply = {0};
    dibs_status status;

    if (!d->class->cell) {
        *out = (uint64_t)d->env->wall(d->env->ctx);
        return DIBS_OK;
    }
    dibs__stamp(d, stamp);
    status = d->class->cell(d->engine, TOP_KEY, &c, false, until, &reply, err);
    *out = reply.version;
    free(reply.data);
    return status;
}

/* DIBS_NOT_FOUND: nobody has decided yet. */
static dibs_status read_base(dibs *d, dibs__cell_reply *reply, dibs_error *err)
{
    const char *text = reply->data;
    char *end = NULL;

    if (reply->verdict == DIBS__CELL_ABSENT)
        return DIBS_NOT_FOUND;
    errno = 0;
    if (text && reply->size > 0 && strspn(text, "0123456789") == reply->size)
        d->base = strtoull(text, &end, 10);
    if (!end || errno || d->base > INT64_MAX)
        return dibs__fail(
            err, DIBS_ENGINE_FAILED,
            "the store's fence base has an unknown format: use a newer version of dibs");
    return DIBS_OK;
}

/* One command; the answer is the base that is there, whoever wrote it. `mine` NULL: only look. */
static dibs_status ask_base(dibs *d, const char *mine, dibs__deadline until, dibs_error *err)
{
    char stamp[DIBS__STAMP_SIZE] = "";
    dibs__cell_command c = {
        .op = mine ? DIBS__CELL_SWAP : DIBS__CELL_READ, .data = mine, .stamp = stamp};
    dibs__cell_reply reply = {0};
    dibs_status status;

    if (mine) {
        c.size = strlen(mine);
        dibs__stamp(d, stamp);
    }
    status = d->class->cell(d->engine, BASE_KEY, &c, false, until, &reply, err);
    if (status == DIBS_OK && mine && reply.verdict == DIBS__CELL_DONE)
        d->base = strtoull(mine, NULL, 10);
    else if (status == DIBS_OK)
        status = read_base(d, &reply, err);
    free(reply.data);
    return status;
}

/* Whether a lost answer is to be asked for again; after a pause. */
static bool once_more(const dibs *d, dibs_status status, dibs__deadline until)
{
    if (status != DIBS_UNKNOWN || dibs__now(d->env) + PAUSE >= until)
        return false;
    dibs__sleep(d->env, PAUSE);
    return true;
}

/* Nobody has: a step that one of all who try takes. A lost answer is asked for again. */
static dibs_status decide(dibs *d, uint64_t above, dibs__deadline until, dibs_error *err)
{
    char text[24];
    uint64_t top = 0;
    dibs_status status = d->class->can.own_numbers ? DIBS_OK : top_of(d, until, &top, err);

    if (status != DIBS_OK)
        return status;
    snprintf(text, sizeof text, "%" PRIu64, top > above ? (uint64_t)0 : above);
    do
        status = ask_base(d, text, until, err);
    while (once_more(d, status, until));
    return status;
}

static dibs_status check_above(dibs *d, uint64_t above, dibs__deadline until, dibs_error *err)
{
    uint64_t top = 0;
    dibs_status status = d->base >= above ? DIBS_OK : top_of(d, until, &top, err);

    if (status != DIBS_OK || d->base + top > above || d->base >= above)
        return status;
    return dibs__fail(err, DIBS_MISMATCH,
                      "%s: fence_above=%" PRIu64 ", but the next fence here would be about %" PRIu64
                      ": use a new prefix, folder or database",
                      d->class->scheme, above, d->base + top);
}

dibs_status dibs__base_open(dibs *d, int64_t above, dibs__deadline until, dibs_error *err)
{
    dibs_status status = DIBS_OK;

    if (!d->class->can.own_numbers && above == 0)
        return DIBS_OK;
    if (d->class->cell) {
        do
            status = ask_base(d, NULL, until, err);
        while (once_more(d, status, until));
        if (status == DIBS_NOT_FOUND) {
            status = decide(d, (uint64_t)above, until, err);
            /* A client that may not write there takes no locks, it only looks. One that may not even read must
             * not go on: others may have decided on a base, and its fences would be lower than theirs. */
            if (status == DIBS_DENIED && above == 0)
                return DIBS_OK;
        }
    }
    if (status == DIBS_UNKNOWN)
        status = DIBS_UNAVAILABLE;
    return status == DIBS_OK && above ? check_above(d, (uint64_t)above, until, err) : status;
}

/* ---- The highest so far ---------------------------------------------------------------------- */

/* Where the clock was set back, a lock's last fence is ahead of it. */
static dibs_status highest_listed(dibs *d, uint64_t *top, dibs_error *err)
{
    dibs_lock_report *r = NULL;
    dibs_status status =
        dibs__do_lock_list(d, NULL, &(dibs_lock_list_options){.idle = true}, &r, err);

    for (size_t i = 0; status == DIBS_OK && i < dibs_lock_report_count(r); i++)
        if (dibs_lock_report_at(r, i)->fence > *top)
            *top = dibs_lock_report_at(r, i)->fence;
    dibs_lock_report_free(r);
    return status;
}

dibs_status dibs__do_fence_top(dibs *d, uint64_t *out, dibs_error *err)
{
    dibs_status status = dibs__usable(d, err);

    *out = 0;
    if (status != DIBS_OK)
        return status;
    dibs__begin_call(d);
    pthread_mutex_unlock(&d->mutex);
    status = top_of(d, dibs__after(d->env, d->request_span), out, err);
    *out += d->base;
    if (status == DIBS_OK && !d->class->can.own_numbers)
        status = highest_listed(d, out, err);
    pthread_mutex_lock(&d->mutex);
    dibs__end_call(d);
    return status;
}
