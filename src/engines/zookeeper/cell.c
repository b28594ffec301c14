/* Cells in ZooKeeper: nodes ROOT/%c/KEY and ROOT/%r/KEY%REQUEST. A look is a sync and the reads behind
 * it in one flush, so that it sees what was written before through any server; a write is a multi of
 * operations that name the versions which were read.
 *
 * Versions of nodes begin at 0 with every node: one that was deleted and made again between a look and the
 * write after it would pass for the one that was looked at. So every drop also writes to a guard,
 * ROOT/%g/XX, which is the same for one key in 256, and every write names the version that the guard had
 * before the look. */
#define _GNU_SOURCE
#include "families/entries/cell.h"
#include "core/error.h"
#include "core/table.h"
#include "engines/zookeeper/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLOCK_SPAN (60 * DIBS__SECOND) /* the leader's clock is asked for again after this */
#define GUARDS     256

/* ---- Paths ----------------------------------------------------------------------------------- */

char *dibs__zk_cell_path(const dibs__zk *z, const char *folder, const char *key)
{
    char *path = NULL;

    if (asprintf(&path, "%s/%s%s%s", z->root, folder, *key ? "/" : "", key) < 0)
        return NULL;
    return path;
}

static unsigned guard_number(const char *key)
{
    return (unsigned)(dibs__hash(key) % GUARDS);
}

static char *guard_of(const dibs__zk *z, const char *key)
{
    char name[8];

    snprintf(name, sizeof name, "%02x", guard_number(key));
    return dibs__zk_cell_path(z, "%g", name);
}

static dibs_status no_memory(dibs_error *err)
{
    return dibs__fail(err, DIBS_NO_MEMORY, "zookeeper: out of memory");
}

static dibs_status make_node(dibs__zk *z, const char *path, dibs__deadline until, dibs_error *err)
{
    dibs__zk_exchange *e = dibs__zk_exchange_new(z);
    dibs_status status = e ? dibs__zk_exchange_begin(z, err) : no_memory(err);

    if (status == DIBS_OK) {
        dibs__zk_exchange_sent(e, zoo_acreate(z->zh, path, "", 0, z->acl, 0,
                                              dibs__zk_exchange_on_text, dibs__zk_expect(e)));
        status = dibs__zk_exchange_wait(e, until, err);
        if (dibs__zk_exchange_rc(e) == ZNODEEXISTS)
            status = DIBS_OK;
    }
    if (e)
        dibs__zk_exchange_drop(e);
    return status;
}

