/* The nodes as a whole: their beginning, their end, and what is said when too few of them answer. */
#define _GNU_SOURCE
#include "engines/redlock/voters.h"

#include "core/error.h"
#include "core/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* ---- Beginning and end ----------------------------------------------------------------------- */

static void free_voters(dibs__voters *v)
{
    for (size_t i = 0; i < v->count; i++) {
        dibs__link_fini(&v->voter[i]);
        dibs__address_fini(&v->voter[i].address);
    }
    dibs__tls_context_free(v->tls);
    dibs__scripts_fini(&v->scripts);
    if (v->wake_fd >= 0)
        close(v->wake_fd);
    if (v->subscription_fd >= 0)
        close(v->subscription_fd);
    if (v->tend_fd >= 0)
        close(v->tend_fd);
    pthread_cond_destroy(&v->turned);
    pthread_mutex_destroy(&v->lock);
    free(v);
}

dibs__voters *dibs__voters_new(const dibs__env *env, dibs__sink *sink)
{
    dibs__voters *v = calloc(1, sizeof *v);

    if (!v)
        return NULL;
    v->env = env;
    v->sink = sink;
    v->refs = 1;
    pthread_mutex_init(&v->lock, NULL);
    dibs__cond_init(&v->turned);
    v->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    v->subscription_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    v->tend_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    /* The first two take memory, and are refused where there is none. */
    if (v->wake_fd < 0 || v->subscription_fd < 0 || v->tend_fd < 0 ||
        !dibs__scripts_init(&v->scripts, dibs__redlock_lua, DIBS__RED_SCRIPTS, 2)) {
        free_voters(v);
        return NULL;
    }
    return v;
}

void dibs__voters_unref(dibs__voters *v)
{
    bool last = --v->refs == 0;

    pthread_mutex_unlock(&v->lock);
    if (last)
        free_voters(v);
}

void dibs__voters_close(dibs__voters *v)
{
    if (!v)
        return;
    pthread_mutex_lock(&v->lock);
    v->closed = true;
    for (size_t i = 0; i < v->count; i++) {
        dibs__conn_close(v->voter[i].conn);
        dibs__conn_close(v->voter[i].subscription);
        v->voter[i].conn = v->voter[i].subscription = NULL;
    }
    dibs__voters_unref(v);
}

/* In a forked child: the lock may be held for ever by a thread that is not here. */
void dibs__voters_abandon(dibs__voters *v)
{
    for (size_t i = 0; i < v->count; i++) {
        if (v->voter[i].conn)
            close(v->voter[i].conn->fd);
        if (v->voter[i].subscription)
            close(v->voter[i].subscription->fd);
    }
    close(v->wake_fd);
    close(v->subscription_fd);
    close(v->tend_fd);
}

/* ---- Starting -------------------------------------------------------------------------------- */

static size_t still_dialling(const dibs__voters *v)
{
    size_t n = 0;

    for (size_t i = 0; i < v->count; i++)
        n += v->voter[i].dialling[0];
    return n;
}

dibs_status dibs__voters_start(dibs__voters *v, dibs__deadline until, dibs_error *err)
{
    /* Who vouches for the nodes means all of them. */
    int64_t late = v->vouched && 2 * v->limit < DIBS__SECOND ? DIBS__SECOND : 2 * v->limit;
    dibs__deadline grace = DIBS__NEVER;
    dibs_status status = DIBS_OK;

    pthread_mutex_lock(&v->lock);
    dibs__voters_dial_all(v);
    while (still_dialling(v) > 0 && dibs__now(v->env) < dibs__sooner(until, grace)) {
        /* The last ones get a moment more, and come later if they are slower. */
        if (grace == DIBS__NEVER && dibs__voters_connected(v) >= v->majority)
            grace = dibs__after(v->env, late);
        else
            dibs__cond_sleep(&v->turned, &v->lock, v->env, dibs__sooner(until, grace));
    }
    if (dibs__voters_connected(v) < v->majority)
        status = dibs__voters_missing(v, err);
    pthread_mutex_unlock(&v->lock);
    return status;
}

/* ---- What is said ---------------------------------------------------------------------------- */

/* Denied if that is why there is no majority, whatever else is wrong. */
static dibs_status worst(const dibs__voters *v)
{
    size_t denied = 0;

    for (size_t i = 0; i < v->count; i++)
        denied += !dibs__link_up(&v->voter[i]) && v->voter[i].why.status == DIBS_DENIED;
    return denied > v->count - v->majority ? DIBS_DENIED : DIBS_UNAVAILABLE;
}

/* Messages from below begin with the node already. */
const char *dibs__voter_why(const dibs__voter *n)
{
    size_t length = strlen(n->address.text);

    if (!n->why.message[0])
        return n->dialling[0] ? "no answer yet" : "not asked yet";
    if (strncmp(n->why.message, n->address.text, length) == 0 &&
        strncmp(n->why.message + length, ": ", 2) == 0)
        return n->why.message + length + 2;
    return n->why.message;
}

dibs_status dibs__voters_missing(dibs__voters *v, dibs_error *err)
{
    char text[900] = "";
    const char *code = ""; /* of the first that has one */
    size_t used = 0;
    dibs_status status;

    for (size_t i = 0; i < v->count && used < sizeof text; i++) {
        const dibs__voter *n = &v->voter[i];
        if (dibs__link_up(n) && n->why.status == DIBS_OK)
            continue;
        used += (size_t)snprintf(text + used, sizeof text - used, "; %s: %.160s", n->address.text,
                                 dibs__voter_why(n));
        code = *code ? code : n->why.engine_code;
    }
    status = dibs__fail(err, worst(v), "redlock: %zu of %zu nodes answer, and %zu are needed%s",
                        dibs__voters_connected(v), v->count, v->majority, text);
    dibs__error_code(err, "%s", code);
    return status;
}

/* ---- Fences ---------------------------------------------------------------------------------- */

void dibs__voters_saw(dibs__voters *v, uint64_t fence)
{
    uint64_t old = atomic_load(&v->highest);

    while (fence > old && !atomic_compare_exchange_weak(&v->highest, &old, fence))
        ;
}

uint64_t dibs__voters_propose(dibs__voters *v)
{
    uint64_t clock = (uint64_t)v->env->wall(v->env->ctx), seen = atomic_load(&v->highest) + 1;

    return clock > seen ? clock : seen;
}
