/* dibs: distributed locks with a fencing token, and idempotency, on the engine you already run.
 *
 *     dibs *d = NULL;
 *     dibs_grant *g = NULL;
 *     dibs_error err = {0};
 *
 *     if (dibs_open("redis://127.0.0.1", NULL, &d, &err) != DIBS_OK)
 *         die(err.message);
 *     if (dibs_lock(d, "stock:1", &(dibs_lock_options){.wait_ms = 5000}, &g, &err) == DIBS_OK) {
 *         take_one(dibs_grant_fence(g));            // the store rejects an older fence
 *         if (dibs_unlock(&g, &err) == DIBS_LOST)   // g is NULL now
 *             check_the_books(err.message);         // another client may have held the lock
 *     }
 *     dibs_close(d);
 *
 * A handle (`dibs`) owns the connections and a background thread, the keeper, which renews the
 * locks that are held (and a few more threads for requests, see dibs_start). A grant represents one
 * held lock. All functions may be called from any thread. Strings that are passed in are borrowed
 * for the call; strings that are returned live as long as the object they came from. Every failure
 * is a status. If a `dibs_error *` is passed (it may be NULL), its message says what failed, on
 * what, and what to do. After every call its status is the one that the call returned; after
 * DIBS_OK its message is empty. What a call returns through a pointer is set in any case: after a
 * failure to NULL, 0 or "", unless the call says otherwise. In a forked child every call on the
 * handle returns DIBS_FORKED.
 *
 * Durations are in milliseconds: 0 is the default, DIBS_NO_WAIT none, DIBS_FOREVER no limit. Each
 * option says which of these it accepts; other values above 100 years or below 0 are rejected with
 * DIBS_INVALID. Points in time (since_ms and what ends in _at_ms) are Unix time, in milliseconds.
 *
 * Structures keep their size. New members take the place of `reserved`, which must be zero: start
 * from {0}, or name the members. Structures that the library returns by pointer may grow at their
 * end. Functions that free something accept NULL.
 *
 * How long a call takes, even if the engine hangs: a call with a timeout (`wait_ms`) returns at
 * most 250 ms after that timeout. A call without one, or with DIBS_NO_WAIT, returns within
 * request_ms plus 250 ms. Only a wait of DIBS_FOREVER has no limit. dibs_open takes at most
 * connect_ms, dibs_close request_ms plus 2 seconds. A call that waits for one of your callbacks
 * takes as long as the callback. If a call has timed out, its effects on the engine are undone in
 * the background. */
#ifndef DIBS_H
#define DIBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DIBS_API   __attribute__((visibility("default")))
#define DIBS_CHECK __attribute__((warn_unused_result)) /* the status is part of the answer */
#else
#define DIBS_API
#define DIBS_CHECK
#endif

#define DIBS_NAME_MAX        512 /* bytes of a lock's name; any byte but NUL */
#define DIBS_OWNER_MAX       128 /* bytes of a named owner */
#define DIBS_FINGERPRINT_MAX 255 /* bytes of a fingerprint: see dibs_once_options */
#define DIBS_NO_WAIT         (-1)
#define DIBS_FOREVER         INT64_MAX

/* 0xMMmmpp of this header; dibs_version_number: of the library. For programs that support several
 * versions: DIBS_HAS_NAME is defined if this header has dibs_name (and what belongs to it), for all
 * that is newer than 0.1.0 and for these parts of it. */
#define DIBS_VERSION_NUMBER  0x000100
#define DIBS_HAS_EXAMINE     1
#define DIBS_HAS_FENCE_CHECK 1
#define DIBS_HAS_ONCE_RERUN  1
#define DIBS_HAS_ONCE_LIST   1
#define DIBS_HAS_START       1
#define DIBS_HAS_GRANT_ADOPT 1

/* ---- Statuses -------------------------------------------------------------------------------- */

/* What a caller can do after a failure. It depends on the call as well as on the status: see
 * dibs_error. */
typedef enum dibs_next {
    DIBS_NEXT_NONE,    /* repeating the call does not help */
    DIBS_NEXT_REPEAT,  /* the same call can be made again, safely */
    DIBS_NEXT_LATER,   /* the same, after retry_after_ms */
    DIBS_NEXT_RESTART, /* start again from the first read, or with a new transaction */
    DIBS_NEXT_INSPECT, /* it may have happened: find out before you repeat it */
} dibs_next;

/* value, name, text, usual next step, HTTP status, exit code of the command. Values never change.
 * New ones may be added: a switch needs a default. */
#define DIBS_STATUSES(ROW)                                                                     \
    ROW(0, OK, "done", NONE, 200, 0)                                                           \
    ROW(1, BUSY, "held by another client; not obtained in time", LATER, 409, 75)               \
    ROW(2, CANCELLED, "the wait was cancelled", NONE, 409, 75)                                 \
    ROW(3, LOST, "the lock was lost", RESTART, 410, 76)                                        \
    ROW(4, FENCED, "a newer holder has used the resource", RESTART, 412, 76)                   \
    ROW(5, CONFLICT, "it has changed since it was read", RESTART, 409, 1)                      \
    ROW(6, MISMATCH, "it exists, with other properties", NONE, 422, 65)                        \
    ROW(7, INVALID, "invalid request", NONE, 400, 64)                                          \
    ROW(8, NOT_FOUND, "not found", NONE, 404, 1)                                               \
    ROW(9, UNAVAILABLE, "the engine cannot be reached", LATER, 503, 69)                        \
    ROW(10, UNKNOWN, "no answer: it may or may not have happened", INSPECT, 504, 69)           \
    ROW(11, DENIED, "the engine rejected the credentials or denied permission", NONE, 502, 69) \
    ROW(12, ENGINE_FAILED, "the engine failed or returned unexpected data", INSPECT, 500, 69)  \
    ROW(13, UNSUPPORTED, "not supported by this engine or build", NONE, 501, 64)               \
    ROW(14, FORKED, "this handle belongs to the parent process", NONE, 500, 70)                \
    ROW(15, NO_MEMORY, "out of memory", LATER, 500, 71)                                        \
    ROW(16, ALREADY, "already done", NONE, 200, 0)                                             \
    ROW(17, RESTART, "roll back and start the transaction again", RESTART, 409, 75)            \
    ROW(18, RUNNING, "already in progress", LATER, 409, 75)                                    \
    ROW(19, CRASHED, "an earlier run died; its outcome is unknown", INSPECT, 409, 79)          \
    ROW(20, EXPIRED, "the key was used; its result is no longer kept", NONE, 410, 77)          \
    ROW(21, REFUSED, "the token was used, has expired or was never issued", NONE, 403, 77)     \
    ROW(22, TOO_FEW, "fewer are left than requested", NONE, 409, 1)

#define DIBS_STATUS_ROW(value, name, text, next, http, code) DIBS_##name = value,
typedef enum dibs_status { DIBS_STATUSES(DIBS_STATUS_ROW) } dibs_status;
#undef DIBS_STATUS_ROW

/* Filled in by every call that takes one, on success as well. What is not known is 0 or "". After
 * DIBS_BUSY from a lock call the holder is the one whose lease ends first, if the engine has said
 * so (names_holder): for a try at that moment, for a wait that timed out with the engine's last
 * answer, which is at most 2 seconds old. */
