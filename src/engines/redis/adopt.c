/* See the header. The old master is asked over a short connection of its own. */
#define _GNU_SOURCE
#include "engines/redis/adopt.h"

#include "core/error.h"
#include "engines/redis/error.h"
#include "engines/redis/handshake.h"
#include "engines/redis/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MANY         128            /* markers in one write */
#define ROUNDS       8              /* masters that slots have come from */
#define TRIES        20             /* to read both clocks close together */
#define AHEAD        (5 * DIBS__MS) /* what every holder's deadline allows for */
#define ASK_SPAN     (500 * DIBS__MS)
#define ID_AT        56 /* in a marker: which server */
#define NUMBERS_SIZE 56

/* One old master and what has come from it. */
typedef struct moving {
    dibs__redis_node *n;
    dibs__adopt_ask_fn ask; /* of `n` */
    void *ctx;
    dibs__deadline until;
    char own[DIBS__SERVER_SIZE], from[DIBS__SERVER_SIZE];
    bool granted; /* it has a marker of its own that is open */
    unsigned bucket[DIBS__BUCKETS];
    size_t count;
    dibs__conn *old;
    int64_t old_time;
} moving;

static void free_replies(redisReply **replies, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (replies[i])
            freeReplyObject(replies[i]);
}

static void make_key(const dibs__redis *r, unsigned bucket, char out[DIBS__REDIS_KEY_SIZE])
{
    dibs__redis_prefix(r, bucket, out);
    strcat(out, ":server");
}

static void write_get(const dibs__redis *r, unsigned bucket, dibs__bytes *out)
{
    char key[DIBS__REDIS_KEY_SIZE];

    make_key(r, bucket, key);
    dibs__resp_begin(out, 2);
    dibs__resp_text(out, "GET");
    dibs__resp_text(out, key);
}

static bool read_time(const redisReply *reply, int64_t *out)
{
    bool whole = reply && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
                 reply->element[0]->str && reply->element[1]->str;

    *out = whole ? strtoll(reply->element[0]->str, NULL, 10) * DIBS__SECOND +
                       strtoll(reply->element[1]->str, NULL, 10)
                 : 0;
    return whole;
}

static void write_time(dibs__bytes *out)
{
    dibs__resp_begin(out, 1);
    dibs__resp_text(out, "TIME");
}

/* ---- Which markers are another server's -------------------------------------------------------- */

/* A marker's first number is when grants may begin. */
static void read_marker(moving *m, unsigned bucket, const redisReply *reply, int64_t now)
{
    const char *id;

    if (!reply || reply->type != REDIS_REPLY_STRING || reply->len <= ID_AT)
        return;
    id = reply->str + ID_AT;
    if (strcmp(id, m->own) == 0)
        m->granted |= (int64_t)dibs__redis_read_double(reply->str) <= now;
    else if (!m->from[0] && strlen(id) < sizeof m->from)
        strcpy(m->from, id);
    if (m->from[0] && strcmp(id, m->from) == 0)
        m->bucket[m->count++] = bucket;
}

static dibs_status read_markers(moving *m, const unsigned *buckets, size_t count, dibs_error *err)
{
    dibs_status status = DIBS_OK;

    m->count = 0;
    m->from[0] = '\0';
    for (size_t from = 0; from < count && status == DIBS_OK; from += MANY) {
        size_t some = count - from < MANY ? count - from : MANY;
        redisReply *replies[MANY + 1] = {NULL};
        dibs__bytes bytes = {0};
        int64_t now;
        write_time(&bytes);
        for (size_t i = 0; i < some; i++)
            write_get(m->n->r, buckets[from + i], &bytes);
        status = m->ask(m->ctx, &bytes, replies, some + 1, err);
        if (status == DIBS_OK && read_time(replies[0], &now))
            for (size_t i = 0; i < some; i++)
                read_marker(m, buckets[from + i], replies[i + 1], now);
        free_replies(replies, some + 1);
    }
    return status;
}

/* ---- The old master ------------------------------------------------------------------------------ */

/* Is it the one that the markers name, and a master? */
static bool is_it(moving *m)
{
    dibs__bytes bytes = {0};
    redisReply *reply = NULL;
    char server[DIBS__SERVER_SIZE], role[16];
    int64_t up;
    bool same;

    dibs__resp_begin(&bytes, 1);
    dibs__resp_text(&bytes, "INFO");
    same = dibs__conn_ask(m->old, &bytes, &reply, 1, m->until, NULL) == DIBS_OK &&
           reply->type == REDIS_REPLY_STRING && dibs__guard_identity(reply->str, server, &up) &&
           strcmp(server, m->from) == 0 &&
           dibs__info_value(reply->str, "role", role, sizeof role) && strcmp(role, "master") == 0;
    free_replies(&reply, 1);
    dibs__bytes_fini(&bytes);
    return same;
}

