/* dibs: distributed locks with a fencing token, and idempotency, on the engine you already run.
 *
 *     dibs *d = NULL;
 *     dibs_grant *g = NULL;
 *     dibs_error err = {0};
 *
 *     if (dibs_open("redis://127.0.0.1", NULL, &d, &err) != DIBS_OK)
 *         die(err.message);
 *     if (dibs_lock(d, "stock:1", &(dibs_lock_options){.wait_ms = 5000}, &g, &err) == DIBS_OK) {
 *         take_one(dibs_fence(g));      // the store rejects an older fence
 *         dibs_unlock(g);
 *     }
 *     dibs_close(d);
 *
 * A handle (`dibs`) owns the connections and one background thread, the keeper, which renews the
 * locks that are held. A grant represents one held lock. All functions may be called from any
 * thread. Strings that are passed in are borrowed for the call; strings that are returned live as
 * long as the object they came from. Every failure is a status. If a `dibs_error *` is passed (it
 * may be NULL), its message says what failed, on what, and what to do. After every call its status is
 * the one that the call returned; after DIBS_OK its message is empty. Durations are in milliseconds,
 * 100 years at most; other values are rejected with DIBS_INVALID. In a forked child every call
 * returns DIBS_FORKED.
 *
 * How long a call takes, even if the engine hangs: a call with a timeout (`wait_ms`) returns at most
 * 250 ms after that timeout. A call without one, or with DIBS_NO_WAIT, returns within request_ms
 * plus 250 ms. Only a `wait_ms` of 0 has no limit. dibs_open takes at most connect_ms, dibs_close
 * request_ms plus 2 seconds. A call that waits for one of your callbacks takes as long as the
 * callback. If a call has timed out, its effects on the engine are undone in the background.
 */
#ifndef DIBS_H
#define DIBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DIBS_API __attribute__((visibility("default")))
#else
#define DIBS_API
#endif

#define DIBS_NAME_MAX  512 /* bytes of a lock's name; any byte but NUL */
#define DIBS_OWNER_MAX 128 /* bytes of a named owner */
#define DIBS_NO_WAIT   (-1)

/* ---- Statuses -------------------------------------------------------------------------------- */

/* name, text, HTTP status, exit code of the command */
#define DIBS_STATUSES(X)                                                            \
    X(OK, "done", 200, 0)                                                           \
    X(QUEUED, "waiting in the queue", 202, 75)                                      \
    X(BUSY, "held by another client; not obtained in time", 409, 75)                \
    X(CANCELLED, "the wait was cancelled", 409, 75)                                 \
    X(LOST, "the lock was lost", 410, 76)                                           \
    X(INVALID, "invalid request", 400, 64)                                          \
    X(CONFLICT, "conflicts with the current state", 422, 64)                        \
    X(NOT_FOUND, "not found", 404, 1)                                               \
    X(UNAVAILABLE, "the engine cannot be reached", 503, 69)                         \
    X(UNKNOWN, "no answer: it may or may not have happened", 504, 69)               \
    X(DENIED, "the engine rejected the credentials or denied permission", 502, 69)  \
    X(BROKEN_ENGINE, "the engine failed or returned unexpected data", 500, 69)      \
    X(UNSUPPORTED, "not supported by this engine or build", 501, 64)                \
    X(FORKED, "this handle belongs to the parent process", 500, 70)                 \
    X(NO_MEMORY, "out of memory", 500, 71)                                          \
    X(ALREADY, "already done", 200, 0)                                              \
    X(STALE, "the transaction reads an old snapshot: roll back and retry", 409, 75) \
    X(DEADLOCK, "deadlock detected: roll back and retry", 409, 75)                  \
    X(RUNNING, "already in progress", 409, 75)                                      \
    X(MISMATCH, "the key was used with a different fingerprint", 422, 65)           \
    X(CRASHED, "an earlier run died; its outcome is unknown", 409, 79)              \
    X(EXPIRED, "the key was used; its result is no longer kept", 410, 77)           \
    X(REFUSED, "the token was used, has expired or was never issued", 403, 77)      \
    X(TOO_FEW, "fewer are left than requested", 409, 1)

