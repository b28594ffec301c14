/* Something of every kind that is kept in cells, written before a failover and looked at after it. Where as many replicas
 * as there are had to acknowledge each change, nothing of it may be missing or done twice. */
#ifndef DIBS_TESTS_SURVIVAL_H
#define DIBS_TESTS_SURVIVAL_H

#include "dibs.h"

typedef struct survival {
    char key[64]; /* of all of it */
    char spent[DIBS_TOKEN_SIZE], unspent[DIBS_TOKEN_SIZE];
    uint64_t version; /* of the cell */
} survival;

void survival_write(survival *k, dibs *d, const char *key);
void survival_check(const survival *k, dibs *d);

#endif
