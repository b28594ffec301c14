/* What the reader of the events does: listens to every node for locks that are kept for this handle, and tries for
 * those that are first in their queues. One descriptor tells it to come: an epoll set of the
 * subscriptions, a timer for what is due, and an eventfd for new connections and new queues. What is
 * published while a subscription is away is lost: the pauses find it. */
#define _GNU_SOURCE
#include "engines/redis/error.h"
#include "engines/redlock/waiters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TOGETHER 32             /* requests that try in one exchange */
#define MOMENT   (2 * DIBS__MS) /* from the first node's word on; they keep it longer: lua/head.lua */
#define AT_ONCE  (DIBS__VOTERS_MAX + 3)

int dibs__redlock_event_fd(dibs__engine *e)
{
    return ((dibs__redlock *)e)->waiters->epoll_fd;
}

/* ---- Subscribing ----------------------------------------------------------------------------- */

/* The connection is the reader's own, once it is in place. */
static dibs__conn *subscription_of(dibs__voter *n, bool *fresh)
{
    dibs__conn *subscription;

    pthread_mutex_lock(&n->all->lock);
    subscription = n->subscription;
    *fresh = n->subscription_new;
    n->subscription_new = false;
    if (!subscription)
        dibs__voter_dial(n, true);
    pthread_mutex_unlock(&n->all->lock);
    return subscription;
}

static void drop_subscription(dibs__redlock *r, dibs__voter *n, dibs__conn *subscription)
{
    dibs__redlock_waiters *l = r->waiters;

    epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, subscription->fd, NULL);
    pthread_mutex_lock(&n->all->lock);
    n->subscription = NULL;
    pthread_mutex_unlock(&n->all->lock);
    dibs__conn_close(subscription);
    pthread_mutex_lock(&l->lock);
    l->heard &= ~((dibs__node_set)1 << n->index);
    pthread_mutex_unlock(&l->lock);
}

/* false: this subscription is of no use. Its socket is new: what does not go out at once never will. */
static bool subscribe(dibs__redlock *r, dibs__conn *subscription)
{
    dibs__bytes bytes = {0};
    size_t sent;
    short wait_for;
    bool ok = dibs__redlock_waiters_watch(r->waiters, subscription->fd);

    dibs__resp_begin(&bytes, 2);
    dibs__resp_text(&bytes, "SUBSCRIBE");
    dibs__resp_text(&bytes, r->v->wake);
    ok = ok && !bytes.failed &&
         dibs__conn_push(subscription, bytes.data, bytes.length, &sent, &wait_for) == DIBS__IO_GOT;
    dibs__bytes_fini(&bytes);
    return ok;
}

/* Those that are not there are dialled, those that are new are told what to listen for. */
static void tend_subscriptions(dibs__redlock *r)
{
    for (size_t i = 0; i < r->v->count; i++) {
        bool fresh;
        dibs__conn *subscription = subscription_of(&r->v->voter[i], &fresh);
        if (subscription && fresh && !subscribe(r, subscription))
            drop_subscription(r, &r->v->voter[i], subscription);
    }
}

/* ---- Hearing --------------------------------------------------------------------------------- */

/* From now on a majority tells us. What was told before is lost: whoever waits looks again soon, and leaves a new
 * hint. */
static void hear_from_now_on(dibs__redlock *r, size_t node)
{
    dibs__redlock_waiters *l = r->waiters;

    pthread_mutex_lock(&l->lock);
    l->heard |= (dibs__node_set)1 << node;
    for (size_t i = 0; (size_t)dibs__nodes_in(l->heard) == r->v->majority && i < l->queues.size;
         i++)
        for (dibs__node *at = l->queues.slot[i]; at; at = at->next) {
            dibs__lock_queue *s = DIBS__FROM(dibs__lock_queue, by_name, at);
            s->pause = 0;
            dibs__lock_queue_pause(r, s, NULL);
            dibs__lock_queue_turn(r, s);
        }
    pthread_mutex_unlock(&l->lock);
}

