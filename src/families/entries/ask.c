/* Calls to the adapter: made with the strings that they point to, started, and waited for or left to
 * a callback.
 *
 * A thread that waits for an answer may give up before it comes; the adapter has the call until it is done
 * (core/answer.h). */
#define _GNU_SOURCE
#include "core/answer.h"
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
    dibs__entries_call call; /* first */
    dibs__entries *entries;
    dibs__answer answer;
    text *texts;
    dibs__entries_lock *lock; /* names */
    size_t locks, room;
} ask;

dibs__entries *dibs__ask_entries(const dibs__entries_call *call)
{
    return ((const ask *)call)->entries;
}

const char *dibs__ask_copy(dibs__entries_call *call, const char *from)
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
        dibs__entries_listing_fini(&a->lock[i].listing);
    free(a->lock);
    dibs__entries_listing_fini(&a->call.listing);
    free(a->call.check.entry);
    free((void *)(uintptr_t)a->call.write.keys);
    free(a);
}

void dibs__ask_drop(dibs__entries_call *call)
{
    destroy((ask *)call);
}

dibs__entries_listing *dibs__entries_add_lock(dibs__entries_call *call, const char *name)
{
    ask *a = (ask *)call;
    size_t room = a->room ? a->room * 2 : 16;
    const char *copy = dibs__ask_copy(call, name);

    if (copy && a->locks == a->room) {
        dibs__entries_lock *larger = realloc(a->lock, room * sizeof *larger);
        if (!larger)
            return NULL;
        a->lock = larger;
        a->room = room;
    }
    if (!copy)
        return NULL;
    a->lock[a->locks] = (dibs__entries_lock){.name = copy};
    return &a->lock[a->locks++].listing;
}

size_t dibs__ask_locks(dibs__entries_call *call, dibs__entries_lock **out)
{
    *out = ((ask *)call)->lock;
    return ((ask *)call)->locks;
}

dibs__entries_call *dibs__ask_new(dibs__entries *entries, const char *name, const char *key)
{
    ask *a = calloc(1, sizeof *a);

    if (!a)
        return NULL;
    a->entries = entries;
    a->call.place = UINT64_MAX;
    a->call.until = DIBS__NEVER;
    if ((name && !(a->call.name = dibs__ask_copy(&a->call, name))) ||
        (key && !(a->call.key = dibs__ask_copy(&a->call, key)))) {
        dibs__ask_drop(&a->call);
        return NULL;
    }
    return &a->call;
}

void dibs__ask_free(dibs__entries_call *call)
{
    ask *a = (ask *)call;

    if (dibs__answer_leave(&a->answer))
        destroy(a);
}

void dibs__entries_done(dibs__entries_call *call)
{
    ask *a = (ask *)call;

    if (call->then) {
        call->then(call);
        destroy(a);
    } else if (dibs__answer_give(&a->answer)) {
        destroy(a);
    }
}

void dibs__entries_sleep(dibs__entries *entries, pthread_cond_t *cond, dibs__deadline until)
{
    dibs__cond_sleep(cond, &entries->mutex, entries->base.env, until);
}

dibs_status dibs__ask_begin(dibs__entries *entries, dibs__entries_slot slot,
                            dibs__entries_call *call, dibs__deadline until, dibs_error *err)
{
    ask *a = (ask *)call;
    dibs_status status;

    call->until = until;
    dibs__answer_expect(&a->answer);
    status = slot(entries->backend, call);
    if (status == DIBS_OK)
        return DIBS_OK;
    dibs__answer_expect_none(&a->answer);
    if (err)
        *err = call->err;
    return status;
}

dibs_status dibs__ask_end(dibs__entries *entries, dibs__entries_call *call, dibs_error *err)
{
    ask *a = (ask *)call;

    if (!dibs__answer_wait(&a->answer, entries->base.env, call->until))
        return dibs__fail(err, DIBS_UNKNOWN, "%s: no answer in time",
                          entries->backend->adapter->name);
    if (call->status != DIBS_OK && err)
        *err = call->err;
    return call->status;
}

dibs_status dibs__ask_wait(dibs__entries *entries, dibs__entries_slot slot,
                           dibs__entries_call *call, dibs__deadline until, dibs_error *err)
{
    dibs_status status = dibs__ask_begin(entries, slot, call, until, err);

    return status == DIBS_OK ? dibs__ask_end(entries, call, err) : status;
}

bool dibs__ask_start(dibs__entries *entries, dibs__entries_slot slot, dibs__entries_call *call,
                     void (*then)(dibs__entries_call *call))
{
    call->then = then;
    if (slot(entries->backend, call) == DIBS_OK)
        return true; /* it is the adapter's now */
    destroy((ask *)call);
    return false;
}
