/* A script's argument: numbers as big-endian doubles, strings with their NUL, as the scripts'
 * struct.unpack('>d…s…') reads them. */
#ifndef DIBS_REDLOCK_PACK_H
#define DIBS_REDLOCK_PACK_H

#include "state/lock.h"

#include <string.h>

#define DIBS__PACK_SIZE \
    (10 * 8 + DIBS__OWNER_SIZE + DIBS__ATTEMPT_SIZE + DIBS__HOST_SIZE + DIBS__BY_SIZE + 32)

typedef struct dibs__pack {
    char *start, *at;
} dibs__pack;

static inline dibs__pack dibs__pack_begin(char out[DIBS__PACK_SIZE])
{
    return (dibs__pack){out, out};
}

static inline void dibs__pack_number(dibs__pack *p, double number)
{
    uint64_t bits;

    memcpy(&bits, &number, sizeof bits);
    for (int i = 7; i >= 0; i--)
        *p->at++ = (char)(bits >> (8 * i));
}

static inline void dibs__pack_text(dibs__pack *p, const char *text)
{
    size_t n = strlen(text) + 1;

    memcpy(p->at, text, n);
    p->at += n;
}

static inline size_t dibs__pack_length(const dibs__pack *p)
{
    return (size_t)(p->at - p->start);
}

#endif
