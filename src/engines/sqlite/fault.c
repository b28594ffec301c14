/* What SQLite's errors are to a caller: a status, and what to do about it. */
#include "core/error.h"
#include "engines/sqlite/sqlite.h"

#include <errno.h>
#include <string.h>

static const struct {
    int code;
    dibs_status status;
    const char *advice;
} faults[] = {
    {SQLITE_BUSY, DIBS_UNAVAILABLE,
     "another process kept it busy for too long; look for one that is stopped or has a transaction "
     "open"},
    {SQLITE_LOCKED, DIBS_UNAVAILABLE, "another user kept it busy for too long"},
    {SQLITE_INTERRUPT, DIBS_UNAVAILABLE, "it took too long"},
    {SQLITE_NOMEM, DIBS_NO_MEMORY, "out of memory"},
    {SQLITE_FULL, DIBS_ENGINE_FAILED, "the disk or quota is full; make room"},
    {SQLITE_READONLY, DIBS_DENIED,
     "it cannot be written; check the rights of the file and its folder and how it is mounted"},
    {SQLITE_PERM, DIBS_DENIED, "check the rights of the file and its folder"},
    {SQLITE_AUTH, DIBS_DENIED, "check the rights of the file and its folder"},
    {SQLITE_CANTOPEN, DIBS_DENIED, "check that its folder exists and can be written"},
    {SQLITE_NOTADB, DIBS_ENGINE_FAILED, "it is not a SQLite database; choose another file"},
    {SQLITE_CORRUPT, DIBS_ENGINE_FAILED, "the database is damaged; move it away or restore it"},
    {SQLITE_IOERR, DIBS_ENGINE_FAILED, "check the disk and the system's log"},
};

dibs_status dibs__lite_status(int system, dibs_status otherwise)
{
    bool passes = system == EMFILE || system == ENFILE || system == ENOMEM || system == EIO ||
                  system == ENOSPC || system == EINTR;

    return passes ? DIBS_UNAVAILABLE : otherwise;
}

dibs_status dibs__lite_fault(sqlite3 *db, const char *path, const char *doing, dibs_error *err)
{
    int code = db ? sqlite3_errcode(db) & 0xff : SQLITE_NOMEM;
    const char *said = db ? sqlite3_errmsg(db) : "out of memory";
    dibs_status status = DIBS_ENGINE_FAILED;
    const char *advice = "move the database away, or report this";
    int full;

    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        if (faults[i].code == code) {
            status = faults[i].status;
            advice = faults[i].advice;
        }
    }
    if (db && code == SQLITE_CANTOPEN &&
        dibs__lite_status(sqlite3_system_errno(db), status) != status) {
        status = DIBS_UNAVAILABLE;
        advice = strerror(sqlite3_system_errno(db));
    }
    full = db ? sqlite3_extended_errcode(db) : code;
    dibs__fail(err, status, "sqlite: %.400s: %s: %.200s (%d): %s", path, doing, said, full, advice);
    dibs__error_code(err, "%d", full);
    return status;
}
