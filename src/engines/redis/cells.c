/* A page of cells: their keys are found with SCAN, and the first ones after the last page are looked at,
 * many in one write.
 *
 * There is no index. Cells end by the server's own clock, and no script runs then: an index would keep the
 * keys of all that have ended until somebody removes them, and every first run of a key would pay for it. So
 * a page costs a scan of the keyspace in steps of a thousand keys, each of them short, and the memory of one
 * page. SCAN brings every key that is there the whole time; some twice. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/redis/error.h"
#include "engines/redis/names.h"
#include "engines/redis/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MAX 128 /* cells in one write */
#define SUFFIX   ":c"

/* ---- Finding keys ---------------------------------------------------------------------------- */

static void make_key(const dibs__redis *r, const char *name, unsigned bucket,
                     char out[DIBS__REDIS_CELL_KEY_SIZE])
{
    char prefix[DIBS__REDIS_PREFIX_MAX + DIBS__REDIS_TAG_SIZE];

    dibs__redis_prefix(r, bucket, prefix);
    dibs__redis_key(prefix, name, out);
    strcat(out, SUFFIX);
}

/* The names of cells that begin like this, as a pattern that means just these bytes, and a star. */
static void make_pattern(const dibs__redis *r, const char *start, char *out)
{
    char *begin = out;
    char key[DIBS__REDIS_CELL_KEY_SIZE];
    size_t length;

    make_key(r, start, 0, key);
    length = strlen(key) - strlen("}" SUFFIX);
    for (size_t i = 0; i < length; i++) {
        if (strchr("*?[]\\^", key[i]))
            *out++ = '\\';
        *out++ = key[i];
    }
    strcpy(out, "*}" SUFFIX);
    dibs__redis_any_bucket(r, begin);
}

/* The cell's own name, at the beginning of `key`; false: it is of no interest. */
static bool take_name(const dibs__redis *r, const dibs__cell_range *range, char *key)
{
    size_t length = strlen(key), suffix = strlen(SUFFIX);
    const char *name;

    if (length < suffix)
        return false;
    key[length - suffix] = '\0';
    name = dibs__redis_name_in(r, key);
    if (!name || strlen(name) >= DIBS__CELL_KEY_SIZE)
        return false;
    memmove(key, name, strlen(name) + 1);
    return strncmp(key, range->prefix, strlen(range->prefix)) == 0 && strcmp(key, range->after) > 0;
}

/* From the `old`-th on keys of the server. */
static void take_names(const dibs__redis *r, const dibs__cell_range *range, dibs__names *n,
                       size_t old)
{
    size_t kept = old;

    for (size_t i = old; i < n->count; i++) {
        if (take_name(r, range, n->keys[i]))
            n->keys[kept++] = n->keys[i];
        else
            free(n->keys[i]);
    }
    n->count = kept;
}

/* The first `most` in the order of bytes, each once. */
static void keep_first(dibs__names *n, size_t most)
{
    dibs__names_sort(n);
    while (n->count > most)
        free(n->keys[--n->count]);
}

/* One more than the limit, if there are as many. */
static dibs_status find_names(dibs__redis *r, const dibs__cell_range *range, dibs__deadline until,
                              dibs__names *found, dibs_error *err)
{
    char pattern[2 * DIBS__REDIS_CELL_KEY_SIZE];
    dibs__redis_scan scan;
    dibs_status status = DIBS_OK;

    make_pattern(r, range->prefix, pattern);
    dibs__redis_scan_begin(r, &scan);
    while (scan.at < scan.count && status == DIBS_OK) {
        size_t old = found->count;
        status = dibs__redis_scan_next(&scan, pattern, until, found, err);
        take_names(r, range, found, old);
        if (found->count > 2 * range->limit + 1000)
            keep_first(found, range->limit + 1);
    }
    keep_first(found, range->limit + 1);
    return status;
}

/* ---- Looking at them ------------------------------------------------------------------------- */

/* Something that is no cell stands where one should: a string of another kind, or no string. */
static bool is_foreign(const redisReply *reply)
{
    return reply && reply->type == REDIS_REPLY_ERROR &&
           (strstr(reply->str, "NOTOURS") || strstr(reply->str, "WRONGTYPE"));
}

static dibs_status add_one(const redisReply *reply, const char *key, dibs__cell_page *out,
                           dibs_error *err)
{
    dibs__cell_reply cell = {0};
    dibs__cell_found found = {.key = key, .left = INT64_MAX};
    dibs_status status = DIBS_OK;

    if (is_foreign(reply)) {
        dibs__cell_page_add(out, &found);
        return DIBS_OK;
    }
    status = dibs__redis_cell_answer(reply, DIBS__CELL_READ, &cell, err);
    found = (dibs__cell_found){key,       cell.version, cell.age,           cell.left,
                               cell.data, cell.size,    (size_t)cell.number};
    if (status == DIBS_OK && cell.verdict == DIBS__CELL_DONE)
        dibs__cell_page_add(out, &found);
    free(cell.data);
    return status;
}

typedef struct looked {
    const char *name;
    size_t head;
} looked;

static void write_look(dibs__redis_node *n, const void *what, bool whole, dibs__bytes *out)
{
    const looked *l = what;
    const dibs__cell_command look = {.op = DIBS__CELL_READ, .number = (int64_t)l->head};
    char key[DIBS__REDIS_CELL_KEY_SIZE];

    dibs__redis_cell_key(n->r, l->name, key);
    dibs__redis_cell_write(n, key, &look, false, whole, out);
}

static dibs_status look_at_some(dibs__redis *r, char *const names[], size_t count, size_t head,
                                dibs__deadline until, dibs__cell_page *out, dibs_error *err)
{
    dibs__redis_ask asks[LOOK_MAX];
    looked what[LOOK_MAX];
    dibs_status status = DIBS_OK;

    for (size_t i = 0; i < count; i++) {
        what[i] = (looked){names[i], head};
        asks[i] = (dibs__redis_ask){.bucket = r->node ? 0 : dibs__cluster_bucket(names[i]),
                                    .write = write_look,
                                    .what = &what[i]};
    }
    dibs__redis_ask_many(r, asks, count, DIBS__NEVER, until, err);
    for (size_t i = 0; i < count; i++) {
        if (status == DIBS_OK)
            status = asks[i].status;
        if (status == DIBS_OK)
            status = add_one(asks[i].reply, names[i], out, err);
        if (asks[i].reply)
            freeReplyObject(asks[i].reply);
    }
    return status;
}

dibs_status dibs__redis_cell_list(dibs__engine *e, const dibs__cell_range *range,
                                  dibs__deadline until, dibs__cell_page *out, dibs_error *err)
{
    dibs__redis *r = (dibs__redis *)e;
    dibs__names found = {0};
    dibs_status status = find_names(r, range, until, &found, err);
    size_t count = found.count < range->limit ? found.count : range->limit;

    for (size_t i = 0; status == DIBS_OK && i < count; i += LOOK_MAX) {
        size_t n = count - i < LOOK_MAX ? count - i : LOOK_MAX;
        status = look_at_some(r, found.keys + i, n, range->head, until, out, err);
    }
    out->more = status == DIBS_OK && found.count > count;
    if (out->more)
        snprintf(out->reached, sizeof out->reached, "%s", found.keys[count - 1]);
    if (status != DIBS_OK)
        dibs__wrap(err, "%s", r->address.text);
    dibs__names_fini(&found);
    return status;
}
