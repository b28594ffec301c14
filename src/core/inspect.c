/* Looking at locks, and breaking them. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/handle.h"
#include "core/report.h"

#include <string.h>
#include <time.h>

#define FIRST_PAUSE (2 * DIBS__MS)
#define MAX_PAUSE   (100 * DIBS__MS)

typedef dibs_status (*query_fn)(dibs *d, const void *what, dibs__deadline until,
                                dibs__report_builder *b, dibs_error *err);

static dibs_status query(dibs *d, query_fn fn, const void *what, dibs__deadline patience,
                         dibs_lock_report **out, dibs_error *err)
{
    dibs__report_builder *b = dibs__report_new();
    dibs_status status;

    if (!b)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    dibs__stay(d);
    status = fn(d, what, dibs__request_until(d, patience), b, err);
    if (status == DIBS_OK)
        status = dibs__report_finish(b, d->base, out, err);
    else
        dibs__report_drop(b);
    dibs__go(d); /* from here on the handle may be gone */
    return status;
}

static dibs_status inspect_one(dibs *d, const void *what, dibs__deadline until,
                               dibs__report_builder *b, dibs_error *err)
{
    dibs_status status = d->class->inspect(d->engine, what, until, b, err);

    if (status == DIBS_OK && dibs__report_is_empty(b))
        status = dibs__fail(err, DIBS_NOT_FOUND, "no such lock: '%.200s'", (const char *)what);
    return status;
}

dibs_status dibs__do_lock_inspect(dibs *d, const char *name, dibs_lock_report **out,
                                  dibs_error *err)
{
    dibs_status status = dibs__check_lock(d, name, err);

    *out = NULL;
    if (status == DIBS_OK)
        status = dibs__usable(d, err);
    return status == DIBS_OK ? query(d, inspect_one, name, DIBS__NEVER, out, err) : status;
}

typedef struct selection {
    const char *prefix;
    dibs_lock_list_options options;
} selection;

static dibs_status list_locks(dibs *d, const void *what, dibs__deadline until,
                              dibs__report_builder *b, dibs_error *err)
{
    const selection *s = what;

    return d->class->list(d->engine, s->prefix, s->options.idle, until, b, err);
}

dibs_status dibs__do_lock_list(dibs *d, const char *prefix, const dibs_lock_list_options *options,
                               dibs_lock_report **out, dibs_error *err)
{
    selection s = {.prefix = prefix ? prefix : ""};
    dibs_status status;

    *out = NULL;
    if (options)
        s.options = *options;
    status = dibs__same_process(d) ? DIBS__CHECK_RESERVED(&s.options, err) : dibs__forked(err);
    if (status == DIBS_OK)
        status = dibs__usable(d, err);
    if (status != DIBS_OK)
        return status;
    if (strnlen(s.prefix, DIBS_NAME_MAX + 1) > DIBS_NAME_MAX)
        return dibs__fail(err, DIBS_INVALID, "the prefix is too long (at most %d bytes)",
                          DIBS_NAME_MAX);
    status = query(d, list_locks, &s, DIBS__NEVER, out, err);
    if (status == DIBS_OK)
        dibs__report_cut(*out, s.options.after, s.options.limit);
    return status;
}

/* ---- Breaking -------------------------------------------------------------------------------- */

/* NULL: all of them are gone. */
static const dibs_party *asked_holder_left(const dibs_lock_report *r)
{
    const dibs_lock_info *info = dibs_lock_report_at(r, 0);

    for (size_t i = 0; info && i < info->holder_count; i++)
        if (info->holders[i]->breaking)
            return info->holders[i];
    return NULL;
}

static dibs_status still_held(const char *name, const dibs_party *p, dibs_error *err)
{
    dibs__fail(err, DIBS_BUSY,
               "'%.200s': the holder was notified and has not released the lock yet: %s (host %s, "
               "pid %lld)",
               name, p->owner, p->host, (long long)p->pid);
    dibs__error_holder(err, p->owner, p->host, p->pid, p->fence, p->left_ms);
    return DIBS_BUSY;
}

