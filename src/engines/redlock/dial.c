/* Dialling a node: a thread that connects, logs in, loads the scripts, looks at the node's marker,
 * puts the connection in place and is gone. A node that does not answer is left alone for a while,
 * longer each time.
 *
 * The marker tells whether the node is still the one that gave its votes: see lua/mark.lua. It is
 * looked at on every new connection, before anything else is asked there; a server that restarts
 * cuts its connections, so that no vote can slip through in between. */
#define _GNU_SOURCE
#include "engines/redlock/voters.h"

#include "core/error.h"
#include "core/thread.h"
#include "engines/redis/error.h"
#include "engines/redlock/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#define SPAN        (2 * DIBS__SECOND)
#define PAUSE_FIRST (20 * DIBS__MS)
#define PAUSE_LAST  (2 * DIBS__SECOND)

typedef struct dial {
    dibs__voter *node;
    bool subscription;
    uint64_t number; /* of all dials of this handle for commands */
} dial;

/* What a new connection brings. */
typedef struct new_connection {
    dibs__conn *conn;
    bool flags, may_evict, always;
    int64_t born, longest, clock_ahead;
    char run[48];
} new_connection;

/* ---- The marker ------------------------------------------------------------------------------ */

/* Every write is on disk before it is answered. Who may not ask is taken for one that does not. */
static dibs_status ask_always(dibs__conn *c, const char *info, dibs__deadline until, bool *out,
                              dibs_error *err)
{
    dibs__bytes bytes = {0};
    redisReply *reply = NULL;
    char value[16];
    bool log = info && dibs__info_value(info, "aof_enabled", value, sizeof value) &&
               strcmp(value, "1") == 0;
    dibs_status status;

    dibs__resp_begin(&bytes, 3);
    dibs__resp_text(&bytes, "CONFIG");
    dibs__resp_text(&bytes, "GET");
    dibs__resp_text(&bytes, "appendfsync");
    status = dibs__conn_ask(c, &bytes, &reply, 1, until, err);
    *out = log && status == DIBS_OK && reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
           reply->element[1]->str && strcmp(reply->element[1]->str, "always") == 0;
    if (reply)
        freeReplyObject(reply);
    dibs__bytes_fini(&bytes);
    return status;
}

static dibs_status read_marker(const redisReply *reply, new_connection *out, int64_t wall,
                               dibs_error *err)
{
    if (!reply || reply->type != REDIS_REPLY_ARRAY || reply->elements != 4)
        return dibs__redis_refusal(reply, err);
    for (size_t i = 0; i < 4; i++)
        if (reply->element[i]->type != REDIS_REPLY_INTEGER || reply->element[i]->integer < 0)
            return dibs__redis_refusal(reply, err);
    out->born = reply->element[0]->integer;
    out->longest = reply->element[1]->integer;
    out->always = reply->element[2]->integer == 1;
    out->clock_ahead = reply->element[3]->integer - wall;
    return DIBS_OK;
}

