/* Waiters for one lock that come one after another, while it is held: in which order are they served? */
#ifndef DIBS_LAB_QUEUE_UP_H
#define DIBS_LAB_QUEUE_UP_H

#include "lab/lab.h"

#define LAB_QUEUE_MAX 16

typedef struct lab_queue {
    int waiters;
    int overtaken;            /* of them, how many saw one that came later go first; -1: not run */
    uint64_t tries;           /* of all of them */
    int64_t held_us;          /* how long the lock was kept from them */
    int64_t late_us;          /* from its release to the first one's entry */
    int order[LAB_QUEUE_MAX]; /* who came first, second, … into the lock: numbers by arrival */
    char note[256];
} lab_queue;

/* `waiters` of this strategy (D7, or the product) queue up for `resource`; it is held until the last has
 * come, and `hold_ms` longer. */
void lab_queue_up(const lab_strategy *s, const lab_site *site, const char *resource, int waiters,
                  int64_t hold_ms, lab_queue *out);

#endif
