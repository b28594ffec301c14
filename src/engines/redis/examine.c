/* Facts about a Redis server: what INFO and CONFIG GET say, its clock, and which commands this user may
 * run. Rights are tried out on a scratch key, which is removed in the same script, and on a scratch
 * channel. The checks are in src/doctor/redis.c. */
#define _GNU_SOURCE
#include "engines/redis/examine.h"

#include "core/error.h"
#include "engines/redis/handshake.h"
#include "engines/redis/key.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define WORDS 5

/* ---- Asking ---------------------------------------------------------------------------------- */

/* One command of up to WORDS words. NULL: the connection is lost. */
static redisReply *ask(dibs__conn *c, dibs__deadline until, const char *const word[WORDS])
{
    dibs__bytes bytes = {0};
    redisReply *reply = NULL;
    size_t n = 0;

    while (n < WORDS && word[n])
        n++;
    dibs__resp_begin(&bytes, n);
    for (size_t i = 0; i < n; i++)
        dibs__resp_text(&bytes, word[i]);
    dibs__conn_ask(c, &bytes, &reply, 1, until, NULL);
    dibs__bytes_fini(&bytes);
    return reply;
}

/* What an error says; NULL: it is none. Without a reply it is one. */
static const char *error_of(const redisReply *reply)
{
    if (!reply)
        return "no answer";
    return reply->type == REDIS_REPLY_ERROR ? reply->str : NULL;
}

/* The server will not do this for us, whatever the arguments. */
static bool is_refused(const char *error)
{
    return error && (strncmp(error, "NOPERM", 6) == 0 || strcasestr(error, "unknown command") ||
                     strcasestr(error, "ACL failure in script") ||
                     strcasestr(error, "can't run this command or subcommand"));
}

/* ---- INFO ------------------------------------------------------------------------------------ */

static const struct {
    const char *key, *fact;
} of_info[] = {
    {"redis_version", "version"},
    {"redis_mode", "mode"},
    {"role", "role"},
    {"master_host", "master"},
    {"master_link_status", "link"},
    {"connected_slaves", "replicas"},
    {"loading", "loading"},
    {"maxmemory", "maxmemory"},
    {"maxmemory_policy", "maxmemory_policy"},
    {"used_memory", "used_memory"},
    {"evicted_keys", "evicted"},
    {"connected_clients", "clients"},
    {"maxclients", "maxclients"},
    {"aof_last_write_status", "aof_status"},
    {"rdb_last_bgsave_status", "rdb_status"},
    {"run_id", "run"},
};

static void add_version(dibs__facts *f)
{
    int major = 0, minor = 0;

    if (sscanf(dibs__fact_text(f, "version", ""), "%d.%d", &major, &minor) == 2)
        dibs__fact_number(f, "version_number", major * 100 + minor);
}

static void read_info(dibs__facts *f, const redisReply *reply)
{
    const char *error = error_of(reply);
    char value[256];

    for (size_t i = 0; i < sizeof of_info / sizeof of_info[0]; i++) {
        if (error)
            dibs__fact_unseen(f, of_info[i].fact, "INFO is refused (%.100s): give the user +info",
                              error);
        else if (dibs__info_value(reply->str, of_info[i].key, value, sizeof value))
            dibs__fact_add(f, of_info[i].fact, "%s", value);
    }
    if (error) {
        dibs__fact_unseen(f, "version_number", "INFO is refused (%.100s): give the user +info",
                          error);
        return;
    }
    add_version(f);
    dibs__fact_percent(f, "memory", dibs__fact_value(f, "used_memory", 0),
                       dibs__fact_value(f, "maxmemory", 0));
    if (dibs__info_value(reply->str, "aof_enabled", value, sizeof value))
        dibs__fact_flag(f, "appendonly", strcmp(value, "1") == 0);
}

/* ---- CONFIG GET ------------------------------------------------------------------------------ */

static const struct {
    const char *key, *fact;
} of_config[] = {
    {"appendonly", "appendonly"},
    {"appendfsync", "appendfsync"},
    {"no-appendfsync-on-rewrite", "rewrite_unsynced"},
    {"save", "save"},
    {"timeout", "timeout"},
    {"maxclients", "maxclients"},
    {"maxmemory", "maxmemory"},
    {"maxmemory-policy", "maxmemory_policy"},
    {"min-replicas-to-write", "min_replicas"},
    {"cluster-allow-replica-migration", "replica_migration"},
};

