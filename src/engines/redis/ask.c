/* See the header. */
#define _GNU_SOURCE
#include "engines/redis/ask.h"

#include "core/error.h"
#include "engines/redis/error.h"
#include "engines/redis/redis.h"

#include <stdio.h>
#include <string.h>

#define BATCH       256              /* in one write */
#define PATIENCE    (300 * DIBS__MS) /* with many: the others must not wait long for the slot of one */
#define FIRST_PAUSE (2 * DIBS__MS)
#define MAX_PAUSE   (100 * DIBS__MS)

/* ---- Keys ------------------------------------------------------------------------------------ */

void dibs__redis_prefix(const dibs__redis *r, unsigned bucket,
                        char out[DIBS__REDIS_PREFIX_MAX + DIBS__REDIS_TAG_SIZE])
{
    if (r->address.cluster)
        sprintf(out, "%s{%03x}", r->prefix, bucket & (DIBS__BUCKETS - 1));
    else
        strcpy(out, r->prefix);
}

unsigned dibs__redis_lock_key(const dibs__redis *r, const char *name,
                              char out[DIBS__REDIS_KEY_SIZE])
{
    char prefix[DIBS__REDIS_PREFIX_MAX + DIBS__REDIS_TAG_SIZE];
    unsigned bucket = r->address.cluster ? dibs__cluster_bucket(name) : 0;

    dibs__redis_prefix(r, bucket, prefix);
    dibs__redis_key(prefix, name, out);
    return bucket;
}

/* "{3f2}" behind the prefix; 0: there is none. */
unsigned dibs__redis_bucket_in(const dibs__redis *r, const char *key)
{
    size_t n = strlen(r->prefix);
    unsigned bucket = 0;

    if (r->address.cluster && strlen(key) > n + 5)
        sscanf(key + n, "{%3x}", &bucket);
    return bucket & (DIBS__BUCKETS - 1);
}

char *dibs__redis_name_in(const dibs__redis *r, char *key)
{
    char prefix[DIBS__REDIS_PREFIX_MAX + DIBS__REDIS_TAG_SIZE];

    dibs__redis_prefix(r, dibs__redis_bucket_in(r, key), prefix);
    return dibs__redis_name(prefix, key);
}

void dibs__redis_any_bucket(const dibs__redis *r, char *pattern)
{
    char *tag = r->address.cluster ? strchr(pattern, '{') : NULL;

    if (tag)
        memcpy(tag + 1, "???", 3);
}

static void add_key(dibs__bytes *out, const char *base, size_t length, const char *suffix)
{
    char key[DIBS__REDIS_KEY_SIZE + 8];

    dibs__resp_word(out, key,
                    (size_t)snprintf(key, sizeof key, "%.*s%s", (int)length, base, suffix));
}

void dibs__redis_begin_lock(dibs__redis_node *n, dibs__redis_script script, bool whole,
                            const char *key, size_t words, dibs__bytes *out)
{
    static const char *const beside[] = {":busy", ":server"}, *const behind[] = {":h", ":x", ":f",
                                                                                 ":q"};
    const dibs__redis *r = n->r;
    dibs__script_call call = {script, atomic_load_explicit(&n->flags, memory_order_relaxed), whole,
                              words + dibs__guard_words(&r->guard), r->address.cluster ? 6 : 0};

    dibs__script_begin(&r->scripts, call, key, out);
    for (size_t i = 0; call.more_keys && i < 2; i++)
        add_key(out, key, strlen(r->prefix) + 5, beside[i]);
    for (size_t i = 0; call.more_keys && i < 4; i++)
        add_key(out, key, strlen(key), behind[i]);
}

/* ---- One write to one server ----------------------------------------------------------------- */

/* All requests of one call, in passes: each pass sends what is not settled yet. */
typedef struct asks {
    dibs__redis *r;
    dibs__redis_ask *q;
    size_t count;
    int64_t patience;
    dibs__deadline until;
    dibs_error *err;
    unsigned pass;
    bool lost,
        moved; /* in this pass: a server did not answer; one has said that a slot is elsewhere */
    dibs__redis_node *who_said; /* where to; NULL: none of them knows */
} asks;

/* Who has slots moved knows where to. A master that was cut off from the others says CLUSTERDOWN, and its own map is
 * as old: the others are asked first. */