typedef enum dibs_status {
#define X(name, text, http, code) DIBS_##name,
    DIBS_STATUSES(X)
#undef X
} dibs_status;

typedef struct dibs_error {
    dibs_status status;
    char message[1024]; /* one line, always terminated */
} dibs_error;

DIBS_API const char *dibs_status_name(dibs_status status); /* "BUSY" */
DIBS_API const char *dibs_status_text(dibs_status status);
DIBS_API int dibs_status_http(dibs_status status);
DIBS_API int dibs_status_exit_code(dibs_status status);
DIBS_API const char *dibs_version(void);

/* ---- Handles --------------------------------------------------------------------------------- */

typedef struct dibs dibs;
typedef struct dibs_grant dibs_grant;
typedef struct dibs_ticket dibs_ticket;

typedef enum dibs_log_level {
    DIBS_LOG_ERROR,
    DIBS_LOG_WARNING,
    DIBS_LOG_INFO,
    DIBS_LOG_DEBUG
} dibs_log_level;

/* May be called from any thread that uses the handle and from the keeper. Must not call dibs
 * functions. */
typedef void (*dibs_log_fn)(void *data, dibs_log_level level, const char *message);

/* Zero means default. */
typedef struct dibs_options {
    const char *owner;  /* copied; owner of all locks of the handle (default: the calling thread) */
    int64_t connect_ms; /* timeout of dibs_open (default 5,000) */
    int64_t request_ms; /* timeout of one request to the engine (default 5,000) */
    int64_t lease_ms; /* lease of its locks, or its session: see lease_of_handle (default 30,000) */
    bool dispatch_only; /* callbacks run only inside dibs_dispatch, never on the keeper */
    dibs_log_fn log;    /* default: none */
    void *log_data;
} dibs_options;

/* Opens the engine at `url`. NULL means $DIBS_URL, or the first line of the file $DIBS_URL_FILE, else
 * the embedded store: for root the store of the machine (sqlite:machine), for any other user a store
 * in the user's state directory, which is not shared with other users. Returns DIBS_UNAVAILABLE within
 * connect_ms if the server does not answer. On every engine ?fence_above=N asks for fences above N (see
 * dibs_fence_top); DIBS_CONFLICT: this store cannot do that. */
DIBS_API dibs_status dibs_open(const char *url, const dibs_options *options, dibs **out,
                               dibs_error *err);

/* Reads a URL from a file with one line, so that its password appears in no argument and no environment
 * variable. Free `out` with free(). DIBS_INVALID: the file cannot be read, or is not one line. */
DIBS_API dibs_status dibs_url_read(const char *path, char **out, dibs_error *err);

/* Cancels all waits, releases all locks, abandons runs in progress, stops the keeper and frees
 * everything, including the grants, tickets and onces of the handle. Takes at most request_ms plus
 * 2 seconds; a lock whose release was not confirmed by then is free when its lease expires. Must not be
 * called from a callback of the handle. In a forked child it only closes the child's copy: locks stay
 * with the parent. NULL is allowed. */
DIBS_API void dibs_close(dibs *d);

DIBS_API const char *dibs_engine_name(const dibs *d); /* "sqlite" */

/* The SQL that creates the tables of the engine at `url` (NULL as in dibs_open), for an administrator
 * to run if the account may not create tables. Does not connect. Free `out` with free().
 * DIBS_UNSUPPORTED: the engine has no tables to create. */
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
    int64_t lease_ms;      /* dibs_engine_of: the handle's lease; 0 if each lock has its own */
} dibs_engine_info;

/* The i-th engine of this version; false after the last one. */
DIBS_API bool dibs_engine_at(size_t i, dibs_engine_info *out);
DIBS_API void dibs_engine_of(const dibs *d, dibs_engine_info *out);

/* ---- Locks ----------------------------------------------------------------------------------- */

/* Why a lock was lost. */
typedef enum dibs_loss {
    DIBS_LOSS_NONE,
    DIBS_LOSS_EXPIRED,     /* the lease expired before it was renewed, or max_hold was reached */
    DIBS_LOSS_BROKEN,      /* an operator broke the lock */
    DIBS_LOSS_GONE,        /* no longer in the engine: flushed, evicted, deleted, restored */
    DIBS_LOSS_UNREACHABLE, /* the engine did not answer before the lease expired */
    DIBS_LOSS_RESUMED,     /* the same named owner requests the lock elsewhere: stop, then unlock */
} dibs_loss;