static bool find_old(moving *m)
{
    dibs__redis_node *nodes[DIBS__NODES_MAX];
    size_t count = dibs__cluster_nodes(m->n->r->address.cluster, nodes);

    for (size_t i = 0; i < count; i++) {
        dibs__deadline soon = dibs__sooner(m->until, dibs__after(m->n->r->base.env, ASK_SPAN));
        if (nodes[i] == m->n || atomic_load(&nodes[i]->suspect) ||
            dibs__redis_connect(&nodes[i]->address, soon, &m->old, NULL) != DIBS_OK)
            continue;
        if (is_it(m))
            return true;
        dibs__conn_close(m->old);
        m->old = NULL;
    }
    return false;
}

/* By how much this server's clock may be ahead of the old one's. */
static bool clocks_agree(moving *m)
{
    const dibs__env *env = m->n->r->base.env;
    int64_t best = INT64_MAX;

    for (int i = 0; i < TRIES && best > AHEAD; i++) {
        dibs__bytes here = {0}, there = {0};
        redisReply *replies[2] = {NULL};
        int64_t began = dibs__now(env), mine, old, ahead;
        bool read;
        write_time(&here);
        write_time(&there);
        read = m->ask(m->ctx, &here, &replies[0], 1, NULL) == DIBS_OK &&
               dibs__conn_ask(m->old, &there, &replies[1], 1, m->until, NULL) == DIBS_OK &&
               read_time(replies[0], &mine) && read_time(replies[1], &old);
        ahead = read ? mine - old + (dibs__now(env) - began) : INT64_MAX;
        best = ahead < best ? ahead : best;
        m->old_time = read ? old : 0;
        free_replies(replies, 2);
        dibs__bytes_fini(&there);
    }
    return best <= AHEAD;
}

/* Takes out those that the old master has not given up. DIBS_UNAVAILABLE: some are on their way. */
static dibs_status keep_moved(moving *m, dibs_error *err)
{
    dibs_status status = DIBS_OK;
    size_t kept = 0;

    for (size_t i = 0; i < m->count && status == DIBS_OK; i++) {
        dibs__bytes bytes = {0};
        redisReply *reply = NULL;
        write_get(m->n->r, m->bucket[i], &bytes);
        status = dibs__conn_ask(m->old, &bytes, &reply, 1, m->until, err);
        if (status == DIBS_OK && reply->type == REDIS_REPLY_ERROR) {
            if (strncmp(reply->str, "MOVED ", 6) == 0)
                m->bucket[kept++] = m->bucket[i];
            else
                status = dibs__redis_refusal(reply, err);
        }
        free_replies(&reply, 1);
        dibs__bytes_fini(&bytes);
    }
    m->count = kept;
    return status == DIBS_OK ? DIBS_OK : DIBS_UNAVAILABLE;
}

/* ---- Taking them over ------------------------------------------------------------------------------ */

static void write_adopt(const moving *m, unsigned bucket, int64_t up, bool whole, dibs__bytes *out)
{
    const dibs__redis *r = m->n->r;
    char key[DIBS__REDIS_KEY_SIZE], numbers[NUMBERS_SIZE], *at = numbers;

    make_key(r, bucket, key);
    at = dibs__redis_add_double(at, up);
    at = dibs__redis_add_double(at, r->guard.max_lease);
    at = dibs__redis_add_double(at, r->guard.replicas);
    at = dibs__redis_add_double(at, DIBS__MARK_ADOPT);
    at = dibs__redis_add_double(at, m->old_time);
    at = dibs__redis_add_double(at, m->granted);
    dibs__script_begin(
        &r->scripts, (dibs__script_call){DIBS__SCRIPT_MARK, atomic_load(&m->n->flags), whole, 3, 0},
        key, out);
    dibs__resp_text(out, m->own);
    dibs__resp_word(out, numbers, (size_t)(at - numbers));
    dibs__resp_text(out, m->from);
}

static dibs_status adopt_all(const moving *m, int64_t up, dibs_error *err)
{
    dibs_status status = DIBS_OK;

    for (size_t from = 0; from < m->count && status == DIBS_OK; from += MANY) {
        size_t some = m->count - from < MANY ? m->count - from : MANY;
        redisReply *replies[MANY] = {NULL};
        dibs__bytes bytes = {0};
        for (size_t i = 0; i < some; i++)
            write_adopt(m, m->bucket[from + i], up, i == 0, &bytes);
        status = m->ask(m->ctx, &bytes, replies, some, err);
        free_replies(replies, some);
    }
    return status;
}

dibs_status dibs__adopt(dibs__redis_node *n, const unsigned *buckets, size_t count,
                        dibs__adopt_ask_fn ask, void *ctx, dibs__deadline until, dibs_error *err)
{
    moving m = {.n = n, .ask = ask, .ctx = ctx, .until = until};
    int64_t up = dibs__guard_copy_server(n, m.own);
    dibs_status status = DIBS_OK;

    for (int i = 0; i < ROUNDS && status == DIBS_OK; i++) {
        status = read_markers(&m, buckets, count, err);
        if (status != DIBS_OK || m.count == 0 || !find_old(&m))
            break;
        if (clocks_agree(&m) && (status = keep_moved(&m, err)) == DIBS_OK)
            status = adopt_all(&m, up, err);
        dibs__conn_close(m.old);
        m.old = NULL;
    }
    return status;
}
