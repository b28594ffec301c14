/* Strays: connections that were given up while a request on them may be unanswered.
 *
 * TCP may deliver such a request at any later time: after its caller asked again, withdrew, or did something
 * newer. So a handle ends its strays in the server before it sends anything newer, on whichever connection:
 * what they still carry then reaches nobody.
 *
 * Every session holds a lock in the server that is named by a random key of its own. By it the session is
 * found, whatever process or thread number it has, and nobody else's is ended in its place: numbers are used
 * again, and begin anew when a server is restarted. When the lock is free the session has expired, and what it
 * had begun is rolled back or committed.
 *
 * A stray stays on the list until the server has confirmed that. Where the server refuses it for good (the
 * account may not), that is logged once and the handle goes on. */
#include "families/rows/inner.h"

#include "core/error.h"

#include <stdlib.h>

uint64_t dibs__sql_stray_key(const dibs__env *env)
{
    uint64_t key = 0;

    while (key == 0) {
        env->random(env->ctx, &key, sizeof key);
        key &= INT64_MAX;
    }
    return key;
}

bool dibs__sql_stray_reserve(dibs__conn_slot *conn_slot)
{
    if (!conn_slot->stray)
        conn_slot->stray = calloc(1, sizeof *conn_slot->stray);
    return conn_slot->stray != NULL;
}

void dibs__sql_stray_add(dibs__sql *e, dibs__conn_slot *conn_slot)
{
    if (conn_slot->conn->key == 0)
        return;
    conn_slot->stray->key = conn_slot->conn->key;
    pthread_mutex_lock(&e->stray_mutex);
    conn_slot->stray->next = e->strays;
    e->strays = conn_slot->stray;
    atomic_fetch_add(&e->stray_count, 1);
    pthread_mutex_unlock(&e->stray_mutex);
    conn_slot->stray = NULL;
}

void dibs__sql_stray_fini(dibs__sql *e)
{
    while (e->strays) {
        dibs__sql_stray *next = e->strays->next;
        free(e->strays);
        e->strays = next;
    }
    for (size_t i = 0; i < DIBS__SQL_CONNECTIONS; i++) {
        free(e->conn_slot[i].stray);
        e->conn_slot[i].stray = NULL;
    }
}

/* ---- Ending them ----------------------------------------------------------------------------- */

static size_t list_some(dibs__sql *e, uint64_t keys[], size_t most)
{
    size_t count = 0;

    pthread_mutex_lock(&e->stray_mutex);
    for (const dibs__sql_stray *s = e->strays; s && count < most; s = s->next)
        keys[count++] = s->key;
    pthread_mutex_unlock(&e->stray_mutex);
    return count;
}

static bool is_among(uint64_t key, const uint64_t keys[], size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (keys[i] == key)
            return true;
    return false;
}

/* Another connection slot may have done the same meanwhile. */
static void forget(dibs__sql *e, const uint64_t keys[], size_t count)
{
    pthread_mutex_lock(&e->stray_mutex);
    for (dibs__sql_stray **at = &e->strays; *at;) {
        dibs__sql_stray *s = *at;
        if (!is_among(s->key, keys, count)) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        free(s);
        atomic_fetch_sub(&e->stray_count, 1);
    }
    pthread_mutex_unlock(&e->stray_mutex);
}

static void report_denied(dibs__sql *e, const char *why)
{
    if (!atomic_exchange(&e->stray_ended, true))
        e->base.sink->log(e->base.sink, DIBS_LOG_WARNING,
                          "%s: this account cannot end its own sessions: a request of a lost "
                          "connection may be executed late (%s)",
                          e->driver->name, why);
}

dibs_status dibs__sql_strays_end(dibs__sql *e, dibs__conn_slot *conn_slot, dibs__deadline until,
                                 dibs_error *err)
{
    uint64_t keys[DIBS__SQL_STRAYS];

    while (atomic_load(&e->stray_count) > 0) {
        dibs_error why = {0};
        size_t count = list_some(e, keys, DIBS__SQL_STRAYS);
        dibs_status status =
            count == 0 ? DIBS_OK : e->driver->end_strays(conn_slot->conn, keys, count, until, &why);
        if (status == DIBS_DENIED)
            report_denied(e, why.message);
        if (status != DIBS_OK && status != DIBS_DENIED)
            return dibs__fail(err, DIBS_UNAVAILABLE,
                              "%s: an abandoned session could not be closed: %.300s",
                              e->driver->name, why.message);
        forget(e, keys, count);
    }
    return DIBS_OK;
}
