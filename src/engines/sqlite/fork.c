/* The handles of this process, and what a fork does to them.
 *
 * SQLite keeps for each database what this process has locked, and guards it by mutexes of the process. A
 * forked child inherits the notes and the mutexes, but neither the locks nor the threads that would
 * unlock the mutexes: in the child an open could wait for ever, find the database busy for ever, or
 * work on it without the locks that keep others from truncating its log.
 *
 * So nobody of ours is inside SQLite while the process forks: who is inside comes out first (who waits
 * there for another process is called out), who wants in waits. Then all inherited connections are idle,
 * and the child closes them before it opens its own; closing an idle one writes nothing, and unlocks
 * nothing of the parent's. If somebody did not come out in time (a disk that stalls), the child is
 * refused. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/thread.h"
#include "engines/sqlite/sqlite.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 5000 /* so long a fork waits for those who are inside */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
/* Whoever closes what was inherited: one thread at a time, and nobody opens before that is done. */
static pthread_mutex_t shedding = PTHREAD_MUTEX_INITIALIZER;
static int inside; /* threads that are in SQLite */
static int forks;  /* threads that are about to fork */
static bool quiet; /* nobody was inside: written before a fork, read in the child */
static dibs__lite *handles;
static _Thread_local int depth; /* a callback of the user's may fork while its thread is inside */

/* ---- In and out ------------------------------------------------------------------------------ */

void dibs__lite_inside(void)
{
    pthread_mutex_lock(&mutex);
    while (forks > 0 && depth == 0)
        pthread_cond_wait(&changed, &mutex);
    inside++;
    depth++;
    pthread_mutex_unlock(&mutex);
}

void dibs__lite_outside(void)
{
    pthread_mutex_lock(&mutex);
    inside--;
    depth--;
    if (forks > 0)
        pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

bool dibs__lite_called_out(void)
{
    bool called;

    pthread_mutex_lock(&mutex);
    called = forks > 0;
    pthread_mutex_unlock(&mutex);
    return called;
}

/* ---- Forking --------------------------------------------------------------------------------- */

/* The mutex stays locked over the fork. */
static void before_fork(void)
{
    struct timespec until = dibs__moment(CLOCK_REALTIME, PATIENCE_MS * DIBS__MS);

    pthread_mutex_lock(&mutex);
    forks++;
    while (inside > depth && pthread_cond_timedwait(&changed, &mutex, &until) == 0) {
    }
    quiet = inside == 0;
}

static void in_parent(void)
{
    forks--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

/* One that the parent had inherited itself was closed by then, or not begun with: it stays listed until it
 * is closed, and closing it again is harmless. */
static void in_child(void)
{
    for (dibs__lite *e = handles; e; e = e->next_handle) {
        e->idle = quiet && (!e->inherited || e->idle);
        e->inherited = true;
    }
    forks = 0;
    inside = depth;
    pthread_cond_init(&changed, NULL);
    pthread_mutex_init(&shedding, NULL);
    pthread_mutex_unlock(&mutex);
}

static void mind_forks(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

/* ---- Handles --------------------------------------------------------------------------------- */

void dibs__lite_enlist(dibs__lite *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, mind_forks);
    e->pid = getpid();
    pthread_mutex_lock(&mutex);
    e->next_handle = handles;
    handles = e;
    pthread_mutex_unlock(&mutex);
}

void dibs__lite_delist(dibs__lite *e)
{
    pthread_mutex_lock(&mutex);
    for (dibs__lite **at = &handles; *at; at = &(*at)->next_handle) {
        if (*at == e) {
            *at = e->next_handle;
            break;
        }
    }
    pthread_mutex_unlock(&mutex);
}

/* Other threads look for it. */
void dibs__lite_set_client(dibs__lite *e, const char *client)
{
    pthread_mutex_lock(&mutex);
    snprintf(e->client, sizeof e->client, "%s", client);
    pthread_mutex_unlock(&mutex);
}

bool dibs__lite_is_here(const char *client)
{
    bool here = false;

    pthread_mutex_lock(&mutex);
    for (const dibs__lite *e = handles; e && !here; e = e->next_handle)
        here = !e->inherited && strcmp(e->client, client) == 0;
    pthread_mutex_unlock(&mutex);
    return here;
}

/* The next that was inherited from a parent, or NULL. */
static dibs__lite *find_inherited(void)
{
    dibs__lite *e;

    pthread_mutex_lock(&mutex);
    for (e = handles; e && !e->inherited && e->pid == getpid();)
        e = e->next_handle;
    pthread_mutex_unlock(&mutex);
    return e;
}

static bool can_be_closed(const dibs__lite *e)
{
    return e->inherited &&
           e->idle; /* else: forked past the handlers, or in the middle of something */
}

void dibs__lite_shed_one(dibs__lite *e)
{
    if (!can_be_closed(e))
        return;
    pthread_mutex_lock(&shedding);
    dibs__lite_drop(e);
    dibs__lite_delist(e);
    pthread_mutex_unlock(&shedding);
}

dibs_status dibs__lite_shed(dibs_error *err)
{
    dibs__lite *e;

    pthread_mutex_lock(&shedding);
    while ((e = find_inherited()) && can_be_closed(e)) {
        dibs__lite_drop(e);
        dibs__lite_delist(e);
    }
    pthread_mutex_unlock(&shedding);
    if (!e)
        return DIBS_OK;
    return dibs__fail(err, DIBS_UNAVAILABLE,
                      "sqlite: %.400s was in use by another thread while this process was "
                      "forked: fork again, or open it after an exec",
                      e->path);
}
