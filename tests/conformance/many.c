/* Several locks at once. */
#define _GNU_SOURCE
#include "conformance/suite.h"

#include <string.h>

static void all_are_taken(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *names[3] = {fresh("z"), fresh("a"), fresh("m")};
    dibs_grant *g[3] = {NULL};

    (void)state;
    assert_status(dibs_lock_many(a, names, 3, NULL, g, NULL), DIBS_OK);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(dibs_name(g[i]), names[i]);
        assert_status(try_lock(b, names[i]), DIBS_BUSY);
    }
    for (int i = 0; i < 3; i++)
        assert_status(dibs_unlock(g[i]), DIBS_OK);
}

static void all_or_nothing(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *names[3] = {fresh("a"), fresh("b"), fresh("c")};
    dibs_grant *g[3] = {NULL}, *h = take(b, names[1], NULL);
    int64_t start = clock_ms();

    (void)state;
    assert_status(dibs_lock_many(a, names, 3, &(dibs_lock_options){.wait_ms = 150}, g, NULL),
                  DIBS_BUSY);
    assert_in_range(clock_ms() - start, 149, SOON_MS);
    for (int i = 0; i < 3; i++)
        assert_null(g[i]);
    assert_status(try_lock(b, names[0]), DIBS_OK);
    assert_status(try_lock(b, names[2]), DIBS_OK);
    wait_for_line(b, names[1], 0);
    dibs_unlock(h);
}

static void a_name_given_twice_is_one_grant(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *name = fresh("twice"), *names[3] = {name, fresh("a"), name};
    dibs_grant *g[3] = {NULL};

    (void)state;
    assert_status(dibs_lock_many(a, names, 3, NULL, g, NULL), DIBS_OK);
    assert_ptr_equal(g[0], g[2]);
    assert_status(dibs_unlock(g[0]), DIBS_OK);
    assert_status(try_lock(b, name), DIBS_BUSY);
    assert_status(dibs_unlock(g[2]), DIBS_OK);
    assert_status(try_lock(b, name), DIBS_OK);
    assert_status(dibs_unlock(g[1]), DIBS_OK);
}

static void bad_names_take_nothing(void **state)
{
    dibs *d = open_handle(), *b = open_handle();
    const char *good = fresh("good"), *names[2] = {good, ""};
    dibs_grant *g[2] = {NULL};

    (void)state;
    assert_status(dibs_lock_many(d, names, 2, NULL, g, NULL), DIBS_INVALID);
    assert_status(dibs_lock_many(d, names, 0, NULL, g, NULL), DIBS_INVALID);
    assert_status(try_lock(b, good), DIBS_OK);
}

typedef struct pair {
    dibs *d;
    const char *names[2];
    int rounds;
    int bad;
} pair;

static void *take_pairs(void *arg)
{
    pair *p = arg;

    for (int i = 0; i < p->rounds; i++) {
        dibs_grant *g[2];
        if (dibs_lock_many(p->d, p->names, 2, &(dibs_lock_options){.wait_ms = LONG_MS}, g, NULL) !=
            DIBS_OK) {
            p->bad++;
            continue;
        }
        p->bad += dibs_unlock(g[0]) != DIBS_OK;
        p->bad += dibs_unlock(g[1]) != DIBS_OK;
    }
    return NULL;
}

/* Given as (y, x), they are taken as (x, y): whoever waits for the first has none of the others. */
static void taken_in_sorted_order(void **state)
{
    dibs *a = open_handle(), *b = open_handle();
    const char *x = fresh("x"), *y = fresh("y");
    dibs_grant *g = take(a, x, NULL);
    pair p = {.d = b, .names = {y, x}, .rounds = 1};
    pthread_t t;

    (void)state;
    assert_int_equal(pthread_create(&t, NULL, take_pairs, &p), 0);
    wait_for_line(a, x, 1);
    assert_status(try_lock(a, y), DIBS_OK);
    dibs_unlock(g);
    pthread_join(t, NULL);
    assert_int_equal(p.bad, 0);
}

static void opposite_orders_do_not_deadlock(void **state)
{
    const char *a = fresh("x"), *b = fresh("y");
    pair p[4];
    pthread_t t[4];
    dibs *d = open_handle(), *e = open_handle();

    (void)state;
    for (int i = 0; i < 4; i++) {
        p[i] = (pair){i < 2 ? d : e, {i % 2 ? a : b, i % 2 ? b : a}, 50, 0};
        assert_int_equal(pthread_create(&t[i], NULL, take_pairs, &p[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < 4; i++)
        assert_int_equal(p[i].bad, 0);
}

static const struct CMUnitTest tests[] = {
    CASE(all_are_taken),
    CASE(all_or_nothing),
    CASE(a_name_given_twice_is_one_grant),
    CASE(bad_names_take_nothing),
    CASE(taken_in_sorted_order),
    CASE(opposite_orders_do_not_deadlock),
};
CASES(many_cases, tests);
