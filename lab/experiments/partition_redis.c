/* C1: a partition on Redis with a replica. The link between the two is silent (a proxy that is stopped);
 * the replica is promoted, as a sentinel would; the old master knows nothing of it. Both sides answer,
 * both give the lock, both take writes, and when the cable is back, one side's are gone. dibs on the same
 * two servers gives two as well: there the fence decides, as its page says. */
#include "dibs.h"
#include "lab/hazards/actor.h"
#include "lab/hazards/proxy.h"
#include "lab/raw.h"
#include "lab/servers.h"
#include "sessions.h"

#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WRITE_US (200 * 1000)
#define LEASE_MS 1000
#define LOST_MS  15000

typedef struct pair {
    lab_buyer buyer;
    lab_node master, replica;
    lab_proxy link;
    redisContext *a, *b;
    lab_rows *rows;
    int64_t written[2]; /* while it was cut, on either side */
    int64_t kept[2];    /* of them, when it was healed */
    int holders, dibs_holders;
    uint64_t fence[2];
    bool notified; /* the older holder, that its lock is lost */
    char why[256];
} pair;

/* Does INFO of this one have the word, within ten seconds? */
static bool says(lab_buyer *buyer, redisContext *r, const char *word)
{
    for (int64_t until = lab_now_us() + 10 * 1000000; lab_now_us() < until; usleep(20000)) {
        redisReply *info = lab_redis_reply(buyer, r, "INFO replication");
        bool there = info && info->type == REDIS_REPLY_STRING && strstr(info->str, word);
        if (info)
            freeReplyObject(info);
        if (there)
            return true;
    }
    return lab_note(buyer, "the replica never said %s", word);
}

static bool start(pair *p)
{
    char url[512], port[16];
    const char *extra[] = {"--replicaof", "127.0.0.1", port, "--repl-diskless-sync-delay",
                           "0",           NULL};
    static const char *const at_once[] = {"--repl-diskless-sync-delay", "0", NULL};

    if (!lab_node_new(&p->master, at_once, p->why) ||
        !lab_proxy_start(&p->link, p->master.url, url, p->why))
        return false;
    snprintf(port, sizeof port, "%d", p->link.port);
    if (!lab_node_new(&p->replica, extra, p->why))
        return false;
    p->a = lab_redis_open(&p->buyer, p->master.url);
    p->b = lab_redis_open(&p->buyer, p->replica.url);
    if (p->a && p->b && says(&p->buyer, p->b, "master_link_status:up"))
        return true;
    snprintf(p->why, sizeof p->why, "%s", p->buyer.note);
    return false;
}

/* Two holders by SET NX PX, and writes on both sides for a while. */
static void both_sides(pair *p)
{
    redisContext *side[] = {p->a, p->b};

    for (int i = 0; i < 2; i++)
        p->holders += lab_redis(&p->buyer, side[i], "SET lock:c1 side-%d NX PX 60000", i) == 1;
    for (int i = 0; i < 2; i++)
        for (int64_t until = lab_now_us() + WRITE_US; lab_now_us() < until;)
            p->written[i] += lab_redis(&p->buyer, side[i], "INCR written:%d", i) > 0;
    lab_rows_add(p->rows, "SET NX PX, old master and promoted replica\t%d of 2 sides grant it",
                 p->holders);
    lab_rows_add(p->rows, "writes while it is cut\t%lld on the old master, %lld on the new one",
                 (long long)p->written[0], (long long)p->written[1]);
}

