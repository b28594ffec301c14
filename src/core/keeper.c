/* The keeper: one thread a handle. It renews what is held at a third of its lease, keeps what waits
 * in the queue alive, gives back what its user has left, reads the engine's wake-ups while no waiting thread does, and tells
 * losses.
 *
 * Two heaps say what comes next: `due` (something to ask the engine) and `expiries` (a deadline is
 * over); `renewals` and `ends` say the same for runs of once. Whatever is due at about the same time goes
 * to the engine in one batch, sorted by name; a run is renewed by an exchange of its own. No exchange of
 * the keeper's lasts beyond the next deadline of a holder by much, so that a loss is told in time even
 * when the engine hangs. A lock that is taken during an exchange counts as well, with the shortest lease of
 * the last minute: only the first of a kind may find the keeper away for longer than it can wait.
 *
 * What else takes an exchange of its own is an exchange (giving back what was left) or maintenance
 * (reaping, withdrawing a run). These are done one at a time, and after all renewals that are due:
 * however many there are, a renewal waits for one of each at most, and neither takes so long that too
 * little is left for it. */
#define _GNU_SOURCE
#include "core/handle.h"

#include "core/error.h"
#include "core/stats.h"
#include "core/thread.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define BREATH   (10 * DIBS__MS) /* when the keeper cannot sleep by poll */
#define BATCH    512
#define TOGETHER (20 * DIBS__MS) /* renewals that are due so soon go along */
#define GRACE    (50 * DIBS__MS) /* an exchange gets at least this long, whatever ends meanwhile */
#define AGAIN    (200 * DIBS__MS)
#define OF_LATE  (60 * DIBS__SECOND)
#define LEISURE  (200 * DIBS__MS) /* events that nobody waits for may be read so late */

/* What goes to the engine is a copy: a waiter may be handed its lock, or begin anew, while the exchange is under
 * way. */
typedef struct batch {
    dibs_grant *grant[BATCH];
    dibs__claim claim[BATCH]; /* of the grant at the same place */
    char attempt[BATCH][DIBS__ATTEMPT_SIZE];
    dibs__claim *sorted[BATCH]; /* by name */
    size_t count;
} batch;

/* ---- Losses ---------------------------------------------------------------------------------- */

static void expire(dibs *d, int64_t now)
{
    dibs__due *top;

    while ((top = dibs__heap_top(&d->expiries)) && top->key <= now) {
        dibs_grant *g = DIBS__FROM(dibs_grant, expiry, top);
        dibs__grant_lose(g, g->silent ? DIBS_LOSS_UNREACHABLE : DIBS_LOSS_EXPIRED);
    }
    while ((top = dibs__heap_top(&d->ends)) && top->key <= now) {
        dibs__keeper_task *c = DIBS__FROM(dibs__keeper_task, due, top);
        dibs__heap_remove(&d->ends, top);
        c->run(d, c, now);
    }
}

static void report_losses(dibs *d)
{
    while (dibs__news_run(d))
        continue;
}

/* ---- keep-alives --------------------------------------------------------------------------- */

void dibs__keeper_expect(dibs *d, int64_t lease, int64_t now)
{
    if (lease > d->brief && now < d->brief_until)
        return;
    d->brief = lease;
    d->brief_until = now + OF_LATE;
}

/* The deadline of a lock that is taken as soon as the keeper is away. Its lease is not known; those of the last minute
 * are. */
static dibs__deadline next_comer(const dibs *d, int64_t now)
{
    return now < d->brief_until ? now + d->brief : DIBS__NEVER;
}

static dibs__deadline not_too_soon(dibs__deadline when, int64_t now)
{
    return when > now + GRACE ? when : now + GRACE;
}

/* Nobody's deadline passes unseen. */
dibs__deadline dibs__keeper_renew_until(const dibs *d, int64_t now)
{
    const dibs__heap *heaps[] = {&d->expiries, &d->ends};
    dibs__deadline until =
        dibs__sooner(now + d->request_span, not_too_soon(next_comer(d, now), now));

    for (int i = 0; i < 2; i++) {
        dibs__due *top = dibs__heap_top(heaps[i]);
        if (top)
            until = dibs__sooner(until, not_too_soon(top->key, now));
    }
    return d->closing ? dibs__sooner(until, d->close_until) : until;
}

