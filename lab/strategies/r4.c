/* R4: SET NX PX with a value of one's own; release looks whose lock it is (GET) and deletes it (DEL).
 * Between the two the lock may end and become another's: then another's is deleted. */
#include "lab/raw.h"
#include "strategies.h"

#include <hiredis/hiredis.h>
#include <string.h>

static int ask(lab_seat *seat)
{
    lab_holder *h = lab_holder_of(seat);
    int64_t got = lab_redis(seat, h->redis, "SET lock:%s %s NX PX %lld", seat->resource, h->id,
                            (long long)h->lease_ms);

    return got == INT64_MIN ? -1 : got == 1;
}

static bool r4_lock(lab_seat *seat)
{
    return lab_spin(seat, LAB_PAUSE_US, ask);
}

static bool is_mine(lab_seat *seat)
{
    lab_holder *h = lab_holder_of(seat);
    redisReply *reply = lab_redis_reply(seat, h->redis, "GET lock:%s", seat->resource);
    bool mine = reply && reply->type == REDIS_REPLY_STRING && strcmp(reply->str, h->id) == 0;

    if (reply)
        freeReplyObject(reply);
    return mine;
}

static bool r4_unlock(lab_seat *seat)
{
    if (!is_mine(seat))
        return false;
    lab_point(seat, "between GET and DEL");
    return lab_redis(seat, lab_holder_of(seat)->redis, "DEL lock:%s", seat->resource) == 1;
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
