/* Tickets: a lock call from its first `enter` until it is settled, whoever waits for it.
 *
 * It goes well: enter → GRANTED. Or: enter → QUEUED, keep-alives by the keeper, a hand-over. It
 * fails in four ways: the engine does not answer (ask again with the same attempt, with growing
 * pauses, until the caller's patience ends), the entry is gone (enter under a new attempt), the
 * lock is of another kind (settled), the caller's patience ends or it cancels (settled, and the
 * entry is taken back). */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/handle.h"
#include "core/stats.h"
#include "core/thread.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define FIRST_PAUSE (20 * DIBS__MS)
#define MAX_PAUSE   DIBS__SECOND
#define BREATH      (10 * DIBS__MS) /* when a leader cannot sleep by poll */

/* ---- Settling -------------------------------------------------------------------------------- */

static void count(dibs__ticket *t, dibs_status status)
{
    dibs *d = t->grant->d;
    dibs_stats *s = &d->stats;

    if (!t->try_once)
        d->waits--;
    if (t->queued_once)
        s->waiting--;
    if (status == DIBS_OK)
        dibs__histogram_add(t->queued_once ? &s->wait : &s->acquire,
                            dibs__now(d->env) - t->grant->asked);
    else if (status == DIBS_BUSY)
        s->busy++;
    else if (status == DIBS_CANCELLED)
        s->cancelled++;
    else
        s->failures++;
}

/* It sleeps on its bell, or is on its way and finds it rung. */
static void ring(dibs__ticket *t)
{
    atomic_fetch_add(&t->bell, 1);
    dibs__word_wake(&t->bell);
}

/* Its thread has something to do. A leader sleeps on descriptors, unless it is the leader itself who says so. */
static void wake(dibs__ticket *t)
{
    dibs *d = t->grant->d;

    if (!dibs__call_drives(&d->readers.threads, &t->turn))
        ring(t);
    else if (!pthread_equal(d->leader, pthread_self()))
        eventfd_write(d->leader_fd, 1);
}

/* A message is long, and most tickets never need one. */
void dibs__ticket_note(dibs__ticket *t, const dibs_error *err)
{
    if (!t->err)
        t->err = malloc(sizeof *t->err);
    if (t->err)
        *t->err = *err;
}

void dibs__ticket_error(const dibs__ticket *t, dibs_error *out)
{
    *out = t->err ? *t->err : (dibs_error){0};
}

void dibs__ticket_fini(dibs__ticket *t)
{
    free(t->err);
    t->err = NULL;
}

void dibs__ticket_settle(dibs__ticket *t, dibs_status status, const dibs_error *err)
{
    dibs_grant *g = t->grant;
    dibs *d = g->d;

    if (t->settled)
        return;
    count(t, status);
    t->settled = true;
    t->status = status;
    if (err)
        dibs__ticket_note(t, err);
    if (t->err)
        t->err->status = status;
    g->ticket = NULL;
    if (!t->by_event) {
        dibs__call_finish(&d->readers.threads, &t->turn);
        wake(t);
        return;
    }
    if (status != DIBS_OK && t->maybe_there) {
        dibs__grant_ref(g); /* the ticket keeps its own */
        dibs__grant_orphan(g, false);
    } else if (status != DIBS_OK) {
        dibs__grant_retire(g);
    }
    dibs__job_drop(d, &t->job);
    t->done(d, t);
}

static void settle_saying(dibs__ticket *t, dibs_status status, const char *what)
{
    dibs_error err;

    dibs__fail(&err, status, "'%.200s': %s", t->grant->name, what);
    dibs__ticket_settle(t, status, &err);
}

