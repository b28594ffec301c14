/* The fence where no engine checks it: its text, the pure check, and the guarded file. */
#define _GNU_SOURCE
#include "support/calls.h"
#include "support/clock.h"
#include "support/scratch.h"
#include "support/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static dibs_error err;

/* ---- Text and check --------------------------------------------------------------------------- */

static void expect(const char *kept, const char *shown, dibs_status want, const char *next)
{
    char out[DIBS_FENCE_SIZE] = "?";
    dibs_status got = dibs_fence_check(kept, shown, out, &err);

    if (got != want || strcmp(out, next) != 0)
        fail_msg("kept '%s', shown '%s': %s, store '%s': %s", kept ? kept : "NULL",
                 shown ? shown : "NULL", dibs_status_name(got), out, err.message);
}

static void a_resource_lets_newer_ones_in(void **state)
{
    (void)state;
    expect(NULL, "5", DIBS_OK, "5");
    expect("", "5", DIBS_OK, "5");
    expect("5", "5", DIBS_OK, "5"); /* the same holder again */
    expect("5", "6", DIBS_OK, "6");
    expect("00000000000000000005\n", "6", DIBS_OK, "6"); /* as a file or a padded column has it */
    expect("7", "6", DIBS_FENCED, "");
    assert_int_equal(err.fence, 7);
    assert_int_equal(err.next, DIBS_NEXT_RESTART);
    expect(NULL, "9223372036854775807", DIBS_OK, "9223372036854775807");
    expect(NULL, "00000000000000000006", DIBS_OK, "6");
    expect(" \t", "6", DIBS_OK, "6"); /* blanks are nothing yet */
    expect(" \n5 \n", "6", DIBS_OK, "6");
    expect(" \n5 \n", "4", DIBS_FENCED, "");
    expect("1", "1", DIBS_OK, "1");
}

/* Of several holders, each has its own fence: the lowest of them stays in. */
static void several_holders_share_a_floor(void **state)
{
    (void)state;
    expect("3", "9/5", DIBS_OK, "5");
    expect("5", "5/5", DIBS_OK, "5");
    expect("5", "4/4", DIBS_FENCED, "");
    expect("7", "9/5", DIBS_OK, "7"); /* never lower */
}

static void what_is_no_fence_is_refused(void **state)
{
    static const char *const wrong[] = {"",
                                        "0",
                                        "-5",
                                        "5 ",
                                        " 5",
                                        "5/6",
                                        "5/",
                                        "/5",
                                        "5/0",
                                        "9223372036854775808",
                                        "0x10",
                                        "five",
                                        "5.0",
                                        "5/4/3",
                                        "99999999999999999999999",
                                        "000000000000000000005"};

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        expect("1", wrong[i], DIBS_INVALID, "");
    expect("1", NULL, DIBS_INVALID, "");
    assert_non_null(strstr(err.message, "'' is not a fence"));
    expect("1", "five", DIBS_INVALID, "");
    assert_non_null(strstr(err.message, "'five' is not a fence"));
    for (size_t i = 5; i < sizeof wrong / sizeof wrong[0]; i++)
        expect(wrong[i], "5", DIBS_INVALID, "");
}

static void a_grant_has_a_text(void **state)
{
    dibs *d = expect_open("memory:fence", NULL);
    dibs_lock_options shared = {.shared = true, .not_reentrant = true};
    dibs_grant *one = expect_lock(d, "a", &shared), *two = expect_lock(d, "a", &shared);
    char text[DIBS_FENCE_SIZE], want[DIBS_FENCE_SIZE];

    (void)state;
    assert_ptr_not_equal(one, two);
    dibs_fence_text(one, text);
    snprintf(want, sizeof want, "%llu", (unsigned long long)dibs_grant_fence(one));
    assert_string_equal(text, want);
    dibs_fence_text(two, text);
    snprintf(want, sizeof want, "%llu/%llu", (unsigned long long)dibs_grant_fence(two),
             (unsigned long long)dibs_grant_fence(one));
    assert_string_equal(text, want);
    assert_status(unlock(one), DIBS_OK);
    assert_status(unlock(two), DIBS_OK);
    dibs_close(d);
}

/* ---- Owners of their own ---------------------------------------------------------------------- */

static void what_is_not_reentrant_waits(void **state)
{
    dibs *d = expect_open("memory:own", &(dibs_options){.owner = "me"});
    dibs_lock_options own = {.not_reentrant = true, .wait_ms = DIBS_NO_WAIT};
    dibs_grant *g = expect_lock(d, "a", &own), *again = NULL;

    (void)state;
    assert_status(dibs_lock(d, "a", &own, &again, &err), DIBS_BUSY);
    assert_status(unlock(g), DIBS_OK);
    own.owner = "me";
    assert_status(dibs_lock(d, "a", &own, &again, &err), DIBS_INVALID);
    dibs_close(d);
}

