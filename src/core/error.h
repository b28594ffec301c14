/* Filling the caller's dibs_error. `err` may be NULL everywhere. */
#ifndef DIBS_CORE_ERROR_H
#define DIBS_CORE_ERROR_H

#include "dibs.h"

/* Says what happened and returns `status`: `return dibs__fail(err, DIBS_INVALID, "…", …);` */
dibs_status dibs__fail(dibs_error *err, dibs_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a system call: `failure` is its errno, whose name becomes the engine's code. */
dibs_status dibs__fail_errno(dibs_error *err, dibs_status status, int failure, const char *format,
                             ...) __attribute__((format(printf, 4, 5)));

/* The failure that `why` tells of, with all that is known of it. */
dibs_status dibs__fail_as(dibs_error *err, dibs_status status, const dibs_error *why);

/* Puts "prefix: " before what an inner layer said, unless it begins so; the status stays. */
void dibs__wrap(dibs_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* After a failure, what else is known of it: who is in the way, and for how long at most; and what the engine
 * itself called it. */
void dibs__error_holder(dibs_error *err, const char *owner, const char *host, int64_t pid,
                        uint64_t fence, int64_t left_ms);
void dibs__error_code(dibs_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* At the beginning and at the end of a public call; see core/calls.h. `unknown`: what to do after
 * DIBS_UNKNOWN, unless err->next says it already; other statuses have their usual next step. NONE: the call
 * cannot be made again, after DIBS_UNAVAILABLE neither. */
void dibs__error_clear(dibs_error *err);
dibs_status dibs__error_settle(dibs_error *err, dibs_status status, dibs_next unknown);

#define DIBS__MAX_MS ((int64_t)100 * 365 * 24 * 3600 * 1000) /* what is computed from it fits */

/* Options of a newer header, or of nobody's, are refused: their meaning is not known here. */
dibs_status dibs__check_reserved(const uint64_t reserved[], size_t count, dibs_error *err);
#define DIBS__CHECK_RESERVED(o, err) \
    dibs__check_reserved((o)->reserved, sizeof(o)->reserved / sizeof(o)->reserved[0], err)

#define DIBS__OR_NO_WAIT 1
#define DIBS__OR_FOREVER 2

/* Every duration that a caller gives goes through this before anything is computed from it: it is 0 (the
 * default), or `low` to `high`, or what `also` allows. */
dibs_status dibs__check_ms(const char *what, int64_t ms, int64_t low, int64_t high, int also,
                           dibs_error *err);
dibs_status dibs__check_wait(int64_t wait_ms, dibs_error *err); /* of every call that waits */
dibs_status dibs__check_fingerprint(const void *fingerprint, size_t size, dibs_error *err);

#endif
