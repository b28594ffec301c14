/* Where the database is, and whether it can be there.
 *
 * `sqlite:///abs/path`, `sqlite:rel/path`; `sqlite:machine` is a store for all users of the machine that
 * its folder admits. Without a path it is that one for root, and for others the user's own, in a folder that
 * is made if need be. A file system of the network is refused: its locks and its shared memory do not
 * reach other hosts, or not reliably. Beside the database `x` lies the folder `x-dibs` with what is
 * not data: the gate, and two small files a client. Nothing here opens the database: closing any
 * descriptor of it would drop SQLite's own locks. */
#define _GNU_SOURCE
#include "core/error.h"
#include "engines/sqlite/sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

/* ---- The path -------------------------------------------------------------------------------- */

#define MACHINE "/var/lib/dibs" /* kept over a boot, as fences must be */

/* Makes the folders of `path` that are not there, for this user alone. */
static dibs_status make_folders(char *path, dibs_error *err)
{
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        int failed = mkdir(path, 0700) < 0 && errno != EEXIST ? errno : 0;
        if (failed)
            dibs__fail_errno(err, dibs__lite_status(failed, DIBS_DENIED), failed,
                             "sqlite: cannot create the folder %.400s: %s: check HOME, or use "
                             "sqlite:///path",
                             path, strerror(failed));
        *at = '/';
        if (failed)
            return dibs__lite_status(failed, DIBS_DENIED);
    }
    return DIBS_OK;
}

/* A new database of the machine is for those whom its folder admits. It appears under its name when that
 * is so: nobody is refused in between. */
static void make_database(const char *path, const struct stat *folder)
{
    char fresh[PATH_MAX];
    bool done;
    int fd;

    if (access(path, F_OK) == 0)
        return;
    snprintf(fresh, sizeof fresh, "%s.XXXXXX", path);
    fd = mkostemp(fresh, O_CLOEXEC);
    if (fd < 0)
        return; /* whoever opens the database says why */
    done = fchown(fd, (uid_t)-1, folder->st_gid) == 0 && fchmod(fd, folder->st_mode & 0666) == 0;
    close(fd); /* before it has its name: closing a database drops the locks that we have in it */
    if (done && link(fresh, path) < 0)
        done = false; /* another was first, or SQLite makes it itself */
    unlink(fresh);
}

/* Root has used it before its folder was opened to a group. */
static const char *advice(const char *path)
{
    return strcmp(path, MACHINE "/dibs.db") || errno != EACCES
               ? ""
               : ": it is older than the rights of its folder: root gives it to them with: chgrp "
                 "-R "
                 "GROUP " MACHINE " && chmod -R g+rwX " MACHINE " && chmod g+s " MACHINE " " MACHINE
                 "/dibs.db-dibs";
}

static dibs_status make_machine(const char *path, dibs_error *err)
{
    struct stat folder;
    int made = mkdir(MACHINE, 0700) < 0 ? errno : 0;

    if (stat(MACHINE, &folder) < 0 || access(MACHINE, R_OK | W_OK | X_OK) < 0)
        return dibs__fail_errno(
            err, DIBS_DENIED, errno,
            "sqlite: the machine's store needs the folder " MACHINE
            ": %s: root creates it for a group of users with install -d -m 2770 -g "
            "GROUP " MACHINE ", or use sqlite:///path",
            errno != ENOENT  ? strerror(errno)
            : made == EACCES ? "it is not there"
                             : strerror(made));
    make_database(path, &folder);
    return DIBS_OK;
}

dibs_status dibs__lite_location_make(const dibs__url *url, char *path, dibs_error *err)
{
    if (strcmp(path, MACHINE "/dibs.db") == 0)
        return make_machine(path, err);
    return url->path[0] ? DIBS_OK : make_folders(path, err);
}

static dibs_status default_path(char *path, size_t size, dibs_error *err)
{
    const char *state = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    int n;

    if (state && state[0] == '/')
        n = snprintf(path, size, "%s/dibs/dibs.db", state);
    else if (geteuid() == 0)
        n = snprintf(path, size, MACHINE "/dibs.db");
    else if (home && home[0] == '/')
        n = snprintf(path, size, "%s/.local/state/dibs/dibs.db", home);
    else
        return dibs__fail(err, DIBS_INVALID,
                          "sqlite: no path given, and neither XDG_STATE_HOME nor HOME is an "
                          "absolute path: set HOME, or use sqlite:///path or sqlite:machine");
    if (n < 0 || (size_t)n >= size)
        return dibs__fail(err, DIBS_INVALID, "sqlite: the state folder's path is too long");
    return DIBS_OK;
}

