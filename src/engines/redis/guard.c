/* See the header. */
#define _GNU_SOURCE
#include "engines/redis/guard.h"

#include "core/error.h"
#include "engines/redis/adopt.h"
#include "engines/redis/error.h"
#include "engines/redis/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LEASE_MS 60000
#define PATIENCE_MS  500
#define REPLICAS_MAX 64
#define NUMBERS_SIZE 32
#define MANY         128 /* markers in one write */
#define LONGEST_AT   24  /* in a marker */
#define WANTED_AT    40
#define ID_AT        56
#define NO_ID        "0000000000000000000000000000000000000000"
#define A_YEAR       (366LL * 24 * 3600 * DIBS__SECOND) /* longer than any quiet period */

/* ---- The URL --------------------------------------------------------------------------------- */

dibs_status dibs__guard_read_url(dibs__guard *g, dibs__url *url, bool on, dibs_error *err)
{
    const char *guard = dibs__url_take(url, "guard");
    int64_t max_lease = MAX_LEASE_MS, patience = PATIENCE_MS;
    dibs_status status = dibs__url_take_number(url, "wait", 0, REPLICAS_MAX, &g->replicas, err);

    if (status == DIBS_OK)
        status = dibs__url_take_number(url, "wait_ms", 1, 60000, &patience, err);
    if (status == DIBS_OK)
        status = dibs__url_take_number(url, "max_lease", 10, 24 * 3600 * 1000, &max_lease, err);
    if (status != DIBS_OK)
        return status;
    g->max_lease = max_lease * DIBS__MS;
    g->patience = patience * DIBS__MS;
    g->vouched = guard && strcmp(guard, "vouch") == 0;
    g->on = guard ? g->vouched || strcmp(guard, "on") == 0 : on;
    if (guard && !g->on && strcmp(guard, "off") != 0)
        return dibs__fail(err, DIBS_INVALID, "guard=%.40s in the URL: give on, off or vouch",
                          guard);
    return DIBS_OK;
}

dibs_status dibs__guard_check_lease(const dibs__redis *r, int64_t lease, dibs_error *err)
{
    if (!r->guard.on || lease <= r->guard.max_lease)
        return DIBS_OK;
    return dibs__fail(
        err, DIBS_INVALID,
        "redis: a lease of %.3f s is longer than a server waits after a failover, %.3f s: "
        "raise max_lease= in the URL (milliseconds)",
        (double)lease / 1e6, (double)r->guard.max_lease / 1e6);
}

/* ---- Which server it is ---------------------------------------------------------------------- */

/* A run id is a process's. One process that was demoted and promoted again is another server, too: it took a new
 * replication id then, and remembers the one before. */
bool dibs__guard_identity(const char *info, char out[DIBS__SERVER_SIZE], int64_t *up)
{
    char run_id[DIBS__RUN_ID_SIZE] = "", id[DIBS__RUN_ID_SIZE] = "", before[DIBS__RUN_ID_SIZE] = "";
    char seconds[24] = "0";
    bool promoted;

    if (!info || !dibs__info_value(info, "run_id", run_id, sizeof run_id) ||
        !dibs__info_value(info, "master_replid2", before, sizeof before) ||
        !dibs__info_value(info, "master_replid", id, sizeof id))
        return false;
    promoted = strcmp(before, NO_ID) != 0;
    dibs__info_value(info, "uptime_in_seconds", seconds, sizeof seconds);
    snprintf(out, DIBS__SERVER_SIZE, "%s%s%s", run_id, promoted ? "/" : "", promoted ? id : "");
    *up = promoted ? -1 : strtoll(seconds, NULL, 10) * DIBS__SECOND;
    return true;
}

