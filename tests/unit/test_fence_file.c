/* The file that is guarded by a fence, system call by system call: they are replaced at the link, fail as they are told,
 * and the clock stands still. */
#define _GNU_SOURCE
#include "core/env.h"
#include "support/calls.h"
#include "support/scratch.h"
#include "support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT(rows) (sizeof(rows) / sizeof(rows)[0])

/* ---- The system ------------------------------------------------------------------------------- */

static struct {
    bool on;           /* what follows is the library's */
    char log[1024];    /* the calls, in order */
    int open;          /* descriptors */
    int count;         /* calls so far */
    int fails_at;      /* the n-th call fails */
    const char *fails; /* or every call of this name */
    int times;         /* so often */
    int error;
    char folder[SCRATCH_MAX];       /* the last one that was opened */
    char failed[16];                /* the name of the last that failed */
    bool other_device, other_inode; /* what the next stat shows is another file's */
    int zero_at;                    /* the n-th open returns descriptor 0 */
    int opens;
    short room; /* a write takes so many bytes; 0: all */
    int64_t now, slept;
    int sleeps;
} os;

static bool fails(const char *name)
{
    if (!os.on)
        return false;
    snprintf(os.log + strlen(os.log), sizeof os.log - strlen(os.log), "%s ", name);
    os.count++;
    if (os.count != os.fails_at && !(os.fails && strcmp(os.fails, name) == 0 && os.times-- > 0))
        return false;
    snprintf(os.failed, sizeof os.failed, "%s", name);
    errno = os.error;
    return true;
}

#define WRAPPED(type, name, parameters, arguments)          \
    type __real_##name parameters;                          \
    type __wrap_##name parameters;                          \
    type __wrap_##name parameters                           \
    {                                                       \
        return fails(#name) ? -1 : __real_##name arguments; \
    }

WRAPPED(int, flock, (int fd, int how), (fd, how))
WRAPPED(ssize_t, read, (int fd, void *data, size_t size), (fd, data, size))
WRAPPED(int, fsync, (int fd), (fd))
WRAPPED(int, fchmod, (int fd, mode_t mode), (fd, mode))
WRAPPED(int, rename, (const char *from, const char *to), (from, to))
WRAPPED(int, fstat64, (int fd, struct stat64 *out), (fd, out))

int __real_stat64(const char *path, struct stat64 *out);
int __wrap_stat64(const char *path, struct stat64 *out);
int __wrap_stat64(const char *path, struct stat64 *out)
{
    int result = fails("stat64") ? -1 : __real_stat64(path, out);

    if (os.on) {
        out->st_dev += os.other_device;
        out->st_ino += os.other_inode;
        os.other_device = os.other_inode = false;
    }
    return result;
}

ssize_t __real_write(int fd, const void *data, size_t size);
ssize_t __wrap_write(int fd, const void *data, size_t size);
ssize_t __wrap_write(int fd, const void *data, size_t size)
{
    if (fails("write"))
        return -1;
    return __real_write(fd, data, os.on && os.room ? (size_t)os.room : size);
}

int __real_close(int fd);
int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
    va_list rest;
    mode_t mode;
    int fd;

    va_start(rest, flags);
    mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (os.on && flags & O_DIRECTORY)
        snprintf(os.folder, sizeof os.folder, "%s", path);
    fd = fails("open") ? -1 : __real_open64(path, flags, mode);

    if (!os.on || fd < 0)
        return fd;
    os.open++;
    if (++os.opens == os.zero_at && fd != 0) {
        dup2(fd, 0);
        __real_close(fd);
        fd = 0;
    }
    return fd;
}

int __wrap_close(int fd);
int __wrap_close(int fd)
{
    if (os.on) {
        fails("close");
        os.open--;
    }
    return __real_close(fd);
}

int __wrap_clock_gettime(clockid_t id, struct timespec *out);
int __wrap_clock_gettime(clockid_t id, struct timespec *out)
{
    (void)id;
    *out = (struct timespec){os.now / DIBS__SECOND, os.now % DIBS__SECOND * 1000};
    return 0;
}

