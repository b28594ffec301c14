/* Looking: what the nodes say about a lock, put together. A holder is whoever has the votes of a
 * majority; what each node says by itself goes into the notes. The queue is this handle's own: there
 * is none on the nodes. */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/report.h"
#include "engines/redis/error.h"
#include "engines/redis/names.h"
#include "engines/redlock/redlock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE 4 /* limits */
#define LOOK_MAX 64
#define FILLING  DIBS__SECOND /* for a step of making a set complete */

/* What inspect.lua gives. */
enum { NOW, LAST, BROKEN, BROKEN_AT, FENCE, ENDS, SINCE, ROUND, OWNER, ATTEMPT, INFO, BY, FIELDS };

/* One node's word. */
typedef struct word {
    bool answered, known; /* known: there is a record */
    int64_t now, left, age;
    uint64_t last, broken, fence;
    int64_t broken_at;
    const char *owner, *attempt, *info, *by; /* in the reply */
} word;

typedef struct opinion {
    word node[DIBS__VOTERS_MAX];
    size_t answered, known;
    dibs__record record;
    dibs__holder holder;
    size_t votes; /* that the holder has */
} opinion;

/* ---- Reading --------------------------------------------------------------------------------- */

static int64_t number_at(const redisReply *row, size_t i)
{
    return row->element[i]->type == REDIS_REPLY_INTEGER ? row->element[i]->integer : 0;
}

static const char *text_at(const redisReply *row, size_t i)
{
    return row->element[i]->str ? row->element[i]->str : "";
}

static void read_word(const redisReply *reply, word *out)
{
    memset(out, 0, sizeof *out);
    if (!reply || reply->type != REDIS_REPLY_ARRAY)
        return;
    out->answered = true;
    if (reply->elements != FIELDS)
        return;
    out->known = true;
    out->now = number_at(reply, NOW);
    out->last = (uint64_t)number_at(reply, LAST);
    out->broken = (uint64_t)number_at(reply, BROKEN);
    out->broken_at = number_at(reply, BROKEN_AT);
    out->fence = (uint64_t)number_at(reply, FENCE);
    out->left = number_at(reply, ENDS) - out->now;
    out->age = out->now - number_at(reply, SINCE);
    out->owner = text_at(reply, OWNER);
    out->attempt = text_at(reply, ATTEMPT);
    out->info = text_at(reply, INFO);
    out->by = text_at(reply, BY);
}

/* ---- Putting together ------------------------------------------------------------------------ */

static bool same_vote(const word *a, const word *b)
{
    return b->known && b->fence && strcmp(a->attempt, b->attempt) == 0 &&
           (a->attempt[0] || a->fence == b->fence);
}

