/* The cell's machine over a store of one cell: it fails by order, and shows what was put into it. */
#include "state/cell.h"
#include "support/test.h"

#include <string.h>

#define SEC ((int64_t)1000000)
#define DAY (24 * 3600 * SEC)

static dibs__time now;
static dibs__cell_answer a; /* the last */

static int setup(void **state)
{
    (void)state;
    now = (dibs__time){.lease = 1000 * SEC, .wall = 1700000000 * SEC};
    return 0;
}

typedef struct fake {
    dibs__cell cell; /* what is stored */
    bool there, has_request;
    int calls, fail_at, puts;
    int64_t request_expires;
} fake;

static bool fails(fake *f)
{
    return ++f->calls == f->fail_at;
}

static int fake_load(void *ctx, dibs__cell *out)
{
    fake *f = ctx;

    if (fails(f))
        return -1;
    memset(out, 0xaa, sizeof *out); /* what is not there has no contents */
    if (f->there)
        *out = f->cell;
    return f->there;
}

static int fake_put(void *ctx, const dibs__cell *cell)
{
    fake *f = ctx;

    if (fails(f))
        return -1;
    f->cell = *cell;
    f->there = true;
    f->puts++;
    return 0;
}

static int fake_drop(void *ctx)
{
    fake *f = ctx;

    if (fails(f))
        return -1;
    f->there = false;
    return 0;
}

static int fake_find(void *ctx, const char *request, int64_t when, int64_t *number)
{
    fake *f = ctx;

    (void)request;
    (void)when;
    if (fails(f))
        return -1;
    *number = 77;
    return f->has_request;
}

static int fake_note(void *ctx, const char *request, int64_t number, int64_t expires)
{
    fake *f = ctx;

    (void)request;
    (void)number;
    if (fails(f))
        return -1;
    f->request_expires = expires;
    return 0;
}

static const dibs__cell_store fake_store = {fake_load, fake_put, fake_drop, fake_find, fake_note};

static int apply(fake *f, dibs__cell_command c)
{
    c.stamp = c.stamp ? c.stamp : "s";
    return dibs__cell_apply(&fake_store, f, now, &c, &a);
}

/* Every call of the store fails in turn: -1 each time. `calls` is how many there are. */
static void fail_each(const fake *begin, dibs__cell_command c, int calls)
{
    for (int n = 1; n <= calls + 1; n++) {
        fake f = *begin;
        f.fail_at = n;
        assert_int_equal(apply(&f, c), n <= calls ? -1 : 0);
        assert_int_equal(f.calls, n <= calls ? n : calls);
    }
}

static void a_failing_store_is_reported(void **state)
{
    uint64_t version = (uint64_t)now.wall - 5;
    fake nothing = {0};
    fake value = {.there = true, .cell = {.version = version, .expires = INT64_MAX}};
    fake ahead = {.there = true, .cell = {.version = version + 10, .expires = INT64_MAX}};

    (void)state;
    fail_each(&nothing, (dibs__cell_command){.op = DIBS__CELL_READ}, 1);
    fail_each(&nothing, (dibs__cell_command){.op = DIBS__CELL_SWAP}, 2);
    fail_each(&value, (dibs__cell_command){.op = DIBS__CELL_SWAP, .version = version}, 2);
    fail_each(&value, (dibs__cell_command){.op = DIBS__CELL_DELETE, .version = version}, 2);
    fail_each(&ahead, (dibs__cell_command){.op = DIBS__CELL_DELETE, .version = version + 10}, 2);
    fail_each(&nothing, (dibs__cell_command){.op = DIBS__CELL_PASS, .fence = 3}, 2);
    fail_each(&value, (dibs__cell_command){.op = DIBS__CELL_PASS, .fence = 3}, 2);
    fail_each(&nothing, (dibs__cell_command){.op = DIBS__CELL_ADD, .number = 1}, 2);
    fail_each(&nothing, (dibs__cell_command){.op = DIBS__CELL_ADD, .number = 1, .request = "r"}, 4);
}

/* What is absent has no version, no number and no data, whatever was there. */
static void what_is_absent_is_blank(void **state)
{
    fake f = {
        .there = true,
        .cell = {
            .version = 9, .expires = now.lease, .number = 5, .data = "x", .size = 1, .floor = 3}};

    (void)state;
    assert_int_equal(apply(&f, (dibs__cell_command){.op = DIBS__CELL_READ}), 0);
    assert_int_equal(a.verdict, DIBS__CELL_ABSENT);
    assert_true(a.cell.version == 0 && a.cell.number == 0 && !a.cell.data && a.cell.size == 0);
    assert_int_equal(a.cell.floor, 3);
}

