/* What is said when a connection is new. Whoever may not ask what kind of server this is (INFO is
 * often forbidden) is spared the look. */
#define _GNU_SOURCE
#include "engines/redis/handshake.h"

#include "core/error.h"
#include "engines/redis/cluster.h"
#include "engines/redis/error.h"
#include "engines/redis/sentinel.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOGIN_MAX 5

static void free_replies(redisReply **replies, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (replies[i])
            freeReplyObject(replies[i]);
}

/* Nothing was asked for yet: whatever failed here, the caller's request was surely not done. */
static dibs_status surely_not_done(dibs_status status)
{
    return status == DIBS_UNKNOWN ? DIBS_UNAVAILABLE : status;
}

/* ---- Who we are ------------------------------------------------------------------------------ */

/* The last three are its name, its identifier and the server's run, in this order. */
static size_t write_login(const dibs__redis_address *address, dibs__bytes *out)
{
    size_t count = 3;

    if (address->password) {
        dibs__resp_begin(out, address->user ? 3 : 2);
        dibs__resp_text(out, "AUTH");
        if (address->user)
            dibs__resp_text(out, address->user);
        dibs__resp_text(out, address->password);
        count++;
    }
    if (address->db != 0) {
        dibs__resp_begin(out, 2);
        dibs__resp_text(out, "SELECT");
        dibs__resp_number(out, address->db);
        count++;
    }
    dibs__resp_begin(out, 3);
    dibs__resp_text(out, "CLIENT");
    dibs__resp_text(out, "SETNAME");
    dibs__resp_text(out, "dibs");
    dibs__resp_begin(out, 2);
    dibs__resp_text(out, "CLIENT");
    dibs__resp_text(out, "ID");
    dibs__resp_begin(out, 2);
    dibs__resp_text(out, "INFO");
    dibs__resp_text(out, "server");
    return count;
}

/* By these two it can be ended from another connection: see abandoned.h. Whoever may not ask goes without. */
static void note_identity(dibs__conn *c, const redisReply *id, const redisReply *info)
{
    if (id->type == REDIS_REPLY_INTEGER)
        c->id = id->integer;
    if (info->type == REDIS_REPLY_STRING)
        dibs__info_value(info->str, "run_id", c->run_id, sizeof c->run_id);
}

static dibs_status login(dibs__conn *c, const dibs__redis_address *address, dibs__deadline until,
                         dibs_error *err)
{
    dibs__bytes bytes = {0};
    redisReply *replies[LOGIN_MAX];
    size_t count = write_login(address, &bytes);
    dibs_status status = dibs__conn_ask(c, &bytes, replies, count, until, err);

    if (status != DIBS_OK)
        dibs__wrap(err, "no reply to the greeting (is it a Redis port?)");
    /* The name of the connection is a courtesy: a user may lack the right to it. Without a password
     * it is also the first command that the server answers. */
    for (size_t i = 0; status == DIBS_OK && i < count - 2; i++) {
        bool courtesy =
            i + 3 == count && strncmp(replies[i]->str ? replies[i]->str : "", "NOPERM", 6) == 0;
        if (replies[i]->type == REDIS_REPLY_ERROR && !courtesy)
            status = dibs__redis_refusal(replies[i], err);
    }
    if (status == DIBS_OK)
        note_identity(c, replies[count - 2], replies[count - 1]);
    free_replies(replies, count);
    dibs__bytes_fini(&bytes);
    return surely_not_done(status);
}

dibs_status dibs__redis_connect(const dibs__redis_address *address, dibs__deadline until,
                                dibs__conn **out, dibs_error *err)
{
    dibs__conn *c = NULL;
    dibs_status status;

    if (address->sentinels) {
        status = dibs__sentinels_connect(address->sentinels, address, until, out, err);
        if (status != DIBS_OK)
            dibs__wrap(err, "%s", address->text);
        return status;
    }
    if (address->cluster)
        return dibs__cluster_connect(address->cluster, until, out, err);
    status = dibs__conn_open(address, until, &c, err);

    if (status == DIBS_OK)
        status = login(c, address, until, err);
    if (status != DIBS_OK) {
        dibs__wrap(err, "%s", address->text);
        dibs__conn_close(c);
        return status;
    }
    *out = c;
    return DIBS_OK;
}

