/* The commands of the engine's table, each one exchange with all nodes. What a majority says counts;
 * what a node did not hear is told to it when it is back. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/redis/error.h"
#include "engines/redlock/redlock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PATIENCE   4   /* limits that a renewal or a release waits for nodes that do not answer */
#define KEEP_MAX   128 /* in one exchange */
#define COLLIDE    6   /* tries of a lock that nobody has and several want */
#define COLLISION  (3 * DIBS__MS)
#define LAST_ROUND 9007199254740992.0 /* 2^53: above all of them */

static dibs__redlock *of(dibs__engine *e)
{
    return (dibs__redlock *)e;
}

int64_t dibs__redlock_random(const dibs__redlock *r, int64_t below)
{
    uint64_t n;

    r->base.env->random(r->base.env->ctx, &n, sizeof n);
    return below > 0 ? (int64_t)(n % (uint64_t)below) : 0;
}

static dibs__deadline with_patience(const dibs__voters *v, dibs__deadline until)
{
    return dibs__sooner(until, dibs__after(v->env, PATIENCE * v->limit));
}

/* ---- Giving back ----------------------------------------------------------------------------- */

/* A vote that was adopted has a round of the client that asked for it. All rounds of its attempt go back: who
 * has a grant does not ask again. */
size_t dibs__give_word(char out[DIBS__PACK_SIZE], const dibs__claim *claim, uint64_t round,
                       dibs__give_how how)
{
    dibs__pack p = dibs__pack_begin(out);

    dibs__pack_number(&p, (double)claim->fence);
    dibs__pack_number(&p, claim->adopted ? LAST_ROUND : (double)round);
    dibs__pack_number(&p, how);
    dibs__pack_text(&p, claim->owner);
    dibs__pack_text(&p, claim->attempt);
    return dibs__pack_length(&p);
}

/* It was ours if a majority had it, or can have had it: nodes that do not answer are not held
 * against us, because nobody else gets the lock before our lease is over. Unless it was broken: then the nodes that are
 * silent may be those that make a majority which has heard of the break. A majority must have heard of the release. */
dibs_status dibs__give_verdict(const dibs__voters *v, dibs__node_set gave, dibs__node_set gave_not,
                               dibs__verdict why_not, dibs__reply *out)
{
    size_t yes = (size_t)dibs__nodes_in(gave), no = (size_t)dibs__nodes_in(gave_not);
    bool broken = why_not == DIBS__BROKEN && yes < v->majority;

    memset(out, 0, sizeof *out);
    if (yes + no < v->majority)
        return DIBS_UNKNOWN;
    out->verdict = no > v->count - v->majority || broken ? why_not : DIBS__RELEASED;
    return DIBS_OK;
}

typedef struct giving {
    dibs__node_set gave, gave_not;
    dibs__verdict why_not;
} giving;

static void count_given(const dibs__ask *a, giving *g)
{
    *g = (giving){0};
    for (size_t i = 0; i < a->v->count; i++) {
        const redisReply *reply = a->answered >> i & 1 ? dibs__ask_reply(a, i, 0) : NULL;
        dibs__node_set bit = (dibs__node_set)1 << i;
        if (!reply || reply->type != REDIS_REPLY_INTEGER)
            continue;
        if (reply->integer == DIBS__RELEASED) {
            g->gave |= bit;
        } else {
            g->gave_not |= bit;
            if (g->why_not == 0 || g->why_not == DIBS__LOST)
                g->why_not = dibs__redlock_reason(reply->integer);
        }
    }
}

static bool given_enough(const dibs__ask *a)
{
    giving g;

    count_given(a, &g);
    return (size_t)dibs__nodes_in(g.gave) >= a->v->majority ||
           (size_t)dibs__nodes_in(g.gave_not) > a->v->count - a->v->majority;
}

/* Tells all nodes; those that do not answer are told again when they are back. */
static dibs_status give_all(dibs__redlock *r, const dibs__claim *claim, dibs__give_how how,
                            dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    dibs__voters *v = r->v;
    char word[DIBS__PACK_SIZE], key[DIBS__REDIS_KEY_SIZE];
    size_t length = dibs__give_word(word, claim, atomic_load(&v->rounds), how);
    dibs__query q = {.script = DIBS__RED_RELEASE, .key = key, .word = {{word, length}}, .words = 1};
    dibs__deadline over = dibs__after(v->env, v->longest);
    dibs__owed_release *owed;
    dibs__ask a = {
        .v = v, .query = &q, .count = 1, .to = dibs__all_nodes(v), .enough = given_enough};
    giving g;
    dibs_status status;

    dibs__redis_key(v->prefix, claim->name, key);
    a.owed = owed = dibs__owed_release_new(key, word, length, over);
    status = dibs__ask_run(&a, with_patience(v, until), err);
    free(owed);
    if (status != DIBS_OK)
        return status;
    count_given(&a, &g);
    dibs__voters_owe(v, (dibs__all_nodes(v) & ~a.asked) | a.failed, key, word, length, over);
    status = dibs__give_verdict(v, g.gave, g.gave_not, g.why_not, out);
    if (status != DIBS_OK && !a.asked)
        status = DIBS_UNAVAILABLE;
    if (status != DIBS_OK) {
        pthread_mutex_lock(&v->lock);
        dibs__voters_missing(v, err);
        pthread_mutex_unlock(&v->lock);
    }
    dibs__ask_fini(&a);
    return status;
}

