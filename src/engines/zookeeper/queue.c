/* The queue of those that change one cell: ephemeral sequential nodes ROOT/%q/KEY/n-SEQUENCE below a
 * container, which the server removes when nobody has used it for a while. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/zookeeper/errand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *dibs__zk_queue_path(const dibs__zk *z, const dibs__line_blob *cell, const char *name)
{
    char *path = NULL;

    if (asprintf(&path, "%s/%%q/%s%s%s", z->root, cell->key, *name ? "/" : "", name) < 0)
        return NULL;
    return path;
}

static int64_t order_of(const char *name)
{
    return strncmp(name, "n-", 2) == 0 ? strtoll(name + 2, NULL, 10) : 0;
}

/* Sequence numbers are compared by how far they are apart: they turn negative in the end. */
static bool is_before(int64_t a, int64_t b)
{
    return (int32_t)((uint32_t)a - (uint32_t)b) < 0;
}

static void count(const dibs__zk_errand *e, const dibs__line_ticket *t, size_t *ahead)
{
    for (size_t i = 0; i < e->name_count; i++)
        *ahead += is_before(order_of(e->names[i]), t->order);
}

static void take_place(const dibs__zk_errand *e, uint64_t session, dibs__line_ticket *t)
{
    snprintf(t->name, sizeof t->name, "%s", strrchr(e->parcel[0].data, '/') + 1);
    t->order = order_of(t->name);
    t->session = session;
    t->made = true;
}

/* Takes a place if there is none yet, and counts, in one flush. */
static int ask(dibs__zk *z, const dibs__line_blob *cell, dibs__line_ticket *t, dibs__deadline until,
               size_t *ahead)
{
    dibs__zk_errand *e = dibs__zk_errand_new(z);
    char *own = dibs__zk_queue_path(z, cell, "n-"), *all = dibs__zk_queue_path(z, cell, "");
    int rc = ZSYSTEMERROR;

    if (e && own && all && dibs__zk_errand_begin(z, NULL) == DIBS_OK) {
        uint64_t session = z->session;
        bool make = !t->made;
        if (make)
            dibs__zk_errand_sent(e, zoo_acreate(z->zh, own, "", 0, z->acl, ZOO_EPHEMERAL_SEQUENTIAL,
                                                dibs__zk_parcel_on_path,
                                                dibs__zk_expect_parcel(e, 0)));
        dibs__zk_errand_sent(
            e, zoo_aget_children(z->zh, all, 0, dibs__zk_errand_on_names, dibs__zk_expect(e)));
        dibs__zk_errand_wait(e, until, NULL);
        rc = dibs__zk_errand_rc(e);
        if (rc == ZOK && make)
            take_place(e, session, t);
        if (rc == ZOK)
            count(e, t, ahead);
    }
    if (e)
        dibs__zk_errand_drop(e);
    free(own);
    free(all);
    return rc;
}

/* A container: the server removes it when it has been empty for a while. */
static void make_queue(dibs__zk *z, const dibs__line_blob *cell, dibs__deadline until)
{
    dibs__zk_errand *e = dibs__zk_errand_new(z);
    char *path = dibs__zk_queue_path(z, cell, "");

    if (e && path && dibs__zk_errand_begin(z, NULL) == DIBS_OK) {
        dibs__zk_errand_sent(e, zoo_acreate(z->zh, path, "", 0, z->acl, ZOO_CONTAINER,
                                            dibs__zk_errand_on_text, dibs__zk_expect(e)));
        dibs__zk_errand_wait(e, until, NULL);
    }
    if (e)
        dibs__zk_errand_drop(e);
    free(path);
}

dibs_status dibs__zk_cells_line_up(dibs__line_side *s, const dibs__line_blob *cell,
                                   dibs__line_ticket *t, dibs__deadline until, size_t *ahead)
{
    dibs__zk *z = (dibs__zk *)s;
    int rc = ZNONODE;

    for (int tries = 0; rc == ZNONODE && tries < 3; tries++) {
        *ahead = 0;
        rc = ask(z, cell, t, until, ahead);
        if (rc == ZNONODE && tries > 0)
            dibs__zk_make_folder(z, "%q", until, NULL);
        if (rc == ZNONODE)
            make_queue(z, cell, until);
    }
    return dibs__zk_status(rc);
}

/* Nobody waits for the answer. A place of an older session is gone, or will be. */
void dibs__zk_cells_step_out(dibs__line_side *s, const dibs__line_blob *cell, dibs__line_ticket *t)
{
    dibs__zk *z = (dibs__zk *)s;
    dibs__zk_errand *e = dibs__zk_errand_new(z);
    char *path = dibs__zk_queue_path(z, cell, t->name);

    if (e && path && dibs__zk_errand_begin(z, NULL) == DIBS_OK) {
        if (t->session == z->session)
            dibs__zk_errand_sent(
                e, zoo_adelete(z->zh, path, -1, dibs__zk_errand_on_void, dibs__zk_expect(e)));
        pthread_mutex_unlock(&z->mutex);
    }
    if (e)
        dibs__zk_errand_drop(e);
    free(path);
    t->made = false;
}
