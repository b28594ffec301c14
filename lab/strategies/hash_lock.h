/* The reentrant lock as a hash: one field, the owner, with a count. Shared by R7, R8 and R9. (R10 has its own: redisson.h.) */
#ifndef DIBS_LAB_HASH_LOCK_H
#define DIBS_LAB_HASH_LOCK_H

#include "lab/raw.h"

/* For lab_spin: 1 taken (or once more by the same owner), 0 another has it, -1 failed. */
int lab_hash_ask(lab_buyer *buyer);
/* One level less; the last one deletes it. False: it is not ours. */
bool lab_hash_give(lab_buyer *buyer);
/* A whole lease from now. False: it is not ours any more. */
bool lab_hash_renew(lab_buyer *buyer, struct redisContext *redis, const char *id, int64_t lease_ms);

#endif
