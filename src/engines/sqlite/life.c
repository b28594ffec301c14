/* Who is alive. Each client (a handle of a process) has a file `ID.life` beside the database, on
 * which its process holds a POSIX read lock: the kernel drops it when the process is gone, however
 * it went, and when it becomes another program, because the descriptor is closed on exec. Others ask whether the file could be locked for writing, and learn the process to
 * follow.
 *
 * A POSIX lock also goes when its process closes *any* descriptor of the file. So a process never
 * opens a life file of its own, and knows them by the second half of the id, which is the
 * process's. The first half is the handle's. A file with the process's id may also be a handle's of
 * the program that the process was before an exec: then no descriptor of it is open here. A child that stands in takes a lock of its own on the
 * inherited descriptor (flock and the like would be shared with every forked child, and outlive the
 * process).
 *
 * A file that is not there says nothing: somebody may have cleared the folder away. So the files of
 * the dead stay until all locks have been looked through for them (bury), and go then. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/sqlite/sqlite.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAMED        '='
#define STALE        (60) /* seconds: a file that was begun and never finished */
#define DEAD_AT_ONCE 256

/* ---- Names ----------------------------------------------------------------------------------- */

void dibs__lite_mark(const dibs__lite *e, bool owner_named, char out[DIBS__WAKE_SIZE])
{
    snprintf(out, DIBS__WAKE_SIZE, "%s%s", owner_named ? "=" : "", e->client);
}

const char *dibs__lite_client_of(const char *wake)
{
    return wake[0] == NAMED ? wake + 1 : wake;
}

/* Field 22 of /proc/self/stat; 0 when it cannot be read. The name in brackets may hold anything. */
static uint64_t start_of_process(void)
{
    char text[1024];
    unsigned long long ticks = 0;
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    char *at;

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (at)
        ticks = strtoull(at + 1, NULL, 10);
    return ticks;
}

/* The same for all handles of a process, also through several copies of this library, and no
 * other's. Where /proc is missing two processes can share it, and then wait for each other's
 * leases. */
static uint64_t process_id(void)
{
    struct stat ns = {0};
    uint64_t part[3] = {(uint64_t)getpid(), start_of_process(), 0};
    uint64_t hash = 0xcbf29ce484222325u;

    if (stat("/proc/self/ns/pid", &ns) == 0)
        part[2] = ns.st_ino;
    for (size_t i = 0; i < sizeof part; i++)
        hash = (hash ^ ((unsigned char *)part)[i]) * 0x100000001b3u;
    return hash >> 16;
}

static bool is_of_this_process(const dibs__lite *e, const char *client)
{
    const char *mine = strchr(e->client, '.'), *its = strchr(client, '.');

    return mine && its && strcmp(mine, its) == 0;
}

static void file_of(const char *client, const char *ending, char *out, size_t size)
{
    snprintf(out, size, "%.47s.%s", client, ending);
}

/* ---- Our own --------------------------------------------------------------------------------- */

static bool lock_file(int fd)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};

    return fcntl(fd, F_SETLK, &lock) == 0;
}

/* Under its name a life file is always locked: it is made under another. */
dibs_status dibs__lite_life_open(dibs__lite *e, const char *handle_id, dibs_error *err)
{
    char fresh[DIBS__WAKE_SIZE + 8], final[DIBS__WAKE_SIZE + 8], client[sizeof e->client];

    snprintf(client, sizeof client, "%.24s.%012llx", handle_id, (unsigned long long)process_id());
    dibs__lite_set_client(e, client);
    file_of(e->client, "new", fresh, sizeof fresh);
    file_of(e->client, "life", final, sizeof final);
    e->life = openat(e->folder, fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (e->life >= 0)
        dibs__lite_location_share(e, e->life);
    if (e->life < 0 || !lock_file(e->life) || renameat(e->folder, fresh, e->folder, final) < 0)
        return dibs__fail_errno(err, DIBS_ENGINE_FAILED, errno,
                                "sqlite: %.400s-dibs: cannot create %s: %s", e->path, final,
                                strerror(errno));
    return DIBS_OK;
}

static void remove_files(dibs__lite *e, const char *client)
{
    static const char *const endings[] = {"wake", "new", "life"};
    char file[DIBS__WAKE_SIZE + 8];

    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        file_of(client, endings[i], file, sizeof file);
        unlinkat(e->folder, file, 0);
    }
}

void dibs__lite_life_close(dibs__lite *e)
{
    if (e->client[0] && e->folder >= 0)
        remove_files(e, e->client);
    if (e->life >= 0)
        close(e->life);
    e->life = -1;
}

dibs_status dibs__lite_life_stand_in(dibs__lite *e)
{
    return lock_file(e->life) ? DIBS_OK : DIBS_ENGINE_FAILED;
}

/* ---- Others ---------------------------------------------------------------------------------- */

int dibs__lite_life_ask(int fd, pid_t *pid)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    if (fcntl(fd, F_GETLK, &lock) < 0)
        return -1;
    *pid = lock.l_type == F_UNLCK ? 0 : lock.l_pid;
    return lock.l_type != F_UNLCK;
}

