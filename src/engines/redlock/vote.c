/* Taking a lock: votes of a majority, one fence, and enough of the lease left.
 *
 * It goes well: all nodes are asked at once, a majority votes, and its fences are the same number.
 * Where they differ, the highest is written back, and counts when a majority of nodes takes it on
 * while this try's vote is still out there. It goes badly: too few votes, too few that take the
 * fence on, or too late. Then whatever may have been voted is given back at once, on every node that
 * did not say no. Why the fence grows is argued in docs/engines/redlock.md and searched in
 * tests/engines/redlock/test_redlock_model.c. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/redis/error.h"
#include "engines/redlock/redlock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct batch {
    dibs__redlock *r;
    dibs__voters *v;
    dibs__try *const *try;
    size_t count;
} batch;

/* The tries that a question is about, by their place in it. */
typedef struct subject {
    dibs__voters *v;
    dibs__try **try;
    size_t count;
} subject;

static bool is_in(dibs__node_set set, size_t node)
{
    return set >> node & 1;
}

/* ---- What a node answers --------------------------------------------------------------------- */

static int64_t number_at(const redisReply *row, size_t i)
{
    return i < row->elements && row->element[i]->type == REDIS_REPLY_INTEGER
               ? row->element[i]->integer
               : 0;
}

/* The part of the reply that is about the vote: after a release in the same step comes second. */
static const redisReply *vote_in(const dibs__try *t, const redisReply *reply)
{
    if (!t->after || !reply)
        return reply;
    return reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 ? reply->element[1] : reply;
}

static bool is_yes(const redisReply *vote)
{
    return vote && vote->type == REDIS_REPLY_INTEGER && vote->integer > 0;
}

/* {BUSY, last fence, for how long, the other's fence, arrival, rank, the other's handle}. Without a fence it is free and kept
 * for the other: who is the next in the queue comes when that moment is over. */
static void read_busy(dibs__try *t, size_t node, const redisReply *vote)
{
    dibs__node_set bit = (dibs__node_set)1 << node;
    int64_t left = number_at(vote, 2), rank = number_at(vote, 5);
    uint64_t arrival = (uint64_t)number_at(vote, 4);
    bool kept = number_at(vote, 3) == 0;

    t->busy |= bit;
    t->kept |= kept ? bit : 0;
    t->fence[node] = (uint64_t)number_at(vote, 3);
    t->whose[node] = (uint64_t)number_at(vote, 6);
    t->arrival = arrival > t->arrival ? arrival : t->arrival;
    t->rank = rank > t->rank ? rank : t->rank;
    if ((!kept || rank == 0) && (!t->left || left < t->left))
        t->left = left;
}

static void read_vote(dibs__voters *v, dibs__try *t, size_t node, const redisReply *vote)
{
    dibs__node_set bit = (dibs__node_set)1 << node;
    int64_t code, left;

    if (is_yes(vote)) {
        t->yes |= bit;
        t->fence[node] = (uint64_t)vote->integer;
        dibs__voters_saw(v, t->fence[node]);
        return;
    }
    if (!vote || vote->type != REDIS_REPLY_ARRAY || vote->elements < 2) {
        t->status = dibs__redis_refusal(vote, &t->err);
        dibs__wrap(&t->err, "redlock: %s", v->voter[node].address.text);
        return;
    }
    code = number_at(vote, 0);
    left = number_at(vote, 2);
    dibs__voters_saw(v, (uint64_t)number_at(vote, 1));
    if (code == DIBS__BUSY) {
        read_busy(t, node, vote);
    } else if (code != DIBS__REDLOCK_STALE) {
        t->quiet |= bit;
        t->quiet_left = left > t->quiet_left ? left : t->quiet_left;
    }
}

static void read_after(dibs__try *t, size_t node, const redisReply *reply)
{
    dibs__node_set bit = (dibs__node_set)1 << node;
    int64_t verdict;

    if (!t->after || !reply || reply->type != REDIS_REPLY_ARRAY || reply->elements != 2)
        return;
    verdict = number_at(reply, 0);
    if (verdict == DIBS__RELEASED) {
        t->gave |= bit;
    } else {
        t->gave_not |= bit;
        if (t->why_not == DIBS__LOST || t->why_not == 0)
            t->why_not = dibs__redlock_reason(verdict);
    }
}