int __wrap_nanosleep(const struct timespec *span, struct timespec *left);
int __wrap_nanosleep(const struct timespec *span, struct timespec *left)
{
    int64_t us = span->tv_sec * DIBS__SECOND + span->tv_nsec / 1000;

    (void)left;
    os.sleeps++;
    os.slept += us;
    os.now += us;
    return 0;
}

/* ---- The file --------------------------------------------------------------------------------- */

static scratch place;
static char path[SCRATCH_MAX], beside[SCRATCH_MAX + 8];
static dibs_error err;

static int set_up(void **state)
{
    (void)state;
    memset(&os, 0, sizeof os);
    os.now = 1000 * DIBS__SECOND;
    os.error = EIO;
    if (scratch_make(&place) != 0)
        return -1;
    scratch_file(&place, "books", path, sizeof path);
    snprintf(beside, sizeof beside, "%s.fence", path);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    os.on = false;
    scratch_remove(&place);
    return 0;
}

/* What is not set is not taken for an answer: nothing that the library finds on its stack is zero. */
__attribute__((noinline)) static void dirty_the_stack(void)
{
    volatile char dirt[32768];

    for (size_t i = 0; i < sizeof dirt; i++)
        dirt[i] = 'x';
}

static dibs_status pass(const char *fence, int64_t wait_ms, int *fd)
{
    dibs_status status;

    memset(&err, 0, sizeof err);
    os.log[0] = '\0';
    os.open = os.count = os.opens = os.sleeps = 0;
    os.slept = 0;
    *fd = 7;
    dirty_the_stack();
    os.on = true;
    status = dibs_fence_file(path, fence, wait_ms, fd, &err);
    os.on = false;
    assert_int_equal(os.open, status == DIBS_OK); /* nothing else stays open */
    assert_int_equal(*fd >= 0, status == DIBS_OK);
    return status;
}

static void pass_and_close(const char *fence)
{
    int fd;

    assert_status(pass(fence, DIBS_NO_WAIT, &fd), DIBS_OK);
    close(fd);
}

