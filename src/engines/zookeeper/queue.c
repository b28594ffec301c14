/* The queue of those that change one cell: ephemeral sequential nodes ROOT/%q/KEY/n-TAG-SEQUENCE below a
 * container, which the server removes when nobody has used it for a while. The tag is random: by it a place
 * is found whose making got no answer. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/zookeeper/exchange.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX 19 /* "n-", 16 digits, "-" */

char *dibs__zk_queue_path(const dibs__zk *z, const dibs__entries_blob *cell, const char *name)
{
    char *path = NULL;

    if (asprintf(&path, "%s/%%q/%s%s%s", z->root, cell->key, *name ? "/" : "", name) < 0)
        return NULL;
    return path;
}

/* The number may have a sign. */
static int64_t order_of(const char *name)
{
    return strlen(name) > PREFIX && name[PREFIX - 1] == '-' ? strtoll(name + PREFIX, NULL, 10) : 0;
}

/* Sequence numbers are compared by how far they are apart: they turn negative in the end. */
static bool is_before(int64_t a, int64_t b)
{
    return (int32_t)((uint32_t)a - (uint32_t)b) < 0;
}

static void count(const dibs__zk_exchange *e, const dibs__entries_turn *t, size_t *ahead)
{
    for (size_t i = 0; i < e->name_count; i++)
        *ahead += is_before(order_of(e->names[i]), t->order);
}

static void take_place(const dibs__zk_exchange *e, uint64_t session, dibs__entries_turn *t)
{
    snprintf(t->name, sizeof t->name, "%s", strrchr(e->reply[0].data, '/') + 1);
    t->order = order_of(t->name);
    t->session = session;
    t->made = true;
}

/* What came of the making. Without an answer it may exist, now or in a moment: it is given up. */
static void settle(dibs__zk_exchange *e, uint64_t session, const char *queue, const char *tag,
                   dibs__entries_turn *t)
{
    dibs__zk *z = e->z;
    bool not_made;

    pthread_mutex_lock(&z->mutex);
    if (e->reply[0].data)
        take_place(e, session, t);
    not_made = dibs__answer_came(&e->answer) && e->reply[0].rc == ZNONODE;
    pthread_mutex_unlock(&z->mutex);
    if (!t->made && !not_made)
        dibs__zk_stray_add(z, session, queue, tag, 0);
}

/* Takes a place if there is none yet, and counts, in one flush. */
static int ask(dibs__zk *z, const dibs__entries_blob *cell, dibs__entries_turn *t,
               dibs__deadline until, size_t *ahead)
{
    dibs__zk_exchange *e = dibs__zk_exchange_new(z);
    char tag[PREFIX + 1], *own, *all = dibs__zk_queue_path(z, cell, "");
    uint64_t random;
    int rc = ZSYSTEMERROR;

    z->backend.env->random(z->backend.env->ctx, &random, sizeof random);
    snprintf(tag, sizeof tag, "n-%016" PRIx64 "-", random);
    own = dibs__zk_queue_path(z, cell, tag);
    if (e && own && all && dibs__zk_exchange_begin(z, NULL) == DIBS_OK) {
        uint64_t session = z->session;
        bool make = !t->made;
        if (make)
            dibs__zk_exchange_sent(e, zoo_acreate(z->zh, own, "", 0, z->acl,
                                                  ZOO_EPHEMERAL_SEQUENTIAL, dibs__zk_reply_on_path,
                                                  dibs__zk_expect_reply(e, 0)));
        dibs__zk_exchange_sent(
            e, zoo_aget_children(z->zh, all, 0, dibs__zk_exchange_on_names, dibs__zk_expect(e)));
        dibs__zk_exchange_wait(e, until, NULL);
        rc = dibs__zk_exchange_rc(e);
        if (make)
            settle(e, session, all, tag, t);
        if (rc == ZOK)
            count(e, t, ahead);
    }
    if (e)
        dibs__zk_exchange_drop(e);
    free(own);
    free(all);
    return rc;
}

/* A container: the server removes it when it has been empty for a while. */
static void make_queue(dibs__zk *z, const dibs__entries_blob *cell, dibs__deadline until)
{
    dibs__zk_exchange *e = dibs__zk_exchange_new(z);
    char *path = dibs__zk_queue_path(z, cell, "");

    if (e && path && dibs__zk_exchange_begin(z, NULL) == DIBS_OK) {
        dibs__zk_exchange_sent(e, zoo_acreate(z->zh, path, "", 0, z->acl, ZOO_CONTAINER,
                                              dibs__zk_exchange_on_text, dibs__zk_expect(e)));
        dibs__zk_exchange_wait(e, until, NULL);
    }
    if (e)
        dibs__zk_exchange_drop(e);
    free(path);
}

dibs_status dibs__zk_cells_join_queue(dibs__entries_backend *s, const dibs__entries_blob *cell,
                                      dibs__entries_turn *t, dibs__deadline until, size_t *ahead)
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

/* Nobody waits for that. A place of an older session is gone, or will be. */
void dibs__zk_cells_leave_queue(dibs__entries_backend *s, const dibs__entries_blob *cell,
                                dibs__entries_turn *t)
{
    dibs__zk *z = (dibs__zk *)s;
    char *path = dibs__zk_queue_path(z, cell, t->name);

    if (path)
        dibs__zk_stray_add(z, t->session, path, NULL, 0);
    free(path);
    t->made = false;
}
