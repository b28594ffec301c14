/* Locks in memory: the store that the memory engine, the simulations and the differential tests
 * use.
 *
 * A command cannot be rolled back here, so that nothing may fail in the middle of one: `begin` sets
 * aside all the memory that one command can need. Not safe for several threads: the engine has a
 * mutex. */
#ifndef DIBS_ENGINES_MEMORY_STORE_H
#define DIBS_ENGINES_MEMORY_STORE_H

#include "core/report.h"
#include "state/lock.h"

typedef struct dibs__memory dibs__memory;
typedef struct dibs__memory_lock dibs__memory_lock;

/* The `ctx` of dibs__memory_store: one lock for the time of one command. */
typedef struct dibs__memory_cursor {
    dibs__memory *memory;
    dibs__memory_lock *lock;
    void (*granted)(void *data, const dibs__holder *holder, uint64_t floor);
    void (*breaking)(void *data, const dibs__holder *holder);
    void *data;
} dibs__memory_cursor;

extern const dibs__store dibs__memory_store;

dibs__memory *dibs__memory_new(void); /* NULL: out of memory */
void dibs__memory_free(dibs__memory *memory);

/* Points the cursor at `name`, which need not exist. false: out of memory. Fill in the callbacks.
 * `wall` lets it drop a few records that were idle for a day. */
bool dibs__memory_begin(dibs__memory_cursor *cursor, dibs__memory *memory, const char *name,
                        int64_t wall);
void dibs__memory_end(dibs__memory_cursor *cursor);

/* Puts `name` into the report, if it exists. */
void dibs__memory_report(dibs__memory *memory, const char *name, dibs__time now,
                         dibs__report_builder *out);
/* All that start with `prefix`, without waiters; idle ones if asked for. */
void dibs__memory_report_all(dibs__memory *memory, const char *prefix, bool idle, dibs__time now,
                             dibs__report_builder *out);

#endif