static void store(const char *text)
{
    FILE *f = fopen(beside, "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
}

static const char *kept(void)
{
    static char text[64];
    FILE *f = fopen(beside, "r");

    text[0] = '\0';
    if (f) {
        assert_non_null(fgets(text, sizeof text, f));
        fclose(f);
    }
    return text;
}

/* What is on the disk after a crash at any moment is the old fence or the new one: the new one is written and synced
 * before it takes the other's place, and its name is synced before anybody is let in. */
static void a_new_fence_is_on_the_disk_before_it_counts(void **state)
{
    static const char *const order[] = {"write ", "fsync ", "rename ", "fsync ", NULL};
    const char *at;
    char folder[SCRATCH_MAX];

    (void)state;
    pass_and_close("10");
    assert_string_equal(kept(), "00000000000000000010\n");
    pass_and_close("11");
    at = os.log;
    for (int i = 0; order[i]; i++) {
        at = strstr(at, order[i]);
        assert_non_null(at);
        at++;
    }
    scratch_file(&place, "", folder, sizeof folder);
    assert_string_equal(os.folder, folder);
    pass_and_close("11"); /* it is there already */
    assert_null(strstr(os.log, "write"));
    assert_string_equal(kept(), "00000000000000000011\n");
}

/* Without a folder in its name. */
static void a_file_may_be_named_without_its_folder(void **state)
{
    char *here = getcwd(NULL, 0);

    (void)state;
    assert_int_equal(chdir(place.path), 0);
    snprintf(path, sizeof path, "books");
    pass_and_close("10");
    pass_and_close("11");
    for (int i = 1; i <= 2; i++) { /* of `open`, `fsync` and `close` at the end: nobody is let in */
        char next[] = {'1', (char)('1' + i), '\0'};
        os.fails_at = os.count - i;
        assert_status(pass(next, DIBS_NO_WAIT, &(int){0}), DIBS_ENGINE_FAILED);
        os.fails_at = 0;
        pass_and_close("20");
        store("00000000000000000011\n");
        pass_and_close("12");
        store("00000000000000000011\n");
    }
    assert_int_equal(chdir(here), 0);
    free(here);
}

/* Each call fails once, in turn: nobody is let in whose fence was not kept, and nobody after that whose fence is lower. */
static void a_failing_disk_lets_nobody_in(void **state)
{
    bool failed = true;

    (void)state;
    for (int n = 1; failed; n++) {
        dibs_status status;
        int fd;
        store("00000000000000000010\n");
        os.failed[0] = '\0';
        os.fails_at = n;
        status = pass("12", DIBS_FOREVER, &fd);
        os.fails_at = 0;
        failed = os.failed[0] != '\0';
        print_message("# %s: %s\n", os.failed, dibs_status_name(status));
        if (status == DIBS_OK) {
            bool harmless = !failed || strcmp(os.failed, "close") == 0;
            assert_true(harmless || os.sleeps == 1); /* or it was tried again */
            assert_string_equal(kept(), "00000000000000000012\n");
            close(fd);
        } else {
            assert_status(status, DIBS_ENGINE_FAILED);
            assert_string_equal(err.engine_code, "EIO");
            assert_non_null(strstr(err.message, path));
            assert_true(strcmp(kept(), "00000000000000000010\n") == 0 ||
                        strcmp(kept(), "00000000000000000012\n") == 0);
            assert_int_equal(os.sleeps, 0);
        }
        assert_status(pass("9", DIBS_NO_WAIT, &fd), DIBS_FENCED);
    }
    /* the disk is full after some bytes */
    store("00000000000000000010\n");
    os.room = 20;
    assert_status(pass("12", DIBS_NO_WAIT, &(int){0}), DIBS_ENGINE_FAILED);
    assert_string_equal(kept(), "00000000000000000010\n");
    os.room = 0;
}

/* What each call that fails says of the file that it failed on. */
static void a_failure_names_its_file(void **state)
{
    static const struct {
        int error;
        dibs_status status;
    } rows[] = {
        {EACCES, DIBS_DENIED},     {EPERM, DIBS_DENIED},         {EROFS, DIBS_DENIED},
        {ENOENT, DIBS_INVALID},    {EISDIR, DIBS_INVALID},       {ENOTDIR, DIBS_INVALID},
        {EIO, DIBS_ENGINE_FAILED}, {EMFILE, DIBS_ENGINE_FAILED}, {ENOSPC, DIBS_ENGINE_FAILED},
    };
    int fd;

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        os.error = rows[i].error;
        os.fails = "open";
        os.times = 1;
        assert_status(pass("12", DIBS_NO_WAIT, &fd), rows[i].status);
        assert_non_null(strstr(err.message, "cannot open"));
        assert_non_null(strstr(err.message, strerror(rows[i].error)));
    }
}

/* Whoever has another file under that name has not got this one. */
static void a_file_that_was_replaced_is_opened_again(void **state)
{
    int fd;

    (void)state;
    for (int device = 0; device < 2; device++) {
        os.other_device = device;
        os.other_inode = !device;
        assert_status(pass("12", 1000, &fd), DIBS_OK);
        assert_int_equal(os.sleeps, 1);
        close(fd);
        os.other_device = device;
        os.other_inode = !device;
        assert_status(pass("12", DIBS_NO_WAIT, &fd), DIBS_BUSY);
    }
}

