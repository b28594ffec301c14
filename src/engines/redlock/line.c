/* Those of this handle that wait. See line.h. */
#define _GNU_SOURCE
#include "engines/redlock/line.h"

#include "core/error.h"
#include "core/report.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_FIRST (4 * DIBS__MS)
#define PAUSE_LAST  DIBS__SECOND     /* somebody would tell us sooner */
#define PAUSE_DEAF  (100 * DIBS__MS) /* nobody would */
#define PASSES      64
#define BREATH      (4 * DIBS__MS) /* for the others, after that */
#define LINGER      (2 * DIBS__SECOND)

/* ---- Life ------------------------------------------------------------------------------------ */

bool dibs__redlock_line_watch(dibs__redlock_line *l, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

    return epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

dibs__redlock_line *dibs__redlock_line_new(void)
{
    dibs__redlock_line *l = calloc(1, sizeof *l);

    if (!l)
        return NULL;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->tried, NULL);
    l->armed = DIBS__NEVER;
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (l->epoll_fd < 0 || l->timer_fd < 0 || !dibs__redlock_line_watch(l, l->timer_fd)) {
        dibs__redlock_line_free(l);
        return NULL;
    }
    return l;
}

static void free_waiting(dibs__waiting *w)
{
    if (!w->by_event)
        pthread_cond_destroy(&w->cond);
    free(w);
}

void dibs__redlock_line_free(dibs__redlock_line *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->attempts.size; i++)
        for (dibs__node *n = l->attempts.slot[i], *next; n; n = next) {
            next = n->next;
            free_waiting(DIBS__FROM(dibs__waiting, by_attempt, n));
        }
    for (size_t i = 0; i < l->spots.size; i++)
        for (dibs__node *n = l->spots.slot[i], *next; n; n = next) {
            next = n->next;
            free(DIBS__FROM(dibs__spot, by_name, n));
        }
    dibs__table_fini(&l->attempts);
    dibs__table_fini(&l->spots);
    dibs__heap_fini(&l->due);
    if (l->timer_fd >= 0)
        close(l->timer_fd);
    if (l->epoll_fd >= 0)
        close(l->epoll_fd);
    pthread_cond_destroy(&l->tried);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

void dibs__redlock_line_abandon(dibs__redlock_line *l)
{
    close(l->timer_fd);
    close(l->epoll_fd);
}

/* ---- Finding --------------------------------------------------------------------------------- */

dibs__spot *dibs__spot_find(const dibs__redlock_line *l, const char *name)
{
    dibs__node *n = dibs__table_first(&l->spots, dibs__hash(name));

    for (; n; n = dibs__table_next(n)) {
        dibs__spot *s = DIBS__FROM(dibs__spot, by_name, n);
        if (strcmp(s->name, name) == 0)
            return s;
    }
    return NULL;
}

static dibs__waiting *find_waiting(const dibs__redlock_line *l, const char *attempt)
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

void dibs__redlock_line_arm(dibs__redlock_line *l)
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

void dibs__spot_turn(dibs__redlock *r, dibs__spot *s)
{
    dibs__redlock_line *l = r->line;

    if (!s->first)
        dibs__heap_put(&l->due, &s->due, dibs__after(r->v->env, LINGER));
    else if (s->first->by_event && !s->trying)
        dibs__heap_put(&l->due, &s->due, s->try_at);
    else
        dibs__heap_remove(&l->due, &s->due);
    if (s->first && !s->first->by_event)
        pthread_cond_signal(&s->first->cond);
    dibs__redlock_line_arm(l);
}

/* `left`: until the one who has it may be gone. */
static void pause_spot(dibs__redlock *r, dibs__spot *s, int64_t left)
{
    bool listening = s->heard == dibs__ears(r->v);
    int64_t most = listening ? PAUSE_LAST : PAUSE_DEAF, pause;

    s->pause = s->pause ? 2 * s->pause : PAUSE_FIRST;
    s->pause = s->pause < most ? s->pause : most;
    pause = s->pause / 2 + dibs__redlock_random(r, s->pause);
    if (left > 0 && left < pause)
        pause = left + dibs__redlock_random(r, PAUSE_FIRST) + DIBS__MS;
    s->try_at = dibs__after(r->v->env, pause);
}

