/* R11 and C1 with dibs as it is meant to be used on Redis with replicas: guard=on&wait=1, a master and two replicas.
 * A replica is promoted while a holder has the lock; the old master is dead (R11), or goes on without knowing
 * (C1). At the moment at which the new master grants the lock, does the first holder still believe that it has it? */
#include "dibs.h"
#include "lab/hazards/actor.h"
#include "lab/raw.h"
#include "lab/servers.h"
#include "sessions.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS   3
#define LEASE_MS 1000
#define SERVERS  3 /* the master first */
#define WAITING  "?wait=1&max_lease=1000&guard="

typedef struct trio {
    lab_buyer buyer;
    lab_node node[SERVERS];
    redisContext *link[SERVERS];
    dibs *d[2]; /* of the old master and of the new one */
    dibs_grant *g[2];
    uint64_t fence[2];
    bool at_once;      /* both were held at one moment */
    int64_t waited_ms; /* until the new master granted it */
    char why[256];
} trio;

static bool follows(trio *t, int replica)
{
    for (int64_t until = lab_now_us() + 10 * 1000000; lab_now_us() < until; usleep(20000)) {
        redisReply *info = lab_redis_reply(&t->buyer, t->link[replica], "INFO replication");
        bool up =
            info && info->type == REDIS_REPLY_STRING && strstr(info->str, "master_link_status:up");
        if (info)
            freeReplyObject(info);
        if (up)
            return true;
    }
    return lab_note(&t->buyer, "the replica does not reach its master");
}

static bool start(trio *t)
{
    static const char *const at_once[] = {"--repl-diskless-sync-delay", "0", NULL};
    char port[16];
    const char *extra[] = {"--replicaof", "127.0.0.1", port, "--repl-diskless-sync-delay",
                           "0",           NULL};

    for (int i = 0; i < SERVERS; i++) {
        if (!lab_node_new(&t->node[i], i ? extra : at_once, t->why))
            return false;
        snprintf(port, sizeof port, "%d", t->node[0].port);
        t->link[i] = lab_redis_open(&t->buyer, t->node[i].url);
        if (!t->link[i] || (i > 0 && !follows(t, i))) {
            snprintf(t->why, sizeof t->why, "%s", t->buyer.note);
            return false;
        }
    }
    return true;
}

static bool open_at(trio *t, int side, int node, const char *guard)
{
    char url[200];
    dibs_error err = {0};

    snprintf(url, sizeof url, "%s" WAITING "%s", t->node[node].url, guard);
    if (dibs_open(url, NULL, &t->d[side], &err) == DIBS_OK)
        return true;
    snprintf(t->why, sizeof t->why, "%.200s", err.message);
    return false;
}

static bool take(trio *t, int side)
{
    const dibs_lock_options o = {.wait_ms = 20000, .lease_ms = LEASE_MS};
    dibs_error err = {0};

    if (dibs_lock(t->d[side], "r11", &o, &t->g[side], &err) == DIBS_OK) {
        t->fence[side] = dibs_grant_fence(t->g[side]);
        return true;
    }
    snprintf(t->why, sizeof t->why, "%.200s", err.message);
    return false;
}

/* As a sentinel does it: one replica is promoted, the other one follows it. */
static bool promote(trio *t)
{
    return lab_redis(&t->buyer, t->link[1], "REPLICAOF NO ONE") == 1 &&
           lab_redis(&t->buyer, t->link[2], "REPLICAOF 127.0.0.1 %d", t->node[1].port) == 1;
}

static bool story(trio *t, bool dies)
{
    int64_t since;

    if (!open_at(t, 0, 0, "vouch"))
        return false;
    dibs_close(t->d[0]);
    t->d[0] = NULL;
    if (!open_at(t, 0, 0, "on"))
        return false;
    lab_redis(&t->buyer, t->link[0],
              "CLIENT KILL TYPE replica"); /* they need up to a second to come back */
    if (!take(t, 0))
        return false;
    if (dies)
        lab_node_kill(&t->node[0]);
    since = lab_now_us();
    if (!promote(t) || !open_at(t, 1, 1, "on") || !take(t, 1))
        return false;
    t->waited_ms = (lab_now_us() - since) / 1000;
    t->at_once = dibs_grant_held(t->g[0]) && dibs_grant_held(t->g[1]);
    return true;
}

static void end(trio *t)
{
    for (int i = 0; i < 2; i++)
        dibs_close(t->d[i]); /* which gives back its grant */
    for (int i = 0; i < SERVERS; i++) {
        if (t->link[i])
            redisFree(t->link[i]);
        lab_node_kill(&t->node[i]);
    }
}

static void rounds(const lab_site *site, bool dies, lab_finding *out)
{
    int ran = 0, twice = 0, back = 0;
    int64_t worst = 0;
    char why[256] = "";

    for (int i = 0; i < ROUNDS; i++) {
        trio t = {.buyer = {.site = site}};
        if (start(&t) && story(&t, dies)) {
            ran++;
            twice += t.at_once;
            back += t.fence[1] <= t.fence[0];
            worst = t.waited_ms > worst ? t.waited_ms : worst;
        } else {
            snprintf(why, sizeof why, "%s", t.why);
        }
        end(&t);
    }
    out->at_once = twice ? 2 : 1;
    if (ran == 0)
        lab_found(out, LAB_NOT_RUN, "%s", why);
    else
        lab_found(
            out, twice || back ? LAB_BROKE : LAB_SURVIVED,
            "in %d of %d failovers two holders at once, in %d a fence that went back; the new "
            "master granted the lock after %.1f s at the latest (max_lease is 1 s)",
            twice, ran, back, (double)worst / 1000);
}

static void killed(const lab_site *site, lab_finding *out)
{
    rounds(site, true, out);
}

static void cut_off(const lab_site *site, lab_finding *out)
{
    rounds(site, false, out);
}

const lab_experiment lab_failover_dibs = {
    .id = "R11",
    .name = "failover-dibs",
    .title = "the same with dibs, guard=on&wait=1: the master is killed",
    .promised = true,
    .run = killed,
};

const lab_experiment lab_partition_dibs = {
    .id = "C1",
    .name = "partition-dibs",
    .title = "a partition: dibs on Redis with replicas, guard=on&wait=1",
    .promised = true,
    .run = cut_off,
};
