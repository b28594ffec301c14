/* Finding names. */
#define _GNU_SOURCE
#include "engines/redis/names.h"

#include "core/error.h"
#include "engines/redis/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool add_key(dibs__names *n, const char *key)
{
    if (n->count == n->room) {
        size_t room = n->room ? 2 * n->room : 256;
        char **keys = realloc(n->keys, room * sizeof *keys);
        if (!keys)
            return false;
        n->keys = keys;
        n->room = room;
    }
    n->keys[n->count] = strdup(key);
    return n->keys[n->count] && ++n->count;
}

void dibs__names_fini(dibs__names *n)
{
    for (size_t i = 0; i < n->count; i++)
        free(n->keys[i]);
    free(n->keys);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void dibs__names_sort(dibs__names *n)
{
    size_t kept = 0;

    if (n->count == 0)
        return;
    qsort(n->keys, n->count, sizeof *n->keys, by_text);
    for (size_t i = 1; i < n->count; i++) {
        if (strcmp(n->keys[kept], n->keys[i]) == 0)
            free(n->keys[i]);
        else
            n->keys[++kept] = n->keys[i];
    }
    n->count = kept + 1;
}

/* The key of `start` without its closing brace, as a pattern that means just these bytes, and a star.
 */
void dibs__names_pattern(const char *prefix, const char *start, char out[DIBS__PATTERN_SIZE])
{
    char key[DIBS__REDIS_KEY_SIZE];
    size_t length;

    dibs__redis_key(prefix, start, key);
    length = strlen(key) - 1;
    for (size_t i = 0; i < length; i++) {
        if (strchr("*?[]\\^", key[i]))
            *out++ = '\\';
        *out++ = key[i];
    }
    strcpy(out, "*}");
}

void dibs__names_busy(const char *prefix, char out[DIBS__REDIS_KEY_SIZE])
{
    snprintf(out, DIBS__REDIS_KEY_SIZE, "%s:busy", prefix);
}

void dibs__names_write_scan(const char *set, const char *cursor, const char *pattern,
                            dibs__bytes *out)
{
    dibs__resp_begin(out, set ? 7 : 6);
    dibs__resp_text(out, set ? "SSCAN" : "SCAN");
    if (set)
        dibs__resp_text(out, set);
    dibs__resp_text(out, cursor);
    dibs__resp_text(out, "MATCH");
    dibs__resp_text(out, pattern);
    dibs__resp_text(out, "COUNT");
    dibs__resp_text(out, "1000");
}

dibs_status dibs__names_take(dibs__names *n, const redisReply *reply,
                             char cursor[DIBS__CURSOR_SIZE], dibs_error *err)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 || !reply->element[0]->str ||
        reply->element[1]->type != REDIS_REPLY_ARRAY)
        return dibs__redis_refusal(reply, err);
    snprintf(cursor, DIBS__CURSOR_SIZE, "%s", reply->element[0]->str);
    for (size_t i = 0; i < reply->element[1]->elements; i++) {
        const redisReply *key = reply->element[1]->element[i];
        if (key->str && strlen(key->str) == key->len && !add_key(n, key->str))
            return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    }
    return DIBS_OK;
}