static void read_config(dibs__facts *f, dibs__conn *c, dibs__deadline until)
{
    for (size_t i = 0; i < sizeof of_config / sizeof of_config[0]; i++) {
        redisReply *r =
            ask(c, until, (const char *const[WORDS]){"CONFIG", "GET", of_config[i].key});
        const char *error = error_of(r);
        bool known = dibs__fact_text(f, of_config[i].fact, NULL) != NULL; /* from INFO */
        if (r && r->type == REDIS_REPLY_ARRAY && r->elements == 2 && r->element[1]->str)
            dibs__fact_add(f, of_config[i].fact, "%s", r->element[1]->str);
        else if (error && !known)
            dibs__fact_unseen(
                f, of_config[i].fact,
                "CONFIG GET is refused (%.100s): give the user +config|get, or look at "
                "the server's settings yourself",
                error);
        if (r)
            freeReplyObject(r);
    }
    dibs__fact_percent(f, "clients", dibs__fact_value(f, "clients", 0),
                       dibs__fact_value(f, "maxclients", 0));
    dibs__fact_flag(f, "timeout_below_lease",
                    dibs__fact_value(f, "timeout", 0) * 1000 < dibs__fact_value(f, "lease_ms", 0));
}

/* ---- The clock ------------------------------------------------------------------------------- */

static void read_clock(dibs__facts *f, dibs__conn *c, dibs__deadline until)
{
    int64_t before = c->env->wall(c->env->ctx);
    redisReply *r = ask(c, until, (const char *const[WORDS]){"TIME"});

    if (r && r->type == REDIS_REPLY_ARRAY && r->elements == 2 && r->element[0]->str &&
        r->element[1]->str)
        dibs__fact_clock(f,
                         strtoll(r->element[0]->str, NULL, 10) * DIBS__SECOND +
                             strtoll(r->element[1]->str, NULL, 10),
                         before, c->env->wall(c->env->ctx));
    if (r)
        freeReplyObject(r);
}

/* ---- Rights ---------------------------------------------------------------------------------- */

/* Sets may_RIGHT and RIGHT_error. */
static void state_right(dibs__facts *f, const char *right, const redisReply *reply)
{
    const char *error = error_of(reply);
    char name[64];

    snprintf(name, sizeof name, "may_%s", right);
    if (reply)
        dibs__fact_flag(f, name, !is_refused(error));
    else
        dibs__fact_unseen(f, name, "the server did not answer in time");
    snprintf(name, sizeof name, "%s_error", right);
    dibs__fact_add(f, name, "%.200s", error ? error : "");
}

static bool try_one(dibs__facts *f, const char *right, dibs__conn *c, dibs__deadline until,
                    const char *const word[WORDS])
{
    redisReply *r = ask(c, until, word);
    bool refused = is_refused(error_of(r));

    state_right(f, right, r);
    if (r)
        freeReplyObject(r);
    return !refused;
}

/* Whether the settings of the server let anybody write shows here as well. */
static void try_rights(dibs__facts *f, dibs__conn *c, const char *prefix, dibs__deadline until)
{
    static const char script[] =
        "redis.call('SET', KEYS[1], '1', 'PX', 5000) return redis.call('DEL', KEYS[1])";
    char key[DIBS__REDIS_PREFIX_MAX + 64], channel[DIBS__REDIS_PREFIX_MAX + 64];
    uint64_t id;

    c->env->random(c->env->ctx, &id, sizeof id);
    snprintf(key, sizeof key, "%s:{doctor:%016llx}", prefix, (unsigned long long)id);
    snprintf(channel, sizeof channel, "%s:wake:doctor", prefix);
    dibs__fact_add(f, "prefix", "%s", prefix);
    if (try_one(f, "script", c, until, (const char *const[WORDS]){"SCRIPT", "LOAD", "return 1"}) &&
        try_one(f, "script", c, until, (const char *const[WORDS]){"EVAL", "return 1", "0"}))
        try_one(f, "write", c, until, (const char *const[WORDS]){"EVAL", script, "1", key});
    try_one(f, "time", c, until, (const char *const[WORDS]){"TIME"});
    if (try_one(f, "kill", c, until, (const char *const[WORDS]){"CLIENT", "ID"}) &&
        try_one(f, "kill", c, until, (const char *const[WORDS]){"CLIENT", "KILL", "ID", "0"}))
        try_one(f, "kill", c, until, (const char *const[WORDS]){"INFO", "server"});
    if (try_one(f, "subscribe", c, until, (const char *const[WORDS]){"PUBLISH", channel, ""}))
        try_one(f, "subscribe", c, until, (const char *const[WORDS]){"SUBSCRIBE", channel});
}

