/* dibs: call dibs on a thing. Distributed locks with a fencing token, on the engine you already
 * run.
 *
 *     dibs *d = NULL;
 *     dibs_grant *g = NULL;
 *     dibs_error err = {0};
 *
 *     if (dibs_open("redis://127.0.0.1", NULL, &d, &err) != DIBS_OK)
 *         die(err.message);
 *     if (dibs_lock(d, "stock:1", &(dibs_lock_options){.wait_ms = 5000}, &g, &err) == DIBS_OK) {
 *         take_one(dibs_fence(g));      // the store refuses an older fence
 *         dibs_unlock(g);
 *     }
 *     dibs_close(d);
 *
 * A handle (`dibs`) owns the connections and one background thread, the keeper, which renews what
 * is held. A grant is the proof of holding one lock. All functions may be called from any thread.
 * Strings that go in are borrowed for the call; strings that come out live as long as the thing
 * they came from. Every failure is a status; where a `dibs_error *` is given (it may be NULL), it
 * also says what happened, to what, and what to do next. In a forked child every call is refused
 * with DIBS_FORKED.
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

#define DIBS_NAME_MAX  512 /* bytes of a lock's name: anything but NUL */
#define DIBS_OWNER_MAX 128 /* bytes of an owner given by name */
#define DIBS_NO_WAIT   (-1)

/* ---- Statuses -------------------------------------------------------------------------------- */

/* name, text, HTTP status, exit code of the command */
#define DIBS_STATUSES(X)                                                               \
    X(OK, "done", 200, 0)                                                              \
    X(QUEUED, "waiting in line", 202, 75)                                              \
    X(BUSY, "held by another; not obtained in time", 409, 75)                          \
    X(CANCELLED, "the wait was cancelled", 409, 75)                                    \
    X(LOST, "the lock was lost", 410, 76)                                              \
    X(INVALID, "not a valid request", 400, 64)                                         \
    X(CONFLICT, "does not fit what the lock is", 422, 64)                              \
    X(NOT_FOUND, "there is no such thing", 404, 1)                                     \
    X(UNAVAILABLE, "the engine cannot be reached", 503, 69)                            \
    X(UNKNOWN, "no answer: it may or may not have happened", 504, 69)                  \
    X(DENIED, "the engine refused the credentials or the right", 502, 69)              \
    X(BROKEN_ENGINE, "the engine failed or holds something that is not ours", 500, 69) \
    X(UNSUPPORTED, "this engine or build cannot do that", 501, 64)                     \
    X(FORKED, "this handle belongs to the parent process", 500, 70)                    \
    X(NO_MEMORY, "out of memory", 500, 71)                                             \
    X(ALREADY, "it was done before", 200, 0)                                           \
    X(STALE, "the transaction reads an older state: roll back, start again", 409, 75)  \
    X(DEADLOCK, "the transaction met a deadlock: roll back, start again", 409, 75)

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

/* May be called from any thread of the caller's and from the keeper; must not call back into dibs.
 */
typedef void (*dibs_log_fn)(void *data, dibs_log_level level, const char *message);

/* Zero means default. */
typedef struct dibs_options {
    const char
        *owner; /* copied; every lock of the handle belongs to it. Default: the calling thread */
    int64_t connect_ms; /* how long dibs_open may take: 5,000 */
    int64_t request_ms; /* how long one exchange with the engine may take: 5,000 */
    int64_t lease_ms;   /* lease of its locks: 30,000. Where it is the handle's, its session */
    bool dispatch_only; /* callbacks run only inside dibs_dispatch, never on the keeper */
    dibs_log_fn log;    /* default: silent */
    void *log_data;
} dibs_options;

/* Opens the engine that `url` names; NULL means $DIBS_URL, else the embedded store in the user's
 * state folder. A server that does not answer is DIBS_UNAVAILABLE within connect_ms. */
DIBS_API dibs_status dibs_open(const char *url, const dibs_options *options, dibs **out,
                               dibs_error *err);

/* Cancels what waits, releases what is held, ends the keeper, frees everything: grants and tickets
 * of the handle are gone with it. In a forked child it only forgets. NULL is allowed. */
DIBS_API void dibs_close(dibs *d);

DIBS_API const char *dibs_engine_name(const dibs *d); /* "sqlite" */

/* The SQL that makes the tables which the engine of `url` (NULL as in dibs_open) needs, for an
 * administrator to run where the account itself may not. Connects to nothing; `out` is freed with
 * free(). DIBS_UNSUPPORTED: that engine needs none. */
DIBS_API dibs_status dibs_schema(const char *url, char **out, dibs_error *err);

