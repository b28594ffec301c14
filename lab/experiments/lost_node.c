/* R12c and R12d: what a single node of three can do to a majority. The lock is held on nodes 1 and 2
 * (3 is down). Then node 2 forgets, or its clock jumps, or it loses its last second; 3 comes back; and
 * a second client finds a majority of its own: 2 and 3. */
#include "lab/hazards/actor.h"
#include "quorum.h"
#include "sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NODES    3
#define LEASE_MS 30000
#define SHORT_MS 1500

typedef struct trio {
    lab_node node[NODES];
    const char *const *extra;
} trio;

static bool start(trio *t, const char *const *extra, char why[256])
{
    memset(t, 0, sizeof *t);
    t->extra = extra;
    for (int i = 0; i < NODES; i++)
        if (!lab_node_new(&t->node[i], extra, why))
            return false;
    return true;
}

static void stop(trio *t)
{
    for (int i = 0; i < NODES; i++)
        lab_node_kill(&t->node[i]);
}

/* Asks with whom it can reach; true: it has a majority. */
static bool acquire_for(trio *t, const char *id, int64_t lease_ms)
{
    lab_quorum q;
    bool got;

    lab_quorum_open(&q, t->node, NODES, id);
    got = lab_quorum_has(&q, lab_quorum_ask(&q, "lock:trio", lease_ms, true));
    lab_quorum_close(&q);
    return got;
}

static bool acquire(trio *t, const char *id)
{
    return acquire_for(t, id, LEASE_MS);
}

/* 1: two holders, 0: one, -1: not run. `forget` is what happens to node 2. */
static int story(const char *const *extra, bool (*forget)(trio *t), char why[256])
{
    trio t;
    int both = -1;

    if (start(&t, extra, why)) {
        lab_node_kill(&t.node[2]);
        if (acquire(&t, "first") && forget(&t))
            both = lab_node_start(&t.node[2], extra) ? acquire(&t, "second") : -1;
    }
    stop(&t);
    return both;
}

static bool restart(trio *t)
{
    lab_node_kill(&t->node[1]);
    return lab_node_start(&t->node[1], t->extra);
}

static bool restart_all(trio *t)
{
    if (!lab_node_start(&t->node[2], t->extra))
        return false;
    for (int i = 0; i < NODES; i++)
        lab_node_kill(&t->node[i]);
    return lab_node_start(&t->node[0], t->extra) && lab_node_start(&t->node[1], t->extra);
}

/* The node stays away until the lease is over, and the others are asked meanwhile. */
static int delayed(char why[256])
{
    int64_t begin;
    trio t;
    int both = -1;

    if (start(&t, NULL, why)) {
        lab_node_kill(&t.node[2]);
        begin = lab_now_us();
        if (acquire_for(&t, "first", SHORT_MS)) {
            lab_node_kill(&t.node[1]);
            both = lab_node_start(&t.node[2], NULL) && acquire_for(&t, "second", SHORT_MS);
            while (lab_now_us() - begin < (SHORT_MS + 100) * 1000LL)
                usleep(10000);
            if (!both && (!lab_node_start(&t.node[1], NULL) || !acquire_for(&t, "third", SHORT_MS)))
                both = -1; /* it must be free for the next one now */
        }
    }
    stop(&t);
    return both;
}

/* As after a power failure: the end of the file never reached the disk. */
static bool lose_last_second(trio *t)
{
    char path[512];
    struct stat st;

    snprintf(path, sizeof path, "%s/appendonlydir/appendonly.aof.1.incr.aof", t->node[1].folder);
    lab_node_kill(&t->node[1]);
    return stat(path, &st) == 0 && truncate(path, st.st_size > 60 ? st.st_size - 60 : 0) == 0 &&
           lab_node_start(&t->node[1], t->extra);
}

static const char *verdict(int both)
{
    return both > 0 ? "two holders" : both == 0 ? "one holder" : "not run";
}

/* Pairs of SET and DEL a second on a node with these options. */
static double speed(const char *const *extra)
{
    lab_node n;
    lab_buyer buyer = {0};
    char why[256];
    redisContext *r;
    int64_t begin, pairs = 0;

    if (!lab_node_new(&n, extra, why) || !(r = lab_redis_open(&buyer, n.url)))
        return 0;
    begin = lab_now_us();
    for (; lab_now_us() - begin < 500 * 1000; pairs++) {
        lab_redis(&buyer, r, "SET lock x NX PX 1000");
        lab_redis(&buyer, r, "DEL lock");
    }
    redisFree(r);
    lab_node_kill(&n);
    return (double)pairs / 0.5;
}