/* Called once for each lost grant, on the keeper (or in dibs_dispatch, see dispatch_only), without any
 * internal lock held. `g` stays valid until dibs_unlock, which may be called from the callback. When
 * dibs_unlock returns, the callback is not running and will not start: dibs_unlock waits for a callback
 * that is running on another thread. Exception: if two callbacks unlock each other's grants at the
 * same time, one of the two calls does not wait. The callback must not wait for a lock: it blocks the
 * keeper, which renews locks. */
typedef void (*dibs_lost_fn)(void *data, dibs_grant *g, dibs_loss why);

/* Zero means default. */
typedef struct dibs_lock_options {
    int64_t wait_ms;     /* timeout. 0: wait forever. DIBS_NO_WAIT: try once */
    int64_t lease_ms;    /* a silent holder's lock is released after this (default: the handle's) */
    int64_t max_hold_ms; /* maximum time to hold the lock: not renewed beyond it (default: none) */
    int64_t min_hold_ms; /* a lock released earlier stays taken until then (default: none) */
    bool no_renew;       /* the keeper does not renew the lease; see dibs_renew */
    bool shared;         /* shared (read) lock: excludes exclusive holders only */
    uint32_t slots;      /* semaphore: number of slots. 0 or 1: a plain lock */
    uint32_t weight;     /* semaphore: slots that this call takes (default 1) */
    const char *owner;   /* owner of the lock (default: the handle's, else the calling thread) */
    dibs_lost_fn on_lost;
    void *data; /* for on_lost */
} dibs_lock_options;

/* Acquires the lock. Locks are reentrant: if the same owner asks again on this handle, it gets the same
 * grant without I/O; call dibs_unlock once per dibs_lock. (Semaphores are not: without a named owner
 * each call takes slots of its own.) A named owner that holds the lock through another process or handle
 * waits for it like any other client, and that holder is asked to stop: its grant is lost
 * (DIBS_LOSS_RESUMED), and the lock is free after its dibs_unlock, or when its lease expires. The two
 * never hold it at the same time. With DIBS_NO_WAIT the call returns DIBS_BUSY and the holder is not
 * asked to stop. A named owner can wait for a lock in one thread per handle: a second call returns
 * DIBS_INVALID. DIBS_BUSY: not obtained in time. DIBS_CONFLICT: the lock has a different number of
 * slots, or the owner holds it shared and asks for it exclusively. DIBS_UNAVAILABLE: the engine could
 * not be reached within the timeout. */
DIBS_API dibs_status dibs_lock(dibs *d, const char *name, const dibs_lock_options *options,
                               dibs_grant **out, dibs_error *err);

/* Acquires all `count` locks or none, in sorted order, so that callers cannot deadlock. `out[i]` is
 * the grant of `names[i]`; a name given twice is one reentrant grant. When it returns DIBS_OK, all
 * locks are held; max_hold_ms and no_renew apply from then on. If a lock is lost while the call waits
 * for the others, that is not reported: all are released and acquired again within wait_ms. If the
 * call fails, min_hold_ms is not applied. */
DIBS_API dibs_status dibs_lock_many(dibs *d, const char *const names[], size_t count,
                                    const dibs_lock_options *options, dibs_grant *out[],
                                    dibs_error *err);

/* Undoes one dibs_lock. The last one releases the lock and frees `g`, whatever the status.
 * DIBS_LOST: the lock was no longer held. DIBS_UNAVAILABLE, DIBS_UNKNOWN: the lock is free when its
 * lease expires. */
DIBS_API dibs_status dibs_unlock(dibs_grant *g);

/* Renews the lease, in full, from now. For holders with no_renew. */
DIBS_API dibs_status dibs_renew(dibs_grant *g, dibs_error *err);

/* Is the lock still held, by the local clock? No I/O. */
DIBS_API bool dibs_held(const dibs_grant *g);
DIBS_API int64_t dibs_remaining_ms(const dibs_grant *g); /* 0 when lost */
DIBS_API dibs_loss dibs_loss_of(const dibs_grant *g);
DIBS_API const char *dibs_loss_text(dibs_loss why);