typedef struct dibs_error {
    dibs_status status;     /* as returned by the call */
    dibs_next next;         /* what to do */
    int64_t retry_after_ms; /* LATER: the holder's lease ends after this, unless it is renewed */
    uint64_t fence;         /* BUSY, RUNNING, CRASHED: the holder's. FENCED: the resource's floor */
    int64_t pid;            /* of the holder, as owner and host */
    char owner[DIBS_OWNER_MAX + 1];
    char host[65];
    char engine_code[32]; /* the engine's own: a SQLSTATE, "READONLY", "ECONNREFUSED" */
    char message[1024];   /* one line: what happened, to what, what to do */
    uint64_t reserved[8];
} dibs_error;

/* A status that this library does not know counts as DIBS_ENGINE_FAILED. Names of other values that
 * it does not know are "unknown" (dibs_next: "none"). */
DIBS_API const char *dibs_status_name(dibs_status status); /* "BUSY" */
DIBS_API const char *dibs_status_text(dibs_status status);
DIBS_API int dibs_status_http(dibs_status status);
DIBS_API int dibs_status_exit_code(dibs_status status);
DIBS_API const char *dibs_next_name(dibs_next next); /* "later" */
DIBS_API const char *dibs_version(void);             /* "0.1.0" */
DIBS_API uint32_t dibs_version_number(void);

/* ---- Handles --------------------------------------------------------------------------------- */

typedef struct dibs dibs;
typedef struct dibs_grant dibs_grant;

typedef enum dibs_log_level {
    DIBS_LOG_ERROR,
    DIBS_LOG_WARNING,
    DIBS_LOG_INFO,
    DIBS_LOG_DEBUG
} dibs_log_level;

/* May be called from any thread that uses the handle and from the keeper. Must not call dibs
 * functions. */
typedef void (*dibs_log_fn)(void *data, dibs_log_level level, const char *message);

/* Zero means default. One thread of the handle renews its locks, with requests that take no longer
 * than the shortest lease of the last minute allows. A lock that is taken while such a request is
 * unanswered, with a lease below 3 * request_ms and as the first with so short a lease, can
 * therefore be lost while the engine hangs, and the loss is reported up to request_ms late;
 * dibs_grant_held is right at any time. Where leases are short, choose a request_ms below a third
 * of them. */
typedef struct dibs_options {
    const char *owner;  /* copied; owner of all locks of the handle (default: the calling thread) */
    int64_t connect_ms; /* timeout of dibs_open (default 5,000) */
    int64_t request_ms; /* timeout of one request to the engine (default 5,000) */
    int64_t wait_ms;    /* timeout of calls that give none; DIBS_NO_WAIT, DIBS_FOREVER (default) */
    int64_t lease_ms; /* lease of its locks, or its session: see lease_of_handle (default 30,000) */
    bool in_background; /* dibs_open does not connect: see there */
    dibs_log_fn log;    /* default: none */
    void *log_data;
    uint64_t reserved[4];
} dibs_options;

/* Opens the engine at `url`. NULL means $DIBS_URL, or the first line of the file $DIBS_URL_FILE,
 * else the embedded store: for root the store of the machine (sqlite:machine), for any other user a
 * store in the user's state directory, which is not shared with other users. Returns
 * DIBS_UNAVAILABLE within connect_ms if the server does not answer. On every engine ?fence_above=N
 * asks for fences above N (see dibs_fence_top); DIBS_MISMATCH: this store cannot do that.
 *
 * With in_background the call only checks the URL and returns. The handle connects in a thread of
 * its own, and tries again until the server answers or refuses it. Calls that need the engine wait
 * for that, up to request_ms, and return the status of the last try; requests (dibs_start) can be
 * started at once. */
DIBS_API dibs_status dibs_open(const char *url, const dibs_options *options, dibs **out,
                               dibs_error *err);

/* Reads a URL from a file with one line, so that its password appears in no argument and no
 * environment variable. Free `out` with free(). DIBS_INVALID: the file cannot be read, or is not
 * one line. */
DIBS_API dibs_status dibs_url_read(const char *path, char **out, dibs_error *err);

/* Cancels all waits, releases all locks, abandons runs in progress, stops the keeper and frees
 * everything, including the grants, onces and outcomes of the handle. Takes at most request_ms plus
 * 2 seconds; a lock whose release was not confirmed by then is free when its lease expires. Calls
 * in progress in other threads return first, those that wait with DIBS_CANCELLED; no call may begin
 * once dibs_close was called. If that is not known, drain the handle first: see dibs_start. Must
 * not be called from a callback of the handle. In a forked child it only closes the child's copy:
 * locks stay with the parent. NULL is allowed. */
DIBS_API void dibs_close(dibs *d);

DIBS_API const char *dibs_engine_name(const dibs *d); /* "sqlite" */

/* The SQL that creates the tables of the engine at `url` (NULL as in dibs_open), for an
 * administrator to run if the account may not create tables. Does not connect. Free `out` with
 * free(). DIBS_UNSUPPORTED: the engine has no tables to create. */
DIBS_API dibs_status dibs_schema(const char *url, char **out, dibs_error *err);

/* What an engine can do, as data. */
typedef struct dibs_engine_info {
    const char *scheme;    /* "redis" */
    const char *missing;   /* package to install if this build lacks the engine, else NULL */
    bool across_processes; /* false: locks are visible in one process only (memory) */
    bool first_come;       /* waiters are served in order of arrival */
    bool notices_death;    /* a killed holder's lock is released at once, not after its lease */
    bool cells;            /* supports cells, counters, once and tokens */
    size_t value_max;      /* largest value of a cell, in bytes */
    bool shared;           /* supports shared locks; else DIBS_UNSUPPORTED, with the reason */
    bool slots;            /* supports semaphores; else the same */
    bool lease_of_handle;  /* one lease (session) for all locks of a handle; the lease of a lock can
                              only be shorter, and a dead process's locks expire with the session */
    bool fence_of_place;   /* a waiter's fence is fixed when it enters the queue */
    bool forgets_idle;     /* an unused lock is soon forgotten: slots, last break, last fence */
    bool names_holder;     /* DIBS_BUSY from a lock call names the holder, in dibs_error */
    int64_t lease_ms;      /* dibs_engine_of: the handle's lease; 0: each lock has its own, or the
                              handle is not open yet */
} dibs_engine_info;

/* The i-th engine of this version; NULL after the last one. */
DIBS_API const dibs_engine_info *dibs_engine_at(size_t i);
/* Of a handle that is not open yet: as far as it is known. What was returned before does not change
 * then: ask again. */
DIBS_API const dibs_engine_info *dibs_engine_of(const dibs *d);

/* ---- Locks ----------------------------------------------------------------------------------- */

/* Why a lock was lost. */
typedef enum dibs_loss {
    DIBS_LOSS_NONE,
    DIBS_LOSS_EXPIRED,     /* the lease expired before it was renewed, or max_hold was reached */
    DIBS_LOSS_BROKEN,      /* an operator broke the lock */
    DIBS_LOSS_GONE,        /* no longer in the engine: flushed, evicted, deleted, restored */
    DIBS_LOSS_UNREACHABLE, /* the engine did not answer before the lease expired */
    DIBS_LOSS_RESUMED,     /* the same named owner requests the lock elsewhere: stop, then unlock */
    DIBS_LOSS_CLOSED,      /* released by DIBS_OP_DRAIN: see dibs_start. Not reported */
} dibs_loss;

