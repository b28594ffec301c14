/* Error replies begin with a word in capitals; a few older ones are known by their text alone. All
 * of them mean that the command was not done. */
#define _GNU_SOURCE
#include "engines/redis/error.h"

#include "core/error.h"

#include <string.h>

typedef struct meaning {
    const char *starts; /* of the reply */
    dibs_status status;
    const char *advice;
} meaning;

#define RIGHTS                                                                           \
    "the user may not do that: it needs ~PREFIX:* &PREFIX:* +@read +@write +@scripting " \
    "+@connection +@pubsub +time"

static const meaning meanings[] = {
    {"NOAUTH", DIBS_DENIED,
     "the server requires a password: redis://user:password@host, or without a user "
     ":password@host"},
    {"WRONGPASS", DIBS_DENIED, "user or password in the URL is wrong, or was changed"},
    {"ERR invalid password", DIBS_DENIED, "the password in the URL is wrong, or was changed"},
    {"ERR AUTH", DIBS_DENIED,
     "the server has no password for the default user: take it out of the URL"},
    {"ERR Client sent AUTH", DIBS_DENIED, "the server has no password: take it out of the URL"},
    {"ERR wrong number of arguments for 'auth'", DIBS_DENIED,
     "the server is too old for users: give the password alone"},
    {"NOPERM", DIBS_DENIED, RIGHTS},
    {"ERR The user executing the script can't run", DIBS_DENIED, RIGHTS},
    {"DENIED", DIBS_DENIED, "the server's protected mode refuses other hosts: give it a password"},
    {"LOADING", DIBS_UNAVAILABLE, "the server is still reading its data: try again"},
    {"MASTERDOWN", DIBS_UNAVAILABLE,
     "this is a replica without its primary: use the primary's address"},
    {"READONLY", DIBS_UNAVAILABLE, "this is a replica: use the primary's address"},
    {"BUSY", DIBS_UNAVAILABLE, "another client's script keeps the server busy: retry"},
    {"OOM", DIBS_UNAVAILABLE, "the server is out of memory: raise its maxmemory"},
    {"MISCONF", DIBS_UNAVAILABLE,
     "the server cannot save to disk and takes no writes: look at its log"},
    {"NOREPLICAS", DIBS_UNAVAILABLE, "the server has fewer replicas than min-replicas-to-write"},
    {"CLUSTERDOWN", DIBS_UNAVAILABLE,
     "the cluster is down, or this part of it: see redis-cli --cluster check"},
    {"TRYAGAIN", DIBS_UNAVAILABLE,
     "the key's slot is being moved: if that does not end, run redis-cli --cluster fix"},
    {"ASK", DIBS_UNAVAILABLE,
     "the key's slot is being moved: if that does not end, run redis-cli --cluster fix"},
    {"MOVED", DIBS_UNAVAILABLE,
     "the servers of the cluster do not agree who has the key: try again"},
    {"ERR This instance has cluster support disabled", DIBS_INVALID,
     "this server is not in cluster mode: use redis://host:port"},
    {"ERR max number of clients", DIBS_UNAVAILABLE,
     "the server has no connection left: raise its maxclients"},
    {"ERR SELECT is not allowed in cluster", DIBS_UNSUPPORTED, "a cluster has only database 0"},
    {"ERR DB index is out of range", DIBS_INVALID,
     "the server has no such database: see its 'databases' setting"},
    {"ERR invalid DB index", DIBS_INVALID,
     "the server has no such database: see its 'databases' setting"},
    {"WRONGTYPE", DIBS_ENGINE_FAILED,
     "the key belongs to something else: choose another prefix= in the URL"},
    {"NOTOURS", DIBS_ENGINE_FAILED,
     "the key belongs to something else: choose another prefix= in the URL"},
    {"ERR unknown command", DIBS_UNSUPPORTED,
     "the server lacks a command that is needed: use Redis 6 or later"},
};

static bool starts_with(const redisReply *reply, const char *word)
{
    return reply->str && strncmp(reply->str, word, strlen(word)) == 0;
}

/* Redis 7 puts what a script stumbled over into its own error; the cause is inside. */
static const meaning *find_meaning(const redisReply *reply)
{
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++)
        if (starts_with(reply, meanings[i].starts))
            return &meanings[i];
    return NULL;
}

dibs_status dibs__redis_refusal(const redisReply *reply, dibs_error *err)
{
    const meaning *m;
    const char *text;

    if (!reply || reply->type != REDIS_REPLY_ERROR)
        return dibs__fail(err, DIBS_ENGINE_FAILED, "unexpected reply from the server");
    m = find_meaning(reply);
    text = reply->str ? reply->str : "";
    if (m)
        dibs__fail(err, m->status, "%.200s (%s)", m->advice, text);
    else
        dibs__fail(err, DIBS_ENGINE_FAILED, "the server returned an error: %.300s", text);
    dibs__error_code(err, "%.*s", (int)strcspn(text, " "), text);
    return m ? m->status : DIBS_ENGINE_FAILED;
}

/* Other words in capitals tell of a state that passes. */
bool dibs__redis_will_never(const redisReply *reply)
{
    static const char *const starts[] = {"NOPERM", "ERR unknown", "ERR Unknown", "ERR syntax",
                                         "ERR wrong number"};

    for (size_t i = 0; reply->type == REDIS_REPLY_ERROR && i < sizeof starts / sizeof starts[0];
         i++)
        if (starts_with(reply, starts[i]))
            return true;
    return false;
}

/* A script that meets a key which is on its way is stopped before it has written anything but what a second run writes
 * again. */
bool dibs__redis_redirects(const redisReply *reply)
{
    static const char *const starts[] = {"MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN", "READONLY"};

    if (!reply || reply->type != REDIS_REPLY_ERROR)
        return false;
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        if (starts_with(reply, starts[i]))
            return true;
    return strstr(reply->str, "non local key") != NULL;
}

bool dibs__redis_is_replica(const redisReply *reply)
{
    return reply && reply->type == REDIS_REPLY_ERROR &&
           (starts_with(reply, "READONLY") || starts_with(reply, "MASTERDOWN"));
}

bool dibs__redis_is_down(const redisReply *reply)
{
    return dibs__redis_is_replica(reply) ||
           (reply && reply->type == REDIS_REPLY_ERROR && starts_with(reply, "CLUSTERDOWN"));
}

bool dibs__redis_no_script(const redisReply *reply)
{
    return reply && reply->type == REDIS_REPLY_ERROR && starts_with(reply, "NOSCRIPT");
}