/* The fencing token: grows with every grant of this name. A resource that remembers the highest
 * floor and rejects a lower fence is safe from holders whose lease has expired. With one holder at
 * a time floor == fence; with several, floor is the lowest fence among them. */
DIBS_API uint64_t dibs_fence(const dibs_grant *g);
DIBS_API uint64_t dibs_floor(const dibs_grant *g);
/* An upper bound of all fences that this store has given out so far. A store on another engine that is
 * opened with ?fence_above=N in its URL gives out fences above N, or is not opened (DIBS_CONFLICT). So
 * locks can move to it, and resources accept the new fences. See docs/moving.md. */
DIBS_API dibs_status dibs_fence_top(dibs *d, uint64_t *out, dibs_error *err);
DIBS_API const char *dibs_name(const dibs_grant *g);
DIBS_API const char *dibs_owner(const dibs_grant *g);

/* Cancels every wait of this handle for `name` (NULL: for any lock and any run of once). The waiting
 * calls return DIBS_CANCELLED. */
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

/* ---- Waiting in an event loop ---------------------------------------------------------------- */

/* Called in dibs_dispatch. DIBS_OK: the lock was acquired, and `g` belongs to the caller. DIBS_LOST: it
 * was acquired and lost before dibs_dispatch was called. `err` is never NULL. The ticket is freed when
 * the callback returns. */
typedef void (*dibs_ticket_fn)(void *data, dibs_status status, dibs_grant *g,
                               const dibs_error *err);

/* Enters the queue and returns; `done` reports the outcome, also if the lock was free. Each ticket is
 * its own owner unless a named owner is given. `out` may be NULL. */
DIBS_API dibs_status dibs_lock_start(dibs *d, const char *name, const dibs_lock_options *options,
                                     dibs_ticket_fn done, void *data, dibs_ticket **out,
                                     dibs_error *err);

/* Cancels the wait: `done` is called with DIBS_CANCELLED, or with DIBS_OK if the lock was acquired
 * first. Must not be called after `done` has run. */
DIBS_API void dibs_ticket_cancel(dibs_ticket *t);

/* A file descriptor that is readable when dibs_dispatch has something to do: a ticket has an outcome
 * or a grant was lost. It belongs to the handle. */
DIBS_API int dibs_fd(dibs *d);

/* Runs pending callbacks; never blocks. Returns the number of callbacks run and losses noted. */
DIBS_API int dibs_dispatch(dibs *d);

/* ---- Cells: values with compare-and-swap ----------------------------------------------------- */

#define DIBS_VALUE_MAX   (1024 * 1024) /* bytes of a value; some engines allow less: value_max */
#define DIBS_ANY_VERSION UINT64_MAX
#define DIBS_FOREVER     (-1)

/* The contents of a cell. Free with dibs_value_free. */
typedef struct dibs_value {
    void *data; /* a NUL follows the bytes */
    size_t size;
    uint64_t version; /* grows with every change of this name, also after a deletion */
    int64_t left_ms;  /* until it expires; DIBS_FOREVER */
} dibs_value;

/* Zero means default. A write with a fence is rejected (DIBS_LOST) if the cell has seen a newer one;
 * otherwise it raises the cell's floor to its fence, so an older fence never overwrites a newer one. With
 * several holders (shared, slots) the floor is raised to `floor` instead, and the others can still write. */
typedef struct dibs_cell_options {
    int64_t keep_ms; /* expires after this (default: never) */
    uint64_t fence;  /* a grant's fence. 0: not checked */
    uint64_t floor;  /* the grant's dibs_floor (default: the fence) */
} dibs_cell_options;

/* DIBS_NOT_FOUND: the cell does not exist. */
DIBS_API dibs_status dibs_cell_read(dibs *d, const char *name, dibs_value *out, dibs_error *err);

/* Writes if the cell still has that version (0: the cell must not exist; DIBS_ANY_VERSION: it must
 * exist). `now` (may be NULL) receives the state of the cell afterwards, without data if it was written.
 * DIBS_CONFLICT: it has a different version; `now` has that version and its value. DIBS_NOT_FOUND: the
 * cell does not exist. DIBS_UNKNOWN: no answer, and the outcome can no longer be determined: read the
 * cell and decide again. */
