/* See calls.h. */
#include "support/calls.h"

#include "support/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

dibs *expect_open(const char *url, const dibs_options *options)
{
    dibs_error err = {0};
    dibs *d = NULL;

    if (dibs_open(url, options, &d, &err) != DIBS_OK)
        fail_msg("%s: %s", url, err.message);
    return d;
}

void expect_refused(const char *url, const dibs_options *options, dibs_status want,
                    const char *text)
{
    expect_refused_with(url, options, want, (const char *const[]){text, NULL});
}

void expect_refused_with(const char *url, const dibs_options *options, dibs_status want,
                         const char *const words[])
{
    dibs_error err = {0};
    dibs *d = NULL;
    dibs_status got = dibs_open(url, options, &d, &err);

    if (got != want)
        fail_msg("%s: %s, not %s: %s", url, dibs_status_name(got), dibs_status_name(want),
                 err.message);
    assert_null(d);
    for (size_t i = 0; words[i]; i++)
        if (!strstr(err.message, words[i]))
            fail_msg("%s: \"%s\" does not say \"%s\"", url, err.message, words[i]);
}

dibs_grant *expect_lock(dibs *d, const char *name, const dibs_lock_options *options)
{
    dibs_error err = {0};
    dibs_grant *g = NULL;

    if (dibs_lock(d, name, options, &g, &err) != DIBS_OK)
        fail_msg("lock %s: %s", name, err.message);
    assert_non_null(g);
    return g;
}

/* ---- Requests -------------------------------------------------------------------------------- */

typedef struct started {
    lock_fn done;
    void *data;
    struct started *next, **at;
} started;

static started *all; /* so that what is closed without an outcome is no leak */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void forget(started *s)
{
    pthread_mutex_lock(&mutex);
    *s->at = s->next;
    if (s->next)
        s->next->at = s->at;
    pthread_mutex_unlock(&mutex);
    free(s);
}

static started *note(lock_fn done, void *data)
{
    started *s = malloc(sizeof *s);

    if (!s)
        return NULL;
    pthread_mutex_lock(&mutex);
    *s = (started){done, data, all, &all};
    if (all)
        all->at = &s->next;
    all = s;
    pthread_mutex_unlock(&mutex);
    return s;
}

dibs_status start_lock(dibs *d, const char *name, const dibs_lock_options *options, lock_fn done,
                       void *data, uint64_t *id, dibs_error *err)
{
    started *s = note(done, data);
    dibs_status status =
        s ? dibs_start(d,
                       &(dibs_request){
                           .op = DIBS_OP_LOCK, .name = name, .options.lock = options, .user = s},
                       id, err)
          : DIBS_NO_MEMORY;

    if (s && status != DIBS_OK)
        forget(s);
    return status;
}

int take_all(dibs *d)
{
    dibs_outcome o;
    int n = 0;

    while (n < 100 && dibs_take(d, &o)) { /* `done` may start the next, and so on for ever */
        n++;
        if (o.op != DIBS_OP_LOCK)
            continue;
        started *s = o.user;
        if (s->done)
            s->done(s->data, o.err.status, o.grant, &o.err);
        forget(s);
    }
    return n;
}

/* ---- Looking --------------------------------------------------------------------------------- */

void count_queue(dibs *d, const char *name, size_t *holders, size_t *waiters)
{
    dibs_lock_report *r = NULL;

    *holders = *waiters = 0;
    if (dibs_lock_inspect(d, name, &r, NULL) == DIBS_OK) {
        *holders = dibs_lock_report_at(r, 0)->holder_count;
        *waiters = dibs_lock_report_at(r, 0)->waiter_count;
    }
    dibs_lock_report_free(r);
}

size_t holders_of(dibs *d, const char *name)
{
    size_t holders, waiters;

    count_queue(d, name, &holders, &waiters);
    return holders;
}

size_t waiters_of(dibs *d, const char *name)
{
    size_t holders, waiters;

    count_queue(d, name, &holders, &waiters);
    return waiters;
}
