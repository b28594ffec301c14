#define _GNU_SOURCE
#include "conformance/onces.h"

#include <string.h>

dibs *once_open(void)
{
    if (!the.can.cells)
        skip();
    return open_handle();
}

/* Does not wait unless the options say so. */
dibs_status once_begin(dibs *d, const char *key, const dibs_once_options *options, dibs_once **out)
{
    dibs_once_options o = options ? *options : (dibs_once_options){0};

    if (o.wait_ms == 0)
        o.wait_ms = DIBS_NO_WAIT;
    return dibs_once_begin(d, key, &o, out, NULL);
}

dibs_once *once_first(dibs *d, const char *key, const dibs_once_options *options)
{
    dibs_once *o = NULL;

    assert_status(once_begin(d, key, options, &o), DIBS_OK);
    assert_non_null(o);
    assert_true(dibs_once_held(o));
    return o;
}

/* What a duplicate is told. */
dibs_status once_answered(dibs *d, const char *key, const dibs_once_options *options)
{
    dibs_once *o = NULL;
    dibs_status status = once_begin(d, key, options, &o);

    dibs_once_free(o);
    return status;
}

void once_end(dibs_once *o, const char *result)
{
    dibs_error err = {0};

    if (dibs_once_finish(o, result, result ? strlen(result) : 0, 7, &err) != DIBS_OK)
        fail_msg("%s", err.message);
    dibs_once_free(o);
}

void once_expect(dibs *d, const char *key, const char *result)
{
    dibs_once *o = NULL;
    size_t size = 99;

    assert_status(once_begin(d, key, NULL, &o), DIBS_ALREADY);
    if (result) {
        assert_string_equal(dibs_once_result(o, &size), result);
        assert_int_equal(size, strlen(result));
    } else {
        assert_null(dibs_once_result(o, &size));
        assert_int_equal(size, 0);
    }
    assert_int_equal(dibs_once_code(o), 7);
    dibs_once_free(o);
}

bool once_answers_with(void *ctx)
{
    once_asked *a = ctx;

    return once_answered(a->d, a->key, NULL) == a->want;
}

/* A runner whose renewals are lost on the way is as good as dead: its lease ends. */
dibs_once *once_fall_silent(dibs *d, const char *key, const dibs_once_options *options)
{
    dibs_once_options o = options ? *options : (dibs_once_options){0};
    dibs_once *run;

    lossy_put_in(d);
    o.lease_ms = 2 * SHORT_MS;
    run = once_first(d, key, &o);
    lossy_lose(LOSSY_REQUEST, -1, NULL, NULL);
    return run;
}

bool once_is_dead(void *ctx)
{
    once_asked *a = ctx;

    return once_answered(a->d, a->key, NULL) == DIBS_CRASHED;
}

bool once_answers(void *ctx)
{
    return lossy_answers() >= *(int *)ctx;
}
