/* Filling the caller's dibs_error. `err` may be NULL everywhere. */
#ifndef DIBS_CORE_ERROR_H
#define DIBS_CORE_ERROR_H

#include "dibs.h"

/* Says what happened and returns `status`: `return dibs__fail(err, DIBS_INVALID, "…", …);` */
dibs_status dibs__fail(dibs_error *err, dibs_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " before what an inner layer said, unless it begins so; the status stays. */
void dibs__wrap(dibs_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
