/* Waiting for another to change a cell.
 *
 * It goes well: the waiter is on the handle's list, leaves a mark in the table `wake` and sees, in
 * the same transaction, that the cell has not changed yet. Whoever changes it turns the mark
 * around and kills the query of the handle's sleeping connection, as for a lock; the keeper reads
 * the row there and finds the waiter on the list. So there is one connection for all who wait, and
 * one mark for all of a handle who wait for the same.
 *
 * A wake-up gets lost (the one who changed the cell died before it was told; the accounts differ;
 * there is no connection to sleep on): the wait ends at `until`, and the caller looks.
 *
 * Marks that nobody turned around go when the handle is closed, or after an hour (CELL_REAP). */
#define _GNU_SOURCE
#include "core/thread.h"
#include "engines/mysql/mysql.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct dibs__my_awaiting {
    char text[DIBS__WAKE_SIZE]; /* what it is told */
    bool told;
    pthread_cond_t cond;
    struct dibs__my_awaiting *next;
};

typedef struct dibs__my_awaiting awaiting;

/* So little is not worth a mark, and an exchange that comes too late costs its connection. */
#define SHORT (50 * DIBS__MS)

void dibs__my_cell_key(const char *name, uint64_t version, char out[DIBS__WAKE_SIZE])
{
    char hash[DIBS__SQL_TELL_SIZE];

    dibs__sql_cell_text(name, hash);
    snprintf(out, DIBS__WAKE_SIZE, DIBS__MY_CELL "%s:%" PRIu64, hash, version);
}

/* ---- The list -------------------------------------------------------------------------------- */

static void come(dibs__my *e, awaiting *a)
{
    dibs__cond_init(&a->cond);
    pthread_mutex_lock(&e->await_mutex);
    a->next = e->awaiting;
    e->awaiting = a;
    pthread_mutex_unlock(&e->await_mutex);
}

static void go(dibs__my *e, awaiting *a)
{
    awaiting **at = &e->awaiting;

    pthread_mutex_lock(&e->await_mutex);
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    pthread_mutex_unlock(&e->await_mutex);
    pthread_cond_destroy(&a->cond);
}

bool dibs__my_await_any(dibs__my *e)
{
    bool any;

    pthread_mutex_lock(&e->await_mutex);
    any = e->awaiting != NULL;
    pthread_mutex_unlock(&e->await_mutex);
    return any;
}

void dibs__my_await_tell(dibs__my *e, const char *text)
{
    pthread_mutex_lock(&e->await_mutex);
    for (awaiting *a = e->awaiting; a; a = a->next) {
        if (!text || strcmp(a->text, text) == 0) {
            a->told = true;
            pthread_cond_signal(&a->cond);
        }
    }
    pthread_mutex_unlock(&e->await_mutex);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

/* Until told, or `until`. */
static void sit(dibs__my *e, awaiting *a, dibs__deadline until)
{
    const dibs__env *env = e->base.base.env;

    pthread_mutex_lock(&e->await_mutex);
    while (!a->told && dibs__now(env) < until)
        dibs__cond_sleep(&a->cond, &e->await_mutex, env, until);
    pthread_mutex_unlock(&e->await_mutex);
}

dibs_status dibs__my_cell_wait(dibs__engine *base, const char *key, uint64_t version,
                               dibs__deadline until, dibs_error *err)
{
    dibs__my *e = (dibs__my *)base;
    awaiting a = {.told = false};
    bool same = true;
    dibs_status status = DIBS_OK;

    dibs__my_cell_key(key, version, a.text);
    come(e, &a);
    if (until - dibs__now(base->env) > SHORT) {
        atomic_store(&e->awaited, true);
        dibs__my_wake_listen(&e->base, until);
        status = dibs__sql_cell_mark(&e->base, key, version, until, &same, err);
    }
    if (status == DIBS_OK && same)
        sit(e, &a, until);
    go(e, &a);
    return status;
}