/* What is kept for this handle where nobody of it waits goes to the next. */
static void decline(dibs__redlock *r, size_t node, const char *name)
{
    dibs__claim nobody = {.owner = r->v->handle, .attempt = ""};
    char word[DIBS__PACK_SIZE], key[DIBS__REDIS_KEY_SIZE];
    size_t length = dibs__give_word(word, &nobody, 0, DIBS__GIVE_AND_NOTIFY);

    dibs__redis_key(r->v->prefix, name, key);
    dibs__voters_owe(r->v, (dibs__node_set)1 << node, key, word, length,
                     dibs__after(r->v->env, r->v->limit));
}

/* With the queue's lock. A try that comes sooner gets the votes of those nodes only that have told us: so a majority is
 * waited for, and for those that are slow or keep it for another a moment at the most. */
static void note_notified(dibs__redlock *r, dibs__lock_queue *s, size_t node, uint64_t fence,
                          int64_t left)
{
    dibs__node_set bit = (dibs__node_set)1 << node;
    bool more = fence == s->notified_of && !(s->notified & bit); /* of the same release */
    bool enough;

    s->notified_of = fence;
    s->notified = (more ? s->notified : 0) | bit;
    enough = (size_t)dibs__nodes_in(s->notified) == r->v->majority;
    if (more && !enough)
        return;
    s->pause = 0;
    s->again |= s->trying;
    s->try_at = dibs__sooner(s->try_at, dibs__after(r->v->env, enough ? left : left + MOMENT));
    if (!s->trying)
        dibs__heap_put(&r->waiters->due, &s->due, s->try_at); /* looked after when all is heard */
}

/* With the queue's lock. A call is about to wait for it, and will look at once. */
static bool note_entering(dibs__redlock *r, const char *name)
{
    bool notified = false;

    for (dibs__entering *e = r->waiters->entering; e; e = e->next)
        if (strcmp(e->name, name) == 0)
            notified = e->notified = true;
    return notified;
}

/* "message", channel, "FENCE LEFT KEY". */
static void hear(dibs__redlock *r, size_t node, const redisReply *reply)
{
    char key[DIBS__REDIS_KEY_SIZE], *name;
    dibs__lock_queue *s;
    double fence, left;
    bool useless;
    int used = 0;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 || !reply->element[0]->str)
        return;
    if (strcmp(reply->element[0]->str, "subscribe") == 0)
        hear_from_now_on(r, node);
    if (strcmp(reply->element[0]->str, "message") != 0 || !reply->element[2]->str ||
        sscanf(reply->element[2]->str, "%lf %lf %n", &fence, &left, &used) != 2 || used == 0 ||
        !(fence >= 0 && fence < 1e18 && left >= 0 && left <= (double)r->v->longest))
        return;
    snprintf(key, sizeof key, "%s", reply->element[2]->str + used);
    name = dibs__redis_name(r->v->prefix, key);
    if (!name)
        return;
    pthread_mutex_lock(&r->waiters->lock);
    s = dibs__lock_queue_find(r->waiters, name);
    useless = !s || (!s->first && (uint64_t)fence > s->served);
    if (s && s->first && (uint64_t)fence > s->served)
        note_notified(r, s, node, (uint64_t)fence, (int64_t)left);
    else if (useless)
        useless = !note_entering(r, name);
    pthread_mutex_unlock(&r->waiters->lock);
    if (useless)
        decline(r, node, name);
}

/* If this is its descriptor. */
static void listen_to(dibs__redlock *r, dibs__voter *n, int fd)
{
    redisReply *reply = NULL;
    dibs__conn *subscription;
    short wait_for;
    dibs__io io;

    pthread_mutex_lock(&n->all->lock);
    subscription = n->subscription;
    pthread_mutex_unlock(&n->all->lock);
    if (!subscription || subscription->fd != fd)
        return;
    io = dibs__conn_pull(subscription, &wait_for);
    while ((io == DIBS__IO_GOT || io == DIBS__IO_LATE) &&
           (io = dibs__conn_next(subscription, &reply)) == DIBS__IO_GOT) {
        hear(r, n->index, reply);
        freeReplyObject(reply);
    }
    if (io != DIBS__IO_LATE)
        drop_subscription(r, n, subscription);
}

