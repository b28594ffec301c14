/* The inside of a dibs_once: what once.c (beginning, waiting), run.c (a run that is ours, as the keeper
 * sees it), finish.c (what its user does with it) and once_state.c (what it says without I/O) share.
 *
 *   asking   nothing is known yet
 *   told     another's: `answer` says what became of it
 *   ours     we run it; the keeper renews
 *   lost     our deadline is over, or another has it
 *   ended    by us, but the answer was lost: to be asked for again
 *   over     finished, failed or abandoned by us
 *
 * The handle's mutex guards it. Whoever speaks with the engine about a run of ours has set `busy`:
 * each command names the version that the one before made. */
#ifndef DIBS_RECIPES_ONCE_H
#define DIBS_RECIPES_ONCE_H

#include "core/handle.h"
#include "recipes/cell.h"
#include "recipes/record.h"

typedef enum dibs__once_phase {
    DIBS__ONCE_ASKING,
    DIBS__ONCE_THEIRS,
    DIBS__ONCE_OURS,
    DIBS__ONCE_LOST,
    DIBS__ONCE_ENDED,
    DIBS__ONCE_OVER,
} dibs__once_phase;

struct dibs_once {
    dibs *d;
    struct dibs_once *next, **at; /* in d->onces */
    int refs;                     /* the user's, the keeper's, one while its loss is told */
    dibs__once_phase phase;
    dibs_status answer; /* told */
    bool busy;
    bool delivered;         /* the user was told that it is his: from then on its loss is told */
    bool silent;            /* the last renewal got no answer */
    bool maybe_there;       /* the engine may have begun it for us, and the caller was not told */
    bool withdrawing;       /* nothing was done under it: its crash is none, whoever put it back */
    bool unsettled;         /* another's run or crash stood there when we looked last */
    uint64_t tried;         /* the version that an unanswered take-over named; 0: none */
    bool last;              /* whoever closes the handle has come to it */
    bool left_running;      /* freed while the handle was being closed: still to be abandoned */
    dibs__deadline give_up; /* withdrawing it: not after */
    dibs_on_crash on_crash;
    dibs_once_lost_fn on_lost;
    void *data;
    dibs__run_record mine;   /* what we write; the steps of either are here */
    dibs__run_record theirs; /* what was read last, in `raw` */
    void *raw;
    bool took_over;          /* from a run that died: `before` is its record, to be put back if */
    dibs__run_record before; /* ours comes to nothing; its steps are in `mine` */
    dibs__deadline before_until;  /* kept until then */
    int64_t left;                 /* of `theirs`: until the engine drops it */
    int64_t age;                  /* of `theirs`, when it was read */
    dibs__deadline read_at;       /* that moment, or before */
    uint64_t version;             /* the cell's, as far as we know */
    _Atomic int64_t deadline;     /* ours until then, by our clock; 0: not ours */
    dibs__keeper_task renew, end; /* while it is ours */
    dibs__keeper_task withdrawal; /* when nobody wants it */
    dibs__news loss;
    char cell[DIBS__CELL_KEY_SIZE];
    char key[]; /* for messages; then the fingerprint */
};

/* What a conflict or an absence means to a run of ours. */
typedef enum dibs__run_outcome {
    DIBS__RUN_WRITTEN,
    DIBS__RUN_STALE,    /* ours, with another version: again */
    DIBS__RUN_ENDED,    /* by ourselves: its answer was lost */
    DIBS__RUN_TAKEN,    /* another's, or gone */
    DIBS__RUN_NO_ANSWER /* `status` says why */
} dibs__run_outcome;

/* run.c: with the mutex */
/* It is ours, granted by a command sent then. false: too late by our clock. */
bool dibs__run_begin(dibs_once *o, dibs__deadline sent, uint64_t version);
/* It was written by a command sent then: a whole lease from there. */
void dibs__run_hold(dibs_once *o, dibs__deadline sent, uint64_t version);
void dibs__run_retire(dibs_once *o, dibs__once_phase phase); /* nothing of the keeper's is left */
void dibs__run_lose(dibs_once *o, const char *why);
void dibs__run_busy(dibs_once *o);
void dibs__run_idle(dibs_once *o);
void dibs__once_drop(dibs_once *o); /* one reference less */

/* run.c: without the mutex, and busy. Writes the record in the place of version `o->version`, by one
 * command. STALE: there is another of our attempt, and `o->version` is now that one's. */
dibs__run_outcome dibs__run_try(dibs_once *o, const dibs__run_record *r, bool notify,
                                dibs__deadline until, dibs_status *status, dibs_error *err);
/* The same until it is not stale. */
dibs__run_outcome dibs__run_write(dibs_once *o, const dibs__run_record *r, bool notify,
                                  dibs__deadline until, dibs_status *status, dibs_error *err);

/* once.c: begin leaves a dibs_once after this */
bool dibs__once_is_answer(dibs_status status);
/* finish.c: with the mutex. Frees one that is another's run; what may be ours, the keeper withdraws. */
void dibs__once_leave(dibs_once *o);

/* finish.c: the handle's end_onces and free_onces */
void dibs__onces_end(dibs *d, dibs__deadline until);
void dibs__onces_free(dibs *d);

#endif
