/* Several locks at once: in sorted order, so that two callers who want the same ones cannot each
 * hold what the other waits for; all or nothing, within one patience.
 *
 * Until the last one is obtained, the caller has none of them. The keeper renews those that are
 * there already, also with no_renew; if the whole fails they are cancelled, so that no min_hold keeps
 * others out; and if one is lost meanwhile, nobody is told: all are given back and asked for again.
 * When all are held at the same moment, they are delivered, and max_hold and no_renew begin to count. */
#include "core/error.h"
#include "core/handle.h"

#include <stdlib.h>
#include <string.h>

typedef struct want {
    const char *name;
    size_t index; /* in the caller's arrays */
} want;

typedef struct many {
    dibs *d;
    const want *wants; /* sorted */
    size_t count;
    dibs_lock_options options; /* as the caller wants to hold them */
    dibs_grant **out;          /* in the caller's order */
} many;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const want *)a)->name, ((const want *)b)->name);
}

static dibs_grant *grant_at(const many *m, size_t i)
{
    return m->out[m->wants[i].index];
}

/* ---- Taking ---------------------------------------------------------------------------------- */

/* With these they are kept until all are there. A grant never gets a longer lease than max_hold. */
static dibs_lock_options while_taking(const many *m)
{
    dibs_lock_options o = m->options;
    int64_t lease_ms = o.lease_ms ? o.lease_ms : m->d->lease / DIBS__MS;

    if (o.max_hold_ms > 0 && o.max_hold_ms < lease_ms)
        o.lease_ms = o.max_hold_ms;
    o.max_hold_ms = 0;
    o.no_renew = false;
    return o;
}

/* Within one grace for all of them: what is not told until then is the keeper's. */
static void give_back(const many *m, size_t taken)
{
    dibs__deadline until = dibs__after(m->d->env, DIBS__GRACE);

    while (taken-- > 0) {
        dibs__begin_call(m->d);
        dibs__lock_undo(grant_at(m, taken), until);
        dibs__end_call(m->d);
        m->out[m->wants[taken].index] = NULL;
    }
}

static bool is_repeated(const many *m, size_t i)
{
    return i > 0 && strcmp(m->wants[i].name, m->wants[i - 1].name) == 0;
}

/* A call that is its own owner would wait for itself: a name that we have just obtained is not asked for again. */
static void take_again(const many *m, size_t i)
{
    dibs_grant *g = grant_at(m, i - 1);

    dibs__begin_call(m->d);
    dibs__lock_again(g);
    dibs__end_call(m->d);
    m->out[m->wants[i].index] = g;
}

static dibs_status take_all(const many *m, dibs__deadline until, dibs_error *err)
{
    dibs_lock_options o = while_taking(m);

    for (size_t i = 0; i < m->count; i++) {
        dibs_status status;
        if (is_repeated(m, i)) {
            take_again(m, i);
            continue;
        }
        o.wait_ms = dibs__wait_left(m->d, m->options.wait_ms, until);
        status = dibs__lock(m->d, m->wants[i].name, &o, &m->out[m->wants[i].index], err);
        if (status != DIBS_OK) {
            give_back(m, i);
            return status;
        }
    }
    return DIBS_OK;
}

/* ---- Delivering ------------------------------------------------------------------------------ */

/* Little is left of a hand-over that came long ago, or of a lease that nobody will renew any more. */
static bool needs_renewal(const many *m, const dibs_grant *g)
{
    int64_t left = atomic_load(&g->deadline) - dibs__now(m->d->env);
    int64_t usual = g->lease < DIBS__WINDOW ? g->lease : DIBS__WINDOW;

    return left < usual / 2 || (m->options.no_renew && g->whole && left < g->lease * 2 / 3);
}

/* One of an outer level has its own terms. One that was not renewed in time is found to be lost, or holds
 * for as long as it has. */
static void renew_old_ones(const many *m, dibs__deadline patience)
{
    dibs__deadline until = dibs__request_until(m->d, patience);

    for (size_t i = 0; i < m->count; i++) {
        dibs_grant *g = grant_at(m, i);
        bool old;
        dibs__begin_call(m->d);
        old = g->state == DIBS__HELD && !g->delivered && needs_renewal(m, g);
        dibs__end_call(m->d);
        if (old)
            dibs__grant_renew(g, until, NULL);
    }
}

/* With the mutex: one that is not held, or NULL. */
static dibs_grant *find_lost(const many *m)
{
    for (size_t i = 0; i < m->count; i++) {
        dibs__grant_lose_if_over(grant_at(m, i));
        if (grant_at(m, i)->state != DIBS__HELD)
            return grant_at(m, i);
    }
    return NULL;
}

/* All at the same moment. `again` is set where another try may help. */
static dibs_status deliver(const many *m, dibs__deadline patience, bool *again, dibs_error *err)
{
    dibs_status status = DIBS_OK;
    dibs_grant *lost;

    renew_old_ones(m, patience);
    dibs__begin_call(m->d);
    lost = find_lost(m);
    if (lost) {
        *again = !lost->delivered;
        status = dibs__fail(err, *again ? DIBS_BUSY : DIBS_LOST,
                            "'%.200s' was lost while the others were waited for: %s", lost->name,
                            dibs_loss_text(dibs_grant_loss(lost)));
    }
    for (size_t i = 0; !lost && i < m->count; i++)
        if (!grant_at(m, i)->delivered)
            dibs__grant_deliver_anew(grant_at(m, i), !m->options.no_renew,
                                     m->options.max_hold_ms * DIBS__MS);
    dibs__end_call(m->d);
    if (lost)
        give_back(m, m->count);
    return status;
}

/* ---- The call -------------------------------------------------------------------------------- */

static dibs_status take_and_deliver(const many *m, dibs_error *err)
{
    int64_t wait_ms = m->options.wait_ms;
    dibs__deadline until = dibs__wait_until(m->d, wait_ms);
    dibs_status status;
    bool again;

    do {
        again = false;
        status = take_all(m, until, err);
        if (status == DIBS_OK)
            status = deliver(m, wait_ms == DIBS_NO_WAIT ? DIBS__NEVER : until, &again, err);
    } while (again && dibs__wait_left(m->d, wait_ms, until) != DIBS_NO_WAIT);
    return status;
}

dibs_status dibs__do_lock_many(dibs *d, const char *const names[], size_t count,
                               const dibs_lock_options *options, dibs_grant *out[], dibs_error *err)
{
    want *wants;
    dibs_status status = dibs__usable(d, err);

    for (size_t i = 0; i < count; i++)
        out[i] = NULL;
    if (status != DIBS_OK)
        return status;
    if (count == 0)
        return dibs__fail(err, DIBS_INVALID, "no names given");
    wants = calloc(count, sizeof *wants);
    if (!wants)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < count; i++)
        wants[i] = (want){names[i] ? names[i] : "", i};
    qsort(wants, count, sizeof *wants, by_name);
    many m = {.d = d, .wants = wants, .count = count, .out = out};
    m.options = dibs__lock_terms(d, options);
    status = dibs__check_lock_options(d, &m.options, err);
    dibs__begin_call(d); /* one call, so that dibs_close waits for the whole of it */
    pthread_mutex_unlock(&d->mutex);
    if (status == DIBS_OK)
        status = take_and_deliver(&m, err);
    pthread_mutex_lock(&d->mutex);
    dibs__end_call(d);
    free(wants);
    return status;
}