DIBS_API dibs_status dibs_cell_swap(dibs *d, const char *name, uint64_t version, const void *data,
                                    size_t size, const dibs_cell_options *options, dibs_value *now,
                                    dibs_error *err);
DIBS_API dibs_status dibs_cell_delete(dibs *d, const char *name, uint64_t version,
                                      const dibs_cell_options *options, dibs_error *err);
DIBS_API void dibs_value_free(dibs_value *value);

/* Checks a fence on a resource that is a cell: presents a grant's fence before the first read. Raises
 * the cell's floor to `floor` (0: to the fence), then reads into `out` (may be NULL; version 0 if there
 * is no value yet). DIBS_LOST: a newer holder has been here. Plain writes with a fence do not need this.
 * A read-modify-write does: raise the floor, read, then write with the fence. Otherwise an older holder
 * may write between the read and the write. */
DIBS_API dibs_status dibs_fence_pass(dibs *d, const char *cell, uint64_t fence, uint64_t floor,
                                     dibs_value *out, dibs_error *err);

/* ---- Counters -------------------------------------------------------------------------------- */

/* Zero means default. */
typedef struct dibs_counter_options {
    const char *request; /* request id: a repeated id is counted once (default: none) */
    int64_t keep_ms;     /* how long the id is remembered; DIBS_FOREVER (default: 24 hours) */
} dibs_counter_options;

/* A counter is never below zero. DIBS_OK: counted; `value` (may be NULL) receives the new value.
 * DIBS_ALREADY: this request was counted before; `value` receives what was returned then. Of all calls
 * with the same request id at most one returns DIBS_OK. It may be none: if the answer was lost and the
 * counter has changed since, the call that was counted also returns DIBS_ALREADY. DIBS_NOT_FOUND: the
 * counter does not exist. DIBS_UNKNOWN: no answer; without a request id the call cannot be repeated. */
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
 * If the runner dies, the outcome of its run is unknown, and the caller chooses: refuse (at most once)
 * or run again (at least once). Exactly once is possible only if key and effect are in one transaction:
 * see dibs_sql_once in dibs_sql.h. */
typedef struct dibs_once dibs_once;

typedef enum dibs_on_crash {
    DIBS_CRASH_REFUSE, /* DIBS_CRASHED, as long as the key is kept: at most once */
    DIBS_CRASH_RERUN,  /* run again, with a higher fence and the recorded steps: at least once */
    DIBS_CRASH_ASK,    /* `ask` decides */
} dibs_on_crash;

/* The runner of `o` died (see dibs_once_runner, and dibs_once_step_data for what it had done). Return
 * true to run again. */
typedef bool (*dibs_crash_fn)(void *data, const dibs_once *o);
typedef void (*dibs_once_lost_fn)(void *data, dibs_once *o);

/* Zero means default. */
typedef struct dibs_once_options {
    const char *scope;       /* namespace of the key: a tenant, an endpoint, a queue (default "") */
    const void *fingerprint; /* identifies the request, usually its hash: the same key with a
                                different fingerprint is rejected (DIBS_MISMATCH) */
    size_t fingerprint_size; /* up to 255 bytes. 0: no fingerprint */
    int64_t lease_ms;        /* a silent runner is considered dead after this (default 30,000) */
    int64_t
        keep_ms; /* how long the result is kept; DIBS_FOREVER (default: 24 hours). A key that was
                         released keeps a record for a day in any case, against late requests */
    int64_t
        tombstone_ms; /* how long DIBS_EXPIRED is returned after that; DIBS_FOREVER (default: 0) */
    int64_t wait_ms;  /* timeout for a run in progress. 0: wait forever. DIBS_NO_WAIT: return
                                DIBS_RUNNING at once */
    dibs_on_crash on_crash;
    dibs_crash_fn ask;
    dibs_once_lost_fn on_lost; /* the run was lost: others may take over. As dibs_lost_fn */
    void *data;                /* for ask and on_lost */
    const char *owner;         /* shown to operators (default as in dibs_lock_options) */
} dibs_once_options;

