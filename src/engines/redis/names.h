/* Names of locks on a server, found page by page: those that are held or waited for in their set, all
 * of them with SCAN, never with KEYS. */
#ifndef DIBS_REDIS_NAMES_H
#define DIBS_REDIS_NAMES_H

#include "engines/redis/key.h"
#include "engines/redis/resp.h"

#include <hiredis/hiredis.h>

#define DIBS__PATTERN_SIZE (2 * DIBS__REDIS_KEY_SIZE)
#define DIBS__CURSOR_SIZE  32

typedef struct dibs__names {
    char **keys; /* owned */
    size_t count, room;
} dibs__names;

/* The keys of all locks whose names start with `start`, as a pattern for MATCH. */
void dibs__names_pattern(const char *prefix, const char *start, char out[DIBS__PATTERN_SIZE]);

/* The set of the locks that are held or waited for; see lua/fill.lua. */
void dibs__names_busy(const char *prefix, char out[DIBS__REDIS_KEY_SIZE]);

/* Takes what a SCAN or SSCAN answered, and the cursor of the next page ("0": that was the last). */
dibs_status dibs__names_take(dibs__names *n, const redisReply *reply,
                             char cursor[DIBS__CURSOR_SIZE], dibs_error *err);

/* SSCAN of `set`, or SCAN if it is NULL: a page of about a thousand. */
void dibs__names_write_scan(const char *set, const char *cursor, const char *pattern,
                            dibs__bytes *out);

void dibs__names_sort(dibs__names *n); /* and each only once: a page may repeat another */
void dibs__names_fini(dibs__names *n);

#endif
