/* Something of every kind that is kept in cells, written before a failover and looked at after it. Where as many replicas
 * as there are had to acknowledge each change, nothing of it may be missing or done twice. */
#ifndef DIBS_TESTS_KEPT_H
#define DIBS_TESTS_KEPT_H

#include "dibs.h"

typedef struct kept {
    char key[64]; /* of all of it */
    char spent[DIBS_TOKEN_SIZE], unspent[DIBS_TOKEN_SIZE];
    uint64_t version; /* of the cell */
} kept;

void kept_write(kept *k, dibs *d, const char *key);
void kept_check(const kept *k, dibs *d);

#endif
