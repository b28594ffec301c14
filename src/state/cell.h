/* A cell as a pure state machine: no I/O, no clock of its own, no engine.
 *
 * A cell is a value with a version. It changes only by a command that says which version it is
 * about; versions come from the hybrid clock (greater than the last, and not below the engine's
 * wall time in microseconds) or from a store that numbers its writes, so that they grow also over a
 * deletion, and no reader can take a new value for the one it knew. A counter is a cell whose value is a number; its commands need no
 * version, because the condition is in them.
 *
 * Every command carries a `stamp`, fresh for each call and kept when a lost reply is asked for
 * again: a cell that bears the stamp has had this very command. A counter's command may name a
 * *request* of the caller's: its answer is kept beside the cell, and the same request is answered
 * from there.
 *
 * What has ended (`expires` <= now) counts as absent. The engine may drop what is absent whenever
 * dibs__cell_may_drop says so: a floor outlives its value, so that an old holder is refused also
 * after a deletion. */
#ifndef DIBS_STATE_CELL_H
#define DIBS_STATE_CELL_H

#include "state/lock.h"

#define DIBS__STAMP_SIZE    40
#define DIBS__CELL_KEY_SIZE 1152 /* any bytes but NUL, terminated */
#define DIBS__REQUEST_SIZE  513

#define DIBS__CELL_ANY UINT64_MAX /* as a version: whatever it is, but there */

typedef struct dibs__cell {
    uint64_t version; /* the last one given out; 0: it never had a value */
    uint64_t
        counted;    /* by a store that numbers its writes itself: the next version is above this. 0:
                          versions follow the clock */
    uint64_t floor; /* the highest that was presented, or came with a write: an older fence may not
                         write */
    int64_t written; /* lease clock: the last command that changed it */
    int64_t expires; /* lease clock; INT64_MAX: never */
    int64_t number;  /* a counter's value */
    bool counter;
    bool empty; /* has no value (any more): kept for its floor, or because its version is ahead of
                   the clock */
    char stamp[DIBS__STAMP_SIZE];
    const void *data; /* borrowed: the store's when it was found, the command's when it is put */
    size_t size;
} dibs__cell;

/* How one cell is stored. Finders return 1, 0 for none, -1 for a failure; the others 0 or -1. */
typedef struct dibs__cell_store {
    int (*load)(void *ctx, dibs__cell *out); /* also one that has ended, if it is still there */
    int (*put)(void *ctx, const dibs__cell *cell);
    int (*drop)(void *ctx);
    /* The answer that a request got. */
    int (*request_find)(void *ctx, const char *request, int64_t now, int64_t *number);
    int (*request_put)(void *ctx, const char *request, int64_t number, int64_t expires);
} dibs__cell_store;

typedef enum dibs__cell_verdict {
    DIBS__CELL_DONE,     /* `cell` as it is now; a read found it; or it bore the stamp already (a
                            request: `cell.number` is what it was told) */
    DIBS__CELL_ALREADY,  /* this request was answered before, and the cell bears another stamp: by
                            another call, or by this one and changed since. `cell.number`: what it
                            was told */
    DIBS__CELL_ABSENT,   /* there is none, and the command wanted one */
    DIBS__CELL_CONFLICT, /* `cell`: what is there instead */
    DIBS__CELL_FENCED,   /* a newer fence has been here */
    DIBS__CELL_TOO_FEW,  /* `cell.number`: how many there are */
    DIBS__CELL_OVERFLOW, /* the number would not fit */
    DIBS__CELL_KIND,     /* a counter is no cell and the other way round */
} dibs__cell_verdict;

typedef struct dibs__cell_answer {
    dibs__cell_verdict verdict;
    dibs__cell cell; /* `data` is valid until the next call of the store */
} dibs__cell_answer;

typedef enum dibs__cell_op {
    DIBS__CELL_READ,
    DIBS__CELL_SWAP,   /* if `version` holds (0: absent; ANY: there): the value is `data` now */
    DIBS__CELL_DELETE, /* if `version` holds */
    DIBS__CELL_PASS,   /* raise the floor, then read; nothing else changes. Makes an empty cell if
                          there is none, which still reads as ABSENT */
    DIBS__CELL_SET,    /* counter: the value is `number` now */
    DIBS__CELL_ADD,    /* counter: plus `number`, which may be negative; absent counts as 0; the
                          value may not fall below 0: TOO_FEW */
    DIBS__CELL_TAKE,   /* counter: minus `number` if so many are left; absent is ABSENT */
} dibs__cell_op;

typedef struct dibs__cell_command {
    dibs__cell_op op;
    uint64_t version;
    const void *data; /* borrowed */
    size_t size;
    int64_t number;
    int64_t keep;         /* how long it lives from now; 0: for ever. Counters: 0 leaves it */
    uint64_t fence;       /* 0: not guarded. Refused when below the cell's floor */
    uint64_t floor;       /* with a fence: what PASS, SWAP and DELETE raise it to; 0: the fence */
    const char *stamp;    /* not for READ and PASS */
    const char *request;  /* counters; NULL: none */
    int64_t request_keep; /* how long its answer is kept */
    /* For the engine; the machine looks at none of them. */
    bool
        alive; /* the value stands for this process: if the engine notices its death, it tells. READ:
                   the reply's age shall tell whether whoever wrote it is alive */
    int64_t lease; /* with `alive`: how long it counts as alive without another sign */
    bool fleeting; /* a keep-alive: may be lost when the machine goes down */
} dibs__cell_command;

/* 0, or -1 when the store failed: then nothing may be kept. */
int dibs__cell_apply(const dibs__cell_store *store, void *ctx, dibs__time now,
                     const dibs__cell_command *command, dibs__cell_answer *out);

/* What a command raises the floor to if it is lower: what came with its fence, or the fence itself. */
uint64_t dibs__cell_floor(const dibs__cell_command *c);

/* Is the value part of the answer? Whoever wrote it knows it. */
bool dibs__cell_shows_data(dibs__cell_op op, dibs__cell_verdict verdict);

/* May an absent cell be forgotten? Without a floor as soon as clock or store make a higher version than
 * it had; with one, a day later. */
bool dibs__cell_may_drop(const dibs__cell *cell, dibs__time now);

#endif
