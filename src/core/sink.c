/* What engines report: each event finds its grant, or those who wait for its cell. See dibs__sink in engines/engine.h. */
#define _GNU_SOURCE
#include "core/handle.h"

#include <stdarg.h>

/* A handle that is being closed ignores events: its grants are being given back. */
static dibs_grant *find_open(dibs *d, const char *attempt)
{
    return d->closing ? NULL : dibs__grant_of_attempt(d, attempt);
}

static void on_granted(dibs__sink *sink, const char *attempt, uint64_t fence, uint64_t floor)
{
    dibs *d = DIBS__FROM(dibs, sink, sink);
    dibs_grant *g;

    pthread_mutex_lock(&d->mutex);
    g = find_open(d, attempt);
    if (g && g->ticket)
        dibs__ticket_handed(g->ticket, fence, floor);
    pthread_mutex_unlock(&d->mutex);
}

static void on_check(dibs__sink *sink, const char *attempt)
{
    dibs *d = DIBS__FROM(dibs, sink, sink);
    dibs_grant *g;

    pthread_mutex_lock(&d->mutex);
    g = find_open(d, attempt);
    if (g)
        dibs__grant_check(g);
    pthread_mutex_unlock(&d->mutex);
}

static void on_changed(dibs__sink *sink, uint64_t cell)
{
    dibs *d = DIBS__FROM(dibs, sink, sink);

    pthread_mutex_lock(&d->mutex);
    dibs__watches_end(d, cell);
    pthread_mutex_unlock(&d->mutex);
}

static void on_check_all(dibs__sink *sink, unsigned at)
{
    dibs *d = DIBS__FROM(dibs, sink, sink);

    pthread_mutex_lock(&d->mutex);
    if (!d->closing)
        dibs__check_all(d, at);
    pthread_mutex_unlock(&d->mutex);
}

static bool on_waited_for(dibs__sink *sink)
{
    dibs *d = DIBS__FROM(dibs, sink, sink);
    bool so;

    pthread_mutex_lock(&d->mutex);
    so = d->waits > 0;
    pthread_mutex_unlock(&d->mutex);
    return so;
}

static void on_log(dibs__sink *sink, dibs_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void on_log(dibs__sink *sink, dibs_log_level level, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    dibs__log_args(DIBS__FROM(dibs, sink, sink), level, format, args);
    va_end(args);
}

const dibs__sink dibs__core_sink = {on_granted,   on_check,      on_changed,
                                    on_check_all, on_waited_for, on_log};
