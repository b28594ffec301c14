/* C1: a partition, on engines that decide by majority: three of ZooKeeper, three of etcd. A member that is
 * stopped answers nobody, which to everybody else is a cut cable.
 *
 *   1. The leader is cut off, and with it a holder whose only way leads there. The other two go on: when
 *      is the next one let in, and was the old holder told before?
 *   2. The other way round: one member hears nothing of the other two. What does it still grant?
 *   3. Healed after each: does it serve again? */
#include "dibs.h"
#include "lab/ensemble.h"
#include "lab/hazards/actor.h"
#include "sessions.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>

#define ALONE_MS  4000  /* so long the member that is left alone is asked */
#define SERVED_MS 30000 /* an election, and a session that has to end, fit in many times */

typedef struct cut {
    lab_ensemble e;
    int one;           /* the member that is cut off */
    dibs *near, *far;  /* by that member alone, and by the other two */
    atomic_llong lost; /* when the holder was told */
    dibs_error err;
    lab_rows *rows;
    int64_t granted_us, notified_us, alone_us,
        healed_us; /* after the cut, or after it was healed */
    int twice;     /* holders at once, beyond one */
    int accepted;  /* grants of a member that is alone */
} cut;

static void note_loss(void *data, dibs_grant *g, dibs_loss why)
{
    cut *c = data;

    (void)g;
    (void)why;
    atomic_store(&c->lost, lab_now_us());
}

static bool open_both(cut *c, char why[256])
{
    char url[512];

    c->one = lab_ensemble_leader(&c->e);
    snprintf(why, 256, "nobody leads");
    if (c->one < 0)
        return false;
    lab_ensemble_url(&c->e, c->one, false, url);
    if (dibs_open(url, NULL, &c->near, &c->err) == DIBS_OK) {
        lab_ensemble_url(&c->e, c->one, true, url);
        if (dibs_open(url, NULL, &c->far, &c->err) == DIBS_OK)
            return true;
    }
    snprintf(why, 256, "%.200s", c->err.message);
    return false;
}

/* Held, lost or NULL: the experiment has seen what it wanted to see. */
static void let_go(dibs_grant **g)
{
    dibs_status status = dibs_unlock(g, NULL);

    (void)status;
}

/* A holder behind the member that is cut off, and the next one on the other side. */
static bool majority_side(cut *c)
{
    dibs_lock_options o = {.wait_ms = SERVED_MS, .on_lost = note_loss, .data = c};
    dibs_grant *first = NULL, *second = NULL;
    int64_t begin;
    bool got;

    if (dibs_lock(c->near, "c1", &o, &first, &c->err) != DIBS_OK)
        return false;
    begin = lab_now_us();
    lab_ensemble_signal(&c->e, c->one, false, SIGSTOP);
    o = (dibs_lock_options){.wait_ms = SERVED_MS};
    got = dibs_lock(c->far, "c1", &o, &second, &c->err) == DIBS_OK;
    c->granted_us = lab_now_us() - begin;
    c->twice = got && dibs_grant_held(first);
    c->notified_us = atomic_load(&c->lost) ? atomic_load(&c->lost) - begin : -1;
    lab_rows_add(c->rows, "the holder, cut off with the leader\t%s\t%lld ms",
                 c->notified_us < 0 ? "was not notified" : "is notified that it lost the lock",
                 (long long)c->notified_us / 1000);
    lab_rows_add(c->rows, "the next client, at the other two\t%s%s\t%lld ms",
                 got ? "obtains the lock, with a fence that is " : c->err.message,
                 !got                                                 ? ""
                 : dibs_grant_fence(second) > dibs_grant_fence(first) ? "higher"
                                                                      : "NOT higher",
                 (long long)c->granted_us / 1000);
    lab_ensemble_signal(&c->e, c->one, false, SIGCONT);
    let_go(&first);
    let_go(&second);
    return got;
}

/* After the cut is healed: the time until the side that was cut off serves again. */
static bool heal(cut *c, const char *name)
{
    const dibs_lock_options o = {.wait_ms = SERVED_MS};
    dibs_grant *g = NULL;
    int64_t begin = lab_now_us();
    bool got = dibs_lock(c->near, name, &o, &g, &c->err) == DIBS_OK;

    c->healed_us = lab_now_us() - begin;
    lab_rows_add(c->rows, "a client of the member that was cut off, healed\t%s\t%lld ms",
                 got ? "is served" : c->err.message, (long long)c->healed_us / 1000);
    let_go(&g);
    return got;
}

/* One member is left alone, with clients of its own. */
static bool minority_side(cut *c)
{
    const dibs_lock_options o = {.wait_ms = ALONE_MS};
    dibs_grant *g = NULL;
    dibs_status status;
    int64_t begin;

    lab_ensemble_signal(&c->e, c->one, true, SIGSTOP);
    begin = lab_now_us();
    status = dibs_lock(c->near, "c1-alone", &o, &g, &c->err);
    c->alone_us = lab_now_us() - begin;
    c->accepted = status == DIBS_OK;
    lab_rows_add(c->rows, "a client of one member that is alone\t%s\t%lld ms",
                 status == DIBS_OK ? "IS SERVED" : dibs_status_text(status),
                 (long long)c->alone_us / 1000);
    lab_ensemble_signal(&c->e, c->one, true, SIGCONT);
    let_go(&g);
    return true;
}

static void judge(const cut *c, lab_finding *out)
{
    out->at_once = 1 + c->twice;
    lab_found(out, c->twice || c->accepted || c->notified_us < 0 ? LAB_BROKE : LAB_SURVIVED,
              "two of three continue: the next client obtained the lock %lld ms after the cut, the "
              "old holder was notified after %lld ms; one alone granted %d in %lld ms; two holders "
              "at once: %s; "
              "healed, it serves after %lld ms",
              (long long)c->granted_us / 1000, (long long)c->notified_us / 1000, c->accepted,
              (long long)c->alone_us / 1000, c->twice ? "YES" : "never",
              (long long)c->healed_us / 1000);
}

static void partition(lab_server kind, lab_finding *out)
{
    cut c = {.rows = lab_rows_new("client\twhat happens\tafter")};
    char why[256] = "";
    bool up = lab_ensemble_start(&c.e, kind, why) && open_both(&c, why);

    if (up && majority_side(&c) && heal(&c, "c1-after") && minority_side(&c) && heal(&c, "c1-end"))
        judge(&c, out);
    else
        lab_found(out, LAB_NOT_RUN, "%s", up ? c.err.message : why);
    dibs_close(c.near);
    dibs_close(c.far);
    lab_ensemble_stop(&c.e);
    lab_rows_add(c.rows, "what dibs promises there\tone holder; a minority grants nothing\t");
    out->table = lab_rows_end(c.rows);
}

static void on_zookeeper(const lab_site *site, lab_finding *out)
{
    (void)site;
    partition(LAB_ZOOKEEPER, out);
}

static void on_etcd(const lab_site *site, lab_finding *out)
{
    (void)site;
    partition(LAB_ETCD, out);
}

const lab_experiment lab_partition_zookeeper = {
    .id = "C1",
    .name = "partition-zookeeper",
    .title = "a partition: three of ZooKeeper, with dibs",
    .promised = true,
    .run = on_zookeeper,
};
const lab_experiment lab_partition_etcd = {
    .id = "C1",
    .name = "partition-etcd",
    .title = "a partition: three of etcd, with dibs",
    .promised = true,
    .run = on_etcd,
};