static void note_redirect(asks *x, const dibs__redis_ask *q)
{
    x->moved = true;
    if (dibs__redis_is_down(q->reply))
        atomic_store(&q->node->suspect, true);
    else
        x->who_said = q->node;
}

/* Nothing was done: ask again. In plain mode that goes for a forgotten script alone. */
static bool is_to_be_asked_again(asks *x, dibs__redis_ask *q)
{
    const redisReply *reply = q->reply;

    if (!reply && q->status == DIBS_UNAVAILABLE && x->r->address.cluster)
        return true;
    if (dibs__redis_no_script(reply) && !q->whole)
        return q->whole = true;
    if (!x->r->address.cluster || !dibs__redis_redirects(reply))
        return false;
    q->status = dibs__redis_refusal(reply, x->err);
    note_redirect(x, q);
    return true;
}

static void settle(asks *x, dibs__redis_ask *q, dibs_status status, redisReply *reply, bool safe)
{
    q->status = status;
    q->reply = reply;
    q->safe = safe;
    q->settled = !is_to_be_asked_again(x, q);
}

/* What was refused or not done before is forgotten when it is asked again. */
static void drop_reply(dibs__redis_ask *q)
{
    if (q->reply)
        freeReplyObject(q->reply);
    q->reply = NULL;
}

/* A server that was demoted without a cut: its address may lead to another one by now. Not if that was done already. */
static void leave_replica(asks *x, const dibs__redis_ask *q)
{
    if (!x->r->address.cluster && dibs__redis_is_replica(q->reply) &&
        atomic_load(&q->node->looks) == q->looks)
        dibs__pipeline_renew(q->node->pipeline);
}

/* A server answers its clients in an order of its own: the one last added to those who have something to read comes first.
 * After a script that publishes, that is the one that sent it, and what it does next keeps the processor from the client that was
 * woken, for which all others wait. With an answer to something before the script it is in the list already, and the
 * woken one is written to first. */
static size_t answer_last(dibs__bytes *out)
{
    dibs__resp_begin(out, 1);
    dibs__resp_text(out, "PING");
    return 1;
}

/* They are for one script: those behind the first find it there. */
static void send_batch(asks *x, dibs__redis_node *n, dibs__redis_ask *const some[], size_t count)
{
    dibs__bytes bytes = {0};
    redisReply *replies[BATCH + 2];
    size_t before = 0;
    bool safe = true, must_last = false;
    dibs__deadline until = dibs__sooner(x->until, dibs__after(x->r->base.env, x->patience));
    dibs_status status;

    if (x->r->guard.on && atomic_load(&n->looks) == 0) /* who it is goes into what is written */
        dibs__pipeline_open(n->pipeline, until, NULL);
    if (count == 1 && some[0]->wakes)
        before = answer_last(&bytes);
    for (size_t i = 0; i < count; i++) {
        drop_reply(some[i]);
        some[i]->node = n;
        some[i]->looks = atomic_load(&n->looks);
        some[i]->write(n, some[i]->what, some[i]->whole && i == 0, &bytes);
        must_last |= some[i]->must_last;
    }
    status = must_last
                 ? dibs__guard_call(n, &bytes, replies, before + count, until, &safe, x->err)
                 : dibs__pipeline_call(n->pipeline, &bytes, replies, before + count, until, x->err);
    dibs__bytes_fini(&bytes);
    atomic_store(&n->suspect, status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN);
    if (status == DIBS_UNAVAILABLE || status == DIBS_UNKNOWN)
        x->lost = true;
    if (before && replies[0])
        freeReplyObject(replies[0]);
    for (size_t i = 0; i < count; i++)
        settle(x, some[i], status, replies[before + i], safe);
    if (count > 0)
        leave_replica(x, some[0]);
}

/* ---- Passes ---------------------------------------------------------------------------------- */

/* One that did not answer the last time may have been replaced. */
static dibs__redis_node *node_of(asks *x, dibs__redis_ask *q)
{
    dibs__cluster *c = x->r->address.cluster;
    dibs__redis_node *n = c ? dibs__cluster_owner(c, q->bucket) : x->r->node;

    if (c && n && atomic_load(&n->suspect)) {
        dibs__cluster_doubt(c, x->until);
        n = dibs__cluster_owner(c, q->bucket);
    }
    if (n)
        return n;
    q->pass = x->pass;
    q->status =
        dibs__fail(x->err, DIBS_UNAVAILABLE, "no server has slot %u: see redis-cli --cluster check",
                   dibs__cluster_slot(q->bucket));
    x->lost = true;
    return NULL;
}

