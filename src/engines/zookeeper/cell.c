/* Cells in ZooKeeper: nodes ROOT/%c/KEY and ROOT/%r/KEY%REQUEST. A look is a sync and the reads behind
 * it in one flush, so that it sees what was written before through any server; a write is a multi of
 * operations that name the versions which were read.
 *
 * The caller waits for an errand. One that gives up leaves it to the completions that still come: the
 * last to leave frees it. */
#define _GNU_SOURCE
#include "engines/line/cell.h"
#include "core/error.h"
#include "engines/zookeeper/zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WALK_MAX 256

typedef struct errand errand;

typedef struct parcel {
    errand *e;
    int rc;
    char *data;
    size_t size;
    int32_t version;
} parcel;

struct errand {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    int refs, left;
    int rc; /* of what is not a parcel */
    char **names;
    size_t name_count;
    zoo_op_result_t results[2];
    parcel parcel[WALK_MAX];
};

/* ---- Errands --------------------------------------------------------------------------------- */

static errand *errand_new(void)
{
    errand *e = calloc(1, sizeof *e);
    pthread_condattr_t monotonic;

    if (!e)
        return NULL;
    pthread_mutex_init(&e->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&e->cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
    e->refs = 1;
    for (size_t i = 0; i < WALK_MAX; i++)
        e->parcel[i].e = e;
    return e;
}

/* With its mutex; leaves it. */
static void errand_leave(errand *e)
{
    bool last = --e->refs == 0;

    pthread_mutex_unlock(&e->mutex);
    if (!last)
        return;
    for (size_t i = 0; i < WALK_MAX; i++)
        free(e->parcel[i].data);
    for (size_t i = 0; i < e->name_count; i++)
        free(e->names[i]);
    free(e->names);
    pthread_cond_destroy(&e->cond);
    pthread_mutex_destroy(&e->mutex);
    free(e);
}

static void drop_errand(errand *e)
{
    pthread_mutex_lock(&e->mutex);
    errand_leave(e);
}

/* Before a request is handed over: its answer may come at once. */
static errand *expect(errand *e)
{
    pthread_mutex_lock(&e->mutex);
    e->left++;
    e->refs++;
    pthread_mutex_unlock(&e->mutex);
    return e;
}

/* It was handed over, or not: then no answer will come. */
static void sent(errand *e, int rc)
{
    if (rc == ZOK)
        return;
    pthread_mutex_lock(&e->mutex);
    e->rc = rc;
    e->left--;
    errand_leave(e);
}

static void answered(errand *e)
{
    if (--e->left == 0)
        pthread_cond_signal(&e->cond);
    errand_leave(e);
}

static void on_sync(int rc, const char *value, const void *data)
{
    errand *e = (errand *)(uintptr_t)data;

    (void)value;
    pthread_mutex_lock(&e->mutex);
    if (rc != ZOK)
        e->rc = rc;
    answered(e);
}

static void on_void(int rc, const void *data)
{
    on_sync(rc, NULL, data);
}

static void on_data(int rc, const char *value, int size, const struct Stat *stat, const void *data)
{
    parcel *p = (parcel *)(uintptr_t)data;

    pthread_mutex_lock(&p->e->mutex);
    p->rc = rc;
    if (rc == ZOK) {
        p->size = value && size > 0 ? (size_t)size : 0;
        p->version = stat->version;
        p->data = malloc(p->size + 1);
        if (!p->data)
            p->rc = ZSYSTEMERROR;
        else if (p->size)
            memcpy(p->data, value, p->size);
    } else if (rc != ZNONODE) {
        p->e->rc = rc;
    }
    answered(p->e);
}

static void on_names(int rc, const struct String_vector *names, const void *data)
{
    errand *e = (errand *)(uintptr_t)data;

    pthread_mutex_lock(&e->mutex);
    e->rc = rc == ZNONODE ? ZOK : rc;
    e->names = rc == ZOK ? calloc((size_t)names->count + 1, sizeof *e->names) : NULL;
    for (int i = 0; e->names && i < names->count; i++) {
        e->names[e->name_count] = strdup(names->data[i]);
        if (e->names[e->name_count])
            e->name_count++;
    }
    answered(e);
}

/* What came of it; of one that has not ended, nothing is known. */
static int rc_of(errand *e)
{
    int rc;

    pthread_mutex_lock(&e->mutex);
    rc = e->left > 0 ? ZOPERATIONTIMEOUT : e->rc;
    pthread_mutex_unlock(&e->mutex);
    return rc;
}

/* Takes our mutex if there is a session to send on. */
static dibs_status begin(dibs__zk *z, dibs_error *err)
{
    pthread_mutex_lock(&z->mutex);
    if (z->zh && z->state == DIBS__ZK_OPEN)
        return DIBS_OK;
    pthread_mutex_unlock(&z->mutex);
    return dibs__fail(err, DIBS_UNAVAILABLE,
                      "zookeeper: the session has ended; a new one is being made");
}

/* Leaves our mutex and waits for all answers. */
static dibs_status wait_for(dibs__zk *z, errand *e, dibs__deadline until, dibs_error *err)
{
    int rc;

    pthread_mutex_unlock(&z->mutex);
    pthread_mutex_lock(&e->mutex);
    while (e->left > 0 && dibs__now(z->side.env) < until) {
        struct timespec at;
        int64_t left = until - dibs__now(z->side.env);
        clock_gettime(CLOCK_MONOTONIC, &at);
        left = left < DIBS__SECOND ? left : DIBS__SECOND; /* our clock also counts sleep */
        at.tv_nsec += (long)(left % DIBS__SECOND) * 1000;
        at.tv_sec += (time_t)(left / DIBS__SECOND) + at.tv_nsec / 1000000000;
        at.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&e->cond, &e->mutex, &at);
    }
    pthread_mutex_unlock(&e->mutex);
    rc = rc_of(e);
    return rc == ZOK ? DIBS_OK : dibs__zk_fail(z, rc, err);
}

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
    errand *e = errand_new();
    dibs_status status = e ? begin(z, err) : no_memory(err);

    if (status == DIBS_OK) {
        sent(e, zoo_acreate(z->zh, path, "", 0, z->acl, 0, on_sync, expect(e)));
        status = wait_for(z, e, until, err);
        if (rc_of(e) == ZNODEEXISTS)
            status = DIBS_OK;
    }
    if (e)
        drop_errand(e);
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