/* Who waits in this handle gets it in the same step. */
dibs_status dibs__redlock_release(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                                  dibs__reply *out, dibs_error *err)
{
    dibs__redlock *r = of(e);
    dibs__try t, *tries[] = {&t};
    dibs__waiting *next;

    memset(out, 0, sizeof *out);
    dibs__redlock_waiters_leave(r, claim->attempt);
    next = dibs__redlock_waiters_next(r, claim->name, &t);
    if (!next)
        return give_all(r, claim, DIBS__GIVE_AFTER_MIN_HOLD, until, out, err);
    t.after = claim;
    dibs__try_all(r, tries, 1, until);
    dibs__redlock_waiters_tried(r, next, &t);
    out->verdict = t.after_verdict;
    return t.after_status == DIBS_OK
               ? DIBS_OK
               : dibs__fail(err, t.after_status, "redlock: too few nodes confirmed it");
}

/* A try that failed has given back all by itself; what is left to give is a lock that came while its
 * owner was leaving. */
dibs_status dibs__redlock_cancel(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                                 dibs_error *err)
{
    dibs__redlock *r = of(e);
    dibs__reply reply;

    return dibs__redlock_waiters_leave(r, claim->attempt) == DIBS__IS_WAITING
               ? DIBS_OK
               : give_all(r, claim, DIBS__GIVE_AND_NOTIFY, until, &reply, err);
}

/* ---- Enter ----------------------------------------------------------------------------------- */

static dibs_status check(const dibs__voters *v, const dibs__enter_request *request, dibs_error *err)
{
    if (request->who.lease > v->max_lease || request->who.min_hold > v->max_lease)
        return dibs__fail(err, DIBS_INVALID,
                          "redlock: a lease of %.3f s is longer than these nodes wait after a "
                          "restart, %.3f s: raise max_lease= in the URL (milliseconds)",
                          (double)request->who.lease / 1e6, (double)v->max_lease / 1e6);
    return DIBS_OK;
}

static void nap(const dibs__redlock *r, int64_t span)
{
    dibs__sleep(r->base.env, dibs__redlock_random(r, span));
}

/* A lock that nobody has and several want at once can end with votes here and there: again, soon. */
static void try_it(dibs__redlock *r, dibs__try *t, bool once, dibs__deadline until)
{
    dibs__try *tries[] = {t};

    for (int i = 1;; i++) {
        dibs__try_all(r, tries, 1, until);
        if (t->status != DIBS_OK || t->reply.verdict == DIBS__GRANTED || t->held || !once ||
            i == COLLIDE)
            return;
        nap(r, i * COLLISION);
    }
}

/* Asks the nodes, unless others of this handle wait already. true: it must wait. */
static bool must_wait(dibs__redlock *r, const dibs__enter_request *request, dibs__try *t,
                      dibs__deadline until)
{
    *t = (dibs__try){.name = request->name,
                     .who = &request->who,
                     .lease = request->who.lease,
                     .waits = request->window > 0};
    if (t->waits && dibs__redlock_waiters_is_long(r, request->name))
        return true;
    try_it(r, t, !t->waits, until);
    return t->waits && t->status == DIBS_OK && t->reply.verdict != DIBS__GRANTED;
}

dibs_status dibs__redlock_enter(dibs__engine *e, const dibs__enter_request *request,
                                dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    dibs__redlock *r = of(e);
    dibs__entering entering;
    dibs__try t;
    dibs_status status = check(r->v, request, err);
    bool waits, joined;

    memset(out, 0, sizeof *out);
    if (status != DIBS_OK)
        return status;
    dibs__redlock_waiters_begin(r, &entering, request->name);
    waits = must_wait(r, request, &t, until);
    joined = waits && dibs__redlock_waiters_join(r, request, &t, &entering);
    dibs__redlock_waiters_end(r, &entering);
    *out = joined ? (dibs__reply){.verdict = DIBS__QUEUED} : t.reply;
    if (waits)
        return joined ? DIBS_OK : dibs__fail(err, DIBS_NO_MEMORY, "redlock: out of memory");
    return t.status == DIBS_OK ? DIBS_OK : dibs__fail_as(err, t.status, &t.err);
}

