/* One conformance suite for all engines, through dibs.h alone.
 *
 * The program gets an engine's name, makes a store for it (a scratch file, a private server) and
 * runs the same cases on it; what an engine declares that it cannot do (dibs_engine_of) is what may
 * be left out. "Several clients" are several handles: those of `memory:` share a store
 * inside one process.
 *
 * Handles that a case opens are closed after it, also when it failed half-way. */
#ifndef DIBS_TESTS_SUITE_H
#define DIBS_TESTS_SUITE_H

#include "support/clock.h"
#include "support/jobs.h"
#include "support/scratch_store.h"
#include "support/test.h"

#define SHORT_MS 400  /* a lease that a test can outlive */
#define KEPT_MS  1200 /* a lease that must be kept up, also on the slowest machine */

/* The lease of every lock where it is the handle's: short enough that a test can outlive it. */
#define SESSION_MS 4000

extern scratch_store the;

/* ---- Handles --------------------------------------------------------------------------------- */

dibs *open_handle(void); /* or the case fails */
dibs *open_with(const dibs_options *options);
/* With a session that lasts while the case itself keeps servers and machine busy. */
dibs *open_for_load(void);

/* A URL at which nobody listens; or, where there is no server, of a file that is no database. False: memory. */
bool url_of_nobody(char *url, size_t size);

/* Makes the engine hang for a while: stops its servers, or locks its database against every writer.
 * false: nothing to hang (memory), or an ensemble that would go on without. */
bool pause_server(void);
void continue_server(void);

/* A lock name that no other case uses; the last eight live on. */
const char *fresh(const char *label);

/* Waits until so many wait, by the engine's own account. An engine that serves nobody in
 * order has no queue that others could see: there each handle of this process is asked for its own.
 */
void wait_for_queue(dibs *d, const char *name, size_t waiters);
/* The same for one waiter in another process. */
void wait_for_helper(dibs *d, const char *name);

/* ---- The cases, by file ---------------------------------------------------------------------- */

typedef struct cases {
    const struct CMUnitTest *test;
    size_t count;
} cases;

extern const cases open_cases, basic_cases, queue_cases, lease_cases, break_cases, look_cases,
    request_cases, many_cases, process_cases, machine_cases, cell_cases, counter_cases, once_cases,
    crash_cases, token_cases, late_cases, call_cases, duration_cases, hung_cases, operation_cases,
    close_cases, portable_cases, key_cases;

#define CASE(name)                    \
    {                                 \
#name, name, NULL, NULL, NULL \
    }
/* A case that needs what not every engine declares; where it is not declared, the case is left out,
 * and what_it_cannot_do_is_refused holds the engine to its word. */
typedef enum need { NEEDS_SHARED = 1, NEEDS_SLOTS, NEEDS_PORTABLE, NEEDS_PORTABLE_SLOTS } need;
#define CASE_FOR(name, need)                             \
    {                                                    \
#name, name, NULL, NULL, (void *)(uintptr_t)need \
    }
#define CASES(id, array) const cases id = {array, sizeof array / sizeof array[0]}

#endif
