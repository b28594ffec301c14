/* What the reader of the events does: listens on every node for locks that have become free, and tries for those
 * that are first in their lines. One descriptor tells it to come: an epoll set of the
 * subscriptions, a timer for what is due, and an eventfd for new connections and new names. What is
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

#define TOGETHER   32             /* requests that try in one exchange */
#define APART      ((int64_t)100) /* microseconds between those who try after one word, a head */
#define APART_MOST (5 * DIBS__MS) /* within the moment that is theirs: lua/vote.lua */

int dibs__redlock_event_fd(dibs__engine *e)
{
    return ((dibs__redlock *)e)->waiters->epoll_fd;
}

/* ---- Subscribing ----------------------------------------------------------------------------- */

static void write_channel(const dibs__voters *v, const char *name, dibs__bytes *out)
{
    char channel[DIBS__REDIS_KEY_SIZE + 8];

    dibs__redis_key(v->prefix, name, channel);
    strcat(channel, ":free");
    dibs__resp_text(out, channel);
}

static void say(const dibs__voters *v, const char *word, const char *name, dibs__bytes *out)
{
    dibs__resp_begin(out, 2);
    dibs__resp_text(out, word);
    write_channel(v, name, out);
}

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
    dibs__node_set bit = (dibs__node_set)1 << n->index;
    dibs__redlock_waiters *l = r->waiters;

    epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, subscription->fd, NULL);
    pthread_mutex_lock(&n->all->lock);
    n->subscription = NULL;
    pthread_mutex_unlock(&n->all->lock);
    dibs__conn_close(subscription);
    pthread_mutex_lock(&l->lock);
    for (size_t i = 0; i < l->queues.size; i++)
        for (dibs__node *at = l->queues.slot[i]; at; at = at->next)
            DIBS__FROM(dibs__lock_queue, by_name, at)->heard &= ~bit;
    pthread_mutex_unlock(&l->lock);
}

/* Names that this node is not listened to for yet. */
static void write_missing(dibs__redlock *r, const dibs__voter *n, dibs__bytes *out)
{
    dibs__node_set bit = (dibs__node_set)1 << n->index;
    dibs__redlock_waiters *l = r->waiters;

    pthread_mutex_lock(&l->lock);
    for (size_t i = 0; i < l->queues.size; i++)
        for (dibs__node *at = l->queues.slot[i]; at; at = at->next) {
            dibs__lock_queue *s = DIBS__FROM(dibs__lock_queue, by_name, at);
            if (s->heard & bit)
                continue;
            say(r->v, "SUBSCRIBE", s->name, out);
            s->heard |= bit;
        }
    pthread_mutex_unlock(&l->lock);
}

static void send_words(dibs__redlock *r, dibs__voter *n, dibs__conn *subscription,
                       const dibs__bytes *bytes)
{
    size_t sent;
    short wait_for;

    if (bytes->length == 0 && !bytes->failed)
        return;
    /* A subscription whose socket is full is beyond help. */
    if (bytes->failed ||
        dibs__conn_push(subscription, bytes->data, bytes->length, &sent, &wait_for) != DIBS__IO_GOT)
        drop_subscription(r, n, subscription);
}

/* ---- Hearing --------------------------------------------------------------------------------- */

/* All who wait hear it at once: the more they are, the more they keep apart. The same release is
 * told by several nodes; the first word counts. */
static void hint(dibs__redlock *r, const char *name, const char *whose, int64_t listeners)
{
    dibs__redlock_waiters *l = r->waiters;
    int64_t apart = listeners < APART_MOST / APART ? listeners * APART : APART_MOST;
    dibs__deadline at = dibs__after(r->v->env, dibs__redlock_random(r, apart));
    dibs__lock_queue *s;

    pthread_mutex_lock(&l->lock);
    s = dibs__lock_queue_find(l, name);
    if (s && s->first && !s->hinted && strcmp(s->whose, whose) != 0) {
        snprintf(s->whose, sizeof s->whose, "%s", whose);
        s->hinted = true;
        s->pause = 0;
        s->try_at = at > s->not_before ? at : s->not_before;
        dibs__lock_queue_turn(r, s);
    }
    pthread_mutex_unlock(&l->lock);
}

/* "message", channel, "listeners attempt". */
static void hear(dibs__redlock *r, const redisReply *reply)
{
    char channel[DIBS__REDIS_KEY_SIZE + 8], whose[DIBS__ATTEMPT_SIZE], *name;
    long long listeners = 0;
    size_t n;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 || !reply->element[0]->str ||
        strcmp(reply->element[0]->str, "message") != 0 || !reply->element[1]->str ||
        !reply->element[2]->str ||
        sscanf(reply->element[2]->str, "%lld %39s", &listeners, whose) != 2)
        return;
    snprintf(channel, sizeof channel, "%s", reply->element[1]->str);
    n = strlen(channel);
    if (n < 5 || strcmp(channel + n - 5, ":free") != 0)
        return;
    channel[n - 5] = '\0';
    name = dibs__redis_name(r->v->prefix, channel);
    if (name)
        hint(r, name, whose, listeners);
}

