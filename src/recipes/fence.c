/* The fence where there is no engine to check it: as text, for a header, a column or a file; the check as a
 * function without any state; and a local file that is only opened for those whose fence is not too old.
 *
 * A text is "FENCE", or "FENCE/FLOOR" where several hold at once. A resource keeps the highest floor that it has
 * seen, as a text of one number. */
#define _GNU_SOURCE
#include "core/calls.h"
#include "core/error.h"
#include "core/handle.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST_PAUSE DIBS__MS
#define MAX_PAUSE   (20 * DIBS__MS)
#define PATH_SIZE   4096
#define KEPT_FORMAT "%020llu\n" /* of one length: a part of it is noticed */
#define KEPT_SIZE   21

/* ---- Text ------------------------------------------------------------------------------------- */

void dibs_fence_text(const dibs_grant *g, char out[DIBS_FENCE_SIZE])
{
    unsigned long long fence = dibs_grant_fence(g), floor = dibs_grant_floor(g);

    if (floor == fence)
        snprintf(out, DIBS_FENCE_SIZE, "%llu", fence);
    else
        snprintf(out, DIBS_FENCE_SIZE, "%llu/%llu", fence, floor);
}

/* A number above 0 that fits; `end` is behind it. */
static bool read_number(const char *text, uint64_t *out, const char **end)
{
    size_t digits = strspn(text, "0123456789");
    unsigned long long n;

    if (digits == 0 || digits > 20)
        return false;
    errno = 0;
    n = strtoull(text, NULL, 10);
    *out = n;
    *end = text + digits;
    return errno == 0 && n > 0 && n <= INT64_MAX;
}

static bool read_shown(const char *text, uint64_t *fence, uint64_t *floor)
{
    const char *end;

    if (!text || !read_number(text, fence, &end))
        return false;
    *floor = *fence;
    if (*end == '/' && !read_number(end + 1, floor, &end))
        return false;
    return *end == '\0' && *floor <= *fence;
}

/* NULL, "" and blanks: nothing was kept yet. */
static bool read_kept(const char *text, uint64_t *out)
{
    const char *end = text;

    *out = 0;
    if (!text)
        return true;
    while (isspace((unsigned char)*end))
        end++;
    if (*end && !read_number(end, out, &end))
        return false;
    while (isspace((unsigned char)*end))
        end++;
    return *end == '\0';
}

dibs_status dibs__do_fence_check(const char *kept, const char *shown, char out[DIBS_FENCE_SIZE],
                                 dibs_error *err)
{
    uint64_t fence, floor, least;

    out[0] = '\0';
    if (!read_shown(shown, &fence, &floor))
        return dibs__fail(err, DIBS_INVALID,
                          "'%.60s' is not a fence: give what dibs_fence_text wrote",
                          shown ? shown : "");
    if (!read_kept(kept, &least))
        return dibs__fail(err, DIBS_INVALID,
                          "'%.60s' is not what dibs_fence_check wrote: nothing can be decided",
                          kept);
    if (fence < least) {
        dibs__fail(err, DIBS_FENCED, "fence %llu is older than %llu, which was seen before",
                   (unsigned long long)fence, (unsigned long long)least);
        if (err)
            err->fence = least;
        return DIBS_FENCED;
    }
    snprintf(out, DIBS_FENCE_SIZE, "%llu", (unsigned long long)(floor > least ? floor : least));
    return DIBS_OK;
}

/* ---- A file ----------------------------------------------------------------------------------- */

static dibs_status fail_on(const char *doing, const char *path, dibs_error *err)
{
    int failure = errno;
    dibs_status status = failure == EACCES || failure == EPERM || failure == EROFS ? DIBS_DENIED
                         : failure == ENOENT || failure == EISDIR || failure == ENOTDIR
                             ? DIBS_INVALID
                             : DIBS_ENGINE_FAILED;

    return dibs__fail_errno(err, status, failure, "cannot %s '%.300s': %s", doing, path,
                            strerror(failure));
}

/* Whoever replaced the file meanwhile has another one. */
static bool is_still_there(const char *path, int fd)
{
    struct stat here, there;

    return fstat(fd, &here) == 0 && stat(path, &there) == 0 && here.st_dev == there.st_dev &&
           here.st_ino == there.st_ino;
}

