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

dibs_grant *expect_lock(dibs *d, const char *name, const dibs_lock_options *options);

/* How many hold and wait, by the engine's own account; 0 where it gives none. */
void count_line(dibs *d, const char *name, size_t *holders, size_t *waiters);
size_t holders_of(dibs *d, const char *name);
size_t waiters_of(dibs *d, const char *name);

#endif
