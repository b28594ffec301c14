/* hiredis, one command at a time. */
#include "raw.h"

#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A password without a user is written redis://:password@host. */
static bool log_in(lab_buyer *buyer, redisContext *r, const lab_url *u)
{
    int db = atoi(u->path);

    if (u->user[0] && u->password[0] &&
        lab_redis(buyer, r, "AUTH %s %s", u->user, u->password) == INT64_MIN)
        return false;
    if (!u->user[0] && u->password[0] && lab_redis(buyer, r, "AUTH %s", u->password) == INT64_MIN)
        return false;
    return db == 0 || lab_redis(buyer, r, "SELECT %d", db) != INT64_MIN;
}

struct redisContext *lab_redis_open(lab_buyer *buyer, const char *url)
{
    struct timeval limit = {.tv_sec = LAB_CONNECT_S};
    redisContext *r;
    lab_url u;

    if (!lab_url_read(buyer, "redis", url, 6379, &u))
        return NULL;
    r = redisConnectWithTimeout(u.host, u.port, limit);
    if (!r || r->err) {
        lab_note(buyer, "redis %s:%d: %s", u.host, u.port, r ? r->errstr : "out of memory");
        redisFree(r);
        return NULL;
    }
    if (log_in(buyer, r, &u))
        return r;
    redisFree(r);
    return NULL;
}

static redisReply *command(lab_buyer *buyer, redisContext *r, const char *format, va_list list)
{
    redisReply *reply = redisvCommand(r, format, list);

    if (reply && reply->type != REDIS_REPLY_ERROR)
        return reply;
    lab_note(buyer, "redis: %s", reply ? reply->str : r->errstr);
    freeReplyObject(reply);
    return NULL;
}

struct redisReply *lab_redis_reply(lab_buyer *buyer, struct redisContext *r, const char *format,
                                   ...)
{
    redisReply *reply;
    va_list list;

    va_start(list, format);
    reply = command(buyer, r, format, list);
    va_end(list);
    return reply;
}

int64_t lab_redis(lab_buyer *buyer, struct redisContext *r, const char *format, ...)
{
    redisReply *reply;
    int64_t number = -1;
    va_list list;

    va_start(list, format);
    reply = command(buyer, r, format, list);
    va_end(list);
    if (!reply)
        return INT64_MIN;
    if (reply->type == REDIS_REPLY_INTEGER)
        number = reply->integer;
    else if (reply->type == REDIS_REPLY_STATUS)
        number = 1;
    else if (reply->type == REDIS_REPLY_STRING)
        number = strtoll(reply->str, NULL, 10);
    freeReplyObject(reply);
    return number;
}

/* ---- Holders --------------------------------------------------------------------------------- */

bool lab_holder_open(lab_buyer *buyer)
{
    lab_holder *h = calloc(1, sizeof *h);

    if (!h)
        return lab_note(buyer, "out of memory");
    h->redis = lab_redis_open(buyer, buyer->site->url[LAB_REDIS]);
    if (!h->redis) {
        free(h);
        return false;
    }
    h->lease_ms = buyer->pace.lease_ms > 0 ? buyer->pace.lease_ms : 30000;
    snprintf(h->id, sizeof h->id, "%d-%d-%d-%" PRId64, (int)getpid(), buyer->process, buyer->thread,
             lab_now_us());
    buyer->own = h;
    return true;
}

void lab_holder_close(lab_buyer *buyer)
{
    lab_holder *h = buyer->own;

    redisFree(h->redis);
    free(h);
}

bool lab_spin(lab_buyer *buyer, int64_t pause_us, int (*ask)(lab_buyer *buyer))
{
    int64_t until = lab_until(buyer);

    for (;;) {
        int got = ask(buyer);
        buyer->tries++;
        if (got != 0)
            return got > 0;
        if (lab_now_us() >= until)
            return false;
        if (pause_us)
            usleep((useconds_t)pause_us);
    }
}