static int falling(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

/* How long a majority of these votes still counts. */
static int64_t left_of(const dibs__voters *v, const opinion *o, const word *w)
{
    int64_t left[DIBS__VOTERS_MAX];
    size_t n = 0;

    for (size_t i = 0; i < v->count; i++)
        if (same_vote(w, &o->node[i]))
            left[n++] = o->node[i].left;
    qsort(left, n, sizeof left[0], falling);
    return left[v->majority - 1];
}

static uint64_t fence_of(const dibs__voters *v, const opinion *o, const word *w)
{
    uint64_t best = 0;
    size_t most = 0;

    for (size_t i = 0; i < v->count; i++) {
        size_t same = 0;
        for (size_t k = 0; same_vote(w, &o->node[i]) && k < v->count; k++)
            same += same_vote(w, &o->node[k]) && o->node[k].fence == o->node[i].fence;
        if (same > most) {
            most = same;
            best = o->node[i].fence;
        }
    }
    return best;
}

static void fill_holder(const dibs__voters *v, opinion *o, const word *w)
{
    dibs__holder *h = &o->holder;
    long long pid = 0;

    snprintf(h->who.owner, sizeof h->who.owner, "%s", w->owner);
    snprintf(h->who.attempt, sizeof h->who.attempt, "%s", w->attempt);
    if (sscanf(w->info, "%lld %64s", &pid, h->who.host) < 1)
        pid = 0;
    h->who.pid = pid;
    h->who.weight = DIBS__PLAIN;
    h->fence = fence_of(v, o, w);
    h->since = -w->age;
    h->expires = left_of(v, o, w);
    h->released = !w->attempt[0];
    o->record.used = DIBS__PLAIN;
    o->record.holders = 1;
}

static void find_holder(const dibs__voters *v, opinion *o)
{
    for (size_t i = 0; i < v->count; i++) {
        size_t votes = 0;
        if (!o->node[i].known || !o->node[i].fence)
            continue;
        for (size_t k = 0; k < v->count; k++)
            votes += same_vote(&o->node[i], &o->node[k]);
        if (votes >= v->majority) {
            o->votes = votes;
            fill_holder(v, o, &o->node[i]);
            return;
        }
    }
}

static void form_opinion(const dibs__ask *a, size_t k, opinion *o)
{
    const dibs__voters *v = a->v;
    dibs__record *r = &o->record;

    memset(o, 0, sizeof *o);
    r->capacity = DIBS__PLAIN;
    for (size_t i = 0; i < v->count; i++) {
        word *w = &o->node[i];
        read_word(a->answered >> i & 1 ? dibs__ask_reply(a, i, k) : NULL, w);
        o->answered += w->answered;
        o->known += w->known;
        if (!w->known)
            continue;
        r->fence = w->last > r->fence ? w->last : r->fence;
        if (w->broken > r->broken_fence) {
            r->broken_fence = w->broken;
            r->broken_at = w->broken_at;
            snprintf(r->broken_by, sizeof r->broken_by, "%s", w->by);
        }
    }
    find_holder(v, o);
}

/* ---- Telling --------------------------------------------------------------------------------- */

/* With the nodes' lock. How long the node does not vote yet; 0: it does. */
static int64_t silence(const dibs__voter *n)
{
    const dibs__voters *v = n->all;
    int64_t now = v->env->wall(v->env->ctx) + n->clock_ahead;
    int64_t till = n->born ? n->born + v->longest + v->longest / 100 : 0;

    return till > now ? till - now : 0;
}

static void note_node(dibs__voter *n, const word *w, dibs__report_builder *out)
{
    char owner[DIBS__OWNER_SIZE] = "";
    const char *sync = n->always ? ", every write synced" : "";
    int64_t quiet = silence(n);

    if (w->known)
        snprintf(owner, sizeof owner, "%s", w->owner);
    if (!dibs__link_up(n))
        dibs__report_note(out, "%s: down: %.300s", n->address.text, dibs__voter_why(n));
    else if (!w->answered)
        dibs__report_note(out, "%s: no answer in time", n->address.text);
    else if (quiet > 0)
        dibs__report_note(out, "%s: restarted or new: does not vote for %.1f s more%s",
                          n->address.text, (double)quiet / 1e6, sync);
    else if (w->known && w->fence && !w->attempt[0])
        dibs__report_note(out, "%s: released, stays taken for %.1f s%s", n->address.text,
                          (double)w->left / 1e6, sync);
    else if (w->known && w->fence)
        dibs__report_note(out, "%s: voted for %s, fence %llu, %.1f s left%s", n->address.text,
                          owner, (unsigned long long)w->fence, (double)w->left / 1e6, sync);
    else if (w->known)
        dibs__report_note(out, "%s: free, last fence %llu%s", n->address.text,
                          (unsigned long long)w->last, sync);
    else
        dibs__report_note(out, "%s: free, knows nothing of this lock%s", n->address.text, sync);
}

static void report(dibs__redlock *r, const char *name, opinion *o, bool whole,
                   dibs__report_builder *out)
{
    dibs__voters *v = r->v;
    dibs__time now = {0, v->env->wall(v->env->ctx)};

    o->record.waiters = (uint32_t)dibs__redlock_waiters_count(r, name);
    dibs__report_lock(out, name, &o->record);
    if (o->votes)
        dibs__report_holder(out, &o->holder, now);
    if (!whole)
        return;
    dibs__redlock_waiters_report(r, name, out);
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < v->count; i++)
        note_node(&v->voter[i], &o->node[i], out);
    pthread_mutex_unlock(&v->lock);
}

