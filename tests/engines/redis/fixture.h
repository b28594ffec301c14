/* A Redis engine without the core around it: opened by URL, with a sink that only takes notes, so
 * that tests can look at each call of the engine's table by itself. */
#ifndef DIBS_TESTS_REDIS_FIXTURE_H
#define DIBS_TESTS_REDIS_FIXTURE_H

#include "engines/engine.h"

#include <pthread.h>

typedef struct fixture {
    dibs__sink sink; /* first: the notes are found by it */
    dibs__engine *engine;
    pthread_mutex_t lock;
    int granted, looks, looks_again, warnings;
    char attempt[DIBS__ATTEMPT_SIZE]; /* of the last wake-up */
    uint64_t fence;
    char handle_id[17];
    int64_t span; /* of one call, in ms */
} fixture;

/* Statuses are those of the engine's open. */
dibs_status fixture_open(fixture *g, const char *url, const char *handle_id, int64_t span_ms,
                         dibs_error *err);
void fixture_close(fixture *g); /* harmless when it is not open */

dibs__deadline fixture_until(const fixture *g);

/* Reads the engine's events if there are any. */
fixture *fixture_events(fixture *g);

/* An exclusive lock of 10 s for `owner`; `attempt` is put behind the handle's id. `window_ms` 0: no
 * queue. */
dibs_status fixture_enter(fixture *g, const char *name, const char *owner, int attempt,
                          int64_t window_ms, dibs__reply *out, dibs_error *err);
dibs_status fixture_release(fixture *g, const char *name, const char *owner, int attempt,
                            dibs__reply *out, dibs_error *err);
dibs_status fixture_cancel(fixture *g, const char *name, const char *owner, int attempt,
                           dibs_error *err);
dibs_status fixture_keep(fixture *g, const char *name, const char *owner, int attempt,
                         uint64_t fence, dibs__reply *out);
/* How many hold and wait, and the last holder's fence; false: no such lock. */
bool fixture_look(fixture *g, const char *name, size_t *holders, size_t *waiters, uint64_t *fence);

#endif