/* Not obtained: by whom it is held, where the engine has said that. */
static void settle_busy(dibs__ticket *t, const char *suffix)
{
    const dibs__in_way *w = &t->in_way;
    const dibs_grant *g = t->grant;
    dibs_error err;

    if (!w->fence) {
        settle_saying(t, DIBS_BUSY, dibs_status_text(DIBS_BUSY));
        return;
    }
    dibs__fail(&err, DIBS_BUSY, "'%.200s': held by %s (host %s, pid %lld)%s", g->name, w->owner,
               w->host, (long long)w->pid, suffix);
    dibs__error_holder(&err, w->owner, w->host, w->pid, w->fence + g->d->base,
                       (t->in_way_until - dibs__now(g->d->env)) / DIBS__MS);
    dibs__ticket_settle(t, DIBS_BUSY, &err);
}

static void note_in_way(dibs__ticket *t, dibs__deadline sent, const dibs__reply *reply)
{
    t->in_way = reply->in_way;
    t->in_way_until = sent + (reply->in_way.left <= DIBS__MAX_LEASE ? reply->in_way.left : 0);
}

/* A request may be freed once its ticket is settled: never while a worker is inside `enter` with it. */
void dibs__ticket_cancel(dibs__ticket *t)
{
    if (t->by_event && t->grant->state == DIBS__ENTERING)
        t->cancelled = true;
    else
        settle_saying(t, DIBS_CANCELLED, dibs_status_text(DIBS_CANCELLED));
}

void dibs__ticket_time_out(dibs__ticket *t)
{
    dibs_error last;

    if (!t->asked) {
        settle_saying(t, DIBS_UNAVAILABLE, "not asked in time: the engine does not answer");
        return;
    }
    if (t->pause == 0) {
        settle_busy(t, "; not obtained in time");
        return;
    }
    dibs__ticket_error(t, &last);
    dibs__wrap(&last, "'%.200s': not obtained in time", t->grant->name);
    dibs__ticket_settle(t, DIBS_UNAVAILABLE, &last);
}

/* ---- Answers --------------------------------------------------------------------------------- */

/* Not in the queue (any more): enter under a new attempt. A thread does so itself, a worker does for
 * requests. */
static void start_over(dibs__ticket *t)
{
    dibs_grant *g = t->grant;

    dibs__grant_new_attempt(g);
    t->enter_again = true;
    t->unsure = t->handed = false;
    t->retry_at = 0;
    g->state = DIBS__WAITING;
    if (t->by_event) {
        dibs__grant_schedule(g, dibs__now(g->d->env));
        return;
    }
    dibs__heap_remove(&g->d->due, &g->due);
    wake(t);
}

static void try_later(dibs__ticket *t, const dibs_error *err)
{
    dibs_grant *g = t->grant;
    int64_t now = dibs__now(g->d->env);

    dibs__ticket_note(t, err);
    t->pause = dibs__longer(t->pause, FIRST_PAUSE, MAX_PAUSE);
    t->retry_at = now + t->pause;
    if (t->by_event || !t->enter_again)
        dibs__grant_schedule(g, dibs__sooner(t->retry_at, t->by_event ? t->until : DIBS__NEVER));
}

static void granted(dibs__ticket *t, dibs__deadline sent, const dibs__reply *reply)
{
    dibs_grant *g = t->grant;
    dibs__deadline deadline = dibs__deadline_of(sent, reply->remaining, g->lease);
    int64_t now = dibs__now(g->d->env);

    /* The answer may have waited for us longer than the grant lasts: it is no grant then. Asking
     * under a new attempt takes it up again if nobody else has it. */
    if (deadline <= now) {
        start_over(t);
        t->retry_at =
            now + FIRST_PAUSE; /* a lease shorter than the way to the engine must not spin */
        return;
    }
    dibs__grant_hold(g, reply->fence, reply->floor, deadline, true);
    dibs__ticket_settle(t, DIBS_OK, NULL);
}