static dibs_status open_locked(const char *path, dibs__deadline until, int *out, dibs_error *err)
{
    const dibs__env *env = &dibs__env_system;
    int64_t pause = FIRST_PAUSE;

    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0)
            return fail_on("open", path, err);
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 && is_still_there(path, fd)) {
            *out = fd;
            return DIBS_OK;
        }
        close(fd);
        if (dibs__now(env) + pause >= until)
            return dibs__fail(err, DIBS_BUSY, "'%.300s' is open for another holder", path);
        dibs__sleep(env, pause);
        pause = dibs__longer(pause, FIRST_PAUSE, MAX_PAUSE);
    }
}

/* "": there is none yet. A whole file or none: what is shorter is not what we wrote, and a part of a number is a
 * lower one, which would let an old holder in. */
static dibs_status read_beside(const char *name, char kept[KEPT_SIZE + 2], dibs_error *err)
{
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t n;
    dibs_status status = DIBS_OK;

    kept[0] = '\0';
    if (fd < 0)
        return errno == ENOENT ? DIBS_OK : fail_on("open", name, err);
    n = read(fd, kept, KEPT_SIZE + 1);
    if (n < 0)
        status = fail_on("read", name, err);
    else if (n != KEPT_SIZE || kept[KEPT_SIZE - 1] != '\n')
        status = dibs__fail(err, DIBS_INVALID,
                            "'%.300s' was cut off or changed: nothing can be decided; write the "
                            "highest fence to it: printf '%%020d\\n' FENCE",
                            name);
    kept[status == DIBS_OK ? KEPT_SIZE : 0] = '\0';
    close(fd);
    return status;
}

static bool sync_folder_of(const char *name)
{
    char folder[PATH_SIZE];
    const char *slash = strrchr(name, '/');
    int fd;
    bool ok;

    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - name) + 1 : 1,
             slash ? name : ".");
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ok = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0)
        close(fd);
    return ok;
}

/* A new file takes the place of the old one, on disk, so that a crash leaves one of the two whole. It may be read
 * by those who may read the file that it guards. */
static dibs_status write_beside(const char *name, const char *line, int guarded, dibs_error *err)
{
    char fresh[PATH_SIZE + 8];
    struct stat st;
    dibs_status status = DIBS_OK;
    int fd;

    snprintf(fresh, sizeof fresh, "%s.new", name);
    fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail_on("create", fresh, err);
    if (fstat(guarded, &st) != 0 || fchmod(fd, st.st_mode & 0666) != 0 ||
        write(fd, line, KEPT_SIZE) != KEPT_SIZE || fsync(fd) != 0)
        status = fail_on("write", fresh, err);
    close(fd);
    if (status == DIBS_OK && (rename(fresh, name) != 0 || !sync_folder_of(name)))
        status = fail_on("write", name, err);
    return status;
}

/* With the guarded file locked. */
static dibs_status pass(const char *name, const char *shown, int guarded, dibs_error *err)
{
    char kept[KEPT_SIZE + 2], next[DIBS_FENCE_SIZE], line[KEPT_SIZE + 1];
    dibs_status status = read_beside(name, kept, err);

    if (status == DIBS_OK)
        status = dibs__do_fence_check(kept, shown, next, err);
    if (status != DIBS_OK)
        return status;
    snprintf(line, sizeof line, KEPT_FORMAT, strtoull(next, NULL, 10));
    return strcmp(line, kept) == 0 ? DIBS_OK : write_beside(name, line, guarded, err);
}

dibs_status dibs__do_fence_file(const char *path, const char *shown, int64_t wait_ms, int *out,
                                dibs_error *err)
{
    const dibs__env *env = &dibs__env_system;
    char name[PATH_SIZE];
    int fd = -1;
    dibs_status status = dibs__check_wait(wait_ms, err);

    *out = -1;
    if (status == DIBS_OK && (!path || snprintf(name, sizeof name, "%s.fence", path) >= PATH_SIZE))
        status = dibs__fail(err, DIBS_INVALID, "no path, or one that is too long");
    if (status == DIBS_OK)
        status = open_locked(path,
                             wait_ms == 0 || wait_ms == DIBS_FOREVER
                                 ? DIBS__NEVER
                                 : dibs__after(env, wait_ms * DIBS__MS),
                             &fd, err);
    if (status != DIBS_OK)
        return status;
    status = pass(name, shown, fd, err);
    if (status == DIBS_OK)
        *out = fd;
    else
        close(fd);
    return status;
}
