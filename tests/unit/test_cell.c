/* The cell's machine over the memory store, in simulated time. */
#include "engines/memory/cells.h"
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#define SEC ((int64_t)1000000)
#define DAY (24 * 3600 * SEC)

static dibs__cells *cells;
static dibs__time now;
static dibs__cell_answer a; /* the last */
static int stamps;
static char stamp[DIBS__STAMP_SIZE];

static int setup(void **state)
{
    (void)state;
    cells = dibs__cells_new();
    now = (dibs__time){.lease = 1000 * SEC, .wall = 1700000000 * SEC};
    stamps = 0;
    return cells ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    dibs__cells_free(cells);
    return 0;
}

static void pass_time(int64_t us)
{
    now.lease += us;
    now.wall += us;
}

/* ---- Sentences ------------------------------------------------------------------------------- */

static dibs__cell_verdict run(dibs__cell_command c)
{
    if (!c.stamp) {
        snprintf(stamp, sizeof stamp, "stamp %d", ++stamps);
        c.stamp = stamp;
    }
    assert_int_equal(dibs__cells_run(cells, "c:x", now, &c, &a), 0);
    return a.verdict;
}

static dibs__cell_verdict swap(uint64_t version, const char *text)
{
    return run((dibs__cell_command){
        .op = DIBS__CELL_SWAP, .version = version, .data = text, .size = strlen(text)});
}

static dibs__cell_verdict swap_fenced(uint64_t version, const char *text, uint64_t fence)
{
    return run((dibs__cell_command){.op = DIBS__CELL_SWAP,
                                    .version = version,
                                    .data = text,
                                    .size = strlen(text),
                                    .fence = fence});
}

static dibs__cell_verdict swap_for(uint64_t version, const char *text, int64_t keep)
{
    return run((dibs__cell_command){.op = DIBS__CELL_SWAP,
                                    .version = version,
                                    .data = text,
                                    .size = strlen(text),
                                    .keep = keep});
}

static dibs__cell_verdict look(void)
{
    return run((dibs__cell_command){.op = DIBS__CELL_READ});
}

static dibs__cell_verdict erase(uint64_t version, uint64_t fence)
{
    return run((dibs__cell_command){.op = DIBS__CELL_DELETE, .version = version, .fence = fence});
}

static dibs__cell_verdict present(uint64_t fence, uint64_t floor)
{
    return run((dibs__cell_command){.op = DIBS__CELL_PASS, .fence = fence, .floor = floor});
}

static dibs__cell_verdict count(dibs__cell_op op, int64_t n, const char *request)
{
    return run(
        (dibs__cell_command){.op = op, .number = n, .request = request, .request_keep = 10 * SEC});
}

static void assert_value(const char *text)
{
    assert_int_equal(look(), DIBS__CELL_DONE);
    assert_int_equal(a.cell.size, strlen(text));
    assert_memory_equal(a.cell.data, text, strlen(text));
}

/* ---- Versions -------------------------------------------------------------------------------- */

static void versions_follow_the_clock_and_never_stand(void **state)
{
    uint64_t last;

    (void)state;
    assert_int_equal(swap(0, "a"), DIBS__CELL_DONE);
    assert_int_equal(a.cell.version, now.wall);
    last = a.cell.version;
    assert_int_equal(swap(last, "b"), DIBS__CELL_DONE); /* in the same microsecond */
    assert_int_equal(a.cell.version, last + 1);
    now.wall -= 100 * SEC; /* the clock goes back */
    assert_int_equal(swap(last + 1, "c"), DIBS__CELL_DONE);
    assert_int_equal(a.cell.version, last + 2);
    assert_int_equal(erase(last + 2, 0), DIBS__CELL_DONE); /* kept: the clock is behind it */
    assert_int_equal(look(), DIBS__CELL_ABSENT);
    assert_int_equal(dibs__cells_count(cells), 1);
    assert_int_equal(swap(0, "d"), DIBS__CELL_DONE);
    assert_true(a.cell.version > last + 2);
}

static void a_deletion_leaves_nothing_behind(void **state)
{
    (void)state;
    swap(0, "a");
    pass_time(1);
    assert_int_equal(erase(DIBS__CELL_ANY, 0), DIBS__CELL_DONE);
    assert_int_equal(dibs__cells_count(cells), 0);
    assert_int_equal(erase(DIBS__CELL_ANY, 0), DIBS__CELL_ABSENT);
}