static void queued(dibs__ticket *t, dibs__deadline sent, const dibs__reply *reply)
{
    dibs_grant *g = t->grant;
    dibs__deadline next = sent + t->window / 3;

    if (!t->queued_once)
        g->d->stats.waiting++;
    t->queued_once = true;
    note_in_way(t, sent, reply);
    t->alive = sent + t->window;
    g->state = DIBS__WAITING;
    if (reply->remaining > 0)
        next = dibs__sooner(next, dibs__now(g->d->env) + reply->remaining + DIBS__MS);
    if (t->doubt)
        next = sent;
    t->doubt = false;
    dibs__grant_schedule(g, dibs__sooner(next, t->by_event ? t->until : DIBS__NEVER));
    if (t->handed)
        dibs__ticket_handed(t, t->handed_fence, t->handed_floor);
}

static void mismatch(dibs__ticket *t, const dibs__reply *reply)
{
    dibs_error err;

    if (reply->capacity == DIBS__PLAIN)
        dibs__fail(&err, DIBS_MISMATCH,
                   "'%.200s' is a plain lock, not a semaphore of %u slots: use another name",
                   t->grant->name, t->grant->capacity);
    else
        dibs__fail(
            &err, DIBS_MISMATCH,
            "'%.200s' is a semaphore of %u slots: use the same number, or break it to change it",
            t->grant->name, reply->capacity);
    dibs__ticket_settle(t, DIBS_MISMATCH, &err);
}

static void verdict(dibs__ticket *t, dibs__deadline sent, const dibs__reply *reply)
{
    switch (reply->verdict) {
    case DIBS__GRANTED:
        granted(t, sent, reply);
        return;
    case DIBS__QUEUED:
        queued(t, sent, reply);
        return;
    case DIBS__BUSY:
        t->maybe_there = false;
        note_in_way(t, sent, reply);
        settle_busy(t, "");
        return;
    case DIBS__MISMATCH:
        t->maybe_there = false;
        mismatch(t, reply);
        return;
    case DIBS__RESUMED: /* `remaining`: handed to us, and wanted back before we heard of it */
        t->maybe_there = reply->remaining > 0;
        settle_saying(t, DIBS_LOST, "the same owner requested it elsewhere");
        return;
    default: /* flushed, or we were silent for too long */
        start_over(t);
    }
}

void dibs__ticket_answer(dibs__ticket *t, dibs__deadline sent, dibs_status status,
                         const dibs__reply *reply, const dibs_error *err)
{
    if (t->cancelled) {
        settle_saying(t, DIBS_CANCELLED, dibs_status_text(DIBS_CANCELLED));
    } else if (status == DIBS_OK) {
        t->pause = 0;
        t->enter_again = false;
        verdict(t, sent, reply);
    } else if (status == DIBS_UNAVAILABLE && t->try_once && reply->remaining > 0) {
        t->maybe_there = t->unsure;
        settle_saying(t, status, err->message); /* asking again within the call is of no use */
    } else if (status == DIBS_UNKNOWN || status == DIBS_UNAVAILABLE) {
        t->unsure |= t->enter_again && status == DIBS_UNKNOWN;
        try_later(t, err);
    } else {
        dibs__ticket_settle(t, status, err);
    }
}

/* The lock was handed to us; how long it lasts, only we know: since the last keep-alive that was
 * answered. If that is nearly over, a renewal comes first. So it does if a request got no answer: it may have
 * put us in the queue, and this may be about that entry, which ended while we asked again under the same
 * attempt. */
void dibs__ticket_handed(dibs__ticket *t, uint64_t fence, uint64_t floor)
{
    dibs_grant *g = t->grant;
    int64_t now = dibs__now(g->d->env);
    dibs__deadline deadline;

    t->handed = true;
    t->handed_fence = fence;
    t->handed_floor = floor;
    if (g->state != DIBS__WAITING || t->enter_again)
        return;
    deadline = dibs__deadline_of(t->alive, 0, t->window);
    if (t->unsure || deadline - now < t->window / 4) {
        dibs__grant_schedule(g, now);
        return;
    }
    dibs__grant_hold(g, fence, floor, deadline, false);
    dibs__ticket_settle(t, DIBS_OK, NULL);
}