/* A node without its marker has been emptied under us: it is looked at anew. */
static void check_marker(dibs__voters *v, size_t node, const redisReply *vote)
{
    if (!vote || vote->type != REDIS_REPLY_ARRAY || number_at(vote, 0) != DIBS__REDLOCK_UNMARKED)
        return;
    pthread_mutex_lock(&v->lock);
    dibs__link_cut(&v->voter[node], DIBS__IO_CUT);
    dibs__fail(&v->voter[node].why, DIBS_UNAVAILABLE, "its marker is gone: the node was emptied");
    pthread_mutex_unlock(&v->lock);
}

static void tally(const dibs__ask *a, subject *s)
{
    for (size_t k = 0; k < s->count; k++)
        s->try[k]->asked |= a->asked;
    for (size_t node = 0; node < s->v->count; node++) {
        if (!is_in(a->answered, node))
            continue;
        for (size_t k = 0; k < s->count; k++) {
            const redisReply *reply = dibs__ask_reply(a, node, k);
            const redisReply *vote = vote_in(s->try[k], reply);
            read_after(s->try[k], node, reply);
            read_vote(s->v, s->try[k], node, vote);
            check_marker(s->v, node, vote);
        }
    }
}

/* ---- Asking for votes ------------------------------------------------------------------------ */

/* Whether the votes so far decide it, given how many may still come. */
static bool decided(const dibs__voters *v, size_t yes, size_t pending)
{
    return yes >= v->majority || yes + pending < v->majority;
}

static bool votes_enough(const dibs__ask *a)
{
    const subject *s = a->data;
    dibs__node_set pending = a->asked & ~(a->answered | a->failed);
    size_t left = (size_t)dibs__nodes_in(pending);

    for (size_t k = 0; k < s->count; k++) {
        const dibs__try *t = s->try[k];
        size_t yes = (size_t)dibs__nodes_in(t->yes), gave = 0;
        for (size_t node = 0; node < s->v->count; node++) {
            if (!is_in(a->answered, node))
                continue;
            const redisReply *reply = dibs__ask_reply(a, node, k);
            bool released = t->after && reply && reply->type == REDIS_REPLY_ARRAY &&
                            number_at(reply, 0) == DIBS__RELEASED;
            yes += is_yes(vote_in(t, reply));
            gave += released;
        }
        if (!decided(s->v, yes, left) || (t->after && !decided(s->v, gave, left)))
            return false;
    }
    return true;
}

static void prepare(batch *b, dibs__try *t)
{
    dibs__voters *v = b->v;
    char info[DIBS__HOST_SIZE + 32];
    dibs__pack p = dibs__pack_begin(t->word);

    t->began = dibs__now(v->env);
    t->round = atomic_fetch_add(&v->rounds, 1) + 1;
    t->asked = t->yes = t->busy = t->quiet = t->kept = t->gave = t->gave_not = 0;
    t->left = t->quiet_left = t->rank = 0;
    t->status = DIBS_OK;
    t->held = t->taken = false;
    t->why_not = 0;
    t->err = (dibs_error){0};
    t->reply = (dibs__reply){0};
    snprintf(info, sizeof info, "%lld %s", (long long)t->who->pid, t->who->host);
    dibs__redis_key(v->prefix, t->name, t->key);
    dibs__pack_number(&p, (double)dibs__voters_propose(v));
    dibs__pack_number(&p, (double)t->lease);
    dibs__pack_number(&p, (double)t->who->min_hold);
    dibs__pack_number(&p, (double)t->round);
    dibs__pack_number(&p, (double)v->longest);
    t->dials = dibs__pack_later(&p);
    dibs__pack_number(&p, t->waits);
    dibs__pack_number(&p, (double)t->arrival);
    dibs__pack_text(&p, t->who->owner);
    dibs__pack_text(&p, t->who->attempt);
    dibs__pack_text(&p, info);
    t->length = dibs__pack_length(&p);
    if (t->after)
        t->give_length = dibs__give_word(t->give, t->after, t->round, DIBS__GIVE_AFTER_MIN_HOLD);
}

static void write_query(const dibs__voters *v, const dibs__try *t, dibs__query *q)
{
    *q = (dibs__query){.script = t->after ? DIBS__RED_PASS : DIBS__RED_ENTER,
                       .key = t->key,
                       .words = t->after ? 4 : 3,
                       .dials = t->dials};
    q->word[0] = (dibs__word){t->word, t->length};
    q->word[1] = (dibs__word){v->marker, strlen(v->marker)};
    q->word[2] = (dibs__word){v->gone, strlen(v->gone)};
    q->word[3] = (dibs__word){t->give, t->give_length};
}