dibs_status dibs__lite_location(dibs__url *url, char *path, size_t size, dibs_error *err)
{
    dibs_status status = dibs__url_all_taken(url, "", err);

    if (status != DIBS_OK)
        return status;
    if (url->user || url->password)
        return dibs__fail(err, DIBS_INVALID,
                          "sqlite: a file has no user and password: use sqlite:///path");
    for (size_t i = 0; i < url->host_count; i++)
        if (url->host[i].name[0] || url->host[i].port)
            return dibs__fail(err, DIBS_INVALID,
                              "sqlite: '%.200s' is read as a host: use "
                              "sqlite:///absolute/path or sqlite:relative/path",
                              url->host[i].name);
    if (!url->path[0])
        return default_path(path, size, err);
    if (strcmp(url->path, "machine") == 0 && !url->authority) {
        snprintf(path, size, MACHINE "/dibs.db");
        return DIBS_OK;
    }
    if (url->path[0] == ':')
        return dibs__fail(
            err, DIBS_INVALID,
            "sqlite: '%.200s' is not a file: for locks inside one process use memory:", url->path);
    if (strlen(url->path) >= size)
        return dibs__fail(err, DIBS_INVALID, "sqlite: the path is too long");
    strcpy(path, url->path);
    return DIBS_OK;
}

/* ---- The file system ------------------------------------------------------------------------- */

static const struct {
    uint32_t type;
    const char *name;
} far_away[] = {
    {0x6969, "NFS"},        {0x517b, "SMB"},      {0xff534d42, "CIFS"},
    {0xfe534d42, "SMB2"},   {0x00c36400, "Ceph"}, {0x5346414f, "AFS"},
    {0x6b414653, "AFS"},    {0x73757245, "Coda"}, {0x564c, "NCP"},
    {0x7461636f, "OCFS2"},  {0x01161970, "GFS2"}, {0x0bd00bd0, "Lustre"},
    {0x47504653, "GPFS"},   {0x01021997, "9P"},   {0x786f4256, "VirtualBox shared folder"},
    {0x19830326, "BeeGFS"},
};

const char *dibs__lite_far_away(uint32_t type)
{
    for (size_t i = 0; i < sizeof far_away / sizeof far_away[0]; i++)
        if (type == far_away[i].type)
            return far_away[i].name;
    return NULL;
}

static dibs_status check_near(const char *folder, dibs_error *err)
{
    struct statfs fs;
    const char *far;

    if (statfs(folder, &fs) < 0)
        return dibs__fail_errno(err, dibs__lite_status(errno, DIBS_INVALID), errno,
                                "sqlite: %.400s: %s: create the folder or use another", folder,
                                strerror(errno));
    far = dibs__lite_far_away((uint32_t)fs.f_type);
    if (far)
        return dibs__fail(err, DIBS_UNSUPPORTED,
                          "sqlite: %.400s is on %s: locks on a network file system are not safe; "
                          "use a local disk, or a server engine such as redis:",
                          folder, far);
    if (access(folder, W_OK | X_OK) < 0)
        return dibs__fail_errno(err, DIBS_DENIED, errno, "sqlite: %.400s cannot be written: %s",
                                folder, strerror(errno));
    return DIBS_OK;
}

void dibs__lite_location_folder(const char *path, char folder[PATH_MAX])
{
    char *real = realpath(path, NULL), *slash;

    snprintf(folder, PATH_MAX, "%s", real ? real : path);
    free(real);
    slash = strrchr(folder, '/');
    if (!slash)
        strcpy(folder, ".");
    else
        slash[slash == folder] = '\0';
}

/* Whoever else can write in a folder can put a link there, and choose with our rights what it makes. */
static bool is_ours(const char *folder)
{
    struct stat st;

    return stat(folder, &st) == 0 && (st.st_uid == geteuid() || st.st_uid == 0) &&
           !(st.st_mode & (S_IWGRP | S_IWOTH));
}

