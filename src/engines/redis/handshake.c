/* What is said when a connection is new: who we are, and on the main connection also the scripts
 * and a look at what kind of server this is. A replica is refused; settings under which locks can
 * vanish are told to the log. Whoever may not ask (INFO is often forbidden) is spared the look. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/redis/error.h"
#include "engines/redis/redis.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define LOGIN_MAX 3

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

static size_t write_login(const dibs__redis_place *place, dibs__bytes *out)
{
    size_t count = 1;

    if (place->password) {
        dibs__resp_begin(out, place->user ? 3 : 2);
        dibs__resp_text(out, "AUTH");
        if (place->user)
            dibs__resp_text(out, place->user);
        dibs__resp_text(out, place->password);
        count++;
    }
    if (place->db != 0) {
        dibs__resp_begin(out, 2);
        dibs__resp_text(out, "SELECT");
        dibs__resp_number(out, place->db);
        count++;
    }
    dibs__resp_begin(out, 3);
    dibs__resp_text(out, "CLIENT");
    dibs__resp_text(out, "SETNAME");
    dibs__resp_text(out, "dibs");
    return count;
}

static dibs_status login(dibs__conn *c, const dibs__redis_place *place, dibs__deadline until,
                         dibs_error *err)
{
    dibs__bytes bytes = {0};
    redisReply *replies[LOGIN_MAX];
    size_t count = write_login(place, &bytes);
    dibs_status status = dibs__conn_ask(c, &bytes, replies, count, until, err);

    /* The name of the connection is a courtesy: a user may lack the right to it. Without a password
     * it is also the first command that the server answers. */
    for (size_t i = 0; status == DIBS_OK && i < count; i++) {
        bool courtesy =
            i + 1 == count && strncmp(replies[i]->str ? replies[i]->str : "", "NOPERM", 6) == 0;
        if (replies[i]->type == REDIS_REPLY_ERROR && !courtesy)
            status = dibs__redis_refusal(replies[i], err);
    }
    free_replies(replies, count);
    dibs__bytes_fini(&bytes);
    return surely_not_done(status);
}

dibs_status dibs__redis_connect(dibs__redis *r, dibs__deadline until, dibs__conn **out,
                                dibs_error *err)
{
    dibs__conn *c = NULL;
    dibs_status status = dibs__conn_open(&r->place, until, &c, err);

    if (status == DIBS_OK)
        status = login(c, &r->place, until, err);
    if (status != DIBS_OK) {
        dibs__wrap(err, "%s", r->place.text);
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

static dibs_status check_kind(dibs__redis *r, const char *info, dibs_error *err)
{
    if (version_of(info) < 6)
        return dibs__fail(err, DIBS_UNSUPPORTED,
                          "this server is older than Redis 6: use a newer one");
    if (info_says(info, "role", "slave"))
        return dibs__fail(err, DIBS_UNAVAILABLE,
                          "this is a replica, and locks live on the primary: use its address");
    if (info_says(info, "redis_mode", "sentinel"))
        return dibs__fail(err, DIBS_UNSUPPORTED,
                          "this is a Sentinel: use the address of the primary it watches");
    if (strstr(info, "maxmemory_policy:") && !info_says(info, "maxmemory_policy", "noeviction") &&
        !info_says(info, "maxmemory", "0") && !atomic_exchange(&r->warned, true))
        r->base.sink->log(
            r->base.sink, DIBS_LOG_WARNING,
            "%s: its maxmemory-policy may evict locks that are held; set it to noeviction",
            r->place.text);
    return DIBS_OK;
}

/* Loads the scripts in the form that the server knows: newer ones first. */
static dibs_status load(dibs__redis *r, dibs__conn *c, bool flags, redisReply **replies,
                        dibs__deadline until, dibs_error *err)
{
    dibs__bytes bytes = {0};
    dibs_status status;

    dibs__scripts_load(&r->scripts, flags, &bytes);
    dibs__resp_begin(&bytes, 1);
    dibs__resp_text(&bytes, "INFO");
    status = dibs__conn_ask(c, &bytes, replies, DIBS__REDIS_SCRIPTS + 1, until, err);
    dibs__bytes_fini(&bytes);
    for (int i = 0; status == DIBS_OK && i < DIBS__REDIS_SCRIPTS; i++)
        if (replies[i]->type == REDIS_REPLY_ERROR)
            status = dibs__redis_refusal(replies[i], err);
    return surely_not_done(status);
}

static bool does_not_compile(redisReply *const *replies)
{
    const redisReply *first = replies[DIBS__SCRIPT_KEEP];

    return first && first->type == REDIS_REPLY_ERROR && strstr(first->str, "ompil");
}

static dibs_status prepare(dibs__redis *r, dibs__conn *c, dibs__deadline until, dibs_error *err)
{
    redisReply *replies[DIBS__REDIS_SCRIPTS + 1];
    const redisReply *info;
    bool flags = true;
    dibs_status status = load(r, c, flags, replies, until, err);

    if (status == DIBS_BROKEN_ENGINE && does_not_compile(replies)) {
        free_replies(replies, DIBS__REDIS_SCRIPTS + 1);
        flags = false;
        status = load(r, c, flags, replies, until, err);
    }
    info = replies[DIBS__REDIS_SCRIPTS];
    if (status == DIBS_OK && info->type == REDIS_REPLY_STRING)
        status = check_kind(r, info->str, err);
    free_replies(replies, DIBS__REDIS_SCRIPTS + 1);
    if (status == DIBS_OK)
        atomic_store(&r->scripts.flags, flags);
    return status;
}

dibs_status dibs__redis_connect_main(void *ctx, dibs__deadline until, dibs__conn **out,
                                     dibs_error *err)
{
    dibs__redis *r = ctx;
    dibs__conn *c = NULL;
    dibs_status status = dibs__redis_connect(r, until, &c, err);

    if (status != DIBS_OK)
        return status;
    status = prepare(r, c, until, err);
    if (status != DIBS_OK) {
        dibs__wrap(err, "%s", r->place.text);
        dibs__conn_close(c);
        return status;
    }
    *out = c;
    return DIBS_OK;
}