/* ---- A cell under a grant --------------------------------------------------------------------- */

static void a_grant_guards_a_cell(void **state)
{
    dibs *d = expect_open("memory:cell", NULL);
    dibs_grant *old = expect_lock(d, "a", NULL), *fresh;
    dibs_cell_options by_old = {.grant = &old}, by_fresh, both = {.grant = &old, .fence = 1};
    uint64_t fence = dibs_grant_fence(old);
    dibs_value v;

    (void)state;
    assert_status(dibs_cell_pass(d, "c", NULL, &v, &err), DIBS_INVALID); /* forgotten */
    assert_status(dibs_cell_pass(d, "c", &both, &v, &err), DIBS_INVALID);
    assert_status(dibs_cell_pass(d, "c", &by_old, &v, &err), DIBS_OK);
    assert_status(dibs_lock_break(d, "a", &(dibs_lock_break_options){.now = true}, &err), DIBS_OK);
    fresh = expect_lock(d, "b", NULL); /* any newer fence */
    by_fresh = (dibs_cell_options){.fence = fence + 1000000};
    assert_status(dibs_cell_swap(d, "c", 0, "new", 3, &by_fresh, NULL, &err), DIBS_OK);
    assert_status(dibs_renew(old, &err), DIBS_LOST);
    assert_status(dibs_cell_swap(d, "c", DIBS_ANY_VERSION, "old", 3, &by_old, NULL, &err),
                  DIBS_LOST);
    assert_status(
        dibs_cell_delete(d, "c", DIBS_ANY_VERSION, &(dibs_cell_options){.fence = fence}, &err),
        DIBS_FENCED);
    assert_int_equal(err.fence, fence + 1000000);
    assert_status(unlock(fresh), DIBS_OK);
    dibs_close(d);
}

/* ---- The file --------------------------------------------------------------------------------- */

static scratch place;
static char path[SCRATCH_MAX];

static int make_place(void **state)
{
    (void)state;
    if (scratch_make(&place) != 0)
        return -1;
    scratch_file(&place, "books", path, sizeof path);
    return 0;
}

static int remove_place(void **state)
{
    (void)state;
    scratch_remove(&place);
    return 0;
}

static void an_old_holder_does_not_get_the_file(void **state)
{
    int fd = -1, late = 7;

    (void)state;
    assert_status(dibs_fence_file(path, "10", DIBS_NO_WAIT, &fd, &err), DIBS_OK);
    assert_int_equal(write(fd, "ten", 3), 3);
    close(fd);
    assert_status(dibs_fence_file(path, "10", DIBS_NO_WAIT, &fd, &err), DIBS_OK); /* again */
    close(fd);
    assert_status(dibs_fence_file(path, "12", DIBS_NO_WAIT, &fd, &err), DIBS_OK);
    close(fd);
    assert_status(dibs_fence_file(path, "11", DIBS_NO_WAIT, &late, &err), DIBS_FENCED);
    assert_int_equal(late, -1);
    assert_int_equal(err.fence, 12);
}

/* Who may read the file may read its fence, and nobody else. */
static void the_fence_has_the_rights_of_the_file(void **state)
{
    char beside[SCRATCH_MAX + 8];
    mode_t mask = umask(0);
    struct stat st;
    int fd = -1;

    (void)state;
    assert_status(dibs_fence_file(path, "13", DIBS_NO_WAIT, &fd, &err), DIBS_OK);
    assert_int_equal(fchmod(fd, 0642), 0);
    close(fd);
    assert_status(dibs_fence_file(path, "14", DIBS_NO_WAIT, &fd, &err), DIBS_OK);
    close(fd);
    umask(mask);
    snprintf(beside, sizeof beside, "%s.fence", path);
    assert_int_equal(stat(beside, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0642);
}

static void one_at_a_time_has_the_file(void **state)
{
    int fd = -1, other = -1;
    int64_t start = clock_ms();
    pid_t child;

    (void)state;
    assert_status(dibs_fence_file(path, "20", 0, &fd, &err), DIBS_OK);
    assert_status(dibs_fence_file(path, "21", DIBS_NO_WAIT, &other, &err), DIBS_BUSY);
    assert_status(dibs_fence_file(path, "21", 60, &other, &err), DIBS_BUSY);
    assert_true(clock_ms() - start >= 40);
    child = fork();
    if (child == 0)
        _exit(close(fd) == 0 && dibs_fence_file(path, "22", 20000, &other, &err) == DIBS_OK ? 0
                                                                                            : 1);
    sleep_ms(50);
    close(fd);
    assert_int_equal(waitpid(child, &fd, 0), child);
    assert_int_equal(fd, 0);
    assert_status(dibs_fence_file(path, "21", DIBS_FOREVER, &other, &err), DIBS_FENCED);
}

static void bad_files_are_named(void **state)
{
    char beside[SCRATCH_MAX + 8];
    int fd = 3;
    FILE *f;

    (void)state;
    assert_status(dibs_fence_file("/no/such/folder/books", "1", 0, &fd, &err), DIBS_INVALID);
    assert_string_equal(err.engine_code, "ENOENT");
    assert_int_equal(fd, -1);
    assert_status(dibs_fence_file(NULL, "1", 0, &fd, &err), DIBS_INVALID);
    assert_status(dibs_fence_file(place.path, "1", 0, &fd, &err), DIBS_INVALID); /* a folder */
    assert_status(dibs_fence_file(path, "one", 0, &fd, &err), DIBS_INVALID);
    assert_status(dibs_fence_file(path, "1", -5, &fd, &err), DIBS_INVALID);
    snprintf(beside, sizeof beside, "%s.fence", path);
    f = fopen(beside, "w");
    assert_non_null(f);
    fputs("somebody wrote other things here\n", f);
    fclose(f);
    assert_status(dibs_fence_file(path, "99", 0, &fd, &err), DIBS_INVALID); /* not decided */
    assert_non_null(strstr(err.message, "nothing can be decided"));
}

static void write_beside(const char *text, size_t size)
{
    char beside[SCRATCH_MAX + 8];
    FILE *f;

    snprintf(beside, sizeof beside, "%s.fence", path);
    f = fopen(beside, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, size, f), size);
    fclose(f);
}

