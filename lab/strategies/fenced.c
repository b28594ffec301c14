/* The check at the resource; see the header. In Redis two scripts on the stock and its floor; in SQL two
 * short transactions with dibs_sql_fence_pass, so that nothing stays locked while the buyer works. */
#include "fenced.h"

#include "lab/raw.h"

#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct lab_fenced {
    redisContext *redis;
    lab_sql *sql;
};

static const char pass_script[] = "local floor = tonumber(redis.call('GET', KEYS[2]) or '0') "
                                  "if tonumber(ARGV[1]) < floor then return -2 end "
                                  "redis.call('SET', KEYS[2], ARGV[1]) "
                                  "return tonumber(redis.call('GET', KEYS[1]))";
static const char write_script[] = "local floor = tonumber(redis.call('GET', KEYS[2]) or '0') "
                                   "if tonumber(ARGV[1]) < floor then return 0 end "
                                   "redis.call('SET', KEYS[1], ARGV[2]) return 1";

lab_fenced *lab_fenced_open(lab_buyer *buyer)
{
    lab_fenced *f = calloc(1, sizeof *f);
    dibs_error err = {0};

    if (!f)
        return NULL;
    if (buyer->strategy->stock == LAB_REDIS) {
        f->redis = lab_redis_open(buyer, buyer->site->url[LAB_REDIS]);
    } else if ((f->sql = lab_sql_open(buyer, buyer->strategy->stock)) &&
               dibs_sql_prepare(lab_sql_handle(f->sql), &err) != DIBS_OK) {
        lab_note(buyer, "%s", err.message);
        lab_sql_close(f->sql);
        f->sql = NULL;
    }
    if (f->redis || f->sql)
        return f;
    free(f);
    return NULL;
}

void lab_fenced_close(lab_fenced *f)
{
    if (f->redis)
        redisFree(f->redis);
    lab_sql_close(f->sql);
    free(f);
}

static void work(lab_buyer *buyer)
{
    if (buyer->pace.work_us > 0)
        usleep((useconds_t)buyer->pace.work_us);
    lab_point(buyer, "between read and write");
}

/* ---- Redis ----------------------------------------------------------------------------------- */

static lab_sale refused(lab_buyer *buyer, uint64_t fence)
{
    lab_note(buyer, "fence %" PRIu64 " is older than one that was seen before", fence);
    return LAB_FAILED;
}

static lab_sale sell_redis(lab_buyer *buyer, redisContext *r, uint64_t fence)
{
    int64_t stock =
        lab_redis(buyer, r, "EVAL %s 2 stock:%s floor:%s:%s %llu", pass_script, buyer->resource,
                  buyer->strategy->name, buyer->resource, (unsigned long long)fence);
    int64_t written;

    if (stock == -2)
        return refused(buyer, fence);
    if (stock < 1)
        return stock == INT64_MIN ? LAB_FAILED : LAB_SOLD_OUT;
    work(buyer);
    written = lab_redis(buyer, r, "EVAL %s 2 stock:%s floor:%s:%s %llu %lld", write_script,
                        buyer->resource, buyer->strategy->name, buyer->resource,
                        (unsigned long long)fence, (long long)stock - 1);
    return written == 1 ? LAB_SOLD : written == 0 ? refused(buyer, fence) : LAB_FAILED;
}

/* ---- SQL ------------------------------------------------------------------------------------- */

/* Begins a transaction and presents the fence in it; false: rolled back. */
static bool begin(lab_buyer *buyer, lab_sql *sql, uint64_t fence)
{
    dibs_error err = {0};
    char resource[128];

    /* Fences of different engines do not compare: each strategy has floors of its own. */
    snprintf(resource, sizeof resource, "%s:%s", buyer->strategy->name, buyer->resource);
    /* SQLite would let two readers begin, and refuse one of them at its first write. */
    if (lab_sql_run(buyer, sql,
                    buyer->strategy->stock == LAB_SQLITE ? "BEGIN IMMEDIATE" : "BEGIN") < 0)
        return false;
    if (dibs_sql_fence_pass(lab_sql_handle(sql), resource, fence, 0, &err) == DIBS_OK)
        return true;
    lab_sql_run(buyer, sql, "ROLLBACK");
    return lab_note(buyer, "%s", err.message);
}

static lab_sale sell_sql(lab_buyer *buyer, lab_sql *sql, uint64_t fence)
{
    int64_t stock = 0;
    int found;

    if (!begin(buyer, sql, fence))
        return LAB_FAILED;
    found = lab_sql_read(buyer, sql, &stock, 1, "SELECT stock FROM lab_stock WHERE goods = '%s'",
                         buyer->resource);
    if (lab_sql_run(buyer, sql, "COMMIT") < 0 || found <= 0)
        return LAB_FAILED;
    if (stock < 1)
        return LAB_SOLD_OUT;
    work(buyer);
    if (!begin(buyer, sql, fence))
        return LAB_FAILED;
    if (lab_sql_run(buyer, sql, "UPDATE lab_stock SET stock = %lld WHERE goods = '%s'",
                    (long long)stock - 1, buyer->resource) != 1) {
        lab_sql_run(buyer, sql, "ROLLBACK");
        return LAB_FAILED;
    }
    return lab_sql_run(buyer, sql, "COMMIT") >= 0 ? LAB_SOLD : LAB_FAILED;
}

lab_sale lab_fenced_sell(lab_buyer *buyer, lab_fenced *f, uint64_t fence)
{
    return f->redis ? sell_redis(buyer, f->redis, fence) : sell_sql(buyer, f->sql, fence);
}
