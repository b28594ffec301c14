/* What the files of the Redlock engine share.
 *
 *   voters   the nodes, their connections, questions to all of them (voters.h)
 *   tries    taking a lock: votes, the fence, giving back what was not enough (vote.c)
 *   queues   those of this handle that wait, and when they try again (waiters.c, turn.c, event.c)
 *
 * Keys on every node: PREFIX:{NAME}, the record of a lock, and PREFIX:{NAME}:hints (lua/head.lua);
 * PREFIX:node, the marker (lua/mark.lua). Channel: PREFIX:wake:HANDLE. */
#ifndef DIBS_REDLOCK_REDLOCK_H
#define DIBS_REDLOCK_REDLOCK_H

#include "engines/engine.h"
#include "engines/redlock/pack.h"
#include "engines/redlock/voters.h"

typedef struct dibs__redlock_waiters dibs__redlock_waiters;

typedef struct dibs__redlock {
    dibs__engine base;
    dibs__voters *v;
    dibs__redlock_waiters *waiters;
} dibs__redlock;

static inline int dibs__nodes_in(dibs__node_set set)
{
    return __builtin_popcount(set);
}

static inline dibs__node_set dibs__all_nodes(const dibs__voters *v)
{
    return ((dibs__node_set)1 << v->count) - 1;
}

/* What nodes answer beside the verdicts: see lua/head.lua. */
enum { DIBS__REDLOCK_QUIET = 9, DIBS__REDLOCK_UNMARKED = 10, DIBS__REDLOCK_STALE = 11 };

/* Why a node did not renew or give back a vote. Any other answer than these reasons is a loss. */
static inline dibs__verdict dibs__redlock_reason(int64_t answer)
{
    return answer == DIBS__BROKEN || answer == DIBS__RESUMED ? (dibs__verdict)answer : DIBS__LOST;
}

/* A random number in [0, below). */
int64_t dibs__redlock_random(const dibs__redlock *r, int64_t below);

/* ---- Taking a lock (vote.c) ------------------------------------------------------------------ */

typedef struct dibs__try {
    /* in */
    const char *name;
    const dibs__asker *who;
    int64_t lease;    /* asked for: that of `who`, or more */
    bool waits;       /* it will wait, or does: the nodes keep a hint of it */
    uint64_t arrival; /* its place among the hints; 0: none yet, and the nodes give it one */
    int64_t within;   /* it must not take longer than this; 0: than the lease */
    const dibs__claim *after; /* give this back first; NULL: nothing */
    /* out: as from the engine's enter; a refusal has its reason in `err` */
    dibs_status status;
    dibs__reply reply;
    dibs_error err;
    bool held;    /* busy: by one who has a majority, not by others that try too */
    bool taken;   /* a majority has or keeps its votes for one client */
    int64_t rank; /* so many hints are before its own, on the node where they are most */
    dibs_status after_status; /* of `after`, as from release */
    dibs__verdict after_verdict;
    /* inside */
    dibs__deadline began;
    uint64_t round;
    dibs__node_set asked, yes, busy, quiet;
    dibs__node_set kept;           /* of the busy ones: free, and kept for another */
    dibs__node_set gave, gave_not; /* the nodes' words about `after` */
    dibs__verdict why_not;
    uint64_t fence[DIBS__VOTERS_MAX]; /* of the vote, or of who has it */
    uint64_t whose[DIBS__VOTERS_MAX]; /* a busy one's: for whom */
    int64_t left;                     /* until the first of the busy ones may be free */
    int64_t quiet_left;
    size_t length, give_length;
    char *dials; /* in `word` */
    char word[DIBS__PACK_SIZE], give[DIBS__PACK_SIZE];
    char key[DIBS__REDIS_KEY_SIZE];
} dibs__try;

/* Tries to take them all, in one exchange with all nodes, and a second one where the votes have
 * different fences. */
void dibs__try_all(dibs__redlock *r, dibs__try *const tries[], size_t count, dibs__deadline until);

/* ---- The commands (lock.c) ------------------------------------------------------------------- */

/* How a vote goes back: see lua/give.lua. */
typedef enum dibs__give_how {
    DIBS__GIVE_QUIETLY,
    DIBS__GIVE_AND_NOTIFY,
    DIBS__GIVE_AFTER_MIN_HOLD,
} dibs__give_how;