/* The folder that holds them, and what leads to it: made when the first one is. */
dibs_status dibs__zk_make_folder(dibs__zk *z, const char *folder, dibs__deadline until,
                                 dibs_error *err)
{
    char *path = dibs__zk_cell_path(z, folder, "");
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
static bool take_reply(dibs__zk_reply *p, dibs__entries_blob *b)
{
    b->version = p->rc == ZOK ? p->stat.version : -1;
    b->number = p->rc == ZOK ? (uint64_t)p->stat.mzxid : 0;
    b->stamp = p->stat.mtime * DIBS__MS;
    b->data = p->data;
    b->size = p->size;
    p->data = NULL;
    return p->rc != ZSYSTEMERROR;
}

static void ask_for(dibs__zk *z, dibs__zk_exchange *e, const dibs__entries_blob *b, size_t i)
{
    char *path = dibs__zk_cell_path(z, b->folder, b->key);
    dibs__zk_reply *p = dibs__zk_expect_reply(e, 2 * i);

    dibs__zk_exchange_sent(e, path ? zoo_aget(z->zh, path, 0, dibs__zk_reply_on_data, p)
                                   : ZSYSTEMERROR);
    free(path);
}

static void ask_for_guard(dibs__zk *z, dibs__zk_exchange *e, const dibs__entries_blob *b, size_t i)
{
    char *path = guard_of(z, b->key);
    dibs__zk_reply *p = dibs__zk_expect_reply(e, 2 * i + 1);

    dibs__zk_exchange_sent(e, path ? zoo_aexists(z->zh, path, 0, dibs__zk_reply_on_stat, p)
                                   : ZSYSTEMERROR);
    free(path);
}

/* Behind those. */
static void ask_for_queue(dibs__zk *z, dibs__zk_exchange *e, const dibs__entries_blob *cell,
                          size_t i)
{
    char *path = dibs__zk_queue_path(z, cell, "");
    dibs__zk_reply *p = dibs__zk_expect_reply(e, i);

    dibs__zk_exchange_sent(e, path ? zoo_aexists(z->zh, path, 0, dibs__zk_reply_on_stat, p)
                                   : ZSYSTEMERROR);
    free(path);
}

/* The first so many with their guards, which go first: what is dropped after that look changes them. */
dibs_status dibs__zk_cells_get(dibs__zk *z, dibs__zk_exchange *e, dibs__entries_blob *blobs,
                               size_t count, size_t guards, dibs__deadline until, dibs_error *err)
{
    const char *root = *z->root ? z->root : "/";
    dibs_status status = dibs__zk_exchange_begin(z, err);

    if (status != DIBS_OK)
        return status;
    dibs__zk_exchange_sent(e,
                           zoo_async(z->zh, root, dibs__zk_exchange_on_text, dibs__zk_expect(e)));
    for (size_t i = 0; i < guards; i++)
        ask_for_guard(z, e, &blobs[i], i);
    for (size_t i = 0; i < count; i++)
        ask_for(z, e, &blobs[i], i);
    if (blobs[0].turn)
        ask_for_queue(z, e, &blobs[0], 2 * count);
    status = dibs__zk_exchange_wait(e, until, err);
    blobs[0].queue = status == DIBS_OK && blobs[0].turn && e->reply[2 * count].stat.numChildren > 0;
    for (size_t i = 0; status == DIBS_OK && i < count; i++) {
        const dibs__zk_reply *guard = &e->reply[2 * i + 1];
        blobs[i].guard = i < guards && guard->rc == ZOK ? guard->stat.version : -1;
        if (!take_reply(&e->reply[2 * i], &blobs[i]))
            status = no_memory(err);
    }
    return status;
}

dibs_status dibs__zk_cells_read(dibs__entries_backend *s, dibs__entries_blob *blobs, size_t count,
                                dibs__deadline until, dibs_error *err)
{
    dibs__zk_exchange *e = dibs__zk_exchange_new((dibs__zk *)s);
    dibs_status status;

    if (!e)
        return no_memory(err);
    status = dibs__zk_cells_get((dibs__zk *)s, e, blobs, count, blobs[0].only ? 0 : 1, until, err);
    dibs__zk_exchange_drop(e);
    return status;
}

/* ---- The clock ------------------------------------------------------------------------------- */

/* With the mutex. What it showed when the answer was here, at the least, and what has passed since. */
static int64_t clock_now(const dibs__zk *z)
{
    int64_t since = dibs__now(z->backend.env) - z->clock_at;

    return z->clock && since < CLOCK_SPAN ? z->clock + since : 0;
}

/* The leader gives every write the time of its clock. */
static dibs_status write_for_time(dibs__zk *z, dibs__deadline until, dibs_error *err)
{
    dibs__zk_exchange *e = dibs__zk_exchange_new(z);
    char *path = dibs__zk_cell_path(z, "%c", "");
    dibs_status status = e && path ? dibs__zk_exchange_begin(z, err) : no_memory(err);
    unsigned connections = 0;

    if (status == DIBS_OK) {
        dibs__zk_reply *p = dibs__zk_expect_reply(e, 0);
        connections = z->connections;
        dibs__zk_exchange_sent(e, zoo_aset(z->zh, path, "", 0, -1, dibs__zk_reply_on_stat, p));
        status = dibs__zk_exchange_wait(e, until, err);
    }
    if (status == DIBS_OK) {
        pthread_mutex_lock(&z->mutex);
        z->clock = connections == z->connections ? e->reply[0].stat.mtime * DIBS__MS : 0;
        z->clock_at = dibs__now(z->backend.env);
        pthread_mutex_unlock(&z->mutex);
    }
    if (e)
        dibs__zk_exchange_drop(e);
    free(path);
    return status;
}

dibs_status dibs__zk_cells_clock(dibs__entries_backend *s, dibs__deadline until, int64_t *out,
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

/* The watch is the session's, not a waiter's: it needs no memory of its own, and asked for again it is the
 * same one. So one that nobody waits for any more does no harm: it goes with the node's next change,
 * and a run that somebody waited for changes its node with every keep-alive. */
static void on_change(zhandle_t *zh, int type, int state, const char *path, void *context)
{
    dibs__zk *z = context;
    const char *slash = path ? strrchr(path, '/') : NULL;

    (void)zh;
    (void)state;
    if (type == ZOO_SESSION_EVENT || !slash) /* session.c hears of those */
        return;
    pthread_mutex_lock(&z->mutex);
    dibs__zk_watch_fired(z, path);
    pthread_mutex_unlock(&z->mutex);
    dibs__entries_cell_changed(z->backend.entries, slash + 1);
}

/* The library has the watch if the node was there. Its path is in the second reply: whoever asked may have
 * gone. */
static void on_watched(int rc, const char *value, int size, const struct Stat *stat,
                       const void *data)
{
    const dibs__zk_reply *p = data;
    dibs__zk *z = p->e->z;

    pthread_mutex_lock(&z->mutex);
    dibs__zk_watch_answered(z, p->e->reply[1].data, rc == ZOK);
    pthread_mutex_unlock(&z->mutex);
    dibs__zk_reply_on_data(rc, value, size, stat, data);
}

/* With the mutex. When there are too many already, nothing is told, and the caller looks again. */
static void ask_watch(dibs__zk *z, dibs__zk_exchange *e, const char *path)
{
    dibs__zk_reply *p = dibs__zk_expect_reply(e, 0);
    bool watching = (e->reply[1].data = strdup(path)) && dibs__zk_watch_may(z, path);
    int rc = zoo_awget(z->zh, path, watching ? on_change : NULL, z,
                       watching ? on_watched : dibs__zk_reply_on_data, p);

    if (rc != ZOK && watching)
        dibs__zk_watch_answered(z, path, false);
    dibs__zk_exchange_sent(e, rc);
}

/* No sync: what our server has not heard of yet it will tell. */
dibs_status dibs__zk_cells_watch(dibs__entries_backend *s, dibs__entries_blob *blob, void **out,
                                 dibs__deadline until, dibs_error *err)
{
    dibs__zk *z = (dibs__zk *)s;
    dibs__zk_exchange *e = dibs__zk_exchange_new(z);
    char *path = dibs__zk_cell_path(z, blob->folder, blob->key);
    dibs_status status = e && path ? dibs__zk_exchange_begin(z, err) : no_memory(err);

    *out = NULL;
    if (status == DIBS_OK) {
        ask_watch(z, e, path);
        status = dibs__zk_exchange_wait(e, until, err);
    }
    if (status == DIBS_OK && !take_reply(&e->reply[0], blob))
        status = no_memory(err);
    if (e)
        dibs__zk_exchange_drop(e);
    free(path);
    return status;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* A multi that is being put together. Paths last until it has been handed over; what it brings is in the
 * exchange. */
typedef struct bundle {
    dibs__zk *z;
    dibs__zk_exchange *e;
    zoo_op_t op[DIBS__ZK_OPS];
    char *path[DIBS__ZK_OPS];
    int count;
    int numbered; /* which of them tells the number of the write; -1: none does */
} bundle;

/* NULL: out of memory. Takes the path. */
static zoo_op_t *add_op(bundle *b, char *path)
{
    b->path[b->count] = path;
    return path ? &b->op[b->count++] : NULL;
}

static bool add_set(bundle *b, char *path, const void *data, size_t size, int64_t version)
{
    zoo_op_t *op = add_op(b, path);

    if (!op)
        return false;
    b->numbered = b->count - 1;
    zoo_set_op_init(op, path, data, (int)size, (int)version, &b->e->reply[b->numbered].stat);
    return true;
}

static bool add_blob(bundle *b, const dibs__entries_blob *blob)
{
    char *path = dibs__zk_cell_path(b->z, blob->folder, blob->key);
    zoo_op_t *op;

    if (blob->change == DIBS__ENTRIES_PUT && blob->version >= 0)
        return add_set(b, path, blob->put, blob->put_size, blob->version);
    op = add_op(b, path);
    if (!op)
        return false;
    if (blob->change == DIBS__ENTRIES_PUT)
        zoo_create_op_init(op, path, blob->put, (int)blob->put_size, b->z->acl, 0, NULL, 0);
    else if (blob->change == DIBS__ENTRIES_DROP)
        zoo_delete_op_init(op, path, (int)blob->version);
    else
        zoo_check_op_init(op, path, (int)blob->version);
    return true;
}

/* A multi sees what it has done so far, so a guard is written to once for all that are dropped. One that was seen
 * with different versions is named with both, and the write is beaten. */
static bool is_guarded(const dibs__entries_blob *blobs, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (guard_number(blobs[k].key) == guard_number(blobs[i].key) &&
            blobs[k].guard == blobs[i].guard && blobs[k].change == blobs[i].change &&
            blobs[k].version >= 0)
            return true;
    return false;
}

/* What is to be made anew needs no guard: that it is not there yet is all that was seen of it. */
static bool add_guard(bundle *b, const dibs__entries_blob *blobs, size_t i)
{
    const dibs__entries_blob *blob = &blobs[i];
    char *path;
    zoo_op_t *op;

    if (blob->version < 0 || is_guarded(blobs, i))
        return true;
    path = guard_of(b->z, blob->key);
    if (blob->guard >= 0 && blob->change == DIBS__ENTRIES_DROP)
        return add_set(b, path, "", 0, blob->guard);
    op = add_op(b, path);
    if (!op)
        return false;
    if (blob->guard < 0)
        zoo_create_op_init(op, path, "", 0, b->z->acl, 0, NULL, 0);
    else
        zoo_check_op_init(op, path, (int)blob->guard);
    return true;
}

/* The nodes that a multi makes do not tell its number: then their folder is written to. */
static bool add_number(bundle *b, const dibs__entries_blob *blob)
{
    return b->numbered >= 0 || add_set(b, dibs__zk_cell_path(b->z, blob->folder, ""), "", 0, -1);
}

static bool fill_bundle(bundle *b, const dibs__entries_blob *blobs, size_t count)
{
    bool ok = true;

    for (size_t i = 0; ok && i < count; i++)
        if (i == 0 || blobs[i].change == DIBS__ENTRIES_DROP)
            ok = add_guard(b, blobs, i);
    for (size_t i = 0; ok && i < count; i++)
        /* A key that is not there and stays so: nothing to check it by, and nobody to make it but a
         * command on the same cell, whose version is checked. */
        if (blobs[i].change != DIBS__ENTRIES_AS_IT_IS || blobs[i].version >= 0)
            ok = add_blob(b, &blobs[i]);
    return ok && add_number(b, &blobs[0]);
}

/* What multi says when a version was not the one that was read. */
static bool was_beaten(int rc)
{
    return rc == ZBADVERSION || rc == ZNODEEXISTS || rc == ZNONODE;
}

/* Something is not there: a folder, if anything was to be made, or what was to be changed. */
static dibs_status make_folders(dibs__zk *z, const dibs__entries_blob *blobs, size_t count,
                                dibs__deadline until, dibs_error *err)
{
    dibs_status status = DIBS_OK;

    if (blobs[0].guard < 0)
        status = dibs__zk_make_folder(z, "%g", until, err);
    for (size_t i = 0; i < count && status == DIBS_OK; i++)
        if (blobs[i].version < 0)
            status = dibs__zk_make_folder(z, blobs[i].folder, until, err);
    return status;
}

static dibs_status send_bundle(bundle *b, dibs__deadline until, uint64_t *number, int *rc,
                               dibs_error *err)
{
    dibs__zk_exchange *e = b->e;
    dibs_status status = dibs__zk_exchange_begin(b->z, err);

    if (status != DIBS_OK)
        return status;
    dibs__zk_exchange_sent(e, zoo_amulti(b->z->zh, b->count, b->op, e->results,
                                         dibs__zk_exchange_on_void, dibs__zk_expect(e)));
    status = dibs__zk_exchange_wait(e, until, err);
    *rc = dibs__zk_exchange_rc(e);
    if (status == DIBS_OK)
        *number = (uint64_t)e->reply[b->numbered].stat.mzxid;
    return was_beaten(*rc) ? DIBS_OK : status;
}

dibs_status dibs__zk_cells_write(dibs__entries_backend *s, const dibs__entries_blob *blobs,
                                 size_t count, dibs__deadline until, uint64_t *number,
                                 dibs_error *err)
{
    bundle b = {.z = (dibs__zk *)s, .e = dibs__zk_exchange_new((dibs__zk *)s), .numbered = -1};
    dibs_status status = b.e && fill_bundle(&b, blobs, count) ? DIBS_OK : no_memory(err);
    int rc = ZOK;

    *number = 0;
    if (status == DIBS_OK)
        status = send_bundle(&b, until, number, &rc, err);
    if (status == DIBS_OK && rc == ZNONODE)
        status = make_folders(b.z, blobs, count, until, err);
    if (b.e)
        dibs__zk_exchange_drop(b.e);
    for (int i = 0; i < DIBS__ZK_OPS; i++)
        free(b.path[i]);
    return status;
}
