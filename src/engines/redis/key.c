/* Names and keys. */
#include "engines/redis/key.h"

#include <stdio.h>
#include <string.h>

void dibs__redis_key(const char *prefix, const char *name, char out[DIBS__REDIS_KEY_SIZE])
{
    static const char hex[] = "0123456789ABCDEF";
    size_t n = strlen(prefix);
    char *at = out + n;

    memcpy(out, prefix, n);
    *at++ = ':';
    *at++ = '{';
    for (; *name; name++) {
        if (*name == '{' || *name == '}' || *name == '%') {
            *at++ = '%';
            *at++ = hex[(unsigned char)*name >> 4];
            *at++ = hex[*name & 15];
        } else {
            *at++ = *name;
        }
    }
    *at++ = '}';
    *at = '\0';
}

char *dibs__redis_name(const char *prefix, char *key)
{
    size_t n = strlen(prefix), length = strlen(key);
    char *name = key + n + 2, *to = name;

    if (length < n + 4 || strncmp(key, prefix, n) != 0 || key[n] != ':' || key[n + 1] != '{' ||
        key[length - 1] != '}')
        return NULL;
    key[length - 1] = '\0';
    for (const char *from = name; *from; from++) {
        unsigned value;
        if (*from == '%' && sscanf(from + 1, "%2x", &value) == 1 && value != 0) {
            *to++ = (char)value;
            from += 2;
        } else {
            *to++ = *from;
        }
    }
    *to = '\0';
    return name;
}
