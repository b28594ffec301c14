/* Each public call in a short scene of its own, for the sweeps: it makes the calls, notes how each ended and how
 * long it took, and stops at the first that failed. */
#ifndef DIBS_TESTS_SCENES_H
#define DIBS_TESTS_SCENES_H

#include "dibs.h"
#include "support/scratch_store.h"

#define REQUEST_MS 200
#define CONNECT_MS 1000
#define WAIT_MS    150
#define LOCKS      3 /* "sweep-0" and on: what scenes lock */

typedef struct stage {
    const scratch_store *where;
    dibs *d, *second; /* the handle that is tested, and one that is in its way */
    /* What came of it. */
    int refused; /* calls that did not end as they should */
    char wrong
        [1400]; /* a status that has nothing to do with the fault, or a call that took too long; "": none */
    char last[1400]; /* how the last of these ended */
    int64_t longest; /* beyond its bound, of all calls */
} stage;

typedef enum scene_need {
    NEEDS_NOTHING,
    NEEDS_CELLS,
    NEEDS_SHARED,
    NEEDS_SLOTS,
    NEEDS_OWN_LEASE,
    NEEDS_SCHEMA
} scene_need;

typedef struct scene {
    const char *name;
    void (*play)(stage *s);
    scene_need need;
    bool apart; /* without `d`: it opens what it needs */
    bool slow;  /* seconds when nothing answers: fails for ever only where every n is tried */
} scene;

extern const scene scenes[]; /* ends with an empty one */

bool scene_fits(const scene *s, const scratch_store *p);

dibs *stage_open(const scratch_store *p, const scene *s, dibs_error *err); /* NULL: it failed */

#endif