static void only_the_named_version_is_replaced(void **state)
{
    uint64_t version;

    (void)state;
    assert_int_equal(swap(DIBS__CELL_ANY, "a"), DIBS__CELL_ABSENT);
    assert_int_equal(swap(5, "a"), DIBS__CELL_ABSENT);
    assert_int_equal(swap(0, "a"), DIBS__CELL_DONE);
    version = a.cell.version;
    assert_int_equal(swap(0, "b"), DIBS__CELL_CONFLICT);
    assert_int_equal(a.cell.version, version);
    assert_memory_equal(a.cell.data, "a", 1);
    assert_int_equal(swap(version + 1, "b"), DIBS__CELL_CONFLICT);
    assert_int_equal(erase(0, 0), DIBS__CELL_CONFLICT);
    assert_int_equal(swap(DIBS__CELL_ANY, "b"), DIBS__CELL_DONE);
    assert_value("b");
}

static void the_same_stamp_changes_nothing(void **state)
{
    dibs__cell_command c = {
        .op = DIBS__CELL_SWAP, .data = "a", .size = 1, .stamp = "the one", .keep = 10 * SEC};
    uint64_t version;

    (void)state;
    assert_int_equal(run(c), DIBS__CELL_DONE);
    version = a.cell.version;
    pass_time(SEC);
    assert_int_equal(run(c), DIBS__CELL_DONE);
    assert_int_equal(a.cell.version, version);
    assert_int_equal(a.cell.written, now.lease - SEC);
    swap(version, "b"); /* overtaken: nobody can tell any more */
    assert_int_equal(run(c), DIBS__CELL_CONFLICT);
}

/* ---- Ends ------------------------------------------------------------------------------------ */

static void what_has_ended_is_not_there(void **state)
{
    uint64_t version;

    (void)state;
    assert_int_equal(swap_for(0, "a", 10 * SEC), DIBS__CELL_DONE);
    assert_int_equal(a.cell.expires, now.lease + 10 * SEC);
    version = a.cell.version;
    pass_time(10 * SEC - 1);
    assert_value("a");
    pass_time(1);
    assert_int_equal(look(), DIBS__CELL_ABSENT);
    assert_int_equal(a.cell.version, 0);
    assert_int_equal(swap(version, "b"), DIBS__CELL_ABSENT);
    assert_int_equal(swap_for(0, "b", INT64_MAX), DIBS__CELL_DONE);
    assert_int_equal(a.cell.expires, INT64_MAX);
    assert_true(a.cell.version > version);
}

static void what_has_ended_is_swept_by_and_by(void **state)
{
    char key[32];
    dibs__cell_command c = {
        .op = DIBS__CELL_SWAP, .data = "x", .size = 1, .keep = SEC, .stamp = "s"};

    (void)state;
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "c:%d", i);
        assert_int_equal(dibs__cells_run(cells, key, now, &c, &a), 0);
    }
    count(DIBS__CELL_ADD, 1, "request");
    assert_int_equal(dibs__cells_count(cells), 102);
    pass_time(20 * SEC);
    for (int i = 0; i < 300; i++)
        look();
    assert_int_equal(dibs__cells_count(cells), 1); /* the counter, which does not end */
}

/* ---- Fences ---------------------------------------------------------------------------------- */

static void a_floor_only_rises(void **state)
{
    (void)state;
    assert_int_equal(present(10, 10), DIBS__CELL_ABSENT);
    assert_int_equal(present(9, 9), DIBS__CELL_FENCED);
    assert_int_equal(present(20, 8), DIBS__CELL_ABSENT); /* shares with an older one */
    assert_int_equal(a.cell.floor, 10);
    assert_int_equal(swap_fenced(0, "a", 9), DIBS__CELL_FENCED);
    assert_int_equal(swap_fenced(0, "a", 10), DIBS__CELL_DONE);
    assert_int_equal(present(30, 30), DIBS__CELL_DONE);
    assert_memory_equal(a.cell.data, "a", 1);
    assert_int_equal(erase(DIBS__CELL_ANY, 29), DIBS__CELL_FENCED);
    assert_int_equal(swap_fenced(DIBS__CELL_ANY, "b", 29), DIBS__CELL_FENCED);
    assert_int_equal(swap(DIBS__CELL_ANY, "c"), DIBS__CELL_DONE); /* not guarded */
    assert_int_equal(a.cell.floor, 30);
}

