/* The state that the run left in the store, read when no worker is left. */
#define _GNU_SOURCE
#include "torture.h"

#include <string.h>

#define OPENS_MAX 5

static void read_counter(const torture_plan *plan, dibs *d, int64_t counter, int history)
{
    char name[96];
    int64_t value = 0;
    dibs_status status = DIBS_UNAVAILABLE;

    torture_counter_name(plan, counter, name);
    if (d)
        status = dibs_counter_get(d, name, &value, NULL);
    torture_note(history, torture_now(), "final_counter", "{s:s,s:o,s:s}", "counter", name, "value",
                 status == DIBS_OK ? json_integer((json_int_t)value) : json_null(), "status",
                 dibs_status_name(status));
}

/* Asks as a duplicate would. A key that is free is begun by that, and given back as it was. */
static dibs_status ask_key(dibs *d, const char *key, const char *fingerprint, dibs_once **once)
{
    const dibs_once_options how = {.wait_ms = DIBS_NO_WAIT,
                                   .keep_ms = TORTURE_KEEP_MS,
                                   .fingerprint = fingerprint,
                                   .fingerprint_size = 1,
                                   .on_crash = DIBS_CRASH_REFUSE};
    dibs_status status = dibs_once_begin(d, key, &how, once, NULL);

    if (status == DIBS_OK)
        dibs_once_undo(*once, NULL);
    return status;
}

static void read_key(dibs *d, const char *key, int history)
{
    dibs_status status = DIBS_UNAVAILABLE;
    const char *result = NULL;
    dibs_once *once = NULL;
    size_t size = 0;

    if (d)
        status = ask_key(d, key, "x", &once);
    if (status == DIBS_MISMATCH) {
        dibs_once_free(once);
        status = ask_key(d, key, "y", &once);
    }
    if (status == DIBS_ALREADY)
        result = dibs_once_result(once, &size);
    torture_note(history, torture_now(), "final_key", "{s:s,s:s,s:o}", "k", key, "status",
                 dibs_status_name(status), "result",
                 result ? json_stringn(result, size) : json_null());
    dibs_once_free(once);
}

static dibs *open_store(const torture_plan *plan)
{
    const dibs_options how = {.request_ms = TORTURE_REQUEST_MS, .lease_ms = plan->lease_ms};
    dibs *d = NULL;

    for (int i = 0; i < OPENS_MAX && !d; i++)
        if (dibs_open(plan->url, &how, &d, NULL) != DIBS_OK)
            torture_sleep(500 * TORTURE_MS);
    return d;
}

void torture_final(const torture_plan *plan, const torture_shared *shared, int history)
{
    int64_t keys = (torture_now() - shared->begin) / TORTURE_KEY_SLOT;
    dibs *d = plan->work & ~(unsigned)TORTURE_LOCKS ? open_store(plan) : NULL;
    char key[96];

    for (int64_t i = 0; plan->work & TORTURE_COUNTS && i < TORTURE_COUNTERS; i++)
        read_counter(plan, d, i, history);
    for (int64_t i = 0; plan->work & TORTURE_ONCE && i <= 2 * keys + 1; i++) {
        torture_key_name(plan, i % 2, i / 2, key);
        read_key(d, key, history);
    }
    dibs_close(d);
}