static dibs_status identify(dibs__redis_node *n, const char *info, dibs_error *err)
{
    char server[DIBS__SERVER_SIZE];
    int64_t up;

    if (!dibs__guard_identity(info, server, &up))
        return dibs__fail(err, DIBS_DENIED,
                          "the server does not say which server it is, which is needed to detect a "
                          "failover: allow "
                          "the user +info, or disable the check with guard=off (a service that "
                          "withholds INFO cannot "
                          "be guarded)");
    pthread_mutex_lock(&n->lock);
    memcpy(n->server, server, sizeof n->server);
    n->up = up;
    pthread_mutex_unlock(&n->lock);
    return DIBS_OK;
}

int64_t dibs__guard_copy_server(dibs__redis_node *n, char out[DIBS__SERVER_SIZE])
{
    int64_t up;

    pthread_mutex_lock(&n->lock);
    memcpy(out, n->server, sizeof n->server);
    up = n->up;
    pthread_mutex_unlock(&n->lock);
    return up;
}

void dibs__guard_write(dibs__redis_node *n, dibs__bytes *out)
{
    char server[DIBS__SERVER_SIZE];

    if (!n->r->guard.on)
        return;
    dibs__guard_copy_server(n, server);
    dibs__resp_text(out, server);
}

/* ---- Asking about the markers ---------------------------------------------------------------- */

/* Where markers are looked at: a new connection, or (NULL) the main one; and which: of one bucket, or of all that the
 * server has. */
typedef struct looking {
    dibs__redis_node *n;
    dibs__conn *c;
    dibs__deadline until;
    size_t count;
    struct {
        unsigned bucket;
        int64_t wanted, acked; /* replicas; -1: the bucket is elsewhere by now */
    } of[DIBS__BUCKETS];
} looking;

static dibs_status ask(const looking *l, dibs__bytes *bytes, redisReply **replies, size_t count,
                       dibs_error *err)
{
    dibs_status status =
        l->c ? dibs__conn_ask(l->c, bytes, replies, count, l->until, err)
             : dibs__pipeline_call(l->n->pipeline, bytes, replies, count, l->until, err);

    dibs__bytes_fini(bytes);
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

static void free_replies(redisReply **replies, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (replies[i])
            freeReplyObject(replies[i]);
}

/* One command with a number as its answer. */
static dibs_status ask_number(const looking *l, dibs__bytes *bytes, int64_t *out, dibs_error *err)
{
    redisReply *reply = NULL;
    dibs_status status = ask(l, bytes, &reply, 1, err);

    if (status == DIBS_OK && reply->type != REDIS_REPLY_INTEGER)
        status = dibs__redis_refusal(reply, err);
    *out = status == DIBS_OK ? reply->integer : 0;
    free_replies(&reply, 1);
    return status;
}

static void write_wait(int64_t replicas, int64_t span, dibs__bytes *out)
{
    dibs__resp_begin(out, 3);
    dibs__resp_text(out, "WAIT");
    dibs__resp_number(out, replicas);
    dibs__resp_number(out, span < DIBS__MS ? 1 : span / DIBS__MS); /* 0 would be for ever */
}

static int64_t patience_of(const dibs__redis *r, dibs__deadline until)
{
    int64_t left = (until - dibs__now(r->base.env)) * 3 / 4;

    return left < r->guard.patience ? left : r->guard.patience;
}

/* ---- The markers ----------------------------------------------------------------------------- */

static void make_key(const dibs__redis *r, unsigned bucket, char out[DIBS__REDIS_KEY_SIZE])
{
    dibs__redis_prefix(r, bucket, out);
    strcat(out, ":server");
}

static void write_mark(const looking *l, size_t i, dibs__mark what, bool whole, dibs__bytes *out)
{
    const dibs__redis *r = l->n->r;
    char key[DIBS__REDIS_KEY_SIZE], numbers[NUMBERS_SIZE], *at = numbers;
    char server[DIBS__SERVER_SIZE];
    int64_t up = dibs__guard_copy_server(l->n, server);

    make_key(r, l->of[i].bucket, key);
    at = dibs__redis_add_double(at, up);
    at = dibs__redis_add_double(at, r->guard.max_lease);
    at = dibs__redis_add_double(at, what == DIBS__MARK_ACKNOWLEDGED ? l->of[i].wanted
                                                                    : r->guard.replicas);
    at = dibs__redis_add_double(at, what);
    dibs__script_begin(
        &r->scripts, (dibs__script_call){DIBS__SCRIPT_MARK, atomic_load(&l->n->flags), whole, 2, 0},
        key, out);
    dibs__resp_text(out, server);
    dibs__resp_word(out, numbers, (size_t)(at - numbers));
}

/* What a marker says: how long nothing is granted, how many replicas are wanted, how many have acknowledged. */
static dibs_status read_mark(looking *l, size_t i, const redisReply *reply, dibs_error *err)
{
    l->of[i].wanted = l->of[i].acked = -1;
    if (dibs__redis_redirects(reply))
        return DIBS_OK;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 ||
        reply->element[1]->type != REDIS_REPLY_INTEGER ||
        reply->element[2]->type != REDIS_REPLY_INTEGER)
        return dibs__redis_refusal(reply, err);
    l->of[i].wanted = reply->element[1]->integer;
    l->of[i].acked = reply->element[2]->integer;
    return DIBS_OK;
}