/* DIBS_OK: the caller runs the work, and ends the run with finish, fail or abandon. DIBS_ALREADY: it was
 * done before; see dibs_once_result. DIBS_RUNNING: already in progress; see dibs_once_runner, and
 * dibs_once_wait to wait for it. DIBS_MISMATCH, DIBS_CRASHED, DIBS_EXPIRED: see the statuses.
 * DIBS_UNKNOWN: no answer; the caller must not run the work. If the engine began a run, or begins one
 * later, it is withdrawn, and the key is as it was before. DIBS_UNAVAILABLE: the same, if the answer came
 * after the lease had expired. `out` is set after all of these, and freed by the caller; after any other
 * status it is NULL. */
DIBS_API dibs_status dibs_once_begin(dibs *d, const char *key, const dibs_once_options *options,
                                     dibs_once **out, dibs_error *err);

/* After DIBS_RUNNING: waits up to wait_ms for the run to end. Returns the statuses of begin. */
DIBS_API dibs_status dibs_once_wait(dibs_once *o, int64_t wait_ms, dibs_error *err);

/* During a run. The fence grows with every run of this key; held uses the local clock, no I/O. */
DIBS_API uint64_t dibs_once_fence(const dibs_once *o);
DIBS_API bool dibs_once_held(const dibs_once *o);
DIBS_API int64_t dibs_once_remaining_ms(const dibs_once *o); /* 0 if the run is not held */
DIBS_API bool dibs_once_again(const dibs_once *o);           /* an earlier runner died */

/* Records a recovery point: what has been done so far, stored with the key until the run ends. A later
 * run of the same key can continue from there. The same step again replaces its data. DIBS_LOST: the run
 * is no longer held. */
DIBS_API dibs_status dibs_once_step(dibs_once *o, const char *step, const void *data, size_t size,
                                    dibs_error *err);
/* The data of a recorded step, or NULL if the step was not reached. Valid until the step is replaced or
 * `o` is freed. */
DIBS_API const void *dibs_once_step_data(const dibs_once *o, const char *step, size_t *size);

/* The work is done: stores the result and a code of the caller's for duplicates. DIBS_LOST: another run
 * has taken over, or the record is gone; nothing was written. DIBS_UNAVAILABLE, DIBS_UNKNOWN: call it
 * again. */
DIBS_API dibs_status dibs_once_finish(dibs_once *o, const void *result, size_t size, int code,
                                      dibs_error *err);
/* The work failed. `final`: duplicates get this result. Otherwise the key is released, and the next call
 * runs the work again. But if this run had taken over from one that died, the key is crashed again,
 * because the outcome of the earlier run is still unknown. The steps of both runs are kept. */
DIBS_API dibs_status dibs_once_fail(dibs_once *o, bool final, const void *result, size_t size,
                                    int code, dibs_error *err);
/* The outcome is unknown: the same as if the runner had died, without waiting for the lease. A finish or
 * fail that has reached the engine stands, even if its answer was lost (DIBS_UNKNOWN). */
DIBS_API dibs_status dibs_once_abandon(dibs_once *o, dibs_error *err);

/* After DIBS_ALREADY. */
DIBS_API const void *dibs_once_result(const dibs_once *o, size_t *size); /* NULL: no result */
DIBS_API int dibs_once_code(const dibs_once *o);
DIBS_API bool dibs_once_failed(const dibs_once *o); /* the run ended with a final failure */
/* The runner: current, finished or dead. `left_ms`: until it is considered dead, or its result expires. */
DIBS_API void dibs_once_runner(const dibs_once *o, dibs_party *out);

/* Abandons a run in progress. NULL is allowed. */
DIBS_API void dibs_once_free(dibs_once *o);

/* ---- Tokens ---------------------------------------------------------------------------------- */

#define DIBS_TOKEN_SIZE 64 /* with its NUL */

/* Zero means default. */
typedef struct dibs_token_options {
    const char *scope; /* what the token is for (default "") */
    int64_t ttl_ms;    /* expires after this (default: 10 minutes) */
} dibs_token_options;

/* Creates an unguessable token that can be redeemed once, in its scope. */
DIBS_API dibs_status dibs_token_issue(dibs *d, const dibs_token_options *options,
                                      char out[DIBS_TOKEN_SIZE], dibs_error *err);
