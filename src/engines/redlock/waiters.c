/* Those of this handle that wait: where they stand, and when the first of them tries. See waiters.h. */
#define _GNU_SOURCE
#include "engines/redlock/waiters.h"

#include "core/error.h"
#include "core/report.h"
#include "core/thread.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define PAUSE_FIRST (4 * DIBS__MS)
#define PAUSE_LAST  DIBS__SECOND     /* the nodes would tell us sooner */
#define PAUSE_DEAF  (100 * DIBS__MS) /* nobody would */
#define APART       (2 * DIBS__MS)   /* between those who look when a lease has ended */
#define LINGER      (2 * DIBS__SECOND)

/* ---- Life ------------------------------------------------------------------------------------ */

bool dibs__redlock_waiters_watch(dibs__redlock_waiters *l, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    return epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

dibs__redlock_waiters *dibs__redlock_waiters_new(void)
{
    dibs__redlock_waiters *l = calloc(1, sizeof *l);

    if (!l)
        return NULL;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->tried, NULL);
    l->armed = DIBS__NEVER;
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (l->epoll_fd < 0 || l->timer_fd < 0 || !dibs__redlock_waiters_watch(l, l->timer_fd)) {
        dibs__redlock_waiters_free(l);
        return NULL;
    }
    return l;
}

void dibs__redlock_waiters_free(dibs__redlock_waiters *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->attempts.size; i++)
        for (dibs__node *n = l->attempts.slot[i], *next; n; n = next) {
            next = n->next;
            free(DIBS__FROM(dibs__waiting, by_attempt, n));
        }
    for (size_t i = 0; i < l->queues.size; i++)
        for (dibs__node *n = l->queues.slot[i], *next; n; n = next) {
            next = n->next;
            free(DIBS__FROM(dibs__lock_queue, by_name, n));
        }
    dibs__table_fini(&l->attempts);
    dibs__table_fini(&l->queues);
    dibs__heap_fini(&l->due);
    if (l->timer_fd >= 0)
        close(l->timer_fd);
    if (l->epoll_fd >= 0)
        close(l->epoll_fd);
    pthread_cond_destroy(&l->tried);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

void dibs__redlock_waiters_abandon(dibs__redlock_waiters *l)
{
    close(l->timer_fd);
    close(l->epoll_fd);
}

/* ---- Finding --------------------------------------------------------------------------------- */

dibs__lock_queue *dibs__lock_queue_find(const dibs__redlock_waiters *l, const char *name)
{
    dibs__node *n = dibs__table_first(&l->queues, dibs__hash(name));

    for (; n; n = dibs__table_next(n)) {
        dibs__lock_queue *s = DIBS__FROM(dibs__lock_queue, by_name, n);
        if (strcmp(s->name, name) == 0)
            return s;
    }
    return NULL;
}

dibs__waiting *dibs__waiting_find(const dibs__redlock_waiters *l, const char *attempt)
{
    dibs__node *n = dibs__table_first(&l->attempts, dibs__hash(attempt));

    for (; n; n = dibs__table_next(n)) {
        dibs__waiting *w = DIBS__FROM(dibs__waiting, by_attempt, n);
        if (strcmp(w->who.attempt, attempt) == 0)
            return w;
    }
    return NULL;
}

/* ---- When to try ----------------------------------------------------------------------------- */

