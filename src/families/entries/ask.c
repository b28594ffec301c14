/* Calls to the adapter: made with the strings that they point to, started, and waited for or left to
 * a callback.
 *
 * Who waits for an answer may give up before it comes; the adapter has the call until it is done.
 * Whoever of the two is last frees it. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/thread.h"
#include "families/entries/inner.h"

#include <stdlib.h>
#include <string.h>

typedef struct text {
    struct text *next;
    char byte[];
} text;

typedef struct ask {
    dibs__line_call call; /* first */
    dibs__line *line;
    atomic_int refs;
    bool done;
    pthread_cond_t cond;
    text *texts;
    dibs__line_lock *lock; /* names */
    size_t locks, room;
} ask;

dibs__line *dibs__ask_line(const dibs__line_call *call)
{
    return ((const ask *)call)->line;
}

const char *dibs__ask_copy(dibs__line_call *call, const char *from)
{
    ask *a = (ask *)call;
    size_t n = strlen(from) + 1;
    text *t = malloc(sizeof *t + n);

    if (!t)
        return NULL;
    memcpy(t->byte, from, n);
    t->next = a->texts;
    a->texts = t;
    return t->byte;
}

static void destroy(ask *a)
{
    for (text *t = a->texts, *next; t; t = next) {
        next = t->next;
        free(t);
    }
    for (size_t i = 0; i < a->locks; i++)
        dibs__line_listing_fini(&a->lock[i].listing);
    free(a->lock);
    dibs__line_listing_fini(&a->call.listing);
    free(a->call.check);
    free((void *)(uintptr_t)a->call.keys);
    pthread_cond_destroy(&a->cond);
    free(a);
}

void dibs__ask_drop(dibs__line_call *call)
{
    destroy((ask *)call);
}

dibs__line_listing *dibs__line_add_lock(dibs__line_call *call, const char *name)
{
    ask *a = (ask *)call;
    size_t room = a->room ? a->room * 2 : 16;
    const char *copy = dibs__ask_copy(call, name);

    if (copy && a->locks == a->room) {
        dibs__line_lock *larger = realloc(a->lock, room * sizeof *larger);
        if (!larger)
            return NULL;
        a->lock = larger;
        a->room = room;
    }
    if (!copy)
        return NULL;
    a->lock[a->locks] = (dibs__line_lock){.name = copy};
    return &a->lock[a->locks++].listing;
}

size_t dibs__ask_locks(dibs__line_call *call, dibs__line_lock **out)
{
    *out = ((ask *)call)->lock;
    return ((ask *)call)->locks;
}

dibs__line_call *dibs__ask_new(dibs__line *line, const char *name, const char *key)
{
    ask *a = calloc(1, sizeof *a);

    if (!a)
        return NULL;
    a->line = line;
    a->refs = 1;
    a->call.place = UINT64_MAX;
    a->call.until = DIBS__NEVER;
    dibs__cond_init(&a->cond);
    if ((name && !(a->call.name = dibs__ask_copy(&a->call, name))) ||
        (key && !(a->call.key = dibs__ask_copy(&a->call, key)))) {
        dibs__ask_drop(&a->call);
        return NULL;
    }
    return &a->call;
}

static void unref(ask *a)
{
    if (atomic_fetch_sub(&a->refs, 1) == 1)
        destroy(a);
}

void dibs__ask_free(dibs__line_call *call)
{
    unref((ask *)call);
}

void dibs__line_done(dibs__line_call *call)
{
    ask *a = (ask *)call;

    if (call->then) {
        call->then(call);
    } else {
        pthread_mutex_lock(&a->line->mutex);
        a->done = true;
        pthread_mutex_unlock(&a->line->mutex);
        pthread_cond_signal(&a->cond);
    }
    unref(a);
}

void dibs__line_sleep(dibs__line *line, pthread_cond_t *cond, dibs__deadline until)
{
    dibs__cond_sleep(cond, &line->mutex, line->base.env, until);
}

dibs_status dibs__ask_wait(dibs__line *line, dibs__line_slot slot, dibs__line_call *call,
                           dibs__deadline until, dibs_error *err)
{
    ask *a = (ask *)call;
    dibs_status status;
    bool done;

    call->until = until;
    atomic_fetch_add(&a->refs, 1);
    status = slot(line->side, call);
    if (status != DIBS_OK) {
        atomic_fetch_sub(&a->refs, 1);
        if (err)
            *err = call->err;
        return status;
    }
    pthread_mutex_lock(&line->mutex);
    while (!a->done && dibs__now(line->base.env) < until)
        dibs__line_sleep(line, &a->cond, until);
    done = a->done;
    pthread_mutex_unlock(&line->mutex);
    if (!done)
        return dibs__fail(err, DIBS_UNKNOWN, "%s: no answer in time", line->side->adapter->name);
    if (call->status != DIBS_OK && err)
        *err = call->err;
    return call->status;
}

bool dibs__ask_start(dibs__line *line, dibs__line_slot slot, dibs__line_call *call,
                     void (*then)(dibs__line_call *call))
{
    call->then = then;
    if (slot(line->side, call) == DIBS_OK)
        return true; /* its one reference is the adapter's now */
    destroy((ask *)call);
    return false;
}