/* ---- Joining and leaving --------------------------------------------------------------------- */

static dibs__spot *need_spot(dibs__redlock *r, const char *name)
{
    dibs__redlock_line *l = r->line;
    dibs__spot *s = dibs__spot_find(l, name);
    size_t size = strlen(name) + 1;

    if (s)
        return s;
    if (!dibs__table_reserve(&l->spots) ||
        !dibs__heap_reserve(&l->due, l->spots.count - l->due.count))
        return NULL;
    s = calloc(1, sizeof *s + size);
    if (!s)
        return NULL;
    memcpy(s->name, name, size);
    s->end = &s->first;
    dibs__table_add(&l->spots, &s->by_name, dibs__hash(name));
    return s;
}

static dibs__waiting *new_waiting(const dibs__enter_request *request, dibs__deadline now)
{
    dibs__waiting *w = calloc(1, sizeof *w);
    pthread_condattr_t monotonic;

    if (!w)
        return NULL;
    w->who = request->who;
    w->window = request->window;
    w->by_event = request->by_event;
    w->since = now;
    if (!w->by_event) {
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_cond_init(&w->cond, &monotonic);
        pthread_condattr_destroy(&monotonic);
    }
    return w;
}

bool dibs__redlock_line_is_long(dibs__redlock *r, const char *name)
{
    return dibs__redlock_line_count(r, name) > 0;
}

bool dibs__redlock_line_join(dibs__redlock *r, const dibs__enter_request *request, int64_t left)
{
    dibs__redlock_line *l = r->line;
    dibs__waiting *w = new_waiting(request, dibs__now(r->v->env));
    dibs__spot *s;
    bool fresh = false;

    if (!w)
        return false;
    pthread_mutex_lock(&l->lock);
    s = need_spot(r, request->name);
    if (!s || !dibs__table_reserve(&l->attempts)) {
        pthread_mutex_unlock(&l->lock);
        free_waiting(w);
        return false;
    }
    w->spot = s;
    *s->end = w;
    s->end = &w->next;
    s->count++;
    dibs__table_add(&l->attempts, &w->by_attempt, dibs__hash(w->who.attempt));
    if (s->first == w) { /* it may have been given back before anybody listened: look again soon */
        s->pause = 0;
        s->hinted = s->down = false;
        pause_spot(r, s, left);
        dibs__spot_turn(r, s);
        fresh = s->heard != dibs__ears(r->v);
    }
    pthread_mutex_unlock(&l->lock);
    if (fresh)
        eventfd_write(r->v->ear_fd, 1);
    return true;
}

static void unlink_from(dibs__spot *s, dibs__waiting *w)
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
    w->spot = NULL;
    s->count--;
}

