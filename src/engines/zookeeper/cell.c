/* Cells in ZooKeeper: nodes ROOT/%c/KEY and ROOT/%r/KEY%REQUEST. A look is a sync and the reads behind
 * it in one flush, so that it sees what was written before through any server; a write is a multi of
 * operations that name the versions which were read. */
#define _GNU_SOURCE
#include "engines/line/cell.h"
#include "core/error.h"
#include "engines/zookeeper/errand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLOCK_SPAN (60 * DIBS__SECOND) /* the leader's clock is asked for again after this */

/* ---- Paths ----------------------------------------------------------------------------------- */

static char *path_of(const dibs__zk *z, const char *folder, const char *key)
{
    char *path = NULL;

    if (asprintf(&path, "%s/%s%s%s", z->root, folder, *key ? "/" : "", key) < 0)
        return NULL;
    return path;
}

static dibs_status no_memory(dibs_error *err)
{
    return dibs__fail(err, DIBS_NO_MEMORY, "zookeeper: out of memory");
}

static dibs_status make_node(dibs__zk *z, const char *path, dibs__deadline until, dibs_error *err)
{
    dibs__zk_errand *e = dibs__zk_errand_new(z);
    dibs_status status = e ? dibs__zk_errand_begin(z, err) : no_memory(err);

    if (status == DIBS_OK) {
        dibs__zk_errand_sent(e, zoo_acreate(z->zh, path, "", 0, z->acl, 0, dibs__zk_errand_on_text,
                                            dibs__zk_expect(e)));
        status = dibs__zk_errand_wait(e, until, err);
        if (dibs__zk_errand_rc(e) == ZNODEEXISTS)
            status = DIBS_OK;
    }
    if (e)
        dibs__zk_errand_drop(e);
    return status;
}

