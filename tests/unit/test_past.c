/* What dibs serve remembers of what has ended: found by its request and by its id, for a minute, the last 131,072 of them. */
#include "serve/past.h"
#include "support/test.h"

#include <stdlib.h>

enum { MOST = 131072, MINUTE_MS = 60000 };

static void add(serve_past *p, uint64_t key, uint64_t id, int64_t now_ms)
{
    serve_past_add(p, &(serve_ended){.key = key, .digest = key + 1, .id = id, .by = 7}, now_ms);
}

static void it_is_found_by_its_request_and_by_its_id(void **state)
{
    serve_past *p = serve_past_new();
    const serve_ended *found;

    (void)state;
    assert_non_null(p);
    add(p, 5, 1 << 16 | 5, 0); /* the same chain in both tables */
    add(p, 1 << 16 | 5, 5, 0);
    found = serve_past_of_key(p, 5, 1);
    assert_true(found && found->digest == 6 && found->by == 7);
    found = serve_past_of_id(p, 5, 1);
    assert_true(found && found->key == (1 << 16 | 5));
    assert_null(serve_past_of_key(p, 6, 1));
    assert_null(serve_past_of_key(NULL, 5, 1));
    serve_past_add(NULL, found, 1);
    add(p, 5, 9, 2);
    found = serve_past_of_key(p, 5, 3);
    assert_true(found && found->id == 9); /* the newest */
    serve_past_free(p);
}

static void it_is_forgotten_after_a_minute(void **state)
{
    serve_past *p = serve_past_new();

    (void)state;
    add(p, 5, 6, 1000);
    add(p, 7, 0, 2000);
    assert_non_null(serve_past_of_key(p, 5, 1000 + MINUTE_MS - 1));
    assert_null(serve_past_of_key(p, 5, 1000 + MINUTE_MS));
    assert_null(serve_past_of_id(p, 6, 1000 + MINUTE_MS));
    assert_non_null(serve_past_of_key(p, 7, 1000 + MINUTE_MS));
    assert_null(serve_past_of_key(p, 7, 2000 + MINUTE_MS));
    add(p, 8, 9, 3000 + MINUTE_MS);
    assert_non_null(serve_past_of_id(p, 9, 3000 + MINUTE_MS));
    serve_past_free(p);
}

/* Also those without a key, which grants have that another server gave out: they form no chain. */
static void the_oldest_give_way(void **state)
{
    serve_past *p = serve_past_new();
    uint64_t count = 3 * MOST + 100;

    (void)state;
    for (uint64_t i = 1; i <= count; i++)
        add(p, i % 2 ? i : 0, i, 0);
    for (uint64_t i = 1; i <= count; i++) {
        bool there = i > count - MOST;
        assert_true((serve_past_of_id(p, i, 1) != NULL) == there);
        assert_true((serve_past_of_key(p, i, 1) != NULL) == (there && i % 2));
    }
    assert_null(serve_past_of_key(p, 0, 1));
    serve_past_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_found_by_its_request_and_by_its_id),
        cmocka_unit_test(it_is_forgotten_after_a_minute),
        cmocka_unit_test(the_oldest_give_way),
    };

    return cmocka_run_group_tests_name("past", tests, NULL, NULL);
}