dibs_status dibs__break_check(dibs *d, const char *name, dibs__deadline until, dibs_error *err)
{
    dibs_lock_report *r;
    dibs_status status = query(d, inspect_one, name, until, &r, err);
    const dibs_party *left;

    if (status != DIBS_OK)
        return status == DIBS_NOT_FOUND ? DIBS_OK : status;
    left = asked_holder_left(r);
    if (left)
        status = still_held(name, left, err);
    dibs_lock_report_free(r);
    return status;
}

/* In a call. No engine tells when a stranger lets go: look, at growing intervals. `patience` bounds one
 * look, `until` the wait. */
static dibs_status wait_for_holders(dibs *d, const dibs__breaker *b, dibs__deadline patience,
                                    dibs__deadline until, dibs_error *err)
{
    int64_t pause = FIRST_PAUSE;

    for (;;) {
        dibs_status status = dibs__break_check(d, b->name, patience, err);
        if (status != DIBS_BUSY || dibs__now(d->env) + pause >= until)
            return status;
        dibs__sleep(d->env, pause);
        if (d->closing)
            return dibs__closing(err);
        if (b->cancelled)
            return dibs__fail(err, DIBS_CANCELLED,
                              "'%.200s': the wait was cancelled; the lock is still being broken",
                              b->name);
        pause = dibs__longer(pause, FIRST_PAUSE, MAX_PAUSE);
    }
}

/* In a call, without the mutex. */
static dibs_status break_lock(dibs *d, const dibs__breaker *b, const dibs_lock_break_options *o,
                              dibs_error *err)
{
    dibs__reply reply = {0};
    int64_t wait_ms = dibs__wait_ms(d, o->wait_ms);
    dibs__deadline until = dibs__wait_until(d, wait_ms);
    dibs__deadline patience = wait_ms == DIBS_NO_WAIT ? DIBS__NEVER : until;
    dibs_status status = d->class->break_lock(d->engine, b->name, o->by ? o->by : "?", o->now,
                                              dibs__request_until(d, patience), &reply, err);

    if (status != DIBS_OK)
        return status;
    if (reply.verdict == DIBS__LOST)
        return dibs__fail(err, DIBS_NOT_FOUND, "no such lock: '%.200s'", b->name);
    dibs__break_notice_send(d, dibs__request_until(d, patience));
    return reply.verdict == DIBS__BUSY ? wait_for_holders(d, b, patience, until, err) : DIBS_OK;
}

void dibs__breakers_cancel(dibs *d, const char *name)
{
    for (dibs__breaker *b = d->breakers; b; b = b->next)
        if (!name || strcmp(b->name, name) == 0)
            b->cancelled = true;
}

/* With the mutex. */
static void leave(dibs *d, const dibs__breaker *b)
{
    dibs__breaker **at = &d->breakers;

    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
}

dibs_status dibs__do_lock_break(dibs *d, const char *name, const dibs_lock_break_options *options,
                                dibs_error *err)
{
    static const dibs_lock_break_options defaults;
    const dibs_lock_break_options *o = options ? options : &defaults;
    dibs__breaker b = {.name = name};
    dibs_status status = dibs__check_lock(d, name, err);

    if (status == DIBS_OK)
        status = DIBS__CHECK_RESERVED(o, err);
    if (status == DIBS_OK)
        status = dibs__check_wait(o->wait_ms, err);
    if (status == DIBS_OK)
        status = dibs__usable(d, err);
    if (status != DIBS_OK)
        return status;
    dibs__begin_call(d);
    b.next = d->breakers;
    d->breakers = &b;
    pthread_mutex_unlock(&d->mutex);
    status = break_lock(d, &b, o, err);
    pthread_mutex_lock(&d->mutex);
    leave(d, &b);
    dibs__end_call(d);
    return status;
}