static bool is_to_be_renewed(dibs__due *expiry)
{
    return DIBS__FROM(dibs_grant, expiry, expiry)->due.index != 0;
}

/* Who has this deadline still has a third of what it has now. */
static dibs__deadline leave_a_third(dibs__deadline until, dibs__deadline deadline, int64_t now)
{
    if (deadline == DIBS__NEVER)
        return until;
    return dibs__sooner(until, not_too_soon(deadline - (deadline - now) / 3, now));
}

static dibs__deadline key_of(const dibs__due *due)
{
    return due ? due->key : DIBS__NEVER;
}

/* With something that is no renewal. It comes back while everybody who is to be renewed has time left for
 * that: who has the next deadline has, and the others have more. All runs are renewed; a grant that is not
 * just ends. */
dibs__deadline dibs__keeper_until(const dibs *d, int64_t now)
{
    dibs__deadline until = dibs__keeper_renew_until(d, now);

    until = leave_a_third(until, key_of(dibs__heap_first(&d->expiries, is_to_be_renewed)), now);
    until = leave_a_third(until, key_of(dibs__heap_top(&d->ends)), now);
    return leave_a_third(until, next_comer(d, now), now);
}

static int by_name(const void *a, const void *b)
{
    const dibs__claim *x = *(dibs__claim *const *)a, *y = *(dibs__claim *const *)b;

    return strcmp(x->name, y->name);
}

static void answer(dibs_grant *g, const dibs__claim *claim, int64_t sent)
{
    dibs_error err = {0};

    if (strcmp(g->attempt, claim->attempt) != 0)
        return; /* about one that is dead: its successor is being seen to */
    if (claim->status != DIBS_OK)
        dibs__fail(&err, claim->status, "%s", dibs_status_text(claim->status));
    if (g->state == DIBS__HELD)
        dibs__grant_answer(g, sent, claim->status, &claim->reply);
    else if (g->state == DIBS__WAITING && g->ticket && !g->ticket->enter_again)
        dibs__ticket_answer(g->ticket, sent, claim->status, &claim->reply, &err);
}

static void send_batch(dibs *d, batch *b, int64_t sent)
{
    dibs__deadline until = dibs__keeper_renew_until(d, sent);

    if (b->count == 0)
        return;
    pthread_mutex_unlock(&d->mutex);
    qsort(b->sorted, b->count, sizeof b->sorted[0], by_name);
    d->class->keep(d->engine, b->sorted, b->count, until);
    pthread_mutex_lock(&d->mutex);
    for (size_t i = 0; i < b->count; i++) {
        answer(b->grant[i], &b->claim[i], sent);
        dibs__grant_unref(b->grant[i]);
    }
    b->count = 0;
}

/* A holder whose lease is its own affair is only looked at: it keeps what it has. */
static int64_t lease_to_ask(const dibs_grant *g, int64_t now)
{
    if (g->state != DIBS__HELD)
        return g->lease;
    if (!g->renew && g->whole)
        return atomic_load(&g->deadline) - now;
    return dibs__grant_lease_left(g, now);
}

static void add_to_batch(dibs *d, batch *b, dibs_grant *g, int64_t now)
{
    dibs__claim *claim = &b->claim[b->count];

    *claim = dibs__grant_claim(g);
    claim->attempt = strcpy(b->attempt[b->count], g->attempt);
    claim->lease = lease_to_ask(g, now);
    if (g->state == DIBS__HELD)
        dibs__histogram_add(&d->stats.late, now - g->due.key);
    dibs__heap_remove(&d->due, &g->due);
    dibs__grant_ref(g);
    b->sorted[b->count] = claim;
    b->grant[b->count++] = g;
}

/* ---- What is due ----------------------------------------------------------------------------- */

