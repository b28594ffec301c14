/* Walking through the cells of a folder, for the reaper and for listings.
 *
 * ZooKeeper has no ranges: who wants the next names of a folder gets all of them. A walk in small stretches
 * would list the whole folder for each, and be the slower the more there is to reap. So what one listing
 * brought is kept, in order, for the stretches that follow it at once. What was made since then comes with
 * the next listing; what is gone since then is found missing. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/zookeeper/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINGERING      8192 /* names at the most: some hundred KiB */
#define LINGERING_SPAN (10 * DIBS__SECOND)

static dibs_status no_memory(dibs_error *err)
{
    return dibs__fail(err, DIBS_NO_MEMORY, "zookeeper: out of memory");
}

void dibs__zk_names_free(dibs__zk_name_list *n)
{
    for (size_t i = 0; i < n->count; i++)
        free(n->name[i]);
    free(n->name);
    *n = (dibs__zk_name_list){0};
}

/* ---- The listing ----------------------------------------------------------------------------- */

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Keeps those behind `after`, in order, and the first so many of them. */
static void trim(dibs__zk_name_list *n, const char *after)
{
    size_t count = 0;

    if (n->count)
        qsort(n->name, n->count, sizeof *n->name, by_bytes);
    for (size_t i = 0; i < n->count; i++) {
        bool fits = strlen(n->name[i]) < DIBS__ENTRIES_CELL_KEY_SIZE; /* else it is none of ours */
        bool behind = strcmp(n->name[i], after) > 0;

        if (fits && behind && count == LINGERING)
            n->cut = true;
        if (fits && behind && count < LINGERING)
            n->name[count++] = n->name[i];
        else
            free(n->name[i]);
    }
    n->count = count;
}

static dibs_status list_names(dibs__zk *z, const char *folder, dibs__zk_name_list *out,
                              dibs__deadline until, dibs_error *err)
{
    dibs__zk_exchange *e = dibs__zk_exchange_new(z);
    char *path = dibs__zk_cell_path(z, folder, "");
    dibs_status status = e && path ? dibs__zk_exchange_begin(z, err) : no_memory(err);

    if (status == DIBS_OK) {
        dibs__zk_exchange_sent(
            e, zoo_aget_children(z->zh, path, 0, dibs__zk_exchange_on_names, dibs__zk_expect(e)));
        status = dibs__zk_exchange_wait(e, until, err);
    }
    if (status == DIBS_OK) {
        *out = (dibs__zk_name_list){.name = e->names, .count = e->name_count};
        out->at = dibs__now(z->backend.env);
        e->names = NULL;
        e->name_count = 0;
    }
    if (e)
        dibs__zk_exchange_drop(e);
    free(path);
    return status;
}

static bool goes_on(const dibs__zk *z, const dibs__zk_name_list *n, const char *after, size_t limit)
{
    return n->next > 0 && strcmp(n->name[n->next - 1], after) == 0 &&
           (n->count - n->next >= limit || !n->cut) &&
           dibs__now(z->backend.env) < n->at + LINGERING_SPAN;
}

/* What is kept of this folder is the caller's now, so that two of them do not meet. */
static dibs_status take_names(dibs__zk *z, const char *folder, const char *after, size_t limit,
                              dibs__zk_name_list *out, dibs__deadline until, dibs_error *err)
{
    dibs__zk_name_list *lingering = &z->names[folder[1] == 'r'];
    dibs_status status;

    pthread_mutex_lock(&z->mutex);
    *out = *lingering;
    *lingering = (dibs__zk_name_list){0};
    pthread_mutex_unlock(&z->mutex);
    if (goes_on(z, out, after, limit))
        return DIBS_OK;
    dibs__zk_names_free(out);
    status = list_names(z, folder, out, until, err);
    if (status == DIBS_OK)
        trim(out, after);
    return status;
}

/* For the next stretch, if there is one. */
static void keep_names(dibs__zk *z, const char *folder, dibs__zk_name_list *n)
{
    dibs__zk_name_list *lingering = &z->names[folder[1] == 'r'], old;

    if (n->next >= n->count && !n->cut)
        dibs__zk_names_free(n);
    pthread_mutex_lock(&z->mutex);
    old = *lingering;
    *lingering = *n;
    pthread_mutex_unlock(&z->mutex);
    dibs__zk_names_free(&old);
}

/* ---- A stretch ------------------------------------------------------------------------------- */

static dibs_status read_values(dibs__zk *z, dibs__entries_blob *blobs, size_t count,
                               dibs__deadline until, dibs_error *err)
{
    dibs__zk_exchange *e = dibs__zk_exchange_new(z);
    dibs_status status =
        e ? dibs__zk_cells_get(z, e, blobs, count, count, until, err) : no_memory(err);

    if (e)
        dibs__zk_exchange_drop(e);
    return status;
}

dibs_status dibs__zk_cells_walk(dibs__entries_backend *s, const char *folder, const char *after,
                                size_t limit, dibs__deadline until, dibs__entries_blob **out,
                                size_t *count, dibs_error *err)
{
    dibs__zk *z = (dibs__zk *)s;
    dibs__zk_name_list names = {0};
    dibs_status status;

    *count = 0;
    limit = limit < DIBS__ENTRIES_BATCH ? limit : DIBS__ENTRIES_BATCH;
    *out = calloc(limit + 1, sizeof **out);
    status = *out ? take_names(z, folder, after, limit, &names, until, err) : no_memory(err);
    while (status == DIBS_OK && names.next < names.count && *count < limit) {
        dibs__entries_blob *b = &(*out)[(*count)++];
        snprintf(b->folder, sizeof b->folder, "%s", folder);
        strcpy(b->key, names.name[names.next++]);
    }
    if (status == DIBS_OK && *count > 0)
        status = read_values(z, *out, *count, until, err);
    if (status == DIBS_OK) {
        keep_names(z, folder, &names);
        return status;
    }
    dibs__zk_names_free(&names);
    dibs__entries_blobs_free(*out, *out ? *count : 0);
    *out = NULL;
    *count = 0;
    return status;
}
