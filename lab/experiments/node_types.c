/* Z0: the four types of nodes of ZooKeeper: persistent and ephemeral, each also sequential. What is left
 * when the session that made them ends?
 *
 * Z1: the herd: how many waiters does one release wake, when all watch one node, and when each watches
 * the one before it? */
#include "lab/hazards/actor.h"
#include "lab/znode.h"
#include "sessions.h"

#include <stdatomic.h>
#include <unistd.h>

#define WAITERS 20

static void types(const lab_site *site, lab_finding *out)
{
    const struct {
        const char *name, *path;
        int flags;
    } kinds[] = {{"persistent", "/lab-types/p", 0},
                 {"persistent sequential", "/lab-types/ps-", ZOO_SEQUENCE},
                 {"ephemeral", "/lab-types/e", ZOO_EPHEMERAL},
                 {"ephemeral sequential", "/lab-types/es-", ZOO_EPHEMERAL | ZOO_SEQUENCE}};
    lab_buyer buyer = {.site = site};
    zhandle_t *a = lab_znode_open(&buyer), *b = a ? lab_znode_open(&buyer) : NULL;
    char made[4][64] = {{0}};
    lab_rows *rows;
    int stay = 0;

    if (!b || !lab_znode_make(&buyer, b, "/lab-types")) {
        lab_found(out, LAB_NOT_RUN, "%s", buyer.note);
        if (a)
            zookeeper_close(a);
        return;
    }
    for (int i = 0; i < 4; i++)
        zoo_create(a, kinds[i].path, "", 0, &ZOO_OPEN_ACL_UNSAFE, kinds[i].flags, made[i],
                   sizeof made[i]);
    zookeeper_close(a);
    rows = lab_rows_new("type\tcreated as\tafter the end of its session");
    for (int i = 0; i < 4; i++) {
        bool there = zoo_exists(b, made[i], 0, NULL) == ZOK;
        stay += there;
        lab_rows_add(rows, "%s\t%s\t%s", kinds[i].name, made[i], there ? "stays" : "gone");
        zoo_delete(b, made[i], -1);
    }
    zookeeper_close(b);
    out->table = lab_rows_end(rows);
    lab_found(out, LAB_SHOWN, "%d of 4 node types outlive their session", stay);
}

static void count_event(zhandle_t *z, int type, int state, const char *path, void *ctx)
{
    (void)z;
    (void)state;
    (void)path;
    if (type == ZOO_DELETED_EVENT)
        atomic_fetch_add((atomic_int *)ctx, 1);
}

/* How many watches fire when the first of these goes; each waiter has set his own. */
static int release_one(zhandle_t *z, char paths[][64], int watched_by[], zhandle_t **waiters)
{
    atomic_int events = 0;

    for (int i = 0; i < WAITERS; i++)
        zoo_wexists(waiters[i], paths[watched_by[i]], count_event, &events, NULL);
    zoo_delete(z, paths[0], -1);
    usleep(500 * 1000); /* events that come later are not of this release */
    return atomic_load(&events);
}

static void herd_size(const lab_site *site, lab_finding *out)
{
    static char line[WAITERS + 1][64];
    static zhandle_t *waiters[WAITERS];
    static int all[WAITERS], before[WAITERS];
    lab_buyer buyer = {.site = site};
    zhandle_t *z = lab_znode_open(&buyer);
    int herd = 0, queue = 0, seated = 0;

    while (z && seated < WAITERS && (waiters[seated] = lab_znode_open(&buyer)))
        seated++;
    if (seated == WAITERS && lab_znode_make(&buyer, z, "/lab-herd-size")) {
        for (int i = 0; i < WAITERS; i++)
            before[i] = i; /* waiter i stands behind entry i */
        for (int i = 0; i <= WAITERS; i++)
            zoo_create(z, "/lab-herd-size/n-", "", 0, &ZOO_OPEN_ACL_UNSAFE,
                       ZOO_EPHEMERAL | ZOO_SEQUENCE, line[i], sizeof line[i]);
        queue = release_one(z, line, before, waiters);
        for (int i = 0; i < WAITERS; i++)
            all[i] = 0;
        zoo_create(z, line[0], "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL, NULL, 0);
        herd = release_one(z, line, all, waiters);
        lab_found(
            out, herd > queue ? LAB_SHOWN : LAB_NOT_RUN,
            "%d waiters: one release wakes %d when all watch one node, %d when each watches the "
            "one before it",
            WAITERS, herd, queue);
    } else {
        lab_found(out, LAB_NOT_RUN, "%s", buyer.note);
    }
    for (int i = 0; i < seated; i++)
        zookeeper_close(waiters[i]);
    if (z)
        zookeeper_close(z);
}

const lab_experiment lab_node_types = {
    .id = "Z0",
    .name = "node-types",
    .title = "what survives the end of a session",
    .needs = LAB_NEED(LAB_ZOOKEEPER),
    .run = types,
};
const lab_experiment lab_herd_size = {
    .id = "Z1",
    .name = "herd-size",
    .title = "how many waiters one release wakes",
    .needs = LAB_NEED(LAB_ZOOKEEPER),
    .run = herd_size,
};
