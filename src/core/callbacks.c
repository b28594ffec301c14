/* Callbacks of the user's that are running now, and waiting for one of them to end.
 *
 * Whoever gives a thing up (dibs_unlock, dibs_once_free) waits until a callback about it has returned.
 * That callback may run on any thread, of any handle, and may itself give up another thing and wait
 * for *its* callback. So the whole process has one list of what runs where and who waits for what:
 * a thread that would wait for itself, however many others are in between, does not wait. */
#define _GNU_SOURCE
#include "core/handle.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static dibs__callback *running;

/* ---- Forks ----------------------------------------------------------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&mutex);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&mutex);
}

/* The threads that ran them are not here. A waiter of theirs is not here either. */
static void in_child(void)
{
    running = NULL;
    pthread_cond_init(&ended, NULL);
    pthread_mutex_unlock(&mutex);
}

static void mind_forks(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

/* ---- Begin and end --------------------------------------------------------------------------- */

void dibs__callback_begin(dibs__callback *t, const void *about)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, mind_forks);
    *t = (dibs__callback){.about = about, .thread = pthread_self()};
    pthread_mutex_lock(&mutex);
    t->next = running;
    running = t;
    pthread_mutex_unlock(&mutex);
}

/* It is not in the list when the callback has forked, and this is the child. */
void dibs__callback_end(dibs__callback *t)
{
    pthread_mutex_lock(&mutex);
    for (dibs__callback **at = &running; *at; at = &(*at)->next) {
        if (*at == t) {
            *at = t->next;
            break;
        }
    }
    pthread_cond_broadcast(&ended);
    pthread_mutex_unlock(&mutex);
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static dibs__callback *find(const void *about)
{
    dibs__callback *t = running;

    while (t && t->about != about)
        t = t->next;
    return t;
}

/* Does the callback about it run on this thread, or wait for one that does, and so on? */
static bool leads_here(const void *about)
{
    for (const dibs__callback *t = find(about); t; t = t->waits_for ? find(t->waits_for) : NULL)
        if (pthread_equal(t->thread, pthread_self()))
            return true;
    return false;
}

/* Callbacks can be nested: all of this thread's wait, or none. */
static void set_waiting(const void *about)
{
    for (dibs__callback *t = running; t; t = t->next)
        if (pthread_equal(t->thread, pthread_self()))
            t->waits_for = about;
}

void dibs__callback_await(const void *about)
{
    pthread_mutex_lock(&mutex);
    if (!leads_here(about)) {
        set_waiting(about);
        while (find(about))
            pthread_cond_wait(&ended, &mutex);
        set_waiting(NULL);
    }
    pthread_mutex_unlock(&mutex);
}