/* ---- What kind of server this is ------------------------------------------------------------- */

/* "\nkey:value\r" in what INFO says. */
static bool info_says(const char *info, const char *key, const char *value)
{
    size_t n = strlen(key), m = strlen(value);

    for (const char *at = info; (at = strstr(at, key)); at += n)
        if ((at == info || at[-1] == '\n') && at[n] == ':' && strncmp(at + n + 1, value, m) == 0)
            return at[n + 1 + m] == '\r' || at[n + 1 + m] == '\n' || at[n + 1 + m] == '\0';
    return false;
}

static int version_of(const char *info)
{
    const char *at = strstr(info, "redis_version:");

    return at ? atoi(at + strlen("redis_version:")) : INT_MAX;
}

static dibs_status check_kind(const char *info, dibs__server_kind *out, dibs_error *err)
{
    if (version_of(info) < 6)
        return dibs__fail(err, DIBS_UNSUPPORTED,
                          "this server is older than Redis 6: use a newer one");
    if (info_says(info, "role", "slave"))
        return dibs__fail(err, DIBS_UNAVAILABLE,
                          "this is a replica: use the address of the primary");
    if (info_says(info, "redis_mode", "sentinel"))
        return dibs__fail(err, DIBS_UNSUPPORTED,
                          "this is a Sentinel: use redis+sentinel://HOST/SERVICE, or the "
                          "address of the primary");
    out->cluster = info_says(info, "redis_mode", "cluster");
    out->may_evict = strstr(info, "maxmemory_policy:") &&
                     !info_says(info, "maxmemory_policy", "noeviction") &&
                     !info_says(info, "maxmemory", "0");
    return DIBS_OK;
}

/* Loads the scripts in the form that the server knows: newer ones first. */
static dibs_status load(const dibs__scripts *scripts, dibs__conn *c, bool flags,
                        redisReply **replies, dibs__deadline until, dibs_error *err)
{
    dibs__bytes bytes = {0};
    dibs_status status;

    dibs__scripts_load(scripts, flags, &bytes);
    dibs__resp_begin(&bytes, 1);
    dibs__resp_text(&bytes, "INFO");
    status = dibs__conn_ask(c, &bytes, replies, scripts->count + 1, until, err);
    dibs__bytes_fini(&bytes);
    for (size_t i = 0; status == DIBS_OK && i < scripts->count; i++)
        if (replies[i]->type == REDIS_REPLY_ERROR)
            status = dibs__redis_refusal(replies[i], err);
    return surely_not_done(status);
}

/* A first line that the server does not know; the last script has it. */
static bool does_not_compile(const redisReply *last)
{
    return last && last->type == REDIS_REPLY_ERROR && strstr(last->str, "ompil");
}

dibs_status dibs__redis_prepare(const dibs__scripts *scripts, dibs__conn *c, dibs__deadline until,
                                dibs__server_kind *out, dibs_error *err)
{
    redisReply *replies[DIBS__SCRIPTS_MAX + 1];
    size_t count = scripts->count;
    dibs_status status = load(scripts, c, true, replies, until, err);

    *out = (dibs__server_kind){.flags = true};
    if (status == DIBS_ENGINE_FAILED && does_not_compile(replies[count - 1])) {
        free_replies(replies, count + 1);
        out->flags = false;
        status = load(scripts, c, false, replies, until, err);
    }
    if (status == DIBS_OK && replies[count]->type == REDIS_REPLY_STRING) {
        status = check_kind(replies[count]->str, out, err);
        out->info = replies[count];
        replies[count] = NULL;
    }
    free_replies(replies, count + 1);
    return status;
}

const char *dibs__info_value(const char *info, const char *key, char *out, size_t size)
{
    size_t n = strlen(key), m;

    for (const char *at = info; (at = strstr(at, key)); at += n)
        if ((at == info || at[-1] == '\n') && at[n] == ':') {
            m = strcspn(at + n + 1, "\r\n");
            snprintf(out, size, "%.*s", (int)m, at + n + 1);
            return out;
        }
    return NULL;
}
