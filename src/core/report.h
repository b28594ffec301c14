/* Building what dibs_lock_inspect and dibs_lock_list return. An engine adds locks, and after each its holders
 * (by fence) and waiters (in the queue); `now` turns its lease times into ages. Failed allocations are
 * remembered and told at the end, so that an engine need not check every call. */
#ifndef DIBS_CORE_REPORT_H
#define DIBS_CORE_REPORT_H

#include "dibs.h"
#include "state/lock.h"

typedef struct dibs__report_builder dibs__report_builder;

dibs__report_builder *dibs__report_new(void); /* NULL: out of memory */

/* All strings are copied. `waiter_count` comes from the record if no waiter is added. */
void dibs__report_lock(dibs__report_builder *b, const char *name, const dibs__record *record);
void dibs__report_holder(dibs__report_builder *b, const dibs__holder *holder, dibs__time now);
void dibs__report_waiter(dibs__report_builder *b, const dibs__waiter *waiter, dibs__time now);
/* A line about the last lock that was added, for people. */
void dibs__report_note(dibs__report_builder *b, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* No lock was added; one that was lost for want of memory counts as added. */
bool dibs__report_is_empty(const dibs__report_builder *b);

/* Sorts by name, adds `base` to every fence, and takes `b` in any case. */
dibs_status dibs__report_finish(dibs__report_builder *b, uint64_t base, dibs_lock_report **out,
                                dibs_error *err);
/* Only names after `after` (NULL: all), at most `limit` (0: all). */
void dibs__report_cut(dibs_lock_report *r, const char *after, size_t limit);
void dibs__report_drop(dibs__report_builder *b);

#endif