/* The first bytes of a number are a lower number, or none. */
static void a_file_that_was_cut_off_lets_nobody_in(void **state)
{
    static const char whole[] = "00000000000000012345\n";
    int fd;

    (void)state;
    for (size_t n = 0; n < sizeof whole - 1; n++) {
        write_beside(whole, n);
        fd = 3;
        assert_status(dibs_fence_file(path, "12344", DIBS_NO_WAIT, &fd, &err), DIBS_INVALID);
        assert_int_equal(fd, -1);
        assert_non_null(strstr(err.message, "nothing can be decided"));
    }
    write_beside("00000000000000012345\n9", sizeof whole); /* and one that is too long */
    assert_status(dibs_fence_file(path, "12344", DIBS_NO_WAIT, &fd, &err), DIBS_INVALID);
    write_beside("00000000000000012345 ", sizeof whole - 1); /* or does not end as it should */
    assert_status(dibs_fence_file(path, "12346", DIBS_NO_WAIT, &fd, &err), DIBS_INVALID);
    write_beside(whole, sizeof whole - 1); /* as the message says */
    assert_status(dibs_fence_file(path, "12344", DIBS_NO_WAIT, &fd, &err), DIBS_FENCED);
    assert_status(dibs_fence_file(path, "12345", DIBS_NO_WAIT, &fd, &err), DIBS_OK);
    close(fd);
}

/* What a crash leaves: the old file whole, and a part of the new one, by which nobody was let in. */
static void a_write_that_was_cut_off_changes_nothing(void **state)
{
    char unfinished[SCRATCH_MAX + 16];
    struct stat st;
    FILE *f;
    int fd;

    (void)state;
    write_beside("00000000000000000500\n", 21);
    snprintf(unfinished, sizeof unfinished, "%s.fence.new", path);
    f = fopen(unfinished, "w");
    assert_non_null(f);
    fputs("000000000000000009", f);
    fclose(f);
    assert_status(dibs_fence_file(path, "499", DIBS_NO_WAIT, &fd, &err), DIBS_FENCED);
    assert_int_equal(err.fence, 500);
    assert_status(dibs_fence_file(path, "501", DIBS_NO_WAIT, &fd, &err), DIBS_OK);
    close(fd);
    assert_int_equal(stat(unfinished, &st), -1); /* it has become the file */
    assert_status(dibs_fence_file(path, "500", DIBS_NO_WAIT, &fd, &err), DIBS_FENCED);
    assert_int_equal(err.fence, 501);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resource_lets_newer_ones_in),
        cmocka_unit_test(several_holders_share_a_floor),
        cmocka_unit_test(what_is_no_fence_is_refused),
        cmocka_unit_test(a_grant_has_a_text),
        cmocka_unit_test(what_is_not_reentrant_waits),
        cmocka_unit_test(a_grant_guards_a_cell),
        cmocka_unit_test(an_old_holder_does_not_get_the_file),
        cmocka_unit_test(the_fence_has_the_rights_of_the_file),
        cmocka_unit_test(one_at_a_time_has_the_file),
        cmocka_unit_test(bad_files_are_named),
        cmocka_unit_test(a_file_that_was_cut_off_lets_nobody_in),
        cmocka_unit_test(a_write_that_was_cut_off_changes_nothing),
    };

    return cmocka_run_group_tests(tests, make_place, remove_place);
}
