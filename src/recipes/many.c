/* Several locks at once: in sorted order, so that two callers who want the same ones cannot each
 * hold what the other waits for; all or nothing, within one patience. */
#include "core/env.h"
#include "core/error.h"
#include "dibs.h"

#include <stdlib.h>
#include <string.h>

typedef struct want {
    const char *name;
    size_t place; /* in the caller's arrays */
} want;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const want *)a)->name, ((const want *)b)->name);
}

/* What is left of the caller's patience for the next lock. */
static int64_t wait_left(int64_t wait_ms, dibs__deadline until)
{
    int64_t left;

    if (wait_ms == 0 || wait_ms == DIBS_NO_WAIT)
        return wait_ms;
    left = (until - dibs__now(&dibs__env_system)) / DIBS__MS;
    return left > 0 ? left : DIBS_NO_WAIT;
}

static dibs_status take_all(dibs *d, const want *wants, size_t count,
                            const dibs_lock_options *options, dibs_grant *out[], dibs_error *err)
{
    dibs_lock_options o = options ? *options : (dibs_lock_options){0};
    int64_t wait_ms = o.wait_ms;
    dibs__deadline until = dibs__after(&dibs__env_system, wait_ms > 0 ? wait_ms * DIBS__MS : 0);

    for (size_t i = 0; i < count; i++) {
        dibs_status status;
        o.wait_ms = wait_left(wait_ms, until);
        status = dibs_lock(d, wants[i].name, &o, &out[wants[i].place], err);
        if (status == DIBS_OK)
            continue;
        while (i-- > 0) {
            dibs_unlock(out[wants[i].place]);
            out[wants[i].place] = NULL;
        }
        return status;
    }
    return DIBS_OK;
}

dibs_status dibs_lock_many(dibs *d, const char *const names[], size_t count,
                           const dibs_lock_options *options, dibs_grant *out[], dibs_error *err)
{
    want *wants;
    dibs_status status;

    if (count == 0)
        return dibs__fail(err, DIBS_INVALID, "no names given");
    wants = calloc(count, sizeof *wants);
    if (!wants)
        return dibs__fail(err, DIBS_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < count; i++) {
        wants[i] = (want){names[i] ? names[i] : "", i};
        out[i] = NULL;
    }
    qsort(wants, count, sizeof *wants, by_name);
    status = take_all(d, wants, count, options, out, err);
    free(wants);
    return status;
}