/* ---- Entering and waiting -------------------------------------------------------------------- */

static void fill_request(const dibs__ticket *t, dibs__enter_request *r)
{
    const dibs_grant *g = t->grant;

    memset(r, 0, sizeof *r);
    r->name = g->name;
    r->owner_named = g->owner_named;
    r->capacity = g->capacity;
    r->window = t->try_once ? 0 : t->window;
    strncpy(r->who.owner, g->owner, sizeof r->who.owner - 1);
    memcpy(r->who.attempt, g->attempt, sizeof r->who.attempt);
    memcpy(r->who.host, g->d->host, sizeof r->who.host);
    r->who.pid = g->d->pid;
    r->who.weight = g->weight;
    r->who.lease = g->lease;
    r->who.min_hold = g->min_hold;
}

void dibs__ticket_enter(dibs__ticket *t, dibs__deadline latest)
{
    dibs_grant *g = t->grant;
    dibs *d = g->d;
    dibs__enter_request request;
    dibs__reply reply = {0};
    dibs_error err = {0};
    dibs__deadline sent = dibs__now(d->env);
    dibs_status status;

    g->state = DIBS__ENTERING;
    t->asked = true;
    t->maybe_there = true;
    t->enter_again = true;        /* until an answer says otherwise */
    t->handed = t->doubt = false; /* what came before this request is in its answer, or over */
    fill_request(t, &request);
    dibs__grant_ref(g);
    pthread_mutex_unlock(&d->mutex);
    status = d->class->enter(d->engine, &request, dibs__sooner(t->until, latest), &reply, &err);
    pthread_mutex_lock(&d->mutex);
    g->state = DIBS__WAITING;
    if (!t->settled)
        dibs__ticket_answer(t, sent, status, &reply, &err);
    dibs__grant_unref(g);
}

/* With the mutex, which is given away meanwhile. */
static void sleep_until(dibs__ticket *t, dibs__deadline until)
{
    dibs *d = t->grant->d;
    int bell = atomic_load(&t->bell);

    pthread_mutex_unlock(&d->mutex);
    dibs__word_sleep(&t->bell, bell, d->env, until);
    pthread_mutex_lock(&d->mutex);
}

/* ---- Reading the engine's events (reader.h) -------------------------------------------------- */

void dibs__ticket_lead(dibs__driver_call *turn)
{
    ring(DIBS__FROM(dibs__ticket, turn, turn));
}

/* The next leader is woken while the mutex is free, because it needs it at once. The bell is rung before, so that it does
 * not fall asleep meanwhile; it may even be gone by then. */
static void wake_leader(dibs *d, dibs__driver_call *turn)
{
    _Atomic int *bell = &DIBS__FROM(dibs__ticket, turn, turn)->bell;

    atomic_fetch_add(bell, 1);
    pthread_mutex_unlock(&d->mutex);
    dibs__word_wake(bell);
    pthread_mutex_lock(&d->mutex);
}

/* With the mutex, which may be given away meanwhile. */
static void stop_reading(dibs__ticket *t)
{
    dibs *d = t->grant->d;
    bool keeper;
    dibs__driver_call *next = dibs__reader_leave(&d->readers, &t->turn, &keeper);

    if (next)
        wake_leader(d, next);
    else if (keeper)
        dibs__keeper_mind(d);
}

