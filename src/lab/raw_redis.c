/* hiredis, one command at a time. */
#include "raw.h"

#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "redis://user:password@host:port/db" in parts; false: not such a thing. */
static bool take_apart(const char *url, char *user, char *password, char *host, int *port, int *db)
{
    char rest[512], *at, *colon, *slash;

    if (strncmp(url, "redis://", 8) != 0)
        return false;
    snprintf(rest, sizeof rest, "%s", url + 8);
    rest[strcspn(rest, "?")] = '\0';
    if ((slash = strchr(rest, '/'))) {
        *slash = '\0';
        *db = atoi(slash + 1);
    }
    if ((at = strrchr(rest, '@'))) {
        *at = '\0';
        colon = strchr(rest, ':');
        snprintf(password, 128, "%.127s", colon ? colon + 1 : rest);
        if (colon && colon != rest)
            snprintf(user, 128, "%.*s", (int)(colon - rest), rest);
    }
    at = at ? at + 1 : rest;
    if ((colon = strrchr(at, ':'))) {
        *colon = '\0';
        *port = atoi(colon + 1);
    }
    snprintf(host, 256, "%.255s", *at ? at : "127.0.0.1");
    return true;
}

struct redisContext *lab_redis_open(lab_seat *seat, const char *url)
{
    char user[128] = "", password[128] = "", host[256];
    struct timeval limit = {.tv_sec = 5};
    int port = 6379, db = 0;
    redisContext *r;

    if (!take_apart(url, user, password, host, &port, &db)) {
        lab_note(seat, "'%s' is no redis://host:port", url);
        return NULL;
    }
    r = redisConnectWithTimeout(host, port, limit);
    if (!r || r->err) {
        lab_note(seat, "redis %s:%d: %s", host, port, r ? r->errstr : "out of memory");
        redisFree(r);
        return NULL;
    }
    if ((user[0] && lab_redis(seat, r, "AUTH %s %s", user, password) == INT64_MIN) ||
        (!user[0] && password[0] && lab_redis(seat, r, "AUTH %s", password) == INT64_MIN) ||
        (db && lab_redis(seat, r, "SELECT %d", db) == INT64_MIN)) {
        redisFree(r);
        return NULL;
    }
    return r;
}

static redisReply *command(lab_seat *seat, redisContext *r, const char *format, va_list list)
{
    redisReply *reply = redisvCommand(r, format, list);

    if (reply && reply->type != REDIS_REPLY_ERROR)
        return reply;
    lab_note(seat, "redis: %s", reply ? reply->str : r->errstr);
    freeReplyObject(reply);
    return NULL;
}

struct redisReply *lab_redis_reply(lab_seat *seat, struct redisContext *r, const char *format, ...)
{
    redisReply *reply;
    va_list list;

    va_start(list, format);
    reply = command(seat, r, format, list);
    va_end(list);
    return reply;
}

int64_t lab_redis(lab_seat *seat, struct redisContext *r, const char *format, ...)
{
    redisReply *reply;
    int64_t number = -1;
    va_list list;

    va_start(list, format);
    reply = command(seat, r, format, list);
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

bool lab_holder_open(lab_seat *seat)
{
    lab_holder *h = calloc(1, sizeof *h);

    if (!h)
        return lab_note(seat, "out of memory");
    h->redis = lab_redis_open(seat, seat->site->url[LAB_REDIS]);
    if (!h->redis) {
        free(h);
        return false;
    }
    h->lease_ms = seat->pace.lease_ms > 0 ? seat->pace.lease_ms : 30000;
    snprintf(h->id, sizeof h->id, "%d-%d-%d-%" PRId64, (int)getpid(), seat->process, seat->thread,
             lab_now_us());
    seat->own = h;
    return true;
}

void lab_holder_close(lab_seat *seat)
{
    lab_holder *h = seat->own;

    redisFree(h->redis);
    free(h);
}

bool lab_spin(lab_seat *seat, int64_t pause_us, int (*ask)(lab_seat *seat))
{
    int64_t until = lab_until(seat);

    for (;;) {
        int got = ask(seat);
        seat->tries++;
        if (got != 0)
            return got > 0;
        if (lab_now_us() >= until)
            return false;
        if (pause_us)
            usleep((useconds_t)pause_us);
    }
}