static bool is_short(const looking *l, size_t i)
{
    return l->of[i].acked < l->of[i].wanted;
}

/* Up to MANY of them, from the `*from`-th on, in one write. The script goes out with the first: this is rare. */
static dibs_status mark_some(looking *l, dibs__mark what, size_t *from, dibs_error *err)
{
    dibs__bytes bytes = {0};
    redisReply *replies[MANY] = {NULL};
    size_t which[MANY], count = 0;
    dibs_status status;

    for (; *from < l->count && count < MANY; (*from)++)
        if (what != DIBS__MARK_ACKNOWLEDGED || is_short(l, *from)) {
            write_mark(l, *from, what, count == 0, &bytes);
            which[count++] = *from;
        }
    status = count ? ask(l, &bytes, replies, count, err) : DIBS_OK;
    for (size_t i = 0; i < count && status == DIBS_OK; i++)
        status = read_mark(l, which[i], replies[i], err);
    free_replies(replies, count);
    return status;
}

static dibs_status mark(looking *l, dibs__mark what, dibs_error *err)
{
    dibs_status status = DIBS_OK;

    for (size_t from = 0; from < l->count && status == DIBS_OK;)
        status = mark_some(l, what, &from, err);
    return status;
}

/* Waits for the replicas that the markers want, and writes down that they have them. */
static dibs_status settle(looking *l, dibs_error *err)
{
    dibs__bytes bytes = {0};
    int64_t wanted = 0, got;
    dibs_status status;

    for (size_t i = 0; i < l->count; i++)
        if (is_short(l, i) && l->of[i].wanted > wanted)
            wanted = l->of[i].wanted;
    if (wanted == 0)
        return DIBS_OK;
    write_wait(wanted, patience_of(l->n->r, l->until), &bytes);
    status = ask_number(l, &bytes, &got, err);
    return status != DIBS_OK || got < wanted ? status : mark(l, DIBS__MARK_ACKNOWLEDGED, err);
}

/* Some services withhold WAIT. For no replica at all it returns at once. */
static dibs_status try_wait(const looking *l, dibs_error *err)
{
    int64_t replicas = l->n->r->guard.replicas, unused;
    dibs__bytes bytes = {0};
    dibs_status status;

    if (replicas == 0)
        return DIBS_OK;
    write_wait(0, DIBS__MS, &bytes);
    status = ask_number(l, &bytes, &unused, err);
    if (status != DIBS_OK)
        dibs__wrap(err, "wait=%lld in the URL needs the command WAIT", (long long)replicas);
    return status;
}

/* In a cluster, those that the server has by our map. */
static void list_buckets(looking *l)
{
    const dibs__cluster *c = l->n->r->address.cluster;

    l->count = c ? 0 : 1;
    l->of[0].bucket = 0;
    for (unsigned b = 0; c && b < DIBS__BUCKETS; b++)
        if (dibs__cluster_owner(c, b) == l->n)
            l->of[l->count++].bucket = b;
}