/* What goes with a release: of which vote, up to which round. */
size_t dibs__give_word(char out[DIBS__PACK_SIZE], const dibs__claim *claim, uint64_t round,
                       dibs__give_how how);
/* The verdict of all nodes about a vote that goes back. */
dibs_status dibs__give_verdict(const dibs__voters *v, dibs__node_set gave, dibs__node_set gave_not,
                               dibs__verdict why_not, dibs__reply *out);

dibs_status dibs__redlock_enter(dibs__engine *e, const dibs__enter_request *request,
                                dibs__deadline until, dibs__reply *out, dibs_error *err);
void dibs__redlock_keep(dibs__engine *e, dibs__claim *const claims[], size_t count,
                        dibs__deadline until);
dibs_status dibs__redlock_release(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                                  dibs__reply *out, dibs_error *err);
dibs_status dibs__redlock_cancel(dibs__engine *e, const dibs__claim *claim, dibs__deadline until,
                                 dibs_error *err);
dibs_status dibs__redlock_break(dibs__engine *e, const char *name, const char *by, bool at_once,
                                dibs__deadline until, dibs__reply *out, dibs_error *err);

/* ---- Those who wait (waiters.c, turn.c) --------------------------------------------------------- */

dibs__redlock_waiters *dibs__redlock_waiters_new(void); /* NULL: out of memory or descriptors */
void dibs__redlock_waiters_free(dibs__redlock_waiters *waiters);
void dibs__redlock_waiters_abandon(dibs__redlock_waiters *waiters);

/* A call that asks the nodes and will wait if it must: from the moment they have its hint they may tell this handle, and
 * that may be before it stands in the queue. On its caller's stack. */
typedef struct dibs__entering {
    struct dibs__entering *next;
    const char *name;
    bool notified;
} dibs__entering;

void dibs__redlock_waiters_begin(dibs__redlock *r, dibs__entering *e, const char *name);
void dibs__redlock_waiters_end(dibs__redlock *r, dibs__entering *e);

/* Others of this handle wait for that name already. */
bool dibs__redlock_waiters_is_long(dibs__redlock *r, const char *name);
/* At the end of the queue; `t`: its try, NULL: none. false: out of memory. Between begin and end. */
bool dibs__redlock_waiters_join(dibs__redlock *r, const dibs__enter_request *request,
                                const dibs__try *t, const dibs__entering *e);

typedef enum dibs__waiter_state {
    DIBS__NOT_WAITING,
    DIBS__IS_WAITING,
    DIBS__REDLOCK_WAITERS_DOWN, /* in the queue, and there was no majority of nodes when it was last asked */
    DIBS__REDLOCK_WAITERS_SERVED, /* has the lock */
} dibs__waiter_state;

dibs__waiter_state dibs__redlock_waiters_look(dibs__redlock *r, const char *attempt,
                                              uint64_t *fence);
/* It knows that it has the lock, or does not want it any more. Where it was when it left. */
dibs__waiter_state dibs__redlock_waiters_leave(dibs__redlock *r, const char *attempt);

/* The next in the queue for a lock that is given back, if it may have it without asking again; it must be
 * told the outcome. NULL: nobody. */
typedef struct dibs__waiting dibs__waiting;
dibs__waiting *dibs__redlock_waiters_next(dibs__redlock *r, const char *name, dibs__try *out);
void dibs__redlock_waiters_tried(dibs__redlock *r, dibs__waiting *w, const dibs__try *t);

/* This handle's own waiters, in the queue. */
void dibs__redlock_waiters_report(dibs__redlock *r, const char *name, dibs__report_builder *out);
size_t dibs__redlock_waiters_count(dibs__redlock *r, const char *name);

/* event.c */
int dibs__redlock_event_fd(dibs__engine *e);
void dibs__redlock_events(dibs__engine *e, dibs__deadline until);

/* ---- Looking (inspect.c) ------------------------------------------------------------------------ */

dibs_status dibs__redlock_inspect(dibs__engine *e, const char *name, dibs__deadline until,
                                  dibs__report_builder *out, dibs_error *err);
dibs_status dibs__redlock_list(dibs__engine *e, const char *prefix, bool idle, dibs__deadline until,
                               dibs__report_builder *out, dibs_error *err);

/* ---- Looking at the nodes for dibs_examine (examine.c) ---------------------------------------- */

dibs_status dibs__redlock_examine_nodes(const dibs__voters *v, dibs__deadline until,
                                        dibs__facts *out, dibs_error *err);

#endif
