/* Facts about an embedded store: where it lies, whose it is, who may write it, and what the disk takes.
 * The database is opened for reading, by SQLite alone (see location.c). The checks are in
 * src/doctor/sqlite.c. */
#define _GNU_SOURCE
#include "doctor/facts.h"
#include "engines/sqlite/sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#define FUSE  0x65735546u
#define TMPFS 0x01021994u

/* ---- The folder ------------------------------------------------------------------------------ */

static void look_at_folder(dibs__facts *f, const char *folder)
{
    struct statfs fs;
    struct stat st;
    const char *far;

    dibs__fact_add(f, "folder", "%s", folder);
    if (statfs(folder, &fs) < 0 || stat(folder, &st) < 0) {
        dibs__fact_add(f, "folder_error", "%s", strerror(errno));
        return;
    }
    far = dibs__lite_far_away((uint32_t)fs.f_type);
    dibs__fact_add(f, "file_system", "%s",
                   far                            ? far
                   : (uint32_t)fs.f_type == FUSE  ? "FUSE"
                   : (uint32_t)fs.f_type == TMPFS ? "tmpfs"
                                                  : "local");
    dibs__fact_flag(f, "network", far != NULL);
    dibs__fact_flag(f, "read_only", fs.f_flags & ST_RDONLY);
    dibs__fact_flag(f, "folder_writable", access(folder, W_OK | X_OK) == 0);
    dibs__fact_flag(f, "folder_open", (st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX));
    dibs__fact_number(f, "free_mib", (int64_t)fs.f_bavail * fs.f_bsize / (1024 * 1024));
}

/* ---- The file -------------------------------------------------------------------------------- */

static void add_owner(dibs__facts *f, const struct stat *st)
{
    struct passwd entry, *found = NULL;
    char room[2048];

    dibs__fact_flag(f, "own", st->st_uid == geteuid());
    dibs__fact_flag(f, "file_open", st->st_mode & S_IWOTH);
    dibs__fact_add(f, "mode", "%04o", (unsigned)st->st_mode & 07777);
    if (getpwuid_r(st->st_uid, &entry, room, sizeof room, &found) == 0 && found)
        dibs__fact_add(f, "owner", "%s", entry.pw_name);
    else
        dibs__fact_add(f, "owner", "uid %u", (unsigned)st->st_uid);
}

/* Without a log there is nothing that only a full open would see, and none is made that way. */
static int open_for_reading(dibs__lite *e)
{
    char uri[3 * PATH_MAX + 40] = "file:", log[PATH_MAX + 8];
    size_t n = strlen(uri);
    bool there;

    for (const char *c = e->path; *c; c++)
        n += (size_t)snprintf(uri + n, 4, strchr("?#%", *c) ? "%%%02X" : "%c", (unsigned char)*c);
    snprintf(log, sizeof log, "%s-wal", e->path);
    there = access(log, F_OK) == 0;
    snprintf(uri + n, sizeof uri - n, "%s", there ? "" : "?immutable=1");
    return sqlite3_open_v2(uri, &e->db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, NULL);
}

/* The mode that the file itself is marked with. */
static void read_mode(dibs__facts *f, sqlite3 *db)
{
    sqlite3_file *file = NULL;
    unsigned char mark[2] = {0};

    if (sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &file) == SQLITE_OK && file &&
        file->pMethods && file->pMethods->xRead(file, mark, 2, 18) == SQLITE_OK)
        dibs__fact_flag(f, "log_mode", mark[0] == 2);
}

static void look_inside(dibs__facts *f, dibs__lite *e)
{
    dibs_error why = {0};

    dibs__lite_inside();
    if (open_for_reading(e) != SQLITE_OK)
        dibs__fact_unseen(f, "database_error", "%s", sqlite3_errmsg(e->db));
    else if (sqlite3_db_config(e->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL) == SQLITE_OK) {
        sqlite3_busy_timeout(e->db, 1000);
        dibs__lite_recognise(e, &why);
        dibs__fact_add(f, "database_error", "%s", why.message);
        read_mode(f, e->db);
    }
    sqlite3_close(e->db);
    e->db = NULL;
    dibs__lite_outside();
}

/* As the manual says: the folder's group has the file, too. */
static bool is_group_store(const struct stat *st, const char *folder)
{
    struct stat around;

    return stat(folder, &around) == 0 && around.st_gid == st->st_gid && around.st_mode & S_IWGRP &&
           (st->st_mode & 0060) == 0060;
}

static void look_at_file(dibs__facts *f, dibs__lite *e, const char *folder)
{
    char beside[PATH_MAX + 8];
    dibs_error why = {0};
    struct stat st;
    bool there = lstat(e->path, &st) == 0;

    dibs__fact_add(f, "path", "%s", e->path);
    if (there || errno == ENOENT || errno == ENOTDIR) /* else we may not look */
        dibs__fact_flag(f, "exists", there);
    if (!there)
        return;
    if (dibs__lite_location_resolve(e->path, sizeof e->path, &why) != DIBS_OK ||
        stat(e->path, &st) < 0) {
        dibs__fact_add(f, "database_error", "%s", why.message);
        return;
    }
    add_owner(f, &st);
    dibs__fact_flag(f, "group_store", is_group_store(&st, folder));
    dibs__fact_flag(f, "regular", S_ISREG(st.st_mode));
    dibs__fact_flag(f, "file_writable", access(e->path, R_OK | W_OK) == 0);
    snprintf(beside, sizeof beside, "%s-dibs", e->path);
    dibs__fact_add(f, "beside", "%s", beside);
    if (access(beside, F_OK) == 0)
        dibs__fact_flag(f, "beside_writable", access(beside, W_OK | X_OK) == 0);
    if (S_ISREG(st.st_mode) && access(e->path, R_OK) == 0 && st.st_size > 0)
        look_inside(f, e);
}

/* ---- The disk -------------------------------------------------------------------------------- */

static bool flush_page(void *ctx)
{
    static const char page[1024];
    int fd = *(int *)ctx;

    return pwrite(fd, page, sizeof page, 0) == sizeof page && fdatasync(fd) == 0;
}

/* A file without a name: it is gone with its descriptor. */
static void time_disk(dibs__facts *f, const char *folder, const dibs__env *env,
                      dibs__deadline until)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd < 0)
        return;
    dibs__facts_measure(f, env, until, flush_page, &fd);
    close(fd);
}

/* Folders of the user's own store are made on first use: the one that they will be made in. */
static void climb(char *folder)
{
    while (strchr(folder + 1, '/') && access(folder, F_OK) < 0)
        *strrchr(folder, '/') = '\0';
}

dibs_status dibs__lite_examine(const dibs__open_request *request, dibs__facts *out, dibs_error *err)
{
    dibs__lite *e = calloc(1, sizeof *e);
    char folder[PATH_MAX];
    dibs_status status = DIBS_NO_MEMORY;

    if (e)
        status = dibs__lite_location(request->url, e->path, sizeof e->path, err);
    if (status == DIBS_OK) {
        dibs__lite_location_folder(e->path, folder);
        if (!request->url->path[0] ||
            (geteuid() == 0 && strcmp(request->url->path, "machine") == 0))
            climb(folder);
        look_at_folder(out, folder);
        look_at_file(out, e, folder);
        time_disk(out, folder, request->env, request->until);
    }
    free(e);
    return status;
}