/* ---- Keep ------------------------------------------------------------------------------------ */

/* How the nodes answered about one claim. */
typedef struct count {
    size_t kept, lost;
    dibs__verdict why;
    int64_t left;
} count;

static void count_kept(const dibs__ask *a, size_t k, count *c)
{
    *c = (count){.why = DIBS__LOST};
    for (size_t i = 0; i < a->v->count; i++) {
        const redisReply *reply = a->answered >> i & 1 ? dibs__ask_reply(a, i, k) : NULL;
        if (!reply || reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
            reply->element[0]->type != REDIS_REPLY_INTEGER ||
            reply->element[1]->type != REDIS_REPLY_INTEGER)
            continue;
        if (reply->element[0]->integer == DIBS__GRANTED) {
            c->kept++;
            continue;
        }
        c->lost++;
        if (c->why == DIBS__LOST)
            c->why = dibs__redlock_reason(reply->element[0]->integer);
        if (reply->element[1]->integer > c->left)
            c->left = reply->element[1]->integer;
    }
}

static bool kept_enough(const dibs__ask *a)
{
    for (size_t k = 0; k < a->count; k++) {
        count c;
        count_kept(a, k, &c);
        if (c.kept < a->v->majority && c.lost <= a->v->count - a->v->majority)
            return false;
    }
    return true;
}

/* Renewed by a majority: ours for another lease. So many say no that a majority cannot be had: it is
 * not ours any more, since another may have it now. Else nobody knows, and it is asked again. */
static void settle(const dibs__ask *a, size_t k, dibs__claim *claim, uint64_t fence)
{
    const dibs__voters *v = a->v;
    count c;

    count_kept(a, k, &c);
    memset(&claim->reply, 0, sizeof claim->reply);
    claim->status = DIBS_OK;
    if (c.kept >= v->majority)
        claim->reply = (dibs__reply){
            .verdict = DIBS__GRANTED, .fence = fence, .floor = fence, .remaining = claim->lease};
    else if (c.lost > v->count - v->majority)
        claim->reply = (dibs__reply){.verdict = c.why, .remaining = c.left};
    else
        claim->status = a->asked ? DIBS_UNKNOWN : DIBS_UNAVAILABLE;
}

typedef struct renewal {
    dibs__claim *claim;
    uint64_t fence;
    char word[DIBS__PACK_SIZE];
    char key[DIBS__REDIS_KEY_SIZE];
} renewal;

static void write_renewal(const dibs__voters *v, renewal *n, dibs__query *q)
{
    dibs__pack p = dibs__pack_begin(n->word);

    dibs__redis_key(v->prefix, n->claim->name, n->key);
    dibs__pack_number(&p, (double)n->fence);
    dibs__pack_number(&p, (double)n->claim->lease);
    dibs__pack_text(&p, n->claim->owner);
    dibs__pack_text(&p, n->claim->attempt);
    *q = (dibs__query){.script = DIBS__RED_KEEP,
                       .key = n->key,
                       .word = {{n->word, dibs__pack_length(&p)}},
                       .words = 1};
}

static void renew(dibs__redlock *r, renewal *list, size_t n, dibs__deadline until)
{
    dibs__query *q = calloc(n, sizeof *q);
    dibs__ask a = {
        .v = r->v, .query = q, .count = n, .to = dibs__all_nodes(r->v), .enough = kept_enough};
    dibs_status status = q ? DIBS_OK : DIBS_NO_MEMORY;

    for (size_t k = 0; q && k < n; k++)
        write_renewal(r->v, &list[k], &q[k]);
    if (status == DIBS_OK)
        status = dibs__ask_run(&a, with_patience(r->v, until), NULL);
    for (size_t k = 0; k < n; k++) {
        if (status == DIBS_OK)
            settle(&a, k, list[k].claim, list[k].fence);
        else
            list[k].claim->status = status;
    }
    if (status == DIBS_OK)
        dibs__ask_fini(&a);
    free(q);
}

/* Whoever waits is in the queue as long as this handle lives: the nodes know nothing of it. */
static bool needs_renewal(dibs__redlock *r, dibs__claim *claim, uint64_t *fence)
{
    *fence = claim->fence;
    memset(&claim->reply, 0, sizeof claim->reply);
    claim->status = DIBS_OK;
    if (claim->fence) {
        dibs__redlock_waiters_leave(r, claim->attempt); /* it knows */
        return true;
    }
    switch (dibs__redlock_waiters_look(r, claim->attempt, fence)) {
    case DIBS__REDLOCK_WAITERS_SERVED:
        return true;
    case DIBS__IS_WAITING:
        claim->reply.verdict = DIBS__QUEUED;
        return false;
    case DIBS__REDLOCK_WAITERS_DOWN:
        claim->status = DIBS_UNAVAILABLE;
        return false;
    case DIBS__NOT_WAITING:
        break;
    }
    claim->reply.verdict = DIBS__LOST;
    return false;
}