/* One exchange with all nodes about the tries of `s`. */
static void ask_votes(batch *b, subject *s, dibs__deadline until)
{
    dibs__query one, *q = s->count == 1 ? &one : calloc(s->count, sizeof *q);
    dibs__ask a = {.v = b->v,
                   .query = q,
                   .count = s->count,
                   .to = dibs__all_nodes(b->v),
                   .enough = votes_enough,
                   .data = s};
    dibs_status status = q ? DIBS_OK : DIBS_NO_MEMORY;

    for (size_t k = 0; q && k < s->count; k++)
        write_query(b->v, s->try[k], &q[k]);
    if (status == DIBS_OK)
        status = dibs__ask_run(&a, until, NULL);
    if (status == DIBS_OK)
        tally(&a, s);
    for (size_t k = 0; status != DIBS_OK && k < s->count; k++)
        s->try[k]->status = dibs__fail(&s->try[k]->err, status, "redlock: out of memory");
    if (status == DIBS_OK)
        dibs__ask_fini(&a);
    if (q != &one)
        free(q);
}

/* ---- The fence ------------------------------------------------------------------------------- */

/* The number that most of them have, and how many do. */
static size_t common_number(const dibs__voters *v, const uint64_t number[], dibs__node_set among,
                            uint64_t *out)
{
    size_t most = 0;

    for (size_t i = 0; i < v->count; i++) {
        size_t same = 0;
        for (size_t k = 0; is_in(among, i) && k < v->count; k++)
            same += is_in(among, k) && number[k] == number[i];
        if (same > most) {
            most = same;
            *out = number[i];
        }
    }
    return most;
}

static uint64_t highest_fence(const dibs__voters *v, const dibs__try *t)
{
    uint64_t highest = 0;

    for (size_t i = 0; i < v->count; i++)
        if (is_in(t->yes, i) && t->fence[i] > highest)
            highest = t->fence[i];
    return highest;
}

static bool fences_enough(const dibs__ask *a)
{
    dibs__node_set pending = a->asked & ~(a->answered | a->failed);
    size_t yes = 0;

    for (size_t node = 0; node < a->v->count; node++)
        yes += is_in(a->answered, node) && is_yes(dibs__ask_reply(a, node, 0));
    return decided(a->v, yes, (size_t)dibs__nodes_in(pending));
}

/* The highest answer goes back to the nodes that voted, which take it on only while that vote is
 * out: 0 when fewer than a majority did. */
static uint64_t write_back(batch *b, dibs__try *t, dibs__deadline until)
{
    uint64_t fence = highest_fence(b->v, t);
    char word[DIBS__PACK_SIZE];
    dibs__pack p = dibs__pack_begin(word);
    dibs__query q = {.script = DIBS__RED_ACCEPT, .key = t->key, .words = 1};
    dibs__ask a = {.v = b->v, .query = &q, .count = 1, .to = t->yes, .enough = fences_enough};
    size_t took = 0;

    dibs__pack_number(&p, (double)fence);
    dibs__pack_number(&p, (double)t->round);
    dibs__pack_text(&p, t->who->attempt);
    q.word[0] = (dibs__word){word, dibs__pack_length(&p)};
    if (dibs__ask_run(&a, until, NULL) != DIBS_OK)
        return 0;
    for (size_t node = 0; node < b->v->count; node++)
        took += is_in(a.answered, node) && is_yes(dibs__ask_reply(&a, node, 0));
    dibs__ask_fini(&a);
    return took >= b->v->majority ? fence : 0;
}

/* ---- The outcome ----------------------------------------------------------------------------- */

/* What clocks may differ by until the lease is over. */
static int64_t drift(int64_t lease)
{
    int64_t margin = lease / 100 + 5 * DIBS__MS;

    return margin < lease / 10 ? margin : lease / 10;
}

/* Enough of it is left. */
static bool in_time(const dibs__voters *v, const dibs__try *t)
{
    int64_t took = dibs__now(v->env) - t->began;

    return took < t->lease - drift(t->lease) && (t->within == 0 || took <= t->within);
}

static void give_back(batch *b, const dibs__try *t)
{
    dibs__claim claim = {.owner = t->who->owner, .attempt = t->who->attempt};
    char word[DIBS__PACK_SIZE];
    bool enough = (size_t)dibs__nodes_in(t->yes) >= b->v->majority; /* others saw it as held */
    size_t length = dibs__give_word(word, &claim, t->round,
                                    enough ? DIBS__GIVE_AND_NOTIFY : DIBS__GIVE_QUIETLY);

    dibs__voters_owe(b->v, t->asked & ~(t->busy | t->quiet), t->key, word, length,
                     t->began + t->lease + DIBS__SECOND);
}