/* All that goes to the same server as the first, from there on. */
static void send_alike(asks *x, size_t first, dibs__redis_node *n)
{
    dibs__redis_ask *some[BATCH];
    size_t count = 0;

    for (size_t i = first; i < x->count && count < BATCH; i++) {
        dibs__redis_ask *q = &x->q[i];
        if (q->settled || q->pass == x->pass || (i > first && node_of(x, q) != n))
            continue;
        q->pass = x->pass;
        some[count++] = q;
    }
    send_batch(x, n, some, count);
}

/* Servers that did not answer the last time come last: the others must not wait for them. */
static bool send_all(asks *x)
{
    bool all = true;

    x->pass++;
    x->lost = x->moved = false;
    x->who_said = NULL;
    for (int suspects = 0; suspects < 2; suspects++)
        for (size_t i = 0; i < x->count; i++) {
            dibs__redis_node *n;
            if (x->q[i].settled || x->q[i].pass == x->pass || !(n = node_of(x, &x->q[i])))
                continue;
            if (suspects || x->count == 1 || !atomic_load(&n->suspect))
                send_alike(x, i, n);
        }
    for (size_t i = 0; i < x->count; i++)
        all &= x->q[i].settled;
    return all;
}

/* Before another pass. False: there is no time. */
static bool prepare(asks *x, int64_t *pause)
{
    const dibs__env *env = x->r->base.env;

    if (!x->r->address.cluster || (!x->lost && !x->moved))
        return true; /* a forgotten script */
    if (dibs__cluster_refresh(x->r->address.cluster, x->who_said, x->until) && *pause == 0)
        return dibs__now(env) < x->until;
    *pause = dibs__longer(*pause, FIRST_PAUSE, MAX_PAUSE);
    if (dibs__now(env) + *pause >= x->until)
        return false;
    dibs__sleep(env, *pause);
    return true;
}

void dibs__redis_ask_many(dibs__redis *r, dibs__redis_ask *q, size_t count, int64_t patience,
                          dibs__deadline until, dibs_error *err)
{
    asks x = {.r = r, .q = q, .count = count, .until = until, .err = err};
    dibs__deadline end = count == 1 ? until : dibs__after(r->base.env, PATIENCE);
    int64_t pause = 0;

    x.patience = r->address.cluster && count > 1 ? patience : DIBS__NEVER;
    while (!send_all(&x) && (x.pass == 1 || dibs__now(r->base.env) < end) && prepare(&x, &pause))
        ;
}

dibs_status dibs__redis_ask_one(dibs__redis *r, dibs__redis_ask *q, dibs__deadline until,
                                dibs_error *err)
{
    dibs__redis_ask_many(r, q, 1, DIBS__NEVER, until, err);
    return q->status;
}

dibs_status dibs__redis_ask_node(dibs__redis_node *n, dibs__bytes *bytes, redisReply **reply,
                                 dibs__deadline until, dibs_error *err)
{
    dibs_status status;

    *reply = NULL;
    status = dibs__pipeline_call(n->pipeline, bytes, reply, 1, until, err);
    dibs__bytes_fini(bytes);
    return status;
}

/* ---- All keys -------------------------------------------------------------------------------- */

void dibs__redis_scan_begin(dibs__redis *r, dibs__redis_scan *s)
{
    *s = (dibs__redis_scan){.node = {r->node}, .count = 1, .cursor = "0"};
    if (r->address.cluster)
        s->count = dibs__cluster_nodes(r->address.cluster, s->node);
}

dibs_status dibs__redis_scan_next(dibs__redis_scan *s, const char *pattern, dibs__deadline until,
                                  dibs__names *found, dibs_error *err)
{
    dibs__bytes bytes = {0};
    redisReply *reply;
    dibs_status status;

    dibs__names_write_scan(NULL, s->cursor, pattern, &bytes);
    status = dibs__redis_ask_node(s->node[s->at], &bytes, &reply, until, err);
    if (status == DIBS_OK)
        status = dibs__names_take(found, reply, s->cursor, err);
    if (reply)
        freeReplyObject(reply);
    s->at += strcmp(s->cursor, "0") == 0;
    return status;
}