/* DIBS_OK: returned to exactly one caller, who does the work now. DIBS_REFUSED: the token was used, has
 * expired, was never issued, or is for another scope. */
DIBS_API dibs_status dibs_token_redeem(dibs *d, const char *scope, const char *token,
                                       dibs_error *err);
/* If the work after a redemption failed: returns one replacement token, the same one for every call.
 * DIBS_REFUSED: the token was not redeemed, or has expired. */
DIBS_API dibs_status dibs_token_reissue(dibs *d, const dibs_token_options *options,
                                        const char *token, char out[DIBS_TOKEN_SIZE],
                                        dibs_error *err);

/* ---- Inspecting and breaking locks ----------------------------------------------------------- */

typedef struct dibs_lock_info {
    const char *name;
    uint32_t slots; /* of a semaphore; 0: a plain lock (exclusive or shared) */
    uint32_t used;  /* slots taken; plain locks: 1 if exclusive, else the number of sharers */
    uint64_t fence; /* the highest fence given out */
    const dibs_party *holders;
    size_t holder_count;
    const dibs_party *waiters; /* in queue order; NULL in a list */
    size_t waiter_count;
    const char *broken_by; /* who broke the lock last, or NULL */
    int64_t broken_at_ms;
    const char *const *notes; /* engine-specific notes, one line each; NULL in a list */
    size_t note_count;
} dibs_lock_info;

typedef struct dibs_report dibs_report;

/* DIBS_NOT_FOUND: the lock has not been used for a day (on ZooKeeper: for about a minute; on etcd: it is
 * not in use). */
DIBS_API dibs_status dibs_inspect(dibs *d, const char *name, dibs_report **out, dibs_error *err);

/* Lists the locks whose names start with `prefix` (NULL: all), sorted by name: those that are held or
 * waited for, and with `idle` also the others. */
DIBS_API dibs_status dibs_list(dibs *d, const char *prefix, bool idle, dibs_report **out,
                               dibs_error *err);
DIBS_API size_t dibs_report_count(const dibs_report *r);
DIBS_API const dibs_lock_info *dibs_report_at(const dibs_report *r, size_t i);
DIBS_API void dibs_report_free(dibs_report *r);

/* Takes the lock from its holders and raises the fence; `by` is recorded. Every holder is notified
 * within about a second (Redlock: at its next renewal, after a third of its lease). The lock is free when
 * all of them have released it or their leases have expired; the call returns then, or with DIBS_BUSY
 * after wait_ms (0: no limit). With `now` the lock is free at once, and only the fence protects the
 * resource. */
DIBS_API dibs_status dibs_break(dibs *d, const char *name, const char *by, bool now,
                                int64_t wait_ms, dibs_error *err);

/* ---- Examining a server ---------------------------------------------------------------------- */

/* DANGER: two clients can hold a lock at the same time, or no lock can be taken. WARNING: the same after a
 * rarer fault, or a fault that locks survive only if nothing else fails. UNSEEN: could not be checked;
 * `what` says why. */
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
 * permissions, topology, clocks, latency. Also works if dibs_open would fail, for example on a replica or
 * without tables. Needs no more permissions than dibs_open and leaves nothing behind. Of `options` (NULL:
 * defaults) connect_ms, request_ms and lease_ms are used. DIBS_UNSUPPORTED: memory: has no server. */
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
    uint64_t losses[6];     /* by dibs_loss */
    uint64_t held;          /* now */
    uint64_t waiting;       /* now */
    dibs_histogram acquire; /* call to grant, without waiting in the queue */
    dibs_histogram wait;    /* call to grant, after waiting in the queue */
    dibs_histogram hold;    /* grant to release or loss */
    dibs_histogram late;    /* how late renewals were sent */
} dibs_stats;

DIBS_API void dibs_stats_read(dibs *d, dibs_stats *out);

/* ---- For programs that supervise a child process ----------------------------------------------
 */

/* Called in a forked child of the handle's process. On engines that detect a dead process
 * (notices_death), the locks of `d` stay taken until this child has exited as well. Safe after fork in
 * a program with threads. */
DIBS_API dibs_status dibs_stand_in(dibs *d);

#ifdef __cplusplus
}
#endif
#endif
