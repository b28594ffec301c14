/* A plain Redlock on nodes of our own, as it is published, for the experiments R12b to R12d. */
#ifndef DIBS_LAB_QUORUM_H
#define DIBS_LAB_QUORUM_H

#include "lab/raw.h"
#include "lab/servers.h"

#include <hiredis/hiredis.h>

#define LAB_QUORUM_MAX 7

typedef struct lab_quorum {
    lab_buyer buyer;
    redisContext *node[LAB_QUORUM_MAX]; /* NULL: not reachable */
    int count;
    char id[64];
} lab_quorum;

void lab_quorum_open(lab_quorum *q, const lab_node *nodes, int count, const char *id);
void lab_quorum_close(lab_quorum *q);

/* SET NX PX on every node: one after another, or on all at once. Returns how many said yes. */
int lab_quorum_ask(lab_quorum *q, const char *name, int64_t lease_ms, bool at_once);
void lab_quorum_release(lab_quorum *q, const char *name); /* everywhere, whatever they said */

static inline bool lab_quorum_has(const lab_quorum *q, int votes)
{
    return votes >= q->count / 2 + 1;
}

#endif
