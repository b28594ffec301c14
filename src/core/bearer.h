/* A portable grant as text: dibs1.BODY.SUM, in characters that a URL and a header can have.
 *
 * BODY is base64url of the fields, the first four each with a NUL behind it; SUM is a checksum of BODY, so
 * that a damaged or truncated text is told from one whose lock is gone. One grant has one text. Nothing here
 * keeps it from being forged: that needs the secret in the attempt. */
#ifndef DIBS_CORE_BEARER_H
#define DIBS_CORE_BEARER_H

#include "dibs.h"
#include "state/lock.h"

typedef struct dibs__bearer {
    char engine[16]; /* scheme */
    char name[DIBS_NAME_MAX + 1];
    char owner[DIBS__OWNER_SIZE];
    char attempt[DIBS__ATTEMPT_SIZE];
    uint64_t fence; /* the engine's, without the store's base */
    int64_t lease;
    uint32_t capacity, weight;
} dibs__bearer;

void dibs__bearer_write(const dibs__bearer *b, char out[DIBS_GRANT_SIZE]);
/* false: no such text, or one that no handle has written. */
bool dibs__bearer_read(const char *text, dibs__bearer *out);

#endif
