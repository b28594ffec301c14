/* What a key of `once` holds: a small binary record in a cell, the same on every engine.
 *
 *     format (3), state, runs, code, pid, since, lease, keep, tombstone, fence,
 *     fingerprint, owner, host, attempt, crashed, decided_by, steps[name, data], result
 *
 * Format 1, which is read too, had no `crashed`, format 2 no `decided_by`. Numbers are little-endian; texts and data follow their
 * size. An unknown format is no damage but a
 * newer version of dibs, and is told so. */
#ifndef DIBS_RECIPES_RECORD_H
#define DIBS_RECIPES_RECORD_H

#include "dibs.h"
#include "state/lock.h"

typedef enum dibs__run_state {
    DIBS__RUN_RUNNING = 1,
    DIBS__RUN_DONE = 2,
    DIBS__RUN_FAILED = 3,    /* for good */
    DIBS__RUN_ABANDONED = 4, /* as if its runner had died */
    DIBS__RUN_FREE = 5,      /* given back: the next run is the first. See dibs__record_life */
} dibs__run_state;

/* A recovery point. Each has memory of its own: its data stays where it is while others come. */
typedef struct dibs__step {
    struct dibs__step *next;
    const char *name;
    void *data; /* a NUL follows */
    size_t size;
    char text[];
} dibs__step;

typedef struct dibs__run_record {
    dibs__run_state state;
    uint32_t runs; /* this is the n-th */
    int32_t code;
    bool has_result;
    int64_t pid;
    int64_t since; /* Unix time */
    int64_t lease; /* a runner that was silent for so long is dead */
    int64_t keep;  /* how long the result is told; INT64_MAX: for ever */
    int64_t tombstone;
    uint64_t fence; /* 0: the cell's version, as this is the first record of the run */
    char owner[DIBS__OWNER_SIZE];
    char host[DIBS__HOST_SIZE];
    char attempt[DIBS__ATTEMPT_SIZE];  /* who wrote it */
    char crashed[DIBS__ATTEMPT_SIZE];  /* a crash that was put back: whose it is. Else "" */
    char decided_by[DIBS__OWNER_SIZE]; /* the operator who ended it, and not its runner. Else "" */
    const void *fingerprint;           /* borrowed, like the result */
    size_t fingerprint_size;
    const void *result;
    size_t result_size;
    dibs__step *steps;
    const dibs__step *fresh; /* to be written in the place of its namesake; NULL: none */
    int64_t left; /* not stored: how long it is kept from now; 0: as long as its state says */
} dibs__run_record;

/* NULL: out of memory. Freed by the caller. */
void *dibs__record_encode(const dibs__run_record *r, size_t *size);

/* Texts, fingerprint and result stay in `data`; the steps are the caller's to free. DIBS_NO_MEMORY,
 * or DIBS_ENGINE_FAILED when it is no record that we know. */
dibs_status dibs__record_decode(const void *data, size_t size, dibs__run_record *out,
                                dibs_error *err);

#define DIBS__RECORD_HEAD 1024 /* the part of a record before its steps and its result is shorter */

typedef struct dibs__record_sizes {
    size_t steps;  /* how many there are */
    size_t result; /* bytes of it */
} dibs__record_sizes;

/* Reads the beginning of a record that has `whole` bytes; `data` has DIBS__RECORD_HEAD of them, or all. Steps
 * and result are only counted. As dibs__record_decode otherwise. */
dibs_status dibs__record_peek(const void *data, size_t size, size_t whole, dibs__run_record *out,
                              dibs__record_sizes *sizes, dibs_error *err);

/* How long the cell lives from the moment the record is written; 0: for ever. A key that was given back
 * stays as a FREE record for a day, and does not become absent: the request that begins a run writes
 * only where there is nothing, so that a copy of it which the network delivers late does nothing. */
int64_t dibs__record_life(const dibs__run_record *r);

/* What the user has put into it: the part that is limited. */
size_t dibs__record_load(const dibs__run_record *r);

dibs__step *dibs__step_new(const char *name, const void *data, size_t size); /* NULL: no memory */
dibs__step *dibs__step_find(dibs__step *steps, const char *name);
void dibs__steps_free(dibs__step *steps);

#endif