/* What an engine can do, as data. */
typedef struct dibs_engine_info {
    const char *scheme;    /* "redis" */
    const char *missing;   /* package to install when this build lacks it, else NULL */
    bool across_processes; /* false: memory, alive only inside one process */
    bool first_come;       /* waiters are served in order of arrival */
    bool notices_death;    /* a killed holder's lock passes on at once, not after its lease */
    bool
        lease_of_handle; /* one lease for all locks of a handle; those of locks can only be shorter,
                              and a dead process's locks pass on with the handle's */
    bool resumes_at_end; /* an owner by name that takes a lock up again goes behind who waits */
    bool fence_of_place; /* a waiter's fence is fixed when it enters the line */
    bool forgets_idle;   /* an unused lock is forgotten soon: slots, who broke it, its fence */
    int64_t lease_ms;    /* dibs_engine_of: the handle's lease; 0 where each lock has its own */
} dibs_engine_info;

/* The i-th engine that this version knows; false past the last. */
DIBS_API bool dibs_engine_at(size_t i, dibs_engine_info *out);
DIBS_API void dibs_engine_of(const dibs *d, dibs_engine_info *out);

/* ---- Locks ----------------------------------------------------------------------------------- */

/* Why a lock was lost. */
typedef enum dibs_loss {
    DIBS_LOSS_NONE,
    DIBS_LOSS_EXPIRED,     /* the lease ran out before it was renewed, or max_hold was reached */
    DIBS_LOSS_BROKEN,      /* an operator broke the lock */
    DIBS_LOSS_GONE,        /* the engine no longer has it: flushed, evicted, deleted, restored */
    DIBS_LOSS_UNREACHABLE, /* the engine did not answer until the lease was over */
    DIBS_LOSS_RESUMED,     /* the same owner took the lock up elsewhere */
} dibs_loss;

/* Runs on the keeper (or in dibs_dispatch, see dispatch_only), once for a lost grant, with no lock
 * of ours held. `g` stays valid until dibs_unlock, which may be called from here; after dibs_unlock
 * it neither runs nor begins. It must not wait for a lock: the keeper that would keep it alive is
 * here. */
typedef void (*dibs_lost_fn)(void *data, dibs_grant *g, dibs_loss why);

/* Zero means default. */
typedef struct dibs_lock_options {
    int64_t wait_ms;     /* 0: wait for ever. DIBS_NO_WAIT: try once. Else at most this long */
    int64_t lease_ms;    /* how long the engine keeps the lock for a silent holder: the handle's */
    int64_t max_hold_ms; /* renewals stop there: no bound */
    int64_t min_hold_ms; /* a lock released earlier stays taken until then: none */
    bool no_renew;       /* the keeper leaves the lease alone; see dibs_renew */
    bool shared;         /* with others that share; excludes those that do not */
    uint32_t slots;      /* semaphore: so many slots in all. 0 or 1: a plain lock */
    uint32_t weight;     /* semaphore: how many slots this takes: 1 */
    const char *owner; /* whose lock it is. Default: the handle's owner, else the calling thread */
    dibs_lost_fn on_lost;
    void *data; /* for on_lost */
} dibs_lock_options;

/* Takes the lock. The same owner asking again on this handle gets the same grant, one level deeper,
 * without I/O: call dibs_unlock as often. (Slots are counted, not owned: without an owner by name
 * each call takes its own.) An owner by name that held the lock in another process or handle takes
 * it up with a new fence; the old grant is dead. Such an owner waits for a lock in one thread of a
 * handle at a time: a second call is DIBS_INVALID.
 * DIBS_BUSY: not obtained in time. DIBS_CONFLICT: the lock has other slots, or shared would have to
 * become exclusive. DIBS_UNAVAILABLE: no engine until the wait was over. */
DIBS_API dibs_status dibs_lock(dibs *d, const char *name, const dibs_lock_options *options,
                               dibs_grant **out, dibs_error *err);

/* Takes all `count` locks or none, in sorted order, so that callers cannot deadlock. `out[i]` is
 * the grant of `names[i]`; a name given twice is one grant, one level deeper. */
DIBS_API dibs_status dibs_lock_many(dibs *d, const char *const names[], size_t count,
                                    const dibs_lock_options *options, dibs_grant *out[],
                                    dibs_error *err);

/* One level up; at the outermost, gives the lock back and frees `g`, whatever is returned.
 * DIBS_LOST: it was not ours any more. DIBS_UNAVAILABLE, DIBS_UNKNOWN: it passes on when its lease
 * ends. */
DIBS_API dibs_status dibs_unlock(dibs_grant *g);

/* Asks the engine for a whole lease from now. For holders with no_renew. */
DIBS_API dibs_status dibs_renew(dibs_grant *g, dibs_error *err);

/* Still ours by our own clock? No I/O. */
DIBS_API bool dibs_held(const dibs_grant *g);
DIBS_API int64_t dibs_remaining_ms(const dibs_grant *g); /* 0 when lost */
DIBS_API dibs_loss dibs_loss_of(const dibs_grant *g);
DIBS_API const char *dibs_loss_text(dibs_loss why);

