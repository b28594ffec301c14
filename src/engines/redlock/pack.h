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

static inline void dibs__pack_write(char out[8], double number)
{
    uint64_t bits;

    memcpy(&bits, &number, sizeof bits);
    for (int i = 0; i < 8; i++)
        out[i] = (char)(bits >> (8 * (7 - i)));
}

static inline void dibs__pack_number(dibs__pack *p, double number)
{
    dibs__pack_write(p->at, number);
    p->at += 8;
}

/* A number that is not known yet; its place is for dibs__pack_write. */
static inline char *dibs__pack_later(dibs__pack *p)
{
    char *address = p->at;

    dibs__pack_number(p, 0);
    return address;
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
