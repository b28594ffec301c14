/* One lock in a plain array, to watch the state machine at work: copied by assignment, searched by
 * walking, too simple to be wrong. And the rules that must hold after every command.
 *
 * Used by the unit tests (against the memory store), the model checker and the fuzzer. */
#ifndef DIBS_TESTS_MACHINE_H
#define DIBS_TESTS_MACHINE_H

#include "state/lock.h"

#define TINY_MAX 12 /* holders, and waiters */

/* Ways in which the store can lie, so that the rules can be seen to notice. */
typedef enum tiny_lie {
    TINY_HONEST,
    TINY_LAST_FIRST,      /* the head of the queue is its last */
    TINY_NOTHING_EXPIRES, /* leases never end */
    TINY_LOOKS_EMPTY,     /* the record says that nothing is used */
    TINY_FENCE_STANDS,    /* the last fence is not kept */
    TINY_LOSES_WAITERS,   /* the second in the queue is dropped with the first */
    TINY_DEAF,            /* a hand-over wakes nobody */
    TINY_LIES,
} tiny_lie;

typedef struct tiny {
    bool exists;
    dibs__record record;
    size_t holders, waiters;
    tiny_lie lie;
    int calls;                /* of the store, in this command */
    int fail_at;              /* the call that fails; 0: none */
    uint64_t woken[TINY_MAX]; /* fences of those told by `granted`, in this command */
    size_t woken_count;
    /* Told by `breaking`, in this command, and how many had been woken by then. */
    char asked[TINY_MAX][DIBS__ATTEMPT_SIZE];
    size_t asked_after[TINY_MAX], asked_count;
    bool overflow; /* more entries than there is room for: the test is wrong */
    dibs__holder holder[TINY_MAX];
    dibs__waiter waiter[TINY_MAX];
} tiny;

/* Only what is in use: the rest of `to` is left as it was. */
void tiny_copy(tiny *to, const tiny *from);

/* Holders by fence, waiters by place. */
void tiny_sort(tiny *t);

extern const dibs__store tiny_store;

typedef enum command_kind {
    COMMAND_ACQUIRE,
    COMMAND_KEEP,
    COMMAND_RELEASE,
    COMMAND_CANCEL,
    COMMAND_BREAK,
    COMMAND_SETTLE,
    COMMAND_KINDS,
} command_kind;

typedef struct command {
    command_kind kind;
    dibs__time now;
    dibs__asker who;   /* owner and attempt; acquire: all of it; keep: the lease */
    uint32_t capacity; /* acquire */
    int64_t window;    /* acquire; 0: do not queue */
    uint64_t fence;    /* keep, release */
    bool at_once;      /* break */
} command;

/* Runs one command on any store. 0 or -1. */
int command_run(const dibs__store *store, void *ctx, const command *c, dibs__reply *out);

/* The same on a tiny one, which is as before when the command fails. */
int tiny_run(tiny *t, const command *c, dibs__reply *out);

/* Runs `c`, then holds the rules against what happened: the text of the first one broken, or NULL.
 * `t` is honest or not; the rules only look. */
const char *tiny_step(tiny *t, const command *c, dibs__reply *out);

#endif