static dibs_status ask_for_adoption(void *ctx, dibs__bytes *bytes, redisReply **replies,
                                    size_t count, dibs_error *err)
{
    return ask(ctx, bytes, replies, count, err);
}

/* Slots that were moved are none that were lost. */
static dibs_status adopt(looking *l, dibs_error *err)
{
    unsigned buckets[DIBS__BUCKETS];

    if (!l->n->r->address.cluster || l->n->r->guard.vouched)
        return DIBS_OK;
    for (size_t i = 0; i < l->count; i++)
        buckets[i] = l->of[i].bucket;
    return dibs__adopt(l->n, buckets, l->count, ask_for_adoption, l, l->until, err);
}

static dibs_status look_at(looking *l, dibs_error *err)
{
    dibs_status status = adopt(l, err);

    if (status == DIBS_OK)
        status = mark(l, l->n->r->guard.vouched ? DIBS__MARK_VOUCH : DIBS__MARK_READ, err);

    return status == DIBS_OK ? settle(l, err) : status;
}

/* All of a server's markers. */
static dibs_status look(dibs__redis_node *n, dibs__conn *c, dibs__deadline until, dibs_error *err)
{
    looking l = {.n = n, .c = c, .until = until};

    list_buckets(&l);
    return look_at(&l, err);
}

/* "opens, base, ceiling, longest, since, wanted, acked", and which server: see lua/mark.lua. */
static bool suffices(const dibs__redis *r, const redisReply *marker, const char *server)
{
    return marker->type == REDIS_REPLY_STRING && marker->len > ID_AT &&
           strcmp(marker->str + ID_AT, server) == 0 &&
           (int64_t)dibs__redis_read_double(marker->str + LONGEST_AT) >= r->guard.max_lease &&
           (int64_t)dibs__redis_read_double(marker->str + WANTED_AT) >= r->guard.replicas;
}

/* The last of a cluster's markers stands for all of that server, because they are written in their order: who finds that
 * it is another server's, or that it allows for less than we need, looks at all of them at once. */
static dibs_status is_known(const looking *l, unsigned bucket, bool *out, dibs_error *err)
{
    char key[DIBS__REDIS_KEY_SIZE], server[DIBS__SERVER_SIZE];
    dibs__bytes bytes = {0};
    redisReply *reply = NULL;
    dibs_status status;

    make_key(l->n->r, bucket, key);
    dibs__resp_begin(&bytes, 2);
    dibs__resp_text(&bytes, "GET");
    dibs__resp_text(&bytes, key);
    status = ask(l, &bytes, &reply, 1, err);
    dibs__guard_copy_server(l->n, server);
    *out = status == DIBS_OK && suffices(l->n->r, reply, server);
    free_replies(&reply, 1);
    return status;
}

static dibs_status look_if_new(dibs__redis_node *n, dibs__conn *c, dibs__deadline until,
                               dibs_error *err)
{
    const dibs__cluster *map = n->r->address.cluster;
    unsigned b = map && !n->r->guard.vouched ? DIBS__BUCKETS : 0;
    bool known = false;
    dibs_status status = DIBS_OK;

    while (b > 0 && dibs__cluster_owner(map, b - 1) != n)
        b--;
    if (b > 0)
        status = is_known(&(looking){.n = n, .c = c, .until = until}, b - 1, &known, err);
    return status == DIBS_OK && !known ? look(n, c, until, err) : status;
}

dibs_status dibs__guard_greet(dibs__redis_node *n, dibs__conn *c, const char *info,
                              dibs__deadline until, dibs_error *err)
{
    dibs_status status = try_wait(&(looking){.n = n, .c = c, .until = until}, err);

    if (status == DIBS_OK && n->r->guard.on)
        status = identify(n, info, err);
    atomic_fetch_add(&n->looks, 1);
    if (status == DIBS_OK && n->r->guard.on)
        status = look_if_new(n, c, until, err);
    return status;
}