/* Called once for each lost grant, on the keeper, without any internal lock held. `g` stays valid
 * until dibs_unlock, which may be called from the callback. When dibs_unlock returns, the callback
 * is not running and will not start: dibs_unlock waits for a callback that is running on another
 * thread. Exception: if two callbacks unlock each other's grants at the same time, one of the two
 * calls does not wait. The callback must not wait for a lock: it blocks the keeper, which renews
 * locks. */
typedef void (*dibs_lost_fn)(void *data, dibs_grant *g, dibs_loss why);

/* Zero means default. */
typedef struct dibs_lock_options {
    int64_t wait_ms;     /* timeout; DIBS_NO_WAIT: try once; DIBS_FOREVER (default: the handle's) */
    int64_t lease_ms;    /* a silent holder's lock is released after this (default: the handle's) */
    int64_t max_hold_ms; /* the lock is not renewed beyond this (default: DIBS_FOREVER) */
    int64_t min_hold_ms; /* a lock released earlier stays taken until then (default: none) */
    bool no_renew;       /* the keeper does not renew the lease; see dibs_renew */
    bool not_reentrant;  /* the call is its own owner: it never shares a grant of its thread */
    bool shared;         /* shared (read) lock: excludes exclusive holders only */
    bool portable;       /* can be exported; lives by its lease alone: see dibs_grant_export */
    uint32_t slots;      /* semaphore: number of slots. 0 or 1: a plain lock */
    uint32_t weight;     /* semaphore: slots that this call takes (default 1) */
    const char *owner;   /* owner of the lock (default: the handle's, else the calling thread) */
    dibs_lost_fn on_lost; /* default: the loss is an outcome, see dibs_take */
    void *data;           /* for on_lost */
    uint64_t reserved[4];
} dibs_lock_options;

/* Acquires the lock. Its owner is the named one (`owner`, else the handle's); without a name it is
 * the calling thread, but for semaphores, requests and portable locks the call itself, as always
 * with not_reentrant. Locks are reentrant: if the same owner asks again on this handle, it gets the
 * same grant without I/O; call dibs_unlock once per dibs_lock. A named owner that holds the lock
 * through another process or handle waits for it like any other client, and that holder is asked to
 * stop: its grant is lost (DIBS_LOSS_RESUMED), and the lock is free after its dibs_unlock, or when
 * its lease expires. The two never hold it at the same time. With DIBS_NO_WAIT the call returns
 * DIBS_BUSY and the holder is not asked to stop. A named owner can wait for a lock in one thread
 * per handle: a second call returns DIBS_INVALID. DIBS_BUSY: not obtained in time. DIBS_MISMATCH:
 * the lock has a different number of slots, or the owner holds it shared and asks for it
 * exclusively. DIBS_LOST: the owner's grant was lost; unlock it first. DIBS_UNAVAILABLE: the engine
 * could not be reached within the timeout. */
DIBS_API dibs_status dibs_lock(dibs *d, const char *name, const dibs_lock_options *options,
                               dibs_grant **out, dibs_error *err);

/* Acquires all `count` locks or none, in sorted order, so that callers cannot deadlock. `out[i]` is
 * the grant of `names[i]`; a name given twice is one reentrant grant. When it returns DIBS_OK, all
 * locks are held; max_hold_ms and no_renew apply from then on. If a lock is lost while the call
 * waits for the others, that is not reported: all are released and acquired again within wait_ms.
 * If the call fails, min_hold_ms is not applied. */
DIBS_API dibs_status dibs_lock_many(dibs *d, const char *const names[], size_t count,
                                    const dibs_lock_options *options, dibs_grant *out[],
                                    dibs_error *err);

/* Undoes one dibs_lock and sets `*g` to NULL, whatever the status. The last one releases the lock
 * and frees the grant, in a forked child as well (which returns DIBS_FORKED; the parent still holds
 * the lock). DIBS_LOST: the lock was no longer held, so others may have worked at the same time.
 * DIBS_UNAVAILABLE, DIBS_UNKNOWN: the lock is free when its lease expires. DIBS_INVALID: `*g` is
 * NULL. */
DIBS_API DIBS_CHECK dibs_status dibs_unlock(dibs_grant **g, dibs_error *err);

/* Renews the lease, in full, from now. For holders with no_renew. */
DIBS_API dibs_status dibs_renew(dibs_grant *g, dibs_error *err);

/* Is the lock still held, by the local clock? No I/O. NULL, which dibs_unlock leaves, is allowed in
 * all functions of a grant: it is not held, its fence is 0, its name is "", and it cannot be
 * renewed. */
DIBS_API bool dibs_grant_held(const dibs_grant *g);
DIBS_API int64_t dibs_grant_remaining_ms(const dibs_grant *g); /* 0 when lost */
DIBS_API dibs_loss dibs_grant_loss(const dibs_grant *g);
DIBS_API const char *dibs_loss_name(dibs_loss why); /* "expired"; of DIBS_LOSS_NONE "none" */
DIBS_API const char *dibs_loss_text(dibs_loss why);

/* The fencing token: grows with every grant of this name. A resource that remembers the highest
 * floor and rejects a lower fence is safe from holders whose lease has expired. With one holder at
 * a time floor == fence; with several, floor is the lowest fence among them. */
DIBS_API uint64_t dibs_grant_fence(const dibs_grant *g);
DIBS_API uint64_t dibs_grant_floor(const dibs_grant *g);
/* An upper bound of all fences that this store has given out so far. A store on another engine that
 * is opened with ?fence_above=N in its URL gives out fences above N, or is not opened
 * (DIBS_MISMATCH). So locks can move to it, and resources accept the new fences. See
 * docs/moving.md. */
DIBS_API dibs_status dibs_fence_top(dibs *d, uint64_t *out, dibs_error *err);
DIBS_API const char *dibs_grant_name(const dibs_grant *g);
DIBS_API const char *dibs_grant_owner(const dibs_grant *g);

/* Portable grants: a lock that was taken with `portable` can pass to another handle, process or
 * machine, with the same fence. Its holder may die: the lock lives by its lease alone, also on
 * engines with notices_death. DIBS_UNSUPPORTED where the lease belongs to the handle's session
 * (lease_of_handle). See docs/portable.md. */
#define DIBS_GRANT_SIZE 1024 /* of an exported grant, with its NUL; most have 200 bytes */

/* Writes the grant as a text: letters, digits and "._-". It stays the same until the lock is
 * released or lost, also in the hands of those who adopt it. It is a secret: anyone who has it can
 * renew and release the lock. DIBS_INVALID: taken without `portable`. DIBS_LOST: no longer held. */
DIBS_API dibs_status dibs_grant_export(const dibs_grant *g, char out[DIBS_GRANT_SIZE],
                                       dibs_error *err);