dibs_status dibs__lite_location_resolve(char *path, size_t size, dibs_error *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char folder[PATH_MAX] = ".", real[PATH_MAX];
    struct stat st;
    int n;

    if (slash)
        snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    if (!realpath(folder, real))
        return DIBS_OK; /* whoever looks at the folder says why */
    if (lstat(path, &st) < 0 || !S_ISLNK(st.st_mode)) {
        n = snprintf(folder, sizeof folder, "%s/%s", real[1] ? real : "", name);
    } else {
        if (!is_ours(real))
            return dibs__fail(err, DIBS_DENIED,
                              "sqlite: %.400s is a link, and others can write in its folder: name "
                              "the database itself",
                              path);
        if (!realpath(path, folder))
            return dibs__fail_errno(
                err, DIBS_INVALID, errno,
                "sqlite: %.400s is a link that leads nowhere: %s: name the database "
                "itself",
                path, strerror(errno));
        n = (int)strlen(folder);
    }
    if (n < 0 || (size_t)n >= size - sizeof "-dibs" || (size_t)n >= sizeof folder)
        return dibs__fail(err, DIBS_INVALID, "sqlite: the path is too long");
    strcpy(path, folder);
    return DIBS_OK;
}

dibs_status dibs__lite_location_check(const char *path, dibs_error *err)
{
    char folder[PATH_MAX];
    struct stat st;

    dibs__lite_location_folder(path, folder);
    if (lstat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return dibs__fail(err, DIBS_INVALID, "sqlite: %.400s is a folder: use a file in it",
                              path);
        if (!S_ISREG(st.st_mode))
            return dibs__fail(err, DIBS_INVALID, "sqlite: %.400s is not a regular file", path);
        if (access(path, R_OK | W_OK) < 0)
            return dibs__fail_errno(err, DIBS_DENIED, errno,
                                    "sqlite: %.400s cannot be read and written: %s%s", path,
                                    strerror(errno), advice(path));
    } else if (errno != ENOENT) {
        return dibs__fail_errno(
            err, dibs__lite_status(errno, errno == EACCES ? DIBS_DENIED : DIBS_INVALID), errno,
            "sqlite: %.400s: %s", path, strerror(errno));
    }
    return check_near(folder, err);
}

/* ---- The folder beside it -------------------------------------------------------------------- */

/* What bears the name by now is perhaps not what we have made: only that is given away. */
static bool is_made_here(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
           (S_ISDIR(st.st_mode) || st.st_nlink <= 1);
}

void dibs__lite_location_share(const dibs__lite *e, int fd)
{
    if (!is_made_here(fd))
        return;
    if (geteuid() == 0 && fchown(fd, e->uid, e->gid) < 0)
        return; /* it stays root's, and others will say so */
    if (fchmod(fd, e->mode) < 0)
        return;
}

dibs_status dibs__lite_location_beside(dibs__lite *e, dibs_error *err)
{
    char folder[PATH_MAX + 8];
    struct stat st;
    bool fresh;

    if (lstat(e->path, &st) < 0)
        return dibs__fail_errno(err, DIBS_ENGINE_FAILED, errno, "sqlite: %.400s: %s", e->path,
                                strerror(errno));
    e->mode = st.st_mode & 0666;
    e->uid = st.st_uid;
    e->gid = st.st_gid;
    snprintf(folder, sizeof folder, "%s-dibs", e->path);
    fresh = mkdir(folder, 0700) == 0;
    e->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (e->folder < 0 || (!fresh && faccessat(e->folder, ".", W_OK | X_OK, AT_EACCESS) < 0))
        return dibs__fail_errno(
            err, dibs__lite_status(errno, DIBS_DENIED), errno,
            "sqlite: %.400s: %s: the clients of a database need a folder beside it%s", folder,
            strerror(errno), advice(e->path));
    if (fresh && !is_made_here(e->folder))
        return dibs__fail(err, DIBS_DENIED, "sqlite: %.400s: it was replaced by another process",
                          folder);
    if (fresh) {
        dibs__lite_location_share(e, e->folder);
        /* who may read the database may enter, too; and what one of its group makes there is the group's */
        if ((e->mode & 0020 && fchown(e->folder, (uid_t)-1, e->gid) < 0) ||
            fchmod(e->folder, e->mode | (e->mode & 0444) >> 2 | (e->mode & 0020 ? S_ISGID : 0)) < 0)
            return dibs__fail_errno(err, DIBS_DENIED, errno, "sqlite: %.400s: %s", folder,
                                    strerror(errno));
    }
    return DIBS_OK;
}