/* The user has left it. Asks until the engine has answered or has surely forgotten. */
static void give_back(dibs *d, dibs_grant *g, int64_t now)
{
    dibs__deadline until = dibs__keeper_until(d, now);
    dibs__claim claim = dibs__grant_claim(g);
    dibs__reply reply;
    dibs_status status;

    dibs__grant_ref(g);
    pthread_mutex_unlock(&d->mutex);
    status = g->release_it ? d->class->release(d->engine, &claim, until, &reply, NULL)
                           : d->class->cancel(d->engine, &claim, until, NULL);
    pthread_mutex_lock(&d->mutex);
    if (status == DIBS_OK || now >= g->give_up) {
        dibs__grant_retire(g);
        dibs__grant_unref(g);
    } else {
        dibs__grant_schedule(g, now + AGAIN);
    }
    dibs__grant_unref(g);
}

static void serve(dibs *d, batch *b, dibs_grant *g, int64_t now)
{
    bool waits = g->state == DIBS__WAITING && g->ticket;
    int64_t since = g->due.key;

    if (waits && g->ticket->by_event && now >= g->ticket->until) {
        dibs__ticket_time_out(g->ticket); /* it leaves the heap with that */
    } else if (waits && g->ticket->by_event && g->ticket->enter_again) {
        dibs__ticket_send(g->ticket);
    } else if (g->state == DIBS__ORPHAN) {
        dibs__heap_remove(&d->due, &g->due);
        dibs__heap_put(&d->exchanges, &g->exchange, since);
    } else if (g->state == DIBS__HELD || (waits && !g->ticket->enter_again)) {
        add_to_batch(d, b, g, now);
    } else {
        dibs__heap_remove(&d->due, &g->due); /* its own thread has it in hand */
    }
}

/* Things may have changed since it became one. */
static void run_exchange(dibs *d, int64_t now)
{
    dibs__due *top = dibs__heap_top(&d->exchanges);
    dibs_grant *g = top ? DIBS__FROM(dibs_grant, exchange, top) : NULL;

    if (!g)
        return;
    dibs__heap_remove(&d->exchanges, top);
    if (g->state == DIBS__ORPHAN)
        give_back(d, g, now);
}

/* How much too early its turn may come, so that many go in one exchange. */
static int64_t early(const dibs_grant *g)
{
    if (g->state == DIBS__HELD)
        return TOGETHER;
    return g->state == DIBS__WAITING && g->ticket && !g->ticket->enter_again
               ? g->ticket->window / 12
               : 0;
}

/* Everything due by `now`; what is due soon goes along, but nothing goes twice. */
static void serve_due(dibs *d, batch *b, int64_t now)
{
    dibs__due *top = dibs__heap_top(&d->due);
    bool due = top && top->key <= now;

    while (due && b->count < BATCH) {
        serve(d, b, DIBS__FROM(dibs_grant, due, top), now);
        top = dibs__heap_top(&d->due);
        due = top && top->key <= now + early(DIBS__FROM(dibs_grant, due, top));
    }
    send_batch(d, b, now);
}

/* One at a time: each is an exchange, and a deadline may be over after it. False: none is due. */
static bool serve_next(dibs *d, dibs__heap *heap, int64_t now)
{
    dibs__due *top = dibs__heap_top(heap);
    dibs__keeper_task *c = top ? DIBS__FROM(dibs__keeper_task, due, top) : NULL;

    if (!c || top->key > now)
        return false;
    dibs__heap_remove(heap, top);
    c->run(d, c, dibs__now(d->env));
    return true;
}

/* ---- The thread ------------------------------------------------------------------------------ */

static dibs__deadline next_moment(const dibs *d)
{
    const dibs__heap *heaps[] = {&d->due,      &d->expiries,    &d->exchanges,
                                 &d->renewals, &d->maintenance, &d->ends};
    dibs__deadline next = DIBS__NEVER;

    for (int i = 0; i < 6; i++) {
        dibs__due *top = dibs__heap_top(heaps[i]);
        next = dibs__sooner(next, top ? top->key : DIBS__NEVER);
    }
    return next;
}

