/* Looking at locks, and breaking them. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/handle.h"
#include "core/report.h"

#include <string.h>
#include <time.h>

#define FIRST_PAUSE (2 * DIBS__MS)
#define MAX_PAUSE   (100 * DIBS__MS)

typedef dibs_status (*look_fn)(dibs *d, const void *what, dibs__deadline until,
                               dibs__report_builder *b, dibs_error *err);

static dibs_status look(dibs *d, look_fn fn, const void *what, dibs__deadline patience,
                        dibs_report **out, dibs_error *err)
{
    dibs__report_builder *b = dibs__report_new();
    dibs_status status;

    *out = NULL;
    if (!b)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    dibs__begin_call(d);
    pthread_mutex_unlock(&d->mutex);
    status = fn(d, what, dibs__request_until(d, patience), b, err);
    pthread_mutex_lock(&d->mutex);
    dibs__end_call(d);
    if (status == DIBS_OK)
        return dibs__report_finish(b, d->base, out, err);
    dibs__report_drop(b);
    return status;
}

static dibs_status look_at_one(dibs *d, const void *what, dibs__deadline until,
                               dibs__report_builder *b, dibs_error *err)
{
    dibs_status status = d->class->inspect(d->engine, what, until, b, err);

    if (status == DIBS_OK && dibs__report_is_empty(b))
        status = dibs__fail(err, DIBS_NOT_FOUND, "no such lock: '%.200s'", (const char *)what);
    return status;
}

dibs_status dibs__do_inspect(dibs *d, const char *name, dibs_report **out, dibs_error *err)
{
    dibs_status status = dibs__same_process(d) ? dibs__check_name(name, err) : dibs__forked(err);

    return status == DIBS_OK ? look(d, look_at_one, name, DIBS__NEVER, out, err) : status;
}

typedef struct selection {
    const char *prefix;
    bool idle;
} selection;

static dibs_status look_at_many(dibs *d, const void *what, dibs__deadline until,
                                dibs__report_builder *b, dibs_error *err)
{
    const selection *s = what;

    return d->class->list(d->engine, s->prefix, s->idle, until, b, err);
}

dibs_status dibs__do_list(dibs *d, const char *prefix, bool idle, dibs_report **out,
                          dibs_error *err)
{
    selection s = {prefix ? prefix : "", idle};

    if (!dibs__same_process(d))
        return dibs__forked(err);
    if (strnlen(s.prefix, DIBS_NAME_MAX + 1) > DIBS_NAME_MAX)
        return dibs__fail(err, DIBS_INVALID, "the prefix is too long (at most %d bytes)",
                          DIBS_NAME_MAX);
    return look(d, look_at_many, &s, DIBS__NEVER, out, err);
}

/* ---- Breaking -------------------------------------------------------------------------------- */

static bool asked_holders_left(const dibs_report *r)
{
    const dibs_lock_info *info = dibs_report_at(r, 0);

    for (size_t i = 0; info && i < info->holder_count; i++)
        if (info->holders[i].breaking)
            return true;
    return false;
}

static bool is_closing(dibs *d)
{
    bool closing;

    pthread_mutex_lock(&d->mutex);
    closing = d->closing;
    pthread_mutex_unlock(&d->mutex);
    return closing;
}

/* In a call. No engine tells when a stranger lets go: look, at growing intervals. */
static dibs_status wait_for_holders(dibs *d, const char *name, dibs__deadline until,
                                    dibs_error *err)
{
    int64_t pause = FIRST_PAUSE;

    for (;;) {
        dibs_report *r;
        dibs_status status = look(d, look_at_one, name, until, &r, err);
        bool left;
        if (status != DIBS_OK)
            return status == DIBS_NOT_FOUND ? DIBS_OK : status;
        left = asked_holders_left(r);
        dibs_report_free(r);
        if (!left)
            return DIBS_OK;
        if (dibs__now(d->env) + pause >= until)
            return dibs__fail(err, DIBS_BUSY,
                              "'%.200s': the holder was notified and has not released the lock yet",
                              name);
        dibs__sleep(d->env, pause);
        if (is_closing(d))
            return dibs__fail(err, DIBS_CANCELLED, "the handle is being closed");
        pause = pause * 2 < MAX_PAUSE ? pause * 2 : MAX_PAUSE;
    }
}

dibs_status dibs__do_break(dibs *d, const char *name, const char *by, bool now, int64_t wait_ms,
                           dibs_error *err)
{
    dibs__reply reply = {0};
    dibs__deadline until;
    dibs_status status = dibs__same_process(d) ? dibs__check_name(name, err) : dibs__forked(err);

    if (status == DIBS_OK)
        status = dibs__check_ms("wait_ms", wait_ms, 1, DIBS__MAX_MS, NULL, err);
    if (status != DIBS_OK)
        return status;
    until = wait_ms ? dibs__after(d->env, wait_ms * DIBS__MS) : DIBS__NEVER;
    dibs__begin_call(d);
    pthread_mutex_unlock(&d->mutex);
    status = d->class->break_lock(d->engine, name, by ? by : "?", now,
                                  dibs__request_until(d, until), &reply, err);
    if (status == DIBS_OK && reply.verdict != DIBS__LOST)
        dibs__bell_ring(d, dibs__request_until(d, until));
    if (status == DIBS_OK && reply.verdict == DIBS__LOST)
        status = dibs__fail(err, DIBS_NOT_FOUND, "no such lock: '%.200s'", name);
    else if (status == DIBS_OK && reply.verdict == DIBS__BUSY)
        status = wait_for_holders(d, name, until, err);
    pthread_mutex_lock(&d->mutex);
    dibs__end_call(d);
    return status;
}
