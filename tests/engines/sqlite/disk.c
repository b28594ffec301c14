/* A VFS around SQLite's own: counts writes and syncs, and copies each file aside when it is synced.
 */
#define _GNU_SOURCE
#include "disk.h"

#include "support/test.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct disk_file {
    sqlite3_file base;
    sqlite3_file *inner;
    char name[512];
} disk_file;

static sqlite3_vfs disk, *under;
static sqlite3_io_methods methods;
static atomic_int countdown[DISK_FAULTS];
static atomic_bool lasting, struck;

static sqlite3_file *inner(sqlite3_file *f)
{
    return ((disk_file *)f)->inner;
}

/* ---- Failing --------------------------------------------------------------------------------- */

void disk_fail(disk_fault fault, int n, bool for_ever)
{
    for (int i = 0; i < DISK_FAULTS; i++)
        countdown[i] = 0;
    lasting = for_ever;
    struck = false;
    countdown[fault] = n;
}

bool disk_failed(void)
{
    return struck;
}

static bool strikes(disk_fault fault)
{
    int left = countdown[fault];

    if (left == 0)
        return false;
    if (left > 1) {
        countdown[fault] = left - 1;
        return false;
    }
    if (!lasting)
        countdown[fault] = 0;
    struck = true;
    return true;
}

/* ---- What a power cut leaves ----------------------------------------------------------------- */

static void copy(const char *from, const char *to)
{
    char buffer[16384];
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ssize_t n;

    assert_true(in >= 0 && out >= 0);
    while ((n = read(in, buffer, sizeof buffer)) > 0)
        assert_int_equal(write(out, buffer, (size_t)n), n);
    close(in);
    close(out);
}

/* Reads through SQLite: a descriptor of our own, when closed, would drop its locks. */
static void keep_aside(disk_file *f)
{
    char aside[600], buffer[16384];
    sqlite3_int64 size = 0;
    int out;

    if (!f->name[0])
        return;
    snprintf(aside, sizeof aside, "%s.synced", f->name);
    out = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(out >= 0);
    f->inner->pMethods->xFileSize(f->inner, &size);
    for (sqlite3_int64 at = 0; at < size; at += (sqlite3_int64)sizeof buffer) {
        int n = size - at < (sqlite3_int64)sizeof buffer ? (int)(size - at) : (int)sizeof buffer;
        assert_int_equal(f->inner->pMethods->xRead(f->inner, buffer, n, at), SQLITE_OK);
        assert_int_equal(write(out, buffer, (size_t)n), n);
    }
    close(out);
}

void disk_cut_power(const char *from, const char *to)
{
    char a[600], b[600];

    snprintf(a, sizeof a, "%s.synced", from);
    copy(a, to);
    snprintf(a, sizeof a, "%s-wal.synced", from);
    snprintf(b, sizeof b, "%s-wal", to);
    copy(a, b);
}

/* ---- The file -------------------------------------------------------------------------------- */

static int x_close(sqlite3_file *f)
{
    int rc = inner(f)->pMethods->xClose(inner(f));

    free(inner(f));
    return rc;
}

static int x_read(sqlite3_file *f, void *to, int n, sqlite3_int64 at)
{
    return inner(f)->pMethods->xRead(inner(f), to, n, at);
}

static int x_write(sqlite3_file *f, const void *from, int n, sqlite3_int64 at)
{
    if (strikes(DISK_FULL))
        return SQLITE_FULL;
    if (strikes(DISK_WRITE_FAILS)) {
        inner(f)->pMethods->xWrite(inner(f), from, n / 2, at); /* half of it is there */
        return SQLITE_IOERR_WRITE;
    }
    return inner(f)->pMethods->xWrite(inner(f), from, n, at);
}

static int x_truncate(sqlite3_file *f, sqlite3_int64 size)
{
    return inner(f)->pMethods->xTruncate(inner(f), size);
}

static int x_sync(sqlite3_file *f, int flags)
{
    if (strikes(DISK_SYNC_FAILS))
        return SQLITE_IOERR_FSYNC;
    keep_aside((disk_file *)f);
    return inner(f)->pMethods->xSync(inner(f), flags);
}

static int x_size(sqlite3_file *f, sqlite3_int64 *out)
{
    return inner(f)->pMethods->xFileSize(inner(f), out);
}

static int x_lock(sqlite3_file *f, int level)
{
    return inner(f)->pMethods->xLock(inner(f), level);
}

static int x_unlock(sqlite3_file *f, int level)
{
    return inner(f)->pMethods->xUnlock(inner(f), level);
}

static int x_reserved(sqlite3_file *f, int *out)
{
    return inner(f)->pMethods->xCheckReservedLock(inner(f), out);
}

static int x_control(sqlite3_file *f, int op, void *arg)
{
    return inner(f)->pMethods->xFileControl(inner(f), op, arg);
}

static int x_sector(sqlite3_file *f)
{
    return inner(f)->pMethods->xSectorSize(inner(f));
}

static int x_character(sqlite3_file *f)
{
    return inner(f)->pMethods->xDeviceCharacteristics(inner(f));
}

static int x_shm_map(sqlite3_file *f, int page, int size, int extend, void volatile **out)
{
    return inner(f)->pMethods->xShmMap(inner(f), page, size, extend, out);
}

static int x_shm_lock(sqlite3_file *f, int at, int n, int flags)
{
    return inner(f)->pMethods->xShmLock(inner(f), at, n, flags);
}

static void x_shm_barrier(sqlite3_file *f)
{
    inner(f)->pMethods->xShmBarrier(inner(f));
}

static int x_shm_unmap(sqlite3_file *f, int drop)
{
    return inner(f)->pMethods->xShmUnmap(inner(f), drop);
}

static int x_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int flags, int *out)
{
    disk_file *f = (disk_file *)file;
    int rc;

    (void)vfs;
    memset(f, 0, sizeof *f);
    f->inner = calloc(1, (size_t)under->szOsFile);
    if (!f->inner)
        return SQLITE_NOMEM;
    if (flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_WAL))
        snprintf(f->name, sizeof f->name, "%s", name);
    rc = under->xOpen(under, name, f->inner, flags, out);
    if (rc == SQLITE_OK)
        f->base.pMethods = &methods;
    else
        free(f->inner);
    return rc;
}

void disk_put_in(void)
{
    under = sqlite3_vfs_find(NULL);
    disk = *under;
    disk.zName = "disk";
    disk.szOsFile = sizeof(disk_file);
    disk.xOpen = x_open;
    methods = (sqlite3_io_methods){
        2,          x_close,       x_read,      x_write,   x_truncate, x_sync,      x_size,
        x_lock,     x_unlock,      x_reserved,  x_control, x_sector,   x_character, x_shm_map,
        x_shm_lock, x_shm_barrier, x_shm_unmap, NULL,      NULL};
    disk_fail(DISK_FULL, 0, false);
    sqlite3_vfs_register(&disk, 1);
}

void disk_take_out(void)
{
    sqlite3_vfs_unregister(&disk);
    sqlite3_vfs_register(under, 1);
}
