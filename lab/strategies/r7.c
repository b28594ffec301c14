/* R7: a hash instead of a string: the field is the owner, its value counts how often he has it. Whoever
 * is not the owner is refused at the release. Nothing renews it yet. */
#include "hash_lock.h"
#include "strategies.h"

static const char acquire[] =
    "if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then "
    "redis.call('HINCRBY', KEYS[1], ARGV[1], 1) "
    "redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1 end return 0";
static const char release[] = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return -1 end "
                              "local n = redis.call('HINCRBY', KEYS[1], ARGV[1], -1) "
                              "if n == 0 then redis.call('DEL', KEYS[1]) end return n";
static const char renew[] = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end "
                            "return redis.call('PEXPIRE', KEYS[1], ARGV[2])";

int lab_hash_ask(lab_buyer *buyer)
{
    lab_holder *h = lab_holder_of(buyer);
    int64_t got = lab_redis(buyer, h->redis, "EVAL %s 1 lock:%s %s %lld", acquire, buyer->resource,
                            h->id, (long long)h->lease_ms);

    return got == INT64_MIN ? -1 : got == 1;
}

bool lab_hash_give(lab_buyer *buyer)
{
    lab_holder *h = lab_holder_of(buyer);

    return lab_redis(buyer, h->redis, "EVAL %s 1 lock:%s %s", release, buyer->resource, h->id) >= 0;
}

bool lab_hash_renew(lab_buyer *buyer, struct redisContext *redis, const char *id, int64_t lease_ms)
{
    return lab_redis(buyer, redis, "EVAL %s 1 lock:%s %s %lld", renew, buyer->resource, id,
                     (long long)lease_ms) == 1;
}

static bool r7_lock(lab_buyer *buyer)
{
    return lab_spin(buyer, LAB_PAUSE_US, lab_hash_ask);
}

const lab_strategy lab_r7 = {
    .id = "R7",
    .name = "hash-reentrant",
    .title = "reentrant hash in Lua: owner and count",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .open = lab_holder_open,
    .close = lab_holder_close,
    .lock = r7_lock,
    .unlock = lab_hash_give,
};
