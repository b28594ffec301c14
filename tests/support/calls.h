/* Calls of dibs.h that must end in a certain way, or the case fails. */
#ifndef DIBS_TESTS_CALLS_H
#define DIBS_TESTS_CALLS_H

#include "dibs.h"

#define assert_status(got, want) assert_string_equal(dibs_status_name(got), dibs_status_name(want))

dibs *expect_open(const char *url, const dibs_options *options);

/* The dibs_open that must fail so, with a message that has this text in it, or all of `words`
 * (NULL-terminated). */
void expect_refused(const char *url, const dibs_options *options, dibs_status want,
                    const char *text);
void expect_refused_with(const char *url, const dibs_options *options, dibs_status want,
                         const char *const words[]);

/* dibs_unlock, for cases that use the grant no more, or look at its status. */
static inline dibs_status unlock(dibs_grant *g)
{
    return dibs_unlock(&g, NULL);
}

/* A request for a lock whose outcome goes to `done` (may be NULL), from take_all. */
typedef void (*lock_fn)(void *data, dibs_status status, dibs_grant *g, const dibs_error *err);
dibs_status start_lock(dibs *d, const char *name, const dibs_lock_options *options, lock_fn done,
                       void *data, uint64_t *id, dibs_error *err);
/* Takes the outcomes that are there, up to a hundred; how many. Only for handles whose requests come from start_lock. */
int take_all(dibs *d);

dibs_grant *expect_lock(dibs *d, const char *name, const dibs_lock_options *options);

/* How many hold and wait, by the engine's own account; 0 where it gives none. */
void count_queue(dibs *d, const char *name, size_t *holders, size_t *waiters);
size_t holders_of(dibs *d, const char *name);
size_t waiters_of(dibs *d, const char *name);

#endif