static dibs_status missing(dibs__voters *v, dibs_error *err)
{
    dibs_status status;

    pthread_mutex_lock(&v->lock);
    status = dibs__voters_missing(v, err);
    pthread_mutex_unlock(&v->lock);
    return status;
}

dibs_status dibs__redlock_inspect(dibs__engine *e, const char *name, dibs__deadline until,
                                  dibs__report_builder *out, dibs_error *err)
{
    dibs__redlock *r = (dibs__redlock *)e;
    char key[DIBS__REDIS_KEY_SIZE];
    dibs__query q = {.script = DIBS__RED_INSPECT, .key = key};
    dibs__ask a = {.v = r->v, .query = &q, .count = 1, .to = dibs__all_nodes(r->v)};
    opinion o;
    dibs_status status;

    dibs__redis_key(r->v->prefix, name, key);
    until = dibs__sooner(until, dibs__after(r->v->env, PATIENCE * r->v->limit));
    status = dibs__ask_run(&a, until, err);
    if (status != DIBS_OK)
        return status;
    form_opinion(&a, 0, &o);
    if (o.answered < r->v->majority)
        status = missing(r->v, err);
    else if (o.known > 0)
        report(r, name, &o, true, out);
    dibs__ask_fini(&a);
    return status;
}

/* ---- All of them ----------------------------------------------------------------------------- */

/* One request to one node, whose answer goes to `found` and `cursor`; NULL: it is the cursor alone. */
static dibs_status ask_node(dibs__redlock *r, size_t node, const dibs__query *q,
                            dibs__deadline until, dibs__names *found,
                            char cursor[DIBS__CURSOR_SIZE])
{
    dibs__ask a = {.v = r->v, .query = q, .count = 1, .to = (dibs__node_set)1 << node};
    const redisReply *reply;
    int64_t span = found ? PATIENCE * r->v->limit : FILLING;
    dibs_status status = dibs__ask_run(&a, dibs__sooner(until, dibs__after(r->v->env, span)), NULL);

    if (status != DIBS_OK)
        return status;
    reply = a.answered ? dibs__ask_reply(&a, node, 0) : NULL;
    if (!reply || (!found && reply->type != REDIS_REPLY_STRING))
        status = DIBS_UNAVAILABLE;
    else if (found)
        status = dibs__names_take(found, reply, cursor, NULL);
    else
        snprintf(cursor, DIBS__CURSOR_SIZE, "%s", reply->str);
    dibs__ask_fini(&a);
    return status;
}

/* Makes the node's set of busy locks complete, if it is not. */
static dibs_status complete_set(dibs__redlock *r, size_t node, const char *set,
                                dibs__deadline until)
{
    char pattern[DIBS__PATTERN_SIZE], cursor[DIBS__CURSOR_SIZE] = "0";
    dibs_status status;

    dibs__names_pattern(r->v->prefix, "", pattern);
    do {
        dibs__query q = {.script = DIBS__RED_INDEX,
                         .key = set,
                         .word = {{cursor, strlen(cursor)}, {pattern, strlen(pattern)}},
                         .words = 2};
        status = ask_node(r, node, &q, until, NULL, cursor);
    } while (status == DIBS_OK && strcmp(cursor, "0") != 0);
    return status;
}