/* ---- What the replicas have ------------------------------------------------------------------ */

/* Whatever WAIT says but a number, the commands before it have their own replies: a master that is demoted meanwhile
 * ends it with UNBLOCKED, and what they did is not known to be safe. */
dibs_status dibs__guard_call(dibs__redis_node *n, dibs__bytes *bytes, redisReply **out,
                             size_t count, dibs__deadline until, bool *safe, dibs_error *err)
{
    int64_t replicas = n->r->guard.replicas;
    dibs_status status;

    *safe = true;
    if (replicas == 0)
        return dibs__pipeline_call(n->pipeline, bytes, out, count, until, err);
    write_wait(replicas, patience_of(n->r, until), bytes);
    status = dibs__pipeline_call(n->pipeline, bytes, out, count + 1, until, err);
    *safe =
        out[count] && out[count]->type == REDIS_REPLY_INTEGER && out[count]->integer >= replicas;
    if (!*safe && n->address.sentinels)
        dibs__sentinels_doubt(n->address.sentinels);
    if (status == DIBS_UNKNOWN)
        dibs__wrap(err, "waiting for replicas: %lld", (long long)replicas);
    if (out[count])
        freeReplyObject(out[count]);
    out[count] = NULL;
    return status;
}

dibs_status dibs__guard_unsafe(const dibs__redis *r, const char *what, dibs_error *err)
{
    return dibs__fail(
        err, DIBS_UNKNOWN,
        "%s, but fewer than %lld replicas acknowledged it in time: a failover could undo it", what,
        (long long)r->guard.replicas);
}

/* ---- Refusals -------------------------------------------------------------------------------- */

static int64_t number_of(const redisReply *reply, size_t i)
{
    return reply->elements > i && reply->element[i]->type == REDIS_REPLY_INTEGER
               ? reply->element[i]->integer
               : 0;
}

bool dibs__guard_refused(const redisReply *reply)
{
    return reply && reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 &&
           number_of(reply, 0) >= DIBS__REDIS_QUIET;
}

static dibs_status still_quiet(int64_t left, dibs__reply *out, dibs_error *err)
{
    *out = (dibs__reply){.remaining = left};
    return dibs__fail(
        err, DIBS_UNAVAILABLE,
        "the server has restarted or taken over (or is new) and grants nothing for %.1f s "
        "more, because leases that it has lost may still be valid",
        (double)left / 1e6);
}

/* The connection may be a new one already, to a server that was looked at. Else the marker is gone or another
 * server's, as after FLUSHALL, or in a cluster when the slot has come from another master: it is looked at. */
dibs_status dibs__guard_explain(const dibs__redis_ask *q, bool *again, dibs__deadline until,
                                dibs__reply *out, dibs_error *err)
{
    int64_t left = number_of(q->reply, 3);
    dibs_status status = DIBS_OK;

    *out = (dibs__reply){.remaining = 1};
    if (number_of(q->reply, 0) == DIBS__REDIS_UNMARKED) {
        if (q->node->r->address.cluster)
            status = *again ? look(q->node, NULL, until, err) : DIBS_OK;
        else if (atomic_load(&q->node->looks) == q->looks)
            dibs__pipeline_renew(q->node->pipeline);
        return status != DIBS_OK ? status
                                 : dibs__fail(err, DIBS_UNAVAILABLE,
                                              "the marker of this server was lost: try again");
    }
    if (left < A_YEAR) {
        *again = false;
        return still_quiet(left, out, err);
    }
    status = *again ? look(q->node, NULL, until, err) : DIBS_OK;
    return status != DIBS_OK
               ? status
               : dibs__fail(err, DIBS_UNAVAILABLE,
                            "the server has taken over, and not enough replicas have acknowledged "
                            "that: nothing is granted (wait= in the URL)");
}
