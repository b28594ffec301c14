/* Runs of once in a world in which time stands still: the handle that is tested, a rival, and what stands in the store. */
#ifndef DIBS_TESTS_RUNS_H
#define DIBS_TESTS_RUNS_H

#include "recipes/once.h"
#include "support/still.h"

#define KEY    "k"
#define LEASE  (12 * DIBS__SECOND)
#define MARGIN (125 * DIBS__MS) /* of that lease: a hundredth and 5 ms */
#define DAY    (24 * 3600 * DIBS__SECOND)

#define COUNT(rows) (sizeof(rows) / sizeof(rows)[0])

extern dibs *a, *b; /* the one that is tested, and its rival */
extern dibs_error err;
extern char line[512];                       /* the last one that `a` has logged */
extern const dibs_once_options brief, rerun; /* do not wait; the lease is LEASE */
extern const twist untold, lost;             /* the answer, the request */

/* For a test's set-up and tear-down. */
int runs_begin(void **state);
int runs_end(void **state);

twist for_ever(twist t);

/* What is there under KEY or another key; its steps are the caller's to free. `state` 0: nothing. NULL: forgets what it
 * borrowed. */
dibs__run_record stored(const char *key);
dibs__run_state stored_state(const char *key);
/* Whatever was there is replaced; NULL: deleted. It stays until the world ends, unless a time is given. */
void store_for(const char *key, const dibs__run_record *r, int64_t keep);
void store(const char *key, const dibs__run_record *r);

/* Of "them", who are on no handle. */
dibs__run_record theirs(dibs__run_state state);
void leave_a_crash(const char *fingerprint, int64_t keep); /* with one step */
void finish_it(void);
void delete_it(void);

/* As `a` has sent it; 0: the last command. Without its steps. */
dibs__run_record sent_record(int before);

dibs_status begin(const dibs_once_options *o, dibs_once **out);
dibs_once *ours(const dibs_once_options *o);

/* Nothing of the keeper's is left, and the handle has no run any more. */
void expect_nothing_left(size_t tasks);

#endif
