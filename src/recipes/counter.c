/* Counters: the condition is in the command, so that no version is needed and nobody tries twice.
 *
 * A command under a request of the caller's is answered once: the same request again gets the answer
 * that it got, from a note beside the counter. So a lost reply is asked for again without harm; the
 * counter bears the stamp of the call that changed it last, and only that call is told DIBS_OK for
 * it. Without a request the caller is told that nobody knows. */
#define _GNU_SOURCE
#include "recipes/cell.h"

#include "core/error.h"

#include <stdlib.h>

static dibs_status check(dibs *d, const char *name, const dibs_counter_options *o, dibs_error *err)
{
    dibs_status status = dibs__cells_ready(d, err);

    if (status == DIBS_OK)
        status = dibs__check_text("a counter's name", name, false, err);
    if (status == DIBS_OK && o && o->request)
        status = dibs__check_text("a request's id", o->request, false, err);
    if (status == DIBS_OK && o)
        status = DIBS__CHECK_RESERVED(o, err);
    if (status == DIBS_OK && o)
        status = dibs__check_ms("keep_ms", o->keep_ms, 1, DIBS__MAX_MS, DIBS__OR_FOREVER, err);
    return status;
}

static dibs_status verdict_of(const char *name, const dibs__cell_reply *r, dibs_error *err)
{
    switch (r->verdict) {
    case DIBS__CELL_DONE:
        return DIBS_OK;
    case DIBS__CELL_ALREADY:
        return DIBS_ALREADY;
    case DIBS__CELL_ABSENT:
        return dibs__fail(err, DIBS_NOT_FOUND, "'%.200s': no such counter: set it first", name);
    case DIBS__CELL_TOO_FEW:
        return dibs__fail(err, DIBS_TOO_FEW, "'%.200s': only %lld left", name,
                          (long long)r->number);
    case DIBS__CELL_OVERFLOW:
        return dibs__fail(err, DIBS_INVALID, "'%.200s' is %lld: the result would be too large",
                          name, (long long)r->number);
    case DIBS__CELL_CONFLICT:
    case DIBS__CELL_FENCED:
    case DIBS__CELL_KIND:
        break;
    }
    return dibs__fail(err, DIBS_ENGINE_FAILED, "'%.200s': the engine has unexpected data there",
                      name);
}

/* How long a request is remembered. */
static int64_t memory_of(const dibs_counter_options *o)
{
    if (!o || o->keep_ms == 0)
        return DIBS__DAY_MS * DIBS__MS;
    return o->keep_ms == DIBS_FOREVER ? INT64_MAX : o->keep_ms * DIBS__MS;
}

static dibs_status run(dibs *d, const char *name, dibs__cell_command *c,
                       const dibs_counter_options *o, int64_t *value, dibs_error *err)
{
    char key[DIBS__CELL_KEY_SIZE], stamp[DIBS__STAMP_SIZE];
    dibs__cell_reply reply;
    dibs_status status = check(d, name, o, err);

    if (status != DIBS_OK)
        return status;
    dibs__key(DIBS__KEY_COUNTER, NULL, name, key);
    dibs__stamp(d, stamp);
    c->stamp = stamp;
    c->request = o ? o->request : NULL;
    c->request_keep = memory_of(o);
    status =
        dibs__cell_do(d, key, c, false, dibs__after(d->env, d->request_span), &reply, NULL, err);
    if (status == DIBS_OK) {
        status = verdict_of(name, &reply, err);
        if (value)
            *value = reply.number;
    }
    if (status == DIBS_UNKNOWN && c->request && err) /* it is counted once */
        err->next = DIBS_NEXT_REPEAT;
    free(reply.data);
    return status;
}

dibs_status dibs__do_counter_get(dibs *d, const char *name, int64_t *value, dibs_error *err)
{
    dibs__cell_command c = {.op = DIBS__CELL_READ};

    if (value)
        *value = 0;
    return run(d, name, &c, NULL, value, err);
}

dibs_status dibs__do_counter_set(dibs *d, const char *name, int64_t value,
                                 const dibs_counter_options *options, dibs_error *err)
{
    dibs__cell_command c = {.op = DIBS__CELL_SET, .number = value};

    if (value < 0)
        return dibs__fail(err, DIBS_INVALID, "%lld: a counter cannot be negative",
                          (long long)value);
    return run(d, name, &c, options, NULL, err);
}

dibs_status dibs__do_counter_add(dibs *d, const char *name, int64_t n,
                                 const dibs_counter_options *options, int64_t *value,
                                 dibs_error *err)
{
    dibs__cell_command c = {.op = DIBS__CELL_ADD, .number = n};

    if (value)
        *value = 0;
    return run(d, name, &c, options, value, err);
}

dibs_status dibs__do_counter_take(dibs *d, const char *name, int64_t n,
                                  const dibs_counter_options *options, int64_t *value,
                                  dibs_error *err)
{
    dibs__cell_command c = {.op = DIBS__CELL_TAKE, .number = n};

    if (value)
        *value = 0;
    if (n < 1)
        return dibs__fail(err, DIBS_INVALID, "%lld: take 1 or more", (long long)n);
    return run(d, name, &c, options, value, err);
}