static void report_missing(batch *b, dibs__try *t)
{
    dibs__voters *v = b->v;
    size_t answered = (size_t)dibs__nodes_in(t->yes | t->busy | t->quiet);

    if (t->status != DIBS_OK && answered < v->majority)
        return; /* a refusal in words */
    if (t->quiet && answered >= v->majority) {
        t->reply.remaining = t->quiet_left;
        t->status = dibs__fail(
            &t->err, DIBS_UNAVAILABLE,
            "redlock: %d of %zu nodes have restarted (or are new) and do not vote for %.1f s "
            "more, because leases that they have lost may still be valid; %zu are needed",
            dibs__nodes_in(t->quiet), v->count, (double)t->quiet_left / 1e6, v->majority);
        return;
    }
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < v->count; i++)
        if (is_in(t->asked & ~(t->yes | t->busy | t->quiet), i) && dibs__link_up(&v->voter[i]))
            dibs__fail(&v->voter[i].why, DIBS_UNAVAILABLE, "timed out after %lld ms",
                       (long long)(v->limit / DIBS__MS));
    t->status = dibs__voters_missing(v, &t->err);
    for (size_t i = 0; i < v->count; i++)
        if (dibs__link_up(&v->voter[i]))
            v->voter[i].why = (dibs_error){0};
    pthread_mutex_unlock(&v->lock);
}

/* Somebody may have it: as many nodes as said so with one fence, and those that said nothing. Else
 * several are trying, and none of them has it. */
static void note_held(const dibs__voters *v, dibs__try *t)
{
    uint64_t fence, whose;
    size_t same = common_number(v, t->fence, t->busy & ~t->kept, &fence);
    size_t silent = v->count - (size_t)dibs__nodes_in(t->yes | t->busy);

    t->held = same > 0 && same + silent >= v->majority;
    t->taken = common_number(v, t->whose, t->busy, &whose) >= v->majority;
}

/* Where a majority said yes or busy it is busy, else the nodes are what is missing. */
static void conclude(batch *b, dibs__try *t, dibs__deadline until)
{
    dibs__voters *v = b->v;
    uint64_t fence = 0;

    if ((size_t)dibs__nodes_in(t->yes) >= v->majority &&
        common_number(v, t->fence, t->yes, &fence) < v->majority)
        fence = write_back(b, t, until);
    if (fence && in_time(v, t)) {
        t->status = DIBS_OK;
        t->reply = (dibs__reply){
            .verdict = DIBS__GRANTED, .fence = fence, .floor = fence, .remaining = t->lease};
        t->taken = true;
        dibs__voters_saw(v, fence);
        return;
    }
    give_back(b, t);
    note_held(v, t);
    if ((size_t)dibs__nodes_in(t->yes | t->busy) >= v->majority) {
        t->status = DIBS_OK;
        t->reply = (dibs__reply){.verdict = DIBS__BUSY, .remaining = t->left};
    } else {
        report_missing(b, t);
    }
}

static void conclude_after(batch *b, dibs__try *t)
{
    dibs__voters *v = b->v;
    dibs__reply reply;

    if (!t->after)
        return;
    dibs__voters_owe(v, dibs__all_nodes(v) & ~(t->gave | t->gave_not), t->key, t->give,
                     t->give_length, t->began + v->longest);
    t->after_status = dibs__give_verdict(v, t->gave, t->gave_not, t->why_not, &reply);
    t->after_verdict = reply.verdict;
}

void dibs__try_all(dibs__redlock *r, dibs__try *const tries[], size_t count, dibs__deadline until)
{
    batch b = {r, r->v, tries, count};
    dibs__try *one, **list = count == 1 ? &one : calloc(count, sizeof *list);
    subject s = {r->v, list, count};
    dibs__deadline soon;

    dibs__voters_ready(r->v, until);
    soon = dibs__sooner(until, dibs__after(r->v->env, r->v->limit));
    for (size_t k = 0; k < count; k++) {
        prepare(&b, tries[k]);
        if (list)
            list[k] = tries[k];
        else
            tries[k]->status = dibs__fail(&tries[k]->err, DIBS_NO_MEMORY, "redlock: out of memory");
    }
    if (!list)
        return;
    ask_votes(&b, &s, soon);
    for (size_t k = 0; k < count; k++) {
        if (tries[k]->status != DIBS_NO_MEMORY)
            conclude(&b, tries[k], dibs__sooner(until, dibs__after(r->v->env, r->v->limit)));
        conclude_after(&b, tries[k]);
    }
    if (list != &one)
        free(list);
}