/* Takes up the grant of an exported text: asks the engine, which renews its lease; from then on
 * this handle holds it as if it had acquired it. Several handles may hold one portable grant at the
 * same time: each renews it, each can release it, and the others then lose it. Of `options` (NULL:
 * defaults) no_renew, max_hold_ms (counted from now), on_lost and data are used; the others must be
 * zero. DIBS_LOST: released, expired or broken, or not of this store; if `*out` is not NULL, the
 * engine keeps the lock for its holder until the lease expires: stop the work, then call
 * dibs_unlock. DIBS_ALREADY: this handle has the grant. DIBS_INVALID: the text is damaged, or of
 * another engine. DIBS_UNAVAILABLE, DIBS_UNKNOWN: no answer; the text is still good. */
DIBS_API DIBS_CHECK dibs_status dibs_grant_adopt(dibs *d, const char *text,
                                                 const dibs_lock_options *options, dibs_grant **out,
                                                 dibs_error *err);

/* Forgets a portable grant without releasing the lock, which is free when its lease expires unless
 * somebody who has the text adopts or renews it. Sets `*g` to NULL and frees the grant. dibs_close
 * releases what was not detached. DIBS_LOST: it was no longer held (and is freed). DIBS_INVALID:
 * not portable, or acquired more than once (unlock the others first): `*g` is unchanged. */
DIBS_API dibs_status dibs_grant_detach(dibs_grant **g, dibs_error *err);

/* Ends every wait of this handle for the lock `name`: to acquire it, and for its holders in
 * dibs_lock_break. NULL: for any lock, and for any run of once. The waiting calls and requests end
 * with DIBS_CANCELLED. */
DIBS_API void dibs_cancel(dibs *d, const char *name);

/* A holder, a waiter, or the runner of a once. */
typedef struct dibs_party {
    const char *owner;
    const char *host;
    int64_t pid;
    int64_t since_ms; /* Unix time: holding or waiting since */
    int64_t left_ms;  /* holder: lease left; waiter: time until it is considered dead */
    uint64_t fence;   /* holder, runner */
    uint32_t weight;
    bool shared;
    bool released; /* released, but taken until min_hold is over */
    bool breaking; /* an operator is breaking the lock */
} dibs_party;

/* ---- Cells: values with compare-and-swap ----------------------------------------------------- */

#define DIBS_VALUE_MAX   (1024 * 1024) /* bytes of a value; some engines allow less: value_max */
#define DIBS_ANY_VERSION UINT64_MAX

/* The contents of a cell. Free with dibs_value_free. */
typedef struct dibs_value {
    void *data; /* a NUL follows the bytes */
    size_t size;
    uint64_t version; /* grows with every change of this name, also after a deletion */
    int64_t left_ms;  /* until it expires; DIBS_FOREVER */
    uint64_t reserved[2];
} dibs_value;

/* Zero means default. A write with a fence is rejected (DIBS_FENCED) if the cell has seen a newer
 * one; otherwise it raises the cell's floor to its fence, so an older fence never overwrites a
 * newer one. With several holders (shared, slots) the floor is raised to `floor` instead, and the
 * others can still write. `grant` is the simplest: the fence cannot be forgotten, also after
 * dibs_unlock. */
typedef struct dibs_cell_options {
    int64_t keep_ms;          /* expires after this (default: DIBS_FOREVER) */
    dibs_grant *const *grant; /* &g: write under this grant, with its fence and floor; DIBS_LOST
                                 if it is lost, DIBS_INVALID if it was unlocked (g is NULL) */
    uint64_t fence;           /* instead of a grant: its fence. 0, and no grant: not checked */
    uint64_t floor;           /* the grant's dibs_grant_floor (default: the fence) */
    uint64_t reserved[4];
} dibs_cell_options;

/* DIBS_NOT_FOUND: the cell does not exist. */
DIBS_API dibs_status dibs_cell_read(dibs *d, const char *name, dibs_value *out, dibs_error *err);

/* Writes if the cell still has that version (0: the cell must not exist; DIBS_ANY_VERSION: it must
 * exist). `now` (may be NULL) receives the state of the cell afterwards, without data if it was
 * written. DIBS_CONFLICT: it has a different version; `now` has that version and its value.
 * DIBS_NOT_FOUND: the cell does not exist. DIBS_UNKNOWN: no answer, and the outcome can no longer
 * be determined: read the cell and decide again. */
DIBS_API dibs_status dibs_cell_swap(dibs *d, const char *name, uint64_t version, const void *data,
                                    size_t size, const dibs_cell_options *options, dibs_value *now,
                                    dibs_error *err);
DIBS_API dibs_status dibs_cell_delete(dibs *d, const char *name, uint64_t version,
                                      const dibs_cell_options *options, dibs_error *err);
DIBS_API void dibs_value_free(dibs_value *value);

/* Checks a fence on a resource that is a cell: presents the options' fence before the first read.
 * Raises the cell's floor to their `floor` (default: to the fence), then reads into `out` (may be
 * NULL; version 0 if there is no value yet). DIBS_FENCED: a newer holder has been here. Plain
 * writes with a fence do not need this. A read-modify-write does: raise the floor, read, then write
 * with the fence. Otherwise an older holder may write between the read and the write. */
DIBS_API dibs_status dibs_cell_pass(dibs *d, const char *name, const dibs_cell_options *options,
                                    dibs_value *out, dibs_error *err);

/* ---- Counters -------------------------------------------------------------------------------- */

/* Zero means default. */
typedef struct dibs_counter_options {
    const char *request; /* request id: a repeated id is counted once (default: none) */
    int64_t keep_ms;     /* how long the id is remembered; DIBS_FOREVER (default: 24 hours) */
    uint64_t reserved[4];
} dibs_counter_options;

/* A counter is never below zero. DIBS_OK: counted; `value` (may be NULL) receives the new value.
 * DIBS_ALREADY: this request was counted before; `value` receives what was returned then. Of all
 * calls with the same request id at most one returns DIBS_OK. It may be none: if the answer was
 * lost and the counter has changed since, the call that was counted also returns DIBS_ALREADY.
 * DIBS_NOT_FOUND: the counter does not exist. DIBS_UNKNOWN: no answer; without a request id the
 * call cannot be repeated. */
DIBS_API dibs_status dibs_counter_get(dibs *d, const char *name, int64_t *value, dibs_error *err);
DIBS_API dibs_status dibs_counter_set(dibs *d, const char *name, int64_t value,
                                      const dibs_counter_options *options, dibs_error *err);
/* `n` may be negative. A missing counter is 0. DIBS_TOO_FEW: the result would be below zero. */
DIBS_API dibs_status dibs_counter_add(dibs *d, const char *name, int64_t n,
                                      const dibs_counter_options *options, int64_t *value,
                                      dibs_error *err);
/* Takes `n` (1 or more) if that many are left, else nothing: DIBS_TOO_FEW; `value` is what is left. */
DIBS_API dibs_status dibs_counter_take(dibs *d, const char *name, int64_t n,
                                       const dibs_counter_options *options, int64_t *value,
                                       dibs_error *err);

/* ---- Once ------------------------------------------------------------------------------------ */