/* A stamp that just does not fit is cut, and ends. */
static void a_long_stamp_is_cut(void **state)
{
    char stamp[DIBS__STAMP_SIZE + 1] = "";
    fake f = {0};

    (void)state;
    memset(stamp, 's', DIBS__STAMP_SIZE);
    assert_int_equal(apply(&f, (dibs__cell_command){.op = DIBS__CELL_SWAP, .stamp = stamp}), 0);
    assert_int_equal(strnlen(f.cell.stamp, sizeof f.cell.stamp), DIBS__STAMP_SIZE - 1);
}

/* It bears no stamp of nobody's: the second of two commands without one is another command. */
static void no_stamp_is_nobodys_stamp(void **state)
{
    fake f = {.there = true, .cell = {.version = 9, .expires = INT64_MAX}};

    (void)state;
    assert_int_equal(
        apply(&f, (dibs__cell_command){.op = DIBS__CELL_SWAP, .version = 8, .stamp = ""}), 0);
    assert_int_equal(a.verdict, DIBS__CELL_CONFLICT);
    strcpy(f.cell.stamp, "s");
    f.cell.expires = now.lease; /* what has ended was another value's, and is of no kind */
    f.cell.counter = true;
    assert_int_equal(apply(&f, (dibs__cell_command){.op = DIBS__CELL_SWAP}), 0);
    assert_int_equal(a.verdict, DIBS__CELL_DONE);
    assert_int_equal(f.puts, 1);
}

/* A fence as high as the floor is let in, also with a floor of its own and none; a floor alone is nothing. */
static void an_equal_fence_passes(void **state)
{
    fake f = {.there = true, .cell = {.version = 9, .expires = INT64_MAX, .floor = 3}};

    (void)state;
    assert_int_equal(apply(&f, (dibs__cell_command){.op = DIBS__CELL_PASS, .fence = 3}), 0);
    assert_int_equal(a.verdict, DIBS__CELL_DONE);
    assert_int_equal(dibs__cell_floor(&(dibs__cell_command){.floor = 7}), 0);
    assert_int_equal(dibs__cell_floor(&(dibs__cell_command){.fence = 9, .floor = 7}), 7);
    assert_int_equal(dibs__cell_floor(&(dibs__cell_command){.fence = 9}), 9);
}

static void what_is_put_is_whole(void **state)
{
    fake f = {.there = true, .cell = {.version = 9, .expires = INT64_MAX, .number = 5, .size = 4}};
    const char *long_stamp = "0123456789012345678901234567890123456789012345";

    (void)state;
    assert_int_equal(apply(&f, (dibs__cell_command){.op = DIBS__CELL_PASS, .fence = 3}), 0);
    assert_int_equal(f.cell.written, now.lease);
    assert_int_equal(f.cell.size, 4); /* and nothing else */
    assert_int_equal(apply(&f, (dibs__cell_command){.op = DIBS__CELL_PASS, .fence = 3}), 0);
    assert_int_equal(f.puts, 1); /* it is as high already */
    assert_int_equal(apply(&f, (dibs__cell_command){.op = DIBS__CELL_SWAP,
                                                    .version = 9,
                                                    .data = "x",
                                                    .size = 1,
                                                    .stamp = long_stamp}),
                     0);
    assert_int_equal(strlen(f.cell.stamp), DIBS__STAMP_SIZE - 1);
    assert_memory_equal(f.cell.stamp, long_stamp, DIBS__STAMP_SIZE - 1);
    assert_int_equal(f.cell.number, 0);
    assert_int_equal(f.cell.size, 1);
    assert_false(f.cell.empty);
    f.cell.version = (uint64_t)now.wall; /* not behind the clock: kept, and empty */
    assert_int_equal(
        apply(&f, (dibs__cell_command){.op = DIBS__CELL_DELETE, .version = f.cell.version}), 0);
    assert_true(f.there && f.cell.empty && !f.cell.data && f.cell.size == 0);
    assert_int_equal(f.cell.expires, INT64_MAX);
    assert_int_equal(apply(&f, (dibs__cell_command){.op = DIBS__CELL_DELETE, .version = 1}), 0);
    assert_int_equal(a.verdict, DIBS__CELL_DONE); /* the same stamp: a lost reply */
    assert_int_equal(apply(&f, (dibs__cell_command){.op = DIBS__CELL_DELETE, .stamp = "t"}), 0);
    assert_int_equal(a.verdict, DIBS__CELL_ABSENT);
    now.wall = -5; /* a clock before its time */
    f = (fake){0};
    assert_int_equal(apply(&f, (dibs__cell_command){.op = DIBS__CELL_SWAP}), 0);
    assert_int_equal(f.cell.version, 1);
}

