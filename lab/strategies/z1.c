/* Z1: one ephemeral node is the lock: who can create it has it, everybody else watches it and tries again
 * when it goes. A dead holder's node goes with its session; but every release wakes every waiter, and
 * one of them wins. */
#include "lab/znode.h"
#include "strategies.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct herd {
    zhandle_t *z;
    pthread_mutex_t mutex;
    pthread_cond_t gone;
    bool changed;
    char path[128];
} herd;

static void on_change(zhandle_t *z, int type, int state, const char *path, void *ctx)
{
    herd *h = ctx;

    (void)z;
    (void)type;
    (void)state;
    (void)path;
    pthread_mutex_lock(&h->mutex);
    h->changed = true;
    pthread_cond_signal(&h->gone);
    pthread_mutex_unlock(&h->mutex);
}

/* Until the watch fires, or a second has passed. */
static void wait_for_change(herd *h)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec++;
    pthread_mutex_lock(&h->mutex);
    while (!h->changed && pthread_cond_timedwait(&h->gone, &h->mutex, &t) == 0)
        continue;
    pthread_mutex_unlock(&h->mutex);
}

static bool z1_lock(lab_buyer *buyer)
{
    herd *h = buyer->own;
    int64_t until = lab_until(buyer);

    for (;;) {
        int rc = zoo_create(h->z, h->path, "", 0, &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL, NULL, 0);
        buyer->tries++;
        if (rc == ZOK)
            return true;
        if (rc != ZNODEEXISTS)
            return lab_note(buyer, "zookeeper: %s", zerror(rc));
        if (lab_now_us() >= until)
            return false;
        h->changed = false;
        if (zoo_wexists(h->z, h->path, on_change, h, NULL) == ZOK)
            wait_for_change(h);
    }
}

static bool z1_unlock(lab_buyer *buyer)
{
    herd *h = buyer->own;

    return zoo_delete(h->z, h->path, -1) == ZOK;
}

static bool z1_open(lab_buyer *buyer)
{
    herd *h = calloc(1, sizeof *h);

    if (!h)
        return lab_note(buyer, "out of memory");
    pthread_mutex_init(&h->mutex, NULL);
    pthread_cond_init(&h->gone, NULL);
    snprintf(h->path, sizeof h->path, "/lab-herd/%s", buyer->resource);
    h->z = lab_znode_open(buyer);
    buyer->own = h;
    return h->z && lab_znode_make(buyer, h->z, "/lab-herd");
}

static void z1_close(lab_buyer *buyer)
{
    herd *h = buyer->own;

    zookeeper_close(h->z);
    pthread_cond_destroy(&h->gone);
    pthread_mutex_destroy(&h->mutex);
    free(h);
}

const lab_strategy lab_z1 = {
    .id = "Z1",
    .name = "znode-herd",
    .title = "one ephemeral node that everybody watches",
    .stock = LAB_REDIS,
    .needs = LAB_NEED(LAB_ZOOKEEPER),
    .lease_ms = LAB_SESSION_MS,
    .open = z1_open,
    .close = z1_close,
    .lock = z1_lock,
    .unlock = z1_unlock,
};