/* Without INFO there is no run id, and a restart would go unnoticed. */
static dibs_status mark(dibs__voter *n, dibs__conn *c, const char *info, uint64_t number,
                        dibs__deadline until, new_connection *out, dibs_error *err)
{
    dibs__voters *v = n->all;
    char up[24] = "0", word[DIBS__PACK_SIZE];
    dibs__bytes bytes = {0};
    redisReply *reply = NULL;
    bool always = false;
    dibs_status status = ask_always(c, info, until, &always, err);

    if (info && dibs__info_value(info, "run_id", out->run, sizeof out->run))
        dibs__info_value(info, "uptime_in_seconds", up, sizeof up);
    else if (!v->vouched)
        return dibs__fail(
            err, DIBS_DENIED,
            "the user may not run INFO, which is needed to detect a restart: grant it +info, "
            "or disable the check with guard=off");
    if (status == DIBS_OK) {
        dibs__pack p = dibs__pack_begin(word);
        dibs__pack_number(&p, strtod(up, NULL));
        dibs__pack_number(&p, always);
        dibs__pack_number(&p, v->vouched);
        dibs__pack_number(&p, (double)(v->max_lease + 2 * v->limit));
        dibs__pack_number(&p, (double)number);
        dibs__query q = {.script = DIBS__RED_MARK, .key = v->marker, .words = 3};
        q.word[0] = (dibs__word){out->run, strlen(out->run)};
        q.word[1] = (dibs__word){word, dibs__pack_length(&p)};
        q.word[2] = (dibs__word){v->gone, strlen(v->gone)};
        dibs__ask_write(v, &q, out->flags, &bytes);
        status = dibs__conn_ask(c, &bytes, &reply, 1, until, err);
    }
    if (status == DIBS_OK)
        status = read_marker(reply, out, v->env->wall(v->env->ctx), err);
    if (reply)
        freeReplyObject(reply);
    dibs__bytes_fini(&bytes);
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

/* ---- Connecting ------------------------------------------------------------------------------ */

static dibs_status connect_node(const dial *d, dibs__deadline until, new_connection *out,
                                dibs_error *err)
{
    dibs__voter *n = d->node;
    dibs__server_kind kind = {0};
    dibs_status status = dibs__redis_connect(&n->address, until, &out->conn, err);

    if (status != DIBS_OK || d->subscription)
        return status;
    status = dibs__redis_prepare(&n->all->scripts, out->conn, until, &kind, err);
    out->flags = kind.flags;
    out->may_evict = kind.may_evict;
    if (status == DIBS_OK)
        status = mark(n, out->conn, kind.info ? kind.info->str : NULL, d->number, until, out, err);
    if (kind.info)
        freeReplyObject(kind.info);
    if (status != DIBS_OK) {
        dibs__wrap(err, "%s", n->address.text);
        dibs__conn_close(out->conn);
        out->conn = NULL;
    }
    return status;
}

/* With the lock. */
static void install(dibs__voter *n, const new_connection *a)
{
    dibs__voters *v = n->all;

    n->conn = a->conn;
    n->flags = a->flags;
    n->born = a->born;
    n->longest = a->longest;
    n->always = a->always;
    n->clock_ahead = a->clock_ahead;
    memcpy(n->run, a->run, sizeof n->run);
    n->used = dibs__now(v->env);
    n->why = (dibs_error){0};
    if (a->longest > v->longest)
        v->longest = a->longest;
    if (a->may_evict && !n->warned)
        v->sink->log(v->sink, DIBS_LOG_WARNING,
                     "redlock: %s: its maxmemory-policy may evict locks that are held; set it to "
                     "noeviction",
                     n->address.text);
    n->warned |= a->may_evict;
    dibs__link_send_owed(n);
    eventfd_write(v->wake_fd, 1);
}

/* With the lock. The same complaint again is not worth a queue. */
static void failed(dibs__voter *n, bool subscription, const dibs_error *err)
{
    dibs__voters *v = n->all;

    n->pause[subscription] = dibs__longer(n->pause[subscription], PAUSE_FIRST, PAUSE_LAST);
    n->retry_at[subscription] = dibs__after(v->env, n->pause[subscription]);
    if (subscription)
        return;
    if (strcmp(n->why.message, err->message) != 0)
        v->sink->log(v->sink, DIBS_LOG_WARNING, "redlock: %s", err->message);
    n->why = *err;
}

static void *run_dial(void *arg)
{
    dial *d = arg;
    dibs__voter *n = d->node;
    dibs__voters *v = n->all;
    new_connection a = {0};
    dibs_error err = {0};
    dibs_status status = connect_node(d, dibs__after(v->env, SPAN), &a, &err);

    pthread_mutex_lock(&v->lock);
    n->dialling[d->subscription] = false;
    if (v->closed) {
        dibs__conn_close(a.conn);
    } else if (status != DIBS_OK) {
        failed(n, d->subscription, &err);
    } else if (d->subscription) {
        n->subscription = a.conn;
        n->subscription_new = true;
    } else {
        install(n, &a);
    }
    if (status == DIBS_OK)
        n->pause[d->subscription] = 0;
    if (!v->closed && d->subscription)
        eventfd_write(v->subscription_fd, 1);
    pthread_cond_broadcast(&v->turned);
    free(d);
    dibs__voters_unref(v);
    return NULL;
}

void dibs__voter_dial(dibs__voter *n, bool subscription)
{
    dibs__voters *v = n->all;
    dial *d;

    if (v->closed || n->dialling[subscription] || (subscription ? n->subscription : n->conn) ||
        dibs__now(v->env) < n->retry_at[subscription])
        return;
    d = calloc(1, sizeof *d);
    if (d)
        *d = (dial){n, subscription, subscription || !n->dialled++ ? 0 : ++v->dials};
    if (!d || !dibs__thread_start_detached(run_dial, d)) {
        free(d);
        dibs_error err = {0};
        dibs__fail(&err, DIBS_NO_MEMORY, "%s: cannot start a thread", n->address.text);
        failed(n, subscription, &err);
        return;
    }
    n->dialling[subscription] = true;
    v->refs++;
}

void dibs__voters_dial_all(dibs__voters *v)
{
    for (size_t i = 0; i < v->count; i++)
        dibs__voter_dial(&v->voter[i], false);
}

size_t dibs__voters_connected(const dibs__voters *v)
{
    size_t n = 0;

    for (size_t i = 0; i < v->count; i++)
        n += dibs__link_up(&v->voter[i]);
    return n;
}