static void a_counter_keeps_its_end(void **state)
{
    fake f = {0};
    int64_t end = now.lease + 10 * SEC;

    (void)state;
    apply(&f,
          (dibs__cell_command){.op = DIBS__CELL_ADD, .number = 2, .keep = 10 * SEC, .stamp = "1"});
    assert_int_equal(f.cell.expires, end);
    assert_true(f.cell.counter && !f.cell.data && f.cell.size == 0 && !f.cell.empty);
    now.lease += SEC;
    apply(&f, (dibs__cell_command){.op = DIBS__CELL_ADD, .number = 2, .stamp = "2"});
    assert_int_equal(f.cell.expires, end); /* 0 leaves it */
    apply(&f, (dibs__cell_command){.op = DIBS__CELL_ADD,
                                   .number = 2,
                                   .keep = SEC,
                                   .stamp = "3",
                                   .request = "r",
                                   .request_keep = 7});
    assert_int_equal(f.cell.expires, now.lease + SEC);
    assert_int_equal(f.request_expires, now.lease + 7);
    assert_int_equal(f.cell.number, 6);
    apply(&f, (dibs__cell_command){.op = DIBS__CELL_ADD, .number = 2, .keep = SEC, .stamp = "3"});
    assert_int_equal(f.cell.number, 6); /* asked again */
    now.lease += SEC;
    apply(&f, (dibs__cell_command){.op = DIBS__CELL_ADD, .number = 2, .stamp = "3"});
    assert_int_equal(f.cell.number, 2); /* from nothing: it has ended, whatever its stamp */
    assert_int_equal(f.cell.expires, INT64_MAX);
    f.has_request = true;
    apply(&f,
          (dibs__cell_command){.op = DIBS__CELL_ADD, .number = 2, .stamp = "3", .request = "r"});
    assert_int_equal(a.verdict, DIBS__CELL_DONE);
    assert_int_equal(a.cell.number, 77);
    apply(&f,
          (dibs__cell_command){.op = DIBS__CELL_ADD, .number = 2, .stamp = "4", .request = "r"});
    assert_int_equal(a.verdict, DIBS__CELL_ALREADY);
}

static void a_cell_is_forgotten_at_the_right_moment(void **state)
{
    int64_t lease = now.lease = 3 * DAY;
    uint64_t wall = (uint64_t)now.wall;
    const struct {
        dibs__cell cell;
        bool may;
    } of[] = {
        {{.version = wall - 1, .expires = lease}, true},
        {{.version = wall - 1, .expires = lease + 1}, false},
        {{.version = wall - 1, .expires = lease + 1, .empty = true}, true},
        {{.version = wall, .expires = lease}, false},
        {{.version = wall + 7, .counted = wall + 7, .expires = lease}, true},
        {{.version = wall + 8, .counted = wall + 7, .expires = lease}, false},
        {{.empty = true, .floor = wall - (uint64_t)DAY - 1, .written = lease - DAY - 1}, true},
        {{.empty = true, .floor = wall - (uint64_t)DAY, .written = lease - DAY - 1}, false},
        {{.empty = true, .floor = wall - (uint64_t)DAY - 1, .written = lease - DAY}, false},
        {{.empty = true, .floor = 1, .written = lease}, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
        if (dibs__cell_may_drop(&of[i].cell, now) != of[i].may)
            fail_msg("case %zu: not %d", i, of[i].may);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_failing_store_is_reported, setup),
        cmocka_unit_test_setup(what_is_absent_is_blank, setup),
        cmocka_unit_test_setup(a_long_stamp_is_cut, setup),
        cmocka_unit_test_setup(no_stamp_is_nobodys_stamp, setup),
        cmocka_unit_test_setup(an_equal_fence_passes, setup),
        cmocka_unit_test_setup(what_is_put_is_whole, setup),
        cmocka_unit_test_setup(a_counter_keeps_its_end, setup),
        cmocka_unit_test_setup(a_cell_is_forgotten_at_the_right_moment, setup),
    };

    return cmocka_run_group_tests_name("cell store", tests, NULL, NULL);
}