/* Work that is done once per key:
 *
 *     switch (dibs_once_begin(d, "order:17", &(dibs_once_options){.scope = "pay"}, &o, &err)) {
 *     case DIBS_OK:      pay(o); dibs_once_finish(o, receipt, size, 0, &err); break;
 *     case DIBS_ALREADY: replay(dibs_once_result(o, &size)); break;
 *     default:           report(&err);                       // RUNNING, MISMATCH, CRASHED …
 *     }
 *     dibs_once_free(o);
 *
 * If the runner dies, the outcome of its run is unknown, and the caller chooses: refuse (at most
 * once) or run again (at least once). Exactly once is possible only if key and effect are in one
 * transaction: see dibs_sql_once in dibs_sql.h. */
typedef struct dibs_once dibs_once;

typedef enum dibs_on_crash {
    DIBS_CRASH_REFUSE, /* DIBS_CRASHED, as long as the key is kept: at most once */
    DIBS_CRASH_RERUN,  /* run again, with a higher fence and the recorded steps: at least once */
} dibs_on_crash;

typedef void (*dibs_once_lost_fn)(void *data, dibs_once *o);

/* Zero means default. */
typedef struct dibs_once_options {
    const char *scope;       /* namespace of the key: a tenant, an endpoint, a queue (default "") */
    const void *fingerprint; /* identifies the request, usually its hash: the same key with a
                                different fingerprint is rejected (DIBS_MISMATCH) */
    size_t fingerprint_size; /* up to DIBS_FINGERPRINT_MAX. 0: no fingerprint */
    int64_t lease_ms; /* a silent runner is considered dead after this (default: the handle's) */
    int64_t keep_ms;  /* how long the result is kept; DIBS_FOREVER (default: 24 hours). A key that
                         was released keeps a record for a day in any case, against late requests */
    int64_t tombstone_ms; /* then, how long DIBS_EXPIRED is returned; DIBS_FOREVER (default: 0) */
    int64_t wait_ms;      /* timeout for a run in progress; DIBS_NO_WAIT: return DIBS_RUNNING at
                             once; DIBS_FOREVER (default: the handle's) */
    dibs_on_crash on_crash;
    dibs_once_lost_fn on_lost; /* the run was lost: others may take over. As in dibs_lock_options */
    void *data;                /* for on_lost */
    const char *owner;         /* shown to operators (default as in dibs_lock_options) */
    uint64_t reserved[4];
} dibs_once_options;

/* DIBS_OK: the caller runs the work, and ends the run with finish, fail or abandon. DIBS_ALREADY:
 * it was done before; see dibs_once_result. DIBS_RUNNING: already in progress; see
 * dibs_once_runner, and dibs_once_wait to wait for it. DIBS_MISMATCH, DIBS_CRASHED, DIBS_EXPIRED:
 * see the statuses. DIBS_UNKNOWN: no answer; the caller must not run the work. If the engine began
 * a run, or begins one later, it is withdrawn, and the key is as it was before. DIBS_UNAVAILABLE:
 * the same, if the answer came after the lease had expired. After DIBS_OK, ALREADY, RUNNING,
 * MISMATCH, CRASHED and EXPIRED `out` is set, and freed by the caller; after any other status it is
 * NULL. */
DIBS_API dibs_status dibs_once_begin(dibs *d, const char *key, const dibs_once_options *options,
                                     dibs_once **out, dibs_error *err);

/* After DIBS_RUNNING: waits up to wait_ms (as in dibs_once_options) for the run to end. Returns the
 * statuses of begin. */
DIBS_API dibs_status dibs_once_wait(dibs_once *o, int64_t wait_ms, dibs_error *err);

/* After DIBS_CRASHED, if the caller decides to run the work again: see dibs_once_runner for who
 * died, and dibs_once_step_data for what it had done. Takes over from that run, or returns what has
 * become of the key in the meantime, as dibs_once_begin does. After DIBS_UNKNOWN the caller must
 * not run the work. */
DIBS_API dibs_status dibs_once_rerun(dibs_once *o, dibs_error *err);

/* During a run. The fence grows with every run of this key; held uses the local clock, no I/O. */
DIBS_API uint64_t dibs_once_fence(const dibs_once *o);
DIBS_API bool dibs_once_held(const dibs_once *o);
DIBS_API int64_t dibs_once_remaining_ms(const dibs_once *o); /* 0 if the run is not held */
DIBS_API bool dibs_once_again(const dibs_once *o);           /* an earlier runner died */

/* Records a recovery point: what has been done so far, stored with the key until the run ends. A
 * later run of the same key can continue from there. The same step again replaces its data.
 * DIBS_LOST: the run is no longer held. */
DIBS_API dibs_status dibs_once_step(dibs_once *o, const char *step, const void *data, size_t size,
                                    dibs_error *err);
/* The data of a recorded step, or NULL if the step was not reached. Valid until the step is
 * replaced or `o` is freed. */
DIBS_API const void *dibs_once_step_data(const dibs_once *o, const char *step, size_t *size);

/* The work is done: stores the result and a code of the caller's for duplicates. DIBS_LOST: another
 * run has taken over, or the record is gone; nothing was written. DIBS_UNAVAILABLE, DIBS_UNKNOWN:
 * call it again. */
DIBS_API dibs_status dibs_once_finish(dibs_once *o, const void *result, size_t size, int code,
                                      dibs_error *err);
/* The work has failed, finally: duplicates get this result. As dibs_once_finish otherwise. */
DIBS_API dibs_status dibs_once_fail(dibs_once *o, const void *result, size_t size, int code,
                                    dibs_error *err);
/* Nothing has happened: the key is released, and the next call runs the work again. But if this run
 * had taken over from one that died, the key is crashed again, because the outcome of the earlier
 * run is still unknown. The steps of both runs are kept. */
DIBS_API dibs_status dibs_once_undo(dibs_once *o, dibs_error *err);
/* The outcome is unknown: the same as if the runner had died, without waiting for the lease. A
 * finish or fail that has reached the engine stands, even if its answer was lost (DIBS_UNKNOWN). */
DIBS_API dibs_status dibs_once_abandon(dibs_once *o, dibs_error *err);

/* After DIBS_ALREADY. */
DIBS_API const void *dibs_once_result(const dibs_once *o, size_t *size); /* NULL: no result */
DIBS_API int dibs_once_code(const dibs_once *o);
DIBS_API bool dibs_once_failed(const dibs_once *o); /* the run ended with a final failure */
/* The runner: current, finished or dead. `left_ms`: until it is considered dead, or its result
 * expires. `size` is sizeof *out. */
DIBS_API void dibs_once_runner(const dibs_once *o, dibs_party *out, size_t size);

/* Abandons a run in progress. NULL is allowed. */
DIBS_API void dibs_once_free(dibs_once *o);

/* ---- Once, for operators --------------------------------------------------------------------- */

/* The states are bits: a list selects several. */
typedef enum dibs_once_state {
    DIBS_ONCE_RUNNING = 1,  /* in progress */
    DIBS_ONCE_CRASHED = 2,  /* the runner died, or abandoned the run: its outcome is unknown */
    DIBS_ONCE_DONE = 4,     /* finished: duplicates get the result */
    DIBS_ONCE_FAILED = 8,   /* failed, finally: the same */
    DIBS_ONCE_EXPIRED = 16, /* the result is no longer kept: duplicates get DIBS_EXPIRED */
    DIBS_ONCE_FREE = 32,    /* undone or forgotten: the next call runs the work */
    DIBS_ONCE_DAMAGED = 64, /* the record cannot be read */
} dibs_once_state;

