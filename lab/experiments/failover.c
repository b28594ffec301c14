/* R11: a master with a replica. The lock is set on the master; the link to the replica is down for a
 * moment; the master dies, the replica is promoted, and knows nothing of the lock: two holders at once. */
#include "lab/hazards/actor.h"
#include "lab/raw.h"
#include "lab/servers.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS 5

static bool linked(lab_buyer *buyer, redisContext *replica)
{
    for (int64_t until = lab_now_us() + 10 * 1000000; lab_now_us() < until; usleep(20000)) {
        redisReply *info = lab_redis_reply(buyer, replica, "INFO replication");
        bool up = info && strstr(info->str, "master_link_status:up");
        if (info)
            freeReplyObject(info);
        if (up)
            return true;
    }
    return false;
}

/* 1: both had it, 0: only one, -1: could not be run. */
static int fail_over(lab_buyer *buyer, lab_node *master, lab_node *replica)
{
    redisContext *a = lab_redis_open(buyer, master->url), *b = lab_redis_open(buyer, replica->url);
    int both = -1;

    if (a && b && linked(buyer, b)) {
        /* The link is cut: a replica needs up to a second to come back. */
        lab_redis(buyer, a, "CLIENT KILL TYPE replica");
        if (lab_redis(buyer, a, "SET lock:failover first NX PX 30000") == 1) {
            lab_node_kill(master);
            lab_redis(buyer, b, "REPLICAOF NO ONE");
            both = lab_redis(buyer, b, "SET lock:failover second NX PX 30000") == 1;
        }
    }
    if (a)
        redisFree(a);
    if (b)
        redisFree(b);
    return both;
}

static void failover(const lab_site *site, lab_finding *out)
{
    lab_buyer buyer = {.site = site};
    int twice = 0, rounds = 0;
    char why[256] = "";

    for (int i = 0; i < ROUNDS; i++) {
        lab_node master = {0}, replica = {0};
        char port[16];
        static const char *const at_once[] = {"--repl-diskless-sync-delay", "0", NULL};
        const char *extra[] = {"--replicaof", "127.0.0.1", port, NULL};
        int both = -1;
        if (lab_node_new(&master, at_once, why)) {
            snprintf(port, sizeof port, "%d", master.port);
            if (lab_node_new(&replica, extra, why))
                both = fail_over(&buyer, &master, &replica);
        }
        lab_node_kill(&master);
        lab_node_kill(&replica);
        rounds += both >= 0;
        twice += both > 0;
    }
    out->at_once = twice ? 2 : 1;
    if (rounds == 0)
        lab_found(out, LAB_NOT_RUN, "%s", buyer.note[0] ? buyer.note : why);
    else
        lab_found(out, twice ? LAB_BROKE : LAB_SURVIVED,
                  "the link to the replica was down when the lock was taken: in %d of %d failovers "
                  "the promoted replica granted it a second time",
                  twice, rounds);
}

const lab_experiment lab_failover = {
    .id = "R11",
    .name = "failover",
    .title = "a replica is promoted before it has the lock",
    .run = failover,
};