/* Only ever earlier: locks come and go much faster than leases run out, and each would otherwise
 * cost a wake-up of this thread. A wake-up for a lock that is gone costs one look for nothing. Whoever has
 * something for later sets the timer by itself, and leaves this thread asleep. */
void dibs__keeper_arm(dibs *d, dibs__deadline when)
{
    struct itimerspec at = {0};

    if (when >= d->armed)
        return;
    at.it_value.tv_sec = when / DIBS__SECOND;
    at.it_value.tv_nsec = when % DIBS__SECOND * 1000;
    timerfd_settime(d->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
    d->armed = when;
}

/* With the mutex, which is given away meanwhile. */
static void read_events(dibs *d)
{
    dibs__deadline until = dibs__keeper_until(d, dibs__now(d->env));
    dibs__driver_call *next;

    if (!dibs__keeper_begins(&d->readers))
        return;
    pthread_mutex_unlock(&d->mutex);
    d->class->events(d->engine, until);
    pthread_mutex_lock(&d->mutex);
    next = dibs__keeper_ends(&d->readers);
    if (next)
        dibs__ticket_lead(next);
}

/* With the mutex, which is given away meanwhile. */
static void sleep_until_something(dibs *d)
{
    struct pollfd fds[] = {
        {.fd = d->wake_fd, .events = POLLIN},
        {.fd = d->timer_fd, .events = POLLIN},
        {.fd = dibs__is_open(d) ? d->class->event_fd(d->engine) : -1, .events = POLLIN},
    };
    uint64_t ignored;

    if (!dibs__keeper_minds(&d->readers))
        fds[2].fd = -1;
    pthread_mutex_unlock(&d->mutex);
    if (poll(fds, 3, -1) > 0) {
        for (int i = 0; i < 2; i++)
            if (fds[i].revents && read(fds[i].fd, &ignored, sizeof ignored) < 0 && errno != EAGAIN)
                dibs__log(d, DIBS_LOG_ERROR, "keeper: %s", strerror(errno));
    } else if (errno != EINTR) {
        dibs__sleep(d->env, BREATH); /* no memory: what is due is served all the same */
    }
    pthread_mutex_lock(&d->mutex);
    if (fds[1].revents)
        d->armed = DIBS__NEVER; /* it has rung */
    if (fds[2].revents)
        read_events(d);
}

static void *keeper_main(void *data)
{
    dibs *d = data;
    batch *b = d->keeper_batch;

    pthread_mutex_lock(&d->mutex);
    while (!d->keeper_stops) {
        int64_t now = dibs__now(d->env);
        expire(d, now);
        report_losses(d);
        serve_due(d, b, now);
        report_losses(d); /* before the next exchange, which may hang */
        if (serve_next(d, &d->renewals, dibs__now(d->env)))
            continue;
        run_exchange(d, dibs__now(d->env));
        report_losses(d);
        serve_next(d, &d->maintenance, now);
        if (next_moment(d) <= dibs__now(d->env) || d->news.first)
            continue;
        dibs__keeper_arm(d, next_moment(d));
        sleep_until_something(d);
    }
    pthread_mutex_unlock(&d->mutex);
    return NULL;
}

bool dibs__keeper_start(dibs *d)
{
    if (d->keeper_runs)
        return true;
    if (!d->keeper_batch)
        d->keeper_batch = calloc(1, sizeof(batch));
    if (!d->keeper_batch)
        return false;
    d->keeper_runs = dibs__thread_start(&d->keeper, keeper_main, d);
    return d->keeper_runs;
}

/* A handle whose threads wait now and then would wake it every time; nobody is in a hurry. */
void dibs__keeper_mind(dibs *d)
{
    if (d->waits > 0)
        dibs__keeper_wake(d);
    else
        dibs__keeper_arm(d, dibs__after(d->env, LEISURE));
}

void dibs__keeper_wake(dibs *d)
{
    eventfd_write(d->wake_fd, 1);
}

void dibs__keeper_stop(dibs *d)
{
    dibs__keeper_wake(d);
    if (d->keeper_runs)
        pthread_join(d->keeper, NULL);
    free(d->keeper_batch);
}
