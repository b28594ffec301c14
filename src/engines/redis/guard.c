/* See the header. */
#define _GNU_SOURCE
#include "engines/redis/guard.h"

#include "core/error.h"
#include "engines/redis/error.h"
#include "engines/redis/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LEASE_MS 60000
#define PATIENCE_MS  500
#define REPLICAS_MAX 64
#define NUMBERS_SIZE 32
#define NO_ID        "0000000000000000000000000000000000000000"
#define A_YEAR       (366LL * 24 * 3600 * DIBS__SECOND) /* longer than any quiet period */

/* What mark.lua is asked for. */
typedef enum step { LOOK, ACKNOWLEDGED, VOUCH } step;

void dibs__guard_init(dibs__guard *g)
{
    memset(g, 0, sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
}

void dibs__guard_fini(dibs__guard *g)
{
    pthread_mutex_destroy(&g->lock);
}

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
static dibs_status identify(dibs__guard *g, const char *info, dibs_error *err)
{
    char run[DIBS__RUN_SIZE] = "", id[DIBS__RUN_SIZE] = "", before[DIBS__RUN_SIZE] = "",
         up[24] = "0";
    bool promoted;

    if (!info || !dibs__info_value(info, "run_id", run, sizeof run) ||
        !dibs__info_value(info, "master_replid2", before, sizeof before) ||
        !dibs__info_value(info, "master_replid", id, sizeof id))
        return dibs__fail(err, DIBS_DENIED,
                          "the server does not say which server it is, which is needed to detect a "
                          "failover: allow "
                          "the user +info, or disable the check with guard=off (a service that "
                          "withholds INFO cannot "
                          "be guarded)");
    promoted = strcmp(before, NO_ID) != 0;
    dibs__info_value(info, "uptime_in_seconds", up, sizeof up);
    pthread_mutex_lock(&g->lock);
    snprintf(g->server, sizeof g->server, "%s%s%s", run, promoted ? "/" : "", promoted ? id : "");
    g->up = promoted ? -1 : strtoll(up, NULL, 10) * DIBS__SECOND;
    pthread_mutex_unlock(&g->lock);
    return DIBS_OK;
}

void dibs__guard_server(dibs__guard *g, char out[DIBS__SERVER_SIZE])
{
    pthread_mutex_lock(&g->lock);
    memcpy(out, g->server, sizeof g->server);
    pthread_mutex_unlock(&g->lock);
}

void dibs__guard_write(dibs__guard *g, dibs__bytes *out)
{
    char server[DIBS__SERVER_SIZE];

    if (!g->on)
        return;
    dibs__guard_server(g, server);
    dibs__resp_text(out, server);
}

/* ---- The marker ------------------------------------------------------------------------------ */

/* Where the marker is looked at: a new connection, or (NULL) the main one. */
typedef struct looking {
    dibs__redis *r;
    dibs__conn *c;
    dibs__deadline until;
} looking;

static dibs_status ask(const looking *l, dibs__bytes *bytes, redisReply **reply, dibs_error *err)
{
    dibs_status status = l->c ? dibs__conn_ask(l->c, bytes, reply, 1, l->until, err)
                              : dibs__pipeline_call(l->r->pipeline, bytes, reply, 1, l->until, err);

    dibs__bytes_fini(bytes);
    if (status == DIBS_OK && (*reply)->type == REDIS_REPLY_ERROR)
        status = dibs__redis_refusal(*reply, err);
    if (status != DIBS_OK && *reply) {
        freeReplyObject(*reply);
        *reply = NULL;
    }
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
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

/* The script goes out whole: this is rare. */
static void write_mark(const looking *l, step what, int64_t replicas, dibs__bytes *out)
{
    dibs__guard *g = &l->r->guard;
    char key[DIBS__REDIS_PREFIX_MAX + 16], numbers[NUMBERS_SIZE], *at = numbers;

    snprintf(key, sizeof key, "%s:server", l->r->prefix);
    at = dibs__redis_add_double(at, g->up);
    at = dibs__redis_add_double(at, g->max_lease);
    at = dibs__redis_add_double(at, replicas);
    at = dibs__redis_add_double(at, what);
    dibs__script_begin(&l->r->scripts,
                       (dibs__script_call){DIBS__SCRIPT_MARK, atomic_load(&l->r->flags), true, 2},
                       key, out);
    dibs__guard_write(g, out);
    dibs__resp_word(out, numbers, (size_t)(at - numbers));
}

/* What the marker says: how long nothing is granted, how many replicas are wanted, how many have acknowledged. */
static dibs_status mark(const looking *l, step what, int64_t replicas, int64_t said[3],
                        dibs_error *err)
{
    dibs__bytes bytes = {0};
    redisReply *reply = NULL;
    dibs_status status;

    write_mark(l, what, replicas, &bytes);
    status = ask(l, &bytes, &reply, err);
    if (status != DIBS_OK)
        return status;
    for (size_t i = 0; i < 3 && status == DIBS_OK; i++) {
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 ||
            reply->element[i]->type != REDIS_REPLY_INTEGER)
            status = dibs__redis_refusal(NULL, err);
        else
            said[i] = reply->element[i]->integer;
    }
    freeReplyObject(reply);
    return status;
}

/* Waits for the replicas that the marker wants, and writes down that they have it. */
static dibs_status settle(const looking *l, int64_t said[3], dibs_error *err)
{
    dibs__bytes bytes = {0};
    redisReply *reply = NULL;
    dibs_status status;
    int64_t wanted = said[1], got;

    write_wait(wanted, patience_of(l->r, l->until), &bytes);
    status = ask(l, &bytes, &reply, err);
    if (status != DIBS_OK)
        return status;
    got = reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0;
    freeReplyObject(reply);
    return got < wanted ? DIBS_OK : mark(l, ACKNOWLEDGED, wanted, said, err);
}

/* Some services withhold WAIT. For no replica at all it returns at once. */
static dibs_status try_wait(dibs__redis *r, dibs__conn *c, dibs__deadline until, dibs_error *err)
{
    dibs__bytes bytes = {0};
    redisReply *reply = NULL;
    dibs_status status;

    if (r->guard.replicas == 0)
        return DIBS_OK;
    write_wait(0, DIBS__MS, &bytes);
    status = ask(&(looking){r, c, until}, &bytes, &reply, err);
    if (status == DIBS_OK)
        freeReplyObject(reply);
    else
        dibs__wrap(err, "wait=%lld in the URL needs the command WAIT",
                   (long long)r->guard.replicas);
    return status;
}

static dibs_status look(const looking *l, dibs_error *err)
{
    dibs__guard *g = &l->r->guard;
    int64_t said[3];
    dibs_status status = mark(l, g->vouched ? VOUCH : LOOK, g->replicas, said, err);

    if (status == DIBS_OK && said[2] < said[1])
        status = settle(l, said, err);
    return status;
}

dibs_status dibs__guard_greet(dibs__redis *r, dibs__conn *c, const char *info, dibs__deadline until,
                              dibs_error *err)
{
    dibs_status status = try_wait(r, c, until, err);

    if (status == DIBS_OK && r->guard.on)
        status = identify(&r->guard, info, err);
    if (status == DIBS_OK && r->guard.on)
        status = look(&(looking){r, c, until}, err);
    return status;
}

/* ---- What the replicas have ------------------------------------------------------------------ */

dibs_status dibs__guard_call(dibs__redis *r, dibs__bytes *bytes, redisReply **out, size_t count,
                             dibs__deadline until, bool *safe, dibs_error *err)
{
    dibs_status status;

    *safe = true;
    if (r->guard.replicas == 0)
        return dibs__pipeline_call(r->pipeline, bytes, out, count, until, err);
    write_wait(r->guard.replicas, patience_of(r, until), bytes);
    status = dibs__pipeline_call(r->pipeline, bytes, out, count + 1, until, err);
    *safe = out[count] && out[count]->type == REDIS_REPLY_INTEGER &&
            out[count]->integer >= r->guard.replicas;
    if (status == DIBS_OK && out[count]->type == REDIS_REPLY_ERROR)
        status = dibs__redis_refusal(out[count], err);
    if (status == DIBS_UNKNOWN)
        dibs__wrap(err, "waiting for replicas: %lld", (long long)r->guard.replicas);
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
 * server's, as after FLUSHALL: it is looked at on a new connection. */
dibs_status dibs__guard_explain(dibs__redis *r, const redisReply *reply, const char *server,
                                bool *again, dibs__deadline until, dibs__reply *out,
                                dibs_error *err)
{
    int64_t left = number_of(reply, 3);
    char now[DIBS__SERVER_SIZE];
    dibs_status status;

    *out = (dibs__reply){.remaining = 1};
    if (number_of(reply, 0) == DIBS__REDIS_UNMARKED) {
        dibs__guard_server(&r->guard, now);
        if (strcmp(now, server) == 0)
            dibs__pipeline_renew(r->pipeline);
        return dibs__fail(err, DIBS_UNAVAILABLE, "the marker of this server was lost: try again");
    }
    if (left < A_YEAR) {
        *again = false;
        return still_quiet(left, out, err);
    }
    status = *again ? look(&(looking){r, NULL, until}, err) : DIBS_OK;
    return status != DIBS_OK
               ? status
               : dibs__fail(err, DIBS_UNAVAILABLE,
                            "the server has taken over, and not enough replicas have acknowledged "
                            "that: nothing is granted (wait= in the URL)");
}