/* The fencing token: grows with every grant of this name. A resource that remembers the highest
 * floor and refuses a lower fence is safe from holders that overran their lease. With one holder at
 * a time floor == fence; with several, floor is the lowest fence among them. */
DIBS_API uint64_t dibs_fence(const dibs_grant *g);
DIBS_API uint64_t dibs_floor(const dibs_grant *g);
DIBS_API const char *dibs_name(const dibs_grant *g);
DIBS_API const char *dibs_owner(const dibs_grant *g);

/* Ends every wait of this handle for `name` (NULL: for any name) with DIBS_CANCELLED. */
DIBS_API void dibs_cancel(dibs *d, const char *name);

/* ---- Waiting without a thread each ----------------------------------------------------------- */

/* Runs in dibs_dispatch. DIBS_OK: `g` is yours. The ticket is freed when this returns. */
typedef void (*dibs_ticket_fn)(void *data, dibs_status status, dibs_grant *g,
                               const dibs_error *err);

/* Enters the line and returns; `done` tells the outcome, also of a lock that was free. A ticket is
 * its own owner unless one is given by name. `out` may be NULL. */
DIBS_API dibs_status dibs_lock_start(dibs *d, const char *name, const dibs_lock_options *options,
                                     dibs_ticket_fn done, void *data, dibs_ticket **out,
                                     dibs_error *err);

/* Ends the wait: `done` will be told DIBS_CANCELLED, or DIBS_OK if the lock came first. Not after
 * `done` has run. */
DIBS_API void dibs_ticket_cancel(dibs_ticket *t);

/* A descriptor that is readable when dibs_dispatch has something to do: a ticket is settled or a
 * grant was lost. It belongs to the handle. */
DIBS_API int dibs_fd(dibs *d);

/* Runs what is due, never blocks. Returns how many callbacks ran and losses were noted. */
DIBS_API int dibs_dispatch(dibs *d);

/* ---- Looking and breaking -------------------------------------------------------------------- */

typedef struct dibs_party {
    const char *owner;
    const char *host;
    int64_t pid;
    int64_t since_ms; /* Unix time: held, or in line, since */
    int64_t left_ms;  /* holder: lease left; waiter: until it counts as dead */
    uint64_t fence;   /* holder */
    uint32_t weight;
    bool shared;
    bool released; /* given back, kept until its min_hold is over */
    bool breaking; /* an operator has asked for it back */
} dibs_party;

typedef struct dibs_lock_info {
    const char *name;
    uint32_t slots; /* 0: a plain lock (exclusive or shared); else a semaphore's */
    uint32_t used;  /* slots taken; plain locks: 1 exclusive, else the number that share */
    uint64_t fence; /* the highest ever given out */
    const dibs_party *holders;
    size_t holder_count;
    const dibs_party *waiters; /* in line, first first; NULL in a list */
    size_t waiter_count;
    const char *broken_by; /* who broke it last, or NULL */
    int64_t broken_at_ms;
} dibs_lock_info;

typedef struct dibs_report dibs_report;

/* DIBS_NOT_FOUND: nobody has ever (or for a day) used that name. */
DIBS_API dibs_status dibs_inspect(dibs *d, const char *name, dibs_report **out, dibs_error *err);

/* Every lock whose name starts with `prefix` (NULL: all), sorted by name. Idle ones only with
 * `idle`. */
DIBS_API dibs_status dibs_list(dibs *d, const char *prefix, bool idle, dibs_report **out,
                               dibs_error *err);
DIBS_API size_t dibs_report_count(const dibs_report *r);
DIBS_API const dibs_lock_info *dibs_report_at(const dibs_report *r, size_t i);
DIBS_API void dibs_report_free(dibs_report *r);

/* Takes the lock from whoever holds it and raises the fence; `by` is recorded. The holder is told
 * and the lock passes on when it lets go or its lease ends; the call returns then, or with
 * DIBS_BUSY after wait_ms (0: no bound). With `now` the lock passes on at once: only the fence
 * protects the resource. */
DIBS_API dibs_status dibs_break(dibs *d, const char *name, const char *by, bool now,
                                int64_t wait_ms, dibs_error *err);

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
    dibs_histogram acquire; /* call to grant, when nobody was in the way */
    dibs_histogram wait;    /* call to grant, when there was a line */
    dibs_histogram hold;    /* grant to release or loss */
    dibs_histogram late;    /* how late renewals were sent */
} dibs_stats;

DIBS_API void dibs_stats_read(dibs *d, dibs_stats *out);

/* ---- For wrappers that guard a child process ---------------------------------------------------
 */

/* Called in a forked child of the handle's process: on engines that notice a dead process, the
 * locks of `d` stay taken until this child is gone too. Safe after fork in a program with threads.
 */
DIBS_API dibs_status dibs_stand_in(dibs *d);

#ifdef __cplusplus
}
#endif
#endif