/* It leads: the next events, for everybody, or until it is woken. */
static void read_events(dibs__ticket *t)
{
    dibs *d = t->grant->d;
    dibs__deadline sleep = t->until == DIBS__NEVER
                               ? DIBS__NEVER
                               : dibs__sooner(t->until, dibs__after(d->env, DIBS__SECOND));
    struct pollfd fds[] = {
        {.fd = d->class->event_fd(d->engine), .events = POLLIN},
        {.fd = d->leader_fd, .events = POLLIN},
    };
    eventfd_t ignored;

    d->leader = pthread_self();
    pthread_mutex_unlock(&d->mutex);
    if (poll(fds, 2, dibs__poll_ms(d->env, sleep)) < 0 && errno != EINTR)
        dibs__sleep(d->env, BREATH);
    else if (fds[0].revents)
        d->class->events(d->engine, dibs__request_until(d, t->until));
    if (fds[1].revents)
        eventfd_read(d->leader_fd, &ignored); /* may be meant for an earlier leader */
    pthread_mutex_lock(&d->mutex);
}

/* Who reads is dearer to wake, and wakes the next reader: that pays where its own hand-over is an event. */
static bool may_read(const dibs__ticket *t)
{
    const dibs *d = t->grant->d;
    const dibs__capabilities *can = &d->class->can;

    return can->waiters_read && (!can->wakes_own || d->waits == 1 || t->turn.queued);
}

static void await_turn(dibs__ticket *t)
{
    dibs *d = t->grant->d;

    if (may_read(t) && dibs__reader_lead(&d->readers, &t->turn))
        read_events(t);
    else
        sleep_until(t, t->until);
}

void dibs__ticket_await(dibs__ticket *t)
{
    dibs *d = t->grant->d;

    while (!t->settled) {
        int64_t now = dibs__now(d->env);
        if (now >= t->until) {
            dibs__ticket_time_out(t);
        } else if (t->enter_again && t->turn.queued) {
            stop_reading(t);
        } else if (t->enter_again) {
            if (now >= t->retry_at)
                dibs__ticket_enter(t, dibs__after(d->env, d->request_span));
            else
                sleep_until(t, dibs__sooner(t->until, t->retry_at));
        } else {
            await_turn(t);
        }
    }
    stop_reading(t);
}

/* False: the engine is not open yet, or will not be; the ticket was told. */
static bool await_engine(dibs__ticket *t)
{
    dibs_grant *g = t->grant;
    dibs *d = g->d;
    dibs__reply none = {0};
    dibs_error err = {0};
    dibs_status status;

    if (dibs__is_open(d))
        return true;
    g->state = DIBS__ENTERING; /* ours meanwhile */
    pthread_mutex_unlock(&d->mutex);
    status =
        dibs__usable_until(d, dibs__sooner(t->until, dibs__after(d->env, d->request_span)), &err);
    pthread_mutex_lock(&d->mutex);
    g->state = DIBS__WAITING;
    if (status == DIBS_OK && !t->cancelled) {
        dibs__grant_fit_lease(g);
        t->window = g->lease < t->window ? g->lease : t->window;
        return true;
    }
    dibs__ticket_answer(t, dibs__now(d->env), status, &none, &err);
    return false;
}

static void enter_as_job(dibs *d, dibs__job *j)
{
    dibs__ticket *t = DIBS__FROM(dibs__ticket, job, j);

    if (dibs__now(d->env) >= t->until)
        dibs__ticket_time_out(t);
    else if (await_engine(t))
        dibs__ticket_enter(t, dibs__after(d->env, d->request_span));
}

/* The workers may be busy for longer than its caller waits: the keeper minds the time. */
static void prepare_job(dibs__ticket *t)
{
    dibs_grant *g = t->grant;

    t->job.key = dibs__hash(g->name) | 1;
    t->job.run = enter_as_job;
    if (t->until == DIBS__NEVER)
        dibs__heap_remove(&g->d->due, &g->due);
    else
        dibs__grant_schedule(g, t->until);
}

void dibs__ticket_send(dibs__ticket *t)
{
    prepare_job(t);
    if (!t->job.at)
        dibs__job_add(t->grant->d, &t->job);
}

void dibs__ticket_begin(dibs__ticket *t)
{
    prepare_job(t);
    dibs__job_do(t->grant->d, &t->job);
}