DIBS_API const char *dibs_once_state_name(dibs_once_state state); /* "running" */

typedef struct dibs_once_step_info {
    const char *name;
    const void *data;
    size_t size;
} dibs_once_step_info;

typedef struct dibs_once_info {
    const char *scope;
    const char *key;
    dibs_once_state state;
    uint64_t version;         /* grows with every change: see dibs_once_forget_options */
    uint32_t runs;            /* 1: the first run; more: earlier ones died */
    const dibs_party *runner; /* as dibs_once_runner; NULL: damaged */
    const char *decided_by;   /* the operator who forgot or resolved it, or NULL */
    int64_t left_ms;          /* until the record is removed; DIBS_FOREVER */
    int code;                 /* done, failed */
    size_t result_size;
    const void *result; /* only dibs_once_inspect; NULL: none */
    size_t step_count;
    const dibs_once_step_info *const *steps; /* only dibs_once_inspect; NULL: none */
    const char *damage;                      /* damaged: what is wrong; else NULL */
} dibs_once_info;

typedef struct dibs_once_report dibs_once_report;

/* Zero means default. */
typedef struct dibs_once_list_options {
    const char *scope; /* only keys of this scope (default: of all scopes) */
    uint32_t states;   /* any of dibs_once_state (default: all but DIBS_ONCE_FREE) */
    const char *after; /* from dibs_once_report_next: continue there (default: from the start) */
    size_t limit;      /* at most so many, up to 10,000 (default 1,000) */
    uint64_t reserved[4];
} dibs_once_list_options;

/* Lists the keys that begin with `prefix` (NULL: all), a page at a time, by scope and key in an
 * order that does not change. It may return fewer than `limit`, also none, if looking for them
 * takes long: the list is complete when dibs_once_report_next returns NULL. Keys that are there
 * during the whole of a listing are listed once; changes in the meantime may be missed. */
DIBS_API dibs_status dibs_once_list(dibs *d, const char *prefix,
                                    const dibs_once_list_options *options, dibs_once_report **out,
                                    dibs_error *err);

/* Zero means default. */
typedef struct dibs_once_inspect_options {
    const char *scope; /* as in dibs_once_options */
    uint64_t reserved[4];
} dibs_once_inspect_options;

/* One key, with its steps and its result. Begins no run. DIBS_NOT_FOUND: the key was not used, or
 * its record has been removed. */
DIBS_API dibs_status dibs_once_inspect(dibs *d, const char *key,
                                       const dibs_once_inspect_options *options,
                                       dibs_once_report **out, dibs_error *err);

DIBS_API size_t dibs_once_report_count(const dibs_once_report *r);
DIBS_API const dibs_once_info *dibs_once_report_at(const dibs_once_report *r, size_t i);
DIBS_API const char *dibs_once_report_next(const dibs_once_report *r); /* `after`; NULL: the end */
DIBS_API void dibs_once_report_free(dibs_once_report *r);

/* Zero means default. */
typedef struct dibs_once_forget_options {
    const char *scope; /* as in dibs_once_options */
    uint64_t version;  /* only if the record has this version (default: whatever is there now) */
    bool running;      /* also a run in progress, or a damaged record: the run is lost */
    const char *by;    /* who decides: recorded, and shown to operators (default "?") */
    uint64_t reserved[4];
} dibs_once_forget_options;

/* Forgets what happened to the key: the next call runs the work again. A runner that is still alive
 * gets DIBS_LOST from its next call. DIBS_OK: also if the key was free. DIBS_RUNNING: in progress.
 * DIBS_CONFLICT: the record has another version. DIBS_NOT_FOUND: as dibs_once_inspect.
 * DIBS_ENGINE_FAILED: the record is damaged. DIBS_UNKNOWN: inspect the key before you repeat the
 * call. */
DIBS_API dibs_status dibs_once_forget(dibs *d, const char *key,
                                      const dibs_once_forget_options *options, dibs_error *err);

/* Zero means default. */
typedef struct dibs_once_resolve_options {
    const char *scope; /* as in dibs_once_options */
    uint64_t version;  /* only if the record has this version (default: whatever is there now) */
    dibs_once_state outcome; /* required: DIBS_ONCE_DONE, _FAILED, _FREE (nothing has happened), or
                                _CRASHED: declares the runner of a run in progress dead */
    const void *result;      /* done, failed: what duplicates get (default: no result) */
    size_t size;
    int code;
    const char *by; /* who decides: recorded, and shown to operators (default "?") */
    uint64_t reserved[4];
} dibs_once_resolve_options;

/* Decides the outcome of a crashed key. A runner that was only slow gets DIBS_LOST from its next
 * call. The result is kept as long as the run had asked for. DIBS_CONFLICT: the key is not crashed
 * (outcome CRASHED: not running) any more, or the record has another version. Other statuses as
 * dibs_once_forget. */
DIBS_API dibs_status dibs_once_resolve(dibs *d, const char *key,
                                       const dibs_once_resolve_options *options, dibs_error *err);

/* ---- Tokens ---------------------------------------------------------------------------------- */

#define DIBS_TOKEN_SIZE 64 /* with its NUL */

/* Zero means default. */
typedef struct dibs_token_options {
    const char *scope; /* what the token is for (default "") */
    int64_t ttl_ms;    /* expires after this (default: 10 minutes) */
    uint64_t reserved[4];
} dibs_token_options;

/* Creates an unguessable token that can be redeemed once, in its scope. */
DIBS_API dibs_status dibs_token_issue(dibs *d, const dibs_token_options *options,
                                      char out[DIBS_TOKEN_SIZE], dibs_error *err);
/* DIBS_OK: returned to exactly one caller, who does the work now. DIBS_REFUSED: the token was used,
 * has expired, was never issued, or is for another scope. */
DIBS_API dibs_status dibs_token_redeem(dibs *d, const char *token,
                                       const dibs_token_options *options, dibs_error *err);
/* If the work after a redemption failed: returns one replacement token, the same one for every
 * call. DIBS_REFUSED: the token was not redeemed, or has expired. */
DIBS_API dibs_status dibs_token_reissue(dibs *d, const char *token,
                                        const dibs_token_options *options,
                                        char out[DIBS_TOKEN_SIZE], dibs_error *err);

/* ---- Inspecting and breaking locks ----------------------------------------------------------- */

typedef struct dibs_lock_info {
    const char *name;
    uint32_t slots; /* of a semaphore; 0: a plain lock (exclusive or shared) */
    uint32_t used;  /* slots taken; plain locks: 1 if exclusive, else the number of sharers */
    uint64_t fence; /* the highest fence given out */
    const dibs_party *const *holders;
    size_t holder_count;
    const dibs_party *const *waiters; /* in queue order; NULL: only counted, as in a list */
    size_t waiter_count;
    const char *broken_by; /* who broke the lock last, or NULL */
    int64_t broken_at_ms;
    const char *const *notes; /* engine-specific notes, one line each; NULL in a list */
    size_t note_count;
} dibs_lock_info;