/* ---- What nobody waits for any more; with the queue's lock ----------------------------------- */

static void forget_queue(dibs__redlock *r, dibs__lock_queue *s)
{
    dibs__heap_remove(&r->waiters->due, &s->due);
    dibs__table_remove(&r->waiters->queues, &s->by_name);
    free(s);
}

/* Grants whose lease is over and that nobody asked for. */
static void forget_served(dibs__redlock *r)
{
    int64_t now = dibs__now(r->v->env);

    for (dibs__waiting **at = &r->waiters->served, *w; (w = *at);) {
        if (w->over > now) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        dibs__table_remove(&r->waiters->attempts, &w->by_attempt);
        free(w);
    }
}

/* ---- Waiters that try ------------------------------------------------------------------------ */

typedef struct crowd {
    dibs__try *room; /* TOGETHER of them */
    dibs__try *try[TOGETHER];
    dibs__waiting *of[TOGETHER];
    size_t count;
} crowd;

/* With the queue's lock: those whose time has come. */
static void gather(dibs__redlock *r, crowd *c)
{
    dibs__redlock_waiters *l = r->waiters;
    dibs__due *top;
    int64_t now = dibs__now(r->v->env);

    while ((top = dibs__heap_top(&l->due)) && top->key <= now && c->count < TOGETHER) {
        dibs__lock_queue *s = DIBS__FROM(dibs__lock_queue, due, top);
        if (!s->first) {
            forget_queue(r, s);
            continue;
        }
        if (!c->room && !(c->room = malloc(TOGETHER * sizeof *c->room)))
            return; /* at the next turn */
        c->try[c->count] = &c->room[c->count];
        c->of[c->count] = dibs__lock_queue_begin(r, s, c->try[c->count]);
        c->count++;
    }
}

static void serve_due(dibs__redlock *r, dibs__deadline until)
{
    dibs__redlock_waiters *l = r->waiters;
    crowd c = {0};

    pthread_mutex_lock(&l->lock);
    forget_served(r);
    gather(r, &c);
    pthread_mutex_unlock(&l->lock);
    if (c.count > 0)
        dibs__try_all(r, c.try, c.count, dibs__sooner(until, dibs__after(r->v->env, r->v->limit)));
    for (size_t k = 0; k < c.count; k++)
        dibs__redlock_waiters_tried(r, c.of[k], c.try[k]);
    pthread_mutex_lock(&l->lock);
    dibs__redlock_waiters_arm(l);
    pthread_mutex_unlock(&l->lock);
    free(c.room);
}

static void note_event(dibs__redlock *r, int fd)
{
    uint64_t ignored;

    if (fd == r->waiters->timer_fd || fd == r->v->subscription_fd) {
        if (read(fd, &ignored, sizeof ignored) > 0 && fd == r->waiters->timer_fd) {
            pthread_mutex_lock(&r->waiters->lock);
            r->waiters->armed = DIBS__NEVER;
            pthread_mutex_unlock(&r->waiters->lock);
        }
        tend_subscriptions(r);
        return;
    }
    if (fd == r->v->tend_fd) {
        if (read(fd, &ignored, sizeof ignored) > 0)
            dibs__voters_tend(r->v);
        return;
    }
    for (size_t i = 0; i < r->v->count; i++)
        listen_to(r, &r->v->voter[i], fd);
}

void dibs__redlock_events(dibs__engine *e, dibs__deadline until)
{
    dibs__redlock *r = (dibs__redlock *)e;
    struct epoll_event ready[AT_ONCE];
    int n = epoll_wait(r->waiters->epoll_fd, ready, AT_ONCE, 0);

    for (int i = 0; i < n; i++)
        note_event(r, ready[i].data.fd);
    serve_due(r, until);
}