static int ask_file(dibs__lite *e, const char *file, pid_t *pid)
{
    int fd = openat(e->folder, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    int locked = fd < 0 ? -1 : dibs__lite_life_ask(fd, pid);

    if (fd >= 0)
        close(fd);
    return locked;
}

/* Takes the descriptor of its file. The number may have passed on to another process since we were told:
 * ask again once we have hold of it. */
static void follow(dibs__lite *e, const char *client, int life, pid_t pid)
{
    int pidfd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
    pid_t again = 0;

    if (pidfd >= 0 && dibs__lite_life_ask(life, &again) == 1 && again == pid) {
        dibs__lite_peer_follow(e, client, pidfd, life);
        return;
    }
    if (pidfd >= 0)
        close(pidfd);
    close(life);
}

static int is_locked(dibs__lite *e, const char *client)
{
    char file[DIBS__WAKE_SIZE + 8];
    pid_t pid = 0;
    int locked, fd;

    file_of(client, "life", file, sizeof file);
    fd = openat(e->folder, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return -1;
    locked = dibs__lite_life_ask(fd, &pid);
    if (locked == 1)
        follow(e, client, fd, pid);
    else
        close(fd);
    return locked;
}

/* Does any descriptor of this process refer to it? True when that cannot be found out. */
static bool is_open_here(dibs__lite *e, const char *client)
{
    char file[DIBS__WAKE_SIZE + 8];
    struct stat life, st;
    struct dirent *entry;
    bool found = false;
    DIR *dir;

    file_of(client, "life", file, sizeof file);
    if (fstatat(e->folder, file, &life, AT_SYMLINK_NOFOLLOW) < 0)
        return true; /* it is not there: that says nothing */
    dir = opendir("/proc/self/fd");
    if (!dir)
        return true;
    while (!found && (entry = readdir(dir)))
        found = fstatat(dirfd(dir), entry->d_name, &st, 0) == 0 && st.st_dev == life.st_dev &&
                st.st_ino == life.st_ino;
    closedir(dir);
    return found;
}

/* Of this process as it is now: another copy of this library may have made it. */
static bool is_ours(dibs__lite *e, const char *client)
{
    return dibs__lite_is_here(client) || (is_of_this_process(e, client) && is_open_here(e, client));
}

bool dibs__lite_dead(dibs__lite *e, const char *wake)
{
    if (wake[0] == NAMED || wake[0] == '\0' || is_ours(e, wake))
        return false;
    return dibs__lite_peer_lives(e, wake) != 1 && is_locked(e, wake) == 0;
}

/* ---- Clearing up ----------------------------------------------------------------------------- */

static void note_dead(dibs__lite_roll *dead, const char *file, size_t size)
{
    if (!dead->client)
        dead->client = calloc(DEAD_AT_ONCE, sizeof *dead->client);
    if (dead->client && dead->count < DEAD_AT_ONCE)
        snprintf(dead->client[dead->count++], DIBS__WAKE_SIZE, "%.*s", (int)size, file);
}

/* Begun by a process that died before its life file had its name. */
static bool is_left_over(dibs__lite *e, const char *file, size_t size)
{
    const dibs__env *env = e->base.env;
    char life[NAME_MAX + 8];
    struct stat st;
    pid_t pid;

    snprintf(life, sizeof life, "%.*s.life", (int)size, file);
    return fstatat(e->folder, life, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT &&
           fstatat(e->folder, file, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           env->wall(env->ctx) / DIBS__SECOND > (int64_t)st.st_mtime + STALE &&
           (S_ISFIFO(st.st_mode) || ask_file(e, file, &pid) == 0);
}

static void judge_file(dibs__lite *e, const char *file, dibs__lite_roll *dead)
{
    const char *ending = strrchr(file, '.');
    size_t size = ending ? (size_t)(ending - file) : 0;
    char client[DIBS__WAKE_SIZE];
    pid_t pid;

    if (!size || size >= sizeof client)
        return;
    snprintf(client, sizeof client, "%.*s", (int)size, file);
    if (is_ours(e, client))
        return;
    if (strcmp(ending, ".life") == 0 && ask_file(e, file, &pid) == 0)
        note_dead(dead, file, size);
    else if ((strcmp(ending, ".wake") == 0 || strcmp(ending, ".new") == 0) &&
             is_left_over(e, file, size))
        unlinkat(e->folder, file, 0);
}

static void call_roll(dibs__lite *e, dibs__lite_roll *dead)
{
    int fd = openat(e->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;

    if (!dir) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((entry = readdir(dir)))
        judge_file(e, entry->d_name, dead);
    closedir(dir);
}

static dibs_status bury_all(dibs__lite *e, const dibs__lite_roll *dead, dibs__deadline until,
                            dibs_error *err)
{
    char after[DIBS_NAME_MAX + 1] = "", last[DIBS_NAME_MAX + 1];
    dibs_status status;

    do {
        dibs__lite_job job = {.kind = DIBS__LITE_BURY,
                              .dead = dead,
                              .after = after,
                              .last = last,
                              .until = until,
                              .err = err};
        status = dibs__lite_do(e, &job);
        if (status == DIBS_OK)
            strcpy(after, last);
    } while (status == DIBS_OK && after[0]);
    return status;
}

dibs_status dibs__lite_sweep(dibs__lite *e, dibs__deadline until, dibs_error *err)
{
    dibs__lite_roll dead = {0};
    dibs_status status = DIBS_OK;

    call_roll(e, &dead);
    if (dead.count > 0)
        status = bury_all(e, &dead, until, err);
    for (size_t i = 0; status == DIBS_OK && i < dead.count; i++)
        remove_files(e, dead.client[i]);
    free(dead.client);
    return status;
}