typedef struct dibs_lock_report dibs_lock_report;

/* DIBS_NOT_FOUND: the lock has not been used for a day (on ZooKeeper: for about a minute; on etcd:
 * it is not in use). */
DIBS_API dibs_status dibs_lock_inspect(dibs *d, const char *name, dibs_lock_report **out,
                                       dibs_error *err);

/* Zero means default. */
typedef struct dibs_lock_list_options {
    bool idle;         /* also those that nobody holds or waits for */
    const char *after; /* only names that come after this one (default: all) */
    size_t limit;      /* at most so many (default: all) */
    uint64_t reserved[4];
} dibs_lock_list_options;

/* Lists the locks whose names start with `prefix` (NULL: all), sorted by name. */
DIBS_API dibs_status dibs_lock_list(dibs *d, const char *prefix,
                                    const dibs_lock_list_options *options, dibs_lock_report **out,
                                    dibs_error *err);
DIBS_API size_t dibs_lock_report_count(const dibs_lock_report *r);
DIBS_API const dibs_lock_info *dibs_lock_report_at(const dibs_lock_report *r, size_t i);
DIBS_API void dibs_lock_report_free(dibs_lock_report *r);

/* Zero means default. */
typedef struct dibs_lock_break_options {
    const char *by;  /* who breaks it: recorded, and shown to operators (default "?") */
    bool now;        /* do not wait for the holders: only the fence protects the resource */
    int64_t wait_ms; /* as in dibs_lock_options */
    uint64_t reserved[4];
} dibs_lock_break_options;

/* Takes the lock from its holders and raises the fence. Every holder is notified within about a
 * second (Redlock: at its next renewal, after a third of its lease). The lock is free when all of
 * them have released it or their leases have expired; the call returns then, or with DIBS_BUSY
 * after wait_ms (as in dibs_lock_options). With `now` the lock is free at once, and only the fence
 * protects the resource. */
DIBS_API dibs_status dibs_lock_break(dibs *d, const char *name,
                                     const dibs_lock_break_options *options, dibs_error *err);

/* ---- Without blocking ------------------------------------------------------------------------ */

/* Every call above that asks the engine can be made as a request, except dibs_lock_many and
 * dibs_fence_top. It is started without I/O, and its outcome is taken later, by a thread that waits
 * for other things as well:
 *
 *     dibs_start(d, &(dibs_request){.op = DIBS_OP_LOCK, .name = "stock:1", .user = order}, &id, &err);
 *     ...
 *     while (dibs_take(d, &o))          // when dibs_fd(d) is readable
 *         go_on(o.user, &o);            // o.err.status is the outcome, o.grant the lock
 *
 * The engine is asked by a few threads of the handle (memory: by the calling thread). A request
 * that waits (for a lock, a run or a break) occupies none of them. Requests for the same lock enter
 * its queue in the order in which they were started; other requests may overtake each other. */
typedef enum dibs_op {
    DIBS_OP_LOST = 1, /* never started: a grant or a run was lost. See dibs_take */
    DIBS_OP_LOCK = 10,
    DIBS_OP_UNLOCK, /* `grant`, which belongs to the library once dibs_start has returned DIBS_OK */
    DIBS_OP_RENEW,  /* `grant` */
    DIBS_OP_GRANT_ADOPT, /* `name`: the text */
    DIBS_OP_LOCK_INSPECT,
    DIBS_OP_LOCK_LIST, /* `name`: the prefix */
    DIBS_OP_LOCK_BREAK,
    DIBS_OP_ONCE_BEGIN = 20,
    DIBS_OP_ONCE_WAIT,    /* `once`; `number`: wait_ms */
    DIBS_OP_ONCE_RERUN,   /* `once` */
    DIBS_OP_ONCE_STEP,    /* `once`; `name`: the step; `data` and `size` */
    DIBS_OP_ONCE_FINISH,  /* `once`; `data` and `size`: the result; `number`: the code */
    DIBS_OP_ONCE_FAIL,    /* the same */
    DIBS_OP_ONCE_UNDO,    /* `once` */
    DIBS_OP_ONCE_ABANDON, /* `once` */
    DIBS_OP_ONCE_LIST,    /* `name`: the prefix */
    DIBS_OP_ONCE_INSPECT,
    DIBS_OP_ONCE_FORGET,
    DIBS_OP_ONCE_RESOLVE,
    DIBS_OP_TOKEN_ISSUE = 40,
    DIBS_OP_TOKEN_REDEEM,  /* `name`: the token */
    DIBS_OP_TOKEN_REISSUE, /* the same */
    DIBS_OP_COUNTER_GET = 50,
    DIBS_OP_COUNTER_SET, /* `number` */
    DIBS_OP_COUNTER_ADD,
    DIBS_OP_COUNTER_TAKE,
    DIBS_OP_CELL_READ = 60,
    DIBS_OP_CELL_SWAP,   /* `version`, `data` and `size` */
    DIBS_OP_CELL_DELETE, /* `version` */
    DIBS_OP_CELL_PASS,
    DIBS_OP_DRAIN = 90, /* what dibs_close does, except freeing: see dibs_start */
} dibs_op;

/* One call as data: the arguments of the function that `op` names. Everything is copied. */
typedef struct dibs_request {
    dibs_op op;
    const char *name; /* of the lock, key, counter or cell */
    union {           /* those of the function; NULL: defaults */
        const dibs_lock_options *lock;
        const dibs_lock_list_options *lock_list;
        const dibs_lock_break_options *lock_break;
        const dibs_once_options *once;
        const dibs_once_list_options *once_list;
        const dibs_once_inspect_options *once_inspect;
        const dibs_once_forget_options *once_forget;
        const dibs_once_resolve_options *once_resolve;
        const dibs_token_options *token;
        const dibs_counter_options *counter;
        const dibs_cell_options *cell;
    } options;
    dibs_grant *grant;
    dibs_once *once;
    const void *data;
    size_t size;
    uint64_t version;
    int64_t number;
    void *user; /* returned with the outcome */
    uint64_t reserved[8];
} dibs_request;

/* How one request ended. `grant`, `once`, the reports and `value`, where they are set, belong to
 * the caller, as after the blocking call. */
typedef struct dibs_outcome {
    uint64_t id; /* 0: LOST */
    dibs_op op;
    dibs_loss loss; /* LOST: why a grant was lost */
    void *user;     /* the request's; LOST: the `data` of the options */
    dibs_grant *grant;
    dibs_once *once;
    dibs_lock_report *lock_report;
    dibs_once_report *once_report;
    dibs_value value;
    int64_t number; /* of a counter */
    char token[DIBS_TOKEN_SIZE];
    dibs_error err; /* err.status is the outcome */
    uint64_t reserved[8];
} dibs_outcome;

