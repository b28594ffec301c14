/* The lock as a pure state machine: no I/O, no clock of its own, no engine.
 *
 * A lock is a counter with a queue: `capacity` slots, each holder takes a `weight`. A plain lock
 * has DIBS__PLAIN slots, of which an exclusive holder takes all and a shared one takes one; a
 * semaphore has as many as it was made with. Whoever asks while others wait goes behind them,
 * whatever would fit.
 *
 * A command comes in with the time; the machine reads and writes the record through a
 * `dibs__store`, one entry at a time, and never walks the queue: it looks at the caller's own
 * entry, at what has expired, at the total weight and at the head. It answers with a reply and
 * tells `granted` about every waiter that the command handed the lock to, so that the engine can
 * wake just those.
 *
 * A command is idempotent for (owner, attempt): repeated, it finds its own entry and gives the same
 * answer. It fails only when the store fails: then nothing may be kept (the engine rolls back). */
#ifndef DIBS_STATE_LOCK_H
#define DIBS_STATE_LOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DIBS__PLAIN ((uint32_t)1 << 30) /* capacity of a lock that is no semaphore */

#define DIBS__OWNER_SIZE   129
#define DIBS__ATTEMPT_SIZE 40
#define DIBS__HOST_SIZE    65
#define DIBS__WAKE_SIZE    48
#define DIBS__BY_SIZE      129

/* Two clocks, in microseconds. Leases count on the first; fences and people use the second. Engines
 * whose server has only one give it twice. */
typedef struct dibs__time {
    int64_t lease;
    int64_t wall;
} dibs__time;

/* Who asks. An owner has at most one live holder in a lock. A newer attempt of the same handle replaces
 * the older one, whose caller has given it up; an older one that comes late changes nothing (attempt.h).
 * An attempt of another handle stands in the queue beside the holder, which is asked to stop: never two of
 * them hold. In the queue an owner stands once: the last handle to come takes the place over. */
typedef struct dibs__asker {
    char owner[DIBS__OWNER_SIZE];
    char attempt
        [DIBS__ATTEMPT_SIZE]; /* HANDLE-NUMBER: fresh for every acquire, kept when a lost reply
                                         is asked for again */
    char host[DIBS__HOST_SIZE];
    int64_t pid;
    char wake[DIBS__WAKE_SIZE]; /* where the engine pushes a hand-over; its own business */
    uint32_t weight;
    int64_t lease;    /* how long a grant lasts unless renewed */
    int64_t min_hold; /* released earlier, it stays taken until then */
} dibs__asker;

typedef struct dibs__holder {
    dibs__asker who;
    uint64_t fence; /* unique in its lock, and grows: also the order of the grants */
    int64_t since;
    int64_t expires;
    bool released; /* given back before min_hold was over: belongs to nobody, keeps its weight */
} dibs__holder;

typedef struct dibs__waiter {
    dibs__asker who;
    uint64_t place; /* unique in its lock, and grows: the order of arrival */
    int64_t since;
    int64_t window; /* how long it counts as alive after each keep-alive; never more than lease */
    int64_t alive_until; /* also the end of a hand-over: a dead head costs seconds, not a lease */
} dibs__waiter;

typedef struct dibs__record {
    uint32_t capacity; /* 0: not fixed yet */
    uint32_t used;     /* weight of all holders */
    uint32_t holders;
    uint32_t waiters;
    uint64_t fence;        /* the last one given out */
    uint64_t place;        /* the last one given out */
    uint64_t broken_fence; /* holders below it are asked for the lock: no renewals; if gone, they
                              were broken */
    int64_t broken_at;     /* wall */
    char broken_by[DIBS__BY_SIZE];
} dibs__record;

/* How one lock is stored. Finders return 1 and fill `out`, 0 for none, -1 for a failure; the others
 * 0 or -1. An entry is known by its fence or place. Writes may be held back until `save`, which the
 * machine calls last, once, when anything changed. The counts in the record are the machine's to
 * keep. */
