#define _GNU_SOURCE
#include "survival.h"

#include "support/calls.h"
#include "support/test.h"

#include <stdio.h>
#include <string.h>

static const dibs_counter_options request = {.request = "a request"};

void survival_write(survival *k, dibs *d, const char *key)
{
    dibs_once *o = NULL;
    dibs_value now = {0};
    int64_t value = 0;

    snprintf(k->key, sizeof k->key, "%s", key);
    assert_status(dibs_once_begin(d, key, NULL, &o, NULL), DIBS_OK);
    assert_status(dibs_once_finish(o, "receipt", 7, 0, NULL), DIBS_OK);
    dibs_once_free(o);
    assert_status(dibs_counter_set(d, key, 10, NULL, NULL), DIBS_OK);
    assert_status(dibs_counter_take(d, key, 3, &request, &value, NULL), DIBS_OK);
    assert_status(dibs_token_issue(d, NULL, k->spent, NULL), DIBS_OK);
    assert_status(dibs_token_issue(d, NULL, k->unspent, NULL), DIBS_OK);
    assert_status(dibs_token_redeem(d, k->spent, NULL, NULL), DIBS_OK);
    assert_status(dibs_cell_swap(d, key, 0, "blue", 4, NULL, &now, NULL), DIBS_OK);
    k->version = now.version;
    dibs_value_free(&now);
}

void survival_check(const survival *k, dibs *d)
{
    dibs_once *o = NULL;
    dibs_value now = {0};
    int64_t value = 0;
    size_t size = 0;

    assert_status(dibs_once_begin(d, k->key, NULL, &o, NULL), DIBS_ALREADY);
    assert_memory_equal(dibs_once_result(o, &size), "receipt", 7);
    assert_int_equal(size, 7);
    dibs_once_free(o);
    assert_status(dibs_counter_take(d, k->key, 3, &request, &value, NULL), DIBS_ALREADY);
    assert_int_equal(value, 7);
    assert_status(dibs_counter_get(d, k->key, &value, NULL), DIBS_OK);
    assert_int_equal(value, 7);
    assert_status(dibs_token_redeem(d, k->spent, NULL, NULL), DIBS_REFUSED);
    assert_status(dibs_token_redeem(d, k->unspent, NULL, NULL), DIBS_OK);
    assert_status(dibs_cell_swap(d, k->key, k->version, "red", 3, NULL, &now, NULL), DIBS_OK);
    assert_true(now.version > k->version);
    dibs_value_free(&now);
}
