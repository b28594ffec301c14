/* R5: acquire and release are scripts: set it if nobody has it, delete it if it is ours. The release is
 * safe; but nothing renews: work that is longer than the lease overlaps with the next holder's. With
 * EVAL the script travels every time, with EVALSHA its name does. */
#include "lab/raw.h"
#include "strategies.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char acquire[] = "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end "
                              "redis.call('SET', KEYS[1], ARGV[1]) "
                              "redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1";
static const char release[] = "if redis.call('GET', KEYS[1]) == ARGV[1] then "
                              "return redis.call('DEL', KEYS[1]) end return 0";

typedef struct names {
    char acquire[41], release[41];
} names;

static int ask(lab_buyer *buyer)
{
    lab_holder *h = lab_holder_of(buyer);
    const names *n = h->more;
    int64_t got =
        lab_redis(buyer, h->redis, "%s %s 1 lock:%s %s %lld", n ? "EVALSHA" : "EVAL",
                  n ? n->acquire : acquire, buyer->resource, h->id, (long long)h->lease_ms);

    return got == INT64_MIN ? -1 : got == 1;
}

static bool r5_lock(lab_buyer *buyer)
{
    return lab_spin(buyer, LAB_PAUSE_US, ask);
}

static bool r5_unlock(lab_buyer *buyer)
{
    lab_holder *h = lab_holder_of(buyer);
    const names *n = h->more;

    return lab_redis(buyer, h->redis, "%s %s 1 lock:%s %s", n ? "EVALSHA" : "EVAL",
                     n ? n->release : release, buyer->resource, h->id) == 1;
}

static bool load(lab_buyer *buyer, const char *script, char name[41])
{
    redisReply *reply =
        lab_redis_reply(buyer, lab_holder_of(buyer)->redis, "SCRIPT LOAD %s", script);

    if (!reply)
        return false;
    snprintf(name, 41, "%.40s", reply->str);
    freeReplyObject(reply);
    return true;
}

static bool sha_open(lab_buyer *buyer)
{
    names *n = calloc(1, sizeof *n);

    if (!n || !lab_holder_open(buyer)) {
        free(n);
        return false;
    }
    lab_holder_of(buyer)->more = n;
    return load(buyer, acquire, n->acquire) && load(buyer, release, n->release);
}

static void sha_close(lab_buyer *buyer)
{
    free(lab_holder_of(buyer)->more);
    lab_holder_close(buyer);
}

const lab_strategy lab_r5 = {
    .id = "R5",
    .name = "lua-eval",
    .title = "acquire and compare-and-delete as scripts (EVAL)",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .open = lab_holder_open,
    .close = lab_holder_close,
    .lock = r5_lock,
    .unlock = r5_unlock,
};

const lab_strategy lab_r5_sha = {
    .id = "R5",
    .name = "lua-evalsha",
    .title = "the same with SCRIPT LOAD and EVALSHA",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .open = sha_open,
    .close = sha_close,
    .lock = r5_lock,
    .unlock = r5_unlock,
};