static void a_fenced_write_raises_the_floor(void **state)
{
    (void)state;
    assert_int_equal(swap_fenced(0, "a", 10), DIBS__CELL_DONE);
    assert_int_equal(a.cell.floor, 10);
    assert_int_equal(swap_fenced(DIBS__CELL_ANY, "b", 9), DIBS__CELL_FENCED);
    assert_int_equal(swap_fenced(1, "b", 20), DIBS__CELL_CONFLICT);
    assert_int_equal(a.cell.floor, 10); /* nothing was written */
    assert_int_equal(erase(DIBS__CELL_ANY, 20), DIBS__CELL_DONE);
    assert_int_equal(swap_fenced(0, "c", 19), DIBS__CELL_FENCED);
    assert_int_equal(run((dibs__cell_command){.op = DIBS__CELL_SWAP,
                                              .data = "d",
                                              .size = 1,
                                              .fence = 40,
                                              .floor = 30}), /* shares with an older one */
                     DIBS__CELL_DONE);
    assert_int_equal(a.cell.floor, 30);
    assert_int_equal(swap_fenced(DIBS__CELL_ANY, "e", 30), DIBS__CELL_DONE);
    assert_int_equal(swap_fenced(DIBS__CELL_ANY, "e", 29), DIBS__CELL_FENCED);
}

static void presenting_a_fence_changes_no_version(void **state)
{
    uint64_t version;

    (void)state;
    swap(0, "a");
    version = a.cell.version;
    present(5, 5);
    assert_int_equal(a.cell.version, version);
    assert_int_equal(swap(version, "b"), DIBS__CELL_DONE);
}

static void a_floor_outlives_its_value_by_a_day(void **state)
{
    uint64_t fence = (uint64_t)now.wall;

    (void)state;
    present(fence, fence);
    assert_int_equal(swap_for(0, "a", SEC), DIBS__CELL_DONE);
    pass_time(2 * SEC);
    assert_int_equal(look(), DIBS__CELL_ABSENT);
    assert_int_equal(swap_fenced(0, "b", fence - 1), DIBS__CELL_FENCED);
    swap(0, "b");
    assert_int_equal(erase(DIBS__CELL_ANY, 0), DIBS__CELL_DONE);
    assert_int_equal(present(fence - 1, fence - 1), DIBS__CELL_FENCED);
    pass_time(DAY - SEC);
    for (int i = 0; i < 100; i++)
        look();
    assert_int_equal(present(fence - 1, fence - 1), DIBS__CELL_FENCED);
    pass_time(4 * SEC);
    for (int i = 0; i < 100; i++)
        look();
    assert_int_equal(dibs__cells_count(cells), 0);
}

/* ---- Counters -------------------------------------------------------------------------------- */

static void a_counter_has_a_floor_of_zero(void **state)
{
    (void)state;
    assert_int_equal(count(DIBS__CELL_TAKE, 1, NULL), DIBS__CELL_ABSENT);
    assert_int_equal(count(DIBS__CELL_ADD, -1, NULL), DIBS__CELL_TOO_FEW);
    assert_int_equal(dibs__cells_count(cells), 0);
    assert_int_equal(count(DIBS__CELL_ADD, 3, NULL), DIBS__CELL_DONE);
    assert_int_equal(count(DIBS__CELL_TAKE, 4, NULL), DIBS__CELL_TOO_FEW);
    assert_int_equal(a.cell.number, 3);
    assert_int_equal(count(DIBS__CELL_TAKE, 3, NULL), DIBS__CELL_DONE);
    assert_int_equal(a.cell.number, 0);
    assert_int_equal(count(DIBS__CELL_SET, INT64_MAX - 1, NULL), DIBS__CELL_DONE);
    assert_int_equal(count(DIBS__CELL_ADD, 1, NULL), DIBS__CELL_DONE);
    assert_int_equal(count(DIBS__CELL_ADD, 1, NULL), DIBS__CELL_OVERFLOW);
    assert_int_equal(count(DIBS__CELL_ADD, INT64_MIN, NULL), DIBS__CELL_TOO_FEW);
    assert_int_equal(count(DIBS__CELL_TAKE, INT64_MAX, NULL), DIBS__CELL_DONE);
    assert_int_equal(a.cell.number, 0);
}