/* dibs on either side; the handles stay open for what comes. */
static void dibs_on_both(pair *p, dibs *d[2], dibs_grant *g[2])
{
    const char *url[] = {p->master.url, p->replica.url};
    const dibs_lock_options o = {.wait_ms = 2000, .lease_ms = LEASE_MS};
    dibs_error err = {0};

    for (int i = 0; i < 2; i++)
        if (dibs_open(url[i], NULL, &d[i], &err) == DIBS_OK &&
            dibs_lock(d[i], "c1", &o, &g[i], &err) == DIBS_OK) {
            p->fence[i] = dibs_grant_fence(g[i]);
            p->dibs_holders += dibs_grant_held(g[i]);
        } else {
            snprintf(p->why, sizeof p->why, "%.200s", err.message);
        }
    lab_rows_add(p->rows,
                 "dibs, old master and promoted replica\t%d of 2 sides grant it, the second "
                 "with a fence that is %s",
                 p->dibs_holders, p->fence[1] > p->fence[0] ? "higher" : "NOT higher");
}

static int64_t number_at(pair *p, redisContext *r, int side)
{
    int64_t n = lab_redis(&p->buyer, r, "GET written:%d", side);

    return n < 0 ? 0 : n;
}

/* The cable is back, and the old master becomes a replica of the new one. */
static bool heal(pair *p, dibs_grant *old)
{
    int64_t until = lab_now_us() + LOST_MS * 1000LL;

    kill(p->link.pid, SIGCONT);
    lab_redis(&p->buyer, p->a, "REPLICAOF 127.0.0.1 %d", p->replica.port);
    if (!says(&p->buyer, p->a, "master_link_status:up"))
        return false;
    for (int i = 0; i < 2; i++)
        p->kept[i] = number_at(p, p->a, i);
    while (old && dibs_grant_held(old) && lab_now_us() < until)
        usleep(20000);
    p->notified = old && !dibs_grant_held(old);
    lab_rows_add(p->rows,
                 "writes when it is healed\t%lld of the old master's are left, %lld of the "
                 "new one's",
                 (long long)p->kept[0], (long long)p->kept[1]);
    lab_rows_add(p->rows, "dibs' holder on the old master\t%s",
                 p->notified ? "is notified that it lost the lock" : "was not notified");
    lab_rows_add(p->rows, "what dibs promises there\tnot one holder, but a fence that decides");
    return true;
}

static bool story(pair *p)
{
    dibs *d[2] = {0};
    dibs_grant *g[2] = {0};
    bool healed = false;

    kill(p->link.pid, SIGSTOP);
    if (lab_redis(&p->buyer, p->b, "REPLICAOF NO ONE") == 1) {
        both_sides(p);
        dibs_on_both(p, d, g);
        healed = heal(p, g[0]);
    }
    for (int i = 0; i < 2; i++)
        dibs_close(d[i]); /* which unlocks its grant */
    if (!healed)
        snprintf(p->why, sizeof p->why, "%s", p->buyer.note);
    return healed;
}

static void on_redis(const lab_site *site, lab_finding *out)
{
    pair p = {.buyer = {.site = site}, .link = {.pid = -1}};

    p.rows = lab_rows_new("what\tseen");
    if (start(&p) && story(&p)) {
        out->at_once = p.holders;
        lab_found(
            out, p.holders > 1 ? LAB_BROKE : LAB_SURVIVED,
            "both sides continue: %d holders at once, %lld writes of the old master lost when it "
            "is healed; dibs there: %d holders, the older one's fence is %s (a store that "
            "checks it rejects the old one), and it %s",
            p.holders, (long long)(p.written[0] - p.kept[0]), p.dibs_holders,
            p.fence[0] < p.fence[1] ? "lower" : "NOT lower",
            p.notified ? "is notified" : "was not notified");
    } else {
        lab_found(out, LAB_NOT_RUN, "%s", p.why);
    }
    out->table = lab_rows_end(p.rows);
    if (p.a)
        redisFree(p.a);
    if (p.b)
        redisFree(p.b);
    lab_proxy_stop(&p.link);
    lab_node_kill(&p.master);
    lab_node_kill(&p.replica);
}

const lab_experiment lab_partition_redis = {
    .id = "C1",
    .name = "partition-redis",
    .title = "a partition: Redis with a replica",
    .run = on_redis,
};
