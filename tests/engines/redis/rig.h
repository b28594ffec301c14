/* A Redis engine without the core around it: opened by URL, with a sink that only takes notes, so
 * that tests can look at each call of the engine's table by itself. */
#ifndef DIBS_TESTS_RIG_H
#define DIBS_TESTS_RIG_H

#include "engines/engine.h"

#include <pthread.h>

typedef struct rig {
    dibs__sink sink; /* first: the notes are found by it */
    dibs__engine *engine;
    pthread_mutex_t lock;
    int granted, looks, looks_again, warnings;
    char attempt[DIBS__ATTEMPT_SIZE]; /* of the last wake-up */
    uint64_t fence;
    char handle_id[17];
    int64_t span; /* of one call, in ms */
} rig;

/* Statuses are those of the engine's open. */
dibs_status rig_open(rig *g, const char *url, const char *handle_id, int64_t span_ms,
                     dibs_error *err);
void rig_close(rig *g); /* harmless when it is not open */

dibs__deadline rig_until(const rig *g);

/* Reads the engine's events if there are any. */
rig *rig_events(rig *g);

/* An exclusive lock of 10 s for `owner`; `attempt` is put behind the handle's id. `window_ms` 0: no
 * queue. */
dibs_status rig_enter(rig *g, const char *name, const char *owner, int attempt, int64_t window_ms,
                      dibs__reply *out, dibs_error *err);
dibs_status rig_release(rig *g, const char *name, const char *owner, int attempt, dibs__reply *out,
                        dibs_error *err);
dibs_status rig_cancel(rig *g, const char *name, const char *owner, int attempt, dibs_error *err);
dibs_status rig_keep(rig *g, const char *name, const char *owner, int attempt, uint64_t fence,
                     dibs__reply *out);
/* How many hold and wait, and the last holder's fence; false: no such lock. */
bool rig_look(rig *g, const char *name, size_t *holders, size_t *waiters, uint64_t *fence);

#endif
