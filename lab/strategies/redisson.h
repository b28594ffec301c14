/* Our model of Redisson's published scheme: what one process keeps for one lock on one server.
 *
 * As in its source (LockPubSub, PublishSubscribe, RedissonLock): one subscription serves all threads of the
 * process that wait for the lock; it begins with the first waiter and ends with the last. Each message of
 * a release adds one permit to a semaphore, so it wakes one thread of each process that waits. A waiter
 * takes a permit, or stops waiting when the lease that it was told of is over, and tries again. One timer
 * of the process renews what its threads hold, at a third of the lease.
 *
 * What differs from Redisson itself: this is C with one blocking connection for each thread, not Java on a
 * pool of asynchronous ones; scripts are always called by their hash; a request without a reply is an
 * error, where Redisson repeats it (how often depends on version and configuration); unlock is one script,
 * where later versions also write and delete a key that makes its repetition safe. */
#ifndef DIBS_LAB_REDISSON_H
#define DIBS_LAB_REDISSON_H

#include "lab/raw.h"

typedef struct lab_redisson lab_redisson;

/* One for each process and server; the lock is the buyer's resource. NULL: note. */
lab_redisson *lab_redisson_new(lab_buyer *buyer, const char *url);
void lab_redisson_free(lab_redisson *r);

/* What one thread has. `next`, `levels` and `due_us` are the watchdog's. */
typedef struct lab_redisson_thread {
    lab_redisson *client;
    struct redisContext *redis;
    char id[64];
    uint64_t token; /* of the last fenced grant */
    struct lab_redisson_thread *next;
    int levels;
    int64_t lease_ms, due_us;
} lab_redisson_thread;

typedef struct lab_redisson_wish {
    int64_t lease_ms, until_us;
    bool watchdog; /* renewed: no lease was given by hand */
    bool fenced;   /* as RFencedLock: each grant counts a token up */
} lab_redisson_wish;

/* 1: it is ours. 0: not until then. -1: failed (note). */
int lab_redisson_lock(lab_buyer *buyer, lab_redisson_thread *t, const lab_redisson_wish *wish);
/* In two steps, so that several servers can be asked at once. False: it is not ours, or failed (note). */
void lab_redisson_unlock_send(lab_redisson_thread *t, int64_t lease_ms);
bool lab_redisson_unlock_hear(lab_buyer *buyer, lab_redisson_thread *t);

#endif
