/* A lock's name as a Redis key, and back. */
#ifndef DIBS_REDIS_KEY_H
#define DIBS_REDIS_KEY_H

#include "dibs.h"

#define DIBS__REDIS_PREFIX_MAX 128
#define DIBS__REDIS_TAG_SIZE   8 /* "{3f2}" behind the prefix, in a cluster */
#define DIBS__REDIS_KEY_SIZE   (DIBS__REDIS_PREFIX_MAX + DIBS__REDIS_TAG_SIZE + 3 * DIBS_NAME_MAX + 8)

/* PREFIX:{NAME}. Braces end a hash tag: they, and the sign that escapes them, are escaped. */
void dibs__redis_key(const char *prefix, const char *name, char out[DIBS__REDIS_KEY_SIZE]);

/* The name in a key, or NULL if it is none of ours; `key` is changed. */
char *dibs__redis_name(const char *prefix, char *key);

#endif