static void listen_to(dibs__redlock *r, dibs__voter *n, dibs__conn *subscription)
{
    redisReply *reply = NULL;
    short wait_for;
    dibs__io io = dibs__conn_pull(subscription, &wait_for);

    while ((io == DIBS__IO_GOT || io == DIBS__IO_LATE) &&
           (io = dibs__conn_next(subscription, &reply)) == DIBS__IO_GOT) {
        hear(r, reply);
        freeReplyObject(reply);
    }
    if (io != DIBS__IO_LATE)
        drop_subscription(r, n, subscription);
}

static void tend_ears(dibs__redlock *r)
{
    for (size_t i = 0; dibs__ears(r->v) >> i; i++) {
        dibs__voter *n = &r->v->voter[i];
        dibs__bytes words = {0};
        bool fresh;
        dibs__conn *subscription = subscription_of(n, &fresh);
        if (!subscription)
            continue;
        if (fresh && !dibs__redlock_waiters_watch(r->waiters, subscription->fd)) {
            drop_subscription(r, n, subscription);
            continue;
        }
        write_missing(r, n, &words);
        send_words(r, n, subscription, &words);
        dibs__bytes_fini(&words);
        subscription = subscription_of(n, &fresh);
        if (subscription)
            listen_to(r, n, subscription);
    }
}

/* ---- Names that nobody waits for any more ---------------------------------------------------- */

/* With the queue's lock. */
static void forget_queue(dibs__redlock *r, dibs__lock_queue *s, dibs__bytes *words)
{
    dibs__heap_remove(&r->waiters->due, &s->due);
    dibs__table_remove(&r->waiters->queues, &s->by_name);
    say(r->v, "UNSUBSCRIBE", s->name, words);
    free(s);
}

static void unsubscribe(dibs__redlock *r, const dibs__bytes *words)
{
    for (size_t i = 0; words->length > 0 && dibs__ears(r->v) >> i; i++) {
        bool fresh;
        dibs__conn *subscription = subscription_of(&r->v->voter[i], &fresh);
        if (subscription && fresh && !dibs__redlock_waiters_watch(r->waiters, subscription->fd))
            drop_subscription(r, &r->v->voter[i], subscription);
        else if (subscription)
            send_words(r, &r->v->voter[i], subscription, words);
    }
}

/* With the queue's lock: grants whose lease is over and that nobody asked for. */
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

/* ---- Tickets that try ------------------------------------------------------------------------ */

typedef struct crowd {
    dibs__try *room; /* TOGETHER of them */
    dibs__try *try[2][TOGETHER];
    dibs__waiting *of[2][TOGETHER];
    size_t count[2]; /* [1]: gently */
} crowd;

/* With the queue's lock: those whose time has come. */
static void gather(dibs__redlock *r, crowd *c, dibs__bytes *words)
{
    dibs__redlock_waiters *l = r->waiters;
    dibs__due *top;
    int64_t now = dibs__now(r->v->env);

    c->count[0] = c->count[1] = 0;
    while ((top = dibs__heap_top(&l->due)) && top->key <= now) {
        dibs__lock_queue *s = DIBS__FROM(dibs__lock_queue, due, top);
        bool gently = s->hinted;
        size_t n = c->count[0] + c->count[1];
        if (!s->first) {
            forget_queue(r, s, words);
            continue;
        }
        if (n == TOGETHER)
            return;
        dibs__try *t = &c->room[n];
        size_t k = c->count[gently]++;
        c->of[gently][k] = dibs__lock_queue_begin(r, s, t);
        c->try[gently][k] = t;
    }
}

static void try_crowd(dibs__redlock *r, crowd *c, bool gently, dibs__deadline until)
{
    if (c->count[gently] == 0)
        return;
    dibs__try_all(r, c->try[gently], c->count[gently], gently,
                  dibs__sooner(until, dibs__after(r->v->env, r->v->limit)));
    for (size_t k = 0; k < c->count[gently]; k++)
        dibs__redlock_waiters_tried(r, c->of[gently][k], c->try[gently][k]);
}

static void serve_due(dibs__redlock *r, dibs__deadline until)
{
    dibs__redlock_waiters *l = r->waiters;
    crowd c = {.room = malloc(TOGETHER * sizeof(dibs__try))};
    dibs__bytes words = {0};

    if (!c.room)
        return; /* at the next turn */
    pthread_mutex_lock(&l->lock);
    l->armed = DIBS__NEVER;
    forget_served(r);
    gather(r, &c, &words);
    pthread_mutex_unlock(&l->lock);
    unsubscribe(r, &words);
    dibs__bytes_fini(&words);
    try_crowd(r, &c, true, until);
    try_crowd(r, &c, false, until);
    pthread_mutex_lock(&l->lock);
    l->armed = DIBS__NEVER;
    dibs__redlock_waiters_arm(l);
    pthread_mutex_unlock(&l->lock);
    free(c.room);
}

void dibs__redlock_events(dibs__engine *e, dibs__deadline until)
{
    dibs__redlock *r = (dibs__redlock *)e;
    uint64_t ignored;

    if (read(r->waiters->timer_fd, &ignored, sizeof ignored) < 0)
        ignored = 0;
    if (read(r->v->subscription_fd, &ignored, sizeof ignored) < 0)
        ignored = 0;
    if (read(r->v->tend_fd, &ignored, sizeof ignored) > 0)
        dibs__voters_tend(r->v);
    tend_ears(r);
    serve_due(r, until);
}
