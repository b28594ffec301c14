/* hiredis, one command at a time. */
#include "raw.h"

#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static redisReply *ask(lab_seat *seat, redisContext *r, const char *format, va_list list)
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
    reply = ask(seat, r, format, list);
    va_end(list);
    return reply;
}

int64_t lab_redis(lab_seat *seat, struct redisContext *r, const char *format, ...)
{
    redisReply *reply;
    int64_t number = -1;
    va_list list;

    va_start(list, format);
    reply = ask(seat, r, format, list);
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