static void a_request_is_answered_once(void **state)
{
    (void)state;
    count(DIBS__CELL_SET, 5, NULL);
    assert_int_equal(count(DIBS__CELL_TAKE, 2, "r"), DIBS__CELL_DONE);
    count(DIBS__CELL_TAKE, 1, NULL);
    assert_int_equal(count(DIBS__CELL_TAKE, 2, "r"), DIBS__CELL_ALREADY);
    assert_int_equal(a.cell.number, 3);
    assert_int_equal(count(DIBS__CELL_TAKE, 3, "s"), DIBS__CELL_TOO_FEW);
    count(DIBS__CELL_ADD, 1, NULL);
    assert_int_equal(count(DIBS__CELL_TAKE, 3, "s"), DIBS__CELL_DONE);
    pass_time(10 * SEC);
    count(DIBS__CELL_ADD, 2, NULL);
    assert_int_equal(count(DIBS__CELL_TAKE, 2, "r"), DIBS__CELL_DONE); /* forgotten */
}

/* A lost reply is asked for again under the same stamp: DONE for the call that counted, as long as the
 * counter bears its stamp. */
static void a_request_is_done_for_one_call(void **state)
{
    dibs__cell_command c = {.op = DIBS__CELL_ADD, .number = 2, .request = "r", .stamp = "mine"};

    (void)state;
    c.request_keep = 10 * SEC;
    assert_int_equal(run(c), DIBS__CELL_DONE);
    assert_int_equal(run(c), DIBS__CELL_DONE);
    assert_int_equal(a.cell.number, 2);
    c.stamp = "another's";
    assert_int_equal(run(c), DIBS__CELL_ALREADY);
    c.stamp = "mine";
    assert_int_equal(run(c), DIBS__CELL_DONE);
    count(DIBS__CELL_ADD, 5, NULL);
    assert_int_equal(run(c), DIBS__CELL_ALREADY);
    assert_int_equal(a.cell.number, 2); /* what it was told */
}

static void a_counter_is_no_cell(void **state)
{
    (void)state;
    count(DIBS__CELL_SET, 5, NULL);
    assert_int_equal(swap(DIBS__CELL_ANY, "a"), DIBS__CELL_KIND);
    assert_int_equal(erase(DIBS__CELL_ANY, 0), DIBS__CELL_KIND);
    assert_int_equal(present(1, 1), DIBS__CELL_KIND);
    assert_int_equal(look(), DIBS__CELL_DONE);
    assert_int_equal(a.cell.number, 5);
}

static void data_belongs_to_some_answers(void **state)
{
    (void)state;
    assert_true(dibs__cell_shows_data(DIBS__CELL_READ, DIBS__CELL_DONE));
    assert_true(dibs__cell_shows_data(DIBS__CELL_PASS, DIBS__CELL_DONE));
    assert_true(dibs__cell_shows_data(DIBS__CELL_SWAP, DIBS__CELL_CONFLICT));
    assert_false(dibs__cell_shows_data(DIBS__CELL_SWAP, DIBS__CELL_DONE));
    assert_false(dibs__cell_shows_data(DIBS__CELL_READ, DIBS__CELL_ABSENT));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(versions_follow_the_clock_and_never_stand),
        TEST(a_deletion_leaves_nothing_behind),
        TEST(only_the_named_version_is_replaced),
        TEST(the_same_stamp_changes_nothing),
        TEST(what_has_ended_is_not_there),
        TEST(what_has_ended_is_swept_by_and_by),
        TEST(a_floor_only_rises),
        TEST(a_fenced_write_raises_the_floor),
        TEST(presenting_a_fence_changes_no_version),
        TEST(a_floor_outlives_its_value_by_a_day),
        TEST(a_counter_has_a_floor_of_zero),
        TEST(a_request_is_answered_once),
        TEST(a_request_is_done_for_one_call),
        TEST(a_counter_is_no_cell),
        TEST(data_belongs_to_some_answers),
    };

    return cmocka_run_group_tests_name("cell", tests, NULL, NULL);
}
