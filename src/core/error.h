/* Filling the caller's dibs_error. `err` may be NULL everywhere. */
#ifndef DIBS_CORE_ERROR_H
#define DIBS_CORE_ERROR_H

#include "dibs.h"

/* Says what happened and returns `status`: `return dibs__fail(err, DIBS_INVALID, "…", …);` */
dibs_status dibs__fail(dibs_error *err, dibs_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before what an inner layer said, unless it begins so; the status stays. */
void dibs__wrap(dibs_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* At the beginning and at the end of a public call; see core/calls.h. */
void dibs__error_clear(dibs_error *err);
dibs_status dibs__error_settle(dibs_error *err, dibs_status status);

#define DIBS__MAX_MS ((int64_t)100 * 365 * 24 * 3600 * 1000) /* what is computed from it fits */

/* Every duration that a caller gives goes through this before anything is computed from it: it is 0 (the
 * default) or `low` to `high`. `minus_one` ("DIBS_NO_WAIT", "DIBS_FOREVER") is what -1 means; NULL: nothing. */
dibs_status dibs__check_ms(const char *what, int64_t ms, int64_t low, int64_t high,
                           const char *minus_one, dibs_error *err);

#endif