/* Sentinels talk to each other over a channel of the servers that they watch. */
static void count_sentinels(dibs__facts *f, dibs__conn *c, dibs__deadline until)
{
    redisReply *r =
        ask(c, until, (const char *const[WORDS]){"PUBSUB", "NUMSUB", "__sentinel__:hello"});

    if (r && r->type == REDIS_REPLY_ARRAY && r->elements == 2 &&
        r->element[1]->type == REDIS_REPLY_INTEGER)
        dibs__fact_number(f, "sentinels", r->element[1]->integer);
    if (r)
        freeReplyObject(r);
}

static void read_cluster(dibs__facts *f, dibs__conn *c, dibs__deadline until)
{
    static const char *const facts[] = {"cluster_state", "cluster_slots_ok"};
    redisReply *r = ask(c, until, (const char *const[WORDS]){"CLUSTER", "INFO"});
    const char *error = error_of(r);
    char value[64];

    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        if (error)
            dibs__fact_unseen(f, facts[i],
                              "CLUSTER INFO is refused (%.100s): give the user +cluster|info",
                              error);
        else if (dibs__info_value(r->str, facts[i], value, sizeof value))
            dibs__fact_add(f, facts[i], "%s", value);
    if (r)
        freeReplyObject(r);
}

/* Where the connection leads, by address: two names may be one host. */
static void add_peer(dibs__facts *f, int fd)
{
    struct sockaddr_storage socket_address;
    socklen_t size = sizeof socket_address;
    char text[NI_MAXHOST];

    if (getpeername(fd, (struct sockaddr *)&socket_address, &size) == 0 &&
        socket_address.ss_family != AF_UNIX &&
        getnameinfo((struct sockaddr *)&socket_address, size, text, sizeof text, NULL, 0,
                    NI_NUMERICHOST) == 0)
        dibs__fact_add(f, "peer", "%s", text);
}

/* ---- All of it ------------------------------------------------------------------------------- */

typedef struct exchange {
    dibs__conn *c;
    dibs__deadline until;
} exchange;

static bool ping(void *ctx)
{
    exchange *x = ctx;
    redisReply *r = ask(x->c, x->until, (const char *const[WORDS]){"PING"});

    if (!r)
        return false;
    freeReplyObject(r);
    return true;
}

dibs_status dibs__redis_examine_server(const dibs__redis_address *address, const char *prefix,
                                       dibs__deadline until, dibs__facts *f, dibs_error *err)
{
    dibs__conn *c = NULL;
    redisReply *info;
    dibs_status status = dibs__redis_connect(address, until, &c, err);

    if (status != DIBS_OK)
        return status;
    until = dibs__after(c->env, DIBS__EXAMINE_SPAN);
    info = ask(c, until, (const char *const[WORDS]){"INFO"});
    read_info(f, info);
    add_peer(f, c->fd);
    if (info)
        freeReplyObject(info);
    if (strcmp(dibs__fact_text(f, "mode", ""), "sentinel") != 0) {
        read_config(f, c, until);
        read_clock(f, c, until);
        count_sentinels(f, c, until);
        if (strcmp(dibs__fact_text(f, "mode", ""), "cluster") == 0)
            read_cluster(f, c, until);
        dibs__facts_measure(f, c->env, until, ping, &(exchange){c, until});
        try_rights(f, c, prefix, until); /* subscribes at the end */
    }
    dibs__conn_close(c);
    return DIBS_OK;
}