/* Starts a request. Never blocks and does no I/O. DIBS_OK: exactly one outcome with this `id`
 * (never 0; may be NULL) will follow, also if the handle is drained. Any other status: nothing was
 * started. The outcome follows within the time of the blocking call; if earlier requests get no
 * answer, up to request_ms later. A lock belongs to the request itself, unless an owner is named.
 * The `grant` of cell options is looked at here: its fence goes along, and DIBS_LOST is returned if
 * it is lost. A run (`once`) takes one request at a time, and like `grant` must not be freed before
 * its outcome.
 *
 * DIBS_OP_DRAIN cancels all waits, releases all locks and abandons runs in progress. Its outcome is
 * the last one, and afterwards dibs_close does not block. Other threads may go on: until
 * dibs_close, calls that begin return DIBS_CANCELLED, and dibs_unlock and dibs_once_free still free
 * what they are given (DIBS_LOST, with DIBS_LOSS_CLOSED: the lock was released by the drain). So a
 * handle that many threads use is ended by a drain, the end of these threads, and dibs_close. */
DIBS_API DIBS_CHECK dibs_status dibs_start(dibs *d, const dibs_request *r, uint64_t *id,
                                           dibs_error *err);

/* Ends the wait of a request: its outcome is DIBS_CANCELLED, unless another outcome came first.
 * Only LOCK, ONCE_BEGIN, ONCE_WAIT, LOCK_BREAK and requests that have not been sent yet (except
 * UNLOCK) can be stopped. An id whose outcome is there already is ignored. Never blocks. */
DIBS_API void dibs_stop(dibs *d, uint64_t id);

/* A file descriptor that is readable while dibs_take has an outcome. Do not read it. It belongs to
 * the handle, and stays the same. Timers are not needed: the keeper has them. -1 in a forked child.
 */
DIBS_API int dibs_fd(const dibs *d);

/* Takes the oldest outcome. False: there is none. Never blocks and calls nothing of yours. A grant
 * or run that was lost and has no on_lost callback is reported here as DIBS_OP_LOST; it still
 * belongs to the caller, who unlocks or frees it. A lock that is lost before its outcome is taken
 * has the outcome DIBS_LOST, without a grant. */
DIBS_API bool dibs_take(dibs *d, dibs_outcome *out);

/* ---- The fence, where no engine checks it ----------------------------------------------------- */

#define DIBS_FENCE_SIZE 48 /* with its NUL */

/* The grant's fence (and floor) as text: for a header, a column, an object's metadata. */
DIBS_API void dibs_fence_text(const dibs_grant *g, char out[DIBS_FENCE_SIZE]);

/* The decision of a resource, without I/O: `kept` is what it stored the last time (NULL or "":
 * nothing yet), `shown` is what a client presents. DIBS_OK: let it in, and store `out` in the same
 * step. DIBS_FENCED: a newer holder has been here; err->fence is the floor. DIBS_INVALID: one of
 * the texts is none. */
DIBS_API DIBS_CHECK dibs_status dibs_fence_check(const char *kept, const char *shown,
                                                 char out[DIBS_FENCE_SIZE], dibs_error *err);

/* Opens a local file for reading and writing (created if it does not exist) for a holder whose
 * fence is not too old, and for one at a time: `fd` is locked (flock) until it is closed. The
 * highest fence is kept in PATH.fence. `wait_ms` (default: DIBS_FOREVER) is the timeout for another
 * holder's close. DIBS_FENCED: a newer holder has been here. DIBS_BUSY, DIBS_DENIED, DIBS_INVALID,
 * DIBS_ENGINE_FAILED: `engine_code` is the name of the errno. PATH.fence is replaced in one step,
 * so the directory must be writable; one that was cut off is refused (DIBS_INVALID), and lets
 * nobody in. Everyone who writes to the file must open it this way. */
DIBS_API DIBS_CHECK dibs_status dibs_fence_file(const char *path, const char *shown,
                                                int64_t wait_ms, int *fd, dibs_error *err);

/* ---- Examining a server ---------------------------------------------------------------------- */

/* DANGER: two clients can hold a lock at the same time, or no lock can be taken. WARNING: the same
 * after a rarer fault, or a fault that locks survive only if nothing else fails. UNSEEN: could not
 * be checked; `what` says why. */
typedef enum dibs_severity {
    DIBS_SEVERITY_UNSEEN,
    DIBS_SEVERITY_NOTE,
    DIBS_SEVERITY_WARNING,
    DIBS_SEVERITY_DANGER,
} dibs_severity;

typedef struct dibs_finding {
    dibs_severity severity;
    const char *id;     /* "redis.eviction"; stable across versions */
    const char *what;   /* what was found, with figures */
    const char *why;    /* why it matters for locks; "": UNSEEN */
    const char *advice; /* what to do about it; "": UNSEEN */
} dibs_finding;

/* Round trips to the server, measured one after another. */
typedef struct dibs_latency {
    size_t exchanges; /* 0: not measured */
    int64_t p50_us, p99_us, max_us;
    int64_t lease_ms; /* the lease they were compared with */
} dibs_latency;

typedef struct dibs_findings dibs_findings;

/* Checks the server at `url` (NULL as in dibs_open) for anything that makes locks unsafe: settings,
 * permissions, topology, clocks, latency. Also works if dibs_open would fail, for example on a
 * replica or without tables. Needs no more permissions than dibs_open and leaves nothing behind. Of
 * `options` (NULL: defaults) connect_ms, request_ms and lease_ms are used. DIBS_UNSUPPORTED:
 * memory: has no server. */
DIBS_API dibs_status dibs_examine(const char *url, const dibs_options *options, dibs_findings **out,
                                  dibs_error *err);
DIBS_API size_t dibs_findings_count(const dibs_findings *f);
DIBS_API const dibs_finding *dibs_findings_at(const dibs_findings *f, size_t i); /* worst first */
DIBS_API const dibs_latency *dibs_findings_latency(const dibs_findings *f);
DIBS_API const char *dibs_findings_engine(const dibs_findings *f); /* "redis" */
DIBS_API void dibs_findings_free(dibs_findings *f);
DIBS_API const char *dibs_severity_name(dibs_severity severity); /* "danger" */

/* ---- Statistics ------------------------------------------------------------------------------ */

#define DIBS_BUCKETS 40

/* bucket[i] counts values below 2^i microseconds and not below half of that. */
typedef struct dibs_histogram {
    uint64_t count;
    uint64_t sum_us;
    uint64_t max_us;
    uint64_t bucket[DIBS_BUCKETS];
} dibs_histogram;

typedef struct dibs_stats {
    uint64_t grants, reentries, busy, cancelled, failures; /* outcomes of lock calls */
    uint64_t releases, renewals, renewal_failures;
    uint64_t losses[16];    /* by dibs_loss */
    uint64_t held;          /* now */
    uint64_t waiting;       /* now */
    dibs_histogram acquire; /* call to grant, without waiting in the queue */
    dibs_histogram wait;    /* call to grant, after waiting in the queue */
    dibs_histogram hold;    /* grant to release or loss */
    dibs_histogram late;    /* how late renewals were sent */
} dibs_stats;

/* `size` is sizeof *out. */
DIBS_API void dibs_stats_read(dibs *d, dibs_stats *out, size_t size);

/* ---- For programs that supervise a child process ----------------------------------------------
 */

/* Called in a forked child of the handle's process. On engines that detect a dead process
 * (notices_death), the locks of `d` stay taken until this child has exited as well. Safe after fork
 * in a program with threads. */
DIBS_API dibs_status dibs_stand_in(dibs *d);

#ifdef __cplusplus
}
#endif
#endif