void dibs__redlock_waiters_arm(dibs__redlock_waiters *l)
{
    dibs__due *top = dibs__heap_top(&l->due);
    dibs__deadline when = top ? top->key : DIBS__NEVER;
    struct itimerspec at = {0};

    if (when >= l->armed)
        return;
    when = when > 1 ? when : 1;
    at.it_value.tv_sec = when / DIBS__SECOND;
    at.it_value.tv_nsec = when % DIBS__SECOND * 1000;
    timerfd_settime(l->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
    l->armed = when;
}

void dibs__lock_queue_turn(dibs__redlock *r, dibs__lock_queue *s)
{
    dibs__redlock_waiters *l = r->waiters;

    if (!s->first)
        dibs__heap_put(&l->due, &s->due, dibs__after(r->v->env, LINGER));
    else if (!s->trying)
        dibs__heap_put(&l->due, &s->due, s->try_at);
    else
        dibs__heap_remove(&l->due, &s->due);
    dibs__redlock_waiters_arm(l);
}

/* Where it is taken and a majority would tell, the look is only for what they cannot tell: a holder or the first
 * waiter that died, a message that was lost. Else several tried at once and none has it: soon again, the first
 * hint first. */
void dibs__lock_queue_pause(dibs__redlock *r, dibs__lock_queue *s, const dibs__try *t)
{
    bool listening = (size_t)dibs__nodes_in(r->waiters->heard) >= r->v->majority;
    int64_t most = listening ? PAUSE_LAST : PAUSE_DEAF;
    int64_t turn = dibs__redlock_random(r, APART) + DIBS__MS + (t ? t->rank * APART : 0);
    int64_t pause;

    s->pause = t && t->taken ? 0 : dibs__longer(s->pause, PAUSE_FIRST, most);
    pause = t && t->taken ? most : s->pause;
    pause = pause / 2 + dibs__redlock_random(r, pause);
    if (t && t->left > 0 && t->left + turn < pause)
        pause = t->left + turn;
    s->try_at = dibs__after(r->v->env, pause);
}

/* ---- Joining and leaving --------------------------------------------------------------------- */

static dibs__lock_queue *need_queue(dibs__redlock *r, const char *name)
{
    dibs__redlock_waiters *l = r->waiters;
    dibs__lock_queue *s = dibs__lock_queue_find(l, name);
    size_t size = strlen(name) + 1;

    if (s)
        return s;
    if (!dibs__table_reserve(&l->queues) ||
        !dibs__heap_reserve(&l->due, l->queues.count - l->due.count))
        return NULL;
    s = calloc(1, sizeof *s + size);
    if (!s)
        return NULL;
    memcpy(s->name, name, size);
    s->end = &s->first;
    dibs__table_add(&l->queues, &s->by_name, dibs__hash(name));
    return s;
}

static dibs__waiting *new_waiting(const dibs__enter_request *request, dibs__deadline now)
{
    dibs__waiting *w = calloc(1, sizeof *w);

    if (!w)
        return NULL;
    w->who = request->who;
    w->window = request->window;
    w->since = now;
    return w;
}

void dibs__redlock_waiters_begin(dibs__redlock *r, dibs__entering *e, const char *name)
{
    dibs__redlock_waiters *l = r->waiters;

    pthread_mutex_lock(&l->lock);
    *e = (dibs__entering){.next = l->entering, .name = name};
    l->entering = e;
    pthread_mutex_unlock(&l->lock);
}

void dibs__redlock_waiters_end(dibs__redlock *r, dibs__entering *e)
{
    dibs__redlock_waiters *l = r->waiters;
    dibs__entering **at = &l->entering;

    pthread_mutex_lock(&l->lock);
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    pthread_mutex_unlock(&l->lock);
}

bool dibs__redlock_waiters_is_long(dibs__redlock *r, const char *name)
{
    return dibs__redlock_waiters_count(r, name) > 0;
}

bool dibs__redlock_waiters_join(dibs__redlock *r, const dibs__enter_request *request,
                                const dibs__try *t, const dibs__entering *e)
{
    dibs__redlock_waiters *l = r->waiters;
    dibs__waiting *w = new_waiting(request, dibs__now(r->v->env));
    dibs__lock_queue *s;
    bool deaf;

    if (!w)
        return false;
    pthread_mutex_lock(&l->lock);
    s = need_queue(r, request->name);
    if (!s || !dibs__table_reserve(&l->attempts)) {
        pthread_mutex_unlock(&l->lock);
        free(w);
        return false;
    }
    w->queue = s;
    w->arrival = t ? t->arrival : 0;
    *s->end = w;
    s->end = &w->next;
    s->count++;
    dibs__table_add(&l->attempts, &w->by_attempt, dibs__hash(w->who.attempt));
    if (s->first == w) {
        s->pause = 0;
        s->down = false;
        dibs__lock_queue_pause(r, s, t);
        dibs__lock_queue_turn(r, s);
    }
    if (e->notified && !s->trying) {
        s->try_at = dibs__now(r->v->env);
        dibs__lock_queue_turn(r, s);
    }
    deaf = l->heard != dibs__all_nodes(r->v);
    pthread_mutex_unlock(&l->lock);
    if (deaf)
        eventfd_write(r->v->subscription_fd, 1);
    return true;
}

void dibs__lock_queue_drop(dibs__lock_queue *s, dibs__waiting *w)
{
    for (dibs__waiting **at = &s->first; *at; at = &(*at)->next) {
        if (*at != w)
            continue;
        *at = w->next;
        if (s->end == &w->next)
            s->end = at;
        break;
    }
    w->next = NULL;
    w->queue = NULL;
    s->count--;
}

static void forget(dibs__redlock_waiters *l, dibs__waiting *w)
{
    for (dibs__waiting **at = &l->served; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    dibs__table_remove(&l->attempts, &w->by_attempt);
    free(w);
}

dibs__waiter_state dibs__redlock_waiters_leave(dibs__redlock *r, const char *attempt)
{
    dibs__redlock_waiters *l = r->waiters;
    dibs__waiter_state address = DIBS__NOT_WAITING;
    dibs__waiting *w;

    pthread_mutex_lock(&l->lock);
    while ((w = dibs__waiting_find(l, attempt)) && w->state == DIBS__TRIES)
        pthread_cond_wait(&l->tried, &l->lock); /* whoever tries is back within a limit or two */
    if (w && w->queue) {
        dibs__lock_queue *s = w->queue;
        dibs__lock_queue_drop(s, w);
        dibs__lock_queue_turn(r, s);
    }
    if (w) {
        address = w->state == DIBS__HAS ? DIBS__REDLOCK_WAITERS_SERVED : DIBS__IS_WAITING;
        forget(l, w);
    }
    pthread_mutex_unlock(&l->lock);
    return address;
}

dibs__waiter_state dibs__redlock_waiters_look(dibs__redlock *r, const char *attempt,
                                              uint64_t *fence)
{
    dibs__redlock_waiters *l = r->waiters;
    dibs__waiter_state address = DIBS__NOT_WAITING;
    dibs__waiting *w;

    pthread_mutex_lock(&l->lock);
    w = dibs__waiting_find(l, attempt);
    if (w && w->state == DIBS__HAS) {
        address = DIBS__REDLOCK_WAITERS_SERVED;
        *fence = w->fence;
    } else if (w) {
        address = w->queue->down ? DIBS__REDLOCK_WAITERS_DOWN : DIBS__IS_WAITING;
    }
    pthread_mutex_unlock(&l->lock);
    return address;
}

/* ---- Looking --------------------------------------------------------------------------------- */

size_t dibs__redlock_waiters_count(dibs__redlock *r, const char *name)
{
    dibs__redlock_waiters *l = r->waiters;
    dibs__lock_queue *s;
    size_t n;

    pthread_mutex_lock(&l->lock);
    s = dibs__lock_queue_find(l, name);
    n = s ? s->count : 0;
    pthread_mutex_unlock(&l->lock);
    return n;
}

void dibs__redlock_waiters_report(dibs__redlock *r, const char *name, dibs__report_builder *out)
{
    dibs__redlock_waiters *l = r->waiters;
    int64_t now = dibs__now(r->v->env);
    dibs__time time = {now, r->v->env->wall(r->v->env->ctx)};
    dibs__lock_queue *s;

    pthread_mutex_lock(&l->lock);
    s = dibs__lock_queue_find(l, name);
    for (dibs__waiting *w = s ? s->first : NULL; w; w = w->next)
        dibs__report_waiter(out,
                            &(dibs__waiter){.who = w->who,
                                            .since = w->since,
                                            .window = w->window,
                                            .alive_until = now + w->window},
                            time);
    pthread_mutex_unlock(&l->lock);
}
