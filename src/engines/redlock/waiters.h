/* The inside of the queue, for waiters.c, turn.c and event.c.
 *
 * A *queue* is a lock that somebody of this handle waits for; those who do stand there in order of
 * arrival, and only the first of them tries. It tries again when a majority of nodes has told this
 * handle that the lock is free and kept for it, a moment after the first of them has, or when its pause is
 * over: whoever reads the handle's events does that. An unlock in the same handle hands over directly.
 *
 * One mutex guards all of it, and is held neither while nodes are asked nor while the sink is told.
 */
#ifndef DIBS_REDLOCK_WAITERS_H
#define DIBS_REDLOCK_WAITERS_H

#include "core/heap.h"
#include "core/table.h"
#include "engines/redlock/redlock.h"

typedef enum dibs__wait_state {
    DIBS__WAITS,
    DIBS__TRIES, /* somebody asks the nodes for it */
    DIBS__HAS,   /* has left the queue, and does not know yet */
} dibs__wait_state;

typedef struct dibs__lock_queue {
    dibs__node by_name;
    dibs__due due; /* when to try; nobody there: when to forget it */
    dibs__waiting *first, **end;
    size_t count;
    bool trying;
    bool down;               /* there was no majority at the last try */
    bool again;              /* told during a try */
    dibs__node_set notified; /* nodes that keep it for this handle */
    uint64_t notified_of;    /* the fence of the vote that went back there */
    uint64_t served; /* the last fence that this handle got: what is told of an older one is late */
    dibs__deadline try_at;
    int64_t pause;
    int passes; /* from hand to hand in this handle, without a chance for others */
    char name[];
} dibs__lock_queue;

struct dibs__waiting {
    dibs__node by_attempt;
    dibs__lock_queue *queue; /* NULL: has the lock */
    dibs__waiting *next;
    dibs__wait_state state;
    dibs__asker who;
    int64_t window;
    dibs__deadline since;
    uint64_t arrival; /* of its hint on the nodes; 0: none yet */
    uint64_t fence;
    dibs__deadline over; /* the lease, once it has the lock */
};

struct dibs__redlock_waiters {
    pthread_mutex_t lock;
    pthread_cond_t tried; /* some try is over */
    dibs__table queues, attempts;
    dibs__heap due;
    dibs__waiting *served; /* those who have it and do not know yet */
    dibs__entering *entering;
    int epoll_fd, timer_fd;
    dibs__deadline armed;
    dibs__node_set heard; /* nodes that are listened to */
};

/* All with the lock. */
dibs__lock_queue *dibs__lock_queue_find(const dibs__redlock_waiters *l, const char *name);
dibs__waiting *dibs__waiting_find(const dibs__redlock_waiters *l, const char *attempt);
/* Out of the queue. */
void dibs__lock_queue_drop(dibs__lock_queue *s, dibs__waiting *w);
/* When it is tried again, after this try. */
void dibs__lock_queue_pause(dibs__redlock *r, dibs__lock_queue *s, const dibs__try *t);
/* Sets up a try of the first in the queue. */
dibs__waiting *dibs__lock_queue_begin(dibs__redlock *r, dibs__lock_queue *s, dibs__try *out);
/* What came of it; true: tell the sink. */
bool dibs__lock_queue_end(dibs__redlock *r, dibs__waiting *w, const dibs__try *t);
/* The first in the queue looks at what has changed. */
void dibs__lock_queue_turn(dibs__redlock *r, dibs__lock_queue *s);
void dibs__redlock_waiters_arm(dibs__redlock_waiters *l);

/* Needs no lock. */
bool dibs__redlock_waiters_watch(dibs__redlock_waiters *l, int fd);

#endif