static void forget(dibs__redlock_line *l, dibs__waiting *w)
{
    for (dibs__waiting **at = &l->served; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    dibs__table_remove(&l->attempts, &w->by_attempt);
    free_waiting(w);
}

dibs__place_in_line dibs__redlock_line_leave(dibs__redlock *r, const char *attempt)
{
    dibs__redlock_line *l = r->line;
    dibs__place_in_line place = DIBS__NOT_IN_LINE;
    dibs__waiting *w;

    pthread_mutex_lock(&l->lock);
    while ((w = find_waiting(l, attempt)) && w->state == DIBS__TRIES)
        pthread_cond_wait(&l->tried, &l->lock); /* whoever tries is back within a limit or two */
    if (w && w->spot) {
        dibs__spot *s = w->spot;
        unlink_from(s, w);
        dibs__spot_turn(r, s);
    }
    if (w) {
        place = w->state == DIBS__HAS ? DIBS__REDLOCK_LINE_SERVED : DIBS__IN_LINE;
        forget(l, w);
    }
    pthread_mutex_unlock(&l->lock);
    return place;
}

dibs__place_in_line dibs__redlock_line_look(dibs__redlock *r, const char *attempt, uint64_t *fence)
{
    dibs__redlock_line *l = r->line;
    dibs__place_in_line place = DIBS__NOT_IN_LINE;
    dibs__waiting *w;

    pthread_mutex_lock(&l->lock);
    w = find_waiting(l, attempt);
    if (w && w->state == DIBS__HAS) {
        place = DIBS__REDLOCK_LINE_SERVED;
        *fence = w->fence;
    } else if (w) {
        place = w->spot->down ? DIBS__REDLOCK_LINE_DOWN : DIBS__IN_LINE;
    }
    pthread_mutex_unlock(&l->lock);
    return place;
}

/* ---- Trying ---------------------------------------------------------------------------------- */

dibs__waiting *dibs__spot_begin(dibs__spot *s, dibs__try *out, const dibs__voters *v)
{
    dibs__waiting *w = s->first;

    w->state = DIBS__TRIES;
    s->trying = true;
    s->hinted = false;
    out->name = s->name;
    out->who = &w->who;
    /* The core counts what it is handed from its last sign of life, which may have been answered
     * while the nodes were being asked: their lease must last that much longer. */
    out->within = 2 * v->limit;
    out->lease = w->who.lease + out->within;
    out->waits = 2;
    out->after = NULL;
    return w;
}

static void serve(dibs__redlock_line *l, dibs__spot *s, dibs__waiting *w, const dibs__try *t)
{
    unlink_from(s, w);
    w->state = DIBS__HAS;
    w->fence = t->reply.fence;
    w->over = t->began + t->lease;
    w->next = l->served;
    l->served = w;
    if (!w->by_event)
        pthread_cond_signal(&w->cond);
}

bool dibs__spot_end(dibs__redlock *r, dibs__waiting *w, const dibs__try *t)
{
    dibs__redlock_line *l = r->line;
    dibs__spot *s = w->spot;
    bool granted = t->status == DIBS_OK && t->reply.verdict == DIBS__GRANTED;

    s->trying = false;
    s->down = t->status != DIBS_OK;
    w->state = DIBS__WAITS;
    if (granted) {
        serve(l, s, w, t);
        s->pause = PAUSE_LAST; /* whoever has it now hands it on */
        pause_spot(r, s, 0);
    } else if (s->hinted) { /* it has become free meanwhile */
        s->try_at = dibs__now(r->v->env);
    } else {
        pause_spot(r, s, t->status == DIBS_OK ? t->left : 0);
    }
    dibs__spot_turn(r, s);
    pthread_cond_broadcast(&l->tried);
    return granted && w->by_event;
}

void dibs__redlock_line_tried(dibs__redlock *r, dibs__waiting *w, const dibs__try *t)
{
    dibs__sink *sink = r->base.sink;
    char attempt[DIBS__ATTEMPT_SIZE];
    bool tell;

    memcpy(attempt, w->who.attempt, sizeof attempt);
    pthread_mutex_lock(&r->line->lock);
    tell = dibs__spot_end(r, w, t);
    pthread_mutex_unlock(&r->line->lock);
    if (tell)
        sink->granted(sink, attempt, t->reply.fence, t->reply.fence);
}

dibs__waiting *dibs__redlock_line_next(dibs__redlock *r, const char *name, dibs__try *out)
{
    dibs__redlock_line *l = r->line;
    dibs__waiting *w = NULL;
    dibs__spot *s;

    pthread_mutex_lock(&l->lock);
    s = dibs__spot_find(l, name);
    if (s && s->first && !s->trying) {
        if (s->passes++ < PASSES) {
            w = dibs__spot_begin(s, out, r->v);
        } else {
            s->passes = 0;
            s->try_at = dibs__after(r->v->env, BREATH / 2 + dibs__redlock_random(r, BREATH));
            s->not_before = s->try_at;
            dibs__spot_turn(r, s);
        }
    }
    pthread_mutex_unlock(&l->lock);
    return w;
}

/* ---- Threads that wait ----------------------------------------------------------------------- */

/* With the lock, which is given away meanwhile. */
static void try_first(dibs__redlock *r, dibs__spot *s, dibs__deadline until)
{
    dibs__try t, *tries[] = {&t};
    bool hinted = s->hinted;
    dibs__waiting *w = dibs__spot_begin(s, &t, r->v);

    pthread_mutex_unlock(&r->line->lock);
    dibs__try_all(r, tries, 1, hinted, until);
    pthread_mutex_lock(&r->line->lock);
    dibs__spot_end(r, w, &t);
    if (w->spot && s->heard != dibs__ears(r->v))
        eventfd_write(r->v->ear_fd, 1); /* the keeper tries to listen again */
}

static void sleep_until(dibs__redlock *r, dibs__waiting *w, dibs__deadline until)
{
    int64_t left = until - dibs__now(r->v->env);
    struct timespec t;

    if (left <= 0)
        return;
    left = left < DIBS__SECOND ? left : DIBS__SECOND;
    clock_gettime(CLOCK_MONOTONIC, &t);
    left = left * 1000 + t.tv_nsec;
    t.tv_sec += left / 1000000000;
    t.tv_nsec = left % 1000000000;
    pthread_cond_timedwait(&w->cond, &r->line->lock, &t);
}

dibs_status dibs__redlock_wait(dibs__engine *e, dibs__sitter *sitter, dibs__deadline until,
                               dibs__reply *out, dibs_error *err)
{
    dibs__redlock *r = (dibs__redlock *)e;
    dibs__redlock_line *l = r->line;
    dibs__waiting *w;

    (void)err;
    *out = (dibs__reply){.verdict = DIBS__QUEUED};
    pthread_mutex_lock(&l->lock);
    while ((w = find_waiting(l, sitter->claim.attempt)) && !w->poked) {
        int64_t now = dibs__now(r->v->env);
        dibs__spot *s = w->spot;
        if (w->state == DIBS__HAS) {
            *out = (dibs__reply){.verdict = DIBS__GRANTED, .fence = w->fence, .floor = w->fence};
            break;
        }
        if (now >= until)
            break;
        bool mine = s->first == w && !s->trying;
        if (mine && now >= s->try_at)
            try_first(r, s, until);
        else
            sleep_until(r, w, mine ? dibs__sooner(until, s->try_at) : until);
    }
    if (w)
        w->poked = false;
    pthread_mutex_unlock(&l->lock);
    return DIBS_OK;
}

/* The handle's mutex is held: nobody calls the sink with the line's lock. */
void dibs__redlock_poke(dibs__engine *e, dibs__sitter *sitter)
{
    dibs__redlock *r = (dibs__redlock *)e;
    dibs__waiting *w;

    if (!sitter->claim.attempt)
        return;
    pthread_mutex_lock(&r->line->lock);
    w = find_waiting(r->line, sitter->claim.attempt);
    if (w && !w->by_event) {
        w->poked = true;
        pthread_cond_signal(&w->cond);
    }
    pthread_mutex_unlock(&r->line->lock);
}

/* ---- Looking --------------------------------------------------------------------------------- */

size_t dibs__redlock_line_count(dibs__redlock *r, const char *name)
{
    dibs__redlock_line *l = r->line;
    dibs__spot *s;
    size_t n;

    pthread_mutex_lock(&l->lock);
    s = dibs__spot_find(l, name);
    n = s ? s->count : 0;
    pthread_mutex_unlock(&l->lock);
    return n;
}

void dibs__redlock_line_report(dibs__redlock *r, const char *name, dibs__report_builder *out)
{
    dibs__redlock_line *l = r->line;
    int64_t now = dibs__now(r->v->env);
    dibs__time time = {now, r->v->env->wall(r->v->env->ctx)};
    dibs__spot *s;

    pthread_mutex_lock(&l->lock);
    s = dibs__spot_find(l, name);
    for (dibs__waiting *w = s ? s->first : NULL; w; w = w->next)
        dibs__report_waiter(out,
                            &(dibs__waiter){.who = w->who,
                                            .since = w->since,
                                            .window = w->window,
                                            .alive_until = now + w->window},
                            time);
    pthread_mutex_unlock(&l->lock);
}