static void restarted(const lab_site *site, lab_finding *out)
{
    static const char *const none[] = {"--appendonly", "no", NULL};
    static const char *const second[] = {"--appendonly", "yes", "--appendfsync", "everysec", NULL};
    static const char *const always[] = {"--appendonly", "yes", "--appendfsync", "always", NULL};
    lab_rows *rows = lab_rows_new(
        "the nodes write\tone restarts\tall restart\tone loses its last second\tpairs per second");
    char why[256] = "";
    const double pairs[] = {speed(none), speed(second), speed(always)};
    int empty = story(none, restart, why), all = story(none, restart_all, why);
    int late = delayed(why), cut = story(second, lose_last_second, why);

    (void)site;
    lab_rows_add(rows, "nothing\t%s\t%s\t\t%.0f", verdict(empty), verdict(all), pairs[0]);
    lab_rows_add(rows, "nothing, and come back after the longest lease\t%s\t\t\t", verdict(late));
    lab_rows_add(rows, "appendfsync everysec\t%s\t%s\t%s\t%.0f",
                 verdict(story(second, restart, why)), verdict(story(second, restart_all, why)),
                 verdict(cut), pairs[1]);
    lab_rows_add(rows, "appendfsync always\t%s\t%s\tcannot: it answers after the disk\t%.0f",
                 verdict(story(always, restart, why)), verdict(story(always, restart_all, why)),
                 pairs[2]);
    out->table = lab_rows_end(rows);
    out->at_once = empty > 0 ? 2 : 1;
    lab_found(
        out,
        empty < 0 ? LAB_NOT_RUN
        : empty   ? LAB_BROKE
                  : LAB_SURVIVED,
        "a node that restarts empty inside a lease: %s; all of them: %s; back after the longest "
        "lease: %s; appendfsync everysec and the last second lost: %s; pairs per second: %.0f "
        "written nowhere, %.0f with everysec, %.0f with always%s%s",
        verdict(empty), verdict(all), verdict(late), verdict(cut), pairs[0], pairs[1], pairs[2],
        empty < 0 ? ": " : "", empty < 0 ? why : "");
}

/* ---- A clock that jumps ---------------------------------------------------------------------- */

/* The faked clock of the nodes is in a file; node 2 is told that an hour has passed. */
static char clock_file[300];

static bool jump(trio *t)
{
    FILE *f = fopen(clock_file, "w");

    if (!f)
        return false;
    fputs("+1h", f);
    fclose(f);
    usleep(1500 * 1000); /* the nodes look at it once a second */
    (void)t;
    return true;
}

static void jumping_clock(const lab_site *site, lab_finding *out)
{
    char library[300], file[400];
    const char *extra[] = {library, file, "FAKETIME_CACHE_DURATION=1", NULL};
    static const char *const places[] = {"/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
                                         "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1"};
    const char *found = access(places[0], R_OK) == 0   ? places[0]
                        : access(places[1], R_OK) == 0 ? places[1]
                                                       : NULL;
    char why[256] = "";
    FILE *f;
    int both;

    (void)site;
    snprintf(clock_file, sizeof clock_file, "/tmp/dibs-lab-clock-%d", (int)getpid());
    if (!found || !(f = fopen(clock_file, "w"))) {
        lab_found(out, LAB_NOT_RUN, "needs libfaketime (package faketime)");
        return;
    }
    fputs("+0", f);
    fclose(f);
    /* libc before the server's own allocator, which asks for the time before there is one. */
    snprintf(library, sizeof library, "LD_PRELOAD=%s:libc.so.6", found);
    snprintf(file, sizeof file, "FAKETIME_TIMESTAMP_FILE=%s", clock_file);
    both = story(extra, jump, why);
    unlink(clock_file);
    out->at_once = both > 0 ? 2 : 1;
    lab_found(out,
              both < 0 ? LAB_NOT_RUN
              : both   ? LAB_BROKE
                       : LAB_SURVIVED,
              "the nodes' clocks jump ahead by an hour inside a lease of 30 s: %s%s%s",
              verdict(both), both < 0 ? ": " : "", both < 0 ? why : "");
}

/* ---- Counts that drift apart ----------------------------------------------------------------- */

static int64_t count_on(lab_quorum *q, int i)
{
    return lab_redis(&q->buyer, q->node[i], "HINCRBY lock:count me 0");
}

/* Reentered while a node was away: its count is one behind, and one release releases it there. */
static void drifting(const lab_site *site, lab_finding *out)
{
    char why[256] = "", counts[96];
    int64_t left = 0;
    lab_quorum q;
    trio t;

    (void)site;
    if (!start(&t, NULL, why)) {
        lab_found(out, LAB_NOT_RUN, "%s", why);
        stop(&t);
        return;
    }
    lab_quorum_open(&q, t.node, NODES, "me");
    for (int i = 0; i < NODES; i++)
        lab_redis(&q.buyer, q.node[i], "HINCRBY lock:count me 1");
    for (int i = 0; i < NODES; i++) /* entered again, and two nodes do not hear of it */
        if (i == 0)
            lab_redis(&q.buyer, q.node[i], "HINCRBY lock:count me 1");
    snprintf(counts, sizeof counts, "%lld, %lld, %lld", (long long)count_on(&q, 0),
             (long long)count_on(&q, 1), (long long)count_on(&q, 2));
    for (int i = 0; i < NODES; i++) {
        int64_t n = lab_redis(&q.buyer, q.node[i], "HINCRBY lock:count me -1");
        if (n <= 0)
            lab_redis(&q.buyer, q.node[i], "DEL lock:count");
        else
            left++;
    }
    lab_quorum_close(&q);
    stop(&t);
    lab_found(out, left < 2 ? LAB_BROKE : LAB_SURVIVED,
              "entered twice, and two nodes missed the second entry: counts %s; one release of two "
              "leaves the "
              "lock on %lld node of 3: it is free, and its holder does not know",
              counts, (long long)left);
}

const lab_experiment lab_lost_node = {
    .id = "R12c",
    .name = "node-restarts",
    .title = "a node of Redlock restarts inside a lease",
    .run = restarted,
};
const lab_experiment lab_clock_jump = {
    .id = "R12d",
    .name = "node-clock",
    .title = "the clock of Redlock's nodes jumps",
    .run = jumping_clock,
};
const lab_experiment lab_drift = {
    .id = "R12d",
    .name = "counts-drift",
    .title = "reentrant counts drift apart between nodes",
    .run = drifting,
};