void dibs__redlock_keep(dibs__engine *e, dibs__claim *const claims[], size_t count_all,
                        dibs__deadline until)
{
    dibs__redlock *r = of(e);
    renewal *list = malloc(sizeof *list * (count_all < KEEP_MAX ? count_all : KEEP_MAX));
    size_t n = 0;

    for (size_t i = 0; i < count_all; i++) {
        uint64_t fence;
        if (!list) {
            claims[i]->status = DIBS_NO_MEMORY;
            continue;
        }
        if (needs_renewal(r, claims[i], &fence)) {
            list[n].claim = claims[i];
            list[n++].fence = fence;
        }
        if (n == KEEP_MAX || (n > 0 && i + 1 == count_all)) {
            renew(r, list, n, until);
            n = 0;
        }
    }
    free(list);
}

/* ---- Break ----------------------------------------------------------------------------------- */

typedef struct breaking {
    dibs__voters *v;
    const char *name, *by;
    bool at_once;
    dibs__node_set heard, without; /* nodes; `without` a record of this lock */
    size_t busy, released;
    uint64_t fence; /* the highest */
} breaking;

static void count_broken(const dibs__ask *a, breaking *b)
{
    for (size_t i = 0; i < a->v->count; i++) {
        const redisReply *reply = a->answered >> i & 1 ? dibs__ask_reply(a, i, 0) : NULL;
        dibs__node_set bit = (dibs__node_set)1 << i;
        if (!reply || reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
            reply->element[0]->integer == DIBS__REDLOCK_STALE)
            continue;
        b->heard |= bit;
        b->without |= reply->element[1]->integer == 0 ? bit : 0;
        b->busy += reply->element[0]->integer == DIBS__BUSY;
        b->released += reply->element[0]->integer == DIBS__RELEASED;
        if ((uint64_t)reply->element[1]->integer > b->fence)
            b->fence = (uint64_t)reply->element[1]->integer;
    }
}

static dibs_status send_break(breaking *b, dibs__node_set to, uint64_t proposal, bool known,
                              dibs__deadline until, dibs_error *err)
{
    dibs__voters *v = b->v;
    char word[DIBS__PACK_SIZE], key[DIBS__REDIS_KEY_SIZE], who[DIBS__BY_SIZE];
    dibs__pack p = dibs__pack_begin(word);
    dibs__query q = {.script = DIBS__RED_BREAK, .key = key, .words = 2};
    dibs__ask a = {.v = v, .query = &q, .count = 1, .to = to};
    dibs_status status;

    snprintf(who, sizeof who, "%s", b->by);
    dibs__redis_key(v->prefix, b->name, key);
    dibs__pack_number(&p, (double)proposal);
    dibs__pack_number(&p, b->at_once);
    dibs__pack_number(&p, known);
    q.dials = dibs__pack_later(&p);
    dibs__pack_text(&p, who);
    q.word[0] = (dibs__word){word, dibs__pack_length(&p)};
    q.word[1] = (dibs__word){v->gone, strlen(v->gone)};
    status = dibs__ask_run(&a, with_patience(v, until), err);
    if (status != DIBS_OK)
        return status;
    count_broken(&a, b);
    dibs__ask_fini(&a);
    return DIBS_OK;
}

/* A node without a record hears of the break a second time when another node has one. One of those that heard it first has the
 * holder's fence, so that the highest answer is above it. */
dibs_status dibs__redlock_break(dibs__engine *e, const char *name, const char *by, bool at_once,
                                dibs__deadline until, dibs__reply *out, dibs_error *err)
{
    dibs__voters *v = of(e)->v;
    breaking b = {.v = v, .name = name, .by = by, .at_once = at_once};
    dibs__node_set without;
    dibs_status status =
        send_break(&b, dibs__all_nodes(v), dibs__voters_propose(v), false, until, err);

    memset(out, 0, sizeof *out);
    without = b.without;
    if (status == DIBS_OK && b.fence && without) {
        b.heard &= ~without;
        status = send_break(&b, without, b.fence, true, until, err);
    }
    if (status != DIBS_OK)
        return status;
    dibs__voters_saw(v, b.fence);
    out->fence = b.fence;
    out->verdict = b.busy ? DIBS__BUSY : b.released ? DIBS__RELEASED : DIBS__LOST;
    if ((size_t)dibs__nodes_in(b.heard) >= v->majority)
        return DIBS_OK;
    pthread_mutex_lock(&v->lock);
    status = dibs__voters_missing(v, err);
    pthread_mutex_unlock(&v->lock);
    return b.heard ? DIBS_UNKNOWN : status;
}
