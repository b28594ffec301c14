/* One engine handle without the core, for tests of an engine: opened by URL, with a sink that
 * remembers what it was told. Short calls that fail the test unless the engine answers. */
#ifndef DIBS_TESTS_SQLITE_FIXTURE_H
#define DIBS_TESTS_SQLITE_FIXTURE_H

#include "engines/engine.h"

#include <pthread.h>
#include <stdatomic.h>

#define FIXTURE_LEASE  (30 * DIBS__SECOND)
#define FIXTURE_WINDOW (6 * DIBS__SECOND)

typedef struct fixture {
    dibs__sink sink; /* first */
    const dibs__engine_class *class;
    dibs__engine *engine;
    const dibs__env *env;
    bool owner_named; /* for the next enter */
    int64_t min_hold; /* for the next enter */
    pthread_mutex_t mutex;
    char granted[DIBS__ATTEMPT_SIZE]; /* the last that was handed a lock */
    uint64_t fence;
    char looked[DIBS__ATTEMPT_SIZE]; /* the last that was told to look */
    _Atomic uint64_t changed;        /* the last cell, by its hash */
} fixture;

/* `env` NULL: the system's. On failure the fixture is closed. */
dibs_status fixture_open(fixture *d, const char *url, const dibs__env *env, dibs_error *err);
void fixture_close(fixture *d); /* harmless when it is */

/* Exclusive unless `capacity`; waits in the queue if `window`. The attempt is the owner's name. */
dibs__reply fixture_enter(fixture *d, const char *name, const char *owner, uint32_t capacity,
                          int64_t window);
dibs__verdict fixture_keep(fixture *d, const char *name, const char *owner, uint64_t fence);
dibs__verdict fixture_release(fixture *d, const char *name, const char *owner, uint64_t fence);

/* The same without judging the status. */
dibs_status fixture_try_enter(fixture *d, const char *name, const char *owner, uint32_t capacity,
                              int64_t window, dibs__deadline until, dibs__reply *out,
                              dibs_error *err);
dibs_status fixture_try_release(fixture *d, const char *name, const char *owner, uint64_t fence,
                                dibs__reply *out, dibs_error *err);

/* Polls the engine's descriptor and runs its events until that attempt was handed a lock: its
 * fence, or 0 when it was not within `ms`. */
uint64_t fixture_wait(fixture *d, const char *owner, int64_t ms);
/* The same for being told to look. */
bool fixture_wait_look(fixture *d, const char *owner, int64_t ms);
/* And for the change of a cell. */
bool fixture_wait_change(fixture *d, const char *key, int64_t ms);

#endif
