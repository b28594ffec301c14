/* Opening in the background: dibs_open returns at once, and a thread opens the engine, again and again at growing
 * intervals until it is there. It ends when the engine is open, when it refuses us for a reason that does not pass
 * (a wrong password, an unknown parameter), or when the handle is closed.
 *
 * Whoever needs the engine passes dibs__usable first, which waits for it for a bounded time. `ready` is set last, so
 * that a handle that was opened in the ordinary way costs its callers one load. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/handle.h"
#include "core/thread.h"
#include "core/url.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_PAUSE (50 * DIBS__MS)
#define MAX_PAUSE   DIBS__SECOND

static bool will_pass(dibs_status status)
{
    return status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN || status == DIBS_NO_MEMORY;
}

/* With the mutex. False: it is not tried again. */
static bool pause_and_go_on(dibs *d, int64_t *pause)
{
    dibs__deadline until = dibs__after(d->env, *pause);

    while (!d->closing && dibs__now(d->env) < until)
        dibs__cond_sleep(&d->opening.changed, &d->mutex, d->env, until);
    *pause = dibs__longer(*pause, FIRST_PAUSE, MAX_PAUSE);
    return !d->closing;
}

static void *open_main(void *data)
{
    dibs *d = data;
    int64_t pause = FIRST_PAUSE;
    bool again;

    do {
        dibs_error err;
        dibs__error_clear(&err);
        dibs_status status = dibs__engine_open(d, d->opening.url, &d->opening.options, &err);
        pthread_mutex_lock(&d->mutex);
        d->opening.status = status;
        d->opening.err = err;
        again = will_pass(status) && pause_and_go_on(d, &pause);
        d->opening.over = !again;
        pthread_cond_broadcast(&d->opening.changed);
        pthread_mutex_unlock(&d->mutex);
    } while (again);
    dibs__keeper_wake(d); /* it polls the engine's descriptor from now on */
    return NULL;
}

dibs_status dibs__open_later(dibs *d, const char *url, const dibs_options *o, dibs_error *err)
{
    dibs_status status = url ? DIBS_OK : dibs__url_default(&d->opening.url, err);

    d->opening.options = *o;
    if (url && !(d->opening.url = strdup(url)))
        status = dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    if (status == DIBS_OK) {
        d->opening.status = dibs__fail(&d->opening.err, DIBS_UNAVAILABLE, "not open yet");
        d->opening.runs = dibs__thread_start(&d->opening.thread, open_main, d);
        if (!d->opening.runs)
            status = dibs__fail(err, DIBS_NO_MEMORY, "no thread could be started");
    }
    return status;
}

void dibs__open_join(dibs *d)
{
    if (d->opening.runs)
        pthread_join(d->opening.thread, NULL);
    d->opening.runs = false;
}

dibs_status dibs__usable_until(dibs *d, dibs__deadline until, dibs_error *err)
{
    dibs_status status = DIBS_OK;

    if (!dibs__same_process(d))
        return dibs__forked(err);
    if (d->closing)
        return dibs__closing(err);
    if (dibs__is_open(d))
        return DIBS_OK;
    dibs__begin_call(d);
    while (!dibs__is_open(d) && !d->opening.over && !d->closing && dibs__now(d->env) < until)
        dibs__cond_sleep(&d->opening.changed, &d->mutex, d->env, until);
    if (d->closing && !dibs__is_open(d)) {
        status = dibs__closing(err);
    } else if (!dibs__is_open(d)) {
        status = d->opening.status;
        if (err)
            *err = d->opening.err;
    }
    dibs__end_call(d);
    return status;
}

dibs_status dibs__usable(dibs *d, dibs_error *err)
{
    if (dibs__is_open(d) && dibs__same_process(d) && !d->closing)
        return DIBS_OK;
    return dibs__usable_until(d, dibs__after(d->env, d->request_span), err);
}