/* The folder that holds them, and what leads to it: made when the first one is. */
static dibs_status make_folder(dibs__zk *z, const char *folder, dibs__deadline until,
                               dibs_error *err)
{
    char *path = path_of(z, folder, "");
    dibs_status status = path ? DIBS_OK : no_memory(err);

    for (char *slash = path; status == DIBS_OK && slash;) {
        slash = strchr(slash + 1, '/');
        if (slash)
            *slash = '\0';
        status = make_node(z, path, until, err);
        if (slash)
            *slash = '/';
    }
    free(path);
    return status;
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* False: out of memory. */
static bool take_parcel(dibs__zk_parcel *p, dibs__line_blob *b)
{
    b->version = p->rc == ZOK ? p->stat.version : -1;
    b->stamp = p->stat.mtime * DIBS__MS;
    b->data = p->data;
    b->size = p->size;
    p->data = NULL;
    return p->rc != ZSYSTEMERROR;
}

static dibs_status get_all(dibs__zk *z, dibs__zk_errand *e, dibs__line_blob *blobs, size_t count,
                           dibs__deadline until, dibs_error *err)
{
    const char *root = *z->root ? z->root : "/";
    dibs_status status = dibs__zk_errand_begin(z, err);

    if (status != DIBS_OK)
        return status;
    dibs__zk_errand_sent(e, zoo_async(z->zh, root, dibs__zk_errand_on_text, dibs__zk_expect(e)));
    for (size_t i = 0; i < count; i++) {
        char *path = path_of(z, blobs[i].folder, blobs[i].key);
        dibs__zk_parcel *p = dibs__zk_expect_parcel(e, i);
        dibs__zk_errand_sent(e, path ? zoo_aget(z->zh, path, 0, dibs__zk_parcel_on_data, p)
                                     : ZSYSTEMERROR);
        free(path);
    }
    status = dibs__zk_errand_wait(e, until, err);
    for (size_t i = 0; status == DIBS_OK && i < count; i++) {
        if (!take_parcel(&e->parcel[i], &blobs[i]))
            status = no_memory(err);
    }
    return status;
}

dibs_status dibs__zk_cells_read(dibs__line_side *s, dibs__line_blob *blobs, size_t count,
                                dibs__deadline until, dibs_error *err)
{
    dibs__zk_errand *e = dibs__zk_errand_new((dibs__zk *)s);
    dibs_status status;

    if (!e)
        return no_memory(err);
    status = get_all((dibs__zk *)s, e, blobs, count, until, err);
    dibs__zk_errand_drop(e);
    return status;
}

/* ---- The clock ------------------------------------------------------------------------------- */

/* With the mutex. What it showed when the answer was here, at the least, and what has passed since. */
static int64_t clock_now(const dibs__zk *z)
{
    int64_t since = dibs__now(z->side.env) - z->clock_at;

    return z->clock && since < CLOCK_SPAN ? z->clock + since : 0;
}

/* The leader gives every write the time of its clock. */
static dibs_status write_for_time(dibs__zk *z, dibs__deadline until, dibs_error *err)
{
    dibs__zk_errand *e = dibs__zk_errand_new(z);
    char *path = path_of(z, "%c", "");
    dibs_status status = e && path ? dibs__zk_errand_begin(z, err) : no_memory(err);
    unsigned connections = 0;

    if (status == DIBS_OK) {
        dibs__zk_parcel *p = dibs__zk_expect_parcel(e, 0);
        connections = z->connections;
        dibs__zk_errand_sent(e, zoo_aset(z->zh, path, "", 0, -1, dibs__zk_parcel_on_stat, p));
        status = dibs__zk_errand_wait(e, until, err);
    }
    if (status == DIBS_OK) {
        pthread_mutex_lock(&z->mutex);
        z->clock = connections == z->connections ? e->parcel[0].stat.mtime * DIBS__MS : 0;
        z->clock_at = dibs__now(z->side.env);
        pthread_mutex_unlock(&z->mutex);
    }
    if (e)
        dibs__zk_errand_drop(e);
    free(path);
    return status;
}

dibs_status dibs__zk_cells_clock(dibs__line_side *s, dibs__deadline until, int64_t *out,
                                 dibs_error *err)
{
    dibs__zk *z = (dibs__zk *)s;
    dibs_status status = DIBS_OK;

    for (*out = 0; status == DIBS_OK && *out == 0 && dibs__now(s->env) < until;) {
        pthread_mutex_lock(&z->mutex);
        *out = clock_now(z);
        pthread_mutex_unlock(&z->mutex);
        if (*out == 0)
            status = write_for_time(z, until, err);
    }
    if (status == DIBS_OK && *out == 0)
        status = dibs__fail(err, DIBS_UNAVAILABLE, "zookeeper: no answer in time");
    return status;
}

/* ---- Watching -------------------------------------------------------------------------------- */

/* The watch is the side's, not a waiter's: it needs no memory of its own, and asked for again it is the
 * same one. So one that nobody waits for any more does no harm: it goes with the node's next change,
 * and a run that somebody waited for changes its node with every sign of life. */
static void on_change(zhandle_t *zh, int type, int state, const char *path, void *context)
{
    dibs__zk *z = context;
    const char *slash = path ? strrchr(path, '/') : NULL;

    (void)zh;
    (void)state;
    if (type != ZOO_SESSION_EVENT && slash) /* session.c hears of those */
        dibs__line_cell_changed(z->side.line, slash + 1);
}

/* No sync: what our server has not heard of yet it will tell. */
dibs_status dibs__zk_cells_watch(dibs__line_side *s, dibs__line_blob *blob, void **out,
                                 dibs__deadline until, dibs_error *err)
{
    dibs__zk *z = (dibs__zk *)s;
    dibs__zk_errand *e = dibs__zk_errand_new(z);
    char *path = path_of(z, blob->folder, blob->key);
    dibs_status status = e && path ? dibs__zk_errand_begin(z, err) : no_memory(err);

    *out = NULL;
    if (status == DIBS_OK) {
        dibs__zk_parcel *p = dibs__zk_expect_parcel(e, 0);
        dibs__zk_errand_sent(e, zoo_awget(z->zh, path, on_change, z, dibs__zk_parcel_on_data, p));
        status = dibs__zk_errand_wait(e, until, err);
    }
    if (status == DIBS_OK && !take_parcel(&e->parcel[0], blob))
        status = no_memory(err);
    if (e)
        dibs__zk_errand_drop(e);
    free(path);
    return status;
}

/* ---- Writing --------------------------------------------------------------------------------- */

static void fill_op(dibs__zk *z, zoo_op_t *op, const dibs__line_blob *b, const char *path)
{
    int size = (int)b->put_size;

    if (b->change == DIBS__LINE_PUT && b->version < 0)
        zoo_create_op_init(op, path, b->put, size, z->acl, 0, NULL, 0);
    else if (b->change == DIBS__LINE_PUT)
        zoo_set_op_init(op, path, b->put, size, (int)b->version, NULL);
    else if (b->change == DIBS__LINE_DROP)
        zoo_delete_op_init(op, path, (int)b->version);
    else
        zoo_check_op_init(op, path, (int)b->version);
}

/* What multi says when a version was not the one that was read. */
static bool was_beaten(int rc)
{
    return rc == ZBADVERSION || rc == ZNODEEXISTS || rc == ZNONODE;
}

dibs_status dibs__zk_cells_write(dibs__line_side *s, const dibs__line_blob *blobs, size_t count,
                                 dibs__deadline until, bool *done, dibs_error *err)
{
    dibs__zk *z = (dibs__zk *)s;
    dibs__zk_errand *e = dibs__zk_errand_new(z);
    zoo_op_t ops[2];
    char *path[2] = {NULL, NULL};
    int n = 0, rc;
    dibs_status status = e ? DIBS_OK : no_memory(err);

    *done = false;
    for (size_t i = 0; status == DIBS_OK && i < count; i++) {
        /* A key that is not there and stays so: nothing to check it by, and nobody to make it but a
         * command on the same cell, whose version is checked. */
        if (blobs[i].change == DIBS__LINE_AS_IT_IS && blobs[i].version < 0)
            continue;
        path[n] = path_of(z, blobs[i].folder, blobs[i].key);
        if (!path[n])
            status = no_memory(err);
        else
            fill_op(z, &ops[n], &blobs[i], path[n]), n++;
    }
    if (status == DIBS_OK)
        status = dibs__zk_errand_begin(z, err);
    if (status == DIBS_OK) {
        dibs__zk_errand_sent(
            e, zoo_amulti(z->zh, n, ops, e->results, dibs__zk_errand_on_void, dibs__zk_expect(e)));
        status = dibs__zk_errand_wait(e, until, err);
        rc = dibs__zk_errand_rc(e);
        *done = status == DIBS_OK;
        if (was_beaten(rc))
            status = DIBS_OK;
        for (size_t i = 0; rc == ZNONODE && i < count && status == DIBS_OK; i++)
            if (blobs[i].version < 0)
                status = make_folder(z, blobs[i].folder, until, err);
    }
    if (e)
        dibs__zk_errand_drop(e);
    free(path[0]);
    free(path[1]);
    return status;
}

/* ---- Walking --------------------------------------------------------------------------------- */

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static dibs_status list_names(dibs__zk *z, const char *folder, dibs__zk_errand *e,
                              dibs__deadline until, dibs_error *err)
{
    char *path = path_of(z, folder, "");
    dibs_status status = path ? dibs__zk_errand_begin(z, err) : no_memory(err);

    if (status == DIBS_OK) {
        dibs__zk_errand_sent(
            e, zoo_aget_children(z->zh, path, 0, dibs__zk_errand_on_names, dibs__zk_expect(e)));
        status = dibs__zk_errand_wait(e, until, err);
    }
    free(path);
    return status;
}

dibs_status dibs__zk_cells_walk(dibs__line_side *s, const char *folder, const char *after,
                                size_t limit, dibs__deadline until, dibs__line_blob **out,
                                size_t *count, dibs_error *err)
{
    dibs__zk *z = (dibs__zk *)s;
    dibs__zk_errand *names = dibs__zk_errand_new(z), *values = dibs__zk_errand_new(z);
    dibs_status status =
        names && values ? list_names(z, folder, names, until, err) : no_memory(err);

    *out = NULL;
    *count = 0;
    limit = limit < DIBS__ZK_PARCELS ? limit : DIBS__ZK_PARCELS;
    if (status == DIBS_OK && !(*out = calloc(limit + 1, sizeof **out)))
        status = no_memory(err);
    if (status == DIBS_OK && names->name_count)
        qsort(names->names, names->name_count, sizeof *names->names, by_bytes);
    for (size_t i = 0; status == DIBS_OK && i < names->name_count && *count < limit; i++)
        if (strcmp(names->names[i], after) > 0 &&
            strlen(names->names[i]) < DIBS__LINE_CELL_KEY_SIZE) {
            dibs__line_blob *b = &(*out)[(*count)++];
            snprintf(b->folder, sizeof b->folder, "%s", folder);
            strcpy(b->key, names->names[i]);
        }
    if (status == DIBS_OK && *count > 0)
        status = get_all(z, values, *out, *count, until, err);
    if (status != DIBS_OK) {
        dibs__line_blobs_free(*out, *count);
        *out = NULL;
        *count = 0;
    }
    if (names)
        dibs__zk_errand_drop(names);
    if (values)
        dibs__zk_errand_drop(values);
    return status;
}
