/* R4: SET NX PX with a value of one's own; release looks whose lock it is (GET) and deletes it (DEL).
 * Between the two the lock may end and become another's: then another's is deleted. */
#include "lab/raw.h"
#include "strategies.h"

#include <hiredis/hiredis.h>
#include <string.h>

static int ask(lab_buyer *buyer)
{
    lab_holder *h = lab_holder_of(buyer);
    int64_t got = lab_redis(buyer, h->redis, "SET lock:%s %s NX PX %lld", buyer->resource, h->id,
                            (long long)h->lease_ms);

    return got == INT64_MIN ? -1 : got == 1;
}

static bool r4_lock(lab_buyer *buyer)
{
    return lab_spin(buyer, LAB_PAUSE_US, ask);
}

static bool is_mine(lab_buyer *buyer)
{
    lab_holder *h = lab_holder_of(buyer);
    redisReply *reply = lab_redis_reply(buyer, h->redis, "GET lock:%s", buyer->resource);
    bool mine = reply && reply->type == REDIS_REPLY_STRING && strcmp(reply->str, h->id) == 0;

    if (reply)
        freeReplyObject(reply);
    return mine;
}

static bool r4_unlock(lab_buyer *buyer)
{
    if (!is_mine(buyer))
        return false;
    lab_point(buyer, "between GET and DEL");
    return lab_redis(buyer, lab_holder_of(buyer)->redis, "DEL lock:%s", buyer->resource) == 1;
}

const lab_strategy lab_r4 = {
    .id = "R4",
    .name = "set-get-del",
    .title = "SET NX PX with a unique value, GET, then DEL",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_REDIS),
    .open = lab_holder_open,
    .close = lab_holder_close,
    .lock = r4_lock,
    .unlock = r4_unlock,
};