static dibs_status get_all(dibs__zk *z, errand *e, dibs__line_blob *blobs, size_t count,
                           dibs__deadline until, dibs_error *err)
{
    const char *root = *z->root ? z->root : "/";
    dibs_status status = begin(z, err);

    if (status != DIBS_OK)
        return status;
    sent(e, zoo_async(z->zh, root, on_sync, expect(e)));
    for (size_t i = 0; i < count; i++) {
        char *path = path_of(z, blobs[i].folder, blobs[i].key);
        expect(e);
        sent(e, path ? zoo_aget(z->zh, path, 0, on_data, &e->parcel[i]) : ZSYSTEMERROR);
        free(path);
    }
    status = wait_for(z, e, until, err);
    for (size_t i = 0; status == DIBS_OK && i < count; i++) {
        parcel *p = &e->parcel[i];
        blobs[i].version = p->rc == ZOK ? p->version : -1;
        blobs[i].data = p->data;
        blobs[i].size = p->size;
        p->data = NULL;
        if (p->rc == ZSYSTEMERROR)
            status = no_memory(err);
    }
    return status;
}

dibs_status dibs__zk_cells_read(dibs__line_side *s, dibs__line_blob *blobs, size_t count,
                                dibs__deadline until, dibs_error *err)
{
    errand *e = errand_new();
    dibs_status status;

    if (!e)
        return no_memory(err);
    status = get_all((dibs__zk *)s, e, blobs, count, until, err);
    drop_errand(e);
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
    errand *e = errand_new();
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
        status = begin(z, err);
    if (status == DIBS_OK) {
        sent(e, zoo_amulti(z->zh, n, ops, e->results, on_void, expect(e)));
        status = wait_for(z, e, until, err);
        rc = rc_of(e);
        *done = status == DIBS_OK;
        if (was_beaten(rc))
            status = DIBS_OK;
        for (size_t i = 0; rc == ZNONODE && i < count && status == DIBS_OK; i++)
            if (blobs[i].version < 0)
                status = make_folder(z, blobs[i].folder, until, err);
    }
    if (e)
        drop_errand(e);
    free(path[0]);
    free(path[1]);
    return status;
}

/* ---- Walking --------------------------------------------------------------------------------- */

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static dibs_status list_names(dibs__zk *z, const char *folder, errand *e, dibs__deadline until,
                              dibs_error *err)
{
    char *path = path_of(z, folder, "");
    dibs_status status = path ? begin(z, err) : no_memory(err);

    if (status == DIBS_OK) {
        sent(e, zoo_aget_children(z->zh, path, 0, on_names, expect(e)));
        status = wait_for(z, e, until, err);
    }
    free(path);
    return status;
}

dibs_status dibs__zk_cells_walk(dibs__line_side *s, const char *folder, const char *after,
                                size_t limit, dibs__deadline until, dibs__line_blob **out,
                                size_t *count, dibs_error *err)
{
    dibs__zk *z = (dibs__zk *)s;
    errand *names = errand_new(), *values = errand_new();
    dibs_status status =
        names && values ? list_names(z, folder, names, until, err) : no_memory(err);

    *out = NULL;
    *count = 0;
    limit = limit < WALK_MAX ? limit : WALK_MAX;
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
        drop_errand(names);
    if (values)
        drop_errand(values);
    return status;
}