/* While another has it open, it is tried again at growing intervals; no pause ends with the time. */
static void a_busy_file_is_waited_for(void **state)
{
    static const struct {
        int64_t wait_ms;
        int busy; /* so often; */
        dibs_status status;
        int sleeps;
        int64_t slept_ms;
    } rows[] = {
        {DIBS_NO_WAIT, 1, DIBS_BUSY, 0, 0},
        {1, 1, DIBS_BUSY, 0, 0},
        {2, 1, DIBS_OK, 1, 1},
        {3, 9, DIBS_BUSY, 1, 1},
        {4, 9, DIBS_BUSY, 2, 3},
        {60, 99, DIBS_BUSY, 6, 51},
        {72, 7, DIBS_OK, 7, 71},
        {0, 7, DIBS_OK, 7, 71},
        {DIBS_FOREVER, 4000, DIBS_OK, 4000, 1 + 2 + 4 + 8 + 16 + 3995 * 20},
        {0, 4000, DIBS_OK, 4000, 1 + 2 + 4 + 8 + 16 + 3995 * 20},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        int fd;
        os.fails = "flock";
        os.error = EWOULDBLOCK;
        os.times = rows[i].busy;
        print_message("# row %zu\n", i);
        assert_status(pass("12", rows[i].wait_ms, &fd), rows[i].status);
        assert_int_equal(os.sleeps, rows[i].sleeps);
        assert_int_equal(os.slept, rows[i].slept_ms * DIBS__MS);
        if (fd >= 0)
            close(fd);
        else
            assert_non_null(strstr(err.message, "is open for another holder"));
    }
}

/* A program whose standard input is closed gets 0 for a descriptor, at any of the calls. */
static void descriptor_0_is_one_like_any_other(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++) { /* the file, its fence, the new one, the folder */
        pid_t child;
        int status;
        store("00000000000000000010\n");
        child = fork();
        if (child == 0) {
            int fd;
            close(0);
            if (n > 1) /* taken, until its turn comes */
                open("/dev/null", O_RDONLY);
            os.zero_at = n;
            status = pass("12", DIBS_NO_WAIT, &fd);
            os.zero_at = 0;
            close(fd);
            _exit(status == DIBS_OK && pass("11", DIBS_NO_WAIT, &fd) == DIBS_FENCED ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_string_equal(kept(), "00000000000000000012\n");
    }
}

static void a_new_file_is_for_those_whom_the_mask_allows(void **state)
{
    mode_t mask = umask(0);
    struct stat st;

    (void)state;
    pass_and_close("10");
    umask(mask);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0666);
    assert_int_equal(stat(beside, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0666);
}

static void wrong_calls_touch_nothing(void **state)
{
    char longest[5000];
    int fd = 7;

    (void)state;
    memset(longest, '/', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    os.on = true;
    assert_status(dibs_fence_file(NULL, "1", 0, &fd, &err), DIBS_INVALID);
    assert_int_equal(fd, -1);
    fd = 7;
    assert_status(dibs_fence_file(longest, "1", 0, &fd, &err), DIBS_INVALID);
    assert_string_equal(err.message, "no path, or one that is too long");
    assert_int_equal(fd, -1);
    for (int i = 0; i < 2; i++) { /* with ".fence" and its end there are 4096 bytes, or one more */
        fd = 7;
        longest[4089 + i] = '\0';
        longest[4089 - !i] = '/';
        assert_status(dibs_fence_file(longest, "1", 0, &fd, &err), DIBS_INVALID);
        assert_non_null(strstr(err.message, i ? "too long" : "cannot open"));
        longest[4089 + i] = '/';
    }
    os.log[0] = '\0';
    fd = 7;
    assert_status(dibs_fence_file(path, "1", -7, &fd, &err), DIBS_INVALID);
    assert_int_equal(fd, -1);
    os.on = false;
    assert_string_equal(os.log, "");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_new_fence_is_on_the_disk_before_it_counts),
        CASE(a_file_may_be_named_without_its_folder),
        CASE(a_failing_disk_lets_nobody_in),
        CASE(a_failure_names_its_file),
        CASE(a_file_that_was_replaced_is_opened_again),
        CASE(a_busy_file_is_waited_for),
        CASE(descriptor_0_is_one_like_any_other),
        CASE(a_new_file_is_for_those_whom_the_mask_allows),
        CASE(wrong_calls_touch_nothing),
    };

    return cmocka_run_group_tests_name("fence_file", tests, NULL, NULL);
}