typedef struct dibs__store {
    int (*load)(void *ctx, dibs__record *out);
    int (*save)(void *ctx, const dibs__record *record);
    int (*holder_of)(void *ctx, const char *owner, dibs__holder *out); /* not the released ones */
    int (*holder_expiring)(void *ctx, dibs__holder *out);              /* the lowest `expires` */
    /* The lowest fence above that; 0: of all. */
    int (*holder_next)(void *ctx, uint64_t fence, dibs__holder *out);
    int (*holder_put)(void *ctx, const dibs__holder *holder); /* new, or same fence again */
    int (*holder_drop)(void *ctx, const dibs__holder *holder);
    int (*waiter_of)(void *ctx, const char *owner, dibs__waiter *out);
    int (*waiter_head)(void *ctx, dibs__waiter *out); /* the lowest place */
    int (*waiter_put)(void *ctx, const dibs__waiter *waiter);
    int (*waiter_drop)(void *ctx, const dibs__waiter *waiter);
    /* A waiter became a holder: wake it. `floor` as in dibs__reply. Must not fail: wake-ups can be
     * lost. */
    void (*granted)(void *ctx, const dibs__holder *holder, uint64_t floor);
    /* This holder is asked for the lock, by an operator or by another handle of its owner's: tell it if
     * you can; it learns at its next renewal anyway. */
    void (*breaking)(void *ctx, const dibs__holder *holder);
} dibs__store;

/* One who is in the way, for people: of all holders the one whose lease ends first. */
typedef struct dibs__in_way {
    uint64_t fence; /* 0: not known */
    int64_t pid;
    int64_t left; /* of its lease */
    char owner[DIBS__OWNER_SIZE];
    char host[DIBS__HOST_SIZE];
} dibs__in_way;

typedef enum dibs__verdict {
    DIBS__GRANTED,  /* fence, floor, remaining */
    DIBS__QUEUED,   /* in the queue; `remaining`: look again after that, 0 when there is no need */
    DIBS__BUSY,     /* not in the queue; `remaining`: until the first holder's lease ends */
    DIBS__LOST,     /* no such entry (any more) */
    DIBS__BROKEN,   /* an operator took it, or asks for it (`remaining` > 0: still there) */
    DIBS__RESUMED,  /* the owner is here with another attempt (`remaining` > 0: that one waits, and
                       this one still holds) */
    DIBS__MISMATCH, /* `capacity`: what the lock has */
    DIBS__RELEASED, /* done */
} dibs__verdict;

typedef struct dibs__reply {
    dibs__verdict verdict;
    uint64_t fence;
    uint64_t floor;
    int64_t remaining;
    uint32_t capacity;
    dibs__in_way in_way; /* BUSY and QUEUED; not of a break */
} dibs__reply;

/* All return 0, or -1 when the store failed. */

/* Take, or stand in the queue (`window` > 0 is how long one keep-alive counts; 0: do not queue). RESUMED: a
 * late message, the owner is here with a newer attempt of the same handle; nothing was changed. */
int dibs__state_acquire(const dibs__store *store, void *ctx, dibs__time now, const dibs__asker *who,
                        uint32_t capacity, int64_t window, dibs__reply *out);

/* A keep-alive. Holder: the lease is `lease` from now on. Waiter: still there. A waiter that was
 * handed the lock and does not know gets a whole lease. `fence` is the holder's, 0 for a waiter. */
int dibs__state_keep(const dibs__store *store, void *ctx, dibs__time now, const char *owner,
                     const char *attempt, uint64_t fence, int64_t lease, dibs__reply *out);

/* Give back and hand over. RELEASED, or LOST, BROKEN, RESUMED when it was not ours any more. */
int dibs__state_release(const dibs__store *store, void *ctx, dibs__time now, const char *owner,
                        const char *attempt, uint64_t fence, dibs__reply *out);

/* Leave the queue; a grant that arrived meanwhile goes back too, min_hold or not. Always RELEASED.
 */
int dibs__state_cancel(const dibs__store *store, void *ctx, dibs__time now, const char *owner,
                       const char *attempt, dibs__reply *out);

/* Take it from the holders. `at_once`: they are gone. Else they are asked, and keep what is left of
 * their leases. RELEASED: none of them is left. BUSY: some are, each until it lets go or its lease
 * ends. LOST: no such lock. `fence` is the raised one. An idle lock forgets its capacity: it can be
 * made anew. */
int dibs__state_break(const dibs__store *store, void *ctx, dibs__time now, const char *by,
                      bool at_once, dibs__reply *out);

/* Lets time pass: expires, hands over. RELEASED. Used before looking, and by engines that noticed a
 * death. */
int dibs__state_settle(const dibs__store *store, void *ctx, dibs__time now, dibs__reply *out);

#endif