/* Those in `set`, or all if it is NULL. */
static dibs_status scan_node(dibs__redlock *r, size_t node, const char *pattern, const char *set,
                             dibs__deadline until, dibs__names *found)
{
    char cursor[DIBS__CURSOR_SIZE] = "0";
    dibs_status status = set ? complete_set(r, node, set, until) : DIBS_OK;

    while (status == DIBS_OK) {
        dibs__word more[] = {{cursor, strlen(cursor)},
                             {"MATCH", 5},
                             {pattern, strlen(pattern)},
                             {"COUNT", 5},
                             {"1000", 4}};
        dibs__query q = {.script = DIBS__RED_SCRIPTS, .words = set ? 7 : 6};
        q.word[0] = set ? (dibs__word){"SSCAN", 5} : (dibs__word){"SCAN", 4};
        if (set)
            q.word[1] = (dibs__word){set, strlen(set)};
        memcpy(q.word + q.words - 5, more, sizeof more);
        status = ask_node(r, node, &q, until, found, cursor);
        if (strcmp(cursor, "0") == 0)
            break;
    }
    return status;
}

/* Whoever holds a lock has a majority, and so many nodes together meet every majority. */
static dibs_status find_names(dibs__redlock *r, const char *prefix, bool idle, dibs__deadline until,
                              dibs__names *found, dibs_error *err)
{
    char pattern[DIBS__PATTERN_SIZE], busy[DIBS__REDIS_KEY_SIZE];
    size_t needed = r->v->count - r->v->majority + 1;

    dibs__names_pattern(r->v->prefix, prefix, pattern);
    dibs__names_busy(r->v->prefix, busy);
    for (size_t i = 0; i < r->v->count && needed > 0; i++) {
        dibs_status status = scan_node(r, i, pattern, idle ? NULL : busy, until, found);
        if (status == DIBS_NO_MEMORY)
            return dibs__fail(err, status, "redlock: out of memory");
        needed -= status == DIBS_OK;
    }
    dibs__names_sort(found);
    if (needed == 0)
        return DIBS_OK;
    return dibs__fail(err, DIBS_UNAVAILABLE,
                      "redlock: too few of the %zu nodes listed their locks in time: %zu "
                      "more are needed",
                      r->v->count, needed);
}

static dibs_status look_at_some(dibs__redlock *r, char *const keys[], size_t count, bool idle,
                                dibs__deadline until, dibs__report_builder *out, dibs_error *err)
{
    dibs__query q[LOOK_MAX];
    dibs__ask a = {.v = r->v, .query = q, .count = count, .to = dibs__all_nodes(r->v)};
    opinion o;
    dibs_status status;

    for (size_t k = 0; k < count; k++)
        q[k] = (dibs__query){.script = DIBS__RED_INSPECT, .key = keys[k]};
    until = dibs__sooner(until, dibs__after(r->v->env, PATIENCE * r->v->limit));
    status = dibs__ask_run(&a, until, err);
    for (size_t k = 0; status == DIBS_OK && k < count; k++) {
        form_opinion(&a, k, &o);
        char *name = dibs__redis_name(r->v->prefix, keys[k]);
        if (o.answered < r->v->majority)
            status = missing(r->v, err);
        else if (name && o.known > 0 && (o.votes || idle))
            report(r, name, &o, false, out);
    }
    if (a.reply)
        dibs__ask_fini(&a);
    return status;
}

dibs_status dibs__redlock_list(dibs__engine *e, const char *prefix, bool idle, dibs__deadline until,
                               dibs__report_builder *out, dibs_error *err)
{
    dibs__redlock *r = (dibs__redlock *)e;
    dibs__names found = {0};
    dibs_status status = find_names(r, prefix, idle, until, &found, err);

    for (size_t i = 0; status == DIBS_OK && i < found.count; i += LOOK_MAX) {
        size_t n = found.count - i < LOOK_MAX ? found.count - i : LOOK_MAX;
        status = look_at_some(r, found.keys + i, n, idle, until, out, err);
    }
    dibs__names_fini(&found);
    return status;
}
